"""Versions of sidecars: every row of version 2 names the shard, and every verb reads version 1.

`version_1/` is a dataset written by shardtool 0.1.0 from the files in `SOURCE`.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtool import (
    CorruptShard,
    CreateOptions,
    ExportOptions,
    ExportResult,
    IndexOptions,
    ReshardOptions,
    VerifyOptions,
    create,
    export,
    index,
    inspect,
    reshard,
    verify,
)
from shardtool.dataset.sidecar_read import parse_facts, parse_sidecar
from shardtool.dataset.sidecar_write import encode_sidecar_table
from shardtool.entries import metadata_columns
from tests.helpers import members, read_tree, shards, write_tree
from tests.mapped import NOTED
from tests.stored import age

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = {"a/1.txt": b"one", "b/2.txt": b"two", "b/3.txt": b"three"}
_COMMITTED = Path(__file__).parent / "version_1"
_FINGERPRINT = "b2:6e55c85253593608cdeb9a4e337bc4d58be52bc52c53c6aab8bec83d2ea42d73"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a copy of the dataset of version 1."""
    return Path(shutil.copytree(_COMMITTED, tmp_path / "old"))


@pytest.fixture
def new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the same dataset as written now, without the column of labels, which version 1 lacks."""
    with monkeypatch.context() as patch:
        patch.setattr(metadata_columns, "with_number_columns", lambda columns, _more: columns)
        create(write_tree(tmp_path / "src", SOURCE), f"{tmp_path}/new/out-{{0..1}}.tar", _options())
    return tmp_path / "new"


def _options(**changed_options: Any) -> CreateOptions:
    return CreateOptions(label_from_folder=True, workers=0, **changed_options)


def test_every_row_names_the_shard(new: Path) -> None:
    """In sidecars that are read as one table, each row names its shard; the column is dictionary-encoded."""
    rows = pq.ParquetDataset([str(path) for path in sorted(new.glob("*.index"))]).read().to_pylist()
    assert [(row["__shard__"], row["__key__"]) for row in rows] == [
        ("out-0.tar", "a/1"), ("out-0.tar", "b/2"), ("out-1.tar", "b/3")
    ]  # fmt: skip
    column = pq.read_metadata(new / "out-0.index").row_group(0).column(1)
    assert (column.path_in_schema, column.has_dictionary_page) == ("__shard__", True)


def test_verify_and_inspect_read_version_1(old: Path, new: Path) -> None:
    """A dataset of version 1 is valid, and `inspect` shows it like version 2."""
    report = verify(old, VerifyOptions(workers=0))
    assert (report.sound, report.counts, report.unchecked) == (True, {}, ())
    overviews = [replace(inspect(folder / "out.json"), dataset="", dataset_file=None) for folder in (old, new)]
    assert overviews[0] == overviews[1]


def test_reshard_and_export_read_version_1(old: Path, new: Path, tmp_path: Path) -> None:
    """A dataset of version 1 gives the same output bytes as version 2."""
    outputs = [tmp_path / name for name in ("of-old", "of-new")]
    for source, folder in zip((old, new), outputs, strict=True):
        result = reshard(source / "out.json", f"{folder}/x-{{0..}}.tar", ReshardOptions(workers=0))
        assert result.fingerprint == _FINGERPRINT
        assert isinstance(export(source / "out.json", "energon", ExportOptions(output=folder)), ExportResult)
    assert read_tree(outputs[0]) == read_tree(outputs[1])


def test_append_to_version_1(old: Path, tmp_path: Path) -> None:
    """Samples are appended to a dataset of version 1 without changing it, and a note names the missing column."""
    before = read_tree(old)
    new_source = write_tree(tmp_path / "more", {"a/9.txt": b"nine"})
    result = create(new_source, f"{old}/out-{{0..}}.tar", _options(append=True, classes_from=old / "out.json"))
    assert [
        note for note in result.notes if "sidecars of the dataset lack: __shard__" in note and "union_by_name" in note
    ]
    after = read_tree(old)
    assert {name for name in before if after[name] != before[name]} == {"out.json"}
    assert verify(old, VerifyOptions(workers=0)).sound


@pytest.mark.parametrize("verb", ["index", "create"])
def test_index_and_resume_upgrade_version_1(verb: str, old: Path, new: Path, tmp_path: Path) -> None:
    """`index` and `--resume` upgrade a dataset of version 1 to the bytes of a new one, and keep the shards.

    `--resume` also adds the column of labels.
    """
    inodes = [path.stat().st_ino for path in shards(old)]
    if verb == "index":
        assert index(old / "out.json", IndexOptions(workers=0)).kept == 0
        assert index(old / "out.json", IndexOptions(workers=0)).kept == len(shards(old))
    else:
        assert create(tmp_path / "src", f"{old}/out-{{0..1}}.tar", _options(resume=True)).kept == len(inodes)
        create(tmp_path / "src", f"{new}/out-{{0..1}}.tar", _options(overwrite=True))
    assert read_tree(old) == read_tree(new)
    assert [path.stat().st_ino for path in shards(old)] == inodes


def test_resume_keeps_transformed_shards_of_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--resume` keeps shards of transformed samples with sidecars of version 1, and writes new sidecars."""
    source, folder = write_tree(tmp_path / "src", SOURCE), tmp_path / "out"
    monkeypatch.setenv(NOTED, f"{tmp_path}/noted")
    options = CreateOptions(map="tests.mapped:noted", workers=0)
    create(source, f"{folder}/out-{{0..1}}.tar", options)
    before = read_tree(folder)
    for path in folder.glob("*.index"):
        data = path.read_bytes()
        facts = parse_facts(data, path.name)
        path.write_bytes(encode_sidecar_table(parse_sidecar(data, path.name, None).plain_table(), facts, version=1))
        assert parse_sidecar(path.read_bytes(), path.name, None).version == 1
    age(folder, source)
    result = create(source, f"{folder}/out-{{0..1}}.tar", replace(options, resume=True))
    assert (result.kept, read_tree(folder)) == (result.shards, before)


