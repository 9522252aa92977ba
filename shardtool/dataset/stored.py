"""A dataset in storage, and its shards. Methods do not cache file contents."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from shardtool import pattern as patterns
from shardtool.dataclass import dataclass
from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, parse_dataset
from shardtool.dataset.scan import ShardScan, ShardScanTask, scan_shard
from shardtool.dataset.shard_file import detect_kind
from shardtool.errors import AccessRefused, CorruptShard, os_error_text
from shardtool.names import SPLIT_NAMES, to_output_name
from shardtool.storage import files
from shardtool.storage.paths import base_name, folder_of, join

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.dataset.sidecar_schema import ShardFacts
    from shardtool.values import DatasetLike, Dots


Value = TypeVar("Value")
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class StoredShard:
    """A shard on disk, in a store or on the web.

    Attributes:
        dots: Whether keys end at the `first` or `last` dot of member names.
        index_folder: The folder of the sidecar, or None for the folder of the shard.
    """

    path: str
    number: int = 0
    dots: Dots = "first"
    index_folder: str | None = None
    entry: ShardEntry | None = None

    @property
    def file_name(self) -> str:
        """The local file name."""
        return base_name(self.path)

    @property
    def name(self) -> str:
        """The shard's name in dataset files."""
        return to_output_name(self.file_name)

    @property
    def sidecar(self) -> str:
        """The path of the sidecar, even if the sidecar does not exist."""
        return sidecar_path(self.path, self.index_folder)

    @property
    def format(self) -> str:
        """The format, `tar` or `tfrecord`."""
        return detect_kind(self.path).format

    def size(self) -> int | None:
        """Return the size in bytes, or None if the shard is not a regular file."""
        return files.plain_size(self.path)

    def scan(self, *, checksum: bool = False) -> ShardScan:
        """Scan the shard. If `checksum`, also read the payloads."""
        return scan_shard(ShardScanTask(self.path, checksum, self.dots))

    def index(self, *, metadata: bool = False) -> ShardIndex:
        """Return the index from the sidecar, or scan the shard if there is no valid sidecar."""
        from shardtool.dataset.shard_index import ShardIndex, scanned_index
        from shardtool.dataset.sidecar_read import load_sidecar, parse_shard_sidecar

        path, size = self.sidecar, self.size()
        index = self._read_sidecar(
            lambda: parse_shard_sidecar(load_sidecar(path), path, self.name, size, metadata=metadata)
        )
        return index if isinstance(index, ShardIndex) else replace(scanned_index(self.scan()), damage=index)

    def _read_sidecar(self, read: Callable[[], Value]) -> Value | CorruptShard | None:
        try:
            return read()
        except FileNotFoundError:
            return None
        except AccessRefused:
            # a store denies access to missing objects if the user may not list objects
            if self.index_folder is None:
                return None
            raise
        except OSError as error:
            return CorruptShard(self.sidecar, f"cannot be read: {os_error_text(error)}")
        except CorruptShard as error:
            return error

    def read_footer(self) -> tuple[int, ShardFacts] | None:
        """Return the sample count and the facts in the sidecar's footer, or None without a valid sidecar."""
        from shardtool.dataset.sidecar_read import read_sample_count

        content = self._read_sidecar(partial(read_sample_count, self.sidecar, self.name, self.size()))
        return content if isinstance(content, tuple) else None

    def schema(self) -> pa.Schema:
        """Return the schema of the sidecar, or `SIDECAR_SCHEMA` without a valid sidecar."""
        from shardtool.dataset.sidecar_read import read_sidecar_schema
        from shardtool.dataset.sidecar_schema import SIDECAR_SCHEMA

        return SIDECAR_SCHEMA if self.read_footer() is None else read_sidecar_schema(self.sidecar)


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """A dataset on disk, in a store or on the web.

    Attributes:
        shards: The shards, in the order of the dataset file, range or list. Some may not exist.
        dataset_file: Path of the dataset file, or None. The file may also list shards that are not in `shards`.
        folder: The folder of the dataset file, else of the first shard. "" is the current folder.
        has_own_file: Whether shardtool wrote the dataset file, even if the file is damaged.
        is_whole: Whether the caller named the whole dataset, by its file, folder or complete range. If true,
            `read` moves shards that are not in the dataset file to `unlisted`.
        missing: Names (up to 1,000) in a range for which no file exists, and that the dataset file does not list.
        unlisted: Paths of shards that the dataset file does not list.
    """

    argument: DatasetLike
    shards: tuple[StoredShard, ...] = field(repr=False)
    dataset_file: str | None
    folder: str
    has_own_file: bool = False
    is_whole: bool = False
    missing: tuple[str, ...] = ()
    file: DatasetFile | None = None
    unlisted: tuple[str, ...] = ()

    @property
    def index_folder(self) -> str | None:
        """The folder of all sidecars, or None if each sidecar is next to its shard."""
        return self.folder if self.has_own_file else None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the shards."""
        return tuple(shard.path for shard in self.shards)

    @property
    def where(self) -> str:
        """Location for messages: the dataset file, else the only shard, else the folder."""
        return self.dataset_file or (self.paths[0] if len(self.paths) == 1 else self.folder or ".")

    @property
    def split(self) -> str:
        """Name of the split from the dataset file, else from the file name, or "" if unknown."""
        if self.file is not None and self.file.run.split:
            return self.file.run.split
        words = _WORD.findall(base_name(self.dataset_file or self.paths[0]).lower())
        return next((word for word in words if word in SPLIT_NAMES), "")

    def folders(self) -> list[str]:
        """Return the folders of the shards, without repetitions."""
        return list(dict.fromkeys(map(folder_of, self.paths)))

    def read(self) -> StoredDataset:
        """Read the dataset file, and return the dataset with the content of the file.

        If the caller named shards, a dataset file that does not list all of them is ignored.
        """
        if self.dataset_file is None or not self.has_own_file:
            return self
        file = parse_dataset(files.read_small(self.dataset_file), self.dataset_file)
        listed = {entry.name for entry in file.shards}
        shards = [shard for shard in self.shards if shard.name in listed]
        if not self.is_whole and len(shards) < len(self.shards):
            return self
        unlisted = tuple(shard.path for shard in self.shards if shard.name not in listed)
        dataset = replace(self, shards=tuple(shards), unlisted=unlisted)
        return dataset.with_dataset_file(file.part([shard.name for shard in shards]))

    def with_dataset_file(self, file: DatasetFile) -> StoredDataset:
        """Return the dataset with `file` as the content of its dataset file."""
        entries = {entry.name: entry for entry in file.shards}
        shards = tuple(
            replace(shard, number=index, dots=file.run.dots, entry=entries.get(shard.name))
            for index, shard in enumerate(self.shards)
        )
        return replace(self, file=file, shards=shards)

    def with_dots(self, dots: Dots) -> StoredDataset:
        """Return the dataset with `dots` for all shards."""
        return replace(self, shards=tuple(replace(shard, dots=dots) for shard in self.shards))


def make_dataset(
    paths: Sequence[str], file: str | None, folder: str, *, has_own_file: bool, **attributes: Any
) -> StoredDataset:
    """Create a dataset from shard paths."""
    index_folder = folder if has_own_file else None
    shards = tuple(StoredShard(path, index, index_folder=index_folder) for index, path in enumerate(paths))
    return StoredDataset((), shards, file, folder, has_own_file=has_own_file, **attributes)


def sidecar_path(shard: str, folder: str | None) -> str:
    """Return the path of a shard's sidecar: in `folder`, or next to the shard if `folder` is None."""
    return join(folder_of(shard) if folder is None else folder, patterns.sidecar_name(base_name(shard)))


def recorded_dots(dataset: StoredDataset) -> Dots:
    """Find out from the sidecars whether keys end at the first or last dot of member names.

    Return `last` if the last path component of any key has a dot after its first character, else `first`.
    """
    from shardtool.dataset.sidecar_read import parse_sidecar

    sidecars = [shard.sidecar for shard in dataset.shards]
    for path, data in zip(sidecars, files.map_paths(files.read_optional, sidecars), strict=True):
        with suppress(CorruptShard):
            index = None if data is None else parse_sidecar(data, path, None, metadata=False)
            if index is None or b"." not in bytes(index.keys):
                continue
            if any(b"." in key.rpartition(b"/")[2][1:] for key in index.all_keys()):
                return "last"
    return "first"
