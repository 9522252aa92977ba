"""Laws of `--split` and `--where` over folders: the assignment of samples, and its files on disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool import CreateOptions, InvalidRequest, OutputExists, SampleFailed, create
from tests.helpers import ENVIRONMENT, existing, identity, read_tree, shards, typed, write_tree
from tests.stored import age, contents, skipped, sound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardtool import CreateResult

# Forked workers start ten times faster, and never touch what the threads of this process may hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

PATTERN = "out-{split}-{000..}"
SHARES = "train=0.6,val=0.2,test=0.2"
NAMES = ("train", "val", "test")
ONE: dict[str, Any] = {"split": None, "pattern": "out-{000..}"}  # not in splits


def _pack(source: Path, folder: Path, **options: Any) -> CreateResult:
    """Pack eight samples a shard into three splits, with one worker into tar, unless asked otherwise."""
    pattern, ending = options.pop("pattern", PATTERN), options.pop("ending", "tar")
    changes = {"workers": 0, "max_count": 8, "split": SHARES, **options}
    return create(source, f"{folder}/{pattern}.{ending}", CreateOptions(**changes))


def _parts(folder: Path, names: Iterable[str] = NAMES) -> dict[str, list[str]]:
    """Return the keys of each split, in order, once its dataset was seen to be sound."""
    result = {}
    for name in names:
        samples = [sample for shard in sound(folder / f"out-{name}.json") for sample in shard]
        assert {sample.columns["split"] for sample in samples} == {name}
        result[name] = [sample.key for sample in samples]
    return result


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Yield 60 samples of two fields in twelve folders; the first six are one class, the others another."""
    files = {}
    for number in range(60):
        folder = number % 12
        key = f"{'cat' if folder < 6 else 'dog'}/{folder:02}/{number:03}"
        files[f"{key}.txt"] = f"caption of {number}\n".encode() * (number % 5 + 1)
        files[f"{key}.bin"] = bytes([number]) * (10 * number)
    return write_tree(tmp_path_factory.mktemp("scenes"), files)


