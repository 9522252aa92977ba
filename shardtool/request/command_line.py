"""How the command line calls what a run was asked for: in messages, and for people who want to do it again."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardtool.request.run_record import RunRecord

_OPTION = {
    "files": "--file",
    "binary": "--bytes",
    "values": "--field",
    "images": "--image",
    "masks": "--mask",
    "stat": "--no-stat",
    "rename_fields": "--rename-field",
}
_WITH_COMMAS = ("select_fields", "drop_fields")  # options whose values are one word
_NOT_IN_QUOTES = re.compile(r'["\\$`]|!(?![= ])')


def option(name: str) -> str:
    """Return how the command line calls an option."""
    return _OPTION.get(name, f"--{name.replace('_', '-')}")


def command_line(run: RunRecord) -> str:
    """Return what was asked for, without the output."""
    words = [
        run.verb or "?",
        *(run.source.split(", ") if run.verb == "reshard" else [run.source] if run.source else []),
    ]
    for name, value in run.options.items():
        if run.verb == "reshard" and name == "dots":
            continue  # found in the source, not asked for
        values = value if isinstance(value, list) else [value]
        for one in [",".join(map(str, values))] if name in _WITH_COMMAS else values:
            words += [option(name), *([] if one is True else [str(one)])]
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """Return a word as a shell takes it."""
    return f'"{word}"' if "'" in word and not _NOT_IN_QUOTES.search(word) else shlex.quote(word)
