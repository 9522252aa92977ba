"""What can be asked of each verb: one value, checked as far as it can be without the source."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from fractions import Fraction
from importlib.util import find_spec
from typing import TYPE_CHECKING, get_args

from shardtool.errors import InvalidRequest
from shardtool.request.choices import (
    Folder,
    Function,
    Pairs,
    Shares,
    check_address,
    check_choices,
    check_ranges,
    keep_texts,
    pairs,
    shares_text,
)
from shardtool.request.part import check_part
from shardtool.request.split_options import SplitOptions, parse_shares
from shardtool.values import (
    Dots,
    Executor,
    IfExists,
    ImageFormat,
    OnDuplicate,
    OnError,
    OnKnown,
    Oversize,
    Place,
    ReadMethod,
    Require,
    ResizeMode,
    Robots,
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
    from shardtool.transform.steps import Transform


TOP_FOLDER = "/"  # the column of a folder that `--split-from-folder` divides by: no other has that name

_SHARE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)(%?)")

OF_WORKERS = ("workers", "executor", "address")  # what every verb that starts some can be asked for
OF_SOURCE = ("map", "root", "allow_outside", "symlinks")  # what the user says of the source: no file is trusted in it
_LEAST_MEMORY = 16 * 10**6  # bytes: what the buffers of a shuffle take
_MOST_PIXELS = 65_535  # a side: what JPEG has room for
_PIXELS = re.compile(r"[0-9]{1,5}")
_OF_FOLDERS = (
    "include", "exclude", "hidden", "complete", "label_from_folder", "split_from_folder", "columns_from",
    "select_fields", "drop_fields", "rename_fields", "join", "on", "sort_by", "descending",
)  # fmt: skip
_OF_URLS = (
    "connections", "per_host", "timeout", "max_time", "max_file_size", "retries", "allow_private", "robots",
    "user_agent", "require", "max_failed", "retry_failed",
)  # fmt: skip
_OF_MANIFESTS = ("key", "path", "files", "binary", "urls", "meta", "root", "allow_outside", "size", "stat", *_OF_URLS)
_NOT_RECORDED = {
    "workers", "start_method", "if_exists", "on_error", "root", "classes_from", "allow_outside", "stat", "export",
    "join", "method", "memory", "temp_dir", "max_removed", "trust", "target", "part", "plan", "plan_only", "executor",
    "address", "connections", "per_host", "timeout", "max_time", "retries", "allow_private", "user_agent", "max_failed",
    "retry_failed",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """The options of every verb that writes shards; options on the command line have the same names.

    Attributes:
        max_size: Bytes of a finished shard at most: a number, or text such as `500MB`.
        max_count: Samples in a shard at most.
        shards: The number of shards, exactly; with splits, of each; of an append, of the new ones.
        equal_count: Shards hold equally many samples, give or take one.
        shards_multiple_of: The number of shards is a multiple of this.
        oversize: What becomes of a sample that fits in no shard: `error`, `alone` or `skip`.
        place: Samples go into shards in `order`, or by the `hash` of their keys: then one sample more or less changes
            one shard, in which samples stand in the order of their keys.
        shuffle: Put the samples into one global random order; with `hash`, those of each shard.
        seed: The seed of that order, and of splits.
        where: Only samples that this query takes, such as `bi == 'dog' and width > 256`.
        split: Shares: `{"train": 0.8, "val": 0.2}`, or text such as `train=0.8,val=0.1,test=0.1`.
        split_column: The column that holds the split.
        stratify: A column of labels; each keeps the shares.
        group_by: A column of groups; each stays in one split.
        portable: Make names safe for every reader.
        target: Readers that the notes are about; none: all that are known.
        export: Other tools whose indexes to write, too: see `export`.
        on_error: `stop` at a sample that cannot be read, or `skip` and list it.
        if_exists: `error`, `resume` or `overwrite`; `resume-overwrite`: keep what is right, whatever else is replaced.
        max_removed: To resume: the share of samples that may be there no more, such as `10%` or 0.1.
        trust: To resume: a finished shard of an unchanged source is known by `time` and its checksum, or by its `size`.
        part: Only the shards of one of several runs side by side: `3/64`, or `slurm`; `merge` makes the dataset of all.
        workers: Processes; None: the cores that this process may use.
        start_method: `auto`, `fork` or `spawn`.
        executor: Where tasks run: `local`, on this machine, or on the nodes of a `ray` cluster.
        address: The cluster's: `auto`, `ray://host:port` or `host:port`; None: RAY_ADDRESS, or the one of this machine.
    """

    max_size: str | int | None = None
    max_count: int | None = None
    shards: int | None = None
    equal_count: bool = False
    shards_multiple_of: int = 1
    oversize: Oversize = "error"
    place: Place = "order"
    shuffle: bool = False
    seed: int = 0
    where: str | None = None
    split: Shares | None = None
    split_column: str | None = None
    stratify: str | None = None
    group_by: str | None = None
    portable: bool = False
    target: tuple[Target, ...] = ()
    export: tuple[str, ...] = ()
    on_error: OnError = "stop"
    if_exists: IfExists = "error"
    max_removed: str | float = "10%"
    trust: Trust = "time"
    part: str | None = None
    workers: int | None = None
    start_method: StartMethod = "auto"
    executor: Executor = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        keep_texts(self)
        check_choices(self)
        check_ranges(self)
        check_address(self.executor, self.address)
        if self.max_size is not None:
            parse_size(self.max_size)
        share("max_removed", self.max_removed)
        if self.trust != "time" and "resume" not in self.if_exists:
            resume = option("if_exists", "resume")
            raise InvalidRequest(option("trust", self.trust), "nothing to resume", expected=f"{resume}, too")
        if self.part is not None:
            check_part(self.part)
            self._check_alone()
        if self.place == "hash":
            other = option("equal_count") if self.equal_count else option("oversize", self.oversize)
            if self.equal_count or self.oversize == "alone":
                raise InvalidRequest(option("place", "hash"), f"used with {other}", expected="one of them")
        of_split = [name for name in ("stratify", "group_by") if getattr(self, name)]
        if of_split and not self.split:
            raise InvalidRequest(
                option(of_split[0]), "no shares", expected=f"{option('split', 'train=0.8,val=0.2')} or the like"
            )

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
        changes = [name for name in ("urls", "resize", "encode", "probe", "map") if getattr(self, name, None)]
        found, why = "", ""
        if changes and not (changes[0] == "urls" and self.max_size is None):  # of URLs, a shard has room for any bytes
            found, why = changes[0], "samples whose sizes are known"
        elif getattr(self, "method", "auto") == "scatter":
            found, why = "method", "samples that are read at their places"
        if found:
            remedy = "Write it in one run, or pack the samples as they are in parts, and change them before or after."
            raise InvalidRequest(part, f"used with {option(found)}", expected=why, remedy=remedy)

    def of_transform(self) -> Transform | None:
        """Return what is done to samples; None: nothing."""
        return None

    def of_shuffle(self) -> ReshardOptions | None:
        """Return how samples that lie in shards are brought into another order; None: they lie in none."""
        return None

    @property
    def readers(self) -> tuple[str, ...]:
        """The readers that notes are about."""
        return self.target or get_args(Target)

    def recorded(self) -> dict[str, object]:
        """Return the options that decide the dataset's bytes, where they differ from the default."""
        found = {}
        seeded = self.shuffle or self.split
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name not in _NOT_RECORDED and value != one.default and not (one.name == "seed" and not seeded):
                found[one.name] = list(value) if isinstance(value, tuple) else value
        for name in ("max_size", "max_file_size"):
            if name in found:
                found[name] = parse_size(getattr(self, name))  # 500MB and 500000000 are the same request
        return found

    def of_split(self) -> SplitOptions | None:
        """Return how samples are divided; None: they are not."""
        if not self.split and self.split_column is None:
            return None
        shares = parse_shares(shares_text(self.split)) if self.split else ()
        return SplitOptions(shares, self.split_column, self.stratify, self.group_by, self.seed)


