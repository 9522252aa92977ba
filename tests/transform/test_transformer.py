"""Transforms without a shard: inputs and results of the user's function, and refused results."""

from __future__ import annotations

import pickle
import sys
from asyncio import CancelledError
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardtool.errors import InvalidRequest
from shardtool.transform.image import ImageOptions
from shardtool.transform.transform import PROBED_COLUMNS, Transform, find_function
from shardtool.transform.transformer import KEY_ITEM, BadSample, TransformedSample, Transformer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SEEN: list[dict[str, Any]] = []  # the samples that `see` received
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="/", exclude_categories=["Cc"]), min_size=1, max_size=8)
KEYS = TEXTS.filter(lambda key: key not in (".", ".."))


def see(sample: dict[str, Any]) -> dict[str, Any]:
    """Record the sample, and return it."""
    SEEN.append(dict(sample))
    return sample


def give(sample: dict[str, Any]) -> Any:
    """Return the value in `RETURNS`."""
    assert sample
    return RETURNS[0]


RETURNS: list[Any] = [None]


def _png(width: int, height: int) -> bytes:
    stream = BytesIO()
    Image.new("RGB", (width, height), (9, 99, 200)).save(stream, "PNG")
    return stream.getvalue()


def _made(transform: Transform, key: bytes, fields: Mapping[str, Any]) -> list[TransformedSample]:
    """Return the samples that a transform returns."""
    work = Transformer(transform)
    return work.call_function(key, work.change_fields(fields, next(iter(fields)))[0])


def _given(value: Any) -> list[TransformedSample]:
    RETURNS[0] = value
    return _made(Transform(function=f"{__name__}:give"), b"k", {"txt": b"text"})


@given(st.dictionaries(TEXTS, st.binary(max_size=20), min_size=1, max_size=6), KEYS)
def test_a_function_gets_and_returns_samples(fields: dict[str, bytes], key: str) -> None:
    """A function gets the key and all fields as bytes; its result is a sample with sorted fields."""
    SEEN.clear()
    views = {name: memoryview(data) for name, data in fields.items()}
    (sample,) = _made(Transform(function=f"{__name__}:see"), key.encode(), views)
    assert [{KEY_ITEM: key, **fields}] == SEEN
    assert all(type(value) is bytes for name, value in SEEN[0].items() if name != KEY_ITEM)
    assert sample.key == key.encode()
    assert sample.fields == sorted((name.encode(), data) for name, data in fields.items())


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.binary(max_size=9), st.text(max_size=9), st.just("\ud800"),

)  # fmt: skip
NAMES = st.one_of(st.just(KEY_ITEM), st.text("ab./\0\ud800é", max_size=6), st.integers())
ANYTHING = st.recursive(
    VALUES, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3))
)


@given(st.dictionaries(TEXTS.filter(lambda name: name != KEY_ITEM), VALUES, min_size=1))
def test_values_become_bytes_or_are_refused(fields: dict[str, Any]) -> None:
    """Bytes stay unchanged, text becomes UTF-8, numbers become text; other values are refused."""
    try:
        (sample,) = _given(fields)
    except BadSample as bad:
        assert bad.code == "map-failed"  # noqa: PT017
        assert any(value in (None, "\ud800") for value in fields.values())
        return
    for name, data in sample.fields:
        value = fields[name.decode()]
        text = value if isinstance(value, str) else str(int(value) if isinstance(value, bool) else value)
        assert bytes(data) == (value if isinstance(value, bytes) else text.encode())


@given(st.one_of(ANYTHING, st.dictionaries(NAMES, st.text("ab./\0\ud800é", max_size=6), max_size=3)))
def test_any_result_is_valid_or_refused(value: Any) -> None:
    """Any result is samples with valid names and bytes, or BadSample."""
    try:
        samples = _given(value)
    except BadSample as bad:
        assert bad.code == "map-failed"  # noqa: PT017
        return
    for sample in samples:
        assert sample.fields == sorted(sample.fields, key=lambda field: field[0])
        assert not {"", ".", ".."} & set(sample.key.decode().split("/"))
        assert b"\0" not in sample.key
        assert all(name and not {*name} & {*b"/\0"} and len(data) >= 0 for name, data in sample.fields)


