"""COCO: each sample contains an image, its mask, and all its annotations as JSON. Each split becomes a dataset."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from shardtool import CreateOptions, create, verify

coco = Path("coco")
parts = {"jpg": "image", "png": "mask"}
options = CreateOptions(root=coco, key="id", file=parts, field={"json": "json"}, meta="none")
for split in ("train2017", "val2017"):
    instances = json.loads((coco / f"annotations/instances_{split}.json").read_text(encoding="utf-8"))
    objects: dict[int, list[object]] = {}
    for annotation in instances["annotations"]:
        objects.setdefault(annotation["image_id"], []).append(annotation)
    images = pd.DataFrame(
        {
            "id": image["id"],
            "image": f"{split}/{image['file_name']}",
            "mask": f"stuffthingmaps/{split}/{Path(image['file_name']).stem}.png",
            "json": json.dumps(image | {"annotations": objects.get(image["id"], [])}),
        }
        for image in instances["images"]
    )
    create(images, f"shards/{split}-{{000000..}}.tar", options)

assert verify(["shards/train2017.json", "shards/val2017.json"]).sound
