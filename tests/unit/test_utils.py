"""``nvidia_resiliency_ext.fault_tolerance``: small helpers, and the mailbox."""

import asyncio
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.job.pure.infra_rank import infra_rank
from holdfast.net.endpoint import UnixSocketError
from holdfast.net.pure.frames import FrameError
from nvidia_resiliency_ext.fault_tolerance.ipc_connector import IpcConnector
from nvidia_resiliency_ext.fault_tolerance.utils import (
    get_infrastructure_rank,
    is_process_alive,
    read_obj_from_ipc_stream,
    wait_for_mp_events,
    wait_until_process_terminated,
    write_obj_to_ipc_stream,
)


def test_a_zombie_is_not_alive() -> None:
    """It has ended; only its parent has not looked yet."""
    child = subprocess.Popen([sys.executable, "-IS", "-c", "input()"], stdin=subprocess.PIPE)
    assert is_process_alive(child.pid)

    child.send_signal(signal.SIGKILL)
    wait_until_process_terminated(child.pid, timeout=30)
    assert not is_process_alive(child.pid)

    child.communicate()
    wait_until_process_terminated(child.pid)
    assert not is_process_alive(child.pid)


@pytest.mark.parametrize("timeout", [0.0, 0.01])
def test_a_process_that_does_not_end_in_time_is_an_error(timeout: float) -> None:
    """A caller that goes on as if it had ended would be wrong."""
    with pytest.raises(TimeoutError, match=rf"process {os.getpid()} has not ended within"):
        wait_until_process_terminated(os.getpid(), timeout)


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
        ({"SLURM_JOB_ID": "77"}, "SLURM_PROCID is not set although this is Slurm job 77"),
        ({"GROUP_RANK": "first"}, "GROUP_RANK: 'first' cannot be used"),
        ({"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": "login"}, "'login' has no"),
    ],
)
def test_an_infrastructure_rank_that_makes_no_sense_is_an_error(environ, text) -> None:
    """Naming the variable and its value."""
    with pytest.raises(RuntimeError, match=text):
        get_infrastructure_rank(environ)


_BLOCKS = {"SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}
_environments = st.fixed_dictionaries(
    {},
    optional={
        "NVRX_INFRA_RANK_FROM_NODENAME": st.sampled_from(["1", "true", "on", "y", "0", "no", ""]),
        "SLURMD_NODENAME": st.sampled_from(["gpu-b12-n03", "login", ""]),
        "SLURM_TOPOLOGY_ADDR_PATTERN": st.sampled_from(["block.node", "switch.node", ""]),
        "SLURM_TOPOLOGY_ADDR": st.sampled_from(["b2.n17", "rack1b2.n3x", "b.n", "b2", "s1.b2.n3"]),
        "SLURM_TOPOLOGY_NODES_PER_BLOCK": st.sampled_from(["18", "17", "4", "0", ""]),
        **dict.fromkeys(
            ["CROSS_SLURM_PROCID", "SLURM_PROCID", "SLURM_ARRAY_TASK_ID", "GROUP_RANK"],
            st.sampled_from(["0", "3", " 2 ", "-1", "x", ""]),
        ),
        "SLURM_NNODES": st.just("4"),
        "SLURM_JOB_ID": st.just("77"),
    },
)


@given(environ=_environments)
def test_programs_and_launchers_read_the_same_infrastructure_rank(environ) -> None:
    """Whatever the environment is; where the launcher refuses it, so does the function."""
    try:
        number = infra_rank(environ)
    except ConfigError:
        with pytest.raises(RuntimeError):
            get_infrastructure_rank(environ)
    else:
        assert get_infrastructure_rank(environ) == (-1 if number is None else number.rank)


def _in_block(block: int, node: int, per_block: int | None) -> int:
    more = {} if per_block is None else {"SLURM_TOPOLOGY_NODES_PER_BLOCK": str(per_block)}
    return get_infrastructure_rank({**_BLOCKS, "SLURM_TOPOLOGY_ADDR": f"b{block}.n{node}", **more})


@given(
    blocks=st.tuples(st.integers(0, 999), st.integers(0, 999)).filter(lambda two: two[0] < two[1]),
    nodes=st.tuples(st.integers(0, 10**11), st.integers(0, 10**11))
    | st.tuples(*[st.integers(0, 40)] * 2),
    per_block=st.none() | st.integers(1, 40),
    first=st.sampled_from([0, 1]),
)
def test_no_node_comes_out_among_those_of_another_block(blocks, nodes, per_block, first) -> None:
    """Nodes counted from 0 or from 1; one that does not fit into its block is refused."""
    most = per_block or 10**10
    if max(nodes) > most:
        with pytest.raises(RuntimeError, match="SLURM_TOPOLOGY_NODES_PER_BLOCK"):
            [_in_block(*each, per_block) for each in zip(blocks, nodes, strict=True)]
        return
    low, high = (_in_block(*each, per_block) for each in zip(blocks, nodes, strict=True))
    assert low <= high
    if all(first <= node < first + most for node in nodes):
        assert low < high


def test_a_mailbox_keeps_messages_in_order_until_they_are_taken(tmp_path) -> None:
    """Also those that were sent before garbage, and after it."""
    path = str(tmp_path / "box")
    receiver, sender = IpcConnector(path), IpcConnector(path)
    with pytest.raises(UnixSocketError, match="no such socket"):
        sender.send({"n": 0})

    receiver.start_receiving()
    with pytest.raises(RuntimeError, match=r"start_receiving\(\) was called twice"):
        receiver.start_receiving()
    sender.send({"n": 1})
    with pytest.raises(UnixSocketError):
        _send_garbage(path)
    sender.send({"n": 2})
    assert receiver.fetch_received() == [{"n": 1}, {"n": 2}]
    assert receiver.fetch_received() == []

    sender.send({"n": 2.5})
    receiver.clear()
    sender.send({"n": 3})
    receiver.stop_receiving()
    receiver.stop_receiving()
    assert receiver.fetch_received() == [{"n": 3}]
    assert not Path(path).exists()


@pytest.mark.parametrize(
    "message",
    [object(), {"n": object()}, [{(1, 2): object()}]],
    ids=["itself", "a value", "far inside"],
)
def test_an_object_that_a_mailbox_cannot_carry_is_an_error(tmp_path, message) -> None:
    """Before anything is connected to: here no process listens."""
    with pytest.raises(TypeError, match="objects are not sent between processes"):
        IpcConnector(str(tmp_path / "box")).send(message)


def test_a_sender_that_says_nothing_holds_up_no_other(tmp_path) -> None:
    """One thread served all, one after another, each for 5 s."""
    path = str(tmp_path / "box")
    box = IpcConnector(path)
    box.start_receiving()
    silent = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    for sender in silent:
        sender.connect(path)
    box.send("mine", 30.0)
    assert box.fetch_received() == ["mine"]
    box.stop_receiving()
    for sender in silent:
        assert sender.recv(1) == b""
        sender.close()
    assert not (tmp_path / "box").exists()


def _send_garbage(path: str) -> None:
    from holdfast.net import endpoint

    connection = endpoint.connect(path)
    connection.send_frame(b"\x00\x00\x00\x02[]", 30.0)
    connection.request({"op": "x"}, 30.0)
