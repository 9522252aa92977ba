"""Damaged shards: complete samples are copied, others are listed with their offset, and no data is invented."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
from typing import TYPE_CHECKING

import pytest

from shardtool import CorruptShard, InvalidRequest, ReshardOptions, create, index, reshard, verify
from shardtool.request.create_options import CreateOptions
from shardtool.request.dataset_options import VerifyOptions
from tests import tfrecords
from tests.stored import contents, skipped, sound

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
_SKIP = ReshardOptions(on_error="skip", workers=0)
_KEYS = "abcdef"
_WHOLE = {key: {"jpg": key.encode() * 700, "json": key.encode() * 90} for key in _KEYS}


def _tar(samples: dict[str, dict[str, bytes]], form: int = tarfile.USTAR_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for key, fields in samples.items():
            for field, data in fields.items():
                info = tarfile.TarInfo(f"{key}.{field}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def _member_offsets(data: bytes) -> dict[str, int]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: member.offset for member in tar}


def _salvaged(folder: Path, name: str, data: bytes) -> tuple[str, list[tuple[str, str]]]:
    """Return the keys of the copied samples, after a check of their payloads, and the rows of skipped samples."""
    (folder / name).write_bytes(data)
    reshard(folder / name, f"{folder}/out-{{000..}}.tar", _SKIP)
    dataset = folder / "out.json"
    samples = contents(sound(dataset))
    assert samples == {key: _WHOLE[key] for key in samples}
    assert verify(dataset, VerifyOptions(workers=0)).sound
    rows = skipped(dataset)
    assert {(row["code"], row["path"]) for row in rows} <= {("damaged", name)}
    return "".join(samples), [(row["key"], row["message"]) for row in rows]


_DATA = _tar(_WHOLE)
_OFFSETS = _member_offsets(_DATA)


def _flipped(data: bytes, offset: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]


@pytest.mark.parametrize(
    ("data", "keys", "rows"),
    [
        (_DATA, "abcdef", []),
        (_DATA[: _OFFSETS["c.json"] + 600], "ab", ["", "c"]),  # in a payload
        (_DATA[: _OFFSETS["c.json"] + 300], "ab", ["", "c"]),  # in a header
        (_DATA[: _OFFSETS["d.jpg"]], "abc", [""]),  # between two samples
        (_flipped(_DATA, _OFFSETS["c.json"] + 40), "abdef", ["", "c"]),
        (_flipped(_DATA, _OFFSETS["c.jpg"] + 40), "abdef", ["", "c"]),
        (_flipped(_DATA, _OFFSETS["c.json"] + 130), "abdef", ["", "c"]),  # in the size
        (_DATA[: _OFFSETS["c.jpg"]] + b"\xff" * 777 + _DATA[_OFFSETS["c.jpg"] :], "abcdef", [""]),
        (_DATA[: _OFFSETS["c.json"]] + b"\xff" * 1024 + _DATA[_OFFSETS["c.json"] :], "abcdef", [""]),  # within a sample
        (_DATA[: _OFFSETS["b.json"]] + b"\xff" * 999 + _DATA[_OFFSETS["d.json"] :], "aef", ["", "b", "d"]),
        (_DATA + _tar({"g": {}}) + b"\xff" * 5, "abcdef", [""]),
    ],
)  # fmt: skip
def test_complete_samples_of_a_damaged_tar_are_copied(tmp_path: Path, data: bytes, keys: str, rows: list[str]) -> None:
    """Members after damage are found, and a sample that may have lost a field is skipped by name."""
    assert _salvaged(tmp_path, "x.tar", data)[0] == keys
    skipped_rows = [(row["key"], row["message"]) for row in skipped(tmp_path / "out.json")]
    assert sorted(key for key, _ in skipped_rows) == rows
    assert all(message.startswith("at ") for _, message in skipped_rows)


def test_damage_is_an_error_by_default(tmp_path: Path) -> None:
    """By default damage ends the run, with the offset, and with the option that skips it."""
    (tmp_path / "x.tar").write_bytes(_flipped(_DATA, _OFFSETS["c.json"] + 40))
    with pytest.raises(CorruptShard, match=r"at [\d,]+: a header with checksum.*on_error='skip'"):
        reshard(tmp_path / "x.tar", f"{tmp_path}/out-{{000..}}.tar", ReshardOptions(workers=0))


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_a_truncated_compressed_tar(tmp_path: Path, ending: str, pack: object) -> None:
    """A truncated compressed tar is read as far as possible, without the last sample, which may be incomplete."""
    samples = {key: {"jpg": os.urandom(40_000), "json": os.urandom(40_000)} for key in _KEYS}
    data = pack(_tar(samples))  # type: ignore[operator]
    (tmp_path / f"x.tar.{ending}").write_bytes(data[: len(data) * 2 // 3])
    reshard(tmp_path / f"x.tar.{ending}", f"{tmp_path}/out-{{000..}}.tar", _SKIP)
    copied = contents(sound(tmp_path / "out.json"))
    assert {*"abc"} <= copied.keys() < {*_KEYS}
    assert copied == {key: samples[key] for key in copied}
    assert skipped(tmp_path / "out.json")[-1]["code"] == "damaged"


def test_a_member_that_lost_its_long_name_is_skipped(tmp_path: Path) -> None:
    """A member that lost its long name is skipped, because its short name may be another sample's."""
    long = {"x" * 120 + key: {"jpg": key.encode() * 700} for key in _KEYS}
    for tar_format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        data = _tar(long, tar_format)
        offset = data.index(b"c" * 700) - 512 * 3
        (tmp_path / "x.tar").write_bytes(_flipped(data, offset + 20))
        reshard(tmp_path / "x.tar", f"{tmp_path}/{tar_format}-{{000..}}.tar", _SKIP)
        copied = contents(sound(tmp_path / f"{tar_format}.json"))
        assert copied == {key: fields for key, fields in long.items() if not key.endswith("c")}


