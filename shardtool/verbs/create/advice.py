"""Notes about how other readers handle the names, the number and the folder of the shards."""

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


_USUAL_WORKERS = 8  # of a loader: a usual number


_LARGE_DATASET_BYTES = 2**28  # bytes of a dataset that is worth reading with several workers


_READER_NAMES = {"huggingface": "Hugging Face datasets"}


def loader_notes(outputs: Sequence[tuple[Destination, int]], sizes: Sequence[int]) -> Iterator[str]:
    """Yield which datasets have fewer shards than a loader usually has workers, where they could have more.

    Args:
        outputs: Where each dataset goes, and how many shards it gets.
        sizes: Bytes of its new shards, all together.
    """
    for (output, shards), size in zip(outputs, sizes, strict=True):
        total = output.first + shards
        if output.pattern.count is None and total < _USUAL_WORKERS and size >= _LARGE_DATASET_BYTES:
            few = f"{to_output_name(output.pattern.dataset_file)}: {pluralize(total, 'shard')}"
            bound = option_text("max_size", f"{size // _USUAL_WORKERS // 10**6}MB")
            yield f"{few}, and a loader of more workers leaves some without data: {bound} makes {_USUAL_WORKERS} or more"


def name_notes(outputs: Sequence[tuple[Destination, int]], readers: Sequence[str]) -> Iterator[str]:
    """Yield what readers make of names of shards that they cannot open, each reader once.

    Args:
        outputs: Where each dataset goes, and how many shards it gets.
        readers: Those that count.
    """
    said = set()
    for output, _ in outputs:
        name = to_output_name(output.pattern.shard(0))
        for reader, why in unopenable_by(name).items():
            if output.pattern.format == "tar" and reader in readers and reader not in said:
                said.add(reader)
                yield f"{_READER_NAMES.get(reader, reader)} cannot open shards called such as '{name}': it {why}"


def folder_notes(outputs: Sequence[tuple[Destination, int]], exports: Mapping[str, ExportFormat]) -> Iterator[str]:
    """Yield what `load_dataset` makes of each folder that is written to, where it does not take the shards.

    Args:
        outputs: As above.
        exports: The indexes of other tools that are written, too.
    """
    folders: dict[str, list[tuple[Destination, int]]] = {}
    for output, shards in () if any(export.readme for export in exports.values()) else outputs:
        folders.setdefault(output.folder.path, []).append((output, shards))
    notes = dict[str, None]()
    for group in folders.values():
        output = group[0][0]
        if output.pattern.format != "tar":
            wrong = f"reads no TFRecord, and takes {output.pattern.dataset_file} for the data"
            notes[f"Hugging Face load_dataset(folder) {wrong}: tar shards are what it reads"] = None
        elif not has_own_readme(output.folder) and (wrong := describe_misreading(_list_file_names(group, exports))):
            notes[f"Hugging Face load_dataset(folder) {wrong}: {readme_advice()}"] = None
    yield from notes


def _list_file_names(group: Sequence[tuple[Destination, int]], exports: Mapping[str, ExportFormat]) -> set[str]:
    """Return the names of the files that a folder gets, whatever else it has."""
    names: set[str] = set()
    for output, shards in group:
        pattern = output.pattern
        written = [pattern.shard(number) for number in range(output.first + shards)]
        indexes = (export for export in exports.values() if export.encode is not None)
        names |= {index_name(name, export) for export in indexes for name in written}
        names |= {*written, pattern.dataset_file}
    return {to_output_name(name) for name in names}
