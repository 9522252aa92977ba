from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import crc32c
import duckdb
import pandas as pd
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.clients.packed import Packed

pytestmark = pytest.mark.clients


@pytest.fixture(params=["photos", "names", "long_names"])
def packed(request: pytest.FixtureRequest) -> Packed:
    """Yield each dataset."""
    found: Packed = request.getfixturevalue(request.param)
    return found


def _cut(shard: Path, offset: int, length: int) -> bytes:
    with shard.open("rb") as stream:
        stream.seek(offset)
        return stream.read(length)


def _payloads(key: str, fields: Iterable[Any], shard: Path) -> list[tuple[str, bytes]]:
    """Return the payloads at the offsets of the index, after checking their checksums."""
    found = []
    for field in fields:
        payload = _cut(shard, int(field["offset"]), int(field["length"]))
        assert crc32c.crc32c(payload) == field["crc32c"]
        found.append((f"{key}.{field['name']}", payload))
    return found


def test_pandas_finds_every_payload(packed: Packed) -> None:
    """The offsets of `pandas.read_parquet` for a sidecar lead to the source's bytes."""
    keys, read = [], []
    for shard in packed.shards:
        frame = pd.read_parquet(shard.with_suffix(".index"))
        keys += frame["__key__"].tolist()
        for key, fields in zip(frame["__key__"], frame["__fields__"], strict=True):
            read += _payloads(key, fields, shard)
    assert keys == list(packed.samples)
    assert read == packed.members


def test_a_sample_is_a_piece_of_tar(packed: Packed) -> None:
    """The bytes from `__offset__` on, `__size__` of them, are a sample's tar members, no more; they fill the shard."""
    read = []
    for shard in packed.shards:
        frame = pd.read_parquet(shard.with_suffix(".index"))
        end = 0
        for offset, size in zip(frame["__offset__"].tolist(), frame["__size__"].tolist(), strict=True):
            assert offset == end
            end = offset + size
            with tarfile.open(fileobj=io.BytesIO(_cut(shard, offset, size))) as tar:
                for member in tar:
                    payload = tar.extractfile(member)
                    assert payload is not None
                    read.append((member.name, payload.read()))
        assert end + 1024 == shard.stat().st_size
    assert read == packed.members


def test_duckdb_counts_over_all_shards(packed: Packed) -> None:
    """DuckDB reads all sidecars as one table: counts and bytes, by field, are the source's."""
    counted = duckdb.connect().execute(
        "select field.name, count(*), sum(field.length)::bigint "
        "from (select unnest(__fields__) as field from read_parquet(?)) group by 1 order by 1",
        [str(packed.folder / "out-*.index")],
    )
    expected: dict[str, tuple[int, int]] = {}
    for fields in packed.samples.values():
        for name, payload in fields.items():
            count, size = expected.get(name, (0, 0))
            expected[name] = count + 1, size + len(payload)
    assert counted.fetchall() == sorted((name, *totals) for name, totals in expected.items())


def test_duckdb_finds_every_payload(packed: Packed) -> None:
    """The rows that DuckDB gives name their shards, and lead to the source's bytes there."""
    rows = duckdb.connect().execute(
        "select __key__, __fields__, __shard__ from read_parquet(?) order by __shard__, __offset__",
        [str(packed.folder / "out-*.index")],
    )
    read = []
    for key, fields, shard in rows.fetchall():
        read += _payloads(key, fields, packed.folder / shard)
    assert read == packed.members


def test_portable_sidecars_keep_the_names(portable: Packed) -> None:
    """Under `--portable` a sidecar's `source_paths` name, unquoted, the files of the payloads, in any bytes."""
    read: list[tuple[str, bytes]] = []
    for shard in portable.shards:
        frame = pd.read_parquet(shard.with_suffix(".index"))
        for key, fields, paths in zip(frame["__key__"], frame["__fields__"], frame["source_paths"], strict=True):
            payloads = [payload for _, payload in _payloads(key, fields, shard)]
            names = [unquote(path, errors="surrogateescape") for path in paths]
            read += zip(names, payloads, strict=True)
    assert len(read) == len(portable.members)
    assert sorted(read) == sorted(portable.members)
