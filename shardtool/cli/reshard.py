"""`shardtool reshard`."""

from __future__ import annotations

import os
import re
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
from shardtool.pattern import is_shard_name
from shardtool.request.options import ReshardOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

_PATTERN = re.compile(r"[{<%]")
_MARKS = re.compile(r"[{<%*?[]")  # of patterns and globs: each may mean several shards
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})(\.[^/0-9]*)", re.DOTALL)


class _Reshard(SectionedCommand):
    SECTIONS: ClassVar[dict[str, str]] = {
        "max_size": "Shards",
        "method": "Reading in another order",
        "where": "Choosing and dividing",
        "columns_from": "Fields and metadata",
        "portable": "Names and errors",
        "append": "Running",
    }


def divide_arguments(arguments: tuple[str, ...]) -> tuple[list[str | list[str]], list[str]]:
    """Return the datasets and the output that `DATASET... OUTPUT` means.

    The output is the last argument where that is a pattern. Otherwise a shell has expanded one: then it is the names
    at the end that differ in their number only, and count up.

    Raises:
        UsageError: It is unclear which is which.
    """
    at = len(arguments) - 1
    if not _PATTERN.search(arguments[at]):
        while at > 0 and follows(arguments[at - 1], arguments[at]):
            at -= 1
    if at < 1:
        what = "no OUTPUT" if len(arguments) == 1 else "DATASET and OUTPUT cannot be told apart"
        message = f"{what}: quote the shard pattern of the output, such as 'out-{{000000..}}.tar', and put it last."
        raise click.UsageError(message)
    return _together(arguments[:at]), [*arguments[at:]]


def _together(names: Sequence[str]) -> list[str | list[str]]:
    """Return datasets, shards of one folder that follow each other being one: a shell has expanded a pattern."""
    found: list[str | list[str]] = []
    folder = None
    for name in names:
        is_shard = is_shard_name(os.path.basename(name)) and not _MARKS.search(name)
        last, folder = folder, os.path.dirname(name) if is_shard else None
        if isinstance(shards := found[-1] if found else None, list) and folder is not None and folder == last:
            shards.append(name)
        else:
            found.append(name if folder is None else [name])
    return found


def follows(one: str, other: str) -> bool:
    """Tell whether a name is the other's, but for a number that is the next one."""
    first, second = _NUMBERED.fullmatch(one), _NUMBERED.fullmatch(other)
    if first is None or second is None:
        return False
    same = (first[1], first[3]) == (second[1], second[3])
    wide = len(first[2]) == len(second[2]) or not second[2].startswith("0")  # 999 and 1000
    return same and wide and int(first[2]) + 1 == int(second[2])


@click.command(cls=_Reshard, no_args_is_help=True)
@click.argument("datasets", type=PLACE, nargs=-1, required=True, metavar="DATASET... OUTPUT")
@shards
@chosen(
    ReshardOptions, "method",
    "gather: each sample is read at its place. scatter: two passes of large reads and writes.",
)  # fmt: skip
@click.option(
    "--memory", type=Size(), default="2GB", show_default=True,
    help="What scatter may hold in memory, over all workers: 16MB or more.",
)  # fmt: skip
@click.option("--temp-dir", type=click.Path(), help="Where scatter writes its temporary file. [default: beside OUTPUT]")
@click.option(
    "--where", metavar="QUERY",
    help="Only samples that this takes: \"label == 'dog' and width > 256\" over the indexes' columns and key, shard, "
    "size, fields.",
)  # fmt: skip
@click.option("--sample", metavar="SHARE", help="This share of the samples, by the hash of the key: 0.01 or 1%.")
@click.option("--head", type=WholeNumber("head"), metavar="N", help="The first N samples.")
@chosen(ReshardOptions, "on_duplicate", "Samples with one key: an error, new names (KEY-2), or only one stays.")
@dividing
@selecting
@running
@common
def reshard(
    datasets: tuple[str, ...],
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
    """Write the samples of each DATASET into other shards, called OUTPUT.

    Another size, order, format, split or subset: bytes are moved and checked, never decoded. A DATASET is a dataset
    file (out.json), a pattern, a glob, a folder, or a shard, made by any tool; where there is no index, shards are
    walked. Several become one.

    OUTPUT is a pattern, as for `create`; quote it. Its ending picks the format: .tar (WebDataset) or .tfrecord.

    \b
    Examples:
      shardtool reshard out.json 'big-{000000..}.tar' --max-size 5GB
      shardtool reshard out.json 'out-{000000..}.tfrecord' --shards 64
      shardtool reshard crawl1/ crawl2/ 'all-{000000..}.tar' --on-duplicate first
      shardtool reshard out.json 'mixed-{000000..}.tar' --shuffle --seed 1 --memory 2GB
      shardtool reshard out.json '{split}-{000000..}.tar' --split train=0.9,val=0.1 --stratify label
      shardtool reshard out.json 'dogs-{000000..}.tar' --where "label == 'dog'" --drop-fields json
      shardtool reshard out.json 'new-{000000..}.tar' --join labels.csv --on key --field cls=label --classes cls
      shardtool reshard out.json 'large-{000000..}.tar' --columns-from json --where "width > 256" --sort-by width
      shardtool reshard more.json 'out-{000000..}.tar' --append
      shardtool reshard crawl/ 'clean-{000000..}.tar' --on-error skip
    """
    from shardtool.cli.results_text import carry_out
    from shardtool.request.options import ReshardOptions
    from shardtool.verbs.create.create import reshard as run
    from shardtool.verbs.create.create import reshard_dry_run

    givens, output = divide_arguments((*in_files(datasets[:-1]), *datasets[-1:]))
    asked = ReshardOptions(
        if_exists=if_exists(append=append, resume=resume, overwrite=overwrite),
        **options,
    )
    work = partial(reshard_dry_run if dry_run else run, givens, output, asked)
    carry_out(work, as_json=as_json, quiet=quiet, verbose=verbose, progress=progress)
