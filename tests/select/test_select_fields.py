from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from shardtool.errors import InvalidRequest
from shardtool.names import to_bytes
from shardtool.select.select_fields import select_fields
from shardtool.skipped import Skipped
from tests.made import metadata_of
from tests.source.spans import FIELDS, Payload, Sample, entries_of, sample_lists, samples_of

if TYPE_CHECKING:
    from shardtool.entries.sample_table import SampleTable

NAMES = st.lists(st.sampled_from(FIELDS), unique=True, max_size=5).map(tuple)
EARLIER = Skipped("", "x", "no-field", "before")


class Change(NamedTuple):
    """A change of the fields."""

    select: tuple[str, ...]
    drop: tuple[str, ...]
    rename: tuple[tuple[str, str], ...]

    def becomes(self) -> dict[str, str]:
        """Return the new name of each field that stays."""
        stay = [name for name in FIELDS if name not in self.drop and (not self.select or name in self.select)]
        return {name: {old: new for new, old in self.rename}.get(name, name) for name in stay}


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """Return a valid change."""
    select = draw(NAMES)
    drop = tuple(name for name in draw(NAMES) if name not in select)
    stay = [*Change(select, drop, ()).becomes()]
    renamed = draw(st.lists(st.sampled_from(stay), unique=True)) if stay else []
    names = (*(name for name in FIELDS if name.isprintable()), "a", "z.z")
    free = [name for name in names if name not in stay or name in renamed]
    return Change(select, drop, tuple(zip(draw(st.permutations(free)), renamed, strict=False)))


def _expected(samples: list[Sample], change: Change) -> list[Sample]:
    """Return what `select_fields` should return, and the samples without fields."""
    becomes = change.becomes()
    return [
        replace(sample, fields={becomes[name]: held for name, held in sample.fields.items() if name in becomes})
        for sample in samples
    ]


@given(sample_lists(), st.permutations(FIELDS), changes())
@example([], [*FIELDS], Change((), (), (("cls", "cls"),)))
def test_fields_are_chosen_as_from_dicts(samples: list[Sample], fields: list[str], change: Change) -> None:
    """Each sample keeps the payloads of the selected fields, under their new names, in byte order."""
    assume(any(change))
    entries, expected = entries_of(samples, fields), _expected(samples, change)
    kept = [sample for sample in expected if sample.fields]
    if samples and not kept:
        with pytest.raises(InvalidRequest, match="no sample keeps a field"):
            select_fields(entries, *change)
        return
    result, skipped = select_fields(entries, *change)
    assert samples_of(result) == kept
    for sample in samples_of(result):
        assert [*sample.fields] == sorted(sample.fields, key=to_bytes)
    lost = [sample.key for sample in expected if not sample.fields]
    message = "none of the selected fields"
    assert skipped == tuple(Skipped(key, "", "no-field", message) for key in lost)


@given(sample_lists(min_count=1), changes())
def test_only_used_fields_remain(samples: list[Sample], change: Change) -> None:
    """Unused names are removed from `fields`, and the properties of a field are removed or renamed with it."""
    used = {name for sample in _expected(samples, change) for name in sample.fields}
    assume(any(change) and used)
    result, _ = select_fields(entries_of(samples), *change)
    assert result.fields == tuple(sorted(used, key=to_bytes))
    label = {change.becomes().get("cls")} & used
    assert set(result.values.inline) == set(result.values.numbers) == set(result.values.classes) == label
    for name in label:
        assert result.values.classes[str(name)] == ["cat", "dog"]
        assert result.values.numbers[str(name)] == "int64"


def test_no_options_change_nothing() -> None:
    """Without a change, the entries are the same object."""
    entries = entries_of([])
    assert select_fields(entries) == (entries, ())


def _one(**fields: Payload) -> SampleTable:
    return entries_of([Sample("k", fields, 0, 0)])


def test_fields_swap_names() -> None:
    """Fields are renamed simultaneously: two fields can swap names, and three can rotate."""
    entries = _one(cls=Payload(1, 1, 1), jpg=Payload(2, 2, 2), json=Payload(3, 3, 3))
    (result,) = samples_of(select_fields(entries, rename=(("cls", "jpg"), ("jpg", "cls")))[0])
    assert [(name, payload.size) for name, payload in result.fields.items()] == [("cls", 2), ("jpg", 1), ("json", 3)]
    (result,) = samples_of(select_fields(entries, rename=(("jpg", "cls"), ("json", "jpg"), ("cls", "json")))[0])
    assert [(name, payload.size) for name, payload in result.fields.items()] == [("cls", 3), ("jpg", 1), ("json", 2)]


