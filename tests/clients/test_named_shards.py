"""The laws of named shards (tests/verbs/test_named_shards.py) in stores, and of TensorFlow's and PyTorch's readers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shardtool import CreateOptions, copy, create
from shardtool import open as open_shards
from shardtool.tensorflow import tf_dataset
from shardtool.torch import StreamDataset
from tests.verbs.test_named_shards import PARTS, Stored, check_every_way, check_what_lacks, made

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.processes import Server

pytestmark = pytest.mark.clients
__all__ = ["made"]  # a fixture


@pytest.fixture
def stored(made: tuple[Path, Path], moto: Server, use: Callable[[Server], Server]) -> Stored:
    """Give the dataset in a store."""
    at = use(moto).new_prefix()
    copy(made[0], at)
    return Stored(at, *made)


@pytest.mark.parametrize("part", PARTS)
def test_every_way_is_the_same_dataset_in_a_store(stored: Stored, part: tuple[int, int], tmp_path: Path) -> None:
    """For some shards of a store, verbs report the same as the dataset file does for these shards."""
    check_every_way(stored, part, tmp_path)


def test_what_is_named_and_not_there_in_a_store(stored: Stored, tmp_path: Path) -> None:
    """A range that goes further than the dataset is refused with the names that lack."""
    check_what_lacks(stored, tmp_path)


@pytest.mark.parametrize("part", PARTS)
def test_readers_give_what_was_named(made: tuple[Path, Path], part: tuple[int, int], tmp_path: Path) -> None:
    """`StreamDataset` and `tf_dataset` give the samples of the shards that were named, and no others."""
    local, keys = Stored(str(made[0]), *made), list[str]()
    for number in range(part[0], part[1] + 1):
        keys += dict.fromkeys(name.partition(".")[0] for name, _ in local.content([number]))
    for given in local.ways(*part).values():
        dataset = StreamDataset(open_shards(given), 2, shuffle=False)
        assert (len(dataset), [one["__key__"] for one in dataset]) == (len(keys), keys)
    create(made[1], f"{tmp_path}/out-{{000..}}.tfrecord", CreateOptions(max_count=2, workers=1))
    whole = [*_keys(f"{tmp_path}/out.json")]
    for given in replace(local, at=str(tmp_path), ending="tfrecord").ways(*part).values():
        assert [*_keys(given)] == whole[2 * part[0] : 2 * part[1] + 2]


def _keys(given: Any) -> list[str]:
    return [one["__key__"].numpy().decode() for one in tf_dataset(given)]
