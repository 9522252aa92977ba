"""Create the folder trees that bench.py packs. The bytes are the same every time.

    python corpus.py DIR NAME...

DIR/small/data    60,000 files of 2-12 KB in 200 folders: 30,000 samples of STEM.jpg (random bytes) and STEM.json
DIR/images/data    4,000 JPEGs of about 105 KB in 100 folders
DIR/large/data        60 files of 20 MB in 4 folders
small4, images4, large2: 4, 4 and 2 copies of these, in data/1, data/2 ...

A corpus gets its final name when it is complete, and an existing corpus is not changed. Requires NumPy and Pillow, and
1.6 GB of disk space for the three corpora, plus 6 GB for the copies.
"""

from __future__ import annotations

import json
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

import numpy as np
from PIL import Image

SEED = 20_260_101
COPIES = {"small4": ("small", 4), "images4": ("images", 4), "large2": ("large", 2)}


def write_small(data: Path, number: int) -> None:
    """Write one folder of 150 samples, each a .jpg of random bytes and a .json, of 2-12 KB."""
    rng = np.random.default_rng([SEED, 1, number])
    folder = data / f"c{number:04d}"
    folder.mkdir(parents=True)
    for n in range(number * 150, number * 150 + 150):
        jpg_size, json_size = rng.integers(2048, 12289, 2).tolist()
        head = json.dumps({"label": number, "id": n, "pad": ""})
        pad = rng.bytes(json_size // 2 + 1).hex()[: json_size - len(head)]
        (folder / f"s{n:06d}.jpg").write_bytes(rng.bytes(jpg_size))
        (folder / f"s{n:06d}.json").write_text(json.dumps({"label": number, "id": n, "pad": pad}), encoding="ascii")


def write_images(data: Path, number: int) -> None:
    """Write one folder of 40 JPEGs: smooth colours with noise, so that they are as large as photographs."""
    rng = np.random.default_rng([SEED, 2, number])
    folder = data / f"n{number:04d}"
    folder.mkdir(parents=True)
    for n in range(number * 40, number * 40 + 40):
        colours = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((500, 375))
        noise = rng.normal(0, rng.uniform(22, 36), (375, 500, 1))
        pixels = (np.asarray(colours) + noise).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"img{n:05d}.jpg", quality=88)


def write_large(data: Path, number: int) -> None:
    """Write one folder of 15 files of 20 MB."""
    rng = np.random.default_rng([SEED, 3, number])
    folder = data / f"v{number:04d}"
    folder.mkdir(parents=True)
    for n in range(number * 15, number * 15 + 15):
        (folder / f"clip{n:03d}.mp4").write_bytes(rng.bytes(20_000_000))


FOLDERS = {"small": (write_small, 200), "images": (write_images, 100), "large": (write_large, 4)}


def make(top: Path, name: str) -> None:
    """Create the corpus `top`/`name` unless it exists."""
    if (top / name).exists():
        return
    if name in COPIES:
        make(top, COPIES[name][0])
    part = top / f"{name}.part"
    shutil.rmtree(part, ignore_errors=True)
    if name in COPIES:
        single, copies = COPIES[name]
        for number in range(1, copies + 1):
            shutil.copytree(top / single / "data", part / "data" / f"{number}")
    else:
        write_folder, count = FOLDERS[name]
        with ProcessPoolExecutor() as pool:
            list(pool.map(write_folder, repeat(part / "data"), range(count)))
    part.rename(top / name)


if __name__ == "__main__":
    for wanted in sys.argv[2:]:
        make(Path(sys.argv[1]), wanted)
