"""Hostile sidecars with every verb: none takes much memory or causes a crash."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool import CorruptShard, CreateOptions, ShardError, create, verify
from shardtool.cli import cli
from shardtool.dataset.find import open_dataset
from shardtool.dataset.parquet_bounds import leaf_memory, parse_footer
from shardtool.dataset.sidecar_read import check_offsets, parse_sidecar, read_sample_count
from shardtool.dataset.sidecar_schema import ShardFacts
from shardtool.dataset.sidecar_write import encode_sidecar, encode_sidecar_table, written_index
from shardtool.errors import Bug
from shardtool.shard_samples import ShardContent
from shardtool.verbs.inspect.samples import first_samples, view_sample
from tests.helpers import ENVIRONMENT, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_MAX_VERB_BYTES = 200_000_000  # memory of a verb for a sidecar of a few kilobytes
_HANG_S = 120
VERBS = {
    "verify": ["verify", "DATASET", "--workers", "0"],
    "verify --quick": ["verify", "DATASET", "--quick"],
    "inspect": ["inspect", "DATASET"],
    "inspect --json": ["inspect", "DATASET", "--json"],
    "inspect --keys": ["inspect", "DATASET", "--keys"],
    "inspect --sample": ["inspect", "DATASET", "--sample", "0", "--json"],
    "inspect --head": ["inspect", "DATASET", "--head", "3"],
    "inspect --html": ["inspect", "DATASET", "--html", "FOLDER/page.html"],
    "inspect --contact-sheet": ["inspect", "DATASET", "--contact-sheet", "FOLDER/sheet.png"],
    "index --export": ["index", "DATASET", "--export", "dali-webdataset", "--output", "FOLDER/export"],
    "reshard": ["reshard", "DATASET", "FOLDER/new/out-{000..}.tar", "--workers", "0", "--quiet"],
    "reshard --where": ["reshard", "DATASET", "FOLDER/w/out-{000..}.tar", "--where", "n > 0", "--workers", "0"],
    "create --append": ["create", "MORE", "BESIDE/out-{000..}.tar", "--append", "--workers", "0", "--quiet"],
    "create --resume": ["create", "SOURCE", "BESIDE/out-{000..}.tar", "--resume", "--workers", "0", "--quiet"],
    "index": ["index", "DATASET", "--workers", "0", "--quiet"],
}
# one verb for each way in which sidecars are read; the last verbs replace the sidecar
READERS = (
    "verify", "reshard", "inspect --json", "inspect --sample", "inspect --html", "index --export", "create --append",
    "create --resume", "index",
)  # fmt: skip


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the dataset `ds/out.json` (one tar of four samples with metadata) and two sources."""
    folder = tmp_path_factory.mktemp("sound")
    table = {
        "key": [f"k{number}" for number in range(4)],
        "txt": ["some text"] * 4,
        "n": [1, 2, 3, 4],
        "word": ["a", "b"] * 2,
    }
    pq.write_table(pa.table(table), folder / "source.parquet")
    create(folder / "source.parquet", folder / "ds" / "out-{000..}.tar", CreateOptions(field=("txt=txt",), workers=0))
    pq.write_table(pa.table(table | {"key": [f"m{number}" for number in range(4)]}), folder / "more.parquet")
    return folder


@pytest.fixture
def dataset(packed: Path, tmp_path: Path) -> Path:
    """Return a copy of the dataset that a test may change."""
    shutil.copytree(packed, tmp_path / "w")
    return tmp_path / "w" / "ds" / "out.json"


def _sidecar(dataset: Path) -> Path:
    return dataset.parent / "out-000.index"


def _facts(dataset: Path) -> dict[str, str]:
    metadata = pq.read_metadata(_sidecar(dataset)).metadata
    return {name.decode(): text.decode() for name, text in metadata.items() if name.startswith(b"shardtool.")}


def _written(table: pa.Table, facts: dict[str, str], **options: Any) -> bytes:
    sink = io.BytesIO()
    options = {
        "compression": "zstd",
        "write_statistics": False,
        "write_page_checksum": True,
        "store_schema": False,
        **options,
    }
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(facts)
    return sink.getvalue()


