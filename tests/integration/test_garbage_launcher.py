"""No stranger's byte ends a job: garbage for rank monitors, and for the launcher itself."""

from __future__ import annotations

import json
import os
import select
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.arena.arena import ArenaMemory
from holdfast.arena.pure import layout
from holdfast.arena.pure.messages import Arena, OpenArena, SnapshotCost, SnapshotUnusable
from holdfast.arena.pure.snapshots import Beginning, Held
from holdfast.base.processes import child
from holdfast.base.pure.codec import decode, encode
from holdfast.fault_tolerance.data import WorkloadAction
from holdfast.health.messages import FROM_HEALTH as FROM_HEALTH_PROCESS
from holdfast.health.messages import HealthConfig
from holdfast.job.pure.membership import MESSAGES, CyclePlace, Descriptor, Join, Round
from holdfast.net import endpoint
from holdfast.net.loop import Loop
from holdfast.net.pure.frames import Decoder
from holdfast.net.pure.rate_limited_log import LINES_MAX, QUIET_S
from holdfast.node import health_process, monitors
from holdfast.node.control_endpoint import ControlEndpoint
from holdfast.node.processes.controlled_process import ControlledProcess, start_monitor
from holdfast.options.plan import WarmStandby
from holdfast.page.page import create_page
from holdfast.standby import standbys
from holdfast.standby.pure import parked_messages
from holdfast.watch.pure import monitor_messages
from holdfast.watch.pure import rank_messages as messages
from nvidia_resiliency_ext.fault_tolerance.ipc_connector import IpcConnector
from tests.garbage import BOUND_S, ask, encoded, fuzz, send_and_hear_out, streams
from tests.message_strategies import shape

whole = st.integers(-1, 3)
text = st.sampled_from(["a", "", "x" * 100])
number = st.floats(0, 10)


def unix(path: str) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    connected.settimeout(BOUND_S)
    connected.connect(path)
    return connected


# ---------------------------------------------------------------- the rank monitor
class Watched:
    """A real monitor, with the test in the launcher's place."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "rmon")
        self._listener = endpoint.listen(self.path)
        page = str(folder / "page")
        create_page(page, 0)
        limits = {
            "initial_rank_heartbeat_timeout": 1e6,
            "rank_heartbeat_timeout": 1e6,
            "rank_section_timeouts": {},
            "rank_out_of_section_timeout": None,
            "rank_termination_signal": 9,
            "log_level": 20,
        }
        config = monitor_messages.ConfigureMonitor(
            limits, local_rank=0, marker=None, grace_s=1.0, node="n"
        )
        self.process = start_monitor(self._listener.fileno(), config)
        self.process.control.sendall(encoded(encode(monitor_messages.Cycle(0, page))))
        self._decoder = Decoder()
        self._began = time.monotonic()
        self.lines: list[str] = []

    def check(self) -> None:
        """It lets its rank in, and has not ended."""
        with unix(self.path) as rank:
            hello = {"op": "hello", "rank": 0, "pid": os.getpid()}
            welcome = ask(rank, hello, lambda answer: True)
            assert welcome["op"] == "welcome", welcome
        self._drain()

    def _drain(self) -> None:
        control = self.process.control
        while select.select([control], [], [], 0)[0]:
            data = control.recv(1 << 16)
            assert data, f"the monitor is gone; it said {self.lines}"
            for message in self._decoder.feed(data):
                if message["op"] == "monitorlog" and message["level"] == "warning":
                    self.lines.append(message["text"])

    def check_lines(self) -> None:
        """One a minute: all strangers were this process."""
        with unix(self.path) as stranger:  # the first one, where a single test is run
            send_and_hear_out(stranger, b"\0\0\0\2[]")
        self.check()
        minutes = 1 + (time.monotonic() - self._began) / QUIET_S
        assert 1 <= len(self.lines) <= min(LINES_MAX, 1) * minutes, self.lines

    def close(self) -> None:
        self.process.control.close()
        os.waitpid(self.process.pid, 0)
        self._listener.close()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    watched = Watched(tmp_path_factory.mktemp("monitor"))
    yield watched
    watched.check_lines()
    watched.close()


HELLO = {
    **shape(messages.Hello),
    "pid": st.just(os.getpid()),
    "clock_s": st.builds(time.monotonic),
}
FROM_RANKS = [shape(kind) for kind in (messages.Armed, messages.Timeouts, messages.LeaveMonitor)]


@fuzz
@given(data=streams(HELLO, *FROM_RANKS))
def test_garbage_ends_no_rank_monitor(watched: Watched, data: bytes) -> None:
    """From processes of the same user that are no rank."""
    with unix(watched.path) as stranger:
        send_and_hear_out(stranger, data)
    watched.check()


@fuzz
@given(data=streams(*FROM_RANKS))
def test_garbage_from_a_rank_ends_no_rank_monitor(watched: Watched, data: bytes) -> None:
    """It has said hello."""
    with unix(watched.path) as rank:
        hello = {"op": "hello", "rank": 0, "pid": os.getpid()}
        send_and_hear_out(rank, encoded(hello) + data)
    watched.check()


# ---------------------------------------------------------------- the launcher
class Lines:
    """What a launcher logs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
        self.lines: list[str] = []
        for module in modules:
            monkeypatch.setattr(module, "LOGGER", self)

    def _take(self, line: str, *values: object, exc_info: bool = False) -> None:
        self.lines.append(line % values)

    warning = error = info = _take

    def log(self, level: Any, line: str, *values: object) -> None:
        self._take(line, *values)


