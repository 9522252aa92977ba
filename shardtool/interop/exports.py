"""Index files of other tools that `--export` can write: recognise them and compare them with their shard.

With the index of another shard, most readers silently return wrong bytes. A file counts as an index only if its first
bytes have the right format, to keep a user's file with the same name.

Source: docs/format.md, "Exported indexes".
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from shardtool.errors import AccessRefused, InvalidRequest
from shardtool.interop.dali import dali_tfrecord_index, dali_webdataset_index, parse_dali_index
from shardtool.interop.energon import DATASET_YAML, INFO_FILE, energon_folder_index, energon_index, is_energon_index
from shardtool.interop.huggingface import OTHER_OFFSETS, compare_hfutils_index, hfutils_index
from shardtool.interop.shard_counts import open_clip_sizes, timm_info, timm_shard_counts
from shardtool.messages import choose_text, export_text
from shardtool.names import to_local_name
from shardtool.pattern import OPEN_CLIP_FILE, SIDECAR_SUFFIX, TIMM_FILE, sidecar_name
from shardtool.shard_names import is_compressed_name, parse_format
from shardtool.storage.files import read_small
from shardtool.storage.lookup import is_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.interop.indexed_shard import IndexedShard


class FolderIndex(NamedTuple):
    """Index files that exist once per folder, for all splits of a dataset.

    Attributes:
        encode: Returns their bytes by path in the folder, in the order of publication.
        pairs: Returns shard and sample count from its parsed JSON.
        lasting: A file that users may edit, and that is never overwritten.
    """

    encode: Callable[[Sequence[DatasetFile]], dict[str, bytes]]
    info: str
    pairs: Callable[[Any], Iterable[tuple[object, object]]]
    lasting: str = ""

    def counts(self, info: bytes) -> dict[str, int]:
        """Return the sample counts in a list, as far as it is readable; -1: not a number."""
        try:
            return {str(name): count if type(count) is int else -1 for name, count in self.pairs(json.loads(info))}
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return {}


class ExportFormat(NamedTuple):
    """An index of another tool.

    Attributes:
        suffix: Replaces the shard's suffix.
        encode: Returns the index of a shard; None: there is none per shard.
        form: Returns whether a file is such an index, by its first bytes and size.
        means: Returns whether an index with other bytes is equivalent to ours.
        least: Minimum number of samples that the tool accepts.
        hashed: Whether it contains hashes: the shards must be read.
        readme: Whether a `README.md` that lists the shards belongs to it.
    """

    shard_format: str
    reader: str
    suffix: str = ""
    encode: Callable[[IndexedShard], bytes] | None = None
    form: Callable[[bytes, int], bool] = lambda _, __: False
    means: Callable[[bytes, IndexedShard], bool] = lambda _, __: False
    least: int = 0
    hashed: bool = False
    once: FolderIndex | None = None
    readme: bool = False
    note: str = ""


def _matches_start(pattern: bytes) -> Callable[[bytes, int], bool]:
    return lambda head, _: re.match(pattern, head) is not None


_TFRECORD_INDEX = (
    dali_tfrecord_index, _matches_start(rb"\d{1,20} \d{1,20}\r?\n"),
    lambda data, shard: dali_tfrecord_index(shard).split() == data.split(),
)  # fmt: skip
EXPORTS = {
    "dali-webdataset": ExportFormat(
        "tar", "DALI", ".idx", dali_webdataset_index, _matches_start(rb"v1\.\d{1,3} \d{1,20}\r?\n"),
        lambda data, shard: parse_dali_index(data) == [fields for _, fields in shard.samples()], least=1,
    ),
    "energon": ExportFormat(
        "tar", "energon", ".tar.idx", energon_index, is_energon_index,
        once=FolderIndex(energon_folder_index, INFO_FILE, lambda info: info["shard_counts"].items(), DATASET_YAML),
    ),
    "huggingface": ExportFormat(
        "tar", "the Hugging Face Hub", ".json", hfutils_index,
        _matches_start(rb'\s*\{\s*"(?:filesize|files|hash|hash_lfs)"\s*:'), hashed=True, readme=True,
    ),
    "timm": ExportFormat("tar", "timm", once=FolderIndex(timm_info, TIMM_FILE, timm_shard_counts)),
    "open-clip": ExportFormat("tar", "open_clip", once=FolderIndex(open_clip_sizes, OPEN_CLIP_FILE, dict.items)),
    "wids": ExportFormat("tar", "wids", note="wids reads the dataset file itself; no other file is needed"),
    "dali-tfrecord": ExportFormat("tfrecord", "DALI", ".idx", *_TFRECORD_INDEX, least=1),
    "tfrecord": ExportFormat("tfrecord", "the tfrecord package", ".tfindex", *_TFRECORD_INDEX, least=2),
}  # fmt: skip
FOLDER_INDEXES = {name: export.once for name, export in EXPORTS.items() if export.once is not None}
PROBE_BYTES = 64  # enough to detect a format
MAX_LIST_BYTES = 2**28
_SUFFIXES = sorted({export.suffix for export in EXPORTS.values() if export.suffix}, key=len, reverse=True)


def select_exports(formats: Sequence[str], shard_format: str = "") -> dict[str, ExportFormat]:
    """Return the exports with these names; an empty `shard_format` is unknown."""
    for name in formats:
        if name not in EXPORTS:
            raise InvalidRequest(choose_text("export", "--export"), repr(name), expected=f"one of {', '.join(EXPORTS)}")
        if shard_format and EXPORTS[name].shard_format != shard_format:
            matching = [other_name for other_name, export in EXPORTS.items() if export.shard_format == shard_format]
            found = f"an index of {EXPORTS[name].shard_format} shards, but the shards are {shard_format}"
            raise InvalidRequest(export_text(name), found, expected=f"one of {', '.join(matching)}")
    return {name: EXPORTS[name] for name in formats}


def index_name(shard: str, export: ExportFormat) -> str:
    """Return the name of a shard's index: `out-000000.idx` for `out-000000.tar`."""
    return to_local_name(sidecar_name(shard).removesuffix(SIDECAR_SUFFIX) + export.suffix)


