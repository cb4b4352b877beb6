"""Which rank this process is; errors of its client.

The errors are a :class:`RankMonitorClientError` and a builtin type, so that code written against
``RuntimeError`` and ``OSError`` goes on to work.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, field

from holdfast.errors import RankMonitorClientError


class NoSetupError(RankMonitorClientError, RuntimeError):
    """Something that the environment should have provided is not there."""


class UnreachableError(RankMonitorClientError, OSError):
    """A socket cannot be connected to."""


@dataclass
class RankInfo:
    """Which process a rank is. ``local_rank`` is -1 where it is not known."""

    global_rank: int
    local_rank: int
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    @staticmethod
    def get_for_current_rank() -> RankInfo:
        """Of this process, by its default process group, else by ``RANK``.

        Raises:
            RankMonitorClientError: Neither says the rank; it is a ``RuntimeError``, too.
        """
        rank = _process_group_rank()
        if rank is None:
            text = os.environ.get("RANK")
            if text is None:
                raise NoSetupError(
                    "the rank of this process is unknown: there is no process group and RANK is "
                    "not set; start the job with ft_launcher or call init_process_group() first"
                )
            rank = _integer("RANK", text)
        return RankInfo(rank, _integer("LOCAL_RANK", os.environ.get("LOCAL_RANK", "-1")))


def _process_group_rank() -> int | None:
    """Rank in the default process group, without importing torch for a process that has none."""
    distributed = sys.modules.get("torch.distributed")
    is_initialized = getattr(distributed, "is_initialized", None)
    if distributed is None or is_initialized is None or not is_initialized():
        return None
    rank: int = distributed.get_rank()
    return rank


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise NoSetupError(f"environment variable {name} is {text!r}, not a number") from None
