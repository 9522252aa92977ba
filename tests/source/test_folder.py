from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, get_args
from urllib.parse import unquote_to_bytes

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardtool import CreateOptions, InvalidRequest, SampleFailed, create
from shardtool.names import to_bytes
from shardtool.source import scan
from shardtool.source.folder import collect_samples
from shardtool.source.scan import make_scan_tasks, scan_items
from shardtool.source.scan_part import ScanPart, ScanRules
from shardtool.values import Target
from tests.helpers import members, read_tree, shards, write_tree

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardtool.entries.sample_table import SampleTable
    from shardtool.skipped import Skipped

PATTERN = "out-{000..}.tar"
KeyField = tuple[bytes, bytes]


def _list(root: Path, rules: ScanRules | None = None, parts: int = 32) -> tuple[SampleTable, tuple[Skipped, ...]]:
    """List a tree as `create` does, in this process."""
    rules, top = rules or ScanRules(), ScanPart()
    start = os.fsencode(root) + b"/"
    parts_listed = [scan_items(task) for task in make_scan_tasks(start, rules, parts, top)]
    return collect_samples(start, [top.join_keys(), *parts_listed])


def _rows(entries: SampleTable) -> list[KeyField]:
    """Return (key, field) of every row."""
    rows = []
    for sample in range(len(entries)):
        for row in range(int(entries.first_rows[sample]), int(entries.first_rows[sample + 1])):
            rows.append((entries.keys[sample], to_bytes(entries.fields[entries.rows.code[row]])))
            assert entries.path(row) == b".".join(rows[-1])
    return rows


def _names(root: Path, rules: ScanRules | None = None) -> list[str]:
    return [b".".join(row).decode() for row in _rows(_list(root, rules)[0])]


def _expected(paths: Iterable[bytes], dots: str) -> tuple[list[KeyField], list[bytes]]:
    """Return the contents of a tree of these files, in order, and the files without a field, by applying the rules."""
    rows, without = [], []
    for path in paths:
        folder, slash, name = path.rpartition(b"/")
        at = name.find(b".", 1) if dots == "first" else name.rfind(b".")
        if at < 1 or at == len(name) - 1:
            without.append(path)
        else:
            rows.append((folder + slash + name[:at], name[at + 1 :]))
    return sorted(rows), sorted(without)


def test_files_and_folders_interleave(tmp_path: Path) -> None:
    """Samples are in the byte order of key and field, also where names of folders and files interleave."""
    order = ["1.jpg", "2.a.b", "2.cls", "2.jpg", "2 x.jpg", "2-a.jpg", "2/a.jpg", "2/a/b.jpg", "20.jpg", "2x/0.jpg",
             "2é/0.jpg", "3/b.jpg"]  # fmt: skip
    root = write_tree(tmp_path / "s", dict.fromkeys(reversed(order), b"x"))
    assert _names(root) == order
    assert [tuple(row.split(".", 1)) for row in order] == sorted(tuple(row.split(".", 1)) for row in order)


_PART = st.text("2a.-/x \x01\udcff~", min_size=1, max_size=7).map(lambda text: text.encode("utf-8", "surrogateescape"))


def _makeable(paths: list[bytes]) -> set[bytes]:
    """Return those of `paths` that can exist in the same tree."""
    files: set[bytes] = set()
    folders: set[bytes] = set()
    for path in paths:
        parts = path.split(b"/")
        above = {b"/".join(parts[:count]) for count in range(1, len(parts))}
        if {b"", b".", b".."} & set(parts) or path in folders or above & files:
            continue
        files.add(path)
        folders |= above
    return files


