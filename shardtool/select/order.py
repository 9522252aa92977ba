"""Which samples of a dataset are taken, in which order, and the table that queries see: pure, without I/O.

Where the samples of several sources share keys, see `duplicates`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.entries.arrow import number_array
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.names import Names
from shardtool.skipped import Skipped
from shardtool.table import arrays
from shardtool.table.columns import is_text, no_such, repeated
from shardtool.values import counted, to_text
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.values import OnDuplicate


_HASHES = 2**64
_SHARE = re.compile(r"\s*(\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(e[+-]?\d{1,3})?\s*(%?)\s*", re.ASCII | re.IGNORECASE)


def sample_by_key(keys: Names, share: float | str) -> NDArray[np.int64]:
    """Return a random share of the samples, by the hash of each one's key alone.

    So a sample stays in or out when others come or go, and those of a smaller share are among those of a larger one.
    The hash is BLAKE2b (RFC 7693) of 8 bytes, little-endian: a sample is taken where it is below share * 2^64.

    Args:
        keys: One per sample.
        share: More than 0, at most 1: a number, `0.01` or `1%`.

    Returns:
        int64, the samples in order.

    Raises:
        InvalidRequest: `share` is no such number.
    """
    last = np.uint64(math.ceil(_share(share) * _HASHES) - 1)
    return np.flatnonzero(keys.hashes() <= last)


def _share(share: float | str) -> Fraction:
    """Return exactly what was written; of a float, what Python shows."""
    match = _SHARE.fullmatch(str(share))
    found = Fraction(match[1] + (match[2] or "")) / (100 if match[3] else 1) if match else Fraction(0)
    if not 0 < found <= 1:
        raise InvalidRequest(
            option("sample"), f"{str(share)!r}", expected="a share above 0 and at most 1, such as 0.01 or 1%"
        )
    return found


def sort_order(values: pa.ChunkedArray, name: str, *, descending: bool = False) -> NDArray[np.int64]:
    """Return the places of values in order; equal ones keep theirs, and nulls and NaN come last, either way.

    Args:
        values: Numbers, text (in the order of its bytes), truths or times.
        name: What the column is called.
        descending: The greatest first.

    Raises:
        InvalidRequest: Values of another type.
    """
    import pyarrow.compute as pc

    kind = arrays.plain(values.slice(0, 0)).type
    if pa.types.is_null(kind):
        return np.arange(len(values))
    if not _is_ordered(kind):
        raise InvalidRequest(
            option("sort_by"), f"column {name!r} holds {values.type}", expected="numbers, text, truths or times"
        )
    values = arrays.plain(values)
    if pa.types.is_floating(kind):
        values = pc.if_else(pc.is_nan(values), pa.nulls(1, kind)[0], values)
    places = pc.sort_indices(values, sort_keys=[("", "descending" if descending else "ascending")])
    return arrow.numbers(places).astype(np.int64)


def _is_ordered(kind: pa.DataType) -> bool:
    types = pa.types
    numbers = types.is_integer, types.is_floating, types.is_decimal, types.is_boolean
    times = types.is_date, types.is_time, types.is_timestamp, types.is_duration
    return is_text(kind) or any(test(kind) for test in (*numbers, *times))


def table_of(entries: Entries, shard: NDArray[np.int32], shards: tuple[str, ...]) -> pa.Table:
    """Return what can be asked of samples: their metadata and, where it has no such column, facts of our own.

    These are `key`, `shard` (its name), `size` (bytes of all payloads) and `fields` (how many). About 30 bytes a
    sample and its key, besides the metadata.

    Args:
        entries: The samples.
        shard: Which of `shards` each sample lies in.
        shards: The names of the shards.
    """
    counts = entries.counts()
    made: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: _texts(entries.keys),
        "shard": lambda: pa.DictionaryArray.from_arrays(number_array(shard), arrays.texts([*map(printable, shards)])),
        "size": lambda: number_array(_sums(entries.rows.size, entries.first[:-1], counts)),
        "fields": lambda: number_array(counts),
    }
    table = entries.metadata
    own = {name: make() for name, make in made.items() if table is None or name not in table.column_names}
    if table is None:
        return pa.Table.from_arrays([*own.values()], names=[*own])
    for name, column in own.items():
        table = table.append_column(name, column)
    return table


def _texts(names: Names) -> pa.LargeStringArray:
    """Return names as an Arrow array: their buffer, without the NULs."""
    data = names.span(0, len(names)).replace(b"\0", b"")
    offsets = names.starts - names.starts[0] - np.arange(len(names) + 1)
    return pa.Array.from_buffers(pa.large_string(), len(names), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _sums(values: NDArray[np.int64], first: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum of each sample's values, 0 for a sample without any."""
    found = np.zeros(len(counts), np.int64)
    some = counts > 0  # reduceat gives an empty run its next value
    if some.any():
        found[some] = np.add.reduceat(values, first[some])
    return found


