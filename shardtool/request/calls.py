"""How Python calls a verb: with its options by their names, or with an object that holds them."""

from __future__ import annotations

from functools import cache, wraps
from inspect import Parameter, Signature, cleandoc, signature
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

from shardtool.errors import InvalidRequest, current_folder
from shardtool.request.settings import Settings, check_names, texts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardtool.request.observer import Observer

_A_contra = TypeVar("_A_contra", contravariant=True)
_B_contra = TypeVar("_B_contra", contravariant=True)
_Options_contra = TypeVar("_Options_contra", bound=Settings, contravariant=True)
_Result_co = TypeVar("_Result_co", covariant=True)
_Names = ParamSpec("_Names")
_F = TypeVar("_F")
_S = TypeVar("_S")
_R = TypeVar("_R")
_Made = TypeVar("_Made", bound=Settings)


_signature_of = cache(signature)  # that of a hundred options costs a millisecond


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


class by_names(Generic[_Made, _Names]):  # noqa: N801 - a decorator
    """Have a verb take its options by their names, too: `create("imgs", "out-{000000..}.tar", shuffle=True)`.

    The names, their types and what each does are those of the class of options: type checkers, `help` and completion
    find them.

    Args:
        kind: The class of the verb's options.
    """

    def __init__(self, kind: Callable[_Names, _Made]) -> None:
        self._kind: Any = kind

    @overload
    def __call__(self, verb: Callable[[_F, _S, _Made | None], _R]) -> VerbOfTwo[_F, _S, _Made, _R, _Names]: ...
    @overload
    def __call__(self, verb: Callable[[_F, _Made | None], _R]) -> VerbOfOne[_F, _Made, _R, _Names]: ...
    def __call__(self, verb: Any) -> Any:
        """Return the verb that takes them."""
        kind, own = self._kind, signature(verb).parameters
        at = [*own].index("options")

        @wraps(verb)
        def called(*given: object, **named: Any) -> object:
            names = {name: named.pop(name) for name in [*named] if name not in own}
            options = given[at] if len(given) > at else named.pop("options", None)
            if names:
                check_names(verb.__name__, names, kind)
                if options is not None:
                    found = f"used with {next(iter(names))}"
                    raise InvalidRequest("options", found, expected=f"either names, or {kind.__name__}(...)")
                options = kind(**names)
            if isinstance(options, kind) and options.observer is not None:
                named.setdefault("observer", options.observer)
            with current_folder():
                return verb(*given[:at], *given[at + 1 :], options=options, **named)

        called.__signature__ = _signature(own.values(), kind)  # type: ignore[attr-defined]
        if verb.__doc__:  # python -OO has none
            called.__doc__ = "\n".join([cleandoc(verb.__doc__), "", "Options:", *texts_of(kind)])
        return called


def _signature(own: Iterable[Parameter], kind: type) -> Signature:
    """Return the parameters of a verb, and its options by their names."""
    taken = {one.name: one for one in [*own, *_signature_of(kind).parameters.values()]}
    return Signature(sorted(taken.values(), key=lambda one: one.kind))
