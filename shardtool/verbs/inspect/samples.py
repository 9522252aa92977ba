"""Find samples, decode their fields for display, and write the fields to files."""

from __future__ import annotations

import base64
import json
import math
import sys
from codecs import getincrementaldecoder
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.dataset.features import number_features
from shardtool.dataset.payload import (
    MAX_INSPECTED_IMAGE_BYTES,
    MAX_JSON_NESTING,
    MAX_TEXT_BYTES,
    content_type,
    image_info,
    label_name,
    parse_json,
    parse_value,
)
from shardtool.dataset.scan import decode_name
from shardtool.dataset.shard_file import CompressedFile, ShardFile, iter_payload, open_shard
from shardtool.errors import CorruptShard, InvalidRequest, format_list, printable
from shardtool.fingerprint import crc32c
from shardtool.format import tfrecord_read
from shardtool.format.tfrecord_write import FRAME_HEAD_BYTES, FRAME_TAIL_BYTES
from shardtool.messages import choose_text, cli_name, flag_text
from shardtool.names import to_bytes, to_output_name
from shardtool.read.metadata import selected_shards
from shardtool.storage.file_system import check_target
from shardtool.storage.paths import real_path
from shardtool.storage.staging import named_local_folder
from shardtool.storage.target_file import check_target_name
from shardtool.storage.tree import FolderTree, path_problem
from shardtool.verbs.inspect.overview import StoredSample, stored_samples
from shardtool.verbs.inspect.payload_headers import describe_payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.dataset.sidecar_schema import FieldRow
    from shardtool.dataset.stored import StoredDataset, StoredShard
    from shardtool.values import NumberType


_MAX_NUMBER_DIGITS = 18


def iter_keys(datasets: Sequence[StoredDataset], where: str | None = None) -> Iterator[str]:
    """Yield the keys of all samples, or of the samples that match a query."""
    for selected in selected_shards(datasets, where):
        column = selected.shard_index.table.column("__key__")
        yield from (column if where is None else column.take(selected.rows)).to_pylist()
        selected.raise_damage()


def first_samples(
    datasets: Sequence[StoredDataset], max_samples: int | None = None, where: str | None = None
) -> Iterator[StoredSample]:
    """Yield up to `max_samples` samples in order. If `where` is given, yield only matching samples."""
    remaining = sys.maxsize if max_samples is None else max_samples
    for selected in selected_shards(datasets, where, metadata=True):
        for row in selected.rows[:remaining].tolist():
            yield _stored_sample(selected.dataset, selected.shard, selected.shard_index, row, selected.first + row)
        remaining -= len(selected.rows)
        if remaining <= 0:
            return
        selected.raise_damage()


def find_sample(datasets: Sequence[StoredDataset], key: str) -> StoredSample:
    """Return the first sample with this key.

    If there is none and `key` is a number, such as `12`, return sample 12, counted from 0 over all datasets.
    """
    if (sample := _find_in_key_ranges(datasets, key)) is not None:
        return sample
    sample_number = int(key) if key.isascii() and key.isdigit() and len(key) <= _MAX_NUMBER_DIGITS else -1
    first_number, match, example = 0, None, ""
    damage: list[CorruptShard] = []
    for dataset, shard in ((stored, shard) for stored in datasets for shard in stored.shards):
        try:
            shard_index = shard.index()
        except CorruptShard as error:
            damage.append(error)
            continue
        damage += shard_index.problems
        column = shard_index.table.column("__key__")
        row = column.index(key).as_py()
        if row >= 0:
            return _stored_sample(dataset, shard, _with_metadata(shard, shard_index), row, first_number + row)
        if first_number <= sample_number < first_number + len(shard_index):
            match = dataset, shard, _with_metadata(shard, shard_index), sample_number - first_number
        example = example or (column[0].as_py() if len(shard_index) else "")
        first_number += len(shard_index)
    if match is not None:
        return _stored_sample(*match, sample_number)
    if damage:
        raise damage[0]
    expected = "a dataset with samples; this one is empty"
    if first_number:
        example_text = f" such as {printable(example)!r}" if example else ""
        expected = f"a key{example_text}, or a number below {first_number:,}"
    raise InvalidRequest(choose_text(f"sample {key}", f"--show {key}"), "no such sample", expected=expected)


