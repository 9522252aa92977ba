"""Define the click commands. They pass arguments to the library, and print the results."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from shardtool.cli.arguments import materialize_inputs, split_datasets, split_destination, split_keys, split_sources
from shardtool.cli.click_options import PATH_TYPE, build_click_option, build_options, complete_value, drop_overridden
from shardtool.cli.command_options import (
    IndexCommandOptions,
    InspectViewOptions,
    PrintOptions,
    ReportOptions,
    RunOptions,
)
from shardtool.cli.help import VerbCommand, VerbOption, brief_help, refuse_stray_value, suggest_verb, topic_help
from shardtool.cli.inspect_views import print_keys, print_samples, print_table, write_pictures
from shardtool.cli.output import print_text, write_bytes
from shardtool.cli.terminal import ON_VALID_REQUEST, open_progress_display, print_result, run_and_print
from shardtool.errors import InvalidRequest, ShardError, printable
from shardtool.names import list_names
from shardtool.request.base_options import BaseOptions
from shardtool.request.create_options import CreateOptions, ReshardOptions
from shardtool.request.dataset_options import (
    CopyOptions,
    DiffOptions,
    DoctorOptions,
    ExportOptions,
    ExtractOptions,
    RemoveOptions,
    VerifyOptions,
)
from shardtool.request.option_spec import option_specs
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from shardtool.request.observer import Observer
    from shardtool.request.results import IndexResult


_EXIT_FINDINGS, _EXIT_UNREADABLE = 3, 4
_DIFF_SIDES = 2
# An argument like this is probably a part of an option's value, as in `--max-size 1 GB`.
_STRAY_VALUE = re.compile(r"[=!]=|[kKMGTPmgtp]?i?[bB]|[0-9]+")
VERBS: dict[str, Callable[[], click.Command]] = {}


_CommandT = TypeVar("_CommandT", bound="Callable[..., int | None]")


def register_verb(
    arguments: str | tuple[click.Argument, ...],
    options: type[Any] | None = None,
    run_options: type[BaseOptions] = RunOptions,
    omitted: Collection[str] = (),
) -> Callable[[_CommandT], _CommandT]:
    """Return a decorator that registers a function as a verb, with its docstring as help.

    The decorated function receives the command-line arguments, a function that returns an `options` object (unless
    `options` is None), and a `run_options` object.

    Args:
        arguments: The click arguments, or a text for the usage line, such as `SOURCE... OUTPUT`.
        omitted: Options that the verb does not have on the command line.
    """
    typed = (
        (
            click.Argument(
                ["names"], type=PATH_TYPE, nargs=-1, required=True, metavar=arguments, shell_complete=complete_value
            ),
        )
        if isinstance(arguments, str)
        else arguments
    )

    def make_command(function: Callable[..., int | None]) -> click.Command:
        kinds = [run_options] if options is None else [options, run_options]
        option_names = {kind: [name for name in option_specs(kind) if name not in omitted] for kind in kinds}
        params = [build_click_option(kind, name) for kind, names in option_names.items() for name in names]
        first = VerbOption(["-h", "first_help"], is_flag=True, is_eager=True, expose_value=False, callback=_show_brief)
        # Accept --no-color after the verb, too. `_run` has already read it.
        plain = VerbOption(["--no-color"], is_flag=True, expose_value=False)
        first.hidden = plain.hidden = True
        params += [first, plain]

        def run(**_: Any) -> int | None:
            context = click.get_current_context()
            values = context.params
            if context.default_map:
                for kind in option_names:
                    drop_overridden(kind, context)
            words = [values[argument.name or ""] for argument in typed]
            if any(_STRAY_VALUE.fullmatch(word) for word in values.get("names", ())):
                refuse_stray_value(values["names"], context)
            factories = [partial(build_options, kind, names, values) for kind, names in option_names.items()]
            if values.get("save_config") is not None:
                from shardtool.cli.config import prepare_config

                for create_options in factories:
                    create_options()
                context.meta[ON_VALID_REQUEST] = prepare_config(values["save_config"], context)
            code = function(*words, *factories[:-1], factories[-1]())
            if ON_VALID_REQUEST in context.meta:
                context.meta[ON_VALID_REQUEST]()
            return code

        return VerbCommand(function.__name__, params=[*typed, *params], callback=run, help=function.__doc__)

    def register(function: _CommandT) -> _CommandT:
        VERBS[function.__name__] = partial(make_command, function)
        return function

    return register


def _show_brief(context: click.Context, _option: click.Parameter, is_set: bool) -> None:  # noqa: FBT001 - a callback
    if is_set and isinstance(context.command, VerbCommand):
        print_text(brief_help(context.command, context))
        context.exit()


@register_verb("SOURCE... OUTPUT", CreateOptions)
def create(names: tuple[str, ...], make_options: Callable[[], CreateOptions], run_options: RunOptions) -> None:
    """Pack SOURCE, a folder or a table of samples, into shards named OUTPUT.

    SOURCE is one of these:

    \b
      a folder         files with the same key are one sample: cat/0001.jpg and cat/0001.json are the
                       fields jpg and json of the sample cat/0001
      several folders  the files of a sample are spread over the folders
      a zip or tar     read like a folder, without unpacking
      a table          one row per sample: CSV, TSV, JSON, Parquet or Feather
      -                file paths on standard input

    OUTPUT is a pattern of shard names; quote it. The file extension selects the format: .tar (WebDataset) or .tfrecord.

    \b
      out-{000000..}.tar        as many shards as --max-size requires (1 GB per shard by default)
      out-<000000..000999>.tar  exactly 1,000 equally filled shards, or at most 1,000 if you set a
                                size limit or have fewer samples
      out-%06d.tar              the same as out-{000000..}.tar

    Each shard gets a sidecar, out-000000.index (Parquet). The dataset file out.json lists all shards. It is written
    last: if it exists, the dataset is complete.

    \b
    Examples:
      shardtool create ./imgs 'out-{000000..}.tar'
      shardtool create ./imgs 'out-{000000..}.tar' --label-from-folder --shuffle --seed 1
      shardtool create ./data 'out/{split}-{000000..}.tar' --split-by folder --label-from-folder
      shardtool create images/ masks/ 'out-{000000..}.tar' --max-size 500MB --dry-run
      shardtool create table.parquet 'out-{000000..}.tar' --path path --field cls=label --classes cls
      shardtool create table.csv '{split}-{000000..}.tar' --split train=0.9,val=0.1 --stratify label
      shardtool create photos.zip 'out-{000000..}.tar' --shards 64
      find imgs -name '*.jpg' | shardtool create - 'out-{000000..}.tar'
      shardtool create ./imgs 's/train-<0000..0127>.tar' --include '*.jpg' --equal-count
      shardtool create ./imgs 'out-{000000..}.tar' --resume
      shardtool create ./imgs 'out-{000000..}.tar' --plan plan.parquet --part 3/64
      shardtool create ./imgs 'out-{000000..}.tar' --update
      shardtool create ./live 'out-{000000..}.tar' --place hash --shuffle --resume
      shardtool create ./imgs 'out-{000000..}.tfrecord' --resize 256 --encode jpg
      shardtool create ./imgs 'out-{000000..}.tar' --join labels.csv --on id --field cls=label
      shardtool create ./imgs 'out-{000000..}.tar' --join labels.csv --on id --collect all
      shardtool create ./imgs 'out-{000000..}.tar' --columns-from json --where "width > 256"
      shardtool create ./imgs 'out-{000000..}.tar' --fields jpg,meta.json=json
      shardtool create urls.csv 'out-{000000..}.tar' --url jpg=url --fetch require=image,per-host=4
      shardtool create ./imgs 'out-{000000..}.tar' --for webdataset,dali --export timm
    """
    from shardtool.cli.result_text import create_text
    from shardtool.verbs.create import create as run

    options = make_options()
    source, output = split_sources((*materialize_inputs(names[:-1], table=True), *names[-1:]))
    dry = options.dry_run or options.plan_only is not None
    text = partial(create_text, unwritten="nothing" if options.plan_only is None else "no shard")
    run_and_print(partial(run, source, output, options), run_options, text, always=dry)


@register_verb("DATASET... OUTPUT", ReshardOptions)
def reshard(names: tuple[str, ...], make_options: Callable[[], ReshardOptions], run_options: RunOptions) -> None:
    """Write the samples of each DATASET to new shards named OUTPUT.

    You can change size, order, format and splits, and select or transform samples. Payloads are copied and verified.
    Images are decoded only if an option changes them. A DATASET is a dataset file (out.json), a pattern, a glob, a
    folder or a shard, written by any tool. Shards without a sidecar are scanned. Several datasets are combined into
    one.

    OUTPUT is a pattern, as for `create`; quote it. Its file extension selects the format.

    \b
    Examples:
      shardtool reshard out.json 'big-{000000..}.tar' --max-size 5GB
      shardtool reshard out.json 'mixed-{000000..}.tar' --shuffle --seed 1
      shardtool reshard out.json 'dogs-{000000..}.tar' --where "label == 'dog'" --fields -json
      shardtool reshard out.json '{split}-{000000..}.tar' --split train=0.9,val=0.1 --stratify label
      shardtool reshard out.json 'even-{000000..}.tar' --per-class 100 --of label
      shardtool reshard out.json 'small-{000000..}.tar' --resize 128 --encode webp
      shardtool reshard out.json 'both-{000000..}.tar' --add embeddings.json
      shardtool reshard out.json 'renamed-{000000..}.tar' --rename-keys 's/^/2024-/'
      shardtool reshard out.json 'chosen-{000000..}.tar' --keys-from keys.txt
      shardtool reshard crawl1/ crawl2/ 'all-{000000..}.tar' --on-duplicate first
      shardtool reshard 'out/{split}.json' 'all-{000000..}.tar'
      shardtool reshard out.json 'records-{000000..}.tfrecord' --shards 16
      shardtool reshard out.json 'new-{000000..}.tar' --join labels.csv --on key --field cls=label
      shardtool reshard out.json 'large-{000000..}.tar' --columns-from json --sort-by -width
      shardtool reshard out.json 'few-{000000..}.tar' --sample 10%
      shardtool reshard out.json 'scattered-{000000..}.tar' --shuffle --method scatter --memory 2GB
      shardtool reshard more.json 'out-{000000..}.tar' --append
      shardtool reshard crawl/ 'clean-{000000..}.tar' --on-error skip
    """
    from shardtool.cli.result_text import create_text
    from shardtool.verbs.create import reshard as run

    options = make_options()
    datasets, output = split_datasets((*materialize_inputs(names[:-1]), *names[-1:]))
    run_and_print(partial(run, datasets, output, options), run_options, create_text, always=options.dry_run)


@register_verb("DATASET...", VerifyOptions, ReportOptions, omitted=("start_method",))
def verify(names: tuple[str, ...], make_options: Callable[[], VerifyOptions], run_options: ReportOptions) -> int:
    """Check that DATASET is complete and undamaged, and list all problems.

    DATASET is a dataset file, a shard pattern, a glob, a folder or shards, written by any tool. Every byte is read and
    compared with the sidecars and the dataset file. If shardtool wrote the dataset, this detects every changed, missing
    or extra byte. In shards without sidecars, verify checks headers, framing, TFRecord checksums and keys, and detects
    truncated files. If you pass several datasets, verify checks each one, and reports samples that are in two splits of
    a dataset.

    Exit code: 0 no problems, 3 findings, 4 nothing could be read. For several datasets, the highest code is used.

    \b
    Examples:
      shardtool verify out.json
      shardtool verify out.json --quick
      shardtool verify out.json --source ./imgs
      shardtool verify out.json --repair --source ./imgs
      shardtool verify 'out/{split}.json' --report junit > report.xml
      shardtool verify out.json --sample 10% --seed $(date +%j)
      shardtool verify out/
      shardtool verify 'downloaded/train-{000000..000127}.tar' --decode
      shardtool verify out.json --source list.csv --root ./imgs
      shardtool verify all.json --source crawl1/ --source crawl2/
    """
    from shardtool.cli.result_text import junit_error_text, render_report
    from shardtool.verbs.verify.verify import verify as run

    dataset = materialize_inputs(names)
    try:
        with open_progress_display(run_options) as terminal:
            report = run(dataset[0] if len(dataset) == 1 else dataset, make_options(), observer=terminal)
    except ShardError as error:
        if run_options.report == "junit" and not run_options.as_json:
            print_text(junit_error_text(" ".join(dataset), error))
        raise
    print_result(
        run_options,
        report.to_json,
        partial(render_report, report, run_options.report),
        always=run_options.report != "text" or not report.sound,
    )
    return 0 if report.sound else _EXIT_FINDINGS if report.readable else _EXIT_UNREADABLE


@register_verb("A B", DiffOptions, omitted=("start_method",))
def diff(names: tuple[str, ...], make_options: Callable[[], DiffOptions], run_options: RunOptions) -> int:
    """Compare the datasets A and B: list added, removed, changed and moved samples.

    A and B are dataset files, shard patterns, folders, URLs, or all splits of a dataset ('out/{split}.json'). They may
    have different formats and shard sizes. Checksums come from the sidecars; payloads are read only from shards without
    sidecars. Comparing a million samples takes seconds, and about 500 MB of memory per dataset.

    B can also be the source of A: a folder or a table. diff then lists what would change if you ran the original
    `create` command again. A source file is read only if it has the same size as in A.

    Ten lines per kind of difference are printed; use -v to print all. Metadata columns are compared too, unless you use
    --ignore-metadata. Exit code: 0 the datasets are equal, 3 they differ.

    \b
    Examples:
      shardtool diff old.json new.json
      shardtool diff 'v1/{split}.json' 'v2/{split}.json' -v
      shardtool diff out.json s3://bucket/out.json --json
      shardtool diff out.json ./imgs
    """
    from shardtool.cli.result_text import diff_text
    from shardtool.verbs.diff.diff import diff as run

    if len(names) != _DIFF_SIDES:
        remedy = "Quote patterns, for example 'out-{000000..}.tar'."
        raise InvalidRequest(
            "diff", pluralize(len(names), "argument"), expected="two arguments, A and B", remedy=remedy
        )
    a, b = materialize_inputs(names)
    result = run_and_print(
        partial(run, a, b, make_options()), run_options, partial(diff_text, whole=run_options.verbose), always=True
    )
    return 0 if result.same else _EXIT_FINDINGS


@register_verb("DATASET... DEST", CopyOptions)
def copy(names: tuple[str, ...], make_options: Callable[[], CopyOptions], run_options: RunOptions) -> None:
    """Copy DATASET to the folder DEST, and verify every file.

    DATASET is a dataset file, or a folder, pattern or glob of dataset files; it can be at s3://, gs://, az:// or
    https://. DEST is a folder, or a prefix at s3://, gs:// or az://. Shards, sidecars, the list of skipped samples and
    valid indexes for other tools are copied first, then the dataset file. All files keep their names.

    Existing files with the same content are not copied again. To continue an interrupted copy, or to copy only the new
    shards of a dataset, run the same command again. If DEST contains a different dataset of the same name, --overwrite
    replaces it, and deletes old shards that DATASET does not have.

    \b
    Examples:
      shardtool copy out.json /mnt/backup/out
      shardtool copy /data/imagenet /mnt/backup/imagenet
      shardtool copy out.json s3://bucket/train
      shardtool copy https://example.org/train.json /data/train
      shardtool copy out.json /mnt/backup/out --dry-run
    """
    from shardtool.cli.result_text import copy_text
    from shardtool.verbs.copy.copy import copy as run

    dataset, dest = split_destination(
        names, "DEST", "not given; the last argument must be the folder or prefix to copy to"
    )
    options = make_options()
    run_and_print(partial(run, dataset, dest, options), run_options, copy_text, always=options.dry_run)


@register_verb("DATASET... DIR", ExtractOptions, omitted=("start_method",))
def extract(names: tuple[str, ...], make_options: Callable[[], ExtractOptions], run_options: RunOptions) -> None:
    """Write the samples of DATASET to files in the folder DIR.

    The field jpg of the sample cat/0001 becomes the file cat/0001.jpg. DATASET is a dataset file, a pattern, a glob, a
    folder or shards, written by any tool, local or remote. The last line of the output shows the `create` command that
    packs DIR into the same samples.

    Each payload is verified before it is written. Nothing is written outside DIR. Existing files with other content
    are replaced only with --overwrite. To continue an interrupted run, run the same command again.
    DIR/.manifest.parquet lists the key and path of each file; DIR/.metadata.parquet has the metadata of each sample,
    for --join.

    \b
    Examples:
      shardtool extract out.json ./files
      shardtool extract out.json ./cats --where "key < 'd'" --fields jpg
      shardtool extract out.json ./files --keys cat/0001 --keys cat/0002
      shardtool extract 'out/{split}.json' ./files --keys-from keys.txt
      shardtool extract out.json ./files --dry-run
    """
    from shardtool.cli.result_text import extract_text
    from shardtool.verbs.extract import extract as run

    dataset, folder = split_destination(names, "DIR", "not given; the last argument must be the folder for the files")
    options = make_options()
    run_and_print(
        partial(run, materialize_inputs(dataset), folder, options), run_options, extract_text, always=options.dry_run
    )


@register_verb("DATASET... [KEY...]", RemoveOptions, omitted=("start_method",))
def remove(names: tuple[str, ...], make_options: Callable[[], RemoveOptions], run_options: RunOptions) -> None:
    """Remove samples from DATASET in place; only the shards that contain them are rewritten.

    DATASET is a dataset file, in a folder or a store. The old shards are deleted only after the new shards are
    complete. To continue an interrupted run, run the same command again. After the run, no file of the dataset contains
    the removed samples. NAME.skipped keeps a hash of each key, so `create --resume` does not add the samples again.
    Copies and caches of the dataset are not changed.

    An argument that is neither a file nor the name of a dataset is a KEY. Use --keys if a key looks like a file
    or dataset.

    \b
    Examples:
      shardtool remove out.json cat/0001 cat/0002
      shardtool remove out.json --keys-from keys.txt --dry-run
      shardtool remove out.json --keys-from keys.txt
      shardtool remove 'out/{split}.json' --where "label == 'dog'"
    """
    from shardtool.cli.result_text import remove_text
    from shardtool.verbs.remove import remove as run

    options = make_options()
    datasets, keys = split_keys(names)
    options = replace(options, keys=[*options.keys, *keys]) if keys else options
    if len(datasets) > 1 and options.where is None and options.key_list is None:
        found, expected = "an existing file or a dataset name, not a key", "DATASET... KEY..., or --where"
        raise InvalidRequest(datasets[-1], found, expected=expected, remedy="To use it as a key, add --keys.")
    run_and_print(partial(run, datasets, options), run_options, remove_text, always=options.dry_run)


@register_verb("DATASET...", IndexCommandOptions, omitted=("start_method",))
def index(names: tuple[str, ...], make_options: Callable[[], IndexCommandOptions], run_options: RunOptions) -> None:
    """Create the sidecars and the dataset file for shards of any tool, and indexes for other tools.

    DATASET is a dataset file, a folder, a shard pattern, a glob or shards. By default, only the headers of tar
    shards are read. Shards are never changed. Missing sidecars are created; invalid sidecars are replaced only with
    --overwrite. If DATASET is a dataset file, --export reads only the sidecars, and writes only the indexes for other
    tools.

    \b
      dali-webdataset  out-000000.idx      for fn.readers.webdataset of NVIDIA DALI
      energon          out-000000.tar.idx  and .nv-meta, for Megatron-Energon
      huggingface      out-000000.json     for the Hugging Face Hub (reads the shards)
      timm             _info.json          splits, shards and sample counts, for timm
      open-clip        sizes.json          sample counts of shards, for open_clip
      wids             no extra file       wids reads out.json
      dali-tfrecord    out-000000.idx      for fn.readers.tfrecord of NVIDIA DALI
      tfrecord         out-000000.tfindex  for the tfrecord package

    \b
    Examples:
      shardtool index ./shards
      shardtool index 'train-{0000..0127}.tar' --checksum
      shardtool index old.json --columns-from cls --columns-from json
      shardtool index out.json --export dali-webdataset
      shardtool index train.json --export timm --export open-clip
      shardtool index records.json --export dali-tfrecord --export tfrecord --output ./indexes
      shardtool index 'parts/out-{000000..}.tar' --merge
    """
    from shardtool.dataset.expand import expand_if_pattern

    options = make_options()
    with open_progress_display(run_options) as terminal:
        datasets = [names] if options.merge else expand_if_pattern(names)
        results = [_index_dataset(list_names("the dataset", dataset, ""), options, terminal) for dataset in datasets]
    documents = [document for document, _ in results]
    print_result(
        run_options,
        lambda: documents[0] if len(documents) == 1 else {"datasets": documents},
        lambda: "\n".join(line for _, lines in results for line in lines),
    )


def _index_dataset(
    dataset: Sequence[str], options: IndexCommandOptions, terminal: Observer
) -> tuple[dict[str, object], list[str]]:
    from shardtool.verbs.index import index as run

    document: dict[str, object] = {}
    lines, file, forms = list[str](), dataset[0], options.export
    reads_shards = options.checksum or options.columns_from
    if options.merge or not forms or len(dataset) > 1 or not file.endswith(".json") or reads_shards:
        if options.merge:
            # Import only for `--merge`: the import starts threads, and `run` must fork workers before threads start.
            from shardtool.publish.merge_parts import merge

            result: IndexResult = merge(dataset[0] if len(dataset) == 1 else dataset, observer=terminal)
        else:
            if forms:
                from shardtool.verbs.export import check_index_names

                check_index_names(dataset, forms)
            result = run(dataset, options, observer=terminal)
        document, file = result.to_json(), result.dataset_file
        kept = f" ({result.kept:,} already valid)" if result.kept else ""
        lines.append(
            f"{pluralize(result.samples, 'sample')} in {pluralize(result.shards, 'shard')}{kept}\n"
            f"dataset file  {printable(result.dataset_file)}"
        )
        if result.columns:
            lines.append(f"columns       {', '.join(map(printable, result.columns))}")
    if forms:
        from shardtool.verbs.export import export

        exported = export(file, forms, options.pick(ExportOptions), observer=terminal)
        document = {**document, "export": exported.to_json()} if document else exported.to_json()
        kept = f", {exported.kept:,} already existed" if exported.kept else ""
        lines.append(f"{pluralize(len(exported.files), 'file')} in {exported.folder}{kept}")
    return document, lines


@register_verb("DATASET...", InspectViewOptions)
def inspect(names: tuple[str, ...], make_options: Callable[[], InspectViewOptions], run_options: RunOptions) -> None:
    """Show the content of a dataset: totals, shards, fields, images, labels, metadata, samples.

    DATASET is a dataset file (out.json), a folder, a shard pattern, a glob or shards, written by shardtool or any other
    tool: .tar, .tfrecord, train-00000-of-01024, .tar.gz, .tar.bz2, .tar.xz and .tar.zst. A shard is scanned only if it
    has no sidecar (`out-000000.index`). Several datasets are shown one after the other, and sample numbers continue
    from one dataset to the next.

    \b
    Examples:
      shardtool inspect out.json
      shardtool inspect out.json --show cat/0001
      shardtool inspect out.json --show cat/0001 --raw jpg > cat.jpg
      shardtool inspect 'shards/train-{0000..0127}.tar' --head 20
      shardtool inspect out.json --html report.html --contact-sheet sheet.png
      shardtool inspect out.json --table out.parquet
      shardtool inspect out.json --show 17 --extract ./look
      shardtool inspect out.json --where "width < 64" --extract ./small
      shardtool inspect 'out/{split}.json' --keys | grep cat/
      shardtool inspect 'out/{split}.json' --duplicates
      shardtool inspect out.json --read-speed --decode
    """
    from shardtool.cli.result_text import duplicates_text
    from shardtool.cli.summary_text import read_speed_text, summary_text

    options = make_options()
    if options.raw is not None and (run_options.as_json or len(options.show) > 1):
        raise InvalidRequest(
            "--raw", "used with --json" if run_options.as_json else "several samples", expected="one sample"
        )
    dataset = materialize_inputs(names)
    if options.summary:
        from shardtool.verbs.inspect.inspect import inspect as run

        run_and_print(partial(run, dataset, options), run_options, summary_text, always=True)
        return
    if options.duplicates:
        from shardtool.verbs.inspect.duplicates import find_duplicates

        run_and_print(
            partial(find_duplicates, dataset),
            run_options,
            partial(duplicates_text, whole=run_options.verbose),
            always=True,
        )
        return
    if options.read_speed:
        from shardtool.verbs.inspect.read_speed import read_speed

        speed = read_speed(dataset, decode=options.decode, seed=options.seed)
        print_result(run_options, speed.to_json, partial(read_speed_text, speed), always=True)
        return
    if options.html is not None or options.contact_sheet is not None:
        write_pictures(dataset, options, run_options)
        return
    if options.table is not None:
        print_table(dataset, options.table, options, run_options)
        return
    from shardtool.dataset.expand import expand_datasets
    from shardtool.dataset.find import open_dataset
    from shardtool.verbs.inspect.samples import find_sample

    opened = [open_dataset(path) for path in expand_datasets(dataset)]
    if options.keys:
        print_keys(opened, options.where, run_options)
    elif options.raw is not None:
        from shardtool.verbs.inspect.samples import field_bytes

        write_bytes(field_bytes(find_sample(opened, options.show[0]), options.raw))
    else:
        print_samples(opened, options, run_options)


@register_verb("PLACE", DoctorOptions, omitted=("retry_for",))
def doctor(names: tuple[str, ...], make_options: Callable[[], DoctorOptions], run_options: RunOptions) -> int:
    """Test access to PLACE, and explain how to fix each problem.

    PLACE is a prefix of a store (s3://, gs://, az://), a file on the web, or a folder. For a store or a web file,
    doctor tests the server, proxy, certificate, clock, credentials and reading. No secret is printed. For a store, it
    also tests listing, writing, conditional writing and deleting; for a web file, ranges and conditional requests. For
    a folder, it tests free space, writing, renaming and locks.

    In a store or folder, doctor writes one small object or file with a unique name and deletes it, even after Ctrl-C.
    Without permission to delete, it writes nothing to a store. Failing requests are retried for five seconds only.

    Exit code: 0 no problems, 3 problems found.

    \b
    Examples:
      shardtool doctor s3://bucket/train
      shardtool doctor s3://bucket/train --endpoint https://minio.example:9000
      shardtool doctor s3://bucket/public --anonymous --read-only
      shardtool doctor https://example.org/data/out.json
      shardtool doctor /mnt/shared --json
    """
    from shardtool.cli.result_text import doctor_text
    from shardtool.verbs.doctor import doctor as run

    result = run_and_print(partial(run, names, make_options()), run_options, doctor_text, always=True)
    return 0 if result.well else _EXIT_FINDINGS


_ACTION = click.Argument(["action"], type=click.Choice(["status", "clear", "verify"]))


@register_verb((_ACTION, click.Argument(["folder"], type=PATH_TYPE)), run_options=PrintOptions)
def cache(action: str, folder: str, run_options: PrintOptions) -> int:
    """Show, check or clear a shard cache; FOLDER is the folder of `shardtool.Cache`.

    \b
      status  list cached shards, the processes that use them, and the hit rate
      clear   delete all shards that no process uses
      verify  read all shards and delete damaged ones; the exit code is 3 if there were any

    Other programs can keep using the cache. Files that do not belong to the cache are listed and never deleted.

    \b
    Examples:
      shardtool cache status /fast/disk/cache
      shardtool cache verify /fast/disk/cache --json
    """
    from shardtool.cli.result_text import cache_change_text, cache_status_text
    from shardtool.verbs.cache.status import cache_clear, cache_status, cache_verify

    if action == "status":
        status = cache_status(folder)
        print_result(run_options, status.to_json, lambda: cache_status_text(status))
        return 0
    change = cache_verify(folder) if action == "verify" else cache_clear(folder)
    print_result(run_options, change.to_json, lambda: cache_change_text(change))
    return _EXIT_FINDINGS if action == "verify" and (change.removed or change.held) else 0


@register_verb((click.Argument(["shell"], type=click.Choice(["bash", "zsh", "fish"])),), run_options=BaseOptions)
def completion(shell: str, _how: BaseOptions) -> None:
    """Print a script that makes TAB complete shardtool commands.

    TAB completes verbs, options, option values and files (datasets first). It also completes the columns of tables and
    datasets already named in the command, and the fields of these datasets.

    \b
      bash  put this into ~/.bashrc:  eval "$(shardtool completion bash)"
      zsh   into ~/.zshrc, after compinit:  eval "$(shardtool completion zsh)"
      fish  run once:  shardtool completion fish > ~/.config/fish/completions/shardtool.fish

    \b
    Examples:
      shardtool completion bash
    """
    from shardtool.cli.completion import completion_script

    print_text(completion_script(shell).rstrip("\n"))


@click.command(context_settings={"help_option_names": ["-h", "--help"], "ignore_unknown_options": True})
@click.argument("names", nargs=-1, metavar="[VERB [TOPIC] | WORD... | PAGE]", shell_complete=complete_value)
@click.pass_context
def help_(context: click.Context, names: tuple[str, ...]) -> None:
    """Show help for a VERB or one of its topics, search the help and the documentation, or print a page.

    \b
    Examples:
      shardtool help
      shardtool help create
      shardtool help create urls
      shardtool help coco
      shardtool help exit codes
      shardtool help tables.md
    """
    from shardtool.cli.help import read_page, search_help

    parent = context.parent
    if parent is None or not isinstance(parent.command, click.Group) or not names:
        print_text((parent or context).get_help())
        return
    if names[0].partition("#")[0].endswith(".md"):
        print_text(read_page(names[0]))
        return
    verbs = {name: parent.command.get_command(parent, name) for name in parent.command.list_commands(parent)}
    if names[0] not in verbs and (matches := search_help(names, verbs)):
        print_text(matches)
        return
    if names[0] not in verbs and not suggest_verb(names[0], verbs):
        raise InvalidRequest(" ".join(names), "not in the help and the documentation", remedy="See `shardtool --help`.")
    command = cast("click.Command", parent.command.resolve_command(parent, [names[0]])[1])
    if len(names) > 2:  # noqa: PLR2004 - a verb and a topic
        raise InvalidRequest("help", pluralize(len(names), "argument"), expected="one VERB and one of its topics")
    with click.Context(command, info_name=names[0], parent=parent) as verb_context:
        print_text(
            topic_help(command, verb_context, *names[1:])
            if isinstance(command, VerbCommand) and names[1:]
            else command.get_help(verb_context)
        )


VERBS["help"] = lambda: help_
