"""Which guard a rank of a node finds."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.inplace import guard_process
from holdfast.inplace.guard_process import GuardError, connect_to_guard, guard_address
from tests.garbage import framed


@contextmanager
def squatted(token: str, number: int, answer: bytes) -> Iterator[None]:
    """Somebody else has a name that the guard of a job would have."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(guard_address(token, number))
    listener.listen(100)

    def serve() -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            with connected:
                connected.recv(4096)
                connected.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        framed(b'{"proof":"00","nonce":"x"}'),
        framed(b'{"op":"hosting","port":1}'),
    ],
)
def test_ranks_pass_by_a_stranger_that_has_the_name_of_their_guard(answer: bytes) -> None:
    """All of them, to the same guard; the stranger does not learn the token."""
    token = secrets.token_hex(16)
    with squatted(token, 0, answer):
        ranks = [connect_to_guard(token) for _ in range(2)]
        names = {rank._socket.getpeername() for rank in ranks}
        assert names == {guard_address(token, 1).encode()}
    for rank in ranks:
        rank.close()


def test_where_strangers_have_all_names_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By pid and user."""
    monkeypatch.setattr(guard_process, "_NAMES", 1)
    token = secrets.token_hex(16)
    with squatted(token, 0, b"nonsense"), pytest.raises(GuardError, match=f"process {os.getpid()}"):
        connect_to_guard(token)


def test_a_guard_serves_no_process_that_does_not_know_the_token() -> None:
    """Of the same user, who could read its name in /proc/net/unix."""
    token = secrets.token_hex(16)
    with connect_to_guard(token), socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(30.0)
        stranger.connect(guard_address(token))
        stranger.sendall(framed(b'{"nonce":"x"}') + framed(b'{"proof":"x"}'))
        said = b""
        while more := stranger.recv(4096):
            said += more
        assert set(json.loads(said[4:])) == {"proof", "nonce"}


def test_pods_of_one_host_network_have_guards_of_their_own() -> None:
    """A guard has to see the processes of its ranks; two pods may even have one hostname."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare(1)")
    token = secrets.token_hex(16)
    say = "import sys; from holdfast.inplace.guard_process import guard_address as a; "
    say += "sys.stdout.write(a(sys.argv[1]))"
    done = subprocess.run(
        [unshare, "--pid", "--fork", sys.executable, "-c", say, token],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode != 0:
        pytest.skip(f"no pid namespace can be made here: {done.stderr.strip()}")
    assert done.stdout.startswith("\0holdfast-guard-")
    assert done.stdout != guard_address(token)
