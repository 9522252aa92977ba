from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import crc32c
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtool import CorruptShard, CreateOptions, create
from shardtool.dataset.sidecar_read import parse_facts, parse_sidecar, read_sidecar_schema
from shardtool.errors import StoreFailed
from tests import tfrecords
from tests.helpers import members, shards, write_tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def packed(awkward: Path, ending: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the shards of the awkward tree, with labels."""
    folder = tmp_path_factory.mktemp("packed")
    options = CreateOptions(workers=0, max_size="1.5MB", label_from_folder=True)
    create(awkward, f"{folder}/out-{{000..}}.{ending}", options)
    return folder


@pytest.fixture(scope="session")
def many_classes(ending: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a shard whose labels are longer as text than as numbers, with one large sample."""
    files = {f"{folder:03}/x.bin": bytes(600_000 if folder == 150 else folder) for folder in range(200)}
    source = write_tree(tmp_path_factory.mktemp("classes"), files)
    folder = tmp_path_factory.mktemp("packed")
    create(source, f"{folder}/out-{{000..}}.{ending}", CreateOptions(workers=0, label_from_folder=True))
    return folder


def _text(payload: bytes, field: str, shard: Path) -> bytes:
    """Return the source text of a payload; in a TFRecord, a label is a number."""
    if shard.suffix == ".tfrecord" and field == "cls":
        return b"%d" % tfrecords.read_varint(payload, 0)[0]
    return payload


@pytest.mark.parametrize("fixture", ["packed", "many_classes"])
def test_pandas_reads_a_sidecar(fixture: str, ending: str, request: pytest.FixtureRequest) -> None:
    """A sidecar is readable with pandas: one row per sample in shard order, with offsets of payloads."""
    folder: Path = request.getfixturevalue(fixture)
    for shard in shards(folder):
        assert shard.suffix == f".{ending}"
        raw, payloads = shard.read_bytes(), []
        table = pd.read_parquet(shard.with_suffix(".index"))
        labels = [name for name in table.columns if name == "cls"]
        assert list(table.columns) == ["__key__", "__shard__", "__offset__", "__size__", "__fields__", *labels]
        assert set(table["__shard__"]) == {shard.name}
        for row in table.to_dict("records"):
            for field in row["__fields__"]:
                payload = raw[field["offset"] : field["offset"] + field["length"]]
                assert crc32c.crc32c(payload) == field["crc32c"]
                payloads.append((f"{row['__key__']}.{field['name']}", _text(payload, field["name"], shard)))
        assert payloads == members(shard)


def test_samples_fill_the_shard(packed: Path) -> None:
    """Samples follow each other without a gap, from 0 to a tar's trailer or a TFRecord's end."""
    for shard in shards(packed):
        table = pq.read_table(shard.with_suffix(".index"))
        offsets, sizes = table["__offset__"].to_numpy(), table["__size__"].to_numpy()
        ends = np.cumsum(sizes)
        assert offsets.tolist() == [0, *ends[:-1].tolist()]
        assert int(ends[-1]) + (1024 if shard.suffix == ".tar" else 0) == shard.stat().st_size
        if shard.suffix == ".tfrecord":
            assert offsets.tolist() == [offset for offset, _ in tfrecords.records(shard.read_bytes())]


def test_columns_have_the_types_of_the_format(packed: Path) -> None:
    """Columns have the documented types, are not nullable, and are compressed with ZSTD."""
    index = shards(packed)[0].with_suffix(".index")
    schema = pq.read_schema(index)
    fields = "list<element: struct<name: string not null, offset: uint64 not null, length: uint64 not null, "
    assert {field.name: str(field.type) for field in schema} == {
        "__key__": "string",
        "__shard__": "string",
        "__offset__": "uint64",
        "__size__": "uint64",
        "__fields__": f"{fields}crc32c: uint32 not null> not null>",
        "cls": "int64",
    }
    assert [field.name for field in schema if field.nullable] == ["cls"]
    group = pq.read_metadata(index).row_group(0)
    assert {group.column(column).compression for column in range(group.num_columns)} == {"ZSTD"}


def test_metadata_describes_the_shard(packed: Path) -> None:
    """A sidecar's metadata has the version, the shard's name, size and checksum, and the run's number of shards."""
    for shard in shards(packed):
        raw = shard.read_bytes()
        metadata = pq.read_metadata(shard.with_suffix(".index")).metadata
        own_metadata = {
            name.decode(): value.decode() for name, value in metadata.items() if name.startswith(b"shardtool.")
        }
        assert own_metadata.pop("shardtool.plan").isalnum()
        assert own_metadata == {
            "shardtool.format_version": "2",
            "shardtool.shard": shard.name,
            "shardtool.size": str(len(raw)),
            "shardtool.crc32c": f"{crc32c.crc32c(raw):08x}",
            "shardtool.first": shards(packed)[0].name,
            "shardtool.shards": str(len(shards(packed))),
        }
        facts = parse_facts(shard.with_suffix(".index").read_bytes(), "out.index")
        assert (facts.name, facts.size, facts.crc) == (shard.name, len(raw), crc32c.crc32c(raw))


def _pages(index: Path, column: str) -> range:
    """Return the byte ranges of a column's pages without their headers."""
    group = pq.read_metadata(index).row_group(0)
    for column_number in range(group.num_columns):
        chunk = group.column(column_number)
        if chunk.path_in_schema.endswith(column):
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            return range(start, start + chunk.total_compressed_size)
    raise AssertionError(column)


def _flipped(raw: bytes, offset: int) -> bytes:
    return raw[:offset] + bytes([raw[offset] ^ 1]) + raw[offset + 1 :]


def _crcs(raw: bytes) -> list[int] | None:
    crcs = parse_sidecar(raw, "out.index", None).crcs
    return None if crcs is None else crcs.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("column", [".crc32c", ".offset", ".length", ".name"])
def test_a_flipped_byte_is_detected(column: str, packed: Path) -> None:
    """A flipped byte in a page of the fields is an error when read, never another value or another error."""
    source = shards(packed)[0].with_suffix(".index")
    raw, pages, rejected = source.read_bytes(), _pages(source, column), 0
    expected = _crcs(raw)
    for offset in pages:
        try:
            crcs = _crcs(_flipped(raw, offset))
        except CorruptShard:
            rejected += 1
        else:
            assert crcs == expected
    if column == ".crc32c":
        assert rejected > 0.8 * len(pages)  # the other bytes are page headers with statistics


def test_every_byte_of_the_checksums_page_is_covered(packed: Path) -> None:
    """The page with the checksums is rejected wherever it was flipped."""
    source = shards(packed)[0].with_suffix(".index")
    for offset in _pages(source, ".crc32c")[-20:]:
        with pytest.raises(CorruptShard):
            _crcs(_flipped(source.read_bytes(), offset))


@pytest.mark.parametrize("damage", ["empty", "text", "truncated", "foreign", "newer"])
def test_other_files_are_not_sidecars(damage: str, packed: Path, tmp_path: Path) -> None:
    """A file that is not a sidecar of a known version is `CorruptShard`, by name."""
    path, good = tmp_path / "out.index", shards(packed)[0].with_suffix(".index")
    if damage == "newer":
        table = pq.read_table(good)
        metadata = {**table.schema.metadata, b"shardtool.format_version": b"3"}
        pq.write_table(table.replace_schema_metadata(metadata), path)
    elif damage == "foreign":
        pq.write_table(pq.read_table(good).replace_schema_metadata(None), path)
    else:
        path.write_bytes({"empty": b"", "text": b"PAR1 not PAR1", "truncated": good.read_bytes()[:-100]}[damage])
    with pytest.raises(CorruptShard, match=r"out\.index") as caught:
        parse_facts(path.read_bytes(), path.name)
    if damage != "newer":  # the advice is correct for sidecars of any tool
        assert all(words in caught.value.remedy for words in ("resume=True", "shardtool index"))
        assert "shardtool create" not in caught.value.remedy


@pytest.mark.parametrize("columns", [0, 1, 200])
def test_the_schema_is_read_from_the_footer(columns: int, tmp_path: Path) -> None:
    """The columns of a sidecar are read from its footer, however long it is."""
    metadata = {f"column-{number:04}-{'x' * 100}": [number, None] for number in range(columns)}
    table = pa.table({"key": ["a", "b"], "txt": ["x", "y"] if columns else ["", ""], **metadata})
    create(table, f"{tmp_path}/out-{{0..}}.tar", CreateOptions(field=("txt=txt",), workers=0))
    path = tmp_path / "out-0.index"
    assert read_sidecar_schema(str(path)) == pq.read_schema(path).remove_metadata()
    assert len(read_sidecar_schema(str(path))) >= 5 + columns


def test_a_failing_disk_is_not_a_damaged_sidecar(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk fails, the error says so, and does not call the sidecar invalid."""

    def fails(*_: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fails)
    with pytest.raises(StoreFailed, match=r"\.index: cannot be read"):
        read_sidecar_schema(str(shards(packed)[0].with_suffix(".index")))
