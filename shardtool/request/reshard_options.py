"""What `reshard` can be asked for."""

from __future__ import annotations

from dataclasses import dataclass

from shardtool.errors import InvalidRequest
from shardtool.request.options import OutputOptions, check_classes_from
from shardtool.request.python_types import Folder, Pairs, pairs
from shardtool.values import OnDuplicate, ReadMethod, parse_size
from shardtool.wording import option


@dataclass(frozen=True, slots=True)
class ReshardOptions(OutputOptions):
    """The options of `reshard`; options on the command line have the same names where no other is given.

    Samples are chosen and changed in this order: fields, `join`, `where`, `values`, `sample`, duplicates, `sort_by`,
    `head`; `shuffle` and `split` come after all of them.

    Attributes:
        select_fields: Only these fields.
        drop_fields: All fields but these.
        rename_fields: `--rename-field`: `{"old": "new"}`, or texts such as `old=new`.
        join: A table whose columns become the samples' metadata: a file, or a table in memory.
        on: Its column of keys.
        values: `--field`: `{"cls": "COLUMN"}`, or texts such as `cls=COLUMN`: a field made of a column of metadata, in
            place of the one of that name.
        classes: Those of `values` that are labels, to be numbered.
        classes_from: The names of classes, in the order of their numbers: a dataset file, a JSON or text file, a list,
            or lists by field; None: they are numbered in the order of their bytes.
        sample: A share of the samples, by the hash of their keys: `0.01` or `1%`.
        on_duplicate: What becomes of samples with one key: `error`, `rename`, or only the `first` or the `last` stays.
        sort_by: A column to order the samples by.
        descending: From the largest to the smallest.
        head: Only the first samples, so many.
        method: How samples in another order are read: `gather`, each at its place; `scatter`, in two passes; `auto`.
        memory: What `scatter` may hold in memory.
        temp_dir: Where `scatter` writes; None: beside the output.
    """

    select_fields: tuple[str, ...] = ()
    drop_fields: tuple[str, ...] = ()
    rename_fields: Pairs = ()
    join: object = None
    on: str | None = None
    values: Pairs = ()
    classes: tuple[str, ...] = ()
    classes_from: object = None
    sample: str | float | None = None
    on_duplicate: OnDuplicate = "error"
    sort_by: str | None = None
    descending: bool = False
    head: int | None = None
    method: ReadMethod = "auto"
    memory: str | int = "2GB"
    temp_dir: Folder | None = None

    def __post_init__(self) -> None:
        OutputOptions.__post_init__(self)  # `super()` does not work in a dataclass with slots
        if (self.join is None) != (self.on is None):
            given, other = ("on", "join") if self.join is None else ("join", "on")
            expected = "a table" if self.join is None else f"the table's column of keys, such as {option('on', 'key')}"
            raise InvalidRequest(option(given), f"no {option(other)}", expected=expected)
        if self.sort_by is not None and self.shuffle:
            raise InvalidRequest(option("sort_by"), f"used with {option('shuffle')}", expected="one order")
        if self.sort_by is not None and self.place == "hash":
            found = f"used with {option('place', 'hash')}, by which samples stand in the order of their keys"
            raise InvalidRequest(option("sort_by"), found, expected="one order")
        if self.descending and self.sort_by is None:
            raise InvalidRequest(option("descending"), f"no {option('sort_by')}", expected="a column to sort by")
        check_classes_from(self.classes_from, option("classes", ("FIELD",)), self.classes)
        parse_size(self.memory)
        pairs("rename_fields", self.rename_fields, "OLD=NEW, such as jpeg=jpg")
        pairs("values", self.values)
