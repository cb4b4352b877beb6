"""Jobs on hosts whose names and addresses are not as in a laboratory, through every front door.

Two hosts, each a network namespace with a host name and an ``/etc/hosts`` of its own. Through each
front door the ranks of both hosts reach rank 0 at what they were given for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.real.harness import Job, Launcher
from tests.real.hosts import Network, network
from tests.real.ranks import PREAMBLE
from tests.waiting import BOUND_S

MEETS = """
import os, socket
RANK, PORT = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
with open(os.environ["OUT"] + "/met", "a") as file:
    file.write(os.environ["MASTER_ADDR"] + " " + os.environ["GLOO_SOCKET_IFNAME"] + "\\n")
if RANK == 0:
    server = socket.create_server(("", PORT), family=socket.AF_INET6, dualstack_ipv6=True)
    server.settimeout(60)
    server.accept()
else:
    import time
    until = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((os.environ["MASTER_ADDR"], PORT), timeout=60)
            break
        except ConnectionRefusedError:  # rank 0 may come later
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
"""
"""Ranks that connect to rank 0, as torch's store does, in less time."""

REDUCES = (
    PREAMBLE
    + """
@wrapper(**{**QUICK, "barrier_timeout": seconds(60)})
def train(call: CallWrapper):
    dist.init_process_group("gloo")
    assert all_reduce() == 2
    if call.iteration == 0:
        raise ValueError("once more")
    dist.destroy_process_group()
    return call.iteration

with open(os.environ["OUT"] + "/returned", "a") as file:
    file.write(f"{train()}\\n")
"""
)
"""Ranks of a Wrapper, which meet, talk over gloo, and restart once."""


@dataclass
class Place:
    """Two hosts, and what both are told of the first one's address.

    Attributes:
        net: Where they are.
        hosts: Commands that execute others on them.
        endpoint: ``--rdzv-endpoint``, but for the port.
        master_addr: The same for ``MASTER_ADDR``.
    """

    net: Network
    hosts: Sequence[Sequence[str]]
    endpoint: str
    master_addr: str


class Doors:
    """The ways into a job, each used on all hosts."""

    def __init__(self, ft: Launcher, place: Place) -> None:
        self._ft = ft
        self._place = place
        self._port = 29400
        self._jobs: list[list[Job]] = []

    def launchers(self) -> list[Job]:
        """One of each host, for ranks that are soon done."""
        self._port += 1
        return self._start(
            *("--nnodes=2", "--nproc-per-node=1", "--max-restarts=0", "--rdzv-id=j1"),
            f"--rdzv-endpoint={self._place.endpoint}:{self._port}",
            "--log-dir=logs",
            self._ft.script(MEETS, "meets.py"),
            module="holdfast.fault_tolerance.launcher",
        )

    def ranks(self) -> list[Job]:
        """One of each host, by hand as by srun: they have only the environment to meet by."""
        self._port += 1
        return self._start(
            module=self._ft.script(REDUCES, "reduces.py").stem,
            MASTER_ADDR=self._place.master_addr,
            MASTER_PORT=str(self._port),
            WORLD_SIZE="2",
            PYTHONPATH=str(self._ft.folder),
        )

    def _start(self, *args: str | Path, module: str, **env: str) -> list[Job]:
        jobs = [
            self._ft.start(
                *args,
                module=module,
                env={
                    **env,
                    "HOLDFAST_JOB_SECRET": "x" * 32,
                    "OMP_NUM_THREADS": "1",
                    # Rank 0 is on the first host, which leads: the one that others reach
                    # by a name that leads to loopback there.
                    "RANK" if "WORLD_SIZE" in env else "SLURM_PROCID": str(number),
                },
                prefix=execute,
            )
            for number, execute in enumerate(self._place.hosts)
        ]
        self._jobs.append(jobs)
        return jobs

    def all_succeed(self) -> None:
        for jobs in self._jobs:
            for job in jobs:
                code = job.wait(2 * BOUND_S)  # torch is imported six times at once
                assert code == 0, "\n".join(each.stdout + each.stderr for each in jobs)

    def ranks_met_at_the_address_of_the_first(self, jobs: Sequence[Job]) -> None:
        for number, job in enumerate(jobs):
            address, gloo_listens_on = job.written("met")[0].split()
            assert address == self._place.master_addr
            assert gloo_listens_on == self._place.net.interface(number)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    """Nothing of the hosts stays when the test is over."""
    with network(tmp_path) as several:
        yield several


def test_hosts_whose_names_lead_to_loopback_are_one_job(ft: Launcher, net: Network) -> None:
    """Debian's ``/etc/hosts`` says ``127.0.1.1 <hostname>``; others know the host's address.

    Here each host has its default route elsewhere, too.
    """
    names = ("n0", "n1")
    known = [f"{net.v4(number)} {name}\n" for number, name in enumerate(names)]
    hosts = [
        net.add_named(name, f"127.0.1.1 {name}\n{known[1 - number]}")
        for number, name in enumerate(names)
    ]
    for number in range(len(names)):
        net.lead_astray(number)
    doors = Doors(ft, Place(net, hosts, "n0", "n0"))

    ours = doors.launchers()
    by_hand = doors.ranks()

    doors.all_succeed()
    doors.ranks_met_at_the_address_of_the_first(ours)
    assert [job.written("returned") for job in by_hand] == [["1"], ["1"]]


def test_hosts_without_ipv4_and_whose_names_do_not_resolve_are_one_job(
    ft: Launcher, net: Network
) -> None:
    """Others know the first host by its name. Launchers over IPv6: ``test_multi_node.py``."""
    known = ("", f"{net.v6(0)} n0\n")
    hosts = [net.add_named(f"n{i}", known[i], v4=False, v6=True) for i in range(2)]
    doors = Doors(ft, Place(net, hosts, "n0", "n0"))

    by_hand = doors.ranks()

    doors.all_succeed()
    assert [job.written("returned") for job in by_hand] == [["1"], ["1"]]


@pytest.mark.skipif("HOLDFAST_ALL_HOSTS" not in os.environ, reason="long: make soak runs it")
@pytest.mark.parametrize("own_line", ["", "10.9.9.9 n0\n"], ids=["nowhere", "no interface"])
def test_a_host_whose_name_is_known_to_others_alone_hosts_the_store(
    ft: Launcher, net: Network, own_line: str
) -> None:
    """Through every front door: its own name does not resolve, or to an address it has not."""
    hosts = [net.add_named("n0", own_line), net.add_named("n1", f"{net.v4(0)} n0\n")]
    doors = Doors(ft, Place(net, hosts, "n0", net.v4(0)))

    ours = doors.launchers()

    doors.all_succeed()
    doors.ranks_met_at_the_address_of_the_first(ours)
