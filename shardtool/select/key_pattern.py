"""Keys by a pattern: files whose names differ by more than their endings are one sample, `a.png` and `a_mask.png`.

The pattern is matched against the whole path of a file without its ending, as it counts from its source. Its first
group that took part is the key. What is left over of the file's name, without separators at its ends, stands before the
ending in the field's name: `mask.png`. A path that does not match is a key as it is.

RE2 matches, in time that grows with the length of a name alone, whatever the pattern: the one of a run comes from a
dataset file when its source is compared, and that may be anyone's.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries.arrow import numbers
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.names import Names
from shardtool.select.fields import check_count, paths_of
from shardtool.select.names import find_groups, grouped
from shardtool.values import counted, to_bytes, to_text
from shardtool.wording import option

if TYPE_CHECKING:
    from shardtool.entries.entries import Entries

_GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\(\?P?<\w+>|\((?!\?)", re.DOTALL)
_SEPARATORS = b"_-. "
_NAME = re.compile(rb"(?:^|/)(?:\.{0,2})(?:/|$)")  # a part of a key that is empty, `.` or `..`
_SHOWN = 3


class KeyPattern:
    """A pattern of keys.

    Attributes:
        matched: How many names it has matched.

    Raises:
        InvalidRequest: It is no regular expression, or has no group.
    """

    def __init__(self, text: str) -> None:
        self.matched, self._where = 0, option("key_pattern", text)
        if not hasattr(pc, "extract_regex_span"):
            found = f"pyarrow {pa.__version__}"
            raise InvalidRequest(option("key_pattern"), found, expected="21 or newer", remedy="pip install -U pyarrow")
        groups = 0

        def named(found: re.Match[str]) -> str:
            nonlocal groups
            if found[0][0] != "(":
                return found[0]
            groups += 1
            return f"(?P<g{groups}>"

        self._pattern = rf"(?s)\A(?:{_GROUP.sub(named, text)})\z"
        try:
            pc.extract_regex_span(pa.array([b""], pa.large_binary()), self._pattern)
        except (pa.ArrowInvalid, UnicodeError) as error:
            found = str(error).rpartition("xpression: ")[2].partition(": (?s)")[0]
            found = "no UTF-8" if isinstance(error, UnicodeError) else found
            expected = "a regular expression of RE2, which has no look-ahead and no back-references"
            raise InvalidRequest(self._where, found if groups else "no group", expected=expected) from None
        if not groups:
            raise InvalidRequest(self._where, "no group", expected="one, which is the key: (.+)_mask")

    def split(self, names: Names) -> tuple[Names, list[bytes], list[int]]:
        """Return the key of each path without its ending, and what is left over of the file's name.

        Returns:
            The keys; what is left over, each once; and for each path which of these.

        Raises:
            InvalidRequest: A key is no path of a file.
        """
        keys, which, known = bytearray(), list[int](), {b"": 0}
        tidy = cache(lambda *parts: b"_".join(filter(None, (part.strip(_SEPARATORS) for part in parts))))
        for _, some in names.chunks():
            spans = pc.extract_regex_span(pa.array(some, pa.large_binary()), self._pattern)
            found = pc.coalesce(*spans.flatten())
            self.matched += len(found) - found.null_count
            starts, lengths = numbers(pc.fill_null(found.values, 0)).reshape(-1, 2).T.tolist()
            is_match = pc.is_valid(found).to_pylist()
            for name, matches, start, length in zip(some, is_match, starts, lengths, strict=True):
                if not matches:
                    keys += name + b"\0"
                    which.append(0)
                    continue
                end, top = start + length, name.rfind(b"/") + 1
                key = name[start:end]
                which.append(known.setdefault(tidy(name[top:start], name[max(top, end) :]), len(known)))
                if _NAME.search(key):
                    found_key = f"the key '{printable(key)}' of '{printable(name)}'"
                    raise InvalidRequest(self._where, found_key, expected="a group that is a path: cat/1")
                keys += key + b"\0"
        return Names.parse(bytes(keys)), [*known], which

    def check_matched(self, keys: Names) -> None:
        """Refuse a pattern that has matched none of some names.

        Raises:
            InvalidRequest: It has matched none.
        """
        if not self.matched and len(keys):
            expected = f"a pattern of whole paths without their endings, such as '{printable(keys[0])}'"
            raise InvalidRequest(self._where, "no file matches", expected=expected)


def with_keys(entries: Entries, pattern: KeyPattern) -> Entries:
    """Return samples of files with the keys that a pattern gives them; those that share one are one.

    Raises:
        InvalidRequest: Two files would be one field of a sample, or a key is no path.
    """
    keys, left, which = pattern.split(entries.keys)
    ended = len(entries.fields)
    both = np.repeat(np.array(which, np.int64), entries.counts()) * ended + entries.rows.code
    used, place = np.unique(both, return_inverse=True)
    parts = ((left[one // ended], to_bytes(entries.fields[one % ended])) for one in used.tolist())
    names = [b".".join(filter(None, both)) for both in parts]
    fields = sorted({*names})
    check_count(option("key_pattern"), fields)
    code_of = {name: at for at, name in enumerate(fields)}
    codes = np.array([code_of[name] for name in names], np.uint16)[place]
    renamed = replace(
        entries,
        keys=keys,
        fields=tuple(map(to_text, fields)),
        rows=replace(entries.rows, code=codes, paths=paths_of(entries)),
    )
    made = grouped(renamed, find_groups(keys, by_key=True))
    owners, code = np.repeat(np.arange(len(made)), made.counts()), made.rows.code
    twice = np.flatnonzero((owners[1:] == owners[:-1]) & (code[1:] == code[:-1]))
    if len(twice):
        shown = [
            f"{printable(made.path(at))} and {printable(made.path(at + 1))} ({made.fields[code[at]]})"
            for at in twice[:_SHOWN].tolist()
        ]
        problem = f"{counted(len(twice), 'pair')} of files that would be one field of a sample: {listing(shown)}"
        expected = "a pattern that leaves something over to tell them apart, as (.+)_mask leaves mask"
        raise InvalidRequest(option("key_pattern"), problem, expected=expected)
    return made
