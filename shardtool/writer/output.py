"""What a writer notes of each shard that it has published, so that another one can go on where it was killed.

The file `.NAME.writer` lies beside the shards until their dataset file is there: a line of JSON of what was asked for,
then one for each shard, with what neither the shard nor its sidecar can say. A line that a kill cut short is passed
over, as is all that follows it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtool.dataset.shard_index import OWN_COLUMNS, ShardFact, ShardTally, types_of
from shardtool.dataset.sidecar import encode, encode_table, index_of, read_sidecar
from shardtool.entries.entries import FieldValues
from shardtool.errors import InvalidRequest, OutputExists, ShardError, StoreFailed
from shardtool.fingerprint import crc32c
from shardtool.interop.readers import Misreadings
from shardtool.plan.plan import count_rounded
from shardtool.publish.publisher import Destination, Publisher, clean, look
from shardtool.request.options import CreateOptions
from shardtool.request.results import RunRecord
from shardtool.request.settings import Settings, described, like, setting
from shardtool.skipped import Skipped
from shardtool.storage.staging import local_folder
from shardtool.values import (
    Dots,
    IfExists,
    OnBadSample,
    Oversize,
    ShardContent,
    Target,
    __version__,
    output_text,
    to_bytes,
)
from shardtool.verbs.create.result import publish_dataset
from shardtool.verbs.create.run import Totals
from shardtool.wording import flag, option
from shardtool.writer.open_shard import Columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.pattern import ShardPattern
    from shardtool.storage.staging import Folder
    from shardtool.values import Number
    from shardtool.writer.open_shard import PackedShard


class Keywords(TypedDict, total=False):
    """The options as keyword arguments; see `WriterOptions`."""

    max_size: str | int | None
    max_count: int | None
    oversize: Oversize
    dots: Dots | None
    target: tuple[Target, ...]
    on_error: OnBadSample
    resume: bool
    overwrite: bool
    part: int | str | None
    parts: int | None


@described
@dataclass(frozen=True, slots=True)
class WriterOptions(Settings):
    """What can be asked of a `ShardWriter`; what `create` has, too, means the same there."""

    max_size: str | int | None = like(CreateOptions, "max_size")
    max_count: int | None = like(CreateOptions, "max_count")
    oversize: Oversize = like(CreateOptions, "oversize")
    dots: Dots | None = like(CreateOptions, "dots")
    target: tuple[Target, ...] = like(CreateOptions, "target")
    on_error: OnBadSample = setting(
        "raise", "What happens at a sample that cannot be written: raise, or skip and list it in out.skipped.",
        recorded=False,
    )  # fmt: skip
    resume: bool = setting(
        False, "Go on after the last shard that an earlier writer has published.", apart=("overwrite",), recorded=False
    )
    overwrite: bool = setting(False, "Replace the dataset that is there, once the new one is complete.", recorded=False)
    part: int | str | None = setting(
        None, "This writer's part of a run of several: a number, with `parts`, or a name.", recorded=False
    )
    parts: int | None = setting(None, "Number of parts.", recorded=False)

    @property
    def if_exists(self) -> IfExists:
        """What to do about an earlier output, as `create` calls it."""
        return "resume" if self.resume else "overwrite" if self.overwrite else "error"

    @property
    def readers(self) -> tuple[str, ...]:
        """The readers that notes are about."""
        return self.target or get_args(Target)


def options_of(given: Keywords) -> WriterOptions:
    """Return the options that keyword arguments mean.

    Raises:
        InvalidRequest: One of them is no option, or cannot be.
    """
    known = WriterOptions.__dataclass_fields__
    if unknown := [name for name in given if name not in known]:
        raise InvalidRequest("ShardWriter", f"no option {unknown[0]!r}", expected=f"one of {', '.join(known)}")
    return WriterOptions(**given)


_VERSION = 1


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What a journal says of a shard.

    Attributes:
        shard: Its name.
        size: Its bytes.
        crc: CRC-32C of the file.
        digest: The content fingerprint of its samples, as hexadecimal digits.
        kinds: Each field of the dataset so far, and the number that it stands for; empty: none.
        inline: Whether the plan of a table would carry a value of the dataset so far.
        columns: What is known of the columns of metadata so far.
        rounded: How many floats of each field were rounded, in this shard.
        skipped: What was left out since the shard before: key, code and message.
    """

    shard: str
    size: int
    crc: int
    digest: str
    kinds: dict[str, Number | str]
    inline: bool
    columns: dict[str, object]
    rounded: dict[str, int] = field(default_factory=dict)
    skipped: list[list[str]] = field(default_factory=list)


class Journal:
    """The journal of a dataset.

    Args:
        folder: Where the dataset lies.
        base: Its name.
        asked: What was asked for, as plain data: another writer goes on only if that is the same.

    Attributes:
        started: Whether the journal is this writer's.
    """

    def __init__(self, folder: Folder, base: str, asked: dict[str, object]) -> None:
        self._folder, self.name = folder, journal_name(base)
        self.started = False
        self._asked = json.loads(json.dumps({"version": _VERSION, **asked}))

    def read(self) -> tuple[dict[str, Any], list[JournalEntry]] | None:
        """Return what was asked for, and the shards, as far as they can be read; None: there is no journal."""
        try:
            lines = self._folder.read(self.name).splitlines(keepends=True)
        except StoreFailed:
            raise
        except (OSError, ShardError):
            return None
        found: list[Any] = []
        for line in lines:
            try:
                one: Any = json.loads(line) if line.endswith(b"\n") else None
                found.append(_noted(one) if found else one)
            except (ValueError, TypeError, AttributeError, RecursionError):
                break
        return (found[0], found[1:]) if found and isinstance(found[0], dict) else None

    def fits(self, asked: dict[str, Any]) -> bool:
        """Tell whether a journal's writer was asked for the same."""
        return bool(asked == self._asked)

    def start(self, noted: Sequence[JournalEntry] = ()) -> None:
        """Write the journal anew, with the shards that are kept.

        Raises:
            OutputFailed: The file system refuses.
        """
        lines = [self._asked, *map(asdict, noted)]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        self._folder.publish(self._folder.stage_whole(self.name, data))
        self.started = True

    def add(self, noted: JournalEntry) -> None:
        """Note a shard, durably.

        Raises:
            OutputFailed: The file system refuses.
        """
        self._folder.append(self.name, json.dumps(asdict(noted)).encode() + b"\n")

    def remove(self) -> None:
        """Remove the journal."""
        self._folder.remove([self.name])


