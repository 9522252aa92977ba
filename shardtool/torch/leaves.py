"""The tensors inside of a batch, whatever its shape: a dict, a tuple, a list, a named tuple, or a tensor alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

Change = Callable[[torch.Tensor], torch.Tensor]


def change_tensors(batch: Any, change: Change) -> Any:
    """Return `batch` with each tensor changed; arrays of numbers become tensors, and all else stays as it is."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, np.ndarray):
        return change(_tensor(batch)) if batch.dtype.kind in "biufc" else batch
    if isinstance(batch, Mapping):
        changed = {name: change_tensors(value, change) for name, value in batch.items()}
        return changed if type(batch) is dict else type(batch)(changed)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(change_tensors(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(change_tensors(value, change) for value in batch)
    return batch


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return the array as a tensor: of the same memory, where torch can write to it."""
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    plain = native.flags.writeable and all(step >= 0 for step in native.strides)
    return torch.from_numpy(native if plain else native.copy())
