from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import CreateOptions, InvalidRequest, create
from shardtool.table.json_file import JsonStream
from shardtool.table.kinds import is_table
from shardtool.table.open import open_table
from tests.helpers import members, write_tree

if TYPE_CHECKING:
    from pathlib import Path

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


class Trickle(io.BytesIO):
    """Gives a few bytes at a time, as a pipe may."""

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__(data)
        self._step = step

    def read(self, _size: int | None = -1, /) -> bytes:
        return super().read(self._step)


def _stream(data: bytes, step: int = 2**20) -> JsonStream:
    return JsonStream("t.json", Trickle(data, step))


@given(values=st.lists(_VALUES, max_size=5), step=st.integers(1, 40), indent=st.sampled_from([None, 2]))
def test_an_array_is_read_piece_by_piece(values: list[Any], step: int, indent: int | None) -> None:
    """However the bytes come, elements are those that Python's own reader finds, and nothing is read twice."""
    data = json.dumps(values, indent=indent, ensure_ascii=bool(indent)).encode()
    stream = _stream(data, step)
    assert [*stream.elements()] == values
    stream.end()
    stream = _stream(json.dumps({str(at): value for at, value in enumerate(values)}).encode(), step)
    assert [(name, stream.value()) for name in stream.members()] == [(str(at), one) for at, one in enumerate(values)]
    stream.end()


@given(data=st.binary(max_size=40) | st.text('[]{}",:\\u0e1- tn', max_size=30).map(str.encode), step=st.integers(1, 9))
def test_any_bytes_are_json_or_refused(data: bytes, step: int) -> None:
    """What Python's reader refuses is a mistake of the user, and nothing else comes of it."""
    try:
        expected = [json.loads(data.decode("utf-8-sig"))]
    except ValueError:
        expected = []
    try:
        stream = _stream(data, step)
        found = [stream.value()]
        stream.end()
    except InvalidRequest:
        found = []
    assert json.dumps(found) == json.dumps(expected)


def test_rows_of_an_array(tmp_path: Path) -> None:
    """A JSON array of objects is the table that JSON lines of them are, packed or not, however it is laid out."""
    rows = [{"id": 7, "text": 'a "b"\n', "box": [1, 2.5]}, {"id": 8, "text": "é", "box": []}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for indent in (None, 2):
        (tmp_path / "t.json").write_text(json.dumps(rows, indent=indent, ensure_ascii=False))
        assert is_table(tmp_path / "t.json")
        table, lines = open_table(tmp_path / "t.json", ()), open_table(tmp_path / "t.jsonl", ())
        assert table.schema == lines.schema
        assert table.read(table.schema.names, ()).to_pylist() == rows
    create(tmp_path / "t.json", f"{tmp_path}/o-{{0..}}.tar", CreateOptions(values={"txt": "text"}, meta="box"))
    assert members(tmp_path / "o-0.tar")[:2] == [("7.json", b'{"box":[1.0,2.5]}'), ("7.txt", b'a "b"\n')]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "no rows"),
        ('[{"a": 1}, 3]', "row 2: '3'; expected an object for each row"),
        ('[{"a": 1} {"a": 2}]', "no JSON: no , or ], at character 11; "),
        ('[{"a": 1}', "no JSON: it ends too early, at character 10"),
        ('[{"a": 1}] 2', "no JSON: more than one value, at character 12"),
        ('[{"a": nul}]', "no JSON: expecting value, at character 8"),
        ('[{"a": "\udcff"}]', "text that is no UTF-8"),
        ('[{"a": ' + "[" * 40 + "]" * 40 + "}]", "lists or objects more than 32 deep"),
        ('[{"a": ' + "[" * 100_000, "lists or objects more than 32 deep"),
        ('[{"a": ' + "9" * 5000 + "}]", "no JSON: exceeds the limit"),
        ('[{"a": 1}, {"a": "x"}]', "column 'a' mixes types: number in 1 row, text in row 2"),
        ('{"a": [1, 2], "b": {}}', "a JSON object; expected an array of objects, a row each, or COCO"),
    ],
)
def test_what_is_no_array_of_rows(text: str, said: str, tmp_path: Path) -> None:
    """What is wrong with a file is said with its place."""
    (tmp_path / "t.json").write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(InvalidRequest) as caught:
        open_table(tmp_path / "t.json", ())
    assert said in str(caught.value)


_COCO: dict[str, Any] = {
    "annotations": [
        {"image_id": 5, "bbox": [1, 2.5, 3, 4], "category_id": 18, "area": 7, "iscrowd": 0, "segmentation": [[1] * 6]},
        {"image_id": 2, "bbox": [0, 0, 1, 1], "category_id": 90, "area": 1, "caption": "a dog"},
        {"image_id": 5, "category_id": 90, "iscrowd": 1},
    ],
    "info": {"images": []},
    "licenses": [{"id": 1}],
    "images": [{"id": number, "file_name": f"{number}.jpg", "width": 9} for number in (2, 3, 5)],
    "categories": [{"id": 90, "name": "dog"}, {"id": 1, "name": "car"}, {"id": 18, "name": "cat"}],
}


def _coco(**changes: Any) -> bytes:
    return json.dumps(_COCO | changes).encode()


