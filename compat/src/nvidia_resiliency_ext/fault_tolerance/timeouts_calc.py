"""Timeouts calculated from intervals that the caller reports, event by event."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from holdfast.base.clock import monotonic
from holdfast.errors import TimeoutsCalcError
from holdfast.fault_tolerance.data import HeartbeatTimeouts, SectionTimeouts
from holdfast.fault_tolerance.timeouts_calc import TimeoutsCalc as _TimeoutsCalc
from holdfast.page.pure.clocks import Learned, Timeouts
from holdfast.watch.pure.learned import NEVER
from nvidia_resiliency_ext._former import ignore
from nvidia_resiliency_ext.fault_tolerance.data import SectionAction

__all__ = ["TimeoutsCalc", "TimeoutsCalcError"]


class TimeoutsCalc(_TimeoutsCalc):
    """Measures one rank's heartbeats and sections, and calculates timeouts from the longest.

    ::

        calc = TimeoutsCalc(sections=["step"], safety_factor=5.0)
        calc.update_on_heartbeat()
        calc.update_on_section_start("step")
        calc.update_on_section_end("step")
        calc.synchronize_all()                  # a collective
        calc.get_section_timeouts()

    Whoever gives one event its time gives it to all: the time outside sections then lasts until the
    last time that was given, and not until now.

    Args:
        sections: Names of the sections that are measured; ``None``: those that are opened.
        start_time: When monitoring began, by ``time.monotonic`` or the caller's clock; ``None``:
            now.
        safety_factor: A timeout is this many times the longest interval.

    Attributes:
        initial_max: Start to first heartbeat, in seconds; -1: none was seen. Likewise
            ``subsequent_max`` (between heartbeats), ``section_max`` (by section) and
            ``out_of_section_max``.
        start_time: When monitoring began.
    """

    def __init__(
        self,
        sections: Iterable[str] | None = None,
        start_time: float | None = None,
        safety_factor: float = 5.0,
        **others: object,
    ) -> None:
        ignore(others, "TimeoutsCalc")
        super().__init__(
            safety_factor=safety_factor, section_max=dict.fromkeys(sections or (), NEVER)
        )
        self._accepts_any = sections is None
        self.reset(start_time)

    def reset(self, start_time: float | None = None) -> None:
        """Forget all intervals, and begin anew.

        Args:
            start_time: By ``time.monotonic``; ``None``: now.
        """
        self.start_time = monotonic() if start_time is None else start_time
        self.initial_max = self.subsequent_max = self.out_of_section_max = NEVER
        self.section_max = dict.fromkeys(self.section_max, NEVER)
        self._last_heartbeat: float | None = None
        self._opened: dict[str, float] = {}
        self._outside_since = self.start_time
        self._last_given: float | None = None

    @property
    def oos_max(self) -> float:
        """``out_of_section_max``."""
        return self.out_of_section_max

    # ------------------------------------------------------------------ events
    def update_on_heartbeat(self, hb_time: float | None = None) -> None:
        """A heartbeat is sent, at ``hb_time`` by the clock of ``start_time``; ``None``: now."""
        now = self._at(hb_time)
        if self._last_heartbeat is None:
            self.initial_max = max(self.initial_max, now - self.start_time)
        else:
            self.subsequent_max = max(self.subsequent_max, now - self._last_heartbeat)
        self._last_heartbeat = now

    def update_on_section_event(
        self, section: str | None, action: SectionAction, event_time: float | None = None
    ) -> None:
        """A section is opened or closed.

        Args:
            section: Its name; without effect for ``CLOSE_ALL``.
            action: On the section.
            event_time: As of :meth:`update_on_heartbeat`.

        Raises:
            TimeoutsCalcError: It is open already, not open, or not among ``sections``.
        """
        if action is SectionAction.CLOSE_ALL:
            self.update_on_section_close_all(event_time)
        elif action is SectionAction.OPEN:
            self.update_on_section_start(str(section), event_time)
        else:
            self.update_on_section_end(str(section), event_time)

    def update_on_section_start(self, section: str, event_time: float | None = None) -> None:
        """``section`` is opened; ``event_time`` as of :meth:`update_on_heartbeat`.

        Raises:
            TimeoutsCalcError: It is open already, or not among ``sections``.
        """
        if section not in self.section_max:
            if not self._accepts_any:
                known = sorted(self.section_max)
                raise TimeoutsCalcError(f"section {section!r} is not measured, only {known}")
            self.section_max[section] = NEVER
        if section in self._opened:
            raise TimeoutsCalcError(f"section {section!r} is open already")
        now = self._at(event_time)
        if not self._opened:
            self.out_of_section_max = max(self.out_of_section_max, now - self._outside_since)
        self._opened[section] = now

    def update_on_section_end(self, section: str, event_time: float | None = None) -> None:
        """``section`` is closed; ``event_time`` as of :meth:`update_on_heartbeat`.

        Raises:
            TimeoutsCalcError: It is not open.
        """
        if section not in self._opened:
            raise TimeoutsCalcError(f"section {section!r} is not open")
        now = self._at(event_time)
        took_s = now - self._opened.pop(section)
        self.section_max[section] = max(self.section_max[section], took_s)
        if not self._opened:
            self._outside_since = now

    update_on_section_open = update_on_section_start
    update_on_section_close = update_on_section_end

    def update_on_section_close_all(self, event_time: float | None = None) -> None:
        """All open sections are closed; ``event_time`` as of :meth:`update_on_heartbeat`."""
        for section in list(self._opened):
            self.update_on_section_end(section, event_time)

    update_on_end_all_sections = update_on_section_close_all

    # ------------------------------------------------------------------ results
    def synchronize_all(self) -> None:
        """Replace all intervals by the longest of any rank. A collective: every rank calls it.

        Raises:
            TimeoutsCalcError: There is no default process group, or ranks measure different
                sections.
            RuntimeError: The process group has neither gloo nor nccl.
        """
        self._count_running_time_outside()
        self.merge_over_ranks()

    def can_get_hb_timeouts(self) -> bool:
        """Some rank has sent two heartbeats."""
        return not self.missing_for_heartbeats()

    def can_get_section_timeouts(
        self, selected_sections: Collection[str] | None = None, calc_out_of_section: Any = True
    ) -> bool:
        """There is an interval of each selected section, and, if asked for, outside sections.

        Args:
            selected_sections: Names; ``None`` or empty: all.
            calc_out_of_section: The timeout outside sections is wanted, too.

        Raises:
            KeyError: A selected section is not measured.
        """
        return not self._missing(selected_sections, calc_out_of_section)

    def get_hb_timeouts(self, current: HeartbeatTimeouts | None = None) -> HeartbeatTimeouts:
        """Timeouts of heartbeats.

        Args:
            current: In force; a calculated one is averaged with the new.

        Raises:
            TimeoutsCalcError: :meth:`can_get_hb_timeouts` is false.
        """
        _refuse(self.missing_for_heartbeats())
        now = current or HeartbeatTimeouts()
        learned = Learned(heartbeat=bool(now.were_calculated))
        limits = Timeouts(now.initial, now.subsequent, learned=learned)
        return HeartbeatTimeouts.of(self.with_heartbeats(limits))

    def get_section_timeouts(
        self,
        selected_sections: Collection[str] | None = None,
        calc_out_of_section: Any = True,
        current: SectionTimeouts | None = None,
    ) -> SectionTimeouts:
        """Timeouts of sections.

        Args:
            selected_sections: Names; ``None``: all. Others keep their value in ``current``, or
                have ``None``.
            calc_out_of_section: Calculate the timeout outside sections, too.
            current: In force; calculated values are averaged with the new.

        Raises:
            KeyError: A selected section is not measured.
            TimeoutsCalcError: :meth:`can_get_section_timeouts` is false.
        """
        _refuse(self._missing(selected_sections, calc_out_of_section))
        now = current or SectionTimeouts()
        learned = Learned(False, now.is_out_of_section_calculated, tuple(now.calculated_sections))
        sections = {**dict.fromkeys(self.section_max), **now.section}
        limits = Timeouts(None, None, now.out_of_section, sections, learned)
        return SectionTimeouts.of(
            self.with_sections(
                limits, selected_sections, calc_out_of_section=bool(calc_out_of_section)
            )
        )

    def _missing(self, selected: Collection[str] | None, with_outside: object) -> list[str]:
        self._count_running_time_outside()
        return self.missing_for_sections(selected, calc_out_of_section=bool(with_outside))

    def _count_running_time_outside(self) -> None:
        """The time outside sections that has not ended yet counts, and goes on."""
        if not self._opened:
            now = monotonic() if self._last_given is None else self._last_given
            outside_s = now - self._outside_since
            self.out_of_section_max = max(self.out_of_section_max, outside_s)

    def _at(self, given: float | None) -> float:
        if given is None:
            return monotonic()
        self._last_given = given
        return given


def _refuse(lacking: list[str]) -> None:
    if lacking:
        raise TimeoutsCalcError(
            f"timeouts cannot be calculated yet, no rank has reported: {', '.join(lacking)}"
        )
