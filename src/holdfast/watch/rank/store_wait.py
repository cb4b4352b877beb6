"""Have a rank come to a store when that listens, and not half a second later.

Rank 0 hosts a new store in each cycle; torch's clients that come before it pause, at first for half
a second (``net/until_listens.py``). Under torchrun the launcher's own store listens all the time.

``first_lines.py`` has this file run from its path.
"""

# Annotations are quoted, as in ``first_lines.py``.
import functools
import operator
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_POSITIONS = "host_name", "port", "world_size", "is_master", "timeout"
_KNOWN = frozenset(_POSITIONS) | {
    *("wait_for_workers", "multi_tenant", "master_listen_fd", "use_libuv"),
}
_PORTS = 1 << 16
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
    if given.get("is_master") or not _KNOWN.issuperset(given):
        return
    host, ranks = given.get("host_name"), given.get("world_size")
    try:
        port, ranks = operator.index(given["port"]), 1 if ranks is None else operator.index(ranks)
        timeout_s = given["timeout"].total_seconds() if "timeout" in given else _TIMEOUT_S
        error = sys.modules["torch.distributed"].DistNetworkError
    except (AttributeError, KeyError, TypeError):
        return  # torch has an error for these
    if type(host) is not str or not 0 < port < _PORTS:
        return
    # Imported, where a restart in place asks whether it waits.
    module = sys.modules.get("holdfast.net.until_listens", until_listens)
    if not module.wait_until_listens(host, port, timeout_s, ranks):
        raise error(module.timed_out(host, port, timeout_s))
