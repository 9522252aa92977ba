"""`shardtool inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardtool.cli.options import Whole
from shardtool.cli.options import progress as progress_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.cli.results_text import Terminal
    from shardtool.dataset.opened import OpenedDataset
    from shardtool.inspection.overview import InspectOptions
    from shardtool.inspection.samples import FoundSample, SampleView

_MANY = 1000  # keys that are printed at a time
_BRIEF = 4096  # bytes of a text of which a line is shown


@click.command(no_args_is_help=True)
@click.argument("dataset", type=click.Path(), nargs=-1, required=True)
@click.option(
    "--sample",
    "samples",
    multiple=True,
    metavar="KEY|N",
    help="Show this sample: its key, or its number from 0; repeatable.",
)
@click.option("--head", type=Whole("head"), metavar="N", help="Show the first N samples, a line each.")
@click.option("--keys", "only_keys", is_flag=True, help="Print all keys, one a line.")
@click.option(
    "--extract",
    type=click.Path(),
    metavar="DIR",
    help="With --sample or --head: write their fields to files KEY.FIELD below DIR.",
)
@click.option("--overwrite", is_flag=True, help="Replace files that --extract, --html and --contact-sheet would write.")
@click.option("--html", type=click.Path(), metavar="FILE", help="Write a page to look at: one file, no network.")
@click.option("--contact-sheet", type=click.Path(), metavar="FILE", help="Write thumbnails of samples into one PNG.")
@click.option("--full", is_flag=True, help="Read the index of every shard, above four million samples, too.")
@click.option(
    "--looks",
    type=Whole("looks"),
    default=256,
    show_default=True,
    metavar="N",
    help="Images that are opened for their sizes and modes.",
)
@click.option("--seed", type=Whole("seed"), default=0, show_default=True, metavar="N", help="Of the choice of images.")
@click.option("-v", "--verbose", is_flag=True, help="Tell of every shard.")
@click.option("--quiet", is_flag=True, help="No progress.")
@progress_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def inspect(  # noqa: PLR0913 - an option each
    dataset: tuple[str, ...],
    *,
    samples: tuple[str, ...],
    head: int | None,
    only_keys: bool,
    extract: str | None,
    html: str | None,
    contact_sheet: str | None,
    overwrite: bool,
    full: bool,
    looks: int,
    seed: int,
    verbose: bool,
    quiet: bool,
    progress: str,
    as_json: bool,
) -> None:
    """Show what is in a dataset: totals, shards, fields, images, labels, metadata, samples.

    DATASET is a dataset file (out.json), a folder, a shard pattern, a glob, or shards; of shardtool or any other tool:
    .tar, .tfrecord, train-00000-of-01024, and .tar.gz, .tar.bz2, .tar.xz and .tar.zst. What has an index
    (`out-000000.index`) is not read; other shards are.

    \b
    Examples:
      shardtool inspect out.json
      shardtool inspect out.json --sample cat/0001
      shardtool inspect out.json --sample 17 --extract ./look
      shardtool inspect 'shards/train-{0000..0127}.tar' --head 20
      shardtool inspect out.json --keys | grep cat/
      shardtool inspect out.json --html report.html --contact-sheet sheet.png
    """
    pictures = html is not None or contact_sheet is not None
    asked = [
        name
        for name, given in (
            ("--sample", samples),
            ("--head", head),
            ("--keys", only_keys),
            ("--html or --contact-sheet", pictures),
        )
        if given
    ]
    if len(asked) > 1:
        message = f"{asked[0]} and {asked[1]} show different things: choose one."
        raise click.UsageError(message)
    if extract is not None and asked not in (["--sample"], ["--head"]):
        message = "--extract wants to know of what: --sample or --head."
        raise click.UsageError(message)
    if overwrite and extract is None and not pictures:
        message = "--overwrite is for --extract, --html and --contact-sheet."
        raise click.UsageError(message)
    if not asked:
        from shardtool.cli.results_text import Terminal
        from shardtool.inspection.overview import InspectOptions

        terminal = Terminal(quiet=quiet, verbose=verbose, progress=progress)
        _show_summary(dataset, InspectOptions(full=full, looks=looks, seed=seed), terminal, as_json=as_json)
        return
    from shardtool.dataset.opened import open_dataset
    from shardtool.inspection.samples import find_sample, first_samples

    opened = open_dataset(dataset)
    if pictures:
        _write_pictures(opened, html, contact_sheet, seed=seed, overwrite=overwrite, as_json=as_json)
        return
    if only_keys:
        _print_keys(opened, as_json=as_json)
        return
    found = (find_sample(opened, key) for key in samples) if samples else first_samples(opened, head or 1)
    _print_samples(found, extract, overwrite=overwrite, brief=head is not None, as_json=as_json)


def _show_summary(dataset: tuple[str, ...], options: InspectOptions, terminal: Terminal, *, as_json: bool) -> None:
    from shardtool.cli.output import show, show_json
    from shardtool.cli.summary_text import encodable, summary_text, width
    from shardtool.verbs.inspect import inspect as run

    try:
        summary = run(dataset, options, observer=terminal)
    finally:
        terminal.close()
    if as_json:
        show_json(summary.to_json())
    else:
        show(encodable(summary_text(summary, width())))


def _write_pictures(  # noqa: PLR0913 - an option each
    opened: OpenedDataset, html: str | None, contact_sheet: str | None, *, seed: int, overwrite: bool, as_json: bool
) -> None:
    from shardtool.cli.output import show, show_json
    from shardtool.errors import printable
    from shardtool.inspection.page.contact_sheet import write_contact_sheet
    from shardtool.inspection.page.page import write_page
    from shardtool.values import output_text

    written = [output_text(path) for path in (html, contact_sheet) if path is not None]
    if html is not None:
        write_page(opened, html, seed=seed, overwrite=overwrite)
    if contact_sheet is not None:
        write_contact_sheet(opened, contact_sheet, seed=seed, overwrite=overwrite)
    if as_json:
        show_json({"files": written})
    else:
        show("\n".join(map(printable, written)))


def _print_keys(opened: OpenedDataset, *, as_json: bool) -> None:
    """Print keys as they are read: the first ones of a large dataset at once, and no more than somebody reads."""
    from itertools import islice

    from shardtool.cli.output import show_json
    from shardtool.cli.summary_text import encodable, show_each
    from shardtool.errors import printable
    from shardtool.inspection.samples import keys

    found = keys(opened)
    chunks = iter(lambda: list(islice(found, _MANY)), [])
    if as_json:
        show_json({"keys": list(found)})
    else:
        show_each(encodable("\n".join(map(printable, chunk))) for chunk in chunks)


def _print_samples(
    found: Iterator[FoundSample], folder: str | None, *, overwrite: bool, brief: bool, as_json: bool
) -> None:
    from shardtool.cli.output import show_json
    from shardtool.cli.summary_text import show_each, width
    from shardtool.inspection.extract import extract
    from shardtool.inspection.samples import view
    from shardtool.values import output_text

    seen = ((view(sample, text_limit=_BRIEF) if brief else view(sample), sample) for sample in found)
    shown = (
        (one, None if folder is None else [*map(output_text, extract(sample, folder, overwrite=overwrite))])
        for one, sample in seen
    )
    if as_json:
        show_json({"samples": [one.to_json() | ({} if files is None else {"files": files}) for one, files in shown]})
    else:
        show_each(_texts(shown, folder, width(), brief=brief))


def _texts(
    shown: Iterable[tuple[SampleView, list[str] | None]], folder: str | None, room: int, *, brief: bool
) -> Iterator[str]:
    """Yield samples for people, each with how many files were written of it."""
    from shardtool.cli.summary_text import encodable, sample_line, sample_text
    from shardtool.errors import printable
    from shardtool.values import counted

    for number, (one, files) in enumerate(shown):
        text = sample_line(one, room) if brief else ("\n" if number else "") + sample_text(one, room)
        if folder is not None and files is not None and not brief:
            text += f"\n{counted(len(files), 'file')} written to {printable(folder)}"
        yield encodable(text)
