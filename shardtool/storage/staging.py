"""Files that are written: in a folder, under a temporary name first, and visible only whole and durable.

A file is *staged*: it lies as `.NAME.part` beside its final name, or as `.NAME~ATTEMPT.part` where several attempts may
write it, and is fsynced. *Publishing* renames it and fsyncs the folder; an object store's would be a multipart upload
and its completion. A `DurableFile` travels between processes: a worker stages, its parent publishes. At the end, what
is written into a tree of folders (`Tree`), and second names by which files can be brought back (`KeptFiles`).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, TypeVar

from shardtool.errors import InvalidRequest, OutputExists, OutputFailed, reason
from shardtool.pattern import replacing_name
from shardtool.storage.places import READ_PLAIN, LocalFile, is_file, list_folder, read_head, read_small, read_tail
from shardtool.storage.remote.address import is_url, refuse_near_url
from shardtool.storage.shared import take_lock, write_all
from shardtool.wording import either, option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


# A temporary file that several processes fill, each at its own places; `Folder.spool` makes it.


def spool_remedy() -> str:
    """Return what to do where temporary files cannot be written."""
    return f"Choose another {option('temp_dir')}, or {option('method', 'gather')}, which needs none."


class SpoolFile:
    """A spool that is open for writing; `close` it.

    Args:
        path: Where it is.

    Raises:
        OutputFailed: It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._folder = os.path.dirname(path)
        with written(self._folder, _spool_failed):
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of `data` at a place.

        Raises:
            OutputFailed: The disk is full, or fails.
        """
        try:  # a hot path: a context manager would take as long as the write
            write_all(self._fd, data, offset)
        except OSError as error:
            raise _spool_failed(self._folder, error) from None

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)


def _spool_failed(folder: str, error: OSError) -> OutputFailed:
    return OutputFailed(folder or ".", f"cannot write a temporary file: {reason(error)}", remedy=spool_remedy())


Made = TypeVar("Made")

_FOLDER = "a folder"
_SPECIAL = {
    stat.S_IFDIR: _FOLDER, stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip
_MOVE = "Choose another name, or move it away."
_SEEN = 2**20  # bytes of a file's beginning and of its end that tell what made it
_STAGED = re.compile(r"\.(.+?)(?:~[0-9a-f]{8})?\.part", re.DOTALL)
_attempt = ""  # sets the temporary names of this process apart from those of other attempts at the same task
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class DurableFile(NamedTuple):
    """A file that is whole and durable, and in a folder not visible yet.

    Attributes:
        name: Its final name.
        token: Where it lies until then; in a store empty.
        data: What a store is to be given, of a small file; None: it has it, or this is a folder.
    """

    name: str
    token: str
    data: bytes | None = None


class FileFact(NamedTuple):
    """What is said of a name.

    Attributes:
        size: A file's bytes.
        mtime_ns: Its modification time in nanoseconds.
        special: What is there that no file takes the place of: `a folder`, `a device`; empty for a file, and for a link
            that leads to one or nowhere, for a new file takes the link's place and leaves what it leads to.
    """

    size: int
    mtime_ns: int
    special: str = ""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder, and no link to one."""
        return self.special == _FOLDER


class Sink(Protocol):
    """Takes the bytes of a file."""

    def write(self, data: memoryview | bytes) -> None:
        """Append `data`, all of it."""


