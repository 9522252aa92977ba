"""What a recorded run was asked for, as a command line: for people who want to do it again."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from shardtool.wording import typed_words

if TYPE_CHECKING:
    from collections.abc import Mapping

_NOT_IN_QUOTES = re.compile(r'["\\$`]|!(?![= ])')


def command_line(run: Mapping[str, Any]) -> str:
    """Return what was asked for, without the output.

    Args:
        run: What the dataset file says of it: `made`, or one of `appended` in it.
    """
    verb, source, options = str(run.get("verb", "?")), str(run.get("source", "")), run.get("options")
    words = [verb, *(source.split(", ") if verb == "reshard" else [source] if source else [])]
    for name, value in options.items() if isinstance(options, dict) else ():
        if verb == "reshard" and name == "dots":
            continue  # found in the source, not asked for
        words += typed_words(str(name), value)
    return " ".join(map(_quoted, words))


def appended_runs(made: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a dataset file says of each append."""
    found = made.get("appended")
    return [run for run in found if isinstance(run, dict)] if isinstance(found, list) else []


def _quoted(word: str) -> str:
    """Return a word as a shell takes it."""
    return f'"{word}"' if "'" in word and not _NOT_IN_QUOTES.search(word) else shlex.quote(word)
