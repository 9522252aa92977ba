"""The cache as a program uses it."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from errno import EMFILE
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

from shardtool.dataset.find import StoredShard, sidecar_path
from shardtool.dataset.shard_file import SummedFile
from shardtool.dataset.shard_index import ShardFact, encode, read_bytes, read_facts
from shardtool.entries.sizes import SAMPLE_LIMIT, TRAILER_SIZE
from shardtool.errors import CorruptShard, InvalidRequest, OutputFailed, listing, printable, reason
from shardtool.pattern import sidecar_name
from shardtool.plan.order import NO_LIMIT
from shardtool.request.results import Result
from shardtool.request.settings import check_choice
from shardtool.storage.folders import Original, checked_copy
from shardtool.storage.places import plain_size
from shardtool.storage.shared import Lock, open_by, take_lock
from shardtool.storage.staging import Folder, local_folder, staged_path
from shardtool.values import parse_size, show_size
from shardtool.verbs.cache.folder import COPIED, WRITTEN, Counter, Pauses, Policy, Space, original_of, take_room
from shardtool.wording import option
from shardtool.writer.samples import OpenShard, Sample, SampleEncoder, SampleRefused, SampleWriter

if TYPE_CHECKING:
    from shardtool.request.settings import Observer
    from shardtool.verbs.cache.folder import CacheContents, Counts, Resident


Format = Literal["tar", "tfrecord"]
_AGAIN_S = 60.0  # until a cache that could not be written is tried again
_NEW_SHARD = "256MB"  # at most, where no size is given
_NOT_IN_STORES = "A cache rests on locks of this machine. Samplers write to a store by `ShardWriter`."


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
            raise InvalidRequest(option("folder"), f"{folder!r}", expected="the path of a folder")
        self.folder = os.path.abspath(local_folder(folder, _NOT_IN_STORES).path)
        self._space = Space(self.folder, parse_size(max_bytes), policy)
        self._observer, self._said = observer, set[str]()
        try:
            foreign = self._space.prepare()
        except (OSError, OutputFailed) as error:
            self._note_failure(error)
            foreign = []
        if foreign:
            self._note("foreign", f"{listing(foreign)}: no part of a cache, and left alone")
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
        self._originals: dict[str, Original] = {}
        self._damaged: set[str] = set()
        self._expected: set[str] = set()  # copied by `expect`, and not opened since
        self._counter = Counter(self.folder)

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
                return self._space.counts()[0]
        except OSError as error:
            raise OutputFailed(self.folder, _why(error)) from None

    def __reduce__(self) -> tuple[object, ...]:
        return Cache, (self.folder, self.max_bytes, self.policy)

    def __repr__(self) -> str:
        return f"Cache({self.folder!r}, max_bytes={self.max_bytes}, policy={self.policy!r})"

    def open(self, shard: StoredShard) -> CachedShard:
        """Return where to read a shard: its copy, which is made first where it is missing, or its own place.

        The copy is not evicted before the result is closed. Others that want the same shard wait for one copy.

        Raises:
            InvalidRequest: The shard is larger than the cache may be.
        """
        try:
            original = self._original(shard)
        except OSError:  # the reader of the shard will say it
            return CachedShard(shard.path)
        lock = None if original.name in self._damaged else self._leased(original)
        if lock is None:
            self._counter.add(passed=1)
            return CachedShard(shard.path)
        return CachedShard(lock.path, lock)

    def expect(self, shard: StoredShard) -> None:
        """Copy a shard that is read soon, if it has room without an eviction; what fails is left to `open`."""
        with suppress(NotCopiedError, CorruptShard, OutputFailed, OSError):
            original = self._original(shard)
            if (lock := leased_copy(self._space, original)) is not None:
                lock.close()
            elif original.size <= self.max_bytes and time.monotonic() >= self._retry_s:
                self._expected.add(original.name)
                evicted = None
                try:
                    lock, evicted = copied(self._space._replace(policy="keep"), original)
                    lock.close()
                finally:
                    if evicted is None:  # another has copied it, or it could not be copied
                        self._expected.discard(original.name)

    def _original(self, shard: StoredShard) -> Original:
        if self._pid != os.getpid():
            self._begin()
        return self._originals.get(shard.path) or self._originals.setdefault(shard.path, original_of(shard))

    def drop(self, shard: StoredShard) -> None:
        """Remove the copy of a shard, which was found damaged and is held no more: the next `open` makes another.

        While others hold it, this process reads the shard at its own place.
        """
        with suppress(OSError):
            original = original_of(shard)
            if lock := self._space.lock_alone(f"{COPIED}/{original.name}"):
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
            self._shards.close()
        size = min(parse_size(_NEW_SHARD), max(self.max_bytes // 50, 1)) if max_size is None else parse_size(max_size)
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
            self._shards = take_shards(self._space, None if max_bytes is None else parse_size(max_bytes))
        except OSError as error:
            many = "Make larger shards, or raise the limit (`ulimit -n`): each one that is held takes a descriptor."
            raise OutputFailed(self.folder, _why(error), remedy=many if error.errno == EMFILE else "") from None
        return self._shards

    def paths(self) -> list[str]:
        """Return what `refresh` does, as a list: for `tf.data.TFRecordDataset`."""
        return [*self.refresh()]

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
        except NotCopiedError as error:
            self._note(*error.args)
        except CorruptShard as error:
            self._note(original.name, f"not copied: {error}")
        except (OSError, OutputFailed) as error:
            self._retry_s = time.monotonic() + _AGAIN_S
            self._note_failure(error)
        else:
            if evicted is None:
                self._count_found(original)
            else:
                self._counter.add(copies=1, evicted=evicted)
            return lock
        return None

    def _count_found(self, original: Original) -> None:
        """Count a copy that is there: one that this process made ahead was no hit."""
        made = original.name in self._expected
        self._expected.discard(original.name)
        self._counter.add(**{"copies" if made else "hits": 1})

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


# A sampler's writer: its samples become shards of a cache, one after the other, each visible once it is whole.


_PART = re.compile(r"[A-Za-z0-9_]{1,20}")
_LOOK_S = 0.1  # between two looks for room
_LONG_S = 10.0  # until a writer says that it waits


class CacheWriterOptions(NamedTuple):
    """What a writer writes.

    Attributes:
        part: What distinguishes its shards' names, for people; no two writers clash.
        format: `tar` or `tfrecord`.
        max_size: Bytes of a shard at most.
        max_count: Samples in a shard at most.
    """

    part: int | str
    format: Format
    max_size: int
    max_count: int


class CacheWriter(SampleWriter):
    """Writes samples into a cache; made by `Cache.writer`, to be used in a `with` block, by one thread.

    A shard is visible, for `refresh`, once it is full or the block ends. Before each shard, its bytes are taken: where
    the policy can evict nothing, since all is held, the writer waits until a trainer lets shards go. A block that
    ends with an exception leaves no part of a shard, and neither does a kill. Keys are unique in a shard, so that a
    sampler may give a sample again.

    Args:
        space: The cache's space.
        grown: What to write.
        on_wait: Gets a note when the writer has waited for long.
        counter: Counts the shards that are evicted for new ones.

    Raises:
        InvalidRequest: The cache can never hold a shard.
        OutputFailed: The folder cannot be written to.
    """

    def __init__(
        self, space: Space, grown: CacheWriterOptions, on_wait: Callable[[str], None], counter: Counter
    ) -> None:
        if not _PART.fullmatch(str(grown.part)):
            expected = "a number, or 1 to 20 letters, digits and underscores"
            raise InvalidRequest(option("part"), f"{grown.part!r}", expected=expected)
        check_choice("format", grown.format, Format)
        if space.policy == "keep":
            raise InvalidRequest(option("policy", "keep"), "a cache that never makes room", expected="another policy")
        if grown.max_size > space.max_bytes:
            found = f"{show_size(grown.max_size)}, the cache {show_size(space.max_bytes)}"
            raise InvalidRequest(option("max_size"), found, expected="room for a shard at least")
        room = min(grown.max_size - TRAILER_SIZE[grown.format], SAMPLE_LIMIT[grown.format])
        super().__init__(grown.format, None, room, grown.max_count)
        self._space, self._grown, self._on_wait, self._counter = space, grown, on_wait, counter
        self._folder = Folder(os.path.join(space.folder, WRITTEN))
        self._name = f"grown-part_{grown.part}_{token_hex(4)}"
        self.shards = self.samples = 0
        try:
            taken = take_room(self._folder, self._name)
        except OSError as error:
            raise OutputFailed(self._folder.path, f"cannot write: {reason(error)}") from None
        if taken is None:
            raise OutputFailed(self._folder.path, "cannot be locked")
        self._taken = taken

    def publish(self) -> None:
        """Make the samples so far visible now, though their shard may have room for more.

        Raises:
            InvalidRequest: Their metadata cannot stand together.
            OutputFailed: The file system refuses.
        """
        if self._shard is not None:
            self._publish(self._shard)

    def _publish(self, shard: OpenShard) -> None:
        self._shard = None
        try:
            staged, index, _, _, plan = shard.finish(self._encoder, self._columns)
            data, _ = encode(index, ShardFact(shard.name, shard.file.size, shard.file.crc, plan))
            self._folder.publish(staged, self._folder.stage_whole(sidecar_name(shard.name), data))
        except BaseException:
            shard.abandon()
            raise
        self.shards += 1
        before, self._encoder = self._encoder, SampleEncoder(self._grown.format, None)  # a sampler's keys have no end
        self._encoder.restore(before.kinds, inline=before.inline)

    _finish = publish

    def _release(self) -> None:
        self._folder.discard(os.path.basename(self._taken.path))
        self._taken.close()

    def _takes(self, sample: Sample) -> bool:
        if sample.size > self._room:
            found = f"{printable(sample.key)} has {show_size(sample.size)}"
            error = InvalidRequest(option("max_size"), found, expected=f"{show_size(self._room)} at most")
            raise SampleRefused(error, "oversize")
        return True

    def _add(self, sample: Sample, row: Mapping[str, object]) -> None:
        try:
            super()._add(sample, row)
        except InvalidRequest as error:  # the shard before, whose metadata cannot stand together, is lost: go on
            raise SampleRefused(error, "bad-value") from None
        self.samples += 1

    def _next_shard(self, _: Sample) -> OpenShard:
        """Start a shard, once there is room for it."""
        start_s, said = time.monotonic(), False
        while True:
            with self._space.locked():
                evicted = self._space.give(self._taken, self._grown.max_size)
            if evicted is not None:
                self._counter.add(evicted=evicted)
                break
            if not said and time.monotonic() - start_s > _LONG_S:
                said = True
                self._on_wait(f"{self._name} waits for room: all shards are held")
            time.sleep(_LOOK_S)
        name = f"{self._name}-{self.shards:06d}.{self._grown.format}"
        return OpenShard(self._folder, name, self._grown.format)


# The shards that samplers wrote into a cache, as a trainer takes them for an epoch.


_DOOMED = 2  # no more than one half of what is there makes room for writers at once


class CacheShards(Sequence[str]):
    """The paths of the finished shards of a cache, held until `close`, or until nothing refers to this any more.

    Another process that gets it has the same paths, and holds those that are still there.

    Args:
        locks: The leases.
        paths: Of the shards, also of those that are gone.
    """

    def __init__(self, locks: list[Lock], paths: list[str]) -> None:
        self._locks, self._paths = locks, paths

    @overload
    def __getitem__(self, which: int) -> str: ...
    @overload
    def __getitem__(self, which: slice) -> list[str]: ...

    def __getitem__(self, which: int | slice) -> str | list[str]:
        return self._paths[which]

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"CacheShards({self._paths!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _leased_again, (self._paths,)

    def open(self, shard: StoredShard) -> CachedShard:
        """Return one of the shards, which is held already."""
        return CachedShard(shard.path)

    def close(self) -> None:
        """Let the shards go: from now on they may be evicted."""
        for lock in self._locks:
            lock.close()


def _leased(paths: list[str]) -> list[Lock]:
    locks = []
    for path in paths:
        with suppress(FileNotFoundError):
            if lock := take_lock(path, shared=True):
                locks.append(lock)
    return locks


def _leased_again(paths: list[str]) -> CacheShards:
    """Return the shards that another process took: of one that is gone since, who reads it is told."""
    return CacheShards(_leased(paths), paths)


def take_shards(space: Space, max_bytes: int | None) -> CacheShards:
    """Return leases on the finished shards that samplers wrote, the oldest first.

    Before that, the shards that the policy evicts first make room for writers that wait; those that a process holds
    are not leased again, so that they can go when they are let go.

    Args:
        space: The cache's space.
        max_bytes: Of how many bytes at most, the newest ones; None: all.

    Raises:
        OSError: The folder's lock cannot be had.
    """
    with space.locked():
        found = space.look()
        doomed = _doomed(space, found)
        if space.policy != "keep":
            for one in doomed:
                space.evict([one], one.size)
        written = [one for one in found.residents if one.folder == WRITTEN and one not in doomed]
        written.sort(key=lambda one: (one.came_ns, one.name))
        locks = _leased([os.path.join(space.folder, one.path) for one in written])
        for lock in locks:  # also of those that are let go, so that each may be evicted from now on
            lock.used(time.time_ns())
        size = sum(lock.fact.st_size for lock in locks)
        while max_bytes is not None and size > max_bytes:
            with locks.pop(0) as lock:
                size -= lock.fact.st_size
        return CacheShards(locks, [lock.path for lock in locks])


def _doomed(space: Space, found: CacheContents) -> set[Resident]:
    """Return the shards that go first, as many as writers that wait need, and no more than half of what is there."""
    over = min(space.over(found, found.wanted), found.size // _DOOMED)
    doomed = set()
    for one in space.in_order(found.residents):
        if over <= 0 or not found.wanted:
            break
        if not one.unread:
            doomed.add(one)
            over -= one.size
    return doomed


# A shard is copied into a cache: once, whole and checked, while who wants it, too, waits.


# Leases on shards of a cache: for as long as one is held, no process evicts the shard.


_MOMENT_S = 1.0  # for a look at a shard's lock, or an eviction: system calls


@dataclass(slots=True)
class CachedShard(AbstractContextManager["CachedShard"]):
    """A shard to read: the copy in a cache, held until `close`, or the shard itself where there is no copy.

    Attributes:
        path: Where to read it.
        lock: The lease on that; None: it is the shard itself.
    """

    path: str
    lock: Lock | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the shard go: from now on it may be evicted. Closing twice is no error."""
        if self.lock is not None:
            self.lock.close()


