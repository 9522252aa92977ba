from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
import tracemalloc
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from shardtool import CreateOptions, create
from shardtool.dataset import scan
from shardtool.dataset.dataset_file import parse_dataset
from shardtool.dataset.scan import ShardScan, ShardScanTask, scan_shard
from shardtool.dataset.stored import StoredShard
from shardtool.errors import OutputFailed
from shardtool.fingerprint import crc32c, format_fingerprint
from shardtool.format import tar_write, tfrecord_read
from shardtool.verbs.verify.examine import ExamineTask, examine_shard
from tests import tfrecords
from tests.helpers import members, shards, write_tree

if TYPE_CHECKING:
    from pathlib import Path


def rows(scan: ShardScan) -> list[tuple[str, int, int, list[tuple[str, int, int, int]]]]:
    """Return a scan as rows of a sidecar."""
    first_row, sidecar_rows = 0, []
    crcs = list(scan.crcs) or [0] * len(scan.codes)
    for key, start, size, count in zip(scan.keys, scan.starts, scan.sizes, scan.counts, strict=True):
        fields = [
            (scan.names[scan.codes[row]].decode(), scan.offsets[row], scan.lengths[row], crcs[row])
            for row in range(first_row, first_row + count)
        ]
        first_row += count
        sidecar_rows.append((key.decode(), start, size, fields))
    return sidecar_rows


def test_a_scan_matches_the_sidecar(awkward: Path, ending: str, tmp_path: Path) -> None:
    """A scan has the same keys, offsets, lengths and checksums as the sidecar, and the same fingerprint."""
    create(awkward, f"{tmp_path}/o-{{0..}}.{ending}", CreateOptions(max_count=5, workers=0))
    total = 0
    for shard in shards(tmp_path):
        scanned = scan_shard(ShardScanTask(str(shard), checksum=True))
        assert (scanned.error, scanned.nonzero_padding, scanned.unrecognised) == (None, [], [])
        assert scanned.crc == crc32c(shard.read_bytes())
        table = pq.read_table(shard.with_suffix(".index")).to_pylist()
        expected = [
            (row["__key__"], row["__offset__"], row["__size__"], [tuple(field.values()) for field in row["__fields__"]])
            for row in table
        ]
        assert rows(scanned) == expected
        total += scanned.digest or 0
        plain = scan_shard(ShardScanTask(str(shard)))
        assert (plain.crc, list(plain.crcs), plain.lengths) == (None, [], scanned.lengths)
    file = parse_dataset((tmp_path / "o.json").read_bytes(), "o.json")
    assert format_fingerprint(total) == file.fingerprint


def test_where_keys_end(tmp_path: Path) -> None:
    """Keys end at the first or at the last dot, as when the shard was created."""
    source = write_tree(tmp_path / "in", {"v1.5/a.b.jpg": b"1", "v1.5/a.b.txt": b"2", ".c.jpg": b"3"})
    create(source, f"{tmp_path}/o-{{0..}}.tar", CreateOptions(dots="last", hidden=True, workers=0))
    path = str(tmp_path / "o-0.tar")
    assert scan_shard(ShardScanTask(path, dots="last")).keys == [b".c", b"v1.5/a.b"]
    assert scan_shard(ShardScanTask(path)).keys == [b".c", b"v1.5/a"]


def test_unrecognised_members_are_reported(tmp_path: Path) -> None:
    """Folders, links and names without a field are reported and are not part of a sample; `./` does not count."""
    with tarfile.open(tmp_path / "x.tar", "w") as out:
        for name, kind in (("./", tarfile.DIRTYPE), ("./a.jpg", tarfile.REGTYPE), ("./a.txt", tarfile.REGTYPE),
                           ("README", tarfile.REGTYPE), ("b.", tarfile.REGTYPE), ("l.jpg", tarfile.SYMTYPE),
                           ("a.cls", tarfile.REGTYPE)):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type = kind
            out.addfile(info)
    scanned = scan_shard(ShardScanTask(str(tmp_path / "x.tar")))
    assert scanned.keys == [b"a", b"a"]  # interleaved: two samples
    assert list(scanned.counts) == [2, 1]
    assert [(member.name, member.is_file) for member in scanned.unrecognised] == [
        (b"", False), (b"README", True), (b"b.", True), (b"l.jpg", False)
    ]  # fmt: skip
    assert scanned.unrecognised[0].what == "./: not a regular file"


