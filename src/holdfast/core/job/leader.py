"""Decide for all launchers of a job: who takes part in a cycle, when it is over, when the job is.

Pure: reads no clock, touches no store. Times are seconds on the caller's monotonic clock.

             enough nodes have joined, nobody is waited for
    FORMING ------------------------------------------------> RUNNING
       ^  |                                                      |  |
       |  | no restart is left,      Stop: a node failed, was    |  | all succeeded,
       |  | too few in time,         lost, or one more can grow  |  | or the only node left
       |  | shutdown asked           the job                     |  |
       +----------------|----------------------------------------+  |
                        v                                           |
                     ENDING <---------------------------------------+
                        |  every living node has acknowledged, or linger_s is over
                        v
                     CLOSED

After a failure comes a Stop, always, and one decision when all survivors are back: whether there is
another cycle. By then it is known who asked for none, and how far the job's checkpoints are.

A round is formed at the moment nothing is missing: the most nodes that the job can use, or after a
failure all survivors. Whoever comes early, late or in surplus waits in one queue, in the order of
joining; nobody who waits can close a round, and nobody who dies can keep one open for longer than
``silence_s``. A node that is gone stays gone: what returns is another incarnation.

Duties of the caller:

1. Hand over messages in the order of their arrival, all that are there before :class:`TimePassed`;
   else a leader that was asleep would bury those who spoke meanwhile.
2. Publish decisions in order, each before the next event is handled.
3. Come back at :meth:`Leader.next_deadline`.

Invariants: R-1 one round per cycle and one owner per group rank; no round while a survivor of the
last cycle may still have ranks. B-1 restarts never exceed the budget, for the whole job. R-2 after
a Stop comes exactly one Round or End, in bounded time.
"""

from __future__ import annotations

import enum
import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.core.common_events import Begin, IterationRead, Note, TimePassed
from holdfast.core.job.assign import Assignment, AssignmentError, NodeDesc, assign, name_some
from holdfast.core.job.assign import Policy as NodePolicy
from holdfast.core.job.membership import (
    SHUTDOWN,
    Beat,
    Control,
    Decision,
    End,
    Join,
    LeaderBeat,
    Leave,
    LeaveWhy,
    Message,
    NodeState,
    Outcome,
    Pace,
    Place,
    Refused,
    Round,
    State,
    Stop,
)
from holdfast.core.job.restarts import Restarts
from holdfast.core.launch.exit_codes import NO_RESTART, Ending, why_over
from holdfast.core.never import assert_never
from holdfast.core.value import Value
from holdfast.core.wording import count

READ_LIMIT_S = 5.0
"""How long reading the iteration of a checkpoint may hold up a restart."""
NEWS_S = 1.0
"""A wait as long as this is told to those who wait; so is, as long after, that it has changed.

With the beats that are due anyway: what a node reads grows with the time it waits, and not with
the number of nodes.
"""
_UNFIT_NAMED = 4


class RestartPolicy(enum.Enum):
    """What makes everybody restart."""

    ANY_FAILED = "any-failed"
    """One failed rank anywhere."""
    MIN_HEALTHY = "min-healthy"
    """Fewer than MIN nodes that are healthy or have succeeded; lets in-process restart work.

    On one node: no rank runs any more, and none has ended well.
    """


@dataclass(frozen=True)
class Rules:
    """What a job asks of its leader. Times in seconds.

    Attributes:
        nodes: How many nodes have ranks, and which ranks.
        max_restarts: How often the job may be started again after a failure, all nodes together.
        restarts_period_s: The budget is per any such period; None: for the whole life of the job.
        first_last_call_s: Once MIN have joined for the first time, how long to wait for more.
            torchrun's 30. At MAX nobody is waited for.
        later_last_call_s: The same after a restart, once all survivors have joined again.
        grow: Under any-failed, a node that joins while there are fewer than MAX stops the cycle so
            that the next has it. Costs no restart of the budget: nothing failed. So that a node
            that comes and goes can't keep the job from working, a cycle lives at least
            ``grow_cooldown_s`` before it is stopped for growth.
        backoff_s: Wait before the second of two failures in a row is restarted; doubles up to
            ``backoff_max_s``. A cycle that lived for ``backoff_max_s`` ends the row. 0: never wait.
        max_no_progress_cycles: Give up after so many failed cycles in a row that did not advance
            the checkpoint by ``min_progress_iterations``; 0: never. Needs :class:`IterationRead`.
        no_restart_exit_code: Tells whatever restarts the launcher that it should not.
        linger_s: At the end, how long to wait for acknowledgements: long enough to stop ranks.
        launchers: How many the scheduler has started; None: MAX, as far as anybody knows. A node
            that was excluded or is not healthy is one less that can come.
        is_of_one: The job has this launcher, and can have no other.
        reads_iterations: :class:`ReadIteration` will be answered.
    """

    nodes: NodePolicy
    restart: RestartPolicy = RestartPolicy.ANY_FAILED
    max_restarts: int = 0
    restarts_period_s: float | None = None
    first_last_call_s: float = 30.0
    later_last_call_s: float = 0.0
    grow: bool = True
    grow_cooldown_s: float = 30.0
    backoff_s: float = 0.0
    backoff_max_s: float = 300.0
    max_no_progress_cycles: int = 2
    min_progress_iterations: int = 1
    no_restart_exit_code: int = NO_RESTART
    linger_s: float = 60.0
    launchers: int | None = None
    is_of_one: bool = False
    reads_iterations: bool = False

    @property
    def survives_ranks(self) -> bool:
        """Min-healthy counts ranks where the job has one node: it goes on as long as one runs."""
        return self.is_of_one and self.restart is RestartPolicy.MIN_HEALTHY


