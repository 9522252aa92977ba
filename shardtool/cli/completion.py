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

from shardtool.cli.help import VerbCommand
from shardtool.errors import printable
from shardtool.messages import FAMILY_KEYS
from shardtool.storage import files, lookup
from shardtool.storage.lookup import is_file, is_folder
from shardtool.storage.paths import base_name
from shardtool.storage.remote.address import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MAX_NAMES = 10_000  # names of a folder that are looked at
_MAX_DOCUMENT_BYTES = 2**24  # bytes of a file that is read whole
_DATASET_MARK = b'"wids-shard-index-v1"'  # which a dataset file names in its first line
_HEAD_BYTES = 4096
_FOLDER_COLUMNS = ("key", "path", "folder", "size")
_SHARD_COLUMNS = ("key", "shard", "size", "fields")
_MINUS_OPTIONS = ("--sort-by", "--fields")
_SPECIAL_CHARS = re.compile(r"([^\w@%+:=,./~-])")  # of a shell


class _ShellCompletion(ShellComplete):
    """What all shells have in common."""

    def source(self) -> str:
        """Return the script that a shell reads."""
        return completion_script(self.name)

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
        if value.startswith("-") and option in _MINUS_OPTIONS:  # which is for click the start of an option
            before, value = f"{before}-", value[1:]
        found = [CompletionItem(before + one.value, one.type, one.help) for one in super().get_completions(args, value)]
        return [one for one in found if one.type == "file" or one.value.isprintable()]

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return the line of a completion."""
        help_ = f"\t{' '.join(item.help.split())}" if item.help else ""
        return f"{item.type},{printable(item.value)}{help_}"


@add_completion_class
class _BashCompletion(_ShellCompletion):
    """For bash, which cuts words at = and :, and takes what it gets as it is."""

    name = "bash"

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return what takes the place of the part of a word that bash completes."""
        found, line = super().get_completions(args, incomplete), os.environ.get("COMP_LINE", "")
        quoted = re.search(r"""(?:^|\s)["'][^"']*$""", line)
        breaks = "" if quoted else "".join(one for one in "=:" if one in os.environ.get("COMP_WORDBREAKS", "=:"))
        cut = max((incomplete.rfind(one) + 1 for one in breaks), default=0)
        texts = [one.value[cut:] for one in found]
        texts = texts if quoted else [_SPECIAL_CHARS.sub(r"\\\1", one) for one in texts]
        return [CompletionItem(text, one.type) for text, one in zip(texts, found, strict=True)]


for _shell in ("zsh", "fish"):  # which take each completion as it is
    add_completion_class(type(_shell, (_ShellCompletion,), {"name": _shell}))


def completion_script(shell: str) -> str:
    """Return what a shell reads to complete the command line."""
    return (resources.files("shardtool.cli") / "shells" / shell).read_text("utf-8")


def complete_option(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return what completes the value of an option or an argument."""
    if isinstance(param.type, click.Path):
        return _complete_paths(param, incomplete)
    if isinstance(param.type, click.Choice):
        before, comma, last = incomplete.rpartition(",") if param.metavar else ("", "", incomplete)
        texts = [one.value for one in param.type.shell_complete(ctx, param, last)]
        return [CompletionItem(before + comma + one) for one in texts if one not in before.split(",")]
    if param.metavar == "FIELD=COLUMN" and "=" not in incomplete:
        return [CompletionItem(f"{one}=") for one in _list_fields(ctx, param) if one.startswith(incomplete)]
    marks, names = _COMPLETERS.get(param.metavar or "", ("", None))
    head = incomplete[: max((incomplete.rfind(one) + 1 for one in marks), default=0)]
    head += "-" if param.metavar == "FIELDS" and incomplete[len(head) :].startswith("-") else ""
    begin, there = incomplete[len(head) :], {one.partition("=")[0].lstrip("-") for one in head.split(",")}
    found = [one for one in dict.fromkeys(names(ctx, param) if names else ()) if one.startswith(begin)]
    return [CompletionItem(head + one) for one in found if one.partition("=")[0] not in there]


def _complete_paths(param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return what completes where a file is named: where that is a dataset, datasets, if there are any."""
    of_datasets = isinstance(param, click.Argument) and param.metavar and not param.metavar.startswith("SOURCE")
    found = [*_list_datasets(incomplete)] if of_datasets and not is_url(incomplete) else []
    if not any(one.endswith(".json") for one in found):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(one) for one in found]


