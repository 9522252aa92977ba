"""Convert a dataset to a Hugging Face dataset."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.dataclass import dataclass
from shardtool.dataset.payload import content_type
from shardtool.errors import InvalidRequest, SampleFailed
from shardtool.read.catalog import hash_texts
from shardtool.read.decode import Decode
from shardtool.read.metadata import metadata_schema
from shardtool.read.sample_reader import SampleReader, read_valid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.read.catalog import Catalog, Numbers

_MEDIA_FEATURES = {"image": "Image", "audio": "Audio", "video": "Video"}
_BLOCK_BYTES = 2**24
_MAX_BLOCK_SAMPLES = 256


@dataclass(frozen=True)
class _SampleRows:
    reader: SampleReader
    numbers: Numbers | None
    fields: tuple[str, ...]
    media: frozenset[str]
    decode: Decode

    def between(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        block = min(_MAX_BLOCK_SAMPLES, max(1, _BLOCK_BYTES // self.reader.mean_size))
        for first in range(start, stop, block):
            last = min(stop, first + block)
            numbers = np.arange(first, last) if self.numbers is None else self.numbers[first:last]
            for sample in read_valid(self.reader, numbers):
                try:
                    row = self.decode(sample)
                except SampleFailed as error:
                    if self.reader.options.on_error == "raise":
                        raise
                    self.reader.skipped.count_sample(error, "", damaged=False)
                    continue
                for name, value in row.items():
                    if name in self.media:
                        row[name] = {"bytes": value, "path": f"{row['__key__']}.{name}"}
                    elif isinstance(value, np.ndarray):  # `datasets` cannot encode arrays in nested lists
                        row[name] = value.tolist()
                yield dict.fromkeys(self.fields) | row


def huggingface_dataset(
    reader: SampleReader, numbers: Numbers | None, *, streaming: bool, options: Mapping[str, Any]
) -> Any:
    """Return the samples with these numbers (None for all) as a dataset of the library `datasets`."""
    try:
        import datasets
    except ImportError as error:
        found = f"datasets cannot be imported: {error}"
        raise InvalidRequest("to_hf", found, remedy="Run `pip install datasets`.") from None
    catalog = reader.catalog
    names = tuple(catalog.fields) or tuple(dict.fromkeys(
        name for shard in range(len(catalog.shards)) for name in reader.store.index(shard).names
    ))  # fmt: skip
    media = {name: content for name in names if (content := content_type(name)) in _MEDIA_FEATURES}
    if "audio" in media.values():
        _require_torchcodec()
    decode = Decode(tuple((name, None) for name in media), types=catalog.types)
    schema = metadata_schema(catalog)
    features: dict[str, Any] = {"__key__": datasets.Value("string")}
    features |= {name: _feature(datasets, reader, name, decode) for name in names}
    columns = datasets.Features.from_arrow_schema(schema.remove_metadata())
    features |= {name: feature for name, feature in columns.items() if name not in features}
    rows = _SampleRows(reader.with_options(metadata=True), numbers, tuple(features), frozenset(media), decode)
    bounds = catalog.first_samples
    if numbers is not None:
        bounds = np.linspace(0, len(numbers), max(1, min(len(catalog.shards), len(numbers))) + 1, dtype=np.int64)
    spans = [*pairwise(bounds.tolist())]
    dataset_class = datasets.IterableDataset if streaming else datasets.Dataset
    arguments: dict[str, Any] = {"features": datasets.Features(features), "gen_kwargs": {"spans": spans, "rows": rows}}
    if not streaming and not bounds[-1]:  # `from_generator` fails without rows
        return datasets.Dataset.from_dict({name: [] for name in features}, arguments["features"])
    if not streaming and not catalog.is_remote:  # later processes reuse a cached copy with an equal fingerprint
        arguments["fingerprint"] = _fingerprint(catalog, numbers, arguments["features"])
    return dataset_class.from_generator(_generate_rows, **{**arguments, **options})


def _require_torchcodec() -> None:
    try:
        import torchcodec  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:  # RuntimeError: FFmpeg is missing
        found = f"audio, but torchcodec cannot be imported: {str(error).splitlines()[0]}"
        remedy = "Run `pip install torchcodec`, which `datasets` requires."
        raise InvalidRequest("to_hf", found, remedy=remedy) from None


def _fingerprint(catalog: Catalog, numbers: Numbers | None, features: object) -> str:
    # include the sidecars, because their columns can change without the shards
    files = [os.stat(shard.sidecar) for shard in catalog.shards if os.path.exists(shard.sidecar)]
    sidecars = [f"{file.st_size} {file.st_mtime_ns}" for file in files]
    return hash_texts(catalog.order_hash, "" if numbers is None else numbers.tobytes().hex(), str(features), *sidecars)


def _generate_rows(spans: list[tuple[int, int]], rows: _SampleRows) -> Iterator[dict[str, Any]]:
    for start, stop in spans:
        yield from rows.between(start, stop)


def _feature(datasets: Any, reader: SampleReader, name: str, decode: Decode) -> Any:
    catalog, content = reader.catalog, content_type(name)
    is_list = name in catalog.lists and content not in _MEDIA_FEATURES
    if name in catalog.classes:
        feature = datasets.ClassLabel(names=catalog.classes[name])
        is_list = is_list or isinstance(_first_value(reader, name, decode), list)
    elif content in _MEDIA_FEATURES:
        feature = getattr(datasets, _MEDIA_FEATURES[content])()
    elif content == "json" or catalog.types.get(name) == "json":
        feature = datasets.Json()
    else:
        feature = _value_feature(datasets, _first_value(reader, name, decode))
    return datasets.List(feature) if is_list else feature


def _first_value(reader: SampleReader, name: str, decode: Decode) -> object:
    for shard, first in enumerate(reader.catalog.first_samples[:-1].tolist()):
        index = reader.store.index(shard)
        if name in index.names:
            fields = np.flatnonzero(index.codes == index.names.index(name))
            row = int(np.searchsorted(index.first_rows, fields[0], side="right")) - 1
            sample = read_valid(reader.with_options(fields=frozenset((name,))), np.array([first + row]))
            return decode(sample[0])[name] if sample else None
    return None


def _value_feature(datasets: Any, value: object) -> Any:
    if isinstance(value, np.ndarray):
        feature = datasets.Value(str(value.dtype))
        for _ in range(value.ndim):
            feature = datasets.List(feature)
        return feature
    if isinstance(value, list):
        return _value_feature(datasets, value[0] if value else b"")
    types: dict[type, str] = {bool: "bool", int: "int64", float: "float64", str: "string"}
    return datasets.Value(types.get(type(value), "binary"))
