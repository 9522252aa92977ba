from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.clients.energon import read_with_energon
from tests.clients.packed import PHOTOS, Packed, pack, payloads_of, shardtool

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.clients


def _need(module: str) -> None:
    """Skip if a tool is not installed. Importing the tfrecord package would conflict with TensorFlow."""
    if not find_spec(module):
        pytest.skip(f"{module} is not installed")


def _dali() -> Any:
    return pytest.importorskip("nvidia.dali")


def _exported(name: str, export: str, request: pytest.FixtureRequest, folder: Path) -> tuple[Packed, list[str]]:
    """Return a dataset, and another tool's indexes for it in a separate folder."""
    packed: Packed = request.getfixturevalue(name)
    folder.mkdir(exist_ok=True)
    shardtool("index", str(packed.folder / "out.json"), "--export", export, "--output", str(folder), cwd=folder)
    return packed, [str(path) for path in sorted(folder.iterdir()) if path.is_file()]


def _run(read: Any, shards: list[str], indexes: list[str], names: list[str]) -> Iterator[dict[str, bytes]]:
    """Yield what a DALI pipeline gives of every sample, in order."""

    def graph() -> Any:
        found = read(shards, indexes)
        return tuple(found[name] for name in names)

    # Batches of one: DALI refuses batches in which some samples lack a field.
    running = _dali().pipeline_def(batch_size=1, num_threads=1, device_id=None)(graph)()
    running.build()
    (meta,) = running.reader_meta().values()
    for _ in range(meta["epoch_size"]):
        yield {name: output.at(0).tobytes() for name, output in zip(names, running.run(), strict=True)}


_SCRIPTS = Path(sys.executable).parent
_MAKERS = [
    ("photo_records", "dali-tfrecord", [str(_SCRIPTS / "tfrecord2idx")]),
    ("photo_records", "tfrecord", ["-m", "tfrecord.tools.tfrecord2idx"]),
    ("photos", "dali-webdataset", [str(_SCRIPTS / "wds2idx")]),
]


