"""The port on which rank 0 of the next cycle will listen, in case it will be on this node."""

from __future__ import annotations

from holdfast.net.port import ReservedPort
from holdfast.node.console import LOGGER


class Rank0Port:
    """One at a time is kept free for the next cycle.

    Args:
        fixed: The one that the user has chosen, which is not kept; None: any.

    Raises:
        OSError: No port is free.
    """

    def __init__(self, fixed: int | None) -> None:
        self._fixed = fixed
        self._kept = ReservedPort() if fixed is None else None

    @property
    def number(self) -> int:
        """The port."""
        return self._kept.number if self._kept else self._fixed or 0

    def hand_over(self) -> ReservedPort | None:
        """The next cycle has it now."""
        kept, self._kept = self._kept, None
        return kept

    def reserve(self) -> bool:
        """Keep another if none is kept; whether :attr:`number` has changed.

        There may be no next cycle: a host without a free port must not cost a job its success.
        """
        if self._kept is not None or self._fixed is not None:
            return False
        try:
            self._kept = ReservedPort()
        except OSError as error:
            LOGGER.warning("no port can be kept for the next cycle, which uses the last: %s", error)
            return False
        return True

    def release(self) -> None:
        """There is no next cycle."""
        if self._kept:
            self._kept.release()
