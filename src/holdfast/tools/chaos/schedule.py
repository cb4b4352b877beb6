"""Which faults, in which ranks, and when: drawn from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.evidence.pure import evidence
from holdfast.testing.inject import ON_GPU, Fault

EXIT = "exit"
HANG = "hang"
LOST = "lost"
"""Symptoms, besides names of signals and kinds of verdicts (``evidence/pure/evidence.py``)."""

SYMPTOMS: Mapping[Fault, frozenset[str]] = {
    Fault.SIGKILL: frozenset({"SIGKILL"}),
    Fault.SIGTERM: frozenset({"SIGTERM", EXIT}),
    Fault.SIGINT: frozenset({"SIGINT", EXIT}),
    Fault.SIGSTOP: frozenset({HANG, evidence.STOPPED}),
    Fault.SIGNAL_EXC: frozenset({EXIT}),
    Fault.ASYNC_EXC: frozenset({EXIT}),
    Fault.EXIT: frozenset({EXIT}),
    Fault.OS_ABORT: frozenset({"SIGABRT"}),
    Fault.SEGFAULT: frozenset({"SIGSEGV"}),
    Fault.LOCK_GIL: frozenset({HANG, evidence.INTERPRETER}),
    Fault.LOCK: frozenset({HANG, evidence.WAITING}),
    Fault.SLEEP: frozenset({HANG, evidence.WAITING}),
    Fault.BUSY_LOOP: frozenset({HANG, evidence.COMPUTING}),
    Fault.GPU_ERROR: frozenset({EXIT, "SIGABRT"}),
    Fault.GPU_SLEEP: frozenset({HANG, evidence.WAITING, evidence.COMPUTING, evidence.NATIVE}),
    Fault.NODE: frozenset({LOST}),
}
"""Each kind of fault that can be drawn, and the symptoms by which a right explanation calls it."""
DEFAULT = tuple(fault for fault in SYMPTOMS if fault not in {*ON_GPU, Fault.NODE})


@dataclass(frozen=True)
class ScheduledFault:
    """One fault: in which rank, and seconds of training before it."""

    fault: Fault
    rank: int
    pause_s: float


def draw(
    seed: int, count: int, kinds: Sequence[Fault], ranks: Sequence[int], pause_s_max: float
) -> list[ScheduledFault]:
    """Faults that depend on nothing but the arguments.

    Kinds come from a shuffled deck, so each comes about as often as every other. A schedule of
    fewer faults is the beginning of a longer one.

    Args:
        seed: Of the random numbers.
        count: How many.
        kinds: To draw from; not empty.
        ranks: To draw from; not empty.
        pause_s_max: A fault comes at most so many seconds after the recovery from the last one.
    """
    chance = random.Random(seed)  # noqa: S311 - no secret
    deck: list[Fault] = []
    drawn = []
    for _ in range(count):
        if not deck:
            deck = list(kinds)
            chance.shuffle(deck)
        drawn.append(
            ScheduledFault(deck.pop(), chance.choice(ranks), chance.uniform(0, pause_s_max))
        )
    return drawn
