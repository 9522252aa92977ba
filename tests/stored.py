"""Read finished datasets without code of the package, and compare shards, sidecars and dataset file."""

from __future__ import annotations

import json
import os
import struct
import tarfile
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from tests import tfrecords
from tests.helpers import shards, sidecar

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_BLOCK = 512
_TAR_END = 2 * _BLOCK
_FRAME_HEAD = 12
_SECOND_NS = 10**9


@dataclass(frozen=True)
class Field:
    """A field in a shard.

    Attributes:
        content: The payload. A number of a TFRecord is text.
        offset: Offset of the stored bytes in the shard.
        stored: The stored bytes, which differ from `content` for numbers of a TFRecord.
    """

    name: str
    content: bytes
    offset: int
    stored: bytes


@dataclass(frozen=True)
class Sample:
    """A sample in a shard.

    Attributes:
        start: Offset of the first record of the sample.
        stop: Offset of the end of the last record.
        columns: The metadata of the sample in the sidecar.
    """

    key: str
    fields: tuple[Field, ...]
    start: int
    stop: int
    columns: dict[str, Any]

    @property
    def content(self) -> dict[str, bytes]:
        """The content of each field, by name."""
        return {field.name: field.content for field in self.fields}


def sound(dataset_file: Path, *, max_size: int | None = None, max_count: int | None = None) -> list[list[Sample]]:
    """Return the samples of each shard of a dataset, after checking the dataset.

    The shards must be numbered from 000 without gaps, and be within the limits. The sidecars must describe all bytes of
    the shards. Names, sizes, checksums, counts and the fingerprint in the dataset file must be correct.
    """
    raw, folder, base = dataset_file.read_bytes(), dataset_file.parent, dataset_file.stem
    document = json.loads(raw)
    assert f"{crc32c.crc32c(raw[:-12]):08x}" == raw[-12:-4].decode()
    told = document["shardtool"]
    names = [f"{base}-{number:03}.{told['format']}" for number in range(len(document["shardlist"]))]
    there = [path.name for path in shards(folder) if path.name.startswith(f"{base}-")]
    assert [entry["url"] for entry in document["shardlist"]] == names == there
    found = [_sound_shard(folder, entry) for entry in document["shardlist"]]
    for entry, samples in zip(document["shardlist"], found, strict=True):
        assert max_size is None or entry["filesize"] <= max_size, entry
        assert max_count is None or len(samples) <= max_count, entry
    every = [sample for shard in found for sample in shard]
    assert len({sample.key for sample in every}) == len(every), "a key twice"
    assert told["fingerprint"] == fingerprint(every)
    assert told["fields"] == Counter(field.name for sample in every for field in sample.fields)
    totals = {
        "shards": len(found),
        "samples": len(every),
        "size": sum(entry["filesize"] for entry in document["shardlist"]),
        "field_bytes": sum(len(field.stored) for sample in every for field in sample.fields),
        "skipped": len(skipped(dataset_file)),
    }
    assert told["totals"] == totals
    return found


def skipped(dataset_file: Path) -> list[dict[str, str]]:
    """Return the rows of `out.skipped`, or an empty list if the file does not exist."""
    path = dataset_file.with_suffix(".skipped")
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()] if path.exists() else []


def contents(found: Iterable[Iterable[Sample]]) -> dict[str, dict[str, bytes]]:
    """Return the contents of all samples, by key and field. `found` has the samples of each shard."""
    return {sample.key: sample.content for shard in found for sample in shard}


def fingerprint(samples: Iterable[Sample]) -> str:
    """Return the content fingerprint of samples. Source: docs/format.md."""
    total = 0
    for sample in samples:
        fields = sorted((field.name.encode(), field.content) for field in sample.fields)
        row = b"".join(part + b"\0" for part in (sample.key.encode(), *(name for name, _ in fields)))
        row += b"".join(struct.pack("<Q", len(data)) for _, data in fields)
        row += b"".join(struct.pack("<I", crc32c.crc32c(data)) for _, data in fields)
        total += int.from_bytes(blake2b(row, digest_size=32).digest(), "little")
    return f"b2:{total % 2**256:064x}"