@dataclass(frozen=True, slots=True)
class SelectingOptions(OutputOptions):
    """The options by which `create` and `reshard` choose fields, and make metadata and fields of each other.

    Of a folder and of datasets, they act in this order: `columns_from`, then `select_fields`, `drop_fields` and
    `rename_fields`, then `join`, `where`, `values` and `sort_by`. A manifest has its own columns and its own order, and
    takes of these only `values` and what numbers classes.

    Attributes:
        columns_from: JSON fields: the top-level texts, numbers and truths of each become the samples' metadata.
        select_fields: Only these fields.
        drop_fields: All fields but these.
        rename_fields: `--rename-field`: `{"old": "new"}`, or texts such as `old=new`.
        join: A table whose columns become the samples' metadata: a file, or a table in memory.
        on: Its column of keys; of a folder, it may hold the paths of files.
        values: `--field`: `{"cls": "COLUMN"}`, or texts such as `cls=COLUMN`: a field made of a column of metadata, in
            place of the one of that name.
        classes: Those of `values` that are labels, to be numbered.
        classes_from: The names of classes, in the order of their numbers: a dataset file, a JSON or text file, a list,
            or lists by field; None: they are numbered in the order of their bytes.
        sort_by: A column to order the samples by.
        descending: From the largest to the smallest.
    """

    columns_from: tuple[str, ...] = ()
    select_fields: tuple[str, ...] = ()
    drop_fields: tuple[str, ...] = ()
    rename_fields: Pairs = ()
    join: object = None
    on: str | None = None
    values: Pairs = ()
    classes: tuple[str, ...] = ()
    classes_from: object = None
    sort_by: str | None = None
    descending: bool = False

    def __post_init__(self) -> None:
        OutputOptions.__post_init__(self)  # `super()` does not work in a dataclass with slots
        if (self.join is None) != (self.on is None):
            given, other = ("on", "join") if self.join is None else ("join", "on")
            expected = "a table" if self.join is None else f"the table's column of keys, such as {option('on', 'key')}"
            raise InvalidRequest(option(given), f"no {option(other)}", expected=expected)
        if self.sort_by is not None and self.shuffle:
            raise InvalidRequest(option("sort_by"), f"used with {option('shuffle')}", expected="one order")
        if self.sort_by is not None and self.place == "hash":
            found = f"used with {option('place', 'hash')}, by which samples stand in the order of their keys"
            raise InvalidRequest(option("sort_by"), found, expected="one order")
        if self.descending and self.sort_by is None:
            raise InvalidRequest(option("descending"), f"no {option('sort_by')}", expected="a column to sort by")
        pairs("rename_fields", self.rename_fields, "OLD=NEW, such as jpeg=jpg")
        pairs("values", self.values)


