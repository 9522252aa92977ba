"""Stages: results, skipped samples, and errors."""

from __future__ import annotations

import pickle
import sys
from collections import OrderedDict
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.errors import InvalidRequest, SampleFailed
from shardtool.read.collate import collate
from shardtool.read.pipeline import Pipeline, PipelineMethods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.read.decode import Decoder

_SAMPLES: list[dict[str, object]] = [
    {"__key__": "a", "jpg": b"ja", "cls": b"0"},
    {"__key__": "b", "png": b"pb", "cls": b"1"},
    {"__key__": "c", "jpg": b"jc", "png": b"pc", "cls": b"2"},
    {"__key__": "d", "jpg": b"jd", "cls": b"none"},
]


class Listed(PipelineMethods):
    """Stages over samples in memory; counts those that are read and skipped."""

    def __init__(self, samples: list[dict[str, object]]) -> None:
        self.samples = samples
        self.taken, self.skipped = 0, list[SampleFailed]()

    def __iter__(self) -> Iterator[Any]:
        return self.stages.run(self._read(), self.skipped.append)

    def _read(self) -> Iterator[dict[str, object]]:
        for sample in self.samples:
            self.taken += 1
            yield sample


def _listed(*samples: int) -> Any:
    return Listed([_SAMPLES[at] for at in samples or range(len(_SAMPLES))])


def _upper(sample: dict[str, bytes]) -> dict[str, object]:
    return {**sample, "cls": sample["cls"].upper()}


def _add(sample: int, more: int) -> int:
    return sample + more


def _raises(error: BaseException) -> Callable[[object], object]:
    def function(_: object) -> object:
        raise error

    return function


def test_no_stages() -> None:
    """Without stages, samples are returned unchanged."""
    samples = iter(_SAMPLES)
    assert Pipeline().run(samples, print) is samples
    assert Pipeline().apply(_SAMPLES[0]) is _SAMPLES[0]


def test_stages_run_in_order() -> None:
    """Each stage gets the output of the previous one; adding a stage changes no earlier pipeline."""
    first = _listed(0, 2).decode({"jpg": None, "png": None})
    second = first.map(lambda sample: sample["cls"] + 1)
    third = second.map(lambda number: -number).batch(2)
    assert [sample["cls"] for sample in first] == [0, 2]
    assert list(second) == [1, 3]
    assert [batch.tolist() for batch in third] == [[-1, -3]]


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (lambda dataset: dataset.tuple("cls"), [(b"0",), (b"2",)]),
        (lambda dataset: dataset.tuple("jpg", "cls"), [(b"ja", b"0"), (b"jc", b"2")]),
        (lambda dataset: dataset.tuple("png;jpg", "__key__"), [(b"ja", "a"), (b"pc", "c")]),
        (lambda dataset: dataset.tuple("jpg;png", "__key__"), [(b"ja", "a"), (b"jc", "c")]),
        (lambda dataset: dataset.tuple("png;gif", "cls", missing="none"), [(None, b"0"), (b"pc", b"2")]),
        (lambda dataset: dataset.tuple("png;gif", "cls", missing="skip"), [(b"pc", b"2")]),
        (lambda dataset: dataset.fields("cls"), [{"__key__": "a", "cls": b"0"}, {"__key__": "c", "cls": b"2"}]),
        (lambda dataset: dataset.fields("png", missing="skip"), [{"__key__": "c", "png": b"pc"}]),
        (
            lambda dataset: dataset.fields("png", missing="none"),
            [{"__key__": "a", "png": None}, {"__key__": "c", "png": b"pc"}],
        ),
    ],
)
def test_fields(chain: Callable[[PipelineMethods], Listed], expected: list[object]) -> None:
    """Fields are selected by name or alternatives; `missing` decides about missing ones."""
    assert list(chain(_listed(0, 2))) == expected


