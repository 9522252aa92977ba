"""Define what a duplicate is: a sample with the same content as another sample.

Keys, labels and numbers are not content. The content of a sample is the first item in this list that the sample has:

1. its images, audio, video and arrays
2. its texts
3. its other bytes
4. its JSON

Two samples are duplicates if their content fields have the same digests (16-byte BLAKE2b, RFC 7693), in any order.
Digests are computed only for samples with the same payload sizes (and CRC-32C, if known) as another sample.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.dataset.payload import content_type, is_label_name
from shardtool.dataset.shard_file import iter_payload, open_shard
from shardtool.errors import CorruptShard
from shardtool.fingerprint import PAYLOAD_DIGEST_SIZE
from shardtool.values import number_fields

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.dataset.shard_index import ShardIndex

    Integers = NDArray[np.int64]


JSON_RANK, _NO_RANK = 3, 4
_CONTENT_RANKS = {"image": 0, "audio": 0, "video": 0, "array": 0, "text": 1, "bytes": 2, "pickle": 2, "json": JSON_RANK}
# The multipliers are odd, so different numbers have different products modulo 2^64.
_HASH_MULTIPLIERS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)


class Content(NamedTuple):
    """The fields that are compared to find duplicates.

    Attributes:
        rows: Row numbers of these fields in a shard's index or in a sample table.
        samples: For each of `rows`, the number of its sample, ascending.
        ranks: uint8, the `content_rank` of each sample (not of each row). Duplicates have the same rank.
    """

    rows: Integers
    samples: Integers
    ranks: NDArray[np.uint8]

    def select(self, is_chosen: NDArray[np.bool_]) -> Content:
        """Return the content of the samples for which `is_chosen` is true."""
        chosen = is_chosen[self.samples]
        return Content(self.rows[chosen], self.samples[chosen], self.ranks)

    def ids(self, sizes: Integers, crcs: NDArray[np.integer] | None) -> NDArray[np.uint64]:
        """Return a hash of each sample's content, or 0 if the sample has no content. Duplicates have equal hashes.

        The hash covers the payload sizes of `rows`, and their CRC-32C unless `crcs` is None.
        """
        mixed = sizes.astype(np.uint64) * _HASH_MULTIPLIERS[0]
        if crcs is not None:
            mixed ^= crcs.astype(np.uint64) * _HASH_MULTIPLIERS[1]
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _HASH_MULTIPLIERS[2]
        starts = self._starts()
        sums = np.zeros(len(self.ranks), np.uint64)
        if len(starts):
            samples = self.samples[starts]
            sums[samples] = np.add.reduceat(mixed, starts) + self.ranks[samples] + np.uint64(1)
        return sums

    def groups(self, digests: NDArray[np.bytes_]) -> list[list[int]]:
        """Return groups of duplicates as lists of sample numbers.

        `digests` has the payload digest of each of `rows`, or b"" if the payload cannot be read.
        """
        starts = self._starts()
        ends, samples, combined = np.append(starts[1:], len(digests)), self.samples[starts], digests[starts]
        for index in np.flatnonzero(ends - starts > 1).tolist():
            combined[index] = _combine_digests(digests[starts[index] : ends[index]].tolist())
        samples, combined = samples[combined != b""], combined[combined != b""]
        order = np.lexsort((combined, self.ranks[samples]))
        samples, combined = samples[order], combined[order]
        same = (combined[1:] == combined[:-1]) & (self.ranks[samples[1:]] == self.ranks[samples[:-1]])
        starts = np.flatnonzero(np.append(True, ~same))[: len(samples)]
        ends = np.append(starts[1:], len(samples))
        several = ends - starts > 1
        return [samples[start:end].tolist() for start, end in zip(starts[several], ends[several], strict=True)]

    def _starts(self) -> Integers:
        return np.flatnonzero(np.diff(self.samples, prepend=-1))


def find_content(
    fields: Sequence[str], labels: Container[str], codes: NDArray[np.integer], counts: NDArray[np.integer]
) -> Content:
    """Return the fields that form the content of each sample.

    Args:
        labels: Fields that contain labels or numbers.
        codes: Index in `fields` of each field, sample by sample.
        counts: Number of fields of each sample. In a damaged shard, `codes` may lack fields of the last sample.
    """
    ranks = [_NO_RANK if is_label_name(name) or name in labels else content_rank(name) for name in fields]
    row_ranks, sample_of_row = np.array(ranks, np.uint8)[codes], np.repeat(np.arange(len(counts)), counts)[: len(codes)]
    sample_ranks = np.full(len(counts), _NO_RANK, np.uint8)
    np.minimum.at(sample_ranks, sample_of_row, row_ranks)
    rows = np.flatnonzero((row_ranks < _NO_RANK) & (row_ranks == sample_ranks[sample_of_row]))
    return Content(rows, sample_of_row[rows], sample_ranks)


def content_rank(field: str) -> int:
    """Return 0 (images) to 3 (JSON), or 4 (not content). A sample's content is its fields of the lowest rank."""
    return _CONTENT_RANKS.get(content_type(field), _NO_RANK)


def repeated(ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask of the `ids` that occur more than once, except 0 (no content)."""
    order = np.argsort(ids, kind="stable")
    same = (ids[order][1:] == ids[order][:-1]) & (ids[order][1:] != 0)
    is_repeated = np.zeros(len(ids), np.bool_)
    is_repeated[order] = np.append(same, False) | np.append(False, same)
    return is_repeated


def _combine_digests(digests: Iterable[bytes]) -> bytes:
    parts = sorted(digests)
    if len(parts) == 1 or b"" in parts:
        return parts[0]
    padded = b"".join(part.ljust(PAYLOAD_DIGEST_SIZE, b"\0") for part in parts)
    return blake2b(padded, digest_size=PAYLOAD_DIGEST_SIZE).digest()


def recorded_labels(file: DatasetFile | None) -> frozenset[str]:
    """Return the fields that contain labels, numbers or lists according to the dataset file."""
    if file is None:
        return frozenset()
    lists = (name for name, feature in file.features.items() if feature.is_list)
    return frozenset((*number_fields(file.types), *file.classes, *lists))


def index_content(index: ShardIndex, labels: Collection[str]) -> Content:
    """Return the content of a shard's samples. `labels` is the result of `recorded_labels`."""
    numbers = (name for name, kind in index.kinds.items() if kind != "bytes")
    return find_content(index.names, {*labels, *numbers}, index.codes, index.counts)


def sample_digests(path: str, index: ShardIndex, content: Content, samples: Sequence[int]) -> list[bytes]:
    """Return the digest of each sample's content, or b"" if the content cannot be read."""
    sides = (np.searchsorted(content.samples, samples, side).tolist() for side in ("left", "right"))
    rows = [content.rows[start:end].tolist() for start, end in zip(*sides, strict=True)]
    digests: dict[int, bytes] = {}
    with open_shard(path) as shard:
        # Sort the rows by offset, because a compressed shard can only be read sequentially.
        for row in sorted(chain.from_iterable(rows), key=index.offsets.__getitem__):
            digest = blake2b(digest_size=PAYLOAD_DIGEST_SIZE)
            try:
                for block in iter_payload(shard, int(index.offsets[row]), int(index.lengths[row]), path):
                    digest.update(block)
                digests[row] = digest.digest()
            except CorruptShard:
                digests[row] = b""
    return [_combine_digests(map(digests.__getitem__, sample_rows)) for sample_rows in rows]
