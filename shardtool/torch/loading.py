"""`shardtool.torch.loader`: batches that threads read, decode and collate, in order, for one rank; and crops to decode.

Three kinds of threads take part in a pass, and none outlives it:

- The source's own reads shards ahead (`read/stream.py`).
- One feeds: it takes the samples of a batch from the source, and hands them to the decoders in small chunks.
- The decoders call the function with each sample, and put what it returns into its row of the batch (`BatchRows`).
  The thread that puts the last row of a batch collates it.

At most `depth` batches are under way. Batches come out in their order, whichever thread is fastest, and an error comes
in the place of its batch. A task of any thread ends by itself, so that a program can end in the middle of a pass.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from shardtool.errors import InvalidRequest
from shardtool.execute.pool import cores
from shardtool.read.bundles import Batches
from shardtool.read.chain import Batch, DecodedField, Lists, Stages, any_rng, check_alike, parts_of, whole_of
from shardtool.request.settings import check_least
from shardtool.torch.datasets import Streaming, stream_state
from shardtool.transform.image import as_rgb, pixels
from shardtool.transform.jpeg import JpegHead, cut, decoded, read_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import ArrayLike, NDArray

    from shardtool.read.fetch import SkippedSamples
    from shardtool.read.stream import Stream, StreamPosition

    Samples = list[Any]
    State = dict[str, object]

LEFT_OUT = object()  # what becomes of a sample that its batch goes without


@dataclass(eq=False)
class Loader(Streaming):
    """Batches of a dataset, read, decoded and collated in threads: no worker processes, and nothing is pickled.

    Threads need no interpreter lock while they read files and while Pillow or NumPy work; a `transform` in pure Python
    holds it, and is faster in the worker processes of a DataLoader.

    Each iteration begins at the start of the current epoch, as that of a stream does: after a whole epoch that is the
    next one, in another order. Where a state was loaded, one iteration goes on from there.

    A batch has the form of a sample: a dict of fields, or a tuple. Arrays and images of one shape become a tensor
    [samples, ...], in pinned memory where there is a GPU, and of several shapes a list of tensors; numbers a tensor of
    int64, float64 or bool; all else a list.

    Attributes:
        threads: That decode; None: as many as this process may use cores.
        drop_last: Whether a last batch that is smaller is left out.
        lists: Fields, or places in tuples, that become a list of tensors in any case, though a batch may have values of
            one shape: boxes, images of several sizes.
        collate: Called with the list of a batch's samples, and returns the batch; None: as above.
        pin_memory: Whether tensors lie in pinned memory; None: where there is a GPU.
        depth: How many batches are under way beside the one that was handed out last.
    """

    threads: int | None = None
    drop_last: bool = False
    lists: Lists = ()
    collate: Callable[[list[Any]], Any] | None = None
    pin_memory: bool | None = None
    depth: int = 3
    _state: State = field(init=False, repr=False)
    _next: int | None = field(init=False, repr=False, default=None)  # epoch to begin; None: goes on from the state
    _pass: object = field(init=False, repr=False, default=None)  # that runs

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("threads", self.threads), ("depth", self.depth)):
            if value is not None:
                check_least(name, value)
        self._state = self._stream.state_dict()

    def __len__(self) -> int:
        """Return how many batches a whole epoch has."""
        return Batch(self.batch_size, self.drop_last).count(len(self._stream))

    def __iter__(self) -> Iterator[Any]:
        stream, self._pass = copy(self._stream), (now := object())
        if self._next is not None:
            self._state = {**self._state, "epoch": self._next, "position": 0}
        stream.load_state_dict(self._state)
        self._next = cast("int", self._state["epoch"])
        return self._batches(stream, now)

    def _batches(self, stream: Stream, now: object) -> Iterator[Any]:
        """Yield the batches of a pass; note the state after each, and the next epoch, when it is handed out."""
        counts, threads = Stages((Batch(self.batch_size, self.drop_last),)), self.threads or cores()
        pin = torch.cuda.is_available() if self.pin_memory is None else self.pin_memory
        collate = self.collate or (_only if any(isinstance(one, Batches) for one in self._stages.stages) else None)
        stop, feeder = Event(), ThreadPoolExecutor(1, "shardtool-feed")
        decoders = ThreadPoolExecutor(threads, "shardtool-decode")
        ending = sys.is_finalizing  # where this pass is left to the program's end, all threads have been waited for
        samples = ((sample, stream.place()) for sample in stream)

        def state() -> tuple[State, int]:
            return stream.state_dict(), stream.next_epoch(counts)

        def feed() -> _Batch | None:
            some = list(islice(samples, self.batch_size))
            if not some or (self.drop_last and len(some) < self.batch_size):
                return None
            into = collate or BatchRows(len(some), pin=pin, lists=self.lists)
            batch = _Batch(some, self._changed, into, state(), stop)
            batch.start(decoders, -(-len(some) // (_CHUNKS * threads)))
            return batch

        coming = deque(feeder.submit(feed) for _ in range(self.depth))
        try:
            while (batch := coming.popleft().result()) is not None:
                coming.append(feeder.submit(feed))
                handed, after = [batch.done.result()], batch.state
                del batch
                if handed[0] is not None:
                    self._note(now, after)
                    yield handed.pop()  # whoever takes it holds the only reference
        finally:
            stop.set()
            if not ending():
                feeder.shutdown(cancel_futures=True)
                decoders.shutdown(cancel_futures=True)
            samples.close()
        self._note(now, state())

    def _note(self, now: object, state: tuple[State, int]) -> None:
        """Note the state of a pass, and the epoch of the next, unless another pass or epoch came after it."""
        if self._pass is now:
            self._state, self._next = state

    @property
    def skipped(self) -> SkippedSamples:
        """What was left out so far, as `on_error` or `missing` said: damaged samples, and those that the chain left."""
        return self._stream.skipped

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration read an epoch from its start; in that of a state that was loaded, from the state."""
        epoch = self._checked_epoch(epoch)
        if epoch != (self._state["epoch"] if self._next is None else self._next):
            self._state, self._next, self._pass = {**self._state, "epoch": epoch, "position": 0}, None, None

    def state_dict(self) -> dict[str, object]:
        """Return the state after the last batch that was handed out: the same for all ranks at the same step; JSON."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on from a state: of a loader, a stream, a StreamDataset or a StatefulDataLoader.

        Raises:
            InvalidRequest: It is no such state, or one of other samples.
        """
        self._stream.load_state_dict(dict(stream_state(state)))
        self._state, self._next, self._pass = self._stream.state_dict(), None, None

    def _changed(self, given: tuple[object, StreamPosition]) -> object:
        sample, place = given
        return next(self._stages.run((sample,), place.left_out, place.rng), LEFT_OUT)


