"""One rank of a node reads the launcher's stdin: breakpoint() at a terminal, input() in a pipe."""

from __future__ import annotations

import fcntl
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

from tests.real.harness import BOUND_S, Launcher

LAUNCHER = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]
QUIET = {
    name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TORCHEL"))
}


class Terminal:
    """A launcher in the foreground of a real terminal, and a person who types."""

    def __init__(self, folder: Path, *args: str | Path) -> None:
        self._typed, self.screen = pty.openpty()
        self.modes = termios.tcgetattr(self.screen)
        self.shown = ""

        def own_the_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [*LAUNCHER, *map(str, args)],
            cwd=folder,
            env={**QUIET, "TERM": "dumb"},
            stdin=self.screen,
            stdout=self.screen,
            stderr=self.screen,
            start_new_session=True,
            preexec_fn=own_the_terminal,  # noqa: PLW1509 - no threads here
        )

    def type(self, text: str) -> None:
        os.write(self._typed, text.encode())

    def shows(self, pattern: str) -> None:
        """Wait until it does, after what was waited for before."""
        give_up_at = time.monotonic() + BOUND_S
        while (found := re.search(pattern, self.shown)) is None:
            left = give_up_at - time.monotonic()
            assert select.select([self._typed], [], [], max(0.0, left))[0], self.shown
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
    script = ft.script("x = 41\nbreakpoint()\nprint('x is', x)\n")
    terminals.append(Terminal(ft.folder, "--standalone", *options, script))
    terminal = terminals[0]

    terminal.shows("local rank 0 reads this terminal")
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
        """
        import os, readline, time

        while os.environ["RANK"] == "0":
            time.sleep(60)
        while True:
            try:
                input("what now? ")
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        """
    )
    terminals.append(
        Terminal(ft.folder, "--standalone", "--nproc-per-node=2", "--ft-stdin-rank=1", script)
    )
    terminal = terminals[0]
    terminal.shows("what now\\? ")
    terminal.type("\x03")
    terminal.shows("Press Ctrl-C again")
    terminal.shows("what now\\? ")
    assert termios.tcgetattr(terminal.screen) != terminal.modes
    terminal.type("\x03")
    terminal.shows("killing the ranks without grace")

    assert terminal.process.wait(BOUND_S) != 0
    assert termios.tcgetattr(terminal.screen) == terminal.modes


def test_a_restarted_rank_reads_on_in_the_same_pipe(ft: Launcher) -> None:
    """``echo ... | ft_launcher --nproc-per-node 1 script``."""
    script = ft.script(
        """
        import os, sys

        print("read", os.read(0, 4), flush=True)
        sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
        """
    )
    ended = subprocess.run(
        [*LAUNCHER, "--nproc-per-node", "1", "--max-restarts", "1", script],
        input=b"one\ntwo\n",
        check=False,
        env=QUIET,
        capture_output=True,
        timeout=BOUND_S,
    )

    assert ended.returncode == 0
    assert ended.stdout.splitlines() == [b"read b'one\\n'", b"read b'two\\n'"]


@pytest.mark.parametrize(
    ("options", "reader"),
    [([], None), (["--local-ranks-filter=1"], 1), (["--ft-stdin-rank=0"], 0)],
    ids=["nobody", "the rank that is shown", "the rank that is named"],
)
def test_of_several_ranks_at_most_one_reads(
    ft: Launcher, options: list[str], reader: int | None
) -> None:
    """All others find the end of the file at once."""
    script = ft.script(
        """
        import os, pathlib, sys

        read = pathlib.Path(os.environ["OUT"], os.environ["RANK"])
        read.write_text(sys.stdin.read())
        """
    )
    ended = subprocess.run(
        [*LAUNCHER, "--nproc-per-node=2", *options, script],
        check=False,
        input=b"hello",
        env={**QUIET, "OUT": str(ft.folder)},
        capture_output=True,
        timeout=BOUND_S,
    )

    assert ended.returncode == 0
    for rank in (0, 1):
        assert (ft.folder / str(rank)).read_text() == ("hello" if rank == reader else "")
