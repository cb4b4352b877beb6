"""`make demo`: a rank raises, one is killed, one freezes, and the weights are those of a quiet run.

Trains the small GPT of ``train_gpt_inprocess.py`` twice under ``ft_launcher``, on two CPU ranks:
once undisturbed, once with three faults. After the exception both ranks go on in place. After the
kill and the freeze the launcher starts them again, from parked interpreters where these are ready.
Each time they go on from a snapshot in memory: at most one step is lost, and no checkpoint is read.
Then it shows, from the event files of the second run, when each fault was found, which rank was at
fault and where the training went on, and compares the final weights of both runs.
"""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.base.pure.wording import count
from holdfast.events.pure.schema import Event, RankStarted, SnapshotRestored, event_of
from holdfast.tools.report.timeline import Recovery, lines, recoveries
from holdfast.tools.run.run_files import read_run
from show import coloured, differences, failed, run_in_folder, say

RANKS, STEPS, EVERY = 2, 320, 25
FAULTS = IN_PLACE, *_ = ("raise@40:1", "kill@190:1", "freeze@265:0")  # what@step:rank
LIMITS = "step:4,checkpointing:30"  # seconds; a step takes some 0.02
OUTSIDE = "30"  # seconds that may pass between two sections, as in a restart
WIDTH = 78  # columns of what the launcher says
SAYS = re.compile(r"^[\d-]+ [\d:,]+ \[(\w+)\] \[[^]]*\](?: \[(rank \d+)\])? holdfast: ")
VERDICT, LAUNCHER = 35, 33  # colours: what failed, and where; all else that the launcher says
BELOW = f"\n{'':11}| "
NOT_SHOWN = ("[NestedRestarter]", "Traceback", "  ", "holdfast.testing.inject.InjectedException:")
LONGEST_S = 300.0  # a run that takes longer than this is broken
HERE = Path(__file__).parent


