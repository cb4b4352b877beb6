"""Get the stacks of a process that does not answer, before it is ended.

The rank registered a C-level dump (faulthandler) on a signal, into a file it opened beforehand, so
this works while the interpreter's lock is held. The caller calls :meth:`StackDump.step` at
``next_step_at``. ::

    /proc state ─► dump signal ─► SIGCONT if stopped ─┬─ bytes ─► quiet, handler left ─► done
                                                      └─ none in 50 ms, nor on its way
                                                           ─► once more, SIGCONT if stopped

The signal is never sent where the rank has no handler for it: the default action is death. Nor
where it has closed the file: the handler writes to a number, which may be that of its checkpoint or
of a connection by then (the helper opens the file again). Nor where all such signals have a
handler: it is one of the script, which may save and exit in there. In the
main thread it ends a sleep in C, and with it perhaps the hang. So a thread of the rank
(``look_helper.py``) is asked first, or given the signal, where it can be.
"""

from __future__ import annotations

import os

from holdfast.base.processes import proc
from holdfast.base.pure.kill_ladder import SIGCONT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

QUIET_S = 0.005
"""A dump is written in pieces. It has ended when it has not grown for so long, and the main thread
has left the handler."""
SILENT_S = 0.05
"""A dump takes under 3 ms; nothing for so long means that something is in its way."""
HELPER_S = 0.1
"""The same of a thread that may have to wait for the interpreter's lock, or for a CPU, first."""
_POLL_S = 0.001
"""Between two looks at the file's size: no descriptor tells of a write but inotify's, and to load
ctypes for that costs the monitor 7 ms and 1 MiB."""
_SLOW_POLL_S = 0.005
"""The same, when the dump is late."""
_STACKS_BYTES_MAX = 256 * 1024
_SIGSTOP = 19
_DUMP_SIGNALS = range(41, 65)
"""From SIGRTMIN+7 to SIGRTMAX: one of these, which had no handler, dumps the stacks."""
_CLOSED = "the rank has closed the file for its stacks"


