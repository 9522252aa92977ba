"""A batch that threads fill: each sample goes into its row as soon as it is decoded, and no step at the end copies.

Values of a field that are arrays, tensors or images of one shape and type become a tensor [samples, ...], of several
shapes a list of tensors; numbers a tensor of int64, float64 or bool; all else a list. Tensors are torch's own memory:
of pinned memory its allocator keeps what is freed, and gives it again only when no copy to a device reads it any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch

from shardtool.errors import SampleFailed, listing

_NUMBERS = (bool, int, float, np.number, np.bool_)


class _Placed:
    """Stands for a value that lies in its row."""


_PLACED = _Placed()


@dataclass(frozen=True)
class Form:
    """What a sample is made of, which is the same for all samples of a batch.

    Attributes:
        kind: dict, tuple, or object: a value alone.
        names: The fields of a dict, in any order, and the places of a tuple.
    """

    kind: type
    names: tuple[object, ...]

    def is_like(self, other: Form) -> bool:
        """Tell whether two samples can be of one batch."""
        return self == other or (self.kind is other.kind is dict and set(self.names) == set(other.names))


def _parts(sample: object) -> tuple[Form, list[tuple[object, object]]]:
    if isinstance(sample, dict):
        return Form(dict, tuple(sample)), list(sample.items())
    if isinstance(sample, tuple):
        parts = list(enumerate(sample))
        return Form(tuple, tuple(range(len(sample)))), parts  # type: ignore[return-value]
    return Form(object, (0,)), [(0, sample)]


class BatchRows:
    """The samples of one batch; threads put them in, each into a row of its own.

    Args:
        count: Rows there are.
        pin: Whether tensors lie in pinned memory.
    """

    def __init__(self, count: int, *, pin: bool) -> None:
        self._count, self._pin, self._lock = count, pin, Lock()
        self._forms: list[Form | None] = [None] * count  # None: the sample is left out
        self._fields: dict[object, _Field] = {}

    def put(self, row: int, sample: object) -> None:
        """Put a sample into its row."""
        form, parts = _parts(sample)
        for name, value in parts:
            field = self._fields.get(name)
            if field is None:
                with self._lock:
                    field = self._fields.setdefault(name, _Field(self._count, pin=self._pin))
            field.put(row, value)
        self._forms[row] = form

    def batch(self, keys: list[object]) -> object:
        """Return the batch; None: all of its samples were left out.

        Args:
            keys: Of the rows, for messages.

        Raises:
            SampleFailed: A sample has other fields than the first.
        """
        kept = [row for row, form in enumerate(self._forms) if form is not None]
        if not kept:
            return None
        form = self._form(kept, keys)
        fields = {name: self._fields[name].batch(kept) for name in form.names}
        if form.kind is object:
            return fields[0]
        return fields if form.kind is dict else tuple(fields.values())

    def _form(self, kept: list[int], keys: list[object]) -> Form:
        """Return what all samples are made of."""
        forms = [form for form in self._forms if form is not None]
        for row, form in zip(kept, forms, strict=True):
            if not form.is_like(forms[0]):
                raise _unlike(form, forms[0], keys[row])
        return forms[0]


class _Field:
    """The values of one field."""

    def __init__(self, count: int, *, pin: bool) -> None:
        self._pin, self._lock = pin, Lock()
        self._values: list[Any] = [None] * count
        self._rows: torch.Tensor | None = None
        self._array: np.ndarray[Any, Any] | None = None  # the same memory

    def put(self, row: int, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            rows = self._rows_like(value)
            if value.shape == rows.shape[1:] and value.dtype == rows.dtype:
                rows[row].copy_(value)
                value = _PLACED
        elif isinstance(value, np.ndarray) or hasattr(type(value), "__array_interface__"):  # Pillow's images
            array = np.asarray(value)
            if array.dtype.kind in "biufc" and array.dtype.isnative:
                rows = self._rows_like(array)
                if (
                    self._array is not None
                    and array.shape == tuple(rows.shape[1:])
                    and array.dtype == self._array.dtype
                ):
                    self._array[row] = array
                    array = _PLACED  # type: ignore[assignment]
                else:
                    tensor = torch.from_numpy(array.copy())  # as the others of its list
                    array = tensor.pin_memory() if self._pin else tensor
            value = array
        self._values[row] = value

    def _rows_like(self, value: Any) -> torch.Tensor:
        """Return the field's rows; the first value says what they are."""
        with self._lock:
            if self._rows is None:
                dtype = value.dtype if isinstance(value, torch.Tensor) else _dtype(value)
                self._rows = torch.empty((len(self._values), *value.shape), dtype=dtype, pin_memory=self._pin)
                self._array = None if dtype == torch.bfloat16 else self._rows.numpy()
            return self._rows

    def batch(self, kept: list[int]) -> object:
        values = self._values if len(kept) == len(self._values) else [self._values[row] for row in kept]
        if self._rows is not None:
            if all(value is _PLACED for value in values):
                return self._rows if values is self._values else self._rows[kept]
            return [self._rows[row] if value is _PLACED else value for row, value in zip(kept, values, strict=True)]
        return _numbers(values, pin=self._pin)


def _dtype(array: np.ndarray[Any, Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype


def _numbers(values: list[Any], *, pin: bool) -> object:
    """Return numbers as a tensor, and other values as they are."""
    kinds = {type(value) for value in values}
    if not all(issubclass(kind, _NUMBERS) for kind in kinds) or (bool in kinds and len(kinds) > 1):
        return values
    try:
        numbers = torch.from_numpy(np.array(values))
    except (OverflowError, TypeError):  # integers of more than 64 bits
        return values
    return numbers.pin_memory() if pin else numbers


def _unlike(found: Form, first: Form, key: object) -> SampleFailed:
    if found.kind is not first.kind:
        return SampleFailed(f"sample {key}", "not of the same form as the first of its batch")
    there, expected = (listing([str(name) for name in form.names if str(name)[:2] != "__"]) for form in (found, first))
    return SampleFailed(
        f"sample {key}",
        f"fields {there}",
        expected=f"{expected}, as in the first of its batch",
        remedy="Choose the fields that all samples have with select(...) or tuple(...).",
    )
