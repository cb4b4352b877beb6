"""A health service of a node: runs your check when a launcher asks, and passes on what it says.

    python health_service.py --socket /run/holdfast/health.sock -- /usr/local/sbin/check-node

Exit code 0 of the command is healthy, everything else keeps the node out of the job, and so does
a command that does not end in time. Its output goes along for the launcher's log. A command that
cannot be started at all says nothing about the node. Launchers that ask while a check runs share
its result. docs/health.md shows how to run this as a service of the host.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are told in our words; read when loaded
try:
    import grpc

    from holdfast.health.node_service import METHOD, messages
    from holdfast.net.endpoint import PATH_BYTES_MAX

    REQUEST, RESPONSE = messages()
except ImportError as error:
    sys.exit(f"health_service: {error}; pip install 'holdfast[health-service]'")

TIMED_OUT = 124  # exit code, as timeout(1) has it
KILLED = 137
LEAVE_S = 1.0
"""How long a killed process may take to be gone; one that hangs in the kernel is left behind."""


class Result(NamedTuple):
    """What a check came to."""

    exit_code: int
    output: str = ""
    error: str = ""


class Check:
    """Runs a command, once at a time."""

    def __init__(self, command: list[str], timeout_s: float, output_bytes: int) -> None:
        self._command = command
        self._timeout_s = timeout_s
        self._output_bytes = output_bytes
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1)
        self._running: Future[Result] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def result(self) -> Result:
        """Of the check that runs already, or of a new one.

        Raises:
            OSError: The command cannot be started.
        """
        with self._lock:
            if self._running is None or self._running.done():
                self._running = self._thread.submit(self._run)
            else:
                print("asked again while a check runs: its result is shared", flush=True)
            running = self._running
        return running.result()

    def close(self) -> None:
        """End the check that runs."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                kill_session(self._process)

    def _run(self) -> Result:
        if not self._command:
            return Result(0, "ok")
        began_at = time.monotonic()
        with self._lock:
            if self._is_closed:
                return Result(KILLED, error="the service is ending")
            process = self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        assert process.stdout is not None
        kept = bytearray()
        reader = threading.Thread(
            target=keep_beginning, args=(process.stdout, kept, self._output_bytes), daemon=True
        )
        reader.start()
        error = ""
        try:
            exit_code = process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            exit_code = TIMED_OUT
            error = f"{self._command[0]} did not end within {self._timeout_s:g} s"
        with self._lock:
            kill_session(process)  # what the command has left behind, too
            self._process = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_S)
        reader.join(LEAVE_S)
        if exit_code < 0:
            error = f"{self._command[0]} was killed by signal {-exit_code}"
            exit_code = 128 - exit_code
        print(f"exit code {exit_code} after {time.monotonic() - began_at:.1f} s", error, flush=True)
        return Result(exit_code, bytes(kept).decode(errors="replace"), error)


def keep_beginning(pipe: IO[bytes], kept: bytearray, n_bytes: int) -> None:
    """Read all, so that the writer is not held up, and keep some."""
    with pipe:
        while data := os.read(pipe.fileno(), 1 << 16):
            kept += data[: n_bytes - len(kept)]


def kill_session(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def serve(check: Check, path: Path, mode: int) -> grpc.Server:
    """Start to answer on ``path``."""

    def run(_request: Any, context: grpc.ServicerContext) -> Any:
        try:
            exit_code, output, error = check.result()
        except OSError as failure:  # no verdict: clients take this status for no answer
            print(f"cannot start the check: {failure}", flush=True)
            context.abort(grpc.StatusCode.UNAVAILABLE, f"cannot start the check: {failure}")
        return RESPONSE(success=exit_code == 0, exit_code=exit_code, output=output, error=error)

    server = grpc.server(ThreadPoolExecutor(16))
    handler = grpc.unary_unary_rpc_method_handler(
        run,
        request_deserializer=REQUEST.FromString,
        response_serializer=RESPONSE.SerializeToString,
    )
    service, method = METHOD.strip("/").split("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    before = os.umask(0o777 & ~mode)  # the mode holds from the first moment
    try:
        if not server.add_insecure_port(f"unix:{path}"):
            raise RuntimeError("cannot listen")
    finally:
        os.umask(before)
    server.start()
    return server


def why_not_free(path: Path) -> str:
    """Why ``path`` cannot be our socket; a stale one is removed."""
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        return f"its path is longer than {PATH_BYTES_MAX} bytes"
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return "there is a file that is no socket"
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(LEAVE_S)
            client.connect(os.fspath(path))
    except ConnectionRefusedError:  # whoever made it is gone
        path.unlink()
        return ""
    except FileNotFoundError:
        return "" if path.parent.is_dir() else f"there is no folder {path.parent}"
    except OSError as failure:
        return str(failure)
    return "a process listens there already"


def pipe_of_signals(*signums: signal.Signals) -> int:
    """A descriptor to wait on.

    A signal that is delivered to a thread of gRPC does not wake a main thread that waits for a
    lock (an ``Event``); its byte in a pipe does.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for signum in signums:
        signal.signal(signum, lambda *_: None)
    return reader


def octal(text: str) -> int:
    if not 0 <= (value := int(text, 8)) <= 0o777:
        raise ValueError
    return value


def read_arguments() -> argparse.Namespace:
    about, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--socket", required=True, type=Path, help="path of the Unix socket")
    parser.add_argument(
        "--mode",
        type=octal,
        default=0o660,
        help="who may ask: permissions of the socket, octal (default: 660)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=50.0,
        help="seconds the check may take; launchers wait for 60 (default: 50)",
    )
    parser.add_argument(
        "--output-bytes",
        type=int,
        default=1 << 16,
        help="how much of the check's output is passed on (default: 65536)",
    )
    parser.add_argument("command", nargs="*", help="the check; none: the node is always healthy")
    arguments = parser.parse_args()
    if arguments.timeout <= 0 or arguments.output_bytes < 0:
        parser.error("--timeout must be more than 0, and --output-bytes not less than 0")
    if arguments.command and shutil.which(arguments.command[0]) is None:
        parser.error(f"there is no program {arguments.command[0]}")
    return arguments


def main() -> int:
    arguments = read_arguments()
    path = arguments.socket.absolute()
    if why_not := why_not_free(path):
        print(f"health_service: cannot listen on {path}: {why_not}", file=sys.stderr)
        return 1
    asked_to_end = pipe_of_signals(signal.SIGTERM, signal.SIGINT)
    check = Check(arguments.command, arguments.timeout, arguments.output_bytes)
    try:
        server = serve(check, path, arguments.mode)
    except RuntimeError as failure:
        print(f"health_service: cannot listen on {path}: {failure}", file=sys.stderr)
        return 1
    print(f"answering on {path}", flush=True)
    os.read(asked_to_end, 1)
    ended = server.stop(LEAVE_S)  # who is being answered may still get its answer
    ended.wait(2 * LEAVE_S)
    check.close()
    path.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
