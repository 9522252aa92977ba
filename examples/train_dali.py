"""Train a small network with a DALI pipeline that reads tar shards and the index that shardtool exported for DALI.

First run make_shards.py. DALI decodes on the CPU here. With a GPU, use device_id=0 and device="mixed".
"""

import sys
from glob import glob

try:
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy
except ModuleNotFoundError:
    sys.exit("DALI is not installed: `pip install nvidia-dali-cuda120` (Linux only)")
import torch
from torch import nn

torch.manual_seed(0)


@pipeline_def(batch_size=16, num_threads=2, device_id=None, seed=0)
def photos(split):
    shards = sorted(glob(f"photos/{split}-*.tar"))
    jpg, cls = fn.readers.webdataset(
        paths=shards, index_paths=[shard.replace(".tar", ".idx") for shard in shards], ext=["jpg", "cls"],
        missing_component_behavior="error", random_shuffle=split == "train", name="reader",
    )  # fmt: skip
    images = fn.decoders.image(jpg, device="cpu", output_type=types.RGB)
    images = fn.crop_mirror_normalize(images, std=[255.0] * 3, output_layout="CHW")
    return images, fn.cast(cls, dtype=types.INT64) - ord("0")  # `cls` is a number as text, here one digit


def batches(split):
    policy = LastBatchPolicy.PARTIAL
    for (batch,) in DALIClassificationIterator(photos(split), reader_name="reader", last_batch_policy=policy):
        yield batch["data"], batch["label"].flatten()


model = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
    nn.Linear(512, 8),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(15):
    for images, labels in batches("train"):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

with torch.no_grad():
    right = torch.cat([model(images).argmax(1) == labels for images, labels in batches("val")])
print(f"accuracy {right.float().mean():.2f}, chance {1 / 8:.2f}")
