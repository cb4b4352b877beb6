"""A witness of a job: a process of its own without ranks, on this host, as are the launchers."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from tests.real.harness import Job, kill
from tests.real.nodes import WORKS, Nodes, in_cycle
from tests.waiting import until

_MIB_MAX = 40
"""Of memory; some 24 are used."""


def memory_mib(job: Job) -> float:
    status = Path(f"/proc/{job.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def test_the_job_of_two_goes_on_when_the_launcher_that_leads_it_is_killed(nodes: Nodes) -> None:
    """The witness came when the job ran; a revision of the round has given it a vote."""
    nodes.silence_s = 3600
    host, b = (nodes.add(WORKS, "1:2") for _ in range(2))
    in_cycle(0, host, b)
    witness = nodes.add_witness()
    until(lambda: witness.said("this witness has one of 3 votes of the job"), "it has a vote")

    kill(host.process.pid)

    in_cycle(1, b)
    until(lambda: b.said(r"leads the job now, in term 1: 2 of 3 launchers have voted"), "it leads")
    until(lambda: witness.said(r"the launcher at \S+ leads the job now"), "the witness follows")
    assert memory_mib(witness) < _MIB_MAX
    assert "torch" not in Path(f"/proc/{witness.process.pid}/maps").read_text()
    nodes.end()
    assert b.wait() == 0
    assert witness.wait() == 0
    assert witness.said("witness of 'j1': the job has ended, succeeded")
    assert [it["witness"] for it in b.events("witness_joined")]


def test_a_job_neither_waits_for_a_witness_nor_ends_with_it(nodes: Nodes) -> None:
    """It is there first; it is killed, while a spare comes: the job has one cycle."""
    witness = nodes.add_witness()
    host, b = (nodes.add(WORKS, "2") for _ in range(2))
    in_cycle(0, host, b)
    until(lambda: host.said(r"the witness on \S+ \(pid \d+\) is here"), "it has joined")

    kill(witness.process.pid)

    until(lambda: host.said(r"the witness on .* was lost \(its process has ended\)"), "is lost")
    second = nodes.add_witness()
    until(lambda: second.said("this witness has one of 3 votes of the job"), "it has a vote")
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    until(lambda: host.said(r"the witness on .* left the job"), "it has left")
    nodes.end()
    assert [job.wait() for job in (host, b)] == [0, 0]
    assert len(host.written("lives")) == 1
    assert len(host.events("witness_left")) == 2


def test_a_witness_that_finds_no_job_says_so_and_leaves_after_its_time(nodes: Nodes) -> None:
    witness = nodes.add_witness("--join-timeout=0.5")
    assert witness.wait() == 1
    assert witness.said("could not be reached")
    assert witness.said("--join-timeout SECONDS")
