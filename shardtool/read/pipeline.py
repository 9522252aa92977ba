"""The stages that a sample passes through on its way to training. `Dataset` and `Stream` share them.

A stage is a picklable function of one sample, except `Batch`, which takes several. `Pipeline.run` takes no more
samples
than its output needs, so that the position of the stream below is the position of what came out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias

from shardtool.errors import InvalidRequest, SampleFailed, format_list
from shardtool.read.collate import Batch, sample_name
from shardtool.read.decode import Decode, NewRng, RngOf, has_rng_parameter, seeded_rng
from shardtool.request.option_checks import check_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np

    from shardtool.values import ValueType


OnMissing = Literal["error", "skip", "none"]


SkipHandler: TypeAlias = "Callable[[SampleFailed], object]"


_RESERVED_FIELDS = ("__key__", "__dataset__", "__padding__")  # what every sample keeps


@dataclass(frozen=True)
class Map:
    """Calls a function with each sample, or whatever the stage before it gives; None: the sample is left out."""

    function: Callable[..., object]
    draws: bool = field(default=False, init=False, repr=False, compare=False)
    can_skip = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidRequest(_stage_name(self), repr(self.function), expected="a function of a sample")
        object.__setattr__(self, "draws", has_rng_parameter(self.function))

    def __call__(self, sample: object, rng: NewRng = seeded_rng) -> object:
        """Return what the function makes of a sample, and of the generator that it may ask for."""
        return self.function(sample, rng=rng()) if self.draws else self.function(sample)


class Filter(Map):
    """Leaves out samples for which a function is false."""

    can_skip = True

    def __call__(self, sample: object, rng: NewRng = seeded_rng) -> object:
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
    missing: OnMissing = "error"
    _get: Callable[[object], tuple[object, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.names or not all(isinstance(name, str) and name for name in self.names):
            remedy = "filter(function) chooses samples." if any(map(callable, self.names)) else ""
            expected = "names of fields, such as 'jpg', 'cls'"
            raise InvalidRequest(_stage_name(self), repr(self.names), expected=expected, remedy=remedy)
        check_choice("missing", self.missing, OnMissing)
        object.__setattr__(self, "_get", itemgetter(*self.names))

    @property
    def can_skip(self) -> bool:
        """Whether a stream goes on without a sample that lacks a field."""
        return self.missing == "skip"

    @property
    def wanted(self) -> frozenset[str]:
        """The fields that are looked at."""
        return frozenset(self.names)

    def _lacking(self, sample: object, name: str) -> object:
        """Return what stands for a field that a sample lacks."""
        if not isinstance(sample, dict):
            raise InvalidRequest(_stage_name(self), f"a {type(sample).__name__}", expected="a sample with fields")
        if name == "__padding__":  # of a sample that was read for its own sake
            return False
        if self.missing != "none":
            there = format_list([one for one in sample if one[:2] != "__"])
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
        kept = {name: sample[name] for name in _RESERVED_FIELDS if name in sample}
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


class DatasetPipelines(NamedTuple):
    """What is done first to the samples of a mix: the stages of each dataset, by the `__dataset__` of its samples."""

    each: tuple[tuple[Stage, ...], ...]


Stage = Decode | Map | Select | Tuple | DatasetPipelines


def _stages_for(stages: Sequence[Stage], sample: Any) -> Sequence[Any]:
    """Return the stages of a sample: of one of a mix, those of its dataset, and then those of the mix."""
    first = stages[0]
    return (*first.each[sample["__dataset__"]], *stages[1:]) if isinstance(first, DatasetPipelines) else stages


@dataclass(frozen=True)
class Pipeline:
    """What is done to samples, in this order.

    Attributes:
        stages: Each step.
        types: What values of fields were when they were written, as the dataset file says, for stages to come.
    """

    stages: tuple[Stage | Batch, ...] = ()
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

    def then(self, stage: Stage | Batch) -> Pipeline:
        """Return these stages and one more. Of fields that are dropped after they were decoded, none is decoded.

        Raises:
            InvalidRequest: It would decode batches, or leave them out.
        """
        before = self.stages
        if getattr(stage, "can_skip", False) and any(isinstance(one, Batch) for one in before):
            raise InvalidRequest(
                _stage_name(stage), "leaves out batches", expected="samples: leave out first, then batch"
            )
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
        return next(_run_stages(each, [sample], _raise_skipped))

    def run(self, samples: Iterable[object], on_skip: SkipHandler, rng_of: RngOf = seeded_rng) -> Iterator[object]:
        """Yield what becomes of samples.

        Args:
            samples: The samples of a stream.
            on_skip: Called with the error of each sample that is left out; returns the one that comes in its place, or
                None.
            rng_of: Makes the generator that a stage draws from, for the sample that was taken last.

        Raises:
            SampleFailed: A field is missing, or cannot be decoded.
        """
        each: list[Stage] = []
        for stage in self.stages:
            if isinstance(stage, Batch):
                samples, on_skip = stage.over(_run_stages(each, samples, on_skip, rng_of)), _raise_skipped_batch
                longest = sum(max(map(len, one.each)) if isinstance(one, DatasetPipelines) else 1 for one in each)
                each, rng_of = [], partial(_shifted_rng, rng_of, longest + 1)
            else:
                each.append(stage)
        return _run_stages(each, samples, on_skip, rng_of)

    def __getstate__(self) -> dict[str, object]:
        """Return what is pickled.

        Raises:
            InvalidRequest: It goes to a worker process that is started anew, which a function of no module cannot.
        """
        from multiprocessing.context import get_spawning_popen

        if get_spawning_popen() is not None:  # other picklers, such as cloudpickle, may well be able to
            chains = [stage.each if isinstance(stage, DatasetPipelines) else ((stage,),) for stage in self.stages]
            for stage in chain.from_iterable(chain.from_iterable(chains)):
                if isinstance(stage, Map):
                    _check_picklable(f"the function of {_stage_name(stage)}", stage.function)
                for name, given in stage.own if isinstance(stage, Decode) else ():
                    _check_picklable(f"the decoder of {name}", given)
        return vars(self)


def _shifted_rng(rng_of: RngOf, first: int, stage: int) -> np.random.Generator:
    return rng_of(first + stage)


def _run_stages(
    stages: Sequence[Stage], samples: Iterable[object], on_skip: SkipHandler, rng_of: RngOf = seeded_rng
) -> Iterator[object]:
    return _run_each(stages, samples, on_skip, rng_of) if stages else iter(samples)


def _run_each(
    stages: Sequence[Stage], samples: Iterable[object], on_skip: SkipHandler, rng_of: RngOf
) -> Iterator[object]:
    for own in samples:
        sample: object = own
        while sample is not None:
            value = sample
            left_out = None
            try:
                for at, stage in enumerate(_stages_for(stages, sample)):
                    rng = (partial(rng_of, at),) if stage.draws else ()
                    value = stage(value, *rng)
                    if value is None:
                        left_out = SampleFailed(sample_name(_key_of(sample)), f"dropped by {_stage_name(stage)}")
                        break
            except SampleFailed as error:
                if isinstance(stage, Map) or not stage.can_skip:
                    raise
                left_out = error
            except Exception as error:
                _add_sample_note(error, sample)
                raise
            if left_out is None:
                yield value
                break
            sample = on_skip(left_out)


def _raise_skipped(error: SampleFailed) -> NoReturn:
    """Raise the error of one sample that was asked for; that a stream leaves it out is no help here."""
    remedy = "A stream leaves such samples out."
    raise SampleFailed(error.where, error.found, expected=error.expected, remedy=remedy) from error.__cause__


def _raise_skipped_batch(error: SampleFailed) -> NoReturn:
    """Refuse to leave out a batch: not all ranks would."""
    expected = "a batch: leave out samples before batch"
    raise InvalidRequest("map", "None for a batch", expected=expected) from error


def _key_of(sample: object) -> object:
    return sample.get("__key__") if isinstance(sample, dict) else None


def _add_sample_note(error: Exception, sample: object) -> None:
    """Add to an error of the caller's function which sample it was (Python 3.11)."""
    key = _key_of(sample)
    if key is not None and hasattr(error, "add_note"):
        error.add_note(f"in the batch of {format_list(key)}" if isinstance(key, list) else f"in the sample {key}")


def _check_picklable(what: str, function: object) -> None:
    """Refuse a function that no other process can find: a lambda, or one that another function defines."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if "<" in name:
        found = "a lambda" if "<lambda>" in name else f"{name}, defined in a function"
        remedy = "Define it at the top level of a module, or start workers with fork."
        raise InvalidRequest(what, f"{found}, which cannot go to a worker process", remedy=remedy)


def _stage_name(stage: object) -> str:
    return type(stage).__name__.lower()
