"""Check that the paths of a plan file stay inside the source, unless the user allows them to leave it."""

from __future__ import annotations

import os
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import (
    InvalidRequest,
    printable,
)
from shardtool.messages import option_text
from shardtool.shard_samples import FILE, LINK
from shardtool.source.collect_files import resolve_folder
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.source.plan_request import PlanRequest


_MAX_PROBED_FILES = 16  # files, of which one at least must be there as it was listed


def check_plan_paths(entries: SampleTable, asked: PlanRequest, where: str) -> None:
    """Refuse paths that lead out of a source, and a plan of which no file is there.

    Only folders and links are looked at, each once: files are held to what was listed when they are read.

    Args:
        entries: The samples of a plan file.
        asked: Where the source lies.
        where: The plan file.

    Raises:
        InvalidRequest: There are such paths, or it is another source.
    """
    kind = entries.rows.kind
    is_file = (kind == FILE) | (kind == LINK)
    if not is_file.any():
        return
    roots = asked.folders or {b"": asked.root}
    known = {root: os.path.join(os.path.realpath(root), b"") for root in roots.values()}
    for path in _folders_and_links(entries, is_file):
        top, _, below = path.partition(b"/") if asked.folders else (b"", b"", path)
        stays = top in roots and not below.startswith(b"/")
        if stays and not asked.outside:
            place = os.path.join(roots[top] + below, b"")  # of a link, too, with a slash
            stays = resolve_folder(known, place, _real_folder).startswith(known[roots[top]])
        if not stays:
            found = f"a plan with a path that leads out of the source: {printable(path)}"
            name, value = ("allow_outside", True) if asked.kind == "manifest" else ("symlinks", "follow")
            raise InvalidRequest(where, found, expected=f"paths below it, or {option_text(name, value)}")
    _check_any_exists(entries, where)


def _real_folder(above: bytes, path: bytes) -> bytes:
    """Return where a folder or a link really lies, ending in a slash as all here do; `above`: what it lies in."""
    name = path[:-1].rpartition(b"/")[2]
    is_plain = name not in (b"", b".", b"..") and not os.path.islink(path[:-1])
    return above + name + b"/" if is_plain else os.path.join(os.path.realpath(path), b"")


def _folders_and_links(entries: SampleTable, is_file: NDArray[np.bool_]) -> Iterator[bytes]:
    """Yield each folder that files lie in, ending in a slash, once, and then the links."""
    seen, paths = set[bytes](), entries.rows.paths
    texts, wanted = (entries.keys, np.ones(len(entries), np.bool_)) if paths is None else (paths, is_file)
    for part in chunk_slices(len(texts)):
        some = compress(texts.span(part.start, part.stop)[:-1].split(b"\0"), wanted[part].tolist())
        new = {text[: text.rfind(b"/") + 1] for text in some} - seen
        seen |= new
        yield from sorted(new)
    for row in np.flatnonzero(entries.rows.kind == LINK).tolist():
        yield entries.path(row)


def _check_any_exists(entries: SampleTable, where: str) -> None:
    """Refuse a plan of which no file is there as it was listed: it is of another source, or of another time.

    Raises:
        InvalidRequest: It is one.
    """
    kind = entries.rows.kind
    rows = {*range(0, len(kind), -(-len(kind) // _MAX_PROBED_FILES)), int((kind == FILE).argmax())}
    some = [row for row in sorted(rows) if kind[row] == FILE]
    for row in some:
        try:
            fact = os.stat(entries.file_path(row))
        except (OSError, ValueError):
            continue
        if (fact.st_size, fact.st_mtime_ns) == (int(entries.rows.size[row]), int(entries.rows.mtime_ns[row])):
            return
    if some:
        found = f"a plan of which no file is there as it was listed, such as {printable(entries.path(some[0]))}"
        remedy = f"Is it the same source? Otherwise write a plan of it with {option_text('plan_only', 'FILE')}."
        raise InvalidRequest(where, found, expected="a plan of this source", remedy=remedy)
