"""A dataset compared with what it was made from, by key, and its names with what readers make of them.

The source is listed as the verb that made the dataset lists it, with those options that the dataset file recorded and
that only choose. What names code or a place is not used: with `--map`, whose function could make any sample, nothing
is compared; and what came of a table of `--join` is not. Order and sharding do not matter.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.check.findings import Finding, Findings
from shardtool.check.recorded_run import open_again, recorded_run
from shardtool.check.shard import column
from shardtool.check.source_checksums import inline_payloads, source_sums
from shardtool.dataset.walk import walked_text
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.fingerprint import crc32c
from shardtool.names import Names
from shardtool.pattern import parse_pattern
from shardtool.storage.reading import read_small
from shardtool.values import DUPLICATE, FILE, INLINE, counted, output_text, to_bytes
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.check.subject import Subject
    from shardtool.dataset.walk import Survey
    from shardtool.entries.entries import Entries
    from shardtool.execute.local import LocalPool
    from shardtool.request.observer import Observer
    from shardtool.request.options import VerifyOptions


class Comparison:
    """A dataset and its source; if samples were appended, the shards and the source of the first run.

    Args:
        subject: The dataset.
        options: What the user says of the source; `source` is what the dataset was made from.
        observer: Gets progress.

    Raises:
        InvalidRequest: There is no such source.
    """

    def __init__(self, subject: Subject, options: VerifyOptions, observer: Observer) -> None:
        self.subject, self.observer = subject, observer
        self.made = recorded_run(subject.file, options)
        outputs = [parse_pattern([os.path.join(subject.found.folder, case.name) for case in subject.cases])]
        self.source = open_again(self.made, options.source, outputs)
        self.findings = Findings()

    def run(self, all_surveys: Mapping[int, Survey], pool: LocalPool) -> Findings:
        """Return what differs; `all_surveys`: what lies in each shard that could be read, by its number."""
        self._compare(all_surveys, pool)
        return self.findings

    def _compare(self, all_surveys: Mapping[int, Survey], pool: LocalPool) -> None:
        made, unchecked = self.made, self.findings.unchecked
        if made.map:
            unchecked.append(f"the source: {option('map')} made the samples, and is not run again")
            return
        entries = self._entries(pool)
        if made.choosing and any(one.code == DUPLICATE for one in entries.left_out):
            unchecked.append(f"the source: keys that several samples have, and {self._of_table}")
            return
        self._add_unchecked()
        numbers = self._first_shards(all_surveys)
        surveys = [all_surveys[number] for number in numbers]
        if not surveys:
            return
        ends = np.cumsum([len(one.keys) for one in surveys])
        place = _places(entries, surveys)
        appended = _places(entries, [all_surveys[at] for at in sorted({*all_surveys} - {*numbers})])
        if np.any(appended >= 0) and not np.any(place >= 0):
            unchecked.append("the source: it is what samples were appended from, which is not compared")
            return
        self.findings.checked.append("the source")
        if not made.choosing:
            self._missing(entries, np.concatenate((place, appended)))
        self._extra(surveys, numbers, ends, place)
        if made.changes:
            unchecked.append(f"payloads against the source: {option('resize')} or {option('encode')} changed them")
            return
        self._compare_fields(entries, surveys, numbers, place, pool)

    @property
    def _of_table(self) -> str:
        return f"{' and '.join(self.made.choosing)} may have chosen them by {option('join')} {self.made.table}"

    def _add_unchecked(self) -> None:
        """Say what is not compared."""
        made, unchecked, file = self.made, self.findings.unchecked, self.subject.file
        if made.made_fields:
            what = f"{'field' if len(made.made_fields) == 1 else 'fields'} {listing([*made.made_fields])}"
            unchecked.append(
                f"{what} against the source: made with {option('join')} {made.table}, which is not at hand"
            )
        if made.choosing:
            unchecked.append(f"samples that only the source has: {self._of_table}, which is not at hand")
        if file is not None and file.appends:
            before, later = file.appends[0], counted(len(file.shards) - file.appends[0], "shard")
            what = f"{option('source')} is compared with the first {counted(before, 'shard')}"
            unchecked.append(f"the source of {later} that samples were appended in: {what}")

    def _first_shards(self, surveys: Mapping[int, Survey]) -> list[int]:
        """Return the numbers of the shards that hold samples of the source: not those that were appended."""
        file, found = self.subject.file, sorted(surveys)
        if file is None or not file.appends:
            return found
        names = {one.name for one in file.shards[: file.appends[0]]}
        return [number for number in found if self.subject.cases[number].name in names]

    def _entries(self, pool: LocalPool) -> Entries:
        """Return the samples of the source that belong into the dataset."""
        listed = self.source.choose(self.source.list_samples(pool, self.observer), None)
        entries = listed.entries
        file, dividing = self.subject.file, self.made.options.of_split()
        if dividing is not None and file is not None:
            from shardtool.select.splits import divide

            values = self.source.column(listed, dividing.reads[1]) if dividing.reads else None
            splits = divide(entries.keys, dividing, values)
            name = file.made.get("split")
            if name not in splits.names:
                raise InvalidRequest(
                    option("source"), f"no split {printable(str(name))[:80]!r} of it", expected="the source"
                )
            entries = entries.take(splits.samples(splits.names.index(name)))
        if self.made.options.portable:
            from shardtool.select.portable import make_portable

            entries = make_portable(entries)
        return entries

    def _add(self, code: str, total: int, findings: Iterator[Finding]) -> None:
        self.findings.add_first(code, len(self.subject.cases), total, findings)

    @property
    def _name(self) -> str:
        found = self.subject.found
        return output_text(os.path.basename(found.dataset_file or "") or found.folder or ".")

    def _left_out(self) -> set[str]:
        """Return the keys that the dataset's list of what was left out has."""
        file = self.subject.file
        if file is None or not file.skipped:
            return set()
        try:
            name = os.fsdecode(to_bytes(f"{file.name}.skipped"))
            rows = read_small(os.path.join(self.subject.found.folder, name)).splitlines()
            return {str(json.loads(row)["key"]) for row in rows}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            self.findings.unchecked.append("what was left out: its list cannot be read")
            return set()

    def _missing(self, entries: Entries, place: NDArray[np.int64]) -> None:
        there = np.zeros(len(entries), bool)
        there[place[place >= 0]] = True
        left_out = self._left_out()
        lacking = [int(at) for at in np.flatnonzero(~there) if printable(entries.keys[int(at)]) not in left_out]
        found = (
            Finding("source-missing", self._name, "not in the dataset", "a sample, as in the source",
                    key=walked_text(entries.keys[at])) for at in lacking
        )  # fmt: skip
        self._add("source-missing", len(lacking), found)

    def _extra(self, surveys: list[Survey], numbers: list[int], ends: Any, place: NDArray[np.int64]) -> None:
        extra = np.flatnonzero(place < 0).tolist()

        def each() -> Iterator[Finding]:
            for at in extra:
                shard = int((ends <= at).sum())
                row = at - (int(ends[shard - 1]) if shard else 0)
                survey, case = surveys[shard], self.subject.cases[numbers[shard]]
                yield Finding("source-extra", case.name, "not in the source", "no such sample", survey.starts[row],
                              walked_text(survey.keys[row]))  # fmt: skip

        self._add("source-extra", len(extra), each())

    def _compare_fields(
        self, entries: Entries, surveys: list[Survey], numbers: list[int], place: NDArray[np.int64], pool: LocalPool
    ) -> None:
        """Compare the fields of samples that both have: their names, lengths and checksums."""
        known: dict[bytes, int] = {}
        for name in [*map(to_bytes, entries.fields), *(name for one in surveys for name in one.names)]:
            known.setdefault(name, len(known))
        passed = {to_bytes(name) for name in self.made.made_fields}
        theirs = _source_ids(entries, known, passed)
        ours = _dataset_ids(surveys, place, known, passed)
        _, mine, source = np.intersect1d(ours, theirs, return_indices=True)
        present = np.unique(place[place >= 0])
        has = np.isin(theirs // max(1, len(known)), present)
        lacking = np.setdiff1d(np.flatnonzero(has), source)
        self._add("source-missing", len(lacking), (
            Finding("source-missing", self._name, "a field that the dataset does not have", "as in the source",
                    key=walked_text(key), field=field)
            for key, field in (_of_row(entries, int(row)) for row in lacking)
        ))  # fmt: skip
        if self.made.verb not in ("create", "reshard"):
            self.findings.unchecked.append(
                "fields that the source does not have: how the dataset was made is not recorded"
            )
            self._compare_payloads(entries, surveys, numbers, (mine, source), pool)
            return
        here = np.flatnonzero(ours >= 0)
        extra = np.setdiff1d(here, mine)
        self._add("source-extra", len(extra), (
            self._finding("source-extra", surveys, numbers, int(row), "a field that the source does not have")
            for row in extra
        ))  # fmt: skip
        self._compare_payloads(entries, surveys, numbers, (mine, source), pool)

    def _compare_payloads(
        self, entries: Entries, surveys: list[Survey], numbers: list[int], rows: tuple[Any, Any], pool: LocalPool
    ) -> None:
        mine, source = rows
        lengths = np.concatenate([column(one.lengths, np.int64) for one in surveys])
        crcs = np.concatenate([column(one.crcs, np.uint32) for one in surveys])
        sizes, sums = entries.size[source], np.full(len(source), -1, np.int64)
        inline = np.flatnonzero(entries.kind[source] == INLINE)
        payloads = inline_payloads(entries, source[inline], as_numbers=surveys[0].format == "tfrecord")
        for at, payload in zip(inline.tolist(), payloads, strict=True):
            sizes[at], sums[at] = len(payload), crc32c(payload)
        differ = lengths[mine] != sizes
        read = np.flatnonzero(~differ & (entries.kind[source] != INLINE))
        sums[read] = source_sums(self.source, entries, source[read], pool)
        bad = np.flatnonzero(differ | (sums != crcs[mine]))

        def each() -> Iterator[Finding]:
            for at in bad.tolist():
                what, expected = f"{int(crcs[mine[at]]):08x}", "the checksum of the source's bytes"
                if differ[at]:
                    what, expected = f"{int(lengths[mine[at]]):,} bytes", f"{int(sizes[at]):,}, as the source has"
                yield self._finding("source-differs", surveys, numbers, int(mine[at]), what, expected)

        self._add("source-differs", len(bad), each())

    def _finding(  # noqa: PLR0913, PLR0917 - the parts of a finding
        self, code: str, surveys: list[Survey], numbers: list[int], row: int, found: str, expected: str = ""
    ) -> Finding:
        """Return the finding about a field, by its row in all shards."""
        for number, survey in zip(numbers, surveys, strict=True):
            if row < len(survey.codes):
                sample = int(np.searchsorted(np.cumsum(np.frombuffer(survey.counts, np.uint32)), row, "right"))
                return Finding(
                    code, self.subject.cases[number].name, found, expected, survey.offsets[row],
                    walked_text(survey.keys[sample]), walked_text(survey.names[survey.codes[row]]),
                )  # fmt: skip
            row -= len(survey.codes)
        raise IndexError(row)


def _source_ids(entries: Entries, known: dict[bytes, int], passed: set[bytes]) -> NDArray[np.int64]:
    """Return what names each field's row: its sample's place, and its name; -2 where that is to be passed over."""
    codes = np.array([known[to_bytes(name)] for name in entries.fields] or [0], np.int64)
    out = np.array([to_bytes(name) in passed for name in entries.fields] or [False], np.bool_)
    owners = np.repeat(np.arange(len(entries)), entries.counts())
    return np.asarray(np.where(out[entries.code], -2, owners * len(known) + codes[entries.code]))


def _dataset_ids(
    surveys: list[Survey], place: NDArray[np.int64], known: dict[bytes, int], passed: set[bytes]
) -> NDArray[np.int64]:
    """Return the same of the dataset, by its samples' places in the source; -1 where there is none."""
    parts, first = [np.zeros(0, np.int64)], 0
    for survey in surveys:
        codes = np.array([known[name] for name in survey.names] or [0], np.int64)
        out = np.array([name in passed for name in survey.names] or [False], np.bool_)
        counts = column(survey.counts, np.uint32)
        owners = np.repeat(place[first : first + len(counts)], counts)
        rows = column(survey.codes, np.uint32)
        parts.append(np.where((owners < 0) | out[rows], -1, owners * len(known) + codes[rows]))
        first += len(counts)
    return np.asarray(np.concatenate(parts))


def _places(entries: Entries, surveys: Sequence[Survey]) -> NDArray[np.int64]:
    """Return the place in the source of each sample of shards; -1 for those that it has not."""
    theirs = _key_column(entries.keys.data, entries.keys.starts)
    ours = _key_column(*_join([key for one in surveys for key in one.keys]))
    found = pc.index_in(ours, value_set=theirs).fill_null(-1).to_numpy(zero_copy_only=False)
    return np.asarray(found.astype(np.int64))


def _of_row(entries: Entries, row: int) -> tuple[bytes, str]:
    sample = int(np.searchsorted(entries.first, row, "right")) - 1
    return entries.keys[sample], entries.fields[int(entries.code[row])]


def _join(keys: Sequence[bytes]) -> tuple[bytes, NDArray[np.int64]]:
    lengths = np.array([len(key) + 1 for key in keys], np.int64)
    return b"".join([key + b"\0" for key in keys]), np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def _key_column(data: bytes, starts: NDArray[np.int64]) -> Any:
    """Return keys, a NUL after each, as an Arrow array."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(starts)), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(starts) - 1, buffers)


def entries_of(surveys: Sequence[Survey]) -> Entries:
    """Return the samples of shards as a source's would be."""
    from shardtool.entries.entries import Entries

    known: dict[bytes, int] = {}
    codes = [np.zeros(0, np.uint16)]
    for survey in surveys:
        here = np.array([known.setdefault(name, len(known)) for name in survey.names] or [0], np.uint16)
        if len(survey.codes):
            codes.append(here[np.frombuffer(survey.codes, np.uint32)])
    counts = np.array([count for survey in surveys for count in survey.counts], np.int64)
    rows = int(counts.sum())
    sizes = np.array([length for survey in surveys for length in survey.lengths], np.int64)
    return Entries(
        root=b"/",
        keys=Names.of([key.replace(b"\0", b"?") for survey in surveys for key in survey.keys]),
        first=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        fields=tuple(walked_text(name) for name in known),
        code=np.concatenate(codes),
        kind=np.full(rows, FILE, np.uint8),
        size=sizes,
        mtime_ns=np.zeros(rows, np.int64),
        changed_ns=np.zeros(rows, np.int64),
    )
