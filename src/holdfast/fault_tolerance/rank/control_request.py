"""A rank asks its launcher for something that takes effect at the next restart.

The other end is ``control_endpoint.py``. One connection per request.
"""

from __future__ import annotations

from holdfast.core.codec import MessageError, decode, encode
from holdfast.core.monitor.rank_messages import TO_RANK, Control, Error, Ok
from holdfast.errors import RankMonitorClientError
from holdfast.fault_tolerance.data import RankInfo, WorkloadControlRequest
from holdfast.fault_tolerance.rank.client_errors import raise_unreachable
from holdfast.host import endpoint
from holdfast.host.endpoint import EndpointError

_ANSWER_S = 60.0
_DESCRIPTION_CHARS_MAX = 1000


def send_control_request(path: str, info: RankInfo, request: WorkloadControlRequest) -> None:
    """Ask the launcher that listens on ``path``, and wait for its ok.

    Raises:
        RankMonitorClientError: It refused or did not answer.
    """
    description = str(request.description)[:_DESCRIPTION_CHARS_MAX]
    message = encode(Control(info.global_rank, request.action.name, description))
    try:
        connection = endpoint.connect(path, _ANSWER_S)
        try:
            answer = decode(TO_RANK, connection.request(message, _ANSWER_S))
        finally:
            connection.close()
    except EndpointError as error:
        raise_unreachable(info.global_rank, "launcher", error)
    except MessageError as error:
        answer = Error(str(error))
    if not isinstance(answer, Ok):
        said = answer.text if isinstance(answer, Error) else answer
        raise RankMonitorClientError(
            f"rank {info.global_rank}: the launcher refused {request}: {said}"
        )
