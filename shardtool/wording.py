"""How messages call what a verb can be asked for: `max_size` in Python, `--max-size` on the command line.

Which of the two it is holds for the process, as a language does: messages are made in every room, and in workers. It is
Python's unless the command line says otherwise, for as long as it runs. So a message is made where it is needed, never
when a module is imported.
"""

from __future__ import annotations

from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What options are called on the command line where it is not their field's name, those whose values are one word, and
# those that are typed as a part of another: `fetch timeout={}`. As they are declared (`request/settings.py`).
TYPED: dict[str, str] = {}
WITH_COMMAS: set[str] = set()
FAMILIES: dict[str, str] = {}
_FLAGS = ("append", "resume", "overwrite", "update")  # what the values of `if_exists` are made of
_typed = False


@contextmanager
def command_line_words() -> Iterator[None]:
    """Call options in the block's messages as the command line does."""
    before = speaks_command_line()
    set_words(command_line=True)
    try:
        yield
    finally:
        set_words(command_line=before)


def speaks_command_line() -> bool:
    """Tell whether messages call options as the command line does: what a worker must know, too."""
    return _typed


def set_words(*, command_line: bool) -> None:
    """Call options from now on as the command line does, or as Python does."""
    global _typed  # noqa: PLW0603 - the one language of the process
    _typed = command_line


def either(python: str, typed: str) -> str:
    """Return the text for who reads: where it differs in more than an option's name."""
    return typed if _typed else python


def option(name: str, value: object = None) -> str:
    """Return what a message calls an option, by the name of its field.

    Args:
        name: The field of the verb's options.
        value: What it is set to, or should be; None: the message is about the option, whatever its value.
    """
    if _typed:
        return typed_option(name, value)
    return name if value is None else f"{name}={value!r}"


def flag(name: str) -> str:
    """Return what a message calls an option that is to be on."""
    return typed_option(name, value=True) if _typed else f"{name}=True"


def call(verb: str, **options: object) -> str:
    """Return what a message calls a run of a verb, with options by the names of their fields."""
    words = [option(name, value) for name, value in options.items()]
    return f"`shardtool {' '.join([verb, *words])}`" if _typed else f"`{verb}({', '.join(words)})`"


def exporting(form: str) -> str:
    """Return what a message calls the making of another tool's index."""
    return either(f"export {form}", f"--export {form}")


def export_call(dataset_file: str, forms: Sequence[str], *, overwrite: bool) -> str:
    """Return what a message calls a run that makes indexes of other tools; without a file it is about any."""
    if _typed:
        words = ["index", dataset_file, *map(exporting, forms), "--overwrite" if overwrite else ""]
        return f"`shardtool {' '.join(filter(None, words))}`"
    what = [repr(dataset_file) if dataset_file else "...", repr([*forms]), *(["overwrite=True"] if overwrite else [])]
    return f"`export({', '.join(what)})`"


def made_again() -> str:
    """Return what to do about a file that a run, or `index`, can write again."""
    return f"Run the command that made it again with {option('if_exists', 'resume')}, or `shardtool index`."


def shell_word(text: str) -> str:
    """Return a text quoted as one word for a shell, in double quotes if the text has single ones and that is safe."""
    return f'"{text}"' if "'" in text and not any(mark in text for mark in '"$`\\\\!') else quote(text)


def where_keys(keys: Sequence[str]) -> str:
    """Return what a message calls the choice of samples by their keys."""
    query = f"key == {keys[0]!r}" if len(keys) == 1 else f"key in {[*keys]!r}"
    return option("where", either(query, shell_word(query)))


def create_again() -> str:
    """Return what a message calls a run of `create` that keeps what is finished."""
    return either("`create(..., if_exists='resume')`", "`create --resume`")


def typed_name(name: str) -> str:
    """Return how the command line calls an option, whoever reads."""
    if name in FAMILIES:
        return f"--{FAMILIES[name].partition('{}')[0].rstrip(' =-')}"
    return TYPED.get(name, f"--{name.replace('_', '-')}")


def typed_words(name: str, value: object) -> list[str]:
    """Return the words that a command line sets an option with, not quoted for a shell."""
    if isinstance(value, dict):
        value = [f"{one}={other}" for one, other in value.items()]
    values = [*value] if isinstance(value, list | tuple) else [value]
    if name in FAMILIES:
        family, part = FAMILIES[name].split(" ", 1)
        return [f"--{family}", ",".join(part.format(one) for one in values)]
    values = [",".join(map(str, values))] if name in WITH_COMMAS else values
    return [word for one in values for word in (typed_name(name), *([] if one is True else [str(one)]))]


def typed_option(name: str, value: object = None) -> str:
    """Return how the command line calls an option, whoever reads: what goes into files must not depend on that."""
    if name == "if_exists" and value:
        return " ".join(f"--{flag}" for flag in _FLAGS if flag in str(value))
    return typed_name(name) if value is None else " ".join(typed_words(name, value))
