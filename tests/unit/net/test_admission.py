"""How long strangers may stay and who goes first, on a virtual clock."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.net.pure.admission import EXCUSED_S, LATE_S, SILENT_S, AdmissionControl

EARLIER = 2**-10


def admission(*who: str, now: float = 100.0) -> AdmissionControl:
    """Strangers 0, 1, 2 ... who came in the same moment."""
    made = AdmissionControl()
    for key, one in enumerate(who):
        made.came(key, one, now)
    return made


def test_each_stranger_has_the_same_time() -> None:
    """They are cut off in the order in which they came."""
    strangers = AdmissionControl()
    for key, now in enumerate([100.0, 101.0, 101.0]):
        strangers.came(key, "a host", now)

    assert strangers.next_deadline() == 100.0 + SILENT_S
    assert strangers.overdue(100.0 + SILENT_S - EARLIER) == []
    assert strangers.overdue(100.0 + SILENT_S) == [0]
    strangers.left(0)
    assert strangers.next_deadline() == 101.0 + SILENT_S
    assert strangers.overdue(101.0 + SILENT_S) == [1, 2]


def test_who_has_left_is_never_overdue() -> None:
    """It proved who it is, or hung up."""
    strangers = admission("a", "a")
    strangers.left(0)
    strangers.left(0)

    assert strangers.overdue(100.0 + SILENT_S) == [1]


@pytest.mark.parametrize("late_s", [LATE_S, 60.0])
def test_a_server_that_was_stopped_hears_its_callers_first(late_s: float) -> None:
    """All have another second, those whose time had not run out yet at least that."""
    strangers = admission("a", "a")
    strangers.came(2, "a", 100.0 + SILENT_S + late_s)
    now = 100.0 + SILENT_S + late_s

    assert strangers.overdue(now) == []
    assert strangers.next_deadline() == now + EXCUSED_S
    assert strangers.overdue(now + EXCUSED_S - EARLIER) == []
    assert strangers.overdue(now + EXCUSED_S) == [0, 1]
    strangers.left(0)
    strangers.left(1)
    assert strangers.next_deadline() == now + SILENT_S, "who came later keeps its whole time"


def test_a_server_that_looks_a_little_late_excuses_nobody() -> None:
    """Wake-ups are late by milliseconds; a silent caller must not live on them."""
    assert admission("a").overdue(100.0 + SILENT_S + LATE_S - EARLIER) == [0]


@pytest.mark.parametrize(
    ("who", "first"),
    [
        ([], None),
        (["a"], (0, 1)),
        (["a", "b", "b", "b", "c"], (1, 3)),
        (["c", "a", "c", "a"], (0, 2)),
        (["a", "c", "c"], (1, 2)),
    ],
)
def test_the_oldest_of_who_has_most_goes_first(
    who: list[str], first: tuple[int, int] | None
) -> None:
    """A flood pushes out its own; where two have as many, the one that was here first."""
    assert admission(*who).first_to_go() == first


class AgainstAModel(RuleBasedStateMachine):
    """A list of (key, who, until), searched each time."""

    def __init__(self) -> None:
        super().__init__()
        self.strangers = AdmissionControl()
        self.model: list[tuple[int, str, float]] = []
        self.now = 1000.0
        self.keys = itertools.count()

    @rule(who=st.sampled_from("abc"))
    def comes(self, who: str) -> None:
        key = next(self.keys)
        self.strangers.came(key, who, self.now)
        self.model.append((key, who, self.now + SILENT_S))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.model))
        self.strangers.left(gone[0])
        self.model.remove(gone)

    @rule(seconds=st.sampled_from([0.25, 1.0, 4.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def looks(self) -> None:
        if any(self.now - until >= LATE_S for _, _, until in self.model):
            self.model = [
                (key, who, max(until, self.now + EXCUSED_S)) for key, who, until in self.model
            ]
        due = [key for key, _, until in self.model if self.now >= until]
        assert self.strangers.overdue(self.now) == due
        for key in due:
            self.strangers.left(key)
        self.model = [one for one in self.model if one[0] not in due]

    @precondition(lambda self: self.model)
    @rule()
    def one_goes(self) -> None:
        first = self.strangers.first_to_go()
        assert first is not None
        key, count = first
        counts = {w: [k for k, who, _ in self.model if who == w] for _, w, _ in self.model}
        assert count == max(map(len, counts.values()))
        assert key in [keys[0] for keys in counts.values() if len(keys) == count]
        self.strangers.left(key)
        self.model = [one for one in self.model if one[0] != key]

    @invariant()
    def the_deadline_is_exact(self) -> None:
        """A sleeper wakes at the first one's end, neither before nor after it."""
        expected = min((until for _, _, until in self.model), default=None)
        assert self.strangers.next_deadline() == expected


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=40)
