"""An output folder in an object store.

A store has no temporary names: a worker writes a shard with one PUT, and the shard is visible when the PUT
completes.
Small files are kept in memory until they are published. The publishing process must hold the lock of the dataset.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from shardtool.errors import OutputFailed, os_error_text
from shardtool.storage import files
from shardtool.storage.file_system import EntryInfo, write_errors
from shardtool.storage.remote import failures, objects, retry
from shardtool.storage.remote.address import (
    display_address,
    join_address,
    parse_address,
)
from shardtool.storage.remote.buckets import delete_objects, list_objects, put_object
from shardtool.storage.remote.http import etag_md5
from shardtool.storage.remote.lock import check_held, hold_lock
from shardtool.storage.remote.objects import RemoteObject, read_object
from shardtool.storage.remote.upload import MAX_PUT_BYTES, Made, TruncatedUpload, upload
from shardtool.storage.staging import DurableFile, Folder, Sink, StagedFile
from shardtool.values import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_NS_PER_SECOND = 10**9


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """A prefix of a store that is written to. A plain value: it may travel to a worker.

    Attributes:
        path: Its address.
    """

    path: str
    hides: ClassVar[bool] = False
    largest: ClassVar[int | None] = MAX_PUT_BYTES

    @property
    def temporary(self) -> Folder:
        """The folder for temporary files of those who write here."""
        from tempfile import gettempdir

        return Folder(gettempdir())

    def ready(self) -> None:
        """Do nothing: a prefix needs not be made."""

    def names(self) -> list[str]:
        """Return the names of all that lies directly under the prefix.

        Raises:
            StoreFailed: It cannot be listed.
        """
        return [*self._listed()]

    def facts(self, names: Iterable[str]) -> dict[str, EntryInfo]:
        """Return the facts of those of `names` that are there; times are whole seconds of the store's clock.

        No time of ours is whole, so that none of these is ever taken for one: a store's clock proves nothing. Of a
        single name nothing is listed, and its time is 0.

        Raises:
            StoreFailed: The store cannot be asked.
        """
        wanted = [*names]
        if len(wanted) > 1:
            there = self._listed()
            return {name: there[name] for name in wanted if name in there}
        with suppress(FileNotFoundError):
            return {name: EntryInfo(RemoteObject(self.full_path(name)).size, 0) for name in wanted}
        return {}

    def stage(self, name: str) -> StagedObject:
        """Start a file that will be called `name`, whose size is not known: a temporary one, until it is whole.

        Raises:
            OutputFailed: There is no room for temporary files.
        """
        return StagedObject(self, name)

    def stage_bytes(self, name: str, data: bytes) -> DurableFile:
        """Hold a small file that will be called `name`."""
        return DurableFile(name, "", data)

    def write(
        self, name: str, fill: Callable[[Sink], Made], size: int | None, _mtime_ns: int, /
    ) -> tuple[Made, DurableFile]:
        """Write a file, which is visible then; return what `fill`, which writes it, has returned, and the file.

        Args:
            name: Its name.
            fill: Writes it; it may be called again.
            size: How many bytes it will have; None: that is not known, and it goes into a temporary file first.
            _mtime_ns: Of no use here: the store says when an object was written.

        Raises:
            OutputFailed: It cannot be written.
            StoreFailed: The store fails time and again, or does not let us.
        """
        where = self.full_path(name)
        if size is not None:
            with suppress(TruncatedUpload):
                return upload(where, size, fill), DurableFile(name, "")
        with self.stage(name) as file:
            return fill(file), file.finish()

    def publish(self, *staged: DurableFile) -> None:
        """Write what is held, in this order.

        Raises:
            OutputExists: The lock is lost.
            OutputFailed: It cannot be written.
            StoreFailed: The store fails time and again, or does not let us.
        """
        for one in staged:
            check_held(self.path)
            if one.data is not None:
                with failures.write_conflicts(self.full_path(one.name)):
                    _put_verified(self.full_path(one.name), one.data)

    def set_mtime(self, name: str, mtime_ns: int) -> None:
        """Do nothing: the store says when an object was written."""

    def discard_staged(self, names: Iterable[str]) -> None:
        """Do nothing: there are no temporary names."""

    def staged_names(self) -> list[str]:
        """Return nothing: there are no temporary names."""
        return []

    def remove(self, names: list[str]) -> None:
        """Remove objects; those that are gone already are no error.

        Raises:
            OutputExists: The lock is lost.
            StoreFailed: The store fails time and again, or does not let us.
        """
        if names:
            check_held(self.path)
            delete_objects(self.path, [parse_address(self.full_path(name)).key for name in names])

    def read(self, name: str) -> bytes:
        """Return a whole object, which must be small.

        Raises:
            OSError: It is not there, or changes while it is read.
            StoreFailed: It cannot be read.
        """
        return files.read_small(self.full_path(name))

    read_staged = read  # nothing is hidden here

    def version(self, name: str) -> str:
        """Return what a store calls an object as it is now, its ETag, which no other bytes have; empty: it has none.

        Raises:
            OSError: It is not there.
            StoreFailed: The store cannot be asked.
        """
        return RemoteObject(self.full_path(name)).version

    def md5(self, name: str) -> str | None:
        """Return the MD5 of an object, as far as the store says it."""
        return remote_md5(self.full_path(name))

    def full_path(self, name: str) -> str:
        """Return the address of `name`."""
        return join_address(self.path, name)

    def free_bytes(self) -> int | None:
        """Return how many more bytes fit: any number."""
        return None

    def lock(self, base: str, *, shared: bool = False) -> AbstractContextManager[None]:
        """Hold the lock of the dataset `base` under this prefix.

        Args:
            base: The dataset's name.
            shared: Others may hold it with us, unless they want it alone.

        Raises:
            OutputExists: Another run holds it.
            OutputFailed: There is no such bucket.
            InvalidRequest: The store does not keep conditions.
            StoreFailed: It fails, or does not let us.
        """
        return hold_lock(self.path, base, shared=shared)

    def _listed(self) -> dict[str, EntryInfo]:
        """Return what lies directly under the prefix."""
        found = {}
        with suppress(FileNotFoundError):
            for one in list_objects(self.path):
                changed = one.changed_ns // _NS_PER_SECOND * _NS_PER_SECOND
                found[one.name] = EntryInfo(one.size, changed, "a folder" if one.is_folder else "")
        return found


def remote_md5(address: str) -> str | None:
    """Return the MD5 of what lies at an address, as far as its server says it by an ETag.

    Raises:
        AccessRefused: We may not ask.
        StoreFailed: It cannot be asked.
    """
    try:
        return etag_md5({"ETag": objects.open_remote(address).version})
    except FileNotFoundError:
        return None


def _put_verified(where: str, data: bytes) -> None:
    """Write a small object, and see that the store has it: by its checksum, or where that is another kind, by reading.

    Raises:
        StoreFailed: The store fails time and again, or does not let us.
    """
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()

    def once() -> None:
        if (
            etag_md5({"ETag": put_object(where, data, lasting=True)}) != md5
            and read_object(where, lambda size: size == len(data))[0] != data
        ):
            raise retry.TransientError("the store has other bytes than were sent")

    retry.with_retries(display_address(where), once)


class StagedObject(StagedFile):
    """What a shard of an unknown size is packed into: a temporary file without a name, which ends with the process."""

    def __init__(self, folder: RemoteFolder, name: str) -> None:
        from tempfile import TemporaryFile

        self._folder, self._name, self.path = folder, name, ""
        self._where, self._failed = "a temporary file", _temporary_file_error
        with write_errors(self._where, _temporary_file_error), TemporaryFile() as file:
            self._fd = os.dup(file.fileno())

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def sync(self) -> None:
        """Do nothing: no disk keeps it."""

    def finish(self, _mtime_ns: int | None = None) -> DurableFile:
        """Write the object, which is visible then.

        Raises:
            OutputExists: The lock is lost.
            OutputFailed: It cannot be written.
            StoreFailed: The store fails time and again, or does not let us.
        """
        check_held(self._folder.path)
        upload(self._folder.full_path(self._name), self.size, self._copy)
        self.abandon()
        return DurableFile(self._name, "")

    def _copy(self, to: Sink) -> None:
        os.lseek(self._fd, 0, os.SEEK_SET)
        for block in files.LocalFile(self._fd).blocks(memoryview(bytearray(BLOCK_BYTES))):
            to.write(block)


def _temporary_file_error(what: str, error: OSError) -> OutputFailed:
    from tempfile import gettempdir

    found = f"cannot write {what}: {os_error_text(error)}"
    remedy = "Set TMPDIR to a folder with room for a shard per worker, or for a plan file."
    return OutputFailed(gettempdir(), found, remedy=remedy)
