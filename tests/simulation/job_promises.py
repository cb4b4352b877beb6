"""What must hold in each job, checked at every step of its simulation.

- R-1: one round per cycle; within it ranks 0 ... n-1 without holes, one owner each, and all owners
  start what the round says. No ranks of a cycle start while ranks of an older one run, on any node
  that can keep to it (one whose launcher gets no processor, which is heard in one direction only,
  which is cut off twice, or while it ends on a signal, or whose ranks cannot be killed, can't). A
  node that was suspended, ranks and all, has until it has asked the leader.
- R-2: after a Stop, every survivor that can be heard is in the next round, or a spare, or has left,
  and the round or the end comes in bounded time. Nobody who can be heard is called gone.
- R-3: a launcher that was started for another job is in no round, neither with ranks nor as a
  spare, and never says that it succeeded.
- B-1: restarts never exceed the budget.
- L-1: no leader decides after one of a later term has. L-2: two leaders never have a lease.
- K-1: nobody leaves while its ranks run, unless they cannot be killed; only living ranks are
  signalled, and nothing is swept or checked beside them.
- K-2: no failure of a node is told while a monitor takes evidence of another of its ranks. No cycle
  is stopped while an incident is open; each is judged in time, with evidence of every rank, or the
  reason why not; that of a node that can be heard is there. (Of the ranks of one node, and of its
  monitors: simulated_monitors.py.)
- What a machine has decided is passed on before it is told anything else.
- The job ends the same for all, for a reason that is true, by :attr:`Scenario.over_by`.
- No machine asks to be woken in the past (it would spin).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from holdfast.base.pure.rank_sets import ranks_of
from holdfast.job.pure.cycles import JobPhase
from holdfast.job.pure.exit_codes import Ending
from holdfast.job.pure.membership import (
    Decision,
    End,
    JobOutcome,
    Judged,
    LeaderBeat,
    NodeRefused,
    OpenIncident,
    Resigned,
    Round,
    StopCycle,
    StopWhy,
    elector,
)
from holdfast.job.pure.rules import RestartPolicy
from holdfast.job.pure.succession_messages import Leads
from holdfast.job.pure.timing import VERDICT_SHARE
from holdfast.job.pure.votes import is_majority
from holdfast.node.pure.launcher import LauncherEnd, LeaveProcess
from holdfast.testing.clock import VirtualClock
from tests.simulation import describe
from tests.simulation.scenario import Scenario
from tests.simulation.simulated_node import SimulatedNode

_QUICK_S = 0.02
"""On a network with longer ways evidence may come too late."""


class JobPromises:
    """Of one job.

    Args:
        scenario: The job.
        clock: Of the simulation.
        launchers: The last of each host.
        by_node: All, by the name of their node.
        check: Called with whether something holds, and what is wrong otherwise.

    Attributes:
        rounds: All so far.
        end: How the leader ended the job; None: it has not.
        open_since: When the job began, or the last cycle was stopped.
        running: Nodes whose ranks run, by term and cycle; those that can keep to R-1.
    """

    def __init__(
        self,
        scenario: Scenario,
        clock: VirtualClock,
        launchers: Mapping[int, SimulatedNode],
        by_node: Mapping[str, SimulatedNode],
        check: Callable[[bool, str], None],
    ) -> None:
        self._scenario = scenario
        self._clock = clock
        self._launchers = launchers
        self._by_node = by_node
        self._check = check
        self.rounds: list[Round] = []
        self._forgotten: list[Round] = []
        """That none who lived knew of when a leader was lost; one may come back."""
        self.end: End | None = None
        self._ends: list[End] = []
        self._ended_at = math.inf
        """When the first of them came."""
        self._home: SimulatedNode | None = None
        """Of the last decision."""
        self._was_taken_over = False
        """And no round has been formed since."""
        self._terms: set[int] = {0}
        self._acts_in = 0
        """The term of the last leader that has decided anything."""
        self.open_since = 0.0
        self.running: Counter[tuple[int, int]] = Counter()
        self._stopped = True
        self._looked_at: float | None = None
        """When the open incident was opened."""
        self._growths = 0
        self._succeeded: set[tuple[int, str]] = set()
        self._failed: set[tuple[int, str]] = set()

    @property
    def has_succeeded(self) -> bool:
        """Whether a leader has ended the job so."""
        return any(end.outcome is JobOutcome.SUCCEEDED for end in self._ends)

    @property
    def has_lost_majority(self) -> bool:
        """Most launchers with a vote are dead, also if most hosts live: too many died at a time.

        By the newest round that a living launcher has. One that was started anew has no vote.
        """
        living = [one for one in self._by_node.values() if one.alive]
        votes = {elector(one.core.member.node) for one in living}
        known = [one.core.succession._following for one in living if one.core.succession]
        rounds = {
            it.round.version: it.electorates or [it.round.electorate] for it in known if it.round
        }
        electorates = rounds[max(rounds)] if rounds else []
        return not all(is_majority(votes, electorate) for electorate in electorates)

    # ------------------------------------------------------------ what happens
    def note_failure(self, one: SimulatedNode) -> None:
        """One of its ranks fails, if any runs: its cycle may be stopped for that."""
        if one.running is not None:
            self._failed.add((one.running, one.name))

    def ranks_gone(self, one: SimulatedNode) -> None:
        """No rank of the node is alive any more."""
        cycle = one.running
        if cycle is None:
            return
        if one.lawful and not one.dozes:
            self.running[one.running_term, cycle] -= 1
        one.dozes = False
        ended_well = not one.failing or (self._scenario.rules.survives_ranks and one.has_completed)
        if one.alive and ended_well and not one.told_to_stop:
            self._succeeded.add((cycle, one.name))

    def break_rules(self, one: SimulatedNode) -> None:
        """From now on this one may overlap with others through no fault of the machines."""
        if one.lawful and one.running is not None and not one.dozes:
            self.running[one.running_term, one.running] -= 1
        one.lawful = False

    def falls_asleep(self, one: SimulatedNode) -> None:
        """Its ranks do nothing, until it wakes and finds out whether they may."""
        if one.lawful and one.running is not None and not one.dozes:
            self.running[one.running_term, one.running] -= 1
            one.dozes = True

    def is_awake(self, one: SimulatedNode, since: float) -> None:
        """It is, for as long as it may take to find out that others have gone on without it."""
        if one.clock.asleep_until > since or not one.dozes:
            return
        one.dozes = False
        if one.lawful and one.running is not None:
            newest = self.rounds[-1].cycle
            self._check(
                one.running == newest and one.running_term == self.rounds[-1].term,
                f"R-1: ranks of cycle {one.running} of {one.name} outlive its sleep by "
                f"{self._clock.now - since:.1f} s, beside cycle {newest}",
            )
            self.running[one.running_term, one.running] += 1

    # ------------------------------------------------------------ decisions
    def check_vote(self, one: SimulatedNode, target: SimulatedNode) -> None:
        """A launcher gives its vote to another one: it is not with a third."""
        bound_to, for_s = one.bound_to, self._clock.now - one.voted_at
        if bound_to is None or not bound_to.alive or bound_to.has_quit:
            return
        if self._scenario.store is None and for_s >= self._scenario.pace.fence_s - 0.001:
            return  # it has heard nothing since
        leader = bound_to.leader
        has_gone = leader is not None and leader.phase is JobPhase.CLOSED
        self._check(
            has_gone, f"L-1: {one.name} votes for {target.name}, and {bound_to.name} has its vote"
        )

    def check_takeover(self, one: SimulatedNode, leads: Leads) -> None:
        """A launcher leads: L-1."""
        self._check(leads.term not in self._terms, f"L-1: two leaders in term {leads.term}")
        self._terms.add(leads.term)
        if self._scenario.store is not None:
            for other in self._by_node.values():
                leader = other.leader
                is_there = other is not one and other.alive and not other.has_quit
                self._check(
                    not is_there or leader is None or leader.phase is JobPhase.CLOSED,
                    f"L-1: {one.name} leads, and {other.name} does",
                )

    def _check_leader(self, home: SimulatedNode) -> None:
        """It decides: L-1, L-2."""
        leader = home.leader
        if leader is None or self._scenario.rules.is_of_one:
            return
        self._check(
            leader.term >= self._acts_in,
            f"L-1: {home.name} decides in term {leader.term}, and another has in {self._acts_in}",
        )
        if leader.term == self._acts_in:
            return
        for other in self._by_node.values():
            rival = other.leader
            is_there = other is not home and other.alive and not other.has_quit
            if is_there and rival is not None and rival.phase is not JobPhase.CLOSED:
                is_idle = self._scenario.store is not None or rival.phase is JobPhase.ENDING
                is_idle = is_idle or not rival.lease.is_held(self._clock.now)
                self._check(is_idle, f"L-2: {home.name} decides, and {other.name} has a lease")
        self._acts_in = leader.term
        for other in self._by_node.values():
            if other.stuck:
                self.break_rules(other)  # as one that is cut off, and cannot end its ranks
        self.end, self._stopped, self._looked_at = None, True, None
        self._was_taken_over = True
        self.open_since = self._clock.now

    def check_decision(self, home: SimulatedNode, decision: Decision) -> None:
        """The leader says this to all."""
        if isinstance(decision, LeaderBeat) and not decision.lease_s:
            home.has_lapsed = True
        if isinstance(decision, LeaderBeat | Resigned):
            return
        leader = home.leader
        if leader is not None and leader.term < self._acts_in and decision != leader.end:
            has_ended = leader.phase is JobPhase.ENDING
            if has_ended and isinstance(decision, NodeRefused):
                return  # of a job that had ended for it before the other one led
        elif leader is not None and leader.term < self._acts_in and decision in self._ends:
            return  # once more, for a launcher that came late
        self._check_leader(home)
        self._home = home
        if self.end is not None:
            fine = decision == self.end or isinstance(decision, NodeRefused)
            self._check(fine, f"the job had ended, then: {describe.decision(decision)}")
            return
        match decision:
            case Round():
                self._check_round(decision)
            case StopCycle(cycle=cycle):
                self._check(
                    not self._stopped and cycle == self.rounds[-1].cycle,
                    f"stop of cycle {cycle}, which does not run",
                )
                self._check_cause(decision)
                self._check(self._looked_at is None, f"K-2: stop of cycle {cycle} in an incident")
                self._stopped = True
                self.open_since = self._clock.now
                self._growths += decision.why is StopWhy.GROWTH
                for launcher in self._launchers.values():
                    launcher.ops = 0
            case OpenIncident(cycle=cycle):
                runs = not self._stopped and cycle == self.rounds[-1].cycle
                self._check(runs and self._looked_at is None, "an incident too many")
                self._looked_at = self._clock.now
            case Judged():
                self._check_judged(decision)
            case End():
                self._check_verdict(decision)
                self.end = decision
                self._ends.append(decision)
                self._ended_at = min(self._ended_at, self._clock.now)
            case NodeRefused(node=node):
                launcher = self._by_node[node]
                heard = launcher.is_member and launcher.audible and launcher.lawful
                heard = heard and launcher.belongs and launcher.follows is home
                self._check(not heard, f"{node} is alive and can be heard, but was refused")

    def _check_judged(self, judged: Judged) -> None:
        home = self._home
        assert home is not None
        leader, opened_at, self._looked_at = home.leader, self._looked_at, None
        assert leader is not None
        assert opened_at is not None
        late_s = self._clock.now - opened_at - VERDICT_SHARE * self._scenario.rules.evidence_s
        is_held_up = not home.lawful or home.paused_until > opened_at
        self._check(late_s < 0.001 or is_held_up, f"an incident is judged {late_s:.3f} s late")
        known = leader.incidents
        missing = {rank for one in known.missing.values() for rank in ranks_of(one.ranks)}
        ranks = {*known.digests} | missing
        formed = self.rounds[judged.cycle]
        self._check(
            ranks == {*range(formed.world_size)} and all(it.why for it in known.missing.values()),
            "K-2: an incident says nothing of some ranks, and not why",
        )
        if self._scenario.network.longest_way_s > _QUICK_S:
            return
        for place in formed.places:
            one = self._by_node[place.node]
            excused = not (one.is_member and one.audible and one.lawful) or one.paused_until > 0
            self._check(
                excused or place.rank_offset not in missing,
                f"K-2: {one.name} can be heard, and its evidence is missing",
            )

    def _check_cause(self, stop: StopCycle) -> None:
        """The node that a cycle was stopped for has failed in it, or can't be heard, or is new."""
        cause = self._by_node[stop.node or ""]
        self._check(
            (stop.cycle, cause.name) in self._failed
            or not (cause.is_member and cause.audible and cause.lawful)
            or cause.signalled
            or cause.was_held_up
            or (self._home is not None and self._home.has_lapsed)
            or (stop.why is StopWhy.LEADER_SLEPT and self._has_slept())
            or self.rounds[-1].place_of(cause.name) is None,
            f"cycle {stop.cycle} was stopped for {cause.name}, where nothing happened",
        )

    def _has_slept(self) -> bool:
        return self._home is not None and self._home.paused_until > 0

    def _check_round(self, formed: Round) -> None:
        if formed.revision:
            newest = self.rounds[-1]
            same = formed.cycle == newest.cycle and formed.places == newest.places
            self._check(same and not self._stopped, "R-1: a revision changes the places")
            self._check_witness(formed)
            return
        if formed.again_for:
            self._check(
                not self._stopped and replace(formed, again_for="") == self.rounds[-1],
                "R-1: a round that does not run comes again",
            )
            return
        rules = self._scenario.rules
        names = [place.node for place in formed.places]
        if self._was_taken_over and formed.cycle < len(self.rounds):
            # The leader before has formed that, too, and none that lives knows of it.
            alive = sum(self.running.values())
            self._check(
                alive == 0, f"R-1: cycle {formed.cycle} again, and {alive} nodes have ranks"
            )
            self._forgotten = max(self.rounds, self._forgotten, key=len)[:]
            del self.rounds[formed.cycle :]
        elif len(self.rounds) < formed.cycle <= len(self._forgotten):
            self.rounds += self._forgotten[len(self.rounds) : formed.cycle]
        number = len(self.rounds)
        self._check(self._stopped, "R-1: a round while a cycle runs")
        self._check(formed.cycle == number, f"R-1: cycle {formed.cycle} follows {number - 1}")
        self._check(
            [place.group_rank for place in formed.places] == list(range(len(names)))
            and len({*names, *formed.spares}) == len(names) + len(formed.spares),
            "R-1: a group rank or a node twice, or a hole",
        )
        self._check_witness(formed)
        taken = [self._by_node[name] for name in (*names, *formed.spares)]
        self._check(
            all(one.belongs for one in taken), "R-3: a launcher of another job is in the round"
        )
        offset = 0
        for place in formed.places:
            self._check(place.rank_offset == offset, "R-1: global ranks overlap or have a hole")
            offset += place.nproc
        self._check(offset == formed.world_size, "the world size is wrong")
        self._check(
            rules.nodes.min_nodes <= len(names) <= rules.nodes.wanted, "too few or too many nodes"
        )
        exact = formed.restarts_used == number - self._growths
        self._check(
            (exact or len(self._terms) > 1)
            and (rules.restarts_period_s is not None or formed.restarts_used <= rules.max_restarts),
            f"B-1: {formed.restarts_used} restarts used of {rules.max_restarts}",
        )
        first = self._by_node[names[0]].core.member.desc
        self._check(formed.master_port == first.port, f"{names[0]} does not keep that port free")
        cause = formed.ended_by.cause if formed.ended_by is not None else ""
        self._check(cause != "SIGTERM", "a signal to a node is no cause of a failure")
        self._check_time_to_decide()
        if self.rounds and not self._was_taken_over:
            there = {*names, *formed.spares}
            for place in self.rounds[-1].places:
                launcher = self._by_node[place.node]
                survives = launcher.is_member and launcher.audible and launcher.lawful
                leaves = launcher.sick or launcher.signalled
                self._check(
                    not survives or place.node in there or leaves,
                    f"R-2: {place.node} survived cycle {number - 1} and is not in the next",
                )
        self._check_alone((formed.term, formed.cycle), "a round was formed")
        self.rounds.append(formed)
        self._stopped = self._was_taken_over = False

    def _check_witness(self, formed: Round) -> None:
        """A witness has a vote at most, and only where it makes no majority harder to reach."""
        others = [*formed.electorate - {elector(formed.witness)}]
        able = [it.node for it in formed.successors]
        self._check(
            not any(self._by_node[node].is_witness for node in (*others, *able)),
            "a witness has the part of a launcher",
        )
        if formed.witness:
            is_one = self._by_node[formed.witness].is_witness
            self._check(is_one and len(others) % 2 == 0, "a vote of a witness too many")

    def _check_time_to_decide(self) -> None:
        """R-2: a cycle that was stopped is followed by the next in bounded time."""
        rules, pace = self._scenario.rules, self._scenario.pace
        limit_s = pace.join_timeout_s + (rules.backoff_max_s if rules.backoff_s else 0.0)
        if self._was_taken_over:
            limit_s += pace.takeover_s
        took_s = self._clock.now - self.open_since
        home = self._home
        if home is None or (home.lawful and home.paused_until <= self.open_since):
            self._check(took_s <= limit_s + 0.001, f"R-2: undecided for {took_s:.1f} s")

    def _check_verdict(self, end: End) -> None:
        """The reason that the leader gives for the end is true."""
        rules = self._scenario.rules
        if self._stopped:
            self._check_time_to_decide()
        if self._was_taken_over:
            return
        if end.outcome is JobOutcome.SUCCEEDED:
            names = [place.node for place in self.rounds[-1].places]
            cycle = self.rounds[-1].cycle
            done = sum((cycle, name) in self._succeeded for name in names)
            needed = len(names)
            if rules.restart is RestartPolicy.MIN_HEALTHY:
                needed = rules.nodes.min_nodes
            self._check(done >= needed, f"{done} nodes succeeded, the job needs {needed}")
        elif end.over in (Ending.TOO_FEW.name, Ending.NO_NODE_LEFT.name):
            heard_by = self._clock.now - self._scenario.network.longest_way_s
            there = sum(
                launcher.is_member
                and launcher.belongs
                and not launcher.is_witness
                and launcher.joined_at < heard_by
                and launcher.lawful
                and launcher.audible
                and self._home is not None
                and launcher.follows is self._home
                and launcher.joined_at >= self._home.paused_until
                and launcher.running is None
                and not launcher.signalled
                for launcher in self._launchers.values()
            )
            least = rules.nodes.min_nodes
            self._check(there < least, f"gave up, though {there} of {least} nodes are waiting")
        elif end.over == Ending.FAILED.name and rules.restarts_period_s is None:
            leader = self._home.leader if self._home is not None else None
            used = 0 if leader is None else leader.restarts_used
            self._check(used == rules.max_restarts, f"gave up after {used} restarts")

    def start(self, launcher: SimulatedNode, cycle: int) -> None:
        """Its ranks start."""
        self._check(
            launcher.running is None,
            f"R-1: {launcher.name} starts cycle {cycle} while {launcher.running} runs",
        )
        self._check(cycle > launcher.last_started, f"R-1: {launcher.name} starts a cycle again")
        self._check(
            cycle < len(self.rounds),
            f"R-1: {launcher.name} starts cycle {cycle}, which nobody has formed",
        )
        place = launcher.core.node.place
        true_one = self.rounds[cycle]
        self._check(
            place is not None and true_one.places[place.group_rank].node == launcher.name,
            f"R-1: {launcher.name} takes a group rank of another",
        )
        if launcher.lawful:
            self._check_alone((launcher.running_term, cycle), f"{launcher.name} starts")
            self.running[launcher.running_term, cycle] += 1

    def _check_alone(self, cycle: tuple[int, int], what: str) -> None:
        """R-1 between nodes: no ranks of two cycles at a time."""
        for other, count in self.running.items():
            self._check(
                count == 0 or other == cycle,
                f"R-1: {what} in cycle {cycle}, ranks of cycle {other} run on {count} nodes",
            )

    def finish(self, launcher: SimulatedNode, finish: LeaveProcess) -> None:
        """It leaves the job."""
        self._check(
            launcher.running is None or launcher.stuck or finish.ended is LauncherEnd.STUCK,
            f"K-1: {launcher.name} leaves, and its ranks run",
        )
        if launcher.running is not None:
            self.break_rules(launcher)
        self._check(
            launcher.belongs or finish.ended is not LauncherEnd.SUCCEEDED,
            f"R-3: {launcher.name} is of another job, and says that it succeeded",
        )
        if self._ends and finish.ended in (LauncherEnd.SUCCEEDED, LauncherEnd.SHUT_DOWN):
            wanted = {
                JobOutcome.SUCCEEDED: LauncherEnd.SUCCEEDED,
                JobOutcome.SHUT_DOWN: LauncherEnd.SHUT_DOWN,
            }
            self._check(
                any(
                    finish.ended is wanted.get(end.outcome)
                    and (end.exit_code is None or finish.exit_code == end.exit_code)
                    for end in self._ends
                ),
                f"{launcher.name} ends otherwise than the job",
            )

    def check_cycles(self) -> None:
        """No cycle was stopped without a cause, and no launcher failed."""
        most = self._scenario.most_cycles
        if most is None:
            return
        cycles = len(self.rounds)
        self._check(cycles <= most, f"{cycles} cycles, and {most} have a cause")
        for one in self._by_node.values():
            code = one.core.finished.exit_code if one.core.finished is not None else 0
            slept = one.paused_until > self._ended_at
            self._check(code == 0 or slept, f"{one.name} exits with {code}")

    def check_over(self) -> None:
        """Nothing is left to happen."""
        for launcher in self._by_node.values():
            self._check(not launcher.is_member, f"{launcher.name} never comes to an end")
        self._check(not any(self.running.values()), "ranks outlive their launchers")
