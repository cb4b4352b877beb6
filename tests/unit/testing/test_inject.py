"""Faults on purpose: from the library, and from the environment in a script that knows nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.testing import chaos_rank, inject
from holdfast.testing.inject import Fault, Planned, parse_plan
from tests.waiting import BOUND_S, until

TICKING = """
import threading, time

def tick(name):
    while True:
        with open(name, "a") as file:  # else closed by the collector, which drops exceptions
            file.write(".")
        time.sleep(0.001)

threading.Thread(target=tick, args=("helper",), daemon=True).start()
tick("main")
"""


@contextmanager
def started(folder: Path, script: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """An unmodified script as rank 1 of cycle 0, with the hook on its path."""
    (folder / "script.py").write_text(script)
    path = os.pathsep.join([str(inject.HOOK), env.pop("then", "")])
    rank = {"RANK": "1", "PYTHONPATH": path, "PYTHONFAULTHANDLER": ""}
    with subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=folder,
        env={**os.environ, **rank, **env},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=BOUND_S)
    return process.returncode, said


@pytest.mark.parametrize("fault", Fault)
def test_a_fault_is_found_by_its_value_and_by_its_name(fault: Fault) -> None:
    assert Fault.named(fault.value) is Fault.named(fault.name.lower()) is fault


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("", []),
        ("segfault@1.5:0", [Planned(Fault.SEGFAULT, 1.5, 0, 0)]),
        ("lock@0:2:3,exit@9:1", [Planned(Fault.LOCK, 0, 2, 3), Planned(Fault.EXIT, 9, 1, 0)]),
    ],
)
def test_a_plan_is_read(text: str, plan: list[Planned]) -> None:
    assert parse_plan(text) == plan


@pytest.mark.parametrize(
    "text",
    ["segfault", "segfault@1", "meteor@1:1", "lock@x:1", "lock@1:-1", "lock@1:1:1:1", "@1:1"],
)
def test_a_plan_of_another_form_is_an_error_that_names_the_word(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not of the form KIND@|unknown fault '(meteor|)'"):
        parse_plan(text)


@pytest.mark.parametrize(
    ("plan", "exit_code", "said"),
    [
        ("exit@0:1", inject.EXIT_CODE, "rank 1 (pid"),
        ("exception@0:1", 1, "InjectedException"),
        ("segfault@0:1 exit@0:0 exit@0:1:1", -signal.SIGSEGV, "injecting fault SEGFAULT"),
        ("meteor@0:1", 2, "holdfast: HOLDFAST_INJECT: unknown fault 'meteor'; known are"),
    ],
)
def test_an_unmodified_script_has_the_faults_that_its_environment_names(
    tmp_path: Path, plan: str, exit_code: int, said: str
) -> None:
    """Those of its rank and cycle; a mistake is one line, and the script does not run."""
    with started(tmp_path, TICKING, HOLDFAST_INJECT=plan) as process:
        code, stderr = ended(process)

    assert code == exit_code, stderr
    assert said in stderr


def hangs_while_it_ticks(folder: Path, kind: str, after_s: float) -> bool:
    """Whether the script ticked before the fault came; if so, it hangs as it should."""

    def ticks(name: str) -> int:
        path = folder / name
        return path.stat().st_size if path.exists() else 0

    def stands_still() -> bool:
        before, others = ticks("main"), ticks("helper")
        time.sleep(0.05)
        if kind == "interpreter-lock":
            return before == ticks("main") and others == ticks("helper")
        return before == ticks("main") and others < ticks("helper")

    folder.mkdir()
    with started(folder, TICKING, HOLDFAST_INJECT=f"{kind}@{after_s}:1") as process:
        assert process.stderr is not None
        assert "injecting fault" in process.stderr.readline()
        if not (ticks("main") and ticks("helper")):
            return False
        until(stands_still, "the main thread hangs")
        assert process.poll() is None
    return True


@pytest.mark.parametrize("kind", ["lock", "sleep", "busy-loop", "interpreter-lock"])
def test_a_hang_stops_the_main_thread(tmp_path: Path, kind: str) -> None:
    """And only one that holds the interpreter lock stops the others."""
    waits_s = 0.05, 1.0, 10.0  # one is enough for the start of Python, however slow that is
    assert any(hangs_while_it_ticks(tmp_path / f"{it}", kind, it) for it in waits_s)


def test_the_hook_leaves_no_trace_in_a_process_without_faults(tmp_path: Path) -> None:
    """The sitecustomize of a plain start runs, and the path is that of a plain start."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("ran = True")
    script = """
import sys, sitecustomize
assert sitecustomize.ran
assert not [each for each in sys.path if each.endswith("start_hook")]
assert type(sys.meta_path[0]).__module__ != "sitecustomize"
"""
    with started(tmp_path, script, then=str(tmp_path / "site")) as process:
        assert ended(process) == (0, "")


