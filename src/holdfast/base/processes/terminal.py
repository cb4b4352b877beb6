"""A terminal that a rank reads: put back as it was when that rank has ended.

A program that is killed at its prompt (``pdb``, ``input()`` with readline) leaves a terminal that
does not show typed characters.
"""

from __future__ import annotations

import os
import termios
from contextlib import suppress


class Terminal:
    """The terminal at a descriptor, as it is now; there may be none (``exists``)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._modes = termios.tcgetattr(descriptor) if os.isatty(descriptor) else None

    @property
    def exists(self) -> bool:
        """The descriptor is a terminal."""
        return self._modes is not None

    def restore(self) -> None:
        """Set its modes as they were, unless this process is in its background."""
        if self._modes is None:
            return
        with suppress(OSError):  # it is not the controlling terminal, so there is no background
            if os.tcgetpgrp(self._descriptor) != os.getpgrp():
                return
        with suppress(termios.error):
            termios.tcsetattr(self._descriptor, termios.TCSANOW, self._modes)
