"""What the bytes of a field become, by the field's name: pixels, numbers, text, JSON, arrays. Nothing is unpickled.

The name decides, so that a field is of one type in all samples: by its last ending (`seg.png` is a png, `multi.cls` a
cls), with the endings that the whole package knows (`dataset.payload.content_of`, of TFRecords `image/encoded` too).
What has no decoder, such as audio, video and pickles, stays bytes, and what is no bytes (a number of a TFRecord, a
metadata column) stays as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from shardtool.dataset.payload import content_of
from shardtool.errors import InvalidRequest, SampleFailed, is_out_of_memory
from shardtool.request.choices import check_choice
from shardtool.values import OnBadSample, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from numpy.typing import NDArray
    from PIL.Image import Image

    Function = Callable[[bytes], object]

Images = Literal["numpy", "pil"]
Named = Literal["numpy", "pil", "mask", "int", "float", "text", "json", "npy"]
if TYPE_CHECKING:
    Decoder = Function | Named | None

_WHOLE_NUMBERS = frozenset(("cls", "cls2", "index", "inx", "id"))  # as for webdataset; a `label` may be a word
_SHOWN = 40  # bytes of a payload that is no number
_OLD_HEADERS = ((1, 0), (2, 0))
_BAND = 2**18  # pixels that become an array at a time
_LONGEST = 200  # characters of another library's message


@dataclass(frozen=True)
class Decode:
    """Decodes the fields of a sample.

    Images (JPEG, PNG, WebP, BMP, GIF, TIFF, PNM; what an image is, its content says) become RGB of eight bits, upright:

    - An EXIF orientation is obeyed.
    - Grey becomes three equal channels, a palette its colours, CMYK what Pillow makes of it without a colour profile;
      16 bits of grey become 8 (65535 becomes 255; of 12 bits, 4095 does), of 16-bit colours the upper eight are kept.
      Floats, signed integers, and those stored in more than 16 bits are refused, whatever their values.
    - Alpha is left out, not blended.
    - Of several frames or pages the first is taken.
    - An image of more pixels than Pillow takes (178 million), or that may take more than `max_bytes` to decode, is
      refused before any memory is given to it.
    - One that ends too early is refused (`transform.image` says where a format cannot show that).

    The decoder `mask` gives the values that are stored, for labels and depths: indices of a palette, grey as uint8 or
    uint16 (of fewer bits, too: 0 to 15 of 4), int32, float32, 0 and 1; [height, width], or [height, width, channel];
    upright too. What Pillow does not read faithfully is refused: 16-bit colours, signed bytes, integers from 2^31.

    Others: `cls`, `cls2`, `index`, `inx` and `id` become an int; `json` what it says (`jsonl` a list, a value a line);
    `txt`, `caption` and other texts a str (UTF-8); `npy` an array, without unpickling.

    Attributes:
        own: Field or ending to its decoder: a function of the bytes, the name of a decoder, or None for bytes. The
            longest ending of a field that is given here decides: `seg.png` before `png`.
        images: What images become: `numpy`, uint8 [height, width, 3], writable, or `pil`, of mode RGB.
        reduce: Width and height that are enough. A JPEG is decoded at 1/8, 1/4 or 1/2 of its size, which is faster,
            where both of its sides are no shorter then: the smallest such. Other images keep their size.
        on_error: `skip`: what cannot be decoded is left out by a stream, and counted.
        max_bytes: What decoding an image may take, such as `2GiB`, the copies that are made of it on the way included.
        only: The fields that are decoded; None: all.
    """

    own: tuple[tuple[str, Decoder], ...] = ()
    images: Images = "numpy"
    reduce: tuple[int, int] | None = None
    on_error: OnBadSample = "raise"
    max_bytes: str | int = "1GiB"
    only: frozenset[str] | None = None
    _known: dict[str, Function | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value, values in (("images", self.images, Images), ("on_error", self.on_error, OnBadSample)):
            check_choice(name, value, values)
        parse_size(self.max_bytes)
        if self.reduce is not None and not _is_size(self.reduce):
            raise InvalidRequest("reduce", repr(self.reduce), expected="width and height, such as (224, 224)")
        for name, given in self.own:
            if given is not None and not callable(given) and given not in get_args(Named):
                expected = f"a function of the bytes, None for bytes, or one of {', '.join(get_args(Named))}"
                raise InvalidRequest(f"decode({{{name!r}: ...}})", repr(given), expected=expected)

    @property
    def leaves_out(self) -> bool:
        """Whether a stream goes on without a sample that cannot be decoded."""
        return self.on_error == "skip"

    def functions(self) -> Iterator[tuple[str, object]]:
        """Yield the functions of the caller, by what a message calls them."""
        return ((f"the decoder of {name}", given) for name, given in self.own)

    def __call__(self, sample: Mapping[str, object]) -> dict[str, object]:
        """Return a sample with its fields decoded.

        Raises:
            SampleFailed: A field cannot be decoded; it names the sample and the field.
        """
        if not isinstance(sample, dict):
            raise InvalidRequest("decode", f"a {type(sample).__name__}", expected="a sample with fields: decode first")
        known, decoded = self._known, dict(sample)
        for name, value in sample.items():
            if type(value) is bytes:
                decoder = known[name] if name in known else known.setdefault(name, self._decoder(name))
                if decoder is not None:
                    try:
                        decoded[name] = decoder(value)
                    except Exception as error:
                        if is_out_of_memory(error):
                            raise
                        raise _failed(sample, name, error) from error
        return decoded

    def _decoder(self, name: str) -> Function | None:
        if self.only is not None and name not in self.only:
            return None
        own, endings = dict(self.own), name.split(".")
        for at in range(len(endings)):
            ending = ".".join(endings[at:])
            if ending in own:
                given = own[ending]
                return self._named(given) if isinstance(given, str) else given
        content, ending = content_of(name), endings[-1].lower()
        if content == "number":
            return _integer if ending in _WHOLE_NUMBERS else None
        by_name = {"image": self.images, "text": "text", "json": "jsonl" if ending == "jsonl" else "json"}
        return self._named("npy" if ending == "npy" else by_name.get(content, ""))

    def _named(self, name: str) -> Function | None:
        if name in get_args(Images):
            most = parse_size(self.max_bytes)
            return partial(_pil if name == "pil" else _numpy, reduce=self.reduce, max_bytes=most)
        if name == "mask":
            return partial(_mask, max_bytes=parse_size(self.max_bytes))
        return _BY_NAME.get(name)


def own_decoders(given: object) -> tuple[tuple[str, Decoder], ...]:
    """Return the decoders of a caller, as `Decode` keeps them.

    Raises:
        InvalidRequest: They are no mapping of field to decoder.
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        expected = "fields and their decoders, such as {'jpg': 'pil'}, or images='pil' for all images"
        raise InvalidRequest("decode", repr(given), expected=expected)
    return tuple((str(name).removeprefix("."), decoder) for name, decoder in given.items())


