"""Decode the fields of a sample by their extensions, without unpickling."""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache, partial
from inspect import signature
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from shardtool.dataclass import dataclass
from shardtool.dataset.payload import content_type, is_named_type
from shardtool.errors import InvalidRequest, SampleFailed, is_out_of_memory
from shardtool.request.option_checks import check_choice
from shardtool.storage.shared_blocks import ForkLock
from shardtool.units import parse_size
from shardtool.values import OnError, ValueType

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    from shardtool.transform.image_decode import DecodingLoss

    Function = Callable[[bytes], object]


_log = logging.getLogger("shardtool")
ImageType = Literal["numpy", "pil"]
Named = Literal["numpy", "pil", "mask", "audio", "int", "float", "bool", "text", "json", "npy"]
Decoder: TypeAlias = "Function | Named | None"
# fields decoded to int, as in webdataset
_INT_FIELDS = frozenset(("cls", "cls2", "index", "inx", "id"))
_MAX_SHOWN_BYTES = 40
_NPY_VERSIONS = ((1, 0), (2, 0))
_PARSER_LOCK = ForkLock()
_BOOLEANS = {b"1": True, b"0": False, b"true": True, b"false": False, 1: True, 0: False}
_BAND_PIXELS = 2**18  # large images are converted in bands of this size
_MAX_ERROR_CHARS = 200
NewRng: TypeAlias = "Callable[[], np.random.Generator]"
RngOf: TypeAlias = "Callable[[int], np.random.Generator]"  # returns the generator of the stage with this index


def seeded_rng(_: int = 0) -> np.random.Generator:
    """Return a generator seeded from Python's `random`, for samples read outside a stream."""
    return np.random.default_rng(random.getrandbits(64))


def has_rng_parameter(function: object) -> bool:
    """Return whether a function has a parameter `rng`. Return False if a `partial` sets it."""
    if not callable(function) or (isinstance(function, partial) and "rng" in function.keywords):
        return False
    try:
        return "rng" in signature(function).parameters
    except (TypeError, ValueError):  # some C functions have no signature
        return False


class DecodedField(NamedTuple):
    """The result of a decoder that adds other fields to the sample."""

    value: object
    extra_fields: Mapping[str, object]