class StagedFile(AbstractContextManager["StagedFile"]):
    """A file being written under its temporary name; `finish` or `abandon` ends it, or a `with` block that fails."""

    _failed: Callable[[str, OSError], OutputExists | OutputFailed]

    def __init__(self, path: str, name: str) -> None:
        self._failed = _failed
        self.path, self._name, self._where = path, name, os.path.join(os.path.dirname(path), name)
        with written(path):
            self._fd = _create(path)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()

    def write(self, data: memoryview | bytes) -> None:
        """Append `data`, all of it.

        Raises:
            OutputFailed: The disk is full, or refuses.
        """
        with written(self._where, self._failed):
            write_all(self._fd, data)

    @property
    def size(self) -> int:
        """Bytes that were written."""
        return os.fstat(self._fd).st_size

    def fileno(self) -> int:
        """Return the descriptor of what was written, which can be read, too."""
        return self._fd

    def sync(self) -> None:
        """Make durable what was written so far; another thread may write meanwhile.

        Raises:
            OutputFailed: The disk refuses.
        """
        with written(self._where):
            os.fdatasync(self._fd)

    def finish(self, mtime_ns: int | None = None) -> DurableFile:
        """Make the file durable; it stays invisible. `mtime_ns` becomes its modification time."""
        with written(self._where):
            if mtime_ns is not None:
                os.utime(self._fd, ns=(mtime_ns, mtime_ns))
            os.fsync(self._fd)
            fd, self._fd = self._fd, -1  # closed twice, it could be another file's by then
            os.close(fd)
        return DurableFile(self._name, self.path)

    def abandon(self) -> None:
        """Remove what was written."""
        fd, self._fd = self._fd, -1
        with suppress(OSError):
            os.close(fd)
        with suppress(OSError):
            os.unlink(self.path)


