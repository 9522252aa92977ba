"""Promises of the documents that no single module keeps."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shardtool import CreateOptions, create
from shardtool.cli import _MIN_ADDRESS_SPACE_BYTES
from shardtool.cli.signals import _CLEANUP_LIMIT_S
from shardtool.dataset import payload
from shardtool.dataset.class_names import _MAX_FILE_BYTES as CLASSES_FILE_LIMIT
from shardtool.dataset.scan import _BASE_MEMORY_BYTES as WALK_KEPT_ALWAYS
from shardtool.dataset.scan import _MAX_KEY_BYTES as WALK_KEY_LIMIT
from shardtool.dataset.scan import _MEMORY_PER_COMPRESSED_BYTE as WALK_KEPT_A_PACKED_BYTE
from shardtool.dataset.shard_file import _MAX_XZ_MEMORY_BYTES as SHARD_FILE_XZ_MEMORY
from shardtool.dataset.sidecar_read import _INDEX_BYTES_PER_FIELD as SIDECAR_READ_FIELD_BYTES
from shardtool.dataset.sidecar_read import _INDEX_SLACK_BYTES as SIDECAR_READ_INDEX_SLACK
from shardtool.dataset.sidecar_read import _MAX_BYTES_PER_BYTE as SIDECAR_READ_FACTOR
from shardtool.dataset.sidecar_read import _METADATA_SLACK_BYTES as SIDECAR_READ_METADATA_SLACK
from shardtool.fetch.client import _MAX_REDIRECTS as FETCHED_REDIRECTS
from shardtool.fetch.options import FetchOptions
from shardtool.format import tfrecord_read, tfrecord_write
from shardtool.format.tar_read import _MAX_EXTENDED_BYTES as TAR_READ_LONG_LIMIT
from shardtool.format.tfrecord_read import _MAX_NAMES_BYTES as TFRECORD_READ_NAMES_LIMIT
from shardtool.format.zip_read import _MAX_DEFLATE_RATIO as ZIP_READ_MOST_A_BYTE
from shardtool.format.zip_read import _PACKED_SLACK_BYTES as ZIP_READ_SLACK
from shardtool.interop.exports import MAX_LIST_BYTES as BESIDE_LIST_LIMIT
from shardtool.names import MAX_NAME_BYTES
from shardtool.read.open_files import _MAX_OPEN_SHARDS as FETCH_MOST_OPEN
from shardtool.request.output_options import MAX_WORKERS
from shardtool.source.archive import _LISTING_BYTES_PER_PACKED_BYTE as ARCHIVE_KEPT_A_PACKED_BYTE
from shardtool.source.archive import _MAX_NAME_BYTES as ARCHIVE_LONGEST
from shardtool.source.archive import _MIN_LISTING_LIMIT_BYTES as ARCHIVE_KEPT_ALWAYS
from shardtool.storage.remote import lock
from shardtool.storage.remote.http import _CONNECT_TIMEOUT_S as CLIENT_CONNECT_S
from shardtool.storage.remote.http import _MAX_HEADER_BYTES as LINE_MOST_HEAD
from shardtool.storage.remote.http import _MAX_LENGTH_DIGITS as CLIENT_DIGITS
from shardtool.storage.remote.http import _MAX_REASON_BYTES as CLIENT_REASON
from shardtool.storage.remote.http import _MAX_REDIRECTS as CLIENT_MOST_REDIRECTS
from shardtool.storage.remote.retry import DEFAULT_POLICY
from shardtool.table import columns as limits
from shardtool.transform import image_decode
from shardtool.verbs.verify import examine
from shardtool.verbs.verify.findings import MAX_LISTED_PER_FILE as FINDINGS_MOST

_KB, _MB, _GB = 2**10, 2**20, 2**30
_FETCH = FetchOptions()
_LIMITS = {  # start of a row in `docs/security.md` or `docs/format.md`: the limits in it, from the constants
    "retrying a failed request": (f"{DEFAULT_POLICY.max_total_s:.0f} seconds",),
    "waiting for a server": (f"{DEFAULT_POLICY.first_response_s:.0f} seconds", f"{DEFAULT_POLICY.tries} tries"),
    "minimum speed": (
        f"{DEFAULT_POLICY.min_bytes_per_s:,.0f} bytes per second",
        f"{DEFAULT_POLICY.speed_window_s:.0f} seconds",
    ),
    "connecting, including": (f"{CLIENT_CONNECT_S} seconds",),
    "a lock": (f"{lock.LEASE_S} seconds",),
    "stopping after": (f"{_CLEANUP_LIMIT_S:.0f} seconds",),
    "connecting; waiting": (f"{_FETCH.timeout_s} seconds",),
    "a file, with its": (f"{_FETCH.max_time_s} seconds", f"{_FETCH.retries} retries"),
    "headers, including": (f"{LINE_MOST_HEAD // _KB} KiB",),
    "a length": (f"{CLIENT_DIGITS} digits",),
    "the body of a redirect": (f"{CLIENT_REASON // _KB} KiB",),
    "redirects": (f"{CLIENT_MOST_REDIRECTS},", f"{FETCHED_REDIRECTS},"),
    "a file of `--url`": (f"{_FETCH.max_bytes // 10**6} MB",),
    "downloaded files": (f"{_FETCH.memory // _MB} MiB",),
    "index in memory": (f"{SIDECAR_READ_INDEX_SLACK // _MB} MiB", f"{SIDECAR_READ_FIELD_BYTES} bytes for each field"),
    "decoded metadata": (f"{SIDECAR_READ_METADATA_SLACK // _MB} MiB", f"{SIDECAR_READ_FACTOR} bytes for each"),
    "memory of a shard scan": (f"{WALK_KEPT_ALWAYS // _MB} MiB", f"({WALK_KEPT_A_PACKED_BYTE} times for a compressed"),
    "memory to unpack": (f"{SHARD_FILE_XZ_MEMORY // _MB} MiB",),
    "a record of": (
                    f"{(tfrecord_write.MAX_DATA_BYTES + 1) // _GB} GiB",
                  f"{tfrecord_read.MAX_HELD_RECORD_BYTES // _MB} MiB"),
    "features of": (f"{tfrecord_read.MAX_FEATURES:,}", f"{TFRECORD_READ_NAMES_LIMIT // _MB} MiB"),
    "a pax header": (f"{TAR_READ_LONG_LIMIT // _MB} MiB",),
    "a key, a field": (f"{MAX_NAME_BYTES:,} bytes", f"{WALK_KEY_LIMIT // _MB} MiB"),
    "a file of class": (f"{CLASSES_FILE_LIMIT // _MB} MiB", f"{BESIDE_LIST_LIMIT // _MB} MiB"),
    "findings": (f"{FINDINGS_MOST} are listed",),
    "a table": (f"{limits.MAX_COLUMNS:,}", f"{limits.MAX_NESTING} levels", f"{limits.MAX_ROW_BYTES // _MB} MiB"),
    "the name of": (f"{ARCHIVE_LONGEST // _KB} KiB",),
    "memory of an archive": (f"{ARCHIVE_KEPT_ALWAYS // _MB} MiB", f"{ARCHIVE_KEPT_A_PACKED_BYTE} bytes for each"),
    "a decompressed member of a zip": (f"{ZIP_READ_MOST_A_BYTE:,}",),
    "a compressed member of a zip": (f"{ZIP_READ_SLACK // _KB} KiB",),
    "an image that a reader": (f"{image_decode.MAX_PIXELS // 10**6} million",
                               f"{image_decode.MAX_DECODE_BYTES // _GB} GiB"),
    "the file of": (f"{examine.MAX_IMAGE_BYTES // 10**6} MB",),
    "JSON that `verify": (f"{examine.MAX_JSON_BYTES // 10**6} MB",),
    "an image that `create`": (f"{image_decode.MAX_PIXELS // 10**6} million",),
    "the part of a payload": (f"{payload.MAX_INSPECTED_IMAGE_BYTES // _MB} MiB", f"{payload.MAX_TEXT_BYTES // _MB} MiB",
                       f"{payload.MAX_JSON_NESTING} levels"),
    "address space": (f"{_MIN_ADDRESS_SPACE_BYTES // 10**6} MB",),
    "files that a reader": (f"{FETCH_MOST_OPEN},",),
    "numbers in options": (f"{MAX_WORKERS:,}",),
}  # fmt: skip
_NAMES = ["CreateOptions", "create", "reshard", "InvalidRequest"]


def members(shard: Path) -> dict[str, bytes]:
    """Return a shard's payloads by name."""
    with tarfile.open(shard) as tar:
        return {one.name: file.read() for one in tar if (file := tar.extractfile(one))}