def _list_sidecar(dataset: Path, data: bytes, samples: int | None = None) -> None:
    """Replace the sidecar, and update its checksums in the dataset file."""
    _sidecar(dataset).write_bytes(data)
    document = json.loads(dataset.read_bytes())
    shard = document["shardlist"][0]
    shard["index"].update(size=len(data), crc32c=f"{crc32c.crc32c(data):08x}")
    shard.update(filesize=(dataset.parent / "out-000.tar").stat().st_size)
    if samples is not None:
        shard.update(nsamples=samples)
    document.pop("checksum")
    body = json.dumps(document, indent=2).removesuffix("\n}").encode() + b',\n  "checksum": "crc32c:'
    dataset.write_bytes(body + b'%08x"\n}\n' % crc32c.crc32c(body))


def _coded(rows: int, text: str) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


def _with(name: str, column: Any) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.append_column(name, column(table.num_rows))


def _set(name: str, change: Callable[[pa.Table], Any]) -> Callable[[pa.Table], pa.Table]:
    def changed(table: pa.Table) -> pa.Table:
        index, values = table.schema.get_field_index(name), change(table)
        return table.set_column(index, pa.field(name, values.type), values)

    return changed


def _index(rows: int, keys: Any, fields: int = 0) -> Callable[[pa.Table], pa.Table]:
    """Return a function that creates an index of `rows` samples, with `fields` fields in the first sample."""

    def made(table: pa.Table) -> pa.Table:
        kind = table.schema.field("__fields__").type
        part = [pa.array(["txt"] * fields, pa.string())] + [pa.array(np.zeros(fields, np.uint64))] * 2
        part.append(pa.array(np.zeros(fields, np.uint32)))
        struct = pa.StructArray.from_arrays(part, fields=list(kind.value_type))
        starts = pa.array(np.append(0, np.full(rows, fields)).astype(np.int32))
        zeros = pa.array(np.zeros(rows, np.uint64))
        lists = pa.ListArray.from_arrays(starts, struct, type=kind)
        return pa.Table.from_arrays([keys(rows), zeros, zeros, lists], names=table.column_names[:4])

    return made


def _no_utf8(rows: int) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), rows, pa.array([b"\xff\xfe%d" % row for row in range(rows)]).buffers())


def _twice(table: pa.Table) -> Any:
    lists = table.column("__fields__").combine_chunks()
    rows = [[{**field, "name": f"f{number}"} for field in row for number in range(900)] for row in lists.to_pylist()]
    return pa.array(rows, lists.type)


_MANY = 3000
BOMBS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "keys in a dictionary": _index(1000, lambda rows: _coded(rows, "K" * 1_000_000)),
    "four million samples": _index(4_000_000, lambda rows: _coded(rows, "k")),
    "four million fields": _index(1, lambda rows: _coded(rows, "k"), 4_000_000),
    "a long key": _index(1, lambda rows: pa.array(["k" * 100_000_000] * rows)),
    "text in a dictionary": _with("t", lambda rows: _coded(rows, "t" * 100_000_000)),
    "a list of text in a dictionary": _with(
        "t", lambda rows: pa.ListArray.from_arrays(
            pa.array(np.arange(rows + 1, dtype=np.int32) * _MANY), _coded(rows * _MANY, "Y" * 1_000_000)
        )
    ),
    "a map of text in a dictionary": _with(
        "t", lambda rows: pa.MapArray.from_arrays(
            pa.array(np.arange(rows + 1, dtype=np.int32) * _MANY), pa.array(["k"] * rows * _MANY),
            _coded(rows * _MANY, "Y" * 1_000_000),
        )
    ),
    "a struct of text in a dictionary": _with(
        "t", lambda rows: pa.StructArray.from_arrays([_coded(rows, "Z" * 100_000_000)], names=["deep"])
    ),
    "a list of nulls": _with(
        "t", lambda rows: pa.ListArray.from_arrays(
            pa.array([0] * rows + [40_000_000], pa.int32()), pa.nulls(40_000_000, pa.int8())
        )
    ),
    "wide values": _with("t", lambda rows: pa.array([bytes(30_000_000)] * rows, pa.binary(30_000_000))),
}  # fmt: skip
LIES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "keys that are null": _set("__key__", lambda table: pa.nulls(table.num_rows, pa.string())),
    "offsets that are null": _set("__offset__", lambda table: pa.nulls(table.num_rows, pa.uint64())),
    "sizes that are null": _set("__size__", lambda table: pa.nulls(table.num_rows, pa.uint64())),
    "fields that are null": _set(
        "__fields__", lambda table: pa.nulls(table.num_rows, table.schema.field("__fields__").type)
    ),
    "keys that are no UTF-8": _set("__key__", lambda table: _no_utf8(table.num_rows)),
    "metadata that is no UTF-8": _with("t", _no_utf8),
    "payloads that are many fields": _set("__fields__", _twice),
    "a column of its own": _with("__mine__", lambda rows: pa.nulls(rows, pa.int8())),
    "a column twice": _with("n", lambda rows: pa.nulls(rows, pa.int8())),
    "keys that are numbers": _set("__key__", lambda table: table.column("__offset__")),
}


