"""Read shards with Ray Data. Ray Data decodes the images on all cores and divides the samples between two trainers.

First run make_shards.py, then: python ray_data.py
"""

import io

import numpy as np
import ray
from PIL import Image

import shardtool
import shardtool.ray

# This starts a local cluster. `ray.init()` connects to an existing cluster.
ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)


def decoded(batch):
    """Return images of 32 x 32 pixels and integer labels."""
    images = [Image.open(io.BytesIO(data)).convert("RGB").resize((32, 32)) for data in batch["jpg"]]
    return {"image": np.stack([np.asarray(image) for image in images]), "label": [int(data) for data in batch["cls"]]}


source = shardtool.ray.datasource(shardtool.open("photos/train.json"), fields=("jpg", "cls"))
samples = ray.data.read_datasource(source)  # nothing is read yet
print(f"{samples.count()} samples in {source.shards} shards")


@ray.remote(num_cpus=0)
def train(rank, share):
    """Count the samples of one trainer. To get tensors, use `share.iter_torch_batches`."""
    batches = share.iter_batches(batch_size=8, drop_last=False)
    return rank, sum(len(batch["label"]) for batch in batches)


shares = samples.map_batches(decoded).streaming_split(2, equal=True)
for rank, seen in ray.get([train.remote(rank, share) for rank, share in enumerate(shares)]):
    print(f"rank {rank}: {seen} samples")
ray.shutdown()
