"""Laws of fields, columns and samples that are chosen alike of a folder and of datasets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from shardtool import (
    CreateOptions,
    InvalidRequest,
    ReshardOptions,
    SampleFailed,
    VerifyOptions,
    create,
    reshard,
    verify,
)
from tests.helpers import members, shards, sidecar, typed, write_tree

KINDS = {"a/1": "cat", "a/2": "dog", "b/3": "cat", "b/4": None}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Yield a folder with four samples: images with two extensions, and JSON about each."""
    files: dict[str, bytes] = {}
    for at, (key, kind) in enumerate(KINDS.items()):
        files[f"{key}.{'JPEG' if at % 2 else 'jpg'}"] = key.encode() * 9
        messages = {"kind": kind, "width": 100 * at, "ratio": at / 2, "good": at > 1, "box": [1], "more": {"x": 1}}
        files[f"{key}.json"] = json.dumps(messages).encode()
    return write_tree(tmp_path / "in", files)


def _options(**options: Any) -> CreateOptions:
    return CreateOptions(**{"workers": 0, **options})


def _create(source: Path, output: Path, **options: Any) -> Any:
    return create(source, output / "out-{0..}.tar", _options(**options))


def _metadata(folder: Path) -> dict[str, dict[str, Any]]:
    rows = [row for shard in shards(folder) for row in pq.read_table(folder / sidecar(shard.name)).to_pylist()]
    return {row["__key__"]: {name: row[name] for name in row if name[:2] != "__"} for row in rows}


def _sound(folder: Path, source: Path | list[Path]) -> tuple[str, ...]:
    """Return what `verify` did not check; it finds nothing."""
    report = verify(folder / "out.json", VerifyOptions(workers=0, source=source))
    assert report.findings == ()
    return report.unchecked


TABLE = pd.DataFrame({"id": ["a/1", "b/4"], "label": ["x", "y"], "width": [7, 8]})


@pytest.mark.parametrize(
    "options",
    [
        {"join": TABLE, "on": "id", "where": "width < 300", "field": {"json": "label"}, "columns_from": ("json",)},
        {"join": TABLE, "on": "id", "where": "label.notna()", "field": {"cls": "label"}, "classes": ("cls",)},
        {"columns_from": ("json",), "select_fields": ("jpg", "JPEG"), "sort_by": "width", "descending": True},
        {"columns_from": ("json",), "drop_fields": ("json",), "where": "good", "field": {"cls": "width"}},
        {"rename_fields": {"jpg": "JPEG", "a.json": "json"}, "where": "size > 100", "sort_by": "size"},
    ],
)
def test_both_verbs_do_the_same_in_one_order(options: dict[str, Any], source: Path, tmp_path: Path) -> None:
    """`create` of a folder makes the samples that `reshard` makes of its dataset, with the same options."""
    create(source, tmp_path / "all-{0..}.tar", _options())
    made = _create(source, tmp_path / "o", **options)
    again = reshard(tmp_path / "all.json", tmp_path / "p" / "out-{0..}.tar", ReshardOptions(workers=0, **options))
    assert made.fingerprint == again.fingerprint
    assert [*_metadata(tmp_path / "o").items()] == [*_metadata(tmp_path / "p").items()]


# A table of columns.


@pytest.mark.parametrize("on_keys", [pytest.param(True, id="keys"), pytest.param(False, id="paths")])
def test_a_folder_and_a_table(source: Path, tmp_path: Path, *, on_keys: bool) -> None:
    """Samples seek their row by key, or by the path of a file, and it becomes metadata; both sides are counted."""
    ids = ["b/3", "a/1", "x/9"] if on_keys else ["b/3.jpg", "a/1.jpg", "x/9.jpg"]
    table = pd.DataFrame({"id": ids, "label": ["two", "one", "none"], "n": [3, 1, 9]})
    made = _create(
        source, tmp_path / "o", join=table, on="id", where="label.notna()", field=("cls=label",), classes=("cls",)
    )
    assert _metadata(tmp_path / "o") == {
        "a/1": {"label": "one", "n": 1, "cls": 0},
        "b/3": {"label": "two", "n": 3, "cls": 1},
    }
    result = dict(members(*shards(tmp_path / "o")))
    assert (result["a/1.cls"], result["b/3.cls"]) == (b"0", b"1")
    assert ("file paths" in " ".join(made.notes)) is not on_keys
    assert "2 of 4 samples have no row in DataFrame, such as 'a/2', 'b/4'" in made.notes
    assert f"1 row of DataFrame matches no sample, such as '{ids[2]}'" in made.notes


