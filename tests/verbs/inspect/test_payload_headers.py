"""`inspect --show` describes arrays and videos by their headers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shardtool import create
from shardtool.verbs.inspect.payload_headers import describe_payload
from tests.helpers import typed

if TYPE_CHECKING:
    from collections.abc import Callable

_VIDEOS = Path(__file__).parent / "videos"  # 25 frames of 64 x 48 pixels at 10 frames per second, written by PyAV


def _save(write: Callable[[io.BytesIO], None]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def _save_objects(file: io.BytesIO) -> None:
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)


_TENSORS = json.dumps({"w": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {}}).encode()
_PAYLOADS = {
    "npy": (_save(lambda file: np.save(file, np.zeros((3, 224), np.float32))), ["float32, shape (3, 224)"]),
    "object.npy": (_save(_save_objects), ["object, shape (1,)"]),
    "npz": (
        _save(lambda file: np.savez_compressed(file, mask=np.zeros((4, 5), bool), depth=np.zeros(7))),
        ["mask: bool, shape (4, 5)", "depth: float64, shape (7,)"],
    ),
    "safetensors": (len(_TENSORS).to_bytes(8, "little") + _TENSORS + bytes(12), ["w: F16, shape (2, 3)"]),
    "mp4": ((_VIDEOS / "clip.mp4").read_bytes(), ["64 x 48, 2.5 s, 25 frames"]),
    "mov": ((_VIDEOS / "clip.mov").read_bytes(), ["64 x 48, 2.5 s, 25 frames"]),
    "avi": ((_VIDEOS / "clip.avi").read_bytes(), ["64 x 48, 2.5 s, 25 frames"]),
    "webm": ((_VIDEOS / "clip.webm").read_bytes(), ["64 x 48, 2.5 s"]),
}


def test_a_sample_with_arrays_and_videos_is_described(tmp_path: Path) -> None:
    """`--show` prints the lines below each field, and `--json` lists them as `details`."""
    (tmp_path / "in").mkdir()
    for field, (data, _) in _PAYLOADS.items():
        (tmp_path / f"in/src.{field}").write_bytes(data)
    create(str(tmp_path / "in"), str(tmp_path / "out-{000..}.tar"), workers=0)
    shown = ("inspect", str(tmp_path / "out.json"), "--show", "src")
    text, fields = typed(*shown).out, json.loads(typed(*shown, "--json").out)["samples"][0]["fields"]
    for field, (_, lines) in _PAYLOADS.items():
        assert fields[field]["details"] == lines
        assert "\n".join(f"  {line}" for line in lines) in text


@pytest.mark.parametrize("field", _PAYLOADS)
def test_damaged_headers_are_no_errors(field: str) -> None:
    """Any prefix, and any changed byte in the first kilobyte, gives some lines or none, and never an error."""
    data, lines = _PAYLOADS[field]
    assert list(describe_payload(field, data)) == lines
    for size in range(0, len(data), 7):
        assert describe_payload(field, data[:size]) in ((), tuple(lines))
    for offset in range(min(len(data), 1000)):
        for byte in (0, 0xFF):
            describe_payload(field, data[:offset] + bytes([byte]) + data[offset + 1 :])
