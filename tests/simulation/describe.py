"""Messages, decisions and effects in the words of a transcript: short, and the same every time.

Of jobs: :func:`effect`; of calls of a wrapped function: :func:`of_call`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from holdfast.base.pure.common_events import Note
from holdfast.evidence.pure.evidence import RankDigest
from holdfast.evidence.pure.evidence_words import lacking
from holdfast.evidence.pure.failure import Hang, signal_name
from holdfast.inplace.pure import coordinator, guard, messages
from holdfast.inplace.pure import rank as inprocess_rank
from holdfast.job.pure.leader import Publish
from holdfast.job.pure.member import Send, Standby
from holdfast.job.pure.membership import (
    Control,
    Decision,
    Digests,
    End,
    Join,
    Judged,
    Leave,
    Look,
    Message,
    Refused,
    Round,
    State,
    Stop,
    Suspect,
)
from holdfast.node.pure import node as ranks
from holdfast.node.pure import node_evidence, rank_life
from holdfast.node.pure.launcher import Finish, Quit
from holdfast.watch.pure import monitor_messages as said

_FEW = 8
"""How many places a line shows before it only counts them."""


def message(one: Message) -> str:
    """``join (has cycle 0)``, ``state UNHEALTHY in cycle 1: ...``."""
    match one:
        case Join(have_cycle=cycle):
            return "join" if cycle < 0 else f"join (has cycle {cycle})"
        case State(cycle=cycle, state=state, failure=failure, may_restart=may_restart, asks=asks):
            more = f": {failure.cause}" if failure.cause else ""
            more += "" if may_restart else " (no restart)"
            more += f"; {message(asks)}" if asks is not None else ""
            return f"{state.value} in cycle {cycle}{more}"
        case Leave(why=why, text=text):
            return f"leave ({why.value}{': ' + text if text else ''})"
        case Control(action=action, rank=rank, text=text):
            return f"rank {rank} asks for {action} ({text})"
        case Suspect(cycle=cycle, rank=rank):
            return f"rank {rank} is overdue in cycle {cycle}"
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
            used = f"; {one.restarts_used} restarts used" if one.restarts_used else ""
            return f"cycle {one.cycle}: {shown}{more}{spares}{used}"
        case Stop(cycle=cycle, cause=cause, restarts_left=left, no_restart=no_restart):
            return f"stop cycle {cycle}: {cause}; {no_restart or f'{left} restarts left'}"
        case End(outcome=outcome, exit_code=code, cause=cause, why=why):
            own = "own ranks decide the exit code" if code is None else f"exit code {code}"
            return f"end, {outcome.value}, {own}: {cause}{'; ' + why if why else ''}"
        case Refused(node=node, why=why):
            return f"refused {node}: {why}"
        case Look(incident=incident, node=node, rank=rank):
            return f"incident {incident}, rank {rank} of {node} is overdue: look at all ranks"
        case Judged(incident=incident, without=without):
            return f"incident {incident} is judged{f', without {without}' if without else ''}"
        case _:
            return "beat"


def effect(one: Any) -> str:
    """What a launcher does; empty: nothing to write home about."""
    match one:
        case Send(message=sent):
            return f"-> {message(sent)}"
        case Publish(decision=decided):
            return f"=> {decision(decided)}"
        case ranks.StartCycle(cycle):
            return f"starts its ranks of cycle {cycle}"
        case ranks.SignalRanks(local_ranks=local_ranks, signum=signum):
            return f"signals local {_ranks(local_ranks)} with {signal_name(signum)}"
        case ranks.KillRanks(local_ranks=local_ranks):
            return f"kills local {_ranks(local_ranks)}"
        case ranks.EndRank(local_rank=local_rank, problem=problem):
            return f"kills local rank {local_rank}, as its host is not healthy: {problem}"
        case rank_life.MonitorSaid(local_rank, said.Overdue() as found):
            hang = Hang(found.clock, found.name, found.age_s, found.limit_s)
            return f"its monitor finds local rank {local_rank} hung: {hang}"
        case rank_life.MonitorSaid(local_rank, said.Evidence()):
            return f"its monitor has taken evidence of local rank {local_rank}"
        case rank_life.MonitorSaid(local_rank, said.Signalled(signal=signum)):
            return f"its monitor signals local rank {local_rank} with {signal_name(signum)}"
        case node_evidence.LookAt(local_ranks=local_ranks):
            return f"has local {_ranks(local_ranks)} looked at"
        case node_evidence.LetGoOn(local_ranks=local_ranks):
            return f"lets the monitors of local {_ranks(local_ranks)} go on"
        case node_evidence.IncidentOver(incident=incident, without=without):
            missing = f", without {without}" if without else ""
            tells = ", and notifies people" if one.notifies else ""
            shown = _shown(one.digests.values())
            return f"writes down incident {incident}: {shown}{missing}{tells}"
        case Standby(cycle=cycle):
            return f"stands by in cycle {cycle}"
        case Finish():
            why = f" ({one.text})" if one.text else ""
            unused = f"; {one.never_ran} and never ran the script" if one.never_ran else ""
            return f"{one.how}{why}{unused}, exit code {one.exit_code}"
        case Quit(exit_code=code):
            return f"exits with {code}"
        case Note(text=text):
            return f"({text})"
    return ""


# ---------------------------------------------------------------- a call of a wrapped function
def of_call(one: Any) -> str:
    """What a rank, its guard or the coordinator does; empty: it passes a word on, or renews one.

    What a rank says to its guard, and what that passes on to it, is not shown.
    """
    match one:
        case inprocess_rank.Say(messages.Stuck(text=text)):
            return f"asks its guard to end it: {text}"
        case inprocess_rank.RunAbort():
            return "aborts its collectives"
        case inprocess_rank.Interrupt():
            return "interrupts its main thread"
        case guard.TellCoordinator(message):
            return _up(message)
        case guard.TellRank(rank, messages.Refused(text=text) | messages.Lost(text)):
            return f"tells rank {rank} to leave: {text}"
        case guard.TakeEvidence(rank, why):
            return f"takes stacks of rank {rank}: {why}"
        case guard.Signal(rank, signals):
            return f"sends rank {rank} {', '.join(map(signal_name, signals))}"
        case coordinator.TellAll(told) | coordinator.Tell(message=told):
            return _down(told)
        case coordinator.HangUp(node):
            return f"closes the connection to {node}"
    return ""


def _up(one: messages.Up) -> str:
    match one:
        case messages.Hello(rank):
            return f"-> rank {rank} is here"
        case messages.Fault():
            return f"-> {_causes([one.cause])}"
        case messages.Dead(rank, kind, text):
            return f"-> {_causes([messages.Cause(rank, kind, text)])}; it is dead"
        case messages.Leave(rank=rank, text=text):
            return f"-> rank {rank} leaves: {text}"
        case messages.Done(rank=rank):
            return f"-> rank {rank} is done"
        case messages.Ready(standings=standings):
            return f"-> ready: {_ranks([standing.rank for standing in standings])}"
    return ""


def _down(one: messages.Down) -> str:
    match one:
        case messages.Commit(epoch, base, terminated):
            lost = f", without {_ranks(terminated)} of iteration {base}" if terminated else ""
            return f"=> iteration {epoch}{lost}"
        case messages.Abort(epoch, causes):
            return f"=> abort iteration {epoch}: {_causes(causes)}"
        case messages.Kill(ranks=ranks, text=text):
            return f"=> kill {_ranks(ranks)}: {text}"
        case messages.Exit(finished, text):
            return "=> all ranks have completed" if finished else f"=> the call has failed: {text}"
        case messages.Refused(rank, text):
            return f"=> rank {rank} is refused: {text}"
    return ""


def _causes(causes: Sequence[messages.Cause]) -> str:
    return "; ".join(f"{it.kind.value} of rank {it.rank}, {it.text}" for it in causes)


def _shown(digests: Collection[RankDigest]) -> str:
    """``ranks 0, 1; rank 2 lacks it: its monitor died``."""
    whole = [it for it in digests if not it.end and not it.lacks]
    shown = [digest.rank for digest in whole]
    missing = [f"rank {it.rank} lacks it: {lacking(it)}" for it in digests if it not in whole]
    return "; ".join([*([_ranks(sorted(shown))] if shown else []), *missing])


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
