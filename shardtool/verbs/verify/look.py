"""One look at a dataset: everything that `verify` checks, in order, and the report of it.

A worker walks and sums each shard; the parent compares that with the sidecar and the dataset file, and checks what
no shard alone can show: gaps, extra files, keys that two shards have. Nothing is written.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from importlib import import_module
from itertools import accumulate
from typing import TYPE_CHECKING

from shardtool.dataset.walk import Survey
from shardtool.errors import printable, without_secrets
from shardtool.execute.local import cores, start_pool
from shardtool.execute.pool import Needs, Pool, a_few
from shardtool.request.texts import share
from shardtool.storage.places import for_each, stored_crc
from shardtool.values import counted, output_text, show_size
from shardtool.verbs.verify.checks import Sums, check_finished, check_numbering, check_together
from shardtool.verbs.verify.findings import Finding, Findings
from shardtool.verbs.verify.subject import open_subject
from shardtool.verbs.verify.worker import HASH_SIZE, IMAGE_LIMIT, JSON_LIMIT, ShardExamination, Task, examine
from shardtool.wording import flag, option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardtool.request.options import VerifyOptions
    from shardtool.request.results import Observer
    from shardtool.values import Given
    from shardtool.verbs.verify.subject import ShardCase, Subject


# `verify --sample`: a share of the shards is read, another one with each seed.
#
# Whole shards, so that all that is proven of a dataset is proven of them: their checksums, too. Shards stand in the
# order of a hash of their names; seed N takes the N-th share of their bytes, and goes on from the start at the end. So
# ten seeds in a row of `10%` read every shard, whatever the first of them is.


def chosen_shards(cases: Sequence[ShardCase], options: VerifyOptions) -> list[int]:
    """Return the numbers of the shards that are read, of those that are there; one at least."""
    there = [number for number, case in enumerate(cases) if case.size is not None]
    if options.sample is None or not there:
        return there
    wanted = share("sample", options.sample)
    ordered = sorted(there, key=lambda number: (blake2b(cases[number].name.encode()).digest(), number))
    ends = list(accumulate((cases[number].size or 0) + 1 for number in ordered))  # + 1: an empty one has its place, too
    start = wanted * (options.seed or 0) % 1
    places = [Fraction(before, ends[-1]) for before in [0, *ends[:-1]]]
    found = [number for number, place in zip(ordered, places, strict=True) if (place - start) % 1 < wanted]
    if not found:  # the share lies within one large shard
        found = [ordered[sum(place <= start for place in places) - 1]]
    return sorted(found)


def share_of(cases: Sequence[ShardCase]) -> tuple[int, int]:
    """Return how many shards were read, and their bytes."""
    sizes = [case.size or 0 for case in cases if case.survey is not None]
    return len(sizes), sum(sizes)


def left_out(cases: Sequence[ShardCase], options: VerifyOptions) -> str:
    """Return what was not read, in words."""
    (shards, size), total, seed = share_of(cases), sum(case.size or 0 for case in cases), options.seed or 0
    share_left = f"{100 * (1 - size / max(1, total)):.0f}% of the bytes"
    what = f"{counted(len(cases) - shards, 'shard')} of {len(cases):,}, {share_left}, but for names, sizes and sidecars"
    return f"{what}: {option('sample', options.sample)} {option('seed', seed)}; {option('seed', seed + 1)} reads others"


_STORED = "the store's own checksums"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `verify`.

    Attributes:
        dataset: What was verified: its dataset file, or else its folder.
        findings: What is wrong, in the order of the shards; of many alike only the first.
        counts: How often each code was found.
        checked: What was looked at, in words.
        unchecked: What was not, and why.
        shards: How many there are.
        samples: How many were seen.
        size: The bytes of the shards.
        readable: Whether anything could be read at all.
        repaired: What was mended, in words.
        seconds: How long it took.
        read: With `sample`, how many shards were read, and their bytes; None: all.
        datasets: Where several were verified, the report of each; all else is then of all of them.
        quick: Whether no shard was read.
    """

    dataset: str
    findings: tuple[Finding, ...]
    counts: dict[str, int]
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]
    shards: int
    samples: int
    size: int
    readable: bool = True
    repaired: tuple[str, ...] = ()
    seconds: float = 0.0
    read: tuple[int, int] | None = None
    datasets: tuple[Report, ...] = ()
    quick: bool = False

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.counts

    def to_json(self) -> dict[str, object]:
        """Return the report as data, the way `--json` prints it; of several datasets, what was found in each."""
        found: dict[str, object] = {
            "findings": [one.to_json() for one in self.findings],
            "counts": self.counts,
            "checked": list(self.checked),
            "unchecked": list(self.unchecked),
            "repaired": list(self.repaired),
        }
        if self.datasets:
            found = {"datasets": [one.to_json() for one in self.datasets], "counts": self.counts}
        return {
            "dataset": printable(self.dataset),
            "sound": self.sound,
            **({"quick": True} if self.quick else {}),
            **found,
            "totals": {"shards": self.shards, "samples": self.samples, "size": self.size},
            **({} if self.read is None else {"read": dict(zip(("shards", "size"), self.read, strict=True))}),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class LookResult:
    """A dataset that was looked at: what was found, its files as they were seen, and what was gathered over them."""

    report: Report
    subject: Subject
    sums: Sums


def look(
    dataset: Given,
    options: VerifyOptions,
    observer: Observer,
    pool: Pool | None = None,
    *,
    contents: bool = False,
) -> LookResult:
    """Return what is wrong with a dataset, and the dataset as it was seen.

    Args:
        dataset: As `find_dataset` takes it.
        options: What is looked at.
        observer: Gets progress.
        pool: Reads the shards; None: one is made for it.
        contents: Whether it is noted what samples hold, for a comparison with other datasets.

    Raises:
        InvalidRequest: There is no such dataset, or no such source.
        CorruptShard: The dataset file names what lies elsewhere, or is none.
    """
    if pool is None:
        with open_pool(options) as own:
            return look(dataset, options, observer, own, contents=contents)
    if options.quick:
        return _look_outside(dataset, options, observer)
    return _look_inside(dataset, options, observer, pool, contents=contents)


@contextmanager
def open_pool(options: VerifyOptions) -> Iterator[Pool]:
    """Give the workers that read shards; where one is enough, this process."""
    workers = options.workers or cores()
    if options.quick or (workers == 1 and options.source is None and options.executor == "local"):
        yield Pool()
        return
    with start_pool(options) as pool:  # forked before anything heavy is imported
        yield pool


def _look_outside(dataset: Given, options: VerifyOptions, observer: Observer) -> LookResult:
    """Look at names, sizes, sidecars and numbering: no shard is read."""
    subject, findings = open_subject(dataset)
    _start(subject, observer, range(len(subject.cases)))
    findings.take(check_numbering(subject))
    cases = {case.sidecar_path: (number, case) for number, case in enumerate(subject.cases)}

    def check(sidecar_path: str) -> Findings:
        found = Findings()
        _check_case(found, *cases[sidecar_path])
        _check_stored(found, *cases[sidecar_path])
        return found

    for found in for_each(check, cases):
        findings.take(found)
    findings.take(check_finished(subject))
    if compared := findings.checked.count(_STORED):
        findings.checked = [one for one in findings.checked if one != _STORED]
        findings.checked.append(f"{_STORED} of {counted(compared, 'shard')}")
    size = show_size(sum(case.size or 0 for case in subject.cases))
    findings.unchecked.append(f"the bytes of {counted(len(cases), 'shard')}, {size}: {flag('quick')} reads none")
    return LookResult(_report(subject, options, findings, Sums()), subject, Sums())


def _check_stored(findings: Findings, number: int, case: ShardCase) -> None:
    """Compare the checksum that a store says of a shard with that of the dataset file or the sidecar."""
    expected = [one.crc for one in (case.entry, case.fact) if one is not None and one.crc is not None]
    if case.size is None or not expected:
        return
    with suppress(FileNotFoundError):
        crc = stored_crc(case.path)
        if crc is None:
            return
        findings.checked.append(_STORED)
        if crc != expected[0]:
            found = f"the checksum {crc:08x}, as the store says"
            findings.add(number, Finding("shard-checksum", case.name, found, f"{expected[0]:08x}"))


def _look_inside(
    dataset: Given, options: VerifyOptions, observer: Observer, pool: Pool, *, contents: bool
) -> LookResult:
    """Look at every byte."""
    subject, findings = open_subject(dataset)
    comparison = None
    if options.source is not None:
        from shardtool.verbs.verify.source import Comparison

        comparison = Comparison(subject, options, observer)  # before shards are read, where there is no such source
    there = chosen_shards(subject.cases, options)
    _start(subject, observer, there)
    pool.check(Needs(a_few([subject.cases[number].path for number in there])))
    findings.take(check_numbering(subject))
    tasks = (
        Task(case.path, case.name, subject.dots, options.decode, subject.classes, contents)
        for case in (subject.cases[number] for number in there)
    )
    results = ((there[place], examined) for place, examined in pool.map(examine, tasks))
    keep = options.source is not None or bool(options.target)
    sums, surveys = _examine_all(subject, results, observer, findings, keep=keep)
    sums.partial = len(there) < sum(case.size is not None for case in subject.cases)
    findings.take(check_together(subject, sums, surveys))
    from shardtool.verbs.verify.other_tools import check_beside

    findings.take(check_beside(subject, pool))
    findings.take(check_finished(subject))
    if comparison is not None:
        findings.take(comparison.run(surveys, pool))
    if options.target:
        from shardtool.verbs.verify.other_tools import check_targets

        findings.take(check_targets(subject, [surveys[number] for number in sorted(surveys)], options.target))
    return LookResult(_report(subject, options, findings, sums), subject, sums)


def _start(subject: Subject, observer: Observer, numbers: Sequence[int]) -> None:
    cases = [subject.cases[number] for number in numbers]
    samples = sum(case.entry.samples for case in cases if case.entry is not None)
    observer.start(samples, sum(case.size or 0 for case in cases), len(cases))


def _examine_all(
    subject: Subject,
    results: Iterable[tuple[int, ShardExamination]],
    observer: Observer,
    findings: Findings,
    *,
    keep: bool,
) -> tuple[Sums, dict[int, Survey]]:
    """Check each shard as workers have read it; return sums over all, and where asked for what lies in each."""
    ahead = threading.Thread(target=_import_ahead, daemon=True)
    ahead.start()
    cases, sums, surveys = subject.cases, Sums(), dict[int, Survey]()
    left = {*range(len(cases))}
    for number, examined in results:
        ahead.join()
        case = cases[number]
        case.examined = examined
        _check_case(findings, number, case)
        sums.add(number, examined)
        case.index = case.data = case.examined = None
        if examined.survey is not None:
            case.examined = ShardExamination(_short(examined.survey))
            if keep:
                surveys[number] = examined.survey
        samples = len(examined.hashes) // HASH_SIZE
        observer.advance(samples, case.size or 0, 1)
        observer.log(f"{case.name}: {counted(samples, 'sample')}")
        left.discard(number)
    ahead.join()
    for number in sorted(left):
        _check_case(findings, number, cases[number])
    return sums, surveys


def _import_ahead() -> None:
    """Import what is heavy while workers read the first shards."""
    import_module("shardtool.dataset.sidecar")


def _check_case(findings: Findings, number: int, case: ShardCase) -> None:
    from shardtool.verbs.verify import checks

    findings.add(number, *checks.read_sidecar(case))
    findings.add(number, *checks.check_shard(case))
    findings.add(number, *checks.check_fact(case))
    if case.examined is None:
        case.data = None
        return
    findings.add(number, *checks.read_case_index(case))
    findings.add(number, *checks.check_records(case), *checks.check_index(case), *checks.check_entry(case))
    findings.counts.update(case.examined.more)


def _short(survey: Survey) -> Survey:
    """Return a survey without its columns: what is asked of a shard once all were seen."""
    short = Survey(survey.path, survey.format, survey.size)
    short.crc, short.error = survey.crc, survey.error
    return short


def _report(subject: Subject, options: VerifyOptions, findings: Findings, sums: Sums) -> Report:
    unchecked = list(findings.unchecked)
    if sums.odd:
        unchecked.append(f"{counted(sums.odd, 'member')} of tar shards that are no part of a sample")
    if sums.undecoded:
        images = f"images over {show_size(IMAGE_LIMIT)}, or over 1 GiB once decoded,"
        limits = f"{images} and JSON over {show_size(JSON_LIMIT)}"
        unchecked.append(f"{counted(sums.undecoded, 'payload')} that {flag('decode')} leaves out: {limits}")
    read = None
    if options.sample is not None:
        read = share_of(subject.cases)
        unchecked += [left_out(subject.cases, options)] if sums.partial else []
    return Report(
        dataset=without_secrets(output_text(subject.found.dataset_file or subject.found.folder or ".")),
        findings=tuple(one for _, one in sorted(findings.listed, key=lambda one: one[0])),
        counts={code: count for code, count in sorted(findings.counts.items()) if count},
        checked=(*_checked(subject, options, partial=sums.partial), *findings.checked),
        unchecked=tuple(unchecked),
        shards=len(subject.cases),
        samples=sums.samples,
        size=sum(case.size or 0 for case in subject.cases),
        read=read,
        quick=options.quick,
        readable=subject.file is not None or options.quick or any(case.survey is not None for case in subject.cases),
    )


def _checked(subject: Subject, options: VerifyOptions, *, partial: bool) -> list[str]:
    found = ["names and numbering", "sidecars"] if options.quick else ["every byte"]
    if partial:
        found = [f"every byte of {share_of(subject.cases)[0]:,} of {counted(len(subject.cases), 'shard')}"]
    if subject.file is not None:
        found.append("sizes against the dataset file" if options.quick else "checksums against the dataset file")
    if not options.quick:
        found += ["framing", "keys across these" if partial else "keys across shards"]
    return found + (["images, JSON and labels decoded"] if options.decode else [])
