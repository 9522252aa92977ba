"""Let Python functions accept options by keyword or as an options object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache, partial, wraps
from inspect import Signature, cleandoc, signature
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from shardtool.errors import InvalidRequest, explaining_missing_cwd
from shardtool.request.base_options import BaseOptions
from shardtool.request.observer import Observer, default_observer
from shardtool.request.option_spec import OptionsT, doc_lines, option_specs

_OptionParams = ParamSpec("_OptionParams")

if TYPE_CHECKING:
    _A_contra = TypeVar("_A_contra", contravariant=True)
    _B_contra = TypeVar("_B_contra", contravariant=True)
    _Options_contra = TypeVar("_Options_contra", bound="BaseOptions", contravariant=True)
    _Result_co = TypeVar("_Result_co", covariant=True)

    class VerbOfOne(Protocol[_A_contra, _Options_contra, _Result_co, _OptionParams]):
        """A verb with one argument, such as `verify(dataset, quick=True)`."""

        # No overloads, because type checkers would report a wrong option once per overload.
        def __call__(
            self,
            first: _A_contra,
            /,
            options: _Options_contra | None = None,
            *args: _OptionParams.args,
            **named: _OptionParams.kwargs,
        ) -> _Result_co:
            """Run the verb."""

    class VerbOfTwo(Protocol[_A_contra, _B_contra, _Options_contra, _Result_co, _OptionParams]):
        """A verb with two arguments, such as `create(source, output, shuffle=True)`."""

        def __call__(
            self,
            first: _A_contra,
            second: _B_contra,
            /,
            options: _Options_contra | None = None,
            *args: _OptionParams.args,
            **named: _OptionParams.kwargs,
        ) -> _Result_co:
            """Run the verb."""


_cached_signature = cache(signature)  # `signature` takes 1 ms for a hundred options


def merge_options(where: str, options: object, named: Mapping[str, Any], options_type: type[OptionsT]) -> OptionsT:
    """Return the options of a call as an object of the class `options_type`.

    The keyword arguments in `named` override `options`. `where` is the function's name in errors.
    """
    known = [option.name for option in fields(options_type)]  # type: ignore[arg-type]
    if unknown := [name for name in named if name not in known]:
        from difflib import get_close_matches

        similar = " or ".join(get_close_matches(unknown[0], known))
        remedy = "" if similar else f"help(shardtool.{options_type.__name__}) lists all options."
        raise InvalidRequest(where, f"no option {unknown[0]!r}", expected=similar, remedy=remedy)
    if options is None:
        return options_type(**named)
    if not isinstance(options, options_type):
        remedy = "Pass a dict as **options." if isinstance(options, Mapping) else ""
        expected = f"{options_type.__name__}(...), or keyword arguments"
        raise InvalidRequest("options", type(options).__name__, expected=expected, remedy=remedy)
    return replace(options, **named) if named else options  # type: ignore[type-var]


_FunctionT = TypeVar("_FunctionT", bound=Callable[..., object])


def documents_options(options_type: Any) -> Callable[[_FunctionT], _FunctionT]:
    """Return a decorator that adds the options of the class `options_type` to a function's signature and docstring."""

    def describe(function: _FunctionT) -> _FunctionT:
        own = [item for item in signature(function).parameters.values() if item.kind is not item.VAR_KEYWORD]
        parameters = {item.name: item for item in [*own, *_cached_signature(options_type).parameters.values()]}
        parameters["options"] = parameters["options"].replace(
            default=None, annotation=f"{options_type.__name__} | None"
        )
        function.__signature__ = Signature(sorted(parameters.values(), key=lambda item: item.kind))  # type: ignore[attr-defined]
        if function.__doc__:  # `python -OO` removes docstrings
            function.__doc__ = "\n".join([cleandoc(function.__doc__), "", "Options:", *doc_lines(options_type)])
        return function

    return describe


def _without_markers(result: object) -> object:
    from shardtool.storage.remote.store_options import without_markers

    return without_markers(result)


def _with_plain_addresses(observer: Observer) -> Observer:
    def pass_on(method: Callable[..., None], *arguments: object) -> None:
        method(*map(_without_markers, arguments))

    plain: Any = Observer()
    for name in ("note", "log", "shard", "listed", "phase", "start", "failed", "advance"):
        setattr(plain, name, partial(pass_on, getattr(observer, name)))
    return cast("Observer", plain)


_FirstT = TypeVar("_FirstT")
_SecondT = TypeVar("_SecondT")
_ResultT = TypeVar("_ResultT")
_OptionsT = TypeVar("_OptionsT", bound=BaseOptions)


class accepts_options(Generic[_OptionsT, _OptionParams]):  # noqa: N801 - a decorator
    """Let a verb accept options as keyword arguments, as in `create("imgs", "out-{000000..}.tar", shuffle=True)`.

    Keyword arguments override an options object.
    """

    def __init__(self, options_type: Callable[_OptionParams, _OptionsT]) -> None:
        self._options_type: Any = options_type

    @overload
    def __call__(
        self, verb: Callable[[_FirstT, _SecondT, _OptionsT, Observer], _ResultT]
    ) -> VerbOfTwo[_FirstT, _SecondT, _OptionsT, _ResultT, _OptionParams]: ...
    @overload
    def __call__(
        self, verb: Callable[[_FirstT, _OptionsT, Observer], _ResultT]
    ) -> VerbOfOne[_FirstT, _OptionsT, _ResultT, _OptionParams]: ...
    def __call__(self, verb: Any) -> Any:
        """Return a function that calls the verb with an options object and an observer."""
        options_type, own = self._options_type, signature(verb).parameters
        index = [*own].index("options")

        @wraps(verb)
        def called(*args: object, observer: Observer | None = None, **named: Any) -> object:
            option_values = {name: named.pop(name) for name in [*named] if name not in own}
            options_object = args[index] if len(args) > index else named.pop("options", None)
            options: BaseOptions = merge_options(verb.__name__, options_object, option_values, options_type)
            user_observer = observer or options.observer
            run_observer = user_observer or default_observer()
            arguments = [*args[:index], *args[index + 1 :]]
            storage_options = options.storage_options
            if storage_options is not None:  # attach the storage options to each address
                from shardtool.storage.remote.store_options import with_options

                specs = option_specs(options_type)
                paths = {name: getattr(options, name) for name in specs if specs[name].form == "path"}
                arguments, named, paths = with_options((arguments, named, paths), storage_options)
                options = replace(options, **paths, storage_options=None)
            try:
                with explaining_missing_cwd():
                    if storage_options is None:
                        return verb(*arguments, options=options, observer=run_observer, **named)
                    plain_observer = _with_plain_addresses(run_observer)
                    return _without_markers(verb(*arguments, options=options, observer=plain_observer, **named))
            finally:
                if user_observer is None:
                    run_observer.close()

        return documents_options(options_type)(called)
