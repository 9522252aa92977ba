from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

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