# Return values, and expected parts of the message.
BAD: dict[str, tuple[Any, str]] = {
    "a number": (5, "returned a int"),
    "text": ("text", "returned a str"),
    "bytes": (b"text", "returned a (bytes|int)"),
    "a list of text": ([{"a": 1}, "text"], "returned a str"),
    "only a key": ({KEY_ITEM: "k"}, "without fields"),
    "no fields": ({}, "without fields"),
    "an array": ({"a": np.zeros(3)}, "ndarray.*'a'"),
    "null": ({"a": None}, "NoneType.*'a'"),
    "a list": ({"a": [1, 2]}, "list.*'a'"),
    "an object": ({"a": object()}, "object.*'a'"),
    "an object that is no number": ({"a": type("Odd", (), {"item": lambda _self, at: at})()}, "Odd.*'a'"),
    "a huge number": ({"a": 10**5000}, "'a'"),
    "no text": ({"a": "\ud800"}, "'a'"),
    "a key that is a number": ({KEY_ITEM: 5, "a": b""}, "key.*5"),
    "a key of bytes": ({KEY_ITEM: b"k", "a": b""}, "key.*b'k'"),
    "an empty key": ({KEY_ITEM: "", "a": b""}, "key"),
    "a key with a zero": ({KEY_ITEM: "a\0b", "a": b""}, "key"),
    "a key with a newline": ({KEY_ITEM: "a\nb", "a": b""}, "key.*control characters"),
    "a key of a megabyte": ({KEY_ITEM: "k" * 2**20, "a": b""}, "key 'kkk.*more than 4,096 bytes"),
    "a field with a tab": ({"a\tb": b""}, "field.*control characters"),
    "a field of a megabyte": ({"f" * 2**20: b""}, "field.*more than 4,096 bytes"),
    "a key from the root": ({KEY_ITEM: "/etc/x", "a": b""}, "key"),
    "a key that leaves": ({KEY_ITEM: "../../x", "a": b""}, "key"),
    "a key that leaves later": ({KEY_ITEM: "x/../../y", "a": b""}, "key"),
    "a key that stays": ({KEY_ITEM: "./x", "a": b""}, "key"),
    "a key without a name": ({KEY_ITEM: "x/", "a": b""}, "key"),
    "a key that is no text": ({KEY_ITEM: "\ud800", "a": b""}, "key"),
    "a field that is a number": ({5: b""}, "field.*5"),
    "a field without a name": ({"": b""}, "field"),
    "a field with a slash": ({"a/b": b""}, "field.*a/b"),
    "a field with a zero": ({"a\0": b""}, "field"),
    "a field that is no text": ({"\ud800": b""}, "field"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_results_are_refused(name: str) -> None:
    """The error for an invalid result describes the mistake."""
    value, message = BAD[name]
    with pytest.raises(BadSample, match=f"the function of map returned.*{message}|{message}.*") as caught:
        _given(value)
    assert caught.value.code == "map-failed"
    assert "raised" not in str(caught.value)


@pytest.mark.parametrize("kind", [GeneratorExit, StopIteration, SystemExit, CancelledError])
def test_every_exception_of_the_function_is_reported(kind: type[BaseException]) -> None:
    """An exception is reported with the sample, even if it is no `Exception`."""

    class Results:
        def __iter__(self) -> Iterator[None]:
            raise kind

    with pytest.raises(BadSample, match=f"raised {kind.__name__}"):
        _given(Results())


def test_results_are_copied() -> None:
    """A result does not change when the function's buffers change."""
    memory = bytearray(b"first")
    (sample,) = _given({"a": memoryview(memory), "b": memory})
    memory[:] = b"later"
    assert [bytes(data) for _, data in sample.fields] == [b"first", b"first"]


def test_memoryviews_of_other_items() -> None:
    """A memoryview contributes all its bytes, for any item type and strides."""
    numbers = memoryview(b"\1\0\0\0\2\0\0\0").cast("I")
    (sample,) = _given({"a": numbers, "b": memoryview(b"abcdef")[::-2], "c": memoryview(b"abcd").cast("B", (2, 2))})
    assert [(len(data), bytes(data)) for _, data in sample.fields] == [
        (8, b"\1\0\0\0\2\0\0\0"), (3, b"fdb"), (4, b"abcd")
    ]  # fmt: skip


def test_a_function_may_drop_or_multiply_samples() -> None:
    """None and an empty list drop a sample; several samples get numbered keys unless they have their own."""
    assert _given(None) == _given([]) == _given(iter(())) == []
    several = [{"a": 1}, {KEY_ITEM: "other", "a": 2}, {KEY_ITEM: "k", "a": 3}]
    assert [sample.key for sample in _given(several)] == [b"k-0", b"other", b"k-2"]


def test_images_are_changed_before_the_function() -> None:
    """A function sees changed images; the size of the first image is measured before."""
    SEEN.clear()
    images = ImageOptions(resize=(4, 4), encode="jpg", probe=True)
    work = Transformer(Transform(images, f"{__name__}:see", measured_columns=(*PROBED_COLUMNS.items(),)))
    fields, measured = work.change_fields({"png": _png(8, 6), "txt": b"text"}, "png")
    assert SEEN == []
    work.call_function(b"k", fields)
    assert set(SEEN[0]) == {KEY_ITEM, "jpg", "txt"}
    assert Image.open(BytesIO(SEEN[0]["jpg"])).size == (5, 4)
    assert measured == (5, 4, "RGB")


def test_images_without_a_function() -> None:
    """Other fields pass unchanged, and so do images without changes."""
    image, text = _png(8, 8), b"text"
    (sample,) = _made(Transform(ImageOptions(resize=(8, 8))), b"k", {"txt": text, "png": image})
    assert sample.fields == [(b"png", image), (b"txt", text)]
    assert sample.fields[0][1] is image


def test_fields_with_the_same_output_name_are_refused() -> None:
    """Neither field replaces the other."""
    with pytest.raises(BadSample, match="'jpg'") as caught:
        _made(Transform(ImageOptions(encode="jpg")), b"k", {"png": _png(8, 8), "jpg": _png(8, 8)})
    assert caught.value.code == "field-clash"


def test_identity_depends_on_options_and_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal options and function sources have the same identity."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    images = ImageOptions(resize=(8, 8))
    works = [
        Transform(images), Transform(replace(images, quality=80)), Transform(replace(images, resize=(8, 9))),
        Transform(replace(images, probe=True)), Transform(images, f"{__name__}:see"),
        Transform(images, f"{__name__}:give"), Transform(None, f"{__name__}:give"),
    ]  # fmt: skip
    identities = [work.identity() for work in works]
    assert len(set(identities)) == len(works)
    assert identities == [work.identity() for work in works]
    source_identities = set()
    for text in ("def change(s): return s\n", "def change(s): return None\n"):
        (tmp_path / "of_identity.py").write_text(text)
        source_identities.add(Transform(None, "of_identity:change").identity())
        del sys.modules["of_identity"]
    assert len(source_identities) == 2


def test_a_transform_can_be_pickled() -> None:
    """A transform is a plain value."""
    work = Transform(ImageOptions(resize=(8, 8), fields=("a", "b")), f"{__name__}:see")
    assert pickle.loads(pickle.dumps(work)) == work  # noqa: S301 - our own
    assert hash(work) == hash(pickle.loads(pickle.dumps(work)))  # noqa: S301


def test_find_function() -> None:
    """Functions, methods and other callables are found by name, in packages too."""
    assert find_function(f"{__name__}:see") is see
    assert find_function("os.path:join").__name__ == "join"
    assert find_function("builtins:str.upper")("a") == "A"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        "", ":", "os", "os:", ":join", "os:nowhere", "os:path.nowhere", "os:sep", "no such:x", "nowhere:x",
        "nowhere.more:x", "os.nowhere:x", ".os:x", "os..path:x", "os:path:join", "o\0s:x", "os/path:join",
    ],
)  # fmt: skip
def test_find_function_refuses_other_names(name: str) -> None:
    """Other names raise InvalidRequest."""
    with pytest.raises(InvalidRequest, match=r"^map: "):
        find_function(name)