loader = Loader


def _only(batches: list[Any]) -> Any:
    """Return a batch by size, which is one already, with its arrays as tensors."""
    return torch.utils.data.default_convert(batches[0])


# A batch that threads fill: each sample goes into its row as soon as it is decoded, and no step at the end copies.
#
# Values of a field that are arrays, tensors or images of one shape and type become a tensor [samples, ...], of several
# shapes a list of tensors; numbers a tensor of int64, float64 or bool; all else a list. Tensors are torch's own memory:
# of pinned memory its allocator keeps what is freed, and gives it again only when no copy to a device reads it any
# more.


_NUMBERS = (bool, int, float, np.number, np.bool_)


_PLACED: Any = object()  # stands for a value that lies in its row


class BatchRows:
    """The samples of one batch; threads put them in, each into a row of its own.

    Args:
        count: Rows there are.
        pin: Whether tensors lie in pinned memory.
        lists: Fields that become lists.
    """

    def __init__(self, count: int, *, pin: bool, lists: Lists = ()) -> None:
        self._count, self._pin, self._lists, self._lock = count, pin, lists, Lock()
        self._forms: list[tuple[type, list[object]] | None] = [None] * count  # None: the sample is left out
        self._fields: dict[object, _Field] = {}

    def put(self, row: int, sample: object) -> None:
        """Put a sample into its row."""
        kind, parts = parts_of(sample)
        for name, value in parts.items():
            field = self._fields.get(name)
            if field is None:
                with self._lock:
                    made = _Field(self._count, pin=self._pin, listed=name in self._lists)
                    field = self._fields.setdefault(name, made)
            field.put(row, value)
        self._forms[row] = kind, [*parts]

    def batch(self, keys: list[object]) -> object:
        """Return the batch; None: all of its samples were left out.

        Args:
            keys: Of the rows, for messages.

        Raises:
            InvalidRequest: One of `lists` is no field.
            SampleFailed: A sample has other fields, or another form, than the first.
        """
        there = [(row, *form) for row, form in enumerate(self._forms) if form is not None]
        if not there:
            return None
        check_alike([(keys[row], kind, names) for row, kind, names in there], self._lists)
        _, kind, names = there[0]
        kept = [row for row, *_ in there]
        return whole_of(kind, {name: self._fields[name].batch(kept) for name in names})


