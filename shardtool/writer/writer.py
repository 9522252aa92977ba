"""`ShardWriter`: samples of a program become a dataset, one by one, with the promises of `create`; parts, and `merge`.

Its shards are published one by one. A journal beside them says what another writer needs to go on after the last; the
parts of several writers are datasets of their own, until a merge makes one of them.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtool import values
from shardtool.dataset import shard_index
from shardtool.entries.entries import FieldValues, Names
from shardtool.entries.sizes import SAMPLE_LIMIT, TRAILER_SIZE
from shardtool.errors import (
    AccessRefused,
    CorruptShard,
    InvalidRequest,
    OutputExists,
    SampleFailed,
    current_folder,
    listing,
    memory_for,
    printable,
)
from shardtool.fingerprint import crc32c
from shardtool.interop.readers import READERS, Misreadings
from shardtool.pattern import (
    DATASET_SUFFIX,
    SIDECAR_SUFFIX,
    SKIPPED_SUFFIX,
    ShardPattern,
    check_written,
    parse_pattern,
    sidecar_name,
    text_of,
)
from shardtool.plan.order import NO_LIMIT
from shardtool.plan.plan import DEFAULT_MAX_SIZE, count_rounded, rounded_note
from shardtool.publish import records
from shardtool.publish.publisher import Destination, Publisher, check_old, clean, look
from shardtool.request.options import CreateOptions, readers_of
from shardtool.request.run_record import RunRecord
from shardtool.request.settings import Notes, Observer, Settings, check_names, described, like, setting
from shardtool.skipped import Skipped
from shardtool.storage.folders import OutputFolder, open_folder
from shardtool.storage.places import file_crc
from shardtool.storage.staging import Folder
from shardtool.table.columns import repeated
from shardtool.values import __version__
from shardtool.verbs.create import result
from shardtool.verbs.create.earlier import existing_keys
from shardtool.verbs.create.run import OutputNames, Totals
from shardtool.wording import call, flag, option, typed_option
from shardtool.write.packer import digest
from shardtool.writer.samples import KEY, OpenShard, Sample, SampleEncoder, SampleRefused, SampleWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Unpack

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.request.results import IndexResult
    from shardtool.writer.samples import Columns


class Keywords(TypedDict, total=False):
    """The options as keyword arguments; see `WriterOptions`."""

    max_size: str | int | None
    max_count: int | None
    oversize: values.Oversize
    dots: values.Dots | None
    target: tuple[values.Target, ...]
    on_error: values.OnBadSample
    resume: bool
    overwrite: bool
    part: int | str | None
    parts: int | None


@described
class WriterOptions(Settings):
    """What can be asked of a `ShardWriter`; what `create` has, too, means the same there."""

    max_size: str | int | None = like(CreateOptions, "max_size")
    max_count: int | None = like(CreateOptions, "max_count")
    oversize: values.Oversize = like(CreateOptions, "oversize")
    dots: values.Dots | None = like(CreateOptions, "dots")
    target: tuple[values.Target, ...] = like(CreateOptions, "target")
    on_error: values.OnBadSample = setting(
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


# What a writer notes of each shard that it has published, so that another one can go on where it was killed.
#
# The file `.NAME.writer` lies beside the shards until their dataset file is there: a line of JSON of what was asked
# for, then one for each shard, with what neither the shard nor its sidecar can say. A line that a kill cut short is
# passed over, as is all that follows it. In a store, where nothing is appended to, the line of the shard with the
# number N is an object of its own, `.NAME.writer.N`, unless the writer that resumes has found it and put it into the
# file.


_VERSION = 1


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What a journal says of a shard.

    Attributes:
        shard: Its name.
        size: Its bytes.
        crc: CRC-32C of the file.
        digest: The content fingerprint of its samples, as hexadecimal digits.
        kinds: Each field of the dataset so far, and what its values are; empty: bytes, or of several types.
        inline: Whether the plan of a table would carry a value of the dataset so far.
        columns: What is known of the columns of metadata so far.
        rounded: How many floats of each field were rounded, in this shard.
        skipped: What was left out since the shard before: key, code and message.
        version: What the store calls the shard: as long as it does, the shard is not read again; empty: it is.
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


def _noted(line: dict[str, Any]) -> JournalEntry:
    """Return what a line says of a shard.

    Raises:
        ValueError: It is none that a writer notes.
        TypeError: The same.
        AttributeError: The same.
    """
    found = JournalEntry(**line)
    int(found.digest, 16)
    texts = [*found.kinds, *found.rounded, found.shard, found.version]
    texts += [text for row in found.skipped for text in row]
    numbers = [*found.rounded.values(), found.size, found.crc]
    right = {*map(type, texts)} <= {str} and {*map(type, numbers)} <= {int} and {*map(len, found.skipped)} <= {3}
    if not right or not isinstance(found.columns, dict) or type(found.inline) is not bool:
        raise ValueError("no line of a writer")
    return found


def journal_name(base: str) -> str:
    """Return the name of the journal of the dataset `base`."""
    return f".{base}.writer"


# Where a writer's shards go: published one by one as `create` publishes them, and made a dataset at the end.
#
# A sidecar says how many shards its run makes, and has the columns of all of them. Neither is known before the end, so
# until then each sidecar says that one more shard is to come; at the end, those that differ are written again.


class Output:
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

    def __init__(self, pattern: ShardPattern, options: WriterOptions, columns: Columns) -> None:
        self.pattern, self.options, self.columns = pattern, options, columns
        self.folder = open_folder(pattern.folder)
        self.totals, self.misreadings = Totals(FieldValues()), Misreadings()
        self.rounded: Counter[str] = Counter()
        asked = {"pattern": values.output_text(pattern.text), "replaces": options.overwrite, **options.recorded()}
        self._asked = json.loads(json.dumps({"version": _VERSION, **asked}))  # another goes on only if it is the same
        self.journal, self._started = journal_name(pattern.base), False
        if_exists: values.IfExists = "resume" if options.resume else "overwrite" if options.overwrite else "error"
        before = Destination(self.folder, pattern, if_exists)
        with ExitStack() as stack:
            _look(before)
            self.folder.ready()
            stack.enter_context(self.folder.lock(pattern.base))
            self.destination = _look(before)
            clean(self.destination)
            self.publisher = Publisher(self.destination)
            self._stack = stack.pop_all()

    def find_done(self) -> DatasetFile | None:
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
            self._check_added(found[0])
        return check_old(self.folder, pattern, existing, self.folder.read(pattern.dataset_file))

    def _check_added(self, asked: Mapping[str, object]) -> None:
        """Refuse to go on after a writer that was to replace a dataset: what is there may be of both."""
        if asked.get("replaces") is True:
            problem = f"a writer that was to replace this dataset ({flag('overwrite')}) did not end"
            remedy = f"Run it again with {flag('overwrite')}."
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
            encoder.take_keys(sidecar.all_keys())
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
                found = f"{values.counted(len(shards), 'shard')}, and no journal of the writer that made them"
                remedy = f"Choose another name, or replace what is there: {flag('overwrite')}."
                raise OutputExists(self.pattern.text, found, expected=self.journal, remedy=remedy)
            return None
        asked, noted = journal
        self._check_added(asked)
        if asked != self._asked:
            named = [f"{name}={value!r}" for name, value in asked.items() if name not in ("version", "replaces")]
            problem = f"a writer that was asked for something else: {', '.join(named)}"
            remedy = f"Give it the same options, or replace what is there with {flag('overwrite')}."
            raise InvalidRequest(self.pattern.text, problem, remedy=remedy)
        return noted

    def _sound(self, name: str, noted: JournalEntry) -> shard_index.ShardIndex | None:
        """Return the sidecar of a shard that is there as the journal says; None where it is not."""
        try:
            same = noted.version and self.folder.version(name) == noted.version
            size, crc = (noted.size, noted.crc) if same else file_crc(self.folder.full_path(name))
            found = shard_index.read_sidecar(self.folder.read(sidecar_name(name)), name, size)
        except (OSError, CorruptShard):
            return None
        if self.pattern.format == "tar" and found.fingerprint() not in (None, int(noted.digest, 16)):
            return None
        fact: shard_index.ShardFact = found.fact
        right = (noted.shard, noted.size, noted.crc)
        return found if (fact.name, size, crc) == right and (fact.name, fact.size, fact.crc) == right else None

    def add(self, shard: OpenShard, encoder: SampleEncoder, skipped: list[Skipped]) -> None:
        """Publish a shard, with a sidecar that says that another is to come.

        Args:
            shard: The shard.
            encoder: Knows the fields of the dataset so far.
            skipped: What was left out since the shard before.

        Raises:
            InvalidRequest: Its metadata cannot stand together.
            OutputFailed: The file system refuses.
        """
        self.publisher.before(shard.name)
        staged, index, content, crcs, plan = shard.finish(encoder, self.columns)
        first, size, crc = values.output_text(self.pattern.shard(0)), shard.file.size, shard.file.crc
        fact = shard_index.ShardFact(
            values.output_text(shard.name), size, crc, plan, None, first, len(self.totals.shards) + 2
        )
        data, _ = shard_index.encode(index, fact)
        self.publisher.add(staged, data, shard.name)
        rounded, total = _rounded(content), digest(content, crcs, ())
        left_out = [[one.key, one.code, one.message] for one in skipped]
        known = dict(encoder.kinds), encoder.inline, self.columns.state()
        version = self.folder.version(shard.name)
        self._note(JournalEntry(fact.name, size, crc, f"{total:x}", *known, rounded, left_out, version))
        self.take(fact, data, index.tally(), total)
        self.totals.skipped += skipped
        self.rounded.update(rounded)
        if self.pattern.format == "tar":
            self.misreadings.add_shard(index, content.inline, encoder.numbers)

    def take(self, fact: shard_index.ShardFact, sidecar: bytes, tally: shard_index.ShardTally, digest: int) -> None:
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
        result.publish_dataset(self.totals, self.publisher, _record(made))
        self.remove_journal()

    def close(self) -> None:
        """Remove what is staged, and give the lock back; the journal stays only where there are shards to resume.

        After a refusal of a store, which is being raised then, nothing more is asked of it.
        """
        raised = sys.exc_info()
        try:
            clean(self.destination)
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
                found.append(_noted(one) if found else one)
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
        self.folder.publish(self.folder.stage_whole(self.journal, data))
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
            self.folder.publish(self.folder.stage_whole(f"{self.journal}.{len(self.totals.shards)}", line))

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
            name = values.local_name(entry.name)
            before = self.publisher.sidecar(name)
            sidecar = shard_index.read_sidecar(before, entry.sidecar, entry.size)
            table = _with_columns(sidecar.plain_table(), self.columns.schema)
            data = shard_index.encode_table(table, sidecar.fact._replace(shards=len(entries)))
            if data != before:
                renewed[name] = data
                entries[number] = replace(entry, sidecar_size=len(data), sidecar_crc=crc32c(data))
            if sum(map(len, renewed.values())) > _AT_ONCE:
                self.publisher.renew(renewed)
                renewed = {}
        self.publisher.renew(renewed)
        return shard_index.types_of(pq.read_schema(pa.BufferReader(data)))  # Parquet does not keep all of Arrow's types


_AT_ONCE = 2**26  # bytes of sidecars that are held


def _look(before: Destination) -> Destination:
    """Return what is there, or refuse to touch it, in the words of a writer."""
    try:
        return look(before)
    except OutputExists as error:
        remedy = error.remedy.replace(option("if_exists", "overwrite"), flag("overwrite"))
        remedy = remedy.replace(option("if_exists", "resume"), flag("resume"))
        raise OutputExists(error.where, error.found, expected=error.expected, remedy=remedy) from None


def _record(made: Mapping[str, object]) -> RunRecord:
    """Return what a dataset file records of how a program made its dataset."""
    return RunRecord({"verb": "create", "source": "ShardWriter", **made, "tool": f"shardtool {__version__}"})


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows of a sidecar with all columns of metadata that the dataset has, of their types."""
    own = [name for name in table.column_names if name in shard_index.OWN_COLUMNS]
    columns = {name: table.column(name) for name in own}
    for one in schema:
        there = one.name in table.column_names
        columns[one.name] = table.column(one.name).cast(one.type) if there else pa.nulls(len(table), one.type)
    fields = [table.schema.field(name) for name in own] + [pa.field(one.name, one.type) for one in schema]
    return pa.Table.from_arrays([*columns.values()], schema=pa.schema(fields))


