"""Compute keys from paths with a regular expression. For example, `a.png` and `a_mask.png` become one sample.

If the pattern matches the whole relative path without its extension, the first group with a match is the key. The rest
of the file name becomes the start of the field name, such as `mask` for `_mask` (separators at both ends are removed).
If the pattern does not match, the key is the path without its extension.

Arrow's RE2 engine takes linear time, even for a pattern from an untrusted dataset file.
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
from shardtool.names import to_bytes, to_text
from shardtool.select.field_rows import check_field_count, group_sorted, list_source_paths, merge_groups
from shardtool.units import pluralize

if TYPE_CHECKING:
    from shardtool.entries.sample_table import SampleTable


_REGEX_GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\(\?P?<\w+>|\((?!\?)", re.DOTALL)
_SEPARATORS = b"_-. "
_INVALID_PART = re.compile(rb"(?:^|/)(?:\.{0,2})(?:/|$)")  # matches empty parts, `.` and `..`
_MAX_LISTED_PAIRS = 3


class KeyPattern:
    """A pattern that computes keys from paths. `matched` counts the paths that matched so far."""

    def __init__(self, text: str) -> None:
        import pyarrow.compute as pc

        self.matched, self._where = 0, option_text("key_pattern", text)
        groups, no_group = 0, "no group in parentheses"

        def name_group(group: re.Match[str]) -> str:
            nonlocal groups
            if group[0][0] != "(":
                return group[0]
            groups += 1
            return f"(?P<g{groups}>"

        self._pattern = rf"(?s)\A(?:{_REGEX_GROUP.sub(name_group, text)})\z"
        try:
            pc.extract_regex_span(pa.array([b""], pa.large_binary()), self._pattern)
        except (pa.ArrowInvalid, UnicodeError) as error:
            found = str(error).rpartition("xpression: ")[2].partition(": (?s)")[0]
            found = "not valid UTF-8" if isinstance(error, UnicodeError) else found
            expected = "an RE2 regular expression, without look-ahead and back-references"
            raise InvalidRequest(self._where, found if groups else no_group, expected=expected) from None
        if not groups:
            raise InvalidRequest(self._where, no_group, expected="a group for the key: (.+)_mask")

    def split(self, names: PackedStrings) -> tuple[PackedStrings, list[bytes], list[int]]:
        """Split each path (without its extension) into a key and the rest of the file name.

        Return the keys, a list of all different rests, and for each path an index into this list.
        """
        import pyarrow.compute as pc

        keys, rest_numbers, rests = bytearray(), list[int](), {b"": 0}
        tidy = cache(lambda *parts: b"_".join(filter(None, (part.strip(_SEPARATORS) for part in parts))))
        for _, chunk in names.chunks():
            spans = pc.extract_regex_span(pa.array(chunk, pa.large_binary()), self._pattern)
            matched = pc.coalesce(*spans.flatten())
            self.matched += len(matched) - matched.null_count
            starts, lengths = arrow.number_values(pc.fill_null(matched.values, 0)).reshape(-1, 2).T.tolist()
            is_match = pc.is_valid(matched).to_pylist()
            for name, matches, start, length in zip(chunk, is_match, starts, lengths, strict=True):
                if not matches:
                    keys += name + b"\0"
                    rest_numbers.append(0)
                    continue
                end, name_start = start + length, name.rfind(b"/") + 1
                key = name[start:end]
                rest = tidy(name[name_start:start], name[max(name_start, end) :])
                rest_numbers.append(rests.setdefault(rest, len(rests)))
                if _INVALID_PART.search(key):
                    found_key = f"the key '{printable(key)}' of '{printable(name)}'"
                    raise InvalidRequest(self._where, found_key, expected="a group that matches a path: cat/1")
                keys += key + b"\0"
        return PackedStrings.parse(bytes(keys)), [*rests], rest_numbers

    def check_matched(self, keys: PackedStrings) -> None:
        """Raise an error if no path has matched the pattern, unless `keys` is empty."""
        if not self.matched and len(keys):
            expected = f"a pattern for whole paths without their endings, such as '{printable(keys[0])}'"
            raise InvalidRequest(self._where, "no file matches", expected=expected)


def apply_key_pattern(entries: SampleTable, pattern: KeyPattern) -> SampleTable:
    """Use a pattern to compute the keys of files. Merge the files with the same key into one sample."""
    keys, rests, rest_numbers = pattern.split(entries.keys)
    field_count = len(entries.fields)
    combined = np.repeat(np.array(rest_numbers, np.int64), entries.counts()) * field_count + entries.rows.code
    distinct, inverse = np.unique(combined, return_inverse=True)
    pairs = (divmod(number, field_count) for number in distinct.tolist())
    names = [b".".join(filter(None, (rests[rest], to_bytes(entries.fields[code])))) for rest, code in pairs]
    fields = sorted({*names})
    check_field_count(option_text("key_pattern"), fields)
    code_of = {name: row for row, name in enumerate(fields)}
    codes = np.array([code_of[name] for name in names], np.uint16)[inverse]
    renamed = replace(
        entries,
        keys=keys,
        fields=tuple(map(to_text, fields)),
        rows=replace(entries.rows, code=codes, paths=list_source_paths(entries)),
    )
    merged = merge_groups(renamed, group_sorted(keys))
    sample_of_row, code = np.repeat(np.arange(len(merged)), merged.counts()), merged.rows.code
    twice = np.flatnonzero((sample_of_row[1:] == sample_of_row[:-1]) & (code[1:] == code[:-1]))
    if len(twice):
        shown = [
            f"{printable(merged.path(row))} and {printable(merged.path(row + 1))} ({merged.fields[code[row]]})"
            for row in twice[:_MAX_LISTED_PAIRS].tolist()
        ]
        problem = f"{pluralize(len(twice), 'pair')} of files with the same key and field: {format_list(shown)}"
        expected = "a pattern with a different field name for each file: (.+)_mask adds mask to the name"
        raise InvalidRequest(option_text("key_pattern"), problem, expected=expected)
    return merged
