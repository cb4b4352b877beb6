"""Launchers of several nodes on this host: start them, and wait for what their ranks were told."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from holdfast.net.port import ReservedPort
from tests.real.harness import Job, Launcher, read_json_lines
from tests.waiting import SCALE, until

SILENCE_S = 15.0 * SCALE
"""A launcher that says nothing for this long is gone; a busy machine may pause one for seconds."""
SHORT_SILENCE_S = 5.0 * SCALE
"""The same of tests that wait for it."""

SECRET = "correct horse battery staple"
"""Of all launchers here, unless a test says otherwise."""

TELLS_ITS_PLACE = """
import json, os, pathlib, sys, time
out, everybody = pathlib.Path(os.environ["OUT"]), pathlib.Path(os.environ["EVERYBODY"])
NAMES = ("RANK", "GROUP_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
def tell(**more):
    place = {name: os.environ[name] for name in NAMES}
    cycle = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with open(out / "lives", "a") as file:
        file.write(json.dumps({"pid": os.getpid(), "cycle": cycle, **place, **more}) + "\\n")
def work():
    while not (everybody / "end").exists():
        time.sleep(0.01)
"""
"""First lines of a rank's script."""

TELLS = TELLS_ITS_PLACE + "tell()\n"
WORKS = TELLS_ITS_PLACE + "tell()\nwork()\n"

LOSES_A_PEER = (
    TELLS_ITS_PLACE
    + """
tell()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not (everybody / "ask").exists():
        time.sleep(0.01)
    raise RuntimeError("[pair.cc:534] Connection closed by peer [10.0.0.2]:41234")
work()
"""
)
"""As a rank does that waits for one that is gone; in its first life, when asked to."""

REDUCES = (
    TELLS_ITS_PLACE
    + """
import light_torch
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
tell(total=total.item())
work()
dist.destroy_process_group()
"""
)

ASKS = (
    TELLS_ITS_PLACE
    + """
from holdfast.watch.rank.monitor_link import send_control_request
from holdfast.fault_tolerance.data import RankInfo, WorkloadAction, WorkloadControlRequest
tell()
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    request = WorkloadControlRequest(WorkloadAction[os.environ["ASK"]], "ECC errors on GPU 3")
    while not (everybody / "ask").exists():
        time.sleep(0.01)
    rank = int(os.environ["RANK"])
    send_control_request(os.environ["FT_LAUNCHER_IPC_SOCKET"], RankInfo(rank, 0, "here"), request)
    sys.exit(1)
work()
"""
)

HANGS = (
    TELLS_ITS_PLACE
    + """
from holdfast.fault_tolerance import RankMonitorClient
def stuck_in_here():
    import ctypes
    while True:  # the dump's signal ends one sleep
        ctypes.PyDLL(None).sleep(1000)  # holds the interpreter lock
tell()
client = RankMonitorClient()
client.init_workload_monitoring()
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    client.start_section("step")  # the others make no step: a slow one would be a hang
    stuck_in_here()
work()
client.shutdown_workload_monitoring()
"""
)
"""Rank 1 hangs in its first life, the interpreter's lock held; the others work on."""

HANGS_FIRST = (
    TELLS_ITS_PLACE
    + """
from holdfast.fault_tolerance import RankMonitorClient
tell()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        time.sleep(1000)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    while True:
        client.send_heartbeat()
        time.sleep(0.01)
work()  # unwatched: one rank may start much later than the other
"""
)
"""Rank 1 hangs in its first life before its first call; the others have called, and work."""


WAITS_FOR_ANOTHER_NODE = (
    TELLS_ITS_PLACE
    + """
import light_torch
import torch, torch.distributed as dist
from holdfast.fault_tolerance import RankMonitorClient
def load_batch():
    os.mkfifo(out / "data")
    (out / "data").read_bytes()  # nobody writes
dist.init_process_group("gloo")
rank, nproc = dist.get_rank(), int(os.environ["LOCAL_WORLD_SIZE"])
client = RankMonitorClient()
client.init_workload_monitoring()
dist.barrier()
if rank == dist.get_world_size() - 1:
    load_batch()
client.start_section("step" if rank < nproc else "step of the last node")
dist.all_reduce(torch.ones(1))
"""
)
"""The last rank of the last node reads, outside all sections; the first node finds that it waits,
and the last one has no timeouts."""

TRAINS_TOGETHER = (
    TELLS_ITS_PLACE
    + """
import light_torch
import torch, torch.distributed as dist
from holdfast.fault_tolerance import RankMonitorClient
dist.init_process_group("gloo")
client = RankMonitorClient()
client.init_workload_monitoring()
tell()
while not (everybody / "ask").exists():
    time.sleep(0.01)
while True:
    with client.section("step"):
        dist.all_reduce(torch.ones(1))
"""
)
"""When asked to, steps, as long as all ranks make them."""


class Nodes:
    """Launchers that meet at one address; the first leads.

    Attributes:
        host: As the endpoint says it.
        silence_s: Of the launchers that are added from now on, all the same.
    """

    def __init__(self, ft: Launcher, folder: Path) -> None:
        self.host = "127.0.0.1"
        self.silence_s = SILENCE_S
        self._ft = ft
        self._folder = folder
        self._port = ReservedPort()
        self._jobs = 0

    def add(
        self,
        source: str,
        nnodes: str,
        *options: str,
        ask: str = "",
        conf: str = "",
        monitors: bool = False,
        secret: str = SECRET,
        path: Path | None = None,
    ) -> Job:
        """One more launcher of one rank.

        Args:
            source: The script of its rank.
            nnodes: ``--nnodes``.
            options: More of them.
            ask: What the script ``ASKS`` asks for.
            conf: ``--rdzv-conf``; empty: the first one hosts the store.
            monitors: Ranks have monitors.
            secret: Of the job.
            path: A folder that the launcher imports from first.
        """
        script = self._ft.script(source, f"script{self._jobs}.py")
        first, self._jobs = self._jobs == 0, self._jobs + 1
        own = f"is_host={int(first)},keep_alive_timeout={self.silence_s:g},last_call_timeout=20"
        return self._ft.start(
            *("--nnodes", nnodes, "--nproc-per-node=1", "--max-restarts=3", "--rdzv-id=j1"),
            *("--workers-stop-timeout=5", "--log-dir=logs", "--rdzv-conf", conf or own),
            f"--rdzv-endpoint={self.host}:{self._port.number}",
            *options,
            script,
            env={
                "EVERYBODY": str(self._folder),
                "ASK": ask,
                "NVRX_DISABLE_RANK_MONITORS": str(int(not monitors)),
                **({"HOLDFAST_JOB_SECRET": secret} if secret else {}),
                **({"PYTHONPATH": str(path)} if path else {}),
            },
        )

    def add_witness(self, *options: str) -> Job:
        """A witness of the job."""
        return self._ft.start(
            *("witness", f"{self.host}:{self._port.number}", "--rdzv-id=j1"),
            *("--rdzv-conf", f"keep_alive_timeout={self.silence_s:g}", *options),
            module="holdfast.cli",
            env={"HOLDFAST_JOB_SECRET": SECRET},
        )

    @property
    def port(self) -> int:
        """Where they meet."""
        return self._port.number

    def ask(self) -> None:
        """Ranks that wait to be asked do what they wait for."""
        (self._folder / "ask").touch()

    def end(self) -> None:
        """All ranks that work may end well."""
        (self._folder / "end").touch()

    def close(self) -> None:
        """Free the port."""
        self._port.release()


def life(job: Job, cycle: int) -> dict[str, Any] | None:
    """What the rank of a launcher was told in a cycle."""
    lives = (told for told in read_json_lines(job.written("lives")) if told["cycle"] == cycle)
    return next(lives, None)


def in_cycle(cycle: int, *jobs: Job) -> list[dict[str, Any]]:
    """Wait until exactly these launchers are in the cycle; they have one place each, and agree."""

    def told_or_over(job: Job) -> dict[str, Any] | None:
        told = life(job, cycle)
        assert told or job.process.poll() is None, f"it ended before cycle {cycle}\n{job.stderr}"
        return told

    found = [until(partial(told_or_over, job), f"{job.folder.name} in {cycle}") for job in jobs]
    assert sorted(int(told["RANK"]) for told in found) == list(range(len(jobs)))
    for told in found:
        assert told["GROUP_RANK"] == told["RANK"]  # one rank per node here
        assert told["WORLD_SIZE"] == told["GROUP_WORLD_SIZE"] == str(len(jobs))
    assert len({(told["MASTER_ADDR"], told["MASTER_PORT"]) for told in found}) == 1
    return found


def joined(job: Job) -> None:
    """Wait until a launcher's wish to take part is in the mailbox; it need not get a place."""
    until(lambda: job.said("joined the job 'j1'"), f"{job.folder.name} has joined")
