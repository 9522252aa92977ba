"""Assign each sample to a split: by hash, with exact shares per label, or from a column.

A hash of the key (or of the group's value), the seed and the shares alone decide, so a sample keeps its split when
other samples are added or removed. With labels, each label gets exact shares instead.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.entries.strings import PackedStrings, hash_strings
from shardtool.errors import Bug, InvalidRequest, format_list, printable
from shardtool.messages import option_text
from shardtool.request.split_options import SHARE_UNIT, SplitOptions, check_split_names
from shardtool.units import pluralize
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray


_MAX_SPLITS = 1000  # each is a dataset with shards of its own


_MAX_LABELS = 2**20  # each is an object: within 100 bytes a sample where there are several samples a label


_HASH_PERSON = b"shardtool split"  # of the hashes


_NOTE_DEVIATION = 4  # a share that is off by more than this part of itself is worth a note


class SplitAssignment(NamedTuple):
    """The split of each sample.

    Attributes:
        names: The splits, as asked for; those of a column in the order of their bytes.
        number: int16[samples], the split of each.
        notes: What the user should know, such as a split without samples.
    """

    names: tuple[str, ...]
    number: NDArray[np.int16]
    notes: tuple[str, ...] = ()

    def samples(self, split: int) -> NDArray[np.int64]:
        """Return the samples of a split, in order."""
        return np.flatnonzero(self.number == split)


def assign_splits(keys: PackedStrings, options: SplitOptions, values: pa.ChunkedArray | None = None) -> SplitAssignment:
    """Return the split of each sample.

    Without labels and a split column, a sample's 64-bit hash falls between the cumulative shares: about 1 µs and
    2 bytes a sample. Labels take about 40 bytes a sample while they are sorted.

    Args:
        keys: One per sample.
        options: What is asked for.
        values: The column that `options.reads` names, one value a sample.

    Raises:
        InvalidRequest: Samples without a value, values of a nested type, split names that no file name should have,
            or far too many splits or labels.
    """
    asked = options.reads
    if asked is None:
        return _assign_by_hash((hash_strings(names, _HASH_PERSON, options.seed) for _, names in keys.chunks()), options)
    if values is None or len(values) != len(keys):
        raise Bug("divide", f"not one value of {asked[1]} for each sample")
    column = _simplify(values, *asked)
    _check_nulls(keys, column, *asked)
    if options.column is not None:
        return _assign_by_column(column, *asked)
    if options.stratify is not None:
        return _assign_by_label(keys, column, options)
    groups = _encode_chunks(column)
    return _assign_by_hash((hash_strings(texts, _HASH_PERSON, options.seed)[codes] for texts, codes in groups), options)


def _simplify(values: pa.ChunkedArray, option: str, column: str) -> pa.ChunkedArray:
    """Return the values as a simple type, without time zones, and with NaN as null."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    from shardtool.entries.arrow import to_plain
    from shardtool.entries.metadata_columns import is_number_type

    texts = types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_fixed_size_binary
    others, found = (*texts, types.is_date, types.is_timestamp, types.is_time), to_plain(values)
    if not is_number_type(found.type) and not any(one(found.type) for one in others):
        holds = f"{column} holds {values.type}"
        raise InvalidRequest(option, holds, expected="text, numbers, dates, or true and false")
    if types.is_timestamp(found.type):
        return found.cast(pa.timestamp(found.type.unit))
    if types.is_floating(found.type):
        return pc.if_else(pc.is_nan(found), pa.scalar(None, found.type), found)
    return found


def _check_nulls(keys: PackedStrings, values: pa.ChunkedArray, asked: str, column: str) -> None:
    if not values.null_count:
        return
    missing = np.flatnonzero(values.is_null().to_numpy())
    named = format_list([printable(keys[at]) for at in missing[:5].tolist()], total=len(missing))
    which = column if column.isidentifier() else f"`{column}`"
    found = f"{pluralize(len(missing), 'sample')} without a value of {column}: {named}"
    remedy = f"Give each a value, or leave them out with {option_text('where', f'{which}.notna()')}."
    raise InvalidRequest(asked, found, remedy=remedy)


