"""Which TFRecords are meant, and what a dataset file says of them. TensorFlow is not needed for that."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import Feature, features_of
from shardtool.dataset.find import given_datasets, open_dataset
from shardtool.dataset.shard_file import shard_kind
from shardtool.dataset.shard_index import walked_index
from shardtool.dataset.walk import SurveyTask, survey, walked_text
from shardtool.errors import InvalidRequest, listing
from shardtool.values import Given, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shardtool.dataset.find import StoredDataset

_BUFFER = 2**28  # bytes of samples that a shuffle holds, unless a number of samples is given
_MOST = 10_000  # samples that it holds then
_KEY_OF_OTHERS = Feature(lacking=True)  # not all tools give their records a key
_PACKINGS = {"": "", "gzip": "GZIP"}  # those that TensorFlow unpacks, and its names of them


@dataclass(frozen=True, slots=True)
class RecordOrder:
    """In which order TensorFlow gives records; see `tf_dataset`.

    Raises:
        InvalidRequest: A number is negative.
    """

    shuffle: bool | int = False
    seed: int = 0
    epoch: int | None = None

    def __post_init__(self) -> None:
        for name in ("shuffle", "seed", "epoch"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, Integral) or value < 0):
                raise InvalidRequest(name, repr(value), expected="a whole number, 0 or more")


@dataclass(frozen=True, slots=True)
class Records:
    """TFRecord shards.

    Attributes:
        paths: Where they are, in order.
        packing: How TensorFlow unpacks them: `GZIP`, or an empty text.
        samples: How many there are in all.
        size: Bytes of all shards, or of their payloads.
        features: What samples have, by name.
        classes: The names of classes, by field.
    """

    paths: tuple[str, ...] = field(repr=False)
    packing: str
    samples: int
    size: int
    features: Mapping[str, Feature]
    classes: Mapping[str, Sequence[str]]

    def buffer(self, order: RecordOrder) -> int:
        """Return how many samples a shuffle holds."""
        if order.shuffle is not True:
            return max(1, int(order.shuffle))
        return max(1, min(_MOST, self.samples, _BUFFER * self.samples // max(1, self.size)))


def find_records(given: Given, fields: Collection[str] | None) -> Records:
    """Return the TFRecord shards that are meant, and those of their features that are wanted.

    Raises:
        InvalidRequest: There is no such dataset or field, or these are no TFRecords.
        CorruptShard: A dataset file is damaged, or a shard that had to be walked.
    """
    datasets = [open_dataset(one) for one in given_datasets(given)]
    packing = _packing_of(datasets)
    parts = [_part_of(one) for one in datasets]
    features = _merged([part.features for part in parts])
    wanted = [*features] if fields is None else list(dict.fromkeys(fields))
    if lacking := [name for name in wanted if name not in features]:
        raise InvalidRequest("fields", f"no {listing(lacking)}", expected=f"some of {listing([*features])}")
    if not wanted:
        raise InvalidRequest("fields", "none", expected=f"some of {listing([*features])}")
    return Records(
        paths=tuple(path for part in parts for path in part.paths),
        packing=packing,
        samples=sum(part.samples for part in parts),
        size=sum(part.size for part in parts),
        features={name: features[name] for name in wanted},
        classes=_classes_of(parts),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the datasets; its attributes are those of `Records`."""

    paths: list[str]
    samples: int
    size: int
    features: Mapping[str, Feature]
    classes: Mapping[str, list[str]] = field(default_factory=dict)


def _part_of(dataset: StoredDataset) -> _Part:
    """Return what the dataset file says; where there is none, shards are walked.

    Raises:
        CorruptShard: A shard that is walked is damaged.
    """
    paths, file = [*dataset.paths], dataset.file
    if file is None:
        return _walked(paths)
    features = dict(file.features)
    if file.made.document.get("verb") == "index":
        features["__key__"] = _KEY_OF_OTHERS
    samples, size = (sum(getattr(shard, name) for shard in file.shards) for name in ("samples", "size"))
    return _Part(paths, samples, size, features, file.classes)


def _walked(paths: list[str]) -> _Part:
    """Return what is found in shards that no dataset file lists."""
    fields, kinds, lists, samples, size = Counter[str](), dict[str, Kind](), set[str](), 0, 0
    for path in paths:
        found = survey(SurveyTask(path))
        if found.error is not None:
            raise found.error
        names, tally = [walked_text(name) for name in found.names], walked_index(found).tally()
        kinds = dict(zip(names, found.kinds, strict=True)) | kinds
        lists |= {names[code] for code, one in found.unlike.items() if one.kind == found.kinds[code]}
        fields.update(tally.fields)
        samples, size = samples + tally.samples, size + tally.field_bytes
    features = features_of(fields, kinds, samples, lists) | {"__key__": _KEY_OF_OTHERS}
    return _Part(paths, samples, size, features)


def _packing_of(datasets: Sequence[StoredDataset]) -> str:
    """Return how TensorFlow unpacks all shards.

    Raises:
        InvalidRequest: They are no TFRecords, or TensorFlow cannot unpack them.
    """
    kinds: dict[str, str] = {}
    for dataset in datasets:
        for shard in dataset.shards:
            kind = shard_kind(shard.path)
            if kind.format != "tfrecord":
                raise _no_records(dataset.dataset_file or shard.path)
            kinds[kind.packing] = shard.path
    for packing, path in kinds.items():
        if packing not in _PACKINGS:
            found = f"compressed with {packing}, which TensorFlow cannot unpack"
            raise InvalidRequest(path, found, expected="TFRecords, or such with gzip")
        if len(kinds) > 1 and packing:
            found = f"compressed with {packing}, and other shards are not"
            raise InvalidRequest(path, found, expected="all of one kind")
    return _PACKINGS[next(iter(kinds))]


def _no_records(where: str) -> InvalidRequest:
    remedy = (
        f"Make TFRecords of them, `shardtool reshard {where} 'out-{{000000..}}.tfrecord'`, or give them to Keras with"
        " shardtool.tensorflow.keras_sequence."
    )
    return InvalidRequest(where, "tar shards", expected="TFRecords, which TensorFlow reads by itself", remedy=remedy)


def _merged(parts: Sequence[Mapping[str, Feature]]) -> dict[str, Feature]:
    """Return the features of the samples of all datasets: what one of them does not have, some samples lack."""
    found: dict[str, Feature] = {}
    for features in parts:
        for name, one in features.items():
            before = found.setdefault(name, one)
            if before.kind != one.kind:
                problem = f"{before.kind} in one dataset, {one.kind} in another"
                raise InvalidRequest(f"the field {name!r}", problem, expected="one kind in all")
            is_list = before.is_list or one.is_list
            lacking = not is_list and (before.lacking or one.lacking or any(name not in other for other in parts))
            found[name] = Feature(one.kind, is_list, lacking)
    return found


def _classes_of(parts: Sequence[_Part]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in parts:
        for name, classes in part.classes.items():
            if found.setdefault(name, classes) != classes:
                expected = "the same names in the same order: the numbers in the shards depend on it"
                raise InvalidRequest(f"the classes of {name!r}", "different ones in two datasets", expected=expected)
    return found
