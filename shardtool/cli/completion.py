"""Shell completion of options, choices, files, datasets, columns of tables and fields of datasets.

The shell scripts in `shells/` read one line per completion, with its type and text. For the type `file`, the shell
completes file names. Errors are ignored, and servers are not contacted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import resources
from itertools import islice
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, split_arg_string

from shardtool.cli.help import VerbCommand
from shardtool.errors import printable
from shardtool.messages import PARENT_FORMS
from shardtool.storage import files
from shardtool.storage.paths import base_name
from shardtool.storage.remote.address import is_url

_MAX_NAMES = 10_000
_MAX_DOCUMENT_BYTES = 2**24
_DATASET_MARK = b'"wids-shard-index-v1"'  # the first line of a dataset file contains this
_HEAD_BYTES = 4096
_FOLDER_COLUMNS = ("key", "path", "folder", "size")
_SHARD_COLUMNS = ("key", "shard", "size", "fields")
_MINUS_OPTIONS = ("--sort-by", "--fields")
_SPECIAL_CHARS = re.compile(r"([^\w@%+:=,./~-])")  # characters that must be escaped for a shell


class _ShellCompletion(ShellComplete):
    def source(self) -> str:
        return completion_script(self.name)

    def get_completion_args(self) -> tuple[list[str], str]:
        *words, last = split_arg_string(f"{os.environ['COMP_LINE']}\0")  # without NUL, an empty last word would be lost
        return words[1:], last.replace("\0", "")

    def complete(self) -> str:
        try:
            return super().complete()
        except Exception:  # noqa: BLE001 - a shell cannot show errors while it completes
            return ""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        option, equals, value = incomplete.partition("=")
        if not equals or not option.startswith("--"):
            before, option, value = "", "".join(args[-1:]), incomplete
        else:
            before, args = f"{option}=", [*args, option]
        if value.startswith("-") and option in _MINUS_OPTIONS:  # click would read the value as an option
            before, value = f"{before}-", value[1:]
        items = super().get_completions(args, value)
        items = [CompletionItem(before + item.value, item.type, item.help) for item in items]
        return [item for item in items if item.type == "file" or item.value.isprintable()]

    def format_completion(self, item: CompletionItem[str]) -> str:
        help_ = f"\t{' '.join(item.help.split())}" if item.help else ""
        return f"{item.type},{printable(item.value)}{help_}"


@add_completion_class
class _BashCompletion(_ShellCompletion):
    """Escapes each completion, and omits its part up to the last = or :, because bash splits words there."""

    name = "bash"

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        items, line = super().get_completions(args, incomplete), os.environ.get("COMP_LINE", "")
        quoted = re.search(r"""(?:^|\s)["'][^"']*$""", line)
        breaks = "" if quoted else "".join(mark for mark in "=:" if mark in os.environ.get("COMP_WORDBREAKS", "=:"))
        cut = max((incomplete.rfind(mark) + 1 for mark in breaks), default=0)
        texts = [item.value[cut:] for item in items]
        texts = texts if quoted else [_SPECIAL_CHARS.sub(r"\\\1", text) for text in texts]
        return [CompletionItem(text, item.type) for text, item in zip(texts, items, strict=True)]


for _shell in ("zsh", "fish"):  # these shells escape completions themselves
    add_completion_class(type(_shell, (_ShellCompletion,), {"name": _shell}))


def completion_script(shell: str) -> str:
    """Return the completion script of a shell."""
    return (resources.files("shardtool.cli") / "shells" / shell).read_text("utf-8")


def complete_option(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return completions for the value of an option or argument."""
    if isinstance(param.type, click.Path):
        return _complete_paths(param, incomplete)
    if isinstance(param.type, click.Choice):
        before, comma, last = incomplete.rpartition(",") if param.metavar else ("", "", incomplete)
        texts = [item.value for item in param.type.shell_complete(ctx, param, last)]
        return [CompletionItem(before + comma + text) for text in texts if text not in before.split(",")]
    if param.metavar == "FIELD=COLUMN" and "=" not in incomplete:
        return [CompletionItem(f"{name}=") for name in _list_fields(ctx, param) if name.startswith(incomplete)]
    marks, list_names = _COMPLETERS.get(param.metavar or "", ("", None))
    head = incomplete[: max((incomplete.rfind(mark) + 1 for mark in marks), default=0)]
    head += "-" if param.metavar == "FIELDS" and incomplete[len(head) :].startswith("-") else ""
    existing_name = 2 if param.metavar in ("FIELDS", "NEW=OLD") else 0  # `partition` returns OLD at index 2
    start, parts = incomplete[len(head) :], [part.lstrip("-") for part in head.split(",")]
    present = {part.partition("=")[existing_name] if "=" in part else part for part in parts}
    names = dict.fromkeys(list_names(ctx, param) if list_names else ())
    names_left = [name for name in names if name.startswith(start) and name.partition("=")[0] not in present]
    return [CompletionItem(head + name) for name in names_left]


def _complete_paths(param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    of_datasets = isinstance(param, click.Argument) and param.metavar and not param.metavar.startswith("SOURCE")
    datasets = [*_list_datasets(incomplete)] if of_datasets and not is_url(incomplete) else []
    if not any(path.endswith(".json") for path in datasets):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(path) for path in datasets]


def _list_datasets(typed: str) -> Iterator[str]:
    folder = typed[: len(typed) - len(base_name(typed))] if typed and not typed.endswith("/") else typed
    start = typed[len(folder) :]
    entries = islice(files.iter_entries(os.path.expanduser(folder) or "."), _MAX_NAMES)
    matches = sorted((entry for entry in entries if entry.name.startswith(start)), key=lambda entry: entry.name)
    matches = [entry for entry in matches if start or not entry.name.startswith(".")]
    yield from (folder + item.name for item in matches if item.name.endswith(".json") and _is_dataset_file(item.path))
    yield from (f"{folder}{item.name}/" for item in matches if item.is_dir())


def _is_dataset_file(path: str) -> bool:
    return files.is_file(path) and _DATASET_MARK in files.read_head(path, _HEAD_BYTES)[0]


def _list_help_subjects(ctx: click.Context, _param: click.Parameter) -> Iterable[str]:
    group, names = ctx.find_root().command, _typed_files(ctx)
    if not isinstance(group, click.Group) or names[1:]:
        return ()
    verb = group.get_command(ctx, names[0]) if names else None
    return verb.topics() if isinstance(verb, VerbCommand) else () if names else group.list_commands(ctx)


def _list_columns(ctx: click.Context, param: click.Parameter) -> Iterator[str]:
    joined = ctx.params.get("join")
    paths = [] if param.name == "on" else _typed_files(ctx)
    for path in [*([joined] if isinstance(joined, str) and not is_url(joined) else []), *paths]:
        yield from _read_columns(os.path.expanduser(path))
    if param.metavar == "QUERY":
        yield from _FOLDER_COLUMNS if ctx.info_name == "create" else _SHARD_COLUMNS


def _read_columns(path: str) -> Iterable[str]:
    if document := _read_document(path):
        columns = [name for name in document.get("schema", ()) if not name.startswith("__")]
        return [*columns, *document.get("classes", ())]
    from shardtool.table.detect import JSON_ENDING, JSON_LINES_ENDINGS, table_ending

    ending = table_ending(path)
    if (
        not ending
        or not files.is_file(path)
        or (ending in (*JSON_LINES_ENDINGS, JSON_ENDING) and (files.plain_size(path) or 0) > _MAX_DOCUMENT_BYTES)
    ):
        return ()
    from shardtool.table.open import open_table

    return [str(name) for name in open_table(path, ()).schema.names]


def _list_fields(ctx: click.Context, _param: click.Parameter) -> Iterator[str]:
    for path in _typed_files(ctx):
        yield from (_read_document(path) or {}).get("fields", ())


def _list_keys(ctx: click.Context, param: click.Parameter) -> Iterator[str]:
    for option in ctx.command.params:
        parent, _, key = PARENT_FORMS.get(option.name or "", "").partition(" ")
        if parent == param.name:
            yield from map(key.format, option.type.choices if isinstance(option.type, click.Choice) else [""])


def _typed_files(ctx: click.Context) -> list[str]:
    names = ctx.params.get("names") or ctx.args
    return [path for path in map(os.path.expanduser, names) if not is_url(path)]


def _read_document(path: str) -> dict[str, Any] | None:
    if files.is_folder(path):
        documents = (_read_document(file) for file in _list_datasets(f"{path}/") if not file.endswith("/"))
        return next(filter(None, documents), None)
    if not files.is_file(path) or not _is_dataset_file(path):
        return None
    with suppress(ValueError, AttributeError):
        return dict(json.loads(files.read_small(path, _MAX_DOCUMENT_BYTES)).get("shardtool"))
    return None


# Maps metavars to the characters after which a name can start, and to the function that lists names.
_COMPLETERS: dict[str, tuple[str, Callable[[Any, Any], Iterable[str]]]] = {
    "COLUMN": ("", _list_columns),
    "COLUMNS": (",", _list_columns),
    "FIELD=COLUMN": ("=", _list_columns),
    "QUERY": (" ()=<>!", _list_columns),
    "FIELD": ("", _list_fields),
    "FIELDS": (",=", _list_fields),
    "NEW=OLD": (",=", _list_fields),
    "KEY=VALUE": (",", _list_keys),
    "[VERB [TOPIC] | WORD... | PAGE]": ("", _list_help_subjects),
}
