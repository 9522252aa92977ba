"""Encode and compare the index files of other tools.

Source: NVIDIA/DALI, `tools/wds2idx.py`, `tools/tfrecord2idx` and ParseIndexFile in
`dali/operators/reader/loader/webdataset_loader.cc`; vahidk/tfrecord, `tfrecord/tools/tfrecord2idx.py`;
NVIDIA/Megatron-Energon, `megatron/energon/flavors/webdataset/{itar,metadata,config,prepare}.py`;
hfutils.index.tar_create_index; huggingface/pytorch-image-models, `timm/data/readers/reader_wds.py`;
mlfoundations/open_clip, get_dataset_size.
"""

from __future__ import annotations

import json
import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from shardtool.errors import InvalidRequest, printable
from shardtool.interop.indexed_shard import DEFAULT_SPLIT, STANDARD_SPLITS, IndexedShard, split_order
from shardtool.messages import export_text, flag_text
from shardtool.pattern import ENERGON_FILE, OPEN_CLIP_FILE, TIMM_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.interop.indexed_shard import Fields


_OTHER_OFFSETS = "offsets of different samples"
_WHITESPACE = re.compile(rb"[\x00-\x20\x7f]")
_UNSAFE = re.compile(rb"[\x00-\x20\x7f%]")
_SPLIT_FILE = ".nv-meta/split.yaml"
_DATASET_YAML = ".nv-meta/dataset.yaml"
_CRUDE_DATASET = b"__module__: megatron.energon\n__class__: CrudeWebdataset\n"
_ENERGON_MEMBER = re.compile(rb"(?!__[^/]*__(?:/|$))(?:.*/|)[^.]+[.][^/]*$")
# Energon's YAML reader does not support escapes.
_UNQUOTABLE = re.compile(r'[\x00-\x1f\x7f-\x9f"\\{}\u2028\u2029\ud800-\udfff]')
_TAR_BLOCK_BYTES = 512
_MAX_FIRST_OFFSET = 2**24  # a global pax header can precede the first sample


class ShardIndexFile(NamedTuple):
    """Functions for the index file of one shard.

    Attributes:
        has_format: Whether a file with these first bytes and this size has the index format.
        difference: Describes how an index differs from its shard, or returns "" if both are equivalent.
    """

    encode: Callable[[IndexedShard], bytes]
    has_format: Callable[[bytes, int], bool]
    difference: Callable[[bytes, IndexedShard], str] = lambda _, __: _OTHER_OFFSETS

    def compare(self, data: bytes, shard: IndexedShard, *, has_hashes: bool) -> str:
        """Describe how the index `data` differs from its shard. Return "" if both are equivalent.

        If `has_hashes` is true, only `difference` is used, because `encode` needs hashes that may be unknown.
        """
        try:
            is_same = not has_hashes and self.encode(shard) == data
            return "" if is_same else self.difference(data, shard)
        except InvalidRequest as error:
            return error.found
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError):
            return _OTHER_OFFSETS


class FolderIndexFiles(NamedTuple):
    """Functions for the index files of a folder. These files list all splits of a dataset.

    Attributes:
        encode: Returns the files to publish, in order, as a dict from path (relative to the folder) to content.
        pairs: Returns the shard names and sample counts in the parsed JSON of `ExportFormat.folder_file`.
        user_file: A file that is never overwritten, because users may edit it. "" if there is none.
    """

    encode: Callable[[Sequence[DatasetFile]], dict[str, bytes]]
    pairs: Callable[[Any], Iterable[tuple[object, object]]]
    user_file: str = ""


def _matches_start(pattern: bytes) -> Callable[[bytes, int], bool]:
    return lambda head, _: re.match(pattern, head) is not None


def _encode_tfrecord_index(shard: IndexedShard) -> bytes:
    return b"".join([b"%d %d\n" % sample for sample in shard.sample_spans()])


