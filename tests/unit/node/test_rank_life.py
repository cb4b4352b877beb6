"""The lives of a node's ranks on a virtual clock: what their monitors say, and what follows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.base.pure.common_events import Note, TimePassed
from holdfast.base.pure.kill_ladder import (
    AT_REST,
    EVIDENCE_S,
    KILLED,
    SIGKILL,
    SIGNALLED,
    SIGTERM,
    STUCK,
    TAKING_EVIDENCE,
    UNKILLABLE_S,
    KillLadder,
)
from holdfast.job.pure.member_messages import JobReported, NodeReported
from holdfast.node.pure.rank_life import (
    WRITING_S,
    Deliver,
    Effect,
    EndHandlers,
    Event,
    Exited,
    FailedBeforeExit,
    LifeState,
    MonitorGone,
    MonitorSaid,
    OnlyStuckLeft,
    RankLife,
    RankLives,
    RankSaid,
    Sent,
    StartMonitor,
    ToMonitors,
)
from holdfast.watch.pure import monitor_messages
from holdfast.watch.pure.rank_messages import ExitsNow, Uncaught

HELD_S = EVIDENCE_S + WRITING_S
PID = 4711


def outlives(local_rank: int) -> list[Effect]:
    """What follows when a rank has outlived SIGKILL."""
    text = (
        f"local rank {local_rank} is still alive {UNKILLABLE_S:.0f} s after its monitor sent "
        "SIGKILL. If it stays, this node can't continue, and leaves the job when its other "
        "ranks have ended"
    )
    return [Note("error", text), FailedBeforeExit(local_rank)]


class Launcher:
    """Lives of three ranks in cycle 0, on a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lives = RankLives(exception_grace_s=2.0, awaits_reports=True)
        self.start_cycle(0)

    def start_cycle(self, cycle: int) -> None:
        """Ranks 4, 5 and 6 of the job."""
        self.lives.start_cycle(cycle, range(4, 7), self.now)
        self.lives.here.pids = {k: PID + k for k in range(3)}
        self.ranks = self.lives.ranks

    def awaited(self, *local_ranks: int) -> ToMonitors:
        cycle, pids = self.lives.cycle, self.lives.here.pids
        return ToMonitors(
            {k: monitor_messages.Await(cycle, 4 + k, pids[k], self.now) for k in local_ranks}
        )

    def stopping(self, *local_ranks: int) -> ToMonitors:
        return ToMonitors(
            dict.fromkeys(local_ranks, monitor_messages.Stopping(self.lives.cycle, self.now))
        )

    def hears(self, *events: Event) -> list[Effect]:
        """What follows from all of them."""
        return [effect for event in events for effect in self.lives.handle(event, self.now)]

    def state(self, local_rank: int) -> LifeState:
        """Of a rank, now."""
        return self.ranks[local_rank].state(self.now)


@pytest.fixture
def launcher() -> Launcher:
    return Launcher()


def hung(local_rank: int, cycle: int = 0) -> MonitorSaid:
    whose, about = (cycle, local_rank, local_rank, PID), ("section", "step", 6.0, 5.0, False)
    return MonitorSaid(
        local_rank, monitor_messages.Overdue(*whose, *about, at=84.0, detected_at=84.9)
    )


HANG = hung(0).message


def taken(local_rank: int, cycle: int = 0) -> MonitorSaid:
    evidence = monitor_messages.Evidence(cycle, local_rank, PID, None, None, 0.1, None)
    return MonitorSaid(local_rank, evidence)


def signalled(local_rank: int, signum: int, cycle: int = 0) -> MonitorSaid:
    return MonitorSaid(
        local_rank, monitor_messages.Signalled(cycle, local_rank, PID, signum, "hung")
    )


def killed(local_rank: int, cycle: int = 0) -> MonitorSaid:
    return signalled(local_rank, SIGKILL, cycle)


def recovered(local_rank: int, cycle: int = 0) -> MonitorSaid:
    return MonitorSaid(local_rank, monitor_messages.Recovered(cycle))


