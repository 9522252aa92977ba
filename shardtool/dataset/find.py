"""Find the shards of one dataset: by dataset file, shard pattern, glob, folder, or list of shards.

Locations are paths or addresses. The web cannot be listed, so a range there needs its end. No name and no dataset
file can make us read outside the folder that the user named.

A range or glob matches existing shards, and shards that a dataset file next to them lists. A lost shard is
therefore
reported as missing, as if the dataset file had been given.
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
from shardtool import shard_names as shard_names_module
from shardtool.dataset.dataset_file import (
    may_be_own,
    parse_dataset,
    parse_listed_shards,
    parse_local_shards,
    parse_shard_names,
)
from shardtool.dataset.shard_file import FETCH_ADVICE, kind_of_content
from shardtool.dataset.stored import StoredDataset, make_dataset, recorded_dots, sidecar_path
from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, format_list, os_error_text, printable
from shardtool.messages import choose_text
from shardtool.names import list_names
from shardtool.pattern import DATASET_SUFFIX, ShardPattern, parse_pattern
from shardtool.shard_names import is_shard_name, parse_shard_name
from shardtool.storage import files, lookup, paths
from shardtool.storage.lookup import is_file, is_folder, list_folder_names
from shardtool.storage.paths import base_name, folder_of, join
from shardtool.storage.remote import address
from shardtool.storage.remote.address import is_url, is_web

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardtool.values import DatasetLike, Dots


_DIGITS = re.compile(r"(\d+)", re.ASCII)  # other digits, such as superscripts, are letters to `int`


_MAX_LISTED_MISSING = 1000  # names


_MAX_PROBED_FILES = 8  # files of a series: some may be empty


_RANGE_MARKS = "{<%"  # of a range in a pattern


_GLOB_MARKS = "*?["


_PRINTF_RANGE = re.compile(r"%\d*d", re.ASCII)


_NUMBERED_NAME = re.compile(r"(.*?)([0-9]+)(\.[^0-9{<%]+)", re.DOTALL)  # a shard: what is before its number, and behind


EXPECTED_DATASET = "a dataset file, a shard pattern, a glob, a folder, or shards"


_EXPECTED_WEB = "a dataset file (NAME.json), a shard, or a pattern with its end, such as out-{000000..000041}.tar"


def open_dataset(given: DatasetLike, *, dots: Dots | None = None) -> StoredDataset:
    """Return a dataset with what its dataset file says, given as that, a pattern, a glob, a folder, or shards.

    Args:
        given: Where it is.
        dots: Where keys end in members' names, if no dataset file says so; None: as sidecars show, which reads them.

    Raises:
        InvalidRequest: There is none.
        CorruptShard: Its dataset file is damaged.
    """
    found = find_dataset(given).read()
    return found if found.file is not None else found.with_dots(dots or recorded_dots(found))


def find_dataset(given: DatasetLike, *, lacking: bool = False) -> StoredDataset:
    """Return the shards that `given` means.

    Args:
        given: What the user named.
        lacking: Whether shards of a range may lack that no dataset file lists; `missing` then names them.

    Raises:
        InvalidRequest: There are none, or not all that a range names; or several datasets are in a folder.
        CorruptShard: A dataset file names what is no shard beside it.
    """
    names = list_names("the dataset", given, EXPECTED_DATASET)
    found = _find_shards(names)
    if found.missing and not lacking:
        what = f"no {format_list([*map(printable, found.missing)], 3)}"
        remedy = "Name those that are there: by a range of them, a glob, or the dataset file."
        raise InvalidRequest(names[0], what, expected="all shards of the range", remedy=remedy)
    return replace(found, given=given)


def _find_shards(names: list[str]) -> StoredDataset:
    if not names:
        raise InvalidRequest("the dataset", "nothing given", expected=EXPECTED_DATASET)
    if len(names) > 1:
        return _from_names(names)
    name = names[0]
    if name.startswith("pipe:") or name == "-":
        remedy = "Its bytes go into a file first; the command line does that for create, reshard, inspect and verify."
        raise InvalidRequest(
            name, "a command" if name != "-" else "standard input", expected=EXPECTED_DATASET, remedy=remedy
        )
    if is_url(name):
        return _from_address(name)
    if not os.path.lexists(name):
        address.refuse_near_url(name)
    if os.path.isdir(name):
        return _from_folder(name)
    if name.endswith(DATASET_SUFFIX):
        return _from_dataset_file(name)
    if os.path.lexists(name) or any(mark in name for mark in _GLOB_MARKS):
        return _from_names([name]) if os.path.lexists(name) else _from_names(expand_glob(name) or [name], name)
    return _from_pattern(name)


def expand_glob(name: str) -> list[str]:
    """Return what a glob means, in order; in a store, only its last part may be one."""
    if not is_url(name):
        return sorted(glob.glob(name), key=natural_key)
    folder, last = folder_of(name), base_name(name)
    if is_web(name) or any(mark in folder for mark in _GLOB_MARKS):
        found = "a glob on the web, where nothing is listed" if is_web(name) else "a glob in a folder's name"
        raise InvalidRequest(name, found, expected=_EXPECTED_WEB if is_web(name) else "one in the name of the shards")
    names = [one for one in lookup.list_folder(folder) if fnmatchcase(one, last)]
    return [join(folder, one) for one in sorted(names, key=natural_key)]


def _from_address(name: str) -> StoredDataset:
    """Return the shards that an address means."""
    last = base_name(name)
    if last.endswith(DATASET_SUFFIX):
        return _from_dataset_file(name)
    if any(mark in last for mark in "{<") or (not is_web(name) and _PRINTF_RANGE.search(last)):
        return _from_pattern(name)
    named = is_shard_name(last)
    if named and is_file(name):
        return _from_names([name])
    if not is_web(name) and is_folder(name):
        return _from_folder(name)
    if any(mark in last for mark in _GLOB_MARKS) and (found := expand_glob(name)):
        return _from_names(found, name)
    if not named and is_file(name) and kind_of_content(name):
        return _from_names([name])
    if not is_web(name):
        raise InvalidRequest(name, "no such object, and none below it", expected=EXPECTED_DATASET)
    what = "no such file" if named else "no shard, and nothing is listed on the web"
    raise InvalidRequest(name, what, expected=_EXPECTED_WEB)


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts `s-9` before `s-10`."""
    return [(int(part), "") if at % 2 else (-1, part) for at, part in enumerate(_DIGITS.split(name))]


