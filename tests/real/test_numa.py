"""Ranks that are bound to NUMA nodes: a numactl that writes down how it was called."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.real.harness import Launcher

NUMACTL = """#!/bin/sh
echo "$1 $2 $3 $4" >> "$OUT/bound"
shift 4
exec "$@"
"""


def test_each_rank_is_bound_in_each_cycle_and_is_the_process_that_is_watched(
    ft: Launcher, tmp_path: Path
) -> None:
    """Numactl becomes the rank: its pid is the one that the launcher knows."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "numactl").write_text(NUMACTL)
    (tools / "numactl").chmod(0o755)
    script = ft.script(
        """
        import os, sys
        with open(os.path.join(os.environ["OUT"], "pids"), "a") as file:
            file.write(f"{os.getpid()}\\n")
        sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1")
        """
    )
    job = ft.start(
        *("--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs", script),
        env={
            "NVRX_GPUS_PER_NUMA": "2",
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHON_EXEC": sys.executable,
        },
    )
    assert job.wait() == 0
    assert set(job.written("bound")) == {"--cpunodebind 0 --membind 0"}
    started = [str(event["pid"]) for event in job.events("worker_started")]
    assert len(started) == 4
    assert set(job.written("pids")) <= set(started)
    assert set(job.written("pids")) >= set(started[2:])
