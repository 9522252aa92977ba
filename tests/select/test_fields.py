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
    """What is done to fields."""

    select: tuple[str, ...]
    drop: tuple[str, ...]
    rename: tuple[tuple[str, str], ...]

    def becomes(self) -> dict[str, str]:
        """Return the fields that stay, and what they are called then."""
        stay = [name for name in FIELDS if name not in self.drop and (not self.select or name in self.select)]
        return {name: dict(self.rename).get(name, name) for name in stay}


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """Return a change that makes sense."""
    select = draw(NAMES)
    drop = tuple(name for name in draw(NAMES) if name not in select)
    stay = [*Change(select, drop, ()).becomes()]
    renamed = draw(st.lists(st.sampled_from(stay), unique=True)) if stay else []
    names = (*(name for name in FIELDS if name.isprintable()), "a", "z.z")
    free = [name for name in names if name not in stay or name in renamed]
    return Change(select, drop, tuple(zip(renamed, draw(st.permutations(free)), strict=False)))


def _changed(samples: list[Sample], change: Change) -> list[Sample]:
    """Return what `select_fields` should make of samples, those without fields among them."""
    becomes = change.becomes()
    return [
        replace(sample, fields={becomes[name]: held for name, held in sample.fields.items() if name in becomes})
        for sample in samples
    ]


@given(sample_lists(), st.permutations(FIELDS), changes())
@example([], [*FIELDS], Change((), (), (("cls", "cls"),)))
def test_fields_are_chosen_as_from_dicts(samples: list[Sample], fields: list[str], change: Change) -> None:
    """Each sample keeps the payloads of the fields that stay, under their new names, in the order of their bytes."""
    assume(any(change))
    entries, expected = entries_of(samples, fields), _changed(samples, change)
    kept = [sample for sample in expected if sample.fields]
    if samples and not kept:
        with pytest.raises(InvalidRequest, match="no sample keeps a field"):
            select_fields(entries, *change)
        return
    found, skipped = select_fields(entries, *change)
    assert samples_of(found) == kept
    for sample in samples_of(found):
        assert [*sample.fields] == sorted(sample.fields, key=to_bytes)
    lost = [sample.key for sample in expected if not sample.fields]
    message = "none of the fields that were selected"
    assert skipped == tuple(Skipped(key, "", "no-field", message) for key in lost)


@given(sample_lists(least=1), changes())
def test_only_fields_in_use_are_left(samples: list[Sample], change: Change) -> None:
    """Names that no row has leave `fields`, and what is told of a field goes with it or takes its new name."""
    used = {name for sample in _changed(samples, change) for name in sample.fields}
    assume(any(change) and used)
    found, _ = select_fields(entries_of(samples), *change)
    assert found.fields == tuple(sorted(used, key=to_bytes))
    label = {change.becomes().get("cls")} & used
    assert set(found.values.inline) == set(found.values.numbers) == set(found.values.classes) == label
    for name in label:
        assert found.values.classes[str(name)] == ["cat", "dog"]
        assert found.values.numbers[str(name)] == "int64"


def test_nothing_asked_for_changes_nothing() -> None:
    """Without a change, the entries are the same object."""
    entries = entries_of([])
    assert select_fields(entries) == (entries, ())


def _one(**fields: Payload) -> SampleTable:
    return entries_of([Sample("k", fields, 0, 0)])


def test_fields_change_places() -> None:
    """Renaming is done all at once: two fields can change places, three can go round."""
    entries = _one(cls=Payload(1, 1, 1), jpg=Payload(2, 2, 2), json=Payload(3, 3, 3))
    (found,) = samples_of(select_fields(entries, rename=(("cls", "jpg"), ("jpg", "cls")))[0])
    assert [(name, payload.size) for name, payload in found.fields.items()] == [("cls", 2), ("jpg", 1), ("json", 3)]
    (found,) = samples_of(select_fields(entries, rename=(("cls", "jpg"), ("jpg", "json"), ("json", "cls")))[0])
    assert [(name, payload.size) for name, payload in found.fields.items()] == [("cls", 3), ("jpg", 1), ("json", 2)]


def test_a_name_can_follow_a_field_that_goes() -> None:
    """A field can take the name of one that is dropped, or not selected."""
    entries = _one(cls=Payload(1, 1, 1), jpg=Payload(2, 2, 2))
    changes: list[tuple[tuple[str, ...], tuple[str, ...]]] = [((), ("jpg",)), (("cls",), ())]
    for select, drop in changes:
        (found,) = samples_of(select_fields(entries, select, drop, (("cls", "jpg"),))[0])
        assert {name: payload.size for name, payload in found.fields.items()} == {"jpg": 1}


