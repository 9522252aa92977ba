"""`cache`: what is in a cache, who holds what, what is damaged. The library twin of `shardtool cache`."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.find import sidecar_path
from shardtool.dataset.shard_file import SummedFile
from shardtool.dataset.sidecar_read import read_bytes, read_facts
from shardtool.errors import CorruptShard, InvalidRequest, reason
from shardtool.storage.shared import open_by, take_lock
from shardtool.verbs.cache.folder import check_folder
from shardtool.verbs.cache.names import all_counts, copy_facts
from shardtool.verbs.cache.residents import Space, held, lock_alone, look, remove_shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.verbs.cache.names import Counts
    from shardtool.verbs.cache.residents import CacheContents, Resident

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
class CacheChange:
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

    def to_json(self) -> dict[str, object]:
        """Return it as data, the way `--json` prints it."""
        return asdict(self)


def cache_status(folder: str | os.PathLike[str]) -> CacheStatus:
    """Return what is in a cache.

    Raises:
        InvalidRequest: It is none, or of another version.
    """
    space = _space(folder)
    with _looked(space) as found:
        counts, readers = all_counts(space.folder)
    opened = open_by(space.folder)
    shards = []
    for one in space.in_order(found.residents):
        path = os.path.join(space.folder, one.folder, one.name)
        pids = tuple(opened.get(os.path.realpath(path), ()))
        shards.append(ShardStatus(_shown(one), one.size, one.came_ns, one.used_ns, held(path), pids))
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
        return _removed(space, found, {one: _Wrong("", None) for one in found.residents})


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
        path = os.path.join(space.folder, one.folder, one.name)
        with suppress(FileNotFoundError):  # evicted meanwhile
            if lock := take_lock(path, shared=True):
                with lock:
                    if damage := _damage(path, one):
                        wrong[one] = _Wrong(damage, lock.fact.st_ino)
    with _looked(space):
        return _removed(space, found, wrong)


class _Wrong(NamedTuple):
    """Why a shard is removed, and which file of its name is meant; None: any."""

    why: str
    inode: int | None


def _removed(space: Space, found: CacheContents, wrong: Mapping[Resident, _Wrong]) -> CacheChange:
    """Remove shards that no process holds; the folder's lock is held."""
    removed, kept, size = {}, {}, 0
    for one, (why, inode) in wrong.items():
        lock = lock_alone(os.path.join(space.folder, one.folder, one.name))
        if lock is None:
            kept[_shown(one)] = why
            continue
        with lock:
            if inode in (None, lock.fact.st_ino):
                remove_shard(space.folder, one)
                removed[_shown(one)] = why
                size += one.size
    return CacheChange(space.folder, len(found.residents), removed, kept, size, tuple(sorted(found.foreign)))


def _damage(path: str, one: Resident) -> str:
    """Return what is wrong with a shard, which a lease holds; empty: nothing that can be known."""
    try:
        if (facts := copy_facts(one.name)) is None:
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


def _shown(one: Resident) -> str:
    return f"{one.folder}/{one.name}"


def _space(folder: str | os.PathLike[str]) -> Space:
    path = os.path.abspath(os.fspath(folder))
    if not check_folder(path):
        remedy = "A `Cache` makes one."
        raise InvalidRequest(os.fspath(folder), "no cache", expected="a folder that a cache has made", remedy=remedy)
    return Space(path, _UNBOUNDED, "least-used")


@contextmanager
def _looked(space: Space) -> Iterator[CacheContents]:
    """Look at a cache, and hold its lock where that is possible: on a read-only disk it is not, nor is it needed."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(space.locked())
        try:
            found = look(space.folder)
        except OSError as error:
            raise InvalidRequest(space.folder, f"cannot be listed: {reason(error)}") from None
        yield found
