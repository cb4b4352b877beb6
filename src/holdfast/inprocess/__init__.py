"""In-process restart: when a rank fails, all call the training function again, where they are.

Names and submodules are loaded when first used (PEP 562): importing this package loads no torch.

Public: the path of its names is in pickles and tracebacks. Read first: ``wrap.py``, ``_call.py``,
``_plugin_call.py``.
"""

from importlib import import_module

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.inprocess import (
        abort as abort,
        completion as completion,
        compose as compose,
        exception as exception,
        finalize as finalize,
        health_check as health_check,
        initialize as initialize,
        monitor_thread as monitor_thread,
        rank_assignment as rank_assignment,
        rank_filter as rank_filter,
        state as state,
        store as store,
        terminate as terminate,
        wrap as wrap,
    )
    from holdfast.inprocess.compose import Compose
    from holdfast.inprocess.state import FrozenState, Mode, State
    from holdfast.inprocess.wrap import CallWrapper, Wrapper

__all__ = ["CallWrapper", "Compose", "FrozenState", "Mode", "State", "Wrapper"]

_HOME = {
    "CallWrapper": "wrap",
    "Compose": "compose",
    "FrozenState": "state",
    "Mode": "state",
    "State": "state",
    "Wrapper": "wrap",
}

_SUBMODULES = frozenset(
    {
        "abort",
        "completion",
        "compose",
        "exception",
        "finalize",
        "health_check",
        "initialize",
        "monitor_thread",
        "rank_assignment",
        "rank_filter",
        "state",
        "store",
        "terminate",
        "wrap",
    }
)
"""Used as attributes of this package by those who import only it."""


if not TYPE_CHECKING:  # so that a type checker finds a name that is not there

    def __getattr__(name: str) -> object:
        if name in _SUBMODULES:
            return import_module(f"{__name__}.{name}")
        if name in _HOME:
            return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_SUBMODULES})
