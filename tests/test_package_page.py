"""The README on a package page, and the addresses of the project."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from tests.helpers import REPO

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    """The contents of pyproject.toml."""
    contents: dict[str, Any] = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))
    return contents


def test_links_are_absolute(settings: dict[str, Any]) -> None:
    """The build replaces each relative link of the README by the address of that file in the repository."""
    source, text = settings["project"]["urls"]["Source"], (REPO / "README.md").read_text("utf-8")
    relative = _LINK.findall(text)
    for rule in settings["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    links = _LINK.findall(text)
    assert len(links) == len(relative) > 40
    for link in links:
        match = re.fullmatch(rf"{re.escape(source)}/(blob|raw)/HEAD/([^#]+)(?:#.*)?", link)
        assert match is not None, link
        assert (REPO / match[2]).exists(), link
        assert match[2].endswith(".png") == (match[1] == "raw"), link


def test_addresses_of_the_project_agree(settings: dict[str, Any]) -> None:
    """All addresses start with that of the repository, so that one search and replace changes them."""
    urls = settings["project"]["urls"]
    assert {*urls} == {"Source", "Documentation", "Changelog", "Issues"}
    for name, url in urls.items():
        assert url.startswith(urls["Source"])
        path = url.removeprefix(f"{urls['Source']}/blob/HEAD/")
        assert name in ("Source", "Issues") or (REPO / path).is_file()
    assert settings["project"]["authors"][0]["name"]
