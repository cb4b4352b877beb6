"""Stacks of real processes that do not answer."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.base.processes import proc
from holdfast.evidence import stack_dump
from holdfast.evidence.stack_dump import StackDump
from tests.waiting import until

SIGNUM = int(signal.SIGRTMIN) + 7
VICTIM = """
import ctypes, faulthandler, signal, sys, threading
faulthandler.register({signum}, open(sys.argv[1], "a"), all_threads=True)
def wait_beside():
    threading.Event().wait()
def name_in_the_stack():
    print("up", flush=True)
    {then}
name_in_the_stack()
"""
SLEEP = "while True: signal.pause()"
SLEEP_WITH_THE_LOCK = "ctypes.PyDLL(None).sleep(1000)"
BLOCKED = f"signal.pthread_sigmask(signal.SIG_BLOCK, [{SIGNUM}]); signal.sigwait([1])"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The dump file."""
    return str(tmp_path / "stacks.txt")


def stopped(process: proc.Process) -> proc.Process:
    """By somebody."""
    process.send(signal.SIGSTOP)
    until(lambda: proc.process_state(process.pid).is_stopped)
    return process


def asleep(process: proc.Process) -> list[str]:
    """Its threads, if all of them sleep for good: none waits for a lock with a timeout."""

    def look() -> list[str]:
        tasks = Path(f"/proc/{process.pid}/task").iterdir()
        return [task.joinpath("status").read_text() for task in tasks]

    before = look()
    time.sleep(0.02)
    return before if look() == before and all("\tS (" in it for it in before) else []


