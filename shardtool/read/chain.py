"""What is done to samples on their way to training: a short chain of stages, which `Dataset` and `Stream` share.

A stage is a picklable value: a function of one sample, but for `Batch`, which takes several. `Stages.run` takes no
more samples than what it has given needs, so that the position of the stream below is that of what came out.

`Decode` makes pixels, numbers, text, JSON and arrays of a field's bytes; nothing is unpickled. Its name decides,
so that it is of one type in all samples: by its last ending (`seg.png` is a png, `multi.cls` a cls), with the endings
that the whole package knows (`dataset.payload.content_of`, of TFRecords `image/encoded` too). Where the name says
nothing, or that it is a label, the type decides that the dataset file has of the field: a number, text, true or false,
JSON, as it was written. What has no decoder, such as audio, video and pickles, stays bytes, and what is no bytes (a
number of a TFRecord, a metadata column) stays as it is.
"""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, partial, wraps
from inspect import signature
from io import BytesIO
from itertools import chain, islice
from numbers import Integral
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, ParamSpec, TypeAlias, TypeVar, cast, get_args

import numpy as np

from shardtool.dataset.payload import content_of, is_told_by_name
from shardtool.errors import InvalidRequest, SampleFailed, is_out_of_memory, listing
from shardtool.request.settings import check_choice
from shardtool.values import OnBadSample, ValueType, parse_size

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image
    from typing_extensions import Self

    from shardtool.transform.image import Loss

    Function = Callable[[bytes], object]

_log = logging.getLogger("shardtool")
_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")
Images = Literal["numpy", "pil"]
Named = Literal["numpy", "pil", "mask", "audio", "int", "float", "bool", "text", "json", "npy"]
Decoder: TypeAlias = "Function | Named | None"

_WHOLE_NUMBERS = frozenset(("cls", "cls2", "index", "inx", "id"))  # as for webdataset; a `label` may be a word
_SHOWN = 40  # bytes of a payload that is no number
_OLD_HEADERS = ((1, 0), (2, 0))
_TRUTHS = {b"1": True, b"0": False, b"true": True, b"false": False, 1: True, 0: False}
_BAND = 2**18  # pixels that become an array at a time
_LONGEST = 200  # characters of another library's message


NewRng: TypeAlias = "Callable[[], np.random.Generator]"
RngOf: TypeAlias = "Callable[[int], np.random.Generator]"  # of a stage, by its place in the chain


def any_rng(_: int = 0) -> np.random.Generator:
    """Return a generator where a sample has no place in an epoch: Python's `random` says which."""
    return np.random.default_rng(random.getrandbits(64))


def asks_for_rng(function: object) -> bool:
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
    images: Images = "numpy"
    reduce: tuple[int, int] | None = None
    on_error: OnBadSample = "raise"
    max_bytes: str | int = "1GiB"
    only: frozenset[str] | None = None
    types: Mapping[str, ValueType] = field(default_factory=dict, repr=False, compare=False)
    draws: tuple[object, ...] = field(default=(), init=False, repr=False, compare=False)  # that ask for a generator
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
            if given == "audio":
                _soundfile(f"decode({{{name!r}: 'audio'}})")
        object.__setattr__(self, "draws", tuple(given for _, given in self.own if asks_for_rng(given)))

    @property
    def leaves_out(self) -> bool:
        """Whether a stream goes on without a sample that cannot be decoded."""
        return self.on_error == "skip"

    def __call__(self, sample: Mapping[str, object], rng: NewRng = any_rng) -> dict[str, object]:
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
                if decoder is not None and (type(value) is bytes or decoder in _OF_NUMBERS):
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
                return self._named(given, name) if isinstance(given, str) else given
        content, ending = content_of(name), endings[-1].lower()
        if not is_told_by_name(name):
            kind = self.types.get(name) or ("int64" if ending in _WHOLE_NUMBERS else "")
            return self._named("int" if kind == "int64" else kind, name)
        by_name = {"image": self.images, "text": "text", "json": "jsonl" if ending == "jsonl" else "json"}
        return self._named("npy" if ending == "npy" else by_name.get(content, ""), name)

    def _named(self, name: str, of_field: str) -> Function | None:
        most = parse_size(self.max_bytes)
        if name in get_args(Images):
            return partial(_rgb, images=name, reduce=self.reduce, max_bytes=most, name=of_field)
        if name in ("mask", "audio"):
            return partial(_mask if name == "mask" else _audio, max_bytes=most)
        return _BY_NAME.get(name)


