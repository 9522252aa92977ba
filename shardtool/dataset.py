"""The dataset file: the JSON that lists the shards, and exists only for a complete dataset.

It is a wids index (`wids.ShardListDataset("out.json")` opens it) with keys of ours beside wids's
own. Its last line holds the CRC-32C of all bytes before that line's value, so that any flipped
byte shows. No clock, host, user or absolute path goes in.

Source: docs/format.md, "Dataset file"; interop.md 4.
"""

from __future__ import annotations

import json
import posixpath
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shardtool.checksum import crc32c
from shardtool.errors import CorruptShard
from shardtool.pattern import sidecar_name
from shardtool.sample import to_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

FORMAT_VERSION = 1
_MARKS = (b'  "shardtool": {\n    "format_version": ', b'  "checksum": "crc32c:')  # one flipped bit spares one
_APPENDS = b'\n    "appends": ['
_URL = re.compile(rb'"url": "([^"\\\\]*)"')
_CHECKSUM = '  "checksum": "crc32c:'
_CHECKSUM_SIZE = len(b'01234567"\n}\n')  # of the checksum itself, and what follows it
_CRC = re.compile(r"[0-9a-f]{8}")
_LIST = "tf.io.VarLenFeature("
_TF_KINDS = {"int64": "tf.int64", "float": "tf.float32"}
_REMEDY = "Run the command that made it again with --resume, or `shardtool index`."


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard as the dataset file lists it; `crc` is None where nobody has read it all."""

    name: str
    samples: int
    size: int
    crc: int | None
    sidecar: str
    sidecar_size: int
    sidecar_crc: int
    first_key: str
    last_key: str

    def to_json(self) -> dict[str, object]:
        """Return wids's keys, then ours."""
        return {
            "url": self.name,
            "nsamples": self.samples,
            "filesize": self.size,
            "crc32c": None if self.crc is None else f"{self.crc:08x}",
            "index": {"name": self.sidecar, "size": self.sidecar_size, "crc32c": f"{self.sidecar_crc:08x}"},
            "first_key": self.first_key,
            "last_key": self.last_key,
        }


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """What the dataset file says.

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
        features: Only for TFRecord: feature to what `tf.io.parse_single_example` wants for it.
        made: How it was made: the verb, the source's name, the options, the tool.
        fingerprint: Of the content; empty where nobody has read it all.
        skipped_crc: CRC-32C of `out.skipped`; None where there is none.
        numbers: Only for tar: field to `int64` or `float`, where its texts stand for numbers.
        appends: The number of the first shard of each append, in the order of `appended` in `made`.
        shards_folder: Where the shards lie: below the dataset file's folder, such as `train/tars`; empty: beside it.
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
    features: Mapping[str, str]
    made: Mapping[str, Any]
    fingerprint: str
    skipped_crc: int | None = None
    numbers: Mapping[str, str] = field(default_factory=dict)
    appends: tuple[int, ...] = ()
    shards_folder: str = ""

    def is_split_with(self, other: DatasetFile) -> bool:
        """Tell whether the same run made both, for two splits; what was appended to one of them since is no matter."""
        runs, splits = [], []
        for made in (self.made, other.made):
            runs.append({name: value for name, value in made.items() if name not in ("split", "appended")})
            splits.append(made.get("split"))
        return runs[0] == runs[1] and splits[0] != splits[1] and all(isinstance(split, str) for split in splits)

    def encode(self) -> bytes:
        """Return the file's bytes."""
        document = {
            "__kind__": "wids-shard-index-v1",
            "wids_version": 1,
            "name": self.name,
            "shardlist": [self._listed(shard) for shard in self.shards],
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
                **({"features": dict(self.features)} if self.features else {}),
                **({"numbers": dict(self.numbers)} if self.numbers else {}),
                "made": dict(self.made),
                **({"appends": list(self.appends)} if self.appends else {}),
                "fingerprint": self.fingerprint,
            },
        }
        body = (
            json.dumps(document, indent=2, ensure_ascii=True).removesuffix("\n}").encode() + b",\n" + _CHECKSUM.encode()
        )
        return body + b'%08x"\n}\n' % crc32c(body)

    def _listed(self, shard: ShardEntry) -> dict[str, object]:
        """Return a shard for the list: a reader of wids finds it from the dataset file's folder."""
        return {**shard.to_json(), "url": posixpath.join(self.shards_folder, shard.name)}


