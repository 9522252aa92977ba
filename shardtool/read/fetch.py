"""Samples by their numbers, in any order: read by shard, in file order, and given back in the order asked for.

Not more shards are open than a process can spare: they are given back when others are wanted. A shard is read with few
system calls, at places only (`os.pread`, or ranges of an object), so that threads and forked processes share no
position in it. It is not mapped into memory: where a file was cut, or a disk fails, a mapping ends the process instead
of naming the shard, and from a cold disk a sample of 14 KB takes 200 KB of reading (measured). A compressed one is
unpacked once into a temporary file without a name, which goes with its descriptor.
"""

from __future__ import annotations

import os
import resource
from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import accumulate, islice, repeat
from os import PathLike
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa

from shardtool.dataset.payload import numbers_in
from shardtool.dataset.shard_file import PackedFile, is_packed, shard_kind, unopened, walked_text
from shardtool.entries.arrow import python_values
from shardtool.errors import CorruptShard, InvalidRequest, ShardError, raise_if_machines, reason
from shardtool.fingerprint import crc32c
from shardtool.format.tfrecord import FRAME_HEAD, FRAME_TAIL, bytes_of, features, numbers_of
from shardtool.read.catalog import Catalog, IndexStore, Kept
from shardtool.request.settings import check_choice
from shardtool.storage.places import called, is_url, open_blob, open_plain
from shardtool.storage.remote.blob import Blob, read_places
from shardtool.storage.shared import ForkLock
from shardtool.values import BLOCK, RESERVED, Kind, OnBadSample
from shardtool.wording import call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.find import StoredShard
    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.read.catalog import Numbers
    from shardtool.read.order import MixedSamples

Sample = dict[str, object]
Samples: TypeAlias = "Iterable[Sample | ShardError]"  # errors in place of those that could not be read

REMEDY = "Run `shardtool verify`; read with on_error='skip' to go on without what is damaged."
_ALL = 2**62  # bytes: no shard has more
_ADVICE = 2**17  # bytes: some systems take no more of one piece of advice
_GLANCE = 2**20  # bytes: where the last of so many is in memory, no advice is given: it takes 1 us for each 64 KB
_pread = os.pread
_MOST_OPEN = 256
_SHARE = 4  # of the descriptors that a process may have, shards take one in so many


class CachedShard(Protocol):
    """A shard in a local cache, held until it is closed."""

    path: str

    def close(self) -> None:
        """Let the cache remove the shard when it needs room."""


class ShardCache(Protocol):
    """A cache of whole shards, which gives each a path that is fast to read."""

    def open(self, shard: StoredShard) -> CachedShard:
        """Return a shard, copied into the cache where it is not there yet."""


@runtime_checkable
class CopyingCache(ShardCache, Protocol):
    """A cache whose shards have a source, from which they are copied."""

    def expect(self, shard: StoredShard) -> None:
        """Copy a shard that is read soon, where there is room."""

    def drop(self, shard: StoredShard) -> None:
        """Remove the copy of a shard, which was found damaged and is held no more."""


@runtime_checkable
class TakenShards(ShardCache, Protocol):
    """The paths of shards that a growing cache holds, for as long as something refers to this."""

    def __iter__(self) -> Iterator[str]:
        """Return the paths."""
        ...


@runtime_checkable
class GrowingCache(Protocol):
    """A cache into which samplers write."""

    def refresh(self) -> TakenShards:
        """Return the shards that are finished by now."""
        ...


# How samples are read: what `shardtool.open` is asked for, and which fields the stages behind it want.


@dataclass(frozen=True)
class ReadOptions:
    """How samples are read.

    Attributes:
        check: Whether the CRC-32C of each payload is compared with its index.
        cache: Where shards are copied to before they are read.
        on_error: Whether a damaged sample is an error, or left out and counted.
        metadata: Whether samples have the metadata of their sidecar, too.
        fields: The fields that are wanted; None: all.
    """

    check: bool = False
    cache: ShardCache | None = None
    on_error: OnBadSample = "raise"
    metadata: bool = False
    fields: frozenset[str] | None = None

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, OnBadSample)
        if isinstance(self.cache, str | PathLike):
            raise InvalidRequest("cache", f"{self.cache!r}", expected="a shardtool.Cache of that folder")


