"""The samples of one shard as plain bytes, without NumPy."""

from __future__ import annotations

from binascii import unhexlify
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.values import FeatureType, NumberType

# Source of a field: a file, a link, text in the plan, bytes in a shard or temporary file, or a URL.
FILE, LINK, INLINE, SPAN, URL = 0, 1, 2, 3, 4
ENCODED_PAYLOAD_MARK = b"\xff"


def inline_payload(text: bytes) -> bytes:
    """Return the payload of an INLINE field.

    Raises:
        ValueError: Text after `ENCODED_PAYLOAD_MARK` is not hexadecimal.
    """
    return unhexlify(memoryview(text)[len(ENCODED_PAYLOAD_MARK) :]) if text.startswith(ENCODED_PAYLOAD_MARK) else text


class SpanFile(NamedTuple):
    """A file that contains SPAN fields: a shard, an archive, or a temporary file.

    Attributes:
        mtime_ns: Modification time at planning time; -1 for a temporary file.
        form: `tar` or `zip` for archives; else empty. In a zip, offsets refer to member headers, and payloads are
            decompressed.
    """

    path: bytes
    size: int
    mtime_ns: int
    form: str = ""


@dataclass(frozen=True, slots=True)
class ShardContent:
    """Keys, fields and payload sizes of the samples of one shard.

    `keys` and `counts` have one value per sample; `codes` and later attributes have one per field.

    Attributes:
        keys: The keys, each followed by NUL.
        stored: int64, payload bytes in the shard, which differ from `sizes` for `numbers`.
        inline: Text of each INLINE field (see `inline_payload`), or an empty text for other fields, followed by NUL.
            Empty without INLINE fields.
        whole: uint8, 1 if the payload is the whole value list of a TFRecord feature, 0 if it is one value of the list
            or packed numbers. Empty if all are 0.
        numbers: Number type of each code whose payload is stored as a number.
        lists: Type of the values of each code whose fields are value lists of a TFRecord. Such fields are SPAN and not
            in `numbers`.
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
    """Locations of SPAN payloads; all empty if there are none.

    Attributes:
        file: uint32 per field, index into `files`.
        expected: int64 per field, CRC-32C of the payload, or -1 if unknown. Empty if all are unknown.
        runs: uint32, end row of each range of rows with equal spacing in their file and in the shard. Empty if unknown.
        regions: int64 pairs, ascending: start and end of the parts of the first file that are read in one piece.
    """

    files: tuple[SpanFile, ...] = ()
    file: bytes = b""
    offsets: bytes = b""
    expected: bytes = b""
    runs: bytes = b""
    regions: bytes = b""


@dataclass(frozen=True, slots=True)
class ShardSamples:
    """Content and payload locations of the samples of one shard.

    Attributes:
        needs: int64 per sample, record bytes with headers and padding.
        mtimes: int64 per field, modification time in nanoseconds at planning time.
        paths: Path relative to `root`, or URL, of each field, followed by NUL. If empty, each path is key + "." +
            field.
        changed_ns: Latest ctime of files and folders when the source was listed.
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
        """Return the paths, with URLs converted by `shown`."""
        if URL not in self.kinds:
            return self.paths
        pairs = zip(self.paths[:-1].split(b"\0"), self.kinds, strict=True)
        return b"".join([(shown(path) if kind == URL else path) + b"\0" for path, kind in pairs])
