"""torch's process groups as a whole: abort the native ones, and forget all of them.

After :func:`forget_process_groups` ``init_process_group`` works again in the same process, as after
``destroy_process_group``, but the caller does not wait: destroying a gloo group blocks for a tick
of its loop (10 ms, measured), one of NCCL for longer. A thread does it (:class:`GroupReaper`).
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from holdfast.base import torch_private
from holdfast.base.clock import monotonic
from holdfast.base.rank_log import rank_logger

log = rank_logger(__name__)

_WITHOUT_ABORT = frozenset({"gloo", "fake", "mpi", "undefined"})
"""Backends whose ``abort`` does nothing (torch 2.13)."""
_EXIT_S = 10.0


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
        trace = looked_at.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            if (
                frame.f_code.co_name == "init_process_group"
                and frame.f_globals.get("__name__") == "torch.distributed.distributed_c10d"
            ):
                return True
            trace = trace.tb_next
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


def registered_groups() -> list[Any]:
    """All groups that are registered with torch. From any thread."""
    return [group for group, _ in torch_private.all_groups()]


def forget_process_groups() -> list[Any]:
    """Put torch's state back to where ``init_process_group`` works; returns the groups.

    In the thread that makes groups (the main thread), after it was interrupted: one that is just
    being made would be entered afterwards. No group is destroyed while it is kept.
    """
    return torch_private.forget_groups()


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
        self._is_at_exit = False

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
        """Destroy ``groups`` now, or at the next :meth:`go_on`; empties the list at once."""
        if not groups:
            return
        taken = groups[:]
        groups.clear()
        with self._lock:
            if self._is_keeping:
                self._taken += taken
            else:
                self._start(taken, [])

    def _start(self, taken: list[Any], kept: list[Any]) -> None:
        if not self._is_at_exit:
            self._is_at_exit = True
            atexit.register(self.join, _EXIT_S)
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


_reaper = GroupReaper()


def group_reaper() -> GroupReaper:
    """The one of this process."""
    return _reaper