def feature_spec(
    fields: Mapping[str, int], kinds: Mapping[str, str], samples: int, lists: Collection[str] = ()
) -> dict[str, str]:
    """Return what TensorFlow must be told to parse Examples; a single value that some lack gets a default.

    Args:
        fields: How many samples have each.
        kinds: Those that are `int64` or `float`.
        samples: How many there are.
        lists: Those that are lists of values.
    """
    found = {"__key__": "tf.io.FixedLenFeature([], tf.string)"}
    for name in sorted(fields, key=to_bytes):
        kind = _TF_KINDS.get(kinds.get(name, ""), "tf.string")
        if name in lists:
            found[name] = f"{_LIST}{kind})"
            continue
        default = ', default_value=""' if kind == "tf.string" else ", default_value=-1"
        found[name] = f"tf.io.FixedLenFeature([], {kind}{default if fields[name] < samples else ''})"
    return found


def feature_kinds(features: Mapping[str, str]) -> dict[str, str]:
    """Return field to `int64` or `float`, from what `feature_spec` says of the features that are numbers."""
    found = {name: [kind for kind, of_tf in _TF_KINDS.items() if of_tf in str(spec)] for name, spec in features.items()}
    return {name: kinds[0] for name, kinds in found.items() if kinds}


def feature_lists(features: Mapping[str, str]) -> set[str]:
    """Return the fields that are lists, from what `feature_spec` says of them."""
    return {name for name, spec in features.items() if str(spec).startswith(_LIST)}


