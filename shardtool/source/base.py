"""What a source is: it lists samples, and nothing of it changes while a run goes on; and its payloads, read again.

They are read where they lie, in files, shards, members of archives, and tables: for checksums, values of JSON, and
texts of numbers. The parent makes tasks of them, which workers carry out: this module imports nothing heavy.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import time
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shardtool.dataset.shard_file import PackedFile, ShardFile, open_shard, payload
from shardtool.errors import (
    Bug,
    CorruptShard,
    InvalidRequest,
    SampleFailed,
    StoreFailed,
    is_out_of_memory,
    listing,
    printable,
    reason,
)
from shardtool.execute.pool import cores
from shardtool.fingerprint import crc32c
from shardtool.format import zip_read
from shardtool.format.tfrecord import INT64_LIMIT, encode_number, numbers_of
from shardtool.request.settings import Observer
from shardtool.skipped import SkipCode, Skipped, failures
from shardtool.storage import places as storage
from shardtool.values import FILE, INLINE, LINK, SPAN, OnError, counted, inline_payload, placed, show_time, source_name
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.dataset.find import StoredDataset, StoredShard
    from shardtool.entries.entries import Entries, Names
    from shardtool.execute.pool import Pool
    from shardtool.transform import Condition
    from shardtool.values import Number, SpanFile

    Rows = NDArray[np.int64]


TASKS = 32  # enough to keep a few workers busy to the end
_EMPTY = "empty"  # of samples, not files, that are without a field


@dataclass(frozen=True, slots=True)
class Listing:
    """The samples of a source.

    Attributes:
        entries: The samples, without those that `where` refuses.
        skipped: What the source holds but cannot be part of a sample, and samples that cannot be in a shard.
        name: The source's name for the dataset file: no folder, nothing of this machine.
        notes: What the user should know.
        recorded: What the dataset file says, beside the options, of how the samples were chosen.
        digest: The content fingerprint that all samples together must have; None if it is unknown.
        shards: The names of the shards that hold the samples; empty if they lie in files or a table.
        stored: The dataset of each of these shards, and the shard.
        compressed: Whether a shard is compressed, so that it can only be read in sequence.
        later: What of `where` the workers judge; None: the samples are those that it takes.
        dropped: Fields that samples no longer have: a column of the numbers of one goes, too, once they are divided.
        classes: What the numbers of labels stand for in the source, fields that are not taken among them.
    """

    entries: Entries
    skipped: tuple[Skipped, ...]
    name: str
    notes: tuple[str, ...] = ()
    recorded: Mapping[str, object] = field(default_factory=dict)
    digest: int | None = None
    shards: tuple[str, ...] = ()
    stored: tuple[tuple[StoredDataset, StoredShard], ...] = ()
    compressed: bool = False
    later: Condition | None = None
    dropped: tuple[str, ...] = ()
    classes: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The source's name for messages: of several datasets, each distinct name once."""
        return listing(self.name.split(", "))

    @property
    def all_classes(self) -> dict[str, list[str]]:
        """What the numbers of labels stand for, by field: in the source, and of those that were numbered."""
        return {**self.classes, **self.entries.values.classes}

    def without_dropped(self) -> Listing:
        """Return the same without the columns of fields that were dropped, which no sidecar is to have."""
        columns = self.entries.metadata
        if columns is None or not self.dropped:
            return self
        from shardtool.entries.arrow import without_numbers

        left = without_numbers(columns, {*self.dropped}.difference(self.entries.fields))
        return replace(self, entries=replace(self.entries, metadata=left))


class Writable(Protocol):
    """Takes bytes in order, such as a file."""

    def write(self, data: memoryview, /) -> object:
        """Append `data`."""


