"""Laws of what is believed of a dataset file: it chooses, and nothing that it names is run, or opened elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool import (
    CorruptShard,
    CreateOptions,
    IndexOptions,
    InspectOptions,
    InvalidRequest,
    Report,
    ReshardOptions,
    ShardError,
    VerifyOptions,
    create,
    dry_run,
    index,
    inspect,
    reshard,
    verify,
)
from shardtool.cli import cli
from shardtool.dataset.dataset_file import DatasetFile, parse_dataset
from shardtool.dataset.find import open_dataset
from shardtool.fingerprint import crc32c
from shardtool.pattern import parse_pattern
from shardtool.request.option_spec import option_specs
from shardtool.storage.files import read_small
from shardtool.verbs.inspect.page.page import write_page
from shardtool.verbs.verify.recorded_run import REPEATABLE_OPTIONS
from tests.helpers import flip, identity, read_tree, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_ONE_WORKER: Any = {"workers": 1}
_PATTERN = "out-{000..}.tar"


def _sealed(document: Any) -> bytes:
    """Return the bytes of a dataset file that says this, with the checksum of these bytes."""
    document = {name: value for name, value in document.items() if name != "checksum"}
    body = json.dumps(document, indent=2).removesuffix("\n}").encode() + b',\n  "checksum": "crc32c:'
    return body + b'%08x"\n}\n' % crc32c(body)


def _reseal(path: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_bytes(_sealed(document))


def _verify(dataset: Any, **options: Any) -> Report:
    return verify(dataset, VerifyOptions(**{**_ONE_WORKER, **options}))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give six samples in `photos`, and their dataset of three shards in `ds`: not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    write_tree(folder / "photos", {f"{at}.txt": b"%d" % at * 700 for at in range(6)})
    create(folder / "photos", f"{folder}/ds/{_PATTERN}", CreateOptions(max_count=2, **_ONE_WORKER))
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """Give a copy, to be changed."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


# What is recorded of a run.


def test_every_option_is_decided() -> None:
    """Recorded options are taken again only where they are listed by name; those of code and places are not."""
    families = {"fields", "fetch", "split_by"}  # runs record what they stand for
    known = {name for kind in (CreateOptions, ReshardOptions) for name in option_specs(kind)} - families
    assert known > REPEATABLE_OPTIONS
    assert known - REPEATABLE_OPTIONS == {
        "workers", "start_method", "if_exists", "on_error", "root", "allow_outside", "stat", "export", "join", "add",
        "method", "memory", "temp_dir", "map", "classes_from", "trust", "max_removed", "target", "part",
        "connections", "per_host", "timeout", "max_time", "retries", "allow_private", "user_agent", "max_failed",
        "retry_failed", "plan", "plan_only", "executor", "address",
    }  # fmt: skip


