"""What lies under a prefix of a store, as a folder that is written to.

There are no temporary names: a shard is one PUT of a worker, visible when it ends, and small files are held until they
are published. Whoever publishes must hold the lock.
"""

from __future__ import annotations

import errno
import hashlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from shardtool.errors import OutputFailed, reason
from shardtool.storage.remote import address
from shardtool.storage.remote.blob import Blob, object_blocks, read_whole
from shardtool.storage.remote.client import stored_md5
from shardtool.storage.remote.failures import writing
from shardtool.storage.remote.lock import check_held, locked
from shardtool.storage.remote.objects import delete, listed, put
from shardtool.storage.remote.retry import PassingFailure, retried
from shardtool.storage.remote.upload import LARGEST, Shorter, upload
from shardtool.storage.staging import DurableFile, FileFact, Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Self

    from shardtool.storage.remote.blob import ObjectFact
    from shardtool.storage.staging import Sink

Made = TypeVar("Made")

_FEW = 4  # files that are asked for one by one, and not by a listing
_SECOND_NS = 10**9
_BLOCK = 2**20
_MOST_READ = 2**30


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """A prefix of a store that is written to. A plain value: it may travel to a worker.

    Attributes:
        path: Its address.
    """

    path: str

    @property
    def hides(self) -> bool:
        """Whether files that are written stay invisible until they are published: no."""
        return False

    @property
    def temporary(self) -> Folder:
        """The folder for temporary files of those who write here."""
        from tempfile import gettempdir

        return Folder(gettempdir())

    def largest(self) -> int:
        """Return how many bytes an object may have at most."""
        return LARGEST

    def ready(self) -> None:
        """Do nothing: a prefix needs not be made."""

    def names(self) -> list[str]:
        """Return the names of all that lies directly under the prefix.

        Raises:
            StoreFailed: It cannot be listed.
        """
        return [*self._listed()]

    def facts(self, names: Iterable[str]) -> dict[str, FileFact]:
        """Return the facts of those of `names` that are there; times are whole seconds of the store's clock.

        No time of ours is whole, so that none of these is ever taken for one: a store's clock proves nothing.

        Raises:
            StoreFailed: The store cannot be asked.
        """
        wanted = [*names]
        if len(wanted) > _FEW:
            there = self._listed()
            return {name: there[name] for name in wanted if name in there}
        found = {}
        for name in wanted:
            with suppress(FileNotFoundError):
                found[name] = FileFact(Blob(self.full_path(name)).size, 0)
        return found

    def stage(self, name: str) -> StagedObject:
        """Start a small file that will be called `name`."""
        return StagedObject(name)

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
            with suppress(Shorter):
                return upload(where, size, fill), DurableFile(name, "")
        with _TemporaryFile() as file:
            made = fill(file)
            upload(where, file.size, file.copy)
            return made, DurableFile(name, "")

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
                with writing(self.full_path(one.name)):
                    _put(self.full_path(one.name), one.data)

    def set_time(self, name: str, mtime_ns: int) -> None:
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
            delete(self.path, [address.parse_address(self.full_path(name)).key for name in names])

    def read(self, name: str) -> bytes:
        """Return a whole object, which must be small.

        Raises:
            OSError: It is not there, or changes while it is read.
            StoreFailed: It cannot be read.
        """
        return read_whole(self.full_path(name), _check_small)

    def read_staged(self, name: str) -> bytes:
        """Return what is published: nothing is hidden here.

        Raises:
            OSError: It is not there.
        """
        return self.read(name)

    def md5(self, name: str) -> str | None:
        """Return the MD5 of an object, as far as the store says it."""
        try:
            return stored_md5({"ETag": Blob(self.full_path(name)).version})
        except FileNotFoundError:
            return None

    def blocks(self, name: str, into: memoryview) -> Iterator[int | ObjectFact]:
        """Read an object block by block; see `object_blocks`."""
        return object_blocks(Blob(self.full_path(name)), into)

    def full_path(self, name: str) -> str:
        """Return the address of `name`."""
        return address.join(self.path, name)

    def free_bytes(self) -> int | None:
        """Return how many more bytes fit: any number."""
        return None

    @contextmanager
    def lock(self, base: str, *, shared: bool = False) -> Iterator[None]:
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
        with locked(self.path, base, shared=shared):
            yield

    def _listed(self) -> dict[str, FileFact]:
        """Return what lies directly under the prefix."""
        found = {}
        with suppress(FileNotFoundError):
            for one in listed(self.path):
                changed = one.changed_ns // _SECOND_NS * _SECOND_NS
                found[one.name] = FileFact(one.size, changed, "a folder" if one.is_folder else "")
        return found


def _check_small(size: int) -> None:
    if size > _MOST_READ:
        raise OSError(errno.EFBIG, f"{size:,} bytes, too large")


def _put(where: str, data: bytes) -> None:
    """Write a small object, and see that the store has it: by its checksum, or where that is another kind, by reading.

    Raises:
        StoreFailed: The store fails time and again, or does not let us.
    """
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()

    def once() -> None:
        if stored_md5({"ETag": put(where, data)}) != md5 and read_whole(where, lambda _size: None) != data:
            raise PassingFailure("the store has other bytes than were sent")

    retried(address.shown(where), once)


class StagedObject:
    """A small file that is held until it is published."""

    def __init__(self, name: str) -> None:
        self._name, self._parts = name, list[bytes]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()

    def write(self, data: memoryview | bytes) -> None:
        """Append `data`."""
        self._parts.append(bytes(data))

    def finish(self) -> DurableFile:
        """Return what was written."""
        return DurableFile(self._name, "", b"".join(self._parts))

    def abandon(self) -> None:
        """Forget what was written."""
        self._parts.clear()


class _TemporaryFile:
    """What a shard of an unknown size is packed into, in a `with` block; it has no name, and ends with the process.

    Attributes:
        size: Its bytes.
    """

    def __init__(self) -> None:
        from tempfile import TemporaryFile

        self.size = 0
        try:
            self._file = TemporaryFile(buffering=0)  # noqa: SIM115 - `close` ends it
        except OSError as error:
            raise _no_room(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: memoryview | bytes) -> None:
        """Append `data`, all of it.

        Raises:
            OutputFailed: The disk is full, or refuses.
        """
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise _no_room(error) from None
        self.size += len(data)

    def copy(self, to: Sink) -> None:
        """Write all of it to another."""
        self._file.seek(0)
        while block := self._file.read(_BLOCK):
            to.write(block)


def _no_room(error: OSError) -> OutputFailed:
    found = f"cannot write a temporary file: {reason(error)}"
    from tempfile import gettempdir

    return OutputFailed(gettempdir(), found, remedy="Set TMPDIR to a folder with room for a shard per worker.")
