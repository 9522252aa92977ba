"""The indexes of Megatron-Energon: offsets beside each shard, and once a folder what to read as which split.

With them energon opens the folder as it is: no `energon prepare`, no question asked. Samples are crude, a dict of
bytes and what its decoder makes of them; a `dataset.yaml` of the user's says otherwise, and stays.

Source: NVIDIA/Megatron-Energon, `megatron/energon/flavors/webdataset/{itar,metadata,config,prepare}.py`;
docs/format.md, "Exported indexes".
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, printable
from shardtool.wording import exporting, flag

if TYPE_CHECKING:
    from collections.abc import Sequence

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
