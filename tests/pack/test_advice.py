"""Notes before shards are written: each note is printed once, and only if it concerns a selected reader."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shardtool import CreateOptions, InvalidRequest, create
from tests.helpers import read_tree, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.values import Target

FEW = "leaves some idle"
# File names, and the readers that misread them.
MISREAD: dict[str, set[Target]] = {
    "a b.jpg": {"dali"},
    "a.jpg": set(),
    "a.JPG": {"webdataset"},
    "__a.jpg": {"huggingface"},
    f"{'n' * 120}/a.jpg": {"wids"},
}
READERS: tuple[Target, ...] = ("webdataset", "wids", "dali", "energon", "huggingface")


def _notes(source: Path, pattern: str = "o-{0..}.tar", **options: Any) -> list[str]:
    result = create(source, f"{source.parent}/out/{pattern}", CreateOptions(workers=0, **options), dry_run=True)
    return [note for note in result.notes if "load_dataset(folder)" not in note]


@pytest.mark.parametrize("name", MISREAD)
def test_notes_cover_the_selected_readers(name: str, tmp_path: Path) -> None:
    """A name is noted for exactly the readers that misread it, and by default if webdataset does."""
    source = write_tree(tmp_path / "in", {name: b"x"})
    noted = {reader for reader in READERS if _notes(source, target=(reader,))}
    assert noted == MISREAD[name]
    assert _notes(source) == _notes(source, target=("webdataset",))
    assert _notes(source, export=("dali-webdataset",)) == _notes(source, target=("webdataset", "dali"))


def test_the_folder_is_noted_for_hugging_face_only(tmp_path: Path) -> None:
    """How `load_dataset` reads the folder is noted once, if requested; never for other files."""
    source = write_tree(tmp_path / "in", {f"{number}.jpg": b"x" for number in range(3)})
    for number, target in enumerate([(), ("huggingface", "dali"), ("webdataset", "dali")]):
        options = CreateOptions(workers=0, target=target, export=("energon", "timm"))  # type: ignore[arg-type]
        write_tree(tmp_path / f"{number}", {"a.json": b"{}", "b.json": b"{}"})
        result = create(source, f"{tmp_path}/{number}/o-{{0..}}.tar", options)
        notes = [note for note in result.notes if "load_dataset" in note]
        assert len(notes) == ("huggingface" in target)
        assert all("o.json" in note or "o-0" in note for note in notes)
    assert read_tree(tmp_path / "0") == read_tree(tmp_path / "1") == read_tree(tmp_path / "2")


@pytest.mark.parametrize("words", [["--for", "webdataset,dali"], ["--target", "webdataset", "--for", "dali"]])
def test_for_is_target(words: list[str], tmp_path: Path) -> None:
    """`--for` and `--target` are one option of `create`, `reshard` and `verify`; it accepts commas, and repeats."""
    source = write_tree(tmp_path / "in", {"a.b.jpg": b"x"})
    ran = typed("create", source, tmp_path / "o-{0..}.tar", "--dots", "last", *words, "--workers", "0")
    assert (ran.code, ran.err.count("note:"), "load_dataset" in ran.err) == (0, 1, False)
    assert typed("reshard", tmp_path / "o.json", tmp_path / "r-{0..}.tar", *words, "--dry-run").code == 0
    verified = typed("verify", tmp_path / "o.json", *words)
    assert (verified.code, verified.out.count("[misread]")) == (3, 1)
    assert "webdataset, dali" in verified.out


def test_an_unknown_reader_is_refused(tmp_path: Path) -> None:
    """An unknown reader is refused on the command line and in the library."""
    source = write_tree(tmp_path / "in", {"a.jpg": b"x"})
    ran = typed("create", source, tmp_path / "o-{0..}.tar", "--for", "webdataset,tensorflow")
    assert (ran.code, "--for: 'tensorflow'; expected one of" in ran.err) == (2, True)
    with pytest.raises(InvalidRequest, match="target: 'x'; expected one of webdataset"):
        CreateOptions(target=("x",))  # type: ignore[arg-type]


def _sparse(folder: Path, size: int, count: int = 20) -> Path:
    """Create sparse files."""
    folder.mkdir()
    for number in range(count):
        with (folder / f"{number:02}.bin").open("wb") as file:
            file.truncate(size)
    return folder


def test_fewer_shards_than_workers(tmp_path: Path) -> None:
    """A large dataset with fewer than 8 shards gets a note with the bound for 8; a small one gets none."""
    source = _sparse(tmp_path / "large", 50_000_000)
    (note,) = (note for note in _notes(source) if FEW in note)
    assert note.startswith("o.json: 2 shards, so a loader")
    assert "max_size='125MB' gives 8+" in note
    assert not [note for note in _notes(source, max_size="125MB") if FEW in note]
    assert (
        len(
            create(
                source, f"{tmp_path}/o-{{0..}}.tar", CreateOptions(workers=0, max_size="125MB"), dry_run=True
            ).planned
        )
        >= 8
    )
    assert not [note for note in _notes(_sparse(tmp_path / "small", 1000)) if FEW in note]


def test_a_requested_shard_count_is_not_noted(tmp_path: Path) -> None:
    """A requested number of shards gets no advice."""
    source = _sparse(tmp_path / "large", 20_000_000, 16)
    assert not [note for note in _notes(source, "o-{0..2}.tar") if FEW in note]
    assert not [note for note in _notes(source, shards=3) if FEW in note]


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (("a.jpg", "a.txt", "b.jpg", "c.jpg"), "1 field that not all samples have (such as 'txt, only in a')"),
        (
            ("a.jpg", "a.txt", "b.jpg", "c.jpg", "c.txt"),
            "1 field that not all samples have (such as 'txt, missing in b')",
        ),
        (("a.x", "b.y", "c.z"), "3 fields that not all samples have (such as 'x, only in a')"),
        (("a.x", "b.x", "c.y", "d.y", "e.y"), "2 fields that not all samples have (such as 'x, only in a and 1 more')"),
    ],
)
def test_missing_fields_give_one_note(names: tuple[str, ...], missing: str, tmp_path: Path) -> None:
    """One note covers all fields that some samples lack, with the first field and samples as examples."""
    (note,) = _notes(write_tree(tmp_path / "in", dict.fromkeys(names, b"x")), target=("huggingface",))
    assert note.endswith(f"that are missing in the first five samples: {missing}")
    assert not _notes(tmp_path / "in")


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_empty_files_are_counted(ending: str, tmp_path: Path) -> None:
    """Empty files are packed; one note counts them across all splits and names one. Texts are not counted."""
    files = {f"{name}/{number}.jpg": b"x" * (number > 1) for name in "ab" for number in range(3)}
    source = write_tree(tmp_path / "in", files)
    result = create(
        source, f"{tmp_path}/o/{{split}}-{{0..}}.{ending}", CreateOptions(workers=0, split_from_folder=True)
    )
    assert result.samples == len(files)
    assert [note for note in result.notes if "0 bytes" in note] == [
        "4 files of 0 bytes (first: jpg of 'a/0'), perhaps left by an interrupted copy"
    ]
    (tmp_path / "list.csv").write_text("key,path,caption\n1,in/a/2.jpg,\n2,in/b/2.jpg,x\n", encoding="ascii")
    assert not [note for note in _notes(tmp_path / "list.csv", field=("txt=caption",)) if "0 bytes" in note]
    write_tree(tmp_path / "yolo", {"1.jpg": b"x", "1.txt": b""})
    assert not [note for note in _notes(tmp_path / "yolo") if "0 bytes" in note], "no objects"
    table = pa.table({"key": ["a", "b"], "image": [b"x", b""]})
    result = create(table, f"{tmp_path}/t-{{0..}}.{ending}", CreateOptions(workers=0, bytes=("jpg=image",)))
    assert ["first: jpg of 'b'" in note for note in result.notes if "0 bytes" in note] == [True]


def test_a_single_class_is_noted(tmp_path: Path) -> None:
    """If all samples have one class, the source may be a parent folder; two classes give no note."""
    source = write_tree(tmp_path / "in", {"imgs/cat/1.jpg": b"x", "imgs/dog/1.jpg": b"x"})
    assert ["the same cls, 'imgs'" in note for note in _notes(source, label_from_folder=True)] == [True]
    assert not [note for note in _notes(source / "imgs", label_from_folder=True) if "the same cls" in note]
    assert not _notes(source)


def test_many_small_shards_are_noted(tmp_path: Path) -> None:
    """Thousands of tiny shards give a note with the option that reduces them."""
    source = write_tree(tmp_path / "in", {f"{number}.txt": b"x" for number in range(1000)})
    for name, number, fix in (("max_count", 1, "a larger max_count"), ("shards", 1000, "a smaller shards")):
        (note,) = _notes(source, **{name: number})  # type: ignore[arg-type]
        assert note == f"1,000 shards of about 1 sample (2.05 kB) each are slow to read: use {fix}"
    assert not _notes(source, max_count=2)


def test_a_seed_without_effect_is_noted(tmp_path: Path) -> None:
    """A seed without effect gives a note."""
    source = write_tree(tmp_path / "in", {f"{number}.txt": b"x" for number in range(20)})
    assert ["no effect" in note for note in _notes(source, seed=1)] == [True]
    assert not _notes(source, seed=1, shuffle=True)
    assert not _notes(source, "{split}-{0..}.tar", seed=1, split="a=0.5,b=0.5")


@pytest.mark.parametrize("form", ["folder", "table"])
def test_a_split_far_from_its_share_is_noted(form: str, tmp_path: Path) -> None:
    """With few keys, hashing can miss the requested share; then a note gives the actual number."""
    source: Any = write_tree(tmp_path / "in", {f"{number}.txt": b"x" for number in range(20)})
    if form == "table":
        source = pa.table({"key": [str(number) for number in range(20)], "txt": ["x"] * 20})
    for share in (0.05, 0.2, 0.5, 1.0):
        options = CreateOptions(workers=0, sample=share, field=("txt=txt",) if form == "table" else ())
        result = create(source, f"{tmp_path}/o-{{0..}}.tar", options, dry_run=True)
        selected = sum(shard.samples for shard in result.planned)
        noted = [f"selects {selected} of 20 samples" in note for note in result.notes if "selected by hash" in note]
        assert noted == [True] * (abs(selected - 20 * share) > 5 * share)


def test_existing_output_is_checked_last(tmp_path: Path) -> None:
    """Errors in the source, the query or a column are reported before existing output."""
    write_tree(tmp_path / "in", {"cat/1.txt": b"1", "dog/2.txt": b"2"})
    output = f"{tmp_path}/out/x-{{000..}}.tar"
    assert typed("create", tmp_path / "in", output, "--quiet").code == 0
    before = read_tree(tmp_path / "out")
    cases: list[tuple[str, list[str | Path], str]] = [
        ("create", [tmp_path / "inn", output], "inn: no such file or folder"),
        ("create", [tmp_path / "in", output, "--where", "nope > 1"], "nope: no such column"),
        ("reshard", [tmp_path / "out/y.json", output], "y.json: no such file"),
        ("reshard", [tmp_path / "out/x.json", f"{tmp_path}/out/x-{{000..}}.tfrecord", "--where", "nope > 1"], "nope: "),
    ]
    for verb, words, message in cases:
        ran = typed(verb, *words)
        assert (ran.code, message in ran.err, "--overwrite" in ran.err) == (2, True, False), ran.err
    assert typed("create", tmp_path / "in", output).code == 5
    assert "3 files already exist" in typed("create", tmp_path / "in", output).err
    assert read_tree(tmp_path / "out") == before


def test_typing_mistakes_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A typing mistake is answered with the input and a suggestion; nothing is written."""
    monkeypatch.chdir(tmp_path)
    write_tree(tmp_path / "imgs", {"cat/1.jpg": b"1", "dog/2.jpg": b"2"})
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("path\nimgs/cat/1.jpg\n")
        (tmp_path / name.replace("csv", "jsonl")).write_text('{"path": "imgs/cat/1.jpg"}\n')
    output = "o/x-{00..}.tar"
    assert typed("create", "imgs", "d/x-{00..}.tar", "--quiet").code == 0
    for words, message in [
        (["create", "imgs", output, "--max-size", "1", "GB"], "GB is read as an argument; expected one word. Write"),
        (
            ["create", "imgs", output, "--where", "key", "==", "a"],
            "==: is read as an argument; expected a query in quotes",
        ),
        (
            ["create", "imgs", output, "--fields", "jpg", "cls"],
            f"cls: an argument after the pattern {output}; expected",
        ),
        (
            ["reshard", "d/x.json", output, "--fields", "jpg", "cls"],
            f"cls: an argument after the pattern {output}; expected",
        ),
        (["create", "imgs", output, "-n", "5"], "write --head 5."),
        (["inspect", "d/x.json", "-n", "5"], "Did you mean --head?"),
        (["create", output, "imgs"], "Swap them: imgs 'o/x-{00..}.tar'."),
        (["create", "img", output], "Did you mean imgs?"),
        (["create", "img/cat", output], "Did you mean imgs/cat?"),
        (["inspect", "d/y.json"], "Did you mean d/x.json?"),
        (["inspect", "dd/x.json"], "Did you mean d/x.json?"),
        (["create", "a.csv", "b.csv", output], "a.csv, b.csv: 1 key more than once: 'imgs/cat/1' (row 1 of a.csv"),
        (["create", "imgs", "a.csv", output], "use --join a.csv."),
        (["create", "?.csv", output], "a.csv, b.csv: 1 key more than once"),
        (["create", "z*.csv", output], "z*.csv: a glob that matches no file"),
        (["create", "o/x.tar", "imgs"], "Swap them: imgs o/x.tar."),
        (["reshard", output, "d/x.json"], "DATASET before OUTPUT. Swap them: d/x.json 'o/x-{00..}.tar'."),
        (["reshard", "d/x-{00..}.tar", "d/x.json"], "d/x.json: the file extension '.json'; expected a pattern"),
        (["copy", "o", "d/x.json"], "DATASET before DEST. Swap them: d/x.json o."),
        (["extract", "imgs", "d/x.json"], "DATASET before DIR. Swap them: d/x.json imgs."),
        (["copy", "d", "d/x.json"], "d/x.json: a file name or a pattern; expected a folder"),
        (["extract", "d/x.json", "o", "-n", "5"], "To select samples, use --where or --keys-from."),
        (["extract", "d/x.json", "cat/1"], "cat/1: the key of a sample; expected the folder to write to."),
        (["extract", "d/x.json", "cat/1.jpg"], "a file of a sample; expected the folder to write to."),
        (["extract", "d/x.json", "cat/1"], "give a folder and --keys cat/1."),
        (["remove", "d/x.json", "cat/2"], "--keys: 1 key not found: cat/2"),
        (["d/x.json", "inspect"], "d/x.json: no such verb. Write the verb first: `shardtool inspect d/x.json`."),
        (["index", "d/x.json", "--columns-from", "jpg,jpg"], "no field 'jpg,jpg'; expected one of"),
        (["index", "d/x.json", "--columns-from", "jpg,jpg"], "Repeat the option for each field."),
        (["remove", "d/x.json", "y.json", "cat/1"], "y.json: no such file"),
        (
            ["remove", "d/x.json", "--keys-from", "a.jsn"],
            "a.jsn: no such file or directory; expected a file of keys. Did",
        ),
        (["verify", "d/x.json", "--source", "img"], "Did you mean imgs? Pass the source of the dataset to --source."),
    ]:
        ran = typed(*words)
        assert (ran.code, message in ran.err) == (2, True), (words, ran.err)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.csv", "a.jsonl", "b.csv", "b.jsonl", "d", "imgs",
    ]  # fmt: skip


