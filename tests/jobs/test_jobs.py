"""Whole jobs run as a reader would copy them, and what they leave is right by the eyes of other programs."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests import warm
from tests.helpers import ENVIRONMENT, PATIENCE_S, REPO, Ran, flip
from tests.jobs import inputs

JOBS = sorted(path for path in Path(__file__).parent.iterdir() if path.suffix in (".sh", ".py"))
JOBS = [path for path in JOBS if path.stem not in ("__init__", "inputs", "test_jobs")]
_MOST = 10

Sample = dict[str, bytes]


def run(name: str, place: Path) -> Ran:
    """Run a job in the folder that holds its input."""
    script = Path(__file__).parent / name
    if script.suffix == ".py":
        process = warm.Warm([], code=script.read_text(encoding="utf-8"), cwd=place, env=ENVIRONMENT)
        out, err = (data.decode() for data in process.communicate(PATIENCE_S))
        return Ran(process.wait(0), out, err)
    bin_ = place.parent / f"bin-{place.name}"
    path = f"{bin_}{os.pathsep}{os.environ['PATH']}" if bin_.exists() else warm.put_on_path(bin_)
    done = subprocess.run(
        ["sh", script], cwd=place, env={**ENVIRONMENT, "PATH": path}, pass_fds=warm.command()[1], timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr)


def samples(*shards: Path) -> dict[str, Sample]:
    """Return all samples of tar shards by key, in order, as WebDataset's rule divides names."""
    found: dict[str, Sample] = {}
    for shard in shards:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                folder, _, name = member.name.rpartition("/")
                stem, _, field = name.partition(".")
                file = tar.extractfile(member)
                assert file is not None
                found.setdefault(f"{folder}/{stem}".lstrip("/"), {})[field] = file.read()
    return found


def dataset(file: Path) -> dict[str, Any]:
    """Return the keys of a dataset file that wids does not define."""
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["shardtool"]
    return found


def size_of(image: bytes) -> tuple[int, int]:
    """Return width and height of an image that can be decoded."""
    with Image.open(io.BytesIO(image)) as opened:
        opened.load()
        return opened.width, opened.height


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_no_job_takes_many_commands(job: Path) -> None:
    """Each job is ten commands, or calls, at most."""
    text = job.read_text(encoding="utf-8")
    calls = r"^ *(?:\w+ = |assert )?(?:create|reshard|verify|inspect|index|export)\("
    used = re.findall(r"^shardtool " if job.suffix == ".sh" else calls, text, re.MULTILINE)
    assert 1 <= len(used) <= _MOST


@pytest.mark.slow
def test_imagenet(tmp_path: Path) -> None:
    """Each image that can be decoded is packed unchanged, with its class number; all others are listed, or junk."""
    inputs.imagenet(tmp_path)
    ran = run("imagenet.sh", tmp_path)
    assert ran.code == 0, ran
    for split, classes in (("train", inputs.WNIDS), ("val", inputs.WNIDS[:2])):
        found = samples(*tmp_path.glob(f"shards/{split}-*.tar"))
        source = tmp_path / "ILSVRC" / split
        files = {path.relative_to(source) for path in source.glob("n*/[nI]*.JPEG")}
        whole = {str(path.with_suffix("")): path for path in files if "_90" not in path.name}
        assert found.keys() == whole.keys()
        for key, path in whole.items():
            assert found[key]["jpg"] == (source / path).read_bytes()
            assert found[key]["cls"] == b"%d" % sorted(inputs.WNIDS).index(path.parent.name)
            assert size_of(found[key]["jpg"])[1] == 36
        assert {key.partition("/")[0] for key in found} == set(classes)
    left_out = [json.loads(line) for line in (tmp_path / "shards/train.skipped").read_text().splitlines()]
    assert sorted((Path(row["path"]).name, row["code"]) for row in left_out) == [
        ("n01443537_900.JPEG", "truncated-image"),
        ("n01443537_901.JPEG", "bad-image"),
        ("n02084071_902.JPEG", "bad-image"),
        ("n02084071_903", "no-field"),
    ]
    assert size_of((tmp_path / "shards/train.png").read_bytes()) > (100, 100)


@pytest.mark.slow
def test_coco(tmp_path: Path) -> None:
    """Each image is packed with its mask and its COCO annotations, with unchanged polygons and run lengths."""
    inputs.coco(tmp_path)
    ran = run("coco.py", tmp_path)
    assert ran == Ran(0, "", ""), ran
    for split in ("train2017", "val2017"):
        theirs = json.loads((tmp_path / f"coco/annotations/instances_{split}.json").read_text())
        found = samples(*tmp_path.glob(f"shards/{split}-*.tar"))
        assert [int(key) for key in found] == [image["id"] for image in theirs["images"]]
        for image in theirs["images"]:
            sample = found[str(image["id"])]
            assert sample["jpg"] == (tmp_path / f"coco/{split}/{image['file_name']}").read_bytes()
            assert size_of(sample["png"]) == size_of(sample["jpg"])
            objects = [one for one in theirs["annotations"] if one["image_id"] == image["id"]]
            assert json.loads(sample["json"]) == image | {"annotations": objects}