class Run:
    """One run of the training under the launcher, and the folder with all that it leaves."""

    def __init__(self, folder: Path, faults: Sequence[str] = ()) -> None:
        self.folder = folder
        self.seconds = 0.0
        self._is_shown = bool(faults)
        self._said: set[str] = set()
        self.command = [
            *(sys.executable, "-m", "holdfast.fault_tolerance.launcher"),
            *("--nproc-per-node", str(RANKS), "--max-restarts", "3"),
            *("--term-timeout", "10"),  # when the demo itself is interrupted
            *("--ft-rank-section-timeouts", LIMITS, "--ft-rank-out-of-section-timeout", OUTSIDE),
            *("--rdzv-id", "demo", "--log-dir", str(folder / "logs")),
            *(str(HERE / "train_gpt_inprocess.py"), "--run-dir", str(folder)),
            *("--steps", str(STEPS), "--checkpoint-every", str(EVERY)),
        ]
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HOLDFAST_FAULTS": " ".join(faults),
        }

    def go(self) -> int:
        """Run it to its end, showing what it says if it has faults; the launcher's exit code."""
        self.folder.mkdir()
        started = time.monotonic()
        with subprocess.Popen(
            self.command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as launcher:
            signal.signal(signal.SIGALRM, lambda *_: launcher.terminate())
            signal.alarm(round(LONGEST_S))
            try:
                for line in launcher.stdout or ():
                    self._show(line.rstrip(), time.monotonic() - started)
            except BaseException:  # whatever ends the demo ends the launcher, and that its ranks
                launcher.terminate()
                raise
            finally:
                signal.alarm(0)
        self.seconds = time.monotonic() - started
        return launcher.returncode

    def _show(self, line: str, since_s: float) -> None:
        """A line of the training as it is; of holdfast without its date, wrapped, coloured."""
        if line.startswith(NOT_SHOWN) or not self._is_shown:
            return
        text = SAYS.sub(lambda found: f"{found[2] or 'launcher'}: ", line)
        if text != line:
            if (said := text.partition(": ")[2]) in self._said:
                return  # what all ranks say alike is shown once
            self._said.add(said)
            text = text.replace(f"{self.folder}/", "").replace(f"{HERE.parent}/", "")
            wrapped = textwrap.wrap(text, WIDTH, break_on_hyphens=False, break_long_words=False)
            colour = VERDICT if " [ERROR] " in line else LAUNCHER
            text = "\n".join(coloured(colour, part) for part in wrapped).replace("\n", BELOW)
        print(f"{since_s:8.1f} s | {text}", flush=True)

    def events(self) -> list[Event]:
        """Of the launcher, in order of time."""
        folders = [path for path in (self.folder / "logs").glob("*_*") if not path.is_symlink()]
        return read_run(folders).events

    def notes(self) -> list[dict[str, Any]]:
        """Of the training itself, in order of time."""
        lines = (self.folder / "progress.jsonl").read_text(encoding="utf-8").splitlines()
        return sorted(map(json.loads, lines), key=lambda note: float(note["t"]))

    def fingerprint(self) -> str:
        """Of the final weights."""
        return (self.folder / "weights.sha256").read_text().strip()


def in_place(notes: Sequence[dict[str, Any]], start: float) -> list[str]:
    """The restart that no launcher sees: both ranks have left the function and called it again."""
    fault = next(note for note in notes if note.get("fault") == IN_PLACE)
    again = [note for note in notes if note.get("iteration") == 1]
    if {note["rank"] for note in again} != set(range(RANKS)):
        return []
    entered, resumed = (
        max(float(note["t"]) for note in again if note["kind"] == kind) - float(fault["t"])
        for kind in ("entered", "resumed")
    )
    step = max(int(note["step"]) for note in again if note["kind"] == "resumed")
    at, what = float(fault["t"]) - start, f"exception in rank {fault['rank']}"
    lost = count(fault["step"] - step, "step")
    return [
        f"  at {at:7.2f} s   fault      {what} at step {fault['step']}",
        f"  + {entered:8.3f} s   in place   all ranks are in the function again, same processes",
        f"  + {resumed:8.3f} s   resumed    at step {step}, {lost} lost",
    ]


def shown(recovery: Recovery, events: Sequence[Event], start: float) -> Iterator[str]:
    """A restart of all ranks: its times, the verdict, and what made it fast."""
    has_verdict = any(" verdict " in line for line in lines([recovery], start))
    for line in lines([recovery], start):
        is_verdict = f" {'verdict' if has_verdict else 'detected'} " in line
        wrapped = textwrap.wrap(line, WIDTH + 10, subsequent_indent=" " * 28)
        yield from (coloured(VERDICT, part) if is_verdict else part for part in wrapped)
    following = [event.body for event in events if event.cycle == recovery.cycle + 1]
    warm = sum(body.is_warm for body in following if isinstance(body, RankStarted))
    yield f"{'':17}warm       {warm} of {RANKS} ranks, without importing torch"
    for step in (body.step for body in following if isinstance(body, SnapshotRestored)):
        older = count(step % EVERY, "step")
        yield f"{'':17}snapshot   of step {step}; the last checkpoint is {older} older"


def demonstrate(folder: Path) -> int:
    """Both runs, the timeline and the comparison; 0 if all is as it should be."""
    say(f"A small GPT on Python's help texts, {RANKS} CPU ranks (DDP, gloo), {STEPS} steps")
    quiet = Run(folder / "undisturbed")
    stormy = Run(folder / "with-faults", FAULTS)
    say("1 of 2: undisturbed, for its weights")
    if code := quiet.go():
        return failed(f"the undisturbed run ended with exit code {code}")
    print(f"{quiet.seconds:8.1f} s | {STEPS} steps, weights {quiet.fingerprint()[:16]}", flush=True)
    say("2 of 2: rank 1 raises at step 40 and is killed at step 190, rank 0 freezes at step 265")
    if code := stormy.go():
        return failed(f"the run with faults ended with exit code {code}")

    say("What happened in the second run")
    events, notes = stormy.events(), stormy.notes()
    start = events[0].t
    first = in_place(notes, start)
    of_training = [event_of(note) for note in notes if note.get("fault") != IN_PLACE]
    found = recoveries([*events, *filter(None, of_training)])
    print("\n".join(first))
    for recovery in found:
        print("", *shown(recovery, events, start), sep="\n")
    if not first or len(found) != 2 or any(recovery.resumed_at is None for recovery in found):
        return failed(f"{len(FAULTS)} recoveries were due, {len(first[:1]) + len(found)} were seen")

    say("The final weights")
    print(f"  undisturbed   {quiet.fingerprint()}")
    print(f"  with faults   {stormy.fingerprint()}")
    if quiet.fingerprint() != stormy.fingerprint():
        return failed("weights equal: no", *differences(quiet.folder, stormy.folder))
    print(coloured(32, "weights equal: yes"))
    return 0


def main() -> int:
    return run_in_folder(demonstrate, __doc__)


if __name__ == "__main__":
    sys.exit(main())
