"""Find the shards of one dataset. A user names a dataset by its dataset file, a pattern, a glob, a folder, or shards.

A range or glob also matches missing shards that a dataset file in the same folder lists. On the web, a range needs an
end, because web servers cannot list files.
"""

from __future__ import annotations

import glob
import os
import re
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from shardtool import pattern as patterns
from shardtool.dataset.dataset_file import (
    is_dataset_content,
    may_be_dataset_file,
    parse_dataset,
    parse_listed_shards,
    parse_local_shards,
    parse_shard_names,
)
from shardtool.dataset.shard_file import FETCH_ADVICE, detect_kind_by_content
from shardtool.dataset.stored import StoredDataset, make_dataset, recorded_dots, sidecar_path
from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, format_list, os_error_text, printable
from shardtool.messages import choose_text, flag_text
from shardtool.names import list_names
from shardtool.pattern import DATASET_SUFFIX, ShardPattern, is_shard_name, parse_pattern, parse_shard_name
from shardtool.storage import files, paths
from shardtool.storage.files import dangling_target, is_file, is_folder, list_folder, list_folder_names, plain_sizes
from shardtool.storage.paths import base_name, folder_of, join
from shardtool.storage.remote.address import is_url, is_web, refuse_mistyped_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardtool.values import DatasetLike, Dots


_DIGITS = re.compile(r"(\d+)", re.ASCII)  # only ASCII digits, as in shard patterns
_MAX_LISTED_MISSING = 1000
_MAX_PROBED_FILES = 8
_RANGE_MARKS = "{<%"
_GLOB_MARKS = "*?["
_PRINTF_RANGE = re.compile(r"%\d*d", re.ASCII)
_NUMBERED_NAME = re.compile(r"(.*?)([0-9]+)(\.[^0-9{<%]+)", re.DOTALL)
EXPECTED_DATASET = "a dataset file, a shard pattern, a glob, a folder, or shards"
_EXPECTED_WEB = "a dataset file (NAME.json), a shard, or a pattern with its end, such as out-{000000..000041}.tar"


def open_dataset(dataset: DatasetLike, *, dots: Dots | None = None) -> StoredDataset:
    """Find a dataset and read its dataset file.

    If no dataset file is read, set the `dots` of the shards to the argument, or by default to `recorded_dots`.
    """
    stored = find_dataset(dataset).read()
    return stored if stored.file is not None else stored.with_dots(dots or recorded_dots(stored))


def find_dataset(dataset: DatasetLike, *, allow_missing: bool = False) -> StoredDataset:
    """Find the shards of a dataset. Raise an error if shards of a range are missing, unless `allow_missing`."""
    names = list_names("the dataset", dataset, EXPECTED_DATASET)
    stored = _find_shards(names)
    if stored.missing and not allow_missing:
        found = f"no {format_list([*map(printable, stored.missing)], 3)}"
        remedy = "Name only existing shards, with a narrower range or a glob, or name the dataset file."
        raise InvalidRequest(names[0], found, expected="all shards of the range", remedy=remedy)
    return replace(stored, argument=dataset)


def is_local(dataset: DatasetLike) -> bool:
    """Return whether all names of a dataset are local paths."""
    return not any(map(is_url, list_names("the dataset", dataset, EXPECTED_DATASET)))


def _find_shards(names: list[str]) -> StoredDataset:
    if not names:
        raise InvalidRequest("the dataset", "no name", expected=EXPECTED_DATASET)
    if len(names) > 1:
        return _from_names(names)
    name = names[0]
    if name.startswith("pipe:") or name == "-":
        found = "a command" if name != "-" else "standard input"
        remedy = (
            "Save the bytes to a file first; `create`, `reshard`, `inspect` and `verify` do this on the command line."
        )
        raise InvalidRequest(name, found, expected=EXPECTED_DATASET, remedy=remedy)
    if is_url(name):
        return _from_address(name)
    if not os.path.lexists(name):
        refuse_mistyped_address(name)
    if os.path.isdir(name):
        return _from_folder(name)
    if name.endswith(DATASET_SUFFIX):
        return _from_dataset_file(name)
    if os.path.lexists(name) or any(mark in name for mark in _GLOB_MARKS):
        return _from_names([name]) if os.path.lexists(name) else _from_names(expand_glob(name) or [name], name)
    return _from_pattern(name)


