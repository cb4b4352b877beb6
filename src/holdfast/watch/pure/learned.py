"""Limits learned from measured intervals, and the memory of those that proved too short.

    longest interval seen -> x safety factor -> at least the floor -> averaged with the current
                                                                      limit, if that was learned
    -> at least the limit that was given, where that is kept
    -> at least the current limit, where the interval was measured after a restart

Seconds everywhere; ``NEVER`` stands for an interval that has not ended yet. The caller chooses the
intervals, the same ones on all ranks. Pure.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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
    """Sections that must be measured once before limits can be learned.

    Args:
        longest_s: Longest interval per section, all configured sections.
        longest_outside_s: Longest time outside all sections.
        selected: Sections to learn; ``None`` or empty asks for data of all of them.
        with_outside: The limit outside sections is to be learned as well.

    Returns:
        Names of sections without data, and ``OUTSIDE``; empty when everything is there.

    Raises:
        KeyError: A selected section is not configured.
    """
    names = [name for name in selected or longest_s if longest_s[name] <= 0]
    return [*names, OUTSIDE] if with_outside and longest_outside_s <= 0 else names


class TrippedLimits:
    """Remembers which learned limits killed a rank, so that none of them does it twice.

    The floor keeps most of too short limits away; this catches the rest: the next limit learned for
    the same clock is at least twice the one that tripped.

    Attributes:
        raises: False: no limit is raised, the values are those that were calculated.
    """

    __slots__ = ("_tripped", "raises")

    def __init__(self) -> None:
        self.raises = True
        self._tripped: dict[tuple[str, str | None], float] = {}

    def tripped(self, clock: str, name: str | None, limit_s: float) -> None:
        """A rank was found hung by a learned limit. The largest limit of a clock is remembered.

        Args:
            clock: Which clock, in the words of the monitor's reports ("heartbeat", "section", ...).
            name: The section, ``None`` for a clock that has no name.
            limit_s: The limit that was exceeded.
        """
        key = (clock, name)
        self._tripped[key] = max(limit_s, self._tripped.get(key, 0.0))

    def raise_limit(self, clock: str, name: str | None, limit_s: float) -> float:
        """``limit_s``, or twice the limit that tripped if that was not shorter than ``limit_s``."""
        tripped_s = self._tripped.get((clock, name)) if self.raises else None
        return limit_s if tripped_s is None or limit_s > tripped_s else 2.0 * tripped_s
