"""`verify`: check that a dataset is complete and undamaged.

Workers scan shards and compute checksums. The main process compares the results with the sidecars and the dataset file.
"""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from importlib import import_module
from itertools import accumulate
from typing import TYPE_CHECKING

from shardtool.dataset.expand import expand_datasets
from shardtool.dataset.find import is_local
from shardtool.execute import start_pool
from shardtool.execute.local_pool import usable_cores
from shardtool.execute.pool import Pool
from shardtool.messages import flag_text
from shardtool.request.dataset_options import VerifyOptions
from shardtool.request.observer import Notes, Observer
from shardtool.request.option_values import parse_share
from shardtool.request.verb_call import accepts_options
from shardtool.storage.files import files_at, map_paths
from shardtool.units import format_size, pluralize
from shardtool.verbs.verify import dataset_checks, examine, shard_checks
from shardtool.verbs.verify.findings import Finding, Findings, Report
from shardtool.verbs.verify.splits import verify_several
from shardtool.verbs.verify.verified_dataset import ShardCheck, VerifiedDataset, build_report, open_verified

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.dataset.scan import ShardScan
    from shardtool.values import DatasetLike


_STORE_CHECKSUMS = "the store's own checksums"


@accepts_options(VerifyOptions)
def verify(dataset: DatasetLike, options: VerifyOptions, observer: Observer) -> Report:
    """Check one or several datasets, and report problems. Only `repair` writes files.

    Args:
        dataset: A dataset file, shard pattern, glob, folder, or shards. For several datasets, pass a list or a name
            with `{split}`.

    Raises:
        InvalidRequest: The dataset does not exist, or the options conflict.
        CorruptShard: Nothing can be read, because the dataset file is invalid or lists files in other folders.
        OutputFailed: A repaired file cannot be written.

    Example:
        >>> report = shardtool.verify("out/train.json", decode=True)
        >>> report.sound, report.counts
        (False, {'image-bad': 2})
    """
    started = time.time()
    if options.repair:
        from shardtool.publish.publication import finish_replacements

        finish_replacements(dataset, Notes(observer))
    datasets = expand_datasets(dataset)
    with Pool() if options.repair else _open_pool(options, observer, dataset) as pool:
        check = partial(_check_and_repair, options=options, observer=observer, pool=None if options.repair else pool)
        if len(datasets) > 1:
            report = verify_several(datasets, options, check, pool)
        else:
            report = build_report(check(datasets[0]), options)
    return replace(report, seconds=time.time() - started)


@accepts_options(VerifyOptions)
def repair(dataset: DatasetLike, options: VerifyOptions, observer: Observer) -> Report:
    """Check one or several datasets like `verify`, and rebuild missing or invalid files from verified data.

    Shards can only be rebuilt if `source` is given.
    """
    return verify(dataset, replace(options, repair=True), observer=observer)


def _open_pool(options: VerifyOptions, observer: Observer, dataset: DatasetLike) -> Pool:
    workers = usable_cores() if options.workers is None else options.workers
    is_serial = options.quick or (workers == 1 and options.source is None and options.executor == "local")
    # For stores, fork the workers now, because requests start threads, and forking with threads is unsafe.
    lazy = options.source is None and is_local(dataset)
    return Pool() if is_serial else start_pool(options, observer=observer, lazy=lazy)


def _check_and_repair(
    dataset: DatasetLike, options: VerifyOptions, observer: Observer, pool: Pool | None, *, contents: bool = False
) -> VerifiedDataset:
    started = time.time()
    with nullcontext(pool) if pool is not None else _open_pool(options, observer, dataset) as worker_pool:
        subject = open_verified(dataset, contents=contents)
        if options.quick:
            _check_without_reading(subject, observer)
        else:
            _check_with_reading(subject, options, observer, worker_pool)
    if options.repair and subject.findings.counts.total():
        from shardtool.verbs.verify.repair import Repair

        repair = Repair(subject, options)
        repair.run()
        if repair.repaired:
            check_options = replace(options, repair=False, map=None)
            subject = _check_and_repair(dataset, check_options, Observer(), None, contents=contents)
        subject.unresolved, subject.repaired = tuple(repair.unresolved), tuple(repair.repaired)
    subject.seconds = time.time() - started
    return subject


def _check_without_reading(subject: VerifiedDataset, observer: Observer) -> None:
    findings, cases = subject.findings, subject.cases
    _start_progress(subject, observer, range(len(cases)))
    findings.merge(dataset_checks.check_numbering(subject))

    def check(number: int) -> Findings:
        shard_findings = Findings()
        _run_shard_checks(shard_findings, number, cases[number])
        shard_findings.merge(_check_store_checksum(number, cases[number]))
        return shard_findings

    for shard_findings in map_paths(check, range(len(cases)), lambda number: cases[number].shard.sidecar):
        findings.merge(shard_findings)
    findings.add(-1, dataset_checks.check_complete(subject))
    if shards_compared := findings.checked.count(_STORE_CHECKSUMS):
        findings.checked = [text for text in findings.checked if text != _STORE_CHECKSUMS]
        findings.checked.append(f"{_STORE_CHECKSUMS} of {pluralize(shards_compared, 'shard')}")
    unread = f"{pluralize(len(cases), 'shard')}, {format_size(sum(case.size or 0 for case in cases))}"
    findings.unchecked.append(f"the bytes of {unread}: {flag_text('quick')} reads no shard")