class OpenFile:
    """The bytes of one shard; closed with the last reference to it, so that other threads may still read.

    Args:
        shard: Which one.
        cache: Where it is copied to first.
        size: Bytes that it must have; None: not known.

    Attributes:
        fd: Its descriptor; -1: it lies elsewhere, and is read by `read` alone.
        path: Of the shard, for messages.
        copied: Whether a copy of it is read.

    Raises:
        CorruptShard: It cannot be opened, or has another size.
        OutputFailed: There is no room to unpack it.
    """

    def __init__(self, shard: StoredShard, cache: ShardCache | None, size: int | None = None) -> None:
        self.fd = -1
        self._blob: Blob | None = None
        self._checksum: int | None = None
        self._held: CachedShard | None = None
        self.path, self._pid = shard.path, os.getpid()
        self._held = cache.open(shard) if cache else None
        path = self._held.path if self._held else shard.path
        self.copied = path != shard.path
        packed = is_packed(shard.path)
        try:
            if not is_url(path):
                self.fd, fact = open_plain(path)
                found = fact.st_size
            elif not packed:
                self._blob = open_blob(path, size)
                found = self._blob.size
        except OSError as error:
            raise unopened(shard.path, error) from None
        if size is not None and not (packed and is_url(path)) and found != size:
            raise CorruptShard(
                shard.path, f"{found:,} bytes", expected=f"{size:,}, as its dataset says",
                remedy="The shard changed or was cut: `shardtool verify` says more.",
            )  # fmt: skip
        if packed:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1
            with PackedFile(path) as unpacked:
                self.fd = os.dup(unpacked.hold(0, _ALL).fileno())

    def __del__(self) -> None:
        if os is None:  # the interpreter ends: its modules are gone, and the system closes files
            return
        if self.fd >= 0:
            os.close(self.fd)
        if self._held is not None and self._pid == os.getpid():  # a forked process has no lease of its own
            self._held.close()

    def let_go(self) -> None:
        """End the lease on a copy; what is open stays readable."""
        if self._held is not None:
            self._held.close()

    def read(self, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes at some places, each read when it is asked for.

        Raises:
            CorruptShard: The shard ends before, or the disk fails.
        """
        fd, at = self.fd, 0
        try:
            if self._blob is not None:
                yield from _read_elsewhere(self._blob, offsets, lengths)
                return
            for at, length in zip(offsets, lengths, strict=True):
                yield read_at(fd, length, at)
        except EOFError as error:
            end, missing = error.args
            expected = f"{missing:,} more bytes"
            raise CorruptShard(self.path, "the shard ends", offset=end, expected=expected, remedy=REMEDY) from None
        except OSError as error:
            raise_if_machines(error, self.path)
            raise CorruptShard(self.path, f"cannot be read: {reason(error)}", offset=at, remedy=REMEDY) from None

    def checksum(self, size: int) -> int:
        """Return the CRC-32C of the first bytes, so many: each is read once, for as long as the shard is open."""
        if self._checksum is None:
            starts = range(0, size, BLOCK)
            sizes = [min(BLOCK, size - at) for at in starts]
            self._checksum = reduce(lambda crc, block: crc32c(block, crc), self.read(starts, sizes), 0)
        return self._checksum

    def expect(self, starts: Numbers, ends: Numbers) -> None:
        """Let the system read places ahead, into its own memory; where it cannot, they are read when they are wanted.

        Args:
            starts: int64 [n], ascending.
            ends: int64 [n].
        """
        if not len(starts) or not hasattr(os, "posix_fadvise"):
            return
        begins = np.flatnonzero(np.append(True, starts[1:] - ends[:-1] > _ADVICE))
        lasts = ends[np.append(begins[1:], len(starts)) - 1].tolist()
        for start, end in zip(starts[begins].tolist(), lasts, strict=True):
            for first in range(start, end, _GLANCE):
                last = min(end, first + _GLANCE)
                for at in () if self._holds(last - 1) else range(first, last, _ADVICE):
                    os.posix_fadvise(self.fd, at, _ADVICE, os.POSIX_FADV_WILLNEED)

    def _holds(self, at: int) -> bool:
        """Tell whether the system has a byte in its memory; not, where it cannot say."""
        try:
            return os.preadv(self.fd, (bytearray(1),), at, os.RWF_NOWAIT) == 1
        except (OSError, AttributeError, NotImplementedError):
            return False


def read_at(fd: int, length: int, offset: int) -> bytes:
    """Return `length` bytes of a file. A hot path: one call a payload.

    Raises:
        OSError: It cannot be read.
        EOFError: It ends before: where, and how many bytes are missing.
    """
    data = _pread(fd, length, offset)
    if len(data) == length:
        return data
    parts, got = [data], len(data)
    while parts[-1] and got < length:  # a network file system may give less, and no call gives more than 2 GiB
        parts.append(_pread(fd, length - got, offset + got))
        got += len(parts[-1])
    if got < length:
        raise EOFError(offset + got, length - got)
    return b"".join(parts)


def _read_elsewhere(blob: Blob, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[bytes]:
    """Yield the bytes at places of an object.

    Raises:
        OSError: It is another one by now, or it is gone.
        ShardError: A store or a server fails.
        EOFError: It ends before: where, and how many bytes are missing.
    """
    for at, length, data in zip(offsets, lengths, read_places(blob, offsets, lengths), strict=True):
        if len(data) < length:
            raise EOFError(at + len(data), length - len(data))
        yield data


class OpenFiles(Kept[str, OpenFile]):
    """The open shards of a catalog, not more than a process can spare.

    Args:
        cache: Where shards are copied to before they are read.
        given_back: Called when shards are no longer kept.
    """

    def __init__(self, cache: ShardCache | None, given_back: Callable[[], None] = lambda: None) -> None:
        super().__init__(_most_open(), given_back=given_back)
        self._cache, self._renewed = cache, set[str]()

    def open(self, shard: StoredShard, size: int | None = None) -> OpenFile:
        """Return a shard, opened now or before.

        Args:
            shard: Which one.
            size: Bytes that it must have; None: not known.

        Raises:
            CorruptShard: It cannot be opened, or has another size.
            OutputFailed: There is no room to unpack it.
        """
        return self.get(shard.path, lambda: OpenFile(shard, self._cache, size))

    def renew(self, shard: StoredShard, file: OpenFile) -> bool:
        """Drop the copy of a shard in the cache, which was found damaged; return whether to read the shard again.

        A shard is copied again once: what is damaged then has a damaged source.
        """
        with self._lock:
            if not file.copied or not isinstance(self._cache, CopyingCache):
                return False
            if shard.path in self._renewed:
                return self._kept.get(shard.path) is not file  # another thread has dropped it meanwhile
            self._renewed.add(shard.path)
            if self._kept.get(shard.path) is file:
                del self._kept[shard.path]
                self._used -= 1
            self._given_back()
            file.let_go()
            self._cache.drop(shard)
            return True


def _most_open() -> int:
    """Return how many shards may be open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_OPEN if most == resource.RLIM_INFINITY else max(1, min(_MOST_OPEN, most // _SHARE))


# What lies in a shard, and how samples are read of it.
#
# All arithmetic is done on columns, for all samples at once. A payload is read into bytes of its own, or cut from a
# block of small ones, so that no large one is copied twice. What is read at once is held as columns, a list for each
# field, as long as all samples have the same fields; a sample that could not be read is its error.


_float = Struct("<f")
_RESERVED = frozenset(map(bytes.decode, RESERVED))
_SINGLE = 0x80  # a varint of one byte is below


def _read_int(data: bytes) -> object:
    if len(data) == 1 and data[0] < _SINGLE:
        return data[0]
    return _only(numbers_in(data, "int64"))


def _read_float(data: bytes) -> object:
    return _float.unpack(data)[0] if len(data) == _float.size else _only(numbers_in(data, "float"))


def _only(numbers: Sequence[object]) -> object:
    return numbers[0] if len(numbers) == 1 else numbers


# What reads a single number of a TFRecord as its index has it; it raises ValueError where there is none.
_READERS: Mapping[Kind, Callable[[bytes], object]] = {"int64": _read_int, "float": _read_float}


def values_of_record(record: bytes, start: int, where: str, lists: frozenset[str]) -> Sample:
    """Return the features of a TFRecord: a value each, or a list where there are several, or none.

    Args:
        record: All its bytes, frame included.
        start: Where it starts in the shard.
        where: The shard's path, for messages.
        lists: The features that are lists with a single value, too.

    Raises:
        CorruptShard: It is no Example.
        ValueError: A number is not what its kind says.
    """
    data, first = record[FRAME_HEAD:-FRAME_TAIL], start + FRAME_HEAD
    found: Sample = {}
    for one in features(data, first, where):
        payload = data[one.offset - first : one.offset - first + one.size]
        if one.kind == "bytes":
            values: Sequence[object] = bytes_of(payload) if one.whole else [payload]
        else:
            values = numbers_of(payload, one.kind) if one.whole else numbers_in(payload, one.kind, one.values)
        name = walked_text(one.name)
        found[name] = list(values) if len(values) != 1 or name in lists else values[0]
    for name in _RESERVED.intersection(found):
        del found[name]
    return found


_ALONE = 2**12  # bytes of a payload that is read by a system call of its own, into its place (measured)
_GAP = 2**13  # bytes that are read for nothing, rather than in a system call of their own
_LONGEST = 2**18  # bytes of one read of small payloads, about
LATE = 2**12  # bytes of a sample from which on it is read on its own, when it is wanted (measured)
_TOGETHER = 2**15  # bytes of a single sample up to which one system call reads all of it
_NO_NUMBER = "not what its kind of feature holds"


class Layout(NamedTuple):
    """The payloads of samples of a shard, in file order.

    Attributes:
        counts: int64 [samples]: how many each has.
        codes: int32 [payloads]: their fields.
        offsets: int64 [payloads].
        lengths: int64 [payloads].
        crcs: uint32 [payloads]; None: not known.
    """

    counts: Numbers
    codes: NDArray[np.int32]
    offsets: Numbers
    lengths: Numbers
    crcs: NDArray[np.uint32] | None

    @property
    def owners(self) -> Numbers:
        """The sample of each payload."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


@dataclass(frozen=True, slots=True)
class OpenShard:
    """A shard that is being read.

    Attributes:
        index: Where its samples lie.
        file: Its bytes.
        is_tar: Whether it holds payloads alone, and no records that could be parsed.
        readers: What reads the fields that are numbers; None: its records must be parsed to know what fields hold.
        views: The index's `key_ends`, `firsts`, `codes`, `offsets` and `lengths`: single numbers come from these fast.
    """

    index: ShardIndex
    file: OpenFile
    is_tar: bool
    readers: Mapping[str, Callable[[bytes], object]] | None
    views: tuple[memoryview, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        index = self.index
        columns = (index.key_ends, index.firsts, index.codes, index.offsets, index.lengths)
        object.__setattr__(self, "views", tuple([column.data for column in columns]))

    def one(self, row: int, wanted: frozenset[str] | None) -> Sample:
        """Return one sample, with no arithmetic on columns: a hot path.

        Raises:
            OSError: It cannot be read.
            EOFError: The shard ends before.
            ValueError: A number is not what its kind says.
            IndexError: Its bytes end too early, or payloads lie in no order.
        """
        index, fd = self.index, self.file.fd
        key_ends, firsts, codes, offsets, lengths = self.views
        names = index.names
        sample: dict[str, Any] = {"__key__": str(index.keys[key_ends[row] : key_ends[row + 1]], "utf-8")}
        fields: Sequence[int] = range(firsts[row], firsts[row + 1])
        if wanted is not None:
            fields = [at for at in fields if names[codes[at]] in wanted]
        if not fields:
            return sample
        start, end = offsets[fields[0]], offsets[fields[-1]] + lengths[fields[-1]]
        if len(fields) > 1 and 0 <= end - start <= _TOGETHER:
            block = read_at(fd, end - start, start)
            for at in fields:
                first = offsets[at] - start
                if not 0 <= first <= len(block) - lengths[at]:
                    raise IndexError(at)  # fields in another order than their payloads
                sample[names[codes[at]]] = block[first : first + lengths[at]]
        else:
            for at in fields:
                sample[names[codes[at]]] = read_at(fd, lengths[at], offsets[at])
        if self.readers:
            for name, read in self.readers.items():
                if name in sample:
                    sample[name] = read(sample[name])
        return sample

    def layout(self, rows: Numbers, wanted: frozenset[str] | None) -> Layout:
        """Return where the payloads of samples lie, whose rows ascend: of the fields that are wanted, or all."""
        index, firsts = self.index, self.index.firsts[rows]
        counts = index.firsts[rows + 1] - firsts
        ends = np.cumsum(counts)
        flat = np.repeat(firsts - ends + counts, counts) + np.arange(ends[-1])
        if wanted is not None:
            keeps = np.array([name in wanted for name in index.names], np.bool_)[index.codes[flat]]
            counts = np.bincount(np.repeat(np.arange(len(rows)), counts)[keeps], minlength=len(rows)).astype(np.int64)
            flat = flat[keeps]
        crcs = None if index.crcs is None else index.crcs[flat]
        return Layout(counts, index.codes[flat], index.offsets[flat], index.lengths[flat], crcs)

    def edges(self, rows: Numbers, wanted: frozenset[str] | None) -> tuple[list[str], Numbers] | None:
        """Return the fields of samples, and where each field starts and ends.

        Returns:
            Names, and int64 [samples, 2 * fields]; None where samples differ in their fields, or these lie in no order.
        """
        counts, codes, offsets, lengths, _ = self.layout(rows, wanted)
        width = int(counts[0])
        if not width or (counts != width).any() or (codes.reshape(-1, width) != codes[:width]).any():
            return None
        edges = np.stack((offsets, offsets + lengths), axis=-1).reshape(-1, 2 * width)
        return None if (np.diff(edges) < 0).any() else ([self.index.names[code] for code in codes[:width]], edges)

    def spans(self, rows: Numbers, wanted: frozenset[str] | None) -> tuple[Numbers, Numbers]:
        """Return where what is wanted of samples starts, and where it ends: records, or payloads of some fields."""
        if wanted is None:
            starts = self.index.starts[rows]
            return starts, starts + self.index.sizes[rows]
        layout = self.layout(rows, wanted)
        return layout.offsets, layout.offsets + layout.lengths


def each_sample(
    parts: Sequence[tuple[OpenShard, Numbers]], numbers: Numbers, wanted: frozenset[str] | None,
    one: Callable[[int], Sample | ShardError],
) -> Samples:  # fmt: skip
    """Return samples that need no parsing, each read when it is asked for: all arithmetic is done now, on columns.

    Args:
        parts: Each shard, and the rows of its samples: those of `numbers`, ascending.
        numbers: int64 [n]: which samples.
        wanted: The fields that are wanted; None: all.
        one: Returns a sample by its number, or its error: those that cannot be read here.
    """
    found = [opened.edges(rows, wanted) for opened, rows in parts]
    names, readers = found[0][0] if found[0] else [], parts[0][0].readers or {}
    alike = [edges[1] for edges, (opened, _) in zip(found, parts, strict=True)
             if edges and edges[0] == names and opened.readers == readers]  # fmt: skip
    if len(alike) < len(parts):
        return map(one, numbers.tolist())
    keys = [key for opened, rows in parts for key in opened.index.keys_of(rows)]
    files = [opened.file for opened, rows in parts for _ in range(len(rows))]
    edges = np.concatenate(alike)
    if (np.diff(numbers) < 0).any():
        places = np.argsort(np.argsort(numbers, kind="stable"))
        keys, files, edges = [keys[at] for at in places.tolist()], [files[at] for at in places.tolist()], edges[places]
    reads = [(name, read) for name, read in readers.items() if name in names]
    return _each(keys, files, names, edges, reads, lambda at: one(int(numbers[at])))


def _each(
    keys: list[str], files: list[OpenFile], names: list[str], edges: Numbers,
    reads: list[tuple[str, Callable[[bytes], object]]], one: Callable[[int], Sample | ShardError],
) -> Samples:  # fmt: skip
    """Yield samples. A hot path: 1 us beside the reading.

    Args:
        keys: Theirs.
        files: In which each lies.
        names: The fields, which all have.
        edges: int64 [n, 2 * fields]: where each field starts, and where it ends.
        reads: What reads the fields that are numbers.
        one: Returns a sample by its place, or its error.
    """
    starts, sizes = edges[:, 0].tolist(), (edges[:, -1] - edges[:, 0]).tolist()
    columns = (edges - edges[:, :1]).T.tolist()
    cuts = zip(*map(zip, map(repeat, names), map(map, repeat(slice), columns[::2], columns[1::2])), strict=True)
    together = _TOGETHER if len(names) > 1 else max(sizes)
    for at, (key, file, start, size, fields) in enumerate(zip(keys, files, starts, sizes, cuts, strict=True)):
        sample: dict[str, Any] = {"__key__": key}
        try:
            if size > together:
                for name, cut in fields:
                    sample[name] = read_at(file.fd, cut.stop - cut.start, start + cut.start)
            else:
                block = read_at(file.fd, size, start)
                for name, cut in fields:
                    sample[name] = block[cut]
            for name, read in reads:
                sample[name] = read(sample[name])
        except (OSError, EOFError, ValueError, IndexError):
            yield one(at)  # read again, for the error that names all
        else:
            yield sample


class ShardRows:
    """Some samples of a shard, to be read.

    Args:
        fetcher: Who asks for them.
        shard: Its place in the catalog.
        rows: int64 [n]: which samples, in ascending order.

    Attributes:
        opened: The shard.
    """

    def __init__(self, fetcher: Fetcher, shard: int, rows: Numbers) -> None:
        self._fetcher, self._options, self._shard, self._rows = fetcher, fetcher.options, shard, rows
        self.opened = fetcher.opened(shard)
        self._keys, self._layout = self.opened.index.keys_of(rows), self.opened.layout(rows, self._options.fields)
        self._errors: dict[int, ShardError] = {}

    def samples(self) -> list[Sample | ShardError]:
        """Return the samples, by the least reading that shows what they hold; errors in place of damaged ones.

        Raises:
            CorruptShard: The shard has another checksum than its dataset file says.
            InvalidRequest: Checksums are not known that should be checked.
        """
        samples: list[Sample] = [{"__key__": key} for key in self._keys]
        if self.opened.readers is None:
            self._put_records(samples)
        else:
            self._put_payloads(samples)
        if self._options.metadata:
            taken = self._fetcher.store.metadata(self._shard).take(pa.array(self._rows))
            for name in taken.column_names:
                for sample, value in zip(samples, python_values(taken.column(name)), strict=True):
                    sample.setdefault(name, value)
        return [self._errors.get(at, sample) for at, sample in enumerate(samples)] if self._errors else [*samples]

    def _put_payloads(self, samples: list[Sample]) -> None:
        """Give samples their fields, by reading the payloads that are wanted."""
        values: list[Any] = self._read()
        names, codes, counts = self.opened.index.names, self._layout.codes, self._layout.counts
        for name, read in (self.opened.readers or {}).items():
            for at in np.flatnonzero(codes == names.index(name)).tolist() if name in names else ():
                try:
                    values[at] = read(values[at])
                except (ValueError, IndexError):
                    self._note(at, _NO_NUMBER)
        width = int(counts[0])
        if (counts == width).all() and (codes.reshape(-1, width or 1) == codes[:width]).all():
            for at, code in enumerate(codes[:width].tolist()):  # by field: half the time of what is below
                name = names[code]
                for sample, value in zip(samples, values[at::width], strict=True):
                    sample[name] = value
            return
        for owner, code, value in zip(self._layout.owners.tolist(), codes.tolist(), values, strict=True):
            samples[owner][names[code]] = value

    def _put_records(self, samples: list[Sample]) -> None:
        """Give samples their fields, by reading their records of TFRecord and parsing them."""
        if self._options.check:
            self._read()
        wanted, index, path = self._options.fields, self.opened.index, self.opened.file.path
        starts, sizes = index.starts[self._rows].tolist(), index.sizes[self._rows].tolist()
        for at, record in enumerate(self._each(starts, sizes)):
            try:
                if isinstance(record, CorruptShard):
                    raise record
                values = values_of_record(record, starts[at], path, self._fetcher.catalog.lists)
            except CorruptShard as error:
                what = f"{self._keys[at]}: {error.problem}"
                known = CorruptShard(path, what, offset=error.offset, expected=error.expected, remedy=error.remedy)
                self._errors.setdefault(at, known)
            except (ValueError, IndexError):
                what = f"{self._keys[at]}: {_NO_NUMBER}"
                self._errors.setdefault(at, CorruptShard(path, what, offset=starts[at], remedy=REMEDY))
            else:
                samples[at].update((name, one) for name, one in values.items() if wanted is None or name in wanted)

    def _each(self, starts: list[int], sizes: list[int]) -> Iterator[bytes | CorruptShard]:
        """Yield what lies at some places, an error for each that cannot be read."""
        at = 0
        while at < len(starts):
            try:
                for block in self.opened.file.read(starts[at:], sizes[at:]):
                    yield block
                    at += 1
            except CorruptShard as error:
                yield error
                at += 1

    def _read(self) -> list[bytes]:
        """Return all payloads; those that cannot be read, and their samples' errors, are noted."""
        layout, file = self._layout, self.opened.file
        offsets, lengths = layout.offsets, layout.lengths
        if not len(offsets):
            return []
        firsts = np.flatnonzero(_begins(offsets, lengths))
        starts = offsets[firsts]
        sizes = (offsets + lengths)[np.append(firsts[1:], len(offsets)) - 1] - starts
        blocks = file.read(starts.tolist(), sizes.tolist())
        try:
            values = [*blocks] if len(starts) == len(offsets) else _cut(blocks, layout, firsts)
        except CorruptShard:
            values = []
            for at, value in enumerate(self._each(offsets.tolist(), lengths.tolist())):
                values.append(b"" if isinstance(value, CorruptShard) else value)
                if isinstance(value, CorruptShard):
                    self._note(at, value.problem, value.expected, value.remedy)
        crcs = layout.crcs
        if self._options.check and crcs is None:
            self._check_whole()
        elif self._options.check and crcs is not None:
            found = np.fromiter(map(crc32c, values), np.uint32, len(values))
            for at in np.flatnonzero(found != crcs).tolist():
                self._note(at, f"the checksum {found[at]:08x}", f"{crcs[at]:08x}, as its index says")
        return values

    def _note(self, payload: int, problem: str, expected: str = "", remedy: str = REMEDY) -> None:
        """Note what is wrong with the sample of a payload, if it is the first that is."""
        layout = self._layout
        sample, name = int(layout.owners[payload]), self.opened.index.names[layout.codes[payload]]
        self._errors.setdefault(sample, CorruptShard(
            self.opened.file.path, f"{self._keys[sample]}, {name}: {problem}", offset=int(layout.offsets[payload]),
            expected=expected, remedy=remedy,
        ))  # fmt: skip

    def _check_whole(self) -> None:
        """Compare the shard with its dataset file, where its own index, which a walk made, has no checksums.

        Raises:
            CorruptShard: It has another checksum.
            InvalidRequest: None is known.
        """
        expected, file = int(self._fetcher.catalog.crcs[self._shard]), self.opened.file
        if expected < 0:
            raise InvalidRequest(
                "check", f"no checksums are known of {file.path}",
                remedy=f"Make sidecars that have them: {call('index', checksum=True)}.",
            )  # fmt: skip
        found = None if is_packed(file.path) else file.checksum(int(self._fetcher.catalog.sizes[self._shard]))
        if found != expected:
            what = "no sidecar to check it with" if found is None else f"the checksum {found:08x}"
            raise CorruptShard(file.path, what, expected=f"{expected:08x}, as its dataset file says", remedy=REMEDY)


def _cut(blocks: Iterator[bytes], layout: Layout, firsts: Numbers) -> list[bytes]:
    """Return payloads, cut from blocks of which each is held for as long as its own are cut.

    Args:
        blocks: What was read.
        layout: Where the payloads lie.
        firsts: int64 [blocks]: the first payload of each.
    """
    counts = np.diff(np.append(firsts, len(layout.offsets)))
    begins = layout.offsets - np.repeat(layout.offsets[firsts], counts)
    places = zip(begins.tolist(), (begins + layout.lengths).tolist(), strict=True)
    values: list[bytes] = []
    for block, count in zip(blocks, counts.tolist(), strict=True):
        values += [block[first:last] for first, last in islice(places, count)]
    return values


def _begins(offsets: Numbers, lengths: Numbers) -> NDArray[np.bool_]:
    """Return which payloads begin a read: large ones, those behind these, and those far from the one before."""
    begins = np.ones(len(offsets), np.bool_)
    alone, gaps = lengths >= _ALONE, offsets[1:] - offsets[:-1] - lengths[:-1]
    begins[1:] = (gaps < 0) | (gaps > _GAP) | alone[1:] | alone[:-1]
    starts = offsets[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    steps = (offsets - starts) // _LONGEST
    begins[1:] |= steps[1:] != steps[:-1]
    return begins


# Samples of all shards.


_MOST_REASONS = 1000
_READS_ELSEWHERE = 4
_FREED = 2**24
_FEW = 50  # samples of a shard up to which reading each alone costs less than arithmetic on columns (measured)


class SkippedSamples:
    """Samples that could not be read, and were left out.

    Attributes:
        samples: How many.
        shards: How many of each shard, by its path.
        damaged: How many of them could not be read; a stage dropped the others.
        reasons: What was wrong, and how often; the first thousand only.
        has_warned: Whether a warning named how many there are.
    """

    def __init__(self) -> None:
        self.samples = self.damaged = 0
        self.has_warned = False
        self.shards: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self._lock = ForkLock()

    def __repr__(self) -> str:
        return f"Skipped(samples={self.samples}, shards={dict(self.shards)}, reasons={dict(self.reasons)})"

    def __reduce__(self) -> tuple[type[SkippedSamples], tuple[()]]:
        return SkippedSamples, ()

    def count_sample(self, error: ShardError, shard: str, *, damaged: bool) -> None:
        """Count a sample; of no shard where that is not known."""
        with self._lock:
            self.samples += 1
            self.damaged += damaged
            if shard:
                self.shards[shard] += 1
            if len(self.reasons) < _MOST_REASONS or str(error) in self.reasons:
                self.reasons[str(error)] += 1


class _SampleReader:
    """What reads samples by their numbers.

    Attributes:
        mean_size: Bytes of a sample, with all around it; 1 at least.
        copies: Whether shards are copied into a cache before they are read.
        reads_at_once: How many calls of `read_late` are best made at the same time: more than one where shards lie
            elsewhere.
    """

    mean_size: int
    copies: bool
    reads_at_once: int
    read: Callable[[Numbers], Samples]
    leave_out: Callable[..., None]

    def fetch(self, numbers: Numbers) -> list[Sample]:
        """Return samples, in the order of their numbers in the argument.

        Args:
            numbers: int64 [n].

        Returns:
            n of them, or fewer where damaged ones are skipped.

        Raises:
            CorruptShard: A shard is missing or damaged.
        """
        found = []
        for at, sample in enumerate(self.read(numbers)):
            if isinstance(sample, ShardError):
                self.leave_out(sample, int(numbers[at]))
            else:
                found.append(sample)
        return found


class Fetcher(_SampleReader):
    """Reads samples of a catalog; safe in threads, picklable, and without open files in a process that gets it.

    Attributes:
        catalog: What is read.
        options: How.
        store: The indexes of its shards.
        skipped: What was left out.
    """

    def __init__(self, catalog: Catalog, options: ReadOptions) -> None:
        # Once a block of 16 MB was freed, the C library keeps some tens of MB that are freed. Otherwise it would give
        # them back to the system, and the pages of each list of large samples would be fresh ones, which take longer
        # than the reading (measured: 50 us for 100 KB).
        bytes(_FREED)
        self.catalog = catalog
        self._near: dict[int, OpenShard] = {}
        self.store, self._files = IndexStore(catalog, self._near.clear), OpenFiles(options.cache, self._near.clear)
        self.skipped = SkippedSamples()
        self.mean_size = int(catalog.sizes.sum()) // max(1, len(catalog)) + 1
        self.copies = isinstance(options.cache, CopyingCache)
        self.reads_at_once = _READS_ELSEWHERE if catalog.is_remote else 1
        self._broken: dict[int, CorruptShard] = {}
        self._firsts: list[int] = catalog.firsts.tolist()
        self._sizes: list[int] = catalog.sizes.tolist()
        self._readers = {name: _READERS[kind] for name, kind in catalog.kinds.items()}
        self.use(options)

    def use(self, options: ReadOptions) -> None:
        """Set how samples are read."""
        lists = self.catalog.lists if options.fields is None else self.catalog.lists & options.fields
        self.options, self._fields, self._parses = options, options.fields, bool(lists)
        self._plain = not (options.check or options.metadata or lists or self.catalog.is_remote)

    def __reduce__(self) -> tuple[type[Fetcher], tuple[Catalog, ReadOptions]]:
        return Fetcher, (self.catalog, self.options)

    def expect(self, numbers: Numbers, seen: set[str]) -> None:
        """Have the shards of samples that are read soon copied into the cache, but for those of `seen`."""
        if isinstance(cache := self.options.cache, CopyingCache):
            for shard in [self.catalog.shards[at] for at, *_ in self.catalog.by_shard(numbers)]:
                if shard.path not in seen:
                    seen.add(shard.path)
                    cache.expect(shard)

    def selecting(self, fields: frozenset[str] | None) -> Fetcher:
        """Return a fetcher of some fields, with the same indexes and open shards."""
        found = Fetcher.__new__(Fetcher)
        vars(found).update(vars(self))
        found.use(replace(self.options, fields=fields))
        return found

    def reading_only(self, fields: frozenset[str] | None) -> Fetcher:
        """Return a fetcher that reads no other fields than these, which are all that is looked at.

        It is this one where that saves nothing, or where a sample may lack one: the error then names those it has.
        """
        catalog = self.catalog
        wanted = None if fields is None else {name for name in fields if name[:2] != "__"}
        if wanted is None or catalog.fields.keys() <= wanted:
            return self
        if any(catalog.fields.get(name) != len(catalog) for name in wanted):
            return self
        return self.selecting(frozenset(wanted))

    def leave_out(self, error: ShardError, number: int, *counts: SkippedSamples, damaged: bool = True) -> None:
        """Count a sample that is left out, in `skipped` and in `counts`.

        Args:
            error: What is wrong.
            number: Of the sample.
            counts: Where it is counted, too.
            damaged: Whether it cannot be read; otherwise a stage leaves it out.

        Raises:
            ShardError: It is damaged, and such samples are not skipped.
        """
        if damaged and self.options.on_error == "raise":
            raise error
        shard = int(self.catalog.places(np.array([number]))[0][0])
        for count in (self.skipped, *counts):
            count.count_sample(error, self.catalog.shards[shard].path, damaged=damaged)

    def read(self, numbers: Numbers) -> list[Sample | ShardError]:
        """Return samples, in the order of their numbers in the argument, and errors in place of damaged ones.

        Args:
            numbers: int64 [n].

        Raises:
            InvalidRequest: Checksums are not known that should be checked.
            OutputFailed: There is no room to unpack a compressed shard.
        """
        if len(numbers) == 1:
            return [self.one(int(numbers[0]))]
        groups = [*self.catalog.by_shard(numbers)]
        found: list[Sample | ShardError] = [{}] * len(numbers)
        alone = len(numbers) < len(groups) * _FEW or self.mean_size >= LATE
        if groups and self._plain and alone and self._is_indexed(groups[0][0]):
            order = np.argsort(numbers, kind="stable")
            for place, sample in zip(order.tolist(), self._each(groups, numbers[order]), strict=True):
                found[place] = sample
            return found
        parts = (called if self.catalog.is_remote else map)(lambda group: self._part(*group[:2]), groups)
        for (*_, places), part in zip(groups, parts, strict=True):
            for place, sample in zip(places.tolist(), part, strict=True):
                found[place] = sample
        return found

    def _is_indexed(self, shard: int) -> bool:
        """Tell whether the samples of a shard need no parsing; or cannot be read, which each of them says."""
        with suppress(CorruptShard):
            return self.opened(shard).readers is not None
        return True

    def read_late(self, numbers: Numbers) -> Samples:
        """Return samples as `read` does, but read large ones only when each is asked for.

        The system is asked to read them ahead, so that a thread that calls this has little to do, and holds nothing.

        Args:
            numbers: int64 [n].

        Raises:
            InvalidRequest: Checksums are not known that should be checked.
            OutputFailed: There is no room to unpack a compressed shard.
        """
        groups = [*self.catalog.by_shard(numbers)] if self._plain else []
        if not 0 < len(groups) <= self._files.room // 2 or not all(self._is_indexed(shard) for shard, *_ in groups):
            return self.read(numbers)
        size, spans = 0, []
        for shard, rows, _ in groups:
            with suppress(CorruptShard):  # each sample raises it, when it is asked for
                starts, ends = self.opened(shard).spans(rows, self._fields)
                size += int((ends - starts).sum())
                spans.append((shard, starts, ends))
        if size < LATE * len(numbers):
            return self.read(numbers)
        for shard, starts, ends in spans:
            self.opened(shard).file.expect(starts, ends)
        return self._each(groups, numbers)

    def _each(self, groups: Sequence[tuple[int, Numbers, Numbers]], numbers: Numbers) -> Samples:
        """Return samples of shards whose samples need no parsing, each read when it is asked for."""
        if len(numbers) >= len(groups) * _FEW:
            with suppress(CorruptShard):  # each sample raises it
                parts = [(self.opened(shard), rows) for shard, rows, _ in groups]
                return each_sample(parts, numbers, self._fields, self.one)
        return map(self.one, numbers.tolist())

    def one(self, number: int) -> Sample | ShardError:
        """Return a sample, or its error. A hot path: 3 us beside the reading."""
        shard = bisect_right(self._firsts, number) - 1
        row = number - self._firsts[shard]
        if self._plain and shard not in self._broken:
            try:
                opened = self._near.get(shard) or self.opened(shard)
                if opened.readers is not None:
                    return opened.one(row, self._fields)
            except (CorruptShard, OSError, EOFError, ValueError, IndexError):
                pass  # read again, for the error that names all
        return self._part(shard, np.array([row]))[0]

    def opened(self, shard: int) -> OpenShard:
        """Return a shard that is being read, kept at hand until a store gives any back."""
        found = self._near.get(shard)
        if found is None:
            if (known := self._broken.get(shard)) is not None:  # no second walk, and no second copy
                raise known.with_traceback(None)
            place, index = self.catalog.shards[shard], self.store.index(shard)
            is_tar = shard_kind(place.path).format == "tar"
            # Nothing but the dataset file, or else the record, says whether bytes are a list or a value.
            readers = self._readers if self.catalog.dataset(shard)[0].listed and not index.kinds else None
            file = self._files.open(place, self._sizes[shard] or None)
            found = self._near[shard] = OpenShard(index, file, is_tar, {} if is_tar else readers)
        return replace(found, readers=None) if self._parses and not found.is_tar else found

    def _part(self, shard: int, rows: Numbers) -> list[Sample | ShardError]:
        """Return samples of one shard; where a cache's copy is damaged, as another copy has them."""
        error = self._broken.get(shard)
        if error is None:
            try:
                asked = ShardRows(self, shard, rows)
                found = asked.samples()
                damaged = any(isinstance(one, ShardError) for one in found)
                if damaged and self._files.renew(self.catalog.shards[shard], asked.opened.file):
                    self._near.pop(shard, None)  # another thread may have put it there again, as it was before
                    found = ShardRows(self, shard, rows).samples()
            except CorruptShard as damage:
                error = damage
                if self.options.on_error == "skip":
                    self._broken[shard] = error  # no second walk, and no second message
            else:
                return found
        return [error] * len(rows)


class MixedReader(_SampleReader):
    """Reads samples of several datasets; their numbers follow each other, and `__dataset__` says which it is of."""

    def __init__(self, readers: Sequence[Reader], source: MixedSamples) -> None:
        self.readers, self._source = readers, source
        spans = [one.span for one in source.sources]
        self._ends, self._firsts = np.cumsum(spans), np.cumsum(spans) - spans
        self._datasets = [0, *accumulate(source.datasets)]  # the number of the first dataset of each source
        sizes = (weight * one.mean_size for weight, one in zip(source.weights, readers, strict=True))
        self.mean_size = sum(sizes) // sum(source.weights)  # as often as each dataset comes
        self.copies = any(one.copies for one in readers)
        self.reads_at_once = max(one.reads_at_once for one in readers)

    def expect(self, numbers: Numbers, seen: set[str]) -> None:
        """Have the shards of samples that are read soon copied into the cache, but for those of `seen`."""
        for one, part in self._divided(numbers, np.searchsorted(self._ends, numbers, side="right")):
            one.expect(part, seen)

    def reading_only(self, fields: frozenset[str] | None) -> MixedReader:
        """Return a reader of these fields, where every sample of a dataset has them."""
        return MixedReader([one.reading_only(fields) for one in self.readers], self._source)

    def leave_out(self, error: ShardError, number: int, *counts: SkippedSamples, damaged: bool = True) -> None:
        """Count a sample that is left out, in its dataset and in `counts`, or raise its error, as that dataset does."""
        at = int(np.searchsorted(self._ends, number, side="right"))
        self.readers[at].leave_out(error, number - int(self._firsts[at]), *counts, damaged=damaged)

    def read(self, numbers: Numbers) -> Samples:
        """Return samples, in the order of their numbers in the argument, and errors in place of damaged ones."""
        return self._joined(numbers, lambda one, part: one.read(part))

    def read_late(self, numbers: Numbers) -> Samples:
        """Return samples as `read` does, but read large ones only when each is asked for."""
        return self._joined(numbers, lambda one, part: one.read_late(part))

    def _joined(self, numbers: Numbers, read: Callable[[Reader, Numbers], Samples]) -> Samples:
        which = np.searchsorted(self._ends, numbers, side="right")
        found = [iter(read(one, part)) for one, part in self._divided(numbers, which)]
        return (_of_dataset(self._datasets[at], next(found[at])) for at in which.tolist())

    def _divided(self, numbers: Numbers, which: Numbers) -> Iterator[tuple[Reader, Numbers]]:
        """Yield each reader, and its samples among `numbers`, as it numbers them."""
        for at, reader in enumerate(self.readers):
            yield reader, numbers[which == at] - self._firsts[at]


def _of_dataset(number: int, sample: Sample | ShardError) -> Sample | ShardError:
    """Return a sample that says which dataset it is of, of those from `number` on."""
    if isinstance(sample, dict):
        sample["__dataset__"] = number + sample.get("__dataset__", 0)  # type: ignore[operator]
    return sample


Reader = Fetcher | MixedReader
