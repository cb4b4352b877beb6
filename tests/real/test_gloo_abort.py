"""Real ranks, blocked in real collectives of gloo, come back long before the group's timeout."""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.processes.proc import process_state
from tests.waiting import BOUND_S, until

pytest.importorskip("torch")

GROUP_TIMEOUT_S = 60.0
"""Of gloo_rank.py."""
SOON_S = GROUP_TIMEOUT_S / 4
"""What nothing may take on a busy machine; alone, the slowest takes 0.03 s."""


class Rank:
    def __init__(self, rank: int, size: int, folder: Path) -> None:
        self.errors = folder / f"errors{rank}"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    Path(__file__).with_name("gloo_rank.py"),
                    *map(str, (rank, size, folder)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_SHOW_CPP_STACKTRACES": "0"},
            )
        self._said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # gloo of torch 2.9 writes lines of its own
                self._said.put(json.loads(line))

    def tell(self, what: str, epoch: int = 0) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": what, "epoch": epoch}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            code = self.process.wait(BOUND_S)
            raise AssertionError(
                f"it ended with {code}: {self.errors.read_text()[-3000:]}"
            ) from None

    def listen(self) -> dict[str, Any]:
        """The next thing it says."""

        def next_said() -> dict[str, Any] | None:
            try:
                return self._said.get(timeout=0.05)
            except queue.Empty:
                assert self.process.poll() is None, self.errors.read_text()[-3000:]
                return None

        bound_s = 2 * GROUP_TIMEOUT_S
        return until(next_said, f"{process_state(self.process.pid)!r} speaks", bound_s)

    def hear(self, key: str) -> Any:
        """The next thing it says, which must be about ``key``."""
        said = self.listen()
        assert key in said, said
        return said[key]

    def is_blocked(self) -> bool:
        """Its main thread has slept and not run for a moment."""

        def switches() -> list[str]:
            status = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/status").read_text()
            return [line for line in status.splitlines() if "ctxt_switches" in line]

        before = switches()
        threading.Event().wait(0.03)
        state = process_state(self.process.pid)
        return state is not None and state.state == "S" and switches() == before

    def finish(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(BOUND_S)
        self._reader.join(BOUND_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


class Ranks:
    """The last one is the one that keeps the others waiting."""

    def __init__(self, size: int, folder: Path) -> None:
        self.all = [Rank(rank, size, folder) for rank in range(size)]
        self.epoch = 0
        for rank in self.all:
            rank.hear("ready")

    @property
    def waiting(self) -> list[Rank]:
        return self.all[:-1]

    @property
    def stuck(self) -> Rank:
        return self.all[-1]

    def start(self, what: str) -> None:
        self.epoch += 1
        for rank in self.all:
            rank.tell(what, self.epoch)

    def abort(self, ranks: list[Rank]) -> list[str]:
        """Abort; what came out of the operation, once all are back soon."""
        for rank in ranks:
            rank.tell("abort")
        outcomes = []
        for rank in ranks:
            facts = {}
            for _ in range(2):  # the watcher and the main thread, in any order
                facts.update(rank.listen())
            assert facts["back_s"] < SOON_S
            outcomes.append(facts["out"])
        for rank in ranks:
            rank.tell("release")
        for rank in ranks:
            rank.hear("released")
        return outcomes

    def close(self) -> None:
        for rank in self.all:
            rank.process.kill()
            rank.process.wait()
            rank._reader.join(BOUND_S)
            for pipe in (rank.process.stdin, rank.process.stdout):
                assert pipe is not None
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    made = Ranks(3, tmp_path_factory.mktemp("gloo"))
    yield made
    made.close()


OPERATIONS = (
    "all_reduce",
    "barrier",
    "send",
    "recv",
    "groups",
    "monitored",
    "ddp",
    "lazy",
    "lazy_unconnected",
    "tcp_wait",
)


@pytest.mark.parametrize("what", OPERATIONS)
def test_who_waits_for_a_stuck_rank_comes_back(ranks: Ranks, what: str) -> None:
    """And the same processes form a group again, in the next of these tests."""
    ranks.start(what)
    for rank in ranks.waiting:
        rank.hear("entered")
    for rank in ranks.waiting:
        until(rank.is_blocked, f"{what} blocks")
    assert all(ranks.abort(ranks.all))


@pytest.mark.parametrize("what", ["mesh", "tcp_rendezvous"])
def test_who_waits_for_a_rank_to_join_comes_back(ranks: Ranks, what: str) -> None:
    """A peer that is stuck before it connects, or before it says where it is."""
    ranks.start(what)
    for rank in ranks.waiting:
        until(rank.is_blocked, f"{what} blocks")
    assert all(ranks.abort(ranks.all))


@pytest.mark.parametrize("what", ["all_reduce", "send"])
def test_who_waits_for_a_stopped_process_comes_back(ranks: Ranks, what: str) -> None:
    """It aborts by itself when it is continued."""
    ranks.start(what)
    for rank in ranks.waiting:
        rank.hear("entered")
    until(ranks.stuck.is_blocked, "the stuck one is")
    os.kill(ranks.stuck.process.pid, signal.SIGSTOP)
    try:
        for rank in ranks.waiting:
            until(rank.is_blocked, f"{what} blocks")
        assert all(ranks.abort(ranks.waiting))
    finally:
        os.kill(ranks.stuck.process.pid, signal.SIGCONT)
    ranks.abort([ranks.stuck])


def test_receives_without_a_peer_and_half_done_transfers_come_back(ranks: Ranks) -> None:
    """Through gloo's own function, once a child process has shown that it works here."""
    for rank in ranks.all:
        rank.tell("prepare")
    assert [rank.hear("is_safe") for rank in ranks.all] == [True] * 3
    ranks.start("any_source")
    for rank in ranks.waiting:
        rank.hear("entered")
        until(rank.is_blocked, "the receive blocks")
    assert all(ranks.abort(ranks.all))
    for _ in range(3):
        ranks.start("transfer")
        for rank in ranks.waiting:
            rank.hear("entered")
        threading.Event().wait(0.05)  # they send without a pause; any instant will do
        assert all(ranks.abort(ranks.all))


def test_nothing_grows_and_nothing_is_left_behind(ranks: Ranks) -> None:
    """Descriptors, threads, copies of sockets, wrappers of the hook for exceptions."""

    def facts() -> list[dict[str, Any]]:
        for rank in ranks.all:
            rank.tell("facts")
        return [rank.listen() for rank in ranks.all]

    def restart() -> None:
        ranks.start("all_reduce")
        for rank in ranks.waiting:
            rank.hear("entered")
        ranks.abort(ranks.all)

    restart()
    before = facts()
    for _ in range(10):
        restart()

    def has_not_grown() -> bool:  # a thread that has ended may still be listed for a moment
        return all(
            now[key] <= was[key] for now, was in zip(facts(), before, strict=True) for key in was
        )

    until(has_not_grown, f"no more than {before}")
    assert all(fact["is_hook_ours"] and fact["held"] == 0 for fact in [*before, *facts()])


def test_survivors_of_a_killed_rank_come_back_and_all_exit(ranks: Ranks) -> None:
    """Those that did not talk to it, too; the interpreter ends while groups are destroyed."""
    ranks.start("kill")
    for rank in ranks.waiting:
        rank.hear("entered")
    ranks.stuck.process.kill()
    assert all(ranks.abort(ranks.waiting))
    for rank in ranks.waiting:
        assert rank.finish() == 0
        assert "terminate called" not in rank.errors.read_text()


def test_no_restart_in_a_storm_of_collectives_stalls(tmp_path: Path) -> None:
    """60 aborts at any instant of all_reduces that never pause; all four are back each time."""
    ranks = Ranks(4, tmp_path)
    chance = random.Random(4)
    try:
        for _ in range(60):
            ranks.start("storm")
            for rank in ranks.all:
                rank.hear("entered")
            threading.Event().wait(chance.uniform(0.0, 0.01))
            chance.shuffle(ranks.all)
            ranks.abort(ranks.all)
    finally:
        ranks.close()
