"""The dataset that is verified: what was found on disk, and what its dataset file says. No shard is read here."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from shardtool.dataset.dataset_file import DatasetFile, read_dataset, shard_names
from shardtool.dataset.find import find_dataset, of_glob, recorded_dots
from shardtool.errors import CorruptShard, InvalidRequest, printable, reason
from shardtool.pattern import is_shard_name, sidecar_name
from shardtool.request.options import OF_SOURCE, CreateOptions, ReshardOptions
from shardtool.request.settings import fits, kinds
from shardtool.request.texts import pairs
from shardtool.source.open import open_source
from shardtool.storage import places
from shardtool.storage.places import is_url, plain_sizes, read_small
from shardtool.values import output_text
from shardtool.verbs.verify.findings import Finding, Findings, finding_of
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.dataset.dataset_file import ShardEntry
    from shardtool.dataset.find import StoredDataset
    from shardtool.dataset.shard_index import ShardFact, ShardIndex
    from shardtool.dataset.walk import Survey
    from shardtool.pattern import ShardPattern
    from shardtool.request.options import VerifyOptions
    from shardtool.source.base import Source
    from shardtool.values import Dots, Given
    from shardtool.verbs.verify.worker import ShardExamination


@dataclass(slots=True)
class ShardCase:
    """One shard with all that is said of it.

    Attributes:
        name: The shard's name.
        path: The shard's path.
        sidecar: The name of its sidecar.
        sidecar_path: The path of its sidecar.
        entry: What the dataset file says; None where there is none, or it is damaged.
        wanted: Whether a sidecar must be there.
        size: The shard's bytes; None where there is no such file.
        data: The sidecar's bytes; None where it is not there, or cannot be read.
        fact: What the sidecar says of its shard; None where it is damaged.
        index: The sidecar's rows; None where it is damaged, or they were not read.
        examined: What a worker found; None where the shard was not read.
    """

    name: str
    path: str
    sidecar: str
    sidecar_path: str
    entry: ShardEntry | None
    wanted: bool
    size: int | None = None
    data: bytes | None = None
    fact: ShardFact | None = None
    index: ShardIndex | None = None
    examined: ShardExamination | None = None

    @property
    def survey(self) -> Survey | None:
        """The content of the shard; None where it could not be opened, or was not read."""
        return None if self.examined is None else self.examined.survey

    @property
    def sound(self) -> bool:
        """Whether the shard's bytes are proven to be those that were written."""
        survey = self.survey
        if survey is None or survey.crc is None or survey.error is not None:
            return False
        return survey.crc in [one.crc for one in (self.entry, self.fact) if one is not None and one.crc is not None]


@dataclass(frozen=True, slots=True)
class Subject:
    """A dataset that is verified.

    Attributes:
        given: What the user called it.
        found: Its files.
        own: Whether there is a dataset file of ours, damaged or not.
        file: What that says; None where there is none, or it is damaged.
        cases: Its shards.
        dots: The dot at which keys end in the names of members.
    """

    given: Given
    found: StoredDataset
    own: bool
    file: DatasetFile | None
    cases: tuple[ShardCase, ...]
    dots: Dots

    @property
    def name(self) -> str:
        """The name of the dataset file, or else of the folder."""
        return base_name(self.found.dataset_file or self.found.folder or ".")

    @property
    def classes(self) -> dict[str, int]:
        """Field to the number of its classes."""
        return {name: len(names) for name, names in self.file.classes.items() if names} if self.file else {}

    @property
    def is_all(self) -> bool:
        """Whether all shards that the dataset file lists were given, in any order."""
        return self.file is not None and {one.name for one in self.file.shards} <= {case.name for case in self.cases}

    @property
    def is_of_several(self) -> bool:
        """Whether more was asked for than one file: who names one shard asks about that alone."""
        return not isinstance(self.given, (str, os.PathLike)) or not _is_one_file(os.fspath(self.given))


def _is_one_file(given: str) -> bool:
    """Tell whether a name is that of one shard, or another file, rather than of several."""
    return is_shard_name(places.base_name(given)) and "{" not in given if is_url(given) else os.path.isfile(given)


