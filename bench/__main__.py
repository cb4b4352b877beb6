"""Run benchmarks, all or those named, and keep the results: ``python -m bench heartbeat restart``.

Writes ``bench/results/<commit>-<time>.json``. Exit code 1 where a bar was not met: on a busy
machine that may mean nothing, so read the load that is printed first.
"""

from __future__ import annotations

import argparse
import compileall
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import holdfast
from bench.figures import Report, table

NAMES = (
    "heartbeat",
    "lateness",
    "memory",
    "startup",
    "meeting",
    "restart",
    "warm",
    "trainers",
    "exceptions",
    "nodes",
    "lost_launcher",
    "teardown",
    "assignment",
    "inprocess_abort",
    "inprocess",
    "inprocess_scale",
    "incident_scale",
    "snapshot",
)
BY_NAME = ("why", "why_in_place", "job_scale", "snapshot_jobs")
"""Measurements that take minutes and run only if they are named."""
_HERE = Path(__file__).parent


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=_HERE, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def stamp() -> dict[str, Any]:
    """What the figures depend on."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "commit": _git("rev-parse", "--short=12", "HEAD") or "unknown",
        "has_local_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "at": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "holdfast": version("holdfast"),
        "torch": version("torch"),
        "load_before": os.getloadavg()[0],
    }


def main(arguments: list[str]) -> int:
    """Measure, print, and write down."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of {', '.join((*NAMES, *BY_NAME))}"
    )
    parser.add_argument("--results", type=Path, default=_HERE / "results", metavar="DIR")
    parsed = parser.parse_args(arguments)
    if unknown := set(parsed.names) - {*NAMES, *BY_NAME}:
        parser.error(
            f"no measurement {', '.join(unknown)}; there are {', '.join((*NAMES, *BY_NAME))}"
        )

    # As pip does with what it installs; an editable checkout would be compiled at every start.
    compileall.compile_dir(Path(holdfast.__file__).parent, quiet=2)
    stamped = stamp()
    print(" ".join(f"{key}={value}" for key, value in stamped.items()))
    reports: dict[str, Report] = {}
    with tempfile.TemporaryDirectory(prefix="bench_", ignore_cleanup_errors=True) as folder:
        # Launchers keep the folder of a run with faults, for people.
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        for name in parsed.names or NAMES:
            measure: Callable[[], Report] = import_module(f"bench.{name}").measure
            reports[name] = report = measure()
            print(table(name, report), flush=True)

    stamped["load_after"] = os.getloadavg()[0]
    results = {name: report.to_json() for name, report in reports.items()}
    parsed.results.mkdir(parents=True, exist_ok=True)
    time = stamped["at"].replace(":", "").replace("-", "")[:15]
    path = parsed.results / f"{stamped['commit']}-{time}.json"
    path.write_text(json.dumps({**stamped, "results": results}, indent=1) + "\n")
    print(f"\nload {stamped['load_before']:.2f} before, {stamped['load_after']:.2f} after; {path}")
    return 0 if all(report.is_met for report in reports.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
