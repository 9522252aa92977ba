"""Compare the speed of `create --resize` with a plain Pillow loop times the number of workers.

    python benchmarks/resize.py FOLDER [ROUNDS]

The loop opens, converts, resizes and encodes each image. `shardtool create` also lists, reads, packs, checksums,
indexes and publishes. A ratio of 1 means that these steps cost nothing.
"""

from __future__ import annotations

import io
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

WORKERS = 2
SIDE = 256
MEMORY = "/dev/shm"  # noqa: S108 - a folder of random name is made in it


def bare_loop(paths: list[Path]) -> float:
    """Return the seconds of a plain loop for these images."""
    begun = time.perf_counter()
    for path in paths:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        scale = SIDE / min(image.size)
        size = round(image.width * scale), round(image.height * scale)
        image.resize(size, Image.Resampling.LANCZOS).save(io.BytesIO(), "JPEG", quality=90)
    return time.perf_counter() - begun


def shardtool(folder: Path) -> float:
    """Return the seconds of a whole run."""
    with tempfile.TemporaryDirectory(dir=MEMORY if Path(MEMORY).is_dir() else None) as place:
        command = [
            sys.executable, "-m", "shardtool", "create", str(folder), f"{place}/s-{{000000..}}.tar",
            "--resize", str(SIDE), "--workers", str(WORKERS), "--max-size", "10MB", "--quiet",
        ]  # fmt: skip
        begun = time.perf_counter()
        subprocess.run(command, check=True)
        return time.perf_counter() - begun


def main() -> None:
    """Print a row for each round, and the median."""
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3  # noqa: PLR2004
    paths = sorted(folder.rglob("*.jpg"))
    ratios = []
    for _ in range(rounds):
        loop, run = bare_loop(paths), shardtool(folder)
        ratios.append(loop / WORKERS / run)
        print(f"{len(paths):,} images: loop {loop:.2f} s, shardtool {run:.2f} s, speed {ratios[-1]:.2f} of the ideal")
    print(f"median {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
