"""Memory of launcher and monitors beside 2 and 8 ranks, and how fast a monitor is ready."""

from __future__ import annotations

from pathlib import Path

from bench.figures import Bar, Report
from bench.monitor import Monitor
from bench.processes import HOLDFAST, TORCHRUN, launch

STARTS = 40
SIZES = (2, 8)
_SCRIPT = """
if "FT_RANK_MONITOR_IPC_SOCKET" in os.environ:
    from holdfast.fault_tolerance import RankMonitorClient
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.send_heartbeat()
stamp("ready")
while True:
    signal.pause()
"""
_KINDS = ("Rss", "Pss", "Uss")


def _mib(pid: int) -> dict[str, float]:
    """RSS counts shared pages fully, PSS by share, USS not at all."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {line.split()[0].rstrip(":"): float(line.split()[1]) for line in lines}
    kib["Uss"] = kib["Private_Clean"] + kib["Private_Dirty"]
    return {kind: kib[kind] / 1024 for kind in _KINDS}


def _monitors_of(launcher: int) -> list[int]:
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [
        int(pid) for pid in children if b"monitor_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def _beside(report: Report, ranks: int) -> None:
    with launch(HOLDFAST, _SCRIPT, f"--nproc-per-node={ranks}") as launched:
        launched.wait_for_all("ready", ranks, 0)
        launcher = _mib(launched.process.pid)
        monitors = [_mib(pid) for pid in _monitors_of(launched.process.pid)]
    assert len(monitors) == ranks
    for kind in _KINDS:
        bars = [Bar(40, "max")] if kind == "Rss" else []
        report.add(f"launcher, {ranks} ranks: {kind.upper()}", "MiB", launcher[kind], *bars)
    for kind in _KINDS:
        bars = [Bar(16, "max")] if kind == "Rss" else []
        each = [monitor[kind] for monitor in monitors]
        report.add(f"monitor, one of {ranks}: {kind.upper()}", "MiB", each, *bars)
    report.add(f"all {ranks} monitors: PSS", "MiB", sum(monitor["Pss"] for monitor in monitors))


def measure(starts: int = STARTS, sizes: tuple[int, ...] = SIZES) -> Report:
    """After every rank has connected to its monitor."""
    report = Report(f"{' and '.join(map(str, sizes))} ranks of plain Python, all watched")
    for ranks in sizes:
        _beside(report, ranks)
    with launch(TORCHRUN, _SCRIPT, "--nproc-per-node=2") as launched:
        launched.wait_for_all("ready", 2, 0)
        torchrun = _mib(launched.process.pid)
    for kind in _KINDS:
        report.add(f"alternative: torchrun, 2 ranks: {kind.upper()}", "MiB", torchrun[kind])

    ready: list[float] = []
    for _ in range(starts):
        with Monitor({"step": 60.0}) as monitor:
            ready.append(monitor.ready_ms)
    report.add("monitor: exec to ready", "ms", ready, Bar(30))
    return report
