"""`Cache`: whole shards on a fast disk, as a program uses them."""

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
from shardtool.verbs.cache.folder import COPIED, copy_original
from shardtool.verbs.cache.leases import LOCAL_LOCKS_FIX, LeasedShard, NotCopiedWarning, copy_and_lease, lease_copy
from shardtool.verbs.cache.written_shards import CacheShards, lease_written_shards

if TYPE_CHECKING:
    from shardtool.dataset.stored import StoredShard
    from shardtool.request.observer import Observer
    from shardtool.storage.copying import OriginalFile
    from shardtool.storage.locks import FileLock
    from shardtool.verbs.cache.counts import CacheCounts


_RETRY_WRITE_S = 60.0  # until a cache that could not be written is tried again


_DEFAULT_SHARD_SIZE = "256MB"  # at most, where no size is given


class Cache:
    """A folder of whole shards on a fast disk, shared by any number of processes.

    Threads may share it, a forked child may use its parent's, and it can be pickled.

    Args:
        folder: Where it is; made where it is missing.
        max_bytes: What may lie there at any time, as bytes or a size such as `50GB`. Each process keeps to its own
            bound when it adds a shard.
        policy: Which shards are evicted first: `least-used`, those whose last use lies furthest back; `oldest`, those
            that came first; `keep`: none is, and what does not fit is read at its own place. That is best for a dataset
            that is larger than the cache and read in whole epochs.
        observer: Gets notes; without one they are warnings.

    Attributes:
        max_bytes: What may lie in the folder, in bytes.
        policy: Which shards are evicted first.

    Raises:
        InvalidRequest: The folder is one of another version, holds something else, or locks do not work there; or it is
            an address.
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
        self._observer, self._said = observer, set[str]()
        try:
            foreign = self._space.prepare()
        except (OSError, OutputFailed) as error:
            self._note_failure(error)
            foreign = []
        if foreign:
            self._note("foreign", f"{format_list(foreign)}: no part of a cache, and left alone")
        self._shards = CacheShards([], [])  # the last that `refresh` returned
        self._begin()

    @property
    def max_bytes(self) -> int:
        """What may lie in the folder, in bytes."""
        return self._space.max_bytes

    @property
    def policy(self) -> Policy:
        """Which shards are evicted first."""
        return self._space.policy

    def _begin(self) -> None:
        """Begin as a process of its own: the first one, or a forked child."""
        self._pid, self._retry_s = os.getpid(), 0.0
        self._originals: dict[str, OriginalFile] = {}
        self._damaged: set[str] = set()
        self._expected: set[str] = set()  # copied by `expect`, and not opened since
        self._counter = CountsFile(self.folder)

    @property
    def counts(self) -> CacheCounts:
        """What this process has found so far."""
        return self._counter.counts

    def total(self) -> CacheCounts:
        """Return what all processes have found so far, those that ended, too.

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
        """Return where to read a shard: its copy, which is made first where it is missing, or its own place.

        The copy is not evicted before the result is closed. Others that want the same shard wait for one copy.

        Raises:
            InvalidRequest: The shard is larger than the cache may be.
        """
        try:
            original = self._original(shard)
        except OSError:  # the reader of the shard will say it
            return LeasedShard(shard.path)
        lock = None if original.name in self._damaged else self._leased(original)
        if lock is None:
            self._counter.add(passed=1)
            return LeasedShard(shard.path)
        return LeasedShard(lock.path, lock)

    def expect(self, shard: StoredShard) -> None:
        """Copy a shard that is read soon, if it has room without an eviction; what fails is left to `open`."""
        with suppress(NotCopiedWarning, CorruptShard, OutputFailed, OSError):
            original = self._original(shard)
            if (lock := lease_copy(self._space, original)) is not None:
                lock.close()
            elif original.size <= self.max_bytes and time.monotonic() >= self._retry_s:
                self._expected.add(original.name)
                evicted = None
                try:
                    lock, evicted = copy_and_lease(self._space._replace(policy="keep"), original)
                    lock.close()
                finally:
                    if evicted is None:  # another has copied it, or it could not be copied
                        self._expected.discard(original.name)

    def _original(self, shard: StoredShard) -> OriginalFile:
        if self._pid != os.getpid():
            self._begin()
        return self._originals.get(shard.path) or self._originals.setdefault(shard.path, copy_original(shard))

    def drop(self, shard: StoredShard) -> None:
        """Remove the copy of a shard, which was found damaged and is held no more: the next `open` makes another.

        While others hold it, this process reads the shard at its own place.
        """
        with suppress(OSError):
            original = copy_original(shard)
            if lock := self._space.lock_alone(f"{COPIED}/{original.name}"):
                with lock:
                    Folder(self.folder).discard(f"{COPIED}/{original.name}")
            else:
                self._damaged.add(original.name)
            self._note(original.name, f"{printable(shard.path)}: its copy is damaged, and is dropped")

    def writer(
        self, part: int | str = 0, *, format: ShardFormat = "tar", max_size: int | str | None = None,  # noqa: A002
        max_count: int | None = None,
    ) -> CacheWriter:  # fmt: skip
        """Return a writer of new shards into this cache, for a sampler.

        A process that was forked lets go what its parent has taken by `refresh`: otherwise it might wait for itself.

        Args:
            part: What distinguishes the names of its shards, for people; writers never clash.
            format: `tar` or `tfrecord`.
            max_size: Bytes of a shard at most; None: a fiftieth of the cache's bound, and no more than 256 MB.
            max_count: Samples in a shard at most.

        Raises:
            InvalidRequest: The cache can never hold such a shard.
            OutputFailed: The folder cannot be written to.
        """
        if self._pid != os.getpid():
            self._begin()
            self._shards.close()
        size = (
            min(parse_size(_DEFAULT_SHARD_SIZE), max(self.max_bytes // 50, 1))
            if max_size is None
            else parse_size(max_size)
        )
        grown = CacheWriterOptions(part, format, size, NO_LIMIT if max_count is None else max_count)
        return CacheWriter(self._space, grown, partial(self._note, "wait"), self._counter)

    def refresh(self, max_bytes: int | str | None = None) -> CacheShards:
        """Return the paths of the shards that samplers have finished by now, the oldest first.

        They are held, so that none is evicted, until the next `refresh` of this cache, or until `close` of the result.
        Those that it returned before are let go first, and writers that wait get the room of those that are evicted
        first.

        Args:
            max_bytes: Hold no more than so many bytes, the newest ones, so that writers have room during an epoch.
                None: all.

        Raises:
            OutputFailed: The folder cannot be locked, or there are more shards than the process may open.
        """
        if self._pid != os.getpid():
            self._begin()
        self._shards.close()
        try:
            self._shards = lease_written_shards(self._space, None if max_bytes is None else parse_size(max_bytes))
        except OSError as error:
            many = "Make larger shards, or raise the limit (`ulimit -n`): each one that is held takes a descriptor."
            raise OutputFailed(
                self.folder, _failure_reason(error), remedy=many if error.errno == EMFILE else ""
            ) from None
        return self._shards

    def paths(self) -> list[str]:
        """Return what `refresh` does, as a list: for `tf.data.TFRecordDataset`."""
        return [*self.refresh()]

    def _leased(self, original: OriginalFile) -> FileLock | None:
        """Return a lease on a shard's copy; None: there is none, and none can be made now."""
        try:
            if (lock := lease_copy(self._space, original)) is not None:
                self._count_found(original)
                return lock
            if original.size > self.max_bytes:
                found = f"{original.path} has {original.size:,} bytes, the cache {self.max_bytes:,}"
                raise InvalidRequest(option_text("max_bytes"), found, expected="room for a shard at least")
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
                self._count_found(original)
            else:
                self._counter.add(copies=1, evicted=evicted)
            return lock
        return None

    def _count_found(self, original: OriginalFile) -> None:
        """Count a copy that is there: one that this process made ahead was no hit."""
        made = original.name in self._expected
        self._expected.discard(original.name)
        self._counter.add(**{"copies" if made else "hits": 1})

    def _note_failure(self, error: OSError | OutputFailed) -> None:
        self._note("failure", f"{_failure_reason(error)}; shards that are not there are read at their own place")

    def _note(self, kind: str, text: str) -> None:
        """Note something of a kind for the user, once."""
        if kind in self._said:
            return
        self._said.add(kind)
        note = printable(f"cache {self.folder}: {text}")
        if self._observer is not None:
            self._observer.note(note)
        else:
            warnings.warn(note, stacklevel=2)


def _failure_reason(error: OSError | OutputFailed) -> str:
    return error.found if isinstance(error, OutputFailed) else f"cannot be used: {os_error_text(error)}"
