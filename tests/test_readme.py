"""What the documents say is what the program does: their code runs, and prints what they say it prints.

In a document, a block marked `sh` or `python` runs, in order, in a folder that holds `sample_data`. A block marked
`text` or `json` right behind it is what it prints on stdout; `...` there stands for anything. Blocks marked `bash` do
not run (they set up an environment), nor do `python webdataset` and its like where that tool is not installed. A
comment that begins with such a mark runs, too: it makes what the reader of a page is said to have.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from doctest import ELLIPSIS, OutputChecker
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from shardtool import errors
from shardtool.cli import cli
from tests import warm

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    "README.md", "docs/cli.md", "docs/format.md", "docs/caching.md", "docs/training.md",
    "docs/errors.md", "docs/indexes.md", "docs/json.md", "docs/look.md", "docs/parts.md", "docs/proof.md",
    "docs/rerun.md", "docs/reshard.md", "docs/sources.md", "docs/tables.md",
    "docs/cluster.md", "docs/tutorial.md", "docs/urls.md", "docs/writing.md",
    *(f"docs/have/{path.name}" for path in sorted((ROOT / "docs/have").iterdir()) if path.name != "bucket.md"),
]  # fmt: skip
OTHERS = ["CHANGELOG.md", "docs/have/bucket.md", "docs/findings.md", "docs/ray.md", "benchmarks/README.md"]
LINKED = [*DOCUMENTS, *OTHERS, *(f"docs/decisions/{path.name}" for path in (ROOT / "docs/decisions").iterdir())]

_BLOCK = re.compile(r"^(?:```|<!-- )(\w[^\n]*)\n(.*?)^(?:```|-->)$", re.MULTILINE | re.DOTALL)
_FOR_READERS = re.compile(r"^to read it with webdataset:\n(?:  wds\..*\n)+", re.MULTILINE)  # may be left out
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_RUNS = {"sh": ["sh", "-e", "-c"], "python": [sys.executable, "-W", "error", "-c"]}
for tool in (
    "duckdb",
    "webdataset",
    "wids",
    "torch",
    "tensorflow",
    "nvidia.dali",
    "lightning",
    "accelerate",
    "transformers",
):
    with suppress(ModuleNotFoundError):  # of the package that it lies in
        if find_spec(tool):
            _RUNS[f"python {tool}"] = [sys.executable, "-c"]


@dataclass(frozen=True)
class Block:
    """A piece of code in a document, and what it prints; None: the document does not say."""

    line: int
    command: list[str]
    printed: str | None


def read(document: str) -> str:
    """Return a document's text."""
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks that run."""
    found = list(_BLOCK.finditer(text))
    for at, match in enumerate(found):
        if match[1] not in _RUNS:
            continue
        below = found[at + 1] if at + 1 < len(found) else None
        printed = None
        if below and below[1] in ("text", "json") and not text[match.end() : below.start()].strip():
            printed = below[2]
        yield Block(text[: match.start()].count("\n") + 1, [*_RUNS[match[1]], match[2]], printed)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder that holds `sample_data`, like a clone."""
    shutil.copytree(ROOT / "sample_data", tmp_path / "clone" / "sample_data")
    return tmp_path / "clone"


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS)
def test_code_in_a_document_runs_and_prints_what_stands_below_it(document: str, place: Path) -> None:
    """Whoever types a document's code, in order, sees what the document shows."""
    environment = {
        **os.environ,
        "PATH": warm.put_on_path(place.parent / "bin"),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "100",
    }
    ran = 0
    for block in blocks(read(document)):
        done = subprocess.run(
            block.command, cwd=place, env=environment, capture_output=True, text=True, encoding="utf-8", check=False,
            pass_fds=warm.command()[1],
        )  # fmt: skip
        where = f"{document}:{block.line}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, where
        printed = done.stdout if _FOR_READERS.search(block.printed or "") else _FOR_READERS.sub("", done.stdout)
        assert block.printed is None or OutputChecker().check_output(block.printed, printed, ELLIPSIS), where
        ran += 1
    assert ran


def test_the_make_targets_that_the_readme_names_exist() -> None:
    """Every `make TARGET` in the README is a target of the Makefile."""
    named = set(re.findall(r"\bmake ([a-z]+)", read("README.md")))
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


@pytest.mark.parametrize("document", LINKED)
def test_links_lead_to_files(document: str) -> None:
    """Every link to a place in the repository leads somewhere."""
    here = (ROOT / document).parent
    broken = [link for link in _LINK.findall(read(document)) if not (here / link).exists()]
    assert broken == []


def test_every_verb_is_shown_where_people_look_first() -> None:
    """README has an example of each verb, docs/cli.md a section, and `shardtool --help` an example."""
    verbs = cli.list_commands(click.Context(cli))
    code = "\n".join(match[2] for match in _BLOCK.finditer(read("README.md")) if match[1] == "sh")
    assert [verb for verb in verbs if f"shardtool {verb} " not in code] == []
    assert [verb for verb in verbs if f"[`{verb}`](#{verb})" not in read("docs/cli.md")] == []
    assert [verb for verb in verbs if f"shardtool {verb} " not in str(cli.help)] == []


def test_the_document_of_errors_lists_every_code() -> None:
    """docs/errors.md lists each error's code with the exit code that comes with it, and no other."""
    kinds: list[type[errors.PlainError]] = [errors.PlainError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \|", read("docs/errors.md"), re.MULTILINE)
    kinds.remove(errors.ShardError)
    assert sorted(rows) == sorted((kind.code, str(kind.exit_code)) for kind in kinds[1:])
