"""`remove`: some samples leave a dataset, and only the shards that hold them are written again. `shardtool remove`.

Afterwards no file of the dataset has a byte of them. What stays behind is a row for each in the list of what was left
out, with a hash of its key, so that `create --resume` and `--append` do not bring it back from the source.

A shard keeps its name, also where it has no sample any more: which number a shard has, and how many there are, stays as
programs know it.

Of the files, either all are replaced or none. All that is new is staged beside what is there. Then a plan appears,
`.out.replacing`, which is the new dataset file under another name: from here on the new dataset counts. The old dataset
file goes, staged files get their names, the new dataset file comes last, and the plan goes. A run that is killed before
the plan is there has changed nothing; after it, the next run ends the work with what the plan says and what is staged.
Until then nobody else gets the dataset's lock (docs/decisions/024-removing-and-extracting.md).
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, parse_dataset
from shardtool.dataset.features import tf_features
from shardtool.errors import (
    CorruptShard,
    InvalidRequest,
    OutputExists,
    ShardError,
    format_list,
    os_error_text,
    printable,
    reporting_memory_errors,
)
from shardtool.execute import start_pool
from shardtool.fingerprint import crc32c, format_fingerprint, sum_fingerprints
from shardtool.messages import call_text, option_text, where_keys
from shardtool.names import list_names, to_local_name
from shardtool.pattern import DATASET_SUFFIX, ShardPattern, parse_pattern, replacement_plan_name, sidecar_name
from shardtool.publish.destination import Destination
from shardtool.publish.listed_files import wrong_size_error
from shardtool.publish.publisher import check_space, remove_staged
from shardtool.publish.skipped_list import encode_skipped, merge_skipped, read_skipped_rows
from shardtool.request.dataset_options import RemoveOptions
from shardtool.request.observer import Notes, Observer
from shardtool.request.results import RemovalSummary, RemoveResult
from shardtool.request.run_record import RunRecord
from shardtool.request.verb_call import accepts_options
from shardtool.shard_samples import SPAN
from shardtool.skipped import Skipped, drop_keys, hash_key
from shardtool.storage.lookup import is_folder
from shardtool.storage.paths import base_name, folder_of
from shardtool.storage.remote.address import is_url
from shardtool.storage.staging import Folder, local_folder
from shardtool.units import pluralize
from shardtool.write.task import ShardTask, compute_content_fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.dataset.sidecar_schema import ShardTally
    from shardtool.dataset.stored import StoredDataset, StoredShard
    from shardtool.entries.sample_table import SampleTable
    from shardtool.execute.pool import Pool
    from shardtool.plan.plan import Plan
    from shardtool.publish.stale_indexes import StaleIndexes
    from shardtool.values import DatasetLike

_MAX_LISTED_KEYS = 3


@accepts_options(RemoveOptions)
def remove(dataset: DatasetLike | Sequence[DatasetLike], options: RemoveOptions, observer: Observer) -> RemoveResult:
    """Remove samples from datasets, in place: those of `keys_from`, or those for which `where` is true.

    Args:
        dataset: A dataset with a dataset file, or several, such as its splits, which are done one by one.
        options: See `RemoveOptions`.
        observer: Gets progress, and notes for the user.

    Raises:
        InvalidRequest: There is no such dataset or sample, or no other one; nothing was touched.
        CorruptShard: A dataset is damaged, as far as it was read; nothing was touched.
        OutputExists: Another run is writing a dataset, or has not ended what it began.
        OutputFailed: The file system refuses.
    """
    notes, begun = Notes(observer), time.monotonic()
    if options.where is None and options.keys_from is None:
        found = f"neither {option_text('where')} nor {option_text('keys_from')}"
        expected = "one of them: which samples are to go"
        raise InvalidRequest("the samples", found, expected=expected, remedy=_key_hint(dataset))
    import_module("shardtool.write.pack_shard")
    with start_pool(options, "Run the same command again.") as pool, ExitStack() as stack:
        from shardtool.dataset.expand import expand_datasets
        from shardtool.dataset.find import find_dataset

        finished = not options.dry_run and _finish_interrupted(dataset, notes)
        places = [_dataset_location(find_dataset(one)) for one in expand_datasets(dataset)]  # type: ignore[arg-type]
        for folder, base in places if not options.dry_run else []:
            stack.enter_context(folder.lock(base))
        removals = _choose_samples([_open_removal(*place) for place in places], options, finished=finished)
        if not removals and not finished:
            notes.add("nothing to remove: these samples were removed before")
        done = [one.carry_out(pool, notes, dry=options.dry_run) for one in removals]
    return RemoveResult(tuple(done), tuple(notes.said), time.monotonic() - begun, options.dry_run)


def _key_hint(dataset: Any) -> str:
    """Return what to write if names after the first are rather keys of samples than datasets."""
    names = [f"{name}" for name in dataset[1:]] if isinstance(dataset, list | tuple) else []
    keys = [key for key in names if not (is_url(key) or os.path.lexists(key) or any(mark in key for mark in "{<%*?["))]
    if not keys:
        return ""
    what = "does not exist: if it is the key of a sample" if len(keys) == 1 else "do not exist: if they are keys"
    return f"{format_list(keys, _MAX_LISTED_KEYS)} {what}, write {where_keys(keys)}."


def _finish_interrupted(given: Any, notes: Notes) -> bool:
    """End what a killed run has begun in the folders of datasets, of which it may have left no dataset file.

    Returns:
        Whether there was such a run.
    """
    from shardtool.dataset.find import EXPECTED_DATASET

    paths = list_names("the dataset", given, EXPECTED_DATASET)
    folders = [path if is_folder(path) else folder_of(path) for path in paths if not is_url(path)]
    plan = re.compile(re.escape(replacement_plan_name("\0")).replace("\0", "(.+)"), re.DOTALL)
    found = False
    for folder in map(local_folder, dict.fromkeys(folders)):
        for match in filter(None, map(plan.fullmatch, folder.names())):
            with folder.lock(match[1], finishes=True):
                _carry_out_plan(folder, match[1])
            notes.add(f"{match[1]}{DATASET_SUFFIX}: a removal that did not end is done")
            found = True
    return found


def _carry_out_plan(folder: Folder, base: str) -> None:
    """End what a run has begun, once its plan is there, under the lock.

    Raises:
        CorruptShard: The plan, or a file that it lists, is not what it was.
        OutputFailed: The file system refuses.
    """
    plan = replacement_plan_name(base)
    if not folder.facts([plan]):
        return  # another run has, meanwhile
    where = folder.full_path(plan)
    try:
        data = folder.read(plan)
    except OSError as error:
        raise CorruptShard(where, f"no plan of a removal: {os_error_text(error)}", remedy="Move it away.") from None
    file = parse_dataset(data, where)
    sizes = {to_local_name(one.name): one.size for one in file.shards}
    sizes |= {to_local_name(one.sidecar): one.sidecar_size for one in file.shards}
    staged = [one for one in folder.staged() if one.name in sizes or one.name == file.skipped_file]
    left = sizes.keys() - {one.name for one in staged}
    there = {name: fact.size for name, fact in folder.facts(left).items()}
    for name in sorted(left):
        if there.get(name) != sizes[name]:
            raise wrong_size_error(folder.full_path(name), there.get(name), sizes[name])
    folder.remove([base + DATASET_SUFFIX])
    folder.publish(*staged)
    if not file.skipped:
        folder.remove([file.skipped_file])
    folder.publish(folder.stage_bytes(base + DATASET_SUFFIX, data))
    folder.remove([plan])


def _dataset_location(found: StoredDataset) -> tuple[Folder, str]:
    """Return the folder of a dataset that samples can be removed from, and the name of its dataset file.

    Raises:
        InvalidRequest: It is elsewhere, or has no dataset file.
    """
    if is_url(found.folder):
        remedy = f"Copy it into a folder, remove them there, and {call_text('copy', overwrite=True)} it back."
        raise InvalidRequest(found.where, "a dataset elsewhere", expected="one in a folder", remedy=remedy)
    if found.dataset_file is None or not found.own or not found.whole:
        from shardtool.dataset.find import check_not_damaged

        check_not_damaged(found)
        expected, remedy = "a whole dataset, by its dataset file", "`index` makes one for shards of other tools."
        raise InvalidRequest(found.where, "shards", expected=expected, remedy=remedy)
    return local_folder(found.folder), base_name(found.dataset_file).removesuffix(DATASET_SUFFIX)


def _open_removal(folder: Folder, base: str) -> Removal:
    """Return a dataset, once it was seen that its files are its own, and plain.

    Raises:
        InvalidRequest: Its shards lie in another folder.
        OutputExists: A file of it is a link, or there are others that are no part of it, and may hold the samples, too.
        CorruptShard: Its dataset file is damaged.
    """
    from shardtool.dataset.expand import recorded_range
    from shardtool.dataset.find import open_dataset
    from shardtool.publish.stale_indexes import StaleIndexes

    path = folder.full_path(base + DATASET_SUFFIX)
    dataset = open_dataset(path)
    file = dataset.file
    if file is None:
        raise CorruptShard(path, "no dataset file of shardtool")
    if file.shards_folder:
        found, expected = f"shards in the folder {file.shards_folder}", "shards beside it"
        raise InvalidRequest(path, found, expected=expected, remedy="`reshard` makes such a dataset.")
    names = [to_local_name(one.name) for one in file.shards]
    pattern = replace(recorded_range(file) or parse_pattern(names), folder=folder.path)
    there = folder.names()
    own = {*names, *map(sidecar_name, names), base + DATASET_SUFFIX, file.skipped_file}
    for name in sorted(own):
        if os.path.islink(link := folder.full_path(name)):
            found = "a symbolic link, to a file that would keep the samples"
            raise OutputExists(link, found, expected="the file itself")
    others = [name for name in there if pattern.owns(name) and name not in own]
    others += [name for name in there if name.startswith(f".{base}.before-repair")]
    if others:
        remedy = "They may hold the samples, too: finish the run that made them, or remove them."
        found = f"{pluralize(len(others), 'file')} that the dataset does not list: {format_list(sorted(others), _MAX_LISTED_KEYS)}"
        raise OutputExists(path, found, expected="none", remedy=remedy)
    start, end = (pattern.prefix, pattern.suffix) if pattern.names is None else ("", "")
    numbered = [name for name in there if start and name.startswith(start) and name.endswith(end) and name not in own]
    alike = tuple(sorted(name for name in numbered if name[len(start) : len(name) - len(end)].isdecimal()))
    return Removal(folder, base, pattern, dataset, file, StaleIndexes(folder, pattern, there, appends=False), alike)


def _choose_samples(removals: list[Removal], options: RemoveOptions, *, finished: bool) -> list[Removal]:
    """Return the datasets that have samples which are to go, with these, found by the indexes alone.

    Args:
        removals: All datasets.
        options: What was asked for.
        finished: Whether some have just gone, so that there need be no more.

    Raises:
        InvalidRequest: There are none, one that was asked for is not there, or no other one would be left.
        CorruptShard: An index is damaged.
    """
    import numpy as np

    from shardtool.entries.strings import PackedStrings
    from shardtool.publish.dataset_keys import encode_shard_keys
    from shardtool.source.keys_from import find_samples_by_key
    from shardtool.verbs.inspect.find_samples import selected_shards

    keys: list[bytes] = []
    rows: list[NDArray[np.int64]] = []
    try:
        for piece in selected_shards([one.dataset for one in removals], options.where):
            piece.raise_damage()
            keys.append(encode_shard_keys(piece.shard_index))
            rows.append(piece.rows)
    except InvalidRequest:
        if finished:  # just now, all of them have gone
            return []
        raise
    if options.keys_from is not None:
        gone = {mark for one in removals for mark in one.gone()}
        places = find_samples_by_key(PackedStrings.parse(b"".join(keys)), options.keys_from, gone)
        starts = np.cumsum([0, *map(len, rows)])
        parts = np.split(places, np.searchsorted(places, starts[1:-1]))
        rows = [some - start for some, start in zip(parts, starts, strict=False)]
    each = [(one, shard) for one in removals for shard in one.dataset.shards]
    for (one, shard), some, names in zip(each, rows, keys, strict=True):
        if len(some):
            of_shard = names[:-1].split(b"\0")
            one.rows[shard.number] = some
            one.keys += [of_shard[at] for at in some.tolist()]
    for one in removals:
        if len(one.keys) == sum(shard.samples for shard in one.file.shards):
            found, remedy = f"all of its {pluralize(len(one.keys), 'sample')}", "Remove its files instead."
            raise InvalidRequest(one.path, found, expected="some that stay", remedy=remedy)
    return [one for one in removals if one.rows]


@dataclass(slots=True)
class Removal:
    """A dataset, and which of its samples are to go.

    Attributes:
        folder: Where it lies.
        base: The name of its dataset file, without the ending.
        pattern: The names of its files.
        dataset: Its shards.
        file: What its dataset file says.
        beside: The index files of other tools.
        alike: Files beside that are called like shards, but for how the number is written.
        rows: The samples that are to go, by the numbers of their shards.
        keys: Their keys.
    """

    folder: Folder
    base: str
    pattern: ShardPattern
    dataset: StoredDataset
    file: DatasetFile
    beside: StaleIndexes
    alike: tuple[str, ...] = ()
    rows: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The path of its dataset file."""
        return self.folder.full_path(self.base + DATASET_SUFFIX)

    @property
    def shards(self) -> list[StoredShard]:
        """The shards that are written again."""
        return [shard for shard in self.dataset.shards if shard.number in self.rows]

    def gone(self) -> set[str]:
        """Return the marks of the keys of samples that were removed before."""
        return {one.key for one in read_skipped_rows(self.file, self.folder.path) if one.code == "removed"}

    @reporting_memory_errors("removing samples")
    def carry_out(self, pool: Pool, notes: Notes, *, dry: bool) -> RemovalSummary:
        """Write the shards again without the samples, and replace them; `dry`: only find out what that takes.

        Raises:
            CorruptShard: A shard or an index of theirs is damaged.
            OutputFailed: The file system refuses.
        """
        import numpy as np

        from shardtool.plan.plan import plan_by_counts
        from shardtool.source.shard_listing import list_datasets

        shards, rows = self.shards, [*self.rows.values()]
        paths = [shard.path for shard in shards]
        entries = list_datasets([paths], pool, Observer(), to_format=self.file.format).entries
        counts = np.bincount(entries.known_spans.file, minlength=len(shards))
        starts, left = np.cumsum(counts) - counts, counts - [len(some) for some in rows]
        doomed = np.concatenate([start + some for start, some in zip(starts, rows, strict=True)])
        stay = entries.take(np.setdiff1d(np.arange(len(entries)), doomed))
        plan = plan_by_counts(stay, self.file.format, left.tolist())
        size, before = int(plan.sizes.sum()), sum(one.entry.size for one in shards if one.entry)
        empty = tuple(one.name for one, count in zip(shards, left.tolist(), strict=True) if not count)
        result = RemovalSummary(
            dataset_file=self.path,
            removed=len(self.keys),
            samples=sum(one.samples for one in self.file.shards) - len(self.keys),
            shards=len(self.file.shards),
            rewritten=tuple(one.name for one in shards),
            empty=empty,
            size=size,
            freed=before - size,
            fingerprint="",
        )
        if self.alike:
            notes.add(
                f"{format_list([*self.alike], _MAX_LISTED_KEYS)}: no part of the dataset, and may hold these samples, too"
            )
        if dry:
            return result
        file = self._replace(plan, entries.take(doomed), pool, notes)
        if empty:
            stays = "no sample any more; the file stays, so that shards keep their numbers"
            notes.add(f"{format_list([*empty], _MAX_LISTED_KEYS)}: {stays}")
        notes.add(*self.beside.removal_notes(self.path))
        return replace(result, fingerprint=file.fingerprint)

    def _replace(self, plan: Plan, doomed: SampleTable, pool: Pool, notes: Notes) -> DatasetFile:
        """Stage all that is new, and let it take the place of the old; return what the dataset file says."""
        folder, beside = self.folder, self.beside
        self._discard()
        check_space(folder, int(plan.sizes.sum()), "written")
        pool.check(output=folder.path)
        try:
            made = self._pack(plan, pool, notes)
            rows = self._rows()
            file = self._dataset_file(made, doomed, rows)
            if rows:
                folder.stage_bytes(self.file.skipped_file, rows)
            for shard in self.shards:
                beside.drop(to_local_name(shard.name))
            beside.remove()
            folder.publish(folder.stage_bytes(replacement_plan_name(self.base), file.encode()))
            _carry_out_plan(folder, self.base)
        except BaseException:
            if not folder.facts([replacement_plan_name(self.base)]):
                self._discard()
            raise
        return file

    def _discard(self) -> None:
        """Remove what a killed run has left under temporary names: of any run, for it may hold the samples, too."""
        remove_staged(Destination(self.folder, self.pattern, "error"))
        self.folder.discard_staged(
            [self.file.skipped_file, self.base + DATASET_SUFFIX, replacement_plan_name(self.base)]
        )

    def _pack(self, plan: Plan, pool: Pool, notes: Notes) -> dict[str, tuple[ShardEntry, ShardTally, ShardTally]]:
        """Stage the shards and their sidecars; return what is to be said of each, and its figures before and after."""
        from shardtool.dataset import sidecar_write
        from shardtool.plan.shard_task import build_shard_samples
        from shardtool.write.pack_shard import pack_shard

        observer, found, now = notes.observer, {}, time.time_ns()
        tasks = [
            ShardTask(at, to_local_name(one.name), plan.format, self.folder, build_shard_samples(plan, at), "stop", now)
            for at, one in enumerate(self.shards)
        ]
        observer.start(len(plan), int(plan.sizes.sum()), len(tasks))
        for at, result in pool.map(pack_shard, tasks, lambda _, *done: observer.advance(done[0], done[1], 0)):
            task, before = tasks[at], self.shards[at].index()
            index = sidecar_write.written_index(plan.format, task.samples.content, plan.metadata(at), result.field_crcs)
            fact = before.fact._replace(size=result.size, crc=result.crc, plan="", made=None)
            data, _ = sidecar_write.encode_sidecar(index, fact)
            self.folder.stage_bytes(sidecar_name(task.name), data)
            tally = index.tally()
            found[fact.name] = tally.entry(fact, data), before.tally(), tally
            observer.advance(0, 0, 1)
            observer.shard(task.name, "written", tally.samples, fact.size)
        return found

    def _dataset_file(
        self, made: Mapping[str, tuple[ShardEntry, ShardTally, ShardTally]], doomed: SampleTable, rows: bytes
    ) -> DatasetFile:
        """Return what the dataset file says once the samples have gone; `rows`: what was left out."""
        file, fields, size = self.file, Counter(self.file.fields), self.file.field_bytes
        for _, before, after in made.values():
            fields.subtract(before.fields)
            fields.update(after.fields)
            size += after.field_bytes - before.field_bytes
        counts = {name: count for name, count in fields.items() if count > 0}
        shards = tuple(made[one.name][0] if one.name in made else one for one in file.shards)
        total = sum(one.samples for one in shards)
        kinds = {name: one.kind for name, one in file.features.items()}
        lists = [name for name, one in file.features.items() if one.is_list]
        removed = file.made.removed + len(self.keys)
        return replace(
            file,
            shards=shards,
            fields=counts,
            field_bytes=size,
            skipped=rows.count(b"\n"),
            skipped_crc=crc32c(rows) if rows else None,
            features=tf_features(counts, kinds, total, lists) if file.features else {},
            types={name: kind for name, kind in file.types.items() if name in counts},
            fingerprint=self._fingerprint(doomed),
            made=RunRecord({**file.made.document, "removed": removed}),
        )

    def _rows(self) -> bytes:
        """Return the list of what was left out, with the samples that go, and without what names them."""
        why = "removed from the dataset; this is a hash of its key"
        new = [Skipped(hash_key(key), "", "removed", why) for key in self.keys]
        old = drop_keys(read_skipped_rows(self.file, self.folder.path), {*map(printable, self.keys)})
        return encode_skipped(merge_skipped(old, new))

    def _fingerprint(self, doomed: SampleTable) -> str:
        """Return the content fingerprint without the samples that go; empty where it is not known."""
        from shardtool.plan.plan import plan_by_counts
        from shardtool.plan.shard_task import build_shard_samples
        from shardtool.write.pack_shard import read_fingerprint

        whole = sum_fingerprints([self.file.fingerprint])
        if whole is None:
            return ""
        samples = build_shard_samples(plan_by_counts(doomed, self.file.format, [len(doomed)]), 0)
        gone: int | None = None
        with suppress(ShardError):  # they may go because they are damaged
            gone = read_fingerprint(ShardTask(0, "", self.file.format, self.folder, samples, "stop", 0))
        expected, known = doomed.known_spans.expected, not samples.content.lists
        if gone is None and known and bool((expected[doomed.rows.kind == SPAN] >= 0).all()):
            gone = compute_content_fingerprint(samples.content, expected.astype("<u4").tobytes(), ())
        return "" if gone is None else format_fingerprint(whole - gone)
