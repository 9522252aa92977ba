"""The names of samples, their order, and those that share a key: pure, over `Entries`.

A name is a key or a field. One rule for all sources says which of them every shard gives back. What a table or a
dataset has of keys that are no paths is found where it is read (`table.columns`); a folder has none of these.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.entries.entries import Names
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.format.tar import NAME_LIMIT as HEADER_LIMIT
from shardtool.request.texts import share as read_share
from shardtool.select.fields import check_count, paths_of
from shardtool.skipped import Skipped
from shardtool.table.columns import is_text, no_such, repeated, short
from shardtool.values import (
    INLINE,
    NAME_LIMIT,
    chunks_of,
    counted,
    ends_early,
    field_problem,
    is_utf8,
    name_problem,
    source_name,
    to_bytes,
    to_text,
)
from shardtool.wording import flag, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.values import Dots, OnDuplicate


_CONTROLS = bytes([*range(1, 32), 127])
_LEAD_OF_MORE = b"\xc2"  # starts the controls beyond ASCII, and some letters
_DOTTED = re.compile(rb"\.[^/\0]*\0")  # starts with what is fast to look for
_STARTS = b"/\0."  # what stands before a last part; or, at the start of all, that part's dot itself


def has_dotted(keys: Names) -> bool:
    """Tell whether the first dot would end a key before its end. One that starts the last part is no such dot."""
    data = keys.data
    return any(
        b"." in found[0][1:] or data[max(0, found.start() - 1)] not in _STARTS for found in _DOTTED.finditer(data)
    )


def check_storable(entries: Entries, where: str, *, skip: bool = False) -> None:
    """Refuse names that a shard, a sidecar or a reader cannot hold.

    Args:
        entries: The samples.
        where: What the source is called.
        skip: Whether `--on-error skip` is a way out that this source has not taken.

    Raises:
        InvalidRequest: There are such names.
    """
    keys, fields = _unsafe_keys(entries.keys), _unsafe_fields(entries)
    bad = [entries.keys[at] for at in keys[:5]] + [to_bytes(name) for name in fields]
    if not bad:
        return
    kinds = [*dict.fromkeys(field_problem(name) for name in bad)]
    names = [short(printable(name)) for name in bad]
    also = f", or leave them out with {option('on_error', 'skip')}" if skip else ""
    total = len(keys) + len(fields)
    held = f"{counted(total, 'name')} that no shard can hold ({', '.join(kinds)})"
    found = f"{held}: {listing(names, total=total)}"
    expected = f"keys and fields in UTF-8, without control characters, of at most {NAME_LIMIT:,} bytes"
    remedy = f"Rename them, or pack them under safe names with {flag('portable')}{also}."
    raise InvalidRequest(where, found, expected=expected, remedy=remedy)


def skip_unsafe_names(entries: Entries) -> tuple[Entries, tuple[Skipped, ...]]:
    """Return the samples whose names a shard can hold, and the others, which are left out whole."""
    keys, fields = _unsafe_keys(entries.keys), _unsafe_fields(entries)
    codes = [entries.fields.index(name) for name in fields]
    rows = np.flatnonzero(np.isin(entries.rows.code, codes)) if codes else np.zeros(0, np.int64)
    owners = entries.owners(rows)
    lost = {at: (entries.path(int(entries.first[at])), entries.keys[at]) for at in keys}
    for at, row in zip(owners.tolist(), rows.tolist(), strict=True):
        lost.setdefault(at, (entries.path(row), to_bytes(entries.fields[entries.rows.code[row]])))
    if not lost:
        return entries, ()
    skipped = tuple(
        Skipped(to_text(entries.keys[at]), to_text(path), "unsafe-name", f"a name with {field_problem(name)}")
        for at, (path, name) in sorted(lost.items())
    )
    return entries.without(lost), skipped


def choose_dots(entries: Entries, asked: Dots | None, where: str) -> tuple[Dots, str]:
    """Return the dot of a tar member's name at which its key ends, such that all keys and fields come back; and a note.

    Args:
        entries: The samples.
        asked: What was asked for, or is known of the source; None: the first, and the last where only that will do.
        where: What the source is called.

    Raises:
        InvalidRequest: What was asked for tears a name, or both would.
    """
    fields = [name for name in entries.used_fields() if "." in name]
    if asked != "last" and not has_dotted(entries.keys):
        return "first", ""
    if asked == "last" and not fields:
        return "last", ""
    key = next((at for at in range(len(entries)) if ends_early(entries.keys[at])), None)
    example = "" if key is None else f", such as '{short(printable(entries.keys[key]))}'"
    last, safe = option("dots", "last"), f"or make the keys safe with {flag('portable')}"
    keys, dotted = f"keys with dots in their last part{example}", f"fields with dots: {listing([*map(repr, fields)])}"
    if fields:
        choice = {"last": f"or leave {last} out, ", None: f"choose {last} if they come from the endings of paths, "}
        found, remedy = f"{keys}, and {dotted}", f"Give these fields other names, {choice.get(asked, '')}{safe}"
        if asked == "last":
            found, remedy = dotted, f"{remedy} alone"
        expected = "names that the first dot divides, or the last"
        raise InvalidRequest(where, found, expected=expected, remedy=f"{remedy}.")
    if asked == "first":
        raise InvalidRequest(where, keys, expected="keys that end at the first dot", remedy=f"Choose {last}, {safe}.")
    return "last", f"keys have dots{example}: in members' names they end at the last dot, as with {last}"


def _unsafe_keys(keys: Names) -> list[int]:
    """Return the places of keys that no shard can hold: a chunk at a time, and only those looked at that need it."""
    found, lengths = [], keys.lengths()
    for some in chunks_of(len(keys)):
        chunk = keys.span(some.start, some.stop)
        if lengths[some].max() > NAME_LIMIT or not _is_safe(chunk):
            names = enumerate(chunk.split(b"\0")[:-1], some.start)
            found += [at for at, name in names if name_problem(name)]
    return found


def _is_safe(chunk: bytes) -> bool:
    """Tell whether keys are in UTF-8, without what may be a control character."""
    if len(chunk.translate(None, _CONTROLS)) < len(chunk):
        return False
    return chunk.isascii() or (_LEAD_OF_MORE not in chunk and is_utf8(chunk))


def _unsafe_fields(entries: Entries) -> list[str]:
    return [name for name in entries.used_fields() if field_problem(to_bytes(name))]


# Rows of a source that share a key become one sample: of several folders, and of a table with a row for each file.


class Groups(NamedTuple):
    """Which of many parts belong to one sample.

    Attributes:
        first: int64[samples], the first part of each sample.
        of_part: int64[parts], the sample that each belongs to.
    """

    first: NDArray[np.int64]
    of_part: NDArray[np.int64]


def find_groups(keys: Names, *, by_key: bool) -> Groups:
    """Return the parts that share a key; samples in the order of their keys, or of their first parts."""
    order, starts = keys.runs()
    first, sizes = order[starts], np.diff(np.append(starts, len(order)))
    place = np.arange(len(first))
    if not by_key:
        place[np.argsort(first)] = np.arange(len(first))
        first = np.sort(first)
    of_part = np.empty(len(order), np.int64)
    of_part[order] = np.repeat(place, sizes)
    return Groups(first, of_part)


def grouped(entries: Entries, groups: Groups) -> Entries:
    """Return the samples that parts make: the files of all of them, and of the first one what is no file.

    Args:
        entries: The parts, with `fields` in the order of their bytes; those of a sample have different fields.
        groups: Which parts belong together.
    """
    part = np.repeat(np.arange(len(entries)), entries.counts())
    sample, code = groups.of_part[part], entries.rows.code
    kept = np.flatnonzero((entries.rows.kind != INLINE) | (groups.first[sample] == part))
    rows = kept[np.lexsort((code[kept], sample[kept]))]
    counts = np.bincount(sample[kept], minlength=len(groups.first))
    spans = None if entries.spans is None else entries.spans.take(groups.first, rows)
    return replace(
        entries.take(groups.first),
        spans=spans,
        first=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        rows=entries.rows.take(rows),
    )


# Names that every reader of tars reads alike, in place of those that some do not: see `interop.readers`.


_UNSAFE = re.compile(rb"[^A-Za-z0-9_\-/]|^__")
_UNSAFE_IN_CHUNK = re.compile(rb"[^A-Za-z0-9_\-/\0]|(?:^|[/\0])__")
_HASH_LENGTH = 16


def make_portable(entries: Entries, *, by_key: bool = True) -> Entries:
    """Return the samples under names that every reader reads alike; `by_key`: in the order of their new keys.

    What is unsafe in a key becomes `%` and two hex digits, so that `urllib.parse.unquote_to_bytes` gives
    it back; fields are lower-cased; a key too long for the header's name field is cut and ends in a
    hash of the whole. The source's names go into the sidecar.

    Raises:
        InvalidRequest: Two fields of a sample get the same name, or a field leaves no room for keys.
    """
    fields = tuple(_portable_field(name) for name in entries.fields)
    longest = max((fields[code] for code in np.unique(entries.rows.code).tolist()), key=len, default="")
    room = HEADER_LIMIT - 1 - len(longest)
    if room < 2 * _HASH_LENGTH:
        found = f"the field {longest!r} leaves {room} of {HEADER_LIMIT} bytes for keys"
        raise InvalidRequest(option("portable"), found, expected=f"{2 * _HASH_LENGTH} at least", remedy="Rename it.")
    unique = tuple(sorted(set(fields), key=str.encode))
    new_code = np.array([unique.index(name) for name in fields], np.uint16)
    keys, known = _portable_keys(entries.keys, room), (*entries.values.classes, *entries.values.numbers)
    renamed = replace(
        entries,
        keys=keys,
        fields=unique,
        rows=replace(entries.rows, code=new_code[entries.rows.code], paths=paths_of(entries)),
        # In the order of the classes, for that is the one in which the dataset file lists them.
        values=entries.values.renamed({name: _portable_field(name) for name in (*known, *entries.fields)}),
        source_paths=True,
    )
    check_case(renamed)
    # Lower-cased, the fields of a sample may stand in another order; encoded, so may the keys.
    if np.any(np.diff(new_code.astype(np.int64)) < 0):
        by_field = np.lexsort((renamed.rows.code, np.repeat(np.arange(len(renamed)), renamed.counts())))
        renamed = renamed.take_rows(by_field)
    return renamed.take(keys.sorted_order()) if by_key and keys.data != entries.keys.data else renamed


def _portable_field(name: str) -> str:
    safe = re.sub(r"[^a-z0-9_.\-]", "_", name.lower().encode("utf-8", "replace").decode())
    return f"x{safe}" if safe.startswith("__") else safe


def _portable_keys(keys: Names, room: int) -> Names:
    """Return the portable keys: a chunk at a time, and only those looked at that need it."""
    lengths, chunks = keys.lengths(), []
    cut: set[bytes] = set()
    for some in chunks_of(len(keys)):
        chunk = keys.span(some.start, some.stop)
        if _UNSAFE_IN_CHUNK.search(chunk) or lengths[some].max() > room:
            new = [_portable_key(key, room) for key in chunk[:-1].split(b"\0")]
            twins = [key for key in new if b"~" in key]  # only these can meet: what is encoded is encoded one to one
            if len(cut) + len(twins) > len(cut.union(twins)):
                raise InvalidRequest(option("portable"), "two long keys become one", remedy="Rename one of them.")
            cut.update(twins)
            chunk = b"\0".join(new) + b"\0"
        chunks.append(chunk)
    return Names.parse(b"".join(chunks))


def _portable_key(key: bytes, room: int) -> bytes:
    safe = _UNSAFE.sub(lambda match: b"".join(b"%%%02X" % byte for byte in match[0]), key)
    safe = re.sub(rb"/__", b"/%5F%5F", safe)
    if len(safe) <= room:
        return safe
    digest = blake2b(key, digest_size=_HASH_LENGTH // 2).hexdigest().encode()
    cut = re.sub(rb"%[0-9A-F]?$", b"", safe[: room - _HASH_LENGTH - 1])
    return cut + b"~" + digest


def check_case(entries: Entries) -> None:
    """Refuse samples with two fields that differ in case only: webdataset, which lower-cases, fails on them.

    Raises:
        InvalidRequest: There are such samples.
    """
    lower = [name.lower() for name in entries.fields]
    twins: NDArray[np.int64] = np.array([lower.index(name) for name in lower], np.int64)
    if len(set(lower)) == len(lower) and not entries.source_paths:
        return
    samples = np.repeat(np.arange(len(entries)), entries.counts())
    pairs = samples * (len(lower) + 1) + (twins[entries.rows.code] if len(twins) else 0)
    values, counts = np.unique(pairs, return_counts=True)
    clash = values[counts > 1] // (len(lower) + 1)
    if len(clash):
        why = "that get the same name" if entries.source_paths else "that differ in case only"
        found = f"fields {why}: {listing([entries.key(int(at)) for at in clash[:5]], total=len(clash))}"
        twin = (pairs == values[counts > 1][0]).nonzero()[0].tolist()
        if files := [printable(path) for path in map(entries.path, twin) if path]:
            found += f", of {' and '.join(files)}"
        expected = "one field of a name in a sample, in any case"
        remedy = f"Rename or {option('exclude')} one of each."
        raise InvalidRequest(source_name(entries.root), found, expected=expected, remedy=remedy)


# Which samples of a dataset are taken, in which order, and the table that queries see.


_HASHES = 2**64
_FAR = 4  # a share that is off by more than this part of itself is worth a note


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
    last = np.uint64(math.ceil(read_share("sample", share, some=True) * _HASHES) - 1)
    return np.flatnonzero(keys.hashes() <= last)


def share_of(keys: Names, share: float | str) -> tuple[NDArray[np.int64], list[str]]:
    """Return what `sample_by_key` does; and notes, where the hashes of few keys took far more or fewer than the share.

    Raises:
        InvalidRequest: `share` is no such number, or takes no sample.
    """
    taken, total = sample_by_key(keys, share), len(keys)
    if not len(taken):
        found = f"none of {total:,} samples falls into {share}"
        raise InvalidRequest(option("sample"), found, expected="one sample or more")
    wanted = read_share("sample", share) * total
    if abs(len(taken) - wanted) * _FAR <= wanted:
        return taken, []
    found = f"{option('sample', share)} takes {len(taken):,} of {counted(total, 'sample')}"
    return taken, [f"{found}: a hash of each key decides, and few keys fall unevenly ({option('head')} takes a number)"]


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

    kind = arrow.plain(values.slice(0, 0)).type
    if pa.types.is_null(kind):
        return np.arange(len(values))
    if not _is_ordered(kind):
        found = f"column {name!r} holds {values.type}"
        raise InvalidRequest(option("sort_by"), found, expected="numbers, text, truths or times")
    values = arrow.plain(values)
    if pa.types.is_floating(kind):
        values = pc.if_else(pc.is_nan(values), pa.nulls(1, kind)[0], values)
    places = pc.sort_indices(values, sort_keys=[("", "descending" if descending else "ascending")])
    return arrow.numbers(places).astype(np.int64)


def _is_ordered(kind: pa.DataType) -> bool:
    times = pa.types.is_date, pa.types.is_time, pa.types.is_timestamp, pa.types.is_duration
    return is_text(kind) or arrow.is_number(kind) or any(test(kind) for test in times)


def table_of(entries: Entries, shards: Sequence[str]) -> pa.Table:
    """Return what can be asked of samples: their metadata and, where it has no such column, facts of our own.

    Of samples in shards these are `key`, `shard` (its name), `size` (bytes of all payloads) and `fields` (how many); of
    files `key`, `path` (of the sample's first file), `folder` (what stands before the key's last slash) and `size`
    (bytes of all its files). About 30 bytes a sample and its key, besides the metadata.

    Args:
        entries: The samples.
        shards: The names of the shards that they lie in; none: they are files.
    """
    keys, sizes, is_file = entries.keys, entries.rows.size, entries.rows.kind != INLINE
    own: dict[str, pa.Array] = {"key": arrow.unended(keys.span(0, len(keys)), pa.large_string())}
    if shards:
        file = arrow.number_array(entries.known_spans.file.astype(np.int32))
        own["shard"] = pa.DictionaryArray.from_arrays(file, arrow.texts([*map(printable, shards)]))
    else:
        sizes, files = np.where(is_file, sizes, 0), np.append(np.flatnonzero(is_file), len(is_file))
        first = files[np.searchsorted(files, entries.first[:-1])]
        paths = Names.of(path for some in chunks_of(len(first)) for path in entries.paths(first[some]))
        folders = Names.of(name.rpartition(b"/")[0] for _, some in keys.chunks() for name in some)
        own["path"] = arrow.unended(paths.data, pa.large_string())
        own["folder"] = arrow.unended(folders.data, pa.large_string())
    own["size"] = arrow.number_array(np.diff(np.append(0, np.cumsum(sizes))[entries.first]))
    if shards:
        own["fields"] = arrow.number_array(entries.counts())
    table = pa.Table.from_arrays([], names=[]) if entries.metadata is None else entries.metadata
    own = {name: values for name, values in own.items() if name not in table.column_names}
    return pa.Table.from_arrays([*table.columns, *own.values()], names=[*table.column_names, *own])


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


_FEW = 3  # keys, shards or new names in a message
_APPENDED_TO = "the dataset appended to"
_TORN = "It looks like a plain tar in which the fields of a sample lie apart: unpack it, and use `create`."


class _Group(NamedTuple):
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
    before, found = 0, []
    if taken is not None:
        before, keys = len(taken), Names.parse(taken.span(0, len(taken)) + keys.span(0, len(keys)))
    for key, places in repeated(keys).items():
        samples = [place - before for place in places if place >= before]
        if samples:
            found.append(_Group(key, samples, taken=len(samples) < len(places)))
    return sorted(found, key=lambda group: group.samples[0])


def _refusal(entries: Entries, groups: list[_Group], shards: Sequence[str], where: str) -> InvalidRequest:
    """Return the error that names keys, and the shards of their samples."""
    named, torn = [], True
    for group in groups[:_FEW]:
        files = {_file_of(entries, one): None for one in group.samples}  # of two sources, two may have one name
        torn &= len(files) == 1 and not group.taken and _are_disjoint(entries, group.samples)
        times = f"{len(group.samples)} times in " if len(files) == 1 and len(group.samples) > 1 else ""
        held = listing([shards[file] for file in files], _FEW) + (f", and {_APPENDED_TO}" if group.taken else "")
        named.append(f"'{printable(group.key)}' ({times}{held})")
    found = f"{counted(len(groups), 'key')} more than once: {listing(named, _FEW, total=len(groups))}"
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
    some = [f"'{printable(entries.keys[sample])}' -> '{printable(names[sample])}'" for sample in sorted(names)[:_FEW]]
    note = f"{counted(len(names), 'sample')} renamed: {listing(some, _FEW, total=len(names))}"
    # The new names stand behind the keys, and are taken in place of some of these.
    keys, place = entries.keys, np.arange(len(entries))
    place[[*names]] = len(keys) + np.arange(len(names))
    both = Names.parse(keys.span(0, len(keys)) + b"".join([name + b"\0" for name in names.values()]))
    return replace(entries, keys=both.take(place)), note


def _numbered(keys: Names, bases: set[bytes]) -> set[bytes]:
    """Return the keys that are one of `bases`, a dash and more: those that a new name could be."""
    return {name for _, names in keys.chunks() for name in names if name.rpartition(b"-")[0] in bases}


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
    return entries.without(lost), skipped


# Keys by a pattern: files whose names differ by more than their endings are one sample, `a.png` and `a_mask.png`.
#
# The pattern is matched against the whole path of a file without its ending, as it counts from its source. Its first
# group that took part is the key. What is left over of the file's name, without separators at its ends, stands before
# the ending in the field's name: `mask.png`. A path that does not match is a key as it is.
#
# RE2 matches, in time that grows with the length of a name alone, whatever the pattern: the one of a run comes from a
# dataset file when its source is compared, and that may be anyone's.


_GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\(\?P?<\w+>|\((?!\?)", re.DOTALL)
_SEPARATORS = b"_-. "
_NAME = re.compile(rb"(?:^|/)(?:\.{0,2})(?:/|$)")  # a part of a key that is empty, `.` or `..`
_PAIRS = 3  # of files in a message


class KeyPattern:
    """A pattern of keys.

    Attributes:
        matched: How many names it has matched.

    Raises:
        InvalidRequest: It is no regular expression, or has no group.
    """

    def __init__(self, text: str) -> None:
        import pyarrow.compute as pc  # here, as below, for it takes 40 ms

        self.matched, self._where = 0, option("key_pattern", text)
        if not hasattr(pc, "extract_regex_span"):
            found = f"pyarrow {pa.__version__}"
            raise InvalidRequest(option("key_pattern"), found, expected="21 or newer", remedy="pip install -U pyarrow")
        groups = 0

        def named(found: re.Match[str]) -> str:
            nonlocal groups
            if found[0][0] != "(":
                return found[0]
            groups += 1
            return f"(?P<g{groups}>"

        self._pattern = rf"(?s)\A(?:{_GROUP.sub(named, text)})\z"
        try:
            pc.extract_regex_span(pa.array([b""], pa.large_binary()), self._pattern)
        except (pa.ArrowInvalid, UnicodeError) as error:
            found = str(error).rpartition("xpression: ")[2].partition(": (?s)")[0]
            found = "no UTF-8" if isinstance(error, UnicodeError) else found
            expected = "a regular expression of RE2, which has no look-ahead and no back-references"
            raise InvalidRequest(self._where, found if groups else "no group", expected=expected) from None
        if not groups:
            raise InvalidRequest(self._where, "no group", expected="one, which is the key: (.+)_mask")

    def split(self, names: Names) -> tuple[Names, list[bytes], list[int]]:
        """Return the key of each path without its ending, and what is left over of the file's name.

        Returns:
            The keys; what is left over, each once; and for each path which of these.

        Raises:
            InvalidRequest: A key is no path of a file.
        """
        import pyarrow.compute as pc

        keys, which, known = bytearray(), list[int](), {b"": 0}
        tidy = cache(lambda *parts: b"_".join(filter(None, (part.strip(_SEPARATORS) for part in parts))))
        for _, some in names.chunks():
            spans = pc.extract_regex_span(pa.array(some, pa.large_binary()), self._pattern)
            found = pc.coalesce(*spans.flatten())
            self.matched += len(found) - found.null_count
            starts, lengths = arrow.numbers(pc.fill_null(found.values, 0)).reshape(-1, 2).T.tolist()
            is_match = pc.is_valid(found).to_pylist()
            for name, matches, start, length in zip(some, is_match, starts, lengths, strict=True):
                if not matches:
                    keys += name + b"\0"
                    which.append(0)
                    continue
                end, top = start + length, name.rfind(b"/") + 1
                key = name[start:end]
                which.append(known.setdefault(tidy(name[top:start], name[max(top, end) :]), len(known)))
                if _NAME.search(key):
                    found_key = f"the key '{printable(key)}' of '{printable(name)}'"
                    raise InvalidRequest(self._where, found_key, expected="a group that is a path: cat/1")
                keys += key + b"\0"
        return Names.parse(bytes(keys)), [*known], which

    def check_matched(self, keys: Names) -> None:
        """Refuse a pattern that has matched none of some names.

        Raises:
            InvalidRequest: It has matched none.
        """
        if not self.matched and len(keys):
            expected = f"a pattern of whole paths without their endings, such as '{printable(keys[0])}'"
            raise InvalidRequest(self._where, "no file matches", expected=expected)


def with_keys(entries: Entries, pattern: KeyPattern) -> Entries:
    """Return samples of files with the keys that a pattern gives them; those that share one are one.

    Raises:
        InvalidRequest: Two files would be one field of a sample, or a key is no path.
    """
    keys, left, which = pattern.split(entries.keys)
    ended = len(entries.fields)
    both = np.repeat(np.array(which, np.int64), entries.counts()) * ended + entries.rows.code
    used, place = np.unique(both, return_inverse=True)
    parts = ((left[one // ended], to_bytes(entries.fields[one % ended])) for one in used.tolist())
    names = [b".".join(filter(None, both)) for both in parts]
    fields = sorted({*names})
    check_count(option("key_pattern"), fields)
    code_of = {name: at for at, name in enumerate(fields)}
    codes = np.array([code_of[name] for name in names], np.uint16)[place]
    renamed = replace(
        entries,
        keys=keys,
        fields=tuple(map(to_text, fields)),
        rows=replace(entries.rows, code=codes, paths=paths_of(entries)),
    )
    made = grouped(renamed, find_groups(keys, by_key=True))
    owners, code = np.repeat(np.arange(len(made)), made.counts()), made.rows.code
    twice = np.flatnonzero((owners[1:] == owners[:-1]) & (code[1:] == code[:-1]))
    if len(twice):
        shown = [
            f"{printable(made.path(at))} and {printable(made.path(at + 1))} ({made.fields[code[at]]})"
            for at in twice[:_PAIRS].tolist()
        ]
        problem = f"{counted(len(twice), 'pair')} of files that would be one field of a sample: {listing(shown)}"
        expected = "a pattern that leaves something over to tell them apart, as (.+)_mask leaves mask"
        raise InvalidRequest(option("key_pattern"), problem, expected=expected)
    return made
