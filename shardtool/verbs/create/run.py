"""One run of `create` or `reshard`: what was asked for, and the datasets that it writes.

A `Run` has an `Output` for each of them: all of the samples, or a split. Both grow as the run goes on, from top to
bottom of `write_dataset`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import permutations
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, read_dataset, shard_names
from shardtool.dataset.find import datasets_by_split
from shardtool.entries.classes import Classes, joined_classes
from shardtool.errors import InvalidRequest, OutputExists
from shardtool.interop.indexes import Export, wanted_exports
from shardtool.pattern import OUTPUT_EXAMPLE, ShardPattern, check_written, parse_pattern
from shardtool.publish.foreign_indexes import StaleIndexes
from shardtool.publish.publisher import Destination, Publisher, changed_meanwhile, clean, look
from shardtool.publish.records import check_divided_alike
from shardtool.request.options import CreateOptions, ReshardOptions
from shardtool.request.run_record import RunRecord
from shardtool.request.texts import Part, SplitOptions, parse_part
from shardtool.storage.folders import open_folder
from shardtool.storage.places import read_small, real_path
from shardtool.values import Dots, __version__, given_names, to_bytes
from shardtool.wording import option

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.dataset.shard_index import ShardFact, ShardTally
    from shardtool.entries.entries import Entries, FieldValues
    from shardtool.execute.pool import Pool
    from shardtool.plan.plan import Plan
    from shardtool.request.results import Changes
    from shardtool.request.settings import Notes
    from shardtool.skipped import Skipped
    from shardtool.source.base import Listing
    from shardtool.source.plan_file import PlanRequest
    from shardtool.storage.staging import Folder
    from shardtool.transform import Transform


OutputNames = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_SPLIT = "{split}"
_MARK = "\ue000"  # placeholder for {split} while a pattern is parsed: a private-use character


@dataclass(slots=True)
class Totals:
    """What the published shards of a dataset hold together.

    Attributes:
        values: What is known of the fields' values.
        shards: What the dataset file says of each, in the order of their numbers once all are there.
        fields: How many samples have each field.
        field_bytes: Bytes of all payloads.
        schema: The columns of the sidecars, and their types.
        digest: The content fingerprint.
        skipped: What was left out.
    """

    values: FieldValues
    shards: list[ShardEntry] = field(default_factory=list)
    fields: Counter[str] = field(default_factory=Counter)
    field_bytes: int = 0
    schema: Mapping[str, str] = field(default_factory=dict)
    digest: int = 0
    skipped: list[Skipped] = field(default_factory=list)

    def add(self, fact: ShardFact, sidecar: bytes, tally: ShardTally) -> ShardEntry:
        """Add a shard, whose digest and left out samples the caller adds; return what the dataset file says of it."""
        self.shards.append(tally.entry(fact, sidecar))
        self.field_bytes += tally.field_bytes
        self.fields.update(tally.fields)
        return self.shards[-1]

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return sum(shard.samples for shard in self.shards)


@dataclass(slots=True, eq=False, repr=False)
class Output:
    """One dataset that a run writes: all of it, or a split.

    Attributes:
        split: The split's name; empty without splits.
        destination: Where it goes, and what was there when the run looked last.
        which: The places of its samples; None: it gets all.
        plan: Which samples go into which shard, once that is decided.
        publisher: What publishes its shards, once it is locked.
        part_plan: Of a part: the fingerprint of the plan of all parts.
        totals: What its shards hold, once they are packed.
        kept: How many of them an earlier run had finished.
        dropped: How many samples the user's function dropped.
        dataset: What its dataset file says, at the end.
    """

    split: str
    destination: Destination
    which: NDArray[np.int64] | None = None
    plan: Plan = field(init=False)
    publisher: Publisher = field(init=False)
    part_plan: str = ""
    totals: Totals = field(init=False)
    kept: int = 0
    dropped: int = 0
    dataset: DatasetFile = field(init=False)

    @property
    def pattern(self) -> ShardPattern:
        """The names of its shards."""
        return self.destination.pattern

    @property
    def own_shards(self) -> range:
        """The planned shards that the run writes: all, or those of its part."""
        part = self.destination.part
        return range(self.plan.shards) if part is None else part.shards(self.plan.shards)

    def shard_name(self, shard: int) -> str:
        """Return the name of a planned shard."""
        return self.pattern.shard(self.destination.first + shard)


@dataclass(slots=True, eq=False, repr=False)
class Run:
    """One run of `create` or `reshard`.

    Attributes:
        names: A shard pattern, or the shards' names; with `{split}` in them if there are splits.
        options: What was asked for.
        pool: Its workers.
        notes: Gets what the user should know; its observer, the progress.
        begun: When the run began, before the source was listed: seconds since 1970.
        dry: Whether nothing is written.
        dividing: How samples are divided into splits; None: they are not.
        transform: What is done to samples; None: nothing.
        identity: What distinguishes the transform from any other; empty for none.
        shuffle: How samples that lie in shards are read in another order; None: they lie in none.
        exports: The indexes of other tools that are written, too.
        part: The part of the shards that is written; None: all.
        outputs: The datasets that it writes; none while their names are unknown.
        refusal: Existing output that this run may not touch: raised after the source and the query were checked.
        untouched: Those that an append has nothing new for: they stay as they are.
        listed: The samples, and what the source says of them.
        dots: The dot at which keys end in the names of a tar's members.
        changes: What a run that resumes would change; None: nothing is there.
        gone: The splits of the first run that the source has no sample of any more: they are to be removed.
        made_keys: Hashes of the keys that the user's function has given so far.
        plan_only: Where the plan is written.
        asked: What the file of the plan is of; None: none is written.
        chosen: For that file: the samples as the source has listed them.
        divides: The same: the column that they are divided by; None: there is none.
    """

    names: tuple[str, ...]
    options: CreateOptions | ReshardOptions
    pool: Pool
    notes: Notes
    begun: float
    dry: bool
    dividing: SplitOptions | None
    transform: Transform | None
    identity: str
    shuffle: ReshardOptions | None
    exports: Mapping[str, Export]
    part: Part | None
    outputs: list[Output] = field(default_factory=list)
    refusal: OutputExists | None = None
    untouched: list[Output] = field(default_factory=list)
    listed: Listing = field(init=False)
    dots: Dots = "first"
    changes: Changes | None = None
    gone: tuple[str, ...] = ()
    made_keys: set[bytes] = field(default_factory=set)
    plan_only: str = ""
    asked: PlanRequest | None = None
    chosen: Listing = field(init=False)
    divides: pa.ChunkedArray | None = None

    @property
    def verb(self) -> str:
        """`create` or `reshard`."""
        return "create" if self.shuffle is None else "reshard"

    @property
    def entries(self) -> Entries:
        """The samples."""
        return self.listed.entries

    @property
    def is_binary(self) -> bool:
        """Whether payloads lie in a table, from which no worker can read them."""
        return self.entries.spans is not None and not self.entries.spans.files

    @property
    def fetches(self) -> bool:
        """Whether samples have files of the web, of which nothing is known before."""
        return self.transform is not None and self.transform.fetch is not None

    @property
    def makes_keys(self) -> bool:
        """Whether a function of the user's makes the keys, so that no plan has those of the shards."""
        return self.transform is not None and bool(self.transform.function)

    @property
    def appends(self) -> bool:
        """Whether samples are added to a dataset that is there."""
        return self.options.if_exists in ("append", "append-resume", "update")

    @property
    def updates(self) -> bool:
        """Whether the run takes what is new of a source, and makes the datasets that are not there."""
        return self.options.if_exists == "update"

    @property
    def again(self) -> str:
        """What finishes a run of this kind that ended too early."""
        if self.updates or not self.appends:
            return option("if_exists", "update" if self.updates else "resume")
        return option("if_exists", "append-resume")

    @property
    def takes_only_new(self) -> bool:
        """Whether samples that the dataset appended to has already are passed over."""
        return self.updates or (self.verb == "create" and self.options.on_duplicate == "first")

    @property
    def format(self) -> str:
        """The format of the shards."""
        return output_pattern(self.names).format

    @property
    def dataset_file(self) -> str:
        """The dataset file's path; with `{split}` in it if there are splits."""
        pattern = output_pattern(self.names)
        return open_folder(pattern.folder).full_path(pattern.dataset_file).replace(_MARK, _SPLIT)

    @property
    def splits(self) -> list[str]:
        """The names of all splits, in the order that dataset files record."""
        return sorted(output.split for output in (*self.outputs, *self.untouched))

    def record(self, output: Output) -> RunRecord:
        """Return how a dataset is made, as its dataset file says."""
        options = {**self.options.recorded(), **self.listed.recorded}
        if self.updates and output.destination.appends:
            options.setdefault("on_duplicate", "first")  # what an update is, once there is a dataset
        return RunRecord(
            {
                "verb": self.verb,
                "source": self.listed.name,
                **({"split": output.split, "splits": self.splits} if output.split else {}),
                "options": json.loads(json.dumps(options)),
                "tool": f"shardtool {__version__}",
            }
        )


