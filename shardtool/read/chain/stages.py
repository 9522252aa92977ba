"""What is done to samples on their way to training: a short chain of stages, which `Dataset` and `Stream` share.

A stage is a picklable value: a function of one sample, but for `Batch`, which takes several. `Stages.run` takes no
more samples than what it has given needs, so that the position of the stream below is that of what came out.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from numbers import Integral
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NoReturn, TypeAlias, cast

import numpy as np

from shardtool.errors import InvalidRequest, SampleFailed, ShardError, listing
from shardtool.read.chain.decode import Decode, own_decoders
from shardtool.request.choices import check_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray
    from typing_extensions import Self

    from shardtool.read.chain.decode import Decoder, Images
    from shardtool.values import OnBadSample


# Samples become a batch: arrays where their values allow it, lists where not.


_NUMBERS = {int: np.int64, float: np.float64, bool: np.bool_}


@dataclass(frozen=True)
class Batch:
    """Makes a batch of so many samples; see `collate`."""

    size: int
    drop_last: bool = False

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
                yield collate(some)


def collate(samples: list[object]) -> object:
    """Return samples as one batch.

    Dicts become a dict of batched fields, tuples a tuple. A field becomes an array [samples, ...] where its values are
    arrays of one shape and type, or numbers: int64, float64 or bool. Otherwise it becomes a list.

    Raises:
        SampleFailed: A sample lacks a field of another, or has another number of values.
    """
    first = samples[0]
    if isinstance(first, dict):
        for sample in samples:
            if not isinstance(sample, dict) or sample.keys() != first.keys():
                raise _unlike(first, sample)
        return {name: _joined([sample[name] for sample in samples]) for name in first}  # type: ignore[index]
    if isinstance(first, tuple):
        for sample in samples:
            if not isinstance(sample, tuple) or len(sample) != len(first):
                raise SampleFailed("a batch", "samples of different forms", expected=f"tuples of {len(first)}")
        return tuple(_joined([sample[at] for sample in samples]) for at in range(len(first)))  # type: ignore[index]
    return _joined(samples)


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


def _unlike(first: dict[str, object], sample: object) -> ShardError:
    """Return the error of samples that make no batch."""
    if not isinstance(sample, dict):
        return InvalidRequest("batch", f"a {type(sample).__name__} among samples with fields")
    name = min(first.keys() ^ sample.keys())
    where = first if name in sample else sample
    remedy = f"select({name!r}, ..., missing='none') before batch gives None, missing='skip' leaves such samples out."
    return SampleFailed(
        f"sample {where.get('__key__')}", f"no field {name}, as others of its batch have", remedy=remedy
    )


Missing = Literal["error", "skip", "none"]
Size = tuple[int, int]
OnSkip: TypeAlias = "Callable[[SampleFailed], object]"
_OWN = ("__key__", "__padding__")  # what every sample keeps


@dataclass(frozen=True)
class Map:
    """Calls a function with each sample, or whatever the stage before it gives."""

    function: Callable[..., object]
    leaves_out = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidRequest("map", repr(self.function), expected="a function of a sample")

    def functions(self) -> Iterator[tuple[str, object]]:
        """Yield the function, and what a message calls it."""
        yield "the function of map", self.function

    def __call__(self, sample: object) -> object:
        """Return what the function makes of a sample."""
        return self.function(sample)


@dataclass(frozen=True)
class _FieldStage:
    """A stage that takes fields by their names.

    Attributes:
        names: The fields.
        missing: What becomes of a sample that lacks one: an `error`, `skip` (a stream leaves it out, and counts it),
            or `none`: the field is None.
    """

    names: tuple[str, ...]
    missing: Missing = "error"
    _get: Callable[[object], tuple[object, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.names or not all(isinstance(name, str) and name for name in self.names):
            raise InvalidRequest(_call(self), repr(self.names), expected="names of fields, such as 'jpg', 'cls'")
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

    def functions(self) -> Iterator[tuple[str, object]]:
        """Yield nothing: no function of the caller's is called."""
        return iter(())

    def _lacking(self, sample: object, name: str) -> object:
        """Return what stands for a field that a sample lacks."""
        if not isinstance(sample, dict):
            raise InvalidRequest(_call(self), f"a {type(sample).__name__}", expected="a sample with fields")
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


