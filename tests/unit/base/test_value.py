"""Records for processes that cannot afford ``dataclasses``, beside the same ones made by it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest

from holdfast.base.pure.value import Value


class Point(Value):
    x: int
    y: int = 0


class Named(Point):
    name: str = ""


@dataclass(frozen=True)
class DataPoint:
    x: int
    y: int = 0


@pytest.mark.parametrize(
    ("kind", "frozen"), [(Point, AttributeError), (DataPoint, FrozenInstanceError)]
)
def test_a_value_is_what_a_frozen_dataclass_is(
    kind: type[Any], frozen: type[AttributeError]
) -> None:
    assert kind(1) == kind(x=1, y=0) != kind(1, 2)
    assert len({kind(1), kind(1, 0), kind(2)}) == 2
    assert repr(kind(1)) == f"{kind.__name__}(x=1, y=0)"
    assert kind.__match_args__ == ("x", "y")
    with pytest.raises(frozen):
        kind(1).x = 2
    for args, named in (((), {}), ((1, 2, 3), {}), ((1,), {"z": 3})):
        with pytest.raises(TypeError):
            kind(*args, **named)


def test_a_subclass_has_the_fields_of_its_base_first() -> None:
    assert Named(1, 2, "a") == Named(name="a", y=2, x=1)
    assert Point(1) != Named(1)
