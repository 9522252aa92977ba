"""Boxes, masks, waveforms and conversations of the page."""

from __future__ import annotations

import io
import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from shardtool import CreateOptions, create
from shardtool.verbs.inspect.page.boxes import Outline, find_outlines
from shardtool.verbs.inspect.page.media import wav_peaks
from shardtool.verbs.inspect.page.samples import find_turns
from tests.verbs.inspect.made import image, sound, write_shard
from tests.verbs.inspect.test_page import read_page

if TYPE_CHECKING:
    from pathlib import Path

_SIZE = (200, 100)
_BOX = "M100 100L300 100L300 400L100 400Z"  # left 20, top 20, width 40 and height 60 of 200 by 100 pixels
_COCO = [20, 20, 40, 60]
_FORMS: dict[str, dict[str, Any]] = {
    "COCO columns": {"boxes": [_COCO], "labels": [1]},
    "COCO fields": {"boxes.json": [_COCO], "labels.json": [1]},
    "COCO annotations": {"json": {"annotations": [{"bbox": _COCO, "category_id": 1}]}},
    "a list of COCO annotations": {"json": [{"bbox": _COCO, "category_id": 1}]},
    "Hugging Face": {"objects": {"bbox": [_COCO], "category": [1]}},
    "corners": {"json": {"boxes": [[20, 20, 60, 80], [150, 50, 190, 90]], "labels": [1, 1]}},
    "named corners": {"json": [{"xmin": 20, "ymin": 20, "xmax": 60, "ymax": 80, "label": 1}]},
    "named sides": {"json": {"annotations": [{"box": {"x": 20, "y": 20, "w": 40, "h": 60}, "label": 1}]}},
    "shares": {"json": {"boxes": [[0.1, 0.2, 0.2, 0.6]], "labels": [1]}},
    "one box": {"bbox": _COCO, "label": 1},
    "YOLO": {"txt": "1 0.2 0.5 0.2 0.6\n"},
    "YOLO with confidence": {"txt": "1 0.2 0.5 0.2 0.6 0.9\n\n"},
    "YOLO polygon": {"txt": "1 0.1 0.2 0.3 0.2 0.3 0.8 0.1 0.8\n"},
}
_OTHERS: dict[str, dict[str, Any]] = {
    "a caption": {"txt": "1 cat on 2 mats"},
    "a crop of another image": {"json": {"box": [20, 20, 60, 80]}},
    "boxes beyond the image": {"boxes": [[500, 20, 40, 60]], "labels": [1]},
    "not numbers": {"boxes": [["a", None, {}, []]], "labels": [1]},
    "not finite": {"boxes": [[float("nan"), float("inf"), 1, 1]], "labels": [1]},
    "three numbers": {"boxes": [[1, 2, 3]]},
    "numbers beyond 1": {"txt": "1 20 20 40 60"},
}


@pytest.mark.parametrize("form", _FORMS)
def test_boxes_of_all_forms_are_drawn(form: str) -> None:
    """A box has the same outline and label in all forms of annotations; the colour follows from the class."""
    for classes in ({}, {"labels.json": ["cat", "dog"]}):
        first = find_outlines(_FORMS[form], _SIZE, classes, 10)[0]
        assert (first.path, first.x, first.y) == (_BOX, 100, 100)
        assert first.label == ("dog" if classes else "1")
        assert first.colour == "#3cb44b"


@pytest.mark.parametrize("form", _OTHERS)
def test_other_values_are_no_boxes(form: str) -> None:
    """Texts and numbers that are not boxes of this image are not drawn."""
    assert find_outlines(_OTHERS[form], _SIZE, {}, 10) == []


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["bbox", "boxes", "labels", "role", "content", "messages", "x", ""]), inner)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["boxes.json", "bbox", "json", "txt", "labels"]), _JSON))
@example({"json": {"": 0}})  # the name that pandas gives to an index column
def test_any_value_can_be_searched_for_annotations(values: dict[str, object]) -> None:
    """Whatever a dataset contains, the outlines are inside the image and the turns are texts."""
    for outline in find_outlines(values, _SIZE, {"labels": ["a"]}, 5):
        assert isinstance(outline, Outline)
        assert 0 <= outline.x <= 1000
        assert 0 <= outline.y <= 500
        outline.label.encode()
    for value in values.values():
        assert all(isinstance(part, str) for turn in find_turns(value) for part in turn)


