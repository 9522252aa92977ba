"""Batches on the GPU before they are needed: the next batch is copied while the model computes.

On a CUDA device, the second and third of four steps run on a stream of their own, beside the model's:

1. The loader returns a batch. A tensor that is not in pinned memory is copied there at once.
2. Copies to the device are enqueued, and an event after them: `copied`.
3. Images are normalised on the device, and an event follows: `ready`.
4. When the batch is returned, the model's stream waits for `ready`, and `record_stream` tells the device's
allocator that
   this stream uses the memory.

The loader is asked for its next batch only after `copied`, so that a loader that reuses its memory overwrites
nothing that
is still to be read. On other devices a batch is copied and normalised when it is requested, without streams.
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
        if self.channels_last or any(one is not None for one in (self.mean, self.std, self.dtype)):
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

    def _send_next(self, batches: Iterator[Any], sender: DirectTransfer | StreamTransfer) -> _SentBatch:
        """Ask the loader for a batch and send it. An error waits until the batches before it are handed out."""
        try:
            sender.wait()
            batch = next(batches)
            state = getattr(self.loader, "state_dict", None)
            return _SentBatch(self._send(batch, sender), state() if state else None)
        except StopIteration:
            return _SentBatch(ends=True)
        except Exception as error:  # noqa: BLE001 - raised when its batch is asked for
            return _SentBatch(ends=True, error=error)

    def _send(self, batch: Any, sender: DirectTransfer | StreamTransfer) -> TakeBatch:
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


class _SentBatch(NamedTuple):
    """A batch on its way, or the end; the loader's state after the batch; the error that ended the loader."""

    hand_out: TakeBatch = lambda: None
    state: Any = None
    ends: bool = False
    error: Exception | None = None


def _check_device(given: torch.device | str | int | None) -> torch.device:
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