def _rounded(content: values.ShardContent) -> dict[str, int]:
    """Return how many floats of each field are others now that they have 32 bits."""
    floats = [code for code, kind in content.numbers.items() if kind == "float"]
    if not floats:
        return {}
    texts, codes = content.inline[:-1].split(b"\0"), np.frombuffer(content.codes, np.uint16)
    counts = {code: count_rounded([texts[row] for row in np.flatnonzero(codes == code).tolist()]) for code in floats}
    return {content.fields[code].decode(): count for code, count in counts.items() if count}


class ShardWriter(SampleWriter):
    """Writes samples into shards, with sidecars and a dataset file, as `create` does for the same samples.

    To be used in a `with` block. Leaving it with an exception publishes no dataset file: the shards that were full
    stay, with their sidecars, for another writer with `resume=True`, and nothing else. A writer is for one thread.

    Args:
        pattern: A shard pattern such as `out-{000000..}.tar`; its ending picks tar or TFRecord.
        observer: Gets the notes.
        options: See `WriterOptions`.

    Raises:
        InvalidRequest: The request makes no sense; nothing was written.
        OutputExists: The output is there already, or another run is writing it; nothing was touched.
        OutputFailed: The output cannot be written.

    Example:
        with ShardWriter("out-{000000..}.tar", max_size="1GB") as writer:
            writer.write({"__key__": "a/1", "jpg": image_bytes, "cls": 3}, metadata={"split": "train"})
    """

    def __init__(self, pattern: OutputNames, *, observer: Observer | None = None, **options: Unpack[Keywords]) -> None:
        check_names("ShardWriter", options, WriterOptions)
        self._options = given = WriterOptions(**options)
        names = parse_pattern(pattern)
        check_written(names)
        self._whole, self._tag = names, "" if given.part is None else part_tag(given.part, given.parts)
        if given.part is not None:
            names = part_pattern(names, self._tag)
        elif given.parts is not None:
            raise InvalidRequest(option("parts"), "no part", expected=f"the number of this one: {option('part')}")
        self._pattern = names
        bounded = given.max_size is not None or given.max_count is not None or names.count == 1
        default = None if bounded else DEFAULT_MAX_SIZE
        max_size = default if given.max_size is None else values.parse_size(given.max_size)
        largest, trailer = open_folder(names.folder).largest or NO_LIMIT, TRAILER_SIZE[names.format]
        if max_size is not None and max_size > largest:
            expected = f"at most {values.show_size(largest)}, as one request of a store takes"
            raise InvalidRequest(option("max_size"), values.show_size(max_size), expected=expected)
        room = min(NO_LIMIT if max_size is None else max_size, largest) - trailer
        super().__init__(names.format, given.dots, room, NO_LIMIT if given.max_count is None else given.max_count)
        self._never = min(SAMPLE_LIMIT[names.format], largest - trailer)
        self._limit = min(room, self._never)
        self._notes = Notes(observer or Observer())
        self._skipped: list[Skipped] = []  # since the last sample of the last shard
        self._alone: list[str] = []
        self._output = Output(names, given, self._columns)
        try:
            self._start()
        except BaseException:
            self.abandon()
            raise

    def __reduce__(self) -> str:
        remedy = f"Make one there, with {option('part')}."
        raise InvalidRequest("ShardWriter", "it cannot be sent to another process", remedy=remedy)

    @property
    def samples(self) -> int:
        """How many samples are written: by this writer, and by those that it resumes."""
        return self._output.totals.samples + (0 if self._shard is None else len(self._shard))

    @property
    def skipped(self) -> int:
        """How many samples were left out; `out.skipped` lists them."""
        return len(self._output.totals.skipped) + len(self._skipped)

    @property
    def last_key(self) -> str | None:
        """The key of the sample that was written last: after it, a writer that resumes goes on. None: there is none."""
        return self._last_key

    @property
    def shards(self) -> list[str]:
        """The names of the shards that are published, or wait for the end of `overwrite`."""
        return [entry.name for entry in self._output.totals.shards]

    @property
    def dataset_file(self) -> str:
        """The path of the dataset file, which is there once the writer has been closed."""
        return self._output.destination.dataset_file

    @property
    def notes(self) -> list[str]:
        """What the user should know; most of it is known once the writer has been closed."""
        return [*self._notes.said]

    def _start(self) -> None:
        """Find out what is there to resume, and start the journal."""
        output, last = self._output, None
        self._done = self._merged() or (output.find_done() if self._options.resume else None)
        if self._done is not None:
            output.totals.shards += self._done.shards
        elif self._options.resume:
            last = output.take_back(self._encoder, self._notes)
        if self._done is None and last is None:
            output.start_journal()
        self._full = None if last is None else last.size - TRAILER_SIZE[self._pattern.format]
        if output.totals.shards:
            self._last_key = output.totals.shards[-1].last_key
        if self._tag:
            output.folder.remove([self._pattern.base + EMPTY_SUFFIX])

    def _merged(self) -> DatasetFile | None:
        """Return what is there of a part that was merged already: nothing is to be done for it.

        Raises:
            OutputExists: It is to be written anew, which would damage the merged dataset.
            CorruptShard: The dataset file of the merge is damaged.
        """
        found = records.read_listing(self._output.folder, self._whole.dataset_file) if self._tag else None
        shards = tuple(one for one in found.shards if self._pattern.owns(values.local_name(one.name))) if found else ()
        if found is None or not shards:
            return None
        if not self._options.resume:
            where = self._output.folder.full_path(self._whole.dataset_file)
            remedy = "Give the writers another pattern, or remove that dataset first."
            raise OutputExists(where, f"{self._tag} was merged into this dataset", remedy=remedy)
        return replace(found, shards=shards, skipped=0)

    def _refuse(self, sample: Mapping[str, object], refused: SampleRefused) -> None:
        """Raise what is wrong with a sample, or list it among those that were left out."""
        if self._options.on_error == "raise":
            raise refused.error from None
        key = sample.get(KEY, "") if hasattr(sample, "get") else ""
        message = f"{refused.error.where}: {refused.error.found}"
        self._skipped.append(Skipped(printable(str(key)), "", refused.code, message))

    def _takes(self, sample: Sample) -> bool:
        """Return whether a sample gets into a shard, by the rule for those that fit in none; False: it is left out."""
        if self._done is not None:
            raise _ended(self._output.destination.dataset_file)
        return sample.size <= self._limit or self._fits_alone(sample)

    def _fits_alone(self, sample: Sample) -> bool:
        """Apply the rule for a sample that fits in no shard; return whether it gets one of its own."""
        total, key = sample.size + TRAILER_SIZE[self._pattern.format], values.to_text(sample.key)
        oversize, never = self._options.oversize, sample.size > self._never
        if oversize == "skip":
            tfrecord = self._pattern.format == "tfrecord"
            most = "the 2 GiB of a TFRecord" if tfrecord else "what one request of a store takes"
            over = most if never else typed_option("max_size")
            self._skipped.append(Skipped(key, "", "oversize", f"{total:,} bytes, over {over}"))
            return False
        shown = f"{printable(key)} ({values.show_size(total)})"
        if oversize == "error" or never:
            bound = values.show_size(self._room + TRAILER_SIZE[self._pattern.format])
            what = "a TFRecord" if never and self._pattern.format == "tfrecord" else f"a shard of {bound}"
            alone = option("oversize", "alone")
            remedy = f"Raise {option('max_size')}, or choose {alone} (a shard of its own) or skip."
            error = InvalidRequest(option("max_size"), f"larger than {what} may be: {shown}", remedy=remedy)
            raise SampleRefused(error, "oversize")
        self._alone.append(shown)
        return True

    def _next_shard(self, sample: Sample) -> OpenShard:
        """Start a shard.

        Raises:
            Refused: The pattern has no name for it, or the shard before has room for the sample.
        """
        number = len(self._output.totals.shards)
        if self._pattern.count is not None and number >= self._pattern.count:
            remedy = "Use an open range such as out-{000000..}.tar, a wider range, or larger shards."
            found = f"{self._pattern.count:,} names, and more samples"
            raise SampleRefused(InvalidRequest(self._pattern.text, found, remedy=remedy), "oversize")
        if self._full is not None:
            samples, full = self._output.totals.shards[-1].samples, self._full
            if full + sample.size <= self._room and samples < self._most:
                raise _ended(self._output.destination.dataset_file)
            self._full = None
        return OpenShard(self._output.folder, self._pattern.shard(number), self._pattern.format)

    def _publish(self, shard: OpenShard) -> None:
        self._output.add(shard, self._encoder, self._skipped)
        self._shard, self._skipped = None, []

    @memory_for("the dataset file")
    def _finish(self) -> None:
        """Publish the last shard and the dataset file, and say what the user should know."""
        output = self._output
        if self._done is not None:
            return
        if self._shard is not None:
            self._publish(self._shard)
        output.totals.skipped += self._skipped
        self._skipped = []
        if not output.totals.shards:
            self._end_empty()
            return
        options = self._options.recorded()
        if self._pattern.format == "tar" and self._encoder.dotted_key:
            options["dots"] = "last"
        self._say()
        part = {"part": self._tag.removeprefix("part")} if self._tag else {}
        output.finish(self._encoder, {"options": options, **part})

    def _release(self) -> None:
        self._output.close()

    def _end_empty(self) -> None:
        """End without a sample: a part says so, and anything else is a mistake."""
        output, where = self._output, self._pattern.text
        if skipped := len(output.totals.skipped):
            found = f"none of {skipped:,} samples could be written"
            raise SampleFailed(where, found, remedy=f"Run it with {option('on_error', 'raise')} to see why.")
        if not self._tag:
            raise InvalidRequest(where, "no samples", expected="one at least")
        if not output.destination.existing:
            output.folder.publish(output.folder.stage_whole(self._pattern.base + EMPTY_SUFFIX, b""))

    def _say(self) -> None:
        output, shards = self._output, len(self._output.totals.shards)
        both = [(output.destination, shards)]
        if self._alone:
            bound = values.show_size(self._room + TRAILER_SIZE[self._pattern.format])
            found = f"{len(self._alone):,} larger than a shard of {bound} may be: {', '.join(self._alone[:5])}"
            self._notes.add(f"samples {found}; each gets a shard of its own")
        for name, count in output.rounded.items():
            self._notes.add(rounded_note(name, count))
        readers, problems = readers_of(self._options.target), output.misreadings.problems()
        self._notes.add(*(str(one) for one in problems if not {*readers}.isdisjoint(READERS[one.code])))
        sizes = [sum(entry.size for entry in output.totals.shards)]
        self._notes.add(*result.loader_notes(both, sizes), *result.name_notes(both, readers))
        if "huggingface" in readers:
            self._notes.add(*result.folder_notes(both, {}))


