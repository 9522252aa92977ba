"""The dataset that is verified: what was found on disk, and what its dataset file says. No shard is read here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.check.findings import Finding, Findings, finding_of
from shardtool.dataset.dataset_file import DatasetFile, read_dataset, shard_names
from shardtool.dataset.find import find_dataset
from shardtool.dataset.unfinished import recorded_dots
from shardtool.errors import CorruptShard, reason
from shardtool.pattern import sidecar_name
from shardtool.shard_names import is_shard_name
from shardtool.storage import places
from shardtool.storage.places import is_url, plain_sizes, read_small
from shardtool.values import output_text

if TYPE_CHECKING:
    from shardtool.check.worker import Examined
    from shardtool.dataset.dataset_file import ShardEntry
    from shardtool.dataset.find import Found
    from shardtool.dataset.sidecar import ShardFact
    from shardtool.dataset.sidecar_read import Rows
    from shardtool.dataset.walk import Survey
    from shardtool.values import Dots, Given


@dataclass(slots=True)
class Case:
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
        rows: The sidecar's rows; None where it is damaged, or they were not read.
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
    rows: Rows | None = None
    examined: Examined | None = None

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
    found: Found
    own: bool
    file: DatasetFile | None
    cases: tuple[Case, ...]
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
    for path, size in zip(found.shards, plain_sizes(found.shards), strict=True):
        name = places.base_name(path)
        entry = entries.get(output_text(name))
        wanted = own and (file is None or entry is not None)
        sidecar = sidecar_name(name)
        cases.append(Case(output_text(name), path, sidecar, found.sidecar(path), entry, wanted, size))
    dots: Dots = recorded_dots(found) if file is None else file.made.dots
    return Subject(given, found, own, file, tuple(cases), dots), findings


def _read_dataset_file(found: Found) -> tuple[bool, DatasetFile | None, Findings]:
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