def read_run(
    output: OutputNames, options: CreateOptions | ReshardOptions, pool: Pool, notes: Notes, *, begun: float, dry: bool
) -> Run:
    """Return a run, if its options and its output make sense together.

    Raises:
        InvalidRequest: They do not.
    """
    names = (*given_names("the output", output, OUTPUT_EXAMPLE),)
    shuffle, dividing = options if isinstance(options, ReshardOptions) else None, options.of_split()
    if shuffle is None and options.on_duplicate != "error":
        updates = options.if_exists == "update"
        options = replace(options, on_duplicate="error") if updates else _first_of_many(names, options, dividing)
    transform = options.of_transform()
    has = [_SPLIT in name for name in names]
    if any(has) and dividing is None:
        also = f", {option('split_by', 'COLUMN')} or {option('split_by', 'folder')}"
        also = also if shuffle is None else f" or {option('split_by', 'COLUMN')}"
        expected = f"{option('split', 'train=0.8,val=0.2')}{also}"
        raise InvalidRequest(names[0], "{split} without splits", expected=expected)
    if dividing is not None and not all(has):
        raise InvalidRequest(names[0], "no {split} in it", expected="a pattern such as out-{split}-{000000..}.tar")
    return Run(
        names=names,
        options=options,
        pool=pool,
        notes=notes,
        begun=begun,
        dry=dry,
        dividing=dividing,
        transform=transform,
        identity=transform.identity() if transform else "",
        shuffle=shuffle,
        exports=wanted_exports(options.export, output_pattern(names).format),
        part=None if options.part is None else parse_part(options.part),
    )