def test_select_keeps_padding() -> None:
    """`__padding__` survives any selection; it is False if absent."""
    assert list(_listed(0).tuple("cls", "__padding__")) == [(b"0", False)]
    assert list(Listed([{"__key__": "a", "__padding__": True, "cls": 1, "x": 2}]).fields("cls")) == [
        {"__key__": "a", "__padding__": True, "cls": 1}
    ]


@pytest.mark.parametrize("call", [PipelineMethods.tuple, PipelineMethods.fields])
def test_a_missing_field_is_named(call: Callable[..., Listed]) -> None:
    """The error names the sample, the field, and the existing fields."""
    chain = call(_listed(), "jpg", "cls")
    with pytest.raises(SampleFailed) as raised:
        list(chain)
    assert raised.value.where == "sample b"
    assert raised.value.found == "no field jpg; it has png, cls"
    assert "missing='skip'" in raised.value.remedy


def test_filter_and_none_skip() -> None:
    """Samples for which `filter` is false, or `map` returns None, are skipped and counted; not batches."""
    chain = _listed().filter(lambda sample: b"c" not in sample.get("jpg", b"")).map(_unless_b).tuple("__key__")
    assert list(chain) == [("a",), ("d",)]
    assert [str(error) for error in chain.skipped] == ["sample b: dropped by map", "sample c: dropped by filter"]
    with pytest.raises(SampleFailed, match=r"^sample b: dropped by map\. Use a stream to skip such samples\.$"):
        chain.stages.apply(_SAMPLES[1])
    assert [len(batch) for batch in _listed().tuple("cls").filter(lambda pair: pair[0] != b"1").batch(2)] == [1, 1]
    with pytest.raises(InvalidRequest, match=r"^filter: would skip batches; expected single samples"):
        _listed().batch(2).filter(len)
    with pytest.raises(
        InvalidRequest, match=r"^map: returned None for a batch; expected a batch: skip samples before batch$"
    ):
        list(_listed(0, 2).fields("cls").batch(2).map(lambda _: None))


def _unless_b(sample: dict[str, object]) -> dict[str, object] | None:
    return None if sample["__key__"] == "b" else sample


def test_an_error_of_a_function_is_not_skipped() -> None:
    """Errors of the caller's function pass, even SampleFailed."""
    error = SampleFailed("sample a", "lost")
    for chain in (_listed().filter(_raises(error)), _listed().map(_raises(error))):
        with pytest.raises(SampleFailed, match=r"^sample a: lost$"):
            list(chain)


@pytest.mark.parametrize("word", ["to_tuple", "shuffle", "batched", "rename", "map_tuple", "with_epoch"])
def test_methods_of_other_libraries(word: str) -> None:
    """They raise an AttributeError that names the equivalent; other names raise the usual one."""
    with pytest.raises(AttributeError, match=rf"^Listed has no {word}\. Use \w+\("):
        getattr(_listed(), word)
    with pytest.raises(AttributeError, match=r"^Listed has no others$"):
        _ = _listed().others
    with pytest.raises(InvalidRequest, match=r"^fields: .*Use filter\(function\) to choose samples\.$"):
        _listed().fields(len)


def test_skipped_samples_are_reported() -> None:
    """Each skipped sample is passed on with its error."""
    chain = _listed().decode({"jpg": None}, on_error="skip").tuple("jpg", "cls", missing="skip")
    assert [number for _, number in chain] == [0, 2]
    assert [error.where for error in chain.skipped] == ["sample b", "sample d, field cls"]