@pytest.mark.slow
def test_coco_annotations(tmp_path: Path) -> None:
    """Each image is packed with mask, boxes, class numbers from 0, names and captions."""
    inputs.coco(tmp_path)
    ran = run("coco.sh", tmp_path)
    assert ran.code == 0, ran
    for split in ("train2017", "val2017"):
        theirs = json.loads((tmp_path / f"coco/annotations/instances_{split}.json").read_text())
        found = samples(*tmp_path.glob(f"shards/{split}-*.tar"))
        assert sorted(found) == sorted(Path(image["file_name"]).stem for image in theirs["images"])
        names = dataset(tmp_path / f"shards/{split}.json")["classes"]["labels.json"]
        categories = {one["id"]: one["name"] for one in theirs["categories"]}
        for image in theirs["images"]:
            sample = found[Path(image["file_name"]).stem]
            assert sample["jpg"] == (tmp_path / f"coco/{split}/{image['file_name']}").read_bytes()
            assert size_of(sample["png"]) == size_of(sample["jpg"])
            own = [one for one in theirs["annotations"] if one["image_id"] == image["id"]]
            assert json.loads(sample["boxes.json"]) == [one["bbox"] for one in own]
            labels = [names[number] for number in json.loads(sample["labels.json"])]
            assert labels == [categories[one["category_id"]] for one in own]
            assert json.loads(sample["captions.json"]) == ["0: a photo", "1: a photo"]


@pytest.mark.slow
def test_cityscapes(tmp_path: Path) -> None:
    """Each image is packed with the requested labels, under the common part of their names."""
    inputs.cityscapes(tmp_path)
    ran = run("cityscapes.sh", tmp_path)
    assert ran.code == 0, ran
    for split in ("train", "val"):
        images = {
            str(path.relative_to(tmp_path / "leftImg8bit" / split)).removesuffix("_leftImg8bit.png"): path
            for path in sorted((tmp_path / "leftImg8bit" / split).rglob("*.png"))
        }
        found = samples(*tmp_path.glob(f"shards/{split}-*.tar"))
        assert [*found] == sorted(images)
        for key, sample in found.items():
            mask = (tmp_path / "gtFine" / split / f"{key}_gtFine_labelIds.png").read_bytes()
            assert sample == {"png": images[key].read_bytes(), "mask.png": mask}


@pytest.mark.slow
def test_ljspeech(tmp_path: Path) -> None:
    """Each clip is in one split, with its exact transcript."""
    inputs.ljspeech(tmp_path)
    ran = run("ljspeech.sh", tmp_path)
    assert ran.code == 0, ran
    train, val = (samples(*tmp_path.glob(f"shards/{split}-*.tar")) for split in ("train", "val"))
    assert len(train) > len(val) > 0
    assert sorted([*train, *val]) == sorted(inputs.TRANSCRIPTS)
    for name, sample in (train | val).items():
        wav = (tmp_path / f"LJSpeech-1.1/wavs/{name}.wav").read_bytes()
        assert sample == {"txt": inputs.TRANSCRIPTS[name][1].encode(), "wav": wav}


@pytest.mark.slow
def test_data_frame(tmp_path: Path) -> None:
    """Each row of the frame is in one split, with its image and both class numbers, in the requested shares."""
    shutil.copytree(REPO / "sample_data", tmp_path / "sample_data")
    ran = run("frame.py", tmp_path)
    assert ran == Ran(0, "", ""), ran
    photos = pd.read_csv(tmp_path / "sample_data/photos.csv").query("width >= 200")
    names = {field: dataset(tmp_path / "shards/train.json")["classes"][field] for field in ("cls", "multi.cls")}
    keys: dict[str, Counter[str]] = {}
    for split in ("train", "val"):
        found = samples(*tmp_path.glob(f"shards/{split}-*.tar"))
        rows = photos[photos.object_id.astype(str).isin(list(found))]
        assert len(rows) == len(found)
        for row in rows.itertuples():
            sample = found[str(row.object_id)]
            assert sample["jpg"] == (tmp_path / "sample_data" / str(row.path)).read_bytes()
            assert names["cls"][int(sample["cls"])] == row.bi
            assert names["multi.cls"][int(sample["multi.cls"])] == row.multi
        keys[split] = Counter(rows.multi)
        index = pd.concat(map(pd.read_parquet, tmp_path.glob(f"shards/{split}-*.index")))
        assert index["__key__"].tolist() == list(found)
        assert index["bi"].tolist() == [names["cls"][int(sample["cls"])] for sample in found.values()]
    assert keys["train"] + keys["val"] == Counter(photos.multi)
    assert all(abs(keys["val"][label] - count / 5) < 1 for label, count in Counter(photos.multi).items())


