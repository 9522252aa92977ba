"""Make streams, batches and packed blocks from a dataset or mix."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from shardtool.errors import InvalidRequest, ShardError
from shardtool.read import bundles, epoch_samples, packing
from shardtool.read.collate import Batch, ListFields
from shardtool.read.order import Ends, OrderOptions, Share, Shuffle, rank_and_world_size
from shardtool.read.pipeline import OnMissing, Pipeline, SampleT, with_dataloader_hints
from shardtool.read.stream import SampleSource, Stream
from shardtool.request.option_checks import check_choice, check_minimum
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import DTypeLike
    from typing_extensions import Unpack

    from shardtool.read.bundles import StreamReader, StreamSamples
    from shardtool.read.decode import Decoder
    from shardtool.read.epoch_samples import EpochSamples
    from shardtool.read.pipeline import AnyTuple, DecodeOptions, NewT
    from shardtool.read.sample_reader import AnySampleReader
    from shardtool.values import OnError

    _ReaderAndSamples = tuple[AnySampleReader, EpochSamples]


class Streamable(SampleSource[SampleT]):
    """Base class of datasets and mixes."""

    if TYPE_CHECKING:  # declare narrower result types

        def decode(
            self, own: Mapping[str, Decoder] | None = None, **options: Unpack[DecodeOptions]
        ) -> Streamable[dict[str, Any]]: ...
        def map(self, function: Callable[..., NewT | None]) -> Streamable[NewT]: ...
        def tuple(self, *fields: str, missing: OnMissing = "raise") -> Streamable[AnyTuple]: ...

    def __init__(self, reader: StreamReader, source: StreamSamples) -> None:
        self.reader, self.source = reader, source

    def __len__(self) -> int:
        """Return the number of samples or batches in an epoch, over all ranks."""
        return self.stages.count(self.source.length)

    def __iter__(self) -> Iterator[SampleT]:
        if not self.source.length:
            return iter(())
        in_order = self.stream(shuffle=False, rank=0, world_size=1, ends="uneven")
        in_order.skipped.has_warned = True  # do not warn: many loops over a dataset filter samples
        return iter(in_order)

    def count_dropped(self, error: ShardError) -> None:
        """Count a sample that a stage dropped from a list of samples. By default, do nothing."""

    @property
    def fingerprint(self) -> str:
        """A hash that changes if the samples, the order of samples or the weights of a mix change."""
        return self.source.fingerprint

    @with_dataloader_hints
    def stream(  # noqa: PLR0913 - public API
        self, *, shuffle: Shuffle = True, seed: int = 0, epoch: int = 0, rank: int | None = None,
        world_size: int | None = None, buffer: int | None = None, parts: int | None = None, ends: Ends | None = None,
        groups: int | None = None, on_error: OnError | None = None,
    ) -> Stream[SampleT]:  # fmt: skip
        """Return a stream of the samples.

        The order depends on the data, `shuffle`, `seed`, `epoch`, `parts` and `buffer`. Without `parts`, a shuffled
        order can also depend on the number of ranks and on whether shards are cached.

        Args:
            shuffle: Whether to shuffle shards and samples. `"full"` shuffles all samples globally.
            seed: Seed of the shuffle, combined with the epoch.
            epoch: First epoch, counted from 0.
            rank: Rank of this process. The default is RANK in the environment, or 0.
            world_size: Number of ranks. The default is WORLD_SIZE in the environment, or 1.
            buffer: Samples in the shuffle buffers of all ranks together. By default, the buffers hold at most about
                64 MB per rank.
            parts: Number of parts of the dataset that are read in parallel. The default is 128 per rank, or fewer with
                a cache, `pack` or `batch(by=...)`.
            ends: What to do if the number of samples is not a multiple of the number of ranks: `drop` the last samples,
                `pad` with the first samples (marked with `__padding__`), or give ranks `uneven` numbers of samples. The
                default is `drop` with a shuffle. Without a shuffle, the default is `uneven` for one rank, and `pad` for
                several ranks. For skipped samples, see `Stream`.
            groups: Number of groups of adjacent ranks. All ranks of a group get the same samples, for tensor and
                sequence parallelism.
            on_error: `raise` or `skip`, as in `open`. The default is the value passed to `open`.

        Raises:
            InvalidRequest: The dataset is empty, an argument is invalid, or `drop` would drop all samples.

        Example:
            >>> stream = shardtool.open("out.json").decode().stream(shuffle=True, seed=0)
            >>> for sample in stream:  # each iteration is one epoch
            ...     train(sample["jpg"], sample["cls"])
        """
        rank, ranks = rank_and_world_size(rank, world_size)
        default_ends: Ends = "drop" if shuffle else "uneven" if ranks == 1 else "pad"
        share = Share(rank, ranks, ends or default_ends).in_groups(groups)
        dataset = self.with_on_error(on_error)
        reader = dataset.reader
        parts_window_ranks = epoch_samples.choose_parts(
            self.source, reader.mean_size, share.world_size, buffer, parts, copies=reader.copies
        )
        options = OrderOptions(shuffle, seed, epoch, *parts_window_ranks)
        length = self.source.length_in(options)
        if not length:
            raise InvalidRequest("the dataset", "no samples")
        if not share.end(length):
            found = f"{pluralize(length, 'sample')} for {share.world_size:,} ranks, with ends='drop'"
            raise InvalidRequest("world_size", found, remedy="Use ends='pad' or ends='uneven'.")
        stream = Stream[SampleT](reader, self.source, options, share)
        return stream.with_stages(dataset.stages)

    def pack(
        self, tokens: int, field: str | None = None, *, by: bundles.PackingRule = "first-fit",
        dtype: DTypeLike | None = None, length: str | None = None, pad: int = 0,
    ) -> BundledDataset[dict[str, Any]]:  # fmt: skip
        """Pack documents into blocks of equal length.

        Each block is a dict with these values:

        - `tokens`: The tokens, [tokens].
        - `positions`: The position of each token, int32 [tokens]. Positions start at 0 in each document. If a
          document is split, they start at 0 in each piece.
        - `segments`: The number of each token's document, int32 [tokens]. The first document is 1, and padding is 0.
        - `__key__`: The keys of the documents.

        The lengths of documents are read from the sidecars; see `docs/training.md`.

        Args:
            tokens: Tokens per block.
            field: Name of the field with the tokens: a one-dimensional `.npy`, plain bytes, or a TFRecord list.
                Required if samples have several fields.
            by: `first-fit` splits only documents longer than a block. `concat` concatenates documents, and cuts the
                result into blocks.
            dtype: Type of tokens stored as plain bytes, such as `uint16`.
            length: Metadata column with the number of tokens of each document. By default, the size of the field
                determines the number.
            pad: Token that fills the rest of a block.

        Raises:
            InvalidRequest: The lengths of documents are unknown, or the dataset already has stages.
        """
        check_minimum("tokens", tokens)
        check_choice("by", by, bundles.PackingRule)
        if self.stages.stages:
            expected = "stored documents: call pack first, then map or fields on its blocks"
            raise InvalidRequest("pack", "called after other stages", expected=expected)
        reader, samples = self._require_single_samples()
        token_field, sizes = packing.token_lengths(field, dtype, length, reader, samples)
        if token_field.encoding == "bytes" and dtype is None:
            found = f"not given, but the field {token_field.name} holds plain bytes"
            expected = "the type of its tokens, such as 'uint16', or 'uint8' for the bytes of a text"
            remedy = "To store the type, write tokens to a field that ends in npy."
            raise InvalidRequest("dtype", found, expected=expected, remedy=remedy)
        if np.array(pad).astype(token_field.dtype) != pad:
            raise InvalidRequest("pad", repr(pad), expected=f"a token of {token_field.dtype}")
        rule = bundles.fitted if by == "first-fit" else bundles.concatenated
        reader = reader.with_fields(frozenset({token_field.name}))
        make = packing.BlockMaker(tokens, token_field, pad)
        name, dtype_text = token_field.name, token_field.dtype.str
        return BundledDataset(bundles.BundleReader(reader, samples, sizes, rule, tokens, make, name, dtype_text, pad))

    @overload  # type: ignore[override] # accepts more than a stream's
    def batch(self, size: int, *, drop_last: bool = False, lists: ListFields = ()) -> Streamable[Any]: ...
    @overload
    def batch(
        self, size: int | None = None, *, by: Literal["length", "aspect"], tokens: int | None = None,
        field: str | None = None, dtype: DTypeLike | None = None, length: str | None = None,
        aspects: Sequence[float] = bundles.DEFAULT_ASPECT_RATIOS, lists: ListFields = (),
    ) -> BundledDataset[Any]: ...  # fmt: skip

    @with_dataloader_hints
    def batch(  # noqa: PLR0913 - public API
        self, size: int | None = None, *, drop_last: bool = False, by: Literal["length", "aspect"] | None = None,
        tokens: int | None = None, field: str | None = None, dtype: DTypeLike | None = None,
        length: str | None = None, aspects: Sequence[float] = bundles.DEFAULT_ASPECT_RATIOS, lists: ListFields = (),
    ) -> Any:  # fmt: skip
        """Make batches of `size` samples. With `by`, a batch contains samples of similar length or aspect ratio.

        Args:
            size: Samples per batch.
            drop_last: Skip the last batch if it is smaller. Not allowed with `by`.
            by: `length` groups samples of similar length. `aspect` groups images of similar aspect ratio, using the
                columns `width` and `height`, and adds the ratio as `__aspect__`.
            tokens: With `by="length"`, maximum number of tokens in a batch, including padding to the longest sample.
            field: Field that determines the length of a sample. For a `.npy`, the length is the first dimension. For
                other fields, it is the number of values of `dtype`, or of bytes if `dtype` is not given.
            dtype: Type of values stored as plain bytes.
            length: Metadata column with the length of each sample, instead of `field`.
            aspects: Ratios of width to height. Each image gets the nearest ratio.
            lists: Fields whose values always become a list.

        Raises:
            InvalidRequest: Sample lengths or image sizes are unknown, or a sample is longer than `tokens`.
        """
        if by is None:
            others = {"tokens": tokens, "field": field, "dtype": dtype, "length": length}
            given_options = {name: value for name, value in others.items() if value is not None}
            return super().batch(size, drop_last=drop_last, lists=lists, **given_options)
        check_choice("by", by, Literal["length", "aspect"])
        option, limit = ("tokens", tokens) if by == "length" else ("size", size)
        other_options = (size,) if by == "length" else (tokens, field, dtype, length)
        if drop_last or any(value is not None for value in other_options):
            raise InvalidRequest("batch", f"by={by!r} with other options", expected=f"only {option}, without drop_last")
        check_minimum(option, limit)
        reader, samples = self._require_single_samples()
        if by == "length":
            if length is not None and field is None:
                sizes = bundles.metadata_sizes(length, reader, samples)
            else:
                _, sizes = packing.token_lengths(field, dtype, length, reader, samples)
            if (longest := int(sizes.max())) > cast("int", tokens):
                remedy = f"Use tokens={longest}, or choose shorter samples with where(...) or select(...)."
                raise InvalidRequest("tokens", f"{tokens}, but the longest sample has {longest}", remedy=remedy)
            ratios = []
        else:
            ratios = sorted(aspects)
            sizes = bundles.nearest_aspect_ratios(ratios, reader, samples)
        rule = bundles.of_one_kind if ratios else bundles.of_like_length
        make = partial(bundles.make_size_batch, ratios)
        bundle_reader = bundles.BundleReader(reader, samples, sizes, rule, cast("int", limit), make, *ratios)
        return BundledDataset(bundle_reader).with_stages(Pipeline((bundles.SizeBatches(self.stages, lists),)))

    def _require_single_samples(self) -> _ReaderAndSamples:
        batched = any(isinstance(stage, Batch) for stage in self.stages.stages)
        if batched or isinstance(self.reader, bundles.BundleReader):
            raise InvalidRequest("the dataset", "already packed or batched", expected="single samples")
        if not self.source.length:
            raise InvalidRequest("the dataset", "no samples")
        return self.reader, cast("EpochSamples", self.source)


class BundledDataset(Streamable[SampleT]):
    """A dataset of packed blocks or batches, as returned by `pack` and `batch(by=...)`."""

    def __init__(self, bundle_reader: bundles.BundleReader) -> None:
        super().__init__(bundle_reader, bundle_reader)

    def __repr__(self) -> str:
        return f"<Bundled: {pluralize(self.source.length, 'bundle')} an epoch{self.stages}>"
