"""Options of the commands that read or change finished datasets."""

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
)  # what the user says of the source: no file is trusted in it


_REQUIRES_SOURCE = {"source": "no source that it could be about"}


@options_class
class VerifyOptions(WorkerOptions):
    """The options of `verify`."""

    quick: bool = option(
        False, "Read no shards: names, sizes, sidecars and numbering only. The report says so.",
        section="checks", common=True,
    )  # fmt: skip
    decode: bool = option(
        False,
        "Decode images and JSON fields, too, and check that labels are numbers.",
        conflicts=("quick",),
        common=True,
    )
    source: object = option(
        None, "What the dataset was made from, to be compared by key. Folders, a manifest, or datasets.", form="path",
        section="source", common=True, metavar="PATH", conflicts=("quick", "sample, which reads only a part"),
    )  # fmt: skip
    target: Target | tuple[Target, ...] | list[Target] = option(
        (), "Readers that must get names right: webdataset,dali. Known are " + ", ".join(get_args(Target)) + ".",
        section="checks", common=True,
        typed="for", old="target", metavar="READERS", comma_separated=True, conflicts=("quick",),
    )  # fmt: skip
    sample: float | str | None = option(
        None, "Share of the shards that are read: 10%. Each `seed` takes others.", form="sample", common=True,
        metavar="SHARE", conflicts=("quick",),
    )  # fmt: skip
    seed: int | None = option(
        None, "Seed of `sample`: ten in a row of 10% read all.", range=SEED_RANGE, shown="0",
        requires={"sample": "nothing to choose"},
    )  # fmt: skip
    repair: bool = option(
        False, "Mend what can be mended without guessing. Sidecars and dataset file; with `source`, shards, too.",
        section="source", common=True, conflicts=("quick", "sample, which reads only a part"),
    )  # fmt: skip
    map: Function | None = option(
        None, "Function of yours that made the samples, which `repair` calls again. It is code that you must trust.",
        form="function", metavar="MODULE:FUNCTION", requires={**_REQUIRES_SOURCE, "repair": "nothing to make again"},
    )  # fmt: skip
    join: object = option(
        None, "Table of `join` when the dataset was created.", form="path", metavar="TABLE",
        shown="a file of the recorded name: here, in the source, or next to the source or the dataset", requires=_REQUIRES_SOURCE,
    )  # fmt: skip
    root: PathLike | None = option(
        None, "Folder that paths of a manifest count from.", form="path",
        metavar="FOLDER", shown="the manifest's", requires=_REQUIRES_SOURCE,
    )  # fmt: skip
    allow_outside: bool = option(False, "Let paths of a manifest leave the root.", requires=_REQUIRES_SOURCE)
    symlinks: Symlinks | None = option(
        None, "Which links in a folder are followed.", shown="as recorded, but never all", requires=_REQUIRES_SOURCE
    )


@options_class
class IndexOptions(WorkerOptions):
    """The options of `index`."""

    checksum: bool = option(
        False, "Read the payloads, too: for their checksums and the content fingerprint.", section="indexes",
        common=True,
    )  # fmt: skip
    output: PathLike | None = option(
        None, "Folder that is written to. It is above that of the shards; of exports alone, any.", form="path",
        metavar="DIR", shown="beside the shards", common=True,
    )  # fmt: skip
    dots: Dots | None = option(
        None, "Dot of a member's name at which its key ends: the first or the last.",
        shown="as the dataset file says, or first",
    )  # fmt: skip
    overwrite: bool = option(
        False, "Replace what is wrong: sidecars, the dataset file, indexes of other tools.", typed="overwrite/f",
        common=True,
    )  # fmt: skip


@options_class
class ExportOptions(WorkerOptions):
    """How to write the indexes of other tools."""

    output: PathLike | None = option(None, "Folder that they go into.", shown="beside the shards")
    overwrite: bool = option(
        False, "Replace files of these names; without it, only files with the same bytes may be there."
    )


@options_class
class CopyOptions(BaseOptions):
    """How to copy a dataset."""

    overwrite: bool = option(
        False, "Replace another dataset of the same name, and files of its names. What is right stays.",
        section="copying", typed="overwrite/f", common=True,
    )  # fmt: skip
    dry_run: bool = option(
        False, "Compare, and say what would be copied; write nothing.", typed="dry-run/n", common=True
    )
    workers: int | None = option(
        None, "Shards that are copied at once.", typed="workers/j", range=WORKERS_RANGE, shown="4 to 16", common=True
    )
    trust: Trust | None = option(
        None, "How shards that are there are known without being read. By times (folder to folder), or by sizes, "
        "where their sidecars are there, too.", common=True,
    )  # fmt: skip
    limit: str | int | None = option(
        None, "Bytes a second, at most, that are compared and copied, by all threads together: 100MB/s.", form="rate",
        metavar="RATE",
    )  # fmt: skip
    source_endpoint: str | None = option(
        None, "Server of s3:// that DATASET is read from, where it is another one.", metavar="URL",
        shown="SHARDTOOL_SOURCE_ENDPOINT",
    )  # fmt: skip


@options_class
class InspectOptions(BaseOptions):
    """How to look at a dataset."""

    full: bool = option(
        False, "Read the index of every shard, above four million samples, too.", section="pages", rare=True
    )
    looks: int = option(
        256, "Number of samples that are opened for their images and labels.", range=(0, 10**6), rare=True
    )
    seed: int = option(0, "Seed of the choice of the samples that are opened.", range=SEED_RANGE)


@options_class
class DiffOptions(WorkerOptions):
    """The options of `diff`; `root`, `allow_outside` and `symlinks` apply if `b` is the source of `a`."""

    ignore_metadata: bool = option(
        False, "Compare samples and fields only, not the metadata columns.", section="output", common=True
    )
    join: object = inherit_option(VerifyOptions, "join", section="source", common=True, requires={})
    root: PathLike | None = inherit_option(VerifyOptions, "root", common=True, requires={})
    allow_outside: bool = inherit_option(VerifyOptions, "allow_outside", common=True, requires={})
    symlinks: Symlinks | None = inherit_option(VerifyOptions, "symlinks", common=True, requires={})


@options_class
class DoctorOptions(BaseOptions):
    """The options of `doctor`."""

    read_only: bool = option(False, "Write nothing: look at what reading needs alone.", section="machines", common=True)


@options_class
class FilterOptions(WorkerOptions):
    """The options of the verbs that do something to some samples of datasets."""

    where: str | None = option(
        None, "Only samples of which this is true: \"label == 'dog'\". It knows the columns of sidecars, and key, "
        "shard, size and fields.", section="choosing", metavar="QUERY", common=True,
    )  # fmt: skip
    keys_from: object = option(
        None, "File with the key of a sample a line, or - for standard input.", form="path", metavar="FILE",
        conflicts=("where",), common=True,
    )  # fmt: skip
    dry_run: bool = option(
        False, "Say what would be done; write nothing.", section="output", typed="dry-run/n", common=True
    )


@options_class
class ExtractOptions(FilterOptions):
    """The options of `extract`."""

    fields: str | Texts | Mapping[str, str] = option(
        (), "Fields to write (jpg,cls), leave out (-json), or rename (JPEG=jpg).", section="files",
        metavar="FIELDS", word=True, common=True, shown="all, but for the cls that `label_from_folder` made",
    )  # fmt: skip
    by_key: bool = option(False, "Call files by keys, where `portable` has made these of other names.")
    overwrite: bool = option(
        False, "Replace files of these names that are there with other bytes.", typed="overwrite/f", common=True
    )


@options_class
class RemoveOptions(FilterOptions):
    """The options of `remove`."""
