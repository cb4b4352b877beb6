"""The examples that users copy, run as they would run them, on a model for ants."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.observe.event_log import read_events, read_run
from holdfast.observe.timeline import recoveries

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = ("--steps", "8", "--checkpoint-every", "2", "--report-every", "2", "--width", "16")
SECTIONS = (
    *("--ft-rank-section-timeouts", "setup:90,step:20,checkpointing:20"),
    *("--ft-rank-out-of-section-timeout", "20"),
)
HEARTBEATS = ("--ft-initial-rank-heartbeat-timeout", "90", "--ft-rank-heartbeat-timeout", "30")

pytestmark = pytest.mark.slow


def _train(folder, script, *limits, faults=""):
    """Run an example on two ranks; its output and what the event files say of failures."""
    folder.mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node", "2"),
            *("--max-restarts", "2", "--log-dir", folder / "logs", *limits),
            *(EXAMPLES / script, "--run-dir", folder, "--layers", "1", *TINY),
        ],
        env={**os.environ, "HOLDFAST_FAULTS": faults},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (logs,) = (folder / "logs").iterdir()
    events = read_run(logs)
    if (notes := folder / "progress.jsonl").exists():
        events += read_events(notes.read_text().splitlines())
    return done.stdout, recoveries(events)


def _weights(folder):
    return (folder / "weights.sha256").read_text()


def test_both_variants_are_one_training_and_a_killed_rank_does_not_change_its_weights(tmp_path):
    """Heartbeats undisturbed, sections with a SIGKILL after step 5: same weights to the bit."""
    quiet, stormy = tmp_path / "quiet", tmp_path / "stormy"
    output, found = _train(quiet, "train_gpt_heartbeats.py", *HEARTBEATS)
    assert "step    8" in output
    assert found == []

    _, found = _train(stormy, "train_gpt.py", *SECTIONS, faults="kill@5:1")
    (recovery,) = found
    assert recovery.symptom == "rank 1: killed by SIGKILL"
    assert (recovery.resumed_step, recovery.steps_lost) == (4, 1)
    assert _weights(stormy) == _weights(quiet)
