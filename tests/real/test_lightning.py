"""The Lightning callbacks in real trainings: two CPU ranks with DDP, under ``ft_launcher``.

Skipped where Lightning is not installed (``make test-trainers`` installs it).
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.real.harness import Job, Launcher, kill
from tests.waiting import BOUND_S, until

PACKAGES = [name for name in ("lightning", "pytorch_lightning") if find_spec(name)]
pytestmark = [
    pytest.mark.skipif(not PACKAGES, reason="needs Lightning: make test-trainers"),
    pytest.mark.timeout(600),
    pytest.mark.slow,
]
ROOT = Path(__file__).parents[2]
START_S = 4 * BOUND_S
"""Importing Lightning in two ranks at once."""

SCRIPT = """
import json, os, sys, time, logging, signal
import torch
if os.environ["PACKAGE"] == "lightning":
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint
else:
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import ModelCheckpoint
from holdfast.fault_tolerance import WorkloadAction, WorkloadControlRequest
from holdfast.integrations import lightning as ours
from torch.utils.data import DataLoader, Dataset

OUT, STEPS = os.environ["OUT"], int(os.environ["STEPS"])
CYCLE, RANK = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
FAULT, _, AT = os.environ.get("FAULT", "").partition("@")

def note(**what):
    with open(f"{OUT}/notes", "a") as file:
        file.write(json.dumps({"cycle": int(CYCLE), "rank": int(RANK), **what}) + chr(10))

def hang():
    note(hangs=FAULT)
    while True:
        time.sleep(0.05)

class Data(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if FAULT == "loader" and CYCLE == "0" and RANK == "1" and trainer.global_step >= int(AT):
            hang()
        return torch.randn(4)

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        step = self.trainer.global_step
        if CYCLE == "0" and RANK == "1" and FAULT and step == int(AT):
            if FAULT == "step":
                hang()
            if FAULT == "raise":
                raise ValueError("loss is nan")
        if FAULT.startswith("exit") and step == int(AT):
            sys.exit(int(FAULT[4:]))
        time.sleep(float(os.environ.get("STEP_S", "0.01")))
        return self.layer(batch).pow(2).mean()

    def validation_step(self, batch, index):
        return self.layer(batch).pow(2).mean()

    def on_train_batch_end(self, *args):
        note(step=self.trainer.global_step, pid=os.getpid())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

logging.getLogger("nemo_logger.FaultToleranceCallback").setLevel(logging.INFO)
logging.basicConfig(level=logging.INFO, stream=sys.stderr)

def give_up(error):
    note(policy=repr(error))
    return WorkloadControlRequest(WorkloadAction.ShutdownWorkload, "the loss is nan")

more = {"exc_handling_policy": give_up} if os.environ.get("POLICY") else {}
callback = getattr(ours, os.environ["CALLBACK"])(
    autoresume=True, calculate_timeouts=True, exp_dir=OUT, **more,
    simulated_fault_params=json.loads(os.environ.get("SIMULATE", "null")) if CYCLE == "0" else None)
trainer = pl.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_steps=STEPS, logger=False,
    enable_progress_bar=False, enable_model_summary=False, default_root_dir=OUT,
    num_sanity_val_steps=int(os.environ.get("SANITY", "0")), limit_val_batches=1,
    val_check_interval=int(os.environ.get("VALIDATE", "1000")),
    callbacks=[callback, ModelCheckpoint(OUT, every_n_train_steps=10, save_last=True)])
before = trainer.strategy.training_step
model = Model()
try:
    loaders = DataLoader(Data(), batch_size=1), DataLoader(Data(), batch_size=1)
    trainer.fit(model, *loaders, ckpt_path="last")
    if os.environ.get("AGAIN"):
        trainer.fit_loop.max_epochs, trainer.fit_loop.epoch_loop.max_steps = None, STEPS + 10
        trainer.fit(model, *loaders)
finally:
    note(ends=trainer.global_step, restored=trainer.strategy.training_step == before,
         initialized=callback.is_initialized)