def expand_glob(name: str) -> list[str]:
    """Return the files that match a glob, in natural order. In a store, folder names cannot contain wildcards."""
    if not is_url(name):
        return sorted(glob.glob(name), key=natural_key)
    folder, last = folder_of(name), base_name(name)
    if is_web(name) or any(mark in folder for mark in _GLOB_MARKS):
        found = "a glob on the web, where folders cannot be listed" if is_web(name) else "a glob in a folder name"
        raise InvalidRequest(name, found, expected=_EXPECTED_WEB if is_web(name) else "a glob in the file name only")
    matches = [match for match in list_folder(folder) if fnmatchcase(match, last)]
    return [join(folder, match) for match in sorted(matches, key=natural_key)]


def _from_address(name: str) -> StoredDataset:
    last = base_name(name)
    if last.endswith(DATASET_SUFFIX):
        return _from_dataset_file(name)
    if any(mark in last for mark in "{<") or (not is_web(name) and _PRINTF_RANGE.search(last)):
        return _from_pattern(name)
    has_shard_name = is_shard_name(last)
    if has_shard_name and is_file(name):
        return _from_names([name])
    if is_folder(name):
        return _from_folder(name)
    if any(mark in last for mark in _GLOB_MARKS) and (matches := expand_glob(name)):
        return _from_names(matches, name)
    if not has_shard_name and is_file(name) and detect_kind_by_content(name):
        return _from_names([name])
    if not is_web(name):
        raise InvalidRequest(name, "no such object, and no objects below it", expected=EXPECTED_DATASET)
    found = "no such file" if has_shard_name else "not a shard, and folders on the web cannot be listed"
    raise InvalidRequest(name, found, expected=_EXPECTED_WEB)


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts `s-9` before `s-10`."""
    return [(int(part), "") if index % 2 else (-1, part) for index, part in enumerate(_DIGITS.split(name))]


def _from_names(names: list[str], text: str = "") -> StoredDataset:
    sidecars = {sidecar_path(name, None) for name in names}
    # A glob such as `train-*` matches shards named `train-00000-of-01024`, but also their sidecars.
    names = [name for name in names if name not in sidecars] or names
    sizes = [*plain_sizes(names)]
    for name in names:
        _check_fetched(name)
    if len(names) == 1 and names[0].endswith(DATASET_SUFFIX) and sizes[0] is not None:
        return _from_dataset_file(names[0])
    folder, glob_pattern = folder_of(names[0]), base_name(text)
    base_names = dict.fromkeys(map(base_name, names))
    file, listed = None, list[str]()
    if all(folder_of(name) == folder for name in names):
        existing = {base_name(name) for name, size in zip(names, sizes, strict=True) if size is not None}
        file, listed, _ = _choose_dataset_file(
            folder, existing, default_dataset_names([*base_names]),
            lambda names: [name for name in names if name in base_names or (text and fnmatchcase(name, glob_pattern))],
        )  # fmt: skip
    for name, size in zip(names, sizes, strict=True):
        if size is None and base_name(name) not in listed:
            raise InvalidRequest(name, "no such file", expected=EXPECTED_DATASET, remedy=paths.similar_path(name))
    if missing := [join(folder, name) for name in listed if text and name not in base_names]:
        names = sorted([*names, *missing], key=natural_key)
    return make_dataset(names, file, folder, has_own_file=file is not None)


def _check_fetched(path: str) -> None:
    # git-annex and DVC use broken links for files that were not fetched.
    if (target := dangling_target(path)) is not None:
        found = f"a broken link to {printable(target)}"
        raise InvalidRequest(path, found, expected=EXPECTED_DATASET, remedy=FETCH_ADVICE)


def _from_folder(folder: str) -> StoredDataset:
    try:
        files, shards = list_shard_folder(folder)
    except OSError as error:
        raise InvalidRequest(folder, os_error_text(error), expected=EXPECTED_DATASET) from None
    if len(files) > 1:
        found = f"{len(files)} datasets: {format_list(files)}"
        remedy = f"Name one of the dataset files, or all of them with the glob '{printable(join(folder, '*.json'))}'."
        raise InvalidRequest(folder, found, expected="one dataset", remedy=remedy)
    if files:
        return _from_dataset_file(join(folder, files[0]))
    if not shards:
        expected = f"files that end in {patterns.READABLE_ENDINGS}"
        remedy = choose_text("Use `create` to pack other files.", "Use `shardtool create` to pack other files.")
        raise InvalidRequest(folder, "a folder without shards", expected=expected, remedy=remedy)
    return make_dataset(shards, None, folder.rstrip("/") or "/", has_own_file=False)


def list_shard_folder(folder: str) -> tuple[list[str], list[str]]:
    """Return the names of the dataset files in a folder, and the paths of its shards.

    Files such as `train-00000-of-01024` may be a TensorFlow checkpoint, so check that one of them starts like a shard.
    """
    names = sorted(list_folder(folder), key=natural_key)
    named = [name for name in names if name.endswith(DATASET_SUFFIX)]
    files = [name for name in named if is_dataset_file(join(folder, name), listed=True)]
    names = [name for name in names if not name.startswith(".")]
    series: dict[tuple[str, int], list[str]] = {}
    for name in names:
        if parse_shard_name(name) is None and (numbered_name := patterns.parse_numbered_name(name)):
            series.setdefault((numbered_name[0], numbered_name[3]), []).append(name)
    shard_series = (
        group
        for group in series.values()
        if any(_can_be_shard(join(folder, name)) for name in group[:_MAX_PROBED_FILES])
    )
    series_names = {name for group in shard_series for name in group}
    return files, [join(folder, name) for name in names if parse_shard_name(name) or name in series_names]


def _can_be_shard(path: str) -> bool:
    try:
        return detect_kind_by_content(path) is not None
    except CorruptShard:
        return True


def _from_pattern(text: str) -> StoredDataset:
    folder, is_range = folder_of(text), any(mark in text for mark in _RANGE_MARKS)
    try:
        pattern = replace(parse_pattern(base_name(text)), folder=folder) if is_web(text) else parse_pattern(text)
    except InvalidRequest as error:
        if not is_range:
            found = "no such file" if is_shard_name(base_name(text)) else "no such file or folder"
            raise InvalidRequest(text, found, expected=EXPECTED_DATASET, remedy=paths.similar_path(text)) from None
        raise error from None
    select, existing = partial(_matching_names, pattern), _existing_names(pattern)
    if existing is None:
        _check_range(pattern)
    present = select(existing or [])
    file, listed, listed_pattern = _choose_dataset_file(pattern.folder, {*present}, [pattern.dataset_file], select)
    if existing is None and not listed:
        first = join(pattern.folder, pattern.shard(0))
        count = pattern.count or 0
        present = [pattern.shard(index) for index in range(count)] if is_file(first) else []
    elif not present and not is_range:
        listed = []
    matches = select([*present, *listed])
    if not matches:
        found, remedy = ("no shards match this pattern", "") if is_range else ("no such file", paths.similar_path(text))
        raise InvalidRequest(text, found, expected=EXPECTED_DATASET, remedy=remedy)
    is_whole = listed_pattern == pattern.text
    matched = set(matches)
    count = 0 if is_whole or pattern.count is None else pattern.count
    names = map(pattern.shard, range(count))
    missing = tuple(islice((name for name in names if name not in matched), _MAX_LISTED_MISSING))
    shards = [join(pattern.folder, name) for name in matches]
    return make_dataset(shards, file, pattern.folder, has_own_file=file is not None, is_whole=is_whole, missing=missing)


def _existing_names(pattern: ShardPattern) -> Iterable[str] | None:
    """Return None if the folder cannot be listed."""
    if pattern.names is None:
        try:
            return None if is_web(pattern.folder) else list_folder_names(pattern.folder, needed=True)
        except AccessRefused:
            if pattern.count is None:
                raise
            return None
    sizes = plain_sizes([join(pattern.folder, name) for name in pattern.names])
    return [name for name, size in zip(pattern.names, sizes, strict=True) if size is not None]


def _matching_names(pattern: ShardPattern, names: Iterable[str]) -> list[str]:
    if pattern.names is not None:
        existing = {*names}
        return [name for name in pattern.names if name in existing]
    numbers = {}
    for name in names:
        digits = name[len(pattern.prefix) : len(name) - len(pattern.suffix)]
        if name.startswith(pattern.prefix) and name.endswith(pattern.suffix) and digits.isascii() and digits.isdigit():
            index = int(digits) - pattern.first
            if index >= 0 and (pattern.count is None or index < pattern.count) and pattern.shard(index) == name:
                numbers[index] = name
    return [numbers[index] for index in sorted(numbers)]


def _check_range(pattern: ShardPattern) -> None:
    location = join(pattern.folder, pattern.text)
    if pattern.count is None:
        found = "a range without an end on the web, where folders cannot be listed"
        raise InvalidRequest(location, found, expected=_EXPECTED_WEB)
    if pattern.count > patterns.MAX_EXPANDED_NAMES:
        raise InvalidRequest(location, f"{pattern.count:,} names", expected=f"at most {patterns.MAX_EXPANDED_NAMES:,}")


def _from_dataset_file(path: str) -> StoredDataset:
    _check_fetched(path)
    try:
        data = files.read_small(path)
    except OSError as error:
        plan_path = path.removesuffix(DATASET_SUFFIX)
        plan_path = join(folder_of(plan_path), patterns.replacement_plan_name(base_name(plan_path)))
        remedy = "" if os.path.lexists(path) else paths.similar_path(path)
        if is_file(plan_path):
            remedy = f"Run the interrupted `remove`, or `verify` with {flag_text('repair')}, again to finish it."
        raise InvalidRequest(path, os_error_text(error), expected=EXPECTED_DATASET, remedy=remedy) from None
    names, is_own = parse_listed_shards(data, path)
    folder = folder_of(path)
    if not is_url(path):
        check_folders_inside(path, {os.path.dirname(name) for name in names})
    return make_dataset([join(folder, name) for name in names], path, folder, has_own_file=is_own, is_whole=True)


def check_folders_inside(path: str, folders: set[str]) -> None:
    """Raise an error if a subfolder is a link out of the dataset file's folder."""
    folder = os.path.dirname(path)
    root = os.path.join(os.path.realpath(folder or "."), "")
    for subfolder in sorted(folders - {""}):
        if not os.path.join(os.path.realpath(os.path.join(folder, subfolder)), "").startswith(root):
            found = f"the folder {printable(subfolder)} is a link out of {printable(folder or '.')}"
            expected = "shards in the dataset file's folder, or below it"
            raise CorruptShard(path, found, expected=expected, remedy="Nothing was read from there.")


