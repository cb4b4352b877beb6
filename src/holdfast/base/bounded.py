"""Calls and commands that may never end (a file system hangs); each waiter has its bound."""

from __future__ import annotations

import contextlib
import errno
import resource
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")
_KILLED_S = 1.0
"""How long the end of a command that was killed is awaited: it may sit in the kernel."""


def start_thread(thread: threading.Thread) -> None:
    """Start ``thread``.

    Raises:
        OSError: The system lets this process start no thread.
    """
    try:
        thread.start()
    except RuntimeError as error:
        may_have, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        limit = "" if may_have == resource.RLIM_INFINITY else f", which is {may_have} here"
        raise OSError(
            errno.EAGAIN,
            "the system lets this process start no thread; raise the user's limit of processes "
            f"and threads (ulimit -u){limit}, or the container's (pids.max)",
        ) from error


class CallInThread(Generic[_T]):
    """A call made at once by a thread of its own, which is left behind if it never returns.

    ``on_end`` is called in that thread when ``call`` has returned or raised. Where no thread can be
    started, that is an OSError of the call.
    """

    def __init__(
        self,
        call: Callable[[], _T],
        thread_name: str = "holdfast-bounded",
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._call = call
        self._on_end = on_end
        self._returned: list[_T] = []
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)
        try:
            start_thread(self._thread)
        except OSError as error:
            self._raised.append(error)
            on_end()

    def _run(self) -> None:
        try:
            self._returned.append(self._call())
        except BaseException as error:  # noqa: BLE001 - the caller's to handle
            self._raised.append(error)
        self._on_end()

    def has_ended(self, wait_s: float = 0.0) -> bool:
        """Whether the call has returned or raised, within ``wait_s`` seconds from now."""
        if not (self._returned or self._raised):
            self._thread.join(wait_s)
        return bool(self._returned or self._raised)

    def result(self) -> _T:
        """Return or raise as the call did; once, after its end."""
        if self._raised:
            raise self._raised.pop()  # an exception that is left in this frame keeps itself alive
        return self._returned[0]


def call_within(
    bound_s: float,
    call: Callable[[], _T],
    late: Exception | None = None,
    thread_name: str = "holdfast-bounded",
) -> _T:
    """Return or raise as ``call`` does.

    Raises:
        TimeoutError: It has not come back within ``bound_s`` seconds; or ``late``, if given.
    """
    made = CallInThread(call, thread_name)
    if not made.has_ended(bound_s):
        raise late or TimeoutError(f"no answer within {bound_s:g} s")
    return made.result()


def output_within(
    bound_s: float, command: Sequence[str], environ: Mapping[str, str]
) -> tuple[bytes, str | None]:
    """The output of a command, and where it fails the last line of its errors.

    Raises:
        TimeoutError: It has not ended within ``bound_s`` seconds, and was killed.
        OSError: It cannot be started.
    """
    import subprocess  # noqa: PLC0415 - seldom needed

    process = subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        output, errors = process.communicate(timeout=bound_s)
    except subprocess.TimeoutExpired:
        process.kill()
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_S)
        raise TimeoutError(f"no answer within {bound_s:g} s") from None
    if process.returncode == 0:
        return output, None
    lines = errors.decode(errors="replace").strip().splitlines()
    return b"", lines[-1].strip() if lines else f"exit code {process.returncode}"
