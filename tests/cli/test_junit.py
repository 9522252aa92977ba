"""JUnit XML of `verify`, for CI systems."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from tests.helpers import Ran, flip, shards, typed

if TYPE_CHECKING:
    from pathlib import Path


def _suite(ran: Ran) -> ET.Element:
    return ET.fromstring(ran.out)  # noqa: S314 - our own


def test_a_report_lists_what_was_checked(small: Path, tmp_path: Path) -> None:
    """A report of a passed check lists its checks, and the checks that were not possible."""
    typed("create", small, "out-{000..002}.tar", "--quiet", cwd=tmp_path)
    ran = typed("verify", "out.json", "--sample", "30%", "--format", "junit", cwd=tmp_path)
    assert ran.code == 0
    output = _suite(ran).findtext("system-out") or ""
    assert "not checked: the bytes of 2 of 3 shards" in output
    assert output.endswith("valid")
    for shard in shards(tmp_path):
        flip(shard, 600)
    ran = typed("verify", "out.json", "--sample", "30%", "--format", "junit", cwd=tmp_path)
    assert ran.code == 3
    assert (_suite(ran).findtext("system-out") or "").splitlines()[-1].startswith("not valid: ")


def test_an_error_of_verify_is_in_the_report(tmp_path: Path) -> None:
    """A missing dataset still gives a report, so CI does not see an empty one."""
    ran = typed("verify", "out.json", "--format", "junit", cwd=tmp_path)
    assert ran.code == 2
    assert ran.err.startswith("shardtool: out.json: no such file")
    suite = _suite(ran)
    assert (suite.get("tests"), suite.get("errors"), suite.get("failures")) == ("1", "1", "0")
    (case,) = suite.iter("testcase")
    (error,) = case
    assert (case.get("name"), error.tag, error.get("type")) == ("out.json", "error", "invalid-request")
    assert error.text == ran.err.removeprefix("shardtool: ").rstrip("\n")


def test_a_report_holds_no_secret(tmp_path: Path) -> None:
    """URLs in test case names contain no secrets."""
    ran = typed("verify", "http://u:pass@127.0.0.1:9/x-{0..}.tar?token", "--format", "junit", cwd=tmp_path)
    (case,) = _suite(ran).iter("testcase")
    assert case.get("name") == "http://127.0.0.1:9/x-{0..}.tar?..."
    assert "pass" not in ran.out + ran.err