def own_decoders(given: object) -> tuple[tuple[str, Decoder], ...]:
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


def _failed(sample: Mapping[str, object], name: str, error: Exception) -> SampleFailed:
    """Return the error of a field that cannot be decoded."""
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return SampleFailed(
        f"sample {sample.get('__key__')}, field {name}",
        f"cannot be decoded: {' '.join(text.split())[:_LONGEST]}",
        remedy=f"Leave such samples out with on_error='skip', or the field as it is with decode({{{name!r}: None}}).",
    )


_CALLS = "decode({{{0!r}: FUNCTION}}) calls a function of the bytes, such as lambda data: "
_LOSSES: Mapping[Loss, tuple[str, str]] = {
    "grey bits": (
        "grey values of more than 8 bits are reduced to 8",
        "decode({{{0!r}: 'mask'}}) returns the stored values",
    ),
    "colour bits": (
        "colours of more than 8 bits are reduced to 8",
        f"{_CALLS}cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)",
    ),
    "pages": (
        "only the first of several frames or pages is decoded",
        f"{_CALLS}[np.array(page) for page in PIL.ImageSequence.Iterator(PIL.Image.open(io.BytesIO(data)))]",
    ),
}


@cache
def warn_of_loss(field: str, loss: Loss) -> None:
    """Warn once per field and process that decoding does not keep all of an image, and name the alternative."""
    found, remedy = _LOSSES[loss]
    _log.warning("field %s: %s. %s.", field, found, remedy.format(field))


def _rgb(data: bytes, images: str, reduce: tuple[int, int] | None, max_bytes: int, name: str) -> NDArray[Any] | Image:
    from shardtool.transform.image import as_rgb, decoded_jpeg, pixels

    if images == "numpy" and (array := decoded_jpeg(data, least=reduce, max_bytes=max_bytes)) is not None:
        return array
    image = pixels(data, least=reduce, max_bytes=max_bytes, on_loss=partial(warn_of_loss, name))
    return as_rgb(image) if images == "pil" else _values(image, as_rgb)


def _mask(data: bytes, max_bytes: int) -> NDArray[Any]:
    from shardtool.transform.image import pixels

    values = _values(pixels(data, exact=True, max_bytes=max_bytes), lambda image: image)
    return np.minimum(values.view(np.uint8), 1) if values.dtype == bool else values  # Pillow's True is 255


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


class Audio(NamedTuple):
    """What the decoder `audio` gives.

    Attributes:
        samples: float32 [channels, frames], -1 to 1, as torchaudio has them.
        rate: Frames a second.
    """

    samples: NDArray[np.float32]
    rate: int


_COPIES = 2  # of decoded audio: as it is read, and with its channels apart
_UNKNOWN = 2**62  # frames and more: of a FLAC that was written into a pipe
_ENDLESS = 2**31 - 2**16  # bytes and more, or none: what a WAV claims that was written into a pipe


def _soundfile(where: str) -> Any:
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


def _audio(data: bytes, max_bytes: int) -> Audio:
    library = _soundfile("audio")
    claim = int.from_bytes(data[4:8], "little") if data[:4] == b"RIFF" else 0
    if claim and len(data) - 7 < claim < _ENDLESS:  # one byte may fill up what is odd
        raise ValueError(f"the audio ends too early: {len(data):,} bytes of {claim + 8:,}")
    try:
        with library.SoundFile(BytesIO(data)) as file:
            most, claimed = max_bytes // (_COPIES * 4 * file.channels), file.frames
            if claimed > most:
                shown = f"{claimed:,} frames" if claimed < _UNKNOWN else "a length that its header does not say"
                raise ValueError(f"audio of {shown}; {most:,} frames are the most that fit")
            samples = file.read(dtype="float32", always_2d=True)
            if len(samples) < claimed:
                raise ValueError(f"the audio ends too early: {len(samples):,} frames of {claimed:,}")
            return Audio(np.ascontiguousarray(samples.T), int(file.samplerate))
    except library.LibsndfileError as error:
        raise ValueError(f"no audio that soundfile reads: {error.error_string.rstrip('.')}") from None


