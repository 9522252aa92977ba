"""Streams: each sample once, exact states, and no thread or descriptor left behind."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import InvalidRequest
from shardtool.read import stream as stream_module
from tests.helpers import ENVIRONMENT, PATIENCE_S
from tests.read.made_data import SAMPLES, Made, make

if TYPE_CHECKING:
    from collections.abc import Iterable


@pytest.fixture(scope="module")
def made(ending: str, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A dataset that no test changes."""
    return make(tmp_path_factory.mktemp("stream"), ending)


def _descriptors() -> set[str]:
    return {os.readlink(one) for one in Path("/proc/self/fd").iterdir() if os.path.lexists(one)}


def test_remote_reads_are_concurrent(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the reader can serve four reads at the same time, a stream in order starts four."""
    monkeypatch.setattr(stream_module, "_MAX_SAMPLES_PER_READ", 5)
    stream, lock, four, running = (
        made.open().stream(shuffle=False, rank=0, world_size=1),
        threading.Lock(),
        threading.Event(),
        0,
    )
    stream.reader.concurrent_reads, read = 4, type(stream)._read  # noqa: SLF001

    def wait_and_read(self: object, *arguments: object) -> object:
        nonlocal running
        with lock:
            running += 1
            if running == 4:
                four.set()
        assert four.wait(PATIENCE_S)
        return read(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(stream), "_read", wait_and_read)
    assert len(list(stream)) == SAMPLES


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("buffer", [None, 1, 7, 1000])
def test_an_epoch_has_each_sample_once(made: Made, *, shuffle: bool, buffer: int | None) -> None:
    """For any buffer, in the dataset's order or shuffled."""
    samples = list(made.open().stream(shuffle=shuffle, buffer=buffer, rank=0, world_size=1))
    if shuffle:
        assert [sample["__key__"] for sample in samples] != [sample["__key__"] for sample in made.samples]
        samples.sort(key=lambda sample: str(sample["__key__"]).encode())
    assert samples == made.samples


@pytest.mark.slow
@settings(max_examples=15)
@given(taken=st.integers(0, SAMPLES), shuffle=st.booleans(), buffer=st.sampled_from([None, 1, 130]))
def test_a_state_resumes_at_the_exact_sample(made: Made, *, taken: int, shuffle: bool, buffer: int | None) -> None:
    """A stream that loads a state continues like the original, also in the next epoch."""
    stream = made.open().stream(shuffle=shuffle, buffer=buffer, rank=0, world_size=1)
    samples = iter(stream)
    list(islice(samples, taken))
    other = made.open().stream(shuffle=shuffle, buffer=buffer, rank=0, world_size=1)
    other.load_state_dict(stream.state_dict())
    rest = list(samples)
    assert list(other) == (rest or list(stream))
    assert next(iter(other)) == next(iter(stream))


def test_fewer_samples_than_ranks(made: Made) -> None:
    """An error with `drop`; `pad` and `uneven` return all samples."""
    dataset = made.open()[:3]
    with pytest.raises(InvalidRequest, match=r"^world_size: 3 samples for 4 ranks, with ends='drop'. Use ends='pad'"):
        dataset.stream(rank=0, world_size=4)
    for ends, count in (("pad", 4), ("uneven", 3)):
        streams = [dataset.stream(rank=rank, world_size=4, ends=ends) for rank in range(4)]  # type: ignore[arg-type]
        assert sum(len([*stream]) for stream in streams) == count


def _keys(samples: Iterable[dict[str, object]]) -> list[object]:
    return [sample["__key__"] for sample in samples]


@pytest.mark.parametrize("taken", [0, 1, 10, SAMPLES - 1])
def test_a_break_restarts_the_epoch(made: Made, taken: int) -> None:
    """Also in a pickled copy; the state stays until then."""
    stream = made.open().stream(seed=3, rank=0, world_size=1)
    whole = _keys(made.open().stream(seed=3, rank=0, world_size=1))
    assert _keys(islice(stream, taken)) == whole[:taken]
    assert (stream.state_dict()["epoch"], stream.state_dict()["position"]) == (0, taken)
    copy = pickle.loads(pickle.dumps(stream))  # noqa: S301 - our own
    again = iter(stream)
    assert stream.state_dict()["position"] == 0
    assert _keys(again) == _keys(copy) == whole
    assert sorted(map(str, _keys(stream))) == sorted(map(str, whole)) != whole


@pytest.mark.parametrize("size", [1, 7])
def test_an_epoch_ends_with_its_last_batch(made: Made, size: int) -> None:
    """Even if the loop does not request another batch."""
    stream = made.open().stream(rank=0, world_size=1).fields("__key__").batch(size, drop_last=True)
    whole = [
        _keys(islice(made.open().stream(epoch=epoch, rank=0, world_size=1), len(stream) * size)) for epoch in (0, 1)
    ]
    for epoch in whole:
        keys = [key for _, batch in zip(range(len(stream)), stream, strict=False) for key in batch["__key__"]]
        assert keys == epoch


def test_a_loaded_state_applies_once(made: Made) -> None:
    """After a `break`, the epoch starts at its beginning."""
    stream = made.open().stream(rank=0, world_size=1)
    whole = _keys(stream)
    state = {**stream.state_dict(), "epoch": 0, "position": 30}
    for epoch in (0, 1):
        stream.load_state_dict(state)
        stream.set_epoch(0)
        assert _keys(islice(stream, 5)) == whole[30:35]
        stream.set_epoch(0)
        assert _keys(stream) == whole
        assert stream.state_dict()["epoch"] == 1
        stream.load_state_dict(state)
        stream.set_epoch(epoch)
        assert _keys(islice(stream, 5)) == (whole[30:35] if epoch == 0 else _keys(made.open().stream(epoch=1))[:5])


def test_of_two_iterators_the_newer_has_the_state(made: Made) -> None:
    """They do not affect each other's samples."""
    stream = made.open().stream(shuffle=False, rank=0, world_size=1)
    first = iter(stream)
    list(islice(first, 5))
    second = iter(stream)
    assert next(second) == made.samples[0]
    assert list(islice(first, 40)) == made.samples[5:45]
    assert stream.state_dict()["position"] == 1
    assert list(second) == made.samples[1:]
    assert list(first) == made.samples[45:]
    assert stream.state_dict()["epoch"] == 1


def test_set_epoch_applies_to_the_next_iteration(made: Made) -> None:
    """A running iterator finishes its own epoch."""
    stream = made.open().stream(rank=0, world_size=1)
    expected = list(made.open().stream(rank=0, world_size=1))
    samples = iter(stream)
    first = [next(samples)]
    stream.set_epoch(7)
    assert [*first, *samples] == expected
    assert (stream.state_dict()["epoch"], stream.state_dict()["position"]) == (7, 0)


def test_a_stream_leaves_nothing_behind(made: Made) -> None:
    """After its end, a break or an error, no thread remains; without its dataset, no open file."""
    threads, descriptors = {*threading.enumerate()}, _descriptors()
    data = made.open()
    for taken in (SAMPLES, 1, 30):
        for _ in islice(data.stream(rank=0, world_size=1), taken):
            pass
        assert {*threading.enumerate()} <= threads
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the loop
        for _ in data.stream(rank=0, world_size=1):
            raise ZeroDivisionError
    del data
    assert {*threading.enumerate()} <= threads
    assert _descriptors() == descriptors


_UNFINISHED = """
import sys, shardtool.read.dataset as reader
samples = iter(reader.open(sys.argv[1]).stream(rank=0, world_size=1))
next(samples)
print("going", flush=True)
"""


def test_a_process_exits_during_a_stream(made: Made) -> None:
    """Neither the exit nor Ctrl-C waits for an unfinished stream."""
    command = [sys.executable, "-c", _UNFINISHED, str(made.path)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "going\n", "")


def test_ctrl_c_ends_a_stream(made: Made) -> None:
    """An interrupted process exits immediately with KeyboardInterrupt."""
    code = _UNFINISHED + "for _ in iter(int, 1):\n    list(samples)\n"
    command = [sys.executable, "-c", code, str(made.path)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "going\n"
        errors = ""
        for _ in range(4):  # Python may lose an interrupt in a weakref callback
            run.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                _, errors = run.communicate(timeout=10)
                break
        run.kill()
    assert errors.endswith("KeyboardInterrupt\n")


def test_a_forked_process_reads(made: Made) -> None:
    """Forked while another thread reads, it has free locks and its own file positions."""
    data = made.open()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            data[[3, 30, 50]]

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(5):
            child = os.fork()
            if not child:
                signal.alarm(20)
                right = list(data.stream(shuffle=False, rank=0, world_size=1)) == made.samples
                os._exit(0 if right else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        reader.join()
    assert data[[3, 30, 50]] == [made.samples[at] for at in (3, 30, 50)]
