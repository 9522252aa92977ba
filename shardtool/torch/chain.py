"""What becomes of samples on the way to a batch: the dataset's own chain, then the options of a loader or dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from shardtool.errors import InvalidRequest
from shardtool.reading.chain.decode import Decode, own_decoders
from shardtool.reading.chain.stages import Map, Stages
from shardtool.reading.stream import Stream, Streamable

if TYPE_CHECKING:
    from shardtool.reading.chain.decode import Decoder

Decoders: TypeAlias = "bool | Mapping[str, Decoder] | Decode | None"
Transform: TypeAlias = Callable[[Any], Any]
Given = TypeVar("Given", bound=Streamable | Stream)


@dataclass(frozen=True)
class Labelled:
    """Gives each sample the label of its key, as its field `label`."""

    labels: Mapping[str, Any]

    def __call__(self, sample: dict[str, object]) -> dict[str, object]:
        """Return the sample with its label.

        Raises:
            InvalidRequest: There is none for its key, or the sample is no dict.
        """
        if not isinstance(sample, dict):
            expected = "samples with a key: give labels to select(...), and make a tuple in transform"
            raise InvalidRequest("labels", f"a {type(sample).__name__}", expected=expected)
        key = sample["__key__"]
        try:
            return {**sample, "label": self.labels[str(key)]}
        except KeyError:
            raise InvalidRequest("labels", f"none for the sample {key}", expected="one for each key") from None


def unchained(source: Given, kinds: tuple[type, ...]) -> tuple[Given, Stages]:
    """Return what is read, without its chain, and the chain.

    Raises:
        InvalidRequest: It is none of the kinds that may be given.
    """
    if not isinstance(source, kinds):
        expected = "a dataset that shardtool.open returned"
        if Stream in kinds:
            expected += ", or a stream of it"
        raise InvalidRequest("the dataset", f"a {type(source).__name__}", expected=expected)
    stages = source.stages
    bare = copy(source)
    bare.stages = Stages()
    return bare, stages


def chained(stages: Stages, decode: Decoders, labels: Mapping[str, Any] | None, transform: Transform | None) -> Stages:
    """Return a chain with the stages of options added: decode, then label, then transform."""
    if decode is not None and decode is not False:
        given = decode if isinstance(decode, Decode) else Decode(() if decode is True else own_decoders(decode))
        stages = stages.then(given)
    if labels is not None:
        if isinstance(labels, (str, Sequence)):
            raise InvalidRequest("labels", f"a {type(labels).__name__}", expected="key to label, such as {'cat/1': 0}")
        stages = stages.then(Map(Labelled(labels)))
    return stages if transform is None else stages.then(Map(transform))
