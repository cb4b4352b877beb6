"""One rank of a node reads the launcher's stdin: breakpoint() at a terminal, input() in a pipe."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.harness import Launcher
from tests.waiting import BOUND_S, until

LAUNCHER = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]


def quiet() -> dict[str, str]:
    """The environment, its temporary folder too, without what would choose options."""
    kept = os.environ.items()
    return {name: value for name, value in kept if not name.startswith(("PET_", "TORCHEL"))}


WAIT = """
import os, signal, time

def wait_for(name):
    "The launcher's lines are not to stand in the middle of a prompt."
    while not os.path.exists(name):
        time.sleep(0.005)

"""


class Terminal:
    """A launcher in the foreground of a real terminal, and a person who types."""

    def __init__(self, folder: Path, *args: str | Path) -> None:
        self._typed, self.screen = pty.openpty()
        self.modes = termios.tcgetattr(self.screen)
        self.shown = ""
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *LAUNCHER, *map(str, args)],
            cwd=folder,
            env={**quiet(), "TERM": "dumb"},
            stdin=self.screen,
            stdout=self.screen,
            stderr=self.screen,
        )

    def type(self, text: str) -> None:
        os.write(self._typed, text.encode())

    def shows(self, pattern: str) -> None:
        """Wait until it does, after what was waited for before."""
        give_up_at = time.monotonic() + BOUND_S
        while (found := re.search(pattern, self.shown)) is None:
            left = give_up_at - time.monotonic()
            assert select.select([self._typed], [], [], max(0.0, left))[0], (
                f"{pattern} is not there: {self.shown!r}; exit code {self.process.poll()}"
            )
            self.shown += os.read(self._typed, 4096).decode(errors="replace")
        self.shown = self.shown[found.end() :]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.screen)
        os.close(self._typed)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for each in opened:
        each.close()


@pytest.mark.parametrize("options", [[], ["--tee", "3"]], ids=["terminal", "prefixed"])
def test_breakpoint_works_at_a_terminal(
    ft: Launcher, terminals: list[Terminal], options: list[str]
) -> None:
    """With lines prefixed, too: the prompt is shown although its line has not ended."""
    script = ft.script(f"{WAIT}wait_for('started')\nx = 41\nbreakpoint()\nprint('x is', x)\n")
    terminals.append(Terminal(ft.folder, "--standalone", *options, script))
    terminal = terminals[0]

    terminal.shows("local rank 0 reads this terminal")
    terminal.shows("cycle 0: started .*\n")
    (ft.folder / "started").touch()
    terminal.shows(r"\(Pdb\) ")
    terminal.type("x += 1\n")
    terminal.shows(r"\(Pdb\) ")
    terminal.type("c\n")
    terminal.shows("x is 42")
    terminal.shows("exit code 0")

    assert terminal.process.wait(BOUND_S) == 0


def test_ctrl_c_at_a_prompt_ends_the_job_and_the_terminal_is_as_before(
    ft: Launcher, terminals: list[Terminal]
) -> None:
    """Of two ranks one was chosen; the first Ctrl-C is an interrupt there, the second the end."""
    script = ft.script(
        WAIT
        + """
import readline

if os.environ["RANK"] == "0":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    open("ignores", "w").close()
    wait_for("for ever")
wait_for("started")
wait_for("ignores")
open("pid", "w").write(str(os.getpid()))
while True:
    try:
        input("what now? ")
    except KeyboardInterrupt:
        wait_for("passed on")
"""
    )
    terminals.append(
        Terminal(ft.folder, "--standalone", "--nproc-per-node=2", "--ft-stdin-rank=1", script)
    )
    terminal = terminals[0]
    terminal.shows("cycle 0: started .*\n")
    (ft.folder / "started").touch()
    terminal.shows(r"what now\? ")
    stat = Path(f"/proc/{(ft.folder / 'pid').read_text()}/stat")
    # Between the prompt and its wait, readline would leave the signal for the next line.
    until(lambda: ") S " in stat.read_text(), "readline waits")
    terminal.type("\x03")
    terminal.shows("Press Ctrl-C again.*\n")
    (ft.folder / "passed on").touch()
    terminal.shows(r"what now\? ")
    assert termios.tcgetattr(terminal.screen) != terminal.modes
    terminal.type("\x03")
    terminal.shows("killing the ranks without grace")

    assert terminal.process.wait(BOUND_S) != 0
    assert termios.tcgetattr(terminal.screen) == terminal.modes


def test_one_rank_reads_a_pipe_and_goes_on_after_a_restart(ft: Launcher) -> None:
    """All others find the end of the file at once."""
    script = ft.script(
        """
        import os, sys

        os.write(1, f"rank {os.environ['RANK']} has read {os.read(0, 4)}\\n".encode())
        sys.exit(os.environ["RANK"] > os.environ["TORCHELASTIC_RESTART_COUNT"])
        """
    )
    options = ["--nproc-per-node=2", "--max-restarts=1", "--ft-stdin-rank=1"]
    ended = subprocess.run(
        [*LAUNCHER, *options, script],
        input=b"one\ntwo\n",
        check=False,
        env=quiet(),
        capture_output=True,
        timeout=BOUND_S,
    )

    assert ended.returncode == 0
    lines = ended.stdout.decode().splitlines()
    assert [line for line in lines if line.startswith("rank 1")] == [
        "rank 1 has read b'one\\n'",
        "rank 1 has read b'two\\n'",
    ]
    assert {line for line in lines if not line.startswith("rank 1")} == {"rank 0 has read b''"}
