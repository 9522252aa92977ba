"""Laws of renamed keys: a rename is one-to-one, is checked before anything is written, and can be undone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import (
    CreateOptions,
    InvalidRequest,
    OutputExists,
    ReshardOptions,
    VerifyOptions,
    create,
    diff,
    inspect,
    reshard,
    verify,
)
from shardtool.request.option_values import parse_substitution
from shardtool.select.rename_keys import OLD_KEY_COLUMN, old_keys, rename_keys
from tests.helpers import members, typed, write_tree
from tests.made import flat_entries

_KEYS = [f"{split}/{kind}/{number}" for split in ("train", "val") for kind in ("cat", "dog") for number in range(4)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder of sixteen samples of two splits and two classes."""
    files = {f"{key}.txt": key.encode() for key in _KEYS} | {
        f"{key}.json": b'{"id": "%d"}' % n for n, key in enumerate(_KEYS)
    }
    return write_tree(tmp_path / "in", files)


def _keys(dataset: str | Path) -> list[str]:
    assert verify(dataset).sound
    names = [Path(dataset).parent / shard["url"] for shard in json.loads(Path(dataset).read_text())["shardlist"]]
    return [key for name in names for key in pq.read_table(name.with_suffix(".index"))["__key__"].to_pylist()]


def _no_column(name: str) -> pa.ChunkedArray:
    raise AssertionError(name)


_patterns = st.sampled_from([
    "s/^/2024-/", "s|/|_|g", "s/a/b/", "s/A/b/gi", "s/.*//", r"s/(.)(.)/\2\1/", "s/./&&/g", r"s#b#\&#", "s/a|b//",
    "s/$/é/",
])  # fmt: skip


@given(st.lists(st.text("ab/é", min_size=1, max_size=4), unique=True, min_size=1), _patterns)
def test_a_rename_is_one_to_one(keys: list[str], rename: str) -> None:
    """New keys are those of Python's `re.sub`, in the same order; equal and invalid keys are errors."""
    entries = flat_entries([key.encode() for key in keys], [1] * len(keys), ["txt"])
    substitution = parse_substitution("rename_keys", rename)
    assert substitution is not None
    pattern, replacement, limit = substitution
    new = [re.sub(pattern, replacement.replace(r"\0", r"\g<0>"), key, count=limit or 0) for key in keys]
    is_valid = all(key and not re.search(r"(^|/)(\.\.?)?(/|$)", key) for key in new)
    if is_valid and len({*new}) == len(new):
        renamed, notes = rename_keys(entries, rename, _no_column, has_paths=True)
        assert [renamed.key(sample) for sample in range(len(keys))] == new
        assert [old_keys(renamed)[sample].decode() for sample in range(len(keys))] == keys
        assert [renamed.path(sample) for sample in range(len(keys))] == [f"{key}.txt".encode() for key in keys]
        count = sum(map(str.__ne__, keys, new))
        assert notes[0].startswith(f"{count} key" if count else "rename_keys changes no key")
        return
    with pytest.raises(InvalidRequest, match="rename_keys: "):
        rename_keys(entries, rename, _no_column, has_paths=True)


def test_long_keys_are_refused() -> None:
    """A replacement cannot make keys that are too long, and a key that is not UTF-8 cannot be renamed."""
    for key, message in ((b"k" * 100, "the new key of 'k+' is too long"), (b"\xff", "not UTF-8")):
        with pytest.raises(InvalidRequest, match=message):
            rename_keys(flat_entries([key], [1], ["txt"]), f"s/.+/{'&' * 99}/", _no_column, has_paths=True)


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_a_rename_can_be_undone(ending: str, source: Path, tmp_path: Path) -> None:
    """Renaming to the column of previous keys restores the keys in both formats; payloads do not change."""
    plain = create(source, tmp_path / f"a-{{0..}}.{ending}", max_count=5, label_from_folder=True)
    new = create(source, tmp_path / f"b-{{0..}}.{ending}", max_count=5, label_from_folder=True, rename_keys="s#/#_#g")
    assert _keys(new.dataset_file) == [key.replace("/", "_") for key in _KEYS]
    later = reshard(plain.dataset_file, tmp_path / f"c-{{0..}}.{ending}", max_count=5, rename_keys="s#/#_#g")
    assert later.fingerprint == new.fingerprint
    for number, dataset in enumerate((new, later)):
        undone = reshard(dataset.dataset_file, tmp_path / f"d{number}-{{0..}}.{ending}", rename_keys=OLD_KEY_COLUMN)
        assert (undone.fingerprint, _keys(undone.dataset_file)) == (plain.fingerprint, _KEYS)
        assert verify(undone.dataset_file, VerifyOptions(source=dataset.dataset_file)).sound
    assert verify(new.dataset_file, VerifyOptions(source=source)).sound
    assert diff(new.dataset_file, source).same


