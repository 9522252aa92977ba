"""Run records in dataset files, with verb, source, options and later appends."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from shardtool.dataclass import dataclass
from shardtool.messages import FAMILY_KEYS, cli_words, option_text, uses_cli_names
from shardtool.values import Dots, __version__

_RECORDED_NAMES = {  # names of options in dataset files and plan files that differ from the options
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


def to_recorded_name(name: str) -> str:
    """Return the name under which files record an option."""
    return _RECORDED_NAMES.get(name, name)


def to_recorded_value(name: str, value: object) -> object:
    """Return the value of an option as dataset files record it. They record renamed fields as OLD=NEW."""
    if isinstance(value, tuple) and name == _RENAMES:
        return [f"{old}={new}" for new, _, old in (text.partition("=") for text in value)]
    return list(value) if isinstance(value, tuple) else value


def _swap_recorded(text: str) -> str:
    old, _, new = text.rpartition("=")
    return f"{new}={old}"


def from_recorded(options: Mapping[str, object]) -> dict[str, object]:
    """Convert recorded options to the names and values of the options class."""
    values = {_OPTION_NAMES.get(name, name): value for name, value in options.items()}
    if isinstance(renames := values.get(_RENAMES), list):
        values[_RENAMES] = [_swap_recorded(text) if isinstance(text, str) and "=" in text else text for text in renames]
    return values


_SHARD_OPTIONS = (
    "max_size",
    "max_count",
    "equal_count",
    "shards_multiple_of",
    "oversize",
    "shuffle",
    "shards",
    "place",
)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A recorded run or append. Nothing in a record is executed or opened.

    `parse_dataset` checks `document`. Unknown names are kept when the dataset file is written again.
    """

    document: Mapping[str, object]

    @property
    def verb(self) -> str:
        """`create`, `reshard` or `index`, or "" if not recorded."""
        return self._text("verb")

    @property
    def source(self) -> str:
        """Name of the source, or names separated by commas, or ""."""
        return self._text("source")

    @property
    def split(self) -> str:
        """The split of this dataset, or "" without splits."""
        return self._text("split")

    @property
    def splits(self) -> tuple[str, ...]:
        """All recorded splits of the run."""
        found = self.document.get("splits")
        return tuple(map(str, found)) if isinstance(found, list) else ()

    @property
    def tool(self) -> str:
        """Program and version, or "" if not recorded."""
        return self._text("tool")

    @property
    def options(self) -> dict[str, object]:
        """The recorded options."""
        found = self.document.get("options")
        return from_recorded(found) if isinstance(found, dict) else {}

    @property
    def choosing(self) -> dict[str, object]:
        """Options that select samples and create fields, without the options about shards and existing keys."""
        others = {*_SHARD_OPTIONS, "on_duplicate", *(() if "split" in self.options else ("seed",))}
        return {name: value for name, value in self.options.items() if name not in others}

    @property
    def removed(self) -> int:
        """Number of samples that `remove` has deleted."""
        found = self.document.get("removed")
        return found if type(found) is int else 0

    @property
    def dots(self) -> Dots:
        """The dot at which keys end in member names of a tar."""
        return "last" if self.options.get("dots") == "last" else "first"

    @property
    def appended(self) -> tuple[RunRecord, ...]:
        """Later runs that appended samples."""
        runs = self.document.get("appended")
        return tuple(map(RunRecord, runs)) if isinstance(runs, list) else ()

    def as_append_to(self, first: RunRecord) -> RunRecord:
        """Return the record of this run for `appended` of the first run."""
        skipped = {"splits", "split"} if self.split == first.split else {"splits"}
        return RunRecord({name: value for name, value in self.document.items() if name not in skipped})

    def with_append(self, run: RunRecord) -> RunRecord:
        """Return this record with one more append, which may have added splits."""
        runs = [one.document for one in (*self.appended, run.as_append_to(self))]
        splits = {"splits": sorted({*self.splits, *run.splits})} if self.splits else {}
        return RunRecord({**self.document, **splits, "appended": runs})

    def is_update_of(self, first: RunRecord) -> bool:
        """Return whether this append packed new samples of the first run's source, selected in the same way."""
        only_new = self.options.get("on_duplicate") == "first"
        alike = (self.source, self.choosing) == (first.source, first.choosing)
        return only_new and alike and self.verb == first.verb and self.verb in ("create", "reshard")

    def is_sibling_split_of(self, other: RunRecord) -> bool:
        """Return whether one run created both datasets as two splits. Ignore later changes."""
        later = {"split": "", "splits": [], "appended": [], "removed": 0}
        mine, theirs = ({**one.document, **later} for one in (self, other))
        return mine == theirs and self.split != other.split and bool(self.split and other.split)

    def _text(self, name: str) -> str:
        found = self.document.get(name)
        return found if isinstance(found, str) else ""


_UNSAFE_IN_QUOTES = re.compile(r'["\\$`]|!(?![= ])')


def format_command_line(run: RunRecord) -> str:
    """Return a run as a command line without OUTPUT."""
    is_reshard = run.verb == "reshard"
    words = [run.verb or "?", *(run.source.split(", ") if is_reshard else filter(None, [run.source]))]
    options = {**run.options}
    if options.pop("descending", False):
        options["sort_by"] = f"-{options.get('sort_by', '')}"
    for name, value in options.items():
        if not (is_reshard and name == "dots"):  # `reshard` determines `dots` from the source
            words += cli_words(name, value)
    return " ".join(map(_shell_quote, words))


def _shell_quote(word: str) -> str:
    return f'"{word}"' if "'" in word and not _UNSAFE_IN_QUOTES.search(word) else shlex.quote(word)


def describe_differences(then: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Return the options in which two runs differ, with both values."""
    then, now = from_recorded(then), from_recorded(now)
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    labels = {name: name if name == "format" else option_text(name) for name in names}  # `format` is not an option
    values = {name: (_describe_value(name, then.get(name)), _describe_value(name, now.get(name))) for name in names}
    return [f"{labels[name]} differs: {before} before, now {after}" for name, (before, after) in values.items()]


def _describe_value(name: str, value: object) -> str:
    if isinstance(value, list) and name in FAMILY_KEYS and uses_cli_names():
        return repr(cli_words(name, value)[-1][:80])
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return (
        "not given"
        if value is None
        else "given"
        if value is True
        else repr(text[:80])
        if isinstance(value, str | list)
        else text
    )


def make_writer_record(made: Mapping[str, object]) -> RunRecord:
    """Return the run record of a writer."""
    return RunRecord({"verb": "create", "source": "ShardWriter", **made, "tool": f"shardtool {__version__}"})
