"""Split and join local paths and addresses.

A location is a string: a local path, or an address such as `s3://bucket/key`. The path of a source file is bytes: the
`source_root`, then the path relative to the source.
"""

from __future__ import annotations

import os
from itertools import islice

from shardtool.errors import InvalidRequest
from shardtool.names import to_bytes, to_text
from shardtool.storage.remote import address, store_options
from shardtool.storage.remote.address import is_url, is_web
from shardtool.storage.remote.retry import RETRY_FOR

_MAX_COMPARED_NAMES = 1000
# Options set these variables, and Ray workers receive them. None of them may contain a secret.
INHERITED_VARIABLES = (
    store_options.ENDPOINT_VARIABLE,
    store_options.ANONYMOUS_VARIABLE,
    store_options.STORE_OPTIONS_VARIABLE,
    RETRY_FOR,
)


def join(folder: str, name: str) -> str:
    """Return the location of the file `name` in a folder."""
    return address.join_address(folder, name) if is_url(folder) else os.path.join(folder, name)


def folder_of(path: str) -> str:
    """Return the folder of a file, or "" for a file name without a folder."""
    return address.split_address(path)[0] if is_url(path) else os.path.dirname(path)


def base_name(path: str) -> str:
    """Return the file name at the end of a location. The name in a web address is percent-decoded."""
    return address.split_address(path)[1] if is_url(path) else os.path.basename(path)


def is_same_location(first: str, second: str) -> bool:
    """Return whether two locations are the same file or folder."""
    return real_path(first) == real_path(second)


def real_path(path: str) -> str:
    """Return a local path with all links resolved, or an address without trailing slashes."""
    return path.rstrip("/") if is_url(path) else os.path.realpath(path)


def absolute_path(path: str) -> str:
    """Return an absolute local path, or an address unchanged."""
    return path if is_url(path) else os.path.abspath(path)


def source_root(folder: str, *, needed: bool = False) -> bytes:
    """Return a source folder as bytes to which relative paths can be appended.

    The result ends with a slash or, for a web address, with `#`, because a path cannot follow a query.
    Raise `InvalidRequest` if `needed` is true and a local folder does not exist.
    """
    if needed and not is_url(folder) and not os.path.isdir(folder):
        found = "not a folder" if os.path.exists(folder) else "no such file or folder"
        raise InvalidRequest(folder, found, expected="a folder of samples")
    root = to_bytes(folder)
    return root + b"#" if is_web(folder) else root.rstrip(b"/") + b"/"


def similar_path(path: str) -> str:
    """Return `Did you mean PATH?` if a path does not exist but a similar path does, else "".

    Hidden files are suggested only if the missing name starts with a dot.
    """
    from difflib import get_close_matches

    if is_url(path) or os.path.exists(path):
        return ""
    missing, tail = path.rstrip("/"), ""
    while missing and not os.path.lexists(parent := os.path.dirname(missing) or "."):
        tail = os.path.join(os.path.basename(missing), tail)
        missing = parent
    try:
        with os.scandir(os.path.dirname(missing) or ".") as entries:
            names = [entry.name for entry in islice(entries, _MAX_COMPARED_NAMES)]
    except OSError:
        return ""
    missing_name = os.path.basename(missing)
    names = [name for name in names if missing_name.startswith(".") or not name.startswith(".")]
    for name in get_close_matches(missing_name, names):
        similar = os.path.join(os.path.dirname(missing), name, tail).rstrip("/")
        if os.path.exists(similar):
            return f"Did you mean {similar}?"
    return ""


def source_identity(root: bytes) -> str:
    """Return text that identifies a source: its address, or a folder's device and inode, which survive a rename."""
    if is_address(root):
        return to_text(root)
    info = os.stat(root)
    return f"{info.st_dev} {info.st_ino}"


def path_inside_source(folder: str, root: bytes) -> bytes | None:
    """Return the path of an output folder relative to a source, or None if the folder is outside the source.

    The path is "" or ends with a slash.
    """
    if is_address(root):
        source_path, folder_path = root, to_bytes(folder).rstrip(b"/") + b"/"
    elif is_url(folder):
        return None
    else:
        source_path = os.path.realpath(root).rstrip(b"/") + b"/"
        folder_path = os.path.realpath(os.fsencode(folder or ".")) + b"/"
    return folder_path[len(source_path) :] if folder_path.startswith(source_path) else None


def is_address(path: bytes) -> bool:
    """Return whether the path of a source file is an address."""
    return b"://" in path and is_url(to_text(path))


def source_address(path: bytes) -> str:
    """Return the address of a remote source file."""
    text = to_text(path)
    folder, separator, relative_path = text.partition("#") if is_web(text) else (text, "", "")
    return address.join_address(folder, relative_path) if separator else folder