def age(folder: Path, source: Path) -> None:
    """Change the stamps of shards, so that `--resume` considers the source unchanged.

    `--resume` subtracts 60 s from the start of a run, so files that a test has just written otherwise count as changed.
    """
    changed = max(path.lstat().st_ctime_ns for path in [source, *source.rglob("*")])

    def older(stamp: int) -> int:
        own = stamp % _SECOND_NS  # the nanoseconds identify the root of the source
        return changed + 1 + (own - changed - 1) % _SECOND_NS

    for shard in shards(folder):
        until = older(shard.stat().st_mtime_ns)
        os.utime(shard, ns=(until, until))
    for journal in folder.glob(".*.journal"):
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        aged = [{**line, "stamp": older(line["stamp"])} if "stamp" in line else line for line in lines]
        journal.write_text("".join(f"{json.dumps(line)}\n" for line in aged))


def _sound_shard(folder: Path, entry: dict[str, Any]) -> list[Sample]:
    path, index = folder / entry["url"], (folder / entry["index"]["name"]).read_bytes()
    data = path.read_bytes()
    assert entry["index"]["name"] == sidecar(entry["url"])
    assert (entry["index"]["size"], entry["index"]["crc32c"]) == (len(index), f"{crc32c.crc32c(index):08x}")
    assert (entry["filesize"], entry["crc32c"]) == (len(data), f"{crc32c.crc32c(data):08x}")
    facts = pq.read_metadata(pa.BufferReader(index)).metadata
    said = [facts[b"shardtool." + name].decode() for name in (b"shard", b"size", b"crc32c")]
    assert said == [entry["url"], str(len(data)), entry["crc32c"]]
    rows = pq.read_table(pa.BufferReader(index), page_checksum_verification=True).to_pylist()
    stored = _tar(path) if path.suffix == ".tar" else _tfrecord(data)
    assert {row.pop("__shard__") for row in rows} <= {entry["url"]}
    samples = [_with_row(*one, row) for one, row in zip(stored, rows, strict=True)]
    assert entry["nsamples"] == len(samples)
    if samples:
        assert (entry["first_key"], entry["last_key"]) == (samples[0].key, samples[-1].key)
    end = 0
    for sample in samples:
        assert sample.start == end, "records do not lie one after the other"
        end = sample.stop
        assert all(data[field.offset : field.offset + len(field.stored)] == field.stored for field in sample.fields)
    assert end == len(data) - (_TAR_END if path.suffix == ".tar" else 0)
    return samples


def _with_row(key: str, fields: list[Field], start: int, stop: int, row: dict[str, Any]) -> Sample:
    """Return a sample with the metadata of its sidecar row, and check the other columns of the row."""
    assert (row.pop("__key__"), row.pop("__offset__"), row.pop("__size__")) == (key, start, stop - start)
    assert row.pop("__fields__") == [
        {"name": field.name, "offset": field.offset, "length": len(field.stored), "crc32c": crc32c.crc32c(field.stored)}
        for field in fields
    ]
    assert [field.name for field in fields] == sorted((field.name for field in fields), key=str.encode)
    return Sample(key, tuple(fields), start, stop, row)


def _tar(path: Path) -> list[tuple[str, list[Field], int, int]]:
    found: list[tuple[str, list[Field], int, int]] = []
    with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            folder, slash, name = member.name.rpartition("/")
            stem, _, field = name.partition(".")
            key, data = folder + slash + stem, file.read()
            one = Field(field, data, member.offset_data, data)
            stop = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
            if found and found[-1][0] == key:
                found[-1] = (key, [*found[-1][1], one], found[-1][2], stop)
            else:
                found.append((key, [one], member.offset, stop))
    return found


def _tfrecord(raw: bytes) -> list[tuple[str, list[Field], int, int]]:
    found = []
    for start, data in tfrecords.records(raw):
        features = {one.name: one for one in tfrecords.parse_example(data)}
        key = features.pop("__key__").text.decode()
        at = start + _FRAME_HEAD
        fields = [Field(one.name, one.text, at + one.start, data[one.start : one.stop]) for one in features.values()]
        found.append((key, fields, start, at + len(data) + 4))
    return found