@pytest.mark.parametrize("first", _NAMES)
def test_public_names_mean_the_same_in_any_order_of_import(first: str) -> None:
    """Whichever public name is imported first, `shardtool.create` is the function."""
    code = f"from shardtool import {first}; from shardtool import create; assert callable(create)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_sidecar_says_what_its_shard_is(tmp_path: Path) -> None:
    """A sidecar's key-value metadata holds version, name, size, checksum and plan of its shard."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_bytes(b"x")
    create(tmp_path / "in", f"{tmp_path}/out-{{0..}}.tar", CreateOptions(workers=0))
    found = pq.read_metadata(tmp_path / "out-0.index").metadata or {}
    names = {b"shardtool." + name for name in (b"format_version", b"shard", b"size", b"crc32c", b"plan")}
    assert names <= set(found)
    assert found[b"shardtool.size"] == b"%d" % (tmp_path / "out-0.tar").stat().st_size


def _make_later(shard: Path) -> None:
    """Give a shard the time that it would have if its source had been old when the run began."""
    later = shard.stat().st_mtime_ns + 3600 * 10**9
    os.utime(shard, ns=(later, later))


def test_resume_notices_another_source_behind_the_same_path(tmp_path: Path) -> None:
    """Where a link above the source leads to another tree, `--resume` packs that tree, even if sizes are the same."""
    for version in ("v1", "v2"):
        (tmp_path / version / "data").mkdir(parents=True)
        (tmp_path / version / "data" / "0.txt").write_text(version)
    link, output = tmp_path / "current", f"{tmp_path}/out-{{0..}}.tar"
    link.symlink_to("v1")
    create(link / "data", output, CreateOptions(workers=0))
    _make_later(tmp_path / "out-0.tar")
    link.unlink()
    link.symlink_to("v2")
    create(link / "data", output, CreateOptions(workers=0, resume=True))
    assert members(tmp_path / "out-0.tar") == {"0.txt": b"v2"}


def test_resume_notices_another_folder_behind_the_same_link(tmp_path: Path) -> None:
    """Where a link in the source leads through a folder that was replaced, `--resume` packs what it leads to now."""
    source, store = tmp_path / "in", tmp_path / "in" / "store"
    for version in ("current", "v2"):
        (store / version).mkdir(parents=True)
        (store / version / "0.txt").write_text(f"{version:7}")
    (source / "x").mkdir()
    (source / "x" / "0.txt").symlink_to("../store/current/0.txt")
    output = f"{tmp_path}/out-{{0..}}.tar"
    create(source, output, CreateOptions(workers=0, include=("x/*",)))
    _make_later(tmp_path / "out-0.tar")
    (store / "current").rename(store / "old")
    (store / "v2").rename(store / "current")
    create(source, output, CreateOptions(workers=0, include=("x/*",), resume=True))
    assert members(tmp_path / "out-0.tar") == {"x/0.txt": b"v2     "}


def test_a_sample_is_left_out_whole(tmp_path: Path) -> None:
    """Under `--on-error skip`, a sample with a field that cannot be packed is left out with all its fields."""
    source = tmp_path / "in"
    source.mkdir()
    for name in ("1.json", "2.jpg", "2.json"):
        (source / name).write_text("{}")
    (source / "1.jpg").symlink_to("nothing")
    result = create(source, f"{tmp_path}/out-{{0..}}.tar", CreateOptions(workers=0, on_error="skip"))
    assert set(members(tmp_path / "out-0.tar")) == {"2.jpg", "2.json"}
    assert result.samples == 1


@pytest.mark.parametrize("start", _LIMITS)
def test_documented_limits_equal_the_constants(start: str) -> None:
    """The limits of size and time in the documents equal the constants of the code."""
    docs = Path(__file__).parents[1] / "docs"
    lines = [line for name in ("security.md", "format.md") for line in (docs / name).read_text("utf-8").splitlines()]
    (row,) = [line for line in lines if line.startswith(f"| {start}")]
    assert [limit for limit in _LIMITS[start] if limit not in row.split(" | ", 1)[1]] == []
