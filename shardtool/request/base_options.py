"""Check and normalise option values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from typing import Any, get_origin

from shardtool.dataclass import dataclass
from shardtool.errors import InvalidRequest
from shardtool.messages import choose_text, option_text
from shardtool.request import option_values, split_options
from shardtool.request.observer import Observer
from shardtool.request.option_checks import VALUE_CHECKS, check_flag, check_range, import_name, suggest_choice
from shardtool.request.option_spec import (
    Given,
    OptionSpec,
    OptionsT,
    cli_spellings,
    is_list_option,
    option_choices,
    option_specs,
    option_types,
)
from shardtool.request.run_record import to_recorded_name, to_recorded_value
from shardtool.units import parse_size

_INVALID_TEXT = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates, except those that `os.fsdecode` returns
_CONTAINERS = (list, tuple, set, frozenset)
_SINGLE_TEXT_TYPES = {str, os.PathLike[str], type(None)}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BaseOptions:
    """Base class of all options classes. Values are checked as far as possible without reading the source.

    Options such as `fetch` only set the values of other options.

    Attributes:
        observer: Receives progress and notes, unless the verb gets another observer.
        storage_options: Settings for the stores and servers of this call, such as `endpoint` and `access_key_id`. For
            several stores, pass one dict of settings per address prefix: `{"s3://mine/": {...}, "gs://": {...}}`.
    """

    observer: Observer | None = field(default=None, compare=False)
    storage_options: Mapping[str, Any] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        values = [(option, getattr(self, option.name)) for option in fields(self) if option.compare]
        changed = [f"{option.name}={value!r}" for option, value in values if value != option.default]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __post_init__(self) -> None:
        for name, spec in option_specs(type(self)).items():
            if spec.expand is not None and getattr(self, name) is not None:
                self._expand_option(name, spec.expand)
        for name, spec in option_specs(type(self)).items():
            self._normalize_value(name, spec)
            self._check_texts(name)
            value = getattr(self, name)
            if value is None and self.__dataclass_fields__[name].default is None:
                continue
            if spec.range is not None:
                check_range(name, value, spec.range)
            if spec.form in VALUE_CHECKS:
                VALUE_CHECKS[spec.form](name, value, spec)
        for name in filter(self.is_given, option_specs(type(self))):
            self._check_rules(name)

    def is_given(self, name: str) -> bool:
        """Return whether an option differs from its default."""
        value, default = getattr(self, name), self.__dataclass_fields__[name].default
        if value is None or value is default or (isinstance(value, (*_CONTAINERS, dict)) and not value):
            return False
        return default is None or self._plain(name, value) != self._plain(name, default)

    def first_given(self, *names: str) -> str:
        """Return the first name in `names` whose option differs from its default, or ""."""
        return next((name for name in names if name in option_specs(type(self)) and self.is_given(name)), "")

    def _is_met(self, condition: Given[Any]) -> bool:
        name = condition.name
        if name not in option_specs(type(self)) or not self.is_given(name):
            return False
        return condition.value is None or getattr(self, name) == condition.value

    def pick(self, options_type: type[OptionsT], **values: object) -> OptionsT:
        """Create options of another class from `values` and from the options that both classes have."""
        names = options_type.__dataclass_fields__  # type: ignore[attr-defined]
        shared = {name: getattr(self, name) for name in option_specs(type(self)) if name in names}
        return options_type(**{**shared, **values})

    def recorded(self) -> dict[str, object]:
        """Return the options to record in the dataset file. Options with default values are omitted."""
        recorded: dict[str, object] = {}
        for name, spec in option_specs(type(self)).items():
            value = self._plain(name, getattr(self, name))
            if spec.recorded and value != self.__dataclass_fields__[name].default:
                value = "{}x{}".format(*option_values.parse_pixels(name, value)) if spec.form == "pixels" else value
                recorded[to_recorded_name(name)] = to_recorded_value(name, value)
        return recorded

    def _expand_option(self, name: str, expand: Callable[[type, Any], Mapping[str, object]]) -> None:
        values = {name: self.__dataclass_fields__[name].default, **expand(type(self), getattr(self, name))}
        for member, value in values.items():
            if member != name and self.is_given(member) and getattr(self, member) != value:
                member_text = choose_text(member, cli_spellings(type(self), member)[0])
                raise InvalidRequest(option_text(name), f"used with {member_text}", expected="only one of them")
            object.__setattr__(self, member, value)

    def _plain(self, name: str, value: Any) -> Any:
        return parse_size(value) if option_specs(type(self))[name].form == "size" and value is not None else value

    def _normalize_value(self, name: str, spec: OptionSpec) -> None:
        value, form, is_list = getattr(self, name), spec.form, is_list_option(type(self), name)
        default = self.__dataclass_fields__[name].default
        if value is None and isinstance(default, bool | tuple):
            text: object = default
        elif form == "function" and callable(value):
            text = import_name(value)
        elif form == "shares" and isinstance(value, Mapping):
            text = split_options.format_shares(value)
        elif form == "pairs" and isinstance(value, Mapping):
            text = tuple(option_values.format_pair(name, *pair) for pair in value.items())
        elif form == "delimiter" and isinstance(value, str):
            text = option_values.parse_delimiter(name, value)
        elif is_list and isinstance(value, str):
            text = tuple(value.split(",")) if spec.comma_separated or spec.single_value_list else (value,)
        elif is_list and isinstance(value, os.PathLike):
            text = (os.fspath(value),)
        elif is_list and isinstance(value, Iterable) and not isinstance(value, tuple | Mapping):
            text = (*value,)
        else:
            return
        object.__setattr__(self, name, text)

    def _check_texts(self, name: str) -> None:
        value, allowed, is_list = getattr(self, name), option_types(type(self))[name], is_list_option(type(self), name)
        if allowed == (bool,):
            check_flag(name, value)
        if is_list and not (isinstance(value, tuple) and all(isinstance(text, str) for text in value)):
            raise InvalidRequest(option_text(name), repr(value)[:100], expected="a string, or several")
        classes: tuple[Any, ...] = tuple(get_origin(kind) or kind for kind in allowed)
        if {*allowed} <= _SINGLE_TEXT_TYPES and not isinstance(value, classes):
            shown = ",".join(map(str, value if isinstance(value, _CONTAINERS) else [value])) if value else "..."
            raise InvalidRequest(option_text(name), repr(value), expected=f"one string, such as {shown!r}")
        choices = option_choices(type(self), name)
        for text in value if is_list else (value,):
            if isinstance(text, str) and _INVALID_TEXT.search(text):  # dataset files cannot store these surrogates
                raise InvalidRequest(option_text(name), repr(text), expected="valid Unicode text")
            if choices and text not in choices and not (text is None and type(None) in allowed):
                remedy = suggest_choice(text, choices) if isinstance(text, str) else ""
                expected = f"one of {', '.join(choices)}"
                raise InvalidRequest(option_text(name), repr(text), expected=expected, remedy=remedy)

    def _check_rules(self, name: str) -> None:
        spec, specs = option_specs(type(self))[name], option_specs(type(self))
        for rule in spec.needs():
            if not any(map(self._is_met, rule.conditions)):
                needed = [
                    option_text(option.name, option.value or specs[option.name].example or None)
                    for option in rule.conditions
                    if option.name in specs
                ]
                options = ", ".join([*needed[:-2], " or ".join(needed[-2:])])
                raise InvalidRequest(self._name_in_message(name), rule.missing, expected=f"{options}, too")
        for other in filter(self._is_met, spec.conflicts):
            found = f"used with {self._name_in_message(other.name)}{other.reason and f', {other.reason}'}"
            raise InvalidRequest(self._name_in_message(name), found, expected="only one of them")

    def _name_in_message(self, name: str) -> str:
        return option_text(name, getattr(self, name) if option_choices(type(self), name) else None)
