"""What lies at a path or at an address, by one door: a file system, a store, the web, or what fsspec reads.

Here it is decided what a text means, and nowhere above. Names are texts: `join`, `folder_of` and `base_name` take them
apart and put them together, by the rules of what they are. The paths of a source's files are bytes, as those of file
systems are: what they count from (`source_root`), and a path behind it.

What is open for reading is a `LocalFile` or a `RemoteFile`. A local one is opened so that no FIFO or device can make us
wait; what is there may be hostile, so that callers choose whether the last link is followed: those of datasets are, for
stores of content (Hugging Face's cache, DVC, git-annex) hand shards out as links. `read_file`, one call a source file,
is a hot path.
"""

from __future__ import annotations

import errno
import io
import os
import queue
import stat
import threading
from contextlib import AbstractContextManager, suppress
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from shardtool.errors import AccessRefused, InvalidRequest, machine_reads, raise_if_machines
from shardtool.fingerprint import crc32c
from shardtool.storage.remote import address, blob, stores
from shardtool.storage.remote.address import is_url, is_web, parse_address, refuse_near_url, shown, use_headers
from shardtool.storage.remote.blob import Blob, ObjectFact, called, open_blob, requests, together
from shardtool.storage.remote.retry import RETRY_FOR, SLICE_S, waited
from shardtool.storage.remote.stores import as_source, use_anonymous, use_endpoint, use_store_options
from shardtool.values import BLOCK, to_bytes, to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from typing_extensions import Buffer

    FileFact = os.stat_result | ObjectFact

_MAX_COMPARED_NAMES = 1000  # of a folder, to find one that is similar to a missing name

__all__ = [  # as they are
    "as_source", "called", "is_url", "is_web", "open_blob", "parse_address", "refuse_near_url", "together",
    "use_anonymous", "use_endpoint", "use_headers", "use_store_options",
]  # fmt: skip

OF_OPTIONS = (stores.ENDPOINT, stores.ANONYMOUS, stores.STORE_OPTIONS, RETRY_FOR)  # variables that they set; no secrets
Item = TypeVar("Item")
Result = TypeVar("Result")
_FEW = 4  # files that are asked for one by one, and not by a listing
_LARGE = 2**25
READ_FOLLOWING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOCTTY", 0)
READ_PLAIN = READ_FOLLOWING | os.O_NOFOLLOW
PARTS = 1024  # that one system call can fill: IOV_MAX
_CLOSE_S = 1.0  # a stalled server keeps the thread for longer; it ends by itself
_HELD = 16  # pieces, of 1 MiB at most, that wait to be taken
_LEAST, _MOST = 2**16, 2**21  # bytes of a request: more and more while spans follow each other
_NEAR = 2**16  # bytes between two spans that follow each other
_MOST_WHOLE = 2**30  # bytes that are held, of an object that its server gives whole only

MAX_READS = 3  # of a file whose ctime changes during each of them
_open, _readv, _fstat, _close = os.open, os.readv, os.fstat, os.close


# Names.


def join(folder: str, name: str) -> str:
    """Return the path or address of `name`, a plain one, in a folder."""
    return address.join(folder, name) if is_url(folder) else os.path.join(folder, name)


def folder_of(path: str) -> str:
    """Return the folder that something lies in; "" is the current one."""
    return address.split(path)[0] if is_url(path) else os.path.dirname(path)


def base_name(path: str) -> str:
    """Return the plain name of something in its folder."""
    return address.split(path)[1] if is_url(path) else os.path.basename(path)


def same_place(one: str, other: str) -> bool:
    """Tell whether two texts mean one folder."""
    return real_path(one) == real_path(other)


def real_path(path: str) -> str:
    """Return what is equal for two texts that mean one file or folder: where links lead, or the address itself."""
    return path.rstrip("/") if is_url(path) else os.path.realpath(path)


def source_root(folder: str, *, needed: bool = False) -> bytes:
    """Return what paths of a source's files count from: put before a path, it gives what `read_file` reads.

    Of a folder or a prefix it ends in a slash. An address of the web may end in a query, and has its names encoded: so
    what counts from there stands behind a `#`, which ends such an address.

    Args:
        folder: A folder, or an address.
        needed: Whether a folder of the file system must be there.

    Raises:
        InvalidRequest: It must, and is not.
    """
    if needed and not is_url(folder) and not os.path.isdir(folder):
        found = "no folder" if os.path.exists(folder) else "no such file or folder"
        raise InvalidRequest(folder, found, expected="a folder of samples")
    root = to_bytes(folder)
    return root + b"#" if is_web(folder) else root.rstrip(b"/") + b"/"


