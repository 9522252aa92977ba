"""The law of the layout: each folder is a room, and a module imports only from rooms below its own."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tests.helpers import REPO

if TYPE_CHECKING:
    from pathlib import Path

# From above; a module imports from its own room and from those below it. The package's own modules, which give the
# public names and start the command line, stand above all; its values (errors, names, ...) below all.
ROOMS = (
    "package", "torch", "tensorflow", "ray", "cli", "verbs", "compat", "transfer", "cache", "writer", "check", "pack",
    "inspection", "reading", "publish", "write", "source", "select", "plan", "dataset", "table", "interop",
    "request", "entries", "transform", "fetch", "execute", "format", "storage", "values",
)  # fmt: skip
MOST_IN_A_ROOM = 16
MOST_AT_THE_ROOT = 12

# An import stands inside a function only where it saves time or memory: of one of these, or of a module of ours that
# imports one of them. Workers import neither NumPy nor pyarrow, and `--help` neither of them nor any verb: so modules
# of the command line, and the package itself, import what they like where they use it.
HEAVY = {
    "numpy", "pyarrow", "pandas", "PIL", "jinja2", "tqdm", "torch", "tensorflow", "keras", "braceexpand", "crc32c",
    "multiprocessing", "urllib3", "obstore", "boto3", "botocore", "fsspec", "ray", "aiohttp",
}  # fmt: skip
SLOW = {
    "concurrent.futures",
    "email.utils",
    "importlib",
    "json",
    "logging",
    "lzma",
    "subprocess",
    "tempfile",
    "traceback",
}  # of the standard library, where few runs need it
FREE = ("package", "cli")

# Light modules that are imported late all the same: a worker, or a run that ends early, does without them. The test
# fails on what is not listed here, and on what is listed and gone.
LATE = {
    "check.foreign_indexes": {"array", "dataset.walk", "interop.hashes"},
    "check.look": {"check.foreign_indexes", "check.readers"},
    "check.recorded_run": {"entries.classes"},
    "check.worker": {"warnings"},
    "execute.ray_cluster": {"_version", "sys"},  # in a function that travels by itself
    "execute.worker": {"errors", "wording"},
    "pack.plans": {"entries.classes", "interop.huggingface", "publish.exporter", "publish.renewal"},
    "pack.run": {"pack.result", "publish.exporter", "publish.renewal"},
    "request.options": {"fetch.options", "transform.steps"},
    "source.folder.source": {"dataset.classes"},
    "source.manifest.options": {"dataset.classes"},
    "source.kinds": {"source.manifest.options"},
    "source.open": {"source.archive.source", "source.folder.several", "source.folder.source"},
    "source.selecting": {"dataset.classes"},
    "storage.remote.retry": {"random"},
    "verbs.repair": {"dataset.walk", "request.options", "verbs.create", "verbs.index"},
    "verbs.verify": {"verbs.repair"},
    "write.scatter": {"dataset.shard_file"},
    "write.pack_shard": {"write.tar", "write.tar_copy", "write.tfrecord", "write.transformed"},
}


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


@cache
def _imports() -> list[Import]:
    return [one for module, path in _modules().items() for one in _imports_in(module, ast.parse(path.read_text()))]


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
    room = rest.partition(".")[0]
    if room in ROOMS:
        return room
    return "package" if rest in ("", "__main__") else "values"


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


@cache
def _heavy(module: str) -> bool:
    """Tell whether an import of a module imports something heavy. A module in a circle is as heavy as it can be."""
    seen, left = set(), [module]
    while left:
        name = left.pop()
        if name.partition(".")[0] in HEAVY:
            return True
        seen.add(name)
        below = {one.of for one in _imports() if one.module == name and not one.typed and not one.inside}
        left += below - seen
    return False


def test_modules_named_in_texts_lie_below() -> None:
    """A module that is imported by its name in a text is one of the same room or of a room below it, too."""
    named = [
        (module, one.value)
        for module, path in _modules().items()
        for one in ast.walk(ast.parse(path.read_text()))
        if isinstance(one, ast.Constant)
        and one.value in _modules()
        and min(module.count("."), one.value.count(".")) > 1
    ]
    assert named
    at = [[ROOMS.index(name.split(".")[1]) for name in pair] for pair in named]
    assert [pair for pair, (above, below) in zip(named, at, strict=True) if above > below] == []


def test_rooms_import_downward() -> None:
    """A module imports only from its own room and from rooms below it, for types too."""
    assert not _table(_upward())


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


def test_rooms_are_small() -> None:
    """A folder holds few modules, and the root fewer: who looks for a line sees them all."""
    folders = Counter(path.parent for path in _modules().values() if path.name != "__init__.py")
    root = REPO / "shardtool"
    assert folders.pop(root) <= MOST_AT_THE_ROOT
    assert {folder.name: count for folder, count in folders.items() if count > MOST_IN_A_ROOM} == {}
    assert {path.name for path in root.iterdir() if path.is_dir() and path.name != "__pycache__"} < {*ROOMS}


def test_rooms_are_described() -> None:
    """docs/architecture.md has a row for each room, from above."""
    rows = re.findall(r"^\| `(\w+)/` \|", (REPO / "docs" / "architecture.md").read_text(), re.MULTILINE)
    assert rows == [room for room in ROOMS if room not in {"package", "values"}]


def test_late_imports_save_something() -> None:
    """An import stands inside a function only where what it brings is heavy."""
    late = {(one.module, one.of) for one in _imports() if one.inside and _room(one.module) not in FREE}
    assert _table({pair for pair in late if pair[1] not in SLOW and not _heavy(pair[1])}) == LATE


def test_tests_mirror_the_package() -> None:
    """Each folder of tests is one of the package's, or one of those that look at all of it."""
    folders = {path.relative_to(REPO / "tests").parent for path in (REPO / "tests").rglob("test_*.py")}
    assert {str(one) for one in folders if not (REPO / "shardtool" / one).is_dir()} == {
        "clients",
        "faults",
        "jobs",
        "servers",
    }
