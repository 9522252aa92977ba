"""The run that a dataset file records, as far as it can be repeated.

The file may contain anything. So only the recorded options in `REPEATABLE_OPTIONS` are used: those that choose
(samples,
fields, order, shard sizes) or change bytes by our own rules. Recorded code, paths and URLs are never used; a run
that had
such options is repeated only if the user passes them to `verify`. The user names the table of `--join`, or
`find_table`
finds it.
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
from shardtool.storage.lookup import is_regular
from shardtool.storage.paths import folder_of
from shardtool.storage.remote.address import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.dataset.dataset_file import DatasetFile


_SOURCE_OPTIONS = ("root", "allow_outside", "symlinks", "map", "join")  # what `verify` has, too, about a source


@contextmanager
def verify_options_in_errors(source: object, join: object, remedy: str) -> Iterator[None]:
    """Name, in errors of a source, only options that the user can type here, and what to do here.

    Args:
        source: What the user gave as the source.
        join: What the user gave as the table of `--join`; None: nothing.
        remedy: What to do, unless the error names an option about a source.
    """
    try:
        yield
    except InvalidRequest as error:
        if join is not None and error.where == _display_path(join):
            error.where = f"{option_text('join')} {error.where}"
            raise
        if join is not None and error.where == option_text("on"):
            error.where, error.found = (
                f"{option_text('join')} {_display_path(join)}",
                f"{error.found}, the column of keys",
            )
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


def _display_path(given: object) -> str:
    """Return a path for messages; empty: `given` is no path."""
    return redact_secrets(printable(os.fspath(given))) if isinstance(given, str | os.PathLike) else ""


REPEATABLE_OPTIONS = frozenset({
    "max_size", "max_count", "shards", "equal_count", "shards_multiple_of", "oversize", "place", "shuffle",
    "seed", "where", "split", "split_column", "stratify", "group_by", "portable",
    "include", "exclude", "hidden",
    "complete", "symlinks", "dots", "label_from_folder", "split_from_folder", "key_pattern",
    "key", "path", "files", "binary", "values", "classes", "meta", "size", "urls", "robots", "require",
    "max_file_size",
    "resize", "resize_mode", "only_larger", "encode", "quality", "images", "masks", "probe",
    "exif", "hash",
    "columns_from", "select_fields", "drop_fields", "rename_fields", "on", "delimiter", "no_header",
    "sample", "on_duplicate", "drop_duplicates", "sort_by", "descending", "head", "per_class", "of",
})  # fmt: skip


_SELECTING_OPTIONS = (
    "where",
    "head",
    "per_class",
    "split_column",
    "stratify",
    "group_by",
)  # so `--join` may choose samples


_COLUMN_OPTIONS = (*_SELECTING_OPTIONS, "of", "sort_by", "descending", "split")


class RecordedRun(NamedTuple):
    """The recorded run that made a dataset, as far as it can be done again.

    Attributes:
        verb: `create`, `reshard` or `index`; empty: not recorded.
        options: The options; if the table of `--join` is not available, without the options about this table.
        table: The path of the table that was found, or the recorded name of a table that is not available. Empty: the
            run used no table, or the user names it.
        made_fields: The fields that may have been made of a table that is not available.
        choosing: The options, as the command line has them, by which it, or what the source was when samples were
            added, may have decided what samples there are.
        map: The function that made the samples, as text, which is never imported; empty where there was none.
        added: Whether fields of other datasets were put beside those of the source.
        without_table: The same run without the table; None: no table was found, or the user names it.
        no_table: Why the table that was found is not available; empty: none was found.
    """

    verb: str
    options: CreateOptions | ReshardOptions
    table: str = ""
    made_fields: tuple[str, ...] = ()
    choosing: tuple[str, ...] = ()
    map: str = ""
    added: bool = False
    without_table: RecordedRun | None = None
    no_table: str = ""

    @property
    def changes(self) -> bool:
        """Whether payloads were changed on the way."""
        options = self.options
        return options.resize is not None or options.encode is not None

    @property
    def of_table(self) -> str:
        """What may have been done by a table that is not available, or with a source that has grown."""
        by = f"by {option_text('join')} {self._lost_table}" if self.table else "of fewer that were there"
        return f"{' and '.join(self.choosing)} may have chosen them {by}"

    @property
    def _lost_table(self) -> str:
        lost = self.no_table or f"which was not found (name it with {option_text('join', 'PATH')})"
        return f"{self.table}, {lost}"

    def unchecked(self) -> Iterator[str]:
        """Yield what cannot be compared with the source, because the table is not available."""
        if self.made_fields:
            what = f"{'field' if len(self.made_fields) == 1 else 'fields'} {format_list([*self.made_fields])}"
            yield f"{what} against the source: made with {option_text('join')} {self._lost_table}"
        if self.choosing:
            yield f"samples that only the source has: {self.of_table}"


def recorded_run(
    file: DatasetFile | None, given: VerifyOptions | DiffOptions, folders: Iterable[str] = ()
) -> RecordedRun:
    """Return how a dataset was made, or, if samples were appended to it, how its first ones were made.

    Args:
        file: The dataset file; None where there is none.
        given: What the user says of the source.
        folders: The folders to search for the table of `--join`, if the user does not name it.

    Raises:
        InvalidRequest: The dataset file records something that is no option, or that the user is to give.
    """
    name = file.made.options.get("join", "") if file else ""
    if given.join is not None:
        if name == "":
            found = "the dataset was created without a table"
            raise InvalidRequest(option_text("join"), found, expected="a dataset that was created with one")
        return _build_run(file, given, given.join)
    without = _build_run(file, given)
    path = find_table(name, folders)
    return _build_run(file, given, path)._replace(table=path, without_table=without) if path else without


def table_folders(source: object, datasets: Iterable[str]) -> list[str]:
    """Return the local folders to search for a joined table: the working directory, then those the user named.

    Args:
        source: The source. Of a folder, this includes its parent; of a file, it is the folder of the file.
        datasets: The folders of the datasets.
    """
    folders = [os.curdir]
    for one in source if isinstance(source, list | tuple) else [source]:
        path = os.fspath(one) if isinstance(one, str | os.PathLike) else None
        if not isinstance(path, str) or is_url(path):
            continue
        is_folder = os.path.isdir(path)
        folders += [path, os.path.join(path, os.pardir)] if is_folder else [folder_of(path)]
    local = (one for one in (*folders, *datasets) if not is_url(one))
    return [*dict.fromkeys(os.path.normpath(one) for one in local)]


def find_table(name: object, folders: Iterable[str]) -> str:
    """Return the path of the first regular file of that name in the folders; empty: there is none.

    The name comes from a dataset file and is untrusted. It must be a plain file name, and links are not followed, so
    only files in these folders are read.
    """
    if not isinstance(name, str) or name != os.path.basename(name):
        return ""
    for folder in folders:
        path = os.path.join(folder, name)  # also in the working directory: a file "-" is not standard input
        if is_regular(path):
            return path
    return ""


def _build_run(file: DatasetFile | None, given: VerifyOptions | DiffOptions, table: object = None) -> RecordedRun:
    verb, recorded = (file.made.verb, {**file.made.options}) if file else ("", {})
    function, added = recorded.pop("map", ""), recorded.pop("add", None)
    if type(function) is not str:
        raise InvalidRequest(
            option_text("source"), f"the dataset file records map as {printable(str(function))[:80]!r}"
        )
    if verb == "reshard":
        if name := next((name for name in SOURCE_OPTIONS if getattr(given, name, None)), ""):
            raise InvalidRequest(option_text(name), "the dataset was made by reshard", expected="a dataset of create's")
        recorded.pop("dots", None)  # found in the source, not asked for
    kind = ReshardOptions if verb == "reshard" else CreateOptions
    if table is None:
        found, told = _without_table(recorded, kind)
    else:
        del recorded["join"]
        found, told = {**_valid_options(recorded, kind), "join": table}, {}
    if file is not None and file.appends and not has_appended_sources(file) and not told:  # each update chose anew
        told = {
            "choosing": tuple(option_text(name) for name in ("head", "per_class") if found.pop(name, None) is not None)
        }
        found.pop("of", None)
    options = ReshardOptions(**found) if verb == "reshard" else _with_user_options(found, given)
    function = printable(function)[:80]
    return RecordedRun(verb, _with_classes(options, file), map=function, added=added is not None, **told)


def _without_table(recorded: dict[str, Any], kind: type[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return recorded options without those about a table that is not available.

    Returns:
        Those options, and what a `RecordedRun` says of the table.
    """
    table, found = recorded.pop("join", ""), _valid_options(recorded, kind)
    if table == "":
        return found, {}
    values = found.pop("values", ())
    for name in ("on", "delimiter", "no_header", "classes", *(() if "head" in found else ("sort_by", "descending"))):
        found.pop(name, None)
    choose = [name for name in _SELECTING_OPTIONS if name in found and (name != "head" or "sort_by" in found)]
    if choose:
        found = {name: value for name, value in found.items() if name not in _COLUMN_OPTIONS}
        if kind is ReshardOptions:  # several that the table chose among may have one key
            found["on_duplicate"] = "first"
    made_fields = tuple(field for field, _ in parse_pairs("values", values))
    return found, {
        "table": printable(str(table))[:80], "made_fields": made_fields, "choosing": tuple(map(option_text, choose)),
    }  # fmt: skip


