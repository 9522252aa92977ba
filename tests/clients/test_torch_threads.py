"""Samples decoded and collated in threads: order, bounds, errors and ends of a pass."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image

from shardtool import InvalidRequest, SampleFailed
from shardtool.read.pipeline import Pipeline
from shardtool.torch.threaded_loader import SKIPPED, BatchRows, Loader, collate

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

pytestmark = pytest.mark.clients


class Numbers:
    """Samples 0, 1, 2 ...; counts the samples read, and records whether it was closed."""

    def __init__(self, count: int) -> None:
        self.count, self.taken, self.closed = count, 0, False

    def __iter__(self) -> Generator[Any]:
        try:
            while self.taken < self.count:
                self.taken += 1
                yield {"__key__": f"k{self.taken - 1}", "n": self.taken - 1}
        finally:
            self.closed = True

    def state_dict(self) -> dict[str, object]:
        return {"taken": self.taken}

    def last_position(self) -> None:
        """Return no position: skipped samples are not replaced."""

    def next_epoch(self, _: Pipeline) -> int:
        return 0


class _Loader(Loader):
    """A loader without a dataset, which calls a function with each sample."""

    _stages = Pipeline()

    def __post_init__(self) -> None:
        pass

    def _run_stages(self, positioned: tuple[Any, Any]) -> object:
        return self.transform(positioned[0]) if self.transform else positioned[0]

    def passed(self, source: Any) -> Generator[Any]:
        """Yield the batches of a source, each with the state after it."""
        for batch in self._batches(source, None):
            yield batch, self._state


def _work(function: Callable[[Any], Any] | None = None, **options: Any) -> dict[str, Any]:
    return {"transform": function, "pin_memory": False, **options}


def batches(source: Any, work: dict[str, Any], threads: int, depth: int) -> Generator[Any]:
    """Yield the batches of a source, each with the state after it."""
    return _Loader(source, 4, **work, threads=threads, depth=depth).passed(source)


def _threads() -> set[str]:
    names = {one.name for one in threading.enumerate()}
    return {name for name in names if name.startswith("shardtool-") and "callers" not in name}  # those stay, for stores


def _numbers(found: Any) -> list[list[int]]:
    return [batch["n"].tolist() for batch, _ in found]


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("depth", [1, 3])
def test_batches_come_in_order(threads: int, depth: int) -> None:
    """However long each sample takes, batches hold the samples in the source's order, each with the state after it."""

    def slow(sample: Any) -> Any:
        time.sleep(0.002 * (sample["n"] * 7 % 5))
        return sample

    found = list(batches(Numbers(18), _work(slow), threads, depth))
    assert _numbers(found) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17]]
    assert [batch["__key__"][0] for batch, _ in found] == ["k0", "k4", "k8", "k12", "k16"]
    assert [state["taken"] for _, state in found] == [4, 8, 12, 16, 18]
    assert _threads() == set()


def test_drop_last() -> None:
    """A last batch that is smaller is left out on request; there is none where the samples fit."""
    assert len(list(batches(Numbers(18), _work(drop_last=True), 2, 2))) == 4
    assert len(list(batches(Numbers(16), _work(drop_last=True), 2, 2))) == 4
    assert list(batches(Numbers(0), _work(), 2, 2)) == []


def test_at_most_depth_batches_are_in_progress() -> None:
    """The source is read at most `depth` batches ahead of the returned one."""
    source = Numbers(1000)
    passed = batches(source, _work(), 2, 3)
    for number in range(1, 5):
        next(passed)
        time.sleep(0.02)
        assert source.taken <= (number + 3) * 4
    passed.close()


def test_who_stops_early_leaves_no_thread() -> None:
    """The end of an unfinished pass ends its threads and the source's iteration."""
    source, begun = Numbers(1000), threading.Event()

    def waiting(sample: Any) -> Any:
        begun.set()
        time.sleep(0.01)
        return sample

    passed = batches(source, _work(waiting), 3, 4)
    next(passed)
    assert begun.is_set()
    assert _threads()
    del passed
    assert _threads() == set()
    assert source.closed
    assert source.taken <= 24


