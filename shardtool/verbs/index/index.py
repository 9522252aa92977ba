"""`index` gives shards of any tool sidecars and a dataset file; `export` writes the indexes of other tools."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, read_dataset, shard_names, sound_dataset
from shardtool.dataset.find import StoredDataset, check_finished, damaged_file, find_dataset, recorded_dots
from shardtool.dataset.shard_file import Survey, SurveyTask, absence, survey, torn_samples, walked_text
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, listing, printable, reason
from shardtool.execute import start_pool
from shardtool.interop.indexes import EXPORTS, wanted_exports
from shardtool.pattern import DATASET_SUFFIX, KNOWN, is_shard_name, parse_pattern, sidecar_name
from shardtool.publish.foreign_indexes import Exporter, index_names
from shardtool.publish.records import LOOK
from shardtool.request.options import ExportOptions, IndexOptions
from shardtool.request.results import ExportResult, IndexResult
from shardtool.request.run_record import RunRecord
from shardtool.request.settings import Notes, Observer, by_names
from shardtool.storage.folders import OutputFolder, open_folder
from shardtool.storage.places import base_name, folder_of, is_url, join, names_in, plain_sizes, read_small
from shardtool.values import Given, Kind, ValueType, __version__, counted, local_name, output_text
from shardtool.verbs.create.run import Totals
from shardtool.wording import either, flag, option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.dataset.shard_index import ShardIndex


_ONLY_A_PLAN = "how the dataset was made, what was left out and the names of classes"


def _in_its_order(found: StoredDataset) -> StoredDataset:
    """Return the shards of a dataset in the order in which its file lists them, however they were named."""
    listed = shard_names(read_small(found.dataset_file)) if found.own and found.dataset_file else None
    shards = {shard.name: shard for shard in found.shards}
    is_all = listed is not None and {*listed} == {*shards}
    return replace(found, shards=tuple(shards[one] for one in listed or ())) if is_all else found


def read_there(path: str) -> bytes | None:
    """Return a small file that may have to be replaced; None where there is none.

    Raises:
        OutputExists: It cannot be read, so that it cannot be known whether it is right.
    """
    try:
        return read_small(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and (is_url(path) or not os.path.islink(path)):
            return None
        found, remedy = f"cannot be read: {reason(error)}", "Make it readable, or move it away."
        raise OutputExists(path, found, expected="a file, or none", remedy=remedy) from None


def _check_format(found: StoredDataset) -> None:
    """Check the format of the shards.

    Raises:
        InvalidRequest: There are none, they are compressed, or of two formats.
    """
    if packed := [shard.path for shard in found.shards if shard.packed]:
        remedy = "Decompress it: nothing can be read at an offset of a compressed file."
        raise InvalidRequest(packed[0], "a compressed shard", expected="a plain one", remedy=remedy)
    if not found.shards:
        raise InvalidRequest(found.where, "no shards", expected="one at least")
    if blobs := [shard.path for shard in found.shards if not is_shard_name(shard.file_name)]:
        expected, remedy = f"one that ends in one of {KNOWN}", "Make a link to it that has such a name, and index that."
        raise InvalidRequest(blobs[0], "a name that does not tell what it is", expected=expected, remedy=remedy)
    if len({shard.format for shard in found.shards}) > 1:
        raise InvalidRequest(found.where, "tar and TFRecord shards", expected="one format", remedy="Index each alone.")


def _missing(path: str) -> CorruptShard:
    """Return what is wrong with a shard that is no plain file."""
    remedy = f"Get it again, or run the command that made it again with {option('if_exists', 'resume')}."
    found, fetch = absence(path)
    return CorruptShard(path, found, expected="a shard", remedy=fetch or remedy)


def _below(folder: str, shards: list[str]) -> str:
    """Return the way from the dataset file's folder down to that of the shards; empty: it is the same.

    Raises:
        InvalidRequest: The shards lie in several folders, or not below: a dataset file leads nowhere else.
    """
    if len(shards) > 1:
        found = f"shards in {len(shards)} folders: {listing(shards, 3)}"
        raise InvalidRequest(shards[0] or ".", found, expected="one folder", remedy="Index each alone.")
    path = _way(folder, shards[0])
    if path == os.curdir:
        return ""
    if path.split(os.sep)[0] == os.pardir:
        alone = either("`export`", "--export alone")
        problem = f"{folder or '.'}, which does not hold the shards"
        remedy = f"A dataset file leads to no other place. {alone}, with a dataset file, writes anywhere."
        raise InvalidRequest(option("output"), problem, expected="their folder, or one above it", remedy=remedy)
    name = output_text(path)
    if printable(name) != name or ":" in name:
        raise InvalidRequest(path, "a folder that a dataset file cannot name", expected="a name that can be printed")
    return name


def _way(folder: str, below: str) -> str:
    """Return the way from one folder down to another; it starts with `..` where that lies elsewhere."""
    if not is_url(folder) and not is_url(below):
        return os.path.relpath(os.path.realpath(below or "."), os.path.realpath(folder or "."))
    top, place = f"{folder.rstrip('/')}/", f"{below.rstrip('/')}/"
    return (place[len(top) : -1] or os.curdir) if place.startswith(top) else os.pardir


def _check_rivals(folder: OutputFolder, names: list[str], own: set[str]) -> None:
    """Refuse a folder in which other shards have sidecars of these names."""
    sidecars = {*map(sidecar_name, names)}
    others = [name for name in folder.names() if is_shard_name(name) and sidecar_name(name) in sidecars]
    if rivals := sorted(name for name in others if name not in own):
        found = f"other shards whose sidecars have these names: {listing(rivals, 3)}"
        expected = "none that would share their indexes"
        raise OutputExists(folder.path or ".", found, expected=expected, remedy="Move one of the datasets away.")


def _old(found: StoredDataset, path: str, data: bytes, *, overwrite: bool) -> DatasetFile | None:
    """Return what the dataset file at its place says; None where it may be replaced.

    Raises:
        OutputExists: It is damaged, or none of ours.
    """
    problem, lost = "no JSON: cut or damaged", _ONLY_A_PLAN
    if shard_names(data) is not None:
        try:
            return read_dataset(data, path)
        except CorruptShard as error:
            problem = error.found
    elif path == found.dataset_file:
        problem, lost = "an index of wids", "what only it says of the shards"
    else:
        with suppress(ValueError, RecursionError):
            json.loads(data)
            remedy = f"Move it away, or choose another {option('output')}."
            raise OutputExists(path, "a file that is no dataset file of shardtool", remedy=remedy)
    check_finished(found)
    _check_replaced(path, problem, lost, overwrite=overwrite)
    return None


def _check_listed(old: DatasetFile, found: StoredDataset, path: str, shards_folder: str, *, overwrite: bool) -> None:
    """Refuse a dataset file that lists other shards than were given, unless it does so wrongly and may be replaced."""
    listed, given = {one.name for one in old.shards}, {shard.name for shard in found.shards}
    others = sorted(listed - given)
    folder = join(folder_of(path), local_name(old.shards_folder))
    lies = set(names_in(folder)) if others else set()
    if there := [name for name in others if local_name(name) in lies]:
        what = f"it lists {counted(len(there), 'shard')} that are there and were not given: {listing(there, 3)}"
        raise OutputExists(path, what, remedy=f"Give all shards of the dataset, or choose another {option('output')}.")
    if given - listed:  # an append that did not end has left them, or one that the dataset file knows nothing of
        check_finished(found)
    if listed != given or old.shards_folder != shards_folder:
        gone = f", {counted(len(others), 'shard')} of them not there: {listing(others, 3)}" if others else ""
        what = f"it lists {counted(len(listed), 'shard')}{gone}; {len(given):,} were given"
        _check_replaced(path, what, _ONLY_A_PLAN, overwrite=overwrite)


def _check_replaced(path: str, found: str, lost: str, *, overwrite: bool) -> None:
    """Refuse to replace a dataset file that was read and found wrong, unless the user asked for that."""
    if not overwrite:
        expected = "the dataset file of these shards"
        remedy = f"`index` with {flag('overwrite')} replaces it; {lost} is lost then."  # `verify --repair` asks it, too
        raise OutputExists(path, found, expected=expected, remedy=remedy)


# Sidecars and a dataset file for shards that are there already, as `index` writes them.
#
# A sidecar that says just what the walk found stays, with the checksums and the metadata that only it knows; one that
# is missing is written. One that was read and found wrong is replaced only where the user asked for that. Shards are
# never touched.


# A sidecar that is there, held against what a walk over its shard found: whether it stays, and what it adds.


class DifferingSidecar(NamedTuple):
    """A sidecar that was read and found wrong: what it is, and the columns that only it has."""

    found: str
    lost: frozenset[str] = frozenset()


def compare_sidecar(
    path: str, walked: ShardIndex, where: str, data: bytes
) -> tuple[ShardIndex, bytes | None] | DifferingSidecar:
    """Return what a sidecar says, with what only it knows: checksums and metadata; or that it is not right.

    Args:
        path: The shard's path.
        walked: What a walk found in the shard, with checksums where payloads were read.
        where: The sidecar's path.
        data: The sidecar's bytes.

    Returns:
        With its bytes; None where it is to be written: with checksums that it lacked, or in the new format.

    Raises:
        CorruptShard: The shard has another checksum than its sidecar says.
    """
    from shardtool.dataset.shard_index import FORMAT_VERSION, differences, read_sidecar

    seen = walked.fact
    try:
        known = read_sidecar(data, where, seen.size)
    except CorruptShard:
        return DifferingSidecar("damaged")
    fact, lost = known.fact, frozenset(known.metadata.column_names)
    wrong = next(differences(known, walked), None)
    if (fact.name, fact.size) != (seen.name, seen.size) or (wrong is not None and wrong.what != "checksum"):
        return DifferingSidecar("of another shard", lost)
    if fact.crc is not None and seen.crc not in (fact.crc, None):
        what, expected = f"the checksum {seen.crc:08x}", f"{fact.crc:08x}, as its sidecar says"
        raise CorruptShard(path, what, expected=expected, remedy=LOOK)
    if wrong is not None:
        return DifferingSidecar("checksums of other payloads", lost)
    if seen.crc is None or (fact.crc is not None and known.crcs is not None):
        return known, data if known.version == FORMAT_VERSION else None
    return replace(known, crcs=walked.crcs, fact=fact._replace(crc=seen.crc)), None


class Indexer:
    """Shards to index, and the index of them, which is written under the lock of `folder`.

    Args:
        dataset: What the user named.
        options: How to index them.
        observer: Gets progress and notes.

    Attributes:
        dataset: The shards.
        pattern: Their pattern.
        size: Their bytes.
        folder: The folder of the sidecars and the dataset file.
        shards_folder: The way from there down to the shards; empty: the same folder.
        dataset_file: The name of the dataset file.
        old: What a dataset file said of them so far; None where there is none, or it may be replaced.
        own: Whether that is the dataset file at this very place.
        dots: Where keys end in members' names: as was asked for, or as the dataset file or the sidecars show.

    Raises:
        InvalidRequest: There are no such shards, they are compressed, lie where no dataset file can list them, or are
            not all that their run was to write.
        CorruptShard: A shard is not there, or no plain file.
        OutputExists: Other shards own these names, or there is a dataset file that may not be replaced.
    """

    def __init__(self, dataset: Given, options: IndexOptions, observer: Observer) -> None:
        from shardtool.entries.entries import FieldValues  # NumPy: once workers are forked

        self.options, self.observer = options, observer
        found = self.dataset = _in_its_order(find_dataset(dataset))
        _check_format(found)
        sizes = plain_sizes(found.paths)
        if None in sizes:
            raise _missing(found.paths[sizes.index(None)])
        names = [shard.file_name for shard in found.shards]
        if twice := [name for name, count in Counter(map(sidecar_name, names)).items() if count > 1]:
            raise InvalidRequest(found.folder or ".", f"shards that want the same sidecar: {listing(twice)}")
        self.pattern, self.size = parse_pattern(names), sum(filter(None, sizes))
        self.folder = open_folder(found.folder if options.output is None else os.fspath(options.output))
        self.shards_folder = _below(self.folder.path, found.folders())
        _check_rivals(self.folder, names, set() if self.shards_folder else {*names})
        file = found.dataset_file or damaged_file(found)
        self.dataset_file = base_name(file) if file else self.pattern.dataset_file
        path = self.folder.full_path(self.dataset_file)
        data = read_there(path)
        if data is None:
            self.old = sound_dataset(found.dataset_file or path)  # where `output` is elsewhere
            if self.old is None:
                check_finished(found)
        else:
            self.old = _old(found, path, data, overwrite=options.overwrite)
            if self.old is not None:
                _check_listed(self.old, found, path, self.shards_folder, overwrite=options.overwrite)
        self.own = data is not None and self.old is not None
        self.dots = options.dots or (recorded_dots(found) if self.old is None else self.old.made.dots)
        self.notes, self.totals, self.kept = Notes(observer), Totals(FieldValues()), 0
        self.odd: list[tuple[int, str]] = []  # how many members of a shard are no part of a sample, and the first one
        self.wrong: list[str] = []
        self.lost: set[str] = set()
        self.entries: dict[int, ShardEntry] = {}
        self.kinds: dict[int, Mapping[str, Kind]] = {}
        self.lists: set[str] = set()
        self.schemas: dict[int, dict[str, str]] = {}
        self.digests: list[int | None] = []

    @property
    def base(self) -> str:
        """The name of the dataset file without its ending."""
        return self.dataset_file.removesuffix(DATASET_SUFFIX)

    def tasks(self) -> list[SurveyTask]:
        """Return what the workers do, a task per shard."""
        self.observer.start(0, self.size, len(self.dataset.paths))
        return [SurveyTask(path, self.options.checksum, self.dots) for path in self.dataset.paths]

    def add(self, number: int, found: Survey) -> None:
        """Write a shard's sidecar, unless the one that is there is right, or wrong and to be kept.

        Raises:
            CorruptShard: The shard is damaged.
            InvalidRequest: The fields of a sample lie apart in it.
            OutputExists: A sidecar cannot be read.
            OutputFailed: The sidecar cannot be written.
        """
        from shardtool.dataset.shard_index import encode_table, types_of, walked_index, with_shard

        if found.error is not None:
            raise found.error
        _check_together(found)
        walked, name = walked_index(found), self.dataset.shards[number].file_name
        one, data, where = walked, None, self.folder.full_path(sidecar_name(name))
        if (there := read_there(where)) is not None:
            known = compare_sidecar(found.path, walked, where, there)
            if not isinstance(known, DifferingSidecar):
                one, data = known
            elif not self._may_replace(sidecar_name(name), known):
                return
        table, done = one.plain_table(), "written" if data is None else "kept"
        if data is None:
            data = encode_table(table, one.fact)
            self._publish(sidecar_name(name), data)
        else:
            self.kept += 1
        self.entries[number] = self.totals.add(one.fact, data, walked.tally())
        self.schemas[number], self.kinds[number] = types_of(with_shard(table.schema)), walked.kinds
        self.lists |= {walked_text(found.names[at]) for at, one in found.unlike.items() if one.kind == found.kinds[at]}
        self.digests.append(found.digest)
        if found.odd:
            odd = found.odd[0]
            self.odd.append((len(found.odd), f"{name} at {odd.offset:,}: {odd.what}"))
        samples = self.entries[number].samples
        self.observer.advance(samples, found.size, 1)
        self.observer.shard(name, done, samples, found.size)

    def _may_replace(self, name: str, wrong: DifferingSidecar) -> bool:
        """Return whether a wrong sidecar is to be replaced; `finish` refuses, once all that is wrong is known."""
        self.wrong.append(f"{name} ({wrong.found})")
        self.lost |= wrong.lost
        if self.options.overwrite:
            self.notes.add(f"{name}: {wrong.found}, so what only it knew is lost: checksums and metadata")
        return self.options.overwrite

    def finish(self) -> IndexResult:
        """Write the dataset file, unless the one that is there is right.

        Raises:
            OutputExists: There are files that are wrong, and the user did not ask to replace them.
            OutputFailed: It cannot be written.
        """
        old, same, count = self.old, False, len(self.dataset.shards)
        if old is not None and len(self.entries) == len(old.shards) == count:
            same = all(_goes_with(before, self.entries[at]) for at, before in enumerate(old.shards))
        if self.own and not same and not self.wrong:
            self.wrong.append(f"{self.dataset_file} (of other shards)")
        self._refuse_wrong()
        shards = tuple(self.entries[number] for number in range(count))
        if same and old is not None:  # what it says of the shards stays a claim, which `verify` holds them to
            shards = tuple(
                one if one.crc is not None else replace(one, crc=before.crc)
                for one, before in zip(shards, old.shards, strict=True)
            )
            if self.own and old.shards == shards:
                return self._result(shards)
        file = self._dataset_file(shards)
        if same and old is not None:  # the shards are the ones that it lists
            known = replace(old, shards=shards, field_bytes=file.field_bytes, schema=file.schema)
            file = replace(known, shards_folder=file.shards_folder)
        elif self.kept:  # sidecars of a run, whose dataset file is gone
            self.notes.add("how the dataset was made, what was skipped and class names are not known any more")
        if self.odd:
            counts, places = zip(*self.odd, strict=True)
            found = f"{counted(sum(counts), 'member')} no part of a sample"
            self.notes.add(f"{found}, in {counted(len(places), 'shard')}, such as {min(places)}")
        self._publish(self.dataset_file, file.encode())
        return self._result(shards)

    def _refuse_wrong(self) -> None:
        """Refuse to replace what is wrong, unless the user asked for that."""
        if not self.wrong or self.options.overwrite:
            return
        columns = f" and the columns {listing(sorted(self.lost))}" if self.lost else ", metadata"
        where, found = self.folder.path or ".", f"not what the shards hold: {listing(self.wrong)}"
        remedy = (
            f"{flag('overwrite')} makes them again from the shards; what only they know is lost then: checksums"
            f"{columns}, how the dataset was made. `shardtool verify` shows whether the shards are right."
        )
        raise OutputExists(where, found, expected="right ones, or none", remedy=remedy)

    def _dataset_file(self, shards: tuple[ShardEntry, ...]) -> DatasetFile:
        """Return the dataset file of shards of which nothing else is known."""
        from shardtool.entries.entries import FieldValues
        from shardtool.verbs.create.result import dataset_of

        totals = self.totals
        kinds = {name: kind for _, known in sorted(self.kinds.items(), reverse=True) for name, kind in known.items()}
        numbers: dict[str, ValueType] = {name: kind for name, kind in kinds.items() if kind != "bytes"}
        totals.values = FieldValues(types=numbers, lists={name: kinds[name] for name in self.lists})
        totals.shards, totals.schema, totals.digest = [*shards], self._schema(), sum(one or 0 for one in self.digests)
        shard_format = self.dataset.shards[0].format
        asked = {"options": {"dots": "last"}} if self.dots == "last" and shard_format == "tar" else {}
        made = RunRecord({"verb": "index", **asked, "tool": f"shardtool {__version__}"})
        file = dataset_of(totals, self.pattern, (), made, shard_format)
        known = "" if None in self.digests else file.fingerprint
        return replace(file, name=output_text(self.base), fingerprint=known, shards_folder=self.shards_folder)

    def _schema(self) -> dict[str, str]:
        """Return the columns of all sidecars in the order of the shards, of each the first type that holds values."""
        from shardtool.dataset.shard_index import join_types

        found, others = dict[str, str](), dict[str, str]()
        for number, schema in sorted(self.schemas.items()):
            sidecar = sidecar_name(self.dataset.shards[number].file_name)
            for column, before, kind in join_types(found, schema):
                others.setdefault(column, f"{column!r} is {before}, but {kind} in {sidecar}")
        if others:
            self.notes.add(f"columns of other types in other sidecars: {listing([*others.values()])}")
        return found

    def _publish(self, name: str, data: bytes) -> None:
        self.folder.publish(self.folder.stage_whole(name, data))

    def _result(self, shards: tuple[ShardEntry, ...]) -> IndexResult:
        path, samples = self.folder.full_path(self.dataset_file), sum(one.samples for one in shards)
        return IndexResult(path, len(shards), self.kept, samples, tuple(self.notes.said))


def _check_together(found: Survey) -> None:
    """Refuse a tar in which the fields of samples lie apart: every reader would make several samples of one."""
    repeated = found.format == "tar" and len({*found.keys}) < len(found.keys)
    if torn := torn_samples(found.keys, found.fields()) if repeated else []:
        one, other = torn[0]
        key, places = walked_text(found.keys[one]), f"at {found.starts[one]:,} and at {found.starts[other]:,}"
        what = f"the fields of {counted(len(torn), 'sample')} lie apart, such as those of {key!r} {places}"
        remedy = "`shardtool reshard` writes shards with the fields of each sample together."
        raise InvalidRequest(found.path, what, expected="the fields of a sample next to each other", remedy=remedy)


def _goes_with(before: ShardEntry, now: ShardEntry) -> bool:
    """Return whether what a dataset file says of a shard, without its sidecar, is what was found."""
    shapes = [(one.name, one.size, one.samples, one.first_key, one.last_key) for one in (before, now)]
    return shapes[0] == shapes[1] and (None in (before.crc, now.crc) or before.crc == now.crc)


# `index`: sidecars and dataset file for shards that any tool made. The library twin of `shardtool index`.


@by_names(IndexOptions)
def index(dataset: Given, options: IndexOptions, observer: Observer) -> IndexResult:
    """Write the sidecars and the dataset file of existing shards.

    Args:
        dataset: A dataset file, a shard pattern, a glob, a folder, or shards.
        options: See `IndexOptions`.
        observer: Gets progress, and notes for the user.

    Raises:
        InvalidRequest: There are no such shards, or they are compressed.
        CorruptShard: A shard is damaged.
        OutputExists: Another run is writing here, other shards own these names, or there is a sidecar or dataset file
            that is wrong, and `overwrite` was not asked for.
        OutputFailed: The output cannot be written.
    """
    with start_pool(options, observer=observer) as pool:
        indexer = Indexer(dataset, options, observer)
        pool.check(indexer.dataset.paths)
        indexer.folder.ready()
        with indexer.folder.lock(indexer.base):
            for number, found in pool.map(survey, indexer.tasks()):
                indexer.add(number, found)
            pool.close()
            return indexer.finish()


# `export`: the indexes of other tools. The library twin of `shardtool index --export`.


@by_names(ExportOptions)
def export(
    dataset_file: str | os.PathLike[str], formats: str | Sequence[str], options: ExportOptions, observer: Observer
) -> ExportResult:
    """Write the index files that other tools want for the shards of a dataset.

    Args:
        dataset_file: Such as `out.json`.
        formats: `dali-webdataset`, `energon`, `huggingface`, `timm`, `open-clip`, `wids`, `dali-tfrecord` or
            `tfrecord`; one or several.
        options: See `ExportOptions`.
        observer: Gets progress, and notes for the user.

    Raises:
        InvalidRequest: The request makes no sense.
        CorruptShard: The dataset file, a sidecar or a shard is damaged.
        OutputExists: There are other files of these names, or another run is writing here; nothing was touched.
        OutputFailed: They cannot be written.
        WorkerDied: A worker was killed.
    """
    notes, given = Notes(observer), os.fspath(dataset_file)
    source, name = folder_of(given), base_name(given)
    wanted = wanted_exports([formats] if isinstance(formats, str) else [*formats])
    if not wanted:
        raise InvalidRequest(either("formats", "--export"), "no format", expected=f"one of {', '.join(EXPORTS)}")
    with ExitStack() as stack:
        pool = None
        if any(one.hashed for one in wanted.values()):
            pool = stack.enter_context(start_pool(options, observer=notes.observer))
        exporter = Exporter(open_folder(source), name, wanted, notes)
        exporter.check()
        target = exporter.folder if options.output is None else open_folder(os.fspath(options.output))
        target.ready()
        stack.enter_context(target.lock(name.removesuffix(DATASET_SUFFIX)))
        files, kept = exporter.write(target, pool, overwrite=options.overwrite)
    where, folder = printable(os.fspath(dataset_file)), printable(target.path or ".")
    return ExportResult(where, folder, tuple(wanted), files, kept, tuple(notes.said))


def check_names(dataset: Given, formats: Sequence[str]) -> None:
    """Check, before shards are indexed, that their indexes for other tools can have names of their own.

    Raises:
        InvalidRequest: They cannot, they are indexes of other shards, or there are no such shards.
    """
    found = find_dataset(dataset)
    names = [base_name(path) for path in found.paths]
    wanted = wanted_exports(formats, found.shards[0].format if names else "")
    file = found.dataset_file or (parse_pattern(names).dataset_file if names else "")
    index_names(names, wanted, base_name(file))
