"""The dataset of a writer: shards published one by one, then the dataset file.

A sidecar contains the number of shards of its run, and all columns of the dataset. Both are known only at the end.
Until then each sidecar announces one more shard; at the end, sidecars that differ from the final ones are
rewritten.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtool import names, shard_samples, units, values
from shardtool.dataset import shard_index, sidecar_read, sidecar_schema, sidecar_write
from shardtool.entries.sample_table import FieldValues
from shardtool.errors import (
    AccessRefused,
    CorruptShard,
    InvalidRequest,
    OutputExists,
)
from shardtool.fingerprint import crc32c
from shardtool.interop.readers import ReaderProblems
from shardtool.messages import flag_text, option_text
from shardtool.pattern import (
    ShardPattern,
    sidecar_name,
)
from shardtool.plan.plan import count_rounded
from shardtool.publish import publish_dataset
from shardtool.publish.append_target import check_existing_dataset
from shardtool.publish.destination import Destination, inspect_destination
from shardtool.publish.publisher import Publisher, remove_staged
from shardtool.publish.totals import DatasetTotals
from shardtool.request.run_record import RunRecord
from shardtool.skipped import Skipped
from shardtool.storage.files import read_crc
from shardtool.storage.folders import open_folder
from shardtool.storage.staging import Folder
from shardtool.values import __version__
from shardtool.write.task import compute_content_fingerprint
from shardtool.writer.journal import JOURNAL_VERSION, JournalEntry, journal_name, parse_entry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.request.observer import Notes
    from shardtool.writer.metadata_columns import MetadataColumns
    from shardtool.writer.options import WriterOptions
    from shardtool.writer.sample_encoder import SampleEncoder
    from shardtool.writer.shard_builder import ShardBuilder


class WriterOutput:
    """The dataset of a writer, locked until `close`.

    Args:
        pattern: The names of its shards.
        options: What was asked for.
        columns: The metadata so far, which grows.

    Attributes:
        journal: The name of its journal.
        totals: What the published shards hold.
        rounded: How many floats of each field were rounded.
        misreadings: What readers would get wrong about them.

    Raises:
        OutputExists: Something is there that the options do not allow to touch, or another writer has it.
    """

    def __init__(self, pattern: ShardPattern, options: WriterOptions, columns: MetadataColumns) -> None:
        self.pattern, self.options, self.columns = pattern, options, columns
        self.folder = open_folder(pattern.folder)
        self.totals, self.misreadings = DatasetTotals(FieldValues()), ReaderProblems()
        self.rounded: Counter[str] = Counter()
        asked = {"pattern": names.to_output_name(pattern.text), "replaces": options.overwrite, **options.recorded()}
        self._asked = json.loads(
            json.dumps({"version": JOURNAL_VERSION, **asked})
        )  # another goes on only if it is the same
        self.journal, self._started = journal_name(pattern.base), False
        if_exists: values.IfExists = "resume" if options.resume else "overwrite" if options.overwrite else "error"
        before = Destination(self.folder, pattern, if_exists)
        with ExitStack() as stack:
            _inspect_destination(before)
            self.folder.ready()
            stack.enter_context(self.folder.lock(pattern.base))
            self.destination = _inspect_destination(before)
            remove_staged(self.destination)
            self.publisher = Publisher(self.destination)
            self._stack = stack.pop_all()

    def find_finished_dataset(self) -> DatasetFile | None:
        """Return the dataset that is there whole; None: there is none.

        Raises:
            CorruptShard: It is damaged.
            InvalidRequest: A writer that was to replace it was killed.
        """
        pattern, existing = self.pattern, self.destination.existing
        if pattern.dataset_file not in existing:
            return None
        found = self._read_journal()
        if found is not None:
            self._check_not_replacing(found[0])
        return check_existing_dataset(self.folder, pattern, existing, self.folder.read(pattern.dataset_file))

    def _check_not_replacing(self, asked: Mapping[str, object]) -> None:
        """Refuse to go on after a writer that was to replace a dataset: what is there may be of both."""
        if asked.get("replaces") is True:
            problem = f"a writer that was to replace this dataset ({flag_text('overwrite')}) did not end"
            remedy = f"Run it again with {flag_text('overwrite')}."
            raise InvalidRequest(self.destination.dataset_file, problem, remedy=remedy)

    def take_back(self, encoder: SampleEncoder, notes: Notes) -> JournalEntry | None:
        """Add the shards that an earlier writer has finished to an output; return what is known of the last one.

        They are those that its journal lists, up to the first that is not as it says, to the byte: a note names it.

        Raises:
            InvalidRequest: It was asked for something else.
            OutputExists: There are shards, and nothing says whose they are.
        """
        noted = self._noted()
        if noted is None:
            return None
        kept: list[JournalEntry] = []
        for number, one in enumerate(noted):
            name = self.pattern.shard(number)
            sidecar = self._sound(name, one)
            if sidecar is None or not self.columns.restore(one.columns):
                lost = f"{one.shard} is not what its writer has made: it is written again"
                notes.add(lost if number == len(noted) - 1 else f"{lost}, with all after it")
                break
            data = self.folder.read(sidecar_name(name))
            encoder.add_known_keys(sidecar.all_keys())
            self.take(sidecar.fact, data, sidecar.tally(), int(one.digest, 16))
            self.totals.skipped += [Skipped(key, "", code, message) for key, code, message in one.skipped]  # type: ignore[arg-type]
            self.rounded.update(one.rounded)
            if self.pattern.format == "tar":
                self.misreadings.add_shard(sidecar)
            kept.append(one)
        if kept:
            encoder.restore(kept[-1].kinds, inline=kept[-1].inline)
        self.start_journal(kept)
        return kept[-1] if kept else None

    def _noted(self) -> list[JournalEntry] | None:
        """Return the shards that the journal lists; None: there is no journal, and no shard.

        Raises:
            InvalidRequest: Its writer was asked for something else.
            OutputExists: There are shards, and nothing says whose they are.
        """
        journal = self._read_journal()
        if journal is None:
            if shards := [name for name in self.destination.existing if name.endswith(f".{self.pattern.format}")]:
                found = f"{units.pluralize(len(shards), 'shard')}, and no journal of the writer that made them"
                remedy = f"Choose another name, or replace what is there: {flag_text('overwrite')}."
                raise OutputExists(self.pattern.text, found, expected=self.journal, remedy=remedy)
            return None
        asked, noted = journal
        self._check_not_replacing(asked)
        if asked != self._asked:
            named = [f"{name}={value!r}" for name, value in asked.items() if name not in ("version", "replaces")]
            problem = f"a writer that was asked for something else: {', '.join(named)}"
            remedy = f"Give it the same options, or replace what is there with {flag_text('overwrite')}."
            raise InvalidRequest(self.pattern.text, problem, remedy=remedy)
        return noted

    def _sound(self, name: str, noted: JournalEntry) -> shard_index.ShardIndex | None:
        """Return the sidecar of a shard that is there as the journal says; None where it is not."""
        try:
            same = noted.version and self.folder.version(name) == noted.version
            size, crc = (noted.size, noted.crc) if same else read_crc(self.folder.full_path(name))
            found = sidecar_read.parse_sidecar(self.folder.read(sidecar_name(name)), name, size)
        except (OSError, CorruptShard):
            return None
        if self.pattern.format == "tar" and found.fingerprint() not in (None, int(noted.digest, 16)):
            return None
        fact: sidecar_schema.ShardFacts = found.fact
        right = (noted.shard, noted.size, noted.crc)
        return found if (fact.name, size, crc) == right and (fact.name, fact.size, fact.crc) == right else None

    def add(self, shard: ShardBuilder, encoder: SampleEncoder, skipped: list[Skipped]) -> None:
        """Publish a shard, with a sidecar that says that another is to come.

        Args:
            shard: The shard.
            encoder: Knows the fields of the dataset so far.
            skipped: What was left out since the shard before.

        Raises:
            InvalidRequest: Its metadata cannot stand together.
            OutputFailed: The file system refuses.
        """
        self.publisher.prepare_shard(shard.name)
        staged, index, content, crcs, plan = shard.finish(encoder, self.columns)
        first, size, crc = names.to_output_name(self.pattern.shard(0)), shard.file.size, shard.file.crc
        fact = sidecar_schema.ShardFacts(
            names.to_output_name(shard.name), size, crc, plan, None, first, len(self.totals.shards) + 2
        )
        data, _ = sidecar_write.encode_sidecar(index, fact)
        self.publisher.add(staged, data, shard.name)
        rounded, total = _count_rounded_floats(content), compute_content_fingerprint(content, crcs, ())
        left_out = [[one.key, one.code, one.message] for one in skipped]
        known = dict(encoder.kinds), encoder.inline, self.columns.state()
        version = self.folder.version(shard.name)
        self._note(JournalEntry(fact.name, size, crc, f"{total:x}", *known, rounded, left_out, version))
        self.take(fact, data, index.tally(), total)
        self.totals.skipped += skipped
        self.rounded.update(rounded)
        if self.pattern.format == "tar":
            self.misreadings.add_shard(index, content.inline, encoder.numbers)

    def take(
        self, fact: sidecar_schema.ShardFacts, sidecar: bytes, tally: sidecar_schema.ShardTally, digest: int
    ) -> None:
        """Add a published shard to the totals."""
        self.totals.add(fact, sidecar, tally)
        self.totals.digest += digest

    def finish(self, encoder: SampleEncoder, made: Mapping[str, object]) -> None:
        """Publish the dataset file, after sidecars that say what is known now.

        Args:
            encoder: Knows the fields.
            made: What the dataset file records of how it was made.

        Raises:
            OutputFailed: The file system refuses.
        """
        self.totals.schema = self._renew()
        self.totals.values = FieldValues(types=encoder.types)
        publish_dataset.publish_dataset(self.totals, self.publisher, make_writer_record(made))
        self.remove_journal()

    def close(self) -> None:
        """Remove what is staged, and give the lock back; the journal stays only where there are shards to resume.

        After a refusal of a store, which is being raised then, nothing more is asked of it.
        """
        raised = sys.exc_info()
        try:
            remove_staged(self.destination)
            resumed = self.totals.shards and not self.options.overwrite
            if self._started and not resumed and not isinstance(raised[1], AccessRefused):
                self.remove_journal()
        finally:
            self._stack.__exit__(*raised)

    def _read_journal(self) -> tuple[dict[str, Any], list[JournalEntry]] | None:
        """Return what was asked for, and the shards, as far as they can be read; None: there is no journal."""
        try:
            lines = self.folder.read(self.journal).splitlines(keepends=True)
            with suppress(FileNotFoundError):
                while not self.folder.hides:
                    lines.append(self.folder.read(f"{self.journal}.{len(lines) - 1}"))
        except OSError:
            return None
        found: list[Any] = []
        for line in lines:
            try:
                one: Any = json.loads(line) if line.endswith(b"\n") else None
                found.append(parse_entry(one) if found else one)
            except (ValueError, TypeError, AttributeError, RecursionError):
                break
        return (found[0], found[1:]) if found and isinstance(found[0], dict) else None

    def start_journal(self, noted: Sequence[JournalEntry] = ()) -> None:
        """Write the journal anew, with the shards that are kept.

        Raises:
            OutputFailed: The file system refuses.
        """
        lines = [self._asked, *map(asdict, noted)]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        self.folder.publish(self.folder.stage_bytes(self.journal, data))
        self.folder.remove(self._lines())  # after it: a kill between them loses nothing that is proven
        self._started = True

    def _note(self, noted: JournalEntry) -> None:
        """Note a shard, durably.

        Raises:
            OutputFailed: The file system refuses.
        """
        line = json.dumps(asdict(noted)).encode() + b"\n"
        if isinstance(self.folder, Folder):
            self.folder.append(self.journal, line)
        else:
            self.folder.publish(self.folder.stage_bytes(f"{self.journal}.{len(self.totals.shards)}", line))

    def remove_journal(self) -> None:
        """Remove the journal."""
        self.folder.remove([self.journal, *self._lines()])

    def _lines(self) -> list[str]:
        """Return what the lines are called that a store has: the one of each shard by its number."""
        own = re.compile(re.escape(self.journal) + r"\.[0-9]+")
        return [] if self.folder.hides else [name for name in self.folder.names() if own.fullmatch(name)]

    def _renew(self) -> dict[str, str]:
        """Write the sidecars again that are not those of a finished run; return the columns of all."""
        entries, renewed, data = self.totals.shards, dict[str, bytes](), b""
        for number, entry in enumerate(entries):
            name = names.to_local_name(entry.name)
            before = self.publisher.sidecar(name)
            sidecar = sidecar_read.parse_sidecar(before, entry.sidecar, entry.size)
            table = _add_columns(sidecar.plain_table(), self.columns.schema)
            data = sidecar_write.encode_sidecar_table(table, sidecar.fact._replace(shards=len(entries)))
            if data != before:
                renewed[name] = data
                entries[number] = replace(entry, sidecar_size=len(data), sidecar_crc=crc32c(data))
            if sum(map(len, renewed.values())) > _MAX_HELD_BYTES:
                self.publisher.replace_sidecars(renewed)
                renewed = {}
        self.publisher.replace_sidecars(renewed)
        return sidecar_schema.column_types(
            pq.read_schema(pa.BufferReader(data))
        )  # Parquet does not keep all of Arrow's types


_MAX_HELD_BYTES = 2**26  # bytes of sidecars that are held


def _inspect_destination(before: Destination) -> Destination:
    """Return what is there, or refuse to touch it, in the words of a writer."""
    try:
        return inspect_destination(before)
    except OutputExists as error:
        remedy = error.remedy.replace(option_text("if_exists", "overwrite"), flag_text("overwrite"))
        remedy = remedy.replace(option_text("if_exists", "resume"), flag_text("resume"))
        raise OutputExists(error.where, error.found, expected=error.expected, remedy=remedy) from None


def make_writer_record(made: Mapping[str, object]) -> RunRecord:
    """Return what a dataset file records of how a program made its dataset."""
    return RunRecord({"verb": "create", "source": "ShardWriter", **made, "tool": f"shardtool {__version__}"})


def _add_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows of a sidecar with all columns of metadata that the dataset has, of their types."""
    own = [name for name in table.column_names if name in sidecar_schema.OWN_COLUMNS]
    columns = {name: table.column(name) for name in own}
    for one in schema:
        there = one.name in table.column_names
        columns[one.name] = table.column(one.name).cast(one.type) if there else pa.nulls(len(table), one.type)
    fields = [table.schema.field(name) for name in own] + [pa.field(one.name, one.type) for one in schema]
    return pa.Table.from_arrays([*columns.values()], schema=pa.schema(fields))


def _count_rounded_floats(content: shard_samples.ShardContent) -> dict[str, int]:
    """Return how many floats of each field are others now that they have 32 bits."""
    floats = [code for code, kind in content.numbers.items() if kind == "float"]
    if not floats:
        return {}
    texts, codes = content.inline[:-1].split(b"\0"), np.frombuffer(content.codes, np.uint16)
    counts = {code: count_rounded([texts[row] for row in np.flatnonzero(codes == code).tolist()]) for code in floats}
    return {content.fields[code].decode(): count for code, count in counts.items() if count}
