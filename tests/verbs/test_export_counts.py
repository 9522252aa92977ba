"""The lists of shards and sample counts that timm and open_clip read, one file per folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from shardtool import CreateOptions, InvalidRequest, OutputExists, VerifyOptions, create, export, index, verify
from tests.helpers import read_tree, shards, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = ("timm", "open-clip")
FILES = {"timm": "_info.json", "open-clip": "sizes.json"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder of seven samples."""
    return write_tree(tmp_path / "source", {f"{at}.txt": b"%d" % at for at in range(7)})


def _pack(source: Path, folder: Path, pattern: str = "x-{0..}.tar", **options: Any) -> Any:
    return create(source, f"{folder}/{pattern}", CreateOptions(**{"workers": 0, "max_count": 3, **options}))


def _split(source: Path, folder: Path, **options: Any) -> Any:
    return _pack(source, folder, "{split}-{0..}.tar", split="val=0.5,train=0.5", max_count=2, **options)


def _lists(folder: Path) -> tuple[Any, Any]:
    return tuple(json.loads((folder / FILES[name]).read_bytes()) for name in FORMATS)


def _counts(folder: Path, split: str) -> dict[str, int]:
    """Return the sample counts of a split's shards, from its dataset file."""
    listed = json.loads((folder / f"{split}.json").read_bytes())["shardlist"]
    return {item["url"]: item["nsamples"] for item in listed}


def test_timm_and_open_clip_read_the_lists(source: Path, tmp_path: Path) -> None:
    """The split `train`, its shards and sample counts are found."""
    _pack(source, tmp_path / "out")
    result = export(tmp_path / "out" / "x.json", FORMATS)
    assert result.files == ("_info.json", "sizes.json")
    names, lengths = ["x-0.tar", "x-1.tar", "x-2.tar"], [3, 3, 1]
    train = {"name": "train", "num_samples": 7, "filenames": names, "shard_lengths": lengths}
    assert _lists(tmp_path / "out") == ({"splits": {"train": train}}, dict(zip(names, lengths, strict=True)))
    assert export(tmp_path / "out" / "x.json", FORMATS).kept == 2


@pytest.mark.parametrize("made_by", ["create", "index"])
def test_the_lists_contain_all_splits(made_by: str, source: Path, tmp_path: Path) -> None:
    """All splits of a run are in the lists, whether `create` writes them or `index` does."""
    folder = tmp_path / "out"
    _split(source, folder, export=FORMATS if made_by == "create" else ())
    if made_by == "index":
        assert typed("index", folder / "val.json", "--export", "timm", "--export", "open-clip").code == 0
    info, sizes = _lists(folder)
    assert list(info["splits"]) == ["train", "val"]
    for split, one in info["splits"].items():
        assert dict(zip(one["filenames"], one["shard_lengths"], strict=True)) == _counts(folder, split)
        assert (one["name"], one["num_samples"]) == (split, sum(_counts(folder, split).values()))
    assert sizes == _counts(folder, "train") | _counts(folder, "val")
    assert export(folder / "train.json", FORMATS).kept == 2
    for given in ("{split}.json", "*.json", "."):  # none of these names the lists
        assert typed("verify", given, cwd=folder).code == 0


@pytest.mark.parametrize("name", FORMATS)
def test_a_stale_list_is_deleted(name: str, source: Path, tmp_path: Path) -> None:
    """A run that changes the sample count of a shard deletes the list, and says how to recreate it."""
    folder, file = tmp_path / "out", tmp_path / "out" / FILES[name]
    _pack(source, folder, export=(name,))
    _pack(source, folder, shuffle=True, overwrite=True)
    assert file.exists()  # as many samples in each shard as before
    result = _pack(source, folder, max_count=4, overwrite=True)
    assert not file.exists()
    assert [note for note in result.notes if "indexes deleted" in note and repr(name) in note]
    _pack(source, folder, max_count=3, overwrite=True, export=(name,))
    (source / "8.txt").write_bytes(b"8")
    (source / "9.txt").write_bytes(b"9")
    (source / "99.txt").write_bytes(b"99")  # fills the last shard and starts another
    _pack(source, folder, resume=True)
    assert not file.exists()
    _pack(source, folder, resume=True, export=(name,))
    assert verify(folder, VerifyOptions(workers=0)).sound


def test_an_incomplete_list_is_deleted(source: Path, tmp_path: Path) -> None:
    """A list that lacks a shard is deleted by a run, and reported by `verify`."""
    folder = tmp_path / "out"
    _pack(source, folder)
    (folder / "sizes.json").write_text('{"x-0.tar": 3, "x-1.tar": 3}')
    assert verify(folder / "x.json", VerifyOptions(workers=0)).counts == {"export-stale": 1}
    _pack(source, folder, overwrite=True)
    assert not (folder / "sizes.json").exists()