def _ended(dataset_file: str) -> SampleRefused:
    found = "the run that is resumed had ended, and there are more samples now"
    remedy = f"Append them with {call('create', if_exists='append')}, or replace it all: {flag('overwrite')}."
    return SampleRefused(InvalidRequest(dataset_file, found, remedy=remedy), "oversize")


# The datasets of parts become one dataset: a dataset file that lists the shards of all, which stay as they are.
#
# Nothing of a part goes before the merged dataset file is there. A merge that was killed is repeated: what it has
# listed counts as merged.


# The names of what several writers make side by side: each part is a dataset of its own, until they are merged.


EMPTY_SUFFIX = ".empty"
_MOST_PARTS = 10**6
_TOKEN = re.compile(r"[A-Za-z0-9_]{1,40}", re.ASCII)
_TAG = r"part(?:([0-9]{1,7})of([0-9]{1,7})|_[A-Za-z0-9_]{1,40})"


@dataclass
class PartFiles:
    """What is there of a part.

    Attributes:
        tag: What its names have behind the dataset's: `part03of16`, or `part_NAME`.
        number: Its number; None: it has a name.
        parts: How many parts there are; None: it has a name.
        shards: The names of its shards, in order.
        dataset_file: The name of its dataset file; empty: it has none, so it has not ended.
        empty: Whether it ended without a sample.
    """

    tag: str
    number: int | None = None
    parts: int | None = None
    shards: list[str] = field(default_factory=list)
    dataset_file: str = ""
    empty: bool = False

    @property
    def ended(self) -> bool:
        """Whether its writer ended."""
        return bool(self.dataset_file) or self.empty


