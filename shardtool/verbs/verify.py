"""`verify`: is a dataset whole? The library twin of `shardtool verify`.

A worker walks and sums each shard; the parent compares that with the sidecar and the dataset file, and looks for
what no shard alone can show: gaps, extra files, keys that two shards have. Nothing is written, but for `repair`.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from shardtool.check.findings import Finding, finding_of
from shardtool.check.worker import HASH_SIZE, IMAGE_LIMIT, JSON_LIMIT, Examined, Task, examine
from shardtool.dataset.dataset_file import DatasetFile, read_dataset, shard_names
from shardtool.dataset.find import find_dataset, natural
from shardtool.dataset.shard_file import ENDINGS
from shardtool.dataset.walk import Survey, SurveyTask, survey, walked_text
from shardtool.errors import CorruptShard, InvalidRequest, ShardError, printable, reason
from shardtool.execute.local import LocalPool, cores
from shardtool.fingerprint import crc32c, show_fingerprint
from shardtool.pattern import DATASET_SUFFIX, SIDECAR_SUFFIX, parse_pattern, sidecar_name
from shardtool.request.command_line import option
from shardtool.request.observer import Observer
from shardtool.request.ranges import check_ranges
from shardtool.storage.reading import names_in, plain_size, read_small
from shardtool.values import counted, output_text, show_size, to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shardtool.check.recorded_run import Given
    from shardtool.check.shard import Case
    from shardtool.dataset.dataset_file import ShardEntry
    from shardtool.dataset.find import Found
    from shardtool.execute.local import StartMethod
    from shardtool.source.folder.scan import Symlinks
    from shardtool.values import Dots

Target = Literal["webdataset", "wids", "dali", "energon", "huggingface"]
_MOST = 100  # findings of one code about one file: the rest tells nothing new, and is counted
_MOST_GAPS = 1000
_PATTERN = re.compile(r"[^{}<>,*?%\[\]]*\{\d{1,18}\.\.\d{0,18}\}[^{}<>,*?%\[\]]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How to verify.

    Attributes:
        quick: Read no shards: names, sizes, sidecars, numbering.
        decode: Decode every image and JSON field, too, and see that labels are numbers.
        source: What the dataset was made from, a folder, a manifest, or of `reshard` a dataset or a list of them:
            compared by key; None: nothing is.
        target: Readers that the names must be safe for.
        repair: Mend what can be mended without guessing.
        map: Of `create --map`: the function that a repair may call to make shards again.
        root: Of the source, a manifest: what its relative paths count from; None: its folder.
        allow_outside: Of the source, a manifest: whether its paths may leave the root.
        symlinks: Of the source, a folder: `inside` (the tree), `follow` or `skip`; None: as the dataset file says,
            but `follow`, which only the user can ask for.
        workers: Processes; None: the cores that this process may use.
        start_method: `auto`, `fork` or `spawn`.
    """

    quick: bool = False
    decode: bool = False
    source: Any = None
    target: tuple[Target, ...] = ()
    repair: bool = False
    map: str | None = None
    root: str | None = None
    allow_outside: bool = False
    symlinks: Symlinks | None = None
    workers: int | None = None
    start_method: StartMethod = "auto"

    @property
    def given(self) -> Given:
        """What the user says of the source."""
        from shardtool.check.recorded_run import Given

        return Given(self.map, self.root, self.allow_outside, self.symlinks)

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in ("map", "root", "allow_outside", "symlinks"):
            if getattr(self, name) and self.source is None:
                raise InvalidRequest(option(name), "no source that it could be about", expected="--source, too")
        if self.map and not self.repair:
            raise InvalidRequest("--map", "nothing to make again", expected="--repair, too")
        if self.quick:
            for name in ("decode", "repair", "source", "target"):
                if getattr(self, name):
                    raise InvalidRequest(f"--{name}", "used with --quick", expected="one of them")


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found.

    Attributes:
        dataset: What was verified: its dataset file, or else its folder.
        findings: What is wrong, in the order of the shards; of many alike only the first.
        counts: How often each code was found.
        checked: What was looked at, in words.
        unchecked: What was not, and why.
        shards: How many.
        samples: How many were seen.
        size: Bytes of the shards.
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