def test_suggested_commands_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suggested commands that select keys work; a glob of tables is one table."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(f"key,caption\n{name[0]}'1,x")
    assert typed("create", "?.csv", "o/x-{00..}.tar", "--field", "txt=caption", "--quiet").code == 0
    words = typed("extract", "o/x.json", "a'1").err.split("give a folder and ")[1].rstrip().removesuffix(".")
    assert typed("extract", "o/x.json", "files", *shlex.split(words), "--quiet").code == 0
    assert sorted(path.name for path in (tmp_path / "files").glob("[!.]*")) == ["a'1.txt"]


@pytest.mark.parametrize(
    ("globs", "message"),
    [
        (["--include", "jpg"], "--include jpg: matched 0 of 3 files in imgs; expected a glob that matches some"),
        (["--include", "jpg"], "their extensions: .jpg (2), .TXT (1). Did you mean --include '*.jpg'?"),
        (["--include", ".jpg"], "Did you mean --include '*.jpg'?"),
        (["--include", "*.JPG"], "Did you mean --include '*.jpg'?"),
        (["--include", "*.txt"], "Did you mean --include '*.TXT'?"),
        (["--include", "cat"], "Did you mean --include 'cat/*'?"),
        (["--include", "./dog/"], "Did you mean --include 'dog/*'?"),
        (["--include", "*.png"], "their extensions: .jpg (2), .TXT (1)\n"),
        (["--exclude", "*"], "--exclude '*': excludes all of 3 files in imgs; expected some files to pack"),
        (["--include", "*.jpg", "--exclude", "*.jpg"], "--exclude '*.jpg': excludes all of 3 files"),
    ],
)
@pytest.mark.parametrize("exists", [False, True])
def test_globs_without_a_match_are_explained(
    globs: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, exists: bool
) -> None:
    """Globs without a match are reported with one that matches, with or without existing output."""
    monkeypatch.chdir(tmp_path)
    write_tree(tmp_path / "imgs", {"cat/1.jpg": b"1", "dog/2.jpg": b"2", "3.TXT": b"3", ".hidden.png": b"4"})
    if exists:
        assert typed("create", "imgs", "o/x-{00..}.tar", "--quiet").code == 0
    ran = typed("create", "imgs", "o/x-{00..}.tar", *globs)
    assert (ran.code, message in ran.err) == (2, True), ran.err
    assert (tmp_path / "o").exists() == exists


def test_control_characters_in_suggestions_are_escaped(tmp_path: Path) -> None:
    """Control characters of a similar name are escaped."""
    write_tree(tmp_path, {"images\x1b/a.jpg": b"1"})
    ran = typed("create", tmp_path / "images", tmp_path / "o-{0..}.tar")
    assert ran.code == 2
    assert "images\\x1b?" in ran.err
