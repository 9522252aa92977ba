from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import shardtool
from shardtool import CreateOptions, InvalidRequest, create, verify
from shardtool.table.detect import is_table
from shardtool.table.open import open_table
from tests.helpers import members, write_tree

if TYPE_CHECKING:
    from pathlib import Path


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


def test_coco_images_become_rows(tmp_path: Path) -> None:
    """Each image is a row, with lists of annotation values in order; classes are numbered by category id."""
    (tmp_path / "t.json").write_bytes(_coco())
    assert is_table(tmp_path / "t.json")
    table = open_table(tmp_path / "t.json", ())
    assert (table.key_column, table.classes, table.notes) == ("file_name", {"labels": ["car", "cat", "dog"]}, ())
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
    assert some.notes == (f"2 annotations skipped: {tmp_path}/t.json does not list the image",)
    assert some.read(["labels"], ()).to_pydict() == {"labels": [[2]]}
    (tmp_path / "t.json").write_bytes(_coco(annotations=[], categories=[]))
    assert open_table(tmp_path / "t.json", ()).schema.names == ["file_name", "coco_id", "width"]


def test_coco_accepts_unusual_numbers(tmp_path: Path) -> None:
    """An integer may be written with a point, a side may be fractional, and ids may mix texts and numbers."""
    images = [{"id": "2", "file_name": "2.jpg", "width": 9.5}, {"id": 5, "file_name": "5.jpg", "width": 9}]
    (tmp_path / "t.json").write_bytes(_coco(images=images, annotations=_with(category_id=18.0)))
    table = open_table(tmp_path / "t.json", ())
    result = table.read(["coco_id", "width", "labels"], ()).to_pydict()
    assert result == {"coco_id": ["2", "5"], "width": [9.5, 9.0], "labels": [[], [1]]}


def _with(**part: Any) -> list[dict[str, Any]]:
    return [_COCO["annotations"][0] | part]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"annotations": _with(category_id=7)}, "annotation 1: category 7; expected one of the 3 categories in"),
        (
            {"annotations": [*_COCO["annotations"], *_with(bbox=[1, 2, 3])]},
            "annotations, element 4: bbox is [1, 2, 3]; expected four numbers",
        ),
        ({"annotations": _with(bbox=["1", 2, 3, 4])}, 'bbox is ["1", 2, 3, 4]; expected four numbers'),
        ({"annotations": _with(caption=3)}, "annotations, element 1: caption is 3; expected text"),
        ({"annotations": _with(caption="\ud800")}, r'caption is "\ud800"; expected text'),
        ({"annotations": _with(category_id="18")}, 'category_id is "18"; expected a whole number below 2^63'),
        ({"annotations": _with(category_id=17.5)}, "category_id is 17.5; expected a whole number below 2^63"),
        ({"annotations": _with(category_id=2**70)}, "category_id is 1180591620717411303424; expected a whole number"),
        ({"annotations": _with(category_id=True)}, "category_id is true; expected a whole number"),
        ({"annotations": _with(area=2**70)}, "area is 1180591620717411303424; expected a number"),
        ({"annotations": _with(image_id=True)}, "annotations, element 1: image_id is true; expected a whole number"),
        ({"images": [{"id": 2**70, "file_name": "a"}]}, "images, element 1: id is 1180591620717411303424; expected"),
        ({"images": [{"id": True, "file_name": "a"}]}, "images, element 1: id is true; expected a whole number"),
        ({"images": [{"id": 1, "file_name": "\ud800"}]}, r'images, element 1: file_name is "\ud800"; expected'),
        ({"images": [{"id": 1, "file_name": "a", "width": "9"}]}, 'images, element 1: width is "9"; expected a number'),
        ({"categories": [{"id": 2**70, "name": "dog"}]}, "categories, element 1: id is 1180591620717411303424; ex"),
        ({"categories": [{"id": True, "name": "dog"}]}, "categories, element 1: id is true; expected a whole"),
        ({"categories": [{"id": 18, "name": "\ud800"}]}, r'categories, element 1: name is "\ud800"; expected'),
        (
            {"annotations": [{"bbox": [1, 2, 3, 4]}]},
            "annotations, element 1: '{\"bbox\": [1, 2, 3, 4]}'; expected an obj",
        ),
        ({"images": [{"id": 5}]}, "images, element 1: '{\"id\": 5}'; expected an object with id and file_name"),
        ({"images": _COCO["images"] * 2}, "several images with the same id"),
        ({"categories": []}, "annotation 1: category 18; expected one of the 0 categories in"),
        ({"categories": [{"id": at, "name": "dog"} for at in (18, 90)]}, "categories: several named 'dog'"),
        ({"categories": [{"id": "x", "name": "dog"}]}, "categories with ids 'x'; expected whole numbers"),
    ],
)
def test_invalid_coco_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """The error for missing or wrong values gives the location in the file."""
    (tmp_path / "t.json").write_bytes(_coco(**changes))
    with pytest.raises(InvalidRequest) as caught:
        open_table(tmp_path / "t.json", ())
    assert message in str(caught.value)


