from __future__ import annotations

import functools
import gzip
import io
import resource
import tarfile
import tracemalloc
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardtool import Report, VerifyOptions, verify
from shardtool.dataset.stored import StoredShard
from shardtool.errors import SampleFailed
from shardtool.format import tar_write
from shardtool.names import IMAGE_ENDINGS
from shardtool.read.decode import Decode
from shardtool.transform.image_decode import decode_image
from shardtool.verbs.verify import examine as verify_examine
from shardtool.verbs.verify.examine import MAX_IMAGE_BYTES, MAX_JSON_BYTES, ExamineTask, examine_shard
from shardtool.verbs.verify.findings import FINDING_KINDS
from tests import tfrecords
from tests.transform.test_image import DEPTHS, chunk

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.verbs.verify.examine import ShardExamination

_FORMATS = {  # ending to what Pillow writes for it
    "jpg": "JPEG", "jpeg": "JPEG", "jpe": "JPEG", "jfif": "JPEG", "png": "PNG", "webp": "WEBP", "bmp": "BMP",
    "gif": "GIF", "tif": "TIFF", "tiff": "TIFF", "pbm": "PPM", "pgm": "PPM", "ppm": "PPM", "pnm": "PPM",
}  # fmt: skip
_MODES = {"pbm": "1", "pgm": "L", "gif": "P"}


def _tar(path: Path, files: dict[str, bytes]) -> Path:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as out:
        for name, payload in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(payload)
            out.addfile(info, io.BytesIO(payload))
    data = sink.getvalue()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def _decoded(path: Path) -> ShardExamination:
    return examine_shard(ExamineTask(StoredShard(str(path)), decode=True))[1]


def _report(path: Path) -> Report:
    return verify(path, VerifyOptions(decode=True, workers=0))


@functools.cache
def _made(form: str) -> bytes:
    """Return an image of `_CUT`."""
    return _image(form.partition("-")[0], **_CUT[form][0])


def _image(ending: str, **options: object) -> bytes:
    sink = io.BytesIO()
    image = Image.effect_noise((32, 24), 40).convert(_MODES.get(ending, "RGB"))
    image.save(sink, _FORMATS[ending], **options)
    return sink.getvalue()