def is_dataset_file(path: str, *, listed: bool = False) -> bool:
    """Return whether a file is a dataset file, even a damaged one.

    If `listed`, the file is known to exist, so denied access raises `AccessRefused`.
    """
    return _read_dataset_file(path, listed=listed) is not None


def names_listed_by(path: str) -> set[str]:
    """Return the shard names in a dataset file, even a damaged one, or an empty set for other files."""
    return {*(parse_shard_names(_read_dataset_file(path) or b"") or ())}


def _read_dataset_file(path: str, *, listed: bool = False) -> bytes | None:
    try:
        data = files.read_small(path) if is_url(path) or os.path.isfile(path) else b""
    except (OSError, AccessRefused) as error:  # a store may also deny access if the object does not exist
        if listed and isinstance(error, AccessRefused):
            raise
        return None
    return data if is_dataset_content(data) else None


def default_dataset_names(shards: list[str]) -> Iterator[str]:
    """Yield the default names for the dataset file of these shards."""
    with suppress(InvalidRequest):
        yield parse_pattern(shards).dataset_file
    if len(shards) == 1 and (match := _NUMBERED_NAME.fullmatch(shards[0])):
        with suppress(InvalidRequest):
            yield parse_pattern(f"{match[1]}{{{match[2]}..}}{match[3]}").dataset_file