def _encode_dali_index(shard: IndexedShard) -> bytes:
    # version 1.2 of the format that `wds2idx` writes
    used = {shard.index.names[code].encode() for code in {*shard.index.codes.tolist()}}
    if unsafe := sorted(name for name in used if _WHITESPACE.search(name)):
        found = f"white space in the field {printable(unsafe[0])!r}, which DALI's index cannot name"
        raise InvalidRequest(shard.name, found, remedy=f"Pack the samples with {flag_text('portable')}.")
    lines = [b"v1.2 %d\n" % len(shard.index)]
    for key, fields in shard.samples():  # DALI uses keys only as labels, so they can be percent-encoded
        safe_key = _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], key)
        words = [
            b"%b %d %d %b.%b" % (name, offset, size, safe_key, name.replace(b"%", b"%25"))
            for name, offset, size in fields
        ]
        lines.append(b" ".join(words) + b"\n")
    return b"".join(lines)


def _parse_dali_index(data: bytes) -> list[Fields]:
    head, *lines = data.removesuffix(b"\n").split(b"\n")
    version, count = head.split()
    step = 3 if version == b"v1.1" else 4  # version 1.1 has no member names
    if int(count) != len(lines):
        raise ValueError(count)
    samples = []
    for words in map(bytes.split, lines):
        if len(words) % step:
            raise ValueError(len(words))
        starts = range(0, len(words), step)
        samples.append([(words[start], int(words[start + 1]), int(words[start + 2])) for start in starts])
    return samples


def _webdataset_difference(data: bytes, shard: IndexedShard) -> str:
    is_equivalent = _parse_dali_index(data) == [fields for _, fields in shard.samples()]
    return "" if is_equivalent else _OTHER_OFFSETS


def _encode_energon_index(shard: IndexedShard) -> bytes:
    for key, fields in shard.samples():
        for field, *_ in fields:
            name = b"%b.%b" % (key, field)
            if not _ENERGON_MEMBER.match(name):
                found = f"{printable(name)!r}, which energon ignores"
                raise InvalidRequest(shard.name, found, remedy=f"Pack the samples with {flag_text('portable')}.")
    positions = shard.sample_spans()
    ends = [start for start, _ in positions] + [sum(positions[-1]) if positions else 0]
    return struct.pack(f"<{len(ends)}Q", *ends)


def _is_energon_index(head: bytes, size: int) -> bool:
    # the offsets of samples in a tar are ascending multiples of 512
    if size % 8 or len(head) < 2 * 8:
        return False
    first, second = struct.unpack("<QQ", head[:16])
    return first < min(second, _MAX_FIRST_OFFSET) and not first % _TAR_BLOCK_BYTES and not second % _TAR_BLOCK_BYTES


def _energon_folder_files(splits: Sequence[DatasetFile]) -> dict[str, bytes]:
    counts: dict[str, int] = {}
    parts: dict[str, list[str]] = {name: [] for name in STANDARD_SPLITS}
    for split in sorted(splits, key=split_order):
        # skip empty shards, because energon rejects them
        shard_counts = {shard.name: shard.samples for shard in split.shards if shard.samples}
        parts.setdefault(split.run.split or DEFAULT_SPLIT, []).extend(shard_counts)
        counts |= shard_counts
    lines = ["split_parts:"]
    for name, shards in parts.items():
        lines.append(f"  {_quote_yaml(name)}:{'' if shards else ' []'}")
        lines += [f"  - {_quote_yaml(shard)}" for shard in shards]
    return {
        _DATASET_YAML: _CRUDE_DATASET,
        _SPLIT_FILE: "\n".join([*lines, ""]).encode(),
        ENERGON_FILE: json.dumps({"shard_counts": counts}, indent=2).encode() + b"\n",
    }


def _quote_yaml(name: str) -> str:
    if _UNQUOTABLE.search(name):
        expected = "a name without quotes, backslashes and braces"
        raise InvalidRequest(export_text("energon"), f"the name {name!r}", expected=expected)
    return f'"{name}"'


