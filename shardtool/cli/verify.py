"""`shardtool verify`."""

from __future__ import annotations

from typing import Any, ClassVar

import click

from shardtool.cli.options import PLACE, Sectioned, Whole, chosen, common, target
from shardtool.cli.piped import in_files
from shardtool.errors import ShardError
from shardtool.request.options import VerifyOptions

_FOUND, _UNREADABLE = 3, 4


class _Verify(Sectioned):
    SECTIONS: ClassVar[dict[str, str]] = {
        "quick": "What is looked at",
        "root": "The source",
        "repair": "What is done",
        "workers": "Running",
    }


@click.command(cls=_Verify, no_args_is_help=True)
@click.argument("dataset", nargs=-1, required=True, type=click.Path())
@click.option("--quick", is_flag=True, help="Read no shards: names, sizes, sidecars and numbering only; it says so.")
@click.option("--decode", is_flag=True, help="Decode every image and JSON field, too; labels must be numbers.")
@click.option(
    "--sample",
    metavar="SHARE",
    help="Read only this share of a dataset's shards, 10%: others with each --seed.",
)
@click.option("--seed", type=Whole("seed"), metavar="N", help="Of --sample: ten in a row of 10% read all. [default: 0]")
@click.option(
    "--source", "sources", multiple=True, type=click.Path(),
    help="Compare with what it was made from, by key: folders, a manifest, or datasets; repeatable.",
)  # fmt: skip
@click.option(
    "--root", type=PLACE, metavar="FOLDER", help="What relative paths of a manifest count from. [default: its folder]"
)
@click.option("--allow-outside", is_flag=True, help="Paths of a manifest may leave the root.")
@chosen(VerifyOptions, "symlinks", "Links in a folder. [default: as recorded, but never follow]")
@target("Check that these readers get names right: webdataset, wids, dali, energon, huggingface.")
@click.option(
    "--repair", is_flag=True,
    help="Mend what can be mended without guessing: sidecars and dataset file; with --source, shards too.",
)  # fmt: skip
@click.option(
    "--map", metavar="MODULE:FUNCTION",
    help="With --repair: call this function of yours again, if it made the samples. It is code that you must trust.",
)  # fmt: skip
@click.option(
    "--format", "style", type=click.Choice(["text", "json", "junit", "github"]), default="text", show_default=True,
    help="How findings are printed.",
)  # fmt: skip
@common
def verify(
    dataset: tuple[str, ...],
    *,
    sources: tuple[str, ...],
    style: str,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    progress: str,
    **options: Any,
) -> int:
    """Prove that DATASET is whole, or say what is wrong with it.

    DATASET is a dataset file, a shard pattern, a glob, a folder, or shards; of any tool. Every byte is read and
    compared with what sidecars and dataset file say: any flipped, removed or added byte of a dataset of ours is found.
    Of shards without them, all that can be known: headers, framing, ends, TFRecord checksums, keys. Of several
    datasets, each; and samples that two splits of one have.

    Exit code: 0 nothing is wrong, 3 findings, 4 nothing could be read; of several datasets, the worst.

    \b
    Examples:
      shardtool verify out.json
      shardtool verify out/
      shardtool verify 'out/{split}.json' --format junit > report.xml
      shardtool verify out.json --quick
      shardtool verify out.json --sample 10% --seed $(date +%j)
      shardtool verify 'downloaded/train-{000000..000127}.tar' --decode
      shardtool verify out.json --source ./imgs
      shardtool verify out.json --repair --source ./imgs
      shardtool verify out.json --source list.csv --root ./imgs
      shardtool verify all.json --source crawl1/ --source crawl2/
    """
    from shardtool.cli.findings_text import junit_error, rendered
    from shardtool.cli.output import show
    from shardtool.cli.results_text import Terminal
    from shardtool.verbs.verify import verify as run

    terminal = Terminal(quiet=quiet, verbose=verbose, progress=progress)
    dataset = in_files(dataset)
    given: Any = dataset[0] if len(dataset) == 1 else dataset
    source: Any = [*sources] if len(sources) > 1 else next(iter(sources), None)
    style = "json" if as_json else style
    try:
        report = run(given, VerifyOptions(source=source, **options), observer=terminal)
    except ShardError as error:
        if style == "junit":
            show(junit_error(" ".join(dataset), error))
        raise
    finally:
        terminal.close()
    if not (quiet and style == "text" and report.sound):
        show(rendered(report, style))
    if report.sound:
        return 0
    return _FOUND if report.readable else _UNREADABLE
