"""What a verb is given: options, each a field of its class, declared by `setting` with all that is known of it.

From these facts and from the field's annotation come the attribute's description, the checks of `Settings`, what a run
records, how Python calls the verb (`by_names`), and the command line: its options, their help and their types
(`cli/commands.py`). Beside them a verb is given who watches it: an `Observer`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache, wraps
from inspect import Signature, cleandoc, signature
from operator import index
from types import MappingProxyType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from shardtool.errors import InvalidRequest, current_folder, printable
from shardtool.request import texts
from shardtool.values import parse_size
from shardtool.wording import FAMILIES, TYPED, WITH_COMMAS, either, flag, option, typed_option

_Names = ParamSpec("_Names")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    _A_contra = TypeVar("_A_contra", contravariant=True)
    _B_contra = TypeVar("_B_contra", contravariant=True)
    _Options_contra = TypeVar("_Options_contra", bound="Settings", contravariant=True)
    _Result_co = TypeVar("_Result_co", covariant=True)

    class VerbOfOne(Protocol[_A_contra, _Options_contra, _Result_co, _Names]):
        """A verb of one argument, such as `verify(dataset, quick=True)`."""

        @overload
        def __call__(self, first: _A_contra, /, *args: _Names.args, **options: _Names.kwargs) -> _Result_co: ...
        @overload
        def __call__(
            self, first: _A_contra, /, options: _Options_contra | None = ..., *, observer: Observer | None = ...
        ) -> _Result_co: ...

    class VerbOfTwo(Protocol[_A_contra, _B_contra, _Options_contra, _Result_co, _Names]):
        """A verb of two arguments, such as `create(source, output, shuffle=True)`."""

        @overload
        def __call__(
            self, first: _A_contra, second: _B_contra, /, *args: _Names.args, **options: _Names.kwargs
        ) -> _Result_co: ...
        @overload
        def __call__(
            self,
            first: _A_contra,
            second: _B_contra,
            /,
            options: _Options_contra | None = ...,
            *,
            observer: Observer | None = ...,
        ) -> _Result_co: ...
else:

    def dataclass_transform(**_: bool) -> Any:
        """Return what does nothing: only type checkers look at it, and Python 3.10 has none."""
        return lambda made: made


Default = TypeVar("Default")
Options = TypeVar("Options")
Texts = str | tuple[str, ...] | list[str]  # one, or several
Pairs = Mapping[str, str] | Texts  # {"jpg": "path"}, or jpg=path
Shares = str | Mapping[str, float]  # train=0.8,val=0.2, or {"train": 0.8, "val": 0.2}
Function = str | Callable[..., object]  # package.module:function, or the function
Folder = str | os.PathLike[str]
Form = Literal[
    "", "size", "rate", "share", "sample", "pairs", "shares", "part", "pixels", "function", "path", "delimiter"
]

_MOST = 2**63 - 1  # of a recorded number
_NO_TEXT = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # no text, nor what Python makes of a name that is no UTF-8
_CONTAINERS = (list, tuple, set, frozenset)
_ONE_TEXT = {str, os.PathLike[str], type(None)}
_FACTS: dict[type, dict[str, Facts]] = {}  # by class, as the next one
_KINDS: dict[type, dict[str, tuple[object, ...]]] = {}  # annotations are evaluated once
_NAMED = re.compile(r"`(\w+)(?:='([\w-]+)')?`")


# Who watches a run.


class Observer:
    """Gets the progress and the notes of a run, in the parent process, and ignores them: override what you need."""

    def note(self, text: str) -> None:
        """Take something that the user should know before a byte is written."""

    def log(self, text: str) -> None:
        """Take a detail."""

    def shard(self, name: str, done: str, samples: int, size: int) -> None:
        """Take that a shard is done, what was done with it, and what it holds, its size in bytes."""
        self.log(f"{name}: {done}, {samples:,} samples, {size:,} bytes")

    def listed(self, samples: int) -> None:
        """Take how many more samples were found."""

    def phase(self, text: str, size: int) -> None:
        """Take what is done before `start`, and how many bytes that takes; they come by `advance`."""

    def start(self, samples: int, size: int, shards: int) -> None:
        """Take how much there is to do, sizes in bytes."""

    def failed(self, samples: int) -> None:
        """Take how many of the samples that `advance` takes next could not be fetched."""

    def advance(self, samples: int, size: int, shards: int) -> None:
        """Take how much more is done."""


class Notes:
    """The notes of a run for the user: given to the observer at once, and kept in order for its result.

    Args:
        observer: Gets each note at once.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.said: list[str] = []

    def add(self, *notes: str) -> None:
        """Give notes to the user, now and in the result."""
        for note in map(printable, notes):
            self.said.append(note)
            self.observer.note(note)

    def add_new(self, note: str) -> None:
        """Give a note to the user, unless it was given before."""
        if printable(note) not in self.said:
            self.add(note)


