"""Which shards `index` is about, and where their sidecars and dataset file go: decided before a shard is read."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import DatasetFile, read_dataset, shard_names
from shardtool.dataset.find import check_finished, find_dataset, recorded_dots
from shardtool.dataset.shard_file import FETCH, is_packed, shard_format
from shardtool.errors import (
    CorruptShard,
    InvalidRequest,
    OutputExists,
    ShardError,
    StoreFailed,
    listing,
    printable,
    reason,
)
from shardtool.pattern import DATASET_SUFFIX, KNOWN, is_shard_name, parse_pattern, sidecar_name
from shardtool.storage.folders import open_folder
from shardtool.storage.places import base_name, folder_of, is_url, join, names_in, plain_sizes, read_small
from shardtool.storage.reading import dangling
from shardtool.values import counted, output_text, to_bytes
from shardtool.wording import either, flag, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.dataset.find import DatasetFiles
    from shardtool.pattern import ShardPattern
    from shardtool.request.options import IndexOptions
    from shardtool.storage.folders import OutputFolder
    from shardtool.values import Dots, Given

_ONLY_A_PLAN = "how the dataset was made, what was left out and the names of classes"


@dataclass(frozen=True, slots=True)
class IndexTarget:
    """Shards to index.

    Attributes:
        paths: Their paths.
        names: Their names.
        pattern: Their pattern.
        size: Their bytes.
        format: Their format, `tar` or `tfrecord`.
        folder: The folder of the sidecars and the dataset file.
        shards_folder: The way from there down to the shards; empty: the same folder.
        dataset_file: The name of the dataset file.
        old: What a dataset file said of them so far; None where there is none, or it may be replaced.
        own: Whether that is the dataset file at this very place.
        recorded: Where keys end in members' names, as the sidecars beside the shards show.
    """

    paths: tuple[str, ...]
    names: list[str]
    pattern: ShardPattern
    size: int
    format: str
    folder: OutputFolder
    shards_folder: str
    dataset_file: str
    old: DatasetFile | None
    own: bool
    recorded: Dots = "first"

    @property
    def base(self) -> str:
        """The name of the dataset file without its ending."""
        return self.dataset_file.removesuffix(DATASET_SUFFIX)

    def dots(self, asked: Dots | None) -> Dots:
        """Return where keys end in members' names: what was asked for, or what the dataset file says."""
        return asked or (self.old.made.dots if self.old else self.recorded)


def index_target(dataset: Given, options: IndexOptions) -> IndexTarget:
    """Return the shards that are to be indexed.

    Raises:
        InvalidRequest: There are no such shards, they are compressed, lie where no dataset file can list them, or are
            not all that their run was to write.
        CorruptShard: A shard is not there, or no plain file.
        OutputExists: Other shards own these names, or there is a dataset file that may not be replaced.
    """
    found = _in_its_order(find_dataset(dataset))
    shard_kind = _format_of(found)
    size = sum(_sizes(found.shards))
    names = [base_name(path) for path in found.shards]
    if twice := [name for name, count in Counter(map(sidecar_name, names)).items() if count > 1]:
        raise InvalidRequest(found.folder or ".", f"shards that want the same sidecar: {listing(twice)}")
    pattern = parse_pattern(names)
    folder = open_folder(found.folder if options.output is None else os.fspath(options.output))
    shards_folder = _below(folder.path, found.folders())
    _check_rivals(folder, names, set() if shards_folder else {*names})
    name = base_name(found.dataset_file) if found.dataset_file else pattern.dataset_file
    path = folder.full_path(name)
    data = read_there(path)
    if data is None:
        old = _dataset_at(path if found.dataset_file is None else found.dataset_file)  # where `output` is elsewhere
        if old is None:
            check_finished(found.folder, found.shards)
    else:
        old = _old(found, path, data, overwrite=options.overwrite)
        if old is not None:
            _check_listed(old, found, path, shards_folder, overwrite=options.overwrite)
    own = data is not None and old is not None
    recorded: Dots = recorded_dots(found) if old is None else old.made.dots
    return IndexTarget(found.shards, names, pattern, size, shard_kind, folder, shards_folder, name, old, own, recorded)


