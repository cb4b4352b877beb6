"""The other forms of limits: saved with a checkpoint, sent to the monitor, written into the page.

Pure: value types in, JSON-able mappings (or words) out, and back. ``None`` is "no limit", and so is
infinity in a page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.fault_tolerance.data import HeartbeatTimeouts, SectionTimeouts
from holdfast.page.pure import page as layout
from holdfast.watch.pure import rank_messages as messages

Loaded = tuple[HeartbeatTimeouts | None, SectionTimeouts | None]
"""Parts of a saved state; ``None`` where it has none."""


@dataclass
class LearnedBefore:
    """Where the limits are from that came with the configuration.

    Some had been learned, in an earlier cycle. To the caller they are configured values
    (``were_calculated`` is false); the monitor still has to know, for it raises learned limits that
    tripped and never configured ones. ``section_ends_initial``: the initial heartbeat limit is one
    that a section ends, too; false for one that was learned or loaded.
    """

    section_ends_initial: bool = False
    heartbeat: bool = False
    out_of_section: bool = False
    sections: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, learned: messages.Learned | None, *, section_ends_initial: bool) -> LearnedBefore:
        """From the monitor's welcome and its configuration."""
        said = learned or messages.Learned()
        return cls(section_ends_initial, said.heartbeat, said.out_of_section, set(said.sections))

    def does_section_end_initial(self, heartbeats: HeartbeatTimeouts) -> bool:
        """The first section ends the initial clock: that limit is as it was configured."""
        return self.section_ends_initial and not heartbeats.were_calculated

    def is_heartbeat_learned(self, heartbeats: HeartbeatTimeouts) -> bool:
        """The heartbeat limits were learned, now or before."""
        return self.heartbeat or bool(heartbeats.were_calculated)

    def is_outside_learned(self, sections: SectionTimeouts) -> bool:
        """The limit outside sections was learned, now or before."""
        return self.out_of_section or sections.is_out_of_section_calculated

    def learned_sections(self, sections: SectionTimeouts) -> set[str]:
        """Sections whose limit was learned, now or before."""
        return self.sections | sections.calculated_sections


@dataclass(frozen=True)
class GivenTimeouts:
    """The timeouts that the user gave, in seconds; ``None``: none, or the default.

    Learned timeouts replace them in the configuration that a restarted rank receives, so they
    travel beside it.
    """

    initial: float | None = None
    subsequent: float | None = None
    section: Mapping[str, float | None] = field(default_factory=dict)
    out_of_section: float | None = None

    @classmethod
    def of(cls, wire: object) -> GivenTimeouts:
        """From ``FaultToleranceConfig.given_timeouts``, as it came from the monitor."""
        if not isinstance(wire, Mapping):
            return cls()
        return cls(**{name: wire[name] for name in wire if name in cls.__dataclass_fields__})


# ---------------------------------------------------------------------- saved with a checkpoint


def to_state(heartbeats: HeartbeatTimeouts, sections: SectionTimeouts) -> dict[str, Any]:
    """Calculated limits, and no configured ones."""
    state: dict[str, Any] = {}
    if heartbeats.are_valid and heartbeats.were_calculated:
        state["heartbeat"] = {
            "initial": heartbeats.initial,
            "subsequent": heartbeats.subsequent,
            "were_calculated": True,
        }
    if sections.calculated_sections or sections.is_out_of_section_calculated:
        state["section"] = {
            "section": dict(sections.section),
            "out_of_section": sections.out_of_section,
            "calculated_sections": sorted(sections.calculated_sections),
            "is_out_of_section_calculated": sections.is_out_of_section_calculated,
        }
    return state


def from_state(state: Mapping[str, Any]) -> Loaded:
    """The reverse of :func:`to_state`; missing parts are ``None``.

    Raises:
        ValueError: A part is malformed; names it.
    """
    heartbeat = _part(state, "heartbeat")
    section = _part(state, "section")
    heartbeats = HeartbeatTimeouts(
        _limit("heartbeat/initial", heartbeat.get("initial")),
        _limit("heartbeat/subsequent", heartbeat.get("subsequent")),
        were_calculated=bool(heartbeat.get("were_calculated", True)),
    )
    calculated = section.get("calculated_sections") or ()
    if not isinstance(calculated, list | tuple | set):
        raise ValueError(f"calculated_sections is {calculated!r}, expected a list")  # noqa: TRY004
    sections = SectionTimeouts(
        {
            name: _limit(f"section/{name}", value)
            for name, value in _part(section, "section").items()
        },
        _limit("out_of_section", section.get("out_of_section")),
        set(calculated),
        is_out_of_section_calculated=bool(section.get("is_out_of_section_calculated")),
    )
    return heartbeats if heartbeat else None, sections if section else None


