"""Create datasets with `shardtool create`, and read the expected samples from the source without shardtool."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.helpers import tool

if TYPE_CHECKING:
    from collections.abc import Iterable

PHOTOS = Path(__file__).parents[2] / "sample_data" / "photos"
Fields = dict[str, bytes]


@dataclass(frozen=True)
class Packed:
    """A dataset called `out`.

    Attributes:
        folder: The folder of the dataset.
        source: The source folder.
        samples: The expected payloads by key and field. Keys and fields are in byte order, as in the shards.
        ending: The extension of the shards: `tar` or `tfrecord`.
    """

    folder: Path
    source: Path
    samples: dict[str, Fields]
    ending: str

    @property
    def shards(self) -> list[Path]:
        """The paths of the shards, in order."""
        return sorted(self.folder.glob(f"out-*.{self.ending}"))

    @property
    def urls(self) -> str:
        """The brace pattern of all shards, as an argument for webdataset."""
        return f"{self.folder}/out-{{000000..{len(self.shards) - 1:06d}}}.{self.ending}"

    @property
    def members(self) -> list[tuple[str, bytes]]:
        """The expected (name, payload) of every tar member of all shards, in order."""
        return [
            (f"{key}.{field}", payload) for key, fields in self.samples.items() for field, payload in fields.items()
        ]


def shardtool(*words: str, cwd: Path) -> None:
    """Run `shardtool` with the arguments `words`, and check that it succeeds."""
    ran = tool(*words, cwd=cwd)
    assert ran.code == 0, ran


def pack(source: Path, folder: Path, *options: str, ending: str = "tar", name: str = "out") -> Packed:
    """Run `shardtool create`, and return the dataset with its expected samples."""
    shardtool("create", str(source), f"{name}-{{000000..}}.{ending}", *options, cwd=folder)
    samples = _samples_of(source, last_dot="--dots" in options)
    if "--label-from-folder" in options:
        classes = sorted({key.split("/")[0] for key in samples}, key=os.fsencode)
        for key, fields in samples.items():
            fields["cls"] = str(classes.index(key.split("/")[0])).encode()
    ordered = sorted(samples.items(), key=lambda item: os.fsencode(item[0]))
    return Packed(folder, source, {key: dict(sorted(fields.items())) for key, fields in ordered}, ending)


def _samples_of(source: Path, *, last_dot: bool) -> dict[str, Fields]:
    """Group the files of a folder into samples. Keys end at the first dot (WebDataset's rule), or at the last dot."""
    samples: dict[str, Fields] = {}
    for path in source.rglob("*"):
        if path.is_file():
            name, _, field = path.name.rpartition(".") if last_dot else path.name.partition(".")
            key = (path.parent.relative_to(source) / name).as_posix()
            samples.setdefault(key, {})[field] = path.read_bytes()
    return samples


def write_samples(source: Path, stems: list[str], fields: tuple[str, ...] = ("bin", "seg.bin", "txt")) -> None:
    """Write files with different payloads. The first sample has empty files. Other sizes are about one tar block."""
    for number, stem in enumerate(stems):
        for field in fields:
            path = source / f"{stem}.{field}"
            path.parent.mkdir(parents=True, exist_ok=True)
            head = f"{stem}.{field}\n".encode("utf-8", "backslashreplace") if number else b""
            filled = max(len(head), 510 + number) if number else 0
            path.write_bytes(head.ljust(filled, b"." if field == "txt" else b"\xff"))


def payloads_of(samples: Iterable[Fields]) -> list[list[tuple[str, bytes]]]:
    """Return the sorted fields of all samples, without keys. `--portable` changes only keys, and the case of fields."""
    return sorted(sorted((name.lower(), payload) for name, payload in fields.items()) for fields in samples)
