"""The time of each rank of a node as spans without gaps, from events.

Pure. Instants are seconds of that host's monotonic clock. The window of a cycle ends when nothing
of it is left, and there the next begins::

    begin ─ starting ─ cycle started ─ importing ─ armed ─ setup ─ first step ─ steps, saves, ... ─┐
    ┌───── last sign of progress ── stalled ── detected ── evidence, stopping ── cycle stopped ────┘
    └─ restarting ─ joined ─ waiting for nodes ─ cycle started ─ ...

A rank that ends well is neither stalled nor stopped: it finishes, from its last step on. The time
between two marks is in one account, so a rank's spans add up to the time it had; a mark that is
missing or out of order moves to its neighbour. Only the time from the first step on is divided, by
measured totals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from holdfast.base.pure.value import Value
from holdfast.events.pure import schema
from holdfast.events.pure.schema import Event
from holdfast.events.run.accounts import Account, account_of
from holdfast.events.run.last_step import added, divided, ended_s, last_step_at, open_s
from holdfast.page.pure.page_view import RankProgress
from holdfast.watch.pure.monitor_messages import Overdue

_LOCAL_RANKS_MAX = 1024
_VERDICT_S = 5.0
"""A node that stops so soon after a verdict on all ranks stops because of it."""
_CYCLES_MAX = 100
"""So many cycles may wait for what their ranks have shown last."""


class Span(Value):
    """A rank was busy with one account; or, while at work, with several in turn.

    Attributes:
        cycle: In which cycle; restarting and waiting belong to the cycle that follows.
        start: Instant.
        end: Instant.
        account: The account; that of the steps where there are several.
        shares: Seconds of each account; their sum is the length.
        rank: Global rank; None: it had none yet.
    """

    cycle: int
    local_rank: int
    start: float
    end: float
    account: Account
    shares: Mapping[Account, float]
    rank: int | None = None


def _first_step_at(shown: RankProgress) -> float | None:
    """When the first step began: its section was opened, or a heartbeat came."""
    began = [each.first_at for name, each in shown.sections.items() if account_of(name) != "setup"]
    if not began:
        began = [at for name, at in shown.open.items() if account_of(name) != "setup"]
    if not began and shown.first_heartbeat_at is not None:
        began = [shown.first_heartbeat_at]
    return min(began, default=None)


def _last_sign_at(shown: RankProgress) -> float | None:
    """When the rank last did something that shows in its page."""
    signs = [each.closed_at for each in shown.sections.values()] + list(shown.open.values())
    signs += [at for at in (shown.heartbeat_at, shown.outside_since) if at is not None]
    return max(signs, default=None)


def _usual_s(shown: RankProgress) -> float | None:
    """For how long it has shown no sign at the longest, as it does not now; None: not known."""
    if not shown.open:
        return shown.longest_gap_s
    known = [shown.sections[name].longest_s for name in shown.open if name in shown.sections]
    return max(known) if len(known) == len(shown.open) else None


class _RankMarks:
    """Marks of one rank in one cycle.

    Attributes:
        shown_at: When its progress was, last; None: never.
        silent_since: Said by its monitor when it found a hang.
        at_verdict: Its progress when all ranks had been looked at in a hang: a stopped one is woken
            for its stacks then, and reports more before it is ended; None: there was no verdict.
    """

    def __init__(self) -> None:
        self.rank: int | None = None
        self.started_at: float | None = None
        self.armed_at: float | None = None
        self.exited_at: float | None = None
        self.exit_code = 0
        self.shown_at: float | None = None
        self.silent_since: float | None = None
        self.progress = RankProgress(-1, {}, {})
        self.at_verdict: RankProgress | None = None


class _CycleSpans:
    """Marks of a node in one cycle.

    Attributes:
        is_armed: A rank of it has reported in, and so is shown once more at its end.
        is_final: That has come.
        in_place: Restarts of its ranks that the launcher had no part in.
        silent_s: For how long the node had been silent that the cycle is over for.
        verdict_at: When all ranks had been looked at in a hang; None: in none.
        restored: The snapshot that its ranks began from; None: from none.
        step_s: The length of a step, as the ranks measure it where they take snapshots.
    """

    def __init__(
        self, cycle: int, began_at: float, joined_at: float | None, started_at: float
    ) -> None:
        self.cycle = cycle
        self.began_at = began_at
        self.joined_at = joined_at
        self.started_at = started_at
        self.detected_at: float | None = None
        self.has_hang = False
        self.is_armed = False
        self.is_final = False
        self.stopped_at: float | None = None
        self.ranks: dict[int, _RankMarks] = {}
        self.in_place: list[schema.InPlaceRestart] = []
        self.silent_s = 0.0
        self.verdict_at: float | None = None
        self.restored: schema.SnapshotRestored | None = None
        self.step_s: float | None = None

    def rank(self, local_rank: int) -> _RankMarks:
        """Its marks."""
        return self.ranks.setdefault(local_rank, _RankMarks())

    @property
    def saved_at(self) -> float | None:
        """When the last checkpoint was complete; a rank that writes none is saved by another."""
        saves = [
            each.closed_at
            for rank in self.ranks.values()
            for name, each in rank.progress.sections.items()
            if account_of(name) == "checkpointing"
        ]
        return max(saves, default=None)

    def found_failed(self, at: float) -> None:
        """Something shows that it is over; the first counts."""
        self.detected_at = at if self.detected_at is None else min(at, self.detected_at)

    @property
    def ends_by_verdict(self) -> bool:
        """It has ended because of the hang."""
        if self.verdict_at is None or self.detected_at is None:
            return False
        return self.detected_at <= self.verdict_at + _VERDICT_S


class RankSpans:
    """Takes the events of one launcher in order of time, and gives spans cycle by cycle.

    Args:
        keeps_progress: Keep the last progress of each rank in each cycle.

    Attributes:
        begin: When the launcher started; None: no event has come.
        end: Instant of the last event.
        saves: A section of checkpoints is configured.
        since_save_s: By cycle: seconds of steps of a rank since the last checkpoint at its end, at
            most; where one is configured and progress is kept.
        is_watched: A rank has reported progress: a section, a heartbeat.
    """

    def __init__(self, *, keeps_progress: bool = False) -> None:
        self._keeps_progress = keeps_progress
        self.last_progress: dict[tuple[int, int], RankProgress] = {}
        self._cycles: list[_CycleSpans] = []
        # Seconds of steps of each rank since the job began: at the last checkpoint, at most, and
        # at the end of the last cycle.
        self._saved_s: dict[int, float] = defaultdict(float)
        self._furthest_s: dict[int, float] = defaultdict(float)
        self._reached_s: dict[int, float] = defaultdict(float)
        self._step_s: float | None = None
        self._is_unknown = False
        self.since_save_s: dict[int, float] = {}
        self._joined_at: float | None = None
        self._given_until: float | None = None
        self._last = -1  # cycle that was given
        self._last_failed = False
        self._local_ranks: set[int] = set()
        self.begin: float | None = None
        self.end = 0.0
        self.saves = False
        self.is_watched = False
        self._is_armed = False

    @property
    def knows_steps_again(self) -> bool:
        """Steps done again are known: by checkpoints, or as each restart was from a snapshot."""
        return self.saves or not self._is_unknown

    def take(self, event: Event) -> list[Span]:
        """Take the next event; the spans of cycles of which no more can come, each once."""
        at = event.t
        if self.begin is None:
            self.begin = self._given_until = at
        self.end = max(self.end, at)
        match event.body:
            case schema.LauncherStarted(nproc=nproc):
                self._local_ranks |= set(range(min(nproc, _LOCAL_RANKS_MAX)))
            case schema.Joining():
                self._joined_at = at
            case schema.CycleJoined():
                self._start(event.cycle, at)
            case _ if (cycle := self._cycle(event)) is not None:
                self._take_of_cycle(event, cycle)
        return self._finished()

    def _take_of_cycle(self, event: Event, cycle: _CycleSpans) -> None:
        at = event.t
        match event.body:
            case schema.CycleOver(silent_s=silent_s):
                cycle.found_failed(at)
                cycle.silent_s = silent_s
            case schema.SignalReceived():
                cycle.found_failed(at)
            case schema.CycleStopped():
                cycle.stopped_at = at
            case schema.InPlaceRestart() as restart if is_in_order(restart):
                cycle.in_place.append(restart)
            case schema.PagesRead() as look:
                self._look(look, at, cycle)
            case schema.SnapshotRestored() as restored:
                cycle.restored = restored
            case schema.SnapshotsTaken(step_s=step_s) if step_s:
                cycle.step_s = step_s
            case schema.RankStarted(local_rank, number):
                rank = cycle.rank(local_rank)
                rank.rank, rank.started_at = number, at
            case schema.RankArmed(local_rank, armed_at=armed_at, sections=names):
                rank = cycle.rank(local_rank)
                self._is_armed = cycle.is_armed = True
                self.saves = self.saves or any(account_of(n) == "checkpointing" for n in names)
                rank.armed_at = rank.armed_at or armed_at or at
            case schema.RankExited(local_rank, exit_code=exit_code):
                rank = cycle.rank(local_rank)
                rank.exited_at, rank.exit_code = at, exit_code
                if exit_code:
                    cycle.found_failed(at)
            case schema.RankRaised(local_rank):
                cycle.rank(local_rank)
                cycle.found_failed(at)
            case Overdue(local_rank=local_rank, detected_at=found_at, age_s=age_s):
                self.is_watched = self._is_armed = cycle.has_hang = True
                cycle.found_failed(found_at)
                cycle.rank(local_rank).silent_since = found_at - age_s

    def _look(self, look: schema.PagesRead, at: float, cycle: _CycleSpans) -> None:
        for key, shown in look.ranks.items():
            local_rank = int(key) if key.isdecimal() else -1
            rank = cycle.ranks.get(local_rank)
            if rank is None:
                continue
            rank.progress, rank.shown_at = shown, at if look.at is None else look.at
            if look.verdict and rank.at_verdict is None:
                rank.at_verdict, cycle.verdict_at = shown, rank.shown_at
            has_begun = shown.sections or shown.open or shown.heartbeat_at is not None
            self.is_watched = self.is_watched or bool(has_begun)
            if self._keeps_progress:
                self.last_progress[cycle.cycle, local_rank] = shown
        cycle.is_final = look.final

    def _cycle(self, event: Event) -> _CycleSpans | None:
        return next((c for c in self._cycles if c.cycle == event.cycle), None)

    def _start(self, cycle: int, at: float) -> None:
        before = self._cycles[-1] if self._cycles else None
        if before is not None and before.stopped_at is None:
            before.stopped_at = at
        began = before.stopped_at if before is not None else self.begin
        assert began is not None
        self._cycles.append(_CycleSpans(cycle, began, self._joined_at, at))
        self._joined_at = None

    def _finished(self) -> list[Span]:
        found: list[Span] = []
        while len(self._cycles) > 1:
            # The last progress of ranks is written a second after the next ones have started.
            is_awaited = self._cycles[0].is_armed and not self._cycles[0].is_final
            if is_awaited and len(self._cycles) < _CYCLES_MAX:
                break
            found += self._spans(self._cycles.pop(0))
        return found

    def close(self, now: float | None = None) -> list[Span]:
        """The rest; ``now``: the present, of a job that goes on, else None."""
        end = self.end if now is None else max(now, self.end)
        found: list[Span] = []
        for cycle in self._cycles:
            if cycle.stopped_at is None:
                cycle.stopped_at = end
            found += self._spans(cycle)
        self._cycles.clear()
        return found + self._rest(end)

    def _rest(self, end: float) -> list[Span]:
        """From the end of the last cycle on: the launcher ends, or the node waits for others."""
        start = self._given_until
        if start is None or end <= start:
            return []
        is_first = self._last < 0
        waits = self._joined_at is not None
        ending: Account = "stopping" if self._last_failed else "finishing"
        account: Account = "waiting" if waits else "starting" if is_first else ending
        return [
            Span(max(0, self._last), k, start, end, account, {account: end - start})
            for k in sorted(self._local_ranks)
        ]

    # ------------------------------------------------------------ one cycle
    def _spans(self, cycle: _CycleSpans) -> list[Span]:
        assert cycle.stopped_at is not None
        self._last, self._last_failed = cycle.cycle, cycle.detected_at is not None
        end = max(cycle.stopped_at, cycle.began_at)
        self._given_until = end
        saved_at = cycle.saved_at  # before the progress of ranks is set back to a verdict
        spans: list[Span] = []
        for local_rank in sorted(set(cycle.ranks) - self._local_ranks):  # its start is in no event
            if self.begin is not None and cycle.began_at > self.begin:
                shares: Mapping[Account, float] = {"starting": cycle.began_at - self.begin}
                before = self.begin, cycle.began_at
                spans.append(Span(cycle.cycle, local_rank, *before, "starting", shares))
            self._local_ranks.add(local_rank)
        for local_rank in sorted(self._local_ranks):
            rank = cycle.ranks.get(local_rank, _RankMarks())
            spans += self._of_rank(cycle, local_rank, rank, end, saved_at)
        self._is_unknown |= cycle.cycle > 0 and cycle.restored is None
        self._step_s = cycle.step_s or self._step_s
        if self.saves and self._keeps_progress:
            since = (self._reached_s[k] - self._saved_s[k] for k in self._local_ranks)
            self.since_save_s[cycle.cycle] = max(since, default=0.0)
        return spans

    def _of_rank(
        self,
        cycle: _CycleSpans,
        local_rank: int,
        rank: _RankMarks,
        end: float,
        saved_at: float | None,
    ) -> list[Span]:
        beginning: Account = "starting" if cycle.began_at == self.begin else "restarting"
        detected = end if cycle.detected_at is None else cycle.detected_at
        exited = end if rank.exited_at is None else rank.exited_at
        if cycle.ends_by_verdict and rank.at_verdict is not None:
            rank.progress = rank.at_verdict
        progress = rank.progress
        gone_at = min(detected, exited)
        ends_well = rank.exited_at is not None and rank.exit_code == 0 and exited <= detected
        left_at = progress.left_at
        has_left = left_at is not None and left_at < gone_at and rank.silent_since is None
        if left_at is not None and has_left:
            gone_at = left_at
        is_finished = ends_well or has_left
        works_until = gone_at
        # A look from before its exit may be old, and more steps may have followed.
        if has_left or (ends_well and rank.shown_at is not None and rank.shown_at >= exited):
            step_at = last_step_at(progress)
            works_until = gone_at if step_at is None else min(gone_at, step_at)
        elif not ends_well and cycle.detected_at is not None:
            works_until = _last_progress(rank, gone_at, cycle)
        first = _first_step_at(progress)
        starts = cycle.started_at
        marks: list[tuple[float, Account]] = [
            (starts if cycle.joined_at is None else cycle.joined_at, beginning),
            (starts, "waiting"),
            (starts if rank.started_at is None else rank.started_at, beginning),
        ]
        if rank.started_at is None:
            marks.append((end, "stopping"))
        elif not self._is_armed:  # then it is taken at its word: it trains
            marks.append((gone_at, "steps"))
        else:
            armed = works_until if rank.armed_at is None else rank.armed_at
            if cycle.detected_at is not None and rank.shown_at is None:
                first = armed  # the launcher was killed then
            marks.append((armed, "importing"))
            marks.append((works_until if first is None else min(first, works_until), "setup"))
            marks.append((works_until, "steps"))
        marks.append((detected, "finishing") if is_finished else (gone_at, "stalled"))
        marks.append((end, "stopping"))
        spans: list[Span] = []
        at = cycle.began_at
        for mark, account in marks:
            until = min(max(mark, at), end)
            if until > at:
                begin = at
                if spans and spans[-1].account == account:
                    begin = spans.pop().start
                shares: Mapping[Account, float] = {account: until - begin}
                if account == "steps":
                    aside = ended_s(progress, begin)
                    if is_finished:
                        aside = added(aside, ended_s(progress, until), -1.0)
                    aside |= _in_place(cycle, begin, until)
                    being = open_s(progress, begin, until)
                    shares = self._shares(cycle, local_rank, begin, until, saved_at, aside, being)
                elif account == "finishing":
                    aside = added(ended_s(progress, begin), open_s(progress, begin, gone_at))
                    rest_s, aside = divided(until - begin, aside)
                    shares = {account: rest_s, **aside}
                place = cycle.cycle, local_rank, begin, until
                spans.append(Span(*place, account, shares, rank.rank))
            at = until
        return spans

    def _shares(
        self,
        cycle: _CycleSpans,
        local_rank: int,
        start: float,
        end: float,
        saved_at: float | None,
        aside: dict[Account, float],
        being: dict[Account, float],
    ) -> dict[Account, float]:
        """The time at work, divided: all but saving and evaluating is training.

        ``aside`` and ``being``: seconds of other work that has ended, and that has not.
        """
        steps, shares = divided(end - start, added(aside, being))
        began_s, furthest_s = self._began_s(cycle, local_rank), self._furthest_s[local_rank]
        again = min(steps, furthest_s - began_s)
        self._reached_s[local_rank] = reached_s = began_s + steps
        self._furthest_s[local_rank] = max(furthest_s, reached_s)
        if saved_at is not None and saved_at > start:
            since = max(0.0, min(end, saved_at) - start - sum(aside.values()))
            self._saved_s[local_rank] = began_s + min(steps, since)
        return {"steps": steps - again, "steps_again": again, **shares}

    def _began_s(self, cycle: _CycleSpans, local_rank: int) -> float:
        """Seconds of steps that the state had behind it from which the rank began."""
        reached_s, restored = self._reached_s[local_rank], cycle.restored
        if restored is not None:
            return max(0.0, reached_s - (restored.lost_steps or 0) * (self._step_s or 0.0))
        return self._saved_s[local_rank] if self.saves else reached_s


def _in_place(cycle: _CycleSpans, start: float, end: float) -> dict[Account, float]:
    """Seconds of restarts in place, between two instants."""
    shares: dict[Account, float] = {"stalled": 0.0, "restarting": 0.0}
    at = start
    for each in cycle.in_place:
        marks = [
            min(max(t, at), end)
            for t in (min(each.progress_at, each.noticed_at), each.noticed_at, each.entered_at)
        ]
        shares["stalled"] += max(0.0, marks[1] - marks[0])
        shares["restarting"] += max(0.0, marks[2] - marks[1])
        at = max(at, marks[2])
    return {account: s for account, s in shares.items() if s > 0.0}


def _last_progress(rank: _RankMarks, gone_at: float, cycle: _CycleSpans) -> float:
    """When a rank of a cycle that failed made its last progress.

    In a hang that is its last sign. Else it was in the middle of something, which is progress as
    long as it took no longer than it ever did before, and no longer than a silent node may have
    taken part in it.
    """
    progress = rank.progress
    shown_at = _last_sign_at(progress)
    is_hang = cycle.has_hang or cycle.ends_by_verdict
    if is_hang and rank.silent_since is not None and shown_at is not None and shown_at > gone_at:
        shown_at = None  # it went on after it was found: it was woken for its stacks
    signs = [at for at in (shown_at, rank.silent_since) if at is not None]
    sign = max(signs, default=gone_at)
    if sign >= gone_at:
        return gone_at
    if is_hang:
        return sign
    usual_s = _usual_s(progress)
    until = gone_at if usual_s is None else min(gone_at, sign + usual_s)
    return min(until, max(sign, gone_at - cycle.silent_s)) if cycle.silent_s else until


def is_in_order(restart: schema.InPlaceRestart) -> bool:
    """Its instants can be true."""
    return restart.noticed_at <= restart.entered_at


def spans_of(events: Iterable[Event], now: float | None = None) -> tuple[RankSpans, list[Span]]:
    """All spans of one launcher, with the :class:`RankSpans` that made them."""
    made = RankSpans(keeps_progress=True)
    spans = [span for event in events for span in made.take(event)]
    return made, spans + made.close(now)