def _arguments(verb: str, dataset: Path) -> list[str]:
    folder = dataset.parent.parent
    values = {
        "DATASET": str(dataset), "FOLDER": str(folder), "BESIDE": str(dataset.parent),
        "SOURCE": str(folder / "source.parquet"), "MORE": str(folder / "more.parquet"),
    }  # fmt: skip
    words = VERBS[verb]
    for name, value in values.items():
        words = [word.replace(name, value) for word in words]
    return [*words, "--field", "txt=txt"] if verb.startswith("create") else words


def _outcome(verb: str, dataset: Path) -> int:
    """Return the exit code of a verb; undocumented errors and hangs fail the test."""

    def hangs(*_: object) -> None:
        raise AssertionError(verb)

    signal.signal(signal.SIGALRM, hangs)
    signal.alarm(_HANG_S)
    try:
        return int(cli.main(_arguments(verb, dataset), prog_name="shardtool", standalone_mode=False) or 0)
    except ShardError as error:
        assert not isinstance(error, Bug), error  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
        return error.exit_code
    finally:
        signal.alarm(0)


@pytest.fixture
def memory() -> Iterator[_Memory]:
    """Measure the memory of Arrow, NumPy and Python."""
    before = pa.default_memory_pool()
    tracemalloc.start()
    yield _Memory()
    tracemalloc.stop()
    pa.set_memory_pool(before)


_POOLS: list[pa.MemoryPool] = []  # never freed, because memory is returned to the pool that allocated it


class _Memory:
    def start(self) -> None:
        """Reset the peak."""
        _POOLS.append(pa.proxy_memory_pool(pa.system_memory_pool()))
        pa.set_memory_pool(_POOLS[-1])
        tracemalloc.reset_peak()

    def peak(self) -> int:
        """Return the peak number of bytes since `start`."""
        return int(_POOLS[-1].max_memory()) + tracemalloc.get_traced_memory()[1]


def _replace_sidecar(dataset: Path, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    table = change(pq.read_table(_sidecar(dataset)))
    facts, samples = _facts(dataset), None
    if table.num_rows > 4:  # a sparse shard that is large enough for these samples
        os.truncate(dataset.parent / "out-000.tar", max(4096, table.num_rows * 16))
        facts["shardtool.size"], samples = str(max(4096, table.num_rows * 16)), table.num_rows
    _list_sidecar(dataset, _written(table, facts, **options), samples)


# every bomb with a verb that reads and a verb that replaces sidecars; two bombs with all other verbs
_BOMBED = [
    (what, READERS if what in ("four million samples", "text in a dictionary") else ("verify", "index"))
    for what in BOMBS
]


@pytest.mark.slow
@pytest.mark.parametrize(("bomb", "verbs"), _BOMBED, ids=BOMBS)
def test_small_sidecars_take_little_memory(bomb: str, verbs: list[str], dataset: Path, memory: _Memory) -> None:
    """Every verb rejects a small sidecar that would decompress to gigabytes, before it is decompressed."""
    _replace_sidecar(dataset, BOMBS[bomb])
    data, size = _sidecar(dataset).read_bytes(), (dataset.parent / "out-000.tar").stat().st_size
    assert len(data) < 200_000
    memory.start()
    with pytest.raises(CorruptShard, match="not a valid sidecar"):
        parse_sidecar(data, "x.index", size)
    for verb in verbs:
        code = _outcome(verb, dataset)
        assert code in (0, 2, 3, 4, 5), verb  # 0: the shard was scanned instead
        if verb in ("verify", "reshard"):
            assert code == {"verify": 3, "reshard": 4}[verb]
    assert memory.peak() < _MAX_VERB_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("problem", LIES)
def test_inconsistent_sidecars_are_rejected(problem: str, dataset: Path) -> None:
    """A sidecar with nulls, invalid text, or one payload for many fields is rejected by name by each verb."""
    _replace_sidecar(dataset, LIES[problem])
    assert _outcome("verify", dataset) == 3
    assert _outcome("reshard", dataset) == 4
    assert not (dataset.parent.parent / "new").exists()
    for verb in READERS[2:]:
        assert _outcome(verb, dataset) in (0, 2, 3, 4, 5), verb


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "dangling link", "link to itself"])
def test_special_files_with_a_sidecar_name(kind: str, dataset: Path) -> None:
    """A special file with a sidecar's name blocks no verb, and causes only findings or our errors."""
    path = _sidecar(dataset)
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "dangling link": "nowhere", "link to itself": path.name}[kind])
    assert _outcome("verify", dataset) == 3
    assert _outcome("reshard", dataset) == 4
    for verb in READERS[2:]:  # the last ones replace the sidecar
        assert _outcome(verb, dataset) in (0, 2, 3, 4, 5, 7), verb


