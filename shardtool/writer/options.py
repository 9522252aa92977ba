"""The options of `ShardWriter`."""

from __future__ import annotations

from typing import TypedDict

from shardtool import values
from shardtool.request.base_options import BaseOptions
from shardtool.request.create_options import CreateOptions
from shardtool.request.option_spec import inherit_option, option, options_class


class WriterKeywords(TypedDict, total=False):
    """The options as keyword arguments; see `WriterOptions`."""

    max_size: str | int | None
    max_count: int | None
    oversize: values.Oversize
    dots: values.Dots | None
    target: tuple[values.Target, ...]
    on_error: values.OnError
    resume: bool
    overwrite: bool
    part: int | str | None
    parts: int | None


@options_class
class WriterOptions(BaseOptions):
    """The options of a `ShardWriter`. Options of `create` have the same meaning."""

    max_size: str | int | None = inherit_option(CreateOptions, "max_size")
    max_count: int | None = inherit_option(CreateOptions, "max_count")
    oversize: values.Oversize = inherit_option(CreateOptions, "oversize")
    dots: values.Dots | None = inherit_option(CreateOptions, "dots")
    target: tuple[values.Target, ...] = inherit_option(CreateOptions, "target")
    on_error: values.OnError = option(
        "raise", "What to do with a sample that cannot be written: raise, or skip it and list it in out.skipped.",
        recorded=False,
    )  # fmt: skip
    resume: bool = option(
        False,
        "Continue after the last shard that an earlier writer published.",
        conflicts=("overwrite",),
        recorded=False,
    )
    overwrite: bool = option(False, "Replace the existing dataset once the new one is complete.", recorded=False)
    part: int | str | None = option(
        None, "Part that this writer writes: a number, with `parts`, or a name.", recorded=False
    )
    parts: int | None = option(None, "Total number of parts.", recorded=False)