def _from_names(names: list[str], text: str = "") -> StoredDataset:
    """Return the shards of these names; of a glob, which is `text`, also those that a dataset file lists."""
    sidecars = {sidecar_path(name, None) for name in names}
    names = [name for name in names if name not in sidecars] or names  # a glob finds them beside `train-00000-of-01024`
    sizes = [*lookup.plain_sizes(names)]
    for name in names:
        _check_fetched(name)
    if len(names) == 1 and names[0].endswith(DATASET_SUFFIX) and sizes[0] is not None:
        return _from_dataset_file(names[0])
    folder, last = folder_of(names[0]), base_name(text)
    plain = dict.fromkeys(map(base_name, names))
    file, listed = None, list[str]()
    if all(folder_of(name) == folder for name in names):
        there = {base_name(name) for name, size in zip(names, sizes, strict=True) if size is not None}
        file, listed, _ = _find_dataset_file(
            folder, there, default_dataset_names([*plain]),
            lambda names: [name for name in names if name in plain or (text and fnmatchcase(name, last))],
        )  # fmt: skip
    for name, size in zip(names, sizes, strict=True):
        if size is None and base_name(name) not in listed:
            raise InvalidRequest(name, "no such file", expected=EXPECTED_DATASET, remedy=paths.similar_path(name))
    if lost := [join(folder, name) for name in listed if text and name not in plain]:
        names = sorted([*names, *lost], key=natural_key)
    return make_dataset(names, file, folder, own=file is not None)


def _check_fetched(path: str) -> None:
    """Refuse a link to nothing: what it leads to lies elsewhere, and was not fetched."""
    if not is_url(path) and (target := lookup.dangling_target(path)) is not None:
        raise InvalidRequest(
            path, f"a link to nothing, {printable(target)}", expected=EXPECTED_DATASET, remedy=FETCH_ADVICE
        )


def _from_folder(folder: str) -> StoredDataset:
    try:
        files, shards = list_shard_folder(folder)
    except OSError as error:
        raise InvalidRequest(folder, os_error_text(error), expected=EXPECTED_DATASET) from None
    if len(files) > 1:
        found = f"{len(files)} datasets: {format_list(files)}"
        raise InvalidRequest(folder, found, expected="one", remedy="Give the dataset file.")
    if files:
        return _from_dataset_file(join(folder, files[0]))
    if not shards:
        makes = choose_text("`create` makes shards of other files.", "`shardtool create` makes shards of other files.")
        raise InvalidRequest(
            folder, "no shards in it", expected=f"files that end in {shard_names_module.READABLE_ENDINGS}", remedy=makes
        )
    return make_dataset(shards, None, folder.rstrip("/") or "/", own=False)


