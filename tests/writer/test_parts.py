"""Several writers with one pattern, and their merge."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

import shardtool
from shardtool import CorruptShard, InvalidRequest, OutputExists, ShardWriter, merge, verify
from shardtool.pattern import parse_pattern
from shardtool.publish.parts import WriterPart, find_writer_parts, make_part_pattern, make_part_tag
from tests.helpers import read_tree, typed


def _write_part(pattern: Path, part: int | str, parts: int | None, samples: int) -> None:
    with ShardWriter(pattern, part=part, parts=parts, max_count=2) as writer:
        for n in range(samples):
            writer.write({"__key__": f"{part}/{n}", "jpg": b"x"})


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_parts_are_separate_datasets(tmp_path: Path, ending: str) -> None:
    """Concurrent writers of parts in one folder each leave a record, if they finish."""
    pattern = tmp_path / f"out-{{000000..}}.{ending}"
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_write_part, args=(pattern, part, 11, part % 3 * 2)) for part in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    _write_part(pattern, "ray_7", None, 3)
    killed = ShardWriter(pattern, part=10, parts=11, max_count=1)
    for key in "ab":
        killed.write({"__key__": key, "jpg": b""})
    killed.abandon()
    parts = find_writer_parts(parse_pattern(pattern), [path.name for path in tmp_path.iterdir()])
    names = {number: f"out-part{number:02}of11" for number in (0, 1, 2, 10)}

    def shards(stem: str, count: int) -> tuple[str, ...]:
        return tuple(f"{stem}-{number:06}.{ending}" for number in range(count))

    assert [*parts.values()] == [
        WriterPart("part00of11", 0, 11, (), finished=True),
        WriterPart("part01of11", 1, 11, shards(names[1], 1), finished=True),
        WriterPart("part02of11", 2, 11, shards(names[2], 2), finished=True),
        WriterPart("part10of11", 10, 11, shards(names[10], 1)),
        WriterPart("part_ray_7", None, None, shards("out-part_ray_7", 2), finished=True),
    ]
    for part in parts.values():
        record = tmp_path / f".out-{part.tag}.record"
        assert record.exists() == part.finished
        findings = (
            verify(tmp_path / f"out-{part.tag}-{{000000..}}.{ending}").findings if part.finished and part.shards else ()
        )
        assert {finding.code for finding in findings} <= {"dataset-file-missing"}


def test_a_part_is_resumed(tmp_path: Path) -> None:
    """An interrupted part is resumed like any writer; an empty finished part can be written again."""
    pattern = tmp_path / "out-{000000..}.tar"
    _write_part(pattern, 0, 2, 0)
    assert [*read_tree(tmp_path)] == [".out-part0of2.record"]
    writer = ShardWriter(pattern, part=0, parts=2, max_count=1)
    for key in "abc":
        writer.write({"__key__": key, "jpg": b""})
    writer.abandon()
    with ShardWriter(pattern, part=0, parts=2, max_count=1, resume=True) as writer:
        assert writer.last_key == "b"
        writer.write({"__key__": "c", "jpg": b""})
    with ShardWriter(pattern, part=0, parts=2, max_count=1, resume=True) as writer:
        assert (writer.samples, writer.last_key) == (3, "c")


def test_parts_need_an_open_range(tmp_path: Path) -> None:
    """Parts need an open range; files of other datasets are not parts."""
    with pytest.raises(InvalidRequest, match="open range"):
        ShardWriter(tmp_path / "out-{000..009}.tar", part=0, parts=2)
    pattern = parse_pattern("out-{000000..}.tar")
    assert make_part_pattern(pattern, make_part_tag(1, 2)).text == "out-part1of2-{000000..}.tar"
    assert (
        find_writer_parts(pattern, ["out-000000.tar", "out-party-000000.tar", "out-part1of2-x.tar", "out-part1of2.txt"])
        == {}
    )


def _write_all(pattern: Path, parts: int, *, numbers: range | None = None) -> None:
    for part in numbers or range(parts):
        _write_part(pattern, part, parts, part % 3 * 2)


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_merge(tmp_path: Path, ending: str) -> None:
    """Finished parts become one dataset with their shards in order, and no other file of the parts remains."""
    pattern = tmp_path / f"out-{{000000..}}.{ending}"
    _write_all(pattern, 6)
    before = {name: data for name, data in read_tree(tmp_path).items() if name.endswith((ending, ".index"))}
    result = merge(pattern)
    assert (result.samples, result.shards) == (12, 6)
    assert read_tree(tmp_path) == {**before, "out.json": (tmp_path / "out.json").read_bytes()}
    report = verify(tmp_path / "out.json")
    assert (report.findings, report.samples) == ((), 12)
    whole = read_tree(tmp_path)
    assert merge(pattern).samples == 12
    assert read_tree(tmp_path) == whole
    dataset = shardtool.open(tmp_path / "out.json")
    assert [dataset[n]["__key__"] for n in range(12)] == [
        f"{part}/{n}" for part in range(6) for n in range(part % 3 * 2)
    ]


def test_merge_lists_missing_parts(tmp_path: Path) -> None:
    """Unfinished and missing parts are listed, and nothing changes."""
    pattern = tmp_path / "out-{000000..}.tar"
    _write_all(pattern, 6, numbers=range(1, 4))
    writer = ShardWriter(pattern, part=4, parts=6, max_count=1)
    for key in "abc":
        writer.write({"__key__": key, "jpg": b""})
    writer.abandon()
    before = read_tree(tmp_path)
    with pytest.raises(InvalidRequest, match=r"not finished: part4of6 \(2 shards\); missing: part0of6, part5of6;"):
        merge(pattern)
    assert read_tree(tmp_path) == before
    with pytest.raises(InvalidRequest, match="no part"):
        merge(tmp_path / "other-{000000..}.tar")


def test_merge_lists_a_named_part_without_shards(tmp_path: Path) -> None:
    """A part that has started, but has no complete shard yet, is not finished."""
    pattern = tmp_path / "out-{000000..}.tar"
    _write_part(pattern, "done", None, 3)
    with ShardWriter(pattern, part="late") as writer:
        writer.write({"__key__": "late", "jpg": b"x"})
        with pytest.raises(InvalidRequest, match=r"not finished: part_late \(0 shards\)"):
            merge(pattern)
    assert merge(pattern).samples == 4


def test_merge_on_the_command_line(tmp_path: Path) -> None:
    """`index PATTERN --merge` merges, lists missing parts, and refuses other options for shards."""
    pattern = str(tmp_path / "out-{000000..}.tar")
    _write_part(Path(pattern), 1, 2, 3)
    ran = typed("index", pattern, "--merge")
    assert (ran.code, "missing: part0of" in ran.err) == (2, True)
    _write_part(Path(pattern), 0, 2, 2)
    assert typed("index", pattern, "--merge", "--checksum").code == 2
    ran = typed("index", pattern, "--merge", "--export", "dali-webdataset")
    assert (ran.code, "5 samples in 3 shards" in ran.out) == (0, True), ran
    assert len([*tmp_path.glob("*.idx")]) == 3


def test_merge_refuses_contradictory_parts(tmp_path: Path) -> None:
    """A key in two parts, a field with two types, parts of two runs, and another dataset's file are refused."""
    cases: list[tuple[str, tuple[dict[str, object], ...], str]] = [
        ("keys", ({"__key__": "a", "n": 1}, {"__key__": "a", "n": 2}), "1 key in two parts: a"),
        ("kinds", ({"__key__": "a", "n": 1}, {"__key__": "b", "n": b"x"}), "field n"),
    ]
    for name, samples, message in cases:
        pattern = tmp_path / name / "out-{000000..}.tfrecord"
        for part, sample in enumerate(samples):
            with ShardWriter(pattern, part=part, parts=2) as writer:
                writer.write(sample)
        with pytest.raises(InvalidRequest, match=message):
            merge(pattern)
    _write_part(pattern, 0, 3, 1)
    with pytest.raises(InvalidRequest, match="numbers of parts: 2, 3"):
        merge(pattern)
    pattern = tmp_path / "one" / "out-{000000..}.tar"
    _write_part(pattern, "x", None, 1)
    with ShardWriter(pattern) as writer:
        writer.write({"__key__": "a", "jpg": b""})
    with pytest.raises(OutputExists, match="not the result of a merge"):
        merge(pattern)


