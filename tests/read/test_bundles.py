"""Bundles of samples, blocks of tokens and batches by size: divided and resumed like samples."""

from __future__ import annotations

import gc
import json
import pickle
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardtool
from shardtool.errors import CorruptShard, InvalidRequest, SampleFailed
from shardtool.read import bundles
from tests.helpers import write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from shardtool.read.order import Ends

TOKENS = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of 0 to 300 tokens, as `.npy` and as plain bytes, with their lengths as a column."""
    folder = tmp_path_factory.mktemp("bundles")
    random = np.random.default_rng(0)
    lengths = np.minimum(300, random.lognormal(3, 1.2, 150).astype(int))
    files, rows = {}, ["key,count,width,height"]
    for at, length in enumerate(lengths.tolist()):
        np.save(folder / "one.npy", random.integers(1, 60_000, length).astype(np.uint16))
        files[f"{at:03}.npy"] = (folder / "one.npy").read_bytes()
        files[f"{at:03}.bin"] = files[f"{at:03}.npy"][128:]
        rows.append(f"{at:03},{length},{(100, 200, 300)[at % 3]},{(200, 200, 190)[at % 3]}")
    write_tree(folder / "in", files)
    (folder / "rows.csv").write_text("\n".join(rows))
    shardtool.create(
        folder / "in", folder / "out-{000000..}.tar", join=folder / "rows.csv", on="key", max_count=40, workers=0
    )
    return folder


def _open(folder: Path, **options: Any) -> shardtool.Dataset:
    return shardtool.open(folder / "out.json", **options)


def _texts(folder: Path) -> dict[str, NDArray[np.uint16]]:
    return {str(sample["__key__"]): np.frombuffer(sample["bin"], np.uint16) for sample in _open(folder)}


def _read(blocks: list[dict[str, Any]]) -> dict[str, list[NDArray[np.uint16]]]:
    """Check each block, and return the pieces of each document."""
    pieces = defaultdict(list)
    for block in blocks:
        tokens, segments, positions = block["tokens"], block["segments"], block["positions"]
        assert [array.shape for array in (tokens, segments, positions)] == [(TOKENS,)] * 3
        assert (tokens.dtype, segments.dtype, positions.dtype) == (np.uint16, np.int32, np.int32)
        for number, key in enumerate(block["__key__"], 1):
            (places,) = np.nonzero(segments == number)
            assert (np.diff(places) == 1).all()
            assert positions[places].tolist() == [*range(len(places))]
            pieces[key].append(tokens[places])
        (padding,) = np.nonzero(segments == 0)
        assert not tokens[padding].any()
        assert positions[padding].tolist() == [*range(len(padding))]
    return pieces


@pytest.mark.parametrize("by", ["first-fit", "concat"])
@pytest.mark.parametrize("shuffle", [True, False, pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options",
    [
        {"field": "npy"},
        {"field": "bin", "dtype": "u2"},
        pytest.param({"field": "npy", "length": "count"}, marks=pytest.mark.slow),
    ],
)
def test_blocks_contain_each_token_once(folder: Path, by: Any, shuffle: Any, options: dict[str, Any]) -> None:
    """An epoch has each token once; documents that fit stay whole, and nearly all blocks are full."""
    packed = _open(folder).pack(TOKENS, by=by, **options)
    stream = packed.stream(shuffle=shuffle, seed=3, rank=0, world_size=1)
    blocks = [*stream]
    assert len(blocks) == len(stream)
    pieces, texts = _read(blocks), _texts(folder)
    assert {*pieces} == {key for key, text in texts.items() if len(text)}
    for key, some in pieces.items():
        if by == "concat" and not shuffle:
            assert np.array_equal(np.concatenate(some), texts[key])
        if by == "first-fit":
            assert len(some) == -(-len(texts[key]) // TOKENS)
        assert np.array_equal(np.sort(np.concatenate(some)), np.sort(texts[key]))
    total = sum(map(len, texts.values()))
    assert len(blocks) <= 1 + total / TOKENS / 0.95


@given(st.lists(st.integers(0, 60), min_size=1), st.integers(1, 20))
def test_rules_keep_every_token(lengths: list[int], tokens: int) -> None:
    """For any document lengths, each token is in one piece, and no block is too long."""
    sizes = np.array(lengths, np.int64)
    for rule in (bundles.fitted, bundles.concatenated) if any(lengths) else ():
        block, places, starts, counts = rule(tokens, sizes)
        pieces = zip(places.tolist(), starts.tolist(), counts.tolist(), strict=True)
        tokens_of_pieces = [(place, start + at) for place, start, count in pieces for at in range(count)]
        assert sorted(tokens_of_pieces) == [(place, at) for place, length in enumerate(lengths) for at in range(length)]
        assert (np.diff(block) >= 0).all()
        assert np.bincount(block, counts).max() <= tokens
        assert np.bincount(block).min() > 0
    block, places, _, counts = bundles.of_like_length(60, sizes)
    assert sorted(places) == [*range(len(lengths))]
    assert all((block == number).sum() * counts[block == number].max() <= 60 for number in range(block[-1] + 1))
    kind, places, *_ = bundles.of_one_kind(tokens, sizes % 3)
    assert sorted(places) == [*range(len(lengths))]
    for number in range(kind[-1] + 1):
        assert len({*(sizes % 3)[places[kind == number]].tolist()}) == 1
        assert (kind == number).sum() <= tokens


def test_first_fit_wastes_few_tokens() -> None:
    """With a few thousand documents of realistic lengths, less than one token in a thousand is padding."""
    lengths = np.maximum(1, np.random.default_rng(0).lognormal(6, 1, 20_000)).astype(np.int64)
    block, *_ = bundles.fitted(4096, lengths)
    assert lengths.sum() / (4096 * (block[-1] + 1)) > 0.999


def _bundled(folder: Path, kind: Any) -> Any:
    dataset = _open(folder)
    if kind == "mix":
        return shardtool.mix([dataset, dataset[:50]], [3, 1]).pack(TOKENS, "npy")
    if kind == "view":
        return dataset.where("count > 3").select(range(60)).pack(TOKENS, "npy", by="concat")
    if kind == "length":
        return dataset.batch(by="length", tokens=300, length="count", field="bin")
    return dataset.batch(8, by="aspect") if kind == "aspect" else dataset.pack(TOKENS, "npy", by=kind)


_KINDS = ["first-fit", "concat", "mix", "view", "length", "aspect"]


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("ends", ["uneven", *(pytest.param(ends, marks=pytest.mark.slow) for ends in ("drop", "pad"))])
def test_resumes_with_other_ranks(folder: Path, kind: str, ends: Any) -> None:
    """Two ranks, then three, then two: the bundles keep their order, and all ranks perform equal steps."""
    datasets = [_bundled(folder, kind) for _ in range(3)]  # one per rank, as in separate processes

    def ranks(count: int, state: Any) -> list[Any]:
        streams = [datasets[rank].stream(seed=5, rank=rank, world_size=count, ends=ends) for rank in range(count)]
        for stream in streams if state else ():
            stream.load_state_dict(json.loads(json.dumps(state)))
        return streams

    whole = [sample["__key__"] for sample in _bundled(folder, kind).stream(seed=5, rank=0, world_size=1)]
    state, seen = None, []
    for count, steps in ((2, 3), (3, 2), (2, None)):
        streams = ranks(count, state)
        readers = [iter(stream) for stream in streams]
        if steps is None:
            rest = [[sample["__key__"] for sample in reader] for reader in readers]
            assert ends == "uneven" or len({*map(len, rest)}) == 1
            seen += [keys for step in zip(*rest, strict=False) for keys in step]
            seen += rest[0][len(rest[-1]) :]
        else:
            seen += [next(reader)["__key__"] for _ in range(steps) for reader in readers]
            (state,) = {json.dumps(stream.state_dict()): stream.state_dict() for stream in streams}.values()
    left = len(whole) - 12
    expected = {"uneven": whole, "drop": whole[: 12 + left // 2 * 2], "pad": whole + whole[: left % 2]}[ends]
    assert seen == expected
    for count in (2, 3):
        assert len({len(stream) for stream in ranks(count, None)}) == 1 or ends == "uneven"


@pytest.mark.parametrize("kind", ["first-fit", "length"])
def test_epochs_differ_and_processes_agree(folder: Path, kind: str) -> None:
    """Each epoch has other bundles of all samples. A pickled stream continues in the same order."""
    stream = _bundled(folder, kind).stream(seed=5, rank=0, world_size=1)
    epochs = [[tuple(sample["__key__"]) for sample in stream] for _ in range(2)]
    assert {*epochs[0]} != {*epochs[1]}
    assert {*chain(*epochs[0])} == {*chain(*epochs[1])}
    again = pickle.loads(pickle.dumps(stream))  # noqa: S301 - our own
    again.set_epoch(1)
    assert [tuple(sample["__key__"]) for sample in again] == epochs[1]


def test_past_epochs_free_their_memory(folder: Path) -> None:
    """The bundles of past epochs are freed, but not those of streams that are read at the same time."""

    def orders() -> int:
        return sum(isinstance(value, bundles.BundleOrder) for value in gc.get_objects())

    packed = _open(folder).pack(TOKENS, "npy")
    streams = [packed.stream(seed=seed) for seed in range(8)]
    before = orders()
    together = [[block["__key__"] for block in blocks] for blocks in zip(*streams, strict=False)]
    assert together == [
        [block["__key__"] for block in blocks]
        for blocks in zip(*(packed.stream(seed=seed) for seed in range(8)), strict=False)
    ]
    for _ in range(20):
        assert [*streams[0]]
    assert orders() - before <= len(streams) + 4


def test_a_damaged_document_damages_its_block(folder: Path, tmp_path: Path) -> None:
    """Its block is an error, or is skipped, counted and replaced by another block."""
    for path in folder.glob("out*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    document = max(_texts(folder).items(), key=lambda item: len(item[1]))
    shard = next(path for path in tmp_path.glob("out*.tar") if document[1].tobytes() in path.read_bytes())
    shard.write_bytes(shard.read_bytes().replace(document[1].tobytes(), document[1][::-1].tobytes()))
    raising = shardtool.open(tmp_path / "out.json", check=True).pack(TOKENS, "npy")
    with pytest.raises(CorruptShard, match=document[0]):
        list(raising.stream())
    dataset = shardtool.open(tmp_path / "out.json", check=True, on_error="skip")
    stream = dataset.pack(TOKENS, "npy").stream(rank=0, world_size=1)
    blocks = [*stream]
    assert len(blocks) == len(stream)
    assert document[0] not in chain(*(block["__key__"] for block in blocks))
    assert stream.skipped.samples == dataset.skipped.samples > 0
    assert {*stream.skipped.shards} == {str(shard)}


def test_the_first_document_may_be_damaged(folder: Path, tmp_path: Path) -> None:
    """The type of the tokens is read from the first document that is not skipped."""
    write_tree(tmp_path, {path.name: path.read_bytes() for path in folder.glob("out*")})
    packed = _open(folder).pack(TOKENS, "npy")
    (tmp_path / "out-000000.tar").unlink()
    with pytest.raises(CorruptShard):
        shardtool.open(tmp_path / "out.json").pack(TOKENS, "npy")
    dataset = shardtool.open(tmp_path / "out.json", on_error="skip")
    assert len(dataset.pack(TOKENS, "npy")) == len(packed)
    documents = {*chain(*(block["__key__"] for block in dataset.pack(TOKENS, "npy").stream(ends="uneven")))}
    assert documents <= {*dataset.keys[40:]}
    for shard_file in tmp_path.glob("out*.tar"):
        shard_file.unlink()
    with pytest.raises(CorruptShard):
        shardtool.open(tmp_path / "out.json", on_error="skip").pack(TOKENS, "npy")


@pytest.mark.parametrize("damaged", [1, 2, 149])
def test_a_damaged_sample_leaves_the_others_of_its_batch(damaged: int, folder: Path, tmp_path: Path) -> None:
    """Batches by size contain all undamaged samples, and each damaged sample is counted, even if none remains."""
    write_tree(tmp_path, {path.name: path.read_bytes() for path in folder.glob("out*")})
    texts = _texts(folder)
    keys = {*sorted(texts, key=lambda key: (key == "000", -len(texts[key])))[:damaged]}
    for shard in tmp_path.glob("out*.tar"):
        data = bytearray(shard.read_bytes())
        index = shardtool.open(shard).table().to_table().to_pylist()
        for row in index:
            if row["__key__"] in keys:
                data[row["__fields__"][-1]["offset"]] ^= 1
        shard.write_bytes(data)
    options: Any
    for options in ({"by": "length", "tokens": 1000, "field": "bin", "dtype": "uint16"}, {"by": "aspect", "size": 8}):
        dataset = shardtool.open(tmp_path / "out.json", check=True, on_error="skip")
        stream = dataset.batch(**options).stream(rank=0, world_size=1, ends="uneven")
        assert {*chain(*(batch["__key__"] for batch in stream))} == texts.keys() - keys
        assert stream.skipped.samples == stream.skipped.damaged == dataset.skipped.samples == damaged
        raising = shardtool.open(tmp_path / "out.json", check=True).batch(**options).stream(rank=0, world_size=1)
        with pytest.raises(CorruptShard, match="checksum"):
            list(raising)


def test_batches_by_length(folder: Path) -> None:
    """A padded batch has at most `tokens` tokens, and its samples pass through their stages."""
    dataset = _open(folder).decode().map(lambda sample: {**sample, "count": len(sample["npy"])}).fields("npy", "count")
    batches = [*dataset.batch(by="length", tokens=1000, field="npy").stream(ends="uneven")]
    assert sorted(chain(*(batch["__key__"] for batch in batches))) == sorted(_open(folder).keys)
    assert all(batch["count"].max() * len(batch["count"]) <= 1000 for batch in batches)
    spread = sum(int(batch["count"].max() * len(batch["count"]) - batch["count"].sum()) for batch in batches)
    assert spread < 0.3 * sum(int(batch["count"].sum()) for batch in batches)
    by_column = [*dataset.batch(by="length", tokens=1000, length="count").stream(ends="uneven")]
    assert [batch["__key__"] for batch in by_column] == [batch["__key__"] for batch in batches]
    with pytest.raises(InvalidRequest, match="the longest sample has 222"):
        dataset.batch(by="length", tokens=100, field="npy")


def test_batches_by_aspect(folder: Path) -> None:
    """A batch has images of one aspect ratio, which it records; only the last batch of each ratio is smaller."""
    batches = [*_open(folder).batch(8, by="aspect", aspects=[1.5, 0.5, 1]).stream(seed=1, ends="uneven")]
    assert sorted(chain(*(batch["__key__"] for batch in batches))) == sorted(_open(folder).keys)
    nearest = {0: 0.5, 1: 1.0, 2: 1.5}
    for batch in batches:
        assert {nearest[int(key) % 3] for key in batch["__key__"]} == {*batch["__aspect__"].tolist()}
    assert sum(len(batch["__key__"]) < 8 for batch in batches) <= 3


def test_an_empty_batch_is_replaced(folder: Path) -> None:
    """The number of steps equals `len`, even if all samples of a batch are skipped."""
    lengths = {key: len(text) for key, text in _texts(folder).items()}
    long = {key for key, length in lengths.items() if length > 150}
    for key in (min(lengths), max(lengths, key=lambda key: lengths[key])):
        dataset = _open(folder).filter(lambda sample, key=key: sample["__key__"] != key).fields("npy")
        stream = dataset.batch(by="length", tokens=300, field="npy").stream(ends="pad", rank=0, world_size=1)
        batches = [*stream]
        assert len(batches) == len(stream)
        keys = [*chain(*(batch["__key__"] for batch in batches))]
        assert {*keys} == lengths.keys() - {key}
        alone = key in long
        assert stream.skipped.samples == 1
        assert sum(all(batch["__padding__"]) for batch in batches) == alone


@pytest.mark.parametrize("ends", ["drop", "uneven"])
def test_samples_skipped_from_batches_are_counted(folder: Path, ends: Ends) -> None:
    """Each sample that a filter removes from a batch by size is counted for its shard."""
    for share in (2, 50):  # with 50, most batches are empty
        whole = _open(folder)
        dataset = whole.filter(lambda sample, share=share: int(sample["__key__"]) % share == 0)
        stream = dataset.batch(4, by="aspect").stream(seed=2, rank=0, world_size=1, ends=ends)
        kept = {*chain(*(sample["__key__"] for sample in stream))}
        assert kept == {key for key in whole.keys if int(key) % share == 0}
        assert stream.skipped.samples == sum(stream.skipped.shards.values()) == len(whole) - len(kept)
        assert whole.skipped.samples == stream.skipped.samples


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda dataset: dataset.pack(0), "tokens: 0"),
        (lambda dataset: dataset.pack(TOKENS), "field: not given; expected the token field, one of bin, npy"),
        (lambda dataset: dataset.pack(TOKENS, "txt"), "no txt in sample 000; expected one of bin, npy"),
        (lambda dataset: dataset.pack(TOKENS, "bin"), "dtype: not given, but the field bin holds plain bytes"),
        (lambda dataset: dataset.pack(TOKENS, "npy", by="first"), "by: 'first'"),
        (
            lambda dataset: dataset.pack(TOKENS, "npy", length="tokens"),
            "column: no column tokens of whole numbers; expected one of count",
        ),
        (lambda dataset: dataset.pack(TOKENS, "bin", dtype="uint17"), "dtype: 'uint17'; expected a numeric type"),
        (lambda dataset: dataset.pack(TOKENS, "npy", pad=-100), "pad: -100; expected a token of uint16"),
        (lambda dataset: dataset.pack(TOKENS, "npy", pad=70_000), "pad: 70000; expected a token of uint16"),
        (lambda dataset: dataset.decode().pack(TOKENS, "npy"), "pack: called after other stages"),
        (lambda dataset: dataset.pack(TOKENS, "npy").pack(TOKENS), "already packed or batched"),
        (lambda dataset: dataset.select([]).pack(TOKENS, "npy"), "no samples"),
        (lambda dataset: dataset.batch(8, by="size"), "by: 'size'"),
        (lambda dataset: dataset.batch(8, by="length"), "expected only tokens"),
        (lambda dataset: dataset.batch(by="aspect"), "size: None"),
        (
            lambda dataset: dataset.batch(8, by="aspect", field="npy"),
            "batch: by='aspect' with other options; expected only size",
        ),
        (lambda dataset: dataset.stream().batch(by="length", tokens=9), "batch: given by, tokens; expected size"),
        (lambda dataset: dataset.batch(8, tokens=9, field="npy"), "batch: given tokens, field; expected size"),
        (lambda dataset: dataset.stream().batch(), "batch: None; expected 1 or more samples"),
        (lambda dataset: dataset.batch(8, by="aspect", aspects=[]), "aspects"),
        (lambda dataset: shardtool.mix([dataset.pack(TOKENS, "npy")], [1]), "mix first, then batch or pack"),
    ],
)
def test_invalid_requests(folder: Path, call: Any, message: str) -> None:
    """Unknown sizes and invalid options are rejected immediately."""
    with pytest.raises(InvalidRequest) as caught:
        call(_open(folder))
    assert message in str(caught.value)


def test_a_wrong_length_column_is_detected(folder: Path) -> None:
    """If a document's length differs from its column, an error names it, and no tokens are shifted."""
    stream = _open(folder).pack(TOKENS, "npy", length="width").stream()
    with pytest.raises(
        SampleFailed, match=r"field npy: values with a different number, type or shape; expected \d+ values of uint16"
    ):
        list(stream)
