"""One finished shard: its bytes at any place, compressed or not; which of these it is; and what a walk over it finds.

Its name tells, and where that tells nothing, as for the blobs of a store and TensorFlow's `train-00000-of-01024`, its
first bytes do.

A walk runs in a worker, for shards made by any tool. A sample is a run of members with one key (WebDataset's rule, `./`
before a name not counted), or one record of a TFRecord file. Payloads are read only where checksums are asked for.
"""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_left, bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from shardtool.errors import (
    CorruptShard,
    InvalidRequest,
    OutputFailed,
    machine_reads,
    printable,
    raise_if_machines,
    reason,
)
from shardtool.fingerprint import content_digest, crc32c
from shardtool.format import tar, tfrecord
from shardtool.pattern import KNOWN, NameFacts, part_of, read_name
from shardtool.storage.places import base_name, dangling, is_file, is_url, open_file, read_head
from shardtool.values import BLOCK, FIELD_LIMIT, Dots, Kind, is_utf8, source_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from io import BufferedReader

    from typing_extensions import Self

FETCH = "Fetch what it leads to: `git annex get`, `dvc pull`, or the download again."
_WINDOW = 2**20
_STEP = 2**14  # bytes that are unpacked at once: what lies before damage in them cannot be read
_STARTS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}  # of compressed files
_XZ_MEMORY = 2**27  # bytes that unpacking may take: `xz -9` asks for half; a file may claim 4 GiB


class ShardFile:
    """The bytes of one shard, at any place, through a window: many headers cost one system call, or one request.

    Of a place that lies far from the last one only a little is read. Use it in a `with` block.

    Raises:
        CorruptShard: It is no plain file, or cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._file = open_file(path)
        except OSError as error:
            raise unopened(path, error) from None
        fact = self._file.fact()
        self.size, self.mtime_ns = fact.st_size, fact.st_mtime_ns
        self._start, self._window = 0, b""

    def stream(self) -> BufferedReader:
        """Return it as a file of Python's that is read from its start on, and that must be closed, too."""
        with machine_reads(self.path):
            return self._file.stream()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return `length` bytes from `offset` on: fewer only at the end of the file.

        Raises:
            CorruptShard: The disk fails, or another file is there by now.
        """
        at = offset - self._start
        if at >= 0 and at + length <= len(self._window):
            return self._window[at : at + length]
        file = self._file
        near = 0 <= at <= len(self._window) + file.near
        self._start, self._window = offset, self._read(offset, max(length, file.window if near else file.hop))
        return self._window[:length]

    def _read(self, offset: int, length: int) -> bytes:
        try:  # a context manager would take as long as the reading
            return self._file.read(offset, min(length, max(0, self.size - offset)))
        except OSError as error:
            raise self._failed(offset, error) from None

    def _failed(self, offset: int, error: OSError) -> CorruptShard:
        """Return what the disk says of a place as what is wrong with the shard, unless the machine is to blame."""
        raise_if_machines(error, self.path)
        return CorruptShard(self.path, f"cannot be read: {reason(error)}", offset=offset)


class SummedFile(ShardFile):
    """The bytes of one shard, best read from its start on: the CRC-32C of the file is taken on the way.

    Each block is summed while it is in the processor's cache, so that taking checksums of payloads too costs
    for one pass. A place behind the window is read again, and not summed twice. What `read` returns holds until the
    next call.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._stream = self.stream()
        self._view = memoryview(bytearray(2 * _WINDOW))
        self._crc = self._end = self._held = 0  # of what was summed; where that ends; bytes in the window

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return `length` bytes from `offset` on: fewer only at the end of the file.

        Raises:
            CorruptShard: The disk fails, or another file is there by now.
        """
        at = offset - self._start
        if at >= 0 and at + length <= self._held:
            return self._view[at : at + length]
        if at < 0:
            return self._read(offset, length)
        while self._end < offset and self._fill(0):
            at = offset - self._start
        kept = max(0, self._held - at)
        moved = self._view[at : at + kept]
        if length + _WINDOW > len(self._view):
            self._view = memoryview(bytearray(length + _WINDOW))
        self._view[:kept] = moved
        self._start, self._held = offset, kept
        while self._held < length and self._fill(self._held):
            pass
        return self._view[: min(length, self._held)]

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        super().__exit__()

    def crc(self) -> int:
        """Read the rest, and return the CRC-32C of the file."""
        while self._fill(0):
            pass
        return self._crc

    def _fill(self, at: int) -> int:
        """Read the next block to a place in the window; return its bytes. At 0 it is all that the window holds."""
        block = self._view[at : at + min(_WINDOW, max(0, self.size - self._end))]
        try:
            got = self._stream.readinto(block) if len(block) else 0
        except OSError as error:
            raise self._failed(self._end, error) from None
        self._crc = crc32c(block[:got], self._crc)
        if not at:
            self._start = self._end
        self._held = at + got
        self._end += got
        return got


class _XzStream:
    """What an xz file holds, one stream after the other: pyarrow unpacks all other kinds, but not these."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._packed = file, b""
        self._next()

    def _next(self) -> None:
        from lzma import FORMAT_XZ, LZMADecompressor

        self._unpack = LZMADecompressor(FORMAT_XZ, memlimit=_XZ_MEMORY)

    def read(self, size: int) -> bytes:
        """Return some bytes, and none at the end.

        Raises:
            ValueError: The data is damaged, or wants more memory than it may.
            OSError: It ends too early, or cannot be read.
        """
        from lzma import LZMAError

        while True:
            if self._unpack.eof:
                self._packed = (self._unpack.unused_data or self._file.read(_WINDOW)).lstrip(b"\0")
                if not self._packed:
                    return b""
                self._next()
            elif self._unpack.needs_input and not self._packed:
                self._packed = self._file.read(_WINDOW)
                if not self._packed:
                    raise OSError("Truncated compressed stream")
            try:
                found = self._unpack.decompress(self._packed, size)
            except LZMAError as error:
                raise ValueError(str(error)) from None
            self._packed = b""
            if found:
                return found

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