class Source(ABC):
    """A folder, a manifest or datasets, which list their samples.

    Attributes:
        may_skip_names: Whether `--on-error skip` leaves samples out whose names no shard can hold.
        by_key: Whether samples, once they are listed, stand in the order of their keys, not in that of a column or of
            shards, and are sorted again when their keys change.
        may_lack_values: Whether a sample without a value for a field of `values` lacks the field; otherwise that is an
            error. A comparison reports the field.
    """

    may_skip_names: bool = False
    by_key: bool = True
    may_lack_values: bool = False

    @abstractmethod
    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """Return the samples, with the fields and metadata that were asked for."""

    def choose(self, listed: Listing, taken: Callable[[], Names | None]) -> Listing:  # noqa: ARG002
        """Return the samples that were asked for, in their order.

        Args:
            listed: All of them.
            taken: Returns the keys that they cannot have, those of a dataset; None: they may have any.
        """
        return listed

    def labels(self, listed: Listing, name: str) -> pa.ChunkedArray:
        """Return a column to divide by, with a value for each sample: of labels, the names of their classes."""
        from shardtool.entries.arrow import class_names

        return class_names(self.column(listed, name), listed.all_classes.get(name, ()))

    @abstractmethod
    def column(self, listed: Listing, name: str) -> pa.ChunkedArray:
        """Return a column, with a value for each sample."""

    def write_binary(self, file: Writable) -> None:
        """Write the payloads of all SPAN rows of a table, each to its offset. No other source has such rows."""
        raise Bug(str(file), "payloads of a source that is no table")


def check_some(listed: Listing) -> None:
    """Refuse a source without samples.

    Args:
        listed: The samples.

    Raises:
        InvalidRequest: It has none.
    """
    if not len(listed.entries):
        where, skipped = source_name(listed.entries.root), listed.skipped
        remedy = f"Is it the right folder? Look at {option('include')}, {option('exclude')} and {option('hidden')}."
        if skipped:
            remedy = f"All {len(skipped):,} files were left out, such as {skipped[0].path}."
        raise InvalidRequest(where, "no samples", expected="files such as cat/0001.jpg", remedy=remedy)


def none_taken(query: object, split: str = "", remedy: str = "") -> InvalidRequest:
    """Return the error of a query that takes no sample, or none of a split."""
    found = f"no sample{f' of the split {printable(split)}' if split else ''} for which {query}"
    return InvalidRequest(option("where"), found, expected="one sample or more", remedy=remedy)


def check_skipped(source: str, skipped: tuple[Skipped, ...], on_error: OnError, otherwise: str) -> None:
    """Refuse a source with files that cannot be packed, unless they are to be skipped; `otherwise` is another way out.

    Raises:
        SampleFailed: There are such files.
    """
    lost = failures(skipped)
    if lost and on_error == "stop":
        named = listing([f"{printable(one.path)} ({one.message})" for one in lost])
        remedy = f"Mend them, {otherwise}, or leave them out with {option('on_error', 'skip')}. Nothing was written."
        raise SampleFailed(source, f"{counted(len(lost), 'file')} cannot be packed: {named}", remedy=remedy)


def skipped_notes(skipped: Iterable[Skipped]) -> list[str]:
    """Return a line for each reason why something was left out."""
    by_code: dict[str, list[str]] = {}
    for one in skipped:
        code = _EMPTY if one.code == "no-field" and one.key else one.code
        name = f"{one.path} ({one.key})" if one.code == "damaged" and one.key else one.path or one.key
        by_code.setdefault(code, []).append(printable(name))
    text = {
        "no-field": "file left out, without an ending that could name a field",
        _EMPTY: "sample left out, without a field",
        "incomplete": "sample left out, without a part of each source",
        "duplicate": "sample left out, of a key that another one has",
        "twin": "sample left out, the same as another one",
        "damaged": "part of the shards left out as damaged",
    }
    return [
        f"{counted(len(paths), text.get(code, f'file left out ({code})'))}: {listing(paths, 3)}"
        for code, paths in by_code.items()
    ]


# What each worker is to read.


FILES_A_TASK = 1000


class Files(NamedTuple):
    """Files to read: their paths, whether each is read through a link, and how many are read at the same time."""

    paths: tuple[bytes, ...]
    links: bytes
    reads: int = 1


class Spans(NamedTuple):
    """Payloads of a shard or archive to read.

    Attributes:
        path: Where it is.
        offsets: int64, ascending.
        lengths: int64.
        crcs: int64, the CRC-32C that they must have, -1: unknown.
        form: As `SpanFile` has it.
    """

    path: str
    offsets: bytes
    lengths: bytes
    crcs: bytes
    form: str


