"""Show values in notebooks as short strings and HTML tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import ClassVar, TypeVar

from shardtool.errors import printable, redact_secrets
from shardtool.units import format_size

ValueT = TypeVar("ValueT")
MAX_ROWS = 20
_MAX_CHARS = 300
_MAX_REPR_CHARS = 60
_MAX_REPR_NUMBERS = 4
_CELL_STYLE = "text-align:left; vertical-align:top; white-space:pre-wrap"
_NO_DEFAULT = object()
_SIZE_NAMES = ("size", "field_bytes", "copied_size", "freed", "mean_size", "taken")


class Displayed:
    """A value with a short `repr`. Notebooks show the value as a table."""

    __slots__ = ()
    # The attributes to show. If the tuple is empty, notebooks show the attributes that differ from their defaults.
    _displayed: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        return short_repr(self)

    def _repr_html_(self) -> str:
        return record_html(self)


class SampleList(list[ValueT]):
    """A list of samples whose `repr` shows the sizes of long fields instead of their content."""

    def __repr__(self) -> str:
        return f"[{', '.join(map(_sample_text, self))}]"


def _sample_text(sample: object) -> str:
    if not isinstance(sample, Mapping):
        return repr(sample)
    return "{" + ", ".join(f"{name!r}: {_value_text(value)}" for name, value in sample.items()) + "}"


def _value_text(value: object) -> str:
    if isinstance(value, bytes):
        return repr(value) if len(value) <= _MAX_REPR_CHARS else f"<{len(value):,} bytes>"
    if shape := getattr(value, "shape", ()):
        return f"<{value.dtype} {[*shape]}>"  # type: ignore[attr-defined]
    return repr(value)


def short_repr(value: object) -> str:
    """Return a `repr` of a dataclass or named tuple, with the lengths of collections instead of their items."""
    parts = ", ".join(f"{name}={_short_text(part)}" for name, part in _named_parts(value))
    return f"{type(value).__name__}({parts})"


def record_html(value: object) -> str:
    """Return a dataclass or named tuple as an HTML table with one row per attribute."""
    rows = [(f"<b>{short_html(_title(name))}</b>", _cell_html(name, part)) for name, part in _named_parts(value)]
    return f"<div><b>{type(value).__name__}</b>{html_table((), rows)}</div>"


def html_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table. `headers` are plain text, and the cells in `rows` are HTML."""
    lines = ["".join(f'<th style="{_CELL_STYLE}">{short_html(header)}</th>' for header in headers)] if headers else []
    lines += ["".join(f'<td style="{_CELL_STYLE}">{cell}</td>' for cell in row) for row in rows]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def short_html(text: str, max_chars: int = _MAX_CHARS) -> str:
    """Return a string as HTML, without secrets and control characters, and shortened to `max_chars`."""
    from html import escape  # imported here, because `html` delays the start of the command line

    text = printable(redact_secrets(text[: 4 * max_chars]))
    return escape(text if len(text) <= max_chars else f"{text[: max_chars - 1]}…")


def _is_record(value: object) -> bool:
    return (is_dataclass(value) and not isinstance(value, type)) or hasattr(value, "_fields")


def _named_parts(value: object) -> list[tuple[str, object]]:
    names: Sequence[str] = getattr(value, "_displayed", ())
    if names:
        defaults: Mapping[str, object] = {}
    elif is_dataclass(value):
        defaults = {part.name: part.default for part in fields(value)}
        names = [*defaults]
    else:
        names, defaults = value._fields, value._field_defaults  # type: ignore[attr-defined]
    parts = [(name, getattr(value, name)) for name in names]
    return [(name, part) for name, part in parts if not _is_empty(part) and defaults.get(name, _NO_DEFAULT) != part]


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, (Mapping, Sequence)) and not len(value))


def _title(name: str) -> str:
    return name.replace("_", " ")


def _short_text(value: object) -> str:
    if isinstance(value, str):
        text = printable(redact_secrets(value))
        return repr(text if len(text) <= _MAX_REPR_CHARS else f"{text[: _MAX_REPR_CHARS - 1]}…")
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (bool, int)):
        return str(value)
    if _is_record(value) or not isinstance(value, (Mapping, Sequence)):
        return f"<{type(value).__name__}>"
    is_short = len(value) <= _MAX_REPR_NUMBERS and all(type(part) in (int, float) for part in value)
    return repr(value) if is_short else f"<{len(value):,} item{'' if len(value) == 1 else 's'}>"


def _cell_html(name: str, value: object) -> str:
    if isinstance(value, Mapping) and _is_record(next(iter(value.values()))):
        items = [*value.items()]
        return _records_html([part for _, part in items[:MAX_ROWS]], len(items), [str(key) for key, _ in items])
    if isinstance(value, Sequence) and not isinstance(value, str) and not _is_record(value):
        if _is_record(value[0]):
            return _records_html(value[:MAX_ROWS], len(value), None)
        texts = [short_html(_text(name, part)) for part in value[:MAX_ROWS]]
        return ("<br>" if any(" " in text for text in texts) else ", ").join([*texts, *_more(len(value))])
    return short_html(_text(name, value))


def _records_html(records: Sequence[object], total: int, keys: Sequence[str] | None) -> str:
    parts = [dict(_named_parts(record)) for record in records]
    names = [*dict.fromkeys(name for record in parts for name in record)]
    rows = [[short_html(_text(name, record.get(name, ""))) for name in names] for record in parts]
    headers = [_title(name) for name in names]
    if keys is not None:
        headers, rows = ["", *headers], [[short_html(key), *row] for key, row in zip(keys, rows, strict=False)]
    return html_table(headers, rows) + "".join(_more(total))


def _more(total: int) -> list[str]:
    return [f"and {total - MAX_ROWS:,} more"] if total > MAX_ROWS else []


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, int):
        text = format_size(value) if name in _SIZE_NAMES else f"{value:,}"
    elif isinstance(value, float):
        text = f"{value:.4g}{' s' if name == 'seconds' else ''}"
    elif isinstance(value, Mapping):
        pairs = [f"{key}: {_text(name, part)}" for key, part in [*value.items()][:MAX_ROWS]]
        text = ", ".join([*pairs, *_more(len(value))])
    elif _is_record(value):
        is_size = name in _SIZE_NAMES
        parts = [part for part in _named_parts(value) if part[0] != "count" or not is_size]
        text = ", ".join(f"{_title(part)} {_text(name if is_size else part, item)}" for part, item in parts)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        text = ", ".join([*(_item_text(name, part) for part in value[:MAX_ROWS]), *_more(len(value))])
    else:
        text = str(value)
    return text


def _item_text(name: str, item: object) -> str:
    if not _is_record(item):
        return _text(name, item)
    return " ".join(_text(part_name, part) for part_name, part in _named_parts(item))
