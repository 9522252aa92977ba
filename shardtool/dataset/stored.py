"""`StoredDataset` and `StoredShard`: a finished dataset and its shards, local or remote.

Only names are kept; sizes and metadata are read on every call.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from shardtool import pattern as patterns
from shardtool.dataset.dataset_file import (
    parse_dataset,
)
from shardtool.dataset.scan import ShardScanTask, scan_shard
from shardtool.dataset.shard_file import detect_kind
from shardtool.errors import AccessRefused, CorruptShard, os_error_text
from shardtool.names import SPLIT_NAMES, to_output_name
from shardtool.storage import files, lookup
from shardtool.storage.lookup import map_paths
from shardtool.storage.paths import base_name, folder_of, join

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from shardtool.dataset.dataset_file import DatasetFile, ShardEntry
    from shardtool.dataset.scan import ShardScan
    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.dataset.sidecar_schema import ShardFacts
    from shardtool.values import DatasetLike, Dots


Value = TypeVar("Value")


_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class StoredShard:
    """A shard on disk, in a store, or on the web. Nothing is kept of it but names; what is asked is read anew.

    Attributes:
        path: Its path.
        number: Its place in its dataset, counted from 0.
        dots: Where keys end in its members' names.
        index_folder: Where its sidecar lies; None: beside it.
        entry: What the dataset file says of it; None where none of ours does.
    """

    path: str
    number: int = 0
    dots: Dots = "first"
    index_folder: str | None = None
    entry: ShardEntry | None = None

    @property
    def file_name(self) -> str:
        """Its file name."""
        return base_name(self.path)

    @property
    def name(self) -> str:
        """Its file name, as outputs have it."""
        return to_output_name(self.file_name)

    @property
    def sidecar(self) -> str:
        """The path of its sidecar, which need not be there."""
        return sidecar_path(self.path, self.index_folder)

    @property
    def format(self) -> str:
        """`tar` or `tfrecord`."""
        return detect_kind(self.path).format

    @property
    def packed(self) -> bool:
        """Whether it is compressed."""
        return bool(detect_kind(self.path).packing)

    def size(self) -> int | None:
        """Return its bytes; None where it is no plain file."""
        return lookup.plain_size(self.path)

    def scan(self, *, checksum: bool = False) -> ShardScan:
        """Return what a walk over it finds, with checksums where payloads are to be read, too.

        Raises:
            CorruptShard: It cannot be opened.
            InvalidRequest: Its name has the ending of no format.
        """
        return scan_shard(ShardScanTask(self.path, checksum, self.dots))

    def index(self, *, metadata: bool = False) -> ShardIndex:
        """Return where its samples lie, as its sidecar says or, where there is no sound one, a walk finds.

        Args:
            metadata: Whether the sidecar's other columns are wanted, too.

        Raises:
            CorruptShard: There is no sound sidecar, and the shard cannot be opened.
        """
        from shardtool.dataset.shard_index import ShardIndex, scanned_index
        from shardtool.dataset.sidecar_read import load_sidecar, parse_shard_sidecar

        where, size = self.sidecar, self.size()
        found = self._said(lambda: parse_shard_sidecar(load_sidecar(where), where, self.name, size, metadata=metadata))
        if isinstance(found, ShardIndex):
            return found
        return replace(scanned_index(self.scan()), damage=found)

    def _said(self, read: Callable[[], Value]) -> Value | CorruptShard | None:
        """Return what is read of the sidecar, or what is wrong with it; None where there is none."""
        try:
            return read()
        except FileNotFoundError:
            return None
        except AccessRefused:
            if self.index_folder is None:  # said of what is not there, where we may not list
                return None
            raise
        except OSError as error:
            return CorruptShard(self.sidecar, f"cannot be read: {os_error_text(error)}")
        except CorruptShard as error:
            return error

    def head(self) -> tuple[int, ShardFacts] | None:
        """Return how many samples it has, as the footer of its sidecar says, and what that says of it.

        None: there is no sidecar, or one that is damaged or about another shard.
        """
        from shardtool.dataset.sidecar_read import read_sample_count

        found = self._said(partial(read_sample_count, self.sidecar, self.name, self.size()))
        return found if isinstance(found, tuple) else None

    def schema(self) -> pa.Schema:
        """Return the columns of its sidecar and their types, by the footer alone; of a shard without one, `SCHEMA`."""
        from shardtool.dataset.sidecar_read import read_sidecar_schema
        from shardtool.dataset.sidecar_schema import SIDECAR_SCHEMA

        return SIDECAR_SCHEMA if self.head() is None else read_sidecar_schema(self.sidecar)


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """A dataset on disk, in a store, or on the web.

    Attributes:
        given: What the user named.
        shards: In the order in which they were named; some may not be there.
        dataset_file: The path of the dataset file, which may list other shards, too; None where there is none.
        folder: Where the dataset file lies, and the shards, or folders that hold them; "" is the current folder.
        own: Whether the dataset file is one of ours, damaged or not: then sidecars lie beside it.
        whole: Whether the dataset itself was named: by its file or folder, or by a range that is all of it. Then
            shards that its file does not list are no part of it.
        missing: Names of a range that are neither there nor listed: the first of them.
        file: What the dataset file says of these shards, once it was read; None where there is none of ours.
        unlisted: The paths of further shards, which it does not list.
    """

    given: DatasetLike
    shards: tuple[StoredShard, ...] = field(repr=False)
    dataset_file: str | None
    folder: str
    own: bool = False
    whole: bool = False
    missing: tuple[str, ...] = ()
    file: DatasetFile | None = None
    unlisted: tuple[str, ...] = ()

    @property
    def index_folder(self) -> str | None:
        """The folder of all sidecars; None: each lies beside its shard."""
        return self.folder if self.own else None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the shards."""
        return tuple(shard.path for shard in self.shards)

    @property
    def where(self) -> str:
        """Its dataset file or else its folder, for messages."""
        return self.dataset_file or self.folder or "."

    @property
    def split(self) -> str:
        """The split that it is, as its dataset file or else its name says; empty: none."""
        if self.file is not None and self.file.made.split:
            return self.file.made.split
        words = _WORD.findall(base_name(self.dataset_file or self.paths[0]).lower())
        return next((word for word in words if word in SPLIT_NAMES), "")

    def folders(self) -> list[str]:
        """Return the folders of the shards, in order."""
        return list(dict.fromkeys(map(folder_of, self.paths)))

    def read(self) -> StoredDataset:
        """Return it with what the dataset file says of just these shards.

        Of a dataset that was named as a whole, the shards are then those that it lists. Where it does not list all that
        were named one by one, it says nothing of them.

        Raises:
            CorruptShard: It is damaged.
        """
        if self.dataset_file is None or not self.own:
            return self
        file = parse_dataset(files.read_small(self.dataset_file), self.dataset_file)
        listed = {one.name for one in file.shards}
        shards = [shard for shard in self.shards if shard.name in listed]
        if not self.whole and len(shards) < len(self.shards):
            return self
        unlisted = tuple(shard.path for shard in self.shards if shard.name not in listed)
        found = replace(self, shards=tuple(shards), unlisted=unlisted)
        return found.with_dataset_file(file.part([shard.name for shard in shards]))

    def with_dataset_file(self, file: DatasetFile) -> StoredDataset:
        """Return it with what a dataset file says of it."""
        entries = {one.name: one for one in file.shards}
        shards = tuple(
            replace(shard, number=at, dots=file.made.dots, entry=entries.get(shard.name))
            for at, shard in enumerate(self.shards)
        )
        return replace(self, file=file, shards=shards)

    def with_dots(self, dots: Dots) -> StoredDataset:
        """Return it with where keys end in the names of members."""
        return replace(self, shards=tuple(replace(shard, dots=dots) for shard in self.shards))


