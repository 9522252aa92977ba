"""`extract`: write the fields of a dataset's samples to files.

To pack the files into the same samples again, call `create` with the options in `ExtractResult.create`. The new dataset
has the same content fingerprint, unless a TFRecord field contains a list.

During a run, the file `.extract.unfinished` identifies the request. If the run is interrupted, the next run with the
same request keeps complete files and rewrites truncated files.
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
from shardtool.messages import flag_text, option_text, quote_for_shell, uses_cli_names
from shardtool.names import is_utf8, quote_name, to_text
from shardtool.request.create_options import ReshardOptions
from shardtool.request.dataset_options import ExtractOptions
from shardtool.request.observer import Notes, Observer
from shardtool.request.results import ExtractResult
from shardtool.request.verb_call import accepts_options
from shardtool.storage.files import stat_file
from shardtool.storage.staging import Folder, named_local_folder
from shardtool.storage.tree import ExistingFile, FolderTree, are_safe_paths, path_problem
from shardtool.values import chunk_slices
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

MANIFEST = ".manifest.parquet"  # `create` ignores files whose names start with a dot
METADATA = ".metadata.parquet"
_LOCK_NAME = "extract"
_UNFINISHED_NAME = ".extract.unfinished"
_RESERVED_NAMES = {name.encode() for name in (MANIFEST, METADATA, _UNFINISHED_NAME, f".{_LOCK_NAME}.lock")}
_LABEL_FIELD = "cls"
_PATHS_COLUMN = "source_paths"
_MAX_TASK_SAMPLES, _MAX_TASK_BYTES = 2**12, 2**26
# With at least `_MIN_SHARDS_PER_WORKER` shards per worker, both limits are `_LARGER_TASKS` times larger.
_MIN_SHARDS_PER_WORKER, _LARGER_TASKS = 3, 2**5

_NAMING_OPTIONS = ("dots", "hidden", "label_from_folder", "portable")

_MAX_LISTED_NAMES = 5


@accepts_options(ExtractOptions)
def extract(
    dataset: DatasetLike | Sequence[DatasetLike],
    folder: str | os.PathLike[str],
    options: ExtractOptions,
    observer: Observer,
) -> ExtractResult:
    """Write each field of each sample to its own file, and write tables that list the files and the metadata.

    Args:
        dataset: One or several dataset files, patterns, globs, folders, or shards.
        folder: The local folder to write to, created if missing.

    Raises:
        InvalidRequest: The request is invalid, or a key is not a valid file name. Nothing was written.
        CorruptShard: A payload is damaged. Its file was not written.
        OutputExists: A file exists with other content, another run is writing to the folder, or a run with other
            samples was interrupted.
        OutputFailed: A file cannot be written.
    """
    notes, output, started = Notes(observer), named_local_folder(folder), time.monotonic()
    import_module("shardtool.write.unpack")
    with start_pool(options, "Run the same command again to continue.") as pool:
        from shardtool.dataset.expand import expand_datasets
        from shardtool.dataset.find import open_dataset

        try:
            datasets = [open_dataset(given) for given in expand_datasets(dataset)]  # type: ignore[arg-type]
        except InvalidRequest as error:
            if options.keys and isinstance(dataset, list | tuple) and len(dataset) > 1:
                error.remedy = f"{error.remedy} Repeat {option_text('keys')} for each key.".lstrip()
            raise
        listing = _list_samples(datasets, options, pool, notes)
        entries, names = listing.entries, _file_paths(listing.entries, by_key=options.by_key)
        check_file_names(names)
        _check_not_a_key(os.fspath(folder), entries)
        kept = 0
        if not options.dry_run:
            output.create()
            pool.check_access(output=output.path)
            with output.lock(_LOCK_NAME, output_name="into this folder"):
                kept = _write_files(listing, names, output, options, pool, notes)
    metadata = "" if _metadata_table(entries) is None else output.full_path(METADATA)
    return ExtractResult(
        folder=output.path,
        manifest=output.full_path(MANIFEST),
        metadata=metadata,
        samples=len(entries),
        files=len(names),
        kept=kept,
        size=int(entries.rows.size.sum()),
        seconds=time.monotonic() - started,
        notes=tuple(notes.texts),
        create=_create_options(datasets, entries, metadata, options),
        dry_run=options.dry_run,
    )


def _list_samples(datasets: Sequence[StoredDataset], options: ExtractOptions, pool: Pool, notes: Notes) -> Listing:
    from shardtool.select.duplicate_keys import resolve_duplicate_keys
    from shardtool.source.base import skipped_notes
    from shardtool.source.shards import DatasetSource

    # Skip labels that `create` can derive from folder names.
    adds_labels = not options.fields and all(map(_labels_from_folders, datasets))
    fields = f"-{_LABEL_FIELD}" if adds_labels else options.fields
    request = ReshardOptions(where=options.where, keys_from=options.key_list, fields=fields)
    source = DatasetSource([dataset.argument for dataset in datasets], request)
    listing = source.list_samples(pool, notes.observer)
    notes.add(*listing.notes, *skipped_notes(listing.skipped))
    if not len(listing.entries):
        raise InvalidRequest(listing.where, "no samples", expected="one or more")
    where = [to_text(shard.path) for shard in listing.entries.known_spans.files]
    resolve_duplicate_keys(listing.entries, "error", where, where=listing.where)
    metadata = listing.entries.metadata
    if adds_labels and metadata is not None and _LABEL_FIELD in metadata.column_names:
        listing = replace(listing, entries=replace(listing.entries, metadata=metadata.drop_columns([_LABEL_FIELD])))
    return listing


def _check_not_a_key(path: str, entries: SampleTable) -> None:
    if os.path.lexists(path):
        return
    from shardtool.entries.strings import PackedStrings
    from shardtool.table.keys import contains_hashes, hash_keys

    folder, name = os.path.split(path)
    stem, _, field = name.partition(".")
    for key, description in ((path, "the key of a sample"), (os.path.join(folder, stem), "a file of a sample")):
        if key != path and field not in entries.fields:
            continue
        if contains_hashes(hash_keys(entries.keys), hash_keys(PackedStrings.of([os.fsencode(key)]))).any():
            only = option_text("keys", quote_for_shell(key) if uses_cli_names() else [key])
            remedy = f"To extract only this sample, give a folder and {only}."
            raise InvalidRequest(path, description, expected="the folder to write to", remedy=remedy)


def _labels_from_folders(dataset: StoredDataset) -> bool:
    file = dataset.file
    return file is not None and bool(file.run.options.get("label_from_folder")) and _LABEL_FIELD in file.fields


def _file_paths(entries: SampleTable, *, by_key: bool) -> PackedStrings:
    import numpy as np

    from shardtool.entries.strings import PackedStrings

    metadata = entries.metadata
    if not by_key and metadata is not None and _PATHS_COLUMN in metadata.column_names:
        recorded_paths = [name.encode() for paths in metadata.column(_PATHS_COLUMN).to_pylist() for name in paths or ()]
        if len(recorded_paths) == len(entries.rows.code):  # every field has a recorded path
            return PackedStrings.of(map(unquote_to_bytes, recorded_paths))
    fields = tuple(name.replace("/", ".") for name in entries.fields)
    by_keys = replace(entries, fields=fields, rows=replace(entries.rows, paths=None))
    chunks = (by_keys.paths(np.arange(chunk.start, chunk.stop)) for chunk in chunk_slices(len(entries.rows.code)))
    return PackedStrings.parse(b"".join(b"\0".join(chunk) + b"\0" for chunk in chunks))


def check_file_names(names: PackedStrings, *, folded: bool = False) -> None:
    """Raise InvalidRequest unless all paths are safe and distinct, and no path is the folder of another.

    Args:
        folded: Whether the file system ignores case.
    """
    import numpy as np

    from shardtool.entries.strings import PackedStrings
    from shardtool.table.keys import hash_keys

    are_safe = are_safe_paths(names.data[:-1], int(names.lengths().max()))
    for _, chunk in names.chunks():
        for name in _RESERVED_NAMES.intersection(chunk) if are_safe else chunk:
            if problem := path_problem(name) or ("a name reserved by extract" if name in _RESERVED_NAMES else ""):
                remedy = f"Nothing was written. {option_text('where')} can exclude this sample."
                raise InvalidRequest(printable(name)[:200], problem, expected="a path below the folder", remedy=remedy)
    folders = {name.rpartition(b"/")[0] for _, chunk in names.chunks() for name in chunk}
    while above := {name.rpartition(b"/")[0] for name in folders} - folders:
        folders |= above
    if conflicts := sorted(folders.intersection(name for _, chunk in names.chunks() for name in chunk)):
        remedy = f"Nothing was written. {option_text('where')} can exclude some of them."
        problem = "both a file and a folder"
        listed = format_list([*map(printable, conflicts[:_MAX_LISTED_NAMES])], total=len(conflicts))
        raise InvalidRequest(listed, problem, remedy=remedy)
    hashes = hash_keys(PackedStrings(names.data.lower(), names.starts) if folded else names)
    _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    if len(duplicates := first[counts > 1]):
        shown = [printable(names[index]) for index in duplicates[:_MAX_LISTED_NAMES].tolist()]
        problem = "differ only in case, which this folder ignores" if folded else "several fields would have"
        remedy = "Extract them one by one, into separate folders."
        raise InvalidRequest(format_list(shown, total=len(duplicates)), f"names that {problem}", remedy=remedy)


def _create_options(
    datasets: Sequence[StoredDataset], entries: SampleTable, metadata: str, options: ExtractOptions
) -> dict[str, Any]:
    recorded = [dataset.file.run.options if dataset.file is not None else {} for dataset in datasets]
    common = [
        name
        for name in _NAMING_OPTIONS
        if name in recorded[0] and all(dataset_options.get(name) == recorded[0][name] for dataset_options in recorded)
    ]
    create_options = {name: recorded[0][name] for name in common}
    if options.by_key:
        create_options.pop("portable", None)
    # If the labels were extracted as files, `create` must not add labels from folder names.
    if _LABEL_FIELD in entries.used_fields():
        create_options.pop("label_from_folder", None)
    # Pass the class names. Otherwise, if a class has no extracted samples, `create` would assign other class numbers.
    if "label_from_folder" in create_options:
        create_options["classes_from"] = datasets[0].dataset_file
    # With `portable`, omit the table: `create` joins tables before it renames keys, but the table has renamed keys.
    if metadata and "portable" not in create_options:
        create_options |= {"join": metadata, "on": "key"}
    return {**create_options, "exclude": [MANIFEST, METADATA]} if "hidden" in create_options else create_options


@reporting_memory_errors("extracting")
def _write_files(
    listing: Listing, names: PackedStrings, folder: Folder, options: ExtractOptions, pool: Pool, notes: Notes
) -> int:
    # If the lock file is also found under its name in capitals, the file system ignores case.
    if folder.find_entries([f".{_LOCK_NAME.upper()}.lock"]):
        check_file_names(names, folded=True)
    entries, observer = listing.entries, notes.observer
    entries = replace(entries, rows=replace(entries.rows, paths=names))
    tasks, kept = [*_unpack_tasks(listing, entries, folder, pool.max_tasks)], 0
    tables: dict[str, bytes] = {}
    _check_existing(folder, entries, names, options)
    _check_space(folder, entries, names)
    with _mark_unfinished(folder, listing, names, overwrite=options.overwrite) as resumes:
        existing_files: ExistingFile = "overwrite" if options.overwrite else "finish" if resumes else "keep"
        observer.start(len(entries), int(entries.rows.size.sum()), len(tasks))
        unpack_tasks = (UnpackTask(task, listing.compressed, existing_files) for task in tasks)

        def advance(_: int, samples: int, size: int) -> None:
            observer.advance(samples, size, 0)

        for number, kept_files in pool.map(unpack_samples, unpack_tasks, advance):
            tables = tables or _parquet_tables(entries, names)  # build the tables while the workers write files
            kept += kept_files
            observer.advance(0, 0, 1)
            content = tasks[number].samples.content
            size = sum(memoryview(content.sizes).cast("q"))
            observer.shard(tasks[number].name, "extracted", len(content.counts) // 2, size)
        folder.publish(*(folder.stage_bytes(name, table) for name, table in tables.items()))
    return kept


def _unpack_tasks(listing: Listing, entries: SampleTable, folder: Folder, workers: int) -> Iterator[ShardTask]:
    import numpy as np

    from shardtool.plan.plan import Plan
    from shardtool.plan.shard_bounds import cumulative_sizes
    from shardtool.plan.shard_task import build_shard_samples

    sizes = np.add.reduceat(entries.rows.size, entries.first_rows[:-1])
    offsets, shard_numbers = cumulative_sizes(sizes), entries.known_spans.file
    shard_ends = np.append(np.flatnonzero(np.diff(shard_numbers)) + 1, len(entries))
    factor = 1 if len(shard_ends) < _MIN_SHARDS_PER_WORKER * workers else _LARGER_TASKS
    is_end = np.zeros(len(entries) + 1, np.bool_)
    is_end[shard_ends] = True
    if not listing.compressed:
        is_end[np.flatnonzero(np.diff(offsets // (factor * _MAX_TASK_BYTES))) + 1] = True
        is_end[factor * _MAX_TASK_SAMPLES :: factor * _MAX_TASK_SAMPLES] = True
    is_end[0] = False
    plan = Plan("files", entries, None, None, offsets, np.flatnonzero(is_end))
    for number in range(plan.shards):
        name = listing.shards[int(shard_numbers[plan.span(number)[0]])]
        yield ShardTask(name, plan.format, folder, build_shard_samples(plan, number), "raise", 0)


def _parquet_tables(entries: SampleTable, names: PackedStrings) -> dict[str, bytes]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from shardtool.entries.strings import PackedStrings

    if not is_utf8(names.data):  # Parquet strings must be UTF-8
        encoded = (name for _, chunk in names.chunks() for name in chunk)
        names = PackedStrings.of(name if is_utf8(name) else quote_name(name).encode() for name in encoded)
    # `pa.Array.take` would import pyarrow.compute, which is slow.
    keys = entries.keys.take(entries.samples_of(np.arange(len(names))))
    tables_by_name = {MANIFEST: pa.table({"key": _string_array(keys), "path": _string_array(names)})}
    if (metadata := _metadata_table(entries)) is not None:
        tables_by_name[METADATA] = metadata.append_column("key", _string_array(entries.keys))
    tables = {}
    for name, table in tables_by_name.items():
        pq.write_table(table, sink := io.BytesIO())
        tables[name] = sink.getvalue()
    return tables


def _metadata_table(entries: SampleTable) -> pa.Table | None:
    names = [] if entries.metadata is None else entries.metadata.column_names
    names = [name for name in names if name not in (_PATHS_COLUMN, "key")]
    return entries.metadata.select(names) if names and entries.metadata is not None else None


def _string_array(names: PackedStrings) -> pa.StringArray:
    from shardtool.entries.arrow import string_array

    return string_array(names.data.replace(b"\0", b""), names.lengths())


def _check_existing(folder: Folder, entries: SampleTable, names: PackedStrings, options: ExtractOptions) -> None:
    existing = {*folder.names()} - {f".{_LOCK_NAME}.lock"}
    if options.overwrite or _UNFINISHED_NAME in existing or not existing:
        return
    sizes = entries.rows.size.tolist()
    with closing(FolderTree(folder.path)) as tree:
        for start, chunk in names.chunks():
            tree.check_no_conflicts(chunk, sizes[start : start + len(chunk)])
    for name, table in _parquet_tables(entries, names).items():
        if name not in existing:
            continue
        try:
            problem = "" if folder.read(name) == table else "a table of other samples"
        except OSError as error:
            problem = f"not a table: {os_error_text(error)}"
        if problem:
            remedy = f"Name all datasets in one command, choose another folder, or use {flag_text('overwrite')}."
            raise OutputExists(folder.full_path(name), problem, remedy=remedy)


def _check_space(folder: Folder, entries: SampleTable, names: PackedStrings) -> None:
    from shardtool.storage.folders import check_space

    size = int(entries.rows.size.sum())
    try:
        check_space(folder, size, "extracted")
    except OutputFailed:
        # Reading the sizes of existing files is slow, so subtract them only now.
        sizes, top = entries.rows.size.tolist(), os.fsencode(folder.path)
        for start, chunk in names.chunks():
            for index, name in enumerate(chunk, start):
                with suppress(OSError):
                    size -= min(stat_file(os.path.join(top, name)).st_size, sizes[index])
        check_space(folder, size, "extracted")


@contextmanager
def _mark_unfinished(folder: Folder, listing: Listing, names: PackedStrings, *, overwrite: bool) -> Iterator[bool]:
    digest = blake2b(names.data, digest_size=16)
    for column in (listing.entries.rows.size, listing.entries.known_spans.crc):
        digest.update(column.tobytes())
    mark = f"shardtool extract of {listing.name}\n{digest.hexdigest()}\n".encode()
    try:
        previous = folder.read(_UNFINISHED_NAME)
    except OSError:
        previous = b""
    if previous not in (b"", mark) and not overwrite:
        found = f"an unfinished {printable(previous.splitlines()[0])[:200]}"
        remedy = f"Run that command again to finish it, or use {flag_text('overwrite')}; its files stay."
        expected = "none, or a run with the same samples"
        raise OutputExists(folder.full_path(_UNFINISHED_NAME), found, expected=expected, remedy=remedy)
    if not previous:
        folder.publish_bytes(_UNFINISHED_NAME, mark)
    yield bool(previous)
    folder.remove([_UNFINISHED_NAME])
