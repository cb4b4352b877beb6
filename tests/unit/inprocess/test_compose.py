"""Several plug-ins as one."""

from __future__ import annotations

import abc

import pytest

from holdfast.inprocess import Compose
from holdfast.inprocess.rank_assignment import (
    ActivateAllRanks,
    MaxActiveWorldSize,
    RankAssignment,
    RankFilter,
    ShiftRanks,
)


class Base(abc.ABC):
    @abc.abstractmethod
    def __call__(self, x): ...

    @abc.abstractmethod
    def other(self): ...


class Middle(Base):
    def __init__(self, name):
        self.name = name

    def __call__(self, x):
        return f"{self.name}({x})"

    def other(self):
        return None


class Leaf(Middle):
    pass


class Slotted(Base):
    __slots__ = ("a",)

    def __call__(self, x):
        return x

    def other(self):
        return None


def test_the_last_is_called_first() -> None:
    """``Compose(a, b, c)(x)`` is ``a(b(c(x)))``."""
    assert Compose(Middle("a"), Middle("b"), Middle("c"))("x") == "a(b(c(x)))"
    assert Compose(Compose(Middle("a"), Middle("b")), Middle("c"))("x") == "a(b(c(x)))"


def test_it_is_what_all_instances_are_and_no_more() -> None:
    """So it passes type checks, as the most derived base they share."""
    a, b = Middle("a"), Leaf("b")
    composed = Compose(a, b)
    assert composed.instances == (a, b)
    assert isinstance(composed, Compose)
    assert isinstance(composed, Middle)
    assert not isinstance(composed, Leaf)
    assert isinstance(Compose(a, Slotted()), Base)
    assert not isinstance(Compose(a, Slotted()), Middle)
    assert isinstance(Compose(b), Leaf)
    assert not isinstance(Compose(a, print), Base)


def test_compositions_of_compositions_keep_what_is_shared() -> None:
    """Compose itself is no answer to what they have in common."""
    both = Compose(Compose(ShiftRanks(), ShiftRanks()), Compose(ActivateAllRanks()))
    assert isinstance(both, RankAssignment)
    assert not isinstance(both, RankFilter)
    assert isinstance(Compose(Compose(ActivateAllRanks()), MaxActiveWorldSize(1)), RankFilter)


def test_a_tuple_is_spread_and_no_parameters_get_none() -> None:
    """Results of one go to the parameters of the next."""
    assert Compose(lambda a, b: a - b, lambda x: (x, 1))(5) == 4
    assert Compose(lambda x: x + 1, lambda: 1)(5, 6, 7) == 2
    assert Compose(lambda a, b: (b, a), lambda a, b: (b, a))(1, 2) == (1, 2)


def test_a_forgotten_return_is_warned_of_and_the_chain_goes_on() -> None:
    """Not where there was nothing to pass on."""
    with pytest.warns(UserWarning, match="returned None"):
        assert Compose(lambda x: ("got", x), lambda _: None)(1) == ("got", None)
    assert Compose(lambda: None, lambda x: x)(None) is None
    assert Compose(lambda x: x)(None) is None


def test_what_cannot_be_called_is_refused() -> None:
    """At once."""
    with pytest.raises(TypeError, match="at least one"):
        Compose()
    with pytest.raises(TypeError, match="3 cannot be called"):
        Compose(print, 3)
