"""`make demo-inprocess`: ranks fail, hang and die, and the others go on where they are.

Trains the small GPT of ``train_gpt_inprocess.py`` twice, as ``srun`` would start it: two ranks that
train and two that stand by. Once undisturbed; once one rank raises, rank 0 is killed, one hangs in
an interruptible wait and one holds the interpreter for ever. Then it shows how long each fault
kept the training, and compares the final weights of both runs.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from holdfast.net.port import ReservedPort
from show import coloured, differences, failed, run_in_folder, say

ACTIVE, RANKS, STEPS = 2, 4, 250
FAULTS = ("raise@40:1", "kill@90:0", "hang@140:1", "freeze@190:0")  # what@step:active rank
SOFT_S = 4.0  # a step takes some 0.02; freezes are killed at 1.5 times that
LONGEST_S = 200.0  # a run that takes longer than this is broken
RESTARTED = re.compile(r"^iteration \d+: restarted after ")


class Run:
    """One run of the training, and the folder with all that it leaves."""

    def __init__(self, folder: Path, faults: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self._faults = faults
        self._started = time.monotonic()
        self._said: set[str] = set()

    def go(self) -> list[int]:
        """Run it to its end, showing what it says; exit codes of the ranks."""
        self.folder.mkdir()
        reserved = ReservedPort()  # for the store, which takes the one after MASTER_PORT
        self._started = time.monotonic()
        ranks = [self._start(rank, reserved.number - 1) for rank in range(RANKS)]
        readers = [threading.Thread(target=self._show, args=(rank,)) for rank in ranks]
        for reader in readers:
            reader.start()
        until = time.monotonic() + LONGEST_S
        try:
            return [rank.wait(max(0.0, until - time.monotonic())) for rank in ranks]
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
            for reader in readers:
                reader.join()
            reserved.release()

    def _start(self, rank: int, port: int) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "HOLDFAST_FAULTS": " ".join(self._faults),
        }
        script = Path(__file__).with_name("train_gpt_inprocess.py")
        return subprocess.Popen(
            [
                *(sys.executable, str(script), "--run-dir", str(self.folder)),
                *("--steps", str(STEPS), "--active", str(ACTIVE), "--soft-timeout", str(SOFT_S)),
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def _show(self, rank: subprocess.Popen[str]) -> None:
        """A line of the training as it is; what all ranks say alike, once and in colour."""
        for line in rank.stdout or ():
            text = line.rstrip()
            if RESTARTED.match(text):
                if text in self._said:
                    continue
                self._said.add(text)
                text = coloured(33, text)
            print(f"{time.monotonic() - self._started:8.1f} s | {text}", flush=True)

    def events(self) -> list[dict[str, Any]]:
        """What the ranks wrote down, in order."""
        lines = (self.folder / "progress.jsonl").read_text(encoding="utf-8").splitlines()
        return sorted(map(json.loads, lines), key=lambda event: float(event["t"]))

    def fingerprint(self) -> str:
        """Of the final weights."""
        return (self.folder / "weights.sha256").read_text().strip()


def restarts(events: list[dict[str, Any]]) -> list[str]:
    """For each fault, when the last active rank was in the function again, and on its way."""
    lines = []
    faults = [event for event in events if event["kind"] == "fault"]
    ends = [*(float(fault["t"]) for fault in faults[1:]), float("inf")]
    for fault, end in zip(faults, ends, strict=True):
        at = float(fault["t"])
        after = [e for e in events if at < e["t"] < end and "iteration" in e]
        entered, resumed = (
            max((e["t"] for e in after if e["kind"] == kind), default=float("nan"))
            for kind in ("entered", "resumed")
        )
        step = max((e["step"] for e in after if e["kind"] == "resumed"), default=None)
        lines.append(
            f"  {fault['what']:7s} at step {fault['step']:3d}: all in the function again after "
            f"{(entered - at) * 1e3:7.1f} ms, training on after {(resumed - at) * 1e3:7.1f} ms, "
            f"at step {step}, from memory"
        )
    return lines


def demonstrate(folder: Path) -> int:
    """Both runs, the restarts and the comparison; 0 if all is as it should be."""
    say(f"A small GPT, {ACTIVE} CPU ranks that train (DDP, gloo), {RANKS - ACTIVE} that stand by")
    quiet, stormy = Run(folder / "undisturbed"), Run(folder / "with-faults", FAULTS)
    say("1 of 2: undisturbed")
    if any(codes := quiet.go()):
        return failed(f"the undisturbed run ended with exit codes {codes}")
    say(f"2 of 2: {', '.join(FAULTS)}; limit of a step: {SOFT_S:g} s, then {SOFT_S * 1.5:g} s")
    codes = stormy.go()
    died = sorted(code for code in codes if code)
    if len(died) != 2 or any(code not in (-signal.SIGKILL, -signal.SIGTERM) for code in died):
        return failed(f"two ranks were to be killed, the exit codes are {codes}")
    say("What happened in the second run")
    events = stormy.events()
    print("\n".join(restarts(events)))
    seen = [event["fault"] for event in events if event["kind"] == "fault"]
    if seen != list(FAULTS):
        return failed(f"faults {FAULTS} were due, {seen} happened")
    steps = [event["step"] for event in events if event["kind"] == "resumed"]
    if any(later < earlier for earlier, later in itertools.pairwise(steps)):
        return failed(f"steps were done again: {steps}")

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
