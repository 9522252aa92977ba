"""`shardtool create`."""

from __future__ import annotations

import os
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import click

from shardtool.cli.options import (
    PLACE,
    SectionedCommand,
    Size,
    WholeNumber,
    chosen,
    common,
    dividing,
    if_exists,
    running,
    selecting,
    shards,
)
from shardtool.cli.piped import in_files
from shardtool.cli.reshard import follows
from shardtool.pattern import is_shard_name
from shardtool.request.options import CreateOptions
from shardtool.wording import typed_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.cli.options import Command


class _Create(SectionedCommand):
    SECTIONS: ClassVar[dict[str, str]] = {
        "max_size": "Shards",
        "where": "Choosing and dividing",
        "include": "Folders",
        "key": "Manifests",
        "connections": "URLs",
        "columns_from": "Fields and metadata",
        "resize": "Changing samples",
        "portable": "Names and errors",
        "append": "Running",
    }


def divide_arguments(arguments: tuple[str, ...]) -> tuple[str | list[str], list[str]]:
    """Return the source, or several, and the output that `SOURCE... OUTPUT` means.

    The output is the last argument, with all names of shards before it, for a shell may have expanded its pattern;
    where the first argument is an archive, which has such a name too, with those that count up to it.

    Raises:
        UsageError: There is only one argument.
    """
    at = len(arguments) - 1
    if at < 1:
        message = "no OUTPUT: quote the shard pattern of the output, such as 'out-{000000..}.tar', and put it last."
        raise click.UsageError(message)
    is_archive = is_shard_name(os.path.basename(arguments[0]))
    while at > 1 and is_shard_name(os.path.basename(arguments[at - 1])):
        if is_archive and not follows(arguments[at - 1], arguments[at]):
            break
        at -= 1
    sources = [*arguments[:at]]
    return sources[0] if len(sources) == 1 else sources, [*arguments[at:]]


def fetching(command: Command) -> Command:
    """Add what says how the files of URLs are fetched."""
    for one in reversed((
        _number("connections", "Fetched at once by each worker."),
        _number("per_host", "Of these, of one host: by all workers."),
        _number("timeout", "Seconds to connect, and to wait for bytes."),
        _number("max_time", "Seconds for a file in all."),
        click.option(
            "--max-file-size", type=Size(), default="100MB", show_default=True, help="Bytes of a file at most."
        ),
        _number("retries", "Further tries after a failure that may pass."),
        click.option("--allow-private", is_flag=True, help="Ask addresses of this machine and local networks, too."),
        chosen(CreateOptions, "robots", "The header X-Robots-Tag, such as noai."),
        click.option("--user-agent", metavar="TEXT", help="Who asks. [default: shardtool/VERSION]"),
        chosen(CreateOptions, "require", "Files must begin as an image does."),
        click.option(
            "--max-failed", default="90%", show_default=True, metavar="SHARE", help="Stop where more of a shard fail."
        ),
        click.option("--retry-failed", is_flag=True, help="With --resume, fetch shards with failures again."),
    )):  # fmt: skip
        command = one(command)
    return command


def _number(name: str, text: str) -> Callable[[Command], Command]:
    default = next(one.default for one in fields(CreateOptions) if one.name == name)
    return click.option(
        typed_name(name), type=WholeNumber(name), default=default, show_default=True, metavar="N", help=text
    )


