"""A job whose launchers have hosts of their own: links that are cut, processes that are frozen."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.host_soak.freezer import Freezer
from tests.host_soak.lives import Life, Noted, lives, noted
from tests.processes import is_alive
from tests.real.harness import Job, Launcher
from tests.real.hosts import Network, ip
from tests.real.light_torch import __file__ as LIGHT_TORCH  # noqa: N812 - a path

PORT = 29400
LOOK_S = 0.25
"""How often a condition is looked at: several jobs share two processors."""
TRAINING = Path(__file__).with_name("training.py")
STEPS_MIN = 15
"""A cycle of which all ranks made so many steps works; they make ten in a second."""


class Layout(NamedTuple):
    """Launchers of a job; ``witness``: a further host with a witness."""

    name: str
    launchers: int
    nnodes: str
    witness: bool = False

    @property
    def hosts(self) -> int:
        return self.launchers + self.witness

    @property
    def most(self) -> int:
        """Of its hosts so many have ranks, when all are there."""
        return int(self.nnodes.rpartition(":")[2])


LAYOUTS = (
    Layout("3 of 3", 3, "3"),
    Layout("2 to 3", 3, "2:3"),
    Layout("3 and a spare", 4, "3"),
    Layout("3 to 5", 5, "3:5"),
    Layout("5 and a spare", 6, "5"),
    Layout("2 and a witness", 2, "1:2", witness=True),
)


def wait_for(condition: Callable[[], object], what: str, bound_s: float) -> None:
    """As :func:`tests.waiting.until`, with the pace of one that waits for minutes."""
    until = time.monotonic() + bound_s
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"not within {bound_s:g} s: {what}")
        time.sleep(LOOK_S)


class HostJob:
    """One job on hosts of its own."""

    def __init__(
        self, ft: Launcher, network: Network, layout: Layout, silence_s: float, training: str
    ) -> None:
        self.layout = layout
        self.network = network
        self.folder = ft.folder
        self.silence_s = silence_s
        self.freezers: list[Freezer] = []
        self.jobs: list[Job] = []
        self._ft = ft
        self._training = training
        self._name = f"job-{os.getpid()}"
        self._stack = ExitStack()

    def start(self) -> None:
        """All launchers, and the witness; wait until ranks train."""
        for number in range(self.layout.hosts):
            prefix = self.network.add()
            freezer = Freezer(self.network.hosts[number])
            self._stack.callback(freezer.close)
            self.freezers.append(freezer)
            is_witness = number >= self.layout.launchers
            command = self._witness() if is_witness else self._launcher(number)
            module = "holdfast.cli" if is_witness else "holdfast.fault_tolerance.launcher"
            env = {
                "EVERYBODY": str(self.folder),
                "OMP_NUM_THREADS": "1",
                "TRAINING": self._training,
                "TOOLS": str(Path(LIGHT_TORCH).parent),
            }
            prefix = [*freezer.prefix(), *prefix]
            self.jobs.append(self._ft.start(*command, env=env, module=module, prefix=prefix))
        self.until_settled("the first cycle", 120)

    @property
    def _endpoint(self) -> str:
        return f"{self.network.v4(0)}:{PORT}"

    def _launcher(self, number: int) -> list[str]:
        conf = f"is_host={int(number == 0)},keep_alive_timeout={self.silence_s:g}"
        return [
            *("--nnodes", self.layout.nnodes, "--nproc-per-node=1", "--max-restarts=50"),
            *(f"--rdzv-id={self._name}", "--workers-stop-timeout=5", "--log-dir=logs"),
            *("--ft-warm-standby=false", "--rdzv-conf", f"{conf},last_call_timeout=3"),
            *(f"--rdzv-endpoint={self._endpoint}", f"--local-addr={self.network.v4(number)}"),
            str(TRAINING),
        ]

    def _witness(self) -> list[str]:
        conf = f"keep_alive_timeout={self.silence_s:g}"
        return ["witness", self._endpoint, f"--rdzv-id={self._name}", "--rdzv-conf", conf]

    # ------------------------------------------------------------ what it does
    @property
    def launchers(self) -> list[Job]:
        return self.jobs[: self.layout.launchers]

    def noted(self) -> list[list[Noted]]:
        """What the ranks of each launcher noted."""
        return [noted(job.folder / "lives") for job in self.launchers]

    def lives(self) -> list[Life]:
        return [life for host, lines in enumerate(self.noted()) for life in lives(host, lines)]

    def cycle(self) -> int:
        """The newest that has ranks."""
        return max((life.cycle for life in self.lives()), default=-1)

    def until_settled(self, what: str, bound_s: float) -> None:
        """Wait: all for which there are places take part, the others wait; ranks make steps."""
        since = time.monotonic()
        try:
            wait_for(lambda: not self._missing(since), what, bound_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._missing(since)}") from None

    def _missing(self, since: float) -> str:
        """What is, of a job that works; empty: nothing."""
        self.must_run()
        lines = self.noted()
        cycle = max((it[-1].cycle for it in lines if it), default=-1)
        hosts = [host for host, it in enumerate(lines) if it and it[-1].cycle == cycle]
        steps = [
            sum(it.what == "step" and it.cycle == cycle and it.at > since for it in lines[host])
            for host in hosts
        ]
        if not steps or min(steps) < STEPS_MIN:
            return f"cycle {cycle} makes no steps, hosts {hosts}"
        out = [it for it in range(self.layout.launchers) if it not in hosts]
        waiting = [it for it in out if self._stands_by(self.jobs[it])]
        if out != waiting or len(hosts) < self.layout.most:
            return f"cycle {cycle} has hosts {hosts}, and hosts {waiting} as spares"
        return ""

    def _stands_by(self, job: Job) -> bool:
        """The last that it said of its place is that it waits for one."""
        said = job.stderr
        last = max(said.rfind(it) for it in ("stops its ranks", "no message from the leader"))
        return said.rfind("waits as a spare") > last

    def must_run(self) -> None:
        for number, job in enumerate(self.jobs):
            code = job.process.poll()
            assert code is None, f"the launcher of host {number} has ended with {code}"

    def causes(self, since: float) -> list[str]:
        """Why cycles ended since then, as the launchers found each for itself."""
        found = [
            str(event["cause"])[:90]
            for job in self.launchers
            for event in job.events("cycle_stopping")
            if float(event["t"]) > since
        ]
        return sorted({*found})

    def leader(self) -> int:
        """The host whose launcher said last that it leads."""
        found = [0, 0]
        for number, job in enumerate(self.launchers):
            for line in job.stderr.splitlines():
                if "this launcher leads the job now, in term" in line:
                    term = int(line.split("in term ")[1].split(":")[0].split()[0])
                    found = max(found, [term, number])
        return found[1]

    def end(self, bound_s: float) -> None:
        """The training is over; all exit with 0, and no process is left."""
        (self.folder / "end").touch()
        wait_for(
            lambda: all(job.process.poll() is not None for job in self.jobs), "the end", bound_s
        )
        codes = [job.process.poll() for job in self.jobs]
        assert not any(codes), f"exit codes {codes}"
        self.must_leave_nothing()

    def must_leave_nothing(self) -> None:
        def left() -> list[int]:
            return [pid for it in self.freezers for pid in it.pids() if is_alive(pid)]

        wait_for(lambda: not left(), "no process of a host is left", 10)
        assert not any(job.leftovers() for job in self.launchers)

    # ------------------------------------------------------------ faults
    def freeze(self, host: int) -> None:
        self.freezers[host].freeze()

    def thaw(self, host: int) -> None:
        self.freezers[host].thaw()

    def cut(self, host: int) -> None:
        assert ip("link", "set", self.network.hosts[host], "down").returncode == 0

    def heal(self, host: int) -> None:
        assert ip("link", "set", self.network.hosts[host], "up").returncode == 0

    def stop(self, host: int) -> None:
        os.kill(self.jobs[host].process.pid, signal.SIGSTOP)

    def go_on(self, host: int) -> None:
        os.kill(self.jobs[host].process.pid, signal.SIGCONT)

    def close(self) -> None:
        """Whatever was done is undone, so that all processes can end."""
        for freezer in self.freezers:
            freezer.thaw()
            for pid in freezer.pids():
                if is_alive(pid):
                    os.kill(pid, signal.SIGKILL)
        for job in self.jobs:
            job.process.wait(10)
        self._stack.close()
