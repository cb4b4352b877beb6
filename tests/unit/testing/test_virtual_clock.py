"""The clock of simulations."""

from __future__ import annotations

from functools import partial

from holdfast.testing import VirtualClock


def test_things_happen_when_due_and_in_the_order_asked_for() -> None:
    clock = VirtualClock()
    seen: list[tuple[float, str]] = []

    def note(what: str) -> None:
        seen.append((clock.now, what))

    clock.call_at(5.0, partial(note, "b"))
    clock.call_in(1.0, partial(note, "a"))
    clock.call_at(5.0, partial(note, "c"))
    clock.call_at(1.0, lambda: clock.call_at(0.0, partial(note, "late is now")))

    clock.run_until(5.0)

    assert seen == [(1.0, "a"), (1.0, "late is now"), (5.0, "b"), (5.0, "c")]
    assert clock.next_at() is None
    assert not clock.step()


def test_time_passes_although_nothing_happens() -> None:
    clock = VirtualClock()
    clock.call_at(7.0, lambda: None)
    clock.run_until(6.0)
    assert (clock.now, clock.next_at()) == (6.0, 7.0)
