from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from tests.verbs.cache.helpers import python

if TYPE_CHECKING:
    from pathlib import Path

_RUN = """
import sys
from pathlib import Path
from tests.verbs.cache.load import Load, run
print(run(Load(writers=2, readers=2, seconds=1, kill_s=0.8, epochs=8), Path(sys.argv[1])))
"""


@pytest.mark.slow
def test_under_load(tmp_path: Path) -> None:
    """Under load and kills, no reader sees a short or wrong sample, the bound holds, and no file is left behind.

    `make soak` is the same for minutes.
    """
    result = ast.literal_eval(python(_RUN, tmp_path))
    assert result["kills"] >= 1
    assert result["evicted"] >= 1
    assert result["max_bytes"] > result["bound"] // 2
