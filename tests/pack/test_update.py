"""`--update`: new samples are added, existing samples stay, and every run uses the same command."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool import (
    CreateOptions,
    ExportOptions,
    InvalidRequest,
    OutputExists,
    ReshardOptions,
    create,
    export,
    index,
    reshard,
    verify,
)
from shardtool.request.dataset_options import VerifyOptions
from shardtool.storage.folders import open_folder
from tests.helpers import create_and_die, identity, members, read_tree, shards, typed, write_tree
from tests.stored import contents, sound

if TYPE_CHECKING:
    from shardtool.request.results import CreateResult

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

_LONG_AGO = 10**9


def _update(source: Any, output: str, **options: Any) -> CreateResult:
    return create(source, output, CreateOptions(**{"workers": 0, "update": True, **options}))


def _tree(root: Path, *keys: str) -> Path:
    """Write samples with one field that contains the key, and old modification times."""
    write_tree(root, {f"{key}.txt": key.encode() for key in keys})
    for key in keys:
        os.utime(root / f"{key}.txt", (_LONG_AGO, _LONG_AGO))
    return root


def _classes(folder: Path, name: str = "out") -> list[str]:
    names: list[str] = json.loads((folder / f"{name}.json").read_bytes())["shardtool"]["classes"]["cls"]
    return names


def _labels(folder: Path) -> dict[str, int]:
    """Return the class number of each sample in a folder's shards, by key."""
    return {name[:-4]: int(data) for name, data in members(*shards(folder)) if name.endswith(".cls")}


_KEYS = st.sampled_from([f"{kind}/{number}" for kind in ("ant", "cat", "bee", "dog") for number in range(3)])


@settings(max_examples=3)
@given(st.lists(st.tuples(st.sets(_KEYS, max_size=4), st.booleans()), min_size=1, max_size=3))
def test_repeated_updates(runs: list[tuple[set[str], bool]]) -> None:
    """Each sample keeps its content and its number, and exists once.

    A run without new samples changes no file. If nothing was deleted, `verify --source` accepts the dataset.
    """
    with TemporaryDirectory() as root:
        source, out = Path(root, "in"), Path(root, "out")
        pattern, seen, labels = f"{out}/out-{{000..}}.tar", {"cat/first"}, dict[str, int]()
        for more, deletes in ((set[str](), False), *runs):
            _tree(source, "cat/first", *more)
            before, old = identity(out) if out.exists() else {}, read_tree(out)
            result = _update(source, pattern, label_from_folder=True)
            seen |= more
            now = _labels(out)
            assert now.keys() == seen
            assert now.items() >= labels.items()
            assert [_classes(out)[number] for number in now.values()] == [key.partition("/")[0] for key in now]
            kept = {name: data for name, data in old.items() if name != "out.json"}
            assert read_tree(out).items() >= kept.items()
            assert (identity(out) == before) == (now == labels)
            new = {key.partition("/")[0] for key in now} - {key.partition("/")[0] for key in labels}
            class_notes = [note for note in result.notes if "is number" in note]
            assert len(class_notes) == bool(new and labels)
            assert all(f"{name!r}" in "".join(class_notes) for name in new if labels)
            labels = now
            if {str(path.relative_to(source))[:-4] for path in source.glob("*/*")} == seen:
                assert verify(out, VerifyOptions(source=source, workers=0)).sound
            if deletes and more:
                (source / f"{min(more)}.txt").unlink()


def test_the_first_update_equals_create(tmp_path: Path) -> None:
    """If no dataset exists, `--update` writes the same bytes as a run without the option."""
    source = _tree(tmp_path / "in", "cat/a", "dog/b")
    create(source, f"{tmp_path}/plain/out-{{000..}}.tar", CreateOptions(workers=0, label_from_folder=True))
    _update(source, f"{tmp_path}/out/out-{{000..}}.tar", label_from_folder=True)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "plain")


def test_command_line(tmp_path: Path) -> None:
    """A new class gets the next number, with a note. A run without new samples reports this and changes no file."""
    source = _tree(tmp_path / "in", "cat/a", "dog/b")
    words = ("--label-from-folder", "--update", "--workers", "0")
    command = ("create", source, f"{tmp_path}/out/out-{{000..}}.tar", *words)
    assert typed(*command, "--quiet").code == 0
    _tree(source, "cow/c")
    done = typed(*command)
    assert done.err == "note: 1 label of cls not in the dataset: 'cow' is number 2\n"
    assert done.out.startswith("1 sample in 1 shard appended")
    before = identity(tmp_path / "out")
    for more in ((), ("--append", "--resume"), ("--on-duplicate", "first"), ("--dry-run",)):
        done = typed(*command, *more)
        assert (done.code, done.err) == (0, "")
        assert "--dry-run" in more or done.out.startswith("nothing new: ")
    assert identity(tmp_path / "out") == before
    done = typed(*command, "--overwrite")
    assert (done.code, "--overwrite: used with --update" in done.err) == (2, True)
    done = typed(*command, "--part", "1/2")
    assert (done.code, "used with --update" in done.err) == (2, True)


