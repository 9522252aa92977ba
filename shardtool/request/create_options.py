"""Options of `create` and `reshard`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.request.option_spec import (
    DefaultT,
    Pairs,
    PathLike,
    Texts,
    alias,
    inherit_option,
    option,
    option_specs,
    options_class,
    parse_family,
)
from shardtool.request.option_values import parse_share
from shardtool.request.output_options import COUNT_RANGE, OutputOptions
from shardtool.request.selecting_options import SelectingOptions
from shardtool.request.split_options import SplitOptions
from shardtool.units import format_size, parse_size
from shardtool.values import (
    Dots,
    OnDuplicate,
    ReadMethod,
    Symlinks,
)

if TYPE_CHECKING:
    from shardtool.fetch.options import FetchOptions


TOP_FOLDER = "/"  # name of the column that `--split-by folder` uses; no other column has this name
_MIN_MEMORY_BYTES = 16 * 10**6  # size of the buffers of a shuffle
_REQUIRES_RESUME = {"resume|update": "nothing to resume"}
_REQUIRES_URLS = {"urls": "no URLs to fetch"}


def _fetch_option(default: DefaultT, text: str, **facts: Any) -> DefaultT:
    """Declare a download option; by default these do not affect the dataset and are not recorded."""
    return option(default, text, **{"requires": _REQUIRES_URLS, "recorded": False, "family": "fetch", **facts})


@options_class
class CreateOptions(SelectingOptions):
    """Options of `create`. The command line has the same names unless noted."""

    split_by: str | None = inherit_option(
        OutputOptions,
        "split_by",
        text="Split by this column, by 'folder' (top folder) or by 'file' (table).",
    )
    include: Texts = option(
        (), "Include only files that match: '*.jpg', 'train/*'.", section="folders", metavar="GLOB", of="folder",
        common=True,
    )  # fmt: skip
    exclude: Texts = option((), "Exclude files and folders that match this pattern.", metavar="GLOB", of="folder")
    hidden: bool = option(
        False, "Include hidden files (names that start with a dot, Thumbs.db and similar).", of="folder"
    )
    complete: bool = option(
        False, "Treat samples that lack a file in one of the folders as errors; see `on_error`.", of="folder"
    )
    symlinks: Symlinks = option("inside", "Symbolic links to follow: only those inside the source, all, or none.")
    dots: Dots | None = option(
        None, "Where the key ends in a file name: at the first dot (WebDataset) or the last.",
        shown="first, or an error if that seems wrong",
    )  # fmt: skip
    key_pattern: str | None = option(
        None, "Regular expression whose first group is the key: '(.+)_mask'. It is matched against the whole path "
        "without the extension. The rest of the file name becomes a part of the field name: mask.png.", metavar="REGEX",
        of="folder",
    )  # fmt: skip
    label_from_folder: bool = option(
        False, "Add a field cls with the class number of the top folder.", of="folder", common=True
    )
    split_from_folder: bool = option(
        False, "Use the top folder as the split, and take labels from the folders below. The split name replaces "
        "{split} in the output.", family="split-by folder", of="folder",
        conflicts=("split", "split_column"),
    )  # fmt: skip
    key: str | None = option(
        None, "Column with the sample keys.", section="tables", metavar="COLUMN", shown="a column named key, id ...",
        of="manifest",
    )  # fmt: skip
    path: str | None = option(
        None, "Column with file paths; the extensions become the field names.", metavar="COLUMN",
        shown="a column named path, file ...", of="manifest",
    )  # fmt: skip
    files: Pairs = option(
        (), "Column with the paths of the files for this field.", typed="file", form="pairs", metavar="FIELD=COLUMN",
        of="manifest",
    )  # fmt: skip
    file: Pairs | None = alias("files")
    binary: Pairs = option(
        (), "Column with the bytes of this field.", typed="bytes", form="pairs", metavar="FIELD=COLUMN",
        of="manifest",
    )  # fmt: skip
    bytes: Pairs | None = alias("binary")
    urls: Pairs = option(
        (), "Column with the http or https URLs of the files for this field.", typed="url", form="pairs",
        section="urls", metavar="FIELD=COLUMN", example="jpg=url", of="manifest",
    )  # fmt: skip
    url: Pairs | None = alias("urls")
    fetch: str | Texts | Mapping[str, object] = option(
        (), "Set download options: per-host=4,timeout=20.", metavar="KEY=VALUE", comma_separated=True,
        requires=_REQUIRES_URLS, recorded=False, expand=lambda kind, value: parse_family(kind, "fetch", value),
    )  # fmt: skip
    connections: int = _fetch_option(256, "Number of concurrent downloads per worker.", range=(1, 4096))
    per_host: int = _fetch_option(16, "Number of concurrent downloads per host, across all workers.", range=(1, 10**6))
    timeout: int = _fetch_option(10, "Seconds to wait for a connection, or for more data.", range=(1, 3600))
    max_time: int = _fetch_option(60, "Maximum number of seconds per file.", range=(1, 86_400))
    max_file_size: str | int = _fetch_option(
        100_000_000, "Maximum size of a file in bytes.", form="size", shown="100MB", recorded=True
    )
    retries: int = _fetch_option(2, "Number of retries after a temporary failure.", range=(0, 20))
    allow_private: bool = _fetch_option(False, "Allow addresses of this machine and of private networks.")
    robots: Literal["obey", "ignore"] = _fetch_option(
        "obey", "Obey or ignore X-Robots-Tag headers such as noai.", recorded=True
    )
    user_agent: str | None = _fetch_option(
        None, "User-Agent header to send.", metavar="TEXT", shown="shardtool/VERSION"
    )
    require: Literal["image"] | None = _fetch_option(
        None, "Required file type; files with other content are skipped.", recorded=True
    )
    max_failed: str | float = _fetch_option(
        "90%", "Share of a shard's samples that may fail before the run stops.", form="share", metavar="SHARE"
    )
    retry_failed: bool = _fetch_option(
        False,
        "With `resume`, fetch shards again if they have skipped samples.",
        requires={**_REQUIRES_URLS, **_REQUIRES_RESUME},
    )
    meta: str | None = option(
        None, "Columns to store in the json field and the sidecars: all, none, or some (a,b,c).",
        section="tables", metavar="COLUMNS", shown="all", of="manifest",
    )  # fmt: skip
    root: PathLike | None = option(
        None, "Base folder for relative paths.", form="path", metavar="FOLDER", shown="manifest folder",
        of="manifest", recorded=False,
    )  # fmt: skip
    allow_outside: bool = option(False, "Allow paths outside `root`.", of="manifest", recorded=False)
    size: str | None = option(
        None, "Column with file sizes, to plan without reading file metadata.", typed="size-column", old="size",
        metavar="COLUMN", of="manifest", rare=True,
    )  # fmt: skip
    size_column: str | None = alias("size")
    stat: bool = option(
        True, "Whether to read file sizes and times; if not, the plan uses `size`.", typed="no-stat",
        off="Do not read file sizes and times; plan with the sizes from `size`.", rare=True, of="manifest",
        recorded=False,
    )  # fmt: skip
    on_duplicate: Literal["error", "first"] = option(
        "error", "What to do if the dataset already has a sample's key: fail, or keep the first.",
        section="rerun", requires={"append|update": "no dataset to compare keys with"},
        conflicts=("map, which creates keys",),
    )  # fmt: skip
    plan: PathLike | None = option(
        None, "Use the plan in this file instead of listing the source. All parts of a run can share the file.",
        section="machines", form="path", metavar="FILE", conflicts=("urls",), recorded=False,
    )  # fmt: skip
    plan_only: PathLike | None = option(
        None, "Write the plan to this file, for `plan`; write no shards.", form="path", metavar="FILE",
        conflicts=("plan", "part", "stat", "urls"), recorded=False, rare=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        SelectingOptions.__post_init__(self)
        if self.user_agent is not None and not re.fullmatch(r"[\x20-\x7e]+", self.user_agent):
            raise InvalidRequest(option_text("user_agent"), repr(self.user_agent[:100]), expected="one line of ASCII")

    def check_for(self, *, manifest: bool) -> None:
        """Refuse options that do not apply to a manifest, or to a folder.

        Raises:
            InvalidRequest: Such an option is given.
        """
        if not manifest:
            self.check_joined_form()
        source, other = ("manifest", "folder") if manifest else ("folder", "manifest")
        for name, spec in option_specs(type(self)).items():
            if spec.of == other and self.is_given(name):
                remedy = ""
                if name == "meta" and self.join is not None:
                    added = option_text("values", {"FIELD": "COLUMN"})
                    stored = f"All columns of {option_text('join')} are stored in the sidecars."
                    remedy = f"{stored} Use {added} to create a field from one."
                expected = f"a {other}, or not this option"
                raise InvalidRequest(option_text(name), f"the source is a {source}", expected=expected, remedy=remedy)

    def recorded(self) -> dict[str, object]:
        """Return the options that affect the dataset and differ from their defaults."""
        recorded = SelectingOptions.recorded(self)
        if recorded.get("meta") == "all":
            del recorded["meta"]
        return recorded

    def make_split_options(self) -> SplitOptions | None:
        """Return the options for splitting; None without splits."""
        if not self.split_from_folder:
            return OutputOptions.make_split_options(self)
        return SplitOptions(column=TOP_FOLDER, option="split_from_folder", seed=self.seed)

    def make_fetch_options(self) -> FetchOptions | None:
        """Return the download options; None without URLs."""
        if not self.urls:
            return None
        if find_spec("aiohttp") is None:
            remedy = "Run `pip install 'shardtool[urls]'`."
            raise InvalidRequest(option_text("urls"), "aiohttp is not installed", remedy=remedy)
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
    """Options of `reshard`. The command line has the same names unless noted.

    `on_duplicate` and `per_class` are applied between `sample` and `sort_by`, `shuffle` and `split` last.
    """

    add: Texts = option(
        (), "Add the fields of this dataset to samples with the same keys.", section="fields",
        form="path", metavar="DATASET", recorded=False,
        conflicts=("method=scatter, which needs all fields of a sample in one file",),
    )  # fmt: skip
    on_duplicate: OnDuplicate = option(
        "error", "What to do with samples that share a key: fail, rename (KEY-2), or keep one.",
        section="choosing",
    )  # fmt: skip
    per_class: int | None = option(
        None, "Maximum number of samples per class, chosen by a hash of key and `seed`.", range=COUNT_RANGE
    )
    of: str | None = option(
        None, "Column with the classes for `per_class`.", metavar="COLUMN", shown="cls",
        requires={"per_class": "nothing to choose"},
    )  # fmt: skip
    method: ReadMethod = option(
        "auto", "Read samples individually (gather) or in two sequential passes (scatter).", section="machines",
        recorded=False,
    )  # fmt: skip
    memory: str | int = option(
        "2GB", "Memory limit for scatter across all workers, at least 16MB.", form="size", recorded=False
    )
    temp_dir: PathLike | None = option(
        None, "Folder for scatter's temporary file.", form="path", metavar="FOLDER", shown="next to the output",
        recorded=False,
    )  # fmt: skip

    def __post_init__(self) -> None:
        SelectingOptions.__post_init__(self)
        self.check_joined_form()
        if (memory := parse_size(self.memory)) < _MIN_MEMORY_BYTES:
            expected = f"at least {format_size(_MIN_MEMORY_BYTES)}"
            raise InvalidRequest(option_text("memory"), format_size(memory), expected=expected)
