"""The run that a dataset file records. Its options are used to list the source again.

Dataset files are untrusted. Only recorded options in `REPEATABLE_OPTIONS` are used. Recorded code, paths and URLs are
never used, so the user must pass them again.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from shardtool.errors import InvalidRequest, format_list, printable, redact_secrets
from shardtool.messages import option_text
from shardtool.request.create_options import CreateOptions, ReshardOptions
from shardtool.request.dataset_options import SOURCE_OPTIONS, DiffOptions, VerifyOptions
from shardtool.request.option_spec import has_option_type, option_types
from shardtool.request.option_values import parse_pairs
from shardtool.request.run_record import to_recorded_name
from shardtool.storage.lookup import is_regular
from shardtool.storage.paths import folder_of
from shardtool.storage.remote.address import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.dataset.dataset_file import DatasetFile


_SOURCE_OPTIONS = ("root", "allow_outside", "symlinks", "map", "join")


@contextmanager
def verify_options_in_errors(source: object, join: object, remedy: str) -> Iterator[None]:
    """Change the errors of a source so that they name only options of `verify` and `diff`.

    `remedy` replaces the advice of an error, unless the advice names an option that `verify` and `diff` have.
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
    """The recorded run, without the options that cannot be repeated.

    Attributes:
        table: The path of the `--join` table, or its recorded name if no table was found.
        made_fields: Fields that the run may have created from the table. Empty if the table was found.
        selecting_options: Options whose selection of samples cannot be repeated.
        without_table: The run without the table, to use if the table cannot be joined.
        table_problem: Why the table cannot be joined.
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
        """Whether the run changed payloads."""
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
        lost = self.table_problem or f"which was not found (name it with {option_text('join', 'PATH')})"
        return f"{self.table}, {lost}"

    def unchecked(self) -> Iterator[str]:
        """Describe what cannot be compared with the source, because the table or the list of keys is missing."""
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
    """Return the run that created a dataset. If samples were appended later, return the first run.

    The table of `--join` is searched for in `folders`, unless the user names the table.
    """
    name = file.made.options.get("join", "") if file else ""
    if user_options.join is not None:
        if name == "":
            found = "the dataset was created without a table"
            raise InvalidRequest(option_text("join"), found, expected="a dataset that was created with one")
        return _build_run(file, user_options, user_options.join)
    without = _build_run(file, user_options)
    path = find_table(name, folders)
    return _build_run(file, user_options, path)._replace(table=path, without_table=without) if path else without


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
    """Return the path of the first regular file with this name in `folders`, or an empty string.

    The name is untrusted, so a name with a folder part is rejected. Links are not followed.
    """
    if not isinstance(name, str) or name != os.path.basename(name):
        return ""
    for folder in folders:
        path = os.path.join(folder, name)  # the name "-" without a folder would mean standard input
        if is_regular(path):
            return path
    return ""


def _build_run(
    file: DatasetFile | None, user_options: VerifyOptions | DiffOptions, table: object = None
) -> RecordedRun:
    verb, recorded = (file.made.verb, {**file.made.options}) if file else ("", {})
    function, added = recorded.pop("map", ""), recorded.pop("add", None)
    key_list = printable(str(recorded.pop("keys_from", "")))[:80]
    if type(function) is not str:
        problem = f"the dataset file records map as {printable(str(function))[:80]!r}"
        raise InvalidRequest(option_text("source"), problem)
    if verb == "reshard":
        if name := next((name for name in SOURCE_OPTIONS if getattr(user_options, name, None)), ""):
            problem = "the dataset was created by reshard"
            raise InvalidRequest(option_text(name), problem, expected="a dataset of `create`")
        recorded.pop("dots", None)  # `reshard` detects this value and has no such option
    kind = ReshardOptions if verb == "reshard" else CreateOptions
    if table is None:
        found, table_state = _without_table(recorded, kind)
    else:
        del recorded["join"]
        found, table_state = {**_valid_options(recorded, kind), "join": table}, {}
    if file is not None and file.appends and not has_appended_sources(file) and not table_state:
        # the source has grown since these options were applied, so they would select other samples
        selecting = [name for name in ("head", "per_class") if found.pop(name, None) is not None]
        table_state = {"selecting_options": tuple(map(option_text, selecting))}
        found.pop("of", None)
    options = ReshardOptions(**found) if verb == "reshard" else _with_user_options(found, user_options)
    function = printable(function)[:80]
    options, has_added = _with_classes(options, file), added is not None
    return RecordedRun(verb, options, map=function, has_added_fields=has_added, key_list=key_list, **table_state)


def _without_table(recorded: dict[str, Any], kind: type[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    # Return the options that work without the table, and attributes of `RecordedRun` that describe what is missing.
    table, valid = recorded.pop("join", ""), _valid_options(recorded, kind)
    if table == "":
        return valid, {}
    values = valid.pop("field", ())
    for name in (*_TABLE_OPTIONS, *(() if "head" in valid else ("sort_by", "descending"))):
        valid.pop(name, None)
    selecting = [name for name in _SELECTING_OPTIONS if name in valid and (name != "head" or "sort_by" in valid)]
    if selecting:
        valid = {name: value for name, value in valid.items() if name not in _COLUMN_OPTIONS}
        if kind is ReshardOptions:  # without the removed options, several samples may have the same key
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

    return replace(options, classes_from=Classes("the dataset file", file.classes, grows=True))


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
    """Return whether samples of another source were appended after the first run."""
    return bool(file.appends) and not all(run.is_update_of(file.made) for run in file.made.appended)
