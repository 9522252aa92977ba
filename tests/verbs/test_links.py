"""Laws of shards behind symbolic links, as Hugging Face's cache, DVC and git-annex hand them out."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from shardtool import (
    CreateOptions,
    ExportOptions,
    IndexOptions,
    InvalidRequest,
    OutputExists,
    ReshardOptions,
    ShardError,
    VerifyOptions,
    create,
    export,
    index,
    inspect,
    reshard,
    verify,
)
from tests.helpers import flip, identity, members, shards, typed

if TYPE_CHECKING:
    from pathlib import Path

ONE = IndexOptions(workers=0)


@pytest.fixture
def plain(small_once: Path, ending: str, tmp_path: Path) -> Path:
    """Give a dataset of three shards."""
    create(small_once, f"{tmp_path}/plain/out-{{000..}}.{ending}", CreateOptions(max_count=4, workers=0))
    return tmp_path / "plain"


@pytest.fixture
def view(plain: Path, tmp_path: Path) -> Path:
    """Yield a folder of links to files in another folder, whose names have no extensions."""
    folder, blobs = tmp_path / "snapshots" / "1", tmp_path / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    for path in plain.iterdir():
        blob = hashlib.sha256(path.name.encode()).hexdigest()
        (blobs / blob).write_bytes(path.read_bytes())
        (folder / path.name).symlink_to(f"../../blobs/{blob}")
    return folder


def _blobs(view: Path) -> dict[str, tuple[int, int, int]]:
    return identity(view.parent.parent / "blobs")


def test_a_dataset_of_links_is_read_as_any_other(view: Path, plain: Path, tmp_path: Path, ending: str) -> None:
    """Each verb, for each way to name the dataset, reads the linked files, which stay unchanged."""
    before = _blobs(view)
    for given in (view / "out.json", view, f"{view}/out-{{000..}}.{ending}", f"{view}/*.{ending}", shards(view)):
        assert verify(given, VerifyOptions(workers=0)).sound
        assert inspect(given).complete
    reshard(view / "out.json", f"{tmp_path}/new/out-{{000..}}.{ending}", ReshardOptions(max_count=4, workers=0))
    assert members(*shards(tmp_path / "new")) == members(*shards(plain))
    assert index(view, ONE).kept == len(shards(view))
    assert _blobs(view) == before


def test_an_index_lies_beside_the_links(view: Path, plain: Path) -> None:
    """`index` and `--export` write into the folder of the links, never to where they lead."""
    for path in [*view.glob("*.index"), view / "out.json"]:
        path.unlink()
    before = _blobs(view)
    assert inspect(view).looked.walked == len(shards(view))
    index(view, IndexOptions(checksum=True, workers=0))
    assert verify(view, VerifyOptions(workers=0)).sound
    made = {path.name for path in view.iterdir() if not path.is_symlink()}
    assert made == {path.name for path in plain.iterdir()} - {path.name for path in shards(plain)}
    export(
        view / "out.json", "huggingface" if shards(view)[0].suffix == ".tar" else "tfrecord", ExportOptions(workers=0)
    )
    assert _blobs(view) == before


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}, {"append": True}])
def test_nothing_is_written_through_a_link(options: dict[str, str], view: Path, small_once: Path, ending: str) -> None:
    """A run whose output is a dataset of links is refused, and touches neither links nor what they lead to."""
    before = _blobs(view), identity(view)
    with pytest.raises(OutputExists, match=r"link|already"):
        create(small_once, f"{view}/out-{{000..}}.{ending}", CreateOptions(max_count=4, workers=0, **options))  # type: ignore[arg-type]
    assert (_blobs(view), identity(view)) == before


def test_targets_of_links_are_part_of_the_source(view: Path, plain: Path, ending: str) -> None:
    """An output that would replace the target of a link in the source is refused."""
    link = view / f"other.{ending}"
    link.symlink_to(shards(plain)[1])
    before = identity(plain)
    with pytest.raises(InvalidRequest, match=r"out-001.*a shard of the source"):
        reshard(link, f"{plain}/out-{{000..}}.{ending}", ReshardOptions(overwrite=True, workers=0))
    assert identity(plain) == before


def test_a_link_to_nothing_says_how_to_fetch_it(view: Path, tmp_path: Path) -> None:
    """What a store has not fetched is named by every verb, with where the link leads and what fetches it."""
    shard = shards(view)[1]
    target = os.readlink(shard)
    shard.resolve().unlink()
    report = verify(view, VerifyOptions(workers=0))
    assert [(finding.code, target in finding.found) for finding in report.findings] == [("shard-missing", True)]
    assert [item.where for item in inspect(view).problems if item.code == "missing-shard"] == [str(shard)]
    out = f"{tmp_path}/new-{{0..}}{shard.suffix}"
    for verb, *words in (("inspect", shard), ("verify", shard), ("index", view), ("reshard", view, out)):
        ran = typed(verb, *words)
        assert ran.code in (2, 4)
        assert f"a broken link to {target}" in ran.err
        assert "git annex get" in ran.err
    (view / "out.json").resolve().unlink()
    with pytest.raises(ShardError, match="a broken link to"):
        inspect(view / "out.json")


def test_damage_behind_a_link_is_found(view: Path) -> None:
    """One flipped bit of what a link leads to is a finding about the link's name."""
    shard = shards(view)[1]
    flip(shard.resolve(), 700)
    findings = {finding.file for finding in verify(view, VerifyOptions(workers=0)).findings}
    assert {shard.name} <= findings <= {shard.name, "out.json"}