class PackedFile:
    """The bytes of a compressed shard, in sequence: a place before the last one can be read again only if it is held.

    Args:
        path: Where it is.
        packing: How it is compressed; None: as its name, or its first bytes, tell.

    Attributes:
        packed_size: Bytes of the file.

    Raises:
        CorruptShard: It is no plain file, or cannot be opened.
    """

    def __init__(self, path: str, packing: str | None = None) -> None:
        import pyarrow as pa

        self.path, self.size = path, -1
        packing = packing or shard_kind(path).packing
        with ShardFile(path) as plain:  # opens no FIFO
            self.packed_size, file = plain.size, plain.stream()
        self._stream: Any  # with `read` and `close`
        try:
            xz = packing == "xz"
            self._stream = _XzStream(file) if xz else pa.CompressedInputStream(pa.PythonFile(file, "r"), packing)
        except (OSError, ValueError) as error:
            file.close()
            raise CorruptShard(path, f"cannot be opened: {error}") from None
        except (ImportError, NotImplementedError):
            file.close()
            raise InvalidRequest(path, f"compressed with {packing}, which this Python cannot unpack") from None
        self._start, self._window = 0, b""
        self._failed: Exception | None = None
        self._held: IO[bytes] | None = None
        self._held_start = self._held_end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        if self._held is not None:
            self._held.close()

    def hold(self, offset: int, length: int) -> IO[bytes]:
        """Keep the bytes at a place at hand, in a temporary file, until the next are: these can be read in any order.

        Returns:
            The file, which has no name.

        Raises:
            CorruptShard: The compressed data is damaged.
            OutputFailed: There is no room for them.
        """
        from tempfile import TemporaryFile, gettempdir

        at, end = offset, offset + length
        self._held_end = 0
        try:
            if self._held is None:
                self._held = TemporaryFile()  # noqa: SIM115 - closed with this object
            self._held.seek(0)
            self._held.truncate()
            while at < end and (block := self.read(at, min(_WINDOW, end - at))):
                self._held.write(block)
                at += len(block)
            self._held.flush()
        except OSError as error:
            remedy = "Let TMPDIR name a folder that has room, or make plain shards of it with `shardtool reshard`."
            raise OutputFailed(gettempdir(), f"no room to unpack {self.path}: {reason(error)}", remedy=remedy) from None
        self._held_start, self._held_end = offset, at
        return self._held

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return `length` bytes from `offset` on: fewer only at the end.

        Raises:
            CorruptShard: The compressed data is damaged.
        """
        if self._held is not None and self._held_start <= offset < self._held_end:
            found = os.pread(self._held.fileno(), min(length, self._held_end - offset), offset - self._held_start)
            return found if len(found) == length else found + self.read(offset + len(found), length - len(found))
        if offset < self._start:
            raise CorruptShard(self.path, "a compressed shard is read in sequence only", offset=offset)
        try:
            while offset >= self._start + len(self._window):
                self._start += len(self._window)
                self._window = self._unpacked(_WINDOW)
                if not self._window:
                    return b""
            at = offset - self._start
            while len(self._window) < at + length and (more := self._unpacked(max(_WINDOW, length))):
                self._window = self._window[at:] + more
                self._start, at = offset, 0
        except (OSError, ValueError) as error:
            raise CorruptShard(self.path, f"cannot be decompressed: {error}", offset=offset) from None
        return self._window[at : at + length]

    def _unpacked(self, length: int) -> bytes:
        """Return what comes next, up to damage if there is any, in steps that are always the same."""
        if self._failed is not None:
            raise self._failed
        parts, got = [], 0
        try:
            while got < length and (part := self._stream.read(_STEP)):
                parts.append(part)
                got += len(part)
        except (OSError, ValueError) as error:
            self._failed = error
            if not parts:
                raise
        return b"".join(parts)


def unopened(path: str, error: OSError, remedy: str = "") -> CorruptShard:
    """Return the error that a shard cannot be opened, with what to do where it is a link to what was not fetched."""
    if not is_url(path) and (target := dangling(path)) is not None:
        return CorruptShard(path, f"cannot be opened: a link to nothing, {printable(target)}", remedy=FETCH)
    return CorruptShard(path, f"cannot be opened: {reason(error)}", remedy=remedy)


def absence(path: str) -> tuple[str, str]:
    """Return what there is in place of a shard that is no plain file, and how to get it; empty: that is not known."""
    if is_url(path):
        return "no such object", ""
    if (target := dangling(path)) is not None:
        return f"a link to nothing, {printable(target)}", FETCH
    return "no plain file" if os.path.lexists(path) else "no such file", ""


def open_shard(path: str) -> ShardFile | PackedFile:
    """Return a shard for reading, compressed or not.

    Raises:
        CorruptShard: It cannot be opened.
        InvalidRequest: It is no shard.
    """
    packing = shard_kind(path).packing
    return PackedFile(path, packing) if packing else ShardFile(path)


def is_packed(path: str) -> bool:
    """Tell whether a shard is compressed.

    Raises:
        CorruptShard: Its name does not tell, and it cannot be opened.
        InvalidRequest: It is no shard.
    """
    return bool(shard_kind(path).packing)


def shard_kind(path: str) -> NameFacts:
    """Return what a shard is, as its name or else its first bytes tell.

    Raises:
        CorruptShard: Its name does not tell, and it cannot be opened.
        InvalidRequest: Neither tells, so that it is no shard.
    """
    if facts := read_name(base_name(path)):
        return facts
    if (is_file(path) if is_url(path) else os.path.lexists(path)) and (facts := looks_like(path)):
        return facts
    if part_of(base_name(path)):
        return NameFacts("tfrecord")  # a missing, empty or damaged one: only TensorFlow numbers files so
    expected = f"a name that ends in one of {KNOWN}"
    raise InvalidRequest(path, "neither tar nor TFRecord by its name or its first bytes", expected=expected)


def misnamed(path: str, error: CorruptShard) -> CorruptShard:
    """Return what is wrong with a shard of which nothing could be read: its name may tell another kind than it is."""
    found = looks_like(path)
    if found in (None, shard_kind(path)):
        return error
    what = f"a {found.format} shard{found.packing and f' packed with {found.packing}'}"
    return CorruptShard(
        path, f"not what its name tells: by its first bytes {what}", offset=0,
        remedy="Give it the right ending, or a link to it that has one.",
    )  # fmt: skip


def looks_like(path: str) -> NameFacts | None:
    """Return what the first bytes of a file tell; None: it is no shard, or an empty one.

    Raises:
        CorruptShard: It cannot be opened.
    """
    try:
        start, _ = read_head(path, tar.BLOCK)
    except OSError as error:
        raise unopened(path, error) from None
    packing = next((name for magic, name in _STARTS.items() if start.startswith(magic)), "")
    if packing:
        start = b""
        with suppress(CorruptShard), PackedFile(path, packing) as packed:
            start = bytes(packed.read(0, tar.BLOCK))
    if tfrecord.is_start(start):
        return NameFacts("tfrecord", packing)
    return NameFacts("tar", packing) if tar.is_start(start) else None


def payload(
    shard: ShardFile | PackedFile, offset: int, length: int, where: str, *, most: int | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a payload, a piece at a time, and no more than the first `most`.

    Raises:
        CorruptShard: The shard ends before.
    """
    if shard.size >= 0 and not 0 <= offset <= offset + length <= shard.size:
        raise CorruptShard(where, f"{length:,} bytes at {offset:,}", expected=f"a place in {shard.size:,} bytes")
    length = length if most is None else min(length, most)
    while length > 0:
        block = bytes(shard.read(offset, min(length, _WINDOW)))
        if not block:
            raise CorruptShard(where, f"the shard ends at {offset:,}", expected=f"{length:,} more bytes")
        yield block
        offset, length = offset + len(block), length - len(block)


