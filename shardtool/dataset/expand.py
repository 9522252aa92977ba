"""Find all datasets that the user named by a folder of splits, a pattern with `{split}`, a glob, or a list.

Shards that no dataset file lists form a separate dataset, because they may come from an unfinished run.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool import pattern as patterns
from shardtool.dataset.dataset_file import DatasetFile, read_valid_dataset
from shardtool.dataset.find import (
    EXPECTED_DATASET,
    expand_glob,
    find_dataset,
    is_dataset_file,
    list_shard_folder,
    names_listed_by,
    natural_key,
    open_dataset,
)
from shardtool.errors import CorruptShard, InvalidRequest, format_list
from shardtool.names import list_names, to_output_name
from shardtool.pattern import DATASET_SUFFIX, SPLIT_FIELD, SPLIT_STAND_IN, ShardPattern, is_shard_name, parse_pattern
from shardtool.storage import paths
from shardtool.storage.files import files_at, is_file, is_folder, list_folder_names
from shardtool.storage.paths import absolute_path, base_name, folder_of, join
from shardtool.storage.remote.address import is_url, is_web

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.dataset.stored import StoredDataset
    from shardtool.request.run_record import RunRecord
    from shardtool.values import DatasetLike


_RANGE_PATTERN = re.compile(r"[^{}<>,*?%\[\]]*\{\d{1,18}\.\.\d{0,18}\}[^{}<>,*?%\[\]]*", re.ASCII)


def expand_datasets(dataset: DatasetLike) -> list[DatasetLike]:
    """Return one argument for `find_dataset` per dataset. The datasets may not exist.

    All shard names in a list are one dataset. A shard that is also in a folder of the list belongs only to the folder.
    """
    if dataset and isinstance(dataset, (str, os.PathLike)):
        datasets = _expand_name(os.fspath(dataset))
        return [dataset] if datasets == [os.fspath(dataset)] else datasets
    dataset = list_names("the dataset", dataset, EXPECTED_DATASET)
    if "" in dataset:
        raise InvalidRequest("the dataset", "''", expected=EXPECTED_DATASET)
    names = dataset
    if len(names) > 1:
        names = [name for name in names if not _is_companion_file(name)]
    shards = [name for name in names if _is_listed_shard(name)]
    if len(shards) == len(names):
        return [dataset]
    expanded = [item for name in names if name not in shards for item in _expand_name(name)]
    named = [item for item in expanded if isinstance(item, str)] if shards else []
    listed = {absolute_path(path) for item in named for path in _find_shard_paths(item) or ()}
    unlisted = [name for name in shards if absolute_path(name) not in listed]
    datasets = [*expanded, *([unlisted] if unlisted else [])]
    return [*{_dataset_identity(item): item for item in datasets}.values()]


def splits_in(folder: str, run: RunRecord) -> dict[str, DatasetFile]:
    """Find the splits that `run` wrote to a folder, except `run.split`. Return their dataset files, by file name."""
    names = [name for name in list_folder_names(folder or ".") if name.endswith(DATASET_SUFFIX)] if run.split else []
    return _splits_of_run(run, {name: join(folder, name) for name in names})


def sibling_splits(dataset: StoredDataset) -> list[StoredDataset]:
    """Return the other splits that the run of `dataset` wrote, in its folder or sibling folders (`{split}/NAME`)."""
    if dataset.file is None or dataset.dataset_file is None:
        return []
    return [open_dataset(path) for path in sibling_files(dataset.dataset_file, dataset.file.run)]


def sibling_files(dataset_file: str, run: RunRecord) -> dict[str, DatasetFile]:
    """Find the other splits of `run`, given the `dataset_file` of one split. Return their dataset files, by path."""
    folder, file_name = folder_of(dataset_file), base_name(dataset_file)
    files, own_folder = splits_in(folder, run), absolute_path(folder)
    siblings = {join(folder, name): file for name, file in files.items()}
    if base_name(own_folder) == run.split:
        parent = folder_of(own_folder)
        folders = [join(parent, name) for name in list_folder_names(parent) if name != run.split]
        candidates = [join(path, file_name.replace(run.split, base_name(path))) for path in folders]
        siblings |= _splits_of_run(run, dict(zip(candidates, candidates, strict=True)))
    return siblings


def _splits_of_run(run: RunRecord, paths: Mapping[str, str]) -> dict[str, DatasetFile]:
    files = {name: read_valid_dataset(path) for name, path in paths.items()}
    return {name: file for name, file in files.items() if file is not None and run.is_sibling_split_of(file.run)}


def expand_if_pattern(dataset: DatasetLike) -> list[DatasetLike]:
    """Return the datasets that a glob or a pattern with `{split}` matches, or `[dataset]` for other names."""
    names = list_names("the dataset", dataset, EXPECTED_DATASET)
    if len(names) == 1 and (SPLIT_FIELD in names[0] or any(mark in names[0] for mark in "*?[")):
        return expand_datasets(names[0])
    return [dataset]


def recorded_range(file: DatasetFile) -> ShardPattern | None:
    """Return the shard pattern of a dataset file if it is a range, else None."""
    if not _RANGE_PATTERN.fullmatch(file.pattern):
        return None
    try:
        return parse_pattern(file.pattern)
    except (InvalidRequest, ValueError):
        return None


def _expand_name(name: str) -> list[DatasetLike]:
    if SPLIT_FIELD not in name and is_url(name) and (is_web(name) or _is_shard_or_dataset_name(name)):
        return [name]
    if is_folder(name):
        return _datasets_in(name, below=True) or [name]
    if SPLIT_FIELD in name:
        datasets = datasets_by_split(name)
        return [dataset for split in _splits_of_one_run(name, datasets) for dataset in datasets[split]]
    if any(mark in name for mark in "*?[") and not (is_file(name) if is_url(name) else os.path.exists(name)):
        matches = expand_glob(name)
        if any(match.endswith(DATASET_SUFFIX) or (not is_url(match) and os.path.isdir(match)) for match in matches):
            return expand_datasets(matches)
    return [name]


def _is_shard_or_dataset_name(name: str) -> bool:
    last = base_name(name)
    return last.endswith(DATASET_SUFFIX) or (is_shard_name(last) and not any(mark in last for mark in "*?["))


def _is_listed_shard(name: str) -> bool:
    if is_url(name) or not os.path.lexists(name):
        return is_shard_name(base_name(name)) and not any(mark in base_name(name) for mark in "*?[{<%")
    return os.path.isfile(name) and not name.endswith(DATASET_SUFFIX)


def _datasets_in(folder: str, *, below: bool) -> list[DatasetLike]:
    try:
        files, shards = list_shard_folder(folder)
    except OSError:
        return []
    if not files and not shards:
        subfolders = sorted(files_at(folder).list_folders(folder), key=natural_key) if below else []
        paths = [join(folder, name) for name in subfolders if not name.startswith(".")]
        return [dataset for path in paths for dataset in _datasets_in(path, below=False)]
    unlisted = _unlisted_shards(folder, files, shards) if files else []
    datasets: list[DatasetLike] = [join(folder, name) for name in files]
    if unlisted:
        datasets.append(unlisted)
    return datasets if len(datasets) > 1 else [folder]


def _unlisted_shards(folder: str, files: list[str], shards: list[str]) -> list[str]:
    file_paths = [join(folder, name) for name in files]
    listed = set[str]().union(*map(names_listed_by, file_paths))
    ranges = [pattern for file in map(read_valid_dataset, file_paths) if file and (pattern := recorded_range(file))]
    named_paths = [(base_name(path), path) for path in shards]
    candidates = [(name, path) for name, path in named_paths if to_output_name(name) not in listed]
    return [path for name, path in candidates if not any(pattern.owns(name) for pattern in ranges)]


def datasets_by_split(text: str) -> dict[str, list[DatasetLike]]:
    """Return all datasets that match a pattern with `{split}`, by split. Several runs may have created them."""
    if is_web(text):
        problem = "{split} on the web, where folders cannot be listed"
        raise InvalidRequest(text, problem, expected="the name of one dataset")
    head, _, tail = text.partition(SPLIT_FIELD)
    folder, prefix = folder_of(head), base_name(head)
    end, slash, _ = tail.partition("/")
    entry_name = re.compile(f"{re.escape(prefix)}(.+){re.escape(end)}", re.DOTALL)
    if not slash and is_shard_name(end):
        pattern = parse_pattern(f"{prefix}{SPLIT_STAND_IN}{tail}".replace(SPLIT_FIELD, SPLIT_STAND_IN))
        if pattern.names is None:
            start = re.escape(pattern.prefix).replace(SPLIT_STAND_IN, "(.+?)", 1).replace(SPLIT_STAND_IN, r"\1")
            entry_name = re.compile(rf"{start}\d+{re.escape(pattern.suffix)}", re.DOTALL)
    matches = map(entry_name.fullmatch, list_folder_names(folder, needed=True))
    splits = sorted({match[1] for match in matches if match}, key=natural_key)
    datasets = {split: _datasets_of_split(text.replace(SPLIT_FIELD, split)) for split in splits}
    if not any(datasets.values()):
        raise InvalidRequest(text, "no dataset has such a name", expected=EXPECTED_DATASET)
    return datasets


def _splits_of_one_run(text: str, datasets: Mapping[str, list[DatasetLike]]) -> list[str]:
    files = [
        (split, file)
        for split, split_datasets in datasets.items()
        for dataset in split_datasets
        if (file := _dataset_file(dataset)) is not None
    ]
    records = {split: file.run for split, file in files if file.run.split == split}
    runs: list[set[str]] = []
    for record in records.values():
        splits = {*record.splits}
        overlapping = [run for run in runs if run & splits]
        runs = [*(run for run in runs if run not in overlapping), splits.union(*overlapping)] if splits else runs
    if not runs:
        foreign_splits = {split for split, _ in files if split not in records} if records else set()
        return [split for split in datasets if split not in foreign_splits]
    if len(runs) > 1:
        problem = "; ".join(format_list(sorted(run, key=natural_key), 3) for run in runs)
        raise InvalidRequest(text, f"splits of {len(runs)} runs: {problem}", expected="the splits of one run",
                             remedy="Name the dataset files instead.")  # fmt: skip
    if missing := [split for split in sorted(runs[0], key=natural_key) if not datasets.get(split)]:
        missing_names = format_list([text.replace(SPLIT_FIELD, split) for split in missing], 3)
        problem = f"{missing_names} {'does' if len(missing) == 1 else 'do'} not exist"
        expected = f"all splits of the run: {format_list(sorted(runs[0], key=natural_key), 10)}"
        raise InvalidRequest(text, problem, expected=expected,
                             remedy="To read fewer splits, name their dataset files instead.")  # fmt: skip
    return [split for split in datasets if split in runs[0]]


def _dataset_file(dataset: DatasetLike) -> DatasetFile | None:
    path = dataset if isinstance(dataset, str) and dataset.endswith(DATASET_SUFFIX) else None
    with suppress(InvalidRequest, CorruptShard):
        path = path or find_dataset(dataset, allow_missing=True).dataset_file
    return None if path is None else read_valid_dataset(path)


def _datasets_of_split(name: str) -> list[DatasetLike]:
    if is_folder(name):
        return _datasets_in(name, below=True)
    if not (name.endswith(DATASET_SUFFIX) or is_shard_name(name)) or _is_companion_file(name):
        return []
    return [name] if (not is_url(name) and os.path.lexists(name)) or _find_shard_paths(name) != () else []


def _is_companion_file(name: str) -> bool:
    if not is_url(name) and not os.path.isfile(name):
        return False
    if name.endswith((patterns.SIDECAR_SUFFIX, patterns.SKIPPED_SUFFIX)):
        return True
    folder, base = folder_of(name), base_name(name)
    stem = base.removesuffix(DATASET_SUFFIX)
    if stem == base or is_dataset_file(name):
        return False
    has_shard = any(entry.startswith(f"{stem}.") and is_shard_name(entry) for entry in list_folder_names(folder))
    return has_shard or base in (patterns.TIMM_FILE, patterns.OPEN_CLIP_FILE)


def _find_shard_paths(name: str) -> tuple[str, ...] | None:
    """Return the shard paths of a dataset: () if no dataset exists, None if the dataset is damaged."""
    try:
        return find_dataset(name, allow_missing=True).paths
    except InvalidRequest:
        return ()
    except CorruptShard:
        return None


def _dataset_identity(dataset: DatasetLike) -> object:
    return paths.real_path(os.fspath(dataset)) if isinstance(dataset, (str, os.PathLike)) else tuple(dataset)
