"""`verify --repair`: rebuild missing and damaged files from verified data.

- A missing, damaged or stale sidecar is rebuilt if its shard matches the checksum in the dataset file.
- A missing or damaged dataset file is rebuilt if every shard matches the checksum in its sidecar.
- Shards are rebuilt only from the source: `create` runs again with the recorded options and the user's `--map` and
  `--root`. New shards replace old shards only if they match the dataset file exactly.

Sidecars are replaced one by one, then the dataset file. Shards are replaced together. The next `verify --repair`
finishes an interrupted replacement.
"""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import DatasetFile, read_valid_dataset
from shardtool.dataset.find import find_dataset
from shardtool.errors import InvalidRequest, OutputFailed, ShardError, format_list, printable
from shardtool.fingerprint import crc32c
from shardtool.format.tfrecord_write import encode_number
from shardtool.messages import flag_text, option_text, recreate_hint
from shardtool.pattern import DATASET_SUFFIX, is_shard_name, parse_pattern
from shardtool.publish.publication import Publication
from shardtool.request.create_options import CreateOptions
from shardtool.request.dataset_options import IndexOptions, VerifyOptions
from shardtool.request.observer import Observer
from shardtool.request.output_options import WorkerOptions
from shardtool.storage.paths import base_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.dataset.stored import StoredDataset
    from shardtool.values import DatasetLike, OnError
    from shardtool.verbs.verify.verified_dataset import ShardCheck, VerifiedDataset


SIDECAR_CODES = frozenset(
    {"sidecar-missing", "sidecar-size", "sidecar-checksum", "sidecar-damaged", "sidecar-stale", "index-differs"}
)

SHARD_CODES = frozenset({
    "shard-missing", "shard-unreadable", "shard-size", "shard-checksum", "payload-checksum", "shard-damaged",
    "padding-not-zero",
})  # fmt: skip
DATASET_FILE_CODES = frozenset({"dataset-file-missing", "dataset-file-damaged"})
DATASET_CODES = frozenset({"dataset-incomplete", "numbering-gap", "sidecar-extra", "shard-extra"})


def _why_not_repeatable(file: DatasetFile) -> str:
    verb, which = file.run.verb, ""
    if file.appends:
        overwrite, append = flag_text("overwrite"), flag_text("append")
        return (
            "samples were appended to the dataset, so no single command recreates its shards. Restore the files "
            f"from a copy, or recreate the dataset: the first command with {overwrite}, then each {append}"
        )
    if file.run.removed:
        resume = f"rerun the original command with {flag_text('resume')}, which writes other shards"
        return f"samples were removed from the dataset. Restore the files from a copy, or {resume}"
    if verb == "index":
        return "another tool wrote the shards: restore them from a copy"
    if verb != "create":
        which = f"created by {printable(verb)[:80]}"
    elif file.run.split:
        which = "of a split"
    elif file.run.options.get("url"):
        which = "with files from URLs, which may have changed"
    elif name := next((name for name in ("join", "keys_from") if file.run.options.get(name)), ""):
        which = f"created with {option_text(name)} {printable(str(file.run.options[name]))[:80]}"
    again = f"rerun the original command with {flag_text('resume')}"
    return which and f"shards {which}: {again}"


def _files_to_rebuild(file: DatasetFile, codes: Mapping[str, Collection[str]]) -> list[str]:
    names = []
    for entry in file.shards:
        if SHARD_CODES.intersection(codes.get(entry.name, ())):
            names.append(entry.name)
        elif SIDECAR_CODES.intersection(codes.get(entry.sidecar, ())):
            names.append(entry.sidecar)
    return names


def _repeat_options(file: DatasetFile, options: VerifyOptions) -> CreateOptions:
    # Never run a `map` function only because the dataset file names it.
    from shardtool.source.recorded_run import recorded_run

    run, function = recorded_run(file, options), options.map
    if not isinstance(run.options, CreateOptions):
        raise TypeError(run.verb)
    if run.map and function is None:
        found = f"samples created by {run.map}; code is never run because a dataset file names it"
        expected = f"{option_text('map')}, if you trust that code"
        raise InvalidRequest(option_text("source"), found, expected=expected, remedy="Nothing was changed.")
    if function is not None and function != run.map:
        expected = f"{run.map}, as recorded" if run.map else "none, as recorded"
        raise InvalidRequest(option_text("map"), str(function), expected=expected, remedy="Nothing was changed.")
    on_error: OnError = "skip" if file.skipped else "raise"
    return replace(run.options, map=function, resume=True, on_error=on_error, **asdict(options.pick(WorkerOptions)))


