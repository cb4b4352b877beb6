"""What a monitor sees of a real rank that hangs, and what it waits for before it ends one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.processes import proc
from holdfast.base.pure.codec import encode
from holdfast.evidence import proc_sample
from holdfast.evidence.pure.evidence import ANSWERED, SILENT, Verdict
from holdfast.evidence.sources import HELPER_NAME
from holdfast.watch.pure.monitor_messages import Proceed
from tests.integration.test_monitor_process import SIGKILL, Node, start
from tests.processes import bystander
from tests.waiting import BOUND_S, until

__all__ = ["start"]

RANK = """
import ctypes, multiprocessing, os, re, signal, subprocess, sys, threading, time
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
client.send_heartbeat()
lock = threading.Lock()
lock.acquire()
def wait_for_a_lock():
    lock.acquire()
def hold_the_interpreter():
    re.match(r"(a+)+$", "a" * 64 + "b")
def hold_the_interpreter_asleep():
    libc = ctypes.PyDLL(None)
    while True: libc.sleep(1000)
def sleep_in_c():
    libc = ctypes.CDLL(None)
    while True: libc.sleep(1000)
def compute():
    while True:
        work(); work_more()
def work():
    sum(range(1000))
def work_more():
    sum(range(2000))
def stop():
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)
def read_a_pipe():
    os.read(os.pipe()[0], 1)
def sleep():
    time.sleep(1000)
def load(queue):
    sleep()
def wait_for_a_worker():
    queue = multiprocessing.get_context("fork").Queue()
    worker = multiprocessing.get_context("fork").Process(target=load, args=(queue,), daemon=True)
    worker.start()
    queue.get()
def wait_for_a_worker_beside_a_program():
    code = "import signal, time; ends = lambda *_: exit(1); "
    code += "[signal.signal(n, ends) for n in range(35, 60)]; print(flush=True); time.sleep(1000)"
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    program.stdout.readline()
    wait_for_a_worker()
