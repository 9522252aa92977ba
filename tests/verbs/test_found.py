"""Laws of `--probe`, `--exif` and `--hash`: columns of sidecars from the files of samples, and queries on them."""

from __future__ import annotations

import hashlib
import json
import signal
import time
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardtool import CreateOptions, InvalidRequest, OutputExists, ReshardOptions, create, reshard, verify
from shardtool.cli.result_text import create_text
from shardtool.request.observer import Observer
from shardtool.transform.exif import read_exif
from shardtool.write.transform_packer import fetchers
from tests.faults.helpers import start
from tests.fetch.server import body, web_server
from tests.helpers import read_tree, typed, write_tree
from tests.stored import age, skipped, sound

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardtool import CreateResult
    from tests.fetch.server import WebServer

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

STEM = "out-{000..}"
WIDE = "width >= 20 and width / height < 3"
QUERIES = (
    "width > 20", "width > height", "height * 2 <= width or mode == 'L'", "not width > 20", "width.isna()",
    "mode.isin(['L']) and width > 3", "width // 3 % 2 == 1 & mode.str.startswith('R')", "cls == 'b' or width < 15",
    "cls != 'a' and width < 30 and mode == 'RGB'", "cls * 10 < width", "width / (height - 9) > 2", "`width` != 7",
)  # fmt: skip


def _image(width: int, height: int, mode: str = "RGB", kind: str = "PNG", **details: Any) -> bytes:
    stream = BytesIO()
    Image.new(mode, (width, height)).save(stream, kind, **details)
    return stream.getvalue()


def _pack(source: Any, folder: Path, **options: Any) -> CreateResult:
    changes = {"workers": 0, "max_count": 4, **options}
    return create(source, f"{folder}/{STEM}.tar", CreateOptions(**changes))


def _columns(folder: Path) -> dict[str, dict[str, Any]]:
    return {item.key: item.columns for shard in sound(folder / "out.json") for item in shard}


def _left_out(folder: Path) -> dict[str, str]:
    return {item["key"]: item["code"] for item in skipped(folder / "out.json")}


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give 24 images of 5 to 40 pixels, in two folders, and a sample without an image."""
    sizes = {f"{'ab'[n % 2]}/{n:02}.png": (5 + n * 7 % 36, 5 + n * 11 % 25, "L" if n % 3 else "RGB") for n in range(24)}
    files = {name: _image(*size) for name, size in sizes.items()}
    return write_tree(tmp_path_factory.mktemp("images"), {**files, "a/x.txt": b"no image"})


@pytest.fixture(scope="session")
def probed(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give all of them, probed."""
    folder = tmp_path_factory.mktemp("probed")
    _pack(images, folder, probe=True, label_from_folder=True)
    return folder


@pytest.fixture
def web() -> Iterator[WebServer]:
    """Give a web server; end what fetches in this process."""
    with web_server() as server:
        yield server
    while fetchers:
        fetchers.popitem()[1].close()


