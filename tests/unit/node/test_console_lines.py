"""Incidents as people see them on the launcher's console: two lines of 200 characters, and a path.

The table goes through the real reporter, the records of incidents and the handler of the log.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base import clock
from holdfast.evidence.pure.evidence import GroupDigest, RankDigest
from holdfast.evidence.pure.failure import RankEnd
from holdfast.evidence.pure.verdict import judge
from holdfast.evidence.staging import Staging
from holdfast.job.pure.member_messages import CycleStopping, RanksFailed
from holdfast.node.console import LOGGER, PumpHandler, facts_of, log_box
from holdfast.node.pure.console_lines import (
    LINE_CHARS,
    cause_lines,
    fitted,
    restart_words,
    room_on,
)
from holdfast.node.pure.launcher import LauncherEnd, LeaveProcess
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.node.records.incidents import IncidentFolders
from tests.overdue import overdue_section
from tests.unit.node.test_reporter import announcer, rank_end, ranks_of

GLOO = "RuntimeError: [1] Connection closed by peer [127.0.0.1]:41"
MANY = "of_the_fourth_stage_with_rematerialised_activations_and_offloaded_states"


class Console:
    """What one launcher of a job shows."""

    def __init__(self, folder: Path, node: str, form: str = "text") -> None:
        self.lines: list[str] = []
        self.handler = PumpHandler(self, 2, node, form)  # type: ignore[arg-type]
        self.says, self.launcher = announcer(folder, node)
        self.folders = IncidentFolders(
            node, str(folder / "run"), Staging(str(folder / "staged"), str(folder), lambda _: None)
        )

    def write(self, _descriptor: int, data: bytes) -> None:
        """As the output pump."""
        self.lines += data.decode().splitlines()

    def hangs(self, digests: dict[int, RankDigest]) -> IncidentOver:
        """An incident is over."""
        over = IncidentOver(1, 0, (0,), judge(digests, {}), digests, "")
        self.says.incident_over(over)
        self.folders.over(over)
        return over

    def fails(self, *ends: RankEnd, incident: int = 0, seen: int = 0, last: bool = False) -> None:
        """Cycle 0 ends of these; the launcher sees the one at ``seen`` first."""
        self.says.cycle_started(ranks_of(*ends))
        self.lines.clear()
        failure = self.says.ranks_failed(RanksFailed(0, seen, every=True), ends[seen])
        why = "no restart is left (--max-restarts 0)" if last else ""
        left = 0 if last else self.says._plan.max_restarts - 1
        stopping = CycleStopping(
            *(0, failure.cause), here=True, restarts_left=left, no_restart=why, for_good=last
        )
        self.says.stopping(stopping)
        if not last:
            self.says.cycle_started(ranks_of(*ends, cycle=1))
        self.says.explain(0, ranks_of(*ends), will_restart=not last)


@pytest.fixture(name="console", params=["vm", "gpu-a100-0123.cluster.internal"])
def a_console(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Console]:
    yield from shown(Console(tmp_path, request.param))


def shown(console: Console) -> Iterator[Console]:
    LOGGER.addHandler(console.handler)
    level, propagate = LOGGER.level, LOGGER.propagate
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    yield console
    LOGGER.removeHandler(console.handler)
    LOGGER.setLevel(level)
    LOGGER.propagate = propagate


def stopped(rank: int, exit_code: int = -15) -> RankEnd:
    return rank_end(rank, exit_code, 0.01, asked=True)


def killed(rank: int) -> RankEnd:
    return rank_end(rank, -9, 0.1, hang=overdue_section(3.0, 3.0), is_condemned=True)


def digest(rank: int, node: str, **more: Any) -> RankDigest:
    return RankDigest(rank, node, rank, 1000 + rank, state="S", **more)


def a_rank_raises(console: Console) -> None:
    error = "ValueError: bad sample in shard 7"
    console.fails(stopped(0), rank_end(1, 1, 0.1, error=error), stopped(2), seen=1)


def a_rank_raises_a_novel(console: Console) -> None:
    error = "ValueError: " + "a tensor of shape (8, 4096, 4096) does not fit here, " * 20
    console.fails(rank_end(0, 1, 0.1, error=error), *map(stopped, range(1, 8)))


def a_rank_is_killed(console: Console) -> None:
    console.fails(stopped(0), rank_end(1, -9, 0.1), stopped(2), seen=1)


def a_victim_is_seen_first(console: Console) -> None:
    victim = rank_end(0, 1, 0.2, error=GLOO)
    console.fails(victim, rank_end(1, -11, 0.1), stopped(2, -9), seen=0)


def a_rank_is_out_of_memory(console: Console) -> None:
    console.fails(rank_end(0, 1, 0.1, last_lines=["MemoryError"]), *map(stopped, range(1, 512)))


def a_rank_hangs(console: Console) -> None:
    node = console.says._node
    group = GroupDigest("0 gloo", "0-15", 21, 20, pending="all_reduce Float[8]", seq=21)
    waits = {rank: digest(rank, node, groups=(group,)) for rank in range(16)}
    late = GroupDigest("0 gloo", "0-15", 20, 20)
    place = f"load_batch_{MANY} data.py:88"
    waits[5] = digest(5, node, waits_for="lock", place=place, stack="a", groups=(late,))
    console.hangs(waits)
    kept, console.lines = console.lines, []
    console.fails(*map(killed, range(16)))
    console.lines[:0] = kept


def collectives_do_not_match(console: Console) -> None:
    calls = ("barrier", "all_reduce Float[4096, 4096]", "all_reduce Float[4096, 4096]")
    digests = {
        rank: digest(
            *(rank, console.says._node),
            place=f"train_step_{MANY[:30]} train.py:{40 + rank}",
            groups=(GroupDigest("0 gloo", "0-2", 21, 20, pending=call, seq=21),),
        )
        for rank, call in enumerate(calls)
    }
    console.hangs(digests)
    kept, console.lines = console.lines, []
    console.fails(*map(killed, range(3)))
    console.lines[:0] = kept


INCIDENTS: dict[str, tuple[Callable[[Console], None], str, str]] = {
    "a rank raises": (
        a_rank_raises,
        "rank 1 (pid 1001): ValueError (bad sample in shard 7): exit code 1",
        "stopped ranks 0,2; restart 1 of 1 (the last) in 0.1",
    ),
    "... at length": (
        a_rank_raises_a_novel,
        "rank 0 (pid 1000): ValueError (a tensor",
        "stopped ranks 1-7; restart 1 of 1",
    ),
    "a rank is killed": (
        a_rank_is_killed,
        "rank 1 (pid 1001): killed by SIGKILL, not by holdfast",
        "stopped ranks 0,2; restart 1 of 1",
    ),
    "the victim is seen first": (
        a_victim_is_seen_first,
        "cycle 0 ended: rank 1 (pid 1001): killed by SIGSEGV",
        "killed rank 2, rank 0 failed because of it; restart 1 of 1",
    ),
    "out of memory": (
        a_rank_is_out_of_memory,
        "rank 0 (pid 1000): out of host memory: exit code 1",
        "stopped ranks 1-511; restart 1 of 1",
    ),
    "a rank hangs": (a_rank_hangs, "rank 5", "killed ranks 0-15 (section 'step': 3.0 s, timeout 3"),
    "collectives do not match": (
        collectives_do_not_match,
        "rank 0 called `barrier` in `train_step_",
        "killed ranks 0-2 (section",
    ),
}


@pytest.mark.parametrize("name", INCIDENTS)
def test_an_incident_is_two_lines_of_200_characters_and_a_path(console: Console, name: str) -> None:
    """The culprit first; then the ranks that were stopped or killed, and the restart."""
    happens, first, second = INCIDENTS[name]
    happens(console)

    lines = console.lines
    extra = [line for line in lines if re.search(r"holdfast:   (incident|Advice:) ", line)]
    two = [line for line in lines if line not in extra]
    assert len(two) == 2, lines
    assert len(extra) <= 1
    assert all(len(line) <= LINE_CHARS for line in two), lines
    cause, restart = (line.partition(" holdfast: ")[2] for line in two)
    assert cause.startswith(first)
    assert restart.startswith(second)
    assert (" [ERROR] " in two[0], " [WARNING] " in two[1]) == (True, True)
    assert_no_sentence_comes_twice(lines)
    assert "rendezvous" not in " ".join(lines)
    assert "hung" not in " ".join(lines)


def assert_no_sentence_comes_twice(lines: list[str]) -> None:
    texts = [line.partition(" holdfast: ")[2] or line for line in lines]
    parts = [part.strip() for text in texts for part in re.split(r"; |\. |: ", text)]
    sentences = [part for part in parts if len(part.split()) > 3]
    assert len(sentences) == len(set(sentences)), sentences


def test_a_failure_that_ends_the_job_is_said_once_in_its_box(console: Console) -> None:
    console.fails(stopped(0), rank_end(1, -9, 0.1), seen=1, last=True)
    console.says.finish(LeaveProcess(LauncherEnd.FAILED, 1), None)

    assert console.lines[0].startswith("=====")
    assert sum("killed by SIGKILL" in line for line in console.lines) == 1
    assert "to read this run: holdfast report " in console.lines[-1]
    assert "exit code 1" in console.lines[-2]


def test_where_ranks_do_not_exit_the_log_says_what_is_known_after_a_second(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that saves a checkpoint at SIGTERM, or ignores it."""
    ends = rank_end(0, 3, 0.0), stopped(1)
    console.says.cycle_started(ranks_of(*ends))
    console.lines.clear()
    console.launcher.node.alive = {1}
    failure = console.says.ranks_failed(RanksFailed(0, 0, every=True), ends[0])
    assert console.lines == [], "it may be in the box of a job that is over"
    console.says.stopping(CycleStopping(0, failure.cause, here=True, no_restart="w", for_good=True))
    due = console.says.next_deadline()
    assert due is not None
    console.says.on_time()
    assert console.lines == []
    monkeypatch.setattr(clock, "monotonic", lambda: due)
    console.says.on_time()

    assert [line.partition(" holdfast: ")[2] for line in console.lines] == [
        "rank 0 (pid 1000): exit code 3",
        "the job ends: w; waiting for 1 rank to exit, SIGKILL 15 s after SIGTERM",
    ]
    assert console.says.next_deadline() is None


