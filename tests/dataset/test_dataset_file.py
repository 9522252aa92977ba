from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import CorruptShard, CreateOptions, create
from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, parse_dataset
from shardtool.dataset.features import TfFeature
from shardtool.request.run_record import RunRecord
from tests.helpers import read_tree, shards, tool

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def packed(sample_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the shards of the sample photographs, with labels."""
    folder = tmp_path_factory.mktemp("packed")
    options = CreateOptions(workers=0, max_size="500kB", label_from_folder=True)
    create(sample_data, f"{folder}/out-{{000..}}.tar", options)
    return folder


def _has_valid_checksum(raw: bytes) -> bool:
    """Return whether a dataset file's checksum is valid, as docs/format.md defines it."""
    return raw[-4:] == b'"\n}\n' and raw[-12:-4] == b"%08x" % crc32c.crc32c(raw[:-12])


def test_the_checksum_covers_every_byte(packed: Path) -> None:
    """The checksum detects every flipped, missing or added byte of a dataset file."""
    raw = (packed / "out.json").read_bytes()
    assert _has_valid_checksum(raw)
    for offset in range(len(raw)):
        assert not _has_valid_checksum(raw[:offset] + bytes([raw[offset] ^ 1]) + raw[offset + 1 :])
        assert not _has_valid_checksum(raw[:offset] + raw[offset + 1 :])
        assert not _has_valid_checksum(raw[:offset] + b" " + raw[offset:])
    assert json.loads(raw)["checksum"] == f"crc32c:{crc32c.crc32c(raw[:-12]):08x}"


def test_the_advice_for_a_damaged_file_fits_every_verb(packed: Path) -> None:
    """The advice for a damaged dataset file does not depend on the verb that created the dataset."""
    raw = (packed / "out.json").read_bytes()
    for damaged in (raw[:-1], raw.replace(b"out-000.tar", b"out-001.tar")):
        with pytest.raises(CorruptShard) as caught:
            parse_dataset(damaged, "out.json")
        assert all(words in caught.value.remedy for words in ("resume=True", "shardtool index"))
        assert "shardtool create" not in caught.value.remedy


def test_a_dataset_file_is_a_wids_index(packed: Path) -> None:
    """The keys of a wids index exist, and URLs lead to files with the listed size and count."""
    document = json.loads((packed / "out.json").read_text(encoding="ascii"))
    assert (document["__kind__"], document["wids_version"], document["name"]) == ("wids-shard-index-v1", 1, "out")
    assert [shard_entry["url"] for shard_entry in document["shardlist"]] == [shard.name for shard in shards(packed)]
    for shard_entry in document["shardlist"]:
        assert shard_entry["filesize"] == (packed / shard_entry["url"]).stat().st_size
        assert shard_entry["crc32c"] == f"{crc32c.crc32c((packed / shard_entry['url']).read_bytes()):08x}"
        index = (packed / shard_entry["index"]["name"]).read_bytes()
        assert (shard_entry["index"]["size"], shard_entry["index"]["crc32c"]) == (
            len(index),
            f"{crc32c.crc32c(index):08x}",
        )


def test_totals_add_up(packed: Path, sample_data: Path) -> None:
    """Totals, fields and classes match the source."""
    document = json.loads((packed / "out.json").read_bytes())
    record, listed, source = document["shardtool"], document["shardlist"], read_tree(sample_data)
    keys = sorted(name.rpartition(".")[0] for name in source if name.endswith(".jpg"))
    labels = {name: str(number) for number, name in enumerate(sorted({key.split("/")[0] for key in keys}))}
    assert record["totals"] == {
        "shards": len(listed),
        "samples": len(keys) == sum(entry["nsamples"] for entry in listed) and len(keys),
        "size": sum(entry["filesize"] for entry in listed),
        "field_bytes": sum(map(len, source.values())) + sum(len(labels[key.split("/")[0]]) for key in keys),
        "skipped": 0,
    }
    assert record["fields"] == {"cls": len(keys), "jpg": len(keys), "json": len(keys)}
    assert record["classes"] == {"cls": list(labels)}
    assert (listed[0]["first_key"], listed[-1]["last_key"]) == (keys[0], keys[-1])
    assert [key for entry in listed for key in (entry["first_key"], entry["last_key"])] == sorted(
        key for entry in listed for key in (entry["first_key"], entry["last_key"])
    )


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_bytes_do_not_depend_on_the_machine(workers: str, packed: Path, sample_data: Path, tmp_path: Path) -> None:
    """Another folder, user, home, time zone, locale, umask and hour give the same bytes, without paths."""
    output = tmp_path / "elsewhere" / "deep"
    os.symlink(sample_data, tmp_path / "moved")
    before = os.umask(0o077)
    try:
        process = tool(
            "create", "../../moved", "out-<000..>.tar", "--max-size", "0.5MB", "--label-from-folder",
            "--workers", workers,
            cwd=_made(output), USER="someone", HOME="/nowhere", TZ="Asia/Tokyo", LANG="C", LC_ALL="C", HOSTNAME="h",
        )  # fmt: skip
    finally:
        os.umask(before)
    assert process.code == 0, process.err
    assert read_tree(output) == read_tree(packed)
    text = (output / "out.json").read_text()
    assert str(tmp_path) not in text
    assert str(sample_data) not in text
    assert not any(value.startswith("/") for value in _texts(json.loads(text)))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in _texts(part)]
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        (CreateOptions(workers=0), {}),
        (CreateOptions(workers=0, max_size="1MB", seed=5), {"max_size": 10**6}),
        (CreateOptions(workers=1, max_size=10**6, start_method="spawn", on_error="skip"), {"max_size": 10**6}),
        (CreateOptions(workers=0, shuffle=True, seed=5), {"shuffle": True, "seed": 5}),
        (CreateOptions(workers=0, include=("*.txt", "*.bin")), {"include": ["*.txt", "*.bin"]}),
    ],
)
def test_only_options_that_affect_the_bytes_are_recorded(
    options: CreateOptions, recorded: dict[str, object], small: Path, tmp_path: Path
) -> None:
    """The dataset file records exactly the options that affect its bytes, in one spelling."""
    create(small, str(tmp_path / "out-{000..}.tar"), options)
    made = json.loads((tmp_path / "out.json").read_bytes())["shardtool"]["made"]
    assert (made["verb"], made["source"], made["options"]) == ("create", "small", recorded)
    assert made["tool"].startswith("shardtool ")


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 2**63), st.integers(0, 2**32 - 1))
def test_any_dataset_file_round_trips(text: str, number: int, crc: int) -> None:
    """For any keys and names, a dataset file is ASCII JSON with a valid checksum that parses to the same values."""
    shard = ShardEntry(text, number, number, crc, text, number, crc, text, text)
    made = {"verb": "create", "source": text, "options": {text: number}}
    file = DatasetFile(
        text,
        text,
        "tar",
        (shard, shard),
        {text: number},
        number,
        number,
        {text: text},
        {text: [text]},
        {text: TfFeature("int64", is_optional=True)},
        RunRecord(made),
        text,
    )
    raw = file.encode()
    assert raw.isascii()
    assert _has_valid_checksum(raw)
    document = json.loads(raw)
    assert document["shardlist"][1] == shard.to_json()
    assert document["shardlist"][0]["crc32c"] == f"{crc:08x}"
    assert (document["name"], document["shardtool"]["made"]) == (text, made)
