"""Read samples by number: grouped by shard, in file order, returned in the requested order.

Large payloads are read directly, small ones cut from a block, so no large payload is copied twice. A sample that cannot
be read is returned as its error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardtool.dataset.shard_file import detect_kind, is_compressed
from shardtool.entries.arrow import to_python_values
from shardtool.errors import CorruptShard, InvalidRequest, ShardError
from shardtool.fingerprint import crc32c
from shardtool.messages import call_text
from shardtool.read.index_store import IndexStore
from shardtool.read.open_files import DAMAGE_FIX, OpenFiles
from shardtool.read.options import CopyingCache, ReadOptions, Sample, Samples
from shardtool.read.readable_shard import (
    LATE_SAMPLE_BYTES,
    NUMBER_READERS,
    PayloadColumns,
    ReadableShard,
    parse_record,
    read_each_late,
)
from shardtool.storage.remote.requests import map_requests
from shardtool.storage.shared_blocks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.read.catalog import Catalog, Numbers
    from shardtool.values import OnError


_MIN_OWN_READ_BYTES = 2**12  # read by their own system call (measured)
_MAX_GAP_BYTES = 2**13  # reading it costs less than another system call
_MAX_BLOCK_BYTES = 2**18  # for small payloads
_NOT_A_NUMBER = "does not match its feature type"


class ShardRead:
    """A read of samples with ascending rows."""

    def __init__(self, reader: SampleReader, shard: int, rows: Numbers) -> None:
        self._reader, self._options, self._shard, self._rows = reader, reader.options, shard, rows
        self.opened = reader.opened(shard)
        self._keys, self._layout = self.opened.index.keys_of(rows), self.opened.layout(rows, self._options.fields)
        self._errors: dict[int, ShardError] = {}

    def samples(self) -> list[Sample | ShardError]:
        """Return the samples, with errors for damaged ones. Raise CorruptShard if the shard's checksum differs."""
        samples: list[Sample] = [{"__key__": key} for key in self._keys]
        if self.opened.readers is None:
            self._fill_from_records(samples)
        else:
            self._fill_from_payloads(samples)
        if self._options.metadata:
            rows = self._reader.store.metadata(self._shard).take(pa.array(self._rows))
            for name in rows.column_names:
                for sample, value in zip(samples, to_python_values(rows.column(name)), strict=True):
                    sample.setdefault(name, value)
        return [self._errors.get(index, sample) for index, sample in enumerate(samples)] if self._errors else [*samples]

    def _fill_from_payloads(self, samples: list[Sample]) -> None:
        values: list[Any] = self._read()
        names, codes, counts = self.opened.index.names, self._layout.codes, self._layout.counts
        for name, read in (self.opened.readers or {}).items():
            for index in np.flatnonzero(codes == names.index(name)).tolist() if name in names else ():
                try:
                    values[index] = read(values[index])
                except (ValueError, IndexError):
                    self._record_error(index, _NOT_A_NUMBER)
        width = int(counts[0])
        if (counts == width).all() and (codes.reshape(-1, width or 1) == codes[:width]).all():
            for index, code in enumerate(codes[:width].tolist()):  # by field: half the time of the loop below
                name = names[code]
                for sample, value in zip(samples, values[index::width], strict=True):
                    sample[name] = value
            return
        for owner, code, value in zip(self._layout.owners.tolist(), codes.tolist(), values, strict=True):
            samples[owner][names[code]] = value

    def _fill_from_records(self, samples: list[Sample]) -> None:
        if self._options.check:
            self._read()
        selected, index, path = self._options.fields, self.opened.index, self.opened.file.path
        starts, sizes = index.starts[self._rows].tolist(), index.sizes[self._rows].tolist()
        for row, record in enumerate(self._each(starts, sizes)):
            try:
                if isinstance(record, CorruptShard):
                    raise record
                values = parse_record(record, starts[row], path, self._reader.catalog.lists)
            except CorruptShard as error:
                problem = f"{self._keys[row]}: {error.problem}"
                offset, expected, remedy = error.offset, error.expected, error.remedy
                named = CorruptShard(path, problem, offset=offset, expected=expected, remedy=remedy)
                self._errors.setdefault(row, named)
            except (ValueError, IndexError):
                problem = f"{self._keys[row]}: {_NOT_A_NUMBER}"
                self._errors.setdefault(row, CorruptShard(path, problem, offset=starts[row], remedy=DAMAGE_FIX))
            else:
                samples[row].update(
                    (name, value) for name, value in values.items() if selected is None or name in selected
                )

    def _each(self, starts: list[int], sizes: list[int]) -> Iterator[bytes | CorruptShard]:
        index = 0
        while index < len(starts):
            try:
                for block in self.opened.file.read(starts[index:], sizes[index:]):
                    yield block
                    index += 1
            except CorruptShard as error:
                yield error
                index += 1

    def _read(self) -> list[bytes]:
        layout, file = self._layout, self.opened.file
        offsets, lengths = layout.offsets, layout.lengths
        if not len(offsets):
            return []
        firsts = np.flatnonzero(_starts_read(offsets, lengths))
        starts = offsets[firsts]
        sizes = (offsets + lengths)[np.append(firsts[1:], len(offsets)) - 1] - starts
        blocks = file.read(starts.tolist(), sizes.tolist())
        try:
            values = [*blocks] if len(starts) == len(offsets) else _cut_payloads(blocks, layout, firsts)
        except CorruptShard:
            values = []
            for payload, value in enumerate(self._each(offsets.tolist(), lengths.tolist())):
                values.append(b"" if isinstance(value, CorruptShard) else value)
                if isinstance(value, CorruptShard):
                    self._record_error(payload, value.problem, value.expected, value.remedy)
        crcs = layout.crcs
        if self._options.check and crcs is None:
            self._check_whole()
        elif self._options.check and crcs is not None:
            actual = np.fromiter(map(crc32c, values), np.uint32, len(values))
            for payload in np.flatnonzero(actual != crcs).tolist():
                problem, expected = f"the checksum {actual[payload]:08x}", f"{crcs[payload]:08x}, as in its index"
                self._record_error(payload, problem, expected)
        return values

    def _record_error(self, payload: int, problem: str, expected: str = "", remedy: str = DAMAGE_FIX) -> None:
        layout = self._layout
        sample, name = int(layout.owners[payload]), self.opened.index.names[layout.codes[payload]]
        self._errors.setdefault(sample, CorruptShard(
            self.opened.file.path, f"{self._keys[sample]}, {name}: {problem}", offset=int(layout.offsets[payload]),
            expected=expected, remedy=remedy,
        ))  # fmt: skip

    def _check_whole(self) -> None:
        """Check the whole shard, because a scanned index has no checksums."""
        expected, file = int(self._reader.catalog.crcs[self._shard]), self.opened.file
        if expected < 0:
            raise InvalidRequest(
                "check", f"no checksums are known for {file.path}",
                remedy=f"Create sidecars with checksums: {call_text('index', checksum=True)}.",
            )  # fmt: skip
        actual = None if is_compressed(file.path) else file.checksum(int(self._reader.catalog.sizes[self._shard]))
        if actual != expected:
            problem = "no sidecar with checksums" if actual is None else f"the checksum {actual:08x}"
            expected_text = f"{expected:08x}, as in its dataset file"
            raise CorruptShard(file.path, problem, expected=expected_text, remedy=DAMAGE_FIX)


