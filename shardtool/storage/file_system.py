"""Create, check and delete local files and folders."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from shardtool.errors import InvalidRequest, OutputExists, OutputFailed, os_error_text
from shardtool.messages import choose_text, flag_text, option_text
from shardtool.storage.files import is_file, read_head, read_tail
from shardtool.storage.remote.address import is_url

_FOLDER_KIND = "a folder"
_SPECIAL_KINDS = {
    stat.S_IFDIR: _FOLDER_KIND, stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


_MOVE_ADVICE = "Choose another name, or move it."
_MAX_PROBE_BYTES = 2**20
OPEN_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class EntryInfo(NamedTuple):
    """The size, time and type of an entry in a folder.

    Attributes:
        special: "" if a new file may replace the entry. Otherwise, the type of the entry, such as `a folder`.
    """

    size: int
    mtime_ns: int
    special: str = ""

    @property
    def is_folder(self) -> bool:
        """Whether the entry is a folder, not a link to one."""
        return self.special == _FOLDER_KIND


def check_replaceable(path: str | bytes, folder: int | None = None) -> None:
    """Raise `OutputExists` if `path` is a folder, device, FIFO or socket, or a link to one.

    `folder` works like `dir_fd` in `os.open`.
    """
    with suppress(OSError, ValueError):
        _check_kind(os.fsdecode(path), special_kind(path, os.lstat(path, dir_fd=folder).st_mode, folder))


def check_entries(full_path: Callable[[str], str], entries: Mapping[str, EntryInfo]) -> None:
    """Raise `OutputExists` if one of the entries is not replaceable."""
    for name in sorted(entries):
        _check_kind(full_path(name), entries[name].special)


def check_owner(path: str) -> None:
    """Raise `OutputFailed` if the sticky bit of the folder prevents this user from replacing the file."""
    with suppress(OSError):
        folder, file = os.stat(os.path.dirname(path) or "."), os.lstat(path)
        if folder.st_mode & stat.S_ISVTX and os.geteuid() not in (0, folder.st_uid, file.st_uid):
            raise write_error(path, OSError(errno.EPERM, os.strerror(errno.EPERM)))


def _check_kind(path: str, special: str) -> None:
    if special:
        raise OutputExists(path, special, expected="a file, or nothing", remedy=_MOVE_ADVICE)


def check_local_name(path: str, example: str) -> None:
    """Raise `InvalidRequest` if a path is an address or `-`, or has no file name."""
    if is_url(path) or not os.path.basename(path) or path == "-":
        raise InvalidRequest(path or "''", "not a local file name", expected=f"a file name such as {example}")


def check_target(path: str, *, overwrite: bool, magic: bytes, marker: bytes, option: str) -> None:
    """Raise `OutputExists` if the output file exists and must not be replaced.

    With `overwrite`, the file may be replaced if it is empty, or starts with `magic` and contains `marker` near its
    start or end.
    """
    if not is_url(path):
        check_replaceable(path)
    if not (is_file(path) if is_url(path) else os.path.lexists(path)):
        return
    if not overwrite:
        raise OutputExists(path, "already exists", remedy=f"Choose another name, or {option}.")
    if os.path.islink(path):
        raise OutputExists(path, "a symbolic link, which is never written through", remedy=_MOVE_ADVICE)
    try:
        head, size = read_head(path, _MAX_PROBE_BYTES)
        is_ours = not size or (head.startswith(magic) and marker in head + read_tail(path, _MAX_PROBE_BYTES))
    except OSError as error:
        raise OutputExists(path, f"cannot be read: {os_error_text(error)}", remedy=_MOVE_ADVICE) from None
    if not is_ours:
        expected = f"a file that {option} may replace"
        raise OutputExists(path, "another kind of file", expected=expected, remedy=_MOVE_ADVICE)


def special_kind(path: str | bytes, mode: int, folder: int | None = None) -> str:
    """Return the type of an entry that a file must not replace, such as `a link to a folder`.

    Return "" for regular files, links to regular files, and dangling links.
    """
    if not stat.S_ISLNK(mode):
        return _SPECIAL_KINDS.get(stat.S_IFMT(mode), "")
    try:
        kind = _SPECIAL_KINDS.get(stat.S_IFMT(os.stat(path, dir_fd=folder).st_mode))
    except OSError:
        return ""
    return f"a link to {kind}" if kind else ""


def unlink_file(path: str | bytes, folder: int | None = None) -> None:
    """Delete a file or symbolic link."""
    check_replaceable(path, folder)
    os.unlink(path, dir_fd=folder)


def create_file(path: str) -> int:
    """Create or replace a file, and return the descriptor."""
    with suppress(FileNotFoundError):
        unlink_file(path)
    return os.open(path, CREATE_FLAGS, 0o666)


def make_folders(path: str) -> list[Path]:
    """Create a folder and its missing parents, and return the created folders."""
    folder = Path(path or ".")
    missing = [parent for parent in (folder, *folder.parents) if not os.path.isdir(parent)]
    for parent in filter(os.path.lexists, missing):
        if not os.path.isdir(parent):
            raise not_a_folder(str(parent), os.lstat(parent).st_mode)
    os.makedirs(folder, exist_ok=True)
    return missing


def not_a_folder(path: str, mode: int) -> OutputExists:
    """Return the error for a path that should be a folder."""
    found = "a symbolic link" if stat.S_ISLNK(mode) else _SPECIAL_KINDS.get(stat.S_IFMT(mode), "a file")
    return OutputExists(path, found, expected="a folder", remedy="Choose another folder, or rename the file.")


def sync_folder(path: str | Path) -> None:
    """Sync a folder to disk."""
    fd = os.open(path, OPEN_FOLDER_FLAGS)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_SPACE_ADVICE = {errno.ENOSPC: "Make space", errno.EDQUOT: "Raise the quota"}
ERRNO_ADVICE = {
    **dict.fromkeys((errno.EACCES, errno.EROFS), "Choose a folder that you may write to."),
    errno.EPERM: "Another user may own this file. Choose another name or folder.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
}


def write_error(where: str, error: OSError) -> OutputFailed:
    """Return the error for a path that cannot be written."""
    code = error.errno or 0
    remedy = ERRNO_ADVICE.get(error.errno or 0, "")
    if code in _SPACE_ADVICE:
        in_python = f"`create` and `reshard` with {flag_text('resume')}"
        resume = choose_text(in_python, "`create --resume` and `reshard --resume`")
        remedy = f"{_SPACE_ADVICE[code]}, then run the same command again; {resume} keep finished shards."
    elif code == errno.EFBIG:
        smaller = choose_text(option_text("max_size"), "`create --max-size`")
        remedy = f"Raise the file size limit (ulimit -f), or make smaller shards with {smaller}."
    return OutputFailed(where, f"cannot write: {os_error_text(error)}", remedy=remedy)


@contextmanager
def write_errors(
    where: str, make_error: Callable[[str, OSError], OutputExists | OutputFailed] = write_error
) -> Iterator[None]:
    """Convert an `OSError` in the `with` block to an error that names `where`."""
    try:
        yield
    except OSError as error:
        raise make_error(where, error) from None