def test_two_rows_for_one_sample_by_path(source: Path) -> None:
    """Where a table has a row for each of two files of a sample, neither is taken."""
    table = pd.DataFrame({"file": ["a/1.jpg", "a/1.json"], "n": [1, 2]})
    with pytest.raises(InvalidRequest, match=r"two rows for files of one sample, such as 'a/1\.jpg', 'a/1\.json'"):
        create(source, "out-{0..}.tar", _options(join=table, on="file"), dry_run=True)


def test_no_row_matches_a_file(source: Path) -> None:
    """Where no row matches, the message shows a key, and a path."""
    table = pd.DataFrame({"file": ["1.jpg"], "n": [1]})
    with pytest.raises(
        InvalidRequest, match=r"contains '1\.jpg'; expected keys, such as 'a/1', or paths of files, such as "
    ):
        create(source, "out-{0..}.tar", _options(join=table, on="file"), dry_run=True)


def test_paths_from_a_higher_folder(source: Path) -> None:
    """Where the paths of a table start in a folder above the source, the message names that folder and the option."""
    table = pd.DataFrame({"file": ["all/in/a/1.jpg"], "n": [1]})
    with pytest.raises(InvalidRequest, match=r"start with all/in/: pack the folder .* include=\('all/in/\*\*',\)"):
        create(source, "out-{0..}.tar", _options(join=table, on="file"), dry_run=True)


def test_verify_against_a_joined_table(source: Path, tmp_path: Path) -> None:
    """`verify --source` compares all but joined columns; `--repair` says why it cannot rebuild shards."""
    table = pd.DataFrame({"id": list(KINDS)[:3], "label": ["x", "y", "x"]})
    options: dict[str, Any] = {"join": table, "on": "id", "field": {"cls": "label"}, "classes": ("cls",)}
    _create(source, tmp_path / "o", where="label == 'x'", **options)
    unchecked = " ".join(_sound(tmp_path / "o", source))
    assert "field cls against the source" in unchecked
    assert "--where" in unchecked or "where depended on" in unchecked
    shards(tmp_path / "o")[0].unlink()
    report = verify(tmp_path / "o" / "out.json", VerifyOptions(workers=0, source=source, repair=True))
    assert any("created with join DataFrame: rerun the original command" in item for item in report.unchecked)
    assert _create(source, tmp_path / "o", where="label == 'x'", resume=True, **options).kept == 0
    _sound(tmp_path / "o", source)


# Columns of JSON fields.


def test_columns_of_json_files(source: Path, tmp_path: Path) -> None:
    """The texts, numbers and truths at the top become typed columns, for queries and fields; `verify` agrees."""
    _create(
        source, tmp_path / "o", columns_from=("json",), drop_fields=("json",), where="width >= 100",
        field=("txt=width",), rename_fields=("jpg=JPEG",),
    )  # fmt: skip
    assert _metadata(tmp_path / "o") == {
        "a/2": {"kind": "dog", "width": 100, "ratio": 0.5, "good": False, "txt": 100},
        "b/3": {"kind": "cat", "width": 200, "ratio": 1.0, "good": True, "txt": 200},
        "b/4": {"kind": None, "width": 300, "ratio": 1.5, "good": True, "txt": 300},
    }
    assert {name.partition(".")[2] for name, _ in members(*shards(tmp_path / "o"))} == {"jpg", "txt"}
    assert _sound(tmp_path / "o", source) == ()


