"""Batches on the GPU before they are asked for: the copy of the next batch runs while the model computes.

On a CUDA device a batch goes through four steps; the second and the third run on a stream of their own,
beside the model's:

1. The loader gives it. A tensor that is not in pinned memory is copied there at once.
2. Its copies to the device are enqueued, and an event after them: `copied`.
3. Images are normalised on the device, and an event stands after that: `ready`.
4. When it is handed out, the model's stream waits for `ready`, and the device's allocator learns that this stream
   uses the memory (`record_stream`), so that it gives the memory to no other batch before the model has read it.

The loader is asked for its next batch only after `copied`: one that fills the same memory again and again overwrites
nothing that is still to be read. This copy was enqueued a batch earlier, so the wait is short or none. Pinned memory
that is taken here is torch's own, whose allocator knows of the copies and waits for them before it gives it again.

Everywhere else (the CPU, for one) a batch is copied and changed in the same way when it is asked for, without streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from shardtool.errors import InvalidRequest
from shardtool.request.settings import check_least

# The tensors inside of a batch, whatever its shape: a dict, a tuple, a list, a named tuple, or a tensor alone.


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


# The ways of a batch to a device: at once, or on a CUDA stream beside the model's.
#
# A sender says when the memory of the batch that it was given last is no longer read (`wait`). What it returns for a
# batch is the hand-out: called once, on the stream that will use the batch.


HandOut: TypeAlias = "Callable[[], Any]"


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


# Images as numbers that a model takes: uint8 becomes (value / 255 - mean) / std, on the device that holds it.
#
# One operation reads uint8 and writes floats, so that no float copy of the batch lies in between. It is computed in 32
# bits and rounded once, whatever the result's dtype is.


Levels: TypeAlias = "float | Sequence[float] | torch.Tensor"  # one number for all channels, or one a channel

_CHANNELS = (1, 3, 4)
_DIMENSIONS = 4  # of a batch of images
_WHITE = 255.0


@dataclass
class Normalize:
    """What becomes of a batch's images: uint8 tensors [n, h, w, c] or [n, c, h, w]. They come out as [n, c, h, w].

    Images have as many channels as `mean` and `std` have values, and 1, 3 or 4 where these are one value or none:
    with three values a mask [n, 1, h, w] stays as it is, as every other tensor does.

    Attributes:
        mean: Of the values between 0 and 1; none: 0.
        std: Of the values between 0 and 1; none: 1.
        dtype: Of the result; none: float32.
        channels_last: In memory a pixel's channels lie next to each other.
        images: How many tensors of images were changed so far.
    """

    mean: Levels | None
    std: Levels | None
    dtype: torch.dtype | None
    channels_last: bool
    images: int = field(init=False, default=0)
    _scale: torch.Tensor = field(init=False, repr=False)
    _shift: torch.Tensor = field(init=False, repr=False)
    _on: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.dtype is not None and not getattr(self.dtype, "is_floating_point", False):
            raise InvalidRequest("dtype", f"{self.dtype!r}", expected="a floating-point dtype")
        mean, std = _levels("mean", self.mean, 0.0), _levels("std", self.std, 1.0)
        if len(mean) != len(std) and 1 not in (len(mean), len(std)):
            raise InvalidRequest("std", f"{len(std)} values", expected=f"{len(mean)}, as in mean")
        if not bool((std > 0).all()):
            raise InvalidRequest("std", "a value that is not positive", expected="values above 0")
        scale, shift = torch.broadcast_tensors(1 / (_WHITE * std), -mean / std)
        self._scale, self._shift = (one.float().reshape(1, -1, 1, 1) for one in (scale, shift))

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return images as floats, and any other tensor as it is.

        Raises:
            InvalidRequest: Both the second and the last dimension could be the channels.
        """
        images = self._channels_first(tensor)
        if images is None:
            return tensor
        self.images += 1
        form = torch.channels_last if self.channels_last else torch.contiguous_format
        result = torch.empty(images.shape, dtype=self.dtype or torch.float32, device=images.device, memory_format=form)
        if images.device not in self._on:
            self._on[images.device] = self._scale.to(images.device), self._shift.to(images.device)
        scale, shift = self._on[images.device]
        return torch.addcmul(shift, images, scale, out=result)

    def _channels_first(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return images as [n, c, h, w], and None for what is none."""
        if tensor.dtype != torch.uint8 or tensor.dim() != _DIMENSIONS:
            return None
        values = self._scale.shape[1]
        known = (values,) if values > 1 else _CHANNELS
        first, last = tensor.shape[1] in known, tensor.shape[3] in known
        if first and last:
            found = "the second and the last dimension could both be the channels"
            remedy = "Give larger images, or normalise them in the transform."
            raise InvalidRequest(f"a batch of images {[*tensor.shape]}", found, remedy=remedy)
        return tensor if first else tensor.permute(0, 3, 1, 2) if last else None


def _levels(name: str, given: Levels | None, default: float) -> torch.Tensor:
    try:
        levels = torch.as_tensor(default if given is None else given, dtype=torch.float64).cpu().reshape(-1)
    except (TypeError, ValueError):
        raise InvalidRequest(name, f"{given!r}", expected="one number, or one a channel") from None
    if not len(levels) or not bool(levels.isfinite().all()):
        raise InvalidRequest(name, f"{given!r}", expected="one number, or one a channel")
    return levels


@dataclass
class Prefetcher:
    """Gives a loader's batches on a device, in the loader's order, with the copy of the next ones under way.

    A batch is a tensor, an array, or a dict, list, tuple or named tuple of them, nested or not; arrays of numbers
    become tensors, and what is neither (strings, keys) stays as it is. What is handed out is no memory of the
    loader's: nothing that the loader does later changes it.

    With any of `mean`, `std`, `dtype` and `channels_last`, images go to the device as uint8 and become floats
    [n, c, h, w] there: (value / 255 - mean) / std. Images are uint8 tensors [n, h, w, c] or [n, c, h, w] with as many
    channels as `mean` or `std` have values; 1, 3 or 4 where these are one number or none.

    Attributes:
        loader: Any iterable of batches: ours, a DataLoader, webdataset's. Batches in pinned memory save a copy.
        device: None: the current CUDA device where there is one, else the CPU.
        mean: Of the values between 0 and 1, for all channels or for each; none: 0.
        std: As `mean`; none: 1.
        channels_last: In memory the channels of a pixel lie next to each other.
        dtype: Of the images; none: float32.
        depth: How many batches are on a CUDA device, or on their way to it, before the next is handed out.

    Raises:
        InvalidRequest: The loader cannot be iterated over, an option makes no sense, there is no such device, or a
            batch has no image to normalise.
    """

    loader: Iterable[Any]
    device: torch.device | str | int | None = None
    mean: Levels | None = None
    std: Levels | None = None
    _: KW_ONLY
    channels_last: bool = False
    dtype: torch.dtype | None = None
    depth: int = 2
    _device: torch.device = field(init=False, repr=False)
    _change: Normalize | None = field(init=False, repr=False, default=None)
    _state: Any = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if not hasattr(self.loader, "__iter__"):
            raise InvalidRequest("loader", f"a {type(self.loader).__name__}", expected="an iterable of batches")
        check_least("depth", self.depth)
        self._device = _device_of(self.device)
        if self.channels_last or any(one is not None for one in (self.mean, self.std, self.dtype)):
            self._change = Normalize(self.mean, self.std, self.dtype, self.channels_last)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        self._state = None
        on_gpu = self._device.type == "cuda"
        sender = (SideStream if on_gpu else AtOnce)(self._device, self._change or (lambda tensor: tensor))
        batches, sent, depth = iter(self.loader), deque[_Sent](), self.depth if on_gpu else 1
        try:
            while True:
                while len(sent) < depth and not (sent and sent[-1].ends):
                    sent.append(self._send_next(batches, sender))
                first = sent.popleft()
                self._state = first.state
                if first.ends:
                    break
                yield first.hand_out()
        finally:
            sender.wait()
        if first.error is not None:
            raise first.error

    def _send_next(self, batches: Iterator[Any], sender: AtOnce | SideStream) -> _Sent:
        """Ask the loader for a batch and send it. An error waits until the batches before it are handed out."""
        try:
            sender.wait()
            batch = next(batches)
            state = getattr(self.loader, "state_dict", None)
            return _Sent(self._send(batch, sender), state() if state else None)
        except StopIteration:
            return _Sent(ends=True)
        except Exception as error:  # noqa: BLE001 - raised when its batch is asked for
            return _Sent(ends=True, error=error)

    def _send(self, batch: Any, sender: AtOnce | SideStream) -> HandOut:
        before = self._change.images if self._change else -1
        hand_out = sender.send(batch)
        if self._change and self._change.images == before:
            expected = "a uint8 tensor [n, h, w, c] or [n, c, h, w]"
            raise InvalidRequest("a batch", "no images to normalise", expected=expected)
        return hand_out

    def set_epoch(self, epoch: int) -> None:
        """Pass the number of the next epoch on to the loader."""
        self.loader.set_epoch(epoch)  # type: ignore[attr-defined]
        if isinstance(self._state, Mapping) and self._state.get("epoch", epoch) != epoch:
            self._state = None

    def state_dict(self) -> Any:
        """Return the loader's state after the last batch that was handed out, whatever was read ahead."""
        return self.loader.state_dict() if self._state is None else self._state  # type: ignore[attr-defined]

    def load_state_dict(self, state: Any) -> None:
        """Let the next iteration go on from a state."""
        self.loader.load_state_dict(state)  # type: ignore[attr-defined]
        self._state = None


class _Sent(NamedTuple):
    """A batch on its way, or the end; the loader's state after the batch; the error that ended the loader."""

    hand_out: HandOut = lambda: None
    state: Any = None
    ends: bool = False
    error: Exception | None = None


def _device_of(given: torch.device | str | int | None) -> torch.device:
    """Return the device, with its number where it is a GPU.

    Raises:
        InvalidRequest: There is no such device.
    """
    there = torch.cuda.is_available()
    try:
        device = torch.device(given if given is not None else "cuda" if there else "cpu")
    except RuntimeError as error:
        raise InvalidRequest("device", f"{given!r}", expected="a device of torch, such as 'cuda:0'") from error
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count() if there else 0
    number = device.index if device.index is not None else torch.cuda.current_device() if there else 0
    if number >= count:
        raise InvalidRequest("device", f"{given!r}, but torch can use {count} GPUs", remedy="Choose another, or 'cpu'.")
    return torch.device("cuda", number)
