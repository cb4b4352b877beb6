"""Do something around each call of a method of one object, or in place of it, and undo that."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

Around = Callable[[], AbstractContextManager[object]]


def surround(owner: Any, name: str, around: Around) -> Callable[[], None]:
    """From now on ``owner.name(...)`` runs within ``around()``.

    Returns:
        A function that puts the original back, unless another wrapper is around this one.
    """

    def surrounded(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with around():
            return original(*args, **kwargs)

    return replace(owner, name, surrounded)


def replace(owner: Any, name: str, by: Callable[..., Any]) -> Callable[[], None]:
    """From now on ``owner.name(...)`` calls ``by(original, ...)``.

    Returns:
        A function that puts the original back, unless another wrapper is around this one.
    """
    original = getattr(owner, name)
    own = vars(owner).get(name)

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return by(original, *args, **kwargs)

    def restore() -> None:
        if vars(owner).get(name) is not replaced:
            return
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    setattr(owner, name, replaced)
    return restore
