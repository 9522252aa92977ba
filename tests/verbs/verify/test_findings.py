from __future__ import annotations

import ast
import pickle
import re

import pytest

from shardtool.errors import CorruptShard
from shardtool.verbs.verify.findings import FINDING_KINDS, Finding, finding_from_error
from tests.helpers import REPO
from tests.package_source import nodes, package_files


def _rows() -> list[str]:
    text = (REPO / "docs" / "findings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*)\|", text, re.MULTILINE)
    return [code for row in rows for code in re.findall(r"`([a-z-]+)`", row) if not code.startswith("--")]


def test_every_code_is_documented_once() -> None:
    """docs/findings.md explains exactly the existing codes."""
    assert sorted(_rows()) == sorted(FINDING_KINDS)


def test_every_code_is_used() -> None:
    """Each code is used by a check."""
    paths = [path for path in package_files() if path.name != "findings.py"]
    texts = {str(node.value) for path in paths for node in nodes(path) if isinstance(node, ast.Constant)}
    assert {*FINDING_KINDS} <= {text.partition(":")[0] for text in texts}


@pytest.mark.parametrize(
    ("finding", "line"),
    [
        (Finding("shard-missing", "a.tar", "not there"), "a.tar: not there [shard-missing]"),
        (Finding("totals-differ", "a.tar", "x", "y", 1024), "a.tar: at 1,024: x; expected y [totals-differ]"),
        (Finding("image-bad", "a.tar", "no image", "", 5, "k", "jpg"), "a.tar: at 5: k.jpg: no image [image-bad]"),
        (Finding("key-unsafe", "a.tar", "x", field="__key__"), "a.tar: field __key__: x [key-unsafe]"),
        (Finding("key-unsafe", "\x1b[2J.tar", "a\nb", key="\x07"), r"\x1b[2J.tar: \x07: a\x0ab [key-unsafe]"),
    ],
)  # fmt: skip
def test_a_finding_is_one_line(finding: Finding, line: str) -> None:
    """A finding is one line without control characters, as text and as JSON, and can be pickled."""
    assert str(finding) == line
    assert pickle.loads(pickle.dumps(finding)) == finding  # noqa: S301 - our own
    assert not any(ord(char) < 32 for value in finding.to_json().values() for char in str(value))
    assert finding.to_json()["remedy"] == FINDING_KINDS[finding.code].remedy


def test_a_finding_keeps_the_parts_of_an_error() -> None:
    """An error's offset becomes the finding's offset."""
    error = CorruptShard("/x/a.tar", "no tar header", offset=1536, expected="one")
    assert finding_from_error("shard-damaged", "a.tar", error) == Finding(
        "shard-damaged", "a.tar", "no tar header", "one", 1536
    )
    error = CorruptShard("/x/a.tar", "cannot be opened")
    assert finding_from_error("shard-damaged", "a.tar", error).offset is None
