"""Decode the fields of a sample: images to pixels, and numbers, text, JSON, arrays and audio. Nothing is unpickled.

The name of a field decides its type, so that it is the same in all samples: the last ending counts (`seg.png` is a
png,
`multi.cls` a cls). Where the name tells nothing, the type that the dataset file records decides. Other fields stay
bytes.
"""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from inspect import signature
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from shardtool.dataset.payload import content_type, is_named_type
from shardtool.errors import InvalidRequest, SampleFailed, is_out_of_memory
from shardtool.request.option_checks import check_choice
from shardtool.units import parse_size
from shardtool.values import OnBadSample, ValueType

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    from shardtool.transform.image_decode import DecodingLoss

    Function = Callable[[bytes], object]


_log = logging.getLogger("shardtool")


ImageType = Literal["numpy", "pil"]


Named = Literal["numpy", "pil", "mask", "audio", "int", "float", "bool", "text", "json", "npy"]


Decoder: TypeAlias = "Function | Named | None"


_INT_FIELDS = frozenset(("cls", "cls2", "index", "inx", "id"))  # as for webdataset; a `label` may be a word


_MAX_SHOWN_BYTES = 40  # bytes of a payload that is no number


_NPY_VERSIONS = ((1, 0), (2, 0))


_BOOLEANS = {b"1": True, b"0": False, b"true": True, b"false": False, 1: True, 0: False}


_BAND_PIXELS = 2**18  # pixels that become an array at a time


_MAX_ERROR_CHARS = 200  # characters of another library's message


NewRng: TypeAlias = "Callable[[], np.random.Generator]"


RngOf: TypeAlias = "Callable[[int], np.random.Generator]"  # of a stage, by its place in the chain


def seeded_rng(_: int = 0) -> np.random.Generator:
    """Return a generator where a sample has no place in an epoch: Python's `random` says which."""
    return np.random.default_rng(random.getrandbits(64))


def has_rng_parameter(function: object) -> bool:
    """Tell whether a function has a parameter `rng`, which is not given yet."""
    if not callable(function) or (isinstance(function, partial) and "rng" in function.keywords):
        return False
    try:
        return "rng" in signature(function).parameters
    except (TypeError, ValueError):  # of some that are written in C, nothing is known
        return False


class DecodedField(NamedTuple):
    """What a decoder returns that makes more than the value of its field.

    Attributes:
        value: Of the field.
        beside: Other fields of the sample, and their values.
    """

    value: object
    beside: Mapping[str, object]


