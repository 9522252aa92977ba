"""The methods that add a stage to a dataset or stream: `decode`, `map`, `filter`, `select`, `tuple` and `batch`.

Methods and options that other libraries have get an error that names the equivalent.
"""

from __future__ import annotations

from copy import copy
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, cast

from shardtool.errors import InvalidRequest, format_list
from shardtool.read.collate import Batch, ListFields
from shardtool.read.decode import Decode, Decoder, ImageType, Size, check_decoders
from shardtool.read.pipeline import Filter, Map, OnMissing, Pipeline, Select, Tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from typing_extensions import Self

    from shardtool.values import OnBadSample


_Given = ParamSpec("_Given")


_ReturnT = TypeVar("_ReturnT")


_EQUIVALENT_METHODS = {  # of webdataset, wids, torchvision and datasets: what says the same here
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


_WORKERS_HINT = "Give it to DataLoader(StreamDataset(dataset, batch_size), batch_size, ...); loader(...) has threads=."


_SAMPLER_HINT = "Give it to DataLoader(MapDataset(dataset), ...); a stream has shuffle= and seed=."


_DATALOADER_HINTS = {
    "batch_sampler": _SAMPLER_HINT,
    "batch_size": "Give it to loader(dataset, 32) or StreamDataset(dataset, 32), or add batch(32) to the chain.",
    "collate_fn": "loader(...) has collate=; of a StreamDataset it belongs to the DataLoader.",
    "drop_last": "Give it to loader(...), or to batch(32, drop_last=True) of the chain.",
    "generator": "The order depends on seed= and the epoch alone.",
    "num_workers": _WORKERS_HINT,
    "persistent_workers": _WORKERS_HINT,
    "pin_memory": "Give it to loader(...), or, with a StreamDataset, to the DataLoader.",
    "prefetch_factor": "loader(...) has depth=, batches under way; of a StreamDataset it belongs to the DataLoader.",
    "sampler": _SAMPLER_HINT,
    "shuffle": "Give it to stream(...), loader(...) or StreamDataset(...).",
}


def refuse_dataloader_options(options: Mapping[str, object], known: Collection[str]) -> None:
    """Say what an option of PyTorch's DataLoader is here, where it is given to what does not know it.

    Raises:
        InvalidRequest: One is.
    """
    for name in options.keys() & _DATALOADER_HINTS.keys() - set(known):
        raise InvalidRequest(name, "an option of PyTorch's DataLoader", remedy=_DATALOADER_HINTS[name])


def with_dataloader_hints(function: Callable[_Given, _ReturnT]) -> Callable[_Given, _ReturnT]:
    """Have a function say what an option of PyTorch's DataLoader is here."""
    known = signature(function).parameters

    @wraps(function)
    def called(*given: _Given.args, **options: _Given.kwargs) -> _ReturnT:
        refuse_dataloader_options(options, known)
        return function(*given, **options)

    return called


class PipelineMethods:
    """What has samples, and does something to them: each method returns a copy that does one thing more."""

    stages: Pipeline = Pipeline()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say what the word of another reader is here."""
            here = f". Here it is {_EQUIVALENT_METHODS[name]}" if name in _EQUIVALENT_METHODS else ""
            raise AttributeError(f"{type(self).__name__} has no {name}{here}", name=name, obj=self)

    def with_stages(self, stages: Pipeline) -> Self:
        """Return a copy with other stages."""
        found = copy(self)
        found.stages = stages
        return found

    def decode(
        self,
        own: Mapping[str, Decoder] | None = None,
        *,
        images: ImageType = "numpy",
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
        return self.with_stages(self.stages.then(Decode(check_decoders(own), images, reduce, on_error, max_bytes)))

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

    def select(self, *fields: str, missing: OnMissing = "error") -> Self:
        """Keep these fields.

        Args:
            fields: Their names.
            missing: What becomes of a sample that lacks one: `error`, `skip` (a stream leaves it out, and counts it),
                or `none`: the field is None.
        """
        return self.with_stages(self.stages.then(Select(fields, missing)))

    def tuple(self, *fields: str, missing: OnMissing = "error") -> Self:
        """Make a tuple of these fields: `tuple("jpg;png", "cls")` takes jpg, or else png.

        Args:
            fields: Their names, or alternatives.
            missing: As for `select`.
        """
        return self.with_stages(self.stages.then(Tuple(fields, missing)))

    def batch(
        self, size: int | None = None, *, drop_last: bool = False, lists: ListFields = (), **of_dataset: Any
    ) -> Self:
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
            raise InvalidRequest("batch", f"given {format_list([*of_dataset])}", expected=expected, remedy=remedy)
        return self.with_stages(self.stages.then(Batch(cast("int", size), drop_last, lists)))
