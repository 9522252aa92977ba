"""Sidecars and a dataset file for shards that are there already, as `index` writes them.

A sidecar that says just what the walk found stays, with the checksums and the metadata that only it knows; one that is
missing is written. One that was read and found wrong is replaced only where the user asked for that. Shards are never
touched.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardtool._version import __version__
from shardtool.dataset.dataset_file import DatasetFile, ShardEntry
from shardtool.dataset.feature import features_of
from shardtool.dataset.walk import SurveyTask, torn_samples, walked_text
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, listing, printable
from shardtool.fingerprint import crc32c, show_fingerprint
from shardtool.pattern import sidecar_name
from shardtool.request.results import IndexResult
from shardtool.request.run_record import RunRecord
from shardtool.storage.places import base_name
from shardtool.storage.staging import write_whole
from shardtool.values import counted, output_text
from shardtool.verbs.index.target import read_there
from shardtool.wording import flag

if TYPE_CHECKING:
    import pyarrow as pa

    from shardtool.dataset.sidecar import ShardFact
    from shardtool.dataset.walk import Survey
    from shardtool.request.options import IndexOptions
    from shardtool.request.results import Observer
    from shardtool.values import Kind
    from shardtool.verbs.index.target import IndexTarget


# A sidecar that is there, held against what a walk over its shard found: whether it stays, and what it adds.


@dataclass(frozen=True, slots=True)
class MatchingSidecar:
    """A sidecar that says what the walk found.

    Attributes:
        table: Its rows, with what only it knows: checksums and metadata.
        fact: What it says of the shard.
        data: Its bytes; None where it is to be written: with checksums that it lacked, or in the new format.
    """

    table: pa.Table
    fact: ShardFact
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class DifferingSidecar:
    """A sidecar that was read and found wrong: what it is, and the columns that only it has."""

    found: str
    lost: frozenset[str] = frozenset()


def compare_sidecar(
    found: Survey, where: str, data: bytes, walked: pa.Table, *, checksum: bool
) -> MatchingSidecar | DifferingSidecar:
    """Return whether a sidecar is right.

    Args:
        found: What the walk found.
        where: The sidecar's path.
        data: The sidecar's bytes.
        walked: The rows that the walk found, as the sidecar's table.
        checksum: Whether payloads were read.

    Raises:
        CorruptShard: The shard has another checksum than its sidecar says.
    """
    from shardtool.dataset.opened import places_of
    from shardtool.dataset.sidecar import FORMAT_VERSION, SCHEMA
    from shardtool.dataset.sidecar_read import read_sidecar

    try:
        known = read_sidecar(data, where, found.size)
        fact, table = known.fact, known.plain_table()
    except CorruptShard:
        return DifferingSidecar("damaged")
    lost = frozenset({*table.column_names} - {*SCHEMA.names})
    same = (fact.name, fact.size) == (output_text(base_name(found.path)), found.size)
    if not same or places_of(table) != places_of(walked):
        return DifferingSidecar("of another shard", lost)
    current = data if known.version == FORMAT_VERSION else None
    if not checksum:
        return MatchingSidecar(table, fact, current)
    if fact.crc is not None and fact.crc != found.crc:
        what = f"the checksum {found.crc:08x}"
        expected = f"{fact.crc:08x}, as its sidecar says"
        raise CorruptShard(found.path, what, expected=expected, remedy="`shardtool verify` shows what is damaged.")
    new = _with_checksums(table, walked)
    if new is None:
        return DifferingSidecar("checksums of other payloads", lost)
    if fact.crc is not None and not new[1]:
        return MatchingSidecar(table, fact, current)
    return MatchingSidecar(new[0], replace(fact, crc=found.crc))


def _with_checksums(old: pa.Table, walked: pa.Table) -> tuple[pa.Table, bool] | None:
    """Return a sidecar's table with the checksums of the payloads that a walk has read, and whether they are new to it.

    Returns:
        None where it has others.
    """
    import pyarrow.compute as pc

    at = old.column_names.index("__fields__")
    before, now = (table.column("__fields__").combine_chunks().flatten().field("crc32c") for table in (old, walked))
    if pc.any(pc.not_equal(before, now)).as_py():  # null, an unknown checksum, is neither
        return None
    new = old.set_column(at, walked.schema.field("__fields__"), walked.column("__fields__"))
    return new.replace_schema_metadata(None), bool(before.null_count)


_NULL = "null"  # the type of a column without a value: it goes with any


class Indexer:
    """Writes the index of shards, under the lock of its target.

    Args:
        target: The shards.
        options: How to index them.
        observer: Gets progress and notes.
    """

    def __init__(self, target: IndexTarget, options: IndexOptions, observer: Observer) -> None:
        self.target, self.options, self.observer = target, options, observer
        self.notes: list[str] = []
        self.wrong: list[str] = []
        self.lost: set[str] = set()
        self.kept = self.field_bytes = 0
        self.entries: dict[int, ShardEntry] = {}
        self.fields: Counter[str] = Counter()
        self.kinds: dict[int, dict[str, Kind]] = {}
        self.lists: set[str] = set()
        self.schemas: dict[int, dict[str, str]] = {}
        self.digests: list[int | None] = []

    def tasks(self) -> list[SurveyTask]:
        """Return what the workers do, a task per shard."""
        target, dots = self.target, self.target.dots(self.options.dots)
        self.observer.start(0, target.size, len(target.paths))
        return [SurveyTask(path, self.options.checksum, dots) for path in target.paths]

    def add(self, number: int, found: Survey) -> None:
        """Write a shard's sidecar, unless the one that is there is right, or wrong and to be kept.

        Raises:
            CorruptShard: The shard is damaged.
            InvalidRequest: The fields of a sample lie apart in it.
            OutputExists: A sidecar cannot be read.
            OutputFailed: The sidecar cannot be written.
        """
        from shardtool.dataset.opened import table_of
        from shardtool.dataset.sidecar import ShardFact
        from shardtool.dataset.sidecar_write import encode_table

        if found.error is not None:
            raise found.error
        _check_together(found)
        name = self.target.names[number]
        index_name, walked = sidecar_name(name), table_of(found)
        where = self.target.folder.full_path(index_name)
        one = MatchingSidecar(walked, ShardFact(output_text(name), found.size, found.crc, ""))
        if (there := read_there(where)) is not None:
            known = compare_sidecar(found, where, there, walked, checksum=self.options.checksum)
            if isinstance(known, MatchingSidecar):
                one = known
            elif not self._may_replace(index_name, known):
                return
        data = one.data
        if data is None:
            data = encode_table(one.table, one.fact)
            self._publish(index_name, data)
        else:
            self.kept += 1
        self._add_entry(number, one, found, data)
        self._add_sums(number, found)
        self.observer.advance(self.entries[number].samples, found.size, 1)
        done = "written" if one.data is None else "kept"
        self.observer.log(f"{name}: {done}, {self.entries[number].samples:,} samples")

    def _may_replace(self, name: str, wrong: DifferingSidecar) -> bool:
        """Return whether a wrong sidecar is to be replaced; `finish` refuses, once all that is wrong is known."""
        self.wrong.append(f"{name} ({wrong.found})")
        self.lost |= wrong.lost
        if self.options.overwrite:
            self._note(f"{name}: {wrong.found}, so what only it knew is lost: checksums and metadata")
        return self.options.overwrite

    def _add_entry(self, number: int, one: MatchingSidecar, found: Survey, data: bytes) -> None:
        from shardtool.dataset.opened import walked_tally
        from shardtool.dataset.sidecar import types_of, with_shard

        tally, name = walked_tally(found), self.target.names[number]
        shard = (output_text(name), tally.samples, one.fact.size, one.fact.crc)
        sidecar = (output_text(sidecar_name(name)), len(data), crc32c(data))
        self.entries[number] = ShardEntry(*shard, *sidecar, tally.first_key, tally.last_key)
        self.fields.update(tally.fields)
        self.field_bytes += tally.field_bytes
        self.schemas[number] = types_of(with_shard(one.table.schema))

    def _add_sums(self, number: int, found: Survey) -> None:
        self.kinds[number] = {walked_text(one): kind for one, kind in zip(found.names, found.kinds, strict=True)}
        self.lists |= {walked_text(found.names[at]) for at, one in found.unlike.items() if one.kind == found.kinds[at]}
        self.digests.append(found.digest)
        if found.odd:
            one = found.odd[0]
            what = f"{counted(len(found.odd), 'member')} no part of a sample, such as at {one.offset:,} {one.what}"
            self._note(f"{self.target.names[number]}: {what}")

    def finish(self) -> IndexResult:
        """Write the dataset file, unless the one that is there is right.

        Raises:
            OutputExists: There are files that are wrong, and the user did not ask to replace them.
            OutputFailed: It cannot be written.
        """
        target, old, same = self.target, self.target.old, False
        if old is not None and len(self.entries) == len(target.names):
            same = len(old.shards) == len(target.names) and all(
                _goes_with(before, self.entries[at]) for at, before in enumerate(old.shards)
            )
        if target.own and not same and not self.wrong:
            self.wrong.append(f"{target.dataset_file} (of other shards)")
        self._refuse_wrong()
        shards = tuple(self.entries[number] for number in range(len(target.names)))
        if same and old is not None:  # what it says of the shards stays a claim, which `verify` holds them to
            shards = tuple(
                one if one.crc is not None else replace(one, crc=before.crc)
                for one, before in zip(shards, old.shards, strict=True)
            )
            if target.own and old.shards == shards:
                return self._result(shards)
        file = self._dataset_file(shards)
        if same and old is not None:  # the shards are the ones that it lists
            known = replace(old, shards=shards, field_bytes=file.field_bytes, schema=file.schema)
            file = replace(known, shards_folder=file.shards_folder)
        else:
            self._note("how the dataset was made, what was skipped and class names are not known: only a plan knows")
        if not file.fingerprint:
            self._note(f"no content fingerprint: {flag('checksum')} reads the payloads, too")
        self._publish(target.dataset_file, file.encode())
        return self._result(shards)

    def _refuse_wrong(self) -> None:
        """Refuse to replace what is wrong, unless the user asked for that."""
        if not self.wrong or self.options.overwrite:
            return
        columns = f" and the columns {listing(sorted(self.lost))}" if self.lost else ", metadata"
        where = self.target.folder.path or "."
        found = f"not what the shards hold: {listing(self.wrong)}"
        remedy = (
            f"{flag('overwrite')} makes them again from the shards; what only they know is lost then: checksums"
            f"{columns}, how the dataset was made. `shardtool verify` shows whether the shards are right."
        )
        raise OutputExists(where, found, expected="right ones, or none", remedy=remedy)

    def _dataset_file(self, shards: tuple[ShardEntry, ...]) -> DatasetFile:
        """Return the dataset file of shards of which nothing else is known."""
        target = self.target
        kinds = {name: kind for _, known in sorted(self.kinds.items(), reverse=True) for name, kind in known.items()}
        samples = sum(shard.samples for shard in shards)
        last = self.target.dots(self.options.dots) == "last" and target.format == "tar"
        asked = {"options": {"dots": "last"}} if last else {}
        complete = None not in self.digests
        return DatasetFile(
            name=output_text(target.base),
            pattern=output_text(target.pattern.text),
            format=target.format,
            shards=shards,
            fields=dict(sorted(self.fields.items())),
            field_bytes=self.field_bytes,
            skipped=0,
            schema=self._schema(),
            classes={},
            features=features_of(self.fields, kinds, samples, self.lists) if target.format == "tfrecord" else {},
            made=RunRecord({"verb": "index", **asked, "tool": f"shardtool {__version__}"}),
            fingerprint=show_fingerprint(sum(one or 0 for one in self.digests)) if complete else "",
            shards_folder=target.shards_folder,
        )

    def _schema(self) -> dict[str, str]:
        """Return the columns of all sidecars in the order of the shards, of each the first type that holds values."""
        found: dict[str, str] = {}
        others: dict[str, str] = {}
        for number, schema in sorted(self.schemas.items()):
            for column, kind in schema.items():
                before = found.setdefault(column, kind)
                if before == _NULL:
                    found[column] = kind
                elif kind not in (before, _NULL) and not column.startswith("__"):
                    sidecar = sidecar_name(self.target.names[number])
                    others.setdefault(column, f"{column!r} is {before}, but {kind} in {sidecar}")
        if others:
            self._note(f"columns of other types in other sidecars: {listing([*others.values()])}")
        return found

    def _publish(self, name: str, data: bytes) -> None:
        self.target.folder.publish(write_whole(self.target.folder, name, data))

    def _result(self, shards: tuple[ShardEntry, ...]) -> IndexResult:
        path, samples = self.target.folder.full_path(self.target.dataset_file), sum(one.samples for one in shards)
        return IndexResult(path, len(shards), self.kept, samples, tuple(self.notes))

    def _note(self, text: str) -> None:
        self.notes.append(printable(text))
        self.observer.note(self.notes[-1])


def _check_together(found: Survey) -> None:
    """Refuse a tar in which the fields of samples lie apart: every reader would make several samples of one."""
    repeated = found.format == "tar" and len({*found.keys}) < len(found.keys)
    if torn := torn_samples(found.keys, found.fields()) if repeated else []:
        one, other = torn[0]
        key, places = walked_text(found.keys[one]), f"at {found.starts[one]:,} and at {found.starts[other]:,}"
        what = f"the fields of {counted(len(torn), 'sample')} lie apart, such as those of {key!r} {places}"
        remedy = "`shardtool reshard` writes shards with the fields of each sample together."
        raise InvalidRequest(found.path, what, expected="the fields of a sample next to each other", remedy=remedy)


def _goes_with(before: ShardEntry, now: ShardEntry) -> bool:
    """Return whether what a dataset file says of a shard, without its sidecar, is what was found."""
    known = before.crc is None or now.crc is None or before.crc == now.crc
    return known and _shape(before) == _shape(now)


def _shape(shard: ShardEntry) -> tuple[str, int, int, str, str]:
    """Return what is known of a shard without reading its payloads."""
    return shard.name, shard.size, shard.samples, shard.first_key, shard.last_key
