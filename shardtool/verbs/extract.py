"""`extract`: the samples of datasets become files again. The library twin of `shardtool extract`.

A file is called by its sample's key and its field, `cat/0001.jpg`, or, where `portable` has made the keys of other
names, as it was called before. So `create` makes the same samples of the folder, with the options that the result
names: the content fingerprint is the same, unless a field of a TFRecord holds a list.

While a run is not at its end, `.extract.unfinished` in the folder says which samples it writes. The next run with the
same request finishes it: files that are right stay, and those of which only the first bytes are there are written
again. Nothing else that is there is ever replaced unasked, and nothing is written outside of the folder.
"""

from __future__ import annotations

import io
import os
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from shardtool.errors import (
    InvalidRequest,
    OutputExists,
    OutputFailed,
    format_list,
    os_error_text,
    printable,
    reporting_memory_errors,
)
from shardtool.execute import start_pool
from shardtool.messages import flag_text, option_text, where_keys
from shardtool.names import is_utf8, quote_name, to_text
from shardtool.request.create_options import ReshardOptions
from shardtool.request.dataset_options import ExtractOptions
from shardtool.request.observer import Notes, Observer
from shardtool.request.results import ExtractResult
from shardtool.request.verb_call import accepts_options
from shardtool.storage.lookup import file_info
from shardtool.storage.staging import Folder, named_local_folder
from shardtool.storage.tree import ExistingFile, FolderTree, are_safe_paths, path_problem
from shardtool.write.task import ShardTask
from shardtool.write.unpack import UnpackTask, unpack_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from shardtool.dataset.stored import StoredDataset
    from shardtool.entries.sample_table import SampleTable
    from shardtool.entries.strings import PackedStrings
    from shardtool.execute.pool import Pool
    from shardtool.source.base import Listing
    from shardtool.values import DatasetLike

MANIFEST = ".manifest.parquet"  # a hidden name, so that `create` of the folder passes it over
METADATA = ".metadata.parquet"
_LOCK_NAME = "extract"
_UNFINISHED_NAME = ".extract.unfinished"
_RESERVED_NAMES = {one.encode() for one in (MANIFEST, METADATA, _UNFINISHED_NAME, f".{_LOCK_NAME}.lock")}
_LABEL_FIELD = "cls"
_PATHS_COLUMN = "source_paths"
_SAMPLES, _BYTES = 2**12, 2**26  # of a task, at most, of a few shards
_SHARDS, _MORE = 3, 2**5  # shards for each worker, with which a task is a whole one, of at most so many times as much
_NAMING_OPTIONS = (
    "dots",
    "hidden",
    "label_from_folder",
    "portable",
)  # recorded options of `create` that are about names
_MAX_LISTED_NAMES = 5


@accepts_options(ExtractOptions)
def extract(
    dataset: DatasetLike | Sequence[DatasetLike],
    folder: str | os.PathLike[str],
    options: ExtractOptions,
    observer: Observer,
) -> ExtractResult:
    """Write each field of samples to a file below a folder, and a table with a row for each sample.

    Args:
        dataset: A dataset, or several: each a dataset file, a pattern, a glob, a folder, or shards.
        folder: A folder of a file system; made where it is missing.
        options: See `ExtractOptions`.
        observer: Gets progress, and notes for the user.

    Raises:
        InvalidRequest: The request makes no sense, or names cannot be those of files; nothing was written.
        CorruptShard: A payload is damaged; nothing is there under its name.
        OutputExists: A file is there with other bytes, or another run writes or has not finished there.
        OutputFailed: A file cannot be written.
    """
    notes, place, begun = Notes(observer), named_local_folder(folder), time.monotonic()
    import_module("shardtool.write.unpack")
    with start_pool(options, "Run the same command again: what is there stays.") as pool:
        from shardtool.dataset.expand import expand_datasets
        from shardtool.dataset.find import open_dataset

        found = [open_dataset(one) for one in expand_datasets(dataset)]  # type: ignore[arg-type]
        listed = _list_samples(found, options, pool, notes)
        notes.add(*listed.notes)
        entries, names = listed.entries, _file_paths(listed.entries, by_key=options.by_key)
        check_file_names(names)
        _check_not_a_key(os.fspath(folder), entries)
        kept = 0
        if not options.dry_run:
            place.ready()
            pool.check(output=place.path)
            with place.lock(_LOCK_NAME, what="into this folder"):
                kept = _write_files(listed, names, place, options, pool, notes)
    metadata = "" if _metadata_table(entries) is None else place.full_path(METADATA)
    return ExtractResult(
        folder=place.path,
        manifest=place.full_path(MANIFEST),
        metadata=metadata,
        samples=len(entries),
        files=len(names),
        kept=kept,
        size=int(entries.rows.size.sum()),
        seconds=time.monotonic() - begun,
        notes=tuple(notes.said),
        create=_create_options(found, entries, metadata, options),
        dry_run=options.dry_run,
    )


