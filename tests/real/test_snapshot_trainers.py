"""Trainings with snapshots lose a rank at any point, and end as those that lost none, bit by bit.

Trainer, Lightning and accelerate with dropout and shuffled data, in the packages' own loops; FSDP2
in a plain one. Skipped where the packages are not installed (``make test-trainers``).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.real import snapshot_scripts
from tests.real.harness import Launcher
from tests.waiting import BOUND_S

PACKAGES = ("transformers", "accelerate", "lightning", "pytorch_lightning")
pytestmark = [
    pytest.mark.skipif(
        not all(map(find_spec, PACKAGES)), reason=f"needs {', '.join(PACKAGES)}: make test-trainers"
    ),
    pytest.mark.timeout(900),
    pytest.mark.slow,
]
ROOT = Path(__file__).parents[2]
START_S = 4 * BOUND_S
"""Importing a trainer in two ranks at once."""

Note = dict[str, Any]


class Trainings:
    """A process that has imported the trainers, and forks ranks for each training."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._n = 0
        self._undisturbed: dict[str, list[Note]] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.real.forked_training"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, ranks: int, kills: str = "", **env: str) -> list[Note]:
        """What its ranks noted; each kill of ``kills`` has happened."""
        folder = self._folder / str(self._n)
        self._n += 1
        folder.mkdir()
        request = {
            "script": script,
            "folder": str(folder),
            "ranks": ranks,
            "env": {**env, "KILLS": kills},
            "bound_s": START_S,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        assert select.select([self._process.stdout], [], [], 8 * START_S)[0], "no answer"
        answer = json.loads(self._process.stdout.readline())
        log = (folder / "log").read_text(errors="replace")[-4000:]
        assert answer == {"exit": 0, "cycles": 1 + len(kills.split())}, log
        notes = [json.loads(line) for line in (folder / "notes").read_text().splitlines()]
        shutil.rmtree(folder)
        return notes

    def undisturbed(self, script: str, ranks: int, **env: str) -> list[Note]:
        key = json.dumps([script, ranks, env], sort_keys=True)
        if key not in self._undisturbed:
            self._undisturbed[key] = self.run(script, ranks, **env)
        return self._undisturbed[key]

    def close(self) -> None:
        assert self._process.stdin is not None
        with self._process:
            self._process.stdin.close()


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    found = Trainings(tmp_path_factory.mktemp("trainings"))
    yield found
    found.close()


# ---------------------------------------------------------------- compared
KINDS = ("loss", "step", "log", "ends", "epoch")
Key = tuple[object, ...]


def by_key(notes: list[Note]) -> dict[Key, dict[int, list[Note]]]:
    """What was noted of each step, loss, log, epoch and end of each rank, by cycle."""
    found: dict[Key, dict[int, list[Note]]] = {}
    for note in notes:
        kind = next((kind for kind in KINDS if kind in note), None)
        if kind is not None:
            epoch = note.get("epoch") if kind == "step" else None
            key = (kind, note["rank"], note[kind], note.get("batch"), epoch)
            body = {name: value for name, value in note.items() if name != "cycle"}
            found.setdefault(key, {}).setdefault(note["cycle"], []).append(body)
    return found


def assert_alike(disturbed: list[Note], undisturbed: list[Note]) -> None:
    """All that was computed in any cycle is what the training without a fault computed.

    A cycle may see the begin of it, where it was killed within, or the end, where it began there.
    """
    got, want = by_key(disturbed), by_key(undisturbed)
    assert got.keys() == want.keys()
    for key, cycles in want.items():
        [whole] = cycles.values()
        for part in got[key].values():
            assert part in (whole[: len(part)], whole[-len(part) :]), key


def lost_steps(notes: list[Note]) -> int:
    """The most that were computed twice after one fault."""
    steps: Mapping[tuple[int, int], list[int]] = {}
    for note in notes:
        if "step" in note:
            steps.setdefault((note["cycle"], note["rank"]), []).append(note["step"])  # type: ignore[attr-defined]
    return max(
        (
            max(steps[cycle - 1, rank]) - min(own) + 1
            for (cycle, rank), own in steps.items()
            if (cycle - 1, rank) in steps
        ),
        default=0,
    )


LIGHTNING_KILLS = (
    "0:0@4:step 1:0@9:evaluate 2:0@10:epoch_begin 3:0@12:end 4:0@20:epoch_end 5:0@25:saving "
    "6:0@30:after"
)
CASES = {
    "Trainer": (
        "TRAINER",
        2,
        (
            "0:1@3:backward 1:0@5:end 2:1@6:evaluate 3:0@8:log 4:1@10:epoch_end 5:0@10:saving "
            "6:1@20:epoch_begin 7:0@30:epoch_end 8:0@30:after"
        ),
        {},
    ),
    "Trainer, gradients of three batches": (
        "TRAINER",
        2,
        (
            "0:1@1:backward 1:0@3:end 2:1@3:evaluate 3:0@4:epoch_end 4:1@4:epoch_begin "
            "5:0@5:saving 6:1@8:epoch_end 7:0@12:after"
        ),
        {"ACCUMULATE": "3"},
    ),
    "Trainer, one rank": (
        "TRAINER",
        1,
        "0:0@3:backward 1:0@6:evaluate 2:0@20:epoch_end 3:0@35:saving 4:0@60:after",
        {},
    ),
    "Trainer, newer of snapshot and checkpoint": (
        "TRAINER",
        2,
        "0:1@7:backward 1:0@12:end 2:0@15:save",
        # A checkpoint of the trainer does not hold the loss since the last log.
        {"RESUME": "last", "ARGUMENTS": json.dumps({"logging_steps": 1})},
    ),
    "Trainer that ends within an epoch": (
        "TRAINER",
        2,
        "0:1@7:backward 1:0@14:end 2:0@14:epoch_end 3:1@14:after",
        {"ARGUMENTS": json.dumps({"max_steps": 14})},
    ),
    "Trainer that logs, evaluates and saves after epochs": (
        "TRAINER",
        2,
        "0:1@7:backward 1:0@10:end 2:0@10:evaluate 3:1@10:saving 4:0@20:save 5:0@30:after",
        {
            "ARGUMENTS": json.dumps(
                dict.fromkeys(("eval_strategy", "save_strategy", "logging_strategy"), "epoch")
            )
        },
    ),
    "Trainer that stops early": (
        "TRAINER",
        2,
        "0:1@4:backward 1:0@9:end 2:0@9:evaluate",
        {
            "ARGUMENTS": json.dumps(
                {
                    "metric_for_best_model": "eval_loss",
                    "load_best_model_at_end": True,
                    "save_steps": 3,
                    "learning_rate": 0.1,
                }
            )
        },
    ),
    "Trainer whose sampler draws from a generator": (
        "TRAINER",
        2,
        "0:1@4:backward 1:0@10:epoch_end 2:0@13:step 3:1@25:end",
        {"ARGUMENTS": json.dumps({"accelerator_config": {"use_seedable_sampler": False}})},
    ),
    "Lightning": ("LIGHTNING", 2, LIGHTNING_KILLS, {"PACKAGE": "lightning"}),
    "pytorch_lightning": ("LIGHTNING", 2, LIGHTNING_KILLS, {"PACKAGE": "pytorch_lightning"}),
    "Lightning, one rank": ("LIGHTNING", 1, LIGHTNING_KILLS, {"PACKAGE": "lightning"}),
    "Lightning, gradients of three batches": (
        "LIGHTNING",
        2,
        (
            "0:1@1:step 1:0@3:evaluate 2:0@4:epoch_begin 3:0@5:end 4:1@8:epoch_end 5:0@10:saving "
            "6:0@12:after"
        ),
        {"PACKAGE": "lightning", "ACCUMULATE": "3"},
    ),
    "Lightning, data from worker processes": (
        "LIGHTNING",
        1,
        LIGHTNING_KILLS,
        {"PACKAGE": "lightning", "WORKERS": "2"},
    ),
    "Lightning that counts steps": (
        "LIGHTNING",
        1,
        "0:0@4:step 1:0@10:epoch_end 2:0@17:end 3:0@25:after",
        {"PACKAGE": "lightning", "ARGUMENTS": json.dumps({"max_steps": 25, "max_epochs": -1})},
    ),
    "Lightning that stops early": (
        "LIGHTNING",
        1,
        "0:0@4:step 1:0@6:evaluate",
        {"PACKAGE": "lightning", "STOP": "1"},
    ),
    "Lightning, newer of snapshot and checkpoint": (
        "LIGHTNING",
        1,
        "0:0@6:step 1:0@13:step 2:0@30:after",
        {"PACKAGE": "lightning", "RESUME": "last"},
    ),
    "accelerate": ("ACCELERATE", 2, "0:0@1:step 1:1@2:end 2:0@10:end 3:1@20:step 4:0@27:step", {}),
    "accelerate, gradients of three batches": (
        "ACCELERATE",
        2,
        "0:0@1:step 1:1@2:end 2:0@4:end 3:1@8:epoch_end 4:0@11:step",
        {"ACCUMULATE": "3"},
    ),
    "FSDP2": ("FSDP2", 2, "0:1@1:backward 1:0@2:end 2:1@9:step 3:0@20:backward 4:1@30:end", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_training_whose_ranks_are_killed_ends_as_one_that_was_not(
    trainings: Trainings, case: str
) -> None:
    """Every loss, log and weight of every cycle, and no more than one step is computed twice."""
    script, ranks, kills, env = CASES[case]
    notes = trainings.run(script, ranks, kills, **env)
    assert_alike(notes, trainings.undisturbed(script, ranks, **env))
    if "ACCUMULATE" not in env:  # there, a step is noted with each of its batches
        assert lost_steps(notes) <= 1


@pytest.mark.parametrize(
    ("script", "kills", "env"),
    [
        ("TRAINER", "0:1@3:backward 1:0@10:saving", {}),
        ("LIGHTNING", "0:0@4:step 1:1@12:end", {"PACKAGE": "lightning"}),
    ],
)
def test_under_the_launcher_a_training_loses_a_step_and_not_more(
    ft: Launcher, trainings: Trainings, script: str, kills: str, env: dict[str, str]
) -> None:
    """The launchers choose the snapshot; without a checkpoint of the program's."""
    out = ft.folder / "training"
    out.mkdir()
    job = ft.start(
        "--nproc-per-node=2",
        "--max-restarts=2",
        "--log-dir=logs",
        ft.script(getattr(snapshot_scripts, script)),
        env={"OUT": str(out), "OMP_NUM_THREADS": "1", "KILLS": kills, **env},
    )
    assert job.wait(4 * START_S) == 0, job.stderr
    notes = [json.loads(line) for line in (out / "notes").read_text().splitlines()]
    assert_alike(notes, trainings.undisturbed(script, 2, **env))
    restored = [(each["cycle"], each["lost_steps"]) for each in job.events("snapshot_restored")]
    assert [cycle for cycle, _ in restored] == [1, 2]
    assert max(lost for _, lost in restored) <= 1
