"""Read samples by number, in any order: by shard, in file order, returned in the requested order.

A payload is read into bytes of its own, or cut from a block of small ones, so that no large one is copied twice. A
sample
that cannot be read is returned as its error.
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


_MIN_OWN_READ_BYTES = 2**12  # bytes of a payload that is read by a system call of its own, into its place (measured)


_MAX_GAP_BYTES = 2**13  # bytes that are read for nothing, rather than in a system call of their own


_MAX_BLOCK_BYTES = 2**18  # bytes of one read of small payloads, about


_NOT_A_NUMBER = "not what its kind of feature holds"


class ShardRead:
    """Some samples of a shard, to be read.

    Args:
        fetcher: Who asks for them.
        shard: Its place in the catalog.
        rows: int64 [n]: which samples, in ascending order.

    Attributes:
        opened: The shard.
    """

    def __init__(self, fetcher: SampleReader, shard: int, rows: Numbers) -> None:
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
                for sample, value in zip(samples, to_python_values(taken.column(name)), strict=True):
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
                    self._note(at, _NOT_A_NUMBER)
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
                values = parse_record(record, starts[at], path, self._fetcher.catalog.lists)
            except CorruptShard as error:
                what = f"{self._keys[at]}: {error.problem}"
                known = CorruptShard(path, what, offset=error.offset, expected=error.expected, remedy=error.remedy)
                self._errors.setdefault(at, known)
            except (ValueError, IndexError):
                what = f"{self._keys[at]}: {_NOT_A_NUMBER}"
                self._errors.setdefault(at, CorruptShard(path, what, offset=starts[at], remedy=DAMAGE_FIX))
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
        firsts = np.flatnonzero(_starts_read(offsets, lengths))
        starts = offsets[firsts]
        sizes = (offsets + lengths)[np.append(firsts[1:], len(offsets)) - 1] - starts
        blocks = file.read(starts.tolist(), sizes.tolist())
        try:
            values = [*blocks] if len(starts) == len(offsets) else _cut_payloads(blocks, layout, firsts)
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

    def _note(self, payload: int, problem: str, expected: str = "", remedy: str = DAMAGE_FIX) -> None:
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
                remedy=f"Make sidecars that have them: {call_text('index', checksum=True)}.",
            )  # fmt: skip
        found = None if is_compressed(file.path) else file.checksum(int(self._fetcher.catalog.sizes[self._shard]))
        if found != expected:
            what = "no sidecar to check it with" if found is None else f"the checksum {found:08x}"
            raise CorruptShard(file.path, what, expected=f"{expected:08x}, as its dataset file says", remedy=DAMAGE_FIX)


def _cut_payloads(blocks: Iterator[bytes], layout: PayloadColumns, firsts: Numbers) -> list[bytes]:
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


def _starts_read(offsets: Numbers, lengths: Numbers) -> NDArray[np.bool_]:
    """Return which payloads begin a read: large ones, those behind these, and those far from the one before."""
    begins = np.ones(len(offsets), np.bool_)
    alone, gaps = lengths >= _MIN_OWN_READ_BYTES, offsets[1:] - offsets[:-1] - lengths[:-1]
    begins[1:] = (gaps < 0) | (gaps > _MAX_GAP_BYTES) | alone[1:] | alone[:-1]
    starts = offsets[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    steps = (offsets - starts) // _MAX_BLOCK_BYTES
    begins[1:] |= steps[1:] != steps[:-1]
    return begins


_MAX_REASONS = 1000


_REMOTE_READS = 4


_FREED_BLOCK_BYTES = 2**24


_MAX_SAMPLES_READ_SINGLY = (
    50  # samples of a shard up to which reading each alone costs less than arithmetic on columns (measured)
)


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
            if len(self.reasons) < _MAX_REASONS or str(error) in self.reasons:
                self.reasons[str(error)] += 1


class BaseReader:
    """What reads samples by their numbers.

    Attributes:
        mean_size: Bytes of a sample, with all around it; 1 at least.
        copies: Whether shards are copied into a cache before they are read.
        reads_at_once: How many calls of `read_late` are best made at the same time: more than one where shards lie
            elsewhere.
    """

    mean_size: int
    copies: bool
    concurrent_reads: int
    read: Callable[[Numbers], Samples]
    skip_or_raise: Callable[..., None]

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
                self.skip_or_raise(sample, int(numbers[at]))
            else:
                found.append(sample)
        return found


class SampleReader(BaseReader):
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
        bytes(_FREED_BLOCK_BYTES)
        self.catalog = catalog
        self._near: dict[int, ReadableShard] = {}
        self.store, self._files = IndexStore(catalog, self._near.clear), OpenFiles(options.cache, self._near.clear)
        self.skipped = SkippedSamples()
        self.mean_size = int(catalog.sizes.sum()) // max(1, len(catalog)) + 1
        self.copies = isinstance(options.cache, CopyingCache)
        self.concurrent_reads = _REMOTE_READS if catalog.is_remote else 1
        self._broken: dict[int, CorruptShard] = {}
        self._firsts: list[int] = catalog.firsts.tolist()
        self._sizes: list[int] = catalog.sizes.tolist()
        self._readers = {name: NUMBER_READERS[kind] for name, kind in catalog.kinds.items()}
        self.use(options)

    def use(self, options: ReadOptions) -> None:
        """Set how samples are read."""
        lists = self.catalog.lists if options.fields is None else self.catalog.lists & options.fields
        self.options, self._fields, self._parses = options, options.fields, bool(lists)
        self._plain = not (options.check or options.metadata or lists or self.catalog.is_remote)

    def __reduce__(self) -> tuple[type[SampleReader], tuple[Catalog, ReadOptions]]:
        return SampleReader, (self.catalog, self.options)

    def expect(self, numbers: Numbers, seen: set[str]) -> None:
        """Have the shards of samples that are read soon copied into the cache, but for those of `seen`."""
        if isinstance(cache := self.options.cache, CopyingCache):
            for shard in [self.catalog.shards[at] for at, *_ in self.catalog.group_by_shard(numbers)]:
                if shard.path not in seen:
                    seen.add(shard.path)
                    cache.expect(shard)

    def selecting(self, fields: frozenset[str] | None) -> SampleReader:
        """Return a fetcher of some fields, with the same indexes and open shards."""
        found = SampleReader.__new__(SampleReader)
        vars(found).update(vars(self))
        found.use(replace(self.options, fields=fields))
        return found

    def reader_of_fields(self, fields: frozenset[str] | None) -> SampleReader:
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

    def skip_or_raise(self, error: ShardError, number: int, *counts: SkippedSamples, damaged: bool = True) -> None:
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
        groups = [*self.catalog.group_by_shard(numbers)]
        found: list[Sample | ShardError] = [{}] * len(numbers)
        alone = len(numbers) < len(groups) * _MAX_SAMPLES_READ_SINGLY or self.mean_size >= LATE_SAMPLE_BYTES
        if groups and self._plain and alone and self._is_indexed(groups[0][0]):
            order = np.argsort(numbers, kind="stable")
            for place, sample in zip(order.tolist(), self._each(groups, numbers[order]), strict=True):
                found[place] = sample
            return found
        parts = (map_requests if self.catalog.is_remote else map)(lambda group: self._part(*group[:2]), groups)
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
        groups = [*self.catalog.group_by_shard(numbers)] if self._plain else []
        if not 0 < len(groups) <= self._files.room // 2 or not all(self._is_indexed(shard) for shard, *_ in groups):
            return self.read(numbers)
        size, spans = 0, []
        for shard, rows, _ in groups:
            with suppress(CorruptShard):  # each sample raises it, when it is asked for
                starts, ends = self.opened(shard).spans(rows, self._fields)
                size += int((ends - starts).sum())
                spans.append((shard, starts, ends))
        if size < LATE_SAMPLE_BYTES * len(numbers):
            return self.read(numbers)
        for shard, starts, ends in spans:
            self.opened(shard).file.expect(starts, ends)
        return self._each(groups, numbers)

    def _each(self, groups: Sequence[tuple[int, Numbers, Numbers]], numbers: Numbers) -> Samples:
        """Return samples of shards whose samples need no parsing, each read when it is asked for."""
        if len(numbers) >= len(groups) * _MAX_SAMPLES_READ_SINGLY:
            with suppress(CorruptShard):  # each sample raises it
                parts = [(self.opened(shard), rows) for shard, rows, _ in groups]
                return read_each_late(parts, numbers, self._fields, self.one)
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

    def opened(self, shard: int) -> ReadableShard:
        """Return a shard that is being read, kept at hand until a store gives any back."""
        found = self._near.get(shard)
        if found is None:
            if (known := self._broken.get(shard)) is not None:  # no second walk, and no second copy
                raise known.with_traceback(None)
            place, index = self.catalog.shards[shard], self.store.index(shard)
            is_tar = detect_kind(place.path).format == "tar"
            # Nothing but the dataset file, or else the record, says whether bytes are a list or a value.
            readers = self._readers if self.catalog.dataset(shard)[0].listed and not index.kinds else None
            file = self._files.open(place, self._sizes[shard] or None)
            found = self._near[shard] = ReadableShard(index, file, is_tar, {} if is_tar else readers)
        return replace(found, readers=None) if self._parses and not found.is_tar else found

    def _part(self, shard: int, rows: Numbers) -> list[Sample | ShardError]:
        """Return samples of one shard; where a cache's copy is damaged, as another copy has them."""
        error = self._broken.get(shard)
        if error is None:
            try:
                asked = ShardRead(self, shard, rows)
                found = asked.samples()
                damaged = any(isinstance(one, ShardError) for one in found)
                if damaged and self._files.renew(self.catalog.shards[shard], asked.opened.file):
                    self._near.pop(shard, None)  # another thread may have put it there again, as it was before
                    found = ShardRead(self, shard, rows).samples()
            except CorruptShard as damage:
                error = damage
                if self.options.on_error == "skip":
                    self._broken[shard] = error  # no second walk, and no second message
            else:
                return found
        return [error] * len(rows)
