"""Train in several processes, each of which reads its share of every epoch: two here, on the CPU.

First run make_shards.py, then: torchrun --nproc-per-node 2 distributed.py
"""

import torch
import torch.distributed as dist
from torch import nn

import shardtool

dist.init_process_group("gloo")
torch.manual_seed(0)  # the same first weights in all processes


def stream(split):
    """Return this process's batches; torchrun tells which process it is (RANK) of how many (WORLD_SIZE)."""
    ends = "drop" if split == "train" else "uneven"  # training needs equally many steps everywhere, counting does not
    dataset = shardtool.open(f"photos/{split}.json")
    return dataset.stream(shuffle=split == "train", ends=ends).decode().tuple("jpg", "cls").batch(8)


def as_tensors(images, labels):
    return torch.from_numpy(images).permute(0, 3, 1, 2) / 255, torch.from_numpy(labels)


model = nn.parallel.DistributedDataParallel(nn.Sequential(
    nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
    nn.Linear(512, 8),
))  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
train = stream("train")
for _ in range(15):  # each pass over a stream is the next epoch
    for batch in train:
        images, labels = as_tensors(*batch)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

counts = torch.zeros(2)  # right ones, and all
with torch.no_grad():
    for batch in stream("val"):
        images, labels = as_tensors(*batch)
        counts += torch.tensor([(model.module(images).argmax(1) == labels).sum(), len(labels)])
dist.all_reduce(counts)
if dist.get_rank() == 0:
    print(f"accuracy {counts[0] / counts[1]:.2f} of {counts[1]:.0f} samples, chance {1 / 8:.2f}")
dist.destroy_process_group()
