"""Which datasets are meant where several may be: a folder of splits, a pattern with `{split}`, a glob, or a list.

Each is then opened by itself. Shards in a folder that no dataset file tells of are a dataset of their own: what a run
has left that did not end would else be passed over.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import read_dataset, shard_names
from shardtool.dataset.find import EXPECTED, find_dataset, is_dataset_file, matches, natural, shards_of_folder
from shardtool.errors import CorruptShard, InvalidRequest, ShardError, StoreFailed
from shardtool.interop.indexes import OPEN_CLIP_FILE, TIMM_FILE
from shardtool.pattern import DATASET_SUFFIX, SIDECAR_SUFFIX, SKIPPED_SUFFIX, is_shard_name, parse_pattern
from shardtool.storage.places import (
    base_name,
    folder_of,
    folders_in,
    is_file,
    is_folder,
    is_url,
    is_web,
    join,
    list_folder,
    names_in,
    read_small,
)
from shardtool.values import output_text

if TYPE_CHECKING:
    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.pattern import ShardPattern
    from shardtool.values import Given

_SPLIT = "{split}"
_MARK = "\ue000"  # a stand-in for {split} while a pattern is parsed: a private-use character
_PATTERN = re.compile(r"[^{}<>,*?%\[\]]*\{\d{1,18}\.\.\d{0,18}\}[^{}<>,*?%\[\]]*", re.ASCII)


def given_datasets(given: Given) -> list[Given]:
    """Return the datasets that are meant, each as `find_dataset` takes it; one that is not there is one of them.

    Files of a list that are neither dataset files nor folders are the shards of one dataset; those that a dataset file
    in it lists are no other dataset.

    Raises:
        InvalidRequest: Nothing is of a pattern with `{split}`; or what is given is no name, and no list of names.
    """
    if given and isinstance(given, (str, os.PathLike)):
        found = _meant(os.fspath(given))
        return [given] if found == [os.fspath(given)] else found
    given = [*given] if isinstance(given, (Sequence, Iterator)) and not isinstance(given, (str, bytes)) else [given]
    for one in given:
        if not one or not isinstance(one, (str, os.PathLike)):
            raise InvalidRequest("the dataset", f"{one!r:.80}", expected=EXPECTED)
    names = [os.fspath(one) for one in given]
    if len(names) > 1:
        names = [name for name in names if not _is_beside_shards(name)]
    shards = [name for name in names if _is_shard_file(name)]
    if len(shards) == len(names):
        return [given]
    datasets = [one for name in names if name not in shards for one in _meant(name)]
    listed = {path for one in datasets if isinstance(one, str) for path in _listed(one)}
    rest = [name for name in shards if _full(name) not in listed]
    found = [*datasets, *([rest] if rest else [])]
    return [*{_place(one): one for one in found}.values()]


def of_glob(given: Given) -> list[Given]:
    """Return the datasets whose files or folders a glob names, each of its own; whatever else is given is one."""
    names = [given] if isinstance(given, (str, os.PathLike)) else [*given]
    if len(names) == 1 and any(mark in os.fspath(names[0]) for mark in "*?["):
        return given_datasets(names[0])
    return [given]


def recorded_pattern(file: DatasetFile) -> ShardPattern | None:
    """Return the pattern that a dataset file records; None where that is none of a range."""
    if not _PATTERN.fullmatch(file.pattern):
        return None
    try:
        return parse_pattern(file.pattern)
    except (ShardError, ValueError):
        return None


def _meant(name: str) -> list[Given]:
    """Return the datasets that one name means."""
    if _SPLIT not in name and is_url(name) and (is_web(name) or _is_named(name)):
        return [name]
    if is_folder(name):
        return _in_folder(name, below=True) or [name]
    if _SPLIT in name:
        return _of_splits(name)
    if any(mark in name for mark in "*?[") and not (is_file(name) if is_url(name) else os.path.exists(name)):
        found = matches(name)
        if any(one.endswith(DATASET_SUFFIX) or (not is_url(one) and os.path.isdir(one)) for one in found):
            return given_datasets(found)
    return [name]


def _is_named(name: str) -> bool:
    """Tell whether an address is, by its name, that of a dataset file, a shard, or a pattern of shards."""
    last = base_name(name)
    return last.endswith(DATASET_SUFFIX) or (is_shard_name(last) and not any(mark in last for mark in "*?["))


def _is_shard_file(name: str) -> bool:
    """Tell whether a name of a list is that of a file, and of no dataset file; or of a shard that is not there."""
    if is_url(name) or not os.path.lexists(name):
        return is_shard_name(base_name(name)) and not any(mark in base_name(name) for mark in "*?[{<%")
    return os.path.isfile(name) and not name.endswith(DATASET_SUFFIX)


def _full(path: str) -> str:
    return path if is_url(path) else os.path.abspath(path)


def _in_folder(folder: str, *, below: bool) -> list[Given]:
    """Return the datasets in a folder, or where it holds none, in the folders in it; none where there are none."""
    try:
        names = sorted(list_folder(folder), key=natural)
    except OSError:
        return []
    files = [name for name in names if name.endswith(DATASET_SUFFIX) and is_dataset_file(join(folder, name))]
    shards = shards_of_folder(folder, [name for name in names if not name.startswith(".")])
    if not files and not shards:
        plain = sorted(folders_in(folder), key=natural) if below else []
        paths = [join(folder, name) for name in plain if not name.startswith(".")]
        return [one for path in paths for one in _in_folder(path, below=False)]
    rest = _untold(folder, files, shards) if files else []
    if len(files) + bool(rest) <= 1:
        return [folder]
    return [*(join(folder, name) for name in files), *([rest] if rest else [])]


def _untold(folder: str, files: list[str], shards: list[str]) -> list[str]:
    """Return the shards of a folder that no dataset file in it lists, and that have no name of one's pattern."""
    listed: set[str] = set()
    patterns: list[ShardPattern] = []
    for name in files:
        with suppress(OSError, CorruptShard, InvalidRequest):
            data = read_small(join(folder, name))
            listed.update(shard_names(data) or ())
            pattern = recorded_pattern(read_dataset(data, name))
            patterns += [] if pattern is None else [pattern]
    found = [(base_name(path), path) for path in shards]
    rest = [(name, path) for name, path in found if output_text(name) not in listed]
    return [path for name, path in rest if not any(one.owns(name) for one in patterns)]