def _first_of_many(
    names: tuple[str, ...], options: CreateOptions | ReshardOptions, dividing: SplitOptions | None
) -> CreateOptions | ReshardOptions:
    """Return the options of the first run over a source that grows: there is no dataset yet to append to."""
    resumes = options.if_exists == "append-resume"
    splits = [name for name, _ in dividing.shares] if dividing else [_MARK]
    if not splits:  # only the samples name them
        return options
    for pattern in [output_pattern(names, split) for split in splits]:
        owned = [name for name in open_folder(pattern.folder).names() if pattern.owns(name)]
        if pattern.dataset_file in owned or (owned and not resumes):
            return options
    return replace(options, if_exists="resume" if resumes else "error", on_duplicate="error")


def output_pattern(names: Sequence[str], split: str = _MARK) -> ShardPattern:
    """Return the shard pattern of a split; without its name, what the patterns of all splits have in common."""
    try:
        pattern = parse_pattern([name.replace(_SPLIT, split) for name in names])
    except InvalidRequest as error:
        where, found = (text.replace(_MARK, _SPLIT) for text in (error.where, error.found))
        raise InvalidRequest(where, found, expected=error.expected, remedy=error.remedy) from None
    check_written(pattern)
    return pattern


# The datasets that a run writes: their names, folders and locks.


