"""What a shard's name says: its format, and how it is compressed. No file is touched.

Names of other tools are known too: endings in any case, compressed shards, and the numbers that TensorFlow puts at the
end (`x.tfrecord-00000-of-00010`, `train-00000-of-01024`). Of these we write none: see `shardtool.pattern`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

KNOWN = ".tar, .tfrecord, .tfrecords, .tar.gz, .tar.bz2, .tar.xz, .tar.zst"  # what messages list

_PACKINGS = {"gz": "gzip", "bz2": "bz2", "xz": "xz", "zst": "zstd"}
_SHORT = {"tgz": "gzip", "tbz": "bz2", "tbz2": "bz2", "txz": "xz", "tzst": "zstd"}
_SHARD = re.compile(
    r".+\.(?:(tar|tfrecords?)(?:-\d+-of-\d+)?(?:\.(gz|bz2|xz|zst))?|(tgz|tbz2?|txz|tzst))",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")
_PART = re.compile(r"(?<!\d)(\d{1,18})(-of-(\d{1,18}))$", re.ASCII)


class NameFacts(NamedTuple):
    """What is known of a shard before it is walked.

    Attributes:
        format: `tar` or `tfrecord`.
        packing: `gzip`, `bz2`, `xz` or `zstd`; empty: it is not compressed.
    """

    format: str
    packing: str = ""


def read_name(name: str) -> NameFacts | None:
    """Return what a shard's file name says; None where it says no format."""
    match = _SHARD.fullmatch(name)
    if match is None:
        return None
    shard_format, packing, short = (one.lower() if one else "" for one in match.groups())
    if short:
        return NameFacts("tar", _SHORT[short])
    return NameFacts("tar" if shard_format == "tar" else "tfrecord", _PACKINGS.get(packing, ""))


def is_shard_name(name: str) -> bool:
    """Tell whether a file of that name may be a shard: by its ending, or as one of TensorFlow's numbered files."""
    return read_name(name) is not None or bool(part_of(name))


def is_packed_name(name: str) -> bool:
    """Tell whether a shard's name says that it is compressed."""
    facts = read_name(name)
    return bool(facts and facts.packing)


def format_of(shard: str) -> str:
    """Return the format that a shard's name says: `tar` or `tfrecord`; empty where it says none."""
    facts = read_name(shard)
    return facts.format if facts else ""


def ending_of(name: str) -> str:
    """Return the ending of a file name, dot included; empty where it has none."""
    match = _ENDING.search(name)
    return match[0] if match else ""


def part_of(name: str) -> str:
    """Return the end of one of TensorFlow's numbered names, which says how many there are: `-of-01024`; or nothing."""
    match = _PART.search(name)
    return match[2] if match else ""


def whole_of(name: str) -> tuple[str, int, int, int] | None:
    """Return what one of TensorFlow's numbered names says; None where it is none.

    Returns:
        What stands before the number, the number, its digits, and how many numbers there are.
    """
    match = _PART.search(name)
    return (name[: match.start()], int(match[1]), len(match[1]), int(match[3])) if match else None
