"""The dataset of a writer. The writer publishes each full shard immediately (with `overwrite`, at the end).

At first, each sidecar records the number of shards so far plus one, so `verify` reports an interrupted dataset as
incomplete. At the end, the writer sets the final number in all sidecars, and publishes the dataset file. If a metadata
column first appeared in a later shard, the writer also adds this column to the earlier sidecars.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtool import names, shard_samples, units, values
from shardtool.dataclass import dataclass
from shardtool.dataset import shard_index, sidecar_read, sidecar_schema, sidecar_write
from shardtool.entries.metadata_columns import with_column
from shardtool.entries.sample_table import FieldValues
from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, OutputExists
from shardtool.fingerprint import crc32c
from shardtool.interop.readers import ReaderProblems
from shardtool.messages import flag_text
from shardtool.pattern import ShardPattern, sidecar_name
from shardtool.plan.plan import count_rounded
from shardtool.publish import listed_files, parts, publish_dataset
from shardtool.publish.append_target import check_existing_dataset
from shardtool.publish.destination import Destination, inspect_destination
from shardtool.publish.journal import Journal
from shardtool.publish.totals import DatasetTotals
from shardtool.request.run_record import make_writer_record
from shardtool.skipped import Skipped
from shardtool.storage.files import read_crc
from shardtool.storage.folders import open_folder
from shardtool.write.task import compute_content_fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.request.observer import Notes
    from shardtool.writer.metadata_columns import MetadataColumns
    from shardtool.writer.options import WriterOptions
    from shardtool.writer.sample_encoder import SampleEncoder
    from shardtool.writer.sample_writer import ShardBuilder


JOURNAL_VERSION = 1


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """The journal line of a shard.

    Attributes:
        rounded: For each field, the number of floats that TFRecord rounds to 32 bits.
        skipped: Key, code and message of the samples skipped since the previous shard.
        version: The version of the shard in a store, or "". If the version is unchanged, a resumed writer does not
            verify the shard's checksum.
    """

    shard: str
    size: int
    crc: int
    digest: str
    kinds: dict[str, values.ValueType | str]
    inline: bool
    columns: dict[str, object]
    rounded: dict[str, int] = field(default_factory=dict)
    skipped: list[list[str]] = field(default_factory=list)
    version: str = ""


def _parse_entry(line: dict[str, Any]) -> JournalEntry:
    entry = JournalEntry(**line)
    int(entry.digest, 16)
    texts = [*entry.kinds, *entry.rounded, entry.shard, entry.version]
    texts += [text for row in entry.skipped for text in row]
    numbers = [*entry.rounded.values(), entry.size, entry.crc]
    is_valid = {*map(type, texts)} <= {str} and {*map(type, numbers)} <= {int} and {*map(len, entry.skipped)} <= {3}
    if not is_valid or not isinstance(entry.columns, dict) or type(entry.inline) is not bool:
        raise ValueError("not a journal line")
    return entry


class WriterOutput:
    """The dataset of a writer, locked until `close`. `reader_problems` lists names that other tools would misread."""

    def __init__(self, pattern: ShardPattern, options: WriterOptions, columns: MetadataColumns, tag: str) -> None:
        self._whole_pattern, self._tag = pattern, tag
        pattern = parts.make_part_pattern(pattern, tag) if tag else pattern
        self.pattern, self.options, self.columns = pattern, options, columns
        self._part_record = parts.part_record_name(self._whole_pattern, tag) if tag else ""
        self.folder = open_folder(pattern.folder)
        self.totals, self.reader_problems = DatasetTotals(FieldValues()), ReaderProblems()
        self.rounded_by_field: Counter[str] = Counter()
        requested = {"pattern": names.to_output_name(pattern.text), "replaces": options.overwrite, **options.recorded()}
        self._journal_options = json.loads(json.dumps({"version": JOURNAL_VERSION, **requested}))
        self._journal = Journal(self.folder, pattern.base)
        if_exists: values.IfExists = "resume" if options.resume else "overwrite" if options.overwrite else "error"
        destination = Destination(self.folder, pattern, if_exists)
        with ExitStack() as stack:
            inspect_destination(destination)
            self.folder.create()
            stack.enter_context(self.folder.lock(pattern.base))
            self.destination = inspect_destination(destination)
            self.destination.discard_staged()
            self.publication = self.destination.open_publication(self._part_record)
            self._stack = stack.pop_all()

    def find_finished_dataset(self) -> DatasetFile | None:
        """Return the dataset or part that an earlier writer has finished, or None."""
        pattern, existing = self.pattern, self.destination.existing
        dataset = None
        if self._tag:
            dataset = parts.read_part_record(self.folder, self._whole_pattern, self._tag).dataset
        elif pattern.dataset_file in existing:
            dataset = listed_files.read_existing_dataset(self.folder, pattern.dataset_file)
        if dataset is None:
            return None
        lines = self._journal.read()
        if lines:
            self._check_not_replacing(lines[0])
        dataset = check_existing_dataset(self.folder, pattern, existing, dataset.encode())
        if lines:
            self._journal.remove()
        return dataset

    def start_part(self) -> None:
        """Delete this part's record if an earlier writer finished it without samples."""
        if self._tag and not self.options.overwrite:
            self.folder.remove([*self.folder.find_entries([self._part_record, parts.old_empty_name(self.pattern)])])

    def finish_empty_part(self) -> None:
        """Publish the record of a part without samples."""
        if not self.destination.existing:
            self.folder.publish_bytes(self._part_record, parts.PartRecord(self._tag, None, ()).encode())

    def _check_not_replacing(self, requested: Mapping[str, object]) -> None:
        """Raise an error if an `overwrite` was interrupted, because shards may belong to the old or the new dataset."""
        if requested.get("replaces") is True:
            problem = f"a writer that was replacing this dataset ({flag_text('overwrite')}) was interrupted"
            remedy = f"Run it again with {flag_text('overwrite')}."
            raise InvalidRequest(self.destination.dataset_file, problem, remedy=remedy)

    def reuse_finished_shards(self, encoder: SampleEncoder, notes: Notes) -> JournalEntry | None:
        """Keep the shards that match the journal of an earlier writer. Return the entry of the last kept shard."""
        entries = self._read_entries()
        reused: list[JournalEntry] = []
        for number, entry in enumerate(entries):
            name = self.pattern.shard(number)
            sidecar = self._read_valid_sidecar(name, entry)
            if sidecar is None or not self.columns.restore(entry.columns):
                problem = f"{entry.shard} differs from the journal and is written again"
                notes.add(problem if number == len(entries) - 1 else f"{problem}, with all later shards")
                break
            data = self.folder.read(sidecar_name(name))
            encoder.add_existing_keys(sidecar.all_keys())
            skipped = [Skipped(key, "", code, message) for key, code, message in entry.skipped]  # type: ignore[arg-type]
            self.totals.add(sidecar.facts, data, sidecar.tally(), int(entry.digest, 16), skipped)
            self.rounded_by_field.update(entry.rounded)
            if self.pattern.format == "tar":
                self.reader_problems.add_shard(sidecar)
            reused.append(entry)
        if reused:
            encoder.restore(reused[-1].kinds, has_inline=reused[-1].inline)
            self.start_journal(reused)
        return reused[-1] if reused else None

    def _read_entries(self) -> list[JournalEntry]:
        lines = self._journal.read()
        if not lines or "run" in lines[0]:
            if shards := [name for name in self.destination.existing if name.endswith(f".{self.pattern.format}")]:
                found = f"{units.pluralize(len(shards), 'shard')} without the journal of their writer"
                remedy = f"Choose another name, or replace the existing shards with {flag_text('overwrite')}."
                raise OutputExists(self.pattern.text, found, expected=self._journal.name, remedy=remedy)
            return []
        requested, entries = lines[0], list[JournalEntry]()
        self._check_not_replacing(requested)
        if requested != self._journal_options:
            earlier_options = [
                f"{name}={value!r}" for name, value in requested.items() if name not in ("version", "replaces")
            ]
            problem = f"a writer with other options: {', '.join(earlier_options)}"
            remedy = f"Use the same options, or replace the existing shards with {flag_text('overwrite')}."
            raise InvalidRequest(self.pattern.text, problem, remedy=remedy)
        with suppress(ValueError, TypeError, AttributeError):
            entries += map(_parse_entry, lines[1:])
        return entries

    def _read_valid_sidecar(self, name: str, entry: JournalEntry) -> shard_index.ShardIndex | None:
        try:
            is_same_version = entry.version and self.folder.version(name) == entry.version
            size, crc = (entry.size, entry.crc) if is_same_version else read_crc(self.folder.full_path(name))
            index = sidecar_read.parse_sidecar(self.folder.read(sidecar_name(name)), name, size)
        except (OSError, CorruptShard):
            return None
        if self.pattern.format == "tar" and index.fingerprint() not in (None, int(entry.digest, 16)):
            return None
        facts: sidecar_schema.ShardFacts = index.facts
        found = {(facts.name, size, crc), (facts.name, facts.size, facts.crc)}
        return index if found == {(entry.shard, entry.size, entry.crc)} else None

    def add(self, shard: ShardBuilder, encoder: SampleEncoder, skipped: list[Skipped]) -> None:
        """Publish a shard with its sidecar, and add it to the journal."""
        self.publication.prepare_shard(shard.name)
        if not self.publication.keeps_staged:
            self._remove_old_part_file()
        staged, index, content, crcs, plan = shard.finish(encoder, self.columns)
        first, size, crc = names.to_output_name(self.pattern.shard(0)), shard.file.size, shard.file.crc
        facts = sidecar_schema.ShardFacts(
            names.to_output_name(shard.name), size, crc, plan, None, first, len(self.totals.shards) + 2
        )
        data, _ = sidecar_write.encode_sidecar(index, facts)
        self.publication.add(staged, data, shard.name)
        rounded, digest = _count_rounded_floats(content), compute_content_fingerprint(content, crcs, ())
        skipped_rows = [[row.key, row.code, row.message] for row in skipped]
        encoder_state = dict(encoder.kinds), encoder.has_inline, self.columns.state()
        version = self.folder.version(shard.name)
        entry = JournalEntry(facts.name, size, crc, f"{digest:x}", *encoder_state, rounded, skipped_rows, version)
        self._journal.append(asdict(entry))
        self.totals.add(facts, data, index.tally(), digest, skipped)
        self.rounded_by_field.update(rounded)
        if self.pattern.format == "tar":
            self.reader_problems.add_shard(index, content.inline, encoder.numbers)

    def finish(self, encoder: SampleEncoder, record: Mapping[str, object]) -> None:
        """Update the sidecars, and publish the dataset file. Its run record includes the entries of `record`."""
        self.totals.schema = self._update_sidecars()
        self.totals.values = FieldValues(types=encoder.types)
        self._remove_old_part_file()
        run_record = make_writer_record(record)
        publish_dataset.publish_dataset(self.totals, self.publication, self.destination, run_record, self._tag)

    def _remove_old_part_file(self) -> None:
        if self._tag and self.folder.find_entries([self.pattern.dataset_file]):
            self.folder.remove([self.pattern.dataset_file])

    def close(self) -> None:
        """Delete staged files and release the lock. Delete the journal unless a later writer can resume."""
        raised = sys.exc_info()
        try:
            self.destination.discard_staged()
            can_resume = self.totals.shards and not self.options.overwrite
            if self._journal.is_started and not can_resume and not isinstance(raised[1], AccessRefused):
                self._journal.remove()
        finally:
            self._stack.__exit__(*raised)

    def start_journal(self, entries: Sequence[JournalEntry] = ()) -> None:
        """Write a new journal with the entries of kept shards."""
        self._journal.start(self._journal_options, map(asdict, entries))

    def _update_sidecars(self) -> dict[str, str]:
        entries, updated, data = self.totals.shards, dict[str, bytes](), b""
        for number, entry in enumerate(entries):
            name = names.to_local_name(entry.name)
            old_data = self.publication.read_sidecar(name)
            sidecar = sidecar_read.parse_sidecar(old_data, entry.sidecar, entry.size)
            table = _add_columns(sidecar.plain_table(), self.columns.schema)
            data = sidecar_write.encode_sidecar_table(table, sidecar.facts._replace(shards=len(entries)))
            if data != old_data:
                updated[name] = data
                entries[number] = replace(entry, sidecar_size=len(data), sidecar_crc=crc32c(data))
            if sum(map(len, updated.values())) > _MAX_HELD_BYTES:
                self.publication.replace_sidecars(updated)
                updated = {}
        self.publication.replace_sidecars(updated)
        # Read the types from the sidecar, because Parquet does not preserve all Arrow types.
        return sidecar_schema.column_types(pq.read_schema(pa.BufferReader(data)))


_MAX_HELD_BYTES = 2**26


def _add_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    own_columns = [name for name in table.column_names if name in sidecar_schema.OWN_COLUMNS]
    for column in schema:
        exists = column.name in table.column_names
        values = table.column(column.name).cast(column.type) if exists else pa.nulls(len(table), column.type)
        table = with_column(table, column.name, values)
    return table.select([*own_columns, *schema.names])


def _count_rounded_floats(content: shard_samples.ShardContent) -> dict[str, int]:
    floats = [code for code, kind in content.numbers.items() if kind == "float"]
    if not floats:
        return {}
    texts, codes = content.inline[:-1].split(b"\0"), np.frombuffer(content.codes, np.uint16)
    counts = {code: count_rounded([texts[row] for row in np.flatnonzero(codes == code).tolist()]) for code in floats}
    return {content.fields[code].decode(): count for code, count in counts.items() if count}
