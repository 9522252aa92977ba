"""A dataset with large, small and empty payloads, missing fields, and non-ASCII keys."""

from __future__ import annotations

import random
import shutil
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.read.catalog import open_catalog
from shardtool.read.dataset import open as open_data
from shardtool.read.options import ReadOptions
from shardtool.read.sample_reader import SampleReader
from tests import tfrecords
from tests.helpers import shards, typed, write_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from shardtool.read.dataset import Dataset

SAMPLES = 60
SIZES = (0, 1, 300, 5_000, 70_000)  # of payloads: neighbouring small ones are read in one call, large ones alone


class Place(NamedTuple):
    """A sample, its shard, and the offset of its field `jpg` in the shard."""

    sample: dict[str, object]
    shard: Path
    offset: int


@dataclass(frozen=True)
class Made:
    """A dataset on disk, and its expected samples in order. `path` is the dataset file."""

    path: Path
    samples: list[dict[str, object]]

    def copy_to(self, folder: Path) -> Made:
        """Copy the shards, their sidecars and the dataset file into an existing folder; return the copied dataset."""
        shutil.copytree(self.path.parent, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("source"))
        return replace(self, path=folder / self.path.name)

    def open(self, **options: object) -> Dataset:
        """Open the dataset with the options of `shardtool.open`."""
        return open_data(str(self.path), **options)  # type: ignore[call-overload,no-any-return]

    def reader(self, **options: object) -> SampleReader:
        """Return a `SampleReader` with these `ReadOptions`."""
        return SampleReader(open_catalog(str(self.path)), ReadOptions(**options))  # type: ignore[arg-type]

    def shard(self, number: int) -> Path:
        """Return the path of a shard."""
        return shards(self.path.parent)[number]

    def place(self, size: int) -> Place:
        """Return the location of the first field `jpg` with this size in bytes."""
        for sample in self.samples:
            picture = sample["jpg"]
            if isinstance(picture, bytes) and len(picture) == size:
                for shard in shards(self.path.parent):
                    if (offset := shard.read_bytes().find(picture)) >= 0:
                        return Place(sample, shard, offset)
        raise AssertionError(size)


def make(folder: Path, ending: str, *, even: bool = False) -> Made:
    """Pack samples with `cls`, and random bytes in `jpg` and `txt`. With `even`, all have the same sizes and fields."""
    draw = random.Random(2)  # noqa: S311 - the dataset must be the same in each run
    files: dict[str, bytes] = {}
    samples: list[dict[str, object]] = []
    for number in range(SAMPLES):
        key = f"{'aäz'[number % 3]}/{number:03d}"
        sizes = [500 if even else draw.choice(SIZES) for _ in range(2)]
        fields = {"jpg": draw.randbytes(sizes[0])}
        if even or number % 4:
            fields["txt"] = draw.randbytes(sizes[1])
        files.update({f"{key}.{name}": data for name, data in fields.items()})
        label = sorted("aäz").index("aäz"[number % 3])
        samples.append({"__key__": key, "cls": label if ending == "tfrecord" else b"%d" % label, **fields})
    source = write_tree(folder / "source", files)
    words = ("create", source, folder / f"data-{{000..}}.{ending}", "--label-from-folder", "--shards", "4")
    assert typed(*words, "--quiet").code == 0
    return Made(folder / "data.json", sorted(samples, key=lambda sample: str(sample["__key__"]).encode()))


def write_examples(path: Path, examples: Sequence[Mapping[str, Sequence[object]]]) -> None:
    """Write a TFRecord shard. Each feature is a list of bytes, ints or floats, and numbers are packed."""
    keyed = [{"__key__": [b"key-%d" % at], **example} for at, example in enumerate(examples)]
    path.write_bytes(b"".join(tfrecords.frame(_example(example)) for example in keyed))


def _example(lists: Mapping[str, Sequence[object]]) -> bytes:
    features = b""
    for name, values in lists.items():
        kind = tfrecords.INT64 if any(type(value) is int for value in values) else tfrecords.BYTES
        kind = tfrecords.FLOAT if any(type(value) is float for value in values) else kind
        if kind == tfrecords.BYTES:
            inside = b"".join(tfrecords.part(value) for value in values if isinstance(value, bytes))
        elif kind == tfrecords.INT64:
            inside = tfrecords.part(b"".join(tfrecords.varint(value) for value in values if isinstance(value, int)))
        else:
            inside = tfrecords.part(b"".join(struct.pack("<f", value) for value in values))
        features += tfrecords.feature(name.encode(), kind, inside)
    return tfrecords.part(features)


def numbers(of: Sequence[int]) -> NDArray[np.int64]:
    """Return numbers as an int64 array [n]."""
    return np.array(of, np.int64)
