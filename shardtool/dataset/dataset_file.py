"""Encode and parse dataset files. Only a complete dataset has a dataset file.

The file is a wids index with additional keys, and ends with the CRC-32C of all preceding bytes.

Source: docs/format.md, "Dataset file"; wids 0.1.11, wids_specs.py.
"""

from __future__ import annotations

import json
import posixpath
import re
from bisect import bisect_right
from contextlib import suppress
from dataclasses import field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar, cast

from shardtool.dataclass import dataclass
from shardtool.dataset.features import TfFeature, number_features
from shardtool.dataset.payload import is_named_type
from shardtool.errors import CorruptShard, InvalidRequest, format_list, printable
from shardtool.fingerprint import crc32c
from shardtool.messages import flag_text, recreate_hint
from shardtool.names import to_bytes, to_local_name
from shardtool.pattern import (
    SKIPPED_SUFFIX,
    WRITABLE_FORMATS,
    abbreviate_names,
    is_shard_name,
    parse_format,
    parse_pattern,
    sidecar_name,
)
from shardtool.request.run_record import RunRecord
from shardtool.storage.files import read_small
from shardtool.values import NumberType, ValueType, common_type, number_fields

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    Json = Mapping[str, object]


Value = TypeVar("Value")
FORMAT_VERSION = 1
RUN_VERIFY = "Run `shardtool verify` to list all damage."
# One of these marks is enough to recognise a dataset file, because damage may hide the other mark.
_DATASET_FILE_MARKS = (b'  "shardtool": {\n    "format_version": ', b'  "checksum": "crc32c:')
_WIDS_HEAD = b'{\n  "__kind__": "wids-shard-index'
_APPENDS_MARK = b'\n    "appends": ['
_SHARD_NAME = re.compile(r"(?:[^/\0]+/)*[^/\0]+")
_URL = re.compile(rb'"url": "([^"\\\\]*)"')
_PATTERN_LINE = re.compile(rb'^    "pattern": (".*")', re.MULTILINE)
_CHECKSUM_LINE = '  "checksum": "crc32c:'
_CHECKSUM_BYTES = len(b'01234567"\n}\n')
_RANGE_PATTERN = re.compile(r"[^{}<>]*\{[0-9]{1,200}\.\.[0-9]{0,200}\}[^{}<>]*")
_CRC_HEX = re.compile(r"[0-9a-f]{8}")
_MAX_COUNT = 2**63 - 1
_MAX_OPTION_NUMBER = 2**128
_MAX_NESTING = 8
_MAX_FINGERPRINT_LENGTH = 80
_NUMBER_TYPES, _RECORDED_TYPES = ("int64", "float"), ("bool", "text", "json")
_RUN_FIELDS: dict[str, type[object]] = {"verb": str, "source": str, "split": str, "tool": str, "options": dict}


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """The entry of a shard in a dataset file. `crc` is the shard's CRC-32C, or None if the shard was not read."""

    name: str
    samples: int
    size: int
    crc: int | None
    sidecar: str
    sidecar_size: int
    sidecar_crc: int
    first_key: str
    last_key: str

    def to_json(self, folder: str = "") -> dict[str, object]:
        """Return the entry as a JSON object. `folder` is the shards' folder, relative to the dataset file."""
        return {
            "url": posixpath.join(folder, self.name),
            "nsamples": self.samples,
            "filesize": self.size,
            "crc32c": None if self.crc is None else f"{self.crc:08x}",
            "index": {"name": self.sidecar, "size": self.sidecar_size, "crc32c": f"{self.sidecar_crc:08x}"},
            "first_key": self.first_key,
            "last_key": self.last_key,
        }


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """The content of a dataset file.

    Attributes:
        fields: Number of samples with the field, by field name.
        skipped: Number of rows in `out.skipped`.
        run: A record of the runs that created the dataset and appended samples.
        fingerprint: The content fingerprint, or "" if unknown.
        skipped_crc: CRC-32C of `out.skipped`, or None if this file does not exist.
        types: Value types of fields by name, such as `int64` or `text`. Fields that contain bytes are omitted.
        appends: For each append, the index in `shards` of the first added shard.
        shards_folder: Subfolder of the shards, such as `train/tars`, or "".
        part_of: 0 if `shards` lists all shards of the dataset, else the total number of shards. If only
            some shards are listed, `field_bytes`, `skipped` and `fingerprint` are unknown (0 or "").
    """

    name: str
    pattern: str
    format: str
    shards: tuple[ShardEntry, ...]
    fields: Mapping[str, int]
    field_bytes: int
    skipped: int
    schema: Mapping[str, str]
    classes: Mapping[str, list[str]]
    features: Mapping[str, TfFeature]
    run: RunRecord
    fingerprint: str
    skipped_crc: int | None = None
    types: Mapping[str, ValueType] = field(default_factory=dict)
    appends: tuple[int, ...] = ()
    shards_folder: str = ""
    part_of: int = 0

    @property
    def numbers(self) -> dict[str, NumberType]:
        """The number type of each field that stores numbers as text. Empty for TFRecord."""
        return number_fields(self.types) if self.format == "tar" else {}

    @property
    def skipped_file(self) -> str:
        """File name of the list of skipped samples."""
        return to_local_name(self.name) + SKIPPED_SUFFIX

    def part(self, names: Sequence[str]) -> DatasetFile:
        """Return a dataset file that lists only the shards `names`, in this order."""
        indexes = {shard.name: index for index, shard in enumerate(self.shards)}
        selected = [indexes[name] for name in names]
        if selected == [*range(len(self.shards))]:
            return self
        append_numbers = [bisect_right(self.appends, number) for number in selected]
        chosen = replace(
            self,
            pattern=abbreviate_names(names),
            shards=tuple(self.shards[number] for number in selected),
            appends=tuple(
                index for index, (before, append) in enumerate(pairwise(append_numbers), 1) if append != before
            ),
        )
        if sorted(selected) == [*range(len(self.shards))]:
            return chosen
        samples, total = (sum(shard.samples for shard in shards) for shards in (chosen.shards, self.shards))
        complete = all(count == total for count in self.fields.values())
        return replace(
            chosen,
            fields=dict.fromkeys(self.fields, samples) if complete else {},
            field_bytes=0,
            skipped=0,
            skipped_crc=None,
            fingerprint="",
            part_of=len(self.shards),
        )

    def encode(self) -> bytes:
        """Return the bytes of the dataset file."""
        types = {name: kind for name, kind in self.types.items() if kind in _RECORDED_TYPES and not is_named_type(name)}
        document = {
            "__kind__": "wids-shard-index-v1",
            "wids_version": 1,
            "name": self.name,
            "shardlist": [shard.to_json(self.shards_folder) for shard in self.shards],
            "shardtool": {
                "format_version": FORMAT_VERSION,
                "format": self.format,
                "pattern": self.pattern,
                **({"shards_folder": self.shards_folder} if self.shards_folder else {}),
                "totals": {
                    "shards": len(self.shards),
                    "samples": sum(shard.samples for shard in self.shards),
                    "size": sum(shard.size for shard in self.shards),
                    "field_bytes": self.field_bytes,
                    "skipped": self.skipped,
                },
                **({} if self.skipped_crc is None else {"skipped_crc32c": f"{self.skipped_crc:08x}"}),
                "fields": dict(self.fields),
                "schema": dict(self.schema),
                "classes": dict(self.classes),
                **({"features": self.feature_texts()} if self.features else {}),
                **({"numbers": numbers} if (numbers := self.numbers) else {}),
                **({"types": types} if types else {}),
                "made": self.run.document,
                **({"appends": list(self.appends)} if self.appends else {}),
                "fingerprint": self.fingerprint,
            },
        }
        text = json.dumps(document, indent=2, ensure_ascii=True).removesuffix("\n}")
        body = f"{text},\n{_CHECKSUM_LINE}".encode()
        return body + b'%08x"\n}\n' % crc32c(body)

    def feature_texts(self) -> dict[str, str]:
        """Return the Python source of each feature, by name, for `tf.io.parse_single_example`."""
        return {name: feature.encode() for name, feature in self.features.items()}