def open_subject(given: Given) -> tuple[Subject, Findings]:
    """Return the dataset, and what is wrong with its dataset file.

    Raises:
        InvalidRequest: There is no such dataset.
        CorruptShard: The dataset file names what lies elsewhere, or is none.
    """
    found = find_dataset(given, lacking=True)
    own, file, findings = _read_dataset_file(found)
    entries = {one.name: one for one in file.shards} if file else {}
    cases = []
    for shard, size in zip(found.shards, plain_sizes(found.paths), strict=True):
        entry = entries.get(shard.name)
        wanted = own and (file is None or entry is not None)
        sidecar = sidecar_name(shard.file_name)
        cases.append(ShardCase(shard.name, shard.path, sidecar, shard.sidecar, entry, wanted, size))
    dots: Dots = recorded_dots(found) if file is None else file.made.dots
    return Subject(given, found, own, file, tuple(cases), dots), findings


def _read_dataset_file(found: StoredDataset) -> tuple[bool, DatasetFile | None, Findings]:
    """Return whether there is a dataset file of ours, what it says, and what is wrong with it."""
    findings, path = Findings(), found.dataset_file
    if path is None:
        return False, None, findings
    try:
        data = read_small(path)
    except OSError as error:
        what = reason(error)
        findings.add(-1, Finding("dataset-file-damaged", base_name(path), what))
        return False, None, findings
    if shard_names(data) is None:
        findings.unchecked.append(f"checksums: {base_name(path)} is an index of wids, which has none")
        return False, None, findings
    try:
        return True, read_dataset(data, path), findings
    except CorruptShard as error:
        findings.add(-1, finding_of("dataset-file-damaged", base_name(path), error))
        return True, None, findings


def base_name(path: str) -> str:
    """Return the last part of a path, as it is printed."""
    return output_text(places.base_name(path) or path)


# What a dataset file records of the run that made its dataset, and the source of that run, opened again.
#
# The file may say anything. So of what it records only options in `TAKEN_AGAIN` are used:
# those that choose (which samples and fields, in which order, how large shards are) or change bytes by rules of ours.
# What names code or a place is never used; a run that had such options is repeated only where the user gives them anew,
# as options of `verify`.


AnyOptions = TypeVar("AnyOptions", CreateOptions, ReshardOptions)

