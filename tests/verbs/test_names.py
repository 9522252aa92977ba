"""Keys and fields of any source: accepted names return unchanged, from sidecars and from shards alone."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardtool import (
    CorruptShard,
    CreateOptions,
    InvalidRequest,
    ReshardOptions,
    SampleFailed,
    VerifyOptions,
    create,
    reshard,
    verify,
)
from shardtool.dataset.scan import ShardScanTask, scan_shard
from shardtool.entries.strings import PackedStrings
from shardtool.errors import printable
from shardtool.names import MAX_NAME_BYTES, has_early_dot, name_problem, split_name
from shardtool.select.storable_names import has_dotted_keys
from tests.helpers import existing, members, shards, write_tree
from tests.tfrecords import example as tf_example
from tests.tfrecords import frame

if TYPE_CHECKING:
    from collections.abc import Iterable

MAPPED: dict[str, str] = {}  # what `rename` makes of a key
EXTRA: list[str] = []  # and the field that it adds
PARTS = st.text("ab.\t\n\x1b\x7f\x85é _%-~", min_size=1, max_size=5)
KEYS = st.lists(PARTS, min_size=1, max_size=2).map("/".join)
FIELDS = st.sampled_from(["txt", "TXT", "a.b", "seg.txt", "t\x01t", "é", ".x"])
ENDINGS = st.sampled_from(["tar", "tfrecord"])
SEVERAL = st.lists(KEYS, min_size=1, max_size=4, unique=True)


def rename(sample: dict[str, Any]) -> dict[str, Any]:
    """Give a sample the key in `MAPPED`, and the field in `EXTRA`."""
    return {**sample, "__key__": MAPPED[sample["__key__"]], **dict.fromkeys(EXTRA, b"more")}


def _options(**options: Any) -> CreateOptions:
    return CreateOptions(workers=0, max_count=2, **options)


def _in_shards(folder: Path) -> dict[str, list[str]]:
    """Return the fields of each sample, as a walk over the shards finds them, by the rule that the dataset names."""
    dots = json.loads((folder / "o.json").read_bytes())["shardtool"]["made"]["options"].get("dots", "first")
    result: dict[str, list[str]] = {}
    for path in shards(folder):
        seen, row = scan_shard(ShardScanTask(str(path), dots=dots)), 0
        for key, count in zip(seen.keys, seen.counts, strict=True):
            result[key.decode()] = [seen.names[code].decode() for code in seen.codes[row : row + count]]
            row += count
    return result


def _check(folder: Path, keys: Iterable[str]) -> None:
    """See that a dataset is sound, and has these keys and the same fields with its sidecars and without."""
    report = verify(folder, VerifyOptions(workers=0))
    assert report.findings == ()
    rows = [row for path in sorted(folder.glob("*.index")) for row in pq.read_table(path).to_pylist()]
    result = _in_shards(folder)
    assert set(result) == set(keys)
    assert {row["__key__"]: [field["name"] for field in row["__fields__"]] for row in rows} == result


@given(SEVERAL, FIELDS, st.sampled_from([None, "first", "last"]), st.sampled_from(["", "portable"]), ENDINGS)
@settings(max_examples=15)
@example(["john.smith", "jane.doe"], "txt", None, "", "tar")
@example(["john.smith"], "a.b", "last", "portable", "tar")
@example(["john.smith"], "seg.txt", None, "", "tar")
@example(["john.smith"], "txt", "first", "", "tar")
@example(["a\nb"], "txt", None, "portable", "tar")
def test_a_manifests_keys(keys: list[str], field: str, dots: Any, portable: str, ending: str) -> None:
    """What `create` takes of a manifest, `verify` calls sound; sidecars and shards tell of the same keys and fields."""
    with tempfile.TemporaryDirectory() as name:
        folder, table = Path(name), pa.table({"key": keys, "text": keys})
        options = _options(key="key", field=(f"{field}=text",), meta="none", dots=dots, portable=bool(portable))
        try:
            create(table, f"{folder}/o-{{0..}}.{ending}", options)
        except InvalidRequest:
            assert not shards(folder)
            return
        _check(folder, _in_shards(folder) if portable else keys)


@given(SEVERAL, FIELDS, st.sampled_from(["first", "last"]), st.sampled_from(["", "portable", "skip"]), ENDINGS)
@settings(max_examples=15)
@example(["a\nb", "c"], "txt", "first", "", "tar")
@example(["a\nb", "c"], "txt", "first", "skip", "tfrecord")
@example(["a"], "t\x01t", "first", "portable", "tar")
def test_a_folders_names(keys: list[str], field: str, dots: Any, way: str, ending: str) -> None:
    """What `create` takes of a folder, `verify` calls sound; what it does not, a way out that it names makes so."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "out"
        names = [f"{at}{key}.{field}" for at, key in enumerate(keys)]
        source = write_tree(Path(name) / "in", dict.fromkeys(names, b"x"))
        pairs = {path: split_name(path.rpartition("/")[2].encode(), dots) for path in names}
        result = {path[: path.rfind("/") + 1] + pair[0].decode(): pair[1] for path, pair in pairs.items() if pair}
        unsafe = {key for key, ending_ in result.items() if name_problem(key.encode()) or name_problem(ending_)}
        skip = {"on_error": "skip"} if way == "skip" else {}
        options = _options(dots=dots, portable=way == "portable", hidden=True, **skip)
        try:
            told = create(source, f"{folder}/o-{{0..}}.{ending}", options)
        except InvalidRequest as error:
            assert way != "portable"
            assert way == "" or set(result) == unsafe
            assert unsafe or not result
            named = "portable=True" in error.remedy and "on_error='skip'" in error.remedy
            assert named or way or not unsafe
            return
        assert way or not unsafe
        assert told.samples + (len(unsafe) if way == "skip" else 0) == len(result)
        _check(folder, _in_shards(folder) if way == "portable" else set(result) - unsafe)