class NotCopiedError(Exception):
    """A shard has no copy, and gets none now: the kind of note that says it to the user, and its text."""


def _stuck(original: Original) -> NotCopiedError:
    found = f"the process that copies {original.path} goes on no more"
    return NotCopiedError("stuck", f"{found}; it is read at its own place")


def leased_copy(space: Space, original: Original) -> Lock | None:
    """Return a lease on the copy of a shard, and note that it is used.

    Returns:
        The lease; None: there is no copy, or one of another size, which the next replaces.

    Raises:
        OSError: It cannot be read.
    """
    pauses, path = Pauses(_MOMENT_S), os.path.join(space.folder, COPIED, original.name)
    while True:
        try:
            lock = take_lock(path, shared=True)
        except FileNotFoundError:
            return None
        if lock is not None:
            lock.used(time.time_ns())
            if lock.fact.st_size == original.size:
                return lock
            lock.close()
            return None
        if not pauses.wait():  # a process holds it alone and does nothing
            return None


def copied(space: Space, original: Original) -> tuple[Lock, int | None]:
    """Return a lease on the copy of a shard, once a process has made it, and what had to be evicted for it.

    Returns:
        The lease, and how many shards were evicted; None: another process has made the copy.

    Raises:
        NotCopiedError: It does not fit, for what is there is read or kept; or another process began to copy it, and
            goes on no more.
        CorruptShard: The shard is not what its sidecar says.
        OutputFailed: It cannot be written.
        OSError: It cannot be read, or the cache's files cannot be opened.
    """
    folder = Folder(os.path.join(space.folder, COPIED))
    part = staged_path(folder, original.name)
    pauses, seen = Pauses(), plain_size(part)
    while True:
        room = take_room(folder, original.name)
        if room is None:
            if (lock := leased_copy(space, original)) is not None:
                return lock, None
            if (size := plain_size(part)) != seen:
                seen = size
                pauses.restart()
            if not pauses.wait():
                raise _stuck(original)
            continue
        with room:
            try:
                if (lock := leased_copy(space, original)) is not None:
                    return lock, None
                return _copy(space, folder, original, room)
            finally:
                folder.discard(os.path.basename(room.path))


