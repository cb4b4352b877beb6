"""How much memory is left, on the node and in control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.base import memory
from holdfast.standby import memory_left

MIB = 1 << 20


def group(folder: Path, files: dict[str, str]) -> int | None:
    for name, text in files.items():
        (folder / name).write_text(text)
    return memory._of_a_group(str(folder))


def test_the_node_has_some() -> None:
    available = memory.available_kib()

    assert available is None or available > 0


@pytest.mark.parametrize(
    ("limit", "use", "field"),
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_a_group_leaves_what_is_not_used_or_can_be_given_back(
    tmp_path: Path, limit: str, use: str, field: str
) -> None:
    """Both versions."""
    files = {limit: f"{100 * MIB}", use: f"{90 * MIB}", "memory.stat": f"anon 1\n{field} {5 * MIB}"}

    assert group(tmp_path, files) == 15 * 1024


def test_a_group_without_limit_leaves_everything(tmp_path: Path) -> None:
    assert group(tmp_path, {"memory.max": "max\n", "memory.current": "5"}) is None
    assert memory._of_a_group(str(tmp_path / "not there")) is None


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    assert group(tmp_path, {"memory.max": "5", "memory.current": "9999"}) == 0


def test_above_a_groups_high_limit_processes_are_slowed_down(tmp_path: Path) -> None:
    """So that is the limit."""
    files = {"memory.max": f"{100 * MIB}", "memory.high": f"{60 * MIB}"}

    assert group(tmp_path, {**files, "memory.current": f"{50 * MIB}"}) == 10 * 1024


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, None),
        ({"memory.oom.group": "0", "memory.oom_control": "oom_kill_disable 0"}, None),
        ({"memory.oom.group": "1"}, "memory.oom.group is 1"),
        ({"memory.oom_control": "oom_kill_disable 1\nunder_oom 0"}, "stops all processes"),
    ],
)
def test_where_the_score_of_a_process_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], reason: str | None
) -> None:
    """Kubernetes sets memory.oom.group: with one process, the kernel ends all of a container."""
    if int(Path("/proc/self/oom_score_adj").read_text()) > 0:
        pytest.skip("this process has a score of its own")
    monkeypatch.setattr(memory, "groups", lambda: [str(tmp_path)])
    monkeypatch.setattr(memory, "commit_is_limited", lambda: False)
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    found = memory_left.why_score_decides_nothing()

    assert found is None if reason is None else reason in str(found)


def test_with_a_commit_limit_allocations_fail_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "commit_is_limited", lambda: True)

    assert "overcommit" in str(memory_left.why_score_decides_nothing())
    assert (memory.available_kib() or 0) >= 0