@given(st.lists(_PART, max_size=25), st.sampled_from(["first", "last"]), st.integers(1, 40), st.integers(1, 4))
@settings(max_examples=100)
@example([b"2/2.x", b"2.x", b"2.a.x", b"2-.x", b"2/.x.a", b"2/2/2.x", b"2 .x", b"22/a"], "first", 3, 1)
def test_any_tree(paths: list[bytes], dots: str, parts: int, chunk: int) -> None:
    """Any tree is listed as sorted (key, field), each file once, for any division into tasks."""
    files = _makeable(paths)
    rows, without = _expected(files, dots)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        root = write_tree(Path(folder), {path: path for path in files})
        patch.setattr(scan, "_MAX_ITEM_FILES", chunk)  # so that a few files are "a large folder"
        entries, skipped = _list(root, ScanRules(hidden=True, dots="first" if dots == "first" else "last"), parts)
    assert _rows(entries) == rows
    assert entries.rows.size.tolist() == [len(b".".join(row)) for row in rows]
    assert [(to_bytes(row.path), row.code) for row in skipped] == _escaped(without)


def _escaped(paths: list[bytes]) -> list[tuple[bytes, str]]:
    return [(path, "no-field") for path in paths]


def test_system_files_are_ignored(tmp_path: Path) -> None:
    """Names that Windows and macOS leave in folders are ignored, counted in a note, and not listed."""
    left = ["Thumbs.db", "a/b/desktop.ini", "a/.DS_Store", "a/b/._0.jpg", "a/b/._1.jpg", "__MACOSX/a/._0.jpg"]
    files = ["a/b/0.jpg", "a/b/1.jpg", "a/.hidden.jpg", "a/My Thumbs.db"]
    root = write_tree(tmp_path / "s", dict.fromkeys([*left, *files], b"x"))
    result = create(root, f"{tmp_path}/o/{PATTERN}", CreateOptions(workers=0))
    assert (result.samples, result.skipped) == (3, 0)
    (note,) = [note for note in result.notes if "operating systems" in note]
    assert note.startswith("ignored 6 files that operating systems create: ._*")
    assert note.endswith("(include them with hidden=True)")
    filtered = create(root, f"{tmp_path}/p/{PATTERN}", CreateOptions(workers=0, include=("*.jpg",), exclude=("._1*",)))
    assert next(note for note in filtered.notes if "operating" in note).startswith("ignored 1 file that ")
    hidden = create(root, f"{tmp_path}/q/{PATTERN}", CreateOptions(workers=0, hidden=True))
    assert (hidden.samples, hidden.skipped) == (len(left) + len(files) - 1, 1)
    assert not [note for note in hidden.notes if "operating" in note]


_TREE = ["a/0.jpg", "a/0.json", "a/b/1.jpg", "b/2.jpg", "b/2.txt", "c.jpg", "raw/3.jpg", "a/raw/4.jpg", ".git/x.jpg",
         "a/.5.jpg", "a/[6].jpg", "README"]  # fmt: skip
_SHOWN = ["a/0.jpg", "a/0.json", "a/[6].jpg", "a/b/1.jpg", "a/raw/4.jpg", "b/2.jpg", "b/2.txt", "c.jpg", "raw/3.jpg"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (ScanRules(), _SHOWN),
        (ScanRules(include=("*",)), _SHOWN),
        (ScanRules(include=("*.txt", "*.json")), ["a/0.json", "b/2.txt"]),
        (ScanRules(include=("a/*",)), ["a/0.jpg", "a/0.json", "a/[6].jpg", "a/b/1.jpg", "a/raw/4.jpg"]),
        (ScanRules(include=("./a/b/*",)), ["a/b/1.jpg"]),
        (ScanRules(include=("?.txt",)), ["b/2.txt"]),
        (ScanRules(include=("*.JPG",)), []),
        (ScanRules(exclude=("*.jpg",)), ["a/0.json", "b/2.txt"]),
        (ScanRules(exclude=("raw",)), [name for name in _SHOWN if "raw" not in name]),
        (ScanRules(exclude=("raw/",)), [name for name in _SHOWN if "raw" not in name]),
        (ScanRules(exclude=("raw/*",)), [name for name in _SHOWN if not name.startswith("raw/")]),
        (ScanRules(exclude=("a/raw",)), [name for name in _SHOWN if "a/raw" not in name]),
        (ScanRules(exclude=("[ab]",)), ["c.jpg", "raw/3.jpg"]),
        (ScanRules(exclude=("[[]6*",)), [name for name in _SHOWN if "[6]" not in name]),
        (ScanRules(include=("*.jpg",), exclude=("a/*", "c*")), ["b/2.jpg", "raw/3.jpg"]),
        (ScanRules(hidden=True), [".git/x.jpg", "a/.5.jpg", *_SHOWN]),
        (ScanRules(hidden=True, exclude=(".git",)), ["a/.5.jpg", *_SHOWN]),
    ],
)
def test_filters(rules: ScanRules, expected: list[str], tmp_path: Path) -> None:
    """Globs and `hidden` select files; a glob with a slash matches paths, any other matches names."""
    root = write_tree(tmp_path / "s", dict.fromkeys(_TREE, b"x"))
    assert _names(root, rules) == expected


