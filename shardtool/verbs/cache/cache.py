"""The classes `Cache` and `CacheWriter`."""

from __future__ import annotations

import os
import re
import time
import warnings
from contextlib import suppress
from errno import EMFILE
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Literal, NamedTuple

from shardtool.dataset.sidecar_schema import ShardFacts
from shardtool.dataset.sidecar_write import encode_sidecar
from shardtool.entries.record_sizes import MAX_SAMPLE_BYTES, TRAILER_SIZE
from shardtool.errors import (
    CorruptShard,
    InvalidRequest,
    OutputFailed,
    format_list,
    os_error_text,
    printable,
    redact_secrets,
)
from shardtool.messages import option_text
from shardtool.plan.shard_bounds import NO_LIMIT
from shardtool.publish.publication import Publication
from shardtool.request.option_checks import check_choice
from shardtool.storage.file_system import write_errors
from shardtool.storage.staging import Folder, local_folder
from shardtool.units import format_size, parse_size
from shardtool.verbs.cache.cache_space import CacheSpace, Policy, lock_reservation
from shardtool.verbs.cache.counts import CacheCounts, CountsFile
from shardtool.verbs.cache.layout import COPIED, WRITTEN, original_file
from shardtool.verbs.cache.leases import (
    LOCAL_LOCKS_FIX,
    CacheShards,
    LeasedShard,
    NotCopiedWarning,
    copy_and_lease,
    lease_copy,
    lease_written_shards,
)
from shardtool.writer.sample_encoder import EncodedSample, SampleEncoder, SampleRefused
from shardtool.writer.sample_writer import SampleWriter, ShardBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.dataset.stored import StoredShard
    from shardtool.request.observer import Observer
    from shardtool.storage.copying import OriginalFile
    from shardtool.storage.locks import FileLock


ShardFormat = Literal["tar", "tfrecord"]
_PART_NAME = re.compile(r"[A-Za-z0-9_]{1,20}")

_POLL_S = 0.1

_WAIT_NOTE_S = 10.0  # after this wait for space, a writer adds a note


class CacheWriterOptions(NamedTuple):
    """The options of a `CacheWriter`."""

    part: int | str
    format: ShardFormat
    max_size: int
    max_count: int


