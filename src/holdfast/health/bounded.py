"""Run probes side by side, each within its bound: one that hangs delays no other.

A probe may hang where no bound of its own helps: in a driver, or a file system. It is left alone in
its thread then, and not started again before it has come back.
"""

from __future__ import annotations

import functools
import queue
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.base import clock
from holdfast.base.bounded import CallInThread
from holdfast.health.pure.health import Finding, Fitness

Say = Callable[[Finding], None]


@dataclass(frozen=True)
class BoundedProbe:
    """A probe, called in a thread of its own, and how long it may take."""

    name: str
    bound_s: float
    look: Callable[[], list[Finding]]


class BoundedChecks:
    """Runs checks. Not for two threads at once."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[float, CallInThread[list[Finding]]]] = {}
        """The last call of each check, and when it began."""

    def hangs(self, name: str) -> bool:
        """Whether the check of this name has not come back."""
        return name in self._calls and not self._calls[name][1].has_ended()

    def run(self, checks: Iterable[BoundedProbe], say: Say) -> None:
        """All of them at once; ``say`` is called here with each finding, as it comes.

        Returns when all have answered, or the bound of those that have not is over. Late findings
        belong to an earlier question, and are dropped.
        """
        began_at = clock.monotonic()
        ended: queue.SimpleQueue[str] = queue.SimpleQueue()
        waiting: dict[str, BoundedProbe] = {}
        for check in checks:
            if self.hangs(check.name):
                since_s = began_at - self._calls[check.name][0]
                say(_unknown(check.name, f"hangs since {since_s:.0f} s"))
                continue
            waiting[check.name] = check
            on_end = functools.partial(ended.put, check.name)
            self._calls[check.name] = began_at, CallInThread(check.look, check.name, on_end)
        while waiting:
            next_bound_s = min(check.bound_s for check in waiting.values())
            try:
                left_s = max(0.0, began_at + next_bound_s - clock.monotonic())
                name = ended.get(timeout=left_s)
            except queue.Empty:
                for check in list(waiting.values()):
                    if check.bound_s <= next_bound_s:
                        del waiting[check.name]
                        say(_unknown(check.name, f"did not answer within {check.bound_s:g} s"))
                continue
            if waiting.pop(name, None) is not None:
                for finding in _findings(name, self._calls[name][1]):
                    say(finding)


def _findings(name: str, call: CallInThread[list[Finding]]) -> list[Finding]:
    try:
        return call.result()
    except Exception as error:  # noqa: BLE001 - a probe that fails knows nothing
        return [_unknown(name, f"{type(error).__name__}: {error}")]


def _unknown(name: str, text: str) -> Finding:
    return Finding(name, "check", Fitness.UNKNOWN, text)