@dataclass(frozen=True, slots=True)
class Folder:
    """An output folder on a file system. A plain value: it may travel to a worker.

    Attributes:
        path: As the user gave it; "" is the current folder.
        hides: Whether files that are written stay invisible until they are published.
        largest: How many bytes a file may have at most; None: any number.
    """

    path: str
    hides: ClassVar[bool] = True
    largest: ClassVar[int | None] = None

    @property
    def temporary(self) -> Folder:
        """The folder for temporary files of those who write here."""
        return self

    def ready(self) -> None:
        """Make the folder where it is missing, durably, and prove that it is one.

        Raises:
            OutputExists: Something else is in the way.
            OutputFailed: It cannot be made.
        """
        with written(self.path):
            for one in _made_folders(self.path):
                _sync_folder(one.parent)

    def names(self) -> list[str]:
        """Return the names of all that lies in the folder; none where there is no folder.

        Raises:
            OutputFailed: It cannot be listed.
        """
        with written(self.path), suppress(FileNotFoundError, NotADirectoryError):
            return list_folder(self.path)
        return []

    def facts(self, names: Iterable[str]) -> dict[str, FileFact]:
        """Return the facts of those of `names` that are there."""
        found = {}
        for name in names:
            with suppress(OSError):
                fact = os.lstat(self.full_path(name))
                found[name] = FileFact(fact.st_size, fact.st_mtime_ns, _special(self.full_path(name), fact.st_mode))
        return found

    def stage(self, name: str) -> StagedFile:
        """Start a file that will be called `name`.

        Raises:
            OutputExists: Something is called so that no file takes the place of.
            OutputFailed: The folder cannot be written to.
        """
        check_replaceable(self.full_path(name))
        return StagedFile(staged_path(self, name), name)

    def stage_whole(self, name: str, data: bytes) -> DurableFile:
        """Stage a small file.

        Raises:
            OutputExists: Something is called so that no file takes the place of.
            OutputFailed: It cannot be written.
        """
        with self.stage(name) as file:
            file.write(data)
            return file.finish()

    def write(
        self, name: str, fill: Callable[[Sink], Made], _size: int | None, mtime_ns: int, /
    ) -> tuple[Made, DurableFile]:
        """Stage a file; return what `fill`, which writes it, has returned, and the file.

        Args:
            name: Its final name.
            fill: Writes it.
            _size: How many bytes it will have; None: that is not known.
            mtime_ns: What becomes its modification time.

        Raises:
            OutputFailed: It cannot be written.
        """
        with self.stage(name) as file:
            return fill(file), file.finish(mtime_ns)

    def spool(self, name: str, size: int) -> str:
        """Start a temporary file of `size` bytes, and return its path; `discard_staged` removes it.

        Raises:
            OutputFailed: The folder cannot be written to, or may not hold a file so large.
        """
        path = staged_path(self, name)
        with written(self.path, _spool_failed):
            os.close(_create(path))
            os.truncate(path, size)
        return path

    def publish(self, *staged: DurableFile) -> None:
        """Give staged files their final names, each in place of the file that had it, and make that durable.

        Raises:
            OutputExists: Something is called so that no file takes the place of.
            OutputFailed: The file system refuses.
        """
        for file in staged:
            check_replaceable(self.full_path(file.name))
        with written(self.full_path(staged[0].name) if staged else self.path):
            for file in staged:
                os.rename(file.token, self.full_path(file.name))
            _sync_folder(self.path or ".")

    def set_time(self, name: str, mtime_ns: int) -> None:
        """Set the modification time of a published file, where that is allowed."""
        with suppress(OSError):
            os.utime(self.full_path(name), ns=(mtime_ns, mtime_ns), follow_symlinks=False)

    def discard_staged(self, names: Iterable[str]) -> None:
        """Remove what a run has left of the files `names` under temporary names."""
        wanted = {*names}
        with suppress(OutputFailed):  # where nothing can be listed, nothing was staged
            self.discard(*(os.path.basename(one.token) for one in self.staged() if one.name in wanted))

    def discard(self, *names: str) -> None:
        """Remove files where that is possible; a power cut may bring them back."""
        for name in names:
            with suppress(OSError, OutputExists):
                _unlink(self.full_path(name))

    def staged_names(self) -> list[str]:
        """Return the final names of the files that lie here under temporary ones."""
        return [*dict.fromkeys(one.name for one in self.staged())]

    def staged(self) -> list[DurableFile]:
        """Return the files that lie here under temporary names, whole or not."""
        found = {name: _STAGED.fullmatch(name) for name in self.names()}
        return [DurableFile(match[1], self.full_path(name)) for name, match in found.items() if match]

    def remove(self, names: list[str]) -> None:
        """Remove published files, durably; those that are gone already are no error."""
        with written(self.full_path(names[0]) if names else self.path):
            for name in names:
                with suppress(FileNotFoundError):
                    _unlink(self.full_path(name))
            if names:
                _sync_folder(self.path or ".")

    def read(self, name: str) -> bytes:
        """Return a whole file, which must be small.

        Raises:
            OSError: It cannot be read.
        """
        return read_small(self.full_path(name), flags=READ_PLAIN)

    def append(self, name: str, data: bytes) -> None:
        """Append to a file that is there, durably; a kill may leave a part of `data`.

        Raises:
            OutputExists: It is no file.
            OutputFailed: It cannot be written.
        """
        check_replaceable(self.full_path(name))
        with written(self.full_path(name)):
            fd = os.open(self.full_path(name), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                write_all(fd, data)
                os.fsync(fd)
            finally:
                os.close(fd)

    def read_staged(self, name: str) -> bytes:
        """Return a whole staged file, which must be small.

        Raises:
            OSError: It cannot be read.
        """
        return read_small(staged_path(self, name))

    def version(self, name: str) -> str:  # noqa: ARG002 - a file system knows none
        """Return what tells a file from any with other bytes, without reading it; empty: nothing does."""
        return ""

    def md5(self, name: str) -> str | None:  # noqa: ARG002 - a file system knows none
        """Return the MD5 of a file, as far as it is known without reading it; None: it is not."""
        return None

    def full_path(self, name: str) -> str:
        """Return where `name` lies."""
        return os.path.join(self.path, name)

    def shares_space(self, other: str) -> bool:
        """Tell whether what is written to another folder leaves less space here."""
        try:
            return os.stat(self.path or ".").st_dev == os.stat(other or ".").st_dev
        except OSError:
            return False

    def free_bytes(self) -> int:
        """Return how many more bytes fit."""
        with written(self.path):
            fact = os.statvfs(self.path or ".")
        return fact.f_bavail * fact.f_frsize

    @contextmanager
    def lock(
        self, base: str, *, shared: bool = False, finishes: bool = False, what: str = "this dataset"
    ) -> Iterator[None]:
        """Hold the lock of the dataset `base` in this folder; it ends with the process, however that ends.

        Args:
            base: The dataset's name.
            shared: Others may hold it with us, unless they want it alone. The file is left to who does.
            finishes: Whether we end what a run has begun that replaces some of its shards.
            what: What whoever holds it writes, for messages.

        Raises:
            OutputExists: Another run holds it, or has not ended what it began.
        """
        path = self.full_path(f".{base}.lock")
        check_replaceable(path)  # it is removed in the end
        with written(path):
            lock = take_lock(path, shared=shared, create=True)
        if lock is None:
            found = f"another run is writing {what}"
            raise OutputExists(path, found, remedy="Wait for it to end, or write elsewhere.")
        with lock:
            try:
                if not finishes and os.path.lexists(begun := self.full_path(replacing_name(base))):
                    remedy = "Run `shardtool remove` again, as before: it goes on where that was."
                    raise OutputExists(begun, "shards are being replaced by a run that did not end", remedy=remedy)
                yield
            finally:
                if not shared:
                    with suppress(OSError):
                        os.unlink(path)


def local_folder(path: str | os.PathLike[str], remedy: str = "") -> Folder:
    """Return the folder of a file system that `path` means, for what is written nowhere else.

    Args:
        path: Its path.
        remedy: What to do instead, with a URL.

    Raises:
        InvalidRequest: It is a URL, or looks like a torn one, or is no path.
    """
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
        raise InvalidRequest(f"{path!r:.80}", "no path", expected="a local folder")
    if is_url(folder := os.fspath(path)):
        raise InvalidRequest(folder, "a URL", expected="a local folder", remedy=remedy)
    refuse_near_url(folder)
    return Folder(folder)


def named_folder(path: str | os.PathLike[str]) -> Folder:
    """Return the folder that a user names for many files: an empty text, as of a variable of a shell, is no name.

    Raises:
        InvalidRequest: It is none, or as `local_folder` says.
    """
    if path == "":
        raise InvalidRequest("the folder", "''", expected="a local folder; . is the current one")
    return local_folder(path)


def staged_path(folder: Folder, name: str) -> str:
    """Return where a file lies until it is published."""
    return folder.full_path(f".{name}{_attempt}.part")


def set_attempt(token: str) -> None:
    """Give the files that this process stages from now on temporary names of their own.

    A task that runs a second time, while the first attempt still writes somewhere, must not meet its file.

    Args:
        token: Eight digits, hexadecimal; empty: there are no other attempts.
    """
    global _attempt  # noqa: PLW0603 - as the language of messages: of the process
    _attempt = f"~{token}" if token else ""


def check_replaceable(path: str | bytes, folder: int | None = None) -> None:
    """Refuse to put a file in the place of what is none: the rule for all that is written, replaced or removed.

    Args:
        path: The place of the file.
        folder: The descriptor of the folder that it starts from; None: the current one.

    Raises:
        OutputExists: A folder, a device, a FIFO or a socket is there, or a link that leads to one.
    """
    with suppress(OSError, ValueError):  # what cannot be asked, the system refuses to replace
        _refuse(os.fsdecode(path), _special(path, os.lstat(path, dir_fd=folder).st_mode, folder))


def check_facts(full_path: Callable[[str], str], facts: Mapping[str, FileFact]) -> None:
    """Hold the names that a run will write, as far as they are there, to the same rule.

    Args:
        full_path: Returns where a name lies.
        facts: What is said of those that are there.

    Raises:
        OutputExists: One is no file.
    """
    for name in sorted(facts):
        _refuse(full_path(name), facts[name].special)


def _refuse(path: str, special: str) -> None:
    if special:
        raise OutputExists(path, special, expected="a file, or nothing", remedy=_MOVE)


def check_local(path: str, such_as: str) -> None:
    """Refuse what is no name of a file of this machine: an address, a folder, standard input and output.

    Raises:
        InvalidRequest: It is such.
    """
    if is_url(path) or not os.path.basename(path) or path == "-":
        raise InvalidRequest(path or "''", "no name of a file here", expected=f"one such as {such_as}")


def check_target(path: str, *, overwrite: bool, begins: bytes, holds: bytes, cure: str) -> None:
    """Refuse the path, or address, of a file that a user names where something is that may not be replaced.

    Args:
        path: Where the file will be.
        overwrite: Whether it may take the place of one that the same option made, or of an empty one.
        begins: How all files that the option makes begin.
        holds: What they have near their beginning or end.
        cure: The option that replaces one.

    Raises:
        OutputExists: There is something else.
    """
    if is_url(path):
        if not is_file(path):
            return
    else:
        check_replaceable(path)
        if not os.path.lexists(path):
            return
    if not overwrite:
        raise OutputExists(path, "already exists", remedy=f"Choose another name, or {cure}.")
    if os.path.islink(path):
        raise OutputExists(path, "a symbolic link, and no run writes through one", remedy=_MOVE)
    try:
        head, size = read_head(path, _SEEN)
        is_ours = not size or (head.startswith(begins) and holds in head + read_tail(path, _SEEN))
    except OSError as error:
        raise OutputExists(path, f"cannot be read: {reason(error)}", remedy=_MOVE) from None
    if not is_ours:
        raise OutputExists(path, "a file of another kind", expected=f"one that {cure} may replace", remedy=_MOVE)


def _special(path: str | bytes, mode: int, folder: int | None = None) -> str:
    """Return what is at a path that no file takes the place of; empty for a file, or a link to one or nothing."""
    if not stat.S_ISLNK(mode):
        return _SPECIAL.get(stat.S_IFMT(mode), "")
    try:
        found = _SPECIAL.get(stat.S_IFMT(os.stat(path, dir_fd=folder).st_mode))
    except OSError:
        return ""
    return f"a link to {found}" if found else ""


def _unlink(path: str | bytes, folder: int | None = None) -> None:
    check_replaceable(path, folder)
    os.unlink(path, dir_fd=folder)


def _create(path: str) -> int:
    """Return the descriptor of a new file in place of what a killed run may have left."""
    with suppress(FileNotFoundError):
        _unlink(path)
    return os.open(path, _CREATE, 0o666)


def _made_folders(path: str) -> list[Path]:
    """Make a folder, and those that lead to it; return those that were missing.

    Raises:
        OutputExists: Something else is in the way.
        OSError: The system refuses.
    """
    folder = Path(path or ".")
    missing = [one for one in (folder, *folder.parents) if not os.path.isdir(one)]
    for one in filter(os.path.lexists, missing):
        if not os.path.isdir(one):  # another process may have created the folder by now
            raise _no_folder(str(one), os.lstat(one).st_mode)
    os.makedirs(folder, exist_ok=True)
    return missing


def _no_folder(path: str, mode: int) -> OutputExists:
    found = "a symbolic link" if stat.S_ISLNK(mode) else _SPECIAL.get(stat.S_IFMT(mode), "a file")
    return OutputExists(path, found, expected="a folder", remedy="Choose another folder, or move it away.")


def _sync_folder(path: str | Path) -> None:
    fd = os.open(path, _OPEN_FOLDER)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_MORE_ROOM = {errno.ENOSPC: "Make space", errno.EDQUOT: "Raise the quota"}
_REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Choose a folder that you may write to."),
    errno.ENAMETOOLONG: "Choose a shorter name.",
}


