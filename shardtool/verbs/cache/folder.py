"""A folder becomes a cache, or is refused."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, reason
from shardtool.storage.reading import READ_PLAIN, read_small
from shardtool.storage.shared import NO_LOCKS, take_lock
from shardtool.storage.staging import Folder, write_whole
from shardtool.verbs.cache.names import FOLDERS, LOCK, MARK, VERSION, all_counts
from shardtool.verbs.cache.residents import look

if TYPE_CHECKING:
    from shardtool.verbs.cache.residents import Space

_MARK_SIZE = 4096


def prepare(space: Space) -> list[str]:
    """Make a folder a cache where it is none, remove what dead processes left there, and return what is foreign in it.

    Raises:
        InvalidRequest: It is the cache of another version, its folders are links, or locks do not work there.
        OutputFailed: It cannot be made.
        OSError: It cannot be written.
    """
    folder = Folder(space.folder)
    check_folder(space.folder)
    for one in ("", *FOLDERS):
        Folder(folder.full_path(one)).ready()
    try:
        with space.locked():
            if (second := take_lock(folder.full_path(LOCK))) is not None:
                second.close()
                raise _without_locks(space.folder, "two processes can hold one lock at once")
            if not os.path.lexists(folder.full_path(MARK)):
                folder.publish(write_whole(folder, MARK, b'{"shardtool-cache": %d}\n' % VERSION))
            all_counts(space.folder)
            return look(space.folder).foreign
    except OSError as error:
        if error.errno in NO_LOCKS:
            raise _without_locks(space.folder, f"no locks: {reason(error)}") from None
        raise


def check_folder(folder: str) -> bool:
    """Return whether a folder is a cache already.

    Raises:
        InvalidRequest: It is one of another version, a file, or its folders are links, which may lead anywhere.
    """
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise InvalidRequest(folder, "a file", expected="a folder, or none yet")
    for name, fact in Folder(folder).facts(FOLDERS).items():
        if not fact.is_folder:
            raise InvalidRequest(
                os.path.join(folder, name), "a link or a file", expected="a folder of the cache, or none"
            )
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


def _without_locks(folder: str, found: str) -> InvalidRequest:
    return InvalidRequest(
        folder, found, expected="a file system with locks, which leases need", remedy="Take a folder on a local disk."
    )