TAKEN_AGAIN = frozenset({
    "max_size", "max_count", "shards", "equal_count", "shards_multiple_of", "oversize", "place", "shuffle",
    "seed", "where", "split", "split_column", "stratify", "group_by", "portable",
    "include", "exclude", "hidden", "complete", "symlinks", "dots", "label_from_folder", "split_from_folder",
    "key", "path", "files", "binary", "values", "classes", "meta", "size", "urls", "robots", "require",
    "max_file_size",
    "resize", "resize_mode", "only_larger", "encode", "quality", "images", "masks", "probe",
    "columns_from", "select_fields", "drop_fields", "rename_fields", "on",
    "sample", "on_duplicate", "sort_by", "descending", "head",
})  # fmt: skip
_CHOOSE = ("where", "head", "split_column", "stratify", "group_by")  # with them, `--join` may choose samples
_CHOSEN_BY: dict[str, Any] = {
    "where": None, "sort_by": None, "descending": False, "head": None, "split": None, "split_column": None,
    "stratify": None, "group_by": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The recorded run that made a dataset, as far as it can be done again.

    Attributes:
        verb: `create`, `reshard` or `index`; empty: not recorded.
        options: Without those that say what is to be made of a table that is not at hand.
        table: The name of that table: what `--join` took; empty where it took none.
        made_fields: The fields that may have been made of it.
        choosing: The options, as the command line has them, by which it may have decided what samples there are.
        map: The function that made the samples, as text, which is never imported; empty where there was none.
    """

    verb: str
    options: CreateOptions | ReshardOptions
    table: str = ""
    made_fields: tuple[str, ...] = ()
    choosing: tuple[str, ...] = ()
    map: str = ""

    @property
    def changes(self) -> bool:
        """Whether payloads were changed on the way."""
        options = self.options
        return isinstance(options, CreateOptions) and (options.resize is not None or options.encode is not None)


def recorded_run(file: DatasetFile | None, given: VerifyOptions) -> RecordedRun:
    """Return how a dataset was made, or, if samples were appended to it, how its first ones were made.

    Args:
        file: The dataset file; None where there is none.
        given: What the user says of the source.

    Raises:
        InvalidRequest: The dataset file records something that is no option, or that the user is to give.
    """
    verb = file.made.verb if file else ""
    if file is None or verb != "reshard":
        recorded = {**file.made.options} if file else {}
        function = recorded.pop("map", "")
        if type(function) is not str:
            raise InvalidRequest(option("source"), f"the dataset file records map as {printable(str(function))[:80]!r}")
        run = _without_table(recorded, CreateOptions)
        options = _with_classes(_with_given(run.found, given), file)
        return RecordedRun(verb, options, run.table, run.made_fields, run.choosing, printable(function)[:80])
    if name := next((name for name in OF_SOURCE if getattr(given, name)), ""):
        raise InvalidRequest(option(name), "the dataset was made by reshard", expected="a dataset of create's")
    recorded = {**file.made.options}
    recorded.pop("dots", None)  # found in the source, not asked for
    run = _without_table(recorded, ReshardOptions)
    return RecordedRun(verb, _with_classes(ReshardOptions(**run.found), file), run.table, run.made_fields, run.choosing)


class _RepeatableOptions(NamedTuple):
    """What of recorded options can be used again without the table of `join`, and the rest of a `RecordedRun`."""

    found: dict[str, Any]
    table: str
    made_fields: tuple[str, ...]
    choosing: tuple[str, ...]


def _without_table(recorded: dict[str, Any], kind: type[Any]) -> _RepeatableOptions:
    """Return recorded options without those that say what is to be made of a table that is not at hand."""
    table, found = recorded.pop("join", ""), _options(recorded, kind)
    if table == "":
        return _RepeatableOptions(found, "", (), ())
    values = found.pop("values", ())
    for name in ("on", "classes", *(() if "head" in found else ("sort_by", "descending"))):
        found.pop(name, None)
    choose = [name for name in _CHOOSE if name in found and (name != "head" or "sort_by" in found)]
    if choose:
        found = {name: value for name, value in found.items() if name not in _CHOSEN_BY}
        found |= {name: value for name, value in _CHOSEN_BY.items() if name in kinds(kind)}
        if kind is ReshardOptions:  # several that the table chose among may have one key
            found["on_duplicate"] = "first"
    made_fields = tuple(field for field, _ in pairs("values", values))
    return _RepeatableOptions(found, printable(str(table))[:80], made_fields, tuple(map(option, choose)))


def _with_given(found: dict[str, Any], given: VerifyOptions) -> CreateOptions:
    """Return the options of `create`: what is recorded, and what the user says of the source."""
    if given.symlinks is not None:
        found["symlinks"] = given.symlinks
    elif found.get("symlinks") == "follow":
        follow = option("symlinks", "follow")
        problem = f"the dataset was made with {follow}, by which links may lead out of the source"
        remedy = f"If the source is yours, add {follow}."
        raise InvalidRequest(option("source"), problem, expected="your word for that", remedy=remedy)
    return CreateOptions(**found, root=given.root, allow_outside=given.allow_outside)


def _with_classes(options: AnyOptions, file: DatasetFile | None) -> AnyOptions:
    """Return options by which classes keep the numbers in a dataset file, wherever these were from."""
    if file is None or not file.classes or not (options.classes or getattr(options, "label_from_folder", False)):
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


def open_again(run: RecordedRun, source: object, outputs: Sequence[ShardPattern]) -> Source:
    """Return the source of a run.

    Args:
        run: The run.
        source: The source as it is now; a list of datasets or folders where there were several.
        outputs: The patterns of what was made.

    Raises:
        InvalidRequest: There is no such source.
    """
    if isinstance(run.options, ReshardOptions):
        for one in source if isinstance(source, (list, tuple)) else [source]:
            if not isinstance(one, (str, os.PathLike, list, tuple)):
                found = f"a {type(one).__name__}"
                raise InvalidRequest(option("source"), found, expected="what it was made from: datasets")
            for dataset in of_glob(one):
                find_dataset(dataset)  # before shards are read, where there is none
    return open_source(source, replace(run.options, on_error="skip"), outputs)