# What is known of options.


class Facts(NamedTuple):
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
            splits, `part` of a run, `pixels`, `function`, `path`: a place that a shell completes; or the `delimiter` of
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
    within_family: str = ""
    divide: Callable[[type, Any], Mapping[str, object]] | None = None
    metavar: str = ""
    shown: str = ""
    form: Form = ""
    such_as: str = ""
    within: tuple[int, int] | None = None
    of: str = ""
    needs: Mapping[str, str] = MappingProxyType({})
    apart: tuple[str, ...] = ()
    recorded: bool = True
    commas: bool = False
    word: bool = False
    off: str = ""
    flags: Mapping[str, str] = MappingProxyType({})
    use: Callable[[Any], object] | None = None


def typed_text(text: str) -> str:
    """Return a text about options in the words of the command line."""
    return _NAMED.sub(lambda found: typed_option(found[1], found[2]), text)


def setting(default: Default, text: str, **facts: Any) -> Default:
    """Declare an option: a field with a default, what it does, and its `Facts`."""
    return field(default=default, metadata={"facts": Facts(text, **facts)})


def spelled(name: str) -> Any:
    """Declare another name that Python takes for an option, as the command line does: `field` for `values`.

    Args:
        name: The option, or `name=value` for a flag that stands for a value.
    """
    return field(default=None, repr=False, compare=False, metadata={"means": name})


def of_flags(flags: Sequence[str]) -> str:
    """Return the value that flags stand for; an update appends and resumes by itself.

    Raises:
        InvalidRequest: They exclude each other.
    """
    adding = next((one for one in ("update", "append") if one in flags), "")
    if adding and "overwrite" in flags:
        found = f"used with {flag('overwrite')}, which replaces what is there"
        raise InvalidRequest(flag(adding), found, expected="one of them")
    return "update" if adding == "update" else "-".join(flags)


def like(kind: type, name: str, **others: Any) -> Any:
    """Declare an option as that of another class, but for some of its `Facts`."""
    default = kind.__dataclass_fields__[name].default  # type: ignore[attr-defined]
    return field(default=default, metadata={"facts": facts(kind)[name]._replace(**others)})


def texts_of(kind: type) -> list[str]:
    """Return a line for each option of a class, and each other name of one, as docstrings have them."""
    known, others = facts(kind), {one.name: one.metadata.get("means", "") for one in fields(kind)}
    said = {name: known[name].text if name in known else means and f"As {means}." for name, means in others.items()}
    return [f"    {name}: {text}" for name, text in said.items() if text]


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False)
def described(kind: type[Options]) -> type[Options]:
    """Make a dataclass of options, described in its docstring, and tell messages what the command line calls them."""
    kind = dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)(kind)
    kind.__doc__ = "\n".join([f"{kind.__doc__}\n\nAttributes:", *texts_of(kind)])
    for name, one in facts(kind).items():
        if one.typed:
            TYPED[name] = f"--{one.typed.split('/')[0]}"
        if one.word:
            WITH_COMMAS.add(name)
        if one.within_family:
            key = name.replace("_", "-") + ("" if kind.__dataclass_fields__[name].default is False else "={}")  # type: ignore[attr-defined]
            FAMILIES[name] = one.within_family if " " in one.within_family else f"{one.within_family} {key}"
    return kind


