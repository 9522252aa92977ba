"""Keys from a regular expression: `a.png` and `a_mask.png` become one sample.

The pattern must match the whole path of a file, relative to its source and without the ending. The first group that
matches is the key. The rest of the file name, without separators at its ends, is put before the ending in the field
name: `mask.png`. A path that does not match is its own key.

RE2 evaluates the pattern in time linear in the length of a name, because the pattern may come from an untrusted
dataset
file.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import option_text
from shardtool.names import (
    to_bytes,
    to_text,
)
from shardtool.select.field_rows import check_field_count, list_source_paths
from shardtool.select.grouping import group_by_key, merge_groups
from shardtool.units import pluralize

if TYPE_CHECKING:
    from shardtool.entries.sample_table import SampleTable


_REGEX_GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\(\?P?<\w+>|\((?!\?)", re.DOTALL)


_SEPARATORS = b"_-. "


_INVALID_PART = re.compile(rb"(?:^|/)(?:\.{0,2})(?:/|$)")  # a part of a key that is empty, `.` or `..`


_MAX_LISTED_PAIRS = 3  # of files in a message


class KeyPattern:
    """A pattern of keys.

    Attributes:
        matched: How many names it has matched.

    Raises:
        InvalidRequest: It is no regular expression, or has no group.
    """

    def __init__(self, text: str) -> None:
        import pyarrow.compute as pc  # here, as below, for it takes 40 ms

        self.matched, self._where = 0, option_text("key_pattern", text)
        if not hasattr(pc, "extract_regex_span"):
            found = f"pyarrow {pa.__version__}"
            raise InvalidRequest(
                option_text("key_pattern"), found, expected="21 or newer", remedy="pip install -U pyarrow"
            )
        groups = 0

        def named(found: re.Match[str]) -> str:
            nonlocal groups
            if found[0][0] != "(":
                return found[0]
            groups += 1
            return f"(?P<g{groups}>"

        self._pattern = rf"(?s)\A(?:{_REGEX_GROUP.sub(named, text)})\z"
        try:
            pc.extract_regex_span(pa.array([b""], pa.large_binary()), self._pattern)
        except (pa.ArrowInvalid, UnicodeError) as error:
            found = str(error).rpartition("xpression: ")[2].partition(": (?s)")[0]
            found = "no UTF-8" if isinstance(error, UnicodeError) else found
            expected = "a regular expression of RE2, which has no look-ahead and no back-references"
            raise InvalidRequest(self._where, found if groups else "no group", expected=expected) from None
        if not groups:
            raise InvalidRequest(self._where, "no group", expected="one, which is the key: (.+)_mask")

    def split(self, names: PackedStrings) -> tuple[PackedStrings, list[bytes], list[int]]:
        """Return the key of each path without its ending, and what is left over of the file's name.

        Returns:
            The keys; what is left over, each once; and for each path which of these.

        Raises:
            InvalidRequest: A key is no path of a file.
        """
        import pyarrow.compute as pc

        keys, which, known = bytearray(), list[int](), {b"": 0}
        tidy = cache(lambda *parts: b"_".join(filter(None, (part.strip(_SEPARATORS) for part in parts))))
        for _, some in names.chunks():
            spans = pc.extract_regex_span(pa.array(some, pa.large_binary()), self._pattern)
            found = pc.coalesce(*spans.flatten())
            self.matched += len(found) - found.null_count
            starts, lengths = arrow.number_values(pc.fill_null(found.values, 0)).reshape(-1, 2).T.tolist()
            is_match = pc.is_valid(found).to_pylist()
            for name, matches, start, length in zip(some, is_match, starts, lengths, strict=True):
                if not matches:
                    keys += name + b"\0"
                    which.append(0)
                    continue
                end, top = start + length, name.rfind(b"/") + 1
                key = name[start:end]
                which.append(known.setdefault(tidy(name[top:start], name[max(top, end) :]), len(known)))
                if _INVALID_PART.search(key):
                    found_key = f"the key '{printable(key)}' of '{printable(name)}'"
                    raise InvalidRequest(self._where, found_key, expected="a group that is a path: cat/1")
                keys += key + b"\0"
        return PackedStrings.parse(bytes(keys)), [*known], which

    def check_matched(self, keys: PackedStrings) -> None:
        """Refuse a pattern that has matched none of some names.

        Raises:
            InvalidRequest: It has matched none.
        """
        if not self.matched and len(keys):
            expected = f"a pattern of whole paths without their endings, such as '{printable(keys[0])}'"
            raise InvalidRequest(self._where, "no file matches", expected=expected)


def apply_key_pattern(entries: SampleTable, pattern: KeyPattern) -> SampleTable:
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
    check_field_count(option_text("key_pattern"), fields)
    code_of = {name: at for at, name in enumerate(fields)}
    codes = np.array([code_of[name] for name in names], np.uint16)[place]
    renamed = replace(
        entries,
        keys=keys,
        fields=tuple(map(to_text, fields)),
        rows=replace(entries.rows, code=codes, paths=list_source_paths(entries)),
    )
    made = merge_groups(renamed, group_by_key(keys, by_key=True))
    owners, code = np.repeat(np.arange(len(made)), made.counts()), made.rows.code
    twice = np.flatnonzero((owners[1:] == owners[:-1]) & (code[1:] == code[:-1]))
    if len(twice):
        shown = [
            f"{printable(made.path(at))} and {printable(made.path(at + 1))} ({made.fields[code[at]]})"
            for at in twice[:_MAX_LISTED_PAIRS].tolist()
        ]
        problem = f"{pluralize(len(twice), 'pair')} of files that would be one field of a sample: {format_list(shown)}"
        expected = "a pattern that leaves something over to tell them apart, as (.+)_mask leaves mask"
        raise InvalidRequest(option_text("key_pattern"), problem, expected=expected)
    return made
