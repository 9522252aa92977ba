"""Write the help: on one screen (`-h`), in full (`--help`), for a topic, or for a word.

A topic is a section of options with background text from `topics.txt`. `shardtool help WORD` searches topics, options
and documentation pages. `synonyms.txt` lists options and verbs of other tools, for suggestions.
"""

from __future__ import annotations

import os
import re
from functools import cache, partial
from inspect import cleandoc
from typing import TYPE_CHECKING, NamedTuple

import click

from shardtool.cli.output import terminal_width
from shardtool.errors import InvalidRequest
from shardtool.messages import PARENT_FORMS
from shardtool.request.option_checks import suggest_choice
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from click.shell_completion import CompletionItem


_MAX_COLUMNS = 100
_MAX_NAME_COLUMNS = 26  # longer option names get their own line
_MAX_BRIEF_EXAMPLES = 6
_HYPHEN = "\u2011"  # non-breaking, so option names stay on one line
_POSITIVE_OPTION = re.compile(r"--(?!no-)[a-z][a-z-]*")
_OPTION_WORD = re.compile(r"--[a-z][a-z-]*")
_QUOTED = re.compile(r"'([^']*)'")
_OPTION_PREFIX = re.compile(r"^Option '[^']*' ")
CONFIG_OPTIONS = ("config", "save_config")  # not allowed in job files
_MIN_SIMILARITY = 0.75  # this allows one wrong, missing or swapped letter
_MEANT_WORDS = re.compile(r"--[a-z][a-z-]*|\b(?:OUTPUT|DEST|DIR|SOURCE|DATASET)\b")
REVOKED_OPTIONS = "shardtool.taken_back"  # key in `Context.meta` for the options that `--no-KEY` turns off


class Topic(NamedTuple):
    """The title and the sentences of a help topic."""

    title: str
    prose: tuple[str, ...] = ()


@cache
def help_topics() -> dict[str, Topic]:
    """Return all topics by name, in the order of the help."""
    parts = re.findall(r"^\[(\w+)\] (.+)\n((?:.+\n)*)", _read_resource("topics.txt"), re.MULTILINE)
    sentences = re.compile(r"^.+?\.$", re.MULTILINE | re.DOTALL)  # a full stop at the end of a line ends a sentence
    return {
        name: Topic(title, tuple(" ".join(sentence.split("\n")) for sentence in sentences.findall(prose)))
        for name, title, prose in parts
    }


def _read_resource(name: str) -> str:
    from importlib import resources

    return (resources.files("shardtool.cli") / name).read_text("utf-8")


class VerbOption(click.Option):
    """A click option with attributes that the help needs."""

    section = "output"
    common = False
    rare = False
    parent = ""
    former_names: tuple[str, ...] = ()  # former names: accepted, but not shown

    def get_error_hint(self, _ctx: click.Context | None) -> str:
        """Return the names of the option for error messages."""
        return " / ".join(f"'{name}'" for name in self.opts if name not in self.former_names)

    def record(self, ctx: click.Context) -> tuple[str, str]:
        """Return the option's names (without former names) and the help text."""
        names, self.opts = self.opts, [name for name in self.opts if name not in self.former_names]
        record, self.opts = self.get_help_record(ctx), names
        return record or ("", "")

    def key_record(self) -> tuple[str, str]:
        """Return `key=VALUE` and the help text of a sub-option, such as `per-host` of `--fetch`."""
        key = PARENT_FORMS[self.name or ""].split()[-1]
        value = "|".join(self.type.choices) if isinstance(self.type, click.Choice) else self.metavar or ""
        return key.format(value), self.help or ""


class HelpShown(click.UsageError):
    """Raised to print the help of a verb if the user types no arguments."""


