"""Timeouts that a monitor watches for: configured, set by its ranks, raised if they tripped. Pure.

They outlive ranks and cycles: the welcome of a rank has those that the last one learned. Verdicts
come from the page, into which a rank has written the same timeouts.
"""

from __future__ import annotations

from holdfast.page.pure import clocks
from holdfast.page.pure.clocks import Timeouts
from holdfast.watch.pure import monitor
from holdfast.watch.pure import rank_messages as messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from holdfast.watch.pure.learned import TrippedLimits

_HEARTBEATS = {(clocks.INITIAL_HEARTBEAT, None), (clocks.HEARTBEAT, None)}
_OUTSIDE = {(clocks.OUTSIDE_SECTIONS, None)}


class LimitsInForce:
    """Limits, and what messages say of them.

    Args:
        tripped: Learned limits that tripped; shared with the machine that finds them.

    Attributes:
        limits: As set last, not raised by what tripped since.
    """

    __slots__ = ("_tripped", "limits")

    def __init__(self, tripped: TrippedLimits) -> None:
        self._tripped = tripped
        self.limits = Timeouts()

    def configure(self, cfg: Mapping[str, Any]) -> None:
        """Start from the configured ones. Who wants no floor wants the calculated values."""
        self._tripped.raises = cfg.get("learned_timeout_floor") != 0
        self.limits = Timeouts(
            cfg["initial_rank_heartbeat_timeout"],
            cfg["rank_heartbeat_timeout"],
            cfg["rank_out_of_section_timeout"],
            cfg["rank_section_timeouts"] or {},
            section_ends_initial=bool(cfg.get("section_ends_initial_timeout")),
        )

    def update(self, set_by_rank: messages.TimeoutsInForce) -> messages.RaisedTimeouts:
        """Take over the limits a rank has set; return those that must be longer."""
        asked = self._asked(set_by_rank)
        self.limits = new = monitor.raise_learned(asked, self._tripped)
        beats_raised = (new.initial, new.subsequent) != (asked.initial, asked.subsequent)
        return messages.RaisedTimeouts(
            messages.HeartbeatLimits(new.initial, new.subsequent) if beats_raised else None,
            {name: limit for name, limit in new.sections.items() if limit != asked.sections[name]},
            new.out_of_section if new.out_of_section != asked.out_of_section else None,
        )

    def _asked(self, set_by_rank: messages.TimeoutsInForce) -> Timeouts:
        old = self.limits
        heartbeat, section = set_by_rank.heartbeat, set_by_rank.section
        learned = set(old.learned)
        initial, subsequent = old.initial, old.subsequent
        outside, sections = old.out_of_section, old.sections
        section_ends_initial = old.section_ends_initial
        if heartbeat is not None:
            section_ends_initial = False  # they are chosen now
            initial, subsequent = heartbeat.initial, heartbeat.subsequent
            learned = {key for key in learned if key not in _HEARTBEATS}
            learned.update(_HEARTBEATS if heartbeat.learned else ())
        if section is not None:
            outside, sections = section.out_of_section, section.section
            learned = {key for key in learned if key in _HEARTBEATS}
            learned.update((clocks.SECTION, name) for name in section.learned)
            learned.update(_OUTSIDE if section.out_of_section_learned else ())
        return Timeouts(
            initial,
            subsequent,
            outside,
            sections,
            learned,
            section_ends_initial=section_ends_initial,
        )

    def welcome(self, cfg: Mapping[str, Any]) -> tuple[dict[str, Any], messages.Learned]:
        """The part of a welcome: the configuration with the limits in force, and their origin.

        Args:
            cfg: As it came from the launcher.
        """
        limits = monitor.raise_learned(self.limits, self._tripped)
        in_force = {
            **cfg,
            "initial_rank_heartbeat_timeout": limits.initial,
            "rank_heartbeat_timeout": limits.subsequent,
            "rank_section_timeouts": limits.sections,
            "rank_out_of_section_timeout": limits.out_of_section,
            "section_ends_initial_timeout": limits.section_ends_initial or None,
        }
        return in_force, messages.Learned(
            limits.learned >= _HEARTBEATS,
            limits.learned >= _OUTSIDE,
            tuple(sorted(name for _, name in limits.learned if name is not None)),
        )
