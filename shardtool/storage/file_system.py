"""Create files and folders durably, and refuse to replace anything that is not a regular file."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import InvalidRequest, OutputExists, OutputFailed, os_error_text
from shardtool.messages import choose_text, option_text
from shardtool.storage.files import read_head, read_tail
from shardtool.storage.lookup import is_file
from shardtool.storage.remote.address import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


_FOLDER_KIND = "a folder"


_SPECIAL_KINDS = {
    stat.S_IFDIR: _FOLDER_KIND, stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


_MOVE_ADVICE = "Choose another name, or move it away."


_MAX_PROBE_BYTES = 2**20  # bytes of a file's beginning and of its end that tell what made it


OPEN_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class EntryInfo(NamedTuple):
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
        return self.special == _FOLDER_KIND


def check_replaceable(path: str | bytes, folder: int | None = None) -> None:
    """Refuse to put a file in the place of what is none: the rule for all that is written, replaced or removed.

    Args:
        path: The place of the file.
        folder: The descriptor of the folder that it starts from; None: the current one.

    Raises:
        OutputExists: A folder, a device, a FIFO or a socket is there, or a link that leads to one.
    """
    with suppress(OSError, ValueError):  # what cannot be asked, the system refuses to replace
        _check_kind(os.fsdecode(path), special_kind(path, os.lstat(path, dir_fd=folder).st_mode, folder))


def check_entries(full_path: Callable[[str], str], facts: Mapping[str, EntryInfo]) -> None:
    """Hold the names that a run will write, as far as they are there, to the same rule.

    Args:
        full_path: Returns where a name lies.
        facts: What is said of those that are there.

    Raises:
        OutputExists: One is no file.
    """
    for name in sorted(facts):
        _check_kind(full_path(name), facts[name].special)


def _check_kind(path: str, special: str) -> None:
    if special:
        raise OutputExists(path, special, expected="a file, or nothing", remedy=_MOVE_ADVICE)


def check_local_name(path: str, example: str) -> None:
    """Refuse what is no name of a file of this machine: an address, a folder, standard input and output.

    Raises:
        InvalidRequest: It is such.
    """
    if is_url(path) or not os.path.basename(path) or path == "-":
        raise InvalidRequest(path or "''", "no name of a file here", expected=f"one such as {example}")


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
        raise OutputExists(path, "a symbolic link, and no run writes through one", remedy=_MOVE_ADVICE)
    try:
        head, size = read_head(path, _MAX_PROBE_BYTES)
        is_ours = not size or (head.startswith(begins) and holds in head + read_tail(path, _MAX_PROBE_BYTES))
    except OSError as error:
        raise OutputExists(path, f"cannot be read: {os_error_text(error)}", remedy=_MOVE_ADVICE) from None
    if not is_ours:
        raise OutputExists(path, "a file of another kind", expected=f"one that {cure} may replace", remedy=_MOVE_ADVICE)


def special_kind(path: str | bytes, mode: int, folder: int | None = None) -> str:
    """Return what is at a path that no file takes the place of; empty for a file, or a link to one or nothing."""
    if not stat.S_ISLNK(mode):
        return _SPECIAL_KINDS.get(stat.S_IFMT(mode), "")
    try:
        found = _SPECIAL_KINDS.get(stat.S_IFMT(os.stat(path, dir_fd=folder).st_mode))
    except OSError:
        return ""
    return f"a link to {found}" if found else ""


def unlink_file(path: str | bytes, folder: int | None = None) -> None:
    check_replaceable(path, folder)
    os.unlink(path, dir_fd=folder)


def create_file(path: str) -> int:
    """Return the descriptor of a new file in place of what a killed run may have left."""
    with suppress(FileNotFoundError):
        unlink_file(path)
    return os.open(path, CREATE_FLAGS, 0o666)


def make_folders(path: str) -> list[Path]:
    """Make a folder, and those that lead to it; return those that were missing.

    Raises:
        OutputExists: Something else is in the way.
        OSError: The system refuses.
    """
    folder = Path(path or ".")
    missing = [one for one in (folder, *folder.parents) if not os.path.isdir(one)]
    for one in filter(os.path.lexists, missing):
        if not os.path.isdir(one):  # another process may have created the folder by now
            raise not_a_folder(str(one), os.lstat(one).st_mode)
    os.makedirs(folder, exist_ok=True)
    return missing


def not_a_folder(path: str, mode: int) -> OutputExists:
    found = "a symbolic link" if stat.S_ISLNK(mode) else _SPECIAL_KINDS.get(stat.S_IFMT(mode), "a file")
    return OutputExists(path, found, expected="a folder", remedy="Choose another folder, or move it away.")


def sync_folder(path: str | Path) -> None:
    fd = os.open(path, OPEN_FOLDER_FLAGS)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_SPACE_ADVICE = {errno.ENOSPC: "Make space", errno.EDQUOT: "Raise the quota"}


ERRNO_ADVICE = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Choose a folder that you may write to."),
    errno.ENAMETOOLONG: "Choose a shorter name.",
}


def write_error(where: str, error: OSError) -> OutputFailed:
    code, remedy = error.errno or 0, ERRNO_ADVICE.get(error.errno or 0, "")
    if code in _SPACE_ADVICE:
        resume = choose_text(
            f"`create` and `reshard` with {option_text('if_exists', 'resume')}",
            "`create --resume` and `reshard --resume`",
        )
        remedy = f"{_SPACE_ADVICE[code]}, then run the same command again; {resume} keep what is finished."
    elif code == errno.EFBIG:
        smaller = choose_text(option_text("max_size"), "`create --max-size`")
        remedy = f"Raise the file size limit (ulimit -f), or make smaller shards with {smaller}."
    return OutputFailed(where, f"cannot write: {os_error_text(error)}", remedy=remedy)


@contextmanager
def write_errors(
    where: str, failed: Callable[[str, OSError], OutputExists | OutputFailed] = write_error
) -> Iterator[None]:
    """Say of what the system refuses inside of the block that `where` cannot be written."""
    try:
        yield
    except OSError as error:
        raise failed(where, error) from None
