"""Values that every layer shares: sizes, the key and field rule."""

from __future__ import annotations

import os
import re
from binascii import unhexlify
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from shardtool.errors import InvalidRequest

__version__ = "0.1.0"
Given = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]  # a dataset, or shards, as a caller names them
Datasets = Given | Sequence[Given]
Dots = Literal["first", "last"]
OnError = Literal["stop", "skip"]
OnBadSample = Literal["raise", "skip"]  # the same of a program that reads or writes samples itself
Oversize = Literal["error", "alone", "skip"]
Place = Literal["order", "hash"]
Symlinks = Literal["inside", "follow", "skip"]
StartMethod = Literal["auto", "fork", "spawn"]
ResizeMode = Literal["shorter", "longer", "exact", "crop", "pad"]
ImageFormat = Literal["jpg", "png", "webp"]
IfExists = Literal["error", "resume", "overwrite", "resume-overwrite", "append", "append-resume", "update"]

BLOCK = 2**20  # bytes that are read or written at a time, where nothing speaks for another number
CHUNK = 2**16  # samples, rows or names at a time: no object for each of ten million, and small columns in between

Trust = Literal["time", "size"]
OnDuplicate = Literal["error", "rename", "first", "last"]
Hash = Literal["sha256", "md5", "sha512"]
ReadMethod = Literal["auto", "gather", "scatter"]
Target = Literal["webdataset", "wids", "dali", "energon", "huggingface"]

Number = Literal["int64", "float"]  # what a field's text stands for, where a format has numbers
Kind = Literal["bytes", "int64", "float"]  # what a feature of a TFRecord holds
ValueType = Literal["int64", "float", "bool", "text", "json"]  # what a value was, of which a payload is the text
STORED_AS: Mapping[str, Number] = {"int64": "int64", "float": "float", "bool": "int64"}  # where a format has numbers

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

# How a field is read: a file, a file behind a link, carried in the plan, a span of a shard or spool, or from the web.
FILE, LINK, INLINE, SPAN, URL = 0, 1, 2, 3, 4

# What samples, tables of them and webdataset have under these names is never a field.
RESERVED = frozenset(
    b"__%b__" % name for name in (b"key", b"url", b"local_path", b"padding", b"shard", b"offset", b"size", b"fields")
)
FIELD_LIMIT = 2**16 - 1  # different fields, and fields of one sample: what a field's number has room for
NAME_LIMIT = 4096  # bytes of a key, and of a field: what Linux takes as a path; tar readers refuse names of a megabyte
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?\s*", re.IGNORECASE)
_MOST_BYTES = 10**18  # sums of a few stay within 64 bits
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_STEP = 1000


def numbers_among(types: Mapping[str, str]) -> dict[str, Number]:
    """Return the fields whose texts stand for numbers, and for which."""
    return {name: STORED_AS[kind] for name, kind in types.items() if kind in STORED_AS}


def agreed_type(kinds: Iterable[ValueType | None]) -> ValueType | None:
    """Return what all values are that were of these types; None: of no one type, or one is not known."""
    found = {*kinds}
    if len(found) > 1:
        found = {STORED_AS.get(kind or "") for kind in found}
    return found.pop() if len(found) == 1 else None


def to_text(name: bytes) -> str:
    """Return a name as text, in any locale: bytes that are no UTF-8 become surrogates, which `to_bytes` turns back."""
    return name.decode("utf-8", "surrogateescape")


def to_bytes(name: str) -> bytes:
    """Return the bytes of a name."""
    return name.encode("utf-8", "surrogateescape")


# Payloads that a plan carries are texts with a NUL after each. One that is not text is coded: a byte that starts no
# UTF-8, and the payload in hexadecimal digits.


CODED = b"\xff"


def inline_payload(text: bytes) -> bytes:
    """Return the payload that a text of a plan stands for.

    Raises:
        ValueError: It is coded, and not in hexadecimal digits.
    """
    return unhexlify(memoryview(text)[len(CODED) :]) if text.startswith(CODED) else text


