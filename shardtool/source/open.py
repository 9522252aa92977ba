"""Which source is it? A folder, a manifest or datasets. What each needs is imported only where it is the one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from shardtool.request.reshard_options import ReshardOptions
from shardtool.source.advice import check_folder
from shardtool.storage.reading import entries_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.pattern import ShardPattern
    from shardtool.request.options import CreateOptions
    from shardtool.source.base import Source

_MANIFEST_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".feather", ".arrow", ".ipc", ".gz", ".zst")


def open_source(source: Any, options: CreateOptions | ReshardOptions, outputs: Sequence[ShardPattern]) -> Source:
    """Return a source.

    Args:
        source: What the user gave.
        options: What is to be done: of `reshard`, the source is datasets.
        outputs: What will be written: a folder that holds it does not list it.

    Raises:
        InvalidRequest: It is nothing that can be packed, or options do not go with it.
    """
    if isinstance(options, ReshardOptions):
        from shardtool.source.shards.source import ShardSource

        return ShardSource(source, options, outputs[0].format)
    is_manifest = _is_manifest(source)
    options.check_for(manifest=is_manifest)
    if is_manifest:
        from shardtool.source.manifest.source import ManifestSource

        return ManifestSource(source, options)
    from shardtool.source.folder.source import FolderSource

    check_folder(os.fspath(source))
    return FolderSource(os.fspath(source), options, outputs)


def _is_manifest(source: object) -> bool:
    if not isinstance(source, (str, os.PathLike)):
        return True
    text = os.fspath(source)
    if not _may_be_manifest(text):
        return False
    from shardtool.source.manifest.options import is_manifest

    return is_manifest(text)


def _may_be_manifest(text: str) -> bool:
    """Tell whether it is worth asking: pyarrow is not imported for a folder of samples."""
    if text == "-" or os.path.isfile(text) or text.lower().endswith(_MANIFEST_ENDINGS):
        return True
    try:
        names = [entry.name for _, entry in zip(range(8), entries_in(text), strict=False)]
    except OSError:
        return False
    return any(name.endswith(".parquet") or "=" in name for name in names)
