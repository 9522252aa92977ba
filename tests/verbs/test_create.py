from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import crc32c
import pytest

from shardtool import CreateOptions, InvalidRequest, Observer, OutputExists, create
from tests.helpers import (
    ENVIRONMENT,
    existing,
    flip,
    identity,
    members,
    read_tree,
    shards,
    sidecar,
    tool,
    typed,
    write_tree,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEM = "out-{000..}"
PATTERN = f"{STEM}.tar"
_SECOND_NS = 10**9


def _pack(source: Path, folder: Path, **options: Any) -> dict[str, Any]:
    """Pack with one worker into tar, three samples a shard, unless told otherwise; return what `--json` would print."""
    ending = options.pop("ending", "tar")
    changes: dict[str, Any] = {"workers": 0, "max_count": 3, **options}
    return create(source, f"{folder}/{STEM}.{ending}", CreateOptions(**changes)).to_json()


@pytest.fixture(scope="session")
def whole(awkward: Path, ending: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give what one worker makes of the awkward tree."""
    folder = tmp_path_factory.mktemp("whole")
    _pack(awkward, folder, ending=ending)
    return folder


def test_every_byte_comes_back(awkward: Path, whole: Path) -> None:
    """Every file of the source is in the shards, whole, once, in the order of the bytes of key and field."""
    files, source = members(*shards(whole)), read_tree(awkward)
    assert dict(files) == source
    assert [name for name, _ in files] == sorted(source, key=_key_and_field)


def _key_and_field(name: str) -> tuple[bytes, bytes]:
    folder, slash, file = name.rpartition("/")
    stem, _, field = file.partition(".")
    return f"{folder}{slash}{stem}".encode(), field.encode()


@pytest.mark.parametrize(("workers", "start"), [(1, "fork"), (5, "fork"), (2, "spawn"), (5, "auto")])
def test_the_same_bytes(workers: int, start: str, *, ending: str, awkward: Path, whole: Path, tmp_path: Path) -> None:
    """Any number of workers, forked or spawned, writes the same bytes into every file."""
    output = tmp_path / f"{STEM}.{ending}"
    ran = (tool if start == "auto" else typed)(
        "create", awkward, output, "--max-count", "3", "--workers", str(workers), "--start-method", start
    )
    assert ran.code == 0, ran.err
    assert read_tree(tmp_path) == read_tree(whole)


@pytest.mark.parametrize("options", [{}, {"max_size": "1.2MB"}, {"max_count": 2, "shards_multiple_of": 4},
                                     {"max_count": 5, "equal_count": True, "shuffle": True, "seed": 3}])  # fmt: skip
def test_a_dry_run_tells_what_is_then_written(
    options: dict[str, Any], ending: str, awkward: Path, tmp_path: Path
) -> None:
    """A dry run writes nothing, and tells name, samples and bytes of each shard that is then written."""
    changes = CreateOptions(workers=0, **options)
    plan = create(awkward, f"{tmp_path}/{STEM}.{ending}", changes, dry_run=True)
    assert os.listdir(tmp_path) == []
    create(awkward, f"{tmp_path}/{STEM}.{ending}", changes)
    listed = json.loads((tmp_path / "out.json").read_bytes())["shardlist"]
    assert [(item.name, item.samples, item.size, item.first_key, item.last_key) for item in plan.planned] == [
        (item["url"], item["nsamples"], item["filesize"], item["first_key"], item["last_key"]) for item in listed
    ]
    assert [item.size for item in plan.planned] == [shard.stat().st_size for shard in shards(tmp_path)]


@pytest.mark.parametrize("left", ["everything", "a shard", "a sidecar", "out.json", "out.skipped"])
def test_existing_output_is_refused_and_untouched(left: str, small: Path, tmp_path: Path) -> None:
    """If any file of the dataset exists, a plain run is refused, and changes nothing."""
    folder = tmp_path / "out"
    names = {"everything": [], "a shard": ["out-001.tar"], "a sidecar": ["out-777.index"]}.get(left, [left])
    if names:
        write_tree(folder, dict.fromkeys(names, b"somebody's"))
    else:
        _pack(small, folder)
    before, bytes_before = identity(folder), read_tree(folder)
    with pytest.raises(OutputExists, match=r"overwrite=True|not a shardtool dataset file"):
        _pack(small, folder)
    assert (identity(folder), read_tree(folder)) == (before, bytes_before)


def test_overwrite_leaves_nothing_stale(small: Path, tmp_path: Path) -> None:
    """`--overwrite` with fewer shards equals a fresh run, and keeps files that do not belong to the dataset."""
    _pack(small, tmp_path / "out", max_count=1, oversize="skip", max_size="3kB")
    assert (tmp_path / "out" / "out.skipped").exists()
    foreign = {"out-24.tar": b"1", "out.txt": b"2", "other-000.tar": b"3", "out-000.tar.bak": b"4", ".out-x.part": b"5"}
    write_tree(tmp_path / "out", foreign)
    _pack(small, tmp_path / "out", overwrite=True)
    _pack(small, tmp_path / "fresh")
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "fresh") | foreign


def test_overwrite_where_nothing_is(small: Path, tmp_path: Path) -> None:
    """`--overwrite` and `--resume` of nothing are a plain run."""
    for how in ("error", "overwrite", "resume"):
        assert _pack(small, tmp_path / how, **existing(how))["kept"] == 0
    assert read_tree(tmp_path / "error") == read_tree(tmp_path / "overwrite") == read_tree(tmp_path / "resume")


@pytest.mark.parametrize(
    ("deleted", "age"),
    [
        (["out-001.shard"], "young"),
        (["out-001.shard"], "aged"),
        (["out-001.shard", "out-001.index"], "aged"),
        (["out-002.index"], "young"),
        (["out-002.index"], "aged"),
        (["out.json"], "young"),
        (["out-000.shard", "out-003.index", "out.json"], "aged"),
        (["out-000.shard", "out-001.shard", "out-002.shard", "out-003.shard"], "young"),
        ([], "young"),
        ([], "aged"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_resume_writes_missing_files(deleted: list[str], age: str, ending: str, small: Path, tmp_path: Path) -> None:
    """`--resume` writes missing files with the same bytes, and changes no finished file."""
    deleted = [name.replace("shard", ending) for name in deleted]
    _pack(small, tmp_path / "out", ending=ending)
    if age == "aged":
        _age(tmp_path / "out", small)
    right, before = read_tree(tmp_path / "out"), identity(tmp_path / "out")
    for name in deleted:
        (tmp_path / "out" / name).unlink()
    told = _pack(small, tmp_path / "out", resume=True, ending=ending)
    assert read_tree(tmp_path / "out") == right
    after = identity(tmp_path / "out")
    rewritten = {name for name in after if after[name] != before[name]}
    allowed = {*deleted, *(["out.json"] if deleted else []), *map(sidecar, deleted)}
    assert {name for name in deleted if name.endswith(ending)} <= rewritten <= allowed
    assert told["kept"] == 4 - sum(name.endswith(ending) for name in deleted)


def _age(folder: Path, source: Path) -> int:
    """Make the shards look as though the source had been old when they were packed; return from when on it is not."""
    changed = max(path.lstat().st_ctime_ns for path in [source, *source.rglob("*")])
    for shard in shards(folder):
        own = shard.stat().st_mtime_ns % _SECOND_NS
        until = (changed // _SECOND_NS + 1) * _SECOND_NS + own
        os.utime(shard, ns=(until, until))
    return until


def _rewrite_unseen(path: Path) -> None:
    fact = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(fact.st_atime_ns, fact.st_mtime_ns))


def _replace_unseen(path: Path) -> None:
    other = path.with_name("other~")
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "much longer": lambda path: path.write_bytes(bytes(5000)),
    "shorter": lambda path: path.write_bytes(b""),
    "same size": lambda path: path.write_bytes(path.read_bytes()[::-1]),
    "same size and time": _rewrite_unseen,
    "moved into place": _replace_unseen,
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
@pytest.mark.parametrize("age", ["young", "aged"])
@pytest.mark.parametrize("change", CHANGES)
def test_resume_takes_in_a_changed_file(change: str, age: str, ending: str, small: Path, tmp_path: Path) -> None:
    """Over a source with a changed file, `--resume` rewrites its shard alone, and equals a fresh run."""
    _pack(small, tmp_path / "out", ending=ending)
    until = _age(tmp_path / "out", small) if age == "aged" else 0
    before = identity(tmp_path / "out")
    while time.time_ns() <= until:
        time.sleep(0.01)
    CHANGES[change](small / "a" / "008.txt")
    told = _pack(small, tmp_path / "out", resume=True, ending=ending)
    after = identity(tmp_path / "out")
    changed = {f"out-001.{ending}", "out-001.index", "out.json"}
    assert {name for name in after if after[name] != before[name]} == changed
    assert told["kept"] == 3
    _pack(small, tmp_path / "fresh", ending=ending)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "fresh")


@pytest.mark.parametrize("what", ["added at the end", "removed at the end", "added at the start", "field", "renamed"])
def test_resume_takes_in_another_listing(what: str, ending: str, small: Path, tmp_path: Path) -> None:
    """Over a source with more, fewer or other files, `--resume` equals a fresh run, without stale files."""
    _pack(small, tmp_path / "out", ending=ending)
    if what == "added at the end":
        write_tree(small, {"z/0.txt": b"z", "z/1.txt": b"z"})
    elif what == "removed at the end":
        shutil.rmtree(small / "b")
    elif what == "added at the start":
        write_tree(small, {"0/0.txt": b"0"})
    elif what == "field":
        (small / "a" / "000.bin").unlink()
    else:
        (small / "a" / "000.txt").rename(small / "a" / "000.text")
    _pack(small, tmp_path / "out", resume=True, ending=ending, max_removed="50%")
    _pack(small, tmp_path / "fresh", ending=ending)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "fresh")


@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
@pytest.mark.parametrize(
    "options",
    [
        {"max_count": 5},
        {"max_count": 100},
        {"shuffle": True},
        {"label_from_folder": True},
        {"portable": True},
        {"include": ("*.txt",)},
    ],
)
def test_resume_with_other_options(options: dict[str, Any], ending: str, small: Path, tmp_path: Path) -> None:
    """`--resume` with other options is refused; with `--overwrite` it equals a fresh run, without stale files."""
    _pack(small, tmp_path / "out", ending=ending)
    before = read_tree(tmp_path / "out")
    with pytest.raises(OutputExists, match=r"[a-z_]+ differs: .* before, now "):
        _pack(small, tmp_path / "out", resume=True, ending=ending, **options)
    assert read_tree(tmp_path / "out") == before
    _pack(small, tmp_path / "out", resume=True, overwrite=True, ending=ending, **options)
    _pack(small, tmp_path / "fresh", ending=ending, **options)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "fresh")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["tar"], indirect=True)  # the mechanism does not know the format
@pytest.mark.parametrize("age", ["young", "aged"])
@pytest.mark.parametrize("name", ["out-001.shard", "out-002.index", "out.json"])
@pytest.mark.parametrize("at", [0, 300, -1])
def test_resume_mends_a_flipped_byte(name: str, at: int, age: str, *, ending: str, small: Path, tmp_path: Path) -> None:
    """A byte that was flipped in a finished file, unseen by its times, is mended by `--resume`, and nothing else."""
    name = name.replace("shard", ending)
    _pack(small, tmp_path / "out", ending=ending, label_from_folder=True)
    if age == "aged":
        _age(tmp_path / "out", small)
    right, before, path = read_tree(tmp_path / "out"), identity(tmp_path / "out"), tmp_path / "out" / name
    fact = path.stat()
    flip(path, at)
    os.utime(path, ns=(fact.st_atime_ns, fact.st_mtime_ns))
    assert read_tree(tmp_path / "out") != right
    _pack(small, tmp_path / "out", resume=True, ending=ending, label_from_folder=True)
    assert read_tree(tmp_path / "out") == right
    after = identity(tmp_path / "out")
    assert name in {name for name in after if after[name] != before[name]} <= {name, sidecar(name), "out.json"}


def test_resume_checks_copied_shards(small: Path, tmp_path: Path) -> None:
    """A shard that was copied or extracted is kept only if its bytes are correct, whatever its times."""
    _pack(small, tmp_path / "out")
    other = write_tree(tmp_path / "other", {name: data[::-1] for name, data in read_tree(small).items()})
    _pack(other, tmp_path / "theirs")
    for name in ("out-001.tar", "out-001.index"):
        shutil.copy2(tmp_path / "theirs" / name, tmp_path / "out" / name)
    told = _pack(small, tmp_path / "out", resume=True)
    _pack(small, tmp_path / "fresh")
    assert told["kept"] == 3
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "fresh")


def test_skipped_and_written_add_up(ending: str, small: Path, tmp_path: Path) -> None:
    """With `--on-error skip`, `out.skipped` lists each skipped sample with its reason; the counts add up."""
    source = read_tree(small)
    os.mkfifo(small / "a" / "pipe.txt")
    (small / "a" / "gone.txt").symlink_to("nowhere")
    (small / "b" / "outside.txt").symlink_to("/etc/hostname")
    write_tree(small, {"README": b"no field", "b/huge.bin": bytes(20_000), "c\nd.x\x1b": b"odd"})
    options: dict[str, Any] = {"on_error": "skip", "oversize": "skip", "max_size": "15kB", "max_count": None}
    options["ending"] = ending
    told = _pack(small, tmp_path / "out", **options)
    rows = [json.loads(line) for line in (tmp_path / "out" / "out.skipped").read_text(encoding="ascii").splitlines()]
    assert [(row["key"], row["path"], row["code"]) for row in rows] == [
        ("b/huge", "", "oversize"),
        ("", "README", "no-field"),
        ("a/gone", "a/gone.txt", "dangling-link"),
        ("a/pipe", "a/pipe.txt", "special-file"),
        ("b/outside", "b/outside.txt", "link-outside"),
        ("c\\x0ad", "c\\x0ad.x\\x1b", "unsafe-name"),
    ]
    assert all(row["message"] for row in rows)
    assert (told["samples"], told["skipped"]) == (12, 6)
    totals = json.loads((tmp_path / "out" / "out.json").read_bytes())["shardtool"]["totals"]
    assert (totals["samples"], totals["skipped"]) == (12, 6)
    assert dict(members(*shards(tmp_path / "out"))) == source
    for name in ("a/pipe.txt", "a/gone.txt", "b/outside.txt", "README", "b/huge.bin", "c\nd.x\x1b"):
        (small / name).unlink()
    assert _pack(small, tmp_path / "out", resume=True, **options)["skipped"] == 0
    assert not (tmp_path / "out" / "out.skipped").exists()


_SCRIPT = """
import sys
import threading
import shardtool

threading.Thread(target=threading.Event().wait, daemon=True).start()
print("once")
options = shardtool.CreateOptions(workers=2, start_method="spawn", max_count=3)
print(shardtool.create(sys.argv[1], sys.argv[2], options).samples)
"""


def test_a_script_needs_no_guard(small: Path, tmp_path: Path) -> None:
    """A script that calls the library without `if __name__ == "__main__"`, threads and all, runs once."""
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(small), str(tmp_path / "out" / PATTERN)],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("once\n12\n", "", 0)
    _pack(small, tmp_path / "fresh")
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "fresh")


def _fingerprint(*paths: Path) -> str:
    """Return the content fingerprint, from the shards alone."""
    samples: dict[bytes, list[tuple[bytes, bytes]]] = {}
    for name, data in members(*paths):
        key, field = _key_and_field(name)
        samples.setdefault(key, []).append((field, data))
    total = 0
    for key, fields in samples.items():
        row = b"".join(part + b"\0" for part in (key, *(field for field, _ in fields)))
        row += b"".join(struct.pack("<Q", len(data)) for _, data in fields)
        row += b"".join(struct.pack("<I", crc32c.crc32c(data)) for _, data in fields)
        total += int.from_bytes(blake2b(row, digest_size=32).digest(), "little")
    return f"b2:{total % 2**256:064x}"


def test_the_fingerprint_names_the_content(small: Path, tmp_path: Path) -> None:
    """Order, shard sizes, workers and the source's place do not change the fingerprint; any byte or name does."""
    same: list[dict[str, Any]] = [
        {}, {"shuffle": True, "seed": 9}, {"max_count": 1}, {"max_count": None, "max_size": "9kB"}, {"workers": 3},
    ]  # fmt: skip
    prints = {_pack(small, tmp_path / str(at), **options)["fingerprint"] for at, options in enumerate(same)}
    moved = write_tree(tmp_path / "moved", read_tree(small))
    prints.add(_pack(moved, tmp_path / "m")["fingerprint"])
    assert prints == {_fingerprint(*shards(tmp_path / "0"))} == {_fingerprint(*shards(tmp_path / "1"))}
    others = set()
    for at, other in enumerate(["a/000.txt", "a/000.tyt", "a/00.txt"]):
        data = read_tree(small)
        data[other] = data.pop("a/000.txt")[:-1] + b"!"
        others.add(_pack(write_tree(tmp_path / f"s{at}", data), tmp_path / f"o{at}")["fingerprint"])
    assert len(others | prints) == 4


class _Remover(Observer):
    """Removes a file when the plan is made, before it is packed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, samples: int, size: int, shards: int) -> None:  # noqa: ARG002 - an observer's
        self._path.unlink(missing_ok=True)


@pytest.mark.parametrize("size", [0, 600_000])
@pytest.mark.parametrize("options", [{}, {"label_from_folder": True, "shuffle": True}])
def test_the_fingerprint_does_not_depend_on_the_format(
    options: dict[str, Any], size: int, small: Path, tmp_path: Path
) -> None:
    """The same samples have one fingerprint as tar and as TFRecord, also after late skips and a resume."""
    changes = CreateOptions(workers=0, max_count=3, on_error="skip", resume=True, **options)
    (small / "b" / "005.bin").write_bytes(bytes(size))
    deleted, prints = small / "b" / "005.txt", set()
    text = deleted.read_bytes()
    for ending in ("tar", "tfrecord"):
        for kept in (0, 4):
            deleted.write_bytes(text)
            result = create(small, f"{tmp_path / ending}/{STEM}.{ending}", changes, observer=_Remover(deleted))
            assert (result.samples, result.skipped, result.kept) == (11, 1, kept)
            prints |= {result.fingerprint, _fingerprint(*shards(tmp_path / ending))}
    assert len(prints) == 1


_TWO_GIB = 2**31
_FRAMED = 80  # bytes of a record besides its one large payload, at least


@pytest.mark.parametrize("oversize", ["error", "alone"])
def test_a_record_over_2_gib_is_refused_by_name(oversize: str, small: Path, tmp_path: Path) -> None:
    """A record that protobuf cannot parse is refused by the plan; tar shards accept it."""
    for name, size in (("film", _TWO_GIB), ("clip", _TWO_GIB - 2 * _FRAMED)):
        with (small / "a" / f"{name}.mp4").open("wb") as file:
            file.truncate(size)
    with pytest.raises(InvalidRequest, match=r"1 sample too large for a TFRecord: a/film.*oversize='skip'"):
        _pack(small, tmp_path / "out", ending="tfrecord", oversize=oversize, max_size="5GB")
    assert not (tmp_path / "out").exists()
    options = CreateOptions(workers=0, max_size="5GB", oversize="skip")
    plan = create(small, f"{tmp_path}/{STEM}.tfrecord", options, dry_run=True)
    assert (plan.skipped, sum(shard.samples for shard in plan.planned)) == (1, 13)
    assert create(small, f"{tmp_path}/{STEM}.tar", options, dry_run=True).skipped == 0


def test_a_shuffle_moves_samples_and_keeps_them(ending: str, small: Path, tmp_path: Path) -> None:
    """A shuffled dataset has the same samples, each whole, in another order, which its seed decides."""
    orders = []
    for at, seed in enumerate((1, 1, 2)):
        _pack(small, tmp_path / str(at), shuffle=True, seed=seed, ending=ending)
        result = members(*shards(tmp_path / str(at)))
        assert dict(result) == read_tree(small)
        keys = [_key_and_field(name)[0] for name, _ in result]
        assert keys[::2] == keys[1::2]
        orders.append(keys[::2])
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in (orders[0], orders[2], sorted(orders[0]))}) == 3


@pytest.mark.parametrize("count", [1, 5, 12])
def test_a_closed_range_is_filled(count: int, small: Path, tmp_path: Path) -> None:
    """A bare closed range gives exactly its names."""
    create(small, f"{tmp_path}/x-<001..{count:03}>.tar", CreateOptions(workers=2))
    assert [shard.name for shard in shards(tmp_path)] == [f"x-{number:03}.tar" for number in range(1, count + 1)]


def test_a_list_of_a_thousand_names(small: Path, tmp_path: Path) -> None:
    """A thousand names that a shell made are a thousand shards at most, and where a bound asks for fewer, fewer."""
    names = [f"{tmp_path}/out-{number:03}.tar" for number in range(1000)]
    assert [shard.name for shard in create(small, names, CreateOptions(workers=0), dry_run=True).planned] == [
        "out-000.tar"
    ]
    create(small, names, CreateOptions(workers=0, max_count=3))
    _pack(small, tmp_path / "range")
    made = json.loads((tmp_path / "out.json").read_bytes())
    assert made["shardtool"]["pattern"] == "out-{000..999}.tar"
    assert [shard.read_bytes() for shard in shards(tmp_path)] == [
        shard.read_bytes() for shard in shards(tmp_path / "range")
    ]


@pytest.mark.parametrize(
    "options", [{"max_size": "0"}, {"max_size": "many"}, {"max_count": 0}, {"shards_multiple_of": 0}, {"workers": -1}]
)
def test_options_that_make_no_sense(options: dict[str, Any], small: Path, tmp_path: Path) -> None:
    """The library refuses what makes no sense, before it writes anything."""
    with pytest.raises(InvalidRequest):
        _pack(small, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_refused_plan_writes_nothing(small: Path, tmp_path: Path) -> None:
    """A plan that is refused leaves no folder, no file, and an old dataset as it was."""
    with pytest.raises(InvalidRequest):
        _pack(small, tmp_path / "out", max_size=2000)
    assert not (tmp_path / "out").exists()
    _pack(small, tmp_path / "out")
    before = identity(tmp_path / "out")
    for how in ("overwrite", "resume"):
        with pytest.raises(InvalidRequest):
            _pack(small, tmp_path / "out", **existing(how), max_size=2000)
    assert identity(tmp_path / "out") == before
