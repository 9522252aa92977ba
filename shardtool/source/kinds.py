"""Is a source an archive, or a manifest? Nothing heavy is imported to tell, and of a folder few names are looked at."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING

from shardtool.pattern import format_of, is_shard_name
from shardtool.storage.places import base_name, is_url, is_web
from shardtool.storage.reading import entries_in
from shardtool.storage.sources import objects_below

if TYPE_CHECKING:
    from collections.abc import Iterator

_MANIFEST_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".feather", ".arrow", ".ipc", ".gz", ".zst")


def archive_in(source: object) -> tuple[str, str] | None:
    """Return the path of an archive, and that of a folder in it, empty or ending in a slash; None: it is none."""
    if not isinstance(source, str | os.PathLike) or os.path.isdir(source):
        return None
    path, folder = os.fspath(source).rstrip("/"), ""
    while path and not os.path.lexists(path):
        path, name = os.path.split(path)
        folder = f"{name}/{folder}"
    is_named = path.lower().endswith(".zip") or format_of(os.path.basename(path)) == "tar"
    return (path, folder) if is_named and os.path.isfile(path) else None


def is_table(source: object) -> bool:
    """Tell whether a source is a manifest."""
    if not isinstance(source, (str, os.PathLike)):
        return True
    text = os.fspath(source)
    if not _may_be_manifest(text):
        return False
    from shardtool.source.manifest.options import is_manifest

    return is_manifest(text)


def _may_be_manifest(text: str) -> bool:
    """Tell whether it is worth asking: pyarrow is not imported for a folder of samples."""
    if is_url(text) and (is_web(text) or is_shard_name(base_name(text)) or text.lower().endswith(".zip")):
        return base_name(text).lower().endswith(_MANIFEST_ENDINGS)
    if text == "-" or os.path.isfile(text) or text.lower().endswith(_MANIFEST_ENDINGS):
        return True
    try:
        entries = (one.name for one in entries_in(text)) if not is_url(text) else _paths_below(text)
        names = list(islice(entries, 8))
    except OSError:
        return False
    return any(name.endswith(".parquet") or "=" in name for name in names)


def _paths_below(folder: str) -> Iterator[str]:
    return (one.path for one in objects_below(folder))
