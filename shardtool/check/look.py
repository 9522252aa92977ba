"""One look at a dataset: everything that `verify` checks, in order, and the report of it.

A worker walks and sums each shard; the parent compares that with the sidecar and the dataset file, and checks what
no shard alone can show: gaps, extra files, keys that two shards have. Nothing is written.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from shardtool.check.across_shards import Sums, check_together
from shardtool.check.numbering import check_finished, check_numbering
from shardtool.check.subject import open_subject
from shardtool.check.worker import HASH_SIZE, IMAGE_LIMIT, JSON_LIMIT, Examined, Task, examine
from shardtool.dataset.walk import Survey
from shardtool.errors import printable
from shardtool.execute.here import Here
from shardtool.execute.local import LocalPool, cores
from shardtool.values import counted, output_text, show_size
from shardtool.wording import flag

if TYPE_CHECKING:
    from shardtool.check.findings import Finding, Findings
    from shardtool.check.subject import Case, Subject
    from shardtool.request.observer import Observer
    from shardtool.request.options import VerifyOptions
    from shardtool.values import Given


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

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.counts

    def to_json(self) -> dict[str, object]:
        """Return the report as data, the way `--json` prints it."""
        return {
            "dataset": printable(self.dataset),
            "sound": self.sound,
            "findings": [one.to_json() for one in self.findings],
            "counts": self.counts,
            "checked": list(self.checked),
            "unchecked": list(self.unchecked),
            "repaired": list(self.repaired),
            "totals": {"shards": self.shards, "samples": self.samples, "size": self.size},
            "seconds": round(self.seconds, 3),
        }


def look(dataset: Given, options: VerifyOptions, observer: Observer) -> tuple[Report, Subject]:
    """Return what is wrong with a dataset, and the dataset as it was seen.

    Raises:
        InvalidRequest: There is no such dataset, or no such source.
        CorruptShard: The dataset file names what lies elsewhere, or is none.
    """
    if options.quick:
        return _look_outside(dataset, options, observer)
    workers = options.workers or cores()
    if workers == 1 and options.source is None:
        return _look_inside(dataset, options, observer, Here())
    with LocalPool(workers, options.start_method) as pool:  # forked before anything heavy is imported
        return _look_inside(dataset, options, observer, pool)


def _look_outside(dataset: Given, options: VerifyOptions, observer: Observer) -> tuple[Report, Subject]:
    """Look at names, sizes, sidecars and numbering: no shard is read."""
    subject, findings = open_subject(dataset)
    _start(subject, observer)
    findings.take(check_numbering(subject))
    for number, case in enumerate(subject.cases):
        _check_case(findings, number, case)
    findings.take(check_finished(subject))
    return _report(subject, options, findings, Sums()), subject


def _look_inside(
    dataset: Given, options: VerifyOptions, observer: Observer, pool: LocalPool | Here
) -> tuple[Report, Subject]:
    """Look at every byte."""
    subject, findings = open_subject(dataset)
    comparison = None
    if options.source is not None:
        from shardtool.check.source import Comparison

        comparison = Comparison(subject, options, observer)  # before shards are read, where there is no such source
    _start(subject, observer)
    findings.take(check_numbering(subject))
    sums, surveys = _examine_all(subject, options, observer, pool, findings)
    findings.take(check_together(subject, sums, surveys))
    from shardtool.check.foreign_indexes import check_beside

    findings.take(check_beside(subject, pool))
    findings.take(check_finished(subject))
    if comparison is not None and isinstance(pool, LocalPool):
        findings.take(comparison.run(surveys, pool))
    if options.target:
        from shardtool.check.readers import check_targets

        findings.take(check_targets(subject, [surveys[number] for number in sorted(surveys)], options.target))
    return _report(subject, options, findings, sums), subject


def _start(subject: Subject, observer: Observer) -> None:
    samples = sum(shard.samples for shard in subject.file.shards) if subject.file else 0
    observer.start(samples, sum(case.size or 0 for case in subject.cases), len(subject.cases))


def _examine_all(
    subject: Subject, options: VerifyOptions, observer: Observer, pool: LocalPool | Here, findings: Findings
) -> tuple[Sums, dict[int, Survey]]:
    """Have all shards read, and check each; return sums over all, and what lies in each where that is wanted later."""
    ahead = threading.Thread(target=_import_ahead, daemon=True)
    ahead.start()
    cases, sums, surveys = subject.cases, Sums(), dict[int, Survey]()
    keep = options.source is not None or bool(options.target)
    dots, classes = subject.dots, subject.classes
    there = [number for number, case in enumerate(cases) if case.size is not None]
    tasks = (Task(cases[at].path, cases[at].name, dots, options.decode, classes) for at in there)
    for place, examined in pool.map(examine, tasks):
        ahead.join()
        number = there[place]
        case = cases[number]
        case.examined = examined
        _check_case(findings, number, case)
        sums.add(number, examined)
        case.rows = case.data = case.examined = None
        if examined.survey is not None:
            case.examined = Examined(_short(examined.survey))
            if keep:
                surveys[number] = examined.survey
        samples = len(examined.hashes) // HASH_SIZE
        observer.advance(samples, case.size or 0, 1)
        observer.log(f"{case.name}: {counted(samples, 'sample')}")
    ahead.join()
    for number, case in enumerate(cases):
        if case.size is None:
            _check_case(findings, number, case)
    return sums, surveys


def _import_ahead() -> None:
    """Import what is heavy while workers read the first shards."""
    import_module("shardtool.check.shard")
    import_module("shardtool.dataset.sidecar_read")


def _check_case(findings: Findings, number: int, case: Case) -> None:
    from shardtool.check import shard as checks

    findings.add(number, *checks.read_sidecar(case))
    findings.add(number, *checks.check_shard(case))
    findings.add(number, *checks.check_fact(case))
    if case.examined is None:
        case.data = None
        return
    findings.add(number, *checks.read_case_rows(case))
    findings.add(number, *checks.check_records(case), *checks.check_rows(case), *checks.check_entry(case))
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
        limits = f"images over {show_size(IMAGE_LIMIT)} and JSON over {show_size(JSON_LIMIT)}"
        unchecked.append(f"{counted(sums.undecoded, 'payload')} that {flag('decode')} leaves out: {limits}")
    return Report(
        dataset=output_text(subject.found.dataset_file or subject.found.folder or "."),
        findings=tuple(one for _, one in sorted(findings.listed, key=lambda one: one[0])),
        counts={code: count for code, count in sorted(findings.counts.items()) if count},
        checked=(*_checked(subject, options), *findings.checked),
        unchecked=tuple(unchecked),
        shards=len(subject.cases),
        samples=sums.samples,
        size=sum(case.size or 0 for case in subject.cases),
        readable=subject.file is not None or options.quick or any(case.survey is not None for case in subject.cases),
    )


def _checked(subject: Subject, options: VerifyOptions) -> list[str]:
    found = ["names and numbering", "sidecars"] if options.quick else ["every byte"]
    if subject.file is not None:
        found.append("sizes against the dataset file" if options.quick else "checksums against the dataset file")
    if not options.quick:
        found += ["framing", "keys across shards"]
    return found + (["images, JSON and labels decoded"] if options.decode else [])
