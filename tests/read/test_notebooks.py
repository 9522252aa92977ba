"""What notebooks show for datasets and results, and the notebook of examples/."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

import shardtool
from shardtool.errors import InvalidRequest
from shardtool.read import dataset_html
from tests.helpers import REPO, write_tree

if TYPE_CHECKING:
    from pathlib import Path

_HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m"
_TAGS = {"div", "b", "table", "tr", "th", "td", "img", "code", "br", "p"}
PHOTOS = REPO / "sample_data" / "photos"


class _Elements(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.images: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert {name for name, _ in attrs} <= {"style", "src", "title", "alt"}
        self.images += [value or "" for name, value in attrs if name == "src"]


def _check(html: str, *texts: str) -> _Elements:
    elements = _Elements(html)
    assert {*elements.tags} <= _TAGS
    assert all(source.startswith("data:image/webp;base64,") for source in elements.images)
    assert "\x1b" not in html
    assert [text for text in texts if text not in html] == []
    return elements


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """The sample photographs, with class numbers."""
    shardtool.create(PHOTOS, tmp_path / "p-{00..}.tar", label_from_folder=True, max_size="1MB", workers=0)
    return tmp_path / "p.json"


def test_a_dataset_is_a_table_and_thumbnails(photos: Path) -> None:
    """A dataset shows its fields, classes and columns, and thumbnails of the first samples with their labels."""
    dataset = shardtool.open(photos)
    elements = _check(dataset._repr_html_(), "<td", ">jpg<", ">98<", "8: astronaut, brick", "astronaut-0001")
    assert len(elements.images) == 6
    view = dataset.where("cls == 'cat'").decode()
    assert len(_check(view._repr_html_(), "14 of 98", "cat/cat-0001", "decode").images) == 6
    assert len(view._repr_html_()) < 100_000


def test_hostile_and_large_samples_are_escaped_and_not_read(tmp_path: Path) -> None:
    """Keys, texts and columns of a dataset are escaped; large fields are named, not read."""
    text = b"<script>alert(1)</script>" * 5000
    tree = {"a'\"<b>.txt": text[:500], "a'\"<b>.bin": bytes(10), "b.txt": text, "c.jpg": b"\xff\xd8\xffbroken"}
    source = write_tree(tmp_path / "in", tree)
    shardtool.create(source, tmp_path / "o-{0..}.tar", workers=0)
    html = shardtool.open(tmp_path / "o.json")._repr_html_()
    _check(html, "&lt;script&gt;", "txt 125 kB", "jpg: ")
    assert len(html) < 10_000


def test_unreadable_datasets_show_the_error(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook shows what can be read, and the error of what cannot; slow parts are omitted."""
    dataset = shardtool.open(photos)
    monkeypatch.setattr(dataset_html, "_MAX_SECONDS", 0.0)
    _check(dataset._repr_html_(), "98 samples")
    monkeypatch.undo()
    for shard in photos.parent.glob("p-*"):
        shard.write_bytes(b"")
    _check(shardtool.open(photos)._repr_html_(), "98 samples", "p-00")
    assert shardtool.open(photos)._ipython_key_completions_() == []


def test_first_samples_are_short(photos: Path) -> None:
    """The `repr` of the first samples counts the bytes of long fields, and gives the shapes of arrays."""
    dataset = shardtool.open(photos)
    size = len(dataset[0]["jpg"])
    assert re.match(rf"\[{{'__key__': '[^']+', 'cls': b'0', 'jpg': <{size:,} bytes>, ", repr(dataset.head(2)))
    height, width = dataset.decode()[0]["jpg"].shape[:2]
    assert f"'jpg': <uint8 [{height}, {width}, 3]>" in repr(dataset.decode().head(1))
    assert dataset.head(2) == dataset[[0, 1]]


def test_keys_complete(photos: Path) -> None:
    """`dataset["` completes keys."""
    dataset = shardtool.open(photos)
    assert dataset._ipython_key_completions_() == [*dataset.keys]


