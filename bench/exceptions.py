"""From an exception in a rank to the first line of all ranks of the next cycle.

The script of DDP, and those of the big trainers whose package is installed, with and without a
thread that is not a daemon and does not end. torchrun beside it, in turn, in jobs of its own.
"""

from __future__ import annotations

import contextlib
from importlib.util import find_spec

from bench.figures import Report
from bench.processes import HOLDFAST, TORCHRUN_ALONE, BenchError, Launch, launch
from bench.trainer_scripts import SCRIPTS

RANKS = 2
RESTARTS = 5
TORCHRUN_RESTARTS = 2
BOUND_S = 45.0
"""For torchrun, which waits for the thread."""
STEPS = 30
"""In each cycle, before the exception."""

DDP = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(4, 32)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    stamp("step")
"""
RAISES = f"""
_write, _steps = stamp, 0
def stamp(what):
    global _steps
    _write(what)
    _steps += 1
    if _steps == {STEPS} and os.environ["RANK"] == "1":
        _write("raise")
        raise ValueError("bad sample")
"""
THREAD = """
import threading
threading.Thread(target=threading.Event().wait).start()
"""


def _next_cycle(launched: Launch, cycle: int) -> float:
    """Seconds from the exception of a cycle until all ranks of the next one have begun."""
    [raised] = launched.wait_for_all("raise", 1, cycle, 2 * BOUND_S)
    begun = launched.wait_for_all("first", RANKS, cycle + 1, BOUND_S)
    return max(stamp.at for stamp in begun) - raised.at


def _measure(report: Report, name: str, script: str, restarts: int, others: int) -> None:
    for thread in ("", THREAD):
        taken: dict[str, list[float]] = {}
        for kind, times in ((HOLDFAST, restarts), (TORCHRUN_ALONE, others)):
            found = taken[kind] = []
            arguments = f"--nproc-per-node={RANKS}", "--max-restarts=1000"
            source = RAISES + thread + script
            with launch(kind, source, *arguments) as launched, contextlib.suppress(BenchError):
                for cycle in range(times):
                    found.append(_next_cycle(launched, cycle))  # noqa: PERF401 - see below
            what = f"{name}{', with a thread' if thread else ''}, {kind}"
            report.add(f"{what}: exception to the first line of all", "s", found)
            if len(found) < times:
                report.add(f"{what}: none within {BOUND_S:g} s", f"/{times}", times - len(found))


def measure(restarts: int = RESTARTS, others: int = TORCHRUN_RESTARTS) -> Report:
    """DDP, and all that are installed."""
    report = Report(f"{RANKS} ranks, no warm standby; {restarts} exceptions of each")
    scripts = {"DDP": ("torch", DDP), **SCRIPTS}
    for name in ("DDP", "transformers Trainer", "Lightning, DDP"):
        package, script = scripts[name]
        if find_spec(package) is None:
            report.notes.append(f"{name}: {package} is not installed (make trainers)")
        else:
            _measure(report, name, script, restarts, others)
    return report
