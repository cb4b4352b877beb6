"""Does an incident name the rank that holds up the job, and how long does the evidence take?

Each run is a cycle of a job of four ranks in which one hangs. Not part of ``python -m bench``
without names: it takes minutes. ``python -m bench why`` runs every case :data:`RUNS` times on one
node and on two; ``WHY_RUNS``, ``WHY_NODES`` (``1,2``) and ``WHY_CASES`` say otherwise.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from bench.figures import Bar, Report
from bench.why_rank import BY_TRAINING, CASES, culprit_of

RUNS = 5
RANKS = 4
ALL = (*CASES, *BY_TRAINING)
_BOUND_S = 60.0
"""For each cycle."""


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
        cases = [name for name in names for _ in range(runs)]
        with tempfile.TemporaryDirectory() as folder:
            for incident in run(Path(folder), cases, nodes):
                case, verdict = incident["case"], incident["verdict"]
                seen[case][verdict] += 1
                evidence_s += incident["evidence_s"]
                death_s += incident["death_s"]
                if verdict == "wrong":
                    wrong.append(incident)
    total = Counter[str]()
    for case, counted in seen.items():
        total += counted
        print(f"  {case:<20}{dict(counted)}", flush=True)
    for incident in wrong:
        print(json.dumps(incident), flush=True)
    every = sum(total.values())
    report.add("named", "%", [100 * total["named"] / every], Bar(95, at_least=True))
    report.add("wrong", "runs", [total["wrong"]], Bar(0))
    report.add("not told", "runs", [total["not told"]])
    report.add("no incident", "runs", [total["no incident"]])
    report.add("first timeout to verdict", "ms", [1e3 * s for s in evidence_s], Bar(500, "p99"))
    report.add("first timeout to first signal", "ms", [1e3 * s for s in death_s], Bar(100))
    return report


def run(folder: Path, cases: list[str], nodes: int) -> list[dict[str, Any]]:
    """One job, with a cycle for each case: what each incident said."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    meets = [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
    command = [
        *(sys.executable, "-m", "holdfast.fault_tolerance.launcher"),
        *(f"--nproc-per-node={RANKS // nodes}", f"--max-restarts={len(cases)}"),
        *("--ft-rank-section-timeouts=step:2", "--ft-safety-factor=1"),
        *(meets if nodes > 1 else ()),
        str(Path(__file__).with_name("why_rank.py")),
    ]
    env = os.environ | {"WHY_CASES": ",".join(cases), "OMP_NUM_THREADS": "1"}
    logs = [folder / f"node{node}" for node in range(nodes)]
    launchers = []
    for node, log in enumerate(logs):
        at = command.index(f"--nproc-per-node={RANKS // nodes}")
        arguments = [*command[:at], f"--log-dir={log}", f"--node-rank={node}", *command[at:]]
        with (folder / f"node{node}.log").open("wb") as output:
            launchers.append(
                subprocess.Popen(arguments, env=env, stdout=output, stderr=output, cwd=folder)
            )
    try:
        for launcher in launchers:
            launcher.wait(_BOUND_S * (len(cases) + 1))
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
    if "WHY_KEEP" in os.environ:
        subprocess.run(["cp", "-r", str(folder), os.environ["WHY_KEEP"]], check=True)
    return [_outcome(logs, cycle, case) for cycle, case in enumerate(cases)]


def _outcome(logs: list[Path], cycle: int, case: str) -> dict[str, Any]:
    folders = [each for log in logs for each in log.iterdir() if not each.is_symlink()]
    paths = [
        path for each in folders for path in each.glob(f"incidents/*-cycle{cycle}/incident.json")
    ]
    found = [json.loads(path.read_text()) for path in paths]
    truth = culprit_of(cycle, RANKS)
    named = [incident["culprits"] for incident in found if incident["culprits"]]
    verdict = "not told" if found else "no incident"
    if named:
        verdict = "named" if all(culprits == [truth] for culprits in named) else "wrong"
    overdue, killed = [], []
    for folder in folders:
        for line in (folder / "events-launcher.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event.get("cycle") == cycle:
                overdue += [event["at"]] if event["kind"] == "rank_overdue" else []
                killed += [event["t"]] if event["kind"] == "monitor_signal" else []
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
