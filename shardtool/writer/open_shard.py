"""The shard that a writer is filling: a staged file, and what went into it."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardtool.errors import InvalidRequest, OutputFailed
from shardtool.fingerprint import crc32c
from shardtool.format.sizes import TRAILER_SIZE
from shardtool.format.tar import TRAILER
from shardtool.plan.plan import fingerprint
from shardtool.values import ShardSamples, ShardSpans
from shardtool.write.packer import ShardRecords

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardtool.storage.staging import DurableFile, Folder, StagedFile
    from shardtool.values import Number, ShardContent
    from shardtool.writer.samples import Sample

    Row = Mapping[str, object]
    FinishedShard = tuple[DurableFile, ShardContent, bytes, str]


_SENT_AT_ONCE = 2**25  # bytes: the disk is sent these while more are encoded


class OpenShard:
    """A shard being written.

    Args:
        folder: Where it goes.
        name: What it will be called.
        shard_format: `tar` or `tfrecord`.

    Attributes:
        file: The staged file, its size and checksum.
        rows: The metadata of each sample.
        columns: The names in these, in the order in which they were met.
    """

    def __init__(self, folder: Folder, name: str, shard_format: str) -> None:
        self.name, self._format = name, shard_format
        self.file = _SummedFile(folder.stage(name))
        self._records = ShardRecords(self.file.write)
        self.rows: list[Mapping[str, object]] = []
        self.columns: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._records)

    @property
    def size(self) -> int:
        """Bytes of the records so far."""
        return self._records.size

    def add(self, sample: Sample, row: Mapping[str, object]) -> None:
        """Append a sample.

        Raises:
            OutputFailed: The file system refuses.
        """
        self._records.add(sample.key, sample.parts, sample.size, sample.fields)
        self.rows.append(row)
        if row:
            self.columns.update(dict.fromkeys(row))

    def finish(self, numbers: Mapping[bytes, Number], *, inline: bool) -> FinishedShard:
        """Make the file whole and durable, and not visible yet.

        Args:
            numbers: The fields that are stored as numbers, and of what kind.
            inline: Whether the plan of a table would carry a value of the dataset.

        Returns:
            The file; what it holds, its fields numbered in the order of the bytes of their names; uint32 for each
            field, the CRC-32C of its bytes in the shard; the fingerprint that a plan of `create` has for these samples.

        Raises:
            OutputFailed: The file system refuses.
        """
        self._records.flush()
        if TRAILER_SIZE[self._format]:
            self.file.write(TRAILER)
        staged = self.file.finish()
        content = _in_order(self._records.content(numbers, texts=inline))
        plan = fingerprint(self._format, ShardSamples(content, b"", b"", b"", b"", b"", ShardSpans()))
        return staged, content, self._records.crcs.tobytes(), plan

    def abandon(self) -> None:
        """Remove what was written."""
        self.file.abandon()


class _SummedFile:
    """A staged file, its size and checksum so far. It leads to no shard: what one holds is freed with it.

    Strategy: the disk is sent what was written, some at a time, by a thread beside the one that writes, so that little
    is left to be waited for at the end of the file. What goes wrong there is raised there: the disk says it once.
    """

    def __init__(self, staged: StagedFile) -> None:
        self._staged = staged
        self.size = self.crc = 0
        self._sent = 0
        self._sending: Thread | None = None
        self._failed: list[OutputFailed] = []

    def write(self, data: bytes | memoryview) -> None:
        self._staged.write(data)
        self.crc = crc32c(data, self.crc)
        self.size += len(data)
        if self.size - self._sent > _SENT_AT_ONCE and (self._sending is None or not self._sending.is_alive()):
            self._sent = self.size
            self._sending = Thread(target=_send, args=(self._staged, self._failed), daemon=True)
            self._sending.start()

    def finish(self) -> DurableFile:
        self._wait()
        if self._failed:
            raise self._failed[0]
        return self._staged.finish()

    def abandon(self) -> None:
        self._wait()
        self._staged.abandon()

    def _wait(self) -> None:
        if self._sending is not None:
            self._sending.join()


def _send(staged: StagedFile, failed: list[OutputFailed]) -> None:
    try:
        staged.sync()
    except OutputFailed as error:
        failed.append(error)


def _in_order(content: ShardContent) -> ShardContent:
    """Return the same content, its fields numbered in the order of the bytes of their names."""
    fields = tuple(sorted(content.fields))
    place = {name: at for at, name in enumerate(fields)}
    codes = np.array([place[name] for name in content.fields], np.uint16)
    numbers = {place[content.fields[code]]: kind for code, kind in content.numbers.items()}
    again = codes[np.frombuffer(content.codes, np.uint16)].tobytes()
    return replace(content, fields=fields, codes=again, numbers=numbers)


# Metadata of samples as columns, whose types grow with what is written: as those of a table of all of them would.


_FAMILIES: dict[type, str] = {
    bool: "truths", int: "numbers", float: "numbers", str: "text", list: "lists", tuple: "lists", dict: "objects",
    datetime: "timestamps", date: "dates", time: "times", timedelta: "durations", Decimal: "decimals",
}  # fmt: skip
_ARROW = (
    ("truths", pa.types.is_boolean), ("numbers", pa.types.is_integer), ("numbers", pa.types.is_floating),
    ("text", pa.types.is_string), ("text", pa.types.is_large_string), ("lists", pa.types.is_list),
    ("objects", pa.types.is_struct), ("timestamps", pa.types.is_timestamp), ("dates", pa.types.is_date),
    ("times", pa.types.is_time), ("durations", pa.types.is_duration), ("decimals", pa.types.is_decimal),
)  # fmt: skip
_TYPED = (list, tuple, dict, datetime)  # a value of them may not go with another of its family
_INT64 = 2**63
_EXACT = 2**53  # whole numbers up to which a float can hold each


class Columns:
    """The columns of metadata of a run.

    Attributes:
        schema: Each column so far and its type; of nulls alone, `null`.
    """

    def __init__(self) -> None:
        self.schema = pa.schema([])
        self._families: dict[str, str] = {}
        self._types: dict[str, pa.DataType] = {}
        self._forms: dict[str, str] = {}  # of numbers: floats, or whole numbers that no float can hold
        self._found: dict[str, pa.DataType] = {}  # of the row that was checked last

    def check(self, row: Row, where: str) -> dict[str, object]:
        """Return the values of a sample, if they go with those before.

        Raises:
            InvalidRequest: They do not.
        """
        if not isinstance(row, Mapping):
            raise InvalidRequest(where, f"metadata of the type {type(row).__name__}", expected="a dict of columns")
        found, self._found = dict[str, object](), {}
        for name, value in row.items():
            plain = value.item() if isinstance(value, np.generic) else value
            if not isinstance(name, str) or not name.strip() or name.startswith("__"):
                expected = "a name that does not start with two underscores, which are the sidecar's own"
                raise InvalidRequest(where, f"metadata called {name!r}", expected=expected)
            found[name] = plain
            if plain is None:
                continue
            family = _FAMILIES.get(type(plain), "")
            known = self._families.get(name, family)
            if not family or family != known or (type(plain) is int and not -_INT64 <= plain < _INT64):
                shown = f"a value of the type {type(value).__name__}" if family != "numbers" else f"the number {plain}"
                expected = (
                    f"{known}, as in the samples before" if known and family != known else "what a column can hold"
                )
                raise InvalidRequest(where, f"metadata {name!r}: {shown}", expected=expected)
            if isinstance(plain, _TYPED):
                self._found[name] = self._joined(name, plain, where)
            elif (form := _form(plain)) and self._forms.get(name, form) != form:
                problem = f"metadata {name!r}: {plain}, in a column of {self._forms[name]}"
                raise InvalidRequest(where, problem, expected="floats, or whole numbers over 2^53, but not both")
        return found

    def _joined(self, name: str, value: object, where: str) -> pa.DataType:
        """Return the type of a column that has a value, too."""
        try:
            found = pa.infer_type([value])
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise InvalidRequest(where, f"metadata {name!r}: {error}", expected="what a column can hold") from None
        known = self._types.get(name, found)
        if known == found or (isinstance(value, datetime) and bool(known.tz) == bool(found.tz)):
            return known  # of several time zones, a column has the first
        try:
            return _unified(pa.schema([(name, known)]), pa.schema([(name, found)]))[0].type
        except pa.ArrowTypeError:
            expected = f"{known}, as in the samples before"
            raise InvalidRequest(where, f"metadata {name!r}: {found}", expected=expected) from None

    def accept(self, row: Row) -> None:
        """Settle what the columns of a sample hold that will be written."""
        for name, value in row.items():
            if name not in self._families and value is not None:
                self._families[name] = _FAMILIES[type(value)]
            if form := _form(value):
                self._forms[name] = form
        self._types.update(self._found)

    def state(self) -> dict[str, object]:
        """Return what a journal keeps of the columns: their types, which Parquet does not keep all, and their forms."""
        return {"schema": b64encode(self.schema.serialize()).decode(), "forms": dict(self._forms)}

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Take what an earlier writer knew of the columns: what goes with them is settled. Tell whether it is read."""
        try:
            self.schema = pa.ipc.read_schema(pa.py_buffer(b64decode(state["schema"], validate=True)))
            self._forms = {str(name): str(form) for name, form in state["forms"].items()}
        except (KeyError, TypeError, ValueError, AttributeError, OSError):
            return False
        self._types = dict(zip(self.schema.names, self.schema.types, strict=True))
        for name, kind in self._types.items():
            self._families |= [(name, family) for family, fits in _ARROW if fits(kind)]
        return True

    def table(self, rows: Sequence[Row], names: Iterable[str]) -> pa.Table | None:
        """Return the rows of a shard, a column for each name so far; None where there are none.

        Raises:
            InvalidRequest: Values of a column cannot stand together.
        """
        known = dict.fromkeys([*self.schema.names, *names])
        if not known:
            return None
        table = pa.table({name: self._array(name, [row.get(name) for row in rows]) for name in known})
        self.schema = _unified(self.schema, table.schema)
        return table.select(self.schema.names).cast(self.schema)

    def _array(self, name: str, values: list[object]) -> pa.Array:
        known = self._types.get(name)
        try:
            return pa.array(values, known if known is not None and pa.types.is_timestamp(known) else None)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise InvalidRequest(f"metadata {name!r}", f"values that no column can hold: {error}") from None


_FLOATS, _WHOLE = "floats", "whole numbers over 2^53"


def _form(value: object) -> str:
    """Return what a column of numbers that has a value cannot have besides; empty: it can have all."""
    if type(value) is float:
        return _FLOATS
    return _WHOLE if type(value) is int and not -_EXACT <= value <= _EXACT else ""


def _unified(first: pa.Schema, second: pa.Schema) -> pa.Schema:
    return pa.unify_schemas([first, second], promote_options="permissive")
