"""Hugging Face: the `README.md` that `load_dataset` reads, and the tar indexes of hfutils.

Without a `README.md`, `load_dataset` treats the most common file ending in a folder as its data. A single shard
loses
to its dataset file, and every name that contains `.tar`, such as `out-000000.tar.idx`, is taken for a tar.

Source: datasets/{load,data_files}.py and datasets/packaged_modules/webdataset of datasets 5.2;
`hfutils.index.tar_create_index`.
"""

from __future__ import annotations

import glob
import json
import re
from collections import Counter
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from shardtool.errors import (
    InvalidRequest,
)
from shardtool.fingerprint import crc32c
from shardtool.interop.indexed_shard import DEFAULT_SPLIT, IndexedShard, split_order
from shardtool.messages import export_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from shardtool.dataset.dataset_file import DatasetFile


README_FILE = "README.md"


_SIGNATURE = re.compile(rb"<!-- shardtool crc32c:([0-9a-f]{8}): .*-->\n")


_PATH_LINE = re.compile(r'^    (?:path: |- )("(?:[^"\\]|\\.)*")$', re.MULTILINE)


_SPLIT_NAME = re.compile(r"\w+(?:\.\w+)*")  # that `load_dataset` takes


_NON_WORD = re.compile(r"\W")


_YAML_ESCAPED = re.compile("[\x7f-\xa0\u2028\u2029\ufeff]")


# What `load_dataset` ignores, and the endings that it has readers for, as far as they lie beside shards.
_IGNORED_FILES = ("README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")


_PREFERRED_ENDINGS = ("csv", "json", "jsonl", "arrow", "parquet")  # in the case of a draw, the last one first


_KNOWN_ENDINGS = (
    "txt",
    "tsv",
    "xml",
    "toml",
    "md",
    "zip",
    "jpg",
    "jpeg",
    "png",
    "mp3",
    "mp4",
    "pdf",
    "tar",
    *_PREFERRED_ENDINGS,
)


_VALIDATION_WORDS, _TEST_WORDS = ("validation", "valid", "dev", "val"), ("test", "testing", "eval", "evaluation")


_SPLIT_WORDS = (("train", "training"), _VALIDATION_WORDS, _TEST_WORDS)


def readme_advice() -> str:
    """Return what to do in a folder that `load_dataset` misreads."""
    return f"{export_text('huggingface')} mends that"


def make_readme(splits: Sequence[DatasetFile], there: Iterable[str]) -> bytes:
    """Return a `README.md` that names the shards of each split of a dataset.

    Args:
        splits: Those that one run made, or one dataset.
        there: The names of all files in the folder: a pattern may match no other.

    Raises:
        InvalidRequest: Two splits would have the same name there.
    """
    names = {shard.name for split in splits for shard in split.shards} | set(there)
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    check_huggingface_splits([split.made.split for split in splits])
    for split in sorted(splits, key=split_order):
        paths = _yaml_paths([shard.name for shard in split.shards], names)
        lines.append(f"  - split: {huggingface_split(split.made.split or DEFAULT_SPLIT)}")
        lines += [f"    path: {paths[0]}"] if len(paths) == 1 else ["    path:", *(f"    - {path}" for path in paths)]
    text = "\n".join([*lines, "---", "", ""]).encode()
    sign = b"made by `shardtool index --export huggingface`, and made again by it only while nothing here is changed"
    return text + b"<!-- shardtool crc32c:%08x: %b -->\n" % (crc32c(text), sign)


def huggingface_split(split: str) -> str:
    """Return what a split is called there: letters, digits, underscores and dots."""
    return split if _SPLIT_NAME.fullmatch(split) else _NON_WORD.sub("_", split)


def check_huggingface_splits(splits: Iterable[str]) -> None:
    """Check that no two splits get the same name there.

    Raises:
        InvalidRequest: Two would have the same.
    """
    used: dict[str, str] = {}
    for split in splits:
        if (other := used.setdefault(huggingface_split(split), split)) != split:
            found = f"the splits {other} and {split} would both be {huggingface_split(split)} there"
            raise InvalidRequest(export_text("huggingface"), found, expected="names that differ in letters and digits")


def is_own_readme(data: bytes) -> bool:
    """Tell whether a `README.md` is one that we wrote, unchanged since."""
    text, mark, _ = data.rpartition(b"<!-- shardtool ")
    match = _SIGNATURE.fullmatch(data[len(text) :])
    return bool(mark) and match is not None and match[1] == b"%08x" % crc32c(text)


