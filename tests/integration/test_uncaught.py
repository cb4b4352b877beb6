"""A rank whose program ends with an exception ends soon, and in all else as in plain Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.net.loop import Loop
from holdfast.node.control_endpoint import ControlEndpoint
from holdfast.node.processes.ranks import read_exiting_at
from holdfast.watch.pure.rank_messages import ExitsNow, Uncaught
from holdfast.watch.rank.auto_start import StartHook
from tests.waiting import BOUND_S

RAISES = """
import atexit, threading
atexit.register(print, "handler")
def train():
    raise ValueError("bad sample")
"""


class Launcher:
    """Its part of the conversation; a process that it starts is a rank."""

    def __init__(self, folder: Path, loop: Loop) -> None:
        self.folder, self.loop = folder, loop
        self.said: list[str] = []
        self.tracebacks: list[str] = []
        self.pid = 0
        path = str(folder / "launcher.socket")
        nothing = lambda *_: None  # noqa: E731
        self.endpoint = ControlEndpoint(path, loop, nothing, nothing, self.on_exception)
        self.socket = path

    def on_exception(self, pid: int, message: Uncaught | ExitsNow | None) -> bool:
        match message:
            case Uncaught(traceback):
                self.said.append("raised")
                self.tracebacks.append(traceback)
            case ExitsNow():
                self.said.append("exits now")
            case None:
                self.said.append("goes on")
        return pid == self.pid

    def run(self, script: str, *, grace_s: float = 60.0, hook: bool = True) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of ``script``, as a rank or in plain Python."""
        file = self.folder / "script.py"
        file.write_text(script)
        path = str(Path(__file__).parents[2] / "src")
        env = {**os.environ, "PYTHONPATH": path, "FT_LAUNCHER_IPC_SOCKET": self.socket}
        env["TORCHELASTIC_ERROR_FILE"] = str(self.folder / "error.json")
        if hook:
            env = StartHook(exception_grace_s=grace_s).added_to(env)
        command = [sys.executable, str(file)]
        process = subprocess.Popen(
            command, cwd=self.folder, env=env, stdin=-3, stdout=-1, stderr=-1, text=True
        )
        self.pid = process.pid
        for _ in range(int(BOUND_S / 0.02)):
            self.loop.wait(0.02)
            if process.poll() is not None:
                break
        else:
            process.kill()
        self.endpoint.drain()
        out, err = process.communicate()
        return process.returncode, out, err


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    with Loop() as loop:
        launcher = Launcher(tmp_path, loop)
        yield launcher
        launcher.endpoint.close()


FAILS = {
    "plain": "train()",
    "finally": "try:\n    train()\nfinally:\n    print('cleaned up')",
    "raise": "try:\n    train()\nexcept ValueError:\n    print('cleaned up')\n    raise",
    "from": "try:\n    train()\nexcept ValueError as e:\n    raise RuntimeError('step 3') from e",
    "with": "with open(__file__):\n    train()",
    "own hook": """
import sys
sys.excepthook = lambda *_: print("mine", file=sys.stderr)
train()
""",
    "hooks in a row": """
import sys
before = sys.excepthook
sys.excepthook = lambda *found: (print("mine"), before(*found))
train()
""",
    "no hook": "import sys\ndel sys.excepthook\ntrain()",
    "open file": "file = open('log', 'w')\nfile.write('last line')\ntrain()",
}
GOES_ON = {
    "exit": "import sys\nsys.exit(3)",
    "caught and exit": "import sys\ntry:\n    train()\nexcept ValueError:\n    sys.exit('failed')",
    "caught": "try:\n    train()\nexcept ValueError:\n    pass",
    "hook called": """
import sys
try:
    train()
except ValueError:
    sys.excepthook(*sys.exc_info())
""",
    "last value": """
import sys
try:
    train()
except ValueError as error:
    sys.last_value, sys.last_traceback = error, error.__traceback__
print("well")
""",
    "interrupt": "raise KeyboardInterrupt",
    "thread": "threading.Thread(target=train).start()",
    "hook ends it well": "import os, sys\nsys.excepthook = lambda *_: os._exit(0)\ntrain()",
    "hook starts it anew": """
import os, sys
if len(sys.argv) > 1:
    sys.exit(0)
anew = [sys.executable, __file__, "anew"]
sys.excepthook = lambda *_: os.execv(sys.executable, anew)
train()
""",
    "fork": "import os\nif os.fork():\n    os.wait()\nelse:\n    train()",
    "inspect": "import os\nos.environ['PYTHONINSPECT'] = '1'\ntrain()",
}


