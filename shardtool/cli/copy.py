"""`shardtool copy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardtool.cli.options import PLACE, WholeNumber, chosen, endpoint, progress
from shardtool.request.options import CopyOptions

if TYPE_CHECKING:
    from shardtool.request.results import CopyResult
    from shardtool.values import Trust


@click.command(no_args_is_help=True)
@click.argument("arguments", type=PLACE, nargs=-1, required=True, metavar="DATASET... DEST")
@click.option("--overwrite", is_flag=True, help="Replace another dataset of the same name, and files of its names.")
@click.option("--dry-run", is_flag=True, help="Compare, and print what would be copied; write nothing.")
@click.option("--workers", type=WholeNumber("workers"), metavar="N", help="Shards at a time. [default: 4]")
@chosen(
    CopyOptions,
    "trust",
    "Know shards that are there, with their sidecars, by times (folder to folder), or by sizes, unread.",
)
@endpoint
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
@click.option("--quiet", is_flag=True, help="No progress, no summary, no notes.")
@progress
@click.option("-v", "--verbose", is_flag=True, help="Tell of every shard.")
def copy(
    arguments: tuple[str, ...],
    *,
    overwrite: bool,
    dry_run: bool,
    workers: int | None,
    trust: Trust | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    progress: str,
) -> None:
    """Copy DATASET into the folder DEST, each file checked on the way.

    DATASET is a dataset file, or a folder, pattern or glob of datasets that have one; also at s3://, gs://, az:// or
    https://. DEST is a folder, or a prefix at s3://, gs:// or az://. Shards, sidecars, what was left out, indexes of
    other tools that are right, and at last the dataset file; all keep their names.

    What is there with the right bytes is not copied again. So a copy that was killed goes on where it was, and one of a
    dataset that was appended to gets the new shards only. Another dataset of the same name is replaced with --overwrite
    only; then shards that only that one had are removed, and nothing else.

    \b
    Examples:
      shardtool copy out.json /mnt/backup/out
      shardtool copy /data/imagenet /mnt/backup/imagenet
      shardtool copy out.json s3://bucket/train
      shardtool copy https://example.org/train.json /data/train
      shardtool copy out.json /mnt/backup/out --dry-run
    """
    from functools import partial

    from shardtool.cli.output import show, show_json
    from shardtool.cli.results_text import Terminal
    from shardtool.verbs.copy import copy as run

    *dataset, dest = arguments
    if not dataset:
        message = "no DEST: put the folder, or the prefix, that DATASET is copied into last."
        raise click.UsageError(message)
    terminal = Terminal(quiet=quiet, verbose=verbose, progress=progress)
    work = partial(run, dataset[0] if len(dataset) == 1 else dataset, dest)
    try:
        result = work(
            CopyOptions(overwrite=overwrite, dry_run=dry_run, workers=workers, trust=trust), observer=terminal
        )
    finally:
        terminal.close()
    if as_json:
        show_json(result.to_json())
    elif not quiet or dry_run:
        show(_text(result))


def _text(result: CopyResult) -> str:
    from shardtool.values import counted, show_size

    size = sum(one.copied_size for one in result.datasets)
    speed = f", {result.seconds:.1f} s, {show_size(size / max(result.seconds, 1e-9))}/s"
    lines = []
    for one in result.datasets:
        if one.copied:
            what, how_fast = ("to copy", "") if result.dry_run else ("copied", speed if not result.datasets[1:] else "")
            kept = f"; {one.kept:,} of {one.shards:,} there already" if one.kept else ""
            line = f"{counted(one.copied, 'shard')} {what}, {show_size(one.copied_size)}{how_fast}{kept}"
        else:
            line = f"nothing to copy: {counted(one.kept, 'shard')} {'are' if one.kept > 1 else 'is'} there already"
        removed = f"; {one.removed:,} {'to remove' if result.dry_run else 'removed'}" if one.removed else ""
        indexes = f"; {counted(one.indexes, 'file')} of other tools" if one.indexes else ""
        lines += [f"{line}{removed}{indexes}", f"dataset file  {one.dataset_file}"]
    if result.datasets[1:]:
        lines.append(f"in all {show_size(size)}{'' if result.dry_run else speed}")
    return "\n".join(lines)