def test_json_columns_divide(source: Path, tmp_path: Path) -> None:
    """Splits stratified by a folder's JSON keep the class proportions, and verify against the folder."""
    output = tmp_path / "o" / "{split}-{0..}.tar"
    create(source, output, _options(columns_from=("json",), split="train=0.5,val=0.5", stratify="good"))
    tables = [pq.read_table(path).to_pylist() for path in sorted((tmp_path / "o").glob("*.index"))]
    assert [sorted(row["good"] for row in rows) for rows in tables] == [[False, True]] * 2
    for split in ("train", "val"):
        options = VerifyOptions(workers=0, source=source)
        assert verify(tmp_path / "o" / f"{split}.json", options).findings == ()


def test_a_folder_in_the_order_of_a_column(source: Path, tmp_path: Path) -> None:
    """A folder's samples have the requested order in each split that its folders name, and are valid."""
    options = _options(columns_from=("json",), sort_by="width", descending=True, portable=True)
    create(source, tmp_path / "o" / "out-{0..}.tar", options)
    assert [*_metadata(tmp_path / "o")] == ["b/4", "b/3", "a/2", "a/1"]
    assert _sound(tmp_path / "o", source) == ()
    changes: dict[str, Any] = {"sort_by": "key", "descending": True, "split_from_folder": True}
    create(source, tmp_path / "p" / "{split}-{0..}.tar", _options(include=("*.JPEG", "*.jpg"), **changes))
    assert [*_metadata(tmp_path / "p")] == ["a/2", "a/1", "b/4", "b/3"]


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_columns_of_json_in_shards(ending: str, source: Path, tmp_path: Path) -> None:
    """`reshard` finds in shards the columns that `create` finds in files, and sorts by them; no content changes."""
    first, second = tmp_path / f"first-{{0..}}.{ending}", tmp_path / "o" / f"out-{{0..}}.{ending}"
    before = create(source, first, _options(max_count=3))
    options = ReshardOptions(columns_from=("json",), sort_by="width", descending=True, workers=0)
    after = reshard(tmp_path / "first.json", second, options)
    assert after.fingerprint == before.fingerprint
    assert [(key, row["width"]) for key, row in _metadata(tmp_path / "o").items()] == [
        ("b/4", 300), ("b/3", 200), ("a/2", 100), ("a/1", 0),
    ]  # fmt: skip
    assert _sound(tmp_path / "o", tmp_path / "first.json") == ()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"{bad", "not JSON: Expecting"),
        (b"", "not JSON: Expecting"),
        (b"[1]", "a JSON list, not an object"),
        (b'{"n": 9223372036854775808}', "a whole number over 2^63: 'n'"),
        (b'{"n": "\\ud800"}', "text that is not valid UTF-8"),
        (b"\xff\xfe{", "no"),
        (b"[" * 99_999, "nested too deeply"),
        (json.dumps(dict.fromkeys(map(str, range(99)), "x" * 30_000)).encode(), "more than 1,048,576"),
    ],
)
def test_bad_json(payload: bytes, message: str, source: Path, tmp_path: Path) -> None:
    """A field that is no JSON object fails its sample: the run ends, or leaves it out, and `verify` agrees."""
    (source / "a/2.json").write_bytes(payload)
    with pytest.raises(SampleFailed, match=r"a/2\.json") as caught:
        _create(source, tmp_path / "o", columns_from=("json",))
    assert message in str(caught.value)
    made = _create(source, tmp_path / "o", columns_from=("json",), on_error="skip")
    assert (made.samples, made.skipped) == (3, 1)
    row = json.loads((tmp_path / "o" / "out.skipped").read_text())
    assert (row["key"], row["path"], row["code"]) == ("a/2", "a/2.json", "bad-json")
    _sound(tmp_path / "o", source)


