"""When a rank made its last step, and for how long it saved and evaluated from an instant on. Pure.

The work of a rank that ends well is over with its last step; all after it is no training::

    ... step step save step ┬ evaluates, saves, uploads, waits for others, runs exit handlers ┬ exit
                   last step┘

A section tells how often and how long it was open, and when it was closed last; of the time after
an instant that gives the last occurrence, no longer than the longest that there was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.events.run.accounts import Account, account_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.page.pure.page_view import ClosedSection, RankProgress

Shares = dict[Account, float]


def last_step_at(shown: RankProgress) -> float | None:
    """When the last step ended; None: it is in one, or its steps are not known from other work.

    A heartbeat is taken as the end of a step. A section that was open only once may be other work
    than training, such as ``tokenize`` in a script that marks no steps.
    """
    if any(account_of(name) == "steps" for name in shown.open):
        return None
    steps = [each for name, each in shown.sections.items() if account_of(name) == "steps"]
    marks = [each.closed_at for each in steps] if any(each.times > 1 for each in steps) else []
    first, last = shown.first_heartbeat_at, shown.heartbeat_at
    if first is not None and last is not None and last > first:
        marks.append(last)
    if marks and shown.outside_since is not None:  # short sections are published late
        others = [each.closed_at for n, each in shown.sections.items() if account_of(n) != "steps"]
        if shown.outside_since > max(others, default=0.0):
            marks.append(shown.outside_since)
    return max(marks, default=None)


def ended_s(shown: RankProgress, since: float) -> Shares:
    """Seconds of checkpoints and evaluations after an instant, of those that have ended."""
    return _sums(
        (name, each.total_s if each.first_at >= since else _last_s(each, since))
        for name, each in shown.sections.items()
    )


def open_s(shown: RankProgress, start: float, end: float) -> Shares:
    """Seconds between two instants of checkpoints and evaluations that have not ended."""
    return _sums((name, end - max(at, start)) for name, at in shown.open.items())


def added(some: Shares, more: Shares, sign: float = 1.0) -> Shares:
    """Sums by account."""
    return {a: some.get(a, 0.0) + sign * more.get(a, 0.0) for a in {**some, **more}}


def divided(length: float, shares: Shares) -> tuple[float, Shares]:
    """The rest of a length, and the shares: sections that overlap come to no more than there is."""
    total_s = sum(shares.values())
    if total_s > length:
        return 0.0, {a: s * length / total_s for a, s in shares.items()}
    return length - total_s, shares


def _last_s(each: ClosedSection, since: float) -> float:
    return min(each.longest_s, each.total_s, each.closed_at - since)


def _sums(sections: Iterator[tuple[str, float]]) -> Shares:
    sums: Shares = {}
    for name, s in sections:
        account = account_of(name)
        if account in ("checkpointing", "evaluating") and s > 0.0:
            sums[account] = sums.get(account, 0.0) + s
    return sums
