"""Laws of `verify --source` for reshards and appended datasets: no false findings, and none missed."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shardtool import (
    CreateOptions,
    InvalidRequest,
    Report,
    ReshardOptions,
    ShardError,
    VerifyOptions,
    create,
    diff,
    index,
    remove,
    reshard,
    verify,
)
from shardtool.fingerprint import crc32c
from tests.helpers import flip, read_tree, shards, typed, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable


def _table(name: str, count: int, **columns: Any) -> Any:
    """Return a manifest: texts, labels, numbers that a TFRecord keeps as numbers, and metadata."""
    return pa.table({
        "key": [f"{name}/{at:02}" for at in range(count)],
        "txt": [f"{name} {at} " * (at + 1) for at in range(count)],
        "label": ["ant", "bee", "cat"] * (count // 3),
        "score": [at / 4 for at in range(count)],
        "w": list(range(count)),
        **columns,
    })  # fmt: skip


def _create(table: Any, pattern: str, **changes: Any) -> None:
    options: dict[str, Any] = {
        "key": "key", "field": ("cls=label", "score=score", "txt=txt"), "classes": ("cls",), "meta": "label,w",
        "max_count": 5, "workers": 0,
    }  # fmt: skip
    create(table, pattern, CreateOptions(**{**options, **changes}))


def _reshard(datasets: Any, pattern: str, **changes: Any) -> None:
    options: dict[str, Any] = {"max_count": 7, "workers": 0}
    reshard(datasets, pattern, ReshardOptions(**{**options, **changes}))


def _verify(dataset: Path, source: Any, **options: Any) -> Report:
    return verify(dataset, VerifyOptions(source=source, workers=0, **options))


def _unchecked(report: Report) -> list[str]:
    """Return what was not checked, except the fingerprint, which TFRecords with floats do not have."""
    return [text for text in report.unchecked if "fingerprint" not in text]


def _found(dataset: Path, source: Any) -> set[tuple[str, str, str]]:
    return {(finding.code, finding.key, finding.field) for finding in _verify(dataset, source).findings}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the datasets `one` (tar) and `two` (TFRecord), which tests do not change."""
    folder = tmp_path_factory.mktemp("sources")
    _create(_table("a", 12), f"{folder}/one/one-{{000..}}.tar")
    _create(_table("b", 9, w=list(range(100, 109))), f"{folder}/two/two-{{000..}}.tfrecord")
    return folder


@pytest.fixture
def both(sources: Path) -> list[Path]:
    """Return both datasets as the source of a reshard."""
    return [sources / "one", sources / "two" / "two.json"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True, "seed": 3, "equal_count": True},
        {"select_fields": ("txt", "cls"), "rename_fields": ("caption=txt",)},
        {"drop_fields": ("score",), "where": "w > 3 and label != 'cat'"},
        {"field": ("txt=label", "w=w"), "sample": 0.6},
        {"field": ("cls=label",), "classes": ("cls",), "sort_by": "w", "descending": True, "head": 8},
        {"portable": True, "max_size": "20kB"},
    ],
)
def test_a_reshard_matches_its_sources(options: dict[str, Any], both: list[Path], ending: str, tmp_path: Path) -> None:
    """For any fields, samples, order and format, the whole dataset is compared without findings."""
    _reshard(both, f"{tmp_path}/out-{{000..}}.{ending}", **options)
    report = _verify(tmp_path / "out.json", both)
    assert (report.findings, report.counts, _unchecked(report)) == ((), {}, [])
    assert "the source" in report.checked
    assert report.samples


