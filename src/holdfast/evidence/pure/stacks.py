"""Read a dump of faulthandler's: where the main thread is, in one line. Pure, and light.

::

    Thread 0x00007f1 (most recent call first):
      File "/usr/lib/python3.11/threading.py", line 320 in wait
      File "/home/me/data.py", line 88 in load_batch        <- the place: load_batch data.py:88
"""

from __future__ import annotations

from holdfast.base.pure.value import Value
from holdfast.evidence.pure.evidence import CHILD, DEBUGGER, OTHER_PROCESS, PERSON, SERVER, TASKS
from holdfast.evidence.pure.own_code import OWN_CODE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "/torch/", *OWN_CODE)
_COLLECTIVE = ("torch/distributed/", "torch/nn/parallel/", "torch/autograd/graph.py")
_TRANSFERS = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
"""Functions of torch.distributed between two ranks; other libraries have some of the same name."""
_LOADER = ("torch/utils/data/",)
_WAITS = (
    (("/pdb.py", "/bdb.py", "/pudb/", "/IPython/", "pydevd", "/debugpy/"), DEBUGGER),
    (("/code.py", "/getpass.py", "/prompt_toolkit/"), PERSON),
    (("/subprocess.py", "/sh.py", "/pexpect/"), CHILD),
    (
        ("/concurrent/futures/", "/asyncio/", "/multiprocessing/pool.py", "/fsspec/", "/gevent/"),
        TASKS,
    ),
    (("/multiprocessing/queues.py", "/multiprocessing/connection.py"), OTHER_PROCESS),
    (("/ray/", "/grpc/", "/urllib3/", "/httpx/", "/httpcore/", "/botocore/"), SERVER),
)
"""Files by which a frame tells why a thread waits, where its kernel function says less."""
_PARKED = ("/threading.py", "/queue.py", "/concurrent/futures/", "/asyncio/", "/gevent/")
"""Files in which a thread waits for another one, or for its tasks."""
_RELEASES = (*_PARKED, "/selectors.py", "/socket.py", "/ssl.py", "/subprocess.py", "/connection.py")
"""Files in whose innermost frames a thread waits without the interpreter's lock."""
_JOINS = ("join", "_wait_for_tstate_lock", "result")
_TRAINS = (*_COLLECTIVE, *_LOADER, "torch/autograd/", "torch/optim/", "torch/nn/modules/")
_WRAPPERS = (
    "wrapper",
    "_call_impl",
    "_wrapped_call_impl",
    "decorate_context",
    "inner",
    "__exit__",
    "__enter__",
    "_fn",
)
"""Functions that only call another one."""
HELPER = "watch/rank/look_helper.py"
"""The file whose thread in each rank answers its monitor; it says nothing about the rank."""


class Frame(Value):
    """One frame of a thread."""

    file: str
    line: int
    function: str

    @property
    def is_library(self) -> bool:
        """It is not the user's code."""
        file = self.file
        return file.startswith("<frozen") or any(part in file for part in _LIBRARIES)

    @property
    def is_holdfasts(self) -> bool:
        """It is code that holdfast runs within a rank."""
        return any(part in self.file for part in OWN_CODE)

    def __str__(self) -> str:
        return f"{self.function} {self.file.rpartition('/')[2]}:{self.line}"


def frame_of(at: FrameType) -> Frame:
    """A frame that runs in this process."""
    return Frame(at.f_code.co_filename, at.f_lineno or 0, at.f_code.co_name)


def frames_of(at: FrameType | None, at_most: int | None = None) -> list[Frame]:
    """This frame and those that called it, innermost first."""
    found: list[Frame] = []
    while at is not None and len(found) != at_most:
        found.append(frame_of(at))
        at = at.f_back
    return found


class ThreadPlace(Value):
    """Where a thread is.

    Attributes:
        line: The innermost frame of the user's, as ``load_batch data.py:88``; of a thread without
            one, the innermost frame.
        call: The library's function that is called there; "": none that has a frame.
        is_in_collective: A frame further in belongs to torch.distributed, or to backward.
        is_transfer: One belongs to a send or receive of torch.distributed.
        is_in_loader: One belongs to a data loader of torch.
        waits_for: A person, a server, or work that was given away, as far as the frames tell: see
            ``evidence.py``; "": no more than the kernel does, or a data loader.
        code: Hash of all frames.
        is_main: It is the main thread.
    """

    line: str = ""
    call: str = ""
    is_in_collective: bool = False
    is_transfer: bool = False
    is_in_loader: bool = False
    waits_for: str = ""
    code: str = ""
    is_main: bool = True


def _by_thread(dump: str) -> list[list[str]]:
    """Its lines, first those that stand before all threads."""
    parts: list[list[str]] = [[]]
    for line in dump.splitlines(keepends=True):
        if line.startswith(("Thread ", "Current thread ")):
            parts.append([])
        parts[-1].append(line)
    return parts


def threads(dump: str) -> list[list[Frame]]:
    """The threads of a dump, each with its innermost frame first."""
    return [list(filter(None, map(_frame, lines))) for lines in _by_thread(dump)[1:]]


