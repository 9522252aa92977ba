"""A DataFrame with the column `path` and two label columns, `bi` and `multi`.

The labels become class numbers, and all splits have the same proportions of the classes of `multi`.
"""

from __future__ import annotations

import pandas as pd

from shardtool import CreateOptions, create, verify

photos = pd.read_csv("sample_data/photos.csv")
options = CreateOptions(
    root="sample_data",
    field={"cls": "bi", "multi.cls": "multi"},
    classes=("cls", "multi.cls"),
    split={"train": 0.8, "val": 0.2},
    stratify="multi",
    shuffle=True,
)
made = create(photos[photos.width >= 200], "shards/{split}-{000000..}.tar", options)
assert verify(made.dataset_file).sound
