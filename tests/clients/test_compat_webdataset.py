"""A script for webdataset's `ShardWriter` does the same with ours: one import changes."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset as wds
from PIL import Image

import shardtool
from shardtool.compat import webdataset as ours

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # webdataset leaves the last shard open
]

_WRITERS: dict[str, Any] = {"theirs": wds.ShardWriter, "ours": ours.ShardWriter}


def _sample(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 256, (8, 9, 3), np.uint8)
    return {
        "__key__": f"{number % 3}/{number:04}", "__url__": "elsewhere", "jpg": pixels, "mask.png": pixels[..., 0],
        "float.png": pixels / 255, "pil.jpg": Image.fromarray(pixels), "cls": number, "json": {"a": [number, 0.5, "ü"]},
        "txt": f"text ü {number}", "npy": pixels, "pyd": {number}, "raw": rng.bytes(number * 50), "html": "<p>",
        "tif": pixels, "ppm": pixels,
    }  # fmt: skip


def _run(which: str, folder: Path, samples: list[dict[str, Any]], **options: Any) -> list[str]:
    """Run one script with either writer; return the shards that `post` was called with."""
    folder.mkdir()
    posted: list[str] = []
    with _WRITERS[which](str(folder / "out-%04d.tar"), post=posted.append, **options) as sink:
        for sample in samples:
            sink.write(sample)
        assert sink.total == len(samples)
        sys.stdout.write(f"{sink.shard} {sink.count} {sink.size} {sink.fname}\n")
    return [Path(path).name for path in posted]


def _members(folder: Path) -> list[list[tuple[str, bytes]]]:
    found = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            found.append([(one.name, tar.extractfile(one).read()) for one in tar])  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"maxcount": 7.0, "maxsize": float("inf")},
        {"maxcount": 5, "start_shard": 3, "encoder": True, "mtime": None, "compress": False},
    ],
)
def test_the_same_script(tmp_path: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """With the same arguments both give the same shards, call `post` for the same, count and print the same."""
    samples = [_sample(number) for number in range(23)]
    posted, printed = {}, {}
    for which in _WRITERS:
        posted[which] = _run(which, tmp_path / which, samples, **options)
        printed[which] = capsys.readouterr().out.replace(str(tmp_path / which), "")
    assert posted["ours"] == posted["theirs"]
    assert printed["ours"] == printed["theirs"]
    assert _members(tmp_path / "ours") == _members(tmp_path / "theirs")
    assert shardtool.verify(tmp_path / "ours/out.json").findings == ()
    urls = [str(path) for path in sorted((tmp_path / "ours").glob("*.tar"))]
    read = wds.WebDataset(urls, shardshuffle=False).decode("rgb8").to_tuple("__key__", "mask.png", "cls", "json")
    assert [(key, cls, facts) for key, _, cls, facts in read] == [
        (one["__key__"], one["cls"], one["json"]) for one in samples
    ]


@pytest.mark.parametrize(
    ("encoder", "sample"),
    [
        (False, {"__key__": "a", "txt": b"text", "bin": bytearray(b"1")}),
        ({"x": lambda value: b"<%d>" % value}, {"__key__": "a", "one.x": 7}),
        (lambda sample: {**sample, "n": b"new"}, {"__key__": "a", "jpg": b"1"}),
        (True, {"__key__": "a", "pth": torch.tensor([1, 2]), "npz": {"x": np.arange(3)}}),
    ],
)
def test_encoders(tmp_path: Path, encoder: Any, sample: dict[str, Any]) -> None:
    """`encoder` does with ours what it does with theirs."""
    for which in _WRITERS:
        _run(which, tmp_path / which, [sample], encoder=encoder)
    assert [name for name, _ in _members(tmp_path / "ours")[0]] == [
        name for name, _ in _members(tmp_path / "theirs")[0]
    ]
    if "npz" not in sample:  # a zip, with times in it
        assert _members(tmp_path / "ours") == _members(tmp_path / "theirs")


def test_compressed_fields_and_meta(tmp_path: Path) -> None:
    """Fields that end in gz are packed alike, and `keep_meta` keeps fields that start with an underscore."""
    sample = {"__key__": "a", "_note": "kept", "txt.gz": "text", "json.gz": {"a": 1}}
    for which in _WRITERS:
        _run(which, tmp_path / which, [sample], keep_meta=True)
    found = {which: {name: len(data) for name, data in _members(tmp_path / which)[0]} for which in _WRITERS}
    assert found["ours"] == found["theirs"]


def test_size(tmp_path: Path) -> None:
    """No shard exceeds `maxsize`; webdataset's shards exceed it by headers and the last sample."""
    samples = [{"__key__": f"{n:03}", "bin": bytes(3000)} for n in range(40)]
    for which in _WRITERS:
        _run(which, tmp_path / which, samples, maxsize=20_000)
    sizes = {which: [path.stat().st_size for path in (tmp_path / which).glob("*.tar")] for which in _WRITERS}
    assert max(sizes["ours"]) <= 20_000 < max(sizes["theirs"])
    ours_, theirs = ([one for shard in _members(tmp_path / which) for one in shard] for which in ("ours", "theirs"))
    assert ours_ == theirs
