"""Small helpers, and the mailbox."""

import asyncio
import multiprocessing
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.fault_tolerance.ipc_connector import IpcConnector
from holdfast.fault_tolerance.utils import (
    get_infrastructure_rank,
    is_process_alive,
    read_obj_from_ipc_stream,
    wait_for_mp_events,
    wait_until_process_terminated,
    write_obj_to_ipc_stream,
)
from holdfast.host.endpoint import EndpointError
from holdfast.wire.frames import FrameError


def test_a_zombie_is_not_alive() -> None:
    """It has ended; only its parent has not looked yet."""
    child = subprocess.Popen([sys.executable, "-IS", "-c", "input()"], stdin=subprocess.PIPE)
    assert is_process_alive(child.pid)
    assert not wait_until_process_terminated(child.pid)

    child.send_signal(signal.SIGKILL)
    assert wait_until_process_terminated(child.pid, timeout=30)
    assert not is_process_alive(child.pid)

    child.communicate()
    assert wait_until_process_terminated(child.pid)
    assert not is_process_alive(child.pid)


def test_events_are_waited_for_together() -> None:
    """One that is never set is named."""
    events = [multiprocessing.Event() for _ in range(2)]
    events[0].set()
    with pytest.raises(TimeoutError, match=r"event 1 was not set within 0.01 s"):
        wait_for_mp_events(events, timeout=0.01)
    events[1].set()
    wait_for_mp_events(events)


def test_messages_pass_through_an_asyncio_stream() -> None:
    """And what is no message does not."""

    class Writer:
        def __init__(self) -> None:
            self.written = b""

        def write(self, data: bytes) -> None:
            self.written += data

        async def drain(self) -> None:
            pass

    async def talk() -> None:
        writer, reader = Writer(), asyncio.StreamReader()
        await write_obj_to_ipc_stream({"op": "a"}, writer)
        await write_obj_to_ipc_stream({"op": "b"}, writer)
        reader.feed_data(writer.written + b"\x00\x00\x00\x00")
        assert await read_obj_from_ipc_stream(reader) == {"op": "a"}
        assert await read_obj_from_ipc_stream(reader) == {"op": "b"}
        with pytest.raises(FrameError):
            await read_obj_from_ipc_stream(reader)

    asyncio.run(talk())


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, -1),
        ({"GROUP_RANK": "3"}, 3),
        ({"GROUP_RANK": "3", "SLURM_PROCID": "5"}, 5),
        ({"SLURM_PROCID": "1", "SLURM_ARRAY_TASK_ID": "2", "SLURM_NNODES": "4"}, 9),
        ({"SLURM_PROCID": "1", "SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_NUM_NODES": "8"}, 17),
        (
            {
                "SLURM_PROCID": "1",
                "SLURM_TOPOLOGY_ADDR": "block02.node17",
                "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node",
            },
            2 * 10**10 + 17,
        ),
        (
            {
                "SLURM_TOPOLOGY_ADDR": "b2.n17",
                "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node",
                "SLURM_TOPOLOGY_NODES_PER_BLOCK": "100",
            },
            217,
        ),
        (
            {
                "SLURM_PROCID": "1",
                "SLURM_TOPOLOGY_ADDR": "switch1.n17",
                "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node",
            },
            1,
        ),
        ({"SLURM_PROCID": "1", "CROSS_SLURM_PROCID": "7"}, 7),
        (
            {
                "CROSS_SLURM_PROCID": "7",
                "SLURMD_NODENAME": "gpu-b12-n03",
                "NVRX_INFRA_RANK_FROM_NODENAME": "1",
            },
            1203,
        ),
    ],
)
def test_the_infrastructure_rank_comes_from_the_first_variable_that_is_set(environ, rank) -> None:
    """In the order of precedence."""
    assert get_infrastructure_rank(environ) == rank


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"SLURM_JOB_ID": "77"}, "Slurm job 77 but SLURM_PROCID is not set"),
        ({"GROUP_RANK": "first"}, "GROUP_RANK is 'first', not a number"),
        ({"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": "login"}, "holds 'login'"),
    ],
)
def test_an_infrastructure_rank_that_makes_no_sense_is_an_error(environ, text) -> None:
    """Naming the variable and its value."""
    with pytest.raises(RuntimeError, match=text):
        get_infrastructure_rank(environ)


def test_a_mailbox_keeps_messages_in_order_until_they_are_taken(tmp_path) -> None:
    """Also those that were sent before garbage, and after it."""
    path = str(tmp_path / "box")
    receiver, sender = IpcConnector(path), IpcConnector(path)
    with pytest.raises(EndpointError, match="no such socket"):
        sender.send({"n": 0})

    receiver.start_receiving()
    receiver.start_receiving()
    sender.send({"n": 1})
    with pytest.raises(EndpointError):
        _send_garbage(path)
    sender.send({"n": 2})
    assert receiver.fetch_received() == [{"n": 1}, {"n": 2}]
    assert receiver.fetch_received() == []

    sender.send({"n": 3})
    with pytest.raises(TypeError):
        sender.send({"n": object()})
    receiver.stop_receiving()
    receiver.stop_receiving()
    assert receiver.fetch_received() == [{"n": 3}]
    assert not Path(path).exists()


def _send_garbage(path: str) -> None:
    from holdfast.host import endpoint

    connection = endpoint.connect(path)
    connection._send(b"\x00\x00\x00\x02[]", 30.0)
    connection.request({"op": "x"}, 30.0)
