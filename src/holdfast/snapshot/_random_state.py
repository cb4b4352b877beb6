"""The random number generators of a rank: Python's, NumPy's, torch's, and that of its device."""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Callable
from typing import Any

import torch

_is_initialized: Callable[[], bool] = torch.cuda.is_initialized


def read() -> dict[str, Any]:
    """Their states; NumPy's and the device's where the program uses them."""
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, array("I", numbers).tobytes(), gauss],
        "torch": torch.get_rng_state(),
    }
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        name, keys, *rest = numpy.get_state()
        state["numpy"] = [name, keys.tobytes(), *rest]
    if torch.cuda.is_available() and _is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def write(state: dict[str, Any]) -> None:
    """Go on with the numbers that would have come next."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(array("I", numbers)), gauss))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy as np  # noqa: PLC0415 - the program has used it

        name, keys, *rest = state["numpy"]
        np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))  # noqa: NPY002
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def accessors(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
    """Read and write the state of a random generator; None: it is another object."""
    if isinstance(generator, torch.Generator):
        return generator.get_state, generator.set_state
    if type(generator) is random.Random:
        return generator.getstate, generator.setstate
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(generator, numpy.Generator):
        bits = generator.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return None