def test_a_large_file_is_rejected_without_reading_it(dataset: Path, memory: _Memory) -> None:
    """A file of a gigabyte that is not Parquet is rejected without reading it."""
    os.truncate(_sidecar(dataset), 2**30)
    memory.start()
    assert _outcome("verify", dataset) == 3
    assert _outcome("inspect", dataset) == 0
    assert _outcome("reshard", dataset) == 4
    assert memory.peak() < _MAX_VERB_BYTES


def test_delta_encoded_values_are_rejected(dataset: Path) -> None:
    """An encoding in which an empty value repeats a megabyte of the previous one is rejected."""
    column = _with("t", lambda rows: pa.array(["t" * 1_000_000] * rows))
    _replace_sidecar(dataset, column, use_dictionary=False, column_encoding={"t": "DELTA_BYTE_ARRAY"})
    with pytest.raises(CorruptShard, match="an encoding that sidecars do not use"):
        parse_sidecar(_sidecar(dataset).read_bytes(), "x", 4096)


def test_shared_pages_are_rejected(dataset: Path) -> None:
    """Columns that share their pages, and would take forever to read, are rejected by the footer."""
    footer = parse_footer(_sidecar(dataset).read_bytes())
    with pytest.raises(ValueError, match="columns that share pages"):
        leaf_memory(b"PAR1", footer)


@pytest.mark.slow
def test_a_memory_error_is_not_damage(dataset: Path) -> None:
    """`MemoryError` is not reported as damage; otherwise a valid sidecar could be replaced."""
    text = np.random.default_rng(0).integers(97, 123, (4, 8_000_000), np.uint8)
    column = pa.array([row.tobytes().decode() for row in text])
    table = pq.read_table(_sidecar(dataset)).append_column("t", column)
    _list_sidecar(dataset, _written(table, _facts(dataset)))
    program = (
        "import resource, sys\n"
        "from shardtool.dataset.sidecar_read import load_sidecar, parse_sidecar\n"
        "data = load_sidecar(sys.argv[1])\n"
        "if sys.argv[2] == 'little':\n"
        "    taken = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**24,) * 2)\n"
        "try:\n"
        "    print(parse_sidecar(data, 'x', 4096).metadata.num_columns)\n"
        "except MemoryError:\n"
        "    print('no memory')\n"
    )
    for memory, output in (("enough", "4\n"), ("little", "no memory\n")):
        command = [sys.executable, "-c", program, str(_sidecar(dataset)), memory]
        process = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert (process.stdout, process.stderr) == (output, "")