def similar_path(path: str) -> str:
    """Return `Did you mean PATH?` for a missing local path with a similar name next to it; otherwise an empty text."""
    from difflib import get_close_matches

    if is_url(path):
        return ""
    rest, missing = "", path.rstrip("/")
    while missing and not os.path.lexists(parent := os.path.dirname(missing) or "."):
        missing, rest = parent, os.path.join(os.path.basename(missing), rest)
    try:
        with os.scandir(os.path.dirname(missing) or ".") as entries:
            names = [entry.name for entry in islice(entries, _MAX_COMPARED_NAMES)]
    except OSError:
        return ""
    for name in get_close_matches(os.path.basename(missing), names):
        similar = os.path.join(os.path.dirname(missing), name, rest).rstrip("/")
        if os.path.exists(similar):
            return f"Did you mean {similar}?"
    return ""


def identity(root: bytes) -> str:
    """Return what tells a source from any other: of a folder, what its path leads to now; of an address, itself."""
    if is_place(root):
        return to_text(root)
    fact = os.stat(root)
    return f"{fact.st_dev} {fact.st_ino}"


def inside(folder: str, root: bytes) -> bytes | None:
    """Return where an output folder lies below a source: empty, or a path ending in a slash; None: elsewhere."""
    if is_place(root):
        above, below = root, to_bytes(folder).rstrip(b"/") + b"/"
    elif is_url(folder):
        return None
    else:
        above, below = os.path.realpath(root).rstrip(b"/") + b"/", os.path.realpath(os.fsencode(folder or ".")) + b"/"
    return below[len(above) :] if below.startswith(above) else None


def file_stat(path: str) -> os.stat_result:
    """Return what the file system says of what a path leads to.

    Raises:
        OSError: It leads to nothing, or nowhere that we may look.
    """
    return os.stat(path)


def file_fact(path: str | bytes) -> FileFact:
    """Return what the file system says of what a path leads to, or a server of an object.

    Raises:
        OSError: It leads to nothing, or nowhere that we may look.
        ShardError: A store or a server cannot be asked.
    """
    place = to_bytes(path) if isinstance(path, str) else path
    return open_blob(address_of(place)).fact() if is_place(place) else os.stat(path)


def is_file(path: str) -> bool:
    """Tell whether a path or an address leads to a plain file."""
    return plain_size(path) is not None