def test_annotations_of_coco(tmp_path: Path) -> None:
    """A row is an image, with lists of what its annotations say in their order; classes count from 0 by their ids."""
    (tmp_path / "t.json").write_bytes(_coco())
    assert is_table(tmp_path / "t.json")
    table = open_table(tmp_path / "t.json", ())
    assert (table.on, table.classes, table.notes) == ("file_name", {"labels": ["car", "cat", "dog"]}, ())
    assert table.read(table.schema.names, ()).to_pydict() == {
        "file_name": ["2.jpg", "3.jpg", "5.jpg"],
        "coco_id": [2, 3, 5],
        "width": [9, 9, 9],
        "boxes": [[[0, 0, 1, 1]], [], [[1, 2.5, 3, 4], None]],
        "labels": [[2], [], [1, 2]],
        "areas": [[1], [], [7, None]],
        "iscrowd": [[None], [], [0, 1]],
        "captions": [["a dog"], [], [None, None]],
    }
    (tmp_path / "t.json").write_bytes(_coco(images=_COCO["images"][:1]))
    some = open_table(tmp_path / "t.json", ())
    assert some.notes == (f"2 annotations of images that are not in {tmp_path}/t.json, left out",)
    assert some.read(["labels"], ()).to_pydict() == {"labels": [[2]]}
    (tmp_path / "t.json").write_bytes(_coco(annotations=[], categories=[]))
    assert open_table(tmp_path / "t.json", ()).schema.names == ["file_name", "coco_id", "width"]


def _with(**part: Any) -> list[dict[str, Any]]:
    return [_COCO["annotations"][0] | part]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"annotations": _with(category_id=7)}, "annotation 1: category 7; expected one of the 3 that"),
        (
            {"annotations": _with(bbox=[1, 2])},
            "annotations 1 to 1: Length of item not correct: expected 4 but got array of size 2",
        ),
        ({"annotations": _with(bbox=["1", 2, 3, 4])}, "expected bbox of four numbers"),
        ({"annotations": _with(caption=3)}, "caption of text"),
        (
            {"annotations": _with(category_id="18")},
            "with type str: tried to convert to int64; expected bbox of four numbers",
        ),
        (
            {"annotations": [{"bbox": [1, 2, 3, 4]}]},
            "annotations, element 1: '{\"bbox\": [1, 2, 3, 4]}'; expected an obj",
        ),
        ({"images": [{"id": 5}]}, "images, element 1: '{\"id\": 5}'; expected an object with id and file_name"),
        ({"images": _COCO["images"] * 2}, "images that share an id"),
        ({"categories": []}, "annotation 1: category 18; expected one of the 0 that"),
        ({"categories": [{"id": at, "name": "dog"} for at in (18, 90)]}, "categories called 'dog'"),
        ({"categories": [{"id": "x", "name": "dog"}]}, "categories with the ids 'x'; expected whole numbers"),
    ],
)
def test_annotations_that_cannot_be(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    """What is missing or of another kind is named by its place in the file."""
    (tmp_path / "t.json").write_bytes(_coco(**changes))
    with pytest.raises(InvalidRequest) as caught:
        open_table(tmp_path / "t.json", ())
    assert said in str(caught.value)


def test_classes_of_coco_as_a_field(tmp_path: Path) -> None:
    """Lists of class numbers are a field of JSON, with the names in the dataset file, by either way."""
    write_tree(tmp_path, {"imgs/2.jpg": b"x", "imgs/3.jpg": b"y", "imgs/5.jpg": b"z", "coco.json": _coco()})
    given: dict[str, Any] = {"join": tmp_path / "coco.json", "values": {"labels.json": "labels"}}
    made = create(tmp_path / "imgs", f"{tmp_path}/a-{{0..}}.tar", CreateOptions(**given))
    assert json.loads((tmp_path / "a.json").read_text())["shardtool"]["classes"] == {
        "labels.json": ["car", "cat", "dog"]
    }
    assert not [note for note in made.notes if "holds paths" in note]
    found = dict(members(tmp_path / "a-0.tar"))
    assert [found[f"{at}.labels.json"] for at in (2, 3, 5)] == [b"[2]", b"[]", b"[1,2]"]
    options = CreateOptions(values={"labels.json": "labels"}, root=tmp_path / "imgs", meta="none")
    create(tmp_path / "coco.json", f"{tmp_path}/b-{{0..}}.tar", options)
    assert members(tmp_path / "b-0.tar") == members(tmp_path / "a-0.tar")
    (tmp_path / "coco.json").write_bytes(_coco(annotations=_with(bbox=[0, 1, float("inf"), 1])))
    with pytest.raises(InvalidRequest, match=r"column 'boxes': an infinite number in 1 sample, such as '5'"):
        create(tmp_path / "imgs", f"{tmp_path}/c-{{0..}}.tar", CreateOptions(**given | {"values": {"b.json": "boxes"}}))
    (tmp_path / "coco.json").write_bytes(_coco())
    with pytest.raises(InvalidRequest, match=r"holds lists of class numbers; expected a field that ends in json"):
        create(tmp_path / "imgs", f"{tmp_path}/c-{{0..}}.tar", CreateOptions(**given | {"values": {"cls": "labels"}}))
