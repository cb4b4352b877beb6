"""Methods of torch's classes, replaced for a while: torch has no hooks where they are needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced(
    owner: type, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Inside, ``owner.name`` is the method that ``around`` makes of it.

    The class itself stays: torch asks ``isinstance(..., ProcessGroupGloo)``.
    """
    before = owner.__dict__[name]
    made = around(getattr(owner, name))
    setattr(owner, name, staticmethod(made) if isinstance(before, staticmethod) else made)
    try:
        yield
    finally:
        setattr(owner, name, before)
