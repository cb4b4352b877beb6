"""Ask a node's health service: somebody else's program, which knows more about this host than we.

gRPC over a Unix socket (``nvhcd.proto`` beside this file). What the service says outright counts;
that it cannot be reached, or does not answer in time, says nothing about the host:

    success false                                     unhealthy
    success true, output is JSON with fail_count > 0  unhealthy
    success true                                      healthy, whatever else the output is
    the server ends the call with a status            unhealthy
    UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED         unknown
    no socket, no gRPC here, garbage on the socket    unknown
"""

from __future__ import annotations

import functools
import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.core.health import Finding, Verdict

if TYPE_CHECKING:
    import grpc

PROBE = "service"
METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"
ARGS = ("--no-slurm",)
PATH_BYTES_MAX = 107
"""Longest path of a Unix socket on Linux."""
_RESPONSE_BYTES_MAX = 4 << 20
_EXCERPT_CHARS = 300
_EXTRA = "pip install 'holdfast[health-service]'"
_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.enable_http_proxy", 0),  # a proxy knows nothing of our sockets
    ("grpc.enable_retries", 0),
    ("grpc.default_authority", "localhost"),  # a path is no host name, some servers insist
    ("grpc.max_receive_message_length", _RESPONSE_BYTES_MAX),
)


def ask(endpoint: str, *, deadline_s: float = 60.0) -> list[Finding]:
    """What the service says about this host; raises nothing.

    Args:
        endpoint: Path of its Unix socket; ``unix:`` and ``unix://`` before it are taken off.
        deadline_s: How long it may take.

    Returns:
        One finding of the probe ``service``.
    """
    path = endpoint.removeprefix("unix://").removeprefix("unix:")
    if why_not := _why_not_askable(path):
        return [_finding(path, Verdict.UNKNOWN, why_not)]
    try:
        import grpc  # noqa: PLC0415 - an optional extra

        request_type, response_type = messages()
    except ImportError as error:
        text = f"not asked, as gRPC is not installed here ({error}); {_EXTRA}"
        return [_finding(path, Verdict.UNKNOWN, text)]
    with grpc.insecure_channel(f"unix:{path}", options=_OPTIONS) as channel:
        call = channel.unary_unary(
            METHOD,
            request_serializer=request_type.SerializeToString,
            response_deserializer=response_type.FromString,
        )
        try:
            response = call(request_type(args=ARGS), timeout=deadline_s)
        except grpc.RpcError as error:
            return [_finding(path, *_what_a_status_means(error))]
        except Exception as error:  # noqa: BLE001 - whatever a broken channel raises, it is no answer
            return [_finding(path, Verdict.UNKNOWN, f"not asked: {type(error).__name__}: {error}")]
    return [_finding(path, *_what_it_says(response))]


@functools.cache
def messages() -> tuple[Any, Any]:
    """The classes of request and response.

    Made at run time: generated code would tie us to one version of protobuf.

    Raises:
        ImportError: There is no protobuf.
    """
    from google.protobuf import (  # noqa: PLC0415 - an optional extra
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="holdfast/nvhcd.proto", package="nvhcd", syntax="proto3"
    )
    request = file.message_type.add(name="HealthCheckRequest")
    request.field.add(name="args", number=1, type=kind.TYPE_STRING, label=kind.LABEL_REPEATED)
    response = file.message_type.add(name="HealthCheckResponse")
    for number, (name, type_) in enumerate(
        (
            ("success", kind.TYPE_BOOL),
            ("exit_code", kind.TYPE_INT32),
            ("output", kind.TYPE_STRING),
            ("error", kind.TYPE_STRING),
        ),
        1,
    ):
        response.field.add(name=name, number=number, type=type_, label=kind.LABEL_OPTIONAL)
    pool = (
        descriptor_pool.DescriptorPool()
    )  # of our own: the user's program may have the same names
    pool.Add(file)
    names = ("nvhcd.HealthCheckRequest", "nvhcd.HealthCheckResponse")
    found = [message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names]
    return found[0], found[1]


def _why_not_askable(path: str) -> str:
    if len(path.encode()) > PATH_BYTES_MAX:
        return f"not asked, as its path is longer than {PATH_BYTES_MAX} bytes"
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        return f"not asked: {error.strerror}"
    return "" if stat.S_ISSOCK(mode) else "not asked, as there is a file that is no socket"


def _what_a_status_means(error: grpc.RpcError) -> tuple[Verdict, str]:
    import grpc  # noqa: PLC0415 - an optional extra

    code, details = error.code(), _excerpt(error.details() or "")
    silent = (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
    )
    if code in silent:
        return Verdict.UNKNOWN, f"no answer ({code.name}: {details})"
    return Verdict.UNHEALTHY, f"its check failed ({code.name}: {details})"


def _what_it_says(response: Any) -> tuple[Verdict, str]:
    said = _excerpt(" / ".join(filter(None, (response.error, response.output))))
    if not response.success:
        return Verdict.UNHEALTHY, f"says unhealthy (exit code {response.exit_code}): {said}"
    count = _fail_count(response.output)
    if count:
        return Verdict.UNHEALTHY, f"says success with fail_count {count}: {said}"
    return Verdict.HEALTHY, "says healthy"


def _fail_count(output: str) -> Any:
    """What a JSON object in the output counts as failures; None: it is none, or counts nothing."""
    try:
        found = json.loads(output)
    except (ValueError, RecursionError):
        return None
    return found.get("fail_count") if isinstance(found, dict) else None


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _EXCERPT_CHARS else f"{line[:_EXCERPT_CHARS]}..."


def _finding(path: str, verdict: Verdict, text: str) -> Finding:
    return Finding(PROBE, path, verdict, text)
