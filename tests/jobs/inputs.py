"""Small inputs for the jobs, with the layouts and the flaws of the real datasets."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from PIL import Image

from tests import tfrecords
from tests.helpers import write_tree
from tests.tfrecords import BYTES, INT64

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

WNIDS = ("n01440764", "n01443537", "n02084071")
_STEM = {"train": "{}_{}", "val": "ILSVRC2012_val_{1:08}"}
CATEGORIES = [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}]


def picture(number: int, kind: str = "JPEG") -> bytes:
    """Return an image. Different numbers below 256 give different images."""
    raw = io.BytesIO()
    Image.new("RGB", (48 + number % 9, 36), (number % 256, 99, 7)).save(raw, kind)
    return raw.getvalue()


def imagenet(root: Path) -> None:
    """Write folders of classes with images, damaged images, a name without extension, and junk of macOS and Windows."""
    files = {
        f"{split}/{wnid}/{_STEM[split].format(wnid, number * 37)}.JPEG": picture(number + 100 * (split == "val"))
        for split, count in (("train", 9), ("val", 2))
        for at, wnid in enumerate(WNIDS[: 3 if split == "train" else 2])
        for number in range(at * 20, at * 20 + count)
    }
    junk = {f"train/{name}": b"junk" for name in (".DS_Store", "n01440764/Thumbs.db", "n01440764/._n01440764_0.JPEG")}
    damaged = {
        "n01443537/n01443537_900.JPEG": picture(1)[:400],
        "n01443537/n01443537_901.JPEG": b"",
        "n02084071/n02084071_902.JPEG": b"<html>404 Not Found</html>",
        "n02084071/n02084071_903": picture(2),
    }
    texts = {"train/LOC_synset_mapping.txt": b"n01440764 tench, Tinca tinca\n"}
    write_tree(root / "ILSVRC", files | junk | {f"train/{name}": data for name, data in damaged.items()} | texts)


def coco(root: Path) -> None:
    """Write two splits of images, masks and annotations (polygons, run lengths). Some images have no annotation."""
    files = {}
    for split, first in (("train2017", 0), ("val2017", 6)):
        images, annotations, captions = [], [], []
        for number in range(first, first + 6):
            stem = f"{number * 37 + 9:012}"
            files[f"{split}/{stem}.jpg"] = picture(number)
            files[f"stuffthingmaps/{split}/{stem}.png"] = picture(number, "PNG")
            images.append({"id": number * 37 + 9, "file_name": f"{stem}.jpg", "height": 36, "license": 3})
            annotations += [_annotation(number * 37 + 9, nth) for nth in range(number % 3)]
            captions += [{"image_id": images[-1]["id"], "id": nth, "caption": f"{nth}: a photo"} for nth in range(2)]
        document = {"info": {}, "images": images, "annotations": annotations, "categories": CATEGORIES}
        files[f"annotations/instances_{split}.json"] = json.dumps(document).encode()
        of_captions = {"info": {}, "annotations": captions, "images": images}
        files[f"annotations/captions_{split}.json"] = json.dumps(of_captions, indent=1).encode()
    write_tree(root / "coco", files)


def _annotation(image: int, nth: int) -> dict[str, object]:
    shape = {"counts": [5, 7, 1716], "size": [36, 48]} if nth else [[1.5, 2.0, 9.25, 2.0, 9.25, 8.0]]
    box = {"bbox": [1.5, 2.0, 7.75, 6.0], "area": 46.5, "iscrowd": nth}
    return {"id": image * 10 + nth, "image_id": image, "category_id": 18 if nth else 1, "segmentation": shape, **box}


def cityscapes(root: Path) -> None:
    """Write images and label files into two trees of city folders: `leftImg8bit` and `gtFine`."""
    files = {}
    for number, name in enumerate(["train/aachen/aachen", "train/bonn/bonn", "val/ulm/ulm"] * 2):
        frame = f"{name}_{number:06}_000019"
        files[f"leftImg8bit/{frame}_leftImg8bit.png"] = picture(number, "PNG")
        for kind in ("color.png", "instanceIds.png", "labelIds.png"):
            files[f"gtFine/{frame}_gtFine_{kind}"] = picture(len(files), "PNG")
        files[f"gtFine/{frame}_gtFine_polygons.json"] = b"{}"
    write_tree(root, files)


TRANSCRIPTS = {
    "LJ001-0001": ('"Yes," he said, on p. 2', '"Yes," he said, on page two'),
    "LJ001-0002": ('in being comparatively "modern."', 'in being comparatively "modern."'),
    **{f"LJ002-{number:04}": (f"{number}", f"number {number}, in words") for number in range(1, 19)},
}


def ljspeech(root: Path) -> None:
    """Write clips, and a table of transcripts. Some transcripts contain quotation marks, which are not CSV quotes."""
    rows = "".join(f"{name}|{said}|{spelled}\n" for name, (said, spelled) in TRANSCRIPTS.items())
    clips = {f"wavs/{name}.wav": b"RIFF" + name.encode() for name in TRANSCRIPTS}
    write_tree(root / "LJSpeech-1.1", {"metadata.csv": rows.encode(), **clips})


def partition(root: Path) -> None:
    """Write arrays, and a JSON file with the dicts `partition` and `labels`."""
    names = [f"id-{number}" for number in range(1, 25)]
    files = {}
    for number, name in enumerate(names):
        raw = io.BytesIO()
        np.save(raw, np.full((2, 3), number))
        files[f"data/{name}.npy"] = raw.getvalue()
    split = {"train": names[:16], "validation": names[16:]}
    labels = {name: number % 3 for number, name in enumerate(names)}
    files["dicts.json"] = json.dumps({"partition": split, "labels": labels}).encode()
    write_tree(root, files)


def night(root: Path, day: int) -> None:
    """Write the four images of a day into the folder `inbox`."""
    files = {f"2026-11-{day:02}/cam{camera}.jpg": picture(day * 10 + camera) for camera in range(4)}
    write_tree(root / "inbox", files)


def foreign(root: Path) -> None:
    """Write shards with the formats and names of webdataset, img2dataset and TensorFlow."""
    theirs = write_tree(root / "theirs", {})
    for name in ("webdataset", "img2dataset", "tensorflow"):
        (theirs / name).mkdir()
    for shard in range(2):
        (theirs / f"webdataset/shard-{shard:06}.tar").write_bytes(_tar(webdataset_samples(shard)))
        (theirs / f"img2dataset/{shard:05}.tar").write_bytes(_tar(img2dataset_samples(shard)))
        img2dataset_tables(theirs / "img2dataset", shard)
        raw = b"".join(_example(*record) for record in tensorflow_samples(shard))
        (theirs / f"tensorflow/train-{shard:05}-of-00002").write_bytes(raw)


def webdataset_samples(shard: int) -> dict[str, dict[str, bytes]]:
    """Return the samples of a shard that webdataset's `ShardWriter` writes."""
    numbers = range(5 * shard, 5 * shard + 5)
    return {f"{number:09}": {"cls": b"%d" % (number % 3), "jpg": picture(number)} for number in numbers}


