"""The journal of an unfinished run, from which `create` and writers resume the run.

The journal of the dataset `NAME` is the file `.NAME.journal` of JSON lines. The first line describes the run. Each
other line describes a shard. An incomplete line and all lines after it are ignored. A resumed run keeps a
shard only if its size, checksum and sidecar match the journal.

In a store, each line after the first is an object `.NAME.journal.N`. A resumed run moves all lines into
`.NAME.journal`.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shardtool.storage.staging import Folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardtool.storage.folders import OutputFolder


_SUFFIX = ".journal"
_OLD_SUFFIX = ".writer"


class Journal:
    """Reads and writes the journal of a dataset or part named `base`. The caller must hold the lock."""

    def __init__(self, folder: OutputFolder, base: str) -> None:
        self.name, self._base, self._folder = f".{base}{_SUFFIX}", base, folder
        self.is_started = False
        self._lines = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the complete lines, or [] if there is no journal."""
        for name in (self.name, f".{self._base}{_OLD_SUFFIX}"):
            with suppress(OSError):
                lines = self._folder.read(name).splitlines(keepends=True)
                if not self._folder.has_staging:
                    with suppress(FileNotFoundError):  # no more lines
                        while True:
                            lines.append(self._folder.read(f"{name}.{len(lines) - 1}"))
                return _parse(lines)
        return []

    def start(self, header: Mapping[str, object], lines: Iterable[Mapping[str, object]] = ()) -> None:
        """Replace the journal with a header and lines, and sync them to disk."""
        encoded = [_encode(line) for line in (header, *lines)]
        self._folder.publish_bytes(self.name, b"".join(encoded))
        older = [name for name in list_journals(self._base, self._folder.names()) if name != self.name]
        # Delete old journals last, because the next run needs them if this run is interrupted.
        self._folder.remove(older)
        self._lines, self.is_started = len(encoded), True

    def append(self, line: Mapping[str, object], *, durable: bool = True) -> None:
        """Append a line. If `durable` is false, a power failure can lose the line."""
        if isinstance(self._folder, Folder):
            self._folder.append(self.name, _encode(line), durable=durable)
        else:
            self._folder.publish_bytes(f"{self.name}.{self._lines - 1}", _encode(line))
        self._lines += 1

    def remove(self) -> None:
        """Delete the journal, including journals from earlier versions."""
        self._folder.remove(list_journals(self._base, self._folder.names()))


def list_journals(base: str, names: Iterable[str], tag_pattern: str = "") -> list[str]:
    """Return the names of a dataset's journals. `tag_pattern` adds the journals of a run's parts."""
    tag = rf"(?:\.{tag_pattern})?" if tag_pattern else ""
    pattern = re.compile(rf"\.{re.escape(base)}{tag}(?:{_SUFFIX}|{_OLD_SUFFIX})(?:\.[0-9]+)?", re.ASCII)
    return [name for name in names if pattern.fullmatch(name)]


def _encode(line: Mapping[str, object]) -> bytes:
    return json.dumps(line).encode() + b"\n"


def _parse(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    documents = []
    with suppress(ValueError, RecursionError):
        for line in lines:
            document = json.loads(line) if line.endswith(b"\n") else None
            if not isinstance(document, dict):
                break
            documents.append(document)
    return documents