# What can still be read of a damaged shard: members and records behind the damage, and which samples are whole.
#
# A tar has no checksums of payloads, and does not say which members make a sample. So a sample next to a lost part
# counts as whole only if it has all the fields that samples of the shard have; another one may have lost some.


_MOST_SALVAGED = 2**16  # lost parts of a shard: what has more is no shard
_MAY_MISS = "fields of it may be lost there"


class LostRange(NamedTuple):
    """A part of a shard that could not be read.

    Attributes:
        start: Where it starts.
        end: Where the shard goes on; -1: nowhere.
        found: What is wrong there.
        name: Of a tar, the name in the damaged header, as far as that seems to have one.
    """

    start: int
    end: int
    found: str
    name: bytes = b""

    def __str__(self) -> str:
        rest = f"{self.end - self.start:,} bytes" if self.end >= 0 else "all from there on"
        return f"at {self.start:,}: {self.found}; passed over: {rest}"


def what_is_wrong(error: CorruptShard) -> str:
    """Return what an error says, without the place and what to do."""
    return f"{error.problem}, expected {error.expected}" if error.expected else error.problem


def walk_members(
    shard: ShardFile | PackedFile, note: Callable[[int, str], None], lost: list[LostRange]
) -> Iterator[tar.Member]:
    """Yield the members of a tar that can be read; what cannot is added to `lost`."""
    at, doubtful = 0, False
    while at >= 0:
        try:
            for member in tar.walk(shard.read, shard.path, note, at):
                at = member.end
                if doubtful and member.data - member.offset == tar.BLOCK and tar.may_lack_its_name(member.name):
                    lost.append(LostRange(member.offset, at, "a member whose long name may be lost", member.name))
                else:
                    yield member
                doubtful = False
        except CorruptShard as error:
            lost.append(_lost_of_tar(shard, at, error))
            at, doubtful = lost[-1].end, True
            if len(lost) > _MOST_SALVAGED:
                raise
        else:
            return


