"""Make a batch of samples: arrays where the values allow it, lists where they do not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from shardtool.errors import InvalidRequest, SampleFailed, format_list

if TYPE_CHECKING:
    from numpy.typing import NDArray


ListFields: TypeAlias = Sequence[str | int]


_ARRAY_DTYPES = {int: np.int64, float: np.float64, bool: np.bool_}


@dataclass(frozen=True)
class Batch:
    """Makes a batch of so many samples; see `collate`."""

    size: int
    drop_last: bool = False
    lists: ListFields = ()

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


def collate(samples: list[Any], lists: ListFields = ()) -> object:
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
    form, first = split_sample(samples[0])
    alike = len({*map(type, samples)}) == 1 and (form is object or len({*map(len, samples)}) == 1)
    if not alike or (form is dict and any(one.keys() != first.keys() for one in samples)):
        check_same_fields([(parts.get("__key__"), form, parts) for form, parts in map(split_sample, samples)])
    if form is not object:
        check_lists(lists, first)
    if form is dict:
        columns = [[sample[name] for sample in samples] for name in first]
    else:
        columns = [[*values] for values in zip(*samples, strict=True)] if form is tuple else [samples]
    fields = zip(first, columns, strict=True)
    return join_sample(form, {name: values if name in lists else _collate_values(values) for name, values in fields})


def split_sample(sample: object) -> tuple[type, Mapping[object, object]]:
    """Return the form of a sample, which is the same for all of a batch, and its fields, or its values by place."""
    if isinstance(sample, dict):
        return dict, sample
    return (tuple, dict(enumerate(sample))) if isinstance(sample, tuple) else (object, {0: sample})


def join_sample(form: type, parts: dict[object, object]) -> object:
    """Return what has a form, and these parts."""
    if form is dict:
        return parts
    return tuple(parts.values()) if form is tuple else parts[0]


def check_same_fields(samples: Sequence[tuple[object, type, Collection[object]]]) -> None:
    """Refuse samples that make no batch, by the key, the form and the fields of each.

    Raises:
        SampleFailed: A sample lacks a field of another, or has another form.
    """
    first, form, fields = samples[0]
    expected = {*fields}
    for key, own, found in samples:
        if own is not form or (form is tuple and len(found) != len(fields)):
            raise SampleFailed(sample_name(key), "not of the same form as the first of its batch")
        if differing := expected.symmetric_difference(found):
            name = min(differing, key=str)
            remedy = f"select({name!r}, ..., missing='none') before gives None, missing='skip' leaves such samples out."
            what = f"no field {name}, as others of its batch have"
            raise SampleFailed(sample_name(first if name in found else key), what, remedy=remedy)


def check_lists(lists: ListFields, fields: Iterable[object]) -> None:
    """Refuse a name among `lists` that no field has.

    Raises:
        InvalidRequest: There is one.
    """
    if isinstance(lists, str):
        raise InvalidRequest("lists", repr(lists), expected=f"names of fields: ({lists!r},)")
    there = [*fields]
    if lists and (others := [one for one in lists if one not in there]):
        named = format_list([str(one) for one in there if str(one)[:2] != "__"])
        raise InvalidRequest("lists", repr(others[0]), expected=f"fields of the samples: {named}")


def _collate_values(values: list[object]) -> NDArray[np.generic] | list[object]:
    kinds = {type(value) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else float if kinds == {int, float} else object
    if kind is np.ndarray:
        arrays = cast("list[NDArray[np.generic]]", values)
        return np.stack(arrays) if len({(one.shape, one.dtype) for one in arrays}) == 1 else values
    if kind in _ARRAY_DTYPES or issubclass(kind, np.number):
        try:
            return np.array(values, _ARRAY_DTYPES.get(kind))
        except OverflowError:  # more than 64 bits
            return values
    return values


def sample_name(key: object) -> str:
    return "a sample" if key is None else f"sample {key}"