def test_no_verb_runs_recorded_code(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that a dataset file names is never imported, by any verb, though its module is on the path."""
    write_tree(copy / "ds", {"evil_module.py": b"open(__file__ + '.ran', 'w')\ndef run(sample): return sample\n"})
    _reseal(copy / "ds" / "out.json", lambda file: file["shardtool"]["made"]["options"].update(map="evil_module:run"))
    flip(copy / "ds" / "out-000.tar", 600)
    monkeypatch.chdir(copy / "ds")
    monkeypatch.syspath_prepend(str(copy / "ds"))
    before = read_tree(copy)
    for options in ({}, {"source": "../photos"}, {"repair": True}, {"repair": True, "source": "../photos"}):
        report = _verify("out.json", **options)
    assert any("evil_module:run" in text and "map" in text for text in report.unchecked)
    assert read_tree(copy) == before
    inspect("out.json")
    for run in (
        lambda: create("../photos", _PATTERN, CreateOptions(max_count=2, if_exists="resume", **_ONE_WORKER)),
        lambda: create("../photos", _PATTERN, CreateOptions(if_exists="append", **_ONE_WORKER)),
        lambda: index("out.json", IndexOptions(**_ONE_WORKER)),
        lambda: reshard("out.json", "../again/a-{0..}.tar", ReshardOptions(**_ONE_WORKER)),
    ):
        with suppress(ShardError):
            run()
    assert "evil_module" not in sys.modules
    assert not list(copy.rglob("*.ran"))


def test_repair_calls_the_function_that_the_user_names(tmp_path: Path) -> None:
    """With --map, that very function makes shards again, to the same bytes; another one is refused, and runs not."""
    source = write_tree(tmp_path / "in", {f"{at}.txt": b"%d" % (at * 90) for at in range(6)})
    options = CreateOptions(max_count=2, map="tests.mapped:told", **_ONE_WORKER)
    create(source, f"{tmp_path}/ds/{_PATTERN}", options)
    wanted = read_tree(tmp_path / "ds")
    flip(tmp_path / "ds" / "out-001.tar", 600)
    damaged = read_tree(tmp_path / "ds")
    report = _verify(tmp_path / "ds", repair=True, source=source, map="tests.mapped:slow")
    assert any("as recorded" in text for text in report.unchecked)
    assert read_tree(tmp_path / "ds") == damaged
    report = _verify(tmp_path / "ds", repair=True, source=source, map="tests.mapped:told")
    assert (report.sound, len(report.repaired)) == (True, 1)
    assert read_tree(tmp_path / "ds") == wanted


def test_links_are_followed_only_for_the_user(tmp_path: Path) -> None:
    """That links lead out of the source is the user's word, not the dataset file's."""
    write_tree(tmp_path / "elsewhere", {"secret.txt": b"s" * 900})
    source = write_tree(tmp_path / "in", {"a.txt": b"a" * 900})
    (source / "b.txt").symlink_to(tmp_path / "elsewhere" / "secret.txt")
    create(source, f"{tmp_path}/ds/{_PATTERN}", CreateOptions(symlinks="follow", **_ONE_WORKER))
    with pytest.raises(InvalidRequest, match="symlinks='follow'"):
        _verify(tmp_path / "ds", source=source)
    assert _verify(tmp_path / "ds", source=source, symlinks="follow").sound
    assert _verify(tmp_path / "ds", source=source, symlinks="skip").counts == {"source-extra": 1}


def test_the_root_of_a_manifest(tmp_path: Path) -> None:
    """What relative paths count from is on no record, and can be given: to compare, and to make shards again."""
    files = write_tree(tmp_path / "files", {f"{at}.txt": b"%d" % at * 900 for at in range(4)})
    listed = tmp_path / "lists" / "list.csv"
    write_tree(tmp_path / "lists", {"list.csv": b"path\n" + b"".join(b"%d.txt\n" % at for at in range(4))})
    create(listed, f"{tmp_path}/ds/{_PATTERN}", CreateOptions(path="path", root=str(files), max_count=2, **_ONE_WORKER))
    wanted = read_tree(tmp_path / "ds")
    assert _verify(tmp_path / "ds", source=listed, root=str(files)).checked[-1] == "the source"
    flip(tmp_path / "ds" / "out-001.tar", 600)
    assert _verify(tmp_path / "ds", source=listed, root=str(files), repair=True).sound
    assert read_tree(tmp_path / "ds") == wanted


def test_the_command(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The options of a source are the command's, too, and each is named as in `create`."""
    monkeypatch.chdir(copy)
    asked = ["verify", "ds", "--source", "photos", "--workers", "1", "--symlinks", "skip"]
    assert CliRunner().invoke(cli, asked).exit_code == 0
    for wrong in (["--map", "a:b"], ["--root", "."], ["--allow-outside"]):
        assert isinstance(CliRunner().invoke(cli, ["verify", "ds", *wrong]).exception, InvalidRequest), wrong


@pytest.mark.parametrize("options", [{"map": "a:b"}, {"map": "a:b", "source": "x"}, {"root": "x"}, {"symlinks": "skip"},
                                     {"allow_outside": True}])  # fmt: skip
def test_options_about_a_source_want_one(options: dict[str, Any]) -> None:
    """What is said of a source makes no sense without one, nor a function without a repair."""
    with pytest.raises(InvalidRequest):
        VerifyOptions(**options)


# Names.

_HOSTILE: list[Callable[[Any], object]] = [
    lambda file: file["shardtool"].update(pattern="/victim/out-{000..}.tar"),
    lambda file: file["shardtool"].update(pattern="../victim/out-{000..}.tar"),
    lambda file: file["shardtool"].update(pattern="other-{000..}.tar"),
    lambda file: file["shardtool"].update(pattern="out-{001..}.tar"),
    lambda file: file["shardtool"].update(pattern="out-{000..001}.tar"),
    lambda file: file["shardtool"].update(pattern="\x1b[2J"),
    lambda file: file["shardtool"].update(pattern=""),
    lambda file: file.update(name="../../secret"),
    lambda file: file.update(name=""),
    lambda file: file.update(name="a\nb"),
    lambda file: file["shardlist"][0].update(url="\ud800.tar", index={**file["shardlist"][0]["index"]}),
    lambda file: file["shardlist"][0].update(url="out-000.tfrecord"),
    lambda file: file["shardlist"][0].update(url="out-000"),
    lambda file: file["shardlist"][0]["index"].update(name="out-001.index"),
    lambda file: file["shardlist"].clear(),
    lambda file: file["shardlist"].reverse(),
    lambda file: file["shardlist"][0].update(nsamples=10**6),
    lambda file: file["shardtool"]["totals"].update(samples=7),
    lambda file: file["shardtool"]["totals"].update(size=1),
    lambda file: file["shardtool"]["totals"].update(field_bytes=10**400),
    lambda file: file["shardtool"].update(fields={"txt": "6"}),
    lambda file: file["shardtool"].update(features={"txt": "tf.io.FixedLenFeature([], tf.int32)"}),
    lambda file: file["shardtool"].update(schema={"__key__": 1}),
    lambda file: file["shardtool"].update(fingerprint="b2:" + "0" * 10**6),
    lambda file: file["shardtool"]["made"].update(options={"max_size": 10**400}),
    lambda file: file["shardtool"]["made"].update(options={"max_size": float("inf")}),
    lambda file: file["shardtool"]["made"].update(options=["map"]),
    lambda file: file["shardtool"]["made"].update(source="\ud800"),
    lambda file: file["shardtool"]["made"].update(split=["a"]),
    lambda file: file["shardtool"]["made"].update(deep=json.loads("[" * 50 + "]" * 50)),
    lambda file: file["shardtool"]["made"].update(appended=[{}]),
]


@pytest.mark.parametrize("change", _HOSTILE)
def test_what_cannot_be_is_refused_where_it_is_read(change: Callable[[Any], object], copy: Path) -> None:
    """Names that lead elsewhere, totals that are not those of the shards, and other types are damage, for all verbs."""
    path = copy / "ds" / "out.json"
    _reseal(path, change)
    with pytest.raises(CorruptShard):
        parse_dataset(path.read_bytes(), "out.json")
    assert "dataset-file-damaged" in _verify(path, quick=True).counts
    with pytest.raises(ShardError):
        inspect(path, InspectOptions())
    with suppress(ShardError):
        create(copy / "photos", f"{copy}/ds/{_PATTERN}", CreateOptions(if_exists="resume", **_ONE_WORKER))
    assert read_tree(copy / "photos") == {f"{at}.txt": b"%d" % at * 700 for at in range(6)}


@pytest.mark.parametrize("which", range(9))
def test_repair_stays_in_the_folder(which: int, copy: Path) -> None:
    """Wherever the names in a dataset file lead, a repair reads, writes and removes nothing there."""
    victim = write_tree(copy / "victim", {"out-005.tar": b"p", "out-007.index": b"i", "secret.skipped": b"s"})
    _reseal(copy / "ds" / "out.json", _HOSTILE[which])
    flip(copy / "ds" / "out-000.tar", 600)
    before = identity(victim)
    _verify(copy / "ds" / "out.json", repair=True, source=copy / "photos")
    assert identity(victim) == before
    assert {path.name for path in copy.iterdir()} == {"ds", "photos", "victim"}


def test_repair_removes_nothing_that_is_not_listed(copy: Path) -> None:
    """A file that has a name of the dataset's, and is none of it, stays as it is; a renamed dataset file does, too."""
    write_tree(copy / "ds", {"out-007.tar": b"precious"})
    flip(copy / "ds" / "out-000.tar", 600)
    before = read_tree(copy)
    report = _verify(copy / "ds", repair=True, source=copy / "photos")
    assert any("Move them away" in text for text in report.unchecked)
    assert read_tree(copy) == before
    (copy / "ds" / "out-007.tar").unlink()
    (copy / "ds" / "out.json").rename(copy / "ds" / "new.json")
    before = read_tree(copy)
    report = _verify(copy / "ds", repair=True, source=copy / "photos")
    assert any("its own name" in text for text in report.unchecked)
    assert read_tree(copy) == before


def test_a_name_given_many_times_is_refused_soon() -> None:
    """To say which of a hundred thousand names stand twice takes no time that grows with their square."""
    begun = time.process_time()
    with pytest.raises(InvalidRequest, match="given twice"):
        parse_pattern([f"a-{at // 2}.tar" for at in range(50_000)])
    assert time.process_time() - begun < 10  # of a half; it was minutes


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=5)
    | st.sampled_from(["../x.tar", "/x.tar", "a/b", "\x1b[2J", "\ud800", "\udcff", "out-000.tar", "x" * 300, "index"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where values stand in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in _places(one, (*path, key)))]


