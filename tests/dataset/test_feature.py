"""Features of TFRecords, and what the dataset file tells TensorFlow of them."""

from __future__ import annotations

import pytest

from shardtool.dataset.dataset_file import Feature, features_of, numbers_in


@pytest.mark.parametrize(
    ("feature", "text"),
    [
        (Feature(), "tf.io.FixedLenFeature([], tf.string)"),
        (Feature(lacking=True), 'tf.io.FixedLenFeature([], tf.string, default_value="")'),
        (Feature("int64", lacking=True), "tf.io.FixedLenFeature([], tf.int64, default_value=-1)"),
        (Feature("float"), "tf.io.FixedLenFeature([], tf.float32)"),
        (Feature("float", is_list=True), "tf.io.VarLenFeature(tf.float32)"),
    ],
)
def test_as_text_and_back(feature: Feature, text: str) -> None:
    """A feature is written as the expression that TensorFlow takes, and read from it; no other text is read."""
    assert feature.encode() == text
    assert Feature.parse(text) == feature
    for other in (text[:-1], text + " ", text.replace("tf.", "os."), ""):
        with pytest.raises(ValueError, match="the feature"):
            Feature.parse(other)


def test_features_of_samples() -> None:
    """The key comes first, then fields by name; a single value that some samples lack has a default, a list none."""
    found = features_of({"n": 2, "b": 1, "ids": 1}, {"n": "int64", "ids": "int64"}, 2, ["ids"])
    wanted = [("__key__", Feature()), ("b", Feature(lacking=True)), ("ids", Feature("int64", is_list=True))]
    assert [*found.items()] == [*wanted, ("n", Feature("int64"))]
    assert numbers_in(found) == {"ids": "int64", "n": "int64"}