@given(
    SEVERAL, st.one_of(st.none(), FIELDS), st.sampled_from([None, "last"]), st.sampled_from(["raise", "skip"]), ENDINGS
)
@settings(max_examples=15)
@example(["v1.5/a.b"], None, None, "raise", "tar")
@example(["v1.5/a.b"], "a.b", "last", "raise", "tar")
@example(["a.b"], None, "last", "raise", "tar")
@example(["a\tb", "c"], None, None, "skip", "tfrecord")
@example(["a"], "TXT", None, "raise", "tar")
@example(["a"], "TXT", None, "skip", "tar")
def test_a_functions_keys(keys: list[str], field: str | None, dots: Any, on_error: Any, ending: str) -> None:
    """What the function of `--map` returns comes back from sound shards, or is refused, or left out and listed."""
    MAPPED.clear()
    MAPPED.update({str(at): key for at, key in enumerate(keys)})
    EXTRA[:] = [] if field in (None, "txt") else [field]
    fields = [name.encode() for name in (*EXTRA, "txt")]
    bad = {key for key in keys if name_problem(key.encode()) or any(map(name_problem, fields))
           or {"", ".", ".."} & set(key.split("/"))}  # fmt: skip
    if ending == "tar":
        bad |= {key for key in keys if has_early_dot(key.encode()) and not dots}
        bad |= {key for key in keys if dots and any(b"." in name for name in fields)}
        bad |= {*keys} if any(name.lower() == "txt" for name in EXTRA) else set()  # readers ignore case
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "out"
        source = write_tree(Path(name) / "in", {f"{at}.txt": b"x" for at in range(len(keys))})
        options = _options(map=f"{__name__}:rename", dots=dots, on_error=on_error)
        try:
            create(source, f"{folder}/o-{{0..}}.{ending}", options)
        except SampleFailed:
            assert bad if on_error == "raise" else bad == set(keys)
            return
        assert not bad or on_error == "skip"
        _check(folder, set(keys) - bad)


