"""Samplers, and trainers of two frameworks, at work on one cache."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

import shardtool

pytestmark = pytest.mark.clients
_EXAMPLE = Path(__file__).parents[2] / "examples" / "growing_cache.py"
_EPOCH = re.compile(r"(PyTorch|TensorFlow) epoch (\d): (\d+) samples, \d+\.\d MB/s, (\d+) evictions, loss (\d\.\d\d)")


def test_the_program_runs(tmp_path: Path) -> None:
    """Both trainers see four epochs of what samplers have written by then, shards are evicted, and the loss falls."""
    if not find_spec("tensorflow"):
        pytest.skip("TensorFlow is not installed")
    done = subprocess.run([sys.executable, _EXAMPLE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    epochs = _EPOCH.findall(done.stdout)
    for name in ("PyTorch", "TensorFlow"):
        ours = [(int(number), int(samples), float(loss)) for who, number, samples, _, loss in epochs if who == name]
        assert [number for number, _, _ in ours] == [0, 1, 2, 3]
        assert ours[0][1] <= ours[-1][1] * 1.5  # both are at the bound where the machine is slow to start
        assert ours[-1][2] < ours[0][2]
    assert max(int(evicted) for _, _, _, evicted, _ in epochs) > 0


def test_ranks_read_one_snapshot(tmp_path: Path) -> None:
    """While a sampler writes, two ranks of the document's program make the same steps in each epoch, all of them."""
    root = Path(__file__).parents[2]
    text = (root / "docs" / "caching.md").read_text()
    (tmp_path / "train.py").write_text(text.partition("```py\n")[2].partition("```")[0])
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    variables = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    cache = shardtool.Cache(tmp_path / "growing", "20MB", "oldest")
    with cache.writer(max_size="20kB") as writer:
        for number in range(1000):
            writer.write({"__key__": str(number), "cls": number % 10})
        with subprocess.Popen(
            launch,
            cwd=tmp_path,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as run:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    said, errors = run.communicate(timeout=0.05)
                    break
                for _ in range(50):
                    number += 1
                    writer.write({"__key__": str(number), "cls": number % 10})
    found = re.findall(r"rank (\d) epoch (\d): (\d+) of (\d+) steps", said)
    assert len(found) == 6, errors
    assert all(steps == done for _, _, steps, done in found)
    steps = {rank: [int(one) for which, _, one, _ in found if which == rank] for rank in "01"}
    assert steps["0"] == steps["1"]
