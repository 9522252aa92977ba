"""How samples are read: `ReadOptions`, and what a cache of shards must provide."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from shardtool.errors import InvalidRequest, ShardError
from shardtool.request.option_checks import check_choice
from shardtool.values import OnBadSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.dataset.stored import StoredShard


Sample = dict[str, object]


Samples: TypeAlias = "Iterable[Sample | ShardError]"  # errors in place of those that could not be read


class CachedShard(Protocol):
    """A shard in a local cache, held until it is closed."""

    path: str

    def close(self) -> None:
        """Let the cache remove the shard when it needs room."""


class ShardCache(Protocol):
    """A cache of whole shards, which gives each a path that is fast to read."""

    def open(self, shard: StoredShard) -> CachedShard:
        """Return a shard, copied into the cache where it is not there yet."""


@runtime_checkable
class CopyingCache(ShardCache, Protocol):
    """A cache whose shards have a source, from which they are copied."""

    def expect(self, shard: StoredShard) -> None:
        """Copy a shard that is read soon, where there is room."""

    def drop(self, shard: StoredShard) -> None:
        """Remove the copy of a shard, which was found damaged and is held no more."""


@runtime_checkable
class HeldShards(ShardCache, Protocol):
    """The paths of shards that a growing cache holds, for as long as something refers to this."""

    def __iter__(self) -> Iterator[str]:
        """Return the paths."""
        ...


@runtime_checkable
class GrowingCache(Protocol):
    """A cache into which samplers write."""

    def refresh(self) -> HeldShards:
        """Return the shards that are finished by now."""
        ...


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