def part_tag(part: int | str, parts: int | None) -> str:
    """Return what the names of a part have behind the dataset's.

    Raises:
        InvalidRequest: There is no such part.
    """
    if isinstance(part, str):
        if parts is not None:
            raise InvalidRequest(option("parts"), f"used with the name {part!r}", expected="a number as the part")
        if not _TOKEN.fullmatch(part):
            expected = "a number, or a name of up to 40 letters, digits and underscores"
            raise InvalidRequest(option("part"), repr(part), expected=expected)
        return f"part_{part}"
    if not isinstance(parts, int) or isinstance(parts, bool) or not 1 <= parts <= _MOST_PARTS:
        raise InvalidRequest(option("parts"), repr(parts), expected=f"how many parts there are, up to {_MOST_PARTS:,}")
    if not isinstance(part, int) or isinstance(part, bool) or not 0 <= part < parts:
        raise InvalidRequest(option("part"), repr(part), expected=f"a number from 0 to {parts - 1:,}")
    return f"part{part:0{len(str(parts - 1))}}of{parts}"


def part_pattern(pattern: ShardPattern, tag: str) -> ShardPattern:
    """Return the pattern of the names of a part that is to be written, by its tag.

    Raises:
        InvalidRequest: The pattern has no numbers, or not any number of them.
    """
    if pattern.names is not None or pattern.count is not None:
        raise InvalidRequest(pattern.text, "names for parts", expected="an open range such as out-{000000..}.tar")
    return tagged_pattern(pattern, tag)