def closed(local_rank: int, cycle: int = 0) -> MonitorSaid:
    return MonitorSaid(local_rank, monitor_messages.Closed(cycle))


def outlived(local_rank: int, cycle: int = 0) -> MonitorSaid:
    return MonitorSaid(
        local_rank, monitor_messages.Unkillable(cycle, local_rank, PID, UNKILLABLE_S, "state D")
    )


def test_an_exception_fails_its_rank_when_its_exit_handlers_have_run(launcher: Launcher) -> None:
    """Not before: they may end the process well. And not after: it takes long to free memory."""
    assert launcher.hears(RankSaid(1, Uncaught("x"))) == []
    launcher.now += 0.5
    assert launcher.hears(RankSaid(1, ExitsNow())) == [FailedBeforeExit(1)]
    assert launcher.hears(Sent((0, 2), SIGTERM)) == [launcher.stopping(0, 2)]
    assert launcher.hears(Exited(1, 1)) == [Exited(1, 1)]
    assert launcher.lives.next_deadline() is None
    assert launcher.ranks[1].raised_at == 100.0
    assert not launcher.ranks[1].was_asked(1)


def test_exit_handlers_have_their_time_and_no_more(launcher: Launcher) -> None:
    """The rank is killed for its exception, and that is its failure."""
    launcher.hears(RankSaid(1, Uncaught("x")))
    assert launcher.lives.next_deadline() == 102.0
    launcher.now = 101.9
    assert launcher.hears(TimePassed()) == []
    launcher.now = 102.0
    assert launcher.hears(TimePassed()) == [EndHandlers(1, 2.0), FailedBeforeExit(1)]
    assert launcher.hears(TimePassed(), RankSaid(1, ExitsNow())) == []
    assert not launcher.ranks[1].was_asked(-SIGKILL)


def test_a_rank_that_goes_on_after_its_exception_has_not_failed(launcher: Launcher) -> None:
    """An exit handler made it another program, or ended it well."""
    launcher.hears(RankSaid(1, Uncaught("x")))
    assert launcher.hears(RankSaid(1, None)) == []
    assert launcher.lives.next_deadline() is None
    launcher.now += 60.0
    assert launcher.hears(TimePassed(), Exited(1, 0)) == [Exited(1, 0)]


def test_an_exception_of_a_rank_that_was_told_to_stop_is_no_failure(launcher: Launcher) -> None:
    """Many programs leave with one then; the grace of the stop bounds their exit handlers."""
    launcher.hears(Sent((0, 1, 2), SIGTERM))
    assert launcher.hears(RankSaid(1, Uncaught("x")), RankSaid(1, ExitsNow())) == []
    assert launcher.ranks[1].was_asked(1)


def test_an_exception_waits_for_evidence_of_another_rank(launcher: Launcher) -> None:
    """K-2: the others are stopped because of it, and a rank that was stopped shows no stacks."""
    launcher.hears(hung(0), RankSaid(1, Uncaught("x")))
    assert launcher.hears(RankSaid(1, ExitsNow())) == []
    launcher.now += HELD_S
    assert FailedBeforeExit(1) in launcher.hears(TimePassed())


def test_once_a_rank_has_reported_all_that_live_are_expected_to(launcher: Launcher) -> None:
    """In each cycle anew, from the first report on; not one that has ended."""
    first, late = (MonitorSaid(rank, monitor_messages.WatchBegan(0)) for rank in (1, 2))

    assert launcher.hears(Exited(0, 0)) == [Exited(0, 0)]
    found = launcher.hears(first, late, first)
    assert found == [NodeReported(0), launcher.awaited(2)]

    launcher.start_cycle(1)
    assert launcher.hears(late) == [], "it is of the cycle before"
    found = launcher.hears(MonitorSaid(2, monitor_messages.WatchBegan(1)))
    assert found == [NodeReported(1), launcher.awaited(0, 1)]