def img2dataset_samples(shard: int) -> dict[str, dict[str, bytes]]:
    """Return the samples of a shard of img2dataset. Failed downloads are only in the table, not in the tar.

    Samples of the first shard have the same keys as webdataset's numbered samples.
    """
    keys = [f"{shard:05}{number:04}" for number in (0, 1, 2, 4)]
    return {
        key: {"jpg": picture(100 + int(key) % 99), "json": json.dumps(_downloaded(key)).encode(), "txt": b"a photo"}
        for key in keys
    }


def _downloaded(key: str) -> dict[str, object]:
    error = {"status": "success", "error_message": None}
    return {"caption": "a photo", "url": f"https://example.org/{key}", "key": key, **error, "width": 48, "exif": "{}"}


def img2dataset_tables(folder: Path, shard: int) -> None:
    """Write the table and the statistics file that img2dataset writes next to each shard."""
    rows = [_downloaded(f"{shard:05}{number:04}") for number in range(5)]
    pd.DataFrame(rows).to_parquet(folder / f"{shard:05}.parquet")
    (folder / f"{shard:05}_stats.json").write_text(json.dumps({"count": 5, "successes": 4}))


def tensorflow_samples(shard: int) -> list[tuple[str, bytes, int]]:
    """Return name, image and label of each record of a shard, as in TensorFlow's ImageNet scripts."""
    return [(f"n01440764_{number}", picture(200 + number), number % 3) for number in range(4 * shard, 4 * shard + 4)]


def _example(name: str, image: bytes, label: int) -> bytes:
    texts = {"filename": f"{name}.JPEG".encode(), "encoded": image, "format": b"JPEG"}
    features = [(f"image/{field}".encode(), BYTES, text) for field, text in texts.items()]
    numbers = {"class/label": label, "height": 36}
    features += [(f"image/{field}".encode(), INT64, tfrecords.varint(number)) for field, number in numbers.items()]
    return tfrecords.frame(tfrecords.example(features))


def _tar(samples: dict[str, dict[str, bytes]]) -> bytes:
    """Return a tar with the headers of webdataset's writer: pax headers for times, an owner, and mode 0444."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in _members(samples):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(data), 1700000000.5, 0o444
            member.uname = member.gname = "bigdata"
            tar.addfile(member, io.BytesIO(data))
    return raw.getvalue()


def _members(samples: dict[str, dict[str, bytes]]) -> Iterable[tuple[str, bytes]]:
    return ((f"{key}.{field}", data) for key, fields in samples.items() for field, data in fields.items())
