"""What no shard alone can show: keys that two samples have, the totals, and the fingerprint of the content."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from shardtool.check.findings import Finding, Findings
from shardtool.check.worker import HASH_SIZE
from shardtool.dataset.walk import SurveyTask, survey, walked_text
from shardtool.errors import printable
from shardtool.fingerprint import show_fingerprint
from shardtool.wording import call

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.check.subject import Subject
    from shardtool.check.worker import Examined
    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.dataset.walk import Survey

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

    def add(self, number: int, examined: Examined) -> None:
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
