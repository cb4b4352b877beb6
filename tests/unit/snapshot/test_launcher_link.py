"""Requests of a rank to its launcher."""

from __future__ import annotations

import os
from collections import deque

import pytest

from holdfast.arena.pure.messages import Arena, SnapshotAwaited
from holdfast.base.pure.codec import encode
from holdfast.snapshot._launcher_link import LauncherLink


def test_a_rank_whose_snapshot_is_on_its_way_asks_until_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each answer comes when the launcher has one, or within seconds: nothing is polled."""
    fd = os.open("/dev/null", os.O_RDONLY)
    awaited, there = (encode(SnapshotAwaited()), []), (encode(Arena(2, 1)), [fd])
    answers = deque([awaited, awaited, there])
    monkeypatch.setattr(LauncherLink, "_ask", lambda *_: answers.popleft())
    try:
        assert LauncherLink("", 0).open_arena(4096, 2) == (Arena(2, 1), fd)
    finally:
        os.close(fd)
