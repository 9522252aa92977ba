"""Train a small network with PyTorch and shardtool's loader, which decodes in threads.

First run make_shards.py.
"""

import torch
from torch import nn

import shardtool
from shardtool.torch import Prefetcher, loader

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


def batches(split):
    """Return batches on `device`, with images as float [batch, channel, height, width]."""
    dataset = shardtool.open(f"photos/{split}.json").decode().tuple("jpg", "cls")
    return Prefetcher(loader(dataset, 16, shuffle=split == "train", seed=0), device, mean=0.5, std=0.25)


model = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
    nn.Linear(512, 8),
).to(device)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
train = batches("train")
for _ in range(15):  # each epoch has a new order
    for images, labels in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

with torch.no_grad():
    right = torch.cat([model(images).argmax(1) == labels for images, labels in batches("val")])
print(f"accuracy {right.float().mean():.2f}, chance {1 / 8:.2f}")
