"""Laws of `create` with transforms: sizes are only estimated, but all guarantees hold."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardtool import CreateOptions, InvalidRequest, Observer, OutputExists, SampleFailed, ShardError, create
from tests import tfrecords
from tests.helpers import ENVIRONMENT, existing, identity, members, read_tree, shards, sidecar, tool, typed, write_tree
from tests.mapped import NOTED, payload
from tests.stored import age, contents, skipped, sound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shardtool import CreateResult

# Forked workers start ten times faster, and never touch what the threads of this process may hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

STEM = "out-{000..}"
TOLD, EVALUATED, NOTED_MAP = "tests.mapped:told", "tests.mapped:evaluated", "tests.mapped:noted"
SIDE = 24
TO_PNG: dict[str, Any] = {"resize": SIDE, "encode": "png"}
WHOLE: dict[str, Any] = {**TO_PNG, "probe": True, "label_from_folder": True, "max_size": 14_000}
_TAR_END = 1024


def _pack(source: Any, folder: Path, **options: Any) -> CreateResult:
    """Pack into tar without workers, unless `options` differ."""
    ending = options.pop("ending", "tar")
    changes = {"workers": 0, **options}
    return create(source, f"{folder}/{STEM}.{ending}", CreateOptions(**changes))


def _picture(side: int, seed: int, kind: str = "PNG", mode: str = "RGB", **details: Any) -> bytes:
    """Return a square image of noise; of one colour where the seed is negative."""
    if seed < 0:
        image = Image.new("RGB", (side, side), (seed % 256, 99, 9))
    else:
        image = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))
    stream = BytesIO()
    image.convert(mode).save(stream, kind, **details)
    return stream.getvalue()


def _rewritten(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    return {name for name in after if after[name] != before.get(name)}


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give 30 images with captions, the smaller the later, that become the larger the later: what misleads a guess."""
    files = {}
    for number in range(10):
        files[f"a/{number:03}.bmp"] = _picture(40, -1 - number, "BMP")
        files[f"b/{number:03}.png"] = _picture(SIDE, number)
        files[f"c/{number:03}.png"] = _picture(8, number)
    files |= {f"{name[:5]}.txt": f"caption of {name}\n".encode() for name in list(files)}
    return write_tree(tmp_path_factory.mktemp("pictures"), files)