class StackDump:
    """One attempt to get stacks.

    Args:
        signum: That dumps them; 0: none may be sent.
        path: Into this file; None: there is none.
        ask_helper: Has a thread of the process write them, which then calls :meth:`written`.
        find_thread: Finds a thread that gets the signal in place of the main thread, 0: there is
            none now.
        is_gentle: It gets no signal, whether the helper answers or not.
        will_end: It is decided that the process is ended; one that was stopped is stopped again.

    Attributes:
        state: What /proc said before anything was sent; ``None``: the process was gone.
        was_stopped: It was stopped.
        why_not: Why there are no stacks (so far), ``None`` once there are.
        has_handler: False: there are none, and none can come, though it has asked for the signal.
        next_step_at: When to call :meth:`step` at the latest; ``None``: it is done.
    """

    def __init__(
        self,
        process: proc.Process,
        signum: int,
        path: str | None,
        now: float,
        *,
        ask_helper: Callable[[], None] | None = None,
        find_thread: Callable[[], int] | None = None,
        is_gentle: bool = False,
        will_end: bool = False,
    ) -> None:
        self.process = process
        self.path = path
        self.why_not: str | None = None
        self.has_handler = True
        self.next_step_at: float | None = None
        self._signum = signum
        self._ask_helper = ask_helper
        self._is_gentle = is_gentle
        self._will_end = will_end
        self._find_thread = find_thread or (lambda: 0)
        self._thread_id = self._find_thread()
        self._is_written = False
        self._repeated = False
        self._stops_again = False
        self._grew_at: float | None = None
        self._before_bytes = 0
        self.state = proc.process_state(process.pid)
        self.was_stopped = self.state is not None and self.state.is_stopped
        self.why_not = self._obstacle()
        if self.why_not is None:
            self._ask(now)

    def _obstacle(self) -> str | None:
        if self.state is None:
            return "the process is gone"
        if self._signum == 0:
            return "the rank registered no signal for stack dumps"
        if self.path is None:
            return "no file for stack dumps was agreed on"
        if not self.state.catches(self._signum):
            self.has_handler = False
            return f"the rank has no handler for signal {self._signum} (any more)"
        if all(map(self.state.catches, _DUMP_SIGNALS)):
            return "the rank handles all signals itself, and none may be sent"
        try:
            self._before_bytes = os.stat(self.path).st_size
        except OSError as error:
            return f"{self.path}: {error.strerror}"
        return _CLOSED if self._ask_helper is None and self._has_closed_file() else None

    def _has_closed_file(self) -> bool:
        assert self.path is not None
        return proc.has_open(self.process.pid, self.path) is False

    def _ask(self, now: float) -> None:
        if self._ask_helper is not None:
            self._ask_helper()
        else:
            self._send()
        if self.was_stopped and not self._is_gentle:
            self._wake(self.state)
        is_helped = self._ask_helper is not None or self._thread_id
        self._silent_until = now + (HELPER_S if is_helped else SILENT_S)
        self.why_not = f"no answer to signal {self._signum}"
        self._bytes = self._before_bytes
        self.next_step_at = now + _POLL_S

    def _send(self) -> None:
        # Frames must stand still while they are read, or the process may die of it. So one thread
        # gets the signal, not the process, any thread of which might take it; before SIGCONT.
        if self._has_closed_file():
            self.why_not = _CLOSED
            return
        process, signum = self.process, self._signum
        if self._thread_id and process.send_to_thread(self._thread_id, signum):
            return
        self._thread_id = 0
        state = proc.process_state(process.pid)
        is_blocked = state is None or state.blocks(signum)
        if is_blocked or not process.send_to_thread(process.pid, signum):
            process.send(signum)

    def written(self) -> None:
        """The helper has written all of it."""
        self._is_written = True

    @property
    def is_done(self) -> bool:
        """Nothing more will come."""
        return self.next_step_at is None

    def step(self, now: float) -> bool:
        """Look whether the dump has grown; whether it is done."""
        if self.is_done:
            return True
        size = self._size()
        if size > self._bytes:
            self._bytes = size
            self._grew_at = now
            self.why_not = None
        if self._grew_at is None:
            is_over = False
            if now >= self._silent_until and not (self._repeated or self._is_gentle):
                self._silent_until = now + SILENT_S
                self._ask_again()
        else:
            is_quiet = now >= self._grew_at + QUIET_S
            is_over = self._is_written or (is_quiet and not self._is_dumping())
        pause_s = _POLL_S if now < self._silent_until else _SLOW_POLL_S
        self.next_step_at = None if is_over else now + pause_s
        return is_over

    def _size(self) -> int:
        assert self.path is not None
        try:
            return os.stat(self.path).st_size
        except OSError:
            return self._bytes

    def _ask_again(self) -> None:
        """Unless the signal is on its way, as on a busy machine: a second one dumps twice.

        Nor where the handler has run since the file was looked at, so that it is not on its way.
        """
        state = proc.process_state(self.process.pid, self._thread_id)
        is_stopped = state is not None and state.is_stopped
        is_coming = state is not None and (state.blocks(self._signum) or state.awaits(self._signum))
        if not is_stopped and (is_coming or self._size() > self._bytes):
            return
        self._repeated = True
        self.was_stopped = self.was_stopped or is_stopped
        if not is_coming:
            self._thread_id = self._find_thread() if self._ask_helper is not None else 0
            self._send()
        if is_stopped:
            self._wake(state)

    def _wake(self, state: proc.ProcessState | None) -> None:
        # A tracer's stop is not SIGCONT's to end, nor SIGSTOP's to restore. A process that will be
        # ended is stopped again, or it would train on until then. Any other is left awake: a
        # profiler may have stopped it for a moment, and would not continue it twice.
        is_stopped = state is not None and state.state == "T"
        self._stops_again = self._stops_again or (is_stopped and self._will_end)
        self.process.send(SIGCONT)

    def _is_dumping(self) -> bool:
        if self._ask_helper is not None and not self._repeated:
            return True
        # The kernel blocks a signal while its handler runs.
        state = proc.process_state(self.process.pid, self._thread_id)
        return state is not None and state.blocks(self._signum)

    def text(self) -> str:
        """The stacks; empty where there are none, or they cannot be read."""
        if self.path is None or self._grew_at is None:
            return ""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._before_bytes)
                return file.read(_STACKS_BYTES_MAX).decode(errors="replace")
        except OSError as error:
            return f"({self.path}: {error.strerror})"

    def close(self) -> None:
        """Stop waiting, and stop a process again that was stopped, if it will be ended."""
        self.next_step_at = None
        if self._stops_again:
            self._stops_again = False
            self.process.send(_SIGSTOP)