def _part(state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = state.get(name)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise ValueError(f"{name} is {part!r}, expected a mapping")  # noqa: TRY004 - from outside
    return part


def _limit(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name} is {value!r}, expected seconds > 0 or null")
    return float(value)


def apply_loaded_heartbeats(
    loaded: HeartbeatTimeouts, floor_s: float, given: GivenTimeouts
) -> HeartbeatTimeouts:
    """Loaded limits; if they were calculated, at least the floor and the given limits."""
    if not loaded.were_calculated:
        return loaded
    return HeartbeatTimeouts(
        _at_least(floor_s, given.initial, loaded.initial),
        _at_least(floor_s, given.subsequent, loaded.subsequent),
        were_calculated=True,
    )


def apply_loaded_sections(
    loaded: SectionTimeouts, floor_s: float, given: GivenTimeouts, current: SectionTimeouts
) -> SectionTimeouts:
    """Loaded limits over the current ones; calculated ones at least the floor and the given ones.

    The configuration names the sections: others of the loaded state are left out, and those that
    it lacks keep their limits.
    """
    known = {name: s for name, s in loaded.section.items() if name in current.section}
    calculated = loaded.calculated_sections & set(known)
    limits = {
        name: _at_least(floor_s, given.section.get(name), limit_s)
        if name in calculated
        else limit_s
        for name, limit_s in known.items()
    }
    outside = loaded.out_of_section
    if loaded.is_out_of_section_calculated:
        outside = _at_least(floor_s, given.out_of_section, outside)
    return SectionTimeouts(
        {**current.section, **limits},
        outside,
        (current.calculated_sections - set(known)) | calculated,
        is_out_of_section_calculated=loaded.is_out_of_section_calculated,
    )


def _at_least(floor_s: float, given_s: float | None, limit_s: float | None) -> float | None:
    return None if limit_s is None else max(floor_s, given_s or 0.0, limit_s)


# ---------------------------------------------------------------------- to and from the monitor


def heartbeat_limits(
    heartbeats: HeartbeatTimeouts, before: LearnedBefore
) -> messages.HeartbeatLimits:
    """The message for the monitor."""
    learned = before.is_heartbeat_learned(heartbeats)
    return messages.HeartbeatLimits(heartbeats.initial, heartbeats.subsequent, learned)


def section_limits(sections: SectionTimeouts, before: LearnedBefore) -> messages.SectionLimits:
    """The message for the monitor."""
    return messages.SectionLimits(
        dict(sections.section),
        sections.out_of_section,
        tuple(sorted(before.learned_sections(sections))),
        before.is_outside_learned(sections),
    )


def apply_raised(
    raised: messages.RaisedTimeouts | None, heartbeats: HeartbeatTimeouts, sections: SectionTimeouts
) -> tuple[HeartbeatTimeouts, SectionTimeouts]:
    """The limits, with those that the monitor raised because they had tripped before."""
    raised = raised or messages.RaisedTimeouts()
    beats, outside = raised.heartbeat, raised.out_of_section
    return (
        HeartbeatTimeouts(
            beats.initial if beats else heartbeats.initial,
            beats.subsequent if beats else heartbeats.subsequent,
            were_calculated=heartbeats.were_calculated,
        ),
        SectionTimeouts(
            {**sections.section, **(raised.section or {})},
            sections.out_of_section if outside is None else outside,
            sections.calculated_sections,
            is_out_of_section_calculated=sections.is_out_of_section_calculated,
        ),
    )


# ---------------------------------------------------------------------- into the page


def store(
    words: memoryview[float],
    slots: Mapping[str, int],
    heartbeats: HeartbeatTimeouts,
    sections: SectionTimeouts,
    before: LearnedBefore,
) -> None:
    """Write limits into a page; a reader that comes meanwhile keeps the old ones.

    Args:
        words: Of the page.
        slots: First word of each of its sections.
        heartbeats: Limits.
        sections: Limits.
        before: Limits that were learned in an earlier cycle.
    """
    version = int(words[layout.LIMITS_VERSION]) | 1
    words[layout.LIMITS_VERSION] = float(version)
    words[layout.LIMIT_INITIAL] = _word(heartbeats.initial)
    words[layout.LIMIT_HEARTBEAT] = _word(heartbeats.subsequent)
    words[layout.LIMIT_OUTSIDE] = _word(sections.out_of_section)
    words[layout.SECTION_ENDS_INITIAL] = float(before.does_section_end_initial(heartbeats))
    words[layout.LEARNED_HEARTBEAT] = float(before.is_heartbeat_learned(heartbeats))
    words[layout.LEARNED_OUTSIDE] = float(before.is_outside_learned(sections))
    learned = before.learned_sections(sections)
    for name, slot in slots.items():
        words[slot + layout.LIMIT] = _word(sections.section.get(name))
        words[slot + layout.LEARNED] = float(name in learned)
    words[layout.LIMITS_VERSION] = float(version + 1)


def _word(limit_s: float | None) -> float:
    return math.inf if limit_s is None else float(limit_s)
