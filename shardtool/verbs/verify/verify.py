"""`verify`: check that a dataset is complete and undamaged. Nothing is written, except with `repair`.

Workers scan each shard and compute its checksums; the parent compares them with the sidecar and the dataset file,
and
checks what no single shard shows: gaps, extra files, and keys that two shards have.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from importlib import import_module
from itertools import accumulate
from typing import TYPE_CHECKING

from shardtool.dataset.expand import expand_datasets
from shardtool.dataset.scan import ShardScan
from shardtool.execute import start_pool
from shardtool.execute.local_pool import usable_cores
from shardtool.execute.pool import Pool
from shardtool.messages import flag_text
from shardtool.request.dataset_options import VerifyOptions
from shardtool.request.observer import Observer
from shardtool.request.option_values import parse_share
from shardtool.request.verb_call import accepts_options
from shardtool.storage.lookup import map_paths, recorded_crc
from shardtool.units import format_size, pluralize
from shardtool.verbs.verify import dataset_checks, examine, folder_checks, shard_checks
from shardtool.verbs.verify.findings import Finding, Findings, Report
from shardtool.verbs.verify.repair import Repair
from shardtool.verbs.verify.report import build_report
from shardtool.verbs.verify.splits import verify_several
from shardtool.verbs.verify.verified_dataset import ShardCheck, VerifiedDataset, open_verified

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.values import DatasetLike


_STORE_CHECKSUMS = "the store's own checksums"


@accepts_options(VerifyOptions)
def verify(dataset: DatasetLike, options: VerifyOptions, observer: Observer) -> Report:
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
    givens, begun = expand_datasets(dataset), time.time()
    with nullcontext() if options.repair else _open_pool(options, observer) as pool:
        looked = partial(_check_and_repair, options=options, observer=observer, pool=pool)
        report = (
            verify_several(givens, options, looked) if len(givens) > 1 else build_report(looked(givens[0]), options)
        )
    return replace(report, seconds=time.time() - begun)


@contextmanager
def _open_pool(options: VerifyOptions, observer: Observer) -> Iterator[Pool]:
    """Give the workers that read shards; where one is enough, this process."""
    workers = options.workers or usable_cores()
    if options.quick or (workers == 1 and options.source is None and options.executor == "local"):
        yield Pool()
        return
    with start_pool(options, observer=observer) as pool:  # forked before anything heavy is imported
        yield pool


def _check_and_repair(
    dataset: DatasetLike, options: VerifyOptions, observer: Observer, pool: Pool | None, *, contents: bool = False
) -> VerifiedDataset:
    """Look at one dataset, and mend it where that is asked for."""
    begun = time.time()
    look = partial(_check_dataset, dataset, contents=contents)
    subject = look(options, observer, pool)
    if options.repair and subject.findings.counts.total():
        mending = Repair(subject, options)
        mending.run()
        if mending.done:
            subject = look(replace(options, repair=False, map=None), Observer())
        subject.left, subject.repaired = tuple(mending.left), tuple(mending.done)
    subject.seconds = time.time() - begun
    return subject


def _check_dataset(
    dataset: DatasetLike,
    options: VerifyOptions,
    observer: Observer,
    pool: Pool | None = None,
    *,
    contents: bool = False,
) -> VerifiedDataset:
    """Return a dataset with what is wrong with it.

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
    with nullcontext(pool) if pool is not None else _open_pool(options, observer) as own:
        subject = open_verified(dataset)
        if options.quick:
            _check_without_reading(subject, observer)
        else:
            _check_with_reading(subject, options, observer, own, contents=contents)
    return subject


def _check_without_reading(subject: VerifiedDataset, observer: Observer) -> None:
    """Look at names, sizes, sidecars and numbering: no shard is read."""
    findings, cases = subject.findings, {case.shard.sidecar: at for at, case in enumerate(subject.cases)}
    _start_progress(subject, observer, range(len(subject.cases)))
    folder_checks.check_numbering(subject)

    def check(sidecar_path: str) -> Findings:
        found, number = Findings(), cases[sidecar_path]
        _run_shard_checks(found, number, subject.cases[number])
        _check_store_checksum(found, number, subject.cases[number])
        return found

    for found in map_paths(check, cases):
        findings.take(found)
    folder_checks.check_complete(subject)
    if compared := findings.checked.count(_STORE_CHECKSUMS):
        findings.checked = [one for one in findings.checked if one != _STORE_CHECKSUMS]
        findings.checked.append(f"{_STORE_CHECKSUMS} of {pluralize(compared, 'shard')}")
    size = format_size(sum(case.size or 0 for case in subject.cases))
    findings.unchecked.append(f"the bytes of {pluralize(len(cases), 'shard')}, {size}: {flag_text('quick')} reads none")


