"""Declare options as fields of an options class.

The class docstring describes each option under `Attributes`. Help and reference are generated from this text. Checks
and command-line options are generated from the annotation and the `OptionSpec` of each field.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from inspect import cleandoc
from types import MappingProxyType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from shardtool.dataclass import dataclass
from shardtool.errors import InvalidRequest
from shardtool.messages import CLI_NAMES, COMMA_OPTIONS, PARENT_FORMS, cli_option, option_text
from shardtool.request import option_values

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

else:

    def dataclass_transform(**_: bool) -> Any:
        """Replace typing.dataclass_transform, because Python 3.10 lacks it."""
        return lambda kind: kind


DefaultT = TypeVar("DefaultT")
OptionsT = TypeVar("OptionsT")
_ValueT = TypeVar("_ValueT")
_SpecParams = ParamSpec("_SpecParams")

Texts = str | tuple[str, ...] | list[str]
Pairs = Mapping[str, str] | Texts  # {"jpg": "path"}, or jpg=path
Shares = str | Mapping[str, float]  # train=0.8,val=0.2, or {"train": 0.8, "val": 0.2}
Function = str | Callable[..., object]  # the string package.module:function, or the function itself
PathLike = str | os.PathLike[str]
ValueForm = Literal[
    "", "size", "rate", "share", "sample", "pairs", "shares",
    "part", "pixels", "function", "path", "delimiter", "rename",
]  # fmt: skip

_MAX_INTEGER = 2**63 - 1
_SPECS: dict[type, dict[str, OptionSpec]] = {}
_TEXTS: dict[type, dict[str, str]] = {}
_TYPES: dict[type, dict[str, tuple[object, ...]]] = {}  # a cache, because evaluating annotations is slow
_CHOICES: dict[tuple[type, str], tuple[str, ...]] = {}
_LISTS: dict[tuple[type, str], bool] = {}
_OPTION_REFERENCE = re.compile(r"`(\w+)(?:='([\w-]+)')?`")
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)


class Given(Generic[_ValueT]):
    """The condition that an option is given. Other options use it in `requires` and `conflicts`.

    Args:
        option: The class attribute, such as `OutputOptions.shuffle`, or `shuffle` in the class body.
        reason: Why two options conflict, for the message.
    """

    def __init__(self, option: _ValueT, reason: str = "") -> None:
        self._option: Any = option
        self.reason = reason
        self.value: _ValueT | None = None

    def as_value(self, value: _ValueT) -> Given[_ValueT]:
        """Return the condition that the option has this value."""
        condition = Given(self._option, self.reason)
        condition.value = value
        return condition

    @property
    def name(self) -> str:
        """The name of the option."""
        # `_option` is a dataclass `Field` in the class body, and a slot descriptor elsewhere.
        return str(getattr(self._option, "name", None) or self._option.__name__)


class Needs:
    """A rule: at least one condition must be true. `missing` is the message if none is."""

    def __init__(self, missing: str, *conditions: Given[Any]) -> None:
        self.missing, self.conditions = missing, conditions


class OptionSpec(NamedTuple):
    """The properties of an option, except its type, default and text.

    Attributes:
        section: Section of `--help`, or "" for the section of the previous option.
        cli_names: Command-line names separated by slashes, or "" for the field name.
        former_name: Former command-line name: accepted, but not shown.
        common: Whether `-h` lists the option, with the first sentence of its text.
        rare: Show the option only in the help of its topic.
        parent: The command-line option that sets this option, such as `fetch` in `--fetch timeout=VALUE`. It can
            include a format for the value: `fields -{}` means `--fields -VALUE`.
        expand: Converts the value to values of other options.
        metavar: Placeholder for the value in the help, or "" for the default of the type.
        default_text: Text to show as the default in the help.
        form: How the value is written and parsed. The form `sample` is a share above 0.
        only_for: Kind of source to which the option applies, or "" for any.
        requires: Rules about options that must also be given. To name options that are defined later, pass a function
            that returns the rules.
        recorded: Whether dataset files record the option.
        comma_separated: Whether the option can be repeated, and each value can be a list with commas.
        single_value_list: Whether the option has a single value, which can be a list with commas.
        off: Help text of the command-line option that turns this flag off.
        group: Name of a group. If one of its options is typed, the job file's values for the group are ignored.
        choices: The accepted values, if the annotation does not list them.
        origin: The class whose docstring describes the option, or None for the field's class.
    """

    section: str = ""
    cli_names: str = ""
    former_name: str = ""
    common: bool = False
    rare: bool = False
    parent: str = ""
    expand: Callable[[type, Any], Mapping[str, object]] | None = None
    metavar: str = ""
    default_text: str = ""
    form: ValueForm = ""
    example: str = ""
    range: tuple[int, int] | None = None
    only_for: Literal["", "folder", "manifest"] = ""
    requires: tuple[Needs, ...] | Callable[[], tuple[Needs, ...]] = ()
    conflicts: tuple[Given[Any], ...] = ()
    recorded: bool = True
    comma_separated: bool = False
    single_value_list: bool = False
    repeatable: bool = False
    off: str = ""
    group: str = ""
    cli_choices: Mapping[str, str] = MappingProxyType({})
    choices: tuple[str, ...] = ()
    apply: Callable[[Any], object] | None = None
    origin: type | None = None

    def needs(self) -> tuple[Needs, ...]:
        """Return the rules in `requires`."""
        return self.requires() if callable(self.requires) else self.requires


class DeclareOption(Generic[_SpecParams]):
    """Declares fields as options. `spec` creates the `OptionSpec` from keyword arguments."""

    def __init__(self, spec: Callable[_SpecParams, OptionSpec]) -> None:
        self._spec = spec

    def __call__(self, default: DefaultT, /, *args: _SpecParams.args, **attributes: _SpecParams.kwargs) -> DefaultT:
        """Declare an option with this default."""
        return field(default=default, metadata={"spec": self._spec(*args, **attributes)})

    def like(self, option: DefaultT, /, *_: _SpecParams.args, **changes: _SpecParams.kwargs) -> DefaultT:
        """Declare the same option as in another class, with changes to its `OptionSpec`."""
        slot: Any = option
        options_type, name = slot.__objclass__, slot.__name__
        spec = option_specs(options_type)[name]._replace(**{"origin": options_type, **changes})
        default: DefaultT = options_type.__dataclass_fields__[name].default
        return field(default=default, metadata={"spec": spec})


option = DeclareOption(OptionSpec)


def to_cli_text(text: str) -> str:
    """Replace each option name in backticks, such as `max_size`, by its command-line form."""
    return _OPTION_REFERENCE.sub(lambda match: cli_option(match[1], match[2]), text)


def option_texts(options_type: type) -> dict[str, str]:
    """Return the help text of each option of a class, in order."""
    return _TEXTS[options_type]


def doc_lines(options_type: type) -> list[str]:
    """Return docstring lines for the options of a class."""
    return [f"    {name}: {text}" for name, text in option_texts(options_type).items()]


def _documented_attributes(options_type: type) -> dict[str, str]:
    attributes = cleandoc(options_type.__doc__ or "").partition("\nAttributes:\n")[2].partition("\n\n")[0]
    return {name: " ".join(text.split()) for name, text in _ATTRIBUTE.findall(attributes)}


@dataclass_transform(kw_only_default=True, frozen_default=True)
def options_class(options_type: type[OptionsT]) -> type[OptionsT]:
    """Convert a class to a dataclass, add inherited options to its docstring, and register command-line names."""
    options_type = dataclass(frozen=True, slots=True, kw_only=True, repr=False)(options_type)
    texts = dict[str, str]()
    for base in reversed(options_type.__mro__):
        texts |= _TEXTS.get(base) or _documented_attributes(base)
    specs = option_specs(options_type)
    texts |= {name: _TEXTS[spec.origin][name] for name, spec in specs.items() if spec.origin and name not in texts}
    _TEXTS[options_type] = {item.name: texts.get(item.name, "") for item in fields(options_type)}  # type: ignore[arg-type]
    head = cleandoc(options_type.__doc__ or "").partition("\nAttributes:\n")[0]
    options_type.__doc__ = "\n".join([f"{head.rstrip()}\n\nAttributes:", *doc_lines(options_type)])
    for name, spec in specs.items():
        if spec.cli_names:
            CLI_NAMES[name] = f"--{spec.cli_names.split('/')[0]}"
        if spec.single_value_list:
            COMMA_OPTIONS.add(name)
        if spec.parent:
            key = name.replace("_", "-") + ("" if options_type.__dataclass_fields__[name].default is False else "={}")  # type: ignore[attr-defined]
            PARENT_FORMS[name] = spec.parent if " " in spec.parent else f"{spec.parent} {key}"
    return options_type


def option_specs(options_type: type) -> dict[str, OptionSpec]:
    """Return the `OptionSpec` of each option, by field name."""
    if options_type not in _SPECS:
        _SPECS[options_type] = {item.name: spec for item in fields(options_type) if (spec := item.metadata.get("spec"))}
    return _SPECS[options_type]


def cli_spellings(options_type: type, name: str) -> list[str]:
    """Return the command-line names of an option, the preferred one first."""
    words = (option_specs(options_type)[name].cli_names or name.replace("_", "-")).split("/")
    return [f"{'--' if word[1:] else '-'}{word}" for word in words]


def option_types(options_type: type) -> dict[str, tuple[object, ...]]:
    """Return the types in the annotation of each option."""
    if options_type not in _TYPES:
        _TYPES[options_type] = {
            name: get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
            for name, hint in get_type_hints(options_type).items()
            if name in option_specs(options_type)
        }
    return _TYPES[options_type]


def option_choices(options_type: type, name: str) -> tuple[str, ...]:
    """Return the choices of an option, or an empty tuple if it has none."""
    if (options_type, name) not in _CHOICES:
        parts = (part for kind in option_types(options_type)[name] for part in (kind, *get_args(kind)))
        literals = (get_args(part) for part in parts if get_origin(part) is Literal)
        _CHOICES[options_type, name] = option_specs(options_type)[name].choices or next(literals, ())
    return _CHOICES[options_type, name]


def has_option_type(value: object, options_type: type, name: str) -> bool:
    """Return whether a value from JSON has the type of an option.

    Strings are not checked against the option's choices.
    """
    allowed = option_types(options_type)[name]
    origins = {get_origin(kind) for kind in allowed}
    if isinstance(value, list):
        return tuple in origins and all(isinstance(item, str) for item in value)
    if isinstance(value, str):
        return not is_list_option(options_type, name) and (str in allowed or Literal in origins)
    if type(value) is int:
        return abs(value) <= _MAX_INTEGER and (int in allowed or float in allowed)
    return value is not None and type(value) in allowed


def is_list_option(options_type: type, name: str) -> bool:
    """Return whether an option accepts a list of strings."""
    if (options_type, name) not in _LISTS:
        is_list = any(get_args(kind)[1:] == (...,) for kind in option_types(options_type)[name])
        _LISTS[options_type, name] = is_list and option_specs(options_type)[name].expand is None
    return _LISTS[options_type, name]


def parse_keys(options_type: type, parent: str, value: object) -> dict[str, object]:
    """Parse the value of an option such as `fetch`. Return the values of its sub-options by name.

    `parent` is the name of the option. `value` is a text, such as `per-host=4,retry-failed`, or a mapping.
    """
    names = [name for name, spec in option_specs(options_type).items() if spec.parent == parent]
    pieces = [*value.items()] if isinstance(value, Mapping) else []
    for part in option_values.split_commas(parent, value) if not pieces else ():
        key, equals, text = part.partition("=")
        if not equals and pieces and _option_name(key) not in names and isinstance(pieces[-1][1], str):
            pieces[-1] = (pieces[-1][0], f"{pieces[-1][1]},{part}")  # a comma within a value
        else:
            pieces.append((key, text if equals else True))
    values: dict[str, object] = {}
    for key, item in pieces:
        name = _option_name(key)
        if name not in names:
            expected = f"keys {', '.join(known.replace('_', '-') for known in names)}"
            raise InvalidRequest(option_text(parent), repr(key)[:100], expected=expected)
        if name in values:
            raise InvalidRequest(option_text(parent), f"{key!r} more than once", expected="each key once")
        is_flag = options_type.__dataclass_fields__[name].default is False  # type: ignore[attr-defined]
        if is_flag != isinstance(item, bool):
            expected = f"{key} without a value" if is_flag else f"{key}=VALUE"
            found = f"{key!r} with a value" if is_flag else repr(key)
            raise InvalidRequest(option_text(parent), found, expected=expected)
        is_number = option_specs(options_type)[name].range and isinstance(item, str)
        values[name] = option_values.parse_whole_number(item) if is_number else item
    return values


def _option_name(key: object) -> str:
    return str(key).strip().replace("-", "_")
