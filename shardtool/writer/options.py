"""The options of `ShardWriter`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from shardtool import values
from shardtool.request.base_options import BaseOptions
from shardtool.request.create_options import CreateOptions
from shardtool.request.option_spec import Given, option, options_class


class WriterKeywords(TypedDict, total=False):
    """`WriterOptions` as keyword arguments."""

    max_size: str | int | None
    max_count: int | None
    oversize: values.Oversize
    dots: values.Dots | None
    target: values.Target | tuple[values.Target, ...] | list[values.Target]
    on_error: values.OnError
    resume: bool
    overwrite: bool
    part: int | str | None
    parts: int | None
    storage_options: Mapping[str, Any] | None


@options_class
class WriterOptions(BaseOptions):
    """The options of a `ShardWriter`. Options that `create` also accepts have the same meaning.

    Attributes:
        on_error: What to do with a sample that cannot be written: raise, or skip it and list it in out.skipped.
        resume: Continue after the last shard that an interrupted writer published.
        overwrite: Replace the existing dataset once the new one is complete.
        part: The part that this writer writes: a name, or a number if `parts` is given.
        parts: Total number of parts.
    """

    max_size: str | int | None = option.like(CreateOptions.max_size)
    max_count: int | None = option.like(CreateOptions.max_count)
    oversize: values.Oversize = option.like(CreateOptions.oversize)
    dots: values.Dots | None = option.like(CreateOptions.dots)
    target: values.Target | tuple[values.Target, ...] | list[values.Target] = option.like(CreateOptions.target)
    on_error: values.OnError = option("raise", recorded=False)
    resume: bool = option(False, recorded=False)
    overwrite: bool = option(False, recorded=False, conflicts=(Given(resume),))
    part: int | str | None = option(None, recorded=False)
    parts: int | None = option(None, recorded=False)
