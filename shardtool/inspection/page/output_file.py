"""Where a report goes: one file, written beside its final name and then renamed, never over a dataset's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, OutputExists
from shardtool.storage.staging import Folder, write_whole
from shardtool.wording import flag

if TYPE_CHECKING:
    from shardtool.dataset.opened import OpenedDataset


def check_target(dataset: OpenedDataset, path: str, *, overwrite: bool) -> None:
    """Refuse a path to which no report may be written.

    Raises:
        InvalidRequest: It is a URL, or one of the dataset's own files.
        OutputExists: There is something already, and `overwrite` is off.
    """
    if "://" in path or not os.path.basename(path):
        raise InvalidRequest(path or "the report", "no name of a local file", expected="one such as report.html")
    own = [dataset.found.dataset_file, *(name for shard in dataset.shards for name in (shard.path, shard.sidecar))]
    if os.path.realpath(path) in {os.path.realpath(name) for name in own if name}:
        raise InvalidRequest(path, "a file of the dataset itself", remedy="Choose another name.")
    if os.path.isdir(path):
        raise OutputExists(path, "a folder", remedy="Choose another name.")
    if os.path.lexists(path) and not overwrite:
        raise OutputExists(path, "there already", remedy=f"Choose another name, or {flag('overwrite')}.")


def write_target(path: str, data: bytes) -> None:
    """Make a file appear at `path`, whole.

    Raises:
        OutputFailed: It cannot be written.
    """
    folder = Folder(os.path.dirname(path))
    folder.ready()
    folder.publish(write_whole(folder, os.path.basename(path), data))