@settings(max_examples=6)
@given(
    query=st.lists(st.sampled_from(QUERIES), min_size=1, max_size=3).map(") and (".join),
    bound=st.sampled_from([{"max_count": 4}, {"max_size": 3500}, {"place": "hash", "shuffle": True}]),
)
def test_the_same_words_mean_the_same(
    query: str, bound: dict[str, Any], images: Path, probed: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """`create --probe --where` takes the samples that `reshard --where` takes of all; others are listed."""
    folder = tmp_path_factory.mktemp("where")
    options: dict[str, Any] = {"where": f"({query})", "workers": 0, "max_count": None, **bound}
    try:
        reshard(probed / "out.json", f"{folder}/later/{STEM}.tar", ReshardOptions(**options))
    except InvalidRequest:
        with pytest.raises(InvalidRequest, match="no sample matches"):
            _pack(images, folder / "once", probe=True, label_from_folder=True, **options)
        return
    result = _pack(images, folder / "once", probe=True, label_from_folder=True, **options)
    kept, left_out = _columns(folder / "once"), _left_out(folder / "once")
    assert kept == _columns(folder / "later")
    assert (result.samples, result.skipped) == (len(kept), len(left_out))
    assert not {*kept} & {*left_out}
    assert {*left_out.values()} <= {"not-chosen"}
    if "cls" not in query:  # known to the plan
        assert {*kept} | {*left_out} == {*_columns(probed)}


def test_what_is_known_before_is_asked_before(images: Path, tmp_path: Path) -> None:
    """Conditions of the plan's columns are no matter of workers, and leave nothing in the list."""
    _pack(images, tmp_path, probe=True, where="width > 10 and folder == 'a' and size > 60")
    assert {key[0] for key in [*_columns(tmp_path), *_left_out(tmp_path)]} == {"a"}
    assert 0 < len(_left_out(tmp_path)) < 12


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_whatever_the_workers(workers: int, images: Path, tmp_path: Path) -> None:
    """The bytes do not depend on how many workers there are."""
    for folder, count in (("1", 1), ("n", workers)):
        _pack(images, tmp_path / folder, probe=True, where=WIDE, workers=count)
    assert read_tree(tmp_path / "1") == read_tree(tmp_path / "n")


def test_a_second_run_adds_nothing(images: Path, tmp_path: Path) -> None:
    """Resume keeps all shards, update finds nothing new, and the source is sound."""
    options: dict[str, Any] = {"probe": True, "where": WIDE, "hash": "sha256"}
    shards = _pack(images, tmp_path, **options).shards
    age(tmp_path, images)
    before = read_tree(tmp_path)
    second = _pack(images, tmp_path, resume=True, **options)
    assert (second.kept, second.changes and second.changes.samples_added) == (shards, 0)
    again = _pack(images, tmp_path, update=True, **options)
    assert (again.appended and again.appended.samples, again.notes) == (0, ())
    assert read_tree(tmp_path) == before
    assert verify(tmp_path / "out.json", source=images).sound
    with pytest.raises(OutputExists, match="differs: "):
        _pack(images, tmp_path, resume=True, **{**options, "where": "width > 5"})


def test_new_samples_that_do_not_match(images: Path, tmp_path: Path) -> None:
    """An update lists them, so the next update does not read them again; the dataset is unchanged."""
    source = write_tree(tmp_path / "in", {name: data for name, data in read_tree(images).items() if name < "b"})
    options: dict[str, Any] = {"probe": True, "where": WIDE}
    first = _pack(source, tmp_path / "out", **options)
    write_tree(source, {"c/1.png": _image(6, 6), "c/2.png": _image(9, 9)})
    second = _pack(source, tmp_path / "out", update=True, **options)
    assert (second.samples, second.skipped) == (first.samples, first.skipped + 2)
    assert create_text(second).startswith("0 samples in 1 shard appended")
    write_tree(source, {"c/3.png": _image(30, 30)})
    third = _pack(source, tmp_path / "out", update=True, **options)
    assert (third.samples, third.skipped) == (first.samples + 1, first.skipped + 2)
    assert verify(tmp_path / "out" / "out.json", source=source).sound
    last = _pack(source, tmp_path / "out", update=True, **options)
    assert (last.notes, create_text(last).partition(":")[0]) == ((), "nothing new")


@pytest.mark.slow
def test_an_append_of_another_condition(images: Path, tmp_path: Path) -> None:
    """It takes what the first condition did not take; once more, and no shard is added."""
    options: dict[str, Any] = {"probe": True, "on_duplicate": "first", "append": True}
    first = _pack(images, tmp_path, probe=True, where=WIDE)
    with pytest.raises(OutputExists, match="To add samples with other options"):
        _pack(images, tmp_path, update=True, probe=True, where="width >= 9")
    second = _pack(images, tmp_path, **options, where="width >= 9")
    wide = {key for key, one in _columns(tmp_path).items() if one["width"] >= 9}
    assert second.samples == len(wide) > first.samples
    again = _pack(images, tmp_path, **options, where="width >= 9")
    assert (again.samples, again.shards) == (second.samples, second.shards)
    assert sound(tmp_path / "out.json")


@pytest.mark.slow
def test_killed_and_resumed(tmp_path: Path) -> None:
    """After a kill at any instant, the next run produces the bytes of an undisturbed run."""
    source = write_tree(tmp_path / "in", {f"{n:04}.png": _image(5 + n % 40, 20) for n in range(1200)})
    words = ["--probe", "--where", WIDE, "--max-count", "40", "--hash", "md5", "--quiet"]
    assert typed("create", source, tmp_path / "whole" / f"{STEM}.tar", *words).code == 0
    for number in range(4):
        run = start(source, tmp_path / "out", f"{STEM}.tar", *words, "--resume", cold=True)
        time.sleep(0.4 + 0.3 * number)
        run.signal(signal.SIGKILL, group=bool(number % 2))
        run.end()
    assert typed("create", source, tmp_path / "out" / f"{STEM}.tar", *words, "--resume").code == 0
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "whole")