def _repeat_output(file: DatasetFile, dataset: StoredDataset, codes: Collection[str]) -> list[str] | str:
    if extra := {"shard-extra", "sidecar-extra"}.intersection(codes):
        problem = f"files that the dataset file does not list ({format_list(sorted(extra))})"
        expected = "none, because they would be deleted"
        raise InvalidRequest(option_text("repair"), problem, expected=expected, remedy="Move them away first.")
    output: list[str] | str = os.path.join(dataset.folder, file.pattern)
    if "{" not in file.pattern:
        output = [os.path.join(dataset.folder, entry.name) for entry in file.shards]
    base = parse_pattern(output).base
    file_base = os.path.basename(dataset.dataset_file or "").removesuffix(DATASET_SUFFIX)
    if {base, file.name} != {file_base}:
        problem = f"the dataset file is named {file_base}, but records the name {file.name}"
        remedy = "Rename the dataset file to its original name."
        raise InvalidRequest(option_text("repair"), problem, expected=f"{base}, like its shards", remedy=remedy)
    return output


class Repair:
    """Repair a dataset that has findings."""

    def __init__(self, subject: VerifiedDataset, options: VerifyOptions) -> None:
        self.subject, self.options = subject, options
        self.codes = {code for code, count in subject.findings.counts.items() if count}
        self.by_file: dict[str, set[str]] = {}
        for _, finding in subject.findings.listed:
            self.by_file.setdefault(finding.file, set()).add(finding.code)
        from shardtool.storage.folders import open_folder

        self.folder = open_folder(subject.dataset.folder)
        self.repaired: list[str] = []
        self.unresolved: list[str] = []

    def run(self) -> None:
        """Rebuild all files that can be rebuilt."""
        file, files = self.subject.file, self.codes & (SIDECAR_CODES | SHARD_CODES)
        obstacle = _why_not_repeatable(file) if file is not None and files else ""
        if self.options.source is not None and file is not None and files:
            if not obstacle:
                self._recreate_shards(file)
                return
            # Metadata columns cannot be rebuilt from the shards.
            if any(name[:2] != "__" for name in file.schema):
                self._add_unresolved(obstacle)
                return
        if self.codes & SHARD_CODES:
            lost = "without a valid dataset file, the options that created them are unknown"
            advice = f"{lost}. Rerun the original command with {flag_text('resume')}"
            if self.options.source is None:
                advice = f"they can only be rebuilt from their source ({option_text('source')})"
            self._add_unresolved(obstacle or f"damaged shards: {advice}")
        if self.subject.file is not None and self.codes & SIDECAR_CODES:
            self._rebuild_sidecars(self.subject.file)
        elif self.codes & DATASET_FILE_CODES:
            self._rebuild_dataset_file()

    def _add_unresolved(self, what: str) -> None:
        self.unresolved.append(f"repair: {what}")

    def _rebuild_sidecars(self, file: DatasetFile) -> None:
        verified: list[ShardCheck] = []
        for case in self.subject.cases:
            if self.by_file.get(case.sidecar, set()) & SIDECAR_CODES:
                if case.is_verified and case.examined and case.entry and case.examined.crc == case.entry.crc:
                    verified.append(case)
                else:
                    self._add_unresolved(f"{case.sidecar}: its shard is not verified")
        if not verified:
            return
        path = self.subject.dataset.dataset_file or ""
        with self.folder.lock(base_name(path).removesuffix(DATASET_SUFFIX)):
            if read_valid_dataset(path) != file:
                raise OutputFailed(path, "changed while it was verified", remedy="Run the same command again.")
            entries = {shard.name: shard for shard in file.shards}
            lost_columns: set[str] = set()
            publication = Publication(self.folder, base_name(path), old="keep")
            for case in verified:
                data, columns = self._build_sidecar(case, file)
                lost_columns |= {*file.schema} - {*columns}
                publication.replace_sidecars({case.name: data})
                entries[case.name] = replace(entries[case.name], sidecar_size=len(data), sidecar_crc=crc32c(data))
            publication.finish(replace(file, shards=tuple(entries[shard.name] for shard in file.shards)).encode())
        self.repaired.append(f"{format_list([case.sidecar for case in verified])}: rebuilt from the shard")
        if lost_columns:
            self.repaired[-1] += f"; without the columns {format_list(sorted(lost_columns))}, which shards lack"

    def _build_sidecar(self, case: ShardCheck, file: DatasetFile) -> tuple[bytes, list[str]]:
        from shardtool.dataset.shard_index import scanned_index
        from shardtool.dataset.sidecar_schema import SHARD_COLUMN
        from shardtool.dataset.sidecar_write import encode_sidecar_table

        scan = case.shard.scan(checksum=True)
        if scan.error is not None or case.entry is None or scan.crc != case.entry.crc:
            raise OutputFailed(case.shard.path, "changed while it was verified", remedy="Run the same command again.")
        index = _with_labels(scanned_index(scan), file)
        return encode_sidecar_table(index.plain_table(), index.facts), [*index.schema.names, SHARD_COLUMN.name]

    def _rebuild_dataset_file(self) -> None:
        unverified = [case.name for case in self.subject.cases if not case.is_verified]
        if not self.subject.cases:
            self._add_unresolved(f"the dataset file: it lists no shards. {recreate_hint()}")
            return
        if unverified or self.codes & (SHARD_CODES | SIDECAR_CODES | DATASET_CODES):
            reason = f"{format_list(unverified, 3)} is not verified" if unverified else "there are other findings"
            if "dataset-incomplete" in self.codes:
                reason = f"shards are missing. Rerun the original command with {flag_text('resume')}"
            self._add_unresolved(f"the dataset file: {reason}")
            return
        from shardtool.publish.index_shards import index_shards

        dataset = self.subject.dataset.dataset_file or self.subject.dataset.argument
        if {*find_dataset(dataset).paths} - {*self.subject.dataset.paths}:
            self._add_unresolved("the dataset file: only some of its shards were given. Name the dataset file")
            return
        try:
            overwrite, dots = "dataset-file-damaged" in self.codes, self.subject.dataset.shards[0].dots
            if unlisted := self._find_unlisted_shards():
                remedy = f"Move them away, or run `shardtool index` on all shards with {flag_text('overwrite')}"
                self._add_unresolved(f"the dataset file: it does not list {format_list(unlisted, 3)}. {remedy}")
                return
            options = self.options.pick(IndexOptions, checksum=True, dots=dots, overwrite=overwrite)
            result = index_shards(dataset, options, Observer())
        except ShardError as error:
            self._add_unresolved(f"the dataset file: {error}")
            return
        lost = "recorded options, skipped samples and class names are lost"
        self.repaired.append(f"{result.dataset_file}: rebuilt from shards and sidecars; {lost}")

    def _find_unlisted_shards(self) -> list[str]:
        # A damaged dataset file may list only some shards, but the new file must list all.
        paths = self.subject.dataset.paths
        pattern, listed = parse_pattern([*paths]), {*map(base_name, paths)}
        names = filter(is_shard_name, self.folder.names())
        return [name for name in names if pattern.owns(name) and name not in listed]

    def _recreate_shards(self, file: DatasetFile) -> None:
        from shardtool.pack.pack_dataset import pack_dataset

        damaged = _files_to_rebuild(file, self.by_file)
        try:
            options = _repeat_options(file, self.options)
            output = _repeat_output(file, self.subject.dataset, self.codes)
            self._check_plan(file, output, options)
            pack_dataset(self.options.source, output, options, Observer(), repaired_dataset=file)
        except ShardError as error:
            self._add_unresolved(str(error))
            return
        source = self.options.source
        sources = format_list([*map(str, source)]) if isinstance(source, list | tuple) else source
        self.repaired.append(f"{format_list(damaged)}: recreated from {sources}")

    def _check_plan(self, file: DatasetFile, output: DatasetLike, options: CreateOptions) -> None:
        from shardtool.pack.pack_dataset import pack_dataset

        plan = pack_dataset(self.options.source, output, replace(options, dry_run=True), Observer())
        if options.make_transform() is None:
            planned, recorded = (
                [(entry.name, entry.samples, entry.size, entry.first_key, entry.last_key) for entry in entries]
                for entries in (plan.planned, file.shards)
            )
            if planned != recorded:
                found, remedy = "samples that differ from the dataset's", "Nothing was changed."
                raise InvalidRequest(option_text("source"), found, expected="the same samples", remedy=remedy)


