"""Out of memory is the machine's failure, wherever it happens: exit code 7, never damage and never a traceback."""

from __future__ import annotations

import ast
import errno
import json
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtool import CreateOptions, SampleFailed, create
from shardtool.errors import OutOfMemory, is_out_of_memory, reporting_memory_errors
from shardtool.execute.local_pool import LocalPool
from shardtool.write.source_errors import read_error
from tests.helpers import write_tree
from tests.package_source import PACKAGE, nodes, package_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SWALLOWS = {"Exception", "BaseException", "MemoryError", "ArrowException"}  # ArrowMemoryError is an ArrowException

_KNOWN = {
    "select/query.py": 1,  # Python's parser raises a MemoryError for an expression that is too deep
    "read/decode.py": 1,  # and for the header of an array
    "source/table_head.py": 1,  # a table that is read for advice only
    "source/folder.py": 1,  # imports made early, which are made again where they are needed
    "storage/remote/retry.py": 1,
    # These keep the error, and raise it when its batch, file or block is requested.
    "torch/prefetch.py": 1,
    "torch/threaded_loader.py": 2,
    "fetch/fetcher.py": 1,
    "storage/remote/requests.py": 1,
    "read/dataset_html.py": 1,  # a notebook shows what was read before the error
    "cli/completion.py": 1,  # a shell that completes has no place for errors
}


def _names(node: ast.expr | None) -> set[str]:
    if node is None:
        return {"BaseException"}
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return {one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in parts}


def _raises(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler raises the exception again, or checks for a lack of memory."""
    nodes_inside = [*ast.walk(handler)]
    raises_again = any(isinstance(node, ast.Raise) and node.exc is None for node in nodes_inside)
    names = {node.id for node in nodes_inside if isinstance(node, ast.Name)}
    return raises_again or not names.isdisjoint({"is_out_of_memory", "as_reportable"})


def _swallowing(path: Path) -> Iterator[int]:
    """Yield the lines of a module that would handle a lack of memory as another error."""
    for node in nodes(path):
        if isinstance(node, ast.Try):
            spared = False
            for handler in node.handlers:
                names = _names(handler.type)
                if not spared and names & _SWALLOWS and not _raises(handler):
                    yield handler.lineno
                spared = spared or ("MemoryError" in names and _raises(handler))
        elif isinstance(node, ast.Call) and _names(node.func) == {"suppress"}:
            yield from (node.lineno for kind in node.args if _names(kind) & _SWALLOWS)


def test_nothing_swallows_a_lack_of_memory() -> None:
    """No `except` or `suppress` of the package treats a MemoryError as damage or as a bad request."""
    edge = {"cli/__init__.py", "execute/local_pool.py"}  # turn it into an exit code; end a forked child
    unexpected = {}
    for path in package_files():
        name = path.relative_to(PACKAGE).as_posix()
        lines = [] if name in edge else [*_swallowing(path)]
        if len(lines) != _KNOWN.get(name, 0):
            unexpected[name] = lines
    assert not unexpected


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (MemoryError(), True),
        (pa.ArrowMemoryError("malloc of size 5 failed"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (ImportError("libarrow.so.2400: failed to map segment from shared object"), True),
        (RuntimeError("can't start new thread"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (ImportError("No module named 'x'"), False),
        (RuntimeError("x"), False),
    ],
)
def test_what_is_a_lack_of_memory(error: Exception, is_it: bool) -> None:  # noqa: FBT001 - a parameter
    """Each library's way to say so is known, and nothing else is taken for it; the error says what took the memory."""
    assert is_out_of_memory(error) == is_it
    with pytest.raises(OutOfMemory if is_it else type(error)) as caught, reporting_memory_errors("a plan"):
        raise error
    if isinstance(caught.value, OutOfMemory):
        assert (caught.value.where, caught.value.exit_code) == ("a plan", 7)


def test_a_file_without_memory_is_no_bad_file() -> None:
    """A source file that the system has no memory to read is never a sample to be left out."""
    with pytest.raises(OSError, match="memory"):
        read_error(b"a.jpg", OSError(errno.ENOMEM, "Cannot allocate memory"))
    assert read_error(b"a.jpg", FileNotFoundError(errno.ENOENT, "gone")).code == "vanished"


def _accepts(count: int) -> int:
    return len(bytearray(count))


def _fails(text: str) -> int:
    raise ValueError(text)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_worker_out_of_memory(start: str) -> None:
    """What a worker runs out of memory at ends the run as that, and says which task it was."""
    with LocalPool(1, start) as pool, pytest.raises(OutOfMemory, match=r"worker \(accepts\): not enough memory"):  # type: ignore[arg-type]
        list(pool.map(_accepts, [2**62]))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_function_of_the_users_out_of_memory(tmp_path: Path, workers: int) -> None:
    """A `--map` that runs out of memory ends the run, also where samples that fail are left out."""
    write_tree(tmp_path / "in", {"a.txt": b"a", "b.txt": b"b"})
    for name, kind in (("hungry", OutOfMemory), ("failing", SampleFailed)):
        asked = CreateOptions(workers=workers, on_error="skip", map=f"tests.mapped:{name}")
        with pytest.raises(kind):
            create(tmp_path / "in", f"{tmp_path}/{name}-{{0..}}.tar", asked)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a manifest whose plan takes more than a small process may have."""
    path = tmp_path_factory.mktemp("large") / "m.parquet"
    keys = pa.array([f"{number:09}" for number in range(1_000_000)])
    pq.write_table(pa.table({"key": keys, "txt": keys, "cap": keys}), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("limit_kb", "as_json"), [(200_000, False), (300_000, True)])
def test_the_command_line_out_of_memory(limit_kb: int, as_json: bool, table: Path) -> None:  # noqa: FBT001 - a parameter
    """In the parent, out of the table library or Python, it is exit code 7, and one line or one JSON document."""
    words = ["create", "m.parquet", "x-%d.tar", "--field", "txt=txt", "--dry-run", "--workers", "1", "--quiet"]
    ran = subprocess.run(
        [sys.executable, "-m", "shardtool", *words, *(["--json"] if as_json else [])],
        cwd=table.parent, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit_kb * 1024, limit_kb * 1024)),
    )  # fmt: skip
    assert ran.returncode == 7, ran.stderr[-500:]
    assert "Traceback" not in ran.stderr
    if as_json:
        error = json.loads(ran.stdout)["error"]
        assert (error["code"], error["exit_code"]) == ("out-of-memory", 7)
        assert "not enough memory" in error["found"]
    else:
        assert len(ran.stderr.splitlines()) == 1
        assert "not enough memory" in ran.stderr
