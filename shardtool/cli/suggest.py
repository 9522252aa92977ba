"""What people mean who type an option or a verb that there is not: words of other tools, and slips."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NEAR = 0.75  # of two words, from 0 to 1: a letter more or less, two that changed places
_NAMED = re.compile(r"--[a-z][a-z-]*|\b(?:OUTPUT|DEST|DIR|SOURCE|DATASET)\b")


@cache
def words(kind: str) -> list[tuple[list[str], str]]:
    """Return what people type of a kind, `options` or `verbs`, and what is meant by that."""
    from importlib import resources  # which no run needs

    text = (resources.files("shardtool.cli") / "meant.txt").read_text("utf-8")
    lines = text.partition(f"[{kind}]\n")[2].partition("\n\n")[0].splitlines()
    return [(typed.split(), meant) for typed, _, meant in (line.partition(": ") for line in lines)]


def meant_option(typed: str, own: Iterable[str], others: Mapping[str, Iterable[str]]) -> str:
    """Return what may be meant by an option that a verb does not have; empty: nothing that is near.

    Args:
        typed: The option.
        own: Those that the verb shows, and its arguments.
        others: Those of the other verbs.
    """
    known, word = {*own}, typed.lower().replace("_", "-").lstrip("-")
    if alike := [one for one in known if _squeezed(one) == _squeezed(word)]:
        return f"Did you mean {alike[0]}?"
    for typed_here, meant in words("options"):
        if word in typed_here and known.issuperset(_NAMED.findall(meant)):
            return f"Did you mean {meant}?" if meant.startswith("-") else meant
    if verbs := [f"`shardtool {verb}`" for verb, theirs in others.items() if typed in theirs]:
        return f"It is an option of {' and '.join([', '.join(verbs[:-1]), verbs[-1]] if verbs[1:] else verbs)}."
    near = get_close_matches(word, sorted(one[2:] for one in known if one.startswith("--")), 2, _NEAR)
    return f"Did you mean {' or '.join(f'--{one}' for one in near)}?" if near else ""


def meant_verb(typed: str, verbs: Iterable[str]) -> str:
    """Return what may be meant by a verb that there is not; empty: nothing that is near."""
    known = [*verbs]
    for typed_here, meant in words("verbs"):
        if typed.lower() in typed_here and (meant.startswith("-") or meant.replace(",", "").split()[0] in known):
            return f"Did you mean `shardtool {meant}`?"
    near = get_close_matches(typed.lower(), known, 2, _NEAR)
    return f"Did you mean {' or '.join(f'`shardtool {one}`' for one in near)}?" if near else ""


def _squeezed(word: str) -> str:
    return word.replace("-", "")