def shard_names(data: bytes) -> list[str] | None:
    """Return the shards that a dataset file lists, as far as it can be read; None where `data` is none of ours."""
    if not any(mark in data for mark in _MARKS):
        return None
    try:
        return [str(shard["url"]) for shard in json.loads(data)["shardlist"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return [name.decode("utf-8", "replace") for name in _URL.findall(data)]  # ours, but damaged


def tells_of_appends(data: bytes) -> bool:
    """Tell whether samples were appended to the dataset of a dataset file, which may be damaged."""
    return _APPENDS in data


def read_dataset(data: bytes, name: str) -> DatasetFile:
    """Return what a dataset file says.

    Args:
        data: Its bytes.
        name: Its name, for messages.

    Raises:
        CorruptShard: It is none of a version that this program knows, its checksum differs, or it names a file
            that lies in another folder.
    """
    if not all(mark in data for mark in _MARKS):
        raise CorruptShard(name, "no dataset file of shardtool")
    body = data[:-_CHECKSUM_SIZE]
    if data[len(body) :] != b'%08x"\n}\n' % crc32c(body) or not body.endswith(_CHECKSUM.encode()):
        raise CorruptShard(name, "its checksum is not that of its bytes", remedy=_REMEDY)
    try:
        document = json.loads(data)
        ours = _typed(document, "shardtool", dict)
        if (version := _typed(ours, "format_version", int)) == FORMAT_VERSION:
            folder = _without_folder(document, ours)
            return replace(_dataset(document, ours), shards_folder=folder)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CorruptShard(name, f"no dataset file: {str(error)[:200]}", remedy=_REMEDY) from None
    raise CorruptShard(name, f"format version {version}", expected=f"{FORMAT_VERSION}", remedy="Use a newer shardtool.")


def _without_folder(document: Any, ours: Any) -> str:
    """Take the shards' folder away from their names, and return it: a path down from the dataset file's folder."""
    if "shards_folder" not in ours:
        return ""
    folder: str = _typed(ours, "shards_folder", str)
    for part in folder.split("/"):
        _file_name({"part": part}, "part")
    for shard in _typed(document, "shardlist", list):
        url = _typed(shard, "url", str)
        if not url.startswith(f"{folder}/"):
            raise ValueError(f"{url!r:.80} is no file in the folder {folder!r:.80}")
        shard["url"] = url.removeprefix(f"{folder}/")
    return folder


def _dataset(document: Any, ours: Any) -> DatasetFile:
    shards = tuple(_shard(one) for one in _typed(document, "shardlist", list))
    if len({shard.sidecar for shard in shards}) < len(shards):
        raise ValueError("a sidecar is listed twice")
    if (shard_format := _typed(ours, "format", str)) not in ("tar", "tfrecord"):
        raise ValueError(f"the format {shard_format!r}")
    totals = _typed(ours, "totals", dict)
    return DatasetFile(
        name=_typed(document, "name", str),
        pattern=_typed(ours, "pattern", str),
        format=shard_format,
        shards=shards,
        fields=_typed(ours, "fields", dict),
        field_bytes=_typed(totals, "field_bytes", int),
        skipped=_typed(totals, "skipped", int),
        schema=_typed(ours, "schema", dict),
        classes=_classes(ours),
        features=_typed(ours, "features", dict) if "features" in ours else {},
        made=_typed(ours, "made", dict),
        fingerprint=_typed(ours, "fingerprint", str),
        skipped_crc=_crc(ours, "skipped_crc32c") if "skipped_crc32c" in ours else None,
        numbers=_numbers(ours) if "numbers" in ours else {},
        appends=_appends(ours, len(shards)) if "appends" in ours else (),
    )


def _classes(ours: Any) -> dict[str, list[str]]:
    classes: dict[str, list[str]] = _typed(ours, "classes", dict)
    for name, names in classes.items():
        if type(names) is not list or not all(type(one) is str for one in names):
            raise TypeError(f"the classes of {name!r:.40} are {names!r:.80}")
    return classes


def _numbers(ours: Any) -> dict[str, str]:
    numbers: dict[str, str] = _typed(ours, "numbers", dict)
    for name, kind in numbers.items():
        if kind not in _TF_KINDS or name not in ours["fields"] or ours["format"] != "tar":
            raise ValueError(f"numbers of the kind {kind!r:.40} in the field {name!r:.40}")
    return numbers


def _appends(ours: Any, shards: int) -> tuple[int, ...]:
    appends: list[int] = _typed(ours, "appends", list)
    if any(type(number) is not int for number in appends) or sorted({0, *appends, shards}) != [0, *appends, shards]:
        raise ValueError(f"appends from the shards {appends!r:.80}, of {shards}")
    return tuple(appends)


def _shard(found: Any) -> ShardEntry:
    index, name = _typed(found, "index", dict), _file_name(found, "url")
    if (sidecar := _file_name(index, "name")) != sidecar_name(name):
        raise ValueError(f"{sidecar!r:.80} is no name for the sidecar of {name!r:.80}")
    return ShardEntry(
        name=name,
        samples=_typed(found, "nsamples", int),
        size=_typed(found, "filesize", int),
        crc=None if found["crc32c"] is None else _crc(found),
        sidecar=sidecar,
        sidecar_size=_typed(index, "size", int),
        sidecar_crc=_crc(index),
        first_key=_typed(found, "first_key", str),
        last_key=_typed(found, "last_key", str),
    )


def _typed(found: Any, name: str, kind: type[Any]) -> Any:
    """Return a value of the kind that the format says; numbers count something."""
    value = found[name]
    if type(value) is not kind or (kind is int and value < 0):
        raise TypeError(f"{name} is {value!r:.80}")
    return value


def _crc(found: Any, name: str = "crc32c") -> int:
    if not _CRC.fullmatch(text := _typed(found, name, str)):
        raise ValueError(f"the checksum {text!r:.80}")
    return int(text, 16)


def _file_name(found: Any, key: str) -> str:
    """Return the name of a file beside the dataset file: whoever opens it stays in the folder."""
    name: str = _typed(found, key, str)
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r:.80} is no file in its folder")
    name.encode()  # a name that is no UTF-8 is none of ours
    return name
