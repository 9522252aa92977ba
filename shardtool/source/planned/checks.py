"""Where the paths of a plan file lead: into the source, unless what the user typed says that they may leave it."""

from __future__ import annotations

import os
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest, printable
from shardtool.source.manifest.stat import PathChecks
from shardtool.values import FILE, LINK
from shardtool.wording import option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.source.planned.place import Place

_CHUNK = 2**16  # samples at a time
_LOOKED_AT = 16  # files, of which one at least must be there as it was listed


def check_paths(entries: Entries, place: Place, where: str) -> None:
    """Refuse paths that lead out of a source, and a plan of which no file is there.

    Only folders and links are looked at, each once: files are held to what was listed when they are read.

    Args:
        entries: The samples of a plan file.
        place: Where the source lies.
        where: The plan file.

    Raises:
        InvalidRequest: There are such paths, or it is another source.
    """
    is_file = (entries.rows.kind == FILE) | (entries.rows.kind == LINK)
    if not is_file.any():
        return
    inside = _Inside(place, where)
    seen: set[bytes] = set()
    for first in range(0, len(entries), _CHUNK):
        new = _folders(entries, is_file, first, min(first + _CHUNK, len(entries))) - seen
        seen |= new
        for folder in sorted(new):
            inside.check(folder)
    for row in np.flatnonzero(entries.rows.kind == LINK).tolist():
        inside.check(entries.path(row), link=True)
    _check_some(entries, where)


def _folders(entries: Entries, is_file: NDArray[np.bool_], first: int, last: int) -> set[bytes]:
    """Return the folders that the files of some samples lie in, each ending in a slash."""
    if entries.rows.paths is None:
        texts = entries.keys.span(first, last)[:-1].split(b"\0")
    else:
        start, end = int(entries.first[first]), int(entries.first[last])
        texts = [*compress(entries.rows.paths.span(start, end)[:-1].split(b"\0"), is_file[start:end].tolist())]
    return {text[: text.rfind(b"/") + 1] for text in texts}


class _Inside:
    """Tells whether paths stay in a source; looks at each folder once."""

    def __init__(self, place: Place, where: str) -> None:
        self._place, self._where = place, where
        roots = place.folders or {b"": place.root}
        self._looks = {top: PathChecks(root, outside=place.outside) for top, root in roots.items()}
        self._roots = {top: os.path.realpath(root).rstrip(b"/") + b"/" for top, root in roots.items()}

    def check(self, path: bytes, *, link: bool = False) -> None:
        """Refuse a path that leads out.

        Raises:
            InvalidRequest: It does.
        """
        top, below = b"", path
        if self._place.folders:
            top, _, below = path.partition(b"/")
        parts = below.split(b"/")
        if top not in self._looks or below.startswith(b"/"):
            raise self._leaves(path)
        root = (self._place.folders or {b"": self._place.root})[top]
        if not self._place.outside and b".." in parts:
            if not (os.path.realpath(root + below) + b"/").startswith(self._roots[top]):
                raise self._leaves(path)
            return
        problem = self._looks[top].link(below)[1] if link else self._looks[top].folder(below).problem
        if problem is not None and problem[0] == "link-outside":
            raise self._leaves(path)

    def _leaves(self, path: bytes) -> InvalidRequest:
        found = f"a plan with a path that leads out of the source: {printable(path)}"
        name, value = ("allow_outside", True) if self._place.kind == "manifest" else ("symlinks", "follow")
        return InvalidRequest(self._where, found, expected=f"paths below it, or {option(name, value)}")


def _check_some(entries: Entries, where: str) -> None:
    """Refuse a plan of which no file is there as it was listed: it is of another source, or of another time.

    Raises:
        InvalidRequest: It is one.
    """
    kind = entries.rows.kind
    rows = {*range(0, len(kind), -(-len(kind) // _LOOKED_AT)), int((kind == FILE).argmax())}
    some = [row for row in sorted(rows) if kind[row] == FILE]
    for row in some:
        try:
            fact = os.stat(entries.place(row))
        except (OSError, ValueError):
            continue
        if (fact.st_size, fact.st_mtime_ns) == (int(entries.rows.size[row]), int(entries.rows.mtime_ns[row])):
            return
    if some:
        found = f"a plan of which no file is there as it was listed, such as {printable(entries.path(some[0]))}"
        remedy = f"Is it the same source? Otherwise write a plan of it with {option('plan_only', 'FILE')}."
        raise InvalidRequest(where, found, expected="a plan of this source", remedy=remedy)
