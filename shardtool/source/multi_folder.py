"""Several folders as one source. Files in different folders that share a key form one sample.

Keys are relative to each folder: `images/cat/1.jpg` and `masks/cat/1.png` are fields of the sample `cat/1`. If
files in two folders have the same extension, field names start with the folder name, such as `images.png`.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import flag_text, option_text
from shardtool.names import to_bytes, to_text
from shardtool.skipped import Skipped
from shardtool.source.folder import (
    FolderSource,
    check_dots,
    collect_samples,
    drop_failed_samples,
    open_tree,
    system_file_notes,
)
from shardtool.storage import paths as storage_paths
from shardtool.storage.remote import address
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.execute.pool import Pool
    from shardtool.pattern import ShardPattern
    from shardtool.request.create_options import CreateOptions
    from shardtool.request.observer import Observer
    from shardtool.select.key_pattern import KeyPattern

    FolderListing = tuple[SampleTable, tuple[Skipped, ...], list[str]]


_MAX_LISTED_NAMES = 3


class MultiFolderSource(FolderSource):
    """Several folders as one source."""

    def __init__(self, sources: Sequence[str], options: CreateOptions, outputs: Iterable[ShardPattern]) -> None:
        self._options, outputs = options, [*outputs]
        self._trees = [open_tree(source, options, outputs) for source in sources]
        self._labels = name_folders(sources)
        self._name = ",".join(map(printable, self._labels))
        self._source = ", ".join(sources)

    def _list(self, pool: Pool, observer: Observer, pattern: KeyPattern | None) -> FolderListing:
        scans = [tree.scan(pool, observer) for tree in self._trees]
        import numpy as np

        from shardtool.select.field_rows import group_sorted, merge_groups

        trees, skipped = [], list[Skipped]()
        for tree, label, parts in zip(self._trees, self._labels, scans, strict=True):
            entries, failed = collect_samples(tree.root, parts)
            if self._options.dots is None:
                check_dots(entries)
            entries, failed = self._apply_key_pattern(entries, failed, pattern)
            trees.append(entries)
            skipped += [row._replace(path=f"{to_text(label)}/{row.path}") for row in failed]
        names = self._name_fields([entries.fields for entries in trees])
        joined = self._join(trees, names)
        groups = group_sorted(joined.keys)
        has_files = np.zeros((len(trees), len(groups.first)), np.bool_)
        has_files[np.repeat(np.arange(len(trees)), [*map(len, trees)]), groups.of_row] = True
        self._check_shared(trees, has_files)
        entries = merge_groups(joined, groups)
        notes = system_file_notes([part for parts in scans for part in parts])
        if renamed := sorted({name for field_of in names for ending, name in field_of.items() if name != ending}):
            names_text = format_list(renamed, _MAX_LISTED_NAMES)
            notes.append(f"fields named after their folders, because extensions are the same: {names_text}")
        incomplete = _incomplete_samples(entries, has_files, self._labels)
        if self._options.complete:
            skipped += incomplete
        elif incomplete:
            notes.append(self._incomplete_note(incomplete, has_files))
        entries = drop_failed_samples(entries, skipped)
        return entries, tuple(sorted(skipped, key=lambda row: (to_bytes(row.path), to_bytes(row.key)))), notes

    def _strip_folder(self, skipped: tuple[Skipped, ...]) -> tuple[Skipped, ...]:
        return tuple(row._replace(path=row.path.partition("/")[2]) for row in skipped)

    def _name_fields(self, endings: Sequence[Sequence[str]]) -> list[dict[str, str]]:
        uses = Counter(ending for folder_fields in endings for ending in folder_fields)
        names = [
            {ending: f"{to_text(label)}.{ending}" if uses[ending] > 1 else ending for ending in folder_fields}
            for label, folder_fields in zip(self._labels, endings, strict=True)
        ]
        fields = Counter(name for folder_fields in names for name in folder_fields.values())
        if twice := [name for name, count in fields.items() if count > 1]:
            found = f"files of two folders with the same field {printable(twice[0])!r}"
            remedy = "Rename a folder, or the files."
            raise InvalidRequest(self._source, found, expected="different fields", remedy=remedy)
        return names

    def _join(self, trees: Sequence[SampleTable], names: Sequence[dict[str, str]]) -> SampleTable:
        import numpy as np

        from shardtool.entries.sample_table import FieldRows, SampleTable
        from shardtool.entries.strings import PackedStrings
        from shardtool.select.field_rows import check_field_count, list_source_paths

        fields = sorted({name for table in names for name in table.values()}, key=to_bytes)
        check_field_count(self._source, fields)
        code_of = {name: code for code, name in enumerate(fields)}
        codes, paths = [], []
        for entries, label, field_of in zip(trees, self._labels, names, strict=True):
            code = np.array([code_of[field_of[name]] for name in entries.fields], np.uint16)
            codes.append(code[entries.rows.code])
            chunks = list_source_paths(entries).chunks()
            paths += [b"".join([label + b"/" + path + b"\0" for path in chunk]) for _, chunk in chunks]
        rows = [entries.rows for entries in trees]
        return SampleTable(
            root=b"",
            keys=PackedStrings.parse(b"".join(entries.keys.data for entries in trees)),
            first_rows=np.append(0, np.cumsum(np.concatenate([table.counts() for table in trees]))),
            fields=tuple(fields),
            rows=replace(FieldRows.concat(rows, codes), paths=PackedStrings.parse(b"".join(paths))),
            source_identity=" ".join(storage_paths.source_identity(tree.root) for tree in self._trees),
            folders=dict(zip(self._labels, (tree.root for tree in self._trees), strict=True)),
        )

    def _check_shared(self, trees: Sequence[SampleTable], has_files: NDArray[np.bool_]) -> None:
        for label, entries in zip(self._labels, trees, strict=True):
            if not len(entries):
                found = f"no files in {printable(label)}"
                remedy = f"Check {option_text('include')}, {option_text('exclude')} and {option_text('hidden')}."
                raise InvalidRequest(self._source, found, expected="files such as cat/0001.jpg in each", remedy=remedy)
        if not (has_files.sum(axis=0) > 1).any():
            keys = [printable(entries.keys[0]) for entries in trees]
            first = [f"{printable(label)} has '{key}'" for label, key in zip(self._labels, keys, strict=True)]
            expected = "file names that differ only in their extensions: images/a.jpg and masks/a.png"
            remedy = "To pack the files of each folder as separate samples, use the parent folder as the source."
            found = f"no key is in two of the folders: {format_list(first, _MAX_LISTED_NAMES)}"
            raise InvalidRequest(self._source, found, expected=expected, remedy=remedy)

    def _incomplete_note(self, incomplete: Sequence[Skipped], has_files: NDArray[np.bool_]) -> str:
        missing = zip((~has_files).sum(axis=1).tolist(), self._labels, strict=True)
        counts = [f"{count:,} not in {printable(label)}" for count, label in missing if count]
        named = format_list([printable(row.key) for row in incomplete], _MAX_LISTED_NAMES)
        verb, was = ("lacks", "was") if len(incomplete) == 1 else ("lack", "were")
        problem = f"{pluralize(len(incomplete), 'sample')} {verb} a file in one folder and {was} packed without it"
        return f"{problem}: {named} ({'; '.join(counts)}; require all files with {flag_text('complete')})"


def name_folders(sources: Sequence[str]) -> list[bytes]:
    """Return a unique name for each folder, from the last components of its path."""
    real_paths = [os.fsencode(path if address.is_url(path) else os.path.realpath(path)) for path in sources]
    for (path, inner), (other_path, outer) in permutations(zip(sources, real_paths, strict=True), 2):
        if (inner + b"/").startswith(outer.rstrip(b"/") + b"/"):
            found = f"the same folder as {other_path}" if inner == outer else f"is inside {other_path}"
            raise InvalidRequest(path, found, expected="separate folders", remedy="Name each folder once.")
    parts = [path.split(b"/")[1:] for path in real_paths]
    labels, depth = [b"_".join(path[-1:]) for path in parts], 1
    while len({*labels}) < len(labels) and depth < max(map(len, parts)):
        depth += 1
        labels = [b"_".join(path[-depth:]) for path in parts]
    if len({*labels}) < len(labels):
        raise InvalidRequest(", ".join(sources), "folders with the same name", expected="a different name for each")
    return labels


def _incomplete_samples(entries: SampleTable, has_files: NDArray[np.bool_], labels: Sequence[bytes]) -> list[Skipped]:
    rows = []
    for sample in (~has_files.all(axis=0)).nonzero()[0].tolist():
        without = format_list([printable(labels[folder]) for folder in (~has_files[:, sample]).nonzero()[0].tolist()])
        path = to_text(entries.path(int(entries.first_rows[sample])))
        rows.append(Skipped(entries.key(sample), path, "incomplete", f"no file with its key in {without}"))
    return rows
