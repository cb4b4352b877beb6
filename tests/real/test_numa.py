"""Ranks that are bound to NUMA nodes: a numactl that writes down how it was called."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.real.harness import Launcher, kill
from tests.real.test_warm_standby import is_ready, parked
from tests.waiting import until

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


BINDS = """#!{python} -IS
import os, sys
with open(os.environ["OUT"] + "/bound", "a") as file:
    file.write(" ".join(sys.argv[1:5]) + "\\n")
os.sched_setaffinity(0, {{{cpu}}})
os.execvp(sys.argv[5], sys.argv[5:])
"""
LIVES = """
import json, os, signal, sys
import lib1
with open(os.environ["OUT"] + "/lives", "a") as file:
    file.write(json.dumps([os.getpid(), sorted(os.sched_getaffinity(0))]) + "\\n")
if os.environ["NVRX_CYCLE"] == "0":
    signal.pause()
"""


def test_a_rank_that_restarts_warm_is_bound_in_the_same_way(ft: Launcher, tmp_path: Path) -> None:
    """Its process has been under numactl since it was parked."""
    cpu = max(os.sched_getaffinity(0))
    (tmp_path / "numactl").write_text(BINDS.format(python=sys.executable, cpu=cpu))
    (tmp_path / "numactl").chmod(0o755)
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "lib1.py").touch()
    job = ft.start(
        *("--max-restarts=1", "--log-dir=logs", "--ft-warm-standby-delay=0"),
        *("--ft-warm-preload=lib1", ft.script(LIVES)),
        env={
            "NVRX_GPUS_PER_NUMA": "1",
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(library),
        },
    )
    until(lambda: is_ready(job) and job.written("lives"), "a parked process beside its rank")
    waiting = parked(job)
    kill(json.loads(job.written("lives")[0])[0])

    assert job.wait() == 0
    lives = [json.loads(line) for line in job.written("lives")]
    assert [life[1] for life in lives] == [[cpu], [cpu]]
    assert [lives[1][0]] == waiting
    assert [event["is_warm"] for event in job.events("worker_started")] == [False, True]
    assert set(job.written("bound")) == {"--cpunodebind 0 --membind 0"}
