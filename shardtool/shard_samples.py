"""The samples of one shard as plain bytes: what a worker needs to write the shard.

Workers read this without NumPy or pyarrow.
"""

from __future__ import annotations

from binascii import unhexlify
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.values import FeatureType, NumberType

# How a field is read: a file, a file behind a link, carried in the plan, a span of a shard or spool, or from the web.
FILE, LINK, INLINE, SPAN, URL = 0, 1, 2, 3, 4


ENCODED_PAYLOAD_MARK = b"\xff"


def inline_payload(text: bytes) -> bytes:
    """Return the payload that a text of a plan stands for.

    Raises:
        ValueError: It is coded, and not in hexadecimal digits.
    """
    return unhexlify(memoryview(text)[len(ENCODED_PAYLOAD_MARK) :]) if text.startswith(ENCODED_PAYLOAD_MARK) else text


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
    numbers: Mapping[int, NumberType] = field(default_factory=dict)
    lists: Mapping[int, FeatureType] = field(default_factory=dict)


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

    def output_paths(self, shown: Callable[[bytes], bytes]) -> bytes:
        """Return the paths as outputs may have them: URLs as `shown` returns them."""
        if URL not in self.kinds:
            return self.paths
        pairs = zip(self.paths[:-1].split(b"\0"), self.kinds, strict=True)
        return b"".join([(shown(path) if kind == URL else path) + b"\0" for path, kind in pairs])
