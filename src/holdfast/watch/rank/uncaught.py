"""End a rank whose main thread has ended with an exception that nothing caught.

Called when the interpreter begins to end (``rank_end.py``), after ``sys.excepthook``. Plain Python
would now wait for threads that are no daemons, without a limit, then run exit handlers, then
destroy process groups, which wait for peers; the peers wait for the restart meanwhile. So::

    tell the launcher ──Ok──► exit handlers ──► flush files ──► tell the launcher ──► exit code 1
                                  └── it ends the rank when these take longer than they may

Where the launcher does not answer, the process ends as plain Python does. Both decide on proof:
:func:`uncaught_exception`, and ``node/pure/rank_life.py``.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from typing import TYPE_CHECKING

from holdfast.base.pure.codec import MessageError, decode, encode
from holdfast.fault_tolerance.data import FT_LAUNCHER_IPC_SOCKET_ENV_VAR
from holdfast.net import endpoint
from holdfast.watch.pure.rank_messages import TO_RANK, ExitsNow, Ok, Uncaught

if TYPE_CHECKING:
    from types import CodeType, FrameType

_ANSWER_S = 0.5
"""A launcher that is not stopped answers within milliseconds."""
_HEAD_CHARS, _TAIL_CHARS = 2_000, 6_000
"""Of a traceback: where it begins, and the innermost frames with the message."""
_RE_RAISING = ("RERAISE", "RAISE_VARARGS")
_EXIT_CODE = 1
"""Python's, after any exception but SystemExit and KeyboardInterrupt."""


def end_process(grace_s: float) -> None:
    """End this process, if an exception ends it anyway and the launcher, if any, knows.

    Args:
        grace_s: How long exit handlers may take, as the launcher will see to; 0: none are run.
    """
    value = uncaught_exception()
    if value is None:
        return
    launcher = _notify_launcher(value)
    if launcher is None and grace_s > 0.0:
        return  # no launcher would end handlers that hang
    if grace_s > 0.0:
        atexit._run_exitfuncs()  # noqa: SLF001 - as the interpreter does, errors included
    _flush()
    if launcher is not None:
        _say_last(launcher)
    os._exit(_EXIT_CODE)


def uncaught_exception() -> BaseException | None:
    """The exception that is ending this process; None: none is, or there is no proof.

    ``sys.last_value`` is not enough: debuggers and consoles set it as well, and the program may
    have gone on, to end well. It counts if its traceback begins in the first frame of the program,
    and that frame has ended where the exception left it, or by raising one again.
    """
    value, trace = getattr(sys, "last_value", None), getattr(sys, "last_traceback", None)
    if not isinstance(value, BaseException) or trace is None:
        return None
    if isinstance(value, SystemExit) or _is_interactive():
        return None
    frame = trace.tb_frame
    if not _is_first(frame):
        return None
    is_there = frame.f_lasti == trace.tb_lasti or _raises_again(frame.f_code, frame.f_lasti)
    return value if is_there else None


def _is_interactive() -> bool:
    """A prompt comes, or came, before the end: a person may have ended the program well."""
    return bool(sys.flags.interactive or os.environ.get("PYTHONINSPECT") or hasattr(sys, "ps1"))


def _is_first(frame: FrameType) -> bool:
    if frame.f_code.co_name == "_run_module_as_main":  # python -m, or a folder, or an archive
        return frame.f_globals.get("__name__") == "runpy"
    main = sys.modules.get("__main__")
    return frame.f_code.co_name == "<module>" and frame.f_globals is getattr(main, "__dict__", None)


def _raises_again(code: CodeType, at: int) -> bool:
    """At the end of ``finally``, ``with`` or ``except``: the exception that it was left with."""
    import opcode  # noqa: PLC0415 - needed at the end alone

    if not 0 <= at < len(code.co_code):
        return False
    name, argument = opcode.opname[code.co_code[at]], code.co_code[at + 1]
    return name in _RE_RAISING and (name != "RAISE_VARARGS" or argument == 0)


def _notify_launcher(value: BaseException) -> endpoint.Connection | None:
    """The launcher, once it knows and will see to the end; None: there is none that does."""
    path = os.environ.get(FT_LAUNCHER_IPC_SOCKET_ENV_VAR)
    if not path:
        return None
    try:
        connection = endpoint.connect(path, _ANSWER_S)
    except OSError:
        return None
    try:
        message = encode(Uncaught(_text_of(value)))
        if isinstance(decode(TO_RANK, connection.request(message, _ANSWER_S)), Ok):
            return connection
    except (OSError, MessageError):
        pass
    connection.close()
    return None


def _text_of(value: BaseException) -> str:
    import traceback  # noqa: PLC0415 - needed at the end alone

    try:
        trace = value.__traceback__
        text = "".join(traceback.format_exception(type(value), value, trace))
    except Exception:  # noqa: BLE001 - of a __str__ of the program's
        text = type(value).__name__
    if len(text) > _HEAD_CHARS + _TAIL_CHARS:
        text = f"{text[:_HEAD_CHARS]}\n  ...\n{text[-_TAIL_CHARS:]}"
    return text


def _say_last(launcher: endpoint.Connection) -> None:
    try:
        launcher.send(encode(ExitsNow()), _ANSWER_S)
    except OSError:
        return  # it sees the end of the process


def _flush() -> None:
    """What plain Python writes when it destroys open files, and the C library at its exit."""
    streams = [sys.stdout, sys.stderr]
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    texts = [each for each in gc.get_objects() if type(each) in kinds]
    texts.sort(key=lambda each: type(each) is not io.TextIOWrapper)  # into the buffers below them
    for stream in (*streams, *texts):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed, or not for writing
            continue
    try:
        import _ctypes  # noqa: PLC0415 - as in base/processes/rank_boot.py

        function = _ctypes.dlsym(_ctypes.dlopen(None, 0), "fflush")  # type: ignore[arg-type]
        _ctypes.call_function(function, (0,))
    except (ImportError, OSError):
        return
