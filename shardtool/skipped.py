"""Why something of the source is not in the dataset: a row of `out.skipped`, and what each reason code means.

To find where a code is given, search for it in quotes: each stands where the reason is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SkipCode = Literal[
    "no-field", "unsafe-name", "duplicate", "incomplete", "oversize", "unreadable", "vanished", "changed", "corrupt",
    "damaged", "special-file", "link-outside", "link-loop", "dangling-link", "bad-image", "truncated-image",
    "image-too-large", "animated-image", "image-depth", "map-failed", "field-clash", "no-number", "bad-json",
    "bad-value",
]  # fmt: skip

SKIP_CODES: dict[SkipCode, str] = {  # in the words of docs/cli.md, "What was left out"
    "no-field": "the name has no ending that could name a field; a sample of shards has none of the fields selected",
    "unsafe-name": "the key or a field is not UTF-8, has a control character, or is far too long; in an archive, "
    "a path that leads out of it",
    "duplicate": "another sample has the same key (--on-duplicate first or last)",
    "incomplete": "one of several folders has no file of the sample (--complete)",
    "oversize": "the sample fits in no shard",
    "unreadable": "the file or folder cannot be opened or read; in an archive, a member that is damaged, encrypted, or "
    "compressed otherwise",
    "vanished": "the file was listed, and is gone",
    "changed": "the size or modification time is another than when the source was listed",
    "corrupt": "a payload of a shard does not have the checksum in its index",
    "damaged": "a part of a shard that cannot be read, or a sample that may have lost fields there",
    "special-file": "a fifo, socket or device, or a link to one; in a tar or zip, a member that is no plain file",
    "link-outside": "a link out of the source, under --symlinks inside",
    "link-loop": "a link to a folder that it lies in",
    "dangling-link": "a link to nothing",
    "bad-image": "an image that is damaged, or in none of the formats that are read",
    "truncated-image": "an image that ends too early",
    "image-too-large": "an image of too many pixels, before or after its change",
    "animated-image": "an image of several frames or pages, of which a change would keep one",
    "image-depth": "an image whose values the format asked for cannot hold",
    "map-failed": "the function of --map raised, or returned no sample",
    "field-clash": "two images of a sample get the same name by --encode",
    "no-number": "what was a number is none after --map, in TFRecord",
    "bad-json": "a field of --columns-from that is no JSON object, or holds what no column can",
    "bad-value": "a value that a program gave to ShardWriter.write, and that no field or column can hold",
}


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that was left out: a row of `out.skipped`.

    Attributes:
        key: The sample's key; empty where the file belongs to none.
        path: Relative to the source.
        code: Why, for programs.
        message: Why, for people.
    """

    key: str
    path: str
    code: SkipCode
    message: str
