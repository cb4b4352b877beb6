"""Everything of ``torch.distributed`` that a rank can be blocked in, ended; and then forgotten.

    watcher thread   abort_collectives()       once
                     abort_again()             each few milliseconds, until the main thread is back
    main thread      discard_process_groups()  once it was interrupted
    either           release()                 once every rank has aborted

inside ``with watching():``, which takes note of what there is to be ended.

``destroy_process_group`` would have its caller wait: a group of gloo is destroyed in a tick of its
loop (10 ms, measured), one of NCCL later. So a thread does it (:class:`GroupReaper`).
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from holdfast.base import torch_private
from holdfast.base.clock import monotonic
from holdfast.base.rank_log import rank_logger
from holdfast.inplace.torch_edge.gloo_abort import gloo_aborter
from holdfast.inplace.torch_edge.reducer_groups import groups_outlive_reducers
from holdfast.inplace.torch_edge.work_abort import work_aborter

log = rank_logger(__name__)

_watchers = 0
_aborted = threading.Event()
_WAITING_MODULES = (
    "torch.distributed.",
    "torch.autograd.graph",
    "torch.nn.parallel.",
    "torch.cuda",  # NCCL's operations are waited for where the device is
    # Constructors of stores and groups, which wait for other ranks:
    "holdfast.inplace.torch_edge.hosted_stores",
    "holdfast.inplace.torch_edge.gloo_abort",
)
_WITHOUT_ABORT = frozenset({"gloo", "fake", "mpi", "undefined"})
"""Backends whose ``abort`` does nothing (torch 2.13)."""
_EXIT_S = 10.0


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """Take note of gloo's groups, stores and waits in this context. May be nested."""
    global _watchers  # noqa: PLW0603 - torch is one for the process
    _watchers += 1
    try:
        with contextlib.ExitStack() as installed:
            if _watchers == 1:
                installed.enter_context(gloo_aborter.installed())
                installed.enter_context(work_aborter.installed())
                installed.enter_context(groups_outlive_reducers())
            yield
    finally:
        _watchers -= 1
        if not _watchers:
            release()


def main_waits() -> bool:
    """Whether the main thread waits for other ranks, as seen from outside.

    In ``Work.wait``; or in torch's backward pass (the reducer of DDP waits in C++), its
    ``distributed``, or a synchronisation of its ``cuda``. The device may be busy with a kernel of
    this rank alone; then the rank is named a moment later than it could be.
    """
    main = threading.main_thread().ident
    if main is None or work_aborter.waits(main):
        return main is not None
    frame = sys._current_frames().get(main)  # noqa: SLF001 - the documented way
    module = str(frame.f_globals.get("__name__", "")) if frame is not None else ""
    return module.startswith(_WAITING_MODULES)


def abort_collectives() -> list[str]:
    """End all waits in collectives, and the main thread's send or receive; returns problems.

    Groups of backends that can abort (NCCL) do; the connections of gloo's are broken; a receive
    from any source or a half-done transfer is ended (by :func:`abort_again`: its test runs first).
    """
    _keep_groups()
    _aborted.set()
    problems = abort_native_groups() if dist.is_initialized() else []
    abort_again()
    return problems


def is_aborted() -> bool:
    """Whether :func:`abort_collectives` was called, and nothing was released since."""
    return _aborted.is_set()


def abort_again() -> None:
    """End the main thread's waits since then: another connection, another store."""
    _keep_groups()
    gloo_aborter.abort()
    main = threading.main_thread().ident
    if main is not None and main != threading.get_ident():
        work_aborter.abort(main)


def _keep_groups() -> None:
    if _watchers:  # else nothing says when the others have aborted
        group_reaper.keep([group for group, _ in torch_private.all_groups()])


def discard_process_groups() -> None:
    """Forget all process groups, and destroy them in the background.

    In the main thread, after its interrupt: a group that is just being made would be registered
    afterwards, and the user's clean-up may still ask for its rank. Inside ``watching`` they are
    destroyed after :func:`release`: other ranks may still connect to them. torch is then as before
    the first ``init_process_group``, ``sys.excepthook`` included.
    """
    work_aborter.forget()
    group_reaper.take(torch_private.forget_groups())
    unwrap_excepthook()


def release() -> None:
    """Every rank has aborted: close held connections, and destroy discarded groups."""
    _aborted.clear()
    gloo_aborter.release()
    group_reaper.go_on()


# ------------------------------------------------------------ process groups


def abort_native_groups(timeout_s: float = 60.0) -> list[str]:
    """Abort the groups of backends that can (NCCL and its relatives); returns problems.

    In a thread per group: the abort of one communicator may wait for another one's
    (pytorch issue 119797). ``timeout_s`` is for all together.
    """
    problems: list[str] = []
    threads = []
    for group, name in torch_private.all_groups():
        backends = {word.rpartition(":")[2] for word in _backends(group).split(",")}
        if backends <= _WITHOUT_ABORT:
            continue
        call = (group, name, problems)
        thread = threading.Thread(target=_abort, args=call, name=f"abort-{name}", daemon=True)
        thread.start()
        threads.append(thread)
    _join(threads, timeout_s)
    problems += [f"{t.name} takes longer than {timeout_s:g} s" for t in threads if t.is_alive()]
    return problems