def test_deleted_and_changed_samples_are_noted(tmp_path: Path) -> None:
    """Samples that were deleted or changed in the source stay; one note for each case gives their number."""
    source, pattern = _tree(tmp_path / "in", "a", "b", "c", "d"), f"{tmp_path}/out/out-{{000..}}.tar"
    _update(source, pattern)
    for key in ("a", "b"):
        (source / f"{key}.txt").unlink()
    write_tree(source, {"c.txt": b"longer"})
    os.utime(source / "c.txt", (_LONG_AGO, _LONG_AGO))
    before = identity(tmp_path / "out")
    deleted, changed = _update(source, pattern).notes
    assert deleted == "2 samples no longer in the source; the dataset keeps the old samples"
    assert changed.startswith("1 sample (c) changed since they were packed")
    assert identity(tmp_path / "out") == before


def test_a_class_missing_from_the_list_is_refused(tmp_path: Path) -> None:
    """A class that the given list lacks is an error, and both suggested fixes work."""
    source, pattern = _tree(tmp_path / "in", "cat/a", "dog/b"), f"{tmp_path}/out/out-{{000..}}.tar"
    names = tmp_path / "names.txt"
    names.write_text("dog\ncat\n")
    options = {"label_from_folder": True, "classes_from": names}
    _update(source, pattern, **options)
    _tree(source, "bee/c")
    with pytest.raises(InvalidRequest, match=r"'bee'.*Append the new names to a list"):
        _update(source, pattern, **options)
    safe = shutil.copytree(tmp_path / "out", tmp_path / "safe")
    _update(source, f"{safe}/out-{{000..}}.tar", label_from_folder=True)
    names.write_text("dog\ncat\nbee\n")
    _update(source, pattern, **options)
    assert _classes(tmp_path / "out") == _classes(safe) == ["dog", "cat", "bee"]


def test_own_dataset_file_as_the_list(tmp_path: Path) -> None:
    """`--classes-from` may name the dataset file that the run creates; any split represents all splits."""
    source, out = _tree(tmp_path / "in", *"abcdefgh"), tmp_path / "out"
    for key in "abcdefgh":
        _tree(source, f"k{key}/{key}")
        (source / f"{key}.txt").unlink()
    pattern, options = f"{out}/{{split}}-{{000..}}.tar", {"label_from_folder": True, "split": "train=0.5,val=0.5"}
    _update(source, pattern, classes_from=out / "train.json", **options)
    keys = iter(f"a{number}/{number}" for number in range(99))
    for split in ("train", "val", "train"):  # one split at a time, so that the class lists differ in length
        while True:
            key = next(keys)
            _tree(source, key)
            before = (out / f"{split}.json").read_bytes()
            _update(source, pattern, classes_from=out / "train.json", **options)
            if (out / f"{split}.json").read_bytes() != before:
                break
    lists = sorted((_classes(out, name) for name in ("train", "val")), key=len)
    assert lists[1][: len(lists[0])] == lists[0]
    assert [lists[1][number] for number in _labels(out).values()] == [key.partition("/")[0] for key in _labels(out)]


def test_splits_from_folders_are_added_and_kept(tmp_path: Path) -> None:
    """A new split is created, a split without samples stays, and class numbers cover all splits."""
    source, out = _tree(tmp_path / "in", "train/cat/a", "val/dog/b"), tmp_path / "out"
    pattern, options = f"{out}/{{split}}-{{000..}}.tar", {"label_from_folder": True, "split_by": "folder"}
    _update(source, pattern, **options)
    (out / "sizes.json").write_text('{"other.tar": 1}')
    shutil.rmtree(source / "val")
    _tree(source, "test/bee/c", "train/ant/d")
    result = _update(source, pattern, **options)
    assert {name: split.samples for name, split in result.splits.items()} == {"train": 2, "val": 1, "test": 1}
    _tree(source, "val/ape/e")
    _update(source, pattern, **options)
    assert _classes(out, "val") == ["cat", "dog", "ant", "bee", "ape"]
    assert sorted(_labels(out).items()) == [
        ("test/bee/c", 3), ("train/ant/d", 2), ("train/cat/a", 0), ("val/ape/e", 4), ("val/dog/b", 1),
    ]  # fmt: skip
    before = identity(out)
    assert _update(source, pattern, **options).appended is not None
    assert identity(out) == before


