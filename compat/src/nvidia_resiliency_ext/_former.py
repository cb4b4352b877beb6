"""Names and arguments that still work and should be written differently: one warning for each."""

from __future__ import annotations

import warnings

_warned: set[str] = set()


def warn_once(text: str, *, stacklevel: int = 2) -> None:
    """A ``DeprecationWarning`` for the caller's caller, once in this process.

    Args:
        text: The name to write instead.
        stacklevel: As of ``warnings.warn``, counted from the function that calls this one.
    """
    if text in _warned:
        return
    _warned.add(text)
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel + 1)


def ignore(others: dict[str, object], where: str) -> None:
    """One warning for each keyword that ``where`` was given and ignores."""
    for name in others:
        warn_once(f"{where}: the argument {name!r} is without effect", stacklevel=3)
