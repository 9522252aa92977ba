from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest
from shardtool.names import to_bytes
from shardtool.select.duplicate_keys import resolve_duplicate_keys
from shardtool.skipped import Skipped
from tests.source.spans import Payload, Sample, entries_of, sample_lists, samples_of

KEYS = st.sampled_from(["a", "a-2", "a-3", "a-2-2", "a-02", "b", "é", "d/a"])
TAKEN = st.none() | st.lists(KEYS)  # the existing dataset may have duplicates itself
SHARDS = ("x-0.tar", "x-1.tar", "y-0.tar")
EARLIER = Skipped("", "x", "no-field", "before")


def names(keys: list[str] | None) -> PackedStrings | None:
    """Return the keys of a dataset appended to."""
    return None if keys is None else PackedStrings.of(map(to_bytes, keys))


@given(sample_lists(keys=KEYS), TAKEN)
def test_later_duplicates_are_renamed(samples: list[Sample], taken: list[str] | None) -> None:
    """The second sample of a key gets -2, the third -3 and so on, avoiding existing keys; nothing else changes."""
    held = [] if taken is None else taken
    known = {*held, *(sample.key for sample in samples)}
    seen, expected, renamed = dict.fromkeys(held, 1), [], []
    for sample in samples:
        number = seen.get(sample.key, 0) + 1
        name = sample.key
        if number > 1:
            while (name := f"{sample.key}-{number}") in known:
                number += 1
            renamed.append(f"'{sample.key}' -> '{name}'")
        seen[sample.key] = number
        expected.append(replace(sample, key=name))
    result, skipped, note = resolve_duplicate_keys(entries_of(samples), "rename", SHARDS, names(taken))
    assert skipped == ()
    assert samples_of(result) == expected
    keys = [sample.key for sample in samples_of(result)]
    assert len({*keys, *held}) == len(keys) + len({*held})
    some = ", ".join(renamed[:3]) + (f" and {len(renamed) - 3} more" if len(renamed) > 3 else "")
    plural = "" if len(renamed) == 1 else "s"
    assert note == (f"{len(renamed)} sample{plural} renamed: {some}" if renamed else "")


@given(sample_lists(keys=KEYS), TAKEN, st.sampled_from(["first", "last"]))
def test_one_sample_per_key_is_kept(
    samples: list[Sample], taken: list[str] | None, rule: Literal["first", "last"]
) -> None:
    """Only the first or last sample of a key is kept, and none if the key already exists; the others are skipped."""
    held = None if rule == "last" else taken
    stays: dict[str, int] = {}
    for at, sample in enumerate(samples):
        if rule == "last" or sample.key not in stays:
            stays[sample.key] = at
    stays = {key: at for key, at in stays.items() if key not in (held or [])}
    where = {key: SHARDS[samples[at].file] for key, at in stays.items()}
    result, skipped, note = resolve_duplicate_keys(entries_of(samples), rule, SHARDS, names(held))
    kept = sorted(stays.values())
    lost = [sample.key for at, sample in enumerate(samples) if at not in kept]
    assert samples_of(result) == [samples[at] for at in kept]
    messages = [f"another sample with this key is in {where.get(key, 'the existing dataset')}" for key in lost]
    rows = [Skipped(key, "", "duplicate", message) for key, message in zip(lost, messages, strict=True)]
    assert (skipped, note) == (tuple(rows), "")


@given(sample_lists(keys=KEYS), TAKEN)
@example([], ["a"])
def test_duplicate_keys_are_refused(samples: list[Sample], taken: list[str] | None) -> None:
    """Without a rule, duplicate keys are an error that names a key; unique keys pass unchanged."""
    entries = entries_of(samples)
    keys = [sample.key for sample in samples]
    twice = [key for key in dict.fromkeys(keys) if keys.count(key) + (key in (taken or [])) > 1]
    if not twice:
        assert resolve_duplicate_keys(entries, "error", SHARDS, names(taken)) == (entries, (), "")
        return
    with pytest.raises(InvalidRequest) as caught:
        resolve_duplicate_keys(entries, "error", SHARDS, names(taken))
    assert caught.value.found.startswith(
        f"{len(twice)} key{'s' if len(twice) > 1 else ''} more than once: '{twice[0]}' ("
    )


