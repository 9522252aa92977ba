"""What the user should know of readers before shards are written: of their names, and of their folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.errors import printable
from shardtool.interop.indexes import cure, index_name, misreading
from shardtool.interop.readers import unopenable
from shardtool.publish.foreign_indexes import has_own_readme
from shardtool.values import INLINE, URL, counted, output_text
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardtool.entries.entries import Entries
    from shardtool.interop.indexes import Export
    from shardtool.publish.destination import Destination

_WORKERS = 8  # of a loader: a usual number
_LARGE = 2**28  # bytes of a dataset that is worth reading with several workers
_READERS = {"huggingface": "Hugging Face datasets"}


def loader_notes(outputs: Sequence[tuple[Destination, int]], sizes: Sequence[int]) -> Iterator[str]:
    """Yield which datasets have fewer shards than a loader usually has workers, where they could have more.

    Args:
        outputs: Where each dataset goes, and how many shards it gets.
        sizes: Bytes of its new shards, all together.
    """
    for (output, shards), size in zip(outputs, sizes, strict=True):
        total = output.first + shards
        if output.pattern.count is None and total < _WORKERS and size >= _LARGE:
            few = f"{output_text(output.pattern.dataset_file)}: {counted(total, 'shard')}"
            bound = option("max_size", f"{size // _WORKERS // 10**6}MB")
            yield f"{few}, and a loader of more workers leaves some without data: {bound} makes {_WORKERS} or more"


def empty_notes(entries: Entries) -> Iterator[str]:
    """Yield how many files of samples have no bytes: they are packed, but an interrupted download leaves such."""
    rows = entries.rows
    empty = ((rows.size == 0) & (rows.kind != INLINE) & (rows.kind != URL)).nonzero()[0]
    if len(empty) and (path := entries.path(int(empty[0]))):  # values of a table have none
        first = printable(path)
        yield f"{counted(len(empty), 'file without a byte')} among the samples, such as {first}"


def name_notes(outputs: Sequence[tuple[Destination, int]], readers: Sequence[str]) -> Iterator[str]:
    """Yield what readers make of names of shards that they cannot open, each reader once.

    Args:
        outputs: Where each dataset goes, and how many shards it gets.
        readers: Those that count.
    """
    said = set()
    for output, _ in outputs:
        name = output_text(output.pattern.shard(0))
        for reader, why in unopenable(name).items():
            if output.pattern.format == "tar" and reader in readers and reader not in said:
                said.add(reader)
                yield f"{_READERS.get(reader, reader)} cannot open shards called such as '{name}': it {why}"


def folder_notes(outputs: Sequence[tuple[Destination, int]], exports: Mapping[str, Export]) -> Iterator[str]:
    """Yield what `load_dataset` makes of each folder that is written to, where it does not take the shards.

    Args:
        outputs: As above.
        exports: The indexes of other tools that are written, too.
    """
    folders: dict[str, list[tuple[Destination, int]]] = {}
    for output, shards in outputs:
        folders.setdefault(output.folder.path, []).append((output, shards))
    if any(export.readme for export in exports.values()):
        return
    said = set()
    for group in folders.values():
        output = group[0][0]
        if output.pattern.format != "tar":
            wrong = f"reads no TFRecord, and takes {output.pattern.dataset_file} for the data"
            note = f"Hugging Face load_dataset(folder) {wrong}: tar shards are what it reads"
        elif has_own_readme(output.folder) or not (wrong := misreading(_names(group, exports))):
            continue
        else:
            note = f"Hugging Face load_dataset(folder) {wrong}: {cure()}"
        if note not in said:
            said.add(note)
            yield note


def _names(group: Sequence[tuple[Destination, int]], exports: Mapping[str, Export]) -> set[str]:
    """Return the names of all files that a folder will have."""
    names: set[str] = set()
    for output, shards in group:
        pattern = output.pattern
        names |= {name for name in output.folder.names() if not pattern.owns(name)}
        written = [pattern.shard(number) for number in range(output.first + shards)]
        indexes = (export for export in exports.values() if export.encode is not None)
        names |= {index_name(name, export) for export in indexes for name in written}
        names |= {*written, pattern.dataset_file}
    return {output_text(name) for name in names}