def test_a_single_sample_is_never_skipped() -> None:
    """Its error says that a stream would skip it."""
    chain = _listed().decode({"jpg": None}, on_error="skip")
    with pytest.raises(SampleFailed, match=r"sample d, field cls: .*'none'. Use a stream to skip such samples\.$"):
        chain.stages.apply(_SAMPLES[3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda dataset: dataset.decode("pil"),
            "decode: 'pil'; expected fields and their decoders, .* or images='pil'",
        ),
        (lambda dataset: dataset.decode({"jpg": "pill"}), "'pill'"),
        (lambda dataset: dataset.decode(reduce=224), "reduce: 224; expected width and height"),
        (lambda dataset: dataset.decode(reduce=(224, "x")), "reduce: .*; expected width and height"),
        (
            lambda dataset: dataset.batch(3).decode(),
            "decode: called after batch; expected single samples: decode first, then batch",
        ),
        (lambda dataset: dataset.batch("3"), "batch: '3'; expected 1 or more"),
        (lambda dataset: dataset.batch(0), "batch: 0; expected 1 or more"),
    ],
)
def test_invalid_arguments(call: Callable[[PipelineMethods], object], message: str) -> None:
    """They are rejected before a sample is read."""
    with pytest.raises(InvalidRequest, match=message):
        call(_listed())


def test_each_stage_has_its_own_policy() -> None:
    """One stage may skip samples while another does not."""
    with pytest.raises(SampleFailed, match="sample b"):
        list(_listed().decode({"png": None, "jpg": None}, on_error="skip").tuple("jpg", "cls"))
    with pytest.raises(SampleFailed, match="sample d, field cls"):
        list(_listed().fields("jpg", "cls", missing="skip").decode({"jpg": None}))


def test_a_single_sample() -> None:
    """It equals the sample of a stream; if a stream would skip it, its error is raised."""
    stages = _listed().decode({"jpg": None, "png": None}, on_error="skip").tuple("jpg", "cls", missing="skip").stages
    assert stages.apply(_SAMPLES[0]) == (b"ja", 0)
    for at, where in ((1, "sample b"), (3, "sample d, field cls")):
        with pytest.raises(SampleFailed) as raised:
            stages.apply(_SAMPLES[at])
        assert raised.value.where == where
    with pytest.raises(InvalidRequest, match="batch"):
        stages.then(_listed().batch(2).stages.stages[0]).apply(_SAMPLES[0])


def test_unselected_fields_are_not_decoded() -> None:
    """If fields are selected after decoding, only these are decoded."""
    seen: list[bytes] = []
    own: dict[str, Decoder] = {"jpg": seen.append, "png": len}
    assert list(_listed(2).decode(own).fields("cls", "png")) == [{"__key__": "c", "cls": 2, "png": 2}]
    assert list(_listed(2).decode(own).tuple("gif;png", "cls")) == [(2, 2)]
    assert not seen
    assert list(_listed(2).decode(own).map(lambda sample: sample["png"])) == [2]
    assert seen == [b"jc"]


