"""Imports of command lines: start-up time matters for small datasets."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

from tests.helpers import ENVIRONMENT, write_tree

if TYPE_CHECKING:
    from pathlib import Path

# Each import takes 10 to 300 ms of CPU, and unchanged samples require none of them.
_SLOW = (
    "PIL", "asyncio", "concurrent.futures", "http.client", "jinja2", "logging", "multiprocessing", "numpy.ma",
    "numpy.random", "pandas", "pyarrow.compute", "pyarrow.dataset", "tempfile", "urllib.request",
)  # fmt: skip
_READERS = ("numpy", "pyarrow")
_NET = (*_READERS, "ssl", "http.client", "email", "bz2", "lzma")
_WRITERS = ("shardtool.publish", "shardtool.storage.folders", "shardtool.storage.staging")
_VERBS = ("publish", "read", "source", "verbs")
# Runs command lines one after the other in one process, and prints the imported modules after each.
_SCRIPT = """
import os, sys, types
from shardtool import cli
def go_on(code):
    print(code, *(name for name in {watched!r} if name in sys.modules), file=sys.stderr)
    if words := next(lines, None):
        sys.argv[1:] = words
        cli.main()
    os._exit(0)
lines = iter({lines!r})
cli.os = types.SimpleNamespace(**{{**vars(os), "_exit": go_on}})
go_on(0)
"""


def _imported(lines: list[list[str]], watched: tuple[str, ...], folder: Path) -> list[str]:
    """Return the exit code and the imported watched modules, after start-up and after each command line."""
    code = _SCRIPT.format(
        watched=watched, lines=[[*words, "--quiet"] if "-h" not in words else words for words in lines]
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, text=True, capture_output=True, check=True, env=ENVIRONMENT
    )
    return ran.stderr.splitlines()


def test_help_imports_click_only(tmp_path: Path) -> None:
    """`--help` imports neither NumPy, nor pyarrow, nor a module that does the work of a verb."""
    watched = (*_READERS, *(f"shardtool.{room}" for room in _VERBS), "hashlib", "shardtool.storage.files")
    assert _imported([["-h"], ["create", "-h"]], watched, tmp_path) == ["0", "0", "0"]
    assert _imported([["-h"]], (*_SLOW, "pathlib"), tmp_path) == ["0", "0"]


def test_plain_runs_import_nothing_slow(tmp_path: Path) -> None:
    """Runs without transforms import NumPy and pyarrow but no other slow modules."""
    write_tree(tmp_path / "in", {f"cat/{number}.txt": b"text" for number in range(6)})
    with tarfile.open(tmp_path / "theirs.tar", "w") as shard:
        shard.add(tmp_path / "in", "")
    lines = [
        ["create", "in", "out-{00..}.tar", "--max-count", "3"],
        ["verify", "out.json"],
        ["index", "theirs.tar"],
        ["reshard", "out.json", "more-{00..}.tar", "--max-count", "2"],
    ]
    imported = _imported(lines, (*_SLOW, *_READERS), tmp_path)
    assert imported == ["0", *["0 numpy pyarrow"] * len(lines)]


def test_queries_do_not_import_pandas(tmp_path: Path) -> None:
    """`--where` imports pyarrow.compute, but not pandas: that would take 0.3 s and 40 MB."""
    table = b'{"file": "in/a.txt", "n": 1, "tags": ["x"]}\n{"file": "in/b.txt", "n": 2, "tags": []}\n'
    write_tree(tmp_path, {"in/a.txt": b"text", "in/b.txt": b"more", "table.jsonl": table})
    lines = [
        ["create", "in", "files-{00..}.tar", "--where", "size > 0 and path.contains('a')"],
        ["create", "table.jsonl", "out-{00..}.tar", "--file", "txt=file", "--where", "n >= 1 or tags.len() > 3"],
        ["reshard", "out.json", "more-{00..}.tar", "--where", "tags.len() < 2 or key.str.contains('a')"],
        ["inspect", "out.json", "--keys", "--where", "n in [1, 2] and tags.contains('x')"],
        ["extract", "out.json", "files", "--where", "n / 2 < 1"],
        ["remove", "more.json", "--where", "n == 1"],
    ]
    watched = ("pandas", "pyarrow.compute")
    assert _imported(lines, watched, tmp_path) == ["0", *["0 pyarrow.compute"] * len(lines)]
    code = "import sys, shardtool; print(len(shardtool.open('out.json').where('n == 1')), 'pandas' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True, check=True, env=ENVIRONMENT
    )
    assert ran.stdout == "1 False\n"


def test_workers_of_a_command_line_are_forked(tmp_path: Path) -> None:
    """No verb starts threads before its workers, which would then need 0.1 s more to start.

    Without other tools' indexes next to the shards, `verify` imports no module that publishes datasets.
    """
    write_tree(tmp_path, {"in/1.txt": b"text", "in/2.txt": b"more", "keys.txt": b"1"})
    names = {"create": ["in", "out-{00..}.tar", "--max-count", "1"],
             "reshard": ["out.json", "more-{00..}.tar"], "index": ["out.json"],
             "verify": ["out.json"], "extract": ["out.json", "files"],
             "diff": ["out.json", "in"], "remove": ["more.json", "--keys-from", "keys.txt"]}  # fmt: skip
    for name, words in names.items():
        watched = ("subprocess", *(_WRITERS if name == "verify" else ()))
        assert _imported([[name, *words]], watched, tmp_path) == ["0", "0"], name


def test_reading_a_small_dataset_imports_little(tmp_path: Path) -> None:
    """`verify` and `inspect` of one shard import no file systems of pyarrow, and nothing that other verbs need."""
    write_tree(tmp_path, {"in/1.txt": b"text", "in/2.txt": b"more"})
    assert _imported([["create", "in", "out-{00..}.tar"]], (), tmp_path) == ["0", "0"]
    watched = ("pyarrow.fs", "pyarrow.parquet", "fractions", "difflib", "shutil", "shardtool.fetch.options", *_SLOW)
    assert _imported([["verify", "out.json"], ["inspect", "out.json"]], watched, tmp_path) == ["0"] * 3


def test_nothing_heavy_is_there_when_workers_are_forked() -> None:
    """Workers inherit what a verb's module imports, so the module imports no NumPy, pyarrow or client of servers."""
    verbs = [
        f"shardtool.verbs.{verb}"
        for verb in ("create", "index", "verify.verify", "copy", "diff.diff", "extract", "remove")
    ]
    code = "import sys\nfor name in sys.argv[1:]: __import__(name)\nprint(*sys.modules)"
    for modules, heavy in ((verbs, _READERS), (["shardtool.execute.pool"], _NET)):
        words = [sys.executable, "-c", code, *modules]
        ran = subprocess.run(words, text=True, capture_output=True, check=True, env=ENVIRONMENT)
        assert not {*heavy} & {*ran.stdout.split()}, modules