def facts(options: type) -> dict[str, Facts]:
    """Return what is known of each option of a class."""
    if options not in _FACTS:
        _FACTS[options] = {one.name: one.metadata["facts"] for one in fields(options) if "facts" in one.metadata}
    return _FACTS[options]


def spellings(options: type, name: str) -> list[str]:
    """Return what the command line calls an option, the best first, but for those from before."""
    words = (facts(options)[name].typed or name.replace("_", "-")).split("/")
    return [f"{'--' if word[1:] else '-'}{word}" for word in words]


def kinds(options: type) -> dict[str, tuple[object, ...]]:
    """Return the types that each option can have: those that stand in its annotation."""
    if options not in _KINDS:
        _KINDS[options] = {
            name: get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
            for name, hint in get_type_hints(options).items()
            if name in facts(options)
        }
    return _KINDS[options]


def choices(options: type, name: str) -> tuple[str, ...]:
    """Return the texts that an option can be, or each of several; empty: any."""
    for kind in kinds(options)[name]:
        for one in (kind, *get_args(kind)):
            if get_origin(one) is Literal:
                return get_args(one)
    return ()


def fits(value: object, options: type, name: str) -> bool:
    """Return whether a value from JSON is of an option's type; which texts it can be is checked with the options."""
    allowed = kinds(options)[name]
    origins = {get_origin(kind) for kind in allowed}
    if isinstance(value, list):
        return tuple in origins and all(isinstance(one, str) for one in value)
    if isinstance(value, str):
        return not is_several(options, name) and (str in allowed or Literal in origins)
    if type(value) is int:
        return abs(value) <= _MOST and (int in allowed or float in allowed)
    return value is not None and type(value) in allowed


def is_several(options: type, name: str) -> bool:
    """Tell whether an option is several texts, of which one may be given alone."""
    return facts(options)[name].divide is None and any(get_args(kind)[1:] == (...,) for kind in kinds(options)[name])


def by_key(options: type, family: str, given: object) -> dict[str, object]:
    """Return the options that `per-host=4,retry-failed` gives, or a mapping of such names to values.

    Raises:
        InvalidRequest: One has no such name, or lacks a value, or has one that it does not take.
    """
    known = [one for one, known in facts(options).items() if known.within_family == family]
    pieces = [*given.items()] if isinstance(given, Mapping) else []
    for part in texts.parts(family, given) if not pieces else ():
        key, equals, value = part.partition("=")
        if not equals and pieces and _name(key) not in known and isinstance(pieces[-1][1], str):
            pieces[-1] = (pieces[-1][0], f"{pieces[-1][1]},{part}")  # a comma within a value
        else:
            pieces.append((key, value if equals else True))
    found: dict[str, object] = {}
    for key, value in pieces:
        name = _name(key)
        if name not in known:
            expected = f"some of {', '.join(one.replace('_', '-') for one in known)}"
            raise InvalidRequest(option(family), repr(key)[:100], expected=expected)
        if name in found:
            raise InvalidRequest(option(family), f"{key!r} more than once", expected="each once")
        is_flag = options.__dataclass_fields__[name].default is False  # type: ignore[attr-defined]
        if is_flag != isinstance(value, bool):
            expected = f"{key}, without a value" if is_flag else f"{key}=VALUE"
            raise InvalidRequest(option(family), repr(key), expected=expected)
        found[name] = texts.whole(value) if facts(options)[name].within and isinstance(value, str) else value
    return found