_TIMES = {
    "timestamp": pa.array([2**58], pa.timestamp("us")),
    "timestamp in UTC": pa.array([2**58], pa.timestamp("us", "UTC")),
    "date": pa.array([2**31 - 1], pa.date32()),
    "date64": pa.array([86_400_000 * 2**31], pa.date64()),
    "before the year 1": pa.array([-(2**58)], pa.timestamp("us")),
    "list": pa.array([[2**58, 0]], pa.list_(pa.timestamp("us"))),
    "struct": pa.array([{"t": 2**58, "n": 1}], pa.struct([("t", pa.timestamp("us")), ("n", pa.int8())])),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", _TIMES)
def test_times_beyond_year_9999(kind: str, tmp_path: Path) -> None:
    """A time beyond the year 9999 is shown as text by every verb, and is copied to other shards."""
    write_tree(tmp_path, {"a0.txt": b"a"})
    pq.write_table(pa.table({"path": ["a0.txt"], "t": _TIMES[kind], "n": [1]}), tmp_path / "source.parquet")
    dataset = tmp_path / "ds" / "out.json"
    create(tmp_path / "source.parquet", tmp_path / "ds" / "out-{000..}.tar", CreateOptions(workers=0))
    for verb in VERBS:
        if not verb.startswith("create"):
            assert _outcome(verb, dataset) == 0, verb
    first, second = (pq.read_table(tmp_path / folder / "out-000.index").column("t") for folder in ("ds", "new"))
    assert first.combine_chunks().equals(second.combine_chunks())


def test_only_unsupported_times_become_text(tmp_path: Path) -> None:
    """Only times that Python does not support become text; other times stay times."""
    times = pa.array([2**58, 0], pa.timestamp("us"))
    days = pa.array([0, 1], pa.date32())
    source = pa.table({"key": ["a", "b"], "txt": ["x", "y"], "t": times, "d": days})
    create(source, f"{tmp_path}/out-{{000..}}.tar", CreateOptions(field=("txt=txt",), workers=0))
    metadata = [view_sample(sample).sample.metadata for sample in first_samples([open_dataset(tmp_path)], 2)]
    assert metadata == [
        {"txt": "x", "t": "11103-08-29 17:22:31.711744", "d": date(1970, 1, 1)},
        {"txt": "y", "t": datetime(1970, 1, 1), "d": date(1970, 1, 2)},  # noqa: DTZ001
    ]


@given(data=st.data())
def test_overlapping_payloads_are_rejected(data: st.DataObject) -> None:
    """Payloads are accepted exactly if no two of them share a byte, in any order."""
    payloads = data.draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), min_size=1, max_size=8))
    index = _index_of([payloads])
    payload_bytes = [set(range(start, start + size)) for start, size in payloads]
    is_disjoint = sum(map(len, payload_bytes)) == len(set().union(*payload_bytes))
    try:
        check_offsets(index, 64)
    except ValueError:
        assert not is_disjoint
    else:
        assert is_disjoint


def _index_of(samples: list[list[tuple[int, int]]]) -> Any:
    fields = sum(map(len, samples))
    content = ShardContent(
        b"k\0" * len(samples), np.array([*map(len, samples)], np.uint16).tobytes(), (b"a",),
        np.zeros(fields, np.uint16).tobytes(), np.ones(fields, np.int64).tobytes(), np.ones(fields, np.int64).tobytes(),
    )  # fmt: skip
    index = written_index("tar", content, None, np.zeros(fields, np.uint32).tobytes())
    data, _ = encode_sidecar(index, ShardFacts("x.tar", 2**20, 0, ""))
    index = parse_sidecar(data, "x", 2**20)
    spans = np.array([span for sample in samples for span in sample], np.int64)
    index.starts[...], index.sizes[...] = 0, 64
    index.offsets[...], index.lengths[...] = spans[:, 0], spans[:, 1]
    return index


def test_overlaps_of_a_million_fields_are_found_by_sorting() -> None:
    """Overlaps among a million unordered payloads are found by sorting, not by comparing all pairs."""
    count = 1_000_000
    index = _index_of([[(0, 1)]])
    order = np.random.default_rng(0).permutation(count)
    large_index = type(index)(
        b"k", np.array([0, 1]), np.array([0]), np.array([4 * count]), np.array([0, count]), ("a",),
        np.zeros(count, np.int64), order * 4, np.full(count, 4), None,
    )  # fmt: skip
    check_offsets(large_index, 4 * count)
    large_index.offsets[7] += 1
    with pytest.raises(ValueError, match=r"overlap|outside"):
        check_offsets(large_index, 4 * count)


_KINDS = st.sampled_from(
    [pa.string(), pa.binary(), pa.uint64(), pa.int64(), pa.uint32(), pa.float64(), pa.bool_(), pa.timestamp("us"),
     pa.date32(), pa.list_(pa.string()), pa.list_(pa.int64()), pa.struct([("a", pa.string())]), pa.duration("s"),
     pa.map_(pa.string(), pa.int64()), pa.decimal128(20, 2), pa.time64("ns"), pa.large_string(), pa.null()]
)  # fmt: skip


