"""Format and compression of a shard, read from its file name. No file is opened.

Names written by other tools are recognised too: endings in any case, compressed shards, and TensorFlow's numbered
names (`x.tfrecord-00000-of-00010`, `train-00000-of-01024`). shardtool reads these but does not write them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

READABLE_ENDINGS = ".tar, .tfrecord, .tfrecords, .tar.gz, .tar.bz2, .tar.xz, .tar.zst"  # what messages list


_COMPRESSIONS = {"gz": "gzip", "bz2": "bz2", "xz": "xz", "zst": "zstd"}


_SHORT_ENDINGS = {"tgz": "gzip", "tbz": "bz2", "tbz2": "bz2", "txz": "xz", "tzst": "zstd"}


_SHARD_NAME = re.compile(
    r".+\.(?:(tar|tfrecords?)(?:-\d+-of-\d+)?(?:\.(gz|bz2|xz|zst))?|(tgz|tbz2?|txz|tzst))",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)


_FILE_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")


_NUMBERED_NAME = re.compile(r"(?<!\d)(\d{1,18})(-of-(\d{1,18}))$", re.ASCII)


class ShardName(NamedTuple):
    """What is known of a shard before it is walked.

    Attributes:
        format: `tar` or `tfrecord`.
        packing: `gzip`, `bz2`, `xz` or `zstd`; empty: it is not compressed.
    """

    format: str
    packing: str = ""


def parse_shard_name(name: str) -> ShardName | None:
    """Return what a shard's file name says; None where it says no format."""
    match = _SHARD_NAME.fullmatch(name)
    if match is None:
        return None
    shard_format, packing, short = (one.lower() if one else "" for one in match.groups())
    if short:
        return ShardName("tar", _SHORT_ENDINGS[short])
    return ShardName("tar" if shard_format == "tar" else "tfrecord", _COMPRESSIONS.get(packing, ""))


def is_shard_name(name: str) -> bool:
    """Tell whether a file of that name may be a shard: by its ending, or as one of TensorFlow's numbered files."""
    return parse_shard_name(name) is not None or bool(count_suffix(name))


def is_compressed_name(name: str) -> bool:
    """Tell whether a shard's name says that it is compressed."""
    facts = parse_shard_name(name)
    return bool(facts and facts.packing)


def parse_format(shard: str) -> str:
    """Return the format that a shard's name says: `tar` or `tfrecord`; empty where it says none."""
    facts = parse_shard_name(shard)
    return facts.format if facts else ""


def file_ending(name: str) -> str:
    """Return the ending of a file name, dot included; empty where it has none."""
    match = _FILE_ENDING.search(name)
    return match[0] if match else ""


def count_suffix(name: str) -> str:
    """Return the end of one of TensorFlow's numbered names, which says how many there are: `-of-01024`; or nothing."""
    match = _NUMBERED_NAME.search(name)
    return match[2] if match else ""


def parse_numbered_name(name: str) -> tuple[str, int, int, int] | None:
    """Return what one of TensorFlow's numbered names says; None where it is none.

    Returns:
        What stands before the number, the number, its digits, and how many numbers there are.
    """
    match = _NUMBERED_NAME.search(name)
    return (name[: match.start()], int(match[1]), len(match[1]), int(match[3])) if match else None
