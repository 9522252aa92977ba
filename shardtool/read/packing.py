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
        form: `npy`, plain `bytes`, or `values` for a TFRecord list.
        head: For `npy`, the part of the header before the shape.
        header: For `npy`, the size of the whole header in bytes.
        row: Bytes per value, or per row of an array.
    """

    name: str
    form: Literal["npy", "bytes", "values"]
    dtype: np.dtype[np.generic]
    head: bytes = b""
    header: int = 0
    row: int = 1

    @classmethod
    def from_sample(
        cls, reader: SampleReader, numbers: Iterable[int], name: str, dtype: DTypeLike | None
    ) -> TokenField:
        """Read the first sample in `numbers` that is not skipped, and detect how it stores the field."""
        samples, failed = map(reader.with_options(fields=None).read_one, numbers), list[ShardError]()
        while isinstance(sample := next(samples, None), ShardError) and reader.options.on_error == "skip":
            failed.append(sample)
        if sample is None or isinstance(sample, ShardError):
            raise sample or failed[0]
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
            row = max(1, array.itemsize * math.prod(array.shape[1:]))
            return cls(name, "npy", array.dtype, value[: value.find(b"(") + 1], len(value) - array.nbytes, row)
        try:
            kind = np.dtype(dtype or np.uint8)
        except TypeError:
            kind = np.dtype(object)
        if kind.kind not in "iuf":
            raise InvalidRequest("dtype", repr(dtype), expected="a numeric type, such as 'uint16'")
        return cls(name, "bytes", kind, row=kind.itemsize)

    def values(self, sample: Sample, size: int) -> NDArray[np.generic]:
        """Return the `size` values of this field. Raise SampleFailed if their number or type is not as expected."""
        value, values = sample.get(self.name), None
        head = b"%b%d,)" % (self.head, size) if self.head else b""
        if not isinstance(value, bytes):
            values = np.asarray(value).reshape(-1)
        elif value.startswith(head) and not (len(value) - self.header) % self.dtype.itemsize:
            values = np.frombuffer(value, self.dtype, offset=self.header)
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
        source = TokenField.from_sample(dataset_reader, numbers, name or names[0], dtype)
        fields[dataset_reader] = source
        if source.form == "values" and column is None:
            problem = "its size does not determine the number of values"
            remedy = "Name the column with the number of values: length='COLUMN'."
            raise InvalidRequest(f"field {source.name}", problem, remedy=remedy)
    if len(kinds := {(field.name, field.form, field.dtype) for field in fields.values()}) > 1:
        found = f"several types: {format_list([*map(str, kinds)])}"
        raise InvalidRequest("field", found, expected="one type of tokens")

    def shard_lengths(dataset_reader: SampleReader, shard: int) -> Numbers:
        index, layout = dataset_reader.store.index(shard), fields[dataset_reader]
        lengths = np.full(len(index), -1, np.int64)
        if layout.name in index.names:
            payloads = np.flatnonzero(index.codes == index.names.index(layout.name))
            rows = np.searchsorted(index.first_rows, payloads, side="right") - 1
            lengths[rows] = (index.lengths[payloads].astype(np.int64) - layout.header) // layout.row
        return lengths

    if column is not None:
        return source, metadata_sizes(column, reader, samples)
    return source, sample_sizes(reader, samples, shard_lengths, f"field {source.name}")


@dataclass(frozen=True)
class BlockMaker:
    """Makes blocks of `tokens` tokens, padded with `pad`."""

    tokens: int
    source: TokenField
    pad: int

    def __call__(self, bundle: Bundle, samples: list[Sample]) -> Sample:
        """Pack the samples of a bundle into one block. `Streamable.pack` describes the block."""
        cuts = zip(samples, bundle.sizes.tolist(), bundle.starts.tolist(), bundle.counts.tolist(), strict=True)
        parts = [self.source.values(sample, size)[first : first + count] for sample, size, first, count in cuts]
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
