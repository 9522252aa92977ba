"""List, verify and clear a cache (`shardtool cache`)."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from shardtool.dataclass import dataclass
from shardtool.dataset.shard_file import ChecksummedFile
from shardtool.dataset.sidecar_read import load_sidecar, parse_facts
from shardtool.dataset.stored import sidecar_path
from shardtool.errors import CorruptShard, InvalidRequest, OutputFailed, os_error_text
from shardtool.notebook import Displayed
from shardtool.request.results import Result
from shardtool.storage.descriptors import processes_with_open_files
from shardtool.storage.locks import take_lock
from shardtool.storage.staging import local_folder
from shardtool.verbs.cache.cache_space import CacheSpace
from shardtool.verbs.cache.leases import LOCAL_LOCKS_FIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.verbs.cache.counts import CacheCounts
    from shardtool.verbs.cache.layout import CacheContents, CachedFile


_UNLIMITED_BYTES = 10**18


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """A shard in a cache.

    Attributes:
        came_ns: When the shard was added, in nanoseconds since 1970.
        held: Whether the shard is in use.
    """

    path: str
    size: int
    came_ns: int
    used_ns: int
    held: bool
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, repr=False)
class CacheStatus(Displayed):
    """The state of a cache.

    Attributes:
        taken: Bytes reserved for copies and writers in progress.
        readers: Running processes that have opened the cache.
        writers: Processes that copy, write, or wait for space.
        foreign: Files that do not belong to the cache.
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
        return sum(shard.size for shard in self.shards)

    def to_json(self) -> dict[str, object]:
        """Return the state as `--json` prints it."""
        return {**asdict(self), "size": self.size, "hit_rate": self.counts.hit_rate}


@dataclass(frozen=True, slots=True, repr=False)
class CacheChange(Result):
    """The result of deleting shards from a cache.

    Attributes:
        removed: The damage of each deleted shard, by path ("" in the result of `cache_clear`).
        held: Like `removed`, for shards that were kept because they are in use.
        size: Bytes of the deleted shards.
    """

    folder: str
    looked_at: int
    removed: dict[str, str]
    held: dict[str, str]
    size: int
    foreign: tuple[str, ...]


def cache_status(folder: str | os.PathLike[str]) -> CacheStatus:
    """Return the state of a cache.

    Raises:
        InvalidRequest: The folder is not a cache, or is a cache of another version.
    """
    space = _open_space(folder)
    with _locked_contents(space) as contents:
        counts, readers = space.counts()
    open_pids = processes_with_open_files(space.folder)
    shards = []
    for shard in space.eviction_order(contents.shards):
        path = os.path.join(space.folder, shard.path)
        held, pids = space.is_held(shard.path), tuple(open_pids.get(os.path.realpath(path), ()))
        shards.append(ShardStatus(shard.path, shard.size, shard.added_ns, shard.used_ns, held, pids))
    writers, foreign = tuple(sorted({*contents.pids})), tuple(sorted(contents.foreign))
    return CacheStatus(space.folder, tuple(shards), contents.reserved, tuple(readers), writers, counts, foreign)


def cache_clear(folder: str | os.PathLike[str]) -> CacheChange:
    """Delete the shards of a cache, except shards in use.

    Raises:
        InvalidRequest: See `cache_status`.
        OutputFailed: A shard cannot be deleted.
    """
    space = _open_space(folder)
    with _locked_contents(space) as contents:
        return _remove_shards(space, contents, dict.fromkeys(contents.shards, ("", None)))


def cache_verify(folder: str | os.PathLike[str]) -> CacheChange:
    """Verify the shards of a cache, and delete damaged shards. For errors, see `cache_clear`."""
    space = _open_space(folder)
    with _locked_contents(space) as contents:
        pass
    damaged = {}
    for shard in contents.shards:
        path = os.path.join(space.folder, shard.path)
        with suppress(FileNotFoundError):  # another process may evict the shard meanwhile
            if lock := take_lock(path, shared=True):
                with lock:
                    if damage := _find_damage(path, shard):
                        damaged[shard] = damage, lock.info.st_ino
    with _locked_contents(space):
        return _remove_shards(space, contents, damaged)


def _remove_shards(
    space: CacheSpace, contents: CacheContents, shards: Mapping[CachedFile, tuple[str, int | None]]
) -> CacheChange:
    """Delete shards that are not in use. The folder's lock must be held.

    `shards` maps each shard to a pair: its damage (or "") and the inode of the damaged file (or None). A file with
    another inode is kept, because it has replaced the damaged file.
    """
    removed, held, size = {}, {}, 0
    for shard, (reason, inode) in shards.items():
        lock = space.lock_exclusively(shard.path)
        if lock is None:
            held[shard.path] = reason
            continue
        with lock:
            if inode in (None, lock.info.st_ino):
                if not space.remove(shard):
                    path = os.path.join(space.folder, shard.path)
                    raise OutputFailed(path, "cannot be deleted", remedy="Check who may write to the folder.")
                removed[shard.path] = reason
                size += shard.size
    return CacheChange(space.folder, len(contents.shards), removed, held, size, tuple(sorted(contents.foreign)))


def _find_damage(path: str, shard: CachedFile) -> str:
    try:
        if (expected := shard.facts) is None:
            facts = parse_facts(load_sidecar(sidecar_path(path, None)), shard.sidecar)
            expected = facts.size, facts.crc
        size, crc = expected
        with ChecksummedFile(path) as file:
            if file.size != size:
                return f"{file.size:,} bytes instead of {size:,}"
            actual = file.crc()
    except CorruptShard as error:
        return error.found
    except OSError as error:
        return os_error_text(error)
    return "" if crc in (None, actual) else f"CRC-32C {actual:08x} instead of {crc:08x}"


def _open_space(folder: str | os.PathLike[str]) -> CacheSpace:
    space = CacheSpace(os.path.abspath(local_folder(folder, LOCAL_LOCKS_FIX).path), _UNLIMITED_BYTES, "least-used")
    if not space.is_cache():
        remedy = "Create one with `shardtool.Cache(folder)`."
        raise InvalidRequest(os.fspath(folder), "not a cache", expected="the folder of a cache", remedy=remedy)
    return space


@contextmanager
def _locked_contents(space: CacheSpace) -> Iterator[CacheContents]:
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(space.locked())
        try:
            contents = space.scan()
        except OSError as error:
            raise InvalidRequest(space.folder, f"cannot be listed: {os_error_text(error)}") from None
        yield contents
