"""Where a report goes: one file, written beside its final name and then renamed, never over a dataset's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.storage.staging import Folder, check_target, write_whole
from shardtool.wording import flag

if TYPE_CHECKING:
    from shardtool.dataset.opened import OpenedDataset


_FORMS = {
    ".csv": (b'"__key__","__shard__"', b""),
    ".parquet": (b"PAR1", b"__shard__"),
    ".png": (b"\x89PNG\r\n\x1a\n", b""),
    ".html": (b"<!DOCTYPE html>", b'<meta http-equiv="Content-Security-Policy"'),
}


def check_report(dataset: OpenedDataset, path: str, *, overwrite: bool, ending: str) -> None:
    """Refuse a path to which no report may be written.

    Args:
        dataset: What it is of.
        path: Where it will be.
        overwrite: Whether it may take the place of another report of its kind.
        ending: `.html`, `.png`, `.csv` or `.parquet`: what it is.

    Raises:
        InvalidRequest: It is a URL, or one of the dataset's own files.
        OutputExists: There is something already that is not to be replaced.
    """
    if "://" in path or not os.path.basename(path):
        raise InvalidRequest(path or "the report", "no name of a local file", expected="one such as report.html")
    own = [dataset.found.dataset_file, *(name for shard in dataset.shards for name in (shard.path, shard.sidecar))]
    if os.path.realpath(path) in {os.path.realpath(name) for name in own if name}:
        raise InvalidRequest(path, "a file of the dataset itself", remedy="Choose another name.")
    begins, holds = _FORMS[ending]
    check_target(path, overwrite=overwrite, begins=begins, holds=holds, cure=flag("overwrite"))


def write_target(path: str, data: bytes) -> None:
    """Make a file appear at `path`, whole.

    Raises:
        OutputFailed: It cannot be written.
    """
    folder = Folder(os.path.dirname(path))
    folder.ready()
    folder.publish(write_whole(folder, os.path.basename(path), data))
