"""Name shards after the source if the output is a folder: `create ./imgs out/` writes `out/imgs-{000000..}.tar`."""

from __future__ import annotations

import os
import re
from glob import escape as glob_escape
from glob import glob
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.names import list_names
from shardtool.pattern import DATASET_SUFFIX, OUTPUT_EXAMPLE, parse_pattern
from shardtool.request.create_options import ReshardOptions
from shardtool.storage.remote.address import is_url

if TYPE_CHECKING:
    from shardtool.request.create_options import CreateOptions
    from shardtool.request.observer import Notes

_DEFAULT_NAME = "data"  # for sources without a name, such as a DataFrame
_ENDINGS = re.compile(
    r"(\.(csv|tsv|txt|jsonl?|ndjson|parquet|feather|arrow|zip|tar|tgz|gz|bz2|xz|zst))+$", re.IGNORECASE
)
_UNSAFE_CHARACTERS = re.compile(r"[^\w.-]+")
_RANGE_OR_GLOB = re.compile(r"[{}<>*?\[]|%\d*d")


def name_shards(
    output: object, source: object, options: CreateOptions | ReshardOptions, notes: Notes
) -> tuple[str, ...]:
    """Return the output's names; a folder becomes a pattern in this folder, and a note shows it.

    Raises:
        InvalidRequest: No output, or a name without an extension that is not a folder.
    """
    names = (*list_names("the output", output, OUTPUT_EXAMPLE),)
    if len(names) != 1 or not _is_folder(names[0]):
        if names and "." not in names[0].rpartition("/")[2] and not _RANGE_OR_GLOB.search(names[0]):
            expected = f"{OUTPUT_EXAMPLE}; or {names[0]}/, a folder"
            raise InvalidRequest(names[0], "no file extension", expected=expected)
        return names
    split = "" if options.make_split_options() is None else "-{split}"
    path = os.path.join(names[0], f"{_make_name(source, options)}{split}-{{000000..}}.tar")
    notes.add(f"shards are named {path}")
    return (path,)


def _is_folder(name: str) -> bool:
    return name.endswith("/") or (not is_url(name) and os.path.isdir(name))


def _make_name(source: object, options: CreateOptions | ReshardOptions) -> str:
    sources = [*source] if isinstance(source, list | tuple) else [source]
    paths = [os.fspath(path) for path in sources if isinstance(path, str | os.PathLike)]
    if not paths or paths == ["-"] or not all(isinstance(path, str) for path in paths):
        return _DEFAULT_NAME
    path = paths[0].partition("?")[0] if is_url(paths[0]) else os.path.abspath(paths[0])
    name = path.rstrip("/").rpartition("/")[2]
    if len(paths) > 1:
        name = os.path.commonpath([*map(os.path.abspath, paths)]).rpartition("/")[2]
    elif _RANGE_OR_GLOB.search(name):
        try:
            name = parse_pattern(path).base
        except InvalidRequest:  # a glob
            name = path.split("/")[-2]
    elif not os.path.isdir(path):
        name = _ENDINGS.sub("", name)
    elif isinstance(options, ReshardOptions):
        files = glob(os.path.join(glob_escape(path), f"*{DATASET_SUFFIX}"))
        name = os.path.basename(files[0]).removesuffix(DATASET_SUFFIX) if len(files) == 1 else name
    return _UNSAFE_CHARACTERS.sub("-", name).strip("-_. ") or _DEFAULT_NAME