def _name(key: object) -> str:
    return str(key).strip().replace("-", "_")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Settings:
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
        self._keep_spelled()
        for name, one in facts(type(self)).items():
            if one.divide is not None and getattr(self, name) is not None:
                self._divide(name, one.divide)
        for name, one in facts(type(self)).items():
            self._keep_text(name, one)
            self._check_texts(name)
            value = getattr(self, name)
            if value is None and self.__dataclass_fields__[name].default is None:
                continue
            if one.within is not None:
                check_range(name, value, one.within)
            if one.form in _READERS:
                _READERS[one.form](name, value, one)
        for name in filter(self.is_given, facts(type(self))):
            self._check_others(name)

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
            if name in facts(type(self)) and self.is_given(name) and (not value or value in str(getattr(self, name))):
                return name
        return ""

    def pick(self, kind: type[Options], **values: object) -> Options:
        """Return the value of a class whose fields are called as these options, but for the values that are given."""
        found = {name: getattr(self, name) for name in facts(type(self)) if name in kind.__dataclass_fields__}  # type: ignore[attr-defined]
        return kind(**{**found, **values})

    def recorded(self) -> dict[str, object]:
        """Return the options that decide the dataset's bytes, where they differ from the default."""
        found: dict[str, object] = {}
        for name, one in facts(type(self)).items():
            value = self._plain(name, getattr(self, name))
            if one.recorded and value != self.__dataclass_fields__[name].default:
                value = "{}x{}".format(*texts.pixels(name, value)) if one.form == "pixels" else value
                found[name] = list(value) if isinstance(value, tuple) else value
        return found

    def _divide(self, name: str, divide: Callable[[type, Any], Mapping[str, object]]) -> None:
        """Give the options that one stands for what it says of them."""
        found = {name: self.__dataclass_fields__[name].default, **divide(type(self), getattr(self, name))}
        for member, value in found.items():
            if member != name and self.is_given(member) and getattr(self, member) != value:
                other = either(member, spellings(type(self), member)[0])
                raise InvalidRequest(option(name), f"used with {other}", expected="one of them")
            object.__setattr__(self, member, value)  # frozen, and still being made

    def _keep_spelled(self) -> None:
        """Give options the values that stand under other names of theirs.

        Raises:
            InvalidRequest: Two names have one.
        """
        values, flags = dict[str, object](), dict[str, list[str]]()
        for one in fields(self):
            name, _, flag = one.metadata.get("means", "").partition("=")
            given = getattr(self, one.name) if name else None
            if flag:
                _check_flag(one.name, given)
            if given is None or (flag and not given):
                continue
            if self.is_given(name) or name in values:
                raise InvalidRequest(one.name, f"used with {name}", expected="one of them: they mean the same")
            object.__setattr__(self, one.name, None)
            if flag:
                flags.setdefault(name, []).append(flag)
            else:
                values[name] = given
        for name, value in {**values, **{name: of_flags(some) for name, some in flags.items()}}.items():
            object.__setattr__(self, name, value)

    def _plain(self, name: str, value: Any) -> Any:
        """Return a value of an option; a size in bytes: 500MB and 500000000 are the same request."""
        return parse_size(value) if facts(type(self))[name].form == "size" and value is not None else value

    def _keep_text(self, name: str, known: Facts) -> None:
        """Replace a value that has a recorded form by that: pairs, shares, functions, and one text for several."""
        value, form, several = getattr(self, name), known.form, is_several(type(self), name)
        default = self.__dataclass_fields__[name].default
        if value is None and isinstance(default, bool | tuple):  # it is not given
            text: object = default
        elif form == "function" and callable(value):
            text = _function_name(value)
        elif form == "shares" and isinstance(value, Mapping):
            text = texts.shares_text(value)
        elif form == "pairs" and isinstance(value, Mapping):
            text = tuple(texts.pair(name, *both) for both in value.items())
        elif form == "delimiter" and isinstance(value, str):
            text = texts.delimiter(name, value)
        elif several and isinstance(value, str):
            text = tuple(value.split(",")) if known.commas or known.word else (value,)
        elif several and isinstance(value, os.PathLike):
            text = (os.fspath(value),)
        elif several and isinstance(value, Iterable) and not isinstance(value, tuple | Mapping):
            text = (*value,)  # which is gone through more than once, and recorded
        else:
            return
        object.__setattr__(self, name, text)  # frozen, and still being made

    def _check_texts(self, name: str) -> None:
        """Refuse a text that is none of an option's, what is no text among several, and several for one."""
        value, allowed, several = getattr(self, name), kinds(type(self))[name], is_several(type(self), name)
        if allowed == (bool,):
            _check_flag(name, value)
        if several and not (isinstance(value, tuple) and all(isinstance(one, str) for one in value)):
            raise InvalidRequest(option(name), repr(value)[:100], expected="a text, or several")
        if {*allowed} <= _ONE_TEXT and not isinstance(value, tuple(get_origin(one) or one for one in allowed)):  # type: ignore[misc]
            shown = ",".join(map(str, value if isinstance(value, _CONTAINERS) else [value])) if value else "..."
            raise InvalidRequest(option(name), repr(value), expected=f"one text, such as {shown!r}")
        known = choices(type(self), name)
        for one in value if several else (value,):
            if isinstance(one, str) and _NO_TEXT.search(one):  # which no dataset file could record
                raise InvalidRequest(option(name), repr(one), expected="text that is Unicode")
            if known and one not in known and not (one is None and type(None) in allowed):
                raise InvalidRequest(option(name), repr(one), expected=f"one of {', '.join(known)}")

    def _check_others(self, name: str) -> None:
        """Refuse an option without another that it needs, and with one that it cannot go together with."""
        known = facts(type(self))
        for others, missing in known[name].needs.items():
            if not self.first_given(others):
                asked = [one.partition("=") for one in others.split("|") if one.partition("=")[0] in known]
                wanted = [option(other, value or known[other].such_as or None) for other, _, value in asked]
                raise InvalidRequest(self._call(name), missing, expected=f"{' or '.join(wanted)}, too")
        for other, *why in (one.split(",") for one in known[name].apart):
            if given := self.first_given(other):
                found = ",".join([f"used with {self._call(given)}", *why])
                raise InvalidRequest(self._call(name), found, expected="one of them")

    def _call(self, name: str) -> str:
        """Return what a message calls an option: with its value, where that is one of a few."""
        return option(name, getattr(self, name) if choices(type(self), name) else None)


