"""`make demo`: a training is killed, then freezes, and ends with the weights of a quiet run.

Trains the small GPT of ``train_gpt.py`` twice under ``ft_launcher``, on two CPU ranks: once
undisturbed, once with a rank killed and another frozen on the way. Then it shows, from the event
files of the second run, when each fault was found and where the training went on, and compares
the final weights of both runs.
"""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.observe.event_log import read_events, read_run
from holdfast.observe.timeline import Event, lines, recoveries
from show import coloured, differences, failed, run_in_folder, say

RANKS, STEPS, EVERY = 2, 250, 25
FAULTS = ("kill@90:1", "freeze@165:0")  # what@step:rank, see faults.py
LIMITS = "setup:60,step:4,checkpointing:30"  # seconds; a step takes some 0.02
OUTSIDE = "10"  # seconds that may pass between two sections
WIDTH = 78  # columns of what the launcher says
LAUNCHER_SAYS = re.compile(r"^[\d-]+ [\d:,]+ \[\w+\] \[[^]]*\] holdfast: ")
LONGEST_S = 300.0  # a run that takes longer than this is broken


class Run:
    """One run of the training under the launcher, and the folder with all that it leaves."""

    def __init__(self, folder: Path, faults: Sequence[str] = ()) -> None:
        self.folder = folder
        self.command = [
            *(sys.executable, "-m", "holdfast.fault_tolerance.launcher"),
            *("--nproc-per-node", str(RANKS), "--max-restarts", "3"),
            *("--term-timeout", "10"),  # when the demo itself is interrupted
            *("--ft-rank-section-timeouts", LIMITS, "--ft-rank-out-of-section-timeout", OUTSIDE),
            *("--rdzv-id", "demo", "--log-dir", str(folder / "logs")),
            *(str(Path(__file__).with_name("train_gpt.py")), "--run-dir", str(folder)),
            *("--steps", str(STEPS), "--checkpoint-every", str(EVERY)),
        ]
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HOLDFAST_FAULTS": " ".join(faults),
        }

    def go(self) -> int:
        """Run it to its end, showing what it says; the launcher's exit code."""
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
        return launcher.returncode

    def _show(self, line: str, since_s: float) -> None:
        """A line of the training as it is; of the launcher without its date, wrapped, coloured."""
        text = LAUNCHER_SAYS.sub("launcher: ", line).replace(f"{self.folder}/", "")
        if text != line:
            wrapped = textwrap.wrap(text, WIDTH, break_on_hyphens=False, break_long_words=False)
            text = coloured(33, f"\n{'':11}| ".join(wrapped))
        print(f"{since_s:8.1f} s | {text}", flush=True)

    def events(self) -> list[Event]:
        """Of the launcher, of the monitors, and of the training itself."""

        def of_all_files() -> Iterator[Event]:
            for logs in (self.folder / "logs").iterdir():
                yield from read_run(logs)
            with (self.folder / "progress.jsonl").open(encoding="utf-8") as file:
                yield from read_events(file)

        return sorted(of_all_files(), key=lambda event: float(event["t"]))

    def fingerprint(self) -> str:
        """Of the final weights."""
        return (self.folder / "weights.sha256").read_text().strip()


def innermost(stacks: Path) -> str:
    """The last calls of the main thread in our own code, from a file that faulthandler wrote."""
    main_thread = stacks.read_text(encoding="utf-8").rpartition("Current thread")[2]
    ours = rf'File "{Path(__file__).parent}/(.+)", line (\d+) in (\S+)'
    frames = re.findall(ours, main_thread)
    return " < ".join(f"{function} ({file}:{line})" for file, line, function in frames[:2])


def demonstrate(folder: Path) -> int:
    """Both runs, the timeline and the comparison; 0 if all is as it should be."""
    say(f"A small GPT on Python's help texts, {RANKS} CPU ranks (DDP, gloo), {STEPS} steps")
    quiet = Run(folder / "undisturbed")
    stormy = Run(folder / "with-faults", FAULTS)
    say("1 of 2: undisturbed")
    if code := quiet.go():
        return failed(f"the undisturbed run ended with exit code {code}")
    say("2 of 2: rank 1 is killed at step 90, rank 0 freezes at step 165; limit of a step: 4 s")
    if code := stormy.go():
        return failed(f"the run with faults ended with exit code {code}")

    say("What happened in the second run")
    events = stormy.events()
    found = recoveries(events)
    print("\n".join(lines(found, start=float(events[0]["t"]))))
    for recovery in found:
        for rank, stacks in sorted(recovery.stacks.items()):
            print(f"  In cycle {recovery.cycle}, rank {rank} was in {innermost(Path(stacks))}")
    if len(found) != len(FAULTS) or any(recovery.resumed_at is None for recovery in found):
        return failed(f"{len(FAULTS)} faults and recoveries were due, {len(found)} were seen")

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