def test_damaged_json_in_a_shard(source: Path, tmp_path: Path) -> None:
    """A JSON field with a wrong checksum selects no sample, and is reported as damaged."""
    create(source, tmp_path / "first-{0..}.tar", _options())
    shard = tmp_path / "first-0.tar"
    data = shard.read_bytes()
    shard.write_bytes(data.replace(b'"width": 100', b'"width": 999'))
    options = ReshardOptions(columns_from=("json",), where="width < 500", workers=0)
    with pytest.raises(SampleFailed, match=r"first-0\.tar \(field 'json': the CRC-32C"):
        reshard(tmp_path / "first.json", tmp_path / "o" / "out-{0..}.tar", options)


def test_bad_json_beside_damaged_json(source: Path, tmp_path: Path) -> None:
    """Invalid JSON fails its sample, also next to a damaged JSON field."""
    (source / "a/2.json").write_bytes(b"{bad")
    create(source, tmp_path / "first-{0..}.tar", _options())
    shard = tmp_path / "first-0.tar"
    shard.write_bytes(shard.read_bytes().replace(b'"width": 0,', b'"width": 9,'))
    options = ReshardOptions(columns_from=("json",), on_error="skip", workers=0)
    reshard(tmp_path / "first.json", tmp_path / "o" / "out-{0..}.tar", options)
    rows = map(json.loads, (tmp_path / "o" / "out.skipped").read_text().splitlines())
    assert {row["key"]: row["code"] for row in rows} == {"a/1": "corrupt", "a/2": "bad-json"}


def test_values_of_several_kinds_are_text(tmp_path: Path) -> None:
    """A name with numbers and texts becomes a text column, and very long values become none; notes say so."""
    messages = ['{"id": 7, "n": 1, "m": null}', '{"id": "x", "n": 0.5, "m": NaN}', '{"id": true, "m": 2}', '{"__": 1}']
    source = write_tree(tmp_path / "in", {f"{at}.json": text.encode() for at, text in enumerate(messages[:3])})
    made = _create(source, tmp_path / "o", columns_from=("json",))
    assert [*_metadata(tmp_path / "o").values()] == [
        {"id": "7", "n": 1.0, "m": None}, {"id": "x", "n": 0.5, "m": None}, {"id": "true", "n": None, "m": 2},
    ]  # fmt: skip
    assert "column 'id' of field 'json' is stored as text, because it mixes 1 boolean, 1 number, 1 text" in made.notes
    (source / "3.json").write_text(messages[3])
    with pytest.raises(InvalidRequest, match="two underscores"):
        _create(source, tmp_path / "p", columns_from=("json",))
    image = {"0.json": json.dumps({"label": "x", "imageData": "A" * 40_000}).encode()}
    made = _create(write_tree(tmp_path / "labelme", image), tmp_path / "q", columns_from=("json",))
    assert _metadata(tmp_path / "q") == {"0": {"label": "x"}}
    assert "1 text of more than 32,768 characters ignored: 'imageData' of field 'json'" in made.notes
    lists = write_tree(tmp_path / "lists", {"0.json": b'{"box": [1]}'})
    with pytest.raises(InvalidRequest, match="no text, number or boolean; expected plain"):
        _create(lists, tmp_path / "p", columns_from=("json",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns_from": ("jsn",)}, "columns_from: no field 'jsn'.*Did you mean 'json'"),
        ({"select_fields": ("png",)}, "select_fields: no field 'png'"),
        ({"rename_fields": {"jpg": "json"}}, "would all be renamed to 'jpg'"),
        ({"field": {"cls": "kind"}}, "field: no column 'kind'.*with join, or from JSON fields with columns_from"),
        ({"on": "key"}, "on: no table; expected join, too"),
        ({"join": TABLE}, "no column 'key' among id, label, width; .* on='COLUMN'"),
        ({"classes": ("cls",)}, "classes: no field 'cls'"),
    ],
)
def test_requests_that_make_no_sense(options: dict[str, Any], message: str, source: Path) -> None:
    """What a folder has not is refused by name, before anything is written."""
    with pytest.raises(InvalidRequest, match=message):
        create(source, "out-{0..}.tar", _options(**options), dry_run=True)


