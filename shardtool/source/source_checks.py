"""Raise errors for sources that cannot be packed as requested."""

from __future__ import annotations

import glob
import os
from collections import Counter
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING, Any

from shardtool.dataset.find import default_dataset_names, is_dataset_file, names_listed_by
from shardtool.dataset.stored import sidecar_path
from shardtool.errors import InvalidRequest, ShardError, format_list, printable
from shardtool.messages import choose_text, option_text
from shardtool.names import to_output_name
from shardtool.pattern import DATASET_SUFFIX, is_shard_name, parse_pattern, parse_shard_name, sidecar_name
from shardtool.source.scan_part import ScanRules
from shardtool.storage import paths
from shardtool.storage.files import is_file, iter_entries
from shardtool.storage.remote.address import is_url, is_web, parse_address, refuse_mistyped_address
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.entries.sample_table import SampleTable


EXPECTED_FOLDER = "a folder of samples"
_MAX_PROBED_SHARDS = 8


def shards_note(entries: SampleTable, *, named: bool) -> str:
    """Return a note if a folder contains shards, or "".

    Unless `--include` selected the shards (`named`), raise an error if a shard belongs to a dataset, or if all files
    are shards.
    """
    counts = entries.code_counts()
    codes = [code for code, field in enumerate(entries.fields) if counts[code] and is_shard_name(f"x.{field}")]
    if not codes:
        return ""
    total = sum(counts[code] for code in codes)
    rows = [row for code in codes for row in (entries.rows.code == code).nonzero()[0][:_MAX_PROBED_SHARDS].tolist()]
    first = printable(entries.path(rows[0]))
    only_shards = total == len(entries.rows.code)
    for path in () if named else (os.fsdecode(entries.file_path(row)) for row in rows):
        if only_shards or _is_dataset_shard(path):
            found = "a shard, like all files in this folder" if only_shards else "a shard of a dataset"
            exclude, include = option_text("exclude"), _include_advice("*")
            remedy = (
                f"{_reshard_advice()}. Exclude the shards with {exclude}, or pack the shards as files with {include}."
            )
            raise InvalidRequest(path, found, expected=EXPECTED_FOLDER, remedy=remedy)
    files = f"{pluralize(total, 'file')} that {'is a shard' if total == 1 else 'are shards'}"
    return f"{files}, such as {first}, packed like other files. {_reshard_advice()}."


def _is_dataset_shard(path: str) -> bool:
    folder, shard = paths.folder_of(path), paths.base_name(path)
    names = default_dataset_names([shard]) if is_shard_name(shard) else ()
    listed = any(to_output_name(shard) in names_listed_by(paths.join(folder, name)) for name in names)
    return listed or is_file(sidecar_path(path, None))


def _reshard_advice() -> str:
    return f"Pack the samples of shards with {choose_text('`reshard`', '`shardtool reshard`')}"


def _include_advice(name: str) -> str:
    return choose_text(f"include=({name!r},)", f"--include {quote(name)}")


_PIPE_COMMAND = "`shardtool create 'pipe:COMMAND' OUTPUT`"
_UNSUPPORTED_TABLES = (".xlsx", ".xls", ".ods", ".pkl", ".pickle", ".orc", ".sqlite", ".db")
FOLDER_OR_TABLE = "a folder of samples, or a table: CSV, TSV, JSON, Parquet or Feather"


def check_folder(source: str) -> None:
    """Raise an error if a source is neither a folder nor a URL of a store."""
    if is_url(source):
        _check_address(source)
        return
    if os.path.isdir(source):
        return
    if kind := _describe_shards(source):
        raise InvalidRequest(source, kind, expected=EXPECTED_FOLDER, remedy=f"{_reshard_advice()}.")
    if os.path.isfile(source):
        raise InvalidRequest(source, "not a table file", expected=FOLDER_OR_TABLE, remedy=_file_advice(source))
    if os.path.lexists(source):
        raise InvalidRequest(source, "not a folder", expected=EXPECTED_FOLDER)
    if any(mark in source for mark in "*?[") and glob.glob(source):
        raise InvalidRequest(source, "a glob", expected=EXPECTED_FOLDER, remedy=_glob_advice(source))
    refuse_mistyped_address(source)
    raise InvalidRequest(source, "no such file or folder", expected=FOLDER_OR_TABLE, remedy=paths.similar_path(source))


def _check_address(source: str) -> None:
    parse_address(source)
    if is_web(source):
        expected = f"{FOLDER_OR_TABLE}; or a folder of a store: s3://, gs:// or az://"
        raise InvalidRequest(source, "on the web, where no folder can be listed", expected=expected)
    if parse_shard_name(paths.base_name(source)):
        pipe = f"To pack a tar of files, read it from a command: {_PIPE_COMMAND}."
        raise InvalidRequest(source, "a shard", expected=EXPECTED_FOLDER, remedy=f"{_reshard_advice()}. {pipe}")
    if source.lower().endswith(".zip"):
        remedy = f"Copy it to this machine, or read it from a command: {_PIPE_COMMAND}."
        raise InvalidRequest(source, "an archive on another machine", expected=EXPECTED_FOLDER, remedy=remedy)