def usage_error(error: click.ClickException, verb: str, arguments: Sequence[str]) -> InvalidRequest:
    """Convert an error of click to `InvalidRequest`, and keep option names as the user typed them."""
    where = verb or "shardtool"
    found, expected = error.format_message().removesuffix("."), ""
    remedy = f"See `{f'shardtool {verb}'.rstrip()} --help`."
    if isinstance(error, HelpShown):
        found, expected = "no arguments", "arguments as in the help"
    elif isinstance(error, click.BadOptionUsage):
        where, found = error.option_name, _OPTION_PREFIX.sub("", found)
        params = error.ctx.command.params if error.ctx and found.startswith("requires") else []
        values = [param.metavar or param.type.name.upper() for param in params if where in param.opts]
        remedy = f"Write {where} {values[0]}." if values else remedy
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
        remedy = suggest_choice(found.strip("'"), _QUOTED.findall(texts)) if expected else remedy
    return InvalidRequest(where, found[:1].lower() + found[1:], expected=expected, remedy=remedy)


class VerbCommand(click.Command):
    """A verb that has three levels of help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments. Suggest a name for an unknown option."""
        if not args and not ctx.resilient_parsing:
            raise HelpShown(brief_help(self, ctx), ctx)
        try:
            return self._parse(ctx, args)
        except click.NoSuchOption as error:
            remedy = suggest_option(error.option_name, ctx) or f"See `{ctx.command_path} --help`."
            raise InvalidRequest(error.option_name, f"no such option of `{ctx.command_path}`", remedy=remedy) from None
        except click.BadOptionUsage as error:
            error.ctx = ctx
            raise

    def _parse(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, [*args])
        except click.NoSuchOption as error:
            word, key = error.option_name, f"--{error.option_name.removeprefix('--no-')}"
            revoked = [param.name for param in self.params if key in param.opts]
            if not revoked or revoked[0] in CONFIG_OPTIONS or word not in args:
                raise
            ctx.meta.setdefault(REVOKED_OPTIONS, {})[revoked[0]] = word
            args.remove(word)
            return self._parse(ctx, args)
        if ctx.default_map is None and (words := [*ctx.meta.get(REVOKED_OPTIONS, {}).values()]):
            expected = "--config with a job file that sets this option"
            raise InvalidRequest(words[0], "no job file to override", expected=expected)
        return rest

    def get_help(self, ctx: click.Context) -> str:
        """Return the full help."""
        return full_help(self, ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return completions, except former names of options."""
        old = {name for param in self.params if isinstance(param, VerbOption) for name in param.former_names}
        return [item for item in super().shell_complete(ctx, incomplete) if item.value not in old]

    def options(self, section: str = "", *, rare: bool = False) -> list[VerbOption]:
        """Return the visible options of a section or of all sections, common options first."""
        options = [
            option
            for option in self.params
            if isinstance(option, VerbOption) and not option.hidden and (rare or not option.rare)
        ]
        options = [option for option in options if section in ("", option.section)]
        order = [*help_topics()]
        return sorted(options, key=lambda option: (not option.common, order.index(option.section)))

    def visible_names(self) -> list[str]:
        """Return the names of all visible options."""
        return [name for option in self.options(rare=True) for name in option.opts if name not in option.former_names]

    def find_topic(self, name: str) -> str:
        """Return the topic `name`, or the topic that contains the option `name`, or ""."""
        word = f"--{name.lstrip('-')}"
        sections = (param.section for param in self.params if isinstance(param, VerbOption) and word in param.opts)
        return name if name in self.topics() else next(sections, "")

    def topics(self) -> dict[str, Topic]:
        """Return the topics of the verb's options."""
        sections = {option.section for option in self.options(rare=True)}
        return {name: topic for name, topic in help_topics().items() if name in sections}


@cache
def read_synonyms(kind: str) -> list[tuple[list[str], str]]:
    """Return pairs: names in other tools, and shardtool's name or advice. `kind` is `options`, `verbs` or `help`."""
    lines = _read_resource("synonyms.txt").partition(f"[{kind}]\n")[2].partition("\n\n")[0].splitlines()
    return [(names.split(), meaning) for names, _, meaning in (line.partition(": ") for line in lines)]


def restore_typed_names(
    texts: Mapping[str, object], command: click.Command, arguments: Sequence[str]
) -> dict[str, str]:
    """Replace option names in the texts of an error by the former names that the user typed.

    Return the new texts `where` and `found`, or {} if the user typed no former name.
    """
    typed, renamed = {word.partition("=")[0] for word in arguments}, {}
    for option in command.params:
        names = {*option.opts}
        if isinstance(option, VerbOption) and (old := typed.intersection(option.former_names)) and typed & names == old:
            renamed[option.opts[0]] = min(old)
    replace = partial(_OPTION_WORD.sub, lambda word: renamed.get(word[0], word[0]))
    return {name: replace(str(texts[name])) for name in ("where", "found")} if renamed else {}


def refuse_stray_value(names: Sequence[str], context: click.Context) -> None:
    """Raise InvalidRequest if an argument is probably part of an option's value, as in `--max-size 1 GB`."""
    words = context.obj if isinstance(context.obj, list) else []
    for name in names:
        if name in ("==", "!="):
            remedy = "Quote the whole query: --where \"label == 'dog'\"."
            raise InvalidRequest(name, "is read as an argument", expected="a query in quotes", remedy=remedy)
        index = words.index(name) if name in words and not os.path.exists(name) else 0
        option, value = words[index - 2 : index] if index > 1 else ("", "")
        if not name.isdigit() and option[:2] == "--" and re.fullmatch(r"[0-9.]+", value):
            found, remedy = f"{name} is read as an argument", f"Write {option} {value}{name}."
            raise InvalidRequest(f"{option} {value} {name}", found, expected="one word", remedy=remedy)
        if name.isdigit() and value == "-n":
            options = {opt for param in context.command.params for opt in param.opts}
            remedy = f"To use only the first {name} samples, write --head {name}." if "--head" in options else ""
            if not remedy and {"--where", "--keys-from"} <= options:
                remedy = "To select samples, use --where or --keys-from."
            raise InvalidRequest(f"-n {name}", f"-n means --dry-run, and {name} is read as an argument", remedy=remedy)


def suggest_verb(typed: str, verbs: Iterable[str]) -> str:
    """Return a suggestion for an unknown verb, or ""."""
    known_verbs = [*verbs]
    for names, meaning in read_synonyms("verbs"):
        if typed.lower() in names and (meaning.startswith("-") or meaning.replace(",", "").split()[0] in known_verbs):
            return f"Did you mean `shardtool {meaning}`?"
    from difflib import get_close_matches

    similar = get_close_matches(typed.lower(), known_verbs, 2, _MIN_SIMILARITY)
    return f"Did you mean {' or '.join(f'`shardtool {verb}`' for verb in similar)}?" if similar else ""


def suggest_option(option: str, ctx: click.Context) -> str:
    """Return a suggestion for an unknown option, or ""."""
    arguments = [word.strip(".") for piece in ctx.command.collect_usage_pieces(ctx) for word in piece.split()]
    known_names = {*arguments, *(ctx.command.visible_names() if isinstance(ctx.command, VerbCommand) else ())}
    word = option.lower().replace("_", "-").lstrip("-")
    if same_letters := [name for name in known_names if name.replace("-", "") == word.replace("-", "")]:
        return f"Did you mean {same_letters[0]}?"
    for names, meaning in read_synonyms("options"):
        if word in names and known_names.issuperset(_MEANT_WORDS.findall(meaning)):
            return f"Did you mean {meaning}?" if meaning.startswith("-") else meaning
    others = _options_of_other_verbs(ctx)
    if verbs := [f"`shardtool {verb}`" for verb, options in others.items() if option in options]:
        return f"It is an option of {' and '.join([', '.join(verbs[:-1]), verbs[-1]] if verbs[1:] else verbs)}."
    long_names = sorted(name[2:] for name in known_names if name.startswith("--"))
    from difflib import get_close_matches

    similar = get_close_matches(word, long_names, 2, _MIN_SIMILARITY)
    return f"Did you mean {' or '.join(f'--{name}' for name in similar)}?" if similar else ""


def _options_of_other_verbs(ctx: click.Context) -> dict[str, list[str]]:
    group = ctx.parent.command if ctx.parent else None
    if not isinstance(group, click.Group):
        return {}
    verbs = {name: group.get_command(ctx, name) for name in group.list_commands(ctx) if name != ctx.command.name}
    return {name: verb.visible_names() for name, verb in verbs.items() if isinstance(verb, VerbCommand)}


class _HelpPage(click.HelpFormatter):
    def __init__(self) -> None:
        super().__init__(width=min(_MAX_COLUMNS, max(50, terminal_width(_MAX_COLUMNS))))

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", _HYPHEN))

    def close(self, text: str) -> str:
        if text:
            self.write_paragraph()
            self.write_text(text)
        return self.getvalue().replace(_HYPHEN, "-").rstrip("\n")

    def list_options(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        if rows:
            with self.section(title):
                self.write_dl([(names, text.replace("-", _HYPHEN)) for names, text in rows], col_max=_MAX_NAME_COLUMNS)

    def list_examples(self, lines: Sequence[str]) -> None:
        if lines:
            with self.section("Examples"):
                self.write("".join(f"  {line}\n" for line in lines))


def overview_help(group: click.Group, ctx: click.Context, verbs: dict[str, str]) -> str:
    """Return the help of `shardtool` itself. `verbs` contains a summary of each verb."""
    page = _start_page(group, ctx)
    page.list_options("Verbs", [*verbs.items()])
    page.list_examples(list_examples(group))
    return page.close(cleandoc(group.help or "").rpartition("\n\n")[2])


def brief_help(verb: VerbCommand, ctx: click.Context) -> str:
    """Return the help for `-h`: examples and common options."""
    page, topics = _start_page(verb, ctx), verb.topics()
    page.list_examples(list_examples(verb)[:_MAX_BRIEF_EXAMPLES])
    records = [option.record(ctx) for option in verb.options() if option.common]
    page.list_options("Common options", [(names, _first_sentence(text)) for names, text in records])
    more = f", or shardtool help {verb.name} TOPIC ({', '.join(topics)})" if len(topics) > 1 else ""
    return page.close(f"More: shardtool {verb.name} --help{more}.")


def full_help(verb: VerbCommand, ctx: click.Context) -> str:
    """Return the help for `--help`: the description, all options except rare ones, and examples."""
    page, topics = _start_page(verb, ctx, full=True), verb.topics()
    for name, topic in topics.items():
        rows = [option.record(ctx) for option in verb.options(name)]
        rows += [("-h, --help", "Show common options (-h), or the full help (--help).")] if name == "output" else []
        page.list_options(topic.title, rows)
    page.list_examples(list_examples(verb))
    return page.close(
        f"All options of a topic: shardtool help {verb.name} TOPIC ({', '.join(topics)})." if topics else ""
    )


def topic_help(verb: VerbCommand, ctx: click.Context, name: str) -> str:
    """Return the help of the topic `name`, or of the topic that contains the option `name`."""
    topics, topic_name = verb.topics(), verb.find_topic(name)
    if not topic_name:
        raise InvalidRequest(name, f"no such topic of `{ctx.command_path}`", expected=f"one of {', '.join(topics)}")
    page, options = _HelpPage(), verb.options(topic_name, rare=True)
    page.write_text(f"shardtool {verb.name}: {topics[topic_name].title}")
    if sentences := topic_sentences(verb, topic_name):
        page.write_paragraph()
        with page.indentation():
            page.write_text(" ".join(sentences))
    page.list_options("Options", [option.record(ctx) for option in options])
    for option_name, keys in option_keys(verb, topic_name).items():
        page.list_options(f"Keys of --{option_name}", [key.key_record() for key in keys])
    long_names = {word for option in options for word in option.opts if word.startswith("--")}
    page.list_examples([line for line in list_examples(verb) if long_names & {*line.split()}])
    return page.close("")


def topic_sentences(verb: VerbCommand, name: str) -> list[str]:
    """Return the sentences of a topic, except those that mention options of other verbs."""
    names = {word for param in verb.params for word in param.opts}
    return [text for text in help_topics()[name].prose if names.issuperset(_POSITIVE_OPTION.findall(text))]


def option_keys(verb: VerbCommand, topic: str) -> dict[str, list[VerbOption]]:
    """Return the sub-options in a topic (such as `per-host` of `--fetch`), grouped by their parent option."""
    keys: dict[str, list[VerbOption]] = {}
    for param in verb.params:
        if isinstance(param, VerbOption) and param.section == topic and param.parent and " " not in param.parent:
            keys.setdefault(param.parent, []).append(param)
    return keys


def _start_page(command: click.Command, ctx: click.Context, *, full: bool = False) -> _HelpPage:
    page, text = _HelpPage(), cleandoc(command.help or "")
    page.write_usage(ctx.command_path, " ".join(command.collect_usage_pieces(ctx)))
    page.write_paragraph()
    with page.indentation():
        page.write_text(text.partition("\b\nExamples:")[0].rstrip() if full else text.split("\n\n")[0])
    return page


def list_examples(command: click.Command) -> list[str]:
    """Return the examples of a command."""
    text = cleandoc(command.help or "").partition("Examples:\n")[2].partition("\n\n")[0]
    return [line.strip() for line in text.splitlines()]


def _first_sentence(text: str) -> str:
    text, bracket, default = text.partition(" [default: ")
    shown_default = bracket + default if len(default) < _MAX_NAME_COLUMNS else ""
    return f"{text.partition('. ')[0].removesuffix('.')}.{shown_default}"


_MAX_MATCHES = 3
_MIN_PLURAL_LETTERS = 3
_MAX_SNIPPET_COLUMNS = 96
# Count at most two hits of a word in a passage, so a title outweighs many hits in a long page.
_MAX_COUNTED_HITS = 2
_TITLE_WEIGHT, _OPTION_WEIGHT = 5, 8
_FENCED_BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)  # comments in pages contain commands for tests
_UNSEARCHED_PAGES = ("reference.md", "architecture.md")  # the first repeats the help, the second is for contributors
_HEADING = re.compile(r"^(#{1,3}) (.+)$", re.MULTILINE)
_TABLE_HEADER = re.compile(r"^\|.*\n\|[-:| ]+\|\n", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_SENTENCE_END = re.compile(r"(?<=[.?])\s+|\n\n|\n(?=[-|])")
_MARKUP = re.compile(r"\*\*|`|^[-|] | \|$", re.MULTILINE)


class Passage(NamedTuple):
    """A text to search: a topic, an option, or a section of a page. `command` prints the text."""

    title: str
    text: str
    command: str
    title_weight: int = _TITLE_WEIGHT


def search_help(words: Sequence[str], verbs: Mapping[str, click.Command | None]) -> str:
    """Return the best matches, each with the command that prints the whole text, or "" if nothing matches."""
    query = " ".join(words)
    patterns = [_word_pattern(word.lstrip("-").lower()) for word in query.split()]
    passages = [*_list_topics_and_options(verbs), *_list_sections()]
    scored = [(_score(passage, patterns), passage) for passage in passages]
    most_words = max(words for (words, _), _ in scored)
    if not most_words:
        return ""
    matches = [(score, passage) for (words, score), passage in scored if words == most_words]
    matches.sort(key=lambda item: -item[0])
    words_text = "" if most_words == len(patterns) else "some of the words "
    shown = f"; the best {_MAX_MATCHES}" if len(matches) > _MAX_MATCHES else ""
    lines = [f"{pluralize(len(matches), 'result')} for {words_text}{query!r}{shown}:"]
    for _, passage in matches[:_MAX_MATCHES]:
        texts = _find_snippet(passage, patterns), passage.command
        lines += ["", passage.title, *(f"  {text}" for text in texts if text)]
    return "\n".join(lines)


def read_page(name: str) -> str:
    """Return the page `page.md`, or its section `page.md#heading`."""
    page, _, anchor = name.partition("#")
    pages = _list_pages()
    if page not in pages:
        remedy = suggest_choice(page, [*pages])
        raise InvalidRequest(name, "no such page", expected=f"one of {', '.join(sorted(pages))}", remedy=remedy)
    text = _read(pages[page])
    if not anchor:
        return text.rstrip()
    sections = [section for section in _split_sections(text) if _make_anchor(section[0]) == anchor]
    if not sections:
        raise InvalidRequest(name, "no such section", remedy=f"`shardtool help {page}` prints the whole page.")
    return sections[0][1].rstrip()


def _list_pages() -> dict[str, Path]:
    from pathlib import Path

    package = Path(__file__).parents[1]
    folder = next((path for path in (package / "docs", package.parent / "docs") if (path / "cli.md").exists()), None)
    if folder is None:
        return {}
    return {path.relative_to(folder).as_posix(): path for path in [*folder.glob("*.md"), *folder.glob("have/*.md")]}


def _read(page: Path) -> str:
    return _COMMENT.sub("", page.read_text("utf-8"))


def _list_topics_and_options(verbs: Mapping[str, click.Command | None]) -> Iterator[Passage]:
    listed = set()
    for name, verb in verbs.items():
        if not isinstance(verb, VerbCommand):
            continue
        for topic, (title, _) in verb.topics().items():
            if title not in listed:
                listed.add(title)
                text = " ".join(topic_sentences(verb, topic))
                yield Passage(f"{title}: options of {name}", text, f"shardtool help {name} {topic}", _OPTION_WEIGHT)
        for option in verb.params:
            is_key = isinstance(option, VerbOption) and bool(option.parent) and " " not in option.parent
            if not isinstance(option, VerbOption) or (option.hidden and not is_key):
                continue
            flag = option.opts[0]
            if flag not in listed:
                listed.add(flag)
                yield Passage(
                    f"{flag}: option of {name}", option.help or "", f"shardtool help {name} {flag}", _OPTION_WEIGHT
                )


def _list_sections() -> Iterator[Passage]:
    for name, path in _list_pages().items():
        sections = _split_sections(_read(path)) if name not in _UNSEARCHED_PAGES else []
        for heading, text in sections:
            is_intro = heading == sections[0][0]
            title = heading if is_intro else f"{sections[0][0]}: {heading}"
            yield Passage(title, text, f"shardtool help {name}{'' if is_intro else f'#{_make_anchor(heading)}'}")


def _split_sections(text: str) -> list[tuple[str, str]]:
    # In code blocks, a line that starts with # is no heading.
    masked = _FENCED_BLOCK.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)
    starts = [*_HEADING.finditer(masked)]
    ends = [match.start() for match in starts[1:]] + [len(text)]
    return [
        (text[match.start(2) : match.end(2)].replace("`", ""), text[match.start() : end])
        for match, end in zip(starts, ends, strict=True)
    ]


def _make_anchor(heading: str) -> str:
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def _word_pattern(word: str) -> re.Pattern[str]:
    """Return a pattern for words that start with `word`, its singular, or the name that shardtool uses for it."""
    words = [word, word.removesuffix("s")] if len(word) > _MIN_PLURAL_LETTERS else [word]
    for kind in ("help", "options"):
        meanings = [meaning for names, meaning in read_synonyms(kind) if word in names]
        words += [name.lstrip("-") for meaning in meanings for name in re.findall(r"^--[a-z-]+|^[a-z ]+$", meaning)]
    return re.compile(rf"(?<![a-z0-9])(?:{'|'.join(map(re.escape, words))})", re.IGNORECASE)


def _score(passage: Passage, patterns: Iterable[re.Pattern[str]]) -> tuple[int, int]:
    words = total = 0
    for pattern in patterns:
        title_hits, hits = len(pattern.findall(passage.title)), len(pattern.findall(passage.text))
        words += bool(title_hits or hits)
        total += passage.title_weight * min(title_hits, 1) + min(hits, _MAX_COUNTED_HITS)
    return words, total


def _find_snippet(passage: Passage, patterns: Sequence[re.Pattern[str]]) -> str:
    text = _LINK.sub(r"\1", _TABLE_HEADER.sub("", _HEADING.sub("", _FENCED_BLOCK.sub("", passage.text))))
    texts = [" ".join(_MARKUP.sub("", sentence).split()) for sentence in _SENTENCE_END.split(text)]
    # ` | ` separates the cells of a table.
    sentences = [sentence.replace(" | ", ": ", 1).replace(" | ", "; ") for sentence in texts]
    best = max(filter(None, sentences), key=lambda line: sum(bool(word.search(line)) for word in patterns), default="")
    return best if len(best) <= _MAX_SNIPPET_COLUMNS else best[: _MAX_SNIPPET_COLUMNS - 4].rsplit(" ", 1)[0] + " ..."
