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
    from collections.abc import Iterable

    from shardtool.dataset.dataset_file import ShardEntry
    from shardtool.storage.folders import OutputFolder


_MAX_LISTED_KEYS = 5


def read_dataset_keys(folder: OutputFolder, shards: Iterable[ShardEntry]) -> PackedStrings:
    """Return the sample keys of shards, in shard order."""
    return PackedStrings.parse(b"".join([read_listed_sidecar(folder, shard).keys_with_nul() for shard in shards]))


def check_new_keys(keys: PackedStrings, existing_keys: PackedStrings, where: str) -> None:
    """Raise an error if `existing_keys` contain any of `keys`. To save memory, compare hashes first."""
    existing_hashes, new_hashes = hash_keys(existing_keys), hash_keys(keys)
    candidates = np.flatnonzero(contains_hashes(new_hashes, np.sort(existing_hashes)))
    duplicate_keys = (
        keys[index]
        for index in candidates.tolist()
        if any(existing_keys[i] == keys[index] for i in np.flatnonzero(existing_hashes == new_hashes[index]).tolist())
    )
    duplicates = [printable(key) for key in islice(duplicate_keys, _MAX_LISTED_KEYS)]
    if not duplicates:
        return
    count = len(duplicates) if len(duplicates) < _MAX_LISTED_KEYS else len(candidates)
    is_all = count == len(keys)
    found = f"{'all ' if is_all else ''}{already_exist_text(count, 'key')}: {format_list(duplicates, total=count)}"
    remedy = "This source may have been appended before." if is_all else "Rename these samples."
    remedy = f"{remedy} {option_text('on_duplicate', 'first')} appends only samples with new keys."
    raise InvalidRequest(where, found, expected="new keys", remedy=remedy)