def is_regular(path: str) -> bool:
    """Return whether a local path is a regular file, and no link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def plain_size(path: str) -> int | None:
    """Return the bytes of the plain file that a path or an address leads to; None where it leads to none.

    Raises:
        ShardError: The machine cannot tell, or a store or a server cannot be asked.
    """
    try:
        if is_url(path):
            return open_blob(path).size
        fact = os.stat(path)
    except (OSError, ValueError) as error:
        if is_url(path) and not isinstance(error, FileNotFoundError):
            raise
        raise_if_machines(error, path)
        return None
    return fact.st_size if stat.S_ISREG(fact.st_mode) else None


def plain_sizes(paths: Iterable[str]) -> list[int | None]:
    """Return the same for many: those in one folder of a store by a listing, others elsewhere at once.

    Raises:
        ShardError: A store or a server cannot be asked.
    """
    paths = list(paths)
    folders = {folder_of(path) for path in paths}
    if len(paths) > _FEW and len(folders) == 1 and is_url(folder := folders.pop()) and not is_web(folder):
        with suppress(AccessRefused):  # who may read may not be allowed to list
            sizes = {one.name: one.size for one in _listed(folder) if not one.is_folder}
            return [sizes.get(base_name(path)) for path in paths]
    return list(for_each(plain_size, paths))


def stored_crc(path: str) -> int | None:
    """Return the CRC-32C of an object as its store says it, without reading it; None: no store says it.

    Raises:
        OSError: It is not there.
        ShardError: A store cannot be asked.
    """
    return blob.stored_crc(path) if is_url(path) else None


def for_each(
    ask: Callable[[Item], Result], items: Iterable[Item], path_of: Callable[[Item], str] = str
) -> Iterator[Result]:
    """Yield what `ask` returns for each item, in order; many are asked for at once where their paths lead elsewhere."""
    items = list(items)
    return together(ask, items) if any(is_url(path_of(one)) for one in items) else map(ask, items)


def dangling(path: str) -> str | None:
    """Return where a link leads that leads to nothing; None: it is no such link."""
    try:
        return None if os.path.exists(path) else os.readlink(path)
    except (OSError, ValueError):
        return None


def is_folder(path: str) -> bool:
    """Tell whether a path leads to a folder, or whether a store has something below an address.

    Raises:
        ShardError: A store cannot be asked.
    """
    return not is_web(path) and bool(list_folder(path)) if is_url(path) else os.path.isdir(path)


def list_folder(folder: str) -> list[str]:
    """Return the names of all that lies directly in a folder, in no order; "" is the current one.

    Raises:
        OSError: It cannot be listed.
        ShardError: The machine has no means to, a store cannot be asked, or it is an address of the web, where nothing
            is listed.
    """
    if is_url(folder):
        return [one.name for one in _listed(folder)]
    try:
        return os.listdir(folder or ".")
    except OSError as error:
        if not isinstance(error, PermissionError):  # one who may read a file need not be allowed to list
            raise_if_machines(error, folder or ".")
        raise


def names_in(folder: str, *, needed: bool = False) -> list[str]:
    """Return the sorted names of all that lies in a folder; none where it cannot be listed, as on the web.

    Args:
        folder: The folder.
        needed: Nothing can be said without them: a store that does not let us list is an error.

    Raises:
        ShardError: A store cannot be asked.
    """
    try:
        return [] if is_web(folder) else sorted(list_folder(folder))
    except OSError:
        if is_url(folder):
            raise
    except AccessRefused:
        if needed:
            raise
    return []


def folders_in(folder: str) -> list[str]:
    """Return the names of the folders in a folder, in no order; not of links.

    Raises:
        OSError: It cannot be listed.
        ShardError: A store cannot be asked.
    """
    if is_url(folder):
        return [one.name for one in _listed(folder) if one.is_folder]
    return [one.name for one in entries_in(folder or ".") if one.is_dir(follow_symlinks=False)]


def entries_in(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield what lies in a folder of the file system, which may be millions of files, no further than it is asked for.

    Raises:
        OSError: It cannot be listed.
    """
    with os.scandir(folder) as entries:
        yield from entries


def objects_below(folder: str) -> Iterator[stores.BucketEntry]:
    """Yield the objects below an address, at any depth, in the store's order; their keys count from there.

    Folders are none, but an empty object that stands for one is there, without the slash at its end.

    Raises:
        ShardError: The store cannot be asked, or it is an address of the web, where nothing is listed.
    """
    above = len(parse_address(folder).key.rstrip("/"))
    for one in _listed(folder, below=True):
        if path := one.key[above:].lstrip("/"):
            yield one._replace(key=path)


def _listed(folder: str, *, below: bool = False) -> Iterator[stores.BucketEntry]:
    ask = blob.list_other if address.is_hub(folder) or address.is_other(folder) else stores.listed
    return ask(folder, below=below)


def read_small(path: str, limit: int = 2**30, *, ending: bytes = b"", flags: int = READ_FOLLOWING) -> bytes:
    """Return a whole file that must be small and plain.

    Args:
        path: Where it is.
        limit: Bytes that it may have.
        ending: How a large one must end, or none of it is read: large files that hold nothing are cheap to make.
        flags: Whether a link is followed.

    Raises:
        OSError: It cannot be read, or is too large.
        ShardError: The machine, a store or a server fails.
    """
    where = shown(path) if is_url(path) else path

    def check(size: int, read_end: Callable[[], bytes]) -> None:
        if size > limit:
            raise OSError(errno.EFBIG, f"{size:,} bytes, too large", where)
        if ending and size > _LARGE and read_end() != ending:
            raise OSError(errno.EINVAL, "not what its name says", where)

    if is_url(path):
        return blob.read_whole(path, lambda size: check(size, lambda: blob.read_end(path, len(ending))))[0]
    with open_file(path, flags) as file:
        size = file.fact().st_size
        check(size, lambda: file.read(size - len(ending), len(ending)))
        return file.read(0, size)


def read_beside(path: str) -> bytes | None:
    """Return a small file that may be there; None where it cannot be read, or a store says that we may not.

    That it says also of what is not there, to those who may read and not list.

    Raises:
        ShardError: A store or a server fails.
    """
    try:
        return read_small(path)
    except (OSError, AccessRefused):
        return None


