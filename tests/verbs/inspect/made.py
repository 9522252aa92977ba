"""Write datasets for the HTML page without shardtool: images, texts, and content that attacks the page."""

from __future__ import annotations

import io
import json
import random
import tarfile
import wave
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

HOSTILE_KEYS = (
    "</script><script>alert(1)</script>",
    "\"onerror='alert(1)",
    "<img src=x onerror=alert(1)>",
    "line\u2028and\u2029paragraph",
    "turned\u202egnp",
    "bell\x07escape\x1b[31m",
    "&amp;&lt;{{7*7}}${title}",
    "-->]]><!--",
    "k" * 10_000,
    "日本語/写真",
)


@contextmanager
def showing(samples: int | None) -> Iterator[None]:
    """Limit the HTML page to this number of samples, for any number of labels. None keeps the default."""
    with ExitStack() as stack:
        for name in ("_MAX_SAMPLES", "_DEFAULT_SAMPLES") if samples is not None else ():
            stack.enter_context(patch(f"shardtool.verbs.inspect.page.page.{name}", samples))
        yield


def image(number: int, kind: str = "JPEG", size: tuple[int, int] = (60, 40)) -> bytes:
    """Return an image of a single colour."""
    out = io.BytesIO()
    Image.new("RGB", size, (number * 37 % 256, number * 91 % 256, 120)).save(out, kind)
    return out.getvalue()


def noise(seed: int, side: int) -> bytes:
    """Return a PNG of random pixels, which is about as large as the pixels: 3 bytes per pixel."""
    out = io.BytesIO()
    pixels = random.Random(seed).randbytes(side * side * 3)  # noqa: S311 - no secret
    Image.frombytes("RGB", (side, side), pixels).save(out, "PNG", compress_level=0)
    return out.getvalue()


def mask(values: Sequence[int], mode: str = "L", size: tuple[int, int] = (60, 40)) -> bytes:
    """Return a PNG with a vertical stripe for each pixel value."""
    out, picture = io.BytesIO(), Image.new(mode, size)
    for at, value in enumerate(values):
        picture.paste(value, (at * size[0] // len(values), 0, size[0], size[1]))
    picture.save(out, "PNG")
    return out.getvalue()


def sound(seconds: float, rate: int = 8000) -> bytes:
    """Return a WAV file with one channel of 16 bits."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"\x10\x20" * round(seconds * rate))
    return out.getvalue()


def write_shard(path: Path, samples: Mapping[str, Mapping[str, bytes]]) -> Path:
    """Write a tar of samples. `samples` contains the payloads by key and field."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for key, fields in samples.items():
            for name, data in fields.items():
                member = tarfile.TarInfo(f"{key}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def labelled(numbers: range, labels: int) -> dict[str, dict[str, bytes]]:
    """Return samples with an image and a class number."""
    return {f"{at:05}": {"jpg": image(at), "cls": b"%d" % (at % labels)} for at in numbers}


def hostile(folder: Path) -> Path:
    """Write a shard whose keys, texts, labels and field names try to break out of the page."""
    samples = {
        key: {
            "jpg": image(at),
            "txt": key[:300].encode(),
            "cls": key[:40].encode(),
            "json": b'{"a": "</script>"}',
            "boxes.json": b"[[1, 1, 20, 20]]",
            "labels.json": json.dumps([key[:60]]).encode(),
            "chat.json": json.dumps([{"role": key[:60], "content": key[:300]}]).encode(),
            "wav": b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0" + key.encode()[:99],
        }
        for at, key in enumerate(HOSTILE_KEYS)
    }
    samples["odd"] = {"<b>.x": b"\0\1\2", "txt": "<b>\u202e\x00\ud7ff".encode()}
    write_shard(folder / "h-000000.tar", samples)
    return folder
