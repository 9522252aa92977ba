"""Check a sample by the same rules as `create`, and encode it as a record.

A written sample restricts later samples. For example, a field keeps the type of its first value. `encode` checks
these restrictions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, cast

from shardtool import names, values
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
_SIMPLE_KEY = re.compile(r"[A-Za-z0-9_\-]+(?:/[A-Za-z0-9_\-]+)*", re.ASCII)
_BAD_KEY_PART = re.compile(r"(?:^|/)\.{0,2}(?:/|$)")
_KEY_HASH_BYTES = 12  # a collision is expected in one of 10^11 runs with 10^9 keys each


class SampleRefused(Exception):
    """A sample cannot be written, because of `error`. `code` is the reason code if the sample is skipped."""

    def __init__(self, error: InvalidRequest, code: SkipCode) -> None:
        super().__init__(error)
        self.error, self.code = error, code


class FieldLayout(NamedTuple):
    """The encoded field names of a sample.

    Attributes:
        names: Pairs of a field name and the encoded name, sorted by encoded name.
        dotted_field: A field whose name contains a dot, or "".
    """

    names: tuple[tuple[str, bytes], ...]
    dotted_field: str


class EncodedSample(NamedTuple):
    """An encoded sample.

    Attributes:
        kinds: The type of each field, as returned by `encode_value`.
        inline: Whether any value has a type that a table column can contain.
        has_dotted_key: Whether the key contains a dot after its last slash.
    """

    key: bytes
    key_hash: bytes
    fields: list[EncodedField]
    parts: Parts
    size: int
    layout: FieldLayout
    kinds: tuple[str, ...]
    inline: bool
    has_dotted_key: bool


class SampleEncoder:
    """Encodes samples, and remembers how accepted samples restrict later samples.

    Attributes:
        kinds: The type of each field, or "" if the field contains bytes or values of several types.
    """

    def __init__(self, shard_format: str, dots: values.Dots | None) -> None:
        self._format, self._is_tar, self._dots = shard_format, shard_format == "tar", dots
        self.kinds: dict[str, str] = {}
        self.inline = self.has_dotted_key = False
        self.dotted_field = ""
        self._key_hashes: set[bytes] = set()
        self._layouts: dict[tuple[str, ...], FieldLayout] = {}
        self._accepted_layouts: set[tuple[FieldLayout, tuple[str, ...]]] = set()

    @property
    def numbers(self) -> dict[str, values.NumberType]:
        """The fields whose values are numbers, with their number types."""
        return values.number_fields(self.kinds)

    @property
    def types(self) -> dict[str, values.ValueType]:
        """The type of each field, except fields that contain bytes or values of several types."""
        return {name: cast("values.ValueType", kind) for name, kind in self.kinds.items() if kind}

    @property
    def stored_numbers(self) -> dict[bytes, values.NumberType]:
        """The fields that the shard format stores as numbers."""
        stored = self.numbers if STORES_NUMBERS[self._format] else {}
        return {names.to_bytes(name): kind for name, kind in stored.items()}

    def encode(self, sample: Mapping[str, object]) -> EncodedSample:
        """Check and encode a sample. Raise `SampleRefused` if it cannot be written."""
        if type(sample) is not dict and not isinstance(sample, Mapping):
            found = f"a value of the type {type(sample).__name__}"
            raise make_refusal("a sample", found, expected="a dict with a key and fields")
        field_names = tuple(sample)
        layout = self._layouts.get(field_names)
        if layout is None:
            layout = self._layouts[field_names] = self._make_layout(field_names)
        raw_key = sample[SAMPLE_KEY]
        key, has_dot = self._encode_key(raw_key, layout)
        key_hash = blake2b(key, digest_size=_KEY_HASH_BYTES).digest()
        if key_hash in self._key_hashes:
            found, remedy = "a duplicate key", "Give each sample a unique key."
            raise SampleRefused(InvalidRequest(f"key {printable(key)!r}", found, remedy=remedy), "duplicate")
        fields, kinds, inline = self._encode_fields(key, sample, layout)
        numbers = {
            raw: STORED_TYPES[kind] for (_, raw), kind in zip(layout.names, kinds, strict=True) if kind in STORED_TYPES
        }
        parts = encode_record(self._format, key, fields, numbers)
        return EncodedSample(key, key_hash, fields, parts, sum(map(len, parts)), layout, kinds, inline, has_dot)

    def accept(self, sample: EncodedSample) -> None:
        """Remember how `sample` restricts later samples. The caller will write it."""
        self._key_hashes.add(sample.key_hash)
        self.has_dotted_key = self.has_dotted_key or sample.has_dotted_key
        layout_and_kinds = sample.layout, sample.kinds
        if layout_and_kinds not in self._accepted_layouts:
            self._accepted_layouts.add(layout_and_kinds)
            self.dotted_field = self.dotted_field or sample.layout.dotted_field
            for (name, _), kind in zip(sample.layout.names, sample.kinds, strict=True):
                self.kinds[name] = kind
        self.inline = self.inline or sample.inline

    def add_existing_keys(self, keys: list[bytes]) -> None:
        """Add the keys of existing samples. Later samples with these keys are refused."""
        self._key_hashes.update(blake2b(key, digest_size=_KEY_HASH_BYTES).digest() for key in keys)
        self.has_dotted_key = self.has_dotted_key or any(map(names.has_early_dot, keys))

    def restore(self, kinds: Mapping[str, str], *, inline: bool) -> None:
        """Restore the restrictions that existing samples put on fields."""
        self.kinds, self.inline = dict(kinds), inline
        self.dotted_field = next((name for name in kinds if "." in name), "")

    def _make_layout(self, field_names: tuple[str, ...]) -> FieldLayout:
        if SAMPLE_KEY not in field_names:
            raise make_refusal("a sample", "no key", "no-field", expected=f"a key named {SAMPLE_KEY!r}")
        for name in field_names:
            if name == SAMPLE_KEY:
                continue
            problem = "" if not isinstance(name, str) else names.field_problem(name.encode("utf-8", "surrogatepass"))
            if not isinstance(name, str) or BAD_FIELD.search(name) or problem:
                found = f"not a valid field name{f': {problem}' if problem else ''}"
                expected = "a file extension such as jpg, cls or seg.png"
                raise make_refusal(f"field {name!r}", found, "unsafe-name", expected=expected)
        encoded_names = [(name, name.encode()) for name in field_names if name != SAMPLE_KEY]
        fields = sorted(encoded_names, key=lambda field: field[1])
        if not fields:
            raise make_refusal("a sample", "no field", "no-field", expected="at least one field in addition to the key")
        if self._is_tar and len({name.lower() for name, _ in fields}) < len(fields):
            found = f"fields that differ only in case: {format_list([name for name, _ in fields])}"
            expected = "field names that differ without regard to case"
            raise make_refusal("a sample", found, "field-clash", expected=expected)
        if len({*self.kinds, *field_names}) > names.MAX_FIELDS:
            found = f"more than {names.MAX_FIELDS:,} different fields"
            raise make_refusal("a sample", found, expected="fewer fields")
        return FieldLayout(tuple(fields), next((name for name, _ in fields if "." in name), ""))

    def _encode_key(self, raw_key: object, layout: FieldLayout) -> tuple[bytes, bool]:
        if isinstance(raw_key, int) and not isinstance(raw_key, bool):
            raw_key = str(raw_key)
        if not isinstance(raw_key, str):
            found = f"a key of the type {type(raw_key).__name__}"
            raise make_refusal("a sample", found, "unsafe-name", expected="text or an integer")
        if _SIMPLE_KEY.fullmatch(raw_key) and len(raw_key) <= names.MAX_NAME_BYTES:
            return raw_key.encode(), False
        key = raw_key.encode("utf-8", "surrogatepass")
        if (problem := names.name_problem(key)) or _BAD_KEY_PART.search(raw_key):
            found = f"not a valid name{f': {problem}' if problem else ''}"
            size = f"1 to {names.MAX_NAME_BYTES:,} bytes"
            expected = f"text of {size} without control characters or parts such as '', '.' and '..'"
            raise make_refusal(f"key {raw_key[:80]!r}", found, "unsafe-name", expected=expected)
        has_dot = self._is_tar and names.has_early_dot(key)
        if has_dot or (layout.dotted_field and self._is_tar):
            self._check_dots(printable(key), layout, has_dot=has_dot)
        return key, has_dot

    def _check_dots(self, key: str, layout: FieldLayout, *, has_dot: bool) -> None:
        fields = layout.dotted_field or self.dotted_field
        if has_dot and self._dots == "first":
            found, expected = "a dot in the last part of the key", "no dot, because keys end at the first dot"
            remedy = f"Use {option_text('dots', 'last')}."
            raise make_refusal(f"key {key!r}", found, "unsafe-name", expected=expected, remedy=remedy)
        if fields and (has_dot or self.has_dotted_key or self._dots == "last"):
            found = f"fields with dots ({fields!r})"
            if self._dots != "last":
                found = f"keys with dots in their last part, and {found}"
            expected = "names that can all be split at the first dot, or all at the last"
            remedy = "Rename the fields, or use keys without dots."
            raise make_refusal(f"key {key!r}", found, "unsafe-name", expected=expected, remedy=remedy)

    def _encode_fields(
        self, key: bytes, sample: Mapping[str, object], layout: FieldLayout
    ) -> tuple[list[EncodedField], tuple[str, ...], bool]:
        fields, found_kinds, any_inline, kinds = [], [], False, self.kinds
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
            known_kind = kinds.get(name, kind)
            if kind != known_kind:
                data, kind = self._convert_to_known_kind(key, name, data, (kind, known_kind))
            stored = data
            if kind in STORED_TYPES and not self._is_tar:
                stored = self._encode_number(key, name, data, STORED_TYPES[kind])
            fields.append(EncodedField(raw, len(data), stored, data if inline else b""))
            found_kinds.append(kind)
        return fields, tuple(found_kinds), any_inline

    def _convert_to_known_kind(self, key: bytes, name: str, data: bytes, kinds: tuple[str, str]) -> tuple[bytes, str]:
        number, known = (STORED_TYPES.get(kind) for kind in kinds)
        if number == known:
            return data, number or ""
        if (number, known) == ("int64", "float"):
            return repr(float(int(data))).encode(), "float"
        names_by_kind = {None: "not a number", "int64": "an integer", "float": "a float"}
        remedy = "Write floats in all samples." if (number, known) == ("float", "int64") else ""
        found = f"{names_by_kind[number]}: {printable(data[:40])}"
        expected = f"{names_by_kind[known]}, as in earlier samples"
        raise make_refusal(_describe_field(key, name), found, expected=expected, remedy=remedy)

    def _encode_number(self, key: bytes, name: str, text: bytes, number: values.NumberType) -> bytes:
        try:
            return tfrecord_write.encode_number(text, number)
        except (ValueError, OverflowError):
            expected = f"a number that fits in the TFRecord type {number}"
            raise make_refusal(_describe_field(key, name), printable(text), expected=expected) from None


def _describe_field(key: bytes, field: str) -> str:
    return f"{printable(key)}, field {field!r}"


def make_refusal(
    where: str, found: str, code: SkipCode = "bad-value", *, expected: str, remedy: str = ""
) -> SampleRefused:
    """Return a `SampleRefused` with an `InvalidRequest` made from the arguments."""
    return SampleRefused(InvalidRequest(where, found, expected=expected, remedy=remedy), code)