@pytest.mark.parametrize("pack", ["w:gz", "plain gz"])
def test_a_compressed_tar(pack: str, awkward: Path, tmp_path: Path) -> None:
    """A compressed tar is scanned, with offsets in its decompressed bytes."""
    create(awkward, f"{tmp_path}/o-{{0..}}.tar", CreateOptions(workers=0))
    data = (tmp_path / "o-0.tar").read_bytes()
    if pack == "plain gz":
        (tmp_path / "x.tar.gz").write_bytes(gzip.compress(data))
    else:
        with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as out:
            for name, payload in members(tmp_path / "o-0.tar"):
                info = tarfile.TarInfo(name)
                info.size = len(payload)
                out.addfile(info, io.BytesIO(payload))
    plain, compressed = (
        scan_shard(ShardScanTask(str(tmp_path / name), checksum=True)) for name in ("o-0.tar", "x.tar.gz")
    )
    assert (compressed.error, compressed.size, compressed.crc) == (None, -1, None)
    assert (compressed.keys, compressed.lengths, compressed.crcs) == (plain.keys, plain.lengths, plain.crcs)


def test_a_compressed_tfrecord(tmp_path: Path) -> None:
    """A compressed TFRecord file is scanned."""
    source = write_tree(tmp_path / "in", {f"{number}.jpg": bytes([number]) * 1000 * number for number in range(20)})
    create(source, f"{tmp_path}/o-{{0..}}.tfrecord", CreateOptions(workers=0))
    (tmp_path / "x.tfrecord.gz").write_bytes(gzip.compress((tmp_path / "o-0.tfrecord").read_bytes()))
    scanned = scan_shard(ShardScanTask(str(tmp_path / "x.tfrecord.gz"), checksum=True))
    assert (scanned.error, len(scanned.keys)) == (None, 20)


