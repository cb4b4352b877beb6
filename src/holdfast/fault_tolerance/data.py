"""Value types of the hang-detection API, under the names that programs import; times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from holdfast.page.pure.clocks import Timeouts
from holdfast.watch.rank.rank_info import RankInfo as RankInfo  # noqa: PLC0414 - public here

FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR = "FT_RANK_MONITOR_IPC_SOCKET"
"""Names the variable with the path of the socket of the rank's monitor."""
FT_LAUNCHER_IPC_SOCKET_ENV_VAR = "FT_LAUNCHER_IPC_SOCKET"
"""Names the variable with the path of the launcher's socket for workload control requests."""


def _text(limit_s: float | None) -> str:
    return "None" if limit_s is None else f"{limit_s:.2f}"


@dataclass
class HeartbeatTimeouts:
    """Limits of the heartbeat clocks; ``None``: never.

    Attributes:
        initial: From ``init_workload_monitoring`` to the first heartbeat.
        subsequent: Between heartbeats.
        were_calculated: Both come from measured intervals.
    """

    initial: float | None = None
    subsequent: float | None = None
    were_calculated: bool | None = None

    @staticmethod
    def of(limits: Timeouts) -> HeartbeatTimeouts:
        """Those among all limits of a rank."""
        return HeartbeatTimeouts(limits.initial, limits.subsequent, limits.learned.heartbeat)

    @property
    def are_valid(self) -> bool:
        """Both limits are numbers."""
        return self.initial is not None and self.subsequent is not None

    def __str__(self) -> str:
        return (
            f"HeartbeatTimeouts(initial={_text(self.initial)}, "
            f"subsequent={_text(self.subsequent)}, were_calculated={self.were_calculated})"
        )


@dataclass
class SectionTimeouts:
    """Limits of sections and of the time outside them; ``None``: never.

    Attributes:
        section: Per section name. The names are the sections that are monitored at all.
        out_of_section: While no section is open.
        calculated_sections: Names whose limit comes from measured intervals.
        is_out_of_section_calculated: The same for ``out_of_section``.
    """

    section: Mapping[str, float | None] = field(default_factory=dict)
    out_of_section: float | None = None
    calculated_sections: set[str] = field(default_factory=set)
    is_out_of_section_calculated: bool = False

    def __post_init__(self) -> None:
        self.calculated_sections = set(self.calculated_sections)

    @staticmethod
    def of(limits: Timeouts) -> SectionTimeouts:
        """Those among all limits of a rank."""
        learned = limits.learned
        return SectionTimeouts(
            dict(limits.sections),
            limits.out_of_section,
            set(learned.sections),
            is_out_of_section_calculated=learned.out_of_section,
        )

    @property
    def were_calculated(self) -> bool:
        """All limits come from measured intervals."""
        return self.is_out_of_section_calculated and self.calculated_sections >= set(self.section)

    @property
    def are_valid(self) -> bool:
        """All limits are numbers."""
        return self.out_of_section is not None and None not in self.section.values()

    def __str__(self) -> str:
        sections = ", ".join(f"{name!r}: {_text(s)}" for name, s in self.section.items())
        return (
            f"SectionTimeouts(section={{{sections}}}, "
            f"out_of_section={_text(self.out_of_section)}, "
            f"calculated_sections={sorted(self.calculated_sections)}, "
            f"is_out_of_section_calculated={self.is_out_of_section_calculated})"
        )


def timeouts_text(limits: Timeouts) -> str:
    """``section 'step' 60 s, outside sections 30 s, first heartbeat 3600 s, ...`` for people.

    >>> timeouts_text(Timeouts(3600.0, None, sections={"step": 1.5}))
    "section 'step' 1.5 s, first heartbeat 3600 s"
    """
    ends_initial = limits.section_ends_initial and not limits.learned.heartbeat
    by_clock = {
        **{f"section {name!r}": limit_s for name, limit_s in limits.sections.items()},
        "outside sections": limits.out_of_section,
        "first heartbeat or section" if ends_initial else "first heartbeat": limits.initial,
        "between heartbeats": limits.subsequent,
    }
    set_ones = [
        f"{clock} {limit_s:g} s" for clock, limit_s in by_clock.items() if limit_s is not None
    ]
    return ", ".join(set_ones) or "none"


class WorkloadAction(Enum):
    """A rank's request to its launcher. It takes effect at the next restart."""

    Continue = 0
    ExcludeThisNode = 1
    ShutdownWorkload = 2


@dataclass
class WorkloadControlRequest:
    """A request to the launcher: what, and why."""

    action: WorkloadAction
    description: str = "<not set>"

    def __str__(self) -> str:
        return (
            f"WorkloadControlRequest(action={self.action.name}, description={self.description!r})"
        )
