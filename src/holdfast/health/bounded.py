"""Run probes side by side, each within its bound: one that hangs delays no other.

A probe may hang where no bound of its own helps: in a driver, or a file system. It is left alone in
its thread then, and not started again before it has come back.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.base import clock
from holdfast.health.pure.health import Finding, Verdict

Say = Callable[[Finding], None]


@dataclass(frozen=True)
class Check:
    """A probe with its parameters.

    Attributes:
        name: As in :attr:`.Finding.probe`.
        bound_s: How long it may take.
        look: Called in a thread of its own.
    """

    name: str
    bound_s: float
    look: Callable[[], list[Finding]]


class BoundedChecks:
    """Runs checks. Not for two threads at once."""

    def __init__(self) -> None:
        self._stuck: dict[str, float] = {}
        """Checks that have not come back, and since when they run."""
        self._results: queue.SimpleQueue[tuple[str, list[Finding]]] = queue.SimpleQueue()

    def hangs(self, name: str) -> bool:
        """Whether the check of this name has not come back."""
        self._take_late_ones()
        return name in self._stuck

    def run(self, checks: Iterable[Check], say: Say) -> None:
        """All of them at once; ``say`` is called here with each finding, as it comes.

        Returns when all have answered, or the bound of those that have not is over.
        """
        began_at = clock.monotonic()
        self._take_late_ones()
        waiting: dict[str, Check] = {}
        for check in checks:
            if (since := self._stuck.get(check.name)) is not None:
                say(_unknown(check.name, f"hangs since {began_at - since:.0f} s"))
                continue
            waiting[check.name] = check
            self._stuck[check.name] = began_at
            threading.Thread(target=self._look, args=(check,), name=check.name, daemon=True).start()
        while waiting:
            next_bound_s = min(check.bound_s for check in waiting.values())
            try:
                left_s = max(0.0, began_at + next_bound_s - clock.monotonic())
                name, findings = self._results.get(timeout=left_s)
            except queue.Empty:
                for check in list(waiting.values()):
                    if check.bound_s <= next_bound_s:
                        del waiting[check.name]
                        say(_unknown(check.name, f"did not answer within {check.bound_s:g} s"))
                continue
            self._stuck.pop(name, None)
            if waiting.pop(name, None) is not None:
                for finding in findings:
                    say(finding)

    def _look(self, check: Check) -> None:
        try:
            findings = check.look()
        except Exception as error:  # noqa: BLE001 - a probe that fails knows nothing
            findings = [_unknown(check.name, f"{type(error).__name__}: {error}")]
        self._results.put((check.name, findings))

    def _take_late_ones(self) -> None:
        """What they found is of an earlier question."""
        while True:
            try:
                name, _ = self._results.get_nowait()
            except queue.Empty:
                return
            self._stuck.pop(name, None)


def _unknown(name: str, text: str) -> Finding:
    return Finding(name, "check", Verdict.UNKNOWN, text)