def _is_size(given: object) -> bool:
    """Tell whether something is a width and a height."""
    if not isinstance(given, Sequence) or len(given) != 2:  # noqa: PLR2004
        return False
    return all(isinstance(one, (int, np.integer)) and one > 0 for one in given)


def _failed(sample: Mapping[str, object], name: str, error: Exception) -> SampleFailed:
    """Return the error of a field that cannot be decoded."""
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return SampleFailed(
        f"sample {sample.get('__key__')}, field {name}",
        f"cannot be decoded: {' '.join(text.split())[:_LONGEST]}",
        remedy=f"Leave such samples out with on_error='skip', or the field as it is with decode({{{name!r}: None}}).",
    )


def _numpy(data: bytes, reduce: tuple[int, int] | None, max_bytes: int) -> NDArray[Any]:
    from shardtool.transform.image import as_rgb

    return _values(_pixels(data, least=reduce, max_bytes=max_bytes), as_rgb)


def _pil(data: bytes, reduce: tuple[int, int] | None, max_bytes: int) -> Image:
    from shardtool.transform.image import as_rgb

    return as_rgb(_pixels(data, least=reduce, max_bytes=max_bytes))


def _mask(data: bytes, max_bytes: int) -> NDArray[Any]:
    values = _values(_pixels(data, exact=True, max_bytes=max_bytes), lambda image: image)
    return np.minimum(values.view(np.uint8), 1) if values.dtype == bool else values  # Pillow's True is 255


def _pixels(data: bytes, **how: Any) -> Image:
    from shardtool.transform.image import BadImage, pixels

    try:
        return pixels(data, **how)
    except BadImage as error:
        raise ValueError(error.message) from error


def _values(image: Image, made: Callable[[Image], Image]) -> NDArray[Any]:
    """Return what `made` makes of an image as an array; by bands, for as a whole it would be there four times.

    The array is writable, as torch wants it: a twentieth slower than Pillow's read-only `asarray`.
    """
    (width, height), rows = image.size, max(1, _BAND // image.width)
    if rows >= height:
        return np.array(made(image))
    found: NDArray[Any] = np.empty(0)
    for top in range(0, height, rows):
        band = np.asarray(made(image.crop((0, top, width, min(top + rows, height)))))
        found = found if top else np.empty((height, *band.shape[1:]), band.dtype)
        found[top : top + len(band)] = band
    return found


def _integer(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise ValueError(f"no whole number: {data[:_SHOWN]!r}") from None


def _text(data: bytes) -> str:
    return data.decode()


def _json_lines(data: bytes) -> list[object]:
    return [json.loads(line) for line in data.splitlines() if line.strip()]


def read_npy(data: bytes) -> NDArray[Any]:
    """Return the array of a file of NumPy's, in memory of its own.

    What its header claims is compared with what is there before memory is given to it.

    Source: NEP 1, "A Simple File Format for NumPy Arrays".
    """
    form, stream = np.lib.format, BytesIO(data)
    version = form.read_magic(stream)
    try:
        read = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
        shape, by_column, kind = read(stream)
    except MemoryError:  # a header is short: Python's parser says so of one that is nested too deep
        raise ValueError("a header that is nested too deep") from None
    if kind.hasobject:
        raise ValueError("an array of Python objects, which only unpickling would make")
    left = len(data) - stream.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * max(1, kind.itemsize) > left:  # what takes no bytes, too
        raise ValueError(f"cut off: {left:,} bytes for the shape {shape} of {kind}")
    there: NDArray[Any] = np.ndarray(shape, kind, data, stream.tell(), order="F" if by_column else "C")
    if version in _OLD_HEADERS:
        return np.array(there, order="K")
    array: NDArray[Any] = form.read_array(BytesIO(data), allow_pickle=False)  # names of fields in UTF-8
    return array


_BY_NAME: Mapping[str, Function] = {
    "int": _integer,
    "float": float,
    "text": _text,
    "json": json.loads,
    "jsonl": _json_lines,
    "npy": read_npy,
}