def _copy(space: Space, folder: Folder, original: Original, room: Lock) -> tuple[Lock, int]:
    """Copy a shard, whose room is held."""
    with space.locked():
        evicted = space.give(room, original.size)
    if evicted is None:
        raise NotCopiedError("room", "full of shards that are read or kept; others are read at their own place")
    staged = checked_copy(folder, original)
    try:
        lock = take_lock(staged.token, shared=True)
        with space.locked():  # a look at the folder sees the one name or the other
            folder.publish(staged)
    except BaseException:
        folder.discard_staged([original.name])
        raise
    if lock is None:
        raise _stuck(original)
    lock.used(time.time_ns())
    lock.path = folder.full_path(original.name)
    return lock, evicted


# `cache`: what is in a cache, who holds what, what is damaged. The library twin of `shardtool cache`.


_UNBOUNDED = 10**18


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """A shard in a cache.

    Attributes:
        path: From the cache's folder on.
        size: Bytes, with its sidecar's.
        came_ns: When it came, nanoseconds since 1970.
        used_ns: When it was leased last.
        held: Whether a process holds it.
        pids: The processes that have it open, as far as the system shows.
    """

    path: str
    size: int
    came_ns: int
    used_ns: int
    held: bool
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """What is in a cache.

    Attributes:
        folder: Its folder.
        shards: The finished shards, the least recently used one first.
        taken: Bytes that are given to copies and writers at work.
        readers: The processes that use it.
        writers: Those that copy, write, or wait for room.
        counts: How often shards were there, in all processes so far.
        foreign: Paths of what is no file of a cache.
    """

    folder: str
    shards: tuple[ShardStatus, ...]
    taken: int
    readers: tuple[int, ...]
    writers: tuple[int, ...]
    counts: Counts
    foreign: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of the finished shards."""
        return sum(one.size for one in self.shards)

    def to_json(self) -> dict[str, object]:
        """Return it as data, the way `--json` prints it."""
        return {**asdict(self), "size": self.size, "hit_rate": self.counts.hit_rate}


@dataclass(frozen=True, slots=True)
class CacheChange(Result):
    """What was removed from a cache, and what stays since a process holds it.

    Attributes:
        folder: Its folder.
        looked_at: How many shards were there.
        removed: Path to why: damage, or empty.
        held: The same of those that are held.
        size: Bytes that were removed.
        foreign: Paths of what is no file of a cache, and stays.
    """

    folder: str
    looked_at: int
    removed: dict[str, str]
    held: dict[str, str]
    size: int
    foreign: tuple[str, ...]


def cache_status(folder: str | os.PathLike[str]) -> CacheStatus:
    """Return what is in a cache.

    Raises:
        InvalidRequest: It is none, or of another version.
    """
    space = _space(folder)
    with _looked(space) as found:
        counts, readers = space.counts()
    opened = open_by(space.folder)
    shards = []
    for one in space.in_order(found.residents):
        path = os.path.join(space.folder, one.path)
        pids = tuple(opened.get(os.path.realpath(path), ()))
        shards.append(ShardStatus(one.path, one.size, one.came_ns, one.used_ns, space.is_held(one.path), pids))
    writers = tuple(sorted({*found.pids}))
    return CacheStatus(
        space.folder, tuple(shards), found.taken, tuple(readers), writers, counts, tuple(sorted(found.foreign))
    )


def cache_clear(folder: str | os.PathLike[str]) -> CacheChange:
    """Remove all shards of a cache that no process holds.

    Raises:
        InvalidRequest: It is none, or of another version.
    """
    space = _space(folder)
    with _looked(space) as found:
        return _removed(space, found, dict.fromkeys(found.residents, ("", None)))


def cache_verify(folder: str | os.PathLike[str]) -> CacheChange:
    """Read all shards of a cache, and remove those that are not what their sidecars say; foreign files stay.

    Raises:
        InvalidRequest: It is none, or of another version.
    """
    space = _space(folder)
    with _looked(space) as found:
        pass
    wrong = {}
    for one in found.residents:
        path = os.path.join(space.folder, one.path)
        with suppress(FileNotFoundError):  # evicted meanwhile
            if lock := take_lock(path, shared=True):
                with lock:
                    if damage := _damage(path, one):
                        wrong[one] = damage, lock.fact.st_ino
    with _looked(space):
        return _removed(space, found, wrong)


def _removed(space: Space, found: CacheContents, wrong: Mapping[Resident, tuple[str, int | None]]) -> CacheChange:
    """Remove shards that no process holds, each for why and of that inode (None: any); the lock is held."""
    removed, kept, size = {}, {}, 0
    for one, (why, inode) in wrong.items():
        lock = space.lock_alone(one.path)
        if lock is None:
            kept[one.path] = why
            continue
        with lock:
            if inode in (None, lock.fact.st_ino):
                space.remove(one)
                removed[one.path] = why
                size += one.size
    return CacheChange(space.folder, len(found.residents), removed, kept, size, tuple(sorted(found.foreign)))


def _damage(path: str, one: Resident) -> str:
    """Return what is wrong with a shard, which a lease holds; empty: nothing that can be known."""
    try:
        if (facts := one.facts) is None:
            fact = read_facts(read_bytes(sidecar_path(path, None)), one.sidecar)
            facts = fact.size, fact.crc
        size, crc = facts
        with SummedFile(path) as shard:
            if shard.size != size:
                return f"{shard.size:,} bytes instead of {size:,}"
            found = shard.crc()
    except CorruptShard as error:
        return error.found
    except OSError as error:
        return reason(error)
    return "" if crc in (None, found) else f"the checksum {found:08x} instead of {crc:08x}"


def _space(folder: str | os.PathLike[str]) -> Space:
    space = Space(os.path.abspath(local_folder(folder, _NOT_IN_STORES).path), _UNBOUNDED, "least-used")
    if not space.is_cache():
        remedy = "A `Cache` makes one."
        raise InvalidRequest(os.fspath(folder), "no cache", expected="a folder that a cache has made", remedy=remedy)
    return space


@contextmanager
def _looked(space: Space) -> Iterator[CacheContents]:
    """Look at a cache, and hold its lock where that is possible: on a read-only disk it is not, nor is it needed."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(space.locked())
        try:
            found = space.look()
        except OSError as error:
            raise InvalidRequest(space.folder, f"cannot be listed: {reason(error)}") from None
        yield found
