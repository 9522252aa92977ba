"""What is asked of a manifest, and whether a source is one: before anything heavy is imported."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shardtool.request.options import pairs

if TYPE_CHECKING:
    from shardtool.dataset.classes import Classes
    from shardtool.request.options import CreateOptions
    from shardtool.values import Dots

SEPARATORS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
ARROW = (".feather", ".arrow", ".ipc")
PARQUET = ".parquet"
_PACKED = (".gz", ".bz2", ".zst")
_STREAM = ("__arrow_c_stream__", "__arrow_c_array__")


@dataclass(frozen=True, slots=True)
class ManifestOptions:
    """What the columns of a manifest are for.

    Attributes:
        key: The column of keys; None: one with a usual name, or the paths without their endings. The path column
            itself means the latter.
        path: The column of paths whose endings name the field.
        files: (field, column): paths whose field is named.
        binary: (field, column): the bytes themselves, or `struct<bytes, path>` with the bytes there, or text that is
            too long to be held; read a batch at a time.
        fields: (field, column): the value itself is the payload; the column is held.
        classes: Those of `fields` whose values are numbered, in the order of their bytes.
        known_classes: The numbers that classes have already; None: none has.
        meta: The columns that go into the field `json`, and into the sidecars.
        root: What relative paths count from; None: the manifest's folder.
        allow_outside: Paths may lead out of `root`.
        size: A column with the bytes of the file, for plans of files that are not there.
        stat: Look at the files; False: plan with what `size` says.
        dots: Where a file's name ends and its field begins.
    """

    key: str | None = None
    path: str | None = None
    files: tuple[tuple[str, str], ...] = ()
    binary: tuple[tuple[str, str], ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    classes: tuple[str, ...] = ()
    known_classes: Classes | None = None
    meta: Literal["all", "none"] | tuple[str, ...] = "all"
    root: str | None = None
    allow_outside: bool = False
    size: str | None = None
    stat: bool = True
    dots: Dots = "first"

    def named(self) -> list[tuple[str, str]]:
        """Return (option, column) for every column that is asked for."""
        found = [("--key", self.key), ("--path", self.path), ("--size", self.size)]
        for option, named in (("--file", self.files), ("--bytes", self.binary), ("--field", self.fields)):
            found += [(option, column) for _, column in named]
        if isinstance(self.meta, tuple):
            found += [("--meta", column) for column in self.meta]
        return [(option, column) for option, column in found if column is not None]


def manifest_options(options: CreateOptions) -> ManifestOptions:
    """Return what is asked of a manifest."""
    from shardtool.dataset.classes import open_classes

    return ManifestOptions(
        key=options.key,
        path=options.path,
        files=pairs("--file", options.files),
        binary=pairs("--bytes", options.binary),
        fields=pairs("--field", options.values),
        classes=tuple(options.classes),
        known_classes=open_classes(options.classes_from),
        meta=options.meta if options.meta in ("all", "none") else tuple(options.meta.split(",")),  # type: ignore[arg-type]
        root=options.root,
        allow_outside=options.allow_outside,
        size=options.size,
        stat=options.stat,
        dots=options.dots or "first",
    )


def is_manifest(source: Any) -> bool:
    """Tell whether a source is a table: by the name of a file, by what a folder holds, or by what an object can do."""
    if not isinstance(source, str | os.PathLike):
        return is_frame(source) or any(hasattr(source, name) for name in _STREAM)
    path = os.fspath(source)
    if os.path.isdir(path):
        return bool(parquet_files(path))
    return path == "-" or bool(table_ending(path))


def is_frame(source: object) -> bool:
    """Tell whether an object is a pandas DataFrame, without importing pandas."""
    kind = type(source)
    return kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas"


def table_ending(path: str) -> str:
    """Return the ending that tells a table's format, without that of a compression; empty for no table."""
    lower = path.lower()
    packed = next((one for one in _PACKED if lower.endswith(one)), "")
    ending = os.path.splitext(lower.removesuffix(packed))[1]
    text = (*SEPARATORS, *JSON_LINES)
    return ending if ending in text or (not packed and ending in (PARQUET, *ARROW)) else ""


def parquet_files(folder: str) -> list[str]:
    """Return the files of a folder and below, sorted, where all are Parquet; else none.

    Names that start with a dot or an underscore are a writer's own, such as `_SUCCESS`.
    """
    found, folders = [], [folder]
    try:
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:  # up to the first that is something else: there may be millions
                    if entry.name[0] in "._":
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.name.lower().endswith(PARQUET):
                        found.append(entry.path)
                    else:
                        return []
    except OSError:
        return []
    return sorted(found, key=os.fsencode)
