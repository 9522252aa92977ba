"""Notes about folders whose files belong together: one note, whose command packs them as intended."""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
import time
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtool import create
from shardtool.entries.sample_table import FieldRows, SampleTable
from shardtool.entries.strings import PackedStrings
from shardtool.request.observer import Observer
from shardtool.source.layouts import SAMPLED_KEYS, find_layout
from tests.helpers import PHOTOS, members, shell, typed, write_tree

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SAMPLES = 6
_COMMAND = re.compile(r"^note: (.*): `(.*)` (?:pairs them|packs their rows|packs the files in them)$", re.MULTILINE)


def _files(*patterns: str, ids: Iterable[object] = range(SAMPLES)) -> dict[str, bytes]:
    return {pattern.format(at): pattern.format(at).encode() for at in ids for pattern in patterns}


def _zip(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, name)
    return file.getvalue()


def _parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def _coco(name: str) -> bytes:
    images = [{"id": at, "file_name": name.format(at), "width": 1, "height": 1} for at in range(SAMPLES)]
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 1, 1], "area": 1, "iscrowd": 0}
    return json.dumps({"images": images, "annotations": [box], "categories": [{"id": 1, "name": "cat"}]}).encode()


def _notes(folder: Path, *words: str) -> list[tuple[str, str]]:
    """Return the observations and the commands of the notes about the layout."""
    ran = typed("create", "src", "plain/x-{0..}.tar", "--workers", "0", *words, cwd=folder)
    assert ran.code == 0, ran
    return _COMMAND.findall(ran.err)


def _packed(folder: Path, command: str) -> list[str]:
    """Return the names of the members that a command packs."""
    command = command.replace("OUTPUT", "'out/x-{0..}.tar'")
    if not any(mark in command for mark in (";", " | ", "$")):  # faster than a shell
        ran = typed(*shlex.split(command)[1:], "--workers", "0", cwd=folder)
    else:
        ran = shell(f'shardtool() {{ $T "$@"; }}; {{ {command}; }}', folder)
    assert ran.code == 0, (command, ran)
    return [name for name, _ in members(*sorted((folder / "out").glob("*.tar")))]


