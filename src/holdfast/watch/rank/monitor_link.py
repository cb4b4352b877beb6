"""A rank's requests to its monitor and its launcher: few, as progress is in the page.

    hello ──► welcome      armed, limits ──► ok      bye ──► ok

A monitor may be replaced while the rank runs on: the next question goes to its successor. It may be
stopped, or gone, which must not hold up its rank (P-1): all messages after the welcome repeat the
page, which a monitor reads when it goes on. So an answer is awaited briefly, and done without.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn, TypeVar

from holdfast.base.clock import monotonic
from holdfast.base.pure.codec import MessageError, decode, encode
from holdfast.errors import RankMonitorClientError
from holdfast.fault_tolerance.data import WorkloadControlRequest
from holdfast.net import endpoint
from holdfast.net.endpoint import (
    Connection,
    EndpointClosedError,
    EndpointTimeoutError,
    UnixSocketError,
)
from holdfast.page.pure.clocks import Timeouts
from holdfast.watch.pure.rank_messages import (
    TO_RANK,
    Armed,
    Control,
    Error,
    Hello,
    LeaveMonitor,
    Ok,
    Welcome,
)
from holdfast.watch.rank.rank_info import RankInfo, UnreachableError

if TYPE_CHECKING:
    from holdfast.net.pure.frames import Message
    from holdfast.watch.pure.rank_messages import ToRank

_Answer = TypeVar("_Answer", Welcome, Ok)

_CONNECT_S = 30.0
_HELLO_S = 200.0
"""A monitor lets a rank wait 180 s for the one before it to leave."""
_ANSWER_S = 2.0
"""A monitor that runs answers within a millisecond, on an overloaded machine within this."""
_LAUNCHER_S = 60.0
_NO_TIME_S = 1e-3
_DESCRIPTION_CHARS_MAX = 1000
_UNHEARD_MAX = 16
"""Messages that a stopped monitor is left; more might fill its socket, and cut one in half."""


class MonitorLink:
    """The connection of one rank, from init to shutdown. For one thread at a time.

    Args:
        path: Socket of the monitor.
        info: Who is calling.
        logger: Told of a monitor that was replaced.
        by_steps: See :class:`.rank_messages.Hello`.

    Attributes:
        welcome: The monitor's answer to the first hello.

    Raises:
        RankMonitorClientError: By the constructor, too: the monitor refused, or (also an
            ``OSError``) cannot be reached.
    """

    def __init__(
        self, path: str, info: RankInfo, logger: logging.Logger, *, by_steps: bool = False
    ) -> None:
        self._path = path
        self._by_steps = by_steps
        self._info = info
        self._logger = logger
        self._unheard = 0  # messages since the last answer
        self._connection: Connection | None
        self._connection, self.welcome = self._connect()

    def send(self, message: Armed | Timeouts) -> Ok | None:
        """Send news that the page shows already; return the answer, if there is one.

        Returns:
            ``None``: it did not answer within two seconds (one that did not answer before is not
            waited for at all), or cannot be reached.

        Raises:
            RankMonitorClientError: It refused.
        """
        self._unheard += 1
        try:
            answer = self._ask(encode(message), monotonic() + _ANSWER_S)
        except (UnixSocketError, UnreachableError) as error:
            if self._unheard == 1:
                self._logger.warning(
                    "rank %d: its monitor does not answer; new timeouts and a shutdown apply "
                    "when it continues: %s",
                    self._info.global_rank,
                    error,
                )
            return None
        self._unheard = 0
        return self._expect(Ok, answer)

    def _ask(self, message: Mapping[str, object], until: float) -> Message:
        connection = self._connection
        if connection is not None and connection.owes_answers():
            until = 0.0
            if self._unheard > _UNHEARD_MAX:
                raise EndpointTimeoutError("it has not answered since")
        try:
            if connection is None:
                connection = self._resume(until)
            return connection.request(message, _left_s(until))
        except EndpointClosedError as error:
            self._logger.info("the monitor of this rank was replaced: %s", error)
            return self._resume(until).request(message, _left_s(until))

    def leave(self) -> None:
        """Say bye, and close. Raises nothing."""
        connection = self._connection
        if connection is not None:
            try:
                wait_s = _NO_TIME_S if connection.owes_answers() else _ANSWER_S
                connection.request(encode(LeaveMonitor()), wait_s)
            except UnixSocketError as error:
                self._logger.info("the monitor did not get the shutdown of this rank: %s", error)
        self.close()

    def close(self) -> None:
        """Hang up; does nothing the second time."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(
        self, *, resume: bool = False, wait_s: float = _HELLO_S
    ) -> tuple[Connection, Welcome]:
        info = self._info
        hello = encode(Hello(info.global_rank, info.pid, monotonic(), resume, self._by_steps))
        try:
            connection = endpoint.connect(self._path, min(wait_s, _CONNECT_S))
            try:
                return connection, self._expect(Welcome, connection.request(hello, wait_s))
            except BaseException:
                connection.close()
                raise
        except UnixSocketError as error:
            _raise_unreachable(info.global_rank, "monitor", error)

    def _resume(self, until: float) -> Connection:
        """Connect to the monitor that watches this rank now."""
        self.close()
        connection, welcome = self._connect(resume=True, wait_s=_left_s(until))
        page, mine = welcome.page, self.welcome.page
        if page != mine:
            connection.close()
            raise RankMonitorClientError(
                f"rank {self._info.global_rank}: the monitor that answers now watches {page!r}, "
                f"this rank writes {mine!r}: it belongs to another cycle"
            )
        self._connection = connection
        return connection

    def _expect(self, kind: type[_Answer], answer: Message) -> _Answer:
        message = _decoded(answer)
        if not isinstance(message, kind):
            said = message.text if isinstance(message, Error) else message
            raise RankMonitorClientError(
                f"rank {self._info.global_rank}: its monitor ({self._path!r}) answered {said!r} "
                f"where {kind.__name__.lower()!r} was expected"
            )
        return message


def _decoded(answer: Message) -> ToRank:
    try:
        return decode(TO_RANK, answer)
    except MessageError as error:
        return Error(str(error))


def _left_s(until: float) -> float:
    return max(_NO_TIME_S, until - monotonic())


def _raise_unreachable(rank: int, peer: str, cause: OSError) -> NoReturn:
    error = UnreachableError(f"rank {rank}: its {peer} cannot be reached: {cause}")
    error.errno = cause.errno
    raise error from cause


def send_control_request(path: str, info: RankInfo, request: WorkloadControlRequest) -> None:
    """Ask the launcher that listens on ``path`` (``control_endpoint.py``), and wait for its ok.

    It takes effect at the next restart. One connection per request.

    Raises:
        RankMonitorClientError: It refused or did not answer.
    """
    description = str(request.description)[:_DESCRIPTION_CHARS_MAX]
    message = encode(Control(info.global_rank, request.action.name, description))
    try:
        with endpoint.connect(path, _LAUNCHER_S) as connection:
            answer = _decoded(connection.request(message, _LAUNCHER_S))
    except UnixSocketError as error:
        _raise_unreachable(info.global_rank, "launcher", error)
    if not isinstance(answer, Ok):
        said = answer.text if isinstance(answer, Error) else answer
        raise RankMonitorClientError(
            f"rank {info.global_rank}: the launcher refused {request}: {said}"
        )
