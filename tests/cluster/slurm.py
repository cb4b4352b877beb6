"""A Slurm of three nodes on this machine, in a folder: daemons, jobs, and what became of them.

Each node has a network namespace and a host name of its own, all of them on one bridge: it has its
own address and ports, and losing it looks to the others as it does with real machines.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tests.waiting import SCALE, until

BOUND_S = 60 * SCALE
NODES = {"n0": "10.77.0.10", "n1": "10.77.0.11", "n2": "10.77.0.12"}
CONTROLLER = "10.77.0.1"
KILL_WAIT_S = 20
"""Slurm's KillWait and the grace time of preemption: what scancel leaves the launchers."""
SBATCH = Path(__file__).parents[2] / "examples" / "deploy" / "slurm.sbatch"

_CONF = """
ClusterName=holdfast
SlurmctldHost=ctl({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
MailProg=/bin/true
KillWait={kill_wait}
SlurmdTimeout=10
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[0-2] NodeAddr=10.77.0.[10-12] CPUs=64 Gres=gpu:8
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={kill_wait}
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""


class Job:
    """One job, through all its lives."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number

    def shown(self) -> dict[str, str]:
        """What ``scontrol show job`` says."""
        text = _run("scontrol", "show", "job", str(self.number))
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def shown_step(self) -> str:
        """What ``scontrol show step`` says of the launchers' step."""
        return _run("scontrol", "show", "step", f"{self.number}.0")

    @property
    def said(self) -> str:
        """Output of the batch script, and so of all launchers."""
        path = self.folder / f"slurm-{self.number}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def lines(self, name: str) -> list[str]:
        """Of a file that ranks append to."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def until_state(self, state: str, bound_s: float = BOUND_S) -> dict[str, str]:
        """Wait for this state of the job; what is shown of it then."""

        def there() -> dict[str, str] | None:
            shown = self.shown()
            ended = shown["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
            assert not ended or shown["JobState"] == state, f"{shown}\n{self.said}"
            return shown if shown["JobState"] == state else None

        try:
            found: dict[str, str] = until(there, f"job is {state}", bound_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.shown()}\n{self.said}") from None
        return found

    def until(self, condition: Callable[[], object], what: str, bound_s: float = BOUND_S) -> None:
        """Wait for something of this job, with its output where it does not come."""
        try:
            until(condition, what, bound_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.shown()}\n{self.said}") from None

    def processes(self) -> list[int]:
        """Pids of this job on all nodes, by the environment that Slurm gave them."""
        wanted = f"SLURM_JOB_ID={self.number}\0".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def scancel(self) -> None:
        """As a person would."""
        _run("scancel", str(self.number))

    def close(self) -> None:
        """End it, whatever it does; its nodes are free afterwards."""
        self.scancel()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

        def over() -> bool:
            _run("scontrol", "update", f"JobId={self.number}", "Requeue=0")
            return _run("squeue", "-h", "-j", str(self.number)).strip() == ""

        until(over, f"job {self.number} is gone", BOUND_S)


class Cluster:
    """Daemons in a folder. The namespaces of the test run end what :meth:`close` does not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        folder.chmod(0o755)  # munged asks for that
        (folder / "state").mkdir()
        self._make_network()
        conf = folder / "slurm.conf"
        conf.write_text(_CONF.format(folder=folder, kill_wait=KILL_WAIT_S, controller=CONTROLLER))
        for number in range(8):
            (folder / f"gpu{number}").touch()
        (folder / "gres.conf").write_text(f"NodeName=n[0-2] Name=gpu File={folder}/gpu[0-7]\n")
        os.environ["SLURM_CONF"] = str(conf)
        self._start_munge()
        self._daemon("slurmctld", "-D")
        for node in NODES:
            self._start_node(node)
        try:
            for node in NODES:
                self.until_up(node)
        except AssertionError as error:
            log = (folder / "slurmctld.log").read_text()
            self.close()
            raise AssertionError(f"{error}\n{log}") from None

    def _make_network(self) -> None:
        names = {"localhost": "127.0.0.1", "ctl": CONTROLLER, **NODES}
        hosts = self.folder / "hosts"
        hosts.write_text("".join(f"{addr} {name}\n" for name, addr in names.items()))
        _must("mount", "--bind", str(hosts), "/etc/hosts")
        Path("/run/netns").mkdir(exist_ok=True)
        _must("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        _ip("link add bridge type bridge")
        _ip(f"addr add {CONTROLLER}/24 dev bridge")
        _ip("link set bridge up")
        for name, addr in NODES.items():
            _ip(f"netns add {name}")
            _ip(f"link add {name} type veth peer name eth0 netns {name}")
            _ip(f"link set {name} master bridge up")
            _ip(f"-n {name} addr add {addr}/24 dev eth0")
            for link in ("eth0", "lo"):
                _ip(f"-n {name} link set {link} up")

    def _start_node(self, name: str) -> None:
        begin = f"hostname {name} && exec slurmd -D -N {name}"
        inside = ("nsenter", f"--net=/run/netns/{name}", "unshare", "--uts", "sh", "-c", begin)
        self._daemon(*inside, name=name)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._daemon(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            *(f"--{name}-file={self.folder / ('munge.' + name)}" for name in ("log", "pid")),
            f"--seed-file={self.folder / 'munge.seed'}",
            f"--socket={self.folder / 'munge.socket'}",
        )
        until((self.folder / "munge.socket").exists, "munged listens", BOUND_S)

    def _daemon(self, *command: str, name: str = "") -> None:
        name = name or command[0]
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def until_up(self, node: str) -> None:
        """Wait until jobs can have it."""

        def is_up() -> re.Match[str] | None:
            shown = _run("scontrol", "show", "node", node)
            return re.search("State=(IDLE|MIXED|ALLOCATED) ", shown)

        until(is_up, f"{node} is up", BOUND_S)

    def submit(
        self,
        folder: Path,
        source: str,
        sizes: Mapping[str, str],
        *options: str,
    ) -> Job:
        """Submit the example with other sizes and paths, and this script as train.py."""
        folder.mkdir(exist_ok=True)
        (folder / "checkpoints").mkdir(exist_ok=True)
        (folder / "train.py").write_text(source)
        text = SBATCH.read_text()
        for old, new in {**sizes, "    ft_launcher \\": f"    {_LAUNCHER} \\"}.items():
            assert text.count(old) == 1, f"{old!r} is not in the example once"
            text = text.replace(old, new)
        (folder / "slurm.sbatch").write_text(text)
        done = subprocess.run(
            ["sbatch", "--parsable", *options, "slurm.sbatch"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return Job(folder, int(done.stdout))

    def lose(self, node: str) -> None:
        """Its power fails: the link is down without a word, and all that ran there is gone."""
        namespace = _network_of(self._daemons[node].pid)
        _ip(f"link set {node} down")
        for folder in Path("/proc").glob("[0-9]*"):
            if _network_of(int(folder.name)) == namespace:
                with suppress(ProcessLookupError):
                    os.kill(int(folder.name), signal.SIGKILL)
        self._daemons.pop(node).wait()

    def bring_back(self, node: str) -> None:
        """It boots again."""
        _ip(f"link set {node} up")
        self._start_node(node)
        self.until_up(node)

    def close(self) -> None:
        """End the daemons; what they still run ends with the namespaces."""
        for daemon in self._daemons.values():
            daemon.kill()
        for daemon in self._daemons.values():
            daemon.wait()
        _run("umount", "/etc/hosts")


_LAUNCHER = f"{sys.executable} -m holdfast.fault_tolerance.launcher"


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _network_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def _must(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _ip(arguments: str) -> None:
    _must("ip", *arguments.split())
