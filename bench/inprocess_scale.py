"""How long the coordinator of an in-process restart takes to tell thousands of node guards.

Real connections, up to 4,096, from one process that plays all guards but the first: its own work is
in the figures. The rank's side is not; see ``bench/inprocess.py``. Beside it the machines alone, in
the simulator's sense: decisions without sockets.
"""

from __future__ import annotations

import resource
import secrets
import select
import socket
import time
from collections.abc import Callable

from bench.figures import Report
from holdfast.base.pure import codec
from holdfast.inplace.guard_process import connect_to_guard
from holdfast.inplace.pure import coordinator as machine
from holdfast.inplace.pure.job_calls import FaultKind
from holdfast.inplace.pure.messages import (
    Attach,
    CallTimeouts,
    CoordinatorTimeouts,
    FaultReported,
    JoinCall,
    Numbering,
    RanksReady,
    Standing,
)
from holdfast.net.client import Client
from holdfast.page.page import anonymous_page

SIZES = (64, 512, 4096)
ROUNDS = 5
_SPARE_FDS = 256
_BOUND_S = 60.0


def measure() -> Report:
    """See the module."""
    report = Report("in-process restart: the coordinator and so many node guards, one rank each")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for n in SIZES:
        if hard < n + _SPARE_FDS:
            report.notes.append(f"{n} connections need more descriptors than {hard}")
            continue
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, n + _SPARE_FDS), hard))
        aborts, commits = _real(n)
        report.add(f"{n} guards: fault to the last that hears Abort", "ms", aborts)
        report.add(f"{n} guards: first Ready to the last that hears Commit", "ms", commits)
    for n in (*SIZES, 16384):
        report.add(f"{n} guards: decisions of one restart alone", "ms", _decisions_ms(n))
    return report


class _Guards:
    """All guards but the first, in one process."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._page = anonymous_page()
        token = secrets.token_hex(16)
        timeouts = CallTimeouts(*[600.0] * 5)
        coordinator = CoordinatorTimeouts(600.0, 600.0, 0.0, 600.0, None)
        attach = Attach(0, n, self._page.fd, 0, timeouts, coordinator, hosts=True)
        self._first = connect_to_guard(token)
        self._first.send(codec.encode(attach))
        while (answer := self._first.receive(_BOUND_S))["op"] != "hosting":
            pass
        port = answer["port"]
        self._clients = {self._first.fileno(): self._first}
        self._epoll = select.epoll()
        for rank in range(1, n):
            connected = socket.create_connection(("127.0.0.1", port))
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = Client(connected)
            client.send({"token": token, "role": "guard", "node": f"n{rank}"})
            client.send(codec.encode(JoinCall(rank, n)))
            self._clients[client.fileno()] = client
        for fd in self._clients:
            self._epoll.register(fd, select.EPOLLIN)
        self._order = list(self._clients.values())

    def all_hear(self, op: str) -> None:
        """Until every guard was told."""
        left = self.n
        until = time.monotonic() + _BOUND_S
        while left:
            if time.monotonic() > until:
                raise RuntimeError(f"{left} of {self.n} guards were not told {op!r}")
            for fd, _ in self._epoll.poll(1.0):
                for frame in self._clients[fd].received():
                    left -= frame["op"] == op

    def send(self, rank: int, message: FaultReported) -> None:
        """What this rank's guard says."""
        self._order[rank].send(codec.encode(message))

    def all_ready(self, epoch: int) -> None:
        """Everybody is back."""
        for rank, client in enumerate(self._order):
            client.send(codec.encode(RanksReady(epoch, (_standing(rank, self.n, epoch),))))

    def close(self) -> None:
        self._epoll.close()
        for client in self._clients.values():
            client.close()
        self._page.close()


def _standing(rank: int, n: int, epoch: int) -> Standing:
    return Standing(rank, Numbering(epoch, rank, n), Numbering(epoch - 1, rank, n))


def _real(n: int) -> tuple[list[float], list[float]]:
    guards = _Guards(n)
    try:
        guards.all_hear("commit")
        aborts, commits = [], []
        for epoch in range(ROUNDS):

            def abort(epoch: int = epoch) -> None:
                guards.send(1, FaultReported(epoch, 1, FaultKind.EXCEPTION, "on order"))
                guards.all_hear("abortepoch")

            def commit(epoch: int = epoch) -> None:
                guards.all_ready(epoch)
                guards.all_hear("commit")

            aborts.append(_ms(abort))
            commits.append(_ms(commit))
        return aborts, commits
    finally:
        guards.close()


def _decisions_ms(n: int) -> list[float]:
    coordinator = machine.Coordinator(CoordinatorTimeouts())
    for rank in range(n):
        coordinator.handle(machine.NodeMessage(f"n{rank}", JoinCall(rank, n)), 0.0)
    taken = []
    for epoch in range(3):
        fault = machine.NodeMessage("n1", FaultReported(epoch, 1, FaultKind.EXCEPTION, "on order"))
        readies = [
            machine.NodeMessage(f"n{rank}", RanksReady(epoch, (_standing(rank, n, epoch),)))
            for rank in range(n)
        ]

        def restart(
            fault: machine.Event = fault, readies: list[machine.NodeMessage] = readies
        ) -> None:
            for event in (fault, *readies):
                coordinator.handle(event, 1.0)

        taken.append(_ms(restart))
    return taken


def _ms(do: Callable[[], object]) -> float:
    began = time.monotonic()
    do()
    return (time.monotonic() - began) * 1e3
