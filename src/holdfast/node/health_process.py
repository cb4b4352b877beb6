"""The health process of a node at work: feeds :mod:`holdfast.health.pure.gate`. Decides nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.processes import child
from holdfast.base.pure.codec import decode, encode
from holdfast.base.pure.common_events import Begin, Note, TimePassed
from holdfast.base.pure.never import assert_never
from holdfast.events.pure import schema
from holdfast.health.messages import FROM_HEALTH, ConfigureHealth
from holdfast.health.pure import gate as machine
from holdfast.health.pure.health import Finding, Fitness
from holdfast.net.loop import Loop
from holdfast.node.console import LOGGER, log_note
from holdfast.node.processes.controlled_process import start_health_process
from holdfast.node.processes.helper_process import HelperProcess

if TYPE_CHECKING:
    from holdfast.health.messages import FromHealth, HealthConfig
    from holdfast.net.channel import Channel
    from holdfast.net.pure.frames import Message
    from holdfast.node.processes.controlled_process import ControlledProcess


class HealthProcess(HelperProcess):
    """Checks this host, and reports faults that its health process finds. Main thread only.

    ``started``: a health process that runs already. ``on_checked`` is called once for each
    :meth:`check`, with why this node must not have ranks; ``on_unhealthy`` with a finding that
    ends ranks that run here.
    """

    def __init__(
        self,
        wanted: HealthConfig,
        *,
        loop: Loop,
        job: str,
        started: ControlledProcess | None,
        on_checked: Callable[[str | None], None],
        on_unhealthy: Callable[[Finding], None],
        write_down: Callable[[schema.Body], None],
    ) -> None:
        super().__init__(loop)
        self._wanted = wanted
        self._job = job
        self._started = started
        self._on_checked = on_checked
        self._on_unhealthy = on_unhealthy
        self._write_down = write_down
        self._machine = machine.HealthGate(wanted.limit_s, wanted.memory_limit_s)
        self._dying: set[int] = set()
        self._feed(Begin())

    def check(self, *, after_ranks: bool) -> None:
        """Check this host; ``after_ranks``: and wait until their GPU memory is free."""
        self._feed(machine.Asked(after_ranks))

    def next_deadline(self) -> float | None:
        """When :meth:`on_time` wants to be called; None: never."""
        return self._machine.next_deadline()

    def on_time(self) -> None:
        """Time has passed."""
        self._feed(TimePassed())

    def pids(self) -> frozenset[int]:
        """The process, and earlier ones that were killed and not reaped yet."""
        return super().pids() | self._dying

    def died(self, reaped: child.Reaped) -> bool:
        """Note that a process was reaped; whether it was the health process."""
        if reaped.pid in self._dying:
            self._dying.discard(reaped.pid)
            return True
        return super().died(reaped)

    def _on_end(self, reaped: child.Reaped) -> None:
        self._feed(machine.HealthProcessDied(f"exit code {reaped.exit_code}"))

    # ------------------------------------------------------------ inside
    def _feed(self, event: machine.Event) -> None:
        for effect in self._machine.handle(event, clock.monotonic()):
            self._do(effect)

    def _do(self, effect: machine.Effect) -> None:
        match effect:
            case machine.Start():
                self._start()
            case machine.Ask():
                self._send(effect)
            case machine.KillHealthProcess():
                self._kill()
            case machine.Checked(problem):
                self._write_down(schema.NodeChecked(problem))
                self._on_checked(problem)
            case machine.HostUnhealthy(finding):
                self._on_unhealthy(finding)
            case Note():
                log_note(effect)
            case _:
                assert_never(effect)

    def _start(self) -> None:
        try:
            first = encode(ConfigureHealth(self._wanted, tuple(sys.path)))
            process = self._started or start_health_process(first, self._job)
            self._started = None
        except OSError as error:
            LOGGER.warning("cannot start the process that checks this host: %s", error)
            return
        self._connect(process)

    def _send(self, message: machine.Ask) -> None:
        if self._peer is None:  # it could not be started
            self._feed(machine.HealthProcessDied("it could not be started"))
            return
        self._peer.send(encode(message))

    def _on_message(self, _peer: Channel, frame: Message) -> None:
        message: FromHealth = decode(FROM_HEALTH, frame)
        match message:
            case Note(text=text):
                self._write_down(schema.GpuMemory(text))
                log_note(message)
            case machine.Answered():
                self._feed(message)
            case machine.Found(finding=finding) | machine.Noticed(finding):
                if isinstance(message, machine.Noticed) or finding.verdict is not Fitness.HEALTHY:
                    self._write_down(finding)
                self._feed(message)
            case _:
                assert_never(message)

    def _on_malformed(self, _peer: Channel, problem: str) -> None:
        """A health process that sends a malformed message is ended; the job goes on."""
        LOGGER.error("the health process %s", problem, exc_info=True)
        self._kill()
        self._feed(machine.HealthProcessDied(f"it {problem}"))

    def _kill(self) -> None:
        self._dying |= super().pids()
        self.end()
