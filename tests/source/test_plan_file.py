"""A run with a plan file equals the run without it, and a plan file must match its source, options and checksums."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
import zipfile
from dataclasses import replace
from decimal import Decimal
from itertools import permutations
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtool import CorruptShard, CreateOptions, InvalidRequest, OutputExists, SampleFailed, create
from shardtool.fingerprint import crc32c
from shardtool.messages import use_cli_names
from tests.helpers import flip, members, read_tree, typed, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_OPTIONS = CreateOptions(workers=0, max_count=2, on_error="skip")
_FACTS = b"shardtool.plan"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a source of 7 samples, skipped files, links, and other kinds of sources."""
    files = {f"in/{'ab'[n % 2]}/{n:02}.txt".encode(): b"text of %d" % n for n in range(6)}
    files |= {b"in/a/00.json": b'{"n": 1}', b"in/b/none": b"no ending", b"in/a/\xff.txt": b"no UTF-8"}
    files |= {f"masks/{'ab'[n % 2]}/{n:02}.txt".encode(): b"mask %d" % n for n in range(5)}
    write_tree(tmp_path, files)
    (tmp_path / "in/b/linked.txt").symlink_to("../a/02.txt")
    (tmp_path / "in/b/gone.txt").symlink_to("nothing")
    return tmp_path


def _options(**more: Any) -> CreateOptions:
    return replace(_OPTIONS, **more)


def _write_plan(source: Any, folder: Path, ending: str = "tar", out: str = "out", **more: Any) -> Path:
    """Write a plan, and return its path."""
    path = folder / "plan.parquet"
    create(source, f"{folder}/{out}/x-{{000..}}.{ending}", _options(plan_only=path, **more), dry_run=True)
    return path


def _manifest(folder: Path) -> Path:
    """Write a manifest with columns of many types."""
    rows = 5
    columns = {
        "path": pa.array([f"in/{'ab'[n % 2]}/{n:02}.txt" for n in range(rows)]),
        "label": pa.array(["x", "y", None, "x", "y"]),
        "n": pa.array([1, None, 3, 4, 5], pa.int16()),
        "wide": pa.array(["é", "", "b\u0301", None, "zz"], pa.large_string()),
        "when": pa.array([0, 10**18, None, 1, 2], pa.timestamp("ns", "UTC")),
        "many": pa.array([[1, None], [], None, [2], [3]], pa.list_(pa.int8())),
        "vec": pa.array([[n / 3, 0.0] for n in range(rows)], pa.list_(pa.float32())),
        "more": pa.array([{"a": 1.5, "b": "t"}] * rows),
        "price": pa.array([Decimal("1.50")] * rows, pa.decimal128(9, 2)),
        "kind": pa.array(["p", "q", "p", "q", None]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns).replace_schema_metadata({"made": "by hand"}), folder / "table.parquet")
    return folder / "table.parquet"


def _archives(folder: Path) -> None:
    with (
        tarfile.open(folder / "all.tar", "w") as tar,
        zipfile.ZipFile(folder / "all.zip", "w", zipfile.ZIP_DEFLATED) as z,
    ):
        for path in sorted(folder.glob("in/?/*.txt")):
            if not path.is_symlink():
                tar.add(path, str(path.relative_to(folder)).encode("utf-8", "replace").decode())
                z.write(path, f"{path.parent.name}/{os.fsencode(path.name).decode('utf-8', 'replace')}")