def test_a_fault_that_needs_the_main_thread_says_so_elsewhere(monkeypatch) -> None:
    monkeypatch.setattr(inject.threading, "current_thread", lambda: None)
    with pytest.raises(RuntimeError, match="inject it in the main thread"):
        inject.inject(Fault.LOCK)


def test_a_fault_of_a_gpu_needs_one(monkeypatch) -> None:
    monkeypatch.setattr(inject, "has_gpu", lambda: False)
    with pytest.raises(RuntimeError, match="gpu-sleep needs a GPU"):
        inject.inject(Fault.GPU_SLEEP)


def test_a_fault_does_not_strike_while_its_thread_is_being_started(monkeypatch) -> None:
    """Thread.start() would turn an exception of the main thread into a KeyError."""
    order: list[str] = []
    start = threading.Thread.start

    def start_and_pause(thread: threading.Thread) -> None:
        start(thread)
        time.sleep(0.05)
        order.append("started")

    monkeypatch.setattr(inject, "_say", order.append)
    monkeypatch.setattr(threading.Thread, "start", start_and_pause)
    inject.inject(Fault.WORKLOAD_EXC).join(BOUND_S)
    inject.clear()
    assert order == ["started", "injecting fault WORKLOAD_EXC"]


# ---------------------------------------------------------------- a rank under chaos
def test_a_rank_under_chaos_introduces_itself_notes_steps_and_carries_out_an_order(
    tmp_path: Path,
) -> None:
    """Through files; an order that is not there is nothing."""
    script = """
import os, signal, time
from holdfast.testing.chaos_rank import note_step
os.kill(os.getpid(), signal.SIGRTMIN + 12)
for step in range(7, 10):
    note_step(step)
while True:
    time.sleep(0.001)
"""
    env = {"HOLDFAST_CHAOS": str(tmp_path), "TORCHELASTIC_RESTART_COUNT": "4"}
    with started(tmp_path, script, **env) as process:
        pid = process.pid
        steps = tmp_path / f"steps.{pid}"
        until(lambda: steps.exists() and steps.stat().st_size, "steps are noted")
        until(lambda: chaos_rank.STEPS.unpack(steps.read_bytes())[4] == 3, "all are")
        first_at, first, last_at, last, _ = chaos_rank.STEPS.unpack(steps.read_bytes())
        assert (first, last) == (7, 9)
        assert first_at <= last_at
        assert (tmp_path / f"hello.{pid}").read_text() == f"1 4 {os.getpid()}"

        (tmp_path / f"order.{pid}").write_text("exit")
        process.send_signal(chaos_rank.ORDER_SIGNAL)

        assert ended(process)[0] == inject.EXIT_CODE
        at, _, reason = (tmp_path / f"struck.{pid}").read_text().partition(" ")
        assert float(at) >= last_at
        assert reason == ""


def test_the_loss_of_a_node_ends_the_launcher_and_no_other_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parent of a rank is its launcher; outside of one it may be the user's shell."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert inject.why_not(Fault.NODE) == "node needs a launcher, and this process is no rank of one"
    act = "from holdfast.testing.inject import Fault, strike; strike(Fault.NODE)"
    script = '"$0" -c "$1"; echo is alive'
    for env, code in (({}, 0), ({"TORCHELASTIC_RUN_ID": "7"}, -signal.SIGKILL)):
        shell = subprocess.run(
            ["/bin/sh", "-c", script, sys.executable, act],
            capture_output=True,
            env={**os.environ, **env},
            check=False,
        )
        assert shell.returncode == code
