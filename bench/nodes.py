"""Four launchers of one rank each: SIGKILL of one rank until all nodes have a process group again.

All on this machine, which four imports of torch at once keep busy for seconds: with warm standby
off that is most of what is measured, on both sides. ``python -m bench.nodes --restarts 20``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Bar, Report, table
from bench.processes import (
    STAMP,
    TORCHRUN_ALONE,
    BenchError,
    Launch,
    Stamp,
    folder,
)
from holdfast.net.port import ReservedPort

NODES = 4
RESTARTS = 6
THEIRS = 3
"""Restarts of torchrun at most: each that fails takes the whole bound."""
PLAIN = "holdfast"
WARM = "holdfast, warm"
KINDS = (WARM, PLAIN, TORCHRUN_ALONE)
BOUND_S = 30.0
"""A restart whose ranks have no group after this long has failed."""
PAUSE_S_MAX = 0.3

GROUP = """
def told(*_):
    stamp("told")
    os._exit(0)
signal.signal(signal.SIGTERM, told)
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
assert ones.item() == dist.get_world_size()
stamp("ready")
"""
"""A rank that stamps ``ready`` once its process group has summed, and ``told`` at SIGTERM."""
_SCRIPT = f"""{GROUP}
while True:
    signal.pause()
"""


def command(kind: str, number: int, port: int, nodes: int) -> list[str]:
    """Of one launcher of several on this machine, the first of which leads, or has the store."""
    scripts = Path(sys.executable).parent
    shared = [
        *(f"--nnodes={nodes}", "--nproc-per-node=1", "--max-restarts=1000", "--rdzv-id=bench"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"),
        f"--rdzv-conf=is_host={int(number == 0)}",
    ]
    if kind == TORCHRUN_ALONE:
        return [
            *("/usr/bin/env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "OMP_NUM_THREADS=1"),
            *(sys.executable, str(scripts / "torchrun"), *shared),
        ]
    warm = f"--ft-warm-standby={str(kind == WARM).lower()}"
    return [
        *("/usr/bin/env", "OMP_NUM_THREADS=1", sys.executable, str(scripts / "ft_launcher")),
        *(warm, "--ft-warm-standby-delay=0.2", "--ft-log-level=debug", *shared),
    ]


class _Job:
    """Four launchers, and their ranks that have a group now."""

    def __init__(self, kind: str, launches: list[Launch]) -> None:
        self.kind = kind
        self.launches = launches
        self.ready = launches[0].wait_for_all("ready", NODES, 0)

    def restart(self) -> dict[str, float]:
        """Kill a rank; milliseconds until each stage, on the last node to reach it.

        Raises:
            BenchError: They have no group within the bound.
        """
        first = self.launches[0]
        if self.kind == WARM:
            for launched in self.launches:
                launched.wait_for_words("can restart without importing", self.ready[0].cycle + 1)
        time.sleep(random.uniform(0, PAUSE_S_MAX))
        before = self.ready[0].cycle
        victim = random.choice(self.ready)
        killed_at = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)

        def all_ready() -> list[Stamp] | bool:
            stamps = [each for each in first.stamps("ready") if each.cycle > before]
            found = [each for each in stamps if each.cycle == stamps[-1].cycle]
            return len(found) == NODES and found

        self.ready = first.wait_for(all_ready, "a group after a restart", BOUND_S)
        stages = {
            "told": first.stamps("told", before),
            "started": first.stamps("first", self.ready[0].cycle),
            "group": self.ready,
        }
        return {
            stage: (max(stamp.at for stamp in stamps) - killed_at) * 1e3
            for stage, stamps in stages.items()
        }


@contextlib.contextmanager
def _job(kind: str) -> Iterator[_Job]:
    port = ReservedPort()
    with folder() as path:
        script = path / "script.py"
        script.write_text(STAMP + _SCRIPT)
        launches = [
            Launch(
                kind,
                script,
                (),
                path,
                command=command(kind, number, port.number, NODES),
                name=str(number),
            )
            for number in range(NODES)
        ]
        try:
            yield _Job(kind, launches)
        finally:
            for launched in reversed(launches):
                launched.end()
            port.release()


def measure(restarts: int = RESTARTS) -> Report:
    """All three in turn, each fault in a job of its own kind."""
    report = Report(f"{NODES} launchers of one rank; SIGKILL of a rank, {restarts} of each")
    taken: dict[str, dict[int, dict[str, float]]] = {kind: {} for kind in KINDS}
    tried = {kind: min(restarts, THEIRS) if kind == TORCHRUN_ALONE else restarts for kind in KINDS}
    for kind in KINDS:
        number = 0
        while number < tried[kind]:
            number += 1  # one that never comes up counts as failed, too
            with contextlib.suppress(BenchError), _job(kind) as job:
                taken[kind][number] = job.restart()
                while number < tried[kind]:
                    number += 1
                    taken[kind][number] = job.restart()
    for stage, name in (
        ("told", "last rank told (SIGTERM arrived)"),
        ("started", "all ranks started again"),
        ("group", "group and first all_reduce on all"),
    ):
        for kind in KINDS:
            bars = (Bar(50.0),) if stage == "told" and kind != TORCHRUN_ALONE else ()
            samples = [times[stage] for times in taken[kind].values()]
            report.add(f"{kind}: SIGKILL to {name}", "ms", samples, *bars)
    for kind in KINDS:
        bars = (Bar(0.0),) if kind != TORCHRUN_ALONE else ()
        failed = tried[kind] - len(taken[kind])
        report.add(f"{kind}: no group within {BOUND_S:g} s", f"/{tried[kind]}", failed, *bars)
    for kind in (WARM, PLAIN):
        worked = [number for number in taken[TORCHRUN_ALONE] if number in taken[kind]]
        theirs, ours = (
            [taken[which][number]["group"] for number in worked] for which in (TORCHRUN_ALONE, kind)
        )
        bars = (Bar(1.0, at_least=True),) if worked else ()
        report.add_ratio(f"{kind}: group faster than torchrun", theirs, ours, *bars)
    report.notes.append(
        "torchrun with the setting that lets most of its restarts work; figures are of those that "
        "it finished"
    )
    return report


def main() -> None:
    """Measure this alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=RESTARTS)
    print(table("nodes", measure(parser.parse_args().restarts)))


if __name__ == "__main__":
    main()
