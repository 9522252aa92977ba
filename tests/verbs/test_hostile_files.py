"""Laws of files that others made, over every verb: damage of any kind is an error by name, and never a bug of ours."""

from __future__ import annotations

import gzip
import shutil
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool import CreateOptions, cli, create
from shardtool.cli.signals import SignalHandler
from tests.helpers import write_tree
from tests.table.odd_tables import ENDINGS, odd_file

if TYPE_CHECKING:
    from pathlib import Path

_OVER_SHARDS = (
    ["verify", "{ds}", "--decode", "--workers", "0"],
    ["verify", "{ds}", "--target", "dali", "--target", "wids", "--workers", "0"],
    ["inspect", "{ds}"],
    ["inspect", "{ds}", "--head", "2", "--json"],
    ["inspect", "{ds}", "--html", "{new}/page.html"],
    ["reshard", "{ds}", "{new}/r-{{0..}}.tar", "--workers", "0", "--quiet"],
    ["reshard", "{ds}", "{new}/r-{{0..}}.tfrecord", "--on-error", "skip", "--workers", "0", "--quiet"],
    ["index", "{ds}", "--checksum", "--overwrite", "--workers", "0", "--quiet"],
    ["verify", "{ds}", "--repair", "--workers", "0"],
)
_OVER_MANIFESTS = (
    ["create", "{table}", "{new}/c-{{0..}}.tar", "--dry-run", "--workers", "0"],
    ["create", "{table}", "{new}/c-{{0..}}.tfrecord", "--workers", "0", "--quiet", "--on-error", "skip"],
    ["create", "{table}", "{new}/w-{{0..}}.tar", "--workers", "0", "--quiet", "--where", "v == 1", "--json"],
    ["verify", "{ds}", "--source", "{table}", "--workers", "0"],
    ["reshard", "{ds}", "{new}/j-{{0..}}.tar", "--join", "{table}", "--on", "key", "--workers", "0", "--quiet"],
)
_ENDINGS = ("tar", "tfrecord", "tar.gz", "tfrecord.gz")
_CODES = {0, 2, 3, 4, 5, 6}  # of 1, a bug, and 7, the machine's failure, there is none


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a source, and a dataset of each format."""
    place = tmp_path_factory.mktemp("made")
    files = {f"{key}.{field}": b"%d" % len(key) for key in ("a", "b/c", "b/" + "d" * 120) for field in ("txt", "cls")}
    write_tree(place / "source", files | {"a.json": b'{"v": [1]}'})
    for ending in ("tar", "tfrecord"):
        create(place / "source", place / ending / f"o-{{0..}}.{ending}", CreateOptions(max_count=2, workers=0))
    return place


def _changed(data: bytes, draw: st.DataObject) -> bytes:
    """Return bytes with a few of them changed, and parts of them cut out, doubled or in another place."""
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(0, 3))):
        at = draw.draw(st.integers(0, len(changed) - 1)) if changed else 0
        changed[at : at + 1] = bytes([draw.draw(st.integers(0, 255))])
    if draw.draw(st.booleans()):
        start = draw.draw(st.integers(0, len(changed)))
        end = draw.draw(st.integers(start, len(changed)))
        part = bytes(changed[start:end])
        to = draw.draw(st.integers(0, len(changed)))
        changed[to:to] = part
        if draw.draw(st.booleans()):
            del changed[start : start + len(part)]
    return bytes(changed)


def _run(words: list[str], **places: object) -> int:
    return cli._run([word.format(**places) for word in words], SignalHandler(print))  # noqa: SLF001 - the entry of a process


@pytest.mark.slow
@settings(max_examples=15)
@given(data=st.data())
def test_any_shard(data: st.DataObject, made: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A shard of any bytes, with its sidecar and dataset file or alone, gives each verb findings or a plain error."""
    place = tmp_path_factory.mktemp("shard")
    ending = data.draw(st.sampled_from(_ENDINGS))
    plain = ending.removesuffix(".gz")
    alone = ending != plain or data.draw(st.booleans())
    shard = (made / plain / f"o-0.{plain}").read_bytes()
    if alone:
        (place / "ds").mkdir()
        changed = _changed(shard, data)
        packed = gzip.compress(changed, mtime=0) if ending != plain else changed
        (place / "ds" / f"o-0.{ending}").write_bytes(_changed(packed, data) if ending != plain else packed)
    else:
        shutil.copytree(made / plain, place / "ds")
        (place / "ds" / f"o-0.{plain}").write_bytes(_changed(shard, data))
    for number, words in enumerate(_OVER_SHARDS):
        new = place / f"new{number}"
        new.mkdir()
        assert _run(words, ds=place / "ds", new=new) in _CODES, words


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), ending=st.sampled_from(ENDINGS))
def test_any_manifest(seed: int, ending: str, made: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A table of any bytes or columns is packed, compared, joined, or refused by name."""
    place = tmp_path_factory.mktemp("table")
    write_tree(place, {"a.txt": b"1", "b.txt": b"2", "c.txt": b"3"})
    (place / f"t{ending}").write_bytes(odd_file(Random(seed), ending))  # noqa: S311 - no secret
    for number, words in enumerate(_OVER_MANIFESTS):
        new = place / f"new{number}"
        new.mkdir()
        assert _run(words, table=place / f"t{ending}", ds=made / "tar", new=new) in _CODES, (words, seed)
