"""Options of `create` and `reshard`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.request.option_spec import (
    DeclareOption,
    Given,
    Needs,
    OptionSpec,
    Pairs,
    PathLike,
    Texts,
    option,
    option_specs,
    options_class,
    parse_keys,
)
from shardtool.request.option_values import parse_share
from shardtool.request.output_options import COUNT_RANGE, OutputOptions
from shardtool.request.selecting_options import SelectingOptions
from shardtool.request.split_options import SplitOptions
from shardtool.units import format_size, parse_size
from shardtool.values import Dots, OnDuplicate, ReadMethod, Symlinks

if TYPE_CHECKING:
    from shardtool.fetch.options import FetchOptions


TOP_FOLDER = "/"  # name of the column with each sample's top folder; no other column can have this name
_MIN_MEMORY_BYTES = 16 * 10**6


def _need_urls() -> tuple[Needs, ...]:
    return (Needs("no URLs to fetch", Given(CreateOptions.url)),)


# Download options are not recorded by default, because most do not affect the dataset.
_fetch_option = DeclareOption(partial(OptionSpec, parent="fetch", recorded=False, requires=_need_urls))


@options_class
class CreateOptions(SelectingOptions):
    """Options of `create`.

    Attributes:
        split_by: Create a split for each value of this column. 'folder' creates a split for each top folder, and 'file'
            a split for each input table.
        include: Include only files that match: '*.jpg', 'train/*'.
        exclude: Exclude files and folders that match this pattern.
        hidden: Include hidden files (names that start with a dot, Thumbs.db and similar).
        complete: Require every sample to have a file in each source folder. Set `on_error` to skip incomplete samples.
        symlinks: Symbolic links to follow: only those inside the source, all, or none.
        dots: End the key at the first dot of the file name (WebDataset), or at the last.
        key_pattern: Regular expression whose first group is the key: '(.+)_mask'. The pattern is matched against the
            whole path without the extension. The rest of the file name becomes a part of the field name: a_mask.png is
            the field mask.png of the sample a.
        label_from_folder: Add a field cls with the class number of the top folder.
        split_from_folder: Use the top folder as the split, and take labels from the folders below. The split name
            replaces {split} in the output.
        key: Column with the sample keys.
        path: Column with file paths. The extensions become the field names.
        file: Create a field from the files whose paths are in a column: jpg=image_path.
        bytes: Create a field from the bytes in a column: jpg=image.
        url: Create a field from the files whose URLs are in a column: jpg=url.
        fetch: Set download options: per-host=4,timeout=20.
        connections: Number of concurrent downloads per worker.
        per_host: Number of concurrent downloads per host, across all workers.
        timeout: Seconds to wait for a connection, or for more data.
        max_time: Maximum number of seconds per file.
        max_file_size: Maximum size of a file in bytes.
        retries: Number of retries after a temporary failure.
        allow_private: Allow addresses of this machine and of private networks.
        robots: Obey or ignore X-Robots-Tag headers such as noai.
        user_agent: User-Agent header to send.
        require: Skip files that are not of this type.
        max_failed: Stop the run if more than this share of a shard's samples fail.
        retry_failed: With `resume`, recreate shards that have failed samples.
        meta: Columns to store in the json field and the sidecars: all, none, or some (a,b,c).
        root: Base folder for relative paths.
        allow_outside: Allow paths outside `root`.
        size_column: Column with file sizes, to plan without reading file metadata.
        stat: Read file sizes and times. If False, plan with the sizes from `size_column`.
        on_duplicate: What to do with a new sample whose key already exists: fail, or skip it.
        plan: Use the plan in this file instead of listing the source. All runs with `part` can use this file.
        plan_only: Write the plan to this file, but no shards. Pass the file to `plan`.
    """

    split_by: str | None = option.like(OutputOptions.split_by)
    classes_from: object = option.like(
        SelectingOptions.classes_from,
        requires=lambda: (
            Needs(
                "no field is converted to class numbers",
                Given(CreateOptions.label_from_folder),
                Given(CreateOptions.classes),
                Given(CreateOptions.field),
            ),
        ),
    )
    include: Texts = option((), section="folders", metavar="GLOB", only_for="folder", common=True)
    exclude: Texts = option((), metavar="GLOB", only_for="folder")
    hidden: bool = option(False, only_for="folder")
    complete: bool = option(False, only_for="folder")
    symlinks: Symlinks = option("inside")
    dots: Dots | None = option(None, default_text="first, or an error if that seems wrong")
    key_pattern: str | None = option(None, metavar="REGEX", only_for="folder")
    label_from_folder: bool = option(False, only_for="folder", common=True)
    split_from_folder: bool = option(
        False,
        parent="split-by folder",
        only_for="folder",
        conflicts=(Given(OutputOptions.split), Given(OutputOptions.split_column)),
    )
    key: str | None = option(
        None, section="tables", metavar="COLUMN", default_text="a column named key, id ...", only_for="manifest"
    )
    path: str | None = option(None, metavar="COLUMN", default_text="a column named path, file ...", only_for="manifest")
    file: Pairs = option((), form="pairs", metavar="FIELD=COLUMN", only_for="manifest")
    bytes: Pairs = option((), form="pairs", metavar="FIELD=COLUMN", only_for="manifest")
    url: Pairs = option(
        (),
        form="pairs",
        section="urls",
        conflicts=(Given(SelectingOptions.drop_duplicates, "which compares files"),),
        metavar="FIELD=COLUMN",
        example="jpg=url",
        only_for="manifest",
    )
    fetch: str | Texts | Mapping[str, object] = option(
        (),
        metavar="KEY=VALUE",
        comma_separated=True,
        requires=(Needs("no URLs to fetch", Given(url)),),
        recorded=False,
        expand=lambda options_type, value: parse_keys(options_type, "fetch", value),
    )
    connections: int = _fetch_option(256, range=(1, 4096))
    per_host: int = _fetch_option(16, range=(1, 10**6))
    timeout: int = _fetch_option(10, range=(1, 3600))
    max_time: int = _fetch_option(60, range=(1, 86400))
    max_file_size: str | int = _fetch_option(100000000, form="size", default_text="100MB", recorded=True)
    retries: int = _fetch_option(2, range=(0, 20))
    allow_private: bool = _fetch_option(False)  # noqa: FBT003 - the default
    robots: Literal["obey", "ignore"] = _fetch_option("obey", recorded=True)
    user_agent: str | None = _fetch_option(None, metavar="TEXT", default_text="shardtool/VERSION")
    require: Literal["image"] | None = _fetch_option(None, recorded=True)
    max_failed: str | float = _fetch_option("90%", form="share", metavar="SHARE")
    retry_failed: bool = _fetch_option(
        False,  # noqa: FBT003 - the default
        requires=(
            Needs("no URLs to fetch", Given(url)),
            Needs("nothing to resume", Given(OutputOptions.resume), Given(OutputOptions.update)),
        ),
    )
    meta: str | None = option(None, section="tables", metavar="COLUMNS", default_text="all", only_for="manifest")
    root: PathLike | None = option(
        None, form="path", metavar="FOLDER", default_text="manifest folder", only_for="manifest", recorded=False
    )
    allow_outside: bool = option(False, only_for="manifest", recorded=False)
    size_column: str | None = option(None, former_name="size", metavar="COLUMN", only_for="manifest", rare=True)
    stat: bool = option(
        True,
        cli_names="no-stat",
        off="Do not read file sizes and times; plan with the sizes from `size_column`.",
        rare=True,
        only_for="manifest",
        recorded=False,
        conflicts=(Given(SelectingOptions.drop_duplicates, "which reads the files"),),
    )
    on_duplicate: Literal["error", "first"] = option(
        "error",
        section="rerun",
        requires=(Needs("no dataset to compare keys with", Given(OutputOptions.append), Given(OutputOptions.update)),),
        conflicts=(Given(SelectingOptions.map, "which creates keys"),),
    )
    plan: PathLike | None = option(
        None, section="machines", form="path", metavar="FILE", conflicts=(Given(url),), recorded=False
    )
    plan_only: PathLike | None = option(
        None,
        form="path",
        metavar="FILE",
        conflicts=(Given(plan), Given(OutputOptions.part), Given(stat), Given(url)),
        recorded=False,
        rare=True,
    )

    def __post_init__(self) -> None:
        SelectingOptions.__post_init__(self)
        if self.user_agent is not None and not re.fullmatch(r"[\x20-\x7e]+", self.user_agent):
            raise InvalidRequest(option_text("user_agent"), repr(self.user_agent[:100]), expected="one line of ASCII")

    def check_for(self, *, manifest: bool) -> None:
        """Raise InvalidRequest if an option does not apply to this kind of source: a manifest or a folder."""
        if not manifest:
            self.check_table_options()
        source, other = ("manifest", "folder") if manifest else ("folder", "manifest")
        for name, spec in option_specs(type(self)).items():
            if spec.only_for == other and self.is_given(name):
                remedy = ""
                if name == "meta" and self.join is not None:
                    added = option_text("field", {"FIELD": "COLUMN"})
                    stored = f"All columns of {option_text('join')} are stored in the sidecars."
                    remedy = f"{stored} Use {added} to create a field from one."
                expected = f"a {other}, or not this option"
                raise InvalidRequest(option_text(name), f"the source is a {source}", expected=expected, remedy=remedy)

    def recorded(self) -> dict[str, object]:
        recorded = SelectingOptions.recorded(self)
        if recorded.get("meta") == "all":
            del recorded["meta"]
        return recorded

    def make_split_options(self) -> SplitOptions | None:
        if not self.split_from_folder:
            return OutputOptions.make_split_options(self)
        return SplitOptions(column=TOP_FOLDER, option="split_from_folder", seed=self.seed)

    def make_fetch_options(self) -> FetchOptions | None:
        if not self.url:
            return None
        if find_spec("aiohttp") is None:
            remedy = "Run `pip install 'shardtool[urls]'`."
            raise InvalidRequest(option_text("url"), "aiohttp is not installed", remedy=remedy)
        from shardtool.fetch.options import USER_AGENT, FetchOptions

        return self.pick(
            FetchOptions,
            timeout_s=self.timeout,
            max_time_s=self.max_time,
            max_bytes=parse_size(self.max_file_size),
            robots=self.robots == "obey",
            user_agent=self.user_agent or USER_AGENT,
            images=self.require == "image",
            max_failed=parse_share("max_failed", self.max_failed),
        )


@options_class
class ReshardOptions(SelectingOptions):
    """Options of `reshard`.

    After `sample` and before `sort_by`, these options are applied: `rename_keys`, `on_duplicate` and `per_class`.

    Attributes:
        add: Dataset whose fields are added to the samples with the same keys.
        on_duplicate: What to do with samples that share a key: fail, rename (KEY-2), or keep one.
        per_class: Keep at most N samples per class, chosen by a hash of key and `seed`.
        of: Column with the classes for `per_class`.
        method: Read samples individually (gather) or in two sequential passes (scatter).
        memory: Maximum memory of all workers together during scatter. The minimum is 16MB.
        temp_dir: Folder for scatter's temporary file.
    """

    method: ReadMethod = option("auto", section="machines", recorded=False)
    memory: str | int = option("2GB", form="size", recorded=False)
    temp_dir: PathLike | None = option(
        None, form="path", metavar="FOLDER", default_text="next to the output", recorded=False
    )
    add: Texts = option(
        (),
        section="fields",
        form="path",
        metavar="DATASET",
        recorded=False,
        conflicts=(Given(method, "which needs all fields of a sample in one file").as_value("scatter"),),
    )
    on_duplicate: OnDuplicate = option("error", section="choosing")
    per_class: int | None = option(None, range=COUNT_RANGE)
    of: str | None = option(
        None, metavar="COLUMN", default_text="cls", requires=(Needs("no limit per class", Given(per_class)),)
    )

    def __post_init__(self) -> None:
        SelectingOptions.__post_init__(self)
        self.check_table_options()
        if (memory := parse_size(self.memory)) < _MIN_MEMORY_BYTES:
            expected = f"at least {format_size(_MIN_MEMORY_BYTES)}"
            raise InvalidRequest(option_text("memory"), format_size(memory), expected=expected)
