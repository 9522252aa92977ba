"""Checks of all shards together: keys that two samples have, the totals, and the fingerprint of the content."""

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


def check_totals(subject: VerifiedDataset, surveys: Mapping[int, ShardScan]) -> None:
    """Find what is wrong with all shards together; `surveys`: those of shards that are kept."""
    _check_duplicate_keys(subject, surveys)
    file, unchecked = subject.file, subject.findings.unchecked
    if file is None:
        return
    if subject.is_partial:
        unchecked.append("totals and the fingerprint: not all shards were read")
    elif any(case.scan is None or case.scan.error is not None for case in subject.cases):
        unchecked.append("totals and the fingerprint: some shards cannot be read to their end")
    elif subject.is_all and len(subject.cases) == len(file.shards):
        fields = subject.fields
        digests = [one.scan.digest if one.scan else None for _, one in subject.read]
        for one in sorted({*file.fields, *fields}, key=str):
            if file.fields.get(one) != fields.get(one):
                what = f"the field {printable(one)} {file.fields.get(one, 0):,} times"
                expected = f"{fields.get(one, 0):,}, as the shards hold"
                subject.findings.add(-1, Finding("totals-differ", subject.name, what, expected))
        if not file.fingerprint:
            unchecked.append(f"the fingerprint: there is none; {call_text('index', checksum=True)} adds it")
        elif None in digests:
            unchecked.append("the fingerprint: the text of floats is not in TFRecord shards")
        elif (total := format_fingerprint(sum(digest or 0 for digest in digests))) != file.fingerprint:
            found, expected = printable(file.fingerprint), f"{total}, of what the shards hold"
            subject.findings.add(-1, Finding("fingerprint-differs", subject.name, found, expected))


def _check_duplicate_keys(subject: VerifiedDataset, surveys: Mapping[int, ShardScan]) -> None:
    """Find keys that two samples have: by their hashes, 16 bytes per sample."""
    import numpy as np

    pairs = subject.hashes()
    firsts = np.sort(pairs["a"])
    if not np.any(firsts[1:] == firsts[:-1]):
        return
    order = np.lexsort((pairs["b"], pairs["a"]))
    ordered = pairs[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    subject.findings.counts["key-duplicate"] += max(0, len(same) - MAX_LISTED_PER_FILE)
    read = dict(surveys)
    for at in same[:MAX_LISTED_PER_FILE].tolist():
        places = sorted((int(order[at]), int(order[at + 1])))
        (first, key), (second, _) = (sample_at(subject, read, place) for place in places)
        found = f"also in {'the same shard' if first == second else subject.cases[first].name}"
        subject.findings.add(second, Finding("key-duplicate", subject.cases[second].name, found, key=key))


def sample_at(subject: VerifiedDataset, read: dict[int, ShardScan], place: int) -> tuple[int, str]:
    """Return the shard and the key of the sample at a place in all; shards that are not in `read` are read for it."""
    ends = subject.ends()
    at = bisect_right(ends, place)
    number, _ = subject.read[at]
    if number not in read:
        read[number] = subject.cases[number].shard.scan()
    keys = read[number].keys
    row = place - (ends[at - 1] if at else 0)
    return number, index_text(keys[row]) if row < len(keys) else ""
