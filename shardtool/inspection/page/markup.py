"""Small pieces of HTML that the page's parts share. What comes in as text goes out escaped; `html` is HTML already."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from shardtool.inspection.page.thumbnails import shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

WORD = 80  # characters of a name


def card(name: str, title: str, note: str, html: str, kind: str = "") -> str:
    """Return a card; `name` is what links lead to, empty for none."""
    place = f' id="{name}"' if name else ""
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section class="{f"card {kind}".strip()}"{place}><h2>{escape(title)}</h2>{said}{html}</section>'


def table(heads: Sequence[str], rows: Sequence[str]) -> str:
    """Return a table in a box that scrolls sideways where there is no room; a head with a `#` is of numbers."""
    cells = "".join(f'<th scope="col"{_class(head)}>{escape(head.removeprefix("#"))}</th>' for head in heads)
    return (
        f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )  # fmt: skip


def _class(head: str) -> str:
    return ' class="n"' if head.startswith("#") else ""


def folded(summary: str, html: str) -> str:
    """Return what is shown once somebody asks for it."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"


def name_cell(text: str) -> str:
    """Return a cell with a name out of the dataset, which cannot turn the direction of what stands beside it."""
    return f'<td class="name"><bdi>{escape(shorten(text, WORD))}</bdi></td>'


def number_cells(*texts: str) -> str:
    """Return cells with numbers."""
    return "".join(f'<td class="n">{escape(text)}</td>' for text in texts)


def facts(rows: Sequence[tuple[str, str]], mono: Sequence[str] = ()) -> str:
    """Return names and values; the values of `mono` are to be compared letter by letter."""
    kind = dict.fromkeys(mono, ' class="mono"')
    cells = "".join(
        f"<dt>{escape(shorten(name, WORD))}</dt><dd{kind.get(name, '')}>{escape(shorten(value, 600))}</dd>"
        for name, value in rows
    )
    return f'<dl class="facts">{cells}</dl>'
