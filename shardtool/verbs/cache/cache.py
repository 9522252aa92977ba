"""The cache as a program uses it."""

from __future__ import annotations

import os
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from errno import EMFILE
from functools import partial
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard, InvalidRequest, OutputFailed, listing, printable, reason
from shardtool.plan.cuts import NO_LIMIT
from shardtool.request.choices import check_choice
from shardtool.storage.staging import Folder, local_folder
from shardtool.values import parse_size
from shardtool.verbs.cache.copying import CachedShard, NoRoomError, StuckError, copied, leased_copy
from shardtool.verbs.cache.folder import prepare
from shardtool.verbs.cache.names import COPIED, Counter, Counts, all_counts, original_of
from shardtool.verbs.cache.residents import Policy, Space, lock_alone
from shardtool.verbs.cache.writer import CacheShards, CacheWriter, CacheWriterOptions, Format, default_size, take_shards
from shardtool.wording import option

if TYPE_CHECKING:
    from shardtool.dataset.opened import OpenedShard
    from shardtool.request.results import Observer
    from shardtool.storage.folders import Original
    from shardtool.storage.shared import Lock

_AGAIN_S = 60.0  # until a cache that could not be written is tried again


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

    Raises:
        InvalidRequest: The folder is one of another version, holds something else, or locks do not work there.
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
            raise InvalidRequest(option("folder"), f"{folder!r}", expected="the path of a folder")
        self.folder = os.path.abspath(local_folder(os.fspath(folder)).path)
        self._space = Space(self.folder, parse_size(max_bytes), policy)
        self._observer, self._said = observer, set[str]()
        try:
            foreign = prepare(self._space)
        except (OSError, OutputFailed) as error:
            self._note_failure(error)
            foreign = []
        if foreign:
            self._note("foreign", f"{listing(foreign)}: no part of a cache, and left alone")
        self._shards: CacheShards | None = None
        self._begin()

    def _begin(self) -> None:
        """Begin as a process of its own: the first one, or a forked child."""
        self._pid, self._retry_s = os.getpid(), 0.0
        self._originals: dict[str, Original] = {}
        self._damaged: set[str] = set()
        self._expected: set[str] = set()  # copied by `expect`, and not opened since
        self._counting = threading.Lock()
        self._counter = Counter(self.folder)

    @property
    def max_bytes(self) -> int:
        """What may lie in the folder."""
        return self._space.max_bytes

    @property
    def policy(self) -> Policy:
        """Which shards are evicted first."""
        return self._space.policy

    @property
    def counts(self) -> Counts:
        """What this process has found so far."""
        return self._counter.counts

    def total(self) -> Counts:
        """Return what all processes have found so far, those that ended, too.

        Raises:
            OutputFailed: The folder cannot be locked.
        """
        try:
            with self._space.locked():
                return all_counts(self.folder)[0]
        except OSError as error:
            raise OutputFailed(self.folder, _why(error)) from None

    def __reduce__(self) -> tuple[object, ...]:
        return Cache, (self.folder, self.max_bytes, self.policy)

    def __repr__(self) -> str:
        return f"Cache({self.folder!r}, max_bytes={self.max_bytes}, policy={self.policy!r})"

    def open(self, shard: OpenedShard) -> CachedShard:
        """Return where to read a shard: its copy, which is made first where it is missing, or its own place.

        The copy is not evicted before the result is closed. Others that want the same shard wait for one copy.

        Raises:
            InvalidRequest: The shard is larger than the cache may be.
        """
        if self._pid != os.getpid():
            self._begin()
        try:
            original = self._originals.get(shard.path) or self._originals.setdefault(shard.path, original_of(shard))
        except OSError:  # the reader of the shard will say it
            return CachedShard(shard.path)
        lock = None if original.name in self._damaged else self._leased(original)
        if lock is None:
            self._count(passed=1)
            return CachedShard(shard.path)
        return CachedShard(lock.path, lock)

    def expect(self, shard: OpenedShard) -> None:
        """Copy a shard that is read soon, if it has room without an eviction; what fails is left to `open`."""
        if self._pid != os.getpid():
            self._begin()
        with suppress(NoRoomError, StuckError, CorruptShard, OutputFailed, OSError):
            original = self._originals.get(shard.path) or self._originals.setdefault(shard.path, original_of(shard))
            if (lock := leased_copy(self._space, original)) is not None:
                lock.close()
            elif original.size <= self.max_bytes and time.monotonic() >= self._retry_s:
                self._copy_expected(original)

    def _copy_expected(self, original: Original) -> None:
        self._expected.add(original.name)
        evicted = None
        try:
            lock, evicted = copied(replace(self._space, policy="keep"), original)
            lock.close()
        finally:
            if evicted is None:  # another has copied it, or it could not be copied
                self._expected.discard(original.name)

    def drop(self, shard: OpenedShard) -> None:
        """Remove the copy of a shard, which was found damaged and is held no more: the next `open` makes another.

        While others hold it, this process reads the shard at its own place.
        """
        with suppress(OSError):
            original = original_of(shard)
            if lock := lock_alone(os.path.join(self.folder, COPIED, original.name)):
                with lock:
                    Folder(self.folder).discard(f"{COPIED}/{original.name}")
            else:
                self._damaged.add(original.name)
            self._note(original.name, f"{printable(shard.path)}: its copy is damaged, and is dropped")

    def writer(
        self, part: int | str = 0, *, format: Format = "tar", max_size: int | str | None = None,  # noqa: A002
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
            self._release()
        size = default_size(self.max_bytes) if max_size is None else parse_size(max_size)
        grown = CacheWriterOptions(part, format, size, NO_LIMIT if max_count is None else max_count)
        return CacheWriter(self._space, grown, partial(self._note, "wait"), self._count_evicted)

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
        self._release()
        try:
            self._shards = take_shards(self._space, None if max_bytes is None else parse_size(max_bytes))
        except OSError as error:
            many = "Make larger shards, or raise the limit (`ulimit -n`): each one that is held takes a descriptor."
            raise OutputFailed(self.folder, _why(error), remedy=many if error.errno == EMFILE else "") from None
        return self._shards

    def paths(self) -> list[str]:
        """Return what `refresh` does, as a list: for `tf.data.TFRecordDataset`."""
        return [*self.refresh()]

    def _count_evicted(self, evicted: int) -> None:
        if evicted:
            self._count(evicted=evicted)

    def _release(self) -> None:
        if self._shards is not None:
            self._shards.close()
            self._shards = None

    def _leased(self, original: Original) -> Lock | None:
        """Return a lease on a shard's copy; None: there is none, and none can be made now."""
        try:
            if (lock := leased_copy(self._space, original)) is not None:
                self._count_found(original)
                return lock
            if original.size > self.max_bytes:
                found = f"{original.path} has {original.size:,} bytes, the cache {self.max_bytes:,}"
                raise InvalidRequest(option("max_bytes"), found, expected="room for a shard at least")
            if time.monotonic() < self._retry_s:
                return None
            lock, evicted = copied(self._space, original)
        except NoRoomError:
            self._note("room", "full of shards that are read or kept; others are read at their own place")
        except StuckError:
            self._note("stuck", f"the process that copies {original.path} goes on no more; it is read at its own place")
        except CorruptShard as error:
            self._note(original.name, f"not copied: {error}")
        except (OSError, OutputFailed) as error:
            self._retry_s = time.monotonic() + _AGAIN_S
            self._note_failure(error)
        else:
            if evicted is None:
                self._count_found(original)
            else:
                self._count(copies=1, evicted=evicted)
            return lock
        return None

    def _count_found(self, original: Original) -> None:
        """Count a copy that is there: one that this process made ahead was no hit."""
        made = original.name in self._expected
        self._expected.discard(original.name)
        self._count(**{"copies" if made else "hits": 1})

    def _count(self, **more: int) -> None:
        with self._counting:
            self._counter.add(**more)

    def _note_failure(self, error: OSError | OutputFailed) -> None:
        self._note("failure", f"{_why(error)}; shards that are not there are read at their own place")

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


def _why(error: OSError | OutputFailed) -> str:
    return error.found if isinstance(error, OutputFailed) else f"cannot be used: {reason(error)}"