def _linked(tmp_path: Path) -> Path:
    root = write_tree(tmp_path / "s", {"a/0.jpg": b"0", "a/b/1.jpg": b"1"})
    outside = write_tree(tmp_path / "outside", {"2.jpg": b"22", "deep/3.jpg": b"333"})
    (root / "file.jpg").symlink_to("a/0.jpg")
    (root / "twice.jpg").symlink_to("file.jpg")
    (root / "folder").symlink_to("a")
    (root / "out.jpg").symlink_to(outside / "2.jpg")
    (root / "outer").symlink_to("../outside")
    (root / "a" / "loop").symlink_to("..")
    (root / "a" / "self").symlink_to(".")
    (root / "dangling.jpg").symlink_to("nothing")
    os.mkfifo(outside / "pipe")
    (root / "pipe.jpg").symlink_to(outside / "pipe")
    return root


_INSIDE = ["a/0.jpg", "a/b/1.jpg", "file.jpg", "folder/0.jpg", "folder/b/1.jpg", "twice.jpg"]


@pytest.mark.parametrize(
    ("rules", "names", "codes"),
    [
        (
            ScanRules(symlinks="inside"),
            _INSIDE,
            {"out.jpg": "link-outside", "outer": "link-outside", "pipe.jpg": "link-outside"},
        ),
        (
            ScanRules(symlinks="follow"),
            [*_INSIDE[:5], "out.jpg", "outer/2.jpg", "outer/deep/3.jpg", "twice.jpg"],
            {"pipe.jpg": "special-file", "outer/pipe": "special-file"},
        ),
    ],
)
def test_links(rules: ScanRules, names: list[str], codes: dict[str, str], tmp_path: Path) -> None:
    """Links are followed within the tree, or all, but never in a loop; other links are reported."""
    entries, skipped = _list(_linked(tmp_path), rules)
    assert [b".".join(row).decode() for row in _rows(entries)] == names
    both = dict.fromkeys(("a/loop", "a/self", "folder/loop", "folder/self"), "link-loop")
    both["dangling.jpg"] = "dangling-link"
    assert {row.path: row.code for row in skipped} == both | codes


def test_a_link_to_itself_is_dangling(tmp_path: Path) -> None:
    """A link to itself is reported as a link to nothing, not as a special file."""
    root = write_tree(tmp_path / "s", {"a.jpg": b""})
    (root / "b.jpg").symlink_to("c.jpg")
    (root / "c.jpg").symlink_to("b.jpg")
    problems = {(row.path, row.code) for row in _list(root)[1]}
    assert problems in ({(name, code) for name in ("b.jpg", "c.jpg")} for code in ("dangling-link", "link-loop"))


def test_links_can_be_ignored(tmp_path: Path) -> None:
    """With `skip`, no link is followed, and none is an error."""
    entries, skipped = _list(_linked(tmp_path), ScanRules(symlinks="skip"))
    assert [b".".join(row).decode() for row in _rows(entries)] == ["a/0.jpg", "a/b/1.jpg"]
    assert skipped == ()