def _integer(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise ValueError(f"no whole number: {data[:_SHOWN]!r}") from None


def _truth(data: bytes | int) -> bool:
    found = _TRUTHS.get(data.strip().lower() if isinstance(data, bytes) else data)
    if found is None:
        raise ValueError(f"neither true nor false: {data if isinstance(data, int) else data[:_SHOWN]!r}")
    return found


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
    "bool": _truth,
    "text": bytes.decode,
    "json": json.loads,
    "jsonl": _json_lines,
    "npy": read_npy,
}
_OF_NUMBERS = (float, _truth)  # what a whole number of a TFRecord may become, too


# Samples become a batch: arrays where their values allow it, lists where not.


Lists: TypeAlias = Sequence[str | int]
_NUMBERS = {int: np.int64, float: np.float64, bool: np.bool_}


@dataclass(frozen=True)
class Batch:
    """Makes a batch of so many samples; see `collate`."""

    size: int
    drop_last: bool = False
    lists: Lists = ()

    def __post_init__(self) -> None:
        if not isinstance(self.size, Integral) or self.size < 1:
            raise InvalidRequest("batch", repr(self.size), expected="1 or more samples")

    def count(self, samples: int) -> int:
        """Return how many batches so many samples make."""
        return samples // self.size if self.drop_last else -(-samples // self.size)

    def over(self, samples: Iterable[object]) -> Iterator[object]:
        """Yield batches; the last may be smaller."""
        samples = iter(samples)
        while some := list(islice(samples, self.size)):
            if len(some) == self.size or not self.drop_last:
                yield collate(some, self.lists)


def collate(samples: list[Any], lists: Lists = ()) -> object:
    """Return samples as one batch.

    Dicts become a dict of batched fields, tuples a tuple. A field becomes an array [samples, ...] where its values are
    arrays of one shape and type, or numbers: int64, float64 or bool. Otherwise it becomes a list.

    Args:
        samples: Dicts, tuples or values.
        lists: Fields, or places in tuples, that become a list in any case: whether a batch has one must not depend on
            which samples it has.

    Raises:
        InvalidRequest: There is no such field.
        SampleFailed: A sample lacks a field of another, or has another form.
    """
    form, first = parts_of(samples[0])
    alike = len({*map(type, samples)}) == 1 and (form is object or len({*map(len, samples)}) == 1)
    if not alike or (form is dict and any(one.keys() != first.keys() for one in samples)):
        check_alike([(parts.get("__key__"), form, parts) for form, parts in map(parts_of, samples)])
    if form is not object:
        check_lists(lists, first)
    if form is dict:
        columns = [[sample[name] for sample in samples] for name in first]
    else:
        columns = [[*values] for values in zip(*samples, strict=True)] if form is tuple else [samples]
    fields = zip(first, columns, strict=True)
    return whole_of(form, {name: values if name in lists else _joined(values) for name, values in fields})


def parts_of(sample: object) -> tuple[type, Mapping[object, object]]:
    """Return the form of a sample, which is the same for all of a batch, and its fields, or its values by place."""
    if isinstance(sample, dict):
        return dict, sample
    return (tuple, dict(enumerate(sample))) if isinstance(sample, tuple) else (object, {0: sample})


def whole_of(form: type, parts: dict[object, object]) -> object:
    """Return what has a form, and these parts."""
    if form is dict:
        return parts
    return tuple(parts.values()) if form is tuple else parts[0]