def test_an_unreadable_shard_is_listed(tmp_path: Path) -> None:
    """An unreadable shard is listed, and the others are copied; a single unreadable shard is an error."""
    for number, data in enumerate((b"\xff" * 3000, b"", _DATA)):
        (tmp_path / f"x-{number}.tar").write_bytes(data)
    reshard(tmp_path, f"{tmp_path}/o/out-{{000..}}.tar", _SKIP)
    assert contents(sound(tmp_path / "o" / "out.json")) == _WHOLE
    assert [row["path"] for row in skipped(tmp_path / "o" / "out.json")] == ["x-0.tar", "x-1.tar"]
    with pytest.raises(InvalidRequest, match="no samples"):
        reshard(tmp_path / "x-0.tar", f"{tmp_path}/p/out-{{000..}}.tar", _SKIP)


def test_members_of_a_nested_tar_are_not_samples(tmp_path: Path) -> None:
    """Members of a tar inside a payload are not samples, even if the header before it is damaged."""
    inner = _tar({"inner": {"jpg": b"?" * 700}})
    data = _tar({"a": {"tar": inner}, "b": {"tar": inner}, "c": {"tar": inner}})
    (tmp_path / "x.tar").write_bytes(_flipped(data, _member_offsets(data)["b.tar"] + 40))
    reshard(tmp_path / "x.tar", f"{tmp_path}/out-{{000..}}.tar", _SKIP)
    assert contents(sound(tmp_path / "out.json")) == {"a": {"tar": inner}, "c": {"tar": inner}}


def _record(key: str) -> bytes:
    features = [(b"__key__", tfrecords.BYTES, key.encode()), (b"jpg", tfrecords.BYTES, _WHOLE[key]["jpg"])]
    return tfrecords.frame(tfrecords.example([*features, (b"json", tfrecords.BYTES, _WHOLE[key]["json"])]))


_RECORDS = [_record(key) for key in _KEYS]
_BEFORE, _AFTER = b"".join(_RECORDS[:2]), b"".join(_RECORDS[3:])


