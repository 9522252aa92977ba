from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shardtool
from shardtool.errors import InvalidRequest
from tests.clients.packed import Fields, Packed, payloads_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.clients, pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])]


def _open(packed: Packed, cache: Path, *, streaming: bool, data_files: str | None = None) -> Any:
    import datasets  # here: it reads its environment once (see conftest.py)

    found = datasets.load_dataset(
        str(packed.folder), data_files=data_files, streaming=streaming, cache_dir=str(cache), split="train"
    )
    return found.cast_column("jpg", datasets.Image(decode=False)) if "jpg" in found.features else found


def _photograph(fields: Fields) -> dict[str, Any]:
    """Return what `load_dataset` makes of a photograph's fields."""
    row: dict[str, Any] = {"jpg": fields["jpg"], "json": json.loads(fields["json"])}
    return row | ({"cls": int(fields["cls"])} if "cls" in fields else {})


def _photographs(rows: Any) -> dict[str, dict[str, Any]]:
    return {
        row["__key__"]: {
            name: value["bytes"] if name == "jpg" else value for name, value in row.items() if not name.startswith("__")
        }
        for row in rows
    }


def test_loads_a_folder_of_shards(photos: Packed, tmp_path: Path, *, streaming: bool) -> None:
    """`load_dataset(folder)` gives the samples, in order, and neither the sidecars nor the dataset file."""
    rows = list(_open(photos, tmp_path, streaming=streaming))
    assert [row["__key__"] for row in rows] == list(photos.samples)
    assert _photographs(rows) == {key: _photograph(fields) for key, fields in photos.samples.items()}


def test_loads_a_single_shard_by_name(one_shard: Packed, tmp_path: Path, *, streaming: bool) -> None:
    """A single shard is a tie with its JSON; named with `data_files`, as `create` advises, it gives its samples."""
    rows = list(_open(one_shard, tmp_path, streaming=streaming, data_files="out-000000.tar"))
    assert [row["__key__"] for row in rows] == list(one_shard.samples)
    assert _photographs(rows) == {key: _photograph(fields) for key, fields in one_shard.samples.items()}


@pytest.mark.parametrize("made", ["names", "long_names"])
def test_reads_names(made: str, request: pytest.FixtureRequest, tmp_path: Path, *, streaming: bool) -> None:
    """Keys and bytes equal the source's, for any letters and lengths of names."""
    packed: Packed = request.getfixturevalue(made)
    rows = list(_open(packed, tmp_path, streaming=streaming))
    read = [
        (row["__key__"], {"bin": row["bin"], "seg.bin": row["seg.bin"], "txt": row["txt"].encode()}) for row in rows
    ]
    assert read == list(packed.samples.items())


def test_reads_portable_names(portable: Packed, tmp_path: Path, *, streaming: bool) -> None:
    """Under `--portable` no sample is passed over and no field is torn."""
    rows = list(_open(portable, tmp_path, streaming=streaming))
    assert len({row["__key__"] for row in rows}) == len(portable.samples)
    read = [{"bin": row["bin"], "txt": row["txt"].encode()} for row in rows]
    assert payloads_of(read) == payloads_of(portable.samples.values())


@pytest.mark.parametrize("made", ["photos", "photo_records"])
def test_converts_datasets(made: str, request: pytest.FixtureRequest, *, streaming: bool) -> None:
    """`to_hf` gives the samples in order, with images, class names and JSON as features; a view gives its samples.

    A view without samples gives a dataset without rows.
    """
    import datasets

    packed: Packed = request.getfixturevalue(made)
    opened = shardtool.open(packed.folder)
    rows = opened.to_hf(streaming=streaming)
    names = rows.features["cls"].names
    assert names == opened.classes["cls"]
    assert (type(rows.features["jpg"]), rows.features["json"]) == (datasets.Image, datasets.Json())
    row = next(iter(rows))
    assert row["jpg"].size == opened.decode(images="pil")[0]["jpg"].size
    stored = rows.cast_column("jpg", datasets.Image(decode=False))
    assert [row["__key__"] for row in stored] == list(packed.samples)
    assert _photographs(stored) == {key: _photograph(fields) for key, fields in packed.samples.items()}
    cats = opened.where("cls == 'cat'")[::-1].to_hf(streaming=streaming)
    assert {names[row["cls"]] for row in cats} == {"cat"}
    assert [row["__key__"] for row in cats] == [key for key in packed.samples if key.startswith("cat/")][::-1]
    none = opened.take(0).to_hf(streaming=streaming)
    assert ([*none], none.features) == ([], rows.features)


