"""The goodput ledger: where the time of the ranks went.

Pure: spans in (:mod:`holdfast.events.run.rank_spans`), sums and text out. Seconds are rank-seconds:
eight ranks that wait for one second have waited for eight.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

from holdfast.base.pure.wording import count, duration
from holdfast.events.pure.schema import Event
from holdfast.events.run.accounts import SHORT, Account
from holdfast.events.run.rank_spans import RankSpans, Span

_SHORT_S = 60.0
_SMALL_SHARE = 0.0005


class Ledger:
    """Sums of one launcher's ranks, or of several launchers'.

    Attributes:
        seconds: Rank-seconds by account.
        by_rank: The same of each rank, by its place: node and local rank.
    """

    def __init__(self) -> None:
        self.seconds: dict[Account, float] = {}
        self.by_cycle: dict[int, dict[Account, float]] = {}
        self.by_rank: dict[tuple[str, int], dict[Account, float]] = {}

    def add(self, node: str, spans: Iterable[Span]) -> None:
        """Add spans of one node."""
        for span in spans:
            of_cycle = self.by_cycle.setdefault(span.cycle, {})
            of_rank = self.by_rank.setdefault((node, span.local_rank), {})
            for account, s in span.shares.items():
                for sums in (self.seconds, of_cycle, of_rank):
                    sums[account] = sums.get(account, 0.0) + s

    @property
    def total_s(self) -> float:
        """All rank-seconds."""
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """The share of productive steps; 0.0 where there is no time at all."""
        total_s = self.total_s
        return self.seconds.get("steps", 0.0) / total_s if total_s else 0.0

    @property
    def may_hide_steps_again(self) -> bool:
        """Ranks were started again, so that steps may have been done again."""
        return "restarting" in self.seconds

    @property
    def n_ranks(self) -> int:
        """How many places for ranks there were."""
        return len(self.by_rank)


class LiveLedger:
    """The ledger of one launcher, while its events come."""

    def __init__(self) -> None:
        self.spans = RankSpans()
        self._ledger = Ledger()

    def take(self, event: Event) -> None:
        """Take the next event."""
        self._ledger.add("", self.spans.take(event))

    def close(self) -> Ledger:
        """No event comes any more."""
        self._ledger.add("", self.spans.close())
        return self._ledger

    def at(self, now: float, shown: Event | None = None) -> Ledger:
        """As it would be if the job ended now; ``shown``: the pages as read now."""
        spans, ledger = copy.deepcopy((self.spans, self._ledger))
        if shown is not None:
            ledger.add("", spans.take(shown))
        ledger.add("", spans.close(now))
        return ledger


def two_lines(ledger: Ledger, *, is_watched: bool, knows_steps_again: bool) -> list[str]:
    """The ledger of a node for the end of a job, per rank on average.

    ``is_watched``, ``knows_steps_again``: see :class:`.RankSpans`; if no rank is watched, all work
    counts as steps.
    """
    ranks = max(1, ledger.n_ranks)
    seconds = {account: s / ranks for account, s in ledger.seconds.items()}
    total_s = ledger.total_s / ranks
    of = count(ranks, "rank")
    if not is_watched:
        after = seconds.get("restarting", 0.0) + seconds.get("stopping", 0.0)
        return [
            f"goodput is not known: no rank reports progress; {of} ran for {duration(total_s)}",
            (
                f"of it starting {duration(seconds.get('starting', 0.0))}, stopping and restarting "
                f"{duration(after)}; sections or heartbeats would tell steps from other work"
            ),
        ]
    again = "; start and end weigh much in so short a run" if total_s < _SHORT_S else ""
    if not knows_steps_again and ledger.may_hide_steps_again:
        again = "; steps done again count as productive: no section saves checkpoints"
    rest = [
        (account, s)
        for account, s in sorted(seconds.items(), key=lambda item: -item[1])
        if account != "steps" and s > _SMALL_SHARE * total_s
    ]
    others = ", ".join(f"{SHORT[a]} {duration(s)}" for a, s in rest)
    return [
        (
            f"goodput {100 * ledger.goodput:.1f} %: {duration(seconds.get('steps', 0.0))} of "
            f"{duration(total_s)} were productive steps ({of}, on average){again}"
        ),
        f"the rest: {others or 'nothing worth mentioning'}",
    ]
