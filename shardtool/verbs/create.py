"""`create`: a source becomes a dataset. The library twin of `shardtool create`.

The flow, top to bottom: list the source, plan the shards, hand each to a worker, and publish what
comes back: shard, sidecar, and when all are there the dataset file.

Start-up is a part of the work: on 60,000 files, importing pyarrow and NumPy costs more than
packing. So workers are forked before anything heavy is imported, list the source while a thread of
the parent imports what the plan and the sidecars need, and never need it themselves.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, get_args

from shardtool import __version__
from shardtool.errors import InvalidRequest, SampleFailed, listing, printable
from shardtool.execute.local import LocalPool, StartMethod, cores
from shardtool.pattern import ShardPattern, parse_pattern
from shardtool.publish import IfExists, Publisher
from shardtool.sample import Dots, OnError, Oversize, Skipped, counted, parse_size
from shardtool.source.scan import NO_FIELD, ScanRules, Symlinks, scan, share_out
from shardtool.storage import inside, open_folder, source_root
from shardtool.verbs.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.interop.portability import Misread
    from shardtool.plan import Plan
    from shardtool.source.entries import Entries
    from shardtool.source.scan import ScanPart
    from shardtool.storage import Folder

_SCAN_TASKS = 32  # enough to keep a few workers busy to the end


_CHOICES = {
    "oversize": get_args(Oversize),
    "symlinks": get_args(Symlinks),
    "dots": (None, *get_args(Dots)),
    "on_error": get_args(OnError),
    "if_exists": get_args(IfExists),
    "start_method": get_args(StartMethod),
}


def _option(name: str) -> str:
    """Return how the command line calls an option."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """How to make a dataset; each has an option of the same name on the command line.

    Attributes:
        max_size: Bytes of a finished shard at most: a number, or text such as `500MB`.
        max_count: Samples in a shard at most.
        equal_count: Shards hold equally many samples, give or take one.
        shards_multiple_of: The number of shards is a multiple of this.
        oversize: What becomes of a sample that fits in no shard: `error`, `alone` or `skip`.
        shuffle: Put the samples into one global random order.
        seed: Of that order.
        include: Globs; where there are any, a file must match one.
        exclude: Globs; files and folders that match one are left out.
        hidden: Names that start with a dot count.
        symlinks: `inside` (the tree), `follow` or `skip`.
        dots: Where the key ends: at the `first` dot of a name, or the `last`; None: the first, unless names look torn.
        label_from_folder: Add the field `cls`, the number of the top folder.
        portable: Make names safe for every reader.
        on_error: `stop` at a sample that cannot be read, or `skip` and list it.
        if_exists: `error`, `resume` or `overwrite`.
        workers: Processes; None: the cores that this process may use.
        start_method: `auto`, `fork` or `spawn`.
    """

    max_size: str | int | None = None
    max_count: int | None = None
    equal_count: bool = False
    shards_multiple_of: int = 1
    oversize: Oversize = "error"
    shuffle: bool = False
    seed: int = 0
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    hidden: bool = False
    symlinks: Symlinks = "inside"
    dots: Dots | None = None
    label_from_folder: bool = False
    portable: bool = False
    on_error: OnError = "stop"
    if_exists: IfExists = "error"
    workers: int | None = None
    start_method: StartMethod = "auto"

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if (value := getattr(self, name)) not in known:
                choices = ", ".join(str(one) for one in known)
                raise InvalidRequest(_option(name), repr(value), expected=f"one of {choices}")
        for name in ("include", "exclude"):
            if isinstance(globs := getattr(self, name), str):
                raise InvalidRequest(_option(name), repr(globs), expected=f"several globs, such as ({globs!r},)")
        for name in ("max_count", "shards_multiple_of", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequest(_option(name), str(value), expected="one or more")

    def recorded(self) -> dict[str, object]:
        """Return the options that decide the dataset's bytes, where they differ from the default."""
        passing = {"workers", "start_method", "if_exists", "on_error"}
        found = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name not in passing and value != one.default and not (one.name == "seed" and not self.shuffle):
                found[one.name] = list(value) if isinstance(value, tuple) else value
        if self.max_size is not None:
            found["max_size"] = parse_size(self.max_size)  # 500MB and 500000000 are the same request
        return found


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard of a dry run; `size` is the finished file's bytes."""

    name: str
    samples: int
    size: int
    first_key: str
    last_key: str