@pytest.mark.parametrize("ending", FAILS.values(), ids=FAILS)
def test_an_exception_ends_a_rank_as_it_ends_plain_python(launcher: Launcher, ending: str) -> None:
    """The same exit code, output and files; the launcher knows of it before and after handlers."""
    expected = launcher.run(RAISES + ending, hook=False)
    log = launcher.folder / "log"
    left = log.read_text() if log.exists() else None
    log.unlink(missing_ok=True)
    assert launcher.said == []

    assert launcher.run(RAISES + ending) == expected
    assert expected[0] == 1
    assert (log.read_text() if log.exists() else None) == left
    assert launcher.said == ["raised", "exits now"]
    assert "ValueError: bad sample" in launcher.tracebacks[0]


@pytest.mark.parametrize("ending", GOES_ON.values(), ids=GOES_ON)
def test_what_is_no_end_by_an_exception_is_left_to_python(launcher: Launcher, ending: str) -> None:
    """The launcher hears of none of it; a hook of the program's may end the process well."""
    shown = [
        (code, out, re.sub(r"Thread-\d+|>>> ", "", err))
        for code, out, err in (launcher.run(RAISES + ending, hook=hook) for hook in (False, True))
    ]
    assert shown[0] == shown[1]
    assert launcher.said == []


@pytest.mark.parametrize(
    ("handler", "exit_code"),
    [
        ("os._exit(0)", 0),
        ("os.execv(sys.executable, [sys.executable, '-c', 'pass'])", 0),
    ],
    ids=["exit", "exec"],
)
def test_an_exit_handler_may_still_end_it_otherwise(
    launcher: Launcher, handler: str, exit_code: int
) -> None:
    script = f"import os, sys, atexit, threading\natexit.register(lambda: {handler})\n1 / 0"
    assert launcher.run(script)[0] == exit_code
    assert launcher.said == ["raised", "goes on"]


LEAVES = {
    "exit": ("import sys\nsys.exit(3)", True),
    "end": ("pass", True),
    "fork": ("import os\nif not os.fork():\n    sys.exit(1)\nos.wait()\nos._exit(0)", False),
    "exception": ("train()", False),
    "interrupt": ("raise KeyboardInterrupt", False),
    "thread": ("threading.Timer(0.1, os._exit, [0]).start()", False),
}


@pytest.mark.parametrize(("ending", "marks"), LEAVES.values(), ids=LEAVES)
def test_a_rank_marks_that_it_exits_without_an_exception(
    launcher: Launcher, ending: str, marks: bool
) -> None:
    """Before its exit handlers, which may take long, and when no thread works for it any more."""
    shows = "import os, sys\natexit.register(lambda: print(os.listdir()))\n"
    before = time.monotonic()
    _, out, _ = launcher.run(RAISES + shows + ending)
    at = read_exiting_at(launcher.folder, launcher.pid)
    assert (f"exiting.{launcher.pid}" in out) == marks
    assert (at is not None and before <= at <= time.monotonic()) == marks
    assert len(list(launcher.folder.glob("exiting*"))) == marks


def test_threads_are_not_waited_for(launcher: Launcher) -> None:
    """Plain Python would wait for ever."""
    waits = "threading.Thread(target=threading.Event().wait).start()\ntrain()"
    assert launcher.run(RAISES + waits)[:2] == (1, "handler\n")
    assert launcher.said == ["raised", "exits now"]


def test_with_no_time_for_exit_handlers_none_is_run(launcher: Launcher) -> None:
    assert launcher.run(f"{RAISES}train()", grace_s=0.0)[:2] == (1, "")


def test_where_nobody_bounds_exit_handlers_the_process_ends_as_plain_python(
    launcher: Launcher,
) -> None:
    """The launcher is gone, or this is a child of a rank: its threads are waited for, too."""
    launcher.endpoint.close()
    ends = "threading.Timer(0.1, print, ['thread']).start()\ntrain()"
    assert launcher.run(RAISES + ends)[:2] == (1, "thread\nhandler\n")
    assert launcher.said == []
