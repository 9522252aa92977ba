"""The samples of one shard as plain bytes, without NumPy."""

from __future__ import annotations

from binascii import unhexlify
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.values import FeatureType, NumberType

# Where the payload of a field is: a file, a link, text in the plan, bytes in a shard or temporary file, or a URL.
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
        mtime_ns: Modification time at planning time, or -1 for a temporary file.
        form: `tar` or `zip` for an archive, otherwise empty. In a zip, the offset of a payload is the offset of its
            member header, and the payload is decompressed.
    """

    path: bytes
    size: int
    mtime_ns: int
    form: str = ""


@dataclass(frozen=True, slots=True)
class ShardContent:
    """Keys, fields and payload sizes of the samples of one shard.

    `keys` and `counts` have one value per sample. `codes` and the attributes after it have one value per field.

    Attributes:
        keys: The keys, each followed by NUL.
        stored: int64, payload bytes in the shard. For the fields in `numbers`, they differ from `sizes`.
        inline: The text of each INLINE field (see `inline_payload`), or an empty text, each followed by NUL.
        whole: uint8. 1 means that the payload is the whole value list of a TFRecord feature, and not one value.
        numbers: The number type of each code whose payloads are stored as numbers.
        lists: The value type of each code whose payloads are value lists of a TFRecord.
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
    """Locations of SPAN payloads. All attributes are empty if there are no SPAN payloads.

    Attributes:
        file: uint32 per field, index into `files`.
        expected: int64 per field, CRC-32C of the payload, or -1 if unknown. Empty if all are unknown.
        runs: uint32, the end rows of ranges of rows that have the same spacing in their file and in the shard.
        regions: int64 pairs in ascending order, start and end of each part of the first file that is read at once.
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
        needs: int64 per sample, size of the record in bytes, with headers and padding.
        mtimes: int64 per field, modification time in nanoseconds at planning time.
        paths: The path or URL of each field, followed by NUL. If `paths` is empty, each path is key + "." + field.
        changed_ns: The latest ctime of all files and folders when the source was listed.
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