def list_shard_folder(folder: str) -> tuple[list[str], list[str]]:
    """Return the names of the dataset files in a folder, and the paths of those files that are shards.

    Not all that is numbered as TensorFlow does (`train-00000-of-01024`) is a shard, for checkpoints are, too: the first
    files of a series tell by their bytes.

    Raises:
        OSError: It cannot be listed.
        AccessRefused: A store lets us list it, and not read.
    """
    names = sorted(lookup.list_folder(folder), key=natural_key)
    named = [name for name in names if name.endswith(DATASET_SUFFIX)]
    files = [name for name in named if is_dataset_file(join(folder, name), listed=True)]
    names = [name for name in names if not name.startswith(".")]
    series: dict[tuple[str, int], list[str]] = {}
    for name in names:
        if parse_shard_name(name) is None and (whole := shard_names_module.parse_numbered_name(name)):
            series.setdefault((whole[0], whole[3]), []).append(name)
    sound = (
        some for some in series.values() if any(_can_be_shard(join(folder, one)) for one in some[:_MAX_PROBED_FILES])
    )
    numbered = {name for some in sound for name in some}
    return files, [join(folder, name) for name in names if parse_shard_name(name) or name in numbered]


def _can_be_shard(path: str) -> bool:
    """Tell whether a file's first bytes are those of a shard, or cannot be read, which is to be said."""
    try:
        return kind_of_content(path) is not None
    except CorruptShard:
        return True


def _from_pattern(text: str) -> StoredDataset:
    folder = folder_of(text)
    try:
        pattern = replace(parse_pattern(base_name(text)), folder=folder) if is_web(text) else parse_pattern(text)
    except InvalidRequest as error:
        if not any(mark in text for mark in _RANGE_MARKS):
            what = "no such file" if is_shard_name(base_name(text)) else "no such file or folder"
            raise InvalidRequest(text, what, expected=EXPECTED_DATASET, remedy=paths.similar_path(text)) from None
        raise error from None
    meant, there = partial(_matching_names, pattern), _existing_names(pattern)
    if there is None:
        _check_range(pattern)
    seen = meant(there or [])
    file, listed, recorded = _find_dataset_file(pattern.folder, {*seen}, [pattern.dataset_file], meant)
    if there is None and not listed:  # one that is missing is missed when it is read
        first, count = join(pattern.folder, pattern.shard(0)), pattern.count or 0
        seen = [pattern.shard(at) for at in range(count)] if is_file(first) else []
    elif not seen and not any(mark in text for mark in _RANGE_MARKS):
        listed = []
    found = meant([*seen, *listed])
    if not found:
        what = "no shards of that pattern" if any(mark in text for mark in _RANGE_MARKS) else "no such file"
        remedy = "" if any(mark in text for mark in _RANGE_MARKS) else paths.similar_path(text)
        raise InvalidRequest(text, what, expected=EXPECTED_DATASET, remedy=remedy)
    whole = recorded == pattern.text
    known = set(found)
    names = () if whole or pattern.count is None else (pattern.shard(at) for at in range(pattern.count))
    missing = tuple(islice((name for name in names if name not in known), _MAX_LISTED_MISSING))
    shards = [join(pattern.folder, name) for name in found]
    return make_dataset(shards, file, pattern.folder, own=file is not None, whole=whole, missing=missing)


def _existing_names(pattern: ShardPattern) -> Iterable[str] | None:
    """Return the names in the folder of a pattern; of a list, those of its own that are there; None: not listed."""
    if pattern.names is None:
        try:
            return None if is_web(pattern.folder) else list_folder_names(pattern.folder, needed=True)
        except AccessRefused:
            if pattern.count is None:
                raise
            return None
    sizes = lookup.plain_sizes([join(pattern.folder, name) for name in pattern.names])
    return [name for name, size in zip(pattern.names, sizes, strict=True) if size is not None]


def _matching_names(pattern: ShardPattern, names: Iterable[str]) -> list[str]:
    """Return those of some names that a pattern makes, each once, in its order."""
    if pattern.names is not None:
        known = {*names}
        return [name for name in pattern.names if name in known]
    numbers = {}
    for name in names:
        digits = name[len(pattern.prefix) : len(name) - len(pattern.suffix)]
        if name.startswith(pattern.prefix) and name.endswith(pattern.suffix) and digits.isascii() and digits.isdigit():
            at = int(digits) - pattern.first
            if at >= 0 and (pattern.count is None or at < pattern.count) and pattern.shard(at) == name:
                numbers[at] = name
    return [numbers[at] for at in sorted(numbers)]


def _check_range(pattern: ShardPattern) -> None:
    """Refuse a range that does not tell all of its names, or too many, where none can be listed."""
    where = join(pattern.folder, pattern.text)
    if pattern.count is None:
        found = "a range without an end on the web, where nothing is listed"
        raise InvalidRequest(where, found, expected=_EXPECTED_WEB)
    if pattern.count > patterns.MAX_EXPANDED_NAMES:
        raise InvalidRequest(where, f"{pattern.count:,} names", expected=f"at most {patterns.MAX_EXPANDED_NAMES:,}")


