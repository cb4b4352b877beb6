"""A host is checked before it has ranks: a real health service, a fake driver, real launchers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.processes import proc
from holdfast.tools.doctor import call_sources
from tests.processes import bystander, command_line, descriptors
from tests.real.fixtures import ft
from tests.real.harness import Launcher, kill
from tests.real.health_services import HealthService
from tests.real.nodes import TELLS_ITS_PLACE, WORKS, Nodes, in_cycle, joined, life
from tests.waiting import until

__all__ = ["ft"]  # no forks: they would be in the job before their host is checked

_FAKE = str(Path(__file__).parent.parent / "fake_nvml")
COUNTS_CYCLES = """
import os, sys
with open(os.path.join(os.environ["OUT"], "cycles"), "a") as file:
    file.write(os.environ["TORCHELASTIC_RESTART_COUNT"] + "\\n")
"""
FAILS_AT_FIRST = COUNTS_CYCLES + 'sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")\n'
FAILS_WHEN_ASKED = (
    TELLS_ITS_PLACE
    + """
tell()
if os.environ["ASK"] == "to fail":
    while not (everybody / "ask").exists():
        time.sleep(0.01)
    sys.exit(1)
work()
"""
)
"""One script for all nodes: launchers of another one would be refused."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HealthService]:
    started = HealthService(tmp_path / "health.sock")
    yield started
    started.close()


def test_the_service_is_asked_before_each_start(ft: Launcher, service: HealthService) -> None:
    """Its socket is told to the ranks."""
    script = ft.script(
        FAILS_AT_FIRST.replace(
            "file.write(", 'file.write(os.environ["HOLDFAST_NODE_HEALTH_CHECK_ENDPOINT"] + " " + '
        )
    )
    job = ft.start(
        *("--max-restarts=1", f"--ft-node-health-check-endpoint=unix://{service.path}", script)
    )
    assert job.wait() == 0
    assert service.asked == [["--no-slurm"]] * 2
    assert job.written("cycles") == [f"{service.path} 0", f"{service.path} 1"]


def test_a_node_whose_service_says_unhealthy_gets_no_ranks(
    ft: Launcher, service: HealthService
) -> None:
    """Nothing was started, why is said, and no scheduler calls that completed."""
    service.answer = lambda: {"success": False, "exit_code": 3, "error": "GPU 5: Xid 79"}
    script = ft.script(COUNTS_CYCLES)
    job = ft.start(f"--ft-node-health-check-endpoint={service.path}", "--log-dir=logs", script)
    assert job.wait() == 1
    assert job.written("cycles") == []
    assert job.said(r"\[ERROR\].*service .*says unhealthy \(exit code 3\): GPU 5: Xid 79")
    assert job.said("not healthy after 0 restarts; exit code 1")
    assert job.events("host_checked")[0]["problem"]


def test_a_node_that_becomes_unhealthy_is_not_started_again(
    ft: Launcher, service: HealthService
) -> None:
    """The failure that led there is explained before it leaves."""
    service.answer = lambda: {"success": len(service.asked) == 1, "error": "row remapping failed"}
    script = ft.script(FAILS_AT_FIRST)
    job = ft.start(*("--max-restarts=3", f"--ft-node-health-check-endpoint={service.path}", script))
    assert job.wait() == 1
    assert job.written("cycles") == ["0"]
    assert job.said("First cause: rank 0")
    assert job.said("row remapping failed")


def test_a_check_that_is_killed_is_tried_again_and_holds_up_nobody(
    ft: Launcher, service: HealthService
) -> None:
    """The process that asks dies in the middle; the second answer counts."""

    def killed_the_first_time() -> dict[str, Any]:
        if len(service.asked) == 1:
            (pid,) = until(lambda: _health_processes(job.process.pid), "the health process")
            kill(pid)
        return {"success": True}

    service.answer = killed_the_first_time
    script = ft.script(COUNTS_CYCLES)
    job = ft.start(f"--ft-node-health-check-endpoint={service.path}", script)
    assert job.wait() == 0
    assert (len(service.asked), job.written("cycles")) == (2, ["0"])


