"""Index files of other tools, made from our sidecars: rows in, bytes out, no file opened.

Each is held against the tool that makes it and the tool that reads it, in tests/clients.

Source: interop.md 2, 3, 4 and 7; docs/format.md, "Exported indexes".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from shardtool.errors import InvalidRequest, printable
from shardtool.interop import energon

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.interop.hashes import Digests

_SPACE = re.compile(rb"[\x00-\x20\x7f]")
_UNSAFE = re.compile(rb"[\x00-\x20\x7f%]")


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """A shard, as far as its index is made of it.

    Attributes:
        name: Its name.
        size: Its bytes.
        table: Where its samples and fields lie, with the columns of `sidecar.SCHEMA`.
        digests: Its hashes, where the export wants them.
    """

    name: str
    size: int
    table: Any
    digests: Digests | None = None


@dataclass(frozen=True, slots=True)
class FolderIndex:
    """Files that a tool wants once a folder, whatever datasets are in it.

    Attributes:
        encode: Returns their bytes by their paths in the folder, in the order in which they should appear.
        info: The one of them that tells which shards it is about.
        shards: Returns the names of these shards.
        lasting: The one that is the user's to change: where it is there, it stays.
    """

    encode: Callable[[Sequence[DatasetFile]], dict[str, bytes]]
    info: str
    shards: Callable[[bytes], list[str]]
    lasting: str


@dataclass(frozen=True, slots=True)
class Export:
    """An index of another tool.

    Attributes:
        shard_format: `tar` or `tfrecord`: what it is an index of.
        reader: The tool.
        suffix: What the name of a shard's index ends with, in place of the shard's ending.
        encode: Returns the bytes of a shard's index; None: there is none.
        least: Samples that a shard must hold for the tool to take its index.
        hashed: Whether it has hashes of payloads: then shards are read.
        once: What else there is, once a folder.
        readme: Whether a `README.md` that names the shards comes with it.
        note: What the user should know.
    """

    shard_format: str
    reader: str
    suffix: str = ""
    encode: Callable[[IndexedShard], bytes] | None = None
    least: int = 0
    hashed: bool = False
    once: FolderIndex | None = None
    readme: bool = False
    note: str = ""


def tfrecord_index(shard: IndexedShard) -> bytes:
    """Return what the `tfrecord2idx` of DALI and that of the `tfrecord` package write: `OFFSET SIZE` of each record."""
    columns = (shard.table.column(name).to_numpy().tolist() for name in ("__offset__", "__size__"))
    return b"".join([b"%d %d\n" % row for row in zip(*columns, strict=True)])


def webdataset_index(shard: IndexedShard) -> bytes:
    """Return what DALI's `wds2idx` writes, version 1.2: `FIELD OFFSET LENGTH NAME` of each field, a line a sample.

    Its reader ends a word at any white space. It takes a name for nothing but a label, so what is unsafe in one is
    percent-encoded.

    Raises:
        InvalidRequest: A field has white space in its name.
    """
    keys = shard.table.column("__key__").cast("binary").to_pylist()
    lists = shard.table.column("__fields__").combine_chunks()
    fields = lists.flatten()
    names = fields.field("name").cast("binary").to_pylist()
    if unsafe := sorted(name for name in set(names) if _SPACE.search(name)):
        raise InvalidRequest(
            shard.name, f"white space in the field {printable(unsafe[0])!r}, which DALI's index cannot name",
            remedy="Pack the samples with --portable.",
        )  # fmt: skip
    offsets, lengths = (fields.field(part).to_numpy().tolist() for part in ("offset", "length"))
    lines = [b"v1.2 %d\n" % len(keys)]
    for key, (first, last) in zip(keys, pairwise(lists.offsets.to_pylist()), strict=True):
        safe = _UNSAFE.sub(_escape, key)
        words = [
            b"%b %d %d %b.%b" % (names[at], offsets[at], lengths[at], safe, names[at].replace(b"%", b"%25"))
            for at in range(first, last)
        ]
        lines.append(b" ".join(words) + b"\n")
    return b"".join(lines)


def _escape(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]


def hub_index(shard: IndexedShard) -> bytes:
    """Return what `hfutils.index.tar_create_index` writes: where each member lies, and hashes as the Hub has them."""
    digests = shard.digests
    if digests is None:
        raise TypeError("a shard that was not hashed")
    keys = shard.table.column("__key__").to_pylist()
    lists = shard.table.column("__fields__").combine_chunks()
    fields = lists.flatten()
    names, offsets, lengths = (fields.field(part).to_pylist() for part in ("name", "offset", "length"))
    files = {
        f"{key}.{names[at]}": {"offset": offsets[at], "size": lengths[at], "sha256": digests.payload(at)}
        for key, (first, last) in zip(keys, pairwise(lists.offsets.to_pylist()), strict=True)
        for at in range(first, last)
    }
    document = {"filesize": shard.size, "hash": digests.git, "hash_lfs": digests.sha256, "files": files}
    return json.dumps(document).encode()


EXPORTS = {
    "dali-webdataset": Export("tar", "DALI", ".idx", webdataset_index, least=1),
    "energon": Export(
        "tar", "energon", ".tar.idx", energon.offsets_index,
        once=FolderIndex(energon.folder_index, energon.INFO_FILE, energon.listed_shards, energon.DATASET_YAML),
    ),
    "huggingface": Export("tar", "the Hugging Face Hub", ".json", hub_index, hashed=True, readme=True),
    "wids": Export("tar", "wids", note="the dataset file is what wids wants: nothing to write"),
    "dali-tfrecord": Export("tfrecord", "DALI", ".idx", tfrecord_index, least=1),
    "tfrecord": Export("tfrecord", "the tfrecord package", ".tfindex", tfrecord_index, least=2),
}  # fmt: skip


def wanted_exports(formats: Sequence[str], shard_format: str = "") -> dict[str, Export]:
    """Return the exports of these names.

    Args:
        formats: Their names.
        shard_format: Of the shards that they are for; empty: not known yet.

    Raises:
        InvalidRequest: One is unknown, or an index of other shards.
    """
    for name in formats:
        if name not in EXPORTS:
            raise InvalidRequest("--export", repr(name), expected=f"one of {', '.join(EXPORTS)}")
        if shard_format and EXPORTS[name].shard_format != shard_format:
            others = [one for one, other in EXPORTS.items() if other.shard_format == shard_format]
            raise InvalidRequest(
                f"--export {name}", f"an index of {EXPORTS[name].shard_format} shards, and these are {shard_format}",
                expected=f"one of {', '.join(others)}",
            )  # fmt: skip
    return {name: EXPORTS[name] for name in formats}
