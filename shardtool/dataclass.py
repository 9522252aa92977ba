"""A `dataclass` decorator that generates no code.

The standard library's decorator compiles up to eight functions per class at every start, which takes 0.3 to 1.3 ms.
Here, all classes share a few functions that loop over the fields. Creating an instance takes 2 us longer, so classes
with one instance per sample use the standard library's decorator.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, FrozenInstanceError, fields
from dataclasses import dataclass as _standard_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - type checkers know this decorator
    from inspect import Signature

else:

    def dataclass(
        kind: type | None = None,
        /,
        *,
        frozen: bool = False,
        eq: bool = True,
        repr: bool = True,  # noqa: A002 - the name in the standard library
        **parameters: bool,
    ) -> Any:
        """Create a dataclass, as `dataclasses.dataclass` does."""

        def make(kind: type) -> type:
            methods: dict[str, Any] = {"__init__": _init}
            if repr:
                methods["__repr__"] = _repr
            if eq:
                methods |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
            if frozen:
                methods |= {"__setattr__": _refuse_change, "__delattr__": _refuse_change}
            if frozen and parameters.get("slots"):
                methods |= {"__getstate__": _get_state, "__setstate__": _set_state}
            own = {name for name in methods if kind.__dict__.get(name) is not None}
            kind = _standard_dataclass(init=False, eq=False, repr=False, **parameters)(kind)
            for name in methods.keys() - own:
                setattr(kind, name, methods[name])
            kind.__signature__ = _LazySignature()
            return kind

        return make if kind is None else make(kind)


class _Plan(NamedTuple):
    positional: tuple[str, ...]
    arguments: frozenset[str]
    required: frozenset[str]
    defaults: dict[str, Any]
    factories: dict[str, Any]


_PLANS: dict[type, _Plan] = {}
_set = object.__setattr__


def _make_plan(kind: Any) -> _Plan:
    arguments = [item for item in fields(kind) if item.init]
    defaults = {item.name: item.default for item in fields(kind) if item.default is not MISSING}
    factories = {item.name: item.default_factory for item in fields(kind) if item.default_factory is not MISSING}
    names = frozenset(item.name for item in arguments)
    positional = tuple(item.name for item in arguments if not item.kw_only)
    plan = _PLANS[kind] = _Plan(positional, names, names - defaults.keys() - factories.keys(), defaults, factories)
    return plan


def _init(self: Any, /, *values: Any, **named: Any) -> None:
    plan = _PLANS.get(type(self)) or _make_plan(type(self))
    if values:
        named = _name_positional(self, plan, values, named)
    if not named.keys() <= plan.arguments:
        raise _argument_error(self, f"got an unexpected keyword argument {min(named.keys() - plan.arguments)!r}")
    if not named.keys() >= plan.required:
        raise _argument_error(self, f"missing required arguments: {', '.join(sorted(plan.required - named.keys()))}")
    for name, value in (plan.defaults | named).items():
        _set(self, name, value)
    for name, factory in plan.factories.items():
        if name not in named:
            _set(self, name, factory())
    if hasattr(self, "__post_init__"):
        self.__post_init__()


def _name_positional(instance: Any, plan: _Plan, values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    if len(values) > len(plan.positional):
        raise _argument_error(instance, f"takes {len(plan.positional)} positional arguments, not {len(values)}")
    by_position = dict(zip(plan.positional, values, strict=False))
    if repeated := by_position.keys() & named.keys():
        raise _argument_error(instance, f"got multiple values for argument {min(repeated)!r}")
    return by_position | named


def _argument_error(instance: object, problem: str) -> TypeError:
    return TypeError(f"{type(instance).__name__}.__init__() {problem}")


def _repr(self: Any) -> str:
    shown = [f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _compared(instance: Any) -> tuple[object, ...]:
    return tuple(getattr(instance, item.name) for item in fields(instance) if item.compare)


def _eq(self: Any, other: object) -> Any:
    return _compared(self) == _compared(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _refuse_change(self: object, name: str, *_: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot change field {name!r} of {type(self).__name__}")


def _get_state(self: Any) -> list[object]:
    return [getattr(self, item.name) for item in fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for item, value in zip(fields(self), state, strict=True):
        _set(self, item.name, value)


class _LazySignature:
    # Created on demand, because only `help` and editors use signatures.

    def __get__(self, instance: object, kind: Any) -> Signature:
        if instance is not None or kind.__init__ is not _init:
            raise AttributeError("__signature__")
        from inspect import Parameter, Signature

        def parameter(item: Field[Any]) -> Parameter:
            has_default = item.default is not MISSING or item.default_factory is not MISSING
            default = item.default_factory if item.default is MISSING else item.default
            kind = Parameter.KEYWORD_ONLY if item.kw_only else Parameter.POSITIONAL_OR_KEYWORD
            return Parameter(item.name, kind, default=default if has_default else Parameter.empty, annotation=item.type)

        arguments = [parameter(item) for item in fields(kind) if item.init]
        return Signature(sorted(arguments, key=lambda item: item.kind), return_annotation=None)
