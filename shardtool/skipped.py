"""Why something of the source is not in the dataset: a row of `out.skipped`, and what each reason code means.

To find where a code is given, search for it in quotes: each stands where the reason is found.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, NamedTuple, cast
from zlib import compress, decompressobj
from zlib import error as zlib_error

from shardtool.errors import format_list, printable
from shardtool.names import to_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

_MAX_ROWS_BYTES = 2**26  # of the rows of a shard
_DIFFERS_TEXT = ", which has another "
INTENDED_CODES = ("no-field", "duplicate", "twin", "not-chosen")  # reasons that are no failure

SkipCode = Literal[
    "no-field", "unsafe-name", "duplicate", "twin", "not-chosen", "incomplete", "oversize", "unreadable", "vanished",
    "changed", "corrupt", "damaged", "special-file", "link-outside", "link-loop", "dangling-link", "bad-image",
    "truncated-image", "image-too-large", "animated-image", "image-depth", "map-failed", "field-clash", "no-number",
    "bad-json", "bad-value", "bad-url", "http-404", "timeout", "no-host", "no-connection", "bad-certificate",
    "refused-address", "bad-redirect", "bad-response", "cut-short", "too-large", "robots-header", "not-an-image",
    "removed",
]  # fmt: skip

SKIP_CODES: dict[SkipCode, str] = {  # in the words of docs/errors.md, "What was left out"
    "no-field": "the name has no ending that could name a field; a sample of shards has none of the fields selected",
    "unsafe-name": "the key or a field is not UTF-8, has a control character, or is far too long; in an archive, "
    "a path that leads out of it",
    "duplicate": "another sample has the same key (--on-duplicate first or last)",
    "twin": "another sample holds the same, under a key that comes first (--drop-duplicates)",
    "not-chosen": "--where does not take the sample, by what was found in its file",
    "incomplete": "one of several folders has no file of the sample (--complete)",
    "oversize": "the sample fits in no shard",
    "unreadable": "the file or folder cannot be opened or read; in an archive, a member that is damaged, encrypted, or "
    "compressed otherwise",
    "vanished": "the file was listed, and is gone",
    "changed": "the size or modification time is another than when the source was listed",
    "corrupt": "a payload of a shard does not have the checksum in its index",
    "damaged": "a part of a shard that cannot be read, or a sample that may have lost fields there",
    "special-file": "a fifo, socket or device, or a link to one; in a tar or zip, a member that is no plain file",
    "link-outside": "a link out of the source, under --symlinks inside",
    "link-loop": "a link to a folder that it lies in",
    "dangling-link": "a link to nothing",
    "bad-image": "an image that is damaged, or in none of the formats that are read",
    "truncated-image": "an image that ends too early",
    "image-too-large": "an image of too many pixels, before or after its change",
    "animated-image": "an image of several frames or pages, of which a change would keep one",
    "image-depth": "an image whose values the format asked for cannot hold",
    "map-failed": "the function of --map raised, or returned no sample",
    "field-clash": "two images of a sample get the same name by --encode",
    "no-number": "what was a number is none after --map, in TFRecord",
    "bad-json": "a field of --columns-from that is no JSON object, number or short text, or holds what no column can",
    "bad-value": "a value that a program gave to ShardWriter.write, and that no field or column can hold",
    "bad-url": "no http or https URL with a host",
    "http-404": "the web server answered with this status: 404 if the file is not there, 403 if it is not for us, and "
    "so on for any status but 200",
    "timeout": "the server was silent for too long, or the file took too long in all (--fetch timeout, max-time)",
    "no-host": "the name service knows no address of the host",
    "no-connection": "the server cannot be reached, or ended the connection",
    "bad-certificate": "the server cannot prove that it is the host of the URL",
    "refused-address": "the host, or one that it redirects to, has an address of a local network "
    "(--fetch allow-private)",
    "bad-redirect": "too many redirects, or one to what cannot be fetched",
    "bad-response": "what the server sent is no HTTP, or damaged",
    "cut-short": "the server sent less than it had announced",
    "too-large": "the file of a URL is larger than --fetch max-file-size",
    "robots-header": "the server's X-Robots-Tag says that the file is not for training or for an index "
    "(--fetch robots)",
    "not-an-image": "the file of a URL does not begin as an image does (--fetch require=image)",
    "removed": "remove has taken the sample out of the dataset; in place of its key stands a hash of it",
}


def hash_key(key: bytes) -> str:
    """Return what stands for the key of a sample that was removed: it is not to be read any more."""
    return f"b2:{blake2b(key, digest_size=16).hexdigest()}"


def duplicate_message(key: str, differ: Iterable[str] = ()) -> str:
    """Return what is said of a sample that was left out for a twin.

    Args:
        key: The key of the one that stays, as printed.
        differ: What that one has with other values.
    """
    return f"holds the same as {key}" + (f"{_DIFFERS_TEXT}{', '.join(map(printable, differ))}" if differ else "")


def drop_keys(rows: Iterable[Skipped], keys: Collection[str]) -> list[Skipped]:
    """Return rows but those of samples of these keys, as printed, and without what names one of these in others."""
    twins, found = {duplicate_message(key) for key in keys}, [one for one in rows if printable(one.key) not in keys]
    for at, one in enumerate(found):
        if not twins.isdisjoint((one.message, one.message.rpartition(_DIFFERS_TEXT)[0])):
            found[at] = one._replace(message=duplicate_message("a removed sample"))
    return found


def is_skipped_key(key: bytes, listed: Collection[str]) -> bool:
    """Tell whether a key is among those in a list of what was left out; of samples that were removed, it has marks."""
    return bool(listed) and (printable(key) in listed or hash_key(key) in listed)


def pack_rows(rows: Sequence[Skipped]) -> str:
    """Return rows as a short text, for a sidecar."""
    from json import dumps

    data = dumps([[one.key, one.path, one.code, one.message] for one in rows]).encode()
    return b2a_base64(compress(data), newline=False).decode()


def unpack_rows(text: str) -> tuple[Skipped, ...]:
    """Return the rows that `pack_rows` made a text of.

    Raises:
        ValueError: It made no such text.
    """
    from json import loads

    unpacker = decompressobj()
    try:
        data = unpacker.decompress(a2b_base64(text), _MAX_ROWS_BYTES)
        rows = [[str(value) for value in row] for row in loads(data)]
        found = tuple(Skipped(key, path, cast("SkipCode", code), message) for key, path, code, message in rows)
    except (zlib_error, ValueError, TypeError, RecursionError):
        raise ValueError("a list of what was left out that is none") from None
    if not unpacker.eof:
        raise ValueError("a list of what was left out that is too long, or cut")
    return found


def count_reasons(rows: Iterable[Skipped], dropped: int = 0) -> str:
    """Return how many were left out for each reason, the commonest first, and how many the user's function dropped."""
    codes = Counter(one.code for one in rows).most_common()
    said = [f"{code} {count:,}" for code, count in codes]
    return format_list([*said, *([f"dropped by the function {dropped:,}"] if dropped else [])])


def failed_rows(rows: Iterable[Skipped]) -> list[Skipped]:
    """Return the rows of what could not be packed; the others are not in the dataset because that was asked for."""
    return [one for one in rows if one.code not in INTENDED_CODES]


def http_skip_code(status: int) -> SkipCode:
    """Return the code for a web server's status: `http-404`, `http-503`, ..."""
    return cast("SkipCode", f"http-{status}")


class Skipped(NamedTuple):
    """Something that was left out: a row of `out.skipped`.

    Attributes:
        key: The sample's key; empty where the file belongs to none.
        path: Relative to the source.
        code: Why, for programs.
        message: Why, for people.
    """

    key: str
    path: str
    code: SkipCode
    message: str


def sort_rows(rows: Iterable[Skipped]) -> list[Skipped]:
    """Return rows in the order of the list: that of the bytes of paths, then of keys."""
    return sorted(rows, key=lambda one: (to_bytes(one.path), to_bytes(one.key)))
