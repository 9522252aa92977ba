"""Checks of the names in a folder: gaps between shards, missing shards, and files that no dataset file lists."""

from __future__ import annotations

import os
import re
from itertools import islice
from typing import TYPE_CHECKING

from shardtool.dataset import expand, find, unfinished
from shardtool.errors import (
    AccessRefused,
    format_list,
)
from shardtool.fingerprint import crc32c
from shardtool.names import to_bytes, to_output_name
from shardtool.pattern import DATASET_SUFFIX, SIDECAR_SUFFIX, sidecar_name
from shardtool.shard_names import is_shard_name, parse_numbered_name
from shardtool.storage import paths
from shardtool.storage.files import read_small
from shardtool.storage.lookup import list_folder_names
from shardtool.storage.paths import join
from shardtool.storage.remote.address import is_url, is_web
from shardtool.units import pluralize
from shardtool.verbs.verify.findings import Finding
from shardtool.verbs.verify.verified_dataset import AS_LISTED, VerifiedDataset, printable_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.values import DatasetLike


_MAX_GAPS = 1000


_NUMBERED_NAME = re.compile(r"(.*?)(\d{1,18})(\D*)", re.ASCII)


def check_numbering(subject: VerifiedDataset) -> None:
    """Find gaps, shards that are not listed, and sidecars without a shard."""
    findings, file = subject.findings, subject.file
    if file is None and subject.dataset.own:
        findings.unchecked.append("shards that are not listed: the dataset file is damaged")
    findings.add(-1, *_find_gaps(subject))
    try:
        names = _names_in_folders(subject, needed=True)
    except AccessRefused:
        names = set()
        findings.unchecked.append("files that the dataset file does not list: the store does not let us list")
    if file is None:
        for name, shards in (
            _neighbouring_datasets(subject, names).items() if subject.dataset.dataset_file is None else ()
        ):
            findings.unchecked.append(f"what {to_output_name(name)} says: it lists {pluralize(len(shards), 'shard')}")
        return
    listed = {one.name for one in file.shards}
    extra = [*_find_extra_files(file, names, listed)] if subject.is_all else []
    findings.add(-1, *extra)
    said, given = listed.union(one.file for one in extra), {case.name for case in subject.cases}
    for number, case in enumerate(subject.cases):
        if case.name not in said:
            findings.add(number, Finding("shard-extra", case.name, "not in the dataset file"))
    if subject.is_all:
        findings.add(-1, *_check_skipped_list(subject.folder, file))
        return
    unseen = not names or is_web(subject.folder)
    left = [] if unseen else sorted(listed.difference(map(to_output_name, names), given))
    gone = f"; of the others {format_list(left)} {'is' if len(left) == 1 else 'are'} not there" if left else ""
    of = f"{len(subject.cases):,} of its {pluralize(len(file.shards), 'shard')} were given{gone}"
    findings.unchecked.append(f"totals and the fingerprint of {subject.name}: {of}")


def check_complete(subject: VerifiedDataset) -> None:
    """Find whether shards without a whole dataset file are all that their run planned; their sidecars were read."""
    missing = _missing_dataset_file_finding(subject)
    if missing is None and not (subject.file is None and subject.dataset.own):
        return
    there = [case for case in subject.cases if case.size is not None]
    facts = [case.fact if case.fact and case.fact.name == case.name else None for case in there]
    short = [*unfinished.describe_unfinished(facts, unfinished.sibling_facts(subject.dataset))]
    folder = printable_name(subject.folder or ".")
    subject.findings.add(-1, *(Finding("dataset-incomplete", folder, one, unfinished.ALL_SHARDS) for one in short))
    if missing is not None and not short:
        subject.findings.add(-1, missing)


def _names_in_folders(subject: VerifiedDataset, *, needed: bool = False) -> set[str]:
    """Return the names of all that lies in the folders of a dataset; on the web, of what was read there."""
    if is_web(subject.folder):
        return {case.sidecar for case in subject.cases if case.fact is not None}
    folders = {subject.folder, *subject.dataset.folders()}
    return {name for folder in folders for name in list_folder_names(folder, needed=needed)}


def _neighbouring_datasets(subject: VerifiedDataset, names: set[str]) -> dict[str, set[str]]:
    """Return the shards that each dataset file in the folder lists, of those that list some that were given.

    None where no shard has a sidecar: then a dataset file tells of others that have the same names.
    """
    left, found = {case.name for case in subject.cases}, dict[str, set[str]]()
    if names.isdisjoint(case.sidecar for case in subject.cases):
        return found
    for name in sorted(name for name in names if name.endswith(DATASET_SUFFIX)):
        if left & (listed := find.names_listed_by(join(subject.folder, name))):
            left -= listed
            found[name] = listed
    return found