@pytest.mark.parametrize(
    ("source", "more"),
    [
        ("in", {}),
        ("in", {"shuffle": True, "label_from_folder": True}),
        ("in", {"ending": "tfrecord", "place": "hash", "shards": 3, "max_count": None, "label_from_folder": True}),
        ("in", {"out": "{split}", "split": "train=0.5,val=0.5", "portable": False}),
        ("in", {"out": "{split}", "split_from_folder": True, "portable": False}),
        ("in", {"portable": True, "columns_from": ("json",), "sort_by": "n"}),
        ("in", {"join": "table.parquet", "on": "path", "where": "n > 0", "field": ("cls=kind",), "classes": ("cls",)}),
        ("in", {"join": "table.parquet", "on": "path", "where": "n > 0", "field": ("npy=vec",)}),
        ("in", {"rename_keys": "s/^/new-/", "hash": ("sha256",)}),
        ("both", {"shuffle": True}),
        ("table.parquet", {"meta": "all", "shuffle": True}),
        ("table.parquet", {"field": ("cls=kind",), "classes": ("cls",), "out": "{split}", "split_column": "kind"}),
        ("table.parquet", {"field": ("npy=vec",), "ending": "tfrecord"}),
        ("tables", {"meta": "all", "shuffle": True}),
        ("all.tar/in", {"where": "key != 'a/02'"}),
        ("all.zip", {"shuffle": True}),
    ],
)
def test_a_plan_changes_no_byte(
    source: str, more: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a plan file, a run writes the same bytes as without, and does not list the source."""
    monkeypatch.chdir(folder)
    _manifest(folder)
    if more.get("on") == "path":
        table = pq.read_table("table.parquet")
        table = table.set_column(0, "path", pa.array([path[3:] for path in table.column("path").to_pylist()]))
        pq.write_table(table.filter(pa.compute.is_valid(table.column("kind"))), "table.parquet")
    elif "split_column" in more:
        table = pq.read_table("table.parquet")
        pq.write_table(table.filter(pa.compute.is_valid(table.column("kind"))), "table.parquet")
    _archives(folder)
    table = pq.read_table("table.parquet")
    for name, rows in (("first.parquet", table[:2]), ("second.parquet", table[2:])):
        pq.write_table(rows, name)
    sources: Any = {"both": ["in", "masks"], "tables": ["first.parquet", "second.parquet"]}.get(source, source)
    out, ending = more.pop("out", ""), more.pop("ending", "tar")
    options = _options(**more)
    expected = create(sources, f"one/{out}/x-{{000..}}.{ending}", options)
    dry = create(sources, f"one/{out}/x-{{000..}}.{ending}", replace(options, plan_only="plan.parquet"), dry_run=True)
    assert "plan.parquet" in dry.notes[-1]
    monkeypatch.setattr("shardtool.source.open.SOURCE_CLASSES", {"plan": ("plan_file", "PlannedSource")})
    with_plan = replace(options, plan="plan.parquet")
    result = create(sources, f"two/{out}/x-{{000..}}.{ending}", with_plan)
    assert read_tree(folder / "two") == read_tree(folder / "one")
    assert replace(result, seconds=0, dataset_file="", urls="", splits={}) == replace(
        expected, seconds=0, dataset_file="", urls="", splits={}
    )
    if "hash" in more:  # parts cannot compute checksums
        return
    for number in (2, 1):
        create(sources, f"three/{out}/x-{{000..}}.{ending}", replace(with_plan, part=f"{number}/2"))
    assert read_tree(folder / "three") == read_tree(folder / "one")


def test_parts_with_and_without_the_plan_fit(folder: Path) -> None:
    """Parts with and without a plan file, in any order and repeated, give the same bytes; a missing part is named."""
    table = folder / "t.csv"
    table.write_text("key,v,w\na/00,,x\na/02,7,\n", encoding="ascii")  # with null values
    shared: dict[str, Any] = {"shuffle": True, "join": table, "on": "key"}
    plan = _write_plan(folder / "in", folder, **shared)
    create(folder / "in", f"{folder}/one/x-{{000..}}.tar", _options(**shared))
    for order in permutations((1, 2, 3)):
        for number in order:
            options = _options(**shared, part=f"{number}/3", plan=plan if number != 2 else None)
            result = create(folder / "in", f"{folder}/out/x-{{000..}}.tar", options)
            assert result.merged == (number == order[-1])
            if number == order[0]:
                create(folder / "in", f"{folder}/out/x-{{000..}}.tar", replace(options, resume=True))
            if number == order[1]:
                merging = typed("index", f"{folder}/out/x-{{000..}}.tar", "--merge")
                assert (merging.code, f"missing: {order[2]}/3" in merging.err) == (2, True), merging
        assert read_tree(folder / "out") == read_tree(folder / "one"), order
        shutil.rmtree(folder / "out")


def test_files_that_changed_since_are_named(folder: Path) -> None:
    """A file that changed since the plan was written fails the run, or is skipped, as without a plan."""
    write_tree(folder / "sound", {f"{n}.txt": b"text %d" % n for n in range(4)})
    plan = _write_plan(folder / "sound", folder)
    (folder / "sound/2.txt").write_bytes(b"a longer text")
    (folder / "sound/3.txt").unlink()
    with pytest.raises(SampleFailed, match=r"2\.txt"):
        create(folder / "sound", f"{folder}/s/x-{{0..}}.tar", _options(plan=_strict_plan(folder), on_error="raise"))
    result = create(folder / "sound", f"{folder}/t/x-{{0..}}.tar", _options(plan=plan))
    assert (result.samples, result.skipped) == (2, 2)
    codes = [json.loads(line)["code"] for line in (folder / "t/x.skipped").read_text().splitlines()]
    assert codes == ["changed", "vanished"]


def _strict_plan(folder: Path) -> Path:
    """Return the plan, as if written with options that stop at errors."""
    _reseal(folder / "plan.parquet", folder / "stops.parquet", facts=lambda facts: facts["options"].pop("on_error"))
    return folder / "stops.parquet"


def _reseal(
    plan: Path,
    to: Path,
    *,
    facts: Callable[[dict[str, Any]], object] = len,
    rows: Callable[[list[dict[str, Any]]], object] = len,
    writing: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Write a modified plan file with valid checksums."""
    table = pq.read_table(plan)
    head = re.compile(rb"([0-9]+) crc32c:[0-9a-f]{8} (.*)", re.DOTALL).fullmatch(
        pq.read_metadata(plan).metadata[_FACTS]
    )
    assert head is not None
    document, samples = json.loads(head[2]), table.to_pylist()
    facts(document)
    rows(samples)
    schema = table.schema
    body = json.dumps(document).encode()
    metadata = {**(schema.metadata or {}), _FACTS: b"%b crc32c:%08x %b" % (head[1], crc32c(body), body)}
    made = pa.Table.from_pylist(samples, schema=schema).replace_schema_metadata(metadata)
    pq.write_table(made, to, **{"compression": "zstd", "use_dictionary": False, **writing})
    return to


def _use(folder: Path, plan: Path, source: Any = None, **more: Any) -> None:
    create(folder / "in" if source is None else source, f"{folder}/out/x-{{000..}}.tar", _options(plan=plan, **more))


def _valid_plan(folder: Path) -> Path:
    """Write a plan, check that resealing it keeps it valid, and return it."""
    plan = _write_plan(folder / "in", folder)
    again = _reseal(plan, folder / "again.parquet")
    create(folder / "in", f"{folder}/out/x-{{000..}}.tar", _options(plan=again), dry_run=True)
    return plan


def test_another_source_is_refused(folder: Path) -> None:
    """A plan of a source with another name or kind, or without its files, is refused with the difference."""
    plan = _write_plan(folder / "in", folder)
    with pytest.raises(InvalidRequest, match="a plan of the folder in; expected a plan of the folder masks"):
        _use(folder, plan, folder / "masks")
    with pytest.raises(InvalidRequest, match="expected a plan of the folders in, masks"):
        _use(folder, plan, [folder / "in", folder / "masks"])
    write_tree(folder / "other/in", {f"{'ab'[n % 2]}/{n:02}.txt": b"other %d" % n for n in range(6)})
    with pytest.raises(InvalidRequest, match="do not exist or have changed, such as a/00"):
        _use(folder, plan, folder / "other/in")
    shutil.copytree(folder / "in", folder / "moved/in", symlinks=True)  # with its times: the same source elsewhere
    create(folder / "moved/in", f"{folder}/out/x-{{000..}}.tar", _options(plan=plan), dry_run=True)
    table = _manifest(folder)
    of_table = _write_plan(table, folder / "more")
    os.utime(table, ns=(0, 0))
    with pytest.raises(InvalidRequest, match="has changed since the plan was written"):
        _use(folder, of_table, table)
    for source in ("-", pa.table({"path": ["a"]})):
        with pytest.raises(InvalidRequest, match=r"a table in memory|standard input"):
            _use(folder, plan, source)
        with pytest.raises(InvalidRequest, match=r"a table in memory|standard input"):
            _write_plan(source, folder / "third")


def test_other_options_are_refused(folder: Path) -> None:
    """A plan is used with its own options; options for how the run works are free."""
    plan = _write_plan(folder / "in", folder, seed=3, shuffle=True)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"shuffle": False}, "--shuffle differs: given before, now not given"),
        ({"shuffle": True, "seed": 4}, "--seed differs: 3 before, now 4"),
        ({"shuffle": True, "seed": 3, "include": ("*.txt",)}, "--include differs: not given before, now '*.txt'"),
        ({"shuffle": True, "seed": 3, "on_error": "raise"}, "--on-error differs: 'skip' before, now not given"),
    ]
    for more, message in cases:
        with use_cli_names(), pytest.raises(InvalidRequest, match=re.escape(message)):
            _use(folder, plan, **more)
    with pytest.raises(InvalidRequest, match="format differs: 'tar' before, now 'tfrecord'"):
        create(folder / "in", f"{folder}/out/x-{{000..}}.tfrecord", _options(plan=plan, shuffle=True, seed=3))
    assert not (folder / "out").exists()
    _use(folder, plan, seed=3, shuffle=True, workers=2, target=("dali",), overwrite=True)