@pytest.fixture(scope="session")
def plain(scenes: Path, ending: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Give the samples as one dataset, and its fingerprint."""
    folder = tmp_path_factory.mktemp("plain")
    result = create(scenes, f"{folder}/out-{{000..}}.{ending}", CreateOptions(workers=0, max_count=3))
    return folder, result.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"seed": 5}, {"group_by": "folder"}, {"stratify": "folder"}, {"shuffle": True}, {"max_count": 100},
     {"label_from_folder": True}, {"map": "tests.mapped:noted"}, {"probe": True}],
    ids=lambda options: "-".join(options) or "plain",
)  # fmt: skip
def test_splits_are_a_partition(
    options: dict[str, Any], *, scenes: Path, ending: str, plain: tuple[Path, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Every sample is in exactly one split, as it would be without splits; the splits' fingerprints add up to its."""
    monkeypatch.setenv("SHARDTOOL_TEST_NOTED", str(tmp_path / "noted"))
    result = _pack(scenes, tmp_path / "out", ending=ending, **options)
    actual = [contents(sound(tmp_path / "out" / f"out-{name}.json")) for name in NAMES]
    every = {key: fields for part in actual for key, fields in part.items()}
    assert sum(map(len, actual)) == len(every) == result.samples == 60
    for fields in every.values():
        assert ("cls" in fields) == ("label_from_folder" in options)
        fields.pop("cls", None)
    assert every == contents(sound(plain[0] / "out.json"))
    total = sum(int(result.splits[name].fingerprint[3:], 16) for name in NAMES) % 2**256
    assert result.fingerprint == f"b2:{total:064x}"
    assert (result.fingerprint == plain[1]) == ("label_from_folder" not in options)


def test_totals_of_splits(scenes: Path, tmp_path: Path) -> None:
    """Totals are those of all splits; each split and each dataset file has its own."""
    result = _pack(scenes, tmp_path)
    parts = _parts(tmp_path)
    assert result.dataset_file == f"{tmp_path}/out-{{split}}.json"
    assert list(result.splits) == list(NAMES)
    for name, split in result.splits.items():
        told = json.loads((tmp_path / f"out-{name}.json").read_bytes())["shardtool"]
        assert (split.samples, split.dataset_file) == (len(parts[name]), f"{tmp_path}/out-{name}.json")
        assert told["made"]["split"] == name
        assert told["made"]["options"]["split"] == SHARES
        assert (told["schema"]["split"], told["fingerprint"]) == ("string", split.fingerprint)
        totals = told["totals"]
        assert (split.shards, split.size, split.samples) == (totals["shards"], totals["size"], totals["samples"])
    for item in ("shards", "size", "samples", "kept", "skipped"):
        assert getattr(result, item) == sum(getattr(split, item) for split in result.splits.values())


def test_a_dry_run_of_splits(scenes: Path, tmp_path: Path) -> None:
    """A dry run writes nothing and tells all shards of all splits, to the byte."""
    options = CreateOptions(workers=0, max_count=8, split=SHARES)
    plan = create(scenes, f"{tmp_path}/{PATTERN}.tar", options, dry_run=True)
    assert os.listdir(tmp_path) == []
    _pack(scenes, tmp_path)
    listed = [item for name in NAMES for item in json.loads((tmp_path / f"out-{name}.json").read_bytes())["shardlist"]]
    assert [(item.name, item.samples, item.size, item.first_key, item.last_key) for item in plan.planned] == [
        (item["url"], item["nsamples"], item["filesize"], item["first_key"], item["last_key"]) for item in listed
    ]


def test_a_dry_run_of_splits_in_folders(scenes: Path, tmp_path: Path) -> None:
    """Where splits are folders, a dry run still tells which shard is whose."""
    plan = create(scenes, f"{tmp_path}/{{split}}/x-{{000..}}.tar", CreateOptions(workers=0, split=SHARES), dry_run=True)
    names = [item.name for item in plan.planned]
    assert len(set(names)) == len(names) == 3


# Who goes where


@given(keys=st.sets(st.integers(0, 199), min_size=30, max_size=60), more=st.sets(st.integers(0, 199), max_size=60))
@settings(max_examples=6)
def test_a_sample_keeps_its_split(keys: set[int], more: set[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    """A sample's split depends only on its key, and not on other samples or the content."""
    result = []
    for numbers in (keys, keys | more):
        place = tmp_path_factory.mktemp("stable")
        write_tree(place / "in", {f"{n:03}.txt": b"%d" % len(numbers) for n in numbers})
        try:
            _pack(place / "in", place, split="train=0.5,val=0.5", max_count=100)
        except InvalidRequest as error:
            assert "no sample in split" in str(error)  # noqa: PT017
            return
        result.append({key: name for name, keys in _parts(place, ("train", "val")).items() for key in keys})
    assert {key: result[1][key] for key in result[0]} == result[0]


def test_another_seed_divides_otherwise(scenes: Path, tmp_path: Path) -> None:
    """The seed decides, and nothing else: shards, workers, formats and the order of a shuffle do not."""
    same: list[dict[str, Any]] = [{}, {"max_count": 50}, {"workers": 3}, {"ending": "tfrecord"}, {"shuffle": True}]
    result = []
    for at, options in enumerate([*same, {"seed": 1}]):
        _pack(scenes, tmp_path / str(at), **options)
        result.append({name: sorted(keys) for name, keys in _parts(tmp_path / str(at)).items()})
    assert result[0] == result[1] == result[2] == result[3] == result[4] != result[5]


def test_group_by_folder(scenes: Path, tmp_path: Path) -> None:
    """With `--group-by folder`, a folder's samples are all in one split."""
    _pack(scenes, tmp_path, group_by="folder")
    folders = [{key.rpartition("/")[0] for key in keys} for keys in _parts(tmp_path).values()]
    assert sum(map(len, folders)) == len(set.union(*folders)) == 12


def test_stratify_by_the_label_of_a_folder(scenes: Path, tmp_path: Path) -> None:
    """With `--label-from-folder`, `--stratify cls` means its labels, by the name that the field has."""
    _pack(scenes, tmp_path, stratify="cls", label_from_folder=True)
    for keys, count in zip(_parts(tmp_path).values(), (18, 6, 6), strict=True):
        assert Counter(key.partition("/")[0] for key in keys) == {"cat": count, "dog": count}
    with pytest.raises(InvalidRequest, match="stratify: no column 'cls'"):
        _pack(scenes, tmp_path / "unlabelled", stratify="cls")


def test_stratify_by_folder(scenes: Path, tmp_path: Path) -> None:
    """With `--stratify folder`, every folder of five samples keeps the shares: three, one and one."""
    _pack(scenes, tmp_path, stratify="folder")
    for name, count in zip(NAMES, (3, 1, 1), strict=True):
        assert set(Counter(key.rpartition("/")[0] for key in _parts(tmp_path)[name]).values()) == {count}


def test_a_shuffle_stays_within_splits(scenes: Path, ending: str, tmp_path: Path) -> None:
    """`--shuffle` puts the samples of each split in another order, which the seed decides, and moves none elsewhere."""
    orders = []
    for at, shuffle in enumerate((False, True, True)):
        _pack(scenes, tmp_path / str(at), shuffle=shuffle, ending=ending)
        orders.append(_parts(tmp_path / str(at)))
    assert orders[1] == orders[2]
    for name in NAMES:
        assert orders[0][name] == sorted(orders[0][name]) == sorted(orders[1][name])
        assert orders[0][name] != orders[1][name]


def test_per_cent_means_the_same(scenes: Path, tmp_path: Path) -> None:
    """Shares in per cent and as fractions divide alike."""
    _pack(scenes, tmp_path / "a")
    _pack(scenes, tmp_path / "b", split="train=60, val=20, test=20")
    assert _parts(tmp_path / "a") == _parts(tmp_path / "b")


# Names


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("{split}/x-{000..}", ["train/x.json", "val/x.json"]),
        ("{split}-{000..}", ["train.json", "val.json"]),
        ("deep/{split}/{split}-%03d", ["deep/train/train.json", "deep/val/val.json"]),
        ("{split}/part-<000..001>", ["train/part.json", "val/part.json"]),
        ("SPLIT/{split}-{000..}", ["SPLIT/train.json", "SPLIT/val.json"]),
    ],
)
def test_where_the_split_stands_in_the_pattern(pattern: str, files: list[str], scenes: Path, tmp_path: Path) -> None:
    """`{split}` may be a folder or a part of the file name, any number of times."""
    result = _pack(scenes, tmp_path, pattern=pattern, split="train=0.5,val=0.5", max_count=None)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json")) == files
    actual = [set(contents(sound(tmp_path / name))) for name in files]
    assert (sum(map(len, actual)), len(set.union(*actual))) == (60, 60)
    assert [result.dataset_file.replace("{split}", name) for name in ("train", "val")] == [
        f"{tmp_path}/{name}" for name in files
    ]


def test_a_list_of_names(scenes: Path, tmp_path: Path) -> None:
    """Names that a shell expanded from `out-{split}-{000..002}.tar` are three shards per split; others are refused."""
    names = [f"{tmp_path}/out-{{split}}-00{number}.tar" for number in range(3)]
    create(scenes, names, CreateOptions(workers=0, split=SHARES))
    parts = _parts(tmp_path)
    assert (sum(map(len, parts.values())), len(shards(tmp_path))) == (60, 9)
    with pytest.raises(InvalidRequest, match=r"without \{split\}"):
        create(scenes, [*names, f"{tmp_path}/out-003.tar"], CreateOptions(workers=0, split=SHARES))


def test_the_shell_leaves_the_split_alone(scenes: Path, tmp_path: Path) -> None:
    """Unquoted, bash expands the range and leaves `{split}`: the result is the same as with quotes."""
    tool_line = f"{sys.executable} -m shardtool create {scenes} --split train=0.5,val=0.5 --quiet"
    for line in (f"{tool_line} a/out-{{split}}-{{000..002}}.tar", f"{tool_line} 'b/out-{{split}}-{{000..002}}.tar'"):
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=ENVIRONMENT, timeout=60, check=False)
        assert done.returncode == 0
    assert read_tree(tmp_path / "a") == read_tree(tmp_path / "b")
    assert len(shards(tmp_path / "a")) == 6