Each = Decode | Map | Select | Tuple


@dataclass(frozen=True)
class Stages:
    """What is done to samples, in this order."""

    stages: tuple[Each | Batch, ...] = ()

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
        return Stages((*before, stage))

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

    def run(self, samples: Iterable[object], on_skip: OnSkip) -> Iterator[object]:
        """Yield what becomes of samples.

        Args:
            samples: The samples of a stream.
            on_skip: Called with the error of each sample that is left out; returns the one that comes in its place, or
                None.

        Raises:
            SampleFailed: A field is missing, or cannot be decoded.
        """
        each: list[Each] = []
        for stage in self.stages:
            if isinstance(stage, Batch):
                samples, each = stage.over(_each(each, samples, on_skip)), []
            else:
                each.append(stage)
        return _each(each, samples, on_skip)

    def __getstate__(self) -> dict[str, object]:
        """Return what is pickled.

        Raises:
            InvalidRequest: It goes to a worker process that is started anew, which a function of no module cannot.
        """
        from multiprocessing.context import get_spawning_popen

        if get_spawning_popen() is not None:  # other picklers, such as cloudpickle, may well be able to
            for stage in self.stages:
                for what, function in () if isinstance(stage, Batch) else stage.functions():
                    _check_travels(what, function)
        return vars(self)


class Chain:
    """What has samples, and does something to them: each method returns a copy that does one thing more."""

    stages: Stages = Stages()

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
        """Decode fields by their names: images to arrays, `cls` to int, `json`, `txt`, `npy`; others stay bytes.

        Args:
            own: Field or ending to a function of its bytes, the name of a decoder (`numpy`, `pil`, `mask`, `int`,
                `float`, `text`, `json`, `npy`), or None to leave it. The longest ending given here decides.
            images: `numpy`: uint8 [height, width, 3] in RGB, upright, writable; `pil`: Pillow's, in mode RGB.
            reduce: Width and height that are enough: JPEGs are decoded at 1/8, 1/4 or 1/2 where both sides are no
                shorter then, the smallest such.
            on_error: `skip`: a stream leaves out, and counts, samples that cannot be decoded.
            max_bytes: What decoding an image may take; one that would take more cannot be decoded.

        See `reading.chain.decode.Decode` for the rules of each kind of image.
        """
        return self.with_stages(self.stages.then(Decode(own_decoders(own), images, reduce, on_error, max_bytes)))

    def map(self, function: Callable[..., object]) -> Self:
        """Call `function` with each sample, or what the stage before gives. Its errors pass, and name the sample."""
        return self.with_stages(self.stages.then(Map(function)))

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

    def batch(self, size: int, *, drop_last: bool = False) -> Self:
        """Make batches of `size` samples: see `reading.chain.batch.collate`.

        Args:
            size: Samples of a batch.
            drop_last: Leave out a last batch that is smaller.
        """
        return self.with_stages(self.stages.then(Batch(size, drop_last)))


def _each(stages: Iterable[Each], samples: Iterable[object], on_skip: OnSkip) -> Iterator[object]:
    stages = tuple(stages)
    if not stages:
        return iter(samples)
    return _through(stages, samples, on_skip)


def _through(stages: tuple[Each, ...], samples: Iterable[object], on_skip: OnSkip) -> Iterator[object]:
    for own in samples:
        sample: object = own
        while sample is not None:
            value = sample
            try:
                for stage in stages:
                    value = stage(value)  # type: ignore[arg-type]
            except SampleFailed as error:
                if not stage.leaves_out:
                    raise
                sample = on_skip(error)
                continue
            except Exception as error:
                _name_sample(error, sample)
                raise
            yield value
            break


def _refuse(error: SampleFailed) -> NoReturn:
    """Raise the error of one sample that was asked for; that a stream leaves it out is no help here."""
    remedy = "A stream leaves such samples out."
    raise SampleFailed(error.where, error.found, expected=error.expected, remedy=remedy) from error.__cause__


def _name_sample(error: Exception, sample: object) -> None:
    """Add to an error of the caller's function which sample it was (Python 3.11)."""
    key = sample.get("__key__") if isinstance(sample, dict) else None
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
