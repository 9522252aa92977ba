"""`reshard`: datasets become another one, without decoding a sample. The library twin of `shardtool reshard`.

It is `create` with shards as the source: the same planner, packers and publisher. What is its own is how samples
are chosen and changed between the listing and the plan, and how a global shuffle reads its source.
"""

from __future__ import annotations

import os
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from shardtool.errors import InvalidRequest, listing
from shardtool.execute.local import cores
from shardtool.pack.run import Job, plan_dataset, write_dataset
from shardtool.request.options import pairs
from shardtool.request.reshard_options import ReshardOptions
from shardtool.source.base import Source, check_left_out
from shardtool.storage.staging import open_folder
from shardtool.values import SPAN, counted, parse_size, to_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.execute.local import LocalPool
    from shardtool.pack.run import Names
    from shardtool.pattern import ShardPattern
    from shardtool.plan.plan import Plan
    from shardtool.request.observer import Observer
    from shardtool.request.results import CreateResult, DryRun
    from shardtool.storage.staging import Folder

_CHANGES_CONTENT = ("select_fields", "drop_fields", "rename_fields", "values", "portable")
_CHOOSES = ("where", "sample", "head")


def reshard(
    datasets: Any, output: Names, options: ReshardOptions | None = None, *, observer: Observer | None = None
) -> CreateResult:
    """Write the samples of one or several datasets into other shards, with sidecars and a dataset file.

    Bytes are moved and checked, never decoded: where an index tells a payload's checksum, a payload with another one
    ends the run. Where all samples stay as they are, the fingerprint of what was written must be that of the source.

    Args:
        datasets: A dataset, or a list of them: each a dataset file, a pattern, a glob, a folder, or a list of shards.
        output: A shard pattern such as `out-{000000..}.tar`, or the shards' names; with `{split}` in it for splits.
        options: See `ReshardOptions`.
        observer: Is told of progress, and of what the user should know.

    Raises:
        InvalidRequest: The request makes no sense; nothing was written.
        CorruptShard: A dataset is damaged, as far as it was read; nothing damaged was copied.
        OutputExists: The output is there already, or another run is writing it; nothing was touched.
        OutputFailed: The output, or the folder of temporary files, cannot be written.
        WorkerDied: A worker was killed.
    """
    options = options or ReshardOptions()
    return write_dataset(partial(_begin, datasets, output, options), options, observer)


def reshard_dry_run(
    datasets: Any, output: Names, options: ReshardOptions | None = None, *, observer: Observer | None = None
) -> DryRun:
    """Return what `reshard` would write, to the byte; write nothing.

    Raises:
        InvalidRequest: The request makes no sense.
        CorruptShard: A dataset is damaged, as far as it was read.
    """
    options = options or ReshardOptions()
    return plan_dataset(partial(_begin, datasets, output, options), options, observer)


def _begin(datasets: Any, output: Names, options: ReshardOptions, observer: Observer, *, dry: bool) -> Job:
    givens = [datasets] if isinstance(datasets, (str, os.PathLike)) else [*datasets]
    if not givens:
        raise InvalidRequest("DATASET", "none given", expected="a dataset file, a pattern, a folder, or shards")
    return Job(
        lambda outputs: ShardSource(givens, options, outputs), output, options, observer,
        verb="reshard", transform=None, dry=dry,
    )  # fmt: skip