@st.composite
def _columns(draw: st.DrawFn, rows: int) -> pa.Array:
    """Draw a column of any type, with or without values."""
    kind = draw(_KINDS)
    if draw(st.booleans()):
        return pa.nulls(rows, kind)
    numbers = pa.array(draw(st.lists(st.integers(0, 2**62), min_size=rows, max_size=rows)), pa.int64())
    for source in (numbers, numbers.cast(pa.string())):
        try:
            return source.cast(kind)
        except pa.ArrowException:
            continue
    return pa.nulls(rows, kind)


@settings(max_examples=15)
@given(data=st.data())
def test_any_sidecar_with_every_verb(
    data: st.DataObject, packed: Path, memory: _Memory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """For any sidecar, a verb succeeds or exits with a documented error, never with 1."""
    folder = tmp_path_factory.mktemp("any") / "w"
    shutil.copytree(packed, folder)
    dataset = folder / "ds" / "out.json"
    raw = _sidecar(dataset).read_bytes()
    if data.draw(st.booleans()):
        changed = bytearray(raw)
        for _ in range(data.draw(st.integers(1, 4))):
            changed[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        _list_sidecar(dataset, bytes(changed[: data.draw(st.just(len(raw)) | st.integers(0, len(raw)))]))
    else:
        table = pq.read_table(_sidecar(dataset))
        name = data.draw(st.sampled_from([*table.column_names, "more"]))
        column = data.draw(_columns(table.num_rows))
        index = table.schema.get_field_index(name)
        table = table.append_column(name, column) if index < 0 else table.set_column(index, name, column)
        facts = _facts(dataset)
        if data.draw(st.booleans()):
            values = st.sampled_from(["", "-1", "x", "9" * 40, "0", "2", "\x1b[2J", "../x", "é"])
            facts[data.draw(st.sampled_from(sorted(facts)))] = data.draw(values)
        _list_sidecar(dataset, _written(table, facts))
    if data.draw(st.booleans()):
        dataset.unlink()
        dataset = dataset.parent
    verb = data.draw(st.sampled_from([*VERBS]))
    memory.start()
    assert _outcome(verb, dataset) in (0, 2, 3, 4, 5), verb
    assert memory.peak() < _MAX_VERB_BYTES


def test_valid_sidecars_are_accepted(dataset: Path) -> None:
    """Each verb reads what `create` writes: nested metadata, repeated text, and nulls."""
    table = pq.read_table(_sidecar(dataset))
    rows = table.num_rows
    table = table.append_column("nested", pa.array([[{"a": "x" * 50, "b": [1, None]}, None]] * rows))
    table = table.append_column("map", pa.array([[("k", "v" * 20)]] * rows, pa.map_(pa.string(), pa.string())))
    table = table.append_column("none", pa.nulls(rows, pa.string()))
    _list_sidecar(dataset, _written(table, _facts(dataset)))
    assert verify(dataset).sound
    index = parse_sidecar(_sidecar(dataset).read_bytes(), "x", 4096)
    table = table.drop_columns(["__shard__"])  # the index has no column for the shard name
    assert index.plain_table().to_pylist() == table.to_pylist()
    assert index.plain_table().schema.names == table.schema.names
    for verb in VERBS:
        if not verb.startswith("create"):
            assert _outcome(verb, dataset) == 0, verb


def test_a_footer_as_long_as_the_first_read(dataset: Path, tmp_path: Path) -> None:
    """A footer is read completely, whether it is a few bytes shorter or longer than the first read from the file."""
    table, path = parse_sidecar(_sidecar(dataset).read_bytes(), "", None).plain_table(), tmp_path / "a.index"
    plan, sizes = "x" * 10_000, set[int]()
    for _ in range(20):
        data = encode_sidecar_table(table, ShardFacts("a.tar", 1000, None, plan))
        sizes.add(footer_bytes := int.from_bytes(data[-8:-4], "little"))
        path.write_bytes(data)
        assert read_sample_count(str(path), "a.tar", 1000)[0] == len(table)
        plan += "x" * max(1, 2**14 - 16 - footer_bytes)
    assert {*range(2**14 - 14, 2**14)} <= sizes