def column_of(table: pa.Table, name: str, option: str) -> pa.ChunkedArray:
    """Return a column of `table_of`.

    Raises:
        InvalidRequest: There is none of that name, or several.
    """
    at: Sequence[int] = table.schema.get_all_field_indices(name)
    if not at:
        raise no_such("column", option, name, table.column_names)
    if len(at) > 1:
        raise InvalidRequest(option, f"{len(at)} columns {name!r}", expected="one")
    return table.column(at[0])


# Samples that share a key, where those of several sources come together: refused, renamed, or one of them kept.
#
# Pure, without I/O. The samples of a dataset that is appended to are not in the entries: their keys are `taken`, and
# they always stay as they are.


_SHOWN = 3  # keys, shards or new names in a message
_APPENDED_TO = "the dataset appended to"
_TORN = "It looks like a plain tar in which the fields of a sample lie apart: unpack it, and use `create`."


@dataclass(frozen=True, slots=True)
class _Group:
    """Samples that share a key.

    Attributes:
        key: The key.
        samples: Their places, ascending.
        taken: Whether the dataset appended to has it too.
    """

    key: bytes
    samples: list[int]
    taken: bool


def resolve_duplicates(
    entries: Entries,
    rule: OnDuplicate,
    shards: Sequence[str],
    taken: Names | None = None,
    *,
    where: str = "the datasets",
) -> tuple[Entries, tuple[Skipped, ...], str]:
    """Return the samples with a key of its own for each, what is left out, and a note of new names.

    Args:
        entries: The samples.
        rule: `rename` makes of the second `a` an `a-2`, of the third an `a-3`, and so on, passing over names that any
            sample has; `first` and `last` keep one of them.
        shards: The names of the shards that they lie in, as `known_spans.file` counts them.
        taken: The keys of the dataset appended to.
        where: What the source is called.

    Raises:
        InvalidRequest: `error`, and a key that several samples have; or `last` for a dataset appended to.
    """
    if rule == "last" and taken is not None:
        problem = "last, for a dataset that is appended to"
        remedy = "Its shards are not written again: make a new dataset of both sources instead."
        raise InvalidRequest(option("on_duplicate"), problem, expected="error, rename or first", remedy=remedy)
    groups = _groups(entries.keys, taken)
    if not groups:
        return entries, (), ""
    if rule == "error":
        raise _refusal(entries, groups, shards, where)
    if rule == "rename":
        found, note = _with_new_names(entries, groups, taken)
        return found, (), note
    return *_with_one_each(entries, groups, shards, keep=0 if rule == "first" else -1), ""


def _groups(keys: Names, taken: Names | None) -> list[_Group]:
    """Return the samples that share a key with others, in the order of the first of each."""
    before = 0 if taken is None else len(taken)
    found = []
    for key, places in repeated(keys if taken is None else _joined(taken, keys)).items():
        samples = [place - before for place in places if place >= before]
        if samples:
            found.append(_Group(key, samples, taken=len(samples) < len(places)))
    return sorted(found, key=lambda group: group.samples[0])


def _joined(one: Names, two: Names) -> Names:
    return Names.parse(one.span(0, len(one)) + two.span(0, len(two)))