def tagged_pattern(pattern: ShardPattern, tag: str) -> ShardPattern:
    """Return the pattern of the names of a part, by its tag."""
    prefix = f"{pattern.prefix}{tag}-"
    return replace(pattern, prefix=prefix, text=prefix + pattern.text.removeprefix(pattern.prefix))


def find_parts(pattern: ShardPattern, names: Iterable[str]) -> dict[str, PartFiles]:
    """Return what is there of each part, by its tag, in the order of numbers and names.

    Args:
        pattern: That of the dataset.
        names: The names of all files in its folder.
    """
    tags = re.compile(re.escape(pattern.prefix) + f"(?P<tag>{_TAG})")
    found: dict[str, PartFiles] = {}
    for name in sorted(names, key=lambda name: (len(name), name)):
        match = tags.match(name)
        if match is None:
            continue
        tag, number, parts = match["tag"], match[2], match[3]
        own = tagged_pattern(pattern, tag)
        if not own.owns(name) and name != own.base + EMPTY_SUFFIX:
            continue
        part = found.setdefault(tag, PartFiles(tag, *((int(number), int(parts)) if number else (None, None))))
        if name == own.dataset_file:
            part.dataset_file = name
        elif name == own.base + EMPTY_SUFFIX:
            part.empty = True
        elif not name.endswith((SIDECAR_SUFFIX, SKIPPED_SUFFIX, DATASET_SUFFIX)):
            part.shards.append(name)
    ordered = sorted(found.values(), key=lambda one: (one.number is None, one.number or 0, one.parts or 0, one.tag))
    return {one.tag: one for one in ordered}


