"""Delete index files of other tools that no longer match their shard.

A file is deleted only if it has the name and format of an index.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard, OutputExists, format_list
from shardtool.interop import exports, huggingface, indexed_shard
from shardtool.messages import export_call_text, flag_text
from shardtool.names import to_local_name
from shardtool.publish.foreign_index_files import read_foreign_index, read_or_empty, read_sample_counts
from shardtool.storage import files
from shardtool.storage.folders import open_folder
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from shardtool.pattern import ShardPattern
    from shardtool.storage.folders import OutputFolder


class StaleIndexes:
    """The index files of other tools in an output folder.

    Args:
        pattern: The shard pattern, or None to ignore all index files.
        appends: Whether all existing shards are kept. An index of the folder then lacks shards, but stays valid.

    Attributes:
        removed: The `--export` name of each deleted file, by file name.
    """

    def __init__(
        self, folder: OutputFolder, pattern: ShardPattern | None, existing_names: Iterable[str], *, appends: bool
    ) -> None:
        self.folder, self._appends = folder, appends
        self.removed: dict[str, str] = {}
        self._files: dict[str, dict[str, str]] = {}  # by shard: the export format of each index file
        self._stale: dict[str, str] = {}
        self._counts: dict[str, dict[str, int]] = {}  # by export format: the sample count of each shard
        self._owns = (lambda _: False) if pattern is None else pattern.owns
        if pattern is None:
            return
        ending = "." + pattern.shard(0).rpartition(".")[2]
        for name in existing_names:
            owned = [stem + ending for stem in exports.shard_stems(name) if pattern.owns(stem + ending)]
            if owned and name != pattern.dataset_file and (export_name := self._detect_export(name)):
                self._files.setdefault(owned[0], {})[name] = export_name
        for export in exports.FOLDER_EXPORTS:
            counts = read_sample_counts(export, folder)
            if own_counts := {name: count for name, count in counts.items() if pattern.owns(name)}:
                self._counts[export.name] = own_counts

    def _detect_export(self, name: str) -> str:
        with suppress(OSError):
            path = self.folder.full_path(name)
            return exports.detect_export(name, *files.read_head(path, exports.PROBE_BYTES, files.READ_PLAIN))
        return ""

    def check_no_leftovers(self, existing_names: Collection[str]) -> None:
        """Raise an error if there are index files whose shards do not exist."""
        leftovers = sorted(
            name for shard, names in self._files.items() if shard not in existing_names for name in names
        )
        if leftovers:
            found = f"{pluralize(len(leftovers), 'file')} with indexes of earlier shards: {format_list(leftovers, 3)}"
            expected = "no files that readers would use as indexes of the new shards"
            remedy = f"Delete these files, choose another name, or {flag_text('overwrite')}."
            raise OutputExists(self.folder.path or ".", found, expected=expected, remedy=remedy)

    def compare(self, shard: str, sidecar: Callable[[], bytes], *, written: bool) -> None:
        """Mark the index files that do not match a shard. `written` tells whether this run wrote the shard."""
        files, counts = self._files.pop(shard, {}), {} if self._appends else self._counts
        for name, export_name in [*files.items()]:
            if written and exports.EXPORTS[export_name].has_hashes:
                self._stale[name] = files.pop(name)
        if not files and not counts:
            return
        from shardtool.dataset.sidecar_read import parse_sidecar

        try:
            indexed = indexed_shard.IndexedShard(parse_sidecar(sidecar(), shard, None, metadata=False))
        except CorruptShard:
            self._stale |= files
            if counts:
                raise
            return
        for name, export_name in files.items():
            if read_foreign_index(self.folder.full_path(name), export_name, indexed)[1]:
                self._stale[name] = export_name
        samples = len(indexed.index)
        self._mark_folder_indexes([name for name, listed in counts.items() if listed.pop(shard, 0) != samples])

    def mark_shard(self, shard: str) -> None:
        """Mark the index files of a shard, and the folder's indexes that list this shard."""
        self._stale |= self._files.pop(shard, {})
        if not self._appends:
            self._mark_folder_indexes([export_name for export_name, counts in self._counts.items() if shard in counts])

    def _mark_folder_indexes(self, export_names: Iterable[str]) -> None:
        for export_name in export_names:
            del self._counts[export_name]
            self._stale[exports.EXPORTS[export_name].folder_file] = export_name

    def mark_other_shards(self, shards: Iterable[str]) -> None:
        """Mark the index files of all shards that are not in `shards`."""
        current_shards = {*map(to_local_name, shards)}
        for shard in sorted(set(self._files) - current_shards):
            self._stale |= self._files.pop(shard)
        self._mark_folder_indexes([name for name, counts in self._counts.items() if counts.keys() - current_shards])
        files_in_folder = set(self.folder.names())
        has_readme = huggingface.README_FILE in files_in_folder
        data = read_or_empty(self.folder, huggingface.README_FILE) if has_readme else b""
        if huggingface.is_own_readme(data):
            names = {name for name in files_in_folder if not self._owns(name)} | current_shards
            listed_shards = {name for name in huggingface.readme_shards(data, names) if self._owns(name)}
            if listed_shards and listed_shards != current_shards:
                self._stale[huggingface.README_FILE] = "huggingface"

    def remove_marked(self) -> None:
        """Delete the marked files, before a shard changes."""
        for name in self._stale:
            subfolder, _, file_name = name.rpartition("/")
            (open_folder(self.folder.full_path(subfolder)) if subfolder else self.folder).remove([file_name])
        self.removed |= self._stale
        self._stale = {}

    def removal_notes(self, dataset_file: str, renewed: Collection[str] = ()) -> Iterator[str]:
        """Yield a note about the deleted index files, except files of the formats in `renewed`."""
        if removed := {name: export_name for name, export_name in self.removed.items() if export_name not in renewed}:
            summary = f"{pluralize(len(removed), 'file')} of other tools' indexes deleted, because their shards changed"
            advice = export_call_text(dataset_file, sorted({*removed.values()}), overwrite=True)
            yield f"{summary} ({format_list([*removed], 3)}): recreate them with {advice}"
