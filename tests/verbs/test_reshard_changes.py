"""Laws of `reshard` with transforms: the bytes equal those that `create` writes from the source."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

import shardtool
from shardtool import (
    CorruptShard,
    CreateOptions,
    InvalidRequest,
    ReshardOptions,
    SampleFailed,
    VerifyOptions,
    create,
    reshard,
    verify,
)
from tests.helpers import flip, shards, write_tree

if TYPE_CHECKING:
    from pathlib import Path


def _image(at: int) -> bytes:
    result = BytesIO()
    Image.effect_noise((40 + at, 30), 90).convert("RGB").save(result, "PNG")
    return result.getvalue()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of ten images of two classes, with text."""
    files = {f"{'ab'[at % 2]}/{at}.png": _image(at) for at in range(10)}
    return write_tree(tmp_path_factory.mktemp("in"), files | {f"{name[:-4]}.txt": b"0" for name in files})


def _create(source: Path, output: Path, ending: str, **options: Any) -> Path:
    create(source, output / f"out-{{0..}}.{ending}", CreateOptions(workers=0, label_from_folder=True, **options))
    return output / "out.json"


CHANGES: list[dict[str, Any]] = [
    {"resize": 8, "max_count": 3},
    {"encode": "jpg", "quality": 60, "max_size": 12_000},
    {"resize": "5x7", "resize_mode": "pad", "probe": True, "shuffle": True, "seed": 3},
    {"map": "tests.mapped:doubled", "max_count": 4},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", CHANGES, ids=lambda options: next(iter(options)))
def test_transforms_equal_those_of_create(options: dict[str, Any], source: Path, ending: str, tmp_path: Path) -> None:
    """Transformed shards equal the shards that `create` writes with these options; `verify` accepts them."""
    whole = _create(source, tmp_path / "whole", ending)
    _create(source, tmp_path / "direct", ending, **options)
    reshard(whole, tmp_path / "o" / f"out-{{0..}}.{ending}", ReshardOptions(workers=0, **options))
    for mine, theirs in zip(shards(tmp_path / "o"), shards(tmp_path / "direct"), strict=True):
        assert mine.read_bytes() == theirs.read_bytes()
    assert verify(tmp_path / "o" / "out.json", VerifyOptions(workers=0, source=whole)).findings == ()
    if "map" not in options:
        assert len(shardtool.open(tmp_path / "o" / "out.json").where("cls == 'a'")) == 5


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gather", "scatter"])
def test_in_another_order(method: Any, source: Path, tmp_path: Path) -> None:
    """In one pass or two, samples that find no room where they were planned go elsewhere, with the same bytes."""
    whole, made = _create(source, tmp_path / "whole", "tar"), {}
    changes: dict[str, Any] = {"workers": 0, "encode": "png", "resize": 60, "shuffle": True, "max_size": 30_000}
    for name in ("auto", method):
        options = ReshardOptions(method=name, memory="16MB", **changes)
        reshard(whole, tmp_path / name / "out-{0..}.tar", options)
        made[name] = [path.read_bytes() for path in shards(tmp_path / name)]
    assert made["auto"] == made[method]
    assert len(made[method]) > 1


def test_damaged_payloads_are_never_changed(source: Path, tmp_path: Path) -> None:
    """What has not the checksum of its index ends the run, or is left out: it is decoded in neither case."""
    whole = _create(source, tmp_path / "whole", "tar")
    shard = shards(tmp_path / "whole")[0]
    flip(shard, shard.read_bytes().index(b"IDAT") + 9)
    with pytest.raises(CorruptShard, match="has the CRC-32C"):
        reshard(whole, tmp_path / "x-{0..}.tar", ReshardOptions(workers=0, resize=8))
    made = reshard(whole, tmp_path / "o-{0..}.tar", ReshardOptions(workers=0, resize=8, on_error="skip"))
    assert (made.samples, made.skipped) == (9, 1)


def test_another_source_with_equal_sizes_is_transformed_again(tmp_path: Path) -> None:
    """A resumed run rewrites shards whose source has other bytes of equal size, for any `--trust`."""
    options: dict[str, Any] = {"workers": 0, "map": "tests.mapped:doubled", "trust": "size", "resume": True}
    result = []
    for text in (b"0", b"1"):
        write_tree(tmp_path / "in", {"a/0.txt": text, "b/1.txt": b"7"})
        whole = create(tmp_path / "in", tmp_path / "w-{0..}.tar", CreateOptions(workers=0, overwrite=True))
        reshard(whole.dataset_file, tmp_path / "o-{0..}.tar", ReshardOptions(**options))
        result.append((tmp_path / "o-0.tar").read_bytes())
    assert result[0] != result[1]


def test_what_cannot_be_changed(source: Path, tmp_path: Path) -> None:
    """Fields that there are not, images that are none, and parts are refused as in `create`."""
    whole = _create(source, tmp_path / "whole", "tar")
    with pytest.raises(InvalidRequest, match="no sample has a field 'jpg'"):
        reshard(whole, tmp_path / "x-{0..}.tar", ReshardOptions(workers=0, encode="jpg", image=("jpg",)))
    with pytest.raises(SampleFailed, match="txt"):
        reshard(whole, tmp_path / "x-{0..}.tar", ReshardOptions(workers=0, encode="jpg", image=("txt",)))
    with pytest.raises(InvalidRequest, match="samples of known size"):
        ReshardOptions(part="1/2", resize=8)