def _check_store_checksum(findings: Findings, number: int, case: ShardCheck) -> None:
    """Compare the checksum that a store says of a shard with that of the dataset file or the sidecar."""
    if case.size is None or not case.crcs:
        return
    with suppress(FileNotFoundError):
        crc = recorded_crc(case.shard.path)
        if crc is None:
            return
        findings.checked.append(_STORE_CHECKSUMS)
        if crc != case.crcs[0]:
            found = f"the checksum {crc:08x}, as the store says"
            findings.add(number, Finding("shard-checksum", case.name, found, f"{case.crcs[0]:08x}"))


def _check_with_reading(
    subject: VerifiedDataset, options: VerifyOptions, observer: Observer, pool: Pool, *, contents: bool
) -> None:
    """Look at every byte."""
    comparison = None
    if options.source is not None:
        from shardtool.verbs.verify.source_checks import SourceComparison

        comparison = SourceComparison(
            subject, options, observer
        )  # before shards are read, where there is no such source
    there = sampled_shards(subject.cases, options)
    _start_progress(subject, observer, there)
    pool.check([subject.cases[number].shard.path for number in there])
    folder_checks.check_numbering(subject)
    surveys = _examine_shards(subject, there, options, observer, pool, contents=contents)
    dataset_checks.check_totals(subject, surveys)
    from shardtool.verbs.verify.export_checks import check_exports
    from shardtool.verbs.verify.reader_checks import check_readers

    check_exports(subject, pool)
    folder_checks.check_complete(subject)
    if comparison is not None:
        comparison.run(surveys, pool)
    if options.target:
        check_readers(subject, [surveys[number] for number in sorted(surveys)], options.target)


def _start_progress(subject: VerifiedDataset, observer: Observer, numbers: Sequence[int]) -> None:
    cases = [subject.cases[number] for number in numbers]
    samples = sum(case.entry.samples for case in cases if case.entry is not None)
    observer.start(samples, sum(case.size or 0 for case in cases), len(cases))


def _examine_shards(
    subject: VerifiedDataset,
    there: Sequence[int],
    options: VerifyOptions,
    observer: Observer,
    pool: Pool,
    *,
    contents: bool,
) -> dict[int, ShardScan]:
    """Check each shard as workers read it; return, where they are asked for later, what lies in each."""
    ahead = threading.Thread(target=import_module, args=("shardtool.dataset.sidecar_read",), daemon=True)
    ahead.start()  # while workers read the first shards
    classes = {name: len(names) for name, names in subject.file.classes.items() if names} if subject.file else {}
    tasks = (examine.ExamineTask(subject.cases[number].shard, options.decode, classes, contents) for number in there)
    surveys = dict[int, ShardScan]()
    for place, examined in pool.map(examine.examine_shard, tasks):
        ahead.join()
        number, found = there[place], examined.scan
        case = subject.cases[number]
        case.examined = examined
        _run_shard_checks(subject.findings, number, case)
        subject.fields.update(examined.fields)
        examined.fields = Counter()
        if found is not None:
            examined.scan = short = ShardScan(found.path, found.format, found.size)  # without its columns
            short.crc, short.digest, short.error = found.crc, found.digest, found.error
            if options.source is not None or options.target:
                surveys[number] = found
        samples = len(examined.hashes) // examine.KEY_HASH_BYTES
        observer.advance(samples, case.size or 0, 1)
        observer.shard(case.name, "read", samples, case.size or 0)
    ahead.join()
    for number in sorted({*range(len(subject.cases))}.difference(there)):
        _run_shard_checks(subject.findings, number, subject.cases[number])
    return surveys


def _run_shard_checks(findings: Findings, number: int, case: ShardCheck) -> None:
    for check in shard_checks.SHARD_CHECKS:
        findings.add(number, *check(case))
    case.data = None
    if case.examined is not None:
        findings.counts.update(case.examined.more)


def sampled_shards(cases: Sequence[ShardCheck], options: VerifyOptions) -> list[int]:
    """Return the numbers of the shards that are read, of those that are there; one at least."""
    there = [number for number, case in enumerate(cases) if case.size is not None]
    if options.sample is None or not there:
        return there
    wanted = parse_share("sample", options.sample)
    ordered = sorted(there, key=lambda number: (blake2b(cases[number].name.encode()).digest(), number))
    ends = list(accumulate((cases[number].size or 0) + 1 for number in ordered))  # + 1: an empty one has its place, too
    start = wanted * (options.seed or 0) % 1
    places = [Fraction(before, ends[-1]) for before in [0, *ends[:-1]]]
    found = [number for number, place in zip(ordered, places, strict=True) if (place - start) % 1 < wanted]
    if not found:  # the share lies within one large shard
        found = [ordered[sum(place <= start for place in places) - 1]]
    return sorted(found)