@pytest.fixture(scope="session")
def whole(pictures: Path, ending: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give what one worker makes of the pictures, aged."""
    folder = tmp_path_factory.mktemp("whole")
    _pack(pictures, folder, ending=ending, **WHOLE)
    age(folder, pictures)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """Give a copy of `whole`, times and all."""
    return Path(shutil.copytree(whole, tmp_path / "out"))


def _told_tree(folder: Path, asked: Mapping[str, object]) -> Path:
    return write_tree(folder, {f"{key}.txt": json.dumps(message).encode() for key, message in asked.items()})


def _told_samples(asked: Mapping[str, object]) -> dict[str, dict[str, int]]:
    """Return what `told` makes: source key to key to the size of its field."""
    result: dict[str, dict[str, int]] = {}
    for key, message in asked.items():
        several = message if isinstance(message, list) else []
        result[key] = (
            {key: message} if isinstance(message, int) else {f"{key}-{at}": size for at, size in enumerate(several)}
        )
    return result


def _record_size(key: str, size: int, ending: str) -> int:
    """Return the bytes of a sample that has only a field `bin` of `size` bytes."""
    if ending == "tar":
        return 512 + -(-size // 512) * 512
    features = [(b"__key__", tfrecords.BYTES, key.encode()), (b"bin", tfrecords.BYTES, bytes(size))]
    return len(tfrecords.frame(tfrecords.example(features)))


# Bounds


SIZES = st.one_of(st.none(), st.integers(0, 9000), st.lists(st.integers(0, 4000), max_size=4))


@given(
    asked=st.lists(SIZES, min_size=1, max_size=24),
    max_size=st.one_of(st.none(), st.integers(3000, 15_000)),
    max_count=st.one_of(st.none(), st.integers(1, 6)),
    oversize=st.sampled_from(["skip", "alone"]),
)
@settings(max_examples=12)
def test_bounds_hold_with_any_function(
    *,
    asked: list[object],
    max_size: int | None,
    max_count: int | None,
    oversize: str,
    ending: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Each sample is written, skipped or dropped once, and no shard exceeds a bound, for any function."""
    place = tmp_path_factory.mktemp("bounds")
    named = {f"{number:03}": message for number, message in enumerate(asked)}
    made, room = _told_samples(named), 10**9 if max_size is None else max_size - (_TAR_END if ending == "tar" else 0)
    alone = oversize == "alone"
    sizes = {key: sum(_record_size(name, size, ending) for name, size in made[key].items()) for key in made}
    many = {key for key in made if max_count is not None and len(made[key]) > max_count}
    large = {key for key in made if sizes[key] > room} - many
    bad = many if alone else many | large
    right = {name: payload(name, size) for key in made if key not in bad for name, size in made[key].items()}
    options = {"map": TOLD, "max_size": max_size, "max_count": max_count, "oversize": oversize, "ending": ending}
    _told_tree(place / "in", named)
    if not right or (alone and many):
        with pytest.raises(SampleFailed):
            _pack(place / "in", place / "out", **options)
        return
    result = _pack(place / "in", place / "out", **options)
    actual = sound(place / "out" / "out.json", max_count=max_count)
    assert {key: fields["bin"] for key, fields in contents(actual).items()} == right
    assert {item["key"]: item["code"] for item in skipped(place / "out" / "out.json")} == dict.fromkeys(bad, "oversize")
    assert (result.skipped, result.dropped) == (len(bad), sum(not made[key] for key in made))
    for path, samples in zip(shards(place / "out"), actual, strict=True):
        over = max_size is not None and path.stat().st_size > max_size
        assert not over or (alone and len({sample.key[:3] for sample in samples}) == 1)


def test_images_that_mislead_the_estimate(whole: Path, pictures: Path, ending: str) -> None:
    """Shards are within the bound where the estimate is far off: what finds no room gets names after the planned."""
    result = sound(whole / "out.json", max_size=14_000)
    plan = create(pictures, f"{whole}/none/{STEM}.{ending}", CreateOptions(workers=0, **WHOLE), dry_run=True)
    assert len(result) > len(plan.planned), "nothing was left over: the test is too easy"
    source, made = read_tree(pictures), contents(result)
    assert {key: fields["txt"] for key, fields in made.items()} == {
        name[:-4]: data for name, data in source.items() if name.endswith(".txt")
    }
    assert {Image.open(BytesIO(fields["png"])).size for fields in made.values()} == {(SIDE, SIDE)}
    assert all(set(fields) == {"cls", "png", "txt"} for fields in made.values())


def test_many_samples_that_grow_fifty_times(ending: str, tmp_path: Path) -> None:
    """Only some of hundreds of samples are tried; the others may be 50 times as large."""
    options = {f"{number:03}": 5000 if number % 8 == 7 else 100 for number in range(240)}
    source = _told_tree(tmp_path / "in", options)
    result = _pack(source, tmp_path / "out", map=TOLD, max_size="12kB", ending=ending, workers=2)
    actual = sound(tmp_path / "out" / "out.json", max_size=12_000)
    assert {key: fields["bin"] for key, fields in contents(actual).items()} == {
        key: payload(key, size) for key, size in options.items()
    }
    assert (result.samples, result.shards) == (240, len(actual))


@pytest.mark.parametrize("max_size", [1, 1024, 1500])
@pytest.mark.parametrize("oversize", ["error", "skip"])
def test_a_bound_that_takes_nothing(max_size: int, oversize: str, ending: str, tmp_path: Path) -> None:
    """A bound below the smallest shard is an error, as without transforms."""
    source = _told_tree(tmp_path / "in", dict.fromkeys(("a", "b", "c"), 2000))
    with pytest.raises((InvalidRequest, SampleFailed)):
        _pack(source, tmp_path / "out", map=TOLD, max_size=max_size, oversize=oversize, ending=ending)
    assert not (tmp_path / "out" / "out.json").exists()


def test_a_sample_that_becomes_too_large_is_named(ending: str, tmp_path: Path) -> None:
    """A transformed sample that fits in no shard is an error with its key and advice."""
    source = _told_tree(tmp_path / "in", {"fine": 10, "huge": [3000, 3000], "more": 20})
    with pytest.raises(SampleFailed, match=r"^huge: .*2 samples.*oversize='skip'"):
        _pack(source, tmp_path / "out", map=TOLD, max_size="5kB", ending=ending)
    assert not (tmp_path / "out" / "out.json").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"equal_count": True, "max_count": 4, "map": TOLD},
        {"equal_count": True, "max_size": "12kB", "map": TOLD},
        {"equal_count": True, "max_size": 14_000, **TO_PNG},
        {"equal_count": True, "max_count": 4, **TO_PNG},
        {"equal_count": True, "pattern": "out-{000..004}", **TO_PNG},
        {"equal_count": True, "pattern": "out-{000..004}", "map": TOLD},
        {"shards_multiple_of": 4, "max_size": "12kB", "map": TOLD},
        {"shards_multiple_of": 4, "max_size": 14_000, **TO_PNG},
        {"shards_multiple_of": 4, "max_count": 6, **TO_PNG},
        {"shards_multiple_of": 4, "max_count": 3, "map": TOLD},
        {"shards_multiple_of": 5, "pattern": "out-{000..004}", **TO_PNG},
    ],
    ids=lambda options: " ".join(name for name in options),
)
def test_numbers_that_ranks_divide(options: dict[str, Any], pictures: Path, tmp_path: Path) -> None:
    """What ranks and workers rely on, equal counts and a multiple of shards, is kept, or is a clear error."""
    source = pictures
    if "map" in options:
        changes = {f"{number:03}": [300, None, 3000, [200, 300]][number * 4 // 40] for number in range(40)}
        source = _told_tree(tmp_path / "in", changes)
    pattern = options.pop("pattern", STEM)
    try:
        create(source, f"{tmp_path}/out/{pattern}.tar", CreateOptions(workers=0, **options))
    except (InvalidRequest, SampleFailed) as error:
        assert re.search("equal_count|shards_multiple_of", str(error)), error  # noqa: PT017
        assert not (tmp_path / "out" / "out.json").exists()
        return
    counts = [len(samples) for samples in sound(tmp_path / "out" / "out.json")]
    if options.get("equal_count"):
        assert max(counts) - min(counts) <= 1
    assert not len(counts) % options.get("shards_multiple_of", 1)


@pytest.mark.parametrize("last", [0, 2, 6, 29])
def test_an_exact_range_is_filled(last: int, pictures: Path, ending: str, tmp_path: Path) -> None:
    """A closed range without a bound gives exactly its names, however few, in the source's order."""
    output = f"{tmp_path}/out-{{000..{last:03}}}.{ending}"
    create(pictures, output, CreateOptions(workers=0, **TO_PNG))
    result = sound(tmp_path / "out.json")
    keys = [sample.key for samples in result for sample in samples]
    assert (len(result), keys, len(keys)) == (last + 1, sorted(keys), 30)


@pytest.mark.parametrize("names", ["far too few", "the planned", "enough"])
def test_a_range_that_is_a_capacity(names: str, pictures: Path, whole: Path, ending: str, tmp_path: Path) -> None:
    """A closed range with a bound is enough, or is refused, in the plan or once sizes show; no dataset is made."""
    plan = create(pictures, f"{whole}/none/{STEM}.{ending}", CreateOptions(workers=0, **WHOLE), dry_run=True)
    count = {"far too few": 2, "the planned": len(plan.planned), "enough": len(shards(whole))}[names]
    output = f"{tmp_path}/out-{{000..{count - 1:03}}}.{ending}"
    options = CreateOptions(workers=0, **WHOLE)
    if names == "enough":
        create(pictures, output, options)
        assert [path.read_bytes() for path in shards(tmp_path)] == [path.read_bytes() for path in shards(whole)]
        return
    with pytest.raises(InvalidRequest, match=f"{count} names for ") as caught:
        create(pictures, output, options)
    assert ("after transforming" in str(caught.value)) == (names == "the planned")
    assert not (tmp_path / "out.json").exists()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".") and name != ".out.journal"]


# The same bytes


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "start"), [(2, "fork"), (5, "fork"), (2, "spawn")])
def test_the_same_bytes(workers: int, start: str, *, ending: str, pictures: Path, whole: Path, tmp_path: Path) -> None:
    """Any number of workers, forked or spawned, writes the same bytes into every file."""
    _pack(pictures, tmp_path, workers=workers, start_method=start, ending=ending, **WHOLE)
    assert read_tree(tmp_path) == read_tree(whole)


@pytest.mark.slow
def test_the_same_bytes_of_a_function(tmp_path: Path) -> None:
    """So it is where a function makes several samples, or none, and from the command line."""
    changes = {f"{n:03}": [None, 700, [600, 50], [], 3000][n * 7 % 5] for n in range(60)}
    source = _told_tree(tmp_path / "in", changes)
    options: dict[str, Any] = {"map": TOLD, "max_size": "9kB", "shuffle": True, "seed": 3}
    for workers in (1, 2, 5):
        _pack(source, tmp_path / str(workers), workers=workers, **options)
    words = [
        "--map",
        TOLD,
        "--max-size",
        "9kB",
        "--shuffle",
        "--seed",
        "3",
        "--workers",
        "2",
        "--start-method",
        "spawn",
    ]
    ran = tool("create", source, tmp_path / "tool" / f"{STEM}.tar", *words)
    assert ran.code == 0, ran.err
    assert len(sound(tmp_path / "1" / "out.json", max_size=9000)) > 4
    assert read_tree(tmp_path / "1") == read_tree(tmp_path / "2") == read_tree(tmp_path / "5")
    assert read_tree(tmp_path / "1") == read_tree(tmp_path / "tool")


def test_the_command_line_and_the_library_ask_the_same(
    pictures: Path, whole: Path, ending: str, tmp_path: Path
) -> None:
    """The library and the command line write the same dataset file for the same request."""
    words = ["--resize", "24", "--encode", "png", "--probe", "--label-from-folder", "--max-size", "14kB"]
    ran = typed("create", pictures, tmp_path / f"{STEM}.{ending}", *words, "--workers", "2")
    assert ran.code == 0, ran.err
    assert read_tree(tmp_path) == read_tree(whole)


