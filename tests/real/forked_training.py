"""Trainings whose ranks are forked, for tests that kill many: importing trainers takes minutes.

``python -m tests.real.forked_training`` reads a request per line of its input, as JSON: ``script``
(a name of ``snapshot_scripts``), ``folder``, ``ranks``, ``env``. It runs the training, with a
stand-in for the launcher that keeps snapshots, starts all ranks again when one is killed, and says
``{"exit": ..., "cycles": ...}``. What it ran is noted in the folder.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.utils.data

from tests.real import snapshot_scripts
from tests.snapshot_launcher import SnapshotLauncher

TRAINERS = ("transformers.trainer", "accelerate", "lightning.pytorch", "pytorch_lightning")
MAX_CYCLES = 20


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_rank(code: Any, folder: Path, env: dict[str, str]) -> None:
    """In a forked child; never returns."""
    status = 1
    try:
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(folder)
        os.environ.update(env)
        sys.argv = ["train.py"]
        exec(code, {"__name__": "__main__"})
        status = 0
    except BaseException:  # noqa: BLE001 - the child must not run the parent's code
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_cycle(code: Any, folder: Path, ranks: list[dict[str, str]], bound_s: float) -> int:
    """All ranks once; 0, or how the first one ended that failed."""
    pids = set()
    for env in ranks:
        if (pid := os.fork()) == 0:
            run_rank(code, folder, env)
        pids.add(pid)
    end, failed = time.monotonic() + bound_s, 0
    while pids and not failed:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            pids.discard(pid)
            failed = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > end:
            failed = -signal.SIGALRM
        else:
            time.sleep(0.005)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return failed


def run(request: dict[str, Any]) -> dict[str, int]:
    folder, n_ranks = Path(request["folder"]), request["ranks"]
    code = compile(getattr(snapshot_scripts, request["script"]), request["script"], "exec")
    with SnapshotLauncher(folder) as launcher:
        for cycle in range(MAX_CYCLES):
            if cycle:
                launcher.next_cycle(n_ranks)
            shared = {
                "OUT": str(folder),
                "LOCAL_WORLD_SIZE": str(n_ranks),
                "GROUP_RANK": "0",
                "NODE_RANK": "0",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port()),
                "TORCHELASTIC_RESTART_COUNT": str(cycle),
                "TORCHELASTIC_RUN_ID": "test",
                **request["env"],
            }
            envs = [
                {**shared, "LOCAL_RANK": str(rank), **launcher.env(rank, n_ranks)}
                for rank in range(n_ranks)
            ]
            status = run_cycle(code, folder, envs, request["bound_s"])
            if status != -signal.SIGKILL:
                break
    return {"exit": status, "cycles": cycle + 1}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in TRAINERS:
        if find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
