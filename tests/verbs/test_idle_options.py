"""Laws of options without effect: a run refuses them, or a note names them."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from shardtool import CreateOptions, InvalidRequest, create
from shardtool.request.results import JoinedTable
from tests.helpers import typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

HINT, BOTH = "              to write ", "--field cls=label --field txt=caption"
TABLE = b"id,label,caption\n0,3,a cat\n1,4,a dog\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give a folder of two samples, a table about them, and a table without paths."""
    return write_tree(tmp_path, {"src/0.jpg": b"1", "src/1.jpg": b"2", "t.csv": TABLE})


def _create(place: Path, *words: str) -> tuple[int, list[str]]:
    ran = typed("create", *words, "out/x-{0..}.tar", "--workers", "0", "--overwrite", cwd=place)
    return ran.code, [line for line in ran.err.splitlines() if line.startswith(("note:", "shardtool:"))]


@pytest.mark.parametrize("value", ["all", "none", "label"])
def test_meta_of_a_folder_is_refused(value: str, place: Path) -> None:
    """Each value of `--meta` requires a table; with `--join`, the message names the option that creates a field."""
    code, message = _create(place, "src", "--join", "t.csv", "--on", "id", "--meta", value)
    assert (code, len(message)) == (2, 1)
    assert message[0].startswith("shardtool: --meta: the source is a folder; expected a manifest, or not this option. ")
    assert message[0].endswith(
        "--join are stored in the sidecars. Use --field FIELD=COLUMN to create a field from one."
    )
    with pytest.raises(InvalidRequest, match="meta: the source is a folder; expected a manifest, or not this option"):
        create(place / "src", f"{place}/x-{{0..}}.tar", CreateOptions(meta=value))


def test_meta_all_of_a_table_is_the_default(place: Path) -> None:
    """`--meta all` and no `--meta` are the same request, of the same bytes."""
    for folder, words in (("a", ["--meta", "all"]), ("b", [])):
        output = f"{folder}/x-{{0..}}.tar"
        assert typed("create", "t.csv", output, "--field", "txt=caption", *words, cwd=place).code == 0
    first, second = ((place / folder / "x.json").read_bytes() for folder in "ab")
    assert first == second
    assert b'"meta"' not in first


def test_the_summary_lists_joined_columns(place: Path) -> None:
    """The summary and `--json` list the columns in the sidecars, the fields, and an option for the other columns."""
    words = ["src", "--join", "t.csv", "--on", "id"]
    everything = "joined        t.csv: 2 columns in the sidecars (label, caption), "
    for more in ([], ["--dry-run"], ["--where", "label > 2"], ["--split-by", "label"]):
        output = "out/{split}-{0..}.tar" if "--split-by" in more else "out/x-{0..}.tar"
        ran = typed("create", *words, output, "--workers", "0", "--overwrite", *more, cwd=place)
        assert f"{everything}none in the shards\n{HINT}them to the shards, too: {BOTH}\n" in ran.out
        assert (ran.code, "note:" in ran.err) == (0, False)
    ran = typed("create", *words, "x-{0..}.tar", "--field", "cls=label", cwd=place)
    advice = "--field txt=caption"
    assert f"{everything}as fields in the shards: cls=label\n{HINT}caption to the shards, too: {advice}\n" in ran.out
    ran = typed(
        "create", *words, "x-{0..}.tar", "--field", "cls=label", "--dry-run", "--json", "--overwrite", cwd=place
    )
    expected = {"table": "t.csv", "columns": ["label", "caption"], "fields": {"cls": "label"}, "advice": advice}
    assert json.loads(ran.out)["joined"] == expected
    ran = typed("reshard", "x.json", "y-{0..}.tar", *words[1:], *BOTH.split(), "--json", cwd=place)
    assert json.loads(ran.out)["joined"] == {**expected, "fields": {"cls": "label", "txt": "caption"}, "advice": ""}


