"""Three launchers of one rank each and a spare: SIGKILL of a launcher until all have a group again.

The ranks of ours wait in the kernel, so nothing but the launchers tells them; those of torchrun
exchange sums all the time and fail when the other is gone, which its launchers need. All on this
machine, as for :mod:`bench.nodes`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from bench.figures import Bar, Report
from bench.nodes import GROUP, PLAIN, WARM, command
from bench.processes import STAMP, TORCHRUN_ALONE, BenchError, Launch, Stamp, folder
from holdfast.net.port import ReservedPort

NODES = 3
LOSSES = 6
THEIRS = 2
"""Losses under torchrun: each takes the time after which it takes a launcher for lost."""
LEADER, FOLLOWER = 0, 1
KINDS = (WARM, PLAIN, TORCHRUN_ALONE)
BOUND_S = 60.0

_SCRIPT = f"""{GROUP}
while True:
    if EXCHANGES:
        time.sleep(0.01)
        dist.all_reduce(ones)
    else:
        signal.pause()
"""


@contextlib.contextmanager
def _job(kind: str) -> Iterator[list[Launch]]:
    port = ReservedPort()
    with folder() as path:
        script = path / "script.py"
        script.write_text(STAMP + f"EXCHANGES = {kind == TORCHRUN_ALONE}\n" + _SCRIPT)
        launches: list[Launch] = []
        try:
            for number in range(NODES + 1):
                warm = ("--ft-warm-start=true",) if kind == WARM and number == NODES else ()
                at = command(kind, number, port.number, NODES)
                launches.append(Launch(kind, script, warm, path, command=at, name=str(number)))
                if number == NODES - 1:  # the last one is the spare
                    launches[0].wait_for_all("ready", NODES, 0)
            yield launches
        finally:
            for launched in reversed(launches):
                launched.end()
            port.release()


def _lose(kind: str, victim: int) -> dict[str, float]:
    """Milliseconds until each stage, on the last node to reach it.

    ``told``: missing where the leader is lost, as the others kill their ranks at once.

    Raises:
        BenchError: They have no group within the bound.
    """
    with _job(kind) as launches:
        if kind == WARM:
            for launched in launches:
                launched.wait_for_words("can restart without importing", 1)
        elif kind == PLAIN:
            launches[NODES].wait_for_words("waits as a spare", 1)
        else:
            time.sleep(2.0)  # its spare says nothing
        killed_at = time.monotonic()
        launches[victim].process.kill()
        survivor = launches[FOLLOWER if victim == LEADER else LEADER]

        def all_ready() -> list[Stamp] | bool:
            stamps = [each for each in survivor.stamps("ready") if each.at > killed_at]
            return len(stamps) >= NODES and stamps

        ready = survivor.wait_for(all_ready, "a group after the loss", BOUND_S)
        stages = {"told": survivor.stamps("told", 0), "group": ready}
        return {
            stage: (max(stamp.at for stamp in stamps) - killed_at) * 1e3
            for stage, stamps in stages.items()
            if stamps
        }


def measure(losses: int = LOSSES) -> Report:
    """All kinds in turn, each loss in a job of its own."""
    report = Report(f"{NODES} launchers and a spare; SIGKILL of a launcher, {losses} of each")
    tried = {kind: min(losses, THEIRS) if kind == TORCHRUN_ALONE else losses for kind in KINDS}
    for victim, name, bar_ms in ((FOLLOWER, "launcher", 500.0), (LEADER, "leader", 1500.0)):
        taken: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for number in range(losses):
            for kind in KINDS:
                if number < tried[kind]:
                    with contextlib.suppress(BenchError):
                        taken[kind].append(_lose(kind, victim))
        for kind in KINDS:
            is_ours = kind != TORCHRUN_ALONE
            if is_ours and victim == FOLLOWER:
                told = [times["told"] for times in taken[kind]]
                report.add(f"{kind}: {name} killed to last rank told", "ms", told, Bar(50.0))
            groups = [times["group"] for times in taken[kind]]
            bars = (Bar(bar_ms),) if kind == WARM else ()
            report.add(f"{kind}: {name} killed to group on all", "ms", groups, *bars)
            bars = (Bar(0.0),) if is_ours else ()
            failed = tried[kind] - len(groups)
            no_group = f"{kind}: {name} killed, no group within {BOUND_S:g} s"
            report.add(no_group, f"/{tried[kind]}", failed, *bars)
    return report
