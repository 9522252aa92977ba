"""Format the names of options and commands in messages: `max_size` in Python, `--max-size` on the command line.

One setting per process selects the form. Create messages only when needed, because the setting can change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from shlex import quote

# `options_class` fills these collections. Options with a different name on the command line:
CLI_NAMES: dict[str, str] = {}
# Options whose values are joined with commas:
COMMA_OPTIONS: set[str] = set()
# Options that are written as a key of another option, such as `fetch timeout={}`:
PARENT_FORMS: dict[str, str] = {}
_UNSAFE_IN_DOUBLE_QUOTES = re.compile(r'["\\$`]|!(?![= ])')
_cli_names_in_use = False


@contextmanager
def use_cli_names() -> Iterator[None]:
    """In messages created in the `with` block, write options in command-line form (`--max-size`, not `max_size`)."""
    before = uses_cli_names()
    set_cli_names(command_line=True)
    try:
        yield
    finally:
        set_cli_names(command_line=before)


def uses_cli_names() -> bool:
    """Return whether messages write options in command-line form."""
    return _cli_names_in_use


def set_cli_names(*, command_line: bool) -> None:
    """Set whether messages write options in command-line form."""
    global _cli_names_in_use  # noqa: PLW0603 - one setting per process
    _cli_names_in_use = command_line


def choose_text(python: str, typed: str) -> str:
    """Return `typed` if messages write options in command-line form, otherwise `python`."""
    return typed if _cli_names_in_use else python


def option_text(name: str, value: object = None) -> str:
    """Return an option as the user sets it: `seed=1` or `--seed 1`."""
    if _cli_names_in_use:
        return cli_option(name, value)
    return name if value is None else f"{name}={value!r}"


def flag_text(*names: str) -> str:
    """Return flags as the user sets them: `resume=True` or `--resume`."""
    return " ".join(map(cli_name, names)) if _cli_names_in_use else ", ".join(f"{name}=True" for name in names)


def call_text(verb: str, **options: object) -> str:
    """Return a verb with its options as a Python call or as a command."""
    words = [option_text(name, value) for name, value in options.items()]
    return f"`shardtool {' '.join([verb, *words])}`" if _cli_names_in_use else f"`{verb}({', '.join(words)})`"


def export_text(form: str) -> str:
    """Return `--export energon` if messages write options in command-line form, otherwise `export energon`."""
    return choose_text(f"export {form}", f"--export {form}")


def export_call_text(dataset_file: str, forms: Sequence[str], *, overwrite: bool) -> str:
    """Return the call or command that exports indexes for other tools. `dataset_file` can be empty."""
    if _cli_names_in_use:
        words = ["index", dataset_file, *map(export_text, forms), "--overwrite" if overwrite else ""]
        return f"`shardtool {' '.join(filter(None, words))}`"
    what = [repr(dataset_file) if dataset_file else "...", repr([*forms]), *(["overwrite=True"] if overwrite else [])]
    return f"`export({', '.join(what)})`"


def recreate_hint() -> str:
    """Return advice to recreate a sidecar or dataset file."""
    resume = flag_text("resume")
    return f"Run the original command with {resume}, or `shardtool index`, to recreate the file."


def quote_for_shell(word: str) -> str:
    """Quote a word for a shell. Use double quotes if it contains a single quote and nothing that shells expand."""
    return f'"{word}"' if "'" in word and not _UNSAFE_IN_DOUBLE_QUOTES.search(word) else quote(word)


def resume_hint() -> str:
    """Return the call or command that resumes an interrupted `create`."""
    return choose_text("`create(..., resume=True)`", "`create --resume`")


def cli_name(name: str) -> str:
    """Return the command-line name of an option."""
    if name in PARENT_FORMS:
        return f"--{PARENT_FORMS[name].partition('{}')[0].rstrip(' =-')}"
    return CLI_NAMES.get(name, f"--{name.replace('_', '-')}")


def cli_words(name: str, value: object) -> list[str]:
    """Return the command-line words that set an option to `value`, not quoted for a shell."""
    if isinstance(value, dict):
        value = [f"{key}={item}" for key, item in value.items()]
    values = [*value] if isinstance(value, list | tuple) else [value]
    if name in PARENT_FORMS:
        parent, key = PARENT_FORMS[name].split(" ", 1)
        return [f"--{parent}", ",".join(key.format(item) for item in values)]
    values = [",".join(map(str, values))] if name in COMMA_OPTIONS else values
    return [word for item in values for word in (cli_name(name), *([] if item is True else [str(item)]))]


def cli_option(name: str, value: object = None) -> str:
    """Return an option in its command-line form, even if messages use Python names."""
    return cli_name(name) if value is None else " ".join(cli_words(name, value))
