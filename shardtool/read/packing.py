"""Packing: fixed-length blocks of tokens from documents of any length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardtool.errors import InvalidRequest, SampleFailed, ShardError, format_list
from shardtool.read.bundles import each_dataset, metadata_sizes, sample_sizes
from shardtool.read.decode import read_npy

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from shardtool.read.bundle_rules import Bundle
    from shardtool.read.catalog import Numbers
    from shardtool.read.epoch_samples import EpochSamples
    from shardtool.read.mixed_reader import AnySampleReader
    from shardtool.read.options import Sample
    from shardtool.read.sample_reader import SampleReader


class TokenField(NamedTuple):
    """A field that holds values, one after the other.

    Attributes:
        name: Its name.
        form: `.npy`, plain bytes, or other values, whose number no size says.
        dtype: Of a value.
        head: Of `.npy`: the bytes up to the shape, which are the same in all samples.
        header: Of `.npy`: bytes before the values.
        row: Bytes from a value of the first axis to the next.
    """

    name: str
    form: Literal["npy", "bytes", "values"]
    dtype: np.dtype[np.generic]
    head: bytes = b""
    header: int = 0
    row: int = 1

    @classmethod
    def of(cls, reader: SampleReader, number: int, name: str, dtype: DTypeLike | None) -> TokenField:
        """Return what a sample says of the field of all.

        Raises:
            InvalidRequest: It has no such field, or `dtype` is no type of numbers.
            ShardError: It is damaged.
        """
        sample = reader.selecting(None).one(number)
        if isinstance(sample, ShardError):
            raise sample
        if name not in sample:
            there = format_list([one for one in sample if one[:2] != "__"])
            raise InvalidRequest("field", f"no {name} in the sample {sample['__key__']}", expected=f"one of {there}")
        value = sample[name]
        if not isinstance(value, bytes):
            return cls(name, "values", np.asarray(value).dtype)
        if dtype is None and name.rpartition(".")[2].lower() == "npy":
            try:
                array = read_npy(value)
            except ValueError as error:
                raise SampleFailed(f"sample {sample['__key__']}, field {name}", f"no array: {error}") from error
            row = max(1, array.itemsize * math.prod(array.shape[1:]))
            return cls(name, "npy", array.dtype, value[: value.find(b"(") + 1], len(value) - array.nbytes, row)
        try:
            kind = np.dtype(dtype or np.uint8)
        except TypeError:
            kind = np.dtype(object)
        if kind.kind not in "iuf":
            raise InvalidRequest("dtype", repr(dtype), expected="a type of numbers, such as 'uint16'")
        return cls(name, "bytes", kind, row=kind.itemsize)

    def values(self, sample: Sample, size: int) -> NDArray[np.generic]:
        """Return the values of a sample: as many as were expected.

        Raises:
            SampleFailed: They are others.
        """
        value, found = sample.get(self.name), None
        head = b"%b%d,)" % (self.head, size) if self.head else b""
        if not isinstance(value, bytes):
            found = np.asarray(value).reshape(-1)
        elif value.startswith(head) and not (len(value) - self.header) % self.dtype.itemsize:
            found = np.frombuffer(value, self.dtype, offset=self.header)
        if found is None or len(found) != size or not np.can_cast(found.dtype, self.dtype, "same_kind"):
            what = "of another number, type or shape" if found is None else f"{len(found):,} of {found.dtype}"
            where = f"sample {sample['__key__']}, field {self.name}"
            raise SampleFailed(where, what, expected=f"{size:,} of {self.dtype}, as its size or its column says")
        return found


def token_lengths(
    name: str | None, dtype: DTypeLike | None, column: str | None, reader: AnySampleReader, views: EpochSamples
) -> tuple[TokenField, Numbers]:
    """Return a field of tokens, and how many of them each sample has.

    Args:
        name: Of the field; None: the only one there is.
        dtype: Of tokens that are stored as plain bytes.
        column: The metadata that says how many there are; None: the size of the field says it.
        reader: Of the samples.
        views: Which.

    Raises:
        InvalidRequest: It is not known how many there are.
    """
    fields: dict[SampleReader, TokenField] = {}
    for fetcher, view in each_dataset(reader, views):
        shard, chosen = next(view.group_by_shard())
        names = fetcher.store.index(shard).names
        if name is None and len(names) > 1:
            raise InvalidRequest("field", "not given", expected=f"the field of tokens, one of {format_list([*names])}")
        fields[fetcher] = source = TokenField.of(fetcher, int(chosen[0]), name or names[0], dtype)
        if source.form == "values" and column is None:
            what = "its size does not say how many values there are"
            raise InvalidRequest(f"field {source.name}", what, remedy="Give a column that does: length='...'.")
    if len(kinds := {(one.name, one.form, one.dtype) for one in fields.values()}) > 1:
        raise InvalidRequest("field", f"of {format_list([*map(str, kinds)])}", expected="one type of tokens")

    def of_shard(fetcher: SampleReader, shard: int) -> Numbers:
        index, layout = fetcher.store.index(shard), fields[fetcher]
        found = np.full(len(index), -1, np.int64)
        if layout.name in index.names:
            at = np.flatnonzero(index.codes == index.names.index(layout.name))
            rows = np.searchsorted(index.firsts, at, side="right") - 1
            found[rows] = (index.lengths[at].astype(np.int64) - layout.header) // layout.row
        return found

    if column is not None:
        return source, metadata_sizes(column, reader, views)
    return source, sample_sizes(reader, views, of_shard, f"field {source.name}")


@dataclass(frozen=True)
class BlockMaker:
    """Makes a block of documents.

    Attributes:
        tokens: How many it has.
        source: The field that they come from.
        pad: What stands behind the last document.
    """

    tokens: int
    source: TokenField
    pad: int

    def __call__(self, bundle: Bundle, samples: list[Sample]) -> Sample:
        """Return a block.

        Raises:
            SampleFailed: A document is not as long as was said.
        """
        cuts = zip(samples, bundle.sizes.tolist(), bundle.starts.tolist(), bundle.counts.tolist(), strict=True)
        parts = [self.source.values(one, size)[first : first + some] for one, size, first, some in cuts]
        counts = np.append(bundle.counts, self.tokens - bundle.counts.sum())
        firsts = np.repeat(np.cumsum(counts) - counts, counts)
        tokens = np.full(self.tokens, self.pad, self.source.dtype.newbyteorder("="))
        np.concatenate(parts, out=tokens[: self.tokens - counts[-1]], casting="same_kind")
        return {
            "__key__": [sample["__key__"] for sample in samples],
            "tokens": tokens,
            "positions": (np.arange(self.tokens) - firsts).astype(np.int32),
            "segments": np.repeat(np.append(np.arange(len(parts)) + 1, 0), counts).astype(np.int32),
        }
