"""Real monitors, real ranks, real signals. Waits are for conditions, and bounded."""

import ast
import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.processes import child, proc
from holdfast.net import endpoint
from holdfast.net.pure.frames import Decoder, encode
from holdfast.node.processes.controlled_process import ControlledProcess, start_monitor
from holdfast.page.lease import Lease
from holdfast.page.page import create_page, map_page
from holdfast.page.pure import page as layout
from holdfast.watch.pure.monitor_messages import ConfigureMonitor
from tests.real.harness import marked
from tests.waiting import BOUND_S, until

SIGKILL, SIGTERM = int(signal.SIGKILL), int(signal.SIGTERM)
INF = float("inf")


class Rank:
    """The far end of fake_rank.py."""

    def __init__(self, env: dict[str, str], path: str) -> None:
        script = Path(__file__).with_name("fake_rank.py")
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            env=os.environ | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def begin(self, line: str) -> None:
        """Tell it what to do, without waiting."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """What became of the line before."""
        text = self.process.stdout.readline()
        assert text, f"rank {self.pid} is gone: {self.process.wait()}"
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text.strip()

    def do(self, line: str) -> Any:
        """Tell it what to do, and wait until it has."""
        self.begin(line)
        return self.answer()

    def join(self, arm: str | None = None) -> None:
        """Connect and, if told how, arm."""
        assert self.do(f"connect({self.path!r})") is None
        if arm is not None:
            assert self.do(f"arm({arm})") == "ok"

    def exit_code(self) -> int:
        """Wait for the end."""
        return self.process.wait(BOUND_S)


class Node:
    """A launcher with one monitor."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.folder = folder
        self.job = uuid.uuid4().hex
        self.path = str(folder / "rmon.socket")
        self.listener = endpoint.listen(self.path)
        self.config = {
            "cfg": {
                "initial_rank_heartbeat_timeout": 3600.0,
                "rank_heartbeat_timeout": 2700.0,
                "rank_section_timeouts": {},
                "rank_out_of_section_timeout": None,
                "rank_termination_signal": SIGKILL,
                "evidence_timeout": 20.0,  # a busy machine is slow to write stacks
                "log_level": 10,
            }
            | config.pop("cfg", {}),
            "local_rank": 0,
            "marker": self.job,
            "grace_s": 15.0,
            "node": "gpu-07",
        } | config
        self.monitor: ControlledProcess | None = None
        self.decoder = Decoder()
        self.seen: list[dict[str, Any]] = []
        self.ranks: list[Rank] = []
        self.start()

    def start(self) -> None:
        """Start the monitor, or its successor."""
        if self.monitor is not None:
            self.monitor.control.close()
        self.monitor = start_monitor(self.listener.fileno(), ConfigureMonitor(**self.config))
        self.decoder = Decoder()
        self.seen.clear()

    def tell(self, **message: Any) -> None:
        """Send a frame."""
        self.monitor.control.sendall(encode(message))

    def begin_cycle(self, number: int = 0, *, fresh: bool = True) -> None:
        """What a launcher does before it starts ranks."""
        page_path = str(self.folder / f"c{number}_r0.page")
        if fresh:
            create_page(page_path, number)
        (self.folder / f"attempt_{number}").mkdir(exist_ok=True)
        self.tell(
            op="cycle",
            cycle=number,
            page=page_path,
            dump=str(self.folder / f"attempt_{number}" / "stacks.txt"),
            incidents=str(self.folder / "incidents"),
        )

    def rank(self) -> Rank:
        """A rank's process."""
        rank = Rank({"HOLDFAST_MARKER": f"{self.job}.0.0"}, self.path)
        self.ranks.append(rank)
        return rank

    def armed(self, arm: str) -> Rank:
        """A rank that is watched."""
        rank = self.rank()
        rank.join(arm)
        return rank

    def late(self, limits: str, then: str = "") -> Rank:
        """A rank that is soon overdue, perhaps before it could answer: none is waited for."""
        rank = self.rank()
        rank.join()
        rank.begin(f"arm({limits}); {then}")
        return rank

    def stop(self) -> None:
        """What a rank does until the monitor is continued comes before any verdict."""
        os.kill(self.monitor.pid, signal.SIGSTOP)
        os.waitpid(self.monitor.pid, os.WUNTRACED)

    def read(self, timeout_s: float) -> None:
        """Take in what the monitor says."""
        if select.select([self.monitor.control], [], [], timeout_s)[0]:
            data = self.monitor.control.recv(65536)
            if not data:
                raise EOFError("the monitor has closed its control connection")
            self.seen += self.decoder.feed(data)

    def expect(self, op: str, **fields: Any) -> dict[str, Any]:
        """The first frame like this, seen or still to come."""
        deadline = time.monotonic() + BOUND_S
        while True:
            for message in self.seen:
                if message["op"] == op and fields.items() <= message.items():
                    return message
            assert time.monotonic() < deadline, f"no {op} {fields} in {self.seen}"
            self.read(1.0)

    def log(self, fragment: str) -> str:
        """The first log line with this fragment."""
        deadline = time.monotonic() + BOUND_S
        while True:
            for message in self.seen:
                if message["op"] == "monitorlog" and fragment in message["text"]:
                    return message["text"]
            assert time.monotonic() < deadline, f"no {fragment!r} in {self.seen}"
            self.read(1.0)

    def ops(self) -> list[str]:
        """Everything the monitor has said so far."""
        with contextlib.suppress(EOFError):
            self.read(0.0)
        return [message["op"] for message in self.seen]

    def incident(self) -> tuple[dict[str, Any], str]:
        """The only incident, once the rank is gone: JSON and text."""
        folder = self.folder / "incidents"
        until(
            lambda: any(
                "over" in json.loads(f.read_text())["actions"][-1] for f in folder.glob("*.json")
            )
        )
        (record,) = folder.glob("*.json")
        return json.loads(record.read_text()), record.with_suffix(".txt").read_text()

    def status(self, field: str) -> int:
        """A number from /proc/<monitor>/status."""
        for line in Path(f"/proc/{self.monitor.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1])
        raise AssertionError(field)

    def wait_for_end(self) -> int:
        """Reap the monitor."""
        ended = child.end_descriptor(self.monitor.pid)
        assert select.select([ended], [], [], BOUND_S)[0], "the monitor does not end"
        os.close(ended)
        return os.waitstatus_to_exitcode(os.waitpid(self.monitor.pid, 0)[1])

    def end(self) -> None:
        """Leave nothing behind."""
        self.monitor.control.close()
        with contextlib.suppress(ProcessLookupError):
            self.wait_for_end()
        for rank in self.ranks:
            rank.process.kill()
            rank.process.wait()
            rank.process.stdin.close()
            rank.process.stdout.close()
        self.listener.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Start a node; its first cycle has begun."""
    nodes = []

    def start(**config: Any) -> Node:
        node = Node(tmp_path, **config)
        nodes.append(node)
        node.begin_cycle()
        node.expect("monitorready")
        return node

    yield start
    for node in nodes:
        node.end()


def test_a_silent_rank_is_explained_and_then_killed(start: Callable[..., Node]) -> None:
    """K-2: stacks, incident and events exist, and were announced, before the signal was."""
    node = start()
    rank = node.armed("subsequent=0.2")
    rank.do("words.__setitem__(page.ITERATION, 41.0)")
    rank.begin("stuck_in_a_function_with_a_name()")

    assert rank.exit_code() == -SIGKILL
    signalled = node.expect("signalled")
    assert signalled == {
        "op": "signalled",
        "cycle": 0,
        "rank": 3,
        "pid": rank.pid,
        "signal": SIGKILL,
        "why": "hung",
    }
    overdue = node.expect("overdue")
    assert (overdue["clock"], overdue["name"], overdue["limit_s"]) == ("heartbeat", None, 0.2)
    assert (overdue["rank"], overdue["local_rank"], overdue["learned"]) == (3, 0, False)
    assert overdue["at"] < overdue["detected_at"]
    assert overdue["age_s"] > 0.2
    order = [op for op in node.ops() if op in ("rankconnected", "overdue", "evidence", "signalled")]
    assert order == ["rankconnected", "overdue", "evidence", "signalled"]
    evidence = node.expect("evidence")
    assert evidence["why_not"] is None
    assert "stuck_in_a_function_with_a_name" in Path(evidence["stacks"]).read_text()

    record, text = node.incident()
    assert record["rank"] == 3
    assert record["iteration"] == 41
    assert record["process"]["state"] in "SR"
    assert not record["was_stopped"]
    assert "stuck_in_a_function_with_a_name" in record["stacks_text"]
    assert record["actions"][:2] == ["SIGCONT sent", "SIGKILL sent"]
    assert text.startswith(f"rank 3 (pid {rank.pid}, node gpu-07) is hung: Did not get subsequent")
    assert "To allow longer: --ft-rank-heartbeat-timeout 0.4" in text
    assert "stuck_in_a_function_with_a_name" in text

    announced = node.log("is hung")
    assert "Did not get subsequent heartbeat for" in announced
    assert "Sent SIGCONT, SIGKILL." in announced


@pytest.mark.parametrize(
    ("limits", "then", "clock", "text"),
    [
        ("initial=0.1", "", "initial heartbeat", "Did not get initial heartbeat"),
        ("outside=0.1", "", "outside sections", "Was out of section for"),
        (
            "sections={'step': 0.2, 'inner': 60.0}",
            "[words.__setitem__(page.slot(i), now()) for i in (0, 1)]",
            "section",
            "Section 'step' has been open for",
        ),
    ],
)
def test_each_clock_has_its_words(
    start: Callable[..., Node], limits: str, then: str, clock: str, text: str
) -> None:
    """H-2: an outer section trips although a younger one is open inside it."""
    node = start()
    rank = node.late(limits, then)

    assert rank.exit_code() == -SIGKILL
    assert node.expect("overdue")["clock"] == clock
    assert text in node.log("is hung")


def test_a_beating_rank_lives(start: Callable[..., Node]) -> None:
    """H-1: heartbeats for longer than the limit, then silence."""
    node = start()
    rank = node.armed("initial=60.0, subsequent=2.0")
    rank.begin("exec('end = now() + 3.0\\nwhile now() < end: words[page.HEARTBEAT_AT] = now()')")
    rank.answer()

    assert rank.exit_code() == -SIGKILL
    page = map_page(str(node.folder / "c0_r0.page"), writable=False)
    last_beat = page.words[layout.HEARTBEAT_AT]
    assert last_beat > page.words[layout.ARMED_AT] + 2.5, "it was let go on"
    assert node.expect("overdue")["detected_at"] > last_beat + 2.0
    page.close()


def test_a_stopped_rank_is_continued_for_its_stacks(start: Callable[..., Node]) -> None:
    """That it was stopped is the diagnosis."""
    node = start()
    rank = node.rank()
    rank.join()
    node.stop()
    assert rank.do("arm(initial=0.3, hears=False)") is None
    rank.process.send_signal(signal.SIGSTOP)
    until(lambda: proc.process_state(rank.pid).is_stopped)
    os.kill(node.monitor.pid, signal.SIGCONT)

    assert rank.exit_code() == -SIGKILL
    record, text = node.incident()
    assert record["was_stopped"]
    assert record["process"]["state"] == "T"
    assert "fake_rank.py" in record["stacks_text"]
    assert "the rank was stopped" in text
    assert "It was stopped" in node.log("is hung")


def test_a_rank_without_dump_signal_is_not_sent_one(start: Callable[..., Node]) -> None:
    """The signal's default action would end it before the configured one could."""
    node = start(cfg={"rank_termination_signal": SIGTERM})
    rank = node.late("initial=0.1, dump=False")

    assert rank.exit_code() == -SIGTERM
    assert node.expect("evidence")["why_not"] == "the rank registered no signal for stack dumps"
    record, text = node.incident()
    assert record["stacks"] is None
    assert "No stacks: the rank registered no signal for stack dumps." in text


def test_a_rank_that_lost_its_handler_is_not_sent_the_signal(start: Callable[..., Node]) -> None:
    """It said it had one, but the kernel knows better (it may have exec'd something else)."""
    node = start(cfg={"rank_termination_signal": SIGTERM})
    rank = node.rank()
    rank.join()
    rank.do("words.__setitem__(page.DUMP_SIGNAL, float(signal.SIGRTMIN + 9))")
    rank.begin("arm(dump=False, initial=0.1)")

    assert rank.exit_code() == -SIGTERM
    assert "has no handler" in node.expect("evidence")["why_not"]


@pytest.mark.parametrize("signum", [SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_all_processes_of_a_job_does_not_end_a_monitor_that_starts(
    tmp_path: Path, signum: int
) -> None:
    """``scancel``, ``kill -- -PGID``: it comes before the monitor's interpreter runs any code."""
    node = Node(tmp_path)
    try:
        os.kill(node.monitor.pid, signum)

        node.begin_cycle()
        node.expect("monitorready")
        os.kill(node.monitor.pid, signum)
        assert node.armed("initial=600.0").do("1 + 1") == 2
    finally:
        node.end()


def test_a_rank_that_ignores_the_signal_is_killed_after_its_grace(
    start: Callable[..., Node],
) -> None:
    """Polite, then forced, each once."""
    node = start(cfg={"rank_termination_signal": SIGTERM}, grace_s=0.3)
    rank = node.rank()
    rank.join()
    rank.do("signal.signal(signal.SIGTERM, lambda *_: None)")
    rank.begin("arm(initial=0.1)")

    assert rank.exit_code() == -SIGKILL
    node.expect("rankleft")
    sent = [(m["signal"], m["why"]) for m in node.seen if m["op"] == "signalled"]
    assert sent == [(SIGTERM, "hung"), (SIGKILL, "grace over")]
    assert "SIGKILL follows in 0.3 s" in node.log("is hung")
    record, _ = node.incident()
    assert record["actions"][:3] == [
        "SIGCONT sent",
        "SIGTERM sent",
        "SIGKILL sent, 0.3 s after SIGTERM",
    ]


def test_a_rank_that_ends_of_the_signal_is_not_said_to_be_spared(
    start: Callable[..., Node],
) -> None:
    """It was ended, by the first of the two signals."""
    node = start(cfg={"rank_termination_signal": SIGTERM}, grace_s=3600.0)
    rank = node.late("initial=0.1")

    assert rank.exit_code() == -SIGTERM
    assert "it is not killed" not in node.log("no SIGKILL follows")


def test_a_rank_that_disarms_in_its_grace_is_let_go(start: Callable[..., Node]) -> None:
    """A handler of the configured signal may restart the training in the same process."""
    node = start(cfg={"rank_termination_signal": int(signal.SIGUSR1)}, grace_s=3600.0)
    rank = node.rank()
    rank.join()
    rank.do("signal.signal(signal.SIGUSR1, lambda *_: words.__setitem__(page.ARMED_AT, 0.0))")
    rank.do("arm(initial=0.1)")
    node.expect("signalled")
    until(lambda: rank.do("words[page.ARMED_AT]") == 0.0)
    assert rank.do("call(op='leavemonitor')['op']") == "ok"

    node.log("no SIGKILL follows")
    rank.do("arm(initial=3600.0)")
    assert rank.process.poll() is None


def test_none_is_no_limit(start: Callable[..., Node]) -> None:
    """Nothing trips, and the monitor has nothing to wake up for."""
    node = start()
    rank = node.armed("sections={'step': INF}")
    rank.do("words.__setitem__(page.slot(0), now() - 1e5)")
    node.expect("rankconnected")
    sleeps = settled_sleeps(node)

    burn(0.5)

    assert rank.do("1") == 1
    assert node.status("voluntary_ctxt_switches") == sleeps


def burn(seconds: float) -> None:
    """Let time pass under load: the condition is that nothing happens in it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def settled_sleeps(node: Node) -> int:
    """How often the monitor went to sleep, once it has nothing left to do."""
    before = -1
    # Asleep, too: one that waits for a processor on a busy machine has something left to do.
    while before != (now := node.status("voluntary_ctxt_switches")) or not is_asleep(node):
        before = now
        burn(0.1)
    return now


def is_asleep(node: Node) -> bool:
    state = proc.process_state(node.monitor.pid)
    return state is not None and state.state == "S"


def test_a_healthy_monitor_does_not_wake(start: Callable[..., Node]) -> None:
    """Tickless: a limit of a minute means a wake-up a minute, whatever the rank does."""
    node = start()
    rank = node.armed("initial=60.0, subsequent=60.0, sections={'step': 60.0}")
    sleeps = settled_sleeps(node)

    rank.do("exec('for _ in range(10000): words[page.HEARTBEAT_AT] = now()')")
    burn(0.5)

    assert node.status("voluntary_ctxt_switches") == sleeps


def test_a_successor_takes_over_where_a_killed_monitor_was(start: Callable[..., Node]) -> None:
    """It adopts the armed page; the rank need not even notice."""
    node = start()
    rank = node.armed("initial=60.0, sections={'step': 1.0}")
    os.kill(node.monitor.pid, SIGKILL)
    node.wait_for_end()
    rank.do("words.__setitem__(page.slot(0), now())")

    node.start()
    node.begin_cycle(fresh=False)

    assert "is watched again" in node.log("is watched again")
    assert rank.exit_code() == -SIGKILL
    assert node.expect("overdue")["name"] == "step"
    assert node.expect("evidence")["why_not"] is None


def test_a_rank_resumes_with_the_successor(start: Callable[..., Node]) -> None:
    """A request finds the new monitor; the adopted watch goes on, with the limits of the page."""
    node = start()
    rank = node.armed("initial=60.0, sections={'step': 5.0}")
    os.kill(node.monitor.pid, SIGKILL)
    node.wait_for_end()
    node.start()
    node.begin_cycle(fresh=False)
    node.log("is watched again")

    assert rank.do(f"connect({rank.path!r}, resume=True)") is None
    assert rank.do("welcome['cfg']['rank_section_timeouts']") == {"step": 5.0}
    assert rank.do("store_limits(initial=0.1)") is None
    rank.begin("call(op='timeouts', initial=0.1)")
    assert rank.exit_code() == -SIGKILL


RANK_OF_A_STOPPED_MONITOR = """
import sys, time
from holdfast.fault_tolerance import RankMonitorClient
from holdfast.watch.rank import monitor_link
monitor_link._ANSWER_S = 0.2
client = RankMonitorClient()
client.init_workload_monitoring()
print("up", flush=True)
sys.stdin.readline()
limits = {"section": {"section": {"step": 0.3}, "calculated_sections": []}}
client.load_state_dict({"current_timeouts": limits})
client.start_section("step")
print(client.section_timeouts.section, flush=True)
sys.stdin.readline()
if sys.argv[1] == "leaves":
    client.shutdown_workload_monitoring()
    print("has left", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("fate", ["goes on", "is replaced", "its rank leaves"])
def test_a_stopped_monitor_does_not_disturb_its_rank_and_learns_its_limits_later(
    start: Callable[..., Node], fate: str
) -> None:
    """P-1: new limits and a shutdown return; what they say holds when a monitor is there again."""
    node = start(cfg={"rank_section_timeouts": {"step": 3600.0}})
    stopped = node.monitor.pid
    with rank_with_client(node, RANK_OF_A_STOPPED_MONITOR, fate.rsplit(maxsplit=1)[-1]) as rank:

        def says_next() -> str:
            rank.stdin.write("go on\n")
            rank.stdin.flush()
            assert select.select([rank.stdout], [], [], BOUND_S)[0], "it waits for its monitor"
            return rank.stdout.readline()

        assert rank.stdout.readline() == "up\n"
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: proc.process_state(stopped).is_stopped)
        assert says_next() == "{'step': 0.3}\n"
        if fate == "its rank leaves":
            assert says_next() == "has left\n"
        assert proc.process_state(stopped).is_stopped
        if fate == "is replaced":
            os.kill(stopped, SIGKILL)
            node.wait_for_end()
            node.start()
            node.begin_cycle(fresh=False)
        else:
            os.kill(stopped, signal.SIGCONT)
        if fate == "its rank leaves":
            node.expect("rankleft", pid=rank.pid)
            assert rank.poll() is None
        else:
            assert rank.wait(BOUND_S) == -SIGKILL
            assert node.expect("overdue")["limit_s"] == 0.3


IMPORTS = """
import atexit, os, subprocess, sys, threading, time
from holdfast.fault_tolerance import RankMonitorClient
def hang_on_the_way_out(leave=lambda: None):
    leave()  # in here: nothing that is slow comes between the two
    print("out", flush=True)
    time.sleep(1000)
client = RankMonitorClient()
"""
INIT = "client.init_workload_monitoring()\n"
LEAVING_RANK = IMPORTS + INIT
LEAVE = "client.shutdown_workload_monitoring()\n"
CUT_OFF = """
client._link.close()
def beat():
    while True:
        client.send_heartbeat()
        time.sleep(0.05)
threading.Thread(target=beat, daemon=True).start()
"""
OUT = "atexit.register(hang_on_the_way_out, lambda: {})\n".format
BYE = OUT("client.shutdown_workload_monitoring()")


@contextlib.contextmanager
def rank_with_client(node: Node, *program: str) -> Iterator[subprocess.Popen[str]]:
    """A rank with the real client."""
    with subprocess.Popen(
        [sys.executable, "-c", *program],
        env=os.environ | {"FT_RANK_MONITOR_IPC_SOCKET": node.path, "RANK": "3"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as rank:
        try:
            yield rank
        finally:
            rank.kill()


@pytest.mark.parametrize(
    "then",
    [
        BYE,
        OUT("client._link.close()"),
        BYE + LEAVE + INIT + "client.send_heartbeat()\n",
    ],
    ids=["after its shutdown", "without one", "after it came back once"],
)
def test_a_rank_that_hangs_on_its_way_out_is_ended_with_evidence(
    start: Callable[..., Node], then: str
) -> None:
    """Like any hang; it was never noticed."""
    node = start(cfg={"exit_timeout": 1.0})
    with rank_with_client(node, LEAVING_RANK + then) as rank:
        assert rank.wait(BOUND_S) == -SIGKILL

    overdue = node.expect("overdue")
    assert (overdue["clock"], overdue["limit_s"], overdue["pid"]) == ("process exit", 1.0, rank.pid)
    record, text = node.incident()
    assert "hang_on_the_way_out" in record["stacks_text"]
    assert re.search(r"Its process has run on for \d", text)
    assert "To allow longer: --ft-exit-timeout 2" in text
    node.expect("closed")  # said when the monitor has seen the end, too
    order = [
        op for op in node.ops() if op in ("rankleft", "overdue", "evidence", "signalled", "closed")
    ]
    byes = order.count("rankleft")
    assert order == ["rankleft"] * byes + ["overdue", "evidence", "signalled", "closed"]


def test_a_successor_knows_since_when_a_rank_has_left(start: Callable[..., Node]) -> None:
    """From the page."""
    node = start(cfg={"exit_timeout": 3.0})
    with rank_with_client(node, LEAVING_RANK + LEAVE + "hang_on_the_way_out()") as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "out\n"
        node.expect("rankleft")
        os.kill(node.monitor.pid, SIGKILL)
        node.wait_for_end()
        node.start()
        node.begin_cycle(fresh=False)

        assert rank.wait(BOUND_S) == -SIGKILL
    assert node.expect("overdue")["clock"] == "process exit"


STAYS = "print('up', flush=True)\nos.read(0, 1)\n"
CHILD = IMPORTS + "print('ready', flush=True)\nos.read(0, 1)\n" + INIT + STAYS + LEAVE
HANDS_ON = f"""
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE)
os.read(0, 1)
{LEAVE}
child.stdin.write(b"x")
child.stdin.flush()
os.read(0, 1)
child.communicate(b"x")
"""


@pytest.mark.parametrize(
    "then",
    [LEAVE + INIT + STAYS, CUT_OFF + STAYS, HANDS_ON],
    ids=["it comes back", "it is cut off", "it waits for a child that is the rank now"],
)
def test_a_rank_that_goes_on_with_the_training_after_it_left_lives(
    start: Callable[..., Node], then: str
) -> None:
    """Restarted in place, or cut off from its monitor, or a script that calls a script."""
    node = start(cfg={"exit_timeout": 2.0})
    with rank_with_client(node, LEAVING_RANK + then) as rank:
        assert rank.stdout is not None
        assert rank.stdin is not None
        if then == HANDS_ON:
            assert rank.stdout.readline() == "ready\n"
            rank.stdin.write("x")
            rank.stdin.flush()
        assert rank.stdout.readline() == "up\n"
        burn(2.3)
        rank.stdin.write("x")
        rank.stdin.flush()
        assert rank.wait(BOUND_S) == 0
    assert "overdue" not in node.ops()


def test_a_page_of_a_recycled_pid_is_not_adopted(start: Callable[..., Node]) -> None:
    """Same pid, another start time: somebody else."""
    node = start()
    rank = node.armed("initial=60.0")
    rank.do("words.__setitem__(page.START_TICKS, 1.0)")
    os.kill(node.monitor.pid, SIGKILL)
    node.wait_for_end()
    node.start()
    node.begin_cycle(fresh=False)
    node.expect("monitorready")
    rank.do(f"connect({rank.path!r}, rank=5)")

    assert node.expect("rankconnected")["rank"] == 5
    assert not [m for m in node.seen if m["op"] == "monitorlog"]
    assert rank.process.poll() is None


def test_without_a_launcher_everything_ends(start: Callable[..., Node]) -> None:
    """K-1: the rank, and its child in a session of its own that ignores SIGTERM."""
    node = start()
    rank = node.armed("initial=60.0")
    child = rank.do(
        "exec('''if (child := os.fork()) == 0: os.setsid(); "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()''', globals()) or child"
    )
    assert set(marked(f"{node.job}.")) == {rank.pid, child}

    node.monitor.control.close()

    assert node.wait_for_end() == 0
    assert rank.exit_code() == -SIGKILL
    assert marked(f"{node.job}.") == []


def test_a_launcher_that_is_stopped_has_its_ranks_ended(
    start: Callable[..., Node], tmp_path: Path
) -> None:
    """When its lease ends, not where it was moved in time; once."""
    lease = Lease(str(tmp_path / "lease"), writable=True)
    node = start(lease=lease.path)
    rank = node.armed("initial=60.0")
    child = rank.do("exec('if (child := os.fork()) == 0: signal.pause()', globals()) or child")
    now = time.monotonic()
    lease.extend(now + 2.5, now)
    node.tell(op="tripped", clock="section", name="step", limit_s=1.0)  # it looks at the lease
    now = time.monotonic()
    ends_at = now + 3.0
    lease.extend(ends_at, now)

    assert rank.exit_code() == -SIGKILL

    lease.extend(ends_at, time.monotonic())  # its monitor's message wakes it; it says nothing new
    assert time.monotonic() >= ends_at
    until(lambda: not marked(f"{node.job}."))
    assert child != rank.pid
    node.log("the other nodes may continue without it, so its monitors have killed its ranks")
    sleeps = settled_sleeps(node)
    burn(0.3)
    assert node.status("voluntary_ctxt_switches") == sleeps
    lease.close()


def test_the_next_ranks_of_a_launcher_that_goes_on_live(
    start: Callable[..., Node], tmp_path: Path
) -> None:
    """It wakes when its monitor ends the last ones: no later process of the job is ended."""
    lease = Lease(str(tmp_path / "lease"), writable=True)
    node = start(lease=lease.path)
    rank = node.armed("initial=60.0")
    now = time.monotonic()
    lease.extend(now + 0.5, now)
    node.tell(op="tripped", clock="section", name="step", limit_s=1.0)  # it looks at the lease

    assert rank.exit_code() == -SIGKILL
    now = time.monotonic()
    lease.extend(now + 60.0, now)
    env = os.environ | {"HOLDFAST_MARKER": f"{node.job}.1.0"}
    with contextlib.ExitStack() as stack:
        nexts = [stack.enter_context(subprocess.Popen(["sleep", "60"], env=env)) for _ in range(20)]
        stack.callback(lambda: [it.kill() for it in nexts])
        node.tell(op="dance")
        node.log("unknown message 'dance'")  # it has done all that came before
        assert [it.poll() for it in nexts] == [None] * len(nexts)
    lease.close()


def test_a_launcher_of_another_version_ends_no_monitor(start: Callable[..., Node]) -> None:
    """A package may be replaced while a launcher that has imported the old one runs."""
    node = start()
    node.tell(op="dance")
    node.tell(op="tripped", clock="section", name="step", limit_s="long")

    node.log("the launcher sent a malformed message: unknown message 'dance'")
    node.log("malformed message: tripped: 'limit_s' should be a finite number, is 'long'")
    node.armed("initial=60.0")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_signals_meant_for_the_job_do_not_end_it(start: Callable[..., Node], name: str) -> None:
    """Schedulers signal every process; the launcher decides when monitors end."""
    node = start()
    os.kill(node.monitor.pid, getattr(signal, name))
    rank = node.late("initial=0.1")

    assert rank.exit_code() == -SIGKILL


GARBAGE = {
    "no frame": b"GET / HTTP/1.1\r\n\r\n",
    "no json": b"\0\0\0\x04oops",
    "no object": b"\0\0\0\x02[]",
    "hello without sense": encode({"op": "hello", "rank": None, "pid": "x"}),
    "armed without hello": encode({"op": "armed"}),
    "unknown": encode({"op": "rm -rf"}),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_ends_its_own_connection_only(start: Callable[..., Node], garbage: bytes) -> None:
    """S-1: and the rank beside it stays watched."""
    node = start()
    rank = node.late("initial=1.0")
    node.expect("watchbegan")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(BOUND_S)
        stranger.connect(node.path)
        stranger.sendall(garbage)
        while stranger.recv(4096):
            pass

    assert rank.exit_code() == -SIGKILL
    assert node.expect("overdue")["pid"] == rank.pid


@pytest.mark.parametrize(
    "message",
    [
        {"op": "timeouts", "initial": "soon"},
        {"op": "timeouts", "sections": 3},
        {"op": "hello", "rank": {}},
    ],
)
def test_a_rank_that_talks_nonsense_is_told_so(
    start: Callable[..., Node], message: dict[str, Any]
) -> None:
    """The monitor lives on, and serves the next one."""
    node = start()
    rank = node.armed("initial=60.0")

    assert rank.do(f"call(**{message!r})")["op"] == "error"
    rank.do(f"connect({rank.path!r})")
    assert rank.do("welcome['op']") == "welcome"


def test_a_rank_with_another_clock_is_refused(start: Callable[..., Node]) -> None:
    """In a time namespace of its own: its stamps would mean nothing, or death."""
    node = start()
    hello = {"op": "hello", "rank": 3, "pid": os.getpid(), "clock_s": time.monotonic() + 1e6}
    with socket.socket(socket.AF_UNIX) as rank:
        rank.settimeout(BOUND_S)
        rank.connect(node.path)
        rank.sendall(encode(hello))
        [answer] = Decoder().feed(rank.recv(4096))

    assert answer["op"] == "error"
    assert "time namespaces" in answer["text"]


def test_a_flood_does_not_hold_up_a_verdict(start: Callable[..., Node]) -> None:
    """Somebody writes as fast as the monitor reads, and never reads answers."""
    node = start()
    rank = node.late("initial=0.5")
    with socket.socket(socket.AF_UNIX) as flood, socket.socket(socket.AF_UNIX) as silent:
        silent.connect(node.path)
        flood.connect(node.path)
        flood.setblocking(False)
        half_a_frame = (1 << 20).to_bytes(4, "big") + b" " * 60000
        while rank.process.poll() is None:
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                flood.send(half_a_frame)

    assert node.expect("overdue")["pid"] == rank.pid


FEW = {"first_call_timeout": 0.4}


@pytest.mark.parametrize("calls", [False, True], ids=["silent", "stuck after its hello"])
def test_a_rank_that_hangs_before_it_is_armed_is_ended_once_it_is_awaited(
    start: Callable[..., Node], calls: bool
) -> None:
    """Another rank of its node was armed; the incident says so, and what is missing."""
    node = start(cfg=FEW)
    rank = node.rank()
    if calls:
        rank.join()
        node.expect("rankconnected")
    node.tell(op="await", cycle=0, rank=3, pid=rank.pid, since=time.monotonic())

    assert rank.exit_code() == -SIGKILL
    overdue = node.expect("overdue")
    assert (overdue["clock"], overdue["rank"], overdue["pid"]) == ("first report", 3, rank.pid)
    record, text = node.incident()
    assert record["why_not"]
    assert re.search(r"Has not called init_workload_monitoring\(\) for \d", text)
    assert "To allow longer: --ft-first-call-timeout 0.8" in text


def test_an_awaited_rank_that_is_armed_in_time_has_its_own_limits(
    start: Callable[..., Node],
) -> None:
    """From then on; it may call from another process than the one that the launcher started."""
    node = start(cfg=FEW)
    shell, rank = node.rank(), node.rank()
    node.tell(op="await", cycle=0, rank=3, pid=shell.pid, since=time.monotonic() + 1000.0)
    rank.join()
    rank.begin("arm(initial=0.3)")

    assert rank.exit_code() == -SIGKILL
    assert node.expect("overdue")["clock"] == "initial heartbeat"
    assert shell.do("1") == 1


@pytest.mark.parametrize("how", ["armed", "left", "of another cycle", "gone", "asked to end"])
def test_a_rank_that_is_not_awaited_any_more_is_not_ended(
    start: Callable[..., Node], how: str
) -> None:
    """The launcher may hear of it later than its message has left."""
    node = start(cfg=FEW)
    rank = node.armed("initial=60.0") if how in ("armed", "left") else node.rank()
    if how == "left":
        rank.do("words.__setitem__(page.ARMED_AT, 0.0)")
        assert rank.do("call(op='leavemonitor')")["op"] == "ok"
    if how == "gone":
        rank.process.kill()
        rank.process.wait()
    if how == "asked to end":
        node.tell(op="stopping", cycle=0, at=0.0)
    sleeps = settled_sleeps(node)

    cycle = 7 if how == "of another cycle" else 0
    node.tell(op="await", cycle=cycle, rank=3, pid=rank.pid, since=0.0)

    until(lambda: node.status("voluntary_ctxt_switches") > sleeps)
    settled_sleeps(node)
    assert "overdue" not in node.ops()
    assert how == "gone" or rank.process.poll() is None


def test_a_second_rank_waits_until_the_first_has_left(start: Callable[..., Node]) -> None:
    """One rank at a time; and the second gets a page that the first cannot write to."""
    node = start()
    first = node.armed("initial=60.0")
    node.expect("rankconnected", rank=3)
    second = node.rank()
    sleeps = settled_sleeps(node)
    second.begin(f"connect({second.path!r}, rank=4)")
    until(lambda: node.status("voluntary_ctxt_switches") > sleeps)
    assert "rankconnected" not in node.ops()[node.ops().index("rankconnected") + 1 :]

    first.do("connection.close()")

    assert second.answer() is None
    node.expect("rankconnected", rank=4)
    second.begin("arm(initial=0.3)")
    first.do("words.__setitem__(page.HEARTBEAT_AT, now())")
    assert second.exit_code() == -SIGKILL
    assert first.do("1") == 1


def test_a_dead_rank_is_not_reported_as_hung(start: Callable[..., Node]) -> None:
    """Its process is the launcher's concern; the monitor makes room for the next."""
    node = start()
    rank = node.rank()
    rank.join()
    # By itself: on a busy machine it would be hung before this process gets round to it.
    rank.begin("arm(initial=2.0); os.kill(os.getpid(), signal.SIGKILL)")
    node.expect("rankleft", pid=rank.pid)
    successor = node.late("initial=2.5")

    assert successor.exit_code() == -SIGKILL
    node.expect("rankleft", pid=successor.pid)
    assert {m["pid"] for m in node.seen if m["op"] == "overdue"} == {successor.pid}


def test_a_child_that_holds_the_connection_does_not_keep_the_seat(
    start: Callable[..., Node],
) -> None:
    """The death of the rank counts, not the end of its socket."""
    node = start()
    rank = node.armed("initial=60.0")
    child = rank.do("os.fork() or signal.pause()")
    rank.process.kill()

    node.armed("initial=60.0")
    assert proc.process_state(child) is not None


def test_a_new_cycle_forgets_the_old_rank(start: Callable[..., Node]) -> None:
    """Limits that were learned stay in force, and come back with the welcome."""
    node = start()
    old = node.armed("initial=60.0, sections={'step': 9.0}")
    assert old.do(
        "call(op='timeouts', sections={'step': 9.0}, out_of_section=7.0, "
        "learned=dict(sections=['step']))"
    ) == {"op": "ok", "raised": None}
    assert "9.0" in node.log("Updated section timeouts")

    node.begin_cycle(1)
    new = node.rank()
    new.join()

    assert new.do("welcome['cycle']") == 1
    assert new.do("welcome['cfg']['rank_section_timeouts']") == {"step": 9.0}
    assert new.do("welcome['cfg']['rank_out_of_section_timeout']") == 7.0
    assert new.do("welcome['learned']") == {
        "heartbeat": False,
        "out_of_section": False,
        "sections": ["step"],
    }
    new.begin("arm(initial=0.3)")
    assert new.exit_code() == -SIGKILL
    assert old.process.poll() is None


def test_cycles_that_are_over_before_the_monitor_runs_are_passed_over(
    start: Callable[..., Node],
) -> None:
    """Ranks can fail faster than a monitor starts; their pages are gone when it looks."""
    node = start()
    node.armed("")
    node.stop()
    for cycle in range(1, 4):
        node.begin_cycle(cycle)
        (node.folder / f"c{cycle - 1}_r0.page").unlink(missing_ok=True)
    os.kill(node.monitor.pid, signal.SIGCONT)

    node.armed("")

    node.expect("rankconnected")
    assert [m for m in node.seen if m["op"] == "monitorlog" and m["level"] == "error"] == []


def test_a_learned_limit_that_tripped_is_raised(start: Callable[..., Node]) -> None:
    """Here, and where another monitor of the job saw it trip."""
    node = start()
    node.tell(op="tripped", clock="section", name="step", limit_s=4.0)
    rank = node.rank()
    rank.join()

    raised = rank.do(
        "call(op='timeouts', initial=1.0, subsequent=2.0, sections={'step': 3.0}, "
        "learned=dict(heartbeat=True, sections=['step']))['raised']"
    )
    assert (raised["initial"], raised["subsequent"]) == (1.0, 2.0)
    assert (raised["sections"], raised["out_of_section"]) == ({"step": 8.0}, None)

    rank.begin("arm(initial=0.2, learned=1.0)")
    assert rank.exit_code() == -SIGKILL
    assert node.expect("overdue")["learned"]
    assert "at least twice as long" in node.log("is hung")
    again = node.rank()
    again.join()
    raised = again.do(
        "call(op='timeouts', initial=0.2, subsequent=2.0, learned=dict(heartbeat=True))['raised']"
    )
    assert (raised["initial"], raised["subsequent"]) == (0.4, 2.0)


def test_warming_up_is_not_judged_by_the_time_outside(start: Callable[..., Node]) -> None:
    """Until the iteration at which it ends."""
    node = start()
    rank = node.rank()
    rank.join()
    rank.do("words.__setitem__(page.WARM_UNTIL, 5.0)")
    rank.do("words.__setitem__(page.ITERATION, 4.0)")
    rank.do("arm(outside=0.1)")
    burn(0.3)
    assert rank.do("1") == 1
    rank.begin("words.__setitem__(page.ITERATION, 5.0)")

    assert rank.exit_code() == -SIGKILL
    assert node.expect("overdue")["clock"] == "outside sections"


def test_leaving_with_open_sections_is_pointed_out(start: Callable[..., Node]) -> None:
    """Once per job: by the monitor of rank 0."""
    node = start()
    rank = node.rank()
    rank.do(f"connect({rank.path!r}, rank=0)")
    rank.do("arm(sections={'step': 60.0})")
    rank.do("words.__setitem__(page.slot(0), now())")
    rank.do("call(op='leavemonitor')")

    assert "end_all_sections()" in node.log("sections ['step'] are open")


def test_a_section_whose_name_is_not_utf8_does_not_save_its_rank(
    start: Callable[..., Node],
) -> None:
    """Writing that name killed the monitor, and each of its successors."""
    node = start()
    rank = node.armed("sections={'st\\udcffep': 0.1}")
    rank.begin("words.__setitem__(page.slot(0), now())")

    assert rank.exit_code() == -SIGKILL
    node.expect("rankleft", pid=rank.pid)
    record, text = node.incident()
    assert record["name"] == "st\udcffep"
    assert "Section 'st\\udcffep' has been open" in text
    assert not [m for m in node.seen if m["op"] == "monitorlog" and m["level"] == "error"]


def test_nobody_is_kept_alive_by_a_full_disk(start: Callable[..., Node], tmp_path: Path) -> None:
    """The incident cannot be written; that is said, and the kill goes on."""
    (tmp_path / "incidents").write_text("a file, not a folder")
    node = start()
    rank = node.late("initial=0.1")

    assert rank.exit_code() == -SIGKILL
    assert "cannot write the incident" in node.log("cannot write")
    assert "fake_rank.py" in node.log("Its stacks:")


def test_a_launcher_that_does_not_read_holds_up_nothing(start: Callable[..., Node]) -> None:
    """A stopped launcher does not save a hung rank."""
    node = start()
    for number in range(3):
        rank = node.armed("initial=60.0")
        name = "x" * 400_000
        rank.begin(f"call(op='timeouts', sections={{{name!r}: 1.0}})")
        assert rank.answer()["op"] == "ok", number
        rank.do("connection.close()")

    rank = node.late("initial=0.1")
    assert rank.exit_code() == -SIGKILL


def test_a_monitor_is_small_and_its_modules_are_few(start: Callable[..., Node]) -> None:
    """RSS at most 16 MiB while watching; nothing heavy is imported."""
    node = start()
    node.armed("initial=60.0")
    assert node.status("VmRSS") <= 16 * 1024

    root = Path(endpoint.__file__).parents[2]
    code = (
        "import sys; sys.path.append(sys.argv[1]);"
        "import holdfast.watch.monitor.monitor_main;"
        "import holdfast.watch.monitor.hang_response; print(' '.join(sys.modules))"
    )
    modules = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(root)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    heavy = {"torch", "asyncio", "logging", "dataclasses", "typing", "ctypes", "subprocess"}
    assert not heavy & set(modules)


def test_the_page_stays_the_launchers(start: Callable[..., Node], tmp_path: Path) -> None:
    """The monitor maps it read-only; the rank is the one writer."""
    node = start()
    node.armed("initial=60.0")
    maps = Path(f"/proc/{node.monitor.pid}/maps").read_text().splitlines()

    (mapping,) = [line for line in maps if line.endswith(".page")]
    assert mapping.split()[1].startswith("r--")
    assert map_page(str(tmp_path / "c0_r0.page"), writable=False).words[layout.ARMED_AT] > 0


def test_ranks_that_come_and_go_leave_no_descriptors(start: Callable[..., Node]) -> None:
    """A monitor outlives hundreds of ranks."""
    node = start()

    def descriptors() -> int:
        return len(list(Path(f"/proc/{node.monitor.pid}/fd").iterdir()))

    counts = []
    for number in range(8):
        node.begin_cycle(number)
        if number % 2:
            rank = node.late("initial=0.05")
        else:
            rank = node.armed("initial=60.0")
            rank.process.kill()
        rank.process.wait(BOUND_S)
        node.expect("rankleft", pid=rank.pid)
        counts.append(descriptors())

    # The first verdict opens the events file, for good. What a rank had is closed after its bye.
    until(lambda: descriptors() <= counts[1])
