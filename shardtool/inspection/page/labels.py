"""Labels, read from indexes: the checksum of a short payload tells it from any other, so that each is read once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.types as pt

from shardtool.dataset.shard_file import COMPRESSED, open_shard
from shardtool.errors import CorruptShard, printable
from shardtool.inspection.page.figures import MOST_LABELS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.inspection.page.figures import LabelSet

LABEL_FIELDS = ("cls", "label", "class", "category")
SPLIT = "split"
_LONGEST = 64  # bytes of a payload that is a label; CRC-32C tells short ones apart
_READS = 20_000  # payloads a report reads for labels, where no checksum spares it
_SHOWN = 200  # characters of a label
_MORE_BITS, _LAST = 0x80, 0x7F


def varint(data: bytes) -> int | None:
    """Return the whole number that a packed int64 list holds; None where it holds another count of them, or is none.

    Source: Protocol Buffers, "Encoding": base 128 varints, two's complement.
    """
    value = 0
    for at, byte in enumerate(data[:10]):
        value |= (byte & _LAST) << (7 * at)
        if not byte & _MORE_BITS:
            return (value - 2**64 if value >= 2**63 else value) if at == len(data) - 1 else None
    return None


def label_text(data: bytes, classes: Sequence[str], *, packed: bool) -> str:
    """Return a label for people, by its class's name where there is one."""
    number = varint(data) if packed else None
    text = str(number) if number is not None else data.decode("utf-8", "replace").strip()
    if classes and text.isascii() and text.isdigit() and int(text) < len(classes):
        text = str(classes[int(text)])
    return printable(text)[:_SHOWN]


class FieldLabels:
    """The labels that a field holds, over all shards."""

    def __init__(self, name: str, classes: Sequence[str], *, packed: bool) -> None:
        self.name, self._classes, self._packed = name, classes, packed
        self._known: dict[int, str] = {}
        self._reads = _READS

    def of_shard(self, path: str, parts: Mapping[str, Any], rows: int) -> tuple[NDArray[np.int64], list[str]]:
        """Return a code for each sample, -1 where it has no label, and what the codes stand for."""
        codes = np.full(rows, -1, np.int64)
        at = np.flatnonzero(pc.equal(parts["name"], self.name).to_numpy(zero_copy_only=False))
        at = at[parts["length"][at] <= _LONGEST]
        if not len(at):
            return codes, []
        if parts["crc32c"] is not None:
            keys = (parts["length"][at].astype(np.uint64) << np.uint64(32)) | parts["crc32c"][at].astype(np.uint64)
        else:
            keys = parts["offset"][at].astype(np.uint64)
            self._known.clear()  # a place means something in its own shard only
            if path.endswith(COMPRESSED):
                return codes, []
        different, first, which = np.unique(keys, return_index=True, return_inverse=True)
        if parts["crc32c"] is not None and len(different) > MOST_LABELS:
            return codes, []
        texts = self._texts(path, different, parts["offset"][at[first]], parts["length"][at[first]])
        names = sorted(set(texts) - {""})
        numbers = {name: number for number, name in enumerate(names)}
        codes[parts["parent"][at]] = np.array([numbers.get(text, -1) for text in texts], np.int64)[which]
        return codes, names

    def _texts(self, path: str, keys: Any, offsets: Any, lengths: Any) -> list[str]:
        new = [at for at, key in enumerate(keys.tolist()) if key not in self._known]
        try:
            with open_shard(path) as shard:
                for at in sorted(new, key=lambda one: int(offsets[one])):
                    if self._reads <= 0:
                        break
                    self._reads -= 1
                    data = bytes(shard.read(int(offsets[at]), int(lengths[at])))
                    self._known[int(keys[at])] = label_text(data, self._classes, packed=self._packed)
        except CorruptShard:
            pass  # whoever reads its samples tells of it
        return [self._known.get(key, "") for key in keys.tolist()]


def label_columns(schema: Any) -> list[str]:
    """Return the metadata columns that may be labels: texts and truth values, and numbers that are called so."""
    found = []
    for column in schema:
        kind = column.type.value_type if pt.is_dictionary(column.type) else column.type
        textual = pt.is_string(kind) or pt.is_large_string(kind) or pt.is_boolean(kind)
        named = pt.is_integer(kind) and column.name.lower() in (*LABEL_FIELDS, SPLIT)
        if not column.name.startswith("__") and (textual or named):
            found.append(column.name)
    return found


def column_labels(column: Any) -> tuple[NDArray[np.int64], list[str]] | None:
    """Return a metadata column's codes and what they stand for; None where it has too many different values."""
    values = column.combine_chunks()
    if not pt.is_dictionary(values.type):
        values = pc.dictionary_encode(values)
    if len(values.dictionary) > MOST_LABELS:
        return None
    codes = pc.fill_null(values.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, [printable(str(value))[:_SHOWN] for value in values.dictionary.to_pylist()]


def count_labels(found: LabelSet, codes: NDArray[np.int64], names: Sequence[str]) -> None:
    """Add a shard's labels to a set."""
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    found.add((name, int(count)) for name, count in zip(names, counts, strict=True) if count)
