"""Names expand to datasets, each once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shardtool import CreateOptions, InvalidRequest, create
from shardtool.dataset.dataset_file import parse_dataset
from shardtool.dataset.expand import expand_datasets
from shardtool.request.run_record import RunRecord
from tests.helpers import write_tree

if TYPE_CHECKING:
    from pathlib import Path

SPLITS = CreateOptions(split="train=0.5,val=0.5", max_count=3, workers=0)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two splits in one folder, and the same splits in a folder each; read-only."""
    folder = tmp_path_factory.mktemp("splits")
    source = write_tree(folder / "source", {f"{number:02}.txt": b"%d" % number for number in range(12)})
    create(source, f"{folder}/beside/{{split}}-{{0..}}.tar", SPLITS)
    create(source, f"{folder}/apart/{{split}}/x-{{0..}}.tar", SPLITS)
    return folder


def _expanded_names(argument: Any, folder: Path) -> list[Any]:
    """Return the datasets that an argument names, without the path of `folder`."""
    datasets: list[Any] = [*expand_datasets(argument)]
    prefix = f"{folder}/"
    return [
        dataset.replace(prefix, "") if isinstance(dataset, str) else [name.replace(prefix, "") for name in dataset]
        for dataset in datasets
    ]


BESIDE = ["beside/train.json", "beside/val.json"]
APART = ["apart/train", "apart/val"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["beside"], BESIDE),
        (["beside/*.json"], BESIDE),
        (["beside/{split}.json"], BESIDE),
        (["beside/{split}-{0..}.tar"], ["beside/train-{0..}.tar", "beside/val-{0..}.tar"]),
        (["beside/{split}-%d.tar"], ["beside/train-%d.tar", "beside/val-%d.tar"]),
        (["apart"], APART),
        (["apart/*"], APART),
        (["apart/{split}"], APART),
        (["{split}/val"], ["apart/val"]),
        (["apart/{split}/x.json"], ["apart/train/x.json", "apart/val/x.json"]),
        (["apart/{split}/x-{0..}.tar"], ["apart/train/x-{0..}.tar", "apart/val/x-{0..}.tar"]),
        (["beside/val.json", "apart"], ["beside/val.json", *APART]),
        (["beside/train.json", "beside/val.json", "beside/./train.json"], ["beside/./train.json", "beside/val.json"]),
    ],
)
def test_names_expand_to_datasets(names: list[str], expected: list[str], packed: Path) -> None:
    """A folder, a glob and a name with `{split}` expand to all matching datasets; a list to those of each name."""
    assert _expanded_names([f"{packed}/{name}" for name in names], packed) == expected
    if len(names) == 1:
        assert _expanded_names(f"{packed}/{names[0]}", packed) == expected


@pytest.mark.parametrize(
    "name",
    ["beside/val.json", "apart/val", "beside/*.tar", "beside/val-{0..}.tar", "none", "http://127.0.0.1:9/x.json"],
)
def test_the_name_of_one_dataset_is_returned(name: str, packed: Path) -> None:
    """The name of one dataset, or of none, is returned unchanged."""
    argument = name if "://" in name else packed / name
    assert expand_datasets(argument) == [argument]


def test_a_list_of_all_files_in_a_folder(packed: Path) -> None:
    """All files in a folder expand to each dataset once, with the shards that its dataset file lists."""
    names = sorted(map(str, (packed / "beside").iterdir()))
    assert _expanded_names(names, packed) == BESIDE
    tars = [name for name in names if name.endswith(".tar")]
    assert expand_datasets(tars) == [tars]


def test_unlisted_shards_are_a_dataset(packed: Path, tmp_path: Path) -> None:
    """Unlisted shards are a separate dataset, unless their names match another pattern."""
    shutil.copytree(packed / "beside", tmp_path, dirs_exist_ok=True)
    (tmp_path / "val.json").unlink()
    unlisted = sorted(path.name for path in tmp_path.glob("val-*.tar"))
    assert _expanded_names(tmp_path, tmp_path) == ["train.json", unlisted]
    assert _expanded_names(sorted(map(str, tmp_path.iterdir())), tmp_path) == ["train.json", unlisted]
    for name in unlisted:
        (tmp_path / name).rename(tmp_path / name.replace("val-", "train-9"))
    assert expand_datasets(tmp_path) == [tmp_path]


