"""Search topics, options and documentation pages (`shardtool help WORD`), and print pages (`shardtool help tables.md`).

The pages are Markdown files: `shardtool/docs` in an installed package, `docs` in a checkout.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shardtool.cli.help import VerbCommand, VerbOption, read_synonyms, topic_sentences
from shardtool.errors import InvalidRequest
from shardtool.request.option_checks import suggest_choice
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import click

_MAX_MATCHES = 3
_MIN_PLURAL_LETTERS = 3
_MAX_SNIPPET_COLUMNS = 96
_MAX_COUNTED_HITS = 2  # limit per passage, so that a title outweighs many hits in a long page
_TITLE_WEIGHT, _OPTION_WEIGHT = 5, 8
_FENCED_BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)  # pages contain commands for their tests in comments
_UNSEARCHED_PAGES = ("reference.md", "architecture.md")  # the reference repeats the help; users need no architecture
_HEADING = re.compile(r"^(#{1,3}) (.+)$", re.MULTILINE)
_TABLE_HEADER = re.compile(r"^\|.*\n\|[-:| ]+\|\n", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_SENTENCE_END = re.compile(r"(?<=[.?])\s+|\n\n|\n(?=[-|])")
_MARKUP = re.compile(r"\*\*|`|^[-|] | \|$", re.MULTILINE)


class Passage(NamedTuple):
    """A text to search: a topic, an option, or a section of a page. `command` prints this text."""

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
    """Return a page, or the section `page.md#heading`."""
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
    # Mask code blocks, because a line in them that starts with # is no heading.
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
    """Return a pattern for words that start with `word`, its singular, or shardtool's name for `word`."""
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
    # Replace ` | `, which separates the cells of a table.
    sentences = [sentence.replace(" | ", ": ", 1).replace(" | ", "; ") for sentence in texts]
    best = max(filter(None, sentences), key=lambda line: sum(bool(word.search(line)) for word in patterns), default="")
    return best if len(best) <= _MAX_SNIPPET_COLUMNS else best[: _MAX_SNIPPET_COLUMNS - 4].rsplit(" ", 1)[0] + " ..."
