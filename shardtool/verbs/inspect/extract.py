"""Fields written to files, one each, below a folder and nowhere else, whatever the sample's key says.

A file that is there is an error, unless it may be replaced.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from shardtool.dataset.opened import payload
from shardtool.dataset.payload import numbers_in
from shardtool.dataset.shard_file import open_shard
from shardtool.errors import CorruptShard, InvalidRequest, listing, printable
from shardtool.fingerprint import crc32c
from shardtool.storage.staging import Tree
from shardtool.values import to_bytes
from shardtool.wording import typed_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.dataset.shard_file import PackedFile, ShardFile
    from shardtool.dataset.sidecar import FieldRow
    from shardtool.verbs.inspect.samples import FoundSample

_NAME_LIMIT = 255  # bytes of a name in a folder
_PATH_LIMIT = 4000


def extract(sample: FoundSample, folder: str, *, overwrite: bool = False) -> tuple[str, ...]:
    """Write each field of a sample to `KEY.FIELD` below a folder, which is made where it is missing.

    A number of a TFRecord becomes text, several a JSON list.

    Returns:
        The files' paths.

    Raises:
        CorruptShard: The key or a field's name is no path below a folder, or a payload is damaged.
        OutputExists: There is a file of that name already, or something else where a folder must be.
        OutputFailed: It cannot be written.
    """
    parts = [_parts(sample, one["name"]) for one in sample.fields]  # all, before anything is written
    written = {}
    with closing(Tree(folder)) as tree, open_shard(sample.shard.path) as file:
        for at in sorted(range(len(parts)), key=lambda at: sample.fields[at]["offset"]):
            blocks = _blocks(sample, sample.fields[at], file)
            written[at] = tree.write(parts[at], blocks, overwrite=overwrite)
    return tuple(written[at] for at in range(len(parts)))


def field_bytes(sample: FoundSample, field: str) -> Iterator[bytes]:
    """Yield the bytes of a sample's field, a piece at a time; a number of a TFRecord as text.

    Raises:
        InvalidRequest: The sample has no such field.
        CorruptShard: The payload is damaged; what was read by then was yielded.
    """
    names = [one["name"] for one in sample.fields]
    if field not in names:
        found = f"{printable(sample.key)} has no field {field!r}"
        raise InvalidRequest(typed_name("field"), found, expected=f"one of {listing(sorted(map(printable, names)), 9)}")
    with open_shard(sample.shard.path) as file:
        yield from _blocks(sample, sample.fields[names.index(field)], file)


def _parts(sample: FoundSample, field: str) -> list[bytes]:
    """Return the parts of a field's path, if all of them are plain names."""
    name = to_bytes(f"{sample.key}.{field}")
    parts = name.split(b"/")
    leads_out = any(part in (b"", b".", b"..") or b"\0" in part for part in parts)
    if leads_out or len(name) > _PATH_LIMIT or max(map(len, parts)) > _NAME_LIMIT:
        what = "no path below a folder" if leads_out else "too long for a file"
        found = f"sample {sample.number:,}: {printable(name)[:_NAME_LIMIT]} is {what}"
        raise CorruptShard(sample.shard.path, found, remedy="Nothing of it was written.")
    return parts


def _blocks(sample: FoundSample, one: FieldRow, file: ShardFile | PackedFile) -> Iterator[bytes]:
    """Yield what goes into a field's file."""
    where = f"{sample.shard.path}, field {one['name']!r} of {sample.key}"
    blocks, crc = payload(file, one["offset"], one["length"], where), 0
    kind = sample.kinds.get(one["name"], "bytes")
    if kind != "bytes":
        blocks = iter([b"".join(blocks)])
    for block in blocks:
        crc = crc32c(block, crc)
        yield block if kind == "bytes" else _as_text(block, kind, where)
    if one["crc32c"] is not None and crc != one["crc32c"]:
        raise CorruptShard(where, "another checksum than its index says", remedy="Run `shardtool verify`.")


def _as_text(data: bytes, kind: str, where: str) -> bytes:
    try:
        numbers = numbers_in(data, kind)
    except ValueError:
        raise CorruptShard(where, f"no {kind}") from None
    return str(numbers[0] if len(numbers) == 1 else numbers).encode()
