"""Columns of byte strings without NULs: packed in one buffer, or computed on demand.

A `PackedStrings` needs no Python object per string.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

import numpy as np

from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray


_MIN_ARROW_STRINGS = 2**18  # names: of so many, gathering some is worth an import of pyarrow.compute


_MAX_SLICED_STRINGS = 2**8  # that are gathered faster one by one


class StringColumn(Protocol):
    """Byte strings without NULs, in order, that need not lie in memory: `Names`, or something that makes them."""

    def __len__(self) -> int:
        """Return how many there are."""

    def span(self, first: int, last: int, /) -> bytes:
        """Return texts `first` to `last` (exclusive), a NUL after each."""

    def gather(self, which: NDArray[np.int64], /) -> bytes:
        """Return the texts `which`, in that order, a NUL after each."""

    def take(self, which: NDArray[np.int64], /) -> StringColumn:
        """Return the texts `which`, in that order."""


@dataclass(frozen=True, slots=True)
class PackedStrings:
    """Byte strings without NULs in one buffer, a NUL after each.

    Attributes:
        data: The buffer.
        starts: int64[n + 1]; string i is `data[starts[i] : starts[i + 1] - 1]`.
    """

    data: bytes
    starts: NDArray[np.int64]

    @classmethod
    def parse(cls, data: bytes) -> PackedStrings:
        """Return the names in a buffer where each ends with a NUL."""
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 0)
        starts = np.empty(len(ends) + 1, np.int64)
        starts[0] = 0
        np.add(ends, 1, out=starts[1:])
        return cls(data, starts)

    @classmethod
    def of(cls, names: Iterable[bytes]) -> PackedStrings:
        """Return `names` as columns."""
        return cls.parse(b"".join([name + b"\0" for name in names]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, at: int) -> bytes:
        return self.data[int(self.starts[at]) : int(self.starts[at + 1]) - 1]

    def lengths(self) -> NDArray[np.int64]:
        """Return the bytes of each name, its NUL not counted."""
        return np.diff(self.starts) - 1

    def span(self, first: int, last: int) -> bytes:
        """Return names `first` to `last` (exclusive), a NUL after each."""
        return self.data[self.starts[first] : self.starts[last]]

    def chunks(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the place of a name, and it and the names after it: some at a time, never an object for each."""
        for some in chunk_slices(len(self)):
            yield some.start, self.span(some.start, some.stop)[:-1].split(b"\0")

    def gather(self, which: NDArray[np.int64]) -> bytes:
        """Return the names `which`, in that order, a NUL after each."""
        if len(which) and which[-1] - which[0] == len(which) - 1 and (np.diff(which) == 1).all():  # as they lie
            return self.span(int(which[0]), int(which[-1]) + 1)
        if len(self) >= _MIN_ARROW_STRINGS and len(which) > _MAX_SLICED_STRINGS:
            return self._gather_many(which)
        starts, ends = self.starts[which].tolist(), self.starts[which + 1].tolist()
        return b"".join([self.data[start:end] for start, end in zip(starts, ends, strict=True)])

    def _gather_many(self, which: NDArray[np.int64]) -> bytes:
        """Do what `gather` does, in a third of its time where names lie all over the memory."""
        import pyarrow as pa

        places = pa.Array.from_buffers(pa.int64(), len(which), [None, pa.py_buffer(np.ascontiguousarray(which))])
        _, offsets, data = self.array().take(places).buffers()
        return bytes(memoryview(data)[: np.frombuffer(offsets, np.int64)[len(which)]])

    def array(self) -> pa.LargeBinaryArray:
        """Return the names as Arrow has them, with the NUL at the end of each."""
        import pyarrow as pa

        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(self), [None, pa.py_buffer(self.starts), pa.py_buffer(self.data)]
        )

    def take(self, which: NDArray[np.int64]) -> PackedStrings:
        """Return the names `which`, in that order."""
        return PackedStrings.parse(b"".join([self.gather(which[some]) for some in chunk_slices(len(which))]))

    def sorted_order(self) -> NDArray[np.int64]:
        """Return the places of the names in the order of their bytes."""
        import pyarrow.compute as pc

        return np.asarray(pc.sort_indices(self.array()).to_numpy(), np.int64)  # the NUL at the end of each sorts lowest

    def hashes(self, person: bytes = b"", seed: int | None = None) -> NDArray[np.uint64]:
        """Return the hash of each name: see `hash_strings`."""
        return np.concatenate(
            [np.zeros(0, np.uint64), *(hash_strings(names, person, seed) for _, names in self.chunks())]
        )

    def runs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the places of the names, equal ones together and in their order, and where each such run starts."""
        order = self.sorted_order()
        is_first, last = np.ones(len(order), np.bool_), b"\0"
        for some in chunk_slices(len(order)):
            for at, name in enumerate(self.gather(order[some]).split(b"\0")[:-1], some.start):
                is_first[at] = name != last
                last = name
        return order, np.flatnonzero(is_first)


def hash_strings(texts: Iterable[bytes], person: bytes = b"", seed: int | None = None) -> NDArray[np.uint64]:
    """Return the BLAKE2b (RFC 7693) of each text, of 8 bytes, little-endian: the same everywhere.

    Args:
        texts: The texts.
        person: The personalization, which makes hashes for one use independent of those for others.
        seed: A hash of it is the salt; None: there is none.
    """
    salt = b"" if seed is None else blake2b(b"%d" % seed, digest_size=16).digest()
    digests = [blake2b(text, digest_size=8, person=person, salt=salt).digest() for text in texts]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
