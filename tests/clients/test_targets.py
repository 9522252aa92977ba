"""Each verdict of `verify --target`, and each note of `create`, held against the reader itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import pytest
from click.testing import CliRunner

from shardtool import VerifyOptions, verify
from shardtool.cli import cli
from shardtool.values import Target
from tests.clients.energon import read_with_energon
from tests.clients.packed import Fields, shardtool

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

Samples = list[tuple[str, Fields]]
Made = tuple[Path, Samples, list[str], str]
_PLAIN = [f"p{at}" for at in range(10, 20)]


def _of(stems: list[str], fields: tuple[str, ...] = ("bin", "txt")) -> dict[str, bytes]:
    return {f"{stem}.{field}": f"{stem}.{field}".encode() for stem in stems for field in fields}


_LATE = {f"{stem}.seg": b"1" for stem in _PLAIN[5:]}
_MARKS = ("#", ";", ":", "::", "\\", '"', "[", " %20&=+$'é")
# Name: the source's files, the shards' pattern, and options.
DATASETS: dict[str, tuple[dict[str, bytes], str, list[str]]] = {
    "plain": (_of(_PLAIN), "x-{000..}.tar", []),
    "single": (_of(_PLAIN), "x-{0..}.tar", ["--max-count", "99"]),
    "single-readme": (_of(_PLAIN), "x-{0..}.tar", ["--max-count", "99", "--export", "huggingface"]),
    "tfrecord": (_of(_PLAIN), "x-{000..}.tfrecord", []),
    "energon": (_of(_PLAIN), "x-{000..}.tar", ["--export", "energon"]),
    "energon-readme": (_of(_PLAIN), "x-{000..}.tar", ["--export", "energon", "--export", "huggingface"]),
    "blank": (_of([*_PLAIN, "a b"]), "x-{000..}.tar", []),
    "blank-indexed": (_of([*_PLAIN, "a b"]), "x-{000..}.tar", ["--export", "dali-webdataset"]),
    "prefix": (_of([*_PLAIN, "d" * 60 + "/" + "s" * 60]), "x-{000..}.tar", []),
    "pax": (_of([*_PLAIN, "n" * 120]), "x-{000..}.tar", []),
    "pax-indexed": (_of([*_PLAIN, "n" * 120]), "x-{000..}.tar", ["--export", "dali-webdataset"]),
    "dots": (_of([*_PLAIN, "a.b", "a.c"]), "x-{000..}.tar", ["--dots", "last"]),
    "dots-indexed": (_of([*_PLAIN, "a.b", "a.c"]), "x-{000..}.tar", ["--dots", "last", "--export", "dali-webdataset"]),
    "folder-dots": (_of([*_PLAIN, "d.x/a"]), "x-{000..}.tar", []),
    "meta-folder": (_of([*_PLAIN, "__m__/x"]), "x-{000..}.tar", []),
    "meta-below": (_of([*_PLAIN, "a/__m__/x"]), "x-{000..}.tar", []),
    "meta-half": (_of([*_PLAIN, "__m/x"]), "x-{000..}.tar", []),
    "meta-name": (_of([*_PLAIN, "a/__m"]), "x-{000..}.tar", []),
    "upper": (_of(_PLAIN, ("BIN", "txt")), "x-{000..}.tar", []),
    "blank-field": (_of(_PLAIN, ("my bin", "txt")), "x-{000..}.tar", []),
    "semicolon-field": (_of(_PLAIN, ("a;b", "txt")), "x-{000..}.tar", []),
    "late-field": (_of(_PLAIN) | _LATE, "x-{000..}.tar", []),
    "early-field": (_of(_PLAIN) | {"p11.seg": b"1"}, "x-{000..}.tar", []),
    "lacking-field": ({name: data for name, data in _of(_PLAIN).items() if name != "p18.bin"}, "x-{000..}.tar", []),
    "splits": (_of(_PLAIN), "{split}-{0..}.tar", ["--split", "train=0.7,val=0.3"]),
    "splits-readme": (_of(_PLAIN), "{split}-{0..}.tar", ["--split", "train=0.7,val=0.3", "--export", "huggingface"]),
    **{f"name {mark}": (_of(_PLAIN), f"x{mark}y-{{000..}}.tar", []) for mark in _MARKS},
    "name .": (_of(_PLAIN), ".x-{000..}.tar", []),
}  # fmt: skip


@pytest.fixture(scope="module", params=DATASETS)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Samples, list[str], str]:
    """Yield a folder with a dataset, its samples, the notes of `create`, and its name."""
    files, pattern, options = DATASETS[request.param]
    root = tmp_path_factory.mktemp("target")
    for name, data in files.items():
        (root / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "source" / name).write_bytes(data)
    bound = [] if "--max-count" in options else ["--max-count", "5"]
    asked = ["--for", ",".join(get_args(Target)), "--json", "--workers", "1"]  # notes tell of readers that are named
    words = ["create", str(root / "source"), f"{root}/out/{pattern}", *bound, *options, *asked]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    samples: dict[str, Fields] = {}
    for name, data in files.items():
        folder, slash, last = name.rpartition("/")
        stem, _, field = last.rpartition(".") if "--dots" in options else last.partition(".")
        samples.setdefault(f"{folder}{slash}{stem}", {})[field] = data
    ordered = sorted(samples.items(), key=lambda sample: os.fsencode(sample[0]))
    return root / "out", ordered, json.loads(done.stdout)["notes"], request.param


def _shards(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix in {".tar", ".tfrecord"})


def _dataset_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if b'"wids_version"' in path.read_bytes()) or [
        folder / ".x.json"
    ]


def _webdataset(folder: Path, _: list[str]) -> Samples:
    import webdataset

    found: Samples = []
    os.chdir(folder)
    for shard in _shards(folder):
        for sample in webdataset.WebDataset(shard, shardshuffle=False):
            fields = {name: data for name, data in sample.items() if not name.startswith("__")}
            found.append((sample["__key__"], fields))
    return found


def _wids(folder: Path, _: list[str]) -> Samples:
    import wids

    found: Samples = []
    for file in _dataset_files(folder):
        dataset: Any = wids.ShardListDataset(str(file), transformations=[], cache_dir=str(folder.parent / "wids"))
        for at in range(len(dataset)):
            fields = {name[1:]: data.read() for name, data in dataset[at].items() if not name.startswith("__")}
            found.append((dataset[at]["__key__"], fields))
    return found


def _huggingface(folder: Path, _: list[str]) -> Samples:
    import datasets

    found: Samples = []
    for split in datasets.load_dataset(str(folder), cache_dir=str(folder.parent / "hf")).values():
        for row in split:
            fields = {name: data for name, data in row.items() if not name.startswith("__") and data is not None}
            found.append((row["__key__"], {
                name: data.encode() if isinstance(data, str) else data for name, data in fields.items()
            }))  # fmt: skip
    return found


def _energon(folder: Path, _: list[str]) -> Samples:
    found: Samples = []
    for file in _dataset_files(folder):
        shardtool("index", file.name, "--export", "energon", "--overwrite", cwd=folder)
    for part in ("train", "val")[: len(_dataset_files(folder))]:
        found += read_with_energon(folder, part)
    return found


def _dali(folder: Path, fields: list[str]) -> Samples:
    dali = pytest.importorskip("nvidia.dali")
    paths = [str(folder / name) for name in _shards(folder)]
    indexes = [str(Path(path).with_suffix(".idx")) for path in paths]
    more = {"index_paths": indexes} if all(map(os.path.exists, indexes)) else {}

    def graph() -> Any:
        return tuple(dali.fn.readers.webdataset(paths=paths, ext=fields, missing_component_behavior="empty", **more))

    running = dali.pipeline_def(batch_size=1, num_threads=1, device_id=None)(graph)()
    running.build()
    (meta,) = running.reader_meta().values()
    found: Samples = []
    for _ in range(meta["epoch_size"]):
        outputs = zip(fields, running.run(), strict=True)
        found.append(("", {name: output.at(0).tobytes() for name, output in outputs}))
    return found


READERS: dict[str, tuple[Callable[[Path, list[str]], Samples], str]] = {
    "webdataset": (_webdataset, "webdataset"),
    "wids": (_wids, "wids"),
    "huggingface": (_huggingface, "Hugging Face"),
    "dali": (_dali, "DALI"),
    "energon": (_energon, "energon"),
}


@pytest.mark.parametrize("reader", READERS)
def test_findings_match_the_reader(made: Made, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify --for` reports something exactly if the reader loses a key or byte; so does `create`."""
    folder, samples, notes, name = made
    monkeypatch.chdir(folder)
    tfrecord = _shards(folder)[0].endswith(".tfrecord")
    if reader == "dali" and tfrecord:
        pytest.skip("another reader of DALI's: see test_exports.py")
    if reader == "energon" and name.startswith("name ") and name[5:] not in '#:"\\':
        pytest.skip("as the others: seconds each")
    options = VerifyOptions(target=(cast("Target", reader),), workers=1)
    counts = {code for file in _dataset_files(folder) for code in verify(file, options).counts}
    fields = sorted({name for _, one in samples for name in one})
    read, said = READERS[reader]
    wanted = samples
    if reader == "dali":
        wanted = [("", {name: one.get(name, b"") for name in fields}) for _, one in samples]
    try:
        found = read(folder, fields)
        right = sorted(found, key=repr) == sorted(wanted, key=repr)
    except Exception:  # noqa: BLE001 - however it fails
        right = False
    if reader == "dali" and any(set(name) & set(" ") for name in fields):
        right = False  # it reads them, but no index can name them: `index --export dali-webdataset` refuses
    assert right == (not counts), (counts, notes)
    assert right or tfrecord or any(said in note for note in notes), notes