@pytest.mark.parametrize("rule", ["rename", "first", "last"])
def test_duplicate_keys_follow_the_recorded_rule(rule: str, sources: Path, tmp_path: Path) -> None:
    """Samples that share a key are handled as in the recorded run."""
    _create(_table("a", 6, txt=["other"] * 6), f"{tmp_path}/more-{{0..}}.tar")
    both = [sources / "one", tmp_path / "more.json"]
    _reshard(both, f"{tmp_path}/out/out-{{000..}}.tar", on_duplicate=rule)
    report = _verify(tmp_path / "out", both)
    assert (report.findings, report.unchecked) == ((), ())
    if rule != "rename":
        assert _verify(tmp_path / "out", [both[1], both[0]]).counts == {"source-differs": 6}


@pytest.mark.parametrize("kind", ["bare", "packed", "shards"])
def test_sources_without_an_index_are_read(kind: str, sources: Path, ending: str, tmp_path: Path) -> None:
    """If no index has checksums, payloads are read, from plain and from compressed shards."""
    (given := tmp_path / "given").mkdir()
    for shard in shards(sources / "one"):
        if kind == "packed":
            (given / f"{shard.name}.gz").write_bytes(gzip.compress(shard.read_bytes()))
        else:
            shutil.copy(shard, given)
    source: Any = [[*map(str, shards(given))]] if kind == "shards" else given
    _reshard(source, f"{tmp_path}/out/out-{{000..}}.{ending}", shuffle=True)
    assert _verify(tmp_path / "out", source).counts == {}
    changed = _table("a", 12)
    texts = changed.column("txt").to_pylist()
    texts[3] = texts[3].upper()
    changed = changed.set_column(1, "txt", pa.array(texts))
    shutil.rmtree(given)
    _create(changed, f"{given}/one-{{000..}}.tar")
    for path in given.iterdir():
        if path.suffix != ".tar":
            path.unlink()
        elif kind == "packed":
            (given / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    assert _found(tmp_path / "out", source) == {("source-differs", "a/03", "txt")}


def test_each_split_is_compared_with_its_samples(both: list[Path], tmp_path: Path) -> None:
    """Each split of a reshard is compared with the source samples that belong to it."""
    for options in ({"split": "x=0.5,y=0.5"}, {"split": "x=0.5,y=0.5", "stratify": "label"}, {"split_column": "label"}):
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        _reshard(both, f"{folder}/{{split}}-{{000..}}.tar", **options)
        for file in sorted(folder.glob("*.json")):
            assert _verify(file, both).counts == {}
        assert "source-extra" in _verify(file, both[0]).counts


def test_changes_of_the_source_are_found(both: list[Path], ending: str, tmp_path: Path) -> None:
    """Missing, extra and different samples are found by key and field, also for numbers in TFRecord shards."""
    _reshard(both, f"{tmp_path}/out-{{000..}}.{ending}")
    table = _table("a", 12)
    keys, texts, scores = (table.column(name).to_pylist() for name in ("key", "txt", "score"))
    keys[2], texts[4], texts[5], scores[7] = "a/new", "another length", texts[5].upper(), 0.125
    columns = {"key": keys, "txt": texts, "score": scores}
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    _create(table, f"{tmp_path}/changed/one-{{000..}}.tar")
    assert _found(tmp_path / "out.json", [tmp_path / "changed", both[1]]) == {
        ("source-missing", "a/new", ""), ("source-extra", "a/02", ""), ("source-differs", "a/04", "txt"),
        ("source-differs", "a/05", "txt"), ("source-differs", "a/07", "score"),
    }  # fmt: skip
    _create(_table("a", 12), f"{tmp_path}/less/one-{{000..}}.tar", field=("cls=label", "score=score"))
    result = _found(tmp_path / "out.json", [tmp_path / "less", both[1]])
    assert result == {("source-extra", f"a/{at:02}", "txt") for at in range(12)}


def test_a_missing_table_limits_the_comparison(sources: Path, tmp_path: Path) -> None:
    """Fields and the selection of an unavailable table are reported as not compared; the rest is compared."""
    labels = tmp_path / "labels.csv"
    labels.write_text("key,kind\n" + "".join(f"a/{at:02},{'xyz'[at % 3]}\n" for at in range(12)), encoding="ascii")
    options: dict[str, Any] = {"join": labels, "on": "key"}
    _reshard(sources / "one", f"{tmp_path}/a/a-{{0..}}.tar", **options, field=("kind=kind", "txt=kind"), sort_by="kind")
    report = _verify(tmp_path / "a", sources / "one")
    assert (report.counts, len(report.unchecked)) == ({}, 1)
    assert "fields kind, txt" in report.unchecked[0]
    assert "labels.csv" in report.unchecked[0]
    _reshard(sources / "one", f"{tmp_path}/b/b-{{0..}}.tar", **options, where="kind == 'x'")
    report = _verify(tmp_path / "b", sources / "one")
    assert (report.counts, report.samples, len(report.unchecked)) == ({}, 4, 1)
    assert "where" in report.unchecked[0]
    _create(_table("a", 12, txt=["x"] * 12), f"{tmp_path}/other/one-{{0..}}.tar")
    assert {code for code, _, _ in _found(tmp_path / "b", tmp_path / "other")} == {"source-differs"}
    assert set(_verify(tmp_path / "b", sources / "two").counts) == {"source-extra"}
    report = _verify(tmp_path / "b", [sources / "one", tmp_path / "other"])
    assert (report.counts, "the source" in report.checked) == ({}, False)


def test_invalid_sources_are_refused(sources: Path, both: list[Path], tmp_path: Path) -> None:
    """Several sources for a run with one, no source, and a table for datasets are refused before a shard is read."""
    _reshard(both, f"{tmp_path}/out-{{000..}}.tar")
    for dataset, source in (
        (sources / "one", both), (tmp_path / "out.json", tmp_path / "none"), (tmp_path / "out.json", _table("a", 3)),
        (tmp_path / "out.json", [*both, 5]),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest):
            _verify(dataset, source)


def test_source_on_the_command_line(both: list[Path], tmp_path: Path) -> None:
    """`--source` is repeatable; the advice about findings fits any verb."""
    _reshard(both, f"{tmp_path}/out-{{000..}}.tar")
    ran = typed("verify", tmp_path / "out.json", "--source", both[0], "--source", both[1])
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "valid")
    ran = typed("verify", tmp_path / "out.json", "--source", both[0])
    assert ran.code == 3
    assert "--resume" in ran.out
    assert "create --resume" not in ran.out


