"""Options of the verbs that read or change finished datasets."""

from __future__ import annotations

from collections.abc import Mapping

from shardtool.request.base_options import BaseOptions
from shardtool.request.option_spec import Function, Given, Needs, PathLike, Texts, option, options_class
from shardtool.request.output_options import SEED_RANGE, WORKERS_RANGE, WorkerOptions
from shardtool.request.selecting_options import SelectingOptions
from shardtool.values import Dots, Symlinks, Target, Trust

# `verify` and `diff` do not read these options from a dataset file, because dataset files are not trusted.
SOURCE_OPTIONS = ("map", "root", "allow_outside", "symlinks")


@options_class
class VerifyOptions(WorkerOptions):
    """Options of `verify`.

    Attributes:
        quick: Check names, sizes, sidecars and numbering; do not read the shards.
        decode: Decode images and JSON fields, and check that labels are numbers.
        source: Compare the samples with this folder, manifest or dataset.
        target: Check compatibility with these readers, for example webdataset,dali.
        sample: Read only this share of the shards, for example 10%. `seed` selects the shards.
        seed: Seed for `sample`. With 10%, ten consecutive seeds read all shards.
        repair: Repair whatever can be rebuilt from verified data. To repair shards, pass `source`.
        map: The `map` function that created the samples. `repair` calls it again. Only use code that you trust.
        join: Table that was passed as `join` when the dataset was created.
        root: Base folder for relative manifest paths.
        allow_outside: Allow manifest paths outside `root`.
        symlinks: Symbolic links to follow in a source folder.
    """

    quick: bool = option(False, section="checks", common=True)
    decode: bool = option(False, conflicts=(Given(quick),), common=True)
    source: object = option(
        None, form="path", repeatable=True, section="source", common=True, metavar="PATH", conflicts=(Given(quick),)
    )
    target: Target | tuple[Target, ...] | list[Target] = option(
        (),
        section="checks",
        common=True,
        cli_names="for",
        former_name="target",
        metavar="READERS",
        comma_separated=True,
        conflicts=(Given(quick),),
    )
    sample: float | str | None = option(
        None,
        form="sample",
        common=True,
        metavar="SHARE",
        conflicts=(Given(quick), Given(source, "which compares all shards")),
    )
    seed: int | None = option(
        None, range=SEED_RANGE, default_text="0", requires=(Needs("nothing is sampled", Given(sample)),)
    )
    repair: bool = option(
        False, section="source", common=True, conflicts=(Given(quick), Given(sample, "which reads only a part"))
    )
    map: Function | None = option(
        None,
        form="function",
        metavar="MODULE:FUNCTION",
        requires=(Needs("no source to compare", Given(source)), Needs("nothing to recreate", Given(repair))),
    )
    join: object = option(
        None,
        form="path",
        metavar="TABLE",
        default_text="the recorded file name, in the current or source folder, or next to the source or dataset",
        requires=(Needs("no source to compare", Given(source)),),
    )
    root: PathLike | None = option(
        None,
        form="path",
        metavar="FOLDER",
        default_text="manifest folder",
        requires=(Needs("no source to compare", Given(source)),),
    )
    allow_outside: bool = option(False, requires=(Needs("no source to compare", Given(source)),))
    symlinks: Symlinks | None = option(
        None,
        default_text="as recorded; if follow was used, pass it again",
        requires=(Needs("no source to compare", Given(source)),),
    )


@options_class
class IndexOptions(WorkerOptions):
    """Options of `index`.

    Attributes:
        checksum: Read the payloads, to add checksums and the content fingerprint.
        output: Output folder. The shards must be in or below this folder, unless you only write exports.
        columns_from: Store the values of this field as columns of the sidecars. The field must contain a JSON object, a
            number or a text.
        dots: End the key at the first dot of the member name, or at the last.
        overwrite: Replace existing files and columns that do not match the shards.
    """

    checksum: bool = option(False, section="indexes", common=True)
    columns_from: Texts = option((), metavar="FIELD", common=True)
    output: PathLike | None = option(None, form="path", metavar="DIR", default_text="next to the shards", common=True)
    dots: Dots | None = option(None, default_text="as recorded in the dataset file, or first")
    overwrite: bool = option(False, cli_names="overwrite/f", common=True)


