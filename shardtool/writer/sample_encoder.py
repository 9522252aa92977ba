"""Check a sample of a program by the rules of `create`, and encode it as a record.

`accept` records what a sample fixes for later samples, such as which fields are numbers. Call it once the sample is
certain to be written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, cast

from shardtool import names, values
from shardtool import names as names_module
from shardtool.entries.record_sizes import STORES_NUMBERS
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.format import tfrecord_write
from shardtool.messages import option_text
from shardtool.table.columns import BAD_FIELD
from shardtool.values import STORED_TYPES
from shardtool.write.shard_records import EncodedField, encode_record
from shardtool.writer.encode_value import BadValue, encode_value

if TYPE_CHECKING:
    from shardtool.skipped import SkipCode
    from shardtool.write.shard_records import Parts


SAMPLE_KEY = "__key__"


_SIMPLE_KEY = re.compile(r"[A-Za-z0-9_\-]+(?:/[A-Za-z0-9_\-]+)*", re.ASCII)  # nothing more is to be looked at


_BAD_KEY_PART = re.compile(r"(?:^|/)\.{0,2}(?:/|$)")


_KEY_HASH_BYTES = 12  # bytes: of 10^9 keys, two share one by chance once in 10^11 runs


class SampleRefused(Exception):
    """A sample that cannot be written: what is raised, and what `out.skipped` says of it."""

    def __init__(self, error: InvalidRequest, code: SkipCode) -> None:
        super().__init__(error)
        self.error, self.code = error, code


class FieldLayout(NamedTuple):
    """The fields of samples that have the same ones.

    Attributes:
        names: The fields, in the order of the bytes of their names, and these bytes.
        dotted: A field with a dot in its name; empty: there is none.
    """

    names: tuple[tuple[str, bytes], ...]
    dotted: str


class EncodedSample(NamedTuple):
    """A sample, encoded.

    Attributes:
        key: Its key.
        mark: The hash of its key.
        fields: What its fields hold.
        parts: Its record.
        size: Bytes of its record.
        layout: Its fields.
        kinds: What each of these is, as `encode_value` says.
        inline: Whether the plan of a table would carry a value of it.
        dotted: Whether its key goes on behind a dot.
    """

    key: bytes
    mark: bytes
    fields: list[EncodedField]
    parts: Parts
    size: int
    layout: FieldLayout
    kinds: tuple[str, ...]
    inline: bool
    dotted: bool


class SampleEncoder:
    """Encodes the samples of a run, and knows what those so far have settled.

    Args:
        shard_format: `tar` or `tfrecord`.
        dots: The dot at which keys end in a tar; None: what the names ask for.

    Attributes:
        kinds: Each field so far, and what its values are; empty: bytes, or of several types.
        inline: Whether any value so far is one that the plan of a table carries.
        dotted_field: A field so far with a dot in its name; empty: there is none.
        dotted_key: Whether a key so far goes on behind a dot.
    """

    def __init__(self, shard_format: str, dots: values.Dots | None) -> None:
        self._format, self._tar, self._dots = shard_format, shard_format == "tar", dots
        self.kinds: dict[str, str] = {}
        self.inline = self.dotted_key = False
        self.dotted_field = ""
        self._marks: set[bytes] = set()
        self._layouts: dict[tuple[str, ...], FieldLayout] = {}
        self._settled: set[tuple[FieldLayout, tuple[str, ...]]] = set()

    @property
    def numbers(self) -> dict[str, values.NumberType]:
        """The fields that are numbers."""
        return values.number_fields(self.kinds)

    @property
    def types(self) -> dict[str, values.ValueType]:
        """What the values of fields are, of those that are of one type."""
        return {name: cast("values.ValueType", kind) for name, kind in self.kinds.items() if kind}

    @property
    def stored_numbers(self) -> dict[bytes, values.NumberType]:
        """The fields that the format stores as numbers."""
        stored = self.numbers if STORES_NUMBERS[self._format] else {}
        return {names.to_bytes(name): kind for name, kind in stored.items()}

    def encode(self, sample: Mapping[str, object]) -> EncodedSample:
        """Return a sample as its record.

        Raises:
            Refused: It cannot be written.
        """
        if type(sample) is not dict and not isinstance(sample, Mapping):
            found = f"a value of the type {type(sample).__name__}"
            raise make_refusal("a sample", found, expected="a dict of its key and its fields")
        names = tuple(sample)
        layout = self._layouts.get(names)
        if layout is None:
            layout = self._layouts[names] = self._lay_out(names)
        given = sample[SAMPLE_KEY]
        key, dotted = self._key(given, layout)
        mark = blake2b(key, digest_size=_KEY_HASH_BYTES).digest()
        if mark in self._marks:
            found, remedy = "a key that an earlier sample of this dataset has", "Give each sample a key of its own."
            raise SampleRefused(InvalidRequest(f"key {printable(key)!r}", found, remedy=remedy), "duplicate")
        fields, kinds, inline = self._fields(key, sample, layout)
        numbers = {
            raw: STORED_TYPES[one] for (_, raw), one in zip(layout.names, kinds, strict=True) if one in STORED_TYPES
        }
        parts = encode_record(self._format, key, fields, numbers)
        return EncodedSample(key, mark, fields, parts, sum(map(len, parts)), layout, kinds, inline, dotted)

    def accept(self, sample: EncodedSample) -> None:
        """Settle what a sample does that will be written."""
        self._marks.add(sample.mark)
        self.dotted_key = self.dotted_key or sample.dotted
        settled = sample.layout, sample.kinds
        if settled not in self._settled:
            self._settled.add(settled)
            self.dotted_field = self.dotted_field or sample.layout.dotted
            for (name, _), kind in zip(sample.layout.names, sample.kinds, strict=True):
                self.kinds[name] = kind
        self.inline = self.inline or sample.inline

    def add_known_keys(self, keys: list[bytes]) -> None:
        """Count keys as those of samples that are written."""
        self._marks.update(blake2b(key, digest_size=_KEY_HASH_BYTES).digest() for key in keys)
        self.dotted_key = self.dotted_key or any(map(names.has_early_dot, keys))

    def restore(self, kinds: Mapping[str, str], *, inline: bool) -> None:
        """Settle what samples that were written before did."""
        self.kinds, self.inline = dict(kinds), inline
        self.dotted_field = next((name for name in kinds if "." in name), "")

    def _lay_out(self, names: tuple[str, ...]) -> FieldLayout:
        """Return the layout of samples with these names, if they can be those of fields."""
        if SAMPLE_KEY not in names:
            raise make_refusal("a sample", "no key", "no-field", expected=f"its key as {SAMPLE_KEY!r}")
        for name in names:
            if name == SAMPLE_KEY:
                continue
            problem = (
                "" if not isinstance(name, str) else names_module.field_problem(name.encode("utf-8", "surrogatepass"))
            )
            if not isinstance(name, str) or BAD_FIELD.search(name) or problem:
                found = f"no name for a field{f': {problem}' if problem else ''}"
                expected = "an ending, such as jpg, cls or seg.png"
                raise make_refusal(f"field {name!r}", found, "unsafe-name", expected=expected)
        fields = sorted([(name, name.encode()) for name in names if name != SAMPLE_KEY], key=lambda one: one[1])
        if not fields:
            raise make_refusal("a sample", "no field", "no-field", expected="one at least, beside its key")
        if self._tar and len({name.lower() for name, _ in fields}) < len(fields):
            found = f"fields that differ in case only: {format_list([name for name, _ in fields])}"
            raise make_refusal(
                "a sample", found, "field-clash", expected="one field of a name in a sample, in any case"
            )
        if len({*self.kinds, *names}) > names_module.MAX_FIELDS:
            found = f"more than {names_module.MAX_FIELDS:,} different fields"
            raise make_refusal("a sample", found, expected="a few")
        return FieldLayout(tuple(fields), next((name for name, _ in fields if "." in name), ""))

    def _key(self, given: object, layout: FieldLayout) -> tuple[bytes, bool]:
        """Return a key's bytes, and whether it goes on behind a dot."""
        if isinstance(given, int) and not isinstance(given, bool):
            given = str(given)
        if not isinstance(given, str):
            found = f"a key of the type {type(given).__name__}"
            raise make_refusal("a sample", found, "unsafe-name", expected="text, or a whole number")
        if _SIMPLE_KEY.fullmatch(given) and len(given) <= names.MAX_NAME_BYTES:
            return given.encode(), False
        key = given.encode("utf-8", "surrogatepass")
        if (problem := names.name_problem(key)) or _BAD_KEY_PART.search(given):
            found = f"no sound name{f': {problem}' if problem else ''}"
            size = f"1 to {names.MAX_NAME_BYTES:,} bytes"
            expected = f"text of {size}, without control characters and parts such as '', '.' or '..'"
            raise make_refusal(f"key {given[:80]!r}", found, "unsafe-name", expected=expected)
        dotted = self._tar and names.has_early_dot(key)
        if dotted or (layout.dotted and self._tar):
            self._check_dots(printable(key), layout, dotted=dotted)
        return key, dotted

    def _check_dots(self, key: str, layout: FieldLayout, *, dotted: bool) -> None:
        """Refuse names in a tar that neither the first dot divides, in all samples so far, nor the last."""
        fields = layout.dotted or self.dotted_field
        if dotted and self._dots == "first":
            found, expected = "a dot in the last part of the key", "keys that end at the first dot"
            remedy = f"Choose {option_text('dots', 'last')}."
            raise make_refusal(f"key {key!r}", found, "unsafe-name", expected=expected, remedy=remedy)
        if fields and (dotted or self.dotted_key or self._dots == "last"):
            found = f"fields with dots ({fields!r})"
            if self._dots != "last":
                found = f"keys with dots in their last part, and {found}"
            expected = "names that the first dot divides, or the last"
            remedy = "Give the fields other names, or make keys without dots."
            raise make_refusal(f"key {key!r}", found, "unsafe-name", expected=expected, remedy=remedy)

    def _fields(
        self, key: bytes, sample: Mapping[str, object], layout: FieldLayout
    ) -> tuple[list[EncodedField], tuple[str, ...], bool]:
        """Return the fields of a sample, what values of them are, and whether any goes into the plan of a table."""
        fields, found, any_inline, kinds = [], [], False, self.kinds
        for name, raw in layout.names:
            value = sample[name]
            if type(value) is bytes:
                data, kind, inline = value, "", False
            else:
                try:
                    data, kind = encode_value(value, name)
                except BadValue as bad:
                    raise make_refusal(_describe_field(key, name), bad.found, expected=bad.expected) from None
                inline = bool(kind)
                any_inline = any_inline or inline
            known = kinds.get(name, kind)
            if kind != known:
                data, kind = self._convert_to_known_kind(key, name, data, (kind, known))
            stored = data
            if kind in STORED_TYPES and not self._tar:
                stored = self._stored_number(key, name, data, STORED_TYPES[kind])
            fields.append(EncodedField(raw, len(data), stored, data if inline else b""))
            found.append(kind)
        return fields, tuple(found), any_inline

    def _convert_to_known_kind(self, key: bytes, name: str, data: bytes, kinds: tuple[str, str]) -> tuple[bytes, str]:
        """Return a value as one of the kind that its field had so far, where that loses nothing; and what both are."""
        number, known = (STORED_TYPES.get(kind) for kind in kinds)
        if number == known:
            return data, number or ""
        if (number, known) == ("int64", "float"):
            return repr(float(int(data))).encode(), "float"
        shown = {None: "no number", "int64": "a whole number", "float": "a float"}
        remedy = "Write floats from the first sample on." if (number, known) == ("float", "int64") else ""
        found, expected = f"{shown[number]}: {printable(data[:40])}", f"{shown[known]}, as in the samples before"
        raise make_refusal(_describe_field(key, name), found, expected=expected, remedy=remedy)

    def _stored_number(self, key: bytes, name: str, text: bytes, number: values.NumberType) -> bytes:
        try:
            return tfrecord_write.encode_number(text, number)
        except (ValueError, OverflowError):
            expected = f"a number that TFRecord's {number} can hold"
            raise make_refusal(_describe_field(key, name), printable(text), expected=expected) from None


def _describe_field(key: bytes, field: str) -> str:
    return f"{printable(key)}, field {field!r}"


def make_refusal(
    where: str, found: str, code: SkipCode = "bad-value", *, expected: str, remedy: str = ""
) -> SampleRefused:
    return SampleRefused(InvalidRequest(where, found, expected=expected, remedy=remedy), code)