@pytest.mark.slow
def test_partition_and_labels(tmp_path: Path) -> None:
    """Each name is in the split of `partition`, with its array and its number of `labels`."""
    inputs.partition(tmp_path)
    ran = run("partition.py", tmp_path)
    assert ran == Ran(0, "", ""), ran
    dicts = json.loads((tmp_path / "dicts.json").read_text())
    for split, names in dicts["partition"].items():
        found = samples(*tmp_path.glob(f"shards/{split}-*.tar"))
        assert sorted(found) == sorted(names)
        assert list(found) != names  # shuffled
        for name, sample in found.items():
            assert sample.keys() == {"cls", "npy"}
            assert int(sample["cls"]) == dicts["labels"][name]
            assert (np.load(io.BytesIO(sample["npy"])) == int(name[3:]) - 1).all()


@pytest.mark.slow
def test_a_class_is_removed(tmp_path: Path) -> None:
    """Both splits contain all classes but one; of that class no byte exists, and other files are unchanged."""
    shutil.copytree(REPO / "sample_data" / "photos", tmp_path / "photos")
    ran = run("classes.sh", tmp_path)
    assert ran.code == 0, ran
    source = {
        path.relative_to(tmp_path / "photos").as_posix(): path.read_bytes() for path in tmp_path.glob("photos/*/*")
    }
    cats = {name: data for name, data in source.items() if name.startswith("cat/")}
    found = {split: samples(*tmp_path.glob(f"split/{split}-*.tar")) for split in ("train", "val")}
    assert {split: {key.partition("/")[0] for key in some} for split, some in found.items()} == dict.fromkeys(
        found, {name.partition("/")[0] for name in source} - {"cat"}
    )
    written = b"".join(path.read_bytes() for path in tmp_path.glob("split/*"))
    assert not any(data[-64:] in written for data in cats.values())
    files = {
        path.relative_to(tmp_path / "files").as_posix(): path.read_bytes() for path in tmp_path.glob("files/[!.]*/*")
    }
    assert files == {name: data for name, data in source.items() if name not in cats}
    told = json.loads((tmp_path / "difference.json").read_text())
    assert sorted(told["removed"]) == sorted({name.rpartition(".")[0] for name in cats})
    assert (tmp_path / "same.txt").read_text().splitlines()[-1].startswith("equal")
    assert found == {split: samples(*tmp_path.glob(f"again/{split}-*.tar")) for split in found}


def test_foreign_shards(tmp_path: Path) -> None:
    """Each sample of three tools is in the dataset once, with its image, label or caption, in a new order."""
    inputs.foreign(tmp_path)
    ran = run("foreign.sh", tmp_path)
    assert ran.code == 0, ran
    check_foreign(tmp_path)


def check_foreign(place: Path) -> None:
    """Check that the dataset of foreign shards is complete."""
    expected: dict[str, Sample] = {}
    for shard in range(2):
        expected |= inputs.webdataset_samples(shard)
    for shard in range(2):
        for key, fields in inputs.img2dataset_samples(shard).items():
            expected[f"{key}-2" if key in expected else key] = {name: fields[name] for name in ("jpg", "txt")}
        for name, image, label in inputs.tensorflow_samples(shard):
            expected[name] = {"jpg": image, "cls": b"%d" % label}
    found = samples(*sorted(place.glob("clean/train-*.tar")))
    assert found == expected
    assert list(found) != list(expected)
    assert all(size_of(sample["jpg"]) for sample in found.values())
    index = pd.concat(map(pd.read_parquet, sorted(place.glob("clean/*.index"))))
    assert index["__key__"].tolist() == list(found)


@pytest.mark.slow
def test_nightly(tmp_path: Path) -> None:
    """Each night adds a shard of new samples, if there are any; existing shards keep their bytes.

    A new class gets the next number, wherever its name sorts. Damage is a failed test case in the report, with the
    name of the shard.
    """
    nights: list[list[str]] = [["cat/a", "dog/b"], ["cat/c"], [], ["cow/0", "ant/1", "dog/d"]]
    keys: list[str] = []
    before: dict[str, bytes] = {}
    for names in nights:
        for name in names:
            path = tmp_path / "inbox" / f"{name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        ran = run("nightly.sh", tmp_path)
        assert ran == Ran(0, "", ""), ran
        keys += sorted(names)
        tars = sorted((tmp_path / "shards").glob("*.tar"))
        now = {path.name: path.read_bytes() for path in tars}
        assert len(now) == len(before) + bool(names)
        assert now.items() >= before.items()
        assert [*samples(*tars)] == keys
        assert 'failures="0"' in (tmp_path / "report.xml").read_text()
        before = now
    classes = ["cat", "dog", "ant", "cow"]
    assert dataset(tmp_path / "shards/train.json")["classes"] == {"cls": classes}
    for key, sample in samples(*tars).items():
        assert sample == {"txt": key.encode(), "cls": b"%d" % classes.index(key.partition("/")[0])}
    flip(tars[1], 520)
    assert run("nightly.sh", tmp_path).code == 3
    suite = ET.parse(tmp_path / "report.xml").getroot()  # noqa: S314 - of our own run
    failed = [(case.get("classname"), case[0].get("type")) for case in suite.iter("testcase") if len(case)]
    assert (tars[1].name, "shard-checksum") in failed
