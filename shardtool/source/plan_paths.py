"""Check that the paths of a plan file stay inside the source."""

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


_MAX_PROBED_FILES = 16  # at least one of these must exist unchanged


def check_plan_paths(entries: SampleTable, request: PlanRequest, where: str) -> None:
    """Refuse paths that leave the source without permission, and a plan none of whose files exists.

    Each folder and link is examined once.
    """
    kind = entries.rows.kind
    is_file = (kind == FILE) | (kind == LINK)
    if not is_file.any():
        return
    roots = request.folders or {b"": request.root}
    real_paths = {root: os.path.join(os.path.realpath(root), b"") for root in roots.values()}
    for path in _folders_and_links(entries, is_file):
        top, _, below = path.partition(b"/") if request.folders else (b"", b"", path)
        is_inside = top in roots and not below.startswith(b"/")
        if is_inside and not request.outside:
            location = os.path.join(roots[top] + below, b"")  # also a link gets a final slash
            is_inside = resolve_folder(real_paths, location, _real_folder).startswith(real_paths[roots[top]])
        if not is_inside:
            found = f"a plan with a path that leaves the source: {printable(path)}"
            name, value = ("allow_outside", True) if request.kind == "manifest" else ("symlinks", "follow")
            raise InvalidRequest(where, found, expected=f"paths below the source, or {option_text(name, value)}")
    _check_any_exists(entries, where)


def _real_folder(parent: bytes, path: bytes) -> bytes:
    name = path[:-1].rpartition(b"/")[2]
    is_plain = name not in (b"", b".", b"..") and not os.path.islink(path[:-1])
    return parent + name + b"/" if is_plain else os.path.join(os.path.realpath(path), b"")


def _folders_and_links(entries: SampleTable, is_file: NDArray[np.bool_]) -> Iterator[bytes]:
    seen, paths = set[bytes](), entries.rows.paths
    texts, used = (entries.keys, np.ones(len(entries), np.bool_)) if paths is None else (paths, is_file)
    for part in chunk_slices(len(texts)):
        used_paths = compress(texts.span(part.start, part.stop)[:-1].split(b"\0"), used[part].tolist())
        new_folders = {text[: text.rfind(b"/") + 1] for text in used_paths} - seen
        seen |= new_folders
        yield from sorted(new_folders)
    for row in np.flatnonzero(entries.rows.kind == LINK).tolist():
        yield entries.path(row)


def _check_any_exists(entries: SampleTable, where: str) -> None:
    kind = entries.rows.kind
    rows = {*range(0, len(kind), -(-len(kind) // _MAX_PROBED_FILES)), int((kind == FILE).argmax())}
    probed = [row for row in sorted(rows) if kind[row] == FILE]
    for row in probed:
        try:
            file_stat = os.stat(entries.file_path(row))
        except (OSError, ValueError):
            continue
        if (file_stat.st_size, file_stat.st_mtime_ns) == (int(entries.rows.size[row]), int(entries.rows.mtime_ns[row])):
            return
    if probed:
        found = f"a plan none of whose files exists unchanged, such as {printable(entries.path(probed[0]))}"
        remedy = f"Check the source, or write a new plan with {option_text('plan_only', 'FILE')}."
        raise InvalidRequest(where, found, expected="a plan of this source", remedy=remedy)
