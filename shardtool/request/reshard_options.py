"""What `reshard` can be asked for."""

from __future__ import annotations

from dataclasses import dataclass

from shardtool.request.options import SelectingOptions, check_classes_from
from shardtool.request.python_types import Folder  # noqa: TC001 - annotations are evaluated
from shardtool.values import OnDuplicate, ReadMethod, parse_size
from shardtool.wording import option


@dataclass(frozen=True, slots=True)
class ReshardOptions(SelectingOptions):
    """The options of `reshard`; options on the command line have the same names where no other is given.

    After those of `SelectingOptions`, they act in this order: `sample`, `on_duplicate`, `sort_by`, `head`; `shuffle`
    and `split` come after all of them.

    Attributes:
        sample: A share of the samples, by the hash of their keys: `0.01` or `1%`.
        on_duplicate: What becomes of samples with one key: `error`, `rename`, or only the `first` or the `last` stays.
        head: Only the first samples, so many.
        method: How samples in another order are read: `gather`, each at its place; `scatter`, in two passes; `auto`.
        memory: What `scatter` may hold in memory.
        temp_dir: Where `scatter` writes; None: beside the output.
    """

    sample: str | float | None = None
    on_duplicate: OnDuplicate = "error"
    head: int | None = None
    method: ReadMethod = "auto"
    memory: str | int = "2GB"
    temp_dir: Folder | None = None

    def __post_init__(self) -> None:
        SelectingOptions.__post_init__(self)  # `super()` does not work in a dataclass with slots
        check_classes_from(self.classes_from, option("classes", ("FIELD",)), self.classes)
        parse_size(self.memory)