def test_a_plan_of_another_version_is_refused(folder: Path) -> None:
    """Plans of older and newer versions are refused: they may list a source differently."""
    plan = _valid_plan(folder)
    for version in ("0.0.1", "99.0"):
        other = _reseal(plan, folder / "other.parquet", facts=lambda facts, to=version: facts.update(tool=to))  # type: ignore[misc]
        with pytest.raises(InvalidRequest, match=rf"a plan of shardtool {version}; expected a plan of this version"):
            _use(folder, other)
    data = plan.read_bytes()
    newer = folder / "newer.parquet"
    newer.write_bytes(data.replace(b"1 crc32c:", b"2 crc32c:"))
    with pytest.raises(InvalidRequest, match="a plan of shardtool"):
        _use(folder, newer)


def test_urls_have_no_plan(folder: Path) -> None:
    """A plan file requires a source and a target on a file system."""
    plan = _write_plan(folder / "in", folder)
    for source in ("https://127.0.0.1:1/in.tar", ["s3://bucket/a", "s3://bucket/b"]):
        with pytest.raises(InvalidRequest, match="a URL"):
            _use(folder, plan, source)
        with pytest.raises(InvalidRequest, match="a URL"):
            _write_plan(source, folder, overwrite=True)
    for where, message in (
        ("s3://bucket/plans/", "not a local file name"),
        ("-", "not a local file name"),
        ("https://127.0.0.1:1/plan.parquet", "read-only"),
        ("s3:/bucket/plan.parquet", "s3://"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            create(folder / "in", f"{folder}/out/x-{{0..}}.tar", _options(plan_only=where), dry_run=True)


def test_files_that_are_not_plans_are_refused(folder: Path) -> None:
    """Garbage, other Parquet files, folders and FIFOs are not plans; a missing file is the user's mistake."""
    plan = _valid_plan(folder)
    (folder / "fifo").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "empty").write_bytes(b"")
    (folder / "garbage").write_bytes(b"PAR1" + b"\xff" * 500 + b"PAR1")
    pq.write_table(pa.table({"a": [1]}), folder / "other")
    for name in ("fifo", "pipe", "empty", "garbage", "other"):
        with pytest.raises(CorruptShard, match="not a plan file, or damaged"):
            _use(folder, folder / name)
    with pytest.raises(InvalidRequest, match="no such file; expected a plan"):
        _use(folder, folder / "none")
    data = plan.read_bytes()
    for size in range(0, len(data), 97):
        (folder / "cut").write_bytes(data[:size])
        with pytest.raises(CorruptShard):
            _use(folder, folder / "cut")
    assert not (folder / "out").exists()


def test_flipped_bits_are_found(folder: Path) -> None:
    """A flipped bit in a plan file is found, or changes nothing in the dataset."""
    plan = _valid_plan(folder)
    _use(folder, plan)
    expected = read_tree(folder / "out")
    for at in range(4, plan.stat().st_size, 41):
        damaged = folder / "damaged.parquet"
        shutil.copy(plan, damaged)
        flip(damaged, at)
        try:
            create(folder / "in", f"{folder}/flipped/x-{{000..}}.tar", _options(plan=damaged), dry_run=True)
        except (CorruptShard, InvalidRequest):
            continue
        create(folder / "in", f"{folder}/flipped/x-{{000..}}.tar", _options(plan=damaged))
        assert read_tree(folder / "flipped") == expected, at
        shutil.rmtree(folder / "flipped")


def _set(**values: Any) -> Callable[[list[dict[str, Any]]], object]:
    """Return a function that changes the first field of the first sample, or its key."""

    def change(rows: list[dict[str, Any]]) -> None:
        for name, value in values.items():
            (rows[0] if name.startswith("_") else rows[0]["__fields__"][0])[name] = value

    return change


@pytest.mark.parametrize(
    "rows",
    [
        _set(field=9),
        _set(kind=3),
        _set(kind=2),
        _set(size=-1),
        _set(size=2**60),
        _set(__key__=b"a\0b"),
        _set(__fields__=[]),
    ],
)
def test_invalid_rows_are_refused(rows: Callable[[list[dict[str, Any]]], object], folder: Path) -> None:
    """Plans with a valid checksum and invalid rows are refused before anything is written."""
    other = _reseal(_valid_plan(folder), folder / "other.parquet", rows=rows)
    with pytest.raises((CorruptShard, InvalidRequest)):
        _use(folder, other)
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    "facts",
    [
        {"fields": ["json", "json"]},
        {"fields": "json"},
        {"fields": ["json", "../x"]},
        {"inline": ["other"]},
        {"types": {"json": "code"}},
        {"skipped": [["a", "b", "no-such-code", "c"]]},
        {"notes": [1]},
        {"source": 5},
        {"options": []},
        {"divides": True},
        {"paths": True},
    ],
)
def test_invalid_metadata_is_refused(facts: dict[str, Any], folder: Path) -> None:
    """Plans with a valid checksum and metadata of other types, or that do not match the rows, are refused."""
    other = _reseal(_valid_plan(folder), folder / "other.parquet", facts=lambda known: known.update(facts))
    with pytest.raises((CorruptShard, InvalidRequest)):
        _use(folder, other)
    assert not (folder / "out").exists()


