"""Ranks are started tied to the process that starts them, and reaped once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base.processes import child, proc, rank_boot
from holdfast.net import port
from tests.processes import is_alive
from tests.waiting import until

PARENT = """
import sys, signal
from holdfast.base.processes import child
tie = child.death_tie()
pid = child.spawn_rank(tie, ["sleep", "1000"], {"PATH": "/usr/bin:/bin"}, {})
print(pid, flush=True)
signal.pause()
"""


SERVER = """
import socket, sys
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen()
"""


def is_asleep(pid: int) -> bool:
    found = proc.stat(pid)
    return found is not None and found.name == "sleep" and is_alive(pid)


@pytest.mark.parametrize("path", ["/usr/bin:/bin", "/nowhere"])
def test_a_rank_dies_with_its_launcher(path: str) -> None:
    """By setpriv, and where there is none (empty PATH) by our own first lines."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    until(lambda: is_asleep(pid), "the rank runs its command")

    parent.kill()
    parent.wait()
    parent.stdout.close()

    until(lambda: not is_asleep(pid), "the rank is gone")


def test_a_setpriv_that_knows_no_death_signal_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Busybox has one: every rank would end at once with a usage error."""
    stub = tmp_path / "setpriv"
    stub.write_text("#!/bin/sh\nexit 1\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert rank_boot.__file__ in child.death_tie()


def test_our_first_lines_refuse_to_run_without_the_launcher() -> None:
    """It died before the death signal was set: the rank must not start."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", rank_boot.__file__, "1", "echo", "started"],
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (rank_boot.CANNOT_START, b"")


def test_a_child_that_has_ended_is_known_before_it_is_reaped() -> None:
    """It ended of itself, whatever it is sent from then on."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not proc.is_ending(process.pid)
    process.stdin.close()  # type: ignore[union-attr]
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert proc.is_ending(process.pid)
    process.wait()
    assert proc.is_ending(process.pid), "it is no more"


def test_a_rank_that_our_first_lines_started_has_the_signals_it_would_have_had() -> None:
    """Python ignores SIGPIPE and SIGXFSZ: ``yes | head`` in a rank's script would never end."""
    words = ["sh", "-c", "grep SigIgn /proc/self/status"]
    done = subprocess.run(
        [sys.executable, "-I", "-S", rank_boot.__file__, str(os.getpid()), *words],
        capture_output=True,
        text=True,
        check=True,
    )
    ignored = int(done.stdout.split()[1], 16)
    assert not ignored >> signal.SIGPIPE - 1 & 1
    assert not ignored >> signal.SIGXFSZ - 1 & 1


def test_everything_below_us_is_found_but_what_is_to_be_left() -> None:
    """A child in a session of its own included; what is left alone is left with its children."""
    env = dict(os.environ)
    one = child.spawn(["/bin/sh", "-c", "setsid sleep 1000 & exec sleep 1000"], env, {})
    other = child.spawn(["/bin/sleep", "1000"], env, {})

    below_one = until(lambda: set(proc.subtree(one)) - {one}, "its child runs")
    everything = proc.subtree(os.getpid())
    assert {one, other, *below_one} <= set(everything)
    assert (everything[other].parent, everything[other].session) == (os.getpid(), other)
    rest = set(proc.subtree(os.getpid(), {one}))
    assert other in rest
    assert not rest & {one, *below_one}

    for pid in (*below_one, one, other):
        child.send_signal(pid, signal.SIGKILL)
    for pid in (one, other):
        os.waitpid(pid, 0)


def test_a_reserved_port_is_for_who_is_told() -> None:
    """A server that reuses addresses may listen on it; nobody gets it by chance."""
    reserved = port.ReservedPort()
    server = subprocess.run(
        [
            sys.executable,
            "-c",
            SERVER,
            str(reserved.number),
        ],
        check=False,
    )
    another = port.ReservedPort()

    assert server.returncode == 0
    assert another.number != reserved.number
    reserved.release()
    another.release()


def test_who_listens_on_a_reserved_port_is_seen() -> None:
    """On any address, and only once it listens."""
    reserved = port.ReservedPort()
    assert not reserved.wait_until_listened_on(0.0)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", reserved.number))
        assert not reserved.wait_until_listened_on(0.003), "bound, no more"
        server.listen()
        assert reserved.wait_until_listened_on(30.0)
    assert not reserved.wait_until_listened_on(0.0)
    reserved.release()