# ---------------------------------------------------------------- events
class Arrived(Value):
    """A message has come up."""

    message: Message


class Abdicate(Value):
    """The launcher that the leader lives in must go: the job ends, as nobody can take over."""

    why: str


Event = Begin | Arrived | IterationRead | Abdicate | TimePassed


# ---------------------------------------------------------------- effects
class Publish(Value):
    """Append to the log that every launcher reads."""

    decision: Decision


class ReadIteration(Value):
    """Find out how far the job's checkpoints are, then report :class:`IterationRead`."""

    first: bool
    """Nothing has been trained yet: there may be none."""


class Close(Value):
    """The job is over and nobody needs the store any more; ``missing``: did not acknowledge."""

    missing: tuple[str, ...] = ()


Effect = Publish | ReadIteration | Note | Close


class Phase(enum.Enum):
    """Where a job is in its life; see the picture in the module's docstring."""

    NEW = "new"
    FORMING = "forming"
    RUNNING = "running"
    ENDING = "ending"
    CLOSED = "closed"


@dataclass
class Leader:
    """The one who decides for a job; lives in one of its launchers.

    Args:
        rules: What the job asks for.
        pace: How long silence may last.
    """

    rules: Rules
    pace: Pace = field(default_factory=Pace)

    phase: Phase = field(default=Phase.NEW, init=False)
    cycle: int = field(default=-1, init=False)
    end: End | None = field(default=None, init=False)
    term: int = field(default=0, init=False)

    # who is there
    _alive: dict[str, NodeDesc] = field(default_factory=dict, init=False)
    _heard: OrderedDict[str, float] = field(default_factory=OrderedDict, init=False)
    _gone: dict[str, str] = field(default_factory=dict, init=False)
    _told_gone: set[str] = field(default_factory=set, init=False)
    _ready: dict[str, None] = field(default_factory=dict, init=False)
    _ports: dict[str, int] = field(default_factory=dict, init=False)
    _joined: int = field(default=0, init=False)
    _joined_at: dict[str, float] = field(default_factory=dict, init=False)
    _unfit: dict[str, str] = field(default_factory=dict, init=False)
    """Nodes that were excluded or are not healthy: whoever started them starts no others."""
    _ranks: dict[str, int] = field(default_factory=dict, init=False)
    # the cycle that forms
    _awaited: set[str] = field(default_factory=set, init=False)
    _earliest_at: float = field(default=0.0, init=False)
    _join_by: float = field(default=0.0, init=False)
    _last_call_until: float | None = field(default=None, init=False)
    _form_at: float | None = field(default=None, init=False)
    _why_not: str = field(default="", init=False)
    _hopeless: bool = field(default=False, init=False)
    _shut_down: str | None = field(default=None, init=False)
    """A rank asked for that: why; survivors of the cycle may still say more."""
    _unheard: dict[str, float] = field(default_factory=dict, init=False)
    _said: set[str] = field(default_factory=set, init=False)
    # whether there is another one, after a failure
    _cause: str | None = field(default=None, init=False)
    """Of the failure that is still to be decided about."""
    _is_spent: bool = field(default=False, init=False)
    """No restart was left for it."""
    _read_by: float | None = field(default=None, init=False)
    _futile: str | None = field(default=None, init=False)
    """Why another cycle would be no use, as far as is known of the last one."""
    # what those who wait are told
    _waits: str = field(default="", init=False)
    _told: tuple[object, ...] | None = field(default=None, init=False)
    _tell_at: float | None = field(default=None, init=False)
    # the cycle that runs
    _states: dict[str, NodeState | None] = field(default_factory=dict, init=False)
    _tally: Counter[NodeState | None] = field(default_factory=Counter, init=False)
    _started_at: float = field(default=0.0, init=False)
    _may_restart: bool = field(default=True, init=False)
    _grow_at: float | None = field(default=None, init=False)
    _newcomer: str = field(default="", init=False)
    _newcomers: int = field(default=0, init=False)
    # the job
    _close_by: float = field(default=0.0, init=False)
    _beat_at: float = field(default=0.0, init=False)
    _effects: list[Effect] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        rules = self.rules
        self._restarts = Restarts(
            most=rules.max_restarts,
            period_s=rules.restarts_period_s,
            backoff_s=rules.backoff_s,
            backoff_max_s=rules.backoff_max_s,
            max_no_progress_cycles=rules.max_no_progress_cycles,
            min_progress_iterations=rules.min_progress_iterations,
        )

    @property
    def restarts_used(self) -> int:
        """Restarts after a failure, since the job began."""
        return self._restarts.used

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        if self.phase in (Phase.NEW, Phase.CLOSED):
            return None
        at = self._beat_at
        if self._tell_at is not None:
            at = min(at, self._tell_at)
        if self._heard:
            at = min(at, next(iter(self._heard.values())) + self.pace.silence_s)
        if self.phase is Phase.FORMING:
            at = min(at, self._join_by)
            if self._form_at is not None:
                at = min(at, self._form_at)
        elif self.phase is Phase.RUNNING and self._grow_at is not None:
            at = min(at, self._grow_at)
        elif self.phase is Phase.ENDING:
            at = min(at, self._close_by)
        return None if math.isinf(at) else at

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about ``event``, in order."""
        self._effects = []
        if self.phase is Phase.CLOSED:
            return self._effects
        self._on_waking(now)
        match event:
            case Begin():
                self._begin(now)
            case Arrived(message):
                self._on_message(message, now)
            case IterationRead(iteration):
                self._on_iteration(iteration)
            case Abdicate(why):
                cause = f"the launcher that led the job left: {why}"
                self._end(Outcome.FAILED, Ending.LEADER_LOST.code(), cause, now)
            case TimePassed():
                pass
            case _:
                assert_never(event)
        self._on_time(now)
        return self._effects

    def _on_waking(self, now: float) -> None:
        """Who was silent for so long leads nobody: every member has fenced itself meanwhile.

        Its own launcher does so, too, unless a last word of ours was still on its way to it.
        """
        silent_s = now - (self._beat_at - self.pace.beat_s)
        if self.phase in (Phase.FORMING, Phase.RUNNING) and silent_s > self.pace.fence_s:
            cause = f"the launcher that led the job was asleep for {silent_s:.1f} s"
            self._end(Outcome.FAILED, Ending.LEADER_LOST.code(), cause, now)

    # ------------------------------------------------------------ who is there
    def _on_message(self, message: Message, now: float) -> None:
        node = message.node
        if node in self._gone:
            self._on_word_from_the_gone(message)
            return
        if node in self._alive:
            self._heard[node] = now
            self._heard.move_to_end(node)
        elif isinstance(message, Leave):
            # It was never fit to join, or overtook its join, which must not count then.
            self._gone[node] = message.why.value
            self._told_gone.add(node)
            self._note_unfit(message)
            if self.rules.is_of_one:
                self._end_without_its_node(message, now)
            return
        elif not isinstance(message, Join):
            return  # overtook its sender's join, or its sender is nobody
        match message:
            case Join():
                self._on_join(message, now)
            case State():
                self._on_state(message, now)
            case Leave(why=why, text=text):
                self._note_unfit(message)
                if self.rules.is_of_one:
                    self._end_without_its_node(message, now)
                self._lose(node, f"{why.value}: {text}" if text else why.value, now, told=True)
            case Control(action=action):
                if action == SHUTDOWN:
                    self._note_shut_down(message)
                    self._awaited.discard(node)  # it does not join again
                    if self.phase is not Phase.FORMING:
                        self._end_shut_down(now)
            case Beat():
                pass
            case _:
                assert_never(message)

    def _note_shut_down(self, control: Control) -> None:
        rank, who = control.rank, self._shown(control.node)
        who = f"rank {rank} on {who}" if rank >= 0 else who
        self._shut_down = f"{who} asked to shut the workload down: {control.text}"

    def _end_without_its_node(self, leave: Leave, now: float) -> None:
        """A job that can have no other node is over when its node leaves."""
        ending = _ENDS_WITH[leave.why]
        if ending is None:
            return
        if self._cause is not None and leave.why is LeaveWhy.EXCLUDED:
            ending = self._why_over(excluded=True) or ending
        code = ending.code(self.rules.no_restart_exit_code)
        self._end(Outcome.FAILED, code, leave.text or leave.why.value, now)

    def _shown(self, node: str) -> str:
        """Host and pid of a launcher, for people; its id where it never joined."""
        return str(self._alive.get(node, node))

    def _note_unfit(self, message: Leave) -> None:
        if message.why in (LeaveWhy.EXCLUDED, LeaveWhy.UNHEALTHY):
            text = f" ({message.text})" if message.text else ""
            self._unfit[message.node] = f"{self._shown(message.node)}: {message.why.value}{text}"

    def _on_word_from_the_gone(self, message: Message) -> None:
        """It lives after all, but its place may be another's by now: tell it, once."""
        if message.node not in self._told_gone and not isinstance(message, Leave):
            self._told_gone.add(message.node)
            self._publish(Refused(message.node, self._gone[message.node], self.term))

    def _on_join(self, join: Join, now: float) -> None:
        node = join.node
        known = self._alive.get(node)
        if known is None:
            self._joined += 1
            self._heard[node] = self._joined_at[node] = now
        self._alive[node] = _node_desc(join, known.joined if known else self._joined)
        self._ports[node] = join.desc.port
        if self.phase is Phase.ENDING:
            if known is None and self.end is not None:
                self._publish(self.end)  # it may have started to read after the first
            return
        if self.phase is Phase.RUNNING and node in self._states:
            return  # a late copy: whoever is active joins again only after a Stop
        if node in self._awaited:
            if join.have_cycle < self.cycle:
                return  # a late copy of its join for an earlier cycle
            self._awaited.discard(node)
        self._ready[node] = None
        self._hopeless = False
        if self.phase is Phase.RUNNING and known is None:
            self._newcomers += 1
            self._consider_growing(node)

    def _lose(self, node: str, why: str, now: float, *, told: bool) -> None:
        """``node`` is out of the job, by its own word (``told``) or by its silence."""
        lost = f"{self._shown(node)} {'left the job' if told else 'was lost'} ({why})"
        del self._alive[node], self._heard[node], self._joined_at[node], self._ports[node]
        self._ready.pop(node, None)
        self._hopeless = False
        self._awaited.discard(node)
        self._gone[node] = why
        if told:
            self._told_gone.add(node)
        if not (told and why == LeaveWhy.FINISHED.value) and not self.rules.is_of_one:
            self._note("warning", lost)
        if self.phase is Phase.RUNNING and node in self._states:
            if self._states[node] is NodeState.SUCCEEDED:
                return  # its work in this cycle is done
            self._set_state(node, None)
            self._judge(lost, node, now)

    # ------------------------------------------------------------ a cycle forms
    def _begin(self, now: float) -> None:
        self.phase = Phase.FORMING
        self._beat_at = now
        self._open(now)

    def _open(self, earliest_at: float) -> None:
        self._earliest_at = earliest_at
        self._join_by = earliest_at + self.pace.join_timeout_s
        self._last_call_until = None
        self._why_not = ""
        self._hopeless = False
        self._forget_news()

    def _try_to_form(self, now: float) -> None:
        """Form the round if nothing is missing, or say when it can be."""
        self._form_at = None
        late = now >= self._join_by
        if late:
            for node in sorted(self._awaited):
                limit = f"{self.pace.join_timeout_s:g} s"
                self._refuse(node, f"not back {limit} after the end of cycle {self.cycle}", now)
        if self._awaited or self._must_wait_to_decide(now):
            return
        self._decide(now)
        if self.phase is not Phase.FORMING:
            return
        if self._is_too_small_for_good() and not late:
            self._form_at = self._nobody_else_at
            if now >= self._form_at:
                self._end_without_nodes(now)
            return
        if len(self._ready) < self.rules.nodes.min_nodes:
            self._last_call_until = None
        else:
            if self._last_call_until is None:
                first = self.cycle < 0
                self._last_call_until = now + (
                    self.rules.first_last_call_s if first else self.rules.later_last_call_s
                )
            at = self._earliest_at
            if len(self._ready) < self.rules.nodes.wanted:
                at = max(at, self._last_call_until)
            if now < at and not late:
                self._form_at = at
                return
            self._form(now)
        if late and self.phase is Phase.FORMING:
            cause = (
                f"{len(self._ready)} of {self.rules.nodes.min_nodes} nodes joined within "
                f"{self.pace.join_timeout_s:g} s ({self._who_is_here()})"
            )
            if self._unfit:
                cause = f"{cause}; not fit: {self._who_is_unfit()}"
            cause = f"{cause}: {self._why_not}" if self._why_not else cause
            self._end(Outcome.FAILED, Ending.TOO_FEW.code(), cause, now)

    def _must_wait_to_decide(self, now: float) -> bool:
        """Whether it matters how far the checkpoints are, and that is still being read."""
        if self._cause is None or not self._may_restart or self._read_by is None:
            return False
        if now >= self._read_by:
            return False
        self._form_at = self._read_by
        return True

    def _decide(self, now: float) -> None:
        """All survivors are back: is there another cycle?"""
        if self._cause is None:
            if self._shut_down is not None:
                self._end_shut_down(now)
            return
        cause = self._cause
        over = self._why_over()
        self._cause = self._read_by = None
        if over is Ending.SHUT_DOWN:
            self._end_shut_down(now)
        elif over is not None:
            self._end_failed(over, cause, self._why_no_restart(over), now)

    def _why_over(self, *, excluded: bool = False) -> Ending | None:
        """What becomes of the job after the cycle that failed; once for each."""
        self._futile = self._restarts.why_futile()
        return why_over(
            no_use=not self._may_restart,
            no_progress=self._futile is not None,
            shut_down=self._shut_down is not None,
            spent=self._is_spent,
            excluded=excluded,
        )

    def _why_no_restart(self, over: Ending) -> str:
        rules = self.rules
        if over is Ending.NO_USE:
            code = rules.no_restart_exit_code
            return f"exit code {code} asks for no restart (--ft-no-restart-exit-code)"
        if over is Ending.NO_PROGRESS and self._futile is not None:
            return self._futile
        if over is Ending.SHUT_DOWN:
            return f"a rank has asked for {SHUTDOWN}"
        return f"no restart is left (--max-restarts {rules.max_restarts})"

    def _end_failed(self, over: Ending, cause: str, why: str, now: float) -> None:
        own = over is Ending.FAILED and self.rules.restart is RestartPolicy.MIN_HEALTHY
        code = None if own else over.code(self.rules.no_restart_exit_code)
        self._end(Outcome.FAILED, code, cause, now, why)

    def _is_too_small_for_good(self) -> bool:
        """Whether MIN can't be reached any more, as nodes of the job's were found not to be fit.

        Places of nodes that were lost may be filled again; so may those that were never filled.
        """
        nodes, unfit = self.rules.nodes, len(self._unfit)
        may_come = (self.rules.launchers or nodes.max_nodes) - unfit
        return bool(unfit) and max(len(self._alive), may_come) < nodes.min_nodes

    @property
    def _nobody_else_at(self) -> float:
        """When nobody is expected who is not in the scheduler's count: a spare started by hand."""
        is_counted = self.cycle >= 0 or self.rules.launchers is not None
        return self._earliest_at + (0.0 if is_counted else self.rules.first_last_call_s)

    def _end_without_nodes(self, now: float) -> None:
        here, least = len(self._alive), self.rules.nodes.min_nodes
        cause = (
            f"{here} of {least} nodes {'is' if here == 1 else 'are'} left, and no other can take a "
            f"place (--nnodes {self.rules.nodes.nnodes}): {self._who_is_unfit()}"
        )
        self._end(Outcome.FAILED, Ending.NO_NODE_LEFT.code(), cause, now)

    def _who_is_unfit(self) -> str:
        """The first few, each with the reason, and how many more there are."""
        shown = "; ".join(list(self._unfit.values())[:_UNFIT_NAMED])
        more = len(self._unfit) - _UNFIT_NAMED
        return f"{shown}; and {more} more" if more > 0 else shown

    def _end_shut_down(self, now: float) -> None:
        assert self._shut_down is not None
        self._end(Outcome.SHUT_DOWN, Ending.SHUT_DOWN.code(), self._shut_down, now)

    def _form(self, now: float) -> None:
        assignment = self._assign(now)
        if assignment is None:
            return
        self.cycle += 1
        self.phase = Phase.RUNNING
        places = []
        for place in assignment.places:
            del self._ready[place.node]
            addr = self._alive[place.node].addr
            places.append(Place(place.node, place.group_rank, place.nproc, place.rank_offset, addr))
        self._ranks = assignment.group_ranks
        self._states = dict.fromkeys(self._ranks, NodeState.HEALTHY)
        self._tally = Counter({NodeState.HEALTHY: len(places)})
        self._may_restart = True
        self._started_at = now
        self._grow_at = None
        self._newcomers = 0
        self._forget_news()
        self._restarts.cycle_started(now)
        self._publish(
            Round(
                cycle=self.cycle,
                places=tuple(places),
                spares=assignment.spares,
                world_size=assignment.world_size,
                master_addr=places[0].addr,
                master_port=self._ports[places[0].node],
                restarts_used=self.restarts_used,
                term=self.term,
            )
        )
        if self.cycle == 0 and self.rules.reads_iterations:
            self._effects.append(ReadIteration(first=True))
        for note in assignment.notes:
            if note not in self._said:
                self._said.add(note)
                self._note("info", note)

    def _assign(self, now: float) -> Assignment | None:
        """Ranks for those who are ready, less those who can't have any; None: not now."""
        while not self._hopeless and not self._is_a_word_missing():
            ready = [self._alive[node] for node in self._ready]
            try:
                return assign(ready, self.rules.nodes, self._ranks)
            except AssignmentError as error:
                self._why_not = str(error)
                self._unheard = {}
                refused = error.nodes
                if error.problem == "duplicate infra rank":
                    refused = self._later_claims(error.nodes)
                for node in refused:
                    self._refuse(node, str(error), now)
                self._hopeless = not refused and not self._unheard
        return None

    def _later_claims(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Of nodes that claim one infra rank, in the order of joining, all but the first.

        Unless the first has not spoken since the later one joined: then it may be what a launcher
        that was started again has left of itself, and its next beat, or its silence, will tell. (A
        message may be under way for one ``beat_s``, so that long after is not since.)
        """
        owners: dict[int | None, str] = {}
        later = []
        for node in nodes:
            owner = owners.setdefault(self._alive[node].infra_rank, node)
            if owner == node:
                continue
            since = self._joined_at[node] + self.pace.beat_s
            if self._heard[owner] > since:
                later.append(node)
            else:
                self._unheard[owner] = since
        return tuple(later)

    def _is_a_word_missing(self) -> bool:
        """Whether someone must speak, or fall silent, before the round can be formed."""
        return any(self._heard.get(node, at + 1) <= at for node, at in self._unheard.items())

    def _refuse(self, node: str, why: str, now: float) -> None:
        self._publish(Refused(node, why, self.term))
        self._lose(node, why, now, told=True)

    # ------------------------------------------------------------ what those who wait are told
    def _who_is_here(self) -> str:
        return name_some([self._alive[node] for node in self._ready]) or "nobody"

    def _forget_news(self) -> None:
        self._waits = ""
        self._told = self._tell_at = None

    def _news(self) -> tuple[object, ...] | None:
        """What those who wait should be told of when it changes; None: nobody has to be told."""
        if self.rules.is_of_one:
            return (self._form_at,) if self._is_pausing() else None
        if self.phase is Phase.FORMING:
            return len(self._ready), len(self._awaited), self._why_not, self._last_call_until
        return (len(self._ready),) if self.phase is Phase.RUNNING and self._newcomers else None

    def _gather_news(self, now: float) -> None:
        news = self._news()
        if news is None or news == self._told:
            self._tell_at = None
        elif self._tell_at is None:
            self._tell_at = now + NEWS_S
        elif now >= self._tell_at:
            self._told, self._tell_at = news, None
            self._waits = self._what_is_waited_for(now)
            self._publish(LeaderBeat(self._waits, self.term))

    def _is_pausing(self) -> bool:
        """The next cycle could begin, but for the pause after a failure."""
        return (
            self.phase is Phase.FORMING
            and self._cause is None
            and self._form_at is not None
            and self._form_at <= self._earliest_at
        )

    def _what_is_waited_for(self, now: float) -> str:
        nodes, here = self.rules.nodes, len(self._ready)
        backoff = f"(--ft-restart-backoff {self.rules.backoff_s:g})"
        if self.rules.is_of_one and self._form_at is not None:
            return f"the next cycle starts in {self._form_at - now:.0f} s {backoff}"
        who = self._who_is_here()
        there = f"{here} of {nodes.nnodes} nodes {'is' if here == 1 else 'are'} here ({who})"
        if self.phase is Phase.RUNNING:
            on = len(self._states)
            text = f"cycle {self.cycle} runs on {on} node{'s' if on > 1 else ''}; waiting for a "
            text += f"place: {who}"
            if self._grow_at is None:
                return text
            grows_s = max(0.0, self._grow_at - now)
            return f"{text}; it will be stopped in {grows_s:.0f} s, and go on with more nodes"
        until = self._nobody_else_at if self._is_too_small_for_good() else self._join_by
        limit = f"up to {max(0.0, until - now):.0f} s"
        option = f"--rdzv-conf join_timeout={self.pace.join_timeout_s:g}"
        if self._awaited:
            late = name_some([self._alive[node] for node in self._awaited])
            return (
                f"{there}; waiting {limit} for {late} to end the ranks of cycle {self.cycle} "
                f"({option})"
            )
        if here < nodes.min_nodes:
            more = nodes.min_nodes - here
            return f"{there}; waiting {limit} for {more} more (--nnodes {nodes.nnodes}; {option})"
        if self._form_at is None:
            return f"{there}, and no cycle can be formed of them: {self._why_not}; waiting {limit}"
        start = f"{there}; starting in {self._form_at - now:.0f} s"
        if self._is_pausing():
            return f"{start}, after a pause {backoff}"
        last_call_s = (
            self.rules.first_last_call_s if self.cycle < 0 else self.rules.later_last_call_s
        )
        return (
            f"{start}, or as soon as there are {nodes.wanted} "
            f"(--rdzv-conf last_call_timeout={last_call_s:g})"
        )

    # ------------------------------------------------------------ a cycle runs
    def _on_state(self, message: State, now: float) -> None:
        node, state = message.node, message.state
        known = self._states.get(node)
        if message.cycle != self.cycle or known is None:
            return  # of another cycle, or not in this one
        self._may_restart = self._may_restart and message.may_restart
        if message.asks is not None and message.asks.action == SHUTDOWN:
            self._note_shut_down(message.asks)
        if self.phase is Phase.FORMING and self._cause is None and not message.may_restart:
            # Who failed first may be heard of last.
            why = self._why_no_restart(Ending.NO_USE)
            self._end_failed(Ending.NO_USE, message.cause, why, now)
        if self.phase is not Phase.RUNNING or _SEVERITY[state] <= _SEVERITY[known]:
            return  # decided, or overtaken by worse news
        self._set_state(node, state)
        self._judge(message.cause, node, now)

    def _set_state(self, node: str, state: NodeState | None) -> None:
        self._tally[self._states[node]] -= 1
        self._tally[state] += 1
        self._states[node] = state

    def _judge(self, cause: str, node: str, now: float) -> None:
        """One node's state changed: does the cycle go on?"""
        succeeded = self._tally[NodeState.SUCCEEDED]
        leaving = self._tally[NodeState.LEAVING]
        running = self._tally[NodeState.HEALTHY] + leaving
        if leaving and leaving + self._tally[None] == len(self._states):
            return  # the whole job was told to end: let those who still save their work finish
        if self.rules.survives_ranks:
            running += self._tally[NodeState.UNHEALTHY]  # which is: ranks failed, and others run
        if self.rules.restart is RestartPolicy.ANY_FAILED or self.rules.is_of_one:
            if succeeded == len(self._states):
                self._end(Outcome.SUCCEEDED, Ending.SUCCEEDED.code(), "all ranks succeeded", now)
            elif succeeded + running < len(self._states):
                self._fail(cause, node, now)
        elif running == 0 and succeeded >= self.rules.nodes.min_nodes:
            cause = f"{count(succeeded, 'node')} succeeded"
            self._end(Outcome.SUCCEEDED, Ending.SUCCEEDED.code(), cause, now)
        elif running + succeeded < self.rules.nodes.min_nodes:
            cause = (
                f"{count(running + succeeded, 'node')} healthy or succeeded, at least "
                f"{self.rules.nodes.min_nodes} needed; last: {cause}"
            )
            self._fail(cause, node, now)

    def _fail(self, cause: str, node: str, now: float) -> None:
        """The cycle has failed. Spend a restart, if one is left and may be wanted."""
        self._cause = cause
        wants_one = self._may_restart and self._shut_down is None
        wait_s = self._restarts.take(now) if wants_one else None
        self._is_spent = wait_s is None
        over = why_over(
            no_use=not self._may_restart,
            shut_down=self._shut_down is not None,
            spent=self._is_spent,
        )
        no_restart = "" if over is None else self._why_no_restart(over)
        self._stop(cause, node, now + (wait_s or 0.0), no_restart)
        if self.rules.reads_iterations and node in self._alive:
            self._read_by = now + READ_LIMIT_S
            self._effects.append(ReadIteration(first=False))

    def _on_iteration(self, iteration: int | None) -> None:
        if self._cause is None:
            if iteration is not None and self.cycle == 0:
                self._restarts.begins_at(iteration)
            return
        self._read_by = None
        if iteration is not None:
            self._restarts.reached(iteration)

    def _stop(self, cause: str, node: str, earliest_at: float, no_restart: str = "") -> None:
        self.phase = Phase.FORMING
        left = self._restarts.left
        self._publish(Stop(self.cycle, cause, node, left, no_restart, self.term))
        self._awaited = {node for node in self._states if node in self._alive}
        self._open(earliest_at)

    def _consider_growing(self, newcomer: str) -> None:
        if not self.rules.grow or self.rules.restart is not RestartPolicy.ANY_FAILED:
            return
        if len(self._states) < self.rules.nodes.wanted:
            self._newcomer = newcomer
            self._grow_at = self._started_at + self.rules.grow_cooldown_s

    def _grow(self, now: float) -> None:
        """Stop for the newcomers if there will be more ranks with them, and all is well."""
        self._grow_at = None
        if self._tally[NodeState.HEALTHY] < len(self._states) or not self._ready:
            return
        everyone = [self._alive[node] for node in (*self._states, *self._ready)]
        try:
            after = len(assign(everyone, self.rules.nodes, self._ranks).places)
        except AssignmentError:
            return  # said when it matters: when the next cycle forms
        if after > len(self._states):
            grown = f"from {count(len(self._states), 'node')} to {after}"
            cause = f"{self._newcomer} joined: growing {grown}"
            self._stop(cause, self._newcomer, earliest_at=now)

    # ------------------------------------------------------------ the end, and time
    def _end(
        self, outcome: Outcome, exit_code: int | None, cause: str, now: float, why: str = ""
    ) -> None:
        if self.phase is Phase.ENDING:
            return
        self.phase = Phase.ENDING
        self._close_by = now + self.rules.linger_s
        self.end = End(outcome, exit_code, cause, why, self.term)
        self._publish(self.end)

    def _on_time(self, now: float) -> None:
        while self._heard:
            node, heard_at = next(iter(self._heard.items()))
            if now < heard_at + self.pace.silence_s:
                break
            self._lose(node, f"silent for {now - heard_at:.1f} s", now, told=False)
        if self.phase is Phase.RUNNING and self._grow_at is not None and now >= self._grow_at:
            self._grow(now)
        if self.phase is Phase.FORMING:
            self._try_to_form(now)
        if self.phase is Phase.ENDING and (not self._alive or now >= self._close_by):
            self.phase = Phase.CLOSED
            self._effects.append(Close(tuple(self._alive)))
            return
        self._gather_news(now)
        if any(isinstance(effect, Publish) for effect in self._effects):
            self._beat_at = now + self.pace.beat_s
        elif self.phase is not Phase.NEW and now >= self._beat_at:
            self._publish(LeaderBeat(self._waits, self.term))
            self._beat_at = now + self.pace.beat_s

    def _publish(self, decision: Decision) -> None:
        self._effects.append(Publish(decision))

    def _note(self, level: str, text: str) -> None:
        self._effects.append(Note(level, text))


_ENDS_WITH = {
    LeaveWhy.EXCLUDED: Ending.EXCLUDED,
    LeaveWhy.UNHEALTHY: Ending.NO_NODE_LEFT,
    LeaveWhy.SIGNALLED: Ending.SIGNALLED,
    LeaveWhy.STUCK: Ending.STUCK,
    LeaveWhy.FENCED: Ending.LEADER_LOST,
    LeaveWhy.FINISHED: None,
}
"""How a job of one node ends when that leaves; None: it is over already."""
_SEVERITY = {
    NodeState.HEALTHY: 0,
    NodeState.LEAVING: 1,
    NodeState.UNHEALTHY: 2,
    NodeState.FAILED: 3,
    NodeState.SUCCEEDED: 4,
}
"""States of a node only ever get worse within a cycle, except that all may end well."""


def _node_desc(join: Join, joined: int) -> NodeDesc:
    desc = join.desc
    return NodeDesc(
        id=join.node,
        addr=desc.addr,
        pid=desc.pid,
        nproc=desc.nproc,
        joined=joined,
        hostname=desc.hostname,
        infra_rank=desc.infra_rank,
        infra_is_place=desc.infra_is_place,
        domain=desc.domain,
    )