_MERGED = "merged"  # in how a dataset was made: the parts that it was made of


@current_folder()
def merge(output: OutputNames, *, observer: Observer | None = None) -> IndexResult:
    """Make one dataset of the parts that several writers, or runs of `create`, have written under a pattern.

    Parts of writers that come later are added by another merge.

    Args:
        output: The pattern that the writers were given, such as `out-{000000..}.tar`.
        observer: Gets what the user should know.

    Returns:
        The dataset: its shards are those of all parts, which stay where they are.

    Raises:
        InvalidRequest: There are no parts; some are missing, or have not ended; a key is in two parts; or fields and
            columns do not go together. Nothing was touched.
        CorruptShard: A part is damaged.
        OutputExists: The dataset file is one that no merge has made, or another run is writing.
        OutputFailed: The file system refuses.
    """
    pattern = parse_pattern(output)
    check_written(pattern)
    there = open_folder(pattern.folder)
    names = there.names()
    if any(records.find_parts(pattern, names)):
        return result.merge_parts(there, pattern, observer or Observer())
    if not find_parts(pattern, names):
        found, expected = "no part of a ShardWriter or of a run", "the pattern that these were given"
        raise InvalidRequest(pattern.text, found, expected=expected)
    with there.lock(pattern.base):
        merging = _Merge(there, pattern)
        dataset = merging.run()
    return result.merge_result(there, pattern, len(merging.parts), dataset, observer or Observer())