def _list_samples(datasets: Sequence[StoredDataset], options: ExtractOptions, pool: Pool, notes: Notes) -> Listing:
    """Return the samples and fields that are asked for.

    Raises:
        InvalidRequest: There are none, or two with one key.
        CorruptShard: A dataset is damaged.
    """
    from shardtool.select.duplicate_keys import resolve_duplicate_keys
    from shardtool.source.keys_from import find_samples_by_key
    from shardtool.source.shards import DatasetSource

    made = not options.fields and all(
        map(_labels_from_folders, datasets)
    )  # `create` makes them, and their column, again
    asked = ReshardOptions(where=options.where, fields=f"-{_LABEL_FIELD}" if made else options.fields)
    source = DatasetSource([one.given for one in datasets], asked, "tar")
    listed = source.list_samples(pool, notes.observer)
    if not len(listed.entries):
        raise InvalidRequest(listed.where, "no samples", expected="one or more")
    if options.keys_from is not None:
        places = find_samples_by_key(listed.entries.keys, options.keys_from)
        listed = replace(listed, entries=listed.entries.take(places))
    where = [to_text(one.path) for one in listed.entries.known_spans.files]
    resolve_duplicate_keys(listed.entries, "error", where, where=listed.where)
    metadata = listed.entries.metadata
    if made and metadata is not None and _LABEL_FIELD in metadata.column_names:
        listed = replace(listed, entries=replace(listed.entries, metadata=metadata.drop_columns([_LABEL_FIELD])))
    return listed


def _check_not_a_key(path: str, entries: SampleTable) -> None:
    """Refuse a folder that does not exist and has the name of a sample, or of a file of a sample.

    Raises:
        InvalidRequest: It is.
    """
    if os.path.lexists(path):
        return
    from shardtool.entries.strings import PackedStrings
    from shardtool.table.keys import contains_hashes, hash_keys

    folder, name = os.path.split(path)
    stem, _, field = name.partition(".")
    for key, found in ((path, "the key of a sample"), (os.path.join(folder, stem), "a file of a sample")):
        is_meant = key == path or field in entries.fields
        if is_meant and contains_hashes(hash_keys(entries.keys), hash_keys(PackedStrings.of([os.fsencode(key)]))).any():
            remedy = f"To extract only this sample, give a folder and {where_keys([key])}."
            raise InvalidRequest(path, found, expected="the folder to write to", remedy=remedy)


def _labels_from_folders(dataset: StoredDataset) -> bool:
    """Tell whether a dataset has numbers of its keys' folders, which are in no file of the source."""
    file = dataset.file
    return file is not None and bool(file.made.options.get("label_from_folder")) and _LABEL_FIELD in file.fields


def _file_paths(entries: SampleTable, *, by_key: bool) -> PackedStrings:
    """Return the path of each field's file, as it counts from the folder."""
    from shardtool.entries.strings import PackedStrings
    from shardtool.select.field_rows import list_source_paths

    metadata = entries.metadata
    if not by_key and metadata is not None and _PATHS_COLUMN in metadata.column_names:
        known = [name.encode() for one in metadata.column(_PATHS_COLUMN).to_pylist() for name in one or ()]
        if len(known) == len(entries.rows.code):  # else some of the datasets have none
            return PackedStrings.of(map(unquote_to_bytes, known))
    plain = replace(entries, fields=tuple(name.replace("/", ".") for name in entries.fields))
    return PackedStrings.parse(list_source_paths(plain).span(0, len(entries.rows.code)))


def check_file_names(names: PackedStrings, *, folded: bool = False) -> None:
    """Refuse names that cannot be those of files below one folder.

    Args:
        names: The names.
        folded: Whether the folder takes names for one that differ in case only.

    Raises:
        InvalidRequest: There are such.
    """
    import numpy as np

    from shardtool.entries.strings import PackedStrings
    from shardtool.table.keys import hash_keys

    plain = are_safe_paths(names.data[:-1], int(names.lengths().max()))
    for _, some in names.chunks():
        for name in some if not plain else _RESERVED_NAMES.intersection(some):
            if problem := path_problem(name) or (
                "the name of a file of extract's own" if name in _RESERVED_NAMES else ""
            ):
                remedy = f"Nothing was written. {option_text('where')} can leave that sample out."
                raise InvalidRequest(printable(name)[:200], problem, expected="a path below the folder", remedy=remedy)
    folders = {name.rpartition(b"/")[0] for _, some in names.chunks() for name in some}
    while above := {name.rpartition(b"/")[0] for name in folders} - folders:
        folders |= above
    if both := sorted(folders.intersection(name for _, some in names.chunks() for name in some)):
        remedy = f"Nothing was written. {option_text('where')} can leave some of them out."
        what = "names of files that others have as their folder"
        raise InvalidRequest(
            format_list([*map(printable, both[:_MAX_LISTED_NAMES])], total=len(both)), what, remedy=remedy
        )
    found = hash_keys(PackedStrings(names.data.lower(), names.starts) if folded else names)
    _, place, counts = np.unique(found, return_index=True, return_counts=True)
    if len(twice := place[counts > 1]):
        shown = [printable(names[at]) for at in twice[:_MAX_LISTED_NAMES].tolist()]
        what = "differ in case only, which this folder does not tell apart" if folded else "several fields would have"
        remedy = "Extract them one after the other, into folders of their own."
        raise InvalidRequest(format_list(shown, total=len(twice)), f"names that {what}", remedy=remedy)