def test_converts_fields(tmp_path: Path, *, streaming: bool) -> None:
    """Text, arrays, bytes and columns get features of their types; a missing field is None."""
    import datasets

    with shardtool.ShardWriter(tmp_path / "o-{0..}.tar") as writer:
        for number in range(3):
            sample = {"__key__": str(number), "txt": f"text {number}", "npy": np.full((2, number), 0.5, np.float32)}
            fields = {"bin": bytes([number]), "cls": number} if number else {}
            writer.write(sample | fields, metadata={"width": number, "name": f"n{number}"})
    rows = shardtool.open(tmp_path / "o.json").to_hf(streaming=streaming)
    assert (rows.features["txt"], rows.features["bin"]) == (datasets.Value("string"), datasets.Value("binary"))
    assert rows.features["npy"] == datasets.List(datasets.List(datasets.Value("float32")))
    assert (rows.features["width"], rows.features["name"]) == (datasets.Value("int64"), datasets.Value("string"))
    found = [*rows]
    assert [(row["txt"], row["cls"], row["width"]) for row in found] == [
        ("text 0", None, 0),
        ("text 1", 1, 1),
        ("text 2", 2, 2),
    ]
    assert [row["npy"] for row in found] == [[[], []], [[0.5], [0.5]], [[0.5, 0.5], [0.5, 0.5]]]
    assert [row["bin"] for row in found] == [None, b"\1", b"\2"]


def test_lists_of_labels_are_converted(tmp_path: Path, *, streaming: bool) -> None:
    """The labels of boxes are a list of class numbers with names, also if the first list is empty."""
    import datasets

    images = [{"id": number, "file_name": f"{number}.txt", "width": 9, "height": 9} for number in range(2)]
    boxes = [{"image_id": 1, "category_id": number, "bbox": [0, 0, 1, 1]} for number in (4, 3)]
    categories = [{"id": 3, "name": "cat"}, {"id": 4, "name": "dog"}]
    for number in range(2):
        (tmp_path / f"{number}.txt").write_text("x")
    table = tmp_path / "coco" / "boxes.json"
    table.parent.mkdir()
    table.write_text(json.dumps({"images": images, "annotations": boxes, "categories": categories}))
    made = shardtool.create(
        tmp_path, tmp_path / "o-{0..}.tar", join=table, field={"labels.json": "labels"}, exclude=["boxes.json"]
    )
    rows = shardtool.open(made.dataset_file).to_hf(streaming=streaming)
    assert rows.features["labels.json"] == datasets.List(datasets.ClassLabel(names=["cat", "dog"]))
    assert [row["labels.json"] for row in rows] == [[], [1, 0]]


def test_audio_requires_torchcodec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, streaming: bool) -> None:
    """Without the package with which `datasets` reads audio, the error names it before any sample is read."""
    with shardtool.ShardWriter(tmp_path / "o-{0..}.tar") as writer:
        writer.write({"__key__": "0", "wav": b"RIFF"})
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    with pytest.raises(InvalidRequest, match=r"^to_hf: audio, but torchcodec .*pip install torchcodec"):
        shardtool.open(tmp_path / "o.json").to_hf(streaming=streaming)


def test_copies_are_found_again(tmp_path: Path, *, streaming: bool) -> None:
    """`datasets` reuses its copy of an unchanged dataset, but not if the order or a column changed."""
    if streaming:
        pytest.skip("a stream has no copy")

    def copy_of(order: list[str], width: int) -> tuple[str, list[str], list[int]]:
        with shardtool.ShardWriter(tmp_path / "o-{0..}.tar", overwrite=True) as writer:
            for key in order:
                writer.write({"__key__": key, "txt": key}, metadata={"width": width})
        rows = shardtool.open(tmp_path / "o.json").to_hf(cache_dir=str(tmp_path / "cache"))
        again = shardtool.open(tmp_path / "o.json").to_hf(cache_dir=str(tmp_path / "cache"))
        assert again.cache_files == rows.cache_files
        return rows.cache_files[0]["filename"], rows["__key__"][:], rows["width"][:]

    copies = [copy_of(["a", "b"], 1), copy_of(["b", "a"], 1), copy_of(["b", "a"], 2)]
    assert [copy[1:] for copy in copies] == [(["a", "b"], [1, 1]), (["b", "a"], [1, 1]), (["b", "a"], [2, 2])]
    assert len({copy[0] for copy in copies}) == 3