def _frame(line: str) -> Frame | None:
    file, _, rest = line.removeprefix('  File "').rpartition('", line ')
    number, _, function = rest.rstrip("\n").partition(" in ")
    is_frame = line.startswith('  File "') and number.isdigit()
    return Frame(file, int(number), function) if is_frame else None


def training_thread(found: Sequence[Sequence[Frame]]) -> int:
    """Index of the thread that trains, of threads of which the main one is last.

    It is the main one, unless that waits in Python for another thread, and one with code of the
    user's is inside torch, or is the only one that may be joined.
    """
    main = len(found) - 1
    if main < 1 or not _is_in_python(found[main], _PARKED) or _any_in(found[main], _TRAINS):
        return main
    users = [at for at in range(main) if any(not frame.is_library for frame in found[at])]
    trains = [at for at in users if _any_in(found[at], _TRAINS)]
    joins = any(frame.function in _JOINS for frame in found[main] if frame.is_library)
    chosen = trains or (users if joins else [])
    return chosen[0] if len(chosen) == 1 else main


def lock_holder(found: Sequence[Sequence[Frame]], *, main_waits: bool) -> int:
    """Index of the thread that holds the interpreter's lock, as far as frames tell; see above.

    ``main_waits``: the main thread is seen to wait for it.
    """
    may = range(len(found) - main_waits)
    holds = [at for at in may if found[at] and not _any_in(found[at][:1], _RELEASES)]
    return holds[0] if len(holds) == 1 else training_thread(found)


def _is_in_python(frames: Sequence[Frame], files: tuple[str, ...]) -> bool:
    own = next((at for at, frame in enumerate(frames) if not frame.is_library), len(frames))
    return _any_in(frames[:own], files)


def awaits_tasks(frames: Sequence[Frame]) -> bool:
    """A thread runs a loop of asyncio or gevent, and no task of it is running."""
    return _is_in_python(frames, ("/asyncio/", "/gevent/"))


def without_helpers(found: Sequence[list[Frame]]) -> list[list[Frame]]:
    """The threads that are the rank's own."""
    return [frames for frames in found if not _is_helper(frames)]


def main_thread(dump: str) -> list[Frame]:
    """Faulthandler writes the oldest thread last."""
    return next((frames for frames in reversed(threads(dump)) if not _is_helper(frames)), [])


def _is_helper(frames: Sequence[Frame]) -> bool:
    return any(frame.file.endswith(HELPER) for frame in frames)


def without_helper(dump: str) -> str:
    """The dump without the thread that answers the monitor."""
    return "".join(text for lines in _by_thread(dump) if HELPER not in (text := "".join(lines)))


def place_of(
    frames: Sequence[Frame], earlier: Sequence[str] = (), *, is_main: bool = True
) -> ThreadPlace:
    """Where a thread is that has these frames, innermost first.

    Args:
        frames: Of now.
        earlier: Of a look before, each as text; where they have changed, it is the loop in which
            they did, and not its call at this moment, unless that is a collective.
        is_main: It is the main thread.
    """
    if not frames:
        return ThreadPlace()
    own = next((at for at, frame in enumerate(frames) if not frame.is_library), len(frames))
    if earlier and not _any_in(frames[:own], (*_COLLECTIVE, *_LOADER)):
        own = max(own, _loop_in(frames, earlier))
    inner = [frame for frame in frames[:own] if frame.function not in _WRAPPERS]
    is_in_loader = _any_in(frames[:own], _LOADER)
    waits_for = next((reason for files, reason in _WAITS if _any_in(frames[:own], files)), "")
    return ThreadPlace(
        line=str(frames[own] if own < len(frames) else frames[0]),
        call=inner[-1].function if inner and own < len(frames) else "",
        is_in_collective=_any_in(frames[:own], _COLLECTIVE),
        is_transfer=any(map(_is_transfer, frames[:own])),
        is_in_loader=is_in_loader,
        waits_for="" if is_in_loader else waits_for,
        code=hash_of(frames),
        is_main=is_main,
    )


def _loop_in(frames: Sequence[Frame], earlier: Sequence[str]) -> int:
    """Index of the innermost frame of the user's that both have, in the same function; -1: none."""
    if [*map(str, frames)] == [*earlier]:
        return -1
    common = 0
    for now, before in zip(reversed(frames), reversed(earlier)):  # noqa: B905 - one may be deeper
        if str(now).rpartition(":")[0] != before.rpartition(":")[0]:
            break
        common += 1
    shared = range(len(frames) - common, len(frames))
    return next((at for at in shared if not frames[at].is_library), -1)


def _any_in(frames: Sequence[Frame], parts: tuple[str, ...]) -> bool:
    return any(part in frame.file for frame in frames for part in parts)


def _is_transfer(frame: Frame) -> bool:
    return "torch/distributed/" in frame.file and frame.function in _TRANSFERS


def hash_of(frames: Sequence[Frame] | Sequence[str]) -> str:
    """The same for the same frames, on every node: eight hexadecimal digits (FNV-1a)."""
    value = 0x811C9DC5
    for byte in "\n".join(map(str, frames)).encode(errors="replace"):
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{value:08x}"
