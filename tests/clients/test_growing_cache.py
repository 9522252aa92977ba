"""Samplers, and trainers of two frameworks, at work on one cache."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

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
