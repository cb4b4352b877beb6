"""What a node's guard sees of a rank that it ends."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.pure import codec
from holdfast.evidence import proc_sample
from holdfast.evidence.collector import Collector
from holdfast.evidence.pure.evidence import COMPUTING, INTERPRETER, STOPPED, WAITING, RankDigest
from holdfast.evidence.pure.hang_kind import kind_of
from holdfast.evidence.pure.rank_digest import Sight
from holdfast.evidence.sources import DumpedStacks, KeptSamples
from holdfast.inplace import guard_main
from holdfast.inplace.guard_main import GuardProcess
from holdfast.inplace.pure.job_calls import EndsHungRank
from holdfast.net import endpoint
from holdfast.net.pure.frames import Decoder
from holdfast.page.page import Page
from holdfast.page.pure import page as layout

STACKS = """Thread 0x1 (most recent call first):
  File "/x/holdfast/inprocess/session.py", line 3 in _watch
Thread 0x2 (most recent call first):
  File "/home/me/data.py", line 4 in load
"""
WORKS_NS = 4_000_000_000
"""Of CPU time, in the five seconds between the looks."""


@pytest.mark.parametrize(
    ("state", "cpu_ns", "switches", "ran_at", "expected"),
    [
        ("S", 0, 40, 14.9, WAITING),
        ("S", 0, 40, 9.0, INTERPRETER),
        ("R", WORKS_NS, 0, 9.0, INTERPRETER),
        ("R", WORKS_NS, 0, 14.9, COMPUTING),
        ("S", 0, 1000, 14.9, COMPUTING),
        ("T", 0, 0, 9.0, STOPPED),
    ],
    ids=["waits", "holds asleep", "holds", "computes", "in turns", "stopped"],
)
def test_how_it_hangs_follows_from_two_looks_and_who_had_the_interpreter_since(
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    cpu_ns: int,
    switches: int,
    ran_at: float,
    expected: str,
) -> None:
    """The last two are at the same instant, when it is late and when it is ended at once."""
    looks = {3.0: (0, 0), 10.0: (0, 0), 15.0: (cpu_ns, switches), 15.001: (cpu_ns, switches)}
    samples = KeptSamples(42)
    for at, (cpu, switched) in looks.items():
        seen = Sight(state, "futex_wait", cpu, switched)
        monkeypatch.setattr(proc_sample, "look_at", lambda _pid, seen=seen: seen)
        samples.sample(at, ran_at)
    digest = digest_of(samples, STACKS)
    assert kind_of(digest) == expected
    assert (digest.rank, digest.pid, digest.place, digest.lacks) == (7, 42, "load data.py:4", "")


def test_a_rank_without_stacks_and_one_that_is_gone_show_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proc_sample, "look_at", lambda _pid: None)
    samples = KeptSamples(42)
    samples.sample(10.0, 1.0)
    digest = digest_of(samples, "")
    assert (digest.state, digest.helper, digest.place) == ("", "", "")
    assert digest.lacks == "no stacks: there was no time"


def digest_of(samples: KeptSamples, text: str) -> RankDigest:
    """The guard's, of a rank with these stacks, before any signal."""
    page = Page(bytearray(layout.PAGE_BYTES))
    page.words[layout.NUMBER] = 8.0
    process: Any = SimpleNamespace(pid=42)
    rank: Any = SimpleNamespace(page=page, process=process)
    stacks = DumpedStacks(process, 0, None, samples=samples)
    stacks.take(text)
    digest = guard_main._digest(rank, Collector([samples, stacks], 0.0, 1e9))
    assert digest is not None
    return digest


def test_what_is_told_of_a_rank_that_hangs_goes_through_one_that_does_not() -> None:
    """The guard has no other voice; the rank that it is about was the first to be asked."""
    told: list[str] = []

    def rank(name: str, why: str) -> Any:
        channel = SimpleNamespace(gone=None, send=lambda _frame: told.append(name))
        return SimpleNamespace(channel=channel, collector=None, log=None, why=why)

    with socket.socket() as listener:
        guard = GuardProcess(listener, "token")
        guard._ranks = {0: rank("hangs", "no progress"), 1: rank("trains", "")}
        guard._log("stacks")
        guard._ranks = {0: rank("hangs", "no progress")}
        guard._log("stacks")
    assert told == ["trains", "hangs"]


def test_each_launcher_on_a_host_is_told_of_a_rank_that_hangs(tmp_path: Path) -> None:
    """Ranks of one host have one guard, also where two launchers have started them."""
    paths = [str(tmp_path / name) for name in ("one", "other")]
    with contextlib.ExitStack() as opened:
        launchers = [opened.enter_context(endpoint.listen(path)) for path in paths]
        guard = GuardProcess(opened.enter_context(socket.socket()), "token")
        each: Any = {n: SimpleNamespace(launcher=paths[n % 2]) for n in range(4)}
        guard._ranks = {**each, 4: SimpleNamespace(launcher=None)}
        ended = EndsHungRank(1, "for 9 s")
        guard._carry_out(ended)
        for launcher in launchers:
            launcher.settimeout(30)
            with launcher.accept()[0] as called:
                assert [*Decoder().feed(called.recv(1 << 16))] == [codec.encode(ended)]
            launcher.setblocking(False)
            with pytest.raises(BlockingIOError):
                launcher.accept()