def test_a_split_may_get_no_samples(tmp_path: Path) -> None:
    """A source of one file is valid even if a split gets no sample."""
    source, pattern = _tree(tmp_path / "in", *"abcdefgh"), f"{tmp_path}/out/{{split}}-{{000..}}.tar"
    _update(source, pattern, split="train=0.5,val=0.5")
    before = identity(tmp_path / "out")
    for key in "abcdefg":
        (source / f"{key}.txt").unlink()
    _update(source, pattern, split="train=0.5,val=0.5")
    assert identity(tmp_path / "out") == before


def test_other_options_are_refused(tmp_path: Path) -> None:
    """Options that choose or name samples must be those of the first run; shard bounds may differ."""
    source, pattern = _tree(tmp_path / "in", "cat/a", "dog/b"), f"{tmp_path}/out/out-{{000..}}.tar"
    _update(source, pattern)
    before = identity(tmp_path / "out")
    for options in ({"include": ("cat/*",)}, {"label_from_folder": True}):
        with pytest.raises(OutputExists, match=r"differs: .*given"):
            _update(source, pattern, **options)
    assert identity(tmp_path / "out") == before
    _tree(source, "cat/c", "cat/d")
    assert _update(source, pattern, max_count=1, shuffle=True).shards == 3
    _tree(source, "cat/e")
    assert _update(source, pattern, shards=4).shards == 4, "a shard for the one sample that is new"
    assert verify(tmp_path / "out", VerifyOptions(source=source, workers=0)).sound
    with pytest.raises(InvalidRequest, match="which compares keys"):
        _update(source, pattern, map="tests.mapped:evaluated")


def test_shards_of_another_tool_are_refused(tmp_path: Path) -> None:
    """Shards of another tool are not treated as an interrupted run. After `index`, they are a dataset to update."""
    pattern, out = f"{tmp_path}/out/out-{{000..}}.tar", tmp_path / "out"
    create(_tree(tmp_path / "theirs", "x", "y"), pattern, CreateOptions(workers=0, max_count=1))
    for path in (*out.glob("*.index"), *out.glob("*.json")):
        path.unlink()
    before, source = identity(out), _tree(tmp_path / "in", "a")
    with pytest.raises(OutputExists, match="index"):
        _update(source, pattern)
    assert identity(out) == before
    index(out)
    _update(source, pattern)
    assert [name for name, _ in members(*shards(out))] == ["x.txt", "y.txt", "a.txt"]
    assert verify(out).sound


def test_concurrent_updates_are_refused(tmp_path: Path) -> None:
    """While one update runs, another update is refused. Later, it can run."""
    source, pattern = _tree(tmp_path / "in", "a"), f"{tmp_path}/out/out-{{000..}}.tar"
    (tmp_path / "out").mkdir()
    with open_folder(f"{tmp_path}/out").lock("out"), pytest.raises(OutputExists, match="another run"):
        _update(source, pattern)
    _update(source, pattern)
    assert verify(tmp_path / "out").sound


@pytest.mark.parametrize("form", ["dali-webdataset", "timm"])
def test_exported_indexes_are_updated(tmp_path: Path, form: str) -> None:
    """Indexes of other tools cover all shards after each run. A missing index is created even without new samples."""
    source, pattern = _tree(tmp_path / "in", "a"), f"{tmp_path}/out/out-{{000..}}.tar"
    _update(source, pattern)
    for more in ((), ("b",)):
        _update(_tree(source, *more), pattern, export=(form,))
        before = read_tree(tmp_path / "out")
        export(tmp_path / "out" / "out.json", [form], ExportOptions(overwrite=True))
        assert read_tree(tmp_path / "out") == before
    before_again = identity(tmp_path / "out")
    _update(source, pattern, export=(form,))
    assert identity(tmp_path / "out") == before_again


