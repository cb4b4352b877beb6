"""The launcher at work: what it does with what it is told. Nothing is started here."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from holdfast.base.processes import child
from holdfast.evidence.staging import Staging
from holdfast.health.pure.health import Finding, Fitness
from holdfast.node.processes.ranks import read_error_file
from holdfast.watch.pure import monitor_messages
from tests.unit.fake_host import FakeHost

SIGTERM, SIGKILL = signal.SIGTERM, signal.SIGKILL


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    return FakeHost(tmp_path, monkeypatch)


def overdue(cycle: int, rank: int = 0, name: str = "step") -> monitor_messages.Overdue:
    return monitor_messages.Overdue(
        cycle, rank, rank, 4711 + rank, "section", name, 6.0, 5.0, False, 84.0, 84.9
    )


def evidence(rank: int) -> monitor_messages.Evidence:
    return monitor_messages.Evidence(0, rank, 4711 + rank, None, None, 0.1, "no answer")


def signalled(rank: int, signum: int) -> monitor_messages.Signalled:
    return monitor_messages.Signalled(0, rank, 4711 + rank, signum, "hung")


def stuck(cycle: int, rank: int = 0) -> monitor_messages.Unkillable:
    return monitor_messages.Unkillable(cycle, rank, 4711 + rank, 15.0, "state D")


@pytest.mark.parametrize(("says", "is_hung"), [(0, False), (1, True)])
def test_what_a_monitor_says_late_is_not_held_against_the_next_cycle(
    host: FakeHost, capfd: pytest.CaptureFixture[str], says: int, is_hung: bool
) -> None:
    """The next cycle's rank in the same place has done nothing wrong."""

    def happens() -> None:
        host.rank_ends(0, 2)
        assert len(host.started) == 2
        host.monitor_says(0, overdue(says, name="save"))
        host.rank_ends(0, 3)

    assert host.run(happens, "--max-restarts=1") == 1
    assert ("hung (section 'save': 6.0 s, timeout 5 s)" in capfd.readouterr().err) == is_hung


def test_ranks_train_on_where_there_can_be_no_process_for_their_monitors(
    host: FakeHost, capfd: pytest.CaptureFixture[str]
) -> None:
    """A limit of processes that has room for the ranks; the next cycle tries again."""

    def happens() -> None:
        host.monitors_left = 1
        host.rank_ends(0, 1)
        host.rank_ends(1, -SIGTERM)
        assert host.monitors_left == 0
        host.monitor_dies(0)
        host.rank_ends(0, 0)
        host.rank_ends(1, 0)

    host.monitors_left = 0
    assert host.run(happens, "--max-restarts=1", nproc=2) == 0
    log = capfd.readouterr().err
    assert log.count("cannot start the monitor of local rank 0: [Errno 11]") == 2
    assert log.count("cannot start the monitor of local rank 1: [Errno 11]") == 2


@pytest.mark.parametrize("last_word", ["before the sweep", "after it", "never: it died"])
def test_no_evidence_is_taken_away_while_a_monitor_writes_it(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, last_word: str
) -> None:
    """It learns of its rank's end when the launcher does, and notes it in the incident."""
    delivered: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        Staging, "deliver", lambda _, cycle, over=False: delivered.append((cycle, over))
    )

    def happens() -> None:
        host.monitor_says(0, overdue(0))
        if last_word == "before the sweep":
            host.monitor_says(0, monitor_messages.Closed(0))
        assert delivered == []
        host.rank_ends(0, -SIGKILL)
        if last_word != "before the sweep":
            assert delivered.pop(0) == (0, False)
        if last_word == "after it":
            host.monitor_says(0, monitor_messages.Closed(0))
        elif last_word == "never: it died":
            host.monitor_dies(0)
        assert delivered == [(0, True)]

    host.run(happens, "--max-restarts=1")


