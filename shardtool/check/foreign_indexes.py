"""The index files of other tools that lie beside shards, held against the shards that they lead into.

They are no part of a dataset, and no checksum covers them; but a reader that is given a stale one returns wrong bytes
without an error. A worker compares each with what a walk over its shard finds. What has the name of an index and not
its form is reported as unchecked: it may be anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.check.findings import Finding, Findings
from shardtool.errors import AccessRefused, ShardError, StoreFailed
from shardtool.interop.export_formats import EXPORTS, ONCE
from shardtool.interop.export_types import IndexedShard
from shardtool.interop.huggingface import README, is_ours, listed
from shardtool.interop.index_forms import HEAD_SIZE, difference, form_of, index_limit, index_name
from shardtool.shard_names import is_packed_name, is_shard_name
from shardtool.storage.places import base_name, folder_of, folders_in, is_url, join, names_in, read_head
from shardtool.values import output_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.check.subject import Subject
    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.execute.pool import Pool
    from shardtool.interop.export_types import FolderIndex
    from shardtool.values import Dots

CODE = "export-stale"


@dataclass(frozen=True, slots=True)
class BesideTask:
    """The index files of a shard.

    Attributes:
        path: The path of the shard.
        name: The name of the shard.
        files: The names of files beside it that may be indexes.
        dots: The dot at which keys end in members' names: the `first` or the `last`.
    """

    path: str
    name: str
    files: tuple[str, ...]
    dots: Dots


@dataclass(frozen=True, slots=True)
class BesideFound:
    """The result for the index files of a shard: findings, and the files in no known form."""

    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]


def check_beside(subject: Subject, pool: Pool) -> Findings:
    """Find index files that lead into other bytes than those of their shards, of the shards that were read."""
    findings, folder = Findings(), subject.found.folder
    names = set(names_in(folder))
    tasks: dict[int, BesideTask] = {}
    for number, case in enumerate(subject.cases):
        name = base_name(case.path)
        wanted = {index_name(name, export) for export in EXPORTS.values() if export.suffix} & names
        files = tuple(sorted(wanted - {base_name(subject.found.dataset_file or "")}))
        if files and case.survey is not None and is_shard_name(name) and not is_packed_name(name):
            tasks[number] = BesideTask(case.path, name, files, subject.dots)
    numbers = [*tasks]
    for place, found in pool.map(compare_beside, iter(tasks.values())):
        findings.add(numbers[place], *found.findings)
        findings.unchecked += [f"{output_text(name)}: in no form of an index that is known" for name in found.unknown]
    if subject.file is not None and subject.is_all:  # what tells of all shards was not named with some of them
        for form, once in ONCE.items():
            findings.take(_of_folder(subject, subject.file, EXPORTS[form].reader, once))
        findings.add(-1, *_of_readme(subject, subject.file, names))
    return findings


def compare_beside(task: BesideTask) -> BesideFound:
    """Compare the index files of a shard with what lies in it."""
    forms: dict[str, str] = {}
    folder = folder_of(task.path)
    for name in task.files:
        head = _read(join(folder, name), HEAD_SIZE)
        if form := form_of(name, head[0], head[1]):
            forms[name] = form
    unknown = tuple(name for name in task.files if name not in forms and not name.endswith(".json"))
    if not forms:
        return BesideFound((), unknown)
    try:
        shard = _indexed(task, hashed=any(EXPORTS[form].hashed for form in forms.values()))
    except StoreFailed:
        raise
    except ShardError:
        return BesideFound((), unknown)  # a damaged shard, which other checks report
    findings = []
    for name, form in forms.items():
        limit = index_limit(shard)
        data, size = _read(join(folder, name), limit)
        wrong = f"{size:,} bytes" if size > limit else difference(form, data, shard)
        if wrong:
            expected = f"an index of {output_text(task.name)}, for {EXPORTS[form].reader}"
            findings.append(Finding(CODE, output_text(name), wrong, expected))
    return BesideFound(tuple(findings), unknown)


def _indexed(task: BesideTask, *, hashed: bool) -> IndexedShard:
    from shardtool.dataset.opened import table_of
    from shardtool.dataset.walk import SurveyTask, survey

    found = survey(SurveyTask(task.path, dots=task.dots))
    if found.error is not None:
        raise found.error
    digests = None
    if hashed:
        from array import array

        from shardtool.interop.hashes import DigestTask, digest

        stops = array("q", [start + length for start, length in zip(found.offsets, found.lengths, strict=True)])
        digests = digest(
            DigestTask(task.path, found.size, found.offsets.tobytes(), stops.tobytes()), lambda _, __: None
        )
    return IndexedShard(task.name, found.size, table_of(found), digests)


def _read(path: str, limit: int) -> tuple[bytes, int]:
    """Return the first bytes of a plain file, and how many it has; of any other none."""
    try:
        return read_head(path, limit)
    except (OSError, AccessRefused):  # the latter is said of what is not there, too, where we may not list
        return b"", 0


def _of_folder(subject: Subject, file: DatasetFile, reader: str, once: FolderIndex) -> Findings:
    """Find what is wrong with a reader's list of the folder's shards, as far as it is about this dataset."""
    findings, folder = Findings(), subject.found.folder
    below = folder_of(once.info)
    if below and not is_url(folder) and below not in folders_in(folder):
        return findings  # not through a link to a folder
    data, _ = _read(join(folder, once.info), 2**28)
    counts = once.counts(data)
    shards = {shard.name: shard.samples for shard in file.shards if shard.samples}
    if not counts.keys() & shards.keys():
        return findings
    for first in file.appends:
        later = [shard.name for shard in file.shards[first:]]
        if not counts.keys() & {*later}:
            findings.unchecked.append(f"{reader}'s index of the folder: it covers the first {first:,} shards only")
            shards = {name: samples for name, samples in shards.items() if name not in later}
            break
    for name, samples in shards.items():
        if counts.get(name) != samples:
            found = f"{counts[name]:,} samples in {name}" if name in counts else f"no shard {name}"
            findings.add(-1, Finding(CODE, once.info, found, f"{samples:,} samples"))
            break
    return findings


def _of_readme(subject: Subject, file: DatasetFile, names: set[str]) -> Iterator[Finding]:
    """Yield what is wrong with a `README.md` of ours that names shards of this dataset."""
    data, _ = _read(join(subject.found.folder, README), 2**24)
    if not is_ours(data):
        return
    there, shards = {*map(output_text, names)}, {shard.name for shard in file.shards}
    named = listed(data, there | shards)
    if named & shards and (lacking := sorted(shards - named)):
        yield Finding(CODE, README, f"nothing that names {lacking[0]}", "all shards of the dataset")
    if named & shards and (gone := sorted(named - there - shards)):
        yield Finding(CODE, README, f"a name of no shard: {gone[0]}", "names of shards")