def _missing_dataset_file_finding(subject: VerifiedDataset) -> Finding | None:
    """Return the finding that sidecars lie beside some of the shards, and no dataset file lists these."""
    if subject.dataset.dataset_file is not None or _is_one_file(subject.dataset.given):
        return None
    names = _names_in_folders(subject)
    if not (sidecars := names & {case.sidecar for case in subject.cases}):
        return None
    if {case.name for case in subject.cases} <= set[str]().union(*_neighbouring_datasets(subject, names).values()):
        return None
    damaged = find.damaged_file(subject.dataset)
    state = f"a damaged {printable_name(damaged)}" if damaged else "no dataset file"
    what = f"{pluralize(len(sidecars), 'sidecar')} and {state}: what is here may not be all"
    return Finding("dataset-file-missing", printable_name(subject.folder or "."), what)


def _is_one_file(given: DatasetLike) -> bool:
    """Tell whether one shard, or another file, was named, rather than several: who names one asks about that alone."""
    if not isinstance(given, (str, os.PathLike)):
        return False
    path = os.fspath(given)
    return is_shard_name(paths.base_name(path)) and "{" not in path if is_url(path) else os.path.isfile(path)


def _find_extra_files(file: DatasetFile, names: set[str], listed: set[str]) -> Iterator[Finding]:
    """Yield files that belong to the dataset by their name, and are not listed."""
    if (pattern := expand.recorded_range(file)) is None:
        return
    known = listed.union(one.sidecar for one in file.shards)
    for name in sorted((name for name in names if to_output_name(name) not in known), key=find.natural_key):
        kind = "sidecar" if name.endswith(SIDECAR_SUFFIX) else "shard"
        if pattern.owns(name) and (kind == "sidecar" or is_shard_name(name)):
            yield Finding(f"{kind}-extra", to_output_name(name), "not in the dataset file")


def _find_gaps(subject: VerifiedDataset) -> Iterator[Finding]:
    """Yield the shards of a range that are neither there nor listed; else the numbers that are missing."""
    names = [shard.file_name for shard in subject.dataset.shards]
    for name in subject.dataset.missing:
        yield Finding("shard-missing", to_output_name(name), "not there, and of the pattern")
    if subject.file is not None:
        names = [one.name for one in subject.file.shards] if subject.is_all else []
    elif subject.dataset.missing or not isinstance(subject.dataset.given, (str, os.PathLike)):
        return
    yield from islice(_missing_numbers(names), _MAX_GAPS)


def _missing_numbers(names: list[str]) -> Iterator[Finding]:
    """Yield the numbers that are missing between names; of TensorFlow's, each of which tells how many there are, all.

    Those that are there are held, so that a gap takes no time but for the names that are taken of it.
    """
    series: dict[tuple[str, str, int, int], set[int]] = {}
    for name in names:
        stem = sidecar_name(name).removesuffix(SIDECAR_SUFFIX)
        if whole := parse_numbered_name(name):
            prefix, number, width, many = whole
            series.setdefault((prefix, f"-of-{many:0{width}d}", width, many), set()).add(number)
        elif match := _NUMBERED_NAME.fullmatch(stem):
            width = len(match[2]) if match[2][0] == "0" else 0
            series.setdefault((match[1], match[3] + name[len(stem) :], width, 0), set()).add(int(match[2]))
    for (prefix, suffix, width, many), numbers in series.items():
        expected = f"{pluralize(many, 'shard')}, as their names say" if many else "a shard of this number"
        for number in range(many) if many else range(min(numbers), max(numbers)):
            if number not in numbers:
                missing = to_output_name(f"{prefix}{number:0{width}d}{suffix}")
                yield Finding("numbering-gap", missing, "not there", expected)


def _check_skipped_list(folder: str, file: DatasetFile) -> Iterator[Finding]:
    """Yield how the list of what was left out differs from what the dataset file says of it."""
    name = f"{file.name}.skipped"
    try:
        data = read_small(join(folder, os.fsdecode(to_bytes(name))))
    except (FileNotFoundError, AccessRefused) as error:  # the latter is said of what is not there, too
        if file.skipped and not isinstance(error, FileNotFoundError):
            raise
        data = b""
    except (OSError, ValueError) as error:
        yield Finding("skipped-differs", name, str(error))
        return
    rows = data.count(b"\n")
    if rows == file.skipped and file.skipped_crc is not None and crc32c(data) != file.skipped_crc:
        yield Finding("skipped-differs", name, f"the checksum {crc32c(data):08x}", f"{file.skipped_crc:08x}")
    if rows != file.skipped:
        yield Finding("skipped-differs", name, pluralize(rows, "row"), f"{file.skipped:,}{AS_LISTED}")
