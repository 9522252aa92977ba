"""The outputs of `inspect` in addition to the summary: samples, keys, tables and pages."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from shardtool.cli.output import print_json, print_text, until_closed
from shardtool.cli.run_options import RunOptions
from shardtool.cli.run_verb import print_result
from shardtool.errors import InvalidRequest, printable
from shardtool.names import to_output_name
from shardtool.request.dataset_options import (
    ExtractOptions,
    InspectOptions,
)
from shardtool.request.option_spec import (
    inherit_option,
    option,
    options_class,
)
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.dataset.stored import StoredDataset
    from shardtool.verbs.inspect.samples import SampleView


_KEYS_PER_PRINT = 1000
_MAX_BRIEF_BYTES = 4096  # read to show one line
_PICTURE_OPTIONS = ("html", "contact_sheet")


@options_class
class InspectViewOptions(InspectOptions):
    """Options of `inspect` on the command line."""

    samples: tuple[str, ...] = option(
        (), "Sample to show, by key or by number from 0.", section="samples", typed="show", old="sample",
        metavar="KEY|N", common=True,
        conflicts=("head", "keys", "table", *_PICTURE_OPTIONS, "read_speed", "where"),
    )  # fmt: skip
    head: int | None = option(
        None, "Show the first N samples, one line each.", range=(1, 10**15), common=True,
        conflicts=("keys", "table", *_PICTURE_OPTIONS, "read_speed"),
    )  # fmt: skip
    keys: bool = option(
        False,
        "Print all keys, one per line.",
        conflicts=("table", *_PICTURE_OPTIONS, "read_speed", "extract"),
        common=True,
    )
    extract: str | None = option(
        None, "Write the fields of samples to this folder, as files KEY.FIELD.", form="path", metavar="DIR",
        common=True,
        requires={"samples|head|where": "no samples to write"},
    )  # fmt: skip
    field: str | None = option(
        None, "Write the bytes of this field of one sample to stdout.", typed="raw", old="field",
        metavar="FIELD", common=True, requires={"samples": "no sample selected"}, conflicts=("extract",),
    )  # fmt: skip
    table: str | None = option(
        None, "Write a table with one row per sample: out.parquet or out.csv.", section="pages", form="path",
        metavar="FILE", common=True,
        conflicts=(*_PICTURE_OPTIONS, "read_speed", "extract"),
    )  # fmt: skip
    where: str | None = inherit_option(
        ExtractOptions, "where", section="samples", requires={"head|keys|extract|table": "nothing to choose for"}
    )
    overwrite: bool = option(
        False, "Replace existing files.", section="pages", typed="overwrite/f", common=True,
        requires={"extract|table|html|contact_sheet": "nothing is written"},
    )  # fmt: skip
    html: str | None = option(
        None, "Write a page to this file; it works offline.", form="path", metavar="FILE", common=True,
        conflicts=("read_speed", "extract"),
    )  # fmt: skip
    contact_sheet: str | None = option(
        None, "Write a PNG with thumbnails of samples to this file.", form="path", metavar="FILE", common=True,
        conflicts=("read_speed", "extract"),
    )  # fmt: skip
    duplicates: bool = option(
        False, "List samples with the same content, across keys and splits.", common=True,
        conflicts=("samples", "head", "keys", "table", *_PICTURE_OPTIONS, "read_speed", "extract"),
    )  # fmt: skip
    read_speed: bool = option(
        False, "Read for a few seconds as training does, and print the speed.", conflicts=("extract",), common=True
    )
    decode: bool = option(
        False, "Decode images and other fields during `read_speed`.", requires={"read_speed": "nothing is read"}
    )

    @property
    def summary(self) -> bool:
        """Whether to print the summary."""
        shows = ("samples", "head", "keys", "table", *_PICTURE_OPTIONS, "read_speed", "extract", "duplicates")
        return not any(map(self.is_given, shows))


def write_pictures(datasets: list[StoredDataset], options: InspectViewOptions, how: RunOptions) -> None:
    """Write the page and the contact sheet."""
    from shardtool.verbs.inspect.contact_sheet import write_contact_sheet
    from shardtool.verbs.inspect.page.page import write_page

    if options.contact_sheet is not None and len(datasets) > 1:
        raise InvalidRequest(
            "--contact-sheet", f"{len(datasets):,} datasets", expected="one dataset, or --html for several"
        )
    written = []
    if options.html is not None:
        write_page(datasets, options.html, seed=options.seed, overwrite=options.overwrite)
        written.append(to_output_name(options.html))
    if options.contact_sheet is not None:
        write_contact_sheet(datasets[0], options.contact_sheet, seed=options.seed, overwrite=options.overwrite)
        written.append(to_output_name(options.contact_sheet))
    print_result(how, lambda: {"files": written}, lambda: "\n".join(map(printable, written)), always=True)


def print_table(opened: list[StoredDataset], path: str, options: InspectViewOptions, how: RunOptions) -> None:
    """Write a table with one row per sample."""
    from shardtool.verbs.inspect.table import write_table

    rows, file = write_table(opened, path, where=options.where, overwrite=options.overwrite), to_output_name(path)
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

    brief, folder = not options.samples, options.extract
    requested = (find_sample(opened, key) for key in options.samples)

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
