"""`shardtool cache`: list, verify and clear what is in a cache."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from shardtool.dataset.shard_file import ChecksummedFile
from shardtool.dataset.sidecar_read import load_sidecar, parse_facts
from shardtool.dataset.stored import sidecar_path
from shardtool.errors import CorruptShard, InvalidRequest, os_error_text
from shardtool.request.results import Result
from shardtool.storage.descriptors import processes_with_open_files
from shardtool.storage.locks import take_lock
from shardtool.storage.staging import local_folder
from shardtool.verbs.cache.cache_space import CacheSpace
from shardtool.verbs.cache.leases import LOCAL_LOCKS_FIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.verbs.cache.counts import CacheCounts
    from shardtool.verbs.cache.folder import CacheContents, CachedFile


_UNLIMITED_BYTES = 10**18


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
    counts: CacheCounts
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
    space = _open_space(folder)
    with _locked_contents(space) as found:
        counts, readers = space.counts()
    opened = processes_with_open_files(space.folder)
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
    space = _open_space(folder)
    with _locked_contents(space) as found:
        return _remove_shards(space, found, dict.fromkeys(found.residents, ("", None)))


def cache_verify(folder: str | os.PathLike[str]) -> CacheChange:
    """Read all shards of a cache, and remove those that are not what their sidecars say; foreign files stay.

    Raises:
        InvalidRequest: It is none, or of another version.
    """
    space = _open_space(folder)
    with _locked_contents(space) as found:
        pass
    wrong = {}
    for one in found.residents:
        path = os.path.join(space.folder, one.path)
        with suppress(FileNotFoundError):  # evicted meanwhile
            if lock := take_lock(path, shared=True):
                with lock:
                    if damage := _find_damage(path, one):
                        wrong[one] = damage, lock.fact.st_ino
    with _locked_contents(space):
        return _remove_shards(space, found, wrong)


def _remove_shards(
    space: CacheSpace, found: CacheContents, wrong: Mapping[CachedFile, tuple[str, int | None]]
) -> CacheChange:
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


def _find_damage(path: str, one: CachedFile) -> str:
    """Return what is wrong with a shard, which a lease holds; empty: nothing that can be known."""
    try:
        if (facts := one.facts) is None:
            fact = parse_facts(load_sidecar(sidecar_path(path, None)), one.sidecar)
            facts = fact.size, fact.crc
        size, crc = facts
        with ChecksummedFile(path) as shard:
            if shard.size != size:
                return f"{shard.size:,} bytes instead of {size:,}"
            found = shard.crc()
    except CorruptShard as error:
        return error.found
    except OSError as error:
        return os_error_text(error)
    return "" if crc in (None, found) else f"the checksum {found:08x} instead of {crc:08x}"


def _open_space(folder: str | os.PathLike[str]) -> CacheSpace:
    space = CacheSpace(os.path.abspath(local_folder(folder, LOCAL_LOCKS_FIX).path), _UNLIMITED_BYTES, "least-used")
    if not space.is_cache():
        remedy = "A `Cache` makes one."
        raise InvalidRequest(os.fspath(folder), "no cache", expected="a folder that a cache has made", remedy=remedy)
    return space


@contextmanager
def _locked_contents(space: CacheSpace) -> Iterator[CacheContents]:
    """Look at a cache, and hold its lock where that is possible: on a read-only disk it is not, nor is it needed."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(space.locked())
        try:
            found = space.look()
        except OSError as error:
            raise InvalidRequest(space.folder, f"cannot be listed: {os_error_text(error)}") from None
        yield found