def _with_labels(index: ShardIndex, file: DatasetFile) -> ShardIndex:
    import numpy as np
    import pyarrow as pa

    from shardtool.dataset.sidecar_schema import SIDECAR_SCHEMA
    from shardtool.entries.arrow import number_array

    columns: dict[str, pa.Array] = {}
    for name in [field for field in file.schema if field in file.classes and field in index.names]:
        texts = [b"%d" % number for number in range(len(file.classes[name]))]
        payloads = texts if file.format == "tar" else [encode_number(text, "int64") for text in texts]
        numbers = {(crc32c(payload), len(payload)): number for number, payload in enumerate(payloads)}
        rows = np.flatnonzero(index.codes == index.names.index(name))
        crcs = [] if index.crcs is None else index.crcs[rows].tolist()
        labels = [numbers.get(payload_id, -1) for payload_id in zip(crcs, index.lengths[rows].tolist(), strict=False)]
        if len(labels) == len(index) and min(labels, default=0) >= 0 and file.schema[name] == "int64":
            columns[name] = number_array(np.array(labels, np.int64))
    metadata = pa.Table.from_arrays([*columns.values()], names=[*columns])
    return replace(index, metadata=metadata, schema=pa.schema([*SIDECAR_SCHEMA, *metadata.schema]))
