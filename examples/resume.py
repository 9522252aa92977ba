"""Resume a killed training run in the middle of an epoch with fewer processes.

The losses are the same as in an uninterrupted run.

First run make_shards.py. Then start a run with two processes, which is killed after step 10. Resume this run with one
process:

    KILL_AFTER=10 torchrun --nproc-per-node 2 resume.py
    torchrun --nproc-per-node 1 resume.py
"""

import os
import signal

import torch
import torch.distributed as dist
from torch import nn

import shardtool
from shardtool.torch import Prefetcher, loader

BATCH, EPOCHS, CHECKPOINT = 16, 5, "checkpoint.pt"  # BATCH counts the samples of all processes

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(
    nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
    nn.Linear(512, 8),
))  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
dataset = shardtool.open("photos/train.json").decode().tuple("jpg", "cls")
# With fixed `parts`, the order does not depend on the number of processes.
options = {"seed": 0, "parts": 64, "drop_last": True}
batches = loader(dataset, BATCH // dist.get_world_size(), **options)
batches = Prefetcher(batches, "cpu", mean=0.5, std=0.25)
step = first_epoch = 0

if os.path.exists(CHECKPOINT):
    saved = torch.load(CHECKPOINT)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    batches.load_state_dict(saved["batches"])  # all processes load the same small dict
    step, first_epoch = saved["step"], saved["batches"]["epoch"]

for epoch in range(first_epoch, EPOCHS):
    for images, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # averages the gradients of all processes
        optimizer.step()
        step += 1
        dist.all_reduce(loss.detach_())
        if dist.get_rank() == 0:
            print(f"epoch {epoch} step {step} loss {loss / dist.get_world_size():.6f}", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "batches": batches.state_dict()}
            torch.save({"step": step, **state}, f"{CHECKPOINT}.new")
            os.replace(f"{CHECKPOINT}.new", CHECKPOINT)
        if step == int(os.environ.get("KILL_AFTER", "-1")):
            os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