def test_ranks_that_were_asked_to_end_are_not_waited_for_and_have_their_grace(
    launcher: Launcher,
) -> None:
    """They may be saving their work, with a client that they have not called, or never call."""
    assert launcher.hears(Sent((0, 1, 2), SIGTERM)) == [launcher.stopping(0, 1, 2)]
    assert launcher.hears(MonitorSaid(0, monitor_messages.WatchBegan(0))) == [NodeReported(0)], (
        "none is awaited"
    )
    assert launcher.lives.next_deadline() is None
    assert launcher.hears(Sent((1, 2), SIGKILL)) == [], "there is nothing to hold any more"


def test_without_a_timeout_for_it_ranks_that_do_not_report_are_told_of_once_and_live() -> None:
    """Only some ranks of a script may call. Not of who is watched by its steps, or is gone."""
    lives = RankLives(60.0)
    lives.start_cycle(0, range(5), 0.0)
    assert lives.handle(MonitorSaid(0, monitor_messages.RankConnected(0, PID)), 1.0) == []
    assert lives.handle(MonitorSaid(0, monitor_messages.WatchBegan(0)), 1.0) == [NodeReported(0)]
    lives.handle(MonitorSaid(1, monitor_messages.WatchBegan(0, by_steps=True)), 2.0)
    lives.handle(Exited(2, 0), 3.0)

    assert lives.next_deadline() == 61.0
    (note,) = lives.handle(TimePassed(), 61.0)
    assert isinstance(note, Note)
    assert note.text.startswith("local ranks 3, 4 did not call RankMonitorClient.init_workload")
    assert "60 s" in note.text
    assert "--ft-first-call-timeout" in note.text
    lives.start_cycle(1, range(5), 100.0)
    lives.handle(MonitorSaid(0, monitor_messages.WatchBegan(1)), 101.0)
    assert lives.next_deadline() is None, "once a job"


def test_a_report_on_another_node_is_enough(launcher: Launcher) -> None:
    """All ranks of this one may hang before their first call. Their node's first is still news."""
    found = launcher.hears(JobReported(3), Exited(0, 0), JobReported(0), JobReported(0))

    assert found == [Exited(0, 0), launcher.awaited(1, 2)]
    assert launcher.hears(MonitorSaid(2, monitor_messages.WatchBegan(0))) == [NodeReported(0)]


def test_a_hung_rank_is_suspected_condemned_killed_stuck(launcher: Launcher) -> None:
    """And gone, wherever it was; what it failed of is kept."""
    assert launcher.state(0) is LifeState.RUNNING
    for event, state in [
        (hung(0), LifeState.SUSPECTED),
        (taken(0), LifeState.CONDEMNED),
        (signalled(0, SIGTERM), LifeState.CONDEMNED),
        (killed(0), LifeState.KILLED),
        (outlived(0), LifeState.STUCK),
        (Exited(0, -SIGKILL), LifeState.GONE),
    ]:
        launcher.hears(event)
        assert launcher.state(0) is state
    assert (launcher.ranks[0].hang, launcher.ranks[0].is_condemned) == (HANG, True)


def test_whoever_killed_a_rank_it_is_stuck_when_it_outlives_that(launcher: Launcher) -> None:
    launcher.lives.host_failed(1, "GPU is lost", launcher.now)
    ours = [Sent((0,), SIGTERM), Sent((2,), SIGKILL)]
    assert launcher.hears(*ours) == [launcher.stopping(0)], "the node knows"
    assert [launcher.state(rank) for rank in range(3)] == [
        LifeState.SIGNALLED,
        LifeState.KILLED,
        LifeState.KILLED,
    ]
    launcher.now += UNKILLABLE_S
    assert [launcher.state(rank) for rank in (1, 2)] == [LifeState.STUCK, LifeState.STUCK]


