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


TOP_FOLDER = "/"  # the column of a folder that `--split-by folder` divides by: no other has that name


_MIN_MEMORY_BYTES = 16 * 10**6  # bytes: what the buffers of a shuffle take


_REQUIRES_RESUME = {"if_exists=resume": "nothing to resume"}


_REQUIRES_URLS = {"urls": "no URLs to fetch"}


def _fetch_option(default: DefaultT, text: str, **facts: Any) -> DefaultT:
    """Declare an option about the files of URLs; how they are fetched decides no byte of a dataset."""
    return option(default, text, **{"requires": _REQUIRES_URLS, "recorded": False, "family": "fetch", **facts})


@options_class
class CreateOptions(SelectingOptions):
    """The options of `create`; each has an option on the command line, of the same name where no other is given."""

    split_by: str | None = inherit_option(
        OutputOptions, "split_by", text="Column of the splits; or folder: the top folder is the split."
    )
    include: Texts = option(
        (), "Pattern of the files to take: '*.jpg', 'train/*'.", section="folders", metavar="GLOB", of="folder",
        common=True,
    )  # fmt: skip
    exclude: Texts = option((), "Pattern of files and folders to leave out.", metavar="GLOB", of="folder")
    hidden: bool = option(False, "Take files whose names start with a dot, Thumbs.db and the like, too.", of="folder")
    complete: bool = option(
        False, "Refuse samples that lack a file of one of several folders; see `on_error`.", of="folder"
    )
    symlinks: Symlinks = option(
        "inside", "Which links are followed: those that stay inside of the source, all, or none."
    )
    dots: Dots | None = option(
        None, "Dot of a name at which its key ends: the first (WebDataset's rule) or the last.",
        shown="first; an error where that would tear names apart",
    )  # fmt: skip
    key_pattern: str | None = option(
        None, "Regular expression whose first group is the key of a path without its ending: '(.+)_mask'. What is left "
        "over of the name stands before the ending in the field's name: mask.png.", metavar="REGEX", of="folder",
    )  # fmt: skip
    label_from_folder: bool = option(
        False, "Add the number of the top folder as the field cls.", of="folder", common=True
    )
    split_from_folder: bool = option(
        False, "Take the top folder as the name of the split, and labels from the folders below; the name takes the "
        "place of {split} in the output.", family="split-by folder", of="folder",
        conflicts=("split", "split_column"),
    )  # fmt: skip
    key: str | None = option(
        None, "Column of keys.", section="tables", metavar="COLUMN", shown="a column called key, id ...",
        of="manifest",
    )  # fmt: skip
    path: str | None = option(
        None, "Column of paths of files, whose endings name their fields.", metavar="COLUMN",
        shown="a column called path, file ...", of="manifest",
    )  # fmt: skip
    files: Pairs = option(
        (), "Column of paths of files that are this field.", typed="file", form="pairs", metavar="FIELD=COLUMN",
        of="manifest",
    )  # fmt: skip
    file: Pairs | None = alias("files")
    binary: Pairs = option(
        (), "Column of bytes that are this field.", typed="bytes", form="pairs", metavar="FIELD=COLUMN",
        of="manifest",
    )  # fmt: skip
    bytes: Pairs | None = alias("binary")
    urls: Pairs = option(
        (), "Column of URLs (http, https) whose files are this field.", typed="url", form="pairs",
        section="urls", metavar="FIELD=COLUMN", example="jpg=url", of="manifest",
    )  # fmt: skip
    url: Pairs | None = alias("urls")
    fetch: str | Texts | Mapping[str, object] = option(
        (), "How files are fetched: per-host=4,timeout=20.", metavar="KEY=VALUE", comma_separated=True,
        requires=_REQUIRES_URLS, recorded=False, expand=lambda kind, value: parse_family(kind, "fetch", value),
    )  # fmt: skip
    connections: int = _fetch_option(256, "Number of files that each worker fetches at once.", range=(1, 4096))
    per_host: int = _fetch_option(16, "Number of files that all workers fetch at once of one host.", range=(1, 10**6))
    timeout: int = _fetch_option(10, "Seconds to wait for a connection, and for more bytes.", range=(1, 3600))
    max_time: int = _fetch_option(60, "Seconds for a file in all.", range=(1, 86_400))
    max_file_size: str | int = _fetch_option(
        100_000_000, "Maximum size of a file in bytes.", form="size", shown="100MB", recorded=True
    )
    retries: int = _fetch_option(2, "Number of further tries after a failure that may pass.", range=(0, 20))
    allow_private: bool = _fetch_option(False, "Ask addresses of this machine and of local networks, too.")
    robots: Literal["obey", "ignore"] = _fetch_option(
        "obey", "What to do about the header X-Robots-Tag, such as noai.", recorded=True
    )
    user_agent: str | None = _fetch_option(
        None, "Name that servers are told.", metavar="TEXT", shown="shardtool/VERSION"
    )
    require: Literal["image"] | None = _fetch_option(None, "What a file must begin as.", recorded=True)
    max_failed: str | float = _fetch_option(
        "90%", "Share of a shard's samples that may fail before the run stops.", form="share", metavar="SHARE"
    )
    retry_failed: bool = _fetch_option(
        False,
        "Fetch shards again that left samples out, with `if_exists='resume'`.",
        requires={**_REQUIRES_URLS, **_REQUIRES_RESUME},
    )
    meta: str | None = option(
        None, "Columns that go into the field json and the sidecars: all others, none, or these (a,b,c).",
        section="tables", metavar="COLUMNS", shown="all", of="manifest",
    )  # fmt: skip
    root: PathLike | None = option(
        None, "Folder that relative paths count from.", form="path", metavar="FOLDER", shown="the manifest's",
        of="manifest", recorded=False,
    )  # fmt: skip
    allow_outside: bool = option(False, "Let paths leave the root.", of="manifest", recorded=False)
    size: str | None = option(
        None, "Column of the sizes of files, for plans that look at none.", typed="size-column", old="size",
        metavar="COLUMN", of="manifest", rare=True,
    )  # fmt: skip
    size_column: str | None = alias("size")
    stat: bool = option(
        True, "Whether files are looked at; if not, a plan goes by `size`.", typed="no-stat",
        off="Look at no file: a plan then goes by `size`.", rare=True, of="manifest", recorded=False,
    )  # fmt: skip
    on_duplicate: Literal["error", "first"] = option(
        "error", "What becomes of a sample whose key the dataset has: an error, or the first one stays.",
        section="rerun", requires={"if_exists=append|if_exists=update": "no dataset to compare keys with"},
        conflicts=("map, which makes keys",),
    )  # fmt: skip
    plan: PathLike | None = option(
        None, "File with the plan of an equal run, which parts go by, too: the source is not listed again.",
        section="machines", form="path", metavar="FILE", conflicts=("urls",), recorded=False,
    )  # fmt: skip
    plan_only: PathLike | None = option(
        None, "File that the plan is written to, for `plan`; no shards are written.", form="path", metavar="FILE",
        conflicts=("plan", "part", "stat", "urls"), recorded=False, rare=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        SelectingOptions.__post_init__(self)
        if self.user_agent is not None and not re.fullmatch(r"[\x20-\x7e]+", self.user_agent):
            raise InvalidRequest(option_text("user_agent"), repr(self.user_agent[:100]), expected="a line of ASCII")

    def check_for(self, *, manifest: bool) -> None:
        """Refuse options that are about the other kind of source.

        Raises:
            InvalidRequest: There are such.
        """
        if not manifest:
            self.check_joined_form()
        found, other = ("manifest", "folder") if manifest else ("folder", "manifest")
        for name, one in option_specs(type(self)).items():
            if one.of == other and self.is_given(name):
                remedy = ""
                if name == "meta" and self.join is not None:
                    added = option_text("values", {"FIELD": "COLUMN"})
                    remedy = f"All columns of {option_text('join')} go into the sidecars; {added} makes a field of one."
                expected = f"a {other}, or not this option"
                raise InvalidRequest(option_text(name), f"the source is a {found}", expected=expected, remedy=remedy)

    def recorded(self) -> dict[str, object]:
        """Return the options that decide the dataset's bytes, where they differ from the default."""
        found = SelectingOptions.recorded(self)
        if found.get("meta") == "all":
            del found["meta"]
        return found

    def make_split_options(self) -> SplitOptions | None:
        """Return how samples are divided; None: they are not."""
        if not self.split_from_folder:
            return OutputOptions.make_split_options(self)
        return SplitOptions(column=TOP_FOLDER, option="split_from_folder", seed=self.seed)

    def make_fetch_options(self) -> FetchOptions | None:
        """Return how the files of URLs are fetched; None: there are none."""
        if not self.urls:
            return None
        if find_spec("aiohttp") is None:
            remedy = "Run `pip install 'shardtool[urls]'`."
            raise InvalidRequest(option_text("urls"), "aiohttp is not installed here", remedy=remedy)
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
    """The options of `reshard`; options on the command line have the same names where no other is given.

    `on_duplicate` and `per_class` act between `sample` and `sort_by`; `shuffle` and `split` come after all others.
    """

    add: Texts = option(
        (), "Dataset whose fields are put beside those of the samples with the same keys.", section="fields",
        form="path", metavar="DATASET", recorded=False,
        conflicts=("method=scatter, and fields of a sample lie in several files",),
    )  # fmt: skip
    on_duplicate: OnDuplicate = option(
        "error", "What becomes of samples with one key: an error, new names (KEY-2), or only one stays.",
        section="choosing",
    )  # fmt: skip
    per_class: int | None = option(
        None, "Maximum number of samples of a class, by the hash of the key and `seed`.", range=COUNT_RANGE
    )
    of: str | None = option(
        None, "Column of the classes of `per_class`.", metavar="COLUMN", shown="cls",
        requires={"per_class": "nothing to choose"},
    )  # fmt: skip
    method: ReadMethod = option(
        "auto", "How samples in another order are read: each at its place (gather), or in two passes of large reads "
        "and writes (scatter).", section="machines", recorded=False,
    )  # fmt: skip
    memory: str | int = option(
        "2GB", "Memory that scatter may take, over all workers: 16MB or more.", form="size", recorded=False
    )
    temp_dir: PathLike | None = option(
        None, "Folder of scatter's temporary file.", form="path", metavar="FOLDER", shown="beside the output",
        recorded=False,
    )  # fmt: skip

    def __post_init__(self) -> None:
        SelectingOptions.__post_init__(self)
        self.check_joined_form()
        if (memory := parse_size(self.memory)) < _MIN_MEMORY_BYTES:
            expected = f"{format_size(_MIN_MEMORY_BYTES)} or more"
            raise InvalidRequest(option_text("memory"), format_size(memory), expected=expected)