def payload_tasks(
    entries: Entries, rows: Rows, *, reads: int = 1, most: int = FILES_A_TASK
) -> list[tuple[Rows, Files | Spans]]:
    """Return what to read for rows that are in files, shards or archives, and the places in `rows` of each task's.

    Args:
        entries: The samples.
        rows: The rows; what others hold is read otherwise.
        reads: How many files are read at the same time.
        most: How many files a task has.
    """
    import numpy as np

    kinds = entries.rows.kind[rows]
    places = np.flatnonzero((kinds == FILE) | (kinds == LINK))
    chunks = [places[at : at + most] for at in range(0, len(places), most)]
    tasks: list[tuple[Rows, Files | Spans]] = []
    for chunk in chunks:
        paths = tuple([entries.root + placed(path, entries.folders) for path in entries.paths(rows[chunk])])
        tasks.append((chunk, Files(paths, bytes(kinds[chunk] == LINK), reads)))
    places = np.flatnonzero(kinds == SPAN)
    return [*tasks, *(_span_tasks(entries, rows, places) if len(places) else ())]


def _span_tasks(entries: Entries, rows: Rows, places: Rows) -> Iterator[tuple[Rows, Spans]]:
    """Yield, for each shard or archive, the places of its payloads in `rows`, in their order, and what to read."""
    import numpy as np

    lie = entries.known_spans
    files = entries.files_of(rows[places]).astype(np.int64)
    order = np.lexsort((lie.offset[rows[places]], files))
    bounds = np.searchsorted(files[order], np.arange(len(lie.files) + 1)).tolist()
    for number, file in enumerate(lie.files):
        chosen = places[order[bounds[number] : bounds[number + 1]]]
        if len(chosen):
            columns = (lie.offset, entries.rows.size, lie.expected)
            offsets, lengths, crcs = (column[rows[chosen]].astype(np.int64).tobytes() for column in columns)
            yield chosen, Spans(os.fsdecode(file.path), offsets, lengths, crcs, file.form)


# How many files each worker reads at the same time: several, where opening one takes long.


_TRIED, _MOST_S = 12, 1.0  # files, and seconds for all of them
_LOOKED_AT = 256  # rows, to find these
_STRIDE = 2_654_435_761  # between them, around the end: a prime, so that they are of all fields and folders
_HEAD = 4096  # bytes of each: a file's first come with it
_SLOW_S = 0.5e-3  # a thread costs a tenth of that a file, and a disk of this machine answers before
_READS = 16  # files that one worker reads at the same time
_ALL_READS = 64  # that all workers read: more is of no use to most servers, and takes memory
_REMOTE_READS = 32  # of a store or server, where nearly all of the time is waiting


def files_at_once(entries: Entries, tasks: int) -> tuple[int, str]:
    """Return how many files each of so many tasks is to read at the same time; and why, where they were tried."""
    if entries.is_remote:
        return _REMOTE_READS, ""
    file_s = opening_s(entries)
    reads = reads_at_once(file_s, tasks)
    why = f"opening a file takes {show_time(file_s)}: each worker reads {reads} at the same time"
    return reads, why if reads > 1 else ""