def make_dataset(paths: Sequence[str], file: str | None, folder: str, *, own: bool, **more: Any) -> StoredDataset:
    beside = folder if own else None
    shards = tuple(StoredShard(path, at, index_folder=beside) for at, path in enumerate(paths))
    return StoredDataset((), shards, file, folder, own=own, **more)


def sidecar_path(shard: str, folder: str | None) -> str:
    """Return the path of a shard's sidecar, in a folder, or beside the shard where that is None."""
    return join(folder_of(shard) if folder is None else folder, patterns.sidecar_name(base_name(shard)))


def recorded_dots(found: StoredDataset) -> Dots:
    """Return where keys end in members' names, as far as the sidecars show: where a key has a dot, at the last one.

    Args:
        found: Shards without a dataset file of ours that says it.
    """
    from shardtool.dataset.sidecar_read import parse_sidecar

    sidecars = [shard.sidecar for shard in found.shards]
    for where, data in zip(sidecars, map_paths(files.read_optional, sidecars), strict=True):
        with suppress(CorruptShard):
            index = None if data is None else parse_sidecar(data, where, None, metadata=False)
            if index is None or b"." not in bytes(index.keys):
                continue
            if any(b"." in key.rpartition(b"/")[2][1:] for key in index.all_keys()):
                return "last"
    return "first"
