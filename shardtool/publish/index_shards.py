"""Write sidecars and a dataset file for existing shards from any tool.

A sidecar that matches its shard is kept, with its metadata columns. Other sidecars are replaced only with
`--overwrite`.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, read_valid_dataset
from shardtool.dataset.find import find_damaged_file, find_dataset, is_local
from shardtool.dataset.scan import ShardScan, ShardScanTask, scan_shard
from shardtool.dataset.stored import recorded_dots
from shardtool.dataset.unfinished import require_finished
from shardtool.errors import InvalidRequest, OutputExists, format_list
from shardtool.execute import start_pool
from shardtool.messages import flag_text
from shardtool.names import list_names, to_output_name
from shardtool.pattern import DATASET_SUFFIX, ShardPattern, parse_pattern, sidecar_name
from shardtool.publish import index_checks
from shardtool.publish.publication import Publication
from shardtool.publish.totals import DatasetTotals, build_dataset_file
from shardtool.request.observer import Notes, Observer
from shardtool.request.results import IndexResult
from shardtool.request.run_record import RunRecord
from shardtool.storage.files import plain_sizes
from shardtool.storage.folders import open_folder
from shardtool.storage.paths import base_name
from shardtool.units import pluralize
from shardtool.values import DatasetLike, FeatureType, ValueType, __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.request.dataset_options import IndexOptions


def _find_pattern(dataset: DatasetLike, names: list[str]) -> ShardPattern:
    # A single name does not show which digits are the shard number, but the user's pattern does.
    with suppress(InvalidRequest):
        pattern = parse_pattern(list_names("the dataset", dataset, ""))
        if pattern.names is None and len(names) == 1:
            digits = names[0].removeprefix(pattern.prefix).removesuffix(pattern.suffix)
            return parse_pattern(f"{pattern.prefix}{{{digits}..{digits}}}{pattern.suffix}")
    return parse_pattern(names)


class _Indexer:
    """Writes the sidecars and the dataset file. The caller must hold the lock of `folder`."""

    def __init__(self, dataset: DatasetLike, options: IndexOptions, observer: Observer) -> None:
        self.options, self.observer = options, observer
        stored = self.dataset = index_checks.sort_as_listed(find_dataset(dataset))
        index_checks.check_format(stored)
        sizes = plain_sizes(stored.paths)
        if None in sizes:
            raise index_checks.missing_shard_error(stored.paths[sizes.index(None)])
        names = [shard.file_name for shard in stored.shards]
        if duplicates := [name for name, count in Counter(map(sidecar_name, names)).items() if count > 1]:
            raise InvalidRequest(stored.folder or ".", f"shards with the same sidecar name: {format_list(duplicates)}")
        self.pattern, self.size = _find_pattern(stored.argument, names), sum(filter(None, sizes))
        self.folder = open_folder(stored.folder if options.output is None else os.fspath(options.output))
        self.shards_folder = index_checks.get_subfolder(self.folder.path, stored.folders())
        index_checks.check_sidecar_names_free(self.folder, names, set() if self.shards_folder else {*names})
        file = stored.dataset_file or find_damaged_file(stored)
        self.dataset_file = base_name(file) if file else self.pattern.dataset_file
        self.publication = Publication(self.folder, self.dataset_file, old="keep")
        path = self.folder.full_path(self.dataset_file)
        data = index_checks.read_if_exists(path)
        if data is None:
            self.old = read_valid_dataset(stored.dataset_file or path)
            if self.old is None:
                require_finished(stored)
        else:
            self.old = index_checks.read_old_dataset(stored, path, data, overwrite=options.overwrite)
            if self.old is not None:
                overwrite = options.overwrite
                index_checks.check_listed_shards(self.old, stored, path, self.shards_folder, overwrite=overwrite)
        self.has_old_file = data is not None and self.old is not None
        self.dots = options.dots or (recorded_dots(stored) if self.old is None else self.old.run.dots)
        self.notes, self.kept = Notes(observer), set[int]()
        self.unrecognised: list[tuple[int, str]] = []
        self.differing: list[str] = []
        self.lost: set[str] = set()
        self.incomplete: dict[str, set[str]] = {}  # maps each new sidecar to the old columns that it lacks
        self.entries: dict[int, ShardEntry] = {}
        self.kinds: dict[int, Mapping[str, FeatureType]] = {}
        self.lists: set[str] = set()
        self.schemas: dict[int, dict[str, str]] = {}
        self.digests: list[int | None] = []

    @cached_property
    def totals(self) -> DatasetTotals:
        # Use this only after the workers have started, because NumPy starts threads, and threads prevent forking.
        from shardtool.entries.sample_table import FieldValues

        return DatasetTotals(FieldValues())

    @property
    def base(self) -> str:
        return self.dataset_file.removesuffix(DATASET_SUFFIX)

    def make_tasks(self) -> list[ShardScanTask]:
        self.observer.start(0, self.size, len(self.dataset.paths))
        return [ShardScanTask(path, self.options.checksum, self.dots) for path in self.dataset.paths]

    def add(self, number: int, scan: ShardScan) -> None:
        from shardtool.dataset.shard_index import scanned_index
        from shardtool.dataset.sidecar_schema import column_types, with_shard_column
        from shardtool.dataset.sidecar_write import encode_sidecar_table

        if scan.error is not None:
            raise scan.error
        index_checks.check_not_interleaved(scan)
        scanned, name = scanned_index(scan), self.dataset.shards[number].file_name
        new_index, data, where = scanned, None, self.folder.full_path(sidecar_name(name))
        if (existing_data := index_checks.read_if_exists(where)) is not None:
            comparison = index_checks.compare_sidecar(scan.path, scanned, where, existing_data)
            if not isinstance(comparison, index_checks.DifferingSidecar):
                new_index, data = comparison
            elif not self._may_replace(sidecar_name(name), comparison):
                return
        table, status = new_index.plain_table(), "written" if data is None else "kept"
        if data is None:
            data = encode_sidecar_table(table, new_index.facts)
            self.publication.replace_sidecars({name: data})
        else:
            self.kept.add(number)
        self.entries[number] = self.totals.add(new_index.facts, data, scanned.tally())
        self.schemas[number], self.kinds[number] = column_types(with_shard_column(table.schema)), scanned.kinds
        if existing_data is None and self.old is not None and (lost := {*self.old.schema} - {*self.schemas[number]}):
            self.incomplete[sidecar_name(name)] = lost
        self.lists |= {*scan.list_features()}
        self.digests.append(scan.digest)
        if scan.unrecognised:
            member = scan.unrecognised[0]
            self.unrecognised.append((len(scan.unrecognised), f"{name} at {member.offset:,}: {member.what}"))
        samples = self.entries[number].samples
        self.observer.advance(samples, scan.size, 1)
        self.observer.shard(name, status, samples, scan.size)

    def _may_replace(self, name: str, differing: index_checks.DifferingSidecar) -> bool:
        self.differing.append(f"{name} ({differing.found})")
        self.lost |= differing.lost
        if self.options.overwrite:
            self.notes.add(f"{name}: {differing.found}; its checksums and metadata were lost")
        return self.options.overwrite

    def finish(self) -> IndexResult:
        old, is_unchanged, count = self.old, False, len(self.dataset.shards)
        if old is not None and len(self.entries) == len(old.shards) == count:
            is_unchanged = all(
                index_checks.is_same_shard(old_entry, self.entries[number])
                for number, old_entry in enumerate(old.shards)
            )
        if self.has_old_file and not is_unchanged and not self.differing:
            self.differing.append(f"{self.dataset_file} (of other shards)")
        self._refuse_differing()
        shards = tuple(self.entries[number] for number in range(count))
        if is_unchanged and old is not None:  # without a new checksum, keep the old checksum
            shards = tuple(
                shard if shard.crc is not None else replace(shard, crc=old_entry.crc)
                for shard, old_entry in zip(shards, old.shards, strict=True)
            )
            if self.has_old_file and old.shards == shards:
                return self._make_result(shards)
        file = self._build_dataset_file(shards)
        if is_unchanged and old is not None:
            file = replace(
                old, shards=shards, field_bytes=file.field_bytes, schema=file.schema, shards_folder=file.shards_folder
            )
        elif self.kept:
            self.notes.add("unknown: class names, skipped samples, and how the dataset was created")
        if self.incomplete:
            columns = format_list(sorted(set[str]().union(*self.incomplete.values())))
            names = format_list([*self.incomplete], 3)
            self.notes.add(f"{names}: written without the columns {columns}, which shards lack")
        if self.unrecognised:
            counts, examples = zip(*self.unrecognised, strict=True)
            found = f"{pluralize(sum(counts), 'member')} outside of samples"
            self.notes.add(f"{found}, in {pluralize(len(examples), 'shard')}, such as {min(examples)}")
        self.publication.finish(file.encode())
        return self._make_result(shards)

    def _refuse_differing(self) -> None:
        if not self.differing or self.options.overwrite:
            return
        columns = f" and the columns {format_list(sorted(self.lost))}" if self.lost else ", metadata"
        where, found = self.folder.path or ".", f"files that do not match the shards: {format_list(self.differing)}"
        remedy = (
            f"Run `shardtool verify` to check the shards. {flag_text('overwrite')} recreates these files from the "
            f"shards, which loses checksums{columns}, and how the dataset was created."
        )
        raise OutputExists(where, found, expected="matching files, or none", remedy=remedy)

    def _build_dataset_file(self, shards: tuple[ShardEntry, ...]) -> DatasetFile:
        from shardtool.entries.sample_table import FieldValues

        totals = self.totals
        kinds = dict[str, FeatureType]()
        for _, shard_kinds in sorted(self.kinds.items(), reverse=True):  # types of earlier shards take precedence
            kinds |= shard_kinds
        numbers: dict[str, ValueType] = {name: kind for name, kind in kinds.items() if kind != "bytes"}
        totals.values = FieldValues(types=numbers, lists={name: kinds[name] for name in self.lists})
        totals.shards = [*shards]
        totals.schema = self._join_schemas()
        totals.digest = sum(digest or 0 for digest in self.digests)
        shard_format = self.dataset.shards[0].format
        options = {"options": {"dots": "last"}} if self.dots == "last" and shard_format == "tar" else {}
        record = RunRecord({"verb": "index", **options, "tool": f"shardtool {__version__}"})
        file = build_dataset_file(totals, self.pattern, (), record, shard_format)
        fingerprint = "" if None in self.digests else file.fingerprint
        return replace(file, name=to_output_name(self.base), fingerprint=fingerprint, shards_folder=self.shards_folder)

    def _join_schemas(self) -> dict[str, str]:
        from shardtool.dataset.sidecar_schema import merge_types

        columns, differences = dict[str, str](), dict[str, str]()
        for number, schema in sorted(self.schemas.items()):
            sidecar = sidecar_name(self.dataset.shards[number].file_name)
            for name, first_type, other_type in merge_types(columns, schema):
                differences.setdefault(name, f"{name!r} is {first_type}, but {other_type} in {sidecar}")
        if differences:
            self.notes.add(f"columns with different types in some sidecars: {format_list([*differences.values()])}")
        return columns

    def _make_result(self, shards: tuple[ShardEntry, ...]) -> IndexResult:
        path, samples = self.folder.full_path(self.dataset_file), sum(shard.samples for shard in shards)
        return IndexResult(path, len(shards), len(self.kept), samples, tuple(self.notes.texts))


def index_shards(dataset: DatasetLike, options: IndexOptions, observer: Observer) -> IndexResult:
    """Write sidecars and a dataset file for existing shards."""
    with start_pool(options, observer=observer, lazy=is_local(dataset)) as pool:
        indexer = _Indexer(dataset, options, observer)
        pool.start(len(indexer.dataset.paths))
        pool.check_access(indexer.dataset.paths)
        indexer.folder.create()
        with indexer.folder.lock(indexer.base):
            for number, scan in pool.map(scan_shard, indexer.make_tasks()):
                indexer.add(number, scan)
            if not options.columns_from:
                pool.close()
                return indexer.finish()
            from shardtool.publish.index_columns import add_columns

            result, notes, name = indexer.finish(), indexer.notes, indexer.dataset_file
            columns, changed = add_columns(
                indexer.folder, name, options.columns_from, pool, notes, overwrite=options.overwrite
            )
            kept = len(indexer.kept - changed)
            return replace(result, kept=kept, columns=columns, notes=tuple(notes.texts))
