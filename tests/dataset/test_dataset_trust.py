"""Dataset files are untrusted: nothing that they name is executed, or opened outside the dataset."""

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
from shardtool.source.recorded_run import REPEATABLE_OPTIONS
from shardtool.storage.files import read_small
from shardtool.verbs.inspect.page.page import write_page
from tests.helpers import flip, identity, read_tree, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_NO_WORKERS: Any = {"workers": 0}
_PATTERN = "out-{000..}.tar"


def _sealed(document: Any) -> bytes:
    """Return the bytes of a dataset file with this content and a valid checksum."""
    document = {name: value for name, value in document.items() if name != "checksum"}
    body = json.dumps(document, indent=2).removesuffix("\n}").encode() + b',\n  "checksum": "crc32c:'
    return body + b'%08x"\n}\n' % crc32c(body)


def _reseal(path: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_bytes(_sealed(document))


def _verify(dataset: Any, **options: Any) -> Report:
    return verify(dataset, VerifyOptions(**{**_NO_WORKERS, **options}))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return six samples in `photos`, and their dataset of three shards in `ds`; read-only."""
    folder = tmp_path_factory.mktemp("made")
    write_tree(folder / "photos", {f"{number}.txt": b"%d" % number * 700 for number in range(6)})
    create(folder / "photos", f"{folder}/ds/{_PATTERN}", CreateOptions(max_count=2, **_NO_WORKERS))
    return folder


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may change."""
    shutil.copytree(packed, tmp_path / "copy")
    return tmp_path / "copy"


# Recorded options of a run.


def test_recorded_options_are_reused_only_if_listed() -> None:
    """Recorded options are reused only if they are listed by name; code and paths are not."""
    families = {"fields", "fetch", "split_by"}  # runs record the expanded options
    all_options = {name for kind in (CreateOptions, ReshardOptions) for name in option_specs(kind)} - families
    assert all_options > REPEATABLE_OPTIONS
    assert all_options - REPEATABLE_OPTIONS == {
        "workers", "start_method", "append", "resume", "overwrite", "update",
        "on_error", "root", "allow_outside", "stat", "export", "join", "add",
        "method", "memory", "temp_dir", "map", "classes_from", "trust", "max_removed", "target", "part",
        "connections", "per_host", "timeout", "max_time", "retries", "allow_private", "user_agent", "max_failed",
        "retry_failed", "keys_from", "plan", "plan_only", "executor", "address", "dry_run",
    }  # fmt: skip


def test_no_verb_runs_recorded_code(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No verb imports a function that a dataset file names, even if its module is on the path."""
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
        lambda: create("../photos", _PATTERN, CreateOptions(max_count=2, resume=True, **_NO_WORKERS)),
        lambda: create("../photos", _PATTERN, CreateOptions(append=True, **_NO_WORKERS)),
        lambda: index("out.json", IndexOptions(**_NO_WORKERS)),
        lambda: reshard("out.json", "../again/a-{0..}.tar", ReshardOptions(**_NO_WORKERS)),
    ):
        with suppress(ShardError):
            run()
    assert "evil_module" not in sys.modules
    assert not list(copy.rglob("*.ran"))


def test_repair_calls_only_the_function_that_the_user_names(tmp_path: Path) -> None:
    """With `--map`, the recorded function recreates the same shards; another function is rejected, not called."""
    source = write_tree(tmp_path / "in", {f"{number}.txt": b"%d" % (number * 90) for number in range(6)})
    options = CreateOptions(max_count=2, map="tests.mapped:told", **_NO_WORKERS)
    create(source, f"{tmp_path}/ds/{_PATTERN}", options)
    original = read_tree(tmp_path / "ds")
    flip(tmp_path / "ds" / "out-001.tar", 600)
    damaged = read_tree(tmp_path / "ds")
    report = _verify(tmp_path / "ds", repair=True, source=source, map="tests.mapped:slow")
    assert any("as recorded" in text for text in report.unchecked)
    assert read_tree(tmp_path / "ds") == damaged
    report = _verify(tmp_path / "ds", repair=True, source=source, map="tests.mapped:told")
    assert (report.sound, len(report.repaired)) == (True, 1)
    assert read_tree(tmp_path / "ds") == original


def test_only_the_user_can_allow_links_out_of_the_source(tmp_path: Path) -> None:
    """Whether links may lead out of the source is the user's option, and is not read from the dataset file."""
    write_tree(tmp_path / "elsewhere", {"secret.txt": b"s" * 900})
    source = write_tree(tmp_path / "in", {"a.txt": b"a" * 900})
    (source / "b.txt").symlink_to(tmp_path / "elsewhere" / "secret.txt")
    create(source, f"{tmp_path}/ds/{_PATTERN}", CreateOptions(symlinks="follow", **_NO_WORKERS))
    with pytest.raises(InvalidRequest, match="symlinks='follow'"):
        _verify(tmp_path / "ds", source=source)
    assert _verify(tmp_path / "ds", source=source, symlinks="follow").sound
    assert _verify(tmp_path / "ds", source=source, symlinks="skip").counts == {"source-extra": 1}


def test_the_root_of_a_manifest_is_given_by_the_user(tmp_path: Path) -> None:
    """The folder of relative paths is not recorded; the user can name it to compare and to recreate shards."""
    files = write_tree(tmp_path / "files", {f"{number}.txt": b"%d" % number * 900 for number in range(4)})
    manifest = tmp_path / "lists" / "list.csv"
    write_tree(tmp_path / "lists", {"list.csv": b"path\n" + b"".join(b"%d.txt\n" % number for number in range(4))})
    create(
        manifest, f"{tmp_path}/ds/{_PATTERN}", CreateOptions(path="path", root=str(files), max_count=2, **_NO_WORKERS)
    )
    original = read_tree(tmp_path / "ds")
    assert _verify(tmp_path / "ds", source=manifest, root=str(files)).checked[-1] == "the source"
    flip(tmp_path / "ds" / "out-001.tar", 600)
    assert _verify(tmp_path / "ds", source=manifest, root=str(files), repair=True).sound
    assert read_tree(tmp_path / "ds") == original


def test_the_command_line_has_the_options_of_a_source(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line has the options of a source, with the same names as in `create`."""
    monkeypatch.chdir(copy)
    command = ["verify", "ds", "--source", "photos", "--workers", "0", "--symlinks", "skip"]
    assert CliRunner().invoke(cli, command).exit_code == 0
    for wrong in (["--map", "a:b"], ["--root", "."], ["--allow-outside"]):
        assert isinstance(CliRunner().invoke(cli, ["verify", "ds", *wrong]).exception, InvalidRequest), wrong


@pytest.mark.parametrize("options", [{"map": "a:b"}, {"map": "a:b", "source": "x"}, {"root": "x"}, {"symlinks": "skip"},
                                     {"allow_outside": True}])  # fmt: skip
def test_source_options_require_a_source(options: dict[str, Any]) -> None:
    """Options of a source require a source, and a function requires a repair."""
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
def test_every_verb_reports_invalid_values_as_damage(change: Callable[[Any], object], copy: Path) -> None:
    """Names outside the folder, wrong totals and wrong types are damage, for all verbs."""
    path = copy / "ds" / "out.json"
    _reseal(path, change)
    with pytest.raises(CorruptShard):
        parse_dataset(path.read_bytes(), "out.json")
    assert "dataset-file-damaged" in _verify(path, quick=True).counts
    with pytest.raises(ShardError):
        inspect(path, InspectOptions())
    with suppress(ShardError):
        create(copy / "photos", f"{copy}/ds/{_PATTERN}", CreateOptions(resume=True, **_NO_WORKERS))
    assert read_tree(copy / "photos") == {f"{number}.txt": b"%d" % number * 700 for number in range(6)}


@pytest.mark.parametrize("change_index", range(9))
def test_repair_stays_in_the_folder(change_index: int, copy: Path) -> None:
    """A repair reads, writes and deletes no file outside the folder, for any names in a dataset file."""
    victim = write_tree(copy / "victim", {"out-005.tar": b"p", "out-007.index": b"i", "secret.skipped": b"s"})
    _reseal(copy / "ds" / "out.json", _HOSTILE[change_index])
    flip(copy / "ds" / "out-000.tar", 600)
    before = identity(victim)
    _verify(copy / "ds" / "out.json", repair=True, source=copy / "photos")
    assert identity(victim) == before
    assert {path.name for path in copy.iterdir()} == {"ds", "photos", "victim"}


def test_repair_deletes_no_unlisted_file(copy: Path) -> None:
    """An unlisted file with a name of the dataset is kept, and so is a renamed dataset file."""
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
    assert any("its original name" in text for text in report.unchecked)
    assert read_tree(copy) == before


def test_duplicate_names_are_found_in_linear_time() -> None:
    """Duplicates among a hundred thousand names are found without comparing all pairs."""
    start = time.process_time()
    with pytest.raises(InvalidRequest, match="duplicate names"):
        parse_pattern([f"a-{number // 2}.tar" for number in range(50_000)])
    assert time.process_time() - start < 10  # usually half a second; comparing all pairs takes minutes


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=5)
    | st.sampled_from(["../x.tar", "/x.tar", "a/b", "\x1b[2J", "\ud800", "\udcff", "out-000.tar", "x" * 300, "index"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def _value_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(item_path for key, item in inner for item_path in _value_paths(item, (*path, key)))]


def _replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    items = document.items() if isinstance(document, dict) else enumerate(document)
    items_by_key = {key: _replaced(item, path[1:], value) if key == path[0] else item for key, item in items}
    return items_by_key if isinstance(document, dict) else list(items_by_key.values())


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=15)
def test_any_value_in_a_dataset_file_is_parsed_or_rejected(
    data: st.DataObject, packed: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any value anywhere in a dataset file is parsed to the right types or rejected, also by verbs."""
    document = json.loads((packed / "ds" / "out.json").read_bytes())
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from([shard for shard in _value_paths(document) if shard]))
        document = _replaced(document, path, data.draw(_VALUES))
    raw = _sealed(document)
    with suppress(CorruptShard):
        file = parse_dataset(raw, "out.json")
        assert parse_dataset(file.encode(), "out.json") == file
        assert all(
            "/" not in name for shard in file.shards for name in (shard.name, shard.sidecar, file.name, file.pattern)
        )
    folder = tmp_path_factory.mktemp("sealed") / "ds"
    shutil.copytree(packed / "ds", folder)
    (folder / "out.json").write_bytes(raw)
    quick = VerifyOptions(quick=True)
    for run in (
        lambda: verify(folder / "out.json", quick).to_json(),
        lambda: inspect(folder / "out.json").to_json(),
        lambda: write_page(open_dataset(str(folder / "out.json")), str(folder / "page.html"), seed=0, overwrite=True),
        lambda: create(
            packed / "photos", f"{folder}/{_PATTERN}", CreateOptions(append=True, **_NO_WORKERS), dry_run=True
        ),
    ):
        with suppress(ShardError):
            run()
    shutil.rmtree(folder)


def test_options_that_are_not_utf8(tmp_path: Path) -> None:
    """A file whose name is not UTF-8 can be excluded by name; every verb accepts the resulting dataset file."""
    source = write_tree(tmp_path / "in", {b"a.txt": b"a", b"\xff.txt": b"b"})
    create(source, f"{tmp_path}/ds/{_PATTERN}", CreateOptions(exclude=(os.fsdecode(b"\xff*"),), **_NO_WORKERS))
    assert _verify(tmp_path / "ds", source=source).sound
    assert inspect(tmp_path / "ds").made is not None
    write_page(open_dataset(str(tmp_path / "ds")), str(tmp_path / "page.html"), seed=0, overwrite=False)
    assert (tmp_path / "page.html").read_text(encoding="utf-8")


# Runs that did not end.


def _keep_shards(folder: Path, shards: int) -> None:
    """Delete the files that an interrupted run with this many shards would not have written."""
    (folder / "out.json").unlink()
    for path in folder.glob("out-*"):
        if int(path.stem[4:]) >= shards:
            path.unlink()


def _assert_incomplete(folder: Path, message: str) -> None:
    """Assert that every verb rejects an incomplete dataset with this message, and changes nothing."""
    before = read_tree(folder)
    for dataset in (folder, f"{folder}/{_PATTERN}", f"{folder}/out-*.tar", sorted(map(str, folder.glob("out-*.tar")))):
        report = _verify(dataset, repair=True)
        assert set(report.counts) == {"dataset-incomplete"}
        assert message in report.findings[0].found
        assert all("index" not in finding.remedy and "repair" not in finding.remedy for finding in report.findings)
        assert "dataset-incomplete" in _verify(dataset, quick=True).counts
        with pytest.raises(InvalidRequest, match=message):
            index(dataset, IndexOptions(**_NO_WORKERS))
    assert read_tree(folder) == before


def test_an_interrupted_run_is_not_a_dataset(packed: Path, copy: Path) -> None:
    """Shards of an interrupted run are no dataset, because sidecars record the planned number. `--resume` continues."""
    _keep_shards(copy / "ds", 2)
    _assert_incomplete(copy / "ds", "2 shards of 3 planned, starting with out-000.tar")
    single_shard = copy / "ds" / "out-000.tar"
    assert _verify(single_shard).sound  # if only one shard is named, the other shards do not matter
    create(copy / "photos", f"{copy}/ds/{_PATTERN}", CreateOptions(max_count=2, resume=True, **_NO_WORKERS))
    assert read_tree(copy / "ds") == read_tree(packed / "ds")


def test_shards_of_other_datasets_do_not_complete_a_run(packed: Path, copy: Path) -> None:
    """Shards of other datasets in the folder do not count as missing shards; shards of the same run do."""
    _keep_shards(copy / "ds", 2)
    create(copy / "photos", f"{copy}/ds/other-{{000..}}.tar", CreateOptions(max_count=1, **_NO_WORKERS))
    for dataset in (f"{copy}/ds/out-*.tar", f"{copy}/ds/{_PATTERN}"):
        assert "dataset-incomplete" in _verify(dataset, quick=True).counts
        with pytest.raises(InvalidRequest, match="2 shards of 3"):
            index(dataset, IndexOptions(**_NO_WORKERS))
    for name in ("out-002.tar", "out-002.index"):
        shutil.copy(packed / "ds" / name, copy / "ds" / name)
    assert index(f"{copy}/ds/out-00*[01].tar", IndexOptions(**_NO_WORKERS)).shards == 2


def test_index_recreates_the_dataset_file_of_a_complete_run(copy: Path) -> None:
    """If all shards exist, the dataset file is recreated, even if a sidecar is missing or from an older version."""
    (copy / "ds" / "out.json").unlink()
    assert set(_verify(copy / "ds").counts) == {"dataset-file-missing"}
    assert _verify(copy / "ds", repair=True).sound
    (copy / "ds" / "out.json").unlink()
    (copy / "ds" / "out-001.index").unlink()
    assert index(copy / "ds", IndexOptions(checksum=True, **_NO_WORKERS)).shards == 3


def test_a_truncated_dataset_file_is_not_replaced_by_a_smaller_one(copy: Path) -> None:
    """A truncated dataset file is not recreated for only the shards that are still readable in it."""
    path = copy / "ds" / "out.json"
    raw = path.read_bytes()
    path.write_bytes(raw[: raw.index(b"out-002.tar")] + b'\n"shardtool": {\n    "format_version": 1' + b"\n  " * 3)
    path.write_bytes(path.read_bytes().replace(b'\n"shardtool": {', b'  "shardtool": {'))
    for name in ("out-002.tar", "out-002.index"):
        (copy / "ds" / name).unlink()
    assert "dataset-incomplete" in _verify(path).counts
    with pytest.raises(InvalidRequest):
        index(path, IndexOptions(**_NO_WORKERS))


def test_an_interrupted_append_is_not_a_dataset(packed: Path, copy: Path, tmp_path: Path) -> None:
    """The shards of an interrupted append are rejected, because sidecars record the planned number."""
    new_source = write_tree(tmp_path / "more", {f"m{number}.txt": b"m" * 600 for number in range(4)})
    create(new_source, f"{copy}/ds/{_PATTERN}", CreateOptions(max_count=2, append=True, **_NO_WORKERS))
    complete = read_tree(copy / "ds")
    for name in ("out-004.tar", "out-004.index"):
        (copy / "ds" / name).unlink()
    shutil.copy(packed / "ds" / "out.json", copy / "ds" / "out.json")
    with pytest.raises(InvalidRequest, match="1 shard of 2 planned, starting with out-003"):
        index(f"{copy}/ds/out-*.tar", IndexOptions(**_NO_WORKERS))
    create(new_source, f"{copy}/ds/{_PATTERN}", CreateOptions(max_count=2, append=True, resume=True, **_NO_WORKERS))
    assert read_tree(copy / "ds") == complete


def test_overflow_shards_count_as_planned(tmp_path: Path) -> None:
    """If samples overflow into additional shards, a subset of the shards does not look complete."""
    source = write_tree(
        tmp_path / "in", {f"{number:02}.txt": b"[600, 700, %d]" % (number * 90) for number in range(12)}
    )
    options: Any = {"max_size": 12_000, "map": "tests.mapped:told", **_NO_WORKERS}
    create(source, f"{tmp_path}/ds/{_PATTERN}", CreateOptions(**options))
    count = len(list((tmp_path / "ds").glob("*.tar")))
    assert count > 2
    complete = read_tree(tmp_path / "ds")
    for kept_shards in range(1, count):
        shutil.copytree(tmp_path / "ds", tmp_path / f"left{kept_shards}")
        _keep_shards(tmp_path / f"left{kept_shards}", kept_shards)
        with pytest.raises(InvalidRequest, match="planned, starting with out-000"):
            index(tmp_path / f"left{kept_shards}", IndexOptions(**_NO_WORKERS))
    create(source, f"{tmp_path}/left1/{_PATTERN}", CreateOptions(resume=True, **options))
    assert read_tree(tmp_path / "left1") == complete


def test_sidecars_record_the_new_plan_after_a_source_has_grown(tmp_path: Path) -> None:
    """Kept shards of a transform record the new plan, with the same bytes as in a fresh run."""
    source = write_tree(tmp_path / "in", {f"{number:02}.txt": b"500" for number in range(4)})
    options: Any = {"max_count": 2, "map": "tests.mapped:told", **_NO_WORKERS}
    create(source, f"{tmp_path}/ds/{_PATTERN}", CreateOptions(**options))
    write_tree(source, {f"{number:02}.txt": b"500" for number in range(4, 6)})
    create(source, f"{tmp_path}/ds/{_PATTERN}", CreateOptions(resume=True, **options))
    create(source, f"{tmp_path}/new/{_PATTERN}", CreateOptions(**options))
    assert read_tree(tmp_path / "ds") == read_tree(tmp_path / "new")


def test_missing_shards_are_reported_only_if_named(copy: Path) -> None:
    """A shard that was not named is no finding, but is mentioned; a glob also names the shards in the dataset file."""
    folder = copy / "ds"
    datasets = [f"{folder}/out-00*[01].tar", [str(folder / "out-000.tar"), str(folder / "out-001.tar")]]
    for dataset in datasets:
        assert _verify(dataset, quick=True).sound
    (folder / "out-002.tar").unlink()
    for dataset in [*datasets, str(folder / "out-000.tar")]:
        report = _verify(dataset)
        assert report.sound
        assert "missing in the folder: out-002.tar" in "".join(report.unchecked)
    report = _verify(f"{folder}/*.tar")
    assert [(finding.code, finding.file) for finding in report.findings] == [("shard-missing", "out-002.tar")]


def test_a_dataset_file_round_trips(packed: Path) -> None:
    """Encoding the content of a valid dataset file returns the same bytes."""
    raw = read_small(str(packed / "ds" / "out.json"))
    file = parse_dataset(raw, "out.json")
    assert isinstance(file, DatasetFile)
    assert file.encode() == raw