def test_files_of_the_web(web: WebServer, tmp_path: Path) -> None:
    """In one pass, non-matching samples are listed next to failures, but not as failures; no shard is fetched twice."""
    rows = [{"u": web.url(f"ok/{n}" if n % 4 != 3 else f"status/404/{n}"), "n": n} for n in range(16)]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    taken = {n for n in range(16) if n % 4 != 3 and hashlib.sha256(body(str(n))).hexdigest() < "9"}
    options: dict[str, Any] = {
        "url": {"jpg": "u"}, "allow_private": True, "retries": 0, "max_failed": 0.3, "hash": ("sha256", "md5"),
        "where": "sha256 < '9' and (n < 99 or md5 < '5')", "max_count": 1,
    }  # fmt: skip
    result = _pack(source, tmp_path / "out", **options)
    assert {int(key) for key in _columns(tmp_path / "out")} == taken
    codes = {int(key): code for key, code in _left_out(tmp_path / "out").items()}
    assert codes == {n: "http-404" if n % 4 == 3 else "not-chosen" for n in range(16) if n not in taken}
    assert (result.samples, result.skipped) == (len(taken), 16 - len(taken))
    before, asked_for = read_tree(tmp_path / "out"), dict(web.requests)
    _pack(source, tmp_path / "out", resume=True, **options)
    assert (read_tree(tmp_path / "out"), dict(web.requests)) == (before, asked_for)


def test_progress_of_samples_that_wait_to_be_judged(web: WebServer, tmp_path: Path) -> None:
    """They count as they come: a slow host is no stall."""
    source, counted = tmp_path / "in.csv", list[tuple[float, int]]()
    source.write_text("u\n" + "".join(f"{web.url(f'later/{n}')}\n" for n in range(40)))

    class Watch(Observer):
        def advance(self, samples: int, size: int, shards: int) -> None:  # noqa: ARG002
            if samples:
                counted.append((time.monotonic(), samples))

    changes: dict[str, Any] = {"url": {"jpg": "u"}, "allow_private": True, "per_host": 1, "hash": "md5"}
    options = CreateOptions(workers=0, where="md5 != ''", **changes)
    create(source, f"{tmp_path}/out/{STEM}.tar", options, observer=Watch())
    assert sum(samples for _, samples in counted) == 40
    assert counted[-1][0] - counted[0][0] > 0.3


def test_parts_of_urls(web: WebServer, tmp_path: Path) -> None:
    """Parts produce the dataset and the list of skipped samples of a single run."""
    source = tmp_path / "in.csv"
    source.write_text("u\n" + "".join(f"{web.url(f'ok/{n}')}\n" for n in range(12)))
    options: dict[str, Any] = {"url": {"jpg": "u"}, "allow_private": True, "hash": "md5", "where": "md5 < '9'"}
    _pack(source, tmp_path / "one", **options)
    for part in ("2/2", "1/2"):
        _pack(source, tmp_path / "parts", part=part, **options)
    assert read_tree(tmp_path / "parts") == read_tree(tmp_path / "one")
    assert _left_out(tmp_path / "one")


def test_reshard_computes_the_same_columns(images: Path, probed: Path, tmp_path: Path) -> None:
    """`reshard` evaluates computed columns; columns of the source's sidecars with that name come first."""
    _pack(images, tmp_path / "in")
    folders = {}
    for name, source in (("new", tmp_path / "in"), ("known", probed)):
        options = ReshardOptions(workers=0, where=WIDE, probe=True, hash="md5", shuffle=True)
        reshard(source / "out.json", f"{tmp_path}/{name}/{STEM}.tar", options)
        folders[name] = tmp_path / name
    result = {name: {key: one["md5"] for key, one in _columns(folder).items()} for name, folder in folders.items()}
    assert result["new"] == result["known"]
    assert (len(_left_out(folders["new"])), _left_out(folders["known"])) == (25 - len(result["new"]), {})


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("widht > 3", "widht: no such column; expected one of .*width, height, mode. Did you mean width"),
        ("width > 'a'", "different types: width is a number and 'a' is text"),
        ("sha256 > 'a' and width > 3", "sha256: no such column"),
        (
            "width > 3 or folder == 'a'",
            "no sidecar will have the column folder; expected columns of sidecars: width, height, mode",
        ),
        ("width > 3 and", "invalid syntax"),
    ],
)
def test_a_wrong_condition_is_refused_before_anything_is_read(
    query: str, message: str, images: Path, tmp_path: Path
) -> None:
    """It is refused with the columns that are known, by a dry run, too."""
    for dry_run in (False, True):
        with pytest.raises(InvalidRequest, match=message):
            create(images, f"{tmp_path}/{STEM}.tar", workers=0, probe=True, where=query, dry_run=dry_run)
    assert not list(tmp_path.iterdir())


