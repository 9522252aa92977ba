"""Features of TFRecords as the dataset file lists them for TensorFlow."""

from __future__ import annotations

import pytest

from shardtool.dataset.features import TfFeature, number_features, tf_features


@pytest.mark.parametrize(
    ("feature", "text"),
    [
        (TfFeature(), "tf.io.FixedLenFeature([], tf.string)"),
        (TfFeature(is_optional=True), 'tf.io.FixedLenFeature([], tf.string, default_value="")'),
        (TfFeature("int64", is_optional=True), "tf.io.FixedLenFeature([], tf.int64, default_value=-1)"),
        (TfFeature("float"), "tf.io.FixedLenFeature([], tf.float32)"),
        (TfFeature("float", is_list=True), "tf.io.VarLenFeature(tf.float32)"),
    ],
)
def test_a_feature_round_trips(feature: TfFeature, text: str) -> None:
    """A feature is encoded as a TensorFlow expression and parsed from it; other text is rejected."""
    assert feature.encode() == text
    assert TfFeature.parse(text) == feature
    for invalid_text in (text[:-1], text + " ", text.replace("tf.", "os."), ""):
        with pytest.raises(ValueError, match="unknown feature"):
            TfFeature.parse(invalid_text)


def test_features_of_samples() -> None:
    """The key is first, then fields by name; a single value that some samples lack has a default, a list has none."""
    features = tf_features({"n": 2, "b": 1, "ids": 1}, {"n": "int64", "ids": "int64"}, 2, ["ids"])
    expected = [("__key__", TfFeature()), ("b", TfFeature(is_optional=True)), ("ids", TfFeature("int64", is_list=True))]
    assert [*features.items()] == [*expected, ("n", TfFeature("int64"))]
    assert number_features(features) == {"ids": "int64", "n": "int64"}
