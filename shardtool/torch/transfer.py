"""Copy a batch to a device: synchronously, or on a CUDA stream.

`send` returns a function that is called once, on the stream that uses the batch, and returns the batch. `wait` returns
when the memory of the last batch is no longer read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

TensorFunction = Callable[[torch.Tensor], torch.Tensor]


def change_tensors(batch: Any, change: TensorFunction) -> Any:
    """Return `batch` with each tensor changed; numeric arrays become tensors."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, np.ndarray):
        return change(_as_tensor(batch)) if batch.dtype.kind in "biufc" else batch
    if isinstance(batch, Mapping):
        changed = {name: change_tensors(value, change) for name, value in batch.items()}
        return changed if type(batch) is dict else type(batch)(changed)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(change_tensors(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(change_tensors(value, change) for value in batch)
    return batch


def _as_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    plain = native.flags.writeable and all(step >= 0 for step in native.strides)
    return torch.from_numpy(native if plain else native.copy())


TakeBatch: TypeAlias = "Callable[[], Any]"


class DirectTransfer:
    """Copies in `send`."""

    def __init__(self, device: torch.device, change: TensorFunction) -> None:
        self._device, self._change = device, change

    def send(self, batch: Any) -> TakeBatch:
        """Copy and change the batch."""
        return [change_tensors(batch, self._copy)].pop

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        changed = self._change(tensor.to(self._device))
        return changed.clone() if changed is tensor else changed

    def wait(self) -> None:
        """Return immediately."""


class StreamTransfer:
    """Copies on its own CUDA stream, one batch at a time."""

    def __init__(self, device: torch.device, change: TensorFunction) -> None:
        self._device, self._change = device, change
        self._stream = torch.cuda.Stream(device)
        self._copied: torch.cuda.Event | None = None
        self._reading: list[torch.Tensor] = []  # keeps pinned memory alive until it was copied

    def send(self, batch: Any) -> TakeBatch:
        """Enqueue the copies, then the changes."""
        caller_stream = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            moved = change_tensors(batch, lambda tensor: self._move(tensor, caller_stream))
            self._copied = self._event()
            arrived = [change_tensors(moved, self._change)]
            ready = self._event()

        def hand_out() -> Any:
            consumer = torch.cuda.current_stream(self._device)
            consumer.wait_event(ready)
            return change_tensors(arrived.pop(), lambda tensor: self._receive(tensor, consumer))

        return hand_out

    def wait(self) -> None:
        """Return when the copies have finished."""
        if self._copied is not None:
            self._copied.synchronize()
        self._copied, self._reading = None, []

    def _move(self, tensor: torch.Tensor, caller_stream: torch.cuda.Stream) -> torch.Tensor:
        if tensor.device == self._device:
            self._stream.wait_stream(caller_stream)
            return _record_use(tensor, self._stream).clone()
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return tensor  # on another GPU, or sparse: copied when it is returned
        tensor = tensor if tensor.is_pinned() else tensor.pin_memory()
        self._reading.append(tensor)
        return tensor.to(self._device, non_blocking=True)

    def _receive(self, tensor: torch.Tensor, consumer: torch.cuda.Stream) -> torch.Tensor:
        return _record_use(tensor, consumer) if tensor.device == self._device else tensor.to(self._device)

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(blocking=True)  # leaves the core to the decoders
        event.record(self._stream)
        return event


def _record_use(tensor: torch.Tensor, stream: torch.cuda.Stream) -> torch.Tensor:
    """Prevent reuse of the tensor's memory until `stream` has finished its current work."""
    tensor.record_stream(stream)
    return tensor
