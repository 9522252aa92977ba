"""Jobs as files: what was typed for a verb, kept in TOML, and typed again from there.

A key is an option as the command line calls it, or an argument as the usage line does (`source`, `output`). A value is
what one types: texts, numbers, `true` for a flag, a list for what is repeated, a table for pairs such as `cls=label`.
Relative paths count from the file's folder. What is typed beside the file wins, and `--no-KEY` takes a key of it back.
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

from shardtool.cli.help import CONFIG_OPTIONS, REVOKED_OPTIONS, suggest_option
from shardtool.cli.output import print_message
from shardtool.errors import InvalidRequest, os_error_text, redact_secrets
from shardtool.messages import option_text
from shardtool.storage.file_system import check_local_name, check_target
from shardtool.storage.files import read_small
from shardtool.storage.lookup import is_folder
from shardtool.storage.paths import base_name, folder_of, is_same_location
from shardtool.storage.remote.address import is_url
from shardtool.storage.target_file import write_target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_MAX_CONFIG_BYTES = 2**20  # bytes of such a file
_EXAMPLE_NAME = "job.toml"
_SECRET_KEYS = ("header",)
_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")  # numbers that TOML gives back in the same spelling
_PIPE_PREFIX = "pipe:"


def read_config(path: str, ctx: click.Context) -> dict[str, Any]:
    """Return what a file says for a verb, by the names of its parameters, as if it were typed.

    Args:
        path: The file.
        ctx: The verb's.

    Raises:
        InvalidRequest: The file cannot be read, or says what the verb cannot be asked for.
    """
    options, words = _options_by_key(ctx.command), _arguments_by_key(ctx.command)
    found, given = dict[str, Any](), dict[str, list[str]]()
    for key, value in _read_toml(path).items():
        where = f"{path}: {key}"
        if key in words:
            texts = [_to_text(where, one) for one in (value if isinstance(value, list) else [value])]
            given[key] = [_resolve_name(where, one, path) for one in texts] if words[key] else texts
        elif key in options:
            if options[key].name not in ctx.meta.get(REVOKED_OPTIONS, ()):
                found[options[key].name or ""] = _to_option_value(where, value, options[key], path)
        else:
            meant = suggest_option(f"--{key}", ctx).replace("--", "") or f"`{ctx.command_path} --help` lists them."
            raise InvalidRequest(where, f"no option of {ctx.info_name}", remedy=meant)
    typed = [text for key in words for text in given.get(key, ())]
    arguments = [one.name or "" for one in ctx.command.params if isinstance(one, click.Argument)]
    if typed:
        found.update({arguments[0]: typed} if len(arguments) == 1 else zip(arguments, typed, strict=False))
    return {name: value for name, value in found.items() if value is not None}


def _options_by_key(verb: click.Command) -> dict[str, click.Option]:
    """Return the options of a verb by what the command line calls them."""
    options = [one for one in verb.params if isinstance(one, click.Option) and one.expose_value]
    named = [one for one in options if one.name not in CONFIG_OPTIONS]
    return {name[2:]: one for one in named for name in one.opts if name.startswith("--")}


def _arguments_by_key(verb: click.Command) -> dict[str, bool]:
    """Return whether each argument names a file, by what the usage line calls it: `source` for SOURCE."""
    return {
        word.strip("[].").lower(): isinstance(one.type, click.Path)
        for one in verb.params
        if isinstance(one, click.Argument)
        for word in (one.metavar or one.name or "").split()
    }


def _read_toml(path: str) -> dict[str, Any]:
    check_local_name(path, _EXAMPLE_NAME)  # what others can change tells no run what to do
    try:
        found: dict[str, Any] = tomllib.loads(read_small(path, _MAX_CONFIG_BYTES).decode())
    except OSError as error:
        raise InvalidRequest(path, os_error_text(error), expected="a file of options, in TOML") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(path, f"no TOML: {error}", expected='lines such as max-size = "1GB"') from None
    return found


def _to_option_value(where: str, value: object, param: click.Option, path: str) -> Any:
    """Return what an option gets; None: nothing."""
    if param.is_flag:
        if not isinstance(value, bool):
            raise InvalidRequest(where, repr(value), expected="true or false")
        return param.flag_value is not False if value else None  # the flag of what is on by default turns it off
    if isinstance(value, Mapping):
        if "=" not in (param.metavar or "") and param.metavar not in ("SHARES", "FIELDS"):
            raise InvalidRequest(where, "a table", expected="one value")
        value = [key if one is True else f"{key}={_to_text(where, one)}" for key, one in value.items()]
    texts = [_to_text(where, one) for one in (value if isinstance(value, list) else [value])]
    if isinstance(param.type, click.Path):
        texts = [_resolve_name(where, one, path) for one in texts]
    try:
        for one in texts:
            param.type.convert(one, param, None)
    except click.BadParameter as error:
        raise InvalidRequest(where, error.message) from None
    return texts if param.multiple else ",".join(texts)


def _to_text(where: str, value: object) -> str:
    if isinstance(value, float):
        return f"{Decimal(repr(value)):f}"
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        shown = str(value).lower() if isinstance(value, bool) else f"a value of the type {type(value).__name__}"
        raise InvalidRequest(where, shown, expected="a text or a number")
    return f"{value}"


def _resolve_name(where: str, name: str, path: str) -> str:
    """Return a name as it is typed that a file says."""
    return _rebase_name(where, os.path.expanduser(name), folder_of(path), "")


def _rebase_name(where: str, name: str, from_folder: str, to_folder: str) -> str:
    """Return what a name that counts from one folder is called in another, whatever links lead to these.

    Raises:
        InvalidRequest: It is a command: none is run that was not typed.
    """
    if name.startswith(_PIPE_PREFIX):
        found, expected = f"a command, {name}", "a file, a folder or an address"
        raise InvalidRequest(where, found, expected=expected, remedy="No file may name a command: type it.")
    if name in ("", "-") or is_url(name) or os.path.isabs(name):
        return name
    above, last = os.path.split(os.path.join(from_folder, name.rstrip("/")))
    seen = os.path.relpath(os.path.join(os.path.realpath(above), last), os.path.realpath(to_folder))
    return f"{'./' if seen.startswith('~') else ''}{seen}{'/' if name.endswith('/') else ''}"


def prepare_config(path: str, ctx: click.Context) -> Callable[[], None]:
    """Return what writes what a verb was given, typed and by another such file, to a file; say what cannot be in that.

    A dry run is not what is to be done again: that it was one is not written, and it makes no folder.

    Raises:
        InvalidRequest: No such file can say it, or there is no folder.
        OutputExists: There is another file of this name.
    """
    check_local_name(path, _EXAMPLE_NAME)
    if not path.endswith(".toml"):  # which no output of ours ends with
        raise InvalidRequest(path, "no name of a job", expected=f"one such as {_EXAMPLE_NAME}")
    secret, lines = list[str](), [f"# shardtool {ctx.info_name} --config {base_name(path)}"]
    for key, value in _typed_items(ctx, path):
        texts = [] if value is True else [value] if isinstance(value, str) else value
        if key in _SECRET_KEYS or any(redact_secrets(one) != one for one in texts):
            secret.append(key)
        else:
            lines.append(f"{key} = {_format_toml(key, value)}")
    data, earlier, above = "\n".join([*lines, ""]).encode(), ctx.params["config"], folder_of(path)
    if ctx.params.get("dry_run") and not is_folder(above):
        raise InvalidRequest(path, f"no folder {above}", expected="one, for a dry run makes none")
    if (earlier is None or not is_same_location(path, earlier)) and _read_existing(path) != data:
        check_target(path, overwrite=False, magic=b"", marker=b"", option="remove it")
    if secret and not ctx.params["quiet"]:
        print_message(f"note: {' and '.join(secret)}, which may hold secrets, are not in {path}")

    @cache  # once: what the run writes later is not ours
    def write() -> None:
        if _read_existing(path) != data:
            write_target(path, data)

    return write


def _read_existing(path: str) -> bytes | None:
    """Return what is in a file; None: there is none that can be read."""
    try:
        return read_small(path, _MAX_CONFIG_BYTES)
    except OSError:
        return None


def _typed_items(ctx: click.Context, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of what a verb was given, as a file says them."""
    names = {one.name: key for key, one in reversed(_options_by_key(ctx.command).items()) if one.name != "dry_run"}
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
            texts = (
                [_rebase_name(where, one, "", folder) for one in texts] if isinstance(param.type, click.Path) else texts
            )
            options.append((names[name], texts if param.multiple else texts[0]))
    words = _arguments_by_key(ctx.command)
    first = max(len(typed) - len(words) + 1, 1)  # of several words, all but the last ones are the first argument's
    for (word, is_path), given in zip(words.items(), [typed[:first], *([one] for one in typed[first:])], strict=False):
        texts = [_rebase_name(where, one, "", folder) for one in given] if is_path else given
        yield word, texts if len(texts) > 1 else texts[0]
    yield from options


def _format_toml(key: str, value: object) -> str:
    """Return a value in TOML."""
    if value is True:
        return "true"
    if isinstance(value, list):
        return f"[{', '.join(_format_toml(key, one) for one in value)}]"
    text = str(value)
    if _WHOLE_NUMBER.fullmatch(text):
        return text
    if text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") != text:
        raise InvalidRequest(option_text("save_config"), f"{key}: {text}, no UTF-8", expected="what TOML can say")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