def test_a_monitor_says_that_a_rank_is_stuck_and_the_node_hears_it_in_its_cycle(
    host: FakeHost,
) -> None:
    """The cycle after has other ranks."""

    def happens() -> None:
        host.rank_ends(0, 1)
        host.rank_ends(1, -SIGTERM)
        host.sent.clear()

        host.monitor_says(1, stuck(0, 1))
        assert host.sent == []
        host.monitor_says(1, stuck(1, 1))
        assert host.sent == [(host.pids[0], SIGTERM), (host.pids[1], SIGTERM)]

    host.run(happens, "--max-restarts=1", nproc=2)


def test_a_rank_that_cannot_be_ended_ends_the_launcher_and_is_explained(
    host: FakeHost, capfd: pytest.CaptureFixture[str]
) -> None:
    """From its monitor's word to the exit code; the summary says where to look."""

    def happens() -> None:
        host.monitor_says(0, overdue(0), stuck(0))
        for _ in range(2):  # the log's patience, then that of the kernel
            assert not host.is_stopped
            host.time_passes()
        assert host.is_stopped

    assert host.run(happens) == 1
    summary = capfd.readouterr().err
    assert "hung (section 'step': 6.0 s, timeout 5 s); still alive after SIGKILL" in summary


@pytest.mark.parametrize("has_ended", [False, True])
def test_others_are_stopped_while_a_killed_rank_dies_but_after_all_stacks_are_taken(
    host: FakeHost, capfd: pytest.CaptureFixture[str], has_ended: bool
) -> None:
    """The summary of a rank that has not ended yet speaks of the kill, not of one that failed."""

    def happens() -> None:
        for local_rank in (0, 1):
            host.monitor_says(local_rank, overdue(0, local_rank))
        host.monitor_says(0, evidence(0), signalled(0, SIGKILL))
        if has_ended:
            host.rank_ends(0, -SIGKILL)
        assert host.sent == []

        host.monitor_says(1, evidence(1))
        assert host.sent == [(host.pids[k], SIGTERM) for k in (0, 1, 2)[has_ended:]]

    host.run(happens, nproc=3)
    killed = "hung (section 'step': 6.0 s, timeout 5 s); killed by SIGKILL by its monitor"
    assert killed in capfd.readouterr().err


LOST = Finding("gpu", "GPU 1", Fitness.UNHEALTHY, "GPU is lost", device=1)


def test_nobody_waits_for_the_end_of_a_rank_that_sits_in_the_driver_of_a_broken_device(
    host: FakeHost, capfd: pytest.CaptureFixture[str]
) -> None:
    """The others are stopped at once; if it never ends, the node does, and says why."""

    def happens() -> None:
        first, broken = host.pids[0], host.pids[1]
        host.health_process_says(LOST)
        assert host.sent == [(broken, SIGKILL), (first, SIGTERM), (broken, SIGTERM)]

        host.rank_ends(0, -SIGTERM)
        # The patience of the log, its grace, then the time that SIGKILL may take, with two looks.
        for _ in range(4):
            assert not host.is_stopped
            host.time_passes()
        assert host.is_stopped

    assert host.run(happens, nproc=2, checks=True) == 1
    said, problem = capfd.readouterr().err, "gpu GPU 1: GPU is lost"
    assert f"killed by the launcher, as its host is not healthy: {problem}" in said
    assert f"its host is not healthy ({problem}); still alive after SIGKILL" in said


def test_a_rank_that_is_done_has_no_use_for_its_device(host: FakeHost) -> None:
    """Another is not ended in its place."""

    def happens() -> None:
        host.rank_ends(1, 0)
        host.health_process_says(LOST)
        assert host.sent == []

    host.run(happens, nproc=2, checks=True)


@pytest.mark.parametrize("recovers", [False, True])
def test_a_rank_that_was_signalled_for_a_hang_has_failed_unless_it_was_restarted_in_place(
    host: FakeHost, recovers: bool
) -> None:
    """Whatever exit code it ends with; the monitor's word may be read after its end."""

    def happens() -> None:
        host.monitor_says(1, overdue(0, 1))
        host.monitor_writes(1, evidence(1), signalled(1, SIGTERM))
        if recovers:
            host.monitor_writes(1, monitor_messages.Recovered(0))
        host.rank_ends(1, 0)
        assert host.sent == ([] if recovers else [(host.pids[0], SIGTERM)])
        host.rank_ends(0, 0)

    assert host.run(happens, nproc=2) == (0 if recovers else 1)