@given(SEVERAL, FIELDS, ENDINGS)
@settings(max_examples=15)
@example(["john.smith"], "txt", "tar")
@example(["john.smith"], "a.b", "tar")
@example(["a"], "image/encoded", "tfrecord")
def test_keys_of_a_foreign_tfrecord(keys: list[str], field: str, ending: str) -> None:
    """`verify` accepts what `reshard` writes from other tools' TFRecords, in any format."""
    records = [
        frame(tf_example([(b"__key__", 1, key.encode()), (field.encode(), 1, b"x")])) for key in keys
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        source, folder = Path(name) / "x.tfrecord", Path(name) / "out"
        source.write_bytes(b"".join(records))
        try:
            reshard(source, f"{folder}/o-{{0..}}.{ending}", ReshardOptions(workers=0, max_count=2))
        except InvalidRequest:
            return
        _check(folder, keys)


@pytest.mark.parametrize("length", [MAX_NAME_BYTES, MAX_NAME_BYTES + 1, 2**20 + 1])
def test_long_keys_are_refused_by_name_and_never_cut(length: int, ending: str, tmp_path: Path) -> None:
    """A key of up to the limit comes back whole; a longer one is refused by its name, before anything is written."""
    keys = ["K" * (length - 1) + end for end in "ab"]
    table = pa.table({"key": keys, "text": ["1", "2"]})
    options = _options(key="key", field=("txt=text",), meta="none")
    if length <= MAX_NAME_BYTES:
        create(table, f"{tmp_path}/o-{{0..}}.{ending}", options)
        _check(tmp_path, keys)
        return
    with pytest.raises(InvalidRequest, match=r"such as 'KKK.*expected text of 1 to 4,096 bytes") as caught:
        create(table, f"{tmp_path}/o-{{0..}}.{ending}", options)
    assert len(str(caught.value)) < 1000
    assert not shards(tmp_path)
    records = [frame(tf_example([(b"__key__", 1, key.encode()), (b"txt", 1, b"x")])) for key in keys]
    (tmp_path / "x.tfrecord").write_bytes(b"".join(records))
    with pytest.raises((InvalidRequest, CorruptShard), match=r"the key 'KKK|a key of 1,048,577 bytes") as other:
        reshard(tmp_path / "x.tfrecord", f"{tmp_path}/o-{{0..}}.{ending}", ReshardOptions(workers=0))
    assert len(str(other.value)) < 1000


def test_long_keys_of_a_joined_table(tmp_path: Path) -> None:
    """A key of `--join` that no sample can have matches none, also where a sample has its start, and is shown cut."""
    create(
        pa.table({"key": ["K" * MAX_NAME_BYTES], "text": ["1"]}),
        f"{tmp_path}/o-{{0..}}.tar",
        _options(field=("txt=text",)),
    )
    table = pa.table({"key": ["K" * MAX_NAME_BYTES + "a", "K" * MAX_NAME_BYTES], "new": [1, 2]})
    options = ReshardOptions(workers=0, join=table, on="key")
    told = reshard(tmp_path / "o.json", f"{tmp_path}/r/o-{{0..}}.tar", options)
    (note,) = [note for note in told.notes if "matches no sample" in note]
    assert "1 row" in note
    assert len(note) < 300
    assert pq.read_table(tmp_path / "r/o-0.index").column("new").to_pylist() == [2]


def test_a_long_feature_that_is_no_key(tmp_path: Path) -> None:
    """A megabyte in a feature called `key` is a payload: the sample is called after its shard and number."""
    record = frame(tf_example([(b"key", 1, bytes(2**20 + 1))]))
    (tmp_path / "x.tfrecord").write_bytes(record)
    scan = scan_shard(ShardScanTask(str(tmp_path / "x.tfrecord")))
    assert (scan.keys, scan.lengths.tolist(), scan.error) == ([b"x/000000000"], [2**20 + 1], None)


def test_unsafe_names_are_listed(ending: str, tmp_path: Path) -> None:
    """With `--on-error skip`, a sample whose key or field is unsafe is left out whole, and listed with its file."""
    files = {b"a.txt": b"1", b"b\xff.txt": b"2", b"c\n.txt": b"3", b"d.txt": b"4", b"d.t\x01": b"5", b"e.txt": b"6"}
    source = write_tree(tmp_path / "in", files)
    create(source, f"{tmp_path}/out/o-{{0..}}.{ending}", _options(on_error="skip"))
    rows = [json.loads(line) for line in (tmp_path / "out/o.skipped").read_text(encoding="utf-8").splitlines()]
    assert [row["code"] for row in rows] == ["unsafe-name"] * 3
    assert [row["path"] for row in rows] == [printable(path) for path in (b"b\xff.txt", b"c\n.txt", b"d.t\x01")]
    assert [name for name, _ in members(*shards(tmp_path / "out"))] == ["a.txt", "e.txt"]
    assert verify(tmp_path / "out", VerifyOptions(workers=0, source=source)).findings == ()


def test_a_dot_that_only_the_last_can_tell(tmp_path: Path) -> None:
    """Where only the last dot tells keys from fields, it does, which is noted and recorded, also when resumed."""
    table = pa.table({"key": ["a.b", "c"], "text": ["1", "2"]})
    for if_exists in ("error", "resume"):
        options = _options(key="key", field=("txt=text",), meta="none", **existing(if_exists))
        told = create(table, f"{tmp_path}/o-{{0..}}.tar", options)
        assert any("last dot" in note and "'a.b'" in note for note in told.notes)
    with pytest.raises(InvalidRequest, match="Use dots='last', or make the keys safe with portable=True"):
        create(table, f"{tmp_path}/p-{{0..}}.tar", _options(key="key", field=("txt=text",), meta="none", dots="first"))
    plain = create(table.slice(1), f"{tmp_path}/q-{{0..}}.tar", _options(key="key", field=("txt=text",), meta="none"))
    assert not any("dot" in note for note in plain.notes)


def test_resume_does_not_keep_what_another_rule_would_refuse(tmp_path: Path) -> None:
    """Shards of `--map` under `--dots last` are not taken over by a run by the first dot, which refuses their keys."""
    MAPPED.update({"0": "a.b"})
    EXTRA.clear()
    source = write_tree(tmp_path / "in", {"0.txt": b"x"})
    output, options = f"{tmp_path}/out/o-{{0..}}.tar", {"map": f"{__name__}:rename"}
    create(source, output, _options(dots="last", **options))
    with pytest.raises(SampleFailed, match=r"the key 'a\.b'"):
        create(source, output, _options(resume=True, overwrite=True, **options))


@given(st.lists(st.text("a./", max_size=6), max_size=5))
def test_has_dotted(keys: list[str]) -> None:
    """Many keys have a dot in the way where one of them has."""
    names = [key.encode() for key in keys]
    assert has_dotted_keys(PackedStrings.of(names)) == any(map(has_early_dot, names))


@pytest.mark.parametrize("options", [{"on_error": "skip"}, {"where": "key < 'b'"}, {"head": 1}])
@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_a_field_of_an_excluded_sample_is_not_utf8(options: dict[str, Any], ending: str, tmp_path: Path) -> None:
    """If a sample whose field is not UTF-8 is excluded, the other samples are packed."""
    source = write_tree(tmp_path / "in", {b"a.txt": b"1", b"b.t\xff": b"2"})
    result = create(source, f"{tmp_path}/out/x-{{0..}}.{ending}", CreateOptions(workers=0, **options))
    assert (result.samples, verify(result.dataset_file, VerifyOptions(source=source, workers=0)).sound) == (1, True)