@pytest.mark.parametrize("name", FORMATS)
def test_after_an_append(name: str, source: Path, tmp_path: Path) -> None:
    """An append renews the list that covers its dataset, and changes no other list or file."""
    folder = tmp_path / "out"
    _pack(source, folder, export=(name,))
    more = write_tree(tmp_path / "more", {"new.txt": b"1"})
    _pack(more, folder, append=True)
    assert f'"{shards(folder)[-1].name}"' in (folder / FILES[name]).read_text()
    assert verify(folder / "x.json", VerifyOptions(workers=0)).unchecked == ()
    other = '{"splits": {"train": {"filenames": ["y-0.tar"], "shard_lengths": [1]}}}'
    for at, content in enumerate(['{"y-0.tar": 3}', other, "mine"]):
        (folder / FILES[name]).write_text(content)
        (more / f"more-{at}.txt").write_bytes(b"1")
        _pack(more, folder, include=(f"more-{at}.txt",), append=True)
        assert (folder / FILES[name]).read_text() == content


@pytest.mark.parametrize("name", FORMATS)
def test_a_wrong_list_is_a_finding(name: str, source: Path, tmp_path: Path) -> None:
    """`verify` reports a list with a wrong sample count."""
    folder = tmp_path / "out"
    _pack(source, folder, export=(name,))
    path = folder / FILES[name]
    path.write_text(path.read_text().replace("3", "4", 1 if name == "open-clip" else -1))
    (finding,) = verify(folder, VerifyOptions(workers=0)).findings
    assert (finding.code, finding.file) == ("export-stale", FILES[name])
    assert "`shardtool index x.json --export FORMAT --overwrite`" in typed("verify", "x.json", cwd=folder).out
    (folder / "x-1.index").unlink()
    assert "`shardtool verify x.json --repair`" in typed("verify", "x.json", cwd=folder).out


@pytest.mark.parametrize("content", ['{"small": 1, "large": 2}', "[1]", "{", "[" * 5000, '{"splits": [1]}', "null"])
@pytest.mark.parametrize("name", FORMATS)
def test_other_files_are_kept(name: str, content: str, source: Path, tmp_path: Path) -> None:
    """A file of that name that lists no shard of the dataset is neither changed nor reported."""
    folder = tmp_path / "out"
    path = write_tree(folder, {FILES[name]: content.encode()}) / FILES[name]
    with pytest.raises(OutputExists, match=r"or replace these files with overwrite=True\.|other shards"):
        _pack(source, folder, export=(name,))
    _pack(source, folder)
    _pack(source, folder, max_count=2, overwrite=True)
    assert verify(folder, VerifyOptions(workers=0)).sound
    with pytest.raises(OutputExists, match=r"overwrite=True|other shards"):
        export(folder / "x.json", name)
    assert path.read_text() == content


@pytest.mark.parametrize("name", FORMATS)
def test_two_datasets_cannot_share_a_list(name: str, source: Path, tmp_path: Path) -> None:
    """A list of another dataset's shards is refused before anything is written."""
    folder = tmp_path / "out"
    _pack(source, folder, export=(name,))
    before = read_tree(folder)
    with pytest.raises(OutputExists, match=rf"{FILES[name]}.*x-0\.tar.*or delete {FILES[name]}"):
        _pack(source, folder, "y-{0..}.tar", export=(name,), overwrite=True)
    assert read_tree(folder) == before


def test_clashing_names_are_refused(source: Path, tmp_path: Path) -> None:
    """The list cannot have the name of the dataset file, nor a split a name that timm reads as shards."""
    with pytest.raises(InvalidRequest, match=r"sizes\.json, the name of the dataset file"):
        _pack(source, tmp_path / "out", "sizes-{0..}.tar", export=("open-clip",))
    assert not (tmp_path / "out").exists()
    options: dict[str, Any] = {"split": "start=0.5,rest=0.5"}
    with pytest.raises(InvalidRequest, match="the split start, which timm would read as a shard name"):
        _pack(source, tmp_path / "out", "{split}-{0..}.tar", **options, export=("timm",))
    assert not (tmp_path / "out").exists()
    _pack(source, tmp_path / "out", "{split}-{0..}.tar", **options)
    with pytest.raises(InvalidRequest, match="the split start, which timm would read as a shard name"):
        export(tmp_path / "out" / "rest.json", "timm")


def test_index_writes_the_lists(source: Path, tmp_path: Path) -> None:
    """Shards of another tool get the lists too, and `--help` shows both formats."""
    _pack(source, tmp_path / "ours")
    (tmp_path / "theirs").mkdir()
    for path in shards(tmp_path / "ours"):
        (tmp_path / "theirs" / path.name).write_bytes(path.read_bytes())
    made = index(tmp_path / "theirs").dataset_file
    assert export(made, "open-clip").files == ("sizes.json",)
    shown = typed("index", "--help").out
    assert all(f"{name} " in shown and FILES[name] in shown for name in FORMATS)
