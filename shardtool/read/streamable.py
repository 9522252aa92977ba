"""Base class of what can be read as a stream: datasets, mixes, packed blocks and batches by size."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.read import bucketing, bundle_rules, bundles, epoch_samples, packing
from shardtool.read import share as read_share
from shardtool.read.collate import Batch, ListFields
from shardtool.read.order import OrderOptions
from shardtool.read.pipeline import Pipeline
from shardtool.read.pipeline_methods import with_dataloader_hints
from shardtool.read.share import Share
from shardtool.read.stream import ReadsSamples, Stream
from shardtool.request.option_checks import check_choice, check_minimum
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import DTypeLike
    from typing_extensions import Self

    from shardtool.read.bundles import StreamReader, StreamSamples
    from shardtool.read.epoch_samples import EpochSamples
    from shardtool.read.mixed_reader import AnySampleReader
    from shardtool.read.order import Shuffle
    from shardtool.read.share import Ends


class Streamable(ReadsSamples):
    """Samples that can be read as a stream, with what is done to them."""

    def __init__(self, fetcher: StreamReader, source: StreamSamples) -> None:
        self.fetcher, self.source = fetcher, source

    def __len__(self) -> int:
        """Return how many samples, or batches, an epoch has, of all ranks together."""
        return self.stages.count(self.source.length)

    def __iter__(self) -> Iterator[Any]:
        if not self.source.length:
            return iter(())
        in_order = self.stream(shuffle=False, rank=0, world_size=1, ends="uneven")
        in_order.skipped.has_warned = True  # such a loop is how to choose samples with a filter
        return iter(in_order)

    @property
    def fingerprint(self) -> str:
        """What is equal for equal samples in an equal order, or mix."""
        return self.source.fingerprint

    @with_dataloader_hints
    def stream(  # noqa: PLR0913 - its public options
        self, *, shuffle: Shuffle = True, seed: int = 0, epoch: int = 0, rank: int | None = None,
        world_size: int | None = None, buffer: int | None = None, parts: int | None = None, ends: Ends | None = None,
        groups: int | None = None,
    ) -> Stream:  # fmt: skip
        """Return a stream of the samples.

        The order depends on the data, `shuffle`, `seed`, `epoch`, `parts` and `buffer` alone: ranks only divide it.
        Where no parts are given, these depend on the number of ranks; a state has them, and goes on with any number.

        Args:
            shuffle: Whether shards and samples are shuffled; `"full"`: one random order of all samples.
            seed: With the epoch, what the shuffle depends on.
            epoch: Counted from 0.
            rank: This reader's place among the ranks; RANK of the environment, or 0, where none is given.
            world_size: How many ranks there are; WORLD_SIZE of the environment, or 1, where none is given.
            buffer: Samples that all ranks hold, and shuffle among themselves; None: about 64 MB of each rank, or 32 MB
                of all where parts are given.
            parts: Into how many parts the samples are cut, which are read side by side; None: 128 for each rank.
            ends: What becomes of the last samples where they are no multiple of the ranks: `drop`, `pad` (each rank
                has as many; `__padding__` says of each sample whether it was read for that), or `uneven`. None: `drop`
                with a shuffle; without one `pad`, or for a single rank `uneven`. `Stream` describes what each does
                about skipped samples.
            groups: Into how many groups neighbouring ranks are put, all of one to get the same samples, as tensor and
                sequence parallelism want it; None: each rank gets samples of its own.

        Raises:
            InvalidRequest: There are no samples, or with `drop` fewer than ranks; or an argument is out of its range.
        """
        rank, ranks = read_share.rank_and_world_size(rank, world_size)
        share = Share(rank, ranks, ends or ("drop" if shuffle else "uneven" if ranks == 1 else "pad")).in_groups(groups)
        reader, ranks = self.fetcher, share.world_size
        cut = epoch_samples.parts_window_ranks(
            self.source, reader.mean_size, ranks, buffer, parts, copies=reader.copies
        )
        options = OrderOptions(shuffle, seed, epoch, *cut)
        length = self.source.length_in(options)
        if not length:
            raise InvalidRequest("the dataset", "no samples")
        if not share.end(length):
            found = f"{pluralize(length, 'sample')} for {share.world_size:,} ranks, and ends='drop'"
            raise InvalidRequest("world_size", found, remedy="Give ends='pad' or ends='uneven'.")
        stream = Stream(self.fetcher, self.source, options, share)
        return stream.with_stages(self.stages)

    def pack(
        self, tokens: int, field: str | None = None, *, by: bundle_rules.PackingRule = "first-fit", dtype: DTypeLike | None = None,
        length: str | None = None, pad: int = 0,
    ) -> BundledDataset:  # fmt: skip
        """Return blocks that documents are packed into: an order of blocks, divided and resumed as one of samples.

        A block is a dict: `tokens` [tokens], `positions` int32 [tokens], which count from 0 in each document,
        `segments` int32 [tokens], which number its documents from 1 on, and are 0 behind the last one, and `__key__`,
        the list of the documents' keys. How long these are, sidecars say: see `docs/training.md`.

        Args:
            tokens: Of a block.
            field: Of the tokens: `.npy` of one dimension, plain bytes, or the list of a TFRecord; None: the only one.
            by: `first-fit`: documents as a whole, the longest of some thousands first, each into the fullest block that
                holds it; those longer than a block are cut. `concat`: one behind the other, cut where a block is full.
            dtype: Of tokens in plain bytes, such as `uint16`.
            length: The column of metadata that says how many tokens a document has; None: the size of its field.
            pad: The token behind the last document.

        Raises:
            InvalidRequest: It is not known how long documents are, or something is done to them before.
        """
        check_minimum("tokens", tokens)
        check_choice("by", by, bundle_rules.PackingRule)
        if self.stages.stages:
            expected = "documents as they are stored: pack first, then map or select blocks"
            raise InvalidRequest("pack", "something is done to samples before", expected=expected)
        reader, views = self._unbundled()
        source, sizes = packing.token_lengths(field, dtype, length, reader, views)
        if source.form == "bytes" and dtype is None:
            found = f"not given, and field {source.name} holds plain bytes"
            expected = "that of its tokens, such as 'uint16'; 'uint8' for the bytes of a text"
            raise InvalidRequest("dtype", found, expected=expected, remedy="Write lists to a field that ends in npy.")
        if np.array(pad).astype(source.dtype) != pad:
            raise InvalidRequest("pad", repr(pad), expected=f"a token of {source.dtype}")
        rule, make = (
            bundle_rules.fitted if by == "first-fit" else bundle_rules.concatenated,
            packing.BlockMaker(tokens, source, pad),
        )
        reader = reader.reader_of_fields(frozenset({source.name}))
        return BundledDataset(
            bundles.BundleReader(reader, views, sizes, rule, tokens, make, source.name, source.dtype.str, pad)
        )

    @overload  # type: ignore[override] # a Dataset takes more than a stream
    def batch(self, size: int, *, drop_last: bool = False, lists: ListFields = ()) -> Self: ...
    @overload
    def batch(
        self, size: int | None = None, *, by: Literal["length", "aspect"], tokens: int | None = None,
        field: str | None = None, dtype: DTypeLike | None = None, length: str | None = None,
        aspects: Sequence[float] = bucketing.DEFAULT_ASPECT_RATIOS, lists: ListFields = (),
    ) -> BundledDataset: ...  # fmt: skip

    @with_dataloader_hints
    def batch(  # noqa: PLR0913 - its public options
        self, size: int | None = None, *, drop_last: bool = False, by: Literal["length", "aspect"] | None = None,
        tokens: int | None = None, field: str | None = None, dtype: DTypeLike | None = None,
        length: str | None = None, aspects: Sequence[float] = bucketing.DEFAULT_ASPECT_RATIOS, lists: ListFields = (),
    ) -> Self | BundledDataset:  # fmt: skip
        """Make batches: of so many samples in a row; or in an order of batches, of samples of about one size.

        Args:
            size: Samples of a batch.
            drop_last: Leave out a last batch that is smaller; not by size.
            by: `length`: as many samples as take no more than `tokens`, padded to the longest. `aspect`: images of
                about one aspect, by the columns `width` and `height`; each has it as `__aspect__`.
            tokens: Of a batch by length.
            field: What is long: `.npy` of any dimensions, by its first; else bytes, or values of `dtype`.
            dtype: Of values in plain bytes.
            length: The column of metadata that says how long samples are, in place of the field.
            aspects: Widths per height: each image counts as the nearest.
            lists: Fields whose values a batch has as a list, though they may be of one shape.

        Raises:
            InvalidRequest: Sizes are not known, or a sample alone is longer than a batch.
        """
        if by is None:
            others = {"tokens": tokens, "field": field, "dtype": dtype, "length": length}
            given = {name: value for name, value in others.items() if value is not None}
            return super().batch(size, drop_last=drop_last, lists=lists, **given)
        check_choice("by", by, Literal["length", "aspect"])
        of_size = ("size", size, (tokens, field, dtype, length))
        asked, limit, unasked = ("tokens", tokens, (size,)) if by == "length" else of_size
        if drop_last or any(one is not None for one in unasked):
            raise InvalidRequest("batch", f"by {by}", expected=f"{asked} alone, and no drop_last")
        check_minimum(asked, limit)
        reader, views = self._unbundled()
        if by == "length":
            _, sizes = packing.token_lengths(field, dtype, length, reader, views)
            if (longest := int(sizes.max())) > cast("int", tokens):
                remedy = f"Give tokens={longest}, or choose shorter samples with where(...) or take(...)."
                raise InvalidRequest("tokens", f"{tokens}, and the longest sample has {longest}", remedy=remedy)
            known = []
        else:
            known = sorted(aspects)
            sizes = bucketing.nearest_aspect_ratios(known, reader, views)
        rule, make = (
            bundle_rules.of_one_kind if known else bundle_rules.of_like_length,
            partial(bucketing.make_size_batch, known),
        )
        found = bundles.BundleReader(reader, views, sizes, rule, cast("int", limit), make, *known)
        return BundledDataset(found).with_stages(Pipeline((bucketing.SizeBatches(self.stages, lists),)))

    def _unbundled(self) -> tuple[AnySampleReader, EpochSamples]:
        """Return what reads samples, and which.

        Raises:
            InvalidRequest: There are none, or they are bundled.
        """
        batched = any(isinstance(stage, Batch) for stage in self.stages.stages)
        if batched or isinstance(self.fetcher, bundles.BundleReader):
            raise InvalidRequest("the dataset", "packed or batched before", expected="samples")
        if not self.source.length:
            raise InvalidRequest("the dataset", "no samples")
        return self.fetcher, cast("EpochSamples", self.source)


class BundledDataset(Streamable):
    """Blocks of tokens, or batches of samples of about one size: what `pack` and `batch(by=...)` return."""

    def __init__(self, made: bundles.BundleReader) -> None:
        super().__init__(made, made)

    def __repr__(self) -> str:
        return f"<Bundled: {pluralize(self.source.length, 'bundle')} an epoch{self.stages}>"
