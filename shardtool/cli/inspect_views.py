"""The outputs of `inspect` in addition to the summary: samples, keys, tables and pages."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from shardtool.cli.output import print_json, print_text, until_closed
from shardtool.cli.run_verb import print_result
from shardtool.errors import printable
from shardtool.names import to_output_name
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.cli.command_options import InspectViewOptions, RunOptions
    from shardtool.dataset.stored import StoredDataset
    from shardtool.verbs.inspect.samples import SampleView


_KEYS_PER_PRINT = 1000
_MAX_BRIEF_BYTES = 4096  # bytes to read for one line


def write_pictures(dataset: Sequence[str], options: InspectViewOptions, how: RunOptions) -> None:
    """Write the page and the contact sheet."""
    from shardtool.verbs.inspect.reports import inspect_contact_sheet, inspect_html

    if options.contact_sheet is not None:
        inspect_contact_sheet(dataset, options.contact_sheet, seed=options.seed, overwrite=options.overwrite)
    if options.html is not None:
        inspect_html(dataset, options.html, seed=options.seed, overwrite=options.overwrite)
    written = [to_output_name(path) for path in (options.html, options.contact_sheet) if path is not None]
    print_result(how, lambda: {"files": written}, lambda: "\n".join(map(printable, written)), always=True)


def print_table(dataset: Sequence[str], path: str, options: InspectViewOptions, how: RunOptions) -> None:
    """Write a table with one row per sample."""
    from shardtool.verbs.inspect.reports import inspect_table

    rows = inspect_table(dataset, path, where=options.where, overwrite=options.overwrite)
    file = to_output_name(path)
    text = f"{pluralize(rows, 'row')} written to {printable(file)}"
    print_result(how, lambda: {"files": [file], "rows": rows}, lambda: text, always=True)


def print_keys(opened: list[StoredDataset], where: str | None, how: RunOptions) -> None:
    """Print keys while they are read, until stdout is closed."""
    from shardtool.verbs.inspect.samples import iter_keys

    keys = iter_keys(opened, where)
    if how.as_json:
        print_json({"keys": list(keys)})
    else:
        chunks = iter(lambda: list(islice(keys, _KEYS_PER_PRINT)), [])
        for chunk in until_closed(chunks):
            print_text("\n".join(map(printable, chunk)))


def print_samples(opened: list[StoredDataset], options: InspectViewOptions, how: RunOptions) -> None:
    """Print samples one by one, and write their fields with `--extract`."""
    from shardtool.cli.sample_text import sample_line, sample_text
    from shardtool.cli.text_layout import terminal_width
    from shardtool.verbs.inspect.samples import find_sample, first_samples, view_sample, write_fields

    brief, folder = not options.show, options.extract
    requested = (find_sample(opened, key) for key in options.show)

    def views() -> Iterator[tuple[SampleView, tuple[str, ...]]]:
        for sample in first_samples(opened, options.head, options.where) if brief else requested:
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

    if how.as_json:
        documents = [(view.to_json(), {"files": [*map(to_output_name, files)]}) for view, files in views()]
        print_json({"samples": [sample if folder is None else sample | files for sample, files in documents]})
    else:
        for text in until_closed(texts()):
            print_text(text)
