"""What is printed of what a verb did, for people: nothing in it can steer a terminal."""

from __future__ import annotations

import json
import re
import textwrap
import unicodedata
from dataclasses import replace
from itertools import islice
from shlex import join, quote
from typing import TYPE_CHECKING

from shardtool.cli.output import encodable, json_text
from shardtool.errors import ShardError, listing, printable, without_secrets
from shardtool.request.run_record import RunRecord, command_line
from shardtool.storage.places import is_url, is_web
from shardtool.values import counted, output_text, show_size
from shardtool.wording import typed_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from xml.etree.ElementTree import Element

    from shardtool.request.results import (
        Changes,
        CopyResult,
        CreateResult,
        DiffResult,
        DoctorResult,
        DryRun,
        ExtractResult,
        RemoveResult,
    )
    from shardtool.verbs.cache.cache import CacheChange, CacheStatus
    from shardtool.verbs.inspect.duplicates import Duplicates
    from shardtool.verbs.inspect.inspect import ColumnSummary, LabelSummary, Spread, Summary
    from shardtool.verbs.inspect.read_speed import ReadSpeed
    from shardtool.verbs.inspect.samples import FieldView, SampleView
    from shardtool.verbs.verify.findings import Finding, Report

_MOST_ROWS = 40  # of a plan
_WIDTH, _NARROWEST, _WIDEST = 100, 40, 160
_LABELS = 8  # values that are shown; the JSON has more
_FIELDS = 40
_MOST_LINES = 5
_NAME = 32  # columns for a name in a table
_LINES = 200  # of a text or JSON
_NO_INDEX = "without an index (`shardtool index` makes it)"


def width() -> int:
    """Return how many columns there are: the terminal's, or 100 where there is none."""
    import shutil  # bz2, lzma: for what is shown at the end

    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((_WIDTH, 24)).columns))


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def fit(text: str, room: int) -> str:
    """Return a text on one line, cut to `room` columns of a terminal where it is longer."""
    text = printable(text)
    if cells(text) <= room:
        return text
    kept, used = [], 0
    for char in text:
        used += cells(char)
        if used > room - 3:
            break
        kept.append(char)
    return "".join(kept) + "..."


def _pad(text: str, room: int, *, right: bool = False) -> str:
    blanks = " " * max(0, room - cells(text))
    return blanks + text if right else text + blanks


def _held(samples: int, shards: int) -> str:
    return f"{counted(samples, 'sample')} in {counted(shards, 'shard')}"