def read_head(path: str, limit: int, flags: int = READ_FOLLOWING) -> tuple[bytes, int]:
    """Return the first bytes of a plain file, and how many it has.

    Raises:
        OSError: It cannot be read.
        ShardError: The machine, a store or a server fails.
    """
    with open_file(path, flags) as file:
        return file.read(0, limit), file.fact().st_size


def read_tail(path: str, limit: int) -> bytes:
    """Return the last bytes of a plain file.

    Raises:
        OSError: It cannot be read.
        ShardError: The machine, a store or a server fails.
    """
    if is_url(path):
        return blob.read_end(path, limit)
    with open_file(path) as file:
        return file.read(max(0, file.fact().st_size - limit), limit)


# Files that are open for reading.


class LocalFile(AbstractContextManager["LocalFile"]):
    """A file of the file system; `close` it.

    Args:
        fd: Its descriptor.

    Attributes:
        window: Bytes that are best read at once where one place follows the other.
        hop: Bytes that are best read at a place that lies far from the last one.
        near: Bytes between two places that are read rather than passed over.
    """

    window, hop, near = 2**20, 2**12, 2**16

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __exit__(self, *_: object) -> None:
        self.close()

    def fact(self) -> os.stat_result:
        """Return what fstat says of it."""
        return _fstat(self._fd)

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on: fewer only at the end of the file.

        Raises:
            OSError: It cannot be read.
        """
        found = os.pread(self._fd, length, offset)
        while len(found) < length and (more := os.pread(self._fd, length - len(found), offset + len(found))):
            found += more  # a network file system may return less
        return found

    def read_into(self, into: memoryview, offset: int) -> int:
        """Fill `into` from `offset` on; return how much there was: less only at the end of the file.

        Raises:
            OSError: It cannot be read.
        """
        total = len(into)
        done = os.preadv(self._fd, (into,), offset)
        while done < total and (got := os.preadv(self._fd, (into[done:],), offset + done)):
            done += got
        return done

    def read_parts(self, parts: list[memoryview], offset: int, total: int) -> int:
        """Fill `parts`, of `total` bytes, one after the other from `offset` on; return how much there was.

        Args:
            parts: `PARTS` at most.
            offset: Where to start in the file.
            total: What `parts` hold together.

        Raises:
            OSError: It cannot be read.
        """
        done = os.preadv(self._fd, parts, offset)
        if done == total or not done:
            return done
        before = 0  # a network file system may return less, and no system call returns more than 2 GiB
        for part in parts:
            missing = part[max(0, done - before) :]
            before += len(part)
            done += self.read_into(missing, offset + done)
        return done

    def blocks(self, into: memoryview) -> Iterator[memoryview]:
        """Yield what is behind the last block, in `into`, which each block fills anew; of what is no plain file, none.

        Raises:
            OSError: It cannot be read.
        """
        if stat.S_ISREG(self.fact().st_mode):
            while got := _readv(self._fd, (into,)):
                yield into[:got]

    def stream(self) -> io.BufferedReader:
        """Return it as a file of Python's that is read from its start on, and that must be closed, too."""
        return os.fdopen(os.dup(self._fd), "rb")

    def expect_random(self) -> None:
        """Ask the system to read nothing ahead."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def close(self) -> None:
        """Give the descriptor back."""
        _close(self._fd)


class RemoteFile(AbstractContextManager["RemoteFile"]):
    """An object, as a file; `close` it. What `stream` gives is read ahead, and so are spans that follow each other.

    It must stay as it was when this was made: it fails to be read once it has changed.

    Args:
        address: Where it is.

    Attributes:
        window: As those of `LocalFile`.
        hop: These too.
        near: And these.

    Raises:
        OSError: It is not there.
        ShardError: A store or a server cannot be asked.
    """

    window, hop, near = 2**22, 2**16, 2**20

    def __init__(self, address: str) -> None:
        self._blob = open_blob(address)
        self._window, self._start, self._size = b"", 0, 0  # what was read last, where, and by how much
        self._asked: tuple[int, Future[bytes]] | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def fact(self) -> ObjectFact:
        """Return what the server said of it."""
        return self._blob.fact()

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on: fewer only at the end of the object."""
        return self._blob.read(offset, length)

    def read_into(self, into: memoryview, offset: int) -> int:
        """Fill `into` from `offset` on, best where spans follow each other; return how much there was."""
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
        """Fill `parts`, of `total` bytes, one after the other from `offset` on; return how much there was."""
        done = 0
        for part in parts:
            done += self.read_into(part, offset + done)
        return min(done, total)

    def blocks(self, _into: memoryview) -> Iterator[memoryview]:
        """Yield all of it, checked at the end against what the store says of it; see `Blob.checked_pieces`."""
        return map(memoryview, self._blob.checked_pieces())

    def stream(self) -> io.BufferedReader:
        """Return it as a file of Python's that is read from its start on, and that must be closed, too."""
        return io.BufferedReader(Ahead(self._blob), self.window)

    def expect_random(self) -> None:
        """Do nothing: of a span that follows no other, little more is read than is asked for."""

    def close(self) -> None:
        """Ask for no more."""
        if self._asked is not None:
            self._asked[1].cancel()

    def _enter(self, offset: int, wanted: int) -> None:
        """Put the bytes from `offset` on into the window, and ask for those behind where spans follow each other."""
        follows = 0 <= offset - self._start - len(self._window) <= _NEAR and bool(self._window)
        self._size = min(_MOST, 2 * self._size) if follows else _LEAST
        asked, self._asked = self._asked, None
        if asked is not None and asked[0] == offset:
            self._window = waited(asked[1]).result()
        else:
            self._window = self._blob.read(offset, max(self._size, min(wanted, _MOST)))
        self._start = offset
        end = offset + len(self._window)
        if follows and end < self._blob.size:
            self._asked = end, requests().submit(self._blob.read, end, self._size)