def _assign_by_hash(hashes: Iterable[NDArray[np.uint64]], options: SplitOptions) -> SplitAssignment:
    """Return the splits between whose cumulative shares the hashes fall."""
    names, weights = _share_weights(options)
    ends = np.cumsum(weights).tolist()[:-1]
    bounds = np.array([end * 2**64 // SHARE_UNIT for end in ends], np.uint64)
    parts = [np.searchsorted(bounds, part, side="right").astype(np.int16) for part in hashes]
    number = np.concatenate([np.empty(0, np.int16), *parts])
    counts = np.bincount(number, minlength=len(names)).tolist()
    return SplitAssignment(names, number, (*_empty_notes(names, counts), *_deviation_notes(weights, counts, options)))


def _assign_by_column(values: pa.ChunkedArray, option: str, column: str) -> SplitAssignment:
    """Return the splits that a column says."""
    number, labels = _number_labels(values, _MAX_SPLITS, option, column)
    names = tuple(label.decode("utf-8", "surrogateescape") for label in labels)
    check_split_names(names, option)
    return SplitAssignment(names, number.astype(np.int16))


def _assign_by_label(keys: PackedStrings, values: pa.ChunkedArray, options: SplitOptions) -> SplitAssignment:
    """Return splits in which each label has its shares: of its samples in the order of their hashes, the first ones."""
    names, weights = _share_weights(options)
    column = str(options.stratify)
    label, labels = _number_labels(values, _MAX_LABELS, option_text("stratify"), column)
    counts = _apportion(np.bincount(label, minlength=len(labels)), weights)
    hashes = keys.hashes(_HASH_PERSON, options.seed)
    number = np.empty(len(keys), np.int16)
    every = np.tile(np.arange(len(names), dtype=np.int16), len(labels))
    number[np.lexsort((hashes, label))] = np.repeat(every, counts.ravel())
    notes = (*_empty_notes(names, counts.sum(axis=0).tolist()), *_small_notes(names, labels, counts, column))
    return SplitAssignment(names, number, notes)


def sample_per_class(
    keys: PackedStrings, values: pa.ChunkedArray, most: int, *, column: str, seed: int
) -> NDArray[np.int64]:
    """Return at most so many samples of each label, in order: those of the smallest hashes of their keys.

    The hash is BLAKE2b with the seed, and is not the one by which splits are chosen.

    Args:
        keys: One per sample.
        values: The column of labels, one value a sample.
        most: Of a label.
        column: What the column is called.
        seed: Another one takes others.

    Raises:
        InvalidRequest: Samples without a value, values of a nested type, or far too many labels.
    """
    found = _simplify(values, option_text("of"), column)
    _check_nulls(keys, found, option_text("of"), column)
    label, labels = _number_labels(found, _MAX_LABELS, option_text("of"), column)
    hashes = keys.hashes(b"shardtool class", seed)
    order, counts = np.lexsort((hashes, label)), np.bincount(label, minlength=len(labels))
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[rank < most])


def _share_weights(options: SplitOptions) -> tuple[tuple[str, ...], list[int]]:
    """Return the splits' names, and their shares in parts of `SHARE_UNIT`."""
    return tuple(name for name, _ in options.shares), [int(Fraction(share) * SHARE_UNIT) for _, share in options.shares]


def _apportion(sizes: NDArray[np.int64], weights: list[int]) -> NDArray[np.int64]:
    """Return int64[labels, splits]: how many samples of each label go to each split.

    Each count is the exact share, rounded down or up. What rounding up gives goes to the splits with the largest
    remainders (Hamilton's method), where those include what earlier labels owe: so tiny labels do not all go to the
    largest split, and no split's total is off by as much as two samples (1.2 at most in an adversarial search).
    """
    counts, rest = np.divmod(sizes[:, None] * np.array(weights, np.int64), SHARE_UNIT)
    owed = [0] * len(weights)
    for row, remainders in zip(counts, rest.tolist(), strict=True):
        owed = [old + new for old, new in zip(owed, remainders, strict=True)]
        takers = sorted((split for split, part in enumerate(remainders) if part), key=lambda split: -owed[split])
        for split in takers[: sum(remainders) // SHARE_UNIT]:
            row[split] += 1
            owed[split] -= SHARE_UNIT
    return counts


def _number_labels(
    values: pa.ChunkedArray, most: int, option: str, column: str
) -> tuple[NDArray[np.int32], list[bytes]]:
    """Return each sample's label as a number, and the labels, in the order of their bytes."""
    known: dict[bytes, int] = {}
    parts = [np.empty(0, np.int32)]
    for texts, codes in _encode_chunks(values):
        parts.append(np.array([known.setdefault(text, len(known)) for text in texts], np.int32)[codes])
        if len(known) > most:
            named = ", ".join(map(printable, islice(known, 3)))
            found = f"more than {most:,} different values of {column}, such as {named}"
            raise InvalidRequest(option, found, remedy="Is it the right column?")
    labels = sorted(known)
    rank = np.empty(len(known), np.int32)
    rank[[known[label] for label in labels]] = np.arange(len(known), dtype=np.int32)
    return rank[np.concatenate(parts)], labels


def _encode_chunks(values: pa.ChunkedArray) -> Iterator[tuple[list[bytes], NDArray[np.int32]]]:
    """Yield the different values of some samples as text, and which of them each sample has."""
    for chunk in values.chunks:
        for some in chunk_slices(len(chunk)):
            encoded = chunk[some].dictionary_encode()
            yield _value_texts(encoded.dictionary), encoded.indices.to_numpy()


def _value_texts(values: pa.Array) -> list[bytes]:
    """Return the values of an Arrow array as text that neither width nor unit changes: 7, 7.0 and "7" are the same."""
    from pyarrow import types

    kind = values.type
    if types.is_boolean(kind):
        return [b"true" if value else b"false" for value in values.to_pylist()]
    if types.is_floating(kind):
        return [str(int(value) if value.is_integer() else value).encode() for value in values.to_pylist()]
    if types.is_temporal(kind):  # Arrow's text, as Python's own times end at microseconds
        texts = values.cast("string").to_pylist()
        return [(text.rstrip("0").rstrip(".") if "." in text else text).encode() for text in texts]
    if types.is_string(kind) or types.is_large_string(kind):
        values = values.cast("large_binary")  # text that is no UTF-8 is a value like any other
    return [value if isinstance(value, bytes) else str(value).encode() for value in values.to_pylist()]


def _empty_notes(names: tuple[str, ...], counts: list[int]) -> Iterator[str]:
    if empty := [name for name, count in zip(names, counts, strict=True) if not count]:
        yield f"{pluralize(len(empty), 'split')} without samples: {format_list(empty)}"


def _deviation_notes(weights: list[int], counts: list[int], options: SplitOptions) -> Iterator[str]:
    """Note shares that a hash of few keys, or of groups of unequal sizes, left far from what was asked for."""
    total = sum(counts)
    far = [
        f"{name} has {count:,} of {pluralize(total, 'sample')} instead of {float(100 * share):.4g} %"
        for (name, share), weight, count in zip(options.shares, weights, counts, strict=True)
        if count and abs(count * SHARE_UNIT - total * weight) * _NOTE_DEVIATION > total * weight
    ]
    if far:
        by_hash = f"a hash decides; {option_text('stratify')} keeps shares exact"
        why = by_hash if options.group_by is None else "groups stay whole"
        yield f"{format_list(far)} ({why})"


def _small_notes(names: tuple[str, ...], labels: list[bytes], counts: NDArray[np.int64], column: str) -> Iterator[str]:
    """Note labels that are not in every split."""
    small = np.flatnonzero(counts.min(axis=1, initial=SHARE_UNIT) == 0)
    if len(small):
        named = [
            f"{printable(labels[at])} ({pluralize(int(counts[at].sum()), 'sample')}, none in "
            f"{format_list([name for name, count in zip(names, counts[at].tolist(), strict=True) if not count])})"
            for at in small[:5].tolist()
        ]
        found = f"{pluralize(len(small), 'label')} of {column} too small for every split"
        yield f"{found}: {format_list(named, total=len(small))}"
