"""`verify`: is a dataset whole? The library twin of `shardtool verify`."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from shardtool.dataset.find import given_datasets
from shardtool.errors import CorruptShard, current_folder, listing, without_secrets
from shardtool.request.options import VerifyOptions
from shardtool.request.results import Observer
from shardtool.request.settings import given_options
from shardtool.values import SPLIT_NAMES, output_text
from shardtool.verbs.verify.checks import sample_at
from shardtool.verbs.verify.findings import Finding, Findings, finding_of
from shardtool.verbs.verify.look import Report, look, open_pool
from shardtool.verbs.verify.subject import open_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.walk import Survey
    from shardtool.execute.pool import Pool
    from shardtool.values import Given
    from shardtool.verbs.verify.look import LookResult
    from shardtool.verbs.verify.subject import Subject


# Several datasets at once: each is looked at by itself, then splits of one dataset are held against each other.
#
# Datasets are splits of one where one run made them, as their dataset files say, or where their names differ in nothing
# but a word such as `train` or `val`. A run gives each key to one split only, so a key that two of its splits have is a
# leak. Of splits that were made apart, whose samples may just be numbered alike, the sample must hold the same, too.


_MOST = 100  # leaks between two splits: the rest tells nothing new, and is counted
_WORD = re.compile(r"[A-Za-z]+|[0-9]+")


def look_at_all(givens: Sequence[Any], look: Callable[[Any, bool], LookResult]) -> Report:
    """Return what is wrong with several datasets; one that cannot be opened does not keep others from it.

    Args:
        givens: Each as `find_dataset` takes it.
        look: Looks at one of them, and notes what its samples hold where that is asked for.

    Raises:
        InvalidRequest: One of them is not there; then none was read.
    """
    opened = [_open(given) for given in givens]
    splits = _splits(opened)
    related = {at for pair in splits for at in pair}
    compared = {at for pair, recorded in splits.items() if not recorded for at in pair}
    looked: dict[int, LookResult] = {}
    reports = []
    for at, given in enumerate(givens):
        if isinstance(error := opened[at], CorruptShard):
            reports.append(_unreadable(given, error))
            continue
        found = look(given, at in compared)
        reports.append(found.report)
        if at in related:  # of others nothing is kept: they may be many
            looked[at] = found
    for (first, second), recorded in splits.items():
        if leaks := _leaks(looked[first], looked[second], by_content=not recorded):
            reports[second] = _with(reports[second], leaks)
    return _together(reports)


def _open(given: Any) -> Subject | CorruptShard:
    try:
        return open_subject(given)[0]
    except CorruptShard as error:
        return error


def _splits(opened: Sequence[Subject | CorruptShard]) -> dict[tuple[int, int], bool]:
    """Return the pairs of datasets that are splits of one, each with whether their dataset files say so."""
    found = {}
    for (at, first), (other, second) in combinations(enumerate(opened), 2):
        if isinstance(first, CorruptShard) or isinstance(second, CorruptShard):
            continue
        recorded = (
            first.file is not None and second.file is not None and first.file.made.is_split_with(second.file.made)
        )
        if recorded or _named_alike(first, second):
            found[at, other] = recorded
    return found


def _unreadable(given: Any, error: CorruptShard) -> Report:
    where = without_secrets(output_text(os.fspath(given) if isinstance(given, (str, os.PathLike)) else error.where))
    finding = finding_of("dataset-file-damaged", os.path.basename(where), error)
    return Report(where, (finding,), {finding.code: 1}, (), ("all else of it",), 0, 0, 0, readable=False)


def _together(reports: Sequence[Report]) -> Report:
    """Return the report of all datasets."""
    counts = sum((Counter(one.counts) for one in reports), Counter[str]())
    read = [one.read for one in reports if one.read is not None]
    return Report(
        dataset=listing([one.dataset for one in reports], 3),
        findings=tuple(finding for one in reports for finding in one.findings),
        counts=dict(sorted(counts.items())),
        checked=_first_of(one.checked for one in reports),
        unchecked=tuple(f"{one.dataset}: {text}" for one in reports for text in one.unchecked),
        shards=sum(one.shards for one in reports),
        samples=sum(one.samples for one in reports),
        size=sum(one.size for one in reports),
        readable=all(one.readable for one in reports),
        repaired=tuple(text for one in reports for text in one.repaired),
        read=(sum(shards for shards, _ in read), sum(size for _, size in read)) if read else None,
        datasets=tuple(reports),
        quick=any(one.quick for one in reports),
    )


def _first_of(texts: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for some in texts for text in some))


def _with(report: Report, more: Findings) -> Report:
    counts = Counter(report.counts) + more.counts
    return replace(
        report,
        findings=(*report.findings, *(one for _, one in more.listed)),
        counts=dict(sorted(counts.items())),
        checked=(*report.checked, *more.checked),
        unchecked=(*report.unchecked, *more.unchecked),
    )


def _named_alike(first: Subject, second: Subject) -> bool:
    names = [one.found.dataset_file or one.found.paths[0] for one in (first, second)]
    return names[0] != names[1] and _without_split(names[0]) == _without_split(names[1])


def _without_split(path: str) -> str:
    """Return a path without the numbers in it, and without the words that name splits."""
    return _WORD.sub(lambda word: "" if word[0].isdigit() or word[0].lower() in SPLIT_NAMES else word[0], path)


def _leaks(first: LookResult, second: LookResult, *, by_content: bool) -> Findings | None:
    """Find samples that two splits have; None where no shard of one was read."""
    import numpy as np

    if not (first.sums.hashes and second.sums.hashes):
        return None
    findings, what = Findings(), f"leaks from {first.report.dataset}"
    if first.sums.partial or second.sums.partial:
        findings.unchecked.append(f"{what}: not all shards were read")
    else:
        findings.checked.append(what)
    ours, theirs = first.sums.pairs(), second.sums.pairs()
    _, one, other = np.intersect1d(ours["a"], theirs["a"], return_indices=True)
    same = ours["b"][one] == theirs["b"][other]
    if by_content:
        same &= _contents(first)[one] == _contents(second)[other]
    places = np.stack((one, other), axis=1)[same]
    numbers = np.array([number for number, _ in second.sums.hashes], np.int64)
    shards = numbers[np.searchsorted(second.sums.ends(), places[:, 1], "right")]
    places = places[np.lexsort((places[:, 1], shards))]
    findings.counts["split-leak"] += max(0, len(places) - _MOST)
    read: tuple[dict[int, Survey], dict[int, Survey]] = ({}, {})
    for at, place in places[:_MOST].tolist():
        there, _ = sample_at(first.subject, first.sums, read[0], at)
        here, key = sample_at(second.subject, second.sums, read[1], place)
        found = f"also in {first.report.dataset}, shard {first.subject.cases[there].name}"
        findings.add(here, Finding("split-leak", second.subject.cases[here].name, found, key=key))
    return findings


def _contents(looked: LookResult) -> NDArray[Any]:
    import numpy as np

    return np.frombuffer(b"".join(looked.sums.contents), np.uint64)


@current_folder()
def verify(dataset: Given, options: VerifyOptions | None = None, *, observer: Observer | None = None) -> Report:
    """Return what is wrong with a dataset, or with several. Nothing is written, but for `repair`.

    Args:
        dataset: A dataset file, a shard pattern, a glob, a folder, or shards; with `{split}` in a name, or of several
            such in a list, the report is that of all, and its `datasets` those of each.
        options: See `VerifyOptions`.
        observer: Gets progress.

    Raises:
        InvalidRequest: There is no such dataset, or options make no sense.
        CorruptShard: The dataset file names what lies elsewhere, or is none: nothing could be read.
        OutputFailed: The file system refuses to take what was mended.
    """
    options, observer, begun = given_options(options, VerifyOptions), observer or Observer(), time.time()
    givens = given_datasets(dataset)
    if len(givens) == 1:
        report = _look(givens[0], options, observer).report
    else:
        with nullcontext() if options.repair else open_pool(options) as pool:
            report = look_at_all(
                givens, lambda given, contents: _look(given, options, observer, pool, contents=contents)
            )
    return replace(report, seconds=time.time() - begun)


def _look(
    dataset: Given, options: VerifyOptions, observer: Observer, pool: Pool | None = None, *,
    contents: bool = False,
) -> LookResult:  # fmt: skip
    """Look at one dataset, and mend it where that is asked for."""
    begun = time.time()
    if options.repair:
        from shardtool.verbs.verify.repair import repair

        looked = repair(dataset, options, observer, contents=contents)
    else:
        looked = look(dataset, options, observer, pool, contents=contents)
    return replace(looked, report=replace(looked.report, seconds=time.time() - begun))
