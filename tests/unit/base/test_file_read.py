"""Nobody waits for a process that is stuck with the lock of its memory: a FIFO stands in for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base import clock, wait_for
from holdfast.base.processes import child, file_read, orphans, proc, reaper
from holdfast.base.processes.descendants import Family
from holdfast.base.processes.job_record import JobRecord
from holdfast.base.pure.ownership import Claim, Facts, Origin
from holdfast.net.loop import Loop
from holdfast.node.part import CycleStarted
from holdfast.node.pure.cycle_events import CycleEnding
from holdfast.options.plan import WarmStandby
from holdfast.standby.pure.parked_interpreters import ParkedState
from holdfast.standby.standbys import Standbys
from tests.processes import bystander
from tests.waiting import until


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_read, "READ_S", 0.2)


@pytest.fixture
def stuck(tmp_path: Path) -> str:
    """A file that makes its reader wait for ever."""
    os.mkfifo(tmp_path / "stuck")
    return str(tmp_path / "stuck")


def test_files_are_read_and_one_that_cannot_be_is_nothing(tmp_path: Path) -> None:
    """Large ones, too, and more than one reader is asked for."""
    large = tmp_path / "large"
    large.write_bytes(b"x" * 300_000)
    small = [tmp_path / f"file {number}" for number in range(3)]
    for path in small:
        path.write_text(path.name)

    found = file_read.read_all([str(path) for path in (large, *small, tmp_path / "none")])

    assert found == {
        str(large): b"x" * 300_000,
        **{str(path): path.name.encode() for path in small},
        str(tmp_path / "none"): None,
    }
    assert file_read.read_all([]) == {}


def test_who_is_stuck_costs_a_moment_and_those_after_it_are_read(
    tmp_path: Path, stuck: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader is ended, and leaves nothing; also where one reader takes few files."""
    (tmp_path / "file").write_text("text")
    monkeypatch.setattr(file_read, "_FILES_MAX", 2)
    paths = [str(tmp_path / "none"), stuck, str(tmp_path / "file")]

    assert file_read.read_all(paths) == {paths[0]: None, stuck: None, paths[2]: b"text"}
    until(lambda: not file_read.readers(), "the readers are gone")


def test_only_a_reader_that_has_not_begun_has_ten_seconds(stuck: str) -> None:
    """The interpreter's start may take them on a busy host; after it, a file has half a second."""
    reading = file_read.FileRead([stuck])
    try:
        deadline = reading.next_deadline()
        assert deadline is not None
        assert deadline > clock.monotonic() + file_read.READ_S
        assert wait_for.readable(reading.fileno(), 60.0)
        reading.step()
        deadline = reading.next_deadline()
        assert deadline is not None
        assert deadline <= clock.monotonic() + file_read.READ_S
    finally:
        reading.close()