def opening_s(entries: Entries) -> float:
    """Return the seconds that it takes to open a file and read its start: the median of a few; 0 where none is read.

    What is wrong with a file is found when it is packed.
    """
    rows, into = entries.rows, memoryview(bytearray(_HEAD))
    times: list[float] = []
    end = time.monotonic() + _MOST_S
    for row in (at * _STRIDE % len(rows.kind) for at in range(min(_LOOKED_AT, len(rows.kind)))):
        if len(times) == _TRIED or time.monotonic() > end:
            break
        if (kind := int(rows.kind[row])) in (FILE, LINK):
            begun = time.perf_counter()
            with suppress(OSError):
                storage.read_file(
                    entries.place(row), into, storage.READ_PLAIN if kind == FILE else storage.READ_FOLLOWING
                )
            times.append(time.perf_counter() - begun)
    return sorted(times)[len(times) // 2] if times else 0.0


def reads_at_once(file_s: float, workers: int) -> int:
    """Return how many files each of `workers` is to read at the same time, if opening one takes `file_s` seconds."""
    return 1 if file_s < _SLOW_S else max(1, min(_READS, _ALL_READS // workers))


# Checksums. A CRC-32C compares payloads with what an index says of them. A digest proves that two payloads are the
# same: BLAKE2b (RFC 7693) of 16 bytes, which nobody makes two of.


_DIGEST_SIZE = 16  # bytes
_BLOCK = 2**16  # bytes of a file at a time: of many that are small, a larger buffer for each would cost more


class _Crc:
    """The CRC-32C of what it is given."""

    def __init__(self) -> None:
        self._crc = 0

    def update(self, block: bytes | memoryview, /) -> None:
        self._crc = crc32c(block, self._crc)

    def value(self) -> int:
        return self._crc


class _Digest:
    """The digest of what it is given, as a number."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=_DIGEST_SIZE)
        self.update = self._hash.update

    def value(self) -> int:
        return int.from_bytes(self._hash.digest(), "little")


_Sum = _Crc | _Digest


def source_sums(
    source: Source | None, entries: Entries, rows: Rows, pool: Pool, observer: Observer | None = None
) -> Rows:
    """Return the CRC-32C of the payloads of rows that are not INLINE: int64, -1 where it cannot be had.

    What an index says is taken for it.

    Args:
        source: Where payloads of a table, or of an archive that is read in sequence, come from; else None.
        entries: The samples.
        rows: The payloads.
        pool: Reads them.
        observer: Gets progress.

    Raises:
        CorruptShard: A shard of the source cannot be read.
    """
    import numpy as np

    sums, spans = np.full(len(rows), -1, np.int64), entries.rows.kind[rows] == SPAN
    if spans.any() and entries.known_spans.files:
        sums[spans] = entries.known_spans.expected[rows[spans]]
    unknown = np.flatnonzero(sums < 0)
    sums[unknown] = _read(source, entries, rows[unknown], pool, observer, _Crc)
    return sums


def source_digests(
    source: Source | None, entries: Entries, rows: Rows, pool: Pool, observer: Observer | None = None
) -> NDArray[np.bytes_]:
    """Return the digest of the payload of each row, 16 bytes, all 0 where it cannot be had; all are read.

    Raises:
        CorruptShard: A shard of the source cannot be read.
    """
    import numpy as np

    inline, found = entries.rows.kind[rows] == INLINE, np.zeros(len(rows), f"S{_DIGEST_SIZE}")
    texts = inline_payloads(entries, rows[inline], as_numbers=False)
    found[inline] = [_shown(_sum_of([text], _Digest())) for text in texts]
    found[~inline] = [*map(_shown, _read(source, entries, rows[~inline], pool, observer, _Digest))]
    return found


def _shown(digest: int) -> bytes:
    return b"" if digest < 0 else digest.to_bytes(_DIGEST_SIZE, "little")


def inline_sums(entries: Entries, rows: Rows, *, as_numbers: bool) -> tuple[Rows, Rows]:
    """Return the bytes and the CRC-32C of payloads as far as nothing is read for it: -1 where they are not INLINE."""
    import numpy as np

    sizes, sums = entries.rows.size[rows], np.full(len(rows), -1, np.int64)
    inline = np.flatnonzero(entries.rows.kind[rows] == INLINE)
    payloads = inline_payloads(entries, rows[inline], as_numbers=as_numbers)
    for at, data in zip(inline.tolist(), payloads, strict=True):
        sizes[at], sums[at] = len(data), crc32c(data)
    return sizes, sums


def inline_payloads(entries: Entries, rows: Rows, *, as_numbers: bool) -> Iterator[bytes]:
    """Yield the payloads of INLINE rows; `as_numbers`: of numbers, what a TFRecord holds for them."""
    owners, numbers = entries.owners(rows), entries.values.numbers
    for sample, code in zip(owners.tolist(), entries.rows.code[rows].tolist(), strict=True):
        field = entries.fields[code]
        text, number = entries.values.inline[field].span(sample, sample + 1)[:-1], numbers.get(field)
        yield inline_payload(text) if number is None or not as_numbers else encode_number(text, number)


def _read(
    source: Source | None, entries: Entries, rows: Rows, pool: Pool, observer: Observer | None, kind: type[_Sum]
) -> list[int]:
    """Return a sum of each payload that workers, or for a table this process, read; -1 where it cannot be had."""
    import numpy as np

    sums, kinds = [-1] * len(rows), entries.rows.kind[rows]
    spans, files = np.flatnonzero(kinds == SPAN), int(np.count_nonzero((kinds == FILE) | (kinds == LINK)))
    reads = files_at_once(entries, min(-(-files // FILES_A_TASK), cores()))[0] if files else 1
    tasks = payload_tasks(entries, rows, reads=reads)
    if len(spans) and source is not None and not entries.known_spans.files:
        sink = _Sums(entries.known_spans.offset[rows[spans]], entries.rows.size[rows[spans]], kind)
        source.write_binary(sink)
        for at, value in zip(spans.tolist(), sink.sums, strict=True):
            sums[at] = value
    function, observer = sum_task if kind is _Crc else digest_task, observer or Observer()
    observer.phase("comparing", int(entries.rows.size[rows].sum()))
    for number, found in pool.map(function, [task for _, task in tasks]):
        which = tasks[number][0]
        observer.advance(0, int(entries.rows.size[rows[which]].sum()), 0)
        for at, value in zip(which.tolist(), found, strict=True):
            sums[at] = value
    return sums


class _Sums:
    """Takes a spool's bytes in order, and keeps nothing of them but the sums of spans."""

    def __init__(self, offsets: Rows, sizes: Rows, kind: type[_Sum]) -> None:
        self.sums, self._kind, self._sum = [kind().value()] * len(offsets), kind, kind()
        self._order = offsets.argsort(kind="stable")
        self._starts, self._ends = offsets[self._order], (offsets + sizes)[self._order]
        self._at = self._next = 0

    def write(self, data: bytes | memoryview) -> None:
        """Take the bytes that follow."""
        view = memoryview(data)
        first, last = self._at, self._at + len(view)
        while self._next < len(self._starts) and self._starts[self._next] < last:
            start, end = int(self._starts[self._next]), int(self._ends[self._next])
            self._sum.update(view[max(0, start - first) : min(end, last) - first])
            if end > last:
                break
            self.sums[int(self._order[self._next])], self._sum = self._sum.value(), self._kind()
            self._next += 1
        self._at = last


# In the workers, which import nothing heavy.


def sum_task(task: Files | Spans) -> list[int]:
    """Return the CRC-32C of each payload; -1 for a file that cannot be read. Runs in a worker.

    Raises:
        CorruptShard: A shard cannot be read.
    """
    return _sum(task, _Crc)


def digest_task(task: Files | Spans) -> list[int]:
    """Return the digest of each payload; -1 for a file that cannot be read. Runs in a worker.

    Raises:
        CorruptShard: A shard cannot be read.
    """
    return _sum(task, _Digest)


def _sum(task: Files | Spans, kind: Callable[[], _Sum]) -> list[int]:
    if isinstance(task, Spans):
        return _sum_spans(task, kind)
    files, found = [*zip(task.paths, task.links, strict=True)], [-1] * len(task.paths)
    if task.reads > 1:  # where opening a file takes long
        try:
            found = [*storage.together(partial(_sum_file, kind), files, task.reads)]
        except (MemoryError, OSError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
    # All; else what is left once no threads take memory, and not too many files are open.
    return [_sum_file(kind, file) if value < 0 else value for file, value in zip(files, found, strict=True)]


def _sum_file(kind: Callable[[], _Sum], file: tuple[bytes, int]) -> int:
    """Return the sum of a file, which is read through a link or is none; -1 for one that cannot be read."""
    path, link = file
    try:
        with storage.open_source(path, storage.READ_FOLLOWING if link else storage.READ_PLAIN) as opened:
            return _sum_of(opened.blocks(memoryview(bytearray(_BLOCK))), kind())
    except OSError as error:
        if is_out_of_memory(error):
            raise
        return -1


def _sum_spans(task: Spans, kind: Callable[[], _Sum]) -> list[int]:
    places = zip(array("q", task.offsets), array("q", task.lengths), strict=True)
    if task.form == "zip":
        with ShardFile(task.path) as file:
            return [_sum_member(file, kind(), *place) for place in places]
    with open_shard(task.path) as shard:
        return [_sum_of(payload(shard, *place, task.path), kind()) for place in places]


def _sum_member(file: ShardFile, into: _Sum, offset: int, length: int) -> int:
    """Return the sum of the payload of a zip's member; -1 where it is damaged."""
    try:
        return _sum_of(zip_read.payload(file.read, offset, length, file.path), into)
    except CorruptShard:
        return -1


def _sum_of(blocks: Iterable[bytes | memoryview], into: _Sum) -> int:
    for block in blocks:
        into.update(block)
    return into.value()


# The top-level texts, numbers and truths of JSON payloads, and payloads that are a plain number or a short text.
#
# They are read in workers: `selecting` makes columns of them.
# What comes back is lines of JSON, which a reader of tables takes as they are.


Scalar = str | int | float | bool | None
_Problem = tuple[SkipCode, str]
_MOST, _MOST_SCALARS = 2**24, 2**20  # bytes of a payload, and of what is taken of it
LONG_TEXT = 2**15  # letters: longer texts are no metadata, such as the images that labelme keeps in its JSON
_SHORT = 2**10  # bytes of a payload that is no JSON object and becomes one value
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)  # JSON's, so that 007 stays text
_WHOLE = 2**63  # whole numbers beyond fit into no column
_KINDS = {str: "text", int: "number", float: "number", bool: "truth", list: "list"}


class Scalars(NamedTuple):
    """The scalars of some payloads.

    Attributes:
        lines: A JSON object and a newline for each payload; an empty object where it cannot be read.
        kinds: For each name, how many of its values are of which kind.
        long: For each name, how many of its values are longer than `LONG_TEXT`, and were left out.
        failed: The places of those that cannot be read, and why.
    """

    lines: bytes
    kinds: Mapping[str, Counter[str]]
    long: Counter[str]
    failed: tuple[tuple[int, SkipCode, str], ...]


def read_scalars(task: tuple[str, Files | Spans]) -> Scalars:
    """Return the scalars of a field's payloads. Runs in a worker.

    Raises:
        CorruptShard: A shard cannot be read.
    """
    field, payloads = task
    return scalars_of(field, _payloads(payloads))


def scalars_of(field: str, payloads: Iterable[bytes | _Problem]) -> Scalars:
    """Return the scalars of a field's payloads, or of why they cannot be read."""
    lines, kinds, long = [], dict[str, Counter[str]](), Counter[str]()
    failed = list[tuple[int, SkipCode, str]]()
    for at, data in enumerate(payloads):
        line, scalars = b"{}", dict[str, Scalar]()
        if isinstance(data, bytes):
            try:
                line, scalars = _scalars(field, data, long)
            except (TypeError, ValueError, RecursionError) as error:
                failed.append((at, "bad-json", _problem(error)))
        else:
            failed.append((at, *data))
        for name, value in scalars.items():
            if value is not None:
                kinds.setdefault(name, Counter())[_KINDS[type(value)]] += 1
        lines.append(line)
    return Scalars(b"\n".join([*lines, b""]), kinds, long, tuple(failed))


def _scalars(field: str, payload: bytes, long: Counter[str]) -> tuple[bytes, dict[str, Scalar]]:
    """Return the values at the top of a JSON object that are no lists or objects, as a line of JSON too.

    What JSON has no number for is null. `long` counts the texts that are left out. A payload that is no object is a
    number or a text by the name of the field, unless that says that it is JSON.

    Raises:
        TypeError: It is no object.
        ValueError: It is no JSON, or holds what no column can, or too much of it.
        RecursionError: It is nested too deep.
    """
    is_json = payload.lstrip()[:1] == b"{" or field.rpartition(".")[2].lower() == "json"
    found = json.loads(payload) if is_json else {field: _plain(payload)}
    if not isinstance(found, dict):
        raise TypeError(f"a JSON {_KINDS.get(type(found), 'null')}, not an object")
    scalars: dict[str, Scalar] = {}
    for name, value in found.items():
        if isinstance(value, int) and not -_WHOLE <= value < _WHOLE:
            raise ValueError(f"a whole number over 2^63: {name[:80]!r}")
        if isinstance(value, str) and len(value) > LONG_TEXT:
            long[name] += 1
        elif not isinstance(value, (list, dict)):
            scalars[name] = None if isinstance(value, float) and not math.isfinite(value) else value
    line = json.dumps(scalars, ensure_ascii=False, separators=(",", ":")).encode()
    if len(line) > _MOST_SCALARS:
        raise ValueError(f"{len(line):,} bytes of texts and numbers at its top, more than {_MOST_SCALARS:,}")
    return line, scalars


def _plain(payload: bytes) -> Scalar:
    """Return what a payload is that is one value; nothing where it is empty.

    Raises:
        ValueError: It is no plain number or short text.
    """
    if len(payload) > _SHORT:
        raise ValueError(f"{len(payload):,} bytes: no JSON object, and no number or text of at most {_SHORT:,}")
    text = payload.decode().strip()
    if any(ord(letter) < ord(" ") and letter not in "\t\r\n" for letter in text):
        raise ValueError("control characters: no JSON object, number or text")
    value = json.loads(text) if _NUMBER.fullmatch(text) else text
    is_text = isinstance(value, int) and not -_WHOLE <= value < _WHOLE
    return (text if is_text else value) if text else None


def _problem(error: Exception) -> str:
    """Return what is wrong with a payload, in words."""
    if isinstance(error, UnicodeError):
        return "text that is no Unicode"
    if isinstance(error, RecursionError):
        return "lists or objects far too deep in each other"
    return f"no JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)


def _of_file(one: tuple[bytes, int]) -> bytes | _Problem:
    path, link = one
    try:
        return storage.read_small(
            storage.address_of(path), _MOST, flags=storage.READ_FOLLOWING if link else storage.READ_PLAIN
        )
    except OSError as error:
        return "unreadable", reason(error)
    except StoreFailed as failed:  # a file of the source that cannot be read is left out by name
        if failed.of_file and isinstance(failed.__context__, OSError):
            return "unreadable", reason(failed.__context__)
        raise


def _payloads(task: Files | Spans) -> Iterator[bytes | _Problem]:
    """Yield each payload, or why it cannot be read, or is not the one that an index knows."""
    if isinstance(task, Files):
        yield from storage.for_each(
            _of_file, zip(task.paths, task.links, strict=True), lambda one: storage.address_of(one[0])
        )
        return
    with ShardFile(task.path) if task.form == "zip" else open_shard(task.path) as shard:
        numbers = (array("q", one) for one in (task.offsets, task.lengths, task.crcs))
        for offset, length, crc in zip(*numbers, strict=True):
            if length > _MOST:
                yield "unreadable", f"{length:,} bytes, too large"
            elif task.form == "zip":
                yield _member(shard, offset, length)
            else:
                data = bytes(shard.read(offset, length))
                is_right = crc < 0 or crc32c(data) == crc
                yield data if is_right else ("corrupt", f"the CRC-32C {crc32c(data):08x}, not {crc:08x}")


def _member(file: ShardFile | PackedFile, offset: int, length: int) -> bytes | _Problem:
    """Return the payload of a zip's member."""
    try:
        return b"".join(zip_read.payload(file.read, offset, length, file.path))
    except CorruptShard as error:
        return "unreadable", error.found.lower()


# The texts of numbers that lie in a shard.
#
# A number of a TFRecord has a text, which is what a tar shard holds; and the text of a tar shard may stand for a number
# that a TFRecord can hold. The two are the same number only where each gives the other back to the byte.


_FLOAT_BYTES = 4
_LONGEST = 40  # bytes of a text that may stand for a number, or of a stored one
_LEAST_NORMAL = 2.0**-126
_DIGITS = (6, 7, 8, 9)  # that a float of 32 bits may need; a subnormal one fewer


class NumberField(NamedTuple):
    """The values of one field in one shard.

    Attributes:
        field: Its name.
        number: What they are, or may stand for.
        stored: Whether they lie there as a TFRecord stores them; else they are texts.
        offsets: int64 per value.
        lengths: int64 per value.
        crcs: int64 per value, -1: unknown.
    """

    field: str
    number: Number
    stored: bool
    offsets: bytes
    lengths: bytes
    crcs: bytes


class TextTask(NamedTuple):
    """A shard to read numbers from; `salvage`: a damaged one is noted, and no error."""

    file: SpanFile
    wanted: tuple[NumberField, ...]
    salvage: bool = False


@dataclass(slots=True)
class Texts:
    """The texts of one field in one shard.

    Attributes:
        data: In order, a NUL after each; of no use where some are `bad`.
        bad: How many are none that a TFRecord would give back.
        rounded: How many of these are numbers all the same.
        first_bad: The place of the first among the field's values.
        damaged: The places of those that are damaged, whose text is empty.
    """

    data: bytes = b""
    bad: int = 0
    rounded: int = 0
    first_bad: int = -1
    damaged: list[int] = field(default_factory=list)


def read_texts(task: TextTask) -> list[Texts]:
    """Return the texts of each of the fields wanted.

    Raises:
        CorruptShard: The shard is another one than was listed, or a value has not its checksum, or is no number.
    """
    columns = [[array("q", data) for data in (one.offsets, one.lengths, one.crcs)] for one in task.wanted]
    places = sorted(  # in the order of the file: a compressed one is read in sequence only
        (offset, length, crc, number, at)
        for number, (offsets, lengths, crcs) in enumerate(columns)
        for at, (offset, length, crc) in enumerate(zip(offsets, lengths, crcs, strict=True))
    )
    texts: list[list[bytes]] = [[b""] * len(column[0]) for column in columns]
    found = [Texts() for _ in task.wanted]
    with open_shard(path := os.fsdecode(task.file.path)) as shard:
        if isinstance(shard, ShardFile) and (shard.size, shard.mtime_ns) != (task.file.size, task.file.mtime_ns):
            raise CorruptShard(path, "changed while it was read", remedy="Run the command again.")
        for offset, length, crc, number, at in places:
            one = task.wanted[number]
            try:
                text = _text(shard, offset, length, crc, one)
            except CorruptShard:
                if not task.salvage:
                    raise
                found[number].damaged.append(at)
                continue
            texts[number][at] = text
            if not one.stored and not _comes_back(text, one.number):
                result = found[number]
                result.bad += 1
                result.rounded += _is_number(text)
                result.first_bad = at if result.first_bad < 0 else result.first_bad
    for result, values in zip(found, texts, strict=True):
        result.data = b"" if result.bad else b"".join([value + b"\0" for value in values])
    return found


def _text(shard: ShardFile | PackedFile, offset: int, length: int, crc: int, one: NumberField) -> bytes:
    """Return the text of one value."""
    data = _checked(shard, offset, length, crc, one) if length <= _LONGEST else b""
    text = data if not one.stored else float_text(data) if one.number == "float" else int_text(data)
    if text is None or (one.stored and length > _LONGEST):
        raise CorruptShard(f"{shard.path}, at {offset:,}", f"field {one.field!r} is no {one.number}")
    return text


def int_text(data: bytes) -> bytes | None:
    """Return the text of a whole number as a TFRecord stores it; None where `data` is not just one."""
    try:
        numbers = numbers_of(b"\x0a%b%b" % (bytes([len(data)]), data), "int64")  # as a list of one packed part
    except ValueError:
        return None
    return b"%d" % numbers[0] if len(numbers) == 1 else None


def float_text(data: bytes) -> bytes | None:
    """Return the shortest text that gives the same 32-bit float back, as Python writes floats; None: not just one."""
    if len(data) != _FLOAT_BYTES:
        return None
    (value,) = struct.unpack("<f", data)
    if not value or not math.isfinite(value):
        return b"%a" % value
    for digits in _DIGITS if abs(value) >= _LEAST_NORMAL else range(1, 10):
        text = f"{value:.{digits - 1}e}"
        if data[:2] == b"\0\0" and struct.pack("<f", float(text)) != data:  # of a power of two, most of what rounds to
            mantissa, exponent = text.replace(".", "").split("e")  # it lies further from zero
            text = f"{int(mantissa) + (1 if value > 0 else -1)}e{int(exponent) - digits + 1}"
        if struct.pack("<f", float(text)) == data:
            break
    return b"%a" % float(text)


def _checked(shard: ShardFile | PackedFile, offset: int, length: int, crc: int, wanted: NumberField) -> bytes:
    data = bytes(shard.read(offset, length))
    if len(data) < length or (crc >= 0 and crc32c(data) != crc):
        found = f"field {wanted.field!r} has the CRC-32C {crc32c(data):08x}"
        expected = f"{crc:08x}" if crc >= 0 else f"{length:,} bytes"
        remedy = "Nothing of it was copied. `shardtool verify` shows what else is wrong with that dataset."
        raise CorruptShard(f"{shard.path}, at {offset:,}", found, expected=expected, remedy=remedy)
    return data


def _comes_back(text: bytes, number: Number) -> bool:
    """Tell whether a text is what a TFRecord that stores its number gives back."""
    try:
        if number == "int64":
            return b"%d" % int(text) == text and -INT64_LIMIT <= int(text) < INT64_LIMIT
        return float_text(encode_number(text, number)) == text
    except (ValueError, OverflowError):
        return False


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