def _refusal(entries: Entries, groups: list[_Group], shards: Sequence[str], where: str) -> InvalidRequest:
    """Return the error that names keys, and the shards of their samples."""
    named, torn = [], True
    for group in groups[:_SHOWN]:
        files = {_file_of(entries, one): None for one in group.samples}  # of two sources, two may have one name
        torn &= len(files) == 1 and not group.taken and _are_disjoint(entries, group.samples)
        times = f"{len(group.samples)} times in " if len(files) == 1 and len(group.samples) > 1 else ""
        held = listing([shards[file] for file in files], _SHOWN) + (f", and {_APPENDED_TO}" if group.taken else "")
        named.append(f"'{printable(group.key)}' ({times}{held})")
    found = f"{counted(len(groups), 'key')} more than once: {listing(named, _SHOWN, total=len(groups))}"
    if torn:
        remedy = _TORN
    elif any(group.taken for group in groups):
        remedy = f"{option('on_duplicate', 'rename')} gives the new samples other keys, first leaves them out."
    else:
        remedy = f"{option('on_duplicate', 'rename')} gives the later ones other keys, first or last keeps one of each."
    return InvalidRequest(where, found, expected="a key of its own for each sample", remedy=remedy)


def _file_of(entries: Entries, sample: int) -> int:
    return int(entries.known_spans.file[sample])


def _are_disjoint(entries: Entries, samples: list[int]) -> bool:
    """Tell whether no two samples have a field in common, as if they were parts of one."""
    codes = entries.rows.code[entries.rows_of(np.array(samples, np.int64))]
    return len(np.unique(codes)) == len(codes)


def _with_new_names(entries: Entries, groups: list[_Group], taken: Names | None) -> tuple[Entries, str]:
    bases = {group.key for group in groups}
    known = {name for keys in (entries.keys, taken) if keys is not None for name in _numbered(keys, bases)}
    names: dict[int, bytes] = {}
    for group in groups:  # two never get one name: what stands before the last dash differs
        number = 2
        for sample in group.samples if group.taken else group.samples[1:]:
            while (name := b"%b-%d" % (group.key, number)) in known:
                number += 1
            names[sample] = name
            number += 1
    some = [f"'{printable(entries.keys[sample])}' -> '{printable(names[sample])}'" for sample in sorted(names)[:_SHOWN]]
    note = f"{counted(len(names), 'sample')} renamed: {listing(some, _SHOWN, total=len(names))}"
    return replace(entries, keys=_replaced(entries.keys, names)), note


def _numbered(keys: Names, bases: set[bytes]) -> set[bytes]:
    """Return the keys that are one of `bases`, a dash and more: those that a new name could be."""
    found: set[bytes] = set()
    for _, names in keys.chunks():
        found.update([name for name in names if name.rpartition(b"-")[0] in bases])
    return found


def _replaced(keys: Names, names: dict[int, bytes]) -> Names:
    """Return keys, some of them replaced."""
    places = np.array(sorted(names), np.int64)
    parts = []
    for first, texts in keys.chunks():
        low, high = np.searchsorted(places, (first, first + len(texts))).tolist()
        for place in places[low:high].tolist():
            texts[place - first] = names[place]
        parts += [b"\0".join(texts), b"\0"]
    return Names.parse(b"".join(parts))


def _with_one_each(
    entries: Entries, groups: list[_Group], shards: Sequence[str], *, keep: int
) -> tuple[Entries, tuple[Skipped, ...]]:
    """Return the samples without those of each group but the one at `keep`, without any that is taken; and those."""
    messages: dict[int, str] = {}
    for group in groups:
        kept = None if group.taken else group.samples[keep]
        where = _APPENDED_TO if kept is None else printable(shards[_file_of(entries, kept)])
        messages |= {one: f"another sample of that key is in {where}" for one in group.samples if one != kept}
    lost = sorted(messages)
    skipped = tuple(Skipped(to_text(entries.keys[one]), "", "duplicate", messages[one]) for one in lost)
    return entries.take(np.delete(np.arange(len(entries)), lost)), skipped
