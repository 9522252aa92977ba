"""A dataset compared with what it was made from, by key, and its names with what readers make of them.

The source is listed as the verb that made the dataset lists it, with those options that the dataset file recorded and
that only choose. What names code or a place is not used: with `--map`, whose function could make any sample, nothing
is compared. The user names the table of `--join`, or `find_table` finds it; without a table, its fields are not
compared. Order and sharding do not matter.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from shardtool.dataset.find import StoredDataset, find_dataset, of_glob, other_splits, recorded_pattern
from shardtool.dataset.shard_file import Survey, walked_text
from shardtool.dataset.shard_index import ends_of
from shardtool.entries.entries import Names
from shardtool.errors import CorruptShard, InvalidRequest, ShardError, listing, printable, without_secrets
from shardtool.pattern import ShardPattern, parse_pattern
from shardtool.publish.records import skipped_rows
from shardtool.request.options import OF_SOURCE, CreateOptions, DiffOptions, ReshardOptions, VerifyOptions
from shardtool.request.settings import fits, kinds
from shardtool.request.texts import pairs
from shardtool.skipped import is_listed
from shardtool.source.base import inline_sums, source_sums
from shardtool.source.folder import FolderSource
from shardtool.source.open import open_source
from shardtool.source.selecting import each_once
from shardtool.storage.places import folder_of, is_regular, is_url, join
from shardtool.table.columns import places_among
from shardtool.values import INLINE, URL, counted, to_bytes
from shardtool.verbs.verify.findings import Finding
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.entries.entries import Entries
    from shardtool.execute.pool import Pool
    from shardtool.request.settings import Observer
    from shardtool.source.base import Listing, Source
    from shardtool.verbs.verify.checks import Subject

    Rows = NDArray[np.int64]
    Surveys = Mapping[int, Survey]

_Name = TypeVar("_Name", str, bytes)

_OF_SOURCES = ("root", "allow_outside", "symlinks", "map", "join")  # what `verify` has, too, about a source


@contextmanager
def source_words(source: object, join: object, remedy: str) -> Iterator[None]:
    """Name, in errors of a source, only options that the user can type here, and what to do here.

    Args:
        source: What the user gave as the source.
        join: What the user gave as the table of `--join`; None: nothing.
        remedy: What to do, unless the error names an option about a source.
    """
    try:
        yield
    except InvalidRequest as error:
        if join is not None and error.where == _shown_path(join):
            error.where = f"{option('join')} {error.where}"
            raise
        if join is not None and error.where == option("on"):
            error.where, error.found = f"{option('join')} {_shown_path(join)}", f"{error.found}, the column of keys"
            error.remedy = f"{option('join')} takes the table that the dataset was created with."
            raise
        if any(error.where == option(name) for name in TAKEN_AGAIN):
            error.found = f"the dataset was created with {error.where}: {error.found}"
            error.where = _shown_path(source) or "the source"
        if error.remedy.startswith("Did you mean "):
            error.remedy += f" {remedy}"
        elif not any(option(name) in error.remedy for name in _OF_SOURCES):
            error.remedy = remedy
        raise


def _shown_path(given: object) -> str:
    """Return a path for messages; empty: `given` is no path."""
    return without_secrets(printable(os.fspath(given))) if isinstance(given, str | os.PathLike) else ""


class Comparison:
    """A dataset and its source; if samples of others were appended, the shards and the source of the first run.

    Args:
        subject: The dataset.
        options: What the user says of the source; `source` is what the dataset was made from.
        observer: Gets progress.

    Raises:
        InvalidRequest: There is no such source.
    """

    def __init__(self, subject: Subject, options: VerifyOptions, observer: Observer) -> None:
        self.subject, self.observer = subject, observer
        made = recorded_run(subject.file, options, table_folders(options.source, [subject.folder]))
        outputs = [parse_pattern([join(subject.folder, case.name) for case in subject.cases])]
        if subject.file is not None and (pattern := recorded_pattern(subject.file)) is not None:  # the name of all
            outputs.append(replace(pattern, folder=outputs[0].folder))
        self._words = partial(source_words, options.source, options.join, f"{self._made_from}.")
        with self._words():
            self.again = SourceAgain(made, [subject.dataset], options.source, outputs)
        self.made, self._given, self.findings = made, options.source, subject.findings

    def run(self, all_surveys: Surveys, pool: Pool) -> None:
        """Find what differs; `all_surveys`: what lies in each shard that could be read, by its number."""
        made, unchecked = self.made, self.findings.unchecked
        if made.map:
            unchecked.append(f"the source: {option('map')} made the samples, and is not run again")
            self._not_compared(all_surveys)
            return
        with self._words():
            listed, _ = self.again.list_samples(pool, self.observer)
        self.made = made = self.again.run
        if made.choosing and any(one.code == "duplicate" for one in listed.skipped):
            unchecked.append(f"the source: keys that several samples have, and {made.of_table}")
            self._not_compared(all_surveys)
            return
        unchecked += made.unchecked()
        self._compare(listed.entries, all_surveys, pool)

    def _compare(self, entries: Entries, all_surveys: Surveys, pool: Pool) -> None:
        """Compare the samples of shards with those of the source."""
        made, unchecked = self.made, self.findings.unchecked
        surveys = self._first_shards(all_surveys)
        if made.added:
            unchecked.append(f"fields that the source does not have: {option('add')} put them beside")
        if not surveys:
            return
        place = places_among(_keys(surveys), entries.keys)
        others = {number: all_surveys[number] for number in all_surveys if number not in surveys}
        appended = places_among(_keys(others), entries.keys)
        if np.any(appended >= 0) and not np.any(place >= 0):
            unchecked.append("the source: it is what samples were appended from, which is not compared")
            self._not_compared(all_surveys)
            return
        if not np.any(place >= 0):
            self._check_no_dataset()
        self.findings.checked.append("the source")
        if made.without_table is not None:
            self.findings.checked.append(f"with {option('join')} {printable(made.table)}")
        self.findings.uncompared += made.made_fields
        if lost := self.again.lost_splits():
            unchecked.append(lost)
        elif not made.choosing and (self.subject.file is None or self.subject.is_all):
            self._missing(entries, np.concatenate((place, appended)))
        self._extra(surveys, place)
        if made.changes:
            unchecked.append(f"payloads against the source: {option('resize')} or {option('encode')} changed them")
            self._not_compared(surveys)
            return
        self._compare_fields(entries, surveys, place, pool)

    def _not_compared(self, surveys: Surveys) -> None:
        """Record that no field of some shards was compared with the source."""
        self.findings.uncompared += sorted({walked_text(name) for one in surveys.values() for name in one.names})

    def _check_no_dataset(self) -> None:
        """Refuse a folder that holds a dataset, and no sample of this one.

        Raises:
            InvalidRequest: The source is such.
        """
        if not isinstance(self.again.source, FolderSource) or not isinstance(self._given, str | os.PathLike):
            return
        folder = os.fspath(self._given)
        try:
            is_dataset = find_dataset(folder).own
        except ShardError:
            return
        if is_dataset:
            raise InvalidRequest(folder, "a dataset", expected="a folder of samples", remedy=f"{self._made_from}.")

    @property
    def _made_from(self) -> str:
        run = self.subject.file.made if self.subject.file else None
        made = run and run.source and f", as its dataset file says: {run.verb} {listing(run.source.split(', '))}"
        return f"{option('source')} takes what the dataset was made from{made or ''}"

    def _first_shards(self, surveys: Surveys) -> Surveys:
        """Return, in order, the shards that hold samples of the source; of those that were appended, say so."""
        file, found = self.subject.file, sorted(surveys)
        if file is not None and has_others(file):
            before, later = file.appends[0], counted(len(file.shards) - file.appends[0], "shard")
            what = f"{option('source')} is compared with the first {counted(before, 'shard')}"
            self.findings.unchecked.append(f"the source of {later} that samples were appended in: {what}")
            names = {one.name for one in file.shards[:before]}
            found = [number for number in found if self.subject.cases[number].name in names]
        return {number: surveys[number] for number in found}

    def _add(self, code: str, total: int, findings: Iterator[Finding]) -> None:
        self.findings.add_first(code, len(self.subject.cases), total, findings)

    def _missing(self, entries: Entries, place: Rows) -> None:
        there = np.zeros(len(entries), bool)
        there[place[place >= 0]] = True
        skipped, unread = self.again.keys_left_out()
        if unread:
            self.findings.unchecked.append(f"what was left out: the list of {listing(unread)} cannot be read")
        lacking = [at for at in np.flatnonzero(~there).tolist() if not is_listed(entries.keys[at], skipped)]
        parts = ("source-missing", self.subject.name, "not in the dataset", "a sample, as in the source")
        found = (Finding(*parts, key=walked_text(entries.keys[at])) for at in lacking)
        self._add("source-missing", len(lacking), found)

    def _extra(self, surveys: Surveys, place: Rows) -> None:
        extra, parts = np.flatnonzero(place < 0).tolist(), ("not in the source", "no such sample")
        found = (
            Finding("source-extra", name, *parts, survey.starts[row], walked_text(survey.keys[row]))
            for name, survey, row in (self._located(surveys, "keys", at) for at in extra)
        )
        self._add("source-extra", len(extra), found)

    def _compare_fields(self, entries: Entries, surveys: Surveys, place: Rows, pool: Pool) -> None:
        """Compare the fields of samples that both have: their names, lengths and checksums."""
        shards, fields = [*surveys.values()], [*map(to_bytes, entries.fields)]
        names = [name for one in shards for name in one.names]
        added = {*names}.difference(fields) if self.made.added else set[bytes]()
        self.findings.uncompared += sorted(map(walked_text, added))
        passed = {*map(to_bytes, self.made.made_fields), *added}
        known = {name: -1 if name in passed else at for at, name in enumerate(dict.fromkeys([*fields, *names]))}
        theirs = field_ids(np.arange(len(entries)), entries.counts(), entries.rows.code, fields, known)
        firsts = np.repeat(ends_of([len(one.names) for one in shards])[:-1], [len(one.codes) for one in shards])
        ours = field_ids(place, _joined(surveys, "counts"), firsts + _joined(surveys, "codes"), names, known)
        mine, source, extra, lacking = paired(ours, theirs)
        lacking = lacking[np.isin(entries.owners(lacking), place)]  # of samples that the dataset has
        parts = ("source-missing", self.subject.name, "a field that the dataset does not have", "as in the source")
        keys = (walked_text(entries.keys[int(entries.owners(row))]) for row in lacking)
        without = (entries.fields[int(code)] for code in entries.rows.code[lacking])
        found = (Finding(*parts, key=key, field=name) for key, name in zip(keys, without, strict=True))
        self._add("source-missing", len(lacking), found)
        if self.made.verb in ("create", "reshard"):
            what = "a field that the source does not have"
            found = (self._finding("source-extra", surveys, int(row), what) for row in extra)
            self._add("source-extra", len(extra), found)
        else:
            what = "fields that the source does not have: how the dataset was made is not recorded"
            self.findings.unchecked.append(what)
        self._compare_payloads(entries, surveys, (mine, source), pool)

    def _compare_payloads(self, entries: Entries, surveys: Surveys, rows: tuple[Rows, Rows], pool: Pool) -> None:
        mine, source = rows
        lengths, crcs = _joined(surveys, "lengths"), _joined(surveys, "crcs")
        as_numbers = any(one.format == "tfrecord" for one in surveys.values())
        sizes, sums = inline_sums(entries, source, as_numbers=as_numbers)
        fetched = entries.rows.kind[source] == URL  # what is there by now says nothing of what was there
        if fetched.any():
            self.findings.unchecked.append(f"{counted(int(fetched.sum()), 'file')} of URLs against the web")
            self.findings.uncompared += [entries.fields[code] for code in np.unique(entries.rows.code[source[fetched]])]
        differ = (lengths[mine] != sizes) & ~fetched
        read = np.flatnonzero(~differ & ~fetched & (entries.rows.kind[source] != INLINE))
        sums[read] = source_sums(self.again.source, entries, source[read], pool)
        bad = np.flatnonzero(differ | ((sums != crcs[mine]) & ~fetched))

        def each() -> Iterator[Finding]:
            for at in bad.tolist():
                what, expected = f"{int(crcs[mine[at]]):08x}", "the checksum of the source's bytes"
                if differ[at]:
                    what, expected = f"{int(lengths[mine[at]]):,} bytes", f"{int(sizes[at]):,}, as the source has"
                yield self._finding("source-differs", surveys, int(mine[at]), what, expected)

        self._add("source-differs", len(bad), each())

    def _finding(self, code: str, surveys: Surveys, row: int, found: str, expected: str = "") -> Finding:
        """Return the finding about a field, by its row in all shards."""
        name, survey, row = self._located(surveys, "codes", row)
        sample = int(np.searchsorted(np.cumsum(np.frombuffer(survey.counts, np.uint32)), row, "right"))
        key, field = walked_text(survey.keys[sample]), walked_text(survey.names[survey.codes[row]])
        return Finding(code, name, found, expected, survey.offsets[row], key, field)

    def _located(self, surveys: Surveys, column: str, place: int) -> tuple[str, Survey, int]:
        """Return the shard of a place in a column of all shards, what lies in it, and the place there."""
        for number, survey in surveys.items():
            if place < (count := len(getattr(survey, column))):
                return self.subject.cases[number].name, survey, place
            place -= count
        raise IndexError(place)


def field_ids(
    samples: Rows, counts: NDArray[Any], codes: NDArray[Any], names: Iterable[_Name], known: Mapping[_Name, int]
) -> Rows:
    """Return a number for each row, the same on two sides for a sample's field of one name; -1: it is not compared.

    Args:
        samples: What each sample is called on both sides, a number; -1 where only this one has it.
        counts: How many rows each has.
        codes: The name of each row, by its place in `names`.
        names: The names of fields.
        known: The number of each name on both sides; -1 where it is passed over.
    """
    owners, fields = np.repeat(samples, counts), np.array([*(known[name] for name in names), -1], np.int64)[codes]
    return np.asarray(np.where((owners < 0) | (fields < 0), -1, owners * (len(known) + 1) + fields))


def paired(ours: Rows, theirs: Rows) -> tuple[Rows, Rows, Rows, Rows]:
    """Return the places of numbers that both sides have, in their order, and of those that only one has; -1 is none."""
    mine, other = _firsts(ours), _firsts(theirs)  # `np.intersect1d` and `np.setdiff1d` take ten times as long
    ids, known = ours[mine], theirs[other]
    places = np.searchsorted(known, ids)
    there = np.append(known, -1)[places] == ids
    mine, other = mine[there], other[places[there]]
    lone = []
    for some, both in ((ours, mine), (theirs, other)):
        left = some >= 0
        left[both] = False
        lone.append(np.flatnonzero(left))
    return mine, other, lone[0], lone[1]


def _firsts(ids: Rows) -> Rows:
    """Return the place of each number in their order, of several that are the same the first."""
    places = np.flatnonzero(ids >= 0)
    places = places[np.argsort(ids[places], kind="stable")]
    return np.asarray(places[np.diff(ids[places], prepend=-1) > 0])


def _joined(surveys: Surveys, name: str) -> NDArray[Any]:
    """Return a column of all shards, one after the other."""
    return np.concatenate([np.asarray(getattr(one, name)) for one in surveys.values()])


def _keys(surveys: Surveys) -> Names:
    """Return the keys of shards; one with a NUL in it, which no source of ours has, is empty here."""
    return Names.of(b"" if b"\0" in key else key for one in surveys.values() for key in one.keys)


# What a dataset file records of the run that made its dataset, and the source of that run, opened again.
#
# The file may say anything. So of what it records only options in `TAKEN_AGAIN` are used:
# those that choose (which samples and fields, in which order, how large shards are) or change bytes by rules of ours.
# What names code or a place is never used; a run that had such options is repeated only where the user gives them anew,
# as options of `verify`.


TAKEN_AGAIN = frozenset({
    "max_size", "max_count", "shards", "equal_count", "shards_multiple_of", "oversize", "place", "shuffle",
    "seed", "where", "split", "split_column", "stratify", "group_by", "portable",
    "include", "exclude", "hidden",
    "complete", "symlinks", "dots", "label_from_folder", "split_from_folder", "key_pattern",
    "key", "path", "files", "binary", "values", "classes", "meta", "size", "urls", "robots", "require",
    "max_file_size",
    "resize", "resize_mode", "only_larger", "encode", "quality", "images", "masks", "probe",
    "exif", "hash",
    "columns_from", "select_fields", "drop_fields", "rename_fields", "on", "delimiter", "no_header",
    "sample", "on_duplicate", "drop_duplicates", "sort_by", "descending", "head", "per_class", "of",
})  # fmt: skip
_CHOOSE = ("where", "head", "per_class", "split_column", "stratify", "group_by")  # so `--join` may choose samples
_CHOSEN_BY = (*_CHOOSE, "of", "sort_by", "descending", "split")


class RecordedRun(NamedTuple):
    """The recorded run that made a dataset, as far as it can be done again.

    Attributes:
        verb: `create`, `reshard` or `index`; empty: not recorded.
        options: The options; if the table of `--join` is not available, without the options about this table.
        table: The path of the table that was found, or the recorded name of a table that is not available. Empty: the
            run used no table, or the user names it.
        made_fields: The fields that may have been made of a table that is not available.
        choosing: The options, as the command line has them, by which it, or what the source was when samples were
            added, may have decided what samples there are.
        map: The function that made the samples, as text, which is never imported; empty where there was none.
        added: Whether fields of other datasets were put beside those of the source.
        without_table: The same run without the table; None: no table was found, or the user names it.
        no_table: Why the table that was found is not available; empty: none was found.
    """

    verb: str
    options: CreateOptions | ReshardOptions
    table: str = ""
    made_fields: tuple[str, ...] = ()
    choosing: tuple[str, ...] = ()
    map: str = ""
    added: bool = False
    without_table: RecordedRun | None = None
    no_table: str = ""

    @property
    def changes(self) -> bool:
        """Whether payloads were changed on the way."""
        options = self.options
        return options.resize is not None or options.encode is not None

    @property
    def of_table(self) -> str:
        """What may have been done by a table that is not available, or with a source that has grown."""
        by = f"by {option('join')} {self._lost_table}" if self.table else "of fewer that were there"
        return f"{' and '.join(self.choosing)} may have chosen them {by}"

    @property
    def _lost_table(self) -> str:
        lost = self.no_table or f"which was not found (name it with {option('join', 'PATH')})"
        return f"{self.table}, {lost}"

    def unchecked(self) -> Iterator[str]:
        """Yield what cannot be compared with the source, because the table is not available."""
        if self.made_fields:
            what = f"{'field' if len(self.made_fields) == 1 else 'fields'} {listing([*self.made_fields])}"
            yield f"{what} against the source: made with {option('join')} {self._lost_table}"
        if self.choosing:
            yield f"samples that only the source has: {self.of_table}"


def recorded_run(
    file: DatasetFile | None, given: VerifyOptions | DiffOptions, folders: Iterable[str] = ()
) -> RecordedRun:
    """Return how a dataset was made, or, if samples were appended to it, how its first ones were made.

    Args:
        file: The dataset file; None where there is none.
        given: What the user says of the source.
        folders: The folders to search for the table of `--join`, if the user does not name it.

    Raises:
        InvalidRequest: The dataset file records something that is no option, or that the user is to give.
    """
    name = file.made.options.get("join", "") if file else ""
    if given.join is not None:
        if name == "":
            found = "the dataset was created without a table"
            raise InvalidRequest(option("join"), found, expected="a dataset that was created with one")
        return _run_with(file, given, given.join)
    without = _run_with(file, given)
    path = find_table(name, folders)
    return _run_with(file, given, path)._replace(table=path, without_table=without) if path else without


def table_folders(source: object, datasets: Iterable[str]) -> list[str]:
    """Return the local folders to search for a joined table: the working directory, then those the user named.

    Args:
        source: The source. Of a folder, this includes its parent; of a file, it is the folder of the file.
        datasets: The folders of the datasets.
    """
    folders = [os.curdir]
    for one in source if isinstance(source, list | tuple) else [source]:
        path = os.fspath(one) if isinstance(one, str | os.PathLike) else None
        if not isinstance(path, str) or is_url(path):
            continue
        is_folder = os.path.isdir(path)
        folders += [path, os.path.join(path, os.pardir)] if is_folder else [folder_of(path)]
    local = (one for one in (*folders, *datasets) if not is_url(one))
    return [*dict.fromkeys(os.path.normpath(one) for one in local)]


def find_table(name: object, folders: Iterable[str]) -> str:
    """Return the path of the first regular file of that name in the folders; empty: there is none.

    The name comes from a dataset file and is untrusted. It must be a plain file name, and links are not followed, so
    only files in these folders are read.
    """
    if not isinstance(name, str) or name != os.path.basename(name):
        return ""
    for folder in folders:
        path = os.path.join(folder, name)  # also in the working directory: a file "-" is not standard input
        if is_regular(path):
            return path
    return ""


def _run_with(file: DatasetFile | None, given: VerifyOptions | DiffOptions, table: object = None) -> RecordedRun:
    verb, recorded = (file.made.verb, {**file.made.options}) if file else ("", {})
    function, added = recorded.pop("map", ""), recorded.pop("add", None)
    if type(function) is not str:
        raise InvalidRequest(option("source"), f"the dataset file records map as {printable(str(function))[:80]!r}")
    if verb == "reshard":
        if name := next((name for name in OF_SOURCE if getattr(given, name, None)), ""):
            raise InvalidRequest(option(name), "the dataset was made by reshard", expected="a dataset of create's")
        recorded.pop("dots", None)  # found in the source, not asked for
    kind = ReshardOptions if verb == "reshard" else CreateOptions
    if table is None:
        found, told = _without_table(recorded, kind)
    else:
        del recorded["join"]
        found, told = {**_options(recorded, kind), "join": table}, {}
    if file is not None and file.appends and not has_others(file) and not told:  # each update chose anew
        told = {"choosing": tuple(option(name) for name in ("head", "per_class") if found.pop(name, None) is not None)}
        found.pop("of", None)
    options = ReshardOptions(**found) if verb == "reshard" else _with_given(found, given)
    function = printable(function)[:80]
    return RecordedRun(verb, _with_classes(options, file), map=function, added=added is not None, **told)


def _without_table(recorded: dict[str, Any], kind: type[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return recorded options without those about a table that is not available.

    Returns:
        Those options, and what a `RecordedRun` says of the table.
    """
    table, found = recorded.pop("join", ""), _options(recorded, kind)
    if table == "":
        return found, {}
    values = found.pop("values", ())
    for name in ("on", "delimiter", "no_header", "classes", *(() if "head" in found else ("sort_by", "descending"))):
        found.pop(name, None)
    choose = [name for name in _CHOOSE if name in found and (name != "head" or "sort_by" in found)]
    if choose:
        found = {name: value for name, value in found.items() if name not in _CHOSEN_BY}
        if kind is ReshardOptions:  # several that the table chose among may have one key
            found["on_duplicate"] = "first"
    made_fields = tuple(field for field, _ in pairs("values", values))
    return found, {
        "table": printable(str(table))[:80], "made_fields": made_fields, "choosing": tuple(map(option, choose)),
    }  # fmt: skip