def verify(
    dataset: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    options: VerifyOptions | None = None,
    *,
    observer: Observer | None = None,
) -> Report:
    """Tell whether a dataset is whole.

    Args:
        dataset: A dataset file, a shard pattern, a glob, a folder, or shards.
        options: See `VerifyOptions`.
        observer: Is told of progress.

    Raises:
        InvalidRequest: There is no such dataset, or options make no sense.
        CorruptShard: The dataset file names what lies elsewhere, or is none: nothing could be read.
    """
    options, observer = options or VerifyOptions(), observer or Observer()
    begun = time.time()
    if options.repair:
        from shardtool.verbs.repair import repair

        return repair(dataset, options, observer)
    report, _ = look(dataset, options, observer)
    return with_seconds(report, time.time() - begun)


def with_seconds(report: Report, seconds: float, repaired: tuple[str, ...] = ()) -> Report:
    """Return a report with the time that it took, and what was mended."""
    from dataclasses import replace

    return replace(report, seconds=seconds, repaired=repaired)


def look(dataset: Any, options: VerifyOptions, observer: Observer) -> tuple[Report, Look]:
    """Return what is wrong, and all that was seen."""
    if options.quick:
        one = Look(dataset, options, observer)
        one.look(None)
        return one.report(), one
    workers = options.workers or cores()
    if workers == 1 and options.source is None:
        one = Look(dataset, options, observer)
        one.look(Here())
        return one.report(), one
    # Workers are forked before anything heavy is imported.
    with LocalPool(workers, options.start_method) as pool:
        one = Look(dataset, options, observer)
        one.look(pool)
    return one.report(), one


class Here:
    """What stands for a pool where one worker is asked for: this process does the work, and starts none."""

    def map(self, function: Callable[..., Any], tasks: Iterable[object]) -> Iterator[tuple[int, Any]]:
        """Yield (number, result) of each task."""
        for number, task in enumerate(tasks):
            yield number, function(task)


@dataclass(slots=True)
class _Seen:
    """What is gathered over all shards."""

    hashes: list[tuple[int, bytes]] = field(default_factory=list)
    fields: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    field_bytes: int = 0
    digests: list[int | None] = field(default_factory=list)
    odd: int = 0
    undecoded: int = 0


