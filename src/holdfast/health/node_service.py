"""Ask a node's health service: a program of the user, which knows more about this host.

gRPC over a Unix socket (``nvhcd.proto`` beside this file). An outright answer counts;
that it cannot be reached, or does not answer in time, says nothing about the host:

    success false                                     unhealthy
    success true, output is JSON with fail_count > 0  unhealthy
    success true                                      healthy, whatever else the output is
    the server ends the call with a status            unhealthy
    UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED         unknown
    no socket, no gRPC here, garbage on the socket    unknown
    an answer of other bytes, or of too many          unknown

Users are promised that success means healthy; where a service reports success and counts failures
in its output, the failures count. Output that is no JSON counts none.
"""

from __future__ import annotations

import functools
import json
import os
import re
import stat
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.health.pure.health import Finding, Fitness
from holdfast.net.endpoint import PATH_BYTES_MAX

if TYPE_CHECKING:
    import grpc

PROBE = "service"
METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"
ARGS = ("--no-slurm",)
_RESPONSE_BYTES_MAX = 4 << 20
_EXCERPT_CHARS = 300
_BROKEN_CALLS = (
    "Stream removed",
    "RST_STREAM",
    "larger than max",
    "metadata size exceeds",
    "Failed parsing HTTP/2",
    "Received http2 header",
    "No status received",
)
"""In the text of statuses that gRPC's client makes up itself, when no server has ended the call.

Nothing else tells them apart. One that is not known here is taken for the server's own."""
_EXTRA = "pip install 'holdfast[health-service]'"
_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.enable_http_proxy", 0),  # a proxy can't reach a Unix socket of this host
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, no memory of earlier ones
    ("grpc.default_authority", "localhost"),  # a path is no host name, some servers insist
    ("grpc.max_receive_message_length", _RESPONSE_BYTES_MAX),
)


def ask(endpoint: str, *, deadline_s: float = 60.0) -> list[Finding]:
    """The service's answer about this host, as one finding; raises nothing.

    ``endpoint`` is the path of its Unix socket; ``unix:`` and ``unix://`` before it are taken off.
    """
    path = endpoint.removeprefix("unix://").removeprefix("unix:")
    verdict, text = Fitness.UNKNOWN, _why_not_askable(path)
    if not text:
        try:
            verdict, text = _ask(path, deadline_s)
        except ImportError as error:
            text = f"not asked, as gRPC is not installed here ({error}); {_EXTRA}"
        except Exception as error:  # noqa: BLE001 - an old protobuf, a broken channel: no answer
            text = f"not asked ({type(error).__name__}: {_excerpt(str(error))}); {_EXTRA}"
    return [Finding(PROBE, _excerpt(path), verdict, text)]


def _ask(path: str, deadline_s: float) -> tuple[Fitness, str]:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it writes to stderr; read when it is loaded
    import grpc  # noqa: PLC0415 - an optional extra

    request_type, response_type = messages()
    # gRPC reads it as a URI, and the part after two slashes as a host's name.
    address = f"unix:{urllib.parse.quote(os.fsencode(re.sub('^//+', '/', path)))}"
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        # Bytes are taken as they come: gRPC would log a traceback, and blame the server's status.
        call = channel.unary_unary(
            METHOD,
            request_serializer=request_type.SerializeToString,
            response_deserializer=bytes,
        )
        try:
            answer = call(request_type(args=ARGS), timeout=deadline_s)
        except grpc.RpcError as error:
            return _verdict_of_status(error)
    try:
        response = response_type.FromString(answer)
    except Exception:  # noqa: BLE001 - each implementation of protobuf has its own
        text = f"answered {len(answer)} bytes that cannot be read as a HealthCheckResponse"
        return Fitness.UNKNOWN, text
    return _verdict_of_response(response)


@functools.cache
def messages() -> tuple[Any, Any]:
    """The classes of request and response; generated code would need one version of protobuf."""
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
    fields = {
        "success": kind.TYPE_BOOL,
        "exit_code": kind.TYPE_INT32,
        "output": kind.TYPE_STRING,
        "error": kind.TYPE_STRING,
    }
    for number, (name, type_) in enumerate(fields.items(), 1):
        response.field.add(name=name, number=number, type=type_, label=kind.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()  # the user's program may have the same names in its own
    pool.AddSerializedFile(file.SerializeToString())
    names = ("nvhcd.HealthCheckRequest", "nvhcd.HealthCheckResponse")
    found = [message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names]
    return found[0], found[1]


def _why_not_askable(path: str) -> str:
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        return f"not asked, as its path is longer than {PATH_BYTES_MAX} bytes"
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        return f"not asked: {error.strerror}"
    except ValueError as error:
        return f"not asked: {error}"
    return "" if stat.S_ISSOCK(mode) else "not asked: the file at its path is not a socket"


def _verdict_of_status(error: grpc.RpcError) -> tuple[Fitness, str]:
    code, details = error.code(), _excerpt(error.details() or "")
    is_silent = code.name in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")
    if is_silent or any(words in details for words in _BROKEN_CALLS):
        return Fitness.UNKNOWN, f"no answer ({code.name}: {details})"
    return Fitness.UNHEALTHY, f"its check failed ({code.name}: {details})"


def _verdict_of_response(response: Any) -> tuple[Fitness, str]:
    said = " / ".join(filter(None, map(_excerpt, (response.error, response.output))))
    said = said or "it gives no reason"
    if not response.success:
        return Fitness.UNHEALTHY, f"says unhealthy (exit code {response.exit_code}): {said}"
    count = _fail_count(response.output)
    if count and count != "0":
        counted = _excerpt(str(count))
        return Fitness.UNHEALTHY, f"says success with fail_count {counted}: {said}"
    return Fitness.HEALTHY, "says healthy"


def _fail_count(output: str) -> Any:
    """``fail_count`` of a JSON object in the output; None: it is none, or has no such count."""
    try:
        found = json.loads(output)
    except (ValueError, RecursionError):
        return None
    return found.get("fail_count") if isinstance(found, dict) else None


def _excerpt(text: str) -> str:
    """Its beginning as one line without control characters, which could rewrite a terminal."""
    line = " ".join(text[: 4 * _EXCERPT_CHARS].split())
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= _EXCERPT_CHARS else f"{line[:_EXCERPT_CHARS]}..."
