"""An output folder in an object store.

A shard is written with one PUT request, and is visible once the request has succeeded. Small files stay in memory until
they are published. With `has_staging`, each file is first written as the object `.NAME.part`. To publish the file, this
object is copied to `NAME`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar

from shardtool.dataclass import dataclass
from shardtool.errors import OutputFailed, os_error_text
from shardtool.pattern import replacement_plan_name
from shardtool.storage import files
from shardtool.storage.file_system import EntryInfo, write_errors
from shardtool.storage.paths import base_name
from shardtool.storage.remote import failures, objects, retry
from shardtool.storage.remote.address import join_address, parse_address
from shardtool.storage.remote.buckets import delete_objects, list_objects, put_object
from shardtool.storage.remote.http import etag_md5
from shardtool.storage.remote.lock import check_held, hold_lock
from shardtool.storage.remote.objects import RemoteObject, read_object
from shardtool.storage.remote.upload import MAX_PUT_BYTES, Result, TruncatedUpload, upload
from shardtool.storage.staging import DurableFile, Folder, Sink, StagedFile, find_staged, staged_path, unfinished_error
from shardtool.values import BLOCK_BYTES

_NS_PER_SECOND = 10**9


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """An output folder in an object store, with most methods of `Folder`.

    The process that publishes must hold the dataset's lock.
    """

    path: str
    has_staging: bool = False
    max_file_bytes: ClassVar[int | None] = MAX_PUT_BYTES

    @property
    def temporary(self) -> Folder:
        from tempfile import gettempdir

        return Folder(gettempdir())

    def create(self) -> None:
        """Do nothing, because stores need no folders."""

    def names(self) -> list[str]:
        return [*self._list_entries()]

    def find_entries(self, names: Iterable[str]) -> dict[str, EntryInfo]:
        """Return an `EntryInfo` for each of `names` that exists, by name.

        Modification times are 0 or truncated to seconds, so they never equal a recorded time in nanoseconds.
        """
        requested = [*names]
        if len(requested) > 1:
            listed = self._list_entries()
            return {name: listed[name] for name in requested if name in listed}
        with suppress(FileNotFoundError):
            return {name: EntryInfo(RemoteObject(self.full_path(name)).size, 0) for name in requested}
        return {}

    def stage(self, name: str) -> StagedObject:
        return StagedObject(self, name)

    def stage_bytes(self, name: str, data: bytes) -> DurableFile:
        """Keep a small file in memory until it is published. If `has_staging`, write a temporary object instead."""
        if not self.has_staging:
            return DurableFile(name, "", data)
        check_held(self.path)
        _put_verified(self.written_path(name), data)
        return self.written_file(name)

    def write(
        self, name: str, fill: Callable[[Sink], Result], size: int | None, _mtime_ns: int, /
    ) -> tuple[Result, DurableFile]:
        """Let `fill` write an object of `size` bytes, again after each failed upload.

        If `size` is None or `fill` writes fewer bytes, upload a local file that `fill` writes.
        """
        if size is not None:
            with suppress(TruncatedUpload):
                return upload(self.written_path(name), size, fill), self.written_file(name)
        with self.stage(name) as file:
            return fill(file), file.finish()

    def written_path(self, name: str) -> str:
        return staged_path(self, name) if self.has_staging else self.full_path(name)

    def written_file(self, name: str) -> DurableFile:
        return DurableFile(name, self.written_path(name) if self.has_staging else "")

    def publish(self, *staged: DurableFile) -> None:
        for file in staged:
            if file.data is not None:
                self.publish_bytes(file.name, file.data)
            check_held(self.path)

    def publish_bytes(self, name: str, data: bytes) -> None:
        check_held(self.path)
        with failures.write_errors(self.full_path(name)):
            _put_verified(self.full_path(name), data)

    def set_mtime(self, name: str, mtime_ns: int) -> None:
        """Do nothing, because the store sets the modification time."""

    def discard_staged(self, names: Iterable[str]) -> None:
        final_names = {*names}
        self.remove([base_name(file.path) for file in self.staged() if file.name in final_names])

    def staged_names(self) -> list[str]:
        return [*dict.fromkeys(file.name for file in self.staged())]

    def staged(self) -> list[DurableFile]:
        return find_staged(self, self.names()) if self.has_staging else []

    def remove(self, names: list[str]) -> None:
        if names:
            check_held(self.path)
            delete_objects(self.path, [parse_address(self.full_path(name)).key for name in names])

    def read(self, name: str) -> bytes:
        return files.read_small(self.full_path(name))

    def read_staged(self, name: str) -> bytes:
        return files.read_small(self.written_path(name))

    def version(self, name: str) -> str:
        return RemoteObject(self.full_path(name)).version

    def md5(self, name: str) -> str | None:
        return remote_md5(self.full_path(name))

    def full_path(self, name: str) -> str:
        return join_address(self.path, name)

    def free_bytes(self) -> int | None:
        return None

    @contextmanager
    def lock(self, base: str, *, shared: bool = False, continues_replacement: bool = False) -> Iterator[None]:
        with hold_lock(self.path, base, shared=shared):
            if not continues_replacement and self.find_entries([plan := replacement_plan_name(base)]):
                raise unfinished_error(self.full_path(plan))
            yield

    def _list_entries(self) -> dict[str, EntryInfo]:
        entries = {}
        with suppress(FileNotFoundError):
            for entry in list_objects(self.path):
                changed = entry.changed_ns // _NS_PER_SECOND * _NS_PER_SECOND
                entries[entry.name] = EntryInfo(entry.size, changed, "a folder" if entry.is_folder else "")
        return entries


def remote_md5(address: str) -> str | None:
    """Return the MD5 of an object if its ETag is an MD5, else None."""
    try:
        return etag_md5({"ETag": objects.open_remote(address).version})
    except FileNotFoundError:
        return None


def _put_verified(address: str, data: bytes) -> None:
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()

    def put_and_check() -> None:
        stored_md5 = etag_md5({"ETag": put_object(address, data, use_storage_class=True)})
        if stored_md5 != md5 and read_object(address, lambda size: size == len(data))[0] != data:
            raise retry.TransientError("the store's copy differs from the data sent")

    retry.with_retries(address, put_and_check)


class StagedObject(StagedFile):
    """A new object of unknown size. Its bytes are first written to an unnamed local file."""

    def __init__(self, folder: RemoteFolder, name: str) -> None:
        from tempfile import TemporaryFile

        self._folder, self._name, self.path = folder, name, ""
        self._final_path, self._make_error = "a temporary file", _temporary_file_error
        with write_errors(self._final_path, _temporary_file_error), TemporaryFile() as file:
            self._fd = os.dup(file.fileno())

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def sync(self) -> None:
        pass

    def finish(self, _mtime_ns: int | None = None) -> DurableFile:
        check_held(self._folder.path)
        upload(self._folder.written_path(self._name), self.size, self._copy_to)
        self.abandon()
        return self._folder.written_file(self._name)

    def _copy_to(self, sink: Sink) -> None:
        os.lseek(self._fd, 0, os.SEEK_SET)
        for block in files.LocalFile(self._fd).blocks(memoryview(bytearray(BLOCK_BYTES))):
            sink.write(block)


def _temporary_file_error(name: str, error: OSError) -> OutputFailed:
    from tempfile import gettempdir

    found = f"cannot write {name}: {os_error_text(error)}"
    remedy = "Set TMPDIR to a folder with space for one shard per worker, or for a plan file."
    return OutputFailed(gettempdir(), found, remedy=remedy)