def test_a_link_is_packed_as_its_target(tmp_path: Path) -> None:
    """The target of a followed link is packed under the link's name."""
    root = write_tree(tmp_path / "s", {"a/0.jpg": b"zero"})
    (root / "b").symlink_to("a")
    (root / "c.jpg").symlink_to("a/0.jpg")
    create(root, str(tmp_path / PATTERN), CreateOptions(workers=0))
    assert members(*shards(tmp_path)) == [("a/0.jpg", b"zero"), ("b/0.jpg", b"zero"), ("c.jpg", b"zero")]


def test_a_source_may_be_a_link(tmp_path: Path) -> None:
    """A source that is a link is the folder to which it leads."""
    write_tree(tmp_path / "s", {"a/0.jpg": b"zero"})
    (tmp_path / "link").symlink_to("s")
    assert _names(tmp_path / "link") == ["a/0.jpg"]


def test_special_files_are_refused_unopened(tmp_path: Path) -> None:
    """Fifos and sockets are refused before anything is written, and no fifo is opened."""
    root = write_tree(tmp_path / "s", {"a/0.jpg": b"0"})
    os.mkfifo(root / "a" / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(root / "a" / "sock"))
    writer = threading.Thread(target=lambda: (root / "a" / "pipe.jpg").open("wb").close(), daemon=True)
    writer.start()  # waits until a reader opens the fifo
    with pytest.raises(SampleFailed, match=r"a/pipe\.jpg.*fifo.*a/sock"):
        create(root, str(tmp_path / PATTERN), CreateOptions(workers=0))
    assert shards(tmp_path) == []
    result = create(root, str(tmp_path / PATTERN), CreateOptions(workers=0, on_error="skip"))
    assert (result.samples, result.skipped) == (1, 2)
    assert create(root, str(tmp_path / "x.tar"), CreateOptions(workers=0, exclude=("pipe*", "sock"))).skipped == 0
    assert writer.is_alive()
    os.close(os.open(root / "a" / "pipe.jpg", os.O_RDONLY | os.O_NONBLOCK))
    writer.join(10)
    assert not writer.is_alive()


_TORN = [
    ["scan.2019.01.jpg"],
    ["a/scan.2019.01.jpg", "a/scan.2019.02.jpg", "a/plain.jpg"],
    ["v1.0-beta.jpg", "v1.1-beta.jpg", "v2.0-beta.jpg"],
    ["a..jpg", "b.jpg"],
]


@pytest.mark.parametrize("names", _TORN)
def test_suspicious_dots_are_refused(names: list[str], tmp_path: Path) -> None:
    """Names that the first dot would split in the wrong place are refused, with the options; either option works."""
    root = write_tree(tmp_path / "s", dict.fromkeys(names, b"x"))
    with pytest.raises(InvalidRequest, match=r"dots='last'.*dots='first'"):
        create(root, str(tmp_path / PATTERN), CreateOptions(workers=0))
    assert sorted(os.listdir(tmp_path)) == ["s"]
    first = create(root, str(tmp_path / PATTERN), CreateOptions(workers=0, dots="first"), dry_run=True)
    last = create(root, str(tmp_path / PATTERN), CreateOptions(workers=0, dots="last"), dry_run=True)
    assert last.to_json()["totals"] == {**last.to_json()["totals"], "samples": len(names)}  # type: ignore[dict-item]
    rows = sorted(_expected(map(os.fsencode, names), "first")[0])
    assert first.planned[0].first_key == rows[0][0].decode()
    assert any("end the key at its first dot" in note for note in last.notes)


@pytest.mark.parametrize(
    "names",
    [
        ["a.jpg", "a.seg.png", "b.jpg", "b.seg.png"],
        ["a.seg.png"],
        ["a.left.jpg", "a.right.jpg"],
        ["v1.0/a.jpg", "v1.1/a.jpg"],
        [f"{number}.{view}.jpg" for number in range(5) for view in ("left", "right", "top")],
    ],
)
def test_fields_with_dots_are_not_refused(names: list[str], tmp_path: Path) -> None:
    """Fields such as `seg.png`, and dots in folder names, are accepted."""
    root = write_tree(tmp_path / "s", dict.fromkeys(names, b"x"))
    create(root, str(tmp_path / PATTERN), CreateOptions(workers=0))
    assert sorted(name for name, _ in members(*shards(tmp_path))) == sorted(names)


