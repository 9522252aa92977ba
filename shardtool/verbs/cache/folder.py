"""The folder of a cache: the names of its files, what a look finds, and the space that is given to them.

Every other name is foreign: it is never opened, and never removed.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from errno import EBUSY
from hashlib import blake2b
from secrets import token_hex
from typing import TYPE_CHECKING, Literal, NamedTuple

from shardtool.dataset.shard_index import read_bytes, read_facts
from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, OutputFailed, reason
from shardtool.pattern import sidecar_name
from shardtool.storage.folders import Original
from shardtool.storage.places import READ_PLAIN, entries_in, file_fact, is_url, names_in, read_small
from shardtool.storage.shared import NO_LOCKS, Lock, take_lock
from shardtool.storage.staging import Folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.dataset.find import StoredShard


VERSION = 1
MARK, LOCK, COPIED, WRITTEN, COUNTS = "shardtool-cache.json", "lock", "copied", "written", "counts"
TOTAL = "total"  # of the processes that ended
FOLDERS = (COPIED, WRITTEN, COUNTS)
ROOM, PART = ".room-", ".part"
_KEPT = 80  # characters of a shard's own name: for people, and for the ending, which says its format
_ODD = re.compile(r"[^A-Za-z0-9._-]")
_COPY = re.compile(r"[0-9a-f]{24}-(\d{1,18})-([0-9a-f]{8}|unknown)-[A-Za-z0-9._-]{1,80}")
_WRITER = re.compile(r"(grown-part_[A-Za-z0-9_]{1,40})(?:[-.].{1,40})?")
_SHARD = re.compile(r"(grown-part_[A-Za-z0-9_]{1,40})-\d{6,18}\.(?:tar|tfrecord)")
_COUNTS = re.compile(r"\d{1,10}-[0-9a-f]{8}")


def original_of(shard: StoredShard) -> Original:
    """Return what a copy of a shard must be.

    The name of a copy holds a hash of what the sidecar says of the shard: its name, size and checksum, so that neither
    an equal name in another dataset nor a later version of the same shard is taken for it. Without a sidecar, the hash
    is of the shard's place, size and modification time, or of an object's version.

    Raises:
        OSError: There is no such shard.
    """
    try:
        fact = read_facts(read_bytes(shard.sidecar), shard.sidecar)
    except (OSError, CorruptShard, AccessRefused):  # the last is said of what is not there, too, where we may not list
        fact = None
    if fact is not None and fact.crc is not None:
        size, crc, known = fact.size, fact.crc, f"{shard.file_name}\0{fact.size}\0{fact.crc}"
    else:
        found, place = file_fact(shard.path), shard.path if is_url(shard.path) else os.path.realpath(shard.path)
        size, crc, known = found.st_size, None, f"{place}\0{found.st_size}\0{found.st_mtime_ns}"
    digest = blake2b(os.fsencode(known), digest_size=12).hexdigest()
    shown = _ODD.sub("_", shard.file_name)[-_KEPT:]
    return Original(shard.path, size, crc, f"{digest}-{size}-{'unknown' if crc is None else f'{crc:08x}'}-{shown}")


def writer_of(name: str) -> str | None:
    """Return which writer's a file in the folder of written shards is; None: it is foreign."""
    found = _WRITER.fullmatch(name.removeprefix(ROOM) if name.startswith(ROOM) else name.removeprefix("."))
    return found[1] if found else None


def copy_of(name: str) -> str | None:
    """Return which copy's a file in the folder of copies is: a shard, a room or a part; None: it is foreign."""
    bare = name.removeprefix(ROOM)
    if bare.startswith(".") and bare.endswith(PART):
        bare = bare[1 : -len(PART)]
    return bare if _COPY.fullmatch(bare) else None


# What each process that uses a cache has found there: a small file for each, which only it writes.
#
# Those of processes that ended are added up in `total`, by the next process that looks, under the folder's lock.


_MOST = 4096  # bytes of a file
_WIDTH = 200


