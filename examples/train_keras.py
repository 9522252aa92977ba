"""Train a small network with Keras in two ways: from TFRecords with tf.data, and from tar shards with threads.

First run make_shards.py.
"""

import keras
import tensorflow as tf

import shardtool
from shardtool.tensorflow import keras_sequence, tf_dataset


def records(split):
    """Return batches from TFRecords. TensorFlow reads, parses and decodes the samples without Python."""
    dataset = tf_dataset(f"photos-tfrecord/{split}.json", fields=["jpg", "cls"], shuffle=split == "train")
    return dataset.map(image_and_label, num_parallel_calls=tf.data.AUTOTUNE).batch(16).prefetch(tf.data.AUTOTUNE)


def image_and_label(sample):
    image = tf.io.decode_jpeg(sample["jpg"], channels=3)
    return tf.ensure_shape(image, (64, 64, 3)), sample["cls"]


def sequence(split):
    """Return batches from tar shards. Threads read and decode the samples."""
    dataset = shardtool.open(f"photos/{split}.json").decode().tuple("jpg", "cls")
    return keras_sequence(dataset, 16, shuffle=split == "train")


for name, batches in (("tf_dataset", records), ("keras_sequence", sequence)):
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([
        layers.Rescaling(1 / 255), layers.Conv2D(16, 3, 2, activation="relu"),
        layers.Conv2D(32, 3, 2, activation="relu"), layers.MaxPooling2D(3), layers.Flatten(),
        layers.Dense(8, activation="softmax"),
    ])  # fmt: skip
    model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(batches("train"), epochs=15, shuffle=False, verbose=0)  # the batches are shuffled already
    _, accuracy = model.evaluate(batches("val"), verbose=0)
    print(f"{name}: accuracy {accuracy:.2f}, chance {1 / 8:.2f}")
