"""Columns of byte strings, stored in one buffer or computed on demand."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

import numpy as np

from shardtool.dataclass import dataclass
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray


_MIN_ARROW_STRINGS = 2**18  # from this column size, Arrow gathers strings three times as fast as a loop
_MAX_SLICED_STRINGS = 2**8  # up to this many positions, a loop is faster than Arrow


class StringColumn(Protocol):
    """A column of byte strings that contain no NUL bytes, such as `PackedStrings`."""

    def __len__(self) -> int:
        """Return the number of strings."""

    def span(self, first: int, last: int, /) -> bytes:
        """Return strings `first` to `last` (exclusive), each followed by a NUL."""

    def gather(self, positions: NDArray[np.int64], /) -> bytes:
        """Return the strings at these positions, in that order, each followed by a NUL."""

    def take(self, positions: NDArray[np.int64], /) -> StringColumn:
        """Return the strings at these positions, in that order."""


@dataclass(frozen=True, slots=True)
class PackedStrings:
    """Byte strings that contain no NUL bytes, in one buffer.

    Attributes:
        starts: int64[strings + 1]. String i is `data[starts[i] : starts[i + 1] - 1]`.
    """

    data: bytes
    starts: NDArray[np.int64]

    @classmethod
    def parse(cls, data: bytes) -> PackedStrings:
        """Return a column of the NUL-terminated strings in a buffer."""
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 0)
        starts = np.empty(len(ends) + 1, np.int64)
        starts[0] = 0
        np.add(ends, 1, out=starts[1:])
        return cls(data, starts)

    @classmethod
    def of(cls, names: Iterable[bytes]) -> PackedStrings:
        """Return a column of these strings."""
        return cls.parse(b"".join([name + b"\0" for name in names]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> bytes:
        return self.data[int(self.starts[index]) : int(self.starts[index + 1]) - 1]

    def lengths(self) -> NDArray[np.int64]:
        """Return the length in bytes of each string, without its NUL."""
        return np.diff(self.starts) - 1

    def span(self, first: int, last: int) -> bytes:
        """See `StringColumn`."""
        return self.data[self.starts[first] : self.starts[last]]

    def chunks(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield lists of adjacent strings, each with the position of its first string."""
        for chunk in chunk_slices(len(self)):
            yield chunk.start, self.span(chunk.start, chunk.stop)[:-1].split(b"\0")

    def gather(self, positions: NDArray[np.int64]) -> bytes:
        """See `StringColumn`."""
        if len(positions) and positions[-1] - positions[0] == len(positions) - 1 and (np.diff(positions) == 1).all():
            return self.span(int(positions[0]), int(positions[-1]) + 1)
        if len(self) >= _MIN_ARROW_STRINGS and len(positions) > _MAX_SLICED_STRINGS:
            return self._gather_many(positions)
        starts, ends = self.starts[positions].tolist(), self.starts[positions + 1].tolist()
        return b"".join([self.data[start:end] for start, end in zip(starts, ends, strict=True)])

    def _gather_many(self, positions: NDArray[np.int64]) -> bytes:
        import pyarrow as pa

        data = pa.py_buffer(np.ascontiguousarray(positions))
        indexes = pa.Array.from_buffers(pa.int64(), len(positions), [None, data])
        _, offsets, data = self.array().take(indexes).buffers()
        return bytes(memoryview(data)[: np.frombuffer(offsets, np.int64)[len(positions)]])

    def array(self) -> pa.LargeBinaryArray:
        """Return an Arrow array of the strings, each with its final NUL."""
        import pyarrow as pa

        buffers = [None, pa.py_buffer(self.starts), pa.py_buffer(self.data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self), buffers)

    def take(self, positions: NDArray[np.int64]) -> PackedStrings:
        """See `StringColumn`."""
        return PackedStrings.parse(b"".join([self.gather(positions[chunk]) for chunk in chunk_slices(len(positions))]))

    def sorted_order(self) -> NDArray[np.int64]:
        """Return the positions that sort the strings by their bytes."""
        import pyarrow.compute as pc

        from shardtool.entries.arrow import number_values

        # Each string ends with NUL, the lowest byte, so "a" sorts before "ab".
        return number_values(pc.sort_indices(self.array())).astype(np.int64)

    def hashes(self, person: bytes = b"", seed: int | None = None) -> NDArray[np.uint64]:
        """See `hash_strings`."""
        hashes = [hash_strings(names, person, seed) for _, names in self.chunks()]
        return np.concatenate([np.zeros(0, np.uint64), *hashes])


def hash_strings(texts: Iterable[bytes], person: bytes, seed: int | None) -> NDArray[np.uint64]:
    """Return the 8-byte BLAKE2b hash (RFC 7693) of each string as a number.

    Different values of `person` or `seed` give independent hashes.
    """
    salt = b"" if seed is None else blake2b(b"%d" % seed, digest_size=16).digest()
    digests = [blake2b(text, digest_size=8, person=person, salt=salt).digest() for text in texts]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
