"""Options for reading samples, and the interfaces of shard caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, overload, runtime_checkable

from shardtool.dataclass import dataclass
from shardtool.errors import InvalidRequest, ShardError
from shardtool.request.option_checks import check_choice
from shardtool.values import OnError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.dataset.stored import StoredShard

    class RawSample(dict[str, bytes]):
        """An undecoded sample: its key, and the bytes of each field."""

        @overload
        def __getitem__(self, name: Literal["__key__"]) -> str: ...  # type: ignore[overload-overlap]
        @overload
        def __getitem__(self, name: str) -> bytes: ...
        def __getitem__(self, name: str) -> Any: ...
else:
    RawSample = dict
Sample = dict[str, object]
Samples: TypeAlias = "Iterable[Sample | ShardError]"


class CachedShard(Protocol):
    """A shard that the cache keeps until `close` is called."""

    path: str

    def close(self) -> None:
        """Let the cache remove the shard."""


class ShardCache(Protocol):
    """A cache of whole shards on fast local storage."""

    def open(self, shard: StoredShard) -> CachedShard:
        """Return the cached copy of a shard, or create it."""


@runtime_checkable
class CopyingCache(ShardCache, Protocol):
    """A cache that copies shards from slower storage."""

    def expect(self, shard: StoredShard) -> None:
        """Copy a shard that will be read soon, if there is space."""

    def drop(self, shard: StoredShard) -> None:
        """Remove a damaged copy that is no longer open."""


@runtime_checkable
class HeldShards(ShardCache, Protocol):
    """Shards that a growing cache keeps while this object exists."""

    def __iter__(self) -> Iterator[str]: ...


@runtime_checkable
class GrowingCache(Protocol):
    """A cache to which other processes add new shards."""

    def refresh(self) -> HeldShards:
        """Return the shards finished so far."""
        ...


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading samples; see `read.dataset.open`.

    Attributes:
        fields: Fields to read, or None for all.
        storage: Storage options of remote shards, by the key in their addresses (see `store_options`). An
            unpickled reader registers these options in its process.
    """

    check: bool = False
    cache: ShardCache | None = None
    on_error: OnError = "raise"
    metadata: bool = False
    fields: frozenset[str] | None = None
    storage: Mapping[str, dict[str, Any]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, OnError)
        if self.cache is not None and (isinstance(self.cache, PathLike) or not hasattr(self.cache, "open")):
            raise InvalidRequest("cache", f"{self.cache!r}", expected="shardtool.Cache(FOLDER)")
