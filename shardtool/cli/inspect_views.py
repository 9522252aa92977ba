"""Write the outputs of `inspect` other than the summary: samples, keys, tables, HTML pages and contact sheets."""

from __future__ import annotations

import json
import os
from itertools import islice
from typing import TYPE_CHECKING

from shardtool.cli.output import display_width, fit_line, pad, print_json, print_text, terminal_width, until_closed
from shardtool.cli.terminal import print_result
from shardtool.errors import printable
from shardtool.names import to_output_name
from shardtool.units import format_size, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardtool.cli.command_options import InspectViewOptions, RunOptions
    from shardtool.dataset.stored import StoredDataset
    from shardtool.verbs.inspect.overview import StoredSample
    from shardtool.verbs.inspect.samples import FieldView, SampleView


_KEYS_PER_PRINT = 1000
_MAX_BRIEF_BYTES = 4096
_MAX_VALUE_LINES = 200


def write_pictures(dataset: Sequence[str], options: InspectViewOptions, run_options: RunOptions) -> None:
    """Write the HTML report and the contact sheet."""
    from shardtool.dataset.expand import expand_datasets
    from shardtool.dataset.find import open_dataset
    from shardtool.verbs.inspect.reports import inspect_contact_sheet, inspect_html
    from shardtool.verbs.inspect.samples import check_report_path

    if options.contact_sheet is not None and options.html is not None:  # check the HTML path before writing the sheet
        for path in expand_datasets(dataset):
            check_report_path(open_dataset(path), options.html, overwrite=options.overwrite, ending=".html")
    if options.contact_sheet is not None:
        inspect_contact_sheet(dataset, options.contact_sheet, seed=options.seed, overwrite=options.overwrite)
    if options.html is not None:
        inspect_html(dataset, options.html, seed=options.seed, overwrite=options.overwrite)
    written = [to_output_name(path) for path in (options.html, options.contact_sheet) if path is not None]
    print_result(run_options, lambda: {"files": written}, lambda: "\n".join(map(printable, written)), always=True)


def print_table(dataset: Sequence[str], path: str, options: InspectViewOptions, run_options: RunOptions) -> None:
    """Write a table with one row per sample."""
    from shardtool.verbs.inspect.reports import inspect_table

    rows = inspect_table(dataset, path, where=options.where, overwrite=options.overwrite)
    file = to_output_name(path)
    text = f"{pluralize(rows, 'row')} written to {printable(file)}"
    print_result(run_options, lambda: {"files": [file], "rows": rows}, lambda: text, always=True)


def print_keys(opened: list[StoredDataset], where: str | None, run_options: RunOptions) -> None:
    """Print keys as they are read, until stdout is closed."""
    from shardtool.verbs.inspect.samples import iter_keys

    keys = iter_keys(opened, where)
    if run_options.as_json:
        print_json({"keys": list(keys)})
    else:
        chunks = iter(lambda: list(islice(keys, _KEYS_PER_PRINT)), [])
        for chunk in until_closed(chunks):
            print_text("\n".join(map(printable, chunk)))


def print_samples(opened: list[StoredDataset], options: InspectViewOptions, run_options: RunOptions) -> None:
    """Print samples. With `--extract`, also write the fields to files."""
    from shardtool.verbs.inspect.samples import check_no_files, find_sample, first_samples, view_sample, write_fields

    brief, folder = not options.show, options.extract
    requested = [find_sample(opened, key) for key in options.show]

    def samples() -> Iterable[StoredSample]:
        return first_samples(opened, options.head, options.where) if brief else requested

    if folder is not None and os.path.isdir(folder) and not options.overwrite:
        check_no_files(samples(), folder)

    def views() -> Iterator[tuple[SampleView, tuple[str, ...]]]:
        for sample in samples():
            view = view_sample(sample, text_limit=_MAX_BRIEF_BYTES) if brief else view_sample(sample)
            yield view, write_fields(sample, folder, overwrite=options.overwrite) if folder is not None else ()

    def texts() -> Iterator[str]:
        for number, (view, files) in enumerate(views()):
            text = (
                sample_line(view, terminal_width())
                if brief
                else ("\n" if number else "") + sample_text(view, terminal_width())
            )
            written = f"\n{pluralize(len(files), 'file')} written to {printable(folder or '')}"
            yield text if brief or folder is None else text + written

    if run_options.as_json:
        documents = [(view.to_json(), {"files": [*map(to_output_name, files)]}) for view, files in views()]
        print_json({"samples": [sample if folder is None else sample | files for sample, files in documents]})
    else:
        for text in until_closed(texts()):
            print_text(text)


def sample_text(view: SampleView, width: int) -> str:
    """Format a sample with its fields and metadata in lines of up to `width` columns."""
    sample = view.sample
    location = (
        f"sample {sample.number:,}, {sample.size:,} bytes at {sample.offset:,} of {to_output_name(sample.shard.path)}"
    )
    lines = [printable(sample.key), fit_line(f"  {location}", width)]
    for field in view.fields:
        lines += _field_lines(field, width)
    if sample.metadata:
        lines.append("metadata")
        name_width = max(map(display_width, map(printable, sample.metadata)))
        lines += [
            fit_line(f"  {pad(printable(name), name_width)}  {_flat_text(value)}", width)
            for name, value in sample.metadata.items()
        ]
    return "\n".join(lines)


def _flat_text(value: object) -> str:
    return value if isinstance(value, str) else _json_value_text(value)


def _json_value_text(value: object, indent: int | None = None) -> str:
    from shardtool.verbs.inspect.samples import json_value

    return json.dumps(json_value(value), indent=indent, ensure_ascii=False)


def _field_lines(field: FieldView, width: int) -> list[str]:
    head = f"{printable(field.name)}  {field.content}, {pluralize(field.length, 'byte')}"
    if field.image is not None:
        head += f", {field.image[0]:,} x {field.image[1]:,}, {printable(field.image[2])}"
    lines = [fit_line(head, width)]
    if field.problem:
        lines.append(fit_line(f"  problem: {field.problem}", width))
    if field.content == "json":
        body = _json_value_text(field.value, 2).split("\n")
    elif field.content == "text":
        body = str(field.value).replace("\r\n", "\n").rstrip("\n").split("\n")
    elif field.content == "number":
        body = [f"{field.value}{f' ({field.label})' if field.label is not None else ''}"]
    elif field.details:
        body = [*map(printable, field.details)]
    else:
        body = [f"{field.head[:16].hex(' ')}  {_ascii_text(field.head[:16])}"] if field.head else []
    lines += [f"  {fit_line(line, width - 2)}" for line in body[:_MAX_VALUE_LINES]]
    if len(body) > _MAX_VALUE_LINES:
        lines.append(f"  and {len(body) - _MAX_VALUE_LINES:,} more lines")
    return lines


def _ascii_text(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)  # noqa: PLR2004 - printable ASCII


def sample_line(view: SampleView, width: int) -> str:
    """Format a sample as one line of up to `width` columns."""
    fields = "  ".join(f"{printable(field.name)}: {_brief_text(field)}" for field in view.fields)
    return fit_line(f"{view.sample.key}  {fields}", width)


def _brief_text(field: FieldView) -> str:
    if field.problem:
        return field.problem
    if field.image is not None:
        return f"{field.image[0]}x{field.image[1]} {field.image[2]}"
    if field.value is None:
        return printable(field.details[0]) if len(field.details) == 1 else format_size(field.length)
    if field.label is not None:
        return f"{field.label} ({_flat_text(field.value)})"
    return field.value.strip() if isinstance(field.value, str) else _flat_text(field.value)
