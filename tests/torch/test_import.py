"""PyTorch is an extra: without it the package says how to get it."""

from __future__ import annotations

import subprocess
import sys

_WITHOUT_TORCH = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else found(name, *rest)
try:
    import shardtool.torch
except ImportError as error:
    print(error.name, error, sep="|")
import shardtool
assert "torch" not in sys.modules
"""


def test_says_how_to_get_torch() -> None:
    """Without PyTorch the import is an ImportError that names what to install; the package itself needs none."""
    ran = subprocess.run([sys.executable, "-c", _WITHOUT_TORCH], capture_output=True, text=True, check=True)
    name, _, text = ran.stdout.strip().partition("|")
    assert name == "torch"
    assert text == "shardtool.torch: PyTorch is not installed. Run `pip install 'shardtool[torch]'`."
