"""Does a restart in place name the rank that held up the others?

Each run is a hang in a call of a function that ``holdfast.inprocess.Wrapper`` decorates, under
``ft_launcher``. Ranks that can be interrupted are, and the job goes on in the same processes. One
that cannot is ended by the hard timeout; then all processes start again. Not part of
``python -m bench`` without names: it takes minutes. ``python -m bench why_in_place`` runs every
case :data:`RUNS` times on one node and on two; ``WHY_RUNS``, ``WHY_NODES`` (``1,2``) and
``WHY_CASES`` say otherwise.
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
from bench.why_rank import BY_TRAINING, CASES

RUNS = 4
"""Half of them call ``ping()`` in each step."""
RANKS = 4
LETHAL = ("interpreter", "interpreter asleep", "stopped", "native")
"""Nothing interrupts these."""
_BOUND_S = 30.0
"""For each hang."""


def measure() -> Report:
    """All cases."""
    report = Report(f"restarts in place of jobs of {RANKS} ranks, one of which hangs")
    runs = int(os.environ.get("WHY_RUNS", RUNS))
    names = os.environ.get("WHY_CASES", ",".join((*CASES, *BY_TRAINING))).split(",")
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    wrong = []
    for nodes in map(int, os.environ.get("WHY_NODES", "1,2").split(",")):
        with tempfile.TemporaryDirectory() as folder:
            for hang in run(Path(folder), [name for name in names for _ in range(runs)], nodes):
                seen[hang["case"]][hang["verdict"]] += 1
                if hang["verdict"] != "named":
                    wrong.append(hang | {"nodes": nodes})
    for case, counted in seen.items():
        print(f"  {case:<20}{dict(counted)}", flush=True)
    for hang in wrong:
        print(json.dumps(hang), flush=True)
    total = sum(seen.values(), Counter[str]())
    if total:
        named = [100 * total["named"] / total.total()]
        report.add("named in place", "%", named, Bar(95, at_least=True))
    report.add("wrong in place", "runs", [total["wrong"]], Bar(0))
    report.add("not told in place", "runs", [total["not told"]])
    report.add("no restart", "runs", [total["no restart"]])
    return report


def run(folder: Path, cases: list[str], nodes: int) -> list[dict[str, Any]]:
    """One job, with a hang for each case: what its launchers said of each."""
    launchers = _start(folder, cases, nodes)
    try:
        for launcher in launchers:
            launcher.wait(_BOUND_S * (len(cases) + 1))
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
        if "WHY_KEEP" in os.environ:
            subprocess.run(["cp", "-r", str(folder), os.environ["WHY_KEEP"]], check=True)
    paths = [*folder.glob("node*/*/events-launcher.jsonl")]
    lines = [line for path in paths if not path.parent.is_symlink() for line in path.open()]
    events = [json.loads(line) for line in lines]
    return [_outcome(folder / f"hang{number}", events, case) for number, case in enumerate(cases)]


def _start(folder: Path, cases: list[str], nodes: int) -> list[subprocess.Popen[bytes]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    meets = [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
    command = [
        *(sys.executable, "-m", "holdfast.fault_tolerance.launcher"),
        *(f"--nproc-per-node={RANKS // nodes}", f"--max-restarts={len(cases)}"),
        *(meets if nodes > 1 else ()),
    ]
    script = [str(Path(__file__).with_name("why_in_place_rank.py")), str(folder)]
    root = str(Path(__file__).parents[1])
    env = {"WHY_CASES": ",".join(cases), "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    launchers = []
    for node in range(nodes):
        where = [f"--log-dir={folder}/node{node}", f"--node-rank={node}"]
        if nodes > 1:  # the first one leads
            where.append(f"--rdzv-conf=is_host={int(not node)}")
        with (folder / f"node{node}.log").open("wb") as output:
            launchers.append(
                subprocess.Popen(
                    [*command, *where, *script],
                    env=os.environ | env,
                    stdout=output,
                    stderr=output,
                    cwd=folder,
                )
            )
    return launchers


def _outcome(noted: Path, events: list[dict[str, Any]], case: str) -> dict[str, Any]:
    if not noted.exists():
        return {"case": case, "verdict": "no restart"}
    truth: dict[str, Any] = json.loads(noted.read_text())
    told = [
        event
        for event in events
        if (event["kind"], event.get("cycle")) == ("restarted_in_place", truth["cycle"])
        and event["call"] == truth["call"] + 1
    ]
    named = [event["culprits"] for event in told if event["culprits"]]
    causes = [
        event
        for event in events
        if (event["kind"], event.get("cycle")) == ("first_cause", truth["cycle"])
        and event["why"].startswith("hung: ")
    ]
    if case in LETHAL:  # in the same words; and the ranks may have been ended before they agreed
        named += [[event["rank"]] for event in causes]
    verdict = "not told" if told or causes else "no restart"
    if named:
        verdict = "named" if all(it == [truth["culprit"]] for it in named) else "wrong"
    return truth | {
        "case": case,
        "verdict": verdict,
        "culprits": named,
        "kind": [event["verdict"] for event in told],
        "reason": [event["reason"] for event in told] + [event["why"] for event in causes],
        "causes": [event["causes"] for event in told],
    }