def check_alike(samples: Sequence[tuple[object, type, Collection[object]]]) -> None:
    """Refuse samples that make no batch, by the key, the form and the fields of each.

    Raises:
        SampleFailed: A sample lacks a field of another, or has another form.
    """
    first, form, fields = samples[0]
    expected = {*fields}
    for key, own, found in samples:
        if own is not form or (form is tuple and len(found) != len(fields)):
            raise SampleFailed(_named(key), "not of the same form as the first of its batch")
        if differing := expected.symmetric_difference(found):
            name = min(differing, key=str)
            remedy = f"select({name!r}, ..., missing='none') before gives None, missing='skip' leaves such samples out."
            what = f"no field {name}, as others of its batch have"
            raise SampleFailed(_named(first if name in found else key), what, remedy=remedy)


def check_lists(lists: Lists, fields: Iterable[object]) -> None:
    """Refuse a name among `lists` that no field has.

    Raises:
        InvalidRequest: There is one.
    """
    if isinstance(lists, str):
        raise InvalidRequest("lists", repr(lists), expected=f"names of fields: ({lists!r},)")
    there = [*fields]
    if lists and (others := [one for one in lists if one not in there]):
        named = listing([str(one) for one in there if str(one)[:2] != "__"])
        raise InvalidRequest("lists", repr(others[0]), expected=f"fields of the samples: {named}")


