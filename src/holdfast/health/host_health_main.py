"""The health process of a node: looks at the host when the launcher asks, and now and then.

    launcher ──ConfigureHealth, Ask──►  this process ──► probes, each in a thread, within its bound
             ◄─Found, Answered, Note──               ──► the node health service
             ◄─Noticed────────────────               ──► GPU memory, until it is free

A process of its own, because drivers and file systems hang. It reports facts and decides nothing
(:mod:`holdfast.health.pure.gate`); while no fact is bad it sends answers only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.processes.bare_process import ignore_signals
from holdfast.base.processes.rank_boot import die_with_parent
from holdfast.base.pure import codec
from holdfast.base.pure.codec import decode
from holdfast.base.pure.common_events import Note
from holdfast.base.pure.never import assert_never
from holdfast.health.bounded import BoundedChecks, BoundedProbe
from holdfast.health.checks import Checks
from holdfast.health.messages import (
    PROBES_S,
    TO_HEALTH,
    ConfigureHealth,
    FromHealth,
    HealthConfig,
    ToHealth,
)
from holdfast.health.pure.gate import Answered, Ask, Found, Noticed
from holdfast.health.pure.health import Finding, Fitness
from holdfast.net.client import Client
from holdfast.net.pure.frames import FrameError

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTROL_FD = 3


class HostHealth:
    """Answers one launcher until it hangs up."""

    def __init__(self, control: socket.socket) -> None:
        self._control = Client(control)
        self._wanted = HealthConfig()
        self._checks = Checks(self._wanted)
        self._bounded = BoundedChecks()
        self._look_at: float | None = None
        self._noticed: dict[tuple[str, str], Fitness] = {}
        self._speaking = threading.Lock()  # a probe that is late speaks in its own thread
        self._memory_before: Mapping[str, float] = {}

    def run(self) -> None:
        """Until the launcher is gone."""
        while True:
            timeout_s = None
            if self._look_at is not None:
                timeout_s = self._look_at - clock.monotonic()
            try:
                message = self._control.receive(timeout_s)
            except TimeoutError:
                self._look()
            except (OSError, FrameError):
                return
            else:
                self._obey(decode(TO_HEALTH, message))

    def _obey(self, message: ToHealth) -> None:
        match message:
            case ConfigureHealth(wanted, path):
                self._wanted = wanted
                self._checks = Checks(wanted)
                # The launcher's folders come after Python's own: a job's folder, which
                # may be among it, has files of any name.
                sys.path += [folder for folder in path if folder not in ("", *sys.path)]
                self._plan_look()
            case Ask(number, after_ranks):
                self._check(number, after_ranks=after_ranks)
                self._plan_look()
            case _:
                assert_never(message)

    # ------------------------------------------------------------ when asked
    def _check(self, number: int, *, after_ranks: bool) -> None:
        def say(finding: Finding) -> None:
            self._say(Found(number, finding))

        # A driver that hangs would not say, and take all the time there is for that.
        wants_memory = self._checks.has_gpus and self._wanted.reclaim_timeout_s > 0
        if wants_memory and not self._bounded.hangs("gpu"):
            look, bound_s = self._note_memory, PROBES_S
            if after_ranks:
                look, bound_s = self._await_memory, self._wanted.memory_limit_s
            self._bounded.run([BoundedProbe("gpu memory", bound_s, look)], say)
        self._bounded.run(self._checks.before_join(), say)
        # The launcher knows these faults now; later ones are reported again.
        broken = [thing for thing, is_ in self._noticed.items() if is_ is Fitness.UNHEALTHY]
        for thing in broken:
            del self._noticed[thing]
        self._say(Answered(number))

    def _note_memory(self) -> list[Finding]:
        """Before the first rank: memory of other programs is not waited for."""
        self._memory_before = self._checks.used_mib()
        return []

    def _await_memory(self) -> list[Finding]:
        from holdfast.health.gpu_memory import wait  # noqa: PLC0415
        from holdfast.health.pure.reclaim import Reclaim  # noqa: PLC0415 - where there are GPUs

        wanted = self._wanted
        reclaim = Reclaim(
            wanted.reclaim_timeout_s,
            wanted.reclaim_tolerance_mib,
            wanted.reclaim_poll_s,
            self._memory_before,
        )
        over = wait(
            reclaim,
            self._checks.used_mib,
            self._checks.memory_holders,
            functools.partial(self._note, "info"),
        )
        if over.n_gpus:
            self._note("info" if over.is_free else "error", over.text)
        return []

    def _note(self, level: str, text: str) -> None:
        self._say(Note(level, text))

    # ------------------------------------------------------------ unasked
    def _plan_look(self) -> None:
        watches = bool(self._checks.while_running())
        self._look_at = clock.monotonic() + self._wanted.interval_s if watches else None

    def _look(self) -> None:
        """Report each change; a healthy finding, too, if another verdict was reported before."""

        def say(finding: Finding) -> None:
            thing = (finding.probe, finding.subject)
            if self._noticed.get(thing, Fitness.HEALTHY) is not finding.verdict:
                self._say(Noticed(finding))
            self._noticed[thing] = finding.verdict

        self._bounded.run(self._checks.while_running(), say)
        self._plan_look()

    def _say(self, message: FromHealth) -> None:
        with self._speaking, contextlib.suppress(OSError):  # gone: the loop finds out
            self._control.send(codec.encode(message))


def main() -> None:
    """Be a health process; descriptor 3 is given by node/processes/controlled_process.py."""
    die_with_parent()
    ignore_signals()
    HostHealth(socket.socket(fileno=CONTROL_FD)).run()
    sys.stderr.flush()
    os._exit(0)  # a probe that hangs in its thread would hold up the end