def _find_in_key_ranges(datasets: Sequence[StoredDataset], key: str) -> StoredSample | None:
    dataset = datasets[0]
    entries = dataset.file.shards if dataset.file is not None else ()
    if len(datasets) > 1 or len(entries) != len(dataset.shards):
        return None
    if any(entry.last_key >= following.first_key for entry, following in pairwise(entries)):
        return None
    index = next((index for index, entry in enumerate(entries) if entry.first_key <= key <= entry.last_key), None)
    if index is None:
        return None
    shard, first_number = dataset.shards[index], sum(entry.samples for entry in entries[:index])
    try:
        shard_index = shard.index()
    except CorruptShard:
        return None
    row = shard_index.table.column("__key__").index(key).as_py()
    if row < 0:
        return None
    return _stored_sample(dataset, shard, _with_metadata(shard, shard_index), row, first_number + row)


def _with_metadata(shard: StoredShard, shard_index: ShardIndex) -> ShardIndex:
    return shard_index if shard_index.scan else shard.index(metadata=True)


def _stored_sample(
    dataset: StoredDataset, shard: StoredShard, shard_index: ShardIndex, row: int, number: int
) -> StoredSample:
    sample = stored_samples(shard, shard_index, np.array([row]), first=number - row)[0]
    kinds = shard_index.kinds
    if shard.format == "tfrecord" and shard_index.scan is None:
        file = dataset.file
        kinds = number_features(file.features) if file else _record_kinds(shard, sample.offset, sample.size)
    return replace(sample, kinds=kinds, classes=dataset.file.classes if dataset.file else {})


def _record_kinds(shard: StoredShard, offset: int, size: int) -> dict[str, NumberType]:
    if size > MAX_INSPECTED_IMAGE_BYTES:
        return {}
    with open_shard(shard.path) as file:
        start = offset + FRAME_HEAD_BYTES
        data = b"".join(iter_payload(file, start, max(0, size - FRAME_HEAD_BYTES - FRAME_TAIL_BYTES), shard.path))
        features = tfrecord_read.parse_features(data, start, shard.path)
    return {decode_name(feature.name): feature.kind for feature in features if feature.kind != "bytes"}


_MAX_HEAD_BYTES = 64


class _Decoded(NamedTuple):
    content: str
    value: object = None
    image: tuple[int, int, str] | None = None
    problem: str = ""


class FieldView(NamedTuple):
    """A decoded field.

    Attributes:
        value: The text, numbers or parsed JSON, or None for images and bytes.
        label: The class name, if the value is a class number.
    """

    name: str
    content: str
    offset: int
    length: int
    value: object = None
    image: tuple[int, int, str] | None = None
    head: bytes = b""
    problem: str = ""
    label: str | None = None
    details: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the field as `--json` prints it."""
        document = {name: json_value(getattr(self, name)) for name in ("content", "offset", "length", "value", "label")}
        image = None if self.image is None else dict(zip(("width", "height", "mode"), self.image, strict=True))
        return {
            **document,
            "image": image,
            "head": json_value(self.head) or None,
            "problem": self.problem or None,
            "details": [*self.details],
        }


class SampleView(NamedTuple):
    """A sample and its decoded fields."""

    sample: StoredSample
    fields: tuple[FieldView, ...]

    def to_json(self) -> dict[str, object]:
        """Return the sample as `--json` prints it."""
        sample, fields = self.sample, {field.name: field.to_json() for field in self.fields}
        document = {
            "key": sample.key,
            "number": sample.number,
            "shard": to_output_name(sample.shard.path),
            "offset": sample.offset,
        }
        return {**document, "size": sample.size, "fields": fields, "metadata": json_value(sample.metadata)}


def view_sample(sample: StoredSample, *, text_limit: int = MAX_TEXT_BYTES) -> SampleView:
    """Decode the fields of a sample for display. Texts are cut after `text_limit` bytes."""
    with open_shard(sample.shard.path) as file:
        rows = sorted(range(len(sample.fields)), key=lambda row: sample.fields[row]["offset"])
        views = {row: _view_field(sample, sample.fields[row], file, text_limit) for row in rows}
    return SampleView(sample, tuple(views[row] for row in range(len(sample.fields))))


def _view_field(sample: StoredSample, field: FieldRow, file: ShardFile | CompressedFile, text_limit: int) -> FieldView:
    name, offset, length = field["name"], field["offset"], field["length"]
    kind = sample.kinds.get(name, "bytes")
    content = content_type(name, kind)
    limit = MAX_INSPECTED_IMAGE_BYTES if content in ("image", "array", "video") else text_limit
    max_bytes = length if length <= limit else _MAX_HEAD_BYTES if content == "image" else limit
    try:
        data = b"".join(iter_payload(file, offset, length, sample.shard.path, max_bytes=max_bytes))
    except CorruptShard as error:
        return FieldView(name, "bytes", offset, length, problem=error.found)
    problem = ""
    if len(data) == length and field["crc32c"] is not None and crc32c(data) != field["crc32c"]:
        problem = "checksum differs from the index; run `shardtool verify`"
    content, value, image, decode_problem = _decode(data, content, kind, is_complete=len(data) == length)
    head = data[:_MAX_HEAD_BYTES] if value is None and image is None else b""
    details = describe_payload(name, data) if kind == "bytes" else ()
    label = None
    if name in sample.classes and length <= _MAX_HEAD_BYTES and len(data) == length:
        class_name, number = label_name(data, kind, sample.classes[name])
        if isinstance(number, int):
            content, value, label = "number", number, class_name
    return FieldView(name, content, offset, length, value, image, head, problem or decode_problem, label, details)


def _decode(data: bytes, content: str, kind: str, *, is_complete: bool) -> _Decoded:
    if kind != "bytes":
        value = parse_value(data, kind)
        return _Decoded("bytes", problem=f"not a valid {kind}") if value is None else _Decoded("number", value)
    if content == "image" and is_complete:
        info = image_info(data)
        return _Decoded("bytes", problem=info) if isinstance(info, str) else _Decoded("image", image=info)
    if content in ("audio", "video", "pickle", "array", "image"):
        return _Decoded("bytes")
    problem = "not valid JSON" if content == "json" and is_complete else ""
    if content == "json" and is_complete:
        try:
            document = parse_json(data)
        except RecursionError:
            document, problem = None, f"JSON nested more than {MAX_JSON_NESTING} levels deep, shown as text"
        if document is not None or data.strip() == b"null":
            return _Decoded("json", document)
    text = decode_text(data, is_complete=is_complete)
    number = parse_value(data) if content == "number" and len(data) <= _MAX_HEAD_BYTES else None
    if isinstance(number, (int, float)):
        return _Decoded("number", number)
    return _Decoded("bytes" if text is None else "text", text, problem=problem)


def decode_text(data: bytes, *, is_complete: bool) -> str | None:
    """Decode UTF-8. Return None if `data` is not text. Ignore an incomplete last character unless `is_complete`."""
    try:
        text = getincrementaldecoder("utf-8")().decode(data, final=is_complete)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def json_value(value: object) -> object:
    """Convert a value to JSON types, with bytes as base64, and times and non-finite numbers as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    return str(value)


