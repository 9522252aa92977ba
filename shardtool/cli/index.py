"""`shardtool index`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardtool.cli.options import chosen, common
from shardtool.interop.export_formats import EXPORTS
from shardtool.request.options import OF_WORKERS, ExportOptions, IndexOptions

if TYPE_CHECKING:
    from shardtool.request.observer import Observer
    from shardtool.request.results import IndexResult


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
    from shardtool.errors import printable
    from shardtool.values import counted
    from shardtool.verbs.export import check_names, export
    from shardtool.verbs.index import index as run

    terminal = Terminal(quiet=quiet, verbose=verbose, progress=progress)
    document: dict[str, object] = {}
    lines = []
    only_export = (
        bool(formats) and not merges and len(dataset) == 1 and dataset[0].endswith(".json") and not options["checksum"]
    )
    file = dataset[0]
    try:
        if not only_export:
            if formats and not merges:
                check_names(dataset, formats)
            how_made = IndexOptions(output=output, overwrite=overwrite, **options)
            result = merge_parts(dataset, how_made, terminal) if merges else run(dataset, how_made, observer=terminal)
            document, file = result.to_json(), result.dataset_file
            kept = f" ({result.kept:,} were right already)" if result.kept else ""
            lines.append(
                f"{counted(result.samples, 'sample')} in {counted(result.shards, 'shard')}{kept}\n"
                f"dataset file  {printable(result.dataset_file)}"
            )
        if formats:
            how = ExportOptions(output=output, overwrite=overwrite, **{name: options[name] for name in OF_WORKERS})
            exported = export(file, formats, how, observer=terminal)
            document = {**document, "export": exported.to_json()} if document else exported.to_json()
            there = f", {exported.kept:,} of them there already" if exported.kept else ""
            lines.append(f"{counted(len(exported.files), 'file')} in {exported.folder}{there}")
    finally:
        terminal.close()
    if as_json:
        show_json(document)
    elif not quiet:
        show("\n".join(lines))


def merge_parts(pattern: tuple[str, ...], options: IndexOptions, observer: Observer) -> IndexResult:
    """Merge the parts of a pattern, which is all that can be asked for then."""
    from shardtool.errors import InvalidRequest
    from shardtool.wording import option
    from shardtool.writer.merge import merge

    if other := next((name for name in ("output", "overwrite", "checksum", "dots") if getattr(options, name)), ""):
        raise InvalidRequest("--merge", f"used with {option(other)}", expected="the pattern alone")
    return merge(pattern[0] if len(pattern) == 1 else pattern, observer=observer)
