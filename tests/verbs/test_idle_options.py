"""Laws of options without effect: a run refuses them, or a note names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardtool import CreateOptions, InvalidRequest, create
from tests.helpers import typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

TABLE = b"id,label,caption\n0,3,a cat\n1,4,a dog\n"
IN_SIDECARS = "note: columns of t.csv are stored in the sidecars, not in the shards: label, caption"


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
    code, said = _create(place, "src", "--join", "t.csv", "--on", "id", "--meta", value)
    assert (code, len(said)) == (2, 1)
    assert said[0].startswith("shardtool: --meta: the source is a folder; expected a manifest, or not this option. ")
    assert said[0].endswith("--join are stored in the sidecars. Use --field FIELD=COLUMN to create a field from one.")
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


def test_a_join_alone_says_where_its_columns_are(place: Path) -> None:
    """If no option names a column of the joined table, a note says that shards lack them, and how to add them."""
    code, said = _create(place, "src", "--join", "t.csv", "--on", "id")
    assert (code, said) == (0, [f"{IN_SIDECARS} (make one a field with --field cls=label)"])
    assert _create(place, "src", "--join", "t.csv", "--on", "id", "--field", "cls=label") == (0, [])
    result = create(place / "src", f"{place}/y-{{0..}}.tar", CreateOptions(join=place / "t.csv", on="id"))
    assert result.notes[0].endswith("(make one a field with field={'cls': 'label'})")
    ran = typed("reshard", "y.json", "z-{0..}.tar", "--join", "t.csv", "--on", "id", cwd=place)
    assert (ran.code, IN_SIDECARS in ran.err) == (0, True)


@pytest.mark.parametrize(
    ("column", "kind", "field"),
    [("caption", '"a"', "txt=caption"), ("emb", "[1, 2]", "emb.json=emb"), ("a b", '"x"', "'txt=a b'")],
)
def test_the_field_of_the_note_can_be_made(column: str, kind: str, field: str, place: Path) -> None:
    """The option that the note names works for texts, lists, and names that a shell would read."""
    rows = "".join(f'{{"key": "{at}", "{column}": {kind}}}\n' for at in range(2))
    (place / "t.jsonl").write_text(rows)
    code, said = _create(place, "src", "--join", "t.jsonl", "--on", "key")
    assert (code, said[0].endswith(f"(make one a field with --field {field})")) == (0, True)
    assert _create(place, "src", "--join", "t.jsonl", "--on", "key", "--field", field.strip("'")) == (0, [])


@pytest.mark.parametrize(
    "words", [["--where", "label > 2"], ["--sort-by", "label"], ["--sort-by", "-caption"], ["--field", "txt=caption"]]
)
def test_a_join_that_is_used_needs_no_note(words: list[str], place: Path) -> None:
    """A column that chooses or sorts samples has done what it was joined for."""
    code, said = _create(place, "src", "--join", "t.csv", "--on", "id", *words)
    assert (code, [line for line in said if line.startswith(IN_SIDECARS)]) == (0, [])


def test_a_join_that_splits_needs_no_note(place: Path) -> None:
    """Neither has a column that divides samples."""
    words = ["--join", "t.csv", "--on", "id", "--split-by", "label"]
    ran = typed("create", "src", "o/{split}-{0..}.tar", *words, cwd=place)
    assert (ran.code, "go into the sidecars" in ran.err) == (0, False)


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
    code, said = _create(place, *words)
    assert (code, f"note: {note}" in said) == (0, True)


def test_max_removed_without_resume_has_a_note(place: Path) -> None:
    """`--max-removed` limits what `--resume` removes."""
    ran = typed("create", "src", "x-{0..}.tar", "--max-removed", "5%", cwd=place)
    assert (ran.code, "note: --max-removed has no effect without --resume\n" in ran.err) == (0, True)
    ran = typed("create", "src", "x-{0..}.tar", "--max-removed", "5%", "--resume", cwd=place)
    assert (ran.code, "no effect" in ran.err) == (0, False)


def test_a_size_column_that_is_not_read_has_a_note(place: Path) -> None:
    """`--size-column` is for plans that look at no file."""
    (place / "p.csv").write_text("path,n\nsrc/0.jpg,1\nsrc/1.jpg,1\n")
    code, said = _create(place, "p.csv", "--size-column", "n")
    assert (code, "note: --size-column has no effect without --no-stat" in said) == (0, True)
    code, said = _create(place, "p.csv", "--size-column", "n", "--no-stat", "--dry-run")
    assert (code, [line for line in said if "no effect" in line]) == (0, [])


@pytest.mark.parametrize(("words", "name"), [(["--memory", "1GB"], "--memory"), (["--temp-dir", "."], "--temp-dir")])
def test_options_of_scatter_have_a_note(words: list[str], name: str, place: Path) -> None:
    """`--method gather` has no use for what scatter may take."""
    assert _create(place, "src")[0] == 0
    ran = typed("reshard", "out/x.json", "r-{0..}.tar", "--method", "gather", *words, cwd=place)
    assert (ran.code, f"note: {name} has no effect with --method gather\n" in ran.err) == (0, True)
