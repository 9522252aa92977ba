"""`shardtool create`."""

from __future__ import annotations

import json
from typing import Any

import click

from shardtool.cli.options import Size, common


@click.command(no_args_is_help=True)
@click.argument("source", type=click.Path())
@click.argument("output", nargs=-1, required=True)
@click.option("--max-size", type=Size(), help="Bytes of a finished shard at most: 500MB, 1GiB. [default: 1GB]")
@click.option("--max-count", type=click.IntRange(1), metavar="N", help="Samples in a shard at most.")
@click.option("--equal-count", is_flag=True, help="Equally many samples in each shard, give or take one.")
@click.option(
    "--shards-multiple-of", type=click.IntRange(1), default=1, metavar="N", help="So that ranks x workers divide them."
)
@click.option(
    "--oversize", type=click.Choice(["error", "alone", "skip"]), default="error", show_default=True,
    help="A sample that fits in no shard: an error, a shard of its own, or left out.",
)  # fmt: skip
@click.option("--shuffle", is_flag=True, help="One global random order.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Of --shuffle.")
@click.option(
    "--include", multiple=True, metavar="GLOB", help="Only files that match ('*.jpg', 'train/*'); repeatable."
)
@click.option("--exclude", multiple=True, metavar="GLOB", help="No files or folders that match; repeatable.")
@click.option("--hidden", is_flag=True, help="Names that start with a dot, too.")
@click.option(
    "--symlinks", type=click.Choice(["inside", "follow", "skip"]), default="inside", show_default=True,
    help="Follow links within SOURCE, follow all, or leave them out.",
)  # fmt: skip
@click.option(
    "--dots", type=click.Choice(["first", "last"]),
    help="The key ends at the first dot of a name (WebDataset's rule) or at the last. [default: first; asks you where "
    "that would tear names apart]",
)  # fmt: skip
@click.option("--label-from-folder", is_flag=True, help="Add the number of the top folder as the field cls.")
@click.option("--portable", is_flag=True, help="Make names safe for every reader; the sidecar keeps the originals.")
@click.option(
    "--on-error", type=click.Choice(["stop", "skip"]), default="stop", show_default=True,
    help="At a file that cannot be read: stop, or leave the sample out and list it in NAME.skipped.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Finish an earlier run; keep what is done and unchanged.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier dataset, once the new one is complete.")
@click.option("--dry-run", is_flag=True, help="Print the plan, to the byte; write nothing.")
@click.option("--start-method", type=click.Choice(["auto", "fork", "spawn"]), default="auto", help="How workers start.")
@common
def create(  # noqa: PLR0913 - an option each
    source: str,
    output: tuple[str, ...],
    *,
    resume: bool,
    overwrite: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Pack the folder SOURCE into shards called OUTPUT.

    Files that share a key are one sample: cat/0001.jpg + cat/0001.json are the fields jpg and json
    of the sample cat/0001. OUTPUT is a pattern; quote it. Its ending picks the format.

    \b
      out-{000000..}.tar        as many shards as the bound needs (1 GB each, or --max-size, --max-count)
      out-<000000..000999>.tar  exactly 1,000 shards, filled evenly; with a bound, at most 1,000
      out-%06d.tar              the same as out-{000000..}.tar

    Beside each shard lies its index, out-000000.index (Parquet); out.json lists them all, and is
    written last: where it is, the dataset is complete.

    \b
    Examples:
      shardtool create ./imgs 'out-{000000..}.tar'
      shardtool create ./imgs 'out-{000000..}.tar' --label-from-folder --shuffle --seed 1
      shardtool create ./imgs 's/train-<0000..0127>.tar' --include '*.jpg' --equal-count
      shardtool create ./imgs 'out-{000000..}.tar' --max-size 500MB --dry-run
      shardtool create ./imgs 'out-{000000..}.tar' --resume
    """
    from shardtool.cli.render import Terminal, plan_table, show, summary
    from shardtool.verbs.create import CreateOptions
    from shardtool.verbs.create import create as run
    from shardtool.verbs.create import dry_run as run_dry

    if resume and overwrite:
        message = "--resume keeps what is there and --overwrite replaces it: choose one."
        raise click.UsageError(message)
    asked = CreateOptions(if_exists="resume" if resume else "overwrite" if overwrite else "error", **options)
    terminal = Terminal(quiet=quiet, verbose=verbose)
    try:
        if dry_run:
            plan = run_dry(source, output, asked, observer=terminal)
            text = json.dumps(plan.to_json(), indent=2) if as_json else plan_table(plan)
        else:
            result = run(source, output, asked, observer=terminal)
            text = json.dumps(result.to_json(), indent=2) if as_json else "" if quiet else summary(result)
    finally:
        terminal.close()
    if text:
        show(text)
