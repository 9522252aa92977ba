"""The indexes of Megatron-Energon: offsets beside each shard, and once a folder what to read as which split.

With them energon opens the folder as it is: no `energon prepare`, no question asked. Samples are crude, a dict of
bytes and what its decoder makes of them; a `dataset.yaml` of the user's says otherwise, and stays.

Source: NVIDIA/Megatron-Energon, `megatron/energon/flavors/webdataset/{itar,metadata,config,prepare}.py`;
docs/format.md, "Exported indexes".
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, printable
from shardtool.wording import exporting, flag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardtool.interop.export_types import IndexedShard, SplitShards


_FOLDER = ".nv-meta"
INFO_FILE = f"{_FOLDER}/.info.json"
SPLIT_FILE = f"{_FOLDER}/split.yaml"
DATASET_YAML = f"{_FOLDER}/dataset.yaml"
_CRUDE = b"__module__: megatron.energon\n__class__: CrudeWebdataset\n"
_SPLITS = ("train", "val", "test")  # `energon lint` wants all of them, empty ones too
_READ = re.compile(rb"(?!__[^/]*__(?:/|$))(?:.*/|)[^.]+[.][^/]*$")  # what its reader takes for a part of a sample
_NO_NAME = re.compile(r'[\x00-\x1f\x7f-\x9f"\\{}\u2028\u2029\ud800-\udfff]')  # its YAML reader resolves no escapes


def offsets_index(shard: IndexedShard) -> bytes:
    """Return `out-000000.tar.idx`: where each sample starts and where the last one ends, as uint64.

    Raises:
        InvalidRequest: A name that energon's reader passes over.
    """
    import numpy as np

    table = shard.table
    lists = table.column("__fields__").combine_chunks()
    counts = np.diff(lists.offsets.to_numpy()).tolist()
    fields = iter(lists.flatten().field("name").cast("binary").to_pylist())
    for key, count in zip(table.column("__key__").cast("binary").to_pylist(), counts, strict=True):
        for _ in range(count):
            name = b"%b.%b" % (key, next(fields))
            if not _READ.match(name):
                found = f"{printable(name)!r}, which energon passes over"
                raise InvalidRequest(shard.name, found, remedy=f"Pack the samples with {flag('portable')}.")
    starts, sizes = (table.column(name).to_numpy().astype("<u8") for name in ("__offset__", "__size__"))
    end = starts[-1:] + sizes[-1:] if len(starts) else np.zeros(1, "<u8")
    return bytes(starts.tobytes() + end.tobytes())


def folder_index(splits: Sequence[SplitShards]) -> dict[str, bytes]:
    """Return the files in `.nv-meta` for the splits in a folder, the one by which energon knows it last.

    A dataset that was never split is `train`. Shards without a sample are
    left out: energon takes none.

    Raises:
        InvalidRequest: A shard or split has a name that cannot stand in energon's YAML.
    """
    counts: dict[str, int] = {}
    parts: dict[str, list[str]] = {name: [] for name in _SPLITS}
    for split in sorted(splits, key=by_split):
        found = {name: samples for name, samples in split.shards.items() if samples}
        parts.setdefault(split.name or _SPLITS[0], []).extend(found)
        counts |= found
    lines = ["split_parts:"]
    for name, shards in parts.items():
        lines.append(f"  {_quoted(name)}:{'' if shards else ' []'}")
        lines += [f"  - {_quoted(shard)}" for shard in shards]
    return {
        DATASET_YAML: _CRUDE,
        SPLIT_FILE: "\n".join([*lines, ""]).encode(),
        INFO_FILE: json.dumps({"shard_counts": counts}, indent=2).encode() + b"\n",
    }


def shard_counts(info: bytes) -> dict[str, int]:
    """Return how many samples a `.info.json` gives for each shard, as far as it can be read; -1: no number."""
    try:
        counts = json.loads(info)["shard_counts"]
        return {str(name): counts[name] if type(counts[name]) is int else -1 for name in counts}
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return {}


def by_split(split: SplitShards) -> tuple[int, str]:
    """Return a key that sorts the splits of a run: train, val, test, then others by name."""
    return (_SPLITS.index(split.name) if split.name in _SPLITS else len(_SPLITS), split.name)


def _quoted(name: str) -> str:
    if _NO_NAME.search(name):
        raise InvalidRequest(
            exporting("energon"), f"the name {name!r}", expected="one without quotes, backslashes and braces"
        )
    return f'"{name}"'


# The indexes that DALI, and the `tfrecord` package, read beside a shard.
#
# Source: NVIDIA/DALI, `tools/wds2idx.py`, `tools/tfrecord2idx` and `ParseIndexFile` in
# `dali/operators/reader/loader/webdataset_loader.cc`; vahidk/tfrecord, `tfrecord/tools/tfrecord2idx.py`;
# docs/format.md, "Exported indexes".


_SPACE = re.compile(rb"[\x00-\x20\x7f]")
_UNSAFE = re.compile(rb"[\x00-\x20\x7f%]")


def tfrecord_index(shard: IndexedShard) -> bytes:
    """Return what the `tfrecord2idx` of DALI and that of the `tfrecord` package write: `OFFSET SIZE` of each record."""
    columns = (shard.table.column(name).to_numpy().tolist() for name in ("__offset__", "__size__"))
    return b"".join([b"%d %d\n" % row for row in zip(*columns, strict=True)])


def webdataset_index(shard: IndexedShard) -> bytes:
    """Return what DALI's `wds2idx` writes, version 1.2: `FIELD OFFSET LENGTH NAME` of each field, a line per sample.

    Its reader ends a word at any white space. It takes a name for nothing but a label, so what is unsafe in one is
    percent-encoded.

    Raises:
        InvalidRequest: A field has white space in its name.
    """
    keys = shard.table.column("__key__").cast("binary").to_pylist()
    lists = shard.table.column("__fields__").combine_chunks()
    fields = lists.flatten()
    names = fields.field("name").cast("binary").to_pylist()
    if unsafe := sorted(name for name in set(names) if _SPACE.search(name)):
        found = f"white space in the field {printable(unsafe[0])!r}, which DALI's index cannot name"
        raise InvalidRequest(shard.name, found, remedy=f"Pack the samples with {flag('portable')}.")
    offsets, lengths = (fields.field(part).to_numpy().tolist() for part in ("offset", "length"))
    lines = [b"v1.2 %d\n" % len(keys)]
    for key, (first, last) in zip(keys, pairwise(lists.offsets.to_pylist()), strict=True):
        safe = _UNSAFE.sub(_escape, key)
        words = [
            b"%b %d %d %b.%b" % (names[at], offsets[at], lengths[at], safe, names[at].replace(b"%", b"%25"))
            for at in range(first, last)
        ]
        lines.append(b" ".join(words) + b"\n")
    return b"".join(lines)


def _escape(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]


# How many samples each shard has, as trainers read it: timm's `_info.json`, and `sizes.json` of open_clip.
#
# Each is one file a folder, beside the shards. Without it the user has to count the samples for them.
#
# Source: huggingface/pytorch-image-models, `timm/data/readers/reader_wds.py`; mlfoundations/open_clip,
# `get_dataset_size`; docs/format.md, "Exported indexes".


TIMM_FILE = "_info.json"
OPEN_CLIP_FILE = "sizes.json"
_TRAIN = "train"  # of a dataset without splits: what timm looks for


def timm_info(splits: Sequence[SplitShards]) -> dict[str, bytes]:
    """Return `_info.json`: of each split its shards and their samples.

    Raises:
        InvalidRequest: timm would take a split's name for the name of shards.
    """
    found = {}
    check_timm_splits([split.name for split in splits])
    for split in sorted(splits, key=by_split):
        found[split.name or _TRAIN] = {
            "name": split.name or _TRAIN,
            "num_samples": sum(split.shards.values()),
            "filenames": [*split.shards],
            "shard_lengths": [*split.shards.values()],
        }
    return {TIMM_FILE: json.dumps({"splits": found}, indent=2).encode() + b"\n"}


def check_timm_splits(splits: Iterable[str]) -> None:
    """Check that timm finds the splits by their names.

    Raises:
        InvalidRequest: It would take one for the name of shards.
    """
    for name in splits:
        if "tar" in name or ".." in name:
            what = f"the split {name}, which timm takes for the name of shards"
            raise InvalidRequest(exporting("timm"), what, expected="names of splits without 'tar' and '..'")


def timm_counts(info: bytes) -> dict[str, int]:
    """Return how many samples an `_info.json` gives for each shard, as far as it can be read; -1: no number."""
    try:
        splits = json.loads(info)["splits"].values()
        return _counts(pair for one in splits for pair in zip(one["filenames"], one["shard_lengths"], strict=True))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def open_clip_sizes(splits: Sequence[SplitShards]) -> dict[str, bytes]:
    """Return `sizes.json`: each shard of the folder to its samples."""
    counts = {name: count for split in sorted(splits, key=by_split) for name, count in split.shards.items()}
    return {OPEN_CLIP_FILE: json.dumps(counts, indent=2).encode() + b"\n"}


def open_clip_counts(sizes: bytes) -> dict[str, int]:
    """Return how many samples a `sizes.json` gives for each shard, as far as it can be read; -1: no number."""
    try:
        return _counts(json.loads(sizes).items())
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _counts(pairs: Iterable[tuple[object, object]]) -> dict[str, int]:
    return {str(name): count if type(count) is int else -1 for name, count in pairs}
