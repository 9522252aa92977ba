"""Several folders as a source: files that share a key, whichever folder they lie in, are one sample.

`images/cat/1.jpg` and `masks/cat/1.png` are the fields jpg and png of the sample `cat/1`: keys count from each folder.
An ending that files of two folders have is no name for a field; each of these files is called by its folder too, before
its ending, by which readers decode: `images.png` and `masks.png`. That is decided by what the folders hold, for
all samples alike.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, listing, printable
from shardtool.skipped import Skipped
from shardtool.source.folder.source import FolderSource, left_behind_notes, open_tree
from shardtool.storage.places import is_url
from shardtool.storage.sources import identity
from shardtool.values import counted, to_bytes, to_text
from shardtool.wording import flag, option

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.execute.pool import Pool
    from shardtool.pattern import ShardPattern
    from shardtool.request.observer import Observer
    from shardtool.request.options import CreateOptions
    from shardtool.source.folder.source import Found
    from shardtool.source.grouping import Groups

_SHOWN = 3


class FoldersSource(FolderSource):
    """Trees of files that share keys."""

    def __init__(self, sources: Sequence[str], options: CreateOptions, outputs: Iterable[ShardPattern]) -> None:
        self._options, outputs = options, [*outputs]
        self._trees = [open_tree(source, options, outputs) for source in sources]
        self._labels = label(sources)
        self._name = ",".join(map(printable, self._labels))
        self._source = ", ".join(sources)

    def _list(self, pool: Pool, observer: Observer) -> Found:
        found = [tree.scan(pool, observer) for tree in self._trees]
        from shardtool.source.folder.samples import check_torn, collect
        from shardtool.source.grouping import find_groups, grouped

        trees, skipped = [], list[Skipped]()
        for tree, label, parts in zip(self._trees, self._labels, found, strict=True):
            entries, left_out = collect(tree.root, parts)
            trees.append(entries)
            skipped += [replace(one, path=f"{to_text(label)}/{one.path}") for one in left_out]
            if self._options.dots is None:
                check_torn(entries)
        names = self._name_fields([entries.fields for entries in trees])
        joined = self._join(trees, names)
        groups = find_groups(joined.keys, by_key=True)
        counts = [len(entries) for entries in trees]
        has = _presence(counts, groups)
        self._check_shared(trees, has)
        entries = grouped(joined, groups)
        notes = left_behind_notes([part for parts in found for part in parts])
        if any(name != ending for one in names for ending, name in one.items()):
            apart = sorted({name for one in names for ending, name in one.items() if name != ending})
            notes.append(f"fields called by their folders, for endings are alike: {listing(apart, _SHOWN)}")
        lacking = _lacking(entries, has, self._labels)
        if self._options.complete:
            skipped += lacking
        elif lacking:
            notes.append(self._lacking_note(lacking, has))
        lost = {to_bytes(one.key) for one in skipped if one.key}
        if lost:  # a sample that lost a field is left out whole
            kept = [at for at in range(len(entries)) if entries.keys[at] not in lost]
            entries = entries.take(_numbers(kept))
        return entries, tuple(sorted(skipped, key=lambda one: (to_bytes(one.path), to_bytes(one.key)))), notes

    def _below_folders(self, skipped: tuple[Skipped, ...]) -> tuple[Skipped, ...]:
        return tuple(replace(one, path=one.path.partition("/")[2]) for one in skipped)

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
            raise InvalidRequest(
                self._source, found, expected="a field of each", remedy="Rename a folder, or the files."
            )
        return names

    def _join(self, trees: Sequence[Entries], names: Sequence[dict[str, str]]) -> Entries:
        """Return the parts that each folder has of samples, one folder after the other."""
        import numpy as np

        from shardtool.entries.entries import Entries, FieldRows
        from shardtool.names import Names

        fields = sorted({name for one in names for name in one.values()}, key=to_bytes)
        place = {name: at for at, name in enumerate(fields)}
        codes, paths = [], []
        for entries, label, named in zip(trees, self._labels, names, strict=True):
            codes.append(_numbers(place[named[name]] for name in entries.fields).astype(np.uint16)[entries.rows.code])
            paths.append(_paths(entries, label + b"/"))
        rows = [entries.rows for entries in trees]
        return Entries(
            root=b"",
            keys=Names.parse(b"".join(entries.keys.data for entries in trees)),
            first=np.concatenate((_numbers([0]), np.cumsum(np.concatenate([one.counts() for one in trees])))),
            fields=tuple(fields),
            rows=FieldRows(
                code=np.concatenate(codes),
                kind=np.concatenate([one.kind for one in rows]),
                size=np.concatenate([one.size for one in rows]),
                mtime_ns=np.concatenate([one.mtime_ns for one in rows]),
                changed_ns=np.concatenate([one.changed_ns for one in rows]),
                paths=Names.parse(b"".join(paths)),
            ),
            identity=" ".join(identity(tree.root) for tree in self._trees),
            folders=dict(zip(self._labels, (tree.root for tree in self._trees), strict=True)),
        )

    def _check_shared(self, trees: Sequence[Entries], has: NDArray[np.bool_]) -> None:
        """Refuse folders that share no key: then their files are no parts of the same samples.

        Raises:
            InvalidRequest: No two of them share one.
        """
        for label, entries in zip(self._labels, trees, strict=True):
            if not len(entries):
                found = f"no files in {printable(label)}"
                remedy = f"Look at {option('include')}, {option('exclude')} and {option('hidden')}."
                raise InvalidRequest(self._source, found, expected="files such as cat/0001.jpg in each", remedy=remedy)
        if not (has.sum(axis=0) > 1).any():
            first = [
                f"{printable(label)} has '{printable(entries.keys[0])}'"
                for label, entries in zip(self._labels, trees, strict=True)
            ]
            expected = "files that share their names but for the endings: images/a.jpg and masks/a.png"
            remedy = "To pack folders one beside the other, name the folder that they lie in."
            found = f"no key is in two of the folders: {listing(first, _SHOWN)}"
            raise InvalidRequest(self._source, found, expected=expected, remedy=remedy)

    def _lacking_note(self, lacking: Sequence[Skipped], has: NDArray[np.bool_]) -> str:
        """Return what the user should know of samples without a file of each folder."""
        counts = [
            f"{int((~one).sum()):,} without one of {printable(label)}"
            for label, one in zip(self._labels, has, strict=True)
            if not one.all()
        ]
        named = listing([printable(one.key) for one in lacking], _SHOWN)
        what = f"{counted(len(lacking), 'sample')} without a file of each folder, packed with what they have"
        return f"{what}: {named} ({'; '.join(counts)}; {flag('complete')} refuses them)"


def label(sources: Sequence[str]) -> list[bytes]:
    """Return a name for each folder: the last part of its path, and where two share that, the parts before too.

    Raises:
        InvalidRequest: One of them lies in another, or is named twice.
    """
    real = [os.fsencode(one if is_url(one) else os.path.realpath(one)) for one in sources]
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


def _presence(counts: Sequence[int], groups: Groups) -> NDArray[np.bool_]:
    """Return bool[folders, samples]: whether a folder has a part of a sample."""
    import numpy as np

    has, first = np.zeros((len(counts), len(groups.first)), np.bool_), 0
    for number, count in enumerate(counts):
        has[number, groups.of_part[first : first + count]] = True
        first += count
    return has


def _lacking(entries: Entries, has: NDArray[np.bool_], labels: Sequence[bytes]) -> list[Skipped]:
    """Return the samples that some folder has no file of, as rows of what is left out."""
    found = []
    for at in (~has.all(axis=0)).nonzero()[0].tolist():
        without = listing([printable(label) for label, there in zip(labels, has[:, at], strict=True) if not there])
        path = to_text(entries.path(int(entries.first[at])))
        found.append(Skipped(entries.key(at), path, "incomplete", f"no file of its key in {without}"))
    return found


def _paths(entries: Entries, before: bytes) -> bytes:
    """Return the path of each row with what stands before it, a NUL after each."""
    endings, found = [b"." + to_bytes(name) + b"\0" for name in entries.fields], []
    for first, keys in entries.keys.chunks():
        counts = entries.counts()[first : first + len(keys)].tolist()
        owners = [key for key, count in zip(keys, counts, strict=True) for _ in range(count)]
        codes = entries.rows.code[entries.first[first] : entries.first[first + len(keys)]].tolist()
        found.append(b"".join([before + key + endings[code] for key, code in zip(owners, codes, strict=True)]))
    return b"".join(found)


def _numbers(values: Iterable[int]) -> NDArray[np.int64]:
    import numpy as np

    return np.array([*values], np.int64)
