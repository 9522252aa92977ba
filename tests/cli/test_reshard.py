"""`shardtool reshard`: text and JSON output, exit codes, and arguments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import InvalidRequest
from shardtool.cli.arguments import split_datasets
from tests.helpers import identity, read_tree, shards, shell, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

OUTPUT = "new/out-{000..}.tar"


def _document(text: str) -> dict[str, Any]:
    """Parse the only JSON document on stdout."""
    document: dict[str, Any] = json.loads(text)
    assert text == json.dumps(document, indent=2) + "\n"
    return document


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a dataset `in/out.json` of twelve samples in four shards."""
    place = tmp_path_factory.mktemp("cli")
    write_tree(place / "s", {f"{'ab'[at % 2]}/{at:03}.txt": f"text {at}\n".encode() * at for at in range(12)})
    assert typed("create", "s", "in/out-{000..}.tar", "--max-count", "3", "--quiet", cwd=place).code == 0
    return place


# Commands, and parts of the message as text and as JSON.
USAGE: dict[str, tuple[list[str], list[str]]] = {
    "no output": (["in"], ["not given", "a quoted shard pattern", "'out-{000000..}.tar'"]),
    "shards alone": (["in/out-000.tar", "in/out-001.tar"], ["cannot be distinguished", "quoted"]),
    "unknown option": (["in", OUTPUT, "--shufle"], ["--shufle", "--shuffle"]),
    "an option of create": (["in", OUTPUT, "--label-from-folder"], ["--label-from-folder"]),
    "bad method": (["in", OUTPUT, "--method", "magic"], ["--method", "'scatter'"]),
    "bad rule": (["in", OUTPUT, "--on-duplicate", "both"], ["--on-duplicate", "'rename'"]),
}


@pytest.mark.parametrize("name", USAGE)
def test_usage_errors(name: str, made: Path) -> None:
    """A usage error has exit code 2, a message and a hint; no file is changed."""
    words, parts = USAGE[name]
    before = identity(made)
    ran = typed("reshard", *words, cwd=made)
    assert (ran.code, ran.out) == (2, "")
    assert all(part in ran.err for part in parts), ran.err
    assert len(ran.err.splitlines()) == 1
    assert identity(made) == before


def test_usage_errors_as_json(made: Path) -> None:
    """With `--json`, a usage error is a document on stdout."""
    words, parts = USAGE["no output"]
    ran = typed("reshard", *words, "--json", cwd=made)
    assert (ran.code, ran.err) == (2, "")
    error = _document(ran.out)["error"]
    assert (error["code"], error["exit_code"]) == ("invalid-request", 2)
    assert all(part in f"{error['found']} {error['expected']}" for part in parts)


