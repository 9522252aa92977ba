"""A dataset written by `shardtool create`, and the samples of its source, read without shardtool."""

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
        folder: Where it is.
        source: The tree it was made from.
        samples: Key to field to payload, as the source has them, in the order of the bytes of key and field.
        ending: Of its shards' names.
    """

    folder: Path
    source: Path
    samples: dict[str, Fields]
    ending: str

    @property
    def shards(self) -> list[Path]:
        """The shards in order."""
        return sorted(self.folder.glob(f"out-*.{self.ending}"))

    @property
    def urls(self) -> str:
        """The brace pattern that names all shards, as one gives it to webdataset."""
        return f"{self.folder}/out-{{000000..{len(self.shards) - 1:06d}}}.{self.ending}"

    @property
    def members(self) -> list[tuple[str, bytes]]:
        """Every tar member of every shard in order."""
        return [
            (f"{key}.{field}", payload) for key, fields in self.samples.items() for field, payload in fields.items()
        ]


def shardtool(*words: str, cwd: Path) -> None:
    """Run the command line as a user does."""
    ran = tool(*words, cwd=cwd)
    assert ran.code == 0, ran


def pack(source: Path, folder: Path, *options: str, ending: str = "tar", name: str = "out") -> Packed:
    """Run `shardtool create`, and return what must be in its shards."""
    shardtool("create", str(source), f"{name}-{{000000..}}.{ending}", *options, cwd=folder)
    samples = _samples_of(source, last_dot="--dots" in options)
    if "--label-from-folder" in options:
        classes = sorted({key.split("/")[0] for key in samples}, key=os.fsencode)
        for key, fields in samples.items():
            fields["cls"] = str(classes.index(key.split("/")[0])).encode()
    ordered = sorted(samples.items(), key=lambda item: os.fsencode(item[0]))
    return Packed(folder, source, {key: dict(sorted(fields.items())) for key, fields in ordered}, ending)


def _samples_of(source: Path, *, last_dot: bool) -> dict[str, Fields]:
    """Group a tree's files by WebDataset's rule (the key ends at the first dot of a file's name) or by the last dot."""
    samples: dict[str, Fields] = {}
    for path in source.rglob("*"):
        if path.is_file():
            name, _, field = path.name.rpartition(".") if last_dot else path.name.partition(".")
            key = (path.parent.relative_to(source) / name).as_posix()
            samples.setdefault(key, {})[field] = path.read_bytes()
    return samples


def write_samples(source: Path, stems: list[str], fields: tuple[str, ...] = ("bin", "seg.bin", "txt")) -> None:
    """Write files with different payloads and sizes around the size of a tar block."""
    for number, stem in enumerate(stems):
        for field in fields:
            path = source / f"{stem}.{field}"
            path.parent.mkdir(parents=True, exist_ok=True)
            head = f"{stem}.{field}\n".encode("utf-8", "backslashreplace") if number else b""  # the first: empty files
            filled = max(len(head), 510 + number) if number else 0
            path.write_bytes(head.ljust(filled, b"." if field == "txt" else b"\xff"))


def payloads_of(samples: Iterable[Fields]) -> list[list[tuple[str, bytes]]]:
    """Return samples without their keys and order: what `--portable` keeps, apart from the case of fields."""
    return sorted(sorted((name.lower(), payload) for name, payload in fields.items()) for fields in samples)