def summary_text(summary: Summary, room: int) -> str:
    """Return a summary for people.

    Args:
        summary: What to show.
        room: Columns of the terminal.
    """
    if summary.datasets:
        total = f"{counted(len(summary.datasets), 'dataset')}: {_facts(summary)}"
        return "\n\n".join([*(summary_text(one, room) for one in summary.datasets), total])
    sections = [
        _head(summary, room),
        _shards(summary),
        *([fit(line, room) for line in lines] for lines in (_fields(summary), _images(summary))),
        *(_label(name, label, room) for name, label in summary.labels.items()),
        *([fit(line, room) for line in lines] for lines in (_splits(summary), _columns(summary))),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def _facts(summary: Summary) -> str:
    return f"{_held(summary.samples, summary.shard_sizes.count)}, {show_size(summary.size)}, {summary.format}"


def _head(summary: Summary, room: int) -> list[str]:
    facts, name, shards = _facts(summary), fit(summary.dataset, room), summary.shard_sizes.count
    lines = [f"{name}: {facts}"] if cells(f"{name}: {facts}") <= room else [name, fit(f"  {facts}", room)]
    looked = summary.looked
    about = f"{_held(looked.samples, looked.shards)}: what follows is about these (--full reads all)"
    rows = [
        ("complete", _complete(summary)),
        ("part", f"these are {shards:,} of its {counted(summary.part_of, 'shard')}" if summary.part_of else ""),
        ("fingerprint", summary.fingerprint),
        *(_made(RunRecord(summary.made)) if summary.made else ()),
        ("left out", f"{summary.skipped:,}, listed in {summary.name}.skipped" if summary.skipped else ""),
        ("looked at", about if looked.shards < shards else ""),
        ("walked", f"{counted(looked.walked, 'shard')} {_NO_INDEX}" if looked.walked else ""),
        *(("problem", f"{one.where}: {one.message}") for one in summary.problems[:_MOST_LINES]),
    ]
    for name, value in rows:
        folded = textwrap.wrap(
            printable(value or ""), max(room - 15, 20), break_long_words=False, break_on_hyphens=False
        )
        lines += [f"  {name if at == 0 else '':11}  {line}" for at, line in enumerate(folded[:_MOST_LINES])]
    if len(summary.problems) > _MOST_LINES:
        lines.append(f"  and {len(summary.problems) - _MOST_LINES:,} more problems")
    return lines


def _complete(summary: Summary) -> str:
    if summary.complete is None:
        if any(one.code == "dataset-file-damaged" for one in summary.problems):
            return "not known: the dataset file is damaged"
        found = f", and {counted(len(summary.problems), 'problem')}" if summary.problems else ""
        return f"not known: no dataset file of shardtool{found}"
    if summary.complete:
        return "yes: dataset file, all shards and all sidecars are there (`shardtool verify` reads every byte)"
    return f"no: {counted(len(summary.problems), 'problem')}"


def _made(made: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield how a dataset was made, and what was appended to it since."""
    split = f", split {made.split}" if made.split else ""
    yield "made", f"{made.tool or '?'}: {command_line(made)}{split}"
    runs = made.appended
    for run in runs[:_MOST_LINES]:
        yield "appended", f"{run.tool or '?'}: {command_line(run)}"
    if len(runs) > _MOST_LINES:
        yield "", f"and {len(runs) - _MOST_LINES:,} more times"


def _shards(summary: Summary) -> list[str]:
    head = ("shards", "smallest", "median", "largest", "largest / smallest")
    size, count = summary.shard_sizes, summary.shard_samples
    return table(head, [("bytes", *_sizes(size), _ratio(size)), ("samples", *_numbers(count), _ratio(count))], "lrrrr")


def _ratio(spread: Spread) -> str:
    return f"{spread.largest / spread.smallest:.2f}" if spread.smallest else "-"


def _sizes(spread: Spread) -> tuple[str, str, str]:
    return show_size(spread.smallest), show_size(spread.median), show_size(spread.largest)


def _numbers(spread: Spread) -> tuple[str, str, str]:
    return f"{spread.smallest:,}", f"{spread.median:,}", f"{spread.largest:,}"


def _fields(summary: Summary) -> list[str]:
    rows = [
        (
            fit(name, _NAME),
            one.content if one.kind == "bytes" else one.kind,
            f"{one.samples:,}",
            *_sizes(one.size),
            show_size(one.size.total),
        )
        for name, one in summary.fields.items()
    ]
    lines = table(("field", "content", "samples", "smallest", "median", "largest", "total"), rows[:_FIELDS], "llrrrrr")
    if len(rows) > _FIELDS:
        lines.append(f"and {len(rows) - _FIELDS:,} more fields")
    return lines if rows else []


def _images(summary: Summary) -> list[str]:
    lines: list[str] = []
    known = any(one.source == "columns" for one in summary.images.values())
    for name, one in summary.images.items():
        sampled = one.source == "sampled"
        which = f"{one.images:,} looked at" if sampled else f"all {one.images:,}, by the sidecars' columns"
        lines.append(f"images  {name}: {which}")
        if one.width.count and not (known and sampled):
            lines.append(f"  width   {' / '.join(_numbers(one.width))}  (smallest / median / largest)")
            lines.append(f"  height  {' / '.join(_numbers(one.height))}")
        if one.modes:
            lines.append("  modes   " + ", ".join(f"{mode} {count:,}" for mode, count in one.modes.items()))
        lines += [f"  no image: {key}: {wrong}" for key, wrong in one.unreadable]
    return lines


def _label(name: str, label: LabelSummary, room: int) -> list[str]:
    sampled = f"{label.samples:,} looked at, " if label.sampled else ""
    lines = [fit(f"{label.source} {name}: {sampled}{counted(label.distinct, 'value')}", room)]
    shown = label.values[:_LABELS]
    names = [
        fit(one.name if one.number is None or one.name == str(one.number) else f"{one.name} ({one.number})", _NAME)
        for one in shown
    ]
    wide = max(map(cells, names), default=0)
    digits = max((len(f"{one.samples:,}") for one in shown), default=0)
    most = max((one.samples for one in shown), default=1)
    for text, one in zip(names, shown, strict=True):
        bar = _bar(one.samples / most, max(5, min(30, room - wide - digits - 14)))
        share = one.samples / max(1, label.samples)
        lines.append(f"  {_pad(text, wide)}  {one.samples:>{digits},}  {share:6.1%}  {bar}".rstrip())
    if label.distinct > len(shown):
        rest = label.samples - sum(one.samples for one in shown)
        lines.append(f"  and {label.distinct - len(shown):,} more, {rest:,} samples")
    return lines


def _bar(share: float, room: int) -> str:
    """Return a bar, an eighth of a column exact; of hashes where stdout has no blocks."""
    eighths = max(1, round(share * room * 8))
    bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return bar if encodable(bar) == bar else "#" * max(1, round(share * room))


def _splits(summary: Summary) -> list[str]:
    named = {
        "splits": [f"{name} {count:,}" for name, count in summary.splits.items()],
        "other splits": [f"{name}: {file}" for name, file in summary.siblings.items()],
    }
    return [f"{what}  {', '.join(those)}" for what, those in named.items() if those]


def _columns(summary: Summary) -> list[str]:
    rows = [
        (
            fit(name, _NAME),
            f"{'' if one.element is None else 'list of '}{(one.element or one.type).partition('<')[0]}",
            f"{one.filled:,}",
            "-" if one.distinct is None else f"{one.distinct:,}",
            "numbers of the classes above" if _is_of_classes(summary, name) else _column(one),
        )
        for name, one in summary.columns.items()
    ]
    return table(("metadata", "type", "filled", "values", ""), rows[:_FIELDS], "llrrl") if rows else []


def _is_of_classes(summary: Summary, name: str) -> bool:
    """Tell whether a column has the numbers of a field's labels, of which a mean says nothing."""
    label = summary.labels.get(name)
    return label is not None and label.source == "field" and any(one.number is not None for one in label.values)


def _column(one: ColumnSummary) -> str:
    if (lengths := one.lengths) is not None:
        if lengths.smallest == lengths.largest:
            return f"length {lengths.smallest:,}"
        return f"lengths {lengths.smallest:,} to {lengths.largest:,}, median {lengths.median:,}"
    if one.smallest is not None:
        mean = f", mean {one.mean:.6g}" if one.mean is not None else ""
        return f"{_number(one.smallest)} to {_number(one.largest)}{mean}"
    if not one.values:
        return "all different" if one.distinct else ""
    return listing([f"{value.value} ({value.samples:,})" for value in one.values], 3, total=one.distinct)


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return rows with their columns one below the other; `sides` has an `l` or `r` for each."""
    widths = [max(cells(row[at]) for row in [head, *rows]) for at in range(len(head))]
    return [
        "  ".join(
            _pad(cell, wide, right=side == "r") for cell, wide, side in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in [head, *rows]
    ]


def sample_text(view: SampleView, room: int) -> str:
    """Return a sample for people: each field as what it is."""
    sample = view.sample
    place = f"sample {sample.number:,}, {sample.size:,} bytes at {sample.offset:,} of {output_text(sample.shard.path)}"
    lines = [printable(sample.key), fit(f"  {place}", room)]
    for one in view.fields:
        lines += _field(one, room)
    if sample.metadata:
        lines.append("metadata")
        wide = max(map(cells, map(printable, sample.metadata)))
        lines += [
            fit(f"  {_pad(printable(name), wide)}  {_flat(value)}", room) for name, value in sample.metadata.items()
        ]
    return "\n".join(lines)


def _flat(value: object) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: object, indent: int | None = None) -> str:
    from shardtool.verbs.inspect.samples import plain

    return json.dumps(plain(value), indent=indent, ensure_ascii=False)


def _field(one: FieldView, room: int) -> list[str]:
    head = f"{printable(one.name)}  {one.content}, {counted(one.length, 'byte')}"
    if one.image is not None:
        head += f", {one.image[0]:,} x {one.image[1]:,}, {printable(one.image[2])}"
    lines = [fit(head, room)]
    if one.problem:
        lines.append(fit(f"  problem: {one.problem}", room))
    if one.content == "json":
        body = _json(one.value, 2).split("\n")
    elif one.content == "text":
        body = str(one.value).replace("\r\n", "\n").rstrip("\n").split("\n")
    elif one.content == "number":
        body = [f"{one.value}{f' ({one.label})' if one.label is not None else ''}"]
    else:
        body = [f"{one.head[:16].hex(' ')}  {_letters(one.head[:16])}"] if one.head else []
    lines += [f"  {fit(line, room - 2)}" for line in body[:_LINES]]
    if len(body) > _LINES:
        lines.append(f"  and {len(body) - _LINES:,} more lines")
    return lines


def _letters(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)  # noqa: PLR2004 - what ASCII can print


def sample_line(view: SampleView, room: int) -> str:
    """Return a sample on one line."""
    fields = "  ".join(f"{printable(one.name)}: {_brief(one)}" for one in view.fields)
    return fit(f"{view.sample.key}  {fields}", room)


def _brief(one: FieldView) -> str:
    if one.problem:
        return one.problem
    if one.image is not None:
        return f"{one.image[0]}x{one.image[1]} {one.image[2]}"
    if one.value is None:
        return show_size(one.length)
    if one.label is not None:
        return f"{one.label} ({_flat(one.value)})"
    return one.value.strip() if isinstance(one.value, str) else _flat(one.value)


def read_speed_text(speed: ReadSpeed) -> str:
    """Return how fast a dataset was read."""
    kinds = {
        "stream": (speed.stream, "shuffled, fields as bytes"),
        "random": (speed.random, "from anywhere, 64 at a time"),
        "decoded": (speed.decoded, "as the stream, decoded in one thread"),
    }
    lines = [printable(speed.dataset)]
    for name, (one, what) in kinds.items():
        if one is not None:
            rate = f"{show_size(one.bytes_per_s)}/s"
            lines.append(f"{name:<10}{rate:>12}{one.samples_per_s:>13,.0f} samples/s  {what}")
    shards = f"{counted(speed.shards, 'shard')} of {show_size(speed.mean_size)}"
    if speed.shards > 1:
        verdict = "large enough" if speed.large_enough else f"better {show_size(speed.advised_size)} or more"
        opening = f"{speed.opening * 1000:.1f} ms, {speed.opening_share:.0%} of a stream's time"
        shards += f" on average; opening one takes {opening}: {verdict}"
    lines.append(f"{'shards':<10}{shards}")
    return "\n".join(lines)


def duplicates_text(found: Duplicates, *, whole: bool) -> str:
    """Return which samples hold the same, for people; `whole`: all of them."""
    lines = []
    for group in islice(found.groups, None if whole else _SHOWN):
        splits = len({one.split for one in group} - {""}) > 1
        several = len({one.dataset for one in group}) > 1
        names = [f"{one.split or one.dataset}: {one.key}" if several else one.key for one in group]
        unlike = listing(list(dict.fromkeys(name for one in group for name in one.differs)))
        marks = ["in several splits"] * splits + [f"other {unlike}"] * bool(unlike)
        lines.append("  ".join([" = ".join(map(printable, names)), *map(printable, marks)]))
    if len(found.groups) > _SHOWN and not whole:
        lines.append(f"... and {len(found.groups) - _SHOWN:,} more groups: -v shows all")
    what = f"{printable(found.dataset)}: {counted(found.samples, 'sample')}"
    if not found.groups:
        same = f", no two of which hold the same ({', '.join(map(printable, found.fields))})" if found.samples else ""
        return f"{what}{same}"
    groups = f"{counted(len(found.groups), 'group')} of the same {listing([*map(printable, found.fields)])}"
    facts = [f"{found.leaks:,} in several splits"] * bool(found.leaks)
    facts += [f"{found.unlike:,} with other labels or fields"] * bool(found.unlike)
    total = f"{what}, {found.surplus:,} too many ({show_size(found.size)}): {', '.join([groups, *facts])}"
    return "\n".join([*lines, "", total])


# What `create` and `reshard` wrote, or would write, what `copy` copied, and what is in a cache.


def _lines(*lines: str) -> str:
    """Return lines, but for empty ones, each as one line, whatever names are in it."""
    return "\n".join(map(printable, filter(None, lines)))


def _speed(size: int, seconds: float) -> str:
    return f"{seconds:.1f} s, {show_size(size / max(seconds, 1e-9))}/s"


def written_text(result: CreateResult) -> str:
    """Return what is printed of a finished run."""
    if result.appended and not result.appended.shards:
        return _lines(f"nothing new: {result.dataset_file} stays as it is, {_held(result.samples, result.shards)}")
    new = result.appended or result
    kept = f" ({result.kept:,} already finished)" if result.kept else ""
    of_part = f" of part {result.part}" if result.part else ""
    made = f"{_held(new.samples, new.shards)}{of_part}{' appended' if result.appended else ''}{kept}"
    waits = ", once all parts have ended" if result.part and not result.merged else ""
    skipped = f"{result.skipped:,} left out, listed in {result.dataset_file.removesuffix('.json')}.skipped{waits}"
    lines = [
        f"{made}, {show_size(new.size)}, {_speed(new.size, result.seconds)}",
        skipped if result.skipped else "",
        f"{counted(result.dropped, 'sample')} dropped by --map" if result.dropped else "",
        _removed(result.changes) if result.changes else "",
        f"now {_held(result.samples, result.shards)}, {show_size(result.size)}" if result.appended else "",
        *(
            f"  {name}: {_held(one.samples, one.shards)}, {show_size(one.size)}, {one.dataset_file}"
            for name, one in result.splits.items()
        ),
        f"dataset file  {result.dataset_file}{waits}",
        f"fingerprint   {result.fingerprint}{of_part}",
    ]
    if urls := list(filter(None, [result.urls, *(split.urls for split in result.splits.values())])):
        lines.append("to read it with webdataset:")
        lines += [f"  wds.WebDataset({json.dumps(one, ensure_ascii=False)}, shardshuffle=False)" for one in urls]
    if result.features:
        features = [f"    {json.dumps(name)}: {kind}," for name, kind in result.features.items()]
        lines += ["to read it with TensorFlow:", "  features = {", *features, "  }"]
        lines += ["  dataset.map(lambda record: tf.io.parse_single_example(record, features))"]
    return _lines(*lines)


def _removed(changes: Changes) -> str:
    """Return what a run took away from what was there; empty: nothing."""
    parts = ((changes.samples_removed, "sample"), (changes.shards_removed, "shard"))
    removed = [counted(count, what) for count, what in parts if count]
    return f"removed {' and '.join(removed)} that were there before" if removed else ""


def plan_table(plan: DryRun) -> str:
    """Return a dry run as a table; of a long one, its start and end."""
    rows = [
        tuple(map(printable, (shard.name, f"{shard.samples:,}", f"{shard.size:,}", shard.first_key, shard.last_key)))
        for shard in plan.shards
    ]
    if len(rows) > _MOST_ROWS:
        gap = (f"... {len(rows) - _MOST_ROWS:,} more ...", "", "", "", "")
        rows = [*rows[: _MOST_ROWS // 2], gap, *rows[-_MOST_ROWS // 2 :]]
    samples, size = sum(shard.samples for shard in plan.shards), sum(shard.size for shard in plan.shards)
    total = f"{_held(samples, len(plan.shards))}, {show_size(size)} ({size:,} bytes); nothing was written"
    if plan.skipped:
        total += f"; {plan.skipped:,} left out"
    if plan.changes is not None:
        total += f"\n--resume {plan.changes}"
    return "\n".join([*table(("shard", "samples", "bytes", "first key", "last key"), rows, "lrrll"), total])


def extracted_text(result: ExtractResult) -> str:
    """Return what is printed of samples that became files."""
    what = f"{counted(result.samples, 'sample')}, {counted(result.files, 'file')}, {show_size(result.size)}"
    if result.dry_run:
        return f"{what}; nothing was written"
    kept = f"; {result.kept:,} of them there already" if result.kept else ""
    words = [word for one in result.create.items() for word in typed_words(*one)]
    again = join(["shardtool", "create", result.folder, "out-{000000..}.tar", *words])
    return _lines(
        f"{what}, {_speed(result.size, result.seconds)}{kept}",
        f"manifest  {result.manifest}",
        f"metadata  {result.metadata}" if result.metadata else "",
        f"back      {again}",
    )


_SHOWN = 10  # lines of each kind of difference


def diff_text(result: DiffResult, *, whole: bool) -> str:
    """Return what differs, for people; `whole`: all of it."""
    from shardtool.request.results import METADATA

    counts = [counted(count, "sample") for count in result.samples]
    sides = [printable(result.a), printable(result.b)]
    room = max(map(cells, sides))
    lines = [f"{_pad(name, room)}  {count}" for name, count in zip(sides, counts, strict=True)]
    content = len(result.changed) - result.metadata_only
    is_listed = content or any(one.change == "changed" for one in result.metadata.values())
    changed = (f"~ {printable(one.key)}  {', '.join(map(printable, one.fields))}" for one in result.changed)
    moved = (f"> {printable(one.key)}  {printable(one.before)} -> {printable(one.now)}" for one in result.moved)
    kinds = {
        "added": (result.added, (f"+ {printable(key)}" for key in result.added)),
        "removed": (result.removed, (f"- {printable(key)}" for key in result.removed)),
        "changed": (result.changed if is_listed else (), changed),
        "moved": (result.moved, moved),
    }
    for found, texts in kinds.values():
        if found:
            lines += ["", *(f"  {text}" for text in islice(texts, None if whole else _SHOWN))]
        if len(found) > _SHOWN and not whole:
            lines.append(f"  ... and {len(found) - _SHOWN:,} more: -v shows all")
    counts_of = {name: content if name == "changed" else len(found) for name, (found, _) in kinds.items()}
    totals = [f"{count:,} {name}" for name, count in counts_of.items() if count]
    totals += ["other classes"] * bool(result.classes)
    fields = ", ".join(f"{printable(name)} {count:,}" for name, count in result.fields.items() if name != METADATA)
    columns = [
        f"column {printable(name)} {one.change} ({counted(one.samples, 'sample')})"
        for name, one in result.metadata.items()
    ]
    lines += [f"\nthe class numbers of {printable(name)} stand for other names" for name in result.classes]
    total = ", ".join(totals) or ("content equal" if columns else "the same")
    if result.uncompared:
        total += f", except that these fields were not compared: {printable(listing([*result.uncompared]))}"
    total += f" ({fields})" if fields else ""
    total += f"; metadata: {listing(columns)}" if columns else ""
    return "\n".join([*lines, "", f"{total}, {result.seconds:.1f} s"])


def removed_text(result: RemoveResult) -> str:
    """Return what is printed of samples that were removed."""
    lines = []
    for one in result.datasets:
        shards = f"{len(one.rewritten):,} of {counted(one.shards, 'shard')} written again, {show_size(one.size)}"
        verb = "to remove" if result.dry_run else "removed"
        lines.append(f"{counted(one.removed, 'sample')} {verb}, {one.samples:,} left; {shards}")
        lines.append(f"dataset file  {one.dataset_file}")
    return _lines(*lines, "nothing was written" if result.dry_run else "")


def copied_text(result: CopyResult) -> str:
    """Return what is printed of a copy."""
    size, several = sum(one.copied_size for one in result.datasets), len(result.datasets) > 1
    speed = "" if result.dry_run else f", {_speed(size, result.seconds)}"
    lines = []
    for one in result.datasets:
        line = f"nothing to copy: {counted(one.kept, 'shard')} {'are' if one.kept > 1 else 'is'} there already"
        if one.copied:
            what = (
                f"{'to copy' if result.dry_run else 'copied'}, {show_size(one.copied_size)}{'' if several else speed}"
            )
            kept = f"; {one.kept:,} of {one.shards:,} there already" if one.kept else ""
            line = f"{counted(one.copied, 'shard')} {what}{kept}"
        removed = f"; {one.removed:,} {'to remove' if result.dry_run else 'removed'}" if one.removed else ""
        indexes = f"; {counted(one.indexes, 'file')} of other tools" if one.indexes else ""
        lines += [f"{line}{removed}{indexes}", f"dataset file  {one.dataset_file}"]
    return _lines(*lines, f"in all {show_size(size)}{speed}" if several else "")


def doctor_text(result: DoctorResult, room: int) -> str:
    """Return what `doctor` has found, for people.

    Args:
        result: What to show.
        room: Columns of the terminal.
    """
    wrong = sum(one.state == "wrong" for one in result.checks)
    lines = [f"{printable(result.place)}: {f'{wrong:,} of {len(result.checks):,} wrong' if wrong else 'all is well'}"]
    for one in result.checks:
        head = f"  {one.name:<13}{one.state:<9}"
        for text in filter(None, (one.found, one.cure)):
            wrapped = textwrap.wrap(printable(text), room, initial_indent=head, subsequent_indent=" " * len(head))
            lines, head = lines + wrapped, f"{'':<24}-> "
    return "\n".join(lines)


def status_text(status: CacheStatus) -> str:
    """Return what is printed of a cache."""
    counts, rate = status.counts, status.counts.hit_rate
    held = [one for one in status.shards if one.held]
    taken = f"; {show_size(status.taken)} taken by what is being written" if status.taken else ""
    passed = f", {counts.passed:,} read at their own place" if counts.passed else ""
    found = f"{counts.hits:,} found, {counts.copies:,} copied{passed}; {counts.evicted:,} evicted"
    return _lines(
        f"{counted(len(status.shards), 'shard')}, {show_size(status.size)}; {len(held):,} held{taken}",
        f"hit rate  {rate:.1%}: {found}" if rate is not None else "",
        f"used by  {_ids(status.readers)}" if status.readers else "",
        f"written by  {_ids(status.writers)}" if status.writers else "",
        *(f"held      {one.path}{' by ' + _ids(one.pids) if one.pids else ''}" for one in held),
        *map("foreign   {}".format, status.foreign),
    )


def change_text(change: CacheChange) -> str:
    """Return what is printed of what was removed from a cache."""
    return _lines(
        f"{len(change.removed):,} of {counted(change.looked_at, 'shard')} removed, {show_size(change.size)}",
        *(f"removed   {path}: {why}" for path, why in change.removed.items() if why),
        *(f"held      {path}{why and ': ' + why}" for path, why in change.held.items()),
        *map("foreign   {}".format, change.foreign),
    )


def _ids(pids: tuple[int, ...]) -> str:
    return f"process {', '.join(map(str, pids))}"


# What `verify` found, as text for people, and as JSON, JUnit XML and GitHub annotations for programs.


_NO_XML = re.compile("[\ufffe\uffff]")


def rendered(report: Report, style: str) -> str:
    """Return a report as `text`, `json`, `junit` or `github`."""
    if style == "json":
        return json_text(report.to_json())
    return {"text": _report_text, "junit": _junit, "github": _github}[style](report)


def _report_text(report: Report) -> str:
    if not report.datasets:
        return _report_of_one(report)
    several = replace(report, dataset=counted(len(report.datasets), "dataset"), checked=())
    return "\n".join([*map(_report_of_one, report.datasets), "", *_total(several)])


def _report_of_one(report: Report) -> str:
    from shardtool.verbs.verify.findings import KINDS

    lines = [str(one) for one in report.findings]
    hidden = sum(report.counts.values()) - len(report.findings)
    if hidden > 0:
        lines.append(f"... and {hidden:,} more like these")
    if report.counts:
        lines.append("")
        for code, count in report.counts.items():
            lines.append(f"{count:>7,}  {code}: {KINDS[code].meaning}. {_cure(code, printable(report.dataset))}")
        lines.append("")
    return "\n".join(lines + _looked(report))


def _looked(report: Report) -> list[str]:
    """Return what was mended, what was looked at and what was not, and whether it is sound."""
    said = {"repaired": report.repaired, "not checked": report.unchecked}
    return [f"{what}: {printable(one)}" for what, those in said.items() for one in those] + _total(report)


def _cure(code: str, dataset: str) -> str:
    """Return what to do about a kind of findings: the commands in it are about this dataset."""
    from shardtool.verbs.verify.findings import KINDS

    cure = KINDS[code].remedy.replace(" DATASET ", f" {quote(dataset)} ")
    if is_web(dataset) and "shardtool verify --repair" in cure:
        return "Mend it where it was written: its own command with --resume, or `shardtool verify --repair` there."
    if is_url(dataset) and "shardtool verify --repair --source" in cure:  # which mends folders only
        return (
            f"Run its own command again with --resume, or `shardtool copy SOUND {quote(dataset.rpartition('/')[0])}`."
        )
    return cure.replace("`shardtool verify --repair", f"`shardtool verify {quote(dataset)} --repair")


def _total(report: Report) -> list[str]:
    """Return how much was looked at, and whether it is sound."""
    size = report.size if report.read is None else report.read[1]
    rate = f", {show_size(size / max(report.seconds, 1e-9))}/s"
    held = f"{counted(report.samples, 'sample')} in " if report.samples else ""
    if report.samples and report.read is not None:
        held = f"{counted(report.samples, 'sample')} in {report.read[0]:,} of "
    looked = (
        f"{printable(report.dataset)}: {held}{counted(report.shards, 'shard')}, {show_size(report.size)}, "
        f"{report.seconds:.1f} s{rate if report.samples else ''}"
    )
    looked += f"; checked: {', '.join(report.checked)}" if report.checked else ""
    verdict = "sound" if report.sound else f"not sound: {counted(sum(report.counts.values()), 'finding')}"
    if report.sound and report.uncompared:
        fields = printable(listing([*report.uncompared]))
        verdict += f", except that these fields were not compared with the source: {fields}"
    return [looked, verdict]


def _junit(report: Report) -> str:
    """Return a test suite with a failed case for each finding, or one that passed; of several datasets, a suite each.

    Source: the JUnit XML that CI systems read, as in testmoapp/junitxml.
    """
    if not report.datasets:
        return _xml(_suite(report, "shardtool verify"))
    suites = [_suite(one, f"shardtool verify {one.dataset}") for one in report.datasets]
    tests, time = sum(max(1, len(one.findings)) for one in report.datasets), f"{report.seconds:.3f}"
    counts = {"tests": tests, "failures": len(report.findings), "errors": 0, "time": time}
    return _xml(_element("testsuites", "", *suites, name="shardtool verify", **counts))


def _suite(report: Report, name: str) -> Element:
    """Return the test suite of a dataset."""
    cases = [_element("testcase", classname="shardtool", name=report.dataset)] if not report.findings else []
    for one in report.findings:
        failure = _element("failure", f"{one}\n{one.remedy}", type=one.code, message=one.message)
        cases.append(_element("testcase", "", failure, classname=one.file, name=f"{one.code} {one.place}"))
    counts = {"tests": len(cases), "failures": len(report.findings), "errors": 0, "skipped": 0}
    looked = _element("system-out", "\n".join(_looked(report)))
    return _element("testsuite", "", *cases, looked, name=name, **counts, time=f"{report.seconds:.3f}")


def junit_error(dataset: str, error: ShardError) -> str:
    """Return a test suite with a case that ended with an error: what wants a report finds one, whatever happened."""
    ended = _element("error", printable(str(error)), type=error.code, message=error.found)
    case = _element("testcase", "", ended, classname="shardtool", name=dataset)
    return _xml(_element("testsuite", "", case, name="shardtool verify", tests=1, failures=0, errors=1, skipped=0))


def _element(tag: str, text: str = "", /, *children: Element, **attributes: object) -> Element:
    """Return an element, without secrets in its attributes, and without what XML has no character for."""
    from xml.etree.ElementTree import Element

    shown = {name: without_secrets(printable(str(value))) for name, value in attributes.items()}
    found = Element(tag, {name: _NO_XML.sub("?", value) for name, value in shown.items()})
    found.text = _NO_XML.sub("?", text)
    found.extend(children)
    return found


def _xml(root: Element) -> str:
    from xml.etree.ElementTree import indent, tostring

    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, "unicode")}'


def _github(report: Report) -> str:
    """Return an annotation for each finding.

    Source: GitHub Actions, "Workflow commands": what has a meaning in them is percent-encoded.
    """
    return "\n".join([*map(_annotation, report.findings), _report_text(report).splitlines()[-1]])


def _annotation(one: Finding) -> str:
    said = (one.file, one.code, f"{one.place}: {one.message}. {one.remedy}")
    file, title, message = (printable(text).replace("%", "%25") for text in said)
    file, title = (text.replace(":", "%3A").replace(",", "%2C") for text in (file, title))
    return f"::error file={file},title={title}::{message}"