@pytest.mark.parametrize(
    ("pattern", "options", "message"),
    [
        ("out-{split}-{000..}", {"split": None}, r"\{split\} without splits.*split="),
        ("out-{000..}", {}, r"without \{split\}"),
        ("out-{split}-{000..}", {"split": "train=1,val=1"}, "split"),
        ("out-{split}-{000..}", {"split": "a/b=0.5,c=0.5"}, "split"),
        ("out-{split}-{000..}", {"split": "..=0.5,c=0.5"}, "split"),
        ("out-{split}-{000..}", {"split": "a=0.5,A=0.5"}, "split"),
        ("out-{split}-{000..}", {"split": "a=0.99999999,b=0.00000001"}, r"no sample in split b"),
        ("out-{split}-{000..}", {"stratify": "nope"}, "stratify: no column 'nope'.*key, path, folder, size"),
        ("out-{split}-{000..}", {"group_by": "nope"}, "group_by: no column 'nope'.*key, path, folder, size"),
        ("out-{split}-{000..}", {"group_by": "folder", "stratify": "folder"}, "group_by"),
        ("out-{000..}", {"split": None, "stratify": "folder"}, "stratify.*split="),
        ("out-{000..}", {"split": None, "group_by": "folder"}, "group_by.*split="),
        (
            "out-{split}-{000..}",
            {"split": None, "split_column": "label"},
            "split_column: no column 'label'.*key, path, folder, size.*join",
        ),
        ("out-{split}-{000..000}", {}, "1 names? for [0-9]+ shards"),
        ("out-{split}-{000..}", {"max_count": None, "shards": 51}, "51 shards for [0-9]+ samples"),
        ("out-{split}-{000..}", {"max_size": 2000}, "max_size.*oversize="),
        ("out-{split}", {}, "out-train"),
    ],
)
def test_requests_that_make_no_sense(
    pattern: str, options: dict[str, Any], message: str, scenes: Path, tmp_path: Path
) -> None:
    """A request that makes no sense, or leaves a split without a sample, is refused before anything is written."""
    with pytest.raises(InvalidRequest, match=message):
        _pack(scenes, tmp_path / "out", pattern=pattern, **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("pattern", ["{split}{0..}", "{split}0-{0..}", "x/{split}{0..}"])
@pytest.mark.parametrize("names", [("a", "a1"), ("fold1", "fold11")])
def test_splits_do_not_share_names(pattern: str, names: tuple[str, str], scenes: Path, tmp_path: Path) -> None:
    """Where the shards of one split would have the names of another's, that is refused; else each has its own."""
    options: dict[str, Any] = {"split": ",".join(f"{name}=0.5" for name in names), "max_count": 2}
    try:
        result = _pack(scenes, tmp_path, pattern=pattern, **options)
    except InvalidRequest:
        assert not list(tmp_path.rglob("*.tar"))
        return
    assert len(list(tmp_path.rglob("*.tar"))) == result.shards
    for if_exists in ("overwrite", "resume"):
        assert _pack(scenes, tmp_path, pattern=pattern, **existing(if_exists), **options).samples == 60
        assert len(list(tmp_path.rglob("*.tar"))) == result.shards


def test_the_source_may_hold_the_output(tmp_path: Path) -> None:
    """Splits that are written into the source are not packed the next time."""
    source = write_tree(tmp_path / "in", {f"{n:02}.txt": b"%d" % n for n in range(20)})
    right = None
    for if_exists in ("error", "resume", "overwrite"):
        _pack(source, source, pattern="{split}/x-{000..}", split="train=0.5,val=0.5", **existing(if_exists))
        files = read_tree(source)
        assert right in (None, files)
        right = files


# Existing output


def test_existing_output_of_any_split(scenes: Path, tmp_path: Path) -> None:
    """If a file of any split exists, a plain run is refused, and changes nothing."""
    write_tree(tmp_path, {"out-test-007.index": b"somebody's"})
    with pytest.raises(OutputExists, match="out-test-007"):
        _pack(scenes, tmp_path)
    assert os.listdir(tmp_path) == ["out-test-007.index"]


def test_a_lock_of_any_split(scenes: Path, tmp_path: Path) -> None:
    """While a run writes one split as a dataset, a run on all splits is refused, and leaves no locks."""
    import fcntl

    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".out-test.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OutputExists, match="out-test"):
            _pack(scenes, tmp_path / "out")
        assert os.listdir(tmp_path / "out") == [".out-test.lock"]
    assert _pack(scenes, tmp_path / "out").samples == 60
    assert not [name for name in os.listdir(tmp_path / "out") if name.startswith(".")]


@pytest.fixture(scope="module", params=[{}], ids=["plain"])
def packed(request: pytest.FixtureRequest, scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the output of a run on the scenes with these options; not to be changed."""
    folder = tmp_path_factory.mktemp("packed")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SHARDTOOL_TEST_NOTED", str(folder / "noted"))
        _pack(scenes, folder / "out", **request.param)
    return folder / "out"


@pytest.fixture
def earlier(packed: Path, scenes: Path, tmp_path: Path) -> Path:
    """Give a copy of it, as old as though nothing had changed since."""
    shutil.copytree(packed, tmp_path / "out")
    age(tmp_path / "out", scenes)
    return tmp_path / "out"


CHANGES: dict[str, dict[str, Any]] = {
    "the same": {},
    "shares": {"split": "train=0.2,val=0.4,test=0.4"},
    "seed": {"seed": 3},
    "groups": {"group_by": "folder"},
    "shards": {"max_count": 30},
    "bytes": {"max_count": None, "max_size": "9kB"},
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["resume-overwrite", "overwrite"])
@pytest.mark.parametrize("name", CHANGES)
def test_over_an_earlier_run(name: str, how: str, earlier: Path, scenes: Path, tmp_path: Path) -> None:
    """`--resume` and `--overwrite` over an earlier run equal a fresh run, in every split, without stale files."""
    _pack(scenes, earlier, **existing(how), **CHANGES[name])
    _pack(scenes, tmp_path / "fresh", **CHANGES[name])
    assert read_tree(earlier) == read_tree(tmp_path / "fresh")


_TRANSFORMS: list[dict[str, Any]] = [{}, {"map": "tests.mapped:noted"}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("packed", "transform"), [*zip(_TRANSFORMS, _TRANSFORMS, strict=True)], ids=["plain", "map"], indirect=["packed"]
)
@pytest.mark.parametrize(
    "deleted", [["out-test-*"], ["out-val-*", "out-test-*"], ["out-train-001.tar"], ["out-val.json"], ["*.json"], []]
)
def test_resume_between_splits(
    deleted: list[str], transform: dict[str, Any], *, earlier: Path, scenes: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A run interrupted in or between splits is resumed to the same bytes; finished files are not changed."""
    monkeypatch.setenv("SHARDTOOL_TEST_NOTED", str(tmp_path / "noted"))
    right, before = read_tree(earlier), identity(earlier)
    names = {path.name for pattern in deleted for path in earlier.glob(pattern)}
    for name in names:
        (earlier / name).unlink()
    result = _pack(scenes, earlier, resume=True, **transform)
    assert read_tree(earlier) == right
    after = identity(earlier)
    parts = {part for part in NAMES if any(f"-{part}" in name for name in names)}
    allowed = names | {f"out-{part}.json" for part in parts} | {name.replace(".tar", ".index") for name in names}
    assert names <= {name for name in after if after[name] != before[name]} <= allowed
    assert result.kept == result.shards - sum(name.endswith(".tar") for name in names)


def test_resume_keeps_splits_when_samples_come_and_go(scenes: Path, tmp_path: Path) -> None:
    """Over a source with other samples, `--resume` equals a fresh run, and moves no old sample to another split."""
    source = Path(shutil.copytree(scenes, tmp_path / "in"))
    _pack(source, tmp_path / "out")
    before = {key: name for name, keys in _parts(tmp_path / "out").items() for key in keys}
    shutil.rmtree(source / "cat" / "03")
    write_tree(source, {f"new/{n}.txt": b"new" for n in range(20)})
    _pack(source, tmp_path / "out", resume=True)
    _pack(source, tmp_path / "fresh")
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "fresh")
    after = {key: name for name, keys in _parts(tmp_path / "out").items() for key in keys}
    assert {key: name for key, name in after.items() if not key.startswith("new")} == {
        key: name for key, name in before.items() if not key.startswith("cat/03")
    }


# Skipped samples


def test_counts_add_up_over_all_splits(scenes: Path, ending: str, tmp_path: Path) -> None:
    """Each skipped sample is in one split's list; samples in equal written plus skipped over all splits."""
    source = Path(shutil.copytree(scenes, tmp_path / "in"))
    huge = {f"cat/{n:02}/huge{n}.bin": bytes(9000 + n) for n in range(8)}
    write_tree(source, {**huge, "README": b"no field", "dog/06/NOTES": b"none"})
    os.mkfifo(source / "dog" / "06" / "pipe.txt")
    options: dict[str, Any] = {"on_error": "skip", "oversize": "skip", "max_size": 8000, "ending": ending}
    result = _pack(source, tmp_path / "out", **options)
    rows = [skipped(tmp_path / "out" / f"out-{name}.json") for name in NAMES]
    actual = sorted((row["key"], row["path"], row["code"]) for part in rows for row in part)
    assert actual == sorted(
        [
            *((name[:-4], "", "oversize") for name in huge),
            ("", "README", "no-field"),
            ("", "dog/06/NOTES", "no-field"),
            ("dog/06/pipe", "dog/06/pipe.txt", "special-file"),
        ]
    )
    assert (result.samples, result.skipped) == (60, len(actual))
    assert [split.skipped for split in result.splits.values()] == [len(part) for part in rows]
    changes = CreateOptions(workers=0, max_count=8, split=SHARES, on_error="skip", oversize="skip", max_size=8000)
    assert create(source, f"{tmp_path}/out/{PATTERN}.{ending}", changes, dry_run=True).skipped == len(actual)
    assert sum(map(len, _parts(tmp_path / "out").values())) == 60


def test_what_a_function_makes_over_all_splits(tmp_path: Path) -> None:
    """With `--map`, each sample is written, left out or dropped in its split; a key twice is refused in any two."""
    changes = {f"{n:03}.txt": [b"null", b"30", b"[10, 20]", b"no JSON"][n % 4] for n in range(40)}
    source = write_tree(tmp_path / "in", changes)
    options: dict[str, Any] = {"map": "tests.mapped:told", "on_error": "skip"}
    result = _pack(source, tmp_path / "out", **options)
    parts = _parts(tmp_path / "out")
    made = {f"{n:03}{more}" for n in range(40) for more in ([], [""], ["-0", "-1"], [])[n % 4]}
    assert {key for keys in parts.values() for key in keys} == made
    assert (result.samples, result.dropped, result.skipped) == (30, 10, 10)
    plain = create(source, f"{tmp_path}/plain/x-{{000..}}.tar", CreateOptions(workers=0, **options))
    assert plain.fingerprint == result.fingerprint


def test_a_key_twice_in_two_splits(tmp_path: Path) -> None:
    """A key that a function returns in two splits is an error by name, as within one."""
    source = write_tree(tmp_path / "in", {f"{n}.py": b"{'a': b''}" for n in range(30)})
    parts = _split_of(source, tmp_path)
    train, val = (next(key for key, name in parts.items() if name == item) for item in ("train", "val"))
    write_tree(source, {f"{key}.py": b"{'__key__': 'same', 'a': b''}" for key in (train, val)})
    with pytest.raises(SampleFailed, match=r"^same: "):
        _pack(source, tmp_path / "out", map="tests.mapped:evaluated")


def _split_of(source: Path, tmp_path: Path) -> dict[str, str]:
    _pack(source, tmp_path / "parts")
    return {key: name for name, keys in _parts(tmp_path / "parts").items() for key in keys}


# The command line


def test_splits_from_the_command_line(scenes: Path, tmp_path: Path) -> None:
    """The command line writes the same files, and tells of each split; `--json` has them apart."""
    words = ["create", str(scenes), "--max-count", "8", "--workers", "2"]
    ran = typed(*words, f"a/{PATTERN}.tar", "--split", SHARES, "--json", cwd=tmp_path)
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert list(told["splits"]) == list(NAMES)
    assert (told["samples"], told["dataset_file"]) == (60, "a/out-{split}.json")
    _pack(scenes, tmp_path / "b")
    assert read_tree(tmp_path / "a") == read_tree(tmp_path / "b")
    ran = typed(*words, f"c/{PATTERN}.tar", "--split", SHARES, cwd=tmp_path)
    assert (ran.code, "1 file of 0 bytes" in ran.err) == (0, True)
    assert all(name in ran.out for name in NAMES)
    ran = typed(*words, f"d/{PATTERN}.tar", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")


# Where


QUERIES: dict[str, Callable[[str, int], bool]] = {
    "folder == 'cat/03'": lambda key, _size: key.startswith("cat/03/"),
    "folder.str.startswith('dog')": lambda key, _size: key.startswith("dog"),
    "size > 300": lambda _key, size: size > 300,
    "key == 'cat/00/000'": lambda key, _size: key == "cat/00/000",
    "path == 'cat/01/001.bin'": lambda key, _size: key == "cat/01/001",
    "path.str.endswith('.bin') and size < 200": lambda _key, size: size < 200,
    "folder in ['cat/00', 'dog/11'] or size == 109": lambda key, size: key[:6] in ("cat/00", "dog/11") or size == 109,
    "not key.str.contains('1')": lambda key, _size: "1" not in key,
}


@pytest.mark.parametrize("query", QUERIES)
def test_where_takes_samples(query: str, scenes: Path, ending: str, tmp_path: Path) -> None:
    """`--where` takes the samples for which it is true, by key, path, folder and bytes; all of their fields come."""
    source, sizes = read_tree(scenes), Counter[str]()
    for name, data in source.items():
        sizes[name[:-4]] += len(data)
    right = {key for key in sizes if QUERIES[query](key, sizes[key])}
    result = _pack(scenes, tmp_path, where=query, ending=ending, **ONE)
    actual = contents(sound(tmp_path / "out.json", max_count=8))
    assert actual == {key: {field: source[f"{key}.{field}"] for field in ("bin", "txt")} for key in right}
    assert 0 < result.samples == len(right) < 60
    assert json.loads((tmp_path / "out.json").read_bytes())["shardtool"]["made"]["options"]["where"] == query


def test_where_and_a_function(scenes: Path, tmp_path: Path) -> None:
    """A function gets only what `--where` takes."""
    right = _pack(scenes, tmp_path / "plain", where="size > 300", **ONE)
    result = _pack(scenes, tmp_path / "map", where="size > 300", probe=True, **ONE)
    assert contents(sound(tmp_path / "map" / "out.json")) == contents(sound(tmp_path / "plain" / "out.json"))
    assert (result.samples, result.fingerprint) == (right.samples, right.fingerprint)


def test_where_and_labels(scenes: Path, tmp_path: Path) -> None:
    """A class keeps its number where `--where` leaves the others out, and a query means the same with labels."""
    options: dict[str, Any] = {**ONE, "label_from_folder": True}
    _pack(scenes, tmp_path / "dog", where="folder.str.startswith('dog')", **options)
    result = contents(sound(tmp_path / "dog" / "out.json"))
    assert {fields["cls"] for fields in result.values()} == {b"1"}
    keys = []
    for at, labels in enumerate((False, True)):
        more = {**options, "label_from_folder": labels}
        _pack(scenes, tmp_path / str(at), where="size == 109 or folder == 'cat/00'", **more)
        keys.append(set(contents(sound(tmp_path / str(at) / "out.json"))))
    assert keys[0] == keys[1]


def test_where_and_splits(scenes: Path, tmp_path: Path) -> None:
    """A sample has the same split whether `--where` leaves others out or not."""
    _pack(scenes, tmp_path / "all")
    _pack(scenes, tmp_path / "some", where="size > 200")
    every = {key: name for name, keys in _parts(tmp_path / "all").items() for key in keys}
    some = {key: name for name, keys in _parts(tmp_path / "some").items() for key in keys}
    assert 0 < len(some) < 60
    assert some == {key: every[key] for key in some}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("size > ", "where"),
        ("width > 3", "width.*key, path, folder, size"),
        ("size > 'a'", "where"),
        ("__import__('os').system('touch x')", "where"),
        ("size > 10 ** 9", "where: no sample"),
        ("", "where"),
    ],
)
def test_queries_that_make_no_sense(query: str, message: str, scenes: Path, tmp_path: Path) -> None:
    """A query that cannot be asked, or that takes nothing, is refused before anything is written."""
    with pytest.raises(InvalidRequest, match=message):
        _pack(scenes, tmp_path / "out", where=query)
    assert os.listdir(tmp_path) == []


