"""Train in two processes on the CPU. In each epoch, each process reads half of the samples.

First run make_shards.py, then: torchrun --nproc-per-node 2 distributed.py
"""

import torch
import torch.distributed as dist
from torch import nn

import shardtool
from shardtool.torch import Prefetcher, loader

dist.init_process_group("gloo")
torch.manual_seed(0)  # the same initial weights in all processes


def batches(split):
    """Return the batches of this rank. The loader gets the rank from torch.distributed."""
    # In training, all ranks need the same number of batches. In validation, each sample must be counted once.
    ends = "drop" if split == "train" else "uneven"
    dataset = shardtool.open(f"photos/{split}.json").decode().tuple("jpg", "cls")
    return Prefetcher(loader(dataset, 8, shuffle=split == "train", seed=0, ends=ends), "cpu", mean=0.5, std=0.25)


model = nn.parallel.DistributedDataParallel(nn.Sequential(
    nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
    nn.Linear(512, 8),
))  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
train = batches("train")
for _ in range(15):  # each epoch has a new order
    for images, labels in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

counts = torch.zeros(2)  # number of correct predictions, number of samples
with torch.no_grad():
    for images, labels in batches("val"):
        counts += torch.tensor([(model.module(images).argmax(1) == labels).sum(), len(labels)])
dist.all_reduce(counts)
if dist.get_rank() == 0:
    print(f"accuracy {counts[0] / counts[1]:.2f} of {counts[1]:.0f} samples, chance {1 / 8:.2f}")
dist.destroy_process_group()