def test_reshard(tmp_path: Path) -> None:
    """`reshard --update` adds the new samples of a growing dataset."""
    source, pattern = _tree(tmp_path / "in", "a", "b"), f"{tmp_path}/out/out-{{000..}}.tar"
    mixed = f"{tmp_path}/mixed/out-{{000..}}.tar"
    options = ReshardOptions(workers=0, update=True, shuffle=True)
    for more in ((), ("c", "d"), ()):
        _update(_tree(source, *more), pattern)
        result = reshard(f"{tmp_path}/out/out.json", mixed, options)
        assert result.appended is None or result.appended.samples == len(more)
    assert contents(sound(tmp_path / "mixed" / "out.json")) == contents(sound(tmp_path / "out" / "out.json"))
    assert verify(tmp_path / "mixed", VerifyOptions(source=tmp_path / "out", workers=0)).sound


@pytest.mark.slow
@pytest.mark.parametrize("run", [1, 2])
@pytest.mark.parametrize("rename", range(1, 10, 2))
def test_an_interrupted_update_is_completed_by_the_next(tmp_path: Path, run: int, rename: int) -> None:
    """After a kill at any rename, with splits, the next run gives the same result as uninterrupted runs.

    It includes samples that were added meanwhile, and changes no shard of a finished run.
    """
    source, out = _tree(tmp_path / "in", "train/cat/a", "train/dog/b", "train/dog/c", "val/cat/d"), tmp_path / "out"
    pattern = f"{out}/{{split}}-{{000..}}.tar"
    os.mkfifo(source / "train" / "dog" / "pipe.txt")
    options: dict[str, Any] = {
        "max_count": 2, "on_error": "skip", "label_from_folder": True, "split_by": "folder", "export": ("timm",),
    }  # fmt: skip
    if run == 2:
        _update(source, pattern, **options)
        _tree(source, "train/ape/e", "test/bee/f", "val/bee/g")
    finished = {name: data for name, data in read_tree(out).items() if name.endswith((".tar", ".index"))}
    create_and_die(source, pattern, rename, update=True, workers=0, **options)
    _tree(source, "train/ant/h")
    _update(source, pattern, **options)
    assert read_tree(out).items() >= finished.items()
    found = {key: sample["txt"] for path in out.glob("*[tnl].json") for key, sample in contents(sound(path)).items()}
    assert found == {
        key: key.encode() for key in (str(path.relative_to(source))[:-4] for path in source.glob("*/*/?.txt"))
    }
    lists = sorted((_classes(out, path.stem) for path in out.glob("*[tnl].json")), key=len)
    labels = _labels(out)
    assert [lists[-1][number] for number in labels.values()] == [key.split("/")[1] for key in labels]
    before = identity(out)
    assert create(source, pattern, CreateOptions(update=True, workers=0, **options), dry_run=True).planned == ()
    _update(source, pattern, **options)
    assert identity(out) == before


@pytest.mark.parametrize("splits", [{}, {"split_by": "folder"}])
def test_empty_source(tmp_path: Path, splits: dict[str, str]) -> None:
    """A new dataset needs a sample. An update keeps an existing dataset, also in a dry run."""
    source, output = tmp_path / "source", str(tmp_path / ("out-{split}-{0..}.tar" if splits else "out-{0..}.tar"))
    source.mkdir()
    for update, dry_run in ((False, False), (True, False), (True, True)):
        with pytest.raises(InvalidRequest, match="no samples"):
            _update(source, output, **splits, update=update, dry_run=dry_run)
    _tree(source, "ant/1")
    _update(source, output, **splits)
    (source / "ant/1.txt").unlink()
    assert _update(source, output, **splits, dry_run=True).samples == 0
    assert _update(source, output, **splits).samples == 1


def test_names_with_dots_in_a_source_that_grew(tmp_path: Path) -> None:
    """`dots="first"` is the default, so an update accepts it, and `verify` follows the rule of the first run."""
    source, output = _tree(tmp_path / "in", "a", "b"), f"{tmp_path}/out/out-{{0..}}.tar"
    _update(source, output)
    _tree(source, "scan.2019.01", "scan.2020.01")
    report = verify(tmp_path / "out", VerifyOptions(source=source, workers=0))
    assert {(finding.code, finding.key) for finding in report.findings} == {("source-missing", "scan")}
    with pytest.raises(InvalidRequest, match="dots in 2 names"):
        _update(source, output)
    with pytest.raises(OutputExists, match=r"dots differs: 'first' before, now 'last'"):
        _update(source, output, dots="last")
    assert _update(source, output, dots="first").samples == 3
    report = verify(tmp_path / "out", VerifyOptions(source=source, workers=0))
    assert (report.sound, [note for note in report.unchecked if "source" in note]) == (True, [])
