"""`index`: the indexes of a dataset. The library twin of `shardtool index`.

So far it makes the index files that other tools want beside shards, from the sidecars: no shard is opened.
Nothing is visible before all of it is written.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from shardtool.checksum import crc32c
from shardtool.dataset import read_dataset
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, listing, printable
from shardtool.interop.exports import EXPORTS
from shardtool.pattern import DATASET_SUFFIX, FORMATS, SIDECAR_SUFFIX, sidecar_name
from shardtool.sample import counted, to_bytes
from shardtool.storage import open_folder
from shardtool.verbs.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from shardtool.dataset import DatasetFile, ShardEntry
    from shardtool.interop.exports import Export
    from shardtool.storage import Folder, Staged

_REMEDY = "`create --resume` makes it again."


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Index files for other tools.

    Attributes:
        dataset_file: The path of what they were made for.
        folder: Where they are.
        formats: What was asked for.
        files: Their names, by shard, then by format.
        kept: How many of them were there already, the same to the byte.
        notes: What the user was told.
    """

    dataset_file: str
    folder: str
    formats: tuple[str, ...]
    files: tuple[str, ...]
    kept: int
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the result as data, the way `--json` prints it."""
        return asdict(self)


def export(
    dataset_file: str | os.PathLike[str],
    formats: str | Sequence[str],
    output: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    observer: Observer | None = None,
) -> ExportResult:
    """Write the index files that other tools want for the shards of a dataset.

    Args:
        dataset_file: Such as `out.json`.
        formats: `dali-tfrecord`, `tfrecord` or `dali-webdataset`; one or several.
        output: The folder that they go into; None: beside the shards.
        overwrite: Replace files of these names; without it, only files with the same bytes may be there.
        observer: Is told of progress, and of what the user should know.

    Raises:
        InvalidRequest: The request makes no sense.
        CorruptShard: The dataset file or a sidecar is damaged.
        OutputExists: There are other files of these names, or another run is writing here; nothing was touched.
        OutputFailed: They cannot be written.
    """
    source, name = os.path.split(os.fspath(dataset_file))
    wanted = _wanted([formats] if isinstance(formats, str) else [*formats])
    job = _Job(open_folder(source), name, wanted, observer or Observer())
    job.check()
    target = job.folder if output is None else open_folder(os.fspath(output))
    target.ready()
    with target.lock(name.removesuffix(DATASET_SUFFIX)):
        files, kept = job.write(target, overwrite=overwrite)
    where, folder = printable(os.fspath(dataset_file)), printable(target.path or ".")
    return ExportResult(where, folder, tuple(wanted), files, kept, tuple(job.notes))


def _wanted(formats: list[str]) -> dict[str, Export]:
    if unknown := sorted(set(formats) - set(EXPORTS)) or not formats:
        found = repr(unknown[0]) if isinstance(unknown, list) else "no format"
        raise InvalidRequest("--export", found, expected=f"one of {', '.join(EXPORTS)}")
    return {one: EXPORTS[one] for one in formats}


class _Job:
    """A request that makes sense so far.

    Args:
        folder: Of the dataset.
        name: Of its dataset file.
        wanted: What to make of each sidecar.
        observer: Is told of progress.
    """

    def __init__(self, folder: Folder, name: str, wanted: dict[str, Export], observer: Observer) -> None:
        self.folder, self.name, self.wanted, self.observer = folder, name, wanted, observer
        self.notes: list[str] = []

    def check(self) -> DatasetFile:
        """Return what the dataset file says, if these index files can be made of it."""
        if not self.name.endswith(DATASET_SUFFIX):
            where = self.folder.full_path(self.name) or "DATASET"
            raise InvalidRequest(where, "no dataset file", expected="its name, such as out.json")
        try:
            data = self.folder.read(self.name)
        except OSError as error:
            found = (error.strerror or str(error)).lower()
            raise InvalidRequest(self.folder.full_path(self.name), found, expected="a dataset file") from None
        dataset = read_dataset(data, self.folder.full_path(self.name))
        for name, export in self.wanted.items():
            if export.shard_format != dataset.format:
                others = [one for one, other in EXPORTS.items() if other.shard_format == dataset.format]
                raise InvalidRequest(
                    f"--export {name}", f"an index of {export.shard_format} shards, and these are {dataset.format}",
                    expected=f"one of {', '.join(others)}",
                )  # fmt: skip
        if packed := [shard.name for shard in dataset.shards if not shard.name.endswith(tuple(FORMATS))]:
            raise InvalidRequest(packed[0], "a compressed shard", expected="plain ones: offsets lead nowhere else")
        return dataset

    def write(self, target: Folder, *, overwrite: bool) -> tuple[tuple[str, ...], int]:
        """Write all index files, then let them appear; return their names, and how many were there already."""
        dataset = self.check()  # again: only under the lock does nobody replace it
        for name, export in self.wanted.items():
            few = [shard.name for shard in dataset.shards if shard.samples < export.least]
            if few:
                what = counted(len(few), f"shard with fewer than {counted(export.least, 'sample')}")
                self._note(f"{export.reader} cannot read the index ({name}) of {what}: {listing(few, 3)}")
        names = [_index_name(shard, export) for shard in dataset.shards for export in self.wanted.values()]
        samples, size = (sum(getattr(one, name) for one in dataset.shards) for name in ("samples", "sidecar_size"))
        self.observer.start(samples, size, len(dataset.shards))
        staged: list[Staged] = []
        target.discard_staged(names)
        try:
            for name, data in self._encoded(dataset):
                if not _is_there(target, name, data, overwrite=overwrite):
                    output = target.stage(name)
                    try:
                        output.write(data)
                        staged.append(output.finish())
                    except BaseException:
                        output.abandon()
                        raise
            if staged:
                target.publish(*staged)
        finally:
            target.discard_staged(names)
        return tuple(names), len(names) - len(staged)

    def _encoded(self, dataset: DatasetFile) -> Iterator[tuple[str, bytes]]:
        """Yield name and bytes of each index file, one shard at a time."""
        for shard in dataset.shards:
            table = self._index(shard)
            for export in self.wanted.values():
                yield _index_name(shard, export), export.encode(table, shard.name)
            self.observer.advance(shard.samples, shard.sidecar_size, 1)
            self.observer.log(f"{shard.name}: {counted(shard.samples, 'sample')}")

    def _index(self, shard: ShardEntry) -> Any:
        """Return a shard's index, if its sidecar is the one that the dataset file lists."""
        from shardtool.sidecar import read_facts, read_index

        where, name = self.folder.full_path(shard.sidecar), os.fsdecode(to_bytes(shard.sidecar))
        fact = self.folder.facts([name]).get(name)
        found = "no such file" if fact is None else f"{fact.size:,} bytes"
        if fact is not None and fact.size == shard.sidecar_size:  # a size that is right may be held in memory
            try:
                data = self.folder.read(name)
            except OSError as error:
                raise CorruptShard(where, (error.strerror or str(error)).lower(), remedy=_REMEDY) from None
            if crc32c(data) != shard.sidecar_crc:
                raise CorruptShard(where, "its checksum is not the one in the dataset file", remedy=_REMEDY)
            said = read_facts(data, where)
            table = read_index(data, where)
            listed = (shard.name, shard.size, shard.crc, shard.samples)
            if (said.name, said.size, said.crc, table.num_rows) == listed:
                return table
            found = f"the index of {said.name}, {said.size:,} bytes, {counted(table.num_rows, 'sample')}"
        expected = f"the index of {shard.name}, as the dataset file lists it"
        raise CorruptShard(where, found, expected=expected, remedy=_REMEDY)

    def _note(self, text: str) -> None:
        self.notes.append(printable(text))
        self.observer.note(self.notes[-1])


def _index_name(shard: ShardEntry, export: Export) -> str:
    name = sidecar_name(shard.name).removesuffix(SIDECAR_SUFFIX) + export.suffix
    return os.fsdecode(to_bytes(name))


def _is_there(target: Folder, name: str, data: bytes, *, overwrite: bool) -> bool:
    """Tell whether a file has these bytes already.

    Raises:
        OutputExists: It has others, and nobody asked to replace it.
    """
    fact = target.facts([name]).get(name)
    if fact is None:
        return False
    if fact.size == len(data) and not fact.is_folder:
        with suppress(OSError):
            if target.read(name) == data:
                return True
    if fact.is_folder:
        raise OutputExists(target.full_path(name), "a folder", remedy="Choose another folder with --output.")
    if not overwrite:
        raise OutputExists(
            target.full_path(name), "a file there already, with other bytes",
            remedy="Replace it with --overwrite, or choose another folder with --output.",
        )  # fmt: skip
    return False
