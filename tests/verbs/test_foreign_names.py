"""Laws of shards that other tools name and pack: TensorFlow's numbers, endings in capitals, bzip2 and xz."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tarfile
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest

from shardtool import (
    ExportOptions,
    IndexOptions,
    InvalidRequest,
    ReshardOptions,
    VerifyOptions,
    create,
    export,
    index,
    inspect,
    reshard,
    verify,
)
from tests import tfrecords
from tests.helpers import flip, members, shards, typed, write_tree
from tests.tfrecords import BYTES, INT64

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ONE = VerifyOptions(workers=0)


def _imagenet(number: int) -> bytes:
    """Return a record as TensorFlow's scripts for image sets write it."""
    name = b"n0144/n0144_%d.v2.JPEG" % number
    features = [
        (b"image/encoded", BYTES, b"\xff\xd8 %d" % number),
        (b"image/class/label", INT64, tfrecords.varint(number)),
    ]
    return tfrecords.frame(tfrecords.example([(b"image/filename", BYTES, name), *features]))


@pytest.fixture(params=["train-{:05}-of-00003", "x.tfrecord-{:05}-of-00003"])
def numbered(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Give a folder of three shards of four records, and a checkpoint that is numbered as shards are."""
    (tmp_path / "tf").mkdir()
    for at in range(3):
        raw = b"".join(map(_imagenet, range(4 * at, 4 * at + 4)))
        (tmp_path / "tf" / request.param.format(at)).write_bytes(raw)
    (tmp_path / "tf" / "model.ckpt.data-00000-of-00001").write_bytes(os.urandom(600))
    return tmp_path / "tf"


def _base(folder: Path) -> str:
    return "x.tfrecord" if list(folder.glob("x*")) else "train"


def test_shards_with_tensorflow_numbers(numbered: Path) -> None:
    """The folder, its patterns and globs name the shards; other files with such numbers are ignored."""
    base = _base(numbered)
    ways = (
        f"{base}@3",
        f"{base}-{{00000..00002}}-of-00003",
        f"{base}-%05d-of-00003",
        f"{base}-*",
        f"{base}-?????-of-00003",
    )
    given: Any
    for given in (numbered, *(f"{numbered}/{way}" for way in ways), sorted(numbered.glob(f"{base}*"))):
        report = verify(given, ONE)
        assert (report.sound, report.shards, report.samples) == (True, 3, 12), given
        assert inspect(given).samples == 12


def test_keys_and_fields_of_tensorflow(numbered: Path, tmp_path: Path) -> None:
    """A file's name without its ending is the key; `image/encoded` is a field as any other, also of a tar."""
    assert verify(numbered, ONE).counts == {}
    options = ReshardOptions(
        rename_fields=("jpg=image/encoded", "cls=image/class/label"), drop_fields=("image/filename",), workers=0
    )
    reshard(numbered, f"{tmp_path}/out-{{0..}}.tar", options)
    assert members(tmp_path / "out-0.tar")[:2] == [
        ("n0144/n0144_0.v2.cls", b"0"),
        ("n0144/n0144_0.v2.jpg", b"\xff\xd8 0"),
    ]


def test_an_index_of_numbered_shards(numbered: Path) -> None:
    """Sidecars and dataset file have the shards' names, and lead every verb back to these."""
    made = index(numbered, IndexOptions(checksum=True, workers=0))
    base = _base(numbered)
    assert os.path.basename(made.dataset_file) == f"{base.partition('.')[0]}.json"
    assert (numbered / f"{base}-00001-of-00003.index").exists()
    for given in (made.dataset_file, numbered, f"{numbered}/{base}@3", f"{numbered}/{base}-*"):
        assert verify(given, ONE).sound
        assert inspect(given).complete
    assert index(numbered, IndexOptions(workers=0)).kept == 3
    export(made.dataset_file, ["dali-tfrecord", "tfrecord"], ExportOptions(workers=0))
    flip(numbered / f"{base}-00001-of-00003.idx", 0)
    findings = {(finding.code, finding.file) for finding in verify(numbered, ONE).findings}
    assert findings == {("export-stale", f"{base}-00001-of-00003.idx")}
    flip(numbered / f"{base}-00002-of-00003", 30)
    damage = [finding for finding in verify(numbered, ONE).findings if finding.code == "shard-damaged"]
    assert ["checksum" in item.found for item in damage] == [True]


@pytest.mark.parametrize("lost", [0, 2])
def test_names_tell_what_is_missing(lost: int, numbered: Path) -> None:
    """Of three numbered shards each that is not there is named, the last one too."""
    name = f"{_base(numbered)}-{lost:05}-of-00003"
    (numbered / name).unlink()
    findings = verify(numbered, ONE).findings
    assert [(item.code, item.file, item.expected) for item in findings] == [
        ("numbering-gap", name, "3 shards, according to their names")
    ]


def test_one_finding_a_field(tmp_path: Path) -> None:
    """A field whose name could do harm is named once a shard, with how many samples have it."""
    record = tfrecords.frame(tfrecords.example([(b"../x", BYTES, b"1"), (b"a/b", BYTES, b"2")]))
    (tmp_path / "x.tfrecord").write_bytes(record * 7)
    (finding,) = verify(tmp_path, ONE).findings
    assert (finding.code, finding.field) == ("key-unsafe", "../x")
    assert finding.found.endswith("in 7 samples")


def test_the_advice_for_names_of_tensorflow_can_be_followed(numbered: Path, tmp_path: Path) -> None:
    """Of fields that no tar can hold, the error names the image, and what it could be called; then it is packed."""
    out = f"{tmp_path}/out-{{0..}}.tar"
    with pytest.raises(InvalidRequest, match=r"image/encoded.*rename_fields=\{'jpg': 'image/encoded'\}"):
        reshard(numbered, out)
    names = {"jpg": "image/encoded", "cls": "image/class/label"}
    reshard(numbered, out, ReshardOptions(rename_fields=names, drop_fields=("image/filename",)))
    assert dict(members(*shards(tmp_path)))["n0144/n0144_2.v2.jpg"] == b"\xff\xd8 2"


def test_labels_of_tensorflow_and_of_tars_become_one_field(tmp_path: Path) -> None:
    """In a tar, a number is the text that it is; in TFRecords, fields become one only where both are such numbers."""
    values = {"theirs": ("label", 7), "ours": ("cls", -3)}
    for name, (field, number) in values.items():
        features = [(b"key", BYTES, name.encode()), (field.encode(), INT64, tfrecords.varint(number))]
        (tmp_path / f"{name}.tfrecord").write_bytes(tfrecords.frame(tfrecords.example(features)))
    tree = write_tree(tmp_path / "tree", {"a.cls": b"12", "b.cls": b"0"})
    create(tree, f"{tmp_path}/tar-0.tar")
    renamed = ReshardOptions(rename_fields={"cls": "label"}, select_fields=("label", "cls"), workers=0)
    records = [tmp_path / f"{name}.tfrecord" for name in values]
    reshard([*records, tmp_path / "tar-0.tar"], f"{tmp_path}/out/all-0.tar", renamed)
    expected = [("theirs.cls", b"7"), ("ours.cls", b"-3"), ("a.cls", b"12"), ("b.cls", b"0")]
    assert members(tmp_path / "out/all-0.tar") == expected
    reshard(records, f"{tmp_path}/out/both-0.tfrecord", renamed)
    ((_, one), (_, two)) = tfrecords.records((tmp_path / "out/both-0.tfrecord").read_bytes())
    assert {feature.value for data in (one, two) for feature in tfrecords.parse_example(data)} >= {7, -3}
    with pytest.raises(InvalidRequest, match=r"would all be renamed to 'cls'.*no mix of numbers and text"):
        reshard([records[0], tmp_path / "tar-0.tar"], f"{tmp_path}/out/mixed-0.tfrecord", renamed)


def _tar(first: int) -> bytes:
    raw = BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for number in range(first, first + 3):
            member = tarfile.TarInfo(f"{number:03}.txt")
            member.size = 5
            tar.addfile(member, BytesIO(b"%05d" % number))
    return raw.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "TAR": bytes, "tar.bz2": bz2.compress, "tar.xz": lzma.compress, "TAR.GZ": gzip.compress, "tbz2": bz2.compress,
    "txz": lzma.compress,
}  # fmt: skip


