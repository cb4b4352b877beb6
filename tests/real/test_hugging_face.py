"""The callback for ``Trainer`` and the loop for accelerate, in real trainings on two CPU ranks.

A tiny model with random weights, nothing is downloaded. Skipped where the packages are not
installed (``make test-trainers`` installs them).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.real.harness import Job, Launcher, kill
from tests.waiting import BOUND_S, until

pytestmark = [
    pytest.mark.skipif(
        not (find_spec("transformers") and find_spec("accelerate")),
        reason="needs transformers and accelerate: make test-trainers",
    ),
    pytest.mark.timeout(600),
    pytest.mark.slow,
]
START_S = 4 * BOUND_S
"""Importing transformers in two ranks at once."""

HEAD = """
import json, os, sys, time
OUT, STEPS = os.environ["OUT"], int(os.environ["STEPS"])
CYCLE, RANK = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)), int(os.environ.get("RANK", 0))
FAULT, _, AT = os.environ.get("FAULT", "").partition("@")
is_victim = CYCLE == 0 and RANK == 1

def note(**what):
    with open(f"{OUT}/notes", "a") as file:
        file.write(json.dumps({"cycle": CYCLE, "rank": RANK, **what}) + chr(10))

def hang():
    note(hangs=FAULT)
    while True:
        time.sleep(0.05)
"""
TRAINER = (
    HEAD
    + """
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from holdfast.integrations.transformers import FaultToleranceCallback, last_checkpoint

class Words(Dataset):
    def __len__(self):
        return 2000

    def __getitem__(self, index):
        if FAULT == "loader" and is_victim and steps.done >= int(AT):
            hang()
        words = torch.randint(0, 100, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}

class Steps(TrainerCallback):
    done = 0

    def on_step_begin(self, args, state, control, **kwargs):
        if FAULT == "step" and is_victim and state.global_step == int(AT):
            hang()
        time.sleep(float(os.environ.get("STEP_S", "0.01")))

    def on_step_end(self, args, state, control, **kwargs):
        self.done = state.global_step
        note(step=state.global_step, pid=os.getpid())
        if os.environ.get("ALSO_SAVE") == str(state.global_step):
            control.should_save = True  # decided after our callback was called

class Hanging(Trainer):
    def _save_optimizer_and_scheduler(self, folder):
        if FAULT == "save" and is_victim and self.state.global_step == int(AT):
            hang()
        return super()._save_optimizer_and_scheduler(folder)

    def prediction_step(self, *args, **kwargs):
        if FAULT == "evaluation" and is_victim and self.state.global_step == int(AT):
            hang()
        return super().prediction_step(*args, **kwargs)

steps = Steps()
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=2, max_position_embeddings=32))
arguments = TrainingArguments(
    output_dir=f"{OUT}/out", max_steps=STEPS, per_device_train_batch_size=2, save_steps=10,
    eval_strategy="steps", eval_steps=10, per_device_eval_batch_size=2,
    use_cpu=True, report_to=[], disable_tqdm=True, logging_steps=1000)
ours = FaultToleranceCallback()
trainer = Hanging(
    model=model, args=arguments, train_dataset=Words(),
    eval_dataset=torch.utils.data.Subset(Words(), range(8)),
    callbacks=[steps] if os.environ.get("ADD_LATE") else [ours, steps])
if os.environ.get("ADD_LATE"):
    trainer.add_callback(ours)
trainer.train(resume_from_checkpoint=last_checkpoint(f"{OUT}/out"))
trainer.evaluate()
note(ends=trainer.state.global_step)
time.sleep(0.2)  # or gloo's thread aborts that still has the last evaluation's tensors
"""
)
ACCELERATE = (
    HEAD
    + """
import torch
from accelerate import Accelerator
from holdfast.integrations.accelerate import watch

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(32, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)

def batches(first):
    for step in range(first, STEPS):
        if FAULT == "loader" and is_victim and step == int(AT):
            hang()
        yield step, torch.randn(4, 32)