def test_keys_from_a_column(source: Path, tmp_path: Path) -> None:
    """New keys can come from a joined table, JSON, a manifest or sidecars; `verify` and `diff` find the table again."""
    table = tmp_path / "new.csv"
    pd.DataFrame({"key": _KEYS, "new": [f"n{number:02}" for number in range(16)]}).to_csv(table, index=False)
    expected = [f"n{number:02}" for number in range(16)]
    joined = create(source, tmp_path / "a.tar", join=table, rename_keys="new")
    assert _keys(joined.dataset_file) == expected
    assert verify(joined.dataset_file, VerifyOptions(source=source)).sound
    assert diff(joined.dataset_file, source).same
    table.rename(tmp_path / "other.csv")
    with pytest.raises(InvalidRequest, match=r"created with rename_keys: no column 'new'.*with join"):
        verify(joined.dataset_file, VerifyOptions(source=source))
    assert verify(joined.dataset_file, VerifyOptions(source=source, join=tmp_path / "other.csv")).sound
    by_id = create(source, tmp_path / "b.tar", columns_from="json", rename_keys="id")
    assert _keys(by_id.dataset_file) == sorted(map(str, range(16)))
    rows = pd.DataFrame({"key": _KEYS, "text": _KEYS, "id": range(16)})
    choices: list[dict[str, Any]] = [{"meta": "none"}, {"where": "id < 3"}, {"head": 3}]
    for number, options in enumerate(choices):
        manifest = create(rows, tmp_path / f"m{number}.tar", field="txt=text", rename_keys="id", **options)
        assert _keys(manifest.dataset_file) == list(map(str, range(manifest.samples)))
        assert verify(manifest.dataset_file, VerifyOptions(source=rows)).sound


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ("s#.*/##", "4 keys would not be unique: for example, '0' for 'train/cat/0', 'train/dog/0'"),
        ("s#.*/##", "expected a unique new key for each sample. Keep a part of the key that differs."),
        ("s#^#/#", "16 keys that a shard cannot store, from 'train/cat/0', "),
        ("s/.*//", "16 keys that a shard cannot store"),
        ("s/(/x/", "'(': missing ): ((); expected an RE2 regular expression"),
        (r"s/a/\2/", "requests 2 matches"),
        ("s/a/x", "'s/a/x'; expected s/PATTERN/REPLACEMENT/, with the flags g and i"),
        ("s/a/x/p", "'s/a/x/p'; expected s/PATTERN/REPLACEMENT/"),
        ("s//x/", "expected s/PATTERN/REPLACEMENT/"),
        (f"s/a/{'x' * 300}/", "expected s/PATTERN/REPLACEMENT/"),
        ("number", "no column 'number'; expected s/PATTERN/REPLACEMENT/, or one of key, path, folder, size. Add"),
        ("folder", "4 keys would not be unique"),
        ("kind", "no value in column 'kind' for 8 samples, such as 'train/dog/0', "),
        ("ratio", "column 'ratio': not a whole number for 'train/cat/0', "),
    ],
)  # fmt: skip
def test_renames_that_are_refused(rename: str, message: str, source: Path, tmp_path: Path) -> None:
    """Errors name both old keys, or the sample; nothing is written, from a folder and from a dataset."""
    for number, key in enumerate(_KEYS):
        (source / f"{key}.json").write_text(f'{{"ratio": 0.5, "kind": {number}}}' if "cat" in key else '{"ratio": 1}')
    kept = create(source, tmp_path / "old" / "o.tar", columns_from="json").dataset_file
    columns: dict[str, Any] = {"columns_from": "json"} if rename in ("kind", "ratio") else {}
    if rename == "folder":  # a column of folders only
        jobs: list[Any] = [lambda: create(source, tmp_path / "out" / "o.tar", rename_keys=rename)]
    else:
        jobs = [lambda: create(source, tmp_path / "out" / "o.tar", rename_keys=rename, **columns)]
        message = message.replace("key, path, folder, size", "[a-z_, ]+") if rename == "number" else re.escape(message)
        jobs.append(lambda: reshard(kept, tmp_path / "out" / "o.tar", rename_keys=rename))
    for job in jobs:
        with pytest.raises(InvalidRequest, match=message):
            job()
    assert not (tmp_path / "out").exists()


def test_a_rename_runs_again(source: Path, tmp_path: Path) -> None:
    """The same rename updates and resumes a dataset to the bytes of one run; another rename is refused."""
    output, options = tmp_path / "out" / "o-{0..}.tar", CreateOptions(rename_keys="s/^/x-/", max_count=3)
    create(source, output, options)
    with pytest.raises(OutputExists, match=r"rename_keys differs: 's/\^/x-/' before, now 's/\^/y-/'"):
        create(source, output, rename_keys="s/^/y-/", max_count=3, update=True)
    with pytest.raises(OutputExists, match="rename_keys differs"):
        create(source, output, rename_keys="s/^/y-/", max_count=3, resume=True)
    assert create(source, output, options, update=True).samples == 16
    write_tree(source, {"train/cat/a.txt": b"new", "val/dog/b.txt": b"new"})
    assert create(source, output, options, update=True).samples == 18
    (tmp_path / "out" / "o.json").unlink()
    (tmp_path / "out" / "o-1.tar").unlink()
    again = create(source, output, options, resume=True)
    once = create(source, tmp_path / "once" / "o-{0..}.tar", options)
    assert again.fingerprint == once.fingerprint
    assert verify(again.dataset_file, VerifyOptions(source=source)).sound
    plain = create(source, tmp_path / "plain.tar").dataset_file
    with pytest.raises(InvalidRequest, match="18 keys more than once: 'x-train/cat/0'"):
        reshard(plain, output, append=True, rename_keys="s/^/x-/")
    assert reshard(plain, output, append=True, rename_keys="s/^/z-/").samples == 36


