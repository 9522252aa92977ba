"""`remove`: remove samples from a dataset, and rewrite only the shards that contain them.

Afterwards, no file of the dataset contains a byte of the removed samples. Hashes of the removed keys are added to the
list of skipped samples, so `create --resume` and `--append` do not add the samples again. Shards keep their names,
even if empty.

Either all files are replaced or none. The next `remove` or `verify --repair` finishes an interrupted replacement. Until
then, other verbs cannot write to the dataset (docs/decisions/024-removing-and-extracting.md).
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import field, replace
from importlib import import_module
from typing import TYPE_CHECKING

from shardtool.dataclass import dataclass
from shardtool.dataset.features import tf_features
from shardtool.dataset.skipped_list import encode_skipped, merge_skipped, read_skipped_rows
from shardtool.errors import (
    CorruptShard,
    InvalidRequest,
    OutputExists,
    ShardError,
    format_list,
    printable,
    reporting_memory_errors,
)
from shardtool.execute import start_pool
from shardtool.fingerprint import crc32c, format_fingerprint, sum_fingerprints
from shardtool.messages import option_text
from shardtool.names import to_local_name
from shardtool.pattern import DATASET_SUFFIX, ShardPattern, parse_pattern, sidecar_name
from shardtool.publish.foreign_index_files import StaleIndexes
from shardtool.publish.publication import Publication, finish_replacements
from shardtool.request.dataset_options import RemoveOptions
from shardtool.request.observer import Notes, Observer
from shardtool.request.results import RemovalSummary, RemoveResult
from shardtool.request.run_record import RunRecord
from shardtool.request.verb_call import accepts_options
from shardtool.shard_samples import SPAN
from shardtool.skipped import Skipped, drop_keys, hash_key
from shardtool.storage.folders import check_space, open_staging_folder
from shardtool.storage.paths import base_name
from shardtool.units import pluralize
from shardtool.write.task import ShardTask, compute_content_fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.dataset.dataset_file import DatasetFile, ShardEntry
    from shardtool.dataset.sidecar_schema import ShardTally
    from shardtool.dataset.stored import StoredDataset, StoredShard
    from shardtool.entries.sample_table import SampleTable
    from shardtool.execute.pool import Pool
    from shardtool.plan.plan import Plan
    from shardtool.storage.folders import OutputFolder
    from shardtool.values import DatasetLike

_MAX_LISTED_KEYS = 3


@accepts_options(RemoveOptions)
def remove(dataset: DatasetLike | Sequence[DatasetLike], options: RemoveOptions, observer: Observer) -> RemoveResult:
    """Remove samples from existing datasets. `keys`, `keys_from` or `where` selects the samples.

    Args:
        dataset: Datasets (such as splits) with a dataset file. Each dataset is processed separately.

    Raises:
        InvalidRequest: A dataset or sample does not exist, or no sample would remain. Nothing was changed.
        CorruptShard: A dataset is damaged. Nothing was changed.
        OutputExists: Another run is writing a dataset or was interrupted, a file of a dataset is a symbolic link, or an
            unlisted file may contain the samples, too.
        OutputFailed: A file cannot be written.
    """
    notes, started = Notes(observer), time.monotonic()
    if options.where is None and options.key_list is None:
        expected = f"one of {format_list([*map(option_text, ('keys', 'keys_from', 'where'))])}"
        raise InvalidRequest("remove", "no samples are selected", expected=expected)
    import_module("shardtool.write.pack_shard")
    with start_pool(options) as pool, ExitStack() as stack:
        from shardtool.dataset.expand import expand_datasets
        from shardtool.dataset.find import find_dataset

        finished = not options.dry_run and finish_replacements(dataset, notes)
        locations = [_locate_dataset(find_dataset(given)) for given in expand_datasets(dataset)]  # type: ignore[arg-type]
        for folder, base in locations if not options.dry_run else []:
            stack.enter_context(folder.lock(base))
        removals = _choose_samples([_open_removal(*location) for location in locations], options, finished=finished)
        if not removals and not finished:
            notes.add("nothing to remove: these samples were removed before")
        summaries = [removal.carry_out(pool, notes, dry=options.dry_run) for removal in removals]
    return RemoveResult(tuple(summaries), tuple(notes.texts), time.monotonic() - started, options.dry_run)


def _locate_dataset(dataset: StoredDataset) -> tuple[OutputFolder, str]:
    if dataset.dataset_file is None or not dataset.has_own_file or not dataset.is_whole:
        from shardtool.dataset.find import check_not_damaged

        check_not_damaged(dataset)
        expected, remedy = "the dataset file of a whole dataset", "`index` creates one for shards of other tools."
        found = "no dataset file, or only some of its shards"
        raise InvalidRequest(dataset.where, found, expected=expected, remedy=remedy)
    return open_staging_folder(dataset.folder), base_name(dataset.dataset_file).removesuffix(DATASET_SUFFIX)


def _open_removal(folder: OutputFolder, base: str) -> _Removal:
    from shardtool.dataset.expand import recorded_range
    from shardtool.dataset.find import open_dataset

    path = folder.full_path(base + DATASET_SUFFIX)
    dataset = open_dataset(path)
    file = dataset.file
    if file is None:
        raise CorruptShard(path, "not a dataset file of shardtool")
    if file.shards_folder:
        found, expected = f"shards in the folder {file.shards_folder}", "shards in its own folder"
        raise InvalidRequest(path, found, expected=expected, remedy="`reshard` creates such a dataset.")
    names = [to_local_name(entry.name) for entry in file.shards]
    pattern = replace(recorded_range(file) or parse_pattern(names), folder=folder.path)
    existing = folder.names()
    own_names = {*names, *map(sidecar_name, names), base + DATASET_SUFFIX, file.skipped_file}
    for name in sorted(own_names):
        if os.path.islink(link := folder.full_path(name)):
            raise OutputExists(link, "a symbolic link; its target would keep the samples", expected="a regular file")
    unlisted = [name for name in existing if pattern.owns(name) and name not in own_names]
    unlisted += [name for name in existing if name.startswith(f".{base}.before-repair")]
    if unlisted:
        remedy = "They may contain the samples, too. Finish the run that wrote them, or delete them."
        listing = format_list(sorted(unlisted), _MAX_LISTED_KEYS)
        found = f"{pluralize(len(unlisted), 'file')} that the dataset does not list: {listing}"
        raise OutputExists(path, found, expected="none", remedy=remedy)
    stale_indexes = StaleIndexes(folder, pattern, existing, appends=False)
    similar_names: tuple[str, ...] = ()
    if pattern.names is None and pattern.prefix:
        numbered = re.compile(rf"{re.escape(pattern.prefix)}\d+{re.escape(pattern.suffix)}", re.DOTALL)
        similar_names = tuple(sorted(filter(numbered.fullmatch, {*existing} - own_names)))
    return _Removal(folder, base, pattern, dataset, file, stale_indexes, similar_names)


def _choose_samples(removals: list[_Removal], options: RemoveOptions, *, finished: bool) -> list[_Removal]:
    import numpy as np

    from shardtool.entries.strings import PackedStrings
    from shardtool.read.metadata import selected_shards
    from shardtool.source.keys_from import match_keys

    keys: list[bytes] = []
    rows: list[NDArray[np.int64]] = []
    try:
        for piece in selected_shards([removal.dataset for removal in removals], options.where):
            piece.raise_damage()
            keys.append(piece.shard_index.keys_with_nul())
            rows.append(piece.rows)
    except InvalidRequest:
        if finished:  # `finish_replacements` has already removed the samples
            return []
        raise
    if options.key_list is not None:
        removed_hashes = {key_hash for removal in removals for key_hash in removal.removed_hashes()}
        positions, _ = match_keys(
            PackedStrings.parse(b"".join(keys)), options.key_list, lambda key: hash_key(key) in removed_hashes
        )
        starts = np.cumsum([0, *map(len, rows)])
        parts = np.split(positions, np.searchsorted(positions, starts[1:-1]))
        rows = [positions_in_shard - start for positions_in_shard, start in zip(parts, starts, strict=False)]
    removal_shards = [(removal, shard) for removal in removals for shard in removal.dataset.shards]
    for (removal, shard), positions_in_shard, keys_with_nul in zip(removal_shards, rows, keys, strict=True):
        if len(positions_in_shard):
            shard_keys = keys_with_nul.removesuffix(b"\0").split(b"\0")
            removal.rows[shard.number] = positions_in_shard
            removal.keys += [shard_keys[index] for index in positions_in_shard.tolist()]
    for removal in removals:
        if len(removal.keys) == sum(shard.samples for shard in removal.file.shards):
            found = f"would remove all {pluralize(len(removal.keys), 'sample')}"
            raise InvalidRequest(removal.path, found, remedy="Delete the files instead.")
    return [removal for removal in removals if removal.rows]


@dataclass(slots=True)
class _Removal:
    """The removal of samples from one dataset.

    Attributes:
        similar_names: Unlisted files whose names differ from shard names only in the number of digits.
        rows: For each shard number, the indexes of the samples to remove.
    """

    folder: OutputFolder
    base: str
    pattern: ShardPattern
    dataset: StoredDataset
    file: DatasetFile
    stale_indexes: StaleIndexes
    similar_names: tuple[str, ...] = ()
    rows: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)

    @property
    def path(self) -> str:
        return self.folder.full_path(self.base + DATASET_SUFFIX)

    @property
    def shards(self) -> list[StoredShard]:
        return [shard for shard in self.dataset.shards if shard.number in self.rows]

    def removed_hashes(self) -> set[str]:
        return {row.key for row in read_skipped_rows(self.file, self.folder.path) if row.code == "removed"}

    @reporting_memory_errors("removing samples")
    def carry_out(self, pool: Pool, notes: Notes, *, dry: bool) -> RemovalSummary:
        """Rewrite the shards and replace the dataset. If `dry`, only return the summary."""
        import numpy as np

        from shardtool.plan.plan import plan_by_counts
        from shardtool.source.shard_listing import list_datasets

        shards, rows = self.shards, [*self.rows.values()]
        paths = [shard.path for shard in shards]
        entries = list_datasets([paths], pool, Observer(), to_format=self.file.format).entries
        counts = np.bincount(entries.known_spans.file, minlength=len(shards))
        starts = np.cumsum(counts) - counts
        remaining = counts - [len(removed_rows) for removed_rows in rows]
        removed = np.concatenate([start + removed_rows for start, removed_rows in zip(starts, rows, strict=True)])
        kept = entries.take(np.setdiff1d(np.arange(len(entries)), removed))
        plan = plan_by_counts(kept, self.file.format, remaining.tolist())
        size, old_size = int(plan.sizes.sum()), sum(shard.entry.size for shard in shards if shard.entry)
        empty = tuple(shard.name for shard, count in zip(shards, remaining.tolist(), strict=True) if not count)
        result = RemovalSummary(
            dataset_file=self.path,
            removed=len(self.keys),
            samples=sum(entry.samples for entry in self.file.shards) - len(self.keys),
            shards=len(self.file.shards),
            rewritten=tuple(shard.name for shard in shards),
            empty=empty,
            size=size,
            freed=old_size - size,
            fingerprint="",
        )
        if self.similar_names:
            names = format_list([*self.similar_names], _MAX_LISTED_KEYS)
            notes.add(f"{names}: not part of the dataset, but may contain these samples, too")
        if dry:
            return result
        file = self._replace(plan, entries.take(removed), pool, notes)
        if empty:
            stays = "empty now; the file stays, so shards keep their numbers"
            notes.add(f"{format_list([*empty], _MAX_LISTED_KEYS)}: {stays}")
        notes.add(*self.stale_indexes.removal_notes(self.path))
        return replace(result, fingerprint=file.fingerprint)

    def _replace(self, plan: Plan, removed: SampleTable, pool: Pool, notes: Notes) -> DatasetFile:
        folder, dataset_file = self.folder, self.base + DATASET_SUFFIX
        publication = Publication(folder, dataset_file, "exchange", stale_indexes=self.stale_indexes)
        self._abandon(publication)
        check_space(folder, int(plan.sizes.sum()), "written")
        pool.check_access(output=folder.path)
        try:
            packed = self._pack(plan, publication, pool, notes)
            skipped_rows = self._skipped_list()
            file = self._new_dataset_file(packed, removed, skipped_rows)
            before = {self.file.skipped_file: skipped_rows} if skipped_rows else {}
            publication.finish(file.encode(), [entry.name for entry in file.shards], before=before)
        except BaseException:
            self._abandon(publication)
            raise
        return file

    def _abandon(self, publication: Publication) -> None:
        # Temporary files of interrupted runs may contain the samples, too.
        own_names = filter(self.pattern.owns, self.folder.staged_names())
        publication.abandon([*own_names, self.file.skipped_file, f"{self.pattern.base}.spool"])

    def _pack(
        self, plan: Plan, publication: Publication, pool: Pool, notes: Notes
    ) -> dict[str, tuple[ShardEntry, ShardTally, ShardTally]]:
        """Return each shard's new entry, old tally and new tally."""
        from shardtool.dataset import sidecar_write
        from shardtool.plan.shard_task import build_shard_samples
        from shardtool.write.pack_shard import pack_shard

        observer, packed, now_ns = notes.observer, {}, time.time_ns()
        tasks = []
        for number, shard in enumerate(self.shards):
            samples, name = build_shard_samples(plan, number), to_local_name(shard.name)
            tasks.append(ShardTask(name, plan.format, self.folder, samples, "raise", now_ns))
        observer.start(len(plan), int(plan.sizes.sum()), len(tasks))

        for number, result in pool.map(pack_shard, tasks, lambda _, samples, size: observer.advance(samples, size, 0)):
            task, before = tasks[number], self.shards[number].index()
            content, metadata = task.samples.content, plan.metadata(number)
            index = sidecar_write.written_index(plan.format, content, metadata, result.field_crcs)
            facts = before.facts._replace(size=result.size, crc=result.crc, plan="", transform=None)
            data, _ = sidecar_write.encode_sidecar(index, facts)
            publication.add(result.staged, data, task.name)
            tally = index.tally()
            packed[facts.name] = tally.entry(facts, data), before.tally(), tally
            observer.advance(0, 0, 1)
            observer.shard(task.name, "written", tally.samples, facts.size)
        return packed

    def _new_dataset_file(
        self, packed: Mapping[str, tuple[ShardEntry, ShardTally, ShardTally]], removed_samples: SampleTable, rows: bytes
    ) -> DatasetFile:
        file, fields, size = self.file, Counter(self.file.fields), self.file.field_bytes
        for _, before, after in packed.values():
            fields.subtract(before.fields)
            fields.update(after.fields)
            size += after.field_bytes - before.field_bytes
        counts = {name: count for name, count in fields.items() if count > 0}
        shards = tuple(packed[entry.name][0] if entry.name in packed else entry for entry in file.shards)
        total = sum(entry.samples for entry in shards)
        kinds = {name: entry.kind for name, entry in file.features.items()}
        lists = [name for name, entry in file.features.items() if entry.is_list]
        removed = file.run.removed + len(self.keys)
        return replace(
            file,
            shards=shards,
            fields=counts,
            field_bytes=size,
            skipped=rows.count(b"\n"),
            skipped_crc=crc32c(rows) if rows else None,
            features=tf_features(counts, kinds, total, lists) if file.features else {},
            types={name: kind for name, kind in file.types.items() if name in counts},
            fingerprint=self._new_fingerprint(removed_samples),
            run=RunRecord({**file.run.document, "removed": removed}),
        )

    def _skipped_list(self) -> bytes:
        why = "removed from the dataset; this is a hash of its key"
        new = [Skipped(hash_key(key), "", "removed", why) for key in self.keys]
        old = drop_keys(read_skipped_rows(self.file, self.folder.path), {*map(printable, self.keys)})
        return encode_skipped(merge_skipped(old, new))

    def _new_fingerprint(self, removed: SampleTable) -> str:
        from shardtool.plan.plan import plan_by_counts
        from shardtool.plan.shard_task import build_shard_samples
        from shardtool.write.pack_shard import read_fingerprint

        total = sum_fingerprints([self.file.fingerprint])
        if total is None:
            return ""
        samples = build_shard_samples(plan_by_counts(removed, self.file.format, [len(removed)]), 0)
        crc, removed_sum = removed.known_spans.crc, None
        if not samples.content.lists and bool((crc[removed.rows.kind == SPAN] >= 0).all()):
            removed_sum = compute_content_fingerprint(samples.content, crc.astype("<u4").tobytes(), ())
        else:
            with suppress(ShardError):  # the removed samples may be damaged
                removed_sum = read_fingerprint(ShardTask("", self.file.format, self.folder, samples, "raise", 0))
        return "" if removed_sum is None else format_fingerprint(total - removed_sum)
