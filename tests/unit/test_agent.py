"""The launcher at work: what it does with what it is told. Nothing is started here."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from holdfast.base import clock
from holdfast.base.processes import child, leftovers
from holdfast.base.pure.common_events import Begin
from holdfast.health.pure.health import Finding, Verdict
from holdfast.node.agent import NodeAgent
from holdfast.node.console import LOGGER
from holdfast.node.processes.ranks import NodePlace, Ranks, read_error_file
from holdfast.node.pure import launcher as machine
from holdfast.node.pure import node
from holdfast.options.arguments import parse_args
from holdfast.options.plan import LaunchPlan, make_plan
from holdfast.watch.pure import monitor_messages as said_by_monitor


class FakeFamily:
    """Below the launcher are these processes."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.left: dict[int, str] = {}
        self.ended: list[child.Reaped] = []

    def below(self, _own: Collection[int], _spared: Collection[int]) -> dict[int, tuple[int, int]]:
        return {pid: (pid, 1) for pid in self.pids}

    def reap(self, _own: Collection[int]) -> Iterator[child.Reaped]:
        return iter(self.ended)

    def ranks_started(self, _pids: list[int]) -> None:
        pass

    def remember(self, _own: Collection[int]) -> None:
        pass

    def left_alone(self) -> dict[int, str]:
        return self.left


@pytest.fixture(autouse=True)
def processes_that_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pids here are nobody's."""
    monkeypatch.setattr(child, "is_ending", lambda _: False)


ASKS_NOTHING = "--ft-host-checks=false", "--ft-evidence-timeout=0"
"""The host is not checked, and monitors are not asked about ranks that are not overdue."""


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    script = tmp_path / "train.py"
    script.touch()
    words = [f"--log-dir={tmp_path / 'logs'}", *ASKS_NOTHING, str(script)]
    return make_plan(parse_args(words), {})


@pytest.fixture
def agent(plan: LaunchPlan) -> Iterator[NodeAgent]:
    agent = NodeAgent(plan, {})
    yield agent
    agent._clean_up()
    agent._pump.close(30.0)
    with agent._loop:
        pass


def ranks_of_cycle(agent: NodeAgent, plan: LaunchPlan, cycle: int) -> Ranks:
    launcher = agent._launcher
    if launcher.lives.cycle != cycle:
        launcher.rank_lives = launcher.lives.start_cycle(cycle, plan.nproc_per_node, 100.0)
    lives = launcher.rank_lives
    staged = Path(agent._folders.staging.folder(cycle))
    place = NodePlace("127.0.0.1", 29500)
    return Ranks(plan, place, agent.run_dir, staged, cycle, "job", None, lives)


def overdue(cycle: int, rank: int = 0, name: str = "step") -> said_by_monitor.Overdue:
    return said_by_monitor.Overdue(
        cycle, rank, rank, 4711 + rank, "section", name, 6.0, 5.0, False, 84.0, 84.9
    )


def evidence(rank: int) -> said_by_monitor.Evidence:
    return said_by_monitor.Evidence(0, rank, 4711 + rank, None, None, 0.1, "no answer")


def test_what_a_monitor_says_late_is_held_against_the_cycle_it_speaks_of(
    agent: NodeAgent, plan: LaunchPlan
) -> None:
    """The next cycle's rank in the same place has done nothing wrong."""
    past, now = (ranks_of_cycle(agent, plan, cycle) for cycle in (0, 1))
    agent._past, agent._ranks = past, now

    agent._on_monitor_message(0, overdue(0))

    assert now.ranks[0].life.hang is None
    hang = past.ranks[0].life.hang
    assert hang is not None
    assert hang.name == "step"

    agent._on_monitor_message(0, overdue(1, name="save"))
    hang = now.ranks[0].life.hang
    assert hang is not None
    assert hang.name == "save"


def told_to_the_node(agent: NodeAgent, monkeypatch: pytest.MonkeyPatch) -> list[node.Event]:
    """What its machine is told, from now on; it does nothing about it."""
    told: list[node.Event] = []

    def handle(event: node.Event, _now: float) -> list[node.Effect]:
        told.append(event)
        return []

    monkeypatch.setattr(agent._launcher.node, "handle", handle)
    return told