def _joined(values: list[object]) -> NDArray[np.generic] | list[object]:
    kinds = {type(value) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else float if kinds == {int, float} else object
    if kind is np.ndarray:
        arrays = cast("list[NDArray[np.generic]]", values)
        return np.stack(arrays) if len({(one.shape, one.dtype) for one in arrays}) == 1 else values
    if kind in _NUMBERS or issubclass(kind, np.number):
        try:
            return np.array(values, _NUMBERS.get(kind))
        except OverflowError:  # more than 64 bits
            return values
    return values


Missing = Literal["error", "skip", "none"]
Size = tuple[int, int]
OnSkip: TypeAlias = "Callable[[SampleFailed], object]"
_OWN = ("__key__", "__dataset__", "__padding__")  # what every sample keeps


@dataclass(frozen=True)
class Map:
    """Calls a function with each sample, or whatever the stage before it gives; None: the sample is left out."""

    function: Callable[..., object]
    draws: bool = field(default=False, init=False, repr=False, compare=False)
    leaves_out = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidRequest(_call(self), repr(self.function), expected="a function of a sample")
        object.__setattr__(self, "draws", asks_for_rng(self.function))

    def __call__(self, sample: object, rng: NewRng = any_rng) -> object:
        """Return what the function makes of a sample, and of the generator that it may ask for."""
        return self.function(sample, rng=rng()) if self.draws else self.function(sample)


class Filter(Map):
    """Leaves out samples for which a function is false."""

    leaves_out = True

    def __call__(self, sample: object, rng: NewRng = any_rng) -> object:
        """Return the sample, or None."""
        return sample if super().__call__(sample, rng) else None


@dataclass(frozen=True)
class _FieldStage:
    """A stage that takes fields by their names.

    Attributes:
        names: The fields.
        missing: What becomes of a sample that lacks one: an `error`, `skip` (a stream leaves it out, and counts it),
            or `none`: the field is None.
    """

    draws = False
    names: tuple[str, ...]
    missing: Missing = "error"
    _get: Callable[[object], tuple[object, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.names or not all(isinstance(name, str) and name for name in self.names):
            remedy = "filter(function) chooses samples." if any(map(callable, self.names)) else ""
            expected = "names of fields, such as 'jpg', 'cls'"
            raise InvalidRequest(_call(self), repr(self.names), expected=expected, remedy=remedy)
        check_choice("missing", self.missing, Missing)
        object.__setattr__(self, "_get", itemgetter(*self.names))

    @property
    def leaves_out(self) -> bool:
        """Whether a stream goes on without a sample that lacks a field."""
        return self.missing == "skip"

    @property
    def wanted(self) -> frozenset[str]:
        """The fields that are looked at."""
        return frozenset(self.names)

    def _lacking(self, sample: object, name: str) -> object:
        """Return what stands for a field that a sample lacks."""
        if not isinstance(sample, dict):
            raise InvalidRequest(_call(self), f"a {type(sample).__name__}", expected="a sample with fields")
        if name == "__padding__":  # of a sample that was read for its own sake
            return False
        if self.missing != "none":
            there = listing([one for one in sample if one[:2] != "__"])
            remedy = "missing='skip' leaves such samples out, missing='none' gives None."
            raise SampleFailed(f"sample {sample.get('__key__')}", f"no field {name}; it has {there}", remedy=remedy)
        return None


class Select(_FieldStage):
    """Keeps the fields that are named, and the key."""

    def __call__(self, sample: dict[str, object]) -> dict[str, object]:
        """Return a sample with these fields.

        Raises:
            SampleFailed: It lacks one.
        """
        if not isinstance(sample, dict):
            self._lacking(sample, self.names[0])
        kept = {name: sample[name] for name in _OWN if name in sample}
        for name in self.names:
            kept[name] = sample[name] if name in sample else self._lacking(sample, name)
        return kept


class Tuple(_FieldStage):
    """Makes a tuple of the fields that are named; of alternatives, `jpg;png`, the first that the sample has."""

    @property
    def wanted(self) -> frozenset[str]:
        """The fields that are looked at, alternatives too."""
        return frozenset(name for names in self.names for name in names.split(";"))

    def __call__(self, sample: dict[str, object]) -> tuple[object, ...]:
        """Return the fields of a sample.

        Raises:
            SampleFailed: It lacks one.
        """
        try:  # 0.1 us; a loop over the names takes 0.3
            found = self._get(sample)
        except (KeyError, TypeError, IndexError):
            return tuple(self._first(sample, names) for names in self.names)
        return found if len(self.names) > 1 else (found,)

    def _first(self, sample: dict[str, object], names: str) -> object:
        if isinstance(sample, dict):
            for name in (names, *names.split(";")):
                if name in sample:
                    return sample[name]
        return self._lacking(sample, names.replace(";", " or "))


class Chains(NamedTuple):
    """What is done first to the samples of a mix: the stages of each dataset, by the `__dataset__` of its samples."""

    each: tuple[tuple[Each, ...], ...]


Each = Decode | Map | Select | Tuple | Chains


def _stages_of(stages: Sequence[Each], sample: Any) -> Sequence[Any]:
    """Return the stages of a sample: of one of a mix, those of its dataset, and then those of the mix."""
    first = stages[0]
    return (*first.each[sample["__dataset__"]], *stages[1:]) if isinstance(first, Chains) else stages


@dataclass(frozen=True)
class Stages:
    """What is done to samples, in this order.

    Attributes:
        stages: Each step.
        types: What values of fields were when they were written, as the dataset file says, for stages to come.
    """

    stages: tuple[Each | Batch, ...] = ()
    types: Mapping[str, ValueType] = field(default_factory=dict, repr=False, compare=False)

    def __str__(self) -> str:
        """Return their names, as what describes samples goes on with them."""
        return "".join(f"; {type(stage).__name__.lower()}" for stage in self.stages)

    @property
    def wanted(self) -> frozenset[str] | None:
        """The fields that are looked at, and alternatives of them; None: all."""
        first = self.stages[0] if self.stages else None
        if isinstance(first, Decode):
            return first.only
        return first.wanted if isinstance(first, _FieldStage) else None

    def then(self, stage: Each | Batch) -> Stages:
        """Return these stages and one more. Of fields that are dropped after they were decoded, none is decoded.

        Raises:
            InvalidRequest: It would decode batches, or leave them out.
        """
        before = self.stages
        if getattr(stage, "leaves_out", False) and any(isinstance(one, Batch) for one in before):
            raise InvalidRequest(_call(stage), "leaves out batches", expected="samples: leave out first, then batch")
        if isinstance(stage, Decode) and any(isinstance(one, Batch) for one in before):
            raise InvalidRequest("decode", "given after batch", expected="samples: decode first, then batch")
        if isinstance(stage, _FieldStage) and before and isinstance(before[-1], Decode):
            before = (*before[:-1], replace(before[-1], only=stage.wanted))
        return replace(self, stages=(*before, replace(stage, types=self.types) if isinstance(stage, Decode) else stage))

    def count(self, samples: int) -> int:
        """Return how many samples, or batches of them, so many become, where none is left out."""
        for stage in self.stages:
            samples = stage.count(samples) if isinstance(stage, Batch) else samples
        return samples

    def apply(self, sample: object) -> object:
        """Return what becomes of one sample. None is left out: where a stream would do that, its error is raised.

        Raises:
            InvalidRequest: There is a batch among the stages.
            SampleFailed: A field is missing, or cannot be decoded.
        """
        each = [stage for stage in self.stages if not isinstance(stage, Batch)]
        if len(each) < len(self.stages):
            raise InvalidRequest("batch", "one sample was asked for", expected="batches in a loop over the samples")
        return next(_each(each, [sample], _refuse))

    def run(self, samples: Iterable[object], on_skip: OnSkip, rng_of: RngOf = any_rng) -> Iterator[object]:
        """Yield what becomes of samples.

        Args:
            samples: The samples of a stream.
            on_skip: Called with the error of each sample that is left out; returns the one that comes in its place, or
                None.
            rng_of: Makes the generator that a stage draws from, for the sample that was taken last.

        Raises:
            SampleFailed: A field is missing, or cannot be decoded.
        """
        each: list[Each] = []
        for stage in self.stages:
            if isinstance(stage, Batch):
                samples, on_skip = stage.over(_each(each, samples, on_skip, rng_of)), _refuse_batch
                longest = sum(max(map(len, one.each)) if isinstance(one, Chains) else 1 for one in each)
                each, rng_of = [], partial(_of_later, rng_of, longest + 1)
            else:
                each.append(stage)
        return _each(each, samples, on_skip, rng_of)

    def __getstate__(self) -> dict[str, object]:
        """Return what is pickled.

        Raises:
            InvalidRequest: It goes to a worker process that is started anew, which a function of no module cannot.
        """
        from multiprocessing.context import get_spawning_popen

        if get_spawning_popen() is not None:  # other picklers, such as cloudpickle, may well be able to
            chains = [stage.each if isinstance(stage, Chains) else ((stage,),) for stage in self.stages]
            for stage in chain.from_iterable(chain.from_iterable(chains)):
                if isinstance(stage, Map):
                    _check_travels(f"the function of {_call(stage)}", stage.function)
                for name, given in stage.own if isinstance(stage, Decode) else ():
                    _check_travels(f"the decoder of {name}", given)
        return vars(self)


_WORDS = {  # of webdataset, wids, torchvision and datasets: what says the same here
    "add_transform": "map(function)",
    "batched": "batch(32)",
    "listed": "batch(32)",
    "map_dict": "map(lambda sample: {**sample, 'jpg': function(sample['jpg'])})",
    "map_tuple": "tuple('jpg', 'cls').map(lambda two: (function(two[0]), two[1]))",
    "pack": "pack(4096) of the dataset, before stream()",
    "rename": "map(lambda sample: {'image': sample['jpg'], 'label': sample['cls']})",
    "repeat": "stream() as often as there are epochs: each iteration is the next one",
    "shuffle": "stream(shuffle=True, seed=0)",
    "slice": "dataset[:1000], or dataset.take(numbers)",
    "to_tuple": "tuple('jpg', 'cls')",
    "transform": "map(function)",
    "with_epoch": "stream(): its epochs have a length, which is the same for all ranks",
    "with_length": "stream(): its epochs have a length, which is the same for all ranks",
}


_OF_WORKERS = "Give it to DataLoader(StreamDataset(dataset, batch_size), batch_size, ...); loader(...) has threads=."
_OF_SAMPLER = "Give it to DataLoader(MapDataset(dataset), ...); a stream has shuffle= and seed=."
_OF_DATALOADER = {
    "batch_sampler": _OF_SAMPLER,
    "batch_size": "Give it to loader(dataset, 32) or StreamDataset(dataset, 32), or add batch(32) to the chain.",
    "collate_fn": "loader(...) has collate=; of a StreamDataset it belongs to the DataLoader.",
    "drop_last": "Give it to loader(...), or to batch(32, drop_last=True) of the chain.",
    "generator": "The order depends on seed= and the epoch alone.",
    "num_workers": _OF_WORKERS,
    "persistent_workers": _OF_WORKERS,
    "pin_memory": "Give it to loader(...), or, with a StreamDataset, to the DataLoader.",
    "prefetch_factor": "loader(...) has depth=, batches under way; of a StreamDataset it belongs to the DataLoader.",
    "sampler": _OF_SAMPLER,
    "shuffle": "Give it to stream(...), loader(...) or StreamDataset(...).",
}


def refuse_dataloaders(options: Mapping[str, object], known: Collection[str]) -> None:
    """Say what an option of PyTorch's DataLoader is here, where it is given to what does not know it.

    Raises:
        InvalidRequest: One is.
    """
    for name in options.keys() & _OF_DATALOADER.keys() - set(known):
        raise InvalidRequest(name, "an option of PyTorch's DataLoader", remedy=_OF_DATALOADER[name])


def without_dataloaders(function: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """Have a function say what an option of PyTorch's DataLoader is here."""
    known = signature(function).parameters

    @wraps(function)
    def called(*given: _Given.args, **options: _Given.kwargs) -> _Made:
        refuse_dataloaders(options, known)
        return function(*given, **options)

    return called


class Chain:
    """What has samples, and does something to them: each method returns a copy that does one thing more."""

    stages: Stages = Stages()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say what the word of another reader is here."""
            here = f". Here it is {_WORDS[name]}" if name in _WORDS else ""
            raise AttributeError(f"{type(self).__name__} has no {name}{here}", name=name, obj=self)

    def with_stages(self, stages: Stages) -> Self:
        """Return a copy with other stages."""
        found = copy(self)
        found.stages = stages
        return found

    def decode(
        self,
        own: Mapping[str, Decoder] | None = None,
        *,
        images: Images = "numpy",
        reduce: Size | None = None,
        on_error: OnBadSample = "raise",
        max_bytes: str | int = "1GiB",
    ) -> Self:
        """Decode fields by their names: images to arrays, `cls` to int, `json`, `txt`, `npy`; and as they were written.

        A field whose name says nothing, such as `score`, becomes the number, truth, text or value of JSON that it was,
        where the dataset file says so; other fields stay bytes.

        Args:
            own: Field or ending to a function of its bytes, the name of a decoder (`numpy`, `pil`, `mask`, `audio`,
                `int`, `float`, `bool`, `text`, `json`, `npy`), or None to leave it. The longest ending given here
                decides.
            images: `numpy`: uint8 [height, width, 3] in RGB, upright, writable; `pil`: Pillow's, in mode RGB.
            reduce: Width and height that are enough: JPEGs are decoded at 1/8, 1/4 or 1/2 where both sides are no
                shorter then, the smallest such.
            on_error: `skip`: a stream leaves out, and counts, samples that cannot be decoded.
            max_bytes: What decoding an image or audio may take; one that would take more cannot be decoded.

        See `read.chain.Decode` for the rules of each kind of image.
        """
        return self.with_stages(self.stages.then(Decode(own_decoders(own), images, reduce, on_error, max_bytes)))

    def map(self, function: Callable[..., object]) -> Self:
        """Call `function` with each sample, or what the stage before gives. Its errors pass, and name the sample.

        Where it has a parameter `rng`, it is given a NumPy generator. A stream makes it of the seed, the epoch and the
        sample's position: the same draws in any number of threads, workers and ranks, and after a resume.

        A sample of which it makes None is left out, as by `filter`.
        """
        return self.with_stages(self.stages.then(Map(function)))

    def filter(self, function: Callable[..., object]) -> Self:
        """Drop samples for which `function` is false. A stream counts them.

        On a single rank, dropped samples shorten the epoch: `len` is then an upper bound. Several ranks must perform
        the same number of steps, and replace at most 1 % of the samples: see `Stream`. `Dataset.where` chooses samples
        by columns, before any is read.
        """
        return self.with_stages(self.stages.then(Filter(function)))

    def select(self, *fields: str, missing: Missing = "error") -> Self:
        """Keep these fields.

        Args:
            fields: Their names.
            missing: What becomes of a sample that lacks one: `error`, `skip` (a stream leaves it out, and counts it),
                or `none`: the field is None.
        """
        return self.with_stages(self.stages.then(Select(fields, missing)))

    def tuple(self, *fields: str, missing: Missing = "error") -> Self:
        """Make a tuple of these fields: `tuple("jpg;png", "cls")` takes jpg, or else png.

        Args:
            fields: Their names, or alternatives.
            missing: As for `select`.
        """
        return self.with_stages(self.stages.then(Tuple(fields, missing)))

    def batch(self, size: int | None = None, *, drop_last: bool = False, lists: Lists = (), **of_dataset: Any) -> Self:
        """Make batches of `size` samples: see `read.chain.collate`.

        Args:
            size: Samples of a batch.
            drop_last: Leave out a last batch that is smaller.
            lists: Fields whose values a batch has as a list, though they may be of one shape, such as boxes.
            of_dataset: What only `Dataset.batch(by=...)` takes: a stream has its order already.

        Raises:
            InvalidRequest: The size is no positive number, or something else is given.
        """
        if of_dataset:
            expected = "size, drop_last and lists"
            remedy = "Batches by size are an order of their own: dataset.batch(by='length', tokens=...).stream()."
            raise InvalidRequest("batch", f"given {listing([*of_dataset])}", expected=expected, remedy=remedy)
        return self.with_stages(self.stages.then(Batch(cast("int", size), drop_last, lists)))


def _of_later(rng_of: RngOf, first: int, stage: int) -> np.random.Generator:
    return rng_of(first + stage)


def _each(
    stages: Sequence[Each], samples: Iterable[object], on_skip: OnSkip, rng_of: RngOf = any_rng
) -> Iterator[object]:
    return _through(stages, samples, on_skip, rng_of) if stages else iter(samples)


def _through(stages: Sequence[Each], samples: Iterable[object], on_skip: OnSkip, rng_of: RngOf) -> Iterator[object]:
    for own in samples:
        sample: object = own
        while sample is not None:
            value = sample
            left_out = None
            try:
                for at, stage in enumerate(_stages_of(stages, sample)):
                    rng = (partial(rng_of, at),) if stage.draws else ()
                    value = stage(value, *rng)
                    if value is None:
                        left_out = SampleFailed(_named(_key_of(sample)), f"dropped by {_call(stage)}")
                        break
            except SampleFailed as error:
                if isinstance(stage, Map) or not stage.leaves_out:
                    raise
                left_out = error
            except Exception as error:
                _name_sample(error, sample)
                raise
            if left_out is None:
                yield value
                break
            sample = on_skip(left_out)


def _refuse(error: SampleFailed) -> NoReturn:
    """Raise the error of one sample that was asked for; that a stream leaves it out is no help here."""
    remedy = "A stream leaves such samples out."
    raise SampleFailed(error.where, error.found, expected=error.expected, remedy=remedy) from error.__cause__


def _refuse_batch(error: SampleFailed) -> NoReturn:
    """Refuse to leave out a batch: not all ranks would."""
    expected = "a batch: leave out samples before batch"
    raise InvalidRequest("map", "None for a batch", expected=expected) from error


def _key_of(sample: object) -> object:
    return sample.get("__key__") if isinstance(sample, dict) else None


def _named(key: object) -> str:
    return "a sample" if key is None else f"sample {key}"


def _name_sample(error: Exception, sample: object) -> None:
    """Add to an error of the caller's function which sample it was (Python 3.11)."""
    key = _key_of(sample)
    if key is not None and hasattr(error, "add_note"):
        error.add_note(f"in the batch of {listing(key)}" if isinstance(key, list) else f"in the sample {key}")


def _check_travels(what: str, function: object) -> None:
    """Refuse a function that no other process can find: a lambda, or one that another function defines."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if "<" in name:
        found = "a lambda" if "<lambda>" in name else f"{name}, defined in a function"
        remedy = "Define it at the top level of a module, or start workers with fork."
        raise InvalidRequest(what, f"{found}, which cannot go to a worker process", remedy=remedy)


def _call(stage: object) -> str:
    return type(stage).__name__.lower()