def _noted(line: dict[str, Any]) -> JournalEntry:
    """Return what a line says of a shard.

    Raises:
        ValueError: It is none that a writer notes.
        TypeError: The same.
        AttributeError: The same.
    """
    found = JournalEntry(**line)
    int(found.digest, 16)
    texts = [*found.kinds, *found.rounded, found.shard, *(text for row in found.skipped for text in row)]
    numbers = [*found.rounded.values(), found.size, found.crc]
    right = {*map(type, texts)} <= {str} and {*map(type, numbers)} <= {int} and {*map(len, found.skipped)} <= {3}
    if not right or not isinstance(found.columns, dict) or type(found.inline) is not bool:
        raise ValueError("no line of a writer")
    return found


def journal_name(base: str) -> str:
    """Return the name of the journal of the dataset `base`."""
    return f".{base}.writer"


def skipped_rows(noted: JournalEntry) -> list[Skipped]:
    """Return the rows of what was left out that a journal has."""
    return [Skipped(key, "", code, message) for key, code, message in noted.skipped]  # type: ignore[arg-type]


# Where a writer's shards go: published one by one as `create` publishes them, and made a dataset at the end.
#
# A sidecar says how many shards its run makes, and has the columns of all of them. Neither is known before the end, so
# until then each sidecar says that one more shard is to come; at the end, those that differ are written again.


class Output:
    """The dataset of a writer, locked until `close`.

    Args:
        pattern: The names of its shards.
        options: What was asked for.
        made: How it is made, as far as it is known.

    Attributes:
        columns: The metadata so far.
        totals: What the published shards hold.
        rounded: How many floats of each field were rounded.
        misreadings: What readers would get wrong about them.

    Raises:
        OutputExists: Something is there that the options do not allow to touch, or another writer has it.
    """

    def __init__(self, pattern: ShardPattern, options: WriterOptions) -> None:
        self.pattern, self.options = pattern, options
        self.folder = local_folder(pattern.folder)
        self.columns, self.totals, self.misreadings = Columns(), Totals(FieldValues()), Misreadings()
        self.rounded: Counter[str] = Counter()
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
        index = index_of(self.pattern.format, shard.content, table, shard.crcs)
        number = len(self.totals.shards)
        fact = ShardFact(output_text(shard.name), shard.size, shard.crc, shard.plan, None, self._first, number + 2)
        data, _ = encode(index, fact)
        self.publisher.add(shard.staged, data, shard.name)
        rounded = _rounded(shard.content)
        left_out = [[one.key, one.code, one.message] for one in skipped]
        known = dict(kinds), inline, self.columns.state()
        self.journal.add(JournalEntry(fact.name, fact.size, shard.crc, f"{shard.digest:x}", *known, rounded, left_out))
        self.take(fact, data, index.tally(), shard.digest)
        self.totals.skipped += skipped
        self.rounded.update(rounded)
        if self.pattern.format == "tar":
            self.misreadings.add_shard(index, shard.content.inline, _numbers(kinds))

    def take(self, fact: ShardFact, sidecar: bytes, tally: ShardTally, digest: int) -> None:
        """Add a published shard to the totals."""
        self.totals.add(fact, sidecar, tally)
        self.totals.digest += digest

    def finish(self, kinds: Mapping[str, str], made: Mapping[str, object]) -> DatasetFile:
        """Publish the dataset file, after sidecars that say what is known now.

        Args:
            kinds: Each field, and the number that it stands for; empty: none.
            made: The options that the dataset file records.

        Raises:
            OutputFailed: The file system refuses.
        """
        self.totals.schema = self._renew()
        self.totals.values = FieldValues(numbers=_numbers(kinds))
        record = {"verb": "create", "source": "ShardWriter", **made, "tool": f"shardtool {__version__}"}
        dataset = publish_dataset(self.totals, self.publisher, RunRecord(record))
        self.journal.remove()
        return dataset

    def close(self) -> None:
        """Remove what is staged, and give the lock back; the journal stays only where there are shards to resume."""
        with self._stack:
            clean(self.destination)
            if self.journal.started and (self.options.overwrite or not self.totals.shards):
                self.journal.remove()

    @property
    def _first(self) -> str:
        return output_text(self.pattern.shard(0))

    def _renew(self) -> dict[str, str]:
        """Write the sidecars again that are not those of a finished run; return the columns of all."""
        entries, renewed, data = self.totals.shards, dict[str, bytes](), b""
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

    texts, codes = content.inline[:-1].split(b"\0"), np.frombuffer(content.codes, np.uint16)
    counts = {code: count_rounded([texts[row] for row in np.flatnonzero(codes == code).tolist()]) for code in floats}
    return {content.fields[code].decode(): count for code, count in counts.items() if count}
