"""Both ends of holdfast's Unix sockets: to listen, and to ask and wait for the answer.

Not for a loop (that is ``net/channel.py``). Every error names the path, the cause and a remedy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

from holdfast.base.clock import monotonic
from holdfast.base.own_descriptor import OwnSocket
from holdfast.net.client import Client
from holdfast.net.pure.frames import FrameError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.net.pure.frames import Message

PATH_BYTES_MAX = 107
"""Longest path of a Unix socket on Linux."""
_BACKLOG = 128


class UnixSocketError(OSError):
    """Something went wrong with a Unix socket. ``errno`` is that of the cause, if it has one."""

    def __init__(self, text: str, cause: OSError | None = None) -> None:
        super().__init__(text)
        self.errno = None if cause is None else cause.errno


class EndpointClosedError(UnixSocketError):
    """The other end is gone; a new connection may find its successor."""


class EndpointTimeoutError(UnixSocketError, TimeoutError):
    """The other end did not answer in time."""


def _check_length(path: str) -> None:
    length = len(os.fsencode(path))
    if length > PATH_BYTES_MAX:
        raise UnixSocketError(
            f"socket path {path!r} has {length} bytes, the system's limit is {PATH_BYTES_MAX}; "
            "choose a shorter temporary directory (TMPDIR)",
        )


def listen(path: str) -> socket.socket:
    """Listen on ``path``, which only this user may connect to. A stale socket there is removed.

    Raises:
        UnixSocketError: ``path`` is too long, not writable, or a file that is no socket.
    """
    _check_length(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)
        # On Linux the mode of the descriptor becomes that of the file: no moment of being open to
        # all, and no umask, which belongs to the whole process.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UnixSocketError(
            f"cannot listen on {path!r}: {error.strerror or error}", error
        ) from error
    return listener


class Connection(Client):
    """A connection on which one side asks and the other answers. For one thread at a time.

    A question that was given up (timeout, interruption) stays owed its answer, which is dropped
    when it comes, so that it is not taken for the next one. Hanging up instead would tell the other
    end that this process is gone.
    """

    __slots__ = ("_owed", "path")

    def __init__(self, path: str, connected: OwnSocket) -> None:
        super().__init__(connected)
        self.path = path
        self._owed = 0

    def request(self, message: Mapping[str, object], timeout_s: float) -> Message:
        """Send ``message`` and wait for the answer.

        Raises:
            EndpointClosedError: The other end is gone (the request may or may not have been read).
            EndpointTimeoutError: No answer within ``timeout_s``.
            UnixSocketError: The answer is no frame, or there are several.
        """
        operation = message.get("op")
        frame = encode(message)
        deadline = monotonic() + timeout_s
        try:
            self.send_frame(frame, timeout_s)
            self._owed += 1
            answer = self.receive(deadline - monotonic())
            while self._owed > 1:  # it answers an earlier question
                self._owed -= 1
                answer = self.receive(deadline - monotonic())
            self._owed = 0
            more = self._decoder.feed(b"")
        except TimeoutError as error:
            raise EndpointTimeoutError(
                f"{self.path!r} did not answer {operation!r} within {timeout_s:g} s: the process "
                "that listens there is stopped, busy or gone",
            ) from error
        except OSError as error:
            self.close()
            raise EndpointClosedError(
                f"{self.path!r} broke off during {operation!r} ({error.strerror or error}): "
                "the process that listens there has ended",
                error,
            ) from error
        except FrameError as error:
            self.close()
            raise UnixSocketError(
                f"{self.path!r} answered {operation!r} with no frame: {error}"
            ) from error
        if more:
            self.close()
            raise UnixSocketError(f"{self.path!r} gave {1 + len(more)} answers to {operation!r}")
        return answer

    def owes_answers(self) -> bool:
        """Whether answers to questions that were given up are still to come; waits for none.

        False also where the other end is gone: the next request finds that out.
        """
        if self._owed:
            try:
                self._owed = max(0, self._owed - len(self.received()))
            except (OSError, FrameError):
                self.close()
                return False
        return self._owed > 0


def connect(path: str, timeout_s: float | None = 30.0) -> Connection:
    """Connect to the process that listens on ``path``; ``timeout_s``: None waits for ever.

    Raises:
        UnixSocketError: No process listens there, it may not be used, or the queue stays full.
    """
    _check_length(path)
    connecting = OwnSocket()
    connecting.settimeout(timeout_s)
    try:
        connecting.connect(path)
    except OSError as error:
        connecting.close()
        raise UnixSocketError(f"cannot connect to {path!r}: {_why(error)}", error) from error
    return Connection(path, connecting)


def _why(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "there is no such socket; the process that made it has ended, or never started"
    if error.errno == errno.ECONNREFUSED:
        return "no process listens there any more"
    if isinstance(error, TimeoutError) or error.errno == errno.EAGAIN:
        return "its queue is full; the process that listens there is stopped or busy"
    return error.strerror or str(error)