def test_python_and_plans_report_joined_columns(place: Path) -> None:
    """The result of a call has `joined`, also if the samples come from a plan file."""
    words = ["src", "x-{0..}.tar", "--join", "t.csv", "--on", "id"]
    assert typed("create", *words, "--plan-only", "p.parquet", cwd=place).code == 0
    ran = typed("create", *words, "--plan", "p.parquet", cwd=place)
    assert f"{HINT}them to the shards, too: {BOTH}\n" in ran.out
    result = create(place / "src", f"{place}/y-{{0..}}.tar", CreateOptions(join=place / "t.csv", on="id", workers=0))
    assert result.joined == JoinedTable("t.csv", ("label", "caption"), {}, "field={'cls': 'label', 'txt': 'caption'}")
    assert create(place / "src", f"{place}/z-{{0..}}.tar", workers=0).joined is None


@pytest.mark.parametrize(
    ("columns", "advice"),
    [
        ({"caption": "a"}, "txt=caption"),
        ({"emb": [1, 2]}, "emb.json=emb"),
        ({"a b": "x"}, "'txt=a b'"),
        ({"a": "x", "a b": "y", "A.b": "z"}, "a.txt=a --field 'a_b.txt=a b' --field a_b2.txt=A.b"),
        ({"jpg": 1, "n": 2, "score": 0.5}, "jpg.cls=jpg --field n.cls=n --field score.json=score"),
    ],
)
def test_the_advised_fields_can_be_created(columns: dict[str, object], advice: str, place: Path) -> None:
    """The advised option works for texts, lists, several columns of a type, and names that a shell would split."""
    rows = [json.dumps({"key": str(number), **columns}) for number in range(2)]
    (place / "t.jsonl").write_text("\n".join(rows))
    words = ["create", "src", "o-{0..}.tar", "--join", "t.jsonl", "--on", "key", "--overwrite"]
    ran = typed(*words, cwd=place)
    assert f"to the shards, too: --field {advice}\n" in ran.out
    ran = typed(*words, *shlex.split(f"--field {advice}"), cwd=place)
    assert (ran.code, " to the shards, too" in ran.out) == (0, False)


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["src", "--resize-mode", "crop"], "--resize-mode has no effect without --resize"),
        (
            ["t.csv", "--field", "txt=caption", "--root", "src"],
            "--root: no effect, because no column contains file paths",
        ),
        (
            ["t.csv", "--field", "txt=caption", "--no-stat", "--dry-run"],
            "--no-stat: no effect, because no column contains file paths",
        ),
    ],
)
def test_an_option_without_effect_has_a_note(words: list[str], note: str, place: Path) -> None:
    """Options that act only together with others, or on other tables, are named."""
    code, message = _create(place, *words)
    assert (code, f"note: {note}" in message) == (0, True)


def test_max_removed_without_resume_has_a_note(place: Path) -> None:
    """`--max-removed` limits what `--resume` removes."""
    ran = typed("create", "src", "x-{0..}.tar", "--max-removed", "5%", cwd=place)
    assert (ran.code, "note: --max-removed has no effect without --resume\n" in ran.err) == (0, True)
    ran = typed("create", "src", "x-{0..}.tar", "--max-removed", "5%", "--resume", cwd=place)
    assert (ran.code, "no effect" in ran.err) == (0, False)


def test_a_size_column_that_is_not_read_has_a_note(place: Path) -> None:
    """`--size-column` is for plans that look at no file."""
    (place / "p.csv").write_text("path,n\nsrc/0.jpg,1\nsrc/1.jpg,1\n")
    code, message = _create(place, "p.csv", "--size-column", "n")
    assert (code, "note: --size-column has no effect without --no-stat" in message) == (0, True)
    code, message = _create(place, "p.csv", "--size-column", "n", "--no-stat", "--dry-run")
    assert (code, [line for line in message if "no effect" in line]) == (0, [])


@pytest.mark.parametrize(("words", "name"), [(["--memory", "1GB"], "--memory"), (["--temp-dir", "."], "--temp-dir")])
def test_options_of_scatter_have_a_note(words: list[str], name: str, place: Path) -> None:
    """`--method gather` has no use for what scatter may take."""
    assert _create(place, "src")[0] == 0
    ran = typed("reshard", "out/x.json", "r-{0..}.tar", "--method", "gather", *words, cwd=place)
    assert (ran.code, f"note: {name} has no effect with --method gather\n" in ran.err) == (0, True)
