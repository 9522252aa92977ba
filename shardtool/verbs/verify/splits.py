"""Verify several datasets, then look for samples that two splits of one dataset share.

Datasets are splits of one if one run wrote them, according to their dataset files, or if their names differ only in
a word
such as `train` or `val`. One run puts each key into one split only, so a shared key is a leak. Splits from separate
runs,
whose samples may just be numbered alike, leak only where the content is the same too.
"""

from __future__ import annotations

import os
import re
from itertools import combinations, starmap
from typing import TYPE_CHECKING, Any

from shardtool.errors import (
    CorruptShard,
    redact_secrets,
)
from shardtool.names import SPLIT_NAMES, to_output_name
from shardtool.verbs.verify.dataset_checks import sample_at
from shardtool.verbs.verify.findings import MAX_LISTED_PER_FILE, Finding, Findings, Report, finding_from_error
from shardtool.verbs.verify.report import build_report, combine_reports
from shardtool.verbs.verify.verified_dataset import VerifiedDataset, read_dataset_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardtool.dataset.scan import ShardScan
    from shardtool.dataset.stored import StoredDataset
    from shardtool.request.dataset_options import VerifyOptions


_NAME_PART = re.compile(r"[A-Za-z]+|[0-9]+")


def verify_several(givens: Sequence[Any], options: VerifyOptions, look: Callable[..., VerifiedDataset]) -> Report:
    """Return what is wrong with several datasets; one that cannot be opened does not keep others from it.

    Raises:
        InvalidRequest: One of them is not there; then none was read.
    """
    opened = [_open_or_error(given) for given in givens]
    splits = _find_splits(opened)
    related = {at for pair in splits for at in pair}
    compared = {at for pair, recorded in splits.items() if not recorded for at in pair}
    looked: dict[int, VerifiedDataset] = {}
    reports: dict[int, Report] = {}
    for at, given in enumerate(givens):
        if isinstance(error := opened[at], CorruptShard):
            reports[at] = _unreadable_report(given, error)
        elif at in related:
            looked[at] = look(given, contents=at in compared)
        else:  # of it nothing is kept: they may be many
            reports[at] = build_report(look(given), options)
    for (first, second), recorded in splits.items():
        if first in looked and second in looked:
            _find_leaks(looked[first], looked[second], by_content=not recorded)
    reports |= {at: build_report(subject, options) for at, subject in looked.items()}
    return combine_reports([reports[at] for at in range(len(givens))])


def _open_or_error(given: Any) -> StoredDataset | CorruptShard:
    try:
        return read_dataset_file(given)[0]
    except CorruptShard as error:
        return error


def _find_splits(opened: Sequence[StoredDataset | CorruptShard]) -> dict[tuple[int, int], bool]:
    """Return the pairs of datasets that are splits of one, each with whether their dataset files say so."""
    found = {}
    for (at, first), (other, second) in combinations(enumerate(opened), 2):
        if isinstance(first, CorruptShard) or isinstance(second, CorruptShard):
            continue
        ours, theirs = first.file, second.file
        recorded = ours is not None and theirs is not None and ours.made.is_sibling_split_of(theirs.made)
        names = [one.dataset_file or one.paths[0] for one in (first, second)]
        if recorded or (names[0] != names[1] and _name_without_split(names[0]) == _name_without_split(names[1])):
            found[at, other] = recorded
    return found


def _name_without_split(path: str) -> str:
    """Return a path without the numbers in it, and without the words that name splits."""
    return _NAME_PART.sub(lambda word: "" if word[0].isdigit() or word[0].lower() in SPLIT_NAMES else word[0], path)


def _unreadable_report(given: Any, error: CorruptShard) -> Report:
    where = redact_secrets(to_output_name(os.fspath(given) if isinstance(given, (str, os.PathLike)) else error.where))
    finding = finding_from_error("dataset-file-damaged", os.path.basename(where), error)
    return Report(where, (finding,), {finding.code: 1}, (), ("all else of it",), 0, 0, 0, readable=False)


def _find_leaks(first: VerifiedDataset, second: VerifiedDataset, *, by_content: bool) -> None:
    """Find samples that two splits have, and list them with the second one; nothing, if no shard of one was read."""
    import numpy as np

    if not (first.read and second.read):
        return
    findings, other_name = Findings(), redact_secrets(to_output_name(first.dataset.where))
    what = f"leaks from {other_name}"
    if first.is_partial or second.is_partial:
        second.left = (*second.left, f"{what}: not all shards were read")
    else:
        second.findings.checked.append(what)
    ours, theirs = first.hashes(), second.hashes()
    _, one, other = np.intersect1d(ours["a"], theirs["a"], return_indices=True)
    same = ours["b"][one] == theirs["b"][other]
    if by_content:
        contents = (b"".join(held.contents for _, held in some.read) for some in (first, second))
        held, held_there = (np.frombuffer(some, np.uint64) for some in contents)
        same &= held[one] == held_there[other]
    places = np.stack((one, other), axis=1)[same]
    places = places[np.argsort(places[:, 1])]
    read: tuple[dict[int, ShardScan], dict[int, ShardScan]] = ({}, {})

    def leak(at: int, place: int) -> Finding:
        there, _ = sample_at(first, read[0], at)
        here, key = sample_at(second, read[1], place)
        found = f"also in {other_name}, shard {first.cases[there].name}"
        return Finding("split-leak", second.cases[here].name, found, key=key)

    after_all_else, first_ones = len(second.cases), places[:MAX_LISTED_PER_FILE].tolist()
    findings.add_first("split-leak", after_all_else, len(places), starmap(leak, first_ones))
    second.findings.listed += findings.listed
    second.findings.counts.update(findings.counts)