CONTROL = {
    **shape(messages.Control),
    "action": st.sampled_from(list(WorkloadAction.__members__)),
}


def no_rank(_pid: int, message: object) -> bool:
    """No caller is a rank whose end is seen to."""
    assert isinstance(message, messages.Uncaught), "it was told that it is no rank"
    assert message.traceback.encode() is not None
    return False


@fuzz
@given(data=st.lists(streams(CONTROL), min_size=1, max_size=3))
def test_garbage_ends_no_control_endpoint(
    tmp_path_factory: pytest.TempPathFactory, data: list[bytes]
) -> None:
    """A rank's request is answered, whoever called before; what is reported can be written."""
    from holdfast.node import control_endpoint

    asked: list[tuple[int, WorkloadAction, str]] = []
    path = str(tmp_path_factory.getbasetemp() / f"c{uuid.uuid4().hex[:8]}")
    with pytest.MonkeyPatch.context() as monkeypatch, Loop() as loop:
        said = Lines(monkeypatch, control_endpoint)
        note = asked.append
        control = ControlEndpoint(path, loop, lambda *request: note(request), note, no_rank)
        for one in data:
            _say_all(loop, unix(path), one)
            loop.wait(0.0)
        with unix(path) as rank:
            rank.sendall(encoded({"op": "control", "rank": 3, "action": "ShutdownWorkload"}))
            for _ in range(3):
                loop.wait(0.0)
            assert Decoder().feed(rank.recv(1 << 16)) == [encode(messages.Ok())]
        assert asked[-1] == (3, WorkloadAction.ShutdownWorkload, "")
        assert all(0 <= rank < 1 << 31 for rank, *_ in asked)
        assert all(why.encode() is not None for *_, why in asked)
        assert len(said.lines) <= 1
        control.close()


OF_SNAPSHOTS = [
    {**shape(kind), "rank": st.sampled_from([0, 0, 0, 1])}
    for kind in (OpenArena, SnapshotCost, SnapshotUnusable)
]


@fuzz
@given(
    data=st.lists(streams(*OF_SNAPSHOTS), min_size=1, max_size=3),
    words=st.dictionaries(st.integers(0, 511), st.integers(-(1 << 63), (1 << 63) - 1), max_size=9),
)
def test_garbage_about_snapshots_ends_no_launcher_and_voids_no_snapshot(
    tmp_path_factory: pytest.TempPathFactory, data: list[bytes], words: dict[int, int]
) -> None:
    """Nor does a rank that writes over all of its memory: its launcher says what makes sense."""
    from holdfast.node import arenas, control_endpoint

    place = CyclePlace("n0", 0, 1, 0, "a")
    path = str(tmp_path_factory.getbasetemp() / f"c{uuid.uuid4().hex[:8]}")
    with pytest.MonkeyPatch.context() as monkeypatch, Loop() as loop:
        said = Lines(monkeypatch, control_endpoint, arenas)
        kept = arenas.Arenas(1, 1 << 30, lambda _: None, lambda _: None, "/nowhere")
        kept.begin(Round(0, (place,), world_size=1), place)
        control = ControlEndpoint(path, loop, lambda *_: None, lambda _: None, no_rank, kept.answer)
        _, [fd] = kept.answer(OpenArena(0, 1 << 20, 2))
        arena = ArenaMemory(fd)
        arena.reserve(1, 1 << 20)
        arena.commit(1, Held(0, 1, 0, 0, 5), 100)
        for one in data:
            _say_all(loop, unix(path), one)
            loop.wait(0.0)
        held = kept.holdings()
        assert held is not None
        assert held.held == (Held(0, 1, 0, 0, 5),)
        for word, value in words.items():
            arena.words[word] = value
        held = kept.holdings()
        assert held is not None
        join = Join("n0", Descriptor("a", "h", 1, 1), 0, None, held)
        assert decode(MESSAGES, json.loads(json.dumps(encode(join)))) == join
        kept.begin(Round(1, (place,), world_size=1, beginning=Beginning()), place)
        held = kept.holdings()
        assert held is not None
        assert held.held == ()
        assert len([line for line in said.lines if "cut off" in line]) <= 1
        control.close()
        kept.end()