def test_folders_become_labels(tmp_path: Path) -> None:
    """Each sample gets the number of its top folder in byte order; the dataset file lists the names."""
    classes = sorted(["Zebra", "ant", "b ee", "é", "dog/x", "dog/y/z", *(f"n{number:02}" for number in range(9))])
    files = {f"{name}/{at}.{field}": b"x" for name in classes for at in range(3) for field in ("bin", "jpg")}
    root = write_tree(tmp_path / "s", files)
    create(root, str(tmp_path / PATTERN), CreateOptions(workers=0, label_from_folder=True, max_count=4))
    tops = sorted({name.split("/")[0] for name in classes}, key=os.fsencode)
    packed = members(*shards(tmp_path))
    labels = {name.removesuffix(".cls"): data for name, data in packed if name.endswith(".cls")}
    assert len(labels) == 3 * len(classes)
    assert all(tops[int(data)] == key.split("/")[0] for key, data in labels.items())
    assert all(data == str(int(data)).encode() for data in labels.values())
    assert [name.rpartition(".")[2] for name, _ in packed] == ["bin", "cls", "jpg"] * len(labels)
    assert json.loads((tmp_path / "out.json").read_text())["shardtool"]["classes"] == {"cls": tops}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a/0.jpg": b"", "beside.jpg": b""},
            r"1 sample not deep enough in folders: \./beside\.\*; expected .*exclude=\('\./beside\.\*', \.\.\.\)",
        ),
        ({"a/0.jpg": b"", "a/0.cls": b"1"}, "the samples already have a field 'cls'"),
    ],
)
def test_samples_outside_class_folders_are_refused(files: dict[str, bytes], message: str, tmp_path: Path) -> None:
    """Labels are refused if a sample has no class folder, or a label already."""
    root = write_tree(tmp_path / "s", files)
    with pytest.raises(InvalidRequest, match=message):
        create(root, str(tmp_path / PATTERN), CreateOptions(workers=0, label_from_folder=True))


def test_reported_samples_can_be_excluded(tmp_path: Path) -> None:
    """The patterns in the message, given to `exclude`, make the run succeed."""
    beside = ["a.jpg", "a.json", "b[1]*.jpg", "c d.e.txt"]
    root = write_tree(tmp_path / "s", dict.fromkeys([*beside, "x/a.jpg", "x/c d.e.txt"], b""))
    with pytest.raises(InvalidRequest, match="3 samples") as caught:
        create(root, str(tmp_path / PATTERN), CreateOptions(workers=0, label_from_folder=True, dots="last"))
    named = caught.value.found.partition(": ")[2].split(", ")
    options = CreateOptions(workers=0, label_from_folder=True, dots="last", exclude=tuple(named))
    assert create(root, str(tmp_path / PATTERN), options).samples == 2


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """Such a name is refused and shown with escapes; with `--portable`, the key restores its bytes."""
    raw = {b"a/\xff\xfe.jpg": b"payload", b"a/good.jpg": b"good"}
    root = write_tree(tmp_path / "s", raw)
    with pytest.raises(InvalidRequest, match=r"a/\\xff\\xfe.*portable=True"):
        create(root, str(tmp_path / PATTERN), CreateOptions(workers=0))
    create(root, str(tmp_path / PATTERN), CreateOptions(workers=0, portable=True))
    packed = {unquote_to_bytes(name): data for name, data in members(*shards(tmp_path))}
    assert packed == raw
    index = pq.read_table(tmp_path / "out-000.index").to_pylist()
    assert [[unquote_to_bytes(path) for path in row["source_paths"]] for row in index] == [[path] for path in raw]


_SEGMENT = st.text(st.characters(exclude_characters="/\0."), min_size=1, max_size=60)