class _Field:
    """The values of one field; those that are listed have no rows."""

    def __init__(self, count: int, *, pin: bool, listed: bool) -> None:
        self._pin, self._listed, self._lock = pin, listed, Lock()
        self._values: list[Any] = [None] * count
        self._rows: torch.Tensor | None = None
        self._array: np.ndarray[Any, Any] | None = None  # the same memory

    def put(self, row: int, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            rows = None if self._listed else self._rows_like(value)
            if rows is not None and value.shape == rows.shape[1:] and value.dtype == rows.dtype:
                rows[row].copy_(value)
                value = _PLACED
        elif isinstance(value, np.ndarray) or hasattr(type(value), "__array_interface__"):  # Pillow's images
            array = np.asarray(value)
            if array.dtype.kind in "biufc" and array.dtype.isnative:
                if not self._listed:
                    self._rows_like(array)
                ours = self._array
                if ours is not None and array.shape == ours.shape[1:] and array.dtype == ours.dtype:
                    ours[row] = array
                    array = _PLACED
                else:
                    tensor = torch.from_numpy(array.copy())  # as the others of its list
                    array = tensor.pin_memory() if self._pin else tensor
            value = array
        self._values[row] = value

    def _rows_like(self, value: Any) -> torch.Tensor:
        """Return the field's rows; the first value says what they are."""
        with self._lock:
            if self._rows is None:
                tensor = isinstance(value, torch.Tensor)
                dtype = value.dtype if tensor else torch.from_numpy(np.empty(0, value.dtype)).dtype
                self._rows = torch.empty((len(self._values), *value.shape), dtype=dtype, pin_memory=self._pin)
                self._array = None if dtype == torch.bfloat16 else self._rows.numpy()
            return self._rows

    def batch(self, kept: list[int]) -> object:
        values = self._values if len(kept) == len(self._values) else [self._values[row] for row in kept]
        if self._rows is not None:
            if all(value is _PLACED for value in values):
                return self._rows if values is self._values else self._rows[kept]
            return [self._rows[row] if value is _PLACED else value for row, value in zip(kept, values, strict=True)]
        return values if self._listed else _numbers(values, pin=self._pin)


def _numbers(values: list[Any], *, pin: bool) -> object:
    """Return numbers as a tensor, and other values as they are."""
    kinds = {type(value) for value in values}
    if not all(issubclass(kind, _NUMBERS) for kind in kinds) or (bool in kinds and len(kinds) > 1):
        return values
    try:
        numbers = torch.from_numpy(np.array(values))
    except (OverflowError, TypeError):  # integers of more than 64 bits
        return values
    return numbers.pin_memory() if pin else numbers


def collate(samples: list[Any], lists: Lists = ()) -> Any:
    """Return samples as one batch, as a loader makes it: the `collate_fn` of a DataLoader.

    Args:
        samples: Dicts, tuples or values.
        lists: Fields, or places in tuples, that become a list of tensors in any case: give them by `functools.partial`.

    Raises:
        InvalidRequest: One of `lists` is no field.
        SampleFailed: A sample has other fields, or another form, than the first.
    """
    rows = BatchRows(len(samples), pin=False, lists=lists)
    for row, sample in enumerate(samples):
        rows.put(row, sample)
    return rows.batch([sample.get("__key__") if isinstance(sample, dict) else None for sample in samples])


_CHUNKS = 4  # of a batch, for each thread: small ones keep all threads busy to the end, large ones cost less


class _Batch:
    """A batch under way.

    Args:
        samples: Each with its place.
        function: Called with each of these; what it returns comes into the batch, but for `LEFT_OUT`.
        into: What makes the batch: the rows that it is put into, or a function of a list.
        state: The samples' after it.
        stop: Set where the batch is no longer wanted.

    Attributes:
        state: As given.
        done: The batch; None: all of its samples were left out.
    """

    def __init__(
        self, samples: Samples, function: Callable[[Any], Any], into: BatchRows | Callable[[Samples], Any], state: Any,
        stop: Event,
    ) -> None:  # fmt: skip
        self.state, self.done = state, Future[Any]()
        self._samples, self._function, self._into, self._stop = samples, function, into, stop
        self._keys = [sample["__key__"] for sample, _ in samples]
        self._lock, self._open, self._failed = Lock(), len(samples), len(samples)
        self._error: BaseException | None = None

    def start(self, decoders: ThreadPoolExecutor, chunk: int) -> None:
        """Hand the samples to the decoders."""
        for first in range(0, len(self._samples), chunk):
            decoders.submit(self._decode, first, min(first + chunk, len(self._samples)))

    def _decode(self, first: int, last: int) -> None:
        """Put samples into their rows, and end the batch if no others are open."""
        row = first
        try:
            for row in range(first, last):
                if self._stop.is_set() or row > self._failed:
                    break
                value, self._samples[row] = self._function(self._samples[row]), None
                if not isinstance(self._into, BatchRows):
                    self._samples[row] = value
                elif value is not LEFT_OUT:
                    self._into.put(row, value)
        except BaseException as error:  # noqa: BLE001 - raised where the batch is asked for
            with self._lock:
                if row < self._failed:  # of all samples, the first one's, whichever thread came upon one first
                    self._failed, self._error = row, error
        with self._lock:
            self._open -= last - first
            ends = self._open == 0
        if ends:
            self._end()

    def _end(self) -> None:
        error = self._error
        try:
            value = None if error or self._stop.is_set() else self._collated()
        except BaseException as caught:  # noqa: BLE001 - as above
            error = caught
        if error is None:
            self.done.set_result(value)
        else:
            self._error = None
            self.done.set_exception(error)

    def _collated(self) -> object:
        if isinstance(self._into, BatchRows):
            return self._into.batch(self._keys)
        kept = [value for value in self._samples if value is not LEFT_OUT]
        return self._into(kept) if kept else None


# Crops of images as decoders of a field: what lies outside of the crop is not decoded, as far as that can be had.
#
# A decoder gives uint8 [size, size, 3] in RGB. Three things are saved:
#
# - The rows below the crop of a baseline JPEG are never decoded: its header is given a smaller height.
# - A JPEG whose crop is at least twice as large as what is wanted is decoded at 1/2, 1/4 or 1/8.
# - The crop is taken out of the decoded image, and no array of the whole image is made.
#
# Other images, and JPEGs that have to be turned upright, are decoded whole. What an image is and becomes, and which are
# refused, is as for `Dataset.decode`; but what is damaged below the crop is not noticed.
#
# Source: ITU T.81, B.1.1.3 and B.2.2 (markers, frame header).


Box: TypeAlias = "tuple[int, int, int, int]"  # left, top, right, bottom, in pixels of the whole image

_NEIGHBOURS = 2  # rows below the crop that its last row's colours are interpolated with
_TRIES = 10


class _Crop:
    """A decoder that gives a square of an image, and may say beside it where that lies.

    Attributes:
        size: Width and height of the square.
        place: The field that a sample gets beside the square: int64 [5], the left, top, width and height of what was
            taken, in pixels of the whole image as a viewer shows it, and whether that was mirrored, 0 or 1; None: none.
    """

    size: int
    place: str | None

    def move(self, boxes: ArrayLike, place: ArrayLike) -> NDArray[np.float32]:
        """Return boxes of the whole image as they lie in the square, cut at its edges: one beside it has no area.

        Args:
            boxes: [n, 4]: left, top, right and bottom of each, in pixels of the whole image.
            place: What was taken, as the field `place` says.
        """
        left, top, width, height, mirrored = np.asarray(place, np.float32)
        whole = np.asarray(boxes, np.float32).reshape(-1, 4)
        found = (whole - [left, top, left, top]) * np.float32(self.size) / [width, height, width, height]
        if mirrored:
            found[:, [0, 2]] = self.size - found[:, [2, 0]]
        cut_off: NDArray[np.float32] = found.clip(0, self.size).astype(np.float32)
        return cut_off

    def _given(self, square: NDArray[np.uint8], box: Box, *, mirrored: bool = False) -> Any:
        """Return what the decoder returns: the square, and its place if that is wanted."""
        if self.place is None:
            return square
        left, top, right, bottom = box
        return DecodedField(square, {self.place: np.array([left, top, right - left, bottom - top, mirrored])})

    def _cropped(self, data: bytes, box_in: Callable[[int, int], Box]) -> tuple[NDArray[np.uint8], Box]:
        """Return a box of an image as uint8 [size, size, 3], and which.

        Args:
            data: The bytes of any image.
            box_in: Says which, by its width and height.

        Raises:
            ValueError: It is no image, or a damaged one.
        """
        head = read_head(data)
        image: NDArray[np.uint8] | Image.Image
        if head is None:
            image, scale = as_rgb(pixels(data)), 1
            box = box_in(*image.size)
        else:
            box = box_in(head.width, head.height)
            image, scale = _above(data, head, box, self.size)
        left, top = box[0] // scale, box[1] // scale
        part = _part(image, (left, top, -(-box[2] // scale), -(-box[3] // scale)))
        if scale == 1 and part.shape[:2] == (self.size, self.size):
            return part, box
        inside = (box[0] / scale - left, box[1] / scale - top, box[2] / scale - left, box[3] / scale - top)
        return _resized(part, self.size, inside), box


@dataclass(frozen=True)
class CenterCrop(_Crop):
    """Decodes the centre of an image, for validation: `decode={"jpg": CenterCrop(224, 256)}`.

    Attributes:
        size: Width and height of the crop.
        shorter: What the shorter side of the whole image is scaled to; None: an image that is large enough keeps its
            size, and a smaller one becomes `size`.
        place: A field for what was taken: see `move`.
    """

    size: int
    shorter: int | None = None
    place: str | None = None

    def __post_init__(self) -> None:
        check_least("size", self.size)
        if self.shorter is not None and self.shorter < self.size:
            raise InvalidRequest("shorter", repr(self.shorter), expected=f"{self.size} or more, as the crop")

    def __call__(self, data: bytes) -> Any:
        """Return the centre of an image, uint8 [size, size, 3], or with `place` that and more.

        Raises:
            ValueError: It is no image, or a damaged one.
        """
        return self._given(*self._cropped(data, self.box))

    def box(self, width: int, height: int) -> Box:
        """Return the centred square of an image of this size."""
        short = min(width, height)
        side = min(short, self.size) if self.shorter is None else max(1, round(short * self.size / self.shorter))
        left, top = (width - side) // 2, (height - side) // 2
        return left, top, left + side, top + side


@dataclass(frozen=True)
class RandomResizedCrop(_Crop):
    """Decodes a random part of an image, and scales it: the usual augmentation of training on photographs.

    The rules are torchvision's: a random share of the area and a random aspect ratio; where ten draws do not fit, the
    largest centred part of an allowed ratio; bilinear, with antialiasing. It draws from the generator that a stream
    makes for each position of an epoch: the same crop in any number of threads, workers and ranks, and after a resume;
    two fields of one sample, such as an image and its depth, are cropped alike.

    Attributes:
        size: Width and height of the result.
        scale: Least and greatest share of the area.
        ratio: Least and greatest width / height.
        flip: How likely the result is mirrored, left to right.
        place: A field for what was taken: see `move`.

    Source: C. Szegedy et al., "Going Deeper with Convolutions", section 6; torchvision's `RandomResizedCrop`.
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0
    place: str | None = None

    def __post_init__(self) -> None:
        check_least("size", self.size)
        for name, (least, most) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0 < least <= most or (name == "scale" and most > 1):
                raise InvalidRequest(name, f"{(least, most)}", expected="(least, greatest), above 0; shares up to 1")
        if not 0 <= self.flip <= 1:
            raise InvalidRequest("flip", f"{self.flip}", expected="a likelihood, 0 to 1")

    def __call__(self, data: bytes, rng: np.random.Generator | None = None) -> Any:
        """Return a random part of an image, uint8 [size, size, 3], or with `place` that and more.

        Raises:
            ValueError: It is no image, or a damaged one.
        """
        rng = rng or any_rng()
        square, box = self._cropped(data, partial(self.box, rng=rng))
        mirrored = self.flip > 0 and rng.random() < self.flip
        return self._given(np.ascontiguousarray(square[:, ::-1]) if mirrored else square, box, mirrored=mirrored)

    def box(self, width: int, height: int, rng: np.random.Generator) -> Box:
        """Return a random part of an image of this size."""
        for _ in range(_TRIES):
            area = width * height * rng.uniform(*self.scale)
            aspect = math.exp(rng.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < wide <= width and 0 < high <= height:
                top, left = int(rng.integers(height - high + 1)), int(rng.integers(width - wide + 1))
                return left, top, left + wide, top + high
        least, most = self.ratio
        wide, high = min(width, max(1, round(height * most))), min(height, max(1, round(width / least)))
        left, top = (width - wide) // 2, (height - high) // 2
        return left, top, left + wide, top + high


def _above(data: bytes, head: JpegHead, box: Box, size: int) -> tuple[NDArray[np.uint8] | Image.Image, int]:
    """Return a JPEG down to the crop, decoded at 1, 1/2, 1/4 or 1/8 of its size, and which: the crop is large enough.

    Raises:
        BadImage: It is damaged.
    """
    rows = -(-(box[3] + _NEIGHBOURS) // head.rows) * head.rows
    if head.baseline and rows < head.height:
        data, head = cut(data, head, rows)
    wide, high = box[2] - box[0], box[3] - box[1]
    least = -(-head.width * size // wide), -(-head.height * size // high)
    image = decoded(data, head, least=least)
    found = as_rgb(pixels(data, least=least)) if image is None else image
    return found, round(head.width / (found.width if isinstance(found, Image.Image) else found.shape[1]))


def _part(image: NDArray[np.uint8] | Image.Image, box: Box) -> NDArray[np.uint8]:
    """Return the pixels in a box, in memory of their own."""
    left, top, right, bottom = box
    return np.array(image.crop(box) if isinstance(image, Image.Image) else image[top:bottom, left:right])


def _resized(part: NDArray[np.uint8], size: int, box: tuple[float, float, float, float]) -> NDArray[np.uint8]:
    """Return what is in a box as uint8 [size, size, 3]: bilinear, and averaged where it becomes smaller."""
    if box != (0, 0, part.shape[1], part.shape[0]):
        return np.array(Image.fromarray(part).resize((size, size), Image.Resampling.BILINEAR, box))
    whole = torch.from_numpy(part).unsqueeze(0).permute(0, 3, 1, 2)  # channels last, as the result: a fifth of Pillow's
    scaled = interpolate(whole, (size, size), mode="bilinear", antialias=True)
    found: NDArray[np.uint8] = scaled[0].permute(1, 2, 0).numpy()
    return np.ascontiguousarray(found)
