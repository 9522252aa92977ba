"""Batches on the GPU before they are needed: the next batch is copied while the model computes.

On a CUDA device, steps 2 and 3 run on their own stream:

1. The loader returns a batch. A tensor outside pinned memory is copied there.
2. Copies to the device are enqueued, followed by the event `copied`.
3. Images are normalised on the device, followed by the event `ready`.
4. When the batch is returned, the model's stream waits for `ready`, and `record_stream` tells the device's allocator
   that this stream uses the memory.

The loader's next batch is requested only after `copied`, so a loader can reuse its memory. Other devices use no
streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from shardtool.errors import InvalidRequest
from shardtool.request.option_checks import check_minimum
from shardtool.torch.normalize import ChannelValues, Normalize
from shardtool.torch.transfer import DirectTransfer, StreamTransfer, TakeBatch

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class Prefetcher:
    """Moves a loader's batches to a device in order, and copies the next ones in the background.

    A batch is a tensor, an array, or a nested dict, list or tuple of them. Numeric arrays become tensors; other values
    stay unchanged. Returned tensors never share memory with the loader.

    With any of `mean`, `std`, `dtype` and `channels_last`, images are copied as uint8 and become floats [n, c, h, w]:
    (value / 255 - mean) / std. Images are uint8 tensors [n, h, w, c] or [n, c, h, w] with as many channels as `mean` or
    `std` have values, or 1, 3 or 4.

    Attributes:
        loader: Any iterable of batches. Pinned batches save a copy.
        device: None: the current CUDA device, or the CPU.
        mean: Mean of values between 0 and 1, for all channels or per channel; None: 0.
        std: Standard deviation, as `mean`; None: 1.
        channels_last: Store the channels of a pixel next to each other.
        dtype: Type of the images; None: float32.
        depth: Number of batches on a CUDA device or being copied there.

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
        batches, sent, depth = iter(self.loader), deque[_SentBatch](), self.depth if on_gpu else 1
        try:
            while True:
                while len(sent) < depth and not (sent and sent[-1].is_end):
                    sent.append(self._send_next(batches, sender))
                first = sent.popleft()
                self._state = first.state
                if first.is_end:
                    break
                yield first.hand_out()
        finally:
            sender.wait()
        if first.error is not None:
            raise first.error

    def _send_next(self, batches: Iterator[Any], sender: DirectTransfer | StreamTransfer) -> _SentBatch:
        """Copy the next batch. An error is raised after all earlier batches were returned."""
        try:
            sender.wait()
            batch = next(batches)
            state = getattr(self.loader, "state_dict", None)
            return _SentBatch(self._send(batch, sender), state() if state else None)
        except StopIteration:
            return _SentBatch(is_end=True)
        except Exception as error:  # noqa: BLE001 - raised when its batch is requested
            return _SentBatch(is_end=True, error=error)

    def _send(self, batch: Any, sender: DirectTransfer | StreamTransfer) -> TakeBatch:
        images_before = self._change.images if self._change else -1
        hand_out = sender.send(batch)
        if self._change and self._change.images == images_before:
            expected = "a uint8 tensor [n, h, w, c] or [n, c, h, w]"
            raise InvalidRequest("a batch", "has no images to normalise", expected=expected)
        return hand_out

    def set_epoch(self, epoch: int) -> None:
        """Set the loader's next epoch."""
        self.loader.set_epoch(epoch)  # type: ignore[attr-defined]
        if isinstance(self._state, Mapping) and self._state.get("epoch", epoch) != epoch:
            self._state = None

    def state_dict(self) -> Any:
        """Return the loader's state after the last returned batch."""
        return self.loader.state_dict() if self._state is None else self._state  # type: ignore[attr-defined]

    def load_state_dict(self, state: Any) -> None:
        """Continue from a state in the next iteration."""
        self.loader.load_state_dict(state)  # type: ignore[attr-defined]
        self._state = None


class _SentBatch(NamedTuple):
    """A batch being copied, or the end, with the loader's state after it and its error."""

    hand_out: TakeBatch = lambda: None
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
