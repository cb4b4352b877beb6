"""Launchers on hosts of their own, as far as the network goes: a link is cut without a word.

Each launcher runs in a network namespace, on one bridge. A link that is taken down there says
nothing to either end: no reset, no end of file, as when a switch loses power.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base import clock
from tests.real.harness import Job, Launcher, kill
from tests.real.hosts import Network, ip, network
from tests.real.nodes import (
    REDUCES,
    SHORT_SILENCE_S,
    SILENCE_S,
    TELLS_ITS_PLACE,
    TRAINS_TOGETHER,
    in_cycle,
    life,
)
from tests.waiting import until

PORT = 29400
WORKS = TELLS_ITS_PLACE + "tell()\nwork()\n"


class Hosts:
    """Network namespaces on one bridge, each with a launcher.

    Attributes:
        silence_s: Of all launchers: one that says nothing for this long is gone.
    """

    def __init__(self, ft: Launcher, folder: Path, network: Network) -> None:
        self._ft = ft
        self._folder = folder
        self._network = network
        self.silence_s = SHORT_SILENCE_S

    def add(self, nnodes: str, *options: str, source: str = WORKS) -> Job:
        """One more host with a launcher of one rank; the first leads."""
        number = len(self._network.hosts)
        execute = self._network.add()
        script = self._ft.script(source, f"script{number}.py")
        is_host, silence_s = int(number == 0), self.silence_s
        conf = f"is_host={is_host},keep_alive_timeout={silence_s:g},last_call_timeout=20"
        return self._ft.start(
            *("--nnodes", nnodes, "--nproc-per-node=1", "--max-restarts=3", "--rdzv-id=j1"),
            *("--workers-stop-timeout=2", "--log-dir=logs", "--rdzv-conf", conf),
            f"--rdzv-endpoint={self._network.v4(0)}:{PORT}",
            f"--local-addr={self._network.v4(number)}",
            *options,
            script,
            env={
                "EVERYBODY": str(self._folder),
                "NVRX_DISABLE_RANK_MONITORS": str(int(source != TRAINS_TOGETHER)),
            },
            prefix=execute,
        )

    def cut(self, number: int) -> None:
        """Nothing goes to or from this host any more."""
        assert ip("link", "set", self._network.hosts[number], "down").returncode == 0

    def heal(self, number: int) -> None:
        assert ip("link", "set", self._network.hosts[number], "up").returncode == 0

    def ask(self) -> None:
        """Ranks that wait to be asked do what they wait for."""
        (self._folder / "ask").touch()

    def end(self) -> None:
        """All ranks that work may end well."""
        (self._folder / "end").touch()


@pytest.fixture
def hosts(ft: Launcher, tmp_path: Path) -> Iterator[Hosts]:
    """No namespace and no bridge stays when the test is over."""
    with network(tmp_path) as several:
        yield Hosts(ft, tmp_path, several)


def started_at(job: Job, cycle: int) -> float:
    """When the ranks of a launcher were started in this cycle, on the machine's clock."""

    def found() -> list[float]:
        return [float(e["t"]) for e in job.events("cycle_started") if e["cycle"] == cycle]

    return float(until(found, f"the event of cycle {cycle}")[0])


def test_a_host_that_is_cut_off_ends_its_ranks_before_the_others_go_on(hosts: Hosts) -> None:
    """A spare takes its place. When the link is back, the host waits as the next spare."""
    a, b = hosts.add("2"), hosts.add("2")
    first = in_cycle(0, a, b)
    spare = hosts.add("2")
    until(lambda: spare.said("joined the job"), "the spare waits")

    hosts.cut(1)
    in_cycle(1, a, spare)
    over = until(lambda: b.events("cycle_stopped"), "its ranks are gone")[0]
    assert float(over["t"]) < started_at(a, 1)
    assert not Path(f"/proc/{first[1]['pid']}").exists()

    hosts.heal(1)
    until(lambda: b.said("the others have gone on without this node"), "its return")
    hosts.end()
    assert [a.wait(), spare.wait(), b.wait()] == [0, 0, 0]


