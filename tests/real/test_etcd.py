"""Launchers that meet over a real etcd: `make etcd` installs what it needs and runs this."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.net.port import ReservedPort
from tests.real.harness import Job, Launcher, has_lived, kill
from tests.waiting import SCALE, until

BOUND_S = 60 * SCALE
SILENCE_S = 4.0 * SCALE
"""Where it is waited for; where it is not, a busy machine is silent for as long."""

WORKS = """
import json, os, pathlib, time
out = pathlib.Path(os.environ["OUT"])
with open(out / "lives", "a") as file:
    life = {name: int(os.environ[name]) for name in ("RANK", "WORLD_SIZE")}
    file.write(json.dumps({"pid": os.getpid(), **life}) + "\\n")
while not (out.parent / os.environ["END"]).exists():
    time.sleep(0.01)
"""


def why_not() -> str | None:
    """Why these tests cannot run here; None: they can."""
    if shutil.which("etcd") is None:
        return "no etcd here (apt-get install etcd-server)"
    if importlib.util.find_spec("etcd") is None:
        return "no python-etcd here; `make etcd` installs it"
    return None


pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


class Etcd:
    """A server with its data in a folder, so that it can be started again."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._ports = [ReservedPort() for _ in range(2)]
        self.port, self._peers = (port.number for port in self._ports)
        self.start()

    def start(self) -> None:
        """Start it, again; returns when it answers."""
        here, peers = (f"http://127.0.0.1:{port}" for port in (self.port, self._peers))
        with (self._folder / "etcd.out").open("ab") as out:
            options = {
                "data-dir": self._folder / "etcd",
                "listen-client-urls": here,
                "advertise-client-urls": here,
                "listen-peer-urls": peers,
                "initial-advertise-peer-urls": peers,
                "initial-cluster": f"default={peers}",
            }
            given = [f"--{name}={value}" for name, value in options.items()]
            self.process = subprocess.Popen(
                ["etcd", *given, *self._options], stdout=out, stderr=out
            )
        until(self._answers, "etcd is healthy", BOUND_S)

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self._folder / "etcd.out").read_text()[-2000:]
        try:
            url = f"http://127.0.0.1:{self.port}/health"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return b'"true"' in answer.read()
        except (OSError, urllib.error.URLError):
            return False

    def kill(self) -> None:
        """It is gone; its data are on disk."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for port in self._ports:
            port.release()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    server = Etcd(tmp_path, "--enable-v2")
    yield server
    server.close()


def start(
    ft: Launcher,
    etcd: Etcd,
    *,
    nnodes: str = "2",
    run_id: str = "j1",
    backend: str = "etcd",
    silence_s: float = 30 * SCALE,
) -> Job:
    return ft.start(
        *("--nnodes", nnodes, "--nproc-per-node=1", "--max-restarts=3", f"--rdzv-id={run_id}"),
        *(f"--rdzv-backend={backend}", f"--rdzv-endpoint=127.0.0.1:{etcd.port}"),
        f"--rdzv-conf=keep_alive_timeout={silence_s:g},last_call_timeout=20,grow_cooldown=1",
        ft.script(WORKS),
        env={"NVRX_DISABLE_RANK_MONITORS": "1", "END": f"end-{run_id}"},
    )


def by_lead(*jobs: Job) -> list[Job]:
    """The launcher that leads, and the others."""
    leader = until(lambda: next((job for job in jobs if job.said("leads the job")), None), "leader")
    return [leader, *(job for job in jobs if job is not leader)]


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_launchers_meet_restart_and_end_over_etcd(
    ft: Launcher, etcd: Etcd, tmp_path: Path, backend: str
) -> None:
    """And whoever comes to a job that is over is told so, since etcd stays."""
    jobs = [start(ft, etcd, backend=backend) for _ in range(2)]
    first = has_lived(1, *jobs)
    assert sorted(life["RANK"] for life in first) == [0, 1]

    kill(first[0]["pid"])

    second = has_lived(2, *jobs)
    assert [life["RANK"] for life in second] == [life["RANK"] for life in first]
    (tmp_path / "end-j1").touch()
    assert [job.wait(BOUND_S) for job in jobs] == [0, 0]

    late = start(ft, etcd, backend=backend)
    assert late.wait(BOUND_S) == 1
    assert late.said("the job 'j1' is over there .* needs another --rdzv-id")


def test_a_killed_node_is_dropped_and_the_others_go_on(
    ft: Launcher, etcd: Etcd, tmp_path: Path
) -> None:
    """With a world of one, since MIN allows it; a node that comes back is in the next cycle."""
    leader, other = by_lead(
        *(jobs := [start(ft, etcd, nnodes="1:2", silence_s=SILENCE_S) for _ in range(2)])
    )
    has_lived(1, *jobs)

    other.signal(signal.SIGKILL)

    (alone,) = has_lived(2, leader)
    assert alone["WORLD_SIZE"] == 1
    assert leader.said("was lost")
    (tmp_path / "end-j1").touch()
    assert leader.wait(BOUND_S) == 0


@pytest.mark.parametrize("nodes", [2, 3])
def test_when_the_leader_is_killed_another_launcher_leads(
    ft: Launcher, etcd: Etcd, tmp_path: Path, nodes: int
) -> None:
    """Also the one that is left of two; a new one finds it by the key."""
    jobs = [start(ft, etcd, nnodes=f"1:{nodes}") for _ in range(nodes)]
    has_lived(1, *jobs)
    leader, *others = by_lead(*jobs)

    leader.signal(signal.SIGKILL)

    lives = has_lived(2, *others)
    assert sorted(life["RANK"] for life in lives) == [*range(nodes - 1)]
    [next_one] = [job for job in others if job.said("this launcher leads the job now, in term 1")]
    assert next_one.said(f"{nodes - 1} of {nodes} launchers follow it")
    assert not leader.leftovers()

    late = start(ft, etcd, nnodes=f"1:{nodes}")
    until(lambda: "WORLD_SIZE" in (late.written("lives") or [""])[0], "the new one has a rank")
    assert has_lived(3, *others)[0]["WORLD_SIZE"] == nodes
    (tmp_path / "end-j1").touch()
    assert [job.wait(BOUND_S) for job in (*others, late)] == [0] * nodes


def test_leaders_can_be_killed_one_after_the_other(
    ft: Launcher, etcd: Etcd, tmp_path: Path
) -> None:
    """Until one launcher is left of three."""
    jobs = [start(ft, etcd, nnodes="1:3") for _ in range(3)]
    has_lived(1, *jobs)
    leader, *others = by_lead(*jobs)
    leader.signal(signal.SIGKILL)
    has_lived(2, *others)
    second, third = by_lead(*others)
    until(lambda: third.said("in term 1|leads the job now"), "it follows")

    second.signal(signal.SIGKILL)

    assert has_lived(3, third)[0]["WORLD_SIZE"] == 1
    assert third.said("leads the job now, in term 2")
    (tmp_path / "end-j1").touch()
    assert third.wait(BOUND_S) == 0


def test_a_leader_that_is_told_to_end_gives_the_lead_to_the_other(
    ft: Launcher, etcd: Etcd, tmp_path: Path
) -> None:
    """A node is drained, of a job of two."""
    jobs = [start(ft, etcd, nnodes="1:2") for _ in range(2)]
    has_lived(1, *jobs)
    leader, other = by_lead(*jobs)

    leader.signal(signal.SIGTERM)

    assert leader.wait(BOUND_S) == 1
    assert has_lived(2, other)[0]["WORLD_SIZE"] == 1
    (tmp_path / "end-j1").touch()
    assert other.wait(BOUND_S) == 0


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_takeover_waits_for_an_etcd_that_is_away(
    ft: Launcher, etcd: Etcd, tmp_path: Path, how: str
) -> None:
    """One line says so; the job goes on when etcd is back."""
    jobs = [start(ft, etcd, nnodes="1:2") for _ in range(2)]
    has_lived(1, *jobs)
    leader, other = by_lead(*jobs)
    if how == "killed":
        etcd.kill()
    else:
        etcd.process.send_signal(signal.SIGSTOP)

    leader.signal(signal.SIGKILL)

    line = "the rendezvous backend at .* does not answer, and only there a launcher can take"
    until(lambda: other.said(line), "the line", BOUND_S)
    assert len(other.written("lives")) == 1
    if how == "killed":
        etcd.start()
    else:
        etcd.process.send_signal(signal.SIGCONT)
    assert has_lived(2, other)[0]["WORLD_SIZE"] == 1
    (tmp_path / "end-j1").touch()
    assert other.wait(BOUND_S) == 0


def test_a_leader_that_dies_with_its_etcd_ends_the_job(ft: Launcher, etcd: Etcd) -> None:
    """After a bounded wait; no rank runs meanwhile."""
    jobs = [start(ft, etcd, nnodes="1:2", silence_s=1.0) for _ in range(2)]
    has_lived(1, *jobs)
    leader, other = by_lead(*jobs)
    etcd.kill()

    leader.signal(signal.SIGKILL)

    assert other.wait(BOUND_S) == 1
    assert other.said("does not answer, and only there a launcher can take the lead")
    assert not other.leftovers()


def test_a_leader_that_finds_another_one_in_the_key_steps_down(
    ft: Launcher, etcd: Etcd, tmp_path: Path
) -> None:
    """Its death was believed, though it lives: it leaves when it forms its next cycle."""
    from holdfast.job.link.meeting_place import OtherBackend
    from holdfast.job.link.other_backends import Election
    from holdfast.job.pure.leader_key import LeaderKey
    from holdfast.job.pure.succession_messages import (
        KeyHeld,
        KeyTaken,
    )

    jobs = [start(ft, etcd, nnodes="1:2") for _ in range(2)]
    first = has_lived(1, *jobs)
    leader, _ = by_lead(*jobs)
    asked = OtherBackend("etcd", f"127.0.0.1:{etcd.port}", 1, 2, None, {})
    another = Election(asked, "j1", LeaderKey("127.0.0.1", 9, 0, "another"), SILENCE_S)
    found = another.hold(stop := threading.Event(), BOUND_S)
    assert found is not None
    found.close()
    held = another.claim(1, (), stop, BOUND_S)
    assert isinstance(held, KeyHeld)
    taken = another.claim(1, (held.holder.node,), stop, BOUND_S)
    assert taken == KeyTaken(held.holder.node, 1)

    kill(first[0]["pid"])

    assert leader.wait(BOUND_S) == 1
    assert leader.said("the launcher at 127.0.0.1:9 leads it, in term 1")


@pytest.mark.parametrize("how", ["stopped", "restarted"])
def test_a_job_goes_on_when_etcd_is_away_for_a_moment(
    ft: Launcher, etcd: Etcd, tmp_path: Path, how: str
) -> None:
    """No cycle ends by it, and faults are handled as always."""
    jobs = [start(ft, etcd) for _ in range(2)]
    first = has_lived(1, *jobs)

    if how == "stopped":
        etcd.process.send_signal(signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):  # nobody leaves
            jobs[0].process.wait(2)
        etcd.process.send_signal(signal.SIGCONT)
    else:
        etcd.kill()
        etcd.start()

    kill(first[0]["pid"])
    second = has_lived(2, *jobs)
    assert [life["WORLD_SIZE"] for life in second] == [2, 2]
    assert [len(job.written("lives")) for job in jobs] == [2, 2]
    (tmp_path / "end-j1").touch()
    assert [job.wait(BOUND_S) for job in jobs] == [0, 0]


def test_a_job_whose_launchers_have_met_goes_on_without_etcd(
    ft: Launcher, etcd: Etcd, tmp_path: Path
) -> None:
    """They talk to each other; a restart needs no key of it."""
    jobs = [start(ft, etcd) for _ in range(2)]
    first = has_lived(1, *jobs)
    etcd.kill()

    kill(first[0]["pid"])

    has_lived(2, *jobs)
    (tmp_path / "end-j1").touch()
    assert [job.wait(BOUND_S) for job in jobs] == [0, 0]


def test_the_first_to_set_the_key_leads_whatever_the_job_s_name_looks_like(etcd: Etcd) -> None:
    """A dead leader there is replaced by the first that has found it dead; an end stays."""
    from holdfast.job.link.meeting_place import OtherBackend
    from holdfast.job.link.other_backends import Election
    from holdfast.job.pure.leader_key import LeaderKey

    asked = OtherBackend("etcd", f"127.0.0.1:{etcd.port}", 1, 2, None, {})
    stop, run_id = threading.Event(), "größe 1/2?~>"

    def ask(port: int) -> tuple[Election, int | None]:
        election = Election(asked, run_id, LeaderKey("127.0.0.1", port, 0, f"n{port}"), 1.0)
        found = election.hold(stop, BOUND_S)
        if found is None:
            return election, None
        with found:
            return election, found.getpeername()[1]

    with socket.socket() as dead, socket.create_server(("127.0.0.1", 0)) as alive:
        dead.bind(("127.0.0.1", 0))
        port = alive.getsockname()[1]
        assert ask(dead.getsockname()[1])[1] is None
        first, leader = ask(port)
        assert leader is None
        assert ask(9)[1] == port
        first.end("all ranks succeeded")
        with pytest.raises(ConnectionError, match=r"is over there .all ranks succeeded"):
            ask(9)


def test_two_jobs_in_one_etcd_do_not_see_each_other(
    ft: Launcher, etcd: Etcd, tmp_path: Path
) -> None:
    """One restarts and ends, and the other goes on in its first cycle."""
    ours = [start(ft, etcd, run_id="j1") for _ in range(2)]
    theirs = [start(ft, etcd, run_id="j2") for _ in range(2)]
    first = has_lived(1, *ours)
    has_lived(1, *theirs)

    kill(first[0]["pid"])

    has_lived(2, *ours)
    (tmp_path / "end-j1").touch()
    assert [job.wait(BOUND_S) for job in ours] == [0, 0]
    assert [len(job.written("lives")) for job in theirs] == [1, 1]
    (tmp_path / "end-j2").touch()
    assert [job.wait(BOUND_S) for job in theirs] == [0, 0]


def test_an_etcd_that_does_not_speak_v2_is_told_in_one_line(ft: Launcher, tmp_path: Path) -> None:
    """With what to do: it is off by default from etcd 3.4 on, and gone in 3.6."""
    server = Etcd(tmp_path)
    try:
        job = start(ft, server)
        assert job.wait(BOUND_S) == 1
        assert job.said("--enable-v2")
        assert "Traceback" not in job.stderr
    finally:
        server.close()
