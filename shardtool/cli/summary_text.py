"""Format the summary of a dataset and its reading speed as text, for `inspect`."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from shardtool.cli.output import (
    display_width,
    escape_unencodable,
    fit_line,
    format_table,
    pad,
    samples_in_shards,
    terminal_width,
)
from shardtool.errors import format_list, printable
from shardtool.request.run_record import RunRecord, format_command_line
from shardtool.units import format_size, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.verbs.inspect.read_speed import ReadSpeed
    from shardtool.verbs.inspect.summary import ColumnSummary, LabelSummary, Spread, Summary


_MAX_LABEL_VALUES = 8
_MAX_FIELDS = 40
_MAX_LINES = 5
_MAX_NAME_COLUMNS = 32
_WITHOUT_SIDECAR = "without a sidecar (run `shardtool index` to create it)"


def summary_text(summary: Summary, width: int | None = None) -> str:
    """Format a summary in `width` columns, by default the width of the terminal."""
    width = width or terminal_width()
    if summary.datasets:
        total = f"{pluralize(len(summary.datasets), 'dataset')}: {_totals_text(summary)}"
        return "\n\n".join([*(summary_text(dataset, width) for dataset in summary.datasets), total])
    sections = [
        _head_lines(summary, width),
        _shard_lines(summary),
        *([fit_line(line, width) for line in lines] for lines in (_field_lines(summary), _image_lines(summary))),
        *(_label_lines(name, label, width) for name, label in summary.labels.items()),
        *([fit_line(line, width) for line in lines] for lines in (_split_lines(summary), _column_lines(summary))),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def _totals_text(summary: Summary) -> str:
    shards = samples_in_shards(summary.samples, summary.shard_sizes.count)
    return f"{shards}, {format_size(summary.size)}, {summary.format}"


def _head_lines(summary: Summary, width: int) -> list[str]:
    facts, name, shards = _totals_text(summary), fit_line(summary.dataset, width), summary.shard_sizes.count
    head = f"{name}: {facts}"
    lines = [head] if display_width(head) <= width else [name, fit_line(f"  {facts}", width)]
    scope = summary.looked
    examined = samples_in_shards(scope.samples, scope.shards)
    sampled_text = f"{examined}; the rest of this summary covers only these (--full: all)"
    rows = [
        ("complete", _completeness_text(summary)),
        ("part", f"{shards:,} of the dataset's {pluralize(summary.part_of, 'shard')}" if summary.part_of else ""),
        ("fingerprint", summary.fingerprint),
        *(_run_rows(RunRecord(summary.made)) if summary.made else ()),
        ("skipped", f"{summary.skipped:,}, listed in {summary.name}.skipped" if summary.skipped else ""),
        ("read", sampled_text if scope.shards < shards else ""),
        ("scanned", f"{pluralize(scope.walked, 'shard')} {_WITHOUT_SIDECAR}" if scope.walked else ""),
        *(("problem", f"{problem.where}: {problem.message}") for problem in summary.problems[:_MAX_LINES]),
    ]
    for name, value in rows:
        folded = textwrap.wrap(
            printable(value or ""), max(width - 15, 20), break_long_words=False, break_on_hyphens=False
        )
        lines += [f"  {name if index == 0 else '':11}  {line}" for index, line in enumerate(folded[:_MAX_LINES])]
    if len(summary.problems) > _MAX_LINES:
        lines.append(f"  and {len(summary.problems) - _MAX_LINES:,} more problems")
    return lines


def _completeness_text(summary: Summary) -> str:
    if summary.complete is None:
        if any(problem.code == "dataset-file-damaged" for problem in summary.problems):
            return "unknown: the dataset file is damaged"
        found = f", and {pluralize(len(summary.problems), 'problem')}" if summary.problems else ""
        return f"unknown: no dataset file of shardtool{found}"
    if summary.complete:
        return "yes: the dataset file, all shards and all sidecars exist (`shardtool verify` reads every byte)"
    return f"no: {pluralize(len(summary.problems), 'problem')}"


def _run_rows(run: RunRecord) -> Iterator[tuple[str, str]]:
    split = f", split {run.split}" if run.split else ""
    yield "created", f"{run.tool or '?'}: {format_command_line(run)}{split}"
    for append in run.appended[:_MAX_LINES]:
        yield "appended", f"{append.tool or '?'}: {format_command_line(append)}"
    if len(run.appended) > _MAX_LINES:
        yield "", f"and {len(run.appended) - _MAX_LINES:,} more times"


def _shard_lines(summary: Summary) -> list[str]:
    head = ("shards", "smallest", "median", "largest", "largest / smallest")
    size, count = summary.shard_sizes, summary.shard_samples
    return format_table(
        head,
        [("bytes", *_size_cells(size), _ratio_text(size)), ("samples", *_number_cells(count), _ratio_text(count))],
        "lrrrr",
    )


def _ratio_text(spread: Spread) -> str:
    return f"{spread.largest / spread.smallest:.2f}" if spread.smallest else "-"


def _size_cells(spread: Spread) -> tuple[str, str, str]:
    return format_size(spread.smallest), format_size(spread.median), format_size(spread.largest)


def _number_cells(spread: Spread) -> tuple[str, str, str]:
    return f"{spread.smallest:,}", f"{spread.median:,}", f"{spread.largest:,}"


def _field_lines(summary: Summary) -> list[str]:
    rows = [
        (
            fit_line(name, _MAX_NAME_COLUMNS),
            field.content if field.kind == "bytes" else field.kind,
            f"{field.samples:,}",
            *_size_cells(field.size),
            format_size(field.size.total),
        )
        for name, field in summary.fields.items()
    ]
    lines = format_table(
        ("field", "content", "samples", "smallest", "median", "largest", "total"), rows[:_MAX_FIELDS], "llrrrrr"
    )
    if len(rows) > _MAX_FIELDS:
        lines.append(f"and {len(rows) - _MAX_FIELDS:,} more fields")
    return lines if rows else []


def _image_lines(summary: Summary) -> list[str]:
    lines: list[str] = []
    has_columns = any(images.source == "columns" for images in summary.images.values())
    for name, images in summary.images.items():
        sampled = images.source == "sampled"
        which = f"{images.images:,} opened" if sampled else f"all {images.images:,}, from the sidecars"
        lines.append(f"images  {name}: {which}")
        if images.width.count and not (has_columns and sampled):
            lines.append(f"  width   {' / '.join(_number_cells(images.width))}  (smallest / median / largest)")
            lines.append(f"  height  {' / '.join(_number_cells(images.height))}")
        if images.modes:
            lines.append("  modes   " + ", ".join(f"{mode} {count:,}" for mode, count in images.modes.items()))
        lines += [f"  invalid image: {key}: {wrong}" for key, wrong in images.unreadable]
    return lines


def _label_lines(name: str, label: LabelSummary, width: int) -> list[str]:
    sampled = f"{label.samples:,} opened, " if label.sampled else ""
    lines = [fit_line(f"{label.source} {name}: {sampled}{pluralize(label.distinct, 'value')}", width)]
    shown = label.values[:_MAX_LABEL_VALUES]
    names = [
        fit_line(
            value.name if value.number is None or value.name == str(value.number) else f"{value.name} ({value.number})",
            _MAX_NAME_COLUMNS,
        )
        for value in shown
    ]
    name_width = max(map(display_width, names), default=0)
    digits = max((len(f"{value.samples:,}") for value in shown), default=0)
    max_samples = max((value.samples for value in shown), default=1)
    for text, value in zip(names, shown, strict=True):
        bar = _bar_text(value.samples / max_samples, max(5, min(30, width - name_width - digits - 14)))
        share = value.samples / max(1, label.samples)
        lines.append(f"  {pad(text, name_width)}  {value.samples:>{digits},}  {share:6.1%}  {bar}".rstrip())
    if label.distinct > len(shown):
        rest = label.samples - sum(value.samples for value in shown)
        lines.append(f"  and {label.distinct - len(shown):,} more, {rest:,} samples")
    return lines


def _bar_text(share: float, width: int) -> str:
    eighths = max(1, round(share * width * 8))
    bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return bar if escape_unencodable(bar) == bar else "#" * max(1, round(share * width))


def _split_lines(summary: Summary) -> list[str]:
    named = {
        "splits": [f"{name} {count:,}" for name, count in summary.splits.items()],
        "other splits": [f"{name}: {file}" for name, file in summary.siblings.items()],
    }
    return [f"{title}  {', '.join(texts)}" for title, texts in named.items() if texts]


def _column_lines(summary: Summary) -> list[str]:
    rows = [
        (
            fit_line(name, _MAX_NAME_COLUMNS),
            f"{'' if column.element is None else 'list of '}{(column.element or column.type).partition('<')[0]}",
            f"{column.filled:,}",
            "-" if column.distinct is None else f"{column.distinct:,}",
            "class numbers, see above" if _has_class_numbers(summary, name) else _column_text(column),
        )
        for name, column in summary.columns.items()
    ]
    return format_table(("metadata", "type", "filled", "values", ""), rows[:_MAX_FIELDS], "llrrl") if rows else []


def _has_class_numbers(summary: Summary, name: str) -> bool:
    label = summary.labels.get(name)
    return label is not None and label.source == "field" and any(value.number is not None for value in label.values)


def _column_text(column: ColumnSummary) -> str:
    if (lengths := column.lengths) is not None:
        if lengths.smallest == lengths.largest:
            return f"length {lengths.smallest:,}"
        return f"lengths {lengths.smallest:,} to {lengths.largest:,}, median {lengths.median:,}"
    if column.smallest is not None:
        mean = f", mean {column.mean:.6g}" if column.mean is not None else ""
        return f"{_number_text(column.smallest)} to {_number_text(column.largest)}{mean}"
    if not column.values:
        return "all different" if column.distinct else ""
    return format_list([f"{value.value} ({value.samples:,})" for value in column.values], 3, total=column.distinct)


def _number_text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read_speed_text(speed: ReadSpeed) -> str:
    """Format the result of `inspect --read-speed`."""
    kinds = {
        "stream": (speed.stream, "shuffled, fields as bytes"),
        "random": (speed.random, "random samples, 64 at a time"),
        "decoded": (speed.decoded, "shuffled, decoded in one thread"),
    }
    lines = [printable(speed.dataset)]
    for name, (rate, description) in kinds.items():
        if rate is not None:
            bytes_text = f"{format_size(rate.bytes_per_s)}/s"
            lines.append(f"{name:<10}{bytes_text:>12}{rate.samples_per_s:>13,.0f} samples/s  {description}")
    shards = f"{pluralize(speed.shards, 'shard')} of {format_size(speed.mean_size)}"
    if speed.shards > 1:
        advice = f"use shards of {format_size(speed.advised_size)} or more"
        verdict = "the shards are large enough" if speed.large_enough else advice
        opening = f"{speed.opening * 1000:.1f} ms, {speed.opening_share:.0%} of the reading time"
        shards += f" on average; opening a shard takes {opening}: {verdict}"
    lines.append(f"{'shards':<10}{shards}")
    return "\n".join(lines)
