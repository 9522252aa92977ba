"""Records of a shard from samples in memory: buffered bytes, and columns that describe them."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from shardtool.fingerprint import crc32c
from shardtool.format import tar_write, tfrecord_write
from shardtool.shard_samples import ShardContent
from shardtool.write.buffers import BUFFER_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.values import NumberType

    Put = Callable[[memoryview | bytes], object]
    Parts = list[bytes | memoryview]


_MAX_COPIED_BYTES = 2**16  # bytes of a part, up to which copying it costs less than another write


class EncodedField(NamedTuple):
    """A field of a sample, encoded.

    Attributes:
        name: Its name.
        size: Bytes of its payload.
        stored: What the shard holds of it: the payload, or the number that it stands for.
        text: The payload where the plan of a table would carry it; empty otherwise.
    """

    name: bytes
    size: int
    stored: bytes | memoryview
    text: bytes = b""


def encode_record(
    shard_format: str, key: bytes, fields: list[EncodedField], numbers: Mapping[bytes, NumberType]
) -> Parts:
    """Return the record of a sample, in parts.

    Args:
        shard_format: `tar` or `tfrecord`.
        key: The sample's key.
        fields: In the order of the bytes of their names.
        numbers: The fields of a TFRecord that are numbers, and of what kind.
    """
    stored = [(one.name, one.stored) for one in fields]
    return (
        tar_write.encode_tar_sample(key, stored)
        if shard_format == "tar"
        else tfrecord_write.encode_tfrecord_sample(key, stored, numbers)
    )


class ShardRecords:
    """The samples of a shard, in the order in which they are added.

    Args:
        write: Takes the bytes of the shard, some at a time.

    Attributes:
        keys: The samples' keys.
        size: Bytes of all records so far.
        crcs: CRC-32C of each field, as it is stored.
    """

    def __init__(self, write: Put) -> None:
        self._write = write
        self.keys: list[bytes] = []
        self.size = 0
        self.crcs = array("I")
        self._places: dict[bytes, int] = {}  # field to its code
        self._counts, self._codes, self._sizes, self._stored = array("H"), array("H"), array("q"), array("q")
        self._texts: list[bytes] = []
        self._pending: Parts = []
        self._pending_size = 0

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, key: bytes, parts: Parts, size: int, fields: list[EncodedField]) -> None:
        """Add a sample.

        Args:
            key: Its key.
            parts: The bytes of its record.
            size: How many there are.
            fields: What is in it.
        """
        self.keys.append(key)
        self._counts.append(len(fields))
        places = self._places
        for name, length, stored, text in fields:
            self._codes.append(places.setdefault(name, len(places)))
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
        """Write what waits."""
        run: Parts = []
        for part in self._pending:
            if len(part) < _MAX_COPIED_BYTES:
                run.append(part)
            else:
                self._write(b"".join(run))
                self._write(part)
                run = []
        if run:
            self._write(b"".join(run))
        self._pending, self._pending_size = [], 0

    def content(self, numbers: Mapping[bytes, NumberType], *, texts: bool) -> ShardContent:
        """Return what the samples hold.

        Args:
            numbers: The fields that are stored as numbers, and of what kind.
            texts: Whether the text of fields belongs to it.
        """
        return ShardContent(
            keys=b"".join([key + b"\0" for key in self.keys]),
            counts=self._counts.tobytes(),
            fields=tuple(self._places),
            codes=self._codes.tobytes(),
            sizes=self._sizes.tobytes(),
            stored=self._stored.tobytes(),
            inline=b"\0".join(self._texts) + b"\0" if texts else b"",
            numbers={self._places[name]: kind for name, kind in numbers.items() if name in self._places},
        )