def find_damaged_file(dataset: StoredDataset) -> str | None:
    """Return the path of a file that may be the damaged dataset file of `dataset`, or None."""
    if dataset.dataset_file is not None:
        return None
    for name in default_dataset_names([base_name(path) for path in dataset.paths]):
        data = files.read_optional(path := join(dataset.folder, name))
        if data is not None and may_be_dataset_file(data):
            return path
    return None


def check_not_damaged(dataset: StoredDataset) -> None:
    """Raise an error if the file that `find_damaged_file` finds is damaged."""
    if (path := find_damaged_file(dataset)) is not None:
        parse_dataset(files.read_small(path), path)


def _choose_dataset_file(
    folder: str, existing: set[str], default_names: Iterable[str], select: Callable[[Iterable[str]], list[str]]
) -> tuple[str | None, list[str], str]:
    """Return the path, selected shards and pattern of a dataset file.

    Prefer a file that lists all existing shards. Otherwise, use a file with a default name, if it lists some of these
    shards or contains no readable shard names.
    """
    default_names, candidates = [*default_names], list[tuple[str, list[str], str]]()
    other_names = [] if is_url(folder) else list_folder_names(folder)
    for name in dict.fromkeys((*default_names, *(name for name in other_names if name.endswith(DATASET_SUFFIX)))):
        path = join(folder, name)
        try:
            data = _read_dataset_file(path, listed=True)
        except AccessRefused:
            if name in list_folder_names(folder):
                raise
            continue
        if data is None:
            continue
        listed, listed_pattern = parse_local_shards(data)
        selected = select(listed)
        candidate = path, selected, listed_pattern
        if selected and existing.issubset(listed):
            return candidate
        if name in default_names and (existing.intersection(listed) or not listed):
            candidates.append(candidate)
    return candidates[0] if candidates else (None, [], "")