REPLACED = "a shard of the source, which the output would replace or remove"
ELSEWHERE = "an output in another folder, or under other names"
UNTOUCHED = "Nothing was touched. The new dataset can take its place once it is complete."


def open_outputs(run: Run, splits: Sequence[str] | None = None) -> None:
    """Find the datasets that a run writes, after a look at what is there; none while their names are unknown.

    A dry run looks only at what it would append to or resume.

    Args:
        run: The run.
        splits: The names of its splits; None: those that the options name.

    Raises:
        InvalidRequest: A file could be of two splits, or there is nothing to append to.
        OutputExists: Something is there that the options do not allow to touch, and the run appends to it or
            updates it. Otherwise `run.refusal` is this error: a mistake in the source or the query comes first.
        CorruptShard: What is appended to is damaged.
    """
    if splits is None:
        splits = [name for name, _ in run.dividing.shares] if run.dividing else [""]
    patterns = {split: output_pattern(run.names, split) for split in splits}
    for (one, pattern), (other, other_pattern) in permutations(patterns.items(), 2):
        if shared := other_pattern.owned_by(pattern):
            found = f"{shared} may be a file of the splits {one} and {other}"
            expected = "names that differ, such as out-{split}-{000000..}.tar"
            raise InvalidRequest(run.names[0], found, expected=expected)
    run.outputs = []
    for split, pattern in patterns.items():
        there = Destination(open_folder(pattern.folder), pattern, run.options.if_exists, part=run.part)
        try:
            there = look(there) if not run.dry or there.appends or there.resumes else there
        except OutputExists as error:
            if there.appends or run.updates:
                raise
            run.refusal = run.refusal or error
        run.outputs.append(Output(split, there))


def splits_there(run: Run) -> list[str]:
    """Return the splits that earlier runs have made under the names of this run, whose own only its samples tell.

    Raises:
        CorruptShard: A dataset file is damaged.
    """
    return [file.made.split for file in _datasets_there(run, _dataset_files(run))]


def keep_classes(run: Run) -> CreateOptions | ReshardOptions:
    """Return options by which labels keep the numbers of the dataset that is there, and new ones get the next.

    So an append numbers them unless a list is given; and the dataset's own dataset file, as that list, means the same,
    be it that of one of several splits, or one that an update is yet to make.

    Raises:
        InvalidRequest: The splits that are there number them differently.
        CorruptShard: A dataset file is damaged.
    """
    options, given = run.options, run.options.classes_from
    if not (options.classes or options.values or getattr(options, "label_from_folder", False)):
        return options
    files = _dataset_files(run)
    own = isinstance(given, str | os.PathLike) and real_path(os.fspath(given)) in map(real_path, files)
    if not own and (given is not None or not run.appends):
        return options
    there = _datasets_there(run, files)
    names: dict[str, list[str]] = reduce(joined_classes, (file.classes for file in there), {})
    if there or (own and run.updates):
        return replace(options, classes_from=Classes("the dataset", names, grows=True) if names else None)
    return options


def _datasets_there(run: Run, files: Sequence[str]) -> list[DatasetFile]:
    """Return what the dataset files of the output say that are there; where its splits are unknown, of any of them."""
    found = []
    for path in files:
        with suppress(FileNotFoundError):
            data = read_small(path)
            if not run.outputs and shard_names(data) is None:
                continue  # another program's, such as an index
            file = read_dataset(data, path)
            named = output_pattern(run.names, file.made.split).dataset_file if file.made.split else ""
            if run.outputs or os.path.basename(path) == named:
                found.append(file)
    return found


