"""The examples that users copy, run as they would run them, on a model for ants.

One is run with torch's compiler, which takes longer to import than the training takes.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from holdfast.testing import chaos_rank
from holdfast.testing.inject import HOOK
from holdfast.tools.report.timeline import recoveries
from holdfast.tools.run.reader import events_in
from holdfast.tools.run.run_files import read_run
from tests.real.scripts import LIGHT_TORCH

EXAMPLES = Path(__file__).parents[2] / "examples"
EVERY_STEP_TAKEN = Path(__file__).with_name("every_step_taken.py")
TINY = ("--steps", "8", "--checkpoint-every", "2", "--report-every", "2", "--width", "16")
SECTIONS = (
    *("--ft-rank-section-timeouts", "setup:90,step:20,checkpointing:20"),
    *("--ft-rank-out-of-section-timeout", "20"),
)
PLAIN = ("--ft-warm-standby", "false")
"""No parked interpreters, which import as much as ranks, where none is used."""
HEARTBEATS = ("--ft-initial-rank-heartbeat-timeout", "90", "--ft-rank-heartbeat-timeout", "30")

pytestmark = pytest.mark.slow


def _train(folder, script, *limits, faults="", more=(), through=(LIGHT_TORCH,)):
    """Run an example on two ranks; its output and what the event files say of failures."""
    folder.mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node", "2"),
            *("--max-restarts", "1", "--log-dir", folder / "logs", *limits),
            *(*through, EXAMPLES / script, "--run-dir", folder, "--layers", "1", *TINY, *more),
        ],
        env={**os.environ, "HOLDFAST_FAULTS": faults},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (logs,) = (folder / "logs").glob("*_*")
    events = read_run([logs]).events
    if (notes := folder / "progress.jsonl").exists():
        events += events_in(notes)
    return done.stdout, recoveries(events)


def _weights(folder):
    return (folder / "weights.sha256").read_text()


def test_both_variants_are_one_training_and_a_killed_rank_does_not_change_its_weights(tmp_path):
    """Heartbeats undisturbed, sections with a SIGKILL after step 5: same weights to the bit."""
    quiet, stormy = tmp_path / "quiet", tmp_path / "stormy"
    output, found = _train(quiet, "train_gpt_heartbeats.py", *HEARTBEATS, *PLAIN)
    assert "step    8" in output
    assert found == []

    _, found = _train(stormy, "train_gpt.py", *SECTIONS, faults="kill@5:1", through=())
    (recovery,) = found
    assert recovery.symptom.startswith("rank 1: killed by SIGKILL")
    assert (recovery.resumed_step, recovery.steps_lost) == (4, 1)
    assert _weights(stormy) == _weights(quiet)


def test_a_rank_that_raises_and_one_that_is_killed_cost_a_step_each_at_most(tmp_path):
    """In place and by the launcher: both ranks begin from one snapshot; no checkpoint is there."""
    quiet, stormy = tmp_path / "quiet", tmp_path / "stormy"
    options = (*SECTIONS, *PLAIN)
    only_last = ("--checkpoint-every", "8")
    _train(quiet, "train_gpt_inprocess.py", *options, more=only_last)
    faults = "raise@3:1 kill@6:1"
    through = LIGHT_TORCH, EVERY_STEP_TAKEN
    _train(
        stormy, "train_gpt_inprocess.py", *options, faults=faults, more=only_last, through=through
    )

    resumed = {}
    for note in map(json.loads, (stormy / "progress.jsonl").read_text().splitlines()):
        if note["kind"] == "resumed":
            resumed.setdefault((note["cycle"], note["iteration"]), set()).add(note["step"])
    start, (raised,), (killed,) = (resumed[which] for which in ((0, 0), (0, 1), (1, 0)))
    assert start == {0}
    assert raised in (2, 3)
    assert killed in (5, 6)
    assert _weights(stormy) == _weights(quiet)


def test_an_fsdp2_training_goes_on_from_its_last_complete_checkpoint(tmp_path):
    """A rank is killed in step 6: both go on from step 4, and end where one process would.

    ``holdfast chaos`` counts so, too: the step that DCP makes to load the checkpoint is none.
    """
    notes = tmp_path / "notes"
    notes.mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node", "2"),
            *("--max-restarts", "2", "--log-dir", tmp_path / "logs", *SECTIONS),
            *PLAIN,
            *(LIGHT_TORCH, EXAMPLES / "train_fsdp2.py", "--run-dir", tmp_path),
            *("--steps", "8", "--checkpoint-every", "2"),
        ],
        env={
            **os.environ,
            "HOLDFAST_FAULTS": "kill@5:1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(HOOK),
            chaos_rank.FOLDER: str(notes),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert re.findall(rf"rank {rank} goes on from step (\d)", done.stdout) == ["0", "4"]
        (loss,) = re.findall(rf"rank {rank} is done after step 8, loss ([\d.]+)", done.stdout)
        assert float(loss) == pytest.approx(_loss_of_one_process(8), rel=1e-3)
    noted = [chaos_rank.STEPS.unpack(path.read_bytes()) for path in notes.glob("steps.*")]
    assert sorted((first, last) for _, first, _, last, _ in noted) == [
        *([(1.0, 5.0)] * 2),
        *([(5.0, 8.0)] * 2),
    ]


def _loss_of_one_process(steps):
    torch.manual_seed(7)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(step))
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()
