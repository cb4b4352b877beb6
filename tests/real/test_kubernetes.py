"""A launcher as a pod has it: the first process of its container, as the manifest starts it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.real.namespaces import in_pid_namespace
from tests.unit.test_deploy_examples import MANIFESTS, command_line, pod_of
from tests.waiting import BOUND_S

RANK = """
import json, os, pathlib, signal, sys
out = pathlib.Path(sys.argv[1])
def save(signum, frame):
    (out / "saved").write_text(json.dumps({"signal": signum, "launcher": os.getppid()}))
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
(out / "trains").touch()
while True:
    signal.pause()
"""


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_pod_that_is_drained_saves_its_work_and_is_started_again(
    name: str, tmp_path: Path
) -> None:
    """The kubelet's SIGTERM reaches the ranks; the code is one that Kubernetes starts again after.

    The kernel keeps signals without a handler from the first process of a pid namespace.
    """
    (container,) = pod_of(name)["containers"]
    rank = tmp_path / "train.py"
    rank.write_text(RANK)
    smaller = {"--nproc-per-node=8": "--nproc-per-node=1"}
    args = [
        smaller.get(arg, arg).replace("/checkpoints", str(tmp_path))
        for arg in container["args"]
        if arg != "train.py"
    ]
    assert "--nproc-per-node=1" in args
    command = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", *args]
    error_file = tmp_path / "termination-log"
    script = tmp_path / "container.sh"
    script.write_text(
        f"""
        export JOB_COMPLETION_INDEX=0 JOB_COMPLETIONS=1 TORCHELASTIC_ERROR_FILE={error_file}
        export PYTHONPATH={shlex.quote(":".join(sys.path))}
        bash -c 'while [ ! -e {tmp_path}/trains ]; do sleep 0.02; done; kill -TERM 1' &
        exec {shlex.join(command)} --log-dir {tmp_path}/logs {rank} {tmp_path}
        """
    )

    printed = in_pid_namespace(script, bound_s=BOUND_S * 2, exec_it=True)

    assert json.loads((tmp_path / "saved").read_text()) == {"signal": 15, "launcher": 1}, printed
    (events,) = (tmp_path / "logs").glob("*_*/events-launcher.jsonl")
    (end,) = [
        event
        for event in map(json.loads, events.read_text().splitlines())
        if event["kind"].startswith("job_")
    ]
    final = {0, 2, command_line(name).ft_no_restart_exit_code}
    assert end["exit_code"] not in final
