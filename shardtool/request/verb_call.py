"""Let Python functions accept options by keyword or as an options object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import cache, wraps
from inspect import Signature, cleandoc, signature
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from shardtool.errors import InvalidRequest, explaining_missing_cwd
from shardtool.request.base_options import BaseOptions
from shardtool.request.observer import Observer
from shardtool.request.option_spec import OptionsT, doc_lines

_OptionParams = ParamSpec("_OptionParams")

if TYPE_CHECKING:
    _A_contra = TypeVar("_A_contra", contravariant=True)
    _B_contra = TypeVar("_B_contra", contravariant=True)
    _Options_contra = TypeVar("_Options_contra", bound="BaseOptions", contravariant=True)
    _Result_co = TypeVar("_Result_co", covariant=True)

    class VerbOfOne(Protocol[_A_contra, _Options_contra, _Result_co, _OptionParams]):
        """A verb of one argument, such as `verify(dataset, quick=True)`."""

        @overload
        def __call__(
            self, first: _A_contra, /, *args: _OptionParams.args, **options: _OptionParams.kwargs
        ) -> _Result_co: ...
        @overload
        def __call__(
            self, first: _A_contra, /, options: _Options_contra | None = ..., *, observer: Observer | None = ...
        ) -> _Result_co: ...

    class VerbOfTwo(Protocol[_A_contra, _B_contra, _Options_contra, _Result_co, _OptionParams]):
        """A verb of two arguments, such as `create(source, output, shuffle=True)`."""

        @overload
        def __call__(
            self, first: _A_contra, second: _B_contra, /, *args: _OptionParams.args, **options: _OptionParams.kwargs
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


def resolve_options(given: object, kind: type[OptionsT]) -> OptionsT:
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


def check_option_names(where: str, names: Iterable[str], kind: type) -> None:
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


_FirstT = TypeVar("_FirstT")


_SecondT = TypeVar("_SecondT")


_ResultT = TypeVar("_ResultT")


_OptionsT = TypeVar("_OptionsT", bound=BaseOptions)


_cached_signature = cache(signature)  # that of a hundred options costs a millisecond


class accepts_options(Generic[_OptionsT, _OptionParams]):  # noqa: N801 - a decorator
    """Have a verb take its options by their names, too: `create("imgs", "out-{000000..}.tar", shuffle=True)`.

    The verb itself gets them as one object, those by default where none are given, and always an observer.

    The names, their types and what each does are those of the class of options: type checkers, `help` and completion
    find them.

    Args:
        kind: The class of the verb's options.
    """

    def __init__(self, kind: Callable[_OptionParams, _OptionsT]) -> None:
        self._kind: Any = kind

    @overload
    def __call__(
        self, verb: Callable[[_FirstT, _SecondT, _OptionsT, Observer], _ResultT]
    ) -> VerbOfTwo[_FirstT, _SecondT, _OptionsT, _ResultT, _OptionParams]: ...
    @overload
    def __call__(
        self, verb: Callable[[_FirstT, _OptionsT, Observer], _ResultT]
    ) -> VerbOfOne[_FirstT, _OptionsT, _ResultT, _OptionParams]: ...
    def __call__(self, verb: Any) -> Any:
        """Return the verb that takes them."""
        kind, own = self._kind, signature(verb).parameters
        at = [*own].index("options")

        @wraps(verb)
        def called(*given: object, observer: Observer | None = None, **named: Any) -> object:
            names = {name: named.pop(name) for name in [*named] if name not in own}
            options = given[at] if len(given) > at else named.pop("options", None)
            if names:
                check_option_names(verb.__name__, names, kind)
                if options is not None:
                    found = f"used with {next(iter(names))}"
                    raise InvalidRequest("options", found, expected=f"either names, or {kind.__name__}(...)")
                options = kind(**names)
            asked: BaseOptions = resolve_options(options, kind)
            watches = observer or asked.observer or Observer()
            with explaining_missing_cwd():
                return verb(*given[:at], *given[at + 1 :], options=asked, observer=watches, **named)

        taken = {one.name: one for one in [*own.values(), *_cached_signature(kind).parameters.values()]}
        taken["options"] = taken["options"].replace(default=None, annotation=f"{kind.__name__} | None")
        called.__signature__ = Signature(sorted(taken.values(), key=lambda one: one.kind))  # type: ignore[attr-defined]
        if verb.__doc__:  # python -OO has none
            called.__doc__ = "\n".join([cleandoc(verb.__doc__), "", "Options:", *doc_lines(kind)])
        return called
