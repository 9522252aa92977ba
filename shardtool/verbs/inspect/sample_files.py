"""Files that `inspect` writes: the fields of a sample, each below one folder, and checks of a report's path.

Whatever a sample's key says, nothing is written outside of the folder. An existing file is an error, unless it may
be
replaced. A report never replaces a file of a dataset.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from shardtool.dataset.payload import (
    parse_value,
)
from shardtool.dataset.shard_file import CompressedFile, ShardFile, iter_payload, open_shard
from shardtool.errors import CorruptShard, InvalidRequest, format_list, printable
from shardtool.fingerprint import crc32c
from shardtool.messages import cli_name, flag_text
from shardtool.names import to_bytes
from shardtool.storage.file_system import check_target
from shardtool.storage.paths import real_path
from shardtool.storage.staging import named_local_folder
from shardtool.storage.target_file import check_target_name
from shardtool.storage.tree import FolderTree, path_problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.dataset.sidecar_schema import FieldRow
    from shardtool.dataset.stored import StoredDataset
    from shardtool.verbs.inspect.overview import StoredSample


_MAX_PATH_CHARS = 255  # letters of a path in a message


def write_fields(sample: StoredSample, folder: str, *, overwrite: bool = False) -> tuple[str, ...]:
    """Write each field of a sample to `KEY.FIELD` below a folder, which is made where it is missing.

    A number of a TFRecord becomes text, several a JSON list.

    Returns:
        The files' paths.

    Raises:
        InvalidRequest: The folder is no local one.
        CorruptShard: The key or a field's name is no path below a folder, or a payload is damaged.
        OutputExists: There is a file of that name already, or something else where a folder must be.
        OutputFailed: It cannot be written.
    """
    paths = [_field_path(sample, one["name"]) for one in sample.fields]  # all, before anything is written
    with closing(FolderTree(named_local_folder(folder).path)) as tree, open_shard(sample.shard.path) as file:
        for at in sorted(range(len(paths)), key=lambda at: sample.fields[at]["offset"]):
            blocks = partial(_field_blocks, sample, sample.fields[at], file)
            tree.write(paths[at], blocks, "overwrite" if overwrite else "error")
        return tuple(map(tree.full_path, paths))


def field_bytes(sample: StoredSample, field: str) -> Iterator[bytes]:
    """Yield the bytes of a sample's field, a piece at a time; a number of a TFRecord as text.

    Raises:
        InvalidRequest: The sample has no such field.
        CorruptShard: The payload is damaged; what was read by then was yielded.
    """
    names = [one["name"] for one in sample.fields]
    if field not in names:
        found = f"{printable(sample.key)} has no field {field!r}"
        raise InvalidRequest(
            cli_name("field"), found, expected=f"one of {format_list(sorted(map(printable, names)), 9)}"
        )
    with open_shard(sample.shard.path) as file:
        yield from _field_blocks(sample, sample.fields[names.index(field)], file)


def _field_path(sample: StoredSample, field: str) -> bytes:
    """Return a field's path, if all of its parts are plain names."""
    path = to_bytes(f"{sample.key}.{field}")
    if problem := path_problem(path):
        found = f"sample {sample.number:,}: {printable(path)[:_MAX_PATH_CHARS]} is {problem}"
        raise CorruptShard(sample.shard.path, found, remedy="Nothing of it was written.")
    return path


def _field_blocks(sample: StoredSample, one: FieldRow, file: ShardFile | CompressedFile) -> Iterator[bytes]:
    """Yield what goes into a field's file."""
    where = f"{sample.shard.path}, field {one['name']!r} of {sample.key}"
    blocks, crc = iter_payload(file, one["offset"], one["length"], where), 0
    kind = sample.kinds.get(one["name"], "bytes")
    if kind != "bytes":
        blocks = iter([b"".join(blocks)])
    for block in blocks:
        crc = crc32c(block, crc)
        yield block if kind == "bytes" else _number_text(block, kind, where)
    if one["crc32c"] is not None and crc != one["crc32c"]:
        raise CorruptShard(where, "another checksum than its index says", remedy="Run `shardtool verify`.")


def _number_text(data: bytes, kind: str, where: str) -> bytes:
    if (value := parse_value(data, kind)) is None:
        raise CorruptShard(where, f"no {kind}")
    return str(value).encode()


_REPORT_FORMATS = {
    ".csv": (b'"__key__","__shard__"', b""),
    ".parquet": (b"PAR1", b"__shard__"),
    ".png": (b"\x89PNG\r\n\x1a\n", b""),
    ".html": (b"<!DOCTYPE html>", b'<meta http-equiv="Content-Security-Policy"'),
}


def check_report_path(dataset: StoredDataset, path: str, *, overwrite: bool, ending: str) -> None:
    """Refuse a path to which no report may be written.

    Args:
        dataset: What it is of.
        path: Where it will be.
        overwrite: Whether it may take the place of another report of its kind.
        ending: `.html`, `.png`, `.csv` or `.parquet`: what it is.

    Raises:
        InvalidRequest: It is no name of a file here or in a store, or one of the dataset's own files.
        OutputExists: There is something already that is not to be replaced.
    """
    check_target_name(path, f"report{ending}")
    own = [dataset.dataset_file, *(name for shard in dataset.shards for name in (shard.path, shard.sidecar))]
    if real_path(path) in {real_path(name) for name in own if name}:
        raise InvalidRequest(path, "a file of the dataset itself", remedy="Choose another name.")
    begins, holds = _REPORT_FORMATS[ending]
    check_target(path, overwrite=overwrite, magic=begins, marker=holds, option=flag_text("overwrite"))