def readme_shards(data: bytes, names: Iterable[str]) -> set[str]:
    """Return those of `names` that a `README.md` of ours names as data, and what it names that is none of them."""
    found: set[str] = set()
    for pattern in map(json.loads, _PATH_LINE.findall(data.decode("utf-8", "replace"))):
        matching = {name for name in names if fnmatchcase(name, pattern)}
        found |= matching or {pattern}
    return found


def _yaml_paths(shards: Sequence[str], names: Collection[str]) -> list[str]:
    """Return what names just these files: a pattern where one does, as quoted YAML."""
    wanted = set(shards)
    first = re.fullmatch(r"(.*?)([0-9]+)(\D*)", shards[0], re.DOTALL)
    if first:
        for middle in ("*", "[0-9]" * len(first[2])):
            pattern = f"{glob.escape(first[1])}{middle}{glob.escape(first[3])}"
            if {name for name in names if fnmatchcase(name, pattern)} == wanted:
                return [_to_yaml(pattern)]
    return [_to_yaml(glob.escape(name)) for name in shards]


def _to_yaml(text: str) -> str:
    """Return a text as YAML that is JSON, too."""
    return _YAML_ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def describe_misreading(names: Iterable[str]) -> str:
    """Return what `load_dataset` does to a folder of tar shards without a `README.md`; empty: it reads them.

    Args:
        names: The names of all files in the folder.
    """
    seen = [name for name in names if not name.startswith(".") and name not in _IGNORED_FILES and "." in name]
    words = [rf"(?:^|[-._ 0-9])(?:{'|'.join(one)})[-._ 0-9]" for one in _SPLIT_WORDS]
    splits = [[name for name in seen if re.search(one, name)] for one in words]
    for group in [one for one in splits if one] or [seen]:
        counts = Counter(ending.lower() for name in group for ending in name.split(".")[1:])
        known = {ending: counts[ending] for ending in _KNOWN_ENDINGS if counts[ending]}
        if not known:
            continue
        most = max(
            known, key=lambda one: (known[one], _PREFERRED_ENDINGS.index(one) if one in _PREFERRED_ENDINGS else -1, one)
        )
        if most != "tar":
            example = min(name for name in group if most in name.lower().split(".")[1:])
            return f"takes {example} for the data, not the shards"
        if indexes := [name for name in group if "tar" in name.split(".")[1:-1]]:
            return f"takes {min(indexes)} for a tar, and fails"
    passed = [name for name in seen if name.endswith(".tar") and any(splits) and not any(name in one for one in splits)]
    return f"takes names for splits, and passes over {min(passed)}" if passed else ""


def hfutils_index(shard: IndexedShard) -> bytes:
    """Return what `hfutils.index.tar_create_index` writes: where each member lies, and hashes as the Hub has them."""
    digests = shard.digests
    if digests is None:
        raise TypeError("a shard that was not hashed")
    files = {
        name: {"offset": offset, "size": length, "sha256": digests.payload(at)}
        for at, (name, offset, length) in enumerate(_iter_members(shard))
    }
    document = {"filesize": shard.size, "hash": digests.git, "hash_lfs": digests.sha256, "files": files}
    return json.dumps(document).encode()


def _iter_members(shard: IndexedShard) -> Iterator[tuple[str, int, int]]:
    """Yield each member of a tar: name, offset and length."""
    for key, fields in shard.samples():
        for name, offset, length in fields:
            yield f"{key.decode()}.{name.decode()}", offset, length


def compare_hfutils_index(data: bytes, shard: IndexedShard) -> str:
    document = json.loads(data)
    wanted = {name: (offset, length) for name, offset, length in _iter_members(shard)}
    files: dict[str, dict[str, object]] = document["files"]
    found = {name: (one["offset"], one.get("size", one.get("length"))) for name, one in files.items()}
    if document.get("filesize", shard.size) != shard.size or found != wanted:
        return OTHER_OFFSETS
    if (digests := shard.digests) is None:
        return ""
    same = document.get("hash", digests.git) == digests.git
    same = same and document.get("hash_lfs", digests.sha256) == digests.sha256
    hashes = [(files[name].get("sha256"), digests.payload(at)) for at, name in enumerate(wanted)]
    same = same and all(one in (None, other) for one, other in hashes)
    return "" if same else "the hashes of other bytes"


OTHER_OFFSETS = "the places of other samples"
