"""Find names that some readers of tar shards misread. `make_portable` renames samples with these names.

The problems were observed with webdataset 1.0.2, wids 0.1.11, DALI 2.4.0, datasets 5.2.0 and megatron-energon 7.4.1
(tests/clients).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataclass import dataclass
from shardtool.entries.sample_table import FieldRows, FieldValues, SampleTable
from shardtool.entries.strings import PackedStrings
from shardtool.errors import printable
from shardtool.format.tar_write import MAX_USTAR_SIZE, USTAR_NAME_BYTES, split_prefix
from shardtool.messages import export_text, option_text
from shardtool.names import to_bytes, to_text
from shardtool.shard_samples import FILE, INLINE
from shardtool.units import pluralize
from shardtool.values import NumberType, chunk_slices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.dataset.shard_index import ShardIndex


NUMBER_FIELDS = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
_INTEGER = re.compile(rb"\s*[+-]?[0-9]+\s*")
_WHITESPACE = tuple(bytes([code]) for code in (*range(1, 33), 127))
# Each rule: code, readers, problem (a noun phrase), byte strings, and a pattern of affected keys (NUL-terminated). The
# pattern is searched only if the keys contain one of the byte strings.
_KEY_RULES: tuple[tuple[str, str, str, tuple[bytes, ...], re.Pattern[bytes]], ...] = (
    ("dot-in-key", "webdataset, wids, DALI, energon and Hugging Face datasets end the key at its first dot",
     "key with a dot in the last part", (b".",), re.compile(rb"\.[^\0/]*\0")),
    ("space-in-key", "wds2idx, which writes DALI's index, fails at white space; {} does not",
     "key with white space", _WHITESPACE, re.compile(rb"[\x01-\x20\x7f][^\0]*\0")),
    ("meta-folder", "webdataset and energon ignore folders such as __meta__",
     "key in a folder whose name starts and ends with two underscores", (b"__",),
     re.compile(rb"(?<![^\0])__[^/\0]*__/[^\0]*\0")),
    ("meta-name", "Hugging Face datasets ignores files whose names start with two underscores",
     "key whose last part starts with two underscores", (b"__",), re.compile(rb"(?<![^\0/])__[^/\0]*\0")),
)  # fmt: skip
_FIELD_RULES = (
    ("upper-case-field", "webdataset converts fields to lower case; other readers do not",
     "field in upper case", lambda name: name != name.lower()),
    ("reserved-field", "webdataset, energon and Hugging Face datasets reserve names such as __key__",
     "field with a reserved name", re.compile(r"^__(?:key|url|local_path|bad|restore_key|subflavors)__$").search),
    ("unnamable-field", "DALI cannot select a field with white space or a semicolon in its name",
     "field with white space or a semicolon", re.compile(r"[\x00-\x20\x7f;]").search),
    ("meta-field", "webdataset treats fields that start with two underscores as its own",
     "field whose name starts with two underscores", re.compile(r"^__").search),
)  # fmt: skip
_HUGGINGFACE = "huggingface"
READERS_BY_PROBLEM = {
    "dot-in-key": ("webdataset", "wids", "dali", "energon", _HUGGINGFACE),
    "space-in-key": ("dali",),
    "meta-folder": ("webdataset", "energon"),
    "meta-name": (_HUGGINGFACE,),
    "long-name": ("wids",),
    "pax-name": ("dali",),
    "upper-case-field": ("webdataset",),
    "reserved-field": ("webdataset", "energon", _HUGGINGFACE),
    "unnamable-field": ("dali",),
    "meta-field": ("webdataset",),
    "text-label": ("webdataset",),
    "large-member": ("wids",),
    "missing-field": (_HUGGINGFACE,),
}


@dataclass(frozen=True, slots=True)
class NameProblem:
    """A kind of name that some readers misread.

    Attributes:
        readers: Which readers misread the names, and how.
        what: The problem, as a noun phrase whose first word forms its plural with "s".
        fixable: Whether `--portable` fixes the problem.
    """

    code: str
    readers: str
    what: str
    count: int
    example: str
    fixable: bool = True

    def __str__(self) -> str:
        return f"{self.readers}: {pluralize(self.count, self.what)} (such as '{self.example}')"


class ReaderProblems:
    """Collects the problems that readers have with names in tar shards."""

    def __init__(self) -> None:
        self._problems: dict[tuple[str, str], NameProblem] = {}
        self._samples, self._first = 0, b""
        self._fields: Counter[str] = Counter()
        # a field, the key of a sample with this field, and the key of a sample without this field
        self._uneven: tuple[str, bytes, bytes] | None = None

    def add(self, entries: SampleTable) -> None:
        """Check the names of the samples in `entries`."""
        if not len(entries):
            return
        counts = np.bincount(entries.rows.code, minlength=len(entries.fields)).tolist()
        problems = [*find_key_problems(entries.keys), *_long_name_problems(entries)]
        for code, readers, what, is_bad in _FIELD_RULES:
            if codes := [index for index, name in enumerate(entries.fields) if counts[index] and is_bad(name)]:
                example = printable(entries.fields[codes[0]])
                problems.append(NameProblem(code, readers, what, sum(counts[index] for index in codes), example))
        problems += _text_label_problems(entries)
        large_rows = np.flatnonzero(entries.rows.size > MAX_USTAR_SIZE)
        if len(large_rows):
            example = printable(entries.path(int(large_rows[0])))
            readers = "wids cannot read members of 8 GiB or more"
            problems.append(NameProblem("large-member", readers, "field", len(large_rows), example, fixable=False))
        for problem in problems:
            previous = self._problems.get((problem.code, problem.what))
            merged = replace(previous, count=previous.count + problem.count) if previous else problem
            self._problems[problem.code, problem.what] = merged
        self._add_fields(entries, {name: count for name, count in zip(entries.fields, counts, strict=True) if count})

    def add_shard(self, index: ShardIndex, texts: bytes = b"", numbers: Mapping[str, NumberType] | None = None) -> None:
        """Check the names of a shard's samples.

        `texts` contains one NUL-terminated string per field of each sample: the text of the field, or "" if the field
        has no text. If all texts are unknown, `texts` is b"".
        """
        names, code_bytes = index.codes_by_name()
        codes, fields, rows = np.frombuffer(code_bytes, np.uint16), tuple(map(to_text, names)), texts[:-1].split(b"\0")
        kind, zeros = np.full(len(codes), FILE, np.uint8), np.broadcast_to(np.int64(0), len(codes))
        inline: dict[str, PackedStrings] = {}
        for code, name in enumerate(fields):
            if texts and _is_number_field(name):
                column, field_rows = [b""] * len(index), np.flatnonzero(codes == code)
                for row, sample in zip(field_rows.tolist(), index.sample_of_row()[field_rows].tolist(), strict=True):
                    if rows[row]:
                        column[sample], kind[row] = rows[row], INLINE
                inline[name] = PackedStrings.of(column)
        keys = PackedStrings.of([key.replace(b"\0", b"?") for key in index.all_keys()])
        columns = FieldRows(codes, kind, index.lengths, zeros, zeros)
        values = FieldValues(inline=inline, types=numbers or {})
        self.add(SampleTable(b"/", keys, index.first_rows, fields, columns, values=values))

    def _add_fields(self, entries: SampleTable, counts: dict[str, int]) -> None:
        total, previous = self._samples + len(entries), self._fields.copy()
        self._fields.update(counts)
        order = to_bytes if self._samples else entries.fields.index
        uneven = sorted((name for name, count in self._fields.items() if count < total), key=order)
        self._first = self._first if self._samples else entries.keys[0]
        if uneven and (self._uneven is None or self._uneven[0] != uneven[0]):
            name, count = uneven[0], counts.get(uneven[0], 0)
            holders = np.zeros(0, np.int64)
            if count > 0:
                holders = entries.samples_of(np.flatnonzero(entries.rows.code == entries.fields.index(name)))
            non_holders = np.setdiff1d(np.arange(len(entries)), holders)[:1].tolist()
            having = self._first if previous[name] else entries.keys[int(holders[0])]
            lacking = self._first if self._samples and not previous[name] else entries.keys[non_holders[0]]
            self._uneven = name, having, lacking
        self._samples = total

    def problems(self) -> list[NameProblem]:
        """Return the problems of all samples added so far."""
        problems = [*self._problems.values()]
        if self._uneven is not None:
            name, having, lacking = self._uneven
            is_rare = 2 * self._fields[name] < self._samples
            where = f"only in {printable(having)}" if is_rare else f"missing in {printable(lacking)}"
            if (other_count := min(self._fields[name], self._samples - self._fields[name]) - 1) > 0:
                where += f" and {other_count:,} more"
            readers = "Hugging Face datasets rejects or drops fields that are missing in the first five samples"
            what = "field that not all samples have"
            number = sum(count < self._samples for count in self._fields.values())
            problems.append(NameProblem("missing-field", readers, what, number, f"{name}, {where}", fixable=False))
        order = [*READERS_BY_PROBLEM]
        return sorted(problems, key=lambda problem: order.index(problem.code))


def find_reader_problems(entries: SampleTable) -> list[NameProblem]:
    """Return the problems that readers have with these samples."""
    problems = ReaderProblems()
    problems.add(entries)
    return problems.problems()


def find_key_problems(keys: PackedStrings) -> list[NameProblem]:
    """Return the problems that readers have with these keys."""
    problems = []
    for code, readers, what, required, pattern in _KEY_RULES:
        match = pattern.search(keys.data) if any(sign in keys.data for sign in required) else None
        if match:
            sample = int(np.searchsorted(keys.starts, match.start(), "right")) - 1
            count = sum(1 for _ in pattern.finditer(keys.data))
            reader_text = readers.format(export_text("dali-webdataset"))
            problems.append(NameProblem(code, reader_text, what, count, printable(keys[sample])))
    return problems


def _long_name_problems(entries: SampleTable) -> list[NameProblem]:
    longest = max((len(field) for field in entries.fields), default=0) + 1
    suspects = np.flatnonzero(entries.keys.lengths() + longest > USTAR_NAME_BYTES)
    names = [entries.keys[sample] for sample in np.repeat(suspects, entries.counts_of(suspects)).tolist()]
    fields = [to_bytes(entries.fields[code]) for code in entries.rows.code[entries.rows_of(suspects)].tolist()]
    full_names = (key + b"." + field for key, field in zip(names, fields, strict=True))
    long_names = [name for name in full_names if len(name) > USTAR_NAME_BYTES]
    if not long_names:
        return []
    what, example = "name over 100 bytes", printable(long_names[0])
    problems = [NameProblem("long-name", "wids truncates names at 100 bytes", what, len(long_names), example)]
    if pax_names := [name for name in long_names if split_prefix(name) is None]:
        readers = f"DALI loses the field of a name in a pax header, without an index ({export_text('dali-webdataset')})"
        example = printable(pax_names[0])
        problems.append(NameProblem("pax-name", readers, "name in a pax header", len(pax_names), example))
    return problems


def _is_number_field(field: str) -> bool:
    return field.rpartition(".")[2].lower() in NUMBER_FIELDS


def _text_label_problems(entries: SampleTable) -> list[NameProblem]:
    problems = []
    for name, texts in entries.values.inline.items():
        if not _is_number_field(name) or name in entries.values.numbers or name not in entries.fields:
            continue
        rows = np.flatnonzero((entries.rows.kind == INLINE) & (entries.rows.code == entries.fields.index(name)))
        samples = entries.samples_of(rows)
        count, first = 0, b""
        for batch in chunk_slices(len(samples)):
            batch_texts = texts.gather(samples[batch]).split(b"\0")[:-1]
            wrong = [text for text in batch_texts if not _INTEGER.fullmatch(text)]
            count = count + len(wrong)
            first = first or (wrong[0] if wrong else b"")
        if count:
            readers = f"webdataset's decoder parses the field {name} as an integer and fails for text"
            readers += f" ({option_text('classes', (name,))} replaces text by numbers)"
            what, example = f"text in {name}", printable(first)[:80]
            problems.append(NameProblem("text-label", readers, what, count, example, fixable=False))
    return problems


_URL_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*:")
_NAME_RULES = (
    ("webdataset", "gives #, ;, :: and backslashes a special meaning", re.compile(r"[#;\\]|::")),
    ("webdataset", "reads the part before the colon as a URL scheme", _URL_SCHEME),
    ("wids", "reads #, ; and ? as parts of a URL", re.compile(r"[#;?]")),
    ("wids", "reads the part before the colon as a URL scheme", _URL_SCHEME),
    ("huggingface", "reads :: as a path into an archive", re.compile(r"::")),
    ("huggingface", "ignores files whose names start with a dot", re.compile(r"^\.")),
    ("energon", "cannot represent it in YAML", re.compile(r"[\x00-\x1f\x7f-\x9f\"\\{}]")),
)


def unopenable_by(name: str) -> dict[str, str]:
    """Return the readers that cannot open a shard with this file name, with the reasons."""
    reasons: dict[str, str] = {}
    for reader, reason, pattern in _NAME_RULES:
        if pattern.search(name):
            reasons.setdefault(reader, reason)
    return reasons