@settings(max_examples=15)
@given(st.lists(st.lists(_SEGMENT, min_size=1, max_size=3).map("/".join), min_size=1, max_size=8, unique=True))
@example(["scan.2019.01", "SCAN.2019.01", "__meta__/__x__", "100%/a%20b", "a b", "a%20b", "ü/é", "~", "n" * 60])
def test_portable_names(keys: list[str]) -> None:
    """Portable names are unique, at most 100 safe bytes, and restore the source's keys, or end in a hash."""
    raw = {(key + ".jpg").encode("utf-8", "surrogateescape") for key in keys if _fits(key)}
    files = _makeable(sorted(raw))
    if not files:
        return
    with tempfile.TemporaryDirectory() as folder:
        root = write_tree(Path(folder) / "s", dict.fromkeys(files, b"x"))
        create(root, f"{folder}/{PATTERN}", CreateOptions(workers=0, portable=True, dots="last", hidden=True))
        names = [name for name, _ in members(*shards(Path(folder)))]
        index = pq.read_table(f"{folder}/out-000.index").to_pylist()
    assert len(set(names)) == len(files)
    assert names == sorted(names, key=lambda name: name.removesuffix(".jpg"))
    allowed = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-/%~")
    assert all(len(name) <= 100 and set(name.removesuffix(".jpg")) <= allowed for name in names)
    assert not any(part.startswith("__") for name in names for part in name.split("/"))
    whole = {unquote_to_bytes(name) for name in names if "~" not in name}
    assert whole <= files
    assert len(files - whole) == sum("~" in name for name in names)
    assert [row["__key__"] + ".jpg" for row in index] == names


def _fits(key: str) -> bool:
    try:
        return all(len(part.encode("utf-8", "surrogateescape")) < 250 for part in key.split("/"))
    except UnicodeEncodeError:
        return False


@pytest.mark.parametrize("length", range(20, 23))
def test_portable_names_are_cut_between_escapes(length: int, tmp_path: Path) -> None:
    """A key that is too long is cut between escapes: a `%` is always followed by two hex digits."""
    root = write_tree(tmp_path / "s", {"x" * length + "é" * 30 + ".jpg": b"x"})
    key = (
        create(root, str(tmp_path / PATTERN), CreateOptions(workers=0, portable=True), dry_run=True)
        .planned[0]
        .first_key
    )
    shown, tilde, digest = key.partition("~")
    assert (tilde, len(digest)) == ("~", 16)
    assert unquote_to_bytes(shown).find(b"%") == -1
    assert len(key + ".jpg") in range(96, 101)


def test_portable_names_leave_room_for_a_long_field(tmp_path: Path) -> None:
    """A field that leaves no room for keys is refused by name."""
    for length, fits in ((60, True), (90, False)):
        root = write_tree(tmp_path / f"s{length}", {f"{'k' * 50}{at}.{'f' * length}": b"x" for at in range(5)})
        options = CreateOptions(workers=0, portable=True, dots="first", overwrite=True)
        if fits:
            create(root, str(tmp_path / PATTERN), options)
            names = [name for name, _ in members(*shards(tmp_path))]
            assert len(set(names)) == 5
            assert max(map(len, names)) <= 100
        else:
            with pytest.raises(InvalidRequest, match="f" * length):
                create(root, str(tmp_path / PATTERN), options)


def test_portable_fields_are_in_order(tmp_path: Path) -> None:
    """Fields that `--portable` lower-cases are in the order of their new names; the content stays the same."""
    upper = write_tree(tmp_path / "upper", {"a.JPG": b"jpg", "a.cls": b"cls", "b.cls": b"0", "b.JPG": b"1"})
    lower = write_tree(tmp_path / "lower", {name.lower(): data for name, data in read_tree(upper).items()})
    results = [
        create(root, str(tmp_path / f"{root.name}-{{0..}}.tar"), CreateOptions(workers=0, portable=True))
        for root in (upper, lower)
    ]
    names = [name for name, _ in members(tmp_path / "upper-0.tar")]
    assert names == ["a.cls", "a.jpg", "b.cls", "b.jpg"]
    assert results[0].fingerprint == results[1].fingerprint