def test_a_list_of_keys_names_the_previous_keys(source: Path, tmp_path: Path) -> None:
    """`keys_from` selects by the previous keys, and `verify` and `diff` compare the selected samples."""
    made = create(
        source, tmp_path / "o-{0..}.tar", keys_from=["val/dog/1", "train/cat/2"], rename_keys="s#.*/(.*)/#\\1-#"
    )
    assert _keys(made.dataset_file) == ["cat-2", "dog-1"]
    assert verify(made.dataset_file, VerifyOptions(source=source)).sound
    assert diff(made.dataset_file, source).same
    (source / "val" / "dog" / "1.txt").write_bytes(b"other")
    codes = {finding.code for finding in verify(made.dataset_file, VerifyOptions(source=source)).findings}
    assert codes == {"source-differs"}


def test_parts_and_plans(source: Path, tmp_path: Path) -> None:
    """Parts and plan files give the bytes of one run."""
    options = CreateOptions(rename_keys="s#/#-#g", max_count=3, shuffle=True)
    create(source, tmp_path / "a" / "o-{0..}.tar", options)
    for part in ("2/2", "1/2"):
        create(source, tmp_path / "b" / "o-{0..}.tar", options, part=part)
    create(source, tmp_path / "c" / "o-{0..}.tar", options, plan_only=tmp_path / "plan")
    create(source, tmp_path / "c" / "o-{0..}.tar", options, plan=tmp_path / "plan")
    files = [{item.name: item.read_bytes() for item in (tmp_path / name).iterdir()} for name in "abc"]
    assert files[0] == files[1] == files[2]
    with pytest.raises(InvalidRequest, match="rename_keys differs"):
        create(source, tmp_path / "d.tar", rename_keys="s#/#_#g", plan=tmp_path / "plan", max_count=3, shuffle=True)


def test_labels_and_splits_of_folders(source: Path, tmp_path: Path) -> None:
    """Labels and splits come from the folders of the old keys, even if the new keys have no folders."""
    options = CreateOptions(label_from_folder=True, split_by="folder", rename_keys="s#^[a-z]+/##")
    with pytest.raises(InvalidRequest, match="for example, 'cat/0' for 'train/cat/0', 'val/cat/0'"):
        create(source, f"{tmp_path}/{{split}}.tar", options)
    options = CreateOptions(label_from_folder=True, split_by="folder", rename_keys="s#/#-#g")
    create(source, f"{tmp_path}/{{split}}.tar", options)
    result = dict(members(tmp_path / "val.tar"))
    assert {name: data for name, data in result.items() if name.endswith("cls")} == {
        f"val-{kind}-{number}.cls": b"%d" % (kind == "dog") for kind in ("cat", "dog") for number in range(4)
    }
    assert verify(tmp_path / "val.json", VerifyOptions(source=source)).sound


def test_keys_with_dots(source: Path, tmp_path: Path) -> None:
    """New keys with dots end at the last dot, with a note; a rename without dots restores the usual rule."""
    dotted = create(source, tmp_path / "a.tar", rename_keys="s#/#.#g")
    assert any("keys contain dots" in note for note in dotted.notes)
    assert inspect(dotted.dataset_file).fields.keys() == {"json", "txt"}
    assert members(tmp_path / "a.tar")[0][0] == "train.cat.0.json"
    plain = reshard(dotted.dataset_file, tmp_path / "b.tar", ReshardOptions(rename_keys=r"s#\.#/#g"))
    assert (_keys(plain.dataset_file), plain.notes[1:]) == (_KEYS, ("column 'old_key' replaced by the previous keys",))
    assert '"dots"' not in (tmp_path / "b.json").read_text()


def test_the_command_line(source: Path, tmp_path: Path) -> None:
    """The note and the recorded command can be repeated in a shell."""
    ran = typed(
        "create", source, tmp_path / "a-{0..}.tar", "--rename-keys", "s/^/2024-/", "--keys-from", "-", "--dry-run"
    )
    assert ran.code == 2
    ran = typed("create", source, tmp_path / "a-{0..}.tar", "--rename-keys", "s/^/2024-/")
    assert "'train/cat/0' -> '2024-train/cat/0' and 15 more (undo with `reshard` and --rename-keys old_key)" in ran.err
    assert "--rename-keys 's/^/2024-/'" in typed("inspect", tmp_path / "a.json").out
