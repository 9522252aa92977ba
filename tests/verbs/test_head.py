"""Laws of `--head`, `--sample` and `--per-class`: which samples are taken, of each source."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardtool
from shardtool import CreateOptions, InvalidRequest, ReshardOptions, VerifyOptions, create, reshard, verify
from shardtool.entries.strings import PackedStrings
from shardtool.select.splits import sample_per_class
from tests.helpers import write_tree

if TYPE_CHECKING:
    from pathlib import Path

FILES = {f"{kind}/{at}.{end}": b"%d" % at for kind in ("cat", "dog") for at in range(9) for end in ("jpg", "txt")}
KEYS = sorted({name[:-4] for name in FILES})


def _keys(dataset_file: Path) -> list[str]:
    return [*shardtool.open(dataset_file).keys]


@pytest.fixture(params=["folder", "tar", "tar.gz", "rows", "bytes", "files"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The same samples as a folder, in archives, and as tables: a row each, with bytes, and a row a file."""
    folder = write_tree(tmp_path / "in", FILES)
    if request.param == "folder":
        return folder
    if request.param in ("tar", "tar.gz"):
        with tarfile.open(tmp_path / f"in.{request.param}", "w:gz" if request.param == "tar.gz" else "w") as archive:
            archive.add(folder, ".")
        return tmp_path / f"in.{request.param}"
    table = pd.DataFrame({"key": KEYS, "kind": [key[:3] for key in KEYS]})
    if request.param == "rows":
        table["path"] = [str(folder / f"{key}.jpg") for key in KEYS]
    elif request.param == "bytes":
        table["jpg"] = [key.encode() for key in KEYS]
    elif request.param == "files":
        table = pd.DataFrame({"path": [str(folder / name) for name in FILES], "kind": [name[:3] for name in FILES]})
    return table


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"head": 5}, {"sample": "40%"}, {"sample": 0.5, "head": 3}, {"head": 99}])
def test_create_takes_what_reshard_takes(options: dict[str, Any], source: Any, ending: str, tmp_path: Path) -> None:
    """The same samples, with the same bytes, as a reshard of all; `verify` with the source finds no others missing."""
    own: dict[str, Any] = {"workers": 0}
    if isinstance(source, pd.DataFrame):
        own |= {"root": tmp_path / "in", "field": {"cls": "kind"}, "classes": ("cls",), "meta": "none"}
    create(source, tmp_path / f"all-{{0..}}.{ending}", CreateOptions(**own))
    create(source, tmp_path / f"some-{{0..}}.{ending}", CreateOptions(**own, **options))
    reshard(tmp_path / "all.json", tmp_path / f"again-{{0..}}.{ending}", ReshardOptions(workers=0, **options))
    assert _keys(tmp_path / "some.json") == _keys(tmp_path / "again.json")
    assert (tmp_path / f"some-0.{ending}").read_bytes() == (tmp_path / f"again-0.{ending}").read_bytes()
    root = own.get("root")
    assert verify(tmp_path / "some.json", VerifyOptions(workers=0, source=source, root=root)).findings == ()


def test_files_of_other_rows_are_not_looked_at(tmp_path: Path) -> None:
    """A trial of ten rows of a large table does not need all of its files; labels have the numbers that all give."""
    write_tree(tmp_path, {"b.txt": b"x"})
    table = pd.DataFrame({"path": ["b.txt", "gone/a.txt"], "kind": ["dog", "cat"]})
    options: dict[str, Any] = {"field": {"cls": "kind"}, "classes": ("cls",), "root": tmp_path, "workers": 0}
    create(table, tmp_path / "o-{0..}.tar", CreateOptions(head=1, **options))
    assert shardtool.open(tmp_path / "o.json")[0]["cls"] == b"1"


@pytest.mark.parametrize("is_table", [True, False])
def test_no_sample_falls_into_the_share(is_table: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """A share that takes no sample is refused, as in `reshard`."""
    source = write_tree(tmp_path / "in", {"a.txt": b"x"})
    given = pd.DataFrame({"path": [str(source / "a.txt")]}) if is_table else source
    with pytest.raises(InvalidRequest, match=r"sample: 0.0000001 selects none of 1 samples"):
        create(given, tmp_path / "o-{0..}.tar", CreateOptions(sample="0.0000001", root=source if is_table else None))


# At most so many of a class.


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=4), st.sampled_from(["x", "y", "z"]), min_size=1),
    st.integers(1, 5),
    st.integers(0, 3),
)
def test_at_most_so_many_of_each_class(labels: dict[str, str], most: int, seed: int) -> None:
    """Each class has the requested number of samples, or all; other samples and their order have no effect."""

    def taken(some: dict[str, str], count: int) -> dict[str, str]:
        keys, column = (
            PackedStrings.of(key.encode() for key in some),
            pa.chunked_array([pa.array([*some.values()], pa.string())]),
        )
        return {
            [*some][at]: [*some.values()][at] for at in sample_per_class(keys, column, count, column="c", seed=seed)
        }

    result = taken(labels, most)
    for label in set(labels.values()):
        there, kept = ([key for key in some if some[key] == label] for some in (labels, result))
        assert len(kept) == min(most, len(there))
    assert result.items() <= taken(labels, most + 1).items()
    assert taken(dict(reversed([*labels.items()])), most) == result
    assert taken({key: label for key, label in labels.items() if label != "x"}, most) == {
        key: label for key, label in result.items() if label != "x"
    }


def test_a_balanced_part_of_a_dataset(tmp_path: Path) -> None:
    """By the labels of its folders unless told otherwise; it is recorded, with the seed, and `verify` does it again."""
    source = write_tree(tmp_path / "in", FILES | {f"emu/{at}.jpg": b"x" for at in range(2)})
    create(source, tmp_path / "all-{0..}.tar", CreateOptions(workers=0, label_from_folder=True))
    result = []
    for seed in (0, 1):
        options = ReshardOptions(workers=0, per_class=3, seed=seed, split="a=0.5,b=0.5", stratify="cls")
        reshard(tmp_path / "all.json", tmp_path / f"{seed}-{{split}}-{{0..}}.tar", options)
        for name in "ab":
            part = tmp_path / f"{seed}-{name}.json"
            assert verify(part, VerifyOptions(workers=0, source=tmp_path / "all.json")).findings == ()
        result.append(_keys(tmp_path / f"{seed}-a.json") + _keys(tmp_path / f"{seed}-b.json"))
        assert [sum(key.startswith(kind) for key in result[-1]) for kind in ("cat", "dog", "emu")] == [3, 3, 2]
    assert sorted(result[0]) != sorted(result[1])
    reshard(tmp_path / "all.json", tmp_path / "f-{0..}.tar", ReshardOptions(workers=0, per_class=1, of="fields"))
    assert len(_keys(tmp_path / "f.json")) == 2
    with pytest.raises(InvalidRequest, match="no column 'clss'; expected one of cls"):
        reshard(tmp_path / "all.json", tmp_path / "g-{0..}.tar", ReshardOptions(workers=0, per_class=1, of="clss"))
    with pytest.raises(InvalidRequest, match="of: no limit per class; expected per_class, too"):
        ReshardOptions(of="cls")