def find_index_names(shard: str, names: Collection[str]) -> list[str]:
    """Return the names that may be indexes of a shard."""
    candidates = {index_name(shard, export) for export in EXPORTS.values() if export.suffix}
    return [] if is_compressed_name(shard) else sorted(candidates.intersection(names))


def shard_stems(name: str) -> list[str]:
    """Return the names, without suffix, of the shards that a file may be an index of."""
    return [name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix) and name != suffix]


def detect_export(name: str, head: bytes, size: int) -> str:
    """Return the export that a file is, by name, first `PROBE_BYTES` bytes and size; empty: none."""
    for export, export_format in EXPORTS.items():
        if export_format.suffix and name.endswith(export_format.suffix) and export_format.form(head, size):
            return export
    return ""


def read_index_list(path: str) -> bytes:
    """Return a whole file; empty if it does not exist or cannot be read."""
    try:
        return read_small(path, MAX_LIST_BYTES) if is_file(path) else b""
    except (OSError, AccessRefused):
        return b""


def describe_index_difference(export: str, data: bytes, shard: IndexedShard) -> str:
    """Return the difference between an index and its shard; empty if readers get the right bytes."""
    export_format = EXPORTS[export]
    shard_format = parse_format(shard.name) or "tfrecord"  # only names of TFRecords may lack it
    if export_format.encode is None or export_format.shard_format != shard_format:
        return f"an index of {export_format.shard_format} shards"
    try:
        if export_format.hashed:
            return compare_hfutils_index(data, shard)
        return "" if export_format.encode(shard) == data or export_format.means(data, shard) else OTHER_OFFSETS
    except InvalidRequest as error:
        return error.found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError):
        return OTHER_OFFSETS
