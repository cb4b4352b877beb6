"""How much memory is left, on the node and in control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.host import memory

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
