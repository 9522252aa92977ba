"""The state of a stream: a few numbers for a checkpoint, valid for any number of ranks and workers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from shardtool.errors import InvalidRequest
from shardtool.read.order import OrderOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBER_KEYS = ("seed", "epoch", "parts", "window", "position")


_KEYS_BY_VERSION = {1: _NUMBER_KEYS, 2: (*_NUMBER_KEYS, "ranks")}  # of a state, and of the orders that it stands for


_OTHER_KEYS = ("version", "fingerprint", "shuffle")


_STATE_FIX = "Give what `state_dict` returned, as it was."


class StreamState(NamedTuple):
    """Where a stream is.

    It holds the whole order, so that a stream goes on in it whatever seed, shuffle, parts or buffer it was made with.

    Attributes:
        fingerprint: Of the samples that are streamed.
        options: The order of the epoch.
        position: How many samples of the epoch all ranks together have taken: less than it has.
    """

    fingerprint: str
    options: OrderOptions
    position: int

    def to_json(self) -> dict[str, object]:
        """Return the state as JSON can hold it."""
        order = {name: value for name, value in vars(self.options).items() if value or name != "ranks"}
        version = 2 if self.options.ranks else 1
        return {"version": version, "fingerprint": self.fingerprint, **order, "position": self.position}

    @classmethod
    def at(cls, source: Any, options: OrderOptions, position: int, end: int) -> StreamState:
        """Return the state at a position of an epoch; at its end, that of the start of the next one."""
        if position < end:
            return cls(source.fingerprint, options, position)
        return cls(source.fingerprint, replace(options, epoch=options.epoch + 1), 0)

    @classmethod
    def of(cls, given: object, source: Any) -> StreamState:
        """Return the state that `to_json` gave.

        Raises:
            InvalidRequest: It is no such state, or one of other samples.
        """
        values = _check_state(given)
        if values["fingerprint"] != source.fingerprint:
            found = f"of other samples: fingerprint {values['fingerprint']}"
            remedy = "Open the dataset, and choose the samples, that the state was taken with."
            raise InvalidRequest("the state", found, expected=source.fingerprint, remedy=remedy)
        numbers = {name: cast("int", values[name]) for name in _KEYS_BY_VERSION[cast("int", values["version"])]}
        position = numbers.pop("position")
        options = OrderOptions(cast("bool", values["shuffle"]), **numbers)
        length = max(1, source.length_in(options))
        if not 0 <= position < length:
            expected = f"0 to {length - 1}"
            raise InvalidRequest("position of the state", str(position), expected=expected, remedy=_STATE_FIX)
        return cls(source.fingerprint, options, position)


def _check_state(given: object) -> Mapping[str, object]:
    if not isinstance(given, dict):
        raise InvalidRequest("the state", f"a {type(given).__name__}", expected="a dictionary", remedy=_STATE_FIX)
    if (version := given.get("version")) not in (*_KEYS_BY_VERSION,) or type(version) is not int:
        found, expected = repr(given.get("version", "none")), " or ".join(map(str, _KEYS_BY_VERSION))
        remedy = "Go on with the shardtool that it is of."
        raise InvalidRequest("version of the state", found, expected=expected, remedy=remedy)
    keys = (*_OTHER_KEYS, *_KEYS_BY_VERSION[version])
    missing = [key for key in keys if key not in given]
    if missing:
        raise InvalidRequest("the state", f"no {', '.join(missing)}", expected=", ".join(keys), remedy=_STATE_FIX)
    for name, kind in (("fingerprint", str), *((name, int) for name in _KEYS_BY_VERSION[version])):
        if type(given[name]) is not kind:
            expected = "text" if kind is str else "a whole number"
            raise InvalidRequest(f"{name} of the state", repr(given[name]), expected=expected, remedy=_STATE_FIX)
    return given
