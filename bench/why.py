"""Does an incident name the rank that holds up the job, and how long does the evidence take?

Each run is a cycle of a job of four ranks in which one hangs, or a job of two nodes of which one is
stopped: all of it, or its launcher alone. Not part of ``python -m bench`` without names: it takes
minutes. ``python -m bench why`` runs every case :data:`RUNS` times on one node and on two;
``WHY_RUNS``, ``WHY_NODES`` (``1,2``) and ``WHY_CASES`` say otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.figures import Bar, Report
from bench.why_rank import BY_TRAINING, CASES, STOPPED_NODES, culprit_of
from holdfast.base.processes import proc

RUNS = 5
RANKS = 4
ALL = (*CASES, *BY_TRAINING, *STOPPED_NODES)
BLAMELESS = ("stopped launcher",)
"""No rank hangs: an incident that names one is wrong."""
_UNTOLD = "stopped leader"
"""The other nodes cannot ask each other without it, so that no rank can be named."""
_BOUND_S = 60.0
"""For each cycle."""
_SILENCE_S = 6.0
"""After which a stopped launcher is out of its job."""


def measure() -> Report:
    """All cases."""
    report = Report(f"incidents of jobs of {RANKS} ranks, one of which hangs")
    runs = int(os.environ.get("WHY_RUNS", RUNS))
    names = os.environ.get("WHY_CASES", ",".join(ALL)).split(",")
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    evidence_s: list[float] = []
    death_s: list[float] = []
    wrong = []
    for nodes in map(int, os.environ.get("WHY_NODES", "1,2").split(",")):
        cases = [name for name in names for _ in range(runs) if name not in STOPPED_NODES]
        stops = [name for name in names for _ in range(runs) if name in STOPPED_NODES]
        with tempfile.TemporaryDirectory() as folder:
            found = run(Path(folder), cases, nodes) if cases else []
            for number, case in enumerate(stops if nodes == 2 else ()):
                found.append(stop_node(Path(folder) / str(number), case))
            for incident in found:
                case, verdict = incident["case"], incident["verdict"]
                seen[case][verdict] += 1
                if case not in STOPPED_NODES:  # one that does not answer is waited for
                    evidence_s += incident["evidence_s"]
                    death_s += incident["death_s"]
                if verdict == "wrong":
                    wrong.append(incident)
    total = Counter[str]()
    for case, counted in seen.items():
        total += counted if case != _UNTOLD else Counter(wrong=counted["wrong"])
        print(f"  {case:<20}{dict(counted)}", flush=True)
    for incident in wrong:
        print(json.dumps(incident), flush=True)
    every = sum(total.values()) - total["no rank"]
    if every:
        report.add("named", "%", [100 * total["named"] / every], Bar(95, at_least=True))
    report.add("wrong", "runs", [total["wrong"]], Bar(0))
    report.add("not told", "runs", [total["not told"]])
    report.add("no incident", "runs", [total["no incident"]])
    if evidence_s and death_s:
        report.add("first timeout to verdict", "ms", [1e3 * s for s in evidence_s], Bar(500, "p99"))
        report.add("first timeout to first signal", "ms", [1e3 * s for s in death_s], Bar(100))
    return report


def run(folder: Path, cases: list[str], nodes: int) -> list[dict[str, Any]]:
    """One job, with a cycle for each case: what each incident said."""
    launchers = _start(folder, cases, nodes, len(cases))
    try:
        for launcher in launchers:
            launcher.wait(_BOUND_S * (len(cases) + 1))
    finally:
        _end(launchers, folder)
    return [_outcome(folder, cycle, case) for cycle, case in enumerate(cases)]


def stop_node(folder: Path, case: str) -> dict[str, Any]:
    """A job of two nodes, one of which is stopped in its training, and goes on after the incident.

    It is out of the job by then. The other one goes on alone, unless its leader is lost.
    """
    folder.mkdir()
    launchers = _start(folder, [case], 2, 1, f"keep_alive_timeout={_SILENCE_S:g}")
    node = STOPPED_NODES[case]
    try:
        _until(lambda: len(list(folder.glob("trains*"))) == RANKS)
        pids = [launchers[node].pid]
        if case not in BLAMELESS:
            pids = list(proc.subtree(launchers[node].pid))
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        launchers[1 - node].wait(_BOUND_S)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        launchers[node].wait(_BOUND_S)
    finally:
        _end(launchers, folder)
    return _outcome(folder, 0, case)


def _until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _BOUND_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the training does not come to its hang")
        time.sleep(0.01)


def _start(
    folder: Path, cases: list[str], nodes: int, restarts: int, conf: str = ""
) -> list[subprocess.Popen[bytes]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    least = 1 if conf else nodes
    endpoint = "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"
    meets = [f"--nnodes={least}:{nodes}", *endpoint]
    command = [
        *(sys.executable, "-m", "holdfast.fault_tolerance.launcher"),
        *(f"--nproc-per-node={RANKS // nodes}", f"--max-restarts={restarts}"),
        *("--ft-rank-section-timeouts=step:2", "--ft-safety-factor=1"),
        *(meets if nodes > 1 else ()),
    ]
    script = str(Path(__file__).with_name("why_rank.py"))
    env = os.environ | {"WHY_CASES": ",".join(cases), "OMP_NUM_THREADS": "1"}
    launchers = []
    for node in range(nodes):
        where = [f"--log-dir={folder}/node{node}", f"--node-rank={node}"]
        if nodes > 1:  # the first one leads
            where.append(f"--rdzv-conf=is_host={int(not node)},{conf}".rstrip(","))
        with (folder / f"node{node}.log").open("wb") as output:
            arguments = [*command, *where, script]
            launchers.append(
                subprocess.Popen(arguments, env=env, stdout=output, stderr=output, cwd=folder)
            )
    return launchers


def _end(launchers: list[subprocess.Popen[bytes]], folder: Path) -> None:
    for launcher in launchers:
        launcher.send_signal(signal.SIGCONT)
        launcher.kill()
        launcher.wait()
    if "WHY_KEEP" in os.environ:
        subprocess.run(["cp", "-r", str(folder), os.environ["WHY_KEEP"]], check=True)


def _truth(case: str, cycle: int) -> list[int]:
    if case in BLAMELESS:
        return []
    if case not in STOPPED_NODES:
        return [culprit_of(cycle, RANKS)]
    at = STOPPED_NODES[case] * RANKS // 2
    return [*range(at, at + RANKS // 2)]


def _outcome(folder: Path, cycle: int, case: str) -> dict[str, Any]:
    folders = [each for each in folder.glob("node*/*") if not each.is_symlink()]
    paths = [
        path for each in folders for path in each.glob(f"incidents/*-cycle{cycle}/incident.json")
    ]
    found = [json.loads(path.read_text()) for path in paths]
    truth = _truth(case, cycle)
    named = [incident["culprits"] for incident in found if incident["culprits"]]
    verdict = "not told" if found else "no incident"
    if named:
        verdict = "named" if all(culprits == truth for culprits in named) else "wrong"
    elif not truth:
        verdict = "no rank"
    overdue, killed = [], []
    for each in folders:
        for line in (each / "events-launcher.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event.get("cycle") == cycle:
                overdue += [event["at"]] if event["kind"] == "rank_overdue" else []
                killed += [event["t"]] if event["kind"] == "kill_sent" else []
    return {
        "case": case,
        "cycle": cycle,
        "truth": truth,
        "verdict": verdict,
        "kind": [incident["kind"] for incident in found],
        "culprits": [incident["culprits"] for incident in found],
        "reason": [incident["reason"] for incident in found],
        "evidence_s": [it["evidence_s"] for it in found if it["evidence_s"] is not None],
        "death_s": [min(killed) - min(overdue)] if killed and overdue else [],
    }
