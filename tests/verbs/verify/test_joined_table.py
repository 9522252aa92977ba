"""Laws of `verify --source` and `diff` for a dataset that was created with `--join`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow.csv import read_csv

from shardtool import InvalidRequest, Report, create, diff, reshard, verify
from shardtool.source.recorded_run import find_table, table_folders
from tests.helpers import typed, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable

_ROWS = {f"{name}/{at}": (f"text {at}", at) for at, name in enumerate("aabb")}


def _write(path: Path, rows: dict[str, tuple[str, int]], header: str = "key,caption,score") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [header, *(f"{key},{caption},{score}" for key, (caption, score) in rows.items())]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


@pytest.fixture(params=["create", "reshard"])
def joined(request: pytest.FixtureRequest, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a dataset in `out`, and its source in `data`, with a table that is then moved to `kept`; return the source.

    The current folder is one below.
    """
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    write_tree(Path("data"), {f"{key}.bin": key.encode() for key in _ROWS})
    _write(Path("kept/labels.csv"), _ROWS)
    options: dict[str, Any] = {"join": "kept/labels.csv", "on": "key", "field": ("cls=score", "txt=caption")}
    if request.param == "create":
        create("data", f"out/x-{{000..}}.{ending}", workers=0, **options)
        return "data"
    create("data", f"before/y-{{000..}}.{ending}", workers=0)
    reshard("before", f"out/x-{{000..}}.{ending}", workers=0, **options)
    return "before"


def _verify(source: Any, **options: Any) -> Report:
    return verify("out", source=source, workers=0, **options)


def _found(report: Report) -> set[tuple[str, str, str]]:
    return {(finding.code, finding.key, finding.field) for finding in report.findings}


def _changed(source: str, **options: Any) -> dict[str, set[str]]:
    """Return the fields that `diff` finds changed; of another dataset, which is no source for `diff`, none."""
    if source != "data":
        return {}
    result = diff("out", source, workers=0, **options)
    assert not result.added
    assert not result.removed
    return {item.key: {*item.fields} - {"(metadata)"} for item in result.changed}


def test_fields_of_a_missing_table_are_not_compared(joined: str) -> None:
    """The report and the JSON name the fields as not compared; the exit code depends on the rest."""
    report = _verify(joined)
    assert (report.sound, {*report.uncompared}) == (True, {"cls", "txt"})
    assert any("labels.csv, which was not found" in text for text in report.unchecked)
    assert {*report.to_json()["uncompared"]} == {"cls", "txt"}  # type: ignore[misc]
    ran = typed("verify", "out", "--source", joined)
    assert ran.code == 0
    verdict = ran.out.splitlines()[-1]
    assert verdict.startswith("valid; not compared with the source: ")
    assert "uncompared" not in verify("out", workers=0).to_json()


@pytest.mark.parametrize("folder", [".", "SOURCE", "out"])
def test_a_table_is_found_in_each_search_folder(folder: str, joined: str) -> None:
    """A table with the recorded name is found in the working directory, the source, or the dataset's folder."""
    if folder == "SOURCE" and joined == "data":
        folder = "data/.."  # in the source it would be a sample
    place = Path(folder.replace("SOURCE", joined), "labels.csv")
    _write(place, _ROWS)
    report = _verify(joined)
    assert (report.counts, report.uncompared) == ({}, ())
    assert any("labels.csv" in text for text in report.checked)
    assert _changed(joined) == {}
    _write(place, {**_ROWS, "a/1": ("other", 1)})
    assert _found(_verify(joined)) == {("source-differs", "a/1", "txt")}
    assert {*_changed(joined)} <= {"a/1"}


@pytest.mark.parametrize("form", [str, Path, read_csv], ids=["text", "path", "table"])
def test_join_overrides_the_search(form: Callable[[str], Any], joined: str) -> None:
    """`join` names the table, and overrides a table that was found."""
    _write(Path("labels.csv"), {**_ROWS, "a/1": ("other", 1)})
    report = _verify(joined, join=form("kept/labels.csv"))
    assert (report.counts, report.uncompared) == ({}, ())
    assert _changed(joined, join=form("kept/labels.csv")) == {}


def test_changed_values_of_a_table_are_findings(joined: str) -> None:
    """A changed or missing value is a finding of its sample and field; unrelated rows are ignored."""
    rows = {**_ROWS, "a/1": ("other", 9), "z/9": ("new", 9)}
    del rows["b/2"]
    _write(Path("labels.csv"), rows)
    expected = {("source-differs", "a/1", name) for name in ("cls", "txt")}
    expected |= {("source-extra", "b/2", name) for name in ("cls", "txt")}
    assert _found(_verify(joined)) == expected
    if joined == "data":
        assert _changed(joined) == {"a/1": {"cls", "txt"}, "b/2": {"cls", "txt"}}


@pytest.mark.parametrize(
    "text", ["key,other\na/0,1\n", "id,caption,score\na/0,x,1\n", "key,caption,score\nq,x,1\n", "", "\0"]
)
def test_a_table_that_cannot_be_joined_is_reported(text: str, joined: str) -> None:
    """A file with the recorded name that cannot be joined is reported, and its fields are not compared."""
    Path("labels.csv").write_text(text, encoding="ascii")
    report = _verify(joined)
    assert (report.counts, {*report.uncompared}) == ({}, {"cls", "txt"})
    assert any("cannot be joined" in text for text in report.unchecked)
    assert _changed(joined) == {}
    with pytest.raises(InvalidRequest):
        _verify(joined, join="labels.csv")


