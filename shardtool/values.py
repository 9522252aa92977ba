"""The version, the values that options can have, and constants shared by all modules."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

__version__ = "0.1.0"


DatasetLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]  # a dataset, or shards, as a caller names them


Datasets = DatasetLike | Sequence[DatasetLike]


Dots = Literal["first", "last"]


OnError = Literal["stop", "skip"]


OnBadSample = Literal["raise", "skip"]  # the same of a program that reads or writes samples itself


Oversize = Literal["error", "alone", "skip"]


AssignBy = Literal["order", "hash"]


Symlinks = Literal["inside", "follow", "skip"]


StartMethod = Literal["auto", "fork", "spawn"]


ResizeMode = Literal["shorter", "longer", "exact", "crop", "pad"]


ImageFormat = Literal["jpg", "png", "webp"]


IfExists = Literal["error", "resume", "overwrite", "resume-overwrite", "append", "append-resume", "update"]


BLOCK_BYTES = 2**20  # bytes that are read or written at a time, where nothing speaks for another number


CHUNK_ROWS = 2**16  # samples, rows or names at a time: no object for each of ten million, and small columns in between


Trust = Literal["time", "size"]


OnDuplicate = Literal["error", "rename", "first", "last"]


HashName = Literal["sha256", "md5", "sha512"]


ReadMethod = Literal["auto", "gather", "scatter"]


Target = Literal["webdataset", "wids", "dali", "energon", "huggingface"]


NumberType = Literal["int64", "float"]  # what a field's text stands for, where a format has numbers


FeatureType = Literal["bytes", "int64", "float"]  # what a feature of a TFRecord holds


ValueType = Literal["int64", "float", "bool", "text", "json"]  # what a value was, of which a payload is the text


STORED_TYPES: Mapping[str, NumberType] = {
    "int64": "int64",
    "float": "float",
    "bool": "int64",
}  # where a format has numbers


def number_fields(types: Mapping[str, str]) -> dict[str, NumberType]:
    """Return the fields whose texts stand for numbers, and for which."""
    return {name: STORED_TYPES[kind] for name, kind in types.items() if kind in STORED_TYPES}


def common_type(kinds: Iterable[ValueType | None]) -> ValueType | None:
    """Return what all values are that were of these types; None: of no one type, or one is not known."""
    found = {*kinds}
    if len(found) > 1:
        found = {STORED_TYPES.get(kind or "") for kind in found}
    return found.pop() if len(found) == 1 else None


def chunk_slices(count: int) -> Iterator[slice]:
    """Yield the places below `count`, so many at a time as are held at once."""
    return (slice(first, min(first + CHUNK_ROWS, count)) for first in range(0, count, CHUNK_ROWS))
