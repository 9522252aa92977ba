"""Notes about problems that other tools have with the names, number or folder of shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.interop.exports import ExportFormat, index_name
from shardtool.interop.huggingface import describe_misreading, readme_advice
from shardtool.interop.readers import unopenable_by
from shardtool.messages import option_text
from shardtool.names import to_output_name
from shardtool.publish.foreign_index_files import has_own_readme
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardtool.publish.destination import Destination


_USUAL_WORKERS = 8
_LARGE_DATASET_BYTES = 2**28
_READER_NAMES = {"huggingface": "Hugging Face datasets"}


def loader_notes(outputs: Sequence[tuple[Destination, int]], sizes: Sequence[int]) -> Iterator[str]:
    """Yield a note for each large dataset with fewer shards than a data loader usually has workers.

    `sizes` contains the total bytes of each dataset's new shards.
    """
    for (output, shard_count), size in zip(outputs, sizes, strict=True):
        total = output.first + shard_count
        if output.pattern.count is None and total < _USUAL_WORKERS and size >= _LARGE_DATASET_BYTES:
            summary = f"{to_output_name(output.pattern.dataset_file)}: {pluralize(total, 'shard')}"
            option = option_text("max_size", f"{size // _USUAL_WORKERS // 10**6}MB")
            yield f"{summary}, so a loader with more workers leaves some idle; {option} gives {_USUAL_WORKERS}+ shards"


def name_notes(outputs: Sequence[tuple[Destination, int]], readers: Sequence[str]) -> Iterator[str]:
    """Yield a note for each of `readers` that cannot open shards with the planned names."""
    reported_readers = set()
    for output, _ in outputs:
        name = to_output_name(output.pattern.shard(0))
        for reader, reason in unopenable_by(name).items():
            if output.pattern.format == "tar" and reader in readers and reader not in reported_readers:
                reported_readers.add(reader)
                yield f"{_READER_NAMES.get(reader, reader)} cannot open shards with names such as '{name}': it {reason}"


def folder_notes(outputs: Sequence[tuple[Destination, int]], exports: Mapping[str, ExportFormat]) -> Iterator[str]:
    """Yield notes about output folders that Hugging Face's `load_dataset` would misread."""
    folders: dict[str, list[tuple[Destination, int]]] = {}
    for output, shard_count in () if any(export.has_readme for export in exports.values()) else outputs:
        folders.setdefault(output.folder.path, []).append((output, shard_count))
    notes = dict[str, None]()
    for group in folders.values():
        output = group[0][0]
        if output.pattern.format != "tar":
            problem = f"does not read TFRecord, and loads {output.pattern.dataset_file} as data"
            notes[f"Hugging Face load_dataset(folder) {problem}; use tar shards"] = None
        elif not has_own_readme(output.folder) and (problem := describe_misreading(_list_file_names(group, exports))):
            notes[f"Hugging Face load_dataset(folder) {problem}: {readme_advice()}"] = None
    yield from notes


def _list_file_names(group: Sequence[tuple[Destination, int]], exports: Mapping[str, ExportFormat]) -> set[str]:
    names: set[str] = set()
    for output, shard_count in group:
        pattern = output.pattern
        written = [pattern.shard(number) for number in range(output.first + shard_count)]
        indexes = (export for export in exports.values() if export.suffix)
        names |= {index_name(name, export) for export in indexes for name in written}
        names |= {*written, pattern.dataset_file}
    return {to_output_name(name) for name in names}
