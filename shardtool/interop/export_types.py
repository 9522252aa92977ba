"""What an index of another tool is made of, and how it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from shardtool.interop.hashes import Digests


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """A shard, as far as its index is made of it.

    Attributes:
        name: Its name.
        size: Its bytes.
        table: Where its samples and fields lie, with the columns of `sidecar.SCHEMA`.
        digests: Its hashes, where the export wants them.
    """

    name: str
    size: int
    table: pa.Table
    digests: Digests | None = None


@dataclass(frozen=True, slots=True)
class SplitShards:
    """The shards of a dataset, or of one of its splits.

    Attributes:
        name: The split; empty: the dataset was never split.
        shards: Each shard's name, in order, to the number of its samples.
    """

    name: str
    shards: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FolderIndex:
    """Index files of which a folder has one set, shared by all splits of a dataset.

    Attributes:
        encode: Returns their bytes by their paths in the folder, in the order in which they should appear.
        info: The one of them that lists the shards.
        counts: Returns how many samples it gives for each of these shards.
        lasting: The one that is the user's to change: where it is there, it stays. Empty: there is none.
    """

    encode: Callable[[Sequence[SplitShards]], dict[str, bytes]]
    info: str
    counts: Callable[[bytes], dict[str, int]]
    lasting: str = ""


@dataclass(frozen=True, slots=True)
class Export:
    """An index of another tool.

    Attributes:
        shard_format: `tar` or `tfrecord`: what it is an index of.
        reader: The tool.
        suffix: What the name of a shard's index ends with, in place of the shard's ending.
        encode: Returns the bytes of a shard's index; None: there is none.
        least: Samples that a shard must hold for the tool to take its index.
        hashed: Whether it has hashes of payloads: then shards are read.
        once: What else there is, once a folder.
        readme: Whether a `README.md` that names the shards comes with it.
        note: What the user should know.
    """

    shard_format: str
    reader: str
    suffix: str = ""
    encode: Callable[[IndexedShard], bytes] | None = None
    least: int = 0
    hashed: bool = False
    once: FolderIndex | None = None
    readme: bool = False
    note: str = ""
