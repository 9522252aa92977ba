"""The dataset file: JSON that lists the shards. It exists only for a complete dataset.

It is a wids index (`wids.ShardListDataset("out.json")` opens it) with additional keys. Its last line holds the
CRC-32C of all bytes before the value, so any changed byte is detected. It contains no clock, host, user or absolute
path.

Source: docs/format.md, "Dataset file"; wids 0.1.11, `wids_specs.py`.
"""

from __future__ import annotations

import json
import posixpath
import re
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar, cast

from shardtool.dataset.features import TfFeature, number_features
from shardtool.dataset.payload import is_named_type
from shardtool.errors import CorruptShard, InvalidRequest, format_list, printable
from shardtool.fingerprint import crc32c
from shardtool.messages import flag_text, option_text, recreate_hint
from shardtool.names import to_bytes, to_local_name
from shardtool.pattern import SKIPPED_SUFFIX, WRITABLE_FORMATS, abbreviate_names, parse_pattern, sidecar_name
from shardtool.request.run_record import RunRecord
from shardtool.shard_names import is_shard_name, parse_format
from shardtool.storage.files import read_small
from shardtool.values import NumberType, ValueType, common_type, number_fields

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    Json = Mapping[str, object]


Value = TypeVar("Value")


FORMAT_VERSION = 1


_OWN_MARKS = (b'  "shardtool": {\n    "format_version": ', b'  "checksum": "crc32c:')  # one flipped bit spares one


_WIDS_HEAD = b'{\n  "__kind__": "wids-shard-index'


_APPENDS_MARK = b'\n    "appends": ['


_SHARD_NAME = re.compile(r"(?:[^/\0]+/)*[^/\0]+")


_URL = re.compile(rb'"url": "([^"\\\\]*)"')


_PATTERN_LINE = re.compile(rb'^    "pattern": (".*")', re.MULTILINE)


_CHECKSUM_LINE = '  "checksum": "crc32c:'


_CHECKSUM_BYTES = len(b'01234567"\n}\n')  # of the checksum itself, and what follows it


_RANGE_PATTERN = re.compile(r"[^{}<>]*\{[0-9]{1,200}\.\.[0-9]{0,200}\}[^{}<>]*")


_CRC_HEX = re.compile(r"[0-9a-f]{8}")


_MAX_COUNT = 2**63 - 1  # what a column of whole numbers can hold


_MAX_OPTION_NUMBER = 2**128  # a seed may be large; what a float can hold is far more


_MAX_NESTING = 8  # an option is a value or a list of texts, in options, in a run, in `appended`


_MAX_FINGERPRINT_LENGTH = 80  # ours has 67 characters


_NUMBER_TYPES, _RECORDED_TYPES = ("int64", "float"), ("bool", "text", "json")


