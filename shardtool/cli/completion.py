"""What a shell completes: options and choices, files, datasets, columns of tables and fields of datasets.

The scripts in `shells/` give the line up to the cursor, and get a line for each completion: what it is, and its text;
`file` leaves the completion of files to the shell. Nothing is said of what goes wrong, and nothing is asked of a
server: a shell waits.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from importlib import resources
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, split_arg_string

from shardtool.cli.help import Verb
from shardtool.errors import printable
from shardtool.storage import places
from shardtool.storage.places import base_name, is_file, is_folder, is_url
from shardtool.wording import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MOST = 10_000  # names of a folder that are looked at
_LARGEST = 2**24  # bytes of a file that is read whole
_KIND = b'"wids-shard-index-v1"'  # which a dataset file names in its first line
_HEAD = 4096
_OF_FILES = ("key", "path", "folder", "size")
_OF_SHARDS = ("key", "shard", "size", "fields")
_TAKE_MINUS = ("--sort-by", "--fields")
_SPECIAL = re.compile(r"([^\w@%+:=,./~-])")  # of a shell


class _Typed(ShellComplete):
    """What all shells have in common."""

    def source(self) -> str:
        """Return the script that a shell reads."""
        return script(self.name)

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one at the cursor, and that."""
        *words, last = split_arg_string(f"{os.environ['COMP_LINE']}\0")  # the mark keeps an empty last word
        return words[1:], last.replace("\0", "")

    def complete(self) -> str:
        """Return the completions; none where something goes wrong."""
        try:
            return super().complete()
        except Exception:  # noqa: BLE001 - a shell that completes has no place for errors
            return ""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return the completions, each the whole word at the cursor."""
        option, equals, value = incomplete.partition("=")
        if not equals or not option.startswith("--"):
            before, option, value = "", "".join(args[-1:]), incomplete
        else:
            before, args = f"{option}=", [*args, option]
        if value.startswith("-") and option in _TAKE_MINUS:  # which is for click the start of an option
            before, value = f"{before}-", value[1:]
        found = [CompletionItem(before + one.value, one.type, one.help) for one in super().get_completions(args, value)]
        return [one for one in found if one.type == "file" or one.value.isprintable()]

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return the line of a completion."""
        help_ = f"\t{' '.join(item.help.split())}" if item.help else ""
        return f"{item.type},{printable(item.value)}{help_}"


@add_completion_class
class _Bash(_Typed):
    """For bash, which cuts words at = and :, and takes what it gets as it is."""

    name = "bash"

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return what takes the place of the part of a word that bash completes."""
        found, line = super().get_completions(args, incomplete), os.environ.get("COMP_LINE", "")
        quoted = re.search(r"""(?:^|\s)["'][^"']*$""", line)
        breaks = "" if quoted else "".join(one for one in "=:" if one in os.environ.get("COMP_WORDBREAKS", "=:"))
        cut = max((incomplete.rfind(one) + 1 for one in breaks), default=0)
        texts = [one.value[cut:] for one in found]
        texts = texts if quoted else [_SPECIAL.sub(r"\\\1", one) for one in texts]
        return [CompletionItem(text, one.type) for text, one in zip(texts, found, strict=True)]


for _shell in ("zsh", "fish"):  # which take each completion as it is
    add_completion_class(type(_shell, (_Typed,), {"name": _shell}))


def script(shell: str) -> str:
    """Return what a shell reads to complete the command line."""
    return (resources.files("shardtool.cli") / "shells" / shell).read_text("utf-8")


def completions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return what completes the value of an option or an argument."""
    if isinstance(param.type, click.Path):
        return _places(param, incomplete)
    if isinstance(param.type, click.Choice):
        before, comma, last = incomplete.rpartition(",") if param.metavar else ("", "", incomplete)
        texts = [one.value for one in param.type.shell_complete(ctx, param, last)]
        return [CompletionItem(before + comma + one) for one in texts if one not in before.split(",")]
    if param.metavar == "FIELD=COLUMN" and "=" not in incomplete:
        return [CompletionItem(f"{one}=") for one in _fields(ctx, param) if one.startswith(incomplete)]
    marks, names = _NAMES.get(param.metavar or "", ("", None))
    head = incomplete[: max((incomplete.rfind(one) + 1 for one in marks), default=0)]
    head += "-" if param.metavar == "FIELDS" and incomplete[len(head) :].startswith("-") else ""
    begin, there = incomplete[len(head) :], {one.partition("=")[0].lstrip("-") for one in head.split(",")}
    found = [one for one in dict.fromkeys(names(ctx, param) if names else ()) if one.startswith(begin)]
    return [CompletionItem(head + one) for one in found if one.partition("=")[0] not in there]


def _places(param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return what completes where a file is named: where that is a dataset, datasets, if there are any."""
    of_datasets = isinstance(param, click.Argument) and param.metavar and not param.metavar.startswith("SOURCE")
    found = [*_datasets(incomplete)] if of_datasets and not is_url(incomplete) else []
    if not any(one.endswith(".json") for one in found):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(one) for one in found]