def _failed(where: str, error: OSError) -> OutputFailed:
    code, remedy = error.errno or 0, _REMEDIES.get(error.errno or 0, "")
    if code in _MORE_ROOM:
        resume = either(
            f"`create` and `reshard` with {option('if_exists', 'resume')}", "`create --resume` and `reshard --resume`"
        )
        remedy = f"{_MORE_ROOM[code]}, then run the same command again; {resume} keep what is finished."
    elif code == errno.EFBIG:
        smaller = either(option("max_size"), "`create --max-size`")
        remedy = f"Raise the file size limit (ulimit -f), or make smaller shards with {smaller}."
    return OutputFailed(where, f"cannot write: {reason(error)}", remedy=remedy)


@contextmanager
def written(where: str, failed: Callable[[str, OSError], OutputExists | OutputFailed] = _failed) -> Iterator[None]:
    """Say of what the system refuses inside of the block that `where` cannot be written."""
    try:
        yield
    except OSError as error:
        raise failed(where, error) from None


# Files written below a folder and nowhere else, whatever their names say.
#
# A path is walked part by part from the folder's descriptor, and links on the way are not followed.


_IN_THE_WAY = (errno.ENOTDIR, errno.ELOOP, errno.EEXIST, errno.EISDIR)
_NAME_LIMIT = 255  # bytes of a name in a folder
_PATH_LIMIT = 4000
_OPEN_PARENTS = 64
_LEADS_OUT = re.compile(rb"(?:^|[/\0])\.{0,2}(?:[/\0]|$)")  # a part that is empty, `.` or `..`
IfThere = Literal["error", "overwrite", "keep", "finish"]


