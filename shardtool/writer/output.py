"""Where a writer's shards go: published one by one as `create` publishes them, and made a dataset at the end.

A sidecar says how many shards its run makes, and has the columns of all of them. Neither is known before the end, so
until then each sidecar says that one more shard is to come; at the end, those that differ are written again.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from shardtool._version import __version__
from shardtool.dataset.dataset_file import ShardEntry
from shardtool.dataset.sidecar import OWN_COLUMNS, ShardFact, Tally, types_of
from shardtool.dataset.sidecar_read import read_sidecar
from shardtool.dataset.sidecar_write import Written, encode, encode_table, index_of
from shardtool.entries.entries import FieldValues
from shardtool.errors import OutputExists
from shardtool.fingerprint import crc32c
from shardtool.pack.totals import Packed, publish_dataset
from shardtool.pattern import sidecar_name
from shardtool.plan.plan import count_rounded
from shardtool.publish.destination import Destination, look
from shardtool.publish.publisher import Publisher, clean
from shardtool.request.run_record import RunRecord
from shardtool.storage.staging import local_folder
from shardtool.values import ShardContent, output_text, to_bytes
from shardtool.wording import flag, option
from shardtool.writer.columns import Columns
from shardtool.writer.journal import Journal, Noted
from shardtool.writer.notes import ShardNotes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.pattern import ShardPattern
    from shardtool.skipped import Skipped
    from shardtool.values import Number
    from shardtool.writer.open_shard import PackedShard
    from shardtool.writer.options import WriterOptions


@dataclass
class Totals:
    """What the published shards hold together.

    Attributes:
        entries: What the dataset file says of each.
        fields: How many samples have each field.
        field_bytes: Bytes of all payloads.
        digest: The content fingerprint.
        skipped: What was left out.
        rounded: How many floats of each field were rounded.
    """

    entries: list[ShardEntry] = field(default_factory=list)
    fields: Counter[str] = field(default_factory=Counter)
    field_bytes: int = 0
    digest: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    rounded: Counter[str] = field(default_factory=Counter)

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return sum(entry.samples for entry in self.entries)

    def add(self, entry: ShardEntry, tally: Tally, digest: int) -> None:
        """Add a shard."""
        self.entries.append(entry)
        self.fields.update(tally.fields)
        self.field_bytes += tally.field_bytes
        self.digest += digest


class Output:
    """The dataset of a writer, locked until `close`.

    Args:
        pattern: The names of its shards.
        options: What was asked for.
        made: How it is made, as far as it is known.

    Attributes:
        columns: The metadata so far.
        totals: What the published shards hold.
        notes: What readers would get wrong about them.

    Raises:
        OutputExists: Something is there that the options do not allow to touch, or another writer has it.
    """

    def __init__(self, pattern: ShardPattern, options: WriterOptions) -> None:
        self.pattern, self.options = pattern, options
        self.folder = local_folder(pattern.folder)
        self.columns, self.totals, self.notes = Columns(), Totals(), ShardNotes()
        asked = {"pattern": output_text(pattern.text), "replaces": options.overwrite, **options.recorded()}
        self.journal = Journal(self.folder, pattern.base, asked)
        before = Destination(self.folder, pattern, options.if_exists)
        with ExitStack() as stack:
            _look(before)
            self.folder.ready()
            stack.enter_context(self.folder.lock(pattern.base))
            self.destination = _look(before)
            clean(self.destination)
            self.publisher = Publisher(self.destination)
            self._stack = stack.pop_all()

    def add(self, shard: PackedShard, kinds: Mapping[str, str], skipped: list[Skipped], *, inline: bool) -> None:
        """Publish a shard, with a sidecar that says that another is to come.

        Args:
            shard: The shard.
            kinds: Each field so far, and the number that it stands for; empty: none.
            skipped: What was left out since the shard before.
            inline: Whether the plan of a table would carry a value of the dataset so far.

        Raises:
            InvalidRequest: Its metadata cannot stand together.
            OutputFailed: The file system refuses.
        """
        table = self.columns.table(shard.rows, shard.columns)
        written = Written(self.pattern.format, shard.content, table, shard.crcs, ())
        index = index_of(written)
        number = len(self.totals.entries)
        fact = ShardFact(output_text(shard.name), shard.size, shard.crc, shard.plan, None, self._first, number + 2)
        data, _ = encode(index, fact)
        self.publisher.add(shard.staged, data, shard.name)
        rounded = _rounded(shard.content)
        left_out = [[one.key, one.code, one.message] for one in skipped]
        known = dict(kinds), inline, self.columns.state()
        self.journal.add(Noted(fact.name, fact.size, shard.crc, f"{shard.digest:x}", *known, rounded, left_out))
        self.take(fact, data, index.tally(), shard.digest)
        self.totals.skipped += skipped
        self.totals.rounded.update(rounded)
        if self.pattern.format == "tar":
            self.notes.add(shard.content, _numbers(kinds))

    def take(self, fact: ShardFact, sidecar: bytes, tally: Tally, digest: int) -> None:
        """Add a published shard to the totals."""
        index, keys = (sidecar_name(fact.name), len(sidecar), crc32c(sidecar)), (tally.first_key, tally.last_key)
        self.totals.add(ShardEntry(fact.name, tally.samples, fact.size, fact.crc or 0, *index, *keys), tally, digest)

    def finish(self, kinds: Mapping[str, str], made: Mapping[str, object]) -> DatasetFile:
        """Publish the dataset file, after sidecars that say what is known now.

        Args:
            kinds: Each field, and the number that it stands for; empty: none.
            made: The options that the dataset file records.

        Raises:
            OutputFailed: The file system refuses.
        """
        schema = self._renew()
        totals, record = (
            self.totals,
            {"verb": "create", "source": "ShardWriter", **made, "tool": f"shardtool {__version__}"},
        )
        skipped = sorted(totals.skipped, key=lambda one: (to_bytes(one.path), to_bytes(one.key)))
        packed = Packed(
            values=FieldValues(numbers=_numbers(kinds)),
            shards=tuple(totals.entries),
            fields=dict(totals.fields),
            field_bytes=totals.field_bytes,
            schema=schema,
            digest=totals.digest,
            skipped=tuple(skipped),
            kept=0,
            dropped=0,
            misread=(),
        )
        dataset = publish_dataset(packed, self.publisher, RunRecord(record))
        self.journal.remove()
        return dataset

    def close(self) -> None:
        """Remove what is staged, and give the lock back; the journal stays only where there are shards to resume."""
        with self._stack:
            clean(self.destination)
            if self.journal.started and (self.options.overwrite or not self.totals.entries):
                self.journal.remove()

    @property
    def _first(self) -> str:
        return output_text(self.pattern.shard(0))

    def _renew(self) -> dict[str, str]:
        """Write the sidecars again that are not those of a finished run; return the columns of all."""
        entries, renewed, data = self.totals.entries, dict[str, bytes](), b""
        for number, entry in enumerate(entries):
            name = os.fsdecode(to_bytes(entry.name))
            before = self.publisher.sidecar(name)
            sidecar = read_sidecar(before, entry.sidecar, entry.size)
            table = _with_columns(sidecar.plain_table(), self.columns.schema)
            data = encode_table(table, replace(sidecar.fact, shards=len(entries)))
            if data != before:
                renewed[name] = data
                entries[number] = replace(entry, sidecar_size=len(data), sidecar_crc=crc32c(data))
            if sum(map(len, renewed.values())) > _AT_ONCE:
                self.publisher.renew(renewed)
                renewed = {}
        self.publisher.renew(renewed)
        return types_of(pq.read_schema(pa.BufferReader(data)))  # Parquet does not keep all of Arrow's types


_AT_ONCE = 2**26  # bytes of sidecars that are held


def _look(before: Destination) -> Destination:
    """Return what is there, or refuse to touch it, in the words of a writer."""
    try:
        return look(before)
    except OutputExists as error:
        remedy = error.remedy.replace(option("if_exists", "overwrite"), flag("overwrite"))
        remedy = remedy.replace(option("if_exists", "resume"), flag("resume"))
        raise OutputExists(error.where, error.found, expected=error.expected, remedy=remedy) from None


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows of a sidecar with all columns of metadata that the dataset has, of their types."""
    own = [name for name in table.column_names if name in OWN_COLUMNS]
    columns = {name: table.column(name) for name in own}
    for one in schema:
        there = one.name in table.column_names
        columns[one.name] = table.column(one.name).cast(one.type) if there else pa.nulls(len(table), one.type)
    fields = [table.schema.field(name) for name in own] + [pa.field(one.name, one.type) for one in schema]
    return pa.Table.from_arrays([*columns.values()], schema=pa.schema(fields))


def _numbers(kinds: Mapping[str, str]) -> dict[str, Number]:
    return {name: kind for name, kind in kinds.items() if kind}  # type: ignore[misc]


def _rounded(content: ShardContent) -> dict[str, int]:
    """Return how many floats of each field are others now that they have 32 bits."""
    floats = [code for code, kind in content.numbers.items() if kind == "float"]
    if not floats:
        return {}
    import numpy as np

    texts, codes = content.inline[:-1].split(b"\0"), np.frombuffer(content.codes, np.uint16)
    counts = {code: count_rounded([texts[row] for row in np.flatnonzero(codes == code).tolist()]) for code in floats}
    return {content.fields[code].decode(): count for code, count in counts.items() if count}