def _lost_of_tar(shard: ShardFile | PackedFile, at: int, error: CorruptShard) -> LostRange:
    at = at if shard.size < 0 else min(at, shard.size)
    place = at if error.offset is None else max(at, error.offset)
    try:
        block = bytes(shard.read(place, tar.BLOCK))
        end = tar.next_header(shard.read, place, place + (place == at), shard.size)
    except CorruptShard:  # of what is compressed, nothing behind it can be read
        return LostRange(at, -1, what_is_wrong(error))
    return LostRange(at, -1 if end is None else end, what_is_wrong(error), tar.seeming_name(block))


def walk_records(
    shard: ShardFile | PackedFile, hold: Callable[[int, int], object] | None, lost: list[LostRange]
) -> Iterator[tfrecord.Record]:
    """Yield the records of a TFRecord file that can be read; what cannot is added to `lost`."""
    at = before = 0
    while at >= 0:
        try:
            for record in tfrecord.walk(shard.read, shard.path, hold, at):
                before, at = record.offset, record.end
                yield record
        except CorruptShard as error:
            # A record whose data is damaged may be shorter than its head says: what follows begins in it.
            cut = bool(lost) and lost[-1].start == before < at == lost[-1].end and shard.size >= 0
            try:
                end = tfrecord.next_record(shard.read, at, before + 1 if cut else at + 1, shard.size)
            except CorruptShard:  # of what is compressed, nothing behind it can be read
                end = None
            found = lost.pop() if cut else LostRange(at, -1, what_is_wrong(error))
            lost.append(found._replace(end=-1 if end is None else end))
            at = lost[-1].end
            if len(lost) > _MOST_SALVAGED:
                raise
        else:
            return


def torn_samples(keys: Sequence[bytes], fields: Sequence[frozenset[int]]) -> list[tuple[int, int]]:
    """Return the samples of a tar whose fields lie apart: the places of the first two parts of each.

    Where parts of one key share a field, it has samples of one key, and none is torn.

    Args:
        keys: The keys of the samples as they lie.
        fields: The fields of each.
    """
    first: dict[bytes, int] = {}
    torn: dict[bytes, tuple[int, int]] = {}
    known: dict[bytes, frozenset[int]] = {}
    for at, (key, names) in enumerate(zip(keys, fields, strict=True)):
        before = known.get(key, frozenset())
        if before & names:
            return []
        known[key] = before | names
        if first.setdefault(key, at) != at:
            torn.setdefault(key, (first[key], at))
    return [*torn.values()]


_FILE_NAME = b"image/filename"  # of TensorFlow's image sets
_KEY_FEATURES = (b"__key__", b"key", b"__key", _FILE_NAME)
_FILE_ENDING = re.compile(rb"(?<=[^/])\.[A-Za-z0-9]{1,8}$")  # of a file's name, which is no part of its key
_ENDING = re.compile(r"\.tfrecords?|\.(?:gz|bz2|xz|zst)$", re.IGNORECASE)
_KEY_LIMIT = 2**20  # bytes: more is an attack, not a key; another feature that could be one is then none
_ENDLESS = 2**63

# What a walk keeps, in bytes: columns, names and keys; and how much of that a shard may ask for. A plain shard that a
# tool wrote needs about its own bytes at most. A compressed one is up to a thousand times as large as its file, but
# only if it holds nothing: reading it must not cost that.
_FIELD_BYTES, _SAMPLE_BYTES, _NAME_BYTES = 48, 128, 256
_KEPT_ALWAYS = 2**27
_KEPT_A_BYTE = 8
_KEPT_A_PACKED_BYTE = 128
_KEPT_STEP = 2**22  # bytes of a shard, after which it is looked at
_VARINT_LIMIT = 11  # bytes: no number takes so many
_NAMES_LIMIT = 2**16  # of fields, that the fingerprint's columns can distinguish
_MOST = 100  # of a kind of damage in one shard: the rest says nothing new


