"""Suggest other globs if `--include` and `--exclude` leave no file of a folder."""

from __future__ import annotations

import os
from collections import Counter
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import choose_text, option_text
from shardtool.source.scan_rules import ScanRules
from shardtool.storage.lookup import iter_entries
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MAX_FILES = 100_000  # the message need not count millions of files
_SHOWN = 3


def refuse_globs(folder: str, include: Sequence[str], exclude: Sequence[str], *, hidden: bool) -> None:
    """Refuse globs that leave no file of a local folder, and suggest a glob that matches some."""
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
    """Return a glob similar to `text` that matches files, such as `*.jpg` for `jpg`."""
    bare = text.removeprefix("./").rstrip("/")
    ending = f".{bare.lstrip('*.')}"
    in_use = {extension.lower(): extension for extension in (os.path.splitext(name)[1] for name in files) if extension}
    guesses = (f"*{in_use.get(ending.lower(), ending)}", f"{bare}/*")
    return next((glob for glob in guesses if any(_accepts(name, [glob]) for name in files)), "")


def _accepts(path: str, globs: Sequence[str]) -> bool:
    folder, name = os.path.split(path)
    return ScanRules(include=globs).includes_file(os.fsencode(f"{folder}/" if folder else ""), os.fsencode(name))
