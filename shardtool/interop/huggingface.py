"""What `load_dataset(folder)` makes of a folder, and the `README.md` that names the files of its data.

Without one it takes the most common ending among a folder's files for the data's: a single shard loses to its dataset
file, and every name with `.tar` in it, such as `out-000000.tar.idx`, is taken for a tar.

Source: datasets/{load,data_files}.py and datasets/packaged_modules/webdataset of datasets 5.2; docs/format.md,
"Exported indexes".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.fingerprint import crc32c
from shardtool.interop.indexes import by_split
from shardtool.wording import exporting

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from shardtool.interop.export_types import IndexedShard, SplitShards

README = "README.md"
_TRAIN = "train"
_SIGNED = re.compile(rb"<!-- shardtool crc32c:([0-9a-f]{8}): .*-->\n")
_PATH = re.compile(r'^    (?:path: |- )("(?:[^"\\]|\\.)*")$', re.MULTILINE)
_SPLIT_NAME = re.compile(r"\w+(?:\.\w+)*")  # that `load_dataset` takes
_NO_WORD = re.compile(r"\W")
_IN_YAML = re.compile("[\x7f-\xa0\u2028\u2029\ufeff]")
# What `load_dataset` ignores, and the endings that it has readers for, as far as they lie beside shards.
_IGNORED = ("README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")
_FAVOURITES = ("csv", "json", "jsonl", "arrow", "parquet")  # in the case of a draw, the last one first
_READ = ("txt", "tsv", "xml", "toml", "md", "zip", "jpg", "jpeg", "png", "mp3", "mp4", "pdf", "tar", *_FAVOURITES)
_VALIDATION, _TEST = ("validation", "valid", "dev", "val"), ("test", "testing", "eval", "evaluation")
_SPLIT_WORDS = (("train", "training"), _VALIDATION, _TEST)


def cure() -> str:
    """Return what to do in a folder that `load_dataset` misreads."""
    return f"{exporting('huggingface')} mends that"


def readme(splits: Sequence[SplitShards], there: Iterable[str]) -> bytes:
    """Return a `README.md` that names the shards of each split of a dataset.

    Args:
        splits: Those that one run made, or one dataset.
        there: The names of all files in the folder: a pattern may match no other.

    Raises:
        InvalidRequest: Two splits would have the same name there.
    """
    names = {name for split in splits for name in split.shards} | set(there)
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    check_splits([split.name for split in splits])
    for split in sorted(splits, key=by_split):
        paths = _paths([*split.shards], names)
        lines.append(f"  - split: {split_name(split.name or _TRAIN)}")
        lines += [f"    path: {paths[0]}"] if len(paths) == 1 else ["    path:", *(f"    - {path}" for path in paths)]
    text = "\n".join([*lines, "---", "", ""]).encode()
    sign = b"made by `shardtool index --export huggingface`, and made again by it only while nothing here is changed"
    return text + b"<!-- shardtool crc32c:%08x: %b -->\n" % (crc32c(text), sign)


def split_name(split: str) -> str:
    """Return what a split is called there: letters, digits, underscores and dots."""
    return split if _SPLIT_NAME.fullmatch(split) else _NO_WORD.sub("_", split)


def check_splits(splits: Iterable[str]) -> None:
    """Check that no two splits get the same name there.

    Raises:
        InvalidRequest: Two would have the same.
    """
    used: dict[str, str] = {}
    for split in splits:
        if (other := used.setdefault(split_name(split), split)) != split:
            found = f"the splits {other} and {split} would both be {split_name(split)} there"
            raise InvalidRequest(exporting("huggingface"), found, expected="names that differ in letters and digits")


def is_ours(data: bytes) -> bool:
    """Tell whether a `README.md` is one that we wrote, unchanged since."""
    text, mark, _ = data.rpartition(b"<!-- shardtool ")
    match = _SIGNED.fullmatch(data[len(text) :])
    return bool(mark) and match is not None and match[1] == b"%08x" % crc32c(text)


def listed(data: bytes, names: Iterable[str]) -> set[str]:
    """Return those of `names` that a `README.md` of ours names as data, and what it names that is none of them."""
    patterns = [json.loads(path) for path in _PATH.findall(data.decode("utf-8", "replace"))]
    found: set[str] = set()
    for pattern in patterns:
        matching = {name for name in names if fnmatchcase(name, pattern)}
        found |= matching or {pattern}
    return found


def _paths(shards: Sequence[str], names: Collection[str]) -> list[str]:
    """Return what names just these files: a pattern where one does, as quoted YAML."""
    wanted = set(shards)
    first = re.fullmatch(r"(.*?)([0-9]+)(\D*)", shards[0], re.DOTALL)
    if first:
        for middle in ("*", "[0-9]" * len(first[2])):
            pattern = f"{_plain(first[1])}{middle}{_plain(first[3])}"
            if {name for name in names if fnmatchcase(name, pattern)} == wanted:
                return [_quoted(pattern)]
    return [_quoted(_plain(name)) for name in shards]


def _plain(name: str) -> str:
    """Return a name as a pattern that matches nothing else."""
    return re.sub(r"[\[*?]", r"[\g<0>]", name)


def _quoted(text: str) -> str:
    """Return a text as YAML that is JSON, too."""
    return _IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def misreading(names: Iterable[str]) -> str:
    """Return what `load_dataset` does to a folder of tar shards without a `README.md`; empty: it reads them.

    Args:
        names: The names of all files in the folder.
    """
    seen = [name for name in names if not name.startswith(".") and name not in _IGNORED and "." in name]
    splits = [[name for name in seen if _has_word(name, words)] for words in _SPLIT_WORDS]
    for group in [one for one in splits if one] or [seen]:
        counts = Counter(ending.lower() for name in group for ending in name.split(".")[1:])
        known: Mapping[str, int] = {ending: counts[ending] for ending in _READ if counts[ending]}
        if not known:
            continue
        most = max(known, key=lambda one: (known[one], _FAVOURITES.index(one) if one in _FAVOURITES else -1, one))
        if most != "tar":
            return f"takes {_example(group, most)} for the data, not the shards"
        if indexes := [name for name in group if "tar" in name.split(".")[1:-1]]:
            return f"takes {min(indexes)} for a tar, and fails"
    passed = [name for name in seen if name.endswith(".tar") and any(splits) and not any(name in one for one in splits)]
    return f"takes names for splits, and passes over {min(passed)}" if passed else ""


def _has_word(name: str, words: Iterable[str]) -> bool:
    return any(re.search(rf"(?:^|[-._ 0-9]){word}[-._ 0-9]", name) for word in words)


def _example(names: Iterable[str], ending: str) -> str:
    return min(name for name in names if ending in name.lower().split(".")[1:])


def hub_index(shard: IndexedShard) -> bytes:
    """Return what `hfutils.index.tar_create_index` writes: where each member lies, and hashes as the Hub has them."""
    digests = shard.digests
    if digests is None:
        raise TypeError("a shard that was not hashed")
    keys = shard.table.column("__key__").to_pylist()
    lists = shard.table.column("__fields__").combine_chunks()
    fields = lists.flatten()
    names, offsets, lengths = (fields.field(part).to_pylist() for part in ("name", "offset", "length"))
    files = {
        f"{key}.{names[at]}": {"offset": offsets[at], "size": lengths[at], "sha256": digests.payload(at)}
        for key, (first, last) in zip(keys, pairwise(lists.offsets.to_pylist()), strict=True)
        for at in range(first, last)
    }
    document = {"filesize": shard.size, "hash": digests.git, "hash_lfs": digests.sha256, "files": files}
    return json.dumps(document).encode()