def _reseal(dataset_file: Path, **made: Any) -> None:
    """Change the recorded run of a dataset file, and update its checksum."""
    document = json.loads(dataset_file.read_bytes())
    del document["checksum"]
    document["shardtool"]["made"] |= made
    body = json.dumps(document, indent=2).removesuffix("\n}").encode() + b',\n  "checksum": "crc32c:'
    dataset_file.write_bytes(body + b'%08x"\n}\n' % crc32c(body))


@pytest.mark.parametrize(
    "options",
    [
        {"temp_dir": "/"}, {"overwrite": True}, {"map": "os:system"}, {"head": "many"}, {"head": 2.5},
        {"head": True}, {"sample": ["1%"]}, {"sample": "all"}, {"sample": 1}, {"where": 5}, {"where": "os.system('x')"},
        {"join": {"a": 1}}, {"join": "x", "values": ["a"]}, {"join": "x", "on": [1]}, {"join": "/etc/passwd"},
        {"values": [1]}, {"select_fields": "txt"}, {"seed": -1, "split": "x=1"}, {"split": "nonsense"},
        {"sort_by": ["a"]}, {"shuffle": "yes"}, {"on_duplicate": "explode"}, {"\x1b[2J": 1}, ["head"], None,
    ],
)  # fmt: skip
def test_hostile_recorded_options_run_nothing(options: Any, sources: Path, tmp_path: Path) -> None:
    """Any recorded options of a sealed dataset file give a report or a `ShardError`, and no code runs."""
    _reshard(sources / "one", f"{tmp_path}/out-{{000..}}.tar")
    _reseal(tmp_path / "out.json", options=options)
    before = read_tree(tmp_path)
    try:
        _verify(tmp_path / "out.json", sources / "one")
    except ShardError as error:
        assert "\x1b" not in str(error)  # noqa: PT017 - either is right
    assert read_tree(tmp_path) == before


