"""Where a rank's program is, seen by a thread of it: the thread that trains, and its call.

Never reads the values of a program's variables: before Python 3.13 that changes the result of
``locals()``, and keeps tensors alive. Nothing here imports a module, as a hung file system may be
the reason why the rank hangs, and all loops have bounds.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
from typing import TYPE_CHECKING, Any

from holdfast.evidence.pure.evidence import Operations
from holdfast.evidence.pure.stacks import Frame, awaits_tasks, frame_of, frames_of, training_thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

_FRAMES_MAX = 200
_THREADS_MAX = 100
_CODE_BYTES_MAX = 20_000
_TASKS_MAX = 2000
_AWAITED_MAX = 50
_LINES_MAX = 4
_RUN_LOOPS = ("/asyncio/base_events.py", "/asyncio/runners.py")
_OBJECTS_MAX = 3_000_000
_DESCRIPTORS_MAX = 4096
_AGES_AT = 44
"""In the kernel's tcp_info: ms since data was sent, an ACK was, data came, an ACK did."""
_NAMES = (
    *("LOAD_METHOD", "LOAD_ATTR", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"),
    *("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"),
)


def whereabouts() -> Operations:
    """Now, of all threads but this one; without collectives."""
    at, thread = _or(_training, default=(None, 0))
    if at is None:
        return Operations()
    frames = frames_of(at, _FRAMES_MAX + 1)
    return Operations(
        frames=tuple(map(str, frames)) if len(frames) <= _FRAMES_MAX else (),
        thread=thread,
        call=_or(call_of, at, default=""),
        awaits=_or(awaiting, at, frames, default=()),
        is_at_store=_or(is_at_store, default=False),
    )


def _or(look: Any, *arguments: Any, default: Any) -> Any:
    try:
        return look(*arguments)
    except Exception:  # noqa: BLE001 - the rest of the answer is worth more
        return default


def _training() -> tuple[FrameType | None, int]:
    running = sys._current_frames()  # noqa: SLF001
    running.pop(threading.get_ident(), None)
    main = threading.main_thread().ident or 0
    if main not in running or len(running) > _THREADS_MAX:
        return running.get(main), 0
    idents = [*(ident for ident in running if ident != main), main]
    ident = idents[training_thread([frames_of(running[it], _FRAMES_MAX + 1) for it in idents])]
    if ident == main:
        return running[main], 0
    thread = threading._active.get(ident)  # type: ignore[attr-defined] # noqa: SLF001
    return running[ident], getattr(thread, "native_id", None) or 0


# ---------------------------------------------------------------- calls
def call_of(frame: FrameType) -> str:
    """The function that a frame's instruction calls, as ``dist.recv``; "": it is no call.

    By the positions of instructions in the source, which Python has from 3.11 on: the function of
    a call begins where the call does.
    """
    code, dis = frame.f_code, sys.modules.get("dis")  # which torch has imported
    if dis is None or not hasattr(code, "co_positions") or len(code.co_code) > _CODE_BYTES_MAX:
        return ""
    called: Any = None
    before: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    for each in dis.get_instructions(code):
        place = each.positions
        if each.offset >= frame.f_lasti:
            called = place if each.offset == frame.f_lasti else None
            called = called if called and each.opname.startswith("CALL") else None
            break
        if each.opname in _NAMES and place is not None and place.end_lineno is not None:
            start = place.lineno, place.col_offset
            before.setdefault(start, []).append(
                (place.end_lineno, place.end_col_offset, str(each.argval))
            )
    if called is None or called.end_lineno is None:
        return ""
    end = called.end_lineno, called.end_col_offset
    names = before.get((called.lineno, called.col_offset), [])
    parts = {(line, column): name for line, column, name in names if (line, column) < end}
    return ".".join(parts[it] for it in sorted(parts))


def is_at_store() -> bool:
    """Whether a request to the store at MASTER_PORT has had no answer.

    On one of its connections data was sent after data came last, which the kernel knows.
    """
    port = os.environ.get("MASTER_PORT", "")
    if not port.isdigit():
        return False
    for number in os.listdir("/proc/self/fd")[:_DESCRIPTORS_MAX]:
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(number))) as one:
                is_tcp = one.type == socket.SOCK_STREAM and one.family != socket.AF_UNIX
                if not is_tcp or one.getpeername()[1] != int(port):
                    continue
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _AGES_AT + 16)
            sent_ms, _, came_ms, _ = struct.unpack_from("=4I", info, _AGES_AT)
            if sent_ms < came_ms:
                return True
    return False


# ---------------------------------------------------------------- tasks
def awaiting(at: FrameType, frames: list[Frame]) -> tuple[str, ...]:
    """Lines of the user's at which tasks wait, if a thread that is there waits for them."""
    if not awaits_tasks(frames):
        return ()
    lines: dict[str, None] = {}
    for waits in (*_tasks(at), *_greenlets(frames)):
        own = next((str(frame) for frame in waits if not frame.is_library), None)
        if own is not None:
            lines.setdefault(own)
    return tuple(lines)[:_LINES_MAX]


def _tasks(running: FrameType) -> Iterator[list[Frame]]:
    """Frames of each task of asyncio that waits for no other one, innermost first."""
    module: Any = sys.modules.get("asyncio.tasks")
    if module is None:
        return
    kept: Any
    if sys.version_info >= (3, 14):  # only the interpreter knows them, by their loop
        loop = _loop_of(running)
        kept = [] if loop is None else module.all_tasks(loop)
    else:
        kept = getattr(module, "_scheduled_tasks", None)
        kept = getattr(module, "_all_tasks", ()) if kept is None else kept
    for task in _listed(kept)[:_TASKS_MAX]:
        waiter = getattr(task, "_fut_waiter", None)
        if task.done() or isinstance(waiter, module.Task) or hasattr(waiter, "_children"):
            continue
        found: list[Frame] = []
        at: Any = task.get_coro()
        while at is not None and len(found) < _AWAITED_MAX:
            at, frame = _awaited_by(at)
            if frame is not None:
                found.insert(0, frame_of(frame))
        yield found


def _loop_of(at: FrameType | None) -> Any:
    """The one that a thread runs which is there: functions of asyncio's have it, or its runner."""
    for _ in range(_FRAMES_MAX):
        if at is None:
            break
        if at.f_code.co_filename.endswith(_RUN_LOOPS):
            runs = at.f_locals.get("self")
            loop = getattr(runs, "_loop", runs)
            if hasattr(loop, "run_forever"):
                return loop
        at = at.f_back
    return None


def _listed(kept: Iterable[Any]) -> list[Any]:
    """Of a set that another thread may change meanwhile."""
    for _ in range(10):
        with contextlib.suppress(RuntimeError):
            return list(kept)
    return []


def _awaited_by(awaits: Any) -> tuple[Any, FrameType | None]:
    for kind, next_one in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
        if hasattr(awaits, f"{kind}_frame"):
            return getattr(awaits, next_one, None), getattr(awaits, f"{kind}_frame")
    return None, None


def _greenlets(frames: list[Frame]) -> Iterator[list[Frame]]:
    """Of each greenlet that is not running: only the collector of garbage knows them all."""
    module, gc = sys.modules.get("greenlet"), sys.modules.get("gc")
    if module is None or gc is None or not any("/gevent/" in frame.file for frame in frames):
        return
    for each in gc.get_objects()[:_OBJECTS_MAX]:
        # isinstance() would run the code of objects that stand for others.
        if issubclass(type(each), module.greenlet) and each.gr_frame is not None:
            yield frames_of(each.gr_frame, _FRAMES_MAX + 1)
