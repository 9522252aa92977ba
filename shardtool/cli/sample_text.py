"""Text of single samples: in full or on one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shardtool.cli.text_layout import display_width, fit_line, pad
from shardtool.errors import printable
from shardtool.names import to_output_name
from shardtool.units import format_size, pluralize

if TYPE_CHECKING:
    from shardtool.verbs.inspect.samples import FieldView, SampleView


_MAX_VALUE_LINES = 200  # maximum lines of a text or JSON value


def sample_text(view: SampleView, room: int) -> str:
    """Return a sample in full, with its fields and metadata."""
    sample = view.sample
    place = (
        f"sample {sample.number:,}, {sample.size:,} bytes at {sample.offset:,} of {to_output_name(sample.shard.path)}"
    )
    lines = [printable(sample.key), fit_line(f"  {place}", room)]
    for one in view.fields:
        lines += _field_lines(one, room)
    if sample.metadata:
        lines.append("metadata")
        wide = max(map(display_width, map(printable, sample.metadata)))
        lines += [
            fit_line(f"  {pad(printable(name), wide)}  {_flat_text(value)}", room)
            for name, value in sample.metadata.items()
        ]
    return "\n".join(lines)


def _flat_text(value: object) -> str:
    return value if isinstance(value, str) else _json_value_text(value)


def _json_value_text(value: object, indent: int | None = None) -> str:
    from shardtool.verbs.inspect.samples import json_value

    return json.dumps(json_value(value), indent=indent, ensure_ascii=False)


def _field_lines(one: FieldView, room: int) -> list[str]:
    head = f"{printable(one.name)}  {one.content}, {pluralize(one.length, 'byte')}"
    if one.image is not None:
        head += f", {one.image[0]:,} x {one.image[1]:,}, {printable(one.image[2])}"
    lines = [fit_line(head, room)]
    if one.problem:
        lines.append(fit_line(f"  problem: {one.problem}", room))
    if one.content == "json":
        body = _json_value_text(one.value, 2).split("\n")
    elif one.content == "text":
        body = str(one.value).replace("\r\n", "\n").rstrip("\n").split("\n")
    elif one.content == "number":
        body = [f"{one.value}{f' ({one.label})' if one.label is not None else ''}"]
    elif one.details:
        body = [*map(printable, one.details)]
    else:
        body = [f"{one.head[:16].hex(' ')}  {_ascii_text(one.head[:16])}"] if one.head else []
    lines += [f"  {fit_line(line, room - 2)}" for line in body[:_MAX_VALUE_LINES]]
    if len(body) > _MAX_VALUE_LINES:
        lines.append(f"  and {len(body) - _MAX_VALUE_LINES:,} more lines")
    return lines


def _ascii_text(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)  # noqa: PLR2004 - printable ASCII


def sample_line(view: SampleView, room: int) -> str:
    """Return a sample on one line."""
    fields = "  ".join(f"{printable(one.name)}: {_brief_text(one)}" for one in view.fields)
    return fit_line(f"{view.sample.key}  {fields}", room)


def _brief_text(one: FieldView) -> str:
    if one.problem:
        return one.problem
    if one.image is not None:
        return f"{one.image[0]}x{one.image[1]} {one.image[2]}"
    if one.value is None:
        return printable(one.details[0]) if len(one.details) == 1 else format_size(one.length)
    if one.label is not None:
        return f"{one.label} ({_flat_text(one.value)})"
    return one.value.strip() if isinstance(one.value, str) else _flat_text(one.value)