def are_plain(paths: bytes, longest: int) -> bool:
    """Tell whether `path_problem` finds nothing in any of many paths, with a NUL between each; False: it may.

    Args:
        paths: The paths.
        longest: Bytes of the longest of them.
    """
    return longest <= _NAME_LIMIT and not _LEADS_OUT.search(paths)


def path_problem(path: bytes) -> str:
    """Return what keeps a path from naming a file below a folder; empty: nothing."""
    if _LEADS_OUT.search(path) or b"\0" in path:
        return "no path below a folder"
    too_long = len(path) > _PATH_LIMIT or max(map(len, path.split(b"/"))) > _NAME_LIMIT
    return "too long for a file" if too_long else ""


class Tree:
    """A folder and all below it; `close` it. The folder is made where it is missing: links in its path are the user's.

    Raises:
        OutputExists: Something else is in the way.
        OutputFailed: It cannot be made.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        with written(folder, _tree_failed):
            _made_folders(folder)
            self._root = os.open(folder or ".", _OPEN_FOLDER)
        self._parents: dict[bytes, int] = {}  # the folders that were written to last, for files come folder by folder

    def close(self) -> None:
        """Give the descriptors back."""
        self._forget()
        os.close(self._root)

    def write(
        self,
        path: bytes,
        data: bytes | memoryview | Callable[[], Iterable[bytes | memoryview]],
        there: IfThere = "error",
    ) -> bool:
        """Write a file, whose folders are made on the way; of one that fails nothing stays.

        Args:
            path: Its path below the folder.
            data: Its bytes; or what gives them block by block, each time that it is called.
            there: What becomes of a file that is there: an error; it is replaced; it is kept if it has these bytes; or
                the latter, and what has only the first of them, as a killed process leaves it, is replaced.

        Returns:
            Whether it was written, and not kept.

        Raises:
            OutputExists: There is a file already, or something else where a folder must be.
            OutputFailed: It cannot be written.
            InvalidRequest: The path is none below the folder.
        """
        if (b"\0" in path or not are_plain(path, len(path))) and (problem := path_problem(path)):
            raise InvalidRequest(os.fsdecode(path), problem)
        folder, _, name = path.rpartition(b"/")
        blocks = data if callable(data) else (data,).__iter__
        try:
            parent = self._parents.get(folder) or self._parent(folder)
            if there == "overwrite":
                with suppress(FileNotFoundError):
                    _unlink(name, parent)
            try:
                _write(parent, name, blocks())
            except FileExistsError:
                same = there in ("keep", "finish") and _compare(parent, name, blocks())
                if same == "whole":
                    return False
                if there != "finish" or not same:
                    raise
                _unlink(name, parent)
                _write(parent, name, blocks())
        except OSError as error:
            self._check_parents(folder)
            raise _tree_failed(self.full_path(path), error) from None
        return True

    def check_free(self, paths: Iterable[bytes], sizes: Iterable[int]) -> None:
        """Refuse to write files where there are others, as far as their sizes show: before the first is written.

        Raises:
            OutputExists: There is such a file, or something else.
        """
        known = set[bytes]()
        for path, size in zip(paths, sizes, strict=True):
            if (folder := path.rpartition(b"/")[0]) not in known:
                self._check_parents(folder)
                known.add(folder)
            with suppress(FileNotFoundError):
                fact = os.stat(path, dir_fd=self._root, follow_symlinks=False)
                if (stat.S_ISREG(fact.st_mode), fact.st_size) != (True, size):
                    raise _tree_failed(self.full_path(path), FileExistsError(errno.EEXIST, ""))

    def full_path(self, path: bytes) -> str:
        """Return where a file lies."""
        return os.path.join(self._folder, os.fsdecode(path))

    def _check_parents(self, folder: bytes) -> None:
        """Refuse a folder below where something else is, or a link, on the way to it.

        Raises:
            OutputExists: There is such.
        """
        parts = folder.split(b"/")
        for end in range(1, len(parts) + 1):
            above = b"/".join(parts[:end])
            with suppress(OSError):
                mode = os.lstat(above, dir_fd=self._root).st_mode
                if not stat.S_ISDIR(mode):
                    raise _no_folder(self.full_path(above), mode)

    def _parent(self, folder: bytes) -> int:
        """Return the descriptor of a folder below, made on the way; no link is followed."""
        if len(self._parents) >= _OPEN_PARENTS:
            self._forget()
        found = os.dup(self._root)
        try:
            for name in folder.split(b"/") if folder else ():
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=found)
                below = os.open(name, _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=found)
                os.close(found)
                found = below
        except OSError:
            os.close(found)
            raise
        self._parents[folder] = found
        return found

    def _forget(self) -> None:
        for folder in self._parents.values():
            os.close(folder)
        self._parents.clear()


def _tree_failed(path: str, error: OSError) -> OutputExists | OutputFailed:
    if error.errno not in _IN_THE_WAY:
        return OutputFailed(path, reason(error), remedy=_REMEDIES.get(error.errno or 0, ""))
    found = "already exists" if error.errno == errno.EEXIST else f"in the way: {reason(error)}"
    remedy = f"Choose another folder, or {either('overwrite=True', '--overwrite files')}."
    return OutputExists(path, found, remedy=remedy)


def _write(parent: int, name: bytes, blocks: Iterable[bytes | memoryview]) -> None:
    file = os.open(name, _CREATE, 0o666, dir_fd=parent)
    try:
        for block in blocks:
            if (done := os.write(file, block)) < len(block):
                write_all(file, memoryview(block)[done:])
    except BaseException:
        os.unlink(name, dir_fd=parent)
        raise
    finally:
        os.close(file)


def _compare(parent: int, name: bytes, blocks: Iterable[bytes | memoryview]) -> Literal["whole", "start", ""]:
    """Return whether a file has all of these bytes, or the first of them and no others; empty: it has others."""
    with suppress(OSError), LocalFile(os.open(name, READ_PLAIN, dir_fd=parent)) as file:
        at, size = 0, file.fact().st_size
        for block in blocks:
            if file.read(at, len(block)) != bytes(block)[: max(0, size - at)]:
                return ""
            at += len(block)
        return "whole" if at == size else "start" if size < at else ""
    return ""


# Second names for the files of a dataset, so that they can be brought back whatever happens to the first ones.


class KeptFiles(NamedTuple):
    """Files of a folder that have a second name in a new folder below it.

    Attributes:
        folder: Where the files are.
        below: The new folder.
    """

    folder: str
    below: str

    def keep(self, names: Iterable[str]) -> None:
        """Give those of the files that are there a second name.

        Raises:
            OutputFailed: The folder is there already, or the file system refuses.
        """
        made = False
        try:
            os.mkdir(self.below)
            made = True
            for name in names:
                path = os.path.join(self.folder, name)
                if os.path.lexists(path):
                    os.link(path, os.path.join(self.below, name), follow_symlinks=False)
        except OSError as error:
            if made:
                self.discard()
            remedy = "" if made else "A repair was cut off? Look at it, move its files back, and remove the folder."
            raise OutputFailed(self.below, f"cannot keep what is there: {reason(error)}", remedy=remedy) from None

    def bring_back(self, last: str) -> None:
        """Give the files their first names again; those that end in `last` come last."""
        for name in sorted(list_folder(self.below), key=lambda name: name.endswith(last)):
            os.replace(os.path.join(self.below, name), os.path.join(self.folder, name))
        self.discard()

    def discard(self) -> None:
        """Remove the second names."""
        import shutil  # bz2, lzma: for no run but a repair

        shutil.rmtree(self.below, ignore_errors=True)