@pytest.fixture(params=["create", "reshard"])
def appended(request: pytest.FixtureRequest, sources: Path, ending: str, tmp_path: Path) -> tuple[Path, Any]:
    """Return a dataset with appended samples, created by either verb, and the source of its first samples."""
    pattern, source = f"{tmp_path}/out/out-{{000..}}.{ending}", _table("a", 12)
    if request.param == "reshard":
        source = sources / "one"
        _reshard(source, pattern)
    else:
        _create(source, pattern)
    _create(_table("c", 6), pattern, append=True)
    return tmp_path / "out", source


def test_appended_samples_are_not_findings(appended: tuple[Path, Any]) -> None:
    """The first run's shards are compared; appended shards are reported as not compared."""
    dataset, source = appended
    report = _verify(dataset, source)
    assert (report.findings, report.samples) == ((), 18)
    assert ["appended" in text for text in _unchecked(report)] == [True]
    assert "the source" in report.checked


def test_the_source_of_an_append_is_not_compared(ending: str, tmp_path: Path) -> None:
    """The report says so; a source that contains the appended samples, too, has no findings."""
    pattern = f"{tmp_path}/out/out-{{000..}}.{ending}"
    _create(_table("a", 12), pattern)
    _create(_table("c", 6), pattern, append=True)
    report = _verify(tmp_path / "out", _table("c", 6))
    assert (report.counts, "the source" in report.checked) == ({}, False)
    assert any("contains only appended samples" in text for text in report.unchecked)
    grown = pa.concat_tables([_table("a", 12), _table("c", 6)])
    assert _verify(tmp_path / "out", grown).counts == {}
    assert _found(tmp_path / "out", pa.concat_tables([grown, _table("d", 3).slice(0, 1)])) == {
        ("source-missing", "d/00", "")
    }
    assert _verify(tmp_path / "out", _table("e", 3)).counts == {"source-extra": 12, "source-missing": 3}
    assert _verify(tmp_path / "out", _table("a", 12, txt=["x"] * 12)).counts == {"source-differs": 12}


def test_samples_of_an_unreadable_shard_are_not_missing(ending: str, tmp_path: Path) -> None:
    """If a shard cannot be read, the report does not claim that its samples are missing."""
    _create(_table("a", 12), f"{tmp_path}/out/out-{{000..}}.{ending}", max_count=4)
    shard = tmp_path / "out" / f"out-001.{ending}"
    shard.unlink()
    shard.mkdir()
    report = _verify(tmp_path / "out", _table("a", 12))
    assert set(report.counts) == {"shard-unreadable"}
    assert any("whether the dataset contains all samples" in text for text in report.unchecked)


_GROWS = {"split": "train=0.7,val=0.3", "stratify": "label", "update": True, "max_count": 20}


@pytest.mark.parametrize("name", ["{split}", "{split}/x"])
def test_stratified_splits_of_a_grown_source_match(name: str, tmp_path: Path) -> None:
    """Samples that an update added are not findings; a missing sample is a finding of exactly one split."""
    for count in (60, 81):
        _create(_table("a", count), f"{tmp_path}/{name}-{{0..}}.tar", **_GROWS)
    grown, splits = _table("a", 81), [f"{tmp_path}/{name}.json".replace("{split}", split) for split in ("train", "val")]
    reports = [_verify(Path(split), grown) for split in splits]
    assert [(report.counts, _unchecked(report)) for report in reports] == [({}, [])] * 2
    assert sum(report.samples for report in reports) == 81
    assert diff(splits, grown, workers=0).same
    lost = pa.concat_tables([grown, _table("b", 3)])
    findings = [{finding.key for finding in _verify(Path(split), lost).findings} for split in splits]
    assert not findings[0] & findings[1]
    assert findings[0] | findings[1] == {"b/00", "b/01", "b/02"}
    assert {*diff(splits, lost, workers=0).added} == findings[0] | findings[1]
    deleted = _verify(Path(splits[0]), grown.slice(1)).counts, _verify(Path(splits[1]), grown.slice(1)).counts
    assert sorted(deleted, key=len) == [{}, {"source-extra": 1}]


