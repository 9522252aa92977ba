"""What a recorded run was asked for, as a command line: for people who want to do it again."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from shardtool.wording import typed_words

if TYPE_CHECKING:
    from shardtool.request.run_record import RunRecord

_NOT_IN_QUOTES = re.compile(r'["\\$`]|!(?![= ])')


def command_line(run: RunRecord) -> str:
    """Return what was asked for, without the output."""
    words = [
        run.verb or "?",
        *(run.source.split(", ") if run.verb == "reshard" else [run.source] if run.source else []),
    ]
    for name, value in run.options.items():
        if run.verb == "reshard" and name == "dots":
            continue  # found in the source, not asked for
        words += typed_words(name, value)
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """Return a word as a shell takes it."""
    return f'"{word}"' if "'" in word and not _NOT_IN_QUOTES.search(word) else shlex.quote(word)
