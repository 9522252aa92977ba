"""The page is self-contained and safe, and reports what it does not show."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
import tracemalloc
import wave
from dataclasses import dataclass, field
from functools import lru_cache
from html import unescape
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardtool import CreateOptions, create, inspect
from shardtool.cli.summary_text import summary_text
from shardtool.dataset.find import open_dataset
from shardtool.errors import InvalidRequest, OutputExists
from shardtool.transform import thumbnail
from shardtool.units import format_size
from shardtool.verbs.inspect.page import media
from shardtool.verbs.inspect.page.page import write_page
from shardtool.verbs.inspect.page.rows import script_json
from tests.helpers import PHOTOS, typed, write_tree
from tests.transform.test_image import DEPTHS
from tests.verbs.inspect.made import HOSTILE_KEYS, hostile, image, labelled, mask, noise, showing, sound, write_shard

if TYPE_CHECKING:
    from pathlib import Path

_VOID = {"meta", "img", "input", "br", "hr", "link"}
_FIVE_MB = 5_000_000


class _Reader(HTMLParser):
    """Parses a page and keeps the parts that tests check."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self.rows: list[list[str]] = []
        self.titles: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        if inside == "script":
            self.scripts.append((self.tags[-1][1], data))
        elif inside == "style":
            self.styles.append(data)
        else:
            self.text.append(data)
        if inside == "h2":
            self.titles.append(data)
        elif "td" in self.open:
            self.rows[-1][-1] += data


@dataclass
class _Page:
    """A parsed page."""

    html: str
    reader: _Reader
    samples: list[dict[str, Any]] = field(default_factory=list)
    unusual: list[dict[str, Any]] = field(default_factory=list)
    table: dict[str, Any] = field(default_factory=dict)

    def column(self, name: str) -> list[Any]:
        """Return the values of a column in all rows of the table."""
        column = next(sample for sample in self.table["columns"] if sample["name"] == name)
        if "codes" not in column:
            return list(column["values"])
        return [None if code < 0 else column["names"][code] for code in column["codes"]]

    @property
    def keys(self) -> list[str]:
        """Return the keys of all rows as the page saves them."""
        return [self.table["keys"].get(str(row), key) for row, key in enumerate(self.column("key"))]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.reader.text).split())

    def tags(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.reader.tags if tag == name]


def _read(path: Path) -> _Page:
    html = path.read_text("utf-8")
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    found, table = (
        json.loads("".join(text for kind, text in reader.scripts if kind.get("id") == name))
        for name in ("data", "rows-data")
    )
    shown, unusual = ([sample for sample in found if bool(sample["why"]) == is_unusual] for is_unusual in (False, True))
    return _Page(html, reader, shown, unusual, table)


def read_page(*given: Path, samples: int | None = None, **options: Any) -> _Page:
    """Write the page of datasets next to the first one, and parse it."""
    out = given[0].parent / "page.html" if given[0].is_file() else given[0].with_name("page.html")
    with showing(samples):
        write_page([*map(open_dataset, given)], str(out), overwrite=True, **options)
    return _read(out)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, sample_data: Path) -> Path:
    """Return the dataset file of the sample photographs, labelled by folder."""
    folder = tmp_path_factory.mktemp("photos")
    ran = typed("create", sample_data, folder / "p-{000000..}.tar", "--max-size", "500kB", "--label-from-folder")
    assert ran.code == 0, ran
    return folder / "p.json"


@pytest.fixture(scope="module")
def photo_page(photos: Path) -> _Page:
    """Return the page of the sample photographs."""
    return read_page(photos, samples=40)


@pytest.mark.slow
def test_nothing_is_fetched(photo_page: _Page) -> None:
    """Images are data URLs, links are anchors, and there is no style attribute, so a browser fetches nothing."""
    for tag, attributes in photo_page.reader.tags:
        assert not {"style", "onclick", "onload", "onerror", "srcset", "action"} & set(attributes), tag
        if "src" in attributes:
            assert tag == "img"
            assert str(attributes["src"]).startswith("data:image/webp;base64,")
        if "href" in attributes:
            assert str(attributes["href"]).startswith("#")
    assert {tag for tag, _ in photo_page.reader.tags}.isdisjoint({"link", "iframe", "object", "embed", "base", "form"})
    assert "http://" not in photo_page.html
    assert "https://" not in photo_page.html


