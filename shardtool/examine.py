"""One shard examined: walked, summed, and where asked for decoded. Runs in a worker.

It knows the shard alone: what its sidecar and the dataset file say is compared by the parent, who needs NumPy and
pyarrow for that, and the workers do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard, ShardError, printable
from shardtool.findings import Finding
from shardtool.reading import COMPRESSED, open_shard
from shardtool.survey import Survey, SurveyTask, survey, walked_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.reading import PackedFile, ShardFile
    from shardtool.sample import Dots

HASH_SIZE = 16
IMAGE_ENDINGS = frozenset(
    {"jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "pbm", "pgm", "ppm", "pnm"}
)
_IMAGE_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_NUMBERS = frozenset({"cls", "cls2", "index", "inx", "id"})  # what webdataset's decoder takes for whole numbers
_DECODED_LIMIT = 2**30  # bytes of a payload that is read as a whole
_NUMBER_LIMIT = 100  # digits
_MOST = 100  # findings of a shard: the rest tells nothing new


@dataclass(frozen=True, slots=True)
class Task:
    """A shard to examine.

    Attributes:
        path: Of the shard.
        name: For findings.
        dots: Where the key of a member's name ends.
        decode: Whether payloads are decoded.
        classes: Field to how many classes its numbers stand for.
    """

    path: str
    name: str
    dots: Dots
    decode: bool = False
    classes: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Examined:
    """What was found in a shard.

    Attributes:
        survey: What lies in it; None where it cannot be opened.
        hashes: 16 bytes a sample, of its key.
        findings: What the payloads told, the first ones.
        more: How many more of these there are, by code.
        error: Why it cannot be opened.
    """

    survey: Survey | None
    hashes: bytes = b""
    findings: list[Finding] = field(default_factory=list)
    more: dict[str, int] = field(default_factory=dict)
    error: ShardError | None = None


def examine(task: Task) -> Examined:
    """Walk, sum and, where asked for, decode a shard; a damaged one is told of up to the damage."""
    try:
        found = survey(SurveyTask(task.path, checksum=True, dots=task.dots))
    except ShardError as error:
        return Examined(None, error=error)
    hashes = b"".join([blake2b(key, digest_size=HASH_SIZE).digest() for key in found.keys])
    examined = Examined(found, hashes)
    if task.decode:
        _decode(task, found, examined)
    return examined


def _decode(task: Task, found: Survey, examined: Examined) -> None:
    """Decode every field that has a decoder."""
    checks: list[Callable[[bytes], str] | None] = []
    for name, kind in zip(found.names, found.kinds, strict=True):
        text = walked_text(name)
        checks.append(_check_for(text, task.classes.get(text)) if kind == "bytes" else None)
    if not any(checks):
        return
    row = 0
    with open_shard(task.path) as shard:
        for key, count in zip(found.keys, found.counts, strict=True):
            for at in range(row, min(row + count, len(found.lengths))):
                check = checks[found.codes[at]]
                wrong = check and _wrong(check, shard, found.offsets[at], found.lengths[at])
                if wrong:
                    code, _, what = wrong.partition(": ")
                    place = None if task.path.endswith(COMPRESSED) else found.offsets[at]
                    field_name = walked_text(found.names[found.codes[at]])
                    if len(examined.findings) < _MOST:
                        one = Finding(code, task.name, what, offset=place, key=walked_text(key), field=field_name)
                        examined.findings.append(one)
                    else:
                        examined.more[code] = examined.more.get(code, 0) + 1
            row += count


def _check_for(name: str, classes: int | None) -> Callable[[bytes], str] | None:
    """Return what tells what is wrong with a payload of a field, as `code: what`; None: it can be anything."""
    ending = name.rpartition(".")[2].lower()
    if ending in IMAGE_ENDINGS:
        return _image
    if ending == "json":
        return _json
    if classes is not None or ending in _NUMBERS:
        return lambda data: _number(data, classes)
    return None


def _wrong(check: Callable[[bytes], str], shard: ShardFile | PackedFile, offset: int, length: int) -> str:
    if length > _DECODED_LIMIT:
        return ""
    try:
        data = bytes(shard.read(offset, length))
    except CorruptShard:  # the walk has told of it
        return ""
    return check(data) if len(data) == length else ""


def _image(data: bytes) -> str:
    import warnings
    from io import BytesIO

    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(BytesIO(data), formats=_IMAGE_FORMATS) as image:
                image.load()
    except Image.DecompressionBombError as error:
        return f"image-bad: {printable(str(error))}"
    except UnidentifiedImageError:
        return "image-bad: no image in a format that is known here"
    except MemoryError:
        return "image-bad: too large for the memory there is"
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise what they like on damaged data
        return f"image-bad: {printable(str(error)) or type(error).__name__}"
    return ""


def _json(data: bytes) -> str:
    import json

    try:
        json.loads(data)
    except RecursionError:
        return "json-bad: nested too deeply"
    except ValueError as error:
        return f"json-bad: {printable(str(error))}"
    return ""


def _number(data: bytes, classes: int | None) -> str:
    text = data.strip()
    try:
        value = float(text) if len(text) <= _NUMBER_LIMIT else None
    except ValueError:
        value = None
    if value is None:
        return f"number-bad: {printable(text[:40])!r}"
    if classes is not None and not (value.is_integer() and 0 <= value < classes):
        return f"number-bad: {printable(text)}, of {classes:,} classes"
    return ""