def json_text(value: object) -> str | None:
    """Return a value as JSON text, with strings and times unquoted, or None for null."""
    plain = json_value(value)
    return plain if plain is None or isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


_MAX_PATH_CHARS = 255


def check_no_files(samples: Iterable[StoredSample], folder: str) -> None:
    """Raise an error if `write_fields` would replace a file. Ignore damage, which `write_fields` reports."""
    with suppress(CorruptShard), closing(FolderTree(named_local_folder(folder).path)) as tree:
        for sample in samples:
            paths = [_field_path(sample, field["name"]) for field in sample.fields]
            tree.check_no_conflicts(paths, [-1] * len(paths))  # no file has size -1, so any existing file conflicts


def write_fields(sample: StoredSample, folder: str, *, overwrite: bool = False) -> tuple[str, ...]:
    """Write each field of a sample to a file `KEY.FIELD`, and return the paths.

    TFRecord numbers are written as text or JSON.
    """
    paths = [_field_path(sample, field["name"]) for field in sample.fields]
    with closing(FolderTree(named_local_folder(folder).path)) as tree, open_shard(sample.shard.path) as file:
        for row in sorted(range(len(paths)), key=lambda row: sample.fields[row]["offset"]):
            blocks = partial(_field_blocks, sample, sample.fields[row], file)
            tree.write(paths[row], blocks, "overwrite" if overwrite else "error")
        return tuple(map(tree.full_path, paths))


def field_bytes(sample: StoredSample, field: str) -> Iterator[bytes]:
    """Yield the bytes of a field in blocks. Numbers in TFRecords are converted to text."""
    names = [item["name"] for item in sample.fields]
    if field not in names:
        found = f"{printable(sample.key)} has no field {field!r}"
        raise InvalidRequest(cli_name("raw"), found, expected=f"one of {format_list(sorted(map(printable, names)), 9)}")
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
    """Check that a report can be written to `path`."""
    check_target_name(path, f"report{ending}")
    dataset_paths = [dataset.dataset_file, *(name for shard in dataset.shards for name in (shard.path, shard.sidecar))]
    if real_path(path) in {real_path(name) for name in dataset_paths if name}:
        raise InvalidRequest(path, "a file of the dataset itself", remedy="Choose another name.")
    magic, marker = _REPORT_FORMATS[ending]
    check_target(path, overwrite=overwrite, magic=magic, marker=marker, option=flag_text("overwrite"))