def test_equal_counts_are_refused_before_anything_is_read(images: Path, tmp_path: Path) -> None:
    """How many samples there are shows too late for shards of equally many; no shard is written in vain."""
    options = CreateOptions(workers=0, probe=True, where="width > 3", equal_count=True, max_count=2)
    with pytest.raises(InvalidRequest, match=r"equal_count.*which needs the content of the samples"):
        create(images, f"{tmp_path}/{STEM}.tar", options)
    assert not list(tmp_path.iterdir())


def test_no_path_of_the_machine_is_listed(tmp_path: Path) -> None:
    """Of several folders, a sample that falls out is listed by its path as the folders are called."""
    folders = [write_tree(tmp_path / name, {f"a.{end}": _image(5, 5)}) for name, end in (("x", "png"), ("y", "jpg"))]
    write_tree(tmp_path / "x", {"b.png": _image(30, 30)})
    _pack(folders, tmp_path / "out", probe=True, where="width > 9", on_error="raise")
    assert [(item["key"], item["path"]) for item in skipped(tmp_path / "out" / "out.json")] == [("a", "y/a.jpg")]


def test_no_sample_matches(images: Path, tmp_path: Path) -> None:
    """Such a run leaves no file, and reports the error of any other query."""
    with pytest.raises(InvalidRequest, match="no sample matches width > 99"):
        _pack(images, tmp_path, probe=True, where="width > 99")
    assert not list(tmp_path.iterdir())


def test_no_sample_of_a_split_matches(tmp_path: Path) -> None:
    """The message names the split, and no dataset file appears."""
    source = write_tree(tmp_path / "in", {"a/1.png": _image(9, 9), "b/2.png": _image(5, 5)})
    options = CreateOptions(workers=0, probe=True, where="width > 8", split_by="folder")
    with pytest.raises(InvalidRequest, match="no sample of the split b matches width > 8"):
        create(source, f"{tmp_path}/out/{{split}}-{STEM}.tar", options)
    assert not list(tmp_path.glob("out/*.json"))


def test_the_fix_if_no_sample_of_a_split_matches(tmp_path: Path) -> None:
    """The message names shares that give each split a sample; these work, also over shards of other splits."""
    source = write_tree(tmp_path / "in", {f"{number}.png": _image(9 if number else 99, 9) for number in range(8)})
    options = CreateOptions(workers=0, probe=True, where="width > 9", split="train=0.5,val=0.5")
    names = f"{tmp_path}/out/{{split}}-{STEM}.tar"
    with pytest.raises(
        InvalidRequest, match=r"of the split .* matches width > 9.* Relax the query, or use larger"
    ) as info:
        create(source, names, options)
    assert "another seed" in info.value.remedy
    assert "overwrite=True" in info.value.remedy
    assert create(source, names, replace(options, where="width > 8", overwrite=True)).samples == 8


def test_samples_that_do_not_match_are_noted(images: Path, tmp_path: Path) -> None:
    """The notes in `--json` contain the number of samples that a query on computed columns skips."""
    result = _pack(images, tmp_path, probe=True, where=WIDE)
    assert [note for note in result.notes if f"{result.skipped:,} of" in note and "skipped: not-chosen" in note]


