"""A rank's connection to its monitor: for what has to be answered, which is little.

    hello ──► welcome      armed, limits ──► ok      bye ──► ok

A monitor may be replaced at any time, while the rank runs on: the next question finds out, calls
its successor, and is asked again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.errors import RankMonitorClientError
from holdfast.fault_tolerance.client_errors import raise_unreachable
from holdfast.fault_tolerance.data import RankInfo
from holdfast.host import endpoint
from holdfast.host.clock import monotonic
from holdfast.host.endpoint import Connection, EndpointClosedError, EndpointError

if TYPE_CHECKING:
    from holdfast.wire.frames import Message

_HELLO_S = 200.0
"""A monitor lets a rank wait 180 s for the one before it to leave."""
_ANSWER_S = 60.0
_BYE_S = 5.0


class MonitorLink:
    """The connection of one rank, from init to shutdown. For one thread at a time.

    Args:
        path: Socket of the monitor.
        info: Who is calling.
        num_warmup_iters: Told to the monitor; ``None``: as configured.
        logger: Told of a monitor that was replaced.

    Attributes:
        welcome: What the monitor answered to the first hello.

    Raises:
        RankMonitorClientError: By the constructor, too: the monitor refused, or (also an
            ``OSError``) cannot be reached.
    """

    def __init__(
        self, path: str, info: RankInfo, num_warmup_iters: int | None, logger: logging.Logger
    ) -> None:
        self._path = path
        self._info = info
        self._logger = logger
        self._connection: Connection | None
        self._connection, self.welcome = self._connect(num_warmup_iters=num_warmup_iters)

    def ask(self, message: Mapping[str, object]) -> Message:
        """Ask the monitor; if it was replaced meanwhile, ask its successor."""
        connection = self._connection
        try:
            if connection is None:
                connection = self._resume()
            try:
                answer = connection.request(message, _ANSWER_S)
            except EndpointClosedError as error:
                self._logger.info("the monitor of this rank was replaced: %s", error)
                answer = self._resume().request(message, _ANSWER_S)
        except EndpointError as error:
            raise_unreachable(self._info.global_rank, "monitor", error)
        return self._expect("ok", answer)

    def leave(self) -> None:
        """Say bye, and close. Raises nothing: who leaves does not care."""
        if self._connection is not None:
            try:
                self._connection.request({"op": "bye"}, _BYE_S)
            except EndpointError as error:
                self._logger.info("the monitor did not hear this rank leave: %s", error)
        self.close()

    def close(self) -> None:
        """Hang up; does nothing the second time."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(
        self, *, num_warmup_iters: int | None = None, resume: bool = False
    ) -> tuple[Connection, Message]:
        info = self._info
        hello: dict[str, object] = {
            "op": "hello",
            "version": 1,
            "rank": info.global_rank,
            "local_rank": info.local_rank,
            "host": info.host,
            "pid": info.pid,
            "clock_s": monotonic(),
            "num_warmup_iterations": num_warmup_iters,
        }
        if resume:
            hello["resume"] = True
        try:
            connection = endpoint.connect(self._path)
        except EndpointError as error:
            raise_unreachable(info.global_rank, "monitor", error)
        try:
            return connection, self._expect("welcome", connection.request(hello, _HELLO_S))
        except EndpointError as error:
            connection.close()
            raise_unreachable(info.global_rank, "monitor", error)
        except BaseException:
            connection.close()
            raise

    def _resume(self) -> Connection:
        """Connect to the monitor that watches this rank now."""
        self.close()
        connection, welcome = self._connect(resume=True)
        page, mine = welcome.get("page"), self.welcome["page"]
        if page != mine:
            connection.close()
            raise RankMonitorClientError(
                f"rank {self._info.global_rank}: the monitor that answers now watches {page!r}, "
                f"this rank writes {mine!r}: it belongs to another cycle"
            )
        self._connection = connection
        return connection

    def _expect(self, operation: str, answer: Message) -> Message:
        if answer.get("op") != operation:
            raise RankMonitorClientError(
                f"rank {self._info.global_rank}: its monitor ({self._path!r}) answered "
                f"{answer.get('text', answer)!r} where {operation!r} was expected"
            )
        return answer
