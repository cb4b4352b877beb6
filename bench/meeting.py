"""Two launchers of one job, and two that have a job each, started at once: to the last first line.

The difference is what launchers need to meet. All on this machine, which is as busy with the ones
as with the others.
"""

from __future__ import annotations

import contextlib

from bench.figures import Bar, Report
from bench.nodes import PLAIN, command
from bench.processes import BOUND_S, STAMP, BenchError, Launch, folder
from holdfast.net.port import ReservedPort

NODES = 2
LAUNCHES = 12


def _once(*, together: bool) -> float:
    """Milliseconds from the start of the first launcher to the first line of the last rank."""
    with folder() as path, contextlib.ExitStack() as stack:
        script = path / "script.py"
        script.write_text(STAMP + "os._exit(0)\n")
        ports = [ReservedPort() for _ in range(NODES)]
        for port in ports:
            stack.callback(port.release)
        launches = []
        for number in range(NODES):
            host, nodes = (0, NODES) if together else (number, 1)
            at = command(PLAIN, number - host, ports[host].number, nodes)
            launches.append(Launch(PLAIN, script, (), path, command=at, name=str(number)))
            stack.callback(launches[-1].end)
        for launched in launches:
            if launched.process.wait(BOUND_S):
                raise BenchError(launched.console_tail())
        last_at = max(stamp.at for stamp in launches[0].stamps("first"))
        return (last_at - launches[0].started_at) * 1e3


def measure(launches: int = LAUNCHES) -> Report:
    """One of each in turn."""
    report = Report(f"{NODES} launchers of one rank each, started at once, {launches} times")
    apart, together = [], []
    for _ in range(launches):
        apart.append(_once(together=False))
        together.append(_once(together=True))
    report.add("of a job each: start to first line of all ranks", "ms", apart)
    report.add("of one job: start to first line of all ranks", "ms", together)
    later = [one - other for one, other in zip(together, apart, strict=True)]
    report.add("of one job, later by", "ms", later, Bar(30.0))
    return report
