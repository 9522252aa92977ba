"""Indexes of tar shards as hfutils writes them for the Hugging Face Hub.

Source: hfutils.index.tar_create_index.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shardtool.interop.exports import OTHER_OFFSETS, ShardIndexFile, matches_start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.interop.indexed_shard import IndexedShard


def hfutils_index(shard: IndexedShard) -> bytes:
    """Return the index of hfutils.index.tar_create_index."""
    digests = shard.digests
    if digests is None:
        raise TypeError("the shard was not hashed")
    files = {
        name: {"offset": offset, "size": length, "sha256": digests.payload(index)}
        for index, (name, offset, length) in enumerate(_iter_members(shard))
    }
    document = {"filesize": shard.size, "hash": digests.git, "hash_lfs": digests.sha256, "files": files}
    return json.dumps(document).encode()


def _iter_members(shard: IndexedShard) -> Iterator[tuple[str, int, int]]:
    for key, fields in shard.samples():
        for name, offset, length in fields:
            yield f"{key.decode()}.{name.decode()}", offset, length


def compare_hfutils_index(data: bytes, shard: IndexedShard) -> str:
    """Return how an index of hfutils differs from its shard; empty if it does not differ.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: The data is not an index of hfutils.
    """
    document = json.loads(data)
    expected = {name: (offset, length) for name, offset, length in _iter_members(shard)}
    files: dict[str, dict[str, object]] = document["files"]
    listed = {name: (member["offset"], member.get("size", member.get("length"))) for name, member in files.items()}
    if document.get("filesize", shard.size) != shard.size or listed != expected:
        return OTHER_OFFSETS
    if (digests := shard.digests) is None:
        return ""
    is_same = document.get("hash", digests.git) == digests.git
    is_same = is_same and document.get("hash_lfs", digests.sha256) == digests.sha256
    hashes = [(files[name].get("sha256"), digests.payload(index)) for index, name in enumerate(expected)]
    is_same = is_same and all(member in (None, digest) for member, digest in hashes)
    return "" if is_same else "hashes of different bytes"


SHARD_INDEXES = {
    "huggingface": ShardIndexFile(
        hfutils_index, matches_start(rb'\s*\{\s*"(?:filesize|files|hash|hash_lfs)"\s*:'), compare_hfutils_index
    )
}
