"""The law of the layout: each folder, and each verb, is a room, and a module imports only from rooms below its own."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tests.core_jobs import OPTIONAL_MODULES
from tests.helpers import REPO
from tests.package_source import module_tree, nodes

if TYPE_CHECKING:
    from pathlib import Path

# From above; a module imports from its own room and from those below it. The package's own modules, which give the
# public names and start the command line, stand above all; its values (errors, names, ...) below all.
ROOMS = (
    "package", "torch", "tensorflow", "ray", "cli", "verbs.diff", "verbs.verify", "compat", "verbs.index",
    "verbs.export", "verbs.copy", "verbs.remove", "verbs.extract", "verbs.doctor", "verbs.cache", "writer",
    "verbs.create", "pack", "verbs.inspect", "read", "publish", "write", "source", "select", "plan", "interop",
    "dataset", "table", "execute", "request", "entries", "transform", "fetch", "format", "storage", "values",
)  # fmt: skip


class Import(NamedTuple):
    """A module that imports another: where, and how."""

    module: str
    of: str
    typed: bool  # only for types
    inside: bool  # of a function


@cache
def _modules() -> dict[str, Path]:
    root = REPO / "shardtool"
    parts = {path: path.relative_to(REPO).with_suffix("").parts for path in sorted(root.rglob("*.py"))}
    return {".".join(part[:-1] if part[-1] == "__init__" else part): path for path, part in parts.items()}


def module_names() -> frozenset[str]:
    """Return the names of all modules of the package."""
    return frozenset(_modules())


@cache
def _imports() -> list[Import]:
    return [one for module, path in _modules().items() for one in _imports_in(module, module_tree(path))]


def _imports_in(module: str, node: ast.AST, *, typed: bool = False, inside: bool = False) -> list[Import]:
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            found += [Import(module, alias.name, typed, inside) for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            names = [f"{child.module}.{alias.name}" for alias in child.names]
            found += [
                Import(module, name if name in _modules() else str(child.module), typed, inside) for name in names
            ]
        types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        found += _imports_in(module, child, typed=typed or types, inside=inside or function)
    return found


def _room(module: str) -> str:
    _, _, rest = module.partition(".")
    for room in (".".join(rest.split(".")[:2]), rest.partition(".")[0]):
        if room in ROOMS:
            return room
    return "package" if rest in ("", "__main__", "verbs") else "values"


def _ours() -> set[tuple[str, str]]:
    return {(one.module, one.of) for one in _imports() if one.of in _modules() and one.of != one.module}


def _table(pairs: set[tuple[str, str]]) -> dict[str, set[str]]:
    """Return what each module imports, all by their names in the package."""
    found: dict[str, set[str]] = {}
    for module, other in pairs:
        found.setdefault(module.removeprefix("shardtool."), set()).add(other.removeprefix("shardtool."))
    return found


def _upward() -> set[tuple[str, str]]:
    order = {room: at for at, room in enumerate(ROOMS)}
    return {(one, other) for one, other in _ours() if order[_room(other)] < order[_room(one)]}


def test_modules_named_in_texts_lie_below() -> None:
    """A module that is imported by its name in a text is one of the same room or of a room below it, too."""
    named = [
        (module, one.value)
        for module, path in _modules().items()
        for one in nodes(path)
        if isinstance(one, ast.Constant)
        and one.value in _modules()
        and min(module.count("."), one.value.count(".")) > 1
    ]
    assert named
    at = [[ROOMS.index(_room(name)) for name in pair] for pair in named]
    assert [pair for pair, (above, below) in zip(named, at, strict=True) if above > below] == []


def test_rooms_import_downward() -> None:
    """A module imports only from its own room and from rooms below it, for types too."""
    assert not _table(_upward())


def test_verbs_import_no_verb() -> None:
    """No verb imports another verb, and neither do writers, for types too: what they share is below them."""
    pairs = {(_room(module), _room(other)) for module, other in _ours()}
    verbs = {pair for pair in pairs if pair[1].startswith("verbs.") and pair[0] != pair[1]}
    from_verbs = {(room, other) for room, other in verbs if room.startswith("verbs.") or room == "writer"}
    assert not from_verbs


def test_optional_modules_are_imported_when_used() -> None:
    """No module of the core imports an optional module before it is used."""
    early = {(one.module, one.of) for one in _imports() if not one.typed and not one.inside}
    assert not {pair for pair in early if _is_optional(pair[1]) and not _is_optional(pair[0])}


def _is_optional(module: str) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:end]) in OPTIONAL_MODULES for end in range(1, len(parts) + 1))


def test_no_circles() -> None:
    """No module imports itself by way of others, for types too."""
    edges = _ours()
    while True:  # what imports nothing that is left, or is imported by nothing that is left, is in no circle
        importing, imported = {one for one, _ in edges}, {other for _, other in edges}
        kept = {(one, other) for one, other in edges if other in importing and one in imported}
        if kept == edges:
            break
        edges = kept
    assert not _table(edges)


def test_rooms_are_described() -> None:
    """docs/architecture.md has a row for each room, from above."""
    rows = re.findall(r"^\| `([\w/]+)(?:/|\.py)` \|", (REPO / "docs" / "architecture.md").read_text(), re.MULTILINE)
    assert [row.replace("/", ".") for row in rows] == [room for room in ROOMS if room not in {"package", "values"}]


def test_tests_mirror_the_package() -> None:
    """Each folder of tests is one of the package's, or one of those that look at all of it."""
    folders = {path.relative_to(REPO / "tests").parent for path in (REPO / "tests").rglob("test_*.py")}
    assert {str(one) for one in folders if not (REPO / "shardtool" / one).is_dir()} == {
        "clients",
        "faults",
        "jobs",
        "servers",
    }
