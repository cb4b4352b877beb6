"""The command ``ft_launcher`` before it has anything to look after."""

from __future__ import annotations

import io
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.fault_tolerance import launcher
from holdfast.job.pure.job_secret import SECRET
from holdfast.options import arguments


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ctrl-C comes while the command line is read."""

    def press_ctrl_c(_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(arguments, "parse_args", press_ctrl_c)
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("args", [None, ["script.py"]])
def test_an_early_interrupt_is_one_line_and_exit_code_130(
    args: list[str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program is at its end then, and deaf to more; a caller of main is not."""
    handler = signal.getsignal(signal.SIGINT)

    assert launcher.main(args) == 130

    assert capsys.readouterr().err == "ft_launcher: interrupted before anything was started\n"
    assert signal.getsignal(signal.SIGINT) == (handler if args else signal.SIG_IGN)


@pytest.mark.parametrize("args", [None, ["--standalone", __file__]], ids=["command", "program"])
def test_the_secret_of_a_program_is_there_for_its_next_job(
    args: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a command starts does not get to see it."""
    monkeypatch.setenv(SECRET, "correct horse battery staple")
    monkeypatch.setattr("sys.argv", ["ft_launcher", __file__])
    monkeypatch.setattr(launcher, "run", lambda _plan, **_: 0)
    handler = signal.getsignal(signal.SIGINT)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    assert launcher.main(args) == 0

    signal.signal(signal.SIGINT, handler)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (SECRET in os.environ) is (args is not None)


@pytest.mark.parametrize("text", ["fault_tolerance: {rank_hartbeat_timeout: 3}", "model: 1"])
def test_a_slip_of_the_pen_in_the_configuration_file_ends_the_launcher_before_any_rank(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one line and the exit code of a file that cannot be used; nothing is started."""
    path = tmp_path / "train.yaml"
    path.write_text(text, encoding="utf-8")
    started: list[object] = []
    monkeypatch.setattr(launcher, "run", lambda plan, **_: started.append(plan))

    assert launcher.main(["--ft-cfg-path", str(path), __file__]) == 1

    assert started == []
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ft_launcher: error: {path}: ")


class ProcessEnded(BaseException):
    """Stands for ``os._exit``, which no test survives."""


@pytest.mark.parametrize("somebody_reads", [True, False])
def test_the_command_ends_at_once_with_the_exit_code_of_the_job(
    monkeypatch: pytest.MonkeyPatch, *, somebody_reads: bool
) -> None:
    """What it has written is out by then; where it cannot be, Python ends it, and says so."""
    events: list[object] = []

    class Stream(io.StringIO):
        def flush(self) -> None:
            events.append(self.getvalue())
            if not somebody_reads:
                raise BrokenPipeError

    def exit_at_once(code: int) -> None:
        raise ProcessEnded(code)

    monkeypatch.setattr(launcher, "_main", lambda *_, **__: print("said") or 3)
    monkeypatch.setattr(os, "_exit", exit_at_once)
    monkeypatch.setattr("sys.stdout", Stream())

    with pytest.raises(ProcessEnded if somebody_reads else SystemExit) as ended:
        launcher.command()

    assert ended.value.args == (3,)
    assert events == ["said\n"]


def test_names_are_there_when_they_are_used() -> None:
    """Importing the launcher costs nothing, so that an interrupt can hardly hit the imports."""
    for name in launcher.__all__:
        assert getattr(launcher, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        launcher.nothing  # noqa: B018


def end_of(program: str, tmp_path: Path) -> tuple[int, str]:
    """Exit code and stderr of a process that sends itself a signal."""
    script = tmp_path / "script.py"
    script.write_text("print('ran')", encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import os, signal, sys\n{program}",
            f"--log-dir={tmp_path}",
            script,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "NVRX_DISABLE_RANK_MONITORS": "1"},
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("SIGTERM", 1, "ended by signal 15 before anything was started"),
        ("SIGINT", 130, "interrupted before anything was started"),
    ],
)
def test_a_signal_before_the_command_line_is_read_ends_the_launcher_as_documented(
    name: str, code: int, text: str, tmp_path: Path
) -> None:
    """From its first line on: it had died of the signal, or of a traceback."""
    found = end_of(
        f"""
class Interrupting:
    def find_spec(self, name, *_):
        if name == "holdfast.options.arguments":
            os.kill(os.getpid(), signal.{name})
sys.meta_path.insert(0, Interrupting())
from holdfast.ft_launcher import command
command()
""",
        tmp_path,
    )
    assert found == (code, f"ft_launcher: {text}\n")


@pytest.mark.parametrize("when", ["before the loop", "after the loop"])
def test_a_signal_around_the_job_ends_the_launcher_as_documented(when: str, tmp_path: Path) -> None:
    """Held until the loop takes it; after the loop the job's code is what counts."""
    code, stderr = end_of(
        f"""
from holdfast.ft_launcher import command
from holdfast.node.agent import NodeAgent
run = NodeAgent.run
def signalled(agent):
    {"os.kill(os.getpid(), signal.SIGTERM)" if when == "before the loop" else "pass"}
    code = run(agent)
    {"os.kill(os.getpid(), signal.SIGTERM)" if when == "after the loop" else "pass"}
    return code
NodeAgent.run = signalled
command()
""",
        tmp_path,
    )
    assert ("was stopped by SIGTERM" in stderr) is (when == "before the loop")
    assert code == (1 if when == "before the loop" else 0)


def test_signals_that_the_user_left_out_have_their_default_effect(tmp_path: Path) -> None:
    """``--signals-to-handle`` says which the launcher takes."""
    code, _ = end_of(
        """
from holdfast.ft_launcher import command
from holdfast.node.agent import NodeAgent
NodeAgent.run = lambda agent: os.kill(os.getpid(), signal.SIGQUIT)
sys.argv[1:1] = ["--signals-to-handle=SIGTERM"]
command()
""",
        tmp_path,
    )
    assert code == -signal.SIGQUIT
