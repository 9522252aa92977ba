"""The ways of a batch to a device: at once, or on a CUDA stream beside the model's.

A sender says when the memory of the batch that it was given last is no longer read (`wait`). What it returns for a
batch is the hand-out: called once, on the stream that will use the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

from shardtool.torch.leaves import Change, change_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

HandOut: TypeAlias = "Callable[[], Any]"


class Sender(Protocol):
    """A way to the device."""

    def send(self, batch: Any) -> HandOut:
        """Start the batch on its way."""

    def wait(self) -> None:
        """Return when nothing reads the memory of the last batch any more."""


class AtOnce:
    """Copies and changes in `send`: what comes out is no memory of the batch's."""

    def __init__(self, device: torch.device, change: Change) -> None:
        self._device, self._change = device, change

    def send(self, batch: Any) -> HandOut:
        """Copy and change the batch now."""
        return [change_tensors(batch, self._copy)].pop

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        changed = self._change(tensor.to(self._device))
        return changed.clone() if changed is tensor else changed

    def wait(self) -> None:
        """Return at once: nothing is read after `send`."""


class SideStream:
    """Copies and changes on a stream of its own; at most one batch in host memory is being read."""

    def __init__(self, device: torch.device, change: Change) -> None:
        self._device, self._change = device, change
        self._stream = torch.cuda.Stream(device)
        self._copied: torch.cuda.Event | None = None
        self._reading: list[torch.Tensor] = []  # pinned memory lives until it was copied, whoever owns it

    def send(self, batch: Any) -> HandOut:
        """Enqueue the copies, and after them the changes."""
        given = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            moved = change_tensors(batch, lambda tensor: self._move(tensor, given))
            self._copied = self._event()
            arrived = [change_tensors(moved, self._change)]
            ready = self._event()

        def hand_out() -> Any:
            user = torch.cuda.current_stream(self._device)
            user.wait_event(ready)
            return change_tensors(arrived.pop(), lambda tensor: self._receive(tensor, user))

        return hand_out

    def wait(self) -> None:
        """Return when the copies have ended."""
        if self._copied is not None:
            self._copied.synchronize()
        self._copied, self._reading = None, []

    def _move(self, tensor: torch.Tensor, given: torch.cuda.Stream) -> torch.Tensor:
        if tensor.device == self._device:  # made on the stream of whoever asked for it
            self._stream.wait_stream(given)
            return _used_on(tensor, self._stream).clone()
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return tensor  # of another GPU, or sparse: copied when it is handed out
        tensor = tensor if tensor.is_pinned() else tensor.pin_memory()
        self._reading.append(tensor)
        return tensor.to(self._device, non_blocking=True)

    def _receive(self, tensor: torch.Tensor, user: torch.cuda.Stream) -> torch.Tensor:
        return _used_on(tensor, user) if tensor.device == self._device else tensor.to(self._device)

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(blocking=True)  # a thread that waits for it leaves its core to the decoders
        event.record(self._stream)
        return event


def _used_on(tensor: torch.Tensor, stream: torch.cuda.Stream) -> torch.Tensor:
    """Keep the tensor's memory from being given again before `stream` has done what it has been asked for so far."""
    tensor.record_stream(stream)
    return tensor