@pytest.mark.parametrize("text", [b"\xff0", b"\xffzz", b"\xff00", b"longer"])
def test_invalid_encoded_payloads_are_refused(text: bytes, folder: Path) -> None:
    """Plans with encoded payloads that are not hexadecimal, or have another size, are refused; valid ones are used."""
    table = folder / "t.jsonl"
    table.write_text('{"key": "a", "v": "ab"}\n')
    plan = _write_plan(table, folder, field=("txt=v",), meta="none")

    def use(text: bytes) -> None:
        other = _reseal(plan, folder / "other.parquet", rows=lambda rows: rows[0].update({"__inline_0__": text}))
        _use(folder, other, table, field=("txt=v",), meta="none")

    with pytest.raises((CorruptShard, InvalidRequest)):
        use(text)
    assert not (folder / "out").exists()
    use(b"\xff0001")
    assert members(folder / "out/x-000.tar") == [("a.txt", b"\x00\x01")]


@pytest.mark.parametrize(
    ("key", "kind"),
    [(b"../secret/file", 0), (b"a/../../secret/file", 0), (b"out/file", 0), (b"leads", 1), (b"/etc/x", 0)],
)
def test_paths_stay_in_the_source(key: bytes, kind: int, folder: Path) -> None:
    """A plan with paths out of the source, by `..` or by links, is refused, unless links may be followed."""
    write_tree(folder / "secret", {"file.json": b'{"secret": 1}'})
    (folder / "in/out").symlink_to(folder / "secret")
    (folder / "in/leads.json").symlink_to(folder / "secret/file.json")
    fact = (folder / "secret/file.json").stat()
    plan = _write_plan(folder / "in", folder, on_error="skip")
    change = _set(__key__=key, kind=kind, size=fact.st_size, mtime_ns=fact.st_mtime_ns)
    other = _reseal(plan, folder / "other.parquet", rows=change)
    with pytest.raises(InvalidRequest, match="leaves the source"):
        _use(folder, other)
    assert not (folder / "out").exists()