def _dataset_files(run: Run) -> list[str]:
    """Return the dataset files of the output; of splits that only the samples will name, those that are there."""
    if run.outputs:
        return [output.destination.dataset_file for output in run.outputs]
    try:
        named = datasets_by_split(run.dataset_file).values()
        return [one for datasets in named for one in datasets if isinstance(one, str)]
    except InvalidRequest:  # none is there
        return []


def check_source_stays(run: Run) -> None:
    """Refuse an output that replaces or removes a file that samples lie in; shards that are appended to stay.

    Raises:
        InvalidRequest: There is such a file.
    """
    paths = {file.path for file in (() if run.entries.spans is None else run.entries.spans.files)}
    paths |= {os.path.realpath(path) for path in paths if os.path.islink(path)}
    folders = {os.path.dirname(path) for path in paths}
    for output in run.outputs:
        there, old = os.path.realpath(os.fsencode(output.pattern.folder or ".")), output.destination.old
        beside = {folder for folder in folders if os.path.realpath(folder or b".") == there}
        stay = {to_bytes(shard.name) for shard in old.shards} if old is not None else set()
        for path in sorted(paths):
            folder, name = os.path.split(path)
            if folder in beside and name not in stay and output.pattern.owns(os.fsdecode(name)):
                raise InvalidRequest(os.fsdecode(path), REPLACED, expected=ELSEWHERE, remedy=UNTOUCHED)


def open_publishers(run: Run, temporary: tuple[Folder, str] | None, stack: ExitStack) -> None:
    """Make the folders, take the locks, look again, and remove what a killed run has left.

    Args:
        run: The run.
        temporary: The folder and the name of its temporary file; None: it makes none.
        stack: At its end, what is staged is removed and the locks are given back.

    Raises:
        OutputExists: Another run is writing a dataset, or has changed it.
    """
    for output in run.outputs:
        folder, base = output.destination.folder, output.pattern.base
        folder.ready()
        parts = run.part is not None  # they run side by side, and nothing else does
        stack.enter_context(folder.lock(base, shared=parts))
        if run.part is not None:
            stack.enter_context(folder.lock(f"{base}.{run.part.tag}"))
            check_divided_alike(folder, output.pattern, run.part)
    folders = [*(output.destination.folder for output in run.outputs), *([] if temporary is None else [temporary[0]])]
    for path in {folder.path: None for folder in folders}:
        run.pool.check(output=path)
    stack.callback(_discard, run, temporary)
    for output in run.outputs:
        before, output.destination = output.destination, look(output.destination)
        if output.destination.appends != before.appends:  # an update was overtaken by another
            raise changed_meanwhile(before)
        output.publisher = Publisher(output.destination)
        stack.callback(output.publisher.abandon)
    stack.callback(run.pool.close)  # the first thing that is done: then nothing is staged any more
    _discard(run, temporary)


def _discard(run: Run, temporary: tuple[Folder, str] | None) -> None:
    for output in run.outputs:
        clean(output.destination)
    if temporary is not None:
        folder, name = temporary
        folder.discard_staged([name])


def remove_splits(run: Run) -> None:
    """Remove the datasets of splits that the run has no samples for, the dataset file of each first.

    Raises:
        OutputExists: Another run is writing one of them.
        OutputFailed: The file system refuses.
    """
    for name in run.gone:
        pattern = output_pattern(run.names, name)
        folder = open_folder(pattern.folder)
        with folder.lock(pattern.base):
            beside = StaleIndexes(folder, pattern, folder.names(), appends=False)
            beside.keep_only(())
            folder.remove([pattern.dataset_file])
            beside.remove()
            folder.remove(sorted(one for one in folder.names() if pattern.owns(one)))
