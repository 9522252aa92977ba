"""An object that is read span by span, mostly in its order: what follows is asked for while what came is worked on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.storage.remote.blob import Blob
from shardtool.storage.remote.together import requests
from shardtool.storage.remote.whole import ObjectFact, version_number

if TYPE_CHECKING:
    from concurrent.futures import Future

_LEAST, _MOST = 2**16, 2**21  # bytes of a request: more and more while spans follow each other
_NEAR = 2**16  # bytes between two spans that follow each other


class ObjectSpans:
    """An object that must stay as the plan saw it; see `storage.reading.SpanSource`.

    Raises:
        OSError: It is not there.
        ShardError: A store or a server cannot be asked.
    """

    def __init__(self, address: str) -> None:
        self._blob = Blob(address)
        self._start, self._window, self._size = 0, b"", 0
        self._next: tuple[int, Future[bytes]] | None = None

    def fact(self) -> ObjectFact:
        """Return what the server said of it: it fails to be read once that has changed."""
        return ObjectFact(self._blob.size, version_number(self._blob.version))

    def read(self, into: memoryview, offset: int) -> int:
        """Fill `into` from `offset` on; return how much there was.

        Raises:
            OSError: It is another one by now, or it is gone.
            ShardError: A store or a server cannot be asked.
        """
        done = 0
        while done < len(into) and offset + done < self._blob.size:
            at = offset + done - self._start
            if not 0 <= at < len(self._window):
                self._enter(offset + done, len(into) - done)
                at = 0
            some = self._window[at : at + len(into) - done]
            into[done : done + len(some)] = some
            done += len(some)
        return done

    def read_parts(self, parts: list[memoryview], offset: int, total: int) -> int:
        """Fill `parts`, of `total` bytes, one after the other from `offset` on; return how much there was.

        Raises:
            OSError: It is another one by now, or it is gone.
            ShardError: A store or a server cannot be asked.
        """
        done = 0
        for part in parts:
            done += self.read(part, offset + done)
        return min(done, total)

    def expect_random(self) -> None:
        """Do nothing: of a span that follows no other, little more is read than is asked for."""

    def close(self) -> None:
        """Ask for no more."""
        if self._next is not None:
            self._next[1].cancel()

    def _enter(self, offset: int, wanted: int) -> None:
        """Put the bytes from `offset` on into the window, and ask for those behind where spans follow each other."""
        follows = 0 <= offset - self._start - len(self._window) <= _NEAR and bool(self._window)
        self._size = min(_MOST, 2 * self._size) if follows else _LEAST
        asked, self._next = self._next, None
        if asked is not None and asked[0] == offset:
            self._window = asked[1].result()
        else:
            self._window = self._blob.read(offset, max(self._size, min(wanted, _MOST)))
        self._start = offset
        end = offset + len(self._window)
        if follows and end < self._blob.size:
            self._next = end, requests().submit(self._blob.read, end, self._size)
