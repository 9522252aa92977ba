"""Where a stream is: a few numbers that go into a checkpoint, and come back in any number of ranks and workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from shardtool.errors import InvalidRequest
from shardtool.reading.order.orders import OrderOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.reading.order.orders import Ordered

_VERSION = 1  # of the keys below, and of the orders that they stand for
_NUMBERS = ("seed", "epoch", "parts", "window", "position")
_KEYS = ("version", "fingerprint", "shuffle", *_NUMBERS)
_REMEDY = "Give what `state_dict` returned, as it was."


@dataclass(frozen=True)
class StreamState:
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
        numbers = {name: getattr(self.options, name) for name in _NUMBERS[:-1]}
        return {
            "version": _VERSION,
            "fingerprint": self.fingerprint,
            "shuffle": self.options.shuffle,
            **numbers,
            "position": self.position,
        }

    @classmethod
    def at(cls, source: Ordered, options: OrderOptions, position: int, end: int) -> StreamState:
        """Return the state at a position of an epoch; at its end, that of the start of the next one."""
        if position < end:
            return cls(source.fingerprint, options, position)
        return cls(source.fingerprint, replace(options, epoch=options.epoch + 1), 0)

    @classmethod
    def of(cls, given: object, source: Ordered) -> StreamState:
        """Return the state that `to_json` gave.

        Raises:
            InvalidRequest: It is no such state, or one of other samples.
        """
        values = _checked(given)
        if values["fingerprint"] != source.fingerprint:
            raise InvalidRequest(
                "the state",
                f"of other samples: fingerprint {values['fingerprint']}",
                expected=source.fingerprint,
                remedy="Open the dataset, and choose the samples, that the state was taken with.",
            )
        numbers = {name: cast("int", values[name]) for name in _NUMBERS}
        position = numbers.pop("position")
        if not 0 <= position < max(1, source.length):
            expected = f"0 to {max(1, source.length) - 1}"
            raise InvalidRequest("position of the state", str(position), expected=expected, remedy=_REMEDY)
        return cls(source.fingerprint, OrderOptions(cast("bool", values["shuffle"]), **numbers), position)


def _checked(given: object) -> Mapping[str, object]:
    if not isinstance(given, dict):
        raise InvalidRequest("the state", f"a {type(given).__name__}", expected="a dictionary", remedy=_REMEDY)
    if given.get("version") != _VERSION:
        found = repr(given.get("version", "none"))
        raise InvalidRequest(
            "version of the state", found, expected=str(_VERSION), remedy="Go on with the shardtool that it is of."
        )
    missing = [key for key in _KEYS if key not in given]
    if missing:
        raise InvalidRequest("the state", f"no {', '.join(missing)}", expected=", ".join(_KEYS), remedy=_REMEDY)
    for name, kind in (("fingerprint", str), *((name, int) for name in _NUMBERS)):
        if type(given[name]) is not kind:
            expected = "text" if kind is str else "a whole number"
            raise InvalidRequest(f"{name} of the state", repr(given[name]), expected=expected, remedy=_REMEDY)
    return given
