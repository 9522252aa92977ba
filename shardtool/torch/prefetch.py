"""Copy the next batch to the GPU while the model computes.

Each batch passes through these steps. On a CUDA device, steps 2 and 3 run on a separate CUDA stream:

1. The loader returns a batch. Tensors outside pinned memory are copied to pinned memory.
2. Copies to the device are enqueued, followed by the event `copied`.
3. Images are normalised on the device, followed by the event `ready`.
4. When the batch is returned, the model's stream waits for `ready`. `record_stream` prevents early reuse of the batch's
   memory.

The next batch is requested only after `copied`, so the loader can reuse the memory of a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from shardtool.errors import InvalidRequest
from shardtool.request.option_checks import check_minimum

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


ChannelValues: TypeAlias = "float | Sequence[float] | torch.Tensor"  # one number, or one number per channel
_CHANNEL_COUNTS = (1, 3, 4)
_BATCH_DIMENSIONS = 4
_MAX_PIXEL_VALUE = 255.0


@dataclass
class Normalize:
    """Normalises images on their device. For the options, see `Prefetcher`.

    The result is computed in 32 bits and rounded once to `dtype`. `images` counts the normalised tensors.
    """

    mean: ChannelValues | None
    std: ChannelValues | None
    dtype: torch.dtype | None
    channels_last: bool
    images: int = field(init=False, default=0)
    _scale: torch.Tensor = field(init=False, repr=False)
    _shift: torch.Tensor = field(init=False, repr=False)
    _constants: dict[torch.device, tuple[torch.Tensor, ...]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.dtype is not None and not getattr(self.dtype, "is_floating_point", False):
            raise InvalidRequest("dtype", f"{self.dtype!r}", expected="a floating-point dtype")
        mean, std = _channel_values_as_tensor("mean", self.mean, 0.0), _channel_values_as_tensor("std", self.std, 1.0)
        if len(mean) != len(std) and 1 not in (len(mean), len(std)):
            raise InvalidRequest("std", f"{len(std)} values", expected=f"{len(mean)} values, as in mean")
        if not bool((std > 0).all()):
            raise InvalidRequest("std", "a value that is not positive", expected="values above 0")
        scale, shift = torch.broadcast_tensors(1 / (_MAX_PIXEL_VALUE * std), -mean / std)
        self._scale, self._shift = (values.float().reshape(1, -1, 1, 1) for values in (scale, shift))

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return images as floats, and any other tensor unchanged.

        Raises:
            InvalidRequest: Both the second and the last dimension could be the channels.
        """
        images = self._channels_first(tensor)
        if images is None:
            return tensor
        self.images += 1
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        dtype = self.dtype or torch.float32
        result = torch.empty(images.shape, dtype=dtype, device=images.device, memory_format=layout)
        if images.device not in self._constants:
            self._constants[images.device] = self._scale.to(images.device), self._shift.to(images.device)
        scale, shift = self._constants[images.device]
        return torch.addcmul(shift, images, scale, out=result)

    def _channels_first(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if tensor.dtype != torch.uint8 or tensor.dim() != _BATCH_DIMENSIONS:
            return None
        channels = self._scale.shape[1]
        channel_counts = (channels,) if channels > 1 else _CHANNEL_COUNTS
        is_first, is_last = tensor.shape[1] in channel_counts, tensor.shape[3] in channel_counts
        if is_first and is_last:
            found = "the second and the last dimension could both be the channels"
            remedy = "Use larger images, or normalise them in the transform."
            raise InvalidRequest(f"a batch of images {[*tensor.shape]}", found, remedy=remedy)
        if is_last:
            return tensor.permute(0, 3, 1, 2)
        return tensor if is_first else None


def _channel_values_as_tensor(name: str, value: ChannelValues | None, default: float) -> torch.Tensor:
    try:
        values = torch.as_tensor(default if value is None else value, dtype=torch.float64).cpu().reshape(-1)
    except (TypeError, ValueError):
        raise InvalidRequest(name, f"{value!r}", expected="one number, or one per channel") from None
    if not len(values) or not bool(values.isfinite().all()):
        raise InvalidRequest(name, f"{value!r}", expected="one number, or one per channel")
    return values


TensorFunction = Callable[[torch.Tensor], torch.Tensor]


def change_tensors(batch: Any, change: TensorFunction) -> Any:
    """Return a copy of `batch` with `change` applied to each tensor. Numeric arrays first become tensors."""
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
    """Copies batches to a device, and waits for each copy.

    `send` returns a function that returns the batch. Call it once; for `StreamTransfer`, on the CUDA stream that uses
    the batch. After `wait`, the loader can reuse the memory of the batch.
    """

    def __init__(self, device: torch.device, change: TensorFunction) -> None:
        self._device, self._change = device, change

    def send(self, batch: Any) -> TakeBatch:
        """Copy the tensors of a batch, and apply `change`."""
        return [change_tensors(batch, self._copy)].pop  # the call drops the batch

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        changed = self._change(tensor.to(self._device))
        return changed.clone() if changed is tensor else changed

    def wait(self) -> None:
        """Do nothing, because `send` has finished the copy."""


class StreamTransfer:
    """Copies batches on a separate CUDA stream. Has the same methods as `DirectTransfer`."""

    def __init__(self, device: torch.device, change: TensorFunction) -> None:
        self._device, self._change = device, change
        self._stream = torch.cuda.Stream(device)
        self._copied: torch.cuda.Event | None = None
        self._reading: list[torch.Tensor] = []  # keep pinned tensors until they are copied

    def send(self, batch: Any) -> TakeBatch:
        """Enqueue the copies of all tensors, then the calls of `change`."""
        caller_stream = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            moved = change_tensors(batch, lambda tensor: self._move(tensor, caller_stream))
            self._copied = self._event()
            arrived = [change_tensors(moved, self._change)]
            ready = self._event()

        def take_batch() -> Any:
            consumer = torch.cuda.current_stream(self._device)
            consumer.wait_event(ready)
            return change_tensors(arrived.pop(), lambda tensor: self._receive(tensor, consumer))

        return take_batch

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
            return tensor  # `_receive` copies sparse tensors, and tensors on another GPU
        tensor = tensor if tensor.is_pinned() else tensor.pin_memory()
        self._reading.append(tensor)
        return tensor.to(self._device, non_blocking=True)

    def _receive(self, tensor: torch.Tensor, consumer: torch.cuda.Stream) -> torch.Tensor:
        return _record_use(tensor, consumer) if tensor.device == self._device else tensor.to(self._device)

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(blocking=True)  # a waiting thread sleeps, so decoder threads can use its core
        event.record(self._stream)
        return event


def _record_use(tensor: torch.Tensor, stream: torch.cuda.Stream) -> torch.Tensor:
    tensor.record_stream(stream)
    return tensor


@dataclass
class Prefetcher:
    """Moves the batches of a loader to a device in order, and copies the next batches in the background.

    A batch is a tensor, an array, or a nested dict, list or tuple of tensors and arrays. Numeric arrays become tensors.
    Other values stay unchanged. Returned tensors never share memory with the loader.

    With `mean`, `std`, `dtype` or `channels_last`, images are copied as uint8. On the device, they become floats
    [n, c, h, w], computed as (value / 255 - mean) / std. Images are uint8 tensors [n, h, w, c] or [n, c, h, w]. If
    `mean` or `std` has several values, their number is the number of channels. Otherwise, images have 1, 3 or 4
    channels.

    Attributes:
        loader: Any iterable of batches. Batches in pinned memory need one copy fewer.
        device: By default, the current CUDA device, or the CPU.
        mean: Mean pixel value, between 0 and 1, for all channels or per channel; 0 by default.
        std: Standard deviation, like `mean`; 1 by default.
        channels_last: Whether to store the channels of a pixel next to each other.
        dtype: Type of the images, by default float32.
        depth: Number of batches on a CUDA device, including batches that are still being copied.

    Raises:
        InvalidRequest: An option is invalid, the device does not exist, or a batch has no image to normalise.
    """

    loader: Iterable[Any]
    device: torch.device | str | int | None = None
    mean: ChannelValues | None = None
    std: ChannelValues | None = None
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
        check_minimum("depth", self.depth)
        self._device = _check_device(self.device)
        if self.channels_last or any(option is not None for option in (self.mean, self.std, self.dtype)):
            self._change = Normalize(self.mean, self.std, self.dtype, self.channels_last)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        self._state = None
        on_gpu = self._device.type == "cuda"
        sender = (StreamTransfer if on_gpu else DirectTransfer)(self._device, self._change or (lambda tensor: tensor))
        batches, sent = iter(self.loader), deque[_SentBatch]()
        depth = self.depth if on_gpu else 1
        try:
            while True:
                while len(sent) < depth and not (sent and sent[-1].is_end):
                    sent.append(self._send_next(batches, sender))
                first = sent.popleft()
                self._state = first.state
                if first.is_end:
                    break
                yield first.take_batch()
        finally:
            sender.wait()
        if first.error is not None:
            raise first.error

    def _send_next(self, batches: Iterator[Any], sender: DirectTransfer | StreamTransfer) -> _SentBatch:
        try:
            sender.wait()
            batch = next(batches)
            get_state = getattr(self.loader, "state_dict", None)
            return _SentBatch(self._send(batch, sender), get_state() if get_state else None)
        except StopIteration:
            return _SentBatch(is_end=True)
        except Exception as error:  # noqa: BLE001 - `__iter__` raises the error
            return _SentBatch(is_end=True, error=error)

    def _send(self, batch: Any, sender: DirectTransfer | StreamTransfer) -> TakeBatch:
        images_before = self._change.images if self._change else 0
        take_batch = sender.send(batch)
        if self._change and self._change.images == images_before:
            expected = "a uint8 tensor [n, h, w, c] or [n, c, h, w]"
            raise InvalidRequest("a batch", "has no images to normalise", expected=expected)
        return take_batch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the loader reads next."""
        self.loader.set_epoch(epoch)  # type: ignore[attr-defined]
        if isinstance(self._state, Mapping) and self._state.get("epoch", epoch) != epoch:
            self._state = None  # of another epoch

    def state_dict(self) -> Any:
        """Return the state of the loader after the last returned batch."""
        return self.loader.state_dict() if self._state is None else self._state  # type: ignore[attr-defined]

    def load_state_dict(self, state: Any) -> None:
        """Continue from this state in the next iteration."""
        self.loader.load_state_dict(state)  # type: ignore[attr-defined]
        self._state = None


class _SentBatch(NamedTuple):
    take_batch: TakeBatch = lambda: None
    state: Any = None
    is_end: bool = False
    error: Exception | None = None


def _check_device(name: torch.device | str | int | None) -> torch.device:
    has_cuda = torch.cuda.is_available()
    try:
        device = torch.device(name if name is not None else "cuda" if has_cuda else "cpu")
    except RuntimeError as error:
        raise InvalidRequest("device", f"{name!r}", expected="a device of torch, such as 'cuda:0'") from error
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count() if has_cuda else 0
    number = device.index if device.index is not None else torch.cuda.current_device() if has_cuda else 0
    if number >= count:
        raise InvalidRequest("device", f"{name!r}, but torch can use {count} GPUs", remedy="Use another, or 'cpu'.")
    return torch.device("cuda", number)
