"""Very many interrupts of a main thread that stamps its progress: ``make soak-inprocess``.

The watcher's two tools are used together, as ``inplace/session.py`` does, but without a pause
between them: stamps are asked for and interrupts are repeated as fast as the interpreter allows.
The main thread meanwhile sleeps, computes, and starts threads, which blocks all of its signals for
a moment each time. Each interrupt has to end the function that may be interrupted, with the
exception that was asked for, or with an error that clean-up on its way raised because of it
(``Condition.wait`` has a window in which it releases a lock twice). Whatever else is raised
anywhere is counted as stray.

    python -m tests.interrupt_stress --interrupts 100000
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.inplace.interrupt import MainThreadInterrupt
from holdfast.page.stamps import Stamps


class Restart(BaseException):
    """What is raised in the main thread."""


@dataclass
class Outcome:
    """What happened to all interrupts.

    Attributes:
        arrived: Interrupts that ended the function, as they should.
        replaced: Those of them that ended it as another error, raised by clean-up.
        strays: Anything else that was raised, by its text, and how often.
        stamped: How often the main thread's stamp moved.
    """

    arrived: int = 0
    replaced: int = 0
    strays: Counter[str] = field(default_factory=Counter)
    stamped: int = 0


def _sleep() -> None:
    while True:
        time.sleep(0.0002)


def _spin() -> None:
    while True:
        pass


def _start_threads() -> None:
    while True:
        threading.Thread(target=int, daemon=True).start()


_WORK: tuple[Callable[[], None], ...] = (_spin, _start_threads, _sleep, _start_threads)


def _is_because_of_restart(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, Restart):
        error = error.__context__
    return error is not None


def interrupt_often(interrupts: int, bound_s: float) -> Outcome:
    """Interrupt the calling thread, the main thread, so many times."""
    outcome = Outcome()
    words = memoryview(bytearray(16)).cast("d")
    stamps = Stamps(words, main=0, thread=1)
    interrupt = MainThreadInterrupt()
    over = threading.Event()
    wanted = threading.Event()

    def watch() -> None:
        while not over.is_set():
            wanted.wait(0.1)
            wanted.clear()
            interrupt.request()
            while interrupt.is_requested and not over.is_set():
                stamps.beat()
                interrupt.deliver_again()

    def unraisable(problem: Any) -> None:
        outcome.strays[f"lost in {problem.object!r}: {problem.exc_value!r}"] += 1

    watcher = threading.Thread(target=watch)
    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    stamps.begin()
    watcher.start()
    give_up_at = time.monotonic() + bound_s
    try:
        for number in range(interrupts):
            before = words[0]
            wanted.set()
            try:
                interrupt.run(_WORK[number % len(_WORK)], Restart)
            except Restart:
                outcome.arrived += 1
            except BaseException as error:  # noqa: BLE001 - that is what is looked for
                if _is_because_of_restart(error):
                    outcome.arrived += 1
                    outcome.replaced += 1
                else:
                    outcome.strays[repr(error)] += 1
            outcome.stamped += words[0] != before
            if time.monotonic() > give_up_at:
                outcome.strays[f"not done after {bound_s:g} s"] += 1
                break
    finally:
        over.set()
        wanted.set()
        watcher.join()
        stamps.end()
        interrupt.close()
        sys.setswitchinterval(interval)
        sys.unraisablehook = hook
    return outcome


def main(arguments: list[str] | None = None) -> int:
    """Interrupt, and say what was wrong; 0 if nothing was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interrupts", type=int, default=100_000)
    parsed = parser.parse_args(arguments)
    began = time.monotonic()
    outcome = interrupt_often(parsed.interrupts, 60 + parsed.interrupts * 0.02)
    took_s = time.monotonic() - began
    print(
        f"{outcome.arrived} of {parsed.interrupts} interrupts arrived in {took_s:.0f} s, "
        f"{outcome.replaced} as another error, {outcome.stamped} with a new stamp; "
        f"{outcome.strays.total()} strays"
    )
    for text, times in outcome.strays.most_common():
        print(f"  {times} x {text}")
    return 0 if outcome.arrived == parsed.interrupts and not outcome.strays else 1


if __name__ == "__main__":
    sys.exit(main())