_READERS: dict[Form, Callable[[str, Any, Facts], object]] = {
    "size": lambda name, value, _facts: texts.size(name, value),
    "rate": lambda name, value, _facts: texts.rate(name, value),
    "share": lambda name, value, _facts: texts.share(name, value),
    "sample": lambda name, value, _facts: texts.share(name, value, some=True),
    "pairs": lambda name, value, facts: texts.pairs(
        name, value, f"{facts.metavar}, such as {facts.such_as or 'jpg=path'}"
    ),
    "shares": lambda _name, value, _facts: value == {} or texts.parse_shares(texts.shares_text(value)),
    "part": lambda _name, value, _facts: value in (texts.SLURM, texts.KUBERNETES) or texts.parse_part(value),
    "function": lambda name, value, _facts: _check_function(name, value),
}


def _check_function(name: str, value: object) -> None:
    """Refuse an empty text, as a variable of a shell that is not set gives it: samples would be packed unchanged."""
    if not value:
        raise InvalidRequest(option(name), repr(value), expected="package.module:function")


def _check_flag(name: str, value: object) -> None:
    """Refuse what is neither yes nor no: the text `no` would be a yes."""
    if value is not None and type(value) is not bool:
        raise InvalidRequest(option(name), repr(value)[:100], expected="True or False")


def check_range(name: str, value: object, within: tuple[int, int]) -> None:
    """Refuse a number that is none, or out of range.

    Raises:
        InvalidRequest: It is.
    """
    least, most = within
    try:
        right = least <= index(value) <= most  # type: ignore[arg-type]
    except TypeError:
        right = False
    if not right:
        shown = repr(value) if not isinstance(value, int) else f"{value}" if abs(value) < 10**30 else "a huge number"
        raise InvalidRequest(option(name), shown, expected=f"a whole number from {least} to {most}")


def given_options(given: object, kind: type[Options]) -> Options:
    """Return the options that a verb was given, or those by default.

    Raises:
        InvalidRequest: They are something else, such as a dict.
    """
    if given is None:
        return kind()
    if not isinstance(given, kind):
        remedy = "Of a dict, **options gives the names." if isinstance(given, Mapping) else ""
        expected = f"{kind.__name__}(...), or options by their names"
        raise InvalidRequest("options", type(given).__name__, expected=expected, remedy=remedy)
    return given