def _list_datasets(typed: str) -> Iterator[str]:
    """Yield the dataset files that begin as a name does, and then the folders, with a slash."""
    above = typed[: len(typed) - len(base_name(typed))] if typed and not typed.endswith("/") else typed
    begin = typed[len(above) :]
    entries = islice(lookup.iter_entries(os.path.expanduser(above) or "."), _MAX_NAMES)
    there = sorted((one for one in entries if one.name.startswith(begin)), key=lambda one: one.name)
    there = [one for one in there if begin or not one.name.startswith(".")]
    yield from (above + one.name for one in there if one.name.endswith(".json") and _is_dataset_file(one.path))
    yield from (f"{above}{one.name}/" for one in there if one.is_dir())


def _is_dataset_file(path: str) -> bool:
    return is_file(path) and _DATASET_MARK in files.read_head(path, _HEAD_BYTES)[0]


def _list_help_subjects(ctx: click.Context, _param: click.Parameter) -> Iterable[str]:
    """Return what `shardtool help` can be asked for: verbs, and then the topics of one."""
    group, names = ctx.find_root().command, _typed_files(ctx)
    if not isinstance(group, click.Group) or names[1:]:
        return ()
    verb = group.get_command(ctx, names[0]) if names else None
    return verb.topics() if isinstance(verb, VerbCommand) else () if names else group.list_commands(ctx)


def _list_columns(ctx: click.Context, param: click.Parameter) -> Iterator[str]:
    """Yield the columns of the tables and datasets that were typed; for `--on` those of the table of `--join`."""
    joined, given = ctx.params.get("join"), [] if param.name == "on" else _typed_files(ctx)
    for path in [*([joined] if isinstance(joined, str) and not is_url(joined) else []), *given]:
        yield from _read_columns(os.path.expanduser(path))
    if param.metavar == "QUERY":
        yield from _FOLDER_COLUMNS if ctx.info_name == "create" else _SHARD_COLUMNS


def _read_columns(path: str) -> Iterable[str]:
    if ours := _read_document(path):
        columns = [one for one in ours.get("schema", ()) if not one.startswith("__")]
        return [*columns, *ours.get("classes", ())]
    from shardtool.table.detect import JSON_ENDING, JSON_LINES_ENDINGS, table_ending

    ending = table_ending(path)
    if (
        not ending
        or not is_file(path)
        or (ending in (*JSON_LINES_ENDINGS, JSON_ENDING) and (lookup.plain_size(path) or 0) > _MAX_DOCUMENT_BYTES)
    ):
        return ()
    from shardtool.table.open import open_table

    return [str(one) for one in open_table(path, ()).schema.names]


def _list_fields(ctx: click.Context, _param: click.Parameter) -> Iterator[str]:
    for path in _typed_files(ctx):
        yield from (_read_document(path) or {}).get("fields", ())


def _list_keys(ctx: click.Context, param: click.Parameter) -> Iterator[str]:
    """Yield the keys of an option that takes `key=value`, with each value where these are a few."""
    for one in ctx.command.params:
        family, _, key = FAMILY_KEYS.get(one.name or "", "").partition(" ")
        if family == param.name:
            yield from map(key.format, one.type.choices if isinstance(one.type, click.Choice) else [""])


def _typed_files(ctx: click.Context) -> list[str]:
    """Return the names on the command line that are files here."""
    given = ctx.params.get("names") or ctx.args
    return [one for one in map(os.path.expanduser, given) if not is_url(one)]


def _read_document(path: str) -> dict[str, Any] | None:
    """Return what a dataset file of ours says of its samples; of a folder, the first that is in it."""
    if is_folder(path):
        found = (_read_document(one) for one in _list_datasets(f"{path}/") if not one.endswith("/"))
        return next(filter(None, found), None)
    if not is_file(path) or not _is_dataset_file(path):
        return None
    with suppress(ValueError, AttributeError):
        return dict(json.loads(files.read_small(path, _MAX_DOCUMENT_BYTES)).get("shardtool"))
    return None


# By what the help calls a value: the characters after which a name begins, and the names.
_COMPLETERS: dict[str, tuple[str, Callable[[Any, Any], Iterable[str]]]] = {
    "COLUMN": ("", _list_columns),
    "COLUMNS": (",", _list_columns),
    "FIELD=COLUMN": ("=", _list_columns),
    "QUERY": (" ()=<>!", _list_columns),
    "FIELD": ("", _list_fields),
    "FIELDS": (",", _list_fields),
    "OLD=NEW": (",", _list_fields),
    "KEY=VALUE": (",", _list_keys),
    "[VERB [TOPIC]]": ("", _list_help_subjects),
}
