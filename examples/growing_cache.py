"""Two samplers write samples into a cache. At the same time, a PyTorch trainer and a TensorFlow trainer read the cache.

Each epoch reads all samples that the cache contains when the epoch starts. The cache grows until it reaches its size
limit.
"""

import multiprocessing
import tempfile
import time

import numpy as np

import shardtool

MAX_BYTES, MAX_SIZE, EPOCHS = "3MB", "200kB", 4


def sample(folder, part):
    """Write random points until the process is killed. The field `side` records on which side of a plane a point is."""
    random = np.random.default_rng(part)
    with shardtool.Cache(folder, MAX_BYTES, "oldest").writer(part, format="tfrecord", max_size=MAX_SIZE) as writer:
        for number in range(10**9):
            point = random.standard_normal(256).astype(np.float32)
            writer.write({"__key__": f"{part}/{number}", "point": point.tobytes(), "side": int(point[:8].sum() > 0)})
            time.sleep(0.003)  # simulate the time to create a sample


def epochs(name, folder, train):
    """Call `train` once per epoch, and print speed and loss. `train` returns the sample count and the mean loss."""
    cache = shardtool.Cache(folder, MAX_BYTES, "oldest")
    for epoch in range(EPOCHS):
        while not cache.refresh():  # wait for the first shard
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
    """Train with PyTorch. In each epoch, open the current shards of the cache as a dataset."""
    import torch

    from shardtool.torch import loader

    model = torch.nn.Linear(256, 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def numbers(sample):
        return {"point": np.frombuffer(sample["point"], np.float32).copy(), "side": np.float32(sample["side"])}

    def train(cache):
        samples, total = 0, 0.0
        for batch in loader(shardtool.open(cache).map(numbers), 64, shuffle=True):
            logits = model(torch.as_tensor(batch["point"]))[:, 0]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.as_tensor(batch["side"]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples += len(logits)
            total += loss.item() * len(logits)
        return samples, total / samples

    epochs("PyTorch", folder, train)


def train_tensorflow(folder):
    """Train with TensorFlow, which reads the shards with its own reader, not with Python."""
    import tensorflow as tf

    weights, bias = tf.Variable(tf.zeros([256, 1])), tf.Variable(0.0)
    features = {"point": tf.io.FixedLenFeature([], tf.string), "side": tf.io.FixedLenFeature([], tf.int64)}

    @tf.function
    def step(records):
        parsed = tf.io.parse_example(records, features)
        point = tf.reshape(tf.io.decode_raw(parsed["point"], tf.float32), [-1, 256])
        with tf.GradientTape() as tape:
            logits = (point @ weights)[:, 0] + bias
            side = tf.cast(parsed["side"], tf.float32)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(side, logits))
        for variable, gradient in zip([weights, bias], tape.gradient(loss, [weights, bias]), strict=True):
            variable.assign_sub(gradient)
        return tf.size(parsed["side"]), loss

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
    with tempfile.TemporaryDirectory() as folder:
        samplers = [spawn.Process(target=sample, args=(folder, part)) for part in range(2)]
        trainers = [spawn.Process(target=train, args=(folder,)) for train in (train_torch, train_tensorflow)]
        for process in samplers + trainers:
            process.start()
        for process in trainers:
            process.join()
        for process in samplers:
            process.kill()
            process.join()
