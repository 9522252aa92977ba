"""The contact sheet is one image with rows of samples; samples that cannot be shown are marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from PIL import Image

from shardtool.dataset.find import open_dataset
from shardtool.errors import OutputExists
from shardtool.verbs.inspect.contact_sheet import write_contact_sheet
from tests.verbs.inspect.made import HOSTILE_KEYS, hostile, labelled, write_shard

if TYPE_CHECKING:
    from pathlib import Path

_BAD = (0xA8, 0x20, 0x1A)


def _colours(path: Path) -> set[tuple[int, ...]]:
    with Image.open(path) as picture:
        colours = picture.convert("RGB").getcolors(2**24)
    assert colours is not None
    return {colour for _, colour in colours if isinstance(colour, tuple)}


def test_the_size_depends_on_the_number_of_samples(tmp_path: Path) -> None:
    """The width depends on the columns and the height on the rows; the same dataset gives the same bytes."""
    write_shard(tmp_path / "d" / "s-000000.tar", labelled(range(30), 3))
    write_shard(tmp_path / "few" / "s-000000.tar", labelled(range(4), 3))
    write_shard(tmp_path / "many" / "s-000000.tar", labelled(range(130), 3))
    sizes = []
    for name, folder in (("a", "few"), ("b", "d"), ("c", "many"), ("d", "many")):
        write_contact_sheet(open_dataset(tmp_path / folder), str(tmp_path / f"{name}.png"))
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert picture.format == "PNG"
            sizes.append(picture.size)
    assert sizes[0][0] < sizes[1][0] == sizes[2][0]
    assert sizes[0][1] < sizes[1][1] < sizes[2][1]
    assert (tmp_path / "c.png").read_bytes() == (tmp_path / "d.png").read_bytes()


def test_images_are_drawn(tmp_path: Path) -> None:
    """Each sample's colour is in the sheet; nothing is marked if all samples are valid."""
    write_shard(tmp_path / "d" / "s-000000.tar", labelled(range(3), 3))
    write_contact_sheet(open_dataset(tmp_path / "d"), str(tmp_path / "s.png"))
    colours = _colours(tmp_path / "s.png")
    for at in range(3):
        wanted = (at * 37 % 256, at * 91 % 256, 120)
        assert any(max(abs(a - b) for a, b in zip(colour, wanted, strict=True)) < 12 for colour in colours), wanted
    assert _BAD not in colours


def test_a_damaged_image_is_marked(tmp_path: Path) -> None:
    """An image that cannot be decoded is marked and is not an error."""
    write_shard(tmp_path / "d" / "s-000000.tar", {**labelled(range(3), 3), "bad": {"jpg": b"none"}})
    write_contact_sheet(open_dataset(tmp_path / "d"), str(tmp_path / "s.png"))
    assert _BAD in _colours(tmp_path / "s.png")


def test_hostile_keys_and_texts_are_drawn(tmp_path: Path) -> None:
    """Samples with hostile keys, or without an image, are drawn and not marked as damaged."""
    hostile(tmp_path / "d")
    count = len(HOSTILE_KEYS) + 1 + 3
    write_shard(
        tmp_path / "d" / "h-000001.tar", {"t": {"txt": b"words " * 500}, "j": {"json": b"[1]"}, "e": {"x": b""}}
    )
    write_contact_sheet(open_dataset(tmp_path / "d"), str(tmp_path / "s.png"))
    write_shard(tmp_path / "p" / "s-000000.tar", labelled(range(count), count))
    write_contact_sheet(open_dataset(tmp_path / "p"), str(tmp_path / "plain.png"))
    with Image.open(tmp_path / "s.png") as picture, Image.open(tmp_path / "plain.png") as plain:
        assert picture.size == plain.size
    colours = _colours(tmp_path / "s.png")
    assert _BAD not in colours
    assert len(colours) > count


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    """An existing file is not replaced without `overwrite`."""
    write_shard(tmp_path / "d" / "s-000000.tar", labelled(range(3), 3))
    (tmp_path / "s.png").write_text("mine")
    with pytest.raises(OutputExists):
        write_contact_sheet(open_dataset(tmp_path / "d"), str(tmp_path / "s.png"))
    assert (tmp_path / "s.png").read_text() == "mine"