def test_resume_with_another_query(scenes: Path, tmp_path: Path) -> None:
    """`--resume` with another query equals a fresh run with it."""
    _pack(scenes, tmp_path / "out", where="size > 100")
    age(tmp_path / "out", scenes)
    _pack(scenes, tmp_path / "out", where="size > 250", resume=True, overwrite=True)
    _pack(scenes, tmp_path / "fresh", where="size > 250")
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "fresh")


@pytest.mark.parametrize("name", ["out-{split}.json", "out-{split}-{000..}.tar", "out-*.json"])
def test_all_splits_become_one_again(name: str, scenes: Path, tmp_path: Path) -> None:
    """A pattern with `{split}` names the datasets of all splits, like a glob, also as a source."""
    _pack(scenes, tmp_path / "in")
    ran = typed("reshard", tmp_path / "in" / name, tmp_path / "one/all-{000..}.tar", "--workers", "0")
    assert ran.code == 0, ran.err
    assert typed("diff", tmp_path / "one/all.json", f"{tmp_path}/in/out-{{split}}.json").code == 0
    whole = [sample.key for shard in sound(tmp_path / "one/all.json") for sample in shard]
    assert whole == [key for keys in _parts(tmp_path / "in", sorted(NAMES)).values() for key in keys]
    assert typed("verify", tmp_path / "one/all.json", "--source", tmp_path / "in" / name).code == 0


def test_messages_show_the_split_pattern_as_typed(scenes: Path) -> None:
    """Messages contain `{split}` as typed, and not its internal replacement."""
    ran = typed("create", scenes, "x-{split}.json", "--split", SHARES)
    assert ran.err.startswith("shardtool: x-{split}.json: the file extension '.json'; expected a pattern such as")


@pytest.mark.parametrize("update", [False, True])
def test_a_source_without_samples(tmp_path: Path, *, update: bool) -> None:
    """The error is about the source, not about the shares."""
    source = write_tree(tmp_path / "in", {"a.txt": b"a"})
    options = CreateOptions(split="a=0.5,b=0.5", include="*.jpg", update=update, workers=0)
    with pytest.raises(InvalidRequest, match="matched 0 of 1 file"):
        create(source, tmp_path / "{split}-{0..}.tar", options)