LAYOUTS: dict[str, tuple[dict[str, bytes], str, str, list[str]]] = {
    "masks": (
        _files("{:04}.jpg", "{:04}_mask.png"),
        "6 of 12 samples lack jpg, 6 lack png; the file names differ only by _mask",
        "shardtool create src OUTPUT --key-pattern '(.+)_mask'",
        ["0000.jpg", "0000.mask.png"],
    ),
    "masks, not sorted next to their images": (
        _files("{}.jpg", "{}_mask.png", ids=range(1, 30)),
        "29 of 58 samples lack jpg, 29 lack png; the file names differ only by _mask",
        "shardtool create src OUTPUT --key-pattern '(.+)_mask'",
        ["1.jpg", "1.mask.png"],
    ),
    "masks in classes": (
        _files("cat/{:04}.png", "cat/{:04}-seg.png", "dog/{:04}.png", "dog/{:04}-seg.png"),
        "24 samples with only png; the file names differ only by -seg",
        "shardtool create src OUTPUT --key-pattern '(.+)-seg'",
        ["cat/0000.png", "cat/0000.seg.png"],
    ),
    "two suffixes": (
        _files("{:04}.jpg", "{:04}_mask.png", "{:04}_depth.npy"),
        "12 of 18 samples lack jpg, 12 lack npy, 12 lack png; the file names differ only by _depth, _mask",
        "shardtool create src OUTPUT --key-pattern '(.+)_(depth|mask)'",
        ["0000.depth.npy", "0000.jpg", "0000.mask.png"],
    ),
    "a suffix of each": (
        _files("ulm_{}_leftImg8bit.png", "ulm_{}_gtFine_labelIds.png"),
        "12 samples with only png; the file names differ only by _gtFine_labelIds, _leftImg8bit",
        "shardtool create src OUTPUT --key-pattern '(.+)_(gtFine_labelIds|leftImg8bit)'",
        ["ulm_0.gtFine_labelIds.png", "ulm_0.leftImg8bit.png"],
    ),
    "YOLO": (
        {**_files("images/train/{:04}.jpg", "labels/train/{:04}.txt"), "data.yaml": b"names: [a]"},
        "7 of 13 samples lack jpg, 7 lack txt; files in images, labels have the same names",
        "shardtool create src/images src/labels OUTPUT",
        ["train/0000.jpg", "train/0000.txt"],
    ),
    "sibling folders in a folder": (
        _files("a/rgb/{:04}.png", "a/depth/{:04}.png"),
        "12 samples with only png; files in depth, rgb have the same names",
        "shardtool create src/a/depth src/a/rgb OUTPUT",
        ["0000.depth.png", "0000.rgb.png"],
    ),
    "YOLO by split": (
        _files(
            "train/images/{:04}.jpg", "train/labels/{:04}.txt", "my valid/images/{:04}.jpg", "my valid/labels/{:04}.txt"
        ),
        "12 of 24 samples lack jpg, 12 lack txt; files in images, labels have the same names",
        (
            "for split in 'my valid' train; "
            """do shardtool create src/"$split"/images src/"$split"/labels out/"$split"-'{000000..}'.tar; done"""
        ),
        ["0000.jpg", "0000.txt"],
    ),
    "a table of paths": (
        {**_files("imgs/{:04}.jpg"), "labels.csv": b"image,label\nimgs/0000.jpg,3\nimgs/0001.jpg,4\n"},
        "6 samples lack the columns of labels.csv, which is packed as a separate sample",
        "shardtool create src/labels.csv OUTPUT",
        ["imgs/0000.jpg", "imgs/0000.json"],
    ),
    "a table of paths in a column of another name": (
        {**_files("{:04}.jpg"), "labels.tsv": b"picture\tlabel\n./0000.jpg\t3\n0001.jpg\t4\n"},
        "6 samples lack the columns of labels.tsv, which is packed as a separate sample",
        "shardtool create src/labels.tsv OUTPUT --path picture",
        ["0000.jpg", "0000.json"],
    ),
    "a Parquet table of names in a folder": (
        {**_files("imgs/{:04}.jpg"), "t.parquet": _parquet(label=[1, 2], file_name=["0000.jpg", "0001.jpg"])},
        "6 samples lack the columns of t.parquet, which is packed as a separate sample",
        "shardtool create src/t.parquet OUTPUT --root src/imgs",
        ["0000.jpg", "0000.json"],
    ),
    "a table of keys": (
        {**_files("{:04}.wav"), "labels.jsonl": b"".join(b'{"id": "%04d", "n": 1}\n' % at for at in range(SAMPLES))},
        "6 samples lack the columns of labels.jsonl, which is packed as a separate sample",
        "shardtool create src OUTPUT --join src/labels.jsonl --on id --exclude labels.jsonl",
        ["0000.wav", "0001.wav"],
    ),
    "LJSpeech": (
        {**_files("wavs/LJ-{:04}.wav"), "metadata.csv": b"".join(b'LJ-%04d|a "b, c|d\n' % at for at in range(SAMPLES))},
        "6 samples lack the columns of metadata.csv, which is packed as a separate sample",
        "shardtool create src/wavs OUTPUT --join src/metadata.csv --delimiter '|' --no-header --on 1",
        ["LJ-0000.wav", "LJ-0001.wav"],
    ),
    "boxes": (
        {**_files("imgs/{:04}.jpg"), "boxes.csv": b"ImageID,XMin\n0000,1\n0001,2\n0001,3\n"},
        "6 samples lack the columns of boxes.csv, which is packed as a separate sample",
        "shardtool create src/imgs OUTPUT --join src/boxes.csv --on ImageID --collect all",
        ["0000.jpg", "0001.jpg"],
    ),
    "captions": (
        {**_files("{}.jpg"), "captions.csv": b"image,caption\n0.jpg,a\n0.jpg,b\n1.jpg,c\n"},
        "6 samples lack the columns of captions.csv, which is packed as a separate sample",
        "shardtool create src/captions.csv OUTPUT --collect all",
        ["0.jpg", "0.json", "1.jpg", "1.json"],
    ),
    "captions with keys": (
        {**_files("{}.jpg"), "captions.csv": b"id,image,caption\n7,0.jpg,a\n8,0.jpg,b\n9,1.jpg,c\n"},
        "6 samples lack the columns of captions.csv, which is packed as a separate sample",
        "shardtool create src/captions.csv OUTPUT",
        ["7.jpg", "7.json", "8.jpg", "8.json"],
    ),
    "COCO": (
        {**_files("val/{:04}.jpg"), "instances.json": _coco("{:04}.jpg")},
        "6 samples lack the columns of instances.json, which is packed as a separate sample",
        (
            "shardtool create src/val OUTPUT --join src/instances.json "
            "--field boxes.json=boxes --field labels.json=labels"
        ),
        ["0000.boxes.json", "0000.jpg", "0000.labels.json"],
    ),
    "COCO by split": (
        {
            **_files("train2017/{:04}.jpg", "val2017/1{:03}.jpg"),
            **{
                f"annotations/{kind}_{split}2017.json": _coco(f"{first}{{:03}}.jpg")
                for kind in ("captions", "instances")
                for split, first in (("train", 0), ("val", 1))
            },
        },
        "12 samples lack the columns of annotations/instances_*",
        (
            'for split in train2017 val2017; do shardtool create src/"$split" out/"$split"-\'{000000..}\'.tar '
            '--join src/annotations/instances_"$split".json --field boxes.json=boxes --field labels.json=labels; done'
        ),
        ["0000.boxes.json", "0000.jpg", "0000.labels.json"],
    ),
    "Common Voice": (
        {
            **_files("clips/c_{}.mp3"),
            "train.tsv": b"client_id\tpath\tsentence\nx\tc_0.mp3\thi\nx\tc_1.mp3\tho\n",
            "dev.tsv": b"client_id\tpath\tsentence\ny\tc_2.mp3\thi\n",
            "validated.tsv": b"client_id\tpath\tsentence\ny\tc_2.mp3\thi\n",
        },
        "7 samples lack the columns of dev.tsv, train.tsv, which are packed as separate samples",
        ("shardtool create src/dev.tsv src/train.tsv 'out/{split}-{000000..}.tar' --root src/clips --split-by file"),
        ["c_2.json", "c_2.mp3"],
    ),
    "metadata in a folder": (
        {**_files("train/{:04}.jpg"), "train/metadata.csv": b"file_name,text\n0000.jpg,a\n0001.jpg,b\n"},
        "6 samples lack the columns of train/metadata.csv, which is packed as a separate sample",
        "shardtool create src/train/metadata.csv OUTPUT",
        ["0000.jpg", "0000.json"],
    ),
    "metadata by split": (
        {
            **_files("train/{:04}.jpg", "test/{:04}.jpg"),
            **dict.fromkeys(("train/metadata.csv", "test/metadata.csv"), b"file_name,text\n0000.jpg,a\n0001.jpg,b\n"),
        },
        "12 samples lack the columns of metadata.csv in test train",
        (
            'for split in test train; do shardtool create src/"$split"/metadata.csv '
            "out/\"$split\"-'{000000..}'.tar; done"
        ),
        ["0000.jpg", "0000.json"],
    ),
    "Pascal VOC": (
        {**_files("JPEGImages/{:06}.jpg", "Annotations/{:06}.xml"), "ImageSets/Main/train.txt": b"000000\n"},
        "7 of 13 samples lack jpg, 7 lack xml; files in Annotations, JPEGImages have the same names",
        "shardtool create src/Annotations src/JPEGImages OUTPUT",
        ["000000.jpg", "000000.xml"],
    ),
    "LLaVA": (
        {
            **_files("images/{}.jpg"),
            "chat.json": json.dumps(
                [{"id": f"{at}", "image": f"{at}.jpg", "conversations": []} for at in range(6)]
            ).encode(),
        },
        "6 samples lack the columns of chat.json, which is packed as a separate sample",
        "shardtool create src/chat.json OUTPUT --root src/images",
        ["0.jpg", "0.json"],
    ),
    "LibriSpeech": (
        {
            **_files("84/121/84-121-{:04}.flac"),
            "84/121/84-121.trans.txt": b"".join(b"84-121-%04d GO ON: A\n" % at for at in range(SAMPLES)),
        },
        "6 samples lack txt; the transcripts are in 1 *.trans.txt file",
        (
            r"(cd src && find . -name '*.trans.txt' -exec grep -H . {} +) | sed -E 's|^\./||; s|[^/:]*:([^ ]+) |\1\t|' "
            "> transcripts.tsv && shardtool create src OUTPUT --join transcripts.tsv --no-header --on 1 "
            "--field txt=2 --exclude '*.trans.txt'"
        ),
        ["84/121/84-121-0000.flac", "84/121/84-121-0000.txt"],
    ),
    "Parquet next to a text": (
        {
            "README.md": b"#",
            **{f"data/p{n}.parquet": _parquet(key=[f"{n}-{at}" for at in range(3)], text=["a"] * 3) for n in range(3)},
        },
        "3 Parquet files, each packed as one sample",
        "shardtool create 'src/data/*.parquet' OUTPUT --field txt=text",
        ["0-0.txt", "0-1.txt"],
    ),
    "JSON lines": (
        {f"p{n}.jsonl": b"".join(b'{"key": "%d-%d", "text": "a"}\n' % (n, at) for at in range(3)) for n in range(3)},
        "3 JSON-lines files, each packed as one sample",
        "shardtool create 'src/*.jsonl' OUTPUT --field txt=text",
        ["0-0.txt", "0-1.txt"],
    ),
    "compressed JSON lines": (
        {f"p{n}.jsonl.gz": gzip.compress(b'{"key": "%d", "text": "a"}\n' % n) for n in range(3)},
        "3 JSON-lines files, each packed as one sample",
        "shardtool create 'src/*.jsonl.gz' OUTPUT --field txt=text",
        ["0.txt", "1.txt", "2.txt"],
    ),
    "zip": (
        {f"z{n}.zip": _zip(f"{n}/0.jpg", f"{n}/0.txt") for n in range(3)},
        "3 zip files, each packed as one sample",
        (
            """for zip in src/*.zip; do shardtool create "$zip" parts/"$(basename "$zip" .zip)"-'{000000..}'.tar; """
            "done; shardtool reshard 'parts/*.json' OUTPUT"
        ),
        ["0/0.jpg", "0/0.txt"],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_note_has_the_command_that_packs_the_layout(layout: str, tmp_path: Path) -> None:
    """The folder is packed as listed; one note counts incomplete samples, and its command pairs the files."""
    files, text, command, expected = LAYOUTS[layout]
    write_tree(tmp_path / "src", files)
    assert _notes(tmp_path) == [(text, command)]
    assert sorted(payload for _, payload in members(*(tmp_path / "plain").glob("*.tar"))) == sorted(files.values())
    assert _packed(tmp_path, command)[: len(expected)] == expected


NO_LAYOUT = {
    "one kind": _files("{:04}.jpg"),
    "pairs": _files("{:04}.jpg", "{:04}.json"),
    "pairs by the first dot": _files("{:04}.jpg", "{:04}.mask.png"),
    "classes with equal names": _files("cat/{:04}.jpg", "dog/{:04}.jpg"),
    "classes with equal names and two formats": _files("cat/{:04}.jpg", "dog/{:04}.png"),
    "splits with equal names": _files("train/{:04}.jpg", "test/{:04}.png"),
    "splits with classes": _files(
        "train/cat/{:04}.jpg", "train/dog/{:04}.jpg", "val/cat/{:04}.jpg", "val/dog/{:04}.jpg"
    ),
    "variants": _files("{:04}.jpg", "{:04}_flip.jpg"),
    "numbers": _files("{:04}.jpg", "{:04}_2.jpg"),
    "few partners": {**_files("{:04}_mask.png", ids=range(40)), **_files("{:04}.jpg", ids=range(3))},
    "a table of other things": {**_files("{:04}.jpg"), "stats.csv": b"id,n\n77,1\n88,2\n"},
    "a broken table": {**_files("{:04}.jpg"), "t.parquet": b"no Parquet", "README.md": b"#"},
    "samples that are tables": _files("{:04}.csv", "{:04}.jpg"),
}


@pytest.mark.parametrize("layout", NO_LAYOUT)
def test_other_folders_have_no_note(layout: str, tmp_path: Path) -> None:
    """Classes, splits, variants and unrelated tables are not parts of samples."""
    write_tree(tmp_path / "src", NO_LAYOUT[layout])
    assert _notes(tmp_path) == []


_LABELS = "also stores them as class numbers"
_SPLITS = "packs each as a split"
_CLASSES = _files("in/cat/{:04}.jpg", "in/dog/x/{:04}.png")


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        (_CLASSES, "", f"in folders such as cat, dog: `shardtool create src/in OUTPUT --label-from-folder` {_LABELS}"),
        (
            _files("train/a/{:04}.jpg", "val/a/{:04}.jpg"), "",
            f"such as train, val: `shardtool create src 'out/{{split}}-{{000000..}}.tar' --split-by folder` {_SPLITS}",
        ),
        (_CLASSES, "--label-from-folder", ""),
        (_CLASSES, "--where key>'b'", ""),
        (_files("cat/{:04}.jpg", "dog/{:04}.jpg", "dog/{:04}.txt"), "", ""),
        (_files("00000/{:04}.jpg", "00001/{:04}.jpg"), "", ""),
        (_files("{:04}/image.jpg"), "", ""),
        ({**_files("cat/{:04}.jpg", "dog/{:04}.jpg"), "1.jpg": b"1"}, "", ""),
    ],
)  # fmt: skip
def test_folders_of_images_are_classes_or_splits(
    files: dict[str, bytes], options: str, expected: str, tmp_path: Path
) -> None:
    """Images in several folders are probably classes or splits, unless options or other files show something else."""
    write_tree(tmp_path / "src", files)
    err = typed("create", "src", "x-{0..}.tar", "--workers", "0", *options.split(), cwd=tmp_path).err
    assert (expected in err, "in folders such as" in err) == (True, bool(expected))


