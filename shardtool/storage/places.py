"""What is asked for by name, wherever it lies: a path of the file system, or an address of a store or of the web.

Here it is decided what a text means, and nowhere above. Names are texts: `join`, `folder_of` and `base_name` take them
apart and put them together, by the rules of what they are. The paths of a source's files are bytes, as those of file
systems are: what they count from (`source_root`), and a path behind it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from shardtool.errors import AccessRefused, InvalidRequest, raise_if_machines
from shardtool.storage.open_file import READ_FOLLOWING, address_of, is_other, is_place, open_blob, open_file
from shardtool.storage.remote import address, blob, stores
from shardtool.storage.remote.address import SCHEMES, is_url, is_web, parse_address, refuse_near_url, shown, use_headers
from shardtool.storage.remote.blob import called, together
from shardtool.storage.remote.retry import RETRY_FOR
from shardtool.storage.remote.store_options import STORE_OPTIONS, use_store_options
from shardtool.storage.remote.stores import BucketEntry, as_source, use_anonymous, use_endpoint
from shardtool.values import to_bytes, to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardtool.storage.open_file import FileFact

__all__ = [  # as they are
    "as_source", "called", "is_url", "is_web", "parse_address", "refuse_near_url", "together", "use_anonymous",
    "use_endpoint", "use_headers", "use_store_options",
]  # fmt: skip

OF_OPTIONS = (stores.ENDPOINT, stores.ANONYMOUS, STORE_OPTIONS, RETRY_FOR)  # variables that they set; no secrets
Item = TypeVar("Item")
Result = TypeVar("Result")
_FEW = 4  # files that are asked for one by one, and not by a listing
_LARGE = 2**25


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


def objects_below(folder: str) -> Iterator[BucketEntry]:
    """Yield the objects below an address, at any depth, in the store's order; their keys count from there.

    Folders are none, but an empty object that stands for one is there, without the slash at its end.

    Raises:
        ShardError: The store cannot be asked, or it is an address of the web, where nothing is listed.
    """
    above = len(parse_address(folder).key.rstrip("/"))
    for one in _listed(folder, below=True):
        if path := one.key[above:].lstrip("/"):
            yield one._replace(key=path)


def _listed(folder: str, *, below: bool = False) -> Iterator[BucketEntry]:
    is_ours = parse_address(folder).scheme in SCHEMES
    return stores.listed(folder, below=below) if is_ours else blob.list_other(folder, below=below)


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

    if is_url(path) and not is_other(path):
        return blob.read_whole(path, lambda size: check(size, lambda: blob.read_end(path, len(ending))))
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
    if is_url(path) and not is_other(path):
        return blob.read_end(path, limit)
    with open_file(path) as file:
        return file.read(max(0, file.fact().st_size - limit), limit)
