"""The contact sheet is one picture of the samples, in rows, with what cannot be shown marked."""

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
        found = picture.convert("RGB").getcolors(2**24)
    assert found is not None
    return {colour for _, colour in found if isinstance(colour, tuple)}


def test_more_samples_more_rows(tmp_path: Path) -> None:
    """The width follows the columns and the height the rows; the same dataset gives the same bytes."""
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


def test_pictures_are_drawn(tmp_path: Path) -> None:
    """Each sample's own colour is in the sheet; nothing is marked where all are sound."""
    write_shard(tmp_path / "d" / "s-000000.tar", labelled(range(3), 3))
    write_contact_sheet(open_dataset(tmp_path / "d"), str(tmp_path / "s.png"))
    colours = _colours(tmp_path / "s.png")
    for at in range(3):
        wanted = (at * 37 % 256, at * 91 % 256, 120)
        assert any(max(abs(a - b) for a, b in zip(one, wanted, strict=True)) < 12 for one in colours), wanted
    assert _BAD not in colours


def test_broken_image_is_marked(tmp_path: Path) -> None:
    """What cannot be decoded is marked, and ends nothing."""
    write_shard(tmp_path / "d" / "s-000000.tar", {**labelled(range(3), 3), "bad": {"jpg": b"none"}})
    write_contact_sheet(open_dataset(tmp_path / "d"), str(tmp_path / "s.png"))
    assert _BAD in _colours(tmp_path / "s.png")


def test_hostile_and_textual_samples(tmp_path: Path) -> None:
    """Hostile keys and samples without a picture are drawn like any other: none is marked as broken or left out."""
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


def test_existing_file_stays(tmp_path: Path) -> None:
    """A file that is there is not replaced unless asked for."""
    write_shard(tmp_path / "d" / "s-000000.tar", labelled(range(3), 3))
    (tmp_path / "s.png").write_text("mine")
    with pytest.raises(OutputExists):
        write_contact_sheet(open_dataset(tmp_path / "d"), str(tmp_path / "s.png"))
    assert (tmp_path / "s.png").read_text() == "mine"