def test_a_killed_rank_has_failed_before_it_has_ended_and_once(launcher: Launcher) -> None:
    """Its memory may take long to be freed, and the others need not wait for that."""
    assert launcher.hears(hung(0), taken(0)) == [Deliver(0)]
    assert launcher.hears(killed(0)) == [FailedBeforeExit(0)]
    assert launcher.hears(killed(0), TimePassed()) == []
    assert launcher.hears(Exited(0, 0)) == [Exited(0, 0)], "it was about to end"


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (killed(0), [FailedBeforeExit(0)]),
        (Exited(0, -SIGKILL), [Exited(0, -SIGKILL)]),
        (Exited(0, 1), [Exited(0, 1)]),
    ],
    ids=["killed", "killed and gone", "crashed"],
)
@pytest.mark.parametrize(
    "end",
    [taken(1), signalled(1, SIGTERM), recovered(1), closed(1), Exited(1, 0), "the bound"],
    ids=["evidence", "signalled", "recovers", "let go", "ends", "the bound"],
)
def test_nobody_hears_of_a_failure_before_all_stacks_are_taken(
    launcher: Launcher, failure: Event, told: list[Effect], end: Event | str
) -> None:
    """K-2: the others are stopped because of it, and show no stacks then."""
    launcher.hears(hung(1))
    launcher.now += 0.5
    assert launcher.hears(failure) == []
    assert launcher.lives.next_deadline() == 100.0 + HELD_S
    if isinstance(end, str):
        launcher.now = 100.0 + HELD_S - 2**-10
        assert launcher.hears(TimePassed()) == []
        launcher.now, end = 100.0 + HELD_S, TimePassed()
    said = [effect for effect in launcher.hears(end) if effect not in (Deliver(0), Exited(1, 0))]
    assert said == told
    assert launcher.lives.next_deadline() is None


def test_the_last_rank_that_was_found_hung_has_its_whole_time(launcher: Launcher) -> None:
    """And who has ended meanwhile is not told to be killed."""
    launcher.hears(hung(1))
    launcher.now += 2.0
    assert launcher.hears(hung(2), taken(0), killed(0), Exited(0, -SIGKILL)) == [Deliver(0)]
    assert launcher.lives.next_deadline() == 102.0 + HELD_S
    launcher.now += HELD_S
    assert launcher.hears(TimePassed()) == [Exited(0, -SIGKILL)]


def test_nothing_is_held_back_where_nobody_is_stopped_because_of_it(launcher: Launcher) -> None:
    """One that ended well; and of ranks that are being stopped, for whatever reason."""
    launcher.hears(hung(1))
    assert launcher.hears(Exited(0, 0)) == [Exited(0, 0)]
    assert launcher.hears(Exited(2, 1)) == []
    assert launcher.hears(Sent((1,), SIGTERM)) == [
        launcher.stopping(1),
        Exited(2, 1),
    ]
    assert launcher.hears(killed(1)) == [FailedBeforeExit(1)]


def test_a_rank_that_outlived_its_kill_is_told_at_once(launcher: Launcher) -> None:
    """It was held back long enough: 15 s."""
    launcher.hears(hung(0), taken(0), hung(1), killed(0))
    assert launcher.hears(outlived(0)) == outlives(0)
    assert launcher.hears(taken(1)) == [Deliver(0)], "and is not told to be killed after that"


def test_the_node_hears_once_that_only_ranks_are_left_that_outlived_their_kill(
    launcher: Launcher,
) -> None:
    """With the time of the last kill; not while another may still end by itself."""
    launcher.hears(outlived(0), Exited(2, 0))
    launcher.now += 5.0
    assert launcher.hears(outlived(1)) == [*outlives(1), OnlyStuckLeft(90.0)]
    assert launcher.hears(outlived(1), TimePassed()) == []


@pytest.mark.parametrize(
    ("words", "fails"),
    [
        ([], False),
        ([hung(0)], False),
        ([hung(0), closed(0)], False),
        ([hung(0), taken(0)], True),
        ([hung(0), taken(0), signalled(0, SIGTERM)], True),
        ([hung(0), taken(0), recovered(0)], False),
        ([hung(0), signalled(0, SIGTERM)], True),
    ],
    ids=["fine", "suspected", "let go", "condemned", "signalled", "recovered", "no evidence told"],
)
def test_who_was_condemned_has_failed_with_whatever_exit_code(
    launcher: Launcher, words: list[Event], fails: bool
) -> None:
    """A handler of the signal may end it well."""
    launcher.hears(*words)
    failed = [FailedBeforeExit(0)] if fails else []
    assert launcher.hears(Exited(0, 0)) == [*failed, Exited(0, 0)]


