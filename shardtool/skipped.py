"""Skipped files and samples: the rows of `out.skipped`, and the reason codes."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from typing import Literal, NamedTuple, cast
from zlib import compress, decompressobj
from zlib import error as zlib_error

from shardtool.errors import format_list, printable
from shardtool.names import to_bytes

_MAX_ROWS_BYTES = 2**26
_DIFFERS_TEXT = ", which has another "
_SAME_CONTENT_TEXT = "has the same content as "
_OLD_DUPLICATE_CODE = "twin"
_OLD_SAME_CONTENT_TEXT = "holds the same as "
INTENDED_CODES = ("no-field", "duplicate", "not-chosen")  # these are not failures

SkipCode = Literal[
    "no-field", "unsafe-name", "duplicate", "not-chosen", "incomplete", "oversize", "unreadable", "vanished", "changed",
    "corrupt", "damaged", "special-file", "link-outside", "link-loop", "dangling-link", "bad-image",
    "truncated-image", "image-too-large", "animated-image", "image-depth", "map-failed", "field-clash", "no-number",
    "bad-json", "bad-value", "bad-url", "http-404", "timeout", "no-host", "no-connection", "bad-certificate",
    "refused-address", "bad-redirect", "bad-response", "cut-short", "too-large", "robots-header", "not-an-image",
    "removed",
]  # fmt: skip

SKIP_CODES: dict[SkipCode, str] = {  # docs/errors.md has the same strings
    "no-field": "the file name has no extension, which would be the field name; a sample of a dataset has none of the "
    "selected fields",
    "unsafe-name": "the key or a field is not UTF-8, has a part '..' or a control character, or is far too long; in an "
    "archive, a path outside the archive",
    "duplicate": "another sample has the same key (--on-duplicate first or last) or the same content "
    "(--drop-duplicates)",
    "not-chosen": "the file's content does not match --where (--probe, --exif, --hash)",
    "incomplete": "the sample lacks a file in one of several folders (--complete)",
    "oversize": "the sample is larger than a shard may be",
    "unreadable": "the file or folder cannot be opened or read; in an archive, the member is damaged, encrypted, or "
    "has an unsupported compression",
    "vanished": "the file was deleted after the source was listed",
    "changed": "the size or modification time changed after the source was listed",
    "corrupt": "a payload in a shard does not match the checksum in the sidecar",
    "damaged": "a part of a shard cannot be read, or a sample may have lost fields there",
    "special-file": "a fifo, socket or device, or a link to one; in a tar or zip, a member that is not a regular file",
    "link-outside": "a link to a file outside the source, with --symlinks inside",
    "link-loop": "a link to a folder that contains the link",
    "dangling-link": "a link to a file that does not exist",
    "bad-image": "an image that is damaged or has an unsupported format",
    "truncated-image": "an image file that is truncated",
    "image-too-large": "an image with too many pixels, before or after resizing",
    "animated-image": "an image with several frames or pages; changing it would keep only one",
    "image-depth": "an image whose values do not fit into the requested format",
    "map-failed": "the function of --map raised, or returned no sample",
    "field-clash": "two fields of a sample would get the same name with --encode, or names that differ only in case",
    "no-number": "--map returned another type for a number field of a TFRecord",
    "bad-json": "a field of --columns-from is not a JSON object, number or short text, or has a value that does not "
    "fit into a column",
    "bad-value": "a value passed to ShardWriter.write that does not fit into a field or column",
    "bad-url": "not an http or https URL with a host",
    "http-404": "the web server returned this status: 404 if the file does not exist, 403 if access is denied, and so "
    "on for any status except 200",
    "timeout": "the server sent nothing for too long, or the download took too long (--fetch timeout, max-time)",
    "no-host": "the host name has no address",
    "no-connection": "the server cannot be reached, or closed the connection",
    "bad-certificate": "the TLS certificate is not valid for the host of the URL",
    "refused-address": "the host, or the target of a redirect, has an address in a private network "
    "(--fetch allow-private)",
    "bad-redirect": "too many redirects, or a redirect to a URL that cannot be fetched",
    "bad-response": "the response is not HTTP, or is damaged",
    "cut-short": "the server sent fewer bytes than announced",
    "too-large": "the file of a URL is larger than --fetch max-file-size",
    "robots-header": "the X-Robots-Tag header excludes the file from training or indexing (--fetch robots)",
    "not-an-image": "the file of a URL does not start with the signature of an image (--fetch require=image)",
    "removed": "shardtool remove deleted the sample; a hash replaces its key",
}


def hash_key(key: bytes) -> str:
    """Return the hash of a key. For removed samples, `out.skipped` contains the hash instead of the key."""
    return f"b2:{blake2b(key, digest_size=16).hexdigest()}"


def duplicate_message(key: str, differ: Iterable[str] = ()) -> str:
    """Return the message for a duplicate of `key`. `differ` lists fields and labels in which the duplicate differs."""
    return f"{_SAME_CONTENT_TEXT}{key}" + (f"{_DIFFERS_TEXT}{', '.join(map(printable, differ))}" if differ else "")


def has_same_content(row: Skipped) -> bool:
    """Return whether a sample was skipped because another sample has the same content."""
    return row.code == "duplicate" and row.message.startswith(_SAME_CONTENT_TEXT)


def read_row(key: str, path: str, code: str, message: str) -> Skipped:
    """Create a row from values in a file. Files of older versions contain the code `twin` for `duplicate`."""
    if code == _OLD_DUPLICATE_CODE:
        code, message = "duplicate", message.replace(_OLD_SAME_CONTENT_TEXT, _SAME_CONTENT_TEXT, 1)
    return Skipped(key, path, cast("SkipCode", code), message)


def drop_keys(rows: Iterable[Skipped], keys: Collection[str]) -> list[Skipped]:
    """Remove rows with these keys, and replace the keys in messages of the remaining rows."""
    messages = {duplicate_message(key) for key in keys}
    kept = [row for row in rows if printable(row.key) not in keys]
    for index, row in enumerate(kept):
        if not messages.isdisjoint((row.message, row.message.rpartition(_DIFFERS_TEXT)[0])):
            kept[index] = row._replace(message=duplicate_message("a removed sample"))
    return kept


def is_skipped_key(key: bytes, listed: Collection[str]) -> bool:
    """Return whether a list of skipped samples contains `key`. The list has hashes for the keys of removed samples."""
    return bool(listed) and (printable(key) in listed or hash_key(key) in listed)


def pack_rows(rows: Sequence[Skipped]) -> str:
    """Return rows as compressed text, for a sidecar."""
    from json import dumps

    data = dumps([[row.key, row.path, row.code, row.message] for row in rows]).encode()
    return b2a_base64(compress(data), newline=False).decode()


def unpack_rows(text: str) -> tuple[Skipped, ...]:
    """Return the rows from a result of `pack_rows`. Raise ValueError for other strings."""
    from json import loads

    unpacker = decompressobj()
    try:
        data = unpacker.decompress(a2b_base64(text), _MAX_ROWS_BYTES)
        rows = [[str(value) for value in row] for row in loads(data)]
        skipped = tuple(read_row(key, path, code, message) for key, path, code, message in rows)
    except (zlib_error, ValueError, TypeError, RecursionError):
        raise ValueError("invalid list of skipped samples") from None
    if not unpacker.eof:
        raise ValueError("list of skipped samples is too long or truncated")
    return skipped


def count_reasons(rows: Iterable[Skipped], dropped: int = 0) -> str:
    """Return a text such as `timeout 7, http-404 2`. `dropped` is the number of samples that `map` dropped."""
    codes = Counter(row.code for row in rows).most_common()
    counts = [f"{code} {count:,}" for code, count in codes]
    return format_list([*counts, *([f"dropped by the function {dropped:,}"] if dropped else [])])


def failed_rows(rows: Iterable[Skipped]) -> list[Skipped]:
    """Return the rows whose codes are not in `INTENDED_CODES`."""
    return [row for row in rows if row.code not in INTENDED_CODES]


def http_skip_code(status: int) -> SkipCode:
    """Return the code for an HTTP status: `http-404`, `http-503`, ..."""
    return cast("SkipCode", f"http-{status}")


class Skipped(NamedTuple):
    """A skipped file or sample. `key` is empty if the file belongs to no sample."""

    key: str
    path: str
    code: SkipCode
    message: str


def sort_rows(rows: Iterable[Skipped]) -> list[Skipped]:
    """Sort rows by the bytes of path, then key."""
    return sorted(rows, key=lambda row: (to_bytes(row.path), to_bytes(row.key)))
