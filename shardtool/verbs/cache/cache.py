"""`Cache`: whole shards on a fast disk."""

from __future__ import annotations

import os
import time
import warnings
from contextlib import suppress
from errno import EMFILE
from functools import partial
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard, InvalidRequest, OutputFailed, format_list, os_error_text, printable
from shardtool.messages import option_text
from shardtool.plan.shard_bounds import NO_LIMIT
from shardtool.request.option_checks import check_choice
from shardtool.storage.staging import Folder, local_folder
from shardtool.units import parse_size
from shardtool.verbs.cache.cache_space import CacheSpace, Policy
from shardtool.verbs.cache.cache_writer import CacheWriter, CacheWriterOptions, ShardFormat
from shardtool.verbs.cache.counts import CountsFile
from shardtool.verbs.cache.folder import COPIED, original_file
from shardtool.verbs.cache.leases import (
    LOCAL_LOCKS_FIX,
    CacheShards,
    LeasedShard,
    NotCopiedWarning,
    copy_and_lease,
    lease_copy,
    lease_written_shards,
)

if TYPE_CHECKING:
    from shardtool.dataset.stored import StoredShard
    from shardtool.request.observer import Observer
    from shardtool.storage.copying import OriginalFile
    from shardtool.storage.locks import FileLock
    from shardtool.verbs.cache.counts import CacheCounts


_RETRY_WRITE_S = 60.0  # after a failure to write to the cache

_DEFAULT_SHARD_SIZE = "256MB"


class Cache:
    """A folder of whole shards on a fast disk, shared by any number of processes.

    Threads may share a cache, forked children may use it, and it can be pickled.

        cache = shardtool.Cache("/nvme/cache", max_bytes="200GB")
        dataset = shardtool.open("/nfs/train.json", cache=cache)

    Args:
        folder: Folder of the cache, created if missing.
        max_bytes: Maximum total size, in bytes or as a size such as `50GB`. Each process applies its own bound when it
            adds a shard.
        policy: Which shards to evict first. `least-used`: the least recently used. `oldest`: the first added. `keep`:
            none; shards that do not fit are read from their original location. Use `keep` if the dataset is larger than
            the cache and read in whole epochs.
        observer: Receives notes; without one, notes are warnings.

    Raises:
        InvalidRequest: The folder is a URL, has another cache version, contains something else, or does not support
            locks.
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
        self._prefetched: set[str] = set()  # shards copied by `expect`, not opened yet
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
        """Return a shard's copy, or its original if the cache cannot be used.

        The first process that opens a shard copies it, while others wait. A copy is not evicted until the result is
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
        """Copy a shard that will be read soon, if it fits without eviction. `open` reports failures."""
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
        """Delete the damaged copy of a shard; the next `open` copies the shard again.

        While other processes use the copy, this process reads the original.
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
        """Return a writer that adds new shards to this cache, for a sampler.

        In a forked process, first release leases inherited from `refresh`, for which the writer would wait forever.

        Args:
            part: Part of the shard names, which never clash with those of another writer.
            format: `tar` or `tfrecord`.
            max_size: Maximum bytes per shard; None: a fiftieth of the cache, at most 256 MB.
            max_count: Maximum samples per shard.

        Raises:
            InvalidRequest: The cache can never hold such a shard.
            OutputFailed: The folder cannot be written.
        """
        if self._pid != os.getpid():
            self._reset_process_state()
            self._shards.close()
        size = (
            min(parse_size(_DEFAULT_SHARD_SIZE), max(self.max_bytes // 50, 1))
            if max_size is None
            else parse_size(max_size)
        )
        options = CacheWriterOptions(part, format, size, NO_LIMIT if max_count is None else max_count)
        return CacheWriter(self._space, options, partial(self._note, "wait"), self._counter)

    def refresh(self, max_bytes: int | str | None = None) -> CacheShards:
        """Return the paths of the finished shards that samplers wrote, oldest first.

        The shards are kept until the next `refresh`, or until the result is closed. Shards returned before may be
        evicted for waiting writers.

        Args:
            max_bytes: Keep only the newest shards up to this size, to leave space for writers. None: all.

        Raises:
            OutputFailed: The folder cannot be locked, or there are more shards than the process may open.
        """
        if self._pid != os.getpid():
            self._reset_process_state()
        self._shards.close()
        try:
            self._shards = lease_written_shards(self._space, None if max_bytes is None else parse_size(max_bytes))
        except OSError as error:
            remedy = "Write larger shards, or raise the limit (`ulimit -n`): each shard in use needs a file descriptor."
            raise OutputFailed(
                self.folder, _failure_reason(error), remedy=remedy if error.errno == EMFILE else ""
            ) from None
        return self._shards

    def paths(self) -> list[str]:
        """Return the paths of `refresh` as a list, for `tf.data.TFRecordDataset`."""
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
        is_prefetched = original.name in self._prefetched
        self._prefetched.discard(original.name)
        self._counter.add(**{"copies" if is_prefetched else "hits": 1})

    def _note_failure(self, error: OSError | OutputFailed) -> None:
        self._note("failure", f"{_failure_reason(error)}; uncached shards are read from their original location")

    def _note(self, kind: str, text: str) -> None:
        if kind in self._noted:
            return
        self._noted.add(kind)
        note = printable(f"cache {self.folder}: {text}")
        if self._observer is not None:
            self._observer.note(note)
        else:
            warnings.warn(note, stacklevel=2)


def _failure_reason(error: OSError | OutputFailed) -> str:
    return error.found if isinstance(error, OutputFailed) else f"cannot be used: {os_error_text(error)}"