class ShardSource(Source):
    """The samples of datasets."""

    by_key = False

    def __init__(self, givens: Sequence[Any], options: ReshardOptions, outputs: Sequence[ShardPattern]) -> None:
        self._givens, self._options, self.outputs = givens, options, outputs
        self.name = ""
        self.notes: list[str] = []
        self._packed = False

    def entries(self, pool: LocalPool, observer: Observer) -> Entries:
        """List the shards, in the workers where they have no index; then choose and change samples."""
        from shardtool.pack.shuffle import check_memory, check_method
        from shardtool.source.shards.listing import list_datasets

        options = self._options
        check_memory(parse_size(options.memory))
        renames = pairs("--rename-field", options.rename_fields)
        listed = list_datasets(
            self._givens, pool, observer, to_format=self.outputs[0].format,
            only=options.select_fields, without={*options.drop_fields, *options.classes} - {old for old, _ in renames},
        )  # fmt: skip
        self.name, self._packed = listed.name, listed.packed
        check_method(options.method, packed=listed.packed)
        self.notes += [*listed.notes, *_unchecked(listed.entries)]
        if listed.dots == "last" and not options.portable:
            self.recorded = {"dots": "last"}
        changes = (*_CHANGES_CONTENT, *_CHOOSES)
        self.digest = None if any(getattr(options, name) for name in changes) else listed.digest
        entries = self._chosen(self._changed(listed.entries, listed.shards), listed.shards)
        self._of_query = entries, listed.shards
        self._check_tar(entries)
        check_left_out(self.name, entries.left_out, options.on_error, "make the shards anew without them")
        if not len(entries):
            left_out = f": all {len(entries.left_out):,} were left out" if entries.left_out else ""
            raise InvalidRequest(self.name, f"no samples{left_out}", expected="one or more")
        return entries

    def write_binary(self, file: Any) -> None:
        """Write nothing: all payloads lie in shards."""

    def column(self, name: str) -> Any:
        """Return a column of the sidecars, or one of `key`, `shard`, `size` and `fields`."""
        from shardtool.select.order import column_of

        return column_of(_table(*self._of_query), name, "DATASET")

    def arrange(self, plans: list[Plan], pool: LocalPool, observer: Observer, to_write: int) -> list[Plan]:
        """Have payloads that lie in another order brought into a better one, where that pays."""
        if not to_write and not self._packed:
            return plans  # all is there, and is only compared
        from shardtool.pack.shuffle import choose_method, scatter

        options, memory = self._options, parse_size(self._options.memory)
        workers = options.workers or cores()
        method = choose_method(
            plans, plans[0].entries, memory=memory, workers=workers, packed=self._packed, asked=options.method
        )
        if method.note:
            self.notes.append(method.note)
            observer.note(method.note)
        if method.name != "scatter":
            return plans
        temp, name = self.scratch()
        besides = to_write if temp.shares_space(open_folder(self.outputs[0].folder)) else 0
        return scatter(plans, temp, name, memory, workers, pool, observer, besides=besides, on_error=options.on_error)

    def scratch(self) -> tuple[Folder, str]:
        """Return the folder of temporary files, and the name of ours: the same for the same output."""
        first = self.outputs[0]
        folder = open_folder(first.folder if self._options.temp_dir is None else self._options.temp_dir)
        whose = os.path.realpath(os.path.join(first.folder, first.base))
        return folder, f"{first.base}-{blake2b(os.fsencode(whose), digest_size=6).hexdigest()}.spool"

    def _changed(self, entries: Entries, shards: tuple[str, ...]) -> Entries:
        """Return the samples that `where` takes, with the fields and the metadata that were asked for."""
        options, values = self._options, pairs("--field", self._options.values)
        if options.select_fields or options.drop_fields or options.rename_fields:
            from shardtool.select.fields import select_fields

            renames = pairs("--rename-field", options.rename_fields)
            entries = select_fields(entries, options.select_fields, options.drop_fields, renames)
        if options.join is not None:
            from shardtool.select.join import join

            joined = join(entries, options.join, options.on or "")
            entries = joined.entries
            self.recorded = {**self.recorded, "join": joined.name}
            self.notes += joined.notes
        if options.where is not None:
            from shardtool.select.query import matching

            samples = matching(_table(entries, shards), options.where)
            entries = _taken(entries, samples, "--where", f"no sample for which {options.where}")
        if values or options.classes:
            from shardtool.dataset.classes import open_classes
            from shardtool.select.join import set_fields

            entries, notes = set_fields(entries, values, options.classes, open_classes(options.classes_from))
            self.notes += notes
        return self._with_fields(entries)

    def _check_tar(self, entries: Entries) -> None:
        """See that fields can be the ends of members' names, and keys be told from them."""
        if self.outputs[0].format != "tar":
            return
        uses = entries.code_counts()
        fields = [name for name, count in zip(entries.fields, uses, strict=True) if count]
        dotted = [name for name in fields if "." in name]
        if dotted and "dots" in self.recorded:
            raise InvalidRequest(
                self.name, f"keys with dots in their last part, and fields with dots: {listing(dotted)}",
                expected="names that the first dot divides, or the last",
                remedy=f"Rename them (--rename-field {dotted[0]}={dotted[0].rpartition('.')[2]}), or use --portable.",
            )  # fmt: skip
        bad = [name for name in fields if "/" in name]
        if bad:
            raise InvalidRequest(
                self.name, f"fields with a slash, which no tar shard can hold: {listing(list(map(repr, bad)))}",
                expected="an ending, such as jpg", remedy=f"Rename it (--rename-field {bad[0]}=jpg), or --drop-fields.",
            )  # fmt: skip

    def _with_fields(self, entries: Entries) -> Entries:
        """Return the samples that have fields: an Example may hold nothing but its key."""
        from shardtool.select.fields import without_empty

        if not len(entries):
            return entries
        found = without_empty(entries, self.name, "no sample has a field", "nothing but its key")
        if found is not entries:
            self.digest = None
        return found

    def _chosen(self, entries: Entries, shards: tuple[str, ...]) -> Entries:
        """Return the samples that were asked for, in the order that was asked for."""
        import numpy as np

        from shardtool.select import order
        from shardtool.select.duplicates import resolve_duplicates

        options = self._options
        if options.sample is not None:
            samples = order.sample_by_key(entries.keys, options.sample)
            found = f"none of {len(entries):,} samples falls into {options.sample}"
            entries = _taken(entries, samples, "--sample", found)
        before, file = entries, entries.file
        taken = None if self.taken is None else self.taken()
        # An error tells where shards lie, for two may have one name; `out.skipped` must not.
        names = [to_text(one.path) for one in entries.files] if options.on_duplicate == "error" else shards
        entries, _, notes = resolve_duplicates(
            before, options.on_duplicate, lambda at: names[0 if file is None else file[at]], taken
        )
        self.notes += notes if options.on_duplicate == "rename" else ()  # the job tells what is left out
        if entries is not before:
            self.digest = None
        if options.sort_by is not None:
            column = order.column_of(_table(entries, shards), options.sort_by, "--sort-by")
            entries = entries.take(order.sort_order(column, options.sort_by, descending=options.descending))
        if options.head is not None and options.head < len(entries):
            entries = entries.take(np.arange(options.head))
        return entries


def _unchecked(entries: Entries) -> list[str]:
    """Return what the user should know of payloads whose damage nothing would tell."""
    import numpy as np

    if entries.expected is None or entries.file is None:
        return []
    rows = np.flatnonzero((entries.expected < 0) & (entries.kind == SPAN))
    if not len(rows):
        return []
    samples = np.searchsorted(entries.first, rows, "right") - 1
    shards = int(np.count_nonzero(np.bincount(entries.file[samples])))
    what = f"{counted(shards, 'shard')} without checksums, so that damage in them cannot be told"
    return [f"{what}: `shardtool index --checksum` adds them"]


def _table(entries: Entries, shards: tuple[str, ...]) -> Any:
    """Return what a query sees of samples."""
    import numpy as np

    from shardtool.select.order import table_of

    file = np.zeros(len(entries), np.int32) if entries.file is None else entries.file.astype(np.int32)
    return table_of(entries, file, shards)


def _taken(entries: Entries, samples: NDArray[np.int64], option: str, found: str) -> Entries:
    if not len(samples):
        raise InvalidRequest(option, found, expected="one sample or more")
    return entries.take(samples)
