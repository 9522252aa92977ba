"""Laws of `reshard --add`: separately created fields are joined with the samples of the same keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardtool
from shardtool import (
    CorruptShard,
    CreateOptions,
    InvalidRequest,
    ReshardOptions,
    VerifyOptions,
    create,
    reshard,
    verify,
)
from tests.helpers import flip, read_tree, shards, write_tree

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("a", "b", "m", "z")
HAVING = st.sets(st.sampled_from(NAMES), min_size=1)


def _create(root: Path, name: str, files: dict[str, bytes], ending: str = "tar", **options: Any) -> Path:
    source = write_tree(root / f"in-{name}", files)
    create(source, root / name / f"out-{{0..}}.{ending}", CreateOptions(**{"workers": 0, "max_count": 3, **options}))
    return root / name / "out.json"


def _reshard(dataset: Path, output: Path, ending: str = "tar", **options: Any) -> Any:
    return reshard(dataset, output / f"out-{{0..}}.{ending}", ReshardOptions(workers=0, max_count=4, **options))


@pytest.mark.slow
@given(
    samples=st.dictionaries(st.integers(0, 30), st.tuples(HAVING, HAVING), min_size=1, max_size=12),
    shuffled=st.booleans(),
    endings=st.tuples(*[st.sampled_from(["tar", "tfrecord"])] * 3),
)
def test_separate_fields_are_joined(
    samples: dict[int, tuple[set[str], set[str]]],
    shuffled: bool,  # noqa: FBT001
    endings: tuple[str, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """For any formats and orders, the result has the bytes that `create` writes from all files."""
    root = tmp_path_factory.mktemp("add")
    one = {f"{at:02}.{name}": b"%d" % at * 9 for at, (names, _) in samples.items() for name in names}
    two = {f"{at:02}.{name}x": b"%d" % at * 7 for at, (_, names) in samples.items() for name in names}
    first = _create(root, "first", one, endings[0])
    second = _create(root, "second", two, endings[1], shuffle=shuffled)
    both = _create(root, "both", one | two, endings[2], max_count=4)
    made = _reshard(first, root / "o", endings[2], add=(str(second),))
    assert [path.read_bytes() for path in shards(root / "o")] == [path.read_bytes() for path in shards(both.parent)]
    assert verify(made.dataset_file, VerifyOptions(workers=0, source=first)).findings == ()


@pytest.fixture
def apart(tmp_path: Path) -> tuple[Path, Path]:
    """Six labelled texts, and seven embeddings: of five of them, and of two others."""
    first = _create(
        tmp_path, "one", {f"{'ab'[at % 2]}/{at}.txt": b"%d" % at for at in range(6)}, label_from_folder=True
    )
    vectors = {f"{'ab'[at % 2]}/{at}.npy": b"%d" % at * 5 for at in (0, 1, 2, 3, 4, 7, 8)}
    second = _create(
        tmp_path, "two", vectors | {name.replace("npy", "n"): b"7" for name in vectors}, columns_from=("n",)
    )
    return first, second


def test_keys_that_only_one_side_has(apart: tuple[Path, Path], tmp_path: Path) -> None:
    """A sample without the fields is an error, or skipped and listed; a note counts unused samples."""
    first, second = apart
    with pytest.raises(
        InvalidRequest,
        match=r"add: 1 of 6 samples not in out: 'b/5'; expected a sample for each key\. Skip them with on_er",
    ):
        _reshard(first, tmp_path / "x", add=(str(second),))
    made = _reshard(first, tmp_path / "o", add=(str(second),), on_error="skip")
    assert (made.samples, made.skipped) == (5, 1)
    assert '"key": "b/5"' in (tmp_path / "o" / "out.skipped").read_text()
    assert "2 samples of out not used: no sample has their keys" in made.notes
    dataset = shardtool.open(made.dataset_file)
    assert {*dataset.field_counts} == {"cls", "n", "npy", "txt"}
    assert len(dataset.where("cls == 'a' and n == 7")) == 3
    none = _create(tmp_path, "none", {"q.npy": b"1"})
    with pytest.raises(InvalidRequest, match="add: 6 of 6 samples not in out"):
        _reshard(first, tmp_path / "y", add=(str(none),), on_error="skip")


def test_fields_of_one_name(apart: tuple[Path, Path], tmp_path: Path) -> None:
    """Fields of the same name are refused, unless one is dropped or renamed."""
    first, second = apart
    other = _create(tmp_path, "other", {f"{'ab'[at % 2]}/{at}.txt": b"new" for at in range(6)})
    with pytest.raises(
        InvalidRequest, match=r"exist in both: 'txt' \(also in out\); expected fields that the samples lack"
    ):
        _reshard(first, tmp_path / "x", add=(str(other),))
    made = _reshard(first, tmp_path / "o", add=other, fields="-txt")
    assert {sample["txt"] for sample in shardtool.open(made.dataset_file)} == {b"new"}
    made = _reshard(first, tmp_path / "p", add=(str(other), str(second)), fields={"old": "txt"}, on_error="skip")
    assert {*shardtool.open(made.dataset_file).field_counts} == {"cls", "n", "npy", "old", "txt"}


def test_damage_on_either_side_is_not_copied(apart: tuple[Path, Path], tmp_path: Path) -> None:
    """A payload of the other dataset that has not its checksum ends the run, or its sample is left out."""
    other = _create(tmp_path, "other", {f"{'ab'[at % 2]}/{at}.new": b"%d" % at * 5 for at in range(6)})
    shard = shards(other.parent)[0]
    flip(shard, shard.read_bytes().index(b"22222"))
    with pytest.raises(CorruptShard, match=r"a/2.*has the CRC-32C"):
        _reshard(apart[0], tmp_path / "o", add=(str(other),))
    made = _reshard(apart[0], tmp_path / "o", add=(str(other),), on_error="skip")
    assert (made.samples, made.skipped) == (5, 1)


def test_the_same_again(apart: tuple[Path, Path], tmp_path: Path) -> None:
    """With transforms, splits, shuffling and resume, it is an ordinary dataset; no source is changed."""
    first, second = apart
    before = read_tree(first.parent) | read_tree(second.parent)
    options: dict[str, Any] = {
        "add": (str(second),),
        "on_error": "skip",
        "shuffle": True,
        "map": "tests.mapped:doubled",
    }
    made = _reshard(first, tmp_path / "o", **options)
    assert made.samples == 10
    again = _reshard(first, tmp_path / "o", resume=True, **options)
    assert again.fingerprint == made.fingerprint
    assert read_tree(first.parent) | read_tree(second.parent) == before
    with pytest.raises(InvalidRequest, match="needs all fields of a sample in one file"):
        ReshardOptions(add=("x",), method="scatter")
