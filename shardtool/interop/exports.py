"""The index files for other tools that `--export` can write.

If an index does not match its shard, most readers silently return wrong bytes. A file counts as an index only if its
first bytes have the right format, because a user's file of the same name must not be replaced.

Source: docs/format.md, "Exported indexes".
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import AccessRefused, InvalidRequest
from shardtool.messages import choose_text, export_text
from shardtool.names import to_local_name
from shardtool.pattern import (
    ENERGON_FILE,
    OPEN_CLIP_FILE,
    SIDECAR_SUFFIX,
    TIMM_FILE,
    is_compressed_name,
    parse_format,
    sidecar_name,
)
from shardtool.storage.files import is_file, read_small

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shardtool.interop.index_formats import FolderIndexFiles, ShardIndexFile
    from shardtool.interop.indexed_shard import IndexedShard


class ExportFormat(NamedTuple):
    """A kind of index that another tool reads.

    Attributes:
        suffix: Ending of a shard's index, such as `.idx`, or "" if the format has no index per shard.
        folder_file: The file that lists all shards of a folder, or "" if the format has none.
        has_hashes: Whether the index contains hashes, which requires reading the shard.
        has_readme: Whether shardtool also writes a `README.md` that lists the shards.
    """

    name: str
    shard_format: str
    reader: str
    suffix: str = ""
    folder_file: str = ""
    min_samples: int = 0
    has_hashes: bool = False
    has_readme: bool = False
    note: str = ""

    @property
    def shard_index(self) -> ShardIndexFile:
        """Return the functions that encode and check the index of a shard in this format."""
        from shardtool.interop.index_formats import SHARD_INDEXES

        return SHARD_INDEXES[self.name]

    @property
    def folder_index(self) -> FolderIndexFiles:
        """Return the functions that encode and parse the index of a folder in this format."""
        from shardtool.interop.index_formats import FOLDER_INDEXES

        return FOLDER_INDEXES[self.name]

    def sample_counts(self, data: bytes) -> dict[str, int]:
        """Return the sample count of each shard listed in `data`, the content of a `folder_file`.

        Invalid counts become -1.
        """
        if not data:
            return {}
        try:
            pairs = self.folder_index.pairs(json.loads(data))
            return {str(name): count if type(count) is int else -1 for name, count in pairs}
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return {}


EXPORTS = {
    export.name: export
    for export in (
        ExportFormat("dali-webdataset", "tar", "DALI", ".idx", min_samples=1),
        ExportFormat("energon", "tar", "energon", ".tar.idx", ENERGON_FILE),
        ExportFormat("huggingface", "tar", "the Hugging Face Hub", ".json", has_hashes=True, has_readme=True),
        ExportFormat("timm", "tar", "timm", folder_file=TIMM_FILE),
        ExportFormat("open-clip", "tar", "open_clip", folder_file=OPEN_CLIP_FILE),
        ExportFormat("wids", "tar", "wids", note="wids reads the dataset file itself; no other file is needed"),
        ExportFormat("dali-tfrecord", "tfrecord", "DALI", ".idx", min_samples=1),
        ExportFormat("tfrecord", "tfrecord", "the tfrecord package", ".tfindex", min_samples=2),
    )
}  # fmt: skip
FOLDER_EXPORTS = [export for export in EXPORTS.values() if export.folder_file]
PROBE_BYTES = 64
MAX_LIST_BYTES = 2**28
_SUFFIXES = sorted({export.suffix for export in EXPORTS.values() if export.suffix}, key=len, reverse=True)


def select_exports(formats: Sequence[str], shard_format: str = "") -> dict[str, ExportFormat]:
    """Return the exports named in `formats`. If `shard_format` is given, all exports must support this format."""
    for name in formats:
        if name not in EXPORTS:
            raise InvalidRequest(choose_text("export", "--export"), repr(name), expected=f"one of {', '.join(EXPORTS)}")
        if shard_format and EXPORTS[name].shard_format != shard_format:
            matching = [other_name for other_name, export in EXPORTS.items() if export.shard_format == shard_format]
            found = f"an index of {EXPORTS[name].shard_format} shards, but the shards are {shard_format}"
            raise InvalidRequest(export_text(name), found, expected=f"one of {', '.join(matching)}")
    return {name: EXPORTS[name] for name in formats}


def index_name(shard: str, export: ExportFormat) -> str:
    """Return the name of a shard's index, such as `out-000000.idx` for `out-000000.tar`."""
    return to_local_name(sidecar_name(shard).removesuffix(SIDECAR_SUFFIX) + export.suffix)


def find_index_names(shard: str, names: Collection[str]) -> list[str]:
    """Return the `names` that could be an index of the shard."""
    candidates = {index_name(shard, export) for export in EXPORTS.values() if export.suffix}
    return [] if is_compressed_name(shard) else sorted(candidates.intersection(names))


def shard_stems(name: str) -> list[str]:
    """Return the possible shard names, without ending, for an index with this name."""
    return [name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix) and name != suffix]


def detect_export(name: str, head: bytes, size: int) -> str:
    """Return the export format of an index file, or "" for other files. `head` is the first `PROBE_BYTES` bytes."""
    for export in EXPORTS.values():
        if export.suffix and name.endswith(export.suffix) and export.shard_index.has_format(head, size):
            return export.name
    return ""


def read_index_list(path: str) -> bytes:
    """Return the content of a file, or b"" if it does not exist, is too large, or a store denies access."""
    try:
        return read_small(path, MAX_LIST_BYTES) if is_file(path) else b""
    except (OSError, AccessRefused):
        return b""


def describe_index_difference(export_name: str, data: bytes, shard: IndexedShard) -> str:
    """Describe the difference between an index and its shard. Return "" if they are equivalent."""
    export = EXPORTS[export_name]
    # a shard whose name has no known extension is a TFRecord
    if export.shard_format != (parse_format(shard.name) or "tfrecord"):
        return f"an index of {export.shard_format} shards"
    return export.shard_index.compare(data, shard, has_hashes=export.has_hashes)
