"""What no shard alone can show: keys that two samples have, the totals, and the fingerprint of the content."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING

from shardtool.dataset.find import ALL_SHARDS, facts_beside, listed_by, natural, unfinished
from shardtool.dataset.several import recorded_pattern
from shardtool.dataset.walk import SurveyTask, survey, walked_text
from shardtool.errors import AccessRefused, listing, printable
from shardtool.fingerprint import crc32c, show_fingerprint
from shardtool.pattern import DATASET_SUFFIX, SIDECAR_SUFFIX, is_shard_name, sidecar_name, whole_of
from shardtool.storage.places import is_web, join, names_in, read_small
from shardtool.values import counted, output_text, to_bytes
from shardtool.verbs.verify.findings import Finding, Findings
from shardtool.verbs.verify.subject import base_name
from shardtool.verbs.verify.worker import HASH_SIZE
from shardtool.wording import call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.dataset.walk import Survey
    from shardtool.verbs.verify.subject import Subject
    from shardtool.verbs.verify.worker import ShardExamination


_MOST = 100  # keys: the rest says nothing new, and is counted


@dataclass(slots=True)
class Sums:
    """Sums over all shards.

    Attributes:
        partial: Whether some shards were not to be read.
        hashes: The number of each shard that was read, and the hashes of its keys.
        contents: What the samples of these shards hold, where that was asked for: 8 bytes each.
        fields: How often each field is there.
        samples: How many samples there are.
        digests: The digest of each shard; None where it is not known.
        odd: How many members are no part of a sample.
        undecoded: How many payloads were too large to be decoded.
    """

    partial: bool = False
    hashes: list[tuple[int, bytes]] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    fields: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    digests: list[int | None] = field(default_factory=list)
    odd: int = 0
    undecoded: int = 0

    def add(self, number: int, examined: ShardExamination) -> None:
        """Add a shard."""
        survey = examined.survey
        self.hashes.append((number, examined.hashes))
        self.contents.append(examined.contents)
        self.undecoded += examined.undecoded
        self.digests.append(survey.digest if survey is not None and survey.error is None else None)
        if survey is not None:
            self.samples += len(survey.keys)
            self.odd += len(survey.odd)
            for code, count in Counter(survey.codes).items():
                self.fields[walked_text(survey.names[code])] += count

    def pairs(self) -> NDArray[np.void]:
        """Return the hashes of all keys, an array of two numbers each."""
        import numpy as np

        return np.frombuffer(b"".join(one for _, one in self.hashes), np.dtype([("a", "<u8"), ("b", "<u8")]))

    def ends(self) -> list[int]:
        """Return after how many samples each shard that was read ends."""
        return [*accumulate(len(one) // HASH_SIZE for _, one in self.hashes)]


def check_together(subject: Subject, sums: Sums, surveys: Mapping[int, Survey]) -> Findings:
    """Find what is wrong with all shards together; `surveys`: those of shards that are kept."""
    findings, file = _same_keys(subject, sums, surveys), subject.file
    if file is None:
        return findings
    if sums.partial:
        findings.unchecked.append("totals and the fingerprint: not all shards were read")
    elif any(case.survey is None or case.survey.error is not None for case in subject.cases):
        findings.unchecked.append("totals and the fingerprint: some shards cannot be read to their end")
    elif subject.is_all and len(subject.cases) == len(file.shards):
        _check_totals(findings, subject.name, file, sums)
        _check_fingerprint(findings, subject.name, file, sums)
    return findings


def _check_totals(findings: Findings, name: str, file: DatasetFile, sums: Sums) -> None:
    for one in sorted({*file.fields, *sums.fields}, key=str):
        if file.fields.get(one) != sums.fields.get(one):
            what = f"the field {printable(one)} {file.fields.get(one, 0):,} times"
            findings.add(-1, Finding("totals-differ", name, what, f"{sums.fields.get(one, 0):,}, as the shards hold"))


def _check_fingerprint(findings: Findings, name: str, file: DatasetFile, sums: Sums) -> None:
    if not file.fingerprint:
        findings.unchecked.append(f"the fingerprint: there is none; {call('index', checksum=True)} adds it")
    elif None in sums.digests:
        findings.unchecked.append("the fingerprint: the text of floats is not in TFRecord shards")
    elif (total := show_fingerprint(sum(digest or 0 for digest in sums.digests))) != file.fingerprint:
        expected = f"{total}, of what the shards hold"
        findings.add(-1, Finding("fingerprint-differs", name, printable(file.fingerprint), expected))


def _same_keys(subject: Subject, sums: Sums, surveys: Mapping[int, Survey]) -> Findings:
    """Find keys that two samples have: by their hashes, 16 bytes per sample."""
    import numpy as np

    findings = Findings()
    pairs = sums.pairs()
    firsts = np.sort(pairs["a"])
    if not np.any(firsts[1:] == firsts[:-1]):
        return findings
    order = np.lexsort((pairs["b"], pairs["a"]))
    ordered = pairs[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    findings.counts["key-duplicate"] += max(0, len(same) - _MOST)
    read = dict(surveys)
    for at in same[:_MOST].tolist():
        places = sorted((int(order[at]), int(order[at + 1])))
        (first, key), (second, _) = (sample_at(subject, sums, read, place) for place in places)
        other = "the same shard" if first == second else subject.cases[first].name
        findings.add(second, Finding("key-duplicate", subject.cases[second].name, f"also in {other}", key=key))
    return findings


def sample_at(subject: Subject, sums: Sums, read: dict[int, Survey], place: int) -> tuple[int, str]:
    """Return the shard and the key of the sample at a place in all; shards that are not in `read` are read for it."""
    ends = sums.ends()
    at = bisect_right(ends, place)
    number = sums.hashes[at][0]
    if number not in read:
        read[number] = survey(SurveyTask(subject.cases[number].path, dots=subject.dots))
    keys = read[number].keys
    row = place - (ends[at - 1] if at else 0)
    return number, walked_text(keys[row]) if row < len(keys) else ""


# What the names in a folder show: gaps between shards, files that no dataset file lists, shards that are missing.


_MOST_GAPS = 1000
_NUMBERED = re.compile(r"(.*?)(\d{1,18})(\D*)", re.ASCII)


def check_numbering(subject: Subject) -> Findings:
    """Find gaps, shards that are not listed, and sidecars without a shard."""
    findings, file = Findings(), subject.file
    if file is None and subject.own:
        findings.unchecked.append("shards that are not listed: the dataset file is damaged")
    findings.add(-1, *_gaps(subject))
    try:
        names = _names_in(subject, needed=True)
    except AccessRefused:
        names = set()
        findings.unchecked.append("files that the dataset file does not list: the store does not let us list")
    if file is not None:
        listed = {one.name for one in file.shards}
        extra = [*_extra(file, names, listed)] if subject.is_all else []
        findings.add(-1, *extra)
        said, given = listed.union(one.file for one in extra), {case.name for case in subject.cases}
        for number, case in enumerate(subject.cases):
            if case.name not in said:
                findings.add(number, Finding("shard-extra", case.name, "not in the dataset file"))
        if subject.is_all:
            findings.add(-1, *_skipped(subject.found.folder, file))
        else:
            unseen = not names or is_web(subject.found.folder)
            left = [] if unseen else sorted(listed.difference(map(output_text, names), given))
            gone = f"; of the others {listing(left)} {'is' if len(left) == 1 else 'are'} not there" if left else ""
            of = f"{len(subject.cases):,} of its {counted(len(file.shards), 'shard')} were given{gone}"
            findings.unchecked.append(f"totals and the fingerprint of {subject.name}: {of}")
    elif _sidecars_alone(subject, names):
        for name, listed in _datasets_beside(subject, names).items():
            findings.unchecked.append(f"what {output_text(name)} says: it lists {counted(len(listed), 'shard')}")
    return findings


def check_finished(subject: Subject) -> Findings:
    """Find whether shards without a whole dataset file are all that their run planned; their sidecars were read."""
    findings, missing = Findings(), _dataset_file_missing(subject)
    if missing is None and not (subject.file is None and subject.own):
        return findings
    found, there = subject.found, [case for case in subject.cases if case.size is not None]
    facts = [case.fact if case.fact and case.fact.name == case.name else None for case in there]
    short = unfinished(facts, facts_beside(found))
    folder = base_name(found.folder or ".")
    findings.add(-1, *(Finding("dataset-incomplete", folder, str(one), ALL_SHARDS) for one in short))
    if missing is not None and not short:
        findings.add(-1, missing)
    return findings


def _names_in(subject: Subject, *, needed: bool = False) -> set[str]:
    """Return the names of all that lies in the folders of a dataset; on the web, of what was read there."""
    if is_web(subject.found.folder):
        return {case.sidecar for case in subject.cases if case.fact is not None}
    folders = {subject.found.folder, *subject.found.folders()}
    return {name for folder in folders for name in names_in(folder, needed=needed)}


def _sidecars_alone(subject: Subject, names: set[str]) -> int:
    """Return how many of the shards have a sidecar, where no dataset file was given or found for just these shards."""
    if subject.found.dataset_file is not None:
        return 0
    return sum(sidecar_name(name) in names for name in {shard.file_name for shard in subject.found.shards})


def _datasets_beside(subject: Subject, names: set[str]) -> dict[str, set[str]]:
    """Return the shards that each dataset file in the folder lists, of those that list some that were given."""
    left, found = {case.name for case in subject.cases}, {}
    for name in sorted(name for name in names if name.endswith(DATASET_SUFFIX)):
        if left & (listed := listed_by(join(subject.found.folder, name))):
            left -= listed
            found[name] = listed
    return found


def _dataset_file_missing(subject: Subject) -> Finding | None:
    """Return the finding that sidecars lie beside some of the shards, and no dataset file lists these."""
    names = _names_in(subject) if subject.is_of_several and subject.found.dataset_file is None else set()
    if not (sidecars := _sidecars_alone(subject, names)):
        return None
    if {case.name for case in subject.cases} <= set[str]().union(*_datasets_beside(subject, names).values()):
        return None
    what = f"{counted(sidecars, 'sidecar')} and no dataset file: what is here may not be all"
    return Finding("dataset-file-missing", base_name(subject.found.folder or "."), what)


def _extra(file: DatasetFile, names: set[str], listed: set[str]) -> Iterator[Finding]:
    """Yield files that belong to the dataset by their name, and are not listed."""
    if (pattern := recorded_pattern(file)) is None:
        return
    known = listed.union(one.sidecar for one in file.shards)
    for name in sorted((name for name in names if output_text(name) not in known), key=natural):
        if not pattern.owns(name):
            continue
        if name.endswith(SIDECAR_SUFFIX):
            yield Finding("sidecar-extra", output_text(name), "not in the dataset file")
        elif is_shard_name(name):
            yield Finding("shard-extra", output_text(name), "not in the dataset file")


def _gaps(subject: Subject) -> Iterator[Finding]:
    """Yield the shards of a range that are neither there nor listed; else the numbers that are missing."""
    names = [shard.file_name for shard in subject.found.shards]
    for name in subject.found.missing:
        yield Finding("shard-missing", output_text(name), "not there, and of the pattern")
    if subject.file is not None:
        names = [one.name for one in subject.file.shards] if subject.is_all else []
    elif subject.found.missing or not isinstance(subject.given, (str, os.PathLike)):
        return
    yield from _lacking_parts(names)
    groups: dict[tuple[str, str, int], list[int]] = {}
    for name in [name for name in names if not whole_of(name)]:
        stem = sidecar_name(name).removesuffix(SIDECAR_SUFFIX)
        if (match := _NUMBERED.fullmatch(stem)) is not None:
            key = (match[1], match[3] + name[len(stem) :], len(match[2]) if match[2][0] == "0" else 0)
            groups.setdefault(key, []).append(int(match[2]))
    left = _MOST_GAPS
    for (prefix, suffix, width), numbers in groups.items():
        for before, after in pairwise(sorted(numbers)):
            for number in range(before + 1, min(after, before + 1 + left)):
                left -= 1
                missing = f"{prefix}{number:0{width}d}{suffix}"
                yield Finding("numbering-gap", output_text(missing), "not there", "a shard of this number")


def _lacking_parts(names: list[str]) -> Iterator[Finding]:
    """Yield the numbers that are missing of TensorFlow's names, each of which tells how many there are to be."""
    series: dict[tuple[str, int, int], set[int]] = {}
    for name in names:
        if whole := whole_of(name):
            stem, number, width, many = whole
            series.setdefault((stem, width, many), set()).add(number)
    for (stem, width, many), numbers in series.items():
        lacking = (number for number in range(many) if number not in numbers)
        for number in islice(lacking, _MOST_GAPS):
            name = output_text(f"{stem}{number:0{width}d}-of-{many:0{width}d}")
            yield Finding("numbering-gap", name, "not there", f"{counted(many, 'shard')}, as their names say")


def _skipped(folder: str, file: DatasetFile) -> Iterator[Finding]:
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
        yield Finding("skipped-differs", name, counted(rows, "row"), f"{file.skipped:,}, as the dataset file says")
