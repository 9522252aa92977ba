"""Write a single output file to a local path or an address."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from io import RawIOBase
from typing import IO, TYPE_CHECKING

from shardtool.storage import files, paths, remote
from shardtool.storage.file_system import check_local_name
from shardtool.storage.folders import open_folder
from shardtool.storage.remote.address import is_url, refuse_mistyped_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

    from shardtool.storage.staging import StagedFile


class TargetFile(RawIOBase):
    """A file object for other libraries. After a failed write, later writes are ignored."""

    def __init__(self, file: StagedFile) -> None:
        self._file, self._failed = file, False

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data)
        if not self._failed:
            self._failed = True
            self._file.write(view)
            self._failed = False
        return view.nbytes

    def tell(self) -> int:
        return self._file.size

    def written(self) -> IO[bytes]:
        """Return a reader of the written bytes, which shares this file's position. Close the reader before writing."""
        return os.fdopen(os.dup(self._file.fileno()), "rb")


@contextmanager
def create_target(path: str) -> Iterator[TargetFile]:
    """Create an output file. Yield a file object, and publish the file if the `with` block succeeds."""
    folder = open_folder(paths.folder_of(path))
    folder.create()
    with folder.stage(paths.base_name(path)) as file:
        yield TargetFile(file)
        folder.publish(file.finish())


def write_target(path: str, data: bytes) -> None:
    """Write a file to a local path or an address."""
    with create_target(path) as file:
        file.write(data)


def open_mappable(path: str, magic: bytes) -> IO[bytes]:
    """Return a local file that can be memory-mapped. An object is first copied to a temporary file.

    If the object does not start with `magic`, raise `OSError` before reading the rest.
    """
    if not is_url(path):
        refuse_mistyped_address(path)
        return os.fdopen(files.open_plain(path)[0], "rb")
    folder, name = remote.remote_folder.RemoteFolder(paths.folder_of(path)), paths.base_name(path)
    with remote.remote_folder.StagedObject(folder, name) as file, files.files_at(path).open(path) as source:
        for block in source.blocks(memoryview(b"")):
            if not file.size and block[: len(magic)] != magic[: len(block)]:
                raise OSError(errno.EINVAL, "content does not match the file name", path)
            file.write(block)
        return TargetFile(file).written()


def check_target_name(path: str, example: str) -> None:
    """Raise `InvalidRequest` for a path or address that cannot be an output file."""
    if is_url(path) and paths.base_name(path):
        open_folder(paths.folder_of(path))
    else:
        check_local_name(path, example)