@pytest.mark.parametrize("ending", PACKERS)
def test_capitals_and_compression(ending: str, tmp_path: Path) -> None:
    """Such shards are walked, verified, inspected and resharded, by folder, pattern and glob."""
    folder = tmp_path / "in"
    folder.mkdir()
    for at in range(2):
        (folder / f"x-{at}.{ending}").write_bytes(PACKERS[ending](_tar(3 * at)))
    given: Any
    for given in (folder, f"{folder}/x-{{0..1}}.{ending}", f"{folder}/x-*", sorted(folder.iterdir())):
        report = verify(given, ONE)
        assert (report.sound, report.samples) == (True, 6)
        assert inspect(given).samples == 6
    reshard(folder, f"{tmp_path}/out-{{0..}}.tar", ReshardOptions(shuffle=True, workers=0))
    assert sorted(members(*shards(tmp_path))) == [(f"{at:03}.txt", b"%05d" % at) for at in range(6)]
    if ending == "TAR":
        assert os.path.basename(index(folder, IndexOptions(workers=0)).dataset_file) == "x.json"
        assert verify(folder, ONE).sound
    else:
        with pytest.raises(InvalidRequest, match="a compressed shard"):
            index(folder, IndexOptions(workers=0))


def test_a_misleading_name(tmp_path: Path) -> None:
    """A shard of another format than its name says is damaged, and the finding says so; so is a truncated one."""
    (tmp_path / "a.tar").write_bytes(gzip.compress(_tar(0)))
    (tmp_path / "b.tfrecord").write_bytes(_tar(0))
    (tmp_path / "c.tar.xz").write_bytes(lzma.compress(os.urandom(99_999))[:-999])
    findings = {finding.file: (finding.code, finding.found) for finding in verify([*tmp_path.iterdir()], ONE).findings}
    assert {code for code, _ in findings.values()} == {"shard-damaged"}
    assert "those of a tar shard compressed with gzip, but" in findings["a.tar"][1]
    assert "those of a tar shard, but" in findings["b.tfrecord"][1]
    assert "not a tar header" in findings["c.tar.xz"][1]


def test_a_blob_without_a_name(tmp_path: Path) -> None:
    """A shard without a recognised extension is read by its content, but cannot be indexed."""
    (tmp_path / "3fa1").write_bytes(_tar(0))
    assert inspect(tmp_path / "3fa1").samples == 3
    ran = typed("index", tmp_path / "3fa1")
    assert ran.code == 2
    assert "a name without a shard extension" in ran.err
    assert os.listdir(tmp_path) == ["3fa1"]