def test_each_image_format_decodes_and_its_truncation_fails(tmp_path: Path) -> None:
    """A valid image of each supported format has no finding; a truncated one is `image-bad`."""
    assert set(_FORMATS) == IMAGE_ENDINGS
    images = {f"{ending}.{ending}": _image(ending) for ending in _FORMATS}
    assert _decoded(_tar(tmp_path / "x.tar", images)).findings == []
    cut = {name: data[: len(data) // 3] for name, data in images.items()}
    findings = _decoded(_tar(tmp_path / "y.tar", cut)).findings
    assert {(item.code, item.field) for item in findings} == {("image-bad", ending) for ending in _FORMATS}


_CUT: dict[str, tuple[dict[str, Any], int]] = {  # options of Pillow, and how many bytes at the end hold no pixel
    "jpg": ({}, 2), "jpg-progressive": ({"progressive": True}, 2), "png": ({}, 0), "bmp": ({}, 0), "ppm": ({}, 0),
    "png-frames": ({"save_all": True, "append_images": [Image.new("RGB", (32, 24))]}, 0), "pgm": ({}, 0),
    "webp": ({}, 0), "webp-lossless": ({"lossless": True}, 0), "gif": ({}, 2), "pbm": ({}, 0), "tif": ({}, 0),
    "tif-lzw": ({"compression": "tiff_lzw"}, 0), "tif-deflate": ({"compression": "tiff_deflate"}, 0),
    "tif-packbits": ({"compression": "packbits"}, 0), "tif-jpeg": ({"compression": "jpeg"}, 0),
}  # fmt: skip


@pytest.mark.parametrize("form", _CUT)
@given(st.data())
def test_a_truncated_image_fails_in_verify_and_in_readers(form: str, data: st.DataObject) -> None:
    """An image cut anywhere before its last pixel is a finding, and an error in a reader."""
    image = _made(form)
    image = image[: data.draw(st.integers(0, len(image) - 1 - _CUT[form][1]))]
    assert verify_examine._image_problem(image)  # noqa: SLF001
    with pytest.raises(SampleFailed):
        Decode(())({"__key__": "k", "png": image})


def test_a_png_with_too_few_rows_is_bad(tmp_path: Path) -> None:
    """A well-formed PNG that ends before its last row is bad, though Pillow fills the other rows with black."""
    header, rows = (100).to_bytes(4, "big") * 2 + b"\x08\0\0\0\0", (b"\0" + b"\xff" * 100) * 10
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    data = b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
    [findings] = _decoded(_tar(tmp_path / "x.tar", {"a.png": data})).findings
    assert (findings.code, "too early" in findings.found) == ("image-bad", True)


def test_an_image_over_the_memory_limit_is_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A valid image that needs more memory than allowed is skipped and counted."""
    monkeypatch.setattr("shardtool.transform.image_decode.decode_image", partial(decode_image, max_bytes=5000))
    result = _decoded(_tar(tmp_path / "x.tar", {"a.png": _image("png"), "b.png": b"none", "c.pgm": _image("pgm")}))
    assert ([finding.key for finding in result.findings], result.undecoded) == (["b"], 1)


def test_images_of_any_bit_depth_are_valid(tmp_path: Path) -> None:
    """Images with floats, many bits or signed values are valid."""
    images = {f"{at}.tif": data for at, (data, *_) in enumerate(DEPTHS.values())}
    assert _decoded(_tar(tmp_path / "x.tar", images)).findings == []


def test_a_jpeg_with_several_pictures_is_valid(tmp_path: Path) -> None:
    """A JPEG that contains further pictures (MPO) is valid."""
    sink, first = io.BytesIO(), Image.effect_noise((32, 24), 40).convert("RGB")
    first.save(sink, "MPO", save_all=True, append_images=[first.rotate(90)])
    assert _decoded(_tar(tmp_path / "x.tar", {"a.jpg": sink.getvalue()})).findings == []


def test_an_image_with_the_wrong_extension_is_accepted(tmp_path: Path) -> None:
    """Any known format is accepted with any image extension; other bytes are bad."""
    images = {"a.jpg": _image("png"), "b.png": _image("jpg"), "c.png": b"text", "d.png": b""}
    assert [finding.key for finding in _decoded(_tar(tmp_path / "x.tar", images)).findings] == ["c", "d"]


def test_an_image_with_too_many_pixels_is_bad(tmp_path: Path) -> None:
    """An image that claims more pixels than can be decoded is bad, and its memory is not allocated."""
    data = bytearray(_image("bmp"))
    data[18:26] = (60_000).to_bytes(4, "little") * 2
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    [findings] = _decoded(_tar(tmp_path / "x.tar", {"a.bmp": bytes(data)})).findings
    assert (findings.code, "decompression bomb" in findings.found) == ("image-bad", True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_large_json_is_skipped_and_counted(name: str, tmp_path: Path) -> None:
    """JSON over the limit is not decoded, because its objects need many times its bytes; the report counts it."""
    many = b"[" + b"[]," * (MAX_JSON_BYTES // 3) + b"[]]"
    path = _tar(tmp_path / name, {"a.json": many, "b.json": b"[", "c.json": b"[]"})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = _report(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB: objects would be 170,000
    assert [(finding.code, finding.key) for finding in report.findings] == [("json-bad", "b")]
    assert report.unchecked == (
        "1 payload too large for decode=True: it decodes images up to 250 MB (1 GiB once decoded) and JSON up to 8 MB",
    )


def test_a_payload_at_the_limit_is_decoded(tmp_path: Path) -> None:
    """A payload of exactly the limit is decoded."""
    text = b'"' + b"x" * (MAX_JSON_BYTES - 2)
    result = _decoded(_tar(tmp_path / "x.tar", {"a.json": text + b'"', "b.json": text + b"x"}))
    assert ([finding.key for finding in result.findings], result.undecoded) == (["b"], 0)
    assert MAX_IMAGE_BYTES > MAX_JSON_BYTES


def test_a_label_must_be_an_integer(tmp_path: Path) -> None:
    """A label must be a text that `int` accepts; `3.5` stops readers."""
    labels = {"a.cls": b"3.5", "b.cls": b"1e3", "c.id": b"-7", "d.cls": b"1_0", "e.cls": b"007"}
    result = _decoded(_tar(tmp_path / "x.tar", labels))
    assert [(finding.code, finding.key) for finding in result.findings] == [("number-bad", key) for key in "abd"]


def test_a_huge_label_is_rejected_by_its_start(tmp_path: Path) -> None:
    """White space around a label is accepted; a label of megabytes is invalid and is not read completely."""
    labels = {"a.cls": b" 12\n", "b.cls": b"1" * 5_000_000, "c.cls": b"", "d.cls": b"1" + b" " * 5000}
    result = _decoded(_tar(tmp_path / "x.tar", labels))
    assert [(finding.code, finding.key) for finding in result.findings] == [("number-bad", key) for key in "bcd"]
    assert result.undecoded == 0


_MADE = [
    b"".join(
        [
            tar_write.encode_header(b"a.json", 2),
            b"{}",
            bytes(510),
            tar_write.encode_header(b"n" * 150 + b".cls", 1),
            b"1",
            bytes(511),
        ]
    ),
    tfrecords.frame(tfrecords.example([(b"__key__", 1, b"k"), (b"cls", 3, b"\x07"), (b"a.json", 1, b"{}")])) * 2,
]


@given(st.data())
def test_any_damage_is_reported_and_never_raised(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Changed, missing or added bytes of a shard, plain or compressed, are findings and never exceptions."""
    number = data.draw(st.integers(0, 1))
    shard = bytearray(_MADE[number] + (tar_write.TRAILER if number == 0 else b""))
    for _ in range(data.draw(st.integers(0, 4))):
        shard[data.draw(st.integers(0, len(shard) - 1))] = data.draw(st.integers(0, 255))
    raw = bytes(shard[: data.draw(st.integers(0, len(shard)))]) + data.draw(st.binary(max_size=20))
    packed = data.draw(st.booleans())
    name = ("x.tar", "x.tfrecord")[number] + (".gz" if packed else "")
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(gzip.compress(raw) if packed else raw)
    assert set(_report(path).counts) <= set(FINDING_KINDS)


def test_field_names_are_stored_once(tmp_path: Path) -> None:
    """Memory does not grow with field names that each shard repeats."""
    names = [b"%01000d" % number for number in range(100)]
    record = b"".join(tfrecords.feature(name, tfrecords.BYTES, tfrecords.part(b"x")) for name in names)
    took = []
    for shards in (2, 2, 16):  # the first time, modules are loaded
        for at in range(shards):
            (tmp_path / f"x-{at}.tfrecord").write_bytes(tfrecords.frame(tfrecords.part(record)))
        tracemalloc.start()
        assert verify(tmp_path, VerifyOptions(workers=0)).sound
        took.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert took[2] - took[1] < 14 * 50_000  # a shard's names take 100,000