class SurveyTask(NamedTuple):
    """A shard to look at.

    Attributes:
        path: The path of the shard.
        checksum: Whether payloads are read, for their CRC-32C and that of the file.
        dots: Where the key of a member's name ends.
        salvage: Whether the walk goes on behind damage, with the samples that are whole.
    """

    path: str
    checksum: bool = False
    dots: Dots = "first"
    salvage: bool = False


class OddMember(NamedTuple):
    """A member of a tar that is no part of a sample.

    Attributes:
        offset: Where its header starts.
        name: Without `./` before it, so that of a tar's top folder is empty.
        is_file: Whether it is a plain file.
        kind: Its type, as its header has it.
        link: Where it leads, of a link.
    """

    offset: int
    name: bytes
    is_file: bool
    kind: bytes = b"0"
    link: bytes = b""

    @property
    def what(self) -> str:
        """Say it in words."""
        return f"{printable(self.name) or './'}: {'a name without a field' if self.is_file else 'no plain file'}"


class FeatureConflict(NamedTuple):
    """The first feature of a name that is a list, or of another kind than before: its sample, kind, and values."""

    sample: int
    kind: Kind
    values: int


@dataclass(slots=True)
class Survey:
    """The content of a shard, as columns.

    Attributes:
        path: The path of the shard.
        format: `tar` or `tfrecord`.
        size: Bytes of the file; -1 where it is compressed: offsets then count in what it holds.
        keys: One per sample.
        starts: int64 per sample, where its first record starts.
        sizes: int64 per sample, bytes of its records, padding included.
        counts: uint32 per sample, fields.
        names: The field names that `codes` stands for.
        codes: uint32 per field.
        kinds: For each of `names`: `bytes`, `int64` or `float`.
        offsets: int64 per field, where its payload starts.
        lengths: int64 per field, bytes of the payload.
        crcs: uint32 per field; empty without checksums.
        crc: CRC-32C of the file, where checksums were asked for.
        soiled: The first places where padding is not zero, where checksums were asked for.
        digest: The content fingerprint, if asked for; None: unknown, since a float's text is not stored.
        text_rows: uint64, the rows of fields that are a single whole number, where checksums were asked for.
        text_lengths: uint8 for each of these, bytes of the number's text.
        text_crcs: uint32 for each of these, the CRC-32C of the number's text.
        odd: Members that are no part of a sample, such as folders.
        differ: Place and kind of what readers of tars do not read alike; the first ones only.
        unlike: In a TFRecord, a field's code to the first feature of it that is of another kind, or else to the first
            that is no single value.
        whole: Rows of a TFRecord's fields whose payload is all that a list holds: see `tfrecord.Feature`.
        error: Where the walk ended too early; what stands before it is here.
        lost: The parts of the shard that could not be read, where the walk went on behind them.
        broken: The samples that are not whole for that, which are not among the others: place, key and reason.
    """

    path: str
    format: str
    size: int
    keys: list[bytes] = field(default_factory=list)
    starts: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    counts: array[int] = field(default_factory=lambda: array("I"))
    names: list[bytes] = field(default_factory=list)
    codes: array[int] = field(default_factory=lambda: array("I"))
    kinds: list[Kind] = field(default_factory=list)
    offsets: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    crcs: array[int] = field(default_factory=lambda: array("I"))
    crc: int | None = None
    soiled: list[int] = field(default_factory=list)
    digest: int | None = None
    text_rows: array[int] = field(default_factory=lambda: array("Q"))
    text_lengths: array[int] = field(default_factory=lambda: array("B"))
    text_crcs: array[int] = field(default_factory=lambda: array("I"))
    odd: list[OddMember] = field(default_factory=list)
    differ: list[tuple[int, str]] = field(default_factory=list)
    unlike: dict[int, FeatureConflict] = field(default_factory=dict)
    whole: array[int] = field(default_factory=lambda: array("Q"))
    error: CorruptShard | None = None
    lost: list[LostRange] = field(default_factory=list)
    broken: list[tuple[int, bytes, str]] = field(default_factory=list)
    _known: dict[bytes, int] = field(default_factory=dict, repr=False)

    def code(self, name: bytes, kind: Kind = "bytes") -> int:
        """Return the number of a field's name."""
        code = self._known.setdefault(name, len(self.names))
        if code == len(self.names):
            self.names.append(name)
            self.kinds.append(kind)
        return code

    def fields(self) -> list[frozenset[int]]:
        """Return the codes of the fields of each sample."""
        return [frozenset(self.codes[first:end]) for first, end in pairwise([0, *accumulate(self.counts)])]


