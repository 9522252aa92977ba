from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import webdataset as wds
from PIL import Image

from shardtool import CreateOptions, create
from tests.clients.packed import Fields, Packed, payloads_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # webdataset leaves the last shard open
]


def _payloads(sample: dict[str, Any]) -> Fields:
    return {name: value for name, value in sample.items() if not name.startswith("__")}


def _read(packed: Packed) -> list[tuple[str, Fields]]:
    return [(sample["__key__"], _payloads(sample)) for sample in wds.WebDataset(packed.urls, shardshuffle=False)]


def _pixels(image: Any) -> tuple[tuple[int, ...], bytes]:
    array = np.asarray(image)
    return array.shape, array.tobytes()


def _decoded(fields: Fields) -> tuple[Any, Any, int]:
    """Return what `.decode("pil")` makes of a photograph's fields: pixels, JSON, number."""
    image = Image.open(io.BytesIO(fields["jpg"])).convert("RGB")
    return _pixels(image), json.loads(fields["json"]), int(fields["cls"])


@pytest.mark.parametrize("made", ["photos", "names", "long_names", "one_shard"])
def test_reads_every_sample_in_order(made: str, request: pytest.FixtureRequest) -> None:
    """By a brace pattern, webdataset gives every sample of the source once, in order, with its exact bytes."""
    packed: Packed = request.getfixturevalue(made)
    assert _read(packed) == list(packed.samples.items())


def test_reads_portable_names(portable: Packed) -> None:
    """With `--portable`, webdataset returns every sample of the source once and complete, for any names."""
    read = _read(portable)
    assert len({key for key, _ in read}) == len(portable.samples)
    assert payloads_of(fields for _, fields in read) == payloads_of(portable.samples.values())


def test_decodes_to_tuples(photos: Packed) -> None:
    """`.decode("pil").to_tuple("jpg", "json", "cls")` gives the source's pixels, JSON and class number, in order."""
    tuples = wds.WebDataset(photos.urls, shardshuffle=False).decode("pil").to_tuple("jpg", "json", "cls")
    read = [(_pixels(image), meta, number) for image, meta, number in tuples]
    assert read == [_decoded(fields) for fields in photos.samples.values()]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # of torch's own workers
def test_data_loader_with_workers(photos: Packed) -> None:
    """A DataLoader with two workers gives every sample exactly once, decoded."""
    dataset = wds.WebDataset(photos.urls, shardshuffle=False).decode("pil").to_tuple("__key__", "jpg", "json", "cls")
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    read = [(key, (_pixels(image), meta, number)) for key, image, meta, number in loader]
    assert len(read) == len(photos.samples)
    assert dict(read) == {key: _decoded(fields) for key, fields in photos.samples.items()}


@pytest.mark.parametrize("pattern", ["a b/x-{000..}.tar", "x-%06d-y.tar", "x-{8..}.tar", "x-000.tar"])
def test_the_urls_that_create_prints(pattern: str, photos: Packed, tmp_path: Path) -> None:
    """What the summary of `create` gives to webdataset reads all samples, in order."""
    bound = None if pattern == "x-000.tar" else 7
    made = create(photos.source, str(tmp_path / pattern), CreateOptions(max_count=bound, workers=1))
    assert [sample["__key__"] for sample in wds.WebDataset(made.urls, shardshuffle=False)] == list(photos.samples)