class CacheWriter(SampleWriter):
    """Writes samples into a cache. Create a writer with `Cache.writer`, and use it in a `with` block, in one thread.

    A shard is added to the cache when it is full or the block ends. If too few shards can be evicted, the writer waits
    for space. An exception or a killed process leaves no partial shard. Keys must be unique within a shard.
    """

    def __init__(
        self, space: CacheSpace, options: CacheWriterOptions, on_wait: Callable[[str], None], counter: CountsFile
    ) -> None:
        if not _PART_NAME.fullmatch(str(options.part)):
            expected = "a number, or 1 to 20 letters, digits and underscores"
            raise InvalidRequest(option_text("part"), f"{options.part!r}", expected=expected)
        check_choice("format", options.format, ShardFormat)
        if space.policy == "keep":
            found = "a cache that never evicts shards"
            raise InvalidRequest(option_text("policy", "keep"), found, expected="another policy")
        if options.max_size > space.max_bytes:
            found = f"{format_size(options.max_size)}, but the cache has only {format_size(space.max_bytes)}"
            raise InvalidRequest(option_text("max_size"), found, expected="at most the size of the cache")
        max_bytes = min(options.max_size - TRAILER_SIZE[options.format], MAX_SAMPLE_BYTES[options.format])
        super().__init__(options.format, None, max_bytes, options.max_count)
        self._space, self._options, self._on_wait, self._counter = space, options, on_wait, counter
        self._folder = Folder(os.path.join(space.folder, WRITTEN))
        self._name = f"grown-part_{options.part}_{token_hex(4)}"
        self.shards = self.samples = 0
        try:
            reservation = lock_reservation(self._folder, self._name)
        except OSError as error:
            raise OutputFailed(self._folder.path, f"cannot write: {os_error_text(error)}") from None
        if reservation is None:
            raise OutputFailed(self._folder.path, "cannot be locked")
        self._reservation = reservation

    def publish(self) -> None:
        """Publish the samples written so far as a shard, even if the shard is not full.

        Raises:
            InvalidRequest: The samples have metadata of incompatible types.
            OutputFailed: The files cannot be written.
        """
        if self._shard is not None:
            self._publish(self._shard)

    def _publish(self, shard: ShardBuilder) -> None:
        self._shard = None
        try:
            staged, index, _, _, plan = shard.finish(self._encoder, self._columns)
            data, _ = encode_sidecar(index, ShardFacts(shard.name, shard.file.size, shard.file.crc, plan))
            Publication(self._folder, "", old="keep").add(staged, data, shard.name)
        except BaseException:
            shard.abandon()
            raise
        self.shards += 1
        # an encoder keeps all keys in memory, so use a new one for each shard
        previous, self._encoder = self._encoder, SampleEncoder(self._options.format, None)
        self._encoder.restore(previous.kinds, has_inline=previous.has_inline)

    _finish = publish

    def _release(self) -> None:
        self._folder.discard(os.path.basename(self._reservation.path))
        self._reservation.close()

    def _accepts(self, sample: EncodedSample) -> bool:
        if sample.size > self._max_bytes:
            found = f"{printable(sample.key)} has {format_size(sample.size)}"
            error = InvalidRequest(option_text("max_size"), found, expected=f"at most {format_size(self._max_bytes)}")
            raise SampleRefused(error)
        return True

    def _add(self, sample: EncodedSample, row: Mapping[str, object]) -> None:
        try:
            super()._add(sample, row)
        except InvalidRequest as error:  # metadata types in the previous shard conflict; keep the writer usable
            raise SampleRefused(error) from None
        self.samples += 1

    def _next_shard(self, _: EncodedSample) -> ShardBuilder:
        start_s, noted = time.monotonic(), False
        while True:
            with write_errors(self._space.folder), self._space.locked():
                evicted = self._space.reserve(self._reservation, self._options.max_size)
            if evicted is not None:
                self._counter.add(evicted=evicted)
                break
            if not noted and time.monotonic() - start_s > _WAIT_NOTE_S:
                noted = True
                self._on_wait(f"{self._name} is waiting for space: all shards are in use")
            time.sleep(_POLL_S)
        name = f"{self._name}-{self.shards:06d}.{self._options.format}"
        return ShardBuilder(self._folder, name, self._options.format)


_RETRY_WRITE_S = 60.0

_DEFAULT_SHARD_SIZE = "256MB"