def _sample(key: str, file: int, *fields: str) -> Sample:
    return Sample(key, {name: Payload(1, at, 1) for at, name in enumerate(fields)}, file, 0)


def _refused(samples: list[Sample], taken: list[str] | None = None) -> str:
    with pytest.raises(InvalidRequest) as caught:
        resolve_duplicate_keys(entries_of(samples), "error", SHARDS, names(taken))
    return str(caught.value)


def test_the_error_names_shards() -> None:
    """The error lists the first few keys with the shards of their samples, and the options."""
    assert _refused([_sample("a", 0, "jpg"), _sample("b", 1, "jpg"), _sample("a", 2, "jpg")]) == (
        "the datasets: 1 key more than once: 'a' (x-0.tar, y-0.tar); expected a unique key for each sample. "
        "Rename the later samples with on_duplicate='rename', or keep one per key with on_duplicate='first' or "
        "on_duplicate='last'."
    )
    many = [_sample(key, 0, "jpg") for key in "dcbadcba"]
    assert "4 keys more than once: 'd' (2 times in x-0.tar), 'c' (2 times in x-0.tar)" in _refused(many)
    assert "and 1 more; expected" in _refused(many)
    error = _refused([_sample("a", 0, "jpg"), _sample("b", 1, "jpg")], ["b", "c"])
    assert "1 key more than once: 'b' (x-1.tar, and the existing dataset)" in error
    assert "rename', or skip them with on_duplicate='first'." in error


def test_interleaved_fields_are_recognised() -> None:
    """Samples of one shard with the same key and different fields are reported as parts of one sample."""
    hint = "The fields of a sample are not adjacent, as in a tar that is not a shard: pack it with `create`."
    torn = [_sample("a", 0, "jpg"), _sample("b", 0, "jpg"), _sample("a", 0, "cls", "json"), _sample("b", 0, "json")]
    assert hint in _refused(torn)
    assert "on_duplicate" not in _refused(torn)
    for other in (
        [*torn[:3], _sample("b", 0, "jpg")],  # the same field
        [*torn[:3], _sample("b", 1, "json")],  # another shard
    ):
        assert "lie apart" not in _refused(other)
    assert "lie apart" not in _refused(torn, ["a"])


def test_shards_with_the_same_name_are_distinct() -> None:
    """Samples of two datasets are not parts of one sample, even if their shards have the same name."""
    samples = [_sample("a", 0, "jpg"), _sample("a", 1, "json")]
    with pytest.raises(InvalidRequest) as caught:
        resolve_duplicate_keys(entries_of(samples), "error", ["out-0.tar"] * 3)
    assert "'a' (out-0.tar (2 times))" in caught.value.found
    assert "on_duplicate='rename'" in caught.value.remedy


def test_last_is_refused_when_appending() -> None:
    """`last` is refused when samples are appended, because existing shards would have to change."""
    for taken in ([], ["b"], ["a"]):
        with pytest.raises(InvalidRequest) as caught:
            resolve_duplicate_keys(entries_of([_sample("a", 0, "jpg")]), "last", SHARDS, names(taken))
        assert caught.value.where == "on_duplicate"


def test_chunk_boundaries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are renamed in the same way for any chunk size."""
    samples = [_sample(key, 0, "jpg") for key in ["a", "b", "a-2", "a", "c", "b", "a", "d", "a"]]
    expected, _, _ = resolve_duplicate_keys(entries_of(samples), "rename", SHARDS)
    for size in range(1, 10):
        monkeypatch.setattr("shardtool.values.CHUNK_ROWS", size)
        result, _, _ = resolve_duplicate_keys(entries_of(samples), "rename", SHARDS)
        assert result.keys.data == expected.keys.data == b"a\0b\0a-2\0a-3\0c\0b-2\0a-4\0d\0a-5\0"
        assert np.array_equal(result.keys.starts, expected.keys.starts)