def _rewritten(path: Path, change: Callable[[pa.Table], pa.Table], **facts: str) -> bytes:
    """Return a sidecar with changed rows and the same facts."""
    table = pq.read_table(path)
    metadata = {name: value for name, value in table.schema.metadata.items() if name.startswith(b"shardtool.")}
    metadata |= {f"shardtool.{name}".encode(): value.encode() for name, value in facts.items()}
    changed, sink = change(table.replace_schema_metadata(None)), pa.BufferOutputStream()
    with pq.ParquetWriter(sink, changed.schema, store_schema=False) as writer:
        writer.write_table(changed)
        writer.add_key_value_metadata(metadata)
    return bytes(sink.getvalue().to_pybytes())


def _named(*names: str | None) -> Callable[[pa.Table], pa.Table]:
    kind = pa.field("__shard__", pa.string(), nullable=None in names)
    return lambda table: table.set_column(1, kind, pa.array(names, pa.string()))


@pytest.mark.parametrize(
    ("change", "facts", "problem"),
    [
        (_named("out-0.tar", "out-1.tar"), {}, "rows that do not belong to out-0.tar"),
        (_named("x.tar", "x.tar"), {}, "rows that do not belong to"),
        (_named("out-0.tar", None), {}, "rows that do not belong to"),
        (_named(None, None), {}, "rows that do not belong to"),
        (lambda table: table.drop_columns(["__shard__"]), {}, "missing or unknown columns"),
        (lambda table: table, {"format_version": "1"}, "unknown columns: __shard__"),
        (lambda table: table.set_column(1, "__shard__", pa.array([1, 1])), {}, "a column __shard__ of type int64"),
        (lambda table: table.append_column("__shard__", table["__shard__"]), {}, "not a valid sidecar"),
        (lambda table: table, {"shard": "out-1.tar"}, "rows that do not belong to out-1.tar"),
    ],
)
def test_rows_of_other_shards_are_rejected(
    change: Callable[[pa.Table], pa.Table], facts: dict[str, str], problem: str, new: Path
) -> None:
    """A sidecar whose rows do not all name its shard is `CorruptShard`."""
    unchanged = _rewritten(new / "out-0.index", lambda table: table)
    assert parse_sidecar(unchanged, "x", None).version == 2
    with pytest.raises(CorruptShard, match=problem):
        parse_sidecar(_rewritten(new / "out-0.index", change, **facts), "x", None)


def test_index_of_a_renamed_shard(new: Path, tmp_path: Path) -> None:
    """`index` of renamed shards writes sidecars whose rows have the new names."""
    for number, path in enumerate(shards(new)):
        (tmp_path / f"y-{number}.tar").write_bytes(path.read_bytes())
    index(f"{tmp_path}/y-{{0..1}}.tar", IndexOptions(workers=0))
    for path in (tmp_path / "y-0.tar", tmp_path / "y-1.tar"):
        assert set(pq.read_table(path.with_suffix(".index"))["__shard__"].to_pylist()) == {path.name}
    assert members(*shards(tmp_path)) == members(*shards(new))
