"""Read and write job files: options and arguments of a verb in TOML.

Keys are command-line options without the leading dashes, or arguments as in the usage line (`source`, `output`). Paths
are relative to the folder of the job file.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import cache
from typing import Any

import click
from click.core import ParameterSource

from shardtool.cli.arguments import PIPE_PREFIX
from shardtool.cli.help import CONFIG_OPTIONS, REVOKED_OPTIONS, suggest_option
from shardtool.cli.output import print_message
from shardtool.errors import InvalidRequest, os_error_text, redact_secrets
from shardtool.messages import option_text
from shardtool.storage.file_system import check_local_name, check_target
from shardtool.storage.files import is_folder, read_small
from shardtool.storage.paths import base_name, folder_of, is_same_location
from shardtool.storage.remote.address import is_url
from shardtool.storage.target_file import write_target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_MAX_CONFIG_BYTES = 2**20
_EXAMPLE_NAME = "job.toml"
_SECRET_KEYS = ("header",)
# Texts that can be stored as TOML integers and read back unchanged: `7`, but not `007`.
_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")


def read_config(path: str, ctx: click.Context) -> dict[str, Any]:
    """Read a job file. Return the value of each click parameter, as if the user had typed it."""
    options, is_path_argument = _options_by_key(ctx.command), _arguments_by_key(ctx.command)
    params, arguments = dict[str, Any](), dict[str, list[str]]()
    for key, value in _read_toml(path).items():
        where = f"{path}: {key}"
        if key in is_path_argument:
            texts = [_to_text(where, item) for item in (value if isinstance(value, list) else [value])]
            arguments[key] = [_resolve_name(where, text, path) for text in texts] if is_path_argument[key] else texts
        elif key in options:
            if options[key].name not in ctx.meta.get(REVOKED_OPTIONS, ()):
                params[options[key].name or ""] = _to_option_value(where, value, options[key], path)
        else:
            suggestion = suggest_option(f"--{key}", ctx)
            # Do not suggest -f or --config, because job files cannot contain them.
            is_key = "--" in suggestion and key.replace("-", "_") not in CONFIG_OPTIONS
            remedy = suggestion.replace("--", "") if is_key else f"`{ctx.command_path} --help` lists all options."
            raise InvalidRequest(where, f"not an option of {ctx.info_name}", remedy=remedy)
    # If the file sets only the second argument, ignore it, because click would use it as the first.
    is_complete = bool(arguments.get(next(iter(is_path_argument), "")))
    words = [text for key in is_path_argument for text in arguments.get(key, ()) if is_complete]
    names = [param.name or "" for param in ctx.command.params if isinstance(param, click.Argument)]
    if words:
        params.update({names[0]: words} if len(names) == 1 else zip(names, words, strict=False))
    return {name: value for name, value in params.items() if value is not None}


def _options_by_key(verb: click.Command) -> dict[str, click.Option]:
    options = [param for param in verb.params if isinstance(param, click.Option) and param.expose_value]
    allowed = [option for option in options if option.name not in CONFIG_OPTIONS]
    return {name[2:]: option for option in allowed for name in option.opts if name.startswith("--")}


def _arguments_by_key(verb: click.Command) -> dict[str, bool]:
    return {
        word.strip("[].").lower(): isinstance(param.type, click.Path)
        for param in verb.params
        if isinstance(param, click.Argument)
        for word in (param.metavar or param.name or "").split()
    }


def _read_toml(path: str) -> dict[str, Any]:
    check_local_name(path, _EXAMPLE_NAME)  # refuse remote job files, because another user may have written them
    try:
        document: dict[str, Any] = tomllib.loads(read_small(path, _MAX_CONFIG_BYTES).decode())
    except OSError as error:
        raise InvalidRequest(path, os_error_text(error), expected="a job file in TOML") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(path, f"invalid TOML: {error}", expected='lines such as max-size = "1GB"') from None
    return document


def _to_option_value(where: str, value: object, param: click.Option, path: str) -> Any:
    if param.is_flag:
        if not isinstance(value, bool):
            raise InvalidRequest(where, repr(value), expected="true or false")
        return param.flag_value is not False if value else None  # `no-stat = true` sets `stat` to False
    if isinstance(value, Mapping):
        if "=" not in (param.metavar or "") and param.metavar not in ("SHARES", "FIELDS"):
            raise InvalidRequest(where, "a table", expected="one value")
        value = [key if item is True else f"{key}={_to_text(where, item)}" for key, item in value.items()]
    texts = [_to_text(where, item) for item in (value if isinstance(value, list) else [value])]
    if isinstance(param.type, click.Path):
        texts = [_resolve_name(where, text, path) for text in texts]
    try:
        for text in texts:
            param.type.convert(text, param, None)
    except click.BadParameter as error:
        raise InvalidRequest(where, error.message) from None
    return texts if param.multiple else ",".join(texts)


def _to_text(where: str, value: object) -> str:
    if isinstance(value, float):
        return f"{Decimal(repr(value)):f}"
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        shown = str(value).lower() if isinstance(value, bool) else f"a value of the type {type(value).__name__}"
        raise InvalidRequest(where, shown, expected="a string or a number")
    return f"{value}"


def _resolve_name(where: str, name: str, path: str) -> str:
    return _rebase_name(where, os.path.expanduser(name), folder_of(path), "")


def _rebase_name(where: str, name: str, from_folder: str, to_folder: str) -> str:
    if name.startswith(PIPE_PREFIX):
        found, expected = f"a command, {name}", "a file, a folder or a URL"
        raise InvalidRequest(
            where, found, expected=expected, remedy="Commands cannot be saved in a file; type the command."
        )
    if name in ("", "-") or is_url(name) or os.path.isabs(name):
        return name
    folder, last = os.path.split(os.path.join(from_folder, name.rstrip("/")))
    rebased = os.path.relpath(os.path.join(os.path.realpath(folder), last), os.path.realpath(to_folder))
    return f"{'./' if rebased.startswith('~') else ''}{rebased}{'/' if name.endswith('/') else ''}"


def prepare_config(path: str, ctx: click.Context) -> Callable[[], None]:
    """Check that a job file can be written. Return a function that writes the file, without secrets and `--dry-run`."""
    check_local_name(path, _EXAMPLE_NAME)
    if not path.endswith(".toml"):  # a mistyped name must not replace another file
        raise InvalidRequest(path, "does not end in .toml", expected=f"a name such as {_EXAMPLE_NAME}")
    secret, lines = list[str](), [f"# shardtool {ctx.info_name} --config {base_name(path)}"]
    for key, value in _typed_items(ctx, path):
        texts = [] if value is True else [value] if isinstance(value, str) else value
        if key in _SECRET_KEYS or any(redact_secrets(text) != text for text in texts):
            secret.append(key)
        else:
            lines.append(f"{key} = {_format_toml(key, value)}")
    data, loaded, folder = "\n".join([*lines, ""]).encode(), ctx.params["config"], folder_of(path)
    if ctx.params.get("dry_run") and not is_folder(folder):
        raise InvalidRequest(path, f"no folder {folder}", expected="an existing folder, because this is a dry run")
    if (loaded is None or not is_same_location(path, loaded)) and _read_existing(path) != data:
        check_target(path, overwrite=False, magic=b"", marker=b"", option="delete it")
    if secret and not ctx.params["quiet"]:
        text = f"{' and '.join(secret)} may contain secrets and {'are' if secret[1:] else 'is'} not saved in {path}"
        print_message(text, label="note:", label_color="yellow")

    @cache  # only the first call writes; a later call could overwrite a file that the verb wrote
    def write() -> None:
        if _read_existing(path) != data:
            write_target(path, data)

    return write


def _read_existing(path: str) -> bytes | None:
    try:
        return read_small(path, _MAX_CONFIG_BYTES)
    except OSError:
        return None


def _typed_items(ctx: click.Context, path: str) -> Iterator[tuple[str, Any]]:
    options_by_key = _options_by_key(ctx.command)
    names = {option.name: key for key, option in reversed(options_by_key.items()) if option.name != "dry_run"}
    where, folder, typed, options = option_text("save_config"), folder_of(path), list[str](), list[tuple[str, Any]]()
    for param in ctx.command.params:
        name = param.name or ""
        value, source = ctx.params.get(name), ctx.get_parameter_source(name)
        if source not in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP) or value in (None, ()):
            continue
        texts = [value] if isinstance(value, str) else [*value] if isinstance(value, tuple) else []
        if not isinstance(param, click.Option):
            typed += texts
        elif param.is_flag and name in names:
            options.append((names[name], True))
        elif name in names:
            if isinstance(param.type, click.Path):
                texts = [_rebase_name(where, text, "", folder) for text in texts]
            options.append((names[name], texts if param.multiple else texts[0]))
    words = _arguments_by_key(ctx.command)
    first = max(len(typed) - len(words) + 1, 1)  # only the first argument accepts several values
    for (word, is_path), values in zip(
        words.items(), [typed[:first], *([name] for name in typed[first:])], strict=False
    ):
        texts = [_rebase_name(where, name, "", folder) for name in values] if is_path else values
        yield word, texts if len(texts) > 1 else texts[0]
    yield from options


def _format_toml(key: str, value: object) -> str:
    if value is True:
        return "true"
    if isinstance(value, list):
        return f"[{', '.join(_format_toml(key, item) for item in value)}]"
    text = str(value)
    if _WHOLE_NUMBER.fullmatch(text):
        return text
    if text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") != text:
        raise InvalidRequest(option_text("save_config"), f"{key}: {text} is not UTF-8", expected="UTF-8, for TOML")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