class Cache:
    """A folder on a fast disk that keeps whole shards, shared by any number of processes.

    A cache can be pickled, and used in threads and forked children.

        cache = shardtool.Cache("/nvme/cache", max_bytes="200GB")
        dataset = shardtool.open("/nfs/train.json", cache=cache)

    Args:
        folder: Folder of the cache, created if missing.
        max_bytes: Maximum total size, in bytes or as text (`50GB`). Each process applies its own limit when it adds a
            shard.
        policy: Which shards to evict first: the least recently used (`least-used`), or those added first (`oldest`).
            With `keep`, no shard is evicted. Shards that do not fit are read from the original location. Use `keep` if
            the dataset is larger than the cache: other policies evict shards before the next epoch reads them.
        observer: Receives notes about the cache. By default, notes are Python warnings.

    Raises:
        InvalidRequest: `folder` is a URL, a file, a cache of another version, or on a file system without locks.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        max_bytes: int | str = "50GB",
        policy: Policy = "least-used",
        *,
        observer: Observer | None = None,
    ) -> None:
        check_choice("policy", policy, Policy)
        if not isinstance(folder, str | os.PathLike):
            raise InvalidRequest(option_text("folder"), f"{folder!r}", expected="the path of a folder")
        self.folder = os.path.abspath(local_folder(folder, LOCAL_LOCKS_FIX).path)
        self._space = CacheSpace(self.folder, parse_size(max_bytes), policy)
        self._observer, self._noted = observer, set[str]()
        try:
            foreign = self._space.prepare()
        except (OSError, OutputFailed) as error:
            self._note_failure(error)
            foreign = []
        if foreign:
            self._note("foreign", f"{format_list(foreign)}: not part of the cache; left unchanged")
        self._shards = CacheShards([], [])
        self._reset_process_state()

    @property
    def max_bytes(self) -> int:
        """Maximum total size in bytes."""
        return self._space.max_bytes

    @property
    def policy(self) -> Policy:
        """Which shards to evict first."""
        return self._space.policy

    def _reset_process_state(self) -> None:
        self._pid, self._retry_s = os.getpid(), 0.0
        self._originals: dict[str, OriginalFile] = {}
        self._damaged_copies: set[str] = set()
        self._prefetched: set[str] = set()  # copies made by `expect` that were not opened yet
        self._counter = CountsFile(self.folder)

    @property
    def counts(self) -> CacheCounts:
        """The statistics of this process."""
        return self._counter.counts

    def total(self) -> CacheCounts:
        """Return the statistics of all processes.

        Raises:
            OutputFailed: The folder cannot be locked.
        """
        try:
            with self._space.locked():
                return self._space.counts()[0]
        except OSError as error:
            raise OutputFailed(self.folder, _failure_reason(error)) from None

    def __reduce__(self) -> tuple[object, ...]:
        return Cache, (self.folder, self.max_bytes, self.policy)

    def __repr__(self) -> str:
        return f"Cache({self.folder!r}, max_bytes={self.max_bytes}, policy={self.policy!r})"

    def open(self, shard: StoredShard) -> LeasedShard:
        """Return the copy of a shard, or the original shard if the cache cannot be used.

        The first process that opens a shard copies it; other processes wait. The copy is kept until the result is
        closed.

        Raises:
            InvalidRequest: The shard is larger than the cache.
        """
        try:
            original = self._original(shard)
        except OSError:  # the reader of the shard reports the error
            return LeasedShard(shard.path)
        lock = None if original.name in self._damaged_copies else self._lease(original)
        if lock is None:
            self._counter.add(passed=1)
            return LeasedShard(shard.path)
        return LeasedShard(lock.path, lock)

    def expect(self, shard: StoredShard) -> None:
        """Copy a shard in advance, without evicting other shards. Ignore failures, because `open` reports them."""
        with suppress(NotCopiedWarning, CorruptShard, OutputFailed, OSError):
            original = self._original(shard)
            if (lock := lease_copy(self._space, original)) is not None:
                lock.close()
            elif original.size <= self.max_bytes and time.monotonic() >= self._retry_s:
                self._prefetched.add(original.name)
                evicted = None
                try:
                    lock, evicted = copy_and_lease(self._space._replace(policy="keep"), original)
                    lock.close()
                finally:
                    if evicted is None:
                        self._prefetched.discard(original.name)

    def _original(self, shard: StoredShard) -> OriginalFile:
        if self._pid != os.getpid():
            self._reset_process_state()
        return self._originals.get(shard.path) or self._originals.setdefault(shard.path, original_file(shard))

    def drop(self, shard: StoredShard) -> None:
        """Delete the damaged copy of a shard, so the next `open` copies the shard again.

        If another process uses the copy, this process reads the original from now on.
        """
        with suppress(OSError):
            original = original_file(shard)
            if lock := self._space.lock_exclusively(f"{COPIED}/{original.name}"):
                with lock:
                    Folder(self.folder).discard(f"{COPIED}/{original.name}")
            else:
                self._damaged_copies.add(original.name)
            self._note(original.name, f"{printable(shard.path)}: the cached copy is damaged and is no longer used")

    def writer(
        self, part: int | str = 0, *, format: ShardFormat = "tar", max_size: int | str | None = None,  # noqa: A002
        max_count: int | None = None,
    ) -> CacheWriter:  # fmt: skip
        """Return a writer that adds shards of new samples to this cache.

        In a forked process, also release the leases inherited from the parent.

        Args:
            part: A number or name that identifies this writer in shard names.
            max_size: Maximum bytes per shard. None means a fiftieth of the cache, at most 256 MB.
            max_count: Maximum samples per shard.

        Raises:
            InvalidRequest: An argument is invalid, `max_size` exceeds the cache, or the policy is `keep`.
            OutputFailed: The folder cannot be written.
        """
        if self._pid != os.getpid():
            self._reset_process_state()
            self._shards.close()
        size = parse_size(_DEFAULT_SHARD_SIZE if max_size is None else max_size)
        if max_size is None:
            size = min(size, max(self.max_bytes // 50, 1))
        options = CacheWriterOptions(part, format, size, NO_LIMIT if max_count is None else max_count)
        return CacheWriter(self._space, options, partial(self._note, "wait"), self._counter)

    def refresh(self, max_bytes: int | str | None = None) -> CacheShards:
        """Return the paths of the finished shards that writers have added, oldest first.

        The shards are kept until the next `refresh`, or until the result is closed.

        Args:
            max_bytes: Return only the newest shards, up to this total size (None for all). Older shards can be evicted.

        Raises:
            OutputFailed: The folder cannot be locked, or there are more shards than the process may open.
        """
        if self._pid != os.getpid():
            self._reset_process_state()
        self._shards.close()
        try:
            self._shards = lease_written_shards(self._space, None if max_bytes is None else parse_size(max_bytes))
        except OSError as error:
            advice = "Write larger shards, or raise the limit (`ulimit -n`): each shard in use needs a file descriptor."
            remedy = advice if error.errno == EMFILE else ""
            raise OutputFailed(self.folder, _failure_reason(error), remedy=remedy) from None
        return self._shards

    def paths(self) -> list[str]:
        """Call `refresh`, and return the paths as a list for `tf.data.TFRecordDataset`."""
        return [*self.refresh()]

    def _lease(self, original: OriginalFile) -> FileLock | None:
        try:
            if (lock := lease_copy(self._space, original)) is not None:
                self._count_hit(original)
                return lock
            if original.size > self.max_bytes:
                found = f"{original.path} has {original.size:,} bytes, the cache only {self.max_bytes:,}"
                raise InvalidRequest(option_text("max_bytes"), found, expected="at least the size of the largest shard")
            if time.monotonic() < self._retry_s:
                return None
            lock, evicted = copy_and_lease(self._space, original)
        except NotCopiedWarning as error:
            self._note(*error.args)
        except CorruptShard as error:
            self._note(original.name, f"not copied: {error}")
        except (OSError, OutputFailed) as error:
            self._retry_s = time.monotonic() + _RETRY_WRITE_S
            self._note_failure(error)
        else:
            if evicted is None:
                self._count_hit(original)
            else:
                self._counter.add(copies=1, evicted=evicted)
            return lock
        return None

    def _count_hit(self, original: OriginalFile) -> None:
        if original.name in self._prefetched:
            self._prefetched.discard(original.name)
            self._counter.add(copies=1)
        else:
            self._counter.add(hits=1)

    def _note_failure(self, error: OSError | OutputFailed) -> None:
        self._note("failure", f"{_failure_reason(error)}; uncached shards are read from their original location")

    def _note(self, kind: str, text: str) -> None:
        if kind in self._noted:
            return
        self._noted.add(kind)
        note = redact_secrets(printable(f"cache {self.folder}: {text}"))
        if self._observer is not None:
            self._observer.note(note)
        else:
            warnings.warn(note, stacklevel=2)


def _failure_reason(error: OSError | OutputFailed) -> str:
    return error.found if isinstance(error, OutputFailed) else f"cannot be used: {os_error_text(error)}"