@dataclass(frozen=True, slots=True)
class DryRun:
    """What `create` would write."""

    dataset_file: str
    shards: tuple[PlannedShard, ...]
    skipped: int
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the plan as data, the way `--json` prints it."""
        return {
            "dry_run": True,
            "dataset_file": self.dataset_file,
            "shards": [{one.name: getattr(shard, one.name) for one in fields(PlannedShard)} for shard in self.shards],
            "totals": {
                "shards": len(self.shards),
                "samples": sum(shard.samples for shard in self.shards),
                "size": sum(shard.size for shard in self.shards),
                "skipped": self.skipped,
            },
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class CreateResult:
    """A finished dataset.

    Attributes:
        dataset_file: Its path.
        shards: How many.
        kept: How many of them an earlier run had finished.
        samples: How many were written.
        skipped: How many files and samples were left out; `out.skipped` lists them.
        size: Bytes of all shards.
        seconds: How long it took.
        fingerprint: Of the content; the same for the same samples in any order, number of shards, and format.
        notes: What the user was told.
        features: Only for TFRecord: feature to what `tf.io.parse_single_example` wants for it.
    """

    dataset_file: str
    shards: int
    kept: int
    samples: int
    skipped: int
    size: int
    seconds: float
    fingerprint: str
    notes: tuple[str, ...]
    features: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the result as data, the way `--json` prints it."""
        found: dict[str, object] = {one.name: getattr(self, one.name) for one in fields(self)}
        return found | {"notes": list(self.notes), "seconds": round(self.seconds, 3)}


def create(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    options: CreateOptions | None = None,
    *,
    observer: Observer | None = None,
) -> CreateResult:
    """Write the samples of `source` into shards, with sidecars and a dataset file.

    Args:
        source: A folder tree. Files that share a key are one sample.
        output: A shard pattern such as `out-{000000..}.tar`, or the shards' names.
        options: See `CreateOptions`.
        observer: Is told of progress, and of what the user should know.

    Raises:
        InvalidRequest: The request makes no sense; nothing was written.
        OutputExists: The output is there already, or another run is writing it; nothing was touched.
        SampleFailed: Samples cannot be read; finished shards are kept for `if_exists="resume"`.
        OutputFailed: The output cannot be written.
        WorkerDied: A worker was killed.
    """
    options, observer, begun = options or CreateOptions(), observer or Observer(), time.time()
    job = _Job(os.fspath(source), parse_pattern(output), options, observer)
    job.publisher.check()
    with LocalPool(options.workers or cores(), options.start_method) as pool:
        plan, notes = job.plan(pool)
        from shardtool.verbs.packing import Packing

        job.folder.ready()
        with job.folder.lock(job.pattern.base):
            job.publisher.check()
            try:
                job.publisher.clean()
                packing = Packing(plan, job.publisher, options.on_error, begun, observer)
                packing.pack(pool)
                dataset = packing.publish_dataset(job.made())
            finally:
                pool.close()  # nobody stages any more
                job.publisher.clean()
    return CreateResult(
        dataset_file=job.folder.full_path(job.pattern.dataset_file),
        shards=plan.shards,
        kept=packing.kept,
        samples=sum(shard.samples for shard in dataset.shards),
        skipped=dataset.skipped,
        size=sum(shard.size for shard in dataset.shards),
        seconds=time.time() - begun,
        fingerprint=dataset.fingerprint,
        notes=notes,
        features=dataset.features,
    )


def dry_run(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    options: CreateOptions | None = None,
    *,
    observer: Observer | None = None,
) -> DryRun:
    """Return what `create` would write, to the byte; write nothing.

    Raises:
        InvalidRequest: The request makes no sense.
        SampleFailed: The source has files that cannot be packed.
    """
    options = options or CreateOptions()
    job = _Job(os.fspath(source), parse_pattern(output), options, observer or Observer())
    with LocalPool(options.workers or cores(), options.start_method) as pool:
        plan, notes = job.plan(pool)
    shards = []
    for shard in range(plan.shards):
        first, last = plan.span(shard)
        keys = printable(plan.key_at(first)), printable(plan.key_at(last - 1))
        shards.append(PlannedShard(job.pattern.shard(shard), last - first, int(plan.sizes[shard]), *keys))
    left_out = len(plan.entries.left_out) + len(plan.left_out)
    return DryRun(job.folder.full_path(job.pattern.dataset_file), tuple(shards), left_out, notes)


