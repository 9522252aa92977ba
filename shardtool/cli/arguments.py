"""Split arguments into inputs (sources or datasets) and the output, even if a shell has expanded a shard pattern.

The output of `pipe:COMMAND`, and a tar or zip on standard input, are stored in temporary files, because several
processes read them.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import IO, TYPE_CHECKING, cast

import click

from shardtool.errors import InvalidRequest, OutputFailed, os_error_text
from shardtool.pattern import DATASET_SUFFIX, is_shard_name
from shardtool.storage.remote.address import is_url

if TYPE_CHECKING:
    from io import BufferedReader

_PATTERN_LAST = "a quoted shard pattern as the last argument, such as 'out-{000000..}.tar'"
_PATTERN = re.compile(r"[{<%]")
_PATTERN_MARKS = re.compile(r"[{<%*?[]")  # a name with such a character is a pattern or a glob
PIPE_PREFIX = "pipe:"
_HEAD_BYTES = 512
_ARCHIVE_MAGIC = ((257, b"ustar", ".tar"), (0, b"\x1f\x8b", ".tar.gz"), (0, b"\x28\xb5\x2f\xfd", ".tar.zst"),
          (0, b"PK\x03\x04", ".zip"))  # fmt: skip
_BRACE_RANGE = re.compile(r"\{[^{}]*\.\.[^{}]*\}")
_NUMBERED_NAME = re.compile(r"(.*?)([0-9]{1,18})(\.[^/0-9]*)", re.DOTALL)


def split_sources(names: tuple[str, ...]) -> tuple[str | list[str], list[str]]:
    """Split `SOURCE... OUTPUT` into sources and output.

    A shell may have replaced the output pattern by the names of existing shards. Therefore, all shard names at the end
    belong to the output. If the source is a shard, such as a tar, only the consecutively numbered names at the end
    belong to the output.
    """
    output_start = len(names) - 1
    first, last = names[0], names[output_start]
    if output_start > 0 and _is_source(last) and _is_output(first):
        raise _swapped_arguments(first, last, "a shard pattern before the source", "SOURCE before OUTPUT")
    if output_start < 1:
        raise InvalidRequest("OUTPUT", "not given", expected=_PATTERN_LAST)
    is_archive = is_shard_name(os.path.basename(names[0]))
    while output_start > 1 and is_shard_name(os.path.basename(names[output_start - 1])):
        if is_archive and not _is_next_number(names[output_start - 1], names[output_start]):
            break
        output_start -= 1
    if output_start < len(names) - 1 and _PATTERN.search(names[-2]) and not is_shard_name(os.path.basename(last)):
        raise _extra_argument(names[-2], last)
    sources = [*names[:output_start]]
    return sources[0] if len(sources) == 1 else sources, [*names[output_start:]]


def _is_source(name: str) -> bool:
    return not is_shard_name(os.path.basename(name)) and os.path.exists(name)


def _is_output(name: str) -> bool:
    if is_url(name):
        return False
    head = re.split(_PATTERN, name, maxsplit=1)[0]
    if head == name:
        return is_shard_name(os.path.basename(name)) and not os.path.lexists(name)
    folder, start = os.path.split(head)
    return not _has_shards(folder or ".", start)


def _has_shards(folder: str, start: str = "") -> bool:
    from shardtool.storage.files import list_folder_names  # imported late, for a fast start

    return any(name.startswith(start) and is_shard_name(name) for name in list_folder_names(folder))


def _swapped_arguments(first: str, last: str, found: str, expected: str) -> InvalidRequest:
    remedy = f"Swap them: {shlex.quote(last)} {shlex.quote(first)}."
    return InvalidRequest(first, found, expected=expected, remedy=remedy)


def _extra_argument(pattern: str, extra: str) -> InvalidRequest:
    remedy = "Separate several values of an option by commas, such as --fields jpg,json."
    return InvalidRequest(extra, f"an argument after the pattern {pattern}", expected=_PATTERN_LAST, remedy=remedy)


def split_datasets(names: tuple[str, ...]) -> tuple[list[str | list[str]], list[str]]:
    """Split `DATASET... OUTPUT` into datasets and output.

    The output is the last argument if it is a pattern. Otherwise, the names at the end that have consecutive numbers
    are the output.
    """
    output_start = len(names) - 1
    first, last = names[0], names[output_start]
    if output_start == 1 and _is_source(last) and _is_output(first):
        raise _swapped_arguments(first, last, "a shard pattern before the dataset", "DATASET before OUTPUT")
    if not _PATTERN.search(names[output_start]):
        while output_start > 0 and _is_next_number(names[output_start - 1], names[output_start]):
            output_start -= 1
    if output_start < 1:
        found = "not given" if len(names) == 1 else "cannot be distinguished from DATASET"
        raise InvalidRequest("OUTPUT", found, expected=_PATTERN_LAST)
    is_extra = not _PATTERN.search(last) and not is_shard_name(os.path.basename(last))
    if output_start > 1 and is_extra and _PATTERN.search(names[-2]) and _is_output(names[-2]):
        raise _extra_argument(names[-2], last)
    return _group_shards(names[:output_start]), [*names[output_start:]]


def split_destination(names: tuple[str, ...], *missing: str) -> tuple[list[str], str]:
    """Split names into datasets and destination. If there is only one name, raise InvalidRequest(*missing)."""
    *datasets, last = names
    if not datasets:
        raise InvalidRequest(*missing)
    if (
        len(datasets) == 1
        and os.path.isfile(last)
        and last.endswith(DATASET_SUFFIX)
        and not _PATTERN_MARKS.search(datasets[0])
    ):
        first = datasets[0]
        if not (is_url(first) or os.path.isfile(first) or (os.path.isdir(first) and _has_shards(first))):
            raise _swapped_arguments(first, last, f"before the dataset file {last}", f"DATASET before {missing[0]}")
    return datasets, last


def split_keys(names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Split `DATASET... [KEY...]` into datasets and keys. The first name is a dataset.

    Each other name is a dataset if it is an existing path, a URL, a glob, or named like a shard or dataset file.
    Otherwise, it is a key.
    """

    def is_dataset(name: str) -> bool:
        is_named = "*" in name or name.endswith(DATASET_SUFFIX) or is_shard_name(os.path.basename(name))
        return is_named or is_url(name) or os.path.lexists(name)

    keys = [name for name in names[1:] if not is_dataset(name)]
    return [name for name in names if name not in keys], keys


