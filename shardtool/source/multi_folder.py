"""Several folders as one source: files that share a key are one sample, whichever folder they are in.

`images/cat/1.jpg` and `masks/cat/1.png` are the fields jpg and png of the sample `cat/1`; keys are relative to each
folder. If two folders have files with the same ending, their fields are named after the folders too: `images.png`
and
`masks.png`. The folders decide this for all samples alike.
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

    Found = tuple[SampleTable, tuple[Skipped, ...], list[str]]


_MAX_LISTED_NAMES = 3


class MultiFolderSource(FolderSource):
    """Trees of files that share keys."""

    def __init__(self, sources: Sequence[str], options: CreateOptions, outputs: Iterable[ShardPattern]) -> None:
        self._options, outputs = options, [*outputs]
        self._trees = [open_tree(source, options, outputs) for source in sources]
        self._labels = name_folders(sources)
        self._name = ",".join(map(printable, self._labels))
        self._source = ", ".join(sources)

    def _list(self, pool: Pool, observer: Observer, pattern: KeyPattern | None) -> Found:
        found = [tree.scan(pool, observer) for tree in self._trees]
        import numpy as np

        from shardtool.select.grouping import group_by_key, merge_groups

        trees, skipped = [], list[Skipped]()
        for tree, label, parts in zip(self._trees, self._labels, found, strict=True):
            entries, left_out = collect_samples(tree.root, parts)
            if self._options.dots is None:
                check_dots(entries)
            entries, left_out = self._with_keys(entries, left_out, pattern)
            trees.append(entries)
            skipped += [one._replace(path=f"{to_text(label)}/{one.path}") for one in left_out]
        names = self._name_fields([entries.fields for entries in trees])
        joined = self._join(trees, names)
        groups = group_by_key(joined.keys, by_key=True)
        has = np.zeros((len(trees), len(groups.first)), np.bool_)  # whether a folder has a part of a sample
        has[np.repeat(np.arange(len(trees)), [*map(len, trees)]), groups.of_part] = True
        self._check_shared(trees, has)
        entries = merge_groups(joined, groups)
        notes = system_file_notes([part for parts in found for part in parts])
        if apart := sorted({name for one in names for ending, name in one.items() if name != ending}):
            notes.append(
                f"fields called by their folders, for endings are alike: {format_list(apart, _MAX_LISTED_NAMES)}"
            )
        lacking = _incomplete_samples(entries, has, self._labels)
        if self._options.complete:
            skipped += lacking
        elif lacking:
            notes.append(self._incomplete_note(lacking, has))
        entries = drop_failed_samples(entries, skipped)
        return entries, tuple(sorted(skipped, key=lambda one: (to_bytes(one.path), to_bytes(one.key)))), notes

    def _strip_folder(self, skipped: tuple[Skipped, ...]) -> tuple[Skipped, ...]:
        return tuple(one._replace(path=one.path.partition("/")[2]) for one in skipped)

    def _name_fields(self, endings: Sequence[Sequence[str]]) -> list[dict[str, str]]:
        """Return, for each folder, the field that files with an ending are.

        Raises:
            InvalidRequest: Two folders would give one field.
        """
        uses = Counter(ending for one in endings for ending in one)
        names = [
            {ending: f"{to_text(label)}.{ending}" if uses[ending] > 1 else ending for ending in one}
            for label, one in zip(self._labels, endings, strict=True)
        ]
        fields = Counter(name for one in names for name in one.values())
        if twice := [name for name, count in fields.items() if count > 1]:
            found = f"files of two folders that would be the field {printable(twice[0])!r}"
            remedy = "Rename a folder, or the files."
            raise InvalidRequest(self._source, found, expected="a field of each", remedy=remedy)
        return names

    def _join(self, trees: Sequence[SampleTable], names: Sequence[dict[str, str]]) -> SampleTable:
        """Return the parts that each folder has of samples, one folder after the other."""
        import numpy as np

        from shardtool.entries.sample_table import FieldRows, SampleTable
        from shardtool.entries.strings import PackedStrings
        from shardtool.select.field_rows import check_field_count, list_source_paths

        fields = sorted({name for one in names for name in one.values()}, key=to_bytes)
        check_field_count(self._source, fields)
        place = {name: at for at, name in enumerate(fields)}
        codes, paths = [], []
        for entries, label, named in zip(trees, self._labels, names, strict=True):
            code = np.array([place[named[name]] for name in entries.fields], np.uint16)
            codes.append(code[entries.rows.code])
            chunks = list_source_paths(entries).chunks()
            paths += [b"".join([label + b"/" + path + b"\0" for path in some]) for _, some in chunks]
        rows = [entries.rows for entries in trees]
        return SampleTable(
            root=b"",
            keys=PackedStrings.parse(b"".join(entries.keys.data for entries in trees)),
            first=np.append(0, np.cumsum(np.concatenate([one.counts() for one in trees]))),
            fields=tuple(fields),
            rows=replace(FieldRows.concat(rows, codes), paths=PackedStrings.parse(b"".join(paths))),
            identity=" ".join(storage_paths.source_identity(tree.root) for tree in self._trees),
            folders=dict(zip(self._labels, (tree.root for tree in self._trees), strict=True)),
        )

    def _check_shared(self, trees: Sequence[SampleTable], has: NDArray[np.bool_]) -> None:
        """Refuse folders that share no key: then their files are no parts of the same samples.

        Raises:
            InvalidRequest: No two of them share one.
        """
        for label, entries in zip(self._labels, trees, strict=True):
            if not len(entries):
                found = f"no files in {printable(label)}"
                remedy = f"Look at {option_text('include')}, {option_text('exclude')} and {option_text('hidden')}."
                raise InvalidRequest(self._source, found, expected="files such as cat/0001.jpg in each", remedy=remedy)
        if not (has.sum(axis=0) > 1).any():
            first = [
                f"{printable(label)} has '{printable(entries.keys[0])}'"
                for label, entries in zip(self._labels, trees, strict=True)
            ]
            expected = "files that share their names but for the endings: images/a.jpg and masks/a.png"
            remedy = "To pack folders one beside the other, name the folder that they lie in."
            found = f"no key is in two of the folders: {format_list(first, _MAX_LISTED_NAMES)}"
            raise InvalidRequest(self._source, found, expected=expected, remedy=remedy)

    def _incomplete_note(self, lacking: Sequence[Skipped], has: NDArray[np.bool_]) -> str:
        """Return what the user should know of samples without a file of each folder."""
        counts = [
            f"{int((~one).sum()):,} without one of {printable(label)}"
            for label, one in zip(self._labels, has, strict=True)
            if not one.all()
        ]
        named = format_list([printable(one.key) for one in lacking], _MAX_LISTED_NAMES)
        what = f"{pluralize(len(lacking), 'sample')} without a file of each folder, packed with what they have"
        return f"{what}: {named} ({'; '.join(counts)}; {flag_text('complete')} refuses them)"


def name_folders(sources: Sequence[str]) -> list[bytes]:
    """Return a name for each folder: the last part of its path, and where two share that, the parts before too.

    Raises:
        InvalidRequest: One of them lies in another, or is named twice.
    """
    real = [os.fsencode(one if address.is_url(one) else os.path.realpath(one)) for one in sources]
    for (one, inner), (other, outer) in permutations(zip(sources, real, strict=True), 2):
        if (inner + b"/").startswith(outer.rstrip(b"/") + b"/"):
            found = f"the same folder as {other}" if inner == outer else f"lies in {other}"
            raise InvalidRequest(one, found, expected="folders beside each other", remedy="Name each of them once.")
    parts = [path.split(b"/")[1:] for path in real]
    labels, depth = [b"_".join(one[-1:]) for one in parts], 1
    while len({*labels}) < len(labels) and depth < max(map(len, parts)):
        depth += 1
        labels = [b"_".join(one[-depth:]) for one in parts]
    if len({*labels}) < len(labels):
        raise InvalidRequest(", ".join(sources), "folders of one name", expected="a name of its own for each")
    return labels


def _incomplete_samples(entries: SampleTable, has: NDArray[np.bool_], labels: Sequence[bytes]) -> list[Skipped]:
    """Return the samples that some folder has no file of, as rows of what is left out."""
    found = []
    for at in (~has.all(axis=0)).nonzero()[0].tolist():
        without = format_list([printable(label) for label, there in zip(labels, has[:, at], strict=True) if not there])
        path = to_text(entries.path(int(entries.first[at])))
        found.append(Skipped(entries.key(at), path, "incomplete", f"no file of its key in {without}"))
    return found
