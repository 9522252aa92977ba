"""`shardtool inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardtool.cli.options import WholeNumber, endpoint
from shardtool.cli.options import progress as progress_option
from shardtool.cli.piped import in_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.cli.results_text import Terminal
    from shardtool.dataset.find import StoredDataset
    from shardtool.request.options import InspectOptions
    from shardtool.verbs.inspect.samples import FoundSample, SampleView

_MANY = 1000  # keys that are printed at a time
_BRIEF = 4096  # bytes of a text of which a line is shown

# What can be asked for, one at a time; what an option is for; and what does not go together.
_SHOWS = ("--sample", "--head", "--keys", "--table", "--html or --contact-sheet", "--read-speed")
_WANTS = {
    "--extract": ("--sample", "--head", "--where"),
    "--field": ("--sample",),
    "--where": ("--head", "--keys", "--extract", "--table"),
    "--overwrite": ("--extract", "--table", "--html or --contact-sheet"),
    "--decode": ("--read-speed",),
}
_APART = (("--field", "--extract"), ("--field", "--json"), ("--sample", "--where"))


@click.command(no_args_is_help=True)
@click.argument("dataset", type=click.Path(), nargs=-1, required=True)
@click.option(
    "--sample",
    "samples",
    multiple=True,
    metavar="KEY|N",
    help="Show this sample: its key, or its number from 0; repeatable.",
)
@click.option("--head", type=WholeNumber("head"), metavar="N", help="Show the first N samples, a line each.")
@click.option("--keys", "only_keys", is_flag=True, help="Print all keys, one per line.")
@click.option(
    "--extract",
    type=click.Path(),
    metavar="DIR",
    help="With --sample, --head or --where: write their fields to files KEY.FIELD below DIR.",
)
@click.option("--field", metavar="FIELD", help="With --sample: write the bytes of this field to stdout, as they are.")
@click.option("--table", type=click.Path(), metavar="FILE", help="Write a row a sample: out.parquet, or out.csv.")
@click.option("--where", metavar="QUERY", help="Of --head, --keys, --extract and --table: as reshard --where has it.")
@click.option("--overwrite", is_flag=True, help="Replace files that --extract, --table, --html ... would write.")
@click.option("--html", type=click.Path(), metavar="FILE", help="Write a page to look at: one file, no network.")
@click.option("--contact-sheet", type=click.Path(), metavar="FILE", help="Write thumbnails of samples into one PNG.")
@click.option("--read-speed", is_flag=True, help="Read for some seconds, as training does, and say how fast it was.")
@click.option("--decode", is_flag=True, help="With --read-speed: decode images and other fields, too.")
@click.option("--full", is_flag=True, help="Read the index of every shard, above four million samples, too.")
@click.option(
    "--looks",
    type=WholeNumber("looks"),
    default=256,
    show_default=True,
    metavar="N",
    help="Images that are opened for their sizes and modes.",
)
@click.option(
    "--seed", type=WholeNumber("seed"), default=0, show_default=True, metavar="N", help="Of the choice of images."
)
@endpoint
@click.option("-v", "--verbose", is_flag=True, help="Tell of every shard.")
@click.option("--quiet", is_flag=True, help="No progress.")
@progress_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def inspect(
    dataset: tuple[str, ...],
    *,
    samples: tuple[str, ...],
    head: int | None,
    only_keys: bool,
    extract: str | None,
    field: str | None,
    table: str | None,
    where: str | None,
    html: str | None,
    contact_sheet: str | None,
    read_speed: bool,
    decode: bool,
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
    Several are shown one after the other; their samples are those of all.

    \b
    Examples:
      shardtool inspect out.json
      shardtool inspect out.json --sample cat/0001
      shardtool inspect out.json --sample 17 --extract ./look
      shardtool inspect 'shards/train-{0000..0127}.tar' --head 20
      shardtool inspect out.json --sample cat/0001 --field jpg > cat.jpg
      shardtool inspect out.json --where "width < 64" --extract ./small
      shardtool inspect out.json --table out.parquet
      shardtool inspect 'out/{split}.json' --keys | grep cat/
      shardtool inspect out.json --html report.html --contact-sheet sheet.png
      shardtool inspect out.json --read-speed --decode
    """
    pictures = html is not None or contact_sheet is not None
    given = {
        "--sample": samples, "--head": head, "--keys": only_keys, "--table": table,
        "--html or --contact-sheet": pictures, "--extract": extract, "--field": field, "--where": where,
        "--overwrite": overwrite, "--json": as_json, "--read-speed": read_speed, "--decode": decode,
    }  # fmt: skip
    asked = _asked({name for name, value in given.items() if value not in (None, False, ())})
    if field is not None and len(samples) > 1:
        message = "--field is about one --sample."
        raise click.UsageError(message)
    dataset = in_files(dataset)
    if not asked:
        from shardtool.cli.results_text import Terminal
        from shardtool.request.options import InspectOptions

        terminal = Terminal(quiet=quiet, verbose=verbose, progress=progress)
        _show_summary(dataset, InspectOptions(full=full, looks=looks, seed=seed), terminal, as_json=as_json)
        return
    if read_speed:
        _show_read_speed(dataset, decode=decode, seed=seed, as_json=as_json)
        return
    from shardtool.dataset.find import given_datasets, open_dataset
    from shardtool.verbs.inspect.samples import find_sample, first_samples

    opened = [open_dataset(one) for one in given_datasets(dataset)]
    if pictures:
        _write_pictures(opened, html, contact_sheet, seed=seed, overwrite=overwrite, as_json=as_json)
    elif table is not None:
        _write_table(opened, table, where, overwrite=overwrite, as_json=as_json)
    elif only_keys:
        _print_keys(opened, where, as_json=as_json)
    elif field is not None:
        _print_field(find_sample(opened, samples[0]), field)
    else:
        found = (find_sample(opened, key) for key in samples) if samples else first_samples(opened, head, where)
        _print_samples(found, extract, overwrite=overwrite, brief=not samples, as_json=as_json)


