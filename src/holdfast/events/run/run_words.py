"""Ranks, and signals to them, in words that stay short for large jobs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from holdfast.base.pure.rank_sets import text_of
from holdfast.evidence.pure.failure import signal_name

if TYPE_CHECKING:
    from holdfast.watch.pure.monitor_messages import Signalled

_LISTED = 8
"""More ranks are written as ranges."""


def named(ranks: Collection[int]) -> str:
    """``rank 5``, ``ranks 0, 1``, ``ranks 0-76,78-1023``."""
    numbers = sorted(ranks)
    shown = ", ".join(map(str, numbers)) if len(numbers) <= _LISTED else text_of(numbers)
    return f"rank{'' if len(numbers) == 1 else 's'} {shown}"


def signal_words(signum: int, ranks: Collection[int], why: str) -> str:
    """``SIGKILL to ranks 0, 1: hung``."""
    return f"{signal_name(signum)} to {named(ranks)}: {why}"


def restart_words(cycle: int | None) -> list[str]:
    """``cycle 1 was started``; nothing where none was."""
    return [] if cycle is None else [f"cycle {cycle} was started"]


def done_in_short(signals: Iterable[Signalled], next_cycle: int | None) -> list[str]:
    """``SIGKILL to ranks 0-3: hung``, ``cycle 1 was started``: equal signals are one line."""
    alike: dict[tuple[int, str], list[int]] = {}
    for each in signals:
        alike.setdefault((each.signal, each.why), []).append(each.rank)
    lines = [signal_words(signum, ranks, why) for (signum, why), ranks in alike.items()]
    return [*lines, *restart_words(next_cycle)]