def _of_splits(text: str) -> list[Given]:
    """Return what a name with `{split}` means, as `create` takes and prints it: dataset files, or shard patterns."""
    if is_web(text):
        raise InvalidRequest(text, "{split} on the web, where nothing is listed", expected="the name of one dataset")
    head, _, tail = text.partition(_SPLIT)
    folder, prefix = folder_of(head), base_name(head)
    here, slash, _ = tail.partition("/")
    name = re.compile(f"{re.escape(prefix)}(.+){re.escape(here)}", re.DOTALL)
    if not slash and is_shard_name(here):
        pattern = parse_pattern(f"{prefix}{_MARK}{tail}".replace(_SPLIT, _MARK))
        if pattern.names is None:
            start = re.escape(pattern.prefix).replace(_MARK, "(.+?)", 1).replace(_MARK, r"\1")
            name = re.compile(rf"{start}\d+{re.escape(pattern.suffix)}", re.DOTALL)
    splits = {match[1] for one in names_in(folder, needed=True) if (match := name.fullmatch(one))}
    found = [text.replace(_SPLIT, split) for split in sorted(splits, key=natural)]
    datasets = [dataset for one in found for dataset in _of_split(one)]
    if not datasets:
        raise InvalidRequest(text, "no dataset of such a name", expected=EXPECTED)
    return datasets


def _of_split(name: str) -> list[Given]:
    """Return the datasets that the name of a split means; none where that is the name of something else."""
    if is_folder(name):
        return _in_folder(name, below=True)
    is_name_of_one = (name.endswith(DATASET_SUFFIX) or is_shard_name(name)) and not _is_beside_shards(name)
    return [name] if is_name_of_one and _is_there(name) else []


def _is_there(name: str) -> bool:
    """Tell whether there is something of that name: a file, or shards of that pattern."""
    try:
        return (not is_url(name) and os.path.lexists(name)) or bool(find_dataset(name, lacking=True).shards)
    except InvalidRequest:
        return False
    except StoreFailed:
        raise
    except ShardError:  # damaged, and so there
        return True


def _is_beside_shards(name: str) -> bool:
    """Tell whether a file is about shards and no dataset: a sidecar, what was left out, JSON of other tools."""
    if not is_url(name) and not os.path.isfile(name):
        return False
    if name.endswith((SIDECAR_SUFFIX, SKIPPED_SUFFIX)):
        return True
    folder, base = folder_of(name), base_name(name)
    stem = base.removesuffix(DATASET_SUFFIX)
    if stem == base or is_dataset_file(name):
        return False
    shard = any(one.startswith(f"{stem}.") and is_shard_name(one) for one in names_in(folder))
    return shard or base in (TIMM_FILE, OPEN_CLIP_FILE)


def _listed(name: str) -> set[str]:
    """Return the shards of a dataset file or folder."""
    try:
        return {_full(path) for path in find_dataset(name, lacking=True).paths}
    except StoreFailed:
        raise
    except ShardError:
        return set()


def _place(given: Given) -> object:
    """Return what is equal for two names of one dataset."""
    if isinstance(given, (str, os.PathLike)):
        return given if is_url(os.fspath(given)) else os.path.realpath(given)
    return tuple(given)