@pytest.mark.parametrize("portable", [False, True])
def test_fields_that_differ_only_in_case_are_refused(portable: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter
    """Two fields of a sample that a reader would confuse are refused."""
    root = write_tree(tmp_path / "s", {"a/0.jpg": b"", "a/0.JPG": b""})
    with pytest.raises(InvalidRequest, match=r"(differ only in case|get the same name): a/0"):
        create(root, str(tmp_path / PATTERN), CreateOptions(workers=0, portable=portable))


@pytest.mark.parametrize("where", ["", "deep/er/"])
def test_outputs_in_the_source_are_not_packed(where: str, tmp_path: Path) -> None:
    """Outputs in the source, finished or not, are not packed; files with similar names are."""
    files = {"a/0.jpg": b"0", f"{where}out-24.tar": b"mine", f"{where}x.json": b"{}", "a/out-000.tar": b"mine too"}
    root = write_tree(tmp_path / "s", files)
    options = CreateOptions(workers=0, hidden=True, max_count=1)
    first = create(root, f"{root}/{where}{PATTERN}", options)
    assert first.samples == 4
    (root / where / ".out-007.tar.part").write_bytes(b"left over")
    (root / where / ".out.lock").write_bytes(b"")
    again = create(root, f"{root}/{where}{PATTERN}", CreateOptions(workers=0, hidden=True, overwrite=True))
    assert (again.samples, again.fingerprint) == (4, first.fingerprint)
    resumed = create(root, f"{root}/{where}{PATTERN}", CreateOptions(workers=0, hidden=True, resume=True))
    assert (resumed.kept, resumed.fingerprint) == (1, first.fingerprint)
    assert {name: data for name, data in read_tree(root).items() if name in files} == files


def test_huge_files_are_planned_to_the_byte(tmp_path: Path) -> None:
    """A file of 9 GiB is planned with its pax header, and a reader that cannot read it is named."""
    root = write_tree(tmp_path / "s", {"a/0.bin": b"", "a/1.bin": b""})
    os.truncate(root / "a" / "0.bin", 9 * 2**30)
    plan = create(
        root, str(tmp_path / PATTERN), CreateOptions(workers=0, max_size="10GiB", target=("wids",)), dry_run=True
    )
    assert [shard.size for shard in plan.planned] == [3 * 512 + 9 * 2**30 + 512 + 1024]
    assert any("8 GiB" in note and "wids" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({}, CreateOptions(), "no samples"),
        ({"README": b"x"}, CreateOptions(), "no samples"),
        ({"a/0.jpg": b"x"}, CreateOptions(include=("*.png",)), "matched 0 of 1 file in"),
        ({".hidden/0.jpg": b"x"}, CreateOptions(), "no samples"),
    ],
)
def test_an_empty_tree_is_refused(
    files: dict[str, bytes], options: CreateOptions, message: str, tmp_path: Path
) -> None:
    """A source without samples is refused, and nothing is written."""
    root = write_tree(tmp_path / "s", files)
    with pytest.raises(InvalidRequest, match=message):
        create(root, str(tmp_path / "out" / PATTERN), options)
    assert os.listdir(tmp_path) == ["s"]


def test_readers_that_would_misread_are_named(tmp_path: Path) -> None:
    """Before writing, `create` reports which readers would misread which names, with a count and an example."""
    files = {"a/x y.jpg": b"", "a/__m.jpg": b"", "n" * 110 + ".jpg": b"", "a/up.JPG": b"", "b/only.txt": b""}
    files |= {f"b/{at}.{field}": b"" for at in range(9) for field in ("jpg", "txt")}
    every = get_args(Target)
    plan = create(
        write_tree(tmp_path / "s", files), str(tmp_path / PATTERN), CreateOptions(workers=0, target=every), dry_run=True
    )
    fixable = ("white space", "two underscores", "over 100 bytes", "upper case")
    for what in (*fixable, "fields that not all samples have", "reads out.json as the data"):
        assert sum(what in note for note in plan.notes) == 1, what
    safe = create(
        tmp_path / "s", str(tmp_path / PATTERN), CreateOptions(workers=0, portable=True, target=every), dry_run=True
    )
    assert not any(what in note for note in safe.notes for what in fixable)
