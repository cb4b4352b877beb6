"""One restart of a job of many nodes, over real connections: what it costs the leader.

A process leads; this one has the connections of all other launchers. They join, a cycle forms, a
rank of one fails, all stop and join again, and the next cycle forms. All answer its beats.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import time
from collections import Counter
from typing import Any

from bench.figures import Bar, Report
from holdfast.base.clock import monotonic
from holdfast.base.processes.process_defaults import raise_descriptor_limit
from holdfast.base.pure.common_events import Begin, TimePassed
from holdfast.job.link.job_server import JobServer
from holdfast.job.link.leader_link import LeaderLink, LinkCallbacks
from holdfast.job.pure.assign import Policy
from holdfast.job.pure.leader import Leader
from holdfast.job.pure.membership import (
    Beat,
    Decision,
    Descriptor,
    FailureReport,
    Join,
    LeaderBeat,
    NodeState,
    Round,
    StateChanged,
    StopCycle,
)
from holdfast.job.pure.rules import Rules
from holdfast.job.pure.timing import Pace
from holdfast.net.descriptors import Descriptors

NODES = 2048
PACE = Pace(60.0, 12.0, 40.0)
HERE = "127.0.0.1"


def measure(nodes: int = NODES, rounds: int = 1) -> Report:
    """See the module."""
    report = Report(f"a restart of {nodes} launchers, over connections of this machine")
    found = [_one(nodes) for _ in range(rounds)]
    report.add("leader's CPU, first connection to first round", "s", [it["joined"] for it in found])
    restarts = [it["restarted"] for it in found]
    report.add("leader's CPU, failure to next round", "s", restarts, Bar(0.3))
    report.add("leader's CPU, a beat that all answer", "s", [it["beat"] for it in found])
    report.add("leader's memory", "MiB", [it["rss_mib"] for it in found], Bar(150.0))
    walls = [it["wall"] for it in found]
    report.add("failure to next round at all launchers, clients included", "s", walls)
    return report


def _one(nodes: int) -> dict[str, float]:
    raise_descriptor_limit()
    descriptors = Descriptors()
    read, write = os.pipe()
    port_read, port_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _lead(nodes, port_write, write)
    os.close(write)
    os.close(port_write)
    port = int(os.read(port_read, 16))
    decided: Counter[tuple[type[Decision], int]] = Counter()
    links = []
    for number in range(nodes):
        links.append(_connect(descriptors, port, number, decided))
        descriptors.wait(0.0)  # as each launcher is a process of its own

    def until(kind: type[Decision], cycle: int) -> None:
        while decided[kind, cycle] < nodes:
            descriptors.wait(0.1)

    for number, link in enumerate(links):
        link.send(_join(number, -1))
    until(Round, 0)
    began = time.monotonic()
    links[7].send(StateChanged("n7", 0, NodeState.FAILED, FailureReport("exit code 3", 7)))
    until(StopCycle, 0)
    for number, link in enumerate(links):
        link.send(_join(number, 0))
    until(Round, 1)
    wall = time.monotonic() - began
    os.kill(pid, 15)
    data = b""
    while chunk := os.read(read, 1 << 16):
        data += chunk
    os.waitpid(pid, 0)
    for link in links:
        link.close(0.0)
    descriptors.epoll.close()
    for descriptor in (read, port_read):
        os.close(descriptor)
    return {**json.loads(data), "wall": wall}


def _join(number: int, have_cycle: int) -> Join:
    address = f"10.0.{number >> 8}.{number & 255}"
    could_lead = Descriptor(address, f"n{number}", 8, 1000 + number, serves=29500)
    return Join(f"n{number}", could_lead, have_cycle)


def _connect(
    descriptors: Descriptors, port: int, number: int, decided: Counter[tuple[type[Decision], int]]
) -> LeaderLink:
    def ignore(*_: object) -> None:
        pass

    received: tuple[int, ...] = ()

    def on_decided(decision: Decision) -> None:
        nonlocal received
        if isinstance(decision, Round | StopCycle):
            decided[type(decision), decision.cycle] += 1
        if isinstance(decision, Round):
            received = decision.version
        elif isinstance(decision, LeaderBeat):
            link.send(Beat(name, -1, received, decision.number))

    callbacks = LinkCallbacks(ignore, on_decided, ignore, ignore, ignore, ignore, ignore, ignore)
    name = f"n{number}"
    link = LeaderLink(descriptors, "j1", "secret", name, name, callbacks)
    link.connected(socket.create_connection((HERE, port)), HERE, port)
    return link


def _lead(nodes: int, port_write: int, result: int) -> None:
    """The other process."""
    listener = socket.create_server((HERE, 0), backlog=4096)
    descriptors = Descriptors()
    leader = Leader(Rules(Policy(nodes, nodes), max_restarts=3), PACE)
    marks: dict[str, float] = {}
    began, beats = time.process_time(), 0

    def feed(event: Any) -> None:
        nonlocal began, beats
        if isinstance(event, StateChanged):
            marks["beat"] = (time.process_time() - began) / beats
            began = time.process_time()
        for effect in leader.handle(event, monotonic()):
            if not isinstance(effect, Decision):
                continue
            server.publish(effect)
            beats += isinstance(effect, LeaderBeat)
            if isinstance(effect, Round):
                marks["joined" if effect.cycle == 0 else "restarted"] = time.process_time() - began
                began, beats = time.process_time(), 0

    server = JobServer(listener, descriptors, "j1", "secret", PACE.silence_s, print, feed)
    server.lead(lambda _: None)
    feed(Begin())
    os.write(port_write, str(server.port).encode())
    while "restarted" not in marks:
        deadline = min(leader.next_deadline() or 1e18, server.next_deadline() or 1e18)
        descriptors.wait(max(0.0, deadline - monotonic()))
        server.on_time()
        feed(TimePassed())
    usage = resource.getrusage(resource.RUSAGE_SELF)
    marks["rss_mib"] = usage.ru_maxrss / 1024
    os.write(result, json.dumps(marks).encode())
    os.close(result)
    while True:  # until all have read
        descriptors.wait(None)
