"""`index`: write sidecars and a dataset file for existing shards of any tool.

A sidecar that agrees with the scan of its shard stays, with the checksums and metadata that only it contains. A
missing sidecar is written. A wrong one is replaced only with `--overwrite`. Shards never change.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, read_valid_dataset
from shardtool.dataset.find import damaged_file, find_dataset
from shardtool.dataset.scan import ShardScan, ShardScanTask, index_text, scan_shard
from shardtool.dataset.stored import recorded_dots
from shardtool.dataset.unfinished import require_finished
from shardtool.errors import InvalidRequest, OutputExists, format_list
from shardtool.execute import start_pool
from shardtool.messages import flag_text
from shardtool.names import to_output_name
from shardtool.pattern import DATASET_SUFFIX, parse_pattern, sidecar_name
from shardtool.publish.totals import DatasetTotals
from shardtool.request.dataset_options import IndexOptions
from shardtool.request.observer import Notes, Observer
from shardtool.request.results import IndexResult
from shardtool.request.run_record import RunRecord
from shardtool.request.verb_call import accepts_options
from shardtool.storage.folders import open_folder
from shardtool.storage.lookup import plain_sizes
from shardtool.storage.paths import base_name
from shardtool.units import pluralize
from shardtool.values import DatasetLike, FeatureType, ValueType, __version__
from shardtool.verbs.index.checks import (
    check_format,
    check_listed_shards,
    check_not_interleaved,
    check_rivals,
    get_subfolder,
    is_same_shard,
    missing_shard_error,
    read_if_exists,
    read_old_dataset,
    sort_as_listed,
)
from shardtool.verbs.index.compare import DifferingSidecar, compare_sidecar

if TYPE_CHECKING:
    from collections.abc import Mapping


class Indexer:
    """Shards to index, and the index of them, which is written under the lock of `folder`.

    Args:
        dataset: What the user named.
        options: How to index them.
        observer: Gets progress and notes.

    Attributes:
        dataset: The shards.
        pattern: Their pattern.
        size: Their bytes.
        folder: The folder of the sidecars and the dataset file.
        shards_folder: The way from there down to the shards; empty: the same folder.
        dataset_file: The name of the dataset file.
        old: What a dataset file said of them so far; None where there is none, or it may be replaced.
        own: Whether that is the dataset file at this very place.
        dots: Where keys end in members' names: as was asked for, or as the dataset file or the sidecars show.

    Raises:
        InvalidRequest: There are no such shards, they are compressed, lie where no dataset file can list them, or are
            not all that their run was to write.
        CorruptShard: A shard is not there, or no plain file.
        OutputExists: Other shards own these names, or there is a dataset file that may not be replaced.
    """

    def __init__(self, dataset: DatasetLike, options: IndexOptions, observer: Observer) -> None:
        from shardtool.entries.sample_table import FieldValues  # NumPy: once workers are forked

        self.options, self.observer = options, observer
        found = self.dataset = sort_as_listed(find_dataset(dataset))
        check_format(found)
        sizes = plain_sizes(found.paths)
        if None in sizes:
            raise missing_shard_error(found.paths[sizes.index(None)])
        names = [shard.file_name for shard in found.shards]
        if twice := [name for name, count in Counter(map(sidecar_name, names)).items() if count > 1]:
            raise InvalidRequest(found.folder or ".", f"shards that want the same sidecar: {format_list(twice)}")
        self.pattern, self.size = parse_pattern(names), sum(filter(None, sizes))
        self.folder = open_folder(found.folder if options.output is None else os.fspath(options.output))
        self.shards_folder = get_subfolder(self.folder.path, found.folders())
        check_rivals(self.folder, names, set() if self.shards_folder else {*names})
        file = found.dataset_file or damaged_file(found)
        self.dataset_file = base_name(file) if file else self.pattern.dataset_file
        path = self.folder.full_path(self.dataset_file)
        data = read_if_exists(path)
        if data is None:
            self.old = read_valid_dataset(found.dataset_file or path)  # where `output` is elsewhere
            if self.old is None:
                require_finished(found)
        else:
            self.old = read_old_dataset(found, path, data, overwrite=options.overwrite)
            if self.old is not None:
                check_listed_shards(self.old, found, path, self.shards_folder, overwrite=options.overwrite)
        self.own = data is not None and self.old is not None
        self.dots = options.dots or (recorded_dots(found) if self.old is None else self.old.made.dots)
        self.notes, self.totals, self.kept = Notes(observer), DatasetTotals(FieldValues()), 0
        self.odd: list[tuple[int, str]] = []  # how many members of a shard are no part of a sample, and the first one
        self.wrong: list[str] = []
        self.lost: set[str] = set()
        self.entries: dict[int, ShardEntry] = {}
        self.kinds: dict[int, Mapping[str, FeatureType]] = {}
        self.lists: set[str] = set()
        self.schemas: dict[int, dict[str, str]] = {}
        self.digests: list[int | None] = []

    @property
    def base(self) -> str:
        """The name of the dataset file without its ending."""
        return self.dataset_file.removesuffix(DATASET_SUFFIX)

    def tasks(self) -> list[ShardScanTask]:
        """Return what the workers do, a task per shard."""
        self.observer.start(0, self.size, len(self.dataset.paths))
        return [ShardScanTask(path, self.options.checksum, self.dots) for path in self.dataset.paths]

    def add(self, number: int, found: ShardScan) -> None:
        """Write a shard's sidecar, unless the one that is there is right, or wrong and to be kept.

        Raises:
            CorruptShard: The shard is damaged.
            InvalidRequest: The fields of a sample lie apart in it.
            OutputExists: A sidecar cannot be read.
            OutputFailed: The sidecar cannot be written.
        """
        from shardtool.dataset.shard_index import scanned_index
        from shardtool.dataset.sidecar_schema import column_types, with_shard_column
        from shardtool.dataset.sidecar_write import encode_sidecar_table

        if found.error is not None:
            raise found.error
        check_not_interleaved(found)
        walked, name = scanned_index(found), self.dataset.shards[number].file_name
        one, data, where = walked, None, self.folder.full_path(sidecar_name(name))
        if (there := read_if_exists(where)) is not None:
            known = compare_sidecar(found.path, walked, where, there)
            if not isinstance(known, DifferingSidecar):
                one, data = known
            elif not self._may_replace(sidecar_name(name), known):
                return
        table, done = one.plain_table(), "written" if data is None else "kept"
        if data is None:
            data = encode_sidecar_table(table, one.fact)
            self._publish(sidecar_name(name), data)
        else:
            self.kept += 1
        self.entries[number] = self.totals.add(one.fact, data, walked.tally())
        self.schemas[number], self.kinds[number] = column_types(with_shard_column(table.schema)), walked.kinds
        self.lists |= {index_text(found.names[at]) for at, one in found.unlike.items() if one.kind == found.kinds[at]}
        self.digests.append(found.digest)
        if found.odd:
            odd = found.odd[0]
            self.odd.append((len(found.odd), f"{name} at {odd.offset:,}: {odd.what}"))
        samples = self.entries[number].samples
        self.observer.advance(samples, found.size, 1)
        self.observer.shard(name, done, samples, found.size)

    def _may_replace(self, name: str, wrong: DifferingSidecar) -> bool:
        """Return whether a wrong sidecar is to be replaced; `finish` refuses, once all that is wrong is known."""
        self.wrong.append(f"{name} ({wrong.found})")
        self.lost |= wrong.lost
        if self.options.overwrite:
            self.notes.add(f"{name}: {wrong.found}, so what only it knew is lost: checksums and metadata")
        return self.options.overwrite

    def finish(self) -> IndexResult:
        """Write the dataset file, unless the one that is there is right.

        Raises:
            OutputExists: There are files that are wrong, and the user did not ask to replace them.
            OutputFailed: It cannot be written.
        """
        old, same, count = self.old, False, len(self.dataset.shards)
        if old is not None and len(self.entries) == len(old.shards) == count:
            same = all(is_same_shard(before, self.entries[at]) for at, before in enumerate(old.shards))
        if self.own and not same and not self.wrong:
            self.wrong.append(f"{self.dataset_file} (of other shards)")
        self._refuse_wrong()
        shards = tuple(self.entries[number] for number in range(count))
        if same and old is not None:  # what it says of the shards stays a claim, which `verify` holds them to
            shards = tuple(
                one if one.crc is not None else replace(one, crc=before.crc)
                for one, before in zip(shards, old.shards, strict=True)
            )
            if self.own and old.shards == shards:
                return self._result(shards)
        file = self._dataset_file(shards)
        if same and old is not None:  # the shards are the ones that it lists
            known = replace(old, shards=shards, field_bytes=file.field_bytes, schema=file.schema)
            file = replace(known, shards_folder=file.shards_folder)
        elif self.kept:  # sidecars of a run, whose dataset file is gone
            self.notes.add("how the dataset was made, what was skipped and class names are not known any more")
        if self.odd:
            counts, places = zip(*self.odd, strict=True)
            found = f"{pluralize(sum(counts), 'member')} no part of a sample"
            self.notes.add(f"{found}, in {pluralize(len(places), 'shard')}, such as {min(places)}")
        self._publish(self.dataset_file, file.encode())
        return self._result(shards)

    def _refuse_wrong(self) -> None:
        """Refuse to replace what is wrong, unless the user asked for that."""
        if not self.wrong or self.options.overwrite:
            return
        columns = f" and the columns {format_list(sorted(self.lost))}" if self.lost else ", metadata"
        where, found = self.folder.path or ".", f"not what the shards hold: {format_list(self.wrong)}"
        remedy = (
            f"{flag_text('overwrite')} makes them again from the shards; what only they know is lost then: checksums"
            f"{columns}, how the dataset was made. `shardtool verify` shows whether the shards are right."
        )
        raise OutputExists(where, found, expected="right ones, or none", remedy=remedy)

    def _dataset_file(self, shards: tuple[ShardEntry, ...]) -> DatasetFile:
        """Return the dataset file of shards of which nothing else is known."""
        from shardtool.entries.sample_table import FieldValues
        from shardtool.publish.totals import build_dataset_file

        totals = self.totals
        kinds = {name: kind for _, known in sorted(self.kinds.items(), reverse=True) for name, kind in known.items()}
        numbers: dict[str, ValueType] = {name: kind for name, kind in kinds.items() if kind != "bytes"}
        totals.values = FieldValues(types=numbers, lists={name: kinds[name] for name in self.lists})
        totals.shards, totals.schema, totals.digest = [*shards], self._schema(), sum(one or 0 for one in self.digests)
        shard_format = self.dataset.shards[0].format
        asked = {"options": {"dots": "last"}} if self.dots == "last" and shard_format == "tar" else {}
        made = RunRecord({"verb": "index", **asked, "tool": f"shardtool {__version__}"})
        file = build_dataset_file(totals, self.pattern, (), made, shard_format)
        known = "" if None in self.digests else file.fingerprint
        return replace(file, name=to_output_name(self.base), fingerprint=known, shards_folder=self.shards_folder)

    def _schema(self) -> dict[str, str]:
        """Return the columns of all sidecars in the order of the shards, of each the first type that holds values."""
        from shardtool.dataset.sidecar_schema import merge_types

        found, others = dict[str, str](), dict[str, str]()
        for number, schema in sorted(self.schemas.items()):
            sidecar = sidecar_name(self.dataset.shards[number].file_name)
            for column, before, kind in merge_types(found, schema):
                others.setdefault(column, f"{column!r} is {before}, but {kind} in {sidecar}")
        if others:
            self.notes.add(f"columns of other types in other sidecars: {format_list([*others.values()])}")
        return found

    def _publish(self, name: str, data: bytes) -> None:
        self.folder.publish(self.folder.stage_bytes(name, data))

    def _result(self, shards: tuple[ShardEntry, ...]) -> IndexResult:
        path, samples = self.folder.full_path(self.dataset_file), sum(one.samples for one in shards)
        return IndexResult(path, len(shards), self.kept, samples, tuple(self.notes.said))


@accepts_options(IndexOptions)
def index(dataset: DatasetLike, options: IndexOptions, observer: Observer) -> IndexResult:
    """Write the sidecars and the dataset file of existing shards.

    Args:
        dataset: A dataset file, a shard pattern, a glob, a folder, or shards.
        options: See `IndexOptions`.
        observer: Gets progress, and notes for the user.

    Raises:
        InvalidRequest: There are no such shards, or they are compressed.
        CorruptShard: A shard is damaged.
        OutputExists: Another run is writing here, other shards own these names, or there is a sidecar or dataset file
            that is wrong, and `overwrite` was not asked for.
        OutputFailed: The output cannot be written.
    """
    with start_pool(options, observer=observer) as pool:
        indexer = Indexer(dataset, options, observer)
        pool.check(indexer.dataset.paths)
        indexer.folder.ready()
        with indexer.folder.lock(indexer.base):
            for number, found in pool.map(scan_shard, indexer.tasks()):
                indexer.add(number, found)
            pool.close()
            return indexer.finish()
