"""Check, split and encode keys, field names and file names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from shardtool.errors import InvalidRequest

if TYPE_CHECKING:
    from shardtool.values import Dots

IMAGE_ENDINGS = frozenset(
    ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "pbm", "pgm", "ppm", "pnm")
)
# Fields with these extensions cannot store text or numbers.
BINARY_ENDINGS = IMAGE_ENDINGS | {
    "avif", "heic", "heif", "jxl", "jp2", "ico", "psd", "dng", "npy", "npz", "ten", "tb", "safetensors", "pkl",
    "pickle", "pyd", "pth", "pt", "wav", "flac", "mp3", "ogg", "opus", "m4a", "aac", "wma", "mp4", "m4v", "webm",
    "mkv", "avi", "mov", "wmv", "mpg", "mpeg", "h264", "pdf", "zip", "tar", "gz", "bz2", "xz", "zst", "parquet", "h5",
    "hdf5",
}  # fmt: skip
SPLIT_NAMES = frozenset(
    {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval", "holdout"}
)
# Samples, tables and webdataset use these names for values that are not fields.
RESERVED_NAMES = frozenset(
    b"__%b__" % name for name in (b"key", b"url", b"local_path", b"padding", b"shard", b"offset", b"size", b"fields")
)
MAX_FIELDS = 2**16 - 1  # field numbers must fit into uint16
MAX_NAME_BYTES = 4096  # Linux has the same limit for paths
_PARENT_PART = re.compile(rb"(?:^|/)\.\.(?:/|$)")
_CONTROL_CHARS = re.compile("[\x00-\x1f\x7f-\x9f]")


def to_text(name: bytes) -> str:
    """Decode a name. Invalid UTF-8 becomes surrogates."""
    return name.decode("utf-8", "surrogateescape")


def to_bytes(name: str) -> bytes:
    """Encode a name as UTF-8. Surrogates from `to_text` become the original bytes."""
    return name.encode("utf-8", "surrogateescape")


def is_utf8(name: bytes) -> bool:
    """Check whether a name is UTF-8."""
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def name_problem(name: bytes) -> str:
    """Return why a key or field name is invalid, or "".

    Control characters are invalid, because terminals and line-based index files interpret them.
    """
    if len(name) > MAX_NAME_BYTES:
        return f"more than {MAX_NAME_BYTES:,} bytes"
    if not is_utf8(name):
        return "bytes that are not UTF-8"
    if has_parent_part(name):
        return "a part `..`"
    return "control characters" if _CONTROL_CHARS.search(name.decode()) else ""


def has_parent_part(name: bytes) -> bool:
    """Return whether a component of a name is `..`."""
    return b".." in name and _PARENT_PART.search(name) is not None


def field_problem(name: bytes) -> str:
    """Return why a field name is invalid, or ""."""
    return "a reserved name" if name in RESERVED_NAMES else name_problem(name)


def source_label(root: bytes) -> str:
    """Return the path of a source for messages."""
    return to_text(root.rstrip(b"/") or root) or "the source"


def list_names(where: str, names: object, expected: str) -> list[str]:
    """Convert one path or several paths to a list of strings. Raise InvalidRequest for other values."""
    if isinstance(names, str | os.PathLike):
        return [os.fspath(names)]
    items: list[Any] = [*names] if isinstance(names, Iterable) and not isinstance(names, bytes) else [names]
    for item in items:
        if not isinstance(item, str | os.PathLike):
            wrong = item if isinstance(names, list | tuple) else names
            raise InvalidRequest(where, f"{wrong!r:.80}", expected=expected)
    return [*map(os.fspath, items)]


def to_output_name(name: str) -> str:
    """Convert a local file name to the text that the dataset's files record. The text does not depend on the locale."""
    return to_text(os.fsencode(name))


def to_local_name(name: str) -> str:
    """Convert a result of `to_output_name` back to a local file name."""
    return os.fsdecode(to_bytes(name))


def quote_name(name: bytes) -> str:
    """Convert a name to text. Percent-encode a name that contains `%` or is not UTF-8."""
    return quote(name) if b"%" in name or not is_utf8(name) else name.decode()


def split_name(name: bytes, dots: Dots) -> tuple[bytes, bytes] | None:
    """Split a file name without folder into (stem, field). Return None if the stem or the field would be empty.

    With `dots="first"` (WebDataset's rule), the stem ends at the first dot. With `last`, the stem ends at the last dot.
    A leading dot belongs to the stem.

    Source: webdataset/webdataset, `webdataset/tariterators.py`, `base_plus_ext`.
    """
    dot = name.find(b".", 1) if dots == "first" else name.rfind(b".")
    if dot < 1 or dot == len(name) - 1:
        return None
    return name[:dot], name[dot + 1 :]


def resolve_source_path(path: bytes, folders: Mapping[bytes, bytes]) -> bytes:
    """If `folders` contains the first component of a path, replace `COMPONENT/` by the folder."""
    first, _, rest = path.partition(b"/")
    return folders[first] + rest if first in folders else path


def has_early_dot(key: bytes) -> bool:
    """Return whether the last path component of `key` has a dot at which WebDataset would end the key."""
    return key.find(b".", key.rfind(b"/") + 2) >= 0