def test_a_reader_that_waits_for_a_cpu_is_not_stuck(
    stuck: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy host a process of the job had no marker, and a resource tracker was killed."""
    now, state = 100.0, "R"
    monkeypatch.setattr(file_read, "clock", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(file_read, "stat", lambda _: SimpleNamespace(state=state))
    for bound_s, last_state in ((2.0, "D"), (file_read.START_S, "R")):
        reading = file_read.FileRead([stuck])
        assert wait_for.readable(reading.fileno(), 60.0)
        reading.step()
        last_byte_at, state = now, "R"
        while now < last_byte_at + bound_s - file_read.READ_S:
            now += file_read.READ_S
            reading.step()
            assert not reading.is_done
        now, state = last_byte_at + bound_s + file_read.READ_S, last_state
        reading.step()
        assert reading.found == {stuck: None}


def test_a_reader_does_not_look_like_one_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be taken for a process that a rank has left behind."""
    monkeypatch.setenv(proc.MARKER, "job.0.0")
    own = "/proc/self/environ"  # of the reader
    assert file_read.marker(file_read.read_all([own])[own]) == ""


def test_a_reader_that_somebody_else_has_reaped_is_neither_signalled_nor_waited_for(
    stuck: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher reaps whatever ends; the pid may belong to a rank by now."""
    before = file_read.readers()
    reading = file_read.FileRead([stuck])
    (reader,) = file_read.readers() - before
    os.kill(reader, signal.SIGKILL)
    os.waitpid(reader, 0)
    assert file_read.forget(reader)
    assert not file_read.forget(reader)
    touched: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: touched.append(pid))
    monkeypatch.setattr(os, "waitpid", lambda pid, _: touched.append(pid))

    reading.close()

    assert touched == []
    assert file_read.readers() <= before


def test_a_launcher_whose_reader_is_stuck_is_no_part_of_a_program(
    tmp_path: Path, stuck: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader is its own child; what it adopts later comes from its ranks all the same."""
    monkeypatch.setattr(child, "become_subreaper", lambda: True)
    reading = file_read.FileRead([stuck])
    readers = file_read.readers()
    assert readers
    with monkeypatch.context() as alone:
        alone.setattr(proc, "children", lambda _pid: list(readers))
        family = Family(JobRecord(str(tmp_path), "job"), owns_process=True, started=())
    with bystander() as adopted:
        try:
            assert adopted.pid in family.below(readers, readers)
        finally:
            reading.close()


def test_without_a_process_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is to be had, or it cannot run: who asks goes on without an answer."""
    monkeypatch.setattr(file_read, "_BOOT", "raise SystemExit  # {files}")
    assert file_read.read_all(["/proc/self/stat"]) == {}

    def refuse(*_: object, **__: object) -> int:
        raise OSError(11, "no process")

    monkeypatch.setattr(file_read, "start_bare", refuse)
    assert file_read.read_all(["/proc/self/stat"]) == {}


def test_what_lies_in_the_memory_of_a_process_is_understood() -> None:
    """A marker, also the first of its environment; words; files."""
    assert file_read.marker(b"HOLDFAST_MARKER=job.0.0\0A=b\0") == "job.0.0"
    assert file_read.marker(b"A=b\0HOLDFAST_MARKER=job.0.1\0") == "job.0.1"
    assert file_read.marker(b"XHOLDFAST_MARKER=job\0") == ""
    assert file_read.marker(None) == ""
    assert file_read.words(b"a\0b c\0") == ["a", "b c"]
    assert file_read.words(None) == []
    maps = b"00-01 r-xp 0 08:01 12 /usr/lib/a b.so\n01-02 rw-p 0 00:00 0 \n"
    assert file_read.mapped_files(maps) == ["/usr/lib/a b.so"]
    assert file_read.mapped_files(None) == []


def made_up_proc(root: Path, processes: dict[int, Facts], stuck: int) -> str:
    """A /proc in which no one may look into the memory of process ``stuck``."""
    for pid, facts in processes.items():
        (root / str(pid)).mkdir(parents=True)
        fields = [str(facts.parent), "0", str(facts.session), *["0"] * 15, str(facts.started)]
        (root / str(pid) / "stat").write_text(f"{pid} (a) b) S {' '.join(fields)} 0 0\n")
        if pid == stuck:
            for name in ("environ", "cmdline", "maps"):
                os.mkfifo(root / str(pid) / name)
    return str(root)


def test_a_sweep_passes_over_a_stuck_process_and_ends_the_rest(tmp_path: Path) -> None:
    """It can't be shown to be ours, and is left; what is ours by its session is killed."""
    ours = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    identity = proc.identity(ours.pid)
    assert identity is not None
    session = 2**22 + 2
    table = {
        1: Facts(0, 1, 0),
        2**22 + 1: Facts(1, 2**22 + 1, identity[1]),
        ours.pid: Facts(1, session, identity[1]),
    }
    root = made_up_proc(tmp_path / "proc", table, stuck=2**22 + 1)
    rank = {session: (identity[1] - 1, None)}
    claim = Claim("job", (3, 0), Origin("", 0, {"": "/"}, ""), ranks=rank, alive_at=identity[1])

    assert proc.table(root).keys() == table.keys()
    ended = orphans.end_job(claim, root=root)

    assert ours.wait(30.0) == -signal.SIGKILL
    assert (ended.killed, ended.left) == (1, {})


def test_a_sweep_leaves_the_rest_to_a_launcher_that_goes_on(tmp_path: Path) -> None:
    """It may have started the job's next ranks."""
    with bystander() as ours:
        identity = proc.identity(ours.pid)
        assert identity is not None
        session = 2**22 + 2
        table = {1: Facts(0, 1, 0), ours.pid: Facts(1, session, identity[1])}
        root = made_up_proc(tmp_path / "proc", table, stuck=0)
        rank = {session: (identity[1] - 1, None)}
        about = Origin("", 0, {"": "/"}, "")
        claim = Claim("job", (3, 0), about, ranks=rank, alive_at=identity[1])

        ended = orphans.end_job(claim, root=root, is_stopped=lambda: False)

        assert (ended.killed, ours.poll()) == (0, None)


class Watcher:
    """Waits for what it is told to."""

    def __init__(self) -> None:
        self.fds: set[int] = set()

    def watch(self, fd: int, wanted: bool) -> None:
        (self.fds.add if wanted else self.fds.remove)(fd)


IGNORES = """
import signal, sys
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
print(flush=True)
signal.pause()
"""


@pytest.fixture
def processes() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """One like any other, one that is like a tracker, and a tracker."""
    tracker = f"word = 'multiprocessing.resource_tracker'{IGNORES}"
    codes = {"other": "import signal; print(flush=True); signal.pause()", "like": IGNORES}
    started = {
        name: subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for name, code in {**codes, "tracker": tracker}.items()
    }
    for process in started.values():
        assert process.stdout is not None
        process.stdout.readline()
    yield started
    for process in started.values():
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_resource_tracker_is_told_from_others(
    processes: dict[str, subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    stuck: str,
    is_stuck: bool,
) -> None:
    """One that takes SIGINT or SIGTERM is none, at once; of the rest the command line is read.

    One that is stuck is killed like any other.
    """
    if is_stuck:
        monkeypatch.setattr(file_read, "command_line_path", lambda _: stuck)
    watcher = Watcher()
    trackers = reaper.Trackers(watcher.watch)
    found = {name: proc.identity(process.pid) for name, process in processes.items()}
    waiting = [found["like"]] if is_stuck else [found["like"], found["tracker"]]

    to_kill, again = trackers.sort([found["other"], *waiting], 100.0)
    assert (to_kill, again) == ([found["other"]], pytest.approx(100.05))
    now = 100.05
    to_kill, again = trackers.sort(waiting, now)
    assert to_kill == []
    assert watcher.fds
    while not to_kill:
        wait_for.any_readable(watcher.fds, 0.1)
        to_kill, again = trackers.sort(waiting, now)

    assert to_kill == [found["like"]]
    assert not watcher.fds
    assert trackers.sort(waiting, now) == ([found["like"]], None)
    trackers.close()


def test_a_process_whose_program_is_being_loaded_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It may become a resource tracker, which must live; one that hides for long is none."""
    (tmp_path / "empty").touch()
    monkeypatch.setattr(file_read, "command_line_path", lambda _: str(tmp_path / "empty"))
    monkeypatch.setattr(reaper, "_may_be_tracker", lambda _: True)
    now = [100.0]
    trackers = reaper.Trackers(lambda *_: None)
    looks = 0

    def look() -> list[tuple[int, int]]:
        nonlocal looks
        looks += 1
        to_kill, again = trackers.sort([(1, 1)], now[0])
        if not to_kill:
            assert again is not None
        return to_kill

    assert look() == []
    now[0] += 0.05
    monkeypatch.setattr(reaper.clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(file_read, "clock", reaper.clock)
    for _ in range(3):
        assert look() == []
    now[0] = 102.0
    until(look, "it is like any other")


def test_a_stuck_rank_keeps_no_launcher_from_its_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stuck: str
) -> None:
    """Warm standby wants to know what it has imported: it finds out, or does without."""
    monkeypatch.setattr(file_read, "maps_path", lambda _: stuck)
    plan = WarmStandby(memory_mib_max=100, delay_s=0.0)
    with Loop() as loop:
        like = ["python"], {}, os.getpid()
        standbys = Standbys(
            plan, 1, loop, [], "job", str(tmp_path), lambda _: like, start_hook=None
        )
        ranks: Any = SimpleNamespace(formed=SimpleNamespace(restarts_left=1))
        standbys.on_event(CycleStarted(ranks))
        standbys.on_time()
        parked = standbys.machine._parked[0]
        assert parked.state is ParkedState.PREPARING, "it was asked, and is not waited for"
        while parked.state is ParkedState.PREPARING:
            deadline = standbys.next_deadline()
            assert deadline is not None
            loop.wait(max(0.0, deadline - clock.monotonic()))
            standbys.on_time()

        assert parked.state is ParkedState.SKIPPED
        standbys.on_time()
        standbys.on_event(CycleEnding())
        standbys.end()
    until(lambda: not file_read.readers(), "the readers are gone")