def _group_shards(names: Sequence[str]) -> list[str | list[str]]:
    """Combine adjacent shards of a folder into one dataset, because a shell may have expanded a pattern."""

    def folder(name: str) -> str | None:
        is_shard = is_shard_name(os.path.basename(name)) and not _PATTERN_MARKS.search(name)
        return os.path.dirname(name) if is_shard else None

    datasets: list[str | list[str]] = []
    for shard_folder, group in groupby(names, folder):
        members = [*group]
        datasets += members if shard_folder is None else [members]
    return datasets


def _is_next_number(name: str, following: str) -> bool:
    first, second = _NUMBERED_NAME.fullmatch(name), _NUMBERED_NAME.fullmatch(following)
    if first is None or second is None:
        return False
    same = (first[1], first[3]) == (second[1], second[3])
    # 1000 follows 999, but 0100 does not follow 99.
    same_width = len(first[2]) == len(second[2]) or not second[2].startswith("0")
    return same and same_width and int(first[2]) + 1 == int(second[2])


def materialize_inputs(names: Sequence[str], *, table: bool = False) -> tuple[str, ...]:
    """Replace `pipe:COMMAND` and `-` (standard input) in `names` by temporary files, deleted at the end of the run.

    If `table` is true, keep `-` unless standard input is an archive: `create` reads a table from standard input itself.
    """
    if [*names, click.get_current_context().params.get("keys_from")].count("-") > 1:
        raise InvalidRequest("-", "standard input is named twice", expected="one use of -")
    return tuple(_materialize(name, number, table=table) for number, name in enumerate(names))


def _materialize(name: str, number: int, *, table: bool) -> str:
    if name == "-":
        stdin: IO[bytes] = sys.stdin.buffer
        head = stdin.peek(_HEAD_BYTES) if hasattr(stdin, "peek") else b""
        if table and not _archive_ending(head[:_HEAD_BYTES]):
            return name
        return click.get_current_context().with_resource(_keep_stream(stdin, "standard input", number))
    if name.startswith(PIPE_PREFIX):
        if braces := _BRACE_RANGE.search(name):
            found = f"a range ({braces[0]}) in a command, which returns one shard"
            remedy = "Use the pattern without a command, such as s3://bucket/out-{000..041}.tar."
            raise InvalidRequest(name, found, expected="a command for each shard", remedy=remedy)
        return click.get_current_context().with_resource(_run_command(name, number))
    return name


@contextmanager
def _run_command(name: str, number: int) -> Iterator[str]:
    import subprocess

    def check_exit_code() -> None:
        if status := run.wait():
            raise InvalidRequest(name, f"the command failed with exit code {status}", expected="exit code 0")

    command = name.removeprefix(PIPE_PREFIX)
    with subprocess.Popen(command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as run:  # noqa: S602 - the user typed it
        stream = cast("BufferedReader", run.stdout)
        if not stream.peek():
            check_exit_code()
        with _keep_stream(stream, name, number) as path:
            check_exit_code()
            yield path


@contextmanager
def _keep_stream(stream: IO[bytes], where: str, number: int) -> Iterator[str]:
    import shutil
    import tempfile

    head = stream.read(_HEAD_BYTES)
    ending = _archive_ending(head)
    if not ending:
        found = "no data" if not head else "neither a tar nor a zip"
        raise InvalidRequest(where, found, expected="a tar, also compressed with gzip or zstd, or a zip")
    with tempfile.TemporaryDirectory(prefix="shardtool-") as folder:
        path = os.path.join(folder, f"piped-{number:03}{ending}")
        try:
            with open(path, "wb") as file:
                file.write(head)
                shutil.copyfileobj(stream, file)
        except OSError as error:
            remedy = "Set TMPDIR to another folder."
            raise OutputFailed(path, f"cannot keep {where}: {os_error_text(error)}", remedy=remedy) from None
        yield path


def _archive_ending(head: bytes) -> str:
    return next((ending for start, magic, ending in _ARCHIVE_MAGIC if head[start : start + len(magic)] == magic), "")