@pytest.mark.parametrize(
    "options", [{"columns_from": ("json",)}, {"rename_fields": {"b": "a"}}, {"join": "t.csv", "on": "id"}]
)
def test_a_manifest_has_columns_of_its_own(options: dict[str, Any]) -> None:
    """Of a manifest, options that make columns and rename fields are refused by name."""
    with pytest.raises(InvalidRequest, match=f"{next(iter(options))}: the source is a manifest"):
        create(
            pd.DataFrame({"id": [1], "txt": ["x"]}),
            "out-{0..}.tar",
            _options(field=("txt=txt",), **options),
            dry_run=True,
        )


# Archives and several folders.


def _asked(**options: Any) -> dict[str, Any]:
    return {
        "columns_from": ("json",), "rename_fields": {"jpg": "JPEG"}, "label_from_folder": True,
        "where": "path.str.endswith('JPEG') or width == 200", **options,
    }  # fmt: skip


@pytest.mark.parametrize("form", ["zip", "tar", "gztar"])
def test_an_archive_of_the_folder(form: str, source: Path, tmp_path: Path) -> None:
    """An archive has the fields, columns and joined rows of its folder; a compressed one has no columns."""
    archive = Path(shutil.make_archive(str(tmp_path / "files"), form, source))
    table = pd.DataFrame({"file": ["a/2.JPEG", "b/3.jpg", "b/4.JPEG"], "label": ["x", "y", "z"]})
    options = _asked(join=table, on="file", field={"txt": "label"})
    if form == "gztar":
        with pytest.raises(InvalidRequest, match="columns_from: an archive that can only be read in sequence"):
            _create(archive, tmp_path / "p", **options)
        options |= {"columns_from": (), "where": "label.notna()"}
    made, again = _create(source, tmp_path / "o", **options), _create(archive, tmp_path / "p", **options)
    assert (made.samples, made.fingerprint) == (3, again.fingerprint)
    assert _metadata(tmp_path / "o") == _metadata(tmp_path / "p")
    _sound(tmp_path / "p", archive)


def test_several_folders(source: Path, tmp_path: Path) -> None:
    """Files of several folders get other names, and JSON in one of them tells of samples in all, as in one folder."""
    for item in [*source.rglob("*.json")]:
        other = tmp_path / "said" / item.relative_to(source)
        other.parent.mkdir(parents=True, exist_ok=True)
        item.rename(other)
    made = create([source, tmp_path / "said"], tmp_path / "o" / "out-{0..}.tar", _options(**_asked()))
    assert {name.partition(".")[2] for name, _ in members(*shards(tmp_path / "o"))} == {"cls", "jpg", "json"}
    assert [*_metadata(tmp_path / "o")] == ["a/2", "b/3", "b/4"]
    report = verify(tmp_path / "o" / "out.json", VerifyOptions(workers=0, source=[source, tmp_path / "said"]))
    assert (report.findings, made.samples) == ((), 3)


# Fields.


def test_renamed_files(source: Path, tmp_path: Path) -> None:
    """Files keep their bytes under other names, also where labels are added, and `--resume` keeps the shards."""
    options: dict[str, Any] = {"rename_fields": {"jpg": "JPEG", "meta.json": "json"}, "label_from_folder": True}
    _create(source, tmp_path / "o", **options)
    result = dict(members(*shards(tmp_path / "o")))
    assert {name.partition(".")[2] for name in result} == {"cls", "jpg", "meta.json"}
    assert result["b/4.jpg"] == (source / "b/4.JPEG").read_bytes()
    assert _sound(tmp_path / "o", source) == ()
    assert _create(source, tmp_path / "o", resume=True, **options).kept == 1
    (source / "b/4.JPEG").write_bytes(b"other")
    report = verify(tmp_path / "o" / "out.json", VerifyOptions(workers=0, source=source))
    assert [(finding.code, finding.key, finding.field) for finding in report.findings] == [
        ("source-differs", "b/4", "jpg")
    ]


