"""Limits learned from measured intervals, and the memory of those that proved too short.

    longest interval seen -> x safety factor -> at least the floor -> averaged with the current
                                                                      limit, if that was learned
    -> at least the limit that was given, where that is kept
    -> at least the current limit, where the interval was measured after a restart

Seconds everywhere; ``NEVER`` stands for an interval that has not ended yet. The caller chooses the
intervals, the same ones on all ranks. Pure.
"""

from __future__ import annotations

from holdfast.page.pure import clocks
from holdfast.page.pure.clocks import Learned, Timeouts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

NEVER = -1.0
"""The longest interval of something that has not happened yet."""
OUTSIDE = "(outside sections)"
"""How :func:`missing` names the time outside all sections."""
_HALF = 0.5


def learn(
    longest_s: float,
    *,
    safety_factor: float,
    floor_s: float,
    current_s: float | None,
    current_is_learned: bool,
    given_s: float | None = None,
    may_shorten: bool = True,
) -> float | None:
    """The limit that follows from the longest interval seen; ``None``: there is none, as before.

    Args:
        longest_s: Longest interval seen on any rank; must be positive.
        safety_factor: How many times the longest interval is still healthy.
        floor_s: No learned limit is below this, however fast the run was; 0 for no floor.
        current_s: The limit now in force, ``None`` for none.
        current_is_learned: The current limit was learned too, so the new one is averaged with it.
        given_s: The limit that the user gave, if the learned one must not be below it.
        may_shorten: False for an interval that was measured after a restart, where caches are full
            and kernels are compiled: the next cold start takes longer. The current limit may be
            raised then, not lowered, and no limit stays no limit.
    """
    least_s = floor_s if given_s is None else max(floor_s, given_s)
    fresh_s = max(least_s, safety_factor * longest_s)
    if current_is_learned and current_s is not None:
        fresh_s = max(least_s, _HALF * fresh_s + _HALF * current_s)
    if may_shorten:
        return fresh_s
    return None if current_s is None else max(fresh_s, current_s)


def missing(
    longest_s: Mapping[str, float],
    longest_outside_s: float,
    *,
    selected: Collection[str] | None,
    with_outside: bool,
) -> list[str]:
    """Sections, and ``OUTSIDE``, that must be measured once before limits can be learned.

    Args:
        longest_s: Longest interval per section, all configured sections.
        longest_outside_s: Longest time outside all sections.
        selected: Sections to learn; ``None`` or empty asks for data of all of them.
        with_outside: The limit outside sections is to be learned as well.

    Raises:
        KeyError: A selected section is not configured.
    """
    names = [name for name in selected or longest_s if longest_s[name] <= 0]
    return [*names, OUTSIDE] if with_outside and longest_outside_s <= 0 else names


class TrippedLimits:
    """Remembers which learned limits killed a rank, so that none of them does it twice.

    The floor keeps most of too short limits away; this catches the rest: the next limit learned for
    the same clock is at least twice the one that tripped.
    """

    __slots__ = ("_tripped", "raises")

    def __init__(self) -> None:
        self.raises = True  # False: the values are those that were calculated
        self._tripped: dict[tuple[str, str | None], float] = {}

    def tripped(self, clock: str, name: str | None, limit_s: float) -> None:
        """A rank was found hung by this limit of ``clock`` (``name``: of the section)."""
        key = clock, name
        self._tripped[key] = max(limit_s, self._tripped.get(key, 0.0))

    def raise_limit(self, clock: str, name: str | None, limit_s: float) -> float:
        """``limit_s``, or twice the limit that tripped if that was not shorter than ``limit_s``."""
        tripped_s = self._tripped.get((clock, name)) if self.raises else None
        return limit_s if tripped_s is None or limit_s > tripped_s else 2.0 * tripped_s

    def raised(self, limits: Timeouts) -> Timeouts:
        """The limits, learned ones raised where the same value tripped before."""
        if limits.learned == Learned():
            return limits

        def raised(clock: str, limit_s: float | None, name: str | None = None) -> float | None:
            if limit_s is None or not limits.learned.has(clock, name):
                return limit_s
            return self.raise_limit(clock, name, limit_s)

        return limits.but(
            initial=raised(clocks.INITIAL_HEARTBEAT, limits.initial),
            subsequent=raised(clocks.HEARTBEAT, limits.subsequent),
            out_of_section=raised(clocks.OUTSIDE_SECTIONS, limits.out_of_section),
            sections={n: raised(clocks.SECTION, s, n) for n, s in limits.sections.items()},
        )


_SETTINGS = {
    "initial": "initial_rank_heartbeat_timeout",
    "subsequent": "rank_heartbeat_timeout",
    "out_of_section": "rank_out_of_section_timeout",
    "sections": "rank_section_timeouts",
}
"""Limits, and their settings in the configuration of a monitor."""


class LimitsInForce:
    """Limits that a monitor watches for: configured, set by its ranks, raised if they tripped.

    They outlive ranks and cycles: the welcome of a rank has those that the last one learned.
    Verdicts come from the page, into which a rank has written the same limits.

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
        limits = {name: cfg[setting] for name, setting in _SETTINGS.items()}
        is_initial_default = bool(cfg.get("section_ends_initial_timeout"))
        self.limits = Timeouts(**limits, section_ends_initial=is_initial_default)

    def update(self, asked: Timeouts) -> Timeouts | None:
        """Take over the limits a rank has set; return them if some must be longer."""
        self.limits = self._tripped.raised(asked)
        return None if self.limits == asked else self.limits

    def welcome(self, cfg: Mapping[str, Any]) -> tuple[dict[str, Any], Learned]:
        """The launcher's configuration with the limits in force, and which of them were learned."""
        limits = self._tripped.raised(self.limits)
        in_force = {setting: getattr(limits, name) for name, setting in _SETTINGS.items()}
        ends_initial = {"section_ends_initial_timeout": limits.section_ends_initial or None}
        return {**cfg, **in_force, **ends_initial}, limits.learned
