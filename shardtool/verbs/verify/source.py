"""A dataset compared with what it was made from, by key, and its names with what readers make of them.

The source is listed as the verb that made the dataset lists it, with those options that the dataset file recorded and
that only choose. What names code or a place is not used: with `--map`, whose function could make any sample, nothing
is compared; and what came of a table of `--join` is not. Order and sharding do not matter.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.find import find_dataset, recorded_pattern
from shardtool.dataset.walk import walked_text
from shardtool.errors import CorruptShard, InvalidRequest, ShardError, listing, printable
from shardtool.fingerprint import crc32c
from shardtool.names import Names
from shardtool.pattern import parse_pattern
from shardtool.publish.records import read_skipped
from shardtool.source.folder import FolderSource
from shardtool.storage.places import base_name, join, read_small
from shardtool.values import FILE, INLINE, URL, counted, output_text, to_bytes
from shardtool.verbs.verify.findings import Finding, Findings
from shardtool.verbs.verify.source_checksums import inline_payloads, source_sums
from shardtool.verbs.verify.subject import open_again, recorded_run
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.walk import Survey
    from shardtool.entries.entries import Entries
    from shardtool.execute.pool import Pool
    from shardtool.request.options import VerifyOptions
    from shardtool.request.results import Observer
    from shardtool.source.base import Listing
    from shardtool.verbs.verify.subject import Subject

    Rows = NDArray[np.int64]
    Surveys = Mapping[int, Survey]


_OF_SOURCES = ("root", "allow_outside", "symlinks", "map")  # what `verify` has, too, about a source


class Comparison:
    """A dataset and its source; if samples of others were appended, the shards and the source of the first run.

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
        outputs = [parse_pattern([join(subject.found.folder, case.name) for case in subject.cases])]
        if subject.file is not None and (pattern := recorded_pattern(subject.file)) is not None:  # the name of all
            outputs.append(replace(pattern, folder=outputs[0].folder))
        with self._words_of_verify():
            self.source = open_again(self.made, options.source, outputs)
        self._given = options.source
        self.findings = Findings()

    def run(self, all_surveys: Surveys, pool: Pool) -> Findings:
        """Return what differs; `all_surveys`: what lies in each shard that could be read, by its number."""
        self._compare(all_surveys, pool)
        return self.findings

    def _compare(self, all_surveys: Surveys, pool: Pool) -> None:
        made, unchecked = self.made, self.findings.unchecked
        if made.map:
            unchecked.append(f"the source: {option('map')} made the samples, and is not run again")
            return
        with self._words_of_verify():
            listed = self._listed(pool)
        entries = listed.entries
        if made.choosing and any(one.code == "duplicate" for one in listed.skipped):
            unchecked.append(f"the source: keys that several samples have, and {self._of_table}")
            return
        self._add_unchecked()
        surveys = self._first_shards(all_surveys)
        if not surveys:
            return
        place = _places(entries, surveys.values())
        appended = _places(entries, [all_surveys[at] for at in sorted({*all_surveys} - {*surveys})])
        if np.any(appended >= 0) and not np.any(place >= 0):
            unchecked.append("the source: it is what samples were appended from, which is not compared")
            return
        if not np.any(place >= 0):
            self._check_no_dataset()
        self.findings.checked.append("the source")
        if not made.choosing and (self.subject.file is None or self.subject.is_all):
            self._missing(entries, np.concatenate((place, appended)))
        self._extra(surveys, place)
        if made.changes:
            unchecked.append(f"payloads against the source: {option('resize')} or {option('encode')} changed them")
            return
        self._compare_fields(entries, surveys, place, pool)

    @contextmanager
    def _words_of_verify(self) -> Iterator[None]:
        """Advise what `verify` has, where an error of a source advises what `create` or `reshard` has."""
        try:
            yield
        except InvalidRequest as error:
            if any(option(name) in error.remedy for name in _OF_SOURCES):
                raise
            error.remedy = f"{self._made_from}."
            raise

    def _check_no_dataset(self) -> None:
        """Refuse a folder that holds a dataset, and no sample of this one.

        Raises:
            InvalidRequest: The source is such.
        """
        if not isinstance(self.source, FolderSource) or not isinstance(self._given, str | os.PathLike):
            return
        folder = os.fspath(self._given)
        try:
            is_dataset = find_dataset(folder).own
        except ShardError:
            return
        if is_dataset:
            raise InvalidRequest(folder, "a dataset", expected="a folder of samples", remedy=f"{self._made_from}.")

    @property
    def _made_from(self) -> str:
        file = self.subject.file
        made = f", as its dataset file says: {file.made.verb} {file.made.source}" if file and file.made.source else ""
        return f"{option('source')} takes what the dataset was made from{made}"

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
        if file is not None and file.appends and not self._grown:
            before, later = file.appends[0], counted(len(file.shards) - file.appends[0], "shard")
            what = f"{option('source')} is compared with the first {counted(before, 'shard')}"
            unchecked.append(f"the source of {later} that samples were appended in: {what}")

    @property
    def _grown(self) -> bool:
        """Whether all that was appended is what was new in the same source, so that it has all samples."""
        file = self.subject.file
        return file is not None and all(run.is_new_of(file.made) for run in file.made.appended)

    def _first_shards(self, surveys: Surveys) -> Surveys:
        """Return, in order, the shards that hold samples of the source: not those that were appended."""
        file, found = self.subject.file, sorted(surveys)
        if file is not None and file.appends and not self._grown:
            names = {one.name for one in file.shards[: file.appends[0]]}
            found = [number for number in found if self.subject.cases[number].name in names]
        return {number: surveys[number] for number in found}

    def _listed(self, pool: Pool) -> Listing:
        """Return the samples of the source that belong into the dataset."""
        listed = self.source.choose(self.source.list_samples(pool, self.observer), None)
        entries = listed.entries
        file, dividing = self.subject.file, self.made.options.of_split()
        if dividing is not None and file is not None:
            from shardtool.select.splits import divide

            values = self.source.column(listed, dividing.reads[1]) if dividing.reads else None
            splits = divide(entries.keys, dividing, values)
            name = file.made.split
            if name not in splits.names:
                raise InvalidRequest(
                    option("source"), f"no split {printable(name)[:80]!r} of it", expected="the source"
                )
            entries = entries.take(splits.samples(splits.names.index(name)))
        if self.made.options.portable:
            from shardtool.source.naming import make_portable

            entries = make_portable(entries)
        return replace(listed, entries=entries)

    def _add(self, code: str, total: int, findings: Iterator[Finding]) -> None:
        self.findings.add_first(code, len(self.subject.cases), total, findings)

    @property
    def _name(self) -> str:
        found = self.subject.found
        return output_text(base_name(found.dataset_file or "") or found.folder or ".")

    def _skipped_keys(self) -> set[str]:
        """Return the keys that the dataset's list of what was left out has."""
        file = self.subject.file
        if file is None or not file.skipped:
            return set()
        try:
            name = os.fsdecode(to_bytes(f"{file.name}.skipped"))
            rows = read_skipped(read_small(join(self.subject.found.folder, name)), name)
            return {row.key for row in rows}
        except (OSError, CorruptShard):
            self.findings.unchecked.append("what was left out: its list cannot be read")
            return set()

    def _missing(self, entries: Entries, place: Rows) -> None:
        there = np.zeros(len(entries), bool)
        there[place[place >= 0]] = True
        skipped = self._skipped_keys()
        lacking = [int(at) for at in np.flatnonzero(~there) if printable(entries.keys[int(at)]) not in skipped]
        parts = ("source-missing", self._name, "not in the dataset", "a sample, as in the source")
        found = (Finding(*parts, key=walked_text(entries.keys[at])) for at in lacking)
        self._add("source-missing", len(lacking), found)

    def _extra(self, surveys: Surveys, place: Rows) -> None:
        extra, shards = np.flatnonzero(place < 0).tolist(), [*surveys.items()]
        ends = np.cumsum([len(survey.keys) for _, survey in shards])

        def each() -> Iterator[Finding]:
            for at in extra:
                shard = int((ends <= at).sum())
                row = at - (int(ends[shard - 1]) if shard else 0)
                number, survey = shards[shard]
                parts = ("source-extra", self.subject.cases[number].name, "not in the source", "no such sample")
                yield Finding(*parts, survey.starts[row], walked_text(survey.keys[row]))

        self._add("source-extra", len(extra), each())

    def _compare_fields(self, entries: Entries, surveys: Surveys, place: Rows, pool: Pool) -> None:
        """Compare the fields of samples that both have: their names, lengths and checksums."""
        known: dict[bytes, int] = {}
        for name in [*map(to_bytes, entries.fields), *(name for one in surveys.values() for name in one.names)]:
            known.setdefault(name, len(known))
        passed = {to_bytes(name) for name in self.made.made_fields}
        theirs = _source_ids(entries, known, passed)
        ours = _dataset_ids(surveys.values(), place, known, passed)
        _, mine, source = np.intersect1d(ours, theirs, return_indices=True)
        present = np.unique(place[place >= 0])
        has = np.isin(theirs // max(1, len(known)), present)
        lacking = np.setdiff1d(np.flatnonzero(has), source)
        parts = ("source-missing", self._name, "a field that the dataset does not have", "as in the source")
        rows = (_of_row(entries, int(row)) for row in lacking)
        self._add("source-missing", len(lacking), (Finding(*parts, key=key, field=name) for key, name in rows))
        if self.made.verb not in ("create", "reshard"):
            self.findings.unchecked.append(
                "fields that the source does not have: how the dataset was made is not recorded"
            )
            self._compare_payloads(entries, surveys, (mine, source), pool)
            return
        here = np.flatnonzero(ours >= 0)
        extra = np.setdiff1d(here, mine)
        what = "a field that the source does not have"
        found = (self._finding("source-extra", surveys, int(row), what) for row in extra)
        self._add("source-extra", len(extra), found)
        self._compare_payloads(entries, surveys, (mine, source), pool)

    def _compare_payloads(self, entries: Entries, surveys: Surveys, rows: tuple[Rows, Rows], pool: Pool) -> None:
        mine, source = rows
        lengths = np.concatenate([np.frombuffer(one.lengths, np.int64) for one in surveys.values()])
        crcs = np.concatenate([np.frombuffer(one.crcs, np.uint32) for one in surveys.values()])
        sizes, sums = entries.rows.size[source], np.full(len(source), -1, np.int64)
        inline = np.flatnonzero(entries.rows.kind[source] == INLINE)
        as_numbers = any(one.format == "tfrecord" for one in surveys.values())
        payloads = inline_payloads(entries, source[inline], as_numbers=as_numbers)
        for at, payload in zip(inline.tolist(), payloads, strict=True):
            sizes[at], sums[at] = len(payload), crc32c(payload)
        fetched = entries.rows.kind[source] == URL  # what is there by now says nothing of what was there
        if fetched.any():
            self.findings.unchecked.append(f"{counted(int(fetched.sum()), 'file')} of URLs against the web")
        differ = (lengths[mine] != sizes) & ~fetched
        read = np.flatnonzero(~differ & ~fetched & (entries.rows.kind[source] != INLINE))
        sums[read] = source_sums(self.source, entries, source[read], pool)
        bad = np.flatnonzero(differ | ((sums != crcs[mine]) & ~fetched))

        def each() -> Iterator[Finding]:
            for at in bad.tolist():
                what, expected = f"{int(crcs[mine[at]]):08x}", "the checksum of the source's bytes"
                if differ[at]:
                    what, expected = f"{int(lengths[mine[at]]):,} bytes", f"{int(sizes[at]):,}, as the source has"
                yield self._finding("source-differs", surveys, int(mine[at]), what, expected)

        self._add("source-differs", len(bad), each())

    def _finding(self, code: str, surveys: Surveys, row: int, found: str, expected: str = "") -> Finding:
        """Return the finding about a field, by its row in all shards."""
        for number, survey in surveys.items():
            if row < len(survey.codes):
                sample = int(np.searchsorted(np.cumsum(np.frombuffer(survey.counts, np.uint32)), row, "right"))
                key, field = walked_text(survey.keys[sample]), walked_text(survey.names[survey.codes[row]])
                where = self.subject.cases[number].name
                return Finding(code, where, found, expected, survey.offsets[row], key, field)
            row -= len(survey.codes)
        raise IndexError(row)


def _source_ids(entries: Entries, known: dict[bytes, int], passed: set[bytes]) -> Rows:
    """Return what names each field's row: its sample's place, and its name; -2 where that is to be passed over."""
    codes = np.array([known[to_bytes(name)] for name in entries.fields] or [0], np.int64)
    out = np.array([to_bytes(name) in passed for name in entries.fields] or [False], np.bool_)
    owners = np.repeat(np.arange(len(entries)), entries.counts())
    return np.asarray(np.where(out[entries.rows.code], -2, owners * len(known) + codes[entries.rows.code]))


def _dataset_ids(surveys: Iterable[Survey], place: Rows, known: dict[bytes, int], passed: set[bytes]) -> Rows:
    """Return the same of the dataset, by its samples' places in the source; -1 where there is none."""
    parts, first = [np.zeros(0, np.int64)], 0
    for survey in surveys:
        codes = np.array([known[name] for name in survey.names] or [0], np.int64)
        out = np.array([name in passed for name in survey.names] or [False], np.bool_)
        counts = np.frombuffer(survey.counts, np.uint32)
        owners = np.repeat(place[first : first + len(counts)], counts)
        rows = np.frombuffer(survey.codes, np.uint32)
        parts.append(np.where((owners < 0) | out[rows], -1, owners * len(known) + codes[rows]))
        first += len(counts)
    return np.asarray(np.concatenate(parts))


def _places(entries: Entries, surveys: Iterable[Survey]) -> Rows:
    """Return the place in the source of each sample of shards; -1 for those that it has not."""
    theirs = _key_column(entries.keys.data, entries.keys.starts)
    ours = _key_column(*_join([key for one in surveys for key in one.keys]))
    found = pc.index_in(ours, value_set=theirs).fill_null(-1).to_numpy(zero_copy_only=False)
    return np.asarray(found.astype(np.int64))


def _of_row(entries: Entries, row: int) -> tuple[str, str]:
    sample = int(entries.owners(row))
    return walked_text(entries.keys[sample]), entries.fields[int(entries.rows.code[row])]


def _join(keys: Sequence[bytes]) -> tuple[bytes, Rows]:
    lengths = np.array([len(key) + 1 for key in keys], np.int64)
    return b"".join([key + b"\0" for key in keys]), np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def _key_column(data: bytes, starts: Rows) -> pa.Array:
    """Return keys, a NUL after each, as an Arrow array."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(starts)), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(starts) - 1, buffers)


def entries_of(surveys: Sequence[Survey]) -> Entries:
    """Return the samples of shards as a source's would be."""
    from shardtool.entries.entries import Entries, FieldRows

    known: dict[bytes, int] = {}
    codes = [np.zeros(0, np.uint16)]
    for survey in surveys:
        here = np.array([known.setdefault(name, len(known)) for name in survey.names] or [0], np.uint16)
        if len(survey.codes):
            codes.append(here[np.frombuffer(survey.codes, np.uint32)])
    counts = np.array([count for survey in surveys for count in survey.counts], np.int64)
    rows = int(counts.sum())
    never = np.zeros(rows, np.int64)
    sizes = np.array([length for survey in surveys for length in survey.lengths], np.int64)
    return Entries(
        root=b"/",
        keys=Names.of([key.replace(b"\0", b"?") for survey in surveys for key in survey.keys]),
        first=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        fields=tuple(walked_text(name) for name in known),
        rows=FieldRows(np.concatenate(codes), np.full(rows, FILE, np.uint8), sizes, never, never),
    )
