"""System calls that some interpreters or kernels lack, and their replacements.

An interpreter built with headers of an old glibc (conda's and uv's: 2.17) lacks names for calls
that the kernel under it has: they go through the C library. Where the kernel (Linux 5.3 has all of
them) or a sandbox refuses a call, the caller gets ``OSError`` and does without; each docstring says
how. ``ctypes`` (7 ms) is imported only where the interpreter lacks a name.
"""

from __future__ import annotations

import errno
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    FileAction = tuple[int, int, int] | tuple[int, int, str, int, int]

_NUMBERS = {"pidfd_send_signal": 424, "pidfd_open": 434}
"""Of system calls, the same on all architectures."""
_MFD_CLOEXEC, _MFD_ALLOW_SEALING = 1, 2
_TMPFS = "/dev/shm"  # noqa: S108 - a file without a name
_SPAWN_SETSIGDEF, _SPAWN_SETSIGMASK, _SPAWN_SETSID = 0x04, 0x08, 0x80
_OPAQUE_BYTES = 1024
"""Room for posix_spawn's and signal's structures: 336 bytes at most, in glibc and musl."""


def pidfd_open(pid: int) -> int:
    """A descriptor that is readable when process ``pid`` has ended.

    Without it the end of a child is known by SIGCHLD, and that of another process by looking for it
    (:class:`holdfast.base.processes.proc.Process`).

    Raises:
        ProcessLookupError: There is no such process.
        OSError: This kernel (before Linux 5.3) or a sandbox does not give one.
    """
    own = getattr(os, "pidfd_open", None)
    return int(own(pid) if own is not None else _system_call("pidfd_open", pid, 0))


def pidfd_send_signal(pidfd: int, signum: int) -> None:
    """Send a signal through a descriptor of :func:`pidfd_open`.

    Without it ``kill`` is used, after a look at the start time of the process.

    Raises:
        ProcessLookupError: The process is gone.
        PermissionError: It is another user's, or a sandbox refuses this call.
        OSError: This kernel (before Linux 5.1) has no such call.
    """
    own = getattr(signal, "pidfd_send_signal", None)
    if own is not None:
        own(pidfd, signum)
    else:
        _system_call("pidfd_send_signal", pidfd, signum, None, 0)


def signal_thread(pid: int, thread_id: int, signum: int) -> None:
    """Send a signal to one thread of a process.

    Without it the process is signalled, and its main thread runs the handler.

    Raises:
        ProcessLookupError: There is no such thread.
        PermissionError: It is another user's, or a sandbox refuses this call.
        OSError: This C library (glibc before 2.30) has no such call.
    """
    function = getattr(_c_library(), "tgkill", None)
    if function is None:
        raise OSError(errno.ENOSYS, "no tgkill in this C library")
    _checked(function(pid, thread_id, signum))


