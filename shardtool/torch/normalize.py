"""Normalise uint8 images to (value / 255 - mean) / std, on the device that holds them.

One operation computes in 32 bits and rounds once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import torch

from shardtool.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence


ChannelValues: TypeAlias = "float | Sequence[float] | torch.Tensor"  # one number, or one per channel
_CHANNEL_COUNTS = (1, 3, 4)
_BATCH_DIMENSIONS = 4
_MAX_PIXEL_VALUE = 255.0


@dataclass
class Normalize:
    """Normalises a batch's images, with the options of `Prefetcher`.

    `images` counts the image tensors normalised so far.
    """

    mean: ChannelValues | None
    std: ChannelValues | None
    dtype: torch.dtype | None
    channels_last: bool
    images: int = field(init=False, default=0)
    _scale: torch.Tensor = field(init=False, repr=False)
    _shift: torch.Tensor = field(init=False, repr=False)
    _constants: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = field(
        init=False, repr=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        if self.dtype is not None and not getattr(self.dtype, "is_floating_point", False):
            raise InvalidRequest("dtype", f"{self.dtype!r}", expected="a floating-point dtype")
        mean, std = _levels_as_tensor("mean", self.mean, 0.0), _levels_as_tensor("std", self.std, 1.0)
        if len(mean) != len(std) and 1 not in (len(mean), len(std)):
            raise InvalidRequest("std", f"{len(std)} values", expected=f"{len(mean)}, the number in mean")
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
        values = self._scale.shape[1]
        channel_counts = (values,) if values > 1 else _CHANNEL_COUNTS
        first, last = tensor.shape[1] in channel_counts, tensor.shape[3] in channel_counts
        if first and last:
            found = "the second and the last dimension could both be the channels"
            remedy = "Use larger images, or normalise them in the transform."
            raise InvalidRequest(f"a batch of images {[*tensor.shape]}", found, remedy=remedy)
        return tensor if first else tensor.permute(0, 3, 1, 2) if last else None


def _levels_as_tensor(name: str, value: ChannelValues | None, default: float) -> torch.Tensor:
    try:
        levels = torch.as_tensor(default if value is None else value, dtype=torch.float64).cpu().reshape(-1)
    except (TypeError, ValueError):
        raise InvalidRequest(name, f"{value!r}", expected="one number, or one per channel") from None
    if not len(levels) or not bool(levels.isfinite().all()):
        raise InvalidRequest(name, f"{value!r}", expected="one number, or one per channel")
    return levels