def merge_value_types(parts: Sequence[tuple[Mapping[str, ValueType], Collection[str]]]) -> dict[str, ValueType]:
    """Return the common value type of each field across groups of shards.

    `parts` has the value types and field names of each group (no names if unknown).
    """
    names = sorted({name for types, _ in parts for name in types}, key=to_bytes)
    common = {
        name: common_type(types.get(name) for types, fields in parts if name in fields or not fields) for name in names
    }
    return {name: value_type for name, value_type in common.items() if value_type is not None}


def is_dataset_content(data: bytes) -> bool:
    """Return whether `data` is a dataset file, even a damaged one."""
    return any(mark in data for mark in _DATASET_FILE_MARKS) or _is_rewritten(data)


def parse_shard_names(data: bytes) -> list[str] | None:
    """Return the shard names in a dataset file, or None for other files. Skip unreadable names in a damaged file."""
    if not is_dataset_content(data):
        return None
    if (names := _parse_urls(data)) is None:
        return [name.decode("utf-8", "replace") for name in _URL.findall(data)]
    return [name.encode("utf-8", "replace").decode() for name in names if isinstance(name, str)]


def _parse_urls(data: bytes) -> list[Any] | None:
    try:
        return [shard["url"] for shard in json.loads(data)["shardlist"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def parse_listed_shards(data: bytes, path: str) -> tuple[list[str], bool]:
    """Return the local paths of the shards in a dataset file or wids index, and whether shardtool wrote the file.

    Raises:
        CorruptShard: The file is not a dataset file or wids index, or a path leads out of the file's folder.
    """
    names = parse_shard_names(data)
    is_own = names is not None
    if names is None:  # in the wids index of another tool, a name with a colon is a URL
        names = _parse_urls(data)
    if names is None or not all(isinstance(name, str) for name in names):
        raise _not_a_dataset_file(path, data, "a dataset file of shardtool or a wids index")
    if outside := [name for name in names if not _is_local_shard(name, "://" if is_own else ":")]:
        found = f"shard names that do not lead into its folder: {format_list([printable(name) for name in outside])}"
        raise CorruptShard(path, found, expected="file names", remedy="Nothing was read from there.")
    return [to_local_name(name) for name in names], is_own


def _is_local_shard(name: str, url_mark: str) -> bool:
    is_local = ".." not in name.split("/") and url_mark not in name
    return is_local and bool(_SHARD_NAME.fullmatch(name)) and printable(name) == name


def parse_local_shards(data: bytes) -> tuple[list[str], str]:
    """Return the names of the shards that a dataset file lists in its own folder, and the shard pattern.

    If the file is damaged, return the readable names. An unreadable pattern is returned as "".
    """
    match, pattern = _PATTERN_LINE.search(data), ""
    with suppress(ValueError):
        pattern = str(json.loads(match[1])) if match else ""
    return [to_local_name(name) for name in parse_shard_names(data) or () if _is_plain_name(name)], pattern


def _not_a_dataset_file(name: str, data: bytes, expected: str = "a dataset file of shardtool") -> CorruptShard:
    remedy = f"Run the original command with {flag_text('resume')}, or `shardtool index` on the shards "
    remedy += f"with {flag_text('overwrite')}, to recreate the file."
    if _is_own_dataset_file(data):
        return CorruptShard(name, f"a damaged dataset file of {len(data):,} bytes", remedy=remedy)
    if _WIDS_HEAD.startswith(data):
        return CorruptShard(name, f"a damaged file of {len(data):,} bytes", expected=expected, remedy=remedy)
    return CorruptShard(name, "not a dataset file", expected=expected)


def _is_own_dataset_file(data: bytes) -> bool:
    is_truncated = data.startswith(_WIDS_HEAD) and not data.rstrip().endswith(b"}")
    return is_truncated or any(mark in data for mark in _DATASET_FILE_MARKS)


def may_be_dataset_file(data: bytes) -> bool:
    """Return whether a file may be a dataset file of shardtool, even a damaged or empty one."""
    return _WIDS_HEAD.startswith(data) or _is_own_dataset_file(data)


def _is_rewritten(data: bytes) -> bool:
    try:
        return b'"shardtool"' in data and "format_version" in json.loads(data)["shardtool"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def has_appends(data: bytes) -> bool:
    """Return whether a dataset file, even a damaged one, records appended samples."""
    return _APPENDS_MARK in data


def parse_dataset(data: bytes, name: str) -> DatasetFile:
    """Parse a dataset file. Check its totals, and that the shard names match the shard pattern.

    Raises:
        CorruptShard: The file is damaged or invalid, or has a newer format version.
    """
    if not all(mark in data for mark in _DATASET_FILE_MARKS):
        if _is_rewritten(data):
            raise CorruptShard(name, "a dataset file that another program rewrote, so its checksum cannot be verified")
        raise _not_a_dataset_file(name, data)
    body = data[:-_CHECKSUM_BYTES]
    if data[len(body) :] != b'%08x"\n}\n' % crc32c(body) or not body.endswith(_CHECKSUM_LINE.encode()):
        raise CorruptShard(name, "its checksum does not match its bytes", remedy=recreate_hint())
    try:
        document = json.loads(data)
        record = _get_typed(document, "shardtool", dict)
        if (version := _get_typed(record, "format_version", int)) == FORMAT_VERSION:
            _check_texts(document, record)
            return _parse_dataset(document, record)
    except (KeyError, TypeError, ValueError, RecursionError, InvalidRequest) as error:
        raise CorruptShard(name, f"not a valid dataset file: {str(error)[:200]}", remedy=recreate_hint()) from None
    raise CorruptShard(name, f"format version {version}", expected=f"{FORMAT_VERSION}", remedy="Use a newer shardtool.")


def read_valid_dataset(path: str) -> DatasetFile | None:
    """Return the content of a dataset file, or None if the file is damaged or cannot be read."""
    try:
        return parse_dataset(read_small(path), path)
    except (OSError, CorruptShard):
        return None


def _is_plain_name(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and printable(name) == name


def _check_texts(document: Json, record: Json) -> None:
    try:
        _to_json({**document, "shardtool": {**record, "made": None}}).encode()
        _to_json(record["made"]).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueError("a string that is not valid Unicode") from None


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _parse_dataset(document: Json, record: Json) -> DatasetFile:
    folder: str = _get_typed(record, "shards_folder", str) if "shards_folder" in record else ""
    for part in folder.split("/") if "shards_folder" in record else ():
        _parse_file_name({"part": part}, "part")
    shards = tuple(_parse_shard(shard, folder and f"{folder}/") for shard in _get_typed(document, "shardlist", list))
    _require(shards, "no shards")
    _require(len({shard.sidecar for shard in shards}) == len(shards), "a sidecar is listed twice")
    shard_format: str = _get_typed(record, "format", str)
    _require(shard_format in WRITABLE_FORMATS.values(), f"unknown format {shard_format!r:.40}")
    for shard in shards:
        if parse_format(shard.name) not in (shard_format, "") or not is_shard_name(shard.name):
            raise ValueError(f"{shard.name!r:.80} is not a file name of a {shard_format} shard")
    totals: Json = _get_typed(record, "totals", dict)
    sums = {name: sum(getattr(shard, name) for shard in shards) for name in ("samples", "size")}
    for name, total in {"shards": len(shards), **sums}.items():
        valid = _get_typed(totals, name, int) == total
        _require(valid, f"{totals[name]:,} {name} in total, but {total:,} in the list of shards")
    appends: list[int] = _get_typed(record, "appends", list) if "appends" in record else []
    bounds = [0, *appends, len(shards)]
    valid = all(type(number) is int for number in appends) and sorted({*bounds}) == bounds
    problem = f"appends at the shards {appends!r:.80}, which must ascend from 1 to {len(shards) - 1}"
    _require(valid or "appends" not in record, problem)
    fields = _parse_mapping(record, "fields", int)
    feature_texts = _parse_mapping(record, "features", str) if "features" in record else {}
    features = {name: TfFeature.parse(text) for name, text in feature_texts.items()}
    types: dict[str, ValueType] = {name: kind for name, kind in number_features(features).items() if name in fields}
    for key, allowed in (("numbers", _NUMBER_TYPES), ("types", _RECORDED_TYPES)):
        for name, value_type in _parse_mapping(record, key, str).items() if key in record else ():
            valid = value_type in allowed and name in fields and (shard_format == "tar" or key == "types")
            _require(valid, f"an invalid type {value_type!r:.40} of the field {name!r:.40} in {key!r}")
            types[name] = cast("ValueType", value_type)
    classes: dict[str, list[str]] = _parse_mapping(record, "classes", list)
    for name, names in classes.items():
        invalid = [value for value in names if type(value) is not str]
        _require(not invalid, f"the classes of {name!r:.40} contain {invalid[:1]!r:.80}")
    fingerprint: str = _get_typed(record, "fingerprint", str)
    _require(len(fingerprint) <= _MAX_FINGERPRINT_LENGTH, f"an invalid fingerprint {fingerprint!r:.80}")
    return DatasetFile(
        name=_parse_file_name(document, "name"),
        pattern=_parse_pattern(record, shards),
        format=shard_format,
        shards=shards,
        fields=fields,
        field_bytes=_get_typed(totals, "field_bytes", int),
        skipped=_get_typed(totals, "skipped", int),
        schema=_parse_mapping(record, "schema", str),
        classes=classes,
        features=features,
        run=_parse_run(record, len(appends)),
        fingerprint=fingerprint,
        skipped_crc=_parse_crc(record, "skipped_crc32c") if "skipped_crc32c" in record else None,
        types=types,
        appends=tuple(appends),
        shards_folder=folder,
    )


def _parse_pattern(record: Json, shards: Sequence[ShardEntry]) -> str:
    text: str = _parse_file_name(record, "pattern")
    if any(mark in text for mark in "{}<>"):
        _require(_RANGE_PATTERN.fullmatch(text), f"an invalid pattern {text!r:.80}")
        pattern, count = parse_pattern(text), len(shards)
        enough = pattern.count is None or pattern.count >= count
        _require(enough, f"{count:,} shards, but {pattern.count or 0:,} names in the pattern {text!r:.80}")
        for number, shard in enumerate(shards):
            if pattern.shard(number) != shard.name:
                raise ValueError(f"the name {shard.name!r:.80} does not follow the pattern {text!r:.80}")
    return text


def _parse_mapping(record: Json, name: str, value_type: type[Value]) -> dict[str, Value]:
    mapping: dict[str, Value] = _get_typed(record, name, dict)
    for key in mapping:
        _get_typed(mapping, key, value_type)
    return mapping


def _parse_run(record: Json, appends: int) -> RunRecord:
    made: dict[str, object] = _get_typed(record, "made", dict)
    appended = _get_typed(made, "appended", list) if "appended" in made else []
    problem = f"{len(appended):,} records of appends, but {appends:,} appends in the list of shards"
    _require(len(appended) == appends, problem)
    for number, run in enumerate([made, *appended]):
        _require(type(run) is dict, f"the record of append {number} is {run!r:.80}")
        for name, kind in _RUN_FIELDS.items():
            if name in run:
                _get_typed(run, name, kind)
        split = run.get("split", "-")
        _require(_is_plain_name(split.replace("/", "-")), f"an invalid split name {split!r:.80}")
    splits = _get_typed(made, "splits", list) if "splits" in made else []
    valid = all(type(name) is str and _is_plain_name(name.replace("/", "-")) for name in splits)
    is_listed = "splits" not in made or made.get("split") in splits
    _require(valid and is_listed, f"invalid splits {splits!r:.80}, or none of them is {made.get('split')!r:.80}")
    _check_values(made)
    return RunRecord(made)


def _check_values(value: object, depth: int = 0) -> None:
    _require(depth <= _MAX_NESTING, f"a record of the run with more than {_MAX_NESTING} levels of nesting")
    bounded = type(value) is not int or abs(value) <= _MAX_OPTION_NUMBER
    _require(bounded, "a record of the run with too large a number")
    if isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_values(item, depth + 1)


def _parse_shard(entry: Json, folder_prefix: str) -> ShardEntry:
    if not (url := _get_typed(entry, "url", str)).startswith(folder_prefix):
        raise ValueError(f"{url!r:.80} is not a file in the folder {folder_prefix[:-1]!r:.80}")
    index = _get_typed(entry, "index", dict)
    name = _parse_file_name({"url": url.removeprefix(folder_prefix)}, "url")
    if (sidecar := _parse_file_name(index, "name")) != sidecar_name(name):
        raise ValueError(f"{sidecar!r:.80} is not the name of the sidecar of {name!r:.80}")
    samples, size = (_get_typed(entry, key, int) for key in ("nsamples", "filesize"))
    crc = None if entry["crc32c"] is None else _parse_crc(entry)
    if samples > size:
        raise ValueError(f"{samples:,} samples in the {size:,} bytes of {name!r:.80}")
    sidecar_facts = _get_typed(index, "size", int), _parse_crc(index)
    keys = (_get_typed(entry, key, str) for key in ("first_key", "last_key"))
    return ShardEntry(name, samples, size, crc, sidecar, *sidecar_facts, *keys)


def _get_typed(document: Json, name: str, value_type: type[Value]) -> Value:
    value = document[name]
    if type(value) is not value_type or (isinstance(value, int) and not 0 <= value <= _MAX_COUNT):
        raise TypeError(f"{name} is {value!r:.80}")
    return value


def _parse_crc(entry: Json, name: str = "crc32c") -> int:
    if not _CRC_HEX.fullmatch(text := _get_typed(entry, name, str)):
        raise ValueError(f"an invalid checksum {text!r:.80}")
    return int(text, 16)


def _parse_file_name(document: Json, key: str) -> str:
    name: str = _get_typed(document, key, str)
    if not _is_plain_name(name):
        raise ValueError(f"{name!r:.80} is not a file name")
    return name