@dataclass(slots=True)
class Counts:
    """How often shards were there.

    Attributes:
        hits: A shard was there.
        copies: A shard was copied.
        passed: A shard was read at its own place: it did not fit, or the cache could not be used.
        evicted: A shard was evicted for another.
    """

    hits: int = 0
    copies: int = 0
    passed: int = 0
    evicted: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Which share of the openings found a copy; None: there were none."""
        total = self.hits + self.copies + self.passed
        return self.hits / total if total else None

    def add(self, other: Counts) -> None:
        """Add other counts."""
        for one in fields(Counts):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


class Counter:
    """The counts of this process, kept on disk where that is possible.

    Args:
        folder: The cache's folder.
    """

    def __init__(self, folder: str) -> None:
        self.counts, self._counting = Counts(), threading.Lock()
        self._lock: Lock | None = None
        with suppress(OSError):
            self._lock = take_lock(os.path.join(folder, COUNTS, f"{os.getpid()}-{token_hex(4)}"), create=True)

    def __del__(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def add(self, **more: int) -> None:
        """Count, in any thread."""
        with self._counting, suppress(OSError):
            self.counts.add(Counts(**more))
            if self._lock is not None:
                self._lock.put(json.dumps(asdict(self.counts)).ljust(_WIDTH).encode())


def _read(folder: Folder, name: str) -> Counts:
    """Return the counts in a file; none where it holds no such."""
    try:
        found = json.loads(read_small(folder.full_path(name), _MOST, flags=READ_PLAIN))
        known = {one.name: found[one.name] for one in fields(Counts)}
        return Counts(**known) if all(type(one) is int and 0 <= one < 2**63 for one in known.values()) else Counts()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return Counts()


_ROOM_SIZE = 200  # bytes: numbers of a room


class Resident(NamedTuple):
    """A finished shard in the folder.

    Attributes:
        folder: `copied` or `written`.
        name: Its file name.
        size: Its bytes, with its sidecar's.
        came_ns: When it came.
        used_ns: When it was leased last.
        sidecar: The name of its sidecar; empty: a copy, which has none.
    """

    folder: str
    name: str
    size: int
    came_ns: int
    used_ns: int
    sidecar: str = ""

    @property
    def path(self) -> str:
        """Where it lies, from the cache's folder on."""
        return f"{self.folder}/{self.name}"

    @property
    def facts(self) -> tuple[int, int | None] | None:
        """The size and the CRC-32C in the name of a copy; None: it is not the name of one."""
        found = _COPY.fullmatch(self.name)
        return (int(found[1]), None if found[2] == "unknown" else int(found[2], 16)) if found else None

    @property
    def unread(self) -> bool:
        """Whether no process has taken it yet."""
        return self.used_ns <= self.came_ns


@dataclass(slots=True)
class CacheContents:
    """What a look has found.

    Attributes:
        residents: The finished shards.
        taken: Bytes that live rooms have been given.
        wanted: Bytes that live rooms wait for.
        pids: The processes that write or wait for a room.
        foreign: Paths, from the folder on, of what is no file of a cache.
    """

    residents: list[Resident] = field(default_factory=list)
    taken: int = 0
    wanted: int = 0
    pids: list[int] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The bytes of the finished shards."""
        return sum(one.size for one in self.residents)


def room_text(taken: int, wanted: int) -> bytes:
    """Return what a room says: bytes it has been given, bytes it waits for, and its process."""
    return b"%020d %020d %010d\n" % (taken, wanted, os.getpid())


def _names(folder: str) -> list[str]:
    return [entry.name for entry in _entries(folder)]


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    with suppress(FileNotFoundError):  # any other failure must not look like an empty folder
        yield from entries_in(folder)


def _fact(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return what is known of a plain file; None: it is none, or gone."""
    with suppress(OSError):
        if entry.is_file(follow_symlinks=False):
            return entry.stat(follow_symlinks=False)
    return None


def _count_room(folder: str, owner: str, found: CacheContents, but: str, unfinished: Iterable[str]) -> None:
    """Add what a room has taken; where its holder is dead, remove the room, and first what is unfinished."""
    path = os.path.join(folder, f"{ROOM}{owner}")
    if path == but:
        return
    try:
        room = take_lock(path)
    except OSError:
        _remove(folder, unfinished)
        return
    if room is not None:
        with room:
            _remove(folder, unfinished)
        return
    with suppress(OSError, ValueError):
        taken, wanted, pid = map(int, read_small(path, _ROOM_SIZE, flags=READ_PLAIN).split())
        found.taken += taken
        found.wanted += wanted
        found.pids.append(pid)


def _remove(folder: str, names: Iterable[str]) -> None:
    """Remove what a dead process has left, its room last: as long as that is there, the rest is found again."""
    Folder(folder).discard(*sorted(names, key=lambda one: one.startswith(ROOM)))


# The bytes of a cache: given out before they are written, and got back by evicting whole shards that are not read.


Policy = Literal["least-used", "oldest", "keep"]
_MARK_SIZE = 4096
PATIENCE_S = 30.0  # for a process that holds the folder's lock, or copies, and does nothing: one that was stopped
_SOON_S, _LATER_S = 0.001, 0.05  # between two looks


