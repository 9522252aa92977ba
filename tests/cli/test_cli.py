"""Exit codes, stdout and stderr of the command line."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers import identity, read_tree, shards, shell, tool, typed, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATTERN = "out-{000..}.tar"


def _document(text: str) -> dict[str, Any]:
    """Parse the only JSON document on stdout."""
    document: dict[str, Any] = json.loads(text)
    assert text == json.dumps(document, indent=2) + "\n"
    return document


def _fifo(root: Path) -> None:
    os.mkfifo(root / "a" / "pipe.jpg")


def _finished(root: Path) -> None:
    (root / "out-000.tar").write_bytes(b"")


def _file_for_folder(root: Path) -> None:
    (root / "file").write_bytes(b"")


def _garbage(root: Path) -> None:
    (root / "out-000.tar").write_bytes(b"no tar" * 1000)


def _nothing(_root: Path) -> None:
    pass


# Change of a tree, command, exit code, error code, and parts of the message.
ERRORS: dict[str, tuple[Callable[[Path], None], list[str], int, str, list[str]]] = {
    "no source": (_nothing, ["nowhere", PATTERN], 2, "invalid-request", ["nowhere", "no such file"]),
    "no folder": (
        _nothing,
        ["s/a/000.txt", PATTERN],
        2,
        "invalid-request",
        ["s/a/000.txt", "not a table", "standard input"],
    ),
    "no pattern": (_nothing, ["s", "out"], 2, "invalid-request", ["out", "no file extension", "out-{000000..}.tar"]),
    "open brace": (_nothing, ["s", "out-{000..009.tar"], 2, "invalid-request", ["out-{000..009.tar"]),
    "url": (_nothing, ["s", "s4://bucket/out-{000..}.tar"], 2, "invalid-request", ["s4://bucket", "s3://"]),
    "no samples": (_nothing, ["s", PATTERN, "--include", "*.png"], 2, "invalid-request", ["matched 0 of", "--include"]),
    "capacity": (_nothing, ["s", "o-{0..1}.tar", "--max-count", "1"], 2, "invalid-request", ["2 names", "12 shards"]),
    "oversize": (_nothing, ["s", PATTERN, "--max-size", "4kB"], 2, "invalid-request", ["--max-size", "--oversize"]),
    "exists": (_finished, ["s", PATTERN], 5, "output-exists", ["out-000.tar", "--overwrite", "--resume"]),
    "fifo": (lambda root: _fifo(root / "s"), ["s", PATTERN], 6, "sample-failed", ["a/pipe.jpg", "fifo", "--exclude"]),
    "bad size": (_nothing, ["s", PATTERN, "--max-size", "many"], 2, "invalid-request", ["--max-size", "many", "500MB"]),
    "zero": (_nothing, ["s", PATTERN, "--max-count", "0"], 2, "invalid-request", ["--max-count", "from 1 to"]),
    "no shards": (_nothing, ["s", PATTERN, "--shards", "0"], 2, "invalid-request", ["--shards", "from 1 to"]),
    "no output folder": (_file_for_folder, ["s", f"file/{PATTERN}"], 5, "output-exists", ["file"]),
}
USAGE: dict[str, tuple[list[str], str]] = {
    "unknown option": (["create", "s", PATTERN, "--nope"], "--nope"),
    "unknown verb": (["pack", "s"], "pack"),
    "no output": (["create", "s"], "OUTPUT"),
    "bad choice": (["create", "s", PATTERN, "--oversize", "eat"], "eat"),
}


@pytest.fixture
def place(small: Path, tmp_path: Path) -> Path:
    """Return the working folder, which contains the small tree as `s`, without an empty file."""
    small.rename(tmp_path / "s")
    (tmp_path / "s/a/000.bin").write_bytes(b"x")  # an empty file would cause a note
    return tmp_path


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_one_line_with_an_exit_code(name: str, place: Path) -> None:
    """An error is one line on stderr with location, finding and fix; nothing is written."""
    prepare, words, code, _, parts = ERRORS[name]
    prepare(place)
    before = sorted(os.listdir(place))
    ran = typed("create", *words, "--workers", "0", cwd=place)
    assert (ran.code, ran.out) == (code, "")
    line = ran.err.splitlines()[-1]
    assert line.startswith("shardtool: ")
    assert [text for text in parts if text not in line] == []
    assert sorted(os.listdir(place)) == before


# Change of a tree, and command, for each exit code.
CODES: dict[int, tuple[Callable[[Path], None], str]] = {
    0: (_nothing, f"create s {PATTERN}"),
    2: (_nothing, f"create nowhere {PATTERN}"),
    3: (_garbage, "verify out-000.tar"),
    4: (_garbage, "inspect out-000.tar --sample 0"),
    5: (_finished, f"create s {PATTERN}"),
    6: (lambda root: _fifo(root / "s"), f"create s {PATTERN}"),
    7: (_nothing, f"create s /proc/nowhere/{PATTERN}"),  # no folder can be created there
}


@pytest.mark.parametrize("code", CODES)
def test_exit_codes_of_a_process(code: int, place: Path) -> None:
    """A process returns the same exit code, stdout and stderr as a call in this process."""
    prepare, line = CODES[code]
    prepare(place)
    ran = tool(*line.split(), "--quiet", cwd=place)
    assert (ran.code, bool(ran.out), bool(ran.err)) == (code, code == 3, code not in (0, 3))
    if code:
        again = typed(*line.split(), "--quiet", cwd=place)
        assert (again.code, again.err) == (ran.code, ran.err)


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_with_json_is_a_document(name: str, place: Path) -> None:
    """With `--json`, an error is one document on stdout with the same code and parts."""
    prepare, words, code, kind, parts = ERRORS[name]
    prepare(place)
    ran = typed("create", *words, "--workers", "0", "--json", "--quiet", cwd=place)
    assert (ran.code, ran.err) == (code, "")
    error = _document(ran.out)["error"]
    assert list(error) == ["code", "exit_code", "where", "found", "expected", "remedy"]
    assert (error["code"], error["exit_code"]) == (kind, code)
    assert [text for text in parts if text not in " ".join(map(str, error.values()))] == []


@pytest.mark.parametrize("name", USAGE)
def test_usage_errors(name: str, place: Path) -> None:
    """A usage error has exit code 2 and a hint on stderr, or a document on stdout with `--json`."""
    words, part = USAGE[name]
    ran = typed(*words, cwd=place)
    assert (ran.code, ran.out) == (2, "")
    assert part in ran.err
    assert len(ran.err.splitlines()) == 1
    ran = typed(*words, "--json", cwd=place)
    assert (ran.code, ran.err) == (2, "")
    error = _document(ran.out)["error"]
    assert (error["code"], error["exit_code"]) == ("invalid-request", 2)
    assert part in f"{error['where']}: {error['found']}; {error['expected']}"
    assert os.listdir(place) == ["s"]


def test_success(place: Path) -> None:
    """A successful run prints a summary on stdout and notes on stderr."""
    ran = typed("create", "s", PATTERN, "--max-count", "5", cwd=place)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith("12 samples in 3 shards, ")
    assert [line.split()[0] for line in lines[1:3]] == ["dataset", "fingerprint"]
    snippet = ["to read it with webdataset:", '  wds.WebDataset("out-{000..002}.tar", shardshuffle=False)']
    assert lines[3:] == snippet
    assert "out.json" in lines[1]
    ran = typed("create", "s", "d/one-{0..}.tar", "--seed", "1", cwd=place)
    assert (ran.code, len(ran.out.splitlines()), len(ran.err.splitlines())) == (0, 5, 1)
    assert ran.err.startswith("note: ")


def test_quiet_and_verbose(place: Path) -> None:
    """`--quiet` prints nothing; `-v` prints a line per shard on stderr."""
    ran = typed("create", "s", PATTERN, "--quiet", cwd=place)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    ran = typed("create", "s", PATTERN, "--overwrite", "--max-count", "4", "-v", cwd=place)
    assert (ran.code, len(ran.out.splitlines())) == (0, 5)
    assert sorted(line.split(":")[0] for line in ran.err.splitlines()) == [f"out-00{at}.tar" for at in range(3)]


def test_success_as_json(place: Path) -> None:
    """With `--json`, a successful run prints one document with the result."""
    ran = typed("create", "s", PATTERN, "--max-count", "5", "--json", cwd=place)
    assert (ran.code, ran.err) == (0, "")
    document = _document(ran.out)
    made = json.loads((place / "out.json").read_bytes())["shardtool"]
    assert document.pop("seconds") >= 0
    assert document.pop("bytes_per_s") > document.pop("samples_per_s") > 0
    assert document == {
        "dataset_file": "out.json",
        "shards": 3,
        "kept": 0,
        "samples": 12,
        "skipped": 0,
        "size": sum(shard.stat().st_size for shard in shards(place)),
        "fingerprint": made["fingerprint"],
        "notes": [],
        "urls": "out-{000..002}.tar",
    }
    again = _document(typed("create", "s", PATTERN, "--max-count", "5", "--json", "--resume", cwd=place).out)
    assert (again["kept"], again["fingerprint"]) == (3, document["fingerprint"])


def test_dry_run(place: Path) -> None:
    """A dry run prints the planned shards as a table or a document, even if output exists; it writes nothing."""
    _finished(place)
    before = identity(place)
    ran = typed("create", "s", PATTERN, "--max-count", "5", "--dry-run", cwd=place)
    assert (ran.code, ran.err, identity(place)) == (0, "", before)
    rows = [line.split() for line in ran.out.splitlines()]
    assert [(row[0], row[1], row[3]) for row in rows[1:4]] == [
        ("out-000.tar", "5", "a/000"), ("out-001.tar", "5", "a/010"), ("out-002.tar", "2", "b/009"),
    ]  # fmt: skip
    assert "nothing was written" in ran.out
    ran = typed("create", "s", PATTERN, "--max-count", "5", "--dry-run", "--json", cwd=place)
    assert (ran.code, ran.err, identity(place)) == (0, "", before)
    plan = _document(ran.out)
    assert (plan["dry_run"], [shard["samples"] for shard in plan["shards"]]) == (True, [5, 5, 2])
    assert [f"{shard['size']:,}" for shard in plan["shards"]] == [row[2] for row in rows[1:4]]
    assert plan["totals"]["size"] == sum(shard["size"] for shard in plan["shards"])
    assert (plan["totals"]["samples"], plan["totals"]["skipped"], plan["dataset_file"]) == (12, 0, "out.json")


def test_control_characters_in_names_are_escaped(place: Path) -> None:
    """No control character of a file name reaches the terminal."""
    write_tree(place / "s", {b"evil\x1b[2J\xff.jpg": b"x", b"z\x1b]0;t\x07.jpg": b"x"})
    for words in (["--dry-run", "--portable"], ["--exclude", "*\udcff*", "--dry-run"], []):
        ran = typed("create", "s", PATTERN, *words, cwd=place)
        assert ran.code == (0 if "--portable" in words else 2)
        assert "\x1b" not in ran.out + ran.err
        assert "\x07" not in ran.out + ran.err


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["create", "--help"], ["create", "-h"]])
def test_help(words: list[str]) -> None:
    """Both levels of help go to stdout, with examples, and fit a terminal."""
    ran = typed(*words)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Usage: shardtool ")
    assert "shardtool create ./imgs 'out-{000000..}.tar'" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 120


@pytest.mark.parametrize(("words", "verb"), [([], ""), (["create"], " create")])
def test_without_arguments_the_help_is_shown(words: list[str], verb: str) -> None:
    """Without arguments, the tool prints its help and exits with an error."""
    ran = typed(*words)
    assert ran.code == 2
    assert f"Usage: shardtool{verb} " in ran.out + ran.err


def test_version() -> None:
    """`--version` prints name and version."""
    ran = tool("--version")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.split()[0] == "shardtool"


_RUNS = ["--help", "--version", "create --help", "create s 'x-{0..}.tar'", "create s 'x-{0..}.tar' --json",
         "create s 'x-{0..}.tar' --dry-run", "create s 'x-{0..}.tar' --dry-run --json"]  # fmt: skip


@pytest.mark.parametrize("run", _RUNS)
def test_a_full_stdout_is_an_error(run: str, place: Path) -> None:
    """If the result cannot be printed, the exit code is 7; the written dataset is complete."""
    ran = shell(f"$T {run} >/dev/full", place)
    lines = [line for line in ran.err.splitlines() if not line.startswith("note: ")]
    assert (ran.code, len(lines)) == (7, 1), ran.err
    assert "stdout" in lines[0]
    assert "no space left" in lines[0]
    assert (place / "x.json").exists() == (run.startswith("create s") and "dry" not in run)


@pytest.mark.slow
@pytest.mark.parametrize("run", [*_RUNS, "create nowhere 'x-{0..}.tar' --json", "create --nope --json"])
def test_a_closed_stdout_changes_nothing(run: str, place: Path) -> None:
    """If stdout is closed, also by its reader, the result is the same; no file gets the number of stdout."""
    expected = 2 if "nowhere" in run or "--nope" in run else 0
    ran = shell(f"$T {run} --quiet >&-" if run.startswith("create s") else f"$T {run} >&-", place)
    assert (ran.code, ran.err) == (expected, "")
    if (place / "x.json").exists():
        assert (place / "x-0.tar").read_bytes().startswith(b"a/000.bin\0")
    ran = shell(f"$T {run}{' --overwrite' if run.startswith('create s') else ''} 2>notes | head -1", place)
    assert (ran.code, ran.err, len(ran.out.splitlines())) == (expected, "", 1)
    assert "Traceback" not in (place / "notes").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "code"),
    [
        ("create s 'x-{0..}.tar'", 0),
        ("create s 'x-{0..}.tar' -v --max-count 3", 0),
        ("create nowhere 'x-{0..}.tar'", 2),
        ("create s 'x-{0..}.tar' --nope", 2),
    ],
)
@pytest.mark.parametrize("where", ["2>/dev/full", "2>&-", ">&- 2>&- <&-"])
def test_a_full_or_closed_stderr_changes_nothing(where: str, run: str, code: int, place: Path) -> None:
    """If notes and errors cannot be printed, the run continues with the same exit code."""
    ran = shell(f"$T {run} {where}", place)
    assert ran.code == code
    assert (place / "x.json").exists() == (code == 0)


@pytest.mark.parametrize("run", ["create - 'x-{0..}.tar'", "create s 'x-{0..}.tar' --keys-from -", "verify -"])
def test_a_closed_stdin_is_empty(run: str, place: Path) -> None:
    """A closed standard input contains no samples, keys or shards. That is an error, but not a bug."""
    closed, empty = (shell(f"$T {run} {where}", place) for where in ("<&-", "< /dev/null"))
    assert (closed.code, closed.err) == (empty.code, empty.err)
    assert closed.code == 2


def test_a_pattern_expanded_by_the_shell_is_a_pattern(place: Path) -> None:
    """The names to which a shell expands a pattern are accepted as the pattern."""
    ran = shell("$T create s out-{000..999}.tar --max-count 5 --quiet && $T create s 'q/out-{000..999}.tar' "
                "--max-count 5 --quiet", place)  # fmt: skip
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert {name: data for name, data in read_tree(place).items() if name.startswith("out")} == read_tree(place / "q")


def test_resume_and_overwrite(place: Path) -> None:
    """A run exits with 5 if the output exists; with `--resume` or `--overwrite`, it writes the same bytes."""
    words = ("create", "s", PATTERN, "--max-count", "5", "--quiet")
    assert typed(*words, cwd=place).code == 0
    right = read_tree(place)
    for more, code in (((), 5), (("--resume",), 0), (("--overwrite",), 0)):
        assert typed(*words, *more, cwd=place).code == code
        assert read_tree(place) == right


def test_skipped_samples_are_reported(place: Path) -> None:
    """With `--on-error skip`, summary, document and exit code report skipped samples."""
    _fifo(place / "s")
    ran = typed("create", "s", PATTERN, "--on-error", "skip", "--max-count", "5", cwd=place)
    assert ran.code == 0
    assert "1 skipped, listed in out.skipped" in ran.out
    assert "a/pipe.jpg" in ran.err
    document = _document(
        typed("create", "s", PATTERN, "--on-error", "skip", "--resume", "--overwrite", "--json", cwd=place).out
    )
    assert (document["skipped"], document["samples"]) == (1, 12)
    assert any("a/pipe.jpg" in note for note in document["notes"])
