"""`inspect --read-speed`: the measured steps, and the advice on shard sizes. No test asserts a speed."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from shardtool import CreateOptions, InvalidRequest, SampleFailed, create
from shardtool.cli.summary_text import read_speed_text
from shardtool.dataset.find import open_dataset
from shardtool.verbs.inspect import read_speed as module
from shardtool.verbs.inspect.read_speed import ReadSpeed, Speed, read_speed
from shardtool.verbs.inspect.samples import find_sample
from tests.helpers import typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

_MADE = ReadSpeed("out.json", 10, 1_000_000, 0.001, Speed(500, 10**9, 1.0), Speed(50, 10**6, 0.5), None)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read one sample per measurement by default."""
    monkeypatch.setattr(module, "_MEASURE_S", 0.0)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset of four shards."""
    samples = {f"{at}.{field}": data for at in range(8) for field, data in (("cls", b"1"), ("txt", b"text"))}
    write_tree(tmp_path / "in", samples)
    create(tmp_path / "in", str(tmp_path / "out-{000000..}.tar"), CreateOptions(max_count=2, workers=0))
    return tmp_path / "out.json"


def test_shards_are_scanned_once(dataset: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Shards without sidecars are scanned only once."""
    for path in [dataset, *dataset.parent.glob("*.index")]:
        path.unlink()
    assert read_speed(str(dataset.parent)).shards == 4
    assert len([record for record in caplog.records if "without a valid sidecar" in record.getMessage()]) == 1


def test_a_speed_is_an_amount_per_second() -> None:
    """A speed is an amount per second."""
    assert (_MADE.random.samples_per_s, _MADE.random.bytes_per_s) == (100, 2_000_000)


def test_shards_are_large_enough() -> None:
    """A shard is large enough if opening it takes at most a tenth of a stream's time; the advised size is that size."""
    assert _MADE.opening_share == pytest.approx(0.5)
    assert not _MADE.large_enough
    assert _MADE.advised_size == 9_000_000
    assert _MADE._replace(mean_size=9_000_001).large_enough
    assert not _MADE._replace(mean_size=8_999_000).large_enough
    assert _MADE._replace(shards=1).large_enough


def test_the_text_reports_speeds_and_a_shard_size() -> None:
    """The text reports each speed, and a better shard size unless there is only one shard."""
    opening = "opening a shard takes 1.0 ms, 50% of the reading time"
    assert read_speed_text(_MADE).splitlines() == [
        "out.json",
        "stream          1 GB/s          500 samples/s  shuffled, fields as bytes",
        "random          2 MB/s          100 samples/s  random samples, 64 at a time",
        f"shards    10 shards of 1 MB on average; {opening}: use shards of 9 MB or more",
    ]
    enough = read_speed_text(_MADE._replace(opening=0.0, decoded=_MADE.random)).splitlines()
    assert "decoded in one thread" in enough[3]
    assert enough[4].endswith(": the shards are large enough")
    assert read_speed_text(_MADE._replace(shards=1)).splitlines()[-1] == "shards    1 shard of 1 MB"


def test_each_measurement_reads_at_least_one_sample(dataset: Path) -> None:
    """However short the time, each measurement reads a sample, and counts its bytes before decoding."""
    speed = read_speed(dataset, decode=True)
    assert (speed.dataset, speed.shards) == (str(dataset), 4)
    assert speed.mean_size == sum(path.stat().st_size for path in dataset.parent.glob("*.tar")) // 4
    assert speed.opening >= 0
    for measured in (speed.stream, speed.random, speed.decoded):
        assert measured is not None
        assert (measured.samples, measured.bytes) == (1, 5)
    assert read_speed(dataset).decoded is None


def test_a_small_dataset_is_read_again(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small dataset is read again until the time is over."""
    monkeypatch.setattr(module, "_MEASURE_S", 0.3)
    assert read_speed(dataset).stream.samples > 8


def test_a_decoding_error_names_the_sample(tmp_path: Path) -> None:
    """With `--decode`, a field that cannot be decoded is an error that names the sample."""
    write_tree(tmp_path / "in", {"a.cls": b"none"})
    create(tmp_path / "in", str(tmp_path / "out-{000000..}.tar"), CreateOptions(workers=0))
    read_speed(tmp_path / "out.json")
    with pytest.raises(SampleFailed, match="sample a, field cls"):
        read_speed(tmp_path / "out.json", decode=True)


def test_the_command_prints_text_or_json(dataset: Path) -> None:
    """`inspect --read-speed` prints one line per measurement, or the same as JSON."""
    lines = typed("inspect", dataset, "--read-speed", "--decode").out.splitlines()
    assert [line.split()[0] for line in lines] == [str(dataset), "stream", "random", "decoded", "shards"]
    document = json.loads(typed("inspect", dataset, "--read-speed", "--json").out)
    assert (document["shards"]["count"], document["stream"]["samples"], document["decoded"]) == (4, 1, None)
    assert document["random"].keys() == {"samples", "bytes", "seconds", "samples_per_s", "bytes_per_s"}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--decode"], 2, "--decode: nothing is read; expected --read-speed"),
        (["--read-speed", "--keys"], 2, "--read-speed: used with --keys"),
        (["--read-speed", "--extract", "x", "--where", "a > 1"], 2, "--extract: used with --read-speed"),
        (["--read-speed", "--where", "a > 1"], 2, "--where: no samples are listed"),
    ],
)
def test_conflicting_options_are_refused(dataset: Path, words: list[str], code: int, message: str) -> None:
    """Conflicting options are refused."""
    ran = typed("inspect", dataset, *words)
    assert ran.code == code
    assert message in ran.err


def test_a_missing_shard_is_named(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing shard is an error that names it."""
    monkeypatch.setattr(module, "_MEASURE_S", 0.05)
    shard = dataset.parent / "out-000002.tar"
    shard.unlink()
    ran = typed("inspect", dataset, "--read-speed")
    assert ran.code == 4
    assert shard.name in ran.err


def test_a_dataset_without_samples_is_an_error(tmp_path: Path) -> None:
    """A dataset without samples is an error."""
    with tarfile.open(tmp_path / "out-000000.tar", "w"):
        pass
    with pytest.raises(InvalidRequest, match="no samples"):
        read_speed(str(tmp_path))
    with pytest.raises(InvalidRequest, match="this one is empty"):
        find_sample([open_dataset(tmp_path)], "0")