def take_room(folder: Folder, name: str) -> Lock | None:
    """Return the lock on the room of a copy, or of a writer, which is made where it is missing; None: another has it.

    Raises:
        OSError: It cannot be opened.
    """
    return take_lock(folder.full_path(f"{ROOM}{name}"), create=True)


class Pauses:
    """Longer and longer pauses, for as long as there is patience."""

    def __init__(self, patience_s: float | None = None) -> None:
        self._patience_s, self._pause_s = PATIENCE_S if patience_s is None else patience_s, _SOON_S
        self.restart()

    def restart(self) -> None:
        """Be patient anew: something has moved."""
        self._end_s = time.monotonic() + self._patience_s

    def wait(self) -> bool:
        """Wait a moment, and return True; False: the patience is at its end."""
        if time.monotonic() > self._end_s:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LATER_S)
        return True


class Space(NamedTuple):
    """The folder of a cache and its space, as one process may use them.

    Attributes:
        folder: The cache's folder.
        max_bytes: What may lie there at any time.
        policy: Which shards are evicted first; `keep`: none is.
    """

    folder: str
    max_bytes: int
    policy: Policy

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock: for moments, never while bytes are copied.

        Raises:
            OSError: It cannot be had.
        """
        pauses = Pauses()
        while (lock := take_lock(os.path.join(self.folder, LOCK), create=True)) is None:
            if not pauses.wait():
                raise OSError(EBUSY, "a process holds its lock, and does nothing")
        with lock:
            yield

    def is_cache(self) -> bool:
        """Return whether the folder is a cache already.

        Raises:
            InvalidRequest: It is one of another version, a file, or its folders are links, which may lead anywhere.
        """
        folder = self.folder
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise InvalidRequest(folder, "a file", expected="a folder, or none yet")
        for name, fact in Folder(folder).facts(FOLDERS).items():
            if not fact.is_folder:
                where, expected = os.path.join(folder, name), "a folder of the cache, or none"
                raise InvalidRequest(where, "a link or a file", expected=expected)
        path = os.path.join(folder, MARK)
        if not os.path.lexists(path):
            return False
        try:
            version = json.loads(read_small(path, _MARK_SIZE, flags=READ_PLAIN))["shardtool-cache"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            version = "that cannot be read"
        if version != VERSION:
            remedy = "Take another folder, or remove this one."
            raise InvalidRequest(folder, f"a cache of the version {version}", expected=f"{VERSION}", remedy=remedy)
        return True

    def prepare(self) -> list[str]:
        """Make the folder a cache, if it is none, remove what dead processes left there, and return what is foreign.

        Raises:
            InvalidRequest: It is the cache of another version, its folders are links, or locks do not work there.
            OutputFailed: It cannot be made.
            OSError: It cannot be written.
        """
        folder = Folder(self.folder)
        self.is_cache()
        for one in ("", *FOLDERS):
            Folder(folder.full_path(one)).ready()
        try:
            with self.locked():
                if (second := take_lock(folder.full_path(LOCK))) is not None:
                    second.close()
                    raise _without_locks(self.folder, "two processes can hold one lock at once")
                if not os.path.lexists(folder.full_path(MARK)):
                    folder.publish(folder.stage_whole(MARK, b'{"shardtool-cache": %d}\n' % VERSION))
                self.counts()
                return self.look().foreign
        except OSError as error:
            if error.errno in NO_LOCKS:
                raise _without_locks(self.folder, f"no locks: {reason(error)}") from None
            raise

    def look(self, *, but: str = "") -> CacheContents:
        """Return what is in the folder, and remove what dead processes have left; the folder's lock must be held.

        Args:
            but: The path of a room that is not to be counted: one's own.

        Raises:
            OSError: A folder cannot be listed.
        """
        folder, found = self.folder, CacheContents()
        found.foreign += [name for name in _names(folder) if name not in (MARK, LOCK, *FOLDERS)]
        for part, owner_of in ((COPIED, copy_of), (WRITTEN, writer_of)):
            # The files of each copy, or of each writer.
            groups: dict[str, dict[str, os.stat_result]] = defaultdict(dict)
            for entry in _entries(os.path.join(folder, part)):
                owner, fact = owner_of(entry.name), _fact(entry)
                if owner is None or fact is None:
                    found.foreign.append(f"{part}/{entry.name}")
                else:
                    groups[owner][entry.name] = fact
            for owner, files in groups.items():
                for name in [owner] if part == COPIED else [name for name in files if _SHARD.fullmatch(name)]:
                    sidecar = "" if part == COPIED else sidecar_name(name)
                    if name in files and (not sidecar or sidecar in files):
                        shard, more = files.pop(name), files.pop(sidecar).st_size if sidecar else 0
                        times = shard.st_mtime_ns, shard.st_atime_ns
                        found.residents.append(Resident(part, name, shard.st_size + more, *times, sidecar))
                _count_room(os.path.join(folder, part), owner, found, but, files)
        for name in _names(os.path.join(folder, COUNTS)):
            if name not in (TOTAL, f".{TOTAL}{PART}") and not _COUNTS.fullmatch(name):
                found.foreign.append(f"{COUNTS}/{name}")
        return found

    def counts(self) -> tuple[Counts, list[int]]:
        """Return the counts of all processes, and which of them live; the folder's lock must be held.

        Raises:
            OutputFailed: Counts of ended processes cannot be added up on disk.
        """
        place = Folder(os.path.join(self.folder, COUNTS))
        total, ended, pids = _read(place, TOTAL), [], []
        living = Counts()
        for name in filter(_COUNTS.fullmatch, names_in(place.path)):
            try:
                lock = take_lock(place.full_path(name))
            except OSError:
                continue
            counts = _read(place, name)
            if lock is None:
                living.add(counts)
                pids.append(int(name.partition("-")[0]))
            else:
                total.add(counts)
                ended.append(name)
                lock.close()
        if ended:
            with suppress(OutputFailed):
                place.publish(place.stage_whole(TOTAL, json.dumps(asdict(total)).encode()))
                place.remove(ended)
        living.add(total)
        return living, sorted({*pids})

    def give(self, room: Lock, size: int) -> int | None:
        """Give `size` bytes to a room, if they fit or shards can be evicted for them; the folder's lock must be held.

        Returns:
            How many shards were evicted; None: it does not fit, nothing was evicted, and the room waits.

        Raises:
            OSError: The room cannot be written.
        """
        room.put(room_text(0, size))
        found = self.look(but=room.path)
        evicted = self.evict(self.in_order(found.residents), self.over(found, size))
        if evicted is not None:
            room.put(room_text(size, 0))
        return evicted

    def over(self, found: CacheContents, size: int) -> int:
        """Return how many bytes are too many for `size` more, by the bound or by what the disk has left."""
        return max(found.size + found.taken + size - self.max_bytes, size - Folder(self.folder).free_bytes())

    def evict(self, shards: Iterable[Resident], over: int) -> int | None:
        """Evict shards, the first ones first, until `over` bytes are free; the folder's lock must be held.

        Returns:
            How many; None: none, for those that no process reads are too few.
        """
        victims: list[tuple[Resident, Lock]] = []
        try:
            for one in shards if self.policy != "keep" else ():
                if over <= 0:
                    break
                if lock := self.lock_alone(one.path):
                    victims.append((one, lock))
                    over -= one.size
            if over > 0:
                return None
            for one, _ in victims:
                self.remove(one)
            return len(victims)
        finally:
            for _, lock in victims:
                lock.close()

    def in_order(self, residents: list[Resident]) -> list[Resident]:
        """Return shards in the order in which they would be evicted."""
        if self.policy == "oldest":
            return sorted(residents, key=lambda one: (one.came_ns, one.name))
        # What no process has used yet goes last: it was written to be read.
        return sorted(residents, key=lambda one: (one.unread, one.used_ns, one.came_ns, one.name))

    def lock_alone(self, path: str) -> Lock | None:
        """Return the lock on a shard, by its path from the folder on, that no process reads; None: one does.

        None, too, where it may not be touched.
        """
        with suppress(OSError):
            return take_lock(os.path.join(self.folder, path))
        return None

    def is_held(self, path: str) -> bool:
        """Tell whether a process has a lease on a shard."""
        with suppress(OSError):
            if (lock := take_lock(os.path.join(self.folder, path))) is None:
                return True
            lock.close()
        return False

    def remove(self, one: Resident) -> None:
        """Remove a shard, and then its sidecar: what a kill leaves between is no finished shard."""
        Folder(os.path.join(self.folder, one.folder)).discard(*filter(None, (one.name, one.sidecar)))


def _without_locks(folder: str, found: str) -> InvalidRequest:
    expected, remedy = "a file system with locks, which leases need", "Take a folder on a local disk."
    return InvalidRequest(folder, found, expected=expected, remedy=remedy)