def survey(task: SurveyTask) -> Survey:
    """Walk a shard; a damaged one up to the damage.

    Raises:
        CorruptShard: It cannot be opened.
        InvalidRequest: Its name has the ending of no format.
    """
    kind = shard_kind(task.path)
    plain = SummedFile if task.checksum and not task.salvage else ShardFile
    with PackedFile(task.path, kind.packing) if kind.packing else plain(task.path) as shard:
        found = Survey(task.path, kind.format, shard.size)
        try:
            if found.format == "tar":
                _survey_tar(shard, task, found)
            else:
                _survey_tfrecord(shard, task, found)
        except CorruptShard as error:
            found.error = error if found.keys else misnamed(task.path, error)
        if isinstance(shard, SummedFile):
            try:
                found.crc = shard.crc()
            except CorruptShard as error:
                found.error = found.error or error
    if found.lost and found.format == "tar":
        _take_out_broken(found, task.dots)
    if task.checksum and "float" not in found.kinds and len(found.names) <= _NAMES_LIMIT:
        found.digest = _digest(found)
    return found


def _take_out_broken(found: Survey, dots: Dots) -> None:
    """Take the samples out that are not whole, for a part of the shard is lost."""
    bounds, broken = [0, *accumulate(found.counts)], _broken(found, dots)
    found.broken = [(found.starts[at], found.keys[at], reason) for at, reason in broken.items()]
    kept = [at for at in range(len(found.keys)) if at not in broken]
    rows = [row for at in kept for row in range(bounds[at], bounds[at + 1])]
    found.keys = [found.keys[at] for at in kept]
    of_fields = ("codes", "offsets", "lengths", *(("crcs",) if found.crcs else ()))
    for names, which in ((("starts", "sizes", "counts"), kept), (of_fields, rows)):
        for name in names:
            column = getattr(found, name)
            setattr(found, name, array(column.typecode, [column[at] for at in which]))


def _broken(found: Survey, dots: Dots) -> dict[int, str]:
    """Return the samples of a tar that are not whole, and why."""
    fields, size, near, broken = found.fields(), found.size, dict[int, str](), dict[int, str]()
    for one in found.lost:
        before, behind = bisect_left(found.starts, one.start) - 1, bisect_right(found.starts, one.end - 1)
        for at in [before] if one.end < 0 else [before, behind]:
            if 0 <= at < len(found.keys):
                near[at] = f"next to what is lost at {one.start:,}"
                if found.keys[at] == _divided(one.name, dots)[0] or (size < 0 and one.end < 0):
                    broken[at] = f"{near[at]}: {_MAY_MISS}"
    for at, last in enumerate(accumulate(found.counts)) if size >= 0 else ():
        if (end := found.offsets[last - 1] + found.lengths[last - 1]) > size:  # of its last payload
            broken[at] = f"the file ends in it: {end - size:,} bytes are not there"
    usual = frozenset().union(*(names for at, names in enumerate(fields) if at not in broken))
    for at, place in near.items():
        if at not in broken and not fields[at] >= usual:
            broken[at] = f"{place}: {_MAY_MISS}"
    return dict(sorted(broken.items()))


def _divided(name: bytes, dots: Dots) -> tuple[bytes, bytes]:
    """Return the key and the field in a member's name; no field where it names none."""
    name = name.removeprefix(b"./")
    base = name.rfind(b"/") + 1
    at = name.find(b".", base + 1) if dots == "first" else name.rfind(b".", base + 1)
    return (name, b"") if at < 0 else (name[:at], name[at + 1 :])


def _digest(found: Survey) -> int:
    """Return the content fingerprint: fields in the order of their names, of numbers their text."""
    lengths, crcs, codes = array("Q", found.lengths), array("I", found.crcs), array("H", found.codes)
    for row, length, crc in zip(found.text_rows, found.text_lengths, found.text_crcs, strict=True):
        lengths[row], crcs[row] = length, crc
    rank = {code: place for place, code in enumerate(sorted(range(len(found.names)), key=found.names.__getitem__))}
    ordered: dict[bytes, list[int] | None] = {}  # a sample's codes to their order; None where that is theirs already
    end = 0
    for count in found.counts:
        first, end = end, end + count
        seen = codes[first:end].tobytes()
        if seen not in ordered:
            ranks = [rank[code] for code in codes[first:end]]
            wanted = sorted(range(count), key=ranks.__getitem__)
            ordered[seen] = None if wanted == [*range(count)] else wanted
        order = ordered[seen]
        if order is not None:
            for column in (lengths, crcs, codes):
                column[first:end] = array(column.typecode, [column[first + at] for at in order])
    columns = {"codes": codes.tobytes(), "lengths": lengths.tobytes(), "crcs": crcs.tobytes()}
    return content_digest(found.keys, found.counts, found.names, **columns)


def walked_text(name: bytes) -> str:
    """Return a key or field of a shard as its index has it: as it is, and percent-encoded where it is no UTF-8."""
    return name.decode() if is_utf8(name) else source_text(name)