def test_an_end_was_asked_for_where_the_launcher_asked_and_nothing_was_wrong(
    launcher: Launcher,
) -> None:
    launcher.hears(Sent((0, 1, 2), SIGTERM), hung(1))
    launcher.lives.host_failed(2, "GPU is lost", launcher.now)
    assert [life.was_asked(-SIGTERM) for life in launcher.ranks.values()] == [True, False, False]
    assert not launcher.ranks[0].was_asked(-SIGKILL), "by whom?"
    assert not RankLife().was_asked(1)


def test_evidence_is_delivered_for_good_when_no_monitor_writes_any_more(launcher: Launcher) -> None:
    """A monitor that died writes nothing; one may be heard when the next cycles run."""
    launcher.hears(hung(0), hung(1), taken(0))
    launcher.hears(Exited(0, -9), Exited(1, -9), Exited(2, -15))
    assert launcher.hears(closed(0)) == []
    assert launcher.lives.swept() == [Deliver(0)]
    assert launcher.lives.undelivered() == [0]
    launcher.start_cycle(1)
    launcher.hears(hung(0, cycle=1))
    launcher.start_cycle(2)
    assert launcher.hears(MonitorGone(1))[0] == Deliver(0, is_over=True)
    assert launcher.lives.undelivered() == []
    again = launcher.hears(MonitorGone(1), closed(1))
    assert not any(isinstance(effect, Deliver) for effect in again), "once"


def test_what_is_said_late_is_held_against_the_cycle_it_speaks_of(launcher: Launcher) -> None:
    """The next cycle's rank in the same place has done nothing wrong."""
    first = launcher.ranks
    launcher.start_cycle(1)
    assert launcher.hears(hung(0), taken(0), killed(0), outlived(0)) == [Deliver(0)]
    assert first[0].hang == HANG
    assert launcher.ranks[0] == RankLife()
    launcher.start_cycle(2)
    assert launcher.hears(hung(0), killed(0)) == [], "forgotten"


# ------------------------------------------------------------------ histories
N = 3
GRACE_S, STOP_GRACE_S, GIVE_UP_S = 4.0, 6.0, 30.0


class Process:
    """A rank and its monitor, as they really are; what the monitor says may be unread."""

    def __init__(self, signal: int, kind: str) -> None:
        self.exit_code: int | None = None
        self.is_reaped = False
        self.is_stuck = kind == "stuck"
        self.exits_well = kind == "has a handler"
        self.kill = KillLadder("hung", signal, GRACE_S)
        self.words: list[Event] = []

    def take(self, signum: int) -> None:
        """A signal."""
        if self.exit_code is None and not self.is_stuck:
            if signum == SIGKILL:
                self.exit_code = -SIGKILL
            elif signum == SIGTERM and self.exits_well:
                self.exit_code = 0


KINDS = ["dies", "has a handler", "stuck"]


