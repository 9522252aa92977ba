"""An object read from its start to its end: a thread asks for what comes next while this one works with what came."""

from __future__ import annotations

import io
import queue
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardtool.storage.remote.blob import Blob

_HELD = 16  # pieces, of 1 MiB at most, that wait to be taken


class Ahead:
    """The bytes of an object in order, some MB ahead, by one request where nothing fails; `close` it.

    Args:
        blob: The object.
    """

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(_HELD)
        self._stopped, self._ended = False, False
        self._piece = memoryview(b"")
        self._thread: Thread | None = None

    def read_into(self, view: memoryview) -> int:
        """Fill `view` with what comes next; return how much there was: less only at the end.

        Raises:
            OSError: It is another one by now, or it is gone.
            AccessRefused: We may not read it any more.
            StoreFailed: The server fails time and again.
        """
        done = 0
        while done < len(view) and (self._piece or self._next()):
            some = self._piece[: len(view) - done]
            view[done : done + len(some)] = some
            self._piece = self._piece[len(some) :]
            done += len(some)
        return done

    def close(self) -> None:
        """Ask for no more."""
        self._stopped = True
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        if self._thread is not None:
            self._thread.join()

    def _next(self) -> bool:
        if self._ended:
            return False
        if self._thread is None:
            self._thread = Thread(target=self._fetch, name="shardtool-ahead", daemon=True)
            self._thread.start()
        got = self._queue.get()
        self._ended = not isinstance(got, bytes)
        if isinstance(got, BaseException):
            raise got
        self._piece = memoryview(got or b"")
        return got is not None

    def _fetch(self) -> None:
        try:
            for piece in self._blob.pieces():
                if not self._put(piece):
                    return
        except BaseException as error:  # noqa: BLE001 - raised by the thread that reads
            self._put(error)
        else:
            self._put(None)

    def _put(self, what: bytes | BaseException | None) -> bool:
        """Hand it over; return False where nothing is wanted any more."""
        while not self._stopped:
            with suppress(queue.Full):
                self._queue.put(what, timeout=0.1)
                return True
        return False


class AheadFile(io.RawIOBase):
    """The same as a file of Python's, for those who unpack it."""

    def __init__(self, blob: Blob) -> None:
        super().__init__()
        self._ahead = Ahead(blob)

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        """Fill a buffer with what comes next."""
        with memoryview(buffer) as view:
            return self._ahead.read_into(view.cast("B"))

    def close(self) -> None:
        """Ask for no more."""
        if not self.closed:
            self._ahead.close()
        super().close()