def parse_size(text: str | int) -> int:
    """Return bytes: `500MB` is 500 * 10^6, `500MiB` is 500 * 2^20, a bare number is bytes.

    Raises:
        InvalidRequest: `text` is no size, is zero, or over 10^18.
    """
    shown = str(text) if not isinstance(text, int) or abs(text) <= _MOST_BYTES else "a huge number"
    match = _SIZE.fullmatch(shown)
    size = 0
    if match:
        number, power, binary = match.groups()
        size = int(Decimal(number) * (1024 if binary else 1000) ** _POWERS[power.lower()])
    if not 1 <= size <= _MOST_BYTES:
        found = "no size" if size < 1 else "too large a size"
        expected = "a number and a unit, such as 500MB or 1.5GiB" if size < 1 else "1 EB at most, which is 1000PB"
        raise InvalidRequest(f"size {shown[:100]!r}", found, expected=expected)
    return size


_TWO_DIGITS = 10


def show_size(size: float) -> str:
    """Return `size` bytes for people, in powers of ten: `1.50 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < _STEP - 0.5:  # what would be shown as 1000 belongs to the next unit
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= _STEP
    return f"{size:,.2f} PB"


def show_time(seconds: float) -> str:
    """Return a time for people: `4.4 us`, `83 us`, `9.1 ms`."""
    value, unit = (seconds * 1e6, "us") if seconds * 1e3 < 1 else (seconds * 1e3, "ms")
    return f"{value:.1f} {unit}" if round(value, 1) < _TWO_DIGITS else f"{value:.0f} {unit}"


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
    if len(name) > NAME_LIMIT:
        return f"more than {NAME_LIMIT:,} bytes"
    if not is_utf8(name):
        return "bytes that are no UTF-8"
    return "control characters" if _CONTROL.search(name.decode()) else ""


def field_problem(name: bytes) -> str:
    """Return what keeps a field from having that name, whatever the format; empty: nothing."""
    return "a meaning of its own in every sample" if name in RESERVED else name_problem(name)


def source_name(root: bytes) -> str:
    """Return what a message calls the source whose paths count from `root`."""
    return to_text(root.rstrip(b"/") or root) or "the source"


def given_names(where: str, given: object, expected: str) -> list[str]:
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


def output_text(name: str) -> str:
    """Return a name from the command line or the file system as it goes into an output: the same in any locale."""
    return to_text(os.fsencode(name))


def local_name(name: str) -> str:
    """Return what the file system calls a file, by its name in an output: the way back from `output_text`."""
    return os.fsdecode(to_bytes(name))


def source_text(name: bytes) -> str:
    """Return a name of the source as it goes into an output.

    One that is no UTF-8, or holds a `%`, is percent-encoded, so that `urllib.parse.unquote_to_bytes` gives the bytes
    of any of them back.
    """
    return quote(name) if b"%" in name or not is_utf8(name) else name.decode()


def chunks_of(count: int) -> Iterator[slice]:
    """Yield the places below `count`, so many at a time as are held at once."""
    return (slice(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK))


def counted(number: int, thing: str) -> str:
    """Return `1 file with a dot`, `2 files with a dot`."""
    noun, _, rest = thing.partition(" ")
    return f"{number:,} {noun}{'' if number == 1 else 's'}{' ' + rest if rest else ''}"


def already_exist(number: int, thing: str) -> str:
    """Return `1 file already exists`, `2 files already exist`."""
    return f"{counted(number, thing)} already exist{'s' if number == 1 else ''}"


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


def placed(path: bytes, folders: Mapping[bytes, bytes]) -> bytes:
    """Return where a path leads whose first part is one of `folders`; where there are none, the path itself."""
    first, _, rest = path.partition(b"/")
    return folders[first] + rest if first in folders else path


def ends_early(key: bytes) -> bool:
    """Tell whether a tar member's key, by the rule of the first dot, would end before this one does."""
    return key.find(b".", key.rfind(b"/") + 2) >= 0


