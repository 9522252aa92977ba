"""Laws of lists of keys: they select what an equal query selects, from any source and in any form."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import InvalidRequest, VerifyOptions, create, diff, extract, reshard, verify
from shardtool.entries.strings import PackedStrings
from shardtool.source.keys_from import match_keys
from tests.helpers import members, shards, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

_KEYS = [f"{top}/{number}" for top in ("cat", "dog") for number in range(6)]
_CHOSEN = ["dog/3", "cat/1", "cat/5"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder of twelve samples."""
    return write_tree(tmp_path / "in", {f"{key}.txt": key.encode() for key in _KEYS})


def _sources(tmp_path: Path, source: Path) -> list[tuple[Any, Any]]:
    dataset = create(source, tmp_path / "all-{0..}.tar").dataset_file
    table = pd.DataFrame({"key": _KEYS, "note": _KEYS})
    return [
        (create, source),
        (reshard, dataset),
        (lambda *words, **more: create(*words, field="txt=note", **more), table),
    ]


_words = st.text("ab é", min_size=1, max_size=4)


@given(st.lists(_words, unique=True, min_size=1), st.data())
def test_a_list_selects_its_keys(keys: list[str], data: st.DataObject) -> None:
    """Exactly the samples with the listed keys are selected, in their own order, for any order of the list."""
    chosen = data.draw(st.lists(st.sampled_from(keys), min_size=1))
    packed = PackedStrings.of(key.encode() for key in keys)
    expected = [index for index, key in enumerate(keys) if key in chosen]
    assert match_keys(packed, chosen)[0].tolist() == expected
    assert match_keys(packed, pa.table({"key": chosen}))[0].tolist() == expected
    missing = data.draw(_words.filter(lambda key: key not in keys))
    with pytest.raises(InvalidRequest, match="1 key not found"):
        match_keys(packed, [*chosen, missing])


def test_a_list_equals_a_query(source: Path, tmp_path: Path) -> None:
    """A list of keys in any form selects the same samples in the same order as a query, from each kind of source."""
    files = {form: tmp_path / f"keys.{form}" for form in ("txt", "csv", "parquet", "jsonl")}
    frame = pd.DataFrame({"n": range(3), "key": _CHOSEN})
    files["txt"].write_text("\ufeff" + "\r\n".join(_CHOSEN) + "\n\n", encoding="utf-8")
    frame.to_csv(files["csv"], index=False)
    pq.write_table(pa.table({"__key__": _CHOSEN}), files["parquet"])
    frame.to_json(files["jsonl"], orient="records", lines=True)
    key_lists: dict[str, Any] = {**files, "list": _CHOSEN, "frame": frame}
    for number, (pack, samples) in enumerate(_sources(tmp_path, source)):
        pack(samples, tmp_path / f"query-{number}" / "out.tar", where=f"key in {_CHOSEN!r}")
        selected = members(*shards(tmp_path / f"query-{number}"))
        assert {data.decode() for _, data in selected} == {*_CHOSEN}
        for form, keys in key_lists.items():
            pack(samples, tmp_path / f"{form}-{number}" / "out.tar", keys_from=keys)
            assert members(*shards(tmp_path / f"{form}-{number}")) == selected, form


def test_unknown_keys(source: Path, tmp_path: Path) -> None:
    """Unknown keys are an error that counts them, shows the first, and names similar keys.

    If a key is known, unknown keys can be skipped.
    """
    keys = [*_CHOSEN, "dog/33", *(f"x{number}" for number in range(8))]
    for number, (pack, samples) in enumerate(_sources(tmp_path, source)):
        output = tmp_path / f"out{number}" / "out.tar"
        with pytest.raises(InvalidRequest, match=r"9 keys not found: dog/33, x0, .* and 4 more.*mean dog/3"):
            pack(samples, output, keys_from=keys)
        with pytest.raises(InvalidRequest, match=r"1 key not found: dog/33.*mean dog/3"):
            pack(samples, output, keys_from=["dog/33"], on_error="skip")
        assert not output.parent.exists()
        result = pack(samples, output, keys_from=keys, on_error="skip")
        assert result.samples == len(_CHOSEN)
        assert any("9 keys not found" in note for note in result.notes)
    (source / "gone.txt").symlink_to("nowhere")  # a skipped sample is not unknown
    result = create(source, tmp_path / "s" / "out.tar", keys_from=["gone", "cat/2"], on_error="skip")
    assert (result.samples, [note for note in result.notes if "not found" in note]) == (1, [])


