"""Write and update the index files of other tools for a dataset.

They are derived from the dataset file and the sidecars. Workers read the shards only for formats that contain
hashes
of payloads. All files are staged before the first one is published.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, parse_dataset, parse_shard_names
from shardtool.dataset.expand import splits_in
from shardtool.dataset.find import check_folders_inside
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, format_list, os_error_text
from shardtool.interop import exports, huggingface, indexed_shard
from shardtool.interop import exports as interop_exports
from shardtool.messages import export_call_text, export_text, flag_text, option_text, recreate_hint
from shardtool.names import to_local_name, to_output_name
from shardtool.pattern import DATASET_SUFFIX, ShardPattern
from shardtool.publish.foreign_index_files import open_subfolder, read_or_empty, read_sample_counts
from shardtool.publish.listed_files import RUN_VERIFY, read_listed_sidecar
from shardtool.shard_names import is_compressed_name
from shardtool.storage import paths
from shardtool.storage.folders import OutputFolder, open_folder
from shardtool.storage.staging import DurableFile
from shardtool.units import already_exist_text, pluralize

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.execute.pool import Pool
    from shardtool.interop.exports import ExportFormat, FolderIndex
    from shardtool.request.observer import Notes


IndexFile = tuple[
    str, bytes, bool, bool
]  # its path in a folder, its bytes, whether it replaces another, whether that stays


def _encode_folder_index(
    once: FolderIndex, datasets: Sequence[DatasetFile], target: OutputFolder
) -> tuple[dict[str, bytes], bool]:
    """Return the files that cover these datasets, by their paths, in the order in which they should appear.

    And whether what is there now is our own, of fewer splits, or of fewer shards since samples were appended: it may be
    replaced without a word.

    Raises:
        InvalidRequest: A name cannot stand in them.
        OutputExists: The ones that are there cover other shards that are there.
    """
    files, counts = once.encode(datasets), read_sample_counts(once, target)
    check_other_shards(once, target, counts.keys() - {shard.name for dataset in datasets for shard in dataset.shards})
    earlier = [found for one in datasets if (found := _match_listed_shards(one, counts)) is not None]
    was = once.encode(earlier)
    return files, all(read_or_empty(target, one) == was[one] for one in was if one != once.lasting)


def _match_listed_shards(dataset: DatasetFile, listed: Collection[str]) -> DatasetFile | None:
    """Return a dataset as it was when all of its shards were listed: now, or before samples were appended."""
    for shards in (len(dataset.shards), *reversed(dataset.appends)):
        if all(shard.name in listed for shard in dataset.shards[:shards] if shard.samples):
            return replace(dataset, shards=dataset.shards[:shards])
    return None


def check_other_shards(once: FolderIndex, target: OutputFolder, others: Iterable[str]) -> None:
    """Refuse files that cover shards of another dataset.

    Raises:
        OutputExists: Some of these other shards are there.
    """
    there = {to_output_name(name) for name in target.names()}
    if others := sorted(name for name in others if "/" in name or name in there):
        found = f"that of other shards: {format_list(others, 3)}"
        expected = "one dataset in a folder, or the splits of one"
        remedy = f"Put the datasets into folders of their own, or remove {os.path.dirname(once.info) or once.info}."
        raise OutputExists(target.full_path(once.info), found, expected=expected, remedy=remedy)


def _discard_staged(folders: Mapping[str, OutputFolder], paths: Sequence[str]) -> None:
    """Remove what is staged of some files, or was left so by a killed run."""
    for folder in folders.values():
        folder.discard_staged(map(os.path.basename, paths))


def _has_same_bytes(folder: OutputFolder, name: str, data: bytes, *, overwrite: bool) -> bool:
    """Tell whether a file has these bytes already.

    Raises:
        OutputExists: It lists others, and may not be replaced.
    """
    fact = folder.facts([name]).get(name)
    if fact is None:
        return False
    where, remedy = folder.full_path(name), f"choose another folder with {option_text('output')}."
    if fact.special:
        raise OutputExists(where, fact.special, remedy=remedy.capitalize())
    if fact.size == len(data) and read_or_empty(folder, name) == data:
        return True
    if not overwrite:
        remedy = f"Replace it with {flag_text('overwrite')}, or {remedy}"
        raise OutputExists(where, "a file there already, with other bytes", remedy=remedy)
    if name.endswith(DATASET_SUFFIX) and parse_shard_names(read_or_empty(folder, name)) is not None:
        raise OutputExists(where, "a dataset file", remedy=remedy.capitalize())
    return False


_FOLDER_LOCK = ".exported"  # no dataset is called that: for the files of which a folder has one set


def check_index_files(
    outputs: Sequence[tuple[ShardPattern, int]], wanted: Mapping[str, ExportFormat], *, overwrite: bool
) -> None:
    """Check, before the shards of a run are written, that their indexes may be written, too.

    Args:
        outputs: The names of the shards of each dataset, and how many there will be.
        wanted: What to make of them.
        overwrite: Whether other files may be replaced.

    Raises:
        InvalidRequest: Two files would have the same name.
        OutputExists: There are files of these names that may not be replaced.
    """
    for pattern, shards in outputs:
        folder = open_folder(pattern.folder)
        names = list_index_names(map(pattern.shard, range(shards)), wanted, pattern.dataset_file)
        for once in filter(None, (export.once for export in wanted.values())):
            listed = read_sample_counts(once, folder)
            check_other_shards(once, folder, [name for name in listed if not any(one.owns(name) for one, _ in outputs)])
            names.append(once.info)
        if not overwrite and (found := [*folder.facts(names)]):
            what = f"{already_exist_text(len(found), 'file')}: {format_list(found, 3)}"
            remedy = f"Remove them, choose another folder, or {option_text('if_exists', 'overwrite')}."
            raise OutputExists(folder.path or ".", what, remedy=remedy)


class Exporter:
    """Makes the indexes of one dataset. The caller of `write` holds the dataset's lock.

    Args:
        folder: The folder of the dataset.
        name: The name of its dataset file.
        wanted: What to make.
        notes: Gets notes that it does not have yet, and its observer the progress.
    """

    def __init__(self, folder: OutputFolder, name: str, wanted: Mapping[str, ExportFormat], notes: Notes) -> None:
        self.folder, self.name, self.wanted, self.observer = folder, name, wanted, notes.observer
        self._note = notes.add_new

    def check(self) -> DatasetFile:
        """Return what the dataset file says, if these indexes can be made of it.

        Raises:
            InvalidRequest: They cannot.
            CorruptShard: It is damaged.
        """
        where = self.folder.full_path(self.name)
        if not self.name.endswith(DATASET_SUFFIX):
            raise InvalidRequest(where or "the dataset", "no dataset file", expected="its name, such as out.json")
        try:
            data = self.folder.read(self.name)
        except OSError as error:
            raise InvalidRequest(where, os_error_text(error), expected="a dataset file") from None
        dataset = parse_dataset(data, where)
        check_folders_inside(where, {dataset.shards_folder})
        exports.select_exports([*self.wanted], dataset.format)
        if packed := [shard.name for shard in dataset.shards if is_compressed_name(shard.name)]:
            raise InvalidRequest(packed[0], "a compressed shard", expected="plain ones: offsets lead nowhere else")
        return dataset

    def write(self, target: OutputFolder, pool: Pool | None = None, *, overwrite: bool) -> tuple[tuple[str, ...], int]:
        """Write all index files, then let them appear.

        Args:
            target: The folder that they go into.
            pool: The workers; None: no export that is wanted needs them.
            overwrite: Replace other files of their names.

        Returns:
            Their names, and how many were there already.
        """
        dataset, wanted = self.check(), self.wanted.values()  # again: only under the lock does no other run replace it
        self._note_limits(dataset, target)
        own = self.name if target == self.folder else ""
        names = list_index_names([shard.name for shard in dataset.shards], self.wanted, own)
        readmes = any(export.readme for export in wanted)
        with ExitStack() as stack:
            if readmes or any(export.once for export in wanted):
                stack.enter_context(target.lock(_FOLDER_LOCK))
            shared = self._of_folder(dataset, target)
            names += [path for path, *_ in shared]
            folders = {below: open_subfolder(target, below) for below in ("", *map(os.path.dirname, names))}
            stack.callback(_discard_staged, folders, names)
            _discard_staged(folders, names)
            kept, staged = 0, dict[str, list[DurableFile]]()
            for path, data, replaces, lasting in chain(self._of_shards(dataset, pool), shared):
                below, name = os.path.split(path)
                folder = folders[below]
                if (lasting and folder.facts([name])) or _has_same_bytes(
                    folder, name, data, overwrite=overwrite or replaces
                ):
                    kept += 1
                    continue
                if below:
                    folder.ready()
                staged.setdefault(below, []).append(folder.stage_bytes(name, data))
            for below, files in staged.items():
                folders[below].publish(*files)
        return tuple(names), kept

    def _of_shards(self, dataset: DatasetFile, pool: Pool | None) -> Iterator[IndexFile]:
        """Yield the index of each shard."""
        for shard in self._indexed(dataset, pool):
            for export in self.wanted.values():
                if export.encode is not None:
                    yield exports.index_name(shard.name, export), export.encode(shard), False, False

    def _of_folder(self, dataset: DatasetFile, target: OutputFolder) -> list[IndexFile]:
        """Return the files of which a folder has one set."""
        found, wanted = list[IndexFile](), self.wanted.values()
        for export in wanted:
            if (once := export.once) is not None:
                files, renewed = _encode_folder_index(once, self._covered(export, dataset, target), target)
                found += [(path, data, renewed, path == once.lasting) for path, data in files.items()]
        for export in wanted if target == self.folder else ():
            if export.readme and (data := self._readme(export, dataset)) is not None:
                found.append((huggingface.README_FILE, data, True, False))
        return found

    def _note_limits(self, dataset: DatasetFile, target: OutputFolder) -> None:
        """Say what the tools will not like."""
        for name, export in self.wanted.items():
            few = [shard.name for shard in dataset.shards if shard.samples < export.least]
            if few:
                what = pluralize(len(few), f"shard with fewer than {pluralize(export.least, 'sample')}")
                self._note(f"{export.reader} cannot read the index ({name}) of {what}: {format_list(few, 3)}")
            if export.note:
                self._note(f"{name}: {export.note}")
            if export.once and (target != self.folder or dataset.shards_folder):
                self._note(f"{name}: {export.reader} looks for the shards beside these files")

    def _indexed(self, dataset: DatasetFile, pool: Pool | None) -> Iterator[indexed_shard.IndexedShard]:
        """Yield each shard with its index; where hashes are wanted, with these, as they come."""
        shards, wanted = dataset.shards, self.wanted.values()
        if all(export.encode is None for export in wanted):
            return
        hashed = pool is not None and any(export.hashed for export in wanted)
        size = sum(shard.size if hashed else shard.sidecar_size for shard in shards)
        self.observer.start(sum(shard.samples for shard in shards), size, len(shards))
        if pool is None or not hashed:
            for shard in shards:
                yield indexed_shard.IndexedShard(read_listed_sidecar(self.folder, shard))
                self._done(shard, shard.sidecar_size)
            return
        known: dict[int, ShardIndex] = {}

        def tasks() -> Iterator[indexed_shard.ShardHashTask]:
            for number, shard in enumerate(shards):
                known[number] = read_listed_sidecar(self.folder, shard)
                yield self._digest_task(dataset, shard, known[number])

        for number, digests in pool.map(
            indexed_shard.hash_shard, tasks(), lambda _, __, size: self.observer.advance(0, size, 0)
        ):
            shard = shards[number]
            if shard.crc is not None and shard.crc != digests.crc:
                where = self.folder.full_path(shard.name)
                raise CorruptShard(where, "its checksum is not the one in the dataset file", remedy=RUN_VERIFY)
            yield indexed_shard.IndexedShard(known.pop(number), digests)
            self._done(shard, 0)

    def _done(self, shard: ShardEntry, size: int) -> None:
        self.observer.advance(shard.samples, size, 1)
        self.observer.shard(shard.name, "indexed", shard.samples, shard.size)

    def _digest_task(self, dataset: DatasetFile, shard: ShardEntry, index: ShardIndex) -> indexed_shard.ShardHashTask:
        if (index.offsets[1:] < (index.offsets + index.lengths)[:-1]).any():
            raise CorruptShard(self.folder.full_path(shard.sidecar), "fields that overlap", remedy=recreate_hint())
        path = paths.join(paths.join(self.folder.path, to_local_name(dataset.shards_folder)), to_local_name(shard.name))
        return indexed_shard.ShardHashTask.of(path, shard.size, index)

    def _covered(self, export: ExportFormat, dataset: DatasetFile, target: OutputFolder) -> list[DatasetFile]:
        """Return this dataset, and those that the same run made for other splits and that have an index."""
        covered = [dataset]
        for other in splits_in(self.folder.path, dataset.made).values():
            shards = other.shards if export.encode is not None else ()
            names = {exports.index_name(shard.name, export) for shard in shards}
            if len(target.facts(names)) == len(names):
                covered.append(other)
        return covered

    def _readme(self, export: ExportFormat, dataset: DatasetFile) -> bytes | None:
        """Return the `README.md` that names the shards; None where there is one that is not ours to replace."""
        datasets, there = self._covered(export, dataset, self.folder), {*map(to_output_name, self.folder.names())}
        for one in datasets:
            if (split := one.made.split) and (name := huggingface.huggingface_split(split)) != split:
                self._note(
                    f"Hugging Face datasets takes no split called {split!r}: {huggingface.README_FILE} calls it {name}"
                )
        if huggingface.README_FILE in there:
            old = read_or_empty(self.folder, huggingface.README_FILE)
            ours = {shard.name for one in datasets for shard in one.shards}
            others = sorted(huggingface.readme_shards(old, there) & there - ours)
            if not huggingface.is_own_readme(old) or others:
                whose = (
                    f"names other shards ({format_list(others, 3)})"
                    if huggingface.is_own_readme(old)
                    else "is not ours"
                )
                self._note(
                    f"{huggingface.README_FILE} {whose}, and stays: unless it names the shards as data_files, Hugging Face "
                    "load_dataset(folder) takes the JSON files for the data (one that we write has the lines)"
                )
                return None
        return huggingface.make_readme(datasets, there)


def list_index_names(shards: Iterable[str], wanted: Mapping[str, ExportFormat], dataset_file: str) -> list[str]:
    """Return the names of all indexes of shards, by shard.

    Raises:
        InvalidRequest: Two files would have the same name.
    """
    exports = {name: export for name, export in wanted.items() if export.encode is not None}
    for name, export in wanted.items():
        if export.once is not None and export.once.info == dataset_file:
            found, expected = f"{dataset_file}, which is the dataset file", "shards with other names"
            raise InvalidRequest(export_text(name), found, expected=expected)
    owners: dict[str, str] = {}
    for shard in shards:
        for name, export in exports.items():
            index = interop_exports.index_name(shard, export)
            if index == dataset_file or index in owners:
                other = "the dataset file" if index == dataset_file else f"an index of {owners[index]}"
                found = f"the index of {shard} and {other} would both be {index}"
                expected = "shards with a number in their names, such as out-{000..}.tar"
                raise InvalidRequest(export_text(name), found, expected=expected)
            owners[index] = shard
    return [*owners]


def find_existing_exports(folder: OutputFolder, old: DatasetFile | None) -> list[str]:
    """Return which indexes of other tools, as `--export` calls them, lie beside the dataset that is appended to."""
    if old is None or not old.shards:
        return []
    ours, found = {shard.name for shard in old.shards}, []
    for name, export in exports.EXPORTS.items():
        if export.once is not None:  # a list of the folder's shards: it may be of others
            is_there = not ours.isdisjoint(read_sample_counts(export.once, folder))
        else:
            name_of_first = exports.index_name(old.shards[0].name, export)
            is_there = export.encode is not None and bool(folder.facts([name_of_first]))
        if is_there and export.shard_format == old.format:
            found.append(name)
    return found


def export_notes(folder: OutputFolder, old: DatasetFile | None, renewed: Collection[str]) -> Iterable[str]:
    """Return what the user should know of other tools' indexes beside the dataset that is appended to.

    Args:
        folder: Its folder.
        old: What its dataset file says; None: there is none.
        renewed: The exports that this run makes itself.
    """
    hashed = {name for name in find_existing_exports(folder, old) if exports.EXPORTS[name].hashed}
    if stale := sorted(hashed.difference(renewed)):
        again = f"{export_call_text('', stale, overwrite=False)} renews them, and reads all shards"
        yield f"indexes of other tools ({format_list(stale)}) cover the old shards only: {again}"


def renew_exports(
    folder: OutputFolder, dataset_file: str, old: DatasetFile | None, made: Collection[str], notes: Notes
) -> None:
    """Renew the indexes of other tools beside a dataset that was appended to, where no shard must be read for them.

    Args:
        folder: Its folder.
        dataset_file: The name of its dataset file.
        old: What that said before; None: there was none.
        made: The exports that the run has made itself.
        notes: Gets which could not be renewed: the dataset is complete without them.
    """
    for name in find_existing_exports(folder, old):
        export = exports.EXPORTS[name]
        if name not in made and not export.hashed:
            try:
                Exporter(folder, dataset_file, {name: export}, notes).write(folder, overwrite=True)
            except (InvalidRequest, OutputExists) as error:
                notes.add(f"the index for {export.reader} could not be renewed: {error}")