@pytest.mark.parametrize(("made", "export", "maker"), _MAKERS, ids=[export for _, export, _ in _MAKERS])
def test_the_tools_make_the_same(
    made: str, export: str, maker: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each index is, to the byte, what the tool's own program makes of the shard."""
    _need("tfrecord" if export == "tfrecord" else "wds2idx")  # a standalone module of DALI
    (tmp_path / "ours").mkdir()
    packed, indexes = _exported(made, export, request, tmp_path / "ours")
    theirs = tmp_path / "theirs"
    subprocess.run([sys.executable, *maker, str(packed.shards[1]), str(theirs)], capture_output=True, check=True)
    assert Path(indexes[1]).read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize("made", ["photo_records", "odd_records"])
def test_dali_reads_tfrecord(made: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """DALI's TFRecord reader, on the CPU, returns every key, byte and label in order with exported indexes.

    For a missing field, it returns uninitialized memory.
    """
    dali = _dali()
    tfrec = pytest.importorskip("nvidia.dali.tfrecord")
    packed, indexes = _exported(made, "dali-tfrecord", request, tmp_path)
    names = ["__key__", *json.loads((packed.folder / "out.json").read_bytes())["shardtool"]["fields"]]
    features = {name: tfrec.FixedLenFeature((), tfrec.string, "") for name in names}
    features["cls"] = tfrec.FixedLenFeature([1], tfrec.int64, -1)

    def read(shards: list[str], indexes: list[str]) -> Any:
        return dali.fn.readers.tfrecord(path=shards, index_path=indexes, features=features)

    samples = []
    for sample in _run(read, [str(shard) for shard in packed.shards], indexes, names):
        key = sample.pop("__key__").decode()
        sample["cls"] = b"%d" % int.from_bytes(sample["cls"], sys.byteorder)
        samples.append((key, {name: value for name, value in sample.items() if name in packed.samples[key]}))
    assert samples == list(packed.samples.items())


@pytest.mark.parametrize("made", ["photos", "names", "long_names"])
def test_dali_reads_webdataset(made: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """DALI's webdataset reader, on the CPU, returns every byte in order with exported indexes, for any names."""
    dali = _dali()
    packed, indexes = _exported(made, "dali-webdataset", request, tmp_path)
    names = list(next(iter(packed.samples.values())))

    def read(shards: list[str], indexes: list[str]) -> Any:
        found = dali.fn.readers.webdataset(
            paths=shards, index_paths=indexes, ext=names, missing_component_behavior="error"
        )
        return dict(zip(names, found, strict=True))

    samples = list(_run(read, [str(shard) for shard in packed.shards], indexes, names))
    assert samples == list(packed.samples.values())


_TFRECORD_PACKAGE = """
import json, sys
from tfrecord.reader import tfrecord_loader
for shard, index in json.loads(sys.argv[1]):
    for sample in tfrecord_loader(shard, index, shard=(0, 1)):
        numbers = {name: int(value[0]) for name, value in sample.items() if not isinstance(value, bytes)}
        data = {name: value.hex() for name, value in sample.items() if isinstance(value, bytes)}
        print(json.dumps([numbers, data]))
"""


@pytest.mark.parametrize("made", ["photo_records", "odd_records"])
def test_the_tfrecord_package_reads_it(made: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The `tfrecord` package, with exported indexes, gives every key, byte and label, in order."""
    _need("tfrecord")
    packed, indexes = _exported(made, "tfrecord", request, tmp_path)
    both = json.dumps([(str(shard), index) for shard, index in zip(packed.shards, indexes, strict=True)])
    # In a separate process: the package declares TensorFlow's protobuf types again, which TensorFlow refuses.
    done = subprocess.run([sys.executable, "-c", _TFRECORD_PACKAGE, both], capture_output=True, text=True, check=True)
    samples = []
    for line in done.stdout.splitlines():
        numbers, data = json.loads(line)
        fields = {name: bytes.fromhex(value) for name, value in data.items()}
        fields |= {name: b"%d" % value for name, value in numbers.items()}
        samples.append((fields.pop("__key__").decode(), fields))
    assert samples == list(packed.samples.items())


@pytest.mark.parametrize("made", ["photos", "names", "long_names", "portable"])
def test_energon_reads_it(made: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Energon opens the folder unchanged, and returns every key and byte in order."""
    pytest.importorskip("megatron.energon")
    packed: Packed = request.getfixturevalue(made)
    folder = Path(shutil.copytree(packed.folder, tmp_path / "copy"))
    shardtool("index", "out.json", "--export", "energon", cwd=folder)
    found = read_with_energon(folder, "train")
    if made == "portable":  # other keys
        assert payloads_of(fields for _, fields in found) == payloads_of(packed.samples.values())
    else:
        assert found == list(packed.samples.items())


def test_energon_reads_splits(tmp_path: Path) -> None:
    """Energon finds the splits of `create --export` in one folder, and no sample is lost."""
    pytest.importorskip("megatron.energon")
    packed = pack(
        PHOTOS, tmp_path, "--export", "energon", "--split", "train=0.6,val=0.4", "--max-count", "20", name="{split}"
    )
    parts = [dict(read_with_energon(tmp_path, part)) for part in ("train", "val")]
    assert all(parts)
    assert len(parts[0]) + len(parts[1]) == len(packed.samples)
    assert parts[0] | parts[1] == packed.samples


@pytest.mark.parametrize("made", ["photos", "names", "long_names"])
def test_energon_makes_the_same(made: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """`energon prepare` makes the same offsets and counts, to the byte and the number."""
    prepare = pytest.importorskip("megatron.energon.flavors.webdataset.prepare")
    packed, _ = _exported(made, "energon", request, tmp_path / "ours")
    theirs = Path(shutil.copytree(packed.folder, tmp_path / "theirs"))
    names = [shard.name for shard in packed.shards]
    prepare.WebdatasetPreparator.prepare_dataset(theirs, names, split_parts_ratio=[("train", 1.0)], workers=1)
    for name in (f"{name}.idx" for name in names):
        assert (tmp_path / "ours" / name).read_bytes() == (theirs / name).read_bytes()
    counts = [
        json.loads((at / ".nv-meta/.info.json").read_bytes())["shard_counts"] for at in (tmp_path / "ours", theirs)
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("made", ["photos", "names", "long_names"])
def test_hfutils_makes_and_reads_the_same(made: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """To the byte, hfutils makes the same JSON of a shard; it reads every member through ours, and checks its hash."""
    hub = pytest.importorskip("hfutils.index")
    packed, indexes = _exported(made, "huggingface", request, tmp_path / "ours")
    found = []
    for shard, index in zip(map(str, packed.shards), indexes, strict=True):
        theirs = hub.tar_create_index(shard, str(tmp_path / "theirs.json"), silent=True)
        assert Path(index).read_bytes() == Path(theirs).read_bytes()
        for name in hub.tar_list_files(shard, index):
            hub.tar_file_download(shard, name, str(tmp_path / "file"), idx_file=index)
            found.append((name, (tmp_path / "file").read_bytes()))
    assert found == packed.members


@pytest.mark.parametrize("made", ["photos", "names", "long_names"])
def test_webshart_reads_it(made: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """By their JSON, webshart finds the shards, and reads every member at its place."""
    webshart = pytest.importorskip("webshart")
    packed: Packed = request.getfixturevalue(made)
    folder = Path(shutil.copytree(packed.folder, tmp_path / "copy"))
    shardtool("index", "out.json", "--export", "huggingface", cwd=folder)
    dataset = webshart.discover_dataset(str(folder))
    found = []
    for number in range(dataset.num_shards):
        shard = dataset.open_shard(number)
        found += [(name, bytes(shard.read_file(at))) for at, name in enumerate(shard.filenames())]
    assert found == packed.members