def test_results_are_tables(photos: Path) -> None:
    """Results and reports have a short `repr`, and are tables in notebooks."""
    plan = shardtool.create(PHOTOS, photos.parent / "q-{0000..}.tar", max_count=1, dry_run=True, workers=0)
    assert len(repr(plan)) < 300
    assert "planned=<98 items>" in repr(plan)
    _check(plan._repr_html_(), "astronaut-0001", "and 78 more")
    _check(shardtool.inspect(photos)._repr_html_(), "fields", "cat 14", "2.6")
    _check(shardtool.diff(photos, photos)._repr_html_(), "same", "yes")
    _check(shardtool.find_duplicates(photos)._repr_html_(), "98")
    shard = next(photos.parent.glob("p-*.tar"))
    shard.write_bytes(shard.read_bytes()[:-512])
    report = shardtool.verify(photos, workers=0)
    _check(report._repr_html_(), "shard-size", "Restore the file from a copy")
    assert re.fullmatch(r"Report\(dataset='.*', sound=False, findings=<\d+ items?>, .*\)", repr(report))


def test_results_escape_texts(tmp_path: Path) -> None:
    """Names in results are escaped."""
    source = write_tree(tmp_path / "in", {"<b>/1.txt": b"x"})
    result = shardtool.create(source, tmp_path / "i&j-{0..}.tar", dry_run=True, workers=0)
    _check(result._repr_html_(), "i&amp;j-0.tar", "&lt;b&gt;/1")


def test_hugging_face_is_required(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `datasets`, `to_hf` names the command that installs it; after other stages, it is refused."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InvalidRequest, match=r"^to_hf: datasets cannot be imported: .* Run `pip install datasets`\.$"):
        shardtool.open(photos).to_hf()
    with pytest.raises(InvalidRequest, match=r"^to_hf: called after other stages; expected stored samples"):
        shardtool.open(photos).decode().to_hf()


@pytest.mark.slow
def test_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells of the notebook run, except those that train with PyTorch; no outputs are stored."""
    (tmp_path / "sample_data").symlink_to(REPO / "sample_data")
    (tmp_path / "examples").mkdir()
    notebook = json.loads((REPO / "examples" / "tour.ipynb").read_text())
    monkeypatch.chdir(tmp_path / "examples")
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in cells] == [[]] * len(cells)
    names: dict[str, object] = {}
    for code in ("".join(cell["source"]) for cell in cells):
        if "import torch" not in code:
            exec(compile(code, "tour.ipynb", "exec"), names)  # noqa: S102 - our own notebook
    assert len(names["train"]) == 78  # type: ignore[arg-type]
    assert {key.partition("/")[0] for key in names["cats"].keys} == {"cat"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num_rows", "Use len(dataset)"), ("labels", "Use column('cls')"), ("split", "Use partition('train')"),
        ("shuffle", "Use stream(shuffle=True, seed=0)"), ("save_to_disk", "Use shardtool.reshard(path, output)"),
    ],
)  # fmt: skip
def test_names_of_other_libraries_have_hints(photos: Path, name: str, hint: str) -> None:
    """A method of another library is missing, and the error names the equivalent."""
    with pytest.raises(AttributeError, match=re.escape(f"Dataset has no {name}. {hint}")):
        getattr(shardtool.open(photos), name)


def test_other_ways_to_open_have_hints(photos: Path) -> None:
    """`shardtool.load`, and a path passed to `Dataset`, name `open`."""
    with pytest.raises(AttributeError, match=r"has no attribute 'load'\. Use shardtool\.open$"):
        getattr(shardtool, "load")  # noqa: B009 - type checkers know that it does not exist
    with pytest.raises(InvalidRequest, match=r"^Dataset: .*Open a dataset with `shardtool\.open\(\.\.\.\)`"):
        shardtool.Dataset(photos)  # type: ignore[arg-type]
