"""The reason codes of what was left out."""

from __future__ import annotations

import re
from typing import get_args

from shardtool.skipped import SKIP_CODES, SkipCode
from tests.helpers import REPO


def test_the_table_of_codes_is_that_of_the_docs() -> None:
    """Each code has a meaning, in the words of docs/cli.md, and each stands in quotes where it is given."""
    chapter = (REPO / "docs" / "cli.md").read_text().partition("## What was left out")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*?) \|", chapter, re.MULTILINE)
    assert [(code, what.replace("`", "")) for code, what in rows] == [*SKIP_CODES.items()]
    assert [*SKIP_CODES] == [*get_args(SkipCode)]
    others = [path.read_text() for path in (REPO / "shardtool").rglob("*.py") if path.name != "skipped.py"]
    assert [code for code in SKIP_CODES if not any(f'"{code}"' in text for text in others)] == []