def test_paths_of_renamed_fields(source: Path) -> None:
    """A query sees the path of a file for any field name, and the sizes of files only."""
    query = "path == 'b/4.JPEG' and size == 0"
    size = sum((source / f"b/4.{ending}").stat().st_size for ending in ("JPEG", "json"))
    options = {"rename_fields": ("a=JPEG",), "label_from_folder": True}
    with pytest.raises(InvalidRequest, match="no sample matches"):
        create(source, "out-{0..}.tar", _options(where=query, **options), dry_run=True)
    assert (
        create(source, "out-{0..}.tar", _options(where=query.replace("0", f"{size}"), **options), dry_run=True)
        .planned[0]
        .samples
        == 1
    )


def test_samples_without_the_fields_that_were_selected(source: Path, tmp_path: Path) -> None:
    """A sample that has none of the fields selected is listed as left out, and is no failure."""
    made = _create(source, tmp_path / "o", select_fields=("jpg",))
    assert (made.samples, made.skipped) == (2, 2)
    assert _sound(tmp_path / "o", source) == ()


def test_texts_are_not_appended_where_classes_are_numbered(source: Path, tmp_path: Path) -> None:
    """Without `--classes`, an append onto numbered labels is refused; with it, they get the numbers that there are."""
    table = pd.DataFrame({"id": list(KINDS), "label": ["x", "y", "y", "x"]})
    options: dict[str, Any] = {"join": table, "on": "id", "field": ("cls=label",)}
    _create(source, tmp_path / "o", classes=("cls",), include=("a/*",), **options)
    with pytest.raises(InvalidRequest, match=r"field cls: texts in the new samples; expected class numbers"):
        _create(source, tmp_path / "o", append=True, include=("b/*",), **options)
    given = {"classes": ("cls",), "classes_from": tmp_path / "o" / "out.json"}
    _create(source, tmp_path / "o", append=True, include=("b/*",), **options, **given)
    assert [data for name, data in members(*shards(tmp_path / "o")) if name[-3:] == "cls"] == [b"0", b"1", b"1", b"0"]


def test_the_command(source: Path, tmp_path: Path) -> None:
    """A folder, a table and several field names in one option work on the command line."""
    (tmp_path / "labels.csv").write_text("id,label\na/1,x\na/2,y\nb/3,x\nb/4,y\n")
    ran = typed(
        "create", source, tmp_path / "o" / "out-{0..}.tar", "--join", tmp_path / "labels.csv", "--on", "id", "--field",
        "cls=label", "--classes", "cls", "--rename-field", "jpg=JPEG,meta.json=json", "--columns-from", "json",
        "--where", "width > 0", "--quiet", "--workers", "0",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert sorted({name.partition(".")[2] for name, _ in members(*shards(tmp_path / "o"))}) == [
        "cls",
        "jpg",
        "meta.json",
    ]
    recorded = json.loads((tmp_path / "o" / "out.json").read_text())["shardtool"]["made"]["options"]
    assert recorded["join"] == "labels.csv"
    assert recorded["rename_fields"] == ["JPEG=jpg", "json=meta.json"]


@pytest.mark.parametrize(("captions", "order"), [(["x", "y"], ["a", "b"]), (["x", None], ["b", "a"])])
def test_a_sample_has_no_path_if_a_column_replaces_its_only_file(
    captions: list[str | None], order: list[str], tmp_path: Path
) -> None:
    """The path is neither an error nor the path of the next sample."""
    source = write_tree(tmp_path / "in", {"a.txt": b"1", "b.txt": b"2"})
    table = pd.DataFrame({"key": ["a", "b"], "caption": captions})
    _create(source, tmp_path / "out", join=table, field={"txt": "caption"}, sort_by="path", descending=True)
    assert [*_metadata(tmp_path / "out")] == order
