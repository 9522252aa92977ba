"""Train a small network with webdataset, which reads the shards of shardtool.

First run make_shards.py.
"""

from glob import glob

import torch
import webdataset as wds
from torch import nn

torch.manual_seed(0)


def batches(split, epochs):
    shards = sorted(glob(f"photos/{split}-*.tar"))
    dataset = wds.WebDataset(shards, shardshuffle=len(shards), seed=0).shuffle(100)
    dataset = dataset.decode("torchrgb").to_tuple("jpg", "cls").batched(16)
    return wds.WebLoader(dataset.repeat(epochs), batch_size=None)


model = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
    nn.Linear(512, 8),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for images, labels in batches("train", epochs=15):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()

with torch.no_grad():
    right = torch.cat([model(images).argmax(1) == labels for images, labels in batches("val", epochs=1)])
print(f"accuracy {right.float().mean():.2f}, chance {1 / 8:.2f}")
