"""What a writer notes of each shard that it has published, so that another one can go on where it was killed.

The file `.NAME.writer` lies beside the shards until their dataset file is there: a line of JSON of what was asked for,
then one for each shard, with what neither the shard nor its sidecar can say. A line that a kill cut short is passed
over, as is all that follows it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from shardtool.errors import ShardError, StoreFailed
from shardtool.skipped import Skipped
from shardtool.storage.staging import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.storage.staging import Folder
    from shardtool.values import Number

_VERSION = 1


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What a journal says of a shard.

    Attributes:
        shard: Its name.
        size: Its bytes.
        crc: CRC-32C of the file.
        digest: The content fingerprint of its samples, as hexadecimal digits.
        kinds: Each field of the dataset so far, and the number that it stands for; empty: none.
        inline: Whether the plan of a table would carry a value of the dataset so far.
        columns: What is known of the columns of metadata so far.
        rounded: How many floats of each field were rounded, in this shard.
        skipped: What was left out since the shard before: key, code and message.
    """

    shard: str
    size: int
    crc: int
    digest: str
    kinds: dict[str, Number | str]
    inline: bool
    columns: dict[str, object]
    rounded: dict[str, int] = field(default_factory=dict)
    skipped: list[list[str]] = field(default_factory=list)


class Journal:
    """The journal of a dataset.

    Args:
        folder: Where the dataset lies.
        base: Its name.
        asked: What was asked for, as plain data: another writer goes on only if that is the same.

    Attributes:
        started: Whether the journal is this writer's.
    """

    def __init__(self, folder: Folder, base: str, asked: dict[str, object]) -> None:
        self._folder, self.name = folder, journal_name(base)
        self.started = False
        self._asked = json.loads(json.dumps({"version": _VERSION, **asked}))

    def read(self) -> tuple[dict[str, Any], list[JournalEntry]] | None:
        """Return what was asked for, and the shards, as far as they can be read; None: there is no journal."""
        try:
            lines = self._folder.read(self.name).splitlines(keepends=True)
        except StoreFailed:
            raise
        except (OSError, ShardError):
            return None
        found: list[Any] = []
        for number, line in enumerate(lines, 1):
            try:
                found.append(json.loads(line) if line.endswith(b"\n") else None)
                if len(found) > 1:
                    found[-1] = _noted(found[-1])
            except (ValueError, TypeError, AttributeError, RecursionError):
                found = found[:-1] if len(found) == number else found
                break
        return (found[0], found[1:]) if found and isinstance(found[0], dict) else None

    def fits(self, asked: dict[str, Any]) -> bool:
        """Tell whether a journal's writer was asked for the same."""
        return bool(asked == self._asked)

    def start(self, noted: Sequence[JournalEntry] = ()) -> None:
        """Write the journal anew, with the shards that are kept.

        Raises:
            OutputFailed: The file system refuses.
        """
        lines = [self._asked, *map(asdict, noted)]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        self._folder.publish(write_whole(self._folder, self.name, data))
        self.started = True

    def add(self, noted: JournalEntry) -> None:
        """Note a shard, durably.

        Raises:
            OutputFailed: The file system refuses.
        """
        self._folder.append(self.name, json.dumps(asdict(noted)).encode() + b"\n")

    def remove(self) -> None:
        """Remove the journal."""
        self._folder.remove([self.name])


def _noted(line: dict[str, Any]) -> JournalEntry:
    """Return what a line says of a shard.

    Raises:
        ValueError: It is none that a writer notes.
        TypeError: The same.
        AttributeError: The same.
    """
    found = JournalEntry(**line)
    int(found.digest, 16)
    texts = [*found.kinds, *found.rounded, found.shard, *(text for row in found.skipped for text in row)]
    numbers = [*found.rounded.values(), found.size, found.crc]
    right = {*map(type, texts)} <= {str} and {*map(type, numbers)} <= {int} and {*map(len, found.skipped)} <= {3}
    if not right or not isinstance(found.columns, dict) or type(found.inline) is not bool:
        raise ValueError("no line of a writer")
    return found


def journal_name(base: str) -> str:
    """Return the name of the journal of the dataset `base`."""
    return f".{base}.writer"


def skipped_rows(noted: JournalEntry) -> list[Skipped]:
    """Return the rows of what was left out that a journal has."""
    return [Skipped(key, "", code, message) for key, code, message in noted.skipped]  # type: ignore[arg-type]