class SpanFile(NamedTuple):
    """A file that SPAN fields lie in: a shard, an archive, or a spool of our own.

    Attributes:
        path: Where it is.
        size: Bytes, as the plan saw it.
        mtime_ns: When it was changed, as the plan saw it; -1: a spool of our own.
        form: What it is where payloads are files in it: `tar` or `zip`. In a zip, their places are those of headers,
            and what is read is unpacked.
    """

    path: bytes
    size: int
    mtime_ns: int
    form: str = ""


@dataclass(frozen=True, slots=True)
class ShardContent:
    """What the samples of one shard hold, as a worker gets it: plain bytes.

    There is a value for each sample; from `codes` on, for each field.

    Attributes:
        keys: A NUL after each.
        counts: uint16: how many fields each sample has.
        fields: The names that `codes` stands for.
        codes: uint16, the field's name.
        sizes: int64, payload bytes.
        stored: int64, bytes that the payload takes in the shard: `sizes`, but for the `numbers`.
        inline: The payload of INLINE fields as text (see `inline_payload`), a NUL after each, empty for others; empty
            where there are none.
        whole: uint8: 1 where the payload is all that the field's list holds, 0 where it is one value in it, or numbers
            packed as one; empty: always 0.
        numbers: Code to what its text stands for, where that is how the format stores it.
        lists: Code to what its values are, where fields are lists of a TFRecord: all are SPAN, stored as they lie, and
            none of `numbers`.
    """

    keys: bytes
    counts: bytes
    fields: tuple[bytes, ...]
    codes: bytes
    sizes: bytes
    stored: bytes
    inline: bytes = b""
    whole: bytes = b""
    numbers: Mapping[int, Number] = field(default_factory=dict)
    lists: Mapping[int, Kind] = field(default_factory=dict)


class ShardSpans(NamedTuple):
    """Where the payloads of a shard's SPAN fields lie; all is empty where there are no such fields.

    Attributes:
        files: The files that they lie in.
        file: uint32 a field: which of `files` it lies in.
        offsets: int64 a field, where it starts in its file.
        expected: int64 a field, the CRC-32C that a payload must have, -1 where it is unknown; empty: none is known.
        runs: uint32: the row after each run of rows that lie in their file as far apart as they will in the shard;
            empty where this was not looked for.
        regions: int64 pairs, ascending: where parts of the first of `files` start and end that are best read whole;
            empty where spans are read one by one.
    """

    files: tuple[SpanFile, ...] = ()
    file: bytes = b""
    offsets: bytes = b""
    expected: bytes = b""
    runs: bytes = b""
    regions: bytes = b""


@dataclass(frozen=True, slots=True)
class ShardSamples:
    """What a worker must know of the samples of one shard: what they hold, and where that is read.

    Attributes:
        content: What they hold.
        needs: int64 a sample: bytes of its records, headers and padding included.
        root: What paths count from, ending in a slash.
        kinds: uint8 a field, how it is read: FILE, LINK, INLINE, SPAN or URL.
        mtimes: int64 a field, nanoseconds, as the plan saw it.
        paths: A field's, relative to `root`, or its URL, a NUL after each; empty: key + "." + field.
        spans: Where SPAN fields lie.
        folders: Of a source of several folders: what the first part of each path stands for; see `Entries`.
        changed_ns: The latest ctime of the files and their folders when they were listed.
    """

    content: ShardContent
    needs: bytes
    root: bytes
    kinds: bytes
    mtimes: bytes
    paths: bytes
    spans: ShardSpans
    folders: Mapping[bytes, bytes] = field(default_factory=dict)
    changed_ns: int = 0

    def shown_paths(self, shown: Callable[[bytes], bytes]) -> bytes:
        """Return the paths as outputs may have them: URLs as `shown` returns them."""
        if URL not in self.kinds:
            return self.paths
        pairs = zip(self.paths[:-1].split(b"\0"), self.kinds, strict=True)
        return b"".join([(shown(path) if kind == URL else path) + b"\0" for path, kind in pairs])
