# ruff: noqa: CPY001, RUF100
"""Create the sample photographs and their manifests: all files in this folder except README.md.

The pictures are crops, scaled copies and mirror images of photographs in the scikit-image wheel. All of them are CC0 or
public domain (see README.md). Run the program with::

    pip install scikit-image pillow pandas pyarrow && python sample_data/make.py

The seed of a picture depends only on its key, so a picture does not depend on the other rows. The bytes may differ
between versions of Pillow and pyarrow.
"""

import json
import random
import shutil
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import pandas as pd
from PIL import Image, ImageOps

HERE = Path(__file__).resolve().parent
SEED = 20240501
QUALITY = 85
LONG_SIDE = (300, 640)  # bounds of the longer side of a picture, in pixels; smaller crops are not enlarged
JITTER = 0.04  # how far an edge of a region may move, as a share of the region's side
SPLITS = ("train", "train", "train", "val", "train", "train", "train", "test")
FIRST_ID = 1001

Box = tuple[int, int, int, int]  # left, top, right, bottom in the source picture


@dataclass(frozen=True)
class Source:
    """A source photograph, and the regions to crop from it."""

    label: str
    bi: str
    function: str
    file: str
    author: str
    licence: str
    count: int
    regions: tuple[tuple[str, Box], ...]
    longest: int = LONG_SIDE[1]


SOURCES = (
    Source(
        "astronaut", "living", "astronaut", "astronaut.png", "NASA", "public domain", 16,
        (
            ("Astronaut Eileen Collins in an orange space suit, with a flag and a shuttle model", (0, 0, 512, 512)),
            ("Head and shoulders of astronaut Eileen Collins", (115, 0, 365, 230)),
            ("Astronaut Eileen Collins, half length, in an orange space suit", (20, 0, 400, 480)),
            ("Astronaut Eileen Collins beside a model of the Space Shuttle", (130, 0, 512, 300)),
        ),
    ),
    Source(
        "brick", "thing", "brick", "brick.png", "CC0Textures", "CC0", 8,
        (
            ("A brick wall", (0, 0, 512, 512)),
            ("Bricks in a wall, upper left", (0, 0, 300, 260)),
            ("Bricks in a wall, lower right", (200, 220, 512, 512)),
            ("Bricks in a wall, a tall strip", (140, 20, 350, 500)),
        ),
    ),
    Source(
        "cat", "living", "chelsea", "chelsea.png", "Stefan van der Walt", "CC0", 14,
        (
            ("Chelsea the cat", (0, 0, 451, 300)),
            ("Face of a tabby cat", (70, 0, 420, 300)),
            ("Green eyes of a tabby cat", (100, 50, 390, 195)),
            ("Nose and whiskers of a tabby cat", (130, 130, 420, 300)),
        ),
    ),
    Source(
        "coffee", "thing", "coffee", "coffee.png", "Rachel Michetti", "CC0", 16,
        (
            ("A cup of espresso on a wooden table", (0, 0, 600, 400)),
            ("A cup of espresso on a red saucer", (70, 0, 495, 400)),
            ("An espresso cup, seen from above", (155, 5, 440, 320)),
            ("Coffee cup, saucer and spoon", (200, 120, 480, 390)),
        ),
    ),
    Source(
        "galaxy", "thing", "hubble_deep_field", "hubble_deep_field.jpg", "NASA", "public domain", 12,
        (
            ("Hubble eXtreme Deep Field", (0, 0, 1000, 872)),
            ("Galaxies in the deep field, a bright one at the centre", (600, 330, 980, 640)),
            ("Galaxies in the deep field, top left", (150, 10, 560, 300)),
            ("Galaxies in the deep field, at the left edge", (10, 280, 420, 600)),
            ("Galaxies in the deep field, at the bottom", (260, 560, 640, 860)),
        ),
        560,
    ),
    Source(
        "grass", "living", "grass", "grass.png", "linolafett (DeviantArt)", "CC0", 8,
        (
            ("Grass and small leaves", (0, 0, 512, 512)),
            ("Grass, a close view", (20, 20, 300, 240)),
            ("Blades of grass, a wide strip", (100, 260, 500, 480)),
            ("Blades of grass, a tall strip", (280, 10, 480, 400)),
        ),
        400,
    ),
    Source(
        "photographer", "living", "camera", "camera.png", "Lav Varshney", "CC0", 12,
        (
            ("A man in a dark coat looks through a camera on a tripod", (0, 0, 512, 512)),
            ("Head and hands of a photographer at work", (130, 40, 370, 270)),
            ("A photographer bent over a camera", (10, 25, 380, 400)),
            ("A photographer, a tripod and a lawn", (140, 50, 440, 500)),
        ),
    ),
    Source(
        "rocket", "thing", "rocket", "rocket.jpg", "SpaceX", "public domain", 12,
        (
            ("A Falcon 9 rocket on its pad at dusk, between four lattice towers", (0, 0, 640, 427)),
            ("A Falcon 9 rocket on its pad at dusk", (180, 60, 470, 420)),
            ("A Falcon 9 rocket, pad lights and the towers to its right", (240, 70, 630, 427)),
            ("A Falcon 9 rocket, pad lights and the towers to its left", (20, 70, 400, 427)),
            ("A Falcon 9 rocket, a tall strip", (235, 75, 405, 420)),
        ),
    ),
)  # fmt: skip