@dataclass(frozen=True, slots=True)
class CreateOptions(SelectingOptions):
    """The options of `create`; each has an option on the command line, of the same name where no other is given.

    Attributes:
        include: Folders only: globs; where there are any, a file must match one.
        exclude: Folders only: globs; files and folders that match one are left out.
        hidden: Folders only: names that start with a dot count.
        complete: Several folders only: a sample without a file of each of them cannot be packed; see `on_error`.
        symlinks: `inside` (the tree), `follow` or `skip`.
        dots: The key ends at the `first` dot of a name, or the `last`; None: the first, unless names look torn.
        label_from_folder: Add the field `cls`, the number of the top folder.
        split_from_folder: Folders only: the top folder names the split; labels are from those below.
        key: Manifests only: the column with the keys.
        path: Manifests only: the column with the path of a file, whose ending names its field.
        files: `--file`, of a manifest: `{"jpg": "COLUMN"}`, or texts such as `jpg=COLUMN`: a path whose bytes are the
            field `jpg`.
        binary: `--bytes`, of a manifest: the bytes themselves, given as `files` are.
        urls: `--url`, of a manifest: http or https URLs, given as `files` are.
        connections: URLs: how many each worker fetches at once.
        per_host: URLs: how many of one host all workers fetch at once; each worker one at least.
        timeout: URLs: seconds to connect, and to wait for more bytes.
        max_time: URLs: seconds for a file in all.
        max_file_size: URLs: bytes of a file at most.
        retries: URLs: further tries after a failure that may pass.
        allow_private: URLs: addresses of this machine and of local networks may be asked, too.
        robots: URLs: `obey` the header X-Robots-Tag, or `ignore` it.
        user_agent: URLs: what requests say of who asks; None: `shardtool/VERSION`.
        require: URLs: files must begin as an `image` does; None: they may be anything.
        max_failed: URLs: the run ends where more than this share of a shard's samples failed, such as `90%` or 0.9.
        retry_failed: URLs, to resume: shards of which samples failed are fetched again.
        meta: Manifests only: `all` other columns, `none`, or some with commas between them, are the samples' metadata.
        root: Manifests only: what relative paths count from; None: its folder.
        allow_outside: Manifests only: whether paths may leave the root.
        size: Manifests only: the column with the file's size, for `stat=False`.
        stat: `--no-stat` is False: look at no file, for a dry run.
        resize: Images: `256`, `(640, 480)` or `640x480`.
        resize_mode: What that means: the `shorter` or `longer` side, the `exact` size, or to `crop` or `pad` to it.
        only_larger: Enlarge no image.
        encode: Images become `jpg`, `png` or `webp`.
        quality: The quality of jpg and webp, 1 to 100.
        images: `--image`: the fields that are images; none: those with an image's ending.
        masks: `--mask`: the fields that are images of labels, never blended.
        probe: Images: width, height and mode go into the sidecars.
        map: A function of a module, or its name `package.module:function`: called with each sample. The run records
            the name, and workers import it.
        on_duplicate: To append: a sample whose key the dataset has is an `error`, or stays what it was `first`.
        plan: A file that `plan_only` wrote for the same source and options: the source is not listed again.
        plan_only: Of a dry run: the plan is written to this file, for runs and parts that go by it.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    hidden: bool = False
    complete: bool = False
    symlinks: Symlinks = "inside"
    dots: Dots | None = None
    label_from_folder: bool = False
    split_from_folder: bool = False
    key: str | None = None
    path: str | None = None
    files: Pairs = ()
    binary: Pairs = ()
    urls: Pairs = ()
    connections: int = 256
    per_host: int = 16
    timeout: int = 10
    max_time: int = 60
    max_file_size: str | int = 100_000_000
    retries: int = 2
    allow_private: bool = False
    robots: Robots = "obey"
    user_agent: str | None = None
    require: Require | None = None
    max_failed: str | float = "90%"
    retry_failed: bool = False
    meta: str = "all"
    root: Folder | None = None
    allow_outside: bool = False
    size: str | None = None
    stat: bool = True
    resize: str | int | tuple[int, int] | None = None
    resize_mode: ResizeMode = "shorter"
    only_larger: bool = False
    encode: ImageFormat | None = None
    quality: int | None = None
    images: tuple[str, ...] = ()
    masks: tuple[str, ...] = ()
    probe: bool = False
    map: Function | None = None
    on_duplicate: OnKnown = "error"
    plan: Folder | None = None
    plan_only: Folder | None = None

    def __post_init__(self) -> None:
        SelectingOptions.__post_init__(self)  # `super()` does not work in a dataclass with slots
        self._check_on_duplicate()
        self._check_urls()
        of_images = [name for name in ("only_larger", "quality", "images", "masks") if getattr(self, name)]
        if of_images and self.resize is None and self.encode is None and not self.probe:
            raise InvalidRequest(
                option(of_images[0]), "nothing to do to images", expected=f"{option('resize')} or {option('encode')}"
            )
        others = [name for name in ("split", "split_column") if getattr(self, name) is not None]
        if self.split_from_folder and others:
            raise InvalidRequest(option("split_from_folder"), f"used with {option(others[0])}", expected="one of them")
        asked_by = f"{option('label_from_folder')} or {option('classes')}"
        check_classes_from(self.classes_from, asked_by, self.label_from_folder or self.classes)
        self._check_plan_only()

    def _check_plan_only(self) -> None:
        wrong = {"plan": self.plan is not None, "part": self.part is not None, "stat": not self.stat}
        other = next((name for name, given in wrong.items() if given), None)
        if self.plan_only is not None and other:
            raise InvalidRequest(option("plan_only"), f"used with {option(other)}", expected="one of them")

    def _check_urls(self) -> None:
        pairs("urls", self.urls, "FIELD=COLUMN, such as jpg=url")
        planned = next((name for name in ("plan", "plan_only") if self.urls and getattr(self, name) is not None), None)
        if planned is not None:  # it would hold the secrets of URLs, and save no look at any file
            raise InvalidRequest(option(planned), f"used with {option('urls')}", expected="one of them")
        parse_size(self.max_file_size)
        share("max_failed", self.max_failed)
        if self.user_agent is not None and not re.fullmatch(r"[\x20-\x7e]+", self.user_agent):
            raise InvalidRequest(option("user_agent"), repr(self.user_agent[:100]), expected="a line of ASCII")
        if self.retry_failed and "resume" not in self.if_exists:
            raise InvalidRequest(option("retry_failed"), "nothing to resume", expected=option("if_exists", "resume"))

    def _check_on_duplicate(self) -> None:
        if self.on_duplicate == "error":
            return
        first = option("on_duplicate", self.on_duplicate)
        if self.if_exists not in ("append", "append-resume"):
            raise InvalidRequest(first, "no dataset to compare keys with", expected=option("if_exists", "append"))
        if self.map is not None:
            raise InvalidRequest(first, f"used with {option('map')}, which makes keys", expected="one of them")

    def recorded(self) -> dict[str, object]:
        """Return the options that decide the dataset's bytes, where they differ from the default."""
        found = OutputOptions.recorded(self)
        if self.resize is not None:
            width, height = _parse_resize(self.resize)
            found["resize"] = f"{width}x{height}"  # 256 and "256x256" are the same request
        return found

    def check_for(self, *, manifest: bool) -> None:
        """Refuse options that are about the other kind of source.

        Raises:
            InvalidRequest: There are such.
        """
        defaults = {one.name: one.default for one in fields(self)}
        for name in _OF_FOLDERS if manifest else _OF_MANIFESTS:
            if getattr(self, name) != defaults[name]:
                found, other = ("a manifest", "a folder") if manifest else ("a folder", "a manifest")
                raise InvalidRequest(option(name), f"the source is {found}", expected=f"{other}, or not this option")
        for name in _OF_URLS if manifest and not self.urls else ():
            if getattr(self, name) != defaults[name]:
                raise InvalidRequest(option(name), "no URLs to fetch", expected=option("urls", {"jpg": "COLUMN"}))

    def of_split(self) -> SplitOptions | None:
        """Return how samples are divided; None: they are not."""
        if not self.split_from_folder:
            return OutputOptions.of_split(self)
        return SplitOptions(column=TOP_FOLDER, option="split_from_folder", seed=self.seed)

    def of_transform(self) -> Transform | None:
        """Return what is done to samples; None: nothing."""
        if self.resize is None and self.encode is None and not self.probe and not self.map and not self.urls:
            return None
        from shardtool.transform.steps import Transform

        function, fetch = self.map if isinstance(self.map, str) else "", self._of_fetch()
        if self.resize is None and self.encode is None and not self.probe:
            return Transform(None, function, fetch)
        from shardtool.transform.image import ImageOptions

        images = ImageOptions(
            resize=None if self.resize is None else _parse_resize(self.resize),
            resize_mode=self.resize_mode,
            only_larger=self.only_larger,
            encode=self.encode,
            quality=self.quality,
            fields=tuple(self.images),
            masks=tuple(self.masks),
            probe=self.probe,
        )
        return Transform(images, function, fetch)

    def _of_fetch(self) -> FetchOptions | None:
        """Return how the files of URLs are fetched; None: there are none."""
        if not self.urls:
            return None
        if find_spec("aiohttp") is None:
            remedy = "Run `pip install 'shardtool[urls]'`."
            raise InvalidRequest(option("urls"), "aiohttp is not installed here", remedy=remedy)
        from shardtool.fetch import USER_AGENT, FetchOptions

        return FetchOptions(
            connections=self.connections,
            per_host=self.per_host,
            timeout_s=self.timeout,
            max_time_s=self.max_time,
            max_bytes=parse_size(self.max_file_size),
            retries=self.retries,
            allow_private=self.allow_private,
            robots=self.robots == "obey",
            user_agent=self.user_agent or USER_AGENT,
            images=self.require == "image",
            max_failed=share("max_failed", self.max_failed),
            retry_failed=self.retry_failed,
        )


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The options of `verify`.

    Attributes:
        quick: Read no shards: names, sizes, sidecars, numbering.
        decode: Decode every image and JSON field, too, and check that labels are numbers.
        source: What the dataset was made from, compared by key: a folder or a list of them, an archive, a manifest, or
            of `reshard` a dataset or a list of them; None: nothing is compared.
        target: Readers that the names must be safe for.
        sample: Read only this share of the shards' bytes, `0.1` or `10%`, in whole shards and one at least; None: all.
        seed: Decides which shards these are: seeds in a row take other ones, until all were read; None: 0.
        repair: Mend what can be mended without guessing.
        map: The function of `create --map`, which a repair may call to make shards again.
        root: Manifests only: what its relative paths count from; None: its folder.
        allow_outside: Manifests only: whether its paths may leave the root.
        symlinks: Folders only: `inside` (the tree), `follow` or `skip`; None: as the dataset file says,
            but `follow`, which only the user can ask for.
        workers: Processes; None: the cores that this process may use.
        start_method: `auto`, `fork` or `spawn`.
        executor: Where tasks run: `local`, on this machine, or on the nodes of a `ray` cluster.
        address: The cluster's: `auto`, `ray://host:port` or `host:port`; None: RAY_ADDRESS, or the one of this machine.
    """

    quick: bool = False
    decode: bool = False
    source: object = None
    target: tuple[Target, ...] = ()
    sample: float | str | None = None
    seed: int | None = None
    repair: bool = False
    map: Function | None = None
    root: Folder | None = None
    allow_outside: bool = False
    symlinks: Symlinks | None = None
    workers: int | None = None
    start_method: StartMethod = "auto"
    executor: Executor = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        keep_texts(self)
        check_choices(self)
        check_ranges(self)
        check_address(self.executor, self.address)
        for name in OF_SOURCE:
            if getattr(self, name) and self.source is None:
                raise InvalidRequest(
                    option(name), "no source that it could be about", expected=f"{option('source')}, too"
                )
        if self.map and not self.repair:
            raise InvalidRequest(option("map"), "nothing to make again", expected=f"{option('repair')}, too")
        if self.quick:
            for name in ("decode", "repair", "source", "target", "sample"):
                if getattr(self, name):
                    raise InvalidRequest(option(name), f"used with {option('quick')}", expected="one of them")
        self._check_sample()

    def _check_sample(self) -> None:
        if self.sample is None:
            if self.seed is not None:
                raise InvalidRequest(option("seed"), "nothing to choose", expected=f"{option('sample')}, too")
            return
        if not share("sample", self.sample):
            raise InvalidRequest(option("sample"), repr(self.sample), expected="a share above 0, such as 0.1 or 10%")
        for name in ("repair", "source"):
            if getattr(self, name):
                raise InvalidRequest(
                    option(name), f"used with {option('sample')}, which reads only a part", expected="one of them"
                )


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """The options of `index`.

    Attributes:
        checksum: Read the payloads too, for their checksums and the content fingerprint.
        output: The folder for sidecars and dataset file; None: beside the shards.
        dots: Keys end at the `first` dot of a member's name, or the `last`; None: as the dataset file says, or first.
        overwrite: Replace sidecars and a dataset file that were read and found wrong. What is missing needs none.
        workers: Processes; None: the cores that this process may use.
        start_method: `auto`, `fork` or `spawn`.
        executor: Where tasks run: `local`, on this machine, or on the nodes of a `ray` cluster.
        address: The cluster's: `auto`, `ray://host:port` or `host:port`; None: RAY_ADDRESS, or the one of this machine.
    """

    checksum: bool = False
    output: Folder | None = None
    dots: Dots | None = None
    overwrite: bool = False
    workers: int | None = None
    start_method: StartMethod = "auto"
    executor: Executor = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        check_ranges(self)
        check_address(self.executor, self.address)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """How to write the indexes of other tools.

    Attributes:
        output: The folder that they go into; None: beside the shards.
        overwrite: Replace files of these names; without it, only files with the same bytes may be there.
        workers: Processes, where shards must be read; None: the cores that this process may use.
        start_method: `auto`, `fork` or `spawn`.
        executor: Where tasks run: `local`, on this machine, or on the nodes of a `ray` cluster.
        address: The cluster's: `auto`, `ray://host:port` or `host:port`; None: RAY_ADDRESS, or the one of this machine.
    """

    output: Folder | None = None
    overwrite: bool = False
    workers: int | None = None
    start_method: StartMethod = "auto"
    executor: Executor = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        check_ranges(self)
        check_address(self.executor, self.address)


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """How to copy a dataset.

    Attributes:
        overwrite: Replace another dataset of the same name, and other files of its names. What is right stays, what is
            missing is copied, and shards that were appended are added without it.
        dry_run: Only compare, and say what would be copied.
        workers: Shards at a time; None: 4.
        trust: A shard that is there, with its sidecar, is known without reading it by its `size`, or by its `time`,
            which a copy from a folder into another has of its source; None: it is read.
    """

    overwrite: bool = False
    dry_run: bool = False
    workers: int | None = None
    trust: Trust | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        check_ranges(self)


@dataclass(frozen=True, slots=True)
class InspectOptions:
    """How to look at a dataset.

    Attributes:
        full: Read every sidecar, however many samples there are; otherwise a choice of them above four million.
        looks: How many samples are opened for their images, and for labels where no index has their checksums and they
            are too many to be read.
        seed: Decides which samples these are.
    """

    full: bool = False
    looks: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        check_choices(self)
        check_ranges(self)


def share(name: str, text: str | float) -> Fraction:
    """Return a share such as `0.1` or `10%`, exactly as it is written.

    Raises:
        InvalidRequest: It is none from 0 to 1.
    """
    match = _SHARE.fullmatch(str(text))
    found = Fraction(match[1]) / (100 if match[2] else 1) if match else Fraction(-1)
    if not 0 <= found <= 1:
        raise InvalidRequest(option(name), repr(text), expected="a share from 0 to 1, such as 0.1 or 10%")
    return found


def check_classes_from(given: object, asked_by: str, labels: object) -> None:
    """Refuse a list of classes where nothing is to be numbered.

    Raises:
        InvalidRequest: Nothing is.
    """
    if given is not None and not labels:
        raise InvalidRequest(option("classes_from"), "no labels to number", expected=asked_by)


def _parse_resize(given: str | int | tuple[int, int]) -> tuple[int, int]:
    text = "x".join(map(str, given)) if isinstance(given, tuple) else str(given)
    width, cross, height = text.lower().partition("x")
    if not _PIXELS.fullmatch(width) or (cross and not _PIXELS.fullmatch(height)):
        expected = f"a number of pixels, or WIDTHxHEIGHT, {_MOST_PIXELS:,} at most"
        raise InvalidRequest(option("resize"), repr(text[:100]), expected=expected)
    sides = int(width), int(height or width)
    if max(sides) > _MOST_PIXELS:
        raise InvalidRequest(option("resize"), repr(text), expected=f"{_MOST_PIXELS:,} pixels a side at most")
    return sides


# What `reshard` can be asked for.


@dataclass(frozen=True, slots=True)
class ReshardOptions(SelectingOptions):
    """The options of `reshard`; options on the command line have the same names where no other is given.

    After those of `SelectingOptions`, they act in this order: `sample`, `on_duplicate`, `sort_by`, `head`; `shuffle`
    and `split` come after all of them.

    Attributes:
        sample: A share of the samples, by the hash of their keys: `0.01` or `1%`.
        on_duplicate: What becomes of samples with one key: `error`, `rename`, or only the `first` or the `last` stays.
        head: Only the first samples, so many.
        method: How samples in another order are read: `gather`, each at its place; `scatter`, in two passes; `auto`.
        memory: What `scatter` may hold in memory.
        temp_dir: Where `scatter` writes; None: beside the output.
    """

    sample: str | float | None = None
    on_duplicate: OnDuplicate = "error"
    head: int | None = None
    method: ReadMethod = "auto"
    memory: str | int = "2GB"
    temp_dir: Folder | None = None

    def __post_init__(self) -> None:
        SelectingOptions.__post_init__(self)  # `super()` does not work in a dataclass with slots
        check_classes_from(self.classes_from, option("classes", ("FIELD",)), self.classes)
        if (memory := parse_size(self.memory)) < _LEAST_MEMORY:
            expected = f"{show_size(_LEAST_MEMORY)} or more"
            raise InvalidRequest(option("memory"), show_size(memory), expected=expected)

    def of_shuffle(self) -> ReshardOptions:
        """Return how samples that lie in shards are brought into another order."""
        return self