def test_the_policy_allows_only_the_pages_own_script(photo_page: _Page) -> None:
    """The policy contains the hashes of exactly the page's script and style sheet, and allows nothing else."""
    policy = next(sample["content"] for sample in photo_page.tags("meta") if sample.get("http-equiv"))
    runs = [text for kind, text in photo_page.reader.scripts if kind.get("type") != "application/json"]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in runs]
    style = base64.b64encode(hashlib.sha256("".join(photo_page.reader.styles).encode()).digest()).decode()
    assert len(runs) == 1
    assert policy == (
        f"default-src 'none'; img-src data:; media-src data:; style-src 'sha256-{style}'; "
        f"script-src 'sha256-{hashes[0]}'; base-uri 'none'; form-action 'none'"
    )


def test_every_link_has_a_target(photo_page: _Page) -> None:
    """Every link leads to an element with that id, and ids are unique."""
    ids = [attributes["id"] for _, attributes in photo_page.reader.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert {str(sample["href"])[1:] for sample in photo_page.tags("a")} <= set(ids)


def test_images_and_numbers_need_no_script(photo_page: _Page) -> None:
    """The images with alternative texts, the totals, labels and fingerprint are in the HTML itself."""
    pictures = photo_page.tags("img")
    assert len(photo_page.samples) == 40
    for picture, shown in zip(pictures, photo_page.samples + photo_page.unusual, strict=True):
        label = re.escape(f"{shown['key']}, {shown['labels']['cls']}")
        assert re.fullmatch(rf"{label}, JPEG image, \d+ by \d+ pixels", str(picture["alt"]))
    for said in ("98", "samples", "astronaut", "rocket", "b2:", "complete", "40 of 98", "label from folder"):
        assert said in photo_page.text


@pytest.mark.slow
def test_pages_are_reproducible(photos: Path, tmp_path: Path) -> None:
    """The same files give the same bytes, wherever and whenever; another seed gives another page."""
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for file in photos.parent.glob("p*"):
        shutil.copy2(file, moved)
    first, second, third = (tmp_path / name for name in ("a.html", "b.html", "c.html"))
    with showing(10):
        write_page(open_dataset(photos), str(first))
        write_page(open_dataset(moved / "p.json"), str(second))
        write_page(open_dataset(photos), str(third), seed=1)
    assert first.read_bytes() == second.read_bytes() != third.read_bytes()
    assert str(tmp_path) not in second.read_text()


def test_every_label_is_shown(photo_page: _Page) -> None:
    """With at least as many samples as labels, every label has equally many samples, or all it has."""
    counts: dict[str, int] = {}
    for sample in photo_page.samples:
        counts[sample["labels"]["cls"]] = counts.get(sample["labels"]["cls"], 0) + 1
    assert counts == dict.fromkeys(counts, 5)
    assert len(counts) == 8


def test_a_rare_label_is_shown(tmp_path: Path) -> None:
    """One sample in a thousand is shown if it is the only one with its label."""
    samples = {f"{at:04}": {"txt": b"text", "cls": b"7" if at == 613 else b"1"} for at in range(1000)}
    write_shard(tmp_path / "d" / "s-000000.tar", samples)
    assert "0613" in {sample["key"] for sample in read_page(tmp_path / "d", samples=4).samples}


def test_samples_are_spread_over_shards(tmp_path: Path) -> None:
    """Without labels, samples are spread over all shards, large or small."""
    for number in range(6):
        keys = range(1 + 40 * (number % 2))
        write_shard(tmp_path / "d" / f"s-{number:06}.tar", {f"{number}-{at:03}": {"txt": b"some text"} for at in keys})
    assert {sample["shard"] for sample in read_page(tmp_path / "d", samples=6).samples} == {
        f"s-{at:06}.tar" for at in range(6)
    }


def test_a_label_column_may_change_its_type(tmp_path: Path) -> None:
    """A label column with another type in each shard is shown as far as it is a label."""
    for number, values in enumerate((["a", "b"], [None, None], [["a"], ["b", "c"]], [1, 2])):
        table = pa.table({"key": [f"{number}{at}" for at in range(2)], "txt": ["x", "y"], "label": values})
        create(table, f"{tmp_path}/d/s-{number}.tar", CreateOptions(field=("txt=txt",), workers=0))
        (tmp_path / "d" / f"s-{number}.json").unlink()
    page = read_page(tmp_path / "d")
    assert [sample["labels"].get("label") for sample in page.samples][:4] == ["a", "b", None, None]
    assert len(page.samples) == 8


@pytest.mark.parametrize("samples", [1, 7, 36, 50])
def test_the_page_reports_how_many_samples_it_shows(tmp_path: Path, samples: int) -> None:
    """The page shows the requested number of samples, or all, and reports both numbers."""
    write_shard(tmp_path / "d" / "s-000000.tar", labelled(range(20), 3))
    write_shard(tmp_path / "d" / "s-000001.tar", labelled(range(20, 36), 3))
    page = read_page(tmp_path / "d", samples=samples)
    assert len(page.samples) == min(samples, 36)
    said = f"{samples} of 36" if samples < 36 else "All 36"
    assert said in page.text


def test_hostile_content_is_text(tmp_path: Path) -> None:
    """Keys, labels, texts and field names add no element, attribute or script."""
    page = read_page(hostile(tmp_path / "d"))
    assert len(page.samples) == len(HOSTILE_KEYS) + 1
    names = {name for _, attributes in page.reader.tags for name in attributes}
    assert not any(name.startswith("on") for name in names)
    assert {name for name, _ in page.reader.tags}.isdisjoint({"i", "iframe", "object"})
    assert [sample["texts"][-1]["kind"] for sample in page.samples[:2]] == ["chat", "chat"]
    assert len([drawing for drawing in page.tags("svg") if "outlines" in str(drawing.get("class"))]) == len(
        HOSTILE_KEYS
    )
    assert len(page.tags("script")) == 3
    assert page.keys == [*HOSTILE_KEYS, "odd"]
    assert all(str(sample["src"]).startswith("data:") for sample in page.tags("img"))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", page.html)
    assert "${title}" in page.text
    assert max(len(sample["key"]) for sample in page.samples) < 300


@given(st.text(st.characters(exclude_categories=()), max_size=60))
def test_any_text_survives_in_the_script_data(text: str) -> None:
    """Any text survives in the page's JSON and cannot end its script element."""
    document = script_json([text])
    assert json.loads(document) == [text]
    assert not set("<>&\u2028\u2029") & set(document)


def test_damaged_samples_are_marked(tmp_path: Path) -> None:
    """A sample that cannot be decoded is marked with its problem; other samples are shown."""
    sound = image(1, size=(200, 200))
    samples = {
        "cut": {"jpg": sound[: len(sound) // 2]},
        "empty": {"jpg": b""},
        "none": {"png": b"no image at all"},
        "json": {"json": b'{"a": '},
        "sound": {"jpg": sound},
    }
    write_shard(tmp_path / "d" / "s-000000.tar", samples)
    page = read_page(tmp_path / "d")
    wrong = {sample["key"]: sample["problems"] for sample in page.samples}
    assert {key for key, problems in wrong.items() if problems} == {"cut", "empty", "none", "json"}
    assert "4 problems" in page.text
    assert page.html.count('class="wrong"') == 4
    assert len(page.tags("img")) == 1


def test_missing_files_are_named(photos: Path, tmp_path: Path) -> None:
    """The page is written although a shard and a sidecar are missing, and names both."""
    for file in photos.parent.glob("p*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "p-000001.tar").unlink()
    (tmp_path / "p-000002.index").unlink()
    page = read_page(tmp_path / "p.json", samples=8)
    assert "1 shard missing" in page.text
    assert "no such file or directory" in page.text
    assert "p-000002.index" in page.text
    assert "complete" not in page.text
    assert len(page.samples) == 8


def test_the_page_stays_below_five_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Incompressible images, long texts and many labels do not make the page larger than 5 MB."""
    monkeypatch.setattr(thumbnail, "encode_thumbnail", lru_cache(thumbnail.encode_thumbnail))
    pictures = [noise(seed, 230) for seed in range(3)]
    samples = {
        f"{at:04}": {"png": pictures[at % 3], "txt": "日".encode() * 5_000, "cls": b"%d" % at} for at in range(200)
    }
    write_shard(tmp_path / "d" / "s-000000.tar", samples)
    write_page(open_dataset(tmp_path / "d"), str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").stat().st_size < _FIVE_MB


def test_the_page_reports_which_shards_were_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If only some indexes are read, the page reports how many, and the total."""
    monkeypatch.setattr("shardtool.verbs.inspect.overview.MAX_READ_SAMPLES", 15)
    tree = write_tree(tmp_path / "tree", {f"{at:03}.txt": b"text" for at in range(50)})
    ran = typed("create", tree, tmp_path / "s-{000000..}.tar", "--max-count", "5")
    assert ran.code == 0, ran
    page = read_page(tmp_path / "s.json", samples=4)
    assert "From 3 of 10 shards (15 samples)" in page.text
    assert "4 of 50" in page.text
    assert "from 3 of 10 shards" in page.text


def test_class_numbers_in_tfrecords_have_names(sample_data: Path, tmp_path: Path) -> None:
    """The class numbers of a TFRecord dataset are shown with class names, and counted."""
    ran = typed("create", sample_data, tmp_path / "r-{000000..}.tfrecord", "--label-from-folder", "--max-size", "900kB")
    assert ran.code == 0, ran
    page = read_page(tmp_path / "r.json", samples=8)
    assert {sample["labels"]["cls"] for sample in page.samples} == {path.name for path in sample_data.iterdir()}
    assert all(sample["images"] for sample in page.samples)
    assert "astronaut 16 16.3%" in page.text


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    """An existing file is not replaced without `overwrite`; files of the dataset never are."""
    shard = write_shard(tmp_path / "d" / "s-000000.tar", labelled(range(3), 2))
    before, dataset = shard.read_bytes(), open_dataset(tmp_path / "d")
    out = tmp_path / "page.html"
    out.write_text("mine")
    with pytest.raises(OutputExists):
        write_page(dataset, str(out))
    assert out.read_text() == "mine"
    out.write_text("")
    for _ in range(2):
        write_page(dataset, str(out), overwrite=True)
    assert out.read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(InvalidRequest):
        write_page(dataset, str(shard), overwrite=True)
    assert shard.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "page.html"]


def _dataset(kind: str, folder: Path) -> Path:
    """Write a dataset whose labels come from folders, classes, columns, a field, or shards without sidecars."""
    options, ending = {
        "folders": (CreateOptions(label_from_folder=True, max_size="900kB"), "tar"),
        "tfrecord": (CreateOptions(label_from_folder=True, max_size="900kB"), "tfrecord"),
        "classes": (CreateOptions(field=("cls=bi", "w=width"), classes=("cls",), max_size="1MB"), "tar"),
        "columns": (CreateOptions(max_size="1MB"), "tar"),
        "species": (CreateOptions(field=("species=species",), max_count=20), "tar"),
        "foreign": (CreateOptions(label_from_folder=True, max_size="900kB"), "tar"),
    }[kind]
    rows = range(50)
    table = pa.table(
        {"key": [f"{at:02}" for at in rows], "species": [("ant", "bee", "cat")[at % 7 % 3] for at in rows]}
    )
    source = {"classes": PHOTOS.parent / "photos.csv", "columns": PHOTOS.parent / "photos.csv", "species": table}
    create(source.get(kind, PHOTOS), f"{folder}/d-{{0..}}.{ending}", options)
    for path in [*folder.glob("*.index"), folder / "d.json"] if kind == "foreign" else []:
        path.unlink()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folders", "tfrecord", "classes", "columns", "species", "foreign"])
def test_page_and_text_show_the_same_numbers(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has the same totals, fields, labels, splits and columns as the text and JSON of `inspect`."""
    folder = _dataset(kind, tmp_path / "d")
    summary, page = inspect(folder), read_page(folder, samples=20)
    rows = {tuple(row) for row in page.reader.rows}
    shards = summary.shard_sizes.count
    noun = "shards" if shards > 1 else "shard"
    totals = f"samples {summary.samples:,} {noun} {shards} total size {format_size(summary.size)}"
    assert totals in page.text
    for name, stored in summary.fields.items():
        share = f"{stored.samples:,} ({100 * stored.samples / summary.samples:.3g}%)"
        size = stored.size
        sizes = map(format_size, (size.total, size.smallest, size.median, size.largest))
        note = "all the same size" if size.smallest == size.largest else ""
        assert (name, "all" if stored.samples == summary.samples else share, *sizes, note) in rows
    titles = {f"{title} {name}" for name in summary.labels for title in ("Labels:", "Column")}
    assert len(titles & set(page.reader.titles)) == len(summary.labels) > 0
    for label in summary.labels.values():
        for value in label.values if label.distinct > 1 else ():
            assert (value.name, "", f"{value.samples:,}", f"{100 * value.samples / label.samples:.3g}%") in rows
    split_counts = {(row[0], row[2]) for row in rows if len(row) == 4}
    assert split_counts >= {(name, f"{samples:,}") for name, samples in summary.splits.items()}
    assert all(f"{name} ({column.type})" in page.text for name, column in summary.columns.items())
    read = page.html[page.html.index("import shardtool") :].partition("</pre>")[0]
    monkeypatch.chdir(folder)
    exec(unescape(read), {})  # noqa: S102 - what a reader of the page would run
    monkeypatch.setenv("COLUMNS", "160")
    assert typed("inspect", folder).out.rstrip() == summary_text(summary, 160)
    assert json.loads(typed("inspect", folder, "--json").out) == json.loads(json.dumps(summary.to_json()))


def test_several_datasets_are_compared(tmp_path: Path) -> None:
    """A page of several datasets shows samples of each, and compares their labels."""
    for name, labels, count in (("train", 4, 40), ("test", 2, 10)):
        write_shard(tmp_path / name / f"{name}-000000.tar", labelled(range(count), labels))
    ran = typed("inspect", tmp_path / "train", tmp_path / "test", "--html", tmp_path / "page.html")
    assert ran.code == 0, ran
    page = _read(tmp_path / "page.html")
    ids = [attributes["id"] for _, attributes in page.reader.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert {str(sample["href"])[1:] for sample in page.tags("a")} <= {*ids}
    assert [sample["labels"]["dataset"] for sample in page.samples] == ["train"] * 40 + ["test"] * 10
    rows = [row for row in page.reader.rows if len(row) == 3]
    assert rows == [["0", "25%10", "50%5"], ["1", "25%10", "50%5"], ["2", "25%10", "none"], ["3", "25%10", "none"]]
    assert "train: no dataset file" in page.text


@pytest.mark.parametrize("labels", [300, 30])
def test_each_class_has_a_sample(tmp_path: Path, labels: int) -> None:
    """By default, each class has a sample on the page, with a link to it."""
    samples = {f"{at:05}": {"txt": b"t", "cls": b"%d" % (at % labels)} for at in range(labels + 107)}
    for number in range(3):
        part = dict([*samples.items()][number::3])
        write_shard(tmp_path / "d" / f"s-{number:06}.tar", part)
    page = read_page(tmp_path / "d")
    assert len(page.samples) == max(labels, min(200, len(samples)))
    assert {sample["labels"]["cls"] for sample in page.samples} == {str(at) for at in range(labels)}
    named = {sample["id"]: sample["labels"]["cls"] for sample in page.samples}
    linked = {named[str(sample["href"])[1:]] for sample in page.tags("a") if str(sample["href"])[1:] in named}
    assert linked == {str(at) for at in range(labels)}


def test_anchors_follow_from_keys(tmp_path: Path) -> None:
    """A sample's anchor follows from its key alone; repeated keys get a number."""
    write_shard(tmp_path / "d" / "s-000000.tar", {"cat/a b": {"txt": b"1"}, '"><i>': {"txt": b"2"}})
    write_shard(tmp_path / "d" / "s-000001.tar", {"cat/a b": {"txt": b"3"}, "k" * 300: {"txt": b"4"}})
    names = [sample["id"] for sample in read_page(tmp_path / "d").samples]
    assert names == ["s-cat/a%20b", "s-%22%3E%3Ci%3E", "s-cat/a%20b~2", "s-" + "k" * 120]


def test_a_single_value_is_a_sentence(tmp_path: Path) -> None:
    """A single shard, label or size is a sentence instead of a chart."""
    write_shard(tmp_path / "d" / "s-000000.tar", {f"{at}": {"txt": b"text", "cls": b"7"} for at in range(9)})
    page = read_page(tmp_path / "d")
    assert "One shard, s-000000.tar: " in page.text
    assert "All 9 samples: 7" in page.text
    assert "Each sample has 5 B of payload." in page.text
    assert not page.tags("svg")


_STRIPES = {  # values, mode, field: whether it is a mask next to a photograph, and alone
    "classes": ((0, 1, 2, 17, 255), "L", "png", True, True),
    "numbered": ((0, 300, 1200), "I;16", "png", True, False),
    "far": ((0, 90, 180), "L", "png", True, False),
    "called": ((0, 90, 180), "L", "labelIds.png", True, True),
    "truth": ((0, 1), "1", "png", True, False),
    "cut out": ((0, 255), "L", "png", True, False),
    "grey": (tuple(range(100)), "L", "png", False, False),
}


@pytest.mark.parametrize("case", _STRIPES)
def test_masks_are_coloured(case: str, tmp_path: Path) -> None:
    """A mask has the colours of its legend and is laid over its photograph; other images are not."""
    values, mode, name, beside, alone = _STRIPES[case]
    data = mask(values, mode, (200, 20))
    small = {"both": {name: data, "jpg": image(1, size=(200, 20))}, "one": {name: data}}
    write_shard(tmp_path / "d" / "s-000000.tar", small)
    page = read_page(tmp_path / "d")
    for sample, is_mask in zip(page.samples, (beside, alone), strict=True):
        shown = sample["images"][-1]
        assert bool(shown["colours"]) == is_mask
    assert page.samples[0]["over"] == beside
    own_class = "sharp" if alone else None
    assert [tag.get("class") for tag in page.tags("img")] == [None, *(["mask"] if beside else []), own_class]
    if alone:
        overlay = Image.open(io.BytesIO(base64.b64decode(str(page.tags("img")[2]["src"]).partition(",")[2])))
        pixels = np.asarray(overlay).reshape(-1, 4).tolist()
        seen = {"#{:02x}{:02x}{:02x}".format(*pixel[:3]) for pixel in pixels if pixel[3]}
        assert seen == {colour for value, colour in page.samples[1]["images"][0]["colours"] if value}
        assert [value for value, _ in page.samples[1]["images"][0]["colours"]] == [*values]


def test_a_coloured_palette_is_kept(tmp_path: Path) -> None:
    """A mask with a coloured palette keeps it."""
    own = Image.new("P", (30, 10), 1)
    own.putpalette([0, 0, 0, 200, 10, 30, 9, 8, 250])
    own.paste(2, (0, 0, 9, 9))
    out = io.BytesIO()
    own.save(out, "PNG")
    write_shard(tmp_path / "d" / "s-000000.tar", {"a": {"jpg": image(2, size=(30, 10)), "seg.png": out.getvalue()}})
    assert read_page(tmp_path / "d").samples[0]["images"][1]["colours"] == [[1, "#c80a1e"], [2, "#0908fa"]]


def test_clips_are_included_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Playable clips are in the page, up to its limit and from all over the dataset; others show their duration."""
    monkeypatch.setattr("shardtool.verbs.inspect.page.page._MEDIA_BYTES", 600_000)
    kinds = {
        "mp4": b"\0\0\0\x20ftypisom",
        "webm": b"\x1a\x45\xdf\xa3....webm",
        "mp3": b"\xff\xfb\x90\x64" + bytes(2000),
    }
    samples: dict[str, dict[str, bytes]] = {f"k{name}": {name: data} for name, data in kinds.items()}
    samples |= {"html": {"wav": b"<script>alert(1)</script>"}, "none": {"mp4": b"ftyp"}}
    samples |= {f"{at:03}": {"wav": sound(10 if at % 2 else 0.5)} for at in range(60)}
    write_shard(tmp_path / "d" / "s-000000.tar", samples)
    page = read_page(tmp_path / "d")
    played = [str(sample["src"]) for name in ("audio", "video") for sample in page.tags(name)]
    assert {source.partition(";")[0] for source in played} == {
        "data:audio/wav",
        "data:audio/mpeg",
        "data:video/mp4",
        "data:video/webm",
    }
    assert sum(map(len, played)) < 810_000
    said = {sample["key"]: [clip["description"] for clip in sample["clips"]] for sample in page.samples}
    assert said["000"] == ["audio, 0.5 s"]
    assert said["kmp3"] == ["audio, 0.1 s"]
    assert said["html"] == said["none"] == []
    playing = {sample["key"] for sample in page.samples if sample["clips"] and sample["clips"][0]["size"]}
    assert {key[:2] for key in playing} >= {"00", "01", "02", "03", "04", "05"}
    for source in played:
        data = base64.b64decode(source.partition(",")[2])
        if data[:4] == b"RIFF":
            with wave.open(io.BytesIO(data)) as file:
                assert len(file.readframes(10**9)) == file.getnframes() * 2 == len(data) - 44
    assert any("audio, 10.0 s, the first" in value[0] for value in said.values() if value)


def test_deep_json_needs_bounded_memory(tmp_path: Path) -> None:
    """Only the shown part of deeply nested JSON is indented: 100 kB would become 30 MB."""
    deep = b"[" * 300 + b",".join([b"1"] * 50_000) + b"]" * 300
    shard = write_shard(tmp_path / "x-000.tar", {"deep": {"json": deep}, "flat": {"json": b'{"a": [1]}'}})
    read_page(shard)  # and what is imported for it
    tracemalloc.start()
    page = read_page(shard)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 25_000_000
    texts = {sample["key"]: sample["texts"][0] for sample in page.samples}
    assert (texts["deep"]["kind"], texts["deep"]["cut"], texts["flat"]["cut"]) == ("json", True, False)
    assert json.loads(texts["flat"]["text"]) == {"a": [1]}


@given(data=st.binary(max_size=60), head=st.sampled_from([b"RIFF....WAVE", b"fLaC", b"\x1a\x45\xdf\xa3webm", b"...."]))
def test_cut_audio_has_a_matching_header(data: bytes, head: bytes) -> None:
    """Cut audio keeps its length, and a WAV header has the actual data length."""
    cut = media.trim_audio(head + data)
    assert len(cut) == len(head + data)
    at = cut.find(b"data", 12)
    if cut[:4] == b"RIFF" and 0 <= at <= len(cut) - 8:
        assert int.from_bytes(cut[at + 4 : at + 8], "little") == len(cut) - at - 8


def test_truncated_audio_is_a_problem(tmp_path: Path) -> None:
    """Audio cut off by the end of a shard is a problem of its sample; samples before it play."""
    path = write_shard(tmp_path / "d" / "s-000000.tar", {"a": {"wav": sound(1)}, "b": {"wav": sound(60)}})
    for size in (17_500, 18_000, 60_000):
        data = path.read_bytes()
        (tmp_path / f"{size}").mkdir()
        (tmp_path / f"{size}" / "s-000000.tar").write_bytes(data[:size])
        page = read_page(tmp_path / f"{size}")
        assert page.samples[0]["clips"][0]["description"] == "audio, 1.0 s"
        assert "problem" in page.text


def test_unusual_samples_are_found(tmp_path: Path) -> None:
    """The smallest and largest sample, the widest and tallest image, and duplicates are found."""
    rows = range(200)
    shapes = {17: (900, 3), 101: (4, 800)}
    table = pa.table({
        "key": [f"{at:03}" for at in rows],
        "txt": ["x" * {7: 5, 151: 9999}.get(at, 300 + at) if at % 50 else "the same text, " * 20 for at in rows],
        "width": [shapes.get(at, (30, 20))[0] for at in rows],
        "height": [shapes.get(at, (30, 20))[1] for at in rows],
    })  # fmt: skip
    create(table, f"{tmp_path}/d/s-{{0..}}.tar", CreateOptions(field=("txt=txt",), max_count=60, workers=0))
    page = read_page(tmp_path / "d", samples=5)
    reasons = [(sample["key"], sample["why"]) for sample in page.unusual]
    assert reasons == [
        ("007", "smallest: 29 B"), ("151", "largest: 10 kB"), ("017", "widest: 900 by 3"),
        ("101", "tallest: 4 by 800"),
        ("000", "duplicate: same content as 050"), ("050", "duplicate: same content as 000"),
    ]  # fmt: skip
    assert "3 samples have the sizes and checksums of an earlier sample." in page.text
    assert len(page.samples) == 5
    assert len({sample["id"] for sample in page.samples + page.unusual}) == 11


def test_uniform_datasets_have_no_unusual_samples(tmp_path: Path) -> None:
    """If all samples have one size, no shape and no duplicates, none is unusual."""
    write_shard(tmp_path / "d" / "s-000000.tar", {f"{at:03}": {"txt": b"%0100d" % at} for at in range(60)})
    assert read_page(tmp_path / "d", samples=5).unusual == []


@pytest.mark.parametrize("name", DEPTHS)
def test_deep_images_are_scaled(name: str) -> None:
    """An image with more than 8 bits is scaled from its smallest to its largest value, without clipping."""
    small = thumbnail.make_thumbnail(DEPTHS[name][0], "m.tif", 64)
    assert len(set(Image.open(io.BytesIO(small.data)).convert("L").tobytes())) > 1