def test_boxes_are_on_the_page(tmp_path: Path) -> None:
    """The boxes of a sample are drawn over its image, with the names of the classes, and described in words."""
    source = pa.table({
        "key": ["a", "b"],
        "jpg": [image(1, size=_SIZE), image(2, size=_SIZE)],
        "boxes": [[_COCO, [0, 0, 9, 9]], []],
    })  # fmt: skip
    create(
        source, f"{tmp_path}/d-{{0..}}.tar", CreateOptions(bytes=("jpg=jpg",), field=("boxes.json=boxes",), workers=0)
    )
    page = read_page(tmp_path / "d.json")
    drawings = [drawing for drawing in page.tags("svg") if "outlines" in str(drawing.get("class"))]
    assert len(drawings) == 1
    assert [sample["d"] for sample in page.tags("path")] == [_BOX, "M0 0L45 0L45 45L0 45Z"]
    assert "2 annotations" in str(page.tags("img")[0]["alt"])


_LLAVA = {"conversations": [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A cat."}]}
_OPENAI = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {}}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]},
    ]
}


def test_conversations_have_turns() -> None:
    """LLaVA, ShareGPT and OpenAI conversations have a role and a text per turn; other documents have none."""
    assert find_turns(_LLAVA) == [("human", "<image>\nWhat?"), ("gpt", "A cat.")]
    assert find_turns(_OPENAI) == [("user", "What?\n[image_url]"), ("assistant", "[call look({})]")]
    assert find_turns(_LLAVA["conversations"]) == find_turns(_LLAVA)
    others: tuple[object, ...] = (
        {},
        [],
        {"messages": []},
        {"messages": ["a"]},
        [{"role": 1, "content": ""}],
        {"from": "a"},
        "text",
    )
    assert all(find_turns(other) == [] for other in others)


def test_conversations_are_a_chat(tmp_path: Path) -> None:
    """A conversation in a field or a column is shown in turns, which are escaped and cut."""
    hostile = {
        "messages": [{"role": "<b>", "content": "</script><i>\u202e" + "x" * 9000}, {"role": "a", "content": "b"}]
    }
    fields = {"a": _LLAVA, "b": hostile}
    write_shard(
        tmp_path / "d" / "s-000000.tar", {key: {"json": json.dumps(value).encode()} for key, value in fields.items()}
    )
    page = read_page(tmp_path / "d")
    first, second = (sample["texts"][0] for sample in page.samples)
    assert (first["kind"], first["turns"], first["cut"]) == (
        "chat",
        [["human", "<image>\nWhat?"], ["gpt", "A cat."]],
        False,
    )
    assert second["cut"]
    assert second["turns"][0][1].startswith("</script><i>\\u202exx")
    assert len(second["turns"][0][1]) < 6000
    assert not page.tags("i")
    source = pa.table({"key": ["a"], "txt": ["t"], "conversations": [_LLAVA["conversations"]]})
    create(source, f"{tmp_path}/c-{{0..}}.tar", CreateOptions(field=("txt=txt",), workers=0))
    texts = read_page(tmp_path / "c.json").samples[0]["texts"]
    assert [sample["turns"] for sample in texts if sample["kind"] == "chat"] == [
        [["human", "<image>\nWhat?"], ["gpt", "A cat."]]
    ]


