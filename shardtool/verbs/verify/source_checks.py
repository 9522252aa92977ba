"""`verify --source`: compare the samples of a dataset with its source, by key."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.dataset.expand import recorded_range
from shardtool.dataset.find import find_dataset
from shardtool.dataset.scan import ShardScan, decode_name
from shardtool.dataset.shard_index import part_offsets
from shardtool.entries.sample_table import field_ids, match_ids
from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, ShardError, format_list, printable
from shardtool.messages import option_text
from shardtool.names import to_bytes
from shardtool.pattern import parse_pattern
from shardtool.shard_samples import INLINE, URL
from shardtool.skipped import has_same_content, is_skipped_key
from shardtool.source.checksums import inline_checksums, source_checksums
from shardtool.source.folder import FolderSource
from shardtool.source.recorded_run import (
    RecordedSource,
    has_appended_sources,
    recorded_run,
    table_folders,
    verify_options_in_errors,
)
from shardtool.storage.paths import join
from shardtool.table.keys import find_positions
from shardtool.units import pluralize
from shardtool.verbs.verify.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.execute.pool import Pool
    from shardtool.request.dataset_options import VerifyOptions
    from shardtool.request.observer import Observer
    from shardtool.verbs.verify.verified_dataset import VerifiedDataset

    Rows = NDArray[np.int64]
    Scans = Mapping[int, ShardScan]


class SourceComparison:
    """Compares a dataset with its source. Samples appended from other sources are not compared."""

    def __init__(self, subject: VerifiedDataset, options: VerifyOptions, observer: Observer) -> None:
        self.subject, self.observer = subject, observer
        recorded = recorded_run(subject.file, options, table_folders(options.source, [subject.folder]))
        outputs = [parse_pattern([join(subject.folder, case.name) for case in subject.cases])]
        # Exclude the dataset's shards from the source, including shards that the user did not pass.
        if subject.file is not None and (pattern := recorded_range(subject.file)) is not None:
            outputs.append(replace(pattern, folder=outputs[0].folder))
        self._source_errors = partial(verify_options_in_errors, options.source, options.join, f"{self._source_advice}.")
        with self._source_errors():
            self.recorded_source = RecordedSource(recorded, [subject.dataset], options.source, outputs)
        self.recorded, self._source, self.findings = recorded, options.source, subject.findings

    def run(self, all_scans: Scans, pool: Pool) -> None:
        """Compare the scanned shards with the source, and add findings."""
        recorded, unchecked = self.recorded, self.findings.unchecked
        if recorded.map:
            unchecked.append(f"the source: {option_text('map')} created the samples, and is not run again")
            self._add_uncompared(all_scans)
            return
        with self._source_errors():
            listed, _ = self.recorded_source.list_samples(pool, self.observer)
        self.recorded = recorded = self.recorded_source.run
        ambiguous = any(row.code == "duplicate" and not has_same_content(row) for row in listed.skipped)
        if recorded.selecting_options and ambiguous:
            unchecked.append(f"the source: several samples have the same key, and {recorded.selection_problem}")
            self._add_uncompared(all_scans)
            return
        unchecked += recorded.unchecked()
        self._compare(listed.entries, all_scans, pool)

    def _compare(self, entries: SampleTable, all_scans: Scans, pool: Pool) -> None:
        recorded, unchecked = self.recorded, self.findings.unchecked
        scans = self._first_shards(all_scans)
        if recorded.has_added_fields:
            unchecked.append(f"fields from other datasets, which {option_text('add')} added")
        if not scans:
            return
        positions = find_positions(_shard_keys(scans), entries.keys)
        others = {number: all_scans[number] for number in all_scans if number not in scans}
        appended = find_positions(_shard_keys(others), entries.keys)
        if np.any(appended >= 0) and not np.any(positions >= 0):
            unchecked.append("the source: it contains only appended samples, which are not compared")
            self._add_uncompared(all_scans)
            return
        if not np.any(positions >= 0):
            self._check_is_not_dataset()
        self.findings.checked.append("the source")
        if recorded.without_table is not None:
            self.findings.checked.append(f"with {option_text('join')} {printable(recorded.table)}")
        self.findings.uncompared += recorded.made_fields
        if missing := self.recorded_source.missing_splits():
            unchecked.append(missing)
        elif not all(case.is_readable for case in self.subject.cases):
            unchecked.append("whether the dataset contains all samples of the source: some shards cannot be read")
        elif not recorded.selecting_options and (self.subject.file is None or self.subject.has_all_shards):
            self._report_missing(entries, np.concatenate((positions, appended)))
        self._report_extra(scans, positions)
        if recorded.changes_payloads:
            changed = f"{option_text('resize')} or {option_text('encode')} changed them"
            unchecked.append(f"payloads against the source: {changed}")
            self._add_uncompared(scans)
            return
        self._compare_fields(entries, scans, positions, pool)

    def _add_uncompared(self, scans: Scans) -> None:
        self.findings.uncompared += sorted({decode_name(name) for scan in scans.values() for name in scan.names})

    def _check_is_not_dataset(self) -> None:
        if not isinstance(self.recorded_source.source, FolderSource) or not isinstance(self._source, str | os.PathLike):
            return
        folder = os.fspath(self._source)
        try:
            is_dataset = find_dataset(folder).has_own_file
        except ShardError:
            return
        if is_dataset:
            raise InvalidRequest(folder, "a dataset", expected="a folder of samples", remedy=f"{self._source_advice}.")

    @property
    def _source_advice(self) -> str:
        run = self.subject.file.run if self.subject.file else None
        details = run and run.source and f". The dataset file records: {run.verb} {format_list(run.source.split(', '))}"
        return f"Pass the source of the dataset to {option_text('source')}{details or ''}"

    def _first_shards(self, scans: Scans) -> Scans:
        file, numbers = self.subject.file, sorted(scans)
        if file is not None and has_appended_sources(file):
            before, later = file.appends[0], pluralize(len(file.shards) - file.appends[0], "shard")
            compared = f"{option_text('source')} is compared with the first {pluralize(before, 'shard')}"
            self.findings.unchecked.append(f"the source of {later} with appended samples: {compared}")
            names = {entry.name for entry in file.shards[:before]}
            numbers = [number for number in numbers if self.subject.cases[number].name in names]
        return {number: scans[number] for number in numbers}

    def _add(self, code: str, total: int, findings: Iterator[Finding]) -> None:
        self.findings.add_first(code, len(self.subject.cases), total, findings)

    def _report_missing(self, entries: SampleTable, positions: Rows) -> None:
        is_present = np.zeros(len(entries), bool)
        is_present[positions[positions >= 0]] = True
        skipped, unread = self.recorded_source.skipped_keys()
        if unread:
            self.findings.unchecked.append(f"skipped samples: the list of {format_list(unread)} cannot be read")
        absent = np.flatnonzero(~is_present).tolist()
        missing = [index for index in absent if not is_skipped_key(entries.keys[index], skipped)]
        parts = ("source-missing", self.subject.name, "not in the dataset", "a sample, as in the source")
        findings = (Finding(*parts, key=decode_name(entries.keys[index])) for index in missing)
        self._add("source-missing", len(missing), findings)

    def _report_extra(self, scans: Scans, positions: Rows) -> None:
        extra, parts = np.flatnonzero(positions < 0).tolist(), ("not in the source", "no such sample")
        findings = (
            Finding("source-extra", name, *parts, scan.starts[row], decode_name(scan.keys[row]))
            for name, scan, row in (self._locate(scans, "keys", index) for index in extra)
        )
        self._add("source-extra", len(extra), findings)

    def _compare_fields(self, entries: SampleTable, scans: Scans, positions: Rows, pool: Pool) -> None:
        shards, fields = [*scans.values()], [*map(to_bytes, entries.fields)]
        names = [name for shard in shards for name in shard.names]
        added = {*names}.difference(fields) if self.recorded.has_added_fields else set[bytes]()
        self.findings.uncompared += sorted(map(decode_name, added))
        ignored = {*map(to_bytes, self.recorded.made_fields), *added}
        all_names = dict.fromkeys([*fields, *names])
        name_ids = {name: -1 if name in ignored else index for index, name in enumerate(all_names)}
        theirs = field_ids(np.arange(len(entries)), entries.counts(), entries.rows.code, fields, name_ids)
        ends = part_offsets([len(shard.names) for shard in shards])
        codes = np.repeat(ends[:-1], [len(shard.codes) for shard in shards]) + _concat_column(scans, "codes")
        ours = field_ids(positions, _concat_column(scans, "counts"), codes, names, name_ids)
        shard_rows, source_rows, extra, missing = match_ids(ours, theirs)
        # Report a missing field only if the dataset contains its sample.
        missing = missing[np.isin(entries.samples_of(missing), positions)]
        problem, expected = "the field is missing in the dataset", "the field, as in the source"
        keys = (decode_name(entries.keys[int(entries.samples_of(row))]) for row in missing)
        missing_names = (entries.fields[int(code)] for code in entries.rows.code[missing])
        findings = (
            Finding("source-missing", self.subject.name, problem, expected, key=key, field=name)
            for key, name in zip(keys, missing_names, strict=True)
        )
        self._add("source-missing", len(missing), findings)
        if self.recorded.verb in ("create", "reshard"):
            problem = "the field is not in the source"
            findings = (self._build_finding("source-extra", scans, int(row), problem) for row in extra)
            self._add("source-extra", len(extra), findings)
        else:
            problem = "fields that are not in the source: the dataset file does not record how it was created"
            self.findings.unchecked.append(problem)
        self._compare_payloads(entries, scans, (shard_rows, source_rows), pool)

    def _compare_payloads(self, entries: SampleTable, scans: Scans, rows: tuple[Rows, Rows], pool: Pool) -> None:
        shard_rows, source_rows = rows
        lengths, crcs = _concat_column(scans, "lengths"), _concat_column(scans, "crcs")
        as_numbers = any(scan.format == "tfrecord" for scan in scans.values())
        sizes, sums = inline_checksums(entries, source_rows, as_numbers=as_numbers)
        fetched = entries.rows.kind[source_rows] == URL
        if fetched.any():
            self.findings.unchecked.append(f"{pluralize(int(fetched.sum()), 'file')} of URLs against the web")
            codes = np.unique(entries.rows.code[source_rows[fetched]])
            self.findings.uncompared += [entries.fields[code] for code in codes]
        size_differs = (lengths[shard_rows] != sizes) & ~fetched
        read = np.flatnonzero(~size_differs & ~fetched & (entries.rows.kind[source_rows] != INLINE))
        sums[read] = source_checksums(self.recorded_source.source, entries, source_rows[read], pool)
        different = np.flatnonzero(size_differs | ((sums != crcs[shard_rows]) & ~fetched))

        def findings() -> Iterator[Finding]:
            for index in different.tolist():
                problem = f"the checksum {int(crcs[shard_rows[index]]):08x}"
                expected = "the checksum of the file in the source"
                if size_differs[index]:
                    problem = f"{int(lengths[shard_rows[index]]):,} bytes"
                    expected = f"{int(sizes[index]):,}, as in the source"
                yield self._build_finding("source-differs", scans, int(shard_rows[index]), problem, expected)

        self._add("source-differs", len(different), findings())

    def _build_finding(self, code: str, scans: Scans, row: int, found: str, expected: str = "") -> Finding:
        name, scan, row = self._locate(scans, "codes", row)
        sample = int(np.searchsorted(np.cumsum(np.frombuffer(scan.counts, np.uint32)), row, "right"))
        key, field = decode_name(scan.keys[sample]), decode_name(scan.names[scan.codes[row]])
        return Finding(code, name, found, expected, scan.offsets[row], key, field)

    def _locate(self, scans: Scans, column: str, index: int) -> tuple[str, ShardScan, int]:
        for number, scan in scans.items():
            if index < (count := len(getattr(scan, column))):
                return self.subject.cases[number].name, scan, index
            index -= count
        raise IndexError(index)


def _concat_column(scans: Scans, name: str) -> NDArray[Any]:
    return np.concatenate([np.asarray(getattr(scan, name)) for scan in scans.values()])


def _shard_keys(scans: Scans) -> PackedStrings:
    return PackedStrings.of(b"" if b"\0" in key else key for scan in scans.values() for key in scan.keys)
