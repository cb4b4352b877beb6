"""Descriptors of ours in a process whose program closes them, or reuses their numbers."""

import os
import socket
from pathlib import Path

import pytest

from holdfast.base.own_descriptor import LostDescriptorError, OwnDescriptor, OwnSocket
from holdfast.evidence import dump_signal
from holdfast.fault_tolerance import RankMonitorClient, rank_monitor_client
from tests.unit.fake_monitor import FakeMonitor, rank_environment


def take_over(fd: int, path: Path) -> None:
    """The program closes the descriptor, and gets its number for a file of its own."""
    own = os.open(path, os.O_RDWR | os.O_CREAT)
    os.dup2(own, fd)
    os.close(own)


@pytest.mark.parametrize("how", ["close", "free"])
def test_a_number_that_the_program_reuses_is_left_alone(tmp_path: Path, how: str) -> None:
    """Neither closed nor written to, by an explicit close or when the object is freed."""
    ours, pipe = OwnSocket(), OwnDescriptor(os.open(tmp_path / "a", os.O_WRONLY | os.O_CREAT))
    for fd in (ours.fileno(), pipe.fd):
        take_over(fd, tmp_path / "theirs")
    numbers = ours.fileno(), pipe.fd
    assert not ours.is_own()
    assert not pipe.is_own()
    if how == "close":
        with pytest.raises(LostDescriptorError):
            ours.check()
        ours.close()
        pipe.close()
        pipe.close()
    del ours, pipe
    for number in numbers:
        os.fstat(number)
        os.close(number)


def test_a_descriptor_that_the_program_closed_is_closed_without_an_error() -> None:
    ours, pipe = OwnSocket(), OwnDescriptor(os.open(os.devnull, os.O_RDONLY))
    os.close(ours.fileno())
    os.close(pipe.fd)
    ours.close()
    pipe.close()


def test_numbers_are_high_where_the_program_does_not_get_them_soon() -> None:
    with OwnSocket() as ours:
        assert ours.fileno() >= 500


def test_a_program_that_closes_all_descriptors_keeps_its_own_and_its_monitor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a daemon's start does: it ended with EBADF, or lost the sockets that it opened next."""
    monitor = FakeMonitor(tmp_path)
    monitor.dump = str(tmp_path / "stacks.txt")
    monkeypatch.setattr(rank_monitor_client._Process, "has_begun", False)
    for name, value in rank_environment(monitor).items():
        monkeypatch.setenv(name, value)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    ours = [client._link._connection.fileno()]
    ours.append(dump_signal._registered["rank monitor"][2].fd)
    for fd in ours:
        take_over(fd, tmp_path / "theirs")
    client.load_state_dict({"current_timeouts": {"heartbeat": {"initial": 50, "subsequent": 40}}})
    assert client.hb_timeouts.subsequent == 40
    dump_signal.write_stacks()
    client.shutdown_workload_monitoring()
    assert (tmp_path / "theirs").read_bytes() == b""
    assert b"test_own_descriptor" in (tmp_path / "stacks.txt").read_bytes()
    for fd in ours:
        os.close(fd)
    monitor.close()
    assert monitor.operations().count("hello") == 2


def test_a_socket_that_was_not_touched_works(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener, OwnSocket() as ours:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        ours.connect(str(tmp_path / "socket"))
        ours.check()
        ours.sendall(b"x")
        with listener.accept()[0] as accepted:
            assert accepted.recv(1) == b"x"