def test_an_unhealthy_node_is_replaced_by_a_spare(nodes: Nodes, service: HealthService) -> None:
    """Three launchers for two places: one becomes unhealthy, the spare has its place at once."""
    asks_service = f"--ft-node-health-check-endpoint={service.path}"
    first = nodes.add(FAILS_WHEN_ASKED, "2:2")
    sick = nodes.add(FAILS_WHEN_ASKED, "2:2", asks_service, ask="to fail")
    in_cycle(0, first, sick)
    spare = nodes.add(FAILS_WHEN_ASKED, "2:2")
    joined(spare)
    service.answer = lambda: {"success": False, "error": "NIC mlx5_3 is down"}

    nodes.ask()  # its rank fails

    in_cycle(1, first, spare)
    assert sick.wait() == 0
    assert sick.said("this node is unhealthy: .*NIC mlx5_3 is down")
    assert life(sick, 1) is None
    nodes.end()
    assert (first.wait(), spare.wait()) == (0, 0)


def test_a_leader_s_host_that_is_unhealthy_leads_the_others(
    nodes: Nodes, service: HealthService
) -> None:
    """Its GPUs are broken, not its network; it leaves when nobody needs it."""
    service.answer = lambda: {"success": False, "error": "GPU 0 is lost"}
    host = nodes.add(WORKS, "2:2", f"--ft-node-health-check-endpoint={service.path}")
    others = [nodes.add(WORKS, "2:2"), nodes.add(WORKS, "2:2")]
    in_cycle(0, *others)
    until(lambda: host.said("it stays until they end"), "its host is checked, which may take long")
    assert life(host, 0) is None
    nodes.end()
    assert [other.wait() for other in others] == [0, 0]
    assert host.wait() == 0
    assert host.said("the job of the others has ended, succeeded")
    assert not host.said("joined the job")


def test_a_leader_s_host_that_is_unhealthy_says_why_it_waited_for_nobody(
    nodes: Nodes, service: HealthService
) -> None:
    """With 1: the job was not done. Its host is checked long before it misses the others."""
    service.answer = lambda: {"success": False, "error": "GPU 0 is lost"}
    asks = f"--ft-node-health-check-endpoint={service.path}"
    host = nodes.add(WORKS, "2:2", asks, conf="is_host=1,join_timeout=5")
    assert host.wait() == 1
    assert host.said(r"\[ERROR\].*others has ended, failed: 0 of 2 nodes joined within 5 s")


# ---------------------------------------------------------------- storage
def test_a_node_without_the_storage_of_its_job_gets_no_ranks(ft: Launcher, tmp_path: Path) -> None:
    """And one whose storage answers does."""
    script = ft.script(COUNTS_CYCLES)
    missing = f"--ft-storage-health-check-path={tmp_path},{tmp_path}/checkpoints"
    without = ft.start(missing, script)
    assert (without.wait(), without.written("cycles")) == (1, [])
    assert without.said(rf"\[ERROR\].*storage path {tmp_path}/checkpoints: cannot be reached")
    (tmp_path / "checkpoints").mkdir()
    both = ft.start(missing, script)
    assert (both.wait(), both.written("cycles")) == (0, ["0"])


