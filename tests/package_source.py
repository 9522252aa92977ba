"""The syntax trees of the package's modules. Each module is parsed only once in a process."""

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
    """Return all nodes of a module's syntax tree. The first node is the `ast.Module`."""
    gc.disable()  # otherwise the collector runs many times while the tree is built
    try:
        return (*ast.walk(ast.parse(path.read_text(encoding="utf-8"))),)
    finally:
        gc.freeze()  # the cache keeps the nodes until the process exits
        gc.enable()


def module_tree(path: Path) -> ast.Module:
    """Return the `ast.Module` of a file."""
    tree = nodes(path)[0]
    assert isinstance(tree, ast.Module)
    return tree


@cache
def package_files() -> tuple[Path, ...]:
    """Return the sorted paths of all modules of the package."""
    return (*sorted(PACKAGE.rglob("*.py")),)
