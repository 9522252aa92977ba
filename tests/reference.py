"""The reference of the command line, and its man page, from the table that the help is made of: `make reference`.

    python -m tests.reference

writes `docs/reference.md` and `docs/shardtool.1`; a test compares them with what the program says of itself.
"""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import TYPE_CHECKING

import click

from shardtool.cli import _VERB_SUMMARIES, cli
from shardtool.cli.help import VerbCommand, family_options, list_examples, topic_sentences
from tests.helpers import REPO

if TYPE_CHECKING:
    from collections.abc import Iterator

# What stands as code in a page: texts in quotes, options, names with braces, underscores or a scheme.
_WORDS = re.compile(
    r"""("[^"]+"|(?<![\w`/'-])(?:--?[a-z][a-z-]*|[\w.~-]*(?:[{<]|%0)[^ ]*[^ .,:;]|'[^',;| ][^']+'|__\w+__|s3://|gs://|az://|-COLUMN)(?![\w`]))"""
)
_CONTEXT = click.Context(cli, info_name="shardtool")
_EXITS = {
    0: "Done.", 2: "The request makes no sense, or a name cannot be found.", 3: "Findings, or differences.",
    4: "Damaged input.", 5: "The output is there already, or another run is at it.", 6: "Samples cannot be read.",
    7: "The machine failed: disk full, out of memory, a worker killed.", 128: "With a signal's number: interrupted.",
}  # fmt: skip


def verbs() -> dict[str, click.Command]:
    """Return all verbs, in the order of the help."""
    found = {name: cli.get_command(_CONTEXT, name) for name in cli.list_commands(_CONTEXT)}
    return {name: one for name, one in found.items() if one is not None}


def _usage(name: str, verb: click.Command) -> str:
    return f"shardtool {name} {' '.join(verb.collect_usage_pieces(click.Context(verb, parent=_CONTEXT)))}"


def _paragraphs(verb: click.Command) -> list[str]:
    """Return what is said of a verb before its examples; lines that stay as they are begin with a mark."""
    return cleandoc(verb.help or "").partition("\b\nExamples:")[0].strip().split("\n\n")


def _rows(verb: VerbCommand, topic: str) -> list[tuple[str, str]]:
    """Return the options of a topic, rare ones too, and what each does."""
    return [one.record(click.Context(verb)) for one in verb.options(topic, rare=True)]


def markdown() -> str:
    """Return the reference as a page of the documents."""
    return "\n".join([*_markdown(), ""])


def _markdown() -> Iterator[str]:
    yield "# Reference\n\nAll verbs with all of their options, as `shardtool help VERB TOPIC` shows them; there is more"
    yield "on each in [the command line](cli.md). `make reference` writes this page."
    for name, verb in verbs().items():
        yield f"\n## {name}\n\n```\n{_usage(name, verb)}\n```"
        for text in _paragraphs(verb):
            yield f"\n```\n{text[2:]}\n```" if text.startswith("\b") else f"\n{_marked(' '.join(text.split()))}"
        if lines := list_examples(verb):
            yield "\n```bash\n{}\n```".format("\n".join(lines))
        if isinstance(verb, VerbCommand):
            for topic, (title, _) in verb.topics().items():
                yield f"\n### {name}: {title}\n"
                yield from (
                    f"{_marked(' '.join(sentences))}\n" for sentences in [topic_sentences(verb, topic)] if sentences
                )
                yield "| option | what |\n|---|---|"
                yield from (_row(*row) for row in _rows(verb, topic))
                for family, keys in family_options(verb, topic).items():
                    yield f"\n| key of `--{family}` | what |\n|---|---|"
                    yield from (_row(*one.key_record()) for one in keys)
    yield "\n## Exit codes\n\n| code | what |\n|---|---|"
    yield from (f"| {code} | {text} |" for code, text in _EXITS.items())


def _row(names: str, text: str) -> str:
    """Return a row of a table, in which no code has a bar: not every reader of Markdown takes it there."""
    if few := re.search(r"\[([\w-]+(?:\|[\w-]+)+)\]", names):
        names = names.replace(few[0], "CHOICE")
        body, bracket, default = text.partition(" [default: ")
        text = f"{body} One of {few[1].replace('|', ', ')}.{bracket}{default}"
    shown = ", ".join(f"`{one}`" for one in names.replace("|", " or ").split(", "))
    return f"| {shown} | {_marked(text)} |".replace("'|'", "'&#124;'")


def _marked(text: str) -> str:
    """Return a text with words of the command line as code, and nothing in it that Markdown takes for its own."""
    return _WORDS.sub(r"`\1`", text)


def man() -> str:
    """Return the man page."""
    return "\n".join([*_man(), ""])


def _man() -> Iterator[str]:
    yield '.TH SHARDTOOL 1 "" "shardtool" "User Commands"\n.SH NAME'
    yield _plain(f"shardtool - {_sentence(cli)}")
    yield ".SH SYNOPSIS"
    for name, verb in verbs().items():
        yield f".B {_plain(_usage(name, verb))}\n.br"
    yield ".SH DESCRIPTION"
    for name, text in _VERB_SUMMARIES.items():
        yield f".TP\n.B {name}\n{_plain(text)}"
    for name, verb in verbs().items():
        yield f".SH {name.upper()}"
        for text in _paragraphs(verb):
            as_it_is, flowing = f".nf\n{_plain(text[2:])}\n.fi", _plain(" ".join(text.split()))
            yield f"{as_it_is if text.startswith(chr(8)) else flowing}\n.PP"
        if isinstance(verb, VerbCommand):
            for topic, (title, _) in verb.topics().items():
                yield f".SS {_plain(title)}"
                yield from (_plain(sentence) for sentence in topic_sentences(verb, topic))
                yield from (f".TP\n.B {_plain(names)}\n{_plain(text)}" for names, text in _rows(verb, topic))
                for family, keys in family_options(verb, topic).items():
                    yield f".PP\nKeys of {_plain(f'--{family}')}:"
                    records = [one.key_record() for one in keys]
                    yield from (f".TP\n.B {_plain(key)}\n{_plain(text)}" for key, text in records)
        if lines := list_examples(verb):
            yield ".SS Examples\n.nf\n{}\n.fi".format("\n".join(map(_plain, lines)))
    yield ".SH EXIT STATUS"
    yield from (f".TP\n.B {code}\n{text}" for code, text in _EXITS.items())


def _sentence(command: click.Command) -> str:
    return _paragraphs(command)[0].removesuffix(".").lower()


def _plain(text: str) -> str:
    """Return a text in which roff takes nothing for a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def pages() -> dict[str, str]:
    """Return the pages by their paths in the repository."""
    return {"docs/reference.md": markdown(), "docs/shardtool.1": man()}


if __name__ == "__main__":
    for path, text in pages().items():
        (REPO / path).write_text(text, encoding="utf-8")
