"""What can be asked of each verb: one class each, and every option declared once; see `request/settings.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, get_args

from shardtool.errors import InvalidRequest
from shardtool.request.settings import (
    Default,
    Folder,
    Function,
    Pairs,
    Settings,
    Shares,
    Texts,
    by_key,
    described,
    facts,
    like,
    setting,
    spelled,
)
from shardtool.request.texts import SplitOptions, TextForm, pair, parse_shares, parts, pixels, share, shares_text
from shardtool.values import (
    Dots,
    Hash,
    IfExists,
    ImageFormat,
    OnDuplicate,
    OnError,
    Oversize,
    Place,
    ReadMethod,
    ResizeMode,
    StartMethod,
    Symlinks,
    Target,
    Trust,
    parse_size,
    show_size,
)
from shardtool.wording import either, option

if TYPE_CHECKING:
    from shardtool.fetch import FetchOptions
    from shardtool.transform import Transform

TOP_FOLDER = "/"  # the column of a folder that `--split-by folder` divides by: no other has that name
OF_SOURCE = ("map", "root", "allow_outside", "symlinks")  # what the user says of the source: no file is trusted in it
_LEAST_MEMORY = 16 * 10**6  # bytes: what the buffers of a shuffle take
_MOST_SAMPLES = 10**15  # so that sums of a few stay within 64 bits
_COUNT = (1, _MOST_SAMPLES)
_SEED = (-(2**63), 2**63 - 1)
MOST_WORKERS = 1024  # a process each
_WORKERS = (1, MOST_WORKERS)
_SEEDED = ("shuffle", "split", "per_class")
_RESUMES = {"if_exists=resume": "nothing to resume"}
_FETCHES = {"urls": "no URLs to fetch"}
CHANGES = ("resize", "encode", "probe", "exif", "hash", "map")  # what sizes of samples are only estimated with
_CHANGES = {"resize|encode|probe|exif": "nothing to do to images"}
_COMPARES = {"source": "no source that it could be about"}


# What options that stand for others say of these.


def _of_split_by(kind: type, value: str) -> dict[str, object]:
    """Return what a column, or `folder`, divides by."""
    of_folder = value == "folder" and "split_from_folder" in facts(kind)
    return {"split_from_folder": True} if of_folder else {"split_column": value}


def _of_sort_by(_kind: type, value: str) -> dict[str, object]:
    """Return the column of `-COLUMN`, and that its largest value comes first."""
    return {"sort_by": value[1:], "descending": True} if str(value).startswith("-") else {"sort_by": value}


def _of_fields(_kind: type, value: object) -> dict[str, object]:
    """Return which fields stay, which do not, and what they are called then."""
    if isinstance(value, Mapping):
        return {"rename_fields": tuple(pair("fields", *both) for both in value.items())}
    texts = ["=".join(map(str.strip, one.split("=", 1))) for one in parts("fields", value)]
    renamed = [one for one in texts if "=" in one]
    kept = [one for one in texts if "=" not in one and not one.startswith("-")]
    kept += [one.partition("=")[0] for one in renamed if kept]
    dropped = [one[1:] for one in texts if one.startswith("-") and one not in renamed]
    found = {"select_fields": kept, "drop_fields": dropped, "rename_fields": renamed}
    return {name: tuple(dict.fromkeys(some)) for name, some in found.items() if some}


@described
class WorkerOptions(Settings):
    """The options of every verb that starts workers."""

    workers: int | None = setting(
        None, "Number of tasks that run at once.", section="machines", typed="workers/j", within=_WORKERS,
        shown="the cores", common=True, recorded=False,
    )  # fmt: skip
    start_method: StartMethod = setting("auto", "How worker processes start.", recorded=False, rare=True)
    executor: Literal["local", "ray"] = setting(
        "local", "Where tasks run: on this machine, or on the nodes of a Ray cluster.", recorded=False
    )
    address: str | None = setting(
        None, "Address of the Ray cluster: auto, ray://host:port or host:port.", metavar="ADDRESS",
        shown="RAY_ADDRESS, or the cluster of this machine", needs={"executor=ray": "no cluster to use"},
        recorded=False,
    )  # fmt: skip


def readers_of(asked: Sequence[str], exports: Texts = ()) -> tuple[str, ...]:
    """Return the readers that notes are about: those asked for, or the one that the closing lines name, and of exports.

    Args:
        asked: Those that `target` names.
        exports: The indexes that are written, each called by its reader: `dali-webdataset`.
    """
    exported = {name.partition("-")[0] for name in exports}
    named = asked or ("webdataset",)
    return tuple(one for one in get_args(Target) if one in named or one in exported)


@described
class OutputOptions(WorkerOptions):
    """The options of every verb that writes shards; options on the command line have the same names."""

    max_size: str | int | None = setting(
        None, "Maximum size of a shard in bytes: 500MB, 1GiB.", section="shards", form="size", shown="1GB", common=True
    )
    max_count: int | None = setting(None, "Maximum number of samples in a shard.", within=_COUNT)
    shards: int | None = setting(
        None, "Number of shards, exactly. With splits, that of each; with `if_exists='append'`, that of the new ones.",
        within=_COUNT, common=True,
    )  # fmt: skip
    equal_count: bool = setting(False, "Put equally many samples into each shard, give or take one.")
    shards_multiple_of: int = setting(
        1, "Make the number of shards a multiple of this, so that ranks x workers divide it.", within=(1, 10**6)
    )
    oversize: Oversize = setting(
        "error", "What becomes of a sample that fits in no shard: an error, a shard of its own, or it is left out."
    )
    place: Place = setting(
        "order", "What decides in which shard a sample lies: the order of samples, or the hash of its key, so that "
        "one sample more or less changes one shard.", apart=("equal_count", "oversize=alone"),
    )  # fmt: skip
    shuffle: bool = setting(
        False, "Put all samples into one random order. With `place='hash'`, those of each shard.", common=True
    )
    seed: int = setting(0, "Seed of `shuffle` and `split`.", within=_SEED, common=True)
    where: str | None = setting(
        None, "Only samples of which this is true: \"label == 'dog' and width > 256\". It knows the columns of a "
        "manifest, of indexes, of `join` and `columns_from`, and: of files key, path, folder and size; of datasets "
        "key, shard, size and fields. With `probe`, `exif` and `hash` it knows what these find.", section="choosing",
        metavar="QUERY", common=True,
    )  # fmt: skip
    split: Shares | None = setting(
        None, "Shares of the splits: train=0.8,val=0.1,test=0.1. Each becomes a dataset; its name takes the place of "
        "{split} in the output.", form="shares", metavar="SHARES", such_as="train=0.8,val=0.2", common=True,
    )  # fmt: skip
    split_by: str | None = setting(
        None, "Column of the splits.", metavar="COLUMN",
        common=True, recorded=False, divide=_of_split_by,
    )  # fmt: skip
    split_column: str | None = setting(
        None, "Column of the splits.", metavar="COLUMN",
        within_family="split-by {}", apart=("split", "stratify", "group_by"),
    )  # fmt: skip
    stratify: str | None = setting(
        None, "Column of labels, each of which keeps the shares of `split`.", metavar="COLUMN",
        needs={"split": "no shares"},
    )  # fmt: skip
    group_by: str | None = setting(
        None, "Column whose equal values stay in one split.", metavar="COLUMN", needs={"split": "no shares"},
        apart=("stratify, and groups that stay whole cannot keep the shares of every label",),
    )  # fmt: skip
    portable: bool = setting(
        False, "Make names safe for every reader; the sidecars keep the originals.", section="fields"
    )
    target: Target | tuple[Target, ...] | list[Target] = setting(
        (), "Readers whose mistakes are worth a note: " + ", ".join(get_args(Target)) + ".", section="output",
        typed="for", old="target", metavar="READERS", shown="webdataset, and those of exports", commas=True,
        recorded=False,
    )  # fmt: skip
    export: Texts = setting((), "Tool whose index is written, too.", section="output", metavar="TOOL", recorded=False)
    on_error: OnError = setting(
        "stop", "What happens at a sample that cannot be read. The run stops, or leaves it out and lists it in "
        "NAME.skipped.", section="rerun", recorded=False, common=True,
    )  # fmt: skip
    if_exists: IfExists = setting(
        "error", "What happens where a dataset is there: an error; append adds new shards to it, resume finishes an "
        "earlier run, overwrite replaces it. With resume-overwrite, what is right is kept, and all else replaced. With "
        "update, what is new is added, what was killed is finished, and a first dataset is made.",
        section="rerun", recorded=False, common=True, flags={
            "update": "Add what is new in the source, and keep what is there. Make the dataset where there is none.",
            "append": "Add new shards to the dataset that is there. Nothing of it is rewritten.",
            "resume": "Finish an earlier run; what is done and unchanged is kept.",
            "overwrite": "Replace an earlier dataset, once the new one is complete. With `if_exists='resume'`, what "
            "must change of it.",
        },
    )  # fmt: skip
    append: bool | None = spelled("if_exists=append")
    resume: bool | None = spelled("if_exists=resume")
    overwrite: bool | None = spelled("if_exists=overwrite")
    update: bool | None = spelled("if_exists=update")
    max_removed: str | float = setting(
        "10%", "Share of the samples that `if_exists='resume'` may remove, where the source has lost them.",
        form="share", metavar="SHARE", recorded=False,
    )  # fmt: skip
    trust: Trust = setting(
        "time", "How `if_exists='resume'` knows a finished shard: by times and its checksum, or by sizes, reading "
        "nothing.", needs={"if_exists=resume|if_exists=update": "nothing to resume"}, recorded=False,
    )  # fmt: skip
    part: str | None = setting(
        None, "Part of N runs side by side whose shards are written: 3/64, or slurm or kubernetes for this task's own.",
        section="machines", form="part", metavar="K/N", recorded=False,
    )  # fmt: skip

    def __post_init__(self) -> None:
        Settings.__post_init__(self)  # `super()` does not work in a dataclass with slots
        if self.part is not None:
            self._check_alone()

    def _check_alone(self) -> None:
        """Refuse what one part cannot do without knowing of the others."""
        part = option("part", self.part)
        if self.if_exists not in ("error", "resume"):
            given = option("if_exists", self.if_exists)
            remedy = "Remove the old dataset first, or write elsewhere." if "overwrite" in self.if_exists else ""
            expected = f"a new dataset, or {option('if_exists', 'resume')}"
            raise InvalidRequest(part, f"used with {given}", expected=expected, remedy=remedy)
        if self.export:
            remedy = either("`export` what `merge` has made.", "`shardtool index OUTPUT --merge` has --export, too.")
            raise InvalidRequest(part, f"used with {option('export')}", expected="one of them", remedy=remedy)
        changes = [name for name in ("urls", *CHANGES) if getattr(self, name, None)]
        found, why = "", ""
        if changes and not (changes[0] == "urls" and self.max_size is None):  # of URLs, a shard has room for any bytes
            found, why = changes[0], "samples whose sizes are known"
        elif getattr(self, "method", "auto") == "scatter":
            found, why = "method", "samples that are read at their places"
        if found:
            remedy = "Write it in one run, or pack the samples as they are in parts, and change them before or after."
            raise InvalidRequest(part, f"used with {option(found)}", expected=why, remedy=remedy)

    @property
    def readers(self) -> tuple[str, ...]:
        """The readers that notes are about."""
        return readers_of(self.target, self.export)

    def recorded(self) -> dict[str, object]:
        """Return the options that decide the dataset's bytes, where they differ from the default."""
        found = Settings.recorded(self)
        if not any(getattr(self, name, None) for name in _SEEDED):
            found.pop("seed", None)
        return found

    def of_split(self) -> SplitOptions | None:
        """Return how samples are divided; None: they are not."""
        if not self.split and self.split_column is None:
            return None
        shares = parse_shares(shares_text(self.split)) if self.split else ()
        return SplitOptions(shares, self.split_column, self.stratify, self.group_by, self.seed)