@pytest.mark.parametrize(
    ("change", "where", "said"),
    [
        (
            {"select": ("jgp",)},
            "select_fields",
            "no field 'jgp'; expected one of cls, jpg, json, seg.png, Txt, é, \\x80. Did",
        ),
        ({"select": ("TXT",)}, "select_fields", "Did you mean 'Txt'?"),
        ({"drop": ("png",)}, "drop_fields", "no field 'png'"),
        ({"rename": (("jpeg", "jpg"),)}, "rename_fields", "no field 'jpeg'"),
        ({"select": ("jpg", "cls"), "drop": ("jpg",)}, "drop_fields", "'jpg', which is to be kept, too"),
        ({"select": ("jpg",), "rename": (("cls", "x"),)}, "rename_fields", "'cls', which does not stay; expected of"),
        ({"drop": ("cls",), "rename": (("cls", "x"),)}, "rename_fields", "'cls', which does not stay"),
        ({"rename": (("cls", "x"), ("cls", "y"))}, "rename_fields", "'cls' more than once"),
        ({"rename": (("cls", "__key__"),)}, "rename_fields", "'__key__', a name that readers keep for themselves"),
        ({"rename": (("cls", ""),)}, "rename_fields", "no name for a field; expected a name"),
        ({"rename": (("cls", ".jpg"),)}, "rename_fields", "no name for a field"),
        ({"rename": (("cls", "jpg."),)}, "rename_fields", "no name for a field"),
        ({"rename": (("cls", "a/b"),)}, "rename_fields", "no name for a field"),
        ({"rename": (("cls", "a\0"),)}, "rename_fields", "no name for a field"),
        ({"rename": (("cls", "a\n"),)}, "rename_fields", "no name for a field"),
        ({"rename": (("cls", "a\udcff"),)}, "rename_fields", "no name for a field"),
        *[({"rename": (("cls", name),)}, "rename_fields", "no name") for name in ("a=b", "-a", "a,b", " a", "a ")],
        ({"select": ("jpg", "json")}, "select_fields", "no sample keeps a field"),
        ({"drop": ("cls",)}, "drop_fields", "no sample keeps a field"),
    ],
)
def test_fields_that_make_no_sense(change: dict[str, Any], where: str, said: str) -> None:
    """Names that are not there, contradict each other or cannot be fields are refused by the option that has them."""
    with pytest.raises(InvalidRequest) as caught:
        select_fields(_one(cls=Payload(1, 1, 1)), **change)
    assert caught.value.where == where
    assert said in str(caught.value)


def test_two_fields_become_one_where_no_sample_has_both() -> None:
    """So that shards with jpeg and shards with jpg can be merged; a sample that has both is named."""
    apart = [Sample("a", {"jpeg": Payload(1, 1, 1)}, 0, 0), Sample("b", {"jpg": Payload(1, 2, 1)}, 0, 1)]
    found, _ = select_fields(entries_of(apart, ("jpeg", "jpg")), rename=(("jpeg", "jpg"),))
    assert [[*sample.fields] for sample in samples_of(found)] == [["jpg"], ["jpg"]]
    both = [*apart, Sample("c", {"jpeg": Payload(1, 3, 1), "jpg": Payload(1, 4, 1)}, 0, 2)]
    with pytest.raises(InvalidRequest, match="'jpeg', 'jpg' of 'c' would all be called 'jpg'"):
        select_fields(entries_of(both, ("jpeg", "jpg")), rename=(("jpeg", "jpg"),))


@pytest.mark.parametrize("chunks", [1, 2])
def test_source_paths_stay_with_their_fields(chunks: int) -> None:
    """The names that a portable dataset's files had, a value a field in their order, go and move with the fields."""
    samples = [
        Sample("a", {"cls": Payload(1, 1, 1), "jpg": Payload(1, 2, 1), "json": Payload(1, 3, 1)}, 0, 0),
        Sample("b", {"cls": Payload(1, 4, 1)}, 0, 1),
        Sample("c", {"cls": Payload(1, 5, 1), "json": Payload(1, 6, 1)}, 0, 2),
    ]
    entries = entries_of(samples)
    rows = pa.array([["unseen"], ["", "a.JPG", "a.JSON"], [""], ["", "c.JSON"]], pa.list_(pa.string()))
    paths = pa.chunked_array([rows[1:]] if chunks == 1 else [rows[1:2], rows[2:]])
    entries = replace(entries, metadata=metadata_of(entries).append_column("source_paths", paths))
    found, _ = select_fields(entries, drop=("cls",), rename=(("jpg", "z"),))
    assert [[*sample.fields] for sample in samples_of(found)] == [["json", "z"], ["json"]]
    assert metadata_of(found).column("source_paths").to_pylist() == [["a.JSON", "a.JPG"], ["c.JSON"]]
    assert metadata_of(found).schema == metadata_of(entries).schema


def test_other_source_paths_are_left_alone() -> None:
    """A column of that name that has not a value a field is metadata like any other."""
    samples = [Sample(key, {"cls": Payload(1, 1, 1), "jpg": Payload(1, 2, 1)}, 0, 0) for key in "ab"]
    masked = pa.ListArray.from_arrays(
        pa.array([0, 2, 4], pa.int32()), pa.array(["1", "2", "3", "4"]), mask=pa.array([False, True])
    )
    for column in (masked, pa.array([["1"], ["2"]]), pa.array(["1", "2"]), pa.array([[1], [2, 3, 4]])):
        entries = replace(entries_of(samples), metadata=pa.table({"number": [0, 0], "source_paths": column}))
        found, _ = select_fields(entries, drop=("cls",))
        assert metadata_of(found).column("source_paths").to_pylist() == column.to_pylist()