def _cut_payloads(blocks: Iterator[bytes], layout: PayloadColumns, firsts: Numbers) -> list[bytes]:
    """Cut payloads from blocks that start at the payloads `firsts`; release each block early."""
    counts = np.diff(np.append(firsts, len(layout.offsets)))
    starts = layout.offsets - np.repeat(layout.offsets[firsts], counts)
    ranges = zip(starts.tolist(), (starts + layout.lengths).tolist(), strict=True)
    values: list[bytes] = []
    for block, count in zip(blocks, counts.tolist(), strict=True):
        values += [block[first:last] for first, last in islice(ranges, count)]
    return values


def _starts_read(offsets: Numbers, lengths: Numbers) -> NDArray[np.bool_]:
    begins = np.ones(len(offsets), np.bool_)
    is_large, gaps = lengths >= _MIN_OWN_READ_BYTES, offsets[1:] - offsets[:-1] - lengths[:-1]
    begins[1:] = (gaps < 0) | (gaps > _MAX_GAP_BYTES) | is_large[1:] | is_large[:-1]
    starts = offsets[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    steps = (offsets - starts) // _MAX_BLOCK_BYTES
    begins[1:] |= steps[1:] != steps[:-1]
    return begins


_MAX_REASONS = 1000
_REMOTE_READS = 4
_FREED_BLOCK_BYTES = 2**24
_MAX_SAMPLES_READ_SINGLY = 50  # per shard: single reads cost less than column arithmetic (measured)


class SkippedSamples:
    """Counters of skipped samples.

    `shards` and `reasons` count by path, and by the first thousand reasons. Samples that are not `damaged` were
    dropped.
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
        """Count a sample; `shard` is empty if unknown."""
        with self._lock:
            self.samples += 1
            self.damaged += damaged
            if shard:
                self.shards[shard] += 1
            if len(self.reasons) < _MAX_REASONS or str(error) in self.reasons:
                self.reasons[str(error)] += 1


class BaseReader:
    """Base class of readers of samples by number.

    Attributes:
        mean_size: Mean bytes per sample with its overhead, at least 1.
        copies: Whether shards are first copied into a cache.
        concurrent_reads: Recommended concurrent calls of `read_late`.
    """

    mean_size: int
    copies: bool
    concurrent_reads: int
    read: Callable[[Numbers], Samples]
    skip_or_raise: Callable[..., None]

    def fetch(self, numbers: Numbers) -> list[Sample]:
        """Return the samples `numbers`, int64 [n], without damaged ones if these are skipped."""
        samples = []
        for index, sample in enumerate(self.read(numbers)):
            if isinstance(sample, ShardError):
                self.skip_or_raise(sample, int(numbers[index]))
            else:
                samples.append(sample)
        return samples


class SampleReader(BaseReader):
    """Reads samples of a catalog. Safe in threads; picklable without open files."""

    def __init__(self, catalog: Catalog, options: ReadOptions) -> None:
        # Freeing a block of 16 MB once makes the C library keep tens of MB of freed memory. Otherwise fresh pages for
        # each list of large samples take longer than reading them (measured: 50 us for 100 KB).
        bytes(_FREED_BLOCK_BYTES)
        self.catalog = catalog
        self._open_shards: dict[int, ReadableShard] = {}
        self.store = IndexStore(catalog, self._open_shards.clear)
        self._files = OpenFiles(options.cache, self._open_shards.clear)
        self.skipped = SkippedSamples()
        self.mean_size = int(catalog.sizes.sum()) // max(1, len(catalog)) + 1
        self.copies = isinstance(options.cache, CopyingCache)
        self.concurrent_reads = _REMOTE_READS if catalog.is_remote else 1
        self._broken: dict[int, CorruptShard] = {}
        self._firsts: list[int] = catalog.firsts.tolist()
        self._sizes: list[int] = catalog.sizes.tolist()
        self._readers = {name: NUMBER_READERS[kind] for name, kind in catalog.kinds.items()}
        self.set_options(options)

    def set_options(self, options: ReadOptions) -> None:
        """Set the options."""
        lists = self.catalog.lists if options.fields is None else self.catalog.lists & options.fields
        self.options, self._fields, self._parses = options, options.fields, bool(lists)
        self._plain = not (options.check or options.metadata or lists or self.catalog.is_remote)

    def __reduce__(self) -> tuple[type[SampleReader], tuple[Catalog, ReadOptions]]:
        return SampleReader, (self.catalog, self.options)

    def expect(self, numbers: Numbers, seen: set[str]) -> None:
        """Start copying the shards of these samples into the cache, except paths in `seen`."""
        if isinstance(cache := self.options.cache, CopyingCache):
            for shard in [self.catalog.shards[number] for number, *_ in self.catalog.group_by_shard(numbers)]:
                if shard.path not in seen:
                    seen.add(shard.path)
                    cache.expect(shard)

    def with_options(self, **changes: Any) -> SampleReader:
        """Return a reader with other `ReadOptions` that shares indexes and open shards."""
        reader = SampleReader.__new__(SampleReader)
        vars(reader).update(vars(self))
        reader.set_options(replace(self.options, **changes))
        return reader

    def with_on_error(self, on_error: OnError) -> SampleReader:
        """Return a reader with this `on_error`."""
        return self.with_options(on_error=on_error)

    def reader_of_fields(self, fields: frozenset[str] | None) -> SampleReader:
        """Return a reader of these fields, or itself if that saves nothing.

        Returns itself also if a sample may lack a field: its error lists all fields.
        """
        catalog = self.catalog
        names = None if fields is None else {name for name in fields if name[:2] != "__"}
        if names is None or catalog.fields.keys() <= names:
            return self
        if any(catalog.fields.get(name) != len(catalog) for name in names):
            return self
        return self.with_options(fields=frozenset(names))

    def skip_or_raise(self, error: ShardError, number: int, *counts: SkippedSamples, damaged: bool = True) -> None:
        """Count a damaged or dropped sample; raise a damaged one's error unless `on_error` is "skip"."""
        if damaged and self.options.on_error == "raise":
            raise error
        shard = int(self.catalog.locate(np.array([number]))[0][0])
        for count in (self.skipped, *counts):
            count.count_sample(error, self.catalog.shards[shard].path, damaged=damaged)

    def read(self, numbers: Numbers) -> list[Sample | ShardError]:
        """Return samples in the order of `numbers`, int64 [n], with errors for damaged ones."""
        if len(numbers) == 1:
            return [self.read_one(int(numbers[0]))]
        groups = [*self.catalog.group_by_shard(numbers)]
        result: list[Sample | ShardError] = [{}] * len(numbers)
        read_singly = len(numbers) < len(groups) * _MAX_SAMPLES_READ_SINGLY or self.mean_size >= LATE_SAMPLE_BYTES
        if groups and self._plain and read_singly and self._is_indexed(groups[0][0]):
            order = np.argsort(numbers, kind="stable")
            for index, sample in zip(order.tolist(), self._each(groups, numbers[order]), strict=True):
                result[index] = sample
            return result
        map_groups = map_requests if self.catalog.is_remote else map
        parts = map_groups(lambda group: self._read_from_shard(*group[:2]), groups)
        for (*_, indexes), part in zip(groups, parts, strict=True):
            for index, sample in zip(indexes.tolist(), part, strict=True):
                result[index] = sample
        return result

    def _is_indexed(self, shard: int) -> bool:
        with suppress(CorruptShard):
            return self.opened(shard).readers is not None
        return True

    def read_late(self, numbers: Numbers) -> Samples:
        """Return samples as `read`, but large ones on demand, read ahead by the system."""
        groups = [*self.catalog.group_by_shard(numbers)] if self._plain else []
        if not 0 < len(groups) <= self._files.room // 2 or not all(self._is_indexed(shard) for shard, *_ in groups):
            return self.read(numbers)
        size, spans = 0, []
        for shard, rows, _ in groups:
            with suppress(CorruptShard):
                starts, ends = self.opened(shard).spans(rows, self._fields)
                size += int((ends - starts).sum())
                spans.append((shard, starts, ends))
        if size < LATE_SAMPLE_BYTES * len(numbers):
            return self.read(numbers)
        for shard, starts, ends in spans:
            self.opened(shard).file.expect(starts, ends)
        return self._each(groups, numbers)

    def _each(self, groups: Sequence[tuple[int, Numbers, Numbers]], numbers: Numbers) -> Samples:
        if len(numbers) >= len(groups) * _MAX_SAMPLES_READ_SINGLY:
            with suppress(CorruptShard):
                parts = [(self.opened(shard), rows) for shard, rows, _ in groups]
                return read_each_late(parts, numbers, self._fields, self.read_one)
        return map(self.read_one, numbers.tolist())

    def read_one(self, number: int) -> Sample | ShardError:
        """Return a sample, or its error. A hot path: 3 us in addition to reading."""
        shard = bisect_right(self._firsts, number) - 1
        row = number - self._firsts[shard]
        if self._plain and shard not in self._broken:
            try:
                opened = self._open_shards.get(shard) or self.opened(shard)
                if opened.readers is not None:
                    return opened.read_one(row, self._fields)
            except (CorruptShard, OSError, EOFError, ValueError, IndexError):
                pass  # read again for a complete error
        return self._read_from_shard(shard, np.array([row]))[0]

    def opened(self, shard: int) -> ReadableShard:
        """Return an open shard, kept until a cache drops any shard or index."""
        opened = self._open_shards.get(shard)
        if opened is None:
            if (error := self._broken.get(shard)) is not None:  # do not scan or copy it again
                raise error.with_traceback(None)
            stored, index = self.catalog.shards[shard], self.store.index(shard)
            is_tar = detect_kind(stored.path).format == "tar"
            # Only the dataset file, or the record itself, determines whether bytes are a list or a value.
            readers = self._readers if self.catalog.dataset(shard)[0].listed and not index.kinds else None
            file = self._files.open(stored, self._sizes[shard] or None)
            opened = self._open_shards[shard] = ReadableShard(index, file, is_tar, {} if is_tar else readers)
        return replace(opened, readers=None) if self._parses and not opened.is_tar else opened

    def _read_from_shard(self, shard: int, rows: Numbers) -> list[Sample | ShardError]:
        """Return samples of one shard; retry once if a cached copy is damaged."""
        error = self._broken.get(shard)
        if error is None:
            try:
                request = ShardRead(self, shard, rows)
                samples = request.samples()
                damaged = any(isinstance(read_one, ShardError) for read_one in samples)
                if damaged and self._files.renew(self.catalog.shards[shard], request.opened.file):
                    self._open_shards.pop(shard, None)
                    samples = ShardRead(self, shard, rows).samples()
            except CorruptShard as damage:
                error = damage
                if self.options.on_error == "skip":
                    self._broken[shard] = error  # do not scan it, or log a warning, again
            else:
                return samples
        return [error] * len(rows)
