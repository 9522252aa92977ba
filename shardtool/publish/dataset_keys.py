"""The sample keys of a dataset, read from its sidecars."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import option_text
from shardtool.publish.listed_files import read_listed_sidecar
from shardtool.table.keys import contains_hashes, hash_keys
from shardtool.units import already_exist_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.dataset import shard_index
    from shardtool.dataset.dataset_file import ShardEntry
    from shardtool.storage.folders import OutputFolder


_MAX_LISTED_KEYS = 5  # keys in a message


_NUL_SUBSTITUTE = b"\xff"  # for a NUL in a foreign key: no key of ours has it, for it is no UTF-8


def read_dataset_keys(folder: OutputFolder, shards: Iterable[ShardEntry]) -> PackedStrings:
    """Return the keys of shards in the order of their samples, as the sidecars say.

    Raises:
        CorruptShard: A sidecar is not the one that the dataset file lists, or cannot be read.
    """
    return PackedStrings.parse(b"".join([encode_shard_keys(read_listed_sidecar(folder, shard)) for shard in shards]))


def encode_shard_keys(index: shard_index.ShardIndex) -> bytes:
    """Return the keys of a shard, a NUL after each."""
    text = np.frombuffer(bytes(index.keys).replace(b"\0", _NUL_SUBSTITUTE), np.uint8)
    return np.insert(text, index.key_ends[1:], 0).tobytes()


def check_new_keys(keys: PackedStrings, taken: PackedStrings, where: str) -> None:
    """Refuse keys that a dataset has already.

    By 64-bit hashes: a table of ten million keys takes gigabytes. Only keys that share a hash are compared.

    Args:
        keys: The keys of the new samples.
        taken: The keys of the dataset.
        where: What the dataset is called.

    Raises:
        InvalidRequest: There are such.
    """
    theirs, ours = hash_keys(taken), hash_keys(keys)
    alike = np.flatnonzero(contains_hashes(ours, np.sort(theirs)))

    def same() -> Iterator[bytes]:
        for at in alike.tolist():
            if any(taken[other] == keys[at] for other in np.flatnonzero(theirs == ours[at]).tolist()):
                yield keys[at]

    found = [printable(key) for key in islice(same(), _MAX_LISTED_KEYS)]
    if not found:
        return
    number = len(found) if len(found) < _MAX_LISTED_KEYS else len(alike)
    is_all = number == len(keys)
    what = f"{'all ' if is_all else ''}{already_exist_text(number, 'key')}: {format_list(found, total=number)}"
    remedy = "Was this source appended before?" if is_all else "Give these samples other keys."
    remedy = f"{remedy} {option_text('on_duplicate', 'first')} appends only those whose keys are new."
    raise InvalidRequest(where, what, expected="new keys", remedy=remedy)