@dataclass(frozen=True)
class Decode:
    """Decodes the fields of a sample.

    Images (JPEG, PNG, WebP, BMP, GIF, TIFF, PNM; what an image is, its content says) become RGB of eight bits, upright:

    - An EXIF orientation is obeyed.
    - Grey becomes three equal channels, a palette its colours, CMYK what Pillow makes of it without a colour profile;
      16 bits of grey become 8 (65535 becomes 255; of 12 bits, 4095 does), of 16-bit colours the upper eight are kept.
      Floats, signed integers, and those stored in more than 16 bits are refused, whatever their values.
    - Alpha is left out, not blended.
    - Of several frames or pages the first is taken. For TIFF, PNG and WebP, as for bits that are lost, a warning names
      the alternative, once per field and process.
    - An image of more pixels than Pillow takes (178 million), or that may take more than `max_bytes` to decode, is
      refused before any memory is given to it.
    - One that ends too early is refused (`transform.image` says where a format cannot show that).

    The decoder `mask` gives the values that are stored, for labels and depths: indices of a palette, grey as uint8 or
    uint16 (of fewer bits, too: 0 to 15 of 4), int32, float32, 0 and 1; [height, width], or [height, width, channel];
    upright too. What Pillow does not read faithfully is refused: 16-bit colours, signed bytes, integers from 2^31.

    Others: `cls`, `cls2`, `index`, `inx` and `id` become an int; `json` what it says (`jsonl` a list, a value a line);
    `txt`, `caption` and other texts a str (UTF-8); `npy` an array, without unpickling.

    The decoder `audio` makes `Audio` of what soundfile reads: WAV, FLAC, Ogg, Opus, MP3. What may take more than
    `max_bytes`, or ends before its header says, is refused; an Ogg or MP3 may not show that it was cut.

    Attributes:
        own: Field or ending to its decoder: a function of the bytes, the name of a decoder, or None for bytes. The
            longest ending of a field that is given here decides: `seg.png` before `png`.
        images: What images become: `numpy`, uint8 [height, width, 3], writable, or `pil`, of mode RGB.
        reduce: Width and height that are enough. A JPEG is decoded at 1/8, 1/4 or 1/2 of its size, which is faster,
            where both of its sides are no shorter then: the smallest such. Other images keep their size.
        on_error: `skip`: what cannot be decoded is left out by a stream, and counted.
        max_bytes: What decoding an image or audio may take, such as `2GiB`, the copies that are made of it on the way
            included.
        only: The fields that are decoded; None: all.
        types: Field to what its values were when they were written, as the dataset file says.
    """

    own: tuple[tuple[str, Decoder], ...] = ()
    images: ImageType = "numpy"
    reduce: tuple[int, int] | None = None
    on_error: OnBadSample = "raise"
    max_bytes: str | int = "1GiB"
    only: frozenset[str] | None = None
    types: Mapping[str, ValueType] = field(default_factory=dict, repr=False, compare=False)
    draws: tuple[object, ...] = field(default=(), init=False, repr=False, compare=False)  # that ask for a generator
    _known: dict[str, Function | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value, values in (("images", self.images, ImageType), ("on_error", self.on_error, OnBadSample)):
            check_choice(name, value, values)
        parse_size(self.max_bytes)
        if self.reduce is not None and not _is_size(self.reduce):
            raise InvalidRequest("reduce", repr(self.reduce), expected="width and height, such as (224, 224)")
        for name, given in self.own:
            if given is not None and not callable(given) and given not in get_args(Named):
                expected = f"a function of the bytes, None for bytes, or one of {', '.join(get_args(Named))}"
                raise InvalidRequest(f"decode({{{name!r}: ...}})", repr(given), expected=expected)
            if given == "audio":
                _import_soundfile(f"decode({{{name!r}: 'audio'}})")
        object.__setattr__(self, "draws", tuple(given for _, given in self.own if has_rng_parameter(given)))

    @property
    def can_skip(self) -> bool:
        """Whether a stream goes on without a sample that cannot be decoded."""
        return self.on_error == "skip"

    def __call__(self, sample: Mapping[str, object], rng: NewRng = seeded_rng) -> dict[str, object]:
        """Return a sample with its fields decoded.

        Args:
            sample: The sample.
            rng: Makes the generator that decoders draw from, the same for each: two fields are cropped alike.

        Raises:
            SampleFailed: A field cannot be decoded; it names the sample and the field.
        """
        if not isinstance(sample, dict):
            raise InvalidRequest("decode", f"a {type(sample).__name__}", expected="a sample with fields: decode first")
        known, decoded = self._known, dict(sample)
        for name, value in sample.items():
            if type(value) is bytes or type(value) is int:
                decoder = known[name] if name in known else known.setdefault(name, self._decoder(name))
                if decoder is not None and (type(value) is bytes or decoder in _NUMBER_DECODERS):
                    try:
                        if self.draws and any(decoder is one for one in self.draws):
                            found: object = decoder(value, rng=rng())  # type: ignore[arg-type,call-arg]
                        else:
                            found = decoder(value)  # type: ignore[arg-type]
                        if type(found) is DecodedField:
                            decoded.update(found.beside)
                            found = found.value
                        decoded[name] = found
                    except Exception as error:
                        if is_out_of_memory(error):
                            raise
                        raise _decode_error(sample, name, error) from error
        return decoded

    def _decoder(self, name: str) -> Function | None:
        if self.only is not None and name not in self.only:
            return None
        own, endings = dict(self.own), name.split(".")
        for at in range(len(endings)):
            ending = ".".join(endings[at:])
            if ending in own:
                given = own[ending]
                return self._named(given, name) if isinstance(given, str) else given
        content, ending = content_type(name), endings[-1].lower()
        if not is_named_type(name):
            kind = self.types.get(name) or ("int64" if ending in _INT_FIELDS else "")
            return self._named("int" if kind == "int64" else kind, name)
        by_name = {"image": self.images, "text": "text", "json": "jsonl" if ending == "jsonl" else "json"}
        return self._named("npy" if ending == "npy" else by_name.get(content, ""), name)

    def _named(self, name: str, of_field: str) -> Function | None:
        most = parse_size(self.max_bytes)
        if name in get_args(ImageType):
            return partial(_decode_rgb, images=name, reduce=self.reduce, max_bytes=most, name=of_field)
        if name in ("mask", "audio"):
            return partial(_decode_mask if name == "mask" else _decode_audio, max_bytes=most)
        return _DECODERS.get(name)


def check_decoders(given: object) -> tuple[tuple[str, Decoder], ...]:
    """Return the decoders of a caller, as `Decode` keeps them.

    Raises:
        InvalidRequest: They are no mapping of field to decoder.
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        expected = "fields and their decoders, such as {'jpg': 'pil'}, or images='pil' for all (else: uint8 in RGB)"
        raise InvalidRequest("decode", repr(given), expected=expected)
    return tuple((str(name).removeprefix("."), decoder) for name, decoder in given.items())


def _is_size(given: object) -> bool:
    """Tell whether something is a width and a height."""
    if not isinstance(given, Sequence) or len(given) != 2:  # noqa: PLR2004
        return False
    return all(isinstance(one, (int, np.integer)) and one > 0 for one in given)


def _decode_error(sample: Mapping[str, object], name: str, error: Exception) -> SampleFailed:
    """Return the error of a field that cannot be decoded."""
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return SampleFailed(
        f"sample {sample.get('__key__')}, field {name}",
        f"cannot be decoded: {' '.join(text.split())[:_MAX_ERROR_CHARS]}",
        remedy=f"Leave such samples out with on_error='skip', or the field as it is with decode({{{name!r}: None}}).",
    )


_FUNCTION_EXAMPLE = "decode({{{0!r}: FUNCTION}}) calls a function of the bytes, such as lambda data: "


_LOSS_MESSAGES: Mapping[DecodingLoss, tuple[str, str]] = {
    "grey bits": (
        "grey values of more than 8 bits are reduced to 8",
        "decode({{{0!r}: 'mask'}}) returns the stored values",
    ),
    "colour bits": (
        "colours of more than 8 bits are reduced to 8",
        f"{_FUNCTION_EXAMPLE}cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)",
    ),
    "pages": (
        "only the first of several frames or pages is decoded",
        f"{_FUNCTION_EXAMPLE}[np.array(page) for page in PIL.ImageSequence.Iterator(PIL.Image.open(io.BytesIO(data)))]",
    ),
}


@cache
def warn_about_loss(field: str, loss: DecodingLoss) -> None:
    """Warn once per field and process that decoding does not keep all of an image, and name the alternative."""
    found, remedy = _LOSS_MESSAGES[loss]
    _log.warning("field %s: %s. %s.", field, found, remedy.format(field))


def _decode_rgb(
    data: bytes, images: str, reduce: tuple[int, int] | None, max_bytes: int, name: str
) -> NDArray[Any] | Image:
    from shardtool.transform.image_decode import decode_image, to_rgb
    from shardtool.transform.jpeg import decode_jpeg_fast

    if images == "numpy" and (array := decode_jpeg_fast(data, least=reduce, max_bytes=max_bytes)) is not None:
        return array
    image = decode_image(data, least=reduce, max_bytes=max_bytes, on_loss=partial(warn_about_loss, name))
    return to_rgb(image) if images == "pil" else _to_array(image, to_rgb)


def _decode_mask(data: bytes, max_bytes: int) -> NDArray[Any]:
    from shardtool.transform.image_decode import decode_image

    values = _to_array(decode_image(data, exact=True, max_bytes=max_bytes), lambda image: image)
    return np.minimum(values.view(np.uint8), 1) if values.dtype == bool else values  # Pillow's True is 255


def _to_array(image: Image, made: Callable[[Image], Image]) -> NDArray[Any]:
    """Return what `made` makes of an image as an array; by bands, for as a whole it would be there four times.

    The array is writable, as torch wants it: a twentieth slower than Pillow's read-only `asarray`.
    """
    (width, height), rows = image.size, max(1, _BAND_PIXELS // image.width)
    if rows >= height:
        return np.array(made(image))
    found: NDArray[Any] = np.empty(0)
    for top in range(0, height, rows):
        band = np.asarray(made(image.crop((0, top, width, min(top + rows, height)))))
        found = found if top else np.empty((height, *band.shape[1:]), band.dtype)
        found[top : top + len(band)] = band
    return found


class Audio(NamedTuple):
    """What the decoder `audio` gives.

    Attributes:
        samples: float32 [channels, frames], -1 to 1, as torchaudio has them.
        rate: Frames a second.
    """

    samples: NDArray[np.float32]
    rate: int


_AUDIO_COPIES = 2  # of decoded audio: as it is read, and with its channels apart


_UNKNOWN_FRAMES = 2**62  # frames and more: of a FLAC that was written into a pipe


_STREAMED_WAV_BYTES = 2**31 - 2**16  # bytes and more, or none: what a WAV claims that was written into a pipe


def _import_soundfile(where: str) -> Any:
    """Return the library that decodes audio.

    Raises:
        InvalidRequest: It is not installed.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:  # or what it is made of is not
        found = f"soundfile cannot be imported: {error}"
        raise InvalidRequest(where, found, remedy="Run `pip install 'shardtool[audio]'`.") from None
    return soundfile


def _decode_audio(data: bytes, max_bytes: int) -> Audio:
    library = _import_soundfile("audio")
    claim = int.from_bytes(data[4:8], "little") if data[:4] == b"RIFF" else 0
    if claim and len(data) - 7 < claim < _STREAMED_WAV_BYTES:  # one byte may fill up what is odd
        raise ValueError(f"the audio ends too early: {len(data):,} bytes of {claim + 8:,}")
    try:
        with library.SoundFile(BytesIO(data)) as file:
            most, claimed = max_bytes // (_AUDIO_COPIES * 4 * file.channels), file.frames
            if claimed > most:
                shown = f"{claimed:,} frames" if claimed < _UNKNOWN_FRAMES else "a length that its header does not say"
                raise ValueError(f"audio of {shown}; {most:,} frames are the most that fit")
            samples = file.read(dtype="float32", always_2d=True)
            if len(samples) < claimed:
                raise ValueError(f"the audio ends too early: {len(samples):,} frames of {claimed:,}")
            return Audio(np.ascontiguousarray(samples.T), int(file.samplerate))
    except library.LibsndfileError as error:
        raise ValueError(f"no audio that soundfile reads: {error.error_string.rstrip('.')}") from None


def _decode_int(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise ValueError(f"no whole number: {data[:_MAX_SHOWN_BYTES]!r}") from None


def _decode_bool(data: bytes | int) -> bool:
    found = _BOOLEANS.get(data.strip().lower() if isinstance(data, bytes) else data)
    if found is None:
        raise ValueError(f"neither true nor false: {data if isinstance(data, int) else data[:_MAX_SHOWN_BYTES]!r}")
    return found


def _decode_json_lines(data: bytes) -> list[object]:
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
    if version in _NPY_VERSIONS:
        return np.array(there, order="K")
    array: NDArray[Any] = form.read_array(BytesIO(data), allow_pickle=False)  # names of fields in UTF-8
    return array


_DECODERS: Mapping[str, Function] = {
    "int": _decode_int,
    "float": float,
    "bool": _decode_bool,
    "text": bytes.decode,
    "json": json.loads,
    "jsonl": _decode_json_lines,
    "npy": read_npy,
}


_NUMBER_DECODERS = (float, _decode_bool)  # what a whole number of a TFRecord may become, too


Size = tuple[int, int]
