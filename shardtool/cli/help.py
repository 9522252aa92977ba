"""The help: a screen of what most runs need (`-h`), all of it (`--help`), and a topic with what is to be known of it.

All three are made of a verb's docstring and of what its options declare (`request/settings.py`). A topic is a section
of options; what is said of it here is said once, and of a verb only as far as it has the options that are named. Who
types an option or a verb that there is not is told what may be meant: a word of another tool, or a slip.
"""

from __future__ import annotations

import os
import re
import shutil
from difflib import get_close_matches
from functools import cache, partial
from inspect import cleandoc
from typing import TYPE_CHECKING, NamedTuple

import click

from shardtool.errors import InvalidRequest
from shardtool.messages import FAMILY_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from click.shell_completion import CompletionItem

_MAX_COLUMNS = 100
_MAX_NAME_COLUMNS = 26  # of names, at most; longer ones have a line of their own
_MAX_BRIEF_EXAMPLES = 6  # on the first screen
_HYPHEN = "\u2011"  # at which no line is broken
_POSITIVE_OPTION = re.compile(r"--(?!no-)[a-z][a-z-]*")
_OPTION_WORD = re.compile(r"--[a-z][a-z-]*")
_OPTION_PREFIX = re.compile(r"^Option '[^']*' ")
CONFIG_OPTIONS = ("config", "save_config")  # which no job has
_MIN_SIMILARITY = 0.75  # of two words, from 0 to 1: a letter more or less, two that changed places
_MEANT_WORDS = re.compile(r"--[a-z][a-z-]*|\b(?:OUTPUT|DEST|DIR|SOURCE|DATASET)\b")
REVOKED_OPTIONS = "shardtool.taken_back"  # in a context: options that `--no-KEY` was typed of, and that


class Topic(NamedTuple):
    """A section of the help.

    Attributes:
        title: What stands above it.
        prose: Sentences about it.
    """

    title: str
    prose: tuple[str, ...] = ()


@cache
def help_topics() -> dict[str, Topic]:
    """Return all topics, in the order of the help."""
    parts = re.findall(r"^\[(\w+)\] (.+)\n((?:.+\n)*)", _read_resource("topics.txt"), re.MULTILINE)
    sentences = re.compile(r"^.+?\.$", re.MULTILINE | re.DOTALL)  # each ends a line
    return {
        name: Topic(title, tuple(" ".join(one.split("\n")) for one in sentences.findall(prose)))
        for name, title, prose in parts
    }


def _read_resource(name: str) -> str:
    from importlib import resources  # which no run needs

    return (resources.files("shardtool.cli") / name).read_text("utf-8")


class VerbOption(click.Option):
    """An option, and what the help is to know of it: see `Facts`."""

    section = "output"
    common = False
    rare = False
    family = ""  # in which it is typed
    old: tuple[str, ...] = ()  # what it was called

    def get_error_hint(self, _ctx: click.Context | None) -> str:
        """Return what an error calls it."""
        return " / ".join(f"'{one}'" for one in self.opts if one not in self.old)

    def record(self, ctx: click.Context) -> tuple[str, str]:
        """Return what the help says of it, without what it was called."""
        names, self.opts = self.opts, [one for one in self.opts if one not in self.old]
        record, self.opts = self.get_help_record(ctx), names
        return record or ("", "")

    def key_record(self) -> tuple[str, str]:
        """Return what the help of a family says of it, as one of the family's keys."""
        key = FAMILY_KEYS[self.name or ""].split()[-1]
        value = "|".join(self.type.choices) if isinstance(self.type, click.Choice) else self.metavar or ""
        return key.format(value), self.help or ""


class HelpShown(click.UsageError):
    """The help of a verb that was called without arguments; the command line prints this text instead of an error."""


def usage_error(error: click.ClickException, verb: str, arguments: Sequence[str]) -> InvalidRequest:
    """Return an error of click in the form of all other errors.

    Args:
        error: What click raised.
        verb: The verb; empty: there is none.
        arguments: The words of the command line: an option is named as it was typed.
    """
    where, found, expected = verb or "shardtool", error.format_message().removesuffix("."), ""
    remedy = f"See `{f'shardtool {verb}'.rstrip()} --help`."
    if isinstance(error, HelpShown):
        found, expected = "no arguments", "SOURCE or DATASET, as the help shows"
    elif isinstance(error, click.BadOptionUsage):
        where, found = error.option_name, _OPTION_PREFIX.sub("", found)
    elif isinstance(error, click.MissingParameter):
        found = f"no {(error.param and error.param.metavar) or 'argument'}"
    elif isinstance(error, click.BadParameter) and error.param is not None:
        names, cause = error.param.opts, error.__cause__
        typed = (word.partition("=")[0] for word in arguments)
        where = next((word for word in typed if word in names), names[0])
        found, _, texts = error.message.removesuffix(".").partition(" is not one of ")
        expected = f"one of {texts}" if texts else ""
        if isinstance(cause, InvalidRequest):
            found, expected = cause.found, cause.expected
        remedy = "" if expected else remedy
    return InvalidRequest(where, found[:1].lower() + found[1:], expected=expected, remedy=remedy)


