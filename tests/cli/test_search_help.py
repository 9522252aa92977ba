"""`shardtool help WORD` finds topics, options and sections of the documentation, and prints what it names."""

from __future__ import annotations

import shlex

import pytest

from tests.helpers import REPO, typed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("coco", "shardtool help have/coco.md"),
        ("label", "shardtool help create --label-from-folder"),
        ("s3", "shardtool help remote.md"),
        ("csv", "shardtool help have/captions.md"),
        ("audio", "shardtool help have/audio.md"),
        ("exit codes", "shardtool help errors.md#exit-codes"),
        ("--join", "shardtool help create --join"),
        ("RESUME", "shardtool help create --resume"),
        ("tables", "shardtool help create tables"),
        ("dedup", "shardtool help create --drop-duplicates"),
        ("stratified split", "shardtool help create --stratify"),
        ("multi gpu", "shardtool help training.md#order-ranks-and-resuming"),
        ("speech", "shardtool help have/audio.md"),
        ("captions", "shardtool help have/captions.md"),
        ("imagenet", "shardtool help have/folder.md"),
        ("imbalance", "shardtool help reshard --per-class"),
    ],
)
def test_a_word_names_the_command_to_read_on(words: str, expected: str) -> None:
    """At most three texts are listed, the one that a reader expects among them, and each command prints its text."""
    ran = typed("help", *words.split())
    assert (ran.code, ran.err) == (0, "")
    commands = [line.strip() for line in ran.out.splitlines() if line.startswith("  shardtool help ")]
    assert expected in commands
    assert 1 <= len(commands) <= 3
    assert max(map(len, ran.out.splitlines())) <= 100
    for command in commands:
        text = typed(*shlex.split(command)[1:])
        assert (text.code, text.err) == (0, "")
        assert text.out.strip()


@pytest.mark.parametrize("words", ["audio", "exit codes", "s3", "masks", "resume", "page"])
def test_excerpts_are_plain_text(words: str) -> None:
    """An excerpt contains no markup, and is not the header of a table."""
    lines = typed("help", *words.split()).out.splitlines()
    excerpts = [line.strip() for line in lines if line.startswith("  ") and "shardtool help" not in line]
    assert excerpts
    for text in excerpts:
        assert [mark for mark in ("](", "`", "|", "**") if mark in text] == []
        assert text not in {"code: meaning", "existing file: what --resume does"}


def test_quoted_words_are_searched_one_by_one() -> None:
    """Words in one argument find the same texts as separate arguments."""
    assert typed("help", "zip archive").out == typed("help", "zip", "archive").out != ""


def test_a_page_and_a_section_are_printed() -> None:
    """A page is printed without its hidden set-up, and a section ends where the next one starts."""
    page = typed("help", "errors.md").out
    section = typed("help", "errors.md#exit-codes").out
    assert section.startswith("## Exit codes\n")
    assert section in page
    assert section.count("\n## ") == 0
    assert "<!--" in (REPO / "docs/have/coco.md").read_text()
    assert "<!--" not in typed("help", "have/coco.md").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["zzzzz"], "zzzzz: not in the help and the documentation. See `shardtool --help`."),
        (["craete"], "craete: no such verb. Did you mean `shardtool create`?"),
        (["zzzzz.md"], "zzzzz.md: no such page; expected one of "),
        (["cli.md#zzzzz"], "cli.md#zzzzz: no such section. `shardtool help cli.md` prints the whole page."),
        (["create", "images", "masks"], "help: 3 arguments; expected one VERB and one of its topics"),
    ],
)
def test_words_without_a_match_are_named(arguments: list[str], message: str) -> None:
    """A word that no text contains is a usage error with a suggestion."""
    ran = typed("help", *arguments)
    assert ran.code == 2
    assert message in ran.err
