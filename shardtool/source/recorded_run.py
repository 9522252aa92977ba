"""The run that a dataset file records. `verify` and `diff` use its options to list the source again.

Dataset files are untrusted: only the options in `REPEATABLE_OPTIONS` are used, and never recorded code, paths or URLs.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardtool.dataset.expand import expand_if_pattern, sibling_splits
from shardtool.dataset.find import find_dataset
from shardtool.dataset.skipped_list import read_skipped_rows
from shardtool.entries.arrow import append_nuls, to_one_chunk, to_plain
from shardtool.entries.strings import PackedStrings
from shardtool.errors import CorruptShard, InvalidRequest, format_list, printable, redact_secrets
from shardtool.messages import option_text
from shardtool.request.create_options import CreateOptions, ReshardOptions
from shardtool.request.dataset_options import SOURCE_OPTIONS, DiffOptions, VerifyOptions
from shardtool.request.option_spec import has_option_type, option_types
from shardtool.request.option_values import parse_pairs
from shardtool.request.run_record import to_recorded_name
from shardtool.select.rename_keys import OLD_KEY_COLUMN
from shardtool.source.duplicates import drop_duplicate_samples
from shardtool.source.open import identify_source, open_source
from shardtool.storage.files import is_regular
from shardtool.storage.paths import folder_of
from shardtool.storage.remote.address import is_url
from shardtool.table.columns import is_text_type
from shardtool.table.keys import find_positions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.dataset.stored import StoredDataset
    from shardtool.execute.pool import Pool
    from shardtool.pattern import ShardPattern
    from shardtool.request.observer import Observer
    from shardtool.source.base import Listing, Source

    Rows = NDArray[np.int64]


_SOURCE_OPTIONS = ("root", "allow_outside", "symlinks", "map", "join")


@contextmanager
def verify_options_in_errors(source: object, join: object, remedy: str) -> Iterator[None]:
    """Change errors about the source, so they mention only options of `verify` and `diff`.

    Keep advice that names one of `_SOURCE_OPTIONS`. Add `remedy` to advice that starts with "Did you mean". Replace
    all other advice with `remedy`.
    """
    try:
        yield
    except InvalidRequest as error:
        if join is not None and error.where == _display_path(join):
            error.where = f"{option_text('join')} {error.where}"
            raise
        if join is not None and error.where == option_text("on"):
            error.where, error.found = f"{option_text('join')} {_display_path(join)}", f"{error.found}, the key column"
            error.remedy = f"{option_text('join')} takes the table that the dataset was created with."
            raise
        if any(error.where == option_text(name) for name in REPEATABLE_OPTIONS):
            error.found = f"the dataset was created with {error.where}: {error.found}"
            error.where = _display_path(source) or "the source"
        if error.remedy.startswith("Did you mean "):
            error.remedy += f" {remedy}"
        elif not any(option_text(name) in error.remedy for name in _SOURCE_OPTIONS):
            error.remedy = remedy
        raise


def _display_path(argument: object) -> str:
    return redact_secrets(printable(os.fspath(argument))) if isinstance(argument, str | os.PathLike) else ""


REPEATABLE_OPTIONS = frozenset({
    "max_size", "max_count", "shards", "equal_count", "shards_multiple_of", "oversize", "place", "shuffle",
    "seed", "where", "split", "split_column", "stratify", "group_by", "portable",
    "include", "exclude", "hidden",
    "complete", "symlinks", "dots", "label_from_folder", "split_from_folder", "key_pattern",
    "key", "path", "file", "bytes", "field", "classes", "meta", "size_column", "url", "robots", "require",
    "max_file_size",
    "resize", "resize_mode", "only_larger", "encode", "quality", "image", "mask", "probe",
    "exif", "hash",
    "columns_from", "select_fields", "drop_fields", "rename_fields", "rename_keys", "on", "delimiter",
    "no_header", "collect",
    "sample", "on_duplicate", "drop_duplicates", "sort_by", "descending", "head", "per_class", "of",
})  # fmt: skip

# These options may select samples by columns of the `--join` table.
_SELECTING_OPTIONS = ("where", "head", "per_class", "split_column", "stratify", "group_by")
_TABLE_OPTIONS = ("on", "delimiter", "no_header", "collect", "classes")
_COLUMN_OPTIONS = (*_SELECTING_OPTIONS, "of", "sort_by", "descending", "split")


class RecordedRun(NamedTuple):
    """A recorded run, without the options that `verify` and `diff` cannot repeat.

    Attributes:
        table: The path of the `--join` table, or its recorded name if the table was not found. Empty if the
            run used no table, or if the user names the table.
        made_fields: If the `--join` table was not found, the fields that may come from the table.
        selecting_options: Options whose selection of samples cannot be repeated.
        without_table: The run to use if the table cannot be joined.
    """

    verb: str
    options: CreateOptions | ReshardOptions
    table: str = ""
    made_fields: tuple[str, ...] = ()
    selecting_options: tuple[str, ...] = ()
    map: str = ""
    key_list: str = ""
    has_added_fields: bool = False
    without_table: RecordedRun | None = None
    table_problem: str = ""

    @property
    def changes_payloads(self) -> bool:
        """Whether the run resized or encoded images."""
        options = self.options
        return options.resize is not None or options.encode is not None

    @property
    def selection_problem(self) -> str:
        """Why the recorded selection of samples cannot be repeated."""
        table = f"{option_text('join')} {self._missing_table_text}"
        reason = f"depended on {table}" if self.table else "selected from a smaller source"
        return f"{' and '.join(self.selecting_options)} {reason}"

    @property
    def _missing_table_text(self) -> str:
        problem = self.table_problem or f"which was not found (name it with {option_text('join', 'PATH')})"
        return f"{self.table}, {problem}"

    def unchecked(self) -> Iterator[str]:
        """Describe what cannot be compared, and why."""
        if self.made_fields:
            what = f"{'field' if len(self.made_fields) == 1 else 'fields'} {format_list([*self.made_fields])}"
            yield f"{what} against the source: created with {option_text('join')} {self._missing_table_text}"
        if self.selecting_options:
            yield f"samples that only the source has: {self.selection_problem}"
        if self.key_list:
            yield f"samples that only the source has: {option_text('keys_from', self.key_list)} selected the samples"


def recorded_run(
    file: DatasetFile | None, user_options: VerifyOptions | DiffOptions, folders: Iterable[str] = ()
) -> RecordedRun:
    """Return the run that created a dataset, without later appends.

    If the user does not name the `--join` table, search for the recorded name in `folders`.
    """
    name = file.run.options.get("join", "") if file else ""
    if user_options.join is not None:
        if name == "":
            found = "the dataset was created without a table"
            raise InvalidRequest(option_text("join"), found, expected="a dataset that was created with one")
        return _build_run(file, user_options, user_options.join)
    run_without_table = _build_run(file, user_options)
    if not (path := find_table(name, folders)):
        return run_without_table
    return _build_run(file, user_options, path)._replace(table=path, without_table=run_without_table)


def table_folders(source: object, datasets: Iterable[str]) -> list[str]:
    """Return the local folders in which `find_table` searches."""
    folders = [os.curdir]
    for item in source if isinstance(source, list | tuple) else [source]:
        path = os.fspath(item) if isinstance(item, str | os.PathLike) else None
        if not isinstance(path, str) or is_url(path):
            continue
        is_folder = os.path.isdir(path)
        folders += [path, os.path.join(path, os.pardir)] if is_folder else [folder_of(path)]
    local = (item for item in (*folders, *datasets) if not is_url(item))
    return [*dict.fromkeys(os.path.normpath(item) for item in local)]


def find_table(name: object, folders: Iterable[str]) -> str:
    """Return the path of the first regular file with this name in `folders`, or "".

    The name is untrusted, so it must not contain a folder. Links are not followed.
    """
    if not isinstance(name, str) or name != os.path.basename(name):
        return ""
    for folder in folders:
        path = os.path.join(folder, name)  # with a folder, the name `-` does not mean standard input
        if is_regular(path):
            return path
    return ""


def _build_run(
    file: DatasetFile | None, user_options: VerifyOptions | DiffOptions, table: object = None
) -> RecordedRun:
    verb, recorded = (file.run.verb, {**file.run.options}) if file else ("", {})
    function, added = recorded.pop("map", ""), recorded.pop("add", None)
    key_list = printable(str(recorded.pop("keys_from", "")))[:80]
    if type(function) is not str:
        problem = f"the dataset file records map as {printable(str(function))[:80]!r}"
        raise InvalidRequest(option_text("source"), problem)
    if verb == "reshard":
        if name := next((name for name in SOURCE_OPTIONS if getattr(user_options, name, None)), ""):
            problem = "the dataset was created by reshard"
            raise InvalidRequest(option_text(name), problem, expected="a dataset of `create`")
        recorded.pop("dots", None)  # `reshard` detects the value of `dots`, and has no option for it
    options_type = ReshardOptions if verb == "reshard" else CreateOptions
    unrepeatable: dict[str, Any] = {}
    if table is None:
        values, unrepeatable = _without_table(recorded, options_type)
    else:
        del recorded["join"]
        values = {**_valid_options(recorded, options_type), "join": table}
    if file is not None and file.appends and not has_appended_sources(file) and not unrepeatable:
        # If the source has grown, these options would select different samples.
        selecting = [name for name in ("head", "per_class") if values.pop(name, None) is not None]
        unrepeatable = {"selecting_options": tuple(map(option_text, selecting))}
        values.pop("of", None)
    options = ReshardOptions(**values) if verb == "reshard" else _with_user_options(values, user_options)
    options = _with_classes(options, file)
    function, has_added = printable(function)[:80], added is not None
    return RecordedRun(verb, options, map=function, has_added_fields=has_added, key_list=key_list, **unrepeatable)


def _without_table(recorded: dict[str, Any], options_type: type[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    # Return the options that work without the table, and the attributes of `RecordedRun` for the other options.
    table, valid = recorded.pop("join", ""), _valid_options(recorded, options_type)
    if table == "":
        return valid, {}
    values = valid.pop("field", ())
    for name in (*_TABLE_OPTIONS, *(() if "head" in valid else ("sort_by", "descending"))):
        valid.pop(name, None)
    selecting = [name for name in _SELECTING_OPTIONS if name in valid and (name != "head" or "sort_by" in valid)]
    if selecting:
        valid = {name: value for name, value in valid.items() if name not in _COLUMN_OPTIONS}
        if options_type is ReshardOptions:  # without the removed options, several samples may have the same key
            valid["on_duplicate"] = "first"
    made_fields = tuple(field for field, _ in parse_pairs("field", values))
    state = {"table": printable(str(table))[:80], "made_fields": made_fields}
    return valid, {**state, "selecting_options": tuple(map(option_text, selecting))}


def _with_user_options(recorded: dict[str, Any], user_options: VerifyOptions | DiffOptions) -> CreateOptions:
    if user_options.symlinks is not None:
        recorded["symlinks"] = user_options.symlinks
    elif recorded.get("symlinks") == "follow":
        follow = option_text("symlinks", "follow")
        problem = f"the dataset was created with {follow}, so links may lead out of the source"
        remedy = f"If you trust the source, add {follow}."
        raise InvalidRequest(option_text("source"), problem, expected="your confirmation", remedy=remedy)
    return CreateOptions(**recorded, root=user_options.root, allow_outside=user_options.allow_outside)


def _with_classes(options: CreateOptions | ReshardOptions, file: DatasetFile | None) -> CreateOptions | ReshardOptions:
    has_labels = options.classes or options.field or getattr(options, "label_from_folder", False)
    if file is None or not file.classes or not has_labels:
        return options
    from shardtool.entries.classes import Classes

    return replace(options, classes_from=Classes("the dataset file", file.classes, allows_new=True))


def _valid_options(recorded: dict[str, Any], options_class: type[Any]) -> dict[str, Any]:
    valid: dict[str, Any] = {}
    for name, value in recorded.items():
        if name not in REPEATABLE_OPTIONS or name not in option_types(options_class):
            problem = f"the dataset file records {printable(to_recorded_name(name))[:80]!r}"
            raise InvalidRequest(option_text("source"), problem, expected="options that select samples or shards")
        if not has_option_type(value, options_class, name):
            found = f"the dataset file records {to_recorded_name(name)} as {printable(str(value))[:80]!r}"
            raise InvalidRequest(option_text("source"), found)
        valid[name] = tuple(value) if isinstance(value, list) else value
    return valid


def has_appended_sources(file: DatasetFile) -> bool:
    """Return whether samples of another source were appended."""
    return bool(file.appends) and not all(run.is_update_of(file.run) for run in file.run.appended)


class RecordedSource:
    """Lists the source of a recorded run again.

    `datasets` are datasets that the run created. If the `--join` table cannot be joined, `run.without_table` is used.
    """

    def __init__(
        self, run: RecordedRun, datasets: Sequence[StoredDataset], source_argument: Any, outputs: Sequence[ShardPattern]
    ) -> None:
        self.run, self._datasets = run, datasets
        if isinstance(run.options, ReshardOptions):
            for item in source_argument if isinstance(source_argument, (list, tuple)) else [source_argument]:
                if not isinstance(item, (str, os.PathLike, list, tuple)):
                    found = f"a {type(item).__name__}"
                    raise InvalidRequest(option_text("source"), found, expected="the source datasets")
                for dataset in expand_if_pattern(item):
                    find_dataset(dataset)
        self._source_argument, self._outputs = source_argument, outputs
        self.source = self._open(run)
        self._fixed_splits = self._find_fixed_splits()

    def _open(self, run: RecordedRun) -> Source:
        options = replace(run.options, on_error="skip")
        if isinstance(options, CreateOptions):
            options = replace(options, dots=options.dots or "first")  # a run without `dots` used the default
        if run.key_list:
            options = replace(options, keys_from=_stored_keys(self._datasets, old=options.rename_keys is not None))
        source = open_source(identify_source(self._source_argument, options), options, self._outputs)
        source.optional_values = True
        return source

    def _find_fixed_splits(self) -> list[StoredDataset]:
        split_options = self.run.options.make_split_options()
        if split_options is None or split_options.option_and_column is None:
            return []
        names = {dataset.split for dataset in self._datasets}
        others = [dataset for dataset in sibling_splits(self._datasets[0]) if dataset.split not in names]
        splits = [*self._datasets, *others]
        return splits if split_options.stratify or _have_grown(splits) else []

    def list_samples(self, pool: Pool, observer: Observer) -> tuple[Listing, Rows]:
        """Return the source samples that the datasets should contain, and the index of each sample's dataset."""
        try:
            return self._list_samples(pool, observer)
        except InvalidRequest as error:
            if (run := self.run.without_table) is None:
                raise
            self.run = run._replace(table_problem=f"which cannot be joined as found in {self.run.table}: {error}")
            self.source = self._open(self.run)
            self._fixed_splits = self._find_fixed_splits()
            return self._list_samples(pool, observer)

    def _list_samples(self, pool: Pool, observer: Observer) -> tuple[Listing, Rows]:
        options, source, datasets = self.run.options, self.source, self._datasets
        listing = source.select_and_sort(source.list_samples(pool, observer), lambda: None)
        listing = drop_duplicate_samples(listing, source, options, pool, observer, partial(_stored_keys, datasets))
        entries, split_options = listing.entries, options.make_split_options()
        dataset_indexes = np.zeros(len(entries), np.int64)
        if split_options is not None:
            from shardtool.select.splits import assign_splits

            option_and_column = split_options.option_and_column
            values = source.labels(listing, *option_and_column) if option_and_column else None
            splits = assign_splits(entries.keys, split_options, values)
            names = (dataset.split for dataset in (*datasets, *self._fixed_splits))
            numbers = {name: number for number, name in enumerate(dict.fromkeys([*splits.names, *names]))}
            for dataset in self._fixed_splits:
                positions = find_positions(_stored_keys([dataset]), entries.keys)
                splits.number[positions[positions >= 0]] = numbers[dataset.split]
            split_samples = [splits.samples(numbers[dataset.split]) for dataset in datasets]
            dataset_indexes = np.repeat(np.arange(len(split_samples)), [len(samples) for samples in split_samples])
            entries = entries.take(np.concatenate(split_samples))
        if options.portable:
            from shardtool.select.storable_names import make_portable

            entries = make_portable(entries)
        return replace(listing, entries=entries), dataset_indexes

    def missing_splits(self) -> str:
        """Describe samples that are not compared because splits are missing, or return ""."""
        split_options = self.run.options.make_split_options()
        if split_options is None or split_options.stratify is None or not _have_grown(self._fixed_splits):
            return ""
        existing = {dataset.split for dataset in self._fixed_splits}
        missing = [name for name, _ in split_options.shares if name not in existing]
        reason = f"they may be in {format_list(missing)}, which is missing"
        return f"samples that only the source has: {reason}" if missing else ""

    def skipped_keys(self) -> tuple[set[str], list[str]]:
        """Return the keys of skipped samples, and the datasets whose list of skipped samples cannot be read."""
        keys, unread = set[str](), list[str]()
        for dataset in self._fixed_splits or self._datasets:
            try:
                keys |= {row.key for row in read_skipped_rows(dataset.file, dataset.folder)} if dataset.file else set()
            except CorruptShard:
                unread.append(dataset.where)
        return keys, unread


def _have_grown(datasets: Sequence[StoredDataset]) -> bool:
    return any(dataset.file and dataset.file.appends for dataset in datasets)


def _stored_keys(datasets: Sequence[StoredDataset], *, old: bool = False) -> PackedStrings:
    encoded = []
    for shard in (shard for dataset in datasets for shard in dataset.shards):
        with suppress(CorruptShard):
            index = shard.index(metadata=old)
            names = index.table.column_names if old else ()
            column = to_one_chunk(to_plain(index.table.column(OLD_KEY_COLUMN))) if OLD_KEY_COLUMN in names else None
            is_valid = column is not None and is_text_type(column.type)
            encoded.append(append_nuls(column) if is_valid else index.keys_with_nul())
    return PackedStrings.parse(b"".join(encoded))
