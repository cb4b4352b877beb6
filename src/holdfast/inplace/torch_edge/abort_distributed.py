"""Everything of ``torch.distributed`` that a rank can be blocked in, ended; and then forgotten.

    watcher thread   abort_collectives()       once
                     abort_again()             each few milliseconds, until the main thread is back
    main thread      discard_process_groups()  once it was interrupted
    either           release()                 once every rank has aborted

inside ``with watching():``, which takes note of what there is to be ended.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

import torch.distributed as dist

from holdfast.inplace.torch_edge.gloo_abort import gloo_aborter
from holdfast.inplace.torch_edge.process_groups import (
    abort_native_groups,
    forget_process_groups,
    group_reaper,
    registered_groups,
    unwrap_excepthook,
)
from holdfast.inplace.torch_edge.work_abort import work_aborter

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


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """Take note of gloo's groups, stores and waits in this context. May be nested."""
    try:
        with gloo_aborter(), work_aborter():
            yield
    finally:
        if not gloo_aborter().is_watching:
            release()


def main_waits() -> bool:
    """Whether the main thread waits for other ranks, as seen from outside.

    In ``Work.wait``; or in torch's backward pass (the reducer of DDP waits in C++), its
    ``distributed``, or a synchronisation of its ``cuda``. The device may be busy with a kernel of
    this rank alone; then the rank is named a moment later than it could be.
    """
    main = threading.main_thread().ident
    if main is None or work_aborter().waits(main):
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
    gloo_aborter().abort()
    main = threading.main_thread().ident
    if main is not None and main != threading.get_ident():
        work_aborter().abort(main)


def _keep_groups() -> None:
    if gloo_aborter().is_watching:  # else nothing says when the others have aborted
        group_reaper().keep(registered_groups())


def discard_process_groups() -> None:
    """Forget all process groups, and destroy them in the background.

    In the main thread, after its interrupt: a group that is just being made would be registered
    afterwards, and the user's clean-up may still ask for its rank. Inside ``watching`` they are
    destroyed after :func:`release`: other ranks may still connect to them. torch is then as before
    the first ``init_process_group``, ``sys.excepthook`` included.
    """
    work_aborter().forget()
    group_reaper().take(forget_process_groups())
    unwrap_excepthook()


def release() -> None:
    """Every rank has aborted: close held connections, and destroy discarded groups."""
    _aborted.clear()
    gloo_aborter().release()
    group_reaper().go_on()