"""
SECTIONS = (
    "--ft-rank-section-timeouts=setup:120,step:6,checkpointing:60",
    "--ft-rank-out-of-section-timeout=12",
    "--ft-learned-timeout-floor=5",
)
HEARTBEATS = (
    "--ft-initial-rank-heartbeat-timeout=120",
    "--ft-rank-heartbeat-timeout=6",
    "--ft-learned-timeout-floor=5",
)


class Training:
    """One training of one or more jobs; its files stay."""

    def __init__(self, ft: Launcher, package: str, callback: str) -> None:
        self._ft = ft
        self._package = package
        self._callback = callback
        self.out = ft.folder / "training"
        self.out.mkdir()
        self.flag = self.out / "finished"
        self._script = ft.script(SCRIPT)

    def start(self, steps: int, restarts: int = 1, **env: str) -> Job:
        options = SECTIONS if "Sections" in self._callback else HEARTBEATS
        return self._ft.start(
            "--nproc-per-node=2",
            f"--max-restarts={restarts}",
            "--log-dir=logs",
            *options,
            self._script,
            env={
                "PACKAGE": self._package,
                "CALLBACK": self._callback,
                "OUT": str(self.out),
                "STEPS": str(steps),
                "FAULT_TOL_FINISHED_FLAG_FILE": str(self.flag),
                "OMP_NUM_THREADS": "1",
                **env,
            },
        )

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

    @property
    def expected_updates(self) -> int:
        """Of a training of 20 steps that validates at 15."""
        return 3 if version(self._package).startswith("2.4.") else 2

    def learned(self) -> dict[str, Any]:
        name = "_ft_state_.json" if "Sections" in self._callback else "_ft_state.json"
        path = self.out / name
        return json.loads(path.read_text())["current_timeouts"] if path.exists() else {}


@pytest.fixture(params=PACKAGES or ["lightning"])
def package(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def training(ft: Launcher, package: str, request: pytest.FixtureRequest) -> Training:
    return Training(ft, package, getattr(request, "param", "FaultToleranceSectionsCallback"))


heartbeats = pytest.mark.parametrize("training", ["FaultToleranceCallback"], indirect=True)
both = pytest.mark.parametrize(
    "training", ["FaultToleranceCallback", "FaultToleranceSectionsCallback"], indirect=True
)


@both
def test_a_killed_rank_is_replaced_and_the_training_completes(training: Training) -> None:
    """From the last checkpoint; the flag is written. A restart shortens no timeout."""
    job = training.start(60, FAULT="step@36")  # by itself it gets no further
    kill(training.until_step(36, rank=1)["pid"])
    assert job.wait(START_S) == 0, job.stderr

    assert re.search(r"rank 1 .*killed by SIGKILL", job.stderr)
    first = training.notes("step", cycle=1)[0]["step"]
    assert first == 31
    assert training.flag.exists()
    assert job.stderr.count("Updating FT timeouts") >= 1
    learned = training.learned()
    if learned:
        assert learned["section"]["calculated_sections"] == ["checkpointing", "step"], "before it"
        assert not learned["section"]["is_out_of_section_calculated"]
    else:
        again = training.start(80)  # another job, which loads a checkpoint in its first cycle
        assert again.wait(START_S) == 0, again.stderr
        assert training.learned()["heartbeat"]["were_calculated"]


@pytest.mark.parametrize(
    ("fault", "section", "clock"),
    [("step@15", "step", "section"), ("loader@15", None, "outside sections")],
)
def test_a_hang_is_found_where_it_is(
    training: Training, fault: str, section: str | None, clock: str
) -> None:
    """In a step by the section, in a loader by the time outside; explained, and resumed.

    The other rank waits in the same place (since Lightning 2.6 before a step, too), and may be
    overdue a moment earlier.
    """
    job = training.start(30, FAULT=fault)
    assert job.wait(2 * START_S) == 0, job.stderr

    assert training.notes("hangs")
    hung = job.culprit()
    assert (hung["rank"], hung["section"]) == (1, section), job.stderr
    assert clock in {record["clock"] for record in job.hung_ranks()}, job.stderr
    assert training.notes("step", cycle=1)[0]["step"] == 11
    assert training.flag.exists()


@heartbeats
def test_a_hang_ends_the_heartbeats(training: Training) -> None:
    job = training.start(30, FAULT="step@15")
    assert job.wait(2 * START_S) == 0, job.stderr

    assert job.culprit()["rank"] == 1, job.stderr
    assert any("heartbeat" in record["clock"] for record in job.hung_ranks()), job.stderr
    assert training.notes("step", cycle=1)[0]["step"] == 11
    assert training.flag.exists()


@both
def test_sigterm_ends_the_job_in_time_with_lightnings_own_handlers(training: Training) -> None:
    """It is no complete training: no flag; the next job goes on."""
    job = training.start(100_000, STEP_S="0.05")
    training.until_step(15, rank=1)
    job.signal(signal.SIGTERM)
    assert job.wait(START_S) != 0
    assert not training.flag.exists()
    assert job.leftovers() == []

    again = training.start(20)
    assert again.wait(START_S) == 0, again.stderr
    assert training.flag.exists()


def test_updates_follow_saves_and_a_second_job_learns_all(training: Training) -> None:
    """20 steps, saves at 10 and 20: one update after each. The second job loads a checkpoint.

    Lightning 2.4 also saves after the validation at 15.
    """
    job = training.start(20, SANITY="1", VALIDATE="15")
    assert job.wait(START_S) == 0, job.stderr
    updates = job.stderr.count("Updating FT timeouts for: ")
    assert updates == training.expected_updates, job.stderr
    assert job.stderr.count("Updated FT timeouts: ") == updates
    assert training.learned()["section"]["calculated_sections"] == ["checkpointing", "step"]
    assert not training.learned()["section"]["is_out_of_section_calculated"]

    again = training.start(40)
    assert again.wait(START_S) == 0, again.stderr
    assert "timeouts loaded" in again.stderr
    assert training.learned()["section"]["calculated_sections"] == [
        "checkpointing",
        "setup",
        "step",
    ]
    assert training.learned()["section"]["is_out_of_section_calculated"]

    training.flag.unlink()
    empty = training.start(40)
    assert empty.wait(START_S) == 0, empty.stderr
    assert training.flag.exists(), "a job that finds nothing to do says that there is nothing"


def test_an_error_learns_nothing_and_writes_no_flag(training: Training) -> None:
    job = training.start(30, restarts=0, FAULT="raise@5")
    assert job.wait(START_S) == 1
    assert "Updating FT timeouts" not in job.stderr
    assert training.learned() == {}
    assert not training.flag.exists()
    assert training.notes("ends", rank=1)[0]["initialized"] is False


@pytest.mark.parametrize(("code", "updates"), [(0, 3), (1, 2)])
def test_an_exit_without_an_error_learns_at_the_end(
    training: Training, code: int, updates: int
) -> None:
    """After the saves at 10 and 20, and at the end of a clean exit. It never writes the flag."""
    job = training.start(60, restarts=0, FAULT=f"exit{code}@25")
    assert job.wait(START_S) == code, job.stderr
    # The launcher's report repeats the last lines of a failed rank, behind a margin.
    said = re.findall(r"^INFO:nemo.*Updating FT timeouts for: ", job.stderr, re.MULTILINE)
    assert len(said) == updates
    assert not training.flag.exists()


def test_a_policy_ends_the_job_and_marks_the_training_as_complete(training: Training) -> None:
    """A restart does not cure it: none is made, and the job script submits no further job."""
    job = training.start(30, restarts=3, FAULT="raise@5", POLICY="1")
    assert job.wait(START_S) != 0
    assert "ValueError" in training.notes("policy", rank=1)[0]["policy"]
    assert training.notes("step", cycle=1) == []
    assert training.flag.exists()


ALONE = """
import os
import torch
import PACKAGE as pl
from holdfast.integrations.lightning import FaultToleranceSectionsCallback
from torch.utils.data import DataLoader

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch).pow(2).mean()

    def validation_step(self, batch, index):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = DataLoader(torch.randn(64, 4))
