"""The version of shardtool, types of option values, and shared constants."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

__version__ = "0.1.0"

# A dataset file, a pattern, a folder, or a list of shards.
DatasetLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Datasets = DatasetLike | Sequence[DatasetLike]
# A shard pattern, or a list of shard names.
OutputNames = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Dots = Literal["first", "last"]
OnError = Literal["raise", "skip"]
Oversize = Literal["error", "alone", "skip"]
AssignBy = Literal["order", "hash"]
Symlinks = Literal["inside", "follow", "skip"]
StartMethod = Literal["auto", "fork", "spawn"]
ResizeMode = Literal["shorter", "longer", "exact", "crop", "pad"]
ImageFormat = Literal["jpg", "png", "webp"]
IfExists = Literal["error", "resume", "overwrite", "resume-overwrite", "append", "append-resume", "update"]
BLOCK_BYTES = 2**20
CHUNK_ROWS = 2**16
Trust = Literal["time", "size"]
OnDuplicate = Literal["error", "rename", "first", "last"]
HashName = Literal["sha256", "md5", "sha512"]
ReadMethod = Literal["auto", "gather", "scatter"]
Target = Literal["webdataset", "wids", "dali", "energon", "huggingface"]
# Indexes that can be exported for other tools: the keys of `EXPORTS`.
EXPORT_NAMES = ("dali-webdataset", "energon", "huggingface", "timm", "open-clip", "wids", "dali-tfrecord", "tfrecord")
NumberType = Literal["int64", "float"]
FeatureType = Literal["bytes", "int64", "float"]
ValueType = Literal["int64", "float", "bool", "text", "json"]
STORED_TYPES: Mapping[str, NumberType] = {"int64": "int64", "float": "float", "bool": "int64"}


def number_fields(types: Mapping[str, str]) -> dict[str, NumberType]:
    """Return the number type of each field that TFRecords store as a number."""
    return {name: STORED_TYPES[kind] for name, kind in types.items() if kind in STORED_TYPES}


def common_type(kinds: Iterable[ValueType | None]) -> ValueType | None:
    """Return the common type of several types, or None. The common type of booleans and integers is `int64`."""
    types = {*kinds}
    if len(types) > 1:
        types = {STORED_TYPES.get(kind or "") for kind in types}
    return types.pop() if len(types) == 1 else None


def chunk_slices(count: int) -> Iterator[slice]:
    """Yield slices of up to `CHUNK_ROWS` that cover `range(count)`."""
    return (slice(first, min(first + CHUNK_ROWS, count)) for first in range(0, count, CHUNK_ROWS))