def comes_from_init(error: BaseException) -> bool:
    """Whether ``init_process_group`` has raised it, or an error that led to it."""
    seen: set[int] = set()
    looked_at: BaseException | None = error
    while looked_at is not None and id(looked_at) not in seen:
        seen.add(id(looked_at))
        for frame, _ in traceback.walk_tb(looked_at.__traceback__):
            if (
                frame.f_code.co_name == "init_process_group"
                and frame.f_globals.get("__name__") == "torch.distributed.distributed_c10d"
            ):
                return True
        looked_at = looked_at.__cause__ or looked_at.__context__
    return False


def _backends(group: Any) -> str:
    """Such as ``cpu:gloo,cuda:nccl``; the configuration knows more than the name of the group."""
    try:
        return dist.get_backend_config(group).lower()
    except (AssertionError, AttributeError, TypeError, ValueError):  # torch keeps none for it
        return str(dist.get_backend(group)).lower()


def _abort(group: Any, name: str, problems: list[str]) -> None:
    try:
        group.abort()
    except Exception as error:  # noqa: BLE001 - the other groups are still to be aborted
        problems.append(f"process group {name} cannot be aborted: {error}")


def _join(threads: list[threading.Thread], timeout_s: float) -> None:
    # One bound for all: those that are done cost nothing.
    until = monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, until - monotonic()))


def unwrap_excepthook() -> None:
    """Take torch's wrappers off ``sys.excepthook``.

    ``init_process_group`` adds one each time, which is never removed: after 200 restarts every line
    of a traceback would begin with 200 ``[rank0]:``.
    """
    sys.excepthook = torch_private.without_torchs_hooks(sys.excepthook)


class GroupReaper:
    """Destroys process groups in threads of its own.

    A call joins them before it returns, so that a restart does not wait for them and the caller
    finds none. They are joined before the interpreter exits, too: a thread that ends inside a
    destructor of gloo ends the process (``terminate called without an active exception``).

    While an abort is under way, groups are only kept: a peer (or ``gloo_abort`` in its place) may
    be connecting to one, and a connection that reaches a closed pair ends the process (gloo's
    ``state_ <= CONNECTED``; measured in 1 % of the restarts of groups that connect lazily). Once
    every rank has aborted, no rank connects any more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._kept: list[Any] = []
        self._taken: list[Any] = []
        self._is_keeping = False

    def keep(self, groups: list[Any]) -> None:
        """An abort is under way: destroy nothing until :meth:`go_on`.

        ``groups``, all there are, stay alive even if the user's clean-up destroys them.
        """
        with self._lock:
            self._is_keeping = True
            known = set(map(id, self._kept))
            self._kept += [group for group in groups if id(group) not in known]

    def go_on(self) -> None:
        """Every rank has aborted: destroy groups that were taken meanwhile. Returns at once."""
        with self._lock:
            self._is_keeping = False
            taken, kept = self._taken, self._kept
            self._taken, self._kept = [], []
            if taken or kept:
                self._start(taken, kept)

    def take(self, groups: list[Any]) -> None:
        """Destroy ``groups`` now, or at the next :meth:`go_on`; the list is the reaper's then."""
        with self._lock:
            if self._is_keeping:
                self._taken += groups
            elif groups:
                self._start(groups, [])

    def _start(self, taken: list[Any], kept: list[Any]) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(
            target=_destroy, args=(taken, kept), name="holdfast-group-reaper", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for all groups, also those of an abort that is under way; False: too late."""
        self.go_on()
        return self.wait(timeout_s)

    def wait(self, timeout_s: float) -> bool:
        """Wait for groups that are being destroyed; False: too late."""
        with self._lock:
            threads = self._threads[:]
        _join(threads, timeout_s)
        is_done = not any(thread.is_alive() for thread in threads)
        if not is_done:
            log.warning(
                "process groups of before a restart are still being destroyed after %g s", timeout_s
            )
        return is_done


def _destroy(groups: list[Any], kept: list[Any]) -> None:
    while kept:
        kept.pop()  # destroys those that the user's clean-up has let drop; others are still held
    while groups:
        shutdown: Callable[[], None] | None = getattr(groups[-1], "shutdown", None)
        try:
            if shutdown is not None:
                shutdown()
        except Exception as error:  # noqa: BLE001 - the rest is still to be destroyed
            log.debug("a process group did not shut down: %s", error)
        del shutdown
        groups.pop()


group_reaper = GroupReaper()
atexit.register(group_reaper.join, _EXIT_S)