File = LocalFile | RemoteFile


class Ahead(io.RawIOBase):
    """The bytes of an object in order, some MB ahead, by one request where nothing fails; `close` it.

    Args:
        blob: The object.
    """

    def __init__(self, blob: Blob) -> None:
        super().__init__()
        self._blob, self._piece = blob, memoryview(b"")
        self._queue: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()
        self._room = threading.Semaphore(_HELD)
        self._stopped, self._ended = False, False
        self._thread: threading.Thread | None = None

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, into: Buffer, /) -> int:
        """Fill `into` with what comes next; return how much there was: less only at the end.

        Raises:
            OSError: It is another one by now, or it is gone.
            AccessRefused: We may not read it any more.
            StoreFailed: The server fails time and again.
        """
        view, done = memoryview(into).cast("B"), 0
        while done < len(view) and (self._piece or self._next()):
            some = self._piece[: len(view) - done]
            view[done : done + len(some)] = some
            self._piece = self._piece[len(some) :]
            done += len(some)
        return done

    def close(self) -> None:
        """Ask for no more."""
        self._stopped = True
        self._room.release()  # a thread that waits for it looks then whether it is stopped
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        super().close()

    def _next(self) -> bool:
        if self._ended:
            return False
        if self._thread is None:  # a daemon: a server that stalls holds up no process that wants to end
            self._thread = threading.Thread(target=self._fetch, name="shardtool-ahead", daemon=True)
            self._thread.start()
        got: bytes | BaseException | None = None
        while got is None:
            with suppress(queue.Empty):
                got = self._queue.get(timeout=SLICE_S)
        self._room.release()
        self._ended = not isinstance(got, bytes) or not got
        if isinstance(got, BaseException):
            raise got
        self._piece = memoryview(got)
        return bool(got)

    def _fetch(self) -> None:
        """Hand over all pieces, and then nothing, or an error."""
        try:
            for piece in self._blob.pieces():
                self._room.acquire()
                if self._stopped:
                    return
                self._queue.put(piece)
            self._queue.put(b"")
        except BaseException as error:  # noqa: BLE001 - raised by the thread that reads
            self._queue.put(error)


