"""Checks of all shards together: duplicate keys, totals, and the content fingerprint."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from shardtool.dataset.scan import ShardScan, index_text
from shardtool.errors import (
    printable,
)
from shardtool.fingerprint import format_fingerprint
from shardtool.messages import call_text
from shardtool.verbs.verify.findings import MAX_LISTED_PER_FILE, Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.verbs.verify.verified_dataset import VerifiedDataset


def check_totals(subject: VerifiedDataset, scans: Mapping[int, ShardScan]) -> None:
    """Check duplicate keys, totals and the fingerprint; `scans`: scans that were kept, by shard number."""
    _check_duplicate_keys(subject, scans)
    file, unchecked = subject.file, subject.findings.unchecked
    if file is None:
        return
    if subject.is_partial:
        unchecked.append("totals and the fingerprint: not all shards were read")
    elif any(case.scan is None or case.scan.error is not None for case in subject.cases):
        unchecked.append("totals and the fingerprint: some shards cannot be read completely")
    elif subject.is_all and len(subject.cases) == len(file.shards):
        fields = subject.fields
        digests = [shard.scan.digest if shard.scan else None for _, shard in subject.read]
        for name in sorted({*file.fields, *fields}, key=str):
            if file.fields.get(name) != fields.get(name):
                what = f"the field {printable(name)} {file.fields.get(name, 0):,} times"
                expected = f"{fields.get(name, 0):,}, as in the shards"
                subject.findings.add(-1, Finding("totals-differ", subject.name, what, expected))
        if not file.fingerprint:
            unchecked.append(f"the fingerprint: not recorded; {call_text('index', checksum=True)} adds it")
        elif None in digests:
            unchecked.append("the fingerprint: TFRecord shards do not store the original text of floats")
        elif (total := format_fingerprint(sum(digest or 0 for digest in digests))) != file.fingerprint:
            found, expected = printable(file.fingerprint), f"{total}, computed from the shards"
            subject.findings.add(-1, Finding("fingerprint-differs", subject.name, found, expected))


def _check_duplicate_keys(subject: VerifiedDataset, scans: Mapping[int, ShardScan]) -> None:
    import numpy as np

    pairs = subject.hashes()
    firsts = np.sort(pairs["a"])
    if not np.any(firsts[1:] == firsts[:-1]):
        return
    order = np.lexsort((pairs["b"], pairs["a"]))
    ordered = pairs[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    subject.findings.counts["key-duplicate"] += max(0, len(same) - MAX_LISTED_PER_FILE)
    read = dict(scans)
    for row in same[:MAX_LISTED_PER_FILE].tolist():
        indexes = sorted((int(order[row]), int(order[row + 1])))
        (first, key), (second, _) = (sample_at(subject, read, index) for index in indexes)
        found = f"also in {'the same shard' if first == second else subject.cases[first].name}"
        subject.findings.add(second, Finding("key-duplicate", subject.cases[second].name, found, key=key))


def sample_at(subject: VerifiedDataset, read: dict[int, ShardScan], index: int) -> tuple[int, str]:
    """Return the shard number and key of the sample at an index among all samples; scan shards missing in `read`."""
    ends = subject.ends()
    position = bisect_right(ends, index)
    number, _ = subject.read[position]
    if number not in read:
        read[number] = subject.cases[number].shard.scan()
    keys = read[number].keys
    row = index - (ends[position - 1] if position else 0)
    return number, index_text(keys[row]) if row < len(keys) else ""
