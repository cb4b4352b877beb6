"""Run a scenario under torchrun and under ``ft_launcher``, and say what differs.

Both get the same arguments and environment. ``ft_launcher`` has its defaults, with the floor's
clock run faster: ``--ft-auto-heartbeat-floor`` is :data:`FLOOR_S` instead of ten minutes, and each
pause is several times as long. Results are kept, one JSON object per line, so that a run goes on
where it was interrupted: torchrun's as long as the scenario is the same, ours as long as ``src``
is, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.harmless import catalogue, scenario
from tests.harmless.scenario import Hang, Scenario
from tests.waiting import SCALE

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FLOOR_S: float | None = 1.5
"""None: the default, ten minutes."""
PAUSE_S = 5.0
BOUND_S = 100.0 * SCALE
"""Of one job, beyond its pause, for one that does not end."""
TORCHRUN, OURS = "torchrun", "ft_launcher"
_MODULES = {TORCHRUN: "torch.distributed.run", OURS: "holdfast.fault_tolerance.launcher"}
_NEEDS = {
    "plain": ("torch",),
    "sections": ("torch",),
    "lightning": ("lightning",),
    "trainer": ("transformers", "accelerate"),
}
_SECTIONS = "--ft-rank-section-timeouts=step:3600"
_RUN = "HARMLESS_RUN"

SCENARIOS: dict[str, type[Scenario]] = {**scenario.HEALTHY, **scenario.HANGS}
assert catalogue


@dataclass
class Outcome:
    """Of one job.

    Attributes:
        exit_code: Of the launcher; None: it did not end in time and was killed.
        starts: Cycles that each rank began.
        done: What each rank came to: steps, and a digest of the weights.
        marks: What else the scenario noted.
        named: Ranks that incidents name, one list for each incident.
        incidents: Their reasons.
        said: The end of the launcher's stderr.
    """

    kind: str
    name: str
    launcher: str
    key: str
    exit_code: int | None = None
    took_s: float = 0.0
    starts: dict[str, list[int]] = field(default_factory=dict)
    done: dict[str, list[Any]] = field(default_factory=dict)
    marks: dict[str, list[str]] = field(default_factory=dict)
    named: list[list[int]] = field(default_factory=list)
    incidents: list[str] = field(default_factory=list)
    said: str = ""


def missing(kind: str) -> str:
    """Packages that the kind needs and this Python lacks."""
    return " ".join(name for name in _NEEDS[kind] if not find_spec(name))


def is_of(kind: str, made: type[Scenario]) -> bool:
    """Whether a script of this kind can have the scenario in it; ``sections`` is a plain one."""
    return ("plain" if kind == "sections" else kind) in made.kinds


def use_real_floor(pause_s: float) -> None:
    """From now on, jobs have all defaults, and pauses of this length."""
    global FLOOR_S, PAUSE_S
    FLOOR_S, PAUSE_S = None, pause_s


def run(kind: str, name: str, launcher: str, key: str = "", options: Sequence[str] = ()) -> Outcome:
    """One job, in a folder of its own; nothing of it is left."""
    made = SCENARIOS[name]
    folder = Path(tempfile.mkdtemp(prefix=f"harmless_{name}_"))
    out = folder / "out"
    out.mkdir()
    words = {
        "python": sys.executable,
        "script": str(HERE / f"{kind}_script.py"),
        "module": f"{kind}_script",
        "folder": str(folder),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    command = [
        *(sys.executable, "-m", _MODULES[launcher], "--standalone"),
        *(f"--nproc-per-node={made.nproc}", "--max-restarts=1"),
        *((f"--ft-auto-heartbeat-floor={FLOOR_S}",) if launcher == OURS and FLOOR_S else ()),
        *((f"--log-dir={folder}/logs",) if launcher == OURS else ()),
        *((_SECTIONS,) if (launcher, kind) == (OURS, "sections") else ()),
        *options,
        *(_filled(word, words) for word in made.command),
    ]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "TORCHEL"))}
    mark = f"{os.getpid()}.{folder.name}"
    env = {
        **inherited,
        "OUT": str(out),
        "HARMLESS_SCENARIO": name,
        "HARMLESS_PAUSE_S": str(PAUSE_S),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),
        _RUN: mark,
        **{key: _filled(value, words) for key, value in made.env.items()},
    }
    began_at = time.monotonic()
    outcome = Outcome(kind, name, launcher, key)
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        job = subprocess.Popen(
            command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                outcome.exit_code = job.wait(BOUND_S + PAUSE_S)
        finally:
            _end(job, mark)
    outcome.took_s = round(time.monotonic() - began_at, 1)
    for kind_of_note in ("starts", "done", "marks"):
        notes = sorted(out.glob(f"{kind_of_note}.*"))
        lines = {path.suffix[1:]: _lines(path) for path in notes}
        setattr(outcome, kind_of_note, lines)
    for path in sorted((folder / "logs").glob("*_*/incidents/*/incident.json")):
        incident = json.loads(path.read_text())
        if not is_hang(name) or incident["cycle"] == 0:
            outcome.named.append(incident["culprits"])
            done = "left alone: " if incident.get("left_alone") else ""
            outcome.incidents.append(done + incident["reason"])
    outcome.said = (folder / "stderr").read_text(errors="replace")[-6000:]
    if "HARMLESS_KEEP" not in os.environ:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        outcome.said += f"\n{folder}"
    return outcome


def _filled(word: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        word = word.replace("{" + name + "}", value)
    return word


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _end(job: subprocess.Popen[bytes], mark: str) -> None:
    """Kill what is left of it: each process has ``mark`` in the environment it started with."""
    if job.poll() is None:
        job.kill()
    job.wait()
    wanted = f"\0{_RUN}={mark}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in b"\0" + (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)


# ---------------------------------------------------------------- what is the same
def differences(theirs: Outcome, ours: Outcome) -> list[str]:
    """Of a healthy scenario under ``ft_launcher``; empty: there is none."""
    made = SCENARIOS[ours.name]
    names = ["exit_code", "starts", "done", "marks"]
    if made.fails:  # how far the other rank came is by chance
        names = ["exit_code"]
    found = [
        f"{name}: {getattr(theirs, name)} under torchrun, {getattr(ours, name)} under ft_launcher"
        for name in names
        if getattr(theirs, name) != getattr(ours, name)
    ]
    begun = [set().union(*each.starts.values()) for each in (theirs, ours)]
    if made.fails and begun[0] != begun[1]:
        found.append(f"cycles {sorted(begun[0])} under torchrun, {sorted(begun[1])} here")
    if not made.fails and theirs.exit_code != 0:
        found.append(f"the scenario itself fails: {theirs.said[-600:]}")
    return found


def misses(ours: Outcome) -> list[str]:
    """What is not as it should be after a planted hang; empty: nothing."""
    made: Any = SCENARIOS[ours.name]
    found = []
    if ours.exit_code != 0:
        found.append(f"exit code {ours.exit_code}")
    ranks = {str(rank) for rank in range(made.nproc)}
    if {rank for rank, cycles in ours.starts.items() if cycles == [0, 1]} != ranks:
        found.append(f"cycles {ours.starts}")
    if {rank for rank, lines in ours.done.items() if lines} != ranks:
        found.append(f"done {ours.done}")
    wrong = [named for named in ours.named if not set(named) <= set(made.culprits)]
    if wrong:
        found.append(f"WRONG NAME {wrong}, not in {made.culprits}: {ours.incidents}")
    return found


def verdict(theirs: Outcome | None, ours: Outcome) -> list[str]:
    """Of either."""
    return misses(ours) if theirs is None else differences(theirs, ours)


# ---------------------------------------------------------------- results that are kept
class Results:
    """Outcomes in a file; several threads may add to it."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str, str], Outcome] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                self._keep(Outcome(**json.loads(line)))
        self._tree = _tree()

    def _keep(self, outcome: Outcome) -> None:
        self._kept[outcome.kind, outcome.name, outcome.launcher] = outcome

    def of(self, kind: str, name: str, launcher: str) -> Outcome:
        """The kept one, if it is still valid; else of a new job."""
        key = _digest(kind, name) + (self._tree if launcher == OURS else "")
        kept = self._kept.get((kind, name, launcher))
        if kept is not None and kept.key == key:
            return kept
        outcome = run(kind, name, launcher, key)
        with self._lock:
            self._keep(outcome)
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
        return outcome


def _digest(kind: str, name: str) -> str:
    """Of all that the job is."""
    made = SCENARIOS[name]
    text = "".join(_sources(made)) + (HERE / f"{kind}_script.py").read_text()
    text += (HERE / "scenario.py").read_text() + f"{PAUSE_S} {FLOOR_S}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sources(made: type[Scenario]) -> Iterator[str]:
    for each in made.__mro__[:-2]:
        named = each.__dict__
        source = named.get("inner") or named.get("source") or each
        with contextlib.suppress(OSError, TypeError):
            yield inspect.getsource(source)


def _tree() -> str:
    """What is in ``src``, committed or not."""
    folder = Path(importlib.import_module("holdfast").__file__ or "").parent
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        total.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return total.hexdigest()[:16]


def is_hang(name: str) -> bool:
    """It is planted."""
    return issubclass(SCENARIOS[name], Hang)


def compare(kind: str, name: str, results: Results) -> tuple[Outcome | None, Outcome]:
    """Under torchrun, where that makes sense, and under ``ft_launcher``."""
    theirs = None if is_hang(name) else results.of(kind, name, TORCHRUN)
    return theirs, results.of(kind, name, OURS)
