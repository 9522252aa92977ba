"""`shardtool.dataclass` behaves like the standard library's decorator."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import Any

import pytest

from shardtool.dataclass import dataclass
from shardtool.request.create_options import CreateOptions
from shardtool.request.results import CreateResult, PlannedShard


@dataclass(frozen=True, slots=True)
class _Frozen:
    size: int
    name: str = "a"
    items: list[int] = field(default_factory=list)
    seconds: float = field(default=0.0, compare=False, repr=False)
    double: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", 2 * self.size)


@dataclasses.dataclass(frozen=True, slots=True)
class _Standard:
    size: int
    name: str = "a"
    items: list[int] = field(default_factory=list)
    seconds: float = field(default=0.0, compare=False, repr=False)
    double: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", 2 * self.size)


@dataclass
class _Base:
    size: int = 1


@dataclass(kw_only=True)
class _Derived(_Base):
    name: str


_CLASSES: list[Any] = [_Frozen, _Standard]


@pytest.mark.parametrize("kind", _CLASSES)
def test_instances(kind: Any) -> None:
    """Construction, equality, repr, `replace` and `asdict` are those of a dataclass."""
    made = kind(3, items=[1], seconds=2.0)
    assert made == kind(3, "a", [1])
    assert made != kind(4, "a", [1])
    assert repr(made) == f"{kind.__name__}(size=3, name='a', items=[1], double=6)"
    assert dataclasses.replace(made, size=5).double == 10
    assert dataclasses.asdict(made) == {"size": 3, "name": "a", "items": [1], "seconds": 2.0, "double": 6}
    assert kind(1).items is not kind(1).items


@pytest.mark.parametrize("kind", _CLASSES)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_copies(kind: Any, protocol: int) -> None:
    """Pickles and copies are equal to the original."""
    made = kind(3, "b", [1], 2.0)
    for again in (pickle.loads(pickle.dumps(made, protocol)), copy.copy(made), copy.deepcopy(made)):  # noqa: S301 - our own bytes
        assert (again, again.seconds, again.double) == (made, 2.0, 6)


@pytest.mark.parametrize("kind", _CLASSES)
def test_frozen(kind: Any) -> None:
    """Fields of a frozen class cannot be changed or deleted, and a frozen class without lists can be hashed."""
    made = kind(3, "b", ())
    assert hash(made) == hash(kind(3, "b", ()))
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.size = 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        del made.size


@pytest.mark.parametrize("kind", _CLASSES)
@pytest.mark.parametrize(
    ("values", "named"),
    [((), {}), ((1, "a", [], 0.0, 1), {}), ((1,), {"size": 1}), ((1,), {"size_": 1}), ((1,), {"double": 1})],
)
def test_wrong_arguments(kind: Any, values: tuple[object, ...], named: dict[str, object]) -> None:
    """Missing, repeated, unknown and superfluous arguments raise TypeError with the name of the class."""
    with pytest.raises(TypeError, match=rf"{kind.__name__}\.__init__\(\) "):
        kind(*values, **named)


def test_inheritance() -> None:
    """A derived class has the fields of its base; a class that is not frozen can be changed, and has no hash."""
    made = _Derived(2, name="a")
    made.size = 3
    assert made == _Derived(3, name="a")
    assert made != _Base(3)
    with pytest.raises(TypeError, match="unhashable"):
        hash(made)
    with pytest.raises(TypeError, match="takes 1 positional"):
        _Derived(2, "a")  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [PlannedShard, CreateResult, CreateOptions])
def test_signature(kind: Any) -> None:
    """Editors see each field of a public class with its annotation and default."""
    parameters = inspect.signature(kind).parameters
    assert [*parameters] == [
        item.name for item in sorted(dataclasses.fields(kind), key=lambda item: item.kw_only is True)
    ]
    for item in dataclasses.fields(kind):
        assert parameters[item.name].annotation == item.type
        if item.default is not dataclasses.MISSING:
            assert parameters[item.name].default is item.default


def test_a_subclass_with_its_own_constructor() -> None:
    """The signature of a subclass with a constructor of its own is that of the constructor."""

    class Own(_Base):
        def __init__(self, width: int, height: int) -> None:
            super().__init__(size=width * height)

    assert [*inspect.signature(Own).parameters] == ["width", "height"]
    assert Own(2, 3).size == 6