# Resume


GONE = [
    ["out-000.shard"],
    ["out-002.shard", "out-002.index", "out.json"],
    ["out-003.index"],
    ["out.json"],
    ["the last"],
    ["out-001.shard", "the last"],
    ["all"],
    [],
]


@pytest.mark.slow
@pytest.mark.parametrize("deleted", GONE, ids=lambda deleted: "+".join(deleted) or "nothing")
def test_resume_writes_missing_files(deleted: list[str], pictures: Path, ending: str, copy: Path) -> None:
    """`--resume` writes missing files, also of overflow shards, and changes no others."""
    right, before, every = read_tree(copy), identity(copy), [path.name for path in shards(copy)]
    names = [item for name in deleted for item in (every if name == "all" else [name])]
    names = [every[-1] if name == "the last" else name.replace("shard", ending) for name in names]
    for name in names:
        (copy / name).unlink()
    result = _pack(pictures, copy, resume=True, ending=ending, **WHOLE)
    assert read_tree(copy) == right
    missing = {item for name in names if name != "out.json" for item in (f"{name.rpartition('.')[0]}.{ending}", name)}
    rewritten = _rewritten(before, identity(copy))
    assert missing <= rewritten <= {*missing, *map(sidecar, missing), *(["out.json"] if names else [])}
    assert result.kept == len(every) - len({name for name in missing if name.endswith(ending)})


def test_resume_over_a_young_source(pictures: Path, whole: Path, ending: str, tmp_path: Path) -> None:
    """Where the source may have changed since, `--resume` makes shards again, to the same bytes."""
    _pack(pictures, tmp_path, ending=ending, **WHOLE)
    (shards(tmp_path)[1]).unlink()
    _pack(pictures, tmp_path, resume=True, ending=ending, **WHOLE)
    assert read_tree(tmp_path) == read_tree(whole)


def test_resume_calls_the_function_only_for_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished shard's samples are not changed once more, except for the few that the estimate tries."""
    source = write_tree(tmp_path / "in", {f"{number:03}.txt": bytes(400) for number in range(20)})
    options: dict[str, Any] = {"map": NOTED_MAP, "max_count": 5}

    def calls(run: Callable[[], object]) -> Counter[str]:
        monkeypatch.setenv(NOTED, str(tmp_path / "noted"))
        (tmp_path / "noted").write_text("")
        run()
        return Counter((tmp_path / "noted").read_text(encoding="utf-8").split())

    changes = CreateOptions(workers=0, **options)
    tried = calls(lambda: create(source, f"{tmp_path}/out/{STEM}.tar", changes, dry_run=True))
    assert calls(lambda: _pack(source, tmp_path / "out", **options)) - tried == Counter(f"{n:03}" for n in range(20))
    age(tmp_path / "out", source)
    (tmp_path / "out" / "out-002.tar").unlink()
    again = calls(lambda: _pack(source, tmp_path / "out", resume=True, **options))
    assert again - tried == Counter(f"{number:03}" for number in range(10, 15))


