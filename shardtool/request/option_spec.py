"""Declare options: each is a field of an options class, described by an `OptionSpec`.

The spec and the field's annotation determine the description of the attribute, the checks of `BaseOptions`, what a
run records, the keyword arguments in Python, and the option on the command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from shardtool.errors import InvalidRequest
from shardtool.messages import CLI_NAMES, COMMA_OPTIONS, FAMILY_KEYS, cli_option, flag_text, option_text
from shardtool.request import option_values

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

else:

    def dataclass_transform(**_: bool) -> Any:
        """Return what does nothing: only type checkers look at it, and Python 3.10 has none."""
        return lambda made: made


DefaultT = TypeVar("DefaultT")


OptionsT = TypeVar("OptionsT")


Texts = str | tuple[str, ...] | list[str]  # one, or several


Pairs = Mapping[str, str] | Texts  # {"jpg": "path"}, or jpg=path


Shares = str | Mapping[str, float]  # train=0.8,val=0.2, or {"train": 0.8, "val": 0.2}


Function = str | Callable[..., object]  # package.module:function, or the function


PathLike = str | os.PathLike[str]


ValueForm = Literal[
    "", "size", "rate", "share", "sample", "pairs", "shares", "part", "pixels", "function", "path", "delimiter"
]


_MAX_INTEGER = 2**63 - 1  # of a recorded number


_SPECS: dict[type, dict[str, OptionSpec]] = {}  # by class, as the next one


_TYPES: dict[type, dict[str, tuple[object, ...]]] = {}  # annotations are evaluated once


_OPTION_REFERENCE = re.compile(r"`(\w+)(?:='([\w-]+)')?`")


class OptionSpec(NamedTuple):
    """What is known of an option beside its type and its default.

    Attributes:
        text: What it does, for Python's help and the command line's. Other options stand in it in backticks, as Python
            calls them: `shuffle`, `if_exists='resume'`.
        section: The section of `--help`; empty: that of the option before.
        typed: What the command line calls it, several names with slashes between them; empty: as the field.
        old: What it was called there, several names with slashes between them: they work, and are shown nowhere.
        common: Whether it stands in the help of one screen, with the first sentence of its text.
        rare: Whether it stands in no help but that of its section.
        within_family: How it is typed as a part of another option, which stands for it in the help: `fields -{}`;
            `fetch` alone: by its name, `fetch timeout={}`.
        divide: Of such another option: from the class and the value, the values of those that it stands for.
        metavar: What stands for its value there; empty: what its type says.
        shown: The default as people read it, where it is no plain value.
        form: What its value means: `size` in bytes, `share` of all, `sample`, a share above 0, `pairs`, `shares` of
            splits, `part` of a run, `pixels`, `function`, `path`: a place that a shell completes; or the `parse_delimiter` of
            a text.
        such_as: An example of its value.
        within: The least and the most that a number can be.
        of: The sources that it is about, `folder` or `manifest`; empty: any.
        needs: Options of which one must be given, too, with `|` between them: and what is missing without.
        apart: Options that cannot be given, too; `oversize=alone` is one with that value. Why follows after a comma.
        recorded: Whether a dataset file records it: it decides the dataset's bytes.
        commas: Whether a word of the command line may be several values.
        word: Whether one word of the command line is all of its values.
        off: What the command line's option does, which turns it off.
        flags: The options of the command line that stand for its values, and their help.
        use: Called with the value that was typed.
    """

    text: str
    section: str = ""
    typed: str = ""
    old: str = ""
    common: bool = False
    rare: bool = False
    family: str = ""
    expand: Callable[[type, Any], Mapping[str, object]] | None = None
    metavar: str = ""
    shown: str = ""
    form: ValueForm = ""
    example: str = ""
    range: tuple[int, int] | None = None
    of: str = ""
    requires: Mapping[str, str] = MappingProxyType({})
    conflicts: tuple[str, ...] = ()
    recorded: bool = True
    comma_separated: bool = False
    word: bool = False
    off: str = ""
    flags: Mapping[str, str] = MappingProxyType({})
    use: Callable[[Any], object] | None = None


def to_cli_text(text: str) -> str:
    """Return a text about options in the words of the command line."""
    return _OPTION_REFERENCE.sub(lambda found: cli_option(found[1], found[2]), text)


def option(default: DefaultT, text: str, **facts: Any) -> DefaultT:
    """Declare an option: a field with a default, what it does, and its `Facts`."""
    return field(default=default, metadata={"facts": OptionSpec(text, **facts)})


def alias(name: str) -> Any:
    """Declare another name that Python takes for an option, as the command line does: `field` for `values`.

    Args:
        name: The option, or `name=value` for a flag that stands for a value.
    """
    return field(default=None, repr=False, compare=False, metadata={"means": name})


def join_if_exists_flags(flags: Sequence[str]) -> str:
    """Return the value that flags stand for; an update appends and resumes by itself.

    Raises:
        InvalidRequest: They exclude each other.
    """
    adding = next((one for one in ("update", "append") if one in flags), "")
    if adding and "overwrite" in flags:
        found = f"used with {flag_text('overwrite')}, which replaces what is there"
        raise InvalidRequest(flag_text(adding), found, expected="one of them")
    return "update" if adding == "update" else "-".join(flags)


def inherit_option(kind: type, name: str, **others: Any) -> Any:
    """Declare an option as that of another class, but for some of its `Facts`."""
    default = kind.__dataclass_fields__[name].default  # type: ignore[attr-defined]
    return field(default=default, metadata={"facts": option_specs(kind)[name]._replace(**others)})


def doc_lines(kind: type) -> list[str]:
    """Return a line for each option of a class, and each other name of one, as docstrings have them."""
    known, others = option_specs(kind), {one.name: one.metadata.get("means", "") for one in fields(kind)}
    said = {name: known[name].text if name in known else means and f"As {means}." for name, means in others.items()}
    return [f"    {name}: {text}" for name, text in said.items() if text]


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False)
def options_class(kind: type[OptionsT]) -> type[OptionsT]:
    """Make a dataclass of options, described in its docstring, and tell messages what the command line calls them."""
    kind = dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)(kind)
    kind.__doc__ = "\n".join([f"{kind.__doc__}\n\nAttributes:", *doc_lines(kind)])
    for name, one in option_specs(kind).items():
        if one.typed:
            CLI_NAMES[name] = f"--{one.typed.split('/')[0]}"
        if one.word:
            COMMA_OPTIONS.add(name)
        if one.family:
            key = name.replace("_", "-") + ("" if kind.__dataclass_fields__[name].default is False else "={}")  # type: ignore[attr-defined]
            FAMILY_KEYS[name] = one.family if " " in one.family else f"{one.family} {key}"
    return kind


def option_specs(options: type) -> dict[str, OptionSpec]:
    """Return what is known of each option of a class."""
    if options not in _SPECS:
        _SPECS[options] = {one.name: one.metadata["facts"] for one in fields(options) if "facts" in one.metadata}
    return _SPECS[options]


def cli_spellings(options: type, name: str) -> list[str]:
    """Return what the command line calls an option, the best first, but for those from before."""
    words = (option_specs(options)[name].typed or name.replace("_", "-")).split("/")
    return [f"{'--' if word[1:] else '-'}{word}" for word in words]


def option_types(options: type) -> dict[str, tuple[object, ...]]:
    """Return the types that each option can have: those that stand in its annotation."""
    if options not in _TYPES:
        _TYPES[options] = {
            name: get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
            for name, hint in get_type_hints(options).items()
            if name in option_specs(options)
        }
    return _TYPES[options]


def option_choices(options: type, name: str) -> tuple[str, ...]:
    """Return the texts that an option can be, or each of several; empty: any."""
    for kind in option_types(options)[name]:
        for one in (kind, *get_args(kind)):
            if get_origin(one) is Literal:
                return get_args(one)
    return ()


def has_option_type(value: object, options: type, name: str) -> bool:
    """Return whether a value from JSON is of an option's type; which texts it can be is checked with the options."""
    allowed = option_types(options)[name]
    origins = {get_origin(kind) for kind in allowed}
    if isinstance(value, list):
        return tuple in origins and all(isinstance(one, str) for one in value)
    if isinstance(value, str):
        return not is_list_option(options, name) and (str in allowed or Literal in origins)
    if type(value) is int:
        return abs(value) <= _MAX_INTEGER and (int in allowed or float in allowed)
    return value is not None and type(value) in allowed