def test_a_rank_that_is_killed_while_it_is_answered_is_no_harm(tmp_path: Path) -> None:
    """It has sent its request, or half of it, and is gone; or its answer comes later."""
    from holdfast.node import arenas, control_endpoint

    place = CyclePlace("n0", 0, 1, 0, "a")
    kept = arenas.Arenas(1, 1 << 30, lambda _: None, lambda _: None, str(tmp_path))
    kept.begin(Round(0, (place,), world_size=1), place)
    request = encoded(encode(OpenArena(0, 1 << 20, 2)))
    replies: list[Callable[[control_endpoint.Answer], None]] = []

    def answer(
        request: control_endpoint.OfSnapshots, reply: Callable[[control_endpoint.Answer], None]
    ) -> None:
        replies.append(reply)
        reply(kept.answer(request))

    with Loop() as loop:
        control = ControlEndpoint(
            str(tmp_path / "c"), loop, lambda *_: None, lambda _: None, no_rank, answer
        )
        for length in (len(request), len(request) // 2, 0):
            with unix(str(tmp_path / "c")) as rank:
                rank.sendall(request[:length])
            for _ in range(3):
                loop.wait(0.0)
        with unix(str(tmp_path / "c")) as rank:
            rank.sendall(request)
            for _ in range(3):
                loop.wait(0.0)
            data, fds, *_ = socket.recv_fds(rank, 1 << 16, 4)
        assert Decoder().feed(data) == [encode(Arena(2, 0))]
        assert len(fds) == 1
        assert ArenaMemory(fds[0]).max_slots == layout.MAX_SLOTS
        os.close(fds[0])
        loop.wait(0.0)
        for reply in replies:
            reply(kept.answer(OpenArena(0, 1 << 20, 2)))
        control.close()
    kept.end()


def test_a_request_that_the_launcher_cannot_handle_ends_its_connection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said once for all that its process tries."""
    from holdfast.node import control_endpoint

    def fail(*_request: object) -> None:
        raise RuntimeError("no")

    said = Lines(monkeypatch, control_endpoint)
    with Loop() as loop:
        control = ControlEndpoint(str(tmp_path / "c"), loop, fail, fail, no_rank)
        for _ in range(3):
            with unix(str(tmp_path / "c")) as rank:
                rank.sendall(encoded({"op": "control", "rank": 3, "action": "ShutdownWorkload"}))
                for _ in range(3):
                    loop.wait(0.0)
                assert rank.recv(1) == b""
        control.close()
    [line] = said.lines
    assert line == (
        f"control socket: process {os.getpid()} was cut off: sent a message that cannot be "
        "handled: RuntimeError('no')"
    )


FROM_MONITORS = [shape(kind) for kind in monitor_messages.TO_LAUNCHER.values()]
NO_PID = 2**22 + 1
"""Larger than any."""


@fuzz
@given(data=streams(*FROM_MONITORS))
def test_garbage_from_a_monitor_ends_no_launcher(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    """It is ended and replaced, wherever in the launcher its message could not be handled."""
    handled: list[Any] = []

    def handle(_local_rank: int, message: Mapping[str, Any]) -> None:
        handled.append((message["cycle"] + 1, message["clock"].encode()))

    def speaks(loop: Loop, said: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
        ours, theirs = socket.socketpair()
        monkeypatch.setattr(monitors, "start_monitor", lambda *_: ControlledProcess(NO_PID, ours))
        killed: list[int] = []
        monkeypatch.setattr(monitors.child, "send_signal", lambda pid, _: killed.append(pid))
        node = monitors.Monitors(loop, handle)
        folder = tmp_path_factory.getbasetemp()
        node.open(0, str(folder / f"m{uuid.uuid4().hex[:8]}"), {})
        node.start(0)
        _say_all(loop, theirs, data)
        assert killed == [NO_PID], "it closed the connection, if it did nothing else wrong"
        assert node.died(NO_PID) == 0
        node.close()

    _in_a_launcher(speaks, monitors)


FROM_HEALTH = [shape(kind) for kind in FROM_HEALTH_PROCESS.values()]


@fuzz
@given(data=streams(*FROM_HEALTH))
def test_garbage_from_a_health_process_ends_no_launcher(data: bytes) -> None:
    """It is ended; the host counts as one that cannot be asked."""

    def speaks(loop: Loop, said: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
        ours, theirs = socket.socketpair()
        monkeypatch.setattr(health_process.child, "send_signal", lambda *_: True)
        care = health_process.HealthProcess(
            HealthConfig(),
            loop=loop,
            job="job",
            started=ControlledProcess(NO_PID, ours),
            on_checked=lambda _: None,
            on_unhealthy=lambda _: None,
            write_down=lambda *_args, **_fields: None,
        )
        monkeypatch.setattr(health_process, "start_health_process", no_process)
        care.check(after_ranks=False)
        _say_all(loop, theirs, data)
        care.died(child.Reaped(NO_PID, 0, 0))
        care.end()

    _in_a_launcher(speaks, health_process)


PARKED = [shape(kind) for kind in parked_messages.FROM_PARKED.values()]


@fuzz
@given(data=streams(*PARKED), is_read_before=st.booleans())
@example(data=encoded({"op": "parkedunfit", "reason": "x", "module": None}), is_read_before=False)
def test_garbage_from_a_parked_interpreter_ends_no_launcher(
    data: bytes,
    is_read_before: bool,
) -> None:
    """The user's modules are imported in it. Its last words may come with its end."""

    def speaks(loop: Loop, said: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
        ours, theirs = socket.socketpair()
        monkeypatch.setattr(standbys.child, "send_signal", lambda *_: True)
        process = ControlledProcess(NO_PID, ours)
        nobody = [], {}, None
        node = standbys.Standbys(
            WarmStandby(), 1, loop, [], "job", "", lambda _: nobody, start_hook=None
        )
        parked = standbys._ParkedProcess(process, node._channel(0, process), is_idle=False)  # type: ignore[arg-type]
        node._parked[0] = parked
        node._machine = SimpleNamespace(handle=lambda *_: [])  # type: ignore[assignment]
        if is_read_before:
            _say_all(loop, theirs, data)
        else:
            with theirs:
                theirs.setblocking(False)
                theirs.send(data)
        assert node.died(child.Reaped(NO_PID, 1, 0))
        assert node.pids() == frozenset()

    _in_a_launcher(speaks, standbys)


def no_process(*_: object) -> ControlledProcess:
    raise OSError(11, "none")


def _say_all(loop: Loop, theirs: socket.socket, data: bytes) -> None:
    """Send while the launcher reads, and hang up."""
    with theirs:
        theirs.setblocking(False)
        left = memoryview(data)
        for _ in range(10 + len(data) // 1000):
            try:
                left = left[theirs.send(left) :]
            except BlockingIOError:
                pass
            except OSError:  # it was cut off
                break
            if not left:
                break
            loop.wait(0.0)
    for _ in range(4 + len(data) // (1 << 16)):
        loop.wait(0.0)


def _in_a_launcher(
    speaks: Callable[[Loop, Lines, pytest.MonkeyPatch], None], *modules: Any
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch, Loop() as loop:
        speaks(loop, Lines(monkeypatch, *modules), monkeypatch)


# ---------------------------------------------------------------- the mailbox
@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IpcConnector]:
    box = IpcConnector(str(tmp_path_factory.mktemp("box") / "s"))
    box.start_receiving()
    yield box
    box.stop_receiving()


@fuzz
@given(data=streams({"op": text}))
def test_garbage_ends_no_mailbox(box: IpcConnector, data: bytes) -> None:
    with unix(box.socket_path) as stranger:
        send_and_hear_out(stranger, data)
    box.send({"op": "mine"}, BOUND_S)
    assert box.fetch_received()[-1] == {"op": "mine"}