def _in_its_order(found: DatasetFiles) -> DatasetFiles:
    """Return the shards of a dataset in the order in which its file lists them, however they were named."""
    listed = shard_names(read_small(found.dataset_file)) if found.own and found.dataset_file else None
    paths = {output_text(base_name(path)): path for path in found.shards}
    is_all = listed is not None and {*listed} == {*paths}
    return replace(found, shards=tuple(paths[one] for one in listed or ())) if is_all else found


def read_there(path: str) -> bytes | None:
    """Return a small file that may have to be replaced; None where there is none.

    Raises:
        OutputExists: It cannot be read, so that it cannot be known whether it is right.
    """
    try:
        return read_small(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and (is_url(path) or not os.path.islink(path)):
            return None
        found = f"cannot be read: {reason(error)}"
        remedy = "Make it readable, or move it away."
        raise OutputExists(path, found, expected="a file, or none", remedy=remedy) from None


def _format_of(found: DatasetFiles) -> str:
    """Return the format of the shards.

    Raises:
        InvalidRequest: There are none, they are compressed, or of two formats.
    """
    if packed := [path for path in found.shards if is_packed(path)]:
        remedy = "Decompress it: nothing can be read at an offset of a compressed file."
        raise InvalidRequest(packed[0], "a compressed shard", expected="a plain one", remedy=remedy)
    where = found.dataset_file or found.folder or "."
    if not found.shards:
        raise InvalidRequest(where, "no shards", expected="one at least")
    if blobs := [path for path in found.shards if not is_shard_name(base_name(path))]:
        raise InvalidRequest(
            blobs[0], "a name that does not tell what it is", expected=f"one that ends in one of {KNOWN}",
            remedy="Make a link to it that has such a name, and index that.",
        )  # fmt: skip
    formats = sorted({shard_format(path) for path in found.shards})
    if len(formats) > 1:
        raise InvalidRequest(
            where,
            "tar and TFRecord shards",
            expected="one format",
            remedy="Index each alone.",
        )
    return formats[0]


def _sizes(paths: Sequence[str]) -> list[int]:
    """Return the bytes of shards.

    Raises:
        CorruptShard: One is not there, or no plain file.
    """
    sizes = plain_sizes(paths)
    for path, size in zip(paths, sizes, strict=True):
        if size is None:
            raise _missing(path)
    return [size for size in sizes if size is not None]


def _missing(path: str) -> CorruptShard:
    """Return what is wrong with a shard that is no plain file."""
    remedy = f"Get it again, or run the command that made it again with {option('if_exists', 'resume')}."
    if is_url(path):
        return CorruptShard(path, "no such object", expected="a shard", remedy=remedy)
    if (target := dangling(path)) is not None:
        return CorruptShard(path, f"a link to nothing, {printable(target)}", expected="a shard", remedy=FETCH)
    found = "no plain file" if os.path.lexists(path) else "no such file or directory"
    return CorruptShard(path, found, expected="a shard", remedy=remedy)


def _below(folder: str, shards: list[str]) -> str:
    """Return the way from the dataset file's folder down to that of the shards; empty: it is the same.

    Raises:
        InvalidRequest: The shards lie in several folders, or not below: a dataset file leads nowhere else.
    """
    if len(shards) > 1:
        found = f"shards in {len(shards)} folders: {listing(shards, 3)}"
        raise InvalidRequest(shards[0] or ".", found, expected="one folder", remedy="Index each alone.")
    path = _way(folder, shards[0])
    if path == os.curdir:
        return ""
    if path.split(os.sep)[0] == os.pardir:
        alone = either("`export`", "--export alone")
        problem = f"{folder or '.'}, which does not hold the shards"
        remedy = f"A dataset file leads to no other place. {alone}, with a dataset file, writes anywhere."
        raise InvalidRequest(option("output"), problem, expected="their folder, or one above it", remedy=remedy)
    name = output_text(path)
    if printable(name) != name or ":" in name:
        raise InvalidRequest(path, "a folder that a dataset file cannot name", expected="a name that can be printed")
    return name


def _way(folder: str, below: str) -> str:
    """Return the way from one folder down to another; it starts with `..` where that lies elsewhere."""
    if not is_url(folder) and not is_url(below):
        return os.path.relpath(os.path.realpath(below or "."), os.path.realpath(folder or "."))
    top, place = f"{folder.rstrip('/')}/", f"{below.rstrip('/')}/"
    return (place[len(top) : -1] or os.curdir) if place.startswith(top) else os.pardir


def _check_rivals(folder: OutputFolder, names: list[str], own: set[str]) -> None:
    """Refuse a folder in which other shards have sidecars of these names."""
    sidecars = {*map(sidecar_name, names)}
    others = [name for name in folder.names() if is_shard_name(name) and sidecar_name(name) in sidecars]
    if rivals := sorted(name for name in others if name not in own):
        found = f"other shards whose sidecars have these names: {listing(rivals, 3)}"
        expected = "none that would share their indexes"
        raise OutputExists(folder.path or ".", found, expected=expected, remedy="Move one of the datasets away.")


def _old(found: DatasetFiles, path: str, data: bytes, *, overwrite: bool) -> DatasetFile | None:
    """Return what the dataset file at its place says; None where it may be replaced.

    Raises:
        OutputExists: It is damaged, or none of ours.
    """
    if shard_names(data) is None:
        if path != found.dataset_file:
            if _is_json(data):
                remedy = f"Move it away, or choose another {option('output')}."
                raise OutputExists(path, "a file that is no dataset file of shardtool", remedy=remedy)
            check_finished(found.folder, found.shards)
            _check_replaced(path, "no JSON: cut or damaged", _ONLY_A_PLAN, overwrite=overwrite)
            return None
        check_finished(found.folder, found.shards)
        _check_replaced(path, "an index of wids", "what only it says of the shards", overwrite=overwrite)
        return None
    try:
        return read_dataset(data, path)
    except CorruptShard as error:
        check_finished(found.folder, found.shards)
        _check_replaced(path, error.found, _ONLY_A_PLAN, overwrite=overwrite)
        return None


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _check_listed(old: DatasetFile, found: DatasetFiles, path: str, shards_folder: str, *, overwrite: bool) -> None:
    """Refuse a dataset file that lists other shards than were given, unless it does so wrongly and may be replaced."""
    listed, given = {one.name for one in old.shards}, {output_text(base_name(path)) for path in found.shards}
    others = sorted(listed - given)
    folder = join(folder_of(path), os.fsdecode(to_bytes(old.shards_folder)))
    lies = set(names_in(folder)) if others else set()
    if there := [name for name in others if os.fsdecode(to_bytes(name)) in lies]:
        what = f"it lists {counted(len(there), 'shard')} that are there and were not given: {listing(there, 3)}"
        raise OutputExists(path, what, remedy=f"Give all shards of the dataset, or choose another {option('output')}.")
    if given - listed:  # an append that did not end has left them, or one that the dataset file knows nothing of
        check_finished(found.folder, found.shards)
    if listed != given or old.shards_folder != shards_folder:
        gone = f", {counted(len(others), 'shard')} of them not there: {listing(others, 3)}" if others else ""
        what = f"it lists {counted(len(listed), 'shard')}{gone}; {len(given):,} were given"
        _check_replaced(path, what, _ONLY_A_PLAN, overwrite=overwrite)


def _check_replaced(path: str, found: str, lost: str, *, overwrite: bool) -> None:
    """Refuse to replace a dataset file that was read and found wrong, unless the user asked for that."""
    if not overwrite:
        expected = "the dataset file of these shards"
        raise OutputExists(
            path, found, expected=expected, remedy=f"{flag('overwrite')} replaces it; {lost} is lost then."
        )


def _dataset_at(path: str) -> DatasetFile | None:
    """Return what a dataset file of ours says; None where it is damaged, or none of ours."""
    try:
        return read_dataset(read_small(path), path)
    except StoreFailed:
        raise
    except (OSError, ShardError):
        return None