class Look:
    """One look at a dataset.

    Attributes:
        found: Where it lies.
        file: What its dataset file says; None where there is none of ours, or it is damaged.
        cases: Its shards.
        surveys: What lies in each, by number; only where the source or a target is asked for.
        compared: Whether they were compared with the source.
    """

    def __init__(self, dataset: Any, options: VerifyOptions, observer: Observer) -> None:
        self.options, self.observer = options, observer
        self._by_code: dict[tuple[str, str], int] = {}
        self._findings: list[tuple[int, Finding]] = []
        self.counts: Counter[str] = Counter()
        self.unchecked: list[str] = []
        self.found = find_dataset(dataset)
        self.file: DatasetFile | None = None
        self._own = False  # whether there is a dataset file of ours, damaged or not
        self._given = dataset
        self._read_dataset_file()
        self.cases = self._cases()
        self.seen = _Seen()
        self.surveys: dict[int, Any] = {}
        self.compared = False
        self._no_file: Finding | None = None  # what to tell of it, unless the shards turn out to be not all

    def _read_dataset_file(self) -> None:
        path = self.found.dataset_file
        if path is None:
            return
        try:
            data = read_small(path)
        except OSError as error:
            self.add(-1, Finding("dataset-file-damaged", _name(path), reason(error)))
            return
        self._own = shard_names(data) is not None
        if not self._own:
            self.unchecked.append(f"checksums: {_name(path)} is an index of wids, which has none")
            return
        try:
            self.file = read_dataset(data, path)
        except CorruptShard as error:
            self.add(-1, finding_of("dataset-file-damaged", _name(path), error))

    def _cases(self) -> list[Case]:
        from shardtool.check.shard import Case

        entries: dict[str, ShardEntry] = {one.name: one for one in self.file.shards} if self.file else {}
        cases = []
        for path in self.found.shards:
            name = os.path.basename(path)
            sidecar = sidecar_name(name)
            entry = entries.get(output_text(name))
            wanted = self._own and (self.file is None or entry is not None)
            cases.append(Case(output_text(name), path, sidecar, self.found.sidecar(path), entry, wanted))
            cases[-1].size = plain_size(path)
        return cases

    def add(self, number: int, *findings: Finding) -> None:
        """Note findings about shard `number`; -1: about the whole."""
        for one in findings:
            self.counts[one.code] += 1
            times = self._by_code[one.code, one.file] = self._by_code.get((one.code, one.file), 0) + 1
            if times <= _MOST:
                self._findings.append((number, one))

    def look(self, pool: LocalPool | Here | None) -> None:
        """Look at all shards, then at what only all of them together show."""
        compared = None
        if self.options.source is not None:
            from shardtool.check.source import Comparison

            compared = Comparison(self, self.options.source)  # before shards are read, where there is none
        sizes = [case.size or 0 for case in self.cases]
        samples = sum(shard.samples for shard in self.file.shards) if self.file else 0
        self.observer.start(samples, sum(sizes), len(sizes))
        self._check_numbering()
        if pool is None:
            for number, case in enumerate(self.cases):
                self._check_case(number, case)
        else:
            self._look_inside(pool)
            self._check_together()
            from shardtool.check.foreign_indexes import check_beside

            check_beside(self, pool)
        self._check_finished()
        if isinstance(pool, LocalPool) and compared is not None:
            compared.run(pool)
        if self.options.target:
            from shardtool.check.targets import check_targets

            check_targets(self, self.options.target)

    def _look_inside(self, pool: LocalPool | Here) -> None:
        ahead = threading.Thread(target=_import_ahead, daemon=True)
        ahead.start()
        keep = self.options.source is not None or bool(self.options.target)
        dots, classes = self.dots(), self._classes()
        there = [number for number, case in enumerate(self.cases) if case.size is not None]
        tasks = (Task(self.cases[at].path, self.cases[at].name, dots, self.options.decode, classes) for at in there)
        for place, examined in pool.map(examine, tasks):
            ahead.join()
            number = there[place]
            case = self.cases[number]
            case.examined = examined
            self._check_case(number, case)
            self._gather(number, examined)
            if keep and examined.survey is not None:
                self.surveys[number] = examined.survey
            case.rows, case.data = None, None
            if examined.survey is not None and examined.survey.odd:
                self.seen.odd += len(examined.survey.odd)
            self.seen.undecoded += examined.undecoded
            case.examined = None if examined.survey is None else Examined(_short(examined.survey))
            self.observer.advance(len(examined.hashes) // HASH_SIZE, case.size or 0, 1)
            self.observer.log(f"{case.name}: {counted(len(examined.hashes) // HASH_SIZE, 'sample')}")
        ahead.join()
        for number, case in enumerate(self.cases):
            if case.size is None:
                self._check_case(number, case)

    def _check_case(self, number: int, case: Case) -> None:
        from shardtool.check import shard as checks

        self.add(number, *checks.read_sidecar(case))
        self.add(number, *checks.check_shard(case))
        self.add(number, *checks.check_fact(case))
        if case.examined is not None:
            self.add(number, *checks.read_case_rows(case))
            self.add(number, *checks.check_records(case), *checks.check_rows(case), *checks.check_entry(case))
            self.counts.update(case.examined.more)
        else:
            case.data = None

    def _gather(self, number: int, examined: Examined) -> None:
        survey, seen = examined.survey, self.seen
        seen.hashes.append((number, examined.hashes))
        if survey is None:
            seen.digests.append(None)
            return
        seen.samples += len(survey.keys)
        seen.field_bytes += sum(survey.lengths)
        times = Counter(survey.codes)
        seen.fields.update({walked_text(survey.names[code]): count for code, count in times.items()})
        seen.digests.append(survey.digest if survey.error is None else None)

    def dots(self) -> Dots:
        """Return where keys end in the names of members."""
        told = self.file.made.get("options", {}) if self.file else {}
        return "last" if told.get("dots") == "last" else "first"

    def _classes(self) -> dict[str, int]:
        return {name: len(names) for name, names in self.file.classes.items() if names} if self.file else {}

    def _check_numbering(self) -> None:
        """Find gaps, shards that are not listed, and sidecars without a shard."""
        if self.file is None and self._own:
            self.unchecked.append("shards that are not listed: the dataset file is damaged")
        self.add(-1, *_gaps(self.found, self._given, self.file))
        names = set[str]().union(*map(names_in, {self.found.folder, *self.found.folders()}))
        listed = {os.path.basename(path) for path in self.found.shards}
        if self.file is not None:
            listed = {one.name for one in self.file.shards}
            self.add(-1, *_extra(self.file, names, listed))
            for number, case in enumerate(self.cases):
                if case.name not in listed:
                    self.add(number, Finding("shard-extra", case.name, "not in the dataset file"))
            there = {case.name for case in self.cases}
            self.add(-1, *(Finding("shard-missing", name, "not there") for name in sorted(listed - there)))
            self.add(-1, *_skipped(self.found.folder, self.file))
        elif self.found.dataset_file is None:
            self._check_none(names, listed)

    def _check_none(self, names: set[str], listed: set[str]) -> None:
        """Say what it means that no dataset file lists just these shards: all of a dataset should be there."""
        sidecars = [name for name in map(sidecar_name, listed) if name in names]
        if not sidecars:
            return
        left = set(map(output_text, listed))
        for name in sorted(names):
            more = _listed_in(os.path.join(self.found.folder, name)) if name.endswith(DATASET_SUFFIX) else set()
            if more & left:
                left -= more
                self._check_rest(name, more, set(map(output_text, names)))
        if left and self._is_of_several:
            what = f"{counted(len(sidecars), 'sidecar')} and no dataset file: what is here may not be all"
            self._no_file = Finding("dataset-file-missing", _name(self.found.folder or "."), what)

    def _check_rest(self, name: str, listed: set[str], there: set[str]) -> None:
        """Say of a dataset some of whose shards were given whether the others are there."""
        self.unchecked.append(f"what {output_text(name)} says: it lists {counted(len(listed), 'shard')}")
        missing = sorted(listed - there)
        if not self._is_of_several:
            return
        for one in missing[:_MOST_GAPS]:
            self.add(
                -1, Finding("shard-missing", one, "neither given nor there", f"a shard, as {output_text(name)} says")
            )
        if len(missing) > _MOST_GAPS:
            self.counts["shard-missing"] += len(missing) - _MOST_GAPS

    @property
    def _is_of_several(self) -> bool:
        """Whether more was asked for than one file: whoever names one shard asks about that alone."""
        return not isinstance(self._given, (str, os.PathLike)) or not os.path.isfile(self._given)

    def _check_finished(self) -> None:
        """See whether shards without a whole dataset file are all that their run planned."""
        damaged = self.file is None and self._own
        if not damaged and self._no_file is None:
            return
        from shardtool.dataset.unfinished import EXPECTED, facts_beside, unfinished

        found, there = self.found, [case for case in self.cases if case.size is not None]
        facts = [case.fact if case.fact and case.fact.name == case.name else None for case in there]
        short = unfinished(facts, facts_beside(found.folder, found.shards))
        for one in short:
            self.add(-1, Finding("dataset-incomplete", _name(found.folder or "."), str(one), EXPECTED))
        if self._no_file is not None and not short:
            self.add(-1, self._no_file)

    def _check_together(self) -> None:
        """Look at what no shard alone can show."""
        self._check_keys()
        file, seen = self.file, self.seen
        damaged = any(case.survey is None or case.survey.error is not None for case in self.cases)
        if file is None or damaged:
            if file is not None:
                self.unchecked.append("totals and the fingerprint: some shards cannot be read to their end")
            return
        name = _name(self.found.dataset_file or "")
        told = dict(file.fields)
        if dict(seen.fields) != told and self._is_all():
            for one in sorted({*told, *seen.fields}, key=str):
                if told.get(one) != seen.fields.get(one):
                    what = f"the field {printable(one)} {told.get(one, 0):,} times"
                    expected = f"{seen.fields.get(one, 0):,}, as the shards hold"
                    self.add(-1, Finding("totals-differ", name, what, expected))
        if self._is_all():
            self._check_fingerprint(name, file)

    def _is_all(self) -> bool:
        return self.file is not None and [one.name for one in self.file.shards] == [case.name for case in self.cases]

    def _check_fingerprint(self, name: str, file: DatasetFile) -> None:

        digests = self.seen.digests
        if not file.fingerprint:
            self.unchecked.append("the fingerprint: there is none; `shardtool index --checksum` adds it")
        elif any(digest is None for digest in digests):
            self.unchecked.append("the fingerprint: the text of floats is not in TFRecord shards")
        else:
            total = show_fingerprint(sum(digest or 0 for digest in digests))
            if total != file.fingerprint:
                told = printable(file.fingerprint)
                self.add(-1, Finding("fingerprint-differs", name, told, f"{total}, of what the shards hold"))

    def _check_keys(self) -> None:
        """Find keys that two samples have: by their hashes, 16 bytes a sample."""
        import numpy as np

        hashes = b"".join(one for _, one in self.seen.hashes)
        pairs = np.frombuffer(hashes, np.dtype([("a", "<u8"), ("b", "<u8")]))
        if len(np.unique(pairs["a"])) == len(pairs):
            return
        order = np.lexsort((pairs["b"], pairs["a"]))
        ordered = pairs[order]
        same = np.flatnonzero(ordered[1:] == ordered[:-1])
        ends = np.cumsum([len(one) // HASH_SIZE for _, one in self.seen.hashes])
        if len(same) > _MOST:
            self.counts["key-duplicate"] += len(same) - _MOST
        for at in same[:_MOST].tolist():
            places = sorted((int(order[at]), int(order[at + 1])))
            (first, key), (second, _) = (self._sample(place, ends) for place in places)
            other = "the same shard" if first == second else self.cases[first].name
            self.add(second, Finding("key-duplicate", self.cases[second].name, f"also in {other}", key=key))

    def _sample(self, place: int, ends: Any) -> tuple[int, str]:
        """Return the shard and the key of the sample at a place in all; its shard is read again for that."""
        at = int((ends <= place).sum())
        number = self.seen.hashes[at][0]
        if number not in self.surveys:
            self.surveys[number] = survey(SurveyTask(self.cases[number].path, dots=self.dots()))
        keys = self.surveys[number].keys
        row = place - (int(ends[at - 1]) if at else 0)
        return number, walked_text(keys[row]) if row < len(keys) else ""

    def report(self) -> Report:
        """Return what was found."""
        findings = [one for _, one in sorted(self._findings, key=lambda one: one[0])]
        opened = any(case.survey is not None for case in self.cases)
        readable = self.file is not None or self.options.quick or opened
        if self.seen.odd:
            self.unchecked.append(f"{counted(self.seen.odd, 'member')} of tar shards that are no part of a sample")
        if self.seen.undecoded:
            limits = f"images over {show_size(IMAGE_LIMIT)} and JSON over {show_size(JSON_LIMIT)}"
            self.unchecked.append(f"{counted(self.seen.undecoded, 'payload')} that --decode leaves out: {limits}")
        return Report(
            dataset=output_text(self.found.dataset_file or self.found.folder or "."),
            findings=tuple(findings),
            counts=dict(sorted(self.counts.items())),
            checked=tuple(self._checked()),
            unchecked=tuple(self.unchecked),
            shards=len(self.cases),
            samples=self.seen.samples,
            size=sum(case.size or 0 for case in self.cases),
            readable=readable,
        )

    def _checked(self) -> list[str]:
        options = self.options
        found = ["names and numbering", "sidecars"] if options.quick else ["every byte"]
        if self.file is not None:
            found.append("sizes against the dataset file" if options.quick else "checksums against the dataset file")
        if not options.quick:
            found += ["framing", "keys across shards"]
        if options.decode:
            found.append("images, JSON and labels decoded")
        if self.compared:
            found.append("the source")
        return found + [f"names for {one}" for one in options.target]


def _import_ahead() -> None:
    import_module("shardtool.check.shard")
    import_module("shardtool.dataset.sidecar_read")


def _short(survey: Any) -> Any:
    """Return a survey without its columns: what is asked of a shard once all were seen."""
    short = Survey(survey.path, survey.format, survey.size)
    short.crc, short.error = survey.crc, survey.error
    return short


def _name(path: str) -> str:
    return output_text(os.path.basename(path) or path)


def _listed_in(path: str) -> set[str]:
    """Return the shards that a dataset file of ours lists; none where it is none."""
    try:
        return set(shard_names(read_small(path)) or ())
    except OSError:
        return set()


def _extra(file: DatasetFile, names: set[str], listed: set[str]) -> Iterable[Finding]:
    """Yield files that belong to the dataset by their name, and are not listed."""
    if not _PATTERN.fullmatch(file.pattern):
        return
    try:
        pattern = parse_pattern(file.pattern)
    except (ShardError, ValueError):
        return
    sidecars = {one.sidecar for one in file.shards}
    for name in sorted(names, key=natural):
        if not pattern.owns(name) or output_text(name) in listed | sidecars:
            continue
        if name.endswith(SIDECAR_SUFFIX):
            yield Finding("sidecar-extra", output_text(name), "not in the dataset file")
        elif name.endswith(ENDINGS):
            yield Finding("shard-extra", output_text(name), "not in the dataset file")


def _gaps(found: Found, given: Any, file: DatasetFile | None) -> Iterable[Finding]:
    """Yield numbers that are missing between shards."""
    names = [os.path.basename(path) for path in found.shards]
    if file is not None:
        names = [one.name for one in file.shards]
    wanted = _asked_for(given) if file is None else []
    there = set(names)
    if wanted:
        for name in [name for name in wanted if name not in there][:_MOST_GAPS]:
            yield Finding("shard-missing", output_text(name), "not there, and of the pattern")
        return
    if file is None and not isinstance(given, (str, os.PathLike)):
        return
    groups: dict[tuple[str, str, int], list[int]] = {}
    for name in names:
        stem = sidecar_name(name).removesuffix(SIDECAR_SUFFIX)
        if (match := re.fullmatch(r"(.*?)(\d{1,18})(\D*)", stem, re.ASCII)) is not None:
            key = (match[1], match[3] + name[len(stem) :], len(match[2]) if match[2][0] == "0" else 0)
            groups.setdefault(key, []).append(int(match[2]))
    left = _MOST_GAPS
    for (prefix, suffix, width), numbers in groups.items():
        numbers.sort()
        for before, after in pairwise(numbers):
            for number in range(before + 1, min(after, before + 1 + left)):
                left -= 1
                missing = f"{prefix}{number:0{width}d}{suffix}"
                yield Finding("numbering-gap", output_text(missing), "not there", "a shard of this number")


def _asked_for(given: Any) -> list[str]:
    """Return the names that a closed pattern asks for."""
    if not isinstance(given, (str, os.PathLike)) or os.path.exists(given):
        return []
    try:
        pattern = parse_pattern(given)
    except ShardError:
        return []
    if pattern.names is not None:
        return list(pattern.names)
    if pattern.count is None or pattern.count > 10**7:
        return []
    return [pattern.shard(at) for at in range(pattern.count)]


def _skipped(folder: str, file: DatasetFile) -> Iterable[Finding]:
    """Yield whether the list of what was left out is the one that the dataset file tells of."""
    name = f"{file.name}.skipped"
    try:
        data = read_small(os.path.join(folder, os.fsdecode(to_bytes(name))))
    except FileNotFoundError:
        data = b""
    except (OSError, ValueError) as error:
        yield Finding("skipped-differs", name, str(error))
        return
    rows = data.count(b"\n")
    if rows == file.skipped and file.skipped_crc is not None and crc32c(data) != file.skipped_crc:
        yield Finding("skipped-differs", name, f"the checksum {crc32c(data):08x}", f"{file.skipped_crc:08x}")
    if rows != file.skipped:
        yield Finding("skipped-differs", name, counted(rows, "row"), f"{file.skipped:,}, as the dataset file says")
