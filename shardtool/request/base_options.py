"""`BaseOptions`: the base of all options classes, which checks and normalises each value."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import (
    Any,
    get_origin,
)

from shardtool.errors import InvalidRequest
from shardtool.messages import choose_text, option_text
from shardtool.request import option_values, split_options
from shardtool.request.observer import Observer
from shardtool.request.option_checks import VALUE_CHECKS, check_flag, check_range, import_name
from shardtool.request.option_spec import (
    OptionSpec,
    OptionsT,
    cli_spellings,
    is_list_option,
    join_if_exists_flags,
    option_choices,
    option_specs,
    option_types,
)
from shardtool.units import parse_size

_INVALID_TEXT = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # no text, nor what Python makes of a name that is no UTF-8


_CONTAINERS = (list, tuple, set, frozenset)


_SINGLE_TEXT_TYPES = {str, os.PathLike[str], type(None)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BaseOptions:
    """The base of all classes of options: each value is checked as far as it can be without the source.

    What an option with `divide` was given goes to those that it stands for, and is then given no more: so nothing
    but this knows of it.

    Attributes:
        observer: Gets the progress of the verb, and what the user should know, where it is given no other.

    Raises:
        InvalidRequest: One cannot be, or does not go together with another.
    """

    observer: Observer | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        given = [
            f"{name}={value!r}" for name, value in self._values() if value != self.__dataclass_fields__[name].default
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(tuple(self._values()))

    def __post_init__(self) -> None:
        self._apply_aliases()
        for name, one in option_specs(type(self)).items():
            if one.expand is not None and getattr(self, name) is not None:
                self._expand_option(name, one.expand)
        for name, one in option_specs(type(self)).items():
            self._normalize_value(name, one)
            self._check_texts(name)
            value = getattr(self, name)
            if value is None and self.__dataclass_fields__[name].default is None:
                continue
            if one.range is not None:
                check_range(name, value, one.range)
            if one.form in VALUE_CHECKS:
                VALUE_CHECKS[one.form](name, value, one)
        for name in filter(self.is_given, option_specs(type(self))):
            self._check_conflicts(name)

    def _values(self) -> list[tuple[str, Any]]:
        """Return the options by their names. Methods of each class for this would cost each start 5 ms."""
        return [(one.name, getattr(self, one.name)) for one in fields(self) if one.compare]

    def is_given(self, name: str) -> bool:
        """Tell whether an option is another than by default."""
        value, default = getattr(self, name), self.__dataclass_fields__[name].default
        if value is None or value is default or (isinstance(value, (*_CONTAINERS, dict)) and not value):
            return False
        return default is None or self._plain(name, value) != self._plain(name, default)

    def first_given(self, names: str) -> str:
        """Return the first of some options, each perhaps `name=value`, that is given; empty: none is."""
        for name, _, value in (one.partition("=") for one in names.split("|")):
            if (
                name in option_specs(type(self))
                and self.is_given(name)
                and (not value or value in str(getattr(self, name)))
            ):
                return name
        return ""

    def pick(self, kind: type[OptionsT], **values: object) -> OptionsT:
        """Return the value of a class whose fields are called as these options, but for the values that are given."""
        found = {name: getattr(self, name) for name in option_specs(type(self)) if name in kind.__dataclass_fields__}  # type: ignore[attr-defined]
        return kind(**{**found, **values})

    def recorded(self) -> dict[str, object]:
        """Return the options that decide the dataset's bytes, where they differ from the default."""
        found: dict[str, object] = {}
        for name, one in option_specs(type(self)).items():
            value = self._plain(name, getattr(self, name))
            if one.recorded and value != self.__dataclass_fields__[name].default:
                value = "{}x{}".format(*option_values.parse_pixels(name, value)) if one.form == "pixels" else value
                found[name] = list(value) if isinstance(value, tuple) else value
        return found

    def _expand_option(self, name: str, expand: Callable[[type, Any], Mapping[str, object]]) -> None:
        """Give the options that one stands for what it says of them."""
        found = {name: self.__dataclass_fields__[name].default, **expand(type(self), getattr(self, name))}
        for member, value in found.items():
            if member != name and self.is_given(member) and getattr(self, member) != value:
                other = choose_text(member, cli_spellings(type(self), member)[0])
                raise InvalidRequest(option_text(name), f"used with {other}", expected="one of them")
            object.__setattr__(self, member, value)  # frozen, and still being made

    def _apply_aliases(self) -> None:
        """Give options the values that stand under other names of theirs.

        Raises:
            InvalidRequest: Two names have one.
        """
        values, flags = dict[str, object](), dict[str, list[str]]()
        for one in fields(self):
            name, _, flag = one.metadata.get("means", "").partition("=")
            given = getattr(self, one.name) if name else None
            if flag:
                check_flag(one.name, given)
            if given is None or (flag and not given):
                continue
            if self.is_given(name) or name in values:
                raise InvalidRequest(one.name, f"used with {name}", expected="one of them: they mean the same")
            object.__setattr__(self, one.name, None)
            if flag:
                flags.setdefault(name, []).append(flag)
            else:
                values[name] = given
        for name, value in {**values, **{name: join_if_exists_flags(some) for name, some in flags.items()}}.items():
            object.__setattr__(self, name, value)

    def _plain(self, name: str, value: Any) -> Any:
        """Return a value of an option; a size in bytes: 500MB and 500000000 are the same request."""
        return parse_size(value) if option_specs(type(self))[name].form == "size" and value is not None else value

    def _normalize_value(self, name: str, known: OptionSpec) -> None:
        """Replace a value that has a recorded form by that: pairs, shares, functions, and one text for several."""
        value, form, several = getattr(self, name), known.form, is_list_option(type(self), name)
        default = self.__dataclass_fields__[name].default
        if value is None and isinstance(default, bool | tuple):  # it is not given
            text: object = default
        elif form == "function" and callable(value):
            text = import_name(value)
        elif form == "shares" and isinstance(value, Mapping):
            text = split_options.format_shares(value)
        elif form == "pairs" and isinstance(value, Mapping):
            text = tuple(option_values.format_pair(name, *both) for both in value.items())
        elif form == "delimiter" and isinstance(value, str):
            text = option_values.parse_delimiter(name, value)
        elif several and isinstance(value, str):
            text = tuple(value.split(",")) if known.comma_separated or known.word else (value,)
        elif several and isinstance(value, os.PathLike):
            text = (os.fspath(value),)
        elif several and isinstance(value, Iterable) and not isinstance(value, tuple | Mapping):
            text = (*value,)  # which is gone through more than once, and recorded
        else:
            return
        object.__setattr__(self, name, text)  # frozen, and still being made

    def _check_texts(self, name: str) -> None:
        """Refuse a text that is none of an option's, what is no text among several, and several for one."""
        value, allowed, several = getattr(self, name), option_types(type(self))[name], is_list_option(type(self), name)
        if allowed == (bool,):
            check_flag(name, value)
        if several and not (isinstance(value, tuple) and all(isinstance(one, str) for one in value)):
            raise InvalidRequest(option_text(name), repr(value)[:100], expected="a text, or several")
        if {*allowed} <= _SINGLE_TEXT_TYPES and not isinstance(value, tuple(get_origin(one) or one for one in allowed)):  # type: ignore[misc]
            shown = ",".join(map(str, value if isinstance(value, _CONTAINERS) else [value])) if value else "..."
            raise InvalidRequest(option_text(name), repr(value), expected=f"one text, such as {shown!r}")
        known = option_choices(type(self), name)
        for one in value if several else (value,):
            if isinstance(one, str) and _INVALID_TEXT.search(one):  # which no dataset file could record
                raise InvalidRequest(option_text(name), repr(one), expected="text that is Unicode")
            if known and one not in known and not (one is None and type(None) in allowed):
                raise InvalidRequest(option_text(name), repr(one), expected=f"one of {', '.join(known)}")

    def _check_conflicts(self, name: str) -> None:
        """Refuse an option without another that it needs, and with one that it cannot go together with."""
        known = option_specs(type(self))
        for others, missing in known[name].requires.items():
            if not self.first_given(others):
                asked = [one.partition("=") for one in others.split("|") if one.partition("=")[0] in known]
                wanted = [option_text(other, value or known[other].example or None) for other, _, value in asked]
                raise InvalidRequest(self._call(name), missing, expected=f"{' or '.join(wanted)}, too")
        for other, *why in (one.split(",") for one in known[name].conflicts):
            if given := self.first_given(other):
                found = ",".join([f"used with {self._call(given)}", *why])
                raise InvalidRequest(self._call(name), found, expected="one of them")

    def _call(self, name: str) -> str:
        """Return what a message calls an option: with its value, where that is one of a few."""
        return option_text(name, getattr(self, name) if option_choices(type(self), name) else None)