def test_dots_in_tfrecords(tmp_path: Path) -> None:
    """TFRecords store keys and fields separately, so `dots` does not restrict the names of merged parts."""
    pattern = tmp_path / "out-{000000..}.tfrecord"
    for part in range(2):
        with ShardWriter(pattern, part=part, parts=2, dots="last") as writer:
            writer.write({"__key__": f"{part}.5", "x.png": b"x"})
    merge(pattern)
    assert [*shardtool.open(tmp_path / "out.json").keys] == ["0.5", "1.5"]
    assert verify(tmp_path / "out.json").sound


def test_parts_with_names_are_added(tmp_path: Path) -> None:
    """Parts finished after a merge are added by another merge; skipped samples of all parts are listed."""
    pattern = tmp_path / "out-{000000..}.tar"
    for name in ("b", "a", "c"):
        with ShardWriter(pattern, part=name, on_error="skip") as writer:
            for n in range(2):
                writer.write({"__key__": f"{name}{n}", "txt": "text"}, {"n": n})
            writer.write({"__key__": name, "txt": None})
        assert merge(pattern).samples == 2 * (1 + "bac".index(name))
    assert verify(tmp_path / "out.json").findings == ()
    assert len((tmp_path / "out.skipped").read_bytes().splitlines()) == 3
    shards = [f"out-part_{name}-000000" for name in "abc"]
    assert sorted(read_tree(tmp_path)) == sorted(
        ["out.json", "out.skipped", *(f"{shard}.{end}" for shard in shards for end in ("index", "tar"))]
    )


