"""Have a rank come to a store when that listens, and not half a second later.

Rank 0 hosts a new store in each cycle; torch's clients that come before it pause, at first for half
a second (``net/until_listens.py``). Under torchrun the launcher's own store listens all the time.

``first_lines.py`` has this file run from its path.
"""

# Annotations are quoted, as in ``first_lines.py``.
import functools
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_POSITIONS = "host_name", "port", "world_size", "is_master", "timeout"
_TIMEOUT_S = 300.0
"""torch's, of a TCPStore that is made without one."""


def wait_for_servers(rendezvous: "ModuleType", until_listens: "Any") -> None:
    """From now on a TCPStore that is a client is made when its server listens.

    Args:
        rendezvous: ``torch.distributed.rendezvous``, or another module that has the class.
        until_listens: The module ``holdfast.net.until_listens``.
    """
    kind: Any = getattr(rendezvous, "TCPStore", None)
    if kind is None:
        return  # a build without it
    make = kind.__init__

    @functools.wraps(make)
    def make_when_it_listens(self: "Any", *args: "Any", **named: "Any") -> None:
        _wait(dict(zip(_POSITIONS, args, strict=False)) | named, until_listens)
        make(self, *args, **named)

    kind.__init__ = make_when_it_listens


def _wait(given: "dict[str, Any]", until_listens: "Any") -> None:
    if given.get("is_master"):
        return
    try:
        host, port, waiting = str(given["host_name"]), int(given["port"]), given.get("world_size")
        timeout = given.get("timeout")
        timeout_s = _TIMEOUT_S if timeout is None else timeout.total_seconds()
        error = sys.modules["torch.distributed"].DistNetworkError
    except (AttributeError, KeyError, TypeError, ValueError):
        return  # torch has an error for these
    if not until_listens.wait_until_listens(host, port, timeout_s, waiting or 1):
        raise error(until_listens.timed_out(host, port, timeout_s))