_RUN_FIELDS: dict[str, type[object]] = {"verb": str, "source": str, "split": str, "tool": str, "options": dict}


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard as the dataset file lists it; `crc` is None where it was not read."""

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
        """Return wids's keys, then ours; a reader of wids finds a shard from the dataset file's folder."""
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
        name: The dataset's name.
        pattern: Its shard pattern.
        format: `tar` or `tfrecord`.
        shards: In order.
        fields: How many samples have each field.
        field_bytes: Payload bytes.
        skipped: How many rows `out.skipped` has.
        schema: The sidecars' columns and their types.
        classes: Field to the names of its class numbers.
        features: Only for TFRecord.
        made: How it was made, and what was appended since.
        fingerprint: The content fingerprint; empty: unknown, since not all was read.
        skipped_crc: CRC-32C of `out.skipped`; None where there is none.
        types: Field to what its values were, of which payloads are the texts; of TFRecords, their numbers too.
        appends: The number of the first shard of each append, in the order of `appended` in `made`.
        shards_folder: Where the shards lie: below the dataset file's folder, such as `train/tars`; empty: beside it.
        part_of: How many shards the dataset has of which these are a part; 0: these are all. Of a part nothing is said
            that only all of them can tell: `field_bytes`, `skipped`, `hash_shard_plan`, and `fields` where some lack one.
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
    made: RunRecord
    fingerprint: str
    skipped_crc: int | None = None
    types: Mapping[str, ValueType] = field(default_factory=dict)
    appends: tuple[int, ...] = ()
    shards_folder: str = ""
    part_of: int = 0

    @property
    def numbers(self) -> dict[str, NumberType]:
        """The fields whose texts stand for numbers; those of TFRecords stand in `parse_features`."""
        return number_fields(self.types) if self.format == "tar" else {}

    @property
    def skipped_file(self) -> str:
        """What the file system calls the list of what was left out."""
        return to_local_name(self.name) + SKIPPED_SUFFIX

    def part(self, names: Sequence[str]) -> DatasetFile:
        """Return what is said of some of the shards, in this order."""
        places = {one.name: at for at, one in enumerate(self.shards)}
        numbers = [places[name] for name in names]
        if numbers == [*range(len(self.shards))]:
            return self
        runs = [bisect_right(self.appends, number) for number in numbers]
        chosen = replace(
            self,
            pattern=abbreviate_names(names),
            shards=tuple(self.shards[number] for number in numbers),
            appends=tuple(at for at, (before, run) in enumerate(pairwise(runs), 1) if run != before),
        )
        if sorted(numbers) == [*range(len(self.shards))]:
            return chosen
        samples, total = (sum(one.samples for one in shards) for shards in (chosen.shards, self.shards))
        known = all(count == total for count in self.fields.values())
        return replace(
            chosen,
            fields=dict.fromkeys(self.fields, samples) if known else {},
            field_bytes=0,
            skipped=0,
            skipped_crc=None,
            fingerprint="",
            part_of=len(self.shards),
        )

    def encode(self) -> bytes:
        """Return the file's bytes."""
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
                **({"types": types} if (types := _types_to_record(self.types)) else {}),
                "made": self.made.document,
                **({"appends": list(self.appends)} if self.appends else {}),
                "fingerprint": self.fingerprint,
            },
        }
        text = json.dumps(document, indent=2, ensure_ascii=True).removesuffix("\n}")
        body = f"{text},\n{_CHECKSUM_LINE}".encode()
        return body + b'%08x"\n}\n' % crc32c(body)

    def feature_texts(self) -> dict[str, str]:
        """Return what `tf.io.parse_single_example` wants for each feature, as Python source."""
        return {name: one.encode() for name, one in self.features.items()}


def _types_to_record(types: Mapping[str, ValueType]) -> dict[str, ValueType]:
    """Return the types that neither `numbers` or `parse_features` nor the names of the fields tell."""
    return {name: kind for name, kind in types.items() if kind in _RECORDED_TYPES and not is_named_type(name)}


def merge_value_types(parts: Sequence[tuple[Mapping[str, ValueType], Collection[str]]]) -> dict[str, ValueType]:
    """Return what the values of fields are in all datasets that have them, or that do not say which they have.

    Args:
        parts: Of each dataset, the types, and the fields.
    """
    names = sorted({name for types, _ in parts for name in types}, key=to_bytes)
    kinds = {name: common_type(types.get(name) for types, has in parts if name in has or not has) for name in names}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def parse_shard_names(data: bytes) -> list[str] | None:
    """Return the shards that a dataset file lists, as far as it can be read; None where `data` is none of ours."""
    if not any(mark in data for mark in _OWN_MARKS) and not _is_rewritten(data):
        return None
    if (names := parse_urls(data)) is None:
        return [name.decode("utf-8", "replace") for name in _URL.findall(data)]  # ours, but damaged
    # Half of a surrogate pair is no name at all.
    return [str(name).encode("utf-8", "replace").decode() for name in names]


