"""The record of a run in a dataset file: verb, source, options and later appends."""

from __future__ import annotations

from collections.abc import Mapping

from shardtool.dataclass import dataclass
from shardtool.messages import PARENT_FORMS, cli_words, option_text, quote_for_shell, uses_cli_names
from shardtool.values import Dots, __version__

_RECORDED_NAMES = {  # options whose names differ in dataset files and plan files
    "field": "values",
    "file": "files",
    "bytes": "binary",
    "url": "urls",
    "image": "images",
    "mask": "masks",
    "size_column": "size",
}
_RENAMES = "rename_fields"
_OPTION_NAMES = {recorded: name for name, recorded in _RECORDED_NAMES.items()}
_SHARD_OPTIONS = (
    "max_size", "max_count", "equal_count", "shards_multiple_of", "oversize", "shuffle", "shards", "place",
)  # fmt: skip


def to_recorded_name(name: str) -> str:
    """Return the name of an option in dataset files and plan files."""
    return _RECORDED_NAMES.get(name, name)


def to_recorded_value(name: str, value: object) -> object:
    """Convert an option's value to the form in dataset files. Renamed fields become OLD=NEW."""
    if isinstance(value, tuple) and name == _RENAMES:
        return [f"{old}={new}" for new, _, old in (text.partition("=") for text in value)]
    return list(value) if isinstance(value, tuple) else value


def _swap_recorded(text: str) -> str:
    old, _, new = text.rpartition("=")
    return f"{new}={old}"


def from_recorded(options: Mapping[str, object]) -> dict[str, object]:
    """Convert the options in a dataset file to the names and values of the options class."""
    values = {_OPTION_NAMES.get(name, name): value for name, value in options.items()}
    if isinstance(renames := values.get(_RENAMES), list):
        values[_RENAMES] = [_swap_recorded(text) if isinstance(text, str) and "=" in text else text for text in renames]
    return values


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The record of a run. Commands and paths in a record are never executed or opened.

    Unknown keys of `document` are kept when the dataset file is rewritten.
    """

    document: Mapping[str, object]

    @property
    def verb(self) -> str:
        """`create`, `reshard` or `index`, or "" if unknown."""
        return self._text("verb")

    @property
    def source(self) -> str:
        """Names of the sources, separated by commas."""
        return self._text("source")

    @property
    def split(self) -> str:
        """The split of this dataset, or "" if it is not a split."""
        return self._text("split")

    @property
    def splits(self) -> tuple[str, ...]:
        """All splits of the run."""
        splits = self.document.get("splits")
        return tuple(map(str, splits)) if isinstance(splits, list) else ()

    @property
    def tool(self) -> str:
        """Name and version of the program, or "" if unknown."""
        return self._text("tool")

    @property
    def options(self) -> dict[str, object]:
        """The recorded options, with their current names."""
        options = self.document.get("options")
        return from_recorded(options) if isinstance(options, dict) else {}

    @property
    def selecting_options(self) -> dict[str, object]:
        """The options that select samples and create fields, but do not assign samples to shards."""
        others = {*_SHARD_OPTIONS, "on_duplicate", *(() if "split" in self.options else ("seed",))}
        return {"dots": self.dots} | {name: value for name, value in self.options.items() if name not in others}

    @property
    def removed(self) -> int:
        """Number of samples that `remove` has deleted."""
        removed = self.document.get("removed")
        return removed if type(removed) is int else 0

    @property
    def dots(self) -> Dots:
        """Whether the `first` or the `last` dot of a tar member name ends the key."""
        return "last" if self.options.get("dots") == "last" else "first"

    @property
    def appended(self) -> tuple[RunRecord, ...]:
        """Later runs that appended samples."""
        runs = self.document.get("appended")
        return tuple(map(RunRecord, runs)) if isinstance(runs, list) else ()

    def as_append_to(self, first: RunRecord) -> RunRecord:
        """Return this record for `first.appended`: without `splits`, and without `split` if it equals `first.split`."""
        skipped = {"splits", "split"} if self.split == first.split else {"splits"}
        return RunRecord({name: value for name, value in self.document.items() if name not in skipped})

    def with_append(self, run: RunRecord) -> RunRecord:
        """Return this record after an append: add `run` to `appended`, and the splits of `run` to `splits`."""
        runs = [record.document for record in (*self.appended, run.as_append_to(self))]
        splits = {"splits": sorted({*self.splits, *run.splits})} if self.splits else {}
        return RunRecord({**self.document, **splits, "appended": runs})

    def is_update_of(self, first: RunRecord) -> bool:
        """Return whether this run added only new samples, with the verb, source and selecting options of `first`."""
        only_new = self.options.get("on_duplicate") == "first"
        same_selection = (self.source, self.selecting_options) == (first.source, first.selecting_options)
        return only_new and same_selection and self.verb == first.verb and self.verb in ("create", "reshard")

    def is_sibling_split_of(self, other: RunRecord) -> bool:
        """Return whether both datasets are splits that one run created. Later changes are ignored."""
        later = {"split": "", "splits": [], "appended": [], "removed": 0}
        mine, theirs = ({**record.document, **later} for record in (self, other))
        return mine == theirs and self.split != other.split and bool(self.split and other.split)

    def _text(self, name: str) -> str:
        text = self.document.get(name)
        return text if isinstance(text, str) else ""


def format_command_line(run: RunRecord) -> str:
    """Return the command line of a run, without OUTPUT."""
    is_reshard = run.verb == "reshard"
    words = [run.verb or "?", *(run.source.split(", ") if is_reshard else filter(None, [run.source]))]
    options = {**run.options}
    if options.pop("descending", False):
        options["sort_by"] = f"-{options.get('sort_by', '')}"
    for name, value in options.items():
        if not (is_reshard and name == "dots"):  # `reshard` reads `dots` from the source
            words += cli_words(name, value)
    return " ".join(map(quote_for_shell, words))


def describe_differences(then: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Return a text with both values for each option that differs between two runs."""
    then, now = ({"dots": "first", **from_recorded(options)} for options in (then, now))  # `dots` defaults to first
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    labels = {name: name if name == "format" else option_text(name) for name in names}  # `format` is not an option
    values = {name: (_describe_value(name, then.get(name)), _describe_value(name, now.get(name))) for name in names}
    return [f"{labels[name]} differs: {before} before, now {after}" for name, (before, after) in values.items()]


def _describe_value(name: str, value: object) -> str:
    if isinstance(value, list) and name in PARENT_FORMS and uses_cli_names():
        return repr(cli_words(name, value)[-1][:80])
    if value is None or value is True:
        return "given" if value else "not given"
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return repr(text[:80]) if isinstance(value, str | list) else text


def make_writer_record(entries: Mapping[str, object]) -> RunRecord:
    """Return the record of a `ShardWriter`, with the additional `entries`."""
    return RunRecord({"verb": "create", "source": "ShardWriter", **entries, "tool": f"shardtool {__version__}"})
