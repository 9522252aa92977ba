"""Assign samples to splits, or select a share of the samples.

`SplitOptions` chooses one of these methods:

- by the hash of each key
- by the hash of a column value, so samples with the same value (a group) are in the same split
- by the hash of each key, but with exact shares for each label
- by a column with split names

A hash depends only on the key or group, and on the seed.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.entries.strings import PackedStrings, hash_strings
from shardtool.errors import Bug, InvalidRequest, format_list, printable
from shardtool.messages import option_text
from shardtool.request.option_values import parse_share
from shardtool.request.split_options import SHARE_UNIT, SplitOptions, check_split_names
from shardtool.units import pluralize
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray


_MAX_SPLITS = 1000
_MAX_LABELS = 2**20  # limits memory, because each label takes about 100 bytes
_HASH_PERSON = b"shardtool split"
_NOTE_DEVIATION = 4


class SplitAssignment(NamedTuple):
    """The split of each sample.

    Attributes:
        names: The splits in the requested order, or sorted if they are values of a column.
        number: int16[samples], the index in `names` of each sample's split.
    """

    names: tuple[str, ...]
    number: NDArray[np.int16]
    notes: tuple[str, ...] = ()

    def samples(self, split: int) -> NDArray[np.int64]:
        """Return the ascending indexes of the samples in a split."""
        return np.flatnonzero(self.number == split)


def assign_splits(keys: PackedStrings, options: SplitOptions, values: pa.ChunkedArray | None = None) -> SplitAssignment:
    """Assign each sample to a split. `values` is the metadata column of `options.option_and_column`."""
    option_and_column = options.option_and_column
    if option_and_column is None:
        return _assign_by_hash((hash_strings(names, _HASH_PERSON, options.seed) for _, names in keys.chunks()), options)
    if values is None or len(values) != len(keys):
        raise Bug("divide", f"there is not one value of {option_and_column[1]} for each sample")
    column = _simplify(values, *option_and_column)
    _check_nulls(keys, column, *option_and_column)
    if options.column is not None:
        return _assign_by_column(column, *option_and_column)
    if options.stratify is not None:
        return _assign_by_label(keys, column, options)
    groups = _encode_chunks(column)
    return _assign_by_hash((hash_strings(texts, _HASH_PERSON, options.seed)[codes] for texts, codes in groups), options)


def _simplify(values: pa.ChunkedArray, option: str, column: str) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    from shardtool.entries.arrow import to_plain
    from shardtool.entries.metadata_columns import is_number_type

    is_text = types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_fixed_size_binary
    type_tests = (*is_text, types.is_date, types.is_timestamp, types.is_time)
    column_values = to_plain(values)
    if not is_number_type(column_values.type) and not any(is_type(column_values.type) for is_type in type_tests):
        holds = f"{column} holds {values.type}"
        raise InvalidRequest(option, holds, expected="text, numbers, dates or booleans")
    if types.is_timestamp(column_values.type):
        return column_values.cast(pa.timestamp(column_values.type.unit))
    if types.is_floating(column_values.type):
        return pc.if_else(pc.is_nan(column_values), pa.scalar(None, column_values.type), column_values)
    return column_values


def _check_nulls(keys: PackedStrings, values: pa.ChunkedArray, option: str, column: str) -> None:
    if not values.null_count:
        return
    from shardtool.entries.arrow import true_positions

    missing = true_positions(values.is_null())
    named = format_list([printable(keys[sample]) for sample in missing[:5].tolist()], total=len(missing))
    quoted = column if column.isidentifier() else f"`{column}`"
    found = f"{pluralize(len(missing), 'sample')} without a value of {column}: {named}"
    remedy = f"Give each a value, or exclude them with {option_text('where', f'{quoted}.notna()')}."
    raise InvalidRequest(option, found, remedy=remedy)


def _assign_by_hash(hashes: Iterable[NDArray[np.uint64]], options: SplitOptions) -> SplitAssignment:
    names, weights = _share_weights(options)
    ends = np.cumsum(weights).tolist()[:-1]
    bounds = np.array([end * 2**64 // SHARE_UNIT for end in ends], np.uint64)
    split_parts = [np.searchsorted(bounds, hash_part, side="right").astype(np.int16) for hash_part in hashes]
    number = np.concatenate([np.empty(0, np.int16), *split_parts])
    counts = np.bincount(number, minlength=len(names)).tolist()
    return SplitAssignment(names, number, (*_empty_notes(names, counts), *_deviation_notes(weights, counts, options)))


def _assign_by_column(values: pa.ChunkedArray, option: str, column: str) -> SplitAssignment:
    number, labels = _number_labels(values, _MAX_SPLITS, option, column)
    names = tuple(label.decode("utf-8", "surrogateescape") for label in labels)
    check_split_names(names, option)
    return SplitAssignment(names, number.astype(np.int16))


def _assign_by_label(keys: PackedStrings, values: pa.ChunkedArray, options: SplitOptions) -> SplitAssignment:
    names, weights = _share_weights(options)
    column = str(options.stratify)
    label_numbers, labels = _number_labels(values, _MAX_LABELS, option_text("stratify"), column)
    counts = _apportion(np.bincount(label_numbers, minlength=len(labels)), weights)
    hashes = keys.hashes(_HASH_PERSON, options.seed)
    number = np.empty(len(keys), np.int16)
    # Sort the samples of each label by hash. The first split gets the first samples, the second split the next ones.
    splits = np.tile(np.arange(len(names), dtype=np.int16), len(labels))
    number[np.lexsort((hashes, label_numbers))] = np.repeat(splits, counts.ravel())
    notes = (*_empty_notes(names, counts.sum(axis=0).tolist()), *_small_notes(names, labels, counts, column))
    return SplitAssignment(names, number, notes)


def sample_per_class(
    keys: PackedStrings, values: pa.ChunkedArray, max_count: int, *, column: str, seed: int
) -> NDArray[np.int64]:
    """For each label, select the `max_count` samples whose keys have the smallest hashes. Return sorted indexes."""
    labels_column = _simplify(values, option_text("of"), column)
    _check_nulls(keys, labels_column, option_text("of"), column)
    label_numbers, labels = _number_labels(labels_column, _MAX_LABELS, option_text("of"), column)
    hashes = keys.hashes(b"shardtool class", seed)
    order = np.lexsort((hashes, label_numbers))
    counts = np.bincount(label_numbers, minlength=len(labels))
    rank_in_label = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[rank_in_label < max_count])


def _share_weights(options: SplitOptions) -> tuple[tuple[str, ...], list[int]]:
    return tuple(name for name, _ in options.shares), [int(Fraction(share) * SHARE_UNIT) for _, share in options.shares]


def _apportion(sizes: NDArray[np.int64], weights: list[int]) -> NDArray[np.int64]:
    """Return the number of samples of each label in each split, as int64[labels, splits].

    The numbers for a label are rounded down. Its remaining samples go to the splits that lost most by rounding, summed
    over this label and all earlier labels. Otherwise, the largest split would get all samples of rare labels.
    """
    counts, remainder_rows = np.divmod(sizes[:, None] * np.array(weights, np.int64), SHARE_UNIT)
    owed = [0] * len(weights)
    for row, remainders in zip(counts, remainder_rows.tolist(), strict=True):
        owed = [old + new for old, new in zip(owed, remainders, strict=True)]
        rounded = [split for split, remainder in enumerate(remainders) if remainder]
        by_debt = sorted(rounded, key=lambda split: -owed[split])
        for split in by_debt[: sum(remainders) // SHARE_UNIT]:
            row[split] += 1
            owed[split] -= SHARE_UNIT
    return counts


def _number_labels(
    values: pa.ChunkedArray, max_labels: int, option: str, column: str
) -> tuple[NDArray[np.int32], list[bytes]]:
    """Return the label number of each value, and the sorted labels."""
    number_of: dict[bytes, int] = {}
    parts = [np.empty(0, np.int32)]
    for texts, codes in _encode_chunks(values):
        parts.append(np.array([number_of.setdefault(text, len(number_of)) for text in texts], np.int32)[codes])
        if len(number_of) > max_labels:
            named = ", ".join(map(printable, islice(number_of, 3)))
            found = f"more than {max_labels:,} different values of {column}, such as {named}"
            raise InvalidRequest(option, found, remedy="Check that this is the right column.")
    labels = sorted(number_of)
    sorted_number = np.empty(len(number_of), np.int32)
    sorted_number[[number_of[label] for label in labels]] = np.arange(len(number_of), dtype=np.int32)
    return sorted_number[np.concatenate(parts)], labels


def _encode_chunks(values: pa.ChunkedArray) -> Iterator[tuple[list[bytes], NDArray[np.int32]]]:
    from shardtool.entries.arrow import number_values

    for chunk in values.chunks:
        for span in chunk_slices(len(chunk)):
            encoded = chunk[span].dictionary_encode()
            yield _value_texts(encoded.dictionary), number_values(encoded.indices)


def _value_texts(values: pa.Array) -> list[bytes]:
    # Equal values of different types must have the same text, for example 7, 7.0 and "7".
    from pyarrow import types

    kind = values.type
    if types.is_boolean(kind):
        return [b"true" if value else b"false" for value in values.to_pylist()]
    if types.is_floating(kind):
        return [str(int(value) if value.is_integer() else value).encode() for value in values.to_pylist()]
    if types.is_temporal(kind):  # Arrow converts the times, because Python times have only microseconds
        texts = values.cast("string").to_pylist()
        return [(text.rstrip("0").rstrip(".") if "." in text else text).encode() for text in texts]
    if types.is_string(kind) or types.is_large_string(kind):
        values = values.cast("large_binary")  # this cast accepts text that is not valid UTF-8
    return [value if isinstance(value, bytes) else str(value).encode() for value in values.to_pylist()]


def _empty_notes(names: tuple[str, ...], counts: list[int]) -> Iterator[str]:
    if empty := [name for name, count in zip(names, counts, strict=True) if not count]:
        yield f"{pluralize(len(empty), 'split')} without samples: {format_list(empty)}"


def _deviation_notes(weights: list[int], counts: list[int], options: SplitOptions) -> Iterator[str]:
    total = sum(counts)
    deviations = [
        f"{name} has {count:,} of {pluralize(total, 'sample')} instead of {float(100 * share):.4g} %"
        for (name, share), weight, count in zip(options.shares, weights, counts, strict=True)
        if count and abs(count * SHARE_UNIT - total * weight) * _NOTE_DEVIATION > total * weight
    ]
    if deviations:
        by_hash = f"samples are split by hash; use {option_text('stratify')} for exact shares"
        why = by_hash if options.group_by is None else "each group stays in one split"
        yield f"{format_list(deviations)} ({why})"


def _small_notes(names: tuple[str, ...], labels: list[bytes], counts: NDArray[np.int64], column: str) -> Iterator[str]:
    small = np.flatnonzero(counts.min(axis=1, initial=SHARE_UNIT) == 0)
    if len(small):
        named = [
            f"{printable(labels[label])} ({pluralize(int(counts[label].sum()), 'sample')}, none in "
            f"{format_list([name for name, count in zip(names, counts[label].tolist(), strict=True) if not count])})"
            for label in small[:5].tolist()
        ]
        found = f"{pluralize(len(small), 'label')} of {column} too small for every split"
        yield f"{found}: {format_list(named, total=len(small))}"


def sample_by_key(keys: PackedStrings, share: float | str) -> NDArray[np.int64]:
    """Select the samples whose key hash (see `hash_strings`) is below share * 2^64. Return their sorted indexes.

    A larger share includes all samples of a smaller share. `share` is a number above 0 and at most 1, or a string such
    as `0.01` or `1%`.
    """
    last = np.uint64(math.ceil(parse_share("sample", share, positive=True) * 2**64) - 1)
    return np.flatnonzero(keys.hashes() <= last)


def sample_with_notes(keys: PackedStrings, share: float | str) -> tuple[NDArray[np.int64], list[str]]:
    """Return the samples of `sample_by_key`, and a note if the selected share is far from `share`.

    Raise an error if no sample is selected.
    """
    selected, total = sample_by_key(keys, share), len(keys)
    if not len(selected):
        found = f"{share} selects none of {total:,} samples"
        raise InvalidRequest(option_text("sample"), found, expected="at least one sample")
    target = parse_share("sample", share) * total
    if abs(len(selected) - target) * _NOTE_DEVIATION <= target:
        return selected, []
    found = f"{option_text('sample', share)} selects {len(selected):,} of {pluralize(total, 'sample')}"
    why = f"samples are selected by hash, which is uneven for few keys ({option_text('head')} selects a number)"
    return selected, [f"{found}: {why}"]
