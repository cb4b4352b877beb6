"""Whose optimizer steps are heartbeats of a rank."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.watch.monitor.step_source import StepSource
from holdfast.watch.pure.rank_messages import Hello

RANK, EXECUTED, FORKED = 100, 0x400000, 0x400040


class Lines:
    """What a monitor says."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def log(self, level: str, text: str) -> None:
        self.said.append((level, text))


def processes(root: Path, *programs: str, session: int = RANK, flags: int = EXECUTED) -> int:
    """A /proc with one below the other, the first of them a rank; the pid of the last."""
    parent = os.getppid()
    for pid, program in enumerate(programs, RANK):
        folder = root / str(pid)
        folder.mkdir()
        fields = f"S {parent} {session} {session} 0 -1 {flags} {'0 ' * 12}1"
        (folder / "stat").write_text(f"{pid} ({program}) {fields}")
        (folder / "exe").symlink_to(f"/usr/bin/{program}")
        parent = pid
    return parent


@pytest.mark.parametrize(
    ("programs", "is_rank"),
    [
        (("python3.11",), True),
        (("dash", "python3.11"), True),
        (("uv", "bash", "pypy3.10"), True),
        (("python3.11", "python3.11"), False),
        (("python3", "dash", "python3"), False),
        (("dash", "python3.11", "python3.11"), False),
    ],
    ids=["rank", "below a shell", "below tools", "child", "child's child", "wrapped child"],
)
def test_a_python_below_a_python_is_not_the_rank(
    tmp_path: Path, programs: tuple[str, ...], *, is_rank: bool
) -> None:
    """The upper one ignores PYTHONPATH, or the lower one would not have found the hook."""
    pid, lines = processes(tmp_path, *programs), Lines()
    source = StepSource(lines.log, str(tmp_path))

    why = [source.rejects(pid, Hello(0, pid, by_steps=True)) for _ in range(2)]

    assert why == ([None] * 2 if is_rank else [f"process {pid} is not the rank"] * 2)
    assert source.rejects(pid, Hello(0, pid)) is None, "a client of its own is its own affair"
    if is_rank:
        assert not lines.said
    else:
        [(level, text)] = lines.said
        assert level == "warning"
        assert f"steps of process {pid} do not count as heartbeats" in text


def test_an_orphan_that_the_launcher_has_adopted_is_not_the_rank(tmp_path: Path) -> None:
    """It has the launcher for a parent, as ranks have; but each rank leads a session."""
    pid, lines = processes(tmp_path, "python3.11", session=RANK - 1), Lines()
    assert StepSource(lines.log, str(tmp_path)).rejects(pid, Hello(1, pid, by_steps=True))
    [(level, _)] = lines.said
    assert level == "debug", "rank 0 says it for all"


def test_a_fork_of_a_rank_is_rejected_without_a_word(tmp_path: Path) -> None:
    """The steps of the rank itself count."""
    pid, lines = processes(tmp_path, "python3.11", "python3.11", flags=FORKED), Lines()
    assert StepSource(lines.log, str(tmp_path)).rejects(pid, Hello(0, pid, by_steps=True))
    assert not lines.said


@pytest.mark.parametrize("pid", [0, RANK, RANK + 7], ids=["unseen", "elsewhere", "gone"])
def test_a_process_of_unknown_descent_may_be_the_rank(tmp_path: Path, pid: int) -> None:
    """In another pid namespace, or not below the launcher."""
    processes(tmp_path, "python3.11")
    (tmp_path / str(RANK) / "stat").write_text(f"{RANK} (python3.11) S 0 {RANK} {RANK}{' 0' * 16}")
    lines = Lines()
    assert StepSource(lines.log, str(tmp_path)).rejects(pid, Hello(0, pid, by_steps=True)) is None
    assert not lines.said