with watch(accelerator, f"{OUT}/out") as training:
    first = 0
    if os.path.exists(f"{OUT}/out/step"):
        accelerator.load_state(f"{OUT}/out/state")
        first = int(open(f"{OUT}/out/step").read())
    for step, batch in training.steps(batches(first)):
        if FAULT == "step" and is_victim and step == int(AT):
            hang()
        accelerator.backward(model(batch).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(float(os.environ.get("STEP_S", "0.01")))
        note(step=step + 1, pid=os.getpid())
        if (step + 1) % 10 == 0:
            accelerator.save_state(f"{OUT}/out/state")
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                with open(f"{OUT}/out/step.new", "w") as file:
                    file.write(str(step + 1))
                os.replace(f"{OUT}/out/step.new", f"{OUT}/out/step")
            with training.evaluation():
                model(torch.zeros(4, 32))
    note(ends=step + 1)
time.sleep(0.2)  # as above
"""
)
SCRIPTS = {"transformers": TRAINER, "accelerate": ACCELERATE}


def limits(fault: str) -> tuple[str, ...]:
    """For a loader, outside sections first: the other rank may wait for it inside a step."""
    step_s, outside_s = (15, 6) if fault.startswith("loader") else (6, 12)
    return (
        f"--ft-rank-section-timeouts=setup:120,step:{step_s},evaluation:7,checkpointing:8",
        f"--ft-rank-out-of-section-timeout={outside_s}",
        "--ft-learned-timeout-floor=5",
    )


class Training:
    """One training of one or more jobs; its files stay."""

    def __init__(self, ft: Launcher, package: str) -> None:
        self._ft = ft
        self.out = ft.folder / "training"
        self.out.mkdir()
        self.script = ft.script(SCRIPTS[package])

    def env(self, steps: int, **env: str) -> dict[str, str]:
        return {"OUT": str(self.out), "STEPS": str(steps), "OMP_NUM_THREADS": "1", **env}

    def start(self, steps: int, **env: str) -> Job:
        options = ("--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs")
        timeouts = limits(env.get("FAULT", ""))
        return self._ft.start(*options, *timeouts, self.script, env=self.env(steps, **env))

    def notes(self, key: str, **like: Any) -> list[dict[str, Any]]:
        path = self.out / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [n for n in found if key in n and all(n[k] == v for k, v in like.items())]

    def until_step(self, step: int, **like: Any) -> dict[str, Any]:
        return until(
            lambda: next((n for n in self.notes("step", **like) if n["step"] >= step), None),
            f"step {step} of {like}",
            START_S,
        )

    def learned(self) -> dict[str, Any]:
        state = json.loads((self.out / "out" / "ft_state.json").read_text())
        section: dict[str, Any] = state["current_timeouts"]["section"]
        return section


@pytest.fixture
def training(ft: Launcher, request: pytest.FixtureRequest) -> Training:
    return Training(ft, getattr(request, "param", "transformers"))


both = pytest.mark.parametrize("training", list(SCRIPTS), indirect=True)


@both
def test_a_killed_rank_is_replaced_and_the_next_job_learns_all_timeouts(training: Training) -> None:
    """From the last checkpoint; the timeouts are beside the checkpoints."""
    job = training.start(60, FAULT="step@36")  # by itself it gets no further
    kill(training.until_step(36, rank=1)["pid"])
    assert job.wait(START_S) == 0, job.stderr

    assert "killed by SIGKILL" in job.stderr
    assert training.notes("step", cycle=1)[0]["step"] == 31
    assert {note["ends"] for note in training.notes("ends")} == {60}
    learned = training.learned()
    assert learned["calculated_sections"] == ["checkpointing", "evaluation", "step"]
    assert not learned["is_out_of_section_calculated"], "a restart is faster than a first start"
    assert "is not configured" not in job.stderr

    again = training.start(80)  # another job, which loads a checkpoint in its first cycle
    assert again.wait(START_S) == 0, again.stderr
    learned = training.learned()
    assert learned["calculated_sections"] == ["checkpointing", "evaluation", "setup", "step"]
    assert learned["is_out_of_section_calculated"]


@pytest.mark.parametrize(
    ("training", "fault", "section"),
    [
        ("transformers", "step@15", "step"),
        ("transformers", "loader@15", None),
        ("transformers", "evaluation@20", "evaluation"),
        ("transformers", "save@20", "checkpointing"),
        ("accelerate", "step@15", "step"),
        ("accelerate", "loader@15", None),
    ],
    indirect=["training"],
)
def test_a_hang_is_found_where_it_is(training: Training, fault: str, section: str | None) -> None:
    """And explained; the training resumes, also after a save that was half done.

    The rank that waits for it may be overdue a moment earlier, and is not named.
    """
    job = training.start(30, FAULT=fault)
    assert job.wait(2 * START_S) == 0, job.stderr

    assert training.notes("hangs")
    hung = job.culprit()
    assert (hung["rank"], hung["section"]) == (1, section), job.stderr
    clocks = {record["clock"] for record in job.hung_ranks()}
    assert ("section" if section else "outside sections") in clocks, job.stderr
    assert training.notes("step", cycle=1)[0]["step"] in {11, 21}
    assert {note["ends"] for note in training.notes("ends")} == {30}


@pytest.mark.parametrize("late", ["", "1"], ids=["given to the trainer", "added later"])
def test_a_save_that_another_callback_asks_for_is_in_its_section(
    training: Training, late: str
) -> None:
    """There is no event when a save begins; and a callback may be added to a complete trainer."""
    job = training.start(20, ALSO_SAVE="5", FAULT="save@5", ADD_LATE=late)
    assert job.wait(2 * START_S) == 0, job.stderr
    hung = job.culprit()
    assert (hung["rank"], hung["section"]) == (1, "checkpointing"), job.stderr
    assert {note["ends"] for note in training.notes("ends")} == {20}


@both
def test_the_script_runs_with_plain_python(training: Training) -> None:
    """One line in the log says that no launcher watches."""
    done = subprocess.run(
        [sys.executable, training.script],
        env={**os.environ, **training.env(20)},
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no launcher watches this process") == 1
    assert not (training.out / "out" / "ft_state.json").exists()


def test_a_half_written_checkpoint_is_not_the_last(tmp_path: Path) -> None:
    """A kill during a save leaves one; each restart would fail in it."""
    from holdfast.integrations.transformers import last_checkpoint

    assert last_checkpoint(tmp_path / "none") is None
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-11", "checkpoint-x"):
        (tmp_path / name).mkdir()
    assert last_checkpoint(tmp_path) is None
    (tmp_path / "checkpoint-9" / "trainer_state.json").write_text("{}")
    (tmp_path / "checkpoint-10" / "trainer_state.json").write_text("{}")
    (tmp_path / "checkpoint-11" / "trainer_state.json").write_text('{"best')
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
