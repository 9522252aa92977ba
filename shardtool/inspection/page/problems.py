"""What is wrong with a dataset, as far as the page knows: one list, and its card."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from shardtool.inspection.page.markup import WORD, card, folded, table
from shardtool.inspection.page.thumbnails import shorten
from shardtool.pattern import sidecar_name
from shardtool.values import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.inspection.page.choose_samples import FindingLike
    from shardtool.inspection.page.figures import Figures
    from shardtool.inspection.page.thumbnails import Shown

_MOST = 200
_OPEN = 12  # that are shown at once


@dataclass(frozen=True)
class Problem:
    """Something wrong: where, what, and the number of the sample on the page, None where it is not shown."""

    where: str
    what: str
    shown: int | None = None


def problems_of(figures: Figures, shown: Sequence[Shown], findings: Sequence[FindingLike]) -> list[Problem]:
    """Return what reading the indexes and the samples met, and what `verify` found."""
    found = [Problem(shard.name, what) for shard in figures.shards for what in shard.problems]
    numbers = {name: at for at, one in enumerate(figures.shards) for name in (one.name, sidecar_name(one.name))}
    places = {(one.chosen.shard, one.chosen.values["__key__"]): number for number, one in enumerate(shown)}
    for finding in findings:
        at = places.get((numbers.get(finding.file, -1), finding.key))
        found.append(Problem(_where(finding.key, finding.file), f"{finding.code}: {finding.found}", at))
    for number, one in enumerate(shown):
        where = _where(one.chosen.values["__key__"], figures.shards[one.chosen.shard].name)
        found += [Problem(where, what, number) for what in one.problems[len(one.chosen.findings) :]]
    return found


def _where(key: str, shard: str) -> str:
    if key and shard:
        return f"{shorten(key, WORD)} in {shard}"
    return shorten(key, WORD) or shard or "dataset"


def problem_card(problems: Sequence[Problem], *, verified: bool) -> str:
    """Return the list of what is wrong; nothing where nothing is."""
    if not problems:
        return ""
    rows, heads = [_row(one) for one in problems[:_MOST]], ("where", "what")
    html = table(heads, rows[:_OPEN])
    if len(rows) > _OPEN:
        cut = f", of which the first {_MOST - _OPEN:,} are listed" if len(problems) > _MOST else ""
        html += folded(f"{len(problems) - _OPEN:,} more{cut}", table(heads, rows[_OPEN:]))
    seen = "Seen while reading the indexes, and the samples that are shown"
    note = (
        f"{seen}; with what `shardtool verify` found." if verified else f"{seen}; `shardtool verify` sees every byte."
    )
    return card("problems", counted(len(problems), "problem"), note, html, "full problems")


def _row(problem: Problem) -> str:
    where = f"<bdi>{escape(shorten(problem.where, 200))}</bdi>"
    if problem.shown is not None:
        where = f'<a href="#s{problem.shown}">{where}</a>'
    return f'<tr><td class="name">{where}</td><td class="name">{escape(shorten(problem.what, 400))}</td></tr>'
