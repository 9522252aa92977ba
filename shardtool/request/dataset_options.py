"""Options of the verbs that read or change finished datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from shardtool.request.base_options import BaseOptions
from shardtool.request.option_spec import (
    Function,
    PathLike,
    Texts,
    inherit_option,
    option,
    options_class,
)
from shardtool.request.output_options import SEED_RANGE, WORKERS_RANGE, WorkerOptions
from shardtool.values import (
    Dots,
    Symlinks,
    Target,
    Trust,
)

SOURCE_OPTIONS = (
    "map",
    "root",
    "allow_outside",
    "symlinks",
)  # must come from the user: dataset files are not trusted here


_REQUIRES_SOURCE = {"source": "no source to apply it to"}


@options_class
class VerifyOptions(WorkerOptions):
    """Options of `verify`."""

    quick: bool = option(
        False, "Check names, sizes, sidecars and numbering; do not read the shards.",
        section="checks", common=True,
    )  # fmt: skip
    decode: bool = option(
        False,
        "Decode images and JSON fields, and check that labels are numbers.",
        conflicts=("quick",),
        common=True,
    )
    source: object = option(
        None, "Compare with this source, by key: folders, a manifest, or datasets.", form="path",
        section="source", common=True, metavar="PATH", conflicts=("quick", "sample, which reads only a part"),
    )  # fmt: skip
    target: Target | tuple[Target, ...] | list[Target] = option(
        (), "Check compatibility with these readers: webdataset,dali. One of: " + ", ".join(get_args(Target)) + ".",
        section="checks", common=True,
        typed="for", old="target", metavar="READERS", comma_separated=True, conflicts=("quick",),
    )  # fmt: skip
    sample: float | str | None = option(
        None, "Share of the shards to read, for example 10%. Each `seed` selects other shards.", form="sample",
        common=True,
        metavar="SHARE", conflicts=("quick",),
    )  # fmt: skip
    seed: int | None = option(
        None, "Seed for `sample`. Ten consecutive seeds with 10% read all shards.", range=SEED_RANGE, shown="0",
        requires={"sample": "nothing to choose"},
    )  # fmt: skip
    repair: bool = option(
        False, "Repair whatever can be rebuilt from verified data. Repairing shards requires `source`.",
        section="source", common=True, conflicts=("quick", "sample, which reads only a part"),
    )  # fmt: skip
    map: Function | None = option(
        None, "Function that created the samples; `repair` calls it again. Only use code you trust.",
        form="function", metavar="MODULE:FUNCTION", requires={**_REQUIRES_SOURCE, "repair": "nothing to recreate"},
    )  # fmt: skip
    join: object = option(
        None, "Table that was passed as `join` when the dataset was created.", form="path", metavar="TABLE",
        shown="a file with the recorded name in this folder, in the source, or next to the source or "
        "the dataset", requires=_REQUIRES_SOURCE,
    )  # fmt: skip
    root: PathLike | None = option(
        None, "Base folder for relative manifest paths.", form="path",
        metavar="FOLDER", shown="manifest folder", requires=_REQUIRES_SOURCE,
    )  # fmt: skip
    allow_outside: bool = option(False, "Allow manifest paths outside `root`.", requires=_REQUIRES_SOURCE)
    symlinks: Symlinks | None = option(
        None,
        "Symbolic links to follow in a source folder.",
        shown="as recorded, except follow",
        requires=_REQUIRES_SOURCE,
    )


@options_class
class IndexOptions(WorkerOptions):
    """Options of `index`."""

    checksum: bool = option(
        False, "Read the payloads, to add checksums and the content fingerprint.", section="indexes",
        common=True,
    )  # fmt: skip
    output: PathLike | None = option(
        None, "Output folder. It must contain the shards' folder, unless you only write exports.", form="path",
        metavar="DIR", shown="next to the shards", common=True,
    )  # fmt: skip
    dots: Dots | None = option(
        None, "Where the key ends in a member name: at the first dot or the last.",
        shown="as recorded in the dataset file, or first",
    )  # fmt: skip
    overwrite: bool = option(
        False, "Replace invalid sidecars, dataset files and indexes of other tools.", typed="overwrite/f",
        common=True,
    )  # fmt: skip


@options_class
class ExportOptions(WorkerOptions):
    """Options of `export`."""

    output: PathLike | None = option(None, "Output folder.", shown="next to the shards")
    overwrite: bool = option(False, "Replace existing files; otherwise, only files with the same bytes may exist.")


@options_class
class CopyOptions(BaseOptions):
    """Options of `copy`."""

    overwrite: bool = option(
        False, "Replace a different dataset or files with the same names. Valid files are kept.",
        section="copying", typed="overwrite/f", common=True,
    )  # fmt: skip
    dry_run: bool = option(
        False, "Compare, and print the files to copy; write nothing.", typed="dry-run/n", common=True
    )
    workers: int | None = option(
        None,
        "Number of shards to copy in parallel, each in a thread. 0 copies in the calling thread.",
        typed="workers/j",
        range=WORKERS_RANGE,
        shown="4 to 16",
        common=True,
    )
    trust: Trust | None = option(
        None, "Compare existing shards by time or size instead of reading them. Comparing times works between folders; "
        "comparing sizes requires sidecars.", common=True,
    )  # fmt: skip
    limit: str | int | None = option(
        None, "Limit the total bandwidth of reading and copying, for example 100MB/s.", form="rate",
        metavar="RATE",
    )  # fmt: skip
    source_endpoint: str | None = option(
        None, "Server for a DATASET at s3://, if DEST uses another server.", metavar="URL",
        shown="SHARDTOOL_SOURCE_ENDPOINT",
    )  # fmt: skip


@options_class
class InspectOptions(BaseOptions):
    """Options of `inspect`."""

    full: bool = option(
        False, "Read the index of every shard, even above four million samples.", section="pages", rare=True
    )
    looks: int = option(256, "Number of samples to open for images and labels.", range=(0, 10**6), rare=True)
    seed: int = option(0, "Seed for choosing the samples to open.", range=SEED_RANGE)


@options_class
class DiffOptions(WorkerOptions):
    """Options of `diff`. `root`, `allow_outside` and `symlinks` apply if `b` is the source of `a`."""

    ignore_metadata: bool = option(
        False, "Compare samples and fields only, not the metadata columns.", section="output", common=True
    )
    join: object = inherit_option(VerifyOptions, "join", section="source", common=True, requires={})
    root: PathLike | None = inherit_option(VerifyOptions, "root", common=True, requires={})
    allow_outside: bool = inherit_option(VerifyOptions, "allow_outside", common=True, requires={})
    symlinks: Symlinks | None = inherit_option(VerifyOptions, "symlinks", common=True, requires={})


@options_class
class DoctorOptions(BaseOptions):
    """Options of `doctor`."""

    read_only: bool = option(False, "Test reading only; write nothing.", section="machines", common=True)


@options_class
class FilterOptions(WorkerOptions):
    """Options of verbs that act on selected samples."""

    where: str | None = option(
        None, "Select samples that match this query: \"label == 'dog'\". You can use the columns of sidecars, and key, "
        "shard, size and fields.", section="choosing", metavar="QUERY", common=True,
    )  # fmt: skip
    keys_from: object = option(
        None, "Read keys from this file, one per line (- for stdin).", form="path", metavar="FILE",
        conflicts=("where",), common=True,
    )  # fmt: skip
    dry_run: bool = option(
        False, "Print the planned changes; write nothing.", section="output", typed="dry-run/n", common=True
    )


@options_class
class ExtractOptions(FilterOptions):
    """Options of `extract`."""

    fields: str | Texts | Mapping[str, str] = option(
        (), "Fields to write (jpg,cls), exclude (-json), or rename (JPEG=jpg).", section="files",
        metavar="FIELDS", word=True, common=True, shown="all, except a cls from `label_from_folder`",
    )  # fmt: skip
    by_key: bool = option(
        False, "Name files after the keys. By default, files have the names that `portable` replaced."
    )
    overwrite: bool = option(False, "Replace existing files whose bytes differ.", typed="overwrite/f", common=True)


@options_class
class RemoveOptions(FilterOptions):
    """Options of `remove`."""
