"""The lines of a writer's journal: the options, and facts that neither a shard nor its sidecar records."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from shardtool.dataclass import dataclass

if TYPE_CHECKING:
    from shardtool import values


JOURNAL_VERSION = 1


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """The journal line of a shard.

    Attributes:
        kinds: As in `SampleEncoder`.
        inline: As in `SampleEncoder`.
        skipped: Key, code and message of samples skipped since the previous shard.
        version: The store's version of the shard, with which a resumed run need not read the shard; empty if there is
            none.
    """

    shard: str
    size: int
    crc: int
    digest: str
    kinds: dict[str, values.ValueType | str]
    inline: bool
    columns: dict[str, object]
    rounded: dict[str, int] = field(default_factory=dict)
    skipped: list[list[str]] = field(default_factory=list)
    version: str = ""


def parse_entry(line: dict[str, Any]) -> JournalEntry:
    """Return the entry of a line. An invalid line raises `ValueError`, `TypeError` or `AttributeError`."""
    entry = JournalEntry(**line)
    int(entry.digest, 16)
    texts = [*entry.kinds, *entry.rounded, entry.shard, entry.version]
    texts += [text for row in entry.skipped for text in row]
    numbers = [*entry.rounded.values(), entry.size, entry.crc]
    is_valid = {*map(type, texts)} <= {str} and {*map(type, numbers)} <= {int} and {*map(len, entry.skipped)} <= {3}
    if not is_valid or not isinstance(entry.columns, dict) or type(entry.inline) is not bool:
        raise ValueError("not a journal line")
    return entry