class VerbCommand(click.Command):
    """A command whose help is a screen, and more where it is asked for."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read what was typed; an option that is none is refused with what may be meant."""
        if not args and not ctx.resilient_parsing:
            raise HelpShown(brief_help(self, ctx), ctx)
        try:
            return self._parse(ctx, args)
        except click.NoSuchOption as error:
            remedy = suggest_option(error.option_name, ctx) or f"See `{ctx.command_path} --help`."
            raise InvalidRequest(error.option_name, f"no such option of `{ctx.command_path}`", remedy=remedy) from None

    def _parse(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read what was typed; `--no-KEY` takes back what a file of options says."""
        try:
            rest = super().parse_args(ctx, [*args])
        except click.NoSuchOption as error:
            word, key = error.option_name, f"--{error.option_name.removeprefix('--no-')}"
            back = [one.name for one in self.params if key in one.opts]
            if not back or back[0] in CONFIG_OPTIONS or word not in args:
                raise
            ctx.meta.setdefault(REVOKED_OPTIONS, {})[back[0]] = word
            args.remove(word)
            return self._parse(ctx, args)
        if ctx.default_map is None and (words := [*ctx.meta.get(REVOKED_OPTIONS, {}).values()]):
            expected = "--config, with a file that sets this option"
            raise InvalidRequest(words[0], "nothing to take back", expected=expected)
        return rest

    def get_help(self, ctx: click.Context) -> str:
        """Return all of the help."""
        return full_help(self, ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the options that complete, but for what they were called before."""
        old = {word for one in self.params if isinstance(one, VerbOption) for word in one.old}
        return [one for one in super().shell_complete(ctx, incomplete) if one.value not in old]

    def options(self, section: str = "", *, rare: bool = False) -> list[VerbOption]:
        """Return the options that are shown, of a section or of all, those of most runs first.

        Args:
            section: Its name; empty: all.
            rare: Those that only their topic shows, too.
        """
        found = [
            one for one in self.params if isinstance(one, VerbOption) and not one.hidden and (rare or not one.rare)
        ]
        found = [one for one in found if section in ("", one.section)]
        order = [*help_topics()]
        return sorted(found, key=lambda one: (not one.common, order.index(one.section)))

    def shown(self) -> list[str]:
        """Return what its options are called."""
        return [word for one in self.options(rare=True) for word in one.opts if word not in one.old]

    def find_topic(self, name: str) -> str:
        """Return the topic that is called so, or has the option of that name; empty: there is none."""
        word = f"--{name.lstrip('-')}"
        found = (one.section for one in self.params if isinstance(one, VerbOption) and word in one.opts)
        return name if name in self.topics() else next(found, "")

    def topics(self) -> dict[str, Topic]:
        """Return the topics of which it has options."""
        named = {one.section for one in self.options(rare=True)}
        return {name: topic for name, topic in help_topics().items() if name in named}


@cache
def read_meanings(kind: str) -> list[tuple[list[str], str]]:
    """Return what people type of a kind, `options` or `verbs`, and what is meant by that."""
    lines = _read_resource("meant.txt").partition(f"[{kind}]\n")[2].partition("\n\n")[0].splitlines()
    return [(typed.split(), meant) for typed, _, meant in (line.partition(": ") for line in lines)]


def restore_typed_names(
    texts: Mapping[str, object], command: click.Command, arguments: Sequence[str]
) -> dict[str, str]:
    """Return where an error is and what was found, with options named as they were typed: by an old name."""
    typed, renamed = {word.partition("=")[0] for word in arguments}, {}
    for option in command.params:
        names = {*option.opts}
        if isinstance(option, VerbOption) and (old := typed.intersection(option.old)) and typed & names == old:
            renamed[option.opts[0]] = min(old)
    replace = partial(_OPTION_WORD.sub, lambda word: renamed.get(word[0], word[0]))
    return {name: replace(str(texts[name])) for name in ("where", "found")} if renamed else {}


def refuse_loose_value(names: Sequence[str], context: click.Context) -> None:
    """Refuse an argument that rather belongs to the option before it, as in `--max-size 1 GB` and `-n 5`.

    Raises:
        InvalidRequest: There is such an argument.
    """
    words = context.obj if isinstance(context.obj, list) else []
    for name in names:
        at = words.index(name) if name in words and not os.path.exists(name) else 0
        option, value = words[at - 2 : at] if at > 1 else ("", "")
        if not name.isdigit() and option[:2] == "--" and re.fullmatch(r"[0-9.]+", value):
            found, remedy = f"{name} was taken for an argument", f"Write {option} {value}{name}."
            raise InvalidRequest(f"{option} {value} {name}", found, expected="one word", remedy=remedy)
        if name.isdigit() and value == "-n":
            known = {one for option in context.command.params for one in option.opts}
            remedy = f"To use only the first {name} samples, write --head {name}." if "--head" in known else ""
            if not remedy and {"--where", "--keys-from"} <= known:
                remedy = "To choose samples, use --where or --keys-from."
            raise InvalidRequest(f"-n {name}", f"-n is --dry-run, and {name} was taken for an argument", remedy=remedy)


def suggest_verb(typed: str, verbs: Iterable[str]) -> str:
    """Return what may be meant by a verb that there is not; empty: nothing that is near."""
    known = [*verbs]
    for typed_here, meant in read_meanings("verbs"):
        if typed.lower() in typed_here and (meant.startswith("-") or meant.replace(",", "").split()[0] in known):
            return f"Did you mean `shardtool {meant}`?"
    near = get_close_matches(typed.lower(), known, 2, _MIN_SIMILARITY)
    return f"Did you mean {' or '.join(f'`shardtool {one}`' for one in near)}?" if near else ""


def suggest_option(option: str, ctx: click.Context) -> str:
    """Return what may be meant by an option that the context's verb does not have; empty: nothing that is near."""
    arguments = [word.strip(".") for one in ctx.command.collect_usage_pieces(ctx) for word in one.split()]
    known = {*arguments, *(ctx.command.shown() if isinstance(ctx.command, VerbCommand) else ())}
    word = option.lower().replace("_", "-").lstrip("-")
    if alike := [one for one in known if one.replace("-", "") == word.replace("-", "")]:
        return f"Did you mean {alike[0]}?"
    for typed, meant in read_meanings("options"):
        if word in typed and known.issuperset(_MEANT_WORDS.findall(meant)):
            return f"Did you mean {meant}?" if meant.startswith("-") else meant
    if verbs := [f"`shardtool {verb}`" for verb, theirs in _options_of_other_verbs(ctx).items() if option in theirs]:
        return f"It is an option of {' and '.join([', '.join(verbs[:-1]), verbs[-1]] if verbs[1:] else verbs)}."
    near = get_close_matches(word, sorted(one[2:] for one in known if one.startswith("--")), 2, _MIN_SIMILARITY)
    return f"Did you mean {' or '.join(f'--{one}' for one in near)}?" if near else ""


def _options_of_other_verbs(ctx: click.Context) -> dict[str, list[str]]:
    """Return the options of all verbs but the context's."""
    group = ctx.parent.command if ctx.parent else None
    if not isinstance(group, click.Group):
        return {}
    verbs = {name: group.get_command(ctx, name) for name in group.list_commands(ctx) if name != ctx.command.name}
    return {name: verb.shown() for name, verb in verbs.items() if isinstance(verb, VerbCommand)}


class _HelpPage(click.HelpFormatter):
    """A page as wide as the terminal, up to 100 columns, on which no line ends within an option's name."""

    def __init__(self) -> None:
        super().__init__(width=min(_MAX_COLUMNS, max(50, shutil.get_terminal_size((_MAX_COLUMNS, 24)).columns)))

    def write_text(self, text: str) -> None:
        """Write paragraphs."""
        super().write_text(text.replace("-", _HYPHEN))

    def close(self, text: str) -> str:
        """Return the page with a paragraph at its end."""
        if text:
            self.write_paragraph()
            self.write_text(text)
        return self.getvalue().replace(_HYPHEN, "-").rstrip("\n")

    def list_options(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Write options, and what each does, if there are any."""
        if rows:
            with self.section(title):
                self.write_dl([(names, text.replace("-", _HYPHEN)) for names, text in rows], col_max=_MAX_NAME_COLUMNS)

    def list_examples(self, lines: Sequence[str]) -> None:
        """Write lines as they are, if there are any."""
        if lines:
            with self.section("Examples"):
                self.write("".join(f"  {line}\n" for line in lines))


def overview_help(group: click.Group, ctx: click.Context, verbs: dict[str, str]) -> str:
    """Return the help of all verbs.

    Args:
        group: What has them.
        ctx: Its context.
        verbs: What each does.
    """
    page = _start_page(group, ctx)
    page.list_options("Verbs", [*verbs.items()])
    page.list_examples(list_examples(group))
    return page.close(cleandoc(group.help or "").rpartition("\n\n")[2])


def brief_help(verb: VerbCommand, ctx: click.Context) -> str:
    """Return the help of one screen."""
    page, known = _start_page(verb, ctx), verb.topics()
    page.list_examples(list_examples(verb)[:_MAX_BRIEF_EXAMPLES])
    records = [one.record(ctx) for one in verb.options() if one.common]
    page.list_options("Common options", [(names, _first_sentence(text)) for names, text in records])
    more = f", or shardtool help {verb.name} TOPIC ({', '.join(known)})" if len(known) > 1 else ""
    return page.close(f"More: shardtool {verb.name} --help{more}.")


def full_help(verb: VerbCommand, ctx: click.Context) -> str:
    """Return all of the help but what only topics say."""
    page, known = _start_page(verb, ctx, all_of_it=True), verb.topics()
    for name, topic in known.items():
        rows = [one.record(ctx) for one in verb.options(name)]
        rows += [("-h, --help", "Show what most runs need (-h), or all (--help).")] if name == "output" else []
        page.list_options(topic.title, rows)
    return page.close(f"More: shardtool help {verb.name} TOPIC, which is one of: {', '.join(known)}." if known else "")


def topic_help(verb: VerbCommand, ctx: click.Context, name: str) -> str:
    """Return what is to be known of a topic, or of that which has an option.

    Raises:
        InvalidRequest: The verb has no such topic.
    """
    known, asked = verb.topics(), name
    if not (name := verb.find_topic(asked)):
        raise InvalidRequest(asked, f"no such topic of `{ctx.command_path}`", expected=f"one of {', '.join(known)}")
    page, here = _HelpPage(), verb.options(name, rare=True)
    page.write_text(f"shardtool {verb.name}: {known[name].title}")
    if sentences := topic_sentences(verb, name):
        page.write_paragraph()
        with page.indentation():
            page.write_text(" ".join(sentences))
    page.list_options("Options", [one.record(ctx) for one in here])
    for family, keys in family_options(verb, name).items():
        page.list_options(f"Keys of --{family}", [one.key_record() for one in keys])
    words = {word for one in here for word in one.opts if word.startswith("--")}
    page.list_examples([line for line in list_examples(verb) if words & {*line.split()}])
    return page.close("")


def topic_sentences(verb: VerbCommand, name: str) -> list[str]:
    """Return what is said of a topic, as far as a verb has the options that are named there."""
    known = {word for one in verb.params for word in one.opts}
    return [one for one in help_topics()[name].prose if known.issuperset(_POSITIVE_OPTION.findall(one))]


def family_options(verb: VerbCommand, name: str) -> dict[str, list[VerbOption]]:
    """Return the keys of each option of a topic that takes `key=value`."""
    found: dict[str, list[VerbOption]] = {}
    for one in verb.params:
        if isinstance(one, VerbOption) and one.section == name and one.family and " " not in one.family:
            found.setdefault(one.family, []).append(one)
    return found


def _start_page(command: click.Command, ctx: click.Context, *, all_of_it: bool = False) -> _HelpPage:
    """Return a page with the usage, and what is said of the verb: a sentence, or all of it."""
    page, text = _HelpPage(), cleandoc(command.help or "")
    page.write_usage(ctx.command_path, " ".join(command.collect_usage_pieces(ctx)))
    page.write_paragraph()
    with page.indentation():
        page.write_text(text if all_of_it else text.split("\n\n")[0])
    return page


def list_examples(command: click.Command) -> list[str]:
    """Return the examples of a command, a line each."""
    text = cleandoc(command.help or "").partition("Examples:\n")[2].partition("\n\n")[0]
    return [line.strip() for line in text.splitlines()]


def _first_sentence(text: str) -> str:
    text, bracket, default = text.replace("; repeatable.", ".").partition(" [default: ")
    return (
        text.partition(". ")[0].removesuffix(".")
        + "."
        + (bracket + default if len(default) < _MAX_NAME_COLUMNS else "")
    )
