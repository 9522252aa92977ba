"""The bytes of a cache: given out before they are written, and got back by evicting whole shards that are not read."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shardtool.cache.names import LOCK, ROOM
from shardtool.cache.residents import lock_alone, look, room_text
from shardtool.storage.locks import take_lock
from shardtool.storage.staging import Folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.cache.residents import Found, Resident
    from shardtool.storage.locks import Lock

Policy = Literal["least-used", "oldest", "keep"]
PATIENCE_S = 30.0  # for a process that holds the folder's lock, or copies, and does nothing: one that was stopped
_SOON_S, _LATER_S = 0.001, 0.05  # between two looks


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


class FolderBusyError(OSError):
    """Another process holds the folder's lock, and does nothing."""


@dataclass(frozen=True, slots=True)
class Space:
    """The space of a cache's folder, as one process may use it.

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
                raise FolderBusyError(self.folder)
        with lock:
            yield

    def give(self, room: Lock, size: int) -> int | None:
        """Give `size` bytes to a room, if they fit or shards can be evicted for them; the folder's lock must be held.

        Returns:
            How many shards were evicted; None: it does not fit, nothing was evicted, and the room waits.

        Raises:
            OSError: The room cannot be written.
        """
        room.put(room_text(0, size))
        found = look(self.folder, but=room.path)
        evicted = self.evict(self.in_order(found.residents), self.over(found, size))
        if evicted is not None:
            room.put(room_text(size, 0))
        return evicted

    def over(self, found: Found, size: int) -> int:
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
                if lock := lock_alone(os.path.join(self.folder, one.folder, one.name)):
                    victims.append((one, lock))
                    over -= one.size
            if over > 0:
                return None
            for one, _ in victims:
                remove_shard(self.folder, one)
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


def remove_shard(folder: str, one: Resident) -> None:
    """Remove a shard, and then its sidecar: what a kill leaves between is no finished shard."""
    Folder(os.path.join(folder, one.folder)).discard(*filter(None, (one.name, one.sidecar)))


def room_path(folder: Folder, name: str) -> str:
    """Return the path of the room of a copy, or of a writer."""
    return folder.full_path(f"{ROOM}{name}")
