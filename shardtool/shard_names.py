"""Parse the file name of a shard, which determines its format and compression.

Upper-case extensions, compressed shards, and TensorFlow's numbered names (`x.tfrecord-00000-of-00010`,
`train-00000-of-01024`) can be read but not written.
"""

from __future__ import annotations

import re
from typing import NamedTuple

READABLE_ENDINGS = ".tar, .tfrecord, .tfrecords, .tar.gz, .tar.bz2, .tar.xz, .tar.zst"
_COMPRESSIONS = {"gz": "gzip", "bz2": "bz2", "xz": "xz", "zst": "zstd"}
_SHORT_ENDINGS = {"tgz": "gzip", "tbz": "bz2", "tbz2": "bz2", "txz": "xz", "tzst": "zstd"}
_SHARD_NAME = re.compile(
    r".+\.(?:(tar|tfrecords?)(?:-\d+-of-\d+)?(?:\.(gz|bz2|xz|zst))?|(tgz|tbz2?|txz|tzst))",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
_FILE_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")
_NUMBERED_NAME = re.compile(r"(?<!\d)(\d{1,18})(-of-(\d{1,18}))$", re.ASCII)


class ShardName(NamedTuple):
    """Format and compression of a shard.

    `compression` is `gzip`, `bz2`, `xz` or `zstd`, or empty if the shard is not compressed.
    """

    format: str
    compression: str = ""


def parse_shard_name(name: str) -> ShardName | None:
    """Parse the name of a shard. Return None if the name has no known extension."""
    match = _SHARD_NAME.fullmatch(name)
    if match is None:
        return None
    shard_format, compression, short = (part.lower() for part in match.groups(""))
    if short:
        return ShardName("tar", _SHORT_ENDINGS[short])
    return ShardName("tar" if shard_format == "tar" else "tfrecord", _COMPRESSIONS.get(compression, ""))


def is_shard_name(name: str) -> bool:
    """Return whether a name has a known extension, or ends like `-00000-of-00010` (TensorFlow)."""
    return parse_shard_name(name) is not None or bool(find_count_suffix(name))


def is_compressed_name(name: str) -> bool:
    """Return whether a name has the extension of a compressed shard, such as `.tar.gz`."""
    parsed = parse_shard_name(name)
    return bool(parsed and parsed.compression)


def parse_format(shard: str) -> str:
    """Return `tar` or `tfrecord`, or an empty string if the name has no known extension."""
    parsed = parse_shard_name(shard)
    return parsed.format if parsed else ""


def file_ending(name: str) -> str:
    """Return the extension of a file name with its dot, or an empty string if there is no extension."""
    match = _FILE_ENDING.search(name)
    return match[0] if match else ""


def find_count_suffix(name: str) -> str:
    """Return the suffix `-of-01024` of a TensorFlow name such as `train-00003-of-01024`, or "" for other names."""
    match = _NUMBERED_NAME.search(name)
    return match[2] if match else ""


def parse_numbered_name(name: str) -> tuple[str, int, int, int] | None:
    """Return prefix, number, number of digits and number of files of a TensorFlow name such as `train-00003-of-01024`.

    Return None for other names.
    """
    match = _NUMBERED_NAME.search(name)
    return (name[: match.start()], int(match[1]), len(match[1]), int(match[3])) if match else None
