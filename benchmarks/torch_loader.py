"""Compare loaders of decoded crops for PyTorch: ours, webdataset, a folder, DALI and SPDL.

    python benchmarks/torch_loader.py FOLDER [ROUNDS] [TOOL ...]

FOLDER contains a folder of pictures for each class, such as `images/data` of the corpus. It is packed once into shards
on tmpfs. Each tool runs in a new process with two workers or threads. It returns every picture once, shuffled, in
batches of 64 centre crops [224, 224, 3], uint8. The output is the seconds of the whole process, the seconds of the
epoch without imports and opening, and the CPU seconds of the epoch, which depend less on other jobs of the machine.
All tools must return the same sum of pixels; DALI may differ by rounding. Tools named `-random` return random crops
(torchvision's RandomResizedCrop), which differ between tools. A tool that is not installed is skipped.

Requires an environment with torch and webdataset, such as `.venv-clients`.
"""

from __future__ import annotations

import io
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable

SIDE, BATCH, WORKERS = 224, 64, 2
MEMORY = "/dev/shm"  # noqa: S108 - a folder of random name is made in it


def box(width: int, height: int) -> tuple[int, int, int, int]:
    """Return the bounds of the centre crop: left, top, right, bottom."""
    left, top = (width - SIDE) // 2, (height - SIDE) // 2
    return left, top, left + SIDE, top + SIDE


def crop_image(image: Any) -> Any:
    """Return the centre crop of a Pillow image as an array."""
    return np.asarray(image.crop(box(*image.size)))


def crop_array(image: Any) -> Any:
    """Return the centre crop of an array [height, width, channel]."""
    left, top, right, bottom = box(image.shape[1], image.shape[0])
    return image[top:bottom, left:right]


def crop_sample(sample: dict[str, Any]) -> dict[str, Any]:
    """Replace the Pillow image of a sample by its centre crop."""
    return {"jpg": crop_image(sample["jpg"]), "cls": sample["cls"]}


def crop_sample_array(sample: dict[str, Any]) -> dict[str, Any]:
    """Replace the array of a sample by its centre crop."""
    return {"jpg": crop_array(sample["jpg"]), "cls": sample["cls"]}


def opened(shards: Path) -> Any:
    """Return the dataset."""
    import shardtool

    return shardtool.open(shards / "out.json")


def by_loader(shards: Path) -> Any:
    """Decode only the part of each picture that the crop needs, in threads, into the batch."""
    from shardtool.torch import CenterCrop, loader

    return loader(opened(shards), BATCH, decode={"jpg": CenterCrop(SIDE)}, threads=WORKERS)


def by_transform(shards: Path) -> Any:
    """Decode whole pictures in threads, and crop them with a function."""
    from shardtool.torch import loader

    return loader(opened(shards), BATCH, decode={"jpg": "pil"}, transform=crop_sample, threads=WORKERS)


def by_arrays(shards: Path) -> Any:
    """Decode whole pictures as arrays in threads, and crop them with a function."""
    from shardtool.torch import loader

    return loader(opened(shards), BATCH, decode={"jpg": "numpy"}, transform=crop_sample_array, threads=WORKERS)


def by_loader_random(shards: Path) -> Any:
    """Decode random crops in threads."""
    from shardtool.torch import RandomResizedCrop, loader

    return loader(opened(shards), BATCH, decode={"jpg": RandomResizedCrop(SIDE)}, threads=WORKERS)


def by_stream(shards: Path) -> Any:
    """Use StreamDataset in a DataLoader."""
    from torch.utils.data import DataLoader

    from shardtool.torch import CenterCrop, StreamDataset

    samples = StreamDataset(opened(shards), BATCH, decode={"jpg": CenterCrop(SIDE)})
    return DataLoader(samples, BATCH, num_workers=WORKERS)


def by_map(shards: Path) -> Any:
    """Use MapDataset in a DataLoader."""
    from torch.utils.data import DataLoader

    from shardtool.torch import CenterCrop, MapDataset

    samples = MapDataset(opened(shards), decode={"jpg": CenterCrop(SIDE)})
    return DataLoader(samples, BATCH, shuffle=True, num_workers=WORKERS)


def by_webdataset(shards: Path) -> Any:
    """Use webdataset as in its documentation: the workers create the batches."""
    import webdataset as wds
    from torch.utils.data import DataLoader

    urls = [str(path) for path in sorted(shards.glob("*.tar"))]
    samples = wds.WebDataset(urls, shardshuffle=100).shuffle(1000).decode("pil").to_tuple("jpg", "cls")
    return DataLoader(samples.map_tuple(crop_image, int).batched(BATCH), batch_size=None, num_workers=WORKERS)


