"""Laws of which datasets are meant: what is given together is divided into the datasets that there are, each once."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from shardtool import CreateOptions, InvalidRequest, create
from shardtool.dataset.find import given_datasets
from tests.helpers import write_tree

if TYPE_CHECKING:
    from pathlib import Path

SPLITS = CreateOptions(split="train=0.5,val=0.5", max_count=3, workers=1)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give two splits in one folder, and the same in a folder each; not to be changed."""
    folder = tmp_path_factory.mktemp("splits")
    source = write_tree(folder / "source", {f"{at:02}.txt": b"%d" % at for at in range(12)})
    create(source, f"{folder}/beside/{{split}}-{{0..}}.tar", SPLITS)
    create(source, f"{folder}/apart/{{split}}/x-{{0..}}.tar", SPLITS)
    return folder


def _named(given: Any, folder: Path) -> list[Any]:
    """Return the datasets that are meant, by their names in `folder`."""
    found: list[Any] = [*given_datasets(given)]
    top = f"{folder}/"
    return [one.replace(top, "") if isinstance(one, str) else [name.replace(top, "") for name in one] for one in found]


BESIDE = ["beside/train.json", "beside/val.json"]
APART = ["apart/train", "apart/val"]


@pytest.mark.parametrize(
    ("names", "meant"),
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
def test_the_datasets_that_names_mean(names: list[str], meant: list[str], packed: Path) -> None:
    """A folder, a glob and a name with `{split}` mean all datasets there; a list, those of each of its names."""
    assert _named([f"{packed}/{name}" for name in names], packed) == meant
    if len(names) == 1:
        assert _named(f"{packed}/{names[0]}", packed) == meant


@pytest.mark.parametrize(
    "name",
    ["beside/val.json", "apart/val", "beside/*.tar", "beside/val-{0..}.tar", "none", "http://127.0.0.1:9/x.json"],
)
def test_one_dataset_is_what_was_given(name: str, packed: Path) -> None:
    """What means one dataset, or none that is there, comes back as it was given."""
    given = name if "://" in name else packed / name
    assert given_datasets(given) == [given]


def test_all_that_a_shell_makes_of_a_glob(packed: Path) -> None:
    """Of all files in a folder, each dataset is meant once, and shards that a dataset file lists with it."""
    names = sorted(map(str, (packed / "beside").iterdir()))
    assert _named(names, packed) == BESIDE
    tars = [name for name in names if name.endswith(".tar")]
    assert given_datasets(tars) == [tars]


def test_shards_that_no_dataset_file_tells_of(packed: Path, tmp_path: Path) -> None:
    """They are a dataset of their own, unless their name is of the pattern of one that is there."""
    shutil.copytree(packed / "beside", tmp_path, dirs_exist_ok=True)
    (tmp_path / "val.json").unlink()
    rest = sorted(path.name for path in tmp_path.glob("val-*.tar"))
    assert _named(tmp_path, tmp_path) == ["train.json", rest]
    assert _named(sorted(map(str, tmp_path.iterdir())), tmp_path) == ["train.json", rest]
    for name in rest:
        (tmp_path / name).rename(tmp_path / name.replace("val-", "train-9"))
    assert given_datasets(tmp_path) == [tmp_path]


def test_no_such_splits(packed: Path) -> None:
    """A name with `{split}` that nothing has is an error, not an empty choice."""
    for name in ("beside/x-{split}.json", "none/{split}.json", "beside/{split}-{0..}.tfrecord", "{split}/x.json"):
        with pytest.raises(InvalidRequest, match="no dataset of such a name"):
            given_datasets(packed / name)
