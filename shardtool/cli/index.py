"""`shardtool index`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from shardtool.cli.options import chosen, common
from shardtool.interop.indexes import EXPORTS
from shardtool.request.options import OF_WORKERS, ExportOptions, IndexOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.request.results import IndexResult, Observer
    from shardtool.values import Given


@click.command(no_args_is_help=True)
@click.argument("dataset", type=click.Path(), nargs=-1, required=True)
@click.option("--checksum", is_flag=True, help="Read the payloads, too: for their checksums and the fingerprint.")
@chosen(
    IndexOptions, "dots",
    "Keys end at the first dot of a member's name or at the last. [default: as the dataset file says, or first]",
)  # fmt: skip
@click.option(
    "--export", "formats", multiple=True, type=click.Choice(list(EXPORTS)),
    help="Write the index that another tool wants, too; repeatable.",
)  # fmt: skip
@click.option(
    "--output", type=click.Path(), metavar="DIR",
    help="Where to write: a folder above that of the shards; --export alone: any. [default: beside the shards]",
)  # fmt: skip
@click.option(
    "--overwrite", is_flag=True, help="Replace what is wrong: sidecars, the dataset file, indexes of other tools."
)
@click.option(
    "--merge",
    "merges",
    is_flag=True,
    help="Make one dataset of the parts that runs with --part, or writers of a program, have made.",
)
@common
def index(
    dataset: tuple[str, ...],
    *,
    merges: bool,
    formats: tuple[str, ...],
    output: str | None,
    overwrite: bool,
    verbose: bool,
    progress: str,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Make the sidecars and the dataset file of shards that any tool made, and the indexes of other tools.

    DATASET is a dataset file, a folder, a shard pattern, a glob, or shards. Headers are read, payloads are not, shards
    are never touched. A sidecar that is right stays, with what only it knows; one that is missing is written; one that
    is wrong is replaced with --overwrite only. With --export and a dataset file, only the exports are made, from the
    sidecars.

    \b
      dali-webdataset  out-000000.idx      for fn.readers.webdataset of NVIDIA DALI
      energon          out-000000.tar.idx  and .nv-meta, for Megatron-Energon
      huggingface      out-000000.json     for the Hugging Face Hub (reads the shards, for hashes)
      timm             _info.json          splits, shards and their samples, for timm
      open-clip        sizes.json          the samples of each shard, for open_clip
      wids             nothing             out.json is what wids wants
      dali-tfrecord    out-000000.idx      for fn.readers.tfrecord of NVIDIA DALI
      tfrecord         out-000000.tfindex  for the tfrecord package

    \b
    Examples:
      shardtool index ./shards
      shardtool index 'train-{0000..0127}.tar' --checksum
      shardtool index out.json --export dali-webdataset
      shardtool index train.json --export timm --export open-clip
      shardtool index records.json --export dali-tfrecord --export tfrecord --output ./indexes
      shardtool index 'parts/out-{000000..}.tar' --merge
    """
    from shardtool.cli.output import show, show_json
    from shardtool.cli.results_text import Terminal
    from shardtool.dataset.find import of_glob

    terminal = Terminal(quiet=quiet, verbose=verbose, progress=progress)
    made = IndexOptions(output=output, overwrite=overwrite, **options)
    try:
        found = [dataset] if merges else of_glob(dataset)
        done = [_index(_names(one), made, formats, terminal, merges=merges) for one in found]
    finally:
        terminal.close()
    documents = [document for document, _ in done]
    if as_json:
        show_json(documents[0] if len(documents) == 1 else {"datasets": documents})
    elif not quiet:
        show("\n".join(line for _, lines in done for line in lines))


def _names(given: Given) -> list[str]:
    return [os.fspath(one) for one in ([given] if isinstance(given, (str, os.PathLike)) else given)]


def _index(
    dataset: Sequence[str], options: IndexOptions, formats: Sequence[str], terminal: Observer, *, merges: bool
) -> tuple[dict[str, object], list[str]]:
    """Index one dataset, and make what other tools want of it; return what was done, as JSON and as lines."""
    from shardtool.errors import printable
    from shardtool.values import counted
    from shardtool.verbs.index.index import check_names, export
    from shardtool.verbs.index.index import index as run

    document: dict[str, object] = {}
    lines, file = list[str](), dataset[0]
    if merges or not formats or len(dataset) > 1 or not file.endswith(".json") or options.checksum:
        if formats and not merges:
            check_names(dataset, formats)
        result = merge_parts(dataset, options, terminal) if merges else run(dataset, options, observer=terminal)
        document, file = result.to_json(), result.dataset_file
        kept = f" ({result.kept:,} were right already)" if result.kept else ""
        lines.append(
            f"{counted(result.samples, 'sample')} in {counted(result.shards, 'shard')}{kept}\n"
            f"dataset file  {printable(result.dataset_file)}"
        )
    if formats:
        of_workers = {name: getattr(options, name) for name in OF_WORKERS}
        how = ExportOptions(output=options.output, overwrite=options.overwrite, **of_workers)
        exported = export(file, formats, how, observer=terminal)
        document = {**document, "export": exported.to_json()} if document else exported.to_json()
        there = f", {exported.kept:,} of them there already" if exported.kept else ""
        lines.append(f"{counted(len(exported.files), 'file')} in {exported.folder}{there}")
    return document, lines


def merge_parts(pattern: Sequence[str], options: IndexOptions, observer: Observer) -> IndexResult:
    """Merge the parts of a pattern, which is all that can be asked for then."""
    from shardtool.errors import InvalidRequest
    from shardtool.wording import option
    from shardtool.writer.merge import merge

    if other := next((name for name in ("output", "overwrite", "checksum", "dots") if getattr(options, name)), ""):
        raise InvalidRequest("--merge", f"used with {option(other)}", expected="the pattern alone")
    return merge(pattern[0] if len(pattern) == 1 else pattern, observer=observer)
