"""A batch of tensors that threads fill.

Torch reuses pinned memory only when no copy reads it.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shardtool.read.collate import check_lists, check_same_fields, join_sample, split_sample

if TYPE_CHECKING:
    from shardtool.read.collate import ListFields


_NUMBER_TYPES = (bool, int, float, np.number, np.bool_)
_IN_ROW: Any = object()  # a value copied into its row


class BatchRows:
    """The samples of one batch, in pinned memory if `pin` is set."""

    def __init__(self, count: int, *, pin: bool, lists: ListFields = ()) -> None:
        self._count, self._pin, self._lists, self._lock = count, pin, lists, Lock()
        self._forms: list[tuple[type, list[object]] | None] = [None] * count  # None: skipped
        self._fields: dict[object, _FieldRows] = {}

    def put(self, row: int, sample: object) -> None:
        """Store a sample in its row."""
        kind, parts = split_sample(sample)
        for name, value in parts.items():
            field = self._fields.get(name)
            if field is None:
                with self._lock:
                    rows = _FieldRows(self._count, pin=self._pin, listed=name in self._lists)
                    field = self._fields.setdefault(name, rows)
            field.put(row, value)
        self._forms[row] = kind, [*parts]

    def batch(self, keys: list[object]) -> object:
        """Return the batch; None if all samples were skipped. `keys` are for messages."""
        filled = [(row, *form) for row, form in enumerate(self._forms) if form is not None]
        if not filled:
            return None
        check_same_fields([(keys[row], kind, names) for row, kind, names in filled])
        _, kind, names = filled[0]
        check_lists(self._lists, names)
        rows = [row for row, *_ in filled]
        return join_sample(kind, {name: self._fields[name].batch(rows) for name in names})


class _FieldRows:
    def __init__(self, count: int, *, pin: bool, listed: bool) -> None:
        self._pin, self._listed, self._lock = pin, listed, Lock()
        self._values: list[Any] = [None] * count
        self._rows: torch.Tensor | None = None
        self._array: np.ndarray[Any, Any] | None = None  # NumPy view of `_rows`

    def put(self, row: int, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            rows = None if self._listed else self._rows_like(value)
            if rows is not None and value.shape == rows.shape[1:] and value.dtype == rows.dtype:
                rows[row].copy_(value)
                value = _IN_ROW
        elif isinstance(value, np.ndarray) or hasattr(type(value), "__array_interface__"):  # Pillow's images
            array = np.asarray(value)
            if array.dtype.kind in "biufc" and array.dtype.isnative:
                if not self._listed:
                    self._rows_like(array)
                row_array = self._array
                if row_array is not None and array.shape == row_array.shape[1:] and array.dtype == row_array.dtype:
                    row_array[row] = array
                    array = _IN_ROW
                else:
                    tensor = torch.from_numpy(array.copy())  # the others of its list are tensors
                    array = tensor.pin_memory() if self._pin else tensor
            value = array
        self._values[row] = value

    def _rows_like(self, value: Any) -> torch.Tensor:
        with self._lock:
            if self._rows is None:
                is_tensor = isinstance(value, torch.Tensor)
                dtype = value.dtype if is_tensor else torch.from_numpy(np.empty(0, value.dtype)).dtype
                self._rows = torch.empty((len(self._values), *value.shape), dtype=dtype, pin_memory=self._pin)
                self._array = None if dtype == torch.bfloat16 else self._rows.numpy()
            return self._rows

    def batch(self, indexes: list[int]) -> object:
        values = self._values if len(indexes) == len(self._values) else [self._values[row] for row in indexes]
        if self._rows is not None:
            if all(value is _IN_ROW for value in values):
                return self._rows if values is self._values else self._rows[indexes]
            return [self._rows[row] if value is _IN_ROW else value for row, value in zip(indexes, values, strict=True)]
        return values if self._listed else _numbers_as_tensor(values, pin=self._pin)


def _numbers_as_tensor(values: list[Any], *, pin: bool) -> object:
    kinds = {type(value) for value in values}
    if not all(issubclass(kind, _NUMBER_TYPES) for kind in kinds) or (bool in kinds and len(kinds) > 1):
        return values
    try:
        numbers = torch.from_numpy(np.array(values))
    except (OverflowError, TypeError):
        return values
    return numbers.pin_memory() if pin else numbers


def collate(samples: list[Any], lists: ListFields = ()) -> Any:
    """Return samples as one batch, like `loader`: the `collate_fn` of a DataLoader.

    Fields, or tuple positions, in `lists` become a list of tensors; pass them with `functools.partial`.

    Raises:
        InvalidRequest: `lists` names an unknown field.
        SampleFailed: The samples differ in their fields or form.
    """
    rows = BatchRows(len(samples), pin=False, lists=lists)
    for row, sample in enumerate(samples):
        rows.put(row, sample)
    return rows.batch([sample.get("__key__") if isinstance(sample, dict) else None for sample in samples])
