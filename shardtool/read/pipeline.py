"""A pipeline is a sequence of stages that process samples.

A stage is a picklable function of one sample, or `Batch`. `Pipeline.run` does not read ahead, so a stream can save
its position after each output.
"""

from __future__ import annotations

from copy import copy
from dataclasses import field, replace
from functools import partial, wraps
from inspect import signature
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, NoReturn, ParamSpec, TypeAlias, TypeVar, cast

from shardtool.dataclass import dataclass
from shardtool.errors import InvalidRequest, SampleFailed, format_list
from shardtool.read.collate import Batch, ListFields, sample_name
from shardtool.read.decode import Decode, check_decoders, has_rng_parameter, seeded_rng
from shardtool.request.option_checks import check_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import TypedDict

    import numpy as np
    import typing_extensions
    from typing_extensions import Self

    from shardtool.read.decode import Decoder, ImageType, NewRng, RngOf, Size
    from shardtool.values import OnError, ValueType

    class DecodeOptions(TypedDict, total=False):
        """The options of `decode`."""

        images: ImageType
        reduce: Size | None
        on_error: OnError | None
        max_bytes: str | int

    SampleT = typing_extensions.TypeVar("SampleT", covariant=True, default=Any)  # noqa: PLC0105 - name lacks _co
else:
    SampleT = TypeVar("SampleT", covariant=True)  # noqa: PLC0105


OnMissing = Literal["raise", "skip", "none"]
SkipHandler: TypeAlias = "Callable[[SampleFailed], object]"
_RESERVED_FIELDS = ("__key__", "__dataset__", "__padding__")  # `Fields` always keeps these fields


@dataclass(frozen=True)
class Map:
    """Calls a function with the output of the previous stage. If the function returns None, the sample is skipped."""

    function: Callable[..., object]
    uses_rng: bool = field(default=False, init=False, repr=False, compare=False)
    can_skip = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidRequest(_stage_name(self), repr(self.function), expected="a function of a sample")
        object.__setattr__(self, "uses_rng", has_rng_parameter(self.function))

    def __call__(self, sample: object, rng: NewRng = seeded_rng) -> object:
        """Call the function. If the function has a parameter `rng`, pass the generator that `rng` creates."""
        return self.function(sample, rng=rng()) if self.uses_rng else self.function(sample)


class Filter(Map):
    """Skips samples for which a function returns a false value."""

    can_skip = True

    def __call__(self, sample: object, rng: NewRng = seeded_rng) -> object:
        """Return the sample, or None to skip it."""
        return sample if super().__call__(sample, rng) else None


