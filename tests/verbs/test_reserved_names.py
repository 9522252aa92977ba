"""Laws of names that mean something in every sample: no field of a shard can take their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import shardtool
from shardtool import CreateOptions, IndexOptions, InvalidRequest, ShardWriter, create, index, verify
from shardtool.names import RESERVED_NAMES
from tests.helpers import members, typed, write_tree
from tests.verbs.test_inspect import tar_of

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = sorted(map(bytes.decode, RESERVED_NAMES))


@pytest.mark.parametrize("name", _NAMES)
def test_no_field_has_a_reserved_name(name: str, ending: str, tmp_path: Path) -> None:
    """`create`, its `--portable` aside, and `ShardWriter` refuse such a field."""
    source = write_tree(tmp_path / "src", {f"a.{name}": b"forged", "a.txt": b"x"})
    with pytest.raises(InvalidRequest, match=name):
        create(source, f"{tmp_path}/out-{{0..}}.{ending}", CreateOptions(workers=0))
    made = create(source, f"{tmp_path}/safe-{{0..}}.{ending}", CreateOptions(workers=0, portable=True))
    assert made.samples == 1
    if name != "__key__":
        with (
            pytest.raises(InvalidRequest, match=name),
            ShardWriter(f"{tmp_path}/w-{{0..}}.{ending}", overwrite=True) as out,
        ):
            out.write({"__key__": "a", name: b"forged"})


def test_a_sample_with_a_reserved_field_is_skipped(ending: str, tmp_path: Path) -> None:
    """With `--on-error skip`, the other samples are packed, in any format."""
    source = write_tree(tmp_path / "src", {"a.__key__": b"forged", "a.txt": b"x", "b.txt": b"y"})
    made = create(source, f"{tmp_path}/out-{{0..}}.{ending}", CreateOptions(workers=0, on_error="skip"))
    assert (made.samples, [item["__key__"] for item in shardtool.open(f"{tmp_path}/out.json")]) == (1, ["b"])


def test_a_key_may_be_a_reserved_name(ending: str, tmp_path: Path) -> None:
    """Only field names are reserved: any key is allowed, from any source."""
    source = write_tree(tmp_path / "src", {"__size__.txt": b"1"})
    create(source, f"{tmp_path}/out-{{0..}}.{ending}", CreateOptions(workers=0))
    create(source, f"{tmp_path}/map-{{0..}}.{ending}", CreateOptions(workers=0, map="tests.mapped:told"))
    with ShardWriter(f"{tmp_path}/w-{{0..}}.{ending}") as out:
        out.write({"__key__": "__size__", "txt": b"x"})
    for name in ("out", "map", "w"):
        assert [*shardtool.open(f"{tmp_path}/{name}.json").keys] == ["__size__"]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("name", ["__key__", "__url__", "__shard__"])
def test_a_key_is_never_that_of_a_member(name: str, indexed: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """A reader passes over such a member, with an index and without; `verify` finds it, and `reshard` refuses it."""
    shard = tar_of(tmp_path / "s.tar", [(f"a.{name}", b"forged"), ("a.txt", b"x"), ("b.txt", b"y")])
    if indexed:
        index(shard, IndexOptions(workers=0))
    data = shardtool.open(shard)
    expected = [{"__key__": "a", "txt": b"x"}, {"__key__": "b", "txt": b"y"}]
    assert [data[0], data["b"]] == expected
    assert data[[0, 1]] == expected
    assert list(data.stream()) == expected
    assert [(finding.code, finding.field) for finding in verify(shard).findings] == [("key-unsafe", name)]
    refused = typed("reshard", shard, f"{tmp_path}/r-{{0..}}.tar")
    assert (refused.code, name in refused.err) == (2, True)
    assert typed("reshard", shard, f"{tmp_path}/r-{{0..}}.tar", "--drop-fields", name).code == 0
    assert dict(members(tmp_path / "r-0.tar")) == {"a.txt": b"x", "b.txt": b"y"}
