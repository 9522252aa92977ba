"""Index files of other tools that `--export` can write: recognise them and compare them with their shard.

Only the hashes of a shard require reading a file. An index that belongs to another shard makes most readers return
wrong bytes without an error. A file counts as an index only if its first bytes have the form of one, so a user's
file
of the same name is left alone. Each index is tested against the tool that writes it and the tool that reads it
(tests/clients).

Source: docs/format.md, "Exported indexes".
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from shardtool.errors import (
    AccessRefused,
    InvalidRequest,
)
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
    """Index files of which a folder has one set, shared by all splits of a dataset.

    Attributes:
        encode: Returns their bytes by their paths in the folder, in the order in which they should appear.
        info: The one of them that lists the shards.
        pairs: Returns the shards that its JSON lists, and how many samples each has there.
        lasting: The one that is the user's to change: where it is there, it stays. Empty: there is none.
    """

    encode: Callable[[Sequence[DatasetFile]], dict[str, bytes]]
    info: str
    pairs: Callable[[Any], Iterable[tuple[object, object]]]
    lasting: str = ""

    def counts(self, info: bytes) -> dict[str, int]:
        """Return how many samples such a file gives for each shard, as far as it can be read; -1: no number."""
        try:
            return {str(name): count if type(count) is int else -1 for name, count in self.pairs(json.loads(info))}
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return {}


class ExportFormat(NamedTuple):
    """An index of another tool.

    Attributes:
        shard_format: `tar` or `tfrecord`: what it is an index of.
        reader: The tool.
        suffix: What the name of a shard's index ends with, in place of the shard's ending.
        encode: Returns the bytes of a shard's index; None: there is none.
        form: Tells, by the first bytes of a file and its size, whether it has the form of one.
        means: Tells whether the bytes of one that are not ours lead to the same places of a shard.
        least: Samples that a shard must hold for the tool to take its index.
        hashed: Whether it has hashes of payloads: then shards are read.
        once: What else there is, once a folder.
        readme: Whether a `README.md` that names the shards comes with it.
        note: What the user should know.
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
    """Return what tells of the first bytes of a file, and its size, whether they are text of this form."""
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
    "wids": ExportFormat("tar", "wids", note="the dataset file is what wids wants: nothing to write"),
    "dali-tfrecord": ExportFormat("tfrecord", "DALI", ".idx", *_TFRECORD_INDEX, least=1),
    "tfrecord": ExportFormat("tfrecord", "the tfrecord package", ".tfindex", *_TFRECORD_INDEX, least=2),
}  # fmt: skip


FOLDER_INDEXES = {name: export.once for name, export in EXPORTS.items() if export.once is not None}


PROBE_BYTES = 64  # bytes from the start of a file that show its form


MAX_LIST_BYTES = 2**28  # bytes of a file that lists a folder's shards


_SUFFIXES = sorted({export.suffix for export in EXPORTS.values() if export.suffix}, key=len, reverse=True)


def select_exports(formats: Sequence[str], shard_format: str = "") -> dict[str, ExportFormat]:
    """Return the exports of these names.

    Args:
        formats: Their names.
        shard_format: The format of their shards; empty: not known yet.

    Raises:
        InvalidRequest: One is unknown, or an index of other shards.
    """
    for name in formats:
        if name not in EXPORTS:
            raise InvalidRequest(choose_text("export", "--export"), repr(name), expected=f"one of {', '.join(EXPORTS)}")
        if shard_format and EXPORTS[name].shard_format != shard_format:
            others = [one for one, other in EXPORTS.items() if other.shard_format == shard_format]
            found = f"an index of {EXPORTS[name].shard_format} shards, and these are {shard_format}"
            raise InvalidRequest(export_text(name), found, expected=f"one of {', '.join(others)}")
    return {name: EXPORTS[name] for name in formats}


def index_name(shard: str, export: ExportFormat) -> str:
    """Return the name of a shard's index: `out-000000.idx` for `out-000000.tar`."""
    return to_local_name(sidecar_name(shard).removesuffix(SIDECAR_SUFFIX) + export.suffix)


def find_index_names(shard: str, names: Collection[str]) -> list[str]:
    """Return those of `names` that may be indexes of a shard."""
    wanted = {index_name(shard, export) for export in EXPORTS.values() if export.suffix}
    return [] if is_compressed_name(shard) else sorted(wanted.intersection(names))


def shard_stems(name: str) -> list[str]:
    """Return the names, without their endings, of the shards that a file could be an index of, by its own name."""
    return [name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix) and name != suffix]


def detect_export(name: str, head: bytes, size: int) -> str:
    """Return what a file is by its name and its start, as `--export` calls it; empty where it is no index.

    Args:
        name: The file's name.
        head: Its first bytes, `PROBE_BYTES` or all.
        size: How many it has.
    """
    for export, kind in EXPORTS.items():
        if kind.suffix and name.endswith(kind.suffix) and kind.form(head, size):
            return export
    return ""


def read_index_list(path: str) -> bytes:
    """Return a whole file; nothing where there is none, or it cannot be read, which a store may say of none, too."""
    try:
        return read_small(path, MAX_LIST_BYTES) if is_file(path) else b""
    except (OSError, AccessRefused):
        return b""


def describe_index_difference(export: str, data: bytes, shard: IndexedShard) -> str:
    """Return how an index differs from one of the shard; empty where readers find by it what lies there.

    Args:
        export: What the file is, as `form_of` returns it.
        data: Its bytes.
        shard: Its hashes are compared only where it has some.
    """
    found = EXPORTS[export]
    if found.encode is None or found.shard_format != (parse_format(shard.name) or "tfrecord"):  # names need not tell
        return f"an index of {found.shard_format} shards"
    try:
        if found.hashed:
            return compare_hfutils_index(data, shard)
        return "" if found.encode(shard) == data or found.means(data, shard) else OTHER_OFFSETS
    except InvalidRequest as error:
        return error.found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError):
        return OTHER_OFFSETS