def test_errors_are_raised_in_order() -> None:
    """Batches before an error are returned; of several errors in a batch, the first sample's is raised."""

    def failing(sample: Any) -> Any:
        if sample["n"] in (9, 11):
            time.sleep(0.05 if sample["n"] == 9 else 0)
            raise LookupError(sample["__key__"])
        return sample

    passed = batches(Numbers(40), _work(failing), 4, 3)
    assert _numbers([next(passed), next(passed)]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(LookupError, match="k9"):
        next(passed)
    assert _threads() == set()


def test_errors_of_the_source_pass() -> None:
    """What the source raises comes after the batches that were whole before."""

    class Broken(Numbers):
        def __iter__(self) -> Generator[Any]:
            yield from super().__iter__()
            raise OSError("no shard")

    passed = batches(Broken(8), _work(), 2, 2)
    assert _numbers([next(passed), next(passed)]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(OSError, match="no shard"):
        next(passed)


def test_samples_that_are_left_out() -> None:
    """A batch goes without samples that the function leaves out; one without any is none."""

    def odd(sample: Any) -> Any:
        return SKIPPED if sample["n"] % 2 == 0 or 4 <= sample["n"] < 8 else {**sample, "x": np.full(3, sample["n"])}

    found = list(batches(Numbers(11), _work(odd), 2, 2))
    assert _numbers(found) == [[1, 3], [9]]
    assert found[0][0]["x"].tolist() == [[1, 1, 1], [3, 3, 3]]


def test_a_collate_function() -> None:
    """An own function gets each batch's samples as a list, in order, and its result is the batch."""
    found = list(batches(Numbers(6), _work(collate=lambda samples: [one["n"] for one in samples]), 3, 2))
    assert [batch for batch, _ in found] == [[0, 1, 2, 3], [4, 5]]


def test_a_program_may_exit_during_a_pass(tmp_path: Path) -> None:
    """A program with an unfinished pass exits immediately."""
    script = tmp_path / "ends.py"
    script.write_text(
        "from tests.clients.test_torch_threads import Numbers, _work, batches\n"
        "passed = batches(Numbers(1000), _work(), 2, 3)\n"
        "print(next(passed)[0]['n'].tolist())\n"
    )
    root = str(Path(__file__).parents[2])
    ran = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert (ran.stdout, ran.stderr) == ("[0, 1, 2, 3]\n", "")


def _filled(*samples: Any) -> Any:
    rows = BatchRows(len(samples), pin=False)
    for row, sample in reversed([*enumerate(samples)]):
        rows.put(row, sample)
    return rows.batch([f"k{row}" for row in range(len(samples))])


def test_what_values_become() -> None:
    """Arrays, tensors and images of one shape become a tensor, numbers too; all else becomes a list."""
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    made = _filled(
        {"a": np.ones((2, 3), np.float32), "t": torch.ones(2), "i": image, "n": 1, "f": 0.5, "b": True, "s": "x"},
        {"a": np.zeros((2, 3), np.float32), "t": torch.zeros(2), "i": image, "n": 2, "f": 1, "b": False, "s": "y"},
    )
    assert {name: value.dtype for name, value in made.items() if name != "s"} == {
        "a": torch.float32, "t": torch.float32, "i": torch.uint8, "n": torch.int64, "f": torch.float64, "b": torch.bool,
    }  # fmt: skip
    assert (made["a"].shape, made["i"].shape, made["s"]) == ((2, 2, 3), (2, 2, 4, 3), ["x", "y"])
    assert (made["n"].tolist(), made["b"].tolist()) == ([1, 2], [True, False])
    assert made["i"][1].tolist() == np.asarray(image).tolist()
    assert _filled((np.zeros(2), 3), (np.ones(2), 4))[0].tolist() == [[0, 0], [1, 1]]
    assert _filled(torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert _filled({"x": None}, {"x": b"y"}) == {"x": [None, b"y"]}
    assert [_filled(large, 1) for large in (2**63, 2**70)] == [[2**63, 1], [2**70, 1]]
    assert _filled({"x": True}, {"x": 2}) == {"x": [True, 2]}


def test_arrays_of_different_shapes() -> None:
    """They become a list with every sample's values, all of them tensors: arrays, tensors and images alike."""
    image = Image.fromarray(np.ones((1, 2), np.uint8))
    others = {"x": np.full(2, 2.0)}, {"x": np.zeros(2, np.uint8)[::-1]}, {"x": torch.ones(1)}, {"x": image}
    made = _filled({"x": np.zeros(2)}, {"x": np.ones(3)}, *others)
    assert [one.tolist() for one in made["x"]] == [[0, 0], [1, 1, 1], [2, 2], [0, 0], [1], [[1, 1]]]
    assert {type(one) for one in made["x"]} == {torch.Tensor}
    made = _filled({"x": np.array(["a"])}, {"x": 1})
    assert [np.asarray(one).tolist() for one in made["x"]] == [["a"], 1]


def test_samples_of_other_fields() -> None:
    """A sample that lacks a field, or has one more, is named."""
    with pytest.raises(SampleFailed, match=r"^sample k1: no field b, which other samples of its batch have"):
        _filled({"a": 1, "b": 2}, {"a": 1})
    assert [*_filled({"b": 1, "a": 2}, {"a": 3, "b": 4})] == ["b", "a"]
    with pytest.raises(SampleFailed, match=r"^sample k1: differs in structure from the first"):
        _filled({"a": 1}, (1,))


@pytest.mark.parametrize("samples", [[1, 2], [(1,), (2,)], [{"a": 1}, {"a": 2}]])
def test_a_list_of_no_field(samples: list[Any]) -> None:
    """A list for a field that does not exist is refused, for any samples."""
    with pytest.raises(InvalidRequest, match="typo"):
        collate(samples, lists=("typo",))