def test_records_too_large_for_memory(awkward: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan does not depend on whether records are held in memory."""
    create(awkward, f"{tmp_path}/o-{{0..}}.tfrecord", CreateOptions(workers=0, label_from_folder=True))
    path = str(tmp_path / "o-0.tfrecord")
    in_memory = [scan_shard(ShardScanTask(path, checksum=checksum)) for checksum in (False, True)]
    monkeypatch.setattr(tfrecord_read, "MAX_HELD_RECORD_BYTES", 10)
    lazy = [scan_shard(ShardScanTask(path, checksum=checksum)) for checksum in (False, True)]
    assert [*map(rows, lazy)] == [*map(rows, in_memory)]
    assert [scanned.digest for scanned in lazy] == [scanned.digest for scanned in in_memory] != [None, None]


def test_samples_before_damage_are_returned(ending: str, small: Path, tmp_path: Path) -> None:
    """The scan of a damaged shard has the samples before the damage, and the checksum of the whole file."""
    create(small, f"{tmp_path}/o-{{0..}}.{ending}", CreateOptions(workers=0))
    path = tmp_path / f"o-0.{ending}"
    undamaged = scan_shard(ShardScanTask(str(path), checksum=True))
    data = bytearray(path.read_bytes())
    data[undamaged.starts[6]] ^= 1
    path.write_bytes(data)
    scanned = scan_shard(ShardScanTask(str(path), checksum=True))
    assert scanned.error is not None
    assert scanned.keys == undamaged.keys[:6]
    assert scanned.crc == crc32c(data)


def test_padding_that_is_not_zero(tmp_path: Path) -> None:
    """A nonzero byte between a payload and the next header is reported."""
    source = write_tree(tmp_path / "in", {"a.jpg": b"x" * 10, "b.jpg": b"y" * (2**20 + 1), "c.jpg": b""})
    create(source, f"{tmp_path}/o-{{0..}}.tar", CreateOptions(workers=0))
    path = tmp_path / "o-0.tar"
    scanned = scan_shard(ShardScanTask(str(path)))
    data = bytearray(path.read_bytes())
    for field in (0, 1):
        data[scanned.offsets[field] + scanned.lengths[field] + 7] = 1
    path.write_bytes(data)
    ends = [scanned.offsets[field] + scanned.lengths[field] for field in (0, 1)]
    assert scan_shard(ShardScanTask(str(path), checksum=True)).nonzero_padding == ends


def test_many_field_names(tmp_path: Path) -> None:
    """A shard with a different field name in each sample is scanned in the usual time."""
    headers = b"".join(tar_write.encode_header(b"%d.%d" % (number, number), 0) for number in range(70_000))
    scanned = scan_shard(ShardScanTask(str(_packed(tmp_path / "x.tar", headers + tar_write.TRAILER)), checksum=True))
    assert (len(scanned.names), scanned.error, scanned.digest) == (70_000, None, None)


def test_keys_of_foreign_examples(tmp_path: Path) -> None:
    """Examples of other writers have a key feature, or else a key from shard name and number."""

    def example(**features: bytes) -> bytes:
        def field(number: int, data: bytes) -> bytes:
            return bytes([number << 3 | 2, len(data)]) + data

        parts = [field(1, field(1, name.encode()) + field(2, field(1, field(1, value))))
                 for name, value in features.items()]  # fmt: skip
        return tfrecords.frame(field(1, b"".join(parts)))

    data = example(key=b"named", image=b"1") + example(image=b"2", label=b"3")
    (tmp_path / "x.tfrecord").write_bytes(data)
    scanned = scan_shard(ShardScanTask(str(tmp_path / "x.tfrecord")))
    assert scanned.keys == [b"named", b"x/000000001"]
    assert [field[0] for row in rows(scanned) for field in row[3]] == ["image", "key", "image", "label"]


def _example(*features: tuple[bytes, int, bytes]) -> bytes:
    """Return a record of features, given as name, type, and list bytes."""
    entries = b"".join(tfrecords.feature(*feature) for feature in features)
    return tfrecords.frame(tfrecords.part(entries))


def _packed(path: Path, data: bytes) -> Path:
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def _scan_and_measure(path: Path) -> tuple[ShardScan, int]:
    """Return a scan, and the peak memory of Python objects."""
    tracemalloc.start()
    try:
        return scan_shard(ShardScanTask(str(path), checksum=True)), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.tfrecord", "x.tfrecord.gz"])
def test_an_example_of_too_many_features(name: str, tmp_path: Path) -> None:
    """An Example with too many features is damage, found before memory is allocated for them."""
    many = tfrecords.frame(tfrecords.part(b"\x0a\x00" * 500_000))
    scanned, memory = _scan_and_measure(_packed(tmp_path / name, _example((b"a", tfrecords.BYTES, b"")) + many))
    assert (len(scanned.keys), memory < 40 * 2**20) == (1, True)
    assert scanned.error is not None
    assert "more than 65,536 features" in str(scanned.error)


def test_the_maximum_number_of_features(tmp_path: Path) -> None:
    """An Example of 65,535 fields and a key is valid."""
    value = tfrecords.part(b"")
    features = [(b"%05d" % number, tfrecords.BYTES, value) for number in range(2**16 - 1)]
    scanned = scan_shard(
        ShardScanTask(str(_packed(tmp_path / "x.tfrecord", _example((b"__key__", 1, value), *features))))
    )
    assert (scanned.error, len(scanned.names)) == (None, 2**16 - 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [tfrecords.BYTES, tfrecords.INT64])
def test_a_list_of_many_values(kind: int, tmp_path: Path) -> None:
    """A list of many empty values does not need an object per value."""
    values = (b"\x0a\x00" if kind == tfrecords.BYTES else b"\x08\x07") * 200_000
    scanned, memory = _scan_and_measure(_packed(tmp_path / "x.tfrecord.gz", _example((b"a", kind, values))))
    assert (scanned.error, list(scanned.lengths), scanned.conflicts[0].values) == (None, [400_000], 200_000)
    assert memory < 10 * 2**20


@pytest.mark.slow
def test_the_memory_of_a_scan_is_bounded_by_the_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small compressed file that expands to endless names needs little memory."""
    monkeypatch.setattr(scan, "_BASE_MEMORY_BYTES", 2**20)
    monkeypatch.setattr(scan, "_MEMORY_CHECK_BYTES", 2**16)
    monkeypatch.setattr(scan, "_MEMORY_PER_COMPRESSED_BYTE", 16)
    long = tar_write.encode_header(b"k." + b"f" * 60_000, 0)
    for name, record in (("fields.tfrecord.gz", tfrecords.frame(tfrecords.part(b"\x0a\x00" * 1000))),
                         ("samples.tfrecord.gz", tfrecords.frame(b"")),
                         ("fields.tar.gz", long), ("odd.tar.gz", tar_write.encode_header(b"d" * 90, 0))):  # fmt: skip
        scanned, memory = _scan_and_measure(_packed(tmp_path / name, record * (6_000_000 // len(record))))
        assert scanned.error is not None, name
        assert "need more memory than allowed" in str(scanned.error), name
        assert memory < 16 * 2**20, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_a_tar_sample_of_too_many_fields(name: str, tmp_path: Path) -> None:
    """A sample with more than the maximum number of fields is damage."""
    header = tar_write.encode_header(b"a.txt", 0)
    scanned = scan_shard(ShardScanTask(str(_packed(tmp_path / name, header * 2**16 + tar_write.TRAILER))))
    assert "at 0: a sample of 65,536 fields" in str(scanned.error)
    scanned = scan_shard(ShardScanTask(str(_packed(tmp_path / name, header * (2**16 - 1) + tar_write.TRAILER))))
    assert scanned.error is None


def test_a_key_that_is_too_long(tmp_path: Path) -> None:
    """A key over 1 MiB is damage; truncating keys could make two of them equal."""
    for size, is_valid in ((2**20, True), (2**20 + 1, False)):
        path = _packed(tmp_path / "x.tfrecord", _example((b"__key__", tfrecords.BYTES, tfrecords.part(b"k" * size))))
        scanned = scan_shard(ShardScanTask(str(path)))
        assert (scanned.error is None, [*map(len, scanned.keys)]) == (is_valid, [size] if is_valid else [])


def test_a_large_record_of_a_compressed_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record too large for memory is read from a compressed shard as from a plain one, fields in any order."""
    parts = [tfrecords.part(b"%d" % number * 30_000) for number in range(3)]
    features = [(b"__key__", tfrecords.BYTES, tfrecords.part(b"k")), (b"z", tfrecords.BYTES, parts[0])]
    features += [(b"m", tfrecords.BYTES, parts[1] * 2), (b"a", tfrecords.BYTES, parts[2])]
    data = _example(*features) + _example((b"n", tfrecords.INT64, tfrecords.part(b"\x07")))
    plain = scan_shard(ShardScanTask(str(_packed(tmp_path / "x.tfrecord", data * 2)), checksum=True))
    monkeypatch.setattr(tfrecord_read, "MAX_HELD_RECORD_BYTES", 50)
    packed = scan_shard(ShardScanTask(str(_packed(tmp_path / "x.tfrecord.gz", data * 2)), checksum=True))
    assert (plain.error, packed.error) == (None, None)
    assert (rows(packed), packed.digest) == (rows(plain), plain.digest)
    truncated = scan_shard(ShardScanTask(str(_packed(tmp_path / "y.tfrecord.gz", data[:100_000])), checksum=True))
    assert "the file ends inside a record" in str(truncated.error)


def test_a_full_temporary_folder_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there is no space for a large record, the shard is not reported as damaged."""
    monkeypatch.setattr(tfrecord_read, "MAX_HELD_RECORD_BYTES", 50)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    path = _packed(tmp_path / "x.tfrecord.gz", _example((b"a", tfrecords.BYTES, tfrecords.part(bytes(100)))))
    with pytest.raises(OutputFailed, match="TMPDIR"):
        examine_shard(ExamineTask(StoredShard(str(path))))
