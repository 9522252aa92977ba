"""Collate samples into batches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from shardtool.dataclass import dataclass
from shardtool.errors import InvalidRequest, SampleFailed, format_list

if TYPE_CHECKING:
    from numpy.typing import NDArray


ListFields: TypeAlias = Sequence[str | int]
_ARRAY_DTYPES = {int: np.int64, float: np.float64, bool: np.bool_}


@dataclass(frozen=True)
class Batch:
    """Makes batches of `size` samples; see `collate`."""

    size: int
    drop_last: bool = False
    lists: ListFields = ()

    def __post_init__(self) -> None:
        if not isinstance(self.size, Integral) or self.size < 1:
            raise InvalidRequest("batch", repr(self.size), expected="1 or more samples")

    def count(self, samples: int) -> int:
        """Return the number of batches for this number of samples."""
        return samples // self.size if self.drop_last else -(-samples // self.size)

    def batches(self, samples: Iterable[object]) -> Iterator[object]:
        """Yield collated batches."""
        samples = iter(samples)
        while batch := list(islice(samples, self.size)):
            if len(batch) == self.size or not self.drop_last:
                yield collate(batch, self.lists)


def collate(samples: list[Any], lists: ListFields = ()) -> object:
    """Combine samples into one batch. Dicts become a dict of fields, and tuples become a tuple.

    A field of numbers, or of arrays of one shape and dtype, becomes an array [samples, ...]. Python numbers become
    int64, float64 or bool. Other fields, and the fields or tuple positions in `lists`, become a list.

    Raises:
        InvalidRequest: `lists` names an unknown field.
        SampleFailed: The samples have different fields or structures.
    """
    structure, fields = split_sample(samples[0])
    have_one_length = len({*map(type, samples)}) == 1 and (structure is object or len({*map(len, samples)}) == 1)
    if not have_one_length or (structure is dict and any(sample.keys() != fields.keys() for sample in samples)):
        check_same_fields([(parts.get("__key__"), structure, parts) for structure, parts in map(split_sample, samples)])
    if structure is not object:
        check_lists(lists, fields)
    if structure is dict:
        columns = [[sample[name] for sample in samples] for name in fields]
    else:
        columns = [[*values] for values in zip(*samples, strict=True)] if structure is tuple else [samples]
    batch: dict[object, object] = {}
    for name, column in zip(fields, columns, strict=True):
        batch[name] = column if name in lists else _collate_values(column)
    return join_sample(structure, batch)


def split_sample(sample: object) -> tuple[type, Mapping[object, object]]:
    """Return the structure of a sample (dict, tuple or object), and its values by name or position."""
    if isinstance(sample, dict):
        return dict, sample
    return (tuple, dict(enumerate(sample))) if isinstance(sample, tuple) else (object, {0: sample})


def join_sample(structure: type, parts: dict[object, object]) -> object:
    """Build a sample or batch of this structure from its values."""
    if structure is dict:
        return parts
    return tuple(parts.values()) if structure is tuple else parts[0]


def check_same_fields(samples: Sequence[tuple[object, type, Collection[object]]]) -> None:
    """Raise SampleFailed if the samples differ in structure or fields. A sample is (key, structure, fields)."""
    first_key, structure, fields = samples[0]
    expected = {*fields}
    for key, sample_structure, sample_fields in samples:
        if sample_structure is not structure or (structure is tuple and len(sample_fields) != len(fields)):
            raise SampleFailed(sample_name(key), "differs in structure from the first sample of its batch")
        if differing := expected.symmetric_difference(sample_fields):
            name = min(differing, key=str)
            remedy = f"Add fields({name!r}, ..., missing='none') for None, or missing='skip' to skip such samples."
            problem = f"no field {name}, which other samples of its batch have"
            raise SampleFailed(sample_name(first_key if name in sample_fields else key), problem, remedy=remedy)


def check_lists(lists: ListFields, fields: Iterable[object]) -> None:
    """Raise InvalidRequest if a name in `lists` is not a field."""
    if isinstance(lists, str):
        raise InvalidRequest("lists", repr(lists), expected=f"a tuple of field names: ({lists!r},)")
    known = [*fields]
    if lists and (unknown := [name for name in lists if name not in known]):
        named = format_list([str(name) for name in known if str(name)[:2] != "__"])
        raise InvalidRequest("lists", repr(unknown[0]), expected=f"fields of the samples: {named}")


def _collate_values(values: list[object]) -> NDArray[np.generic] | list[object]:
    types = {type(value) for value in values}
    common_type = types.pop() if len(types) == 1 else float if types == {int, float} else object
    if common_type is np.ndarray:
        arrays = cast("list[NDArray[np.generic]]", values)
        return np.stack(arrays) if len({(array.shape, array.dtype) for array in arrays}) == 1 else values
    if common_type in _ARRAY_DTYPES or issubclass(common_type, np.number):
        try:
            return np.array(values, _ARRAY_DTYPES.get(common_type))
        except OverflowError:  # the integer has more than 64 bits
            return values
    return values


def sample_name(key: object) -> str:
    """Return the name of a sample for messages."""
    return "a sample" if key is None else f"sample {key}"
