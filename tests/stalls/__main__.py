"""Run all of ``script.py``'s modes: ``make stalls``; with ``--long`` one pause of 15 minutes, too.

The long one is a job with all defaults, whose group has two hours: no option, and no restart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.stalls.script import HANGS, HEALTHY

SCRIPT = Path(__file__).with_name("script.py")
BOUND_S = 300.0
LONG_S = 900.0
_SHORT = ("--max-restarts", "1", "--ft-warm-standby", "false", "--ft-auto-heartbeat-floor", "3")


def run(mode: str, options: tuple[str, ...], pause_s: float) -> str:
    """What was wrong; empty: all was as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]
        command += ["--nproc-per-node", "2", "--log-dir", "logs", *options, str(SCRIPT)]
        env = {**os.environ, "MODE": mode, "PAUSE_S": str(pause_s)}
        done = subprocess.run(
            command,
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=BOUND_S + pause_s,
            check=False,
        )
        lines = [
            line
            for path in Path(folder).rglob("events-*.jsonl")
            for line in path.read_text().splitlines()
        ]
    events = [json.loads(line) for line in lines]
    kinds = [event["kind"] for event in events]
    cycles = max(event.get("cycle") or 0 for event in events)
    if done.returncode or done.stdout.count("done") != 2:
        return f"exit code {done.returncode}\n{done.stderr}"
    if mode in HANGS:
        return "" if cycles == 1 and "incident" in kinds else f"cycle {cycles}\n{done.stderr}"
    stalls = [event for event in events if event["kind"] == "stall" and mode in event["reason"]]
    is_right = cycles == 0 and "incident" not in kinds and len(stalls) == 1
    return "" if is_right else f"cycle {cycles}, {len(stalls)} stalls\n{done.stderr}"


def main() -> int:
    """Every mode once."""
    cases = [(mode, _SHORT, 12.0) for mode in (*HEALTHY, *HANGS)]
    if "--long" in sys.argv:
        cases.append(("lines_of_a_child", (), LONG_S))
    wrong = 0
    for mode, options, pause_s in cases:
        began_at = time.monotonic()
        found = run(mode, options, pause_s)
        wrong += bool(found)
        print(f"{'WRONG' if found else 'right'}  {mode:<40} {time.monotonic() - began_at:6.1f} s")
        if found:
            print(found)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
