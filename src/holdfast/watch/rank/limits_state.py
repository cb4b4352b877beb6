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
from holdfast.page.pure import page as layout
from holdfast.page.pure.clocks import Learned, Timeouts

LEARNED_WHERE = "learned_where"
"""Its key in a saved state, beside the timeouts: readers of other versions pass over it."""
_GPUS = "/proc/driver/nvidia/gpus"
_SCRIPT_BYTES_MAX = 1 << 24
_MACHINE_BITS = 0xFFFFFF  # what float32 carries exactly: it takes part in a collective


class Loaded(Value):
    """Limits of a saved state, and which of its two parts it has."""

    limits: Timeouts = Timeouts()
    heartbeats: bool = False
    sections: bool = False


# ---------------------------------------------------------------------- saved with a checkpoint
def to_state(limits: Timeouts) -> dict[str, Any]:
    """Calculated limits, and no configured ones."""
    state: dict[str, Any] = {}
    learned = limits.learned
    if learned.heartbeat and None not in (limits.initial, limits.subsequent):
        state["heartbeat"] = {
            "initial": limits.initial,
            "subsequent": limits.subsequent,
            "were_calculated": True,
        }
    if learned.sections or learned.out_of_section:
        state["section"] = {
            "section": dict(limits.sections),
            "out_of_section": limits.out_of_section,
            "calculated_sections": sorted(learned.sections),
            "is_out_of_section_calculated": learned.out_of_section,
        }
    return state


def from_state(state: Mapping[str, Any]) -> Loaded:
    """The reverse of :func:`to_state`.

    Raises:
        ValueError: A part is malformed; names it.
    """
    heartbeat = _part(state, "heartbeat")
    section = _part(state, "section")
    calculated = section.get("calculated_sections") or ()
    if not isinstance(calculated, list | tuple | set):
        raise ValueError(f"calculated_sections is {calculated!r}, expected a list")  # noqa: TRY004
    limits = Timeouts(
        _limit("heartbeat/initial", heartbeat.get("initial")),
        _limit("heartbeat/subsequent", heartbeat.get("subsequent")),
        _limit("out_of_section", section.get("out_of_section")),
        {
            name: _limit(f"section/{name}", value)
            for name, value in _part(section, "section").items()
        },
        Learned(
            bool(heartbeat.get("were_calculated", True)),
            bool(section.get("is_out_of_section_calculated")),
            tuple(calculated),
        ),
    )
    return Loaded(limits, bool(heartbeat), bool(section))


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


def apply_loaded(loaded: Loaded, floor_s: float, given: Timeouts, current: Timeouts) -> Timeouts:
    """Loaded limits over the current ones; calculated ones at least the floor and the given ones.

    The configuration names the sections: others of the loaded state are left out, and those that
    it lacks keep their limits.
    """
    new, learned = loaded.limits, loaded.limits.learned

    def limit(limit_s: float | None, given_s: float | None, *, is_learned: bool) -> float | None:
        return max(floor_s, given_s or 0.0, limit_s) if is_learned and limit_s else limit_s

    if loaded.heartbeats:
        current = current.but(
            initial=limit(new.initial, given.initial, is_learned=learned.heartbeat),
            subsequent=limit(new.subsequent, given.subsequent, is_learned=learned.heartbeat),
            learned=current.learned.but(heartbeat=learned.heartbeat),
            section_ends_initial=False,
        )
    if loaded.sections:
        known = {name: s for name, s in new.sections.items() if name in current.sections}
        calculated = known.keys() & set(learned.sections)
        limits = {
            name: limit(limit_s, given.sections.get(name), is_learned=name in calculated)
            for name, limit_s in known.items()
        }
        sections = {*current.learned.sections} - known.keys() | calculated
        outside_s = limit(
            new.out_of_section, given.out_of_section, is_learned=learned.out_of_section
        )
        current = current.but(
            sections={**current.sections, **limits},
            out_of_section=outside_s,
            learned=Learned(
                current.learned.heartbeat, learned.out_of_section, tuple(sorted(sections))
            ),
        )
    return current


# ---------------------------------------------------------------------- to the monitor
def in_force(limits: Timeouts, before: Learned) -> Timeouts:
    """The limits as the monitor and the page have them.

    ``before``: limits of the configuration that had been learned, in an earlier cycle. To the
    caller they are configured values (``were_calculated`` is false); the monitor still has to know,
    for it raises learned limits that tripped and never configured ones. An initial heartbeat limit
    that was learned is not ended by a section.
    """
    learned = limits.learned
    return limits.but(
        learned=Learned(
            before.heartbeat or learned.heartbeat,
            before.out_of_section or learned.out_of_section,
            tuple(sorted({*before.sections, *learned.sections})),
        ),
        section_ends_initial=limits.section_ends_initial and not learned.heartbeat,
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
