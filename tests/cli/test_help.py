"""Help: one screen, all options, topics, and suggestions for unknown names."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING

import click
import pytest

from shardtool import create
from shardtool.cli import cli
from shardtool.cli.help import VerbCommand, help_topics, read_synonyms, topic_sentences
from tests.helpers import typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.cli.help import VerbOption

_CONTEXT = click.Context(cli)
_LINES, _COLUMNS, _GROUP, _MOST = 40, 100, 12, 88


def _verbs() -> dict[str, VerbCommand]:
    commands = {name: cli.get_command(_CONTEXT, name) for name in cli.list_commands(_CONTEXT)}
    return {name: verb for name, verb in commands.items() if isinstance(verb, VerbCommand)}


VERBS = _verbs()


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


def _shown(text: str) -> set[str]:
    """Return the options that a help text lists."""
    return {
        word for line in text.splitlines() for word in re.findall(r"(?<=^  |, )--[a-z-]+", line.partition("   ")[0])
    }


def _words(options: list[VerbOption]) -> set[str]:
    return {
        word for option in options for word in option.opts if word.startswith("--") and word not in option.former_names
    }


@pytest.mark.parametrize("verb", VERBS)
def test_the_short_help_fits_one_screen(verb: str) -> None:
    """`-h`, and a verb without arguments, print 40 lines of 100 columns: usage, examples, one line per option."""
    ran = typed(verb, "-h")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"Usage: shardtool {verb} ")
    assert len(lines) <= _LINES, lines
    assert max(map(len, lines)) <= _COLUMNS
    common = [option for option in VERBS[verb].options() if option.common]
    assert _shown(ran.out) == _words(common)
    rows = ran.out.partition("Common options:\n")[2].partition("\n\n")[0].splitlines()
    assert not [row for row, more in pairwise(rows) if more.startswith("   ") and "  " in row.strip()]
    assert f"shardtool {verb} " in ran.out.partition("Examples:\n")[2].partition("\n\n")[0]
    alone = typed(verb)
    assert (alone.code, alone.out, alone.err) == (2, "", ran.out)


@pytest.mark.parametrize("verb", VERBS)
def test_the_full_help_lists_all_options(verb: str) -> None:
    """`--help` and `shardtool help VERB` list all but rare options, a dozen per section, and then examples."""
    ran = typed(verb, "--help")
    assert (ran.code, ran.err, typed("help", verb).out) == (0, "", ran.out)
    assert max(map(len, ran.out.splitlines())) <= _COLUMNS
    assert _shown(ran.out) == _words(VERBS[verb].options()) | {"--help" for _ in VERBS[verb].topics()}
    for topic in VERBS[verb].topics():
        here = VERBS[verb].options(topic)
        assert len(here) <= _GROUP, (topic, [option.name for option in here])
        names = [option.common for option in here]
        assert names == sorted(names, reverse=True)
        assert ran.out.index(f"\n{help_topics()[topic].title}:\n") < ran.out.index("\nExamples:\n")


@pytest.mark.parametrize("verb", VERBS)
def test_the_first_sentence_of_an_option_is_short(verb: str) -> None:
    """The first sentence has at most 80 characters, because the short help shows only this sentence."""
    options = [option for option in VERBS[verb].params if isinstance(option, click.Option) and option.help]
    sentences = {option.help.partition(" [default: ")[0].partition(". ")[0] for option in options if option.help}
    assert [text for text in sentences if len(text) > 80] == []


def test_no_verb_has_more_than_88_options() -> None:
    """`create --help` shows the most options: 88. A new option must replace an old one."""
    assert max(len(verb.options()) for verb in VERBS.values()) <= _MOST


@pytest.mark.parametrize("verb", VERBS)
def test_every_topic_has_its_help(verb: str) -> None:
    """`shardtool help VERB TOPIC` lists all options of the section with background."""
    shown: set[str] = set()
    for topic in VERBS[verb].topics():
        ran = typed("help", verb, topic)
        assert (ran.code, ran.err) == (0, "")
        assert max(map(len, ran.out.splitlines())) <= _COLUMNS
        assert all(
            " ".join(sentence.split())[:40] in " ".join(ran.out.split())
            for sentence in topic_sentences(VERBS[verb], topic)
        )
        shown |= _shown(ran.out)
    assert shown == _words(VERBS[verb].options(rare=True))
    wrong = typed("help", verb, "nothing")
    assert (wrong.code, wrong.out) == (2, "")
    assert all(topic in wrong.err for topic in VERBS[verb].topics())


def test_an_option_leads_to_its_topic() -> None:
    """A topic or option without a verb is searched; an option name instead of a topic shows its topic."""
    for word in ("fetch", "--url", "max-time"):
        assert typed("help", "create", word).out == typed("help", "create", "urls").out
        assert "shardtool help create " in typed("help", word).out
    assert "zzzzz: not in the help and the documentation." in typed("help", "zzzzz").err


def test_every_topic_belongs_to_a_verb() -> None:
    """Every topic has options, and every sentence is shown by some verb."""
    used = {topic for verb in VERBS.values() for topic in verb.topics()}
    assert used == {*help_topics()}
    for topic in help_topics():
        sentences = {
            sentence for verb in VERBS.values() if topic in verb.topics() for sentence in topic_sentences(verb, topic)
        }
        assert len(sentences) == len(help_topics()[topic].prose)


def test_a_topic_lists_the_keys_of_fetch() -> None:
    """The topic of `--fetch` lists its keys with text and default."""
    ran = typed("help", "create", "urls")
    assert "  per-host=N          Number of concurrent downloads per host, across all workers. [default: 16]" in ran.out
    assert "  robots=obey|ignore  " in ran.out


def test_the_overview_lists_every_verb() -> None:
    """`shardtool`, `-h`, `--help` and `shardtool help` print one screen with every verb; only the first is an error."""
    ran = typed("--help")
    assert len(ran.out.splitlines()) <= _LINES
    assert all(f"\n  {verb} " in ran.out for verb in cli.list_commands(_CONTEXT))
    assert typed("help").out == typed("-h").out == ran.out
    assert typed("help", "--help").code == 0
    alone = typed()
    assert (alone.code, alone.err) == (2, ran.out)


def test_the_help_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 80 columns only examples are longer, because they are for copying."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = typed("create", "--help").out.splitlines()
    assert [line for line in lines if len(line) > 80 and "shardtool create " not in line and line[:4].strip()] == []
    assert [line for line in lines if re.search(r"--[a-z-]*-$", line)] == []  # no name of an option is torn


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("create a b --force", "Did you mean --overwrite?"),
        ("create a b --num-workers 4", "Did you mean --workers?"),
        ("create a --output b", "OUTPUT is the last argument."),
        ("copy a --output b", "DEST is the last argument."),
        ("verify a --output b", "It is an option of `shardtool index`."),
        ("create a b --max_size 4", "Did you mean --max-size?"),
        ("create a b --maxsize 4", "Did you mean --max-size?"),
        ("create a b --worker 4", "Did you mean --workers?"),
        ("create a b --shufle", "Did you mean --shuffle?"),
        ("create a b --format tar", "The file extension of OUTPUT selects the format: .tar or .tfrecord."),
        ("verify a --exclude x", "It is an option of `shardtool create`."),
        ("copy a b --where x", "It is an option of `shardtool"),
        ("inspect a --dry-run", "It is an option of `shardtool"),
        ("create a b --ignore-errors", "Did you mean --on-error skip?"),
        ("reshard a b --filter x", "Did you mean --where?"),
        ("create a b --splits train=1", "Did you mean --split?"),
        ("reshard a b --dedup", "Did you mean --drop-duplicates?"),
        ("reshard a b --rename-columns a=b", "Did you mean --fields NEW=OLD?"),
        ("extract a b --class cat", "Did you mean --where \"cls == 'NAME'\"?"),
        ("create a b --new-only", "Did you mean --update?"),
    ],
)
def test_an_unknown_option_gets_a_suggestion(words: str, message: str) -> None:
    """An unknown option is refused with a similar option, an explanation, or the verb that has it."""
    ran = typed(*words.split())
    assert (ran.code, ran.out) == (2, "")
    verb, *rest = words.split()
    option = next(word for word in rest if word[:2] == "--")
    assert ran.err.startswith(f"shardtool: {option}: no such option of `shardtool {verb}`. {message}")
    assert len(ran.err.splitlines()) == 1


def test_old_option_names_work(tmp_path: Path) -> None:
    """`inspect --sample --field` and `verify --format` still work."""
    write_tree(tmp_path / "s", {"a.txt": b"text"})
    create(tmp_path / "s", f"{tmp_path}/x-{{0..}}.tar", workers=0)
    for old, new in (("--sample a --field txt", "--show a --raw txt"), ("--sample 0", "--show 0")):
        run, new_run = (typed("inspect", tmp_path / "x.json", *words.split()) for words in (old, new))
        assert (run.code, run.out) == (new_run.code, new_run.out) == (0, run.out)
        assert "text" in run.out
    assert typed("inspect", tmp_path / "x.json", "--sample", "b").err.startswith("shardtool: --sample b: no such")
    assert typed("verify", tmp_path / "x.json", "--format", "junit").out.startswith("<?xml")


def test_options_before_the_verb_are_refused() -> None:
    """An option before the verb is refused with the right order."""
    ran = typed("--json", "create", "a", "b")
    assert "no such option before the verb" in ran.out + ran.err
    assert ran.code == 2
    assert "one VERB and one of its topics" in typed("help", "create", "urls", "more").err


@pytest.mark.parametrize("word", ["--zzz", "--a", "--frobnicate", "--x-y-z"])
def test_no_suggestion_without_a_similar_option(word: str) -> None:
    """Without a similar option, nothing is suggested."""
    err = typed("create", "a", "b", word).err
    assert err == f"shardtool: {word}: no such option of `shardtool create`. See `shardtool create --help`.\n"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("merge", "`shardtool reshard A B OUTPUT` or, for parts of a run, `shardtool index --merge`"),
        ("convert", "`shardtool reshard`"),
        ("ls", "`shardtool inspect DATASET --keys`"), ("info", "`shardtool inspect`"), ("pack", "`shardtool create`"),
        ("unpack", "`shardtool extract`"), ("creat", "`shardtool create`"), ("verfy", "`shardtool verify`"),
        ("validate", "`shardtool verify`"), ("version", "`shardtool --version`"),
        ("dedup", "`shardtool inspect --duplicates` or `shardtool reshard --drop-duplicates`"),
        ("cat", "`shardtool inspect DATASET --show KEY`"), ("train", "`shardtool help training`"),
    ],
)  # fmt: skip
def test_an_unknown_verb_gets_a_suggestion(word: str, message: str) -> None:
    """A verb name of another tool is refused with the verb to use."""
    ran = typed(word, "x")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"shardtool: {word}: no such verb. Did you mean {message}?\n"
    assert "Did you mean" not in typed("qqqq").err


def test_suggested_names_exist() -> None:
    """Suggestions mention only existing options and verbs, and no existing name is redirected."""
    known = {word for verb in VERBS.values() for word in verb.visible_names()}
    for typed_here, meant in read_synonyms("options"):
        assert {*re.findall(r"--[a-z][a-z-]*", meant)} <= known, meant
        assert typed_here
    verbs = {*cli.list_commands(_CONTEXT)}
    for typed_here, meant in read_synonyms("verbs"):
        assert not verbs & {*typed_here}
        assert meant.startswith("-") or meant.replace(",", "").split()[0] in verbs, meant


def test_short_options_mean_the_same_everywhere() -> None:
    """`-j`, `-n`, `-q`, `-f` and `-v` exist in every verb with the long option."""
    short = {"--workers": "-j", "--dry-run": "-n", "--quiet": "-q", "--overwrite": "-f", "--verbose": "-v"}
    for verb in VERBS.values():
        for option in verb.options(rare=True):
            letters = {word for word in option.opts if not word.startswith("--")}
            assert letters == {short[word] for word in option.opts if word in short}, (verb.name, option.name)


def test_an_option_has_the_same_value_in_every_verb() -> None:
    """An option of several verbs has the same kind of value, except `--keys`: `inspect` prints all keys."""
    kinds: dict[str, set[str]] = {}
    for verb in VERBS.values():
        for option in verb.options(rare=True):
            for word in _words([option]):
                kinds.setdefault(word, set()).add("flag" if option.is_flag else option.metavar or "CHOICE")
    assert {word: forms for word, forms in kinds.items() if len(forms) > 1} == {"--keys": {"flag", "KEY"}}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("create --shuffle", "create: no SOURCE... OUTPUT. See `shardtool create --help`."),
        (
            "create a",
            "OUTPUT: not given; expected a quoted shard pattern as the last argument, such as 'out-{000000..}.tar'",
        ),
        ("create a b --max-size", "--max-size: requires an argument. Write --max-size SIZE."),
        ("create a b --shuffle=1", "--shuffle: does not take a value. See `shardtool create --help`."),
        ("reshard a b --method x", "--method: 'x'; expected one of 'auto', 'gather', 'scatter'"),
        ("create a b --stratify", "--stratify: requires an argument. Write --stratify COLUMN."),
        (
            "verify a --report jason",
            "--report: 'jason'; expected one of 'text', 'json', 'junit', 'github'. Did you mean json?",
        ),
        ("verify a --report x", "--report: 'x'; expected one of 'text', 'json', 'junit', 'github'"),
        ("verify a --format=x", "--format: 'x'; expected one of 'text', 'json', 'junit', 'github'"),
        ("create a b --retry-for x", "--retry-for: 'x'; expected seconds, such as 300"),
        (
            "diff a",
            "diff: 1 argument; expected two arguments, A and B. Quote patterns, for example 'out-{000000..}.tar'.",
        ),
    ],
)
def test_usage_errors_have_the_form_of_all_errors(words: str, message: str) -> None:
    """A usage error is one line, or the same parts as data with `--json`; the exit code is 2."""
    ran, as_json = typed(*words.split()), typed(*words.split(), "--json")
    assert (ran.code, ran.out, ran.err) == (2, "", f"shardtool: {message}\n")
    if "requires an argument" not in message:
        error = json.loads(as_json.out)["error"]
        assert (as_json.code, as_json.err, error["code"]) == (2, "", "invalid-request")
        assert message.startswith(f"{error['where']}: {error['found']}")