def test_coco_classes_as_a_field(tmp_path: Path) -> None:
    """Lists of class numbers become a JSON field, with the class names in the dataset file."""
    write_tree(tmp_path, {"imgs/2.jpg": b"x", "imgs/3.jpg": b"y", "imgs/5.jpg": b"z", "coco.json": _coco()})
    given: dict[str, Any] = {"join": tmp_path / "coco.json", "field": {"labels.json": "labels"}}
    made = create(tmp_path / "imgs", f"{tmp_path}/a-{{0..}}.tar", CreateOptions(**given))
    assert json.loads((tmp_path / "a.json").read_text())["shardtool"]["classes"] == {
        "labels.json": ["car", "cat", "dog"]
    }
    assert not [note for note in made.notes if "holds paths" in note]
    result = dict(members(tmp_path / "a-0.tar"))
    assert [result[f"{at}.labels.json"] for at in (2, 3, 5)] == [b"[2]", b"[]", b"[1,2]"]
    options = CreateOptions(field={"labels.json": "labels"}, root=tmp_path / "imgs", meta="none")
    create(tmp_path / "coco.json", f"{tmp_path}/b-{{0..}}.tar", options)
    assert members(tmp_path / "b-0.tar") == members(tmp_path / "a-0.tar")
    (tmp_path / "coco.json").write_bytes(_coco(annotations=_with(bbox=[0, 1, float("inf"), 1])))
    with pytest.raises(InvalidRequest, match=r"column 'boxes': an infinite number in 1 sample, such as '5'"):
        create(tmp_path / "imgs", f"{tmp_path}/c-{{0..}}.tar", CreateOptions(**given | {"field": {"b.json": "boxes"}}))
    (tmp_path / "coco.json").write_bytes(_coco())
    with pytest.raises(InvalidRequest, match=r"holds lists of class numbers; expected a field name that ends in json"):
        create(tmp_path / "imgs", f"{tmp_path}/c-{{0..}}.tar", CreateOptions(**given | {"field": {"cls": "labels"}}))


def test_coco_annotations_in_queries(tmp_path: Path) -> None:
    """Queries accept class names of a joined table, of a manifest, and of a dataset with a field of the labels."""
    write_tree(tmp_path, {"imgs/2.jpg": b"x", "imgs/3.jpg": b"y", "imgs/5.jpg": b"z", "coco.json": _coco()})
    query, fields = "labels.contains('dog') and boxes.len() == 1", {"labels.json": "labels"}
    for name, where in (("all", None), ("some", query)):
        create(
            tmp_path / "imgs", f"{tmp_path}/{name}-{{0..}}.tar", join=tmp_path / "coco.json", field=fields, where=where
        )
    rows = create(tmp_path / "coco.json", f"{tmp_path}/rows-{{0..}}.tar", root=tmp_path / "imgs", where=query)
    assert rows.samples == 1
    assert [*shardtool.open(tmp_path / "some.json").keys] == ["2"]
    assert [*shardtool.open(tmp_path / "all.json").where(query).keys] == ["2"]
    with pytest.raises(InvalidRequest, match="no class 'cow'; expected one of car, cat, dog"):
        shardtool.open(tmp_path / "all.json").where("labels.contains('cow')")


def test_new_coco_categories_are_appended(tmp_path: Path) -> None:
    """On append, a new category gets the next number, even with a lower id; existing numbers stay."""
    write_tree(tmp_path / "imgs", {f"{number}.jpg": b"%d" % number for number in (2, 3, 5)})
    given: dict[str, Any] = {"join": tmp_path / "coco.json", "field": {"labels.json": "labels"}, "workers": 0}
    few = {
        "images": _COCO["images"][:1],
        "annotations": _COCO["annotations"][1:2],
        "categories": _COCO["categories"][:1],
    }
    (tmp_path / "coco.json").write_bytes(_coco(**few))
    create(tmp_path / "imgs", f"{tmp_path}/a-{{0..}}.tar", update=True, where="labels.notna()", **given)
    (tmp_path / "coco.json").write_bytes(_coco())
    notes = create(tmp_path / "imgs", f"{tmp_path}/a-{{0..}}.tar", update=True, where="labels.notna()", **given).notes
    assert any("'car' is number 1, 'cat' is number 2" in note for note in notes)
    data = shardtool.open(tmp_path / "a.json")
    assert data.classes == {"labels.json": ["dog", "car", "cat"]}
    assert {sample["__key__"]: sample["labels.json"] for sample in data} == {"2": b"[0]", "3": b"[]", "5": b"[2,0]"}
    tables = [pq.read_table(path) for path in sorted(tmp_path.glob("a-*.index"))]
    assert [row for item in tables for row in item.column("labels").to_pylist()] == [[0], [], [2, 0]]
    assert verify(tmp_path / "a.json", source=tmp_path / "imgs", workers=0).sound


def test_coco_with_a_class_list(tmp_path: Path) -> None:
    """Class numbers follow a given list that includes the categories; verify uses the dataset's list."""
    write_tree(tmp_path / "imgs", {f"{number}.jpg": b"%d" % number for number in (2, 3, 5)})
    (tmp_path / "coco.json").write_bytes(_coco())
    given: dict[str, Any] = {"field": {"labels.json": "labels"}, "root": tmp_path / "imgs", "workers": 0}
    names = ["bird", "dog", "cat", "car"]
    create(tmp_path / "coco.json", f"{tmp_path}/a-{{0..}}.tar", classes_from=names, **given)
    data = shardtool.open(tmp_path / "a.json")
    assert data.classes == {"labels.json": names}
    assert [sample["labels.json"] for sample in data] == [b"[1]", b"[]", b"[2,1]"]
    assert verify(tmp_path / "a.json", source=tmp_path / "coco.json", root=tmp_path / "imgs", workers=0).sound
    with pytest.raises(InvalidRequest, match=r"2 labels of 'labels\.json' not in the list: 'cat', 'dog'"):
        create(tmp_path / "coco.json", f"{tmp_path}/b-{{0..}}.tar", classes_from=["car"], **given)
    with pytest.raises(InvalidRequest, match="no field is converted to class numbers"):
        create(tmp_path / "coco.json", f"{tmp_path}/b-{{0..}}.tar", classes_from=names, field={"w": "width"}, workers=0)