@dataclass(frozen=True)
class _FieldStage:
    uses_rng = False
    names: tuple[str, ...]
    missing: OnMissing = "raise"
    _get: Callable[[object], tuple[object, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.names or not all(isinstance(name, str) and name for name in self.names):
            remedy = "Use filter(function) to choose samples." if any(map(callable, self.names)) else ""
            expected = "field names, such as 'jpg', 'cls'"
            raise InvalidRequest(_stage_name(self), repr(self.names), expected=expected, remedy=remedy)
        check_choice("missing", self.missing, OnMissing)
        object.__setattr__(self, "_get", itemgetter(*self.names))

    @property
    def can_skip(self) -> bool:
        return self.missing == "skip"

    @property
    def required_fields(self) -> frozenset[str]:
        return frozenset(self.names)

    def _type_error(self, sample: object) -> InvalidRequest:
        return InvalidRequest(_stage_name(self), f"a {type(sample).__name__}", expected="a sample with fields")

    def _missing_value(self, sample: dict[str, object], name: str) -> object:
        """Return the value of a missing field, or raise SampleFailed."""
        if name == "__padding__":  # samples have this field only with ends="pad"
            return False
        if self.missing != "none":
            existing = format_list([field_name for field_name in sample if field_name[:2] != "__"])
            remedy = "Use missing='skip' to skip such samples, or missing='none' for None."
            raise SampleFailed(f"sample {sample.get('__key__')}", f"no field {name}; it has {existing}", remedy=remedy)
        return None


class Fields(_FieldStage):
    """Keeps the named fields and the key."""

    def __call__(self, sample: dict[str, object]) -> dict[str, object]:
        """Return a copy of the sample with only these fields."""
        if not isinstance(sample, dict):
            raise self._type_error(sample)
        kept = {name: sample[name] for name in _RESERVED_FIELDS if name in sample}
        for name in self.names:
            kept[name] = sample[name] if name in sample else self._missing_value(sample, name)
        return kept


class Tuple(_FieldStage):
    """Makes a tuple of fields. `jpg;png` means the first of these fields that exists."""

    @property
    def required_fields(self) -> frozenset[str]:
        """The fields that the stage reads, including alternatives."""
        return frozenset(name for names in self.names for name in names.split(";"))

    def __call__(self, sample: dict[str, object]) -> tuple[object, ...]:
        """Return the values of the fields."""
        try:  # three times as fast as a loop over the names
            values = self._get(sample)
        except (KeyError, TypeError, IndexError):
            return tuple(self._first_existing(sample, names) for names in self.names)
        return values if len(self.names) > 1 else (values,)

    def _first_existing(self, sample: dict[str, object], names: str) -> object:
        if not isinstance(sample, dict):
            raise self._type_error(sample)
        for name in (names, *names.split(";")):  # a name may contain `;`
            if name in sample:
                return sample[name]
        return self._missing_value(sample, names.replace(";", " or "))


class DatasetPipelines(NamedTuple):
    """The stages of each dataset of a mix, by dataset number."""

    by_dataset: tuple[tuple[Stage, ...], ...]

    def with_on_error(self, on_error: OnError) -> DatasetPipelines:
        """Return a copy with this `on_error`."""
        return DatasetPipelines(tuple(tuple(_with_on_error(stages, on_error)) for stages in self.by_dataset))


Stage = Decode | Map | Fields | Tuple | DatasetPipelines


def _stages_for(stages: Sequence[Stage], sample: Any) -> Sequence[Any]:
    first = stages[0]
    return (*first.by_dataset[sample["__dataset__"]], *stages[1:]) if isinstance(first, DatasetPipelines) else stages


def _with_on_error(stages: Iterable[Any], on_error: OnError) -> Iterator[Any]:
    for stage in stages:
        if isinstance(stage, Decode):
            yield replace(stage, on_error=on_error)
        else:
            yield stage.with_on_error(on_error) if hasattr(stage, "with_on_error") else stage


@dataclass(frozen=True)
class Pipeline:
    """A sequence of stages.

    Attributes:
        types: Field types in the dataset file, for later `Decode` stages.
        on_error: Default `on_error` of these stages.
    """

    stages: tuple[Stage | Batch, ...] = ()
    types: Mapping[str, ValueType] = field(default_factory=dict, repr=False, compare=False)
    on_error: OnError = field(default="raise", repr=False, compare=False)

    def __str__(self) -> str:
        return "".join(f"; {type(stage).__name__.lower()}" for stage in self.stages)

    @property
    def required_fields(self) -> frozenset[str] | None:
        """The fields that the stages read, or None for all."""
        first = self.stages[0] if self.stages else None
        if isinstance(first, Decode):
            return first.only
        return first.required_fields if isinstance(first, _FieldStage) else None

    def then(self, stage: Stage | Batch) -> Pipeline:
        """Append a stage. `Decode` directly before `Fields` or `Tuple` decodes only the fields in `required_fields`."""
        stages = self.stages
        if getattr(stage, "can_skip", False) and any(isinstance(earlier, Batch) for earlier in stages):
            expected = "single samples: skip first, then batch"
            raise InvalidRequest(_stage_name(stage), "would skip batches", expected=expected)
        if isinstance(stage, Decode) and any(isinstance(earlier, Batch) for earlier in stages):
            raise InvalidRequest("decode", "called after batch", expected="single samples: decode first, then batch")
        if isinstance(stage, _FieldStage) and stages and isinstance(stages[-1], Decode):
            stages = (*stages[:-1], replace(stages[-1], only=stage.required_fields))
        if isinstance(stage, Decode):
            stage = replace(stage, types=self.types, on_error=stage.on_error or self.on_error)
        return replace(self, stages=(*stages, stage))

    def with_on_error(self, on_error: OnError) -> Pipeline:
        """Return the stages, with this `on_error` for each `Decode`."""
        return replace(self, stages=tuple(_with_on_error(self.stages, on_error)), on_error=on_error)

    def count(self, samples: int) -> int:
        """Return the number of outputs for this number of samples, if none is skipped."""
        for stage in self.stages:
            samples = stage.count(samples) if isinstance(stage, Batch) else samples
        return samples

    def apply(self, sample: object) -> object:
        """Return the result for one sample, or raise an error if a stage skips the sample."""
        return next(self.apply_each([sample], _raise_skipped))

    def apply_each(self, samples: Iterable[object], on_skip: SkipHandler) -> Iterator[object]:
        """Yield the result for each sample. `on_skip` gets the error of each skipped sample."""
        if any(isinstance(stage, Batch) for stage in self.stages):
            raise InvalidRequest("batch", "one sample was requested", expected="a loop over the batches")
        return _run_stages(cast("tuple[Stage, ...]", self.stages), samples, on_skip)

    def run(self, samples: Iterable[object], on_skip: SkipHandler, rng_of: RngOf = seeded_rng) -> Iterator[object]:
        """Yield the results. `on_skip` gets the error of a skipped sample, and returns a replacement or None."""
        stages: list[Stage] = []
        for stage in self.stages:
            if isinstance(stage, Batch):
                samples = stage.batches(_run_stages(stages, samples, on_skip, rng_of))
                on_skip = _raise_skipped_batch
                max_stages = sum(
                    max(map(len, earlier.by_dataset)) if isinstance(earlier, DatasetPipelines) else 1
                    for earlier in stages
                )
                # stages after a batch use different random generators
                stages, rng_of = [], partial(_shifted_rng, rng_of, max_stages + 1)
            else:
                stages.append(stage)
        return _run_stages(stages, samples, on_skip, rng_of)

    def __getstate__(self) -> dict[str, object]:
        from multiprocessing.context import get_spawning_popen

        # check only if a process is spawned, because other picklers, such as cloudpickle, accept any function
        if get_spawning_popen() is not None:
            nested = [stage.by_dataset if isinstance(stage, DatasetPipelines) else [(stage,)] for stage in self.stages]
            for stage in chain.from_iterable(chain.from_iterable(nested)):
                if isinstance(stage, Map):
                    _check_picklable(f"the function of {_stage_name(stage)}", stage.function)
                for name, decoder in stage.own if isinstance(stage, Decode) else ():
                    _check_picklable(f"the decoder of {name}", decoder)
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
    for original in samples:
        sample: object = original
        while sample is not None:  # a skipped sample may have replacements
            value = sample
            skipped = None
            try:
                for index, stage in enumerate(_stages_for(stages, sample)):
                    rng = (partial(rng_of, index),) if stage.uses_rng else ()
                    value = stage(value, *rng)
                    if value is None:
                        skipped = SampleFailed(sample_name(_key_of(sample)), f"dropped by {_stage_name(stage)}")
                        break
            except SampleFailed as error:
                if isinstance(stage, Map) or not stage.can_skip:  # in `Map`, None skips a sample, an error does not
                    raise
                skipped = error
            except Exception as error:
                _add_sample_note(error, sample)
                raise
            if skipped is None:
                yield value
                break
            sample = on_skip(skipped)


def _raise_skipped(error: SampleFailed) -> NoReturn:
    remedy = "Use a stream to skip such samples."
    raise SampleFailed(error.where, error.found, expected=error.expected, remedy=remedy) from error.__cause__


def _raise_skipped_batch(error: SampleFailed) -> NoReturn:
    expected = "a batch: skip samples before batch"
    raise InvalidRequest("map", "returned None for a batch", expected=expected) from error


def _key_of(sample: object) -> object:
    return sample.get("__key__") if isinstance(sample, dict) else None


def _add_sample_note(error: Exception, sample: object) -> None:
    key = _key_of(sample)
    if key is not None and hasattr(error, "add_note"):
        error.add_note(f"in the batch of {format_list(key)}" if isinstance(key, list) else f"in the sample {key}")


def _check_picklable(name: str, function: object) -> None:
    while isinstance(function, partial):
        function = function.func
    qualified_name = getattr(function, "__qualname__", type(function).__qualname__)
    if "<" in qualified_name:
        found = "a lambda" if "<lambda>" in qualified_name else f"{qualified_name}, defined in a function"
        remedy = "Define it at the top level of a module, or start the workers with fork."
        raise InvalidRequest(name, f"{found}, which cannot be sent to a worker process", remedy=remedy)


def _stage_name(stage: object) -> str:
    return type(stage).__name__.lower()


NewT = TypeVar("NewT")
AnyTuple = tuple[Any, ...]  # in the class below, `tuple` is a method
_Params = ParamSpec("_Params")
_ReturnT = TypeVar("_ReturnT")


_EQUIVALENT_METHODS = {  # methods of webdataset, wids, torchvision, datasets and pandas
    "add_transform": "map(function)",
    "batched": "batch(32)",
    "class_names": "classes",
    "column_names": "columns",
    "concatenate": "shardtool.open([path_of_a, path_of_b])",
    "describe": "shardtool.inspect(path)",
    "drop": "dataset[100:]",
    "head": "head(5) on the dataset",
    "info": "shardtool.inspect(path)",
    "iter_batches": "batch(32)",
    "labels": "column('cls'), or classes for their names",
    "listed": "batch(32)",
    "map_dict": "map(lambda sample: {**sample, 'jpg': function(sample['jpg'])})",
    "map_tuple": "tuple('jpg', 'cls').map(lambda pair: (function(pair[0]), pair[1]))",
    "num_rows": "len(dataset)",
    "num_samples": "len(dataset)",
    "pack": "pack(4096) on the dataset, before stream()",
    "prefetch": "shardtool.torch.loader(dataset, 32)",
    "remove_columns": "fields('jpg', 'cls')",
    "rename": "map(lambda sample: {'image': sample['jpg'], 'label': sample['cls']})",
    "rename_column": "map(lambda sample: {'image': sample['jpg'], 'label': sample['cls']})",
    "repeat": "stream(): each iteration over it is the next epoch",
    "sample": "stream(shuffle=True, seed=0)",
    "save": "shardtool.reshard(path, output)",
    "save_to_disk": "shardtool.reshard(path, output)",
    "select": "fields('jpg', 'cls') for fields, or select([0, 5]) on the dataset for samples",
    "select_columns": "fields('jpg', 'cls')",
    "shape": "len(dataset) and field_counts",
    "show": "shardtool.inspect(path), or inspect_html for a page",
    "shuffle": "stream(shuffle=True, seed=0)",
    "skip": "dataset[1000:]",
    "slice": "dataset[:1000], or dataset.select(numbers)",
    "sort": "dataset.select(numbers), or shardtool.reshard(path, output, sort_by=...)",
    "split": "partition('train')",
    "take": "take(1000) on the dataset, before stream()",
    "to_iterable_dataset": "stream()",
    "to_list": "[*dataset]",
    "to_tf": "shardtool.tensorflow.tf_dataset(path)",
    "to_torch": "shardtool.torch.loader(dataset, 32)",
    "to_tuple": "tuple('jpg', 'cls')",
    "train_test_split": "open(..., splits={'train': 0.9, 'test': 0.1})",
    "transform": "map(function)",
    "unique": "classes, or to_pandas()['cls'].unique()",
    "with_epoch": "stream(): its epochs have a fixed length, equal for all ranks",
    "with_format": "shardtool.torch.loader(dataset, 32)",
    "with_length": "stream(): its epochs have a fixed length, equal for all ranks",
}


_WORKERS_HINT = "Pass it to DataLoader(StreamDataset(dataset, batch_size), batch_size, ...); loader(...) has threads=."
_SAMPLER_HINT = "Pass it to DataLoader(MapDataset(dataset), ...); a stream has shuffle= and seed=."
_DATALOADER_HINTS = {
    "batch_sampler": _SAMPLER_HINT,
    "batch_size": "Pass it to loader(dataset, 32) or StreamDataset(dataset, 32), or call .batch(32).",
    "collate_fn": "loader(...) has collate=; with a StreamDataset, pass it to the DataLoader.",
    "drop_last": "Pass it to loader(...), or call .batch(32, drop_last=True).",
    "generator": "Use seed=: the order depends only on it and the epoch.",
    "num_workers": _WORKERS_HINT,
    "persistent_workers": _WORKERS_HINT,
    "pin_memory": "Pass it to loader(...), or, with a StreamDataset, to the DataLoader.",
    "prefetch_factor": "loader(...) has depth=, in batches; with a StreamDataset, pass it to the DataLoader.",
    "sampler": _SAMPLER_HINT,
    "shuffle": "Pass it to stream(...), loader(...) or StreamDataset(...).",
}


def refuse_dataloader_options(options: Mapping[str, object], known: Collection[str]) -> None:
    """Raise InvalidRequest for an option of PyTorch's DataLoader. The error names shardtool's equivalent option."""
    for name in options.keys() & _DATALOADER_HINTS.keys() - set(known):
        raise InvalidRequest(name, "an option of PyTorch's DataLoader", remedy=_DATALOADER_HINTS[name])


def with_dataloader_hints(function: Callable[_Params, _ReturnT]) -> Callable[_Params, _ReturnT]:
    """Decorate a function. Each call first passes its options to `refuse_dataloader_options`."""
    known = signature(function).parameters

    @wraps(function)
    def checked(*arguments: _Params.args, **options: _Params.kwargs) -> _ReturnT:
        refuse_dataloader_options(options, known)
        return function(*arguments, **options)

    return checked


class PipelineMethods(Generic[SampleT]):
    """Base class of datasets and streams. Each method returns a copy with one more stage."""

    stages: Pipeline = Pipeline()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            hint = f". Use {_EQUIVALENT_METHODS[name]}" if name in _EQUIVALENT_METHODS else ""
            raise AttributeError(f"{type(self).__name__} has no {name}{hint}", name=name, obj=self)

    def with_stages(self, stages: Pipeline) -> Self:
        """Return a copy with these stages."""
        changed = copy(self)
        changed.stages = stages
        return changed

    def _then(self, stage: Stage | Batch) -> Any:
        return self.with_stages(self.stages.then(stage))

    def decode(
        self, own: Mapping[str, Decoder] | None = None, *, images: ImageType = "numpy", reduce: Size | None = None,
        on_error: OnError | None = None, max_bytes: str | int = "1GiB",
    ) -> Any:  # fmt: skip
        """Decode fields by name, for example `jpg` to an array, `cls` to an int, and `txt` to a str.

        Other fields get the type that the dataset file records, or stay bytes. See `read.decode.Decode`.

        Args:
            own: Decoders by field or extension. A decoder is a function of the bytes, None for bytes, or a name
                (`numpy`, `pil`, `mask`, `audio`, `int`, `float`, `bool`, `text`, `json`, `npy`). The longest matching
                extension applies.
            images: `numpy` returns writable uint8 arrays [height, width, 3], upright and in RGB. `pil` returns Pillow
                images of mode RGB.
            reduce: Minimum width and height. A JPEG is decoded at 1/8, 1/4 or 1/2 of its size if the result is at
                least this large.
            on_error: What to do with a sample that cannot be decoded: `raise` an error, or `skip` and count the sample.
                The default is the value passed to `open`.
            max_bytes: Memory limit for decoding an image or audio.
        """
        return self._then(Decode(check_decoders(own), images, reduce, on_error, max_bytes))

    def map(self, function: Callable[..., object]) -> Any:
        """Call `function` with the output of the previous stage. If `function` returns None, the sample is skipped.

        A parameter `rng` of `function` gets a NumPy random generator. A stream derives the generator from the seed, the
        epoch and the position, so random numbers do not depend on threads, workers, ranks or a resume.
        """
        return self._then(Map(function))

    def filter(self, function: Callable[..., object]) -> Self:
        """Skip samples for which `function` returns a false value. A stream counts the skipped samples.

        On a single rank, `len` also counts skipped samples. For several ranks, see `Stream`. To select samples by
        columns without reading the samples, use `Dataset.where`.
        """
        return self.with_stages(self.stages.then(Filter(function)))

    def fields(self, *names: str, missing: OnMissing = "raise") -> Self:
        """Keep only these fields, and the key.

        If a sample lacks a field, `missing` determines whether to `raise` an error, `skip` the sample, or use None
        (`none`).
        """
        return self.with_stages(self.stages.then(Fields(names, missing)))

    def tuple(self, *fields: str, missing: OnMissing = "raise") -> Any:
        """Make a tuple of these fields: `tuple("jpg;png", "cls")` uses jpg, or png if there is no jpg.

        For `missing`, see `fields`.
        """
        return self._then(Tuple(fields, missing))

    def batch(
        self, size: int | None = None, *, drop_last: bool = False, lists: ListFields = (), **dataset_options: Any
    ) -> Any:
        """Make batches of `size` samples. See `read.collate.collate`.

        `drop_last` skips a smaller last batch. `lists` names fields, such as boxes, that always become a list.

        Raises:
            InvalidRequest: The size is not a positive integer, or another option of `Dataset.batch` is given.
        """
        if dataset_options:
            expected = "size, drop_last and lists"
            remedy = "For batches by size, use dataset.batch(by='length', tokens=...).stream()."
            raise InvalidRequest("batch", f"given {format_list([*dataset_options])}", expected=expected, remedy=remedy)
        return self._then(Batch(cast("int", size), drop_last, lists))