OTHERWISE: dict[str, dict[str, Any]] = {
    "quality": {"encode": "jpg", "quality": 50},
    "side": {"resize": 23},
    "mode": {"resize_mode": "crop"},
    "no probe": {"probe": False},
    "smaller": {"max_size": "12kB"},
    "hardly smaller": {"max_size": 13_900},
    "hardly larger": {"max_size": 14_900},
    "fewer": {"max_count": 2},
    "shuffle": {"shuffle": True},
    "some": {"include": ("a/*",)},
    "as they are": {"resize": None, "encode": None, "probe": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERWISE)
@pytest.mark.parametrize("ending", ["tar"], indirect=True)
def test_resume_with_other_options(name: str, pictures: Path, ending: str, copy: Path, tmp_path: Path) -> None:
    """`--resume` with other options equals a fresh run with these, without stale files."""
    options = {**WHOLE, **OTHERWISE[name], "ending": ending}
    _pack(pictures, copy, resume=True, overwrite=True, **options)
    _pack(pictures, tmp_path / "fresh", **options)
    assert read_tree(copy) == read_tree(tmp_path / "fresh")


BOUNDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fewer samples": ({"max_count": 8}, {"max_count": 6}),
    "more samples": ({"max_count": 6}, {"max_count": 8}),
    "no bound": ({"max_count": 8}, {}),
    "smaller": ({"max_size": 14_400}, {"max_size": 13_950}),
    "larger": ({"max_size": 13_950}, {"max_size": 14_400}),
    "no more alone": ({"max_size": 7000, "oversize": "alone"}, {"max_size": 7000, "oversize": "error"}),
    "left out": ({"max_size": 7000, "oversize": "alone"}, {"max_size": 7000, "oversize": "skip"}),
    "alone after all": ({"max_size": 7000, "oversize": "skip"}, {"max_size": 7000, "oversize": "alone"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDS)
def test_resume_with_other_bounds(name: str, tmp_path: Path) -> None:
    """`--resume` with another bound is held to that, though the plan, which only guesses, is the same as before."""
    before, after = BOUNDS[name]
    options: dict[str, object] = {str(number): [10, 20] for number in range(6)}
    if "max_size" in before:
        options = {str(number): 6100 if number < 4 else 500 for number in range(8)}
    source = _told_tree(tmp_path / "in", options)
    _pack(source, tmp_path / "out", map=TOLD, **before)
    age(tmp_path / "out", source)
    outcomes: list[object] = []
    for folder, if_exists in (("out", "resume-overwrite"), ("fresh", "error")):
        try:
            _pack(source, tmp_path / folder, map=TOLD, **existing(if_exists), **after)
        except ShardError as error:
            outcomes.append(str(error))
        else:
            outcomes.append(read_tree(tmp_path / folder))
    assert outcomes[0] == outcomes[1]


def test_resume_tells_the_same_types(tmp_path: Path) -> None:
    """The dataset file names a manifest's types alike, whether its shards are kept or new."""
    source = write_tree(tmp_path / "in", {f"{number}.txt": b"text" for number in range(4)})
    names = [str(number) for number in range(4)]
    columns = {"key": names, "path": [f"{name}.txt" for name in names], "large": pa.array(names, pa.large_string())}
    table = pa.table({**columns, "time": pa.array(range(4), pa.timestamp("s")), "lists": [[1], [], [2, 3], None]})
    options: dict[str, Any] = {"root": str(source), "probe": True, "max_count": 2}
    _pack(table, tmp_path / "out", **options)
    age(tmp_path / "out", source)
    right = read_tree(tmp_path / "out")
    result = _pack(table, tmp_path / "out", resume=True, **options)
    assert result.kept == 2
    assert read_tree(tmp_path / "out") == right


FUNCTION = """
def change(sample):
    return {"__key__": sample["__key__"], "txt": sample["txt"][::-1]}
"""


def test_resume_with_another_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--resume` makes all shards again where the function's source is another, even if the sizes are the same."""
    source = write_tree(tmp_path / "in", {f"{number:03}.txt": b"number %03d" % number for number in range(8)})
    module = tmp_path / "of_resume.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    options: dict[str, Any] = {
        "map": "of_resume:change",
        "max_count": 3,
        "workers": 1,
        "start_method": "fork",
    }  # imports it afresh
    module.write_text(FUNCTION)
    _pack(source, tmp_path / "out", **options)
    age(tmp_path / "out", source)
    assert _pack(source, tmp_path / "out", resume=True, **options).kept == 3
    module.write_text(FUNCTION.replace("[::-1]", ".upper()"))
    del sys.modules["of_resume"]
    assert _pack(source, tmp_path / "out", resume=True, **options).kept == 0
    assert [data for _, data in members(*shards(tmp_path / "out"))] == [b"NUMBER %03d" % number for number in range(8)]
    _pack(source, tmp_path / "fresh", **options)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "fresh")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["content", "size", "gone", "new"])
def test_resume_takes_in_a_changed_source(change: str, tmp_path: Path) -> None:
    """Over a changed source, `--resume` equals a fresh run, and keeps the shards that the change leaves alone."""
    changes: dict[str, object] = {f"{number:03}": 100 + number for number in range(12)}
    source = _told_tree(tmp_path / "in", changes)
    options: dict[str, Any] = {"map": TOLD, "max_count": 3}
    _pack(source, tmp_path / "out", **options)
    age(tmp_path / "out", source)
    while time.time_ns() <= max(path.stat().st_mtime_ns for path in shards(tmp_path / "out")):
        time.sleep(0.01)
    if change == "gone":
        (source / "011.txt").unlink()
    else:
        key, messages = {"content": ("004", 401), "size": ("004", [4, 1]), "new": ("012", 5)}[change]
        _told_tree(source, {key: messages})
    result = _pack(source, tmp_path / "out", resume=True, **options)
    _pack(source, tmp_path / "fresh", **options)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "fresh")
    if change == "content":
        assert result.kept == result.shards - 1


# The flipped bit: in a part of the file, or in the first digit of the value with this name.
FLIPS = ["start", "page head", "keys", "fourth", "half", "consumed", "dropped", "content", "crc32c", "plan", "end"]


@pytest.mark.parametrize("where", FLIPS)
def test_resume_repairs_a_sidecar(where: str, tmp_path: Path) -> None:
    """`--resume` repairs a flipped bit in the sidecar of a finished shard."""
    source = _told_tree(tmp_path / "in", {f"{number:03}": [100 + number, 10] for number in range(6)})
    options: dict[str, Any] = {"map": TOLD, "max_count": 6}
    _pack(source, tmp_path / "out", **options)
    age(tmp_path / "out", source)
    right = read_tree(tmp_path / "out")
    path = tmp_path / "out" / "out-001.index"
    data = bytearray(path.read_bytes())
    places = {"start": 2, "page head": 6, "keys": 51, "fourth": len(data) // 4, "half": len(data) // 2, "end": -1}
    at = places.get(where) or data.index(f"shardtool.{where}".encode()) + len(f"shardtool.{where}") + 2
    data[at] ^= 1
    path.write_bytes(data)
    for _ in range(2):  # repaired by one run, permanently
        _pack(source, tmp_path / "out", resume=True, **options)
        assert read_tree(tmp_path / "out") == right


def test_overwrite_leaves_nothing_stale(pictures: Path, whole: Path, ending: str, copy: Path, tmp_path: Path) -> None:
    """`--overwrite` equals a fresh run, and a plain run on existing output is refused and changes nothing."""
    before = identity(copy)
    with pytest.raises(OutputExists):
        _pack(pictures, copy, ending=ending, **WHOLE)
    assert identity(copy) == before
    options = {**WHOLE, "max_size": "40kB", "ending": ending}
    assert len(shards(copy)) > len(sound(whole / "out.json")) - 1
    _pack(pictures, copy, overwrite=True, **options)
    _pack(pictures, tmp_path / "fresh", **options)
    assert read_tree(copy) == read_tree(tmp_path / "fresh")


# Written samples


def test_the_fingerprint_names_the_content(pictures: Path, tmp_path: Path) -> None:
    """Order, shard sizes, workers and format do not change the fingerprint of changed samples; another quality does."""
    base: dict[str, Any] = {"resize": SIDE, "encode": "jpg", "label_from_folder": True}
    same: list[dict[str, Any]] = [
        {}, {"shuffle": True}, {"max_count": 4}, {"max_size": "9kB", "workers": 2}, {"ending": "tfrecord"},
        {"ending": "tfrecord", "max_size": "9kB", "shuffle": True}, {"quality": 90},
    ]  # fmt: skip
    prints = set()
    for at, more in enumerate(same):
        prints.add(_pack(pictures, tmp_path / str(at), **base, **more).fingerprint)
        sound(tmp_path / str(at) / "out.json")  # recomputes it
    assert len(prints) == 1
    other = _pack(pictures, tmp_path / "other", **base, quality=80)
    assert other.fingerprint not in prints


@pytest.mark.parametrize("options", [{"probe": True}, {"resize": SIDE}, {"resize": SIDE, "encode": "jpg"}])
def test_images_that_need_no_change_pass(options: dict[str, Any], ending: str, tmp_path: Path) -> None:
    """Images that need no change keep their bytes: the shards equal those without transforms."""
    files = {f"{n}.jpg": _picture(SIDE, n, "JPEG", quality=97, comment=b"kept") for n in range(4)}
    files |= {f"{n}.txt": b"caption" for n in range(4)} | {"9.json": b"{}"}
    source = write_tree(tmp_path / "in", files)
    for folder, more in (("out", options), ("plain", {})):
        _pack(source, tmp_path / folder, max_count=2, ending=ending, **more)
    assert [path.read_bytes() for path in shards(tmp_path / "out")] == [
        path.read_bytes() for path in shards(tmp_path / "plain")
    ]
    sound(tmp_path / "out" / "out.json")


def test_probe(ending: str, tmp_path: Path) -> None:
    """`--probe` adds the displayed size and the mode of each image; without an image, nulls."""
    turned = Image.Exif()
    turned[0x0112] = 6
    noise = Image.fromarray(np.zeros((10, 30, 3), np.uint8))
    stream = BytesIO()
    noise.save(stream, "JPEG", exif=turned)
    files = {"a.jpg": stream.getvalue(), "b.txt": b"no image", "c.png": _picture(7, 1, mode="L"), "c.txt": b"one"}
    files |= {"d.png": _picture(5, 1, mode="LA"), "e.txt": b"none"}
    source = write_tree(tmp_path / "in", files)
    _pack(source, tmp_path / "out", probe=True, max_count=2, ending=ending)
    result = {sample.key: sample.columns for shard in sound(tmp_path / "out" / "out.json") for sample in shard}
    assert {key: tuple(columns.values()) for key, columns in result.items()} == {
        "a": (10, 30, "RGB"),
        "b": (None, None, None),
        "c": (7, 7, "L"),
        "d": (5, 5, "LA"),
        "e": (None, None, None),
    }
    assert {tuple(columns) for columns in result.values()} == {("width", "height", "mode")}
    schema = json.loads((tmp_path / "out" / "out.json").read_bytes())["shardtool"]["schema"]
    assert {name: schema[name] for name in ("width", "height", "mode")} == {
        "width": "int32", "height": "int32", "mode": "string"
    }  # fmt: skip


def test_probe_describes_the_written_image(whole: Path) -> None:
    """After a resize, the columns describe the image in the shard."""
    for samples in sound(whole / "out.json"):
        for sample in samples:
            image = Image.open(BytesIO(sample.content["png"]))
            known = {"width": image.width, "height": image.height, "mode": image.mode}
            assert sample.columns == {**known, "cls": int(sample.content["cls"])}


def test_labels_stay_numbers(whole: Path, ending: str) -> None:
    """`--label-from-folder` gives each sample its class, in TFRecord as an int64."""
    result, raw = sound(whole / "out.json"), shards(whole)[-1].read_bytes()
    assert {key[0]: fields["cls"] for key, fields in contents(result).items()} == {"a": b"0", "b": b"1", "c": b"2"}
    told = json.loads((whole / "out.json").read_bytes())["shardtool"]
    assert told["classes"] == {"cls": ["a", "b", "c"]}
    if ending == "tfrecord":
        kinds = {item.name: item.kind for _, data in tfrecords.records(raw) for item in tfrecords.parse_example(data)}
        assert kinds == {
            "__key__": tfrecords.BYTES, "cls": tfrecords.INT64, "png": tfrecords.BYTES, "txt": tfrecords.BYTES
        }  # fmt: skip
        assert told["features"]["cls"] == "tf.io.FixedLenFeature([], tf.int64)"


def test_a_label_that_is_no_number_any_more(tmp_path: Path) -> None:
    """A function that makes a label's number text is told so, by the sample's key, where the format has numbers."""
    files = {"a/1.py": b"{**sample, 'cls': b'7'}", "b/2.py": b"{**sample, 'cls': 'cat'}"}
    source = write_tree(tmp_path / "in", files)
    options: dict[str, Any] = {"map": EVALUATED, "label_from_folder": True}
    with pytest.raises(SampleFailed, match=r"b/2.*cls.*int64"):
        _pack(source, tmp_path / "records", ending="tfrecord", **options)
    _pack(source, tmp_path / "tar", **options)
    result = contents(sound(tmp_path / "tar" / "out.json"))
    assert {key: fields["cls"] for key, fields in result.items()} == {"a/1": b"7", "b/2": b"cat"}


def test_numbers_with_unusual_spelling(tmp_path: Path) -> None:
    """A number with unusual spelling is stored unchanged or refused."""
    source = write_tree(tmp_path / "in", {"a/1.py": b"{**sample, 'cls': b'007'}"})
    try:
        _pack(source, tmp_path / "out", ending="tfrecord", map=EVALUATED, label_from_folder=True)
    except SampleFailed as error:
        assert "cls" in str(error)  # noqa: PT017
        return
    sound(tmp_path / "out" / "out.json")  # the shard determines the fingerprint


def test_a_shuffle_moves_changed_samples(pictures: Path, whole: Path, ending: str, tmp_path: Path) -> None:
    """A shuffled dataset has the same changed samples, each whole, in an order that its seed decides."""
    orders = []
    for at, seed in enumerate((1, 1, 2)):
        _pack(pictures, tmp_path / str(at), ending=ending, shuffle=True, seed=seed, **WHOLE)
        result = sound(tmp_path / str(at) / "out.json", max_size=14_000)
        assert contents(result) == contents(sound(whole / "out.json"))
        orders.append([sample.key for samples in result for sample in samples])
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in (orders[0], orders[2], sorted(orders[0]))}) == 3


def test_portable_names_and_their_originals(tmp_path: Path) -> None:
    """`--portable` names are those of the shard, for any image format, and sidecars keep the originals."""
    names = ["a b/ü.png", "a b/ü.txt", "plain.png"]
    source = write_tree(tmp_path / "in", {name: _picture(9, 1) if name.endswith("g") else b"text" for name in names})
    _pack(source, tmp_path / "out", portable=True, resize=5, encode="jpg")
    _pack(source, tmp_path / "plain", portable=True)
    result = [
        [sample for shard in sound(tmp_path / name / "out.json") for sample in shard] for name in ("out", "plain")
    ]
    assert [sample.key for sample in result[0]] == [sample.key for sample in result[1]]
    assert [sample.columns["source_paths"] for sample in result[0]] == [["a b/ü.png", "a b/ü.txt"], ["plain.png"]]
    assert [set(sample.content) for sample in result[0]] == [{"jpg", "txt"}, {"jpg"}]


@pytest.mark.parametrize("option", ["image", "mask"])
def test_a_field_that_no_sample_has(option: str, pictures: Path, tmp_path: Path) -> None:
    """An image field that no sample has, a slip of the pen, is refused or told: else nothing would be resized."""
    try:
        result = _pack(pictures, tmp_path, resize=SIDE, **{option: ("pgn",)})
    except InvalidRequest as error:
        assert "pgn" in str(error)  # noqa: PT017
        return
    assert any("pgn" in note for note in result.notes)


# The user's function


# Return values of a function for the sample `key`, and the written samples.
RETURNED: dict[str, dict[str, dict[str, bytes]]] = {
    "sample": {"00": {"py": b"sample"}},
    "{'__key__': key, 'a': b'1', 'b.c': b'2'}": {"01": {"a": b"1", "b.c": b"2"}},
    "{'a': 'ä', 'b': 7, 'c': 0.5, 'd': True, 'e': np.int64(3)}": {
        "02": {"a": "ä".encode(), "b": b"7", "c": b"0.5", "d": b"1", "e": b"3"}
    },
    "{'__key__': 'new/' + key, 'a': b''}": {"new/03": {"a": b""}},
    "[{'a': b'1'}, {'__key__': 'x', 'a': b'2'}]": {"04-0": {"a": b"1"}, "x": {"a": b"2"}},
    "({'a': text} for text in ('1', '2'))": {"05-0": {"a": b"1"}, "05-1": {"a": b"2"}},
    "{'e': bytearray(b'x'), 'f': memoryview(b'yz')}": {"06": {"e": b"x", "f": b"yz"}},
    "None": {},
    "[]": {},
}


def _expressions(folder: Path, texts: Iterable[str]) -> Path:
    return write_tree(folder, {f"{at:02}.py": text.encode() for at, text in enumerate(texts)})


def test_return_values_are_written(ending: str, tmp_path: Path) -> None:
    """A dict is a sample, a list several, None drops it; keys may be new; values are bytes, text or numbers."""
    source = _expressions(tmp_path / "in", RETURNED)
    result = _pack(source, tmp_path / "out", map=EVALUATED, ending=ending)
    right = {key: fields for made in RETURNED.values() for key, fields in made.items()}
    assert contents(sound(tmp_path / "out" / "out.json")) == right
    assert (result.samples, result.skipped, result.dropped) == (len(right), 0, 2)


@pytest.mark.parametrize("text", ["np.arange(3, dtype='<u4').data", "memoryview(bytes(range(24)))[::2]"])
def test_memory_is_written_whole(text: str, ending: str, tmp_path: Path) -> None:
    """A memoryview is written byte for byte, for any item type and strides."""
    source = _expressions(tmp_path / "in", [f"{{'a': {text}}}"])
    _pack(source, tmp_path / "out", map=EVALUATED, ending=ending)
    right = np.arange(3, dtype="<u4").tobytes() if "u4" in text else bytes(range(0, 24, 2))
    assert contents(sound(tmp_path / "out" / "out.json")) == {"00": {"a": right}}


def test_a_function_may_use_its_buffer_again(ending: str, tmp_path: Path) -> None:
    """What a function returned is written as it was then, though its memory holds the next sample by now."""
    code = b"__import__('sys').__dict__.setdefault('_of_test', bytearray(9))"
    texts = [b"(%b.__setitem__(slice(0, 9), b'%09d'), {'a': memoryview(%b)})[1]" % (code, n, code) for n in range(5)]
    source = write_tree(tmp_path / "in", {f"{n}.py": text for n, text in enumerate(texts)})
    _pack(source, tmp_path / "out", map=EVALUATED, ending=ending)
    result = contents(sound(tmp_path / "out" / "out.json"))
    assert {key: fields["a"] for key, fields in result.items()} == {str(n): b"%09d" % n for n in range(5)}


BAD = ["5", "'text'", "{}", "{'a': None}", "{'a': object()}", "{'__key__': '../x', 'a': b''}", "{'a/b': b''}"]
WORSE = ["{'__key__': '\\ud800', 'a': b''}", "{'a': '\\ud800'}", "{str(n): b'' for n in range(2 ** 16)}"]


@pytest.mark.parametrize("text", ["{'a': None}", *WORSE])
def test_invalid_return_values(text: str, tmp_path: Path) -> None:
    """An invalid value fails the run with the key of its sample, and no shard is published."""
    source = _expressions(tmp_path / "in", ["{'x': b'fine'}", text])
    with pytest.raises(SampleFailed, match=r"^01: the function of --map returned"):
        _pack(source, tmp_path / "out", map=EVALUATED)
    assert not shards(tmp_path / "out")


@pytest.mark.parametrize("texts", [BAD, WORSE], ids=["bad", "worse"])
def test_what_no_function_may_return_is_skipped(texts: list[str], ending: str, tmp_path: Path) -> None:
    """Under `--on-error skip`, all such samples are listed, and the others are written."""
    source = _expressions(tmp_path / "in", [*texts, "{'x': b'fine'}"])
    result = _pack(source, tmp_path / "out", map=EVALUATED, on_error="skip", ending=ending)
    rows = skipped(tmp_path / "out" / "out.json")
    assert [(row["key"], row["code"]) for row in rows] == [(f"{at:02}", "map-failed") for at in range(len(texts))]
    assert contents(sound(tmp_path / "out" / "out.json")) == {f"{len(texts):02}": {"x": b"fine"}}
    assert (result.samples, result.skipped) == (1, len(texts))


def test_fields_that_differ_only_in_case(tmp_path: Path) -> None:
    """In a tar, results of `--map` and `--encode` whose fields differ only in case are refused, as in a source."""
    texts = ["{'txt': b'', 'TXT': b'', 'a': b''}", "{'txt': b''}"]
    source = _expressions(tmp_path / "in", texts)
    with pytest.raises(SampleFailed, match=r"^00: fields that differ only in case: TXT, txt"):
        _pack(source, tmp_path / "out", map=EVALUATED)
    _pack(source, tmp_path / "skip", map=EVALUATED, on_error="skip")
    assert [(row["key"], row["code"]) for row in skipped(tmp_path / "skip" / "out.json")] == [("00", "field-clash")]
    assert _pack(source, tmp_path / "records", ending="tfrecord", map=EVALUATED).samples == 2
    images = write_tree(tmp_path / "images", {"a.png": _picture(8, 1), "a.JPG": _picture(8, 2, "JPEG")})
    with pytest.raises(SampleFailed, match=r"^a: fields that differ only in case: JPG, jpg"):
        _pack(images, tmp_path / "encoded", encode="jpg")


def test_a_key_that_readers_tear(tmp_path: Path) -> None:
    """A key with a dot, which readers of tars would end there, is refused, or the user is told."""
    source = write_tree(tmp_path / "in", {f"{n}.py": b"{'__key__': f'scan.{key}', 'a': b''}" for n in range(2)})
    try:
        result = _pack(source, tmp_path / "out", map=EVALUATED)
    except SampleFailed as error:
        assert "scan.0" in str(error)  # noqa: PT017
        return
    assert any("dot" in note and "scan.0" in note for note in result.notes)


@pytest.mark.parametrize("count", [1, 4])
def test_a_key_twice_is_refused(count: int, tmp_path: Path) -> None:
    """Two samples with one key, in one shard or far apart, are an error that names it; no dataset is made."""
    files = {f"{number}.py": b"{'a': b''}" for number in range(8)} | {"0.py": b"{'__key__': 'same', 'a': b''}"}
    files["7.py"] = files["0.py"]
    source = write_tree(tmp_path / "in", files)
    for if_exists in ("error", "resume"):
        with pytest.raises(SampleFailed, match=r"^same: .*two samples"):
            _pack(source, tmp_path / "out", map=EVALUATED, max_count=8 // count, **existing(if_exists))
        assert not (tmp_path / "out" / "out.json").exists()
        if shards(tmp_path / "out"):
            age(tmp_path / "out", source)
    files["7.py"] = b"{'__key__': '3', 'a': b''}"  # like one that keeps its key
    write_tree(source, files)
    with pytest.raises(SampleFailed, match=r"^(same|3): "):
        _pack(source, tmp_path / "out", map=EVALUATED, max_count=8 // count, overwrite=True)


def test_dropped_samples_are_counted(ending: str, tmp_path: Path) -> None:
    """What a function drops is neither written nor left out: in is written, left out and dropped together."""
    changes: dict[str, object] = {f"{number:02}": None if number < 6 or number % 3 else 40 for number in range(12)}
    source = _told_tree(tmp_path / "in", changes)
    (source / "11.txt").write_bytes(b"no JSON")
    options: dict[str, Any] = {"map": TOLD, "max_count": 3, "on_error": "skip", "ending": ending}
    result = _pack(source, tmp_path / "out", **options)
    assert (result.samples, result.dropped, result.skipped) == (2, 9, 1)
    assert set(contents(sound(tmp_path / "out" / "out.json", max_count=3))) == {"06", "09"}
    right = read_tree(tmp_path / "out")
    age(tmp_path / "out", source)
    (tmp_path / "out" / "out.json").unlink()
    again = _pack(source, tmp_path / "out", resume=True, **options)
    assert (again.samples, again.dropped, again.skipped) == (2, 9, 1)
    assert read_tree(tmp_path / "out") == right


def test_a_function_that_drops_all(tmp_path: Path) -> None:
    """A dataset without samples is an error, which says that the function dropped them."""
    source = _told_tree(tmp_path / "in", {"a": None, "b": None})
    with pytest.raises(SampleFailed, match=r"map|drop"):
        _pack(source, tmp_path / "out", map=TOLD)
    assert not (tmp_path / "out" / "out.json").exists()


RAISES = """
def inner(sample):
    return 1 / int(sample["txt"])

def change(sample):
    inner(sample)
    return sample
"""


def test_an_exception_of_a_function(tmp_path: Path) -> None:
    """An exception ends the run with 6, the sample's key, the exception, and the traceback of the user's lines only."""
    write_tree(tmp_path / "in", {"a.txt": b"1", "b.txt": b"0", "c.txt": b"2"})
    (tmp_path / "mine.py").write_text(RAISES)
    words = ["create", "in", f"{STEM}.tar", "--map", "mine:change", "--workers", "0", "--json", "--quiet"]
    ran = _run(tmp_path, *words)
    assert ran.returncode == 6
    error = json.loads(ran.stdout)["error"]
    assert (error["code"], error["where"]) == ("sample-failed", "b")
    assert "ZeroDivisionError: division by zero" in error["found"]
    assert [line.strip() for line in error["detail"].splitlines() if line.strip().startswith("File ")] == [
        f'File "{tmp_path}/mine.py", line 6, in change',
        f'File "{tmp_path}/mine.py", line 3, in inner',
    ]
    assert not [name for name in os.listdir(tmp_path) if name.startswith(("out", ".out"))]
    ran = _run(tmp_path, *words[:-2])
    assert (ran.returncode, ran.stdout) == (6, "")
    assert [line for line in ran.stderr.splitlines() if line.startswith("shardtool: b: ")]
    assert ran.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def _run(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the tool where a traceback is what the user should see."""
    return subprocess.run(
        [sys.executable, "-m", "shardtool", *words], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def test_exceptions_that_are_skipped(ending: str, tmp_path: Path) -> None:
    """Under `--on-error skip`, samples at which the function raised are left out and listed with the reason."""
    changes: dict[str, object] = {f"{number:03}": 50 for number in range(10)}
    source = _told_tree(tmp_path / "in", changes)
    write_tree(source, {"002.txt": b"no JSON", "009.txt": b"[1, ", "005.txt": b"5"})
    options: dict[str, Any] = {"map": TOLD, "max_count": 4, "on_error": "skip", "ending": ending}
    result = _pack(source, tmp_path / "out", **options)
    actual = sound(tmp_path / "out" / "out.json", max_count=4)
    rows = skipped(tmp_path / "out" / "out.json")
    assert [(row["key"], row["code"]) for row in rows] == [("002", "map-failed"), ("009", "map-failed")]
    assert all("JSONDecodeError" in row["message"] for row in rows)
    assert sorted(contents(actual)) == sorted({*changes} - {"002", "009"})
    assert (result.samples, result.skipped, result.dropped) == (8, 2, 0)
    _pack(source, tmp_path / "out", resume=True, **{**options, "workers": 2})
    _pack(source, tmp_path / "fresh", **options)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "fresh")


EXITS = "import sys\nsys.exit('usage: a script without a main guard')\n"
MISSING: dict[str, tuple[str, str]] = {
    "no_such_module:change": ("", "no_such_module"),
    "of_missing:no_such": ("def change(sample): return sample\n", "no_such"),
    "of_missing:CONSTANT": ("CONSTANT = 5\n", "function"),
    "of_missing": ("def change(sample): return sample\n", "package.module:function"),
    "of_missing.py:change": ("def change(sample): return sample\n", "package.module:function"),
    ":change": ("", "package.module:function"),
    "of_missing:": ("", "package.module:function"),
    "": ("", "package.module:function"),
    "..:change": ("", "cannot import"),
    "of_missing:raises": ("1 / 0\n", "ZeroDivisionError"),
    "of_missing:half": ("def change(sample)\n", "SyntaxError"),
    "of_missing:exits": (EXITS, "of_missing"),
    "os.path.nowhere:x": ("", "os.path.nowhere"),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_function(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that cannot be imported is an error of the request, and creates not even a folder."""
    source = write_tree(tmp_path / "in", {"a.txt": b"1"})
    text, message = MISSING[name]
    (tmp_path / "of_missing.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "of_missing", raising=False)
    with pytest.raises(InvalidRequest, match=f"map.*{re.escape(message)}"):
        _pack(source, tmp_path / "out", map=name)
    assert not (tmp_path / "out").exists()


def test_a_missing_function_on_the_command_line(tmp_path: Path) -> None:
    """It is exit code 2 there, in one line."""
    write_tree(tmp_path / "in", {"a.txt": b"1"})
    ran = tool("create", "in", f"out/{STEM}.tar", "--map", "nowhere:change", cwd=tmp_path)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
    assert sorted(os.listdir(tmp_path)) == ["in"]


UPPER = "def change(sample):\n    return {**sample, 'txt': sample['txt'].upper()}\n"
SCRIPT = """
import sys
from shardtool import CreateOptions, create

start = sys.argv[3]
create(sys.argv[1], sys.argv[2], CreateOptions(workers=2, start_method=start, map="beside.me:change"))
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_module_in_the_current_folder(start: str, tmp_path: Path) -> None:
    """A module in the current folder, or a package there, is found by the command line, however it was installed."""
    write_tree(tmp_path / "in", {"a.txt": b"text"})
    write_tree(tmp_path / "here" / "package", {"__init__.py": b"", "module.py": UPPER.encode()})
    entry = write_tree(tmp_path / "bin", {"shardtool": b"from shardtool.cli import main\nmain()\n"}) / "shardtool"
    words = ["create", "../in", f"../out/{STEM}.tar", "--map", "package.module:change", "--start-method", start]
    done = subprocess.run(
        [sys.executable, str(entry), *words], cwd=tmp_path / "here", env=ENVIRONMENT, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert members(*shards(tmp_path / "out")) == [("a.txt", b"TEXT")]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_module_beside_a_script(start: str, tmp_path: Path) -> None:
    """A module next to a script is found by spawned workers, too."""
    write_tree(tmp_path / "in", {"a.txt": b"text"})
    place = write_tree(tmp_path / "code", {"script.py": SCRIPT.encode(), "beside/me.py": UPPER.encode()})
    done = subprocess.run(
        [sys.executable, str(place / "script.py"), tmp_path / "in", f"{tmp_path}/out/{STEM}.tar", start],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.splitlines()[-1]
    assert members(*shards(tmp_path / "out")) == [("a.txt", b"TEXT")]


LOUD = """
print("imported")

def change(sample):
    print("called " * 2000)
    return sample
"""


def test_a_function_that_prints(tmp_path: Path) -> None:
    """What the user's module prints does not mix with the one document on stdout."""
    write_tree(tmp_path / "in", {"a.txt": b"1", "b.txt": b"2"})
    (tmp_path / "loud.py").write_text(LOUD)
    words = ["create", "in", f"out/{STEM}.tar", "--map", "loud:change", "--json", "--workers", "0"]
    ran = tool(*words, cwd=tmp_path)
    assert ran.code == 0
    assert json.loads(ran.out)["samples"] == 2


# Images that cannot be changed


def _bomb() -> bytes:
    """Return a PNG whose header promises 40,000 x 40,000 pixels."""
    data = bytearray(_picture(8, 1))
    data[16:24] = struct.pack(">II", 40_000, 40_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


def _film() -> bytes:
    frames = [Image.new("RGB", (9, 9), (shade, 0, 0)) for shade in (0, 99, 200)]
    stream = BytesIO()
    frames[0].save(stream, "PNG", save_all=True, append_images=frames[1:])
    return stream.getvalue()


# Of a sample k with a caption: the field and its bytes, and the code.
BROKEN: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "cut off": ("jpg", lambda: _picture(64, 1, "JPEG")[:2000], "truncated-image"),
    "cut off png": ("png", lambda: _picture(64, 1)[:2000], "truncated-image"),
    "a bomb": ("png", _bomb, "image-too-large"),
    "text": ("jpg", lambda: b"no image at all", "bad-image"),
    "empty": ("webp", lambda: b"", "bad-image"),
    "noise": ("png", lambda: bytes(range(256)) * 9, "bad-image"),
    "a film": ("png", _film, "animated-image"),
}


def _broken(folder: Path, names: Iterable[str]) -> tuple[Path, dict[str, str]]:
    """Write broken images between whole ones; return the broken ones' paths with their codes."""
    files = {f"a/{n}.png": _picture(30, n) for n in range(3)} | {f"a/{n}.caption.txt": b"caption" for n in range(20)}
    codes = {}
    for at, (field, made, code) in enumerate((BROKEN[name] for name in names), 10):
        files[f"a/{at}.{field}"], codes[f"a/{at}.{field}"] = made(), code
    return write_tree(folder, files), codes


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_image(name: str, tmp_path: Path) -> None:
    """An image that cannot be changed is an error with its file name, and no shard is published."""
    source, codes = _broken(tmp_path / "in", [name])
    with pytest.raises(SampleFailed) as caught:
        _pack(source, tmp_path / "out", resize=8, label_from_folder=True)
    assert [caught.value.where] == [f"{source}/{path}" for path in codes]
    assert not shards(tmp_path / "out")


def test_broken_images_are_skipped(ending: str, tmp_path: Path) -> None:
    """Under `--on-error skip` they are listed, each with its code, and all else is written."""
    source, codes = _broken(tmp_path / "in", BROKEN)
    options: dict[str, Any] = {"resize": 8, "label_from_folder": True, "on_error": "skip", "ending": ending}
    result = _pack(source, tmp_path / "out", **options)
    rows = skipped(tmp_path / "out" / "out.json")
    assert {row["path"]: row["code"] for row in rows} == codes
    assert [row["key"] for row in rows] == [path.partition(".")[0] for path in codes]
    actual = contents(sound(tmp_path / "out" / "out.json"))
    assert (len(actual), result.samples, result.skipped) == (20 - len(codes), 20 - len(codes), len(codes))


def test_broken_images_from_the_command_line(tmp_path: Path) -> None:
    """They are exit code 6, in one line with the file's name, and 0 with `--on-error skip`."""
    write_tree(tmp_path / "in", {"a.png": _picture(30, 1), "b.png": _picture(30, 2)[:500], "c.png": b"text"})
    words = ["create", "in", f"{STEM}.tar", "--resize", "9"]
    ran = typed(*words, "--quiet", "--workers", "0", cwd=tmp_path)
    assert (ran.code, len(ran.err.splitlines())) == (6, 1)
    assert re.search("in/b.png: .*the image ends too early", ran.err)
    assert os.listdir(tmp_path) == ["in"]
    ran = typed(*words, "--on-error", "skip", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert [(row["path"], row["code"]) for row in skipped(tmp_path / "out.json")] == [
        ("b.png", "truncated-image"), ("c.png", "bad-image")
    ]  # fmt: skip


def test_a_broken_image_that_is_not_decoded(tmp_path: Path) -> None:
    """Images that no option decodes are not checked: masks excluded by `--image`, and all with `--map` alone."""
    files = {"a.jpg": _picture(30, 1, "JPEG"), "a.png": b"no image", "a.py": b"sample"}
    source = write_tree(tmp_path / "in", files)
    _pack(source, tmp_path / "image", resize=9, image=("jpg",))
    _pack(source, tmp_path / "map", map=EVALUATED)
    for name in ("image", "map"):
        assert contents(sound(tmp_path / name / "out.json"))["a"]["png"] == b"no image"


def test_two_fields_that_become_one(tmp_path: Path) -> None:
    """Two images of one sample that both become `jpg` are an error by name: neither takes the other's place."""
    source = write_tree(tmp_path / "in", {"a.png": _picture(30, 1), "a.webp": _picture(30, 1, "WEBP")})
    with pytest.raises(SampleFailed, match=r"a\.(png|webp): .*'jpg'"):
        _pack(source, tmp_path / "out", encode="jpg")
    assert not shards(tmp_path / "out")


class _Changer(Observer):
    """Does something to a file when the plan is made, before it is packed."""

    def __init__(self, path: Path, change: Callable[[Path], object]) -> None:
        self._path, self._change = path, change

    def start(self, samples: int, size: int, shards: int) -> None:  # noqa: ARG002 - an observer's
        self._change(self._path)


def _to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


LATE: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (Path.unlink, "vanished"),
    "shorter": (lambda path: path.write_bytes(b""), "changed"),
    "longer": (lambda path: path.write_bytes(bytes(9999)), "changed"),
    "a folder": (_to_folder, "unreadable|changed"),
}


@pytest.mark.parametrize("name", LATE)
@pytest.mark.parametrize("field", ["png", "txt"])
def test_a_file_that_changes_while_it_is_packed(name: str, field: str, tmp_path: Path) -> None:
    """A file that is not what the plan saw is named, whichever of its sample's it is; or its sample is left out."""
    change, code = LATE[name]
    source = write_tree(tmp_path / "in", {f"{n}.{kind}": _picture(9, n) for n in range(3) for kind in ("png", "txt")})
    path, data = source / f"1.{field}", (source / f"1.{field}").read_bytes()
    output = f"{tmp_path}/out/{STEM}.tar"
    options: dict[str, Any] = {"workers": 0, "resize": 5}
    with pytest.raises(SampleFailed) as caught:
        create(source, output, CreateOptions(**options), observer=_Changer(path, change))
    assert caught.value.where == str(path)
    if path.is_dir():
        path.rmdir()
    path.write_bytes(data)
    observer = _Changer(path, change)
    result = create(source, output, CreateOptions(**options, on_error="skip"), observer=observer)
    assert (result.samples, result.skipped) == (2, 1)
    ((row),) = skipped(tmp_path / "out" / "out.json")
    assert (row["key"], row["path"]) == ("1", f"1.{field}")
    assert row["code"] in code.split("|")
    assert set(contents(sound(tmp_path / "out" / "out.json"))) == {"0", "2"}


@pytest.mark.parametrize(
    ("text", "reason", "fix"),
    [("null", "dropped by the function 1", "Fix the cause"), ("x", "map-failed 1", "Run it without on_error='skip'")],
)
def test_a_split_without_samples_is_named(text: str, reason: str, fix: str, tmp_path: Path) -> None:
    """If `--map` leaves no sample of a split, the error names the split and the option that completes the others."""
    source = write_tree(tmp_path / "in", {"a/1.txt": b"9", "b/2.txt": text.encode()})
    options: Any = {"split_by": "folder", "map": TOLD, "on_error": "skip", "workers": 0}
    with pytest.raises(SampleFailed) as caught:
        create(source, f"{tmp_path}/out/{{split}}-{{0..}}.tar", **options)
    assert caught.value.found == f"none of 1 sample of the split b could be packed: {reason}"
    assert caught.value.remedy.startswith(fix)
    assert "This run left no files" not in caught.value.remedy
    (source / "b/2.txt").write_bytes(b"7")
    rerun: Any = {"overwrite": True} if "overwrite=True" in caught.value.remedy else {"resume": True}
    assert create(source, f"{tmp_path}/out/{{split}}-{{0..}}.tar", **options, **rerun).samples == 2