@described
class SelectingOptions(OutputOptions):
    """The options by which `create` and `reshard` choose fields, and make metadata and fields of each other.

    Of a folder and of datasets, they act in this order: `columns_from`, then `select_fields`, `drop_fields` and
    `rename_fields`, then `join`, `where`, `values`, `sample`, `sort_by` and `head`. A manifest has its own
    columns and its own order, and takes of these only `where`, `values`, what numbers classes, `sample`, `head` and
    `drop_duplicates`, which comes last.
    """

    columns_from: Texts = setting(
        (), "Field whose values become the samples' metadata: those at the top of JSON, or a plain number or text.",
        section="fields", metavar="FIELD", of="folder",
    )  # fmt: skip
    fields: str | Texts | Mapping[str, str] = setting(
        (), "Fields to keep (jpg,cls), leave out (-json), or rename (JPEG=jpg). Beside fields to keep, those with new "
        "names are kept, too.", metavar="FIELDS", commas=True, of="folder", recorded=False, common=True,
        divide=_of_fields,
    )  # fmt: skip
    select_fields: Texts = setting(
        (), "Fields to keep.", metavar="FIELDS", word=True, of="folder", within_family="fields {}"
    )
    drop_fields: Texts = setting(
        (), "Fields to leave out.", metavar="FIELDS", word=True, of="folder", within_family="fields -{}"
    )
    rename_fields: Pairs = setting(
        (), "New name of a field: JPEG=jpg,jpeg=jpg.", typed="rename-field", form="pairs", metavar="OLD=NEW",
        such_as="jpeg=jpg", commas=True, of="folder", within_family="fields {}",
    )  # fmt: skip
    join: object = setting(
        None, "Table whose columns become the samples' metadata: CSV, Parquet, COCO's JSON ...", form="path",
        metavar="TABLE", of="folder", recorded=False,
    )  # fmt: skip
    on: str | None = setting(
        None, "Column of `join` that holds keys, or paths of files.", metavar="COLUMN", such_as="key",
        shown="key, of COCO's JSON file_name", of="folder", needs={"join": "no table"},
    )  # fmt: skip
    delimiter: str | None = setting(
        None, "Character between the values of a table that is text, of `join` or a manifest: ';', '|' or tab. With "
        "'|', quotation marks are text.", form="delimiter", metavar="CHAR", such_as="|",
        shown="a comma, of a .tsv a tab",
    )  # fmt: skip
    no_header: bool = setting(False, "Take the first row of such a table for values: its columns are called 1, 2, ...")
    values: Pairs = setting(
        (), "Field that is made of a column of metadata.", typed="field", form="pairs",
        metavar="FIELD=COLUMN", common=True,
    )  # fmt: skip
    field: Pairs | None = spelled("values")
    classes: Texts = setting((), "Field of `values` whose labels are numbered.", metavar="FIELD")
    classes_from: object = setting(
        None, "Names of classes in the order of their numbers: a dataset file, a JSON list, or text with a name a "
        "line.", form="path", metavar="FILE", recorded=False,
        needs={"label_from_folder|classes|values": "no labels to number"},
    )  # fmt: skip
    sort_by: str | None = setting(
        None, "Column that orders the samples; from the largest value on: -COLUMN. Those without a value come last.",
        section="shards", metavar="COLUMN", of="folder",
        apart=("shuffle", "place, by which samples stand in the order of their keys"),
        divide=_of_sort_by,
    )  # fmt: skip
    descending: bool = setting(
        False, "Order samples from the largest value of `sort_by` to the smallest.", of="folder",
        within_family="sort-by -COLUMN", needs={"sort_by": "no column to sort by"},
    )  # fmt: skip
    sample: str | float | None = setting(
        None, "Share of the samples, by the hash of the key: 0.01 or 1%.", section="choosing",
        form="sample", metavar="SHARE",
    )  # fmt: skip
    head: int | None = setting(None, "Number of the first samples that are taken.", within=_COUNT, common=True)
    drop_duplicates: bool = setting(
        False, "Leave out samples that hold the same as one whose key comes first. The same images, audio, video and "
        "arrays; where there are none, the same texts.", section="choosing", apart=(
            "if_exists=append, which reads nothing of the samples that are there",
            "part, which reads only its own samples", "urls, whose files are not there yet",
            "stat, by which no file is looked at",
        ),
    )  # fmt: skip
    resize: str | int | tuple[int, int] | None = setting(
        None, "Size of images in pixels; see `resize_mode`.", section="images", form="pixels",
        metavar="N|WxH", common=True,
    )  # fmt: skip
    resize_mode: ResizeMode = setting(
        "shorter", "What that is the size of: the shorter side, the longer one, both, or a frame that images fill and "
        "are cropped to, or fit into and are padded to.",
    )  # fmt: skip
    only_larger: bool = setting(False, "Enlarge no image.", needs={"resize": "nothing is resized"})
    encode: ImageFormat | None = setting(None, "Format that images are written in.")
    quality: int | None = setting(
        None, "Quality of jpg and webp.", within=(1, 100), shown="90", needs={"resize|encode": "no image is written"},
        apart=("encode=png, which is lossless and takes none",),
    )  # fmt: skip
    images: Texts = setting(
        (), "Field that holds images.", typed="image", metavar="FIELD", shown="by its ending", needs=_CHANGES
    )
    image: Texts | None = spelled("images")
    masks: Texts = setting(
        (), "Field that holds images of labels, which are never blended.", typed="mask", metavar="FIELD",
        needs=_CHANGES,
    )  # fmt: skip
    mask: Texts | None = spelled("masks")
    probe: bool = setting(False, "Put width, height and mode of images into the sidecars.")
    exif: bool = setting(False, "Put the EXIF of images into the sidecars, as JSON.")
    hash: Hash | tuple[Hash, ...] | list[Hash] = setting(
        (), "Checksum of each sample's file, as it comes, for the sidecars: " + ", ".join(get_args(Hash)) + ".",
        metavar="NAMES", commas=True,
    )  # fmt: skip
    map: Function | None = setting(
        None, "Function that is called with each sample, a dict, and returns one, some or None.", form="function",
        metavar="MODULE:FUNCTION", apart=("if_exists=update, which compares keys, and a function makes its own",),
    )  # fmt: skip

    @property
    def text_form(self) -> TextForm:
        """How a table that is text is written, as far as its name does not say."""
        return TextForm(self.delimiter or "", not self.no_header)

    def check_joined_form(self) -> None:
        """Refuse to be told how a table is written, of a source that is none, where none is joined.

        Raises:
            InvalidRequest: There is no table.
        """
        if given := self.first_given("" if self.join is not None else "delimiter|no_header"):
            raise InvalidRequest(option(given), "no table", expected=f"a manifest, or {option('join', 'TABLE')}")

    @property
    def found(self) -> dict[str, str]:
        """The columns of metadata that are found as samples are read, and their Arrow types."""
        from shardtool.transform import EXIF, ORIGINAL, PROBED

        before = ORIGINAL if any(name in (self.where or "") for name in ORIGINAL) else {}
        probed = {**PROBED, **before} if self.probe else {}
        return {**probed, **({EXIF: "string"} if self.exif else {}), **dict.fromkeys(self.hash, "string")}

    def of_transform(self) -> Transform | None:
        """Return what is done to samples; None: nothing."""
        fetch = self.of_fetch()
        if fetch is None and not any(getattr(self, name) for name in CHANGES):
            return None
        from shardtool.transform import Transform

        function, found = self.map if isinstance(self.map, str) else "", tuple(self.found.items())
        if self.resize is None and self.encode is None and not self.probe and not self.exif:
            return Transform(None, function, fetch, found)
        from shardtool.transform.image import ImageOptions

        size = None if self.resize is None else pixels("resize", self.resize)
        images = self.pick(ImageOptions, resize=size, fields=tuple(self.images), masks=tuple(self.masks))
        return Transform(images, function, fetch, found)

    def of_fetch(self) -> FetchOptions | None:
        """Return how the files of URLs are fetched; None: there are none."""
        return None


