"""Keys, field names and file names: which are valid, how they are split, and how they are encoded in outputs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from shardtool.errors import InvalidRequest

if TYPE_CHECKING:
    from shardtool.values import Dots

# The endings of fields that hold an image of a format that Pillow reads.
IMAGE_ENDINGS = frozenset(
    ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "pbm", "pgm", "ppm", "pnm")
)


# The endings of fields whose payload is no text in any reader: a column of text or numbers cannot be one.
BINARY_ENDINGS = IMAGE_ENDINGS | {
    "avif", "heic", "heif", "jxl", "jp2", "ico", "psd", "dng", "npy", "npz", "ten", "tb", "safetensors", "pkl",
    "pickle", "pyd", "pth", "pt", "wav", "flac", "mp3", "ogg", "opus", "m4a", "aac", "wma", "mp4", "m4v", "webm",
    "mkv", "avi", "mov", "wmv", "mpg", "mpeg", "h264", "pdf", "zip", "tar", "gz", "bz2", "xz", "zst", "parquet", "h5",
    "hdf5",
}  # fmt: skip


# Words that name a split, in lower case.
SPLIT_NAMES = frozenset(
    {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval", "holdout"}
)


# What samples, tables of them and webdataset have under these names is never a field.
RESERVED_NAMES = frozenset(
    b"__%b__" % name for name in (b"key", b"url", b"local_path", b"padding", b"shard", b"offset", b"size", b"fields")
)


MAX_FIELDS = 2**16 - 1  # different fields, and fields of one sample: what a field's number has room for


MAX_NAME_BYTES = (
    4096  # bytes of a key, and of a field: what Linux takes as a path; tar readers refuse names of a megabyte
)


_CONTROL_CHARS = re.compile("[\x00-\x1f\x7f-\x9f]")


def to_text(name: bytes) -> str:
    """Return a name as text, in any locale: bytes that are no UTF-8 become surrogates, which `to_bytes` turns back."""
    return name.decode("utf-8", "surrogateescape")


def to_bytes(name: str) -> bytes:
    """Return the bytes of a name."""
    return name.encode("utf-8", "surrogateescape")


def is_utf8(name: bytes) -> bool:
    """Tell whether `name` is UTF-8."""
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def name_problem(name: bytes) -> str:
    """Return what keeps a key or field from being part of a shard, whatever its format; empty: nothing.

    A shard could hold some of these, but terminals, line-based indexes and extraction make something else of them.
    """
    if len(name) > MAX_NAME_BYTES:
        return f"more than {MAX_NAME_BYTES:,} bytes"
    if not is_utf8(name):
        return "bytes that are no UTF-8"
    return "control characters" if _CONTROL_CHARS.search(name.decode()) else ""


def field_problem(name: bytes) -> str:
    """Return what keeps a field from having that name, whatever the format; empty: nothing."""
    return "a meaning of its own in every sample" if name in RESERVED_NAMES else name_problem(name)


def source_label(root: bytes) -> str:
    """Return what a message calls the source whose paths count from `root`."""
    return to_text(root.rstrip(b"/") or root) or "the source"


def list_names(where: str, given: object, expected: str) -> list[str]:
    """Return what a caller names, by one name or several.

    Raises:
        InvalidRequest: It is no name, and no list of names.
    """
    if isinstance(given, str | os.PathLike):
        given = [given]
    several: Iterable[Any] = given if isinstance(given, Iterable) and not isinstance(given, bytes) else [given]
    names = list[str]()
    for one in several:  # one by one: a dataset is not gone through for names
        if not isinstance(one, str | os.PathLike):
            wrong = one if isinstance(given, list | tuple) else given
            raise InvalidRequest(where, f"{wrong!r:.80}", expected=expected)
        names.append(os.fspath(one))
    return names


def to_output_name(name: str) -> str:
    """Return a name from the command line or the file system as it goes into an output: the same in any locale."""
    return to_text(os.fsencode(name))


def to_local_name(name: str) -> str:
    """Return what the file system calls a file, by its name in an output: the way back from `to_output_name`."""
    return os.fsdecode(to_bytes(name))


def quote_name(name: bytes) -> str:
    """Return a name of the source as it goes into an output.

    One that is no UTF-8, or holds a `%`, is percent-encoded, so that `urllib.parse.unquote_to_bytes` gives the bytes
    of any of them back.
    """
    return quote(name) if b"%" in name or not is_utf8(name) else name.decode()


def split_name(name: bytes, dots: Dots) -> tuple[bytes, bytes] | None:
    """Return (stem, field) of a file name without its folder; None where it has no key and field.

    `first` is WebDataset's rule: the stem ends at the first dot. `last`: at the last one. A dot
    that starts the name belongs to the stem: `.a.jpg` is the field `jpg` of `.a`.

    Source: webdataset/webdataset, `webdataset/tariterators.py`, `base_plus_ext`.
    """
    at = name.find(b".", 1) if dots == "first" else name.rfind(b".")
    if at < 1 or at == len(name) - 1:
        return None
    return name[:at], name[at + 1 :]


def resolve_source_path(path: bytes, folders: Mapping[bytes, bytes]) -> bytes:
    """Return where a path leads whose first part is one of `folders`; where there are none, the path itself."""
    first, _, rest = path.partition(b"/")
    return folders[first] + rest if first in folders else path


def has_early_dot(key: bytes) -> bool:
    """Tell whether a tar member's key, by the rule of the first dot, would end before this one does."""
    return key.find(b".", key.rfind(b"/") + 2) >= 0