def test_selecting_fields_of_non_dicts() -> None:
    """The error names the stage."""
    tuples = _listed(0).tuple("jpg", "cls")
    for chain, where in ((tuples.decode(), "decode"), (tuples.fields("jpg"), "fields"), (tuples.tuple("jpg"), "tuple")):
        with pytest.raises(InvalidRequest) as raised:
            list(chain)
        assert (raised.value.where, raised.value.found) == (where, "a tuple")
    with pytest.raises(InvalidRequest, match="tuple: a bytes"):
        list(_listed(0).map(lambda sample: sample["jpg"]).tuple("jpg"))


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("bad"), MemoryError(), SampleFailed("mine", "bad")])
def test_errors_of_a_function_name_the_sample(error: Exception) -> None:
    """The error of the caller's function is unchanged, with a note."""
    with pytest.raises(type(error)) as raised:
        list(_listed(1, 2).tuple("png", "cls").map(_raises(error)))
    assert raised.value is error
    if sys.version_info >= (3, 11) and not isinstance(error, SampleFailed):
        assert error.__notes__ == ["in the sample b"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes are of Python 3.11")
def test_errors_of_a_batch_function_name_its_samples() -> None:
    """The note lists the keys of the batch."""
    error = ValueError("bad")
    with pytest.raises(ValueError, match="bad"):
        list(_listed(1, 2).fields("png").batch(2).map(_raises(error)))
    assert getattr(error, "__notes__", None) == ["in the batch of b, c"]


def test_stop_iteration_does_not_end_the_stream() -> None:
    """A function that raises StopIteration does not end an epoch silently."""
    with pytest.raises(RuntimeError):
        list(_listed().map(_raises(StopIteration())))


@given(st.integers(0, 20), st.integers(1, 7), st.booleans())
def test_batches(count: int, size: int, drop_last: bool) -> None:  # noqa: FBT001 - drawn
    """Batches contain all samples in order, and no sample is read early."""
    chain = Listed([{"__key__": str(at), "n": at} for at in range(count)]).tuple("n").batch(size, drop_last=drop_last)
    seen = []
    for (batch,) in chain:
        seen += batch.tolist()
        assert chain.taken == len(seen)
    assert seen == [*range(count - count % size if drop_last else count)]


_ONE, _TWO = np.arange(6, dtype=np.uint8).reshape(2, 3), np.ones((2, 3), np.uint8)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([_ONE, _TWO], np.stack([_ONE, _TWO])),
        ([1, 2], np.array([1, 2], np.int64)),
        ([1.5, 2], np.array([1.5, 2], np.float64)),
        ([True, False], np.array([True, False])),
        ([np.float32(1), np.float32(2)], np.array([1, 2], np.float32)),
        ([_ONE, _TWO[:1]], None),
        ([_ONE, _TWO.astype(float)], None),
        ([_ONE, 1], None),
        ([1, None], None),
        ([1, True], None),
        ([1, 2**70], None),
        ([b"a", b"b"], None),
        (["a", "b"], None),
        ([[1, 2], [3, 4]], None),
        ([{"a": 1}, {"a": 2}], None),
    ],
)
def test_collate(values: list[object], expected: np.ndarray[Any, Any] | None) -> None:
    """Arrays of one shape and dtype, and numbers, become one array; other values a list."""
    of_dicts = collate([{"__key__": str(at), "x": value} for at, value in enumerate(values)])
    assert isinstance(of_dicts, dict)
    assert of_dicts["__key__"] == ["0", "1"]
    of_tuples = collate([(value, at) for at, value in enumerate(values)])
    assert isinstance(of_tuples, tuple)
    assert of_tuples[1].tolist() == [0, 1]
    for found in (of_dicts["x"], of_tuples[0]):
        if expected is None:
            assert type(found) is list
            assert all(value is expected_value for value, expected_value in zip(found, values, strict=True))
        else:
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected)


class _Pair(NamedTuple):
    a: int
    b: int


def test_collate_subclasses() -> None:
    """Subclasses of dict and tuple can be mixed, and fields may be in another order."""
    dicts = [{"a": 1, "b": 2}, OrderedDict(b=4, a=3)]
    batch = collate(dicts)
    assert isinstance(batch, dict)
    assert {name: values.tolist() for name, values in batch.items()} == {"a": [1, 3], "b": [2, 4]}
    pair = collate([(1, 2), _Pair(3, 4)], lists=(1,))
    assert isinstance(pair, tuple)
    assert [[*values] for values in pair] == [[1, 3], [2, 4]]
    with pytest.raises(InvalidRequest, match="c"):
        collate(dicts, lists=("c",))


def test_batches_of_values() -> None:
    """Other values are collated like a field."""
    assert [list(batch) for batch in _listed(0, 2).map(len).batch(2)] == [[3, 4]]