def test_a_path_may_have_a_thousand_parts(folder: Path) -> None:
    """The folders of arbitrarily deep paths are examined."""
    other = _reseal(_valid_plan(folder), folder / "other.parquet", rows=_set(__key__=b"a/" * 1500 + b"b"))
    assert create(folder / "in", f"{folder}/out/x-{{000..}}.tar", _options(plan=other), dry_run=True).planned


def test_paths_stay_in_several_folders(folder: Path) -> None:
    """With several folders, each path starts with the name of one of them, and stays inside."""
    both = [folder / "in", folder / "masks"]
    plan = _write_plan(both, folder)
    for path in (b"secret/file", b"file", b"in/../../secret/file", b"/etc/passwd"):
        other = _reseal(plan, folder / "other.parquet", rows=_set(path=path))
        with pytest.raises(InvalidRequest, match="leaves the source"):
            _use(folder, other, both)


def test_a_manifests_paths_stay_below_its_root(folder: Path) -> None:
    """Only `--allow-outside`, given again, lets the paths of a manifest's plan leave the root."""
    write_tree(folder, {"far/file.txt": b"far away", "near/table.csv": b"key,path\nk,../far/file.txt\n"})
    table, out = folder / "near/table.csv", f"{folder}/out/x-{{000..}}.tar"
    plan = folder / "plan.parquet"
    create(table, out, _options(plan_only=plan, allow_outside=True), dry_run=True)
    with pytest.raises(InvalidRequest, match="leaves the source"):
        create(table, out, _options(plan=plan))
    assert create(table, out, _options(plan=plan, allow_outside=True)).samples == 1


