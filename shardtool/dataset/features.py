"""Features of TFRecords as Python source for TensorFlow's parser, as the dataset file lists them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.names import to_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shardtool.values import FeatureType, NumberType


_TF_KINDS: Mapping[FeatureType, str] = {"bytes": "tf.string", "int64": "tf.int64", "float": "tf.float32"}


@dataclass(frozen=True, slots=True)
class TfFeature:
    """A feature of TFRecords.

    Attributes:
        kind: What it holds.
        is_list: Whether it is a list of values.
        lacking: Whether some samples lack it; a single value then has a default.
    """

    kind: FeatureType = "bytes"
    is_list: bool = False
    lacking: bool = False

    @property
    def default(self) -> str | int:
        """What a parser gives for a sample that lacks it."""
        return "" if self.kind == "bytes" else -1

    def encode(self) -> str:
        """Return what `tf.io.parse_single_example` wants, as Python source in which `tf` is TensorFlow."""
        if self.is_list:
            return f"tf.io.VarLenFeature({_TF_KINDS[self.kind]})"
        default = f", default_value={json.dumps(self.default)}" if self.lacking else ""
        return f"tf.io.FixedLenFeature([], {_TF_KINDS[self.kind]}{default})"

    @classmethod
    def parse(cls, text: str) -> TfFeature:
        """Return the feature that a text of `encode` tells of.

        Raises:
            ValueError: It is no such text.
        """
        if text not in _FEATURE_BY_TEXT:
            raise ValueError(f"the feature {text!r:.80}")
        return _FEATURE_BY_TEXT[text]


_ALL_FEATURES = [TfFeature(kind, *how) for kind in _TF_KINDS for how in ((False, False), (False, True), (True, False))]


_FEATURE_BY_TEXT = {one.encode(): one for one in _ALL_FEATURES}


def tf_features(
    fields: Mapping[str, int], kinds: Mapping[str, FeatureType], samples: int, lists: Collection[str] = ()
) -> dict[str, TfFeature]:
    """Return the features of samples.

    Args:
        fields: How many samples have each.
        kinds: What they hold, if not bytes.
        samples: How many there are.
        lists: Those that are lists of values.
    """
    found = {"__key__": TfFeature()}
    for name in sorted(fields, key=to_bytes):
        is_list = name in lists
        found[name] = TfFeature(kinds.get(name, "bytes"), is_list, lacking=not is_list and fields[name] < samples)
    return found


def number_features(features: Mapping[str, TfFeature]) -> dict[str, NumberType]:
    """Return the features that are numbers, and their kinds."""
    return {name: one.kind for name, one in features.items() if one.kind != "bytes"}