def _with_given(found: dict[str, Any], given: VerifyOptions | DiffOptions) -> CreateOptions:
    """Return the options of `create`: what is recorded, and what the user says of the source."""
    if given.symlinks is not None:
        found["symlinks"] = given.symlinks
    elif found.get("symlinks") == "follow":
        follow = option("symlinks", "follow")
        problem = f"the dataset was made with {follow}, by which links may lead out of the source"
        remedy = f"If the source is yours, add {follow}."
        raise InvalidRequest(option("source"), problem, expected="your word for that", remedy=remedy)
    return CreateOptions(**found, root=given.root, allow_outside=given.allow_outside)


def _with_classes(options: CreateOptions | ReshardOptions, file: DatasetFile | None) -> CreateOptions | ReshardOptions:
    """Return options by which classes keep the numbers in a dataset file, wherever these were from."""
    if (
        file is None
        or not file.classes
        or not (options.classes or options.values or getattr(options, "label_from_folder", False))
    ):
        return options
    from shardtool.entries.classes import Classes

    return replace(options, classes_from=Classes("the dataset file", file.classes, grows=True))


def _options(recorded: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Return recorded options, as far as they are options of that kind, of the right types."""
    found: dict[str, Any] = {}
    for name, value in recorded.items():
        if name not in TAKEN_AGAIN or name not in kinds(kind):
            found_there = f"the dataset file records {printable(name)[:80]!r}"
            raise InvalidRequest(option("source"), found_there, expected="options that choose samples or shards")
        if not fits(value, kind, name):
            raise InvalidRequest(option("source"), f"the dataset file records {name} as {printable(str(value))[:80]!r}")
        found[name] = tuple(value) if isinstance(value, list) else value
    return found


class SourceAgain:
    """The source of a recorded run, as it is now.

    Args:
        run: The run.
        datasets: What it made: one dataset, or some of its splits.
        given: What the source is; a list of datasets or folders where there were several.
        outputs: The patterns of what was made.

    Attributes:
        source: The source.
        run: The run; without the table, if the table that was found cannot be joined.

    Raises:
        InvalidRequest: There is no such source.
    """

    def __init__(
        self, run: RecordedRun, datasets: Sequence[StoredDataset], given: Any, outputs: Sequence[ShardPattern]
    ) -> None:
        self.run, self._datasets = run, datasets
        if isinstance(run.options, ReshardOptions):
            for one in given if isinstance(given, (list, tuple)) else [given]:
                if not isinstance(one, (str, os.PathLike, list, tuple)):
                    found = f"a {type(one).__name__}"
                    raise InvalidRequest(option("source"), found, expected="what it was made from: datasets")
                for dataset in of_glob(one):
                    find_dataset(dataset)  # before shards are read, where there is none
        self._given, self._outputs = given, outputs
        self.source = self._open(run)
        self._stay = self._splits_that_stay()

    def _open(self, run: RecordedRun) -> Source:
        source = open_source(self._given, replace(run.options, on_error="skip"), self._outputs)
        source.may_lack_values = True
        return source

    def _splits_that_stay(self) -> list[StoredDataset]:
        """Return all splits, where samples stay in theirs: a larger source would be divided in another way.

        That is so of labels that keep their shares, and of all that an append added to.
        """
        dividing = self.run.options.of_split()
        if dividing is None or dividing.reads is None:
            return []
        known = {one.split for one in self._datasets}
        found = [*self._datasets, *(one for one in other_splits(self._datasets[0]) if one.split not in known)]
        return found if dividing.stratify or any(one.file and one.file.appends for one in found) else []

    def list_samples(self, pool: Pool, observer: Observer) -> tuple[Listing, Rows]:
        """Return the samples of the source that belong into the datasets, and the place of each one's dataset.

        Raises:
            InvalidRequest: The source cannot be listed.
        """
        try:
            return self._list_samples(pool, observer)
        except InvalidRequest as error:
            if (without := self.run.without_table) is None:
                raise
            self.run = without._replace(no_table=f"which cannot be joined as found in {self.run.table}: {error}")
            self.source = self._open(self.run)
            self._stay = self._splits_that_stay()
            return self._list_samples(pool, observer)

    def _list_samples(self, pool: Pool, observer: Observer) -> tuple[Listing, Rows]:
        options, source, datasets = self.run.options, self.source, self._datasets
        listed = source.choose(source.list_samples(pool, observer), lambda: None)
        listed = each_once(listed, source, options, pool, observer, partial(_stored_keys, datasets))
        entries, dividing, which = listed.entries, options.of_split(), np.zeros(len(listed.entries), np.int64)
        if dividing is not None:
            from shardtool.select.splits import divide

            values = source.labels(listed, dividing.reads[1]) if dividing.reads else None
            splits = divide(entries.keys, dividing, values)
            there = (one.split for one in (*datasets, *self._stay))
            numbers = {name: at for at, name in enumerate(dict.fromkeys([*splits.names, *there]))}  # it may lack some
            for one in self._stay:
                place = places_among(_stored_keys([one]), entries.keys)
                splits.number[place[place >= 0]] = numbers[one.split]
            places = [splits.samples(numbers[one.split]) for one in datasets]
            which = np.repeat(np.arange(len(places)), [len(some) for some in places])
            entries = entries.take(np.concatenate(places))
        if options.portable:
            from shardtool.select.names import make_portable

            entries = make_portable(entries)
        return replace(listed, entries=entries), which

    def lost_splits(self) -> str:
        """Return what is not compared since splits that may have any sample are not there; empty: none is missing."""
        dividing, there = self.run.options.of_split(), {one.split for one in self._stay}
        if (
            dividing is None
            or dividing.stratify is None
            or not any(one.file and one.file.appends for one in self._stay)
        ):
            return ""
        lost = [name for name, _ in dividing.shares if name not in there]
        why = f"they may be in {listing(lost)}, which is not beside, and {option('stratify')} would divide all anew"
        return f"samples that only the source has: {why}" if lost else ""

    def keys_left_out(self) -> tuple[set[str], list[str]]:
        """Return the keys listed as left out, as listed, and the datasets of which that list cannot be read."""
        found, unread = set[str](), list[str]()
        for one in self._stay or self._datasets:
            try:
                found |= {row.key for row in skipped_rows(one.file, one.folder)} if one.file else set()
            except CorruptShard:
                unread.append(one.where)
        return found, unread


def _stored_keys(datasets: Sequence[StoredDataset]) -> Names:
    """Return the keys of datasets, but for shards that nothing is known of any more."""
    from shardtool.verbs.create.earlier import keys_of

    found = []
    for shard in (shard for one in datasets for shard in one.shards):
        with suppress(CorruptShard):
            found.append(keys_of(shard.index()))
    return Names.parse(b"".join(found))


def has_others(file: DatasetFile) -> bool:
    """Tell whether samples of another source were appended; else the source of the first run has all of them."""
    return bool(file.appends) and not all(run.is_new_of(file.made) for run in file.made.appended)