def payload_crc(shard: ShardFile | PackedFile, offset: int, length: int) -> int:
    """Return the CRC-32C of a part of a shard, however long it is."""
    crc = 0
    while length > 0 and (block := shard.read(offset, min(length, BLOCK))):
        crc = crc32c(block, crc)
        offset += len(block)
        length -= len(block)
    return crc


class _WalkMemory:
    """Sees that a walk keeps no more than its shard may ask for: see `_KEPT_ALWAYS`."""

    def __init__(self, shard: ShardFile | PackedFile, found: Survey) -> None:
        self._found = found
        packed = shard.packed_size if isinstance(shard, PackedFile) else None
        self._most = _ENDLESS if packed is None else _KEPT_A_PACKED_BYTE * packed
        self._texts = self._keys = self._names = self._odd = self._rows = 0
        self._long = False  # whether a field's name is: then it counts each time, as tables hold it each time

    def look(self, end: int) -> int:
        """Look at what is kept of a shard up to `end`; return where to look again.

        Raises:
            CorruptShard: It is too much, or a sample has too many fields.
        """
        found = self._found
        self._texts += sum(map(len, found.keys[self._keys :])) + sum(map(len, found.names[self._names :]))
        self._texts += sum(len(one.name) + len(one.link) for one in found.odd[self._odd :])
        if found.counts and (most := max(found.counts[max(0, self._keys - 1) :], default=0)) > FIELD_LIMIT:
            at = found.starts[found.counts.index(most)]
            expected = f"at most {FIELD_LIMIT:,}"
            raise CorruptShard(found.path, f"a sample of {most:,} fields", offset=at, expected=expected)
        self._long = self._long or any(len(name) > _NAME_BYTES for name in found.names[self._names :])
        if self._long:
            self._texts += sum([len(found.names[code]) for code in found.codes[self._rows :]])
        self._rows = len(found.codes)
        self._keys, self._names, self._odd = len(found.keys), len(found.names), len(found.odd)
        kept = self._texts + _FIELD_BYTES * self._rows + _SAMPLE_BYTES * self._keys
        kept += _NAME_BYTES * (self._names + self._odd)
        if kept > _KEPT_ALWAYS + min(self._most, _KEPT_A_BYTE * end):
            what = f"{self._keys:,} samples, {self._rows:,} fields and {self._names:,} names of fields"
            expected = "payloads, not names alone"
            raise CorruptShard(found.path, f"{what}, more than can be kept", offset=end, expected=expected)
        return end + _KEPT_STEP


def _survey_tar(  # noqa: C901 - one loop over every header, the hot path
    shard: ShardFile | PackedFile, task: SurveyTask, found: Survey
) -> None:
    """Note each member: a loop over every header, so its names are at hand."""
    last: bytes | None = None
    fields: dict[bytes, int] = {}
    keys, starts, sizes, counts = found.keys, found.starts, found.sizes, found.counts
    codes, offsets, lengths, first_dot = found.codes, found.offsets, found.lengths, task.dots == "first"
    checksum = task.checksum
    kept, size_limit = _WalkMemory(shard, found), found.size if found.size >= 0 else _ENDLESS
    look_at, end = min(_KEPT_STEP, size_limit), 0

    def note(offset: int, what: str) -> None:
        if len(found.differ) < _MOST:
            found.differ.append((offset, what))

    walk = walk_members(shard, note, found.lost) if task.salvage else tar.walk(shard.read, shard.path, note)
    for path, offset, start, size, is_plain, end, kind, link in walk:
        name = path.removeprefix(b"./")
        base = name.rfind(b"/") + 1
        at = name.find(b".", base + 1) if first_dot else name.rfind(b".", base + 1)
        if not is_plain or at < 0 or at == len(name) - 1:
            found.odd.append(OddMember(offset, name, is_plain, kind, link))
            last = None
            if end > look_at:
                look_at = min(kept.look(end), size_limit)
            continue
        key, ending = name[:at], name[at + 1 :]
        if key != last:
            keys.append(key)
            starts.append(offset)
            sizes.append(0)
            counts.append(0)
            last = key
        try:
            codes.append(fields[ending])
        except KeyError:
            codes.append(fields.setdefault(ending, found.code(ending)))
        counts[-1] += 1
        offsets.append(start)
        lengths.append(size)
        sizes[-1] = end - starts[-1]
        if checksum:
            _sum_member(shard, found, start, size, end)
        if end > look_at:
            if end > size_limit and not task.salvage:
                cut = f"the file ends in {printable(name)}, {size:,} bytes long"
                raise CorruptShard(shard.path, cut, offset=start, remedy=tar.REMEDY)
            look_at = min(kept.look(end), size_limit)
    kept.look(end)


def _sum_member(shard: ShardFile | PackedFile, found: Survey, start: int, size: int, end: int) -> None:
    """Note the checksum of a payload, and whether what follows it up to `end` is not zero."""
    if size <= BLOCK:
        block = shard.read(start, end - start)
        found.crcs.append(crc32c(block[:size]))
        rest = block[size:]
    else:
        found.crcs.append(payload_crc(shard, start, size))
        rest = shard.read(start + size, end - start - size)
    if bytes(rest) != bytes(len(rest)) and len(found.soiled) < _MOST:
        found.soiled.append(start + size)


