"""The samples of one planned shard, as plain bytes that can be sent to a worker."""

from __future__ import annotations

from binascii import unhexlify
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.values import FeatureType, NumberType

# Where a payload is: in a file, in the target of a link, as text in the plan, in a byte range of a `SpanFile`, or at a
# URL.
FILE, LINK, INLINE, SPAN, URL = 0, 1, 2, 3, 4
ENCODED_PAYLOAD_MARK = b"\xff"


def decode_inline_payload(text: bytes) -> bytes:
    """Return the payload of an INLINE field. Text after `ENCODED_PAYLOAD_MARK` is hexadecimal."""
    return unhexlify(memoryview(text)[len(ENCODED_PAYLOAD_MARK) :]) if text.startswith(ENCODED_PAYLOAD_MARK) else text


class SpanFile(NamedTuple):
    """A file that contains SPAN fields: a shard, an archive, or a temporary file.

    Attributes:
        mtime_ns: Modification time when the run was planned, or -1 for a temporary file.
        form: `tar` or `zip` for an archive, otherwise empty. In a zip, the offset of a payload is the offset of its
            member header, and reading decompresses the payload.
    """

    path: bytes
    size: int
    mtime_ns: int
    form: str = ""


@dataclass(frozen=True, slots=True)
class ShardContent:
    """Keys, fields and payload sizes of the samples of one shard.

    `keys` and `counts` have one value per sample. `codes`, `sizes`, `stored_sizes`, `inline` and `is_list` have one
    value per field.

    Attributes:
        keys: The keys, each followed by NUL.
        counts: uint16, number of fields.
        codes: uint16, index of the field name in `fields`.
        sizes: int64, payload bytes in the source.
        stored_sizes: int64, payload bytes in the shard. Only sizes of fields in `numbers` differ from `sizes`.
        inline: The text of an INLINE field (see `decode_inline_payload`) or an empty string, followed by NUL.
        is_list: uint8. 1 means that the payload is the value list of a TFRecord feature, not one value.
        numbers: Number type by field code, for fields that the shard stores as numbers.
        lists: Value type by field code, for fields whose payloads can be value lists of a TFRecord.
    """

    keys: bytes
    counts: bytes
    fields: tuple[bytes, ...]
    codes: bytes
    sizes: bytes
    stored_sizes: bytes
    inline: bytes = b""
    is_list: bytes = b""
    numbers: Mapping[int, NumberType] = field(default_factory=dict)
    lists: Mapping[int, FeatureType] = field(default_factory=dict)


class ShardSpans(NamedTuple):
    """Locations of SPAN payloads. Without SPAN payloads, all attributes are empty.

    Attributes:
        file_codes: uint32 per field, index into `files`.
        offsets: int64 per field, in bytes.
        crcs: int64 per field, expected CRC-32C of the payload, or -1 if unknown. Empty if all are unknown.
        runs: uint32, exclusive end of each run of fields. One call reads a whole run, because the distances between its
            payloads are the same in the source and in the new tar shard.
        regions: int64, start and exclusive end of byte ranges in `files[0]`, ascending. One call reads a whole range.
    """

    files: tuple[SpanFile, ...] = ()
    file_codes: bytes = b""
    offsets: bytes = b""
    crcs: bytes = b""
    runs: bytes = b""
    regions: bytes = b""


@dataclass(frozen=True, slots=True)
class ShardSamples:
    """Content and payload locations of the samples of one shard.

    Attributes:
        record_sizes: int64 per sample, bytes of its records in the shard, with headers and padding.
        kinds: uint8 per field, `FILE`, `LINK`, `INLINE`, `SPAN` or `URL`.
        mtimes: int64 per field, planned modification time in nanoseconds.
        paths: The path or URL of each field, followed by NUL. If `paths` is empty, each path is key + "." + field.
        folders: Folders that replace the first components of paths (see `resolve_source_path`).
        latest_ctime_ns: The latest ctime of the source files and their folders when the source was listed. It is far
            in the future if ctimes are not reliable.
    """

    content: ShardContent
    record_sizes: bytes
    root: bytes
    kinds: bytes
    mtimes: bytes
    paths: bytes
    spans: ShardSpans
    folders: Mapping[bytes, bytes] = field(default_factory=dict)
    latest_ctime_ns: int = 0

    def output_paths(self, convert_url: Callable[[bytes], bytes]) -> bytes:
        """Return `paths`, with each URL replaced by the result of `convert_url`."""
        if URL not in self.kinds:
            return self.paths
        pairs = zip(self.paths[:-1].split(b"\0"), self.kinds, strict=True)
        return b"".join([(convert_url(path) if kind == URL else path) + b"\0" for path, kind in pairs])