def test_a_split_pattern_without_matches_is_an_error(packed: Path) -> None:
    """A name with `{split}` and without matches is an error."""
    for name in ("beside/x-{split}.json", "none/{split}.json", "beside/{split}-{0..}.tfrecord", "{split}/x.json"):
        with pytest.raises(InvalidRequest, match="no dataset has such a name"):
            expand_datasets(packed / name)


def test_a_split_pattern_matches_the_splits_of_one_run(packed: Path, tmp_path: Path) -> None:
    """A name with `{split}` matches the splits that a run recorded, and no other dataset file."""
    folder = shutil.copytree(packed / "beside", tmp_path / "run")
    create(packed / "source", f"{folder}/other-{{0..}}.tar", workers=0)
    (folder / "foreign.json").write_text("{}")
    assert _expanded_names(f"{folder}/{{split}}.json", folder) == ["train.json", "val.json"]
    assert _expanded_names(f"{folder}/{{split}}-{{0..}}.tar", folder) == ["train-{0..}.tar", "val-{0..}.tar"]


def test_a_missing_split_is_expanded_names(packed: Path, tmp_path: Path) -> None:
    """A recorded split without a dataset is an error that names the file; a damaged one is opened and reported."""
    folder = shutil.copytree(packed / "beside", tmp_path / "run")
    (folder / "val.json").write_bytes((folder / "val.json").read_bytes()[:200])
    assert _expanded_names(f"{folder}/{{split}}.json", folder) == ["train.json", "val.json"]
    (folder / "val.json").unlink()
    with pytest.raises(
        InvalidRequest, match=r"/run/val\.json does not exist; expected all splits of the run: train, val\."
    ):
        expand_datasets(f"{folder}/{{split}}.json")


def test_splits_of_two_runs_are_rejected(packed: Path, tmp_path: Path) -> None:
    """A name with `{split}` that matches splits of two runs is an error."""
    folder = shutil.copytree(packed / "beside", tmp_path / "run")
    create(packed / "source", f"{folder}/{{split}}-{{0..}}.tar", split="a=0.5,b=0.5", workers=0)
    with pytest.raises(InvalidRequest, match="splits of 2 runs: a, b; train, val"):
        expand_datasets(f"{folder}/{{split}}.json")


def test_splits_that_are_not_recorded(packed: Path, tmp_path: Path) -> None:
    """If dataset files do not list the splits of their run, all matching splits are used."""
    folder = shutil.copytree(packed / "beside", tmp_path / "run")
    create(packed / "source", f"{folder}/other-{{0..}}.tar", workers=0)
    for path in (folder / "train.json", folder / "val.json"):
        file = parse_dataset(path.read_bytes(), path.name)
        made = {name: value for name, value in file.run.document.items() if name != "splits"}
        path.write_bytes(replace(file, run=RunRecord(made)).encode())
    assert _expanded_names(f"{folder}/{{split}}.json", folder) == ["train.json", "val.json"]


def test_an_update_may_add_splits(tmp_path: Path) -> None:
    """A split that an update creates belongs to the existing splits, whether these got samples or not."""
    options: Any = {"split_from_folder": True, "workers": 0}
    names = {f"{split}/{number}.txt": b"1" for split in ("train", "val") for number in range(2)}
    source = write_tree(tmp_path / "source", names)
    create(source, f"{tmp_path}/{{split}}-{{0..}}.tar", **options)
    write_tree(source, {"test/1.txt": b"1", "train/2.txt": b"1"})
    create(source, f"{tmp_path}/{{split}}-{{0..}}.tar", update=True, **options)
    assert _expanded_names(f"{tmp_path}/{{split}}.json", tmp_path) == ["test.json", "train.json", "val.json"]
    recorded = [parse_dataset((tmp_path / f"{split}.json").read_bytes(), "").run.splits for split in ("train", "test")]
    assert recorded == [("test", "train", "val")] * 2
