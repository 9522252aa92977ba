"""Pack documents into blocks with a fixed number of tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardtool.dataclass import dataclass
from shardtool.errors import InvalidRequest, SampleFailed, ShardError, format_list
from shardtool.read.bundles import Bundle, each_dataset, metadata_sizes, sample_sizes
from shardtool.read.decode import read_npy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import DTypeLike, NDArray

    from shardtool.read.catalog import Numbers
    from shardtool.read.epoch_samples import EpochSamples
    from shardtool.read.options import Sample
    from shardtool.read.sample_reader import AnySampleReader, SampleReader


class TokenField(NamedTuple):
    """The field with the tokens of a document, and how samples store it.

    Attributes:
        encoding: `npy`, `bytes` for plain bytes, or `values` for a TFRecord list.
        header_start: For `npy`, the part of the header before the shape.
        header_bytes: For `npy`, the size of the whole header.
        row_bytes: Bytes per value, or per row of an array.
    """

    name: str
    encoding: Literal["npy", "bytes", "values"]
    dtype: np.dtype[np.generic]
    header_start: bytes = b""
    header_bytes: int = 0
    row_bytes: int = 1

    @classmethod
    def from_sample(
        cls, reader: SampleReader, numbers: Iterable[int], name: str, dtype: DTypeLike | None
    ) -> TokenField:
        """Read the first sample in `numbers` that is not skipped, and detect how it stores the field."""
        errors = list[ShardError]()
        for sample in map(reader.with_options(fields=None).read_one, numbers):
            if not isinstance(sample, ShardError):
                break
            errors.append(sample)
            if reader.options.on_error == "raise":
                raise sample
        else:
            raise errors[0]
        if name not in sample:
            existing = format_list([field for field in sample if field[:2] != "__"])
            raise InvalidRequest("field", f"no {name} in sample {sample['__key__']}", expected=f"one of {existing}")
        value = sample[name]
        if not isinstance(value, bytes):
            return cls(name, "values", np.asarray(value).dtype)
        if dtype is None and name.rpartition(".")[2].lower() == "npy":
            try:
                array = read_npy(value)
            except ValueError as error:
                raise SampleFailed(f"sample {sample['__key__']}, field {name}", f"not an array: {error}") from error
            header_start, header_bytes = value[: value.find(b"(") + 1], len(value) - array.nbytes
            row_bytes = max(1, array.itemsize * math.prod(array.shape[1:]))
            return cls(name, "npy", array.dtype, header_start, header_bytes, row_bytes)
        try:
            token_type = np.dtype(dtype or np.uint8)
        except TypeError:
            token_type = np.dtype(object)
        if token_type.kind not in "iuf":
            raise InvalidRequest("dtype", repr(dtype), expected="a numeric type, such as 'uint16'")
        return cls(name, "bytes", token_type, row_bytes=token_type.itemsize)

    def values(self, sample: Sample, size: int) -> NDArray[np.generic]:
        """Return the `size` values of this field. Raise SampleFailed if their number or type is not as expected."""
        payload, values = sample.get(self.name), None
        header_start = b"%b%d,)" % (self.header_start, size) if self.header_start else b""
        if not isinstance(payload, bytes):
            values = np.asarray(payload).reshape(-1)
        elif payload.startswith(header_start) and not (len(payload) - self.header_bytes) % self.dtype.itemsize:
            values = np.frombuffer(payload, self.dtype, offset=self.header_bytes)
        if values is None or len(values) != size or not np.can_cast(values.dtype, self.dtype, "same_kind"):
            problem = "values with a different number, type or shape"
            if values is not None:
                problem = f"{len(values):,} values of {values.dtype}"
            where = f"sample {sample['__key__']}, field {self.name}"
            expected = f"{size:,} values of {self.dtype}, as the field's size in bytes or its `length` column indicates"
            raise SampleFailed(where, problem, expected=expected)
        return values


def token_lengths(
    name: str | None, dtype: DTypeLike | None, column: str | None, reader: AnySampleReader, samples: EpochSamples
) -> tuple[TokenField, Numbers]:
    """Return the token field, and the number of tokens of each sample, indexed by sample number."""
    fields: dict[SampleReader, TokenField] = {}
    for dataset_reader, dataset_samples in each_dataset(reader, samples):
        names = dataset_reader.store.index(next(dataset_samples.group_by_shard())[0]).names
        if name is None and len(names) > 1:
            raise InvalidRequest("field", "not given", expected=f"the token field, one of {format_list([*names])}")
        numbers = (int(number) for _, shard_numbers in dataset_samples.group_by_shard() for number in shard_numbers)
        token_field = TokenField.from_sample(dataset_reader, numbers, name or names[0], dtype)
        fields[dataset_reader] = token_field
        if token_field.encoding == "values" and column is None:
            problem = "its size does not determine the number of values"
            remedy = "Name the column with the number of values: length='COLUMN'."
            raise InvalidRequest(f"field {token_field.name}", problem, remedy=remedy)
    types = {(field.name, field.encoding, field.dtype) for field in fields.values()}
    if len(types) > 1:
        found = f"several types: {format_list([*map(str, types)])}"
        raise InvalidRequest("field", found, expected="one type of tokens")

    def shard_lengths(dataset_reader: SampleReader, shard: int) -> Numbers:
        index, field = dataset_reader.store.index(shard), fields[dataset_reader]
        lengths = np.full(len(index), -1, np.int64)
        if field.name in index.names:
            payloads = np.flatnonzero(index.codes == index.names.index(field.name))
            rows = np.searchsorted(index.first_rows, payloads, side="right") - 1
            lengths[rows] = (index.lengths[payloads].astype(np.int64) - field.header_bytes) // field.row_bytes
        return lengths

    if column is not None:
        return token_field, metadata_sizes(column, reader, samples)
    return token_field, sample_sizes(reader, samples, shard_lengths, f"field {token_field.name}")


@dataclass(frozen=True)
class BlockMaker:
    """Makes blocks of `tokens` tokens, padded with `pad`."""

    tokens: int
    field: TokenField
    pad: int

    def __call__(self, bundle: Bundle, samples: list[Sample]) -> Sample:
        """Pack the samples of a bundle into one block. `Streamable.pack` describes the block."""
        pieces = zip(samples, bundle.sizes.tolist(), bundle.starts.tolist(), bundle.counts.tolist(), strict=True)
        parts = [self.field.values(sample, size)[start : start + count] for sample, size, start, count in pieces]
        padding = self.tokens - bundle.counts.sum()
        counts = np.append(bundle.counts, padding)
        firsts = np.repeat(np.cumsum(counts) - counts, counts)
        tokens = np.full(self.tokens, self.pad, self.field.dtype.newbyteorder("="))
        np.concatenate(parts, out=tokens[: self.tokens - padding], casting="same_kind")
        return {
            "__key__": [sample["__key__"] for sample in samples],
            "tokens": tokens,
            "positions": (np.arange(self.tokens) - firsts).astype(np.int32),
            "segments": np.repeat(np.append(np.arange(len(parts)) + 1, 0), counts).astype(np.int32),
        }
