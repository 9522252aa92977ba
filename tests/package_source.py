"""The package's source as syntax trees, parsed once for all tests of a process."""

from __future__ import annotations

import ast
import gc
from functools import cache
from typing import TYPE_CHECKING

from tests.helpers import REPO

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = REPO / "shardtool"


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module's tree; the first is the module."""
    gc.disable()  # otherwise the collector runs again and again while a tree grows
    try:
        return (*ast.walk(ast.parse(path.read_text(encoding="utf-8"))),)
    finally:
        gc.freeze()  # the nodes stay until the end
        gc.enable()


def module_tree(path: Path) -> ast.Module:
    """Return the tree of a module."""
    tree = nodes(path)[0]
    assert isinstance(tree, ast.Module)
    return tree


@cache
def package_files() -> tuple[Path, ...]:
    """Return the files of the package, in order."""
    return (*sorted(PACKAGE.rglob("*.py")),)
