"""What `create` and `reshard` share: samples from a source become one dataset, or one a split.

The flow, top to bottom: list the source, divide it, plan the shards, hand each to a worker, and publish
what comes back: shard, sidecar, and when all are there the dataset file.

Start-up is a part of the work: on 60,000 files, importing pyarrow and NumPy costs more than
packing. So workers are forked before anything heavy is imported, list the source while a thread of
the parent imports what the plan and the sidecars need, and never need it themselves.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardtool._version import __version__
from shardtool.errors import CorruptShard, InvalidRequest, listing, memory_for, printable
from shardtool.execute.local import LocalPool, cores
from shardtool.interop.exports import wanted_exports
from shardtool.pattern import ShardPattern, parse_pattern
from shardtool.publish.publisher import Publisher
from shardtool.request.observer import Observer
from shardtool.request.results import AppendedPart, CreateResult, DryRun, PlannedShard, SplitResult
from shardtool.source.base import left_out_notes
from shardtool.storage.staging import open_folder
from shardtool.values import SPAN, SpanFile, counted, parse_size, to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.entries.entries import Entries
    from shardtool.interop.portability import Misread
    from shardtool.names import Names as Columns
    from shardtool.pack.rounds import Manner, Packing
    from shardtool.plan.plan import Plan
    from shardtool.request.options import OutputOptions
    from shardtool.request.results import Changes
    from shardtool.request.split_options import SplitOptions
    from shardtool.source.base import Source
    from shardtool.transform.steps import Transform
    from shardtool.values import Dots

    Names = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

SPLIT = "{split}"
_OF_WORKERS = ("shardtool.write.shard", "shardtool.write.tar_copy")
_MARK = "\ue000"  # stands for it where braces cannot: a letter of nobody's


def write_dataset(begin: Callable[..., Job], options: OutputOptions, observer: Observer | None) -> CreateResult:
    """Write the samples of a source into shards, with sidecars and a dataset file.

    Args:
        begin: Makes the job; it gets the observer, and whether nothing is written.
        options: What was asked for.
        observer: Is told of progress, and of what the user should know.
    """
    begun = time.time()
    with start_pool(options) as pool, ExitStack() as locks:
        job = begin(observer or Observer(), dry=False)
        entries, divided = job.entries(pool)
        from shardtool.pack.rounds import Manner, Packing

        spooled = entries.offset is not None and not entries.files
        if spooled:  # workers read binary columns from a spool beside the output
            job.open(locks)
        try:
            if spooled:
                entries = job.spool(entries)
            plans = job.plan(entries, divided, pool)
            job.open(locks)
            manner = Manner(
                options.on_error, begun, options.oversize, job.transform, job.identity,
                options.equal_count, options.shards_multiple_of, options.trust, job.dots,
            )  # fmt: skip
            plans = job.arrange(plans, manner, pool)
            done = []
            for target, plan in zip(job.targets, plans, strict=True):
                packing = Packing(plan, target.publisher, manner, job.observer)
                packing.pack(pool)
                job.note(*map(str, packing.misread.values()))
                done.append((target, packing))
            job.check_written(done)
            finished = [(*one, one[1].publish_dataset(job.made(one[0]))) for one in done]
            job.tell_removed()
            for target in job.targets:
                job.export(target, pool)
        finally:
            pool.close()  # nobody stages any more
            job.clean()
    return job.result(finished, time.time() - begun)


def plan_dataset(begin: Callable[..., Job], options: OutputOptions, observer: Observer | None) -> DryRun:
    """Return what `write_dataset` would write, to the byte unless samples are changed on the way; write nothing."""
    with start_pool(options) as pool:
        job = begin(observer or Observer(), dry=True)
        entries, divided = job.entries(pool)
        plans = job.plan(entries, divided, pool)
    shards = []
    for target, plan in zip(job.targets, plans, strict=True):
        for shard in range(plan.shards):
            first, last = plan.span(shard)
            keys = printable(plan.key_at(first)), printable(plan.key_at(last - 1))
            shards.append(PlannedShard(job.shown(target, shard), last - first, int(plan.sizes[shard]), *keys))
    left_out = len(entries.left_out) + sum(len(plan.left_out) for plan in plans)
    return DryRun(job.dataset_file(), tuple(shards), left_out, tuple(job.notes), job.changes)


def start_pool(options: OutputOptions) -> LocalPool:
    """Start the workers, before anything is imported that starts threads: then they can be forked.

    What they need is imported before, once for all of them.
    """
    for name in _OF_WORKERS:
        import_module(name)
    again = "Run the same command with --resume: finished shards are kept."
    return LocalPool(options.workers or cores(), options.start_method, again)


class Target:
    """One dataset to be written: all of it, or a split."""

    def __init__(self, split: str, pattern: ShardPattern, options: OutputOptions) -> None:
        self.split, self.pattern = split, pattern
        self.folder = open_folder(pattern.folder)
        self.publisher = Publisher(self.folder, pattern, options.if_exists)

    @property
    def dataset_file(self) -> str:
        """The path of its dataset file."""
        return self.folder.full_path(self.pattern.dataset_file)


class Job:
    """A request that makes sense so far.

    Args:
        open_source: Returns the source; it gets the patterns of the output.
        output: A shard pattern, or the shards' names; with `{split}` in it for splits.
        options: What was asked for.
        observer: Is told of progress.
        verb: For the dataset file.
        transform: What is done to samples; None: nothing.
        dry: Nothing will be written.

    Attributes:
        changes: What a run that resumes would change, once it is planned; None where nothing was there.
    """

    def __init__(  # noqa: PLR0913 - what there is to say
        self,
        open_source: Callable[[list[ShardPattern]], Source],
        output: Names,
        options: OutputOptions,
        observer: Observer,
        *,
        verb: str,
        transform: Transform | None,
        dry: bool,
    ) -> None:
        self.verb, self.options, self.observer, self.dry = verb, options, observer, dry
        self.notes: list[str] = []
        self._names = [os.fspath(one) for one in ([output] if isinstance(output, (str, os.PathLike)) else output)]
        self._dividing = options.of_split()
        self.transform = transform
        self.identity = transform.identity() if transform else ""
        self.dots: Dots = "first"  # at which a key ends in a member's name
        self._check_names()
        self.exports = wanted_exports(options.export, self._pattern(_MARK).format)
        known = [name for name, _ in self._dividing.shares] if self._dividing else [""]
        self.targets = self._targets(known)
        self._opened = False
        self.changes: Changes | None = None
        self._check_targets()
        patterns = [target.pattern for target in self.targets] or [self._pattern(_MARK)]  # a column will name splits
        self.source = open_source(patterns)
        if self._appends:
            self.source.taken = self._taken_keys

    @property
    def _appends(self) -> bool:
        return any(target.publisher.appends for target in self.targets)

    def _check_targets(self) -> None:
        """See what is there already; a dry run looks only at what it would append to."""
        for target in self.targets:
            if not self.dry or target.publisher.appends or target.publisher.resumes:
                target.publisher.check()

    def _taken_keys(self) -> Columns:
        from shardtool.names import Names as Columns
        from shardtool.publish.append import taken_keys

        found = [taken_keys(target.publisher, self.made(target)) for target in self.targets]
        return Columns.parse(b"".join(names.span(0, len(names)) for names in found))

    def _check_names(self) -> None:
        has = any(SPLIT in name for name in self._names)
        if has and self._dividing is None:
            also = ", --split-column or --split-from-folder" if self.verb == "create" else " or --split-column"
            expected = f"--split train=0.8,val=0.2{also}"
            raise InvalidRequest(self._names[0], "{split} without splits", expected=expected)
        if self._dividing is not None and not all(SPLIT in name for name in self._names):
            raise InvalidRequest(
                self._names[0], "no {split} in it", expected="a pattern such as out-{split}-{000000..}.tar"
            )

    def _targets(self, splits: list[str]) -> list[Target]:
        targets = [Target(split, self._pattern(split), self.options) for split in splits]
        for one in targets:
            for other in targets:
                shared = other.pattern.owned_by(one.pattern) if one is not other else None
                if shared:
                    raise InvalidRequest(
                        self._names[0], f"{shared} may be a file of the splits {one.split} and {other.split}",
                        expected="names that tell them apart, such as out-{split}-{000000..}.tar",
                    )  # fmt: skip
        return targets

    def _pattern(self, split: str) -> ShardPattern:
        return parse_pattern([name.replace(SPLIT, split) for name in self._names])

    def shown(self, target: Target, shard: int) -> str:
        """Return a shard's name for a plan: with its folder where splits lie in several."""
        folders = [os.path.abspath(one.pattern.folder or ".") for one in self.targets]
        name = target.publisher.pattern_left.shard(shard)
        if len(set(folders)) == 1:
            return name
        folder = os.path.abspath(target.pattern.folder or ".")
        return os.path.join(os.path.relpath(folder, os.path.commonpath(folders)), name)

    @memory_for("listing the source")
    def entries(self, pool: LocalPool) -> tuple[Entries, list[NDArray[Any] | None]]:
        """List the source; return its samples, and which of them each target gets (None: all)."""
        options = self.options
        entries = self.source.entries(pool, self.observer)
        self.note(*self.source.notes)
        from shardtool.source.naming import check_names

        if not options.portable:
            check_names(entries, skip=self.source.may_skip_names)
        self._settle_dots(entries)
        divided: list[NDArray[Any] | None] = [None]
        if self._dividing is not None:
            entries, divided = self._divide(entries, self._dividing)
        is_tar = self.targets[0].pattern.format == "tar"
        from shardtool.select.portable import check_case, make_portable

        if options.portable:
            if self._dividing is not None:
                other = "--split" if self._dividing.column is None else self._dividing.option
                raise InvalidRequest("--portable", f"used with {other}", remedy="Choose one of them.")
            return _keep_source_paths(make_portable(entries, by_key=self.source.by_key)), divided
        if is_tar:
            check_case(entries)
        return entries, divided

    def _settle_dots(self, entries: Entries) -> None:
        """See that keys and fields can be told apart in a tar; where only the last dot does, record that it does."""
        known: Mapping[str, object] = {**self.options.recorded(), **self.source.recorded}
        asked: Dots | None = "last" if known.get("dots") == "last" else "first" if "dots" in known else None
        self.dots = asked or "first"
        if self._pattern(_MARK).format != "tar" or (self.options.portable and asked != "last"):
            return
        from shardtool.source.naming import choose_dots

        self.dots, note = choose_dots(entries, asked, self.source.name)
        if note:
            self.source.recorded = {**self.source.recorded, "dots": self.dots}
            self.note(note)

    def _divide(self, entries: Entries, options: SplitOptions) -> tuple[Entries, list[NDArray[Any] | None]]:
        """Return the samples with the column `split`, and which of them each split has."""
        from shardtool.entries.metadata import with_split
        from shardtool.select.splits import divide

        values = self.source.column(options.reads[1]) if options.reads else None
        splits = divide(entries.keys, options, values)
        self.note(*splits.notes)
        if options.column is not None:
            self.targets = self._targets([*splits.names])
            self.source.outputs = [target.pattern for target in self.targets]
            self._check_targets()
        chosen = [splits.samples(at) for at in range(len(splits.names))]
        if empty := [name for name, samples in zip(splits.names, chosen, strict=True) if not len(samples)]:
            raise InvalidRequest(
                "--split", f"no sample falls into {', '.join(empty)}: {len(entries):,} in all",
                remedy="Use larger shares, another --seed, or --stratify.",
            )  # fmt: skip
        return replace(entries, columns=with_split(entries.columns, splits.names, splits.number)), [*chosen]

    def open(self, locks: ExitStack) -> None:
        """Make the folders, take the locks, and remove what a killed run has left."""
        if self._opened:
            return
        for target in self.targets:
            target.folder.ready()
            locks.enter_context(target.folder.lock(target.pattern.base))
        self._opened = True
        for target in self.targets:
            target.publisher.check()
            target.publisher.clean()
        self._discard_scratch()

    def clean(self) -> None:
        """Remove what is staged, if the locks were taken."""
        if self._opened:
            for target in self.targets:
                target.publisher.clean()
            self._discard_scratch()

    def _discard_scratch(self) -> None:
        scratch = self.source.scratch()
        if scratch is not None:
            scratch[0].discard_staged([scratch[1]])

    def spool(self, entries: Entries) -> Entries:
        """Write binary columns to one file beside the output; `clean` removes it."""
        publisher = self.targets[0].publisher
        size = int(entries.size[entries.kind == SPAN].sum())
        path = publisher.spool(size, self.source.write_binary)
        return replace(entries, files=(SpanFile(os.fsencode(path), size, -1),))

    @memory_for("planning the shards")
    def plan(self, entries: Entries, divided: list[NDArray[Any] | None], pool: LocalPool) -> list[Plan]:
        """Decide what goes where; tell the user what to know before a byte is written."""
        options = self.options
        from shardtool.plan.cuts import Bounds
        from shardtool.plan.plan import make_plan

        max_size = None if options.max_size is None else parse_size(options.max_size)
        bounds = Bounds(max_size, options.max_count, options.equal_count, options.shards_multiple_of, options.oversize)
        estimate = None
        if self.transform is not None:
            self.transform.check_fields(entries.fields)
            from shardtool.pack.estimate import estimate_sizes

            spooled = entries.offset is None or bool(entries.files)
            estimate = estimate_sizes(entries, self.targets[0].pattern, self.transform if spooled else None, pool)
            if self.dry:
                self.note("sizes are estimates: samples are changed on the way")
        seed = options.seed if options.shuffle else None
        self._check_apart(entries)
        self._begin_append(entries, divided)
        plans = [
            make_plan(entries, target.publisher.pattern_left, bounds, seed, which=which, estimate=estimate)
            for target, which in zip(self.targets, divided, strict=True)
        ]
        self._check_appended(plans)
        self._check_resumed(plans)
        for plan in plans:
            self.note(*plan.notes)
        self.note(*left_out_notes(entries))
        if self.verb == "create" and not options.shuffle:
            from shardtool.entries.classes import sorted_note

            self.note(*{note: None for plan in plans if (note := sorted_note(entries, plan.order))})
        if self.targets[0].pattern.format == "tar":
            self.note(*map(str, _misreads(plans[0].entries, options)))
        from shardtool.pack.advice import folder_notes, name_notes

        outputs = [(target.publisher, plan.shards) for target, plan in zip(self.targets, plans, strict=True)]
        self.note(*name_notes(outputs), *folder_notes(outputs, self.exports))
        if self.exports and not self.dry:
            from shardtool.interop.huggingface import check_splits
            from shardtool.publish.exporter import check_exports

            if any(export.readme for export in self.exports.values()):
                check_splits([target.split for target in self.targets])
            for target, plan in zip(self.targets, plans, strict=True):
                shards, overwrite = target.publisher.first + plan.shards, options.if_exists != "error"
                check_exports(target.pattern, shards, self.exports, self._owns, overwrite=overwrite)
        # What the source left out belongs to no split; the first one's ledger lists it.
        return [plans[0], *(replace(plan, entries=replace(plan.entries, left_out=())) for plan in plans[1:])]

    def _check_resumed(self, plans: list[Plan]) -> None:
        """See, before anything is touched, that what is resumed is not replaced by another dataset."""
        if self.options.if_exists not in ("resume", "resume-overwrite"):
            return
        from shardtool.pack.resume import Resumed, find_changes, refusal, with_shards
        from shardtool.pack.rounds import shard_fingerprint
        from shardtool.plan.shard_samples import shard_samples
        from shardtool.request.options import share

        def named(plan: Plan) -> Callable[[int], str]:
            return lambda shard: shard_fingerprint(
                plan, shard, shard_samples(plan, shard),
                work=self.identity, oversize=self.options.oversize, dots=self.dots,
            )  # fmt: skip

        renamed = self.transform is not None and bool(self.transform.function)
        both = zip(self.targets, plans, strict=True)
        resumed = [Resumed(one.publisher, plan, self.made(one), named(plan), renamed) for one, plan in both]
        self.changes = find_changes(resumed)
        if self.changes is None:
            return
        most = share("--max-removed", self.options.max_removed)
        if self.options.if_exists == "resume" and (refused := refusal(resumed, self.changes, most)) is not None:
            if not self.dry:
                raise refused
            self.note(f"this run would be refused: {refused.where}: {refused.found}; expected {refused.expected}")
        if self.dry:
            self.changes = with_shards(self.changes, resumed)

    def _check_apart(self, entries: Entries) -> None:
        """See that the output replaces and removes no file that samples lie in; what it appends to stays as it is."""
        folders = {os.path.dirname(file.path) for file in entries.files}
        for target in self.targets:
            there, old = os.path.realpath(os.fsencode(target.pattern.folder or ".")), target.publisher.old
            beside = {folder for folder in folders if os.path.realpath(folder or b".") == there}
            stay = {to_bytes(shard.name) for shard in old.shards} if old is not None else set()
            for file in entries.files:
                folder, name = os.path.split(file.path)
                if folder in beside and name not in stay and target.pattern.owns(os.fsdecode(name)):
                    raise InvalidRequest(
                        os.fsdecode(file.path), "a shard of the source, which the output would replace or remove",
                        expected="an output in another folder, or under other names",
                        remedy="Nothing was touched. The new dataset can take its place once it is complete.",
                    )  # fmt: skip

    def _begin_append(self, entries: Entries, divided: list[NDArray[Any] | None]) -> None:
        """See that samples are new to the datasets that are appended to."""
        if not self._appends:
            return
        from shardtool.publish.append import Appended, begin

        keys = [entries.keys if which is None else entries.keys.take(which) for which in divided]
        both = zip(self.targets, keys, strict=True)
        begin([Appended(target.publisher, names, self.made(target)) for target, names in both])

    def _check_appended(self, plans: list[Plan]) -> None:
        """See that samples go with those that are there; tell of other tools' indexes."""
        for target, plan in zip(self.targets, plans, strict=True):
            if (old := target.publisher.old) is not None:
                from shardtool.publish.append import append_notes, check_appended, export_notes

                check_appended(old, plan)
                if target.publisher.done_from is None:
                    self.note(*append_notes(old, plan, changed=self.transform is not None))
                self.note(*export_notes(target.publisher, self.exports))

    @memory_for("arranging the payloads")
    def arrange(self, plans: list[Plan], manner: Manner, pool: LocalPool) -> list[Plan]:
        """Return the same plans, for payloads that lie where they can be read better."""
        from shardtool.pack.rounds import new_sizes

        both = zip(plans, self.targets, strict=True)
        to_write = sum(sum(new_sizes(plan, target.publisher, manner)) for plan, target in both)
        told = len(self.source.notes)
        plans = self.source.arrange(plans, pool, self.observer, to_write)
        self.notes += self.source.notes[told:]  # the observer has heard of them
        return plans

    def check_written(self, done: list[tuple[Target, Packing]]) -> None:
        """See, before a dataset file is published, that all content is that of the source, where it tells."""
        from shardtool.fingerprint import show_fingerprint

        found, wanted = sum(packing.digest for _, packing in done), self.source.digest
        if wanted is None or any(packing.skipped for _, packing in done):
            return
        if show_fingerprint(found) != show_fingerprint(wanted):
            raise CorruptShard(
                self.source.name, f"samples with the fingerprint {show_fingerprint(found)}",
                expected=f"{show_fingerprint(wanted)}, as their dataset files say",
                remedy="No dataset file was written. `shardtool verify` tells what is wrong with the source.",
            )  # fmt: skip

    def _owns(self, name: str) -> bool:
        return any(target.pattern.owns(name) for target in self.targets)

    def tell_removed(self) -> None:
        """Tell of other tools' indexes that were removed, and are not made again by this run."""
        for target in self.targets:
            removed = target.publisher.beside.removed
            gone = {name: form for name, form in removed.items() if form not in self.exports}
            if gone:
                what = f"{counted(len(gone), 'file')} of other tools' indexes removed, since their shards changed"
                words = " ".join(f"--export {form}" for form in sorted({*gone.values()}))
                again = f"`shardtool index {target.dataset_file} {words} --overwrite` makes them again"
                self.note(f"{what} ({listing([*gone], 3)}): {again}")

    def export(self, target: Target, pool: LocalPool) -> None:
        """Write the indexes of other tools for a dataset that is there."""
        if self.exports:
            from shardtool.publish.exporter import Exporter

            exporter = Exporter(target.folder, target.pattern.dataset_file, self.exports, self.observer, self.notes)
            exporter.write(target.folder, pool, overwrite=self.options.if_exists != "error")

    def made(self, target: Target) -> dict[str, object]:
        """Return how a dataset is made, as its dataset file tells."""
        more = {"split": target.split} if target.split else {}
        return {
            "verb": self.verb,
            "source": self.source.name,
            **more,
            "options": {**self.options.recorded(), **self.source.recorded},
            "tool": f"shardtool {__version__}",
        }

    def dataset_file(self) -> str:
        """Return the dataset file's path; of several splits, with `{split}` in it."""
        if self._dividing is None:
            return self.targets[0].dataset_file
        return Target("", self._pattern(_MARK), self.options).dataset_file.replace(_MARK, SPLIT)

    def result(self, done: list[tuple[Target, Packing, DatasetFile]], seconds: float) -> CreateResult:
        """Return what the run made."""
        from shardtool.fingerprint import show_fingerprint, sum_fingerprints

        total = sum_fingerprints(dataset.fingerprint for _, _, dataset in done)
        new = [shard for target, _, dataset in done for shard in dataset.shards[target.publisher.first :]]
        splits = {
            target.split: SplitResult(
                dataset_file=target.dataset_file,
                shards=len(dataset.shards),
                kept=packing.kept,
                samples=sum(shard.samples for shard in dataset.shards),
                skipped=dataset.skipped,
                dropped=packing.dropped,
                size=sum(shard.size for shard in dataset.shards),
                fingerprint=dataset.fingerprint,
            )
            for target, packing, dataset in done
        }
        return CreateResult(
            dataset_file=self.dataset_file(),
            shards=sum(one.shards for one in splits.values()),
            kept=sum(one.kept for one in splits.values()),
            samples=sum(one.samples for one in splits.values()),
            skipped=sum(one.skipped for one in splits.values()),
            size=sum(one.size for one in splits.values()),
            seconds=seconds,
            fingerprint="" if total is None else show_fingerprint(total),
            notes=tuple(self.notes),
            dropped=sum(one.dropped for one in splits.values()),
            features=done[0][2].features,
            splits=splits if self._dividing is not None else {},
            appended=AppendedPart(len(new), sum(one.samples for one in new), sum(one.size for one in new))
            if self._appends
            else None,
            exported=tuple(self.exports),
            changes=self._changed(done),
        )

    def _changed(self, done: list[tuple[Target, Packing, DatasetFile]]) -> Changes | None:
        """Return what a run that resumed has changed, now that its shards are known."""
        if self.changes is None:
            return None
        kept = sum(packing.kept for _, packing, _ in done)
        removed = 0
        for target, _, dataset in done:
            there = {name for name in target.publisher.existing if name.endswith(target.pattern.format)}
            removed += len(there.difference(os.fsdecode(to_bytes(one.name)) for one in dataset.shards))
        written = sum(len(dataset.shards) for _, _, dataset in done) - kept
        return replace(self.changes, shards_kept=kept, shards_written=written, shards_removed=removed)

    def note(self, *notes: str) -> None:
        """Tell the user, now and in the result."""
        for note in map(printable, notes):
            self.notes.append(note)
            self.observer.note(note)


def _keep_source_paths(entries: Entries) -> Entries:
    """Return samples of a dataset whose names were made safe before with the names that they had at first."""
    known = entries.columns is not None and "source_paths" in entries.columns.column_names
    return replace(entries, source_paths=False) if known else entries


def _misreads(entries: Entries, options: OutputOptions) -> list[Misread]:
    from shardtool.interop.portability import misreads

    found = misreads(entries)
    if options.portable or not any(one.mendable for one in found):
        return found
    return [
        replace(one, readers=f"{one.readers} (--portable makes them safe)") if one.mendable else one for one in found
    ]
