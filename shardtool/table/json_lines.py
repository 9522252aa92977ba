"""JSON lines, looked at before a table is made of them.

The table's reader dies of a line that is no object, and of deep nesting, with the whole process; and it gives each
name that any line uses a value in every row. So each line must be one object, not nested deeper than `MOST_LEVELS`, and
names times rows must be in proportion to the bytes. Nothing is parsed for that: brackets, quotes and names are counted,
a block at a time, and only lines that look odd are read one by one.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest, printable
from shardtool.table.columns import LONGEST_ROW, MOST_COLUMNS, MOST_LEVELS, too_deep, too_long, too_many_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from numpy.typing import NDArray

    Opened = Callable[[], BinaryIO]  # a binary stream, from the start

_BLOCK = 2**20  # bytes at a time
_UTF8 = b"\xef\xbb\xbf"
_WHITE = b" \t\r\n"
_QUOTE, _BACKSLASH, _COLON, _CLOSE, _RETURN, _BRACE = b'"\\:}\r{'
_BRACKETS = 0xDF, 0x5B, 0x5D  # a mask that makes braces of brackets, and what it leaves of `[{` and of `]}`
_SPACE = 32
_LONG_NAME = 64  # bytes: longer names are kept, of others a hash
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_FEW_CELLS = 5 * 10**7  # of a file of any size: half a gigabyte
_CELLS_PER_BYTE = 2  # a value that is there takes six bytes or more in the file, and eight in memory


def check_lines(where: str, opened: Opened) -> None:
    """Refuse lines that the table's reader cannot be given.

    Raises:
        InvalidRequest: A line that is no object or nested too deep, or far too many names.
    """
    names, rows, size = _Names(), 0, 0
    with opened() as stream:
        for data in blocks(where, stream):
            block = _Block(data)
            odd = block.odd()
            shown = np.cumsum(~block.blank)
            for at in odd:
                read_line(where, rows + int(shown[at]), block.line(at))
            names.add(block)
            rows, size = rows + int(shown[-1]), size + len(data)
            if names.too_many(rows, size):
                _check_names(where, opened)
                names = _Names()
                names.trusted = True


def blocks(where: str, stream: BinaryIO) -> Iterator[bytes]:
    """Yield whole lines, about a mebibyte at a time, without a byte-order mark.

    Raises:
        InvalidRequest: A line is too long.
    """
    parts: list[bytes] = []
    held, first = 0, True
    while data := stream.read(_BLOCK):
        if first:
            data, first = data.removeprefix(_UTF8), False
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join([*parts, data[:end]])
            parts, held, data = [], 0, data[end:]
        held += len(data)
        if held > LONGEST_ROW:
            raise too_long(where)
        parts.append(data)
    if held:
        yield b"".join(parts)


class _Block:
    """Some lines, and where their marks are."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.codes = codes = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(codes == _WHITE[-1])
        self.ends = ends if data.endswith(b"\n") else np.append(ends, len(data))
        self.starts = np.concatenate((np.zeros(1, np.int64), self.ends[:-1] + 1))
        self.blank = self._find_blank()

    def line(self, at: int) -> bytes:
        """Return a line, without white space around it."""
        return self.data[int(self.starts[at]) : int(self.ends[at])].strip(_WHITE)

    def _find_blank(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.ends - self.starts == 0
        for at in np.flatnonzero(~found & (self.codes[np.minimum(self.starts, len(self.codes) - 1)] <= _WHITE[0])):
            found[at] = not self.line(int(at))
        return found

    @cached_property
    def quotes(self) -> NDArray[np.int64]:
        """The places of quotation marks that begin or end a text; one behind a backslash is a part of a text."""
        quotes = np.flatnonzero(self.codes == _QUOTE)
        after = quotes[(quotes > 0) & (self.codes[quotes - 1] == _BACKSLASH)] if b'\\"' in self.data else quotes[:0]
        if not len(after):
            return quotes
        others = np.concatenate(([-1], np.flatnonzero(self.codes != _BACKSLASH)))
        before = others[np.searchsorted(others, after) - 1]
        escaped = after[(after - before) % 2 == 0]  # an odd number of backslashes
        return np.setdiff1d(quotes, escaped, assume_unique=True)

    def odd(self) -> list[int]:
        """Return the lines that are not seen to be one object each, of little depth."""
        starts, codes = self.starts, self.codes
        last = self.ends - 1
        last = last - (codes[last] == _RETURN)
        first = codes[np.minimum(starts, len(codes) - 1)]
        whole = (first == _BRACE) & (codes[last] == _CLOSE) & (last > starts)
        before = np.searchsorted(self.quotes, np.append(starts, len(codes)))
        whole &= np.diff(before) % 2 == 0  # each text ends in its line
        mask, opening, closing = _BRACKETS
        masked = codes & np.uint8(mask)
        opens, closes = np.flatnonzero(masked == opening), np.flatnonzero(masked == closing)
        if len(opens) == len(starts) == len(closes) and whole.all():  # one of each, at both ends: what most files are
            before = np.searchsorted(self.quotes, np.append(starts, len(codes)))
            if not np.any(before % 2):  # and every text ends in its line
                return []
        sound = whole & self._balanced(opens, closes, last)
        return np.flatnonzero(~sound & ~self.blank).tolist()  # type: ignore[no-any-return]

    def _balanced(
        self, opens: NDArray[np.int64], closes: NDArray[np.int64], last: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return for which lines the brackets outside of texts close at the end, not before, and are not too deep."""
        starts, count = self.starts, len(self.starts)
        places = np.concatenate((opens, closes))
        steps = np.concatenate((np.ones(len(opens), np.int64), -np.ones(len(closes), np.int64)))
        order = np.argsort(places, kind="stable")
        places, steps = places[order], steps[order]
        lines = np.searchsorted(starts, places, "right") - 1
        before = np.searchsorted(self.quotes, starts)
        outside = (np.searchsorted(self.quotes, places) - before[lines]) % 2 == 0
        places, steps, lines = places[outside], steps[outside], lines[outside]
        depth = np.cumsum(steps)
        begin = np.searchsorted(lines, np.arange(count))
        depth = depth - np.concatenate(([0], depth))[begin][lines]
        bad = (depth > MOST_LEVELS) | (depth < 0) | ((depth == 0) & (places != last[lines]))
        found: NDArray[np.bool_] = np.bincount(lines[bad], minlength=count) == 0
        ended = np.bincount(lines[depth == 0], minlength=count) == 1
        sound: NDArray[np.bool_] = found & ended
        return sound


def read_line(where: str, number: int, line: bytes) -> dict[str, object]:
    """Return the object that a line is.

    Raises:
        InvalidRequest: It is none, or nested too deep.
    """
    try:
        row = json.loads(line)
    except RecursionError:
        raise too_deep(f"{where}, row {number:,}") from None
    except ValueError as error:
        said = str(error).partition(":")[0]
        raise _no_object(where, number, line, said[:1].lower() + said[1:]) from None
    if not isinstance(row, dict):
        raise _no_object(where, number, line, f"a JSON {kind_of(row)}")
    if _levels(row) > MOST_LEVELS:
        raise too_deep(f"{where}, row {number:,}")
    return row


def _levels(value: object) -> int:
    """Return how deep lists and objects lie in each other."""
    found, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        found += 1
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
    return found


def kind_of(value: object) -> str:
    """Return what a JSON value is called."""
    names = {bool: "truth", int: "number", float: "number", str: "text", list: "list", dict: "object"}
    return names.get(type(value), "null")


def _no_object(where: str, number: int, line: bytes, found: str) -> InvalidRequest:
    """Return the error for a line that is no object."""
    remedy = f"It begins with '{printable(line[:60].strip())}'."
    if number == 1 and line.lstrip()[:1] == b"[":
        remedy = "`jq -c '.[]'` makes lines of a JSON array."
    return InvalidRequest(where, f"row {number:,}: {found}", expected="one JSON object a line", remedy=remedy)


class _Names:
    """The different names in objects, never fewer than there are; text that looks like a name counts, too."""

    def __init__(self) -> None:
        self.trusted = False  # they were counted one by one
        self._hashes = np.zeros(0, np.uint64)
        self._long: set[bytes] = set()

    def add(self, block: _Block) -> None:
        """Add the names of some lines: texts before a colon, or before more white space than a blank."""
        if self.trusted:
            return
        codes, quotes = np.concatenate((block.codes, np.zeros(2, np.uint8))), block.quotes
        after = codes[quotes + 1]
        ends = after == _COLON
        white = np.flatnonzero((after <= _SPACE) & (after > 0))
        second = codes[quotes[white] + 2]
        ends[white[(second == _COLON) | ((second <= _SPACE) & (second > 0))]] = True
        at = np.flatnonzero(ends)
        at = at[at > 0]
        start, end = quotes[at - 1] + 1, quotes[at]
        known, hashed = self._hashes, _hashes(block.data, start, end)
        if len(known):
            hashed = hashed[known[np.minimum(np.searchsorted(known, hashed), len(known) - 1)] != hashed]
        if len(hashed):
            self._hashes = np.union1d(known, hashed)
        for one in np.flatnonzero(end - start > _LONG_NAME).tolist():
            self._long.add(block.data[int(start[one]) : int(end[one])])

    def too_many(self, rows: int, size: int) -> bool:
        """Tell whether there may be more names than a table has room for."""
        count = len(self._hashes) + len(self._long)
        return not self.trusted and _too_many(count, rows, size)


def _too_many(count: int, rows: int, size: int) -> bool:
    return count > MOST_COLUMNS or count * rows > max(_FEW_CELLS, _CELLS_PER_BYTE * size)


def _hashes(data: bytes, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each text that is not too long: of its bytes, eight at a time from its end."""
    short = (end - start) <= _LONG_NAME
    end, left = end[short], (end - start)[short]
    padded = bytes(8) + data
    words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    found = left.astype(np.uint64)
    rest = np.flatnonzero(left > 0)
    while len(rest):
        beyond = np.maximum(8 - left[rest], 0).astype(np.uint64) * np.uint64(8)
        mixed = (found[rest] ^ (words[end[rest]] >> beyond)) * _FACTOR
        found[rest] = mixed ^ (mixed >> np.uint64(29))
        left, end = left - 8, end - 8
        rest = rest[left[rest] > 0]
    return found


def _check_names(where: str, opened: Opened) -> None:
    """Count the names in all lines one by one, and refuse too many."""
    tops: set[str] = set()
    names: set[tuple[str, ...]] = set()
    rows = size = 0
    with opened() as stream:
        for data in blocks(where, stream):
            lines = [line for line in data.split(b"\n") if line.strip(_WHITE)]
            for line in lines:
                rows += 1
                row = read_line(where, rows, line)
                tops.update(row)
                _add_names(row, (), names)
                if len(tops) > MOST_COLUMNS:
                    raise too_many_columns(where)
            size += len(data)
            if _too_many(len(names), rows, size):
                found = f"{len(names):,} different names in objects of the first {rows:,} rows"
                expected = f"the same names in most rows, {MOST_COLUMNS:,} at most"
                remedy = "Write what differs from row to row as lists of names and of values."
                raise InvalidRequest(where, f"{found}, most of them without a value", expected=expected, remedy=remedy)


def _add_names(value: object, path: tuple[str, ...], names: set[tuple[str, ...]]) -> None:
    if isinstance(value, dict):
        for name, part in value.items():
            names.add((*path, name))
            _add_names(part, (*path, name), names)
    elif isinstance(value, list):
        for part in value:
            _add_names(part, path, names)
