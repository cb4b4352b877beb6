"""``torchrun --rdzv-backend=holdfast``: torch's own agents, our membership."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.host.port import ReservedPort
from tests.real.harness import BOUND_S, Job, Launcher, read_json_lines, until

AGENTS_BOUND_S = 2 * BOUND_S
"""torchrun imports torch before it does anything, here two at a time."""

WORKS = """
import json, os, pathlib, sys, time
out = pathlib.Path(os.environ["OUT"])
assert "HOLDFAST_JOB_SECRET" not in os.environ
with open(out / "lives", "a") as file:
    names = ("RANK", "WORLD_SIZE", "MASTER_PORT")
    file.write(json.dumps({name: int(os.environ[name]) for name in names}) + "\\n")
def is_there(name):
    return (out.parent / name).exists()
while not is_there("end"):
    if os.environ["RANK"] == "0" and is_there("fail"):
        (out.parent / "fail").unlink()
        sys.exit(3)
    time.sleep(0.01)
"""
"""The rank 0 fails once when it is told to; all end well when they are told to."""


class Agents:
    """Stock torchruns that meet through holdfast; the first hosts the store."""

    def __init__(self, ft: Launcher) -> None:
        self._ft = ft
        self._port = ReservedPort()
        self._first = True

    def add(self, nnodes: str, endpoint: str = "", conf: str = "") -> Job:
        first, self._first = self._first, False
        return self._ft.start(
            *("--nnodes", nnodes, "--nproc-per-node=1", "--max-restarts=2", "--rdzv-id=j1"),
            *("--rdzv-backend=holdfast", "--local-addr=127.0.0.1"),
            f"--rdzv-endpoint={endpoint or f'127.0.0.1:{self._port.number}'}",
            *("--rdzv-conf", conf or f"is_host={int(first)},last_call_timeout=0,grow_cooldown=0"),
            self._ft.script(WORKS),
            module="torch.distributed.run",
            env={"HOLDFAST_JOB_SECRET": "correct horse battery staple"},
        )

    def close(self) -> None:
        self._port.release()


@pytest.fixture
def agents(ft: Launcher) -> Iterator[Agents]:
    """Nothing of the agents stays when the test is over."""
    several = Agents(ft)
    yield several
    several.close()


def lives(job: Job) -> list[dict[str, int]]:
    return read_json_lines(job.written("lives"))


def has_lived(lifes: int, *jobs: Job) -> None:
    """Wait until the rank of each has been started so often."""

    def there() -> bool:
        for job in jobs:
            assert job.process.poll() is None, job.stderr
        return all(len(lives(job)) >= lifes for job in jobs)

    until(there, f"life {lifes} of all ranks", AGENTS_BOUND_S)


def end_well(tmp_path: Path, *jobs: Job) -> None:
    (tmp_path / "end").touch()
    for job in jobs:
        assert job.wait(AGENTS_BOUND_S) == 0, job.stderr
        assert "terminate called" not in job.stderr
        assert "TCPStore.cpp" not in job.stderr  # torch's complaint of a connection cut off


def test_two_torchruns_meet_restart_and_end_well(agents: Agents, tmp_path: Path) -> None:
    """A rank fails once; both have theirs again, with the same numbers, and exit with 0."""
    jobs = [agents.add("2") for _ in range(2)]
    has_lived(1, *jobs)

    (tmp_path / "fail").touch()

    has_lived(2, *jobs)
    end_well(tmp_path, *jobs)
    told = [lives(job) for job in jobs]
    assert sorted(first["RANK"] for first, _ in told) == [0, 1]
    assert all(first["RANK"] == second["RANK"] for first, second in told)
    assert all(life["WORLD_SIZE"] == 2 for lifes in told for life in lifes)
    for cycle in (0, 1):
        assert len({lifes[cycle]["MASTER_PORT"] for lifes in told}) == 1


def test_a_torchrun_that_comes_later_makes_the_job_larger(agents: Agents, tmp_path: Path) -> None:
    """``--nnodes 1:2``: one begins alone, and goes on as one of two."""
    first = agents.add("1:2")
    has_lived(1, first)

    second = agents.add("1:2")

    has_lived(1, second)
    has_lived(2, first)
    end_well(tmp_path, first, second)
    assert [life["WORLD_SIZE"] for life in lives(first)] == [1, 2]
    assert [life["WORLD_SIZE"] for life in lives(second)] == [2]


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("127.0.0.1:0", "takes HOST:PORT with a port of 1 to 65535"),
        ("nowhere.invalid:29400", "the name 'nowhere.invalid' does not resolve"),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_named(agents: Agents, endpoint: str, says: str) -> None:
    """In the error, and nothing is started."""
    job = agents.add("2", endpoint, "is_host=0,read_timeout=1")

    assert job.wait(AGENTS_BOUND_S) == 1
    assert says in job.stderr
    assert not lives(job)
