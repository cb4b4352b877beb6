"""The other forms of limits: saved with a checkpoint, sent to the monitor, written into the page.

Value types in, JSON-able mappings (or words) out, and back. ``None`` is "no limit", and so is
infinity in a page. Learned limits are saved with the place where they were learned, as durations of
one place say little about another: a state of another place, or of none, starts at the default
floor at least.
"""

from __future__ import annotations

import math
import os
import sys
import zlib
from collections.abc import Mapping
from typing import Any

from holdfast.base.pure.codec import MessageError, decode_fields
from holdfast.base.pure.value import Value
from holdfast.fault_tolerance.data import HeartbeatTimeouts, SectionTimeouts
from holdfast.page.pure import page as layout
from holdfast.page.pure.clocks import Learned, Timeouts

LEARNED_WHERE = "learned_where"
"""Its key in a saved state, beside the timeouts: readers of other versions pass over it."""
_GPUS = "/proc/driver/nvidia/gpus"
_SCRIPT_BYTES_MAX = 1 << 24
_MACHINE_BITS = 0xFFFFFF  # what float32 carries exactly: it takes part in a collective

Loaded = tuple[HeartbeatTimeouts | None, SectionTimeouts | None]
"""Parts of a saved state; ``None`` where it has none."""


# ---------------------------------------------------------------------- saved with a checkpoint


def to_state(heartbeats: HeartbeatTimeouts, sections: SectionTimeouts) -> dict[str, Any]:
    """Calculated limits, and no configured ones."""
    state: dict[str, Any] = {}
    if heartbeats.are_valid and heartbeats.were_calculated:
        state["heartbeat"] = {**vars(heartbeats), "were_calculated": True}
    if sections.calculated_sections or sections.is_out_of_section_calculated:
        state["section"] = {
            **vars(sections),
            "section": dict(sections.section),
            "calculated_sections": sorted(sections.calculated_sections),
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
    loaded: HeartbeatTimeouts, floor_s: float, given: Timeouts
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
    loaded: SectionTimeouts, floor_s: float, given: Timeouts, current: SectionTimeouts
) -> SectionTimeouts:
    """Loaded limits over the current ones; calculated ones at least the floor and the given ones.

    The configuration names the sections: others of the loaded state are left out, and those that
    it lacks keep their limits.
    """
    known = {name: s for name, s in loaded.section.items() if name in current.section}
    calculated = loaded.calculated_sections & set(known)
    limits = {
        name: _at_least(floor_s, given.sections.get(name), limit_s)
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


def in_force(
    heartbeats: HeartbeatTimeouts,
    sections: SectionTimeouts,
    before: Learned,
    *,
    section_ends_initial: bool,
) -> Timeouts:
    """The limits as the monitor and the page have them.

    ``before``: limits of the configuration that had been learned, in an earlier cycle. To the
    caller they are configured values (``were_calculated`` is false); the monitor still has to know,
    for it raises learned limits that tripped and never configured ones. ``section_ends_initial``:
    of the configured initial heartbeat limit; one that was learned is not ended by a section.
    """
    return Timeouts(
        heartbeats.initial,
        heartbeats.subsequent,
        sections.out_of_section,
        dict(sections.section),
        Learned(
            before.heartbeat or bool(heartbeats.were_calculated),
            before.out_of_section or sections.is_out_of_section_calculated,
            tuple(sorted(sections.calculated_sections.union(before.sections))),
        ),
        section_ends_initial=section_ends_initial and not heartbeats.were_calculated,
    )


def apply_raised(
    raised: Timeouts, heartbeats: HeartbeatTimeouts, sections: SectionTimeouts
) -> tuple[HeartbeatTimeouts, SectionTimeouts]:
    """The limits, with those that the monitor raised because they had tripped before."""
    return (
        HeartbeatTimeouts(
            raised.initial, raised.subsequent, were_calculated=heartbeats.were_calculated
        ),
        SectionTimeouts(
            raised.sections,
            raised.out_of_section,
            sections.calculated_sections,
            is_out_of_section_calculated=sections.is_out_of_section_calculated,
        ),
    )


# ---------------------------------------------------------------------- into the page


def store(words: memoryview[float], slots: Mapping[str, int], limits: Timeouts) -> None:
    """Write limits into a page; a reader that comes meanwhile keeps the old ones."""
    version = int(words[layout.LIMITS_VERSION]) | 1
    words[layout.LIMITS_VERSION] = float(version)
    words[layout.LIMIT_INITIAL] = _word(limits.initial)
    words[layout.LIMIT_HEARTBEAT] = _word(limits.subsequent)
    words[layout.LIMIT_OUTSIDE] = _word(limits.out_of_section)
    words[layout.SECTION_ENDS_INITIAL] = float(limits.section_ends_initial)
    words[layout.LEARNED_HEARTBEAT] = float(limits.learned.heartbeat)
    words[layout.LEARNED_OUTSIDE] = float(limits.learned.out_of_section)
    for name, slot in slots.items():
        words[slot + layout.LIMIT] = _word(limits.sections.get(name))
        words[slot + layout.LEARNED] = float(name in limits.learned.sections)
    words[layout.LIMITS_VERSION] = float(version + 1)


def _word(limit_s: float | None) -> float:
    return math.inf if limit_s is None else float(limit_s)


# ---------------------------------------------------------------------- where they were learned


class LearnedWhere(Value):
    """A place. Numbers, as all ranks have to come to the same ones.

    Attributes:
        script: Checksum of the script's file; 0: it cannot be read.
        world_size: Number of ranks.
        machine: Number for processor and GPUs of every rank's node; 0: they differ.
    """

    script: int
    world_size: int
    machine: int

    def is_known(self) -> bool:
        """All of it is known, so an equal one is the same place."""
        return all(vars(self).values())


def here(machine: int) -> LearnedWhere:
    """This job, with ``machine`` as ranks agreed on it, or as :func:`machine_kind` says."""
    return LearnedWhere(_script(), _world_size(), machine)


def where_from_state(state: Mapping[str, Any]) -> LearnedWhere | None:
    """Where a saved state was learned; ``None``: it does not say."""
    where = state.get(LEARNED_WHERE)
    try:
        return decode_fields(LearnedWhere, where) if isinstance(where, Mapping) else None
    except MessageError:
        return None


def machine_kind() -> int:
    """A number for processor and GPUs of this node, never 0. Asking CUDA would take memory."""
    facts = [os.uname().machine, str(os.cpu_count()), _first_value("/proc/cpuinfo", "model name")]
    try:
        gpus = sorted(os.listdir(_GPUS))
    except OSError:
        gpus = []
    facts += [_first_value(f"{_GPUS}/{gpu}/information", "Model") for gpu in gpus]
    return (zlib.crc32("\n".join(facts).encode()) & _MACHINE_BITS) or 1


def _first_value(path: str, name: str) -> str:
    """Of the first line ``name : value``."""
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == name:
                    return value.strip()
    except OSError:
        pass
    return ""


def _script() -> int:
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if not path:
        return 0
    try:
        with open(path, "rb") as file:
            return zlib.crc32(file.read(_SCRIPT_BYTES_MAX)) or 1
    except OSError:
        return 0


def _world_size() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        size: int = distributed.get_world_size()
        return size
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() else 0