def test_the_name_of_a_dropped_field_can_be_reused() -> None:
    """A field can take the name of one that is dropped, or not selected."""
    entries = _one(cls=Payload(1, 1, 1), jpg=Payload(2, 2, 2))
    changes: list[tuple[tuple[str, ...], tuple[str, ...]]] = [((), ("jpg",)), (("cls",), ())]
    for select, drop in changes:
        (result,) = samples_of(select_fields(entries, select, drop, (("jpg", "cls"),))[0])
        assert {name: payload.size for name, payload in result.fields.items()} == {"jpg": 1}


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        (
            {"select": ("jgp",)},
            "select_fields",
            "no field 'jgp'; expected one of cls, jpg, json, seg.png, Txt, é, \\x80. Did",
        ),
        ({"select": ("TXT",)}, "select_fields", "Did you mean 'Txt'?"),
        ({"drop": ("png",)}, "drop_fields", "no field 'png'"),
        ({"rename": (("x", "jpeg"),)}, "rename_fields", "no field 'jpeg'"),
        (
            {"select": ("cls", "x"), "rename": (("cls", "x"),)},
            "rename_fields",
            "'cls=x': 'cls' exists, and 'x' does not; expected the new name first: NEW=OLD. Did you mean rename_",
        ),
        ({"select": ("jpg", "cls"), "drop": ("jpg",)}, "drop_fields", "'jpg', which is also selected"),
        ({"select": ("jpg",), "rename": (("x", "cls"),)}, "rename_fields", "'cls', which is dropped; expected one of"),
        ({"drop": ("cls",), "rename": (("x", "cls"),)}, "rename_fields", "'cls', which is dropped"),
        ({"rename": (("x", "cls"), ("y", "cls"))}, "rename_fields", "'cls' more than once"),
        ({"rename": (("__key__", "cls"),)}, "rename_fields", "'__key__', a name that readers reserve"),
        ({"rename": (("", "cls"),)}, "rename_fields", "not a valid field name; expected a name"),
        ({"rename": ((".jpg", "cls"),)}, "rename_fields", "not a valid field name"),
        ({"rename": (("jpg.", "cls"),)}, "rename_fields", "not a valid field name"),
        ({"rename": (("a/b", "cls"),)}, "rename_fields", "not a valid field name"),
        ({"rename": (("a\0", "cls"),)}, "rename_fields", "not a valid field name"),
        ({"rename": (("a\n", "cls"),)}, "rename_fields", "not a valid field name"),
        ({"rename": (("a\udcff", "cls"),)}, "rename_fields", "not a valid field name"),
        *[
            ({"rename": ((name, "cls"),)}, "rename_fields", "not a valid field name")
            for name in ("a=b", "-a", "a,b", " a", "a ")
        ],
        ({"select": ("jpg", "json")}, "select_fields", "no sample keeps a field"),
        ({"drop": ("cls",)}, "drop_fields", "no sample keeps a field"),
    ],
)
def test_invalid_field_names_are_refused(change: dict[str, Any], where: str, message: str) -> None:
    """Unknown, contradictory and invalid names are refused, naming the option."""
    with pytest.raises(InvalidRequest) as caught:
        select_fields(_one(cls=Payload(1, 1, 1)), **change)
    assert caught.value.where == where
    assert message in str(caught.value)


def test_two_fields_merge_if_no_sample_has_both() -> None:
    """Shards with jpeg and shards with jpg can be merged; a sample that has both is named."""
    apart = [Sample("a", {"jpeg": Payload(1, 1, 1)}, 0, 0), Sample("b", {"jpg": Payload(1, 2, 1)}, 0, 1)]
    result, _ = select_fields(entries_of(apart, ("jpeg", "jpg")), rename=(("jpg", "jpeg"),))
    assert [[*sample.fields] for sample in samples_of(result)] == [["jpg"], ["jpg"]]
    both = [*apart, Sample("c", {"jpeg": Payload(1, 3, 1), "jpg": Payload(1, 4, 1)}, 0, 2)]
    with pytest.raises(InvalidRequest, match="'jpeg', 'jpg' of 'c' would all be renamed to 'jpg'"):
        select_fields(entries_of(both, ("jpeg", "jpg")), rename=(("jpg", "jpeg"),))


@pytest.mark.parametrize("chunks", [1, 2])
def test_source_paths_stay_with_their_fields(chunks: int) -> None:
    """The source paths of a portable dataset, one per field in order, are dropped and reordered with the fields."""
    samples = [
        Sample("a", {"cls": Payload(1, 1, 1), "jpg": Payload(1, 2, 1), "json": Payload(1, 3, 1)}, 0, 0),
        Sample("b", {"cls": Payload(1, 4, 1)}, 0, 1),
        Sample("c", {"cls": Payload(1, 5, 1), "json": Payload(1, 6, 1)}, 0, 2),
    ]
    entries = entries_of(samples)
    rows = pa.array([["unseen"], ["", "a.JPG", "a.JSON"], [""], ["", "c.JSON"]], pa.list_(pa.string()))
    paths = pa.chunked_array([rows[1:]] if chunks == 1 else [rows[1:2], rows[2:]])
    entries = replace(entries, metadata=metadata_of(entries).append_column("source_paths", paths))
    result, _ = select_fields(entries, drop=("cls",), rename=(("z", "jpg"),))
    assert [[*sample.fields] for sample in samples_of(result)] == [["json", "z"], ["json"]]
    assert metadata_of(result).column("source_paths").to_pylist() == [["a.JSON", "a.JPG"], ["c.JSON"]]
    assert metadata_of(result).schema == metadata_of(entries).schema


def test_other_columns_of_source_paths_stay() -> None:
    """A column of that name without one value per field is ordinary metadata."""
    samples = [Sample(key, {"cls": Payload(1, 1, 1), "jpg": Payload(1, 2, 1)}, 0, 0) for key in "ab"]
    masked = pa.ListArray.from_arrays(
        pa.array([0, 2, 4], pa.int32()), pa.array(["1", "2", "3", "4"]), mask=pa.array([False, True])
    )
    for column in (masked, pa.array([["1"], ["2"]]), pa.array(["1", "2"]), pa.array([[1], [2, 3, 4]])):
        entries = replace(entries_of(samples), metadata=pa.table({"number": [0, 0], "source_paths": column}))
        result, _ = select_fields(entries, drop=("cls",))
        assert metadata_of(result).column("source_paths").to_pylist() == column.to_pylist()