def _fetching(default: Default, text: str, **facts: Any) -> Default:
    """Declare an option about the files of URLs; how they are fetched decides no byte of a dataset."""
    return setting(default, text, **{"needs": _FETCHES, "recorded": False, "within_family": "fetch", **facts})


@described
class CreateOptions(SelectingOptions):
    """The options of `create`; each has an option on the command line, of the same name where no other is given."""

    split_by: str | None = like(
        OutputOptions, "split_by", text="Column of the splits; or folder: the top folder is the split."
    )
    include: Texts = setting(
        (), "Pattern of the files to take: '*.jpg', 'train/*'.", section="folders", metavar="GLOB", of="folder",
        common=True,
    )  # fmt: skip
    exclude: Texts = setting((), "Pattern of files and folders to leave out.", metavar="GLOB", of="folder")
    hidden: bool = setting(False, "Take files whose names start with a dot, Thumbs.db and the like, too.", of="folder")
    complete: bool = setting(
        False, "Refuse samples that lack a file of one of several folders; see `on_error`.", of="folder"
    )
    symlinks: Symlinks = setting(
        "inside", "Which links are followed: those that stay inside of the source, all, or none."
    )
    dots: Dots | None = setting(
        None, "Dot of a name at which its key ends: the first (WebDataset's rule) or the last.",
        shown="first; an error where that would tear names apart",
    )  # fmt: skip
    key_pattern: str | None = setting(
        None, "Regular expression whose first group is the key of a path without its ending: '(.+)_mask'. What is left "
        "over of the name stands before the ending in the field's name: mask.png.", metavar="REGEX", of="folder",
    )  # fmt: skip
    label_from_folder: bool = setting(
        False, "Add the number of the top folder as the field cls.", of="folder", common=True
    )
    split_from_folder: bool = setting(
        False, "Take the top folder as the name of the split, and labels from the folders below; the name takes the "
        "place of {split} in the output.", within_family="split-by folder", of="folder",
        apart=("split", "split_column"),
    )  # fmt: skip
    key: str | None = setting(
        None, "Column of keys.", section="tables", metavar="COLUMN", shown="a column called key, id ...",
        of="manifest",
    )  # fmt: skip
    path: str | None = setting(
        None, "Column of paths of files, whose endings name their fields.", metavar="COLUMN",
        shown="a column called path, file ...", of="manifest",
    )  # fmt: skip
    files: Pairs = setting(
        (), "Column of paths of files that are this field.", typed="file", form="pairs", metavar="FIELD=COLUMN",
        of="manifest",
    )  # fmt: skip
    file: Pairs | None = spelled("files")
    binary: Pairs = setting(
        (), "Column of bytes that are this field.", typed="bytes", form="pairs", metavar="FIELD=COLUMN",
        of="manifest",
    )  # fmt: skip
    bytes: Pairs | None = spelled("binary")
    urls: Pairs = setting(
        (), "Column of URLs (http, https) whose files are this field.", typed="url", form="pairs",
        section="urls", metavar="FIELD=COLUMN", such_as="jpg=url", of="manifest",
    )  # fmt: skip
    url: Pairs | None = spelled("urls")
    fetch: str | Texts | Mapping[str, object] = setting(
        (), "How files are fetched: per-host=4,timeout=20.", metavar="KEY=VALUE", commas=True,
        needs=_FETCHES, recorded=False, divide=lambda kind, value: by_key(kind, "fetch", value),
    )  # fmt: skip
    connections: int = _fetching(256, "Number of files that each worker fetches at once.", within=(1, 4096))
    per_host: int = _fetching(16, "Number of files that all workers fetch at once of one host.", within=(1, 10**6))
    timeout: int = _fetching(10, "Seconds to wait for a connection, and for more bytes.", within=(1, 3600))
    max_time: int = _fetching(60, "Seconds for a file in all.", within=(1, 86_400))
    max_file_size: str | int = _fetching(
        100_000_000, "Maximum size of a file in bytes.", form="size", shown="100MB", recorded=True
    )
    retries: int = _fetching(2, "Number of further tries after a failure that may pass.", within=(0, 20))
    allow_private: bool = _fetching(False, "Ask addresses of this machine and of local networks, too.")
    robots: Literal["obey", "ignore"] = _fetching(
        "obey", "What to do about the header X-Robots-Tag, such as noai.", recorded=True
    )
    user_agent: str | None = _fetching(None, "Name that servers are told.", metavar="TEXT", shown="shardtool/VERSION")
    require: Literal["image"] | None = _fetching(None, "What a file must begin as.", recorded=True)
    max_failed: str | float = _fetching(
        "90%", "Share of a shard's samples that may fail before the run stops.", form="share", metavar="SHARE"
    )
    retry_failed: bool = _fetching(
        False, "Fetch shards again that left samples out, with `if_exists='resume'`.", needs={**_FETCHES, **_RESUMES}
    )
    meta: str | None = setting(
        None, "Columns that go into the field json and the sidecars: all others, none, or these (a,b,c).",
        section="tables", metavar="COLUMNS", shown="all", of="manifest",
    )  # fmt: skip
    root: Folder | None = setting(
        None, "Folder that relative paths count from.", form="path", metavar="FOLDER", shown="the manifest's",
        of="manifest", recorded=False,
    )  # fmt: skip
    allow_outside: bool = setting(False, "Let paths leave the root.", of="manifest", recorded=False)
    size: str | None = setting(
        None, "Column of the sizes of files, for plans that look at none.", typed="size-column", old="size",
        metavar="COLUMN", of="manifest", rare=True,
    )  # fmt: skip
    size_column: str | None = spelled("size")
    stat: bool = setting(
        True, "Whether files are looked at; if not, a plan goes by `size`.", typed="no-stat",
        off="Look at no file: a plan then goes by `size`.", rare=True, of="manifest", recorded=False,
    )  # fmt: skip
    on_duplicate: Literal["error", "first"] = setting(
        "error", "What becomes of a sample whose key the dataset has: an error, or the first one stays.",
        section="rerun", needs={"if_exists=append|if_exists=update": "no dataset to compare keys with"},
        apart=("map, which makes keys",),
    )  # fmt: skip
    plan: Folder | None = setting(
        None, "File with the plan of an equal run, which parts go by, too: the source is not listed again.",
        section="machines", form="path", metavar="FILE", apart=("urls",), recorded=False,
    )  # fmt: skip
    plan_only: Folder | None = setting(
        None, "File that the plan is written to, for `plan`; no shards are written.", form="path", metavar="FILE",
        apart=("plan", "part", "stat", "urls"), recorded=False, rare=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        SelectingOptions.__post_init__(self)
        if self.user_agent is not None and not re.fullmatch(r"[\x20-\x7e]+", self.user_agent):
            raise InvalidRequest(option("user_agent"), repr(self.user_agent[:100]), expected="a line of ASCII")

    def check_for(self, *, manifest: bool) -> None:
        """Refuse options that are about the other kind of source.

        Raises:
            InvalidRequest: There are such.
        """
        if not manifest:
            self.check_joined_form()
        found, other = ("manifest", "folder") if manifest else ("folder", "manifest")
        for name, one in facts(type(self)).items():
            if one.of == other and self.is_given(name):
                remedy = ""
                if name == "meta" and self.join is not None:
                    added = option("values", {"FIELD": "COLUMN"})
                    remedy = f"All columns of {option('join')} go into the sidecars; {added} makes a field of one."
                expected = f"a {other}, or not this option"
                raise InvalidRequest(option(name), f"the source is a {found}", expected=expected, remedy=remedy)

    def recorded(self) -> dict[str, object]:
        """Return the options that decide the dataset's bytes, where they differ from the default."""
        found = SelectingOptions.recorded(self)
        if found.get("meta") == "all":
            del found["meta"]
        return found

    def of_split(self) -> SplitOptions | None:
        """Return how samples are divided; None: they are not."""
        if not self.split_from_folder:
            return OutputOptions.of_split(self)
        return SplitOptions(column=TOP_FOLDER, option="split_from_folder", seed=self.seed)

    def of_fetch(self) -> FetchOptions | None:
        """Return how the files of URLs are fetched; None: there are none."""
        if not self.urls:
            return None
        if find_spec("aiohttp") is None:
            remedy = "Run `pip install 'shardtool[urls]'`."
            raise InvalidRequest(option("urls"), "aiohttp is not installed here", remedy=remedy)
        from shardtool.fetch import USER_AGENT, FetchOptions

        return self.pick(
            FetchOptions,
            timeout_s=self.timeout,
            max_time_s=self.max_time,
            max_bytes=parse_size(self.max_file_size),
            robots=self.robots == "obey",
            user_agent=self.user_agent or USER_AGENT,
            images=self.require == "image",
            max_failed=share("max_failed", self.max_failed),
        )


@described
class ReshardOptions(SelectingOptions):
    """The options of `reshard`; options on the command line have the same names where no other is given.

    `on_duplicate` and `per_class` act between `sample` and `sort_by`; `shuffle` and `split` come after all others.
    """

    add: Texts = setting(
        (), "Dataset whose fields are put beside those of the samples with the same keys.", section="fields",
        form="path", metavar="DATASET", recorded=False,
        apart=("method=scatter, and fields of a sample lie in several files",),
    )  # fmt: skip
    on_duplicate: OnDuplicate = setting(
        "error", "What becomes of samples with one key: an error, new names (KEY-2), or only one stays.",
        section="choosing",
    )  # fmt: skip
    per_class: int | None = setting(
        None, "Maximum number of samples of a class, by the hash of the key and `seed`.", within=_COUNT
    )
    of: str | None = setting(
        None, "Column of the classes of `per_class`.", metavar="COLUMN", shown="cls",
        needs={"per_class": "nothing to choose"},
    )  # fmt: skip
    method: ReadMethod = setting(
        "auto", "How samples in another order are read: each at its place (gather), or in two passes of large reads "
        "and writes (scatter).", section="machines", recorded=False,
    )  # fmt: skip
    memory: str | int = setting(
        "2GB", "Memory that scatter may take, over all workers: 16MB or more.", form="size", recorded=False
    )
    temp_dir: Folder | None = setting(
        None, "Folder of scatter's temporary file.", form="path", metavar="FOLDER", shown="beside the output",
        recorded=False,
    )  # fmt: skip

    def __post_init__(self) -> None:
        SelectingOptions.__post_init__(self)
        self.check_joined_form()
        if (memory := parse_size(self.memory)) < _LEAST_MEMORY:
            expected = f"{show_size(_LEAST_MEMORY)} or more"
            raise InvalidRequest(option("memory"), show_size(memory), expected=expected)


@described
class VerifyOptions(WorkerOptions):
    """The options of `verify`."""

    quick: bool = setting(
        False, "Read no shards: names, sizes, sidecars and numbering only. The report says so.",
        section="checks", common=True,
    )  # fmt: skip
    decode: bool = setting(
        False, "Decode images and JSON fields, too, and check that labels are numbers.", apart=("quick",), common=True
    )
    source: object = setting(
        None, "What the dataset was made from, to be compared by key. Folders, a manifest, or datasets.", form="path",
        section="source", common=True, metavar="PATH", apart=("quick", "sample, which reads only a part"),
    )  # fmt: skip
    target: Target | tuple[Target, ...] | list[Target] = setting(
        (), "Readers that must get names right: webdataset,dali. Known are " + ", ".join(get_args(Target)) + ".",
        section="checks", common=True,
        typed="for", old="target", metavar="READERS", commas=True, apart=("quick",),
    )  # fmt: skip
    sample: float | str | None = setting(
        None, "Share of the shards that are read: 10%. Each `seed` takes others.", form="sample", common=True,
        metavar="SHARE", apart=("quick",),
    )  # fmt: skip
    seed: int | None = setting(
        None, "Seed of `sample`: ten in a row of 10% read all.", within=_SEED, shown="0",
        needs={"sample": "nothing to choose"},
    )  # fmt: skip
    repair: bool = setting(
        False, "Mend what can be mended without guessing. Sidecars and dataset file; with `source`, shards, too.",
        section="source", common=True, apart=("quick", "sample, which reads only a part"),
    )  # fmt: skip
    map: Function | None = setting(
        None, "Function of yours that made the samples, which `repair` calls again. It is code that you must trust.",
        form="function", metavar="MODULE:FUNCTION", needs={**_COMPARES, "repair": "nothing to make again"},
    )  # fmt: skip
    join: object = setting(
        None, "Table of `join` when the dataset was created.", form="path", metavar="TABLE",
        shown="a file of the recorded name: here, in the source, or next to the source or the dataset", needs=_COMPARES,
    )  # fmt: skip
    root: Folder | None = setting(
        None, "Folder that paths of a manifest count from.", form="path",
        metavar="FOLDER", shown="the manifest's", needs=_COMPARES,
    )  # fmt: skip
    allow_outside: bool = setting(False, "Let paths of a manifest leave the root.", needs=_COMPARES)
    symlinks: Symlinks | None = setting(
        None, "Which links in a folder are followed.", shown="as recorded, but never all", needs=_COMPARES
    )


@described
class IndexOptions(WorkerOptions):
    """The options of `index`."""

    checksum: bool = setting(
        False, "Read the payloads, too: for their checksums and the content fingerprint.", section="indexes",
        common=True,
    )  # fmt: skip
    output: Folder | None = setting(
        None, "Folder that is written to. It is above that of the shards; of exports alone, any.", form="path",
        metavar="DIR", shown="beside the shards", common=True,
    )  # fmt: skip
    dots: Dots | None = setting(
        None, "Dot of a member's name at which its key ends: the first or the last.",
        shown="as the dataset file says, or first",
    )  # fmt: skip
    overwrite: bool = setting(
        False, "Replace what is wrong: sidecars, the dataset file, indexes of other tools.", typed="overwrite/f",
        common=True,
    )  # fmt: skip


@described
class ExportOptions(WorkerOptions):
    """How to write the indexes of other tools."""

    output: Folder | None = setting(None, "Folder that they go into.", shown="beside the shards")
    overwrite: bool = setting(
        False, "Replace files of these names; without it, only files with the same bytes may be there."
    )


@described
class CopyOptions(Settings):
    """How to copy a dataset."""

    overwrite: bool = setting(
        False, "Replace another dataset of the same name, and files of its names. What is right stays.",
        section="copying", typed="overwrite/f", common=True,
    )  # fmt: skip
    dry_run: bool = setting(
        False, "Compare, and say what would be copied; write nothing.", typed="dry-run/n", common=True
    )
    workers: int | None = setting(
        None, "Shards that are copied at once.", typed="workers/j", within=_WORKERS, shown="4 to 16", common=True
    )
    trust: Trust | None = setting(
        None, "How shards that are there are known without being read. By times (folder to folder), or by sizes, "
        "where their sidecars are there, too.", common=True,
    )  # fmt: skip
    limit: str | int | None = setting(
        None, "Bytes a second, at most, that are compared and copied, by all threads together: 100MB/s.", form="rate",
        metavar="RATE",
    )  # fmt: skip
    source_endpoint: str | None = setting(
        None, "Server of s3:// that DATASET is read from, where it is another one.", metavar="URL",
        shown="SHARDTOOL_SOURCE_ENDPOINT",
    )  # fmt: skip


@described
class InspectOptions(Settings):
    """How to look at a dataset."""

    full: bool = setting(
        False, "Read the index of every shard, above four million samples, too.", section="pages", rare=True
    )
    looks: int = setting(
        256, "Number of samples that are opened for their images and labels.", within=(0, 10**6), rare=True
    )
    seed: int = setting(0, "Seed of the choice of the samples that are opened.", within=_SEED)


@described
class DiffOptions(WorkerOptions):
    """The options of `diff`; `root`, `allow_outside` and `symlinks` apply if `b` is the source of `a`."""

    ignore_metadata: bool = setting(
        False, "Compare samples and fields only, not the metadata columns.", section="output", common=True
    )
    join: object = like(VerifyOptions, "join", section="source", common=True, needs={})
    root: Folder | None = like(VerifyOptions, "root", common=True, needs={})
    allow_outside: bool = like(VerifyOptions, "allow_outside", common=True, needs={})
    symlinks: Symlinks | None = like(VerifyOptions, "symlinks", common=True, needs={})


@described
class DoctorOptions(Settings):
    """The options of `doctor`."""

    read_only: bool = setting(
        False, "Write nothing: look at what reading needs alone.", section="machines", common=True
    )


@described
class ChoosingOptions(WorkerOptions):
    """The options of the verbs that do something to some samples of datasets."""

    where: str | None = setting(
        None, "Only samples of which this is true: \"label == 'dog'\". It knows the columns of sidecars, and key, "
        "shard, size and fields.", section="choosing", metavar="QUERY", common=True,
    )  # fmt: skip
    keys_from: object = setting(
        None, "File with the key of a sample a line, or - for standard input.", form="path", metavar="FILE",
        apart=("where",), common=True,
    )  # fmt: skip
    dry_run: bool = setting(
        False, "Say what would be done; write nothing.", section="output", typed="dry-run/n", common=True
    )


@described
class ExtractOptions(ChoosingOptions):
    """The options of `extract`."""

    fields: str | Texts | Mapping[str, str] = setting(
        (), "Fields to write (jpg,cls), leave out (-json), or rename (JPEG=jpg).", section="files",
        metavar="FIELDS", word=True, common=True, shown="all, but for the cls that `label_from_folder` made",
    )  # fmt: skip
    by_key: bool = setting(False, "Call files by keys, where `portable` has made these of other names.")
    overwrite: bool = setting(
        False, "Replace files of these names that are there with other bytes.", typed="overwrite/f", common=True
    )


@described
class RemoveOptions(ChoosingOptions):
    """The options of `remove`."""
