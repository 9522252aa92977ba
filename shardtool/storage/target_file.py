"""Write one file that the user named, at a path or an address."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from io import RawIOBase
from typing import IO, TYPE_CHECKING

from shardtool.storage import files, paths
from shardtool.storage.file_system import check_local_name
from shardtool.storage.folders import open_folder
from shardtool.storage.remote.address import (
    is_url,
    refuse_near_url,
)
from shardtool.storage.remote_folder import RemoteFolder, StagedObject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

    from shardtool.storage.staging import StagedFile


class TargetFile(RawIOBase):
    """A file being written, as libraries want one; once it could not be written, nothing more is."""

    def __init__(self, file: StagedFile) -> None:
        self._file, self._failed = file, False

    def writable(self) -> bool:
        """Tell that it can be written."""
        return True

    def write(self, data: Buffer, /) -> int:
        """Append bytes.

        Raises:
            OutputFailed: They cannot be written.
        """
        view = memoryview(data)
        if not self._failed:
            self._failed = True
            self._file.write(view)
            self._failed = False
        return view.nbytes

    def tell(self) -> int:
        """Return how many bytes there are."""
        return self._file.size

    def written(self) -> IO[bytes]:
        """Return what was written, to be read; close it before more is written."""
        return os.fdopen(os.dup(self._file.fileno()), "rb")


@contextmanager
def create_target(path: str) -> Iterator[TargetFile]:
    """Give the file that appears at a path or an address, whole, where the block ends without an error.

    Raises:
        OutputFailed: It cannot be written.
        StoreFailed: The store fails time and again, or does not let us.
    """
    folder = open_folder(paths.folder_of(path))
    folder.ready()
    with folder.stage(paths.base_name(path)) as file:
        yield TargetFile(file)
        folder.publish(file.finish())


def write_target(path: str, data: bytes) -> None:
    """Make a file appear at a path or an address, whole.

    Raises:
        OutputFailed: It cannot be written.
        StoreFailed: The store fails time and again, or does not let us.
    """
    with create_target(path) as file:
        file.write(data)


def open_mappable(path: str, begins: bytes) -> IO[bytes]:
    """Return a plain file as one of this machine: of an object, a temporary file without a name with its bytes.

    Args:
        path: Where it is.
        begins: How an object must begin, or no more of it is fetched.

    Raises:
        InvalidRequest: It is a path that looks like a torn address.
        OSError: It cannot be opened or read, is no plain file, or does not begin so.
        OutputFailed: There is no room for it.
        ShardError: The machine, a store or a server fails.
    """
    if not is_url(path):
        refuse_near_url(path)
        return os.fdopen(files.open_plain(path)[0], "rb")
    folder, name = RemoteFolder(paths.folder_of(path)), paths.base_name(path)
    with StagedObject(folder, name) as file, files.open_file(path) as source:
        for block in source.blocks(memoryview(b"")):  # read in order, which servers without ranges can do, too
            if not file.size and block[: len(begins)] != begins[: len(block)]:
                raise OSError(errno.EINVAL, "not what its name says", path)
            file.write(block)
        return TargetFile(file).written()


def check_target_name(path: str, example: str) -> None:
    """Refuse what is no name of a file here or in a store.

    Raises:
        InvalidRequest: It is such.
    """
    if is_url(path) and paths.base_name(path):
        open_folder(paths.folder_of(path))  # which refuses where nobody can write
    else:
        check_local_name(path, example)