def check_archive(path: str) -> None:
    """Raise an error if an archive has a sidecar, and is therefore a shard."""
    folder, name = os.path.split(path)
    if parse_shard_name(name) and os.path.isfile(os.path.join(folder, sidecar_name(name))):
        raise InvalidRequest(path, "a shard", expected=EXPECTED_FOLDER, remedy=f"{_reshard_advice()}.")


def check_not_shards(sources: Sequence[Any]) -> None:
    """Raise an error if several sources are all shards, such as the matches of a glob."""
    names = [os.path.basename(path) for path in sources if isinstance(path, str | os.PathLike) and os.path.isfile(path)]
    if len(names) > 1 and len(names) == len(sources) and all(map(is_shard_name, names)):
        found = f"one of {len(names)} shards"
        raise InvalidRequest(os.fspath(sources[0]), found, expected=EXPECTED_FOLDER, remedy=f"{_reshard_advice()}.")


def _describe_shards(source: str) -> str:
    if source.endswith(DATASET_SUFFIX):
        return "a dataset file" if is_dataset_file(source) else ""
    if os.path.isfile(source):
        return "a shard" if parse_shard_name(os.path.basename(source)) else ""
    if any(mark in source for mark in "*?["):
        names = [*map(os.path.basename, glob.glob(source))]
        return "a glob of shards" if names and all(map(parse_shard_name, names)) else ""
    try:
        pattern = parse_pattern(source)
    except ShardError:
        return ""
    first = os.path.join(pattern.folder, pattern.shard(0))
    return "a shard pattern" if first != source and os.path.isfile(first) else ""


def _file_advice(source: str) -> str:
    if source.endswith(DATASET_SUFFIX):
        return "A JSON table is a list of objects (one per row), or a COCO file with images and annotations."
    if source.endswith(_UNSUPPORTED_TABLES):
        return "Save it as CSV or Parquet."
    if source.endswith(".txt"):
        command = f"`shardtool create - OUTPUT < {quote(source)}`"
        return f"Read a list of paths, one per line, from standard input: {command}."
    folder, name = os.path.split(source)
    return f"Pack its folder, {folder or '.'}, with {_include_advice(name)}."


def _glob_advice(source: str) -> str:
    folder, name = os.path.split(source)
    if any(mark in folder for mark in "*?[") or not os.path.isfile(glob.glob(source)[0]):
        return f"Pack the parent folder, with {option_text('include')} or {option_text('exclude')}."
    return f"Pack the folder, {folder or '.'}, with {_include_advice(name)}."


_MAX_FILES = 100_000
_SHOWN = 3


def refuse_globs(folder: str, include: Sequence[str], exclude: Sequence[str], *, hidden: bool) -> None:
    """Raise the error for globs that exclude all files of a local folder. Return if the folder is empty."""
    files = [*islice(_iter_files(folder, hidden=hidden), _MAX_FILES)] if os.path.isdir(folder) else []
    if not files:
        return
    prefix = "more than " if len(files) == _MAX_FILES else ""
    count = f"{prefix}{pluralize(len(files), 'file')} in {printable(folder)}"
    if not include or any(_accepts(name, include) for name in files):
        raise InvalidRequest(_option("exclude", exclude), f"excludes all of {count}", expected="some files to pack")
    suggestion = next(filter(None, (_similar_glob(text, files) for text in include)), "")
    remedy = f"Did you mean {option_text('include', choose_text(suggestion, quote(suggestion)))}?" if suggestion else ""
    endings = Counter(os.path.splitext(name)[1] or "none" for name in files).most_common(_SHOWN)
    shown = format_list([f"{printable(ending)} ({times:,})" for ending, times in endings])
    expected = f"a glob that matches some files; their extensions: {shown}"
    raise InvalidRequest(_option("include", include), f"matched 0 of {count}", expected=expected, remedy=remedy)


def _option(name: str, globs: Sequence[str]) -> str:
    return option_text(name, choose_text(globs[0], quote(globs[0]))) if len(globs) == 1 else option_text(name)


def _iter_files(folder: str, below: str = "", *, hidden: bool) -> Iterator[str]:
    for entry in iter_entries(os.path.join(folder, below)):
        if not hidden and entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _iter_files(folder, f"{below}{entry.name}/", hidden=hidden)
        else:
            yield f"{below}{entry.name}"


def _similar_glob(text: str, files: Sequence[str]) -> str:
    bare = text.removeprefix("./").rstrip("/")
    ending = f".{bare.lstrip('*.')}"
    in_use = {extension.lower(): extension for extension in (os.path.splitext(name)[1] for name in files) if extension}
    guesses = (f"*{in_use.get(ending.lower(), ending)}", f"{bare}/*")
    return next((glob for glob in guesses if any(_accepts(name, [glob]) for name in files)), "")


def _accepts(path: str, globs: Sequence[str]) -> bool:
    folder, name = os.path.split(path)
    return ScanRules(include=globs).includes_file(os.fsencode(f"{folder}/" if folder else ""), os.fsencode(name))
