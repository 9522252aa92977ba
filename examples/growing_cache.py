"""Two samplers fill a cache for as long as two trainers read it, one in PyTorch and one in TensorFlow.

Each epoch takes what is there by then: the first is small, later ones are larger, until the bound is reached.
"""

import multiprocessing
import tempfile
import time

import numpy as np

import shardtool

BOUND, SHARD, EPOCHS = "3MB", "200kB", 4


def sample(folder, part):
    """Write samples until the end: points, and on which side of a plane they lie."""
    random = np.random.default_rng(part)
    with shardtool.Cache(folder, BOUND, "oldest").writer(part, format="tfrecord", max_size=SHARD) as writer:
        for number in range(10**9):
            point = random.standard_normal(256).astype(np.float32)
            writer.write({"__key__": f"{part}/{number}", "point": point.tobytes(), "side": int(point[:8].sum() > 0)})
            time.sleep(0.003)  # what a sample costs to make


def epochs(name, folder, train):
    """Call `train` with the cache once an epoch, and print what that took."""
    cache = shardtool.Cache(folder, BOUND, "oldest")
    for epoch in range(EPOCHS):
        while not cache.refresh():  # at the start
            time.sleep(0.1)
        start = time.perf_counter()
        samples, loss = train(cache)
        rate = samples * 1024 / (time.perf_counter() - start) / 1e6
        evicted = cache.total().evicted
        seen = f"{samples} samples, {rate:.1f} MB/s, {evicted} evictions"
        print(f"{name} epoch {epoch}: {seen}, loss {loss:.2f}", flush=True)
        cache.refresh().close()
        time.sleep(1)


def train_torch(folder):
    """Train with PyTorch: the shards are a dataset of their own each epoch."""
    import torch

    from shardtool.torch import loader

    model = torch.nn.Linear(256, 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def numbers(one):
        return {"point": np.frombuffer(one["point"], np.float32).copy(), "side": np.float32(one["side"])}

    def train(cache):
        samples, total = 0, 0.0
        for batch in loader(shardtool.open(cache).map(numbers), 64, shuffle=True):
            found = model(torch.as_tensor(batch["point"]))[:, 0]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(found, torch.as_tensor(batch["side"]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples += len(found)
            total += loss.item() * len(found)
        return samples, total / samples

    epochs("PyTorch", folder, train)


def train_tensorflow(folder):
    """Train with TensorFlow: its own reader reads the files, outside of Python."""
    import tensorflow as tf

    weights, bias = tf.Variable(tf.zeros([256, 1])), tf.Variable(0.0)
    features = {"point": tf.io.FixedLenFeature([], tf.string), "side": tf.io.FixedLenFeature([], tf.int64)}

    @tf.function
    def step(records):
        given = tf.io.parse_example(records, features)
        point = tf.reshape(tf.io.decode_raw(given["point"], tf.float32), [-1, 256])
        with tf.GradientTape() as tape:
            found = (point @ weights)[:, 0] + bias
            side = tf.cast(given["side"], tf.float32)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(side, found))
        for variable, gradient in zip([weights, bias], tape.gradient(loss, [weights, bias]), strict=True):
            variable.assign_sub(gradient)
        return tf.size(given["side"]), loss

    def train(cache):
        samples, total = 0, 0.0
        for records in tf.data.TFRecordDataset(cache.paths()).shuffle(2000).batch(64):
            count, loss = step(records)
            samples += int(count)
            total += float(loss) * int(count)
        return samples, total / samples

    epochs("TensorFlow", folder, train)


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as place:
        samplers = [spawn.Process(target=sample, args=(place, part)) for part in range(2)]
        trainers = [spawn.Process(target=train, args=(place,)) for train in (train_torch, train_tensorflow)]
        for process in samplers + trainers:
            process.start()
        for process in trainers:
            process.join()
        for process in samplers:
            process.kill()
            process.join()
