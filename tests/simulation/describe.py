"""Messages, decisions and effects in the words of a transcript: short, and the same every time.

Of jobs: :func:`effect`; of calls of a wrapped function: :func:`of_rank`, :func:`of_guard`,
:func:`of_coordinator`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast.base.pure import kill_ladder
from holdfast.base.pure.common_events import Note
from holdfast.evidence.pure.evidence import RankDigest
from holdfast.evidence.pure.failure import signal_name
from holdfast.evidence.pure.rank_words import lacking
from holdfast.inplace.pure import coordinator, guard, messages, rank
from holdfast.inplace.pure.job_calls import Cause
from holdfast.job.pure.member_messages import StartRanks, WaitAsSpare
from holdfast.job.pure.membership import (
    Cadence,
    Complete,
    ControlAsked,
    Decision,
    Digests,
    End,
    Join,
    Judged,
    Keep,
    Kept,
    Leave,
    Message,
    Missed,
    NodeRefused,
    OpenIncident,
    Resigned,
    Round,
    SnapshotCosts,
    StateChanged,
    StopCycle,
    Suspect,
)
from holdfast.job.pure.succession_messages import (
    Approach,
    ClaimKey,
    Give,
    Leads,
    Release,
)
from holdfast.node.pure import node as ranks
from holdfast.node.pure import rank_life
from holdfast.node.pure.launcher import LeaveProcess, QuitProcess
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.node.pure.witness import WitnessLeaves
from holdfast.watch.pure import monitor_messages

_FEW = 8
"""How many places a line shows before it only counts them."""


def message(one: Message) -> str:
    """``join (has cycle 0)``, ``state UNHEALTHY in cycle 1: ...``."""
    match one:
        case Join(have_cycle=cycle):
            return "join" if cycle < 0 else f"join (has cycle {cycle})"
        case StateChanged(
            cycle=cycle, state=state, failure=failure, may_restart=may_restart, asks=asks
        ):
            more = f": {failure.cause}" if failure.cause else ""
            more += "" if may_restart else " (no restart)"
            more += f"; {message(asks)}" if asks is not None else ""
            return f"{state.value} in cycle {cycle}{more}"
        case Leave(why=why, text=text):
            return f"leave ({why.value}{': ' + text if text else ''})"
        case ControlAsked(action=action, rank=rank, text=text):
            return f"rank {rank} asks for {action} ({text})"
        case Suspect(cycle=cycle, rank=rank):
            return f"rank {rank} is overdue in cycle {cycle}"
        case SnapshotCosts(step=step, every=every):
            return f"snapshots of every {every}. step would do, at step {step}"
        case Missed(keep=keep, step=step, why=why):
            return f"is at step {step}, and has not kept {keep}{': ' + why if why else ''}"
        case Complete(snapshot=snapshot):
            return f"its peer has {snapshot}"
        case Digests(incident=incident, digests=digests):
            return f"evidence for incident {incident}: {_shown(digests)}"
        case _:
            return "beat"


def decision(one: Decision) -> str:
    """``cycle 1: n0 n2; spares n3; 2 restarts used``."""
    match one:
        case Round():
            shown = " ".join(place.node for place in one.places[:_FEW])
            more = f" and {len(one.places) - _FEW} more" if len(one.places) > _FEW else ""
            spares = f"; spares {' '.join(one.spares[:_FEW])}" if one.spares else ""
            if one.learners:
                spares += f" ({' '.join(one.learners[:_FEW])}: no vote yet)"
            spares += f"; witness {one.witness}" if one.witness else ""
            used = f"; {one.restarts_used} restarts used" if one.restarts_used else ""
            restore = one.beginning.restore if one.beginning is not None else None
            begins = f" from {restore.snapshot}" if restore is not None else ""
            return f"cycle {one.cycle}{begins}: {shown}{more}{spares}{used}"
        case Cadence(cycle, every, from_step):
            return f"snapshots of every {every}. step of cycle {cycle}, from {from_step} on"
        case Keep(cycle, step, kept):
            which = f"keep step {step}" if step else "how far is each node"
            return f"cycle {cycle}: {which}; {kept} is kept"
        case Kept(cycle, snapshot):
            return f"cycle {cycle}: {snapshot} is kept"
        case Resigned(why):
            return f"resigns: {why}"
        case StopCycle(cycle=cycle, cause=cause, restarts_left=left, no_restart=no_restart):
            return f"stop cycle {cycle}: {cause}; {no_restart or f'{left} restarts left'}"
        case End(outcome=outcome, exit_code=code, cause=cause, why=why):
            own = "own ranks decide the exit code" if code is None else f"exit code {code}"
            return f"end, {outcome.value}, {own}: {cause}{'; ' + why if why else ''}"
        case NodeRefused(node=node, why=why):
            return f"refused {node}: {why}"
        case OpenIncident(incident=incident, node=node, rank=rank):
            return f"incident {incident}, rank {rank} of {node} is overdue: look at all ranks"
        case Judged(incident=incident, without=without):
            return f"incident {incident} is judged{f', without {without}' if without else ''}"
        case _:
            return "beat"


def effect(one: Any) -> str:
    """What a launcher does; empty: nothing to write home about."""
    if isinstance(one, Message):
        return f"-> {message(one)}"
    if isinstance(one, Decision):
        return f"=> {decision(one)}"
    match one:
        case StartRanks(formed):
            return f"starts its ranks of cycle {formed.cycle}"
        case ranks.SignalRanks(local_ranks, kill_ladder.SIGKILL):
            return f"kills local {_ranks(local_ranks)}"
        case ranks.SignalRanks(local_ranks, signum):
            return f"signals local {_ranks(local_ranks)} with {signal_name(signum)}"
        case ranks.EndRank(local_rank=local_rank, problem=problem):
            return f"kills local rank {local_rank}, as its host is not healthy: {problem}"
        case rank_life.MonitorSaid(local_rank, monitor_messages.Overdue() as found):
            return f"its monitor finds local rank {local_rank} hung: {found}"
        case rank_life.MonitorSaid(local_rank, monitor_messages.Evidence()):
            return f"its monitor has taken evidence of local rank {local_rank}"
        case rank_life.MonitorSaid(local_rank, monitor_messages.Signalled(signal=signum)):
            return f"its monitor signals local rank {local_rank} with {signal_name(signum)}"
        case rank_life.ToMonitors(messages):
            return _to_monitors(messages)
        case IncidentOver(incident=incident, without=without):
            missing = f", without {without}" if without else ""
            tells = ", and notifies people" if one.notifies else ""
            shown = _shown(one.digests.values())
            return f"writes down incident {incident}: {shown}{missing}{tells}"
        case WaitAsSpare(cycle=cycle):
            return f"stands by in cycle {cycle}"
        case LeaveProcess():
            why = f" ({one.text})" if one.text else ""
            unused = f"; {one.never_ran} and never ran the script" if one.never_ran else ""
            return f"{one.how}{why}{unused}, exit code {one.exit_code}"
        case WitnessLeaves(code, text):
            return f"leaves as a witness ({text}), exit code {code}"
        case QuitProcess(exit_code=code):
            return f"exits with {code}"
        case Note(text=text):
            return f"({text})"
        case Approach(successor):
            return f"looks for {successor.node}"
        case Give(to, offer):
            return f"votes for {to} in term {offer.term}"
        case Release(nodes, term, asks):
            back = f"gives back the votes of {' '.join(nodes)}"
            return f"{back}, and asks for them in term {term}" if asks else back
        case ClaimKey(term, dead):
            return f"claims the key in term {term}; dead: {' '.join(dead)}"
        case Leads(term=term, offers=offers):
            return f"leads in term {term}, by {' '.join(offer.node for offer in offers)}"
    return ""


# ---------------------------------------------------------------- a call of a wrapped function
def of_rank(one: rank.Effect) -> str:
    """What a rank does; empty: it sends a message to its guard, or has nothing to show."""
    match one:
        case messages.HungAgain(text=text):
            return f"asks its guard to end it: {text}"
        case messages.AbortEpoch():
            return "aborts its collectives"
        case rank.Interrupt():
            return "interrupts its main thread"
    return ""


def of_guard(one: guard.Effect) -> str:
    """What the guard of a node does; empty: it passes a message on to its ranks, say."""
    match one:
        case guard.TellRank(number, messages.RankRefused(text=why) | messages.Exit(False, why)):
            return f"tells rank {number} to leave: {why}"
        case guard.TakeRankEvidence(number, why):
            return f"takes stacks of rank {number}: {why}"
        case guard.Signal(number, signals):
            return f"sends rank {number} {', '.join(map(signal_name, signals))}"
    return _up(one)


def of_coordinator(one: coordinator.Effect) -> str:
    """What the coordinator does; empty: it answers a beat."""
    match one:
        case coordinator.HangUp(node):
            return f"closes the connection to {node}"
        case coordinator.Tell(message=told):
            return _down(told)
    return _down(one)


def _up(one: guard.Effect) -> str:
    match one:
        case messages.JoinCall(rank):
            return f"-> rank {rank} is here"
        case messages.FaultReported():
            return f"-> {_causes([one.cause])}"
        case messages.Dead(rank, kind, text):
            return f"-> {_causes([Cause(rank, kind, text)])}; it is dead"
        case messages.RankLeaves(rank=rank, text=text):
            return f"-> rank {rank} leaves: {text}"
        case messages.Done(rank=rank):
            return f"-> rank {rank} is done"
        case messages.RanksPlaced(places=places):
            return f"-> places: {_ranks([place.rank for place in places])}"
        case messages.RanksReady(standings=standings):
            return f"-> ready: {_ranks([standing.rank for standing in standings])}"
    return ""


def _down(one: messages.Down) -> str:
    match one:
        case messages.Commit(epoch, base, terminated):
            lost = f", without {_ranks(terminated)} of iteration {base}" if terminated else ""
            return f"=> iteration {epoch}{lost}"
        case messages.BeginFrom(epoch, restore, why):
            what = f"from {restore.snapshot}" if restore is not None else "from no snapshot"
            return f"=> iteration {epoch} begins {what}{f': {why}' if why else ''}"
        case messages.AbortEpoch(epoch, causes):
            return f"=> abort iteration {epoch}: {_causes(causes)}"
        case messages.KillLateRanks(ranks=ranks, text=text):
            return f"=> kill {_ranks(ranks)}: {text}"
        case messages.Exit(finished, text):
            return "=> all ranks have completed" if finished else f"=> the call has failed: {text}"
        case messages.RankRefused(rank, text):
            return f"=> rank {rank} is refused: {text}"
    return ""


def _causes(causes: Sequence[Cause]) -> str:
    return "; ".join(f"{it.kind.value} of rank {it.rank}, {it.text}" for it in causes)


def _shown(digests: Collection[RankDigest]) -> str:
    """``ranks 0, 1; rank 2 lacks it: its monitor died``."""
    whole = [it for it in digests if not it.end and not it.lacks]
    shown = [digest.rank for digest in whole]
    missing = [f"rank {it.rank} lacks it: {lacking(it)}" for it in digests if it not in whole]
    return "; ".join([*([_ranks(sorted(shown))] if shown else []), *missing])


def _to_monitors(messages: Mapping[int, monitor_messages.ToMonitor]) -> str:
    match next(iter(messages.values()), None):
        case monitor_messages.CollectEvidence():
            return f"has local {_ranks(tuple(messages))} looked at"
        case monitor_messages.Proceed():
            return f"lets the monitors of local {_ranks(tuple(messages))} go on"
    return ""


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