def _datasets(typed: str) -> Iterator[str]:
    """Yield the dataset files that begin as a name does, and then the folders, with a slash."""
    above = typed[: len(typed) - len(base_name(typed))] if typed and not typed.endswith("/") else typed
    begin = typed[len(above) :]
    entries = islice(places.entries_in(os.path.expanduser(above) or "."), _MOST)
    there = sorted((one for one in entries if one.name.startswith(begin)), key=lambda one: one.name)
    there = [one for one in there if begin or not one.name.startswith(".")]
    yield from (above + one.name for one in there if one.name.endswith(".json") and _is_dataset(one.path))
    yield from (f"{above}{one.name}/" for one in there if one.is_dir())


def _is_dataset(path: str) -> bool:
    return is_file(path) and _KIND in places.read_head(path, _HEAD)[0]


def _subjects(ctx: click.Context, _param: click.Parameter) -> Iterable[str]:
    """Return what `shardtool help` can be asked for: verbs, and then the topics of one."""
    group, names = ctx.find_root().command, _given(ctx)
    if not isinstance(group, click.Group) or names[1:]:
        return ()
    verb = group.get_command(ctx, names[0]) if names else None
    return verb.topics() if isinstance(verb, Verb) else () if names else group.list_commands(ctx)


def _columns(ctx: click.Context, param: click.Parameter) -> Iterator[str]:
    """Yield the columns of the tables and datasets that were typed; for `--on` those of the table of `--join`."""
    joined, given = ctx.params.get("join"), [] if param.name == "on" else _given(ctx)
    for path in [*([joined] if isinstance(joined, str) and not is_url(joined) else []), *given]:
        yield from _columns_of(os.path.expanduser(path))
    if param.metavar == "QUERY":
        yield from _OF_FILES if ctx.info_name == "create" else _OF_SHARDS


def _columns_of(path: str) -> Iterable[str]:
    if ours := _document(path):
        columns = [one for one in ours.get("schema", ()) if not one.startswith("__")]
        return [*columns, *ours.get("classes", ())]
    from shardtool.table.kinds import JSON, JSON_LINES, table_ending

    ending = table_ending(path)
    if not ending or not is_file(path) or (ending in (*JSON_LINES, JSON) and (places.plain_size(path) or 0) > _LARGEST):
        return ()
    from shardtool.table.open import open_table

    return [str(one) for one in open_table(path, ()).schema.names]


def _fields(ctx: click.Context, _param: click.Parameter) -> Iterator[str]:
    for path in _given(ctx):
        yield from (_document(path) or {}).get("fields", ())


def _keys(ctx: click.Context, param: click.Parameter) -> Iterator[str]:
    """Yield the keys of an option that takes `key=value`, with each value where these are a few."""
    for one in ctx.command.params:
        family, _, key = FAMILIES.get(one.name or "", "").partition(" ")
        if family == param.name:
            yield from map(key.format, one.type.choices if isinstance(one.type, click.Choice) else [""])


def _given(ctx: click.Context) -> list[str]:
    """Return the names on the command line that are files here."""
    given = ctx.params.get("names") or ctx.args
    return [one for one in map(os.path.expanduser, given) if not is_url(one)]


def _document(path: str) -> dict[str, Any] | None:
    """Return what a dataset file of ours says of its samples; of a folder, the first that is in it."""
    if is_folder(path):
        found = (_document(one) for one in _datasets(f"{path}/") if not one.endswith("/"))
        return next(filter(None, found), None)
    if not is_file(path) or not _is_dataset(path):
        return None
    with suppress(ValueError, AttributeError):
        return dict(json.loads(places.read_small(path, _LARGEST)).get("shardtool"))
    return None


# By what the help calls a value: the characters after which a name begins, and the names.
_NAMES: dict[str, tuple[str, Callable[[Any, Any], Iterable[str]]]] = {
    "COLUMN": ("", _columns),
    "COLUMNS": (",", _columns),
    "FIELD=COLUMN": ("=", _columns),
    "QUERY": (" ()=<>!", _columns),
    "FIELD": ("", _fields),
    "FIELDS": (",", _fields),
    "OLD=NEW": (",", _fields),
    "KEY=VALUE": (",", _keys),
    "[VERB [TOPIC]]": ("", _subjects),
}
