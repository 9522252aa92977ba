"""What a dataset file records of the run that made its dataset, and the source of that run, opened again.

What is recorded is never executed, and names no file of this machine: not the table of `--join`, so what came of that
is left open.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from shardtool.commandline import option
from shardtool.errors import InvalidRequest, printable
from shardtool.reading import find_dataset
from shardtool.verbs.listing import open_source
from shardtool.verbs.options import CreateOptions, pairs
from shardtool.verbs.reshard import ReshardOptions, ShardSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.dataset import DatasetFile
    from shardtool.pattern import ShardPattern
    from shardtool.verbs.listing import Source

AnyOptions = TypeVar("AnyOptions", CreateOptions, ReshardOptions)

_NEVER = frozenset(
    {"workers", "start_method", "if_exists", "on_error", "root", "allow_outside", "stat", "export", "join", "method",
     "memory", "temp_dir", "classes_from"}
)  # fmt: skip
_CHOOSE = ("where", "head", "split_column", "stratify", "group_by")  # with them, `--join` may choose samples
_CHOSEN_BY: dict[str, Any] = {
    "where": None, "sort_by": None, "descending": False, "head": None, "split": None, "split_column": None,
    "stratify": None, "group_by": None, "on_duplicate": "first",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recorded:
    """How a dataset was made, as far as that can be told and done again.

    Attributes:
        verb: `create`, `reshard` or `index`; empty where it is not told.
        options: Without those that say what is to be made of a table that is not at hand.
        table: The name of that table: what `--join` took; empty where it took none.
        made_fields: The fields that may have been made of it.
        choosing: The options, as the command line has them, by which it may have decided what samples there are.
    """

    verb: str
    options: CreateOptions | ReshardOptions
    table: str = ""
    made_fields: tuple[str, ...] = ()
    choosing: tuple[str, ...] = ()

    @property
    def calls(self) -> bool:
        """Whether a function of the user's made the samples."""
        return isinstance(self.options, CreateOptions) and self.options.map is not None

    @property
    def changes(self) -> bool:
        """Whether payloads were changed on the way."""
        options = self.options
        return isinstance(options, CreateOptions) and (options.resize is not None or options.encode is not None)


def recorded_run(file: DatasetFile | None) -> Recorded:
    """Return how a dataset was made: of one that was appended to, how its first samples were.

    Raises:
        InvalidRequest: The dataset file tells of something that is no option.
    """
    verb = str(file.made.get("verb", "")) if file else ""
    if file is None or verb != "reshard":
        return Recorded(verb, create_options(file))
    told = {name: value for name, value in _told(file).items() if name != "dots"}  # found in the source, not asked for
    table, found = told.pop("join", ""), _options(told, ReshardOptions)
    if table == "":
        return Recorded(verb, _with_classes(ReshardOptions(**found), file))
    values = found.pop("values", ())
    for name in ("on", "classes", *(() if "head" in found else ("sort_by", "descending"))):
        found.pop(name, None)
    choose = [name for name in _CHOOSE if name in found and (name != "head" or "sort_by" in found)]
    options = ReshardOptions(**found)
    if choose:
        options = replace(options, **_CHOSEN_BY)
    made_fields = tuple(field for field, _ in pairs("--field", values))
    return Recorded(verb, options, printable(str(table))[:80], made_fields, tuple(map(option, choose)))


def create_options(file: DatasetFile | None) -> CreateOptions:
    """Return the options of `create`, as far as a dataset file tells.

    Raises:
        InvalidRequest: It tells of something that is no option.
    """
    return _with_classes(CreateOptions(**_options(_told(file) if file else {}, CreateOptions)), file)


def _with_classes(options: AnyOptions, file: DatasetFile | None) -> AnyOptions:
    """Return options by which classes keep the numbers that a dataset file tells of, wherever these were from."""
    if file is None or not file.classes or not (options.classes or getattr(options, "label_from_folder", False)):
        return options
    from shardtool.source.classes import Classes

    return replace(options, classes_from=Classes("the dataset file", file.classes, grows=True))


def _told(file: DatasetFile) -> dict[str, Any]:
    told = file.made.get("options")
    return told if isinstance(told, dict) else {}


def _options(told: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Return recorded options, as far as they are options of that kind, of the right types."""
    known = {one.name: str(one.type) for one in fields(kind) if one.name not in _NEVER}
    found: dict[str, Any] = {}
    for name, value in told.items():
        if name not in known:
            raise InvalidRequest("--source", f"the dataset file records {printable(name)[:80]!r}", expected="options")
        if not _fits(value, known[name]):
            raise InvalidRequest("--source", f"the dataset file records {name} as {printable(str(value))[:80]!r}")
        found[name] = tuple(value) if isinstance(value, list) else value
    return found


def _fits(value: object, annotation: str) -> bool:
    """Tell whether a value from JSON is of the type that an option has; of a few texts, the option itself sees."""
    if isinstance(value, list):
        return annotation.startswith("tuple") and all(isinstance(one, str) for one in value)
    kinds = annotation.split(" | ")
    if isinstance(value, str):
        return not annotation.startswith("tuple") and ("str" in kinds or kinds[0] not in ("bool", "int", "float"))
    if type(value) is int and "float" in kinds:
        return True
    return value is not None and type(value).__name__ in kinds


def open_again(run: Recorded, source: Any, outputs: Sequence[ShardPattern]) -> Source:
    """Return the source of a run.

    Args:
        run: Which.
        source: Where it is now; of `reshard`, which takes several datasets, also a list of them.
        outputs: Of what was made.

    Raises:
        InvalidRequest: There is no such source.
    """
    several = isinstance(source, (list, tuple))
    if isinstance(run.options, ReshardOptions):
        givens = [*source] if several else [source]
        for one in givens:
            if not isinstance(one, (str, os.PathLike, list, tuple)):
                found = f"a {type(one).__name__}"
                raise InvalidRequest("--source", found, expected="what it was made from: datasets")
            find_dataset(one)  # before shards are read, where there is none
        return ShardSource(givens, replace(run.options, on_error="skip"), outputs)
    if several:
        found = f"{len(source)} sources"
        raise InvalidRequest("--source", found, expected="one: only `reshard` takes several")
    return open_source(source, replace(run.options, on_error="skip", map=None), outputs)
