"""`verify --source`: compare a dataset with its source, by key. Order and sharding do not matter."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from shardtool.dataset.expand import recorded_range
from shardtool.dataset.find import find_dataset
from shardtool.dataset.scan import ShardScan, index_text
from shardtool.dataset.shard_index import part_ends
from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, ShardError, format_list, printable
from shardtool.messages import option_text
from shardtool.names import to_bytes
from shardtool.pattern import parse_pattern
from shardtool.shard_samples import INLINE, URL
from shardtool.skipped import has_same_content, is_skipped_key
from shardtool.source.checksums import inline_checksums, source_checksums
from shardtool.source.folder import FolderSource
from shardtool.storage.paths import join
from shardtool.table.keys import find_positions
from shardtool.units import pluralize
from shardtool.verbs.verify.findings import Finding
from shardtool.verbs.verify.recorded_run import (
    has_appended_sources,
    recorded_run,
    table_folders,
    verify_options_in_errors,
)
from shardtool.verbs.verify.recorded_source import RecordedSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.execute.pool import Pool
    from shardtool.request.dataset_options import VerifyOptions
    from shardtool.request.observer import Observer
    from shardtool.verbs.verify.verified_dataset import VerifiedDataset

    Rows = NDArray[np.int64]
    Surveys = Mapping[int, ShardScan]


_NameT = TypeVar("_NameT", str, bytes)


class SourceComparison:
    """A dataset and its source; if samples of others were appended, the shards and the source of the first run.

    Args:
        subject: The dataset.
        options: What the user says of the source; `source` is what the dataset was made from.
        observer: Gets progress.

    Raises:
        InvalidRequest: There is no such source.
    """

    def __init__(self, subject: VerifiedDataset, options: VerifyOptions, observer: Observer) -> None:
        self.subject, self.observer = subject, observer
        made = recorded_run(subject.file, options, table_folders(options.source, [subject.folder]))
        outputs = [parse_pattern([join(subject.folder, case.name) for case in subject.cases])]
        if subject.file is not None and (pattern := recorded_range(subject.file)) is not None:  # the name of all
            outputs.append(replace(pattern, folder=outputs[0].folder))
        self._words = partial(verify_options_in_errors, options.source, options.join, f"{self._made_from}.")
        with self._words():
            self.again = RecordedSource(made, [subject.dataset], options.source, outputs)
        self.made, self._given, self.findings = made, options.source, subject.findings

    def run(self, all_surveys: Surveys, pool: Pool) -> None:
        """Find what differs; `all_surveys`: what lies in each shard that could be read, by its number."""
        made, unchecked = self.made, self.findings.unchecked
        if made.map:
            unchecked.append(f"the source: {option_text('map')} made the samples, and is not run again")
            self._not_compared(all_surveys)
            return
        with self._words():
            listed, _ = self.again.list_samples(pool, self.observer)
        self.made = made = self.again.run
        if made.choosing and any(one.code == "duplicate" and not has_same_content(one) for one in listed.skipped):
            unchecked.append(f"the source: keys that several samples have, and {made.of_table}")
            self._not_compared(all_surveys)
            return
        unchecked += made.unchecked()
        self._compare(listed.entries, all_surveys, pool)

    def _compare(self, entries: SampleTable, all_surveys: Surveys, pool: Pool) -> None:
        """Compare the samples of shards with those of the source."""
        made, unchecked = self.made, self.findings.unchecked
        surveys = self._first_shards(all_surveys)
        if made.added:
            unchecked.append(f"fields that the source does not have: {option_text('add')} put them beside")
        if not surveys:
            return
        place = find_positions(_shard_keys(surveys), entries.keys)
        others = {number: all_surveys[number] for number in all_surveys if number not in surveys}
        appended = find_positions(_shard_keys(others), entries.keys)
        if np.any(appended >= 0) and not np.any(place >= 0):
            unchecked.append("the source: it is what samples were appended from, which is not compared")
            self._not_compared(all_surveys)
            return
        if not np.any(place >= 0):
            self._check_no_dataset()
        self.findings.checked.append("the source")
        if made.without_table is not None:
            self.findings.checked.append(f"with {option_text('join')} {printable(made.table)}")
        self.findings.uncompared += made.made_fields
        if lost := self.again.missing_splits():
            unchecked.append(lost)
        elif not made.choosing and (self.subject.file is None or self.subject.is_all):
            self._missing(entries, np.concatenate((place, appended)))
        self._extra(surveys, place)
        if made.changes:
            unchecked.append(
                f"payloads against the source: {option_text('resize')} or {option_text('encode')} changed them"
            )
            self._not_compared(surveys)
            return
        self._compare_fields(entries, surveys, place, pool)

    def _not_compared(self, surveys: Surveys) -> None:
        """Record that no field of some shards was compared with the source."""
        self.findings.uncompared += sorted({index_text(name) for one in surveys.values() for name in one.names})

    def _check_no_dataset(self) -> None:
        """Refuse a folder that holds a dataset, and no sample of this one.

        Raises:
            InvalidRequest: The source is such.
        """
        if not isinstance(self.again.source, FolderSource) or not isinstance(self._given, str | os.PathLike):
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
        run = self.subject.file.made if self.subject.file else None
        made = run and run.source and f", as its dataset file says: {run.verb} {format_list(run.source.split(', '))}"
        return f"{option_text('source')} takes what the dataset was made from{made or ''}"

    def _first_shards(self, surveys: Surveys) -> Surveys:
        """Return, in order, the shards that hold samples of the source; of those that were appended, say so."""
        file, found = self.subject.file, sorted(surveys)
        if file is not None and has_appended_sources(file):
            before, later = file.appends[0], pluralize(len(file.shards) - file.appends[0], "shard")
            what = f"{option_text('source')} is compared with the first {pluralize(before, 'shard')}"
            self.findings.unchecked.append(f"the source of {later} that samples were appended in: {what}")
            names = {one.name for one in file.shards[:before]}
            found = [number for number in found if self.subject.cases[number].name in names]
        return {number: surveys[number] for number in found}

    def _add(self, code: str, total: int, findings: Iterator[Finding]) -> None:
        self.findings.add_first(code, len(self.subject.cases), total, findings)

    def _missing(self, entries: SampleTable, place: Rows) -> None:
        there = np.zeros(len(entries), bool)
        there[place[place >= 0]] = True
        skipped, unread = self.again.skipped_keys()
        if unread:
            self.findings.unchecked.append(f"what was left out: the list of {format_list(unread)} cannot be read")
        lacking = [at for at in np.flatnonzero(~there).tolist() if not is_skipped_key(entries.keys[at], skipped)]
        parts = ("source-missing", self.subject.name, "not in the dataset", "a sample, as in the source")
        found = (Finding(*parts, key=index_text(entries.keys[at])) for at in lacking)
        self._add("source-missing", len(lacking), found)

    def _extra(self, surveys: Surveys, place: Rows) -> None:
        extra, parts = np.flatnonzero(place < 0).tolist(), ("not in the source", "no such sample")
        found = (
            Finding("source-extra", name, *parts, scan.starts[row], index_text(scan.keys[row]))
            for name, scan, row in (self._located(surveys, "keys", at) for at in extra)
        )
        self._add("source-extra", len(extra), found)

    def _compare_fields(self, entries: SampleTable, surveys: Surveys, place: Rows, pool: Pool) -> None:
        """Compare the fields of samples that both have: their names, lengths and checksums."""
        shards, fields = [*surveys.values()], [*map(to_bytes, entries.fields)]
        names = [name for one in shards for name in one.names]
        added = {*names}.difference(fields) if self.made.added else set[bytes]()
        self.findings.uncompared += sorted(map(index_text, added))
        passed = {*map(to_bytes, self.made.made_fields), *added}
        known = {name: -1 if name in passed else at for at, name in enumerate(dict.fromkeys([*fields, *names]))}
        theirs = field_ids(np.arange(len(entries)), entries.counts(), entries.rows.code, fields, known)
        firsts = np.repeat(part_ends([len(one.names) for one in shards])[:-1], [len(one.codes) for one in shards])
        ours = field_ids(
            place, _concat_column(surveys, "counts"), firsts + _concat_column(surveys, "codes"), names, known
        )
        mine, source, extra, lacking = match_ids(ours, theirs)
        lacking = lacking[np.isin(entries.owners(lacking), place)]  # of samples that the dataset has
        parts = ("source-missing", self.subject.name, "a field that the dataset does not have", "as in the source")
        keys = (index_text(entries.keys[int(entries.owners(row))]) for row in lacking)
        without = (entries.fields[int(code)] for code in entries.rows.code[lacking])
        found = (Finding(*parts, key=key, field=name) for key, name in zip(keys, without, strict=True))
        self._add("source-missing", len(lacking), found)
        if self.made.verb in ("create", "reshard"):
            what = "a field that the source does not have"
            found = (self._finding("source-extra", surveys, int(row), what) for row in extra)
            self._add("source-extra", len(extra), found)
        else:
            what = "fields that the source does not have: how the dataset was made is not recorded"
            self.findings.unchecked.append(what)
        self._compare_payloads(entries, surveys, (mine, source), pool)

    def _compare_payloads(self, entries: SampleTable, surveys: Surveys, rows: tuple[Rows, Rows], pool: Pool) -> None:
        mine, source = rows
        lengths, crcs = _concat_column(surveys, "lengths"), _concat_column(surveys, "crcs")
        as_numbers = any(one.format == "tfrecord" for one in surveys.values())
        sizes, sums = inline_checksums(entries, source, as_numbers=as_numbers)
        fetched = entries.rows.kind[source] == URL  # what is there by now says nothing of what was there
        if fetched.any():
            self.findings.unchecked.append(f"{pluralize(int(fetched.sum()), 'file')} of URLs against the web")
            self.findings.uncompared += [entries.fields[code] for code in np.unique(entries.rows.code[source[fetched]])]
        differ = (lengths[mine] != sizes) & ~fetched
        read = np.flatnonzero(~differ & ~fetched & (entries.rows.kind[source] != INLINE))
        sums[read] = source_checksums(self.again.source, entries, source[read], pool)
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
        name, scan, row = self._located(surveys, "codes", row)
        sample = int(np.searchsorted(np.cumsum(np.frombuffer(scan.counts, np.uint32)), row, "right"))
        key, field = index_text(scan.keys[sample]), index_text(scan.names[scan.codes[row]])
        return Finding(code, name, found, expected, scan.offsets[row], key, field)

    def _located(self, surveys: Surveys, column: str, place: int) -> tuple[str, ShardScan, int]:
        """Return the shard of a place in a column of all shards, what lies in it, and the place there."""
        for number, scan in surveys.items():
            if place < (count := len(getattr(scan, column))):
                return self.subject.cases[number].name, scan, place
            place -= count
        raise IndexError(place)


def field_ids(
    samples: Rows, counts: NDArray[Any], codes: NDArray[Any], names: Iterable[_NameT], known: Mapping[_NameT, int]
) -> Rows:
    """Return a number for each row, the same on two sides for a sample's field of one name; -1: it is not compared.

    Args:
        samples: What each sample is called on both sides, a number; -1 where only this one has it.
        counts: How many rows each has.
        codes: The name of each row, by its place in `names`.
        names: The names of fields.
        known: The number of each name on both sides; -1 where it is passed over.
    """
    owners, fields = np.repeat(samples, counts), np.array([*(known[name] for name in names), -1], np.int64)[codes]
    return np.asarray(np.where((owners < 0) | (fields < 0), -1, owners * (len(known) + 1) + fields))


def match_ids(ours: Rows, theirs: Rows) -> tuple[Rows, Rows, Rows, Rows]:
    """Return the places of numbers that both sides have, in their order, and of those that only one has; -1 is none."""
    mine, other = (
        _first_positions(ours),
        _first_positions(theirs),
    )  # `np.intersect1d` and `np.setdiff1d` take ten times as long
    ids, known = ours[mine], theirs[other]
    places = np.searchsorted(known, ids)
    there = np.append(known, -1)[places] == ids
    mine, other = mine[there], other[places[there]]
    lone = []
    for some, both in ((ours, mine), (theirs, other)):
        left = some >= 0
        left[both] = False
        lone.append(np.flatnonzero(left))
    return mine, other, lone[0], lone[1]


def _first_positions(ids: Rows) -> Rows:
    """Return the place of each number in their order, of several that are the same the first."""
    places = np.flatnonzero(ids >= 0)
    places = places[np.argsort(ids[places], kind="stable")]
    return np.asarray(places[np.diff(ids[places], prepend=-1) > 0])


def _concat_column(surveys: Surveys, name: str) -> NDArray[Any]:
    """Return a column of all shards, one after the other."""
    return np.concatenate([np.asarray(getattr(one, name)) for one in surveys.values()])


def _shard_keys(surveys: Surveys) -> PackedStrings:
    """Return the keys of shards; one with a NUL in it, which no source of ours has, is empty here."""
    return PackedStrings.of(b"" if b"\0" in key else key for one in surveys.values() for key in one.keys)
