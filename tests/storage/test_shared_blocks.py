"""Memory blocks shared by processes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from shardtool.storage import shared_blocks
from shardtool.storage.shared_blocks import SharedBlocks
from tests.helpers import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


def _put(blocks: SharedBlocks, number: int, data: bytes) -> memoryview | None:
    return blocks.write(number, len(data), [(0, data[:5]), (5, data[5:])])


def _has(blocks: SharedBlocks, number: int, data: bytes) -> bool:
    block = blocks.read(number)
    return block is not None and bytes(block) == data


def _in_child(work: Callable[[], bool]) -> bool:
    """Return the result of `work` in a forked child."""
    child = os.fork()
    if not child:
        os._exit(0 if work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@given(blocks=st.dictionaries(st.integers(0, 9), st.binary(max_size=9000), max_size=10))
def test_blocks_are_read_as_written(blocks: dict[int, bytes]) -> None:
    """A block does not exist until it is written, and then has the written bytes."""
    shared = SharedBlocks()
    for number, data in blocks.items():
        assert shared.read(number) is None
        assert bytes(_put(shared, number, data) or b"") == data
    shared.release_pages()
    assert {number: block for number in range(10) if (block := shared.read(number)) is not None} == blocks


def test_a_block_outlives_its_shared_blocks() -> None:
    """The bytes of a block stay valid when the file grows or the owner is deleted."""
    shared = SharedBlocks()
    first = _put(shared, 0, b"first" * 100)
    _put(shared, 1, bytes(2**20))
    del shared
    assert first is not None
    assert bytes(first) == b"first" * 100


def test_forked_processes_share() -> None:
    """Parent and forked child see each other's blocks."""
    shared = SharedBlocks()
    _put(shared, 0, b"of the parent")
    assert _in_child(lambda: _has(shared, 0, b"of the parent") and _put(shared, 1, b"of the child") is not None)
    assert _has(shared, 1, b"of the child")


def test_a_lock_held_during_a_fork_does_not_block_the_child() -> None:
    """A forked child can read and write, even if a thread of its parent held the locks."""
    shared, held, done = SharedBlocks(), threading.Event(), threading.Event()
    _put(shared, 0, b"before")

    def hold() -> None:
        with shared.locked():  # both locks, as a thread that writes has them
            held.set()
            assert not _in_child(lambda: False)
            done.wait(10)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        held.wait(10)
        assert _in_child(lambda: _has(shared, 0, b"before"))
        done.set()
        holding.result()
    assert _in_child(lambda: _put(shared, 1, b"after") is not None)


def test_parallel_writers_do_not_overlap() -> None:
    """Blocks that several processes write in parallel do not overlap."""
    shared = SharedBlocks()

    def write(first: int) -> bool:
        return all(_put(shared, number, bytes([number]) * 5000) is not None for number in range(first, 200, 4))

    children = []
    for first in range(4):
        child = os.fork()
        if not child:
            os._exit(0 if write(first) else 1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert all(_has(shared, number, bytes([number]) * 5000) for number in range(200))


_CHILD = "import pickle, sys; made = pickle.load(sys.stdin.buffer); print(made.read(0) and bytes(made.read(0)))"


def test_unpickled_blocks_are_shared_while_the_creator_lives() -> None:
    """A process that unpickles the blocks can read them while their creator lives, and then has none."""
    shared = SharedBlocks()
    _put(shared, 0, b"here")
    data = pickle.dumps(shared)
    assert len(data) < 300
    run = [sys.executable, "-c", _CHILD]
    assert subprocess.run(run, input=data, env=ENVIRONMENT, capture_output=True, check=True).stdout == b"b'here'\n"
    del shared
    assert subprocess.run(run, input=data, env=ENVIRONMENT, capture_output=True, check=True).stdout == b"None\n"


_KILLED = """
import os
from shardtool.storage.shared_blocks import SharedBlocks
made = SharedBlocks()
made.write(0, 4, [(0, b'here')])
print(os.listdir(os.environ['TMPDIR']))
os.kill(os.getpid(), 9)
"""


def test_a_killed_process_leaves_no_file(tmp_path: Path) -> None:
    """The file has no name, so a killed process leaves nothing."""
    environment = {**ENVIRONMENT, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-uc", _KILLED], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-9, b"[]\n")
    assert [*tmp_path.iterdir()] == []


def test_no_blocks_without_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the file must not grow or cannot be created, there are no blocks and no error."""
    monkeypatch.setattr(shared_blocks, "_MAX_TOTAL_BYTES", 10_000)
    shared = SharedBlocks()
    assert _put(shared, 0, bytes(20_000)) is None
    assert _put(shared, 0, bytes(1000)) is not None
    monkeypatch.setattr(shared_blocks, "_create_unnamed_file", lambda: None)
    shared = SharedBlocks()
    assert (_put(shared, 0, b"here"), shared.read(0)) == (None, None)
    shared.release_pages()


def test_a_closed_descriptor_loses_the_blocks() -> None:
    """A program that closes all descriptors loses the blocks; files that reuse the descriptors are unchanged."""

    def close_all() -> bool:
        shared = SharedBlocks()
        _put(shared, 0, b"here")
        os.closerange(3, 1000)
        descriptors = [os.memfd_create("other") for _ in range(20)]
        block = shared.read(0), _put(shared, 1, b"there")
        return block == (None, None) and all(os.fstat(fd).st_size == 0 for fd in descriptors)

    assert _in_child(close_all)
