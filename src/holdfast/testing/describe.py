"""Messages, decisions and effects in the words of a transcript: short, and the same every time."""

from __future__ import annotations

from holdfast.core import leader as lead
from holdfast.core import member as mem
from holdfast.core.common_events import Note
from holdfast.core.membership import (
    Control,
    Decision,
    End,
    Join,
    Leave,
    Message,
    Refused,
    Round,
    State,
    Stop,
)

_FEW = 8
"""How many places a line shows before it only counts them."""


def message(one: Message) -> str:
    """``join (has cycle 0)``, ``state UNHEALTHY in cycle 1: ...``."""
    match one:
        case Join(have_cycle=cycle):
            return "join" if cycle < 0 else f"join (has cycle {cycle})"
        case State(cycle=cycle, state=state, cause=cause, may_restart=may_restart, asks=asks):
            more = f": {cause}" if cause else ""
            more += "" if may_restart else " (no restart)"
            more += f"; {message(asks)}" if asks is not None else ""
            return f"{state.value} in cycle {cycle}{more}"
        case Leave(why=why, text=text):
            return f"leave ({why.value}{': ' + text if text else ''})"
        case Control(action=action, rank=rank, text=text):
            return f"rank {rank} asks for {action} ({text})"
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
        case _:
            return "beat"


def effect(one: lead.Effect | mem.Effect) -> str:
    """What a machine asks to be done."""
    match one:
        case mem.Send(message=sent):
            return f"-> {message(sent)}"
        case lead.Publish(decision=decided):
            return f"=> {decision(decided)}"
        case mem.StartRanks(round=formed, place=place):
            last = place.rank_offset + place.nproc - 1
            ranks = f"{place.rank_offset}" if place.nproc == 1 else f"{place.rank_offset}-{last}"
            return f"starts rank {ranks} of {formed.world_size}, cycle {formed.cycle}"
        case mem.CycleStopping(cycle=cycle, cause=cause):
            return f"says that cycle {cycle} is over: {cause}"
        case mem.StopRanks(cycle=cycle, how=how, for_good=for_good):
            manner = "politely" if how is mem.How.POLITE else "at once"
            return f"stops its ranks of cycle {cycle}, {manner}{', for good' if for_good else ''}"
        case mem.Standby(cycle=cycle):
            return f"stands by in cycle {cycle}"
        case mem.Finish(exit_code=code, why=why, text=text):
            return f"exits with {code} ({why.value}{': ' + text if text else ''})"
        case lead.ReadIteration():
            return "asks how far the checkpoints are"
        case lead.Close(missing=missing):
            return f"closes{'; no word of ' + ' '.join(missing) if missing else ''}"
        case Note(text=text):
            return f"({text})"