def test_a_merged_part_cannot_change(tmp_path: Path) -> None:
    """A job that repeats a merged part finds it finished, and can neither add samples nor rewrite it."""
    pattern = tmp_path / "out-{000000..}.tar"
    for part in range(2):
        _write_part(pattern, part, 2, 5)
    merge(pattern)
    before = read_tree(tmp_path)
    with ShardWriter(pattern, part=1, parts=2, max_count=2, resume=True) as writer:
        assert (writer.samples, writer.last_key, len(writer.shards)) == (5, "1/4", 3)
        with pytest.raises(InvalidRequest, match="the earlier run is complete"):
            writer.write({"__key__": "new", "jpg": b""})
    with pytest.raises(OutputExists, match=r"out.json: part1of2 was merged into this dataset"):
        ShardWriter(pattern, part=1, parts=2, max_count=2, overwrite=True)
    assert read_tree(tmp_path) == before
    _write_part(pattern, "more", None, 1)
    assert merge(pattern).samples == 11


@pytest.mark.parametrize("removed", range(4))
def test_an_interrupted_merge_is_repeated(tmp_path: Path, removed: int) -> None:
    """A merge interrupted after its dataset file is completed by another, with the same dataset file."""
    pattern = tmp_path / "out-{000000..}.tar"
    _write_all(pattern, 4)
    kept = {name: data for name, data in read_tree(tmp_path).items() if name.endswith(".record")}
    merge(pattern)
    whole = read_tree(tmp_path)
    for name in [*kept][removed:]:
        (tmp_path / name).write_bytes(kept[name])
    merge(pattern)
    assert read_tree(tmp_path) == whole


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.json", "out.json: cannot be read"),
        (".out-part0of1.record", ".out-part0of1.record: not a valid part record"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, name: str, message: str) -> None:
    """A folder or a link instead of a file that a merge reads is named; nothing changes."""
    pattern = tmp_path / "out-{000000..}.tar"
    with ShardWriter(pattern, part=0, parts=1) as writer:
        writer.write({"__key__": "a", "txt": "x"})
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CorruptShard, match=f"{message}: not a regular file"):
        merge(pattern)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("at", range(0, 700, 70))
def test_a_damaged_record_is_refused(tmp_path: Path, at: int) -> None:
    """A flipped bit in the record of a part is detected, and the part is written again."""
    pattern = tmp_path / "out-{000000..}.tar"
    _write_part(pattern, 0, 1, 3)
    record = tmp_path / ".out-part0of1.record"
    data = bytearray(record.read_bytes())
    data[at] ^= 1
    record.write_bytes(data)
    before = read_tree(tmp_path)
    with pytest.raises(CorruptShard, match="not a valid part record"):
        merge(pattern)
    assert read_tree(tmp_path) == before
    record.unlink()
    for shard in tmp_path.glob("out-part0*"):
        shard.unlink()
    _write_part(pattern, 0, 1, 3)
    assert merge(pattern).samples == 3


def test_a_finished_part_is_replaced(tmp_path: Path) -> None:
    """A part is written again only with `overwrite`; then only the new samples are merged."""
    pattern = tmp_path / "out-{000000..}.tar"
    _write_part(pattern, 0, 1, 5)
    with pytest.raises(OutputExists, match="already exist"):
        ShardWriter(pattern, part=0, parts=1)
    with ShardWriter(pattern, part=0, parts=1, overwrite=True) as writer:
        writer.write({"__key__": "new", "jpg": b"y"})
    assert merge(pattern).samples == 1
    assert verify(tmp_path / "out.json").findings == ()