def _encode_hfutils_index(shard: IndexedShard) -> bytes:
    digests = shard.digests
    if digests is None:
        raise TypeError("the shard was not hashed")
    files = {
        name: {"offset": offset, "size": length, "sha256": digests.payload(index)}
        for index, (name, offset, length) in enumerate(_iter_members(shard))
    }
    document = {"filesize": shard.size, "hash": digests.git, "hash_lfs": digests.sha256, "files": files}
    return json.dumps(document).encode()


def _iter_members(shard: IndexedShard) -> Iterator[tuple[str, int, int]]:
    for key, fields in shard.samples():
        for name, offset, length in fields:
            yield f"{key.decode()}.{name.decode()}", offset, length


def _hfutils_difference(data: bytes, shard: IndexedShard) -> str:
    document = json.loads(data)
    expected = {name: (offset, length) for name, offset, length in _iter_members(shard)}
    files: dict[str, dict[str, object]] = document["files"]
    listed = {name: (member["offset"], member.get("size", member.get("length"))) for name, member in files.items()}
    if document.get("filesize", shard.size) != shard.size or listed != expected:
        return _OTHER_OFFSETS
    if (digests := shard.digests) is None:
        return ""
    is_same = document.get("hash", digests.git) == digests.git
    is_same = is_same and document.get("hash_lfs", digests.sha256) == digests.sha256
    hashes = [(files[name].get("sha256"), digests.payload(index)) for index, name in enumerate(expected)]
    is_same = is_same and all(member in (None, digest) for member, digest in hashes)
    return "" if is_same else "hashes of different bytes"


def _timm_files(splits: Sequence[DatasetFile]) -> dict[str, bytes]:
    entries = {}
    check_timm_splits([split.run.split for split in splits])
    for split in sorted(splits, key=split_order):
        name = split.run.split or DEFAULT_SPLIT
        counts = [shard.samples for shard in split.shards]
        names = [shard.name for shard in split.shards]
        entries[name] = {"name": name, "num_samples": sum(counts), "filenames": names, "shard_lengths": counts}
    return {TIMM_FILE: json.dumps({"splits": entries}, indent=2).encode() + b"\n"}


def check_timm_splits(splits: Iterable[str]) -> None:
    """Raise `InvalidRequest` if timm cannot find a split by its name."""
    for name in splits:
        if "tar" in name or ".." in name:
            found = f"the split {name}, which timm would read as a shard name"
            raise InvalidRequest(export_text("timm"), found, expected="split names without 'tar' and '..'")


def _open_clip_files(splits: Sequence[DatasetFile]) -> dict[str, bytes]:
    counts = {shard.name: shard.samples for split in sorted(splits, key=split_order) for shard in split.shards}
    return {OPEN_CLIP_FILE: json.dumps(counts, indent=2).encode() + b"\n"}


def _timm_shard_counts(info: Any) -> Iterator[tuple[object, object]]:
    for split in info["splits"].values():
        yield from zip(split["filenames"], split["shard_lengths"], strict=True)


_TFRECORD_INDEX = ShardIndexFile(
    _encode_tfrecord_index,
    _matches_start(rb"\d{1,20} \d{1,20}\r?\n"),
    lambda data, shard: "" if _encode_tfrecord_index(shard).split() == data.split() else _OTHER_OFFSETS,
)
SHARD_INDEXES = {
    "dali-webdataset": ShardIndexFile(
        _encode_dali_index, _matches_start(rb"v1\.\d{1,3} \d{1,20}\r?\n"), _webdataset_difference
    ),
    "dali-tfrecord": _TFRECORD_INDEX,
    "tfrecord": _TFRECORD_INDEX,
    "energon": ShardIndexFile(_encode_energon_index, _is_energon_index),
    "huggingface": ShardIndexFile(
        _encode_hfutils_index, _matches_start(rb'\s*\{\s*"(?:filesize|files|hash|hash_lfs)"\s*:'), _hfutils_difference
    ),
}
FOLDER_INDEXES = {
    "energon": FolderIndexFiles(_energon_folder_files, lambda info: info["shard_counts"].items(), _DATASET_YAML),
    "timm": FolderIndexFiles(_timm_files, _timm_shard_counts),
    "open-clip": FolderIndexFiles(_open_clip_files, dict.items),
}