def jittered(rng: random.Random, region: Box, size: tuple[int, int]) -> Box:
    """Move each edge of the region a little, and keep it inside the source picture."""
    left, top, right, bottom = region
    dx, dy = (right - left) * JITTER, (bottom - top) * JITTER

    def moved(edge: int, by: float, limit: int) -> int:
        return min(max(edge + round(rng.uniform(-by, by)), 0), limit)

    return moved(left, dx, size[0]), moved(top, dy, size[1]), moved(right, dx, size[0]), moved(bottom, dy, size[1])


def make_picture(source: Source, original: Image.Image, number: int) -> dict[str, str | int]:
    """Write one JPEG and the JSON beside it; return its manifest row, without the id."""
    key = f"{source.label}-{number:04d}"
    rng = random.Random(f"{SEED}/{key}")
    caption, region = source.regions[(number - 1) % len(source.regions)]
    box = jittered(rng, region, original.size)
    mirrored = rng.random() < 1 / 3
    picture = original.crop(box)
    longest = min(rng.randint(LONG_SIDE[0], source.longest), max(picture.size))
    scale = longest / max(picture.size)
    picture = picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.LANCZOS)
    if mirrored:
        picture = ImageOps.mirror(picture)
        caption += ", mirrored"

    path = HERE / "photos" / source.label / f"{key}.jpg"
    picture.save(path, quality=QUALITY, optimize=True)
    facts = {
        "caption": caption,
        "source": f"skimage.data.{source.function}",
        "author": source.author,
        "licence": source.licence,
        "box": box,
        "mirrored": mirrored,
        "width": picture.width,
        "height": picture.height,
    }
    path.with_suffix(".json").write_text(json.dumps(facts) + "\n", encoding="utf-8", newline="\n")
    return {
        "bi": source.bi,
        "multi": source.label,
        "path": path.relative_to(HERE).as_posix(),
        "split": SPLITS[(number - 1) % len(SPLITS)],
        "width": picture.width,
        "height": picture.height,
        "caption": caption,
    }


def make_photos() -> list[dict[str, str | int]]:
    """Write all pictures, class by class; return the manifest rows."""
    rows: list[dict[str, str | int]] = []
    for source in SOURCES:
        folder = HERE / "photos" / source.label
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with as_file(files("skimage") / "data" / source.file) as path, Image.open(path) as original:
            rows += [make_picture(source, original, number) for number in range(1, source.count + 1)]
    return [{"object_id": object_id, **row} for object_id, row in enumerate(rows, FIRST_ID)]


def main() -> None:
    """Write the pictures, then the same table in five formats."""
    table = pd.DataFrame(make_photos())
    table.to_csv(HERE / "photos.csv", index=False, lineterminator="\n")
    table.to_csv(HERE / "photos.tsv", index=False, lineterminator="\n", sep="\t")
    table.to_json(HERE / "photos.jsonl", orient="records", lines=True, force_ascii=False)
    table.to_parquet(HERE / "photos.parquet", index=False)
    table.to_feather(HERE / "photos.feather")
    print(f"{len(table)} pictures in {table['multi'].nunique()} classes")


if __name__ == "__main__":
    main()