# Commands, exit code, error code, and parts of the message.
ERRORS: dict[str, tuple[list[str], int, str, list[str]]] = {
    "bad size": (["in", OUTPUT, "--memory", "lots"], 2, "invalid-request", ["--memory", "'lots'", "500MB"]),
    "bad count": (["in", OUTPUT, "--head", "0"], 2, "invalid-request", ["--head: 0", "from 1 to"]),
    "bad seed": (["in", OUTPUT, "--seed", "x"], 2, "invalid-request", ["--seed: 'x'", "a whole number"]),
    "no dataset": (["nowhere.json", OUTPUT], 2, "invalid-request", ["nowhere.json", "a dataset file"]),
    "no pattern": (["in", "new"], 2, "invalid-request", ["new: no file extension", "out-{000000..}.tar"]),
    "the source": (["in", "in/out-{000..}.tar", "--overwrite"], 2, "invalid-request", ["in/out-000.tar", "source"]),
    "exists": (["s/../in/out.json", "in/out-{000..}.tar"], 5, "output-exists", ["out-000.tar", "another folder"]),
    "a column": (["in", OUTPUT, "--where", "siez > 3"], 2, "invalid-request", ["--where", "size"]),
    "temp dir": (
        ["in", "q/out-{000..}.tar", "--shuffle", "--method", "scatter", "--temp-dir", "nowhere"], 7, "output-failed",
        ["nowhere: cannot write", "--temp-dir"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str, made: Path) -> None:
    """An error has an exit code and one line with location, finding and fix, or the same as JSON."""
    words, code, kind, parts = ERRORS[name]
    ran = typed("reshard", *words, "--quiet", cwd=made)
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1), ran
    assert all(part in ran.err for part in parts), ran.err
    ran = typed("reshard", *words, "--json", "--quiet", cwd=made)
    assert (ran.code, ran.err) == (code, "")
    error = _document(ran.out)["error"]
    assert (error["code"], error["exit_code"]) == (kind, code)
    assert not (made / "new").exists()


def test_success(made: Path, tmp_path: Path) -> None:
    """A summary goes to stdout and notes to stderr; `--json` prints one document."""
    dry = _document(typed("reshard", "in", OUTPUT, "--max-count", "5", "--dry-run", "--json", cwd=made).out)
    assert [shard["samples"] for shard in dry["shards"]] == [5, 5, 2]
    table = typed("reshard", "in", OUTPUT, "--max-count", "5", "--dry-run", cwd=made)
    assert (table.code, table.err) == (0, "")
    assert "nothing was written" in table.out
    assert not (made / "new").exists()
    ran = typed("reshard", "in", f"{tmp_path}/out-{{000..}}.tar", "--max-count", "5", cwd=made)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("12 samples in 3 shards, ")
    words = ("reshard", "in", f"{tmp_path}/j/out-{{000..}}.tar", "--shuffle", "--method", "scatter", "--max-count", "5")
    ran = typed(*words, "--json", cwd=made)
    document = _document(ran.out)
    assert (ran.code, document["shards"], document["samples"], document["kept"]) == (0, 3, 12, 0)
    source = json.loads((made / "in" / "out.json").read_bytes())["shardtool"]
    assert document["fingerprint"] == source["fingerprint"]
    assert ran.err == ""
    ran = typed(*words, "--overwrite", "--verbose", cwd=made)
    assert "first pass of two" in ran.err


def test_expanded_patterns_are_recognised(made: Path, tmp_path: Path) -> None:
    """Consecutive shard names are the pattern that a shell expanded, for input and output."""
    line = "cd in && $T reshard out-{{000..003}}.tar {out}/a/new-{{000..003}}.tar --quiet"
    ran = shell(line.format(out=tmp_path), made)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    ran = typed("reshard", "in/out.json", f"{tmp_path}/b/new-{{000..003}}.tar", "--quiet", cwd=made)
    assert ran.code == 0
    assert read_tree(tmp_path / "a") == read_tree(tmp_path / "b")
    assert len(shards(tmp_path / "a")) == 4


def test_without_arguments_the_help_is_shown() -> None:
    """Without arguments, the verb prints its help with examples."""
    for words, code in (([], 2), (["--help"], 0)):
        ran = typed("reshard", *words)
        text = ran.out + ran.err
        assert ran.code == code
        assert "Usage: shardtool reshard [OPTIONS] DATASET... OUTPUT" in text
        assert "shardtool reshard out.json 'big-{000000..}.tar' --max-size 5GB" in text
        assert max(map(len, text.splitlines())) <= 120


def _flat(datasets: list[str | list[str]]) -> list[str]:
    return [name for dataset in datasets for name in ([dataset] if isinstance(dataset, str) else dataset)]


DATASETS = st.lists(
    st.sampled_from(["in.json", "in", "x/o-000.tar", "x/o-001.tar", "o-7.tar", "p-003.tar", "i-{0..}.tar", "a/*.tar"]),
    min_size=1, max_size=5,
)  # fmt: skip
OUTPUTS = st.sampled_from(["o-{0..}.tar", "o-<0..9>.tar", "%d.tar"])


@given(datasets=DATASETS, output=OUTPUTS)
def test_the_last_pattern_is_the_output(datasets: list[str], output: str) -> None:
    """A pattern as the last argument is the output; all others are datasets."""
    groups, last = split_datasets((*datasets, output))
    assert (_flat(groups), last) == (datasets, [output])


@given(datasets=DATASETS, first=st.integers(2, 995), count=st.integers(1, 30), width=st.integers(3, 6))
def test_an_expanded_pattern_is_the_output(datasets: list[str], first: int, count: int, width: int) -> None:
    """After expansion by a shell, the consecutive names at the end are the output."""
    names = [f"o-{number:0{width}d}.tar" for number in range(first, first + count)]
    groups, last = split_datasets((*datasets, *names))
    assert (_flat(groups), last) == (datasets, names)


def test_shards_of_a_folder_are_a_dataset() -> None:
    """Consecutive shards of a folder are one dataset; files, folders and patterns are separate datasets."""
    words = ("a/1.tar", "a/2.tar", "b/1.tar", "out.json", "b/2.tar", "b/{0..}.tar", "b/3.tar", "b/*.tar", "dir")
    together = [["a/1.tar", "a/2.tar"], ["b/1.tar"], "out.json", ["b/2.tar"], "b/{0..}.tar", ["b/3.tar"], *words[-2:]]
    assert split_datasets((*words, "o-{0..}.tar")) == (together, ["o-{0..}.tar"])


@pytest.mark.parametrize("words", [("in",), ("o-{0..}.tar",), ("o-000.tar", "o-001.tar"), ("a/o-9.tar",)])
def test_ambiguous_arguments_are_refused(words: tuple[str, ...]) -> None:
    """One argument, or only consecutive names, is refused with an example."""
    with pytest.raises(InvalidRequest, match="a quoted shard pattern as the last argument"):
        split_datasets(words)