class _Merge:
    """A merge, under the lock of the whole dataset.

    Args:
        folder: Where the parts lie.
        pattern: The names of the whole dataset.
    """

    def __init__(self, folder: OutputFolder, pattern: ShardPattern) -> None:
        self._folder, self._pattern = folder, pattern
        self.parts = find_parts(pattern, folder.names())
        self._old = self._find_old()
        self._listed = {shard.name for shard in self._old.shards} if self._old else set()
        before = [] if self._old is None else self._old.made.document[_MERGED]
        self._before = [str(tag) for tag in before] if isinstance(before, list) else []

    def run(self) -> DatasetFile:
        """Publish the dataset file of all, and remove those of the parts; return what it says."""
        new = [part for part in self.parts.values() if not self._is_merged(part)]
        self._check_whole(new)
        found = [self._dataset(part) for part in new if part.dataset_file]
        whole = [*([self._old] if self._old else []), *found]
        if not whole:
            raise InvalidRequest(self._pattern.text, "parts without a sample", expected="one sample at least")
        self._check_keys(whole)
        skipped: list[Skipped] = reduce(records.merged, map(self._skipped, whole), [])
        rows, tags = records.encode_skipped(skipped), [*dict.fromkeys([*self._before, *(part.tag for part in new)])]
        dataset = self._joined(whole, skipped, tags)
        if found:
            staged = [self._folder.stage_whole(self._pattern.skipped_file, rows)] if rows else []
            self._folder.publish(*staged, self._folder.stage_whole(self._pattern.dataset_file, dataset.encode()))
        replaced = list[str]()
        for own in (tagged_pattern(self._pattern, tag) for tag in self.parts):
            replaced += [own.dataset_file, own.skipped_file, own.base + EMPTY_SUFFIX, journal_name(own.base)]
        self._folder.remove([*self._folder.facts(replaced)])
        return dataset

    def _find_old(self) -> DatasetFile | None:
        """Return the dataset of an earlier merge."""
        old = records.read_listing(self._folder, self._pattern.dataset_file)
        if old is not None and _MERGED not in old.made.document:
            where, found = self._folder.full_path(self._pattern.dataset_file), "a dataset file that no merge has made"
            raise OutputExists(where, found, remedy="Move that dataset away, or give the writers another pattern.")
        return old

    def _is_merged(self, part: PartFiles) -> bool:
        """Tell whether an earlier merge has listed a part."""
        listed = [name for name in part.shards if values.output_text(name) in self._listed]
        if listed and len(listed) < len(part.shards):
            merged = f"{len(listed):,} were merged before"
            found = f"{part.tag}: {values.counted(len(part.shards), 'shard')}, of which {merged}"
            raise InvalidRequest(self._pattern.text, found, expected="a part that is whole before it is merged")
        return bool(listed) or (part.tag in self._before and not part.shards)

    def _check_whole(self, new: Sequence[PartFiles]) -> None:
        """Refuse to make a dataset of less than all parts, and say which are missing."""
        where = self._pattern.text
        counts = {part.parts for part in self.parts.values() if part.parts is not None}
        open_ = [f"{part.tag} ({values.counted(len(part.shards), 'shard')})" for part in new if not part.ended]
        there = {*self.parts, *self._before}
        wanted = [part_tag(number, count) for count in counts for number in range(count)]
        missing = [tag for tag in wanted if tag not in there]
        result.check_all_ended(where, counts, open_, missing, flag("resume"))

    def _dataset(self, part: PartFiles) -> DatasetFile:
        """Return what the dataset file of a part says, whose shards are all there."""
        own = tagged_pattern(self._pattern, part.tag)
        existing = self._folder.facts(name for name in self._folder.names() if own.owns(name))
        return check_old(self._folder, own, existing, records.read_output(self._folder, part.dataset_file))

    def _check_keys(self, whole: Iterable[DatasetFile]) -> None:
        """Refuse keys that two parts have."""
        names = [existing_keys(self._folder, dataset.shards) for dataset in whole]
        twice = repeated(Names.parse(b"".join(one.span(0, len(one)) for one in names)))
        if twice:
            shown = listing([printable(key) for key in [*twice][:5]], total=len(twice))
            found = f"{values.counted(len(twice), 'key')} of samples in two parts: {shown}"
            raise InvalidRequest(self._pattern.text, found, expected="a key of its own for each sample")

    def _joined(self, whole: Sequence[DatasetFile], skipped: Sequence[Skipped], tags: list[str]) -> DatasetFile:
        dataset, given = result.joined_parts(whole, skipped, self._pattern), [one.made.options for one in whole]
        options = {name: value for name, value in given[0].items() if all(one.get(name) == value for one in given)}
        if any(one.made.dots == "last" for one in whole):
            options["dots"] = "last"
            if dotted := [name for name in dataset.fields if "." in name]:
                found = f"keys with dots in their last part, and fields with dots: {listing(dotted)}"
                expected = "names that the first dot divides, or the last"
                raise InvalidRequest(self._pattern.text, found, expected=expected)
        pattern, made = text_of([shard.name for shard in dataset.shards]), _record({"options": options, _MERGED: tags})
        return replace(dataset, name=values.output_text(self._pattern.base), pattern=pattern, made=made)

    def _skipped(self, dataset: DatasetFile) -> list[Skipped]:
        """Return what a dataset has left out."""
        name, where = dataset.skipped_file, self._folder.full_path(dataset.skipped_file)
        data = records.read_output(self._folder, name) if self._folder.facts([name]) else b""
        records.check_skipped_file(data, dataset, where)
        return records.read_skipped(data, where)