def _check_store_checksum(number: int, case: ShardCheck) -> Findings:
    findings, crc = Findings(), None
    if case.size is not None and case.crcs:
        with suppress(FileNotFoundError):
            crc = files_at(case.shard.path).crc(case.shard.path)
    if crc is not None:
        findings.checked.append(_STORE_CHECKSUMS)
        if crc != case.crcs[0]:
            problem = f"the checksum {crc:08x} in the store"
            findings.add(number, [Finding("shard-checksum", case.name, problem, f"{case.crcs[0]:08x}")])
    return findings


def _check_with_reading(subject: VerifiedDataset, options: VerifyOptions, observer: Observer, pool: Pool) -> None:
    findings, comparison = subject.findings, None
    if options.source is not None:
        from shardtool.verbs.verify.source_checks import SourceComparison

        # Report a missing source before any shard is read.
        comparison = SourceComparison(subject, options, observer)
    numbers = sampled_shards(subject.cases, options)
    _start_progress(subject, observer, numbers)
    pool.start(len(numbers))
    pool.check_access([subject.cases[number].shard.path for number in numbers])
    findings.merge(dataset_checks.check_numbering(subject))
    scans = _examine_shards(subject, numbers, options, observer, pool)
    findings.merge(dataset_checks.check_totals(subject, scans))
    from shardtool.verbs.verify.export_checks import check_exports

    findings.merge(check_exports(subject, pool))
    findings.add(-1, dataset_checks.check_complete(subject))
    if comparison is not None:
        comparison.run(scans, pool)
    if options.target:
        from shardtool.verbs.verify.reader_checks import check_readers

        findings.merge(check_readers(subject, [scans[number] for number in sorted(scans)], options.target))


def _start_progress(subject: VerifiedDataset, observer: Observer, numbers: Sequence[int]) -> None:
    cases = [subject.cases[number] for number in numbers]
    samples = sum(case.entry.samples for case in cases if case.entry is not None)
    observer.start(samples, sum(case.size or 0 for case in cases), len(cases))


def _examine_shards(
    subject: VerifiedDataset, numbers: Sequence[int], options: VerifyOptions, observer: Observer, pool: Pool
) -> dict[int, ShardScan]:
    preload = threading.Thread(target=import_module, args=("shardtool.dataset.sidecar_read",), daemon=True)
    preload.start()  # import modules while workers read the first shards
    classes = {name: len(names) for name, names in subject.file.classes.items() if names} if subject.file else {}
    tasks = (examine.ExamineTask(subject.cases[number].shard, options.decode, classes) for number in numbers)
    scans: dict[int, ShardScan] = {}
    for index, (scan, examined) in pool.map(examine.examine_shard, tasks):
        preload.join()
        number = numbers[index]
        case = subject.cases[number]
        case.examined = examined
        _run_shard_checks(subject.findings, number, case, scan)
        if scan is not None:
            subject.fields.update(examine.count_fields(scan))
            examined.content_ids = examine.content_ids(scan, subject.labels()) if subject.contents else b""
            if options.source is not None or options.target:
                scans[number] = scan
        samples = len(examined.hashes) // examine.KEY_HASH_BYTES
        observer.advance(samples, case.size or 0, 1)
        observer.shard(case.name, "read", samples, case.size or 0)
    preload.join()
    for number in sorted({*range(len(subject.cases))}.difference(numbers)):
        _run_shard_checks(subject.findings, number, subject.cases[number])
    return scans


def _run_shard_checks(findings: Findings, number: int, case: ShardCheck, scan: ShardScan | None = None) -> None:
    sidecar = shard_checks.read_sidecar(number, case, findings)
    findings.add(number, shard_checks.check_all(case, scan, sidecar))
    if case.examined is not None:
        findings.counts.update(case.examined.further_counts)


def sampled_shards(cases: Sequence[ShardCheck], options: VerifyOptions) -> list[int]:
    """Return the indexes of the shards to read. If shards exist, there is at least one.

    With `options.sample`, sort the shards by a hash of their names, and select a range. The next `seed` selects the
    next range.
    """
    existing = [number for number, case in enumerate(cases) if case.size is not None]
    if options.sample is None or not existing:
        return existing
    from fractions import Fraction

    share = parse_share("sample", options.sample)
    ordered = sorted(existing, key=lambda number: (blake2b(cases[number].name.encode()).digest(), number))
    # Add 1 to each size, so an empty shard can be chosen.
    ends = [*accumulate((cases[number].size or 0) + 1 for number in ordered)]
    start = share * (options.seed or 0) % 1
    starts = [Fraction(before, ends[-1]) for before in [0, *ends[:-1]]]
    chosen = [number for number, shard_start in zip(ordered, starts, strict=True) if (shard_start - start) % 1 < share]
    if not chosen:  # the range is within one shard
        chosen = [ordered[sum(shard_start <= start for shard_start in starts) - 1]]
    return sorted(chosen)