def _survey_tfrecord(shard: ShardFile | PackedFile, task: SurveyTask, found: Survey) -> None:
    # The shard's name without its ending, as it can be part of a key.
    stem = os.fsencode(_ENDING.sub("", os.path.basename(shard.path)).replace(".", "_"))
    kept, look_at = _WalkMemory(shard, found), _KEPT_STEP
    hold = shard.hold if isinstance(shard, PackedFile) else None
    walk = walk_records(shard, hold, found.lost) if task.salvage else tfrecord.walk(shard.read, shard.path, hold)
    for number, record in enumerate(walk):
        if record.offset > look_at:
            look_at = kept.look(record.offset)
        try:
            _add_record(shard, task, found, record, b"%b/%09d" % (stem, number))
        except CorruptShard as error:
            if not task.salvage:
                raise
            found.lost.append(LostRange(record.offset, record.end, what_is_wrong(error)))


def _add_record(
    shard: ShardFile | PackedFile, task: SurveyTask, found: Survey, record: tfrecord.Record, no_key: bytes
) -> None:
    """Note a record; `no_key` is its key where none is given: these differ from those of other shards."""
    held = record.size <= tfrecord.HELD_LIMIT
    data = shard.read(record.data, record.size) if held else tfrecord.DistantBytes(shard.read, record)
    if task.checksum:
        crc = crc32c(data) if not isinstance(data, tfrecord.DistantBytes) else payload_crc(shard, *record[1:3])
        tfrecord.check_crc(record, crc, shard.path)
    features = tfrecord.features(data, record.data, shard.path)
    key_feature, key = _key_feature(features, shard.path), no_key
    if key_feature is not None and key_feature.kind == "bytes" and key_feature.values == 1:
        at = key_feature.offset - record.data
        key = bytes(data[at : at + key_feature.size])
        if key_feature.name == _FILE_NAME:
            key = _FILE_ENDING.sub(b"", key)
    number = len(found.keys)
    found.keys.append(key)
    found.starts.append(record.offset)
    found.sizes.append(record.end - record.offset)
    rest = [feature for feature in features if feature is not key_feature or feature.name != b"__key__"]
    found.counts.append(len(rest))
    for feature in sorted(rest, key=lambda one: one.name):
        code = found.code(feature.name, feature.kind)
        if feature.values != 1 or feature.kind != found.kinds[code]:
            _note_unlike(found, number, code, feature)
        found.codes.append(code)
        found.offsets.append(feature.offset)
        found.lengths.append(feature.size)
        if task.checksum:
            _sum_feature(shard, found, data, record, feature)


def _sum_feature(
    shard: ShardFile | PackedFile,
    found: Survey,
    data: tfrecord.Data,
    record: tfrecord.Record,
    feature: tfrecord.Feature,
) -> None:
    """Note the checksum of a payload and, of a single whole number, that of its text."""
    at = feature.offset - record.data
    if isinstance(data, tfrecord.DistantBytes):
        found.crcs.append(payload_crc(shard, feature.offset, feature.size))
    else:
        found.crcs.append(crc32c(data[at : at + feature.size]))
    if feature.kind != "int64" or feature.values != 1:
        return
    value = tfrecord.single_int(data[at : at + min(feature.size, _VARINT_LIMIT)])
    if value is not None:
        text = b"%d" % value
        found.text_rows.append(len(found.crcs) - 1)
        found.text_lengths.append(len(text))
        found.text_crcs.append(crc32c(text))


def _key_feature(features: list[tfrecord.Feature], where: str) -> tfrecord.Feature | None:
    """Return the feature that is the key of a record; None where there is none, or only one that is far too long.

    Raises:
        CorruptShard: The feature that can be nothing but the key is far too long.
    """
    by_name = {feature.name: feature for feature in features}
    for found in (by_name[name] for name in _KEY_FEATURES if name in by_name):
        if found.size <= _KEY_LIMIT:
            return found
        if found.name == _KEY_FEATURES[0]:
            what, expected = f"a key of {found.size:,} bytes", f"at most {_KEY_LIMIT:,}"
            raise CorruptShard(where, what, offset=found.offset, expected=expected, remedy=tfrecord.REMEDY)
    return None


def _note_unlike(found: Survey, sample: int, code: int, feature: tfrecord.Feature) -> None:
    """Note a feature that is a list, or of another kind than the first of its name, before its row is."""
    before, kind = found.unlike.get(code), found.kinds[code]
    if before is None or (before.kind == kind and feature.kind != kind):
        found.unlike[code] = FeatureConflict(sample, feature.kind, feature.values)
    if feature.whole:  # then its values are never just one
        found.whole.append(len(found.codes))