@pytest.mark.parametrize("columns", [["key", "path"], ["path"], ["bytes"]])
def test_keys_that_a_query_excludes(source: Path, tmp_path: Path, columns: list[str]) -> None:
    """A listed key that `where` excludes is not unknown, wherever a manifest has its keys."""
    paths = [f"{key}.txt" for key in _KEYS]
    values: dict[str, list[Any]] = {"key": _KEYS, "path": paths, "bytes": [path.encode() for path in paths]}
    frame = pd.DataFrame({"n": range(len(_KEYS)), **{name: values[name] for name in columns}})
    options: dict[str, Any] = {"root": source} if columns != ["bytes"] else {"bytes": {"txt": "bytes"}}
    keys = [_KEYS[1], _KEYS[2]] if columns != ["bytes"] else ["000000001", "000000002"]
    result = create(frame, tmp_path / "out.tar", keys_from=keys, where="n != 2", **options)
    report = verify(result.dataset_file, VerifyOptions(source=frame, root=options.get("root")))
    assert (result.samples, report.sound) == (1, True)
    with pytest.raises(InvalidRequest, match="1 key not found: x; "):
        create(frame, tmp_path / "new.tar", keys_from=[*keys, "x"], where="n != 2", **options)
    with pytest.raises(InvalidRequest, match="no sample matches n > 4"):
        create(frame, tmp_path / "new.tar", keys_from=keys, where="n > 4", **options)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("a.csv", "id\ncat/1\n", "no column 'key' among id"), ("a.csv", "key\n\n", "no key"), ("a.txt", "", "no key"),
     ("a.txt", "cat/1\ncat/2\0\n", "a.txt: NUL bytes; expected UTF-8 text"),
     ("a.tsv", "key\tn\n../x\t1\n", "cannot be a key"), ("none.csv", None, "no such file"), ("none", None, "no such")],
)  # fmt: skip
def test_lists_that_cannot_be_used(name: str, text: str | None, message: str, source: Path, tmp_path: Path) -> None:
    """A missing file, a list without keys, and a table without the column are explained; nothing is written."""
    if text is not None:
        (tmp_path / name).write_text(text)
    ran = typed("create", source, tmp_path / "o" / "out.tar", "--keys-from", tmp_path / name)
    assert (ran.code, message in ran.err, (tmp_path / "o").exists()) == (2, True, False), ran.err


def test_a_selection_runs_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer list updates the dataset; `verify` and `diff` compare the selected samples with the source."""
    path, output = tmp_path / "keys.txt", f"{tmp_path}/out/out-{{0..}}.tar"
    path.write_text("cat/1\n")
    assert typed("create", source, output, "--keys-from", path).code == 0
    path.write_text("cat/1\ndog/3\n")
    assert typed("create", source, output, "--keys-from", path, "--update").code == 0
    assert typed("create", source, output, "--update").code == 5
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"cat/1\ndog/3\n")))
    once = create(source, tmp_path / "once.tar", keys_from="-")
    assert dict(members(*shards(tmp_path / "out"))) == dict(members(tmp_path / "once.tar"))
    report = verify(once.dataset_file, VerifyOptions(source=source))
    assert report.sound
    assert report.unchecked == ("samples that only the source has: keys_from='-' selected the samples",)
    assert diff(once.dataset_file, source).same
    (source / "dog" / "3.txt").unlink()
    assert [finding.code for finding in verify(once.dataset_file, VerifyOptions(source=source)).findings] == [
        "source-extra"
    ]


def test_parts_and_plans(source: Path, tmp_path: Path) -> None:
    """Parts with the same list merge to the dataset of one run; a plan file lists the selected samples only."""
    path = tmp_path / "keys.txt"
    path.write_text("\n".join(_CHOSEN))
    create(source, tmp_path / "a" / "out-{0..}.tar", keys_from=path, max_count=1)
    for part in ("2/2", "1/2"):
        create(source, tmp_path / "b" / "out-{0..}.tar", keys_from=path, max_count=1, part=part)
    create(source, tmp_path / "c" / "out-{0..}.tar", keys_from=path, max_count=1, plan_only=tmp_path / "plan")
    create(source, tmp_path / "c" / "out-{0..}.tar", keys_from=path, plan=tmp_path / "plan", max_count=1)
    files = [{item.name: item.read_bytes() for item in (tmp_path / name).iterdir()} for name in "abc"]
    assert files[0] == files[1] == files[2]
    with pytest.raises(InvalidRequest, match="keys_from differs"):
        create(source, tmp_path / "d" / "out-{0..}.tar", max_count=1, plan=tmp_path / "plan")


def test_keys_on_the_command_line(source: Path, tmp_path: Path) -> None:
    """`remove` accepts keys after the datasets; `extract` and `remove` accept `--keys`. Unknown keys change nothing."""
    dataset = create(source, tmp_path / "out-{0..}.tar").dataset_file
    before = members(tmp_path / "out-0.tar")
    for words in (("cat/11",), ("cat/1", "cat/11"), ("--keys", "cat/11"), ("cat/1", "--where", "key > 'd'")):
        ran = typed("remove", dataset, *words)
        assert (ran.code, members(tmp_path / "out-0.tar")) == (2, before), ran
    assert "Did you mean cat/1" in typed("remove", dataset, "cat/11").err
    assert "--keys: an empty key" in typed("remove", dataset, "").err
    folder = typed("remove", dataset, "--keys-from", tmp_path).err
    assert ("not a regular file" in folder, "Did you mean" in folder) == (True, False)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/1").touch()
    ran = typed("remove", dataset, "cat/1", cwd=tmp_path)
    assert (ran.code, "cat/1: an existing file or a dataset" in ran.err, "add --keys" in ran.err) == (2, True, True)
    for words in (("--where", "key > ''"), ("--keys-from", "keys.txt")):
        assert "used with --" in typed("remove", dataset, "cat/1", *words).err
    assert typed("remove", dataset, "cat/1", "dog/2", "--keys", "cat/0").code == 0
    assert typed("remove", dataset, "--keys", "dog/3").code == 0
    gone = ["cat/1", "dog/2", "cat/0", "dog/3"]
    assert [name for name, _ in members(tmp_path / "out-0.tar")] == [f"{key}.txt" for key in _KEYS if key not in gone]
    assert typed("extract", dataset, tmp_path / "x", "--keys", "cat/2", "--keys", "dog/5").code == 0
    assert {str(path.relative_to(tmp_path / "x")) for path in (tmp_path / "x").rglob("[!.]*.txt")} == {
        "cat/2.txt", "dog/5.txt",
    }  # fmt: skip
    assert extract(dataset, tmp_path / "y", keys="cat/3").samples == 1
    assert "1 key not found: cat/1" in typed("extract", dataset, tmp_path / "z", "--keys", "cat/1").err