def test_sample_data_has_no_note(tmp_path: Path) -> None:
    """Folders of classes with labels have nothing to pair."""
    ran = typed("create", PHOTOS, "x-{0..}.tar", "--dry-run", cwd=tmp_path)
    assert (ran.code, "`shardtool create" in ran.err) == (0, False)


@pytest.mark.parametrize(
    "words", [["--key-pattern", "(.+)_mask"], ["--fields", "jpg"], ["--include", "*.jpg"], ["--exclude", "*_mask*"]]
)
def test_explicit_options_suppress_the_note(words: list[str], tmp_path: Path) -> None:
    """A key pattern, or a choice of fields or files, suppresses the note."""
    write_tree(tmp_path / "src", _files("{:04}.jpg", "{:04}_mask.png"))
    assert _notes(tmp_path, *words) == []


def test_the_note_is_in_json_too(tmp_path: Path) -> None:
    """`--json` has the note in `notes`."""
    write_tree(tmp_path / "src", _files("{:04}.jpg", "{:04}_mask.png"))
    ran = typed("create", "src", "plain/x-{0..}.tar", "--json", cwd=tmp_path)
    (note,) = json.loads(ran.out)["notes"]
    assert note.endswith("`shardtool create src OUTPUT --key-pattern '(.+)_mask'` pairs them")


