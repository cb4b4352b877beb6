"""Memory of holdfast's processes beside 2 and 8 ranks, and how fast a monitor is ready."""

from __future__ import annotations

import time
from pathlib import Path

from bench.figures import Bar, Report
from bench.monitor import Monitor
from bench.processes import HOLDFAST, TORCHRUN, WARM, launch
from holdfast.net.port import ReservedPort

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
_HELPERS = {
    "monitor": "monitor_main",
    "health process": "host_health_main",
    "observer": "observer_main",
    "process for copies": "peer_copies_main",
}
_SETTLE_S = 5.0


def _mib(pid: int) -> dict[str, float]:
    """RSS counts shared pages fully, PSS by share, USS not at all."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {line.split()[0].rstrip(":"): float(line.split()[1]) for line in lines}
    kib["Uss"] = kib["Private_Clean"] + kib["Private_Dirty"]
    return {kind: kib[kind] / 1024 for kind in _KINDS}


def _helpers_of(launcher: int, name: str) -> list[int]:
    """Children of a launcher that run this module of holdfast, or have this name."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [
        int(pid)
        for pid in children
        if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        or name == Path(f"/proc/{pid}/comm").read_text().strip()
    ]


def _beside(report: Report, ranks: int) -> None:
    with launch(HOLDFAST, _SCRIPT, f"--nproc-per-node={ranks}") as launched:
        launched.wait_for_all("ready", ranks, 0)
        launcher = _mib(launched.process.pid)
        monitors = [_mib(pid) for pid in _helpers_of(launched.process.pid, "monitor_main")]
    assert len(monitors) == ranks
    for kind in _KINDS:
        bars = [Bar(40, "max")] if kind == "Rss" else []
        report.add(f"launcher, {ranks} ranks: {kind.upper()}", "MiB", launcher[kind], *bars)
    for kind in _KINDS:
        bars = [Bar(16, "max")] if kind == "Rss" else []
        each = [monitor[kind] for monitor in monitors]
        report.add(f"monitor, one of {ranks}: {kind.upper()}", "MiB", each, *bars)
    report.add(f"all {ranks} monitors: PSS", "MiB", sum(monitor["Pss"] for monitor in monitors))


def _all_kinds(report: Report) -> None:
    """Each process of a node in a job that may have several, with metrics and kept steps."""
    port = ReservedPort()
    options = (
        "--nnodes=1:2",
        "--rdzv-conf=last_call_timeout=0",
        f"--rdzv-endpoint=127.0.0.1:{port.number}",
        "--nproc-per-node=2",
        "--ft-metrics-port=0",
        "--ft-snapshot-keep=30",
    )
    with launch(HOLDFAST, _SCRIPT, *options) as launched:
        launched.wait_for_all("ready", 2, 0)
        time.sleep(_SETTLE_S)  # helpers start after the ranks, and import what they need
        pid = launched.process.pid
        found = {"launcher": [pid]} | {
            name: _helpers_of(pid, module) for name, module in _HELPERS.items()
        }
        for name, pids in found.items():
            assert pids, name
            each = [_mib(pid) for pid in pids]
            for kind in ("Rss", "Uss"):
                values = [one[kind] for one in each]
                report.add(f"of several nodes: {name}: {kind.upper()}", "MiB", values)
    port.release()


def _parked(report: Report) -> None:
    """A parked interpreter beside a rank that has imported torch alone."""
    script = "import torch\n" + _SCRIPT
    with launch(WARM, script, "--nproc-per-node=2", "--max-restarts=1") as launched:
        launched.wait_for_all("ready", 2, 0)
        launched.wait_for_words("ranks can restart without importing", 1)
        pids = _helpers_of(launched.process.pid, "holdfast-parked")
        assert pids
        each = [_mib(pid) for pid in pids]
    for kind in _KINDS:
        values = [one[kind] for one in each]
        report.add(f"parked interpreter, torch alone: {kind.upper()}", "MiB", values)


def measure(starts: int = STARTS, sizes: tuple[int, ...] = SIZES) -> Report:
    """After every rank has connected to its monitor."""
    report = Report(f"{' and '.join(map(str, sizes))} ranks of plain Python, all watched")
    for ranks in sizes:
        _beside(report, ranks)
    _all_kinds(report)
    _parked(report)
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