@pytest.fixture
def victim(path: str) -> Iterator[Callable[[str], proc.Process]]:
    """Start a process that registered its dump and then does something for ever."""
    children, held = [], []

    def start(then: str) -> proc.Process:
        code = VICTIM.format(signum=SIGNUM, then=then)
        child = subprocess.Popen(
            [sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True
        )
        children.append(child)
        assert child.stdout.readline() == "up\n"
        until(lambda: proc.process_state(child.pid).state == "S")
        held.append(proc.Process(child.pid))
        return held[-1]

    yield start
    for process in held:
        process.close()
    for child in children:
        child.kill()
        child.wait()
        child.stdout.close()


def collect(dump: StackDump, bound_s: float = 10.0) -> str:
    """What the monitor's loop does."""
    give_up_at = time.monotonic() + bound_s
    while not dump.is_done and (now := time.monotonic()) < give_up_at:
        time.sleep(max(0.0, dump.next_step_at - now))
        dump.step(time.monotonic())
    text = dump.text()
    dump.close()
    assert dump.is_done
    return text


@pytest.mark.parametrize("then", [SLEEP, SLEEP_WITH_THE_LOCK], ids=["waits", "holds the lock"])
def test_stacks_come_whatever_python_is_doing(
    victim: Callable[[str], proc.Process], path: str, then: str
) -> None:
    """Also while the interpreter's lock is held inside C."""
    dump = StackDump(victim(then), SIGNUM, path, time.monotonic())

    assert "in name_in_the_stack" in collect(dump)
    assert dump.why_not is None
    assert not dump.was_stopped


def test_a_file_that_took_the_number_of_a_closed_one_gets_no_stacks(
    victim: Callable[[str], proc.Process], path: str, tmp_path: Path
) -> None:
    """As after ``os.closerange(3, 1024)`` in a script: it may be the checkpoint."""
    checkpoint = tmp_path / "checkpoint"
    reopens = f"import os; os.closerange(3, 64); file = open({str(checkpoint)!r}, 'w')"
    process = victim(f"{reopens}\n    {SLEEP}")
    dump = StackDump(process, SIGNUM, path, time.monotonic())

    assert collect(dump) == ""
    assert dump.why_not == "the rank has closed the file for its stacks"
    assert dump.has_handler
    assert checkpoint.read_text() == ""


def test_a_rank_that_handles_all_signals_is_sent_none(
    victim: Callable[[str], proc.Process], path: str
) -> None:
    """Its handler is in the place of the one for stacks, and may save and exit, as here."""
    handles_all = (
        "import os\n"
        "    for number in signal.valid_signals() - {9, 19, 32, 33}:\n"
        "        signal.signal(number, lambda *_: os._exit(1))"
    )
    process = victim(f"{handles_all}\n    {SLEEP}")
    until(lambda: proc.process_state(process.pid).catches(64))
    dump = StackDump(process, SIGNUM, path, time.monotonic())

    assert collect(dump) == ""
    assert dump.why_not == "the rank handles all signals itself, and none may be sent"
    assert dump.has_handler
    assert not process.has_ended()


def test_only_the_new_part_of_the_file_is_shown(
    victim: Callable[[str], proc.Process], path: str
) -> None:
    """The rank may have dumped before."""
    process = victim(SLEEP)
    collect(StackDump(process, SIGNUM, path, time.monotonic()))
    text = collect(StackDump(process, SIGNUM, path, time.monotonic()))

    assert text.count("in name_in_the_stack") == 1
    assert Path(path).read_text().count("in name_in_the_stack") == 2


def test_a_stopped_process_is_continued_first_and_stopped_again(
    victim: Callable[[str], proc.Process], path: str
) -> None:
    """And the report says that it was stopped; one that trained on could finish before its end."""
    process = stopped(victim(SLEEP))
    dump = StackDump(process, SIGNUM, path, time.monotonic(), will_end=True)

    assert "in name_in_the_stack" in collect(dump)
    assert dump.was_stopped
    assert dump.state.state == "T"
    until(lambda: proc.process_state(process.pid).is_stopped)


def test_a_process_whose_end_is_not_decided_is_never_stopped(
    victim: Callable[[str], proc.Process], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profiler that had stopped it for a moment would not continue it twice."""
    process = stopped(victim(SLEEP))
    sent: list[int] = []
    send = proc.Process.send
    monkeypatch.setattr(proc.Process, "send", lambda its, n: bool(sent.append(n)) or send(its, n))
    dump = StackDump(process, SIGNUM, path, time.monotonic())

    assert "in name_in_the_stack" in collect(dump)
    assert signal.SIGCONT in sent
    assert signal.SIGSTOP not in sent


def test_the_main_thread_of_a_stopped_process_writes_before_it_goes_on(
    victim: Callable[[str], proc.Process], path: str
) -> None:
    """Another thread would read frames of Python that runs: now and then the process died of it."""
    threads = "[threading.Thread(target=wait_beside, daemon=True).start() for _ in range(16)]"
    process = victim(f"{threads}\n    {SLEEP}")
    until(lambda: len(asleep(process)) == 17)
    for _ in range(20):
        stopped(process)
        text = collect(StackDump(process, SIGNUM, path, time.monotonic()))
        _, _, current = text.partition("Current thread ")
        assert "in name_in_the_stack" in current.partition("Thread ")[0], text
        assert "in wait_beside" in text


def test_no_answer_is_asked_for_again_and_then_stated(
    victim: Callable[[str], proc.Process], path: str
) -> None:
    """K-2: the caller's bound ends it, with a reason."""
    process = victim(BLOCKED)
    until(lambda: proc.process_state(process.pid).blocks(SIGNUM))
    dump = StackDump(process, SIGNUM, path, time.monotonic())

    assert collect(dump, bound_s=0.3) == ""
    assert dump.why_not == f"no answer to signal {SIGNUM}"
    assert not dump.was_stopped


def test_a_process_that_was_stopped_since_is_continued(
    victim: Callable[[str], proc.Process], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc showed it running; the signal waits until it goes on."""
    process = victim(SLEEP)
    running = proc.process_state(process.pid)
    stopped(process)
    with monkeypatch.context() as patch:
        patch.setattr(proc, "process_state", lambda _: running)
        dump = StackDump(process, SIGNUM, path, time.monotonic(), will_end=True)

    assert collect(dump).count("in name_in_the_stack") == 1
    assert dump.was_stopped
    until(lambda: proc.process_state(process.pid).is_stopped)


def test_a_signal_on_its_way_is_not_sent_twice(
    victim: Callable[[str], proc.Process], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the process may not have run yet: it would dump twice."""
    process = victim(BLOCKED)
    until(lambda: proc.process_state(process.pid).blocks(SIGNUM))
    dump = StackDump(process, SIGNUM, path, time.monotonic())
    sent = []
    with monkeypatch.context() as patch:
        patch.setattr(proc.Process, "send", lambda _, signum: sent.append(signum))
        dump.step(time.monotonic() + 1.0)

    assert sent == []
    assert proc.process_state(process.pid).awaits(SIGNUM)
    dump.close()


def test_a_dump_that_comes_as_it_is_about_to_be_asked_for_again_is_enough(
    victim: Callable[[str], proc.Process], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler ran between the looks at the file and at the signals: none is on its way."""
    process = victim(SLEEP)
    sent: list[int] = []

    def look_after_its_handler(pid: int, _: int = 0) -> proc.ProcessState | None:
        Path(path).write_text("Thread 1")
        return look(pid)

    look = proc.process_state
    with monkeypatch.context() as patch:
        patch.setattr(proc.Process, "send_to_thread", lambda _, *args: sent.append(args[1]))
        patch.setattr(proc.Process, "send", lambda _, signum: sent.append(signum))
        dump = StackDump(process, SIGNUM, path, time.monotonic())
        first = list(sent)
        patch.setattr(proc, "process_state", look_after_its_handler)
        dump.step(time.monotonic() + 1.0)

    assert sent == first != []
    assert collect(dump) == "Thread 1"


@pytest.mark.parametrize(
    ("signum", "has_path", "why_not"),
    [
        (0, True, "the rank registered no signal"),
        (SIGNUM, False, "no file for stack dumps"),
        (int(signal.SIGUSR1), True, "has no handler for signal"),
        (int(signal.SIGKILL), True, "has no handler for signal"),
    ],
)
def test_a_signal_that_could_end_it_is_not_sent(
    victim: Callable[[str], proc.Process], path: str, signum: int, has_path: bool, why_not: str
) -> None:
    """The process lives on."""
    process = victim(SLEEP)
    dump = StackDump(process, signum, path if has_path else None, time.monotonic())

    assert dump.is_done
    assert why_not in dump.why_not
    assert process.is_alive()


def test_a_dump_file_that_is_gone_is_the_reason(
    victim: Callable[[str], proc.Process], path: str
) -> None:
    """Somebody cleaned up."""
    process = victim(SLEEP)
    Path(path).unlink()
    dump = StackDump(process, SIGNUM, path, time.monotonic())

    assert "No such file" in dump.why_not
    assert collect(dump) == ""


def test_a_helper_that_writes_the_stacks_is_waited_for_and_no_signal_is_sent(
    path: str, victim: Callable[[str], proc.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says when it has written all: there is no quiet to be waited for."""
    process = victim(SLEEP)
    Path(path).touch()

    def write() -> None:
        Path(path).write_text("Thread 1")
        dumps.append(1)

    dumps: list[int] = []
    sent: list[int] = []
    monkeypatch.setattr(proc.Process, "send", lambda _, signum: sent.append(signum))
    monkeypatch.setattr(proc.Process, "send_to_thread", lambda _, *signal: sent.append(signal[1]))
    dump = StackDump(process, SIGNUM, path, 100.0, ask_helper=write)
    assert not dump.step(100.0)
    assert not dump.step(100.0 + 10 * stack_dump.QUIET_S), "it may have no CPU now"
    dump.written()

    assert dump.step(101.0)
    assert (dump.text(), dumps, dump.why_not) == ("Thread 1", [1], None)
    assert sent == []
    dump.close()
    monkeypatch.undo()  # for the fixture, which ends the process


def test_a_helper_that_writes_nothing_is_given_the_signal_or_the_main_thread_is(
    path: str, victim: Callable[[str], proc.Process]
) -> None:
    """The lock may have been taken since it answered."""
    process = victim(SLEEP_WITH_THE_LOCK)
    found: list[int] = []

    def find() -> int:
        found.append(process.pid)
        return process.pid

    dump = StackDump(
        process, SIGNUM, path, time.monotonic(), ask_helper=lambda: None, find_thread=find
    )
    assert "name_in_the_stack" in collect(dump)
    assert len(found) == 2, "when it is asked, and when it has not answered"
