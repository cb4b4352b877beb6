"""The health service's client against real services: good, sick, and things that are none."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast.health import node_service
from holdfast.health.node_service import ask
from holdfast.health.pure.health import Finding, Fitness
from tests.processes import is_alive
from tests.real.health_services import HealthService, NoGrpc
from tests.waiting import BOUND_S, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "health_service.py"
SHORT_S = 0.5
HEALTHY, UNHEALTHY, UNKNOWN = Fitness.HEALTHY, Fitness.UNHEALTHY, Fitness.UNKNOWN
Speak = Callable[[socket.socket, threading.Event], None]


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    assert finding.probe == "service"
    assert len(str(finding)) < 1000
    assert str(finding).isprintable()
    return finding


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HealthService]:
    started = HealthService(tmp_path / "s")
    yield started
    started.close()


# ------------------------------------------------------------------ what a service says
@pytest.mark.parametrize(
    ("answer", "verdict", "text"),
    [
        ({"success": True}, HEALTHY, ""),
        ({"success": True, "exit_code": 3, "error": "so what"}, HEALTHY, ""),
        ({"success": True, "output": "all 8 GPUs are fine"}, HEALTHY, ""),
        ({"success": True, "output": '{"fail_count": 0}'}, HEALTHY, ""),
        ({"success": True, "output": '{"fail_count": "0"}'}, HEALTHY, ""),
        ({"success": True, "output": '{"fail_count": null, "n": 3}'}, HEALTHY, ""),
        ({"success": True, "output": '["fail_count", 3]'}, HEALTHY, ""),
        ({"success": True, "output": '{"fail_count": 3'}, HEALTHY, ""),
        ({"success": True, "output": "[" * 100_000}, HEALTHY, ""),
        ({"success": True, "output": '{"fail_count": 2, "x": 1}'}, UNHEALTHY, "fail_count 2"),
        ({"success": True, "output": '{"fail_count": "2"}'}, UNHEALTHY, "fail_count 2"),
        (
            {"success": False, "exit_code": 3, "error": "GPU 5", "output": "a\n\x1b[2Jb"},
            *(UNHEALTHY, "says unhealthy (exit code 3): GPU 5 / a ?[2Jb"),
        ),
        ({"success": False, "output": '{"fail_count": 0}'}, UNHEALTHY, "fail_count"),
        ({"success": False, "output": "x" * 1_000_000}, UNHEALTHY, "xxx..."),
        (b"", UNHEALTHY, "it gives no reason"),  # proto3: this is success=False
        (b"\xff" * 40, UNKNOWN, "40 bytes that cannot be read as a HealthCheckResponse"),
        ({"success": False, "output": "x" * (5 << 20)}, UNKNOWN, "RESOURCE_EXHAUSTED"),
    ],
)
def test_an_answer_counts_as_it_is_meant(
    service: HealthService, answer: Any, verdict: Fitness, text: str
) -> None:
    service.answer = lambda: answer
    found = only(ask(str(service.path), deadline_s=BOUND_S))
    assert found.verdict is verdict
    assert text in found.text
    assert service.asked == [["--no-slurm"]]


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (grpc.StatusCode.UNAVAILABLE, UNKNOWN),
        (grpc.StatusCode.DEADLINE_EXCEEDED, UNKNOWN),
        (grpc.StatusCode.CANCELLED, UNKNOWN),
        (grpc.StatusCode.INTERNAL, UNHEALTHY),
        (grpc.StatusCode.UNIMPLEMENTED, UNHEALTHY),
        (grpc.StatusCode.UNKNOWN, UNHEALTHY),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, UNHEALTHY),
    ],
)
def test_a_call_that_a_service_ends_with_a_status(
    service: HealthService, code: grpc.StatusCode, verdict: Fitness
) -> None:
    """What is about the connection says nothing about the host."""
    service.abort = (code, "two\nlines")
    found = only(ask(str(service.path), deadline_s=BOUND_S))
    assert (found.verdict, service.asked) == (verdict, [["--no-slurm"]])
    assert f"({code.name}: two lines)" in found.text


def test_an_error_in_a_service_is_a_failed_check(service: HealthService) -> None:
    service.answer = lambda: {"success": "no bool"}
    found = only(ask(str(service.path), deadline_s=BOUND_S))
    assert found.verdict is UNHEALTHY


def test_a_service_that_hangs_is_waited_for_as_long_as_was_said(service: HealthService) -> None:
    gone_on = threading.Event()
    service.answer = lambda: {"success": gone_on.wait(BOUND_S)}
    found = only(ask(str(service.path), deadline_s=SHORT_S))
    gone_on.set()
    assert found.verdict is UNKNOWN
    assert "DEADLINE_EXCEEDED" in found.text


def test_every_form_of_an_endpoint_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever characters are in its path; a proxy in the environment is not asked."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    service = HealthService(tmp_path / "s")
    odd = tmp_path / "100%41 ?#\udcff"
    service.path.rename(odd)
    try:
        for endpoint in (f"{odd}", f"./{odd.name}", f"unix:{odd}", f"unix://{odd}", f"/{odd}"):
            assert only(ask(endpoint, deadline_s=BOUND_S)).verdict is HEALTHY, endpoint
    finally:
        odd.rename(service.path)
        service.close()


# ------------------------------------------------------------------ what is no service
def _http2(frames: bytes) -> Speak:
    """Speaks enough HTTP/2 to be asked, then sends these frames."""

    def speak(connection: socket.socket, is_closed: threading.Event) -> None:
        connection.sendall(_frame(4, 0, 0, b"") + _frame(4, 1, 0, b""))
        heard = b""
        while b"nvhcd.HealthCheckService" not in heard:
            heard += connection.recv(4096)
        connection.sendall(frames)
        is_closed.wait(BOUND_S)

    return speak


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def _headers(**fields: str) -> bytes:
    """The only ones of an answer."""
    block = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
        for name, value in (
            (name.replace("_", "-").replace("status-", ":").encode(), value.encode())
            for name, value in fields.items()
        )
    )
    return _frame(1, 5, 1, block)


def _says(data: bytes) -> Speak:
    def speak(connection: socket.socket, _is_closed: threading.Event) -> None:
        connection.recv(16)
        connection.sendall(data)

    return speak


def _floods(connection: socket.socket, is_closed: threading.Event) -> None:
    while not is_closed.is_set():
        connection.sendall(b"\xee" * 65536)


@pytest.mark.parametrize(
    "speak",
    [
        pytest.param(lambda connection, is_closed: None, id="hangs up"),
        pytest.param(_says(b"HTTP/1.1 200 OK\r\n\r\nhealthy"), id="speaks HTTP/1"),
        pytest.param(_says(b"\0" * 70000), id="garbage"),
        pytest.param(_floods, id="floods"),
        pytest.param(_http2(b"\xee" * 5000), id="garbage in the middle"),
        pytest.param(_http2(_frame(3, 0, 1, struct.pack("!I", 2))), id="resets the stream"),
        pytest.param(_http2(_frame(7, 0, 0, struct.pack("!II", 0, 2))), id="goes away"),
        pytest.param(_http2(_frame(1, 5, 1, b"\xff" * 50)), id="bad headers"),
        pytest.param(_http2(_headers(status_status="404")), id="some web server"),
        pytest.param(_http2(_headers(status_status="200")), id="no status of gRPC"),
    ],
)
def test_something_else_on_the_socket_says_nothing_about_the_host(
    tmp_path: Path, speak: Speak
) -> None:
    other = NoGrpc(tmp_path / "s", speak)
    try:
        assert only(ask(str(other.path), deadline_s=2.0)).verdict is UNKNOWN
    finally:
        other.close()


def test_one_that_takes_the_call_and_says_nothing_is_not_waited_for_too_long(
    tmp_path: Path,
) -> None:
    other = NoGrpc(tmp_path / "s", lambda _, is_closed: is_closed.wait(BOUND_S) and None)
    try:
        found = only(ask(str(other.path), deadline_s=SHORT_S))
    finally:
        other.close()
    assert (found.verdict, "DEADLINE_EXCEEDED" in found.text) == (UNKNOWN, True)


def test_a_socket_that_its_service_has_left_says_nothing(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(tmp_path / "s"))
    found = only(ask(str(tmp_path / "s"), deadline_s=BOUND_S))
    assert (found.verdict, "Connection refused" in found.text) == (UNKNOWN, True)


def test_grpc_writes_nothing_of_its_own(tmp_path: Path) -> None:
    """The launcher's log has one line about it, ours."""
    other = NoGrpc(tmp_path / "s", _http2(_frame(7, 0, 0, struct.pack("!II", 0, 2))))
    code = f"from {node_service.__name__} import ask; print(ask({str(other.path)!r})[0].verdict)"
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
            env=env,
        )
    finally:
        other.close()
    assert (done.stdout, done.stderr) == ("Fitness.UNKNOWN\n", "")