def test_a_missing_stratified_split_limits_the_comparison(tmp_path: Path) -> None:
    """A sample that may be in a missing split is not reported as missing, unless nothing was added yet."""
    _create(_table("a", 60), f"{tmp_path}/{{split}}-{{0..}}.tar", **_GROWS)
    (tmp_path / "val.json").rename(tmp_path / "kept")
    assert _verify(tmp_path / "train.json", _table("a", 60)).counts == {}
    (tmp_path / "kept").rename(tmp_path / "val.json")
    _create(_table("a", 81), f"{tmp_path}/{{split}}-{{0..}}.tar", **_GROWS)
    for path in tmp_path.glob("val*"):
        path.unlink()
    report = _verify(tmp_path / "train.json", _table("a", 81))
    assert (report.counts, len(_unchecked(report))) == ({}, 1)
    assert "may be in val, which is missing" in report.unchecked[0]
    assert not diff(tmp_path / "train.json", _table("a", 81), workers=0).added


def test_updates_keep_the_split_of_existing_samples(tmp_path: Path) -> None:
    """A changed split column is no finding after an update, but is one without an update."""
    parts, options = ["train", "val", "train"], {"meta": "none", "split_column": "part", "update": True}
    _create(_table("a", 9, part=parts * 3), f"{tmp_path}/{{split}}-{{0..}}.tar", **options)
    later = _table("a", 9, part=["val", *(parts * 3)[1:]])
    assert _verify(tmp_path / "train.json", later).counts == {"source-extra": 1}
    assert _verify(tmp_path / "val.json", later).counts == {"source-missing": 1}
    grown = _table("a", 12, part=["val", *(parts * 4)[1:]])
    _create(grown, f"{tmp_path}/{{split}}-{{0..}}.tar", **options)
    assert [_verify(tmp_path / f"{split}.json", grown).counts for split in ("train", "val")] == [{}, {}]


def test_head_of_a_grown_source_cannot_be_compared(tmp_path: Path) -> None:
    """Samples that were among the first once are no findings; the report says what cannot be compared."""
    for rows in (_table("b", 6), pa.concat_tables([_table("a", 6), _table("b", 6)])):
        _create(rows, f"{tmp_path}/out-{{0..}}.tar", head=4, update=True)
    report = _verify(tmp_path / "out.json", rows)
    assert (report.counts, report.samples, len(_unchecked(report))) == ({}, 8, 1)
    assert "selected from a smaller source" in report.unchecked[0]
    assert _verify(tmp_path / "out.json", rows[1:]).counts == {"source-extra": 1}


def test_a_split_missing_in_the_source_is_found(tmp_path: Path) -> None:
    """All samples of a split that the source lacks are findings, and the other splits are still compared."""
    files = {f"{part}/{at}.txt": b"%d" % at for part in ("train", "val") for at in range(3)}
    source = write_tree(tmp_path / "in", files)
    create(source, tmp_path / "{split}-{0..}.tar", split_by="folder", workers=0)
    shutil.rmtree(source / "val")
    assert verify(tmp_path, source=source, workers=0).counts == {"source-extra": 3}
    assert [*diff(str(tmp_path / "{split}.json"), source, workers=0).removed] == ["val/0", "val/1", "val/2"]


