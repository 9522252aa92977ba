"""The state of a stream: a few numbers, valid for any number of ranks and workers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from shardtool.errors import InvalidRequest
from shardtool.read.order import OrderOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBER_KEYS = ("seed", "epoch", "parts", "window", "position")
_KEYS_BY_VERSION = {1: _NUMBER_KEYS, 2: (*_NUMBER_KEYS, "ranks")}
_OTHER_KEYS = ("version", "fingerprint", "shuffle")
_STATE_FIX = "Pass the unchanged result of `state_dict`."


class StreamState(NamedTuple):
    """The position of a stream, with its order.

    `position` counts the samples that all ranks have read, less than the epoch's length.
    """

    fingerprint: str
    options: OrderOptions
    position: int

    def to_json(self) -> dict[str, object]:
        """Return the state as JSON data."""
        order = {name: value for name, value in vars(self.options).items() if value or name != "ranks"}
        version = 2 if self.options.ranks else 1
        return {"version": version, "fingerprint": self.fingerprint, **order, "position": self.position}

    @classmethod
    def at_position(cls, source: Any, options: OrderOptions, position: int, end: int) -> StreamState:
        """Return the state at a position; at the end of an epoch, the start of the next one."""
        if position < end:
            return cls(source.fingerprint, options, position)
        return cls(source.fingerprint, replace(options, epoch=options.epoch + 1), 0)

    @classmethod
    def from_json(cls, state: object, source: Any) -> StreamState:
        """Return a state from its JSON data, or raise InvalidRequest."""
        values = _check_state(state)
        if values["fingerprint"] != source.fingerprint:
            found = f"belongs to other samples, with fingerprint {values['fingerprint']}"
            remedy = "Open the same dataset, and choose the same samples, as when the state was saved."
            raise InvalidRequest("the state", found, expected=source.fingerprint, remedy=remedy)
        numbers = {name: cast("int", values[name]) for name in _KEYS_BY_VERSION[cast("int", values["version"])]}
        position = numbers.pop("position")
        options = OrderOptions(cast("bool", values["shuffle"]), **numbers)
        length = max(1, source.length_in(options))
        if not 0 <= position < length:
            expected = f"0 to {length - 1}"
            raise InvalidRequest("position of the state", str(position), expected=expected, remedy=_STATE_FIX)
        return cls(source.fingerprint, options, position)


def _check_state(state: object) -> Mapping[str, object]:
    if not isinstance(state, dict):
        raise InvalidRequest("the state", f"a {type(state).__name__}", expected="a dictionary", remedy=_STATE_FIX)
    if (version := state.get("version")) not in (*_KEYS_BY_VERSION,) or type(version) is not int:
        found, expected = repr(state.get("version", "none")), " or ".join(map(str, _KEYS_BY_VERSION))
        remedy = "Continue with the version of shardtool that saved the state."
        raise InvalidRequest("version of the state", found, expected=expected, remedy=remedy)
    keys = (*_OTHER_KEYS, *_KEYS_BY_VERSION[version])
    missing = [key for key in keys if key not in state]
    if missing:
        raise InvalidRequest("the state", f"no {', '.join(missing)}", expected=", ".join(keys), remedy=_STATE_FIX)
    for name, kind in (("fingerprint", str), *((name, int) for name in _KEYS_BY_VERSION[version])):
        if type(state[name]) is not kind:
            expected = "text" if kind is str else "a whole number"
            raise InvalidRequest(f"{name} of the state", repr(state[name]), expected=expected, remedy=_STATE_FIX)
    return state