def _with_user_options(found: dict[str, Any], given: VerifyOptions | DiffOptions) -> CreateOptions:
    """Return the options of `create`: what is recorded, and what the user says of the source."""
    if given.symlinks is not None:
        found["symlinks"] = given.symlinks
    elif found.get("symlinks") == "follow":
        follow = option_text("symlinks", "follow")
        problem = f"the dataset was made with {follow}, by which links may lead out of the source"
        remedy = f"If the source is yours, add {follow}."
        raise InvalidRequest(option_text("source"), problem, expected="your word for that", remedy=remedy)
    return CreateOptions(**found, root=given.root, allow_outside=given.allow_outside)


def _with_classes(options: CreateOptions | ReshardOptions, file: DatasetFile | None) -> CreateOptions | ReshardOptions:
    """Return options by which classes keep the numbers in a dataset file, wherever these were from."""
    if (
        file is None
        or not file.classes
        or not (options.classes or options.values or getattr(options, "label_from_folder", False))
    ):
        return options
    from shardtool.entries.classes import Classes

    return replace(options, classes_from=Classes("the dataset file", file.classes, grows=True))


def _valid_options(recorded: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Return recorded options, as far as they are options of that kind, of the right types."""
    found: dict[str, Any] = {}
    for name, value in recorded.items():
        if name not in REPEATABLE_OPTIONS or name not in option_types(kind):
            found_there = f"the dataset file records {printable(name)[:80]!r}"
            raise InvalidRequest(option_text("source"), found_there, expected="options that choose samples or shards")
        if not has_option_type(value, kind, name):
            raise InvalidRequest(
                option_text("source"), f"the dataset file records {name} as {printable(str(value))[:80]!r}"
            )
        found[name] = tuple(value) if isinstance(value, list) else value
    return found


def has_appended_sources(file: DatasetFile) -> bool:
    """Tell whether samples of another source were appended; else the source of the first run has all of them."""
    return bool(file.appends) and not all(run.is_update_of(file.made) for run in file.made.appended)
