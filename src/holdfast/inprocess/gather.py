"""What an assignment that needs to know of all ranks asks of its store."""

from __future__ import annotations

import json
from typing import Any, Protocol, runtime_checkable

from holdfast.inprocess.exception import RestartError


@runtime_checkable
class Gathers(Protocol):
    """A store that lets ranks show each other a value: the ``store`` of a rank assignment."""

    def gather(self, name: str, value: Any, timeout_s: float | None = None) -> list[Any]:
        """Values of all living ranks, the same list on each, in the order of their ranks.

        Every living rank calls it with the same ``name``, which is used once per iteration. A rank
        that is lost or leaves meanwhile is not waited for.

        Args:
            name: Of this exchange; ASCII, short.
            value: Anything that JSON can carry.
            timeout_s: How long to wait for the others, in seconds; ``None``: as long as a barrier.

        Raises:
            BarrierTimeout: Not all came in time.
        """


def gather_from(store: object, name: str, value: Any, timeout_s: float | None) -> list[Any]:
    """Values of all living ranks.

    Raises:
        RestartError: The store cannot gather.
        TypeError: JSON cannot carry the value.
    """
    if not isinstance(store, Gathers):
        raise RestartError(
            f"{name} needs to know of all ranks, and {store!r} has no gather(name, value, "
            "timeout_s): the Wrapper gives its assignments a store that has"
        )
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: ranks exchange keys as JSON, which cannot carry this: {error}"
        ) from None
    return store.gather(name, value, timeout_s)


def as_key(value: Any) -> str:
    """A name for a value that came through JSON, equal where the values are."""
    return json.dumps(value, sort_keys=True)