@dataclass
class _Job:
    """A request that makes sense so far."""

    source: str
    pattern: ShardPattern
    options: CreateOptions
    observer: Observer
    folder: Folder = field(init=False)
    publisher: Publisher = field(init=False)

    def __post_init__(self) -> None:
        self.folder = open_folder(self.pattern.folder)
        self.publisher = Publisher(self.folder, self.pattern, self.options.if_exists)

    def plan(self, pool: LocalPool) -> tuple[Plan, tuple[str, ...]]:
        """List the source and decide what goes where; tell the user what to know before a byte is written."""
        options = self.options
        entries = self._entries(pool)
        from shardtool.plan import Bounds, make_plan

        max_size = None if options.max_size is None else parse_size(options.max_size)
        bounds = Bounds(max_size, options.max_count, options.equal_count, options.shards_multiple_of, options.oversize)
        plan = make_plan(entries, self.pattern, bounds, options.seed if options.shuffle else None)
        notes = [*plan.notes, *_left_out_notes(entries)]
        if self.pattern.format == "tar":
            notes += map(str, _misreads(plan.entries, options))
        if plan.shards == 1 and self.pattern.format == "tar":
            name = self.pattern.shard(0)
            notes.append(
                f"Hugging Face load_dataset(folder) cannot tell a single shard from its JSON: "
                f"name the data with data_files={name!r} there"
            )
        notes = [printable(note) for note in notes]
        for note in notes:
            self.observer.note(note)
        return plan, tuple(notes)

    def made(self) -> dict[str, object]:
        """Return how the dataset is made, as its dataset file tells."""
        return {
            "verb": "create",
            "source": printable(os.fsencode(os.path.basename(os.path.realpath(self.source)))),
            "options": self.options.recorded(),
            "tool": f"shardtool {__version__}",
        }

    def _entries(self, pool: LocalPool) -> Entries:
        """List the source in the workers, while a thread imports what comes next."""
        ahead = threading.Thread(target=importlib.import_module, args=("shardtool.verbs.packing",), daemon=True)
        root = source_root(self.source)
        rules = self._rules(root)
        left_out: list[Skipped] = []
        tasks = share_out(root, rules, _SCAN_TASKS, left_out)
        ahead.start()
        found: dict[int, ScanPart] = {}
        for number, part in pool.map(scan, tasks):
            found[number] = part
            self.observer.listed(len(part.counts))
        parts = [found[number] for number in sorted(found)]
        ahead.join()
        from shardtool.interop.portability import check_case, make_portable
        from shardtool.source import folder

        entries = folder.collect(root, parts, left_out)
        _check_left_out(self.source, entries.left_out, self.options.on_error)
        if self.options.label_from_folder:
            entries = folder.label_from_folder(entries)
        if self.options.dots is None:
            folder.check_torn(entries)
        if self.options.portable:
            return make_portable(entries)
        folder.check_utf8(entries)
        if self.pattern.format == "tar":
            check_case(entries)
        return entries

    def _rules(self, root: bytes) -> ScanRules:
        options = self.options
        within = inside(self.pattern.folder, root)
        own = None if within is None else (within, self.pattern)
        return ScanRules(
            options.include, options.exclude, options.hidden, options.symlinks, options.dots or "first", own
        )


def _check_left_out(source: str, left_out: tuple[Skipped, ...], on_error: OnError) -> None:
    """Refuse a source with files that cannot be packed, unless they are to be skipped."""
    failed = [one for one in left_out if one.code != NO_FIELD]
    if failed and on_error == "stop":
        named = listing([f"{printable(one.path)} ({one.message})" for one in failed])
        raise SampleFailed(
            source, f"{counted(len(failed), 'file')} cannot be packed: {named}",
            remedy="Mend or --exclude them, or leave them out with --on-error skip. Nothing was written.",
        )  # fmt: skip


def _left_out_notes(entries: Entries) -> list[str]:
    by_code: dict[str, list[str]] = {}
    for one in entries.left_out:
        by_code.setdefault(one.code, []).append(printable(one.path))
    text = {NO_FIELD: "file left out, without an ending that could name a field"}
    return [
        f"{counted(len(paths), text.get(code, f'file left out ({code})'))}: {listing(paths, 3)}"
        for code, paths in by_code.items()
    ]


def _misreads(entries: Entries, options: CreateOptions) -> list[Misread]:
    from shardtool.interop.portability import misreads

    found = misreads(entries)
    if options.portable or not any(one.mendable for one in found):
        return found
    return [
        replace(one, readers=f"{one.readers} (--portable makes them safe)") if one.mendable else one for one in found
    ]
