"""How long a start waits for GPU memory: the decision on a virtual clock, and the wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping

import pytest

from holdfast.base.processes import system_calls
from holdfast.health.gpu_memory import wait
from holdfast.health.pure.reclaim import Over, Reclaim, Wait
from tests.unit.base.test_system_calls import not_implemented


def test_free_memory_is_not_waited_for() -> None:
    over = Reclaim(50.0, 512.0, 2.0).look({"GPU 0": 4.0, "GPU 1": 512.0}, 7.0)
    assert isinstance(over, Over)
    assert over.is_free
    assert over.text == "GPU memory is free after 0.00 s: GPU 0: 4 MiB; GPU 1: 512 MiB"


def test_where_there_is_no_driver_nothing_is_waited_for() -> None:
    over = Reclaim(50.0, 512.0, 2.0).look({}, 7.0)
    assert isinstance(over, Over)
    assert (over.is_free, over.n_gpus) == (True, 0)


def test_looks_begin_close_together_and_are_never_further_apart_than_asked() -> None:
    reclaim, now, waits = Reclaim(50.0, 512.0, 2.0), 100.0, []
    for _ in range(12):
        step = reclaim.look({"GPU 0": 80000.0}, now)
        assert isinstance(step, Wait)
        waits.append(step.seconds)
        now += step.seconds
    assert waits[:3] == [0.01, 0.02, 0.04]
    assert max(waits) == 2.0
    over = reclaim.look({"GPU 0": 3.0}, now)
    assert isinstance(over, Over)
    assert over.is_free
    assert ": GPU 0: 3 MiB (before that 80000 MiB at 0.00 s, " in over.text


def test_each_gpu_has_its_own_figures() -> None:
    """What is in use now, at the first look, and at the last three looks before it was free."""
    reclaim = Reclaim(50.0, 512.0, 2.0)
    for at, first, second in [(0, 9000, 8000), (1, 7000, 6000), (2, 5000, 40), (3, 900, 30)]:
        reclaim.look({"GPU 0": first, "GPU 1": second, "GPU 2": 7}, 100.0 + at)
    reclaim.look({"GPU 0": 800, "GPU 1": 20, "GPU 2": 7}, 104.0)

    assert reclaim.look({"GPU 0": 10, "GPU 1": 20, "GPU 2": 7}, 105.0) == Over(
        is_free=True,
        n_gpus=3,
        text="GPU memory is free after 5.00 s: GPU 0: 10 MiB (before that 9000 MiB at 0.00 s, "
        "5000 MiB at 2.00 s, 900 MiB at 3.00 s, 800 MiB at 4.00 s); GPU 1: 20 MiB (before that "
        "8000 MiB at 0.00 s, 6000 MiB at 1.00 s); GPU 2: 7 MiB",
    )


def test_after_its_time_the_start_goes_on_and_says_what_is_in_use() -> None:
    """The last wait ends with it, not after it."""
    reclaim = Reclaim(1.0, 512.0, 2.0)
    assert reclaim.look({"GPU 0": 700.0, "GPU 1": 3.0}, 10.0) == Wait(0.01)
    assert isinstance(step := reclaim.look({"GPU 0": 700.0}, 10.99), Wait)
    assert step.seconds < 0.011
    over = reclaim.look({"GPU 0": 650.0, "GPU 1": 3.0}, 11.0)
    assert isinstance(over, Over)
    assert not over.is_free
    assert "still in use 1.0 s after the ranks have ended: GPU 0: 650 MiB (before" in over.text
    assert over.text.endswith(
        "700 MiB at 0.99 s) (tolerance 512 MiB); free: GPU 1: 3 MiB; starting anyway"
    )


def test_who_waits_for_long_is_told_once_what_for() -> None:
    reclaim = Reclaim(50.0, 512.0, 2.0)
    texts = [reclaim.look({"GPU 0": 700.0}, at) for at in (0.0, 0.99, 1.0, 1.5)]
    assert [bool(step.text) for step in texts] == [False, False, True, False]
    told = (
        "waiting for GPU memory, in use 1.0 s after the ranks have ended: GPU 0: 700 MiB; at most"
    )
    assert texts[2].text.startswith(told)


def test_what_others_used_before_the_first_rank_is_not_waited_for() -> None:
    """A node that shares its GPUs would wait to the end at each restart."""
    reclaim = Reclaim(50.0, 512.0, 2.0, {"GPU 0": 4000.0, "GPU 1": 100.0})
    assert isinstance(reclaim.look({"GPU 0": 4400.0, "GPU 1": 500.0}, 0.0), Over)
    assert isinstance(reclaim.look({"GPU 0": 4400.0, "GPU 1": 550.0}, 0.0), Wait)


class LooksOnceAnHour(Reclaim):
    def look(self, used_mib: Mapping[str, float], now: float) -> Wait | Over:
        step = super().look(used_mib, now)
        return step if isinstance(step, Over) else Wait(3600.0)


@pytest.mark.parametrize("has_pidfds", [True, False])
def test_the_end_of_a_process_that_holds_memory_is_not_slept_through(
    has_pidfds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait looks again when it dies, however long it would have slept."""
    if not has_pidfds:
        monkeypatch.setattr(system_calls, "pidfd_open", not_implemented)
    holder = subprocess.Popen(["sleep", "1000"])
    timer = threading.Timer(0.02, holder.kill)

    def used() -> Mapping[str, float]:
        if timer.ident is None:
            timer.start()
        return {"GPU 0": 1.0 if holder.poll() is not None else 9000.0}

    over = wait(LooksOnceAnHour(1e6, 512.0, 1e6), used, lambda: [holder.pid, 2**22 - 1], print)

    assert over.is_free
    assert holder.wait() == -signal.SIGKILL


def test_the_end_of_a_process_between_the_two_looks_is_not_slept_through() -> None:
    """At the memory, which it held, and at the process, which has ended: that is news once."""
    holder = subprocess.Popen(["sleep", "1000"])

    def used() -> Mapping[str, float]:
        return {"GPU 0": 1.0 if holder.poll() is not None else 9000.0}

    def holders() -> list[int]:
        holder.kill()
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        return [holder.pid]

    assert wait(LooksOnceAnHour(1e6, 512.0, 1e6), used, holders, print).is_free


def test_a_process_that_has_ended_and_is_still_named_wakes_nobody() -> None:
    """Drivers name it while they free its memory: a wait that it ended at once would spin."""
    holder = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # it stays, as a zombie
    n_looks = 0

    def used() -> Mapping[str, float]:
        nonlocal n_looks
        n_looks += 1
        return {"GPU 0": 9000.0}

    over = wait(Reclaim(0.5, 512.0, 0.1), used, lambda: [holder.pid], print)

    assert not over.is_free
    assert n_looks <= 10, "10 ms, doubled to 100"
    assert holder.wait() == 0
