"""Datasets for PyTorch's `DataLoader`, a loader with threads, and a prefetcher that copies batches to the GPU."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torch") is None:
    _MISSING = "shardtool.torch: PyTorch is not installed. Run `pip install 'shardtool[torch]'`."
    raise ModuleNotFoundError(_MISSING, name="torch")

from shardtool.torch.crops import CenterCrop, RandomResizedCrop
from shardtool.torch.datasets import MapDataset, StreamDataset
from shardtool.torch.prefetch import Prefetcher
from shardtool.torch.threaded_loader import collate, loader

__all__ = ["CenterCrop", "MapDataset", "Prefetcher", "RandomResizedCrop", "StreamDataset", "collate", "loader"]