def parse_urls(data: bytes) -> list[Any] | None:
    """Return what a dataset file, or an index of wids, lists as the names of shards; None where it is neither."""
    try:
        return [shard["url"] for shard in json.loads(data)["shardlist"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def parse_listed_shards(data: bytes, path: str) -> tuple[list[str], bool]:
    """Return the shards that a dataset file, or an index of wids, lists, and whether it is a dataset file of ours.

    They are named as the file system names them, and lie beside it or below it; that they are there is not known.

    Args:
        data: Its bytes.
        path: Where it is, for messages.

    Raises:
        CorruptShard: It is neither, or names what lies elsewhere.
    """
    own, names = True, parse_shard_names(data)
    if names is None:  # what wids lists may lie anywhere; a dataset file of ours names files, colons or not
        own, names = False, parse_urls(data)
    if names is None or not all(isinstance(name, str) for name in names):
        raise _not_a_dataset_file(path, data, "one of shardtool, or an index of wids")
    if bad := [name for name in names if not _is_local_shard(name, "://" if own else ":")]:
        found = f"names that are no shards beside it: {format_list([printable(name) for name in bad])}"
        raise CorruptShard(path, found, expected="names of files", remedy="Nothing was read from there.")
    return [to_local_name(name) for name in names], own


def _is_local_shard(name: str, of_url: str) -> bool:
    """Tell whether a name is that of a shard beside the dataset file, or below it."""
    inside = ".." not in name.split("/") and of_url not in name
    return inside and bool(_SHARD_NAME.fullmatch(name)) and printable(name) == name


def parse_local_shards(data: bytes) -> tuple[list[str], str]:
    """Return the shards in the folder of a dataset file that it lists, and its pattern, as far as it can be read."""
    found, pattern = _PATTERN_LINE.search(data), ""
    with suppress(ValueError):
        pattern = str(json.loads(found[1])) if found else ""
    return [to_local_name(name) for name in parse_shard_names(data) or () if is_plain_name(name)], pattern


def _not_a_dataset_file(name: str, data: bytes, expected: str = "one of shardtool") -> CorruptShard:
    """Return what is wrong with a file that cannot be read as a dataset file: it is damaged, or none."""
    remedy = (
        f"Run the command that made it again with {option_text('if_exists', 'resume')}, or `shardtool index` of the "
    )
    remedy += f"shards with {flag_text('overwrite')}."
    if is_own_dataset_file(data):
        return CorruptShard(name, f"a damaged dataset file of {len(data):,} bytes", remedy=remedy)
    if _WIDS_HEAD.startswith(data):
        return CorruptShard(name, f"a damaged file of {len(data):,} bytes", expected=expected, remedy=remedy)
    return CorruptShard(name, "no dataset file", expected=expected)


def is_own_dataset_file(data: bytes) -> bool:
    """Return whether a file that may be damaged or cut short was a dataset file of shardtool."""
    return any(mark in data for mark in _OWN_MARKS) or (
        data.startswith(_WIDS_HEAD) and not data.rstrip().endswith(b"}")
    )


def may_be_own(data: bytes) -> bool:
    """Return whether a file may be what is left of a dataset file of shardtool: an empty file may be, too."""
    return _WIDS_HEAD.startswith(data) or is_own_dataset_file(data)


def _is_rewritten(data: bytes) -> bool:
    """Tell whether JSON is what a dataset file of ours says, written anew by another program."""
    try:
        return b'"shardtool"' in data and "format_version" in json.loads(data)["shardtool"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def has_appends(data: bytes) -> bool:
    """Tell whether samples were appended to the dataset of a dataset file, which may be damaged."""
    return _APPENDS_MARK in data


def parse_dataset(data: bytes, name: str) -> DatasetFile:
    """Return what a dataset file says: the one place where that is checked.

    What comes back has the types of `DatasetFile`, texts are Unicode, numbers have 63 bits, totals are those
    of the shards, of which there is one at least. All names are plain names of the dataset file's folder: those of
    shards are the ones that the pattern gives, and each sidecar is called like its shard. That the files are there,
    and hold what is said of them, is not known.

    Args:
        data: Its bytes.
        name: Its name, for messages.

    Raises:
        CorruptShard: It is none of a version that this program knows, its checksum differs, or it says what cannot be.
    """
    if not all(mark in data for mark in _OWN_MARKS):
        rewritten = "a dataset file that another program wrote anew, so that its bytes cannot be checked"
        if _is_rewritten(data):
            raise CorruptShard(name, rewritten)
        raise _not_a_dataset_file(name, data)
    body = data[:-_CHECKSUM_BYTES]
    if data[len(body) :] != b'%08x"\n}\n' % crc32c(body) or not body.endswith(_CHECKSUM_LINE.encode()):
        raise CorruptShard(name, "its checksum is not that of its bytes", remedy=recreate_hint())
    try:
        document = json.loads(data)
        ours = _get_typed(document, "shardtool", dict)
        if (version := _get_typed(ours, "format_version", int)) == FORMAT_VERSION:
            _check_texts(document, ours)
            return _parse_dataset(document, ours)
    except (KeyError, TypeError, ValueError, RecursionError, InvalidRequest) as error:
        raise CorruptShard(name, f"no dataset file: {str(error)[:200]}", remedy=recreate_hint()) from None
    raise CorruptShard(name, f"format version {version}", expected=f"{FORMAT_VERSION}", remedy="Use a newer shardtool.")


def read_valid_dataset(path: str) -> DatasetFile | None:
    """Return what a dataset file says; None where there is none, or a damaged one.

    Raises:
        StoreFailed: The machine, a store or a server fails.
    """
    try:
        return parse_dataset(read_small(path), path)
    except (OSError, CorruptShard):
        return None


def is_plain_name(name: str) -> bool:
    """Tell whether a name is that of a file in a folder: to open it stays there, and it prints as it is."""
    return name not in ("", ".", "..") and "/" not in name and printable(name) == name


def _check_texts(document: Json, ours: Json) -> None:
    """Check that all texts, keys among them, are Unicode, and that no number is infinite or none.

    An option may be the name of a file that is no UTF-8: `--exclude` takes that.
    """
    try:
        _to_json({**document, "shardtool": {**ours, "made": None}}).encode()
        _to_json(ours["made"]).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        found = "a text with half of a surrogate pair"
        raise ValueError(found) from None


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _require(right: object, problem: str) -> None:
    """Check what is asked once a dataset file, not once a shard: a text is made of each problem, there or not."""
    if not right:
        raise ValueError(problem)


def _parse_dataset(document: Json, ours: Json) -> DatasetFile:
    folder: str = _get_typed(ours, "shards_folder", str) if "shards_folder" in ours else ""
    for part in folder.split("/") if "shards_folder" in ours else ():
        _parse_file_name({"part": part}, "part")
    shards = tuple(_parse_shard(one, folder and f"{folder}/") for one in _get_typed(document, "shardlist", list))
    _require(shards, "no shards")
    _require(len({shard.sidecar for shard in shards}) == len(shards), "a sidecar is listed twice")
    shard_format: str = _get_typed(ours, "format", str)
    _require(shard_format in WRITABLE_FORMATS.values(), f"the format {shard_format!r:.40}")
    for shard in shards:
        if parse_format(shard.name) not in (shard_format, "") or not is_shard_name(shard.name):
            raise ValueError(f"{shard.name!r:.80} is no name for a shard of the format {shard_format}")
    totals: Json = _get_typed(ours, "totals", dict)
    sums = {name: sum(getattr(shard, name) for shard in shards) for name in ("samples", "size")}
    for name, total in {"shards": len(shards), **sums}.items():
        right = _get_typed(totals, name, int) == total
        _require(right, f"{totals[name]:,} {name} in all, but {total:,} in the list of shards")
    appends: list[int] = _get_typed(ours, "appends", list) if "appends" in ours else []
    places = [0, *appends, len(shards)]
    right = all(type(number) is int for number in appends) and sorted({*places}) == places
    _require(right or "appends" not in ours, f"appends from the shards {appends!r:.80}, of {len(shards)}")
    fields, features = (
        _parse_mapping(ours, "fields", int),
        _parse_mapping(ours, "features", str) if "features" in ours else {},
    )
    parsed = {name: TfFeature.parse(text) for name, text in features.items()}
    types: dict[str, ValueType] = {name: kind for name, kind in number_features(parsed).items() if name in fields}
    for key, known in (("numbers", _NUMBER_TYPES), ("types", _RECORDED_TYPES)):
        for name, kind in _parse_mapping(ours, key, str).items() if key in ours else ():
            right = kind in known and name in fields and (shard_format == "tar" or key == "types")
            _require(right, f"{key} of the kind {kind!r:.40} in the field {name!r:.40}")
            types[name] = cast("ValueType", kind)
    classes: dict[str, list[str]] = _parse_mapping(ours, "classes", list)
    for name, names in classes.items():
        wrong = [one for one in names if type(one) is not str]
        _require(not wrong, f"the classes of {name!r:.40} have {wrong[:1]!r:.80}")
    fingerprint: str = _get_typed(
        ours, "fingerprint", str
    )  # one of another form is compared with what there is, and found
    _require(len(fingerprint) <= _MAX_FINGERPRINT_LENGTH, f"the fingerprint {fingerprint!r:.80}")
    return DatasetFile(
        name=_parse_file_name(document, "name"),
        pattern=_parse_pattern(ours, shards),
        format=shard_format,
        shards=shards,
        fields=fields,
        field_bytes=_get_typed(totals, "field_bytes", int),
        skipped=_get_typed(totals, "skipped", int),
        schema=_parse_mapping(ours, "schema", str),
        classes=classes,
        features=parsed,
        made=_parse_run(ours, len(appends)),
        fingerprint=fingerprint,
        skipped_crc=_parse_crc(ours, "skipped_crc32c") if "skipped_crc32c" in ours else None,
        types=types,
        appends=tuple(appends),
        shards_folder=folder,
    )


def _parse_pattern(ours: Json, shards: Sequence[ShardEntry]) -> str:
    """Return the pattern: a range must give the names of the shards that are listed, in their order."""
    text: str = _parse_file_name(ours, "pattern")
    if any(mark in text for mark in "{}<>"):
        _require(
            _RANGE_PATTERN.fullmatch(text), f"the pattern {text!r:.80}"
        )  # other braces may stand for any number of names
        pattern, many = parse_pattern(text), len(shards)
        enough = pattern.count is None or pattern.count >= many
        _require(enough, f"{many:,} shards, but {pattern.count or 0:,} names in the pattern {text!r:.80}")
        for number, shard in enumerate(shards):
            if pattern.shard(number) != shard.name:
                raise ValueError(f"the shard {shard.name!r:.80} does not have its name by the pattern {text!r:.80}")
    return text


def _parse_mapping(ours: Json, name: str, kind: type[Value]) -> dict[str, Value]:
    """Return a mapping of texts to values of a kind."""
    found: dict[str, Value] = _get_typed(ours, name, dict)
    for key in found:
        _get_typed(found, key, kind)
    return found


def _parse_run(ours: Json, appends: int) -> RunRecord:
    made: dict[str, object] = _get_typed(ours, "made", dict)
    appended = _get_typed(made, "appended", list) if "appended" in made else []
    _require(len(appended) == appends, f"{len(appended):,} runs that appended, but {appends:,} places where they did")
    for number, run in enumerate([made, *appended]):
        _require(type(run) is dict, f"the run that appended as number {number} is {run!r:.80}")
        for name, kind in _RUN_FIELDS.items():
            if name in run:
                _get_typed(run, name, kind)
        _require(is_plain_name(run.get("split", "-").replace("/", "-")), f"the split {run.get('split')!r:.80}")
    splits = _get_typed(made, "splits", list) if "splits" in made else []
    valid = all(type(split) is str and is_plain_name(split.replace("/", "-")) for split in splits)
    own = "splits" not in made or made.get("split") in splits
    _require(valid and own, f"the splits {splits!r:.80} of a run that made {made.get('split')!r:.80}")
    _check_values(made)
    return RunRecord(made)


def _check_values(value: object, depth: int = 0) -> None:
    """Check that values from JSON are nested in no more than a few levels, and that numbers fit a float."""
    _require(depth <= _MAX_NESTING, f"more than {_MAX_NESTING} levels of nested values in how it was made")
    bounded = type(value) is not int or abs(value) <= _MAX_OPTION_NUMBER
    _require(bounded, "a number without bounds in how it was made")
    if isinstance(value, (list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            _check_values(one, depth + 1)


def _parse_shard(found: Json, folder: str) -> ShardEntry:
    """Return what is said of a shard; `folder`: what its name begins with, a path down to where shards lie."""
    if not (url := _get_typed(found, "url", str)).startswith(folder):
        raise ValueError(f"{url!r:.80} is no file in the folder {folder[:-1]!r:.80}")
    index, name = _get_typed(found, "index", dict), _parse_file_name({"url": url.removeprefix(folder)}, "url")
    if (sidecar := _parse_file_name(index, "name")) != sidecar_name(name):
        raise ValueError(f"{sidecar!r:.80} is no name for the sidecar of {name!r:.80}")
    samples, size = (_get_typed(found, key, int) for key in ("nsamples", "filesize"))
    crc = None if found["crc32c"] is None else _parse_crc(found)
    of_sidecar = _get_typed(index, "size", int), _parse_crc(index)
    ends = (_get_typed(found, key, str) for key in ("first_key", "last_key"))
    shard = ShardEntry(name, samples, size, crc, sidecar, *of_sidecar, *ends)
    if samples > size:
        raise ValueError(f"{samples:,} samples in the {size:,} bytes of {name!r:.80}")
    return shard


def _get_typed(found: Json, name: str, kind: type[Value]) -> Value:
    """Return a value of the kind that the format says; numbers count something, in 63 bits."""
    value = found[name]
    if type(value) is not kind or (isinstance(value, int) and not 0 <= value <= _MAX_COUNT):
        raise TypeError(f"{name} is {value!r:.80}")
    return value


def _parse_crc(found: Json, name: str = "crc32c") -> int:
    if not _CRC_HEX.fullmatch(text := _get_typed(found, name, str)):
        raise ValueError(f"the checksum {text!r:.80}")
    return int(text, 16)


def _parse_file_name(found: Json, key: str) -> str:
    """Return the name of a file beside the dataset file."""
    name: str = _get_typed(found, key, str)
    if not is_plain_name(name):
        raise ValueError(f"{name!r:.80} is no file in its folder")
    return name
