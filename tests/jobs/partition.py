"""Two dicts, as in many PyTorch and Keras tutorials: `partition` has the IDs of each split, `labels` a label per ID."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from shardtool import CreateOptions, create, verify

# {"partition": {"train": ["id-1", ...], "validation": [...]}, "labels": {"id-1": 0, ...}}
dicts = json.loads(Path("dicts.json").read_text(encoding="utf-8"))
partition, labels = dicts["partition"], dicts["labels"]

rows = [
    {"key": name, "path": f"data/{name}.npy", "label": labels[name], "split": split}
    for split, names in partition.items()
    for name in names
]
options = CreateOptions(field={"cls": "label"}, split_by="split", meta="none", shuffle=True)
made = create(pd.DataFrame(rows), "shards/{split}-{000000..}.tar", options)
assert verify(made.dataset_file).sound
