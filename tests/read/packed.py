"""Pack small datasets with any options, and compute their expected samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from shardtool import CreateOptions, create
from tests.helpers import write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.read.options import Sample

COUNT = 23
IN_SHARD = 4
SHARDS = 6  # shards of COUNT samples


def key_of(number: int) -> str:
    """Return the key of sample `number`."""
    return f"{'ab'[number > 9]}/{number:03}"


def sample_of(number: int) -> Sample:
    """Return the expected sample `number`. Every sixth sample has no field `txt`."""
    sample: Sample = {"__key__": key_of(number), "bin": bytes([number]) * (300 * number)}
    return sample if number % 6 == 5 else {**sample, "txt": f"caption of {number}".encode()}


def packed(folder: Path, name: str = "out-{000..}.tar", *, first: int = 0, count: int = COUNT, **options: Any) -> str:
    """Pack samples `first` to `first + count - 1`, with the metadata columns `number` and `bi`. Return the pattern."""
    rows = [sample_of(number) for number in range(first, first + count)]
    files = {f"{row['__key__']}.{name}": row[name] for row in rows for name in row if name != "__key__"}
    source = write_tree(folder.parent / f"source of {folder.name}", cast("dict[str, bytes]", files))
    numbers = range(first, first + count)
    animals = [("cat", "dog", None)[number % 3] for number in numbers]
    table = pd.DataFrame({"key": [row["__key__"] for row in rows], "number": numbers, "bi": animals})
    create_options = {"workers": 0, "max_count": IN_SHARD, "join": table, "on": "key", **options}
    create(source, f"{folder}/{name}", CreateOptions(**create_options))
    return f"{folder}/{name}"
