"""The helper thread of a rank, where it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.net import endpoint
from holdfast.watch.rank import look_helper
from holdfast.watch.rank.rank_info import RankInfo


def test_a_rank_without_room_for_a_thread_runs_without_its_helper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that stayed silent would say that the interpreter's lock is held."""

    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(look_helper._thread, "start_new_thread", refuse)
    path = str(tmp_path / "s")
    with endpoint.listen(path) as monitor:
        helper = look_helper.LookHelper(path, RankInfo(3, 1))
        connected, _ = monitor.accept()
        with connected:
            assert b'"helper"' in connected.recv(4096)
            assert connected.recv(4096) == b""
        helper.close()
