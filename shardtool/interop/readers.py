"""Names that not every reader reads alike: what each reader gets wrong. `select.portable` writes around it.

A shard is plain tar, but readers split names by rules of their own and drop what they do not
expect, without a word. These were seen doing it: webdataset 1.0.2, wids 0.1.11, DALI 2.4.0, datasets 5.2.0,
megatron-energon 7.4.1 (tests/clients).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

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
# What must be there for a rule to be worth a look; and a pattern that matches from what offends to the NUL that ends
# the key, so once a key.
_KEY_RULES: tuple[tuple[str, str, str, tuple[bytes, ...], re.Pattern[bytes]], ...] = (
    ("dot-in-key", "webdataset, wids, DALI, energon and Hugging Face datasets end the key at its first dot",
     "key with a dot in the last part", (b".",), re.compile(rb"\.[^\0/]*\0")),
    ("space-in-key", "wds2idx, which makes DALI's index, breaks at white space; {} does not",
     "key with white space", _WHITESPACE, re.compile(rb"[\x01-\x20\x7f][^\0]*\0")),
    ("meta-folder", "webdataset and energon pass over names in a folder such as __meta__",
     "key in a folder between two underscores on each side", (b"__",), re.compile(rb"(?<![^\0])__[^/\0]*__/[^\0]*\0")),
    ("meta-name", "Hugging Face datasets passes over files whose names start with two underscores",
     "key whose last part starts with two underscores", (b"__",), re.compile(rb"(?<![^\0/])__[^/\0]*\0")),
)  # fmt: skip


_FIELD_RULES = (
    ("upper-case-field", "webdataset lower-cases fields; other readers do not",
     "field in upper case", lambda name: name != name.lower()),
    ("reserved-field", "webdataset, energon and Hugging Face datasets keep names such as __key__ for themselves",
     "field with a name of theirs", re.compile(r"^__(?:key|url|local_path|bad|restore_key|subflavors)__$").search),
    ("unnamable-field", "DALI cannot be asked for a field with white space or a semicolon in its name",
     "field of such a name", re.compile(r"[\x00-\x20\x7f;]").search),
    ("meta-field", "webdataset takes fields that start with two underscores for its own",
     "field of that kind", re.compile(r"^__").search),
)  # fmt: skip


_HUGGINGFACE = "huggingface"
READERS_BY_PROBLEM = {  # by the code of what they get wrong
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
    """Something that a reader would get wrong.

    Attributes:
        code: Stable, for programs.
        readers: Who, and what they do.
        what: What it is about; its first word is the noun.
        count: How many there are.
        example: The first of them.
        mendable: Whether `--portable` ends it.
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
    """What readers would get wrong about the samples of tar shards, which are added some at a time, each kind once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], NameProblem] = {}  # by code and what it is about
        self._samples, self._first = 0, b""  # so far, and the key of the first one
        self._fields: Counter[str] = Counter()
        self._uneven: tuple[str, bytes, bytes] | None = None  # a field, and keys of samples that have and lack it

    def add(self, entries: SampleTable) -> None:
        """Add samples."""
        if not len(entries):
            return
        counts = np.bincount(entries.rows.code, minlength=len(entries.fields)).tolist()
        found = [*find_key_problems(entries.keys), *_long_name_problems(entries)]
        for code, readers, what, is_bad in _FIELD_RULES:
            if bad := [at for at, name in enumerate(entries.fields) if counts[at] and is_bad(name)]:
                example = printable(entries.fields[bad[0]])
                found.append(NameProblem(code, readers, what, sum(counts[at] for at in bad), example))
        found += _text_label_problems(entries)
        large = np.flatnonzero(entries.rows.size > MAX_USTAR_SIZE)
        if len(large):
            example = printable(entries.path(int(large[0])))
            readers = "wids cannot read members of 8 GiB or more"
            found.append(NameProblem("large-member", readers, "field", len(large), example, fixable=False))
        for one in found:
            before = self._found.get((one.code, one.what))
            self._found[one.code, one.what] = replace(before, count=before.count + one.count) if before else one
        self._add_fields(entries, {name: count for name, count in zip(entries.fields, counts, strict=True) if count})

    def add_shard(self, index: ShardIndex, texts: bytes = b"", numbers: Mapping[str, NumberType] | None = None) -> None:
        """Add the samples of a shard.

        Args:
            index: Where they lie.
            texts: The text of each field, a NUL after each, empty where it is none; empty: they are not known.
            numbers: The fields whose texts are numbers.
        """
        names, code_bytes = index.codes_by_name()
        codes, fields, rows = np.frombuffer(code_bytes, np.uint16), tuple(map(to_text, names)), texts[:-1].split(b"\0")
        kind, never = np.full(len(codes), FILE, np.uint8), np.broadcast_to(np.int64(0), len(codes))
        inline: dict[str, PackedStrings] = {}
        for code, name in enumerate(fields):
            if texts and _is_number_field(name):
                column, here = [b""] * len(index), np.flatnonzero(codes == code)
                for row, owner in zip(here.tolist(), index.owners()[here].tolist(), strict=True):
                    if rows[row]:
                        column[owner], kind[row] = rows[row], INLINE
                inline[name] = PackedStrings.of(column)
        keys = PackedStrings.of([key.replace(b"\0", b"?") for key in index.all_keys()])
        columns = FieldRows(codes, kind, index.lengths, never, never)
        values = FieldValues(inline=inline, types=numbers or {})
        self.add(SampleTable(b"/", keys, index.firsts, fields, columns, values=values))

    def _add_fields(self, entries: SampleTable, here: dict[str, int]) -> None:
        """Count fields, and find a sample that has, and one that lacks, the first field that not all samples have."""
        total, before = self._samples + len(entries), self._fields.copy()
        self._fields.update(here)
        order = to_bytes if self._samples else entries.fields.index
        uneven = sorted((name for name, count in self._fields.items() if count < total), key=order)
        self._first = self._first if self._samples else entries.keys[0]
        if uneven and (self._uneven is None or self._uneven[0] != uneven[0]):
            name, count = uneven[0], here.get(uneven[0], 0)
            holders = np.zeros(0, np.int64)
            if count > 0:
                holders = entries.owners(np.flatnonzero(entries.rows.code == entries.fields.index(name)))
            lacking = np.setdiff1d(np.arange(len(entries)), holders)[:1].tolist()
            having = self._first if before[name] else entries.keys[int(holders[0])]
            self._uneven = name, having, self._first if self._samples and not before[name] else entries.keys[lacking[0]]
        self._samples = total

    def problems(self) -> list[NameProblem]:
        """Return what was found."""
        found = [*self._found.values()]
        if self._uneven is not None:
            name, having, lacking = self._uneven
            few = 2 * self._fields[name] < self._samples
            where = f"only in {printable(having)}" if few else f"not in {printable(lacking)}"
            if (others := min(self._fields[name], self._samples - self._fields[name]) - 1) > 0:
                where += f" and {others:,} more"
            readers = "Hugging Face datasets refuses or drops fields that the first five samples lack"
            what, number = "field that not all samples have", sum(one < self._samples for one in self._fields.values())
            found.append(NameProblem("missing-field", readers, what, number, f"{name}, {where}", fixable=False))
        order = [*READERS_BY_PROBLEM]
        return sorted(found, key=lambda one: order.index(one.code))


def find_reader_problems(entries: SampleTable) -> list[NameProblem]:
    """Return what readers would get wrong about these samples in a tar shard, each kind once."""
    found = ReaderProblems()
    found.add(entries)
    return found.problems()


def find_key_problems(keys: PackedStrings) -> list[NameProblem]:
    """Return what readers would get wrong about these keys in a tar shard, each kind once."""
    found = []
    for code, readers, what, signs, pattern in _KEY_RULES:
        first = pattern.search(keys.data) if any(sign in keys.data for sign in signs) else None
        if first:
            sample = int(np.searchsorted(keys.starts, first.start(), "right")) - 1
            count = sum(1 for _ in pattern.finditer(keys.data))
            who = readers.format(export_text("dali-webdataset"))
            found.append(NameProblem(code, who, what, count, printable(keys[sample])))
    return found


def _long_name_problems(entries: SampleTable) -> list[NameProblem]:
    longest = max((len(field) for field in entries.fields), default=0) + 1
    suspects = np.flatnonzero(entries.keys.lengths() + longest > USTAR_NAME_BYTES)
    names = [entries.keys[sample] for sample in np.repeat(suspects, entries.counts_of(suspects)).tolist()]
    fields = [to_bytes(entries.fields[code]) for code in entries.rows.code[entries.rows_of(suspects)].tolist()]
    long = [
        key + b"." + field
        for key, field in zip(names, fields, strict=True)
        if len(key) + len(field) >= USTAR_NAME_BYTES
    ]
    if not long:
        return []
    what, example = "name over 100 bytes", printable(long[0])
    found = [NameProblem("long-name", "wids cuts names at 100 bytes", what, len(long), example)]
    if pax := [name for name in long if split_prefix(name) is None]:
        readers = f"DALI loses the field of a name in a pax header, without an index ({export_text('dali-webdataset')})"
        found.append(NameProblem("pax-name", readers, "name in a pax header", len(pax), printable(pax[0])))
    return found


def _is_number_field(field: str) -> bool:
    """Tell whether a reader takes a field of this name for a whole number."""
    return field.rpartition(".")[2].lower() in NUMBER_FIELDS


def _text_label_problems(entries: SampleTable) -> list[NameProblem]:
    """Find values in fields that a reader takes for whole numbers, and are none."""
    found = []
    for name, texts in entries.values.inline.items():
        if not _is_number_field(name) or name in entries.values.numbers or name not in entries.fields:
            continue
        rows = np.flatnonzero((entries.rows.kind == INLINE) & (entries.rows.code == entries.fields.index(name)))
        samples = entries.owners(rows)
        bad, first = 0, b""
        for some in chunk_slices(len(samples)):
            here = texts.gather(samples[some]).split(b"\0")[:-1]
            wrong = [text for text in here if not _INTEGER.fullmatch(text)]
            bad, first = bad + len(wrong), first or (wrong[0] if wrong else b"")
        if bad:
            readers = f"webdataset's decoder takes the field {name} for a whole number, and fails at text"
            readers += f" ({option_text('classes', (name,))} numbers it)"
            what, example = f"text in {name}", printable(first)[:80]
            found.append(NameProblem("text-label", readers, what, bad, example, fixable=False))
    return found


_URL_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*:")
_NAME_RULES = (
    ("webdataset", "takes #, ;, :: and a backslash for something else", re.compile(r"[#;\\]|::")),
    ("webdataset", "takes what stands before the colon for the kind of a URL", _URL_SCHEME),
    ("wids", "takes #, ; and ? for parts of a URL", re.compile(r"[#;?]")),
    ("wids", "takes what stands before the colon for the kind of a URL", _URL_SCHEME),
    ("huggingface", "takes :: for a way into an archive", re.compile(r"::")),
    ("huggingface", "passes over files whose names start with a dot", re.compile(r"^\.")),
    ("energon", "has no way to write it in its YAML", re.compile(r"[\x00-\x1f\x7f-\x9f\"\\{}]")),
)


def unopenable_by(name: str) -> dict[str, str]:
    """Return the readers that cannot open a shard of this file name, and why."""
    found: dict[str, str] = {}
    for reader, why, pattern in _NAME_RULES:
        if pattern.search(name):
            found.setdefault(reader, why)
    return found