def check_names(where: str, names: Iterable[str], kind: type) -> None:
    """Refuse names that no option of a class has.

    Raises:
        InvalidRequest: There are such.
    """
    known = [one.name for one in fields(kind)]
    for name in names:
        if name not in known:
            near = " or ".join(get_close_matches(name, known))
            remedy = f"help(shardtool.{kind.__name__}) lists them."
            if name == "dry_run":
                remedy = f"shardtool.{'' if where == 'create' else f'{where}_'}dry_run is a function of its own."
            raise InvalidRequest(where, f"no option {name!r}", expected=near, remedy="" if near else remedy)


def _function_name(function: Callable[..., object]) -> str:
    """Return `module:name` of a function: workers, and whoever repeats the run, import it by that."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    found: object = sys.modules.get(module or "")
    for part in (name or "").split("."):
        found = getattr(found, part, None)
    if found is not function or module == "__main__":
        shown = f"{module}.{name}" if name else repr(function)
        problem = f"{shown}, which cannot be imported by that name"
        remedy = "Put it into a file of its own, at its top level, and import it from there."
        raise InvalidRequest(option("map"), problem, expected="a function of a module", remedy=remedy)
    return f"{module}:{name}"


# Parameters that no command line has.


def check_choice(name: str, value: object, literal: object) -> None:
    """Refuse what is none of the texts of a Literal.

    Raises:
        InvalidRequest: It is none.
    """
    known = get_args(literal)
    if value not in known:
        raise InvalidRequest(name, repr(value), expected=f"one of {', '.join(known)}")


def check_least(name: str, value: object, least: int = 1) -> None:
    """Refuse what is no plain whole number, or too small.

    Raises:
        InvalidRequest: It is.
    """
    if type(value) is not int or value < least:
        raise InvalidRequest(name, repr(value), expected=f"a whole number, {least} or more")


# How Python calls a verb: with its options by their names, or with an object that holds them.


_F = TypeVar("_F")
_S = TypeVar("_S")
_R = TypeVar("_R")
_Made = TypeVar("_Made", bound=Settings)
_signature_of = cache(signature)  # that of a hundred options costs a millisecond


class by_names(Generic[_Made, _Names]):  # noqa: N801 - a decorator
    """Have a verb take its options by their names, too: `create("imgs", "out-{000000..}.tar", shuffle=True)`.

    The verb itself gets them as one object, those by default where none are given, and always an observer.

    The names, their types and what each does are those of the class of options: type checkers, `help` and completion
    find them.

    Args:
        kind: The class of the verb's options.
    """

    def __init__(self, kind: Callable[_Names, _Made]) -> None:
        self._kind: Any = kind

    @overload
    def __call__(self, verb: Callable[[_F, _S, _Made, Observer], _R]) -> VerbOfTwo[_F, _S, _Made, _R, _Names]: ...
    @overload
    def __call__(self, verb: Callable[[_F, _Made, Observer], _R]) -> VerbOfOne[_F, _Made, _R, _Names]: ...
    def __call__(self, verb: Any) -> Any:
        """Return the verb that takes them."""
        kind, own = self._kind, signature(verb).parameters
        at = [*own].index("options")

        @wraps(verb)
        def called(*given: object, observer: Observer | None = None, **named: Any) -> object:
            names = {name: named.pop(name) for name in [*named] if name not in own}
            options = given[at] if len(given) > at else named.pop("options", None)
            if names:
                check_names(verb.__name__, names, kind)
                if options is not None:
                    found = f"used with {next(iter(names))}"
                    raise InvalidRequest("options", found, expected=f"either names, or {kind.__name__}(...)")
                options = kind(**names)
            asked: Settings = given_options(options, kind)
            watches = observer or asked.observer or Observer()
            with current_folder():
                return verb(*given[:at], *given[at + 1 :], options=asked, observer=watches, **named)

        taken = {one.name: one for one in [*own.values(), *_signature_of(kind).parameters.values()]}
        taken["options"] = taken["options"].replace(default=None, annotation=f"{kind.__name__} | None")
        called.__signature__ = Signature(sorted(taken.values(), key=lambda one: one.kind))  # type: ignore[attr-defined]
        if verb.__doc__:  # python -OO has none
            called.__doc__ = "\n".join([cleandoc(verb.__doc__), "", "Options:", *texts_of(kind)])
        return called
