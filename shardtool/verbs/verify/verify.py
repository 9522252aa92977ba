"""`verify`: is a dataset whole? The library twin of `shardtool verify`.

A worker walks and sums each shard; the parent compares that with the sidecar and the dataset file, and checks what
no shard alone can show: gaps, extra files, keys that two shards have. Nothing is written, but for `repair`.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from importlib import import_module
from itertools import accumulate, combinations, starmap
from typing import TYPE_CHECKING, Any

from shardtool.dataset.dataset_file import DatasetFile, sound_dataset
from shardtool.dataset.find import StoredDataset, find_dataset, given_datasets
from shardtool.dataset.shard_file import Survey
from shardtool.errors import CorruptShard, InvalidRequest, OutputFailed, ShardError, listing, printable, without_secrets
from shardtool.execute import start_pool
from shardtool.execute.pool import Pool, cores
from shardtool.fingerprint import crc32c
from shardtool.format.tfrecord import encode_number
from shardtool.pattern import DATASET_SUFFIX, parse_pattern
from shardtool.request.options import CreateOptions, IndexOptions, VerifyOptions, WorkerOptions
from shardtool.request.settings import Observer, by_names
from shardtool.request.texts import share
from shardtool.storage.places import base_name, for_each, stored_crc
from shardtool.values import SPLIT_NAMES, Given, counted, output_text, show_size
from shardtool.verbs.verify import checks
from shardtool.verbs.verify.checks import ShardCase, Subject, open_subject, read_stored, sample_at
from shardtool.verbs.verify.findings import MOST, Finding, Findings, Report, finding_of
from shardtool.wording import flag, option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.storage.staging import DurableFile, KeptFiles
    from shardtool.values import OnError


_WORD = re.compile(r"[A-Za-z]+|[0-9]+")
_STORED = "the store's own checksums"


@by_names(VerifyOptions)
def verify(dataset: Given, options: VerifyOptions, observer: Observer) -> Report:
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
    givens, begun = given_datasets(dataset), time.time()
    with nullcontext() if options.repair else _open_pool(options, observer) as pool:
        looked = partial(_look_and_mend, options=options, observer=observer, pool=pool)
        report = _of_several(givens, options, looked) if len(givens) > 1 else _report(looked(givens[0]), options)
    return replace(report, seconds=time.time() - begun)


@contextmanager
def _open_pool(options: VerifyOptions, observer: Observer) -> Iterator[Pool]:
    """Give the workers that read shards; where one is enough, this process."""
    workers = options.workers or cores()
    if options.quick or (workers == 1 and options.source is None and options.executor == "local"):
        yield Pool()
        return
    with start_pool(options, observer=observer) as pool:  # forked before anything heavy is imported
        yield pool


def _look_and_mend(
    dataset: Given, options: VerifyOptions, observer: Observer, pool: Pool | None, *, contents: bool = False
) -> Subject:
    """Look at one dataset, and mend it where that is asked for."""
    begun = time.time()
    look = partial(_look, dataset, contents=contents)
    subject = look(options, observer, pool)
    if options.repair and subject.findings.counts.total():
        mending = _Repair(subject, options)
        mending.run()
        if mending.done:
            subject = look(replace(options, repair=False, map=None), Observer())
        subject.left, subject.repaired = tuple(mending.left), tuple(mending.done)
    subject.seconds = time.time() - begun
    return subject


def _look(
    dataset: Given, options: VerifyOptions, observer: Observer, pool: Pool | None = None, *, contents: bool = False
) -> Subject:
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
        subject = open_subject(dataset)
        if options.quick:
            _look_outside(subject, observer)
        else:
            _look_inside(subject, options, observer, own, contents=contents)
    return subject


def _look_outside(subject: Subject, observer: Observer) -> None:
    """Look at names, sizes, sidecars and numbering: no shard is read."""
    findings, cases = subject.findings, {case.shard.sidecar: at for at, case in enumerate(subject.cases)}
    _start(subject, observer, range(len(subject.cases)))
    checks.check_numbering(subject)

    def check(sidecar_path: str) -> Findings:
        found, number = Findings(), cases[sidecar_path]
        _check_case(found, number, subject.cases[number])
        _check_stored(found, number, subject.cases[number])
        return found

    for found in for_each(check, cases):
        findings.take(found)
    checks.check_finished(subject)
    if compared := findings.checked.count(_STORED):
        findings.checked = [one for one in findings.checked if one != _STORED]
        findings.checked.append(f"{_STORED} of {counted(compared, 'shard')}")
    size = show_size(sum(case.size or 0 for case in subject.cases))
    findings.unchecked.append(f"the bytes of {counted(len(cases), 'shard')}, {size}: {flag('quick')} reads none")


def _check_stored(findings: Findings, number: int, case: ShardCase) -> None:
    """Compare the checksum that a store says of a shard with that of the dataset file or the sidecar."""
    if case.size is None or not case.crcs:
        return
    with suppress(FileNotFoundError):
        crc = stored_crc(case.shard.path)
        if crc is None:
            return
        findings.checked.append(_STORED)
        if crc != case.crcs[0]:
            found = f"the checksum {crc:08x}, as the store says"
            findings.add(number, Finding("shard-checksum", case.name, found, f"{case.crcs[0]:08x}"))


def _look_inside(subject: Subject, options: VerifyOptions, observer: Observer, pool: Pool, *, contents: bool) -> None:
    """Look at every byte."""
    comparison = None
    if options.source is not None:
        from shardtool.verbs.verify.source import Comparison

        comparison = Comparison(subject, options, observer)  # before shards are read, where there is no such source
    there = chosen_shards(subject.cases, options)
    _start(subject, observer, there)
    pool.check([subject.cases[number].shard.path for number in there])
    checks.check_numbering(subject)
    surveys = _examine_all(subject, there, options, observer, pool, contents=contents)
    checks.check_together(subject, surveys)
    from shardtool.verbs.verify.other_tools import check_beside, check_targets

    check_beside(subject, pool)
    checks.check_finished(subject)
    if comparison is not None:
        comparison.run(surveys, pool)
    if options.target:
        check_targets(subject, [surveys[number] for number in sorted(surveys)], options.target)


def _start(subject: Subject, observer: Observer, numbers: Sequence[int]) -> None:
    cases = [subject.cases[number] for number in numbers]
    samples = sum(case.entry.samples for case in cases if case.entry is not None)
    observer.start(samples, sum(case.size or 0 for case in cases), len(cases))


def _examine_all(
    subject: Subject, there: Sequence[int], options: VerifyOptions, observer: Observer, pool: Pool, *, contents: bool
) -> dict[int, Survey]:
    """Check each shard as workers read it; return, where they are asked for later, what lies in each."""
    ahead = threading.Thread(target=import_module, args=("shardtool.dataset.shard_index",), daemon=True)
    ahead.start()  # while workers read the first shards
    classes = {name: len(names) for name, names in subject.file.classes.items() if names} if subject.file else {}
    tasks = (checks.Task(subject.cases[number].shard, options.decode, classes, contents) for number in there)
    surveys = dict[int, Survey]()
    for place, examined in pool.map(checks.examine, tasks):
        ahead.join()
        number, found = there[place], examined.survey
        case = subject.cases[number]
        case.examined = examined
        _check_case(subject.findings, number, case)
        subject.fields.update(examined.fields)
        examined.fields = Counter()
        if found is not None:
            examined.survey = short = Survey(found.path, found.format, found.size)  # without its columns
            short.crc, short.digest, short.error = found.crc, found.digest, found.error
            if options.source is not None or options.target:
                surveys[number] = found
        samples = len(examined.hashes) // checks.HASH_SIZE
        observer.advance(samples, case.size or 0, 1)
        observer.shard(case.name, "read", samples, case.size or 0)
    ahead.join()
    for number in sorted({*range(len(subject.cases))}.difference(there)):
        _check_case(subject.findings, number, subject.cases[number])
    return surveys


def _check_case(findings: Findings, number: int, case: ShardCase) -> None:
    for check in checks.SHARD_CHECKS:
        findings.add(number, *check(case))
    case.data = None
    if case.examined is not None:
        findings.counts.update(case.examined.more)


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


def _report(subject: Subject, options: VerifyOptions) -> Report:
    """Return what was found, as users get it."""
    findings, cases, unchecked = subject.findings, subject.cases, [*subject.findings.unchecked]
    odd, undecoded = (sum(getattr(one, name) for _, one in subject.read) for name in ("odd", "undecoded"))
    if odd:
        unchecked.append(f"{counted(odd, 'member')} of tar shards that are no part of a sample")
    if undecoded:
        images = f"images over {show_size(checks.IMAGE_LIMIT)}, or over 1 GiB once decoded,"
        limits = f"{images} and JSON over {show_size(checks.JSON_LIMIT)}"
        unchecked.append(f"{counted(undecoded, 'payload')} that {flag('decode')} leaves out: {limits}")
    size, read = sum(case.size or 0 for case in cases), [case.size or 0 for case in cases if case.survey is not None]
    if subject.is_partial:
        seed, left = options.seed or 0, 100 * (1 - sum(read) / max(1, size))
        what = f"{counted(len(cases) - len(read), 'shard')} of {len(cases):,}, {left:.0f}% of the bytes"
        seeds = f"{option('sample', options.sample)} {option('seed', seed)}; {option('seed', seed + 1)} reads others"
        unchecked.append(f"{what}, but for names, sizes and sidecars: {seeds}")
    checked = ["names and numbering", "sidecars"] if options.quick else ["every byte"]
    if subject.is_partial:
        checked = [f"every byte of {len(read):,} of {counted(len(cases), 'shard')}"]
    if subject.file is not None:
        checked.append("sizes against the dataset file" if options.quick else "checksums against the dataset file")
    if not options.quick:
        checked += ["framing", "keys across these" if subject.is_partial else "keys across shards"]
    checked += ["images, JSON and labels decoded"] if options.decode else []
    return Report(
        dataset=without_secrets(output_text(subject.dataset.where)),
        findings=tuple(one for _, one in sorted(findings.listed, key=lambda one: one[0])),
        counts={code: count for code, count in sorted(findings.counts.items()) if count},
        checked=(*checked, *findings.checked),
        unchecked=(*unchecked, *subject.left),
        shards=len(cases),
        samples=(subject.ends() or [0])[-1],
        size=size,
        readable=subject.file is not None or options.quick or bool(read),
        repaired=subject.repaired,
        seconds=subject.seconds,
        read=None if options.sample is None else (len(read), sum(read)),
        quick=options.quick,
        uncompared=tuple(dict.fromkeys(findings.uncompared)),
    )


# Several datasets at once: each is looked at by itself, then splits of one dataset are held against each other.
#
# Datasets are splits of one where one run made them, as their dataset files say, or where their names differ in nothing
# but a word such as `train` or `val`. A run gives each key to one split only, so a key that two of its splits have is a
# leak. Of splits that were made apart, whose samples may just be numbered alike, the sample must hold the same, too.


def _of_several(givens: Sequence[Any], options: VerifyOptions, look: Callable[..., Subject]) -> Report:
    """Return what is wrong with several datasets; one that cannot be opened does not keep others from it.

    Raises:
        InvalidRequest: One of them is not there; then none was read.
    """
    opened = [_opened(given) for given in givens]
    splits = _splits(opened)
    related = {at for pair in splits for at in pair}
    compared = {at for pair, recorded in splits.items() if not recorded for at in pair}
    looked: dict[int, Subject] = {}
    reports: dict[int, Report] = {}
    for at, given in enumerate(givens):
        if isinstance(error := opened[at], CorruptShard):
            reports[at] = _unreadable(given, error)
        elif at in related:
            looked[at] = look(given, contents=at in compared)
        else:  # of it nothing is kept: they may be many
            reports[at] = _report(look(given), options)
    for (first, second), recorded in splits.items():
        if first in looked and second in looked:
            _find_leaks(looked[first], looked[second], by_content=not recorded)
    reports |= {at: _report(subject, options) for at, subject in looked.items()}
    return _together([reports[at] for at in range(len(givens))])


def _opened(given: Any) -> StoredDataset | CorruptShard:
    try:
        return read_stored(given)[0]
    except CorruptShard as error:
        return error


def _splits(opened: Sequence[StoredDataset | CorruptShard]) -> dict[tuple[int, int], bool]:
    """Return the pairs of datasets that are splits of one, each with whether their dataset files say so."""
    found = {}
    for (at, first), (other, second) in combinations(enumerate(opened), 2):
        if isinstance(first, CorruptShard) or isinstance(second, CorruptShard):
            continue
        ours, theirs = first.file, second.file
        recorded = ours is not None and theirs is not None and ours.made.is_split_with(theirs.made)
        names = [one.dataset_file or one.paths[0] for one in (first, second)]
        if recorded or (names[0] != names[1] and _without_split(names[0]) == _without_split(names[1])):
            found[at, other] = recorded
    return found


def _without_split(path: str) -> str:
    """Return a path without the numbers in it, and without the words that name splits."""
    return _WORD.sub(lambda word: "" if word[0].isdigit() or word[0].lower() in SPLIT_NAMES else word[0], path)


def _unreadable(given: Any, error: CorruptShard) -> Report:
    where = without_secrets(output_text(os.fspath(given) if isinstance(given, (str, os.PathLike)) else error.where))
    finding = finding_of("dataset-file-damaged", os.path.basename(where), error)
    return Report(where, (finding,), {finding.code: 1}, (), ("all else of it",), 0, 0, 0, readable=False)


def _together(reports: Sequence[Report]) -> Report:
    """Return the report of all datasets."""
    read = [one.read for one in reports if one.read is not None]
    return Report(
        dataset=listing([one.dataset for one in reports], 3),
        findings=tuple(finding for one in reports for finding in one.findings),
        counts=dict(sorted(sum((Counter(one.counts) for one in reports), Counter[str]()).items())),
        checked=tuple(dict.fromkeys(text for one in reports for text in one.checked)),
        unchecked=tuple(f"{one.dataset}: {text}" for one in reports for text in one.unchecked),
        shards=sum(one.shards for one in reports),
        samples=sum(one.samples for one in reports),
        size=sum(one.size for one in reports),
        readable=all(one.readable for one in reports),
        repaired=tuple(text for one in reports for text in one.repaired),
        read=(sum(shards for shards, _ in read), sum(size for _, size in read)) if read else None,
        datasets=tuple(reports),
        quick=any(one.quick for one in reports),
        uncompared=tuple(dict.fromkeys(name for one in reports for name in one.uncompared)),
    )


def _find_leaks(first: Subject, second: Subject, *, by_content: bool) -> None:
    """Find samples that two splits have, and list them with the second one; nothing, if no shard of one was read."""
    import numpy as np

    if not (first.read and second.read):
        return
    findings, other_name = Findings(), without_secrets(output_text(first.dataset.where))
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
    read: tuple[dict[int, Survey], dict[int, Survey]] = ({}, {})

    def leak(at: int, place: int) -> Finding:
        there, _ = sample_at(first, read[0], at)
        here, key = sample_at(second, read[1], place)
        found = f"also in {other_name}, shard {first.cases[there].name}"
        return Finding("split-leak", second.cases[here].name, found, key=key)

    after_all_else, first_ones = len(second.cases), places[:MOST].tolist()
    findings.add_first("split-leak", after_all_else, len(places), starmap(leak, first_ones))
    second.findings.listed += findings.listed
    second.findings.counts.update(findings.counts)


# `verify --repair`: what can be mended without guessing.
#
# - A sidecar that is missing, damaged or of another shard is made again from its shard, where the dataset file proves
#   the shard to be the one that was written.
# - A dataset file that is missing or damaged is made again, where every shard is the one that its sound sidecar tells
#   of.
# - With the source, `create` is run again with those of the recorded options that only choose, and what the user gives
#   of others (`--map`, `--root`): it gives the same bytes. What was there is kept under other names until the outcome
#   is seen to be just what the dataset file says, and comes back where it is not. Of a split, of `reshard`, of a table
#   of `--join`, and after an append, the user learns what to run instead.
#
# In a folder everything is staged, then published; in a store, sidecars are replaced one by one, and the dataset file
# last, which shards from their source are not made for: there are no second names. Afterwards the dataset is verified
# again.
#
# What of a damaged dataset can be made again: decided from findings and the dataset file; nothing is touched.


OF_SIDECARS = frozenset(
    {"sidecar-missing", "sidecar-size", "sidecar-checksum", "sidecar-damaged", "sidecar-stale", "index-differs"}
)
_UNREAD, _CHANGED = {"shard-missing", "shard-unreadable"}, {"shard-size", "shard-checksum", "payload-checksum"}
OF_SHARDS = frozenset({*_UNREAD, *_CHANGED, "shard-damaged", "padding-not-zero"})
OF_DATASET_FILE = frozenset({"dataset-file-missing", "dataset-file-damaged"})
OF_ALL = frozenset({"dataset-incomplete", "numbering-gap", "sidecar-extra", "shard-extra"})


def why_not_again(file: DatasetFile) -> str:
    """Return why shards cannot be made again here, and what to do instead; empty where they can, with the source."""
    verb, which = file.made.verb, ""
    if file.appends:
        overwrite, append = option("if_exists", "overwrite"), option("if_exists", "append")
        return (
            "the shards of a dataset that samples were appended to: no one command makes them again. Get the files "
            f"from a copy, or make the dataset anew: the first command with {overwrite}, then each {append}"
        )
    if file.made.removed:
        again = f"{option('if_exists', 'resume')} of the command that made it makes other shards of those that are left"
        return f"the shards of a dataset that samples were removed from: get the files from a copy, or {again}"
    if verb == "index":
        return "shards that another tool made: get them again"
    if verb != "create":
        which = f"made by {printable(verb)[:80]}"
    elif file.made.split:
        which = "of a split"
    elif file.made.options.get("urls"):
        which = "of the files of URLs, which may be others by now"
    elif table := file.made.options.get("join"):
        which = f"made with {option('join')} {printable(str(table))[:80]}"
    again = f"run the command that made them again, with {option('if_exists', 'resume')}"
    return which and f"shards {which}: {again}"


def wrong_names(file: DatasetFile, codes: Mapping[str, Collection[str]]) -> list[str]:
    """Return the files that are to be made again, by the codes that were found of each file."""
    names = []
    for one in file.shards:
        if OF_SHARDS.intersection(codes.get(one.name, ())):
            names.append(one.name)
        elif OF_SIDECARS.intersection(codes.get(one.sidecar, ())):
            names.append(one.sidecar)
    return names


def options_again(file: DatasetFile, asked: VerifyOptions) -> CreateOptions:
    """Return the options to run `create` again with: code is the user's, never what is recorded.

    Raises:
        InvalidRequest: The dataset was made with options that the user is to give, and did not.
    """
    from shardtool.verbs.verify.source import recorded_run

    run, given = recorded_run(file, asked), asked.map
    if not isinstance(run.options, CreateOptions):
        raise TypeError(run.verb)  # other verbs are not run again
    if run.map and given is None:
        found = f"samples made by {run.map}, which is never run because a file names it"
        wanted = f"{option('map')}, if that code is yours"
        raise InvalidRequest(option("source"), found, expected=wanted, remedy="Nothing was touched.")
    if given is not None and given != run.map:
        expected = f"{run.map}, as recorded" if run.map else "none, as recorded"
        raise InvalidRequest(option("map"), str(given), expected=expected, remedy="Nothing was touched.")
    on_error: OnError = "skip" if file.skipped else "stop"
    return replace(run.options, map=given, if_exists="resume", on_error=on_error, **asdict(asked.pick(WorkerOptions)))


def output_again(file: DatasetFile, found: StoredDataset, codes: Collection[str]) -> list[str] | str:
    """Return where `create` is to write: to the names that the dataset file lists, in its own folder.

    Raises:
        InvalidRequest: It would write or remove other files than those.
    """
    if extra := {"shard-extra", "sidecar-extra"}.intersection(codes):
        problem = f"files that the dataset file does not list ({listing(sorted(extra))})"
        expected = "none, for they would be removed"
        raise InvalidRequest(option("repair"), problem, expected=expected, remedy="Move them away first.")
    output: list[str] | str = os.path.join(found.folder, file.pattern)
    if "{" not in file.pattern:
        output = [os.path.join(found.folder, one.name) for one in file.shards]
    base, own = parse_pattern(output).base, os.path.basename(found.dataset_file or "").removesuffix(DATASET_SUFFIX)
    if {base, file.name} != {own}:
        problem = f"a dataset file called {own}, of a dataset called {file.name}"
        remedy = "Give the dataset file its own name again."
        raise InvalidRequest(option("repair"), problem, expected=f"{base}, as its shards are", remedy=remedy)
    return output


_KEPT_SUFFIX = ".before-repair"


class _Repair:
    """The repair of a dataset, from its findings.

    Attributes:
        done: What was mended, in words.
        left: What was not, and why.
    """

    def __init__(self, seen: Subject, options: VerifyOptions) -> None:
        self.seen, self.options = seen, options
        self.codes = {code for code, count in seen.findings.counts.items() if count}
        self.by_file: dict[str, set[str]] = {}
        for _, one in seen.findings.listed:
            self.by_file.setdefault(one.file, set()).add(one.code)
        from shardtool.storage.folders import open_folder

        self.folder = open_folder(seen.dataset.folder)
        self.done: list[str] = []
        self.left: list[str] = []

    def run(self) -> None:
        """Mend what can be mended."""
        file, files = self.seen.file, self.codes & (OF_SIDECARS | OF_SHARDS)
        instead = why_not_again(file) if file is not None and files else ""
        if files and not self.folder.hides:
            again = f"run the command that made them again, with {option('if_exists', 'resume')}, or copy sound ones"
            instead = instead or f"shards in a store: {again}; sidecars alone are made again without {option('source')}"
        if self.options.source is not None and files and file is not None:
            if instead:
                self._leave(instead)
            else:
                self._again(file)
            return
        if self.codes & OF_SHARDS:
            lost = "only a whole dataset file says how they were made. Run that command with"
            again = f"{lost} {option('if_exists', 'resume')}"
            if self.options.source is None:
                again = f"they can only be made again from their source ({option('source')})"
            self._leave(instead or f"damaged shards: {again}")
        if self.seen.file is not None and self.codes & OF_SIDECARS:
            self._sidecars(self.seen.file)
        elif self.codes & OF_DATASET_FILE:
            self._dataset_file()

    def _leave(self, what: str) -> None:
        self.left.append(f"repair: {what}")

    def _base(self) -> str:
        return base_name(self.seen.dataset.dataset_file or "").removesuffix(DATASET_SUFFIX)

    def _sidecars(self, file: DatasetFile) -> None:
        """Make sidecars again from shards that are proven sound."""
        bad = [case for case in self.seen.cases if self.by_file.get(case.sidecar, set()) & OF_SIDECARS]
        proven = [
            case for case in bad if case.sound and case.survey and case.entry and case.survey.crc == case.entry.crc
        ]
        for case in bad:
            if case not in proven:
                self._leave(f"{case.sidecar}: its shard is not proven to be sound")
        if not proven:
            return
        path = self.seen.dataset.dataset_file or ""
        with self.folder.lock(self._base()):
            if sound_dataset(path) != file:
                raise OutputFailed(path, "changed while it was verified", remedy="Run it again.")
            entries = {one.name: one for one in file.shards}
            staged: list[DurableFile] = []
            lost: set[str] = set()
            names = [*(case.sidecar for case in proven), self._base() + DATASET_SUFFIX]
            try:
                for case in proven:
                    data, columns = self._sidecar_of(case, file)
                    lost |= {*file.schema} - {*columns}
                    staged.append(self.folder.stage_whole(case.sidecar, data))
                    if not self.folder.hides:  # where nothing waits unseen, many would wait in memory
                        self.folder.publish(staged.pop())
                    entry = entries[case.name]
                    entries[case.name] = replace(entry, sidecar_size=len(data), sidecar_crc=crc32c(data))
                new = replace(file, shards=tuple(entries[one.name] for one in file.shards))
                staged.append(self.folder.stage_whole(self._base() + DATASET_SUFFIX, new.encode()))
                self.folder.publish(*staged)
            finally:
                self.folder.discard_staged(names)
        self.done.append(f"{listing([case.sidecar for case in proven])}: made again from the shard")
        if lost:
            self.done[-1] += f"; the columns {listing(sorted(lost))} are lost there, for only the source has them"

    def _sidecar_of(self, case: ShardCase, file: DatasetFile) -> tuple[bytes, list[str]]:
        """Return the sidecar of a shard, and its columns: of its metadata only the numbers of classes."""
        from shardtool.dataset.shard_index import SHARD, encode_table, walked_index

        found = case.shard.survey(checksum=True)
        if found.error is not None or case.entry is None or found.crc != case.entry.crc:
            raise OutputFailed(case.shard.path, "changed while it was verified", remedy="Run it again.")
        index = _with_labels(walked_index(found), file)
        return encode_table(index.plain_table(), index.fact), [*index.schema.names, SHARD.name]

    def _dataset_file(self) -> None:
        """Make the dataset file again from shards that are what their sidecars say."""
        unsound = [case.name for case in self.seen.cases if not case.sound]
        if unsound or self.codes & (OF_SHARDS | OF_SIDECARS | OF_ALL):
            what = f"{listing(unsound, 3)} is not proven to be sound" if unsound else "other things are wrong, too"
            if "dataset-incomplete" in self.codes:
                resume = option("if_exists", "resume")
                what = f"shards are missing. Finish the run that made them: its own command with {resume}"
            self._leave(f"the dataset file: {what}")
            return
        from shardtool.verbs.index.index import index

        given = self.seen.dataset.dataset_file or self.seen.dataset.paths
        if {*find_dataset(given).paths} - {*self.seen.dataset.paths}:
            self._leave("the dataset file: only some of its shards were given. Name the dataset file")
            return
        try:
            overwrite = "dataset-file-damaged" in self.codes
            dots = self.seen.dataset.shards[0].dots
            options = self.options.pick(IndexOptions, checksum=True, dots=dots, overwrite=overwrite)
            made = index(given, options)
        except ShardError as error:
            self._leave(f"the dataset file: {error}")
            return
        lost = "how the dataset was made, what was left out and the names of classes are lost"
        self.done.append(f"{made.dataset_file}: made again from shards and sidecars; {lost}")

    def _again(self, file: DatasetFile) -> None:
        """Run `create` again, and keep what it gives only where that is just what the dataset file says."""
        from shardtool.verbs.create.create import create

        wrong = wrong_names(file, self.by_file)
        try:
            options, output = options_again(file, self.options), output_again(file, self.seen.dataset, self.codes)
            self._check_plan(file, output, options)
            kept = self._keep(file)
        except ShardError as error:
            self._leave(str(error))
            return
        try:
            self.folder.remove(wrong)
            create(self.options.source, output, options)
            self._check_outcome(file)
        except BaseException as error:
            kept.bring_back(last=DATASET_SUFFIX)
            if not isinstance(error, ShardError):
                raise
            self._leave(f"what was there is back: {error}")
            return
        kept.discard()
        source = self.options.source
        sources = listing([*map(str, source)]) if isinstance(source, list | tuple) else source
        self.done.append(f"{listing(wrong)}: made again from {sources}")

    def _check_plan(self, file: DatasetFile, output: Given, options: CreateOptions) -> None:
        """Check that the source would give the shards that the dataset file lists, before anything is touched."""
        from shardtool.verbs.create.create import dry_run

        plan = dry_run(self.options.source, output, options)
        if options.of_transform() is None:
            ours = [(one.name, one.samples, one.size, one.first_key, one.last_key) for one in file.shards]
            if [(one.name, one.samples, one.size, one.first_key, one.last_key) for one in plan.shards] != ours:
                found = "other samples than the dataset was made from"
                raise InvalidRequest(option("source"), found, expected="those", remedy="Nothing was touched.")

    def _keep(self, file: DatasetFile) -> KeptFiles:
        """Give all files of the dataset a second name."""
        from shardtool.storage.staging import KeptFiles

        kept = KeptFiles(self.folder.path, self.folder.full_path(f".{self._base()}{_KEPT_SUFFIX}"))
        names = [name for one in file.shards for name in (one.name, one.sidecar)]
        names += [self._base() + DATASET_SUFFIX, f"{file.name}.skipped"]
        kept.keep(names)
        return kept

    def _check_outcome(self, file: DatasetFile) -> None:
        """Check that every shard is the one that the dataset file listed."""
        new = sound_dataset(self.seen.dataset.dataset_file or "")
        before, after = ([(one.name, one.size, one.crc) for one in it.shards] if it else [] for it in (file, new))
        if before != after:
            raise InvalidRequest(option("source"), "other content than the dataset was made from", expected="the same")


def _with_labels(index: ShardIndex, file: DatasetFile) -> ShardIndex:
    """Return the index of a shard with the columns of its labels, which the checksums of their payloads tell."""
    import numpy as np
    import pyarrow as pa

    from shardtool.dataset.shard_index import SCHEMA
    from shardtool.entries.arrow import number_array

    columns: dict[str, pa.Array] = {}
    for name in [one for one in file.schema if one in file.classes and one in index.names]:
        texts = [b"%d" % number for number in range(len(file.classes[name]))]
        payloads = texts if file.format == "tar" else [encode_number(text, "int64") for text in texts]
        numbers = {(crc32c(payload), len(payload)): number for number, payload in enumerate(payloads)}
        rows = np.flatnonzero(index.codes == index.names.index(name))
        crcs = [] if index.crcs is None else index.crcs[rows].tolist()
        found = [numbers.get(one, -1) for one in zip(crcs, index.lengths[rows].tolist(), strict=False)]
        if len(found) == len(index) and min(found, default=0) >= 0 and file.schema[name] == "int64":
            columns[name] = number_array(np.array(found, np.int64))
    metadata = pa.Table.from_arrays([*columns.values()], names=[*columns])
    return replace(index, metadata=metadata, schema=pa.schema([*SCHEMA, *metadata.schema]))
