"""Names of files and folders: take paths and addresses apart and join them.

A location is a text: a path of the file system, or an address (`s3://`, `https://`, ...). A source file is named by
bytes: a root (`source_root`) followed by a relative path.
"""

from __future__ import annotations

import os
from itertools import islice

from shardtool.errors import InvalidRequest
from shardtool.names import to_bytes, to_text
from shardtool.storage.remote import address, store_access, store_options
from shardtool.storage.remote.address import is_url, is_web
from shardtool.storage.remote.retry import RETRY_FOR

_MAX_COMPARED_NAMES = 1000  # of a folder, to find one that is similar to a missing name


INHERITED_VARIABLES = (
    store_access.ENDPOINT_VARIABLE,
    store_access.ANONYMOUS_VARIABLE,
    store_options.STORE_OPTIONS_VARIABLE,
    RETRY_FOR,
)  # variables that they set; no secrets


def join(folder: str, name: str) -> str:
    """Return the path or address of `name`, a plain one, in a folder."""
    return address.join_address(folder, name) if is_url(folder) else os.path.join(folder, name)


def folder_of(path: str) -> str:
    """Return the folder that something lies in; "" is the current one."""
    return address.split_address(path)[0] if is_url(path) else os.path.dirname(path)


def base_name(path: str) -> str:
    """Return the plain name of something in its folder."""
    return address.split_address(path)[1] if is_url(path) else os.path.basename(path)


def is_same_location(one: str, other: str) -> bool:
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


def source_identity(root: bytes) -> str:
    """Return what tells a source from any other: of a folder, what its path leads to now; of an address, itself."""
    if is_address(root):
        return to_text(root)
    fact = os.stat(root)
    return f"{fact.st_dev} {fact.st_ino}"


def path_inside_source(folder: str, root: bytes) -> bytes | None:
    """Return where an output folder lies below a source: empty, or a path ending in a slash; None: elsewhere."""
    if is_address(root):
        above, below = root, to_bytes(folder).rstrip(b"/") + b"/"
    elif is_url(folder):
        return None
    else:
        above, below = os.path.realpath(root).rstrip(b"/") + b"/", os.path.realpath(os.fsencode(folder or ".")) + b"/"
    return below[len(above) :] if below.startswith(above) else None


def is_address(path: bytes) -> bool:
    """Tell whether the path of a source's file is an address."""
    return b"://" in path and is_url(to_text(path))


def source_address(path: bytes) -> str:
    """Return the address of a source's file: see `source_root`."""
    text = to_text(path)
    folder, mark, below = text.partition("#") if is_web(text) else (text, "", "")
    return address.join_address(folder, below) if mark else folder
