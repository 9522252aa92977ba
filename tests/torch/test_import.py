"""Without PyTorch, `shardtool.torch` says how to install it."""

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


def test_the_error_says_how_to_install_torch() -> None:
    """Importing it is an ImportError that names what to install; the package itself works."""
    ran = subprocess.run([sys.executable, "-c", _WITHOUT_TORCH], capture_output=True, text=True, check=True)
    name, _, text = ran.stdout.strip().partition("|")
    assert name == "torch"
    assert text == "shardtool.torch: PyTorch is not installed. Run `pip install 'shardtool[torch]'`."
