"""Words that who takes evidence writes into it, and who judges it knows again. Pure, and light.

Texts for people, most of them in :attr:`RankDigest.lacks` and :attr:`RankDigest.waits_for`. What
stands in no rule is written where it is found out.
"""

from __future__ import annotations

PROCESS_GONE = "the process is gone"
HAS_ENDED = "its process has ended"
ENDED_BEFORE = "its process had ended before"
"""Long before the incident: it is not blamed for that."""
ENDED_WELL = "it has ended well"
"""It may have done all its work."""
NO_STACK = "no stack: "
"""Why a data loader's worker shows none follows."""
NO_HANDLER = "has no handler for signal"
"""Of a rank that has answered such a signal before."""
BEING_STOPPED = "the ranks of this node are being stopped"
NOT_ASKED = "not asked"
"""Beginning of :attr:`Missing.why` of ranks that cannot be blamed for their silence."""

LOCK = "a lock"
SLEEP = "a sleep"
"""Nothing but time."""
PIPE = "a pipe"
FIFO = "the other end of a FIFO"
SOCKET = "a socket"
SOCKET_OR_PIPE = "a socket or pipe"
FROZEN = "its control group to be thawed"
TASKS = "its tasks"
STORE = "a key of torch's store"
OTHER_PROCESS = "another process"
"""At the other end of a queue or connection of ``multiprocessing``."""