def random_image(image: Any) -> Any:
    """Return a random crop of a Pillow image, resized, as an array."""
    from shardtool.torch import RandomResizedCrop

    width, height = image.size
    part = image.crop(RandomResizedCrop(SIDE).box(width, height, np.random.default_rng(random.getrandbits(64))))
    return np.asarray(part.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def by_webdataset_random(shards: Path) -> Any:
    """Use webdataset with random crops."""
    import webdataset as wds
    from torch.utils.data import DataLoader

    urls = [str(path) for path in sorted(shards.glob("*.tar"))]
    samples = wds.WebDataset(urls, shardshuffle=100).shuffle(1000).decode("pil").to_tuple("jpg", "cls")
    return DataLoader(samples.map_tuple(random_image, int).batched(BATCH), batch_size=None, num_workers=WORKERS)


class Folder:
    """A folder of classes as a dataset, like torchvision's ImageFolder."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*/*.jpg"))
        self.labels = {name: number for number, name in enumerate(sorted({path.parent.name for path in self.paths}))}

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, which: int) -> tuple[Any, int]:
        path = self.paths[which]
        with path.open("rb") as file:
            return crop_image(Image.open(file).convert("RGB")), self.labels[path.parent.name]


def by_folder(shards: Path) -> Any:
    """Read the original files in a DataLoader."""
    from torch.utils.data import DataLoader

    folder = Folder(Path((shards / "source").read_text()))
    return DataLoader(folder, BATCH, shuffle=True, num_workers=WORKERS)


def by_dali(shards: Path, *, centre: bool = True) -> Any:
    """Use a DALI pipeline on the CPU."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=WORKERS, device_id=None)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        paths = [str(path) for path in sorted(shards.glob("*.tar"))]
        jpg, cls = fn.readers.webdataset(
            paths=paths, ext=["jpg", "cls"], random_shuffle=True, name="reader", missing_component_behavior="error"
        )
        if centre:
            return fn.decoders.image_crop(jpg, crop=(SIDE, SIDE), output_type=types.RGB), cls
        part = fn.decoders.image_random_crop(jpg, random_area=[0.08, 1.0], output_type=types.RGB)
        return fn.resize(part, size=(SIDE, SIDE), interp_type=types.INTERP_LINEAR), cls

    made = pipeline()
    made.build()
    left = made.epoch_size("reader")
    while left > 0:
        images, _ = made.run()
        array = images.as_array()[:left]
        left -= len(array)
        yield array, None


def by_spdl(shards: Path) -> Any:
    """Use SPDL's threads with Pillow. shardtool's stream is the source."""
    from spdl.pipeline import PipelineBuilder

    def decoded(sample: dict[str, Any]) -> Any:
        return crop_image(Image.open(io.BytesIO(sample["jpg"])).convert("RGB")), int(sample["cls"])

    def batch(samples: list[Any]) -> tuple[Any, list[int]]:
        return np.stack([image for image, _ in samples]), [label for _, label in samples]

    builder = PipelineBuilder().add_source(opened(shards).stream())
    builder = builder.pipe(decoded, concurrency=WORKERS, output_order="input").aggregate(BATCH).pipe(batch).add_sink(3)
    pipeline = builder.build(num_threads=WORKERS)
    with pipeline.auto_stop():
        yield from pipeline


TOOLS: dict[str, Callable[[Path], Any]] = {
    "loader": by_loader,
    "transform": by_transform,
    "arrays": by_arrays,
    "stream": by_stream,
    "map": by_map,
    "webdataset": by_webdataset,
    "folder": by_folder,
    "dali": by_dali,
    "spdl": by_spdl,
    "loader-random": by_loader_random,
    "webdataset-random": by_webdataset_random,
    "dali-random": partial(by_dali, centre=False),
}


def run(tool: str, shards: Path) -> None:
    """Read an epoch with one tool, and print the number of pictures, the sum of pixels and the seconds."""
    batches = TOOLS[tool](shards)
    count = total = 0
    begun, used = time.perf_counter(), sum(os.times()[:4])
    for batch in batches:
        images = batch["jpg"] if isinstance(batch, dict) else batch[0]
        array = np.asarray(images)
        count, total = count + len(array), total + int(array[:, ::16].sum())
    print(count, total, time.perf_counter() - begun, sum(os.times()[:4]) - used)


def pack(source: Path, place: Path) -> None:
    """Create shards of 50 MB."""
    words = [
        "create",
        str(source),
        f"{place}/out-{{000000..}}.tar",
        "--max-size",
        "50MB",
        "--label-from-folder",
        "--quiet",
    ]
    subprocess.run([sys.executable, "-m", "shardtool", *words], check=True)
    (place / "source").write_text(str(source))


class Measured(NamedTuple):
    """The result and the seconds of one run of a tool."""

    read: str
    whole: float
    epoch: float
    cpu: float  # CPU seconds of the epoch in all processes


def measure(tool: str, shards: Path) -> Measured | None:
    """Run a tool. Return None if it is not installed."""
    words = [sys.executable, __file__, "--run", tool, str(shards)]
    begun = time.perf_counter()
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    whole = time.perf_counter() - begun
    if ran.returncode:
        print(f"{tool}: left out: {ran.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    count, total, epoch, cpu = ran.stdout.split()
    return Measured(f"{count} {total}", whole, float(epoch), float(cpu))


def main(source: Path, rounds: int, tools: list[str]) -> None:
    """Run the tools in each round, and print a table row for each tool."""
    found: dict[str, list[Measured]] = {tool: [] for tool in tools}
    with tempfile.TemporaryDirectory(dir=MEMORY if Path(MEMORY).is_dir() else None) as place:
        pack(source, Path(place))
        for _ in range(rounds):
            for tool in random.sample(tools, len(tools)):
                made = measure(tool, Path(place))
                if made:
                    found[tool].append(made)
    print("tool              whole: median, best   epoch: median, best   CPU: best   pictures, sum")
    for tool, runs in found.items():
        if runs:
            whole, epoch, cpu = ([getattr(one, name) for one in runs] for name in ("whole", "epoch", "cpu"))
            print(
                f"{tool:17} {statistics.median(whole):12.2f} {min(whole):6.2f} {statistics.median(epoch):14.2f}", end=""
            )
            print(f" {min(epoch):6.2f} {min(cpu):11.2f}   {runs[0].read}")


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        run(sys.argv[2], Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), int((sys.argv[2:3] or ["3"])[0]), sys.argv[3:] or [*TOOLS])
