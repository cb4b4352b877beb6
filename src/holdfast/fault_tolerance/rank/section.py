"""A section as a ``with`` block."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.fault_tolerance.rank.rank_progress import RankProgress

_thread_id = threading.get_ident


class Section:
    """A section as a context manager; made by :meth:`RankMonitorClient.section`, used for ever.

    Entering it again in the thread that is inside already is allowed; the section is timed from the
    outermost ``with``. Leaving it after ``end_all_sections`` or a shutdown is allowed, too.
    """

    __slots__ = ("_client", "_depth", "_owner", "name")

    def __init__(self, client: RankProgress, name: str) -> None:
        self.name = name
        self._client = client
        self._owner = 0
        self._depth = 0

    def __enter__(self) -> Section:  # noqa: PYI034 - Self is in typing from Python 3.11
        client = self._client
        if self._depth and self._owner == _thread_id() and client._is_open(self.name):  # noqa: SLF001
            self._depth += 1
            return self
        client.start_section(self.name)
        self._owner = _thread_id()
        self._depth = 1
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if self._owner != _thread_id():
            return
        depth = self._depth = self._depth - 1
        if not depth and self._client._is_open(self.name):  # noqa: SLF001
            self._client.end_section(self.name)