def memory_file(name: str) -> int:
    """Descriptor of a file in memory that has no path; closed at exec.

    Without ``memfd_create`` a file without a name in /dev/shm, or in the temp folder. ``OSError``:
    there is no space for it.
    """
    try:
        return memfd_create(name)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EACCES):
            raise
    try:
        return os.open(_TMPFS, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        import tempfile  # noqa: PLC0415 - slow to import, and hardly ever needed

        with tempfile.TemporaryFile(buffering=0) as file:
            return os.dup(file.fileno())


def memfd_create(name: str, *, sealable: bool = False) -> int:
    """Linux's own; see :func:`memory_file`. ``sealable``: ``fcntl`` may add seals to it."""
    flags = _MFD_CLOEXEC | (_MFD_ALLOW_SEALING if sealable else 0)
    own = getattr(os, "memfd_create", None)
    if own is not None:
        return int(own(name, flags))
    function = getattr(_c_library(), "memfd_create", None)
    if function is None:
        raise OSError(errno.ENOSYS, "no memfd_create in this C library")
    return _checked(function(name.encode(), flags))


def spawn_in_session(
    program: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    file_actions: Iterable[FileAction],
    default_signals: Iterable[int],
    blocked_signals: Iterable[int] = (),
) -> int:
    """``posix_spawn`` of a process in a session of its own; its pid.

    Without ``setsid=True`` in this interpreter, the C library's (glibc 2.26, musl 1.1.17); without
    that, a bare interpreter (10 ms) which begins the session and becomes the program.

    Args:
        program: Absolute path.
        arguments: The first is the name that it sees of itself.
        env: Its whole environment.
        file_actions: As for ``os.posix_spawn``.
        default_signals: Those that are not to stay ignored.
        blocked_signals: Those that wait until it unblocks them; all others are not blocked.

    Raises:
        OSError: The program cannot be started.
    """
    actions, defaults, blocked = list(file_actions), list(default_signals), list(blocked_signals)
    try:
        return os.posix_spawn(
            program,
            list(arguments),
            dict(env),
            file_actions=actions,
            setsid=True,
            setsigmask=blocked,
            setsigdef=defaults,
        )
    except NotImplementedError:
        pass
    try:
        return spawn_by_c_library(program, arguments, env, actions, defaults, blocked)
    except NotImplementedError:
        from holdfast.base.processes import rank_boot as boot  # noqa: PLC0415 - hardly ever needed

        words = [sys.executable, "-I", "-S", boot.__file__, boot.SESSION, program, *arguments]
        return os.posix_spawn(
            sys.executable,
            words,
            dict(env),
            file_actions=actions,
            setsigmask=blocked,
            setsigdef=defaults,
        )


def spawn_by_c_library(
    program: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    file_actions: Iterable[FileAction],
    default_signals: Iterable[int],
    blocked_signals: Iterable[int],
) -> int:
    """As :func:`spawn_in_session`; ``NotImplementedError``: this C library cannot."""
    try:
        import ctypes  # noqa: PLC0415 - 7 ms that most interpreters need not pay

        library = ctypes.CDLL(None)
        set_flags = library.posix_spawnattr_setflags
    except (ImportError, OSError, AttributeError) as error:
        raise NotImplementedError(str(error)) from None

    def checked(code: int) -> None:
        if code != 0:
            raise OSError(code, os.strerror(code), program)

    def strings(texts: Iterable[str]) -> Any:
        encoded = [os.fsencode(text) for text in texts]
        return (ctypes.c_char_p * (len(encoded) + 1))(*encoded, None)

    attributes, actions, signals = (ctypes.create_string_buffer(_OPAQUE_BYTES) for _ in range(3))
    checked(library.posix_spawnattr_init(attributes))
    checked(library.posix_spawn_file_actions_init(actions))
    try:
        flags = _SPAWN_SETSIGDEF | _SPAWN_SETSIGMASK | _SPAWN_SETSID
        if set_flags(attributes, ctypes.c_short(flags)) != 0:
            raise NotImplementedError("this C library knows no POSIX_SPAWN_SETSID")
        for signums, set_them in (
            (blocked_signals, library.posix_spawnattr_setsigmask),
            (default_signals, library.posix_spawnattr_setsigdefault),
        ):
            library.sigemptyset(signals)
            for signum in signums:
                library.sigaddset(signals, int(signum))
            checked(set_them(attributes, signals))
        for kind, fd, *rest in file_actions:
            if kind == os.POSIX_SPAWN_DUP2:
                checked(library.posix_spawn_file_actions_adddup2(actions, fd, *rest))
            else:
                path, *how = rest
                encoded = os.fsencode(str(path))
                checked(library.posix_spawn_file_actions_addopen(actions, fd, encoded, *how))
        pid = ctypes.c_int()
        checked(
            library.posix_spawn(
                ctypes.byref(pid),
                os.fsencode(program),
                actions,
                attributes,
                strings(arguments),
                strings(f"{name}={value}" for name, value in env.items()),
            )
        )
    finally:
        library.posix_spawn_file_actions_destroy(actions)
        library.posix_spawnattr_destroy(attributes)
    return pid.value


_library: Any = None


def _c_library() -> Any:
    global _library  # noqa: PLW0603 - one for the process
    if _library is None:
        try:
            import ctypes  # noqa: PLC0415 - 7 ms that most interpreters need not pay

            _library = ctypes.CDLL(None, use_errno=True)
        except ImportError:
            raise OSError(errno.ENOSYS, "this interpreter has no ctypes") from None
    return _library


def _system_call(name: str, *arguments: int | None) -> int:
    library = _c_library()
    import ctypes  # noqa: PLC0415 - as above

    words = [None if each is None else ctypes.c_long(each) for each in arguments]
    return _checked(library.syscall(ctypes.c_long(_NUMBERS[name]), *words))


def _checked(result: int) -> int:
    if result >= 0:
        return result
    import ctypes  # noqa: PLC0415 - as above

    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code))