def _wav(values: bytes, *, bits: int, coding: int = 1, channels: int = 1) -> bytes:
    frame = channels * bits // 8
    header = struct.pack("<HHIIHH", coding, channels, 8000, 8000 * frame, frame, bits)
    parts = b"fmt " + struct.pack("<I", len(header)) + header + b"data" + struct.pack("<I", len(values)) + values
    return b"RIFF" + struct.pack("<I", len(parts) + 4) + b"WAVE" + parts


def test_waveforms_have_the_amplitudes() -> None:
    """The peaks of WAV files of all codings are proportional to the largest amplitude of each part."""
    shares = [0.0, 0.5, -1.0, 0.25]
    for kind, bits, coding in (("<i2", 16, 1), ("<i4", 32, 1), ("<f4", 32, 3), ("<f8", 64, 3)):
        scale = 1 if coding == 3 else 2 ** (bits - 1) - 1
        peaks = wav_peaks(
            _wav(np.array([share * scale for share in shares], kind).tobytes(), bits=bits, coding=coding), 4
        )
        assert [round(peak / max(peaks), 2) for peak in peaks] == [0, 0.5, 1, 0.25]
    assert wav_peaks(_wav(bytes([128, 192, 0, 160]), bits=8), 4) == [0, 64, 128, 32]
    assert wav_peaks(_wav(b"\xff\0\x40\xff\xff\x80", bits=24), 2) == [0x4000, 0x7F01]
    assert wav_peaks(sound(1), 80)[:1] == [0x2010]
    assert wav_peaks(_wav(b"", bits=16), 4) == wav_peaks(_wav(b"1234", bits=4, coding=0x11), 4) == []


@given(data=st.binary(max_size=80), bits=st.integers(0, 2**16 - 1), coding=st.sampled_from([1, 3, 0xFFFE]))
@example(data=b"\x00\x00\x81\x7f", bits=32, coding=3)  # a signalling NaN
def test_any_bytes_have_a_waveform_or_none(data: bytes, bits: int, coding: int) -> None:
    """Damaged headers and values cause no error."""
    for given_data in (data, b"RIFF" + data, _wav(data, bits=bits, coding=coding), _wav(data, bits=32, coding=coding)):
        assert len(wav_peaks(given_data, 8)) <= 8


def test_waveforms_are_on_the_page(tmp_path: Path) -> None:
    """A card of a WAV file has its waveform and its player; other audio has only the player."""
    write_shard(
        tmp_path / "d" / "s-000000.tar", {"a": {"wav": sound(0.5)}, "b": {"mp3": b"\xff\xfb\x90\x64" + bytes(2000)}}
    )
    page = read_page(tmp_path / "d")
    assert len([drawing for drawing in page.tags("svg") if drawing.get("class") == "wave"]) == 1
    assert len(page.tags("audio")) == 2


@given(values=st.sets(st.integers(0, 2**16 - 1), min_size=2, max_size=64))
def test_mask_values_have_different_colours(values: set[int]) -> None:
    """All values of a mask have different colours, also beyond the fixed colours."""
    from shardtool.transform.thumbnail import make_thumbnail

    out = io.BytesIO()
    Image.fromarray(np.array([sorted(values)] * 2, np.uint16)).save(out, "PNG")
    thumbnail = make_thumbnail(out.getvalue(), "mask.png", 200)
    assert [value for value, _ in thumbnail.colours] == sorted(values)
    assert len({colour for value, colour in thumbnail.colours if value}) == len(values - {0})


def test_repeated_palette_colours_are_replaced(tmp_path: Path) -> None:
    """A palette that gives two values one colour is not used."""
    own = Image.new("P", (30, 10), 1)
    own.putpalette([0, 0, 0, 200, 10, 30, 200, 10, 30])
    own.paste(2, (0, 0, 9, 9))
    out = io.BytesIO()
    own.save(out, "PNG")
    write_shard(tmp_path / "d" / "s-000000.tar", {"a": {"mask.png": out.getvalue()}})
    colours = [colour for _, colour in read_page(tmp_path / "d").samples[0]["images"][0]["colours"]]
    assert len({*colours}) == 2