class LauncherMachine(RuleBasedStateMachine):
    """Ranks hang, crash and get stuck, monitors die; the launcher reads in any order, in time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.lives = RankLives()
        self.cycle = -1
        self.late: list[Event] = []
        self.delivered: set[int] = set()

    @initialize(
        signal=st.sampled_from([SIGTERM, SIGKILL]),
        kinds=st.lists(st.sampled_from(KINDS), min_size=N, max_size=N),
    )
    def begin(self, signal: int, kinds: list[str]) -> None:
        self.cycle += 1
        self.lives.start_cycle(self.cycle, range(N), self.now)
        self.ranks = self.lives.ranks
        self.processes = [Process(signal, kind) for kind in kinds]
        self.stop = KillLadder("a rank failed", SIGTERM, STOP_GRACE_S, GIVE_UP_S)
        self.told: list[Effect] = []
        self.pending: dict[int, float] = {}  # heard to be hung, nothing heard since
        self.condemned: set[int] = set()
        self.failed_at: float | None = None  # the first failure that was heard
        self.killed_at: dict[int, float] = {}
        self.outlived: set[int] = set()
        self.killed_by_monitor: set[int] = set()
        self.given_up = False

    # -------------------------------------------------------------- the launcher
    def feed(self, event: Event) -> None:
        self.remember(event)
        self.follow(self.lives.handle(event, self.now))

    def follow(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StartMonitor | Note):
                continue
            if isinstance(effect, Deliver):
                if effect.is_over:
                    assert effect.cycle not in self.delivered, "once"
                    self.delivered.add(effect.cycle)
                continue
            assert effect not in self.told, "each is told once"
            if isinstance(effect, FailedBeforeExit):
                by_monitors = self.condemned | self.killed_by_monitor
                assert effect.local_rank in by_monitors, "the launcher knows of its own kills"
                assert Exited(effect.local_rank, 0) not in self.told, "first"
            self.told.append(effect)
            self.act(effect)

    def act(self, effect: Effect) -> None:
        """As the node does: the first failure stops all."""
        if effect in [Exited(rank, 0) for rank in range(N)] or self.stop.is_killed:
            return
        if self.stop.step != SIGNALLED:
            is_stuck = isinstance(effect, FailedBeforeExit) and effect.local_rank in self.outlived
            if not is_stuck:
                late = [at for at in self.pending.values() if self.now < at + HELD_S]
                assert not late, "K-2: stopped before all stacks were taken"
            assert self.failed_at is not None, "stopped for no reason"
            self.stop.send(self.now)
            self.send(SIGTERM)

    def send(self, signum: int) -> None:
        alive = [rank for rank, it in enumerate(self.processes) if not it.is_reaped]
        for rank in alive:
            self.processes[rank].take(signum)
            if signum == SIGKILL:
                self.killed_at.setdefault(rank, self.now)
        self.feed(Sent(tuple(alive), signum))

    def remember(self, event: Event) -> None:
        """Slower than the machine, and obviously right."""
        match event:
            case MonitorSaid(rank, word) if getattr(word, "cycle", None) == self.cycle:
                self.remember_word(rank, word)
            case Exited(rank, exit_code):
                self.pending.pop(rank, None)
                if exit_code or rank in self.condemned:
                    self.failed_at = self.failed_at or self.now

    def remember_word(self, rank: int, word: monitor_messages.ToLauncher) -> None:
        if not isinstance(word, monitor_messages.Unkillable):
            self.pending.pop(rank, None)
        match word:
            case monitor_messages.Overdue():
                self.pending[rank] = self.now
            case monitor_messages.Evidence() | monitor_messages.Signalled():
                self.condemned.add(rank)
                if isinstance(word, monitor_messages.Signalled) and word.signal == SIGKILL:
                    self.killed_at.setdefault(rank, self.now)
                    self.killed_by_monitor.add(rank)
                    self.failed_at = self.failed_at or self.now
            case monitor_messages.Recovered():
                self.condemned.discard(rank)
            case monitor_messages.Unkillable():
                self.outlived.add(rank)
                self.failed_at = self.failed_at or self.now

    def hear(self, rank: int) -> None:
        words = self.processes[rank].words
        while words:
            self.feed(words.pop(0))

    def reap(self, rank: int) -> None:
        process = self.processes[rank]
        if process.exit_code is not None and not process.is_reaped:
            process.is_reaped = True
            self.hear(rank)
            self.feed(Exited(rank, process.exit_code))
            self.close(rank)

    # -------------------------------------------------------------- the monitors
    def close(self, rank: int) -> None:
        process = self.processes[rank]
        if process.kill.due_at is not None:
            process.words.append(closed(rank, self.cycle))
            process.kill.step, process.kill.due_at = STUCK, None

    def climb(self, rank: int) -> None:
        """The monitor acts, then speaks."""
        process = self.processes[rank]
        if process.exit_code is not None:
            return
        step = process.kill.climb(self.now)
        if step in (SIGNALLED, KILLED):
            if step == SIGNALLED or process.kill.signal == SIGKILL:
                process.words.append(taken(rank, self.cycle))
            for signum in process.kill.signals:
                process.take(signum)
            process.words.append(signalled(rank, process.kill.signals[-1], self.cycle))
        elif step == STUCK:
            process.words.append(outlived(rank, self.cycle))

    def all_hang(self) -> None:
        """In one collective, as a rule."""
        for rank, it in enumerate(self.processes):
            if it.exit_code is None and it.kill.step == AT_REST:
                self.hangs(rank)

    def hangs(self, rank: int) -> None:
        self.processes[rank].kill.take_evidence(self.now)
        self.feed(hung(rank, self.cycle))

    def evidence_comes(self, rank: int) -> None:
        self.processes[rank].kill.evidence_taken(self.now)
        self.climb(rank)

    def is_restarted_in_place(self, rank: int) -> None:
        self.processes[rank].words.append(recovered(rank, self.cycle))
        self.leaves(rank)

    def leaves(self, rank: int) -> None:
        it = self.processes[rank]
        it.words.append(closed(rank, self.cycle))
        it.kill = KillLadder("hung", it.kill.signal, GRACE_S)

    def its_monitor_dies(self, rank: int) -> None:
        """The one after it finds what it finds."""
        self.hear(rank)
        it = self.processes[rank]
        it.kill = KillLadder("hung", it.kill.signal, GRACE_S)
        self.feed(MonitorGone(rank))

    def crashes(self, rank: int) -> None:
        self.processes[rank].exit_code = 1

    def ends_well(self, rank: int) -> None:
        self.processes[rank].exit_code = 0

    def its_host_fails(self, rank: int) -> None:
        """A stated reason to stop all: no stacks are waited for."""
        self.failed_at = self.killed_at[rank] = self.now
        self.processes[rank].take(SIGKILL)
        before = list(self.told)
        self.lives.host_failed(rank, "GPU is lost", self.now)
        assert self.told == before, "the node knows"
        self.stop.send(self.now)
        self.send(SIGTERM)

    def the_launcher_hears_a_word(self, rank: int) -> None:
        self.feed(self.processes[rank].words.pop(0))

    def turns(self) -> Iterator[Callable[[], None]]:
        """What may happen now; more than once: is more likely to."""
        if self.late:
            yield self.a_late_word_comes
        yield self.all_hang
        for rank, it in enumerate(self.processes):
            step, found = it.kill.step, []
            if it.words:
                found += [self.the_launcher_hears_a_word] * 4
            if it.exit_code is not None and not it.is_reaped:
                found += [self.reap] * 4
            if it.exit_code is None:
                found.append(self.hangs if step == AT_REST else self.its_monitor_dies)
                if step == TAKING_EVIDENCE:
                    found += [self.evidence_comes] * 3
                if step in (TAKING_EVIDENCE, SIGNALLED):
                    found += [self.is_restarted_in_place, self.leaves]
                if not it.is_stuck:
                    found += [self.crashes, self.ends_well]
                if self.stop.step == AT_REST and self.pending:
                    found.append(self.its_host_fails)
            yield from (partial(turn, rank) for turn in found)

    @rule(seed=st.integers(0, 2**16), turns=st.integers(1, 60))
    def things_happen(self, seed: int, turns: int) -> None:
        """Many for one draw: a history of interest is long."""
        rng = random.Random(seed)
        for _ in range(turns):
            if self.given_up or all(it.is_reaped for it in self.processes):
                self.the_next_cycle_begins(rng.choice([SIGTERM, SIGKILL]), rng.choices(KINDS, k=N))
            if may_happen := list(self.turns()):
                rng.choice(may_happen)()
            self.each_is_where_its_words_and_signals_say()
            self.a_held_failure_has_an_end()
            if rng.random() < 0.1:
                self.time_passes(rng.choice([0.25, 0.5]), rng.sample(range(N), N))

    def a_late_word_comes(self) -> None:
        before = list(self.told), [life.state(self.now) for life in self.ranks.values()]
        self.feed(self.late.pop(0))
        assert before == (self.told, [life.state(self.now) for life in self.ranks.values()])

    @rule(seconds=st.sampled_from([0.25, 0.5, 3.0, 16.0]), order=st.permutations(range(N)))
    def time_passes(self, seconds: float, order: list[int]) -> None:
        until = self.now + seconds
        self.catch_up(order)
        while (at := self.next_at()) is not None and at <= until:
            self.now = max(self.now, at)
            for rank in order:
                self.climb(rank)
            self.feed(TimePassed())
            again = self.lives.next_deadline()
            assert again is None or again > self.now, "it wakes for nothing"
            step = self.stop.climb(self.now)
            if step == KILLED:
                self.send(SIGKILL)
            self.given_up = self.given_up or step == STUCK
            self.catch_up(order)
        self.now = until

    def next_at(self) -> float | None:
        kills = [it.kill.due_at for it in self.processes if it.exit_code is None]
        instants = [self.stop.due_at, self.lives.next_deadline(), *kills]
        return min((at for at in instants if at is not None), default=None)

    def catch_up(self, order: list[int]) -> None:
        """Nothing waits for the launcher for long, and what is there is read in any order."""
        for rank in order:
            self.hear(rank)
            self.reap(rank)
        self.is_quiet()

    def is_quiet(self) -> None:
        """All that was said was heard."""
        held = [at + HELD_S for at in self.pending.values() if at + HELD_S > self.now]
        if self.failed_at is not None and not held:
            assert self.stop.step != AT_REST, "a failure was forgotten"

    def the_next_cycle_begins(self, signal: int, kinds: list[str]) -> None:
        exits = [effect for effect in self.told if isinstance(effect, Exited)]
        assert len(exits) == sum(it.is_reaped for it in self.processes)
        self.follow(self.lives.swept())
        written = [rank for rank, life in self.ranks.items() if life.is_written_about]
        assert (self.cycle in self.delivered) == (not written)
        self.late = [word for it in self.processes for word in it.words]
        self.begin(signal, kinds)

    @invariant()
    def each_is_where_its_words_and_signals_say(self) -> None:
        for rank, process in enumerate(self.processes):
            killed_at = self.killed_at.get(rank)
            expected = LifeState.SIGNALLED if self.stop.step != AT_REST else LifeState.RUNNING
            if process.is_reaped:
                expected = LifeState.GONE
            elif killed_at is not None:
                is_stuck = rank in self.outlived or self.now >= killed_at + UNKILLABLE_S
                expected = LifeState.STUCK if is_stuck else LifeState.KILLED
            elif rank in self.pending:
                expected = LifeState.SUSPECTED
            elif rank in self.condemned:
                expected = LifeState.CONDEMNED
            assert self.ranks[rank].state(self.now) is expected
            assert self.ranks[rank].is_condemned == (rank in self.condemned)

    @invariant()
    def a_held_failure_has_an_end(self) -> None:
        """Nothing waits for a word that may never come, nor where all are stopped anyway."""
        is_held = self.failed_at is not None and self.stop.step == AT_REST
        held = [at + HELD_S for at in self.pending.values()]
        assert self.lives.next_deadline() == (max(held) if is_held else None)
        if not is_held:
            told = {effect.local_rank for effect in self.told if isinstance(effect, Exited)}
            assert told == {rank for rank, it in enumerate(self.processes) if it.is_reaped}

    @invariant()
    def a_stuck_rank_is_given_up_in_bounded_time(self) -> None:
        """From its monitor's SIGKILL: heard at once, the others' grace, what SIGKILL may take."""
        for rank, at in self.killed_at.items():
            if not self.processes[rank].is_reaped and self.processes[rank].is_stuck:
                most = N * HELD_S + STOP_GRACE_S + GIVE_UP_S
                assert self.given_up or self.now <= at + most


LauncherMachine.TestCase.settings = settings(max_examples=70, stateful_step_count=15)
TestLauncherMachine = LauncherMachine.TestCase