class _ObjectFile(io.RawIOBase):
    """An object as a file that is read at any place, for libraries that want one: each read is a request."""

    def __init__(self, blob: Blob) -> None:
        self._blob, self._at = blob, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._blob.size}[whence]
        return self._at

    def readinto(self, into: Buffer, /) -> int:
        view = memoryview(into).cast("B")
        data = self._blob.read(self._at, len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def is_place(path: bytes) -> bool:
    """Tell whether the path of a source's file is an address."""
    return b"://" in path and is_url(to_text(path))


def address_of(path: bytes) -> str:
    """Return the address of a source's file: see `source_root`."""
    text = to_text(path)
    folder, mark, below = text.partition("#") if is_web(text) else (text, "", "")
    return address.join(folder, below) if mark else folder


def open_object(address: str) -> BinaryIO:
    """Return an object at an address as a file of Python's; what is read of it is asked for then, some at a time.

    Raises:
        OSError: It is not there.
        ShardError: It cannot be read.
    """
    blob = open_blob(address)
    if not blob.ranges and blob.size <= _MOST_WHOLE:
        return io.BytesIO(blob.read(0, blob.size))
    return io.BufferedReader(_ObjectFile(blob), BLOCK)


def open_plain(path: str, flags: int = READ_FOLLOWING) -> tuple[int, os.stat_result]:
    """Return the descriptor of a plain file of the file system, and what fstat says of it.

    Raises:
        OSError: It cannot be opened, or is no plain file.
        StoreFailed: The machine is to blame.
    """
    with machine_reads(path):
        fd = _open(path, flags)
    fact = _fstat(fd)
    if stat.S_ISREG(fact.st_mode):
        return fd, fact
    _close(fd)
    raise OSError(errno.EINVAL, "no plain file", path)


def open_file(path: str, flags: int = READ_FOLLOWING) -> File:
    """Return a plain file, or an object, to be read at any place.

    Raises:
        OSError: It cannot be opened, or is no plain file.
        ShardError: The machine, a store or a server fails.
    """
    return RemoteFile(path) if is_url(path) else LocalFile(open_plain(path, flags)[0])


def open_source(path: bytes, flags: int = READ_FOLLOWING) -> File:
    """Return a source's file to be read at any place; what it is, and whether it is what was listed, its fact tells.

    Raises:
        OSError: It cannot be opened.
        ShardError: A store or a server cannot be asked.
    """
    return RemoteFile(address_of(path)) if is_place(path) else LocalFile(_open(path, flags))


def read_file(path: bytes, into: memoryview, flags: int) -> tuple[int, FileFact]:
    """Fill `into` from the start of a source's file; return how much there was, and what is said of it after that.

    A hot path: one call a source file. The caller compares both with what was planned, so a file
    of another size, or one that changed while it was read, cannot pass.

    Raises:
        OSError: It cannot be opened or read.
        ShardError: A store or a server cannot be asked.
    """
    if b"://" in path and is_place(path):
        data, said = blob.read_whole(address_of(path), lambda size: size == len(into))
        into[: len(data)] = data
        return len(data), said
    fd = _open(path, flags)
    try:
        got = _readv(fd, (into,))
        while got < len(into) and (more := _readv(fd, (into[got:],))):  # a network file system may return less
            got += more
        return got, _fstat(fd)
    finally:
        _close(fd)


def read_unchanged(path: bytes, into: memoryview, flags: int) -> tuple[int, FileFact]:
    """Read a source file as `read_file` does, again until its ctime is the same before and after the read.

    Raises:
        OSError: The file cannot be opened or read, or changes during every read.
        ShardError: A store or a server cannot be asked.
    """
    if is_place(path):
        return read_file(path, into, flags)
    for _ in range(MAX_READS):
        before = os.stat(path)
        got, fact = read_file(path, into, flags)
        if fact.st_ctime_ns == before.st_ctime_ns:
            return got, fact
    raise OSError(errno.ESTALE, "changed while it was read", path)


def blocks_of(path: str, flags: int = READ_FOLLOWING) -> Iterator[memoryview | bytes]:
    """Yield the bytes of a plain file, or of an object; of a local one in a buffer that each block fills anew.

    Raises:
        OSError: It cannot be opened or read, or is no plain file.
        ShardError: The machine, a store or a server fails.
    """
    if is_url(path):
        yield from open_blob(path).pieces()
        return
    with machine_reads(path), open_file(path, flags) as file:
        yield from file.blocks(memoryview(bytearray(BLOCK)))


def file_crc(path: str, took: Callable[[int], object] = lambda _: None) -> tuple[int, int]:
    """Return the size and the CRC-32C of a plain file that no link leads to, or of an object, which is read for that.

    Args:
        path: Where it is.
        took: Called with the bytes of each block.

    Raises:
        OSError: It cannot be opened or read, or is no plain file.
        ShardError: The machine, a store or a server fails.
    """
    size = crc = 0
    for block in blocks_of(path, READ_PLAIN):
        size, crc = size + len(block), crc32c(block, crc)
        took(len(block))
    return size, crc