@pytest.mark.parametrize(
    ("damaged", "keys"),
    [
        (_flipped(_RECORDS[2], 0), "abdef"),  # the length
        (_flipped(_RECORDS[2], 9), "abdef"),  # its checksum
        (_flipped(_RECORDS[2], 300), "abdef"),
        (_flipped(_RECORDS[2], len(_RECORDS[2]) - 1), "abdef"),
        (_RECORDS[2][:300], "abdef"),
        (_RECORDS[2] + bytes(99), "abcdef"),
        (_RECORDS[2] + b"\xff" * 99, "abcdef"),
        (tfrecords.frame(b"no Example"), "abdef"),
    ],
)
def test_complete_records_of_a_damaged_tfrecord_are_copied(tmp_path: Path, damaged: bytes, keys: str) -> None:
    """Records after damage are found; their checksums verify the copies."""
    copied_keys, rows = _salvaged(tmp_path, "x.tfrecord", _BEFORE + damaged + _AFTER)
    assert copied_keys == keys
    assert rows
    assert _salvaged_end(tmp_path, damaged) == "ab"


def _salvaged_end(folder: Path, damaged: bytes) -> str:
    end = folder / "end"
    end.mkdir()
    return _salvaged(end, "x.tfrecord", _BEFORE + damaged[:200])[0]


def test_a_damaged_number_skips_its_sample(tmp_path: Path) -> None:
    """A number with a wrong checksum skips its sample, like any payload, and does not end the run."""
    import pyarrow as pa

    table = pa.table({"key": ["a", "b", "c"], "n": [300, 301, 302], "t": ["x", "y", "z"]})
    options = CreateOptions(workers=0, key="key", field=("n=n", "t=t"), meta="none")
    create(table, f"{tmp_path}/in-{{0..}}.tfrecord", options)
    shard = tmp_path / "in-0.tfrecord"
    data = shard.read_bytes()
    offset = data.index(b"\xad\x02")  # 301
    shard.write_bytes(_flipped(data, offset))
    with pytest.raises(CorruptShard, match="CRC"):
        reshard(tmp_path / "in.json", f"{tmp_path}/o/out-{{000..}}.tar", ReshardOptions(workers=0))
    reshard(tmp_path / "in.json", f"{tmp_path}/o/out-{{000..}}.tar", _SKIP)
    assert {*contents(sound(tmp_path / "o" / "out.json"))} == {"a", "c"}
    (row,) = skipped(tmp_path / "o" / "out.json")
    assert (row["key"], row["path"], row["code"]) == ("b", "in-0.tfrecord", "corrupt")


def _torn(twice: str = "") -> bytes:
    parts = [_tar({key: {"jpg": key.encode() * 9} for key in "abc"})[: 3 * 1024]]
    parts.append(_tar({key: {"json": b"{}", **({"jpg": b"?"} if key == twice else {})} for key in "abc"}))
    return b"".join(parts)


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_interleaved_fields(tmp_path: Path, ending: str) -> None:
    """A tar with all images before all labels has one sample per key: `index` rejects it, `reshard` fixes it."""
    (tmp_path / f"x.{ending}").write_bytes(_torn() if ending == "tar" else gzip.compress(_torn()))
    reshard(tmp_path / f"x.{ending}", f"{tmp_path}/o/out-{{000..}}.tar", ReshardOptions(workers=0))
    assert contents(sound(tmp_path / "o" / "out.json")) == {
        key: {"jpg": key.encode() * 9, "json": b"{}"} for key in "abc"
    }
    if ending == "tar":
        with pytest.raises(
            InvalidRequest, match=r"interleaved fields in 3 samples, for example 'a' at 0 and at 3,072.*reshard"
        ):
            index(tmp_path / "x.tar")
        assert not [*tmp_path.glob("*.index")]


def test_duplicate_samples_are_not_merged(tmp_path: Path) -> None:
    """If two parts of a key share a field, they are two samples and are not merged."""
    (tmp_path / "x.tar").write_bytes(_torn(twice="b"))
    with pytest.raises(InvalidRequest, match="3 keys more than once"):
        reshard(tmp_path / "x.tar", f"{tmp_path}/o/out-{{000..}}.tar", ReshardOptions(workers=0))
    index(tmp_path / "x.tar")
