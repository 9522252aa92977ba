"""Names of options and commands in messages: `max_size` in Python, `--max-size` on the command line.

The choice applies to the whole process, because messages are created in every module and in workers. The default is
Python's names; the command line switches to its own while it runs. Create messages where they are needed, not at
import.
"""

from __future__ import annotations

from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# What options are called on the command line where it is not their field's name, those whose values are one word, and
# those that are typed as a part of another: `fetch timeout={}`. As they are declared (`request/settings.py`).
CLI_NAMES: dict[str, str] = {}


COMMA_OPTIONS: set[str] = set()


FAMILY_KEYS: dict[str, str] = {}


_IF_EXISTS_FLAGS = ("append", "resume", "overwrite", "update")  # what the values of `if_exists` are made of


_cli_names_in_use = False


@contextmanager
def use_cli_names() -> Iterator[None]:
    """Call options in the block's messages as the command line does."""
    before = uses_cli_names()
    set_cli_names(command_line=True)
    try:
        yield
    finally:
        set_cli_names(command_line=before)


def uses_cli_names() -> bool:
    """Tell whether messages call options as the command line does: what a worker must know, too."""
    return _cli_names_in_use


def set_cli_names(*, command_line: bool) -> None:
    """Call options from now on as the command line does, or as Python does."""
    global _cli_names_in_use  # noqa: PLW0603 - the one language of the process
    _cli_names_in_use = command_line


def choose_text(python: str, typed: str) -> str:
    """Return the text for who reads: where it differs in more than an option's name."""
    return typed if _cli_names_in_use else python


def option_text(name: str, value: object = None) -> str:
    """Return what a message calls an option, by the name of its field.

    Args:
        name: The field of the verb's options.
        value: What it is set to, or should be; None: the message is about the option, whatever its value.
    """
    if _cli_names_in_use:
        return cli_option(name, value)
    return name if value is None else f"{name}={value!r}"


def flag_text(name: str) -> str:
    """Return what a message calls an option that is to be on."""
    return cli_option(name, value=True) if _cli_names_in_use else f"{name}=True"


def call_text(verb: str, **options: object) -> str:
    """Return what a message calls a run of a verb, with options by the names of their fields."""
    words = [option_text(name, value) for name, value in options.items()]
    return f"`shardtool {' '.join([verb, *words])}`" if _cli_names_in_use else f"`{verb}({', '.join(words)})`"


def export_text(form: str) -> str:
    """Return what a message calls the making of another tool's index."""
    return choose_text(f"export {form}", f"--export {form}")


def export_call_text(dataset_file: str, forms: Sequence[str], *, overwrite: bool) -> str:
    """Return what a message calls a run that makes indexes of other tools; without a file it is about any."""
    if _cli_names_in_use:
        words = ["index", dataset_file, *map(export_text, forms), "--overwrite" if overwrite else ""]
        return f"`shardtool {' '.join(filter(None, words))}`"
    what = [repr(dataset_file) if dataset_file else "...", repr([*forms]), *(["overwrite=True"] if overwrite else [])]
    return f"`export({', '.join(what)})`"


def recreate_hint() -> str:
    """Return what to do about a file that a run, or `index`, can write again."""
    return f"Run the command that made it again with {option_text('if_exists', 'resume')}, or `shardtool index`."


def shell_word(text: str) -> str:
    """Return a text quoted as one word for a shell, in double quotes if the text has single ones and that is safe."""
    return f'"{text}"' if "'" in text and not any(mark in text for mark in '"$`\\\\!') else quote(text)


def where_keys(keys: Sequence[str]) -> str:
    """Return what a message calls the choice of samples by their keys."""
    query = f"key == {keys[0]!r}" if len(keys) == 1 else f"key in {[*keys]!r}"
    return option_text("where", choose_text(query, shell_word(query)))


def resume_hint() -> str:
    """Return what a message calls a run of `create` that keeps what is finished."""
    return choose_text("`create(..., if_exists='resume')`", "`create --resume`")


def cli_name(name: str) -> str:
    """Return how the command line calls an option, whoever reads."""
    if name in FAMILY_KEYS:
        return f"--{FAMILY_KEYS[name].partition('{}')[0].rstrip(' =-')}"
    return CLI_NAMES.get(name, f"--{name.replace('_', '-')}")


def cli_words(name: str, value: object) -> list[str]:
    """Return the words that a command line sets an option with, not quoted for a shell."""
    if isinstance(value, dict):
        value = [f"{one}={other}" for one, other in value.items()]
    values = [*value] if isinstance(value, list | tuple) else [value]
    if name in FAMILY_KEYS:
        family, part = FAMILY_KEYS[name].split(" ", 1)
        return [f"--{family}", ",".join(part.format(one) for one in values)]
    values = [",".join(map(str, values))] if name in COMMA_OPTIONS else values
    return [word for one in values for word in (cli_name(name), *([] if one is True else [str(one)]))]


def cli_option(name: str, value: object = None) -> str:
    """Return how the command line calls an option, whoever reads: what goes into files must not depend on that."""
    if name == "if_exists" and value:
        return " ".join(f"--{flag}" for flag in _IF_EXISTS_FLAGS if flag in str(value))
    return cli_name(name) if value is None else " ".join(cli_words(name, value))
