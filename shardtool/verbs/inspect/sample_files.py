"""Write the fields of a sample to files, and check the path of a report.

No key can cause a write outside the folder.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from shardtool.dataset.payload import parse_value
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


_MAX_PATH_CHARS = 255


def write_fields(sample: StoredSample, folder: str, *, overwrite: bool = False) -> tuple[str, ...]:
    """Write each field of a sample to `KEY.FIELD`, TFRecord numbers as text or JSON; return the paths."""
    paths = [_field_path(sample, field["name"]) for field in sample.fields]  # check all before writing any
    with closing(FolderTree(named_local_folder(folder).path)) as tree, open_shard(sample.shard.path) as file:
        for row in sorted(range(len(paths)), key=lambda row: sample.fields[row]["offset"]):
            blocks = partial(_field_blocks, sample, sample.fields[row], file)
            tree.write(paths[row], blocks, "overwrite" if overwrite else "error")
        return tuple(map(tree.full_path, paths))


def field_bytes(sample: StoredSample, field: str) -> Iterator[bytes]:
    """Yield the bytes of a field in blocks; a number of a TFRecord as text."""
    names = [item["name"] for item in sample.fields]
    if field not in names:
        found = f"{printable(sample.key)} has no field {field!r}"
        raise InvalidRequest(
            cli_name("field"), found, expected=f"one of {format_list(sorted(map(printable, names)), 9)}"
        )
    with open_shard(sample.shard.path) as file:
        yield from _field_blocks(sample, sample.fields[names.index(field)], file)


def _field_path(sample: StoredSample, field: str) -> bytes:
    path = to_bytes(f"{sample.key}.{field}")
    if problem := path_problem(path):
        found = f"sample {sample.number:,}: {printable(path)[:_MAX_PATH_CHARS]} is {problem}"
        raise CorruptShard(sample.shard.path, found, remedy="No file of this sample was written.")
    return path


def _field_blocks(sample: StoredSample, field: FieldRow, file: ShardFile | CompressedFile) -> Iterator[bytes]:
    location = f"{sample.shard.path}, field {field['name']!r} of {sample.key}"
    blocks, crc = iter_payload(file, field["offset"], field["length"], location), 0
    kind = sample.kinds.get(field["name"], "bytes")
    if kind != "bytes":
        blocks = iter([b"".join(blocks)])
    for block in blocks:
        crc = crc32c(block, crc)
        yield block if kind == "bytes" else _number_text(block, kind, location)
    if field["crc32c"] is not None and crc != field["crc32c"]:
        raise CorruptShard(location, "checksum differs from the index", remedy="Run `shardtool verify`.")


def _number_text(data: bytes, kind: str, location: str) -> bytes:
    if (value := parse_value(data, kind)) is None:
        raise CorruptShard(location, f"not a valid {kind}")
    return str(value).encode()


_REPORT_FORMATS = {
    ".csv": (b'"__key__","__shard__"', b""),
    ".parquet": (b"PAR1", b"__shard__"),
    ".png": (b"\x89PNG\r\n\x1a\n", b""),
    ".html": (b"<!DOCTYPE html>", b'<meta http-equiv="Content-Security-Policy"'),
}


def check_report_path(dataset: StoredDataset, path: str, *, overwrite: bool, ending: str) -> None:
    """Check that a report may be written to a path; it may overwrite only a report of the same kind."""
    check_target_name(path, f"report{ending}")
    dataset_paths = [dataset.dataset_file, *(name for shard in dataset.shards for name in (shard.path, shard.sidecar))]
    if real_path(path) in {real_path(name) for name in dataset_paths if name}:
        raise InvalidRequest(path, "a file of the dataset itself", remedy="Choose another name.")
    begins, holds = _REPORT_FORMATS[ending]
    check_target(path, overwrite=overwrite, magic=begins, marker=holds, option=flag_text("overwrite"))
