"""The samples of a run: listed, chosen, and divided into splits."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, memory_for
from shardtool.values import SPAN, SpanFile
from shardtool.verbs.create.request import open_targets, run_record
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.execute.pool import Pool
    from shardtool.names import Names
    from shardtool.publish.publisher import Publisher
    from shardtool.request.results import Notes
    from shardtool.source.base import Listing, Source
    from shardtool.values import Dots
    from shardtool.verbs.create.request import OutputDataset, Request


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of a run.

    Attributes:
        listed: The samples, and what the source says of them.
        targets: The datasets that they go to.
        parts: Which samples each of these gets, as their places; None: all.
        dots: The dot at which a key ends in a member's name.
        untouched: The datasets that an append has nothing new for: they stay as they are.
    """

    listed: Listing
    targets: tuple[OutputDataset, ...]
    parts: tuple[NDArray[np.int64] | None, ...]
    dots: Dots
    untouched: tuple[OutputDataset, ...] = ()

    @property
    def entries(self) -> Entries:
        """The samples."""
        return self.listed.entries

    @property
    def binary(self) -> bool:
        """Whether payloads lie in a table, from which no worker can read them."""
        return self.entries.spans is not None and not self.entries.spans.files


@memory_for("listing the source")
def list_samples(
    request: Request, source: Source, targets: tuple[OutputDataset, ...], pool: Pool, notes: Notes
) -> Samples:
    """Return the samples that were asked for, in their order, divided.

    Raises:
        InvalidRequest: There are none, or their names cannot be in shards.
        SampleFailed: Some cannot be packed, and they are not to be skipped.
        CorruptShard: A dataset that they are in is damaged.
    """
    listed = source.list_samples(pool, notes.observer)
    taken = _taken_keys(request, listed, targets) if source.asks_for_taken_keys else None
    listed = source.choose(listed, taken)
    notes.add(*listed.notes)
    from shardtool.source.naming import check_names

    if not request.options.portable:
        check_names(listed.entries, listed.name, skip=source.may_skip_names)
    listed, dots = _settle_dots(request, listed, notes)
    samples = Samples(listed, targets, (None,), dots)
    if request.dividing is not None:
        samples = _divide(request, source, samples, notes)
    return replace(samples, listed=replace(samples.listed, entries=_with_safe_names(request, source, samples)))


def spool(samples: Samples, source: Source, publisher: Publisher) -> Samples:
    """Write the payloads that lie in a table to a file beside the output for workers; the run removes it."""
    entries = samples.entries
    if entries.spans is None:
        return samples
    size = int(entries.rows.size[entries.rows.kind == SPAN].sum())
    file = publisher.spool(size)
    source.write_binary(file)
    spans = replace(entries.spans, files=(SpanFile(os.fsencode(file.path), size, -1),))
    return replace(samples, listed=replace(samples.listed, entries=replace(entries, spans=spans)))


def _taken_keys(request: Request, listed: Listing, targets: Sequence[OutputDataset]) -> Names | None:
    """Return the keys of the datasets that are appended to; None: there are no such datasets."""
    if not any(target.output.appends for target in targets):
        return None
    from shardtool.names import Names
    from shardtool.verbs.create.append import taken_keys

    found = [taken_keys(target.output, run_record(request, listed, target.split)) for target in targets]
    return Names.parse(b"".join(names.span(0, len(names)) for names in found))


def _settle_dots(request: Request, listed: Listing, notes: Notes) -> tuple[Listing, Dots]:
    """Return the dot at which keys end in a tar: the last, which is recorded, if only that one divides all names."""
    known = {**request.options.recorded(), **listed.recorded}
    asked: Dots | None = "last" if known.get("dots") == "last" else "first" if "dots" in known else None
    if request.format != "tar" or (request.options.portable and asked != "last"):
        return listed, asked or "first"
    from shardtool.source.naming import choose_dots

    dots, note = choose_dots(listed.entries, asked, listed.name)
    if note:
        listed = replace(listed, recorded={**listed.recorded, "dots": dots})
        notes.add(note)
    return listed, dots


def _divide(request: Request, source: Source, samples: Samples, notes: Notes) -> Samples:
    """Return the samples with the column `split`, and with what each split gets."""
    from shardtool.entries.arrow import with_split
    from shardtool.select.splits import divide

    options, entries, targets = request.dividing, samples.entries, samples.targets
    if options is None:
        return samples
    values = source.column(samples.listed, options.reads[1]) if options.reads else None
    splits = divide(entries.keys, options, values)
    notes.add(*splits.notes)
    if options.column is not None:
        targets = open_targets(request, splits.names)
    parts = tuple(splits.samples(at) for at in range(len(splits.names)))
    if empty := [name for name, part in zip(splits.names, parts, strict=True) if not len(part)]:
        found = f"no sample falls into {', '.join(empty)}: {len(entries):,} in all"
        remedy = f"Use larger shares, another {option('seed')}, or {option('stratify')}."
        raise InvalidRequest(option("split"), found, remedy=remedy)
    entries = replace(entries, metadata=with_split(entries.metadata, splits.names, splits.number))
    return replace(samples, listed=replace(samples.listed, entries=entries), targets=targets, parts=parts)


def _with_safe_names(request: Request, source: Source, samples: Samples) -> Entries:
    """Return the samples with the names that they get."""
    from shardtool.source.naming import check_case, make_portable

    entries, dividing = samples.entries, request.dividing
    if request.options.portable:
        if dividing is not None:
            other = option("split" if dividing.column is None else dividing.option)
            raise InvalidRequest(option("portable"), f"used with {other}", remedy="Choose one of them.")
        return _keep_source_paths(make_portable(entries, by_key=source.by_key))
    if request.format == "tar":
        check_case(entries)
    return entries


def _keep_source_paths(entries: Entries) -> Entries:
    """Return samples of a dataset whose names were made safe before with the names that they had at first."""
    known = entries.metadata is not None and "source_paths" in entries.metadata.column_names
    return replace(entries, source_paths=False) if known else entries