callback = FaultToleranceSectionsCallback(autoresume=bool(os.environ.get("FLAG")),
                                          calculate_timeouts=True)
trainer = pl.Trainer(accelerator="cpu", devices=1, max_steps=20, logger=False, callbacks=[callback],
                     enable_progress_bar=False, enable_model_summary=False)
trainer.validate(Model(), data)
print("validated", callback.is_initialized, flush=True)
trainer.fit(Model(), data)
"""


def test_a_job_of_one_rank_writes_the_flag_and_learns_nothing(ft: Launcher, package: str) -> None:
    """There is no process group; the rank of the launcher is 0. Only fit needs a launcher."""
    module = {"lightning": "lightning.pytorch"}.get(package, package)
    script = ft.script(ALONE.replace("PACKAGE", module))
    flag = ft.folder / "flag"
    env = {"FLAG": "1", "FAULT_TOL_FINISHED_FLAG_FILE": str(flag)}
    job = ft.start("--nproc-per-node=1", *SECTIONS, script, env=env)
    assert job.wait(START_S) == 0, job.stderr
    assert flag.exists()
    assert "timeouts are not calculated: there is no process group" in job.stderr
    assert not list(ft.folder.rglob("_ft_state_.json"))

    done = subprocess.run(
        [sys.executable, script], cwd=ft.folder, capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("validated False\n")
    assert "start the job with ft_launcher" in done.stderr


def test_a_second_fit_with_the_same_trainer_works(training: Training) -> None:
    """Methods of the strategy are wrapped once per fit, and are themselves again after it."""
    job = training.start(10, AGAIN="1")
    assert job.wait(START_S) == 0, job.stderr
    for note in training.notes("ends"):
        assert (note["ends"], note["restored"], note["initialized"]) == (20, True, False)


def test_a_simulated_fault_is_survived(training: Training) -> None:
    """On CPU, over gloo: rank 0 chooses the rank for all."""
    simulated = json.dumps({"fault_type": "rank_killed", "base_delay": 0.5, "rank_to_fail": None})
    job = training.start(60, STEP_S="0.05", SIMULATE=simulated)
    assert job.wait(2 * START_S) == 0, job.stderr
    assert job.said(r"Simulating fault: rank_killed; rank to fail: [01]")
    assert "killed by SIGKILL" in job.stderr
    assert {note["cycle"] for note in training.notes("step")} == {0, 1}


def test_the_page_runs_as_pasted(ft: Launcher) -> None:
    """``docs/lightning.md``: its script and its command, in a folder in which nothing is yet."""
    if "lightning" not in PACKAGES:
        pytest.skip("the page imports the package lightning")
    page = (ROOT / "docs" / "lightning.md").read_text(encoding="utf-8")
    code, *_ = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (command,) = re.findall(r"^ft_launcher (.*?)^```", page, re.DOTALL | re.MULTILINE)
    words = shlex.split(command.replace("\\\n", " "))
    assert words.pop() == "train.py"
    job = ft.start(*words, ft.script(code, "train.py"), env={"OMP_NUM_THREADS": "1"})
    assert job.wait(2 * START_S) == 0, job.stderr
    assert {"_ft_state_.json", "last.ckpt"} <= {path.name for path in job.folder.glob("out/*")}