def test_join_is_refused_without_a_recorded_table(tmp_path: Path) -> None:
    """`join` is refused for a dataset that was created without a table, and by `diff` between datasets."""
    write_tree(tmp_path / "data", {"a.txt": b"a"})
    create(tmp_path / "data", f"{tmp_path}/out/x-{{0..}}.tar", workers=0)
    for compare in (lambda: verify(tmp_path / "out", source=tmp_path / "data", join="x.csv"),
                    lambda: diff(tmp_path / "out", tmp_path / "data", join="x.csv")):  # fmt: skip
        with pytest.raises(InvalidRequest, match="created without a table"):
            compare()
    with pytest.raises(InvalidRequest, match="is a dataset"):
        diff(tmp_path / "out", tmp_path / "out", join="x.csv")


def test_samples_selected_by_a_table_are_compared(tmp_path: Path) -> None:
    """With the table, the samples that it selected are compared, too."""
    write_tree(tmp_path / "data", {f"{key}.bin": key.encode() for key in _ROWS})
    _write(tmp_path / "labels.csv", _ROWS)
    create(tmp_path / "data", f"{tmp_path}/out/x-{{0..}}.tar", join=tmp_path / "labels.csv", on="key",
           where="score > 1", workers=0)  # fmt: skip
    report = verify(tmp_path / "out", source=tmp_path / "data", workers=0)
    assert (report.counts, report.unchecked) == ({}, ())
    _write(tmp_path / "labels.csv", {**_ROWS, "a/1": ("text 1", 7)})
    report = verify(tmp_path / "out", source=tmp_path / "data", workers=0)
    assert _found(report) == {("source-missing", "a/1", "")}


def test_a_recorded_table_name_cannot_leave_the_search_folders(tmp_path: Path) -> None:
    """The name in a dataset file is untrusted: only a regular file in a search folder is read."""
    folder, outside = tmp_path / "in", tmp_path / "labels.csv"
    folder.mkdir()
    outside.write_text("key,caption\n", encoding="ascii")
    (folder / "link.csv").symlink_to(outside)
    os.mkfifo(folder / "fifo.csv")
    (folder / "-").write_text("x", encoding="ascii")
    names = ["../labels.csv", str(outside), f"file://{outside}", "http://127.0.0.1:9/x.csv", "s3://bucket/x.csv"]
    names += ["link.csv", "fifo.csv", "", ".", "..", "pipe:ls", "\ud800", "a\0b", "n" * 5000]
    assert [find_table(name, [str(folder)]) for name in (*names, 5, None, ["x"])] == [""] * (len(names) + 3)
    assert find_table("-", [str(folder)]) == f"{folder}/-"
    assert table_folders(["s3://bucket/data", pa.table({}), "a/b.json"], ["gs://x/y", "out"]) == [".", "a", "out"]


def test_errors_name_options_of_the_run(tmp_path: Path) -> None:
    """An error about a recorded option says that the dataset was created with it."""
    write_tree(tmp_path / "data", {"a/0.txt": b"a", "b/1.txt": b"b"})
    write_tree(tmp_path / "flat", {"0.txt": b"a"})
    create(tmp_path / "data", f"{tmp_path}/out/x-{{0..}}.tar", label_from_folder=True, workers=0)
    verbs: list[list[str | Path]] = [["verify", tmp_path / "out", "--source"], ["diff", tmp_path / "out"]]
    for verb in verbs:
        ran = typed(*verb, tmp_path / "flat")
        assert ran.code == 2
        assert f"{tmp_path / 'flat'}: the dataset was created with --label-from-folder: " in ran.err
        assert "--exclude" not in ran.err


def test_diff_names_fields_that_were_not_compared(joined: str) -> None:
    """Without the table, the last line of `diff` and the JSON name the fields that were not compared."""
    if joined != "data":
        return
    ran = typed("diff", "out", joined, "--workers", "0")
    assert ran.code == 0
    assert "equal; not compared: cls, txt" in ran.out
    result = diff("out", joined, workers=0)
    assert result.uncompared == ("cls", "txt")
    assert result.to_json()["uncompared"] == ["cls", "txt"]
    assert "uncompared" not in diff("out", joined, join="kept/labels.csv", workers=0).to_json()


@pytest.mark.parametrize("words", [["verify", "out", "--source"], ["diff", "out"]])
def test_a_wrong_table_is_named(joined: str, words: list[str]) -> None:
    """An error about the table of `--join` names the option and the table, not the source."""
    if joined != "data":
        return
    ran = typed(*words, joined, "--join", "kept/label.csv")
    assert (ran.code, ran.err.rstrip()) == (
        2,
        "shardtool: --join kept/label.csv: no such file or folder; expected a table. Did you mean kept/labels.csv?",
    )
    Path("kept/other.csv").write_text("id,caption\na/0,x\n", encoding="ascii")
    ran = typed(*words, joined, "--join", "kept/other.csv")
    assert ran.code == 2
    assert ran.err.startswith("shardtool: --join kept/other.csv: no column 'key', the key column;")
    assert "--on" not in ran.err


def test_a_lost_value_is_not_replaced_by_another(ending: str, tmp_path: Path) -> None:
    """If a column lost a value, the sample lacks the field in the source, even if the old field had a value."""
    table, before = tmp_path / "t.csv", tmp_path / "y.json"
    rows = pa.table({"key": ["a", "b"], "x": [7, 7], "txt": ["t", "t"]})
    create(rows, str(tmp_path / f"y-{{0..}}.{ending}"), field=("x=x", "txt=txt"), workers=0)
    for score in ("10", ""):
        table.write_text(f"key,score\na,10\nb,{score}\n", encoding="ascii")
        if score:
            reshard(before, str(tmp_path / f"x-{{0..}}.{ending}"), workers=0, join=table, on="key", field="x=score")
    report = verify(tmp_path / "x.json", source=before, workers=0)
    assert _found(report) == {("source-extra", "b", "x")}