# ---------------------------------------------------------------- GPUs
class Gpus:
    """What the fake driver of tests/fake_nvml says; changed while launchers run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.env = {
            "FAKE_NVML": str(path),
            "CUDA_VISIBLE_DEVICES": "0,1",  # somebody expects GPUs, though there is no device node
            "PYTHONPATH": os.pathsep.join((_FAKE, os.environ.get("PYTHONPATH", ""))),
        }

    def are(self, *gpus: dict[str, Any], **driver: Any) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"gpus": gpus, **driver}))
        new.rename(self._path)


@pytest.fixture
def gpus(tmp_path: Path) -> Gpus:
    return Gpus(tmp_path / "gpus.json")


def test_a_node_with_a_lost_gpu_gets_no_ranks(ft: Launcher, gpus: Gpus) -> None:
    gpus.are({}, {"error": 15})
    job = ft.start("--nproc-per-node=2", ft.script(COUNTS_CYCLES), env=gpus.env)
    assert job.wait() == 1
    assert job.written("cycles") == []
    assert job.said(r"\[ERROR\].*gpu GPU 1: the driver says: GPU is lost")


def test_a_gpu_that_no_rank_uses_may_be_lost(ft: Launcher, gpus: Gpus) -> None:
    gpus.are({}, {"error": 15})
    job = ft.start("--nproc-per-node=1", ft.script(COUNTS_CYCLES), env=gpus.env)
    assert (job.wait(), job.written("cycles")) == (0, ["0"])


def test_a_driver_that_cannot_be_asked_keeps_no_node_out(ft: Launcher, gpus: Gpus) -> None:
    gpus.are({"errors": {"nvmlDeviceGetFieldValues": 999, "nvmlDeviceGetMemoryInfo": 999}})
    job = ft.start("--max-restarts=1", ft.script(FAILS_AT_FIRST), env=gpus.env)
    assert (job.wait(), job.written("cycles")) == (0, ["0", "1"])
    assert job.stderr.count("gpu GPU 0: recovery action: Unknown Error") == 1, "said once"


def test_a_gpu_that_breaks_under_its_rank_ends_the_cycle_and_the_node_leaves(
    ft: Launcher, gpus: Gpus
) -> None:
    """Its rank is named as the cause, with the device; no collective has to time out first."""
    gpus.are({}, {})
    script = ft.script(COUNTS_CYCLES + "import signal; signal.pause()")
    job = ft.start(
        *("--nproc-per-node=2", "--max-restarts=3", "--log-dir=logs"),
        *("--workers-stop-timeout=5", "--ft-node-health-check-interval=0.05", script),
        env=gpus.env,
    )
    until(lambda: len(job.written("cycles")) == 2, "both ranks run")

    gpus.are({}, {"recovery_action": 2})

    assert job.wait() == 1
    assert job.written("cycles") == ["0", "0"]
    problem = "gpu GPU 1: the driver asks for recovery action 2: reboot this node"
    assert job.said(rf"First cause: rank 1 .*host is not healthy: {problem}")
    assert job.said("not healthy after 0 restarts")


def test_a_restart_waits_for_gpu_memory_and_says_how_long(ft: Launcher, gpus: Gpus) -> None:
    """It ends with the process that holds it, and not at the next look."""
    if call_sources.survey()["pidfd_open"] == call_sources.ABSENT:
        pytest.skip("how it waits is seen by its pidfds, which this kernel lacks")
    gpus.are({})
    script = ft.script(
        FAILS_AT_FIRST.replace(
            "import os, sys",
            """import json, os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    with open(os.environ["FAKE_NVML"], "w") as file:
        json.dump({"gpus": [{"processes": [[int(os.environ["HOLDER"]), 9000]]}]}, file)
""",
        )
    )
    with bystander() as holder:
        job = ft.start(
            *("--max-restarts=1", "--ft-gpu-memory-poll-interval=600", script),
            env={**gpus.env, "HOLDER": str(holder.pid)},
        )
        until(lambda: _waits_for_a_process(job.process.pid), "the wait for memory")
        assert job.written("cycles") == ["0"]
        holder.kill()
    assert (job.wait(), job.written("cycles")) == (0, ["0", "1"])
    assert job.said(
        r"\[INFO\].*GPU memory is free after .*GPU 0: .* \(before that 9\d{3} MiB at 0.00 s"
    )


def test_memory_that_is_not_freed_is_an_error_and_the_start_goes_on(
    ft: Launcher, gpus: Gpus
) -> None:
    gpus.are({})
    script = ft.script(
        FAILS_AT_FIRST.replace(
            "import os, sys",
            """import os, sys
with open(os.environ["FAKE_NVML"], "w") as file:
    file.write('{"gpus": [{"used_mib": 7000}]}')
""",
        )
    )
    job = ft.start("--max-restarts=1", "--ft-gpu-memory-reclaim-timeout=0.2", script, env=gpus.env)
    assert (job.wait(), job.written("cycles")) == (0, ["0", "1"])
    assert job.said(r"\[ERROR\].*GPU memory is still in use 0.2 s after .* GPU 0: 7000 MiB")


def _waits_for_a_process(launcher: int) -> bool:
    """Its health process has a hold on the one whose end will free memory."""
    return any("pidfd" in file for pid in _health_processes(launcher) for file in descriptors(pid))


def _health_processes(launcher: int) -> list[int]:
    return [pid for pid in proc.children(launcher) if b"host_health_main" in command_line(pid)]