def _from_dataset_file(path: str) -> StoredDataset:
    _check_fetched(path)
    try:
        data = files.read_small(path)
    except OSError as error:
        begun = path.removesuffix(DATASET_SUFFIX)
        begun = join(folder_of(begun), patterns.replacement_plan_name(base_name(begun)))
        remedy = "`shardtool remove`, as it was run before, ends what it began." if is_file(begun) else ""
        remedy = remedy or ("" if os.path.lexists(path) else paths.similar_path(path))
        raise InvalidRequest(path, os_error_text(error), expected=EXPECTED_DATASET, remedy=remedy) from None
    names, own = parse_listed_shards(data, path)
    folder = folder_of(path)
    if not is_url(path):  # no links in stores
        check_folders_inside(path, {os.path.dirname(name) for name in names})
    return make_dataset([join(folder, name) for name in names], path, folder, own=own, whole=True)


def check_folders_inside(path: str, folders: set[str]) -> None:
    """Check that none of the folders that a dataset file names is a link that leads out of its own folder.

    Raises:
        CorruptShard: One is.
    """
    folder = os.path.dirname(path)
    top = os.path.join(os.path.realpath(folder or "."), "")
    for below in sorted(folders - {""}):
        if not os.path.join(os.path.realpath(os.path.join(folder, below)), "").startswith(top):
            found = f"the folder {printable(below)} is a link out of {printable(folder or '.')}"
            expected = "shards in the dataset file's folder, or below it"
            raise CorruptShard(path, found, expected=expected, remedy="Nothing was read from there.")


def is_dataset_file(path: str, *, listed: bool = False) -> bool:
    """Tell whether a file is a dataset file of ours, damaged or not; one that was `listed` must be readable.

    Raises:
        AccessRefused: That one is not.
    """
    return _read_dataset_file(path, listed=listed) is not None


def names_listed_by(path: str) -> set[str]:
    """Return the shards that a dataset file of ours lists, as far as it can be read; none where it is no such file."""
    return {*(parse_shard_names(_read_dataset_file(path) or b"") or ())}


def _read_dataset_file(path: str, *, listed: bool = False) -> bytes | None:
    """Return the bytes of a dataset file of ours, damaged or not; None: there is none."""
    try:
        data = files.read_small(path) if is_url(path) or os.path.isfile(path) else b""
    except (OSError, AccessRefused) as error:  # the latter is said of what is not there, where we may not list
        if listed and isinstance(error, AccessRefused):
            raise
        return None
    return data if parse_shard_names(data) is not None else None


def default_dataset_names(shards: list[str]) -> Iterator[str]:
    """Yield the names that the dataset file of these shards has by default; one alone may be any of a range."""
    with suppress(InvalidRequest):  # names that are no pattern's
        yield parse_pattern(shards).dataset_file
    if len(shards) == 1 and (found := _NUMBERED_NAME.fullmatch(shards[0])):
        with suppress(InvalidRequest):
            yield parse_pattern(f"{found[1]}{{{found[2]}..}}{found[3]}").dataset_file


def damaged_file(found: StoredDataset) -> str | None:
    """Return the path of the dataset file of these shards if the file is damaged; None: there is no such file."""
    if found.dataset_file is not None:
        return None
    for name in default_dataset_names([base_name(path) for path in found.paths]):
        data = files.read_optional(path := join(found.folder, name))
        if data is not None and may_be_own(data):
            return path
    return None


def check_not_damaged(found: StoredDataset) -> None:
    """Refuse shards whose dataset file is damaged, for a verb that needs the file.

    Raises:
        CorruptShard: It is.
    """
    if (path := damaged_file(found)) is not None:
        parse_dataset(files.read_small(path), path)


def _find_dataset_file(
    folder: str, there: set[str], usual: Iterable[str], meant: Callable[[Iterable[str]], list[str]]
) -> tuple[str | None, list[str], str]:
    """Return the dataset file that lists all shards that are there, which of its shards are meant, and its pattern.

    Else the one of the usual name, where it lists some, or is damaged. Elsewhere that name alone is looked for: a
    folder there may be large, or not listed.

    Raises:
        AccessRefused: One that is there may not be read.
    """
    usual, some = [*usual], list[tuple[str, list[str], str]]()
    others = () if is_url(folder) else (name for name in list_folder_names(folder) if name.endswith(DATASET_SUFFIX))
    for name in dict.fromkeys((*usual, *others)):
        path = join(folder, name)
        try:
            data = _read_dataset_file(path, listed=True)
        except AccessRefused:
            if name in list_folder_names(folder):
                raise
            continue  # it is said of what is not there, too, where we may not list
        if data is None:
            continue
        listed, recorded = parse_local_shards(data)
        found = path, meant(listed), recorded
        if found[1] and there.issubset(listed):
            return found
        if name in usual and (there.intersection(listed) or not listed):
            some.append(found)
    return some[0] if some else (None, [], "")