def begin(agent: NodeAgent) -> None:
    """As far as it knows, its ranks run."""
    agent._feed(Begin())
    agent._log.begin(agent._loop, agent._work)


@pytest.mark.parametrize("last_word", ["before the sweep", "after it", "never: it died"])
def test_no_evidence_is_taken_away_while_a_monitor_writes_it(
    agent: NodeAgent, plan: LaunchPlan, monkeypatch: pytest.MonkeyPatch, last_word: str
) -> None:
    """It learns of its rank's end when the launcher does, and notes it in the incident."""
    delivered: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        agent._folders.staging, "deliver", lambda cycle, over=False: delivered.append((cycle, over))
    )
    told_to_the_node(agent, monkeypatch)
    agent._sweeper.family = FakeFamily()  # type: ignore[assignment]
    agent._ranks = ranks_of_cycle(agent, plan, 2)
    agent._launcher.node.cycle, agent._launcher.node.phase = 2, node.Phase.SWEEPING
    agent._on_monitor_message(0, overdue(2))

    if last_word == "before the sweep":
        agent._on_monitor_message(0, said_by_monitor.Closed(2))
    assert delivered == []
    agent._sweeper.begin(tells_what_is_left=False)
    if last_word != "before the sweep":
        assert delivered.pop(0) == (2, False)
    if last_word == "after it":
        agent._on_monitor_message(0, said_by_monitor.Closed(2))
    elif last_word == "never: it died":
        agent._sweeper.family.ended = [child.Reaped(4712, -9, 0)]
        monkeypatch.setattr(agent._monitors, "died", lambda _: 0)
        agent._reap()

    assert delivered == [(2, True)]


def test_a_monitor_says_that_a_rank_is_stuck_and_the_node_hears_it_in_its_cycle(
    agent: NodeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cycle after has other ranks."""
    fed = told_to_the_node(agent, monkeypatch)
    for cycle in (2, 3):
        agent._launcher.lives.start_cycle(cycle, 2, 100.0)

    agent._on_monitor_message(1, said_by_monitor.Stuck(2, 1, 4711, 15.0, "state D"))
    assert fed == []
    agent._on_monitor_message(1, said_by_monitor.Stuck(3, 1, 4711, 15.0, "state D"))
    assert fed == [node.RankStuck(1, 15.0)]


def test_a_rank_that_cannot_be_ended_ends_the_launcher_and_is_explained(
    agent: NodeAgent, plan: LaunchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its monitor's word to the exit code; the summary says where to look."""
    now, said = [100.0], []
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(child, "send_signal", lambda *_, **__: True)
    monkeypatch.setattr(agent._pump, "write", lambda _, text: said.append(text.decode()))
    monkeypatch.setattr(agent, "_start_cycle", lambda _: None)
    monkeypatch.setattr(agent._loop, "stop", lambda: said.append("stopped"))
    begin(agent)
    agent._ranks = ranks_of_cycle(agent, plan, 0)
    agent._ranks.ranks[0].pid = 4711

    agent._on_monitor_message(0, overdue(0))
    agent._on_monitor_message(0, said_by_monitor.Stuck(0, 0, 4711, 15.0, "state D"))
    now[0] = agent._next_deadline() or 0.0
    agent._on_time()

    assert agent._launcher.finished == machine.Finish(machine.Ended.STUCK, 1)
    assert said[-1] == "stopped"
    summary = "".join(said)
    assert "hung (section 'step': 6.0 s, timeout 5 s); still alive after SIGKILL" in summary


@pytest.mark.parametrize("has_ended", [False, True])
def test_others_are_stopped_while_a_killed_rank_dies_but_after_all_stacks_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    """The summary of a rank that has not ended yet speaks of the kill, not of one that failed."""
    script = tmp_path / "train.py"
    script.touch()
    words = ["--nproc-per-node=3", f"--log-dir={tmp_path / 'logs'}", *ASKS_NOTHING]
    plan = make_plan(parse_args([*words, str(script)]), {"OMP_NUM_THREADS": "1"})
    agent = NodeAgent(plan, {})
    sent: list[tuple[int, int]] = []
    said: list[str] = []

    def send(pid: int, signum: int, **_: object) -> bool:
        if signum != signal.SIGCONT:
            sent.append((pid, signum))
        return True

    monkeypatch.setattr(child, "send_signal", send)
    monkeypatch.setattr(LOGGER, "error", lambda text, *words: said.append(text % words))
    monkeypatch.setattr(agent, "_start_cycle", lambda _: None)
    begin(agent)
    agent._ranks = ranks_of_cycle(agent, plan, 0)
    for local_rank, rank in agent._ranks.ranks.items():
        rank.pid = 4711 + local_rank

    for local_rank in (0, 1):
        agent._on_monitor_message(local_rank, overdue(0, local_rank))
    agent._on_monitor_message(0, evidence(0))
    agent._on_monitor_message(0, said_by_monitor.Signalled(0, 0, 4711, signal.SIGKILL, "hung"))
    if has_ended:
        agent._sweeper.family = family = FakeFamily()  # type: ignore[assignment]
        family.ended = [child.Reaped(4711, -signal.SIGKILL, 1024)]
        agent._reap()
    assert sent == []

    agent._on_monitor_message(1, evidence(1))

    assert sent == [(pid, signal.SIGTERM) for pid in (4711, 4712, 4713)[has_ended:]]
    assert "hung (section 'step': 6.0 s, timeout 5 s); killed by SIGKILL by its monitor" in said[0]
    agent._clean_up()
    agent._pump.close(30.0)
    with agent._loop:
        pass


@pytest.fixture
def two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeAgent]:
    """Both run, as far as the launcher can tell; no signal arrives."""
    script = tmp_path / "train.py"
    script.touch()
    words = ["--nproc-per-node=2", f"--log-dir={tmp_path / 'logs'}", *ASKS_NOTHING]
    plan = make_plan(parse_args([*words, str(script)]), {"OMP_NUM_THREADS": "1"})
    agent = NodeAgent(plan, {})
    monkeypatch.setattr(agent, "_start_cycle", lambda _: None)
    begin(agent)
    agent._ranks = ranks_of_cycle(agent, plan, 0)
    for local_rank, rank in agent._ranks.ranks.items():
        rank.pid = 4711 + local_rank
    yield agent
    agent._clean_up()
    agent._pump.close(30.0)
    with agent._loop:
        pass