def _asked(given: set[str]) -> bool:
    """Return whether more than the summary is asked for.

    Raises:
        UsageError: Options do not go together.
    """
    shows = [name for name in _SHOWS if name in given]
    if len(shows) > 1:
        message = f"{shows[0]} and {shows[1]} show different things: choose one."
        raise click.UsageError(message)
    for name, other in _APART:
        if {name, other} <= given:
            message = f"{name} and {other} do not go together: choose one."
            raise click.UsageError(message)
    for name, wants in _WANTS.items():
        if name in given and not given.intersection(wants):
            message = f"{name} is for {' or '.join(wants)}."
            raise click.UsageError(message)
    if "--extract" in given and (wrong := given & {"--keys", "--table", "--html or --contact-sheet", "--read-speed"}):
        message = f"--extract and {min(wrong)} do not go together: choose one."
        raise click.UsageError(message)
    return bool(shows) or "--extract" in given


def _show_summary(dataset: tuple[str, ...], options: InspectOptions, terminal: Terminal, *, as_json: bool) -> None:
    from shardtool.cli.output import show, show_json
    from shardtool.cli.summary_text import encodable, summary_text, width
    from shardtool.verbs.inspect.inspect import inspect as run

    try:
        summary = run(dataset, options, observer=terminal)
    finally:
        terminal.close()
    if as_json:
        show_json(summary.to_json())
    else:
        show(encodable(summary_text(summary, width())))


def _show_read_speed(dataset: tuple[str, ...], *, decode: bool, seed: int, as_json: bool) -> None:
    from shardtool.cli.output import show, show_json
    from shardtool.cli.summary_text import encodable, read_speed_text
    from shardtool.verbs.inspect.read_speed import read_speed

    speed = read_speed(dataset, decode=decode, seed=seed)
    if as_json:
        show_json(speed.to_json())
    else:
        show(encodable(read_speed_text(speed)))


def _write_pictures(
    datasets: list[StoredDataset],
    html: str | None,
    contact_sheet: str | None,
    *,
    seed: int,
    overwrite: bool,
    as_json: bool,
) -> None:
    from shardtool.cli.output import show, show_json
    from shardtool.errors import InvalidRequest, printable
    from shardtool.values import output_text
    from shardtool.verbs.inspect.contact_sheet import write_contact_sheet
    from shardtool.verbs.inspect.page import write_page

    if len(datasets) > 1:
        where = "--contact-sheet" if html is None else "--html"
        raise InvalidRequest(where, f"{len(datasets):,} datasets", expected="one, or a page for each")
    opened = datasets[0]
    written = [output_text(path) for path in (html, contact_sheet) if path is not None]
    if html is not None:
        write_page(opened, html, seed=seed, overwrite=overwrite)
    if contact_sheet is not None:
        write_contact_sheet(opened, contact_sheet, seed=seed, overwrite=overwrite)
    if as_json:
        show_json({"files": written})
    else:
        show("\n".join(map(printable, written)))


def _write_table(opened: list[StoredDataset], path: str, where: str | None, *, overwrite: bool, as_json: bool) -> None:
    from shardtool.cli.output import show, show_json
    from shardtool.errors import printable
    from shardtool.values import counted, output_text
    from shardtool.verbs.inspect.table import write_table

    rows = write_table(opened, path, where=where, overwrite=overwrite)
    if as_json:
        show_json({"files": [output_text(path)], "rows": rows})
    else:
        show(f"{counted(rows, 'row')} written to {printable(output_text(path))}")


def _print_field(sample: FoundSample, field: str) -> None:
    from shardtool.cli.output import show_bytes
    from shardtool.verbs.inspect.samples import field_bytes

    show_bytes(field_bytes(sample, field))


def _print_keys(opened: list[StoredDataset], where: str | None, *, as_json: bool) -> None:
    """Print keys as they are read: the first ones of a large dataset at once, until the reader stops."""
    from itertools import islice

    from shardtool.cli.output import show_json
    from shardtool.cli.summary_text import encodable, show_each
    from shardtool.errors import printable
    from shardtool.verbs.inspect.samples import keys

    found = keys(opened, where)
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
    from shardtool.values import output_text
    from shardtool.verbs.inspect.samples import extract, view

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
