"""Batches for training: read, decoded and collated in threads, in order, and copied to the GPU beside the model.

Crops of images, as decoders for a loader, are here, too.

Three kinds of threads take part in a pass of a loader, and none outlives it:

- The source's own reads shards ahead (`read/dataset.py`).
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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import islice
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from shardtool.errors import InvalidRequest
from shardtool.execute.pool import cores
from shardtool.read.bundles import Batches
from shardtool.read.chain import (
    Batch,
    DecodedField,
    Stages,
    any_rng,
    check_alike,
    check_lists,
    parts_of,
    warn_of_loss,
    whole_of,
)
from shardtool.request.settings import check_least
from shardtool.torch.datasets import Streaming, stream_state
from shardtool.transform.image import JpegHead, as_rgb, cut_jpeg, decoded_jpeg, pixels, read_jpeg_head

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from shardtool.read.chain import Lists
    from shardtool.read.dataset import Stream, StreamPosition
    from shardtool.read.fetch import SkippedSamples

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
        check_alike([(keys[row], kind, names) for row, kind, names in there])
        _, kind, names = there[0]
        check_lists(self._lists, names)
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
        head = read_jpeg_head(data)
        image: NDArray[np.uint8] | Image.Image
        if head is None:
            image, scale = as_rgb(pixels(data, on_loss=partial(warn_of_loss, type(self).__name__))), 1
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
        data, head = cut_jpeg(data, head, rows)
    wide, high = box[2] - box[0], box[3] - box[1]
    least = -(-head.width * size // wide), -(-head.height * size // high)
    image = decoded_jpeg(data, head, least=least)
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


# Batches on the GPU before they are asked for: the copy of the next batch runs while the model computes.
#
# On a CUDA device a batch goes through four steps; the second and the third run on a stream of their own,
# beside the model's:
#
# 1. The loader gives it. A tensor that is not in pinned memory is copied there at once.
# 2. Its copies to the device are enqueued, and an event after them: `copied`.
# 3. Images are normalised on the device, and an event stands after that: `ready`.
# 4. When it is handed out, the model's stream waits for `ready`, and the device's allocator learns that this stream
#    uses the memory (`record_stream`), so that it gives the memory to no other batch before the model has read it.
#
# The loader is asked for its next batch only after `copied`: one that fills the same memory again and again overwrites
# nothing that is still to be read. This copy was enqueued a batch earlier, so the wait is short or none. Pinned memory
# that is taken here is torch's own, whose allocator knows of the copies and waits for them before it gives it again.
#
# Everywhere else (the CPU, for one) a batch is copied and changed in the same way when it is asked for, without
# streams.


# The tensors inside of a batch, whatever its shape: a dict, a tuple, a list, a named tuple, or a tensor alone.


Change = Callable[[torch.Tensor], torch.Tensor]


def change_tensors(batch: Any, change: Change) -> Any:
    """Return `batch` with each tensor changed; arrays of numbers become tensors, and all else stays as it is."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, np.ndarray):
        return change(_tensor(batch)) if batch.dtype.kind in "biufc" else batch
    if isinstance(batch, Mapping):
        changed = {name: change_tensors(value, change) for name, value in batch.items()}
        return changed if type(batch) is dict else type(batch)(changed)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(change_tensors(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(change_tensors(value, change) for value in batch)
    return batch


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return the array as a tensor: of the same memory, where torch can write to it."""
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    plain = native.flags.writeable and all(step >= 0 for step in native.strides)
    return torch.from_numpy(native if plain else native.copy())


# The ways of a batch to a device: at once, or on a CUDA stream beside the model's.
#
# A sender says when the memory of the batch that it was given last is no longer read (`wait`). What it returns for a
# batch is the hand-out: called once, on the stream that will use the batch.


HandOut: TypeAlias = "Callable[[], Any]"


class AtOnce:
    """Copies and changes in `send`: what comes out is no memory of the batch's."""

    def __init__(self, device: torch.device, change: Change) -> None:
        self._device, self._change = device, change

    def send(self, batch: Any) -> HandOut:
        """Copy and change the batch now."""
        return [change_tensors(batch, self._copy)].pop

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        changed = self._change(tensor.to(self._device))
        return changed.clone() if changed is tensor else changed

    def wait(self) -> None:
        """Return at once: nothing is read after `send`."""


class SideStream:
    """Copies and changes on a stream of its own; at most one batch in host memory is being read."""

    def __init__(self, device: torch.device, change: Change) -> None:
        self._device, self._change = device, change
        self._stream = torch.cuda.Stream(device)
        self._copied: torch.cuda.Event | None = None
        self._reading: list[torch.Tensor] = []  # pinned memory lives until it was copied, whoever owns it

    def send(self, batch: Any) -> HandOut:
        """Enqueue the copies, and after them the changes."""
        given = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            moved = change_tensors(batch, lambda tensor: self._move(tensor, given))
            self._copied = self._event()
            arrived = [change_tensors(moved, self._change)]
            ready = self._event()

        def hand_out() -> Any:
            user = torch.cuda.current_stream(self._device)
            user.wait_event(ready)
            return change_tensors(arrived.pop(), lambda tensor: self._receive(tensor, user))

        return hand_out

    def wait(self) -> None:
        """Return when the copies have ended."""
        if self._copied is not None:
            self._copied.synchronize()
        self._copied, self._reading = None, []

    def _move(self, tensor: torch.Tensor, given: torch.cuda.Stream) -> torch.Tensor:
        if tensor.device == self._device:  # made on the stream of whoever asked for it
            self._stream.wait_stream(given)
            return _used_on(tensor, self._stream).clone()
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return tensor  # of another GPU, or sparse: copied when it is handed out
        tensor = tensor if tensor.is_pinned() else tensor.pin_memory()
        self._reading.append(tensor)
        return tensor.to(self._device, non_blocking=True)

    def _receive(self, tensor: torch.Tensor, user: torch.cuda.Stream) -> torch.Tensor:
        return _used_on(tensor, user) if tensor.device == self._device else tensor.to(self._device)

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(blocking=True)  # a thread that waits for it leaves its core to the decoders
        event.record(self._stream)
        return event


def _used_on(tensor: torch.Tensor, stream: torch.cuda.Stream) -> torch.Tensor:
    """Keep the tensor's memory from being given again before `stream` has done what it has been asked for so far."""
    tensor.record_stream(stream)
    return tensor


# Images as numbers that a model takes: uint8 becomes (value / 255 - mean) / std, on the device that holds it.
#
# One operation reads uint8 and writes floats, so that no float copy of the batch lies in between. It is computed in 32
# bits and rounded once, whatever the result's dtype is.


Levels: TypeAlias = "float | Sequence[float] | torch.Tensor"  # one number for all channels, or one a channel

_CHANNELS = (1, 3, 4)
_DIMENSIONS = 4  # of a batch of images
_WHITE = 255.0


@dataclass
class Normalize:
    """What becomes of a batch's images: uint8 tensors [n, h, w, c] or [n, c, h, w]. They come out as [n, c, h, w].

    Images have as many channels as `mean` and `std` have values, and 1, 3 or 4 where these are one value or none:
    with three values a mask [n, 1, h, w] stays as it is, as every other tensor does.

    Attributes:
        mean: Of the values between 0 and 1; none: 0.
        std: Of the values between 0 and 1; none: 1.
        dtype: Of the result; none: float32.
        channels_last: In memory a pixel's channels lie next to each other.
        images: How many tensors of images were changed so far.
    """

    mean: Levels | None
    std: Levels | None
    dtype: torch.dtype | None
    channels_last: bool
    images: int = field(init=False, default=0)
    _scale: torch.Tensor = field(init=False, repr=False)
    _shift: torch.Tensor = field(init=False, repr=False)
    _on: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.dtype is not None and not getattr(self.dtype, "is_floating_point", False):
            raise InvalidRequest("dtype", f"{self.dtype!r}", expected="a floating-point dtype")
        mean, std = _levels("mean", self.mean, 0.0), _levels("std", self.std, 1.0)
        if len(mean) != len(std) and 1 not in (len(mean), len(std)):
            raise InvalidRequest("std", f"{len(std)} values", expected=f"{len(mean)}, as in mean")
        if not bool((std > 0).all()):
            raise InvalidRequest("std", "a value that is not positive", expected="values above 0")
        scale, shift = torch.broadcast_tensors(1 / (_WHITE * std), -mean / std)
        self._scale, self._shift = (one.float().reshape(1, -1, 1, 1) for one in (scale, shift))

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return images as floats, and any other tensor as it is.

        Raises:
            InvalidRequest: Both the second and the last dimension could be the channels.
        """
        images = self._channels_first(tensor)
        if images is None:
            return tensor
        self.images += 1
        form = torch.channels_last if self.channels_last else torch.contiguous_format
        result = torch.empty(images.shape, dtype=self.dtype or torch.float32, device=images.device, memory_format=form)
        if images.device not in self._on:
            self._on[images.device] = self._scale.to(images.device), self._shift.to(images.device)
        scale, shift = self._on[images.device]
        return torch.addcmul(shift, images, scale, out=result)

    def _channels_first(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return images as [n, c, h, w], and None for what is none."""
        if tensor.dtype != torch.uint8 or tensor.dim() != _DIMENSIONS:
            return None
        values = self._scale.shape[1]
        known = (values,) if values > 1 else _CHANNELS
        first, last = tensor.shape[1] in known, tensor.shape[3] in known
        if first and last:
            found = "the second and the last dimension could both be the channels"
            remedy = "Give larger images, or normalise them in the transform."
            raise InvalidRequest(f"a batch of images {[*tensor.shape]}", found, remedy=remedy)
        return tensor if first else tensor.permute(0, 3, 1, 2) if last else None


def _levels(name: str, given: Levels | None, default: float) -> torch.Tensor:
    try:
        levels = torch.as_tensor(default if given is None else given, dtype=torch.float64).cpu().reshape(-1)
    except (TypeError, ValueError):
        raise InvalidRequest(name, f"{given!r}", expected="one number, or one a channel") from None
    if not len(levels) or not bool(levels.isfinite().all()):
        raise InvalidRequest(name, f"{given!r}", expected="one number, or one a channel")
    return levels


@dataclass
class Prefetcher:
    """Gives a loader's batches on a device, in the loader's order, with the copy of the next ones under way.

    A batch is a tensor, an array, or a dict, list, tuple or named tuple of them, nested or not; arrays of numbers
    become tensors, and what is neither (strings, keys) stays as it is. What is handed out is no memory of the
    loader's: nothing that the loader does later changes it.

    With any of `mean`, `std`, `dtype` and `channels_last`, images go to the device as uint8 and become floats
    [n, c, h, w] there: (value / 255 - mean) / std. Images are uint8 tensors [n, h, w, c] or [n, c, h, w] with as many
    channels as `mean` or `std` have values; 1, 3 or 4 where these are one number or none.

    Attributes:
        loader: Any iterable of batches: ours, a DataLoader, webdataset's. Batches in pinned memory save a copy.
        device: None: the current CUDA device where there is one, else the CPU.
        mean: Of the values between 0 and 1, for all channels or for each; none: 0.
        std: As `mean`; none: 1.
        channels_last: In memory the channels of a pixel lie next to each other.
        dtype: Of the images; none: float32.
        depth: How many batches are on a CUDA device, or on their way to it, before the next is handed out.

    Raises:
        InvalidRequest: The loader cannot be iterated over, an option makes no sense, there is no such device, or a
            batch has no image to normalise.
    """

    loader: Iterable[Any]
    device: torch.device | str | int | None = None
    mean: Levels | None = None
    std: Levels | None = None
    _: KW_ONLY
    channels_last: bool = False
    dtype: torch.dtype | None = None
    depth: int = 2
    _device: torch.device = field(init=False, repr=False)
    _change: Normalize | None = field(init=False, repr=False, default=None)
    _state: Any = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if not hasattr(self.loader, "__iter__"):
            raise InvalidRequest("loader", f"a {type(self.loader).__name__}", expected="an iterable of batches")
        check_least("depth", self.depth)
        self._device = _device_of(self.device)
        if self.channels_last or any(one is not None for one in (self.mean, self.std, self.dtype)):
            self._change = Normalize(self.mean, self.std, self.dtype, self.channels_last)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        self._state = None
        on_gpu = self._device.type == "cuda"
        sender = (SideStream if on_gpu else AtOnce)(self._device, self._change or (lambda tensor: tensor))
        batches, sent, depth = iter(self.loader), deque[_Sent](), self.depth if on_gpu else 1
        try:
            while True:
                while len(sent) < depth and not (sent and sent[-1].ends):
                    sent.append(self._send_next(batches, sender))
                first = sent.popleft()
                self._state = first.state
                if first.ends:
                    break
                yield first.hand_out()
        finally:
            sender.wait()
        if first.error is not None:
            raise first.error

    def _send_next(self, batches: Iterator[Any], sender: AtOnce | SideStream) -> _Sent:
        """Ask the loader for a batch and send it. An error waits until the batches before it are handed out."""
        try:
            sender.wait()
            batch = next(batches)
            state = getattr(self.loader, "state_dict", None)
            return _Sent(self._send(batch, sender), state() if state else None)
        except StopIteration:
            return _Sent(ends=True)
        except Exception as error:  # noqa: BLE001 - raised when its batch is asked for
            return _Sent(ends=True, error=error)

    def _send(self, batch: Any, sender: AtOnce | SideStream) -> HandOut:
        before = self._change.images if self._change else -1
        hand_out = sender.send(batch)
        if self._change and self._change.images == before:
            expected = "a uint8 tensor [n, h, w, c] or [n, c, h, w]"
            raise InvalidRequest("a batch", "no images to normalise", expected=expected)
        return hand_out

    def set_epoch(self, epoch: int) -> None:
        """Pass the number of the next epoch on to the loader."""
        self.loader.set_epoch(epoch)  # type: ignore[attr-defined]
        if isinstance(self._state, Mapping) and self._state.get("epoch", epoch) != epoch:
            self._state = None

    def state_dict(self) -> Any:
        """Return the loader's state after the last batch that was handed out, whatever was read ahead."""
        return self.loader.state_dict() if self._state is None else self._state  # type: ignore[attr-defined]

    def load_state_dict(self, state: Any) -> None:
        """Let the next iteration go on from a state."""
        self.loader.load_state_dict(state)  # type: ignore[attr-defined]
        self._state = None


class _Sent(NamedTuple):
    """A batch on its way, or the end; the loader's state after the batch; the error that ended the loader."""

    hand_out: HandOut = lambda: None
    state: Any = None
    ends: bool = False
    error: Exception | None = None


def _device_of(given: torch.device | str | int | None) -> torch.device:
    """Return the device, with its number where it is a GPU.

    Raises:
        InvalidRequest: There is no such device.
    """
    there = torch.cuda.is_available()
    try:
        device = torch.device(given if given is not None else "cuda" if there else "cpu")
    except RuntimeError as error:
        raise InvalidRequest("device", f"{given!r}", expected="a device of torch, such as 'cuda:0'") from error
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count() if there else 0
    number = device.index if device.index is not None else torch.cuda.current_device() if there else 0
    if number >= count:
        raise InvalidRequest("device", f"{given!r}, but torch can use {count} GPUs", remedy="Choose another, or 'cpu'.")
    return torch.device("cuda", number)