@dataclass(frozen=True)
class Decode:
    """Decodes the fields of a sample. For the options, see `PipelineMethods.decode` and docs/training.md.

    Images (JPEG, PNG, WebP, BMP, GIF, TIFF, PNM) become upright 8-bit RGB:

    - Alpha is dropped, not blended.
    - Grey becomes three equal channels. Palette indices become colours. Colour profiles are ignored, even for CMYK.
    - 16-bit grey is scaled: 65535 becomes 255. In a 12-bit image, 4095 becomes 255.
    - 16-bit colours keep the upper eight bits.
    - Float images, signed images, and images with more than 16 bits are rejected.
    - A warning reports lost bits, or lost frames of a TIFF, PNG or WebP, once per field and process.
    - Truncated images are rejected. An image that has more pixels than Pillow accepts (178 million), or may need more
      than `max_bytes`, is rejected before memory is allocated.

    The decoder `mask` returns the stored values of the upright image, [height, width] or [height, width, channel]. The
    values are palette indices, grey levels as uint8 or uint16 (0 to 15 for 4 bits), int32, float32, or 0 and 1 for a
    1-bit image. The decoder rejects images if Pillow would change their values: 16-bit colours, signed bytes, and
    integers of 2^31 or more.

    The decoder `audio` returns `Audio` for WAV, FLAC, Ogg, Opus and MP3. Audio is rejected if it may need more than
    `max_bytes`, or is shorter than its header claims. A truncated Ogg or MP3 may not be detected.

    Attributes:
        on_error: `raise` or `skip`. None means the value passed to `open`.
        only: The fields to decode, or None for all.
        types: Value type of each field, from the dataset file.
    """

    own: tuple[tuple[str, Decoder], ...] = ()
    images: ImageType = "numpy"
    reduce: tuple[int, int] | None = None
    on_error: OnError | None = None
    max_bytes: str | int = "1GiB"
    only: frozenset[str] | None = None
    types: Mapping[str, ValueType] = field(default_factory=dict, repr=False, compare=False)
    uses_rng: bool = field(default=False, init=False, repr=False, compare=False)
    _rng_decoders: tuple[object, ...] = field(default=(), init=False, repr=False, compare=False)
    _decoders: dict[str, Function | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_choice("images", self.images, ImageType)
        check_choice("on_error", self.on_error or "raise", OnError)
        parse_size(self.max_bytes)
        if self.reduce is not None and not _is_size(self.reduce):
            raise InvalidRequest("reduce", repr(self.reduce), expected="width and height, such as (224, 224)")
        for name, decoder in self.own:
            if decoder is not None and not callable(decoder) and decoder not in get_args(Named):
                expected = f"a function of the bytes, None for bytes, or one of {', '.join(get_args(Named))}"
                raise InvalidRequest(f"decode({{{name!r}: ...}})", repr(decoder), expected=expected)
            if decoder == "audio":
                _import_soundfile(f"decode({{{name!r}: 'audio'}})")
        rng_decoders = tuple(decoder for _, decoder in self.own if has_rng_parameter(decoder))
        object.__setattr__(self, "_rng_decoders", rng_decoders)
        object.__setattr__(self, "uses_rng", bool(rng_decoders))

    @property
    def can_skip(self) -> bool:
        """Whether a stream skips samples that cannot be decoded."""
        return self.on_error == "skip"

    def __call__(self, sample: Mapping[str, object], rng: NewRng = seeded_rng) -> dict[str, object]:
        """Return the decoded sample.

        In a stream, all decoders with a parameter `rng` get generators in the same state, so an image and its mask get
        the same random crop.
        """
        if not isinstance(sample, dict):
            raise InvalidRequest("decode", f"a {type(sample).__name__}", expected="a dict: call decode first")
        decoders, decoded = self._decoders, dict(sample)
        for name, value in sample.items():
            if type(value) is bytes or type(value) is int:
                decoder = decoders[name] if name in decoders else decoders.setdefault(name, self._find_decoder(name))
                if decoder is not None and (type(value) is bytes or decoder in _NUMBER_DECODERS):
                    try:
                        if self.uses_rng and any(decoder is rng_decoder for rng_decoder in self._rng_decoders):
                            result: object = decoder(value, rng=rng())  # type: ignore[arg-type,call-arg]
                        else:
                            result = decoder(value)  # type: ignore[arg-type]
                        if type(result) is DecodedField:
                            decoded.update(result.extra_fields)
                            result = result.value
                        decoded[name] = result
                    except Exception as error:
                        if is_out_of_memory(error):
                            raise
                        raise _decode_error(sample, name, error) from error
        return decoded

    def _find_decoder(self, name: str) -> Function | None:
        if self.only is not None and name not in self.only:
            return None
        own_decoders, parts = dict(self.own), name.split(".")
        for start in range(len(parts)):
            ending = ".".join(parts[start:])
            if ending in own_decoders:
                decoder = own_decoders[ending]
                return self._named_decoder(decoder, name) if isinstance(decoder, str) else decoder
        extension = parts[-1].lower()
        if not is_named_type(name):
            value_type = self.types.get(name) or ("int64" if extension in _INT_FIELDS else "")
            return self._named_decoder("int" if value_type == "int64" else value_type, name)
        by_content = {"image": self.images, "text": "text", "json": "jsonl" if extension == "jsonl" else "json"}
        decoder_name = "npy" if extension == "npy" else by_content.get(content_type(name), "")
        return self._named_decoder(decoder_name, name)

    def _named_decoder(self, name: str, field_name: str) -> Function | None:
        max_bytes = parse_size(self.max_bytes)
        if name in get_args(ImageType):
            return partial(_decode_rgb, images=name, reduce=self.reduce, max_bytes=max_bytes, name=field_name)
        if name in ("mask", "audio"):
            return partial(_decode_mask if name == "mask" else _decode_audio, max_bytes=max_bytes)
        return _DECODERS.get(name)


def check_decoders(decoders: object) -> tuple[tuple[str, Decoder], ...]:
    """Return the decoders as pairs of field and decoder, or raise InvalidRequest."""
    if decoders is None:
        return ()
    if not isinstance(decoders, Mapping):
        expected = "fields and their decoders, such as {'jpg': 'pil'}; or images='pil' for all images"
        raise InvalidRequest("decode", repr(decoders), expected=expected)
    return tuple((str(name).removeprefix("."), decoder) for name, decoder in decoders.items())


def _is_size(value: object) -> bool:
    if not isinstance(value, Sequence) or len(value) != 2:  # noqa: PLR2004
        return False
    return all(isinstance(side, (int, np.integer)) and side > 0 for side in value)


def _decode_error(sample: Mapping[str, object], name: str, error: Exception) -> SampleFailed:
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return SampleFailed(
        f"sample {sample.get('__key__')}, field {name}",
        f"cannot be decoded: {' '.join(text.split())[:_MAX_ERROR_CHARS]}",
        remedy=f"Skip such samples with on_error='skip', or keep the field as bytes with decode({{{name!r}: None}}).",
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
    """Warn once per field and process that decoding loses pages or bits of an image."""
    loss_message, remedy = _LOSS_MESSAGES[loss]
    _log.warning("field %s: %s. %s.", field, loss_message, remedy.format(field))


def _decode_rgb(
    data: bytes, images: str, reduce: tuple[int, int] | None, max_bytes: int, name: str
) -> NDArray[Any] | Image:
    from shardtool.transform.image_decode import decode_image, to_rgb
    from shardtool.transform.jpeg import decode_jpeg_fast

    if images == "numpy" and (array := decode_jpeg_fast(data, min_size=reduce, max_bytes=max_bytes)) is not None:
        return array
    image = decode_image(data, min_size=reduce, max_bytes=max_bytes, on_loss=partial(warn_about_loss, name))
    return to_rgb(image) if images == "pil" else _to_array(image, to_rgb)


def _decode_mask(data: bytes, max_bytes: int) -> NDArray[Any]:
    from shardtool.transform.image_decode import decode_image

    values = _to_array(decode_image(data, exact=True, max_bytes=max_bytes), lambda image: image)
    return np.minimum(values.view(np.uint8), 1) if values.dtype == bool else values  # Pillow stores True as 255


def _to_array(image: Image, convert: Callable[[Image], Image]) -> NDArray[Any]:
    width, height = image.size
    rows = max(1, _BAND_PIXELS // width)
    if rows >= height:
        return np.array(convert(image))
    array: NDArray[Any] = np.empty(0)
    for top in range(0, height, rows):
        band = np.asarray(convert(image.crop((0, top, width, min(top + rows, height)))))
        array = array if top else np.empty((height, *band.shape[1:]), band.dtype)
        array[top : top + len(band)] = band
    return array


class Audio(NamedTuple):
    """Decoded audio.

    Attributes:
        samples: Values from -1 to 1, float32 [channels, frames], as in torchaudio.
        rate: Frames per second.
    """

    samples: NDArray[np.float32]
    rate: int


_AUDIO_COPIES = 2  # decoding needs memory for the audio and a transposed copy
_UNKNOWN_FRAMES = 2**62  # a FLAC written to a pipe claims at least this many frames
_STREAMED_WAV_BYTES = 2**31 - 2**16  # a WAV written to a pipe claims 0 bytes, or at least this many


def _import_soundfile(where: str) -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: libsndfile is missing
        found = f"soundfile cannot be imported: {error}"
        raise InvalidRequest(where, found, remedy="Run `pip install 'shardtool[audio]'`.") from None
    return soundfile


def _decode_audio(data: bytes, max_bytes: int) -> Audio:
    library = _import_soundfile("audio")
    claimed_bytes = int.from_bytes(data[4:8], "little") if data[:4] == b"RIFF" else 0  # length of data[8:]
    if claimed_bytes and len(data) - 7 < claimed_bytes < _STREAMED_WAV_BYTES:  # the padding byte may be missing
        raise ValueError(f"the audio ends too early: {len(data):,} bytes of {claimed_bytes + 8:,}")
    try:
        with library.SoundFile(BytesIO(data)) as file:
            max_frames = max_bytes // (_AUDIO_COPIES * 4 * file.channels)
            if file.frames > max_frames:
                shown = f"{file.frames:,} frames" if file.frames < _UNKNOWN_FRAMES else "unknown length"
                raise ValueError(f"audio of {shown}; at most {max_frames:,} frames fit into max_bytes")
            samples = file.read(dtype="float32", always_2d=True)
            if len(samples) < file.frames:
                raise ValueError(f"the audio ends too early: {len(samples):,} frames of {file.frames:,}")
            return Audio(np.ascontiguousarray(samples.T), int(file.samplerate))
    except library.LibsndfileError as error:
        raise ValueError(f"soundfile cannot read the audio: {error.error_string.rstrip('.')}") from None


def _decode_int(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise ValueError(f"not a whole number: {data[:_MAX_SHOWN_BYTES]!r}") from None


def _decode_bool(data: bytes | int) -> bool:
    value = _BOOLEANS.get(data.strip().lower() if isinstance(data, bytes) else data)
    if value is None:
        raise ValueError(f"neither true nor false: {data if isinstance(data, int) else data[:_MAX_SHOWN_BYTES]!r}")
    return value


def _decode_json_lines(data: bytes) -> list[object]:
    return [json.loads(line) for line in data.splitlines() if line.strip()]


def read_npy(data: bytes) -> NDArray[Any]:
    """Return the array of a `.npy` file. Check the claimed size before allocating memory.

    Raises:
        ValueError: The file is damaged, or contains Python objects.

    Source: NEP 1, "A Simple File Format for NumPy Arrays".
    """
    npy_format, stream = np.lib.format, BytesIO(data)
    version = npy_format.read_magic(stream)
    try:
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        with _PARSER_LOCK:  # Python 3.11 and 3.12 can raise SystemError if several threads parse headers
            shape, by_column, dtype = read(stream)
    except Exception as error:  # noqa: BLE001 - NumPy raises errors of many kinds for a damaged header
        # Python's parser raises MemoryError for deep nesting
        is_deep = isinstance(error, (MemoryError, RecursionError))
        raise ValueError("its header is nested too deeply" if is_deep else f"an invalid header: {error}") from None
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which would have to be unpickled")
    available = len(data) - stream.tell()
    # max(1, ...), because a dtype of size 0 would otherwise allow every shape
    if min(shape, default=0) < 0 or math.prod(shape) * max(1, dtype.itemsize) > available:
        raise ValueError(f"truncated: {available:,} bytes for shape {shape} of {dtype}")
    view: NDArray[Any] = np.ndarray(shape, dtype, data, stream.tell(), order="F" if by_column else "C")
    if version in _NPY_VERSIONS:
        return np.array(view, order="K")
    # version 3 stores field names in UTF-8, so NumPy must parse the header again
    array: NDArray[Any] = npy_format.read_array(BytesIO(data), allow_pickle=False)
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


# these decoders also convert an int from a TFRecord
_NUMBER_DECODERS = (float, _decode_bool)
Size = tuple[int, int]
