"""Which link a rank has for its snapshots: to its launcher, or that of a restart in place."""

from __future__ import annotations

import os
import sys

from holdfast.fault_tolerance.data import FT_LAUNCHER_IPC_SOCKET_ENV_VAR
from holdfast.snapshot._launcher_link import LauncherLink


def launcher_link() -> LauncherLink | None:
    """None: no launcher has started this process, or it is a child of a rank.

    In a function that restarts in place, another kind of link, with a launcher or without.
    """
    path, rank = os.environ.get(FT_LAUNCHER_IPC_SOCKET_ENV_VAR), os.environ.get("RANK", "")
    if not rank.isdecimal() or _is_child():
        return None
    if restarts_in_place():
        from holdfast.snapshot._in_place_link import InPlaceLink  # noqa: PLC0415 - torch is there

        return InPlaceLink(path, int(rank))
    return LauncherLink(path, int(rank)) if path else None


def restarts_in_place() -> bool:
    """Whether this runs in a function of :class:`holdfast.inprocess.Wrapper`."""
    session = sys.modules.get("holdfast.inplace.session")
    return session is not None and bool(session.is_in_call())


def _is_child() -> bool:
    """Of ``multiprocessing``: it has the variables of its rank, and is not the rank."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None