def test_when_the_store_s_host_is_cut_off_the_others_end_their_ranks_and_wait_for_it(
    hosts: Hosts,
) -> None:
    """It leads, and goes on alone, as MIN allows. When the link is back, they join again."""
    a, b = hosts.add("1:2"), hosts.add("1:2")
    (_, cut_off) = in_cycle(0, a, b)
    hosts.cut(0)
    until(lambda: b.said("no message from the leader of the job"), "its silence is noticed")
    until(lambda: life(a, 1), "the leader has started again, alone")
    assert not Path(f"/proc/{cut_off['pid']}").exists()

    hosts.heal(0)
    until(lambda: b.said("the others have gone on without this node"), "its return")
    hosts.end()
    assert [a.wait(), b.wait()] == [0, 0]


def test_leadership_moves_between_hosts_while_another_host_is_cut_off(hosts: Hosts) -> None:
    """The leader's launcher is killed; three of five are left, one is cut off.

    That has no proof of the death. When its link is back it finds that the leader has ended, and
    joins the job that is led elsewhere.
    """
    cold = "--ft-warm-standby=false"
    jobs = [hosts.add("2:5", cold, source=REDUCES) for _ in range(5)]
    first = in_cycle(0, *jobs)
    assert {told["total"] for told in first} == {15.0}
    hosts.cut(4)

    kill(jobs[0].process.pid)

    after = in_cycle(1, *jobs[1:4])
    assert {told["total"] for told in after} == {6.0}
    assert not any(Path(f"/proc/{told['pid']}").exists() for told in first)

    hosts.heal(4)
    until(
        lambda: jobs[4].said(r"the launcher at \S+ leads the job now"),
        "it has found the next leader",
    )
    hosts.end()
    assert [job.wait() for job in jobs[1:]] == [0, 0, 0, 0]
    assert not any(job.leftovers() for job in jobs)


def test_leadership_moves_when_the_leader_s_host_is_cut_off(hosts: Hosts) -> None:
    """Two of three start again without it; when the link is back, it joins them, as another spare.

    No ranks of the two cycles are alive at a time.
    """
    jobs = [hosts.add("2:3") for _ in range(3)]
    first = in_cycle(0, *jobs)
    leader, others = jobs[0], jobs[1:]
    cut_at = clock.monotonic()
    hosts.cut(0)
    after = in_cycle(1, *others)
    started = max(started_at(job, 1) for job in others)
    over = until(lambda: leader.events("cycle_stopped"), "its ranks are gone")[0]
    assert float(over["t"]) < started
    assert started - cut_at < 2.5 * hosts.silence_s, "for a busy machine; 1.5 where it is not"
    assert not any(Path(f"/proc/{told['pid']}").exists() for told in first)
    assert {told["RANK"] for told in after} == {"0", "1"}
    assert leader.said("this launcher does not lead the job any more")

    hosts.heal(0)
    until(lambda: leader.said(r"the launcher at \S+ leads the job now"), "its return")
    hosts.end()
    assert [job.wait() for job in jobs] == [0, 0, 0]
    assert not any(job.leftovers() for job in jobs)


def test_the_ranks_of_a_host_that_is_cut_off_are_named_and_on_its_side_nobody_is(
    hosts: Hosts,
) -> None:
    """It cannot know whether the ranks that it waits for hang."""
    hosts.silence_s = SILENCE_S
    limits = "--ft-rank-section-timeouts=step:0.5", "--max-restarts=0", "--ft-evidence-timeout=3"
    a, b = (hosts.add("2", *limits, source=TRAINS_TOGETHER) for _ in range(2))
    in_cycle(0, a, b)
    hosts.cut(1)
    hosts.ask()

    [known] = until(lambda: a.events("incident"), "the incident of the host that leads")
    [unknown] = until(lambda: b.events("incident"), "that of the one that is cut off")

    assert (known["culprits"], known["verdict"]) == ([1], "missing")
    named = r"rank 1 \(node .*\) does not answer: did not answer within 2.4 s; 1 other rank"
    until(lambda: a.said(named), "the line, which may follow the event")
    assert (unknown["culprits"], unknown["verdict"]) == ([], "missing")
    waits = "rank 1 waits in `all_reduce` for rank 0, of which nothing is known: not asked"
    until(lambda: b.said(waits), "the line")
    hosts.heal(1)
    assert [a.wait(), b.wait()] == [1, 1]