@pytest.mark.parametrize("end", ["tar", "tfrecord"])
def test_an_update_with_a_split_without_matches(end: str, tmp_path: Path) -> None:
    """It lists these samples and continues; later matches join that split."""
    source = write_tree(tmp_path / "in", {"a/c/1.png": _image(9, 9)})
    options = CreateOptions(
        workers=0, probe=True, where="width > 8", split_by="folder", label_from_folder=True, update=True
    )
    names, file = f"{tmp_path}/out/{{split}}-{STEM}.{end}", tmp_path / "out" / "b-out.json"
    with pytest.raises(InvalidRequest, match="no sample of the split b"):
        create(write_tree(tmp_path / "other", {"b/c/1.png": _image(5, 5)}), names, options)
    create(source, names, options)
    for number, width in enumerate((5, 6, 9)):
        write_tree(source, {f"b/{number % 2}/{number}.png": _image(width, 9)})
        create(source, names, options)
    assert [(item["key"], item["code"]) for item in skipped(file)] == [("b/0/0", "not-chosen"), ("b/1/1", "not-chosen")]
    assert [item.key for shard in sound(file) for item in shard] == ["b/0/2"]
    assert verify(file, source=source).sound


def test_sizes_before_a_change(images: Path, probed: Path, tmp_path: Path) -> None:
    """Of images that are resized, a query can name the sizes before; then both are columns."""
    options: dict[str, Any] = {"probe": True, "resize": (9, 9), "resize_mode": "crop"}
    _pack(images, tmp_path, **options, where="original_width / original_height < 1.5 and height == 9")
    before = {key: (one["width"], one["height"]) for key, one in _columns(probed).items() if one["width"]}
    assert {key: tuple(one.values()) for key, one in _columns(tmp_path).items()} == {
        key: (9, 9, _columns(probed)[key]["mode"], *size) for key, size in before.items() if size[0] / size[1] < 1.5
    }


def test_hash_is_of_the_source(tmp_path: Path) -> None:
    """`hash` is that of the image before changes; without an image, of the audio, else of the first field."""
    files = {"a.png": _image(40, 30), "a.cls": b"1", "b.flac": b"sound", "b.a": b"other", "c.bin": b"c", "c.txt": b"t"}
    source = write_tree(tmp_path / "in", files)
    _pack(source, tmp_path / "out", hash="md5,sha512", resize=8, encode="jpg")
    held = {"a": files["a.png"], "b": files["b.flac"], "c": files["c.bin"]}
    assert _columns(tmp_path / "out") == {
        key: {name: hashlib.new(name, data).hexdigest() for name in ("md5", "sha512")} for key, data in held.items()
    }


def _tags() -> Image.Exif:
    """Return the EXIF of a camera."""
    tags = Image.Exif()
    tags[0x010F], tags[0x0112] = "Maker\0", 6
    tags.get_ifd(0x8769).update({0x9003: "2020:01:02 03:04:05", 0x829A: 0.004, 0x8827: 100, 0x927C: b"x" * 3000})
    tags.get_ifd(0x8825).update({1: "S", 2: (33.0, 51.0, 30.0), 3: "E", 4: (151.0, 12.0, 40.0)})
    return tags


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif(kind: str, tmp_path: Path) -> None:
    """EXIF is JSON with tag names, from the original image; values other than numbers and short texts are omitted."""
    files = {"a.png": _image(9, 5, kind=kind, exif=_tags()), "b.png": _image(9, 5, kind=kind), "c.txt": b"no image"}
    source = write_tree(tmp_path / "in", files)
    _pack(source, tmp_path / "out", exif=True, resize=4)
    result = _columns(tmp_path / "out")
    assert [[*item] for item in result.values()] == [["exif"]] * 3
    assert json.loads(result["a"]["exif"]) == {
        "Make": "Maker", "Orientation": 6, "DateTimeOriginal": "2020:01:02 03:04:05", "ExposureTime": 0.004,
        "ISOSpeedRatings": 100, "latitude": -33.858333, "longitude": 151.211111,
    }  # fmt: skip
    assert (result["b"], result["c"]) == ({"exif": None}, {"exif": None})
    _pack(source, tmp_path / "some", exif=True, where="exif.str.contains('Maker')")
    assert [*_columns(tmp_path / "some")] == ["a"]


_WHOLE = _image(9, 5, kind="JPEG", exif=_tags())


@given(st.lists(st.tuples(st.integers(0, 3700), st.integers(0, 255)), min_size=1, max_size=30))
def test_broken_exif_is_no_failure(flips: list[tuple[int, int]]) -> None:
    """Any EXIF block becomes valid JSON text or nothing."""
    data = bytearray(_WHOLE)
    start = data.index(b"Exif")
    for at, value in flips:
        data[start + at % (data.index(b"\xff\xdb") - start)] = value
    result = read_exif(bytes(data))
    assert result is None or json.loads(result)
    assert len(result or "") < 100_000
