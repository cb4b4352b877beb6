"""Descriptors 0, 1 and 2 are there, whoever started us.

Started with one of them closed (``ft_launcher ... >&-``, some supervisors), the next file that is
opened gets its number, and what ranks print goes into that.
"""

from __future__ import annotations

import os
import sys


def open_closed_ones() -> None:
    """Open /dev/null in the place of a closed standard stream; to be called before all else."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
            os.set_inheritable(number, True)
    # Python leaves None where it found a stream closed.
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - for as long as we live
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
