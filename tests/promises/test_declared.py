"""Promises that holdfast does not keep: each has its sentence in ``docs/from-nvrx.md``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "from-nvrx.md"

DECLARED = {
    # ------------------------------------------------------------------ fault-tolerance
    "fault-tolerance 2.1: `workload_check_interval` is the period of the monitor's checks": (
        "`workload_check_interval` has no effect."
    ),
    "fault-tolerance 2.4: a file without the map falls back to defaults": (
        "A slip of the pen in the YAML file is an error"
    ),
    "fault-tolerance 3.3: of several open sections the last one decides": (
        "A rank is hung as soon as one of its open sections has timed out"
    ),
    "fault-tolerance 3.4: a learned timeout is the factor times the longest interval": (
        "they have a floor of 30 s, a restart lowers none"
    ),
    "fault-tolerance 3.3: the first heartbeat's timeout applies until the first heartbeat": (
        "its default ends with the first section, too"
    ),
    "fault-tolerance 4.2: messages between rank and monitor are pickled objects": (
        "Nothing is pickled on a socket; `IpcConnector` carries plain values."
    ),
    "fault-tolerance 4.4: a hung rank is killed as soon as it is found": (
        "Before a hung rank is killed, all ranks of the job are inspected"
    ),
    "fault-tolerance 5.1: a rendezvous backend other than c10d is an error, with exit code 1": (
        "`--rdzv-backend` may be any that torchrun takes"
    ),
    "fault-tolerance 7.5: after a signal, all ranks exit with 0: exit code 0": (
        "A signal to the launcher ends it with exit code 1"
    ),
    "fault-tolerance 7.3: min-healthy goes on with healthy ranks of a node that lost one": (
        "`min-healthy` on one node continues without ranks that were lost in a call of the Wrapper"
    ),
    "fault-tolerance 5.2: log server, attribution service, cycle info": (
        "Options of services that do not exist here"
    ),
    "fault-tolerance 2.1: `skip_section_response=False` has each message answered": (
        "`skip_section_response` has no effect"
    ),
    "fault-tolerance 7.4: SIGTERM goes to each rank's process group": (
        "SIGTERM goes to the rank's own process, not to its group"
    ),
    "fault-tolerance 7.6: the only node of a job is unhealthy: exit code 0": (
        "The only node of a job exits with 1 when it is not healthy"
    ),
    "lightning 3.3: `sys.exit(0)` after SIGTERM is a clean end": (
        "a `SystemExit` after SIGTERM does not count as a clean stop"
    ),
    # ------------------------------------------------------------------ inprocess
    "inprocess 2: `last_call_wait` of 1 s is waited by default": (
        "`last_call_wait` is waited only where it was given"
    ),
    "inprocess 2: `completion_timeout` is 120 s by default": (
        "`completion_timeout` a limit only there"
    ),
    "inprocess 6: after `sys.exit(0)` in the function the other ranks restart": (
        "`sys.exit(0)` in the function interrupts no other rank"
    ),
    "inprocess 4.1: `initialize` that fails each time restarts without end": (
        "`Wrapper(max_start_faults=12)` ends a call that fails at its start again and again"
    ),
    "inprocess 5: the loss of rank 0, or of the store's host, ends the job": (
        "the loss of rank 0, or of the host of the store, is survived"
    ),
    "inprocess 11: a store has a plain `barrier` and a reentrant one": (
        "the plain ones are `meet` and `meet_again`"
    ),
    "inprocess 0: a plug-in of the second generation gets a FrozenState, however it is annotated": (
        "A plug-in gets a `FrozenState` only where its parameter is annotated so"
    ),
    "inprocess 8: exceptions of a ThreadedFinalize's function are not passed on": (
        "What the function of a `ThreadedFinalize` raises is raised, and its rank leaves."
    ),
    "inprocess 5: a rank that hangs again and again is interrupted each time": (
        "A rank whose own code hangs in three iterations in a row is killed"
    ),
    "inprocess 11: `wait_for_workers` of a TCPStore is True by default": (
        "`TCPStore(wait_for_workers=False)` is the default"
    ),
    "inprocess 10: FillGaps, ranks 1, 4 and 5 of 8 lost: rank 7 becomes 5 of 5": (
        "`FillGaps` gives the free numbers of the new world in order"
    ),
    "inprocess 5: a monitor process for each rank": (
        "The Wrapper supervises through one guard process per node"
    ),
    "inprocess 4: faults, heartbeats and barriers of a call are in its store": (
        "its store is not where faults are kept"
    ),
}


def plain(text: str) -> str:
    """Without Markdown's marks and line breaks."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\s+", " ", re.sub(r"[*`]", "", text))


@pytest.mark.parametrize(
    "sentence", [pytest.param(sentence, id=row) for row, sentence in DECLARED.items()]
)
def test_the_difference_is_declared(sentence: str) -> None:
    """A program's author finds it where all differences are."""
    assert plain(sentence) in plain(PAGE.read_text())