LOST = Finding("gpu", "GPU 1", Verdict.UNHEALTHY, "GPU is lost", device=1)


def test_nobody_waits_for_the_end_of_a_rank_that_sits_in_the_driver_of_a_broken_device(
    two_ranks: NodeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are stopped at once; if it never ends, the node does, and says why."""
    agent, sent, said, now = two_ranks, list[tuple[int, int]](), list[str](), [100.0]

    def send(pid: int, signum: int, **_: object) -> bool:
        if signum != signal.SIGCONT:
            sent.append((pid, signum))
        return True

    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(child, "send_signal", send)
    monkeypatch.setattr(agent._pump, "write", lambda _, text: said.append(text.decode()))
    monkeypatch.setattr(LOGGER, "error", lambda text, *words: said.append(text % words))

    agent._on_host_sick(LOST)

    assert sent == [(4712, signal.SIGKILL), (4711, signal.SIGTERM), (4712, signal.SIGTERM)]
    problem = "gpu GPU 1: GPU is lost"
    assert f"ended by the launcher, as its host is not healthy: {problem}" in "".join(said)

    agent._feed(node.WorkerExited(0, -signal.SIGTERM))
    for _ in range(2):  # its grace, then the time that SIGKILL may take
        now[0] = agent._next_deadline() or 0.0
        agent._on_time()
    assert agent._launcher.finished == machine.Finish(machine.Ended.STUCK, 1)
    assert f"its host is not healthy ({problem}); still alive after SIGKILL" in "".join(said)


def test_a_rank_that_is_done_has_no_use_for_its_device(
    two_ranks: NodeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another is not ended in its place."""
    sent: list[int] = []
    monkeypatch.setattr(child, "send_signal", lambda pid, *_, **__: sent.append(pid))
    two_ranks._feed(node.WorkerExited(1, 0))
    two_ranks._on_host_sick(LOST)
    assert sent == []


@pytest.mark.parametrize("recovers", [False, True])
def test_a_rank_that_was_signalled_for_a_hang_has_failed_unless_it_was_restarted_in_place(
    two_ranks: NodeAgent, monkeypatch: pytest.MonkeyPatch, recovers: bool
) -> None:
    """Whatever exit code it ends with; the monitor's word may be read after its end."""
    agent, fed = two_ranks, told_to_the_node(two_ranks, monkeypatch)
    unread: list[said_by_monitor.ToLauncher] = [
        overdue(0, 1),
        evidence(1),
        said_by_monitor.Signalled(0, 1, 4712, signal.SIGTERM, "hung"),
    ]
    agent._on_monitor_message(1, unread.pop(0))
    if recovers:
        unread.append(said_by_monitor.Recovered(0))

    def hear_out(local_rank: int) -> None:
        for message in unread:
            agent._on_monitor_message(local_rank, message)

    monkeypatch.setattr(agent._monitors, "hear_out", hear_out)
    agent._sweeper.family = family = FakeFamily()  # type: ignore[assignment]
    family.ended = [child.Reaped(4712, 0, 1024)]
    agent._reap()
    failed = [] if recovers else [node.RankKilled(1)]
    assert fed == [*failed, node.WorkerExited(1, 0)]


@pytest.mark.parametrize("is_full", [False, True])
def test_evidence_goes_to_the_run_folder_when_no_room_can_be_kept_for_it(
    agent: NodeAgent, plan: LaunchPlan, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """A page is small and may just have found its place; stacks are larger."""

    def no_room(_: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    told: list[said_by_monitor.Cycle] = []
    if is_full:
        monkeypatch.setattr("holdfast.node.watch.reserve", no_room)
    monkeypatch.setattr(agent._monitors, "begin_cycle", lambda _, message: told.append(message))

    agent._watch.begin(ranks_of_cycle(agent, plan, 0), None)
    agent._monitors.close()

    [cycle] = told
    run_dir = str(agent.run_dir)
    assert cycle.run_dir == run_dir
    assert [vars(cycle)[key].startswith(run_dir) for key in ("staged", "dump", "incidents")] == (
        [is_full] * 3
    )
    assert Path(cycle.room).exists() != is_full


def test_a_sweep_ends_with_its_cycle(
    agent: NodeAgent, plan: LaunchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leftovers that do not die are given up; a later SIGCHLD must not end the next ranks."""
    family, killed = FakeFamily(), list[int]()
    family.pids = [4711]
    agent._sweeper.family = family  # type: ignore[assignment]
    monkeypatch.setattr(leftovers, "kill", lambda identity: killed.append(identity[0]))
    monkeypatch.setattr(child, "spawn_rank", lambda *_: 5822)
    agent._plan = plan
    agent._do(node.Sweep(0))
    assert killed == [4711]
    agent._reap()
    assert killed == [4711, 4711]

    place = NodePlace("127.0.0.1", 29500), None
    agent._own_place = lambda: place  # type: ignore[method-assign]
    agent._watch.begin = lambda *_: None  # type: ignore[method-assign]
    agent._monitors.start_missing = lambda: None  # type: ignore[method-assign]
    agent._do(node.StartCycle(1))
    family.pids.append(5822)
    agent._reap()

    assert killed == [4711, 4711]


def test_an_effect_that_fails_ends_the_launcher_and_not_what_called_it(
    agent: NodeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller may be the channel of the health process, which is not to blame."""

    def no_process(_: int) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    stopped: list[bool] = []
    monkeypatch.setattr(agent, "_start_cycle", no_process)
    monkeypatch.setattr(agent._loop, "stop", lambda: stopped.append(True))

    begin(agent)

    assert stopped
    assert isinstance(agent._defect, OSError)
    told = told_to_the_node(agent, monkeypatch)
    agent._feed(node.WorkerExited(0, 0))
    assert told == [], "what it decides now would be carried out by halves"


def test_a_host_that_has_no_port_left_does_not_cost_a_job_its_success(
    agent: NodeAgent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was for a cycle that does not come; one that comes uses the port of the last."""

    def none_left() -> None:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    agent._sweeper.family = FakeFamily()  # type: ignore[assignment]
    port = agent._port.hand_over()
    assert port is not None
    port.release()
    monkeypatch.setattr("holdfast.node.processes.rank_0_port.ReservedPort", none_left)
    before = agent._launcher.member.desc

    agent._do(node.Sweep(0))

    assert agent._launcher.member.desc == before
    assert "no port can be kept" in caplog.text


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
