"""How samples are read: what `shardtool.open` is asked for, and which fields the stages behind it want."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.request.choices import check_choice
from shardtool.values import OnBadSample

if TYPE_CHECKING:
    from shardtool.reading.files import ShardCache


@dataclass(frozen=True)
class ReadOptions:
    """How samples are read.

    Attributes:
        check: Whether the CRC-32C of each payload is compared with its index.
        cache: Where shards are copied to before they are read.
        on_error: Whether a damaged sample is an error, or left out and counted.
        metadata: Whether samples have the metadata of their sidecar, too.
        fields: The fields that are wanted; None: all.
    """

    check: bool = False
    cache: ShardCache | None = None
    on_error: OnBadSample = "raise"
    metadata: bool = False
    fields: frozenset[str] | None = None

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, OnBadSample)
        if isinstance(self.cache, str | PathLike):
            raise InvalidRequest("cache", f"{self.cache!r}", expected="a shardtool.Cache of that folder")
