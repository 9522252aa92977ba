"""Rules for which files and folders of a source are listed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.pattern import ShardPattern
    from shardtool.values import Dots, Symlinks


SYSTEM_FILES = frozenset({b"Thumbs.db", b"thumbs.db", b"ehthumbs.db", b"Desktop.ini", b"desktop.ini", b"__MACOSX"})


@dataclass(frozen=True)
class ScanRules:
    """Which files are parts of samples.

    Attributes:
        include: Globs; if there are any, a file must match one.
        exclude: Globs of files and folders.
        hidden: Whether to include names that start with a dot, and names that operating systems leave in folders.
        symlinks: `inside` follows links whose target is in the tree and reports others.
        own: The folder (relative, ending in a slash) and the pattern of each output inside the source.
    """

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    hidden: bool = False
    symlinks: Symlinks = "inside"
    dots: Dots = "first"
    own: tuple[tuple[bytes, ShardPattern], ...] = ()

    @cached_property
    def _include(self) -> list[tuple[bool, re.Pattern[bytes]]]:
        return [_compile_glob(text) for text in self.include]

    @cached_property
    def _exclude(self) -> list[tuple[bool, re.Pattern[bytes]]]:
        return [_compile_glob(text) for text in self.exclude]

    @cached_property
    def filters(self) -> bool:
        """Whether names must be checked at all."""
        return bool(self.include or self.exclude or self.own)

    def hides(self, name: bytes) -> bool:
        """Check whether a name is ignored."""
        return (name.startswith(b".") or name in SYSTEM_FILES) and not self.hidden

    def includes_file(self, prefix: bytes, name: bytes) -> bool:
        """Check whether a file is included."""
        if any(folder == prefix and _is_output(pattern, name) for folder, pattern in self.own):
            return False
        is_included = not self._include or _matches(self._include, prefix, name)
        return is_included and not _matches(self._exclude, prefix, name)

    def includes_folder(self, prefix: bytes, name: bytes) -> bool:
        """Check whether a folder is included."""
        return not any(_matches(self._exclude, prefix, form) for form in (name, name + b"/"))


def _compile_glob(text: str) -> tuple[bool, re.Pattern[bytes]]:
    """Return whether the glob applies to whole paths, and its pattern. `*` crosses slashes, as gitignore's `**`."""
    whole = "/" in text.rstrip("/")
    return whole, re.compile(os.fsencode(translate(text.removeprefix("./"))), re.DOTALL)


def _matches(globs: list[tuple[bool, re.Pattern[bytes]]], prefix: bytes, name: bytes) -> bool:
    return any(pattern.match(prefix + name if whole else name) for whole, pattern in globs)


def _is_output(pattern: ShardPattern, name: bytes) -> bool:
    text = os.fsdecode(name)
    return (
        pattern.owns(text)
        or text == f".{pattern.base}.lock"
        or (text.startswith(".") and text.endswith(".part") and pattern.owns(text[1:-5]))
    )