def is_list_option(options: type, name: str) -> bool:
    """Tell whether an option is several texts, of which one may be given alone."""
    return option_specs(options)[name].expand is None and any(
        get_args(kind)[1:] == (...,) for kind in option_types(options)[name]
    )


def parse_family(options: type, family: str, given: object) -> dict[str, object]:
    """Return the options that `per-host=4,retry-failed` gives, or a mapping of such names to values.

    Raises:
        InvalidRequest: One has no such name, or lacks a value, or has one that it does not take.
    """
    known = [one for one, known in option_specs(options).items() if known.family == family]
    pieces = [*given.items()] if isinstance(given, Mapping) else []
    for part in option_values.split_commas(family, given) if not pieces else ():
        key, equals, value = part.partition("=")
        if not equals and pieces and _option_name(key) not in known and isinstance(pieces[-1][1], str):
            pieces[-1] = (pieces[-1][0], f"{pieces[-1][1]},{part}")  # a comma within a value
        else:
            pieces.append((key, value if equals else True))
    found: dict[str, object] = {}
    for key, value in pieces:
        name = _option_name(key)
        if name not in known:
            expected = f"some of {', '.join(one.replace('_', '-') for one in known)}"
            raise InvalidRequest(option_text(family), repr(key)[:100], expected=expected)
        if name in found:
            raise InvalidRequest(option_text(family), f"{key!r} more than once", expected="each once")
        is_flag = options.__dataclass_fields__[name].default is False  # type: ignore[attr-defined]
        if is_flag != isinstance(value, bool):
            expected = f"{key}, without a value" if is_flag else f"{key}=VALUE"
            raise InvalidRequest(option_text(family), repr(key), expected=expected)
        found[name] = (
            option_values.parse_whole_number(value)
            if option_specs(options)[name].range and isinstance(value, str)
            else value
        )
    return found


def _option_name(key: object) -> str:
    return str(key).strip().replace("-", "_")
