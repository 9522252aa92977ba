"""Measure how long a GPU waits for batches, with and without the Prefetcher.

    python benchmarks/gpu_idle.py [STEPS]

A small convolutional network trains on uint8 batches [64, 224, 224, 3] in memory, so only the transfer to the GPU is
measured. Without the Prefetcher, each batch is copied and normalised on the model's stream when it is needed, as in
most training loops. Idle time is the time between the last kernel of a step and the first kernel of the next step,
measured with CUDA events on the model's stream. With `item`, the loop reads the loss in each step, so the CPU waits
for the GPU.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from shardtool.torch import Prefetcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHAPE = (64, 224, 224, 3)
WARM = 10


class InMemory:
    """A loader whose batches are already in memory, pinned or not."""

    def __init__(self, steps: int, *, pinned: bool) -> None:
        made = [torch.randint(0, 256, SHAPE, dtype=torch.uint8) for _ in range(4)]
        self.steps, self.batches = steps, [one.pin_memory() if pinned else one for one in made]

    def __iter__(self) -> Iterator[Any]:
        for step in range(self.steps):
            yield self.batches[step % 4]


def plainly(loader: InMemory) -> Iterator[Any]:
    """Yield batches like a plain loop, which copies and then normalises each batch."""
    mean, std = (torch.tensor(levels, device="cuda").view(1, 3, 1, 1) for levels in (MEAN, STD))
    for batch in loader:
        images = batch.to("cuda", non_blocking=True).permute(0, 3, 1, 2)
        yield ((images.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)


def prefetched(loader: InMemory) -> Iterator[Any]:
    """Yield batches from the Prefetcher."""
    return iter(Prefetcher(loader, "cuda", MEAN, STD, channels_last=True))


def network() -> nn.Module:
    """Return a network whose step takes a few milliseconds."""
    layers: list[nn.Module] = []
    for given, made in ((3, 64), (64, 128), (128, 256), (256, 256)):
        layers += [nn.Conv2d(given, made, 3, 2, 1), nn.BatchNorm2d(made), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100)).cuda()


def idle_share(batches: Iterator[Any], *, item: bool) -> tuple[float, float]:
    """Return the share of time in which the GPU waited for batches, and the milliseconds per step."""
    model = network().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    labels = torch.randint(0, 100, SHAPE[:1], device="cuda")
    spans, begun = [], time.perf_counter()
    for step, images in enumerate(batches):
        if step == WARM:
            torch.cuda.synchronize()
            begun = time.perf_counter()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        end.record()
        spans.append((start, end))
        if item:
            loss.item()
    torch.cuda.synchronize()
    seconds, spans = time.perf_counter() - begun, spans[WARM:]
    whole = spans[0][0].elapsed_time(spans[-1][1])
    busy = sum(start.elapsed_time(end) for start, end in spans)
    return 1 - busy / whole, seconds / len(spans) * 1000


def main(steps: int) -> None:
    """Print a table row for each method."""
    if not torch.cuda.is_available():
        print("There is no GPU here that torch can use: nothing to measure.")
        return
    ways: dict[str, Callable[[InMemory], Iterator[Any]]] = {"plain loop": plainly, "Prefetcher": prefetched}
    print(f"{torch.cuda.get_device_name()}, {steps} steps")
    for pinned in (True, False):
        for item in (False, True):
            for name, way in ways.items():
                share, step_ms = idle_share(way(InMemory(steps + WARM, pinned=pinned)), item=item)
                memory = "pinned" if pinned else "plain"
                print(f"{name:10} {memory:6} memory, item {item!s:5}: idle {share:6.1%}, {step_ms:6.2f} ms a step")


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["200"])[0]))