def test_a_small_file_takes_little_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that would expand to far more than their size are refused before they are decoded."""
    plan = _valid_plan(folder)
    monkeypatch.setattr("shardtool.source.plan_file._BASE_MEMORY_BYTES", 2**16)
    for rows, writing in ((_set(__key__=b"k" * 4_000_000), {}), (len, {"use_dictionary": True})):
        other = _reseal(plan, folder / "bomb.parquet", rows=rows, writing=writing)
        assert other.stat().st_size < 10_000
        with pytest.raises(CorruptShard, match=r"columns of .* in .*kB"):
            _use(folder, other)


def test_plans_replace_no_other_files(folder: Path) -> None:
    """A plan appears complete, and replaces no file without `--overwrite`; a refused run writes none."""
    plan = _write_plan(folder / "in", folder)
    with pytest.raises(OutputExists, match="already exists"):
        _write_plan(folder / "in", folder)
    _write_plan(folder / "in", folder, overwrite=True)
    before = plan.read_bytes()
    with pytest.raises(InvalidRequest):
        _write_plan(folder / "in", folder, overwrite=True, shards=99)
    assert plan.read_bytes() == before
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    create(folder / "in", f"{folder}/out/x-{{0..}}.tar", _options(plan_only=plan, overwrite=True))
    assert not [*(folder / "out").glob("x-*")], "only the plan is written"
    for more in ({"plan": plan}, {"part": "1/2"}, {"stat": False}):
        with pytest.raises(InvalidRequest, match="plan_only"):
            _options(plan_only=plan, **more)


def test_unpacked_payloads_have_no_plan(folder: Path) -> None:
    """Bytes in a table, and compressed archives, are unpacked by the run that packs them, so they have no plan."""
    table = pa.table({"key": ["a", "b"], "bytes": [b"one", b"two"]})
    pq.write_table(table, folder / "bytes.parquet")
    with tarfile.open(folder / "all.tar.gz", "w:gz") as tar:
        tar.add(folder / "in/a/00.txt", "00.txt")
    sources: list[tuple[Path, dict[str, Any]]] = [(folder / "all.tar.gz", {})]
    for source, more in [*sources, (folder / "bytes.parquet", {"bytes": ("jpg=bytes",)})]:
        with pytest.raises(InvalidRequest, match="payloads in a table or compressed archive"):
            _write_plan(source, folder, **more)
    assert not (folder / "plan.parquet").exists()


def test_the_command_line(folder: Path) -> None:
    """`--plan-only` prints and writes the plan; `--plan` uses it; `--json` has the note."""
    words: list[str | Path] = [
        "create",
        folder / "in",
        f"{folder}/out/x-{{000..}}.tar",
        "--max-count=2",
        "--on-error=skip",
        "--workers=0",
    ]
    ran = typed(*words, "--plan-only", folder / "plan.parquet", "--json")
    shown = json.loads(ran.out)
    assert (ran.code, len(shown["shards"])) == (0, 4), ran
    assert "--plan" in shown["notes"][-1]
    assert not (folder / "out").exists()
    ran = typed(*words, "--plan-only", folder / "plan.parquet", "--overwrite")
    assert "; no shard was written" in ran.out, ran
    ran = typed(*words, "--plan", folder / "plan.parquet", "--part", "1/1")
    assert ran.code == 0, ran
    create(folder / "in", f"{folder}/one/x-{{000..}}.tar", _OPTIONS)
    assert read_tree(folder / "out") == read_tree(folder / "one")


def test_other_tools_can_read_the_rows(folder: Path) -> None:
    """A plan file is a plain table: one row per sample, with its key, its fields and their sizes."""
    table = pq.read_table(_write_plan(folder / "in", folder))
    assert table.column("__key__").to_pylist()[:2] == [b"a/00", b"a/02"]
    assert [len(fields) for fields in table.column("__fields__").to_pylist()] == [2, 1, 1, 1, 1, 1, 1]
    assert np.sum([field["size"] for fields in table.column("__fields__").to_pylist() for field in fields]) == 71


def test_a_resumed_run_follows_the_plan(folder: Path) -> None:
    """With its plan, an interrupted run continues: finished shards stay, and files that changed are named."""
    write_tree(folder / "sound", {f"{n}.txt": b"text %d" % n for n in range(6)})
    plan, out = _write_plan(folder / "sound", folder), f"{folder}/out/x-{{000..}}.tar"
    create(folder / "sound", out, _options(plan=plan))
    expected = read_tree(folder / "out")
    (folder / "out/x-001.tar").unlink()
    (folder / "out/x.json").unlink()
    (folder / "sound/0.txt").write_bytes(b"of a shard that was finished")
    result = create(folder / "sound", out, _options(plan=plan, resume=True, trust="size"))
    assert (result.kept, result.shards) == (2, 3)
    assert read_tree(folder / "out") == expected