def _replaced(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    items = document.items() if isinstance(document, dict) else enumerate(document)
    found = {key: _replaced(one, place[1:], value) if key == place[0] else one for key, one in items}
    return found if isinstance(document, dict) else list(found.values())


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=15)
def test_any_sealed_dataset_file(data: st.DataObject, made: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever stands anywhere in it, it is read as typed values that give back its shards, or refused; as in verbs."""
    document = json.loads((made / "ds" / "out.json").read_bytes())
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from([one for one in _places(document) if one]))
        document = _replaced(document, place, data.draw(_VALUES))
    raw = _sealed(document)
    with suppress(CorruptShard):
        file = parse_dataset(raw, "out.json")
        assert parse_dataset(file.encode(), "out.json") == file
        assert all("/" not in name for one in file.shards for name in (one.name, one.sidecar, file.name, file.pattern))
    folder = tmp_path_factory.mktemp("sealed") / "ds"
    shutil.copytree(made / "ds", folder)
    (folder / "out.json").write_bytes(raw)
    quick = VerifyOptions(quick=True)
    for run in (
        lambda: verify(folder / "out.json", quick).to_json(),
        lambda: inspect(folder / "out.json").to_json(),
        lambda: write_page(open_dataset(str(folder / "out.json")), str(folder / "page.html"), seed=0, overwrite=True),
        lambda: dry_run(made / "photos", f"{folder}/{_PATTERN}", CreateOptions(if_exists="append", **_ONE_WORKER)),
    ):
        with suppress(ShardError):
            run()
    shutil.rmtree(folder)


def test_options_that_are_no_utf8(tmp_path: Path) -> None:
    """A file whose name is no UTF-8 can be left out by that name; every verb takes the dataset file that tells it."""
    source = write_tree(tmp_path / "in", {b"a.txt": b"a", b"\xff.txt": b"b"})
    create(source, f"{tmp_path}/ds/{_PATTERN}", CreateOptions(exclude=(os.fsdecode(b"\xff*"),), **_ONE_WORKER))
    assert _verify(tmp_path / "ds", source=source).sound
    assert inspect(tmp_path / "ds").made is not None
    write_page(open_dataset(str(tmp_path / "ds")), str(tmp_path / "page.html"), seed=0, overwrite=False)
    assert (tmp_path / "page.html").read_text(encoding="utf-8")


# Runs that did not end.


def _left(folder: Path, shards: int) -> None:
    """Leave what a run leaves that was killed after so many shards."""
    (folder / "out.json").unlink()
    for path in folder.glob("out-*"):
        if int(path.stem[4:]) >= shards:
            path.unlink()


def _refused(folder: Path, told: str) -> None:
    """See that what is there is no dataset for any verb, that this is said, and that nothing is touched."""
    before = read_tree(folder)
    for given_ in (folder, f"{folder}/{_PATTERN}", f"{folder}/out-*.tar", sorted(map(str, folder.glob("out-*.tar")))):
        report = _verify(given_, repair=True)
        assert set(report.counts) == {"dataset-incomplete"}
        assert told in report.findings[0].found
        assert all("index" not in one.remedy and "repair" not in one.remedy for one in report.findings)
        assert "dataset-incomplete" in _verify(given_, quick=True).counts
        with pytest.raises(InvalidRequest, match=told):
            index(given_, IndexOptions(**_ONE_WORKER))
    assert read_tree(folder) == before


def test_an_interrupted_run(made: Path, copy: Path) -> None:
    """What a killed run has left becomes no dataset: sidecars tell how many shards were to be. --resume goes on."""
    _left(copy / "ds", 2)
    _refused(copy / "ds", "2 shards of 3 planned, starting with out-000.tar")
    one = copy / "ds" / "out-000.tar"
    assert _verify(one).sound  # who names one shard asks about that alone
    create(copy / "photos", f"{copy}/ds/{_PATTERN}", CreateOptions(max_count=2, if_exists="resume", **_ONE_WORKER))
    assert read_tree(copy / "ds") == read_tree(made / "ds")


def test_shards_of_others_beside_an_interrupted_run(made: Path, copy: Path) -> None:
    """Shards of other datasets in the folder are none of those that lack; the rest of the run's own is."""
    _left(copy / "ds", 2)
    create(copy / "photos", f"{copy}/ds/other-{{000..}}.tar", CreateOptions(max_count=1, **_ONE_WORKER))
    for given_ in (f"{copy}/ds/out-*.tar", f"{copy}/ds/{_PATTERN}"):
        assert "dataset-incomplete" in _verify(given_, quick=True).counts
        with pytest.raises(InvalidRequest, match="2 shards of 3"):
            index(given_, IndexOptions(**_ONE_WORKER))
    for name in ("out-002.tar", "out-002.index"):
        shutil.copy(made / "ds" / name, copy / "ds" / name)
    assert index(f"{copy}/ds/out-00*[01].tar", IndexOptions(**_ONE_WORKER)).shards == 2


def test_all_shards_without_their_dataset_file(copy: Path) -> None:
    """Where all are there, it is made again; so it is where a sidecar is lost, or was written before they told."""
    (copy / "ds" / "out.json").unlink()
    assert set(_verify(copy / "ds").counts) == {"dataset-file-missing"}
    assert _verify(copy / "ds", repair=True).sound
    (copy / "ds" / "out.json").unlink()
    (copy / "ds" / "out-001.index").unlink()
    assert index(copy / "ds", IndexOptions(checksum=True, **_ONE_WORKER)).shards == 3


def test_a_cut_dataset_file_of_more_shards(copy: Path) -> None:
    """A dataset file that is cut off after some of its shards is not made again for these alone."""
    path = copy / "ds" / "out.json"
    raw = path.read_bytes()
    path.write_bytes(raw[: raw.index(b"out-002.tar")] + b'\n"shardtool": {\n    "format_version": 1' + b"\n  " * 3)
    path.write_bytes(path.read_bytes().replace(b'\n"shardtool": {', b'  "shardtool": {'))
    for name in ("out-002.tar", "out-002.index"):
        (copy / "ds" / name).unlink()
    assert "dataset-incomplete" in _verify(path).counts
    with pytest.raises(InvalidRequest):
        index(path, IndexOptions(**_ONE_WORKER))


def test_an_interrupted_append(made: Path, copy: Path, tmp_path: Path) -> None:
    """What an append that was killed has left is not taken in: it tells of all shards that were to be there."""
    more = write_tree(tmp_path / "more", {f"m{at}.txt": b"m" * 600 for at in range(4)})
    create(more, f"{copy}/ds/{_PATTERN}", CreateOptions(max_count=2, if_exists="append", **_ONE_WORKER))
    wanted = read_tree(copy / "ds")
    for name in ("out-004.tar", "out-004.index"):
        (copy / "ds" / name).unlink()
    shutil.copy(made / "ds" / "out.json", copy / "ds" / "out.json")
    with pytest.raises(InvalidRequest, match="1 shard of 2 planned, starting with out-003"):
        index(f"{copy}/ds/out-*.tar", IndexOptions(**_ONE_WORKER))
    create(more, f"{copy}/ds/{_PATTERN}", CreateOptions(max_count=2, if_exists="append-resume", **_ONE_WORKER))
    assert read_tree(copy / "ds") == wanted


def test_shards_that_a_transform_adds(tmp_path: Path) -> None:
    """Where samples that found no room go on into later shards, no part of these looks like all of them."""
    source = write_tree(tmp_path / "in", {f"{at:02}.txt": b"[600, 700, %d]" % (at * 90) for at in range(12)})
    options: Any = {"max_size": 12_000, "map": "tests.mapped:told", **_ONE_WORKER}
    create(source, f"{tmp_path}/ds/{_PATTERN}", CreateOptions(**options))
    count = len(list((tmp_path / "ds").glob("*.tar")))
    assert count > 2
    wanted = read_tree(tmp_path / "ds")
    for left in range(1, count):
        shutil.copytree(tmp_path / "ds", tmp_path / f"left{left}")
        _left(tmp_path / f"left{left}", left)
        with pytest.raises(InvalidRequest, match="planned, starting with out-000"):
            index(tmp_path / f"left{left}", IndexOptions(**_ONE_WORKER))
    create(source, f"{tmp_path}/left1/{_PATTERN}", CreateOptions(if_exists="resume", **options))
    assert read_tree(tmp_path / "left1") == wanted


def test_what_sidecars_tell_after_a_source_has_grown(tmp_path: Path) -> None:
    """Shards that a transform made, and that stay, tell of the new plan: the same bytes as of a fresh run."""
    source = write_tree(tmp_path / "in", {f"{at:02}.txt": b"500" for at in range(4)})
    options: Any = {"max_count": 2, "map": "tests.mapped:told", **_ONE_WORKER}
    create(source, f"{tmp_path}/ds/{_PATTERN}", CreateOptions(**options))
    write_tree(source, {f"{at:02}.txt": b"500" for at in range(4, 6)})
    create(source, f"{tmp_path}/ds/{_PATTERN}", CreateOptions(if_exists="resume", **options))
    create(source, f"{tmp_path}/new/{_PATTERN}", CreateOptions(**options))
    assert read_tree(tmp_path / "ds") == read_tree(tmp_path / "new")


def test_shards_that_are_neither_given_nor_there(copy: Path) -> None:
    """What was not named is no finding, there or not, but is told of; a glob names what the dataset file lists, too."""
    folder = copy / "ds"
    some = [f"{folder}/out-00*[01].tar", [str(folder / "out-000.tar"), str(folder / "out-001.tar")]]
    for one in some:
        assert _verify(one, quick=True).sound
    (folder / "out-002.tar").unlink()
    for one in [*some, str(folder / "out-000.tar")]:
        report = _verify(one)
        assert report.sound
        assert "of the others out-002.tar is not there" in "".join(report.unchecked)
    report = _verify(f"{folder}/*.tar")
    assert [(found.code, found.file) for found in report.findings] == [("shard-missing", "out-002.tar")]


def test_a_dataset_file_gives_itself_back(made: Path) -> None:
    """What is read of a sound dataset file is all that it says."""
    raw = read_small(str(made / "ds" / "out.json"))
    file = parse_dataset(raw, "out.json")
    assert isinstance(file, DatasetFile)
    assert file.encode() == raw
