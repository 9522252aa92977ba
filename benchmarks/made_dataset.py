"""Create a large dataset with real sidecars. The shards are sparse files of zeros that use no disk space.

    python benchmarks/made_dataset.py FOLDER SHARDS SAMPLES      x-000000.tar ..., x.json; SAMPLES in total

The sidecars are those that `create` would write; 10,000 sidecars of 10,000 samples take some minutes. Payloads are
zeros, and the sidecars contain their checksums. Reading by the index therefore finds no damage, but a scan of a shard
does.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from shardtool.dataset.dataset_file import DatasetFile, ShardEntry
from shardtool.dataset.sidecar_schema import ShardFacts
from shardtool.dataset.sidecar_write import encode_sidecar, written_index
from shardtool.entries.record_sizes import RecordColumns, sample_sizes
from shardtool.entries.strings import PackedStrings
from shardtool.fingerprint import crc32c
from shardtool.pattern import sidecar_name
from shardtool.request.run_record import RunRecord
from shardtool.shard_samples import ShardContent

_FIELD, _LEAST, _SIZES = "dat", 200, 4096  # bytes of payloads: _LEAST to _LEAST + _SIZES - 1


def _key(number: int) -> bytes:
    return b"c%04d/image-%010d" % (number // 100_000, number)


def _make(folder: Path, each: int, shards: int, number: int) -> tuple[ShardEntry, dict[str, str]]:
    """Write a sidecar, and a sparse file as its shard."""
    sizes = np.random.default_rng(number).integers(_LEAST, _LEAST + _SIZES, each)
    of_zeros = np.array([crc32c(bytes(size)) for size in range(_LEAST, _LEAST + _SIZES)], np.uint32)
    keys = PackedStrings.of([_key(at) for at in range(number * each, (number + 1) * each)])
    codes, first = np.zeros(each, np.uint16), np.arange(each + 1, dtype=np.int64)
    whole = int(sample_sizes("tar", RecordColumns(keys, first, (_FIELD,), codes, sizes)).sum()) + 1024
    content = ShardContent(
        keys.data, np.ones(each, np.uint16).tobytes(), (_FIELD.encode(),), codes.tobytes(), sizes.tobytes(),
        sizes.tobytes(),
    )  # fmt: skip
    index = written_index("tar", content, None, of_zeros[sizes - _LEAST].tobytes())
    name = f"x-{number:06}.tar"
    data, schema = encode_sidecar(index, ShardFacts(name, whole, 0, "0" * 32, None, "x-000000.tar", shards))
    (folder / sidecar_name(name)).write_bytes(data)
    with open(folder / name, "wb") as shard:
        shard.truncate(whole)
    ends = _key(number * each).decode(), _key((number + 1) * each - 1).decode()
    return ShardEntry(name, each, whole, 0, sidecar_name(name), len(data), crc32c(data), *ends), schema


def make(folder: Path, shards: int, samples: int) -> None:
    """Write all shards and the dataset file."""
    each = samples // shards
    with ProcessPoolExecutor(2) as pool:
        made = [*pool.map(partial(_make, folder, each, shards), range(shards), chunksize=16)]
    entries, schema = tuple(entry for entry, _ in made), made[0][1]
    total = each * shards
    dataset = DatasetFile(
        "x", "x-{000000..}.tar", "tar", entries, {_FIELD: total}, 0, 0, schema, {}, {}, RunRecord({}), ""
    )
    (folder / "x.json").write_bytes(dataset.encode())


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
