"""Health services of a node, good and bad, on real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from holdfast.health.node_service import METHOD, messages
from tests.waiting import BOUND_S

REQUEST, RESPONSE = messages()


class HealthService:
    """A gRPC server on a Unix socket that says what a test wants.

    Attributes:
        answer: Called with each request; gives the fields of the response, or its bytes.
        abort: Status and text that end a call instead.
        asked: Requests so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[list[str]] = []
        self.answer: Callable[[], dict[str, Any] | bytes] = lambda: {"success": True}
        self.abort: tuple[grpc.StatusCode, str] | None = None
        self._server = grpc.server(ThreadPoolExecutor(2))
        service, method = METHOD.strip("/").split("/")
        handler = grpc.unary_unary_rpc_method_handler(
            self._run, request_deserializer=REQUEST.FromString, response_serializer=bytes
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        assert self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def _run(self, request: Any, context: grpc.ServicerContext) -> bytes:
        self.asked.append(list(request.args))
        if self.abort is not None:
            context.abort(*self.abort)
        answer = self.answer()
        return answer if isinstance(answer, bytes) else RESPONSE(**answer).SerializeToString()

    def close(self) -> None:
        self._server.stop(grace=None).wait(BOUND_S)


class NoGrpc:
    """Something else that listens: it hands each connection to ``speak``, then hangs up.

    Attributes:
        path: Its socket.
        is_closed: Set when the test is over, for those who would not hang up.
    """

    def __init__(self, path: Path, speak: Callable[[socket.socket, threading.Event], None]) -> None:
        self.path = path
        self.is_closed = threading.Event()
        self._speak = speak
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self.is_closed.is_set():
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    connection.settimeout(BOUND_S)
                    self._speak(connection, self.is_closed)

    def close(self) -> None:
        self.is_closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(BOUND_S)
        self._listener.close()