def _create_options(
    datasets: Sequence[StoredDataset], entries: SampleTable, metadata: str, options: ExtractOptions
) -> dict[str, Any]:
    """Return the options of `create` that make the same samples of these files; `metadata`: their table, if any."""
    known = [one.file.made.options if one.file is not None else {} for one in datasets]
    alike = [
        name for name in _NAMING_OPTIONS if name in known[0] and all(one.get(name) == known[0][name] for one in known)
    ]
    found = {name: known[0][name] for name in alike}
    if options.by_key:
        found.pop("portable", None)
    if _LABEL_FIELD in entries.used_fields():
        found.pop("label_from_folder", None)  # they are files
    if "label_from_folder" in found:  # by folders alone, numbers would be others where a class has no sample
        found["classes_from"] = datasets[0].dataset_file
    if metadata and "portable" not in found:  # which makes keys once the table was joined
        found |= {"join": metadata, "on": "key"}
    return {**found, "exclude": [MANIFEST, METADATA]} if "hidden" in found else found


@reporting_memory_errors("extracting")
def _write_files(
    listed: Listing, names: PackedStrings, place: Folder, options: ExtractOptions, pool: Pool, notes: Notes
) -> int:
    """Write all files, under the lock; return how many were there already."""
    if place.facts([f".{_LOCK_NAME.upper()}.lock"]):  # the folder takes names for one that differ in case only
        check_file_names(names, folded=True)
    entries, observer = listed.entries, notes.observer
    entries = replace(entries, rows=replace(entries.rows, paths=names))
    tasks, kept = [*_unpack_tasks(listed, entries, place, pool.max_tasks)], 0
    tables: dict[str, bytes] = {}
    _check_existing(place, entries, names, options)
    _check_space(place, entries, names)
    with _mark_unfinished(place, listed, names, overwrite=options.overwrite) as again:
        there: ExistingFile = "overwrite" if options.overwrite else "finish" if again else "keep"
        observer.start(len(entries), int(entries.rows.size.sum()), len(tasks))
        each = (UnpackTask(task, listed.compressed, there) for task in tasks)

        def advance(_: int, samples: int, size: int) -> None:
            observer.advance(samples, size, 0)

        for number, some in pool.map(unpack_samples, each, advance):
            tables = tables or _parquet_tables(entries, names)  # while workers write
            kept += some
            observer.advance(0, 0, 1)
            content = tasks[number].samples.content
            size = sum(memoryview(content.sizes).cast("q"))
            observer.shard(tasks[number].name, "extracted", len(content.counts) // 2, size)
        place.publish(*(place.stage_bytes(name, table) for name, table in tables.items()))
    return kept


def _unpack_tasks(listed: Listing, entries: SampleTable, place: Folder, workers: int) -> Iterator[ShardTask]:
    """Yield runs of samples that lie in one shard; all of a shard that is compressed, for that is read in sequence.

    Workers that have whole shards seldom wait for each other to make files in one folder; few shards are shared out.
    """
    import numpy as np

    from shardtool.plan.plan import Plan
    from shardtool.plan.shard_bounds import cumulative_sizes
    from shardtool.plan.shard_task import build_shard_samples

    sizes = np.add.reduceat(entries.rows.size, entries.first[:-1])
    total, file = cumulative_sizes(sizes), entries.known_spans.file
    shard_ends = np.append(np.flatnonzero(np.diff(file)) + 1, len(entries))
    most = 1 if len(shard_ends) < _SHARDS * workers else _MORE
    ends = np.zeros(len(entries) + 1, np.bool_)
    ends[shard_ends] = True
    if not listed.compressed:
        ends[np.flatnonzero(np.diff(total // (most * _BYTES))) + 1] = True
        ends[most * _SAMPLES :: most * _SAMPLES] = True
    ends[0] = False
    plan = Plan("files", entries, None, None, total, np.flatnonzero(ends))
    for number in range(plan.shards):
        name = listed.shards[int(file[plan.span(number)[0]])]
        yield ShardTask(number, name, plan.format, place, build_shard_samples(plan, number), "stop", 0)


def _parquet_tables(entries: SampleTable, names: PackedStrings) -> dict[str, bytes]:
    """Return the Parquet tables that lie beside the files, by their names: one of files, and one of metadata, if any.

    In the first is a row for each file, its sample's key and its path: `create` takes it as a manifest. In the other
    is one for each sample, with its key: `create` takes it by `join`.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from shardtool.entries.strings import PackedStrings

    if not is_utf8(names.data):  # no text names such a file
        each = (name for _, some in names.chunks() for name in some)
        names = PackedStrings.of(name if is_utf8(name) else quote_name(name).encode() for name in each)
    keys = entries.keys.take(entries.owners(np.arange(len(names))))  # `pa.Array.take` imports pyarrow.compute
    found = {MANIFEST: pa.table({"key": _string_array(keys), "path": _string_array(names)})}
    if (metadata := _metadata_table(entries)) is not None:
        found[METADATA] = metadata.append_column("key", _string_array(entries.keys))
    tables = {}
    for name, table in found.items():
        pq.write_table(table, sink := io.BytesIO())
        tables[name] = sink.getvalue()
    return tables


def _metadata_table(entries: SampleTable) -> pa.Table | None:
    """Return the columns of metadata that `create` does not make itself; None: there are none."""
    names = [] if entries.metadata is None else entries.metadata.column_names
    names = [name for name in names if name not in (_PATHS_COLUMN, "key")]
    return entries.metadata.select(names) if names and entries.metadata is not None else None


def _string_array(names: PackedStrings) -> pa.StringArray:
    from shardtool.entries.arrow import string_array

    return string_array(names.data.replace(b"\0", b""), names.lengths())


def _check_existing(place: Folder, entries: SampleTable, names: PackedStrings, options: ExtractOptions) -> None:
    """Refuse to write where other files are, as far as that shows, before anything is written.

    Raises:
        OutputExists: There are such.
    """
    there = {*place.names()} - {f".{_LOCK_NAME}.lock"}
    if options.overwrite or _UNFINISHED_NAME in there or not there:
        return
    sizes = entries.rows.size.tolist()
    with closing(FolderTree(place.path)) as tree:
        for first, some in names.chunks():
            tree.check_free(some, sizes[first : first + len(some)])
    for name, table in _parquet_tables(entries, names).items():
        if name not in there:
            continue
        try:
            found = "" if place.read(name) == table else "the table of other samples"
        except OSError as error:
            found = f"no table: {os_error_text(error)}"
        if found:
            remedy = f"Name all datasets in one command, choose another folder, or {flag_text('overwrite')}."
            raise OutputExists(place.full_path(name), found, remedy=remedy)


def _check_space(place: Folder, entries: SampleTable, names: PackedStrings) -> None:
    """Refuse to start if the files do not fit, without the bytes of files that an earlier run has written.

    Raises:
        OutputFailed: The folder has less space than the files take.
    """
    import os

    from shardtool.publish.publisher import check_space

    size = int(entries.rows.size.sum())
    try:
        check_space(place, size, "extracted")
    except OutputFailed:  # only then look at each file
        sizes, top = entries.rows.size.tolist(), os.fsencode(place.path)
        for first, some in names.chunks():
            for at, name in enumerate(some, first):
                with suppress(OSError):
                    size -= min(file_info(os.path.join(top, name)).st_size, sizes[at])
        check_space(place, size, "extracted")


@contextmanager
def _mark_unfinished(place: Folder, listed: Listing, names: PackedStrings, *, overwrite: bool) -> Iterator[bool]:
    """Mark the folder as one that is being written to, until all is there; give whether the same run was killed here.

    Raises:
        OutputExists: A run with another request was.
    """
    hashed = blake2b(names.data, digest_size=16)
    for column in (listed.entries.rows.size, listed.entries.known_spans.expected):
        hashed.update(column.tobytes())
    mark = f"shardtool extract of {listed.name}\n{hashed.hexdigest()}\n".encode()
    try:
        before = place.read(_UNFINISHED_NAME)
    except OSError:
        before = b""
    if before not in (b"", mark) and not overwrite:
        found = f"an unfinished {printable(before.splitlines()[0])[:200]}"
        remedy = f"Run that command again to finish it, or {flag_text('overwrite')} files: what it has written stays."
        raise OutputExists(
            place.full_path(_UNFINISHED_NAME), found, expected="none, or one of the same samples", remedy=remedy
        )
    if not before:
        place.publish(place.stage_bytes(_UNFINISHED_NAME, mark))
    yield bool(before)
    place.remove([_UNFINISHED_NAME])
