"""What is asked of a manifest, and whether a source is one: before anything heavy is imported."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shardtool.request.choices import pairs
from shardtool.storage.places import is_url
from shardtool.table.kinds import is_frame, parquet_files, table_ending
from shardtool.wording import option

if TYPE_CHECKING:
    from shardtool.entries.classes import Classes
    from shardtool.request.options import CreateOptions
    from shardtool.values import Dots

_STREAM = ("__arrow_c_stream__", "__arrow_c_array__")


@dataclass(frozen=True, slots=True)
class ManifestOptions:
    """The options that say what a manifest's columns are for.

    Attributes:
        key: The column of keys; None: one with a usual name, or the paths without their endings. The path column
            itself means the latter.
        path: The column of paths whose endings name the field.
        files: (field, column): paths whose field is named.
        binary: (field, column): the bytes themselves, or `struct<bytes, path>` with the bytes there, or text that is
            too long to be held; read a batch at a time.
        urls: (field, column): URLs whose files are the field; a worker fetches them.
        fields: (field, column): the value itself is the payload; the column is held.
        classes: Those of `fields` whose values are numbered, in the order of their bytes.
        known_classes: The numbers that classes have already; None: none has.
        meta: The columns that go into the field `json`, and into the sidecars.
        root: What relative paths count from; None: the manifest's folder.
        allow_outside: Paths may lead out of `root`.
        size: A column with the bytes of the file, for plans of files that are not there, or that lie in the web.
        stat: Look at the files; False: plan with what `size` says.
        dots: Where a file's name ends and its field begins.
    """

    key: str | None = None
    path: str | None = None
    files: tuple[tuple[str, str], ...] = ()
    binary: tuple[tuple[str, str], ...] = ()
    urls: tuple[tuple[str, str], ...] = ()
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
        found = [("key", self.key), ("path", self.path), ("size", self.size)]
        given = ("files", self.files), ("binary", self.binary), ("urls", self.urls), ("values", self.fields)
        for name, named in given:
            found += [(name, column) for _, column in named]
        if isinstance(self.meta, tuple):
            found += [("meta", column) for column in self.meta]
        return [(option(name), column) for name, column in found if column is not None]


def manifest_options(options: CreateOptions) -> ManifestOptions:
    """Return what is asked of a manifest."""
    from shardtool.dataset.dataset_file import open_classes

    return ManifestOptions(
        key=options.key,
        path=options.path,
        files=pairs("files", options.files),
        binary=pairs("binary", options.binary),
        urls=pairs("urls", options.urls),
        fields=pairs("values", options.values),
        classes=tuple(options.classes),
        known_classes=open_classes(options.classes_from),
        meta=options.meta if options.meta in ("all", "none") else tuple(options.meta.split(",")),  # type: ignore[arg-type]
        root=None if options.root is None else os.fspath(options.root),
        allow_outside=options.allow_outside,
        size=options.size,
        stat=options.stat,
        dots=options.dots or "first",
    )


def is_manifest(source: object) -> bool:
    """Tell whether a source is a table: by the name of a file, by what a folder holds, or by what an object can do."""
    if not isinstance(source, str | os.PathLike):
        return is_frame(source) or any(hasattr(source, name) for name in _STREAM)
    path = os.fspath(source)
    if os.path.isdir(path) or (is_url(path) and not table_ending(path)):
        return bool(parquet_files(path))
    return path == "-" or bool(table_ending(path))
