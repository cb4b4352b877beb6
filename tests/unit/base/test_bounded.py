"""Calls in threads of their own."""

from __future__ import annotations

import threading

import pytest

from holdfast.base.bounded import CallInThread, call_within
from holdfast.base.file_writer import FileWriter


def _refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_system_without_room_for_a_thread_is_one_error_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a user with ``ulimit -u`` too low: an OSError with the remedy, not a traceback."""
    monkeypatch.setattr(threading.Thread, "start", _refuse)
    ended: list[bool] = []
    late = CallInThread(lambda: None, on_end=lambda: ended.append(True))

    assert (late.has_ended(5.0), ended) == (True, [True])
    with pytest.raises(OSError, match=r"no thread; raise the user's limit .*ulimit -u"):
        late.result()
    with pytest.raises(OSError, match="ulimit -u"):
        call_within(5.0, lambda: None)
    with pytest.raises(OSError, match="ulimit -u"):
        FileWriter("/tmp")
