"""How far training is, where the training framework says so. Nothing is imported for it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from holdfast.page.pure import page as layout

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
    except Exception:  # noqa: BLE001 - Megatron's code asserts before arguments are parsed
        return None
    for source in ("curr_iteration", "iteration"):
        iteration = getattr(args, source, None)
        if isinstance(iteration, int):
            return source, iteration
    return None


def reporter(words: memoryview[float], num_warmup_iters: int) -> Callable[[], None] | None:
    """What stores the iteration into a page, to be called now and then; ``None``: no counter.

    Args:
        words: Of the page.
        num_warmup_iters: For how many iterations from the first the page says "warming up".
    """
    words[layout.ITERATION] = -1.0
    words[layout.WARM_UNTIL] = 0.0
    first: dict[str, int] = {}

    def report() -> None:
        current = current_iteration()
        if current is None:
            return
        source, iteration = current
        first.setdefault(source, iteration)
        words[layout.WARM_UNTIL] = float(first[source] + num_warmup_iters)
        words[layout.ITERATION] = float(iteration)

    return report if is_reported() else None
