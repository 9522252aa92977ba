"""The journal of a writer, `.NAME.writer`, from which another writer resumes.

It is next to the shards until their dataset file exists: one line of JSON with the options, then one line per shard
with what neither the shard nor its sidecar contains. An incomplete line, and all lines after it, are ignored. A
store cannot append to files, so there each shard's line is an object of its own, `.NAME.writer.N`, until a writer
that resumes moves it into the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardtool import values


JOURNAL_VERSION = 1


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What a journal says of a shard.

    Attributes:
        shard: Its name.
        size: Its bytes.
        crc: CRC-32C of the file.
        digest: The content fingerprint of its samples, as hexadecimal digits.
        kinds: Each field of the dataset so far, and what its values are; empty: bytes, or of several types.
        inline: Whether the plan of a table would carry a value of the dataset so far.
        columns: What is known of the columns of metadata so far.
        rounded: How many floats of each field were rounded, in this shard.
        skipped: What was left out since the shard before: key, code and message.
        version: What the store calls the shard: as long as it does, the shard is not read again; empty: it is.
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
    """Return what a line says of a shard.

    Raises:
        ValueError: It is none that a writer notes.
        TypeError: The same.
        AttributeError: The same.
    """
    found = JournalEntry(**line)
    int(found.digest, 16)
    texts = [*found.kinds, *found.rounded, found.shard, found.version]
    texts += [text for row in found.skipped for text in row]
    numbers = [*found.rounded.values(), found.size, found.crc]
    right = {*map(type, texts)} <= {str} and {*map(type, numbers)} <= {int} and {*map(len, found.skipped)} <= {3}
    if not right or not isinstance(found.columns, dict) or type(found.inline) is not bool:
        raise ValueError("no line of a writer")
    return found


def journal_name(base: str) -> str:
    """Return the name of the journal of the dataset `base`."""
    return f".{base}.writer"
