"""Call what people have registered for a job's events, and never wait for it."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from errno import ENOEXEC
from importlib.metadata import entry_points
from typing import Any

from holdfast.base import clock
from holdfast.events.observer_messages import GROUP
from holdfast.evidence.pure.failure import describe_exit
from holdfast.tools.observer.hook_command import Command

COMMAND_S = 60.0
"""How long a command may run."""
_EVENTS_MAX = 10_000
_INCIDENTS_MAX = 100
_FAULTS_TOLD = 3
_OUTPUT_CHARS = 200
OnWarning = Callable[[str], None]


class HookError(Exception):
    """The command did not do its work; the text says why."""


class _Worker:
    """A thread with a bounded queue in front of it."""

    def __init__(
        self, name: str, most: int, handle: Callable[[Any], None], on_warning: OnWarning
    ) -> None:
        self._name = name
        self._handle = handle
        self._on_warning = on_warning
        self._faults = self._dropped = 0
        self._queue: queue.Queue[Any] = queue.Queue(most)
        self._thread = threading.Thread(target=self._run, name=f"holdfast-{name}", daemon=True)
        self._thread.start()

    def put(self, thing: object) -> None:
        """Hand it over, unless too much waits already."""
        try:
            self._queue.put_nowait(thing)
        except queue.Full:
            if not self._dropped:
                self._on_warning(f"{self._name} does not keep up: what it does not take is dropped")
            self._dropped += 1

    def finish(self, timeout_s: float) -> None:
        """Let it handle what waits, for so long at most."""
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (thing := self._queue.get()) is not None:
            try:
                self._handle(thing)
            except Exception as error:  # noqa: BLE001 - foreign code
                self._faults += 1
                if self._faults <= _FAULTS_TOLD:
                    kind = "" if isinstance(error, HookError) else f"{type(error).__name__}: "
                    self._on_warning(f"{self._name} failed: {kind}{error}")


class Hooks:
    """All that is called.

    Args:
        command: Started with the path of each incident as its last word; empty: none.
        observers: Names of entry points of the group ``holdfast.observers``.
        environ: Added to the environment of the command.
        on_warning: Called with lines for the log, in any thread.
        on_ran: Called when the command has run with a path, in any thread.
    """

    def __init__(
        self,
        command: Sequence[str],
        observers: Sequence[str],
        environ: Mapping[str, str],
        on_warning: OnWarning,
        on_ran: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._command = list(command)
        self._on_ran = on_ran
        self._environ = {**os.environ, **environ}
        self._workers = []
        self._ending = threading.Lock()
        self._is_over = False
        self._running: Command | None = None
        self._incidents: _Worker | None = None
        if command:
            name = f"--ft-on-incident {command[0]}"
            self._incidents = _Worker(name, _INCIDENTS_MAX, self._start, on_warning)
        found = {each.name: each for each in entry_points(group=GROUP)} if observers else {}
        for name in observers:
            try:
                call = found[name].load()
            except KeyError:
                on_warning(
                    f"no installed package has an observer {name!r} (entry points of {GROUP})"
                )
            except Exception as error:  # noqa: BLE001 - importing it runs anything
                on_warning(f"observer {name!r} cannot be imported: {type(error).__name__}: {error}")
            else:
                self._workers.append(_Worker(f"observer {name!r}", _EVENTS_MAX, call, on_warning))

    def event(self, event: Mapping[str, Any]) -> None:
        """Something has happened."""
        for worker in self._workers:
            worker.put(dict(event))

    def incident(self, path: str) -> None:
        """An incident was written."""
        if self._incidents is not None:
            self._incidents.put(path)

    def finish(self, timeout_s: float) -> None:
        """The job is over: what waits has so long; a command that still runs then is killed."""
        give_up_at = clock.monotonic() + timeout_s
        for worker in (*self._workers, *((self._incidents,) if self._incidents else ())):
            worker.finish(max(0.0, give_up_at - clock.monotonic()))
        with self._ending:
            self._is_over = True
            if self._running is not None:
                self._running.kill()

    def _start(self, path: str) -> None:
        """Run the command to its end."""
        with self._ending:
            if self._is_over:
                return
            try:
                self._running = command = Command(
                    [*self._command, path], {**self._environ, "HOLDFAST_INCIDENT": path}
                )
            except OSError as error:
                hint = "; a script begins with a line such as #!/bin/sh" * (error.errno == ENOEXEC)
                raise HookError(f"cannot be started: {error.strerror}{hint}") from None
        exit_code = command.wait(COMMAND_S)
        self._running = None
        self._on_ran(path)
        if exit_code is None:
            raise HookError(f"killed after {COMMAND_S:g} s, at {path}")
        if exit_code:
            last = command.last_line[:_OUTPUT_CHARS]
            raise HookError(f"{describe_exit(exit_code)} for {path}: {last or 'no output'}")