@click.command(cls=_Create, no_args_is_help=True)
@click.argument("arguments", type=PLACE, nargs=-1, required=True, metavar="SOURCE... OUTPUT")
@shards
@click.option(
    "--where", metavar="QUERY",
    help="Only samples that this takes: \"bi == 'dog' and width > 256\" over a manifest's columns; of a folder: key, "
    "path, folder, size and the columns of --join and --columns-from.",
)  # fmt: skip
@dividing
@click.option(
    "--include", multiple=True, metavar="GLOB", help="Only files that match ('*.jpg', 'train/*'); repeatable."
)
@click.option("--exclude", multiple=True, metavar="GLOB", help="No files or folders that match; repeatable.")
@click.option("--hidden", is_flag=True, help="Names that start with a dot, Thumbs.db and the like, too.")
@click.option("--complete", is_flag=True, help="Of several folders: refuse samples that one of them has no file of.")
@chosen(CreateOptions, "symlinks", "Follow links within SOURCE, follow all, or leave them out.")
@chosen(
    CreateOptions, "dots",
    "The key ends at the first dot of a name (WebDataset's rule) or at the last. [default: first; asks you where "
    "that would tear names apart]",
)  # fmt: skip
@click.option("--label-from-folder", is_flag=True, help="Add the number of the top folder as the field cls.")
@click.option(
    "--split-from-folder", is_flag=True,
    help="The top folder names the split, and labels are from those below; put {split} into OUTPUT.",
)  # fmt: skip
@click.option("--key", metavar="COLUMN", help="The keys. [default: a column called key, id ...]")
@click.option("--path", metavar="COLUMN", help="A file, its ending names the field. [default: path, file ...]")
@click.option("--file", "files", multiple=True, metavar="FIELD=COLUMN", help="A file; repeatable.")
@click.option("--bytes", "binary", multiple=True, metavar="FIELD=COLUMN", help="The bytes; repeatable.")
@click.option("--url", "urls", multiple=True, metavar="FIELD=COLUMN", help="A file in the web; repeatable.")
@click.option(
    "--meta", default="all", show_default=True, metavar="COLUMNS",
    help="What goes into the field json and the sidecar: all other columns, none, or these (a,b,c).",
)  # fmt: skip
@click.option("--root", type=click.Path(), help="What paths count from. [default: its folder]")
@click.option("--allow-outside", is_flag=True, help="Paths may leave the root.")
@click.option("--size", metavar="COLUMN", help="The file's bytes, for --no-stat.")
@click.option("--no-stat", "stat", flag_value=False, default=True, help="Look at no file, with --dry-run.")
@fetching
@selecting
@click.option("--resize", metavar="N|WxH", help="To this many pixels; see --resize-mode.")
@chosen(
    CreateOptions, "resize_mode", "The shorter side, the longer, both, or fill and crop to it, or fit and pad to it."
)
@click.option("--only-larger", is_flag=True, help="Never enlarge.")
@chosen(CreateOptions, "encode", "Into this format.")
@click.option("--quality", type=WholeNumber("quality"), metavar="N", help="Of jpg and webp. [default: 90]")
@click.option("--image", "images", multiple=True, metavar="FIELD", help="These fields are images. [default: by ending]")
@click.option("--mask", "masks", multiple=True, metavar="FIELD", help="These are images of labels: never blended.")
@click.option("--probe", is_flag=True, help="Width, height and mode go into the sidecars.")
@click.option(
    "--map", metavar="MODULE:FUNCTION", help="Call this with each sample, a dict; it returns one, some or None."
)
@running
@chosen(
    CreateOptions, "on_duplicate", "With --append, a sample whose key is there: an error, or the first stays as it is."
)
@click.option(
    "--plan-only", type=click.Path(), metavar="FILE", help="Print the plan, and write it to FILE for --plan; no shards."
)
@click.option(
    "--plan", type=click.Path(), metavar="FILE",
    help="Go by the plan of an equal command, parts too: SOURCE is not listed again.",
)  # fmt: skip
@common
def create(
    arguments: tuple[str, ...],
    *,
    append: bool,
    resume: bool,
    overwrite: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    progress: str,
    **options: Any,
) -> None:
    """Pack SOURCE into shards called OUTPUT.

    SOURCE is a folder: files that share a key are one sample, cat/0001.jpg + cat/0001.json are the fields jpg
    and json of the sample cat/0001. Or it is a manifest, a row per sample: CSV, TSV, JSON lines, Parquet, Feather,
    or - for paths on standard input, where files that share a key are one sample, too.

    Or it is a zip or tar of files, read in place; photos.zip/train is a folder in it.

    Several folders make samples together: images/a.jpg + masks/a.png are the fields jpg and png of the sample a.
    Where endings are alike, fields are called by their folders, too: images.png and masks.png.

    OUTPUT is a pattern; quote it. Its ending picks the format: .tar (WebDataset) or .tfrecord.

    \b
      out-{000000..}.tar        as many shards as the bound needs (1 GB each, or --max-size, --max-count)
      out-<000000..000999>.tar  exactly 1,000 shards, filled evenly; with a bound, or with fewer
                                samples, at most 1,000; --shards N makes N under any pattern
      out-%06d.tar              the same as out-{000000..}.tar

    Beside each shard lies its index, out-000000.index (Parquet); out.json lists them all, and is
    written last: where it is, the dataset is complete.

    \b
    Examples:
      shardtool create ./imgs 'out-{000000..}.tar'
      shardtool create ./imgs 'out-{000000..}.tar' --label-from-folder --shuffle --seed 1
      shardtool create ./data 'out/{split}-{000000..}.tar' --split-from-folder --label-from-folder --shuffle
      shardtool create images/ masks/ 'out-{000000..}.tar'
      shardtool create photos.zip 'out-{000000..}.tar'
      find imgs -name '*.jpg' | shardtool create - 'out-{000000..}.tar'
      shardtool create ./imgs 's/train-<0000..0127>.tar' --include '*.jpg' --equal-count
      shardtool create ./imgs 'out-{000000..}.tar' --max-size 500MB --dry-run
      shardtool create ./imgs 'out-{000000..}.tar' --shards 64
      shardtool create ./imgs 'out-{000000..}.tar' --resume
      shardtool create ./imgs 'out-{000000..}.tar' --plan plan.parquet --part 3/64
      shardtool create ./imgs 'out-{000000..}.tar' --append --on-duplicate first --resume
      shardtool create ./live 'out-{000000..}.tar' --place hash --shuffle --resume
      shardtool create ./imgs 'out-{000000..}.tfrecord' --resize 256 --encode jpg
      shardtool create ./imgs 'out-{000000..}.tar' --join labels.csv --on id --field cls=label --classes cls
      shardtool create ./imgs 'out-{000000..}.tar' --columns-from json --where "width > 256" --rename-field JPEG=jpg
      shardtool create table.parquet 'out-{000000..}.tar' --key object_id --path path --field cls=bi --classes cls
      shardtool create urls.parquet 'out-{000000..}.tar' --url jpg=url --require image --max-count 10000
      shardtool create table.csv '{split}-{000000..}.tar' --split train=0.9,val=0.1 --stratify bi --where "width > 256"
      shardtool create ./imgs 'out-{000000..}.tar' --for webdataset,dali --export timm
    """
    from shardtool.cli.results_text import carry_out
    from shardtool.verbs.create.create import create as run
    from shardtool.verbs.create.create import dry_run as run_dry

    asked = CreateOptions(if_exists=if_exists(append=append, resume=resume, overwrite=overwrite), **options)
    source, output = divide_arguments((*in_files(arguments[:-1], table=True), *arguments[-1:]))
    work = partial(run_dry if dry_run or asked.plan_only is not None else run, source, output, asked)
    carry_out(work, as_json=as_json, quiet=quiet, verbose=verbose, progress=progress)
