"""Names of options and commands in messages: `max_size` in Python, `--max-size` on the command line.

The choice applies to the whole process. Create messages only when they are needed, not at import.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from shlex import quote

# `options_class` fills these. They contain the command-line names that differ from the Python names, the options whose
# list is one word, and the options that are a key of another option, such as `fetch timeout={}`.
CLI_NAMES: dict[str, str] = {}
COMMA_OPTIONS: set[str] = set()
FAMILY_KEYS: dict[str, str] = {}
_cli_names_in_use = False


@contextmanager
def use_cli_names() -> Iterator[None]:
    """Use command-line names of options in messages of the block."""
    before = uses_cli_names()
    set_cli_names(command_line=True)
    try:
        yield
    finally:
        set_cli_names(command_line=before)


def uses_cli_names() -> bool:
    """Return whether messages use command-line names. A worker process uses the setting of its parent."""
    return _cli_names_in_use


def set_cli_names(*, command_line: bool) -> None:
    """Choose command-line names or Python names."""
    global _cli_names_in_use  # noqa: PLW0603 - one setting per process
    _cli_names_in_use = command_line


def choose_text(python: str, typed: str) -> str:
    """Return the text for Python users or for command-line users."""
    return typed if _cli_names_in_use else python


def option_text(name: str, value: object = None) -> str:
    """Return an option with its value. Without `value`, return only the name."""
    if _cli_names_in_use:
        return cli_option(name, value)
    return name if value is None else f"{name}={value!r}"


def flag_text(*names: str) -> str:
    """Return flags that are set."""
    return " ".join(map(cli_name, names)) if _cli_names_in_use else ", ".join(f"{name}=True" for name in names)


def call_text(verb: str, **options: object) -> str:
    """Return the call of a verb in Python, or the command."""
    words = [option_text(name, value) for name, value in options.items()]
    return f"`shardtool {' '.join([verb, *words])}`" if _cli_names_in_use else f"`{verb}({', '.join(words)})`"


def export_text(form: str) -> str:
    """Return the request for an export of another tool's index."""
    return choose_text(f"export {form}", f"--export {form}")


def export_call_text(dataset_file: str, forms: Sequence[str], *, overwrite: bool) -> str:
    """Return the call that exports indexes of other tools. With an empty `dataset_file`, the call names no dataset."""
    if _cli_names_in_use:
        words = ["index", dataset_file, *map(export_text, forms), "--overwrite" if overwrite else ""]
        return f"`shardtool {' '.join(filter(None, words))}`"
    what = [repr(dataset_file) if dataset_file else "...", repr([*forms]), *(["overwrite=True"] if overwrite else [])]
    return f"`export({', '.join(what)})`"


def recreate_hint() -> str:
    """Return a hint to write a missing file again with a resumed run or with `index`."""
    resume = flag_text("resume")
    return f"Run the original command with {resume}, or `shardtool index`, to write it again."


def shell_word(text: str) -> str:
    """Quote a text for a shell, with double quotes if the text contains a single quote and double quotes are safe."""
    return f'"{text}"' if "'" in text and not any(mark in text for mark in '"$`\\\\!') else quote(text)


def resume_hint() -> str:
    """Return the call of `create` that continues a run."""
    return choose_text("`create(..., resume=True)`", "`create --resume`")


def cli_name(name: str) -> str:
    """Return the command-line name of an option."""
    if name in FAMILY_KEYS:
        return f"--{FAMILY_KEYS[name].partition('{}')[0].rstrip(' =-')}"
    return CLI_NAMES.get(name, f"--{name.replace('_', '-')}")


def cli_words(name: str, value: object) -> list[str]:
    """Return the words that set an option, not quoted for a shell."""
    if isinstance(value, dict):
        value = [f"{one}={other}" for one, other in value.items()]
    values = [*value] if isinstance(value, list | tuple) else [value]
    if name in FAMILY_KEYS:
        family, part = FAMILY_KEYS[name].split(" ", 1)
        return [f"--{family}", ",".join(part.format(one) for one in values)]
    values = [",".join(map(str, values))] if name in COMMA_OPTIONS else values
    return [word for one in values for word in (cli_name(name), *([] if one is True else [str(one)]))]


def cli_option(name: str, value: object = None) -> str:
    """Return an option as on the command line, even in Python, because the text is written to a file."""
    return cli_name(name) if value is None else " ".join(cli_words(name, value))