# ------------------------------------------------------------------ the example
class Example:
    """``examples/health_service.py``, running."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.path = folder / "health.sock"
        self._output = folder / "service.log"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(EXAMPLE), "--socket", str(self.path), *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        until(lambda: "answering" in self.said or self.process.poll() is not None, "it answers")

    @property
    def said(self) -> str:
        return self._output.read_text()

    def ask(self) -> Finding:
        return only(ask(str(self.path), deadline_s=BOUND_S))

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(BOUND_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Callable[..., Example]]:
    started: list[Example] = []

    def start(*arguments: str) -> Example:
        started.append(Example(tmp_path, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_the_example_says_what_its_command_says(
    example: Callable[..., Example], tmp_path: Path
) -> None:
    """Each time anew; only the chosen ones may ask; its socket goes with it."""
    marker = tmp_path / "sick"
    script = f"if [ -e {marker} ]; then echo GPU 3 is lost; exit 7; fi; yes | head -c 200000"
    service = example("--mode", "600", "--", "sh", "-c", script)
    assert service.path.stat().st_mode & 0o777 == 0o600
    assert service.ask().verdict is HEALTHY
    marker.touch()
    found = service.ask()
    assert found.verdict is UNHEALTHY
    assert found.text == "says unhealthy (exit code 7): GPU 3 is lost"

    assert service.end() == 0
    assert not service.path.exists()
    assert "Traceback" not in service.said


def test_the_example_has_a_limit_for_its_command_and_leaves_nothing_of_it(
    example: Callable[..., Example], tmp_path: Path
) -> None:
    """A driver that hangs is the commonest way for a GPU to fail."""
    pids = tmp_path / "pids"
    script = f"echo looking; sleep 1000 & echo $$ $! > {pids}; wait"
    found = example("--timeout", "2", "--", "sh", "-c", script).ask()
    assert found.verdict is UNHEALTHY
    assert "(exit code 124): sh did not end within 2 s / looking" in found.text
    for pid in pids.read_text().split():
        until(lambda pid=pid: not is_alive(int(pid)), "the command is gone")


def test_launchers_that_ask_at_once_share_a_check(
    example: Callable[..., Example], tmp_path: Path
) -> None:
    """Checks that load the GPUs would disturb each other."""
    fifo, runs = tmp_path / "go", tmp_path / "runs"
    os.mkfifo(fifo)
    service = example("--", "sh", "-c", f"echo run >> {runs}; cat {fifo}; false")
    found: list[Finding] = []
    askers = [threading.Thread(target=lambda: found.append(service.ask())) for _ in range(3)]
    for asker in askers:
        asker.start()
    until(runs.exists, "the check runs")
    until(lambda: service.said.count("asked again") == 2, "all have asked")
    fifo.write_text("enough")
    for asker in askers:
        asker.join(BOUND_S)
    assert [each.verdict for each in found] == [UNHEALTHY] * 3
    assert len(runs.read_text().split()) == 1


@pytest.mark.parametrize("ends", ["terminate", "kill"])
def test_a_service_that_ends_in_the_middle_of_a_call_says_nothing_about_the_host(
    example: Callable[..., Example], tmp_path: Path, ends: str
) -> None:
    """It was asked to, or it has crashed; in order, it takes its command along."""
    pid_file = tmp_path / "pid"
    service = example("--", "sh", "-c", f"echo $$ > {pid_file}; exec sleep 1000")
    found: list[Finding] = []
    asker = threading.Thread(target=lambda: found.append(service.ask()))
    asker.start()
    pid = int(until(lambda: pid_file.exists() and pid_file.read_text(), "the check runs"))
    getattr(service.process, ends)()
    asker.join(BOUND_S)
    assert [each.verdict for each in found] == [UNKNOWN]
    if ends == "terminate":
        assert service.process.wait(BOUND_S) == 0
        until(lambda: not is_alive(pid), "its command is gone")
    else:
        os.kill(pid, 9)


def test_the_example_takes_over_from_one_that_crashed_and_from_no_other(
    example: Callable[..., Example],
) -> None:
    """A stale socket is in nobody's way; two services on one would be."""
    crashed = example()
    crashed.close()
    assert crashed.path.exists()
    service = example()
    assert service.ask().verdict is HEALTHY
    second = example()
    assert second.process.wait(BOUND_S) == 1
    assert second.said.count("\n") == 1
    assert "a process listens there already" in second.said
    assert service.ask().verdict is HEALTHY


def test_the_example_that_cannot_start_its_command_blames_no_host(
    example: Callable[..., Example], tmp_path: Path
) -> None:
    """A mistake in a deployment would take all nodes away at once."""
    command = tmp_path / "check"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    service = example("--", str(command))
    assert service.ask().verdict is HEALTHY
    command.unlink()
    found = service.ask()
    assert (found.verdict, "cannot start the check" in found.text) == (UNKNOWN, True)


def test_the_example_says_in_one_line_what_it_lacks(tmp_path: Path) -> None:
    """No gRPC, no folder, no such program."""
    (tmp_path / "grpc.py").write_text("raise ImportError('No module named grpc')")
    start = [sys.executable, str(EXAMPLE), "--socket"]
    for command, path, expected in (
        ([*start, "/tmp/s"], str(tmp_path), "No module named grpc; pip install 'holdfast["),
        ([*start, f"{tmp_path}/none/s"], "", "there is no folder"),
        ([*start, f"{tmp_path}/s", "--", "/no/such"], "", "there is no program /no/such"),
    ):
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
        assert done.returncode in {1, 2}
        assert expected in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
