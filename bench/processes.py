"""Start launchers, ours and torchrun, on small scripts, and see what the ranks write down.

Scripts stamp with CLOCK_MONOTONIC, which all processes of a machine share, and append one line per
event to a file. What this module waits for by looking again and again is timed by those stamps, not
by when it looked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.events.pure.schema import RankStarted
from holdfast.tools.run.run_files import read_run

_BIN = Path(sys.executable).parent
HOLDFAST = "holdfast"
WARM = "holdfast, warm"
TORCHRUN = "torchrun"
TORCHRUN_ALONE = "torchrun, no shared store"
"""Told not to let ranks of all cycles share one store: then most of its restarts work."""
BOTH = (HOLDFAST, TORCHRUN)
WARM_TRAINERS = "holdfast, warm, beside transformers and Lightning"
"""The interpreter of ``make trainers``, whose libraries torch and the script import."""
TRAINERS_BIN = Path(__file__).parents[1] / ".venv-trainers" / "bin"
_WARM_OPTIONS = (
    "--ft-warm-standby=true",
    "--ft-warm-standby-delay=0.2",
    "--ft-log-level=debug",  # which says in each cycle when parked interpreters are ready
)
COMMANDS: dict[str, list[str]] = {
    HOLDFAST: [sys.executable, str(_BIN / "ft_launcher"), "--ft-warm-standby=false"],
    WARM: [
        *(sys.executable, str(_BIN / "ft_launcher")),
        *_WARM_OPTIONS,
    ],
    WARM_TRAINERS: [
        *(str(TRAINERS_BIN / "python"), str(TRAINERS_BIN / "ft_launcher")),
        *_WARM_OPTIONS,
    ],
    TORCHRUN: [sys.executable, str(_BIN / "torchrun"), "--standalone"],
    TORCHRUN_ALONE: [
        *("/usr/bin/env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"),
        *(sys.executable, str(_BIN / "torchrun"), "--standalone"),
    ],
}
BOUND_S = 60.0
_LOOK_AGAIN_S = 0.002

STAMP = """
import os, signal, sys, time
_stamps = os.open(os.environ["STAMPS"], os.O_WRONLY | os.O_APPEND)
def stamp(what):
    at = time.monotonic()
    cycle, rank = os.environ.get("TORCHELASTIC_RESTART_COUNT"), os.environ.get("RANK")
    os.write(_stamps, f"{what} {cycle} {rank} {os.getpid()} {at!r}\\n".encode())
stamp("first")
"""
"""First lines of every script."""


class Stamp(NamedTuple):
    """One line that a rank wrote: what happened, in which cycle, to whom, and when."""

    what: str
    cycle: int
    rank: int
    pid: int
    at: float


class BenchError(RuntimeError):
    """A launcher did not do what is being timed."""


class Launch:
    """A running launcher of one of the two kinds."""

    def __init__(
        self,
        kind: str,
        script: Path,
        arguments: Sequence[str],
        folder: Path,
        *,
        command: Sequence[str] = (),
        name: str = "",
    ) -> None:
        """Start it.

        Args:
            kind: One of the two, for reports; and what is started, where ``command`` does not say.
            script: What its ranks run.
            arguments: Of the launcher.
            folder: For stamps, shared by all launchers in it, console and logs.
            command: What to start instead of the usual command of ``kind``.
            name: Tells launchers in one folder apart.
        """
        self.kind = kind
        self._stamps = folder / "stamps"
        self._stamps.touch()
        self._console = folder / f"console{name}"
        known = ("PET_", "TORCHELASTIC_", "FT_", "HOLDFAST_")
        env = {key: value for key, value in os.environ.items() if not key.startswith(known)}
        logs = f"--log-dir=logs{name}"
        command = [*(command or COMMANDS[kind]), logs, *arguments, str(script)]
        with self._console.open("wb") as console:
            self.started_at = time.monotonic()
            self.process = subprocess.Popen(
                command,
                env=env | {"STAMPS": str(self._stamps)},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )

    def stamps(self, what: str, cycle: int | None = None) -> list[Stamp]:
        """What the ranks wrote, in order; of one cycle or of all."""
        found = []
        for line in self._stamps.read_text().splitlines():
            name, its_cycle, rank, pid, at = line.split()
            if name == what and cycle in (None, int(its_cycle)):
                found.append(Stamp(name, int(its_cycle), int(rank), int(pid), float(at)))
        return found

    def wait_for_all(
        self, what: str, ranks: int, cycle: int, bound_s: float = BOUND_S
    ) -> list[Stamp]:
        """Stamps of every rank of a cycle.

        Raises:
            BenchError: They did not come, or the launcher ended.
        """
        return self.wait_for(
            lambda: len(found := self.stamps(what, cycle)) >= ranks and found,
            f"{what!r} of {ranks} ranks in cycle {cycle}",
            bound_s,
        )

    def wait_for(
        self,
        condition: Callable[[], list[Stamp] | bool],
        what: str,
        bound_s: float = BOUND_S,
    ) -> list[Stamp]:
        """Wait until a condition holds stamps; see :meth:`wait_for_all`."""
        give_up_at = time.monotonic() + bound_s
        while True:
            ended = self.process.poll() is not None
            if isinstance(found := condition(), list):
                return found
            if ended or time.monotonic() > give_up_at:
                why = f"ended with {self.process.returncode}" if ended else f"took {bound_s:g} s"
                raise BenchError(f"{self.kind} {why}, waited for {what}\n{self.console_tail()}")
            time.sleep(_LOOK_AGAIN_S)

    def wait_for_words(self, words: str, times: int, bound_s: float = BOUND_S) -> None:
        """Wait until the launcher has said something so often.

        Raises:
            BenchError: It has not, or has ended.
        """
        self.wait_for(
            lambda: self._console.read_text(errors="replace").count(words) >= times and [],
            f"{words!r}, {times} times",
            bound_s,
        )

    def count_warm_starts(self) -> tuple[int, int]:
        """Ranks that were started from a parked process, and all ranks, after the first cycle."""
        run_dir = next((self._stamps.parent / "logs").glob("*_*"))
        after = (event.body for event in read_run([run_dir]).events if event.cycle > 0)
        restarted = [body for body in after if isinstance(body, RankStarted)]
        return sum(body.is_warm for body in restarted), len(restarted)

    def console_tail(self) -> str:
        """The last lines of its output."""
        return "\n".join(self._console.read_text(errors="replace").splitlines()[-20:])

    def end(self) -> None:
        """End it and everything of it that wrote a stamp."""
        pids = {int(line.split()[3]) for line in self._stamps.read_text().splitlines()}
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            self.process.kill()
        self.process.wait()
        for pid in pids:
            if is_of(pid, self._stamps):
                os.kill(pid, signal.SIGKILL)


def is_of(pid: int, stamps: Path) -> bool:
    """A living process was started with this stamp file: no recycled pid is taken for it."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"STAMPS={stamps}".encode() in environ.split(b"\0")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder."""
    with tempfile.TemporaryDirectory(prefix="holdfast_bench_", ignore_cleanup_errors=True) as path:
        yield Path(path)


@contextlib.contextmanager
def launch(kind: str, script: str, *arguments: str) -> Iterator[Launch]:
    """Start a launcher on the source of a script; ended with the block, if it has not."""
    with folder() as path:
        file = path / "script.py"
        file.write_text(STAMP + textwrap.dedent(script))
        launched = Launch(kind, file, arguments, path)
        try:
            yield launched
        finally:
            launched.end()