def test_batches_of_different_samples() -> None:
    """The error names the sample and the field that differ."""
    for samples, where, field in (
        ((0, 2), "sample a", "png"),
        ((2, 0), "sample a", "png"),
        ((0, 1), "sample b", "jpg"),
    ):
        with pytest.raises(SampleFailed) as raised:
            list(_listed(*samples).batch(2))
        assert (raised.value.where, raised.value.found) == (
            where,
            f"no field {field}, which other samples of its batch have",
        )
    for other in ((1,), [1, 2]):
        with pytest.raises(SampleFailed, match="differs in structure from the first"):
            collate([(1, 2), other])
    with pytest.raises(SampleFailed, match=r"^a sample: differs in structure from the first"):
        collate([{"a": 1}, (1,)])


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda dataset: dataset.batch(0), "batch"),
        (lambda dataset: dataset.tuple(), "tuple"),
        (lambda dataset: dataset.fields("jpg", 3), "fields"),
        (lambda dataset: dataset.fields(["jpg"]), "fields"),
        (lambda dataset: dataset.tuple("jpg", missing="ignore"), "missing"),
        (lambda dataset: dataset.map("upper"), "map"),
        (lambda dataset: dataset.decode({"jpg": "rgb"}), "decode({'jpg': ...})"),
    ],
)
def test_bad_requests(call: Callable[[Any], object], where: str) -> None:
    """Invalid stages are rejected immediately."""
    with pytest.raises(InvalidRequest) as raised:
        call(_listed())
    assert raised.value.where == where


def test_pickle() -> None:
    """Pickled stages return the same results."""
    chain = _listed(0, 2).map(_upper).decode({"jpg": len}).fields("jpg", "cls", missing="none").tuple("jpg", "cls")
    stages = chain.map(sum).map(partial(_add, more=1)).batch(2, drop_last=True).stages
    again = pickle.loads(pickle.dumps(stages))  # noqa: S301 - our own
    assert [list(batch) for batch in again.run(_SAMPLES[0:3:2], print)] == [[3, 5]]


@pytest.mark.parametrize(
    ("chain", "where", "message"),
    [
        (lambda: _listed().map(lambda sample: sample), "the function of map", "a lambda"),
        (lambda: _listed().decode({"jpg": lambda data: data}), "the decoder of jpg", "a lambda"),
        (lambda: _listed().map(partial(lambda sample: sample)), "the function of map", "a lambda"),
        (lambda: _listed().map(_raises(KeyError())), "the function of map", "_raises.<locals>.function"),
    ],
)
def test_unpicklable_functions(chain: Callable[[], Listed], where: str, message: str) -> None:
    """For a spawned worker, the error names the call with the lambda, and what to do."""
    process = get_context("spawn").Process(target=print, args=(chain().stages,))
    with pytest.raises(InvalidRequest) as raised:
        process.start()
    assert raised.value.where == where
    assert raised.value.found.startswith(message)
    assert "top level" in raised.value.remedy


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_list_fields(counts: list[int]) -> None:
    """Fields in `lists` are always lists; others are not affected."""
    samples: list[dict[str, object]] = [
        {"__key__": str(at), "boxes": np.zeros((count, 4), np.float32), "cls": at} for at, count in enumerate(counts)
    ]
    (batch,) = Listed(samples).batch(6, lists=["boxes"])
    assert [type(batch["boxes"]), type(batch["cls"])] == [list, np.ndarray]
    assert [len(boxes) for boxes in batch["boxes"]] == counts
    (pair,) = Listed(samples).tuple("boxes", "cls").batch(6, lists=(0,))
    assert [len(boxes) for boxes in pair[0]] == counts
    assert pair[1].tolist() == batch["cls"].tolist()


def test_unknown_list_fields() -> None:
    """An unknown name, and a text instead of a tuple, are rejected."""
    with pytest.raises(InvalidRequest, match=r"^lists: 'box'; expected fields of the samples: jpg, cls"):
        list(_listed(0, 3).batch(2, lists=["box"]))
    with pytest.raises(InvalidRequest, match=r"^lists: 2; expected fields of the samples: 0, 1"):
        list(_listed(0, 3).tuple("jpg", "cls").batch(2, lists=[2]))
    with pytest.raises(InvalidRequest, match=r"^lists: 'jpg'; expected a tuple of field names: \('jpg',\)"):
        list(_listed(0).batch(2, lists="jpg"))
