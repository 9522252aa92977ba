"""An object as a file that is read at any place, for libraries that want one: pyarrow, zipfile."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from shardtool.storage.remote.blob import Blob


class BlobFile(io.RawIOBase):
    """An object; each read is a request.

    Args:
        blob: The object.
    """

    def __init__(self, blob: Blob) -> None:
        self._blob, self._at = blob, 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it can be read at any place."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a place; return it."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._blob.size}[whence]
        return self._at

    def readinto(self, into: Buffer, /) -> int:
        """Fill `into`; return how much there was.

        Raises:
            OSError: It is another object by now, or it is gone.
            ShardError: The server refuses, or fails.
        """
        got = self._blob.read_into(memoryview(into).cast("B"), self._at)
        self._at += got
        return got
