"""Encode samples as records, and collect the content of the shard's index."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from shardtool.fingerprint import crc32c
from shardtool.format import tar_write, tfrecord_write
from shardtool.shard_samples import ShardContent
from shardtool.write.task import BUFFER_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.values import NumberType

    Put = Callable[[memoryview | bytes], object]
    Parts = list[bytes | memoryview]


_MAX_COPIED_BYTES = 2**16  # copying fewer bytes is faster than another write


class EncodedField(NamedTuple):
    """An encoded field.

    Attributes:
        stored: The bytes in the shard.
        text: A number as text, or empty for other values.
    """

    name: bytes
    size: int
    stored: bytes | memoryview
    text: bytes = b""


def encode_record(
    shard_format: str, key: bytes, fields: list[EncodedField], numbers: Mapping[bytes, NumberType]
) -> Parts:
    """Return the record of a sample as byte strings to write. `fields` must be sorted by name."""
    stored = [(field.name, field.stored) for field in fields]
    return (
        tar_write.encode_tar_sample(key, stored)
        if shard_format == "tar"
        else tfrecord_write.encode_tfrecord_sample(key, stored, numbers)
    )


class ShardRecords:
    """Collects the records of a shard, and writes many records with one call."""

    def __init__(self, write: Put) -> None:
        self._write = write
        self.keys: list[bytes] = []
        self.size = 0
        self.crcs = array("I")
        self._field_codes: dict[bytes, int] = {}
        self._counts, self._codes, self._sizes, self._stored = array("H"), array("H"), array("q"), array("q")
        self._texts: list[bytes] = []
        self._pending: Parts = []
        self._pending_size = 0

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, key: bytes, parts: Parts, size: int, fields: list[EncodedField]) -> None:
        """Add a sample. `parts` is the record from `encode_record`, and `size` its number of bytes."""
        self.keys.append(key)
        self._counts.append(len(fields))
        field_codes = self._field_codes
        for name, length, stored, text in fields:
            self._codes.append(field_codes.setdefault(name, len(field_codes)))
            self._sizes.append(length)
            self._stored.append(len(stored))
            self.crcs.append(crc32c(stored))
            self._texts.append(text)
        self._pending += parts
        self._pending_size += size
        self.size += size
        if self._pending_size > BUFFER_SIZE:
            self.flush()

    def flush(self) -> None:
        """Write all collected records."""
        small_parts: Parts = []
        for part in self._pending:
            if len(part) < _MAX_COPIED_BYTES:
                small_parts.append(part)
            else:
                self._write(b"".join(small_parts))
                self._write(part)
                small_parts = []
        if small_parts:
            self._write(b"".join(small_parts))
        self._pending, self._pending_size = [], 0

    def content(self, numbers: Mapping[bytes, NumberType], *, texts: bool) -> ShardContent:
        """Return the content of the shard. If `texts` is true, include each number as text."""
        return ShardContent(
            keys=b"".join([key + b"\0" for key in self.keys]),
            counts=self._counts.tobytes(),
            fields=tuple(self._field_codes),
            codes=self._codes.tobytes(),
            sizes=self._sizes.tobytes(),
            stored_sizes=self._stored.tobytes(),
            inline=b"\0".join(self._texts) + b"\0" if texts else b"",
            numbers={self._field_codes[name]: kind for name, kind in numbers.items() if name in self._field_codes},
        )