@pytest.mark.parametrize("is_full", [False, True])
def test_evidence_goes_to_the_run_folder_when_no_room_can_be_kept_for_it(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """A page is small and may just have found its place; stacks are larger."""

    def no_room(_: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if is_full:
        monkeypatch.setattr("holdfast.node.monitors.reserve", no_room)

    def happens() -> None:
        [cycle] = host.told_to_monitor(0)
        run_dir = str(host.run_dir)
        assert cycle.run_dir == run_dir
        paths = cycle.staged, cycle.dump, cycle.incidents
        assert [path.startswith(run_dir) for path in paths] == [is_full] * 3
        assert Path(cycle.room).exists() != is_full

    host.run(happens)


def test_a_sweep_ends_with_its_cycle(host: FakeHost) -> None:
    """Leftovers that do not die are given up; a later SIGCHLD must not end the next ranks."""

    def happens() -> None:
        host.leftovers.append(left := 1 << 24)
        host.rank_ends(0, 1)
        assert set(host.killed) == {left}
        host.killed.clear()
        host.something_ends()
        assert host.killed == [left]
        assert len(host.started) == 1

        while len(host.started) == 1:
            host.time_passes()
        host.killed.clear()
        host.leftovers.append(host.pids[0])
        host.something_ends()
        assert host.killed == []

    host.run(happens, "--max-restarts=1")


def test_an_effect_that_fails_ends_the_launcher_and_not_what_called_it(host: FakeHost) -> None:
    """The caller may be the channel of the health process, which is not to blame."""
    went_on: list[bool] = []

    def happens() -> None:
        host.rank_ends(0, 1)
        host.processes_left = 1
        host.rank_ends(1, -SIGTERM)
        went_on.append(host.is_stopped)
        host.sent.clear()
        host.monitor_says(0, stuck(1))
        assert host.sent == [], "what it decides now would be carried out by halves"

    with pytest.raises(OSError, match="temporarily unavailable"):
        host.run(happens, "--max-restarts=1", nproc=2)
    assert went_on == [True]


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_host_that_has_no_port_left_does_not_cost_a_job_its_success(
    host: FakeHost,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    exit_code: int,
) -> None:
    """It was for a cycle that does not come; one that comes uses the port of the last."""

    def none_left() -> None:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    def happens() -> None:
        monkeypatch.setattr("holdfast.node.processes.ranks.ReservedPort", none_left)
        host.rank_ends(0, exit_code)
        if exit_code:
            host.rank_ends(0, 0)

    assert host.run(happens, "--max-restarts=1") == 0
    assert len(host.started) == 1 + exit_code
    assert len({env["MASTER_PORT"] for env in host.started}) == 1
    assert "no port can be kept" in capfd.readouterr().err


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("why", [ProcessLookupError, PermissionError])
def test_a_process_that_is_gone_or_of_another_user_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, why: type[OSError], group: bool
) -> None:
    """A rank may have started a set-user-id program: that must not end the launcher."""

    def refuse(*_: int) -> None:
        raise why

    monkeypatch.setattr(os, "killpg" if group else "kill", refuse)

    assert not child.send_signal(4711, 9, group=group)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (b'{"message": "boom"}', "boom"),
        (b'{"message": {"message": "boom", "extraInfo": []}}', "boom"),
        (b'{"message": {"message": ' + b"[" * 500 + b"]" * 500 + b"}}", "[" * 500 + "]" * 500),
        (b'{"message": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
        (b'{"message": ' + b"9" * 5000 + b"}", None),
        (b'{"message": "' + b"x" * (5 << 20) + b'"}', None),
        (b'["message"]', None),
        (b"\xff", None),
    ],
    ids=["text", "torch's", "nested", "deep", "digits", "long", "list", "bytes"],
)
def test_whatever_a_rank_writes_into_its_error_file_ends_no_launcher(
    tmp_path: Path, written: bytes, message: str | None
) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(written)
    assert read_error_file(path) == (message, None)