def _same_after(dataset: Path, look: Callable[[], Report], told: str) -> None:
    """Check that a repair changes nothing, and gives a reason."""
    before = read_tree(dataset)
    report = look()
    assert (report.sound, report.repaired) == (False, ())
    assert any(text.startswith("repair: ") and told in text for text in report.unchecked), report.unchecked
    assert read_tree(dataset) == before


def test_repair_does_not_rerun_reshard(both: list[Path], ending: str, tmp_path: Path) -> None:
    """A repair leaves the shards of a reshard unchanged; the message names the command that recreates them."""
    pattern = f"{tmp_path}/out/out-{{000..}}.{ending}"
    _reshard(both, pattern, shuffle=True)
    expected = read_tree(tmp_path / "out")
    flip(tmp_path / "out" / f"out-001.{ending}", 600)
    for source in (None, both):
        _same_after(tmp_path / "out", lambda: _verify(tmp_path / "out", source, repair=True), "resume=True")  # noqa: B023
    (tmp_path / "out" / "out-002.index").unlink()
    _same_after(tmp_path / "out", lambda: _verify(tmp_path / "out", both, repair=True), "resume=True")
    _reshard(both, pattern, shuffle=True, resume=True)
    assert read_tree(tmp_path / "out") == expected


def test_repair_after_an_append_rebuilds_only_sidecars(appended: tuple[Path, Any], ending: str) -> None:
    """No single command recreates the shards, and the report says so; a sidecar of a valid shard is rebuilt."""
    dataset, source = appended
    (dataset / "out-001.index").unlink()
    report = _verify(dataset, None, repair=True)
    assert (report.sound, len(report.repaired)) == (True, 1)
    flip(dataset / f"out-001.{ending}", 600)
    for item in (None, source):
        _same_after(dataset, lambda: _verify(dataset, item, repair=True), "appended")  # noqa: B023


def test_repair_rebuilds_sidecars_from_shards_that_no_source_recreates(tmp_path: Path) -> None:
    """If only a sidecar without metadata is lost, its shard is enough, even if no source can recreate the shard."""
    source = write_tree(tmp_path / "in", {"a.txt": b"a", "b.txt": b"b"})
    create(source, tmp_path / "x-{0..}.tar", CreateOptions(workers=0))
    remove(tmp_path / "x.json", keys=["a"])
    (tmp_path / "x-0.index").unlink()
    report = _verify(tmp_path / "x.json", source, repair=True)
    assert (report.sound, len(report.repaired)) == (True, 1)


def test_repair_rebuilds_sidecars_next_to_shards_that_it_cannot_recreate(tmp_path: Path) -> None:
    """A damaged shard does not prevent the repair of another shard's sidecar, with a source as without one."""
    source = write_tree(tmp_path / "in", {"a.txt": b"a", "b.txt": b"b", "c.txt": b"c"})
    create(source, tmp_path / "x-{0..}.tar", CreateOptions(workers=0, max_count=2))
    remove(tmp_path / "x.json", keys=["a"])
    flip(tmp_path / "x-1.tar", 0)
    for item in (None, source):
        (tmp_path / "x-0.index").unlink()
        report = _verify(tmp_path / "x.json", item, repair=True)
        assert (report.sound, len(report.repaired)) == (False, 1)
        assert any("samples were removed" in text for text in report.unchecked)
        assert "sidecar-missing" not in report.counts


def test_repair_does_not_recreate_shards_of_another_tool(tmp_path: Path) -> None:
    """The advice is to restore them from a copy."""
    write_tree(tmp_path / "in", {"a.txt": b"a" * 600})
    create(tmp_path / "in", f"{tmp_path}/out/x-{{0..}}.tar", CreateOptions(workers=0))
    for name in ("x.json", "x-0.index"):
        (tmp_path / "out" / name).unlink()
    index(tmp_path / "out")
    flip(tmp_path / "out" / "x-0.tar", 0)
    _same_after(tmp_path / "out", lambda: _verify(tmp_path / "out", None, repair=True), "another tool")
