"""Write the `README.md` that `load_dataset` reads, and find folders that `load_dataset` misreads.

Without a `README.md`, `load_dataset` reads only the files with the most common extension. This extension may be
`.json`, the extension of the dataset files. `load_dataset` treats every file whose name contains `.tar`, such as
`out-000000.tar.idx`, as a tar.

Source: datasets/{load,data_files}.py and datasets/packaged_modules/webdataset of datasets 5.2.
"""

from __future__ import annotations

import glob
import json
import re
from collections import Counter
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.fingerprint import crc32c
from shardtool.interop.indexed_shard import DEFAULT_SPLIT, split_order
from shardtool.messages import export_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from shardtool.dataset.dataset_file import DatasetFile


README_FILE = "README.md"
_SIGNATURE = re.compile(rb"<!-- shardtool crc32c:([0-9a-f]{8}): .*-->\n")
_PATH_LINE = re.compile(r'^    (?:path: |- )("(?:[^"\\]|\\.)*")$', re.MULTILINE)
_SPLIT_NAME = re.compile(r"\w+(?:\.\w+)*")  # names that `load_dataset` accepts
_NON_WORD = re.compile(r"\W")
_YAML_ESCAPED = re.compile("[\x7f-\xa0\u2028\u2029\ufeff]")
# files that `load_dataset` ignores
_IGNORED_FILES = ("README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")
# if two extensions are equally common, `load_dataset` chooses the later one in this list
_PREFERRED_ENDINGS = ("csv", "json", "jsonl", "arrow", "parquet")
_KNOWN_ENDINGS = (
    "txt", "tsv", "xml", "toml", "md", "zip", "jpg", "jpeg", "png", "mp3", "mp4", "pdf", "tar", *_PREFERRED_ENDINGS,
)  # fmt: skip
_VALIDATION_WORDS, _TEST_WORDS = ("validation", "valid", "dev", "val"), ("test", "testing", "eval", "evaluation")
_SPLIT_WORDS = (("train", "training"), _VALIDATION_WORDS, _TEST_WORDS)


def readme_advice() -> str:
    """Return advice for a folder that `load_dataset` misreads."""
    return f"{export_text('huggingface')} writes a README.md that fixes this"


def make_readme(splits: Sequence[DatasetFile], existing: Iterable[str]) -> bytes:
    """Return a `README.md` that lists the shards of each split. `existing` are all file names in the folder."""
    names = {shard.name for split in splits for shard in split.shards} | set(existing)
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    check_huggingface_splits([split.run.split for split in splits])
    for split in sorted(splits, key=split_order):
        paths = _yaml_paths([shard.name for shard in split.shards], names)
        lines.append(f"  - split: {huggingface_split(split.run.split or DEFAULT_SPLIT)}")
        lines += [f"    path: {paths[0]}"] if len(paths) == 1 else ["    path:", *(f"    - {path}" for path in paths)]
    text = "\n".join([*lines, "---", "", ""]).encode()
    signature = b"written by `shardtool index --export huggingface`, which replaces this file only if it is unchanged"
    return text + b"<!-- shardtool crc32c:%08x: %b -->\n" % (crc32c(text), signature)


def huggingface_split(split: str) -> str:
    """Convert a split name to a name that `load_dataset` accepts."""
    return split if _SPLIT_NAME.fullmatch(split) else _NON_WORD.sub("_", split)


def check_huggingface_splits(splits: Iterable[str]) -> None:
    """Raise `InvalidRequest` if `huggingface_split` converts two splits to the same name."""
    used: dict[str, str] = {}
    for split in splits:
        if (first_split := used.setdefault(huggingface_split(split), split)) != split:
            found = f"the splits {first_split} and {split} would both be named {huggingface_split(split)}"
            raise InvalidRequest(export_text("huggingface"), found, expected="names that differ in letters and digits")


def is_own_readme(data: bytes) -> bool:
    """Return whether a `README.md` is unchanged since shardtool wrote it."""
    text, mark, _ = data.rpartition(b"<!-- shardtool ")
    match = _SIGNATURE.fullmatch(data[len(text) :])
    return bool(mark) and match is not None and match[1] == b"%08x" % crc32c(text)


def readme_shards(data: bytes, names: Iterable[str]) -> set[str]:
    """Return the `names` that match a pattern in shardtool's `README.md`, and the patterns without a match."""
    shards: set[str] = set()
    for pattern in map(json.loads, _PATH_LINE.findall(data.decode("utf-8", "replace"))):
        matching = {name for name in names if fnmatchcase(name, pattern)}
        shards |= matching or {pattern}
    return shards


def _yaml_paths(shards: Sequence[str], names: Collection[str]) -> list[str]:
    shard_names = set(shards)
    match = re.fullmatch(r"(.*?)([0-9]+)(\D*)", shards[0], re.DOTALL)
    if match:
        for middle in ("*", "[0-9]" * len(match[2])):
            pattern = f"{glob.escape(match[1])}{middle}{glob.escape(match[3])}"
            if {name for name in names if fnmatchcase(name, pattern)} == shard_names:
                return [_to_yaml(pattern)]
    return [_to_yaml(glob.escape(name)) for name in shards]


def _to_yaml(text: str) -> str:
    return _YAML_ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def describe_misreading(names: Iterable[str]) -> str:
    """Describe how `load_dataset` misreads a folder with these files. Return "" if all tar shards are read."""
    considered = [name for name in names if not name.startswith(".") and name not in _IGNORED_FILES and "." in name]
    split_patterns = [rf"(?:^|[-._ 0-9])(?:{'|'.join(words)})[-._ 0-9]" for words in _SPLIT_WORDS]
    splits = [[name for name in considered if re.search(pattern, name)] for pattern in split_patterns]
    for group in [split for split in splits if split] or [considered]:
        counts = Counter(extension.lower() for name in group for extension in name.split(".")[1:])
        extension_counts = {extension: counts[extension] for extension in _KNOWN_ENDINGS if counts[extension]}
        if not extension_counts:
            continue
        preference = {ending: index for index, ending in enumerate(_PREFERRED_ENDINGS)}
        order = [(count, preference.get(ending, -1), ending) for ending, count in extension_counts.items()]
        winner = max(order)[-1]
        if winner != "tar":
            example = min(name for name in group if winner in name.lower().split(".")[1:])
            return f"reads {example} as the data instead of the shards"
        if indexes := [name for name in group if "tar" in name.split(".")[1:-1]]:
            return f"reads {min(indexes)} as a tar and fails"
    tars = [name for name in considered if name.endswith(".tar")] if any(splits) else []
    ignored = [name for name in tars if not any(name in split for split in splits)]
    return f"derives splits from names and ignores {min(ignored)}" if ignored else ""