def test_a_victim_has_no_line_before_the_first_cause_however_long_ranks_take(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank that was killed is reaped later than the one that lost its connection to it."""
    ends = rank_end(0, 1, 0.2, error=GLOO), rank_end(1, -9, 0.1), stopped(2)
    console.says.cycle_started(ranks_of(*ends))
    console.lines.clear()
    failure = console.says.ranks_failed(RanksFailed(0, 0, every=True), ends[0])
    console.says.stopping(CycleStopping(0, failure.cause, here=True, restarts_left=0))
    monkeypatch.setattr(clock, "monotonic", lambda: console.says.next_deadline() or 1e9)
    console.says.on_time()
    monkeypatch.undo()
    console.says.cycle_started(ranks_of(*ends, cycle=1))

    texts = [line.partition(" holdfast: ")[2] for line in console.lines]
    assert texts[0] == "restart 1 of 1 (the last) follows"
    assert texts[1].startswith("cycle 0 ended: rank 1 (pid 1001): killed by SIGKILL")
    assert texts[2].startswith("stopped rank 2, rank 0 failed because of it; restart 1 of 1")
    assert len(texts) == 3


def test_a_node_whose_log_has_no_verdict_has_it_in_the_line_of_its_rank(console: Console) -> None:
    """The leader's node logs the incident for all."""
    digests = {1: digest(1, "n1", place="step train.py:9")}
    verdict = judge(digests, {}).but(reason="rank 1 sleeps in `step` train.py:9")
    over = IncidentOver(1, 0, (1,), verdict, digests, "", is_elsewhere=True)
    console.says.incident_over(over)
    console.fails(killed(1))

    assert sum("sleeps in `step`" in line for line in console.lines) == 1
    assert len(console.lines) == 2


def test_lines_that_wait_are_logged_when_the_launcher_ends(console: Console) -> None:
    console.says.ranks_failed(RanksFailed(0, 0, every=True), rank_end(0, 3, 0.0))
    console.says.end()
    assert "exit code 3" in console.lines[0]


@pytest.mark.parametrize(
    ("text", "room", "tail", "expected"),
    [
        ("short", 100, "", "short"),
        ("short", 100, " tail", "short tail"),
        (
            "one two three " * 10,
            60,
            "",
            "one two three " * 3 + "one two three...",
        ),
        ("x" * 90, 60, "", "x" * 57 + "..."),
        ("word " * 30, 100, "; the tail", "word " * 16 + "word...; the tail"),
    ],
)
def test_the_end_of_a_long_text_goes_first(text: str, room: int, tail: str, expected: str) -> None:
    assert fitted(text, room, tail) == expected
    assert len(fitted(text, room, tail)) <= room


def test_advice_has_a_line_of_its_own_where_it_needs_one() -> None:
    assert cause_lines("rank 0 failed", "wait", 100) == ["rank 0 failed. Advice: wait"]
    assert cause_lines("rank 0 failed", "wait " * 19, 100)[0] == "rank 0 failed"


def test_the_last_restart_is_called_so() -> None:
    assert restart_words(1, 3) == "restart 1 of 3"
    assert restart_words(1, 1) == "restart 1 of 1 (the last)"
    assert restart_words(3, 3, 3600.0) == "restart 3 of 3 (the last within 1 h 00 min)"


def test_a_long_name_of_a_node_leaves_room_for_a_message() -> None:
    assert room_on("vm") == LINE_CHARS - len("2026-01-31 23:59:59,999 [WARNING] [vm] holdfast: ")
    assert room_on("n" * 300) == 100


# ---------------------------------------------------------------- --ft-log-format json
def test_each_line_is_an_object_for_log_collectors(tmp_path: Path) -> None:
    """With its cycle and rank, else the cycle that the node is in; so is a box, without rules."""
    for console in shown(Console(tmp_path, "n0", "json")):
        console.handler._cycle = lambda: 4
        LOGGER.error("rank %d\tfailed", 3, extra=facts_of(2, 3))
        LOGGER.info("a line")
        log_box("FAILED\nFirst cause", "====\nFAILED\n====", facts_of(2, 4))
        console.handler._cycle = lambda: -1
        LOGGER.info("no cycle yet")

        found = [json.loads(line) for line in console.lines]
        assert [each.pop("time")[-1] for each in found] == ["Z"] * 4
        assert found == [
            {"level": "ERROR", "node": "n0", "cycle": 2, "rank": 3, "text": "rank 3\tfailed"},
            {"level": "INFO", "node": "n0", "cycle": 4, "text": "a line"},
            {
                "level": "CRITICAL",
                "node": "n0",
                "cycle": 2,
                "rank": 4,
                "text": "FAILED\nFirst cause",
            },
            {"level": "INFO", "node": "n0", "text": "no cycle yet"},
        ]
