"""Docstrings and comments name things that exist."""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from functools import cache
from inspect import cleandoc
from typing import TYPE_CHECKING

from tests.helpers import REPO
from tests.package_source import package_files

if TYPE_CHECKING:
    from pathlib import Path

_ENTRY = re.compile(r"^ {4}(\w[\w., ]*): ", re.MULTILINE)
_DOCSTRING = re.compile(r'^ *r?"""([\s\S]*?)"""', re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)# .*", re.MULTILINE)
_NAME = re.compile(r"`([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)(?:\(\))?`")
# Names of other libraries and tools, and parts of example names, that the package's code does not contain.
_FOREIGN = {
    "EST", "HfFileSystem", "Host", "Options", "SparseTensor", "TarWriter", "a_mask", "arrow_writer", "py",
    "base_plus_ext", "deterministic", "encode_based_on_extension1", "initial_epoch", "is_global", "l", "labelIds",
    "lockf", "make_handlers", "multi", "nohup", "part03of16", "part03of64", "part_NAME", "_SUCCESS", "__url__",
}  # fmt: skip


@cache
def _source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _docstrings(path: Path) -> list[str]:
    return [cleandoc(text) for text in _DOCSTRING.findall(_source(path))]


def _comments(path: Path) -> list[str]:
    return _COMMENT.findall(_source(path))


@cache
def _known_names() -> frozenset[str]:
    """Return every identifier of the package's code, and every word of its texts that are not docstrings."""
    names = {*dir(builtins), *keyword.kwlist, *sys.stdlib_module_names, *_FOREIGN}
    for path in package_files():
        names.update(path.relative_to(REPO).with_suffix("").parts)
        code = _COMMENT.sub("", _DOCSTRING.sub("", _source(path)))
        names.update(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", code.replace("\\n", " ")))
    return frozenset(names)


def test_exceptions_under_raises_exist() -> None:
    """Every exception named under `Raises:` is a builtin or a class of the package."""
    classes = {name for path in package_files() for name in re.findall(r"^ *class (\w+)", _source(path), re.MULTILINE)}
    unknown = []
    for path in package_files():
        for text in _docstrings(path):
            section = text.partition("Raises:\n")[2].split("\n\n")[0]
            for names in _ENTRY.findall(section):
                unknown += [
                    f"{path.relative_to(REPO)}: {name}"
                    for name in re.split(r", |\.(?=[A-Z])", names)
                    if name not in classes and not hasattr(builtins, name)
                ]
    assert unknown == []


def test_names_in_backticks_exist() -> None:
    """Every Python name in backticks, in a docstring or comment, is a name of the code."""
    unknown = []
    for path in package_files():
        for text in (*_docstrings(path), *_comments(path)):
            for match in _NAME.finditer(text):
                unknown += [f"{path.relative_to(REPO)}: {match[0]}"] * (not {*match[1].split(".")} <= _known_names())
    assert unknown == []
