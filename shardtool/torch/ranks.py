"""Which rank this process is: what torch.distributed says, where it was started."""

from __future__ import annotations

import torch.distributed


def rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int | None, int | None]:
    """Return what was given, else what torch.distributed says; None where that was not started."""
    distributed = torch.distributed
    if rank is None and world_size is None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return rank, world_size
