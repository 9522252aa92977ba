"""`copy`: datasets, as they are, in another place. The library twin of `shardtool copy`."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING

from shardtool.dataset.several import given_datasets
from shardtool.errors import InvalidRequest, current_folder, listing, printable
from shardtool.pattern import DATASET_SUFFIX
from shardtool.request.observer import Notes, Observer
from shardtool.request.options import CopyOptions
from shardtool.request.python_types import given_options
from shardtool.request.results import CopyResult
from shardtool.shard_names import is_shard_name
from shardtool.storage.places import base_name, is_web, join, same_place
from shardtool.transfer.beside import copy_lists
from shardtool.transfer.origin import open_origin
from shardtool.transfer.run import copy_dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.transfer.origin import Origin
    from shardtool.values import Given

_EXPECTED = "a folder, or a prefix of a store: the files keep their names"


@current_folder()
def copy(
    dataset: Given, where: str | os.PathLike[str], options: CopyOptions | None = None, *,
    observer: Observer | None = None,
) -> CopyResult:  # fmt: skip
    """Copy datasets into a folder, each file checked on the way by the checksum that the dataset file has for it.

    Shards, sidecars, the list of what was left out, indexes of other tools that are right, and at last the dataset
    file; all keep their names. What is there with the right bytes is not copied again: so a run that was killed goes
    on, and of a dataset that was appended to only the new shards are copied.

    Args:
        dataset: A dataset with a dataset file, or several, as `verify` takes them.
        where: The folder; made where it is missing.
        options: See `CopyOptions`.
        observer: Gets progress, and notes for the user.

    Raises:
        InvalidRequest: There is no such dataset, or the request makes no sense.
        CorruptShard: A file is not what the dataset file says, or is missing; nothing of it is visible.
        OutputExists: Another dataset is there, or another run is writing it.
        OutputFailed: The copy cannot be written.
        StoreFailed: A store or a server fails time and again.
    """
    options, notes, begun = given_options(options, CopyOptions), Notes(observer or Observer()), time.monotonic()
    target = os.fspath(where)
    _check_target(target)
    origins = [open_origin(given) for given in given_datasets(dataset)]
    places = _places(origins, target)
    datasets = []
    for origin, place in zip(origins, places, strict=True):
        datasets.append(copy_dataset(origin, place, options, notes))
    if not options.dry_run:
        for place in dict.fromkeys(places):
            copy_lists([origin for origin, one in zip(origins, places, strict=True) if one == place], place)
    return CopyResult(tuple(datasets), tuple(notes.said), time.monotonic() - begun, options.dry_run)


def _check_target(where: str) -> None:
    """Refuse what is no folder, as far as its name shows."""
    name = base_name(where.rstrip("/"))
    if not where or is_web(where):
        raise InvalidRequest(where or "the destination", "nowhere that can be written to", expected=_EXPECTED)
    is_file = os.path.exists(where) and not os.path.isdir(where)
    is_named_so = is_shard_name(name) or name.endswith(DATASET_SUFFIX) or any(mark in name for mark in "{}<>*")
    if is_file or (is_named_so and not os.path.isdir(where)):
        raise InvalidRequest(where, "a file, or a pattern of files", expected=_EXPECTED)


def _places(origins: Sequence[Origin], where: str) -> list[str]:
    """Return the folder for each dataset: of datasets in several folders, one of the same name below.

    Raises:
        InvalidRequest: Two would have one place, or one would be copied onto itself.
    """
    folders = {origin.folder for origin in origins}
    places = [where if len(folders) == 1 else join(where, base_name(origin.folder)) for origin in origins]
    names = Counter(
        (place, name)
        for origin, place in zip(origins, places, strict=True)
        for name in (origin.name, *(pair.sidecar.name for pair in origin.pairs))
    )
    if twice := sorted({name for (_, name), count in names.items() if count > 1}):
        found = f"several datasets have files of one name: {listing([printable(name) for name in twice], 3)}"
        raise InvalidRequest(where, found, expected="one folder for each", remedy="Copy them one by one.")
    for origin, place in zip(origins, places, strict=True):
        if same_place(origin.folder, place):
            raise InvalidRequest(place, "the folder that the dataset lies in", expected="another one")
    return places
