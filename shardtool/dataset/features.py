"""Describe TFRecord features as Python source for TensorFlow's parser."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shardtool.dataclass import dataclass
from shardtool.names import to_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shardtool.values import FeatureType, NumberType


_TF_KINDS: Mapping[FeatureType, str] = {"bytes": "tf.string", "int64": "tf.int64", "float": "tf.float32"}


@dataclass(frozen=True, slots=True)
class TfFeature:
    """How TensorFlow parses a feature."""

    kind: FeatureType = "bytes"
    is_list: bool = False
    is_optional: bool = False

    @property
    def default(self) -> str | int:
        """The value that the parser returns if a sample lacks the feature."""
        return "" if self.kind == "bytes" else -1

    def encode(self) -> str:
        """Return Python source that creates this feature for TensorFlow's parser."""
        if self.is_list:
            return f"tf.io.VarLenFeature({_TF_KINDS[self.kind]})"
        default = f", default_value={json.dumps(self.default)}" if self.is_optional else ""
        return f"tf.io.FixedLenFeature([], {_TF_KINDS[self.kind]}{default})"

    @classmethod
    def parse(cls, text: str) -> TfFeature:
        """Parse the result of `encode`.

        Raises:
            ValueError: The text is invalid.
        """
        if text not in _FEATURE_BY_TEXT:
            raise ValueError(f"unknown feature {text!r:.80}")
        return _FEATURE_BY_TEXT[text]


_ALL_FEATURES = [
    TfFeature(kind, *flags) for kind in _TF_KINDS for flags in ((False, False), (False, True), (True, False))
]
_FEATURE_BY_TEXT = {feature.encode(): feature for feature in _ALL_FEATURES}


def tf_features(
    fields: Mapping[str, int], kinds: Mapping[str, FeatureType], samples: int, lists: Collection[str] = ()
) -> dict[str, TfFeature]:
    """Return the features of a dataset's records, including `__key__`.

    Args:
        fields: How many samples have each field.
        kinds: Types of fields that are not bytes.
        lists: Fields that are lists of values.
    """
    features = {"__key__": TfFeature()}
    for name in sorted(fields, key=to_bytes):
        is_list = name in lists
        features[name] = TfFeature(kinds.get(name, "bytes"), is_list, not is_list and fields[name] < samples)
    return features


def number_features(features: Mapping[str, TfFeature]) -> dict[str, NumberType]:
    """Return the types of the numeric features."""
    return {name: feature.kind for name, feature in features.items() if feature.kind != "bytes"}
