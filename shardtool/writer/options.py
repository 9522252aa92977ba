"""What can be asked of a `ShardWriter`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict, get_args

from shardtool.errors import InvalidRequest
from shardtool.request.choices import check_choices, check_ranges
from shardtool.values import Dots, IfExists, OnBadSample, Oversize, Target, parse_size
from shardtool.wording import flag


class Keywords(TypedDict, total=False):
    """The options as keyword arguments; see `WriterOptions`."""

    max_size: str | int | None
    max_count: int | None
    oversize: Oversize
    dots: Dots | None
    target: tuple[Target, ...]
    on_error: OnBadSample
    resume: bool
    overwrite: bool
    part: int | str | None
    parts: int | None


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """What can be asked of a `ShardWriter`; what `create` has, too, means the same there.

    Attributes:
        max_size: Bytes of a finished shard at most: a number, or text such as `500MB`.
        max_count: Samples in a shard at most.
        oversize: What becomes of a sample that fits in no shard: `error`, `alone` or `skip`.
        dots: The dot at which keys end in the names of a tar's members; None: the first, and the last where only that
            divides them.
        target: Readers that the notes are about; none: all that are known.
        on_error: `raise` at a sample that cannot be written, or `skip` and list it in `out.skipped`.
        resume: Go on after the last shard that an earlier writer has published.
        overwrite: Replace the dataset that is there, once the new one is complete.
        part: This writer's part of a run of several: a number, with `parts`, or a name.
        parts: How many parts there are.
    """

    max_size: str | int | None = None
    max_count: int | None = None
    oversize: Oversize = "error"
    dots: Dots | None = None
    target: tuple[Target, ...] = ()
    on_error: OnBadSample = "raise"
    resume: bool = False
    overwrite: bool = False
    part: int | str | None = None
    parts: int | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        check_ranges(self)
        if self.max_size is not None:
            parse_size(self.max_size)
        if self.resume and self.overwrite:
            raise InvalidRequest(flag("resume"), f"used with {flag('overwrite')}", expected="one of them")

    @property
    def if_exists(self) -> IfExists:
        """What to do about an earlier output, as `create` calls it."""
        return "resume" if self.resume else "overwrite" if self.overwrite else "error"

    @property
    def readers(self) -> tuple[str, ...]:
        """The readers that notes are about."""
        return self.target or get_args(Target)

    def recorded(self) -> dict[str, object]:
        """Return the options that decide the dataset's bytes, where they differ from the default, as `create` does."""
        size = None if self.max_size is None else parse_size(self.max_size)
        found = {"max_size": size, "max_count": self.max_count, "oversize": self.oversize, "dots": self.dots}
        return {name: value for name, value in found.items() if value != getattr(_DEFAULT, name)}


_DEFAULT = WriterOptions()


def options_of(given: Keywords) -> WriterOptions:
    """Return the options that keyword arguments mean.

    Raises:
        InvalidRequest: One of them is no option, or cannot be.
    """
    known = WriterOptions.__dataclass_fields__
    if unknown := [name for name in given if name not in known]:
        raise InvalidRequest("ShardWriter", f"no option {unknown[0]!r}", expected=f"one of {', '.join(known)}")
    return WriterOptions(**given)
