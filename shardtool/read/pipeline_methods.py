"""The methods of datasets and streams that add a stage.

Methods and options of other libraries raise an error that names the equivalent.
"""

from __future__ import annotations

from copy import copy
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, cast

from shardtool.errors import InvalidRequest, format_list
from shardtool.read.collate import Batch, ListFields
from shardtool.read.decode import Decode, Decoder, ImageType, Size, check_decoders
from shardtool.read.pipeline import Fields, Filter, Map, OnMissing, Pipeline, Tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import TypedDict

    import typing_extensions
    from typing_extensions import Self

    from shardtool.read.pipeline import Stage
    from shardtool.values import OnError

    class DecodeOptions(TypedDict, total=False):
        """The options of `decode`."""

        images: ImageType
        reduce: Size | None
        on_error: OnError | None
        max_bytes: str | int

    SampleT = typing_extensions.TypeVar("SampleT", covariant=True, default=Any)  # noqa: PLC0105 - as in Arrow's stubs
else:
    SampleT = TypeVar("SampleT", covariant=True)  # noqa: PLC0105
NewT = TypeVar("NewT")
AnyTuple = tuple[Any, ...]  # defined here, because `tuple` is a method in the class below
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
    """Raise InvalidRequest for options of PyTorch's DataLoader, and name the equivalent."""
    for name in options.keys() & _DATALOADER_HINTS.keys() - set(known):
        raise InvalidRequest(name, "an option of PyTorch's DataLoader", remedy=_DATALOADER_HINTS[name])


def with_dataloader_hints(function: Callable[_Params, _ReturnT]) -> Callable[_Params, _ReturnT]:
    """Make a function raise InvalidRequest for options of PyTorch's DataLoader."""
    known = signature(function).parameters

    @wraps(function)
    def checked(*arguments: _Params.args, **options: _Params.kwargs) -> _ReturnT:
        refuse_dataloader_options(options, known)
        return function(*arguments, **options)

    return checked


class PipelineMethods(Generic[SampleT]):
    """Base class of datasets and streams. Each method adds a stage to a copy. `SampleT` is the type of the samples."""

    stages: Pipeline = Pipeline()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            hint = f". Use {_EQUIVALENT_METHODS[name]}" if name in _EQUIVALENT_METHODS else ""
            raise AttributeError(f"{type(self).__name__} has no {name}{hint}", name=name, obj=self)

    def with_stages(self, stages: Pipeline) -> Self:
        """Return a copy with other stages."""
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

        Fields with another name get the type that the dataset file records, or stay bytes. See `read.decode.Decode`.

        Args:
            own: Decoders by field or extension. A decoder is a function of the bytes, None for bytes, or a name
                (`numpy`, `pil`, `mask`, `audio`, `int`, `float`, `bool`, `text`, `json`, `npy`). The longest matching
                extension applies.
            images: `numpy` for upright RGB images, writable uint8 [height, width, 3], or `pil` for Pillow images of
                mode RGB.
            reduce: Sufficient width and height. A JPEG is decoded at 1/8, 1/4 or 1/2 of its size if both sides stay
                large enough.
            on_error: What to do with a sample that cannot be decoded: `raise` an error, or `skip` and count the sample.
                The default is the value passed to `open`.
            max_bytes: Memory limit for decoding an image or audio.
        """
        return self._then(Decode(check_decoders(own), images, reduce, on_error, max_bytes))

    def map(self, function: Callable[..., object]) -> Any:
        """Call `function` with the output of the previous stage. If `function` returns None, the sample is skipped.

        If `function` has a parameter `rng`, it gets a NumPy random generator. A stream derives the generator from the
        seed, the epoch and the position, so its numbers do not depend on threads, workers, ranks or a resume.
        """
        return self._then(Map(function))

    def filter(self, function: Callable[..., object]) -> Self:
        """Skip samples for which `function` returns a false value. A stream counts the skipped samples.

        On a single rank, `len` is then an upper bound. With several ranks, a stream replaces skipped samples; see
        `Stream`. To select samples by columns without reading them, use `Dataset.where`.
        """
        return self.with_stages(self.stages.then(Filter(function)))

    def fields(self, *names: str, missing: OnMissing = "raise") -> Self:
        """Keep these fields.

        `missing` determines what happens if a sample lacks a field: `raise` an error, `skip` the sample (a stream
        counts it), or use None (`none`).
        """
        return self.with_stages(self.stages.then(Fields(names, missing)))

    def tuple(self, *fields: str, missing: OnMissing = "raise") -> Any:
        """Make a tuple of these fields: `tuple("jpg;png", "cls")` uses jpg, or png if there is no jpg.

        `missing` has the same meaning as in `fields`.
        """
        return self._then(Tuple(fields, missing))

    def batch(
        self, size: int | None = None, *, drop_last: bool = False, lists: ListFields = (), **dataset_options: Any
    ) -> Any:
        """Make batches of `size` samples. See `read.collate.collate`.

        `drop_last` skips a smaller last batch. `lists` are fields that always become a list, such as boxes. Only
        `Dataset.batch` accepts the other options.

        Raises:
            InvalidRequest: The size is not a positive integer, or another option is given.
        """
        if dataset_options:
            expected = "size, drop_last and lists"
            remedy = "For batches by size, use dataset.batch(by='length', tokens=...).stream()."
            raise InvalidRequest("batch", f"given {format_list([*dataset_options])}", expected=expected, remedy=remedy)
        return self._then(Batch(cast("int", size), drop_last, lists))