def test_in_python_the_note_has_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library suggests a call of its own function, which pairs the files."""
    monkeypatch.chdir(tmp_path)
    write_tree(tmp_path / "src", _files("images/{:04}.jpg", "labels/{:04}.txt"))
    (note,) = create("src", "plain/x-{0..}.tar", observer=Observer()).notes
    assert note.endswith("`create(['src/images', 'src/labels'], OUTPUT)` pairs them")
    assert create(["src/images", "src/labels"], "x-{0..}.tar").samples == SAMPLES


def test_an_archive_has_notes_that_work_for_archives(tmp_path: Path) -> None:
    """Suffixes in a zip are paired by a pattern; folders in a zip cannot be separate sources."""
    write_tree(tmp_path, {"src": _zip(*_files("{:04}.jpg", "{:04}_mask.png"))})
    (tmp_path / "src").rename(tmp_path / "a.zip")
    ran = typed("create", "a.zip", "plain/x-{0..}.tar", cwd=tmp_path)
    ((_, command),) = _COMMAND.findall(ran.err)
    assert _packed(tmp_path, command)[:2] == ["0000.jpg", "0000.mask.png"]
    write_tree(tmp_path, {"b.zip": _zip(*_files("images/{:04}.jpg", "labels/{:04}.txt"))})
    assert not _COMMAND.findall(typed("create", "b.zip", "other/x-{0..}.tar", cwd=tmp_path).err)


def test_special_characters_are_quoted(tmp_path: Path) -> None:
    """The command works for a folder with blanks, quotation marks and dollars in its name."""
    write_tree(tmp_path / "my $(x) it's", _files("images/{:04}.jpg", "labels/{:04}.txt"))
    ran = typed("create", "my $(x) it's", "plain/x-{0..}.tar", cwd=tmp_path)
    ((_, command),) = _COMMAND.findall(ran.err)
    assert _packed(tmp_path, command)[:2] == ["0000.jpg", "0000.txt"]


def _entries(names: Iterable[str]) -> SampleTable:
    """Return samples of one file each, as listed."""
    parts = sorted(tuple(name.rsplit(".", 1)) for name in names)
    fields = sorted({field for _, field in parts})
    none = np.zeros(len(parts), np.int64)
    codes = np.array([fields.index(field) for _, field in parts], np.uint16)
    rows = FieldRows(code=codes, kind=np.zeros(len(parts), np.uint8), size=none, mtime_ns=none, changed_ns=none)
    keys = PackedStrings.of(key.encode() for key, _ in parts)
    return SampleTable(root=b"/src/", keys=keys, first_rows=np.arange(len(parts) + 1), fields=tuple(fields), rows=rows)


class _CountedNames:
    """Keys that count how often they are examined."""

    def __init__(self, names: PackedStrings) -> None:
        self.names, self.looks = names, 0

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, at: int) -> bytes:
        self.looks += 1
        return self.names[at]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((f"{at:07}{end}" for at in range(60_000) for end in (".jpg", "_mask.png")), "key_pattern='(.+)_mask'"),
        (
            (f"{top}/{at:07}.{end}" for at in range(60_000) for top, end in (("images", "jpg"), ("labels", "txt"))),
            "labels",
        ),
        ((f"{at % 500:03}/{at:07}.jpg" for at in range(120_000)), ""),
        ((f"{at:07}_{'abcdef'[at % 6]}x_{'ghi'[at % 3]}y.jpg" for at in range(120_000)), ""),
        ((f"{'abcd'[at % 4]}/{at // 4:07}.jpg" for at in range(120_000)), ""),
    ],
)
def test_large_folders_take_bounded_work(names: Iterable[str], expected: str) -> None:
    """120,000 names are recognised by examining few of them, with or without a layout."""
    entries = _entries(names)
    counted = _CountedNames(entries.keys)
    object.__setattr__(entries, "keys", counted)
    started = time.perf_counter()
    advice = find_layout(entries, "src")
    assert (advice is not None and expected in advice.command) if expected else advice is None
    assert counted.looks < 100 * SAMPLED_KEYS
    assert time.perf_counter() - started < 2  # seconds; usually a hundredth of that


@pytest.mark.parametrize(
    ("files", "page"),
    [
        ({"a.jsonl": b"{}", "b.ndjson": b"{}"}, "docs/tables.md"),
        ({"a.zip": _zip("1.jpg"), "b/c.zip": _zip("2.jpg")}, "docs/sources.md"),
        ({"a/x.parquet": _parquet(a=[1]), "b/x.parquet": _parquet(a=[1]), "README.md": b"#"}, "docs/tables.md"),
    ],
)
def test_a_layout_without_a_command_names_a_page(files: dict[str, bytes], page: str, tmp_path: Path) -> None:
    """If no command fits the layout, the note names the page about it."""
    write_tree(tmp_path / "src", files)
    ran = typed("create", "src", "plain/x-{0..}.tar", cwd=tmp_path)
    assert (ran.code, f"packed as one sample: see {page}\n" in ran.err) == (0, True)