print("out", flush=True)
"""


@contextmanager
def rank_that(node: Node, hangs: str) -> Iterator[subprocess.Popen[str]]:
    """A rank with the real client, in its hang, as far as its output can tell."""
    with subprocess.Popen(
        [sys.executable, "-c", f"{RANK}{hangs}()\n"],
        env=os.environ | {"FT_RANK_MONITOR_IPC_SOCKET": node.path, "RANK": "3"},
        stdout=subprocess.PIPE,
        text=True,
    ) as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "out\n"
            yield rank
        finally:
            children = proc.children(rank.pid)
            rank.kill()
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def look(node: Node, pid: int, incident: int, within_s: float = 5.0) -> dict[str, Any]:
    """Ask the monitor, and return the digest that it sends."""
    node.tell(op="collectevidence", incident=incident, cycle=0, rank=3, pid=pid, within_s=within_s)
    return node.expect("evidencecollected", incident=incident)["digest"]


def has_all(shows: dict[str, Any], digest: dict[str, Any]) -> bool:
    """What a digest is to have; of a tuple, one."""
    values = (
        (digest.get(key), it if isinstance(it, tuple) else (it,)) for key, it in shows.items()
    )
    return all(value in allowed for value, allowed in values)


@pytest.mark.parametrize(
    ("hangs", "shows"),
    [
        ("wait_for_a_lock", {"helper": ANSWERED, "state": "S", "waits_for": "lock"}),
        ("hold_the_interpreter", {"helper": SILENT, "state": "R"}),
        ("hold_the_interpreter_asleep", {"helper": SILENT, "state": "S"}),
        ("sleep_in_c", {"helper": ANSWERED, "state": "S", "waits_for": "sleep"}),
        ("compute", {"helper": ANSWERED, "state": "R", "call": ("work", "work_more")}),
        ("read_a_pipe", {"helper": ANSWERED, "state": "S", "waits_for": "pipe"}),
        ("sleep", {"helper": ANSWERED, "state": "S", "waits_for": "sleep"}),
        ("stop", {"state": "T", "place": None}),
        ("wait_for_a_worker", {"helper": ANSWERED, "state": "S", "waits_for": "other process"}),
    ],
)
def test_a_monitor_that_is_asked_says_how_its_rank_hangs(
    start: Callable[..., Node], hangs: str, shows: dict[str, Any]
) -> None:
    """The rank need not be overdue; its texts are in the folder of the incident."""
    node = start(awaits_verdict=True)
    with rank_that(node, hangs) as rank:
        for incident in range(1, 20):  # it may not have come to its hang yet
            digest = look(node, rank.pid, incident)
            if has_all(shows, digest):
                break
        if digest["state"] == "S":
            before = proc_sample.look_at(rank.pid)
            digest = look(node, rank.pid, incident := incident + 1)
            assert proc_sample.look_at(rank.pid) == before, (
                "a sleep in C does not end of the evidence"
            )
        node.tell(**encode(Proceed(incident, 0, Verdict())))

        assert has_all(shows, digest), digest
        assert digest["rank"] == 3
        assert digest["node"] == "gpu-07"
        assert digest["beat_s"] > 0.0
        assert hangs == "stop" or digest["place"].startswith(f"{hangs} ")
        if hangs == "wait_for_a_worker":
            assert ", sleep <string>:" in digest["worker"]
        if hangs not in (
            "stop",
            "hold_the_interpreter",
            "hold_the_interpreter_asleep",
        ):  # before it has its name, perhaps

            def sleeps() -> bool:
                helper = proc_sample.look_at_thread(rank.pid, HELPER_NAME)
                assert helper is not None
                return helper.state == "S"

            until(sleeps, "it sleeps when it has answered")
        folder = node.folder / "incidents" / f"{incident:04d}-cycle0"
        record = json.loads((folder / "rank3.json").read_text())
        assert record["state"] == shows["state"]
        text = (folder / "rank3.txt").read_text()
        assert "look_helper" not in text, "its own thread is no evidence"
        assert hangs == "stop" or f" in {hangs}\n" in text
        assert rank.poll() is None, "nobody is ended for being looked at"


def test_a_program_that_a_rank_has_started_is_not_asked_as_its_loaders_workers_are(
    start: Callable[..., Node],
) -> None:
    """Programs written in Go have a handler for every signal, which may end them."""
    node = start(awaits_verdict=True)
    with rank_that(node, "wait_for_a_worker_beside_a_program") as rank:
        for incident in range(1, 20):  # it may not have come to its hang yet
            digest = look(node, rank.pid, incident, 1.0)
            if digest.get("worker"):
                break

        def asleep() -> list[int]:
            states = {pid: proc.process_state(pid) for pid in proc.children(rank.pid)}
            return [pid for pid, state in states.items() if state and state.state == "S"]

        until(lambda: len(asleep()) == 2)  # the program and the worker

    assert ", sleep <string>:" in digest.get("worker", ""), digest


def test_a_hung_rank_is_ended_when_its_launcher_says_so(start: Callable[..., Node]) -> None:
    """And not before, while the other ranks of the job are looked at. It is awake by then only."""
    node = start(awaits_verdict=True, cfg={"rank_heartbeat_timeout": 1.0, "evidence_timeout": 20.0})
    with rank_that(node, "stop") as rank:
        until(lambda: proc.process_state(rank.pid).is_stopped)
        overdue = node.expect("overdue")
        digest = look(node, rank.pid, 7)
        assert (digest["state"], digest["overdue"]) == ("T", "heartbeat")
        assert not {"evidence", "signalled"} & set(node.ops())
        assert rank.poll() is None

        node.tell(**encode(Proceed(7, 0, Verdict())))
        assert rank.wait(BOUND_S) == -SIGKILL

    evidence = node.expect("evidence")
    assert evidence["why_not"] is None, "a stopped rank is woken for its stacks, last"
    assert Path(evidence["incident"]).parent.name == "0007-cycle0"
    assert " in stop\n" in Path(evidence["incident"]).with_suffix(".txt").read_text()
    assert node.expect("signalled")["pid"] == overdue["pid"]


def test_a_launcher_that_says_nothing_keeps_no_hung_rank_alive(start: Callable[..., Node]) -> None:
    """K-2: the timeout of evidence bounds it, whatever has come by then."""
    node = start(awaits_verdict=True, cfg={"rank_heartbeat_timeout": 1.0, "evidence_timeout": 0.5})
    with rank_that(node, "sleep") as rank:
        assert rank.wait(BOUND_S) == -SIGKILL

    evidence = node.expect("evidence")
    assert evidence["took_s"] >= 0.5
    assert "sleep" in Path(evidence["stacks"]).read_text()


def test_a_rank_that_never_said_hello_is_looked_at_by_its_pid(start: Callable[..., Node]) -> None:
    """A script that calls nothing shows its process at least."""
    node = start(awaits_verdict=True)
    with bystander() as process:
        digests = (look(node, process.pid, incident) for incident in range(1, 50))
        digest = next(one for one in digests if one["state"] == "S")  # it starts at first
        process.kill()

    assert digest["lacks"] == "no stacks: the rank registered no signal for stack dumps"
    assert look(node, process.pid, 50)["end"] == "gone"


def test_a_helper_comes_back_when_its_monitor_is_replaced(start: Callable[..., Node]) -> None:
    """The successor asks the same thread."""
    node = start(awaits_verdict=True)
    with rank_that(node, "sleep") as rank:
        digests = (look(node, rank.pid, incident) for incident in range(1, 50))
        assert any(digest.get("helper") == ANSWERED for digest in digests)
        os.kill(node.monitor.pid, signal.SIGKILL)
        node.wait_for_end()
        node.start()
        node.begin_cycle(fresh=False)
        node.expect("monitorready")

        digests = (look(node, rank.pid, incident) for incident in range(50, 99))
        assert any(digest.get("helper") == ANSWERED for digest in digests)
