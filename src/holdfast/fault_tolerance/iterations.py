"""How far training is, where the training framework says so. Nothing is imported for it."""

from __future__ import annotations

import sys

_MEGATRON = "megatron.training.global_vars"


def is_reported() -> bool:
    """A framework that counts iterations (Megatron-LM) is loaded."""
    return _MEGATRON in sys.modules


def current_iteration() -> tuple[str, int] | None:
    """Which count, and its value; ``None`` before there is one.

    ``iteration`` is the one that a checkpoint was loaded for, and 0 before; ``curr_iteration`` is
    counted by the training loop and so appears later.
    """
    get_args = getattr(sys.modules.get(_MEGATRON), "get_args", None)
    try:
        args = get_args() if get_args else None
    except Exception:  # noqa: BLE001 - someone else's code: it asserts before arguments are parsed
        return None
    for source in ("curr_iteration", "iteration"):
        iteration = getattr(args, source, None)
        if isinstance(iteration, int):
            return source, iteration
    return None
