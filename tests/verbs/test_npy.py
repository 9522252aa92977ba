"""Laws of `.npy` fields."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from shardtool import CreateOptions, VerifyOptions, create, verify
from tests.helpers import typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path


def test_npy_is_npy(tmp_path: Path) -> None:
    """No verb writes text into a .npy field, and `--decode` finds one that NumPy cannot read, however it got there."""
    table = tmp_path / "m.jsonl"
    table.write_text('{"key": "a", "xs": [1, 2]}\n')
    refused = typed("create", table, f"{tmp_path}/m-{{0..}}.tar", "--field", "npy=xs")
    assert (refused.code, ".npy" in refused.err) == (2, True), refused
    good = BytesIO()
    np.save(good, np.arange(6).reshape(2, 3))
    folder = write_tree(tmp_path / "src", {"a.npy": good.getvalue(), "b.npy": b"[1,2]", "c.npy": good.getvalue()[:-1]})
    create(folder, f"{tmp_path}/out-{{0..}}.tar", CreateOptions(workers=1))
    report = verify(tmp_path / "out.json", VerifyOptions(decode=True, workers=1))
    assert [(one.code, one.key) for one in report.findings] == [("array-bad", "b"), ("array-bad", "c")]
