"""The dataset file: the JSON that lists the shards, and exists only for a complete dataset.

It is a wids index (`wids.ShardListDataset("out.json")` opens it) with keys of ours beside wids's
own. Its last line holds the CRC-32C of all bytes before that line's value, so that any flipped
byte shows. No clock, host, user or absolute path goes in.

Source: docs/format.md, "Dataset file"; interop.md 4.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardtool.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT_VERSION = 1
_MARKS = (b'  "shardtool": {\n    "format_version": ', b'  "checksum": "crc32c:')  # one flipped bit spares one
_URL = re.compile(rb'"url": "([^"\\\\]*)"')
_CHECKSUM = '  "checksum": "crc32c:'


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard as the dataset file lists it."""

    name: str
    samples: int
    size: int
    crc: int
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
            "crc32c": f"{self.crc:08x}",
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
        fingerprint: Of the content.
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

    def encode(self) -> bytes:
        """Return the file's bytes."""
        document = {
            "__kind__": "wids-shard-index-v1",
            "wids_version": 1,
            "name": self.name,
            "shardlist": [shard.to_json() for shard in self.shards],
            "shardtool": {
                "format_version": FORMAT_VERSION,
                "format": self.format,
                "pattern": self.pattern,
                "totals": {
                    "shards": len(self.shards),
                    "samples": sum(shard.samples for shard in self.shards),
                    "size": sum(shard.size for shard in self.shards),
                    "field_bytes": self.field_bytes,
                    "skipped": self.skipped,
                },
                "fields": dict(self.fields),
                "schema": dict(self.schema),
                "classes": dict(self.classes),
                **({"features": dict(self.features)} if self.features else {}),
                "made": dict(self.made),
                "fingerprint": self.fingerprint,
            },
        }
        body = (
            json.dumps(document, indent=2, ensure_ascii=True).removesuffix("\n}").encode() + b",\n" + _CHECKSUM.encode()
        )
        return body + b'%08x"\n}\n' % crc32c(body)


def shard_names(data: bytes) -> list[str] | None:
    """Return the shards that a dataset file lists, as far as it can be read; None where `data` is none of ours."""
    if not any(mark in data for mark in _MARKS):
        return None
    try:
        return [str(shard["url"]) for shard in json.loads(data)["shardlist"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return [name.decode("utf-8", "replace") for name in _URL.findall(data)]  # ours, but damaged