@options_class
class ExportOptions(WorkerOptions):
    """Options of `export`.

    Attributes:
        output: Output folder.
        overwrite: Replace existing files. By default, an existing file with different content is an error.
    """

    output: PathLike | None = option(None, default_text="next to the shards")
    overwrite: bool = option(False)


@options_class
class CopyOptions(BaseOptions):
    """Options of `copy`.

    Attributes:
        overwrite: Replace existing files, even of a different dataset. Files with the same content are kept.
        dry_run: Print the files that would be copied; write nothing.
        workers: Number of shards to copy in parallel, each in a thread. 0 copies in the calling thread.
        trust: Compare existing shards by time or size instead of reading them. Comparing times requires two local
            folders; comparing sizes requires sidecars.
        limit: Limit the total bandwidth of reading and copying, for example 100MB/s.
        source_endpoint: Server of an s3:// DATASET, if DEST is on a different server.
    """

    overwrite: bool = option(False, section="copying", cli_names="overwrite/f", common=True)
    dry_run: bool = option(False, cli_names="dry-run/n", common=True)
    workers: int | None = option(None, cli_names="workers/j", range=WORKERS_RANGE, default_text="4 to 16", common=True)
    trust: Trust | None = option(None, common=True)
    limit: str | int | None = option(None, form="rate", metavar="RATE")
    source_endpoint: str | None = option(None, metavar="URL", default_text="SHARDTOOL_SOURCE_ENDPOINT")


@options_class
class InspectOptions(BaseOptions):
    """Options of `inspect`.

    Attributes:
        full: Read the index of every shard. By default, skip some shards if there are more than four million
            samples.
        looks: Read the payloads of N samples to examine images and labels.
        seed: Seed that selects the samples to examine.
    """

    full: bool = option(False, section="pages", rare=True)
    looks: int = option(256, range=(0, 10**6))
    seed: int = option(0, range=SEED_RANGE)


@options_class
class DiffOptions(WorkerOptions):
    """Options of `diff`. `root`, `allow_outside` and `symlinks` apply if `b` is the source of `a`.

    Attributes:
        ignore_metadata: Compare samples and fields only, not the metadata columns.
    """

    ignore_metadata: bool = option(False, section="output", common=True)
    join: object = option.like(VerifyOptions.join, section="source", common=True, requires=())
    root: PathLike | None = option.like(VerifyOptions.root, common=True, requires=())
    allow_outside: bool = option.like(VerifyOptions.allow_outside, common=True, requires=())
    symlinks: Symlinks | None = option.like(VerifyOptions.symlinks, common=True, requires=())


@options_class
class DoctorOptions(BaseOptions):
    """Options of `doctor`.

    Attributes:
        read_only: Test reading only; write nothing.
    """

    read_only: bool = option(False, section="machines", common=True)


@options_class
class FilterOptions(WorkerOptions):
    """Options of verbs that act on selected samples.

    Attributes:
        where: Select samples that match this query: "label == 'dog'". You can use the columns of sidecars and the names
            key, shard, size and fields.
        keys: Select the sample with this key.
        dry_run: Print the planned changes; write nothing.
    """

    where: str | None = option(None, section="choosing", metavar="QUERY", common=True)
    keys: Texts = option((), metavar="KEY", common=True, conflicts=(Given(where),))
    keys_from: object = option.like(
        SelectingOptions.keys_from, section="", conflicts=(Given(where), Given(keys)), common=True
    )
    dry_run: bool = option(False, section="output", cli_names="dry-run/n", common=True)

    @property
    def key_list(self) -> object:
        """The value of `keys` or `keys_from`, or None if neither is given."""
        return self.keys or self.keys_from


@options_class
class ExtractOptions(FilterOptions):
    """Options of `extract`.

    Attributes:
        fields: Fields to write (jpg,cls), exclude (-json), or rename (NEW=OLD: jpg=JPEG).
        by_key: Name files after the keys. By default, samples that `portable` renamed get their original names.
        overwrite: Replace existing files whose bytes differ.
    """

    fields: str | Texts | Mapping[str, str] = option(
        (),
        section="files",
        metavar="FIELDS",
        single_value_list=True,
        common=True,
        default_text="all, except a cls from `label_from_folder`",
    )
    by_key: bool = option(False)
    overwrite: bool = option(False, cli_names="overwrite/f", common=True)


@options_class
class RemoveOptions(FilterOptions):
    """Options of `remove`."""
